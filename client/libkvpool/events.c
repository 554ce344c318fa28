/*
 * events.c - what happens in a namespace, read out of the daemon's ring of it (struct kvp_ring)
 *
 * The ring is asked for at the first call, and again when another daemon came.  ns->ring_lock is held for copying,
 * never for a wait.
 */
#include "internal.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define NAP_MIN_MS 1
#define NAP_MAX_MS 20

void ring_close(struct kvp_ns *ns, bool in_child)
{
	if (ns->ring && !in_child) /* not mapped in a forked child */
		munmap((void *)(uintptr_t)ns->ring, ns->ring_bytes);
	ns->ring = NULL;
}

static bool ring_good(const struct kvp_ring *ring, uint64_t bytes)
{
	return ring->magic == KVP_MAGIC_RING && ring->layout_major == KVP_LAYOUT_MAJOR && ring->endian == KVP_ENDIAN &&
	       ring->n_events && !(ring->n_events & (ring->n_events - 1)) && ring->n_events < 1u << 24 &&
	       sizeof(*ring) + ring->n_events * sizeof(ring->events[0]) <= bytes;
}

/* With the lock. */
static int ring_take(struct kvp_ns *ns, const struct request *request, uint64_t epoch)
{
	struct kvp_wire_ring told = {0};
	const struct kvp_ring *ring;

	if (!request_body_take(request, &told, sizeof(told), KVP_RING_LEAST) || !request->n_fds)
		return fail(-KVP_EPROTO, "the daemon answers EVENTS with %zu bytes", request->body_bytes);
	ring = told.bytes < sizeof(*ring) ? NULL : map_object(request->fds[0], told.bytes, false);
	if (!ring)
		return fail(-KVP_ENOMEM, "namespace %s: its events cannot be mapped", ns->join.name);
	if (!ring_good(ring, told.bytes)) {
		munmap((void *)(uintptr_t)ring, told.bytes);
		return fail(-KVP_EPROTO, "namespace %s: its events are of another layout", ns->join.name);
	}
	ring_close(ns, false);
	ns->ring = ring;
	ns->ring_bytes = told.bytes;
	ns->ring_epoch = epoch;
	return 0;
}

/* Have the ring of the daemon there is, if there is one. Return: 0; -KVP_E...: it will give none. */
static int ring_open(struct kvp_ns *ns)
{
	uint64_t epoch = atomic_load_explicit(&ns->client->epoch, memory_order_acquire);
	struct ns_map *map = atomic_load_explicit(&ns->map, memory_order_acquire);
	struct kvp_wire_batch head = {0};
	struct request *request;
	bool have;
	int r;

	pthread_mutex_lock(&ns->ring_lock);
	have = ns->ring && ns->ring_epoch == epoch && !atomic_load(&ns->ring->closed);
	pthread_mutex_unlock(&ns->ring_lock);
	if (have || !map)
		return 0;
	head.ns_id = map->ns_id;
	request = request_new(ns->client, map->session, KVP_MSG_EVENTS, sizeof(head));
	if (!request)
		return fail(-KVP_ENOMEM, "out of memory");
	memcpy(request_body(request), &head, sizeof(head));
	r = request_call(&request, after_ms(ANSWER_MS));
	if (r == 0) {
		pthread_mutex_lock(&ns->ring_lock);
		r = ring_take(ns, request, epoch);
		pthread_mutex_unlock(&ns->ring_lock);
	}
	request_free(request);
	/* it went, or is just coming: as good as not there */
	return r == -KVP_EDETACHED || r == -KVP_ETIMEDOUT || r == -KVP_EGONE || r == -KVP_ENOENT ? 0 : r;
}

/* Return: false: it was overtaken. */
static bool event_read(const struct kvp_ring *ring, uint64_t seq, struct kvp_event *event)
{
	const struct kvp_ring_event *at = &ring->events[seq & (ring->n_events - 1)];
	uint64_t what;

	if (atomic_load_explicit(&at->seq, memory_order_acquire) != seq)
		return false;
	what = atomic_load_explicit(&at->what, memory_order_relaxed);
	*event = (struct kvp_event){
		.seq = seq, .kind = what & 0xffff, .tier = what >> 16 & 0xffff, .used_tokens = (uint32_t)(what >> 32)};
	for (unsigned i = 0; i < 2; i++) {
		event->key.w[i] = atomic_load_explicit(&at->key[i], memory_order_relaxed);
		event->parent.w[i] = atomic_load_explicit(&at->parent[i], memory_order_relaxed);
	}
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&at->seq, memory_order_relaxed) == seq;
}

/* From @from on, as many as there are. With the lock. */
static uint32_t ring_read(const struct kvp_ring *ring, uint64_t *from, struct kvp_event *events, uint32_t max)
{
	uint64_t next = atomic_load_explicit(&ring->next, memory_order_acquire);
	uint64_t oldest = next - ring->first > ring->n_events ? next - ring->n_events : ring->first;
	uint32_t n = 0;

	if (*from < oldest || *from > next) {
		*from = *from && *from < oldest && oldest > ring->first ? oldest + (next - oldest) / 4 : oldest;
		events[n++] = (struct kvp_event){.kind = KVP_EVENT_GAP, .seq = *from};
	}
	while (n < max && *from < next) {
		if (event_read(ring, *from, &events[n])) {
			++*from;
			n++;
			continue;
		}
		if (n) /* overtaken: what was read stands, the next call begins with a GAP */
			break;
		next = atomic_load_explicit(&ring->next, memory_order_acquire);
		*from = next - ring->n_events / 2;
		events[n++] = (struct kvp_event){.kind = KVP_EVENT_GAP, .seq = *from};
	}
	return n;
}

int64_t kvp_events(struct kvp_ns *ns, uint64_t *from, struct kvp_event *events, uint32_t max, uint64_t deadline_ns)
{
	uint64_t nap_ms = NAP_MIN_MS;
	uint32_t n = 0;
	int r = ns_bad(ns);

	if (r < 0)
		return r;
	if (!from || !events || !max)
		return fail(-KVP_EINVAL, "from, events and max: %s", max ? "a null pointer" : "room for one at least");
	for (;;) {
		r = ring_open(ns);
		if (r < 0)
			return r;
		pthread_mutex_lock(&ns->ring_lock);
		if (ns->ring)
			n = ring_read(ns->ring, from, events, max);
		pthread_mutex_unlock(&ns->ring_lock);
		if (n || now_ns() >= deadline_ns)
			return n;
		nanosleep(&(struct timespec){.tv_nsec = (long)(nap_ms * MS)}, NULL);
		nap_ms = nap_ms < NAP_MAX_MS ? 2 * nap_ms : NAP_MAX_MS;
	}
}
