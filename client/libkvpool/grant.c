/*
 * grant.c - grants: blocks of the pool our session may store into, and the stock of them
 *
 * A grant is ours from the daemon's answer to RESERVE until it is published or given back; the grants of its slab's
 * mapping say which.  One that is handed out is pinned from then on, so a publish never has a moment without the writer's pin, and
 * session_sweep() sees what is in use.  Grants in the stock are not pinned.
 *
 * At most KVP_WIRE_BATCH_MAX grants a namespace: a resumed session lists them all in one message.
 */
#include "internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define GRANTS_MAX KVP_WIRE_BATCH_MAX
#define REFILL_PAUSE_MS 2000
#define UNUSABLE_PAUSE_MS 5 /* grants that could not be mapped: asked for again after so long */

/* ---- grants ---- */

static bool slab_grants(const struct slab_map *slab, struct grant grant)
{
	return slab && slab->writable && slab->grants[grant.slot % slab->map->slots_per_slab] == grant.generation + 1;
}

/* The mapping of a grant of ours: the one at its place, or, where a writer broke the slab and another lies there now, the one
 * that was. NULL: it is not ours. Under map->lock. */
static struct slab_map *grant_slab(const struct ns_map *map, struct grant grant)
{
	uint32_t place = slot_place(map, grant.slot);
	struct slab_map *slab = map->all;

	if (grant.slot >= map->n_slots)
		return NULL;
	if (slab_grants(map->rw[place], grant))
		return map->rw[place];
	while (slab && (slab->place != place || !slab_grants(slab, grant)))
		slab = slab->next;
	return slab;
}

/* It is ours, and the daemon still knows it. Under map->lock. */
static bool grant_stands(const struct ns_map *map, struct grant grant)
{
	const struct slab_map *slab = grant_slab(map, grant);

	return slab && atomic_load_explicit(&map->slabs[slab->place].number, memory_order_acquire) == slab->number;
}

/* Under map->lock. */
static bool stock_push(struct ns_map *map, struct grant grant)
{
	if (map->n_stock == map->stock_room) {
		uint32_t room = map->stock_room ? 2 * map->stock_room : 64;
		struct grant *more = realloc(map->stock, room * sizeof(*more));

		if (!more)
			return false;
		map->stock = more;
		map->stock_room = room;
	}
	map->stock[map->n_stock++] = grant;
	return true;
}

/* Under map->lock: it is no longer ours. */
static void grant_clear(struct ns_map *map, struct grant grant)
{
	struct slab_map *slab = grant_slab(map, grant);

	if (slab) {
		slab->grants[grant.slot % map->slots_per_slab] = 0;
		map->n_grants--;
	}
}

void grant_forget(struct ns_map *map, uint64_t slot, uint64_t generation)
{
	pthread_mutex_lock(&map->lock);
	grant_clear(map, (struct grant){slot, generation});
	pthread_mutex_unlock(&map->lock);
}

static int grants_abandon(struct ns_map *map, const struct grant *grants, uint32_t n)
{
	struct kvp_wire_batch head = {.ns_id = map->ns_id, .n = n};

	_Static_assert(sizeof(struct grant) == sizeof(struct kvp_wire_grant), "sent as they are");
	return client_tell(map->session, KVP_MSG_ABANDON, &head, sizeof(head), grants, n * sizeof(*grants));
}

/* Take the last @n of the stock away from it and give them back. Under map->lock; a full socket leaves them there. */
static void stock_abandon(struct ns_map *map, uint32_t n)
{
	struct grant *grants = map->stock + map->n_stock - n;

	int r = n ? grants_abandon(map, grants, n) : -EAGAIN;

	if (r < 0 && r != -KVP_EGONE)
		return; /* not told: they stay ours, and in the list of a resumed session */
	for (uint32_t i = 0; i < n; i++)
		grant_clear(map, grants[i]);
	map->n_stock -= n;
}

void stock_drop(struct ns_map *map)
{
	pthread_mutex_lock(&map->lock);
	for (uint32_t i = 0; i < map->n_stock; i++)
		grant_clear(map, map->stock[i]);
	map->n_stock = map->n_back = 0;
	pthread_mutex_unlock(&map->lock);
	stages_forget(map);
}

bool stock_leave(struct ns_map *map)
{
	bool none;

	pthread_mutex_lock(&map->lock);
	while (map->arrived) { /* never mapped: back as they came */
		struct request *request = map->arrived;
		uint32_t n = (uint32_t)(request->body_bytes / sizeof(struct grant));

		if (request->connection == map->connection && n &&
			grants_abandon(map, (const struct grant *)(const void *)request->body, n) < 0)
			break;
		map->arrived = request->next;
		request_free(request);
	}
	stock_abandon(map, map->n_stock);
	map->n_back = 0;
	none = !map->arrived && !map->n_grants;
	pthread_mutex_unlock(&map->lock);
	return none;
}

int grants_list(struct ns_map *map)
{
	struct session *s = map->session;
	struct request *request;
	struct kvp_wire_batch head = {.ns_id = map->ns_id};
	struct kvp_wire_grant *list;
	int r;

	request = request_new(s->client, s, KVP_MSG_GRANTS, sizeof(head) + GRANTS_MAX * sizeof(*list));
	if (!request)
		return fail(-KVP_ENOMEM, "out of memory");
	list = (struct kvp_wire_grant *)(void *)((char *)request_body(request) + sizeof(head));
	pthread_mutex_lock(&map->lock);
	map->connection =
		s->client->connection; /* grants of answers still on their way to the table are not in the list */
	for (uint32_t place = 0; place < map->max_places; place++)
		for (uint32_t i = 0; map->rw[place] && i < map->slots_per_slab; i++)
			if (map->rw[place]->grants[i] && head.n < GRANTS_MAX)
				list[head.n++] =
					(struct kvp_wire_grant){.slot = (uint64_t)place * map->slots_per_slab + i,
						.generation = map->rw[place]->grants[i] - 1};
	pthread_mutex_unlock(&map->lock);
	if (map->flags & KVP_NS_READONLY) {
		request_free(request);
		return 0;
	}
	memcpy(request_body(request), &head, sizeof(head));
	request->packet_bytes = sizeof(struct kvp_msg) + sizeof(head) + head.n * sizeof(*list);
	r = wire_raw(request);
	if (r == 0)
		r = request_wait(&request, after_ms(ANSWER_MS));
	request_free(request);
	return r;
}

/* ---- grants that come in ---- */

static uint32_t places_of(const struct ns_map *map, const struct kvp_wire_grant *grants, uint32_t n, bool writable,
	uint32_t places[KVP_WIRE_FDS_MAX])
{
	uint32_t n_places = 0;

	for (uint32_t i = 0; i < n && n_places < KVP_WIRE_FDS_MAX; i++) {
		uint32_t place = slot_place(map, grants[i].slot), at = 0;
		const struct slab_map *slab;
		uint64_t number;

		if (grants[i].slot >= map->n_slots)
			continue;
		number = atomic_load_explicit(&map->slabs[place].number, memory_order_acquire);
		slab = writable ? map->rw[place] : atomic_load_explicit(&map->ro[place], memory_order_acquire);
		while (at < n_places && places[at] != place)
			at++;
		if (at == n_places && (!slab || slab->number != number))
			places[n_places++] = place;
	}
	return n_places;
}

/* A grant is usable once its slab is mapped both ways: rw to store, ro to pin and to go on reading after publish.
 * Return: why not all of them are, where asking for others at once would not help; else 0. */
static int grants_map(struct ns_map *map, const struct kvp_wire_grant *grants, uint32_t n, uint64_t deadline_ns)
{
	int r = 0;

	for (int writable = 0; writable <= 1; writable++) {
		uint32_t places[KVP_WIRE_FDS_MAX], n_places;

		for (unsigned round = 0; round < KVP_WIRE_BATCH_MAX / KVP_WIRE_FDS_MAX; round++) {
			pthread_mutex_lock(&map->lock);
			n_places = places_of(map, grants, n, writable, places);
			pthread_mutex_unlock(&map->lock);
			if (!n_places)
				break;
			r = map_places(map, places, n_places, writable, deadline_ns);
			if (r <= 0)
				break;
		}
		if (r == -KVP_ENOSPC || r == -KVP_EQUOTA || r == -KVP_ENOMEM)
			return r;
	}
	return 0;
}

/* It is ours from now on, if its slab is mapped both ways. Under map->lock. */
static bool grant_accept(struct ns_map *map, struct grant grant)
{
	uint32_t place = slot_place(map, grant.slot);
	const struct slab_map *ro =
		grant.slot < map->n_slots ? atomic_load_explicit(&map->ro[place], memory_order_relaxed) : NULL;
	struct slab_map *rw = ro ? map->rw[place] : NULL;
	uint64_t *at = rw ? &rw->grants[grant.slot % map->slots_per_slab] : NULL;

	if (!at || rw->number != ro->number || *at || map->n_grants >= GRANTS_MAX)
		return false;
	*at = grant.generation + 1;
	map->n_grants++;
	return true;
}

/* Under map->lock. */
static void grant_hand_out(struct ns_map *map, struct grant grant, struct room *room)
{
	spot_pin_again(map, grant.slot);
	*room = (struct room){.kind = HOLD_GRANT,
		.owner = map,
		.slot = grant.slot,
		.generation = grant.generation,
		.data = grant_slab(map, grant)->base + grant.slot % map->slots_per_slab * map->block_stride};
}

/* Hand new grants out to @rooms, what is more into the stock: under one lock, so that nobody gives back in between what
 * somebody waits for. Those that cannot be used go back; those of a connection that has ended meanwhile were not in the
 * list of what we have: the daemon has taken them back. @deadline_ns: of mapping their slabs. Return: how many of @rooms are filled; none, and < 0: others would not be either. */
static int grants_take(struct ns_map *map, uint64_t connection, const struct kvp_wire_grant *grants, uint32_t n,
	struct room *rooms, uint32_t n_rooms, uint64_t deadline_ns)
{
	struct grant back[64];
	uint32_t n_back = 0, got = 0;
	int r = grants_map(map, grants, n, deadline_ns);

	pthread_mutex_lock(&map->lock);
	for (uint32_t i = 0; i < n && connection == map->connection; i++) {
		struct grant grant = {grants[i].slot, grants[i].generation};

		if (grant_accept(map, grant)) {
			if (got < n_rooms) {
				grant_hand_out(map, grant, &rooms[got++]);
			} else if (!stock_push(map, grant)) {
				grant_clear(map, grant);
				back[n_back++] = grant;
			}
		} else {
			back[n_back++] = grant;
		}
		if (n_back == sizeof(back) / sizeof(back[0])) {
			grants_abandon(map, back, n_back);
			n_back = 0;
		}
	}
	if (n_back)
		grants_abandon(map, back, n_back);
	if (got)
		map->taken_ns = now_ns();
	pthread_mutex_unlock(&map->lock);
	return got ? (int)got : r;
}

/* Where the caller runs now: it is given memory there. */
static uint32_t node_here(void)
{
	unsigned node;

	return getcpu(NULL, &node) == 0 ? node : UINT32_MAX;
}

static struct request *reserve_request(struct ns_map *map, uint32_t n, uint64_t deadline_ns)
{
	struct session *s = map->session;
	struct request *request = request_new(s->client, s, KVP_MSG_RESERVE, sizeof(struct kvp_wire_reserve));
	struct kvp_wire_reserve *reserve;

	if (!request)
		return NULL;
	reserve = request_body(request);
	*reserve =
		(struct kvp_wire_reserve){.ns_id = map->ns_id, .n = n, .node = node_here(), .deadline_ns = deadline_ns};
	request->owner = map;
	return request;
}

/* Return: how many of @rooms are filled, 0: grants came, but none can be used now; < 0: the daemon granted none, or none that
 * could be mapped however often it is asked. */
static int reserve_take(
	struct ns_map *map, const struct request *request, struct room *rooms, uint32_t n_rooms, uint64_t deadline_ns)
{
	const struct kvp_wire_reserve *asked = request_body(request);
	uint32_t n = (uint32_t)(request->body_bytes / sizeof(struct kvp_wire_grant));

	if (n < asked->n) { /* room is scarce: what becomes free is for who needs it, and asking keeps the daemon busy */
		pthread_mutex_lock(&map->lock);
		map->refill_after_ns = after_ms(REFILL_PAUSE_MS);
		pthread_mutex_unlock(&map->lock);
	}
	if (!n)
		return fail(-KVP_ENOSPC,
			"namespace %s: the pool had no room by the deadline, what it holds is in use: wait longer, or raise "
			"--pool",
			map->head->name);
	return grants_take(map, request->connection, (const struct kvp_wire_grant *)(const void *)request->body, n,
		rooms, n_rooms, deadline_ns);
}

/* Grants that nobody waits for (any more): the keeper maps their slabs outside of receiving. */
static void reserve_done(struct request *request)
{
	struct ns_map *map = request->owner;

	pthread_mutex_lock(&map->lock);
	if (request->status == 0) {
		request->next = map->arrived;
		map->arrived = request;
		request = NULL;
	}
	map->refilling = false;
	if (request && request->status != -KVP_EDETACHED) /* refused: it will be again */
		map->refill_after_ns = after_ms(REFILL_PAUSE_MS);
	pthread_mutex_unlock(&map->lock);
	request_free(request);
}

/* A round trip. Return: how many of @rooms are filled, 0 asks for another try; < 0. */
static int reserve_ask(struct ns_map *map, uint32_t n, uint64_t deadline_ns, struct room *rooms)
{
	struct request *request = reserve_request(map, n, deadline_ns);
	uint64_t until = deadline_ns ? deadline_ns + 50 * MS : after_ms(TRY_MS);
	int r;

	if (!request)
		return fail(-KVP_ENOMEM, "out of memory");
	request->late = reserve_done;
	r = request_call(&request, until);
	if (r == 0)
		r = reserve_take(map, request, rooms, n, until);
	request_free(request);
	return r;
}

/* ---- the stock ---- */

void stock_refill(struct ns_map *map)
{
	struct request *request;
	uint32_t want;

	pthread_mutex_lock(&map->lock);
	want = map->n_stock * 2 <= map->stock_target && !map->refilling && !map->n_asking &&
			       now_ns() >= map->refill_after_ns
		       ? map->stock_target - map->n_stock
		       : 0;
	map->refilling = map->refilling || want;
	pthread_mutex_unlock(&map->lock);
	if (!want)
		return;
	request = reserve_request(map, want, 0);
	if (request) {
		request->done = reserve_done;
		if (request_send(request) == 0)
			return;
	}
	pthread_mutex_lock(&map->lock);
	map->refilling = false;
	pthread_mutex_unlock(&map->lock);
	request_free(request);
}

/* What was put back is at the end of the stock: in one message, not one for each block. Under map->lock. */
static void stock_give_back(struct ns_map *map)
{
	stock_abandon(map, map->n_back < map->n_stock ? map->n_back : map->n_stock);
	map->n_back = 0;
}

void stock_keep(struct ns_map *map)
{
	struct request *request;
	bool idle;

	for (;;) {
		pthread_mutex_lock(&map->lock);
		request = map->arrived;
		if (request)
			map->arrived = request->next;
		pthread_mutex_unlock(&map->lock);
		if (!request)
			break;
		if (!map->session->gone)
			reserve_take(map, request, NULL, 0, after_ms(ANSWER_MS));
		request_free(request);
	}
	pthread_mutex_lock(&map->lock);
	stock_give_back(map);
	/* what is asked for on behalf of who waits, the daemon gives to him once it is back there */
	idle = now_ns() - map->taken_ns > STOCK_IDLE_MS * MS || map->n_asking;
	if (idle)
		stock_abandon(map, map->n_stock);
	else if (map->n_stock > map->stock_target)
		stock_abandon(map, map->n_stock - map->stock_target);
	pthread_mutex_unlock(&map->lock);
	if (!idle)
		stock_refill(map);
}

/* ---- taking and putting back ---- */

/* Fewer than @n: the caller is one who asks from now on. */
static uint32_t stock_take(struct ns_map *map, uint32_t n, struct room *rooms)
{
	uint32_t got = 0;
	bool low;

	pthread_mutex_lock(&map->lock);
	while (got < n && map->n_stock) {
		struct grant grant = map->stock[--map->n_stock];

		map->n_back -= map->n_back > 0;
		if (grant_stands(map, grant))
			grant_hand_out(map, grant, &rooms[got++]);
		else
			grant_clear(map, grant);
	}
	low = got == n && map->n_stock * 2 <= map->stock_target && map->stock_target && !map->refilling;
	map->n_asking += got < n;
	map->taken_ns = now_ns();
	pthread_mutex_unlock(&map->lock);
	if (low)
		client_wake(map->session->client);
	return got;
}

/* An answer may hold fewer than were asked for, so until the deadline. */
static uint32_t reserve_until(struct ns_map *map, uint32_t n, uint64_t deadline_ns, struct room *rooms)
{
	uint32_t got = 0;

	while (got < n) {
		uint32_t ask = n - got < KVP_WIRE_BATCH_MAX ? n - got : KVP_WIRE_BATCH_MAX;
		int more;

		pthread_mutex_lock(&map->lock);
		if (ask > GRANTS_MAX - map->n_grants)
			ask = GRANTS_MAX - map->n_grants;
		pthread_mutex_unlock(&map->lock);
		if (!ask || (deadline_ns && deadline_ns <= now_ns()))
			break;
		more = reserve_ask(map, ask, deadline_ns, rooms + got);
		if (more < 0 || (!more && !deadline_ns))
			break;
		if (!more) /* a connection that ended, a slab that could not be mapped just now */
			nanosleep(&(struct timespec){.tv_nsec = UNUSABLE_PAUSE_MS * (long)MS}, NULL);
		got += (uint32_t)more;
	}
	return got;
}

uint32_t grant_rooms(struct ns_map *map, uint32_t n, uint64_t deadline_ns, struct room *rooms)
{
	uint32_t got = stock_take(map, n, rooms);

	if (got == n)
		return got;
	got += reserve_until(map, n - got, deadline_ns, rooms + got);
	pthread_mutex_lock(&map->lock);
	map->n_asking--;
	pthread_mutex_unlock(&map->lock);
	client_wake(map->session->client); /* the stock is low */
	return got;
}

void stock_trim(struct ns_map *map)
{
	pthread_mutex_lock(&map->lock);
	stock_give_back(map);
	pthread_mutex_unlock(&map->lock);
}

/* Others may be waiting for it, so it goes back to the daemon: by stock_trim() of whoever puts back many, or the keeper. */
void grant_put_back(struct ns_map *map, uint64_t slot, uint64_t generation)
{
	struct grant grant = {slot, generation};
	bool first = false;

	spot_unpin(map, slot, generation);
	pthread_mutex_lock(&map->lock);
	if (grant_stands(map, grant) && !map->session->gone && !map->lost && stock_push(map, grant))
		first = map->n_back++ == 0;
	else
		grant_clear(map, grant);
	pthread_mutex_unlock(&map->lock);
	if (first)
		client_wake(map->session->client);
}
