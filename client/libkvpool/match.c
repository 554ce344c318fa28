/*
 * match.c - which keys exist, here and as far as the daemon knows; nothing is held
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define PREFETCH_AHEAD 8
#define MATCH_MS 100 /* longest wait of kvp_match() for a daemon that does not answer */
#define MUTE_MS 1000 /* then it is not asked again for so long */

/* ---- asking the daemon ---- */

static struct request *lookup_request(struct ns_map *map, const struct kvp_key *keys, uint32_t n, bool touch)
{
	struct kvp_wire_batch head = {.ns_id = map->ns_id, .n = n, .flags = touch ? KVP_WIRE_TOUCH : 0};
	struct session *s = map->session;
	struct request *request = request_new(s->client, s, KVP_MSG_LOOKUP, sizeof(head) + (size_t)n * sizeof(*keys));

	if (!request)
		return NULL;
	memcpy(request_body(request), &head, sizeof(head));
	memcpy((char *)request_body(request) + sizeof(head), keys, (size_t)n * sizeof(*keys));
	return request;
}

/* Missed keys, so that the daemon counts them by reason; nobody waits for the answer. */
void lookup_tell(struct ns_map *map, const struct kvp_key *keys, uint32_t n)
{
	if (map->session->client->flags & KVP_OPEN_QUIET)
		return;
	for (uint32_t at = 0; at < n; at += KVP_WIRE_BATCH_MAX) {
		struct kvp_wire_batch head = {.ns_id = map->ns_id};

		head.n = n - at < KVP_WIRE_BATCH_MAX ? n - at : KVP_WIRE_BATCH_MAX;
		client_tell(map->session, KVP_MSG_LOOKUP, &head, sizeof(head), keys + at, head.n * sizeof(*keys));
	}
}

struct request *restore_request(
	struct ns_map *map, const struct kvp_key *keys, uint32_t n, uint32_t flags, uint64_t deadline_ns)
{
	struct kvp_wire_restore head = {.ns_id = map->ns_id, .n = n, .flags = flags, .deadline_ns = deadline_ns};
	struct session *s = map->session;
	struct request *request = request_new(s->client, s, KVP_MSG_RESTORE, sizeof(head) + (size_t)n * sizeof(*keys));

	if (!request)
		return NULL;
	memcpy(request_body(request), &head, sizeof(head));
	memcpy((char *)request_body(request) + sizeof(head), keys, (size_t)n * sizeof(*keys));
	return request;
}

/* The daemon reads them while nobody waits for its answer. */
void restore_tell(struct ns_map *map, const struct kvp_key *keys, uint32_t n)
{
	struct kvp_wire_restore head = {
		.ns_id = map->ns_id, .n = n, .flags = KVP_WIRE_PREFETCH, .deadline_ns = after_ms(ANSWER_MS)};

	client_tell(map->session, KVP_MSG_RESTORE, &head, sizeof(head), keys, n * sizeof(*keys));
}

void request_tell(struct ns_map *map, const struct kvp_key *keys, uint32_t n, uint32_t hint)
{
	struct kvp_wire_batch head = {
		.ns_id = map->ns_id, .n = n < KVP_WIRE_REQUEST_MAX ? n : KVP_WIRE_REQUEST_MAX, .flags = hint};

	if (n && map_is_learned(map) && !(map->session->client->flags & KVP_OPEN_QUIET) &&
		wire_can(map->session->client, KVP_CAN_REQUEST))
		client_tell(map->session, KVP_MSG_REQUEST, &head, sizeof(head), keys, head.n * sizeof(*keys));
}

int kvp_request(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n, uint32_t hint)
{
	struct ns_map *map;
	int r = ns_bad(ns);

	if (r < 0)
		return r;
	if (n && !keys)
		return fail(-KVP_EINVAL, "keys: a null pointer");
	if (hint > KVP_HINT_SOON)
		return fail(-KVP_EINVAL, "hint: %u", hint);
	map = atomic_load_explicit(&ns->map, memory_order_acquire);
	if (map)
		request_tell(map, keys, n, hint);
	return 0;
}

static bool client_is_mute(struct kvp_client *client)
{
	bool mute;

	pthread_mutex_lock(&client->lock);
	mute = client->mute_until_ns > now_ns();
	pthread_mutex_unlock(&client->lock);
	return mute;
}

static void client_set_mute(struct kvp_client *client)
{
	pthread_mutex_lock(&client->lock);
	client->mute_until_ns = after_ms(MUTE_MS);
	pthread_mutex_unlock(&client->lock);
}

static void lookup_take(const struct request *request, uint32_t n, uint8_t *states)
{
	for (uint32_t i = 0; i < n && (i + 1) * sizeof(struct kvp_wire_found) <= request->body_bytes; i++) {
		struct kvp_wire_found found;

		memcpy(&found, request->body + i * sizeof(found), sizeof(found));
		if (found.state <= KVP_PENDING)
			states[i] = (uint8_t)found.state;
	}
}

/* States of keys the index does not have: one round trip, however many messages. */
static void lookup_ask(struct ns_map *map, const struct kvp_key *keys, uint32_t n, bool touch, uint8_t *states)
{
	struct kvp_client *client = map->session->client;
	uint32_t n_requests = (n + KVP_WIRE_BATCH_MAX - 1) / KVP_WIRE_BATCH_MAX;
	struct request **requests = client_is_mute(client) ? NULL : calloc(n_requests, sizeof(*requests));
	uint64_t deadline = after_ms(MATCH_MS);

	for (uint32_t i = 0; requests && i < n_requests; i++) {
		uint32_t at = i * KVP_WIRE_BATCH_MAX;

		requests[i] = lookup_request(
			map, keys + at, n - at < KVP_WIRE_BATCH_MAX ? n - at : KVP_WIRE_BATCH_MAX, touch);
		if (requests[i] && request_send(requests[i]) < 0) {
			request_free(requests[i]);
			requests[i] = NULL;
		}
	}
	if (requests)
		count_add(client, COUNT_ROUND_TRIPS, 1);
	for (uint32_t i = 0; requests && i < n_requests; i++) {
		uint32_t at = i * KVP_WIRE_BATCH_MAX;
		int r = requests[i] ? request_wait(&requests[i], deadline) : -KVP_EDETACHED;

		if (r == 0)
			lookup_take(
				requests[i], n - at < KVP_WIRE_BATCH_MAX ? n - at : KVP_WIRE_BATCH_MAX, states + at);
		if (r == -KVP_ETIMEDOUT)
			client_set_mute(client);
		request_free(requests[i]);
	}
	free(requests);
}

/* ---- match ---- */

/* States of one part's keys. Not @all: right up to the first miss. */
static int part_states(const struct kvp_match_part *part, uint32_t n, uint32_t flags, bool all, uint8_t *states)
{
	struct ns_map *map = atomic_load_explicit(&part->ns->map, memory_order_acquire);
	enum lookup how = flags & KVP_MATCH_TOUCH ? LOOKUP_TOUCH : LOOKUP_LOOK;
	struct kvp_key *keys;
	uint32_t *where, n_ask = 0, from = n;
	uint8_t *asked;

	memset(states, KVP_MISS, n);
	if (!map)
		return 0;
	atomic_store_explicit(&map->used, true, memory_order_relaxed);
	for (uint32_t i = 0; i < n; i++) {
		if (i + PREFETCH_AHEAD < n)
			__builtin_prefetch(
				&map->index[kvp_index_home(&part->keys[i + PREFETCH_AHEAD], map->n_buckets)]);
		if (find_look(map, &part->keys[i], how)) {
			states[i] = KVP_HIT_RAM;
			continue;
		}
		n_ask++;
		if (from == n)
			from = i;
		if (!all)
			break;
	}
	if (!n_ask)
		return 0;
	if (!all) {
		lookup_ask(map, part->keys + from, n - from, flags & KVP_MATCH_TOUCH, states + from);
		return 0;
	}
	keys = malloc(n_ask * (sizeof(*keys) + sizeof(*where) + 1));
	if (!keys)
		return fail(-KVP_ENOMEM, "out of memory");
	where = (uint32_t *)(keys + n_ask);
	asked = (uint8_t *)(where + n_ask);
	n_ask = 0;
	for (uint32_t i = from; i < n; i++)
		if (states[i] == KVP_MISS) {
			keys[n_ask] = part->keys[i];
			where[n_ask++] = i;
		}
	memset(asked, KVP_MISS, n_ask);
	lookup_ask(map, keys, n_ask, flags & KVP_MATCH_TOUCH, asked);
	for (uint32_t i = 0; i < n_ask; i++)
		states[where[i]] = asked[i];
	free(keys);
	return 0;
}

/* From bad to good: a block that is being read is worse than one that waits on disk only in that it is on its way. */
static unsigned state_rank(uint8_t state)
{
	static const uint8_t rank[] = {[KVP_MISS] = 0, [KVP_PENDING] = 2, [KVP_HIT_SPILL] = 1, [KVP_HIT_RAM] = 3};

	return rank[state];
}

/* The longest prefix of which @part has what its rule asks for, at most @length. */
static uint32_t part_prefix(const struct kvp_match_part *part, const uint8_t *states, uint32_t length)
{
	uint32_t leading = 0;

	if (!part->rule) {
		while (leading < length && states[leading] != KVP_MISS)
			leading++;
		return leading;
	}
	for (; length; length--) {
		uint32_t need = length < part->rule ? length : part->rule, have = 0;

		while (have < need && states[length - 1 - have] != KVP_MISS)
			have++;
		if (have == need)
			break;
	}
	return length;
}

static int match_bad(const struct kvp_match_part *parts, uint32_t n_parts, uint32_t n)
{
	if (!parts || !n_parts || n_parts > 4096)
		return fail(-KVP_EINVAL, "n_parts: 1 to 4096 parts");
	for (uint32_t i = 0; i < n_parts; i++) {
		int r = ns_bad(parts[i].ns);

		if (r < 0)
			return r;
		if (n && !parts[i].keys)
			return fail(-KVP_EINVAL, "parts[%u].keys: a null pointer", i);
	}
	return 0;
}

int64_t kvp_match(const struct kvp_match_part *parts, uint32_t n_parts, uint32_t n, uint32_t flags, uint8_t *states)
{
	const uint32_t known = KVP_MATCH_TOUCH | KVP_MATCH_ALL;
	int r = match_bad(parts, n_parts, n);
	uint32_t leading = n, last;
	uint8_t *all;

	if (r == 0 && flags & ~known)
		r = fail(-KVP_EINVAL, "flags: 0x%x, only KVP_MATCH_TOUCH and _ALL are known", flags);
	if (r < 0 || !n)
		return r;
	all = malloc((size_t)n * n_parts);
	if (!all)
		return fail(-KVP_ENOMEM, "out of memory");
	for (uint32_t i = 0; i < n_parts && r == 0; i++)
		r = part_states(&parts[i], n, flags, flags & KVP_MATCH_ALL || parts[i].rule, all + (size_t)i * n);
	do { /* a shorter prefix for one part moves the window of another */
		last = leading;
		for (uint32_t i = 0; i < n_parts && r == 0; i++)
			leading = part_prefix(&parts[i], all + (size_t)i * n, leading);
	} while (leading != last);
	for (uint32_t i = 0; r == 0 && states && i < n; i++) {
		states[i] = all[i];
		for (uint32_t part = 1; part < n_parts; part++)
			if (state_rank(all[(size_t)part * n + i]) < state_rank(states[i]))
				states[i] = all[(size_t)part * n + i];
	}
	free(all);
	return r < 0 ? r : (int64_t)leading;
}

/* ---- prefetch ---- */

int64_t kvp_prefetch(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n)
{
	struct ns_map *map;
	int64_t started = 0;
	int r = ns_bad(ns);

	if (r < 0)
		return r;
	if (n && !keys)
		return fail(-KVP_EINVAL, "keys: a null pointer");
	map = atomic_load_explicit(&ns->map, memory_order_acquire);
	if (!map)
		return fail(-KVP_EDETACHED, "namespace %s: no daemon", ns->join.name);
	while (n && find_look(map, keys, LOOKUP_LOOK)) {
		keys++;
		n--;
	}
	for (uint32_t at = 0; at < n && r == 0; at += KVP_WIRE_BATCH_MAX) {
		uint32_t m = n - at < KVP_WIRE_BATCH_MAX ? n - at : KVP_WIRE_BATCH_MAX;
		struct request *request = restore_request(map, keys + at, m, KVP_WIRE_PREFETCH, after_ms(ANSWER_MS));

		r = request ? request_call(&request, after_ms(ANSWER_MS)) : fail(-KVP_ENOMEM, "out of memory");
		for (uint32_t i = 0; r == 0 && (i + 1) * sizeof(struct kvp_wire_found) <= request->body_bytes; i++) {
			struct kvp_wire_found found;

			memcpy(&found, request->body + i * sizeof(found), sizeof(found));
			started += found.state == KVP_PENDING;
		}
		request_free(request);
	}
	return started ? started : r;
}
