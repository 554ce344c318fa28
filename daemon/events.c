/* events.c - see events.h */
#include "events.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm.h"

/* Any client may be given it to read; no one but us has it to write, of our own uid neither. */
static int ring_make(uint64_t bytes, struct kvp_ring **ring)
{
	int fd = memfd_create("kvpool-events", MFD_CLOEXEC | MFD_ALLOW_SEALING), r;

	if (fd < 0)
		return -errno;
	r = fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t)bytes) < 0 ? -errno : shm_reserve(fd, 0, bytes);
	*ring = r < 0 ? NULL : shm_map(fd, bytes);
	if (r == 0 && !*ring)
		r = -errno;
	if (r == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
		r = -errno;
		munmap(*ring, bytes);
	}
	if (r < 0) {
		close(fd);
		return r;
	}
	return fd;
}

int events_open(struct ns *ns)
{
	uint64_t bytes = sizeof(struct kvp_ring) + KVP_RING_EVENTS * sizeof(struct kvp_ring_event);
	struct kvp_ring *ring = NULL;
	int fd;

	if (ns->ring)
		return 0;
	fd = ring_make(bytes, &ring);
	if (fd < 0)
		return fd;
	ring->magic = KVP_MAGIC_RING;
	ring->layout_major = KVP_LAYOUT_MAJOR;
	ring->layout_minor = KVP_LAYOUT_MINOR;
	ring->endian = KVP_ENDIAN;
	ring->object_bytes = bytes;
	ring->n_events = KVP_RING_EVENTS;
	ring->first = pool_clock(&ns->d->pool); /* above all of earlier rings: none of them told a billion a second */
	atomic_store(&ring->next, ring->first);
	ns->ring = ring;
	ns->ring_fd = fd;
	ns->d->pool.meta_bytes += bytes;
	return 0;
}

void events_close(struct ns *ns)
{
	if (!ns->ring)
		return;
	ns->d->pool.meta_bytes -= ns->ring->object_bytes;
	atomic_store(&ns->ring->closed, 1);
	munmap(ns->ring, ns->ring->object_bytes);
	close(ns->ring_fd);
	ns->ring = NULL;
}

static void ring_put(struct kvp_ring *ring, const struct kvp_key *key, const struct kvp_key *parent, uint64_t what)
{
	uint64_t seq = atomic_load_explicit(&ring->next, memory_order_relaxed);
	struct kvp_ring_event *event = &ring->events[seq & (KVP_RING_EVENTS - 1)];

	atomic_store_explicit(&event->seq, 0, memory_order_relaxed);
	atomic_thread_fence(memory_order_release); /* its number goes before its bytes change */
	for (unsigned i = 0; i < 2; i++) {
		atomic_store_explicit(&event->key[i], key->w[i], memory_order_relaxed);
		atomic_store_explicit(&event->parent[i], parent->w[i], memory_order_relaxed);
	}
	atomic_store_explicit(&event->what, what, memory_order_relaxed);
	atomic_store_explicit(&event->seq, seq, memory_order_release);
	atomic_store_explicit(&ring->next, seq + 1, memory_order_release);
}

static void events_put(const struct entry *e, uint32_t tier, uint32_t kind)
{
	if (e->ns->ring && !e->ns->quiet)
		ring_put(e->ns->ring, &e->key, &e->parent_key, (uint64_t)e->used_tokens << 32 | tier << 16 | kind);
}

void events_stored(const struct entry *e, uint32_t tier)
{
	events_put(e, tier, KVP_EVENT_STORED);
}

void events_removed(const struct entry *e, uint32_t tier)
{
	events_put(e, tier, KVP_EVENT_REMOVED);
}

void events_cleared(struct ns *ns)
{
	static const struct kvp_key none;

	if (ns->ring)
		ring_put(ns->ring, &none, &none, KVP_EVENT_CLEARED);
}
