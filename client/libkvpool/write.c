/*
 * write.c - writable blocks as the caller sees them: a grant, a block of a staging area, or private memory
 */
#include "internal.h"

#include <string.h>

#define ROOMS_A_TURN 512u

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

/* None was to be had, for nobody is there to be asked. */
static void reserve_say_detached(struct kvp_ns *ns)
{
	if (kvp_state(ns->client, NULL) == KVP_ATTACHED)
		fail_say("namespace %s is not joined yet with the daemon that came", ns->join.name);
	else
		client_detached(ns->client);
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
	if (got < n && !(flags & KVP_PRIVATE) && !atomic_load_explicit(&ns->map, memory_order_relaxed))
		reserve_say_detached(ns);
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
	if (view->layers_ready < view->ns->join.desc.n_layers)
		return fail(-KVP_EINVAL, "view: its layers are still being read: wait for the last one");
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
