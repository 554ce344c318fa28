/*
 * seq_model.h - what a sequence must hold, in plain arrays
 *
 * Every row holds a number that follows from the tokens up to its position, as K and V do, and from layer, K or V, head
 * and dimension; whatever is done to a sequence, its block table must lead to the rows the model says.
 */
#ifndef KVPOOL_TEST_SEQ_MODEL_H
#define KVPOOL_TEST_SEQ_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvattn.h"
#include "kvpool.h"

#define LAYERS 2
#define HEADS 2
#define DIM 4
#define SEQS 5
#define TOKENS_MAX 600

struct world {
	struct kvp_client *client;
	struct kvp_ns *ns;
	uint32_t block_tokens;
	uint32_t alphabet; /* few different tokens: sequences meet in the pool */
	uint64_t *matched; /* tokens found so far */
};

/* What a sequence must hold. */
struct model {
	struct kvp_seq *seq;
	uint64_t n, committed;
	uint32_t tokens[TOKENS_MAX];
	uint32_t window, sinks;
	uint64_t seen_from; /* nothing before is promised, but for the sinks */
};

static uint64_t random_state;
static bool tiled; /* the worlds' layout; else rows */
static struct kvattn_geom geoms[LAYERS];

static inline uint32_t random_below(uint32_t n)
{
	uint64_t x = random_state += 0x9e3779b97f4a7c15ull; /* splitmix64 */

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return (uint32_t)((x ^ x >> 31) % n);
}

static inline struct world given_world(const char *socket, uint32_t block_tokens, uint32_t layout, uint32_t ns_flags)
{
	struct kvp_open_opts opts = {.size = sizeof(opts),
		.socket = socket,
		.connect_timeout_ms = 5000,
		.flags = socket ? 0 : KVP_OPEN_OFFLINE};
	struct world w = {
		.block_tokens = block_tokens, .alphabet = socket ? 2 : 1000, .matched = calloc(1, sizeof(uint64_t))};
	struct kvp_desc desc;
	struct kvp_ns_opts ns_opts = {
		.size = sizeof(ns_opts), .flags = ns_flags, .name = "seq", .owner_uid = KVP_UID_SELF, .desc = &desc};

	kvp_desc_init(&desc, layout, block_tokens, LAYERS, HEADS, DIM, KVP_TYPE_F32);
	assert_int_equal(kvp_open(&opts, &w.client), 0);
	assert_int_equal(kvp_ns_open(w.client, &ns_opts, &w.ns), 0);
	tiled = layout == KVP_LAYOUT_TILED;
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		assert_int_equal(kvp_attn_geom(w.ns, layer, &geoms[layer]), 0);
	return w;
}

static inline void done_with(struct world *w)
{
	kvp_ns_close(w->ns);
	kvp_close(w->client);
	free(w->matched);
}

/* What stands in a row: exact in a float. */
static inline uint32_t prefix_number(const uint32_t *tokens, uint64_t pos)
{
	uint64_t hash = 14695981039346656037ull; /* FNV-1a */

	for (uint64_t i = 0; i <= pos; i++)
		hash = (hash ^ tokens[i]) * 1099511628211ull;
	return (uint32_t)(hash >> 40 & 0xffff);
}

static inline float row_value(uint32_t number, uint32_t layer, int which, uint32_t head, uint32_t d)
{
	return (float)(number * 64 + ((layer * 2 + (uint32_t)which) * HEADS + head) * DIM + d);
}

typedef float model_rows[2][HEADS][DIM]; /* K and V of a token in a layer */

static inline void fill_rows(model_rows rows, const struct model *m, uint32_t layer, uint64_t pos)
{
	uint32_t number = prefix_number(m->tokens, pos);

	for (int which = KVP_K; which <= KVP_V; which++)
		for (uint32_t head = 0; head < HEADS; head++)
			for (uint32_t d = 0; d < DIM; d++)
				rows[which][head][d] = row_value(number, layer, which, head, d);
}

static inline void store_tiled(struct model *m, uint64_t pos)
{
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		model_rows rows;
		uint32_t index;
		void *block = kvp_seq_block(m->seq, pos, &index);

		assert_non_null(block);
		assert_null(kvp_seq_row(m->seq, layer, KVP_K, 0, pos));
		fill_rows(rows, m, layer, pos);
		assert_int_equal(kvattn_put(&geoms[layer], block, index, 1, rows[KVP_K][0], 0, rows[KVP_V][0], 0), 0);
	}
}

static inline void check_tiled(const struct model *m, const char *block, uint32_t index, uint64_t pos)
{
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		model_rows want, have;

		fill_rows(want, m, layer, pos);
		assert_int_equal(kvattn_get(&geoms[layer], block, index, 1, have[KVP_K][0], 0, have[KVP_V][0], 0), 0);
		if (memcmp(want, have, sizeof(want)) != 0)
			fail_msg("token %u of layer %u is not what was stored", (unsigned)pos, layer);
	}
}

static inline void store_rows(struct model *m, uint64_t pos)
{
	uint32_t number = prefix_number(m->tokens, pos);

	if (tiled) {
		store_tiled(m, pos);
		return;
	}

	for (uint32_t layer = 0; layer < LAYERS; layer++)
		for (int which = KVP_K; which <= KVP_V; which++)
			for (uint32_t head = 0; head < HEADS; head++) {
				float *row = kvp_seq_row(m->seq, layer, (enum kvp_kv)which, head, pos);

				assert_non_null(row);
				for (uint32_t d = 0; d < DIM; d++)
					row[d] = row_value(number, layer, which, head, d);
			}
}

static inline void check_row(
	const struct world *w, const struct model *m, const char *block, uint32_t index, uint64_t pos)
{
	uint32_t number = prefix_number(m->tokens, pos);

	if (tiled) {
		check_tiled(m, block, index, pos);
		return;
	}

	for (uint32_t layer = 0; layer < LAYERS; layer++)
		for (int which = KVP_K; which <= KVP_V; which++)
			for (uint32_t head = 0; head < HEADS; head++) {
				uint64_t off, token_stride, head_stride;
				const float *row;

				kvp_geom(w->ns, layer, (enum kvp_kv)which, &off, &token_stride, &head_stride, NULL);
				row = (const float *)(const void *)(block + off + index * token_stride +
								    head * head_stride);
				for (uint32_t d = 0; d < DIM; d++)
					if (row[d] != row_value(number, layer, which, head, d))
						fail_msg("token %u: %f, not %f", (unsigned)pos, (double)row[d],
							(double)row_value(number, layer, which, head, d));
			}
}

static inline void check_gap(const struct model *m, uint64_t from, uint64_t to)
{
	for (; from < to; from++)
		if (from < m->sinks || from >= m->seen_from)
			fail_msg("token %u is missing from the table", (unsigned)from);
}

/* Every position a query may see is in the table, once, in order, with its bytes. */
static inline void check_table(const struct world *w, struct model *m)
{
	struct kvattn_table table;
	uint64_t next = 0, n_tokens = 0;

	assert_int_equal(kvp_seq_table(m->seq, &table), 0);
	assert_int_equal(kvp_seq_length(m->seq), m->n);
	for (uint64_t b = 0; b < table.n_blocks; b++) {
		uint64_t pos = table.block_pos ? table.block_pos[b] : b * w->block_tokens;

		assert_int_equal(pos % w->block_tokens, 0);
		assert_true(pos >= next);
		check_gap(m, next, pos);
		assert_int_equal((uintptr_t)table.blocks[b] % 4096, 0);
		for (uint32_t i = 0; i < w->block_tokens && pos + i < m->n; i++, n_tokens++)
			check_row(w, m, table.blocks[b], i, pos + i);
		next = pos + w->block_tokens;
	}
	check_gap(m, next, m->n);
	assert_int_equal(table.n_tokens, n_tokens);
}

static inline void model_append_these(struct model *m, const uint32_t *tokens, uint32_t n)
{
	memcpy(m->tokens + m->n, tokens, n * sizeof(*tokens));
	assert_int_equal(kvp_seq_append(m->seq, tokens, n), m->n + n);
	for (uint32_t i = 0; i < n; i++)
		store_rows(m, m->n + i);
	m->n += n;
}

static inline void model_append(const struct world *w, struct model *m, uint32_t n)
{
	uint32_t tokens[64] = {0};

	for (uint32_t i = 0; i < n; i++)
		tokens[i] = random_below(w->alphabet);
	model_append_these(m, tokens, n);
}

static inline void model_let_go(struct model *m)
{
	if (m->window && m->committed + 1 > m->window && m->committed + 1 - m->window > m->seen_from)
		m->seen_from = m->committed + 1 - m->window;
}

static inline void model_commit(struct model *m, uint64_t n)
{
	assert_true(kvp_seq_commit(m->seq, n) >= 0);
	if (n > m->committed)
		m->committed = n;
	model_let_go(m);
	for (uint64_t pos = 0; pos < m->committed && pos < m->n; pos += 1 + pos / 3)
		assert_null(kvp_seq_block(m->seq, pos, NULL));
}

static inline void model_truncate(struct model *m, uint64_t n)
{
	uint64_t sees = m->window && n + 1 > m->window ? n + 1 - m->window : 0;
	int r = kvp_seq_truncate(m->seq, n);

	if (r == -KVP_EINVAL && sees < m->seen_from)
		return; /* the window has let go of what token n sees */
	assert_int_equal(r, 0);
	m->n = n;
	if (m->committed > n)
		m->committed = n;
}

static inline void model_fork(struct model *from, struct model *to)
{
	struct kvp_seq *fork;

	if (to->seq)
		kvp_seq_close(to->seq);
	assert_int_equal(kvp_seq_fork(from->seq, &fork), 0);
	*to = *from;
	to->seq = fork;
}

static inline void model_open(const struct world *w, struct model *m)
{
	struct kvp_seq_opts opts = {.size = sizeof(opts)};

	if (m->seq)
		kvp_seq_close(m->seq);
	memset(m, 0, sizeof(*m));
	if (random_below(3) == 0) {
		opts.window = m->window = 1 + random_below(3 * w->block_tokens);
		opts.sinks = m->sinks = random_below(2 * w->block_tokens);
	}
	assert_int_equal(kvp_seq_open(w->ns, &opts, &m->seq), 0);
}

/* Tokens like those of another sequence, then what of them is known. */
static inline void model_match(const struct world *w, struct model *m, const struct model *like)
{
	uint32_t tokens[TOKENS_MAX] = {0};
	uint64_t n = like->n ? random_below((uint32_t)like->n) + 1 : 0;
	int64_t got;

	memcpy(tokens, like->tokens, n * sizeof(*tokens)); /* @like may be @m itself */
	model_open(w, m);
	got = kvp_seq_match(m->seq, tokens, n, kvp_deadline_ms(1000));
	assert_true(got >= 0 && (uint64_t)got < n + (n == 0));
	assert_int_equal(got % w->block_tokens, 0);
	memcpy(m->tokens, tokens, (size_t)got * sizeof(*tokens));
	m->n = m->committed = (uint64_t)got;
	*w->matched += (uint64_t)got;
	model_let_go(m);
}

static inline void random_step(const struct world *w, struct model *models, unsigned which)
{
	struct model *m = &models[which];
	uint32_t most = TOKENS_MAX - (uint32_t)m->n < 40 ? TOKENS_MAX - (uint32_t)m->n : 40;

	switch (random_below(10)) {
	case 0:
	case 1:
	case 2:
		model_append(w, m, most ? random_below(most) + 1 : 0);
		break;
	case 3:
	case 4:
	case 5:
		model_commit(m, m->committed + random_below((uint32_t)(m->n - m->committed) + 1));
		break;
	case 6:
	case 7:
		model_truncate(m, random_below((uint32_t)m->n + 1));
		break;
	case 8: {
		unsigned other = random_below(SEQS);

		if (other != which)
			model_fork(m, &models[other]);
		break;
	}
	default:
		if (m->n > TOKENS_MAX / 2 || random_below(2))
			model_match(w, m, &models[random_below(SEQS)]);
	}
}

#endif
