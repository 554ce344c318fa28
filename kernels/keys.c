/*
 * keys.c - from a block table to splits and runs of keys
 *
 * Without block_pos a key's position is its index, and splits are plain arithmetic.  With it the blocks are walked
 * once: a new split begins wherever the position leaves the old one's range or does not rise.  Arithmetic only, any
 * thread.
 */
#include "keys.h"

#include <errno.h>

/* Walks the blocks of a table with positions; yields the pieces that do not cross a split's border. */
struct walk {
	const struct attn_call *call;
	const struct kvattn_table *table;
	uint64_t key; /* next */
	int64_t split_pos, last_pos; /* of the split being walked; -1: none yet */
};

struct piece {
	uint64_t key;
	uint32_t n;
	int64_t pos;
	bool opens; /* the first one of a split */
};

static bool walk_next(struct walk *w, struct piece *piece)
{
	const uint64_t block_tokens = w->call->geom.block_tokens, token = w->key % block_tokens;
	uint64_t n = block_tokens - token;
	int64_t pos, split_pos;

	if (w->key >= w->table->n_tokens)
		return false;
	if (n > w->table->n_tokens - w->key)
		n = w->table->n_tokens - w->key;
	pos = (int64_t)(w->table->block_pos[w->key / block_tokens] + token);
	split_pos = pos / ATTN_SPLIT * ATTN_SPLIT;
	if (n > (uint64_t)(split_pos + ATTN_SPLIT - pos))
		n = (uint64_t)(split_pos + ATTN_SPLIT - pos);
	*piece = (struct piece){w->key, (uint32_t)n, pos, split_pos != w->split_pos || pos <= w->last_pos};
	w->split_pos = split_pos;
	w->last_pos = pos + (int64_t)n - 1;
	w->key += n;
	return true;
}

int64_t keys_split_count(const struct attn_call *call, const struct kvattn_table *table)
{
	const uint64_t n_blocks = (table->n_tokens + call->geom.block_tokens - 1) / call->geom.block_tokens;
	struct walk walk = {call, table, 0, -1, -1};
	struct piece piece;
	int64_t count = 0;

	if (!table->block_pos)
		return (int64_t)((table->n_tokens + ATTN_SPLIT - 1) / ATTN_SPLIT);
	for (uint64_t b = 0; b < n_blocks; b++)
		if (table->block_pos[b] >= KVATTN_TOKENS_MAX)
			return -EINVAL;
	while (walk_next(&walk, &piece))
		count += piece.opens;
	return count;
}

void keys_splits(const struct attn_call *call, const struct kvattn_table *table, struct attn_split *splits)
{
	struct walk walk = {call, table, 0, -1, -1};
	struct piece piece;

	splits--; /* the first piece opens a split */
	while (walk_next(&walk, &piece)) {
		if (piece.opens)
			*++splits = (struct attn_split){piece.key, 0, piece.pos / ATTN_SPLIT * ATTN_SPLIT};
		splits->n_keys += piece.n;
	}
}

struct attn_split keys_split_at(const struct attn_seq *seq, uint64_t i)
{
	const uint64_t key = i * ATTN_SPLIT, left = seq->s->table.n_tokens - key;

	if (seq->splits)
		return seq->splits[i];
	return (struct attn_split){key, left < ATTN_SPLIT ? (uint32_t)left : ATTN_SPLIT, (int64_t)key};
}

uint32_t keys_runs(const struct attn_call *call, const struct kvattn_table *table, const struct attn_split *split,
	struct attn_run *runs)
{
	const uint32_t block_tokens = call->geom.block_tokens;
	uint64_t block = split->key / block_tokens;
	uint32_t token = (uint32_t)(split->key % block_tokens), left = split->n_keys, n_runs = 0;
	int64_t pos = (int64_t)split->key;

	for (; left; block++, token = 0) {
		const uint32_t n = left < block_tokens - token ? left : block_tokens - token;

		if (table->block_pos)
			pos = (int64_t)(table->block_pos[block] + token);
		runs[n_runs++] =
			(struct attn_run){table->blocks[block], pos, split->key + split->n_keys - left, token, n};
		pos += n;
		left -= n;
	}
	return n_runs;
}

int64_t keys_last_pos(const struct attn_call *call, const struct kvattn_table *table)
{
	const uint64_t last = table->n_tokens - 1;

	if (!table->n_tokens)
		return -1;
	if (!table->block_pos)
		return (int64_t)last;
	return (int64_t)(table->block_pos[last / call->geom.block_tokens] + last % call->geom.block_tokens);
}
