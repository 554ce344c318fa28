/*
 * attn.h - what the files of libkvattn share: a checked call, the order of keys, the state of a row
 *
 * Order of keys.  What makes results independent of chunking, batch and block size is that a key's place in the
 * arithmetic is a function of its position alone: positions are cut into splits of ATTN_SPLIT, a split is worked off in
 * tiles of ATTN_TILE positions, and the results of the splits are folded together in order.  Positions without a
 * visible key leave no trace.  Whoever changes a border or an order of sums changes bits for everybody, but never
 * between two rows.
 */
#ifndef KVATTN_ATTN_H
#define KVATTN_ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvattn.h>

#define ATTN_SPLIT 1024u
#define ATTN_TILE 64u
#define ATTN_ALIGN 64u
#define ATTN_PAD_FLOATS 16u /* sums of a row are padded to this */

/* The arguments of one kvattn_attend(), checked, defaults filled in. */
struct attn_call {
	struct kvattn_geom geom;
	struct kvattn_opts opts;
	uint32_t group; /* query heads of a KV head */
	uint32_t acc_floats; /* dim_v, padded */
	int64_t window; /* 0: none; at most KVATTN_TOKENS_MAX */
	int64_t sink_tokens;
	uint32_t ahead_bytes; /* of a stream that are prefetched: see tune.h */
};

/* Consecutive keys of the table whose positions rise within one split. */
struct attn_split {
	uint64_t key; /* the first one's index in the table */
	uint32_t n_keys;
	int64_t pos; /* where the split begins: a multiple of ATTN_SPLIT, at or before the first key's position */
};

struct attn_seq {
	const struct kvattn_seq *s;
	uint64_t q_stride, out_stride;
	int64_t pos0; /* of query row 0; negative where there are more rows than keys */
	float scale;
	float *lse; /* the caller's, or where mass is wanted one of our own; NULL: nobody asks */
	uint64_t mass_stride;
	uint64_t n_splits;
	const struct attn_split *splits; /* NULL: positions are indices, see attn_split_at() */
};

/* Keys side by side in one block, with consecutive positions. */
struct attn_run {
	const char *block;
	int64_t pos;
	uint64_t key; /* the first one's index in the table */
	uint32_t token; /* the first one's place in the block */
	uint32_t n;
};

/* Rows of one sequence that are worked on together: row (h * n_q + q) * group + g is query q0 + q, head g of KV head
 * head0 + h */
struct attn_rows {
	uint64_t q0;
	uint32_t n_q;
	uint32_t head0;
	uint32_t n_heads;
};

/* Softmax so far: m the largest score (-INFINITY: no key yet), l = sum exp(z - m), acc = sum exp(z - m) v */
struct attn_state {
	float *acc; /* [rows][acc_floats] */
	float *m;
	float *l;
};

struct attn_part {
	const struct attn_call *call;
	const struct attn_seq *seq;
	/* Sequences that have the split's keys in common, of @each queries in turn; NULL: that one alone.  TILED only,
	 * all of one scale, q0 = 0. */
	const struct attn_seq *const *joined;
	uint32_t each;
	struct attn_rows rows;
	struct attn_split split;
	const struct attn_run *runs; /* of the split, in order */
	uint32_t n_runs;
	struct attn_state state; /* written: result over the split; unless weighs */
	bool weighs; /* only adds to the sequence's mass; its lse is known */
	void *scratch; /* isa->scratch_bytes() of them, ATTN_ALIGN */
};

/* One instruction set. */
struct attn_isa {
	const char *name;
	bool joins; /* takes parts with several sequences */
	size_t (*scratch_bytes)(const struct attn_call *call, uint32_t rows, uint32_t rows_per_head);
	void (*part)(const struct attn_part *part);
	/* @n elements of @type from and to f32 */
	void (*store)(uint32_t type, void *to, const float *from, size_t n);
	void (*load)(uint32_t type, float *to, const void *from, size_t n);
};

extern const struct attn_isa attn_isa_scalar;
extern const struct attn_isa attn_isa_avx2;
extern const struct attn_isa attn_isa_avx512;
extern const struct attn_isa attn_isa_avx512vnni;
extern const struct attn_isa attn_isa_avx512amx;
extern const struct attn_isa attn_isa_neon;

static inline uint32_t attn_row_count(const struct attn_call *call, const struct attn_rows *rows)
{
	return rows->n_heads * rows->n_q * call->group;
}

/* Whose query @q of the part's rows is. */
static inline const struct attn_seq *attn_part_seq(const struct attn_part *part, uint32_t q)
{
	return part->joined ? part->joined[q / part->each] : part->seq;
}

/* Its row in that sequence. */
static inline uint64_t attn_part_row(const struct attn_part *part, uint32_t q)
{
	return part->joined ? q % part->each : part->rows.q0 + q;
}

/* The log-sum of row @q of the rows, query head @q_head. */
static inline float attn_row_lse(const struct attn_part *part, uint32_t q, uint32_t q_head)
{
	return part->seq->lse[(part->rows.q0 + q) * part->call->opts.n_q_heads + q_head];
}

static inline size_t attn_round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

static inline uint64_t attn_low_bits(int64_t n)
{
	return n <= 0 ? 0 : n >= 64 ? UINT64_MAX : (1ull << n) - 1;
}

/* Which of the positions @pos .. @pos + 63 row @r's place in the tree shows: all but those of rows it does not descend from. */
static inline uint64_t attn_tree_seen(const struct attn_seq *seq, int64_t r, int64_t pos)
{
	const int64_t first = pos - seq->pos0, n_q = (int64_t)seq->s->n_q, n_words = (n_q + 63) / 64;
	const uint64_t *words = seq->s->tree + r * n_words;
	uint64_t seen;

	if (first <= -64 || first >= n_q)
		return UINT64_MAX;
	if (first < 0)
		return attn_low_bits(-first) | words[0] << -first | ~attn_low_bits(n_q - first);
	seen = words[first / 64] >> first % 64;
	if (first % 64 && first / 64 + 1 < n_words)
		seen |= words[first / 64 + 1] << (64 - first % 64);
	return seen | ~attn_low_bits(n_q - first);
}

/* Which of the positions @pos .. @pos + 63 the row at position @p may see. */
static inline uint64_t attn_seen(const struct attn_call *call, const struct attn_seq *seq, int64_t p, int64_t pos)
{
	uint64_t seen = UINT64_MAX;

	if (call->window)
		seen = ~attn_low_bits(p - call->window + 1 - pos) | attn_low_bits(call->sink_tokens - pos);
	if (seq->s->causal)
		seen &= attn_low_bits(p - pos + 1);
	if (seq->s->tree)
		seen &= attn_tree_seen(seq, p - seq->pos0, pos);
	return seen;
}

#endif
