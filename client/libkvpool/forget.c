/*
 * forget.c - blocks that are to go: by key, or all of a namespace; and what a namespace has, in numbers
 */
#include "internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN_MS 5 /* in use: asked again after so long */

static int map_of(const struct kvp_ns *ns, struct ns_map **map)
{
	int r = ns_bad(ns);

	if (r < 0)
		return r;
	*map = atomic_load_explicit(&ns->map, memory_order_acquire);
	return *map ? 0 : fail(-KVP_EDETACHED, "namespace %s: no daemon", ns->join.name);
}

/* As map_of(), of a handle that may let blocks go: whoever opened it to look up only does not, whatever else he opened. */
static int map_to_empty(const struct kvp_ns *ns, struct ns_map **map)
{
	int r = map_of(ns, map);

	if (r == 0 && ns->flags & KVP_NS_READONLY)
		r = fail(-KVP_EACCES, "namespace %s is read-only to this client: it was opened with KVP_NS_READONLY",
			ns->join.name);
	return r;
}

/* Head and keys of one message. */
static struct request *request_of(
	struct ns_map *map, uint16_t type, const void *head, size_t n_head, const void *items, size_t n_items)
{
	struct session *s = map->session;
	struct request *request = request_new(s->client, s, type, n_head + n_items);

	if (!request)
		return NULL;
	memcpy(request_body(request), head, n_head);
	if (n_items)
		memcpy((char *)request_body(request) + n_head, items, n_items);
	return request;
}

/* ---- delete ---- */

/* By when an answer is wanted: who waits for nothing gives the daemon the time an answer takes. */
static uint64_t answer_by(uint64_t deadline_ns)
{
	return deadline_ns ? deadline_ns : after_ms(ANSWER_MS);
}

/* As request_call(): what the daemon read too late was not done, as if it had not come. */
static int call_by(struct request **request, uint64_t deadline_ns)
{
	int r = request_call(request, deadline_ns);

	return r == -ETIME ? -KVP_ETIMEDOUT : r;
}

/* One message's worth. Return: 0, @fates are those the daemon tells; -KVP_E... */
static int delete_ask(struct ns_map *map, struct kvp_key *keys, uint32_t n, uint64_t deadline_ns, uint8_t *fates)
{
	/* an older daemon takes the deadline for bytes too many */
	bool can = wire_can(map->session->client, KVP_CAN_DEADLINE);
	struct kvp_wire_batch head = {.ns_id = map->ns_id, .n = n, .flags = can ? KVP_WIRE_DEADLINE : 0};
	uint64_t by = answer_by(deadline_ns);
	struct request *request;
	int r;

	static_assert(sizeof(by) <= sizeof(*keys), "it has room as another key");
	memcpy(&keys[n], &by, sizeof(by));
	request =
		request_of(map, KVP_MSG_DELETE, &head, sizeof(head), keys, n * sizeof(*keys) + (can ? sizeof(by) : 0));
	r = request ? call_by(&request, by) : fail(-KVP_ENOMEM, "out of memory");
	for (uint32_t i = 0; r == 0 && i < n && (i + 1) * sizeof(struct kvp_wire_found) <= request->body_bytes; i++) {
		struct kvp_wire_found found;

		memcpy(&found, request->body + i * sizeof(found), sizeof(found));
		fates[i] = found.state == KVP_MISS	      ? DELETE_GONE
			   : found.reason == KVP_WIRE_OF_BASE ? DELETE_OF_BASE
							      : DELETE_LEFT;
	}
	request_free(request);
	return r;
}

/* Those left, in one message. */
static int delete_round(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n, uint64_t deadline_ns, uint8_t *fates)
{
	struct kvp_key left[KVP_WIRE_BATCH_MAX + 1]; /* and the deadline */
	uint32_t where[KVP_WIRE_BATCH_MAX], n_left = 0;
	uint8_t now[KVP_WIRE_BATCH_MAX] = {DELETE_LEFT};
	struct ns_map *map;
	int r = map_to_empty(ns, &map);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < n; i++)
		if (fates[i] == DELETE_LEFT) {
			where[n_left] = i;
			left[n_left++] = keys[i];
		}
	r = delete_ask(map, left, n_left, deadline_ns, now);
	for (uint32_t i = 0; i < n_left; i++)
		fates[where[i]] = now[i];
	return r;
}

static uint32_t count_of(const uint8_t *fates, uint32_t n, enum delete_fate fate)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < n; i++)
		count += fates[i] == fate;
	return count;
}

/* Each of those left is asked for once. */
static int delete_all(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n, uint64_t deadline_ns, uint8_t *fates)
{
	int r = 0;

	for (uint32_t at = 0; at < n && r == 0; at += KVP_WIRE_BATCH_MAX) {
		uint32_t m = n - at < KVP_WIRE_BATCH_MAX ? n - at : KVP_WIRE_BATCH_MAX;

		if (count_of(fates + at, m, DELETE_LEFT))
			r = delete_round(ns, keys + at, m, deadline_ns, fates + at);
	}
	return r;
}

/* One that is in use keeps none of the others waiting. */
int64_t delete_keys(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n, uint64_t deadline_ns, uint8_t *fates)
{
	uint32_t n_of_base;
	int r, again = 0;

	memset(fates, DELETE_LEFT, n);
	r = delete_all(ns, keys, n, deadline_ns, fates);
	while (r == 0 && again == 0 && count_of(fates, n, DELETE_LEFT) && now_ns() + AGAIN_MS * MS < deadline_ns) {
		nanosleep(&(struct timespec){.tv_nsec = AGAIN_MS * MS}, NULL);
		again = delete_all(ns, keys, n, deadline_ns, fates);
	}
	if (again != -KVP_ETIMEDOUT && r == 0) /* else what stands is that some are in use */
		r = again;
	n_of_base = count_of(fates, n, DELETE_OF_BASE);
	if (r == 0 && n_of_base)
		fail_say("namespace %s: %u of the blocks are of its base: delete them there", ns->join.name, n_of_base);
	return r < 0 ? r : (int64_t)count_of(fates, n, DELETE_GONE);
}

int64_t kvp_delete(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n, uint64_t deadline_ns)
{
	int64_t r = ns_bad(ns);
	uint8_t *fates;

	if (r == 0 && n && !keys)
		r = fail(-KVP_EINVAL, "keys: a null pointer");
	if (r < 0 || !n)
		return r;
	fates = malloc(n);
	if (!fates)
		return fail(-KVP_ENOMEM, "out of memory");
	r = delete_keys(ns, keys, n, deadline_ns, fates);
	free(fates);
	return r;
}

/* ---- clear ---- */

int64_t kvp_clear(struct kvp_ns *ns, uint64_t deadline_ns)
{
	struct kvp_wire_restore head = {
		.deadline_ns = answer_by(deadline_ns), .flags = deadline_ns ? 0 : KVP_WIRE_NO_WAIT};
	struct kvp_wire_admin_done done = {0};
	struct request *request;
	struct ns_map *map;
	int r = map_to_empty(ns, &map);

	if (r < 0)
		return r;
	head.ns_id = map->ns_id;
	request = request_of(map, KVP_MSG_CLEAR, &head, sizeof(head), NULL, 0);
	if (!request)
		return fail(-KVP_ENOMEM, "out of memory");
	r = call_by(&request, head.deadline_ns);
	if (r == 0 && !request_body_take(request, &done, sizeof(done), KVP_ADMIN_DONE_LEAST))
		r = fail(-KVP_EPROTO, "the daemon answers CLEAR with %zu bytes", request->body_bytes);
	request_free(request);
	if (r == 0 && done.error)
		return fail(-EIO,
			"namespace %s: its blocks are gone from memory, but the spill store could not note it: %s: a start "
			"of the daemon may find them again; clear it once more when kvctl stats shows the store up",
			ns->join.name, strerror(done.error));
	return r < 0 ? r : (int64_t)done.n_left;
}

/* ---- touch ---- */

int64_t kvp_touch(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n)
{
	struct ns_map *map;
	int64_t here = 0;
	int r = ns_bad(ns);

	if (r < 0)
		return r;
	if (n && !keys)
		return fail(-KVP_EINVAL, "keys: a null pointer");
	map = atomic_load_explicit(&ns->map, memory_order_acquire);
	for (uint32_t i = 0; map && i < n; i++) {
		struct kvp_wire_batch head = {.ns_id = map->ns_id, .flags = KVP_WIRE_TOUCH};

		if (find_look(map, &keys[i], LOOKUP_TOUCH)) {
			here++;
			continue;
		}
		while (i + head.n < n && head.n < KVP_WIRE_BATCH_MAX && !find_look(map, &keys[i + head.n], LOOKUP_LOOK))
			head.n++; /* those of one run that are not in memory: the daemon knows which are in the store */
		if (head.n)
			client_tell(
				map->session, KVP_MSG_LOOKUP, &head, sizeof(head), keys + i, head.n * sizeof(*keys));
		i += head.n ? head.n - 1 : 0;
	}
	return here;
}

/* ---- stats ---- */

int kvp_stats(struct kvp_ns *ns, struct kvp_stats_of *stats, uint64_t deadline_ns)
{
	struct kvp_wire_batch head = {0};
	struct kvp_wire_usage usage = {0};
	struct request *request;
	struct ns_map *map;
	int r = map_of(ns, &map);

	if (r < 0)
		return r;
	if (!stats)
		return fail(-KVP_EINVAL, "stats: a null pointer");
	if (stats->size != sizeof(*stats))
		return fail(-KVP_EINVAL, "stats.size: %u, this library knows %zu", stats->size, sizeof(*stats));
	head.ns_id = map->ns_id;
	request = request_of(map, KVP_MSG_USAGE, &head, sizeof(head), NULL, 0);
	if (!request)
		return fail(-KVP_ENOMEM, "out of memory");
	r = request_call(&request, deadline_ns ? deadline_ns : after_ms(TRY_MS));
	if (r == 0 && !request_body_take(request, &usage, sizeof(usage), KVP_USAGE_LEAST))
		r = fail(-KVP_EPROTO, "the daemon answers USAGE with %zu bytes", request->body_bytes);
	request_free(request);
	if (r < 0)
		return r;
	*stats = (struct kvp_stats_of){.size = sizeof(*stats),
		.capacity_bytes = usage.capacity_bytes,
		.ram_blocks = usage.ram_blocks,
		.ram_bytes = usage.ram_bytes,
		.spill_blocks = usage.spill_blocks,
		.spill_bytes = usage.spill_bytes,
		.lookups = usage.lookups,
		.hits_ram = usage.hits_ram,
		.hits_spill = usage.hits_spill,
		.misses = usage.lookups - usage.hits_ram - usage.hits_spill,
		.tokens_ram = usage.tokens_ram,
		.tokens_spill = usage.tokens_spill,
		.stored = usage.stored,
		.evicted = usage.evicted,
		.dropped = usage.dropped,
		.restored = usage.restored};
	return 0;
}
