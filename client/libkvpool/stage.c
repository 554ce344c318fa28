/*
 * stage.c - staging areas: where writers of COPIED namespaces put blocks for the daemon to copy
 *
 * One area a namespace, its blocks managed here.  A new daemon keeps none of the old ones: those stay mapped for whoever
 * still stores into them, and what is to be published moves to a new one.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STAGE_BLOCKS 64u

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

void stage_put(struct stage *stage, uint64_t slot)
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

uint32_t stage_rooms(struct ns_map *map, uint32_t n, uint64_t deadline_ns, struct room *rooms)
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
