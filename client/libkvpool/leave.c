/*
 * leave.c - namespaces that nobody in this process has open any more: unmapped here, left at the daemon
 *
 * Owns the end of an ns_map whose session goes on.  By the keeper, who walks the list of maps without a lock, between
 * attach_enter() and attach_leave(): nobody joins meanwhile.  What is held there, and what is asked and not answered yet, keeps
 * it; it is looked at again when an answer has come, or at the next beat.  A daemon that knows no LEAVE is told nothing.
 */
#include "internal.h"

#include <errno.h>
#include <string.h>

enum left {
	LEFT,
	LEFT_LATER, /* an answer is on its way, which comes soon */
	LEFT_NOT, /* somebody holds something */
};

/* Has somebody opened it, or one whose base it is? Under client->lock. */
static bool map_is_open(const struct ns_map *map)
{
	const struct session *s = map->session;

	for (const struct kvp_ns *ns = s->client->namespaces; ns; ns = ns->next)
		if (atomic_load(&ns->map) == map)
			return true;
	for (const struct ns_map *other = s->maps; other; other = other->next)
		if (other->base == map)
			return true;
	return false;
}

/* Is a request about it on its way?  All of those that are begin with its id. */
static bool map_is_asked(const struct ns_map *map)
{
	struct kvp_client *client = map->session->client;
	bool asked = false;

	pthread_mutex_lock(&client->lock);
	for (const struct request *request = client->requests; request && !asked; request = request->next)
		asked = request->session == map->session && request->type != KVP_MSG_JOIN &&
			request->packet_bytes >= sizeof(struct kvp_msg) + sizeof(map->ns_id) &&
			memcmp(request_body(request), &map->ns_id, sizeof(map->ns_id)) == 0;
	pthread_mutex_unlock(&client->lock);
	return asked;
}

/* LEAVE, with the slabs that were mapped. */
static int leave_ask(struct ns_map *map)
{
	struct kvp_wire_batch head = {.ns_id = map->ns_id, .n = map->n_unmapped};
	size_t n_slabs = map->n_unmapped * sizeof(map->unmapped[0]);
	struct session *s = map->session;
	struct request *request = request_new(s->client, s, KVP_MSG_LEAVE, sizeof(head) + n_slabs);
	int r;

	if (!request)
		return fail(-KVP_ENOMEM, "out of memory");
	memcpy(request_body(request), &head, sizeof(head));
	if (n_slabs)
		memcpy((char *)request_body(request) + sizeof(head), map->unmapped, n_slabs);
	r = request_call(&request, after_ms(ANSWER_MS));
	request_free(request);
	return r;
}

static void map_forget(struct ns_map *map)
{
	struct kvp_client *client = map->session->client;
	struct ns_map **at = &map->session->maps;

	pthread_mutex_lock(&client->lock);
	while (*at != map)
		at = &(*at)->next;
	*at = map->next;
	pthread_mutex_unlock(&client->lock);
	map_close(map, false);
}

static enum left map_leave(struct ns_map *map)
{
	bool unmapped;
	int r;

	if (map_is_asked(map))
		return LEFT_LATER;
	if (!stock_leave(map) || !stage_leave(map))
		return LEFT_NOT;
	pthread_mutex_lock(&map->lock);
	unmapped = unmap_all(map);
	if (map->n_unmapped > KVP_WIRE_BATCH_MAX)
		unmap_tell(map);
	unmapped = unmapped && map->n_unmapped <= KVP_WIRE_BATCH_MAX;
	pthread_mutex_unlock(&map->lock);
	if (!unmapped)
		return LEFT_NOT;
	count_flush(map->session); /* as long as we are in it: the daemon adds it up when we leave */
	r = leave_ask(map);
	if (r < 0 && r != -KVP_ENOENT) /* not there: its answer was lost with a connection */
		return LEFT_NOT;
	map_forget(map);
	return LEFT;
}

static struct ns_map *map_next_closed(struct session *s, const struct ns_map *after)
{
	struct ns_map *map;

	pthread_mutex_lock(&s->client->lock);
	for (map = after ? after->next : s->maps; map && (map->lost || map_is_open(map)); map = map->next)
		;
	pthread_mutex_unlock(&s->client->lock);
	return map;
}

/* One round. Return: the worst that came of one; *@left: some went, so their bases may. */
static enum left leave_round(struct session *s, bool *left)
{
	enum left worst = LEFT;
	struct ns_map *map = map_next_closed(s, NULL), *next;

	*left = false;
	for (; map && s->client->online && !s->gone; map = next) {
		enum left how;

		next = map_next_closed(s, map);
		how = map_leave(map);
		*left = *left || how == LEFT;
		if (how == LEFT_LATER || worst == LEFT)
			worst = how;
	}
	return worst;
}

void leave_closed(struct kvp_client *client)
{
	struct session *s = atomic_load(&client->session);
	enum left how = LEFT;
	bool again = client->leave_again_ns && now_ns() >= client->leave_again_ns, left, can;
	uint64_t n_closes;

	pthread_mutex_lock(&client->lock);
	n_closes = client->n_closes;
	again = again || n_closes != client->n_closes_seen;
	can = client->can & KVP_CAN_LEAVE;
	pthread_mutex_unlock(&client->lock);
	if (!s || !again || !can || !attach_enter(client, 0))
		return;
	do
		how = leave_round(s, &left);
	while (left);
	client->leave_again_ns = how == LEFT ? 0 : after_ms(client->heartbeat_ms * 3 / 4);
	attach_leave(client);
	if (how == LEFT_LATER)
		return;
	pthread_mutex_lock(&client->lock);
	client->n_closes_seen = n_closes;
	pthread_cond_broadcast(&client->changed);
	pthread_mutex_unlock(&client->lock);
}

uint64_t leave_note(struct kvp_client *client, const struct ns_map *map)
{
	return map && !map->lost && !map_is_open(map) ? ++client->n_closes : 0;
}

void leave_wait(struct kvp_client *client, uint64_t close)
{
	struct timespec until = timespec_of(after_ms(ANSWER_MS));
	int r = 0;

	client_wake(client); /* it may have had to wait for whoever closed */
	if (!close)
		return;
	pthread_mutex_lock(&client->lock);
	while (r == 0 && client->online && client->can & KVP_CAN_LEAVE && !client->closing &&
		client->n_closes_seen < close)
		r = pthread_cond_timedwait(&client->changed, &client->lock, &until);
	pthread_mutex_unlock(&client->lock);
}
