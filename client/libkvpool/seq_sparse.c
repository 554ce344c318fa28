/*
 * seq_sparse.c - sequences of which only some blocks are at hand: summaries of all, and the blocks that were selected
 *
 * A block's summary is made of its stored K before it is published, and lies in a block of another namespace
 * (derived.c) that the sequence holds for as long as it has the block.  The block itself may go: it is let go of
 * (CELL_AWAY) when more than resident_blocks are held, and pinned, from the spill store if need be, when it is selected
 * again.  Blocks of such a sequence are published without a parent: any may be used without the ones before, so each
 * goes by its own age.
 */
#include "seq.h"

#include <stdlib.h>
#include <string.h>

#include "kvattn.h"

#define SUMMARY_MS 250 /* longest wait for room for summaries; then private memory */
#define HEAL_SUMMARIES 64u /* copied into the pool in one commit */
#define HEAL_PAUSE_MS 100

/* ---- summaries ---- */

static const char *summary_data(const struct seq_summary *summary)
{
	return summary->view.data ? summary->view.data : summary->block.data;
}

static void summary_drop(struct kvp_seq *seq, struct seq_summary *summary)
{
	seq->lost += (uint32_t)kvp_release(&summary->view, 1);
	kvp_abandon(&summary->block, 1);
}

void seq_drop_summaries(struct kvp_seq *seq, uint64_t from)
{
	while (seq->n_summaries > from)
		summary_drop(seq, &seq->summary[--seq->n_summaries]);
	if (seq->n_healed > from)
		seq->n_healed = from;
}

static int summary_fill(const struct kvp_seq *seq, uint64_t b, char *to)
{
	const struct kvp_desc *desc = &seq->ns->join.desc;

	for (uint32_t layer = 0; layer < desc->n_layers; layer++) {
		struct kvattn_geom geom;
		int r = kvp_attn_geom(seq->ns, layer, &geom);

		if (r == 0)
			r = seq->kernels.summarise(&geom, cell_data(seq->cells[b]), desc->block_tokens,
				(float *)(void *)(to + summary_off(desc, layer)));
		if (r < 0)
			return fail(-KVP_ENOTSUP, "layer %u: the kernels do not summarise it: %s", layer, strerror(-r));
	}
	return 0;
}

/* What is not stored (no daemon, no room) is read from the block that was to be published. */
static void summaries_publish(struct kvp_seq *seq, uint64_t first, uint32_t n)
{
	struct kvp_publish_item *items = calloc(n, sizeof(*items));
	uint8_t *results = calloc(n, 1);

	for (uint32_t i = 0; items && results && i < n; i++) {
		struct seq_summary *summary = &seq->summary[first + i];

		items[i] = (struct kvp_publish_item){.block = &summary->block,
			.used_tokens = seq->ns->join.desc.block_tokens,
			.view = &summary->view};
		kvp_key_derived(seq->summaries, &seq->keys[first + i], &items[i].key);
	}
	if (items && results)
		kvp_publish(seq->summaries, items, n, results);
	free(items);
	free(results);
}

/* Those that were made while there was no room or no daemon: copied into the pool, once that has room again. */
static void summaries_heal(struct kvp_seq *seq)
{
	uint32_t healed = 0;

	for (; seq->n_healed < seq->n_summaries && healed < HEAL_SUMMARIES; seq->n_healed++) {
		struct seq_summary *summary = &seq->summary[seq->n_healed];
		struct kvp_block_ref block;

		if (summary->view.data)
			continue;
		if (now_ns() < seq->heal_summaries_after_ns)
			return;
		if (kvp_reserve(seq->summaries, 1, 0, 0, &block) != 1) {
			seq->heal_summaries_after_ns = after_ms(HEAL_PAUSE_MS);
			return;
		}
		memcpy(block.data, summary->block.data, seq->summaries->block_bytes);
		kvp_abandon(&summary->block, 1);
		summary->block = block;
		summaries_publish(seq, seq->n_healed, 1);
		if (!summary->view.data) {
			seq->heal_summaries_after_ns = after_ms(HEAL_PAUSE_MS);
			return;
		}
		healed++;
	}
}

uint64_t seq_private_summaries(const struct kvp_seq *seq)
{
	uint64_t n = 0;

	for (uint64_t b = seq->n_healed; b < seq->n_summaries; b++)
		n += !seq->summary[b].view.data;
	return n;
}

int seq_summarise(struct kvp_seq *seq)
{
	uint64_t n_full = seq->committed / seq->ns->join.desc.block_tokens, first = seq->n_summaries;
	int r = seq->summaries ? seq_keys(seq, n_full) : 0;

	if (!seq->summaries || r < 0)
		return r;
	r = array_grow((void **)&seq->summary, &seq->summaries_room, n_full, sizeof(*seq->summary));
	for (; r == 0 && seq->n_summaries < n_full; seq->n_summaries++) {
		struct seq_summary *summary = &seq->summary[seq->n_summaries];
		int64_t got;

		memset(summary, 0, sizeof(*summary));
		got = kvp_reserve(seq->summaries, 1, KVP_PRIVATE, after_ms(SUMMARY_MS), &summary->block);
		r = got < 0 ? (int)got : summary_fill(seq, seq->n_summaries, summary->block.data);
		if (r < 0)
			kvp_abandon(&summary->block, 1);
		if (r < 0)
			break;
	}
	summaries_heal(seq);
	if (seq->n_summaries > first)
		summaries_publish(seq, first, (uint32_t)(seq->n_summaries - first));
	return r;
}

int64_t kvp_seq_summaries(const struct kvp_seq *seq, uint32_t layer, const float **summaries)
{
	int r = seq_bad(seq);

	if (r < 0)
		return r;
	if (!seq->summaries || layer >= seq->ns->join.desc.n_layers)
		return fail(-KVP_EINVAL, "layer: %u, or the sequence was opened without summaries", layer);
	for (uint64_t b = 0; summaries && b < seq->n_summaries; b++)
		summaries[b] = (const float *)(const void *)(summary_data(&seq->summary[b]) +
							     summary_off(&seq->ns->join.desc, layer));
	return (int64_t)seq->n_summaries;
}

/* ---- blocks come and go ---- */

static bool cell_may_go(const struct cell *cell)
{
	return cell && cell_state(cell) == CELL_STORED && cell->spot.map && atomic_load(&cell->refs) == 1;
}

static void cell_let_go(struct kvp_seq *seq, struct cell *cell)
{
	seq->lost += spot_unpin(cell->spot.map, cell->spot.slot, cell->spot.generation);
	cell->spot = (struct spot){0};
	cell->data = NULL;
	atomic_store_explicit(&cell->state, CELL_AWAY, memory_order_release);
}

/* Least recently selected first, until at most @most are held; what was selected since @since stays. */
static void seq_let_cool(struct kvp_seq *seq, uint64_t most, uint64_t since)
{
	uint64_t held = 0;

	for (uint64_t b = 0; b < seq->n_cells; b++)
		held += cell_may_go(seq->cells[b]);
	while (held > most) {
		struct cell *oldest = NULL;

		for (uint64_t b = 0; b < seq->n_cells; b++) {
			struct cell *cell = seq->cells[b];

			if (cell_may_go(cell) && cell->used < since && (!oldest || cell->used < oldest->used))
				oldest = cell;
		}
		if (!oldest)
			return;
		cell_let_go(seq, oldest);
		held--;
	}
}

void seq_cool(struct kvp_seq *seq)
{
	if (seq->resident)
		seq_let_cool(seq, seq->resident, UINT64_MAX);
}

/* Pin these, all of them away. Return: of them from the spill store; -KVP_ESTALE; -KVP_ETIMEDOUT. */
static int64_t seq_bring(struct kvp_seq *seq, const uint64_t *away, uint32_t n, uint64_t deadline_ns)
{
	struct kvp_key *keys = calloc(n, sizeof(*keys));
	struct kvp_view *views = calloc(n, sizeof(*views));
	int64_t got = keys && views ? 0 : fail(-KVP_ENOMEM, "out of memory"), restored = 0;

	for (uint32_t i = 0; got == 0 && i < n; i++)
		keys[i] = seq->keys[away[i]];
	if (got == 0)
		got = kvp_acquire(seq->ns, keys, n, 0, deadline_ns, views);
	for (int64_t i = 0; i < got; i++) {
		restored += views[i].hit == KVP_HIT_SPILL;
		cell_take_view(seq->cells[away[i]], &views[i]);
		seq->cells[away[i]]->used = seq->tick;
	}
	seq->restored += (uint64_t)restored;
	if (got >= 0 && got < n)
		got = views[got].hit == KVP_MISS
			      ? fail(-KVP_ESTALE, "block %llu of the sequence is in the pool no more: compute it again",
					(unsigned long long)away[got])
			      : fail(-KVP_ETIMEDOUT, "block %llu of the sequence did not come back by the deadline",
					(unsigned long long)away[got]);
	free(keys);
	free(views);
	return got < 0 ? got : restored;
}

static int select_bad(const struct kvp_seq *seq, const uint64_t *blocks, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (blocks[i] >= seq->n_cells || (i && blocks[i] <= blocks[i - 1]))
			return fail(-KVP_EINVAL, "blocks[%llu]: %llu of %llu, ascending", (unsigned long long)i,
				(unsigned long long)blocks[i], (unsigned long long)seq->n_cells);
	return 0;
}

/* Mark the selected ones as used, gather those that are away. Return: how many are. */
static uint32_t select_mark(struct kvp_seq *seq, const uint64_t *blocks, uint64_t n, uint64_t *away)
{
	uint32_t n_away = 0;

	seq->tick++;
	for (uint64_t i = 0; i < n; i++) {
		struct cell *cell = seq->cells[blocks[i]];

		cell->used = seq->tick;
		if (cell_state(cell) == CELL_AWAY)
			away[n_away++] = blocks[i];
	}
	return n_away;
}

int64_t kvp_seq_select(
	struct kvp_seq *seq, const uint64_t *blocks, uint64_t n, uint64_t deadline_ns, struct kvattn_table *table)
{
	int64_t r = seq_bad(seq);
	uint64_t *away;
	uint32_t n_away;

	if (r == 0 && (!seq->summaries || !table || (n && !blocks) || n > UINT32_MAX))
		r = fail(-KVP_EINVAL, "blocks and table: a null pointer, or the sequence was opened without summaries");
	if (r == 0)
		r = select_bad(seq, blocks, n);
	if (r < 0)
		return r;
	seq_sync(seq);
	away = calloc(n + 1, sizeof(*away));
	if (!away)
		return fail(-KVP_ENOMEM, "out of memory");
	n_away = select_mark(seq, blocks, n, away);
	if (seq->resident)
		seq_let_cool(seq, seq->resident > n_away ? seq->resident - n_away : 0, seq->tick);
	if (n_away)
		r = seq_bring(seq, away, n_away, deadline_ns);
	free(away);
	if (r >= 0) {
		int bad = seq_table_of(seq, blocks, n, table);

		r = bad < 0 ? bad : r;
	}
	return r;
}

/* ---- match ---- */

int64_t seq_match_sparse(struct kvp_seq *seq, uint64_t n_blocks, uint64_t deadline_ns)
{
	struct kvp_view *views = calloc(n_blocks, sizeof(*views));
	struct kvp_key *keys = calloc(n_blocks, sizeof(*keys));
	int64_t got = views && keys ? 0 : fail(-KVP_ENOMEM, "out of memory"), there = 0;

	for (uint64_t b = 0; got == 0 && b < n_blocks; b++)
		got = kvp_key_derived(seq->summaries, &seq->keys[b], &keys[b]);
	if (got == 0)
		got = kvp_acquire(seq->summaries, keys, (uint32_t)n_blocks, 0, deadline_ns, views);
	if (got > 0)
		there = kvp_match(&(struct kvp_match_part){.ns = seq->ns, .keys = seq->keys}, 1, (uint32_t)got,
			KVP_MATCH_TOUCH, NULL);
	if (got > 0 && there > 0 &&
		array_grow((void **)&seq->cells, &seq->cells_room, n_blocks, sizeof(*seq->cells)) == 0 &&
		array_grow((void **)&seq->summary, &seq->summaries_room, n_blocks, sizeof(*seq->summary)) == 0)
		for (int64_t b = 0; b < there; b++) {
			struct cell *cell = cell_away();

			if (!cell)
				break;
			seq->cells[seq->n_cells++] = cell;
			seq->summary[seq->n_summaries++] = (struct seq_summary){.view = views[b]};
			views[b].data = NULL; /* the sequence's now */
		}
	if (views && got > 0)
		kvp_release(views, (uint32_t)got);
	free(views);
	free(keys);
	seq->n_tokens = seq->committed = seq->n_cells * seq->ns->join.desc.block_tokens;
	seq->reused_ram += seq->n_tokens; /* where each of them is shows when it is selected */
	return got < 0 ? got : (int64_t)seq->n_tokens;
}
