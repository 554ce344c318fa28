/*
 * publish.c - from a grant to a block everybody finds
 *
 * A batch is one PUBLISH in flight with what it takes to finish it: it outlives a lost connection, is sent again on the
 * next one, and is settled by whoever waits for it, or by the keeper.  Until it is settled its rooms are nobody else's.
 *
 * An answer that was lost: the daemon refuses the second publish of a grant (-KVP_ESTALE), but the descriptor tells:
 * same generation, same key, published - then it was stored.  The writer's own pin has kept it there.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* Not told to anybody: to be sent again; and so, but a first time it was stored, which is what its writer is told
   then. */
#define PUB_AGAIN 0xffu
#define PUB_STORED_AGAIN 0xfeu
#define REPEATS 3 /* there, but evicted before it was pinned: publish again so often */

/* ---- batches ---- */

static struct kvp_wire_item *batch_wire(const struct batch *batch, uint32_t i)
{
	return (struct kvp_wire_item *)(void *)((char *)request_body(batch->request) + sizeof(struct kvp_wire_batch)) +
	       i;
}

static bool item_move(struct batch *batch, struct batch_item *item)
{
	return stage_move(
		batch->request->client, &item->room, item->used_bytes, batch->keep_rooms ? &item->left : NULL);
}

/* Before it is sent on a new connection. A new daemon has no staging areas: what lay in the old one moves. */
static int batch_again(struct request *request, bool same_epoch)
{
	struct batch *batch = request->owner;

	for (uint32_t i = 0; i < batch->n; i++) {
		struct batch_item *item = &batch->items[i];

		if (item->room.kind != HOLD_STAGED)
			continue;
		if (same_epoch)
			batch->keep_stage = true; /* the copy the first message started may still be under way */
		else if (item_move(batch, item))
			batch_wire(batch, i)->slot = item->room.slot;
		else
			batch_wire(batch, i)->slot = SLOT_NONE; /* is refused */
	}
	return 0;
}

struct batch *batch_new(struct ns_map *map, uint32_t room)
{
	struct batch *batch = calloc(1, sizeof(*batch) + room * sizeof(batch->items[0]));

	if (!batch)
		return NULL;
	batch->map = map;
	batch->request = request_new(map->session->client, map->session, KVP_MSG_PUBLISH,
		sizeof(struct kvp_wire_batch) + room * sizeof(struct kvp_wire_item));
	if (!batch->request) {
		free(batch);
		return NULL;
	}
	batch->request->lasting = true;
	batch->request->again = batch_again;
	batch->request->owner = batch;
	return batch;
}

struct batch_item *batch_add(struct batch *batch, const struct room *room, const struct kvp_key *key,
	const struct kvp_key *parent, uint32_t used_tokens, uint64_t used_bytes)
{
	struct batch_item *item = &batch->items[batch->n];

	*item = (struct batch_item){
		.room = *room, .key = *key, .parent = *parent, .used_tokens = used_tokens, .used_bytes = used_bytes};
	if (room->kind == HOLD_STAGED && !item_move(batch, item))
		return NULL;
	if (item->room.kind == HOLD_STAGED)
		batch->request->only_on = ((struct stage *)item->room.owner)->connection;
	batch->n++;
	return item;
}

/* The daemon wants the parent hot or cold: if it is in DRAM it stays there until the answer. */
static void batch_pin_parent(struct batch *batch, uint32_t i)
{
	struct batch_item *item = &batch->items[i];

	if (kvp_key_is_none(&item->parent) || (i && kvp_key_same(&item->parent, &batch->items[i - 1].key)))
		return;
	item->parent_pinned = find_pin(batch->map, &item->parent, &item->parent_spot) == FOUND_PINNED;
}

static void batch_unpin_parents(struct batch *batch)
{
	for (uint32_t i = 0; i < batch->n; i++) {
		const struct spot *spot = &batch->items[i].parent_spot;

		if (batch->items[i].parent_pinned)
			spot_unpin(spot->map, spot->slot, spot->generation);
		batch->items[i].parent_pinned = false;
	}
}

int batch_send(struct batch *batch)
{
	struct kvp_wire_batch head = {.ns_id = batch->map->ns_id, .n = batch->n};
	int r;

	memcpy(request_body(batch->request), &head, sizeof(head));
	for (uint32_t i = 0; i < batch->n; i++) {
		const struct batch_item *item = &batch->items[i];

		*batch_wire(batch, i) = (struct kvp_wire_item){.slot = item->room.slot,
			.generation = item->room.generation,
			.key = item->key,
			.parent = item->parent,
			.used_bytes = item->used_bytes,
			.used_tokens = item->used_tokens,
			.flags = item->room.kind == HOLD_STAGED ? KVP_ITEM_STAGED : 0};
		batch_pin_parent(batch, i);
	}
	batch->request->packet_bytes = sizeof(struct kvp_msg) + sizeof(head) + batch->n * sizeof(struct kvp_wire_item);
	r = request_send(batch->request);
	if (r < 0)
		batch_unpin_parents(batch);
	return r;
}

void batch_free(struct batch *batch)
{
	if (!batch)
		return;
	request_free(batch->request);
	free(batch);
}

/* ---- settling ---- */

/* Was the grant published after all? Under the writer's own pin the descriptor stands still once it was. */
static bool item_was_stored(const struct ns_map *map, const struct batch_item *item)
{
	const struct kvp_block *block = &map->blocks[item->room.slot];
	uint64_t word = atomic_load_explicit(&block->word, memory_order_seq_cst);

	return kvp_word_generation(word) == item->room.generation &&
	       (kvp_word_state(word) == KVP_BLOCK_PUBLISHED || kvp_word_state(word) == KVP_BLOCK_DRAINING) &&
	       kvp_key_same(&block->key, &item->key);
}

/* The grant itself became the block: the pin goes on as the writer's hold. */
static void item_stored_in_place(struct batch *batch, struct batch_item *item)
{
	struct ns_map *map = batch->map;
	uint32_t place = slot_place(map, item->room.slot);
	const struct slab_map *ro = atomic_load_explicit(&map->ro[place], memory_order_acquire);

	grant_forget(map, item->room.slot, item->room.generation);
	item->result = KVP_PUB_STORED;
	if (!item->want_spot) {
		spot_unpin(map, item->room.slot, item->room.generation);
		return;
	}
	item->spot = (struct spot){.map = map,
		.slot = item->room.slot,
		.generation = item->room.generation,
		.data = ro->base + item->room.slot % map->slots_per_slab * map->block_stride,
		.used_bytes = item->used_bytes,
		.used_tokens = item->used_tokens};
}

/* Another block holds the key (or the daemon's copy does): pin that one, then give up our own. */
static void item_stored_elsewhere(struct batch *batch, struct batch_item *item, const struct kvp_wire_result *result)
{
	bool keeper = keeper_is_me(batch->map->session->client);
	enum found r = FOUND_PINNED;

	item->stored = result->result == KVP_PUB_STORED;
	if (item->stored && item->room.kind == HOLD_STAGED)
		count_add(batch->map->session->client, COUNT_COPIED_BYTES, item->used_bytes);
	if (item->want_spot) {
		r = find_pin_slot(batch->map, result->slot, &item->key, &item->spot);
		if (r != FOUND_PINNED)
			r = find_pin_wait(batch->map, &item->key, keeper ? 0 : after_ms(ANSWER_MS), &item->spot);
	}
	if (r != FOUND_PINNED) {
		/* the keeper cannot wait for a mapping: a sequence reads its own bytes then; a caller who wants to hold
		   what cannot be mapped is left what it has */
		item->spot.map = NULL;
		item->again = r != FOUND_UNMAPPED;
		item->result = r == FOUND_UNMAPPED && batch->keep_rooms ? KVP_PUB_EXISTS : KVP_PUB_REJECTED;
		item->room_kept = true;
		return;
	}
	item->result = (uint8_t)result->result;
	if (batch->keep_rooms)
		item->room_kept = true;
	else if (item->room.kind != HOLD_STAGED || !batch->keep_stage)
		room_put_back(&item->room);
}

static void item_settle(struct batch *batch, struct batch_item *item, const struct kvp_wire_result *result)
{
	bool staged = item->room.kind == HOLD_STAGED;

	item->room_kept = false;
	item->again = item->stored = false;
	item->no_parent = result->result == KVP_PUB_REJECTED;
	if (!staged &&
		(result->result == KVP_PUB_STORED || (result->result < 0 && item_was_stored(batch->map, item)))) {
		item_stored_in_place(batch, item);
	} else if (result->result == KVP_PUB_STORED || result->result == KVP_PUB_EXISTS) {
		item_stored_elsewhere(batch, item, result);
	} else {
		item->result = batch->map->session->gone || batch->map->lost ? KVP_PUB_GONE : KVP_PUB_REJECTED;
		item->room_kept = true;
		item->again = staged && stage_is_lost(&item->room); /* it had nowhere to move to: nobody refused it */
	}
}

void batch_settle(struct batch *batch, int status)
{
	const struct request *request = batch->request;
	bool wanted = false;

	for (uint32_t i = 0; i < batch->n; i++) {
		struct kvp_wire_result result = {.result = -KVP_ESTALE};

		if (status == 0 && (i + 1) * sizeof(result) <= request->body_bytes)
			memcpy(&result, request->body + i * sizeof(result), sizeof(result));
		item_settle(batch, &batch->items[i], &result);
		wanted = wanted || result.flags & KVP_RESULT_STAGE_WANTED;
	}
	if (wanted)
		stage_wanted(batch->map);
	batch_unpin_parents(batch);
}

/* ---- kvp_publish() ---- */

/* Nobody waits (any more): what was not stored goes back. */
static void batch_forgotten(struct request *request)
{
	struct batch *batch = request->owner;

	for (uint32_t i = 0; i < batch->n; i++)
		batch->items[i].want_spot = false;
	batch_settle(batch, request->status);
	for (uint32_t i = 0; i < batch->n; i++)
		if (batch->items[i].room_kept && !(batch->keep_stage && batch->items[i].room.kind == HOLD_STAGED))
			room_put_back(&batch->items[i].room);
	batch_free(batch);
}

static int item_bad(const struct kvp_ns *ns, const struct kvp_publish_item *item, uint32_t i)
{
	const struct hold *hold = item->block && item->block->data ? hold_get(item->block->opaque[0]) : NULL;

	if (!hold || hold->kind < HOLD_GRANT || hold->kind > HOLD_PRIVATE)
		return fail(-KVP_EINVAL, "items[%u].block: not a writable block, or used up", i);
	if (item->block->ns != ns)
		return fail(-KVP_EINVAL, "items[%u].block: of another namespace", i);
	if (kvp_key_is_none(&item->key) || kvp_key_same(&item->key, &item->parent))
		return fail(-KVP_EINVAL, "items[%u].key: all zero, or its own parent", i);
	if (!item->used_tokens || item->used_tokens > ns->join.desc.block_tokens)
		return fail(-KVP_EINVAL, "items[%u].used_tokens: 1 to %u, got %u", i, ns->join.desc.block_tokens,
			item->used_tokens);
	if (item->used_bytes > ns->block_bytes)
		return fail(-KVP_EINVAL, "items[%u].used_bytes: more than block_bytes", i);
	return 0;
}

static struct ns_map *room_map(const struct room *room)
{
	return room->kind == HOLD_GRANT	   ? room->owner
	       : room->kind == HOLD_STAGED ? ((struct stage *)room->owner)->map
					   : NULL;
}

struct publish {
	struct kvp_ns *ns;
	struct ns_map *map;
	struct kvp_publish_item *items;
	uint32_t n;
	uint8_t *results;
	uint32_t *where; /* item of each item of the batch in hand */
	uint32_t n_where;
	int64_t stored;
};

/* Of a block that cannot be published: why. 0: it can. */
static uint8_t room_verdict(const struct publish *p, const struct room *room)
{
	const struct ns_map *map = room_map(room);

	if (!map) {
		fail_say("a private block cannot be published: it is not the pool's");
		return KVP_PUB_REJECTED;
	}
	if (map->session->gone || (p->map && map != p->map))
		return KVP_PUB_GONE;
	return p->map ? 0 : KVP_PUB_REJECTED;
}

static void publish_add(struct publish *p, struct batch *batch, uint32_t i)
{
	struct kvp_publish_item *item = &p->items[i];
	struct hold *hold = hold_get(item->block->opaque[0]);
	struct batch_item *added;
	uint8_t before = p->results[i];
	struct room room;

	if (!hold || hold->kind == HOLD_PUBLISHING) { /* twice in one call */
		p->results[i] = KVP_PUB_REJECTED;
		return;
	}
	room = room_of(hold);
	p->results[i] = room_verdict(p, &room);
	if (p->results[i] == KVP_PUB_GONE)
		item->block->is_private = 1;
	if (p->results[i])
		return;
	p->results[i] = KVP_PUB_REJECTED;
	added = batch_add(batch, &room, &item->key, &item->parent, item->used_tokens,
		item->used_bytes ? item->used_bytes : p->ns->block_bytes);
	if (added) {
		added->want_spot = item->view;
		hold->kind = HOLD_PUBLISHING;
		p->results[i] = before;
		p->where[p->n_where++] = i;
	} else {
		fail_say(
			"items[%u]: its staging area is gone with a daemon, and the one that came has no room for another",
			i);
	}
}

static bool pub_is_again(uint8_t result)
{
	return result == PUB_AGAIN || result == PUB_STORED_AGAIN;
}

/* Not answered yet, or to be sent again. */
static bool pub_is_open(uint8_t result)
{
	return !result || pub_is_again(result);
}

/* Put what may be published of items[from..] into a batch; answer the others at once. Return: items looked at. */
static uint32_t publish_fill(struct publish *p, struct batch *batch, uint32_t from)
{
	uint32_t i = from;

	p->n_where = 0;
	for (; i < p->n && p->n_where < KVP_WIRE_BATCH_MAX; i++)
		if (pub_is_open(p->results[i]))
			publish_add(p, batch, i);
	return i - from;
}

/* A block that was not used up stays the caller's; one in the staging area may have moved. */
static void publish_give_back(struct kvp_block_ref *block, const struct batch_item *item)
{
	struct hold *hold = hold_get(block->opaque[0]);

	hold->kind = item->room.kind;
	hold->owner = item->room.owner;
	hold->slot = item->room.slot;
	hold->generation = item->room.generation;
	block->data = room_of(hold).data ? room_of(hold).data : block->data;
	if (item->result == KVP_PUB_GONE)
		block->is_private = 1;
}

static void publish_use_up(struct kvp_block_ref *block)
{
	hold_end(block->opaque[0]);
	block->data = NULL;
}

/* @before: of an earlier round, or 0 */
static uint8_t pub_result(uint8_t before, const struct batch_item *done)
{
	bool stored = done->stored || before == PUB_STORED_AGAIN;

	if (done->again)
		return stored ? PUB_STORED_AGAIN : PUB_AGAIN;
	return done->result == KVP_PUB_EXISTS && stored ? KVP_PUB_STORED : done->result;
}

/* A caller whose block was not taken, and who was told of no error, wants to know why. */
static void publish_say_why(const struct batch_item *done, uint32_t i, int status)
{
	if (done->result != KVP_PUB_REJECTED || status < 0)
		return;
	if (done->again)
		fail_say(
			"items[%u]: what was stored, or was there, or its staging area, was gone each time it was sent",
			i);
	else if (done->no_parent && !kvp_key_is_none(&done->parent))
		fail_say("items[%u]: not admitted: its parent is not in the pool, or not any more", i);
	else
		fail_say(
			"items[%u]: not admitted: the daemon did not have its bytes, or no room for what it notes of it",
			i);
}

static void publish_results(struct publish *p, struct batch *batch, int status)
{
	for (uint32_t i = 0; i < batch->n; i++) {
		struct batch_item *done = &batch->items[i];
		struct kvp_publish_item *item = &p->items[p->where[i]];
		uint8_t *result = &p->results[p->where[i]];

		*result = pub_result(*result, done);
		publish_say_why(done, p->where[i], status);
		if (done->room_kept) {
			publish_give_back(item->block, done);
		} else {
			p->stored++;
			publish_use_up(item->block);
			if (done->spot.map)
				view_fill(item->view, p->ns, &done->spot, KVP_HIT_RAM);
		}
	}
}

/* Send one batch and wait. Return: 0; 1: some are worth another try; -KVP_ETIMEDOUT: used up, the outcome is not
   known. */
static int publish_batch(struct publish *p, struct batch *batch)
{
	struct request *request = batch->request;
	int r;

	batch->request->late = batch_forgotten;
	r = batch_send(batch);
	if (r == 0) {
		count_add(p->ns->client, COUNT_ROUND_TRIPS, 1);
		r = request_wait(&request, after_ms(PUBLISH_MS));
	}
	if (!request) { /* the keeper will settle it, and the batch is no longer ours */
		for (uint32_t i = 0; i < p->n_where; i++) {
			p->results[p->where[i]] = 0;
			publish_use_up(p->items[p->where[i]].block);
		}
		return -KVP_ETIMEDOUT;
	}
	batch_settle(batch, r);
	publish_results(p, batch, r);
	r = 0;
	for (uint32_t i = 0; i < batch->n; i++)
		r = r || batch->items[i].again;
	batch_free(batch);
	return r;
}

/* What was written for a daemon that is gone has somewhere to go, also if that happened in the middle. */
static void publish_make_ready(struct publish *p)
{
	for (uint32_t i = 0; i < p->n; i++) {
		const struct hold *hold = pub_is_open(p->results[i]) ? hold_get(p->items[i].block->opaque[0]) : NULL;
		struct room room;

		if (!hold)
			continue;
		room = room_of(hold);
		if (room_verdict(p, &room) == 0 && stage_is_lost(&room)) {
			stage_ready(p->map);
			return;
		}
	}
}

static int publish_wait(struct publish *p)
{
	int worst = 0;

	for (unsigned round = 0; round < REPEATS; round++) {
		bool again = false;

		publish_make_ready(p);
		for (uint32_t at = 0; at < p->n;) {
			struct batch *batch =
				batch_new(p->map, p->n - at < KVP_WIRE_BATCH_MAX ? p->n - at : KVP_WIRE_BATCH_MAX);
			int r;

			if (!batch)
				return fail(-KVP_ENOMEM, "out of memory");
			at += publish_fill(p, batch, at);
			if (!batch->n) {
				batch_free(batch);
				continue;
			}
			r = publish_batch(p, batch);
			again = again || r > 0;
			worst = r < 0 ? r : worst;
		}
		if (!again || worst < 0)
			break;
	}
	for (uint32_t i = 0; i < p->n; i++)
		if (pub_is_again(p->results[i]))
			p->results[i] = KVP_PUB_REJECTED;
	return worst;
}

static void blocks_abandon(struct kvp_publish_item *items, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		kvp_abandon(items[i].block, 1);
}

static void publish_detached(struct publish *p)
{
	client_detached(p->ns->client);
	for (uint32_t i = 0; i < p->n; i++) {
		struct room room = room_of(hold_get(p->items[i].block->opaque[0]));

		p->results[i] = room_verdict(p, &room);
		if (p->results[i] == KVP_PUB_GONE)
			p->items[i].block->is_private = 1;
	}
}

static int64_t publish_forget(struct publish *p)
{
	int64_t sent = 0;

	for (uint32_t at = 0; at < p->n;) {
		struct batch *batch =
			batch_new(p->map, p->n - at < KVP_WIRE_BATCH_MAX ? p->n - at : KVP_WIRE_BATCH_MAX);

		if (!batch)
			return fail(-KVP_ENOMEM, "out of memory");
		at += publish_fill(p, batch, at);
		for (uint32_t i = 0; i < batch->n; i++)
			publish_use_up(p->items[p->where[i]].block);
		batch->request->done = batch_forgotten;
		sent += batch->n;
		if (batch->n && batch_send(batch) == 0)
			continue;
		sent -= batch->n;
		for (uint32_t i = 0; i < batch->n; i++)
			room_put_back(&batch->items[i].room);
		batch_free(batch);
	}
	blocks_abandon(p->items, p->n); /* those that could not even be sent */
	return sent;
}

int64_t kvp_publish(struct kvp_ns *ns, struct kvp_publish_item *items, uint32_t n, uint8_t *results)
{
	struct publish p = {.ns = ns, .items = items, .n = n};
	uint8_t *memory;
	int64_t r = ns_bad(ns);

	if (r == 0 && n && !items)
		r = fail(-KVP_EINVAL, "items: a null pointer");
	for (uint32_t i = 0; i < n && r == 0; i++)
		r = item_bad(ns, &items[i], i);
	if (r < 0 || !n)
		return r;
	memory = calloc(n, sizeof(*p.where) + 1);
	if (!memory)
		return fail(-KVP_ENOMEM, "out of memory");
	p.where = (uint32_t *)(void *)memory;
	p.results = memory + n * sizeof(*p.where);
	p.map = atomic_load_explicit(&ns->map, memory_order_acquire);
	for (uint32_t i = 0; results && i < n; i++)
		if (items[i].view)
			*items[i].view = (struct kvp_view){.ns = ns};
	if (!p.map && !results)
		blocks_abandon(items, n);
	else if (!p.map)
		publish_detached(&p);
	else
		r = results ? publish_wait(&p) : publish_forget(&p);
	if (results)
		memcpy(results, p.results, n);
	free(memory);
	return r < 0 ? r : results ? p.stored : r;
}
