/*
 * seq_publish.c - full blocks of sequences on their way into the pool
 *
 * Sent in chain order, not waited for: the keeper settles each batch and notes the outcome in the cells, which the
 * sequence reads at its next call.  Batches hold their cells, so a sequence may be closed meanwhile.
 */
#include "seq.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCH_BLOCKS 256u
#define BATCHES_IN_FLIGHT 8u
#define FULL_MS 1000 /* longest wait of a commit when so many are under way */
#define TRIES 3u
#define HEAL_BLOCKS 16u /* private blocks copied into the pool in one commit */
#define HEAL_BYTES (32ull << 20)
#define HEAL_PAUSE_MS 100

struct seq_batch { /* batch->owner */
	struct tally *tally;
	struct cell *cells[BATCH_BLOCKS];
};

/* ---- outcome, by the keeper ---- */

static void cell_settle(struct cell *cell, const struct batch_item *item, struct tally *tally)
{
	enum cell_state state = CELL_REFUSED;

	cell->room = item->room; /* a staging block may have moved: it is read where it lay until seq_sync() */
	if (cell->left.kind == HOLD_NONE)
		cell->left = item->left;
	else
		room_put_back(&item->left);
	if ((item->again || item->no_parent) && ++cell->tries < TRIES) {
		state = CELL_OPEN;
	} else if (item->result == KVP_PUB_STORED || item->result == KVP_PUB_EXISTS) {
		atomic_fetch_add(&tally->published, 1);
		cell->spot = item->spot;
		state = item->spot.map && item->room_kept ? CELL_ELSEWHERE : CELL_STORED;
		if (!item->room_kept)
			cell->room.kind = HOLD_NONE;
	}
	atomic_store_explicit(&cell->state, state, memory_order_release);
}

static void seq_batch_free(struct batch *batch)
{
	struct seq_batch *own = batch->owner;

	for (uint32_t i = 0; i < batch->n; i++)
		cell_drop(own->cells[i]);
	tally_drop(own->tally);
	free(own);
	batch_free(batch);
}

static void seq_batch_done(struct request *request)
{
	struct batch *batch = request->owner;
	struct seq_batch *own = batch->owner;
	struct kvp_client *client = request->client;

	batch_settle(batch, request->status);
	for (uint32_t i = 0; i < batch->n; i++)
		cell_settle(own->cells[i], &batch->items[i], own->tally);
	atomic_fetch_sub(&own->tally->in_flight, 1);
	seq_batch_free(batch);
	pthread_mutex_lock(&client->lock);
	pthread_cond_broadcast(&client->changed);
	pthread_mutex_unlock(&client->lock);
}

/* ---- sending ---- */

static struct batch *seq_batch_new(struct kvp_seq *seq)
{
	struct batch *batch = batch_new(seq->map, BATCH_BLOCKS);
	struct seq_batch *own = batch ? calloc(1, sizeof(*own)) : NULL;

	if (!own) {
		batch_free(batch);
		return NULL;
	}
	own->tally = seq->tally;
	atomic_fetch_add(&seq->tally->refs, 1);
	batch->owner = own;
	batch->keep_rooms = true; /* the engine may be reading them */
	batch->request->done = seq_batch_done;
	return batch;
}

static void wait_for_flight(struct kvp_seq *seq)
{
	struct kvp_client *client = seq->ns->client;
	uint64_t until = after_ms(FULL_MS);
	struct timespec t = timespec_of(until);

	pthread_mutex_lock(&client->lock);
	while (atomic_load(&seq->tally->in_flight) >= BATCHES_IN_FLIGHT && client->online &&
		pthread_cond_timedwait(&client->changed, &client->lock, &t) == 0)
		;
	pthread_mutex_unlock(&client->lock);
}

/* Return: false: not sent, its cells are open again. */
static bool seq_batch_send(struct kvp_seq *seq, struct batch *batch)
{
	struct seq_batch *own = batch->owner;

	wait_for_flight(seq);
	if (atomic_load(&seq->tally->in_flight) < BATCHES_IN_FLIGHT) {
		atomic_fetch_add(&seq->tally->in_flight, 1);
		if (batch_send(batch) == 0)
			return true;
		atomic_fetch_sub(&seq->tally->in_flight, 1);
	}
	for (uint32_t i = 0; i < batch->n; i++) {
		if (batch->items[i].left.kind != HOLD_NONE)
			room_put_back(&batch->items[i].room); /* the cell has the one it was copied from */
		atomic_store_explicit(&own->cells[i]->state, CELL_OPEN, memory_order_release);
	}
	seq_batch_free(batch);
	return false;
}

/* Of which namespace mapping is it? NULL: private memory. */
static const struct ns_map *cell_home(const struct cell *cell)
{
	if (cell->spot.map)
		return cell->spot.map;
	return cell->room.kind == HOLD_GRANT	? cell->room.owner
	       : cell->room.kind == HOLD_STAGED ? ((struct stage *)cell->room.owner)->map
						: NULL;
}

static bool cell_is_at_home(const struct kvp_seq *seq, const struct cell *cell)
{
	const struct ns_map *home = cell_home(cell);

	return home && (home == seq->map || home == seq->map->base);
}

/* A block that was made while there was no room or no daemon, or for one that is gone: copied into the pool, once that
 * has room again. */
static bool seq_heal(struct kvp_seq *seq, uint64_t b, uint32_t *healed)
{
	struct kvp_ns *ns = seq->ns;
	struct room room;
	struct cell *cell;

	if (*healed >= HEAL_BLOCKS || *healed * ns->block_bytes >= HEAL_BYTES || now_ns() < seq->heal_after_ns)
		return false;
	if (room_take(ns, 1, false, 0, &room) < 1) {
		seq->heal_after_ns = after_ms(HEAL_PAUSE_MS);
		return false;
	}
	cell = cell_new(&room);
	if (!cell)
		return false;
	memcpy(room.data, cell_data(seq->cells[b]), ns->block_bytes);
	count_add(ns->client, COUNT_COPIED_BYTES, ns->block_bytes);
	seq->copied_bytes += ns->block_bytes;
	seq->lost += cell_drop(seq->cells[b]);
	seq->cells[b] = cell;
	++*healed;
	return true;
}

/* Put an open block into the batch. Return: false: stop here. */
static bool seq_batch_add(struct kvp_seq *seq, struct batch *batch, uint64_t b, uint32_t *healed)
{
	static const struct kvp_key none;
	struct seq_batch *own = batch->owner;
	struct cell *cell = seq->cells[b];
	struct batch_item *added = NULL;
	uint32_t open = CELL_OPEN;

	if (!atomic_compare_exchange_strong(&cell->state, &open, CELL_SENT))
		return true; /* a fork of this sequence was faster: what is in the cell is the keeper's */
	if (cell->is_private || stage_is_lost(&cell->room)) {
		atomic_store_explicit(&cell->state, CELL_OPEN, memory_order_release);
		if (!seq_heal(seq, b, healed))
			return false;
		cell = seq->cells[b]; /* nobody else has this one */
		atomic_store_explicit(&cell->state, CELL_SENT, memory_order_relaxed);
	}
	if (cell_is_at_home(seq, cell))
		added = batch_add(batch, &cell->room, &seq->keys[b], b && !seq->summaries ? &seq->keys[b - 1] : &none,
			seq->map->block_tokens, seq->ns->block_bytes);
	if (!added) {
		atomic_store_explicit(&cell->state, CELL_REFUSED, memory_order_release);
		seq->broken = true;
		return false;
	}
	added->want_spot = true;
	atomic_fetch_add(&cell->refs, 1);
	own->cells[batch->n - 1] = cell;
	return true;
}

/* Return: true: go on with the next block. */
static bool seq_publish_block(struct kvp_seq *seq, struct batch *batch, uint64_t b, uint32_t *healed)
{
	const struct cell *cell = seq->cells[b];

	if (!cell)
		return true;
	switch (cell_state(cell)) {
	case CELL_OPEN:
		return seq_batch_add(seq, batch, b, healed);
	case CELL_SENT:
	case CELL_AWAY:
		return true;
	case CELL_REFUSED:
		seq->broken = true;
		return false;
	default:
		seq->broken = !cell_is_at_home(seq, cell); /* of a pool that is no more */
		return !seq->broken;
	}
}

static void seq_settle(struct kvp_seq *seq, uint64_t n_full)
{
	while (seq->n_settled < n_full) {
		const struct cell *cell = seq->cells[seq->n_settled];

		if (cell && cell_state(cell) != CELL_STORED && cell_state(cell) != CELL_AWAY)
			break;
		seq->n_settled++;
	}
}

void seq_publish(struct kvp_seq *seq)
{
	struct ns_map *map = atomic_load_explicit(&seq->ns->map, memory_order_acquire);
	uint64_t n_full = seq->committed / seq->ns->join.desc.block_tokens, b;
	struct batch *batch = NULL;
	uint32_t healed = 0;

	if (!map || seq->broken || (map->flags | seq->ns->flags) & KVP_NS_READONLY)
		return;
	if (map != seq->map) {
		seq->map = map;
		seq->n_settled = 0;
	}
	if (seq_keys(seq, n_full) < 0)
		return;
	seq_settle(seq, n_full);
	for (b = seq->n_settled; b < n_full;) {
		if (!batch)
			batch = seq_batch_new(seq);
		if (!batch || !seq_publish_block(seq, batch, b, &healed))
			break;
		b++;
		if (batch->n == BATCH_BLOCKS) {
			bool sent = seq_batch_send(seq, batch);

			batch = NULL;
			if (!sent)
				break;
		}
	}
	if (batch && batch->n)
		seq_batch_send(seq, batch);
	else if (batch)
		seq_batch_free(batch);
}
