/*
 * stage.c - staging areas: where writers of COPIED namespaces put blocks for the daemon to copy
 *
 * One area a namespace, its blocks managed here.  A new daemon keeps none of the old ones: those stay mapped as long as
 * somebody stores into them, and what is to be published moves to a new one.
 *
 * All areas of all writers have a bound, so one that is empty goes back: after STAGE_IDLE_MS, or at once when an answer says
 * that others wait and it was had for STAGE_TURN_MS.  Who finds no room asks again until its deadline: that keeps its place
 * in the daemon's queue.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define STAGE_BLOCKS 64u
#define STAGE_IDLE_MS 250
#define STAGE_TURN_MS 100 /* as long others wait for it, and as long no block is taken from it afterwards to empty it */
#define STAGE_ASK_MS 10

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
	/* one given up on the connection that ended may not have got there */
	map->stage_asked = (map->flags & (KVP_NS_COPIED | KVP_NS_READONLY)) == KVP_NS_COPIED;
	pthread_mutex_unlock(&map->lock);
}

static void stage_free(struct stage *stage)
{
	if (stage && stage->base)
		munmap(stage->base, stage->bytes);
	if (stage)
		free(stage->used);
	free(stage);
}

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
	if (r == 0 && (!request_body_take(request, &staged, sizeof(staged), KVP_STAGED_LEAST) || request->n_fds != 1))
		r = fail(-KVP_EPROTO, "the daemon answers STAGE with %zu bytes", request->body_bytes);
	if (r == 0) {
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
			.since_ns = now_ns(),
			.idle_ns = now_ns(),
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
	stage_free(stage);
	return r;
}

/* Empty, so nobody has a pointer into it: unmapped first, for the daemon cuts it. Under map->lock. */
static void stage_give_up(struct ns_map *map)
{
	struct kvp_wire_stage none = {.ns_id = map->ns_id};
	struct stage *stage = map->stages;

	if (stage && stage->current) {
		map->stages = stage->next;
		stage_free(stage);
	}
	map->stage_asked = client_tell(map->session, KVP_MSG_STAGE, &none, sizeof(none), NULL, 0) < 0;
}

/* Areas of daemons that are gone, and nobody has a block of. Under map->lock. */
static void stages_sweep(struct ns_map *map)
{
	for (struct stage **at = &map->stages; *at;) {
		struct stage *stage = *at;

		if (stage->current || stage->n_free < stage->n_blocks) {
			at = &stage->next;
			continue;
		}
		*at = stage->next;
		stage_free(stage);
	}
}

bool stage_keep(struct ns_map *map)
{
	struct stage *stage;
	bool have, asked;

	pthread_mutex_lock(&map->lock);
	stages_sweep(map);
	stage = map->stages;
	have = stage && stage->current;
	if (map->stage_asked && !map->n_stage_asking && !map->session->gone &&
		(!have || (stage->n_free == stage->n_blocks && now_ns() - stage->idle_ns > STAGE_IDLE_MS * MS)))
		stage_give_up(map);
	asked = map->stage_asked;
	pthread_mutex_unlock(&map->lock);
	return asked;
}

bool stage_leave(struct ns_map *map)
{
	struct stage *stage;
	bool none;

	pthread_mutex_lock(&map->lock);
	stages_sweep(map);
	stage = map->stages;
	if (map->stage_asked && !map->n_stage_asking && (!stage || stage->n_free == stage->n_blocks))
		stage_give_up(map);
	none = !map->stages && !map->stage_asked;
	pthread_mutex_unlock(&map->lock);
	return none;
}

/* Under map->lock. */
static bool stage_leaves(const struct stage *stage)
{
	return stage->leaving_ns && now_ns() < stage->leaving_ns;
}

/* Under map->lock. */
static void stage_leave_if_empty(struct stage *stage)
{
	struct ns_map *map = stage->map;

	if (stage == map->stages && stage->current && stage->n_free == stage->n_blocks && !map->n_stage_asking &&
		stage_leaves(stage))
		stage_give_up(map);
}

void stage_wanted(struct ns_map *map)
{
	struct stage *stage;
	uint64_t now = now_ns();

	pthread_mutex_lock(&map->lock);
	stage = map->stages;
	/* one that does not empty itself in that time has a turn again: what it waits for may need a block */
	if (stage && stage->current && now > stage->since_ns + STAGE_TURN_MS * MS) {
		stage->since_ns = now + STAGE_TURN_MS * MS;
		stage->leaving_ns = stage->since_ns;
		stage_leave_if_empty(stage);
	}
	pthread_mutex_unlock(&map->lock);
}

static bool stage_take(struct ns_map *map, struct room *room)
{
	struct stage *stage;
	uint64_t at = 0;
	bool got;

	pthread_mutex_lock(&map->lock);
	stage = map->stages;
	got = stage && stage->current && stage->n_free && !stage_leaves(stage);
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

void stage_put(struct stage *stage, uint64_t slot)
{
	struct ns_map *map = stage->map;

	pthread_mutex_lock(&map->lock);
	stage->used[slot] = 0;
	stage->n_free++;
	if (stage->n_free == stage->n_blocks)
		stage->idle_ns = now_ns();
	stage_leave_if_empty(stage);
	pthread_mutex_unlock(&map->lock);
}

bool stage_is_lost(const struct room *room)
{
	struct stage *stage = room->owner;
	bool lost;

	if (room->kind != HOLD_STAGED)
		return false;
	pthread_mutex_lock(&stage->map->lock);
	lost = !stage->current;
	pthread_mutex_unlock(&stage->map->lock);
	return lost;
}

bool stage_move(struct kvp_client *client, struct room *room, uint64_t used_bytes, struct room *left)
{
	struct stage *stage = room->owner;
	struct room to;

	if (!stage_is_lost(room))
		return true;
	if (stage->map->session->gone || !stage_take(stage->map, &to))
		return false;
	memcpy(to.data, room->data, used_bytes);
	count_add(client, COUNT_COPIED_BYTES, used_bytes);
	if (left && left->kind == HOLD_NONE)
		*left = *room;
	else
		stage_put(stage, room->slot);
	*room = to;
	return true;
}

/* Ask for one if there is none. Return: 0: it is there, or was there; -KVP_E... */
static int stage_have(struct ns_map *map, uint64_t deadline_ns)
{
	bool have;
	int r;

	pthread_mutex_lock(&map->lock);
	have = map->stages && map->stages->current;
	map->n_stage_asking += !have;
	map->stage_asked = map->stage_asked || !have;
	pthread_mutex_unlock(&map->lock);
	if (have)
		return 0;
	r = stage_ask(map, deadline_ns);
	pthread_mutex_lock(&map->lock);
	map->n_stage_asking--;
	pthread_mutex_unlock(&map->lock);
	if (r == 0)
		client_wake(map->session->client); /* it looks from now on whether it is still used */
	return r;
}

void stage_ready(struct ns_map *map)
{
	stage_have(map, after_ms(TRY_MS));
}

/* Fewer blocks than were asked for: @refused is what the daemon said when it had no area for us, or empty. */
static void stage_say_why(struct ns_map *map, uint32_t n, const char *refused)
{
	uint64_t n_blocks;

	pthread_mutex_lock(&map->lock);
	n_blocks = map->stages && map->stages->current ? map->stages->n_blocks : 0;
	pthread_mutex_unlock(&map->lock);
	if (n_blocks)
		fail_say(
			"namespace %s is copied: its staging area has %llu blocks, fewer are free than the %u asked for: "
			"publish or abandon some of those reserved",
			map->head->name, (unsigned long long)n_blocks, n);
	else if (refused[0])
		fail_say("%s", refused);
}

uint32_t stage_rooms(struct ns_map *map, uint32_t n, uint64_t deadline_ns, struct room *rooms)
{
	char refused[256] = "";
	uint32_t got = 0;

	for (;;) {
		int r = stage_have(map, deadline_ns ? deadline_ns : after_ms(TRY_MS));

		if (r == -KVP_ENOSPC)
			snprintf(refused, sizeof(refused), "%s", self_error());
		while (got < n && stage_take(map, &rooms[got]))
			got++;
		if (got || !n || (r < 0 && r != -KVP_ENOSPC) || now_ns() + STAGE_ASK_MS * MS > deadline_ns)
			break;
		nanosleep(&(struct timespec){.tv_nsec = STAGE_ASK_MS * (long)MS}, NULL);
	}
	if (got < n)
		stage_say_why(map, n, refused);
	return got;
}
