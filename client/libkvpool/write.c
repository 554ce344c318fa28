/*
 * write.c - writable blocks: grants and the stock of them, staging areas, private memory
 *
 * A grant is ours from the daemon's answer to RESERVE until it is published or given back; map->rw[place]->grants says
 * which.  One that is handed out is pinned from then on, so a publish never has a moment without the writer's pin, and
 * session_sweep() sees what is in use.  Grants in the stock are not pinned.
 *
 * At most KVP_WIRE_BATCH_MAX grants a namespace: a resumed session lists them all in one message.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANTS_MAX KVP_WIRE_BATCH_MAX
#define TRY_MS 100 /* deadline 0: longest wait for a daemon that does not answer */
#define REFILL_PAUSE_MS 2000
#define STAGE_BLOCKS 64u
#define ROOMS_A_TURN 512u

/* ---- grants ---- */

static uint64_t *grant_at(const struct ns_map *map, uint64_t slot)
{
	uint32_t place = slot_place(map, slot);
	struct slab_map *rw = slot < map->n_slots ? map->rw[place] : NULL;

	return rw ? &rw->grants[slot % map->slots_per_slab] : NULL;
}

char *grant_data(const struct ns_map *map, uint64_t slot, uint64_t generation)
{
	const uint64_t *grant = grant_at(map, slot);
	const struct slab_map *rw;

	if (!grant || *grant != generation + 1)
		return NULL;
	rw = map->rw[slot_place(map, slot)];
	return rw->base + slot % map->slots_per_slab * map->block_stride;
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
static void grant_clear(struct ns_map *map, uint64_t slot)
{
	uint64_t *grant = grant_at(map, slot);

	if (grant && *grant) {
		*grant = 0;
		map->n_grants--;
	}
}

void grant_forget(struct ns_map *map, uint64_t slot, uint64_t generation)
{
	pthread_mutex_lock(&map->lock);
	if (grant_data(map, slot, generation))
		grant_clear(map, slot);
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
		grant_clear(map, grants[i].slot);
	map->n_stock -= n;
}

void stages_forget(struct ns_map *map)
{
	pthread_mutex_lock(&map->lock);
	for (struct stage *stage = map->stages; stage; stage = stage->next)
		stage->current = false;
	pthread_mutex_unlock(&map->lock);
}

void stages_keep(struct ns_map *map)
{
	pthread_mutex_lock(&map->lock);
	for (struct stage *stage = map->stages; stage; stage = stage->next)
		stage->connection = map->session->client->connection;
	pthread_mutex_unlock(&map->lock);
}

void stock_drop(struct ns_map *map)
{
	pthread_mutex_lock(&map->lock);
	for (uint32_t i = 0; i < map->n_stock; i++)
		grant_clear(map, map->stock[i].slot);
	map->n_stock = map->n_back = 0;
	pthread_mutex_unlock(&map->lock);
	stages_forget(map);
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

/* A grant is usable once its slab is mapped both ways: rw to store, ro to pin and to go on reading after publish. */
static void grants_map(struct ns_map *map, const struct kvp_wire_grant *grants, uint32_t n)
{
	for (int writable = 0; writable <= 1; writable++) {
		uint32_t places[KVP_WIRE_FDS_MAX], n_places;

		for (unsigned round = 0; round < KVP_WIRE_BATCH_MAX / KVP_WIRE_FDS_MAX; round++) {
			pthread_mutex_lock(&map->lock);
			n_places = places_of(map, grants, n, writable, places);
			pthread_mutex_unlock(&map->lock);
			if (!n_places || map_places(map, places, n_places, writable, after_ms(ANSWER_MS)) <= 0)
				break;
		}
	}
}

/* Put new grants into the stock; those that cannot be used go back. Those of a connection that has ended meanwhile were
 * not in the list of what we have: the daemon has taken them back. */
static void grants_take(struct ns_map *map, uint64_t connection, const struct kvp_wire_grant *grants, uint32_t n)
{
	struct grant back[64];
	uint32_t n_back = 0;

	grants_map(map, grants, n);
	pthread_mutex_lock(&map->lock);
	for (uint32_t i = 0; i < n && connection == map->connection; i++) {
		struct grant grant = {grants[i].slot, grants[i].generation};
		uint32_t place = slot_place(map, grant.slot);
		const struct slab_map *ro =
			grant.slot < map->n_slots ? atomic_load_explicit(&map->ro[place], memory_order_relaxed) : NULL;
		uint64_t *at = ro ? grant_at(map, grant.slot) : NULL;

		if (at && map->rw[place]->number == ro->number && !*at && map->n_grants < GRANTS_MAX &&
			stock_push(map, grant)) {
			*at = grant.generation + 1;
			map->n_grants++;
			continue;
		}
		back[n_back++] = grant;
		if (n_back == sizeof(back) / sizeof(back[0]) || i + 1 == n) {
			grants_abandon(map, back, n_back);
			n_back = 0;
		}
	}
	if (n_back)
		grants_abandon(map, back, n_back);
	pthread_mutex_unlock(&map->lock);
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
		(struct kvp_wire_reserve){.ns_id = map->ns_id, .n = n, .node = UINT32_MAX, .deadline_ns = deadline_ns};
	request->owner = map;
	return request;
}

static uint32_t reserve_take(struct ns_map *map, const struct request *request)
{
	const struct kvp_wire_reserve *asked = request_body(request);
	uint32_t n = (uint32_t)(request->body_bytes / sizeof(struct kvp_wire_grant));

	if (n < asked->n) { /* room is scarce: what becomes free is for who needs it, and asking keeps the daemon busy */
		pthread_mutex_lock(&map->lock);
		map->refill_after_ns = after_ms(REFILL_PAUSE_MS);
		pthread_mutex_unlock(&map->lock);
	}
	if (n)
		grants_take(map, request->connection, (const struct kvp_wire_grant *)(const void *)request->body, n);
	return n;
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

/* A round trip. Return: grants that came; < 0. */
static int reserve_ask(struct ns_map *map, uint32_t n, uint64_t deadline_ns)
{
	struct request *request = reserve_request(map, n, deadline_ns);
	uint64_t until = deadline_ns ? deadline_ns + 50 * MS : after_ms(TRY_MS);
	int r;

	if (!request)
		return fail(-KVP_ENOMEM, "out of memory");
	request->late = reserve_done;
	r = request_call(&request, until);
	if (r == 0)
		r = (int)reserve_take(map, request);
	request_free(request);
	return r;
}

/* ---- the stock ---- */

void stock_refill(struct ns_map *map)
{
	struct request *request;
	uint32_t want;

	pthread_mutex_lock(&map->lock);
	want = map->n_stock * 2 <= map->stock_target && !map->refilling && now_ns() >= map->refill_after_ns
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
			reserve_take(map, request);
		request_free(request);
	}
	pthread_mutex_lock(&map->lock);
	stock_give_back(map);
	idle = now_ns() - map->taken_ns > STOCK_IDLE_MS * MS;
	if (idle)
		stock_abandon(map, map->n_stock);
	else if (map->n_stock > map->stock_target)
		stock_abandon(map, map->n_stock - map->stock_target);
	pthread_mutex_unlock(&map->lock);
	if (!idle)
		stock_refill(map);
}

/* ---- staging ---- */

static int stage_ask(struct ns_map *map, uint64_t deadline_ns)
{
	struct session *s = map->session;
	struct request *request = request_new(s->client, s, KVP_MSG_STAGE, sizeof(struct kvp_wire_stage));
	struct stage *stage = calloc(1, sizeof(*stage));
	struct kvp_wire_staged staged;
	struct kvp_wire_stage *ask;
	int r = -KVP_ENOMEM;

	if (request && stage) {
		ask = request_body(request);
		*ask = (struct kvp_wire_stage){.ns_id = map->ns_id, .n_blocks = STAGE_BLOCKS};
		r = request_call(&request, deadline_ns);
	}
	if (r == 0 && (request->body_bytes < sizeof(staged) || request->n_fds != 1))
		r = fail(-KVP_EPROTO, "the daemon answers STAGE with %zu bytes", request->body_bytes);
	if (r == 0) {
		memcpy(&staged, request->body, sizeof(staged));
		if (!staged.n_blocks || staged.n_blocks > UINT32_MAX ||
			staged.bytes / map->block_stride < staged.n_blocks)
			r = fail(-KVP_EPROTO, "the staging area makes no sense");
	}
	if (r == 0) {
		*stage = (struct stage){.map = map,
			.bytes = staged.bytes,
			.n_blocks = staged.n_blocks,
			.n_free = staged.n_blocks,
			.used = calloc(staged.n_blocks, 1),
			.base = map_object(request->fds[0], staged.bytes, true),
			.current = true,
			.connection = request->connection};
		r = stage->used && stage->base ? 0 : -KVP_ENOMEM;
	}
	request_free(request);
	pthread_mutex_lock(&map->lock);
	if (r == 0 && stage->connection == map->connection && (!map->stages || !map->stages->current)) {
		stage->next = map->stages;
		map->stages = stage;
		pthread_mutex_unlock(&map->lock);
		return 0;
	}
	pthread_mutex_unlock(&map->lock);
	if (stage && stage->base)
		munmap(stage->base, stage->bytes);
	if (stage)
		free(stage->used);
	free(stage);
	return r;
}

static bool stage_take(struct ns_map *map, struct room *room)
{
	struct stage *stage;
	uint64_t at = 0;
	bool got;

	pthread_mutex_lock(&map->lock);
	stage = map->stages;
	got = stage && stage->current && stage->n_free;
	if (got) {
		while (stage->used[at])
			at++;
		stage->used[at] = 1;
		stage->n_free--;
		*room = (struct room){
			.kind = HOLD_STAGED, .owner = stage, .slot = at, .data = stage->base + at * map->block_stride};
	}
	pthread_mutex_unlock(&map->lock);
	return got;
}

static void stage_put(struct stage *stage, uint64_t slot)
{
	pthread_mutex_lock(&stage->map->lock);
	stage->used[slot] = 0;
	stage->n_free++;
	pthread_mutex_unlock(&stage->map->lock);
}

bool stage_move(struct kvp_client *client, struct room *room, uint64_t used_bytes)
{
	struct stage *stage = room->owner;
	struct room to;

	if (stage->current)
		return true;
	if (stage->map->session->gone || !stage_take(stage->map, &to))
		return false;
	memcpy(to.data, room->data, used_bytes);
	count_add(client, COUNT_COPIED_BYTES, used_bytes);
	stage_put(stage, room->slot);
	*room = to;
	return true;
}

static uint32_t stage_rooms(struct ns_map *map, uint32_t n, uint64_t deadline_ns, struct room *rooms)
{
	bool have;
	uint32_t got = 0;

	pthread_mutex_lock(&map->lock);
	have = map->stages && map->stages->current;
	pthread_mutex_unlock(&map->lock);
	if (!have)
		stage_ask(map, deadline_ns ? deadline_ns : after_ms(TRY_MS));
	while (got < n && stage_take(map, &rooms[got]))
		got++;
	return got;
}

/* ---- rooms ---- */

static uint32_t stock_take(struct ns_map *map, uint32_t n, struct room *rooms)
{
	uint32_t got = 0;
	bool low;

	pthread_mutex_lock(&map->lock);
	while (got < n && map->n_stock) {
		struct grant grant = map->stock[--map->n_stock];

		map->n_back -= map->n_back > 0;
		spot_pin_again(map, grant.slot);
		rooms[got++] = (struct room){.kind = HOLD_GRANT,
			.owner = map,
			.slot = grant.slot,
			.generation = grant.generation,
			.data = grant_data(map, grant.slot, grant.generation)};
	}
	low = map->n_stock * 2 <= map->stock_target && map->stock_target && !map->refilling;
	map->taken_ns = now_ns();
	pthread_mutex_unlock(&map->lock);
	if (low)
		client_wake(map->session->client);
	return got;
}

/* From the stock, then by asking: an answer may hold fewer than were asked for, so until the deadline. */
static uint32_t grant_rooms(struct ns_map *map, uint32_t n, uint64_t deadline_ns, struct room *rooms)
{
	uint32_t got = stock_take(map, n, rooms);

	while (got < n) {
		uint32_t ask = n - got < KVP_WIRE_BATCH_MAX ? n - got : KVP_WIRE_BATCH_MAX, more;

		pthread_mutex_lock(&map->lock);
		if (ask > GRANTS_MAX - map->n_grants)
			ask = GRANTS_MAX - map->n_grants;
		pthread_mutex_unlock(&map->lock);
		if (!ask || (deadline_ns && deadline_ns <= now_ns()) || reserve_ask(map, ask, deadline_ns) <= 0)
			break;
		more = stock_take(map, n - got, rooms + got);
		got += more;
		if (!more)
			break;
	}
	return got;
}

uint32_t private_rooms(struct kvp_ns *ns, uint32_t n, struct room *rooms)
{
	uint32_t got = 0;

	for (; got < n; got++) {
		void *data = private_take(ns);

		if (!data)
			break;
		rooms[got] = (struct room){
			.kind = HOLD_PRIVATE, .owner = ns, .slot = (uint64_t)(uintptr_t)data, .data = data};
	}
	if (got)
		count_add(ns->client, COUNT_PRIVATE_BLOCKS, got);
	return got;
}

int64_t room_take(struct kvp_ns *ns, uint32_t n, bool with_private, uint64_t deadline_ns, struct room *rooms)
{
	struct ns_map *map = atomic_load_explicit(&ns->map, memory_order_acquire);
	uint32_t got = 0;

	bool readonly = map && (map->flags | ns->flags) & KVP_NS_READONLY;

	if (readonly && !with_private)
		return fail(-KVP_EACCES, "namespace %s is read-only to this client", ns->join.name);
	if (map && !readonly) {
		atomic_store_explicit(&map->used, true, memory_order_relaxed);
		got = map->flags & KVP_NS_COPIED ? stage_rooms(map, n, deadline_ns, rooms)
						 : grant_rooms(map, n, deadline_ns, rooms);
	}
	if (with_private)
		got += private_rooms(ns, n - got, rooms + got);
	return got;
}

void stock_trim(struct ns_map *map)
{
	pthread_mutex_lock(&map->lock);
	stock_give_back(map);
	pthread_mutex_unlock(&map->lock);
}

/* Others may be waiting for it, so it goes back to the daemon: by stock_trim() of whoever puts back many, or the keeper. */
static void grant_put_back(struct ns_map *map, uint64_t slot, uint64_t generation)
{
	struct grant grant = {slot, generation};
	bool first = false;

	spot_unpin(map, slot, generation);
	pthread_mutex_lock(&map->lock);
	if (grant_data(map, slot, generation) && !map->session->gone && !map->lost && stock_push(map, grant))
		first = map->n_back++ == 0;
	else
		grant_clear(map, slot);
	pthread_mutex_unlock(&map->lock);
	if (first)
		client_wake(map->session->client);
}

void room_put_back(const struct room *room)
{
	switch (room->kind) {
	case HOLD_GRANT:
		grant_put_back(room->owner, room->slot, room->generation);
		return;
	case HOLD_STAGED:
		stage_put(room->owner, room->slot);
		return;
	case HOLD_PRIVATE:
		private_put(room->owner, room->data);
		return;
	default:
		return;
	}
}

/* In a child after fork() the memory behind a room is not there, and the parent's is not ours to give back. */
static bool room_is_dead(const struct room *room)
{
	const struct kvp_client *client = room->kind == HOLD_PRIVATE ? ((struct kvp_ns *)room->owner)->client
					  : room->kind == HOLD_STAGED
						  ? ((struct stage *)room->owner)->map->session->client
						  : ((struct ns_map *)room->owner)->session->client;

	return atomic_load(&client->dead);
}

/* ---- the calls ---- */

struct room room_of(const struct hold *hold)
{
	struct room room = {
		.kind = hold->kind, .owner = hold->owner, .slot = hold->slot, .generation = hold->generation};

	if (room.kind == HOLD_PRIVATE)
		room.data = (char *)(uintptr_t)hold->slot;
	else if (room.kind == HOLD_STAGED)
		room.data = ((struct stage *)room.owner)->base +
			    room.slot * ((struct stage *)room.owner)->map->block_stride;
	return room;
}

static bool block_fill(struct kvp_block_ref *block, struct kvp_ns *ns, const struct room *room)
{
	uint64_t handle = hold_new(room->kind, room->owner, room->slot, room->generation);

	if (!handle) {
		room_put_back(room);
		return false;
	}
	*block = (struct kvp_block_ref){
		.data = room->data, .is_private = room->kind == HOLD_PRIVATE, .ns = ns, .opaque = {handle}};
	return true;
}

int64_t kvp_reserve(struct kvp_ns *ns, uint32_t n, uint32_t flags, uint64_t deadline_ns, struct kvp_block_ref *blocks)
{
	struct room rooms[ROOMS_A_TURN];
	uint32_t got = 0;
	int r = ns_bad(ns);

	if (r < 0)
		return r;
	if (n && !blocks)
		return fail(-KVP_EINVAL, "blocks: a null pointer");
	if (flags & ~(uint32_t)KVP_PRIVATE)
		return fail(-KVP_EINVAL, "flags: %#x, only KVP_PRIVATE is known", flags);
	while (got < n) {
		uint32_t want = n - got < ROOMS_A_TURN ? n - got : ROOMS_A_TURN;
		int64_t have = room_take(ns, want, flags & KVP_PRIVATE, deadline_ns, rooms);

		if (have < 0)
			return got ? (int64_t)got : have;
		for (int64_t i = 0; i < have; i++) {
			if (block_fill(&blocks[got], ns, &rooms[i])) {
				got++;
				continue;
			}
			while (++i < have)
				room_put_back(&rooms[i]);
			return got ? (int64_t)got : fail(-KVP_ENOMEM, "out of memory");
		}
		if (have < want)
			break;
	}
	if (flags & KVP_PRIVATE && got < n)
		return got ? (int64_t)got : fail(-KVP_ENOMEM, "no memory for private blocks");
	return got;
}

int kvp_reserve_extend(const struct kvp_view *view, uint32_t used_tokens, uint32_t flags, struct kvp_block_ref *block)
{
	const struct hold *hold = view && view->data ? hold_get(view->opaque[0]) : NULL;
	int64_t r;

	if (!hold || hold->kind != HOLD_VIEW || !block)
		return fail(-KVP_EINVAL, "view: not a held one, or block: a null pointer");
	r = ns_bad(view->ns);
	if (r < 0)
		return (int)r;
	if (used_tokens > view->used_tokens)
		return fail(-KVP_EINVAL, "used_tokens: %u of %u", used_tokens, view->used_tokens);
	r = kvp_reserve(view->ns, 1, flags, after_ms(TRY_MS), block);
	if (r <= 0)
		return r < 0 ? (int)r
			     : fail(-KVP_ENOSPC, "no room in the pool for a copy: KVP_PRIVATE gives private memory");
	count_add(view->ns->client, COUNT_COPIED_BYTES,
		rows_copy(view->ns, block->data, view->data, used_tokens, view->used_bytes));
	return 0;
}

void kvp_abandon(struct kvp_block_ref *blocks, uint32_t n)
{
	struct ns_map *last = NULL;

	for (uint32_t i = 0; blocks && i < n; i++) {
		const struct hold *hold = blocks[i].data ? hold_get(blocks[i].opaque[0]) : NULL;
		struct room room;

		blocks[i].data = NULL;
		if (!hold || (hold->kind != HOLD_GRANT && hold->kind != HOLD_STAGED && hold->kind != HOLD_PRIVATE))
			continue;
		room = room_of(hold);
		hold_end(blocks[i].opaque[0]);
		if (room_is_dead(&room))
			continue;
		room_put_back(&room);
		if (room.kind != HOLD_GRANT || room.owner == last)
			continue;
		if (last)
			stock_trim(last);
		last = room.owner;
	}
	if (last)
		stock_trim(last);
}
