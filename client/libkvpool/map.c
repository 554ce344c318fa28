/*
 * map.c - namespace objects and slabs mapped into this process
 *
 * Readers find a slab's mapping by an acquire load of map->ro[place]; mappings are made under map->lock by whoever needs
 * them, and stay at their address as long as the session has them, so neither a view nor a registered region ever dangles.
 * Of slabs that left: unmap.c.  Once nobody holds anything in a session that is gone, its slabs are mapped over with zeroes.
 */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TOUCH_BYTES (2ull << 20) /* in one turn of the keeper, so that answers do not wait for it */
#define TOUCH_AHEAD_BYTES (16ull << 30) /* beyond this a client's pages are touched when used */

static void map_advise(void *base, uint64_t bytes)
{
	madvise(base, bytes, MADV_DONTDUMP);
	madvise(base, bytes, MADV_DONTFORK);
}

void *map_object(int fd, uint64_t bytes, bool writable)
{
	off_t have = lseek(fd, 0, SEEK_END); /* fstat would do; an object shorter than promised would be SIGBUS later */
	void *base;

	if (have < 0 || (uint64_t)have < bytes || !bytes) {
		fail(-KVP_EPROTO, "a shared object has %lld bytes, not %llu", (long long)have,
			(unsigned long long)bytes);
		return NULL;
	}
	base = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		fail(-KVP_ENOMEM, "cannot map %llu bytes: %s; see vm.max_map_count and ulimit -v",
			(unsigned long long)bytes, strerror(errno));
		return NULL;
	}
	map_advise(base, bytes);
	return base;
}

/* ---- the namespace object ---- */

static bool span_fits(uint64_t off, uint64_t n, uint64_t item, uint64_t bytes)
{
	return off % sizeof(uint64_t) == 0 && off <= bytes && n <= (bytes - off) / item;
}

/* Written by the daemon, yet bounds first. */
static bool ns_head_ok(const struct kvp_ns_header *head, uint64_t bytes, const struct session *s, uint64_t ns_id)
{
	return head->magic == KVP_MAGIC_NS && head->layout_major == KVP_LAYOUT_MAJOR && head->endian == KVP_ENDIAN &&
	       head->header_bytes >= KVP_NS_HEADER_LEAST && head->header_bytes <= bytes && head->ns_id == ns_id &&
	       head->object_bytes <= bytes && head->slots_per_slab && head->slots_per_slab < 1u << 31 &&
	       head->max_places <= s->max_places && (uint64_t)head->max_places * head->slots_per_slab < UINT32_MAX &&
	       head->slots_per_slab <= s->pin_stride / sizeof(struct kvp_pin) &&
	       span_fits(head->slab_off, head->max_places, sizeof(struct kvp_slab), bytes) &&
	       span_fits(head->block_off, (uint64_t)head->max_places * head->slots_per_slab, sizeof(struct kvp_block),
		       bytes) &&
	       span_fits(head->index_off, head->n_buckets, sizeof(struct kvp_index_bucket), bytes) && head->n_buckets &&
	       !(head->n_buckets & (head->n_buckets - 1)) && head->block_stride % KVP_PAGE == 0 && head->block_bytes &&
	       head->block_bytes <= head->block_stride && head->slots_per_slab <= head->slab_bytes / head->block_stride;
}

/* As many blocks ready as the caller asked for, but little memory and little of a small pool. */
static uint32_t stock_target(const struct kvp_client *client, const struct ns_map *map)
{
	uint64_t pool_blocks = map->session->header->pool_bytes / map->block_stride;
	uint64_t target = client->stock_blocks;

	if (target > pool_blocks / 64)
		target = pool_blocks / 64;
	if (target > (64ull << 20) / map->block_stride)
		target = (64ull << 20) / map->block_stride;
	return (uint32_t)target;
}

static void map_fill(struct ns_map *map, const struct kvp_wire_joined *joined)
{
	const struct kvp_ns_header *head = map->head;
	const char *base = (const char *)head;

	map->ns_id = head->ns_id;
	map->slabs = (const struct kvp_slab *)(const void *)(base + head->slab_off);
	map->blocks = (const struct kvp_block *)(const void *)(base + head->block_off);
	map->index = (const struct kvp_index_bucket *)(const void *)(base + head->index_off);
	map->n_buckets = head->n_buckets;
	map->slots_per_slab = head->slots_per_slab;
	map->slots_inverse = ((1ull << 63) - 1) / head->slots_per_slab + 1;
	map->max_places = head->max_places;
	map->n_slots = (uint64_t)head->max_places * head->slots_per_slab;
	map->block_bytes = head->block_bytes;
	map->block_stride = head->block_stride;
	map->block_tokens = head->desc.block_tokens;
	map->flags = joined->flags;
	map->n_siblings = joined->n_siblings;
	memcpy(map->differs, joined->differs, sizeof(map->differs));
	memcpy(map->secret, head->secret, sizeof(map->secret));
	map->changes_seen = UINT64_MAX;
	map->stock_target = stock_target(map->session->client, map);
	map->connection = map->session->client->connection;
}

/* The first of the places for counts that no other namespace has: one that was left gives its own away, and its counts have been
   taken by then. Under client->lock. */
static uint32_t count_place(const struct session *s)
{
	bool taken[KVP_CLIENT_NS_MAX] = {false};
	uint32_t at = 0;

	for (const struct ns_map *map = s->maps; map; map = map->next)
		if (map->count_at < KVP_CLIENT_NS_MAX)
			taken[map->count_at] = true;
	while (at < KVP_CLIENT_NS_MAX && taken[at])
		at++;
	return at;
}

int map_open(struct session *s, int fd, const struct kvp_wire_joined *joined, struct ns_map **out)
{
	struct ns_map *map = calloc(1, sizeof(*map));
	off_t bytes = lseek(fd, 0, SEEK_END);
	int r = -KVP_ENOMEM;

	if (!map)
		return fail(r, "out of memory");
	map->session = s;
	map->bytes = bytes > 0 ? (uint64_t)bytes : 0;
	map->head = map->bytes >= sizeof(*map->head) ? map_object(fd, map->bytes, false) : NULL;
	if (map->head && ns_head_ok(map->head, map->bytes, s, joined->ns_id)) {
		map_fill(map, joined);
		map->ro = calloc(map->max_places, sizeof(*map->ro));
		map->rw = calloc(map->max_places, sizeof(*map->rw));
		r = map->ro && map->rw ? 0 : fail(r, "out of memory");
	} else if (map->head) {
		r = fail(-KVP_EPROTO, "the namespace object's header makes no sense, or has another layout");
	}
	if (r < 0) {
		if (map->head)
			munmap((void *)(uintptr_t)map->head, map->bytes);
		free(map->ro);
		free(map->rw);
		free(map);
		return r;
	}
	pthread_mutex_init(&map->lock, NULL);
	pthread_mutex_lock(&s->client->lock);
	map->count_at = count_place(s);
	if (map->count_at < KVP_CLIENT_NS_MAX)
		atomic_store(&s->head->ns_counts[map->count_at].ns_id, map->ns_id);
	map->next = s->maps;
	s->maps = map;
	pthread_mutex_unlock(&s->client->lock);
	*out = map;
	return 0;
}

void map_close(struct ns_map *map, bool in_child)
{
	while (map->arrived && !in_child) { /* the child cannot take the locks it takes */
		struct request *request = map->arrived;

		map->arrived = request->next;
		request_free(request);
	}
	while (map->all) {
		struct slab_map *slab = map->all;

		map->all = slab->next;
		if (!in_child) /* not there in the child; something else may be */
			munmap(slab->base, slab->bytes);
		free(slab->held);
		free(slab->grants);
		free(slab);
	}
	while (map->unused) {
		struct slab_map *slab = map->unused;

		map->unused = slab->next;
		free(slab);
	}
	while (map->stages) {
		struct stage *stage = map->stages;

		map->stages = stage->next;
		if (!in_child)
			munmap(stage->base, stage->bytes);
		free(stage->used);
		free(stage);
	}
	if (!in_child)
		munmap((void *)(uintptr_t)map->head, map->bytes);
	pthread_mutex_destroy(&map->lock);
	free(map->ro);
	free(map->rw);
	free(map->stock);
	free(map->unmapped);
	free(map);
}

/* ---- slabs ---- */

/* Under client->lock. */
static void region_add(struct kvp_client *client, const struct slab_map *slab)
{
	if (client->n_regions == client->regions_room) {
		uint32_t room = client->regions_room ? 2 * client->regions_room : 64;
		const struct slab_map **more = realloc(client->regions, room * sizeof(*more));

		if (!more)
			return;
		client->regions = more;
		client->regions_room = room;
	}
	client->regions[client->n_regions++] = slab;
}

static struct slab_map *slab_map_new(
	const struct ns_map *map, const struct kvp_wire_mapped *mapped, int fd, bool writable)
{
	struct slab_map *slab = calloc(1, sizeof(*slab));

	if (!slab)
		return NULL;
	slab->map = map;
	slab->place = mapped->place;
	slab->number = mapped->number;
	slab->bytes = mapped->bytes;
	slab->writable = writable;
	if (writable)
		slab->grants = calloc(map->slots_per_slab, sizeof(*slab->grants));
	if (!writable || slab->grants)
		slab->base = map_object(fd, slab->bytes, writable);
	if (slab->base)
		return slab;
	free(slab->grants);
	free(slab);
	return NULL;
}

static bool mapped_ok(const struct ns_map *map, const struct kvp_wire_mapped *mapped)
{
	return mapped->place < map->max_places && mapped->number &&
	       mapped->bytes / map->block_stride >= map->slots_per_slab;
}

/* Put a new mapping in its place, unless one of the same slab is there already, or the slab has left meanwhile: an answer
 * that was long on its way must not hide the mapping of its successor, and the grants that are noted there. */
static bool slab_map_install(struct ns_map *map, struct slab_map *slab)
{
	struct kvp_client *client = map->session->client;
	struct slab_map *have;

	pthread_mutex_lock(&map->lock);
	unmap_left_at(map, slab->place);
	have = slab->writable ? map->rw[slab->place]
			      : atomic_load_explicit(&map->ro[slab->place], memory_order_relaxed);
	if ((have && have->number == slab->number) ||
		atomic_load_explicit(&map->slabs[slab->place].number, memory_order_acquire) != slab->number) {
		pthread_mutex_unlock(&map->lock);
		return false;
	}
	slab->next = map->all;
	map->all = slab;
	if (slab->writable)
		map->rw[slab->place] = slab;
	else
		atomic_store_explicit(&map->ro[slab->place], slab, memory_order_release);
	pthread_mutex_unlock(&map->lock);
	pthread_mutex_lock(&client->lock);
	if (!slab->writable)
		region_add(client, slab);
	if (!(client->flags & KVP_OPEN_NO_PREFAULT)) {
		slab->touch_next = client->touch;
		client->touch = slab;
	}
	pthread_mutex_unlock(&client->lock);
	return true;
}

static bool map_take_one(struct ns_map *map, const struct kvp_wire_mapped *mapped, int fd, bool writable)
{
	struct slab_map *slab = mapped_ok(map, mapped) ? slab_map_new(map, mapped, fd, writable) : NULL;

	if (!slab)
		return false;
	if (!slab_map_install(map, slab)) {
		munmap(slab->base, slab->bytes);
		pthread_mutex_lock(&map->lock);
		unmap_note(map, slab->number);
		pthread_mutex_unlock(&map->lock);
		free(slab->grants);
		free(slab);
	}
	return true;
}

/* Not mapped. Return: for a reason that asking again at once does not change: that; else 0: it has left meanwhile. */
static int place_refused(const struct ns_map *map, int status)
{
	const char *socket = map->session->client->socket;

	if (status == -KVP_ENOSPC)
		return fail(
			status, "the daemon at %s has no room in /dev/shm for what pins of one more slab need", socket);
	if (status == -KVP_EQUOTA)
		return fail(status, "the daemon at %s has no descriptor left: raise LimitNOFILE of kvpoold", socket);
	return 0;
}

static int map_answered(struct ns_map *map, struct request *request, uint32_t n, bool writable)
{
	unsigned fd = 0;
	int got = 0, r = 0;

	if (request->body_bytes < n * sizeof(struct kvp_wire_mapped))
		return fail(-KVP_EPROTO, "the daemon answers MAP with %zu bytes", request->body_bytes);
	for (uint32_t i = 0; i < n; i++) {
		struct kvp_wire_mapped mapped;

		memcpy(&mapped, request->body + i * sizeof(mapped), sizeof(mapped));
		if (mapped.status) {
			r = r ? r : place_refused(map, mapped.status);
			continue;
		}
		if (fd == request->n_fds)
			break;
		if (map_take_one(map, &mapped, request->fds[fd++], writable))
			got++;
		else
			r = r ? r : -KVP_ENOMEM;
	}
	client_wake(map->session->client);
	return got ? got : r;
}

int map_places(struct ns_map *map, const uint32_t *places, uint32_t n, bool writable, uint64_t deadline_ns)
{
	struct session *s = map->session;
	struct kvp_wire_map head = {.ns_id = map->ns_id, .n = n, .writable = writable};
	struct request *request = request_new(s->client, s, KVP_MSG_MAP, sizeof(head) + (size_t)n * sizeof(uint32_t));
	int r;

	if (!request)
		return fail(-KVP_ENOMEM, "out of memory");
	memcpy(request_body(request), &head, sizeof(head));
	memcpy((char *)request_body(request) + sizeof(head), places, (size_t)n * sizeof(uint32_t));
	r = request_call(&request, deadline_ns);
	if (r == 0)
		r = map_answered(map, request, n, writable);
	request_free(request);
	return r;
}

static bool place_unmapped(const struct ns_map *map, uint32_t place)
{
	uint64_t number = atomic_load_explicit(&map->slabs[place].number, memory_order_acquire);
	const struct slab_map *slab = atomic_load_explicit(&map->ro[place], memory_order_acquire);

	return number && (!slab || slab->number != number);
}

int map_ahead(struct ns_map *map, uint32_t first, uint64_t deadline_ns)
{
	uint32_t places[KVP_WIRE_FDS_MAX], n = 0;
	int r;

	if (first < map->max_places && place_unmapped(map, first))
		places[n++] = first;
	for (uint32_t place = 0; place < map->max_places && n < KVP_WIRE_FDS_MAX; place++)
		if (place != first && place_unmapped(map, place))
			places[n++] = place;
	if (!n)
		return 0;
	r = map_places(map, places, n, false, deadline_ns);
	if (r == -KVP_EQUOTA && n > 1) /* descriptors did not fit: only the one that is needed */
		r = map_places(map, places, 1, false, deadline_ns);
	return r;
}

/* ---- touching ---- */

static bool slab_is_current(const struct slab_map *slab)
{
	return !slab->map->session->gone &&
	       atomic_load_explicit(&slab->map->slabs[slab->place].number, memory_order_acquire) == slab->number;
}

static void pages_touch(const void *from, uint64_t bytes, int advice)
{
	uintptr_t first = (uintptr_t)from & ~(uintptr_t)(KVP_PAGE - 1);

	madvise((void *)first, (uintptr_t)from + bytes - first, advice);
}

/* What a hit in the slab reads and writes beside the block itself: descriptors and pins. Their pages exist, and with the
 * namespace's first slab the index is touched too. */
static void slab_touch_meta(const struct slab_map *slab)
{
	const struct ns_map *map = slab->map;
	uint64_t n = map->slots_per_slab;

	pages_touch(&map->blocks[slab->place * n], n * sizeof(struct kvp_block), MADV_POPULATE_READ);
	pages_touch(session_pin(map->session, slab->place, 0), n * sizeof(struct kvp_pin), MADV_POPULATE_WRITE);
	if (!slab->next)
		pages_touch(map->index, map->n_buckets * sizeof(*map->index), MADV_POPULATE_READ);
}

bool map_touch(struct kvp_client *client)
{
	struct slab_map *slab;
	uint64_t n;

	pthread_mutex_lock(&client->lock);
	slab = client->touch;
	pthread_mutex_unlock(&client->lock);
	if (!slab)
		return false;
	n = slab->bytes - slab->touched < TOUCH_BYTES ? slab->bytes - slab->touched : TOUCH_BYTES;
	if (!slab_is_current(slab))
		n = slab->bytes - slab->touched; /* it left: touching would only fill what was punched empty */
	else if (!slab->touched && !slab->writable)
		slab_touch_meta(slab);
	if (slab_is_current(slab) && client->touched_bytes < TOUCH_AHEAD_BYTES)
		madvise(slab->base + slab->touched, n, slab->writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
	slab->touched += n;
	client->touched_bytes += n;
	if (slab->touched < slab->bytes)
		return true;
	pthread_mutex_lock(&client->lock);
	for (struct slab_map **at = &client->touch; *at; at = &(*at)->touch_next)
		if (*at == slab) {
			*at = slab->touch_next;
			break;
		}
	pthread_mutex_unlock(&client->lock);
	return true;
}

/* ---- after the pool is gone ---- */

static bool place_held(const struct ns_map *map, uint32_t place)
{
	for (uint32_t i = 0; i < map->slots_per_slab; i++)
		if (atomic_load(&session_pin(map->session, place, i)->count))
			return true;
	return false;
}

static void zeroes_over(void *base, uint64_t bytes)
{
	void *p = mmap(
		base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

	if (p != MAP_FAILED)
		map_advise(p, bytes);
}

bool map_retire(struct ns_map *map)
{
	bool idle = true;

	pthread_mutex_lock(&map->lock);
	for (struct slab_map *slab = map->all; slab; slab = slab->next) {
		if (slab->retired)
			continue;
		if (place_held(map, slab->place)) {
			idle = false;
			continue;
		}
		zeroes_over(slab->base, slab->bytes);
		slab->retired = true;
	}
	for (struct stage *stage = map->stages; stage; stage = stage->next) {
		if (stage->n_free < stage->n_blocks)
			idle = false;
		else if (!stage->retired)
			zeroes_over(stage->base, stage->bytes);
		stage->retired = stage->n_free == stage->n_blocks;
	}
	pthread_mutex_unlock(&map->lock);
	return idle;
}

int kvp_region(const struct kvp_client *client, uint32_t i, const void **base, size_t *len)
{
	struct kvp_client *c = (struct kvp_client *)(uintptr_t)client; /* only its lock is written */
	int r = client_bad(client);

	if (r < 0 || !base || !len)
		return r < 0 ? 0 : fail(0, "base and len: a null pointer");
	pthread_mutex_lock(&c->lock);
	c->regions_told = true;
	r = i < c->n_regions;
	if (r) {
		*base = c->regions[i]->base;
		*len = c->regions[i]->bytes;
	}
	pthread_mutex_unlock(&c->lock);
	return r;
}
