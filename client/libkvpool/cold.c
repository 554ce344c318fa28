/*
 * cold.c - what the daemon says to be cold, for the program that makes quantised blocks of it (kvpool-cold)
 */
#include "internal.h"

#include <string.h>

#define ASKED_MAX 64u /* for one namespace, while the daemon says that it has not looked at all yet */

static int cold_call(struct session *s, uint16_t type, const void *body, size_t n, struct request **request)
{
	if (!wire_can(s->client, KVP_CAN_COLD))
		return fail(-KVP_ENOTSUP, "this kvpoold is too old: it does not say what is cold");
	*request = request_new(s->client, s, type, n);
	if (!*request)
		return fail(-KVP_ENOMEM, "out of memory");
	memcpy(request_body(*request), body, n);
	return request_call(request, after_ms(ANSWER_MS));
}

/* Return: 1: it was answered with one; 0: past the last. */
static int cold_take(const struct request *request, struct kvp_wire_cold_ns *found)
{
	if (!request->body_bytes)
		return 0;
	if (!request_body_take(request, found, sizeof(*found), KVP_COLD_NS_LEAST))
		return fail(-KVP_EPROTO, "the daemon answers COLD_NS with %zu bytes", request->body_bytes);
	found->name[sizeof(found->name) - 1] = 0;
	return 1;
}

int kvp_cold_next(struct kvp_client *client, uint64_t *after, uint32_t idle_ms, struct kvp_cold *cold)
{
	struct kvp_wire_cold_ns found = {0};
	unsigned asked = 0;
	int r = client_bad(client);

	if (r < 0)
		return r;
	if (!after || !cold || cold->size != sizeof(*cold))
		return fail(-KVP_EINVAL, "after and cold: a null pointer, or cold->size is not %zu", sizeof(*cold));
	do {
		struct kvp_wire_cold_ask ask = {.after = *after, .idle_ms = idle_ms};
		struct session *s = atomic_load(&client->session);
		struct request *request = NULL;

		if (!s)
			return fail(-KVP_EDETACHED, "no daemon at %s", client->socket);
		r = cold_call(s, KVP_MSG_COLD_NS, &ask, sizeof(ask), &request);
		if (r == 0)
			r = cold_take(request, &found);
		request_free(request);
		if (r <= 0)
			return r;
		if (found.has == KVP_COLD_MORE && ++asked < ASKED_MAX)
			continue;
		*after = found.ns_id;
		asked = 0;
	} while (found.has != 1);
	*cold = (struct kvp_cold){
		.size = sizeof(*cold), .owner_uid = found.owner_uid, .from = found.from, .to = found.to};
	memcpy(cold->name, found.name, sizeof(cold->name));
	return 1;
}

int64_t kvp_cold_keys(struct kvp_ns *from, struct kvp_ns *to, uint32_t idle_ms, struct kvp_key *parent,
	struct kvp_key *keys, uint32_t max)
{
	struct kvp_wire_batch head = {.n = max < KVP_WIRE_BATCH_MAX ? max : KVP_WIRE_BATCH_MAX - 1, .flags = idle_ms};
	struct request *request = NULL;
	struct ns_map *map;
	int64_t n = 0;
	int r = ns_bad(from);

	if (r == 0)
		r = ns_bad(to);
	if (r < 0)
		return r;
	if (!parent || !keys)
		return fail(-KVP_EINVAL, "parent and keys: a null pointer");
	map = atomic_load_explicit(&to->map, memory_order_acquire);
	if (!map)
		return fail(-KVP_EDETACHED, "namespace %s: no daemon", to->join.name);
	head.ns_id = map->ns_id;
	for (unsigned asked = 0; r == 0 && asked < ASKED_MAX; asked++) {
		request_free(request);
		request = NULL;
		r = cold_call(map->session, KVP_MSG_COLD, &head, sizeof(head), &request);
		if (r == 0 && request->body_bytes != sizeof(*keys))
			break;
	}
	if (r == 0 && request->body_bytes >= 2 * sizeof(*keys)) {
		n = (int64_t)(request->body_bytes / sizeof(*keys)) - 1;
		n = n < head.n ? n : head.n;
		memcpy(parent, request->body, sizeof(*parent));
		memcpy(keys, request->body + sizeof(*parent), (size_t)n * sizeof(*keys));
	}
	request_free(request);
	return r < 0 ? r : n;
}
