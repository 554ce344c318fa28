/*
 * test_client_seq.c - sequences without a daemon, against a model in plain arrays
 *
 * Every row that is stored holds a number of its own (layer, K or V, head, position, writer); whatever is done to a
 * sequence, its block table must lead to the rows the model says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

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

struct fixture {
	struct kvp_client *client;
	struct kvp_ns *ns;
	uint32_t block_tokens;
};

/* What a sequence must hold. */
struct model {
	struct kvp_seq *seq;
	uint64_t n, committed;
	uint32_t tokens[TOKENS_MAX];
	float rows[TOKENS_MAX]; /* the writer's number for each position */
	uint32_t window, sinks;
	uint64_t seen_from; /* nothing before is promised, but for the sinks */
};

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
	uint64_t x = random_state += 0x9e3779b97f4a7c15ull; /* splitmix64 */

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return (uint32_t)((x ^ x >> 31) % n);
}

static struct fixture given_namespace(uint32_t block_tokens, uint32_t layout)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .flags = KVP_OPEN_OFFLINE};
	struct fixture f = {.block_tokens = block_tokens};
	struct kvp_desc desc;
	struct kvp_ns_opts ns_opts = {.size = sizeof(ns_opts), .name = "seq", .owner_uid = KVP_UID_SELF, .desc = &desc};

	kvp_desc_init(&desc, layout, block_tokens, LAYERS, HEADS, DIM, KVP_TYPE_F32);
	assert_int_equal(kvp_open(&opts, &f.client), 0);
	assert_int_equal(kvp_ns_open(f.client, &ns_opts, &f.ns), 0);
	return f;
}

static void done_with(struct fixture *f)
{
	kvp_ns_close(f->ns);
	kvp_close(f->client);
}

static float row_value(float writer, uint32_t layer, int which, uint32_t head, uint64_t pos, uint32_t d)
{
	return writer * 1e4f + (float)(((layer * 2 + (uint32_t)which) * HEADS + head) * DIM + d) + (float)(pos % 7) / 8;
}

static void store_rows(struct model *m, uint64_t pos, float writer)
{
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		for (int which = KVP_K; which <= KVP_V; which++)
			for (uint32_t head = 0; head < HEADS; head++) {
				float *row = kvp_seq_row(m->seq, layer, (enum kvp_kv)which, head, pos);

				assert_non_null(row);
				for (uint32_t d = 0; d < DIM; d++)
					row[d] = row_value(writer, layer, which, head, pos, d);
			}
	m->rows[pos] = writer;
}

static void check_row(const struct fixture *f, const struct model *m, const char *block, uint32_t index, uint64_t pos)
{
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		for (int which = KVP_K; which <= KVP_V; which++)
			for (uint32_t head = 0; head < HEADS; head++) {
				uint64_t off, token_stride, head_stride;
				const float *row;

				kvp_geom(f->ns, layer, (enum kvp_kv)which, &off, &token_stride, &head_stride, NULL);
				row = (const float *)(const void *)(block + off + index * token_stride +
								    head * head_stride);
				for (uint32_t d = 0; d < DIM; d++)
					if (row[d] != row_value(m->rows[pos], layer, which, head, pos, d))
						fail_msg("token %u: %f", (unsigned)pos, (double)row[d]);
			}
}

/* Every position a query may see is in the table, once, in order, with its bytes. */
static void check_table(const struct fixture *f, struct model *m)
{
	struct kvattn_table table;
	uint64_t next = 0, n_tokens = 0;

	assert_int_equal(kvp_seq_table(m->seq, &table), 0);
	assert_int_equal(kvp_seq_length(m->seq), m->n);
	for (uint64_t b = 0; b < table.n_blocks; b++) {
		uint64_t pos = table.block_pos ? table.block_pos[b] : b * f->block_tokens;

		assert_int_equal(pos % f->block_tokens, 0);
		assert_true(pos >= next);
		for (uint64_t gap = next; gap < pos; gap++)
			if (gap < m->sinks || gap >= m->seen_from)
				fail_msg("token %u is missing from the table", (unsigned)gap);
		assert_int_equal((uintptr_t)table.blocks[b] % 4096, 0);
		for (uint32_t i = 0; i < f->block_tokens && pos + i < m->n; i++, n_tokens++)
			check_row(f, m, table.blocks[b], i, pos + i);
		next = pos + f->block_tokens;
	}
	assert_true(next >= m->n);
	assert_int_equal(table.n_tokens, n_tokens);
}

static void model_append(struct model *m, uint32_t n)
{
	static float writer;
	uint32_t tokens[64] = {0};

	for (uint32_t i = 0; i < n; i++)
		tokens[i] = m->tokens[m->n + i] = random_below(1000);
	assert_int_equal(kvp_seq_append(m->seq, tokens, n), m->n + n);
	writer++;
	for (uint32_t i = 0; i < n; i++)
		store_rows(m, m->n + i, writer);
	m->n += n;
}

static void model_commit(struct model *m, uint64_t n)
{
	assert_int_equal(kvp_seq_commit(m->seq, n), 0); /* nobody to publish to */
	if (n > m->committed)
		m->committed = n;
	if (m->window && m->committed + 1 > m->window && m->committed + 1 - m->window > m->seen_from)
		m->seen_from = m->committed + 1 - m->window;
	for (uint64_t pos = 0; pos < m->committed && pos < m->n; pos += 1 + pos / 3)
		assert_null(kvp_seq_row(m->seq, 0, KVP_K, 0, pos));
}

static void model_truncate(struct model *m, uint64_t n)
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

static void model_fork(struct model *from, struct model *to)
{
	struct kvp_seq *fork;

	if (to->seq)
		kvp_seq_close(to->seq);
	assert_int_equal(kvp_seq_fork(from->seq, &fork), 0);
	*to = *from;
	to->seq = fork;
}

static void model_open(const struct fixture *f, struct model *m)
{
	struct kvp_seq_opts opts = {.size = sizeof(opts)};

	if (m->seq)
		kvp_seq_close(m->seq);
	memset(m, 0, sizeof(*m));
	if (random_below(3) == 0) {
		opts.window = m->window = 1 + random_below(3 * f->block_tokens);
		opts.sinks = m->sinks = random_below(2 * f->block_tokens);
	}
	assert_int_equal(kvp_seq_open(f->ns, &opts, &m->seq), 0);
}

static void random_step(const struct fixture *f, struct model *models, unsigned which)
{
	struct model *m = &models[which];
	uint32_t most = TOKENS_MAX - (uint32_t)m->n < 40 ? TOKENS_MAX - (uint32_t)m->n : 40;

	switch (random_below(10)) {
	case 0:
	case 1:
	case 2:
		model_append(m, most ? random_below(most) + 1 : 0);
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
		if (m->n > TOKENS_MAX / 2)
			model_open(f, m);
	}
}

static void any_series_of_calls_keeps_every_row(void **state)
{
	static const uint32_t widths[] = {1, 3, 16, 64, 1024};

	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		uint32_t layout = seed % 2 ? KVP_LAYOUT_HND : KVP_LAYOUT_NHD;
		struct fixture f = given_namespace(widths[seed % 5], layout);
		struct model *models = calloc(SEQS, sizeof(*models));

		random_state = seed;
		for (unsigned i = 0; i < SEQS; i++)
			model_open(&f, &models[i]);
		for (unsigned step = 0; step < 400; step++) {
			unsigned which = random_below(SEQS);

			random_step(&f, models, which);
			for (unsigned i = 0; i < SEQS; i++)
				check_table(&f, &models[i]);
		}
		for (unsigned i = 0; i < SEQS; i++)
			assert_int_equal(kvp_seq_close(models[i].seq), 0);
		free(models);
		done_with(&f);
	}
}

static void a_new_sequence_is_empty(void **state)
{
	struct fixture f = given_namespace(16, KVP_LAYOUT_HND);
	struct kvattn_table table;
	struct kvp_seq *seq;

	(void)state;
	assert_int_equal(kvp_seq_open(f.ns, NULL, &seq), 0);
	assert_int_equal(kvp_seq_length(seq), 0);
	assert_int_equal(kvp_seq_table(seq, &table), 0);
	assert_int_equal(table.n_blocks, 0);
	assert_int_equal(table.n_tokens, 0);
	assert_null(kvp_seq_row(seq, 0, KVP_K, 0, 0));
	assert_int_equal(kvp_seq_commit(seq, 0), 0);
	assert_int_equal(kvp_seq_truncate(seq, 0), 0);
	kvp_seq_close(seq);
	done_with(&f);
}

static void matching_comes_first_and_finds_nothing_alone(void **state)
{
	struct fixture f = given_namespace(16, KVP_LAYOUT_HND);
	uint32_t tokens[50] = {0};
	struct kvp_seq *seq;

	(void)state;
	assert_int_equal(kvp_seq_open(f.ns, NULL, &seq), 0);
	assert_int_equal(kvp_seq_match(seq, tokens, 50, 0), 0);
	assert_int_equal(kvp_seq_append(seq, tokens, 50), 50);
	assert_int_equal(kvp_seq_match(seq, tokens, 50, 0), -KVP_EINVAL);
	kvp_seq_close(seq);
	done_with(&f);
}

static void the_fork_copies_only_the_tail(void **state)
{
	struct fixture f = given_namespace(16, KVP_LAYOUT_HND);
	struct kvp_seq_stats stats = {.size = sizeof(stats)};
	struct model a = {0}, b = {0};

	(void)state;
	random_state = 1;
	assert_int_equal(kvp_seq_open(f.ns, NULL, &a.seq), 0);
	model_append(&a, 37);
	model_commit(&a, 37);
	model_fork(&a, &b);
	assert_int_equal(kvp_seq_stats(b.seq, &stats), 0);
	assert_int_equal(stats.copied_bytes, 5 * LAYERS * 2 * HEADS * DIM * 4); /* 37 = 2 blocks and 5 tokens */
	assert_int_equal(stats.tokens, 37);
	assert_int_equal(stats.private_blocks, 3);
	model_append(&a, 20);
	model_append(&b, 11);
	check_table(&f, &a);
	check_table(&f, &b);
	kvp_seq_close(a.seq);
	check_table(&f, &b);
	kvp_seq_close(b.seq);
	done_with(&f);
}

static void a_window_lets_no_block_go_that_is_still_seen(void **state)
{
	struct fixture f = given_namespace(4, KVP_LAYOUT_HND);
	struct kvp_seq_opts opts = {.size = sizeof(opts), .window = 6, .sinks = 2};
	struct model m = {.window = 6, .sinks = 2};
	struct kvattn_table table;

	(void)state;
	random_state = 1;
	assert_int_equal(kvp_seq_open(f.ns, &opts, &m.seq), 0);
	for (unsigned i = 0; i < 100; i++) {
		model_append(&m, 1);
		model_commit(&m, m.n);
		check_table(&f, &m);
		assert_int_equal(kvp_seq_table(m.seq, &table), 0);
		assert_true(table.n_blocks <= 1 + 3); /* the sink's block, and 6 tokens touch at most 3 blocks of 4 */
	}
	assert_int_equal(table.block_pos[0], 0);
	assert_int_equal(kvp_seq_truncate(m.seq, 50), -KVP_EINVAL);
	kvp_seq_close(m.seq);
	done_with(&f);
}

static void a_sequence_refuses_what_makes_no_sense(void **state)
{
	struct fixture f = given_namespace(16, KVP_LAYOUT_HND);
	struct kvp_seq_opts opts = {.size = sizeof(opts), .n_salt = 65, .salt = "x"};
	uint32_t tokens[4] = {0}, index;
	struct kvp_seq *seq;

	(void)state;
	assert_int_equal(kvp_seq_open(f.ns, &opts, &seq), -KVP_EINVAL);
	opts = (struct kvp_seq_opts){.size = sizeof(opts), .sinks = 3};
	assert_int_equal(kvp_seq_open(f.ns, &opts, &seq), -KVP_EINVAL);
	opts = (struct kvp_seq_opts){.size = 3};
	assert_int_equal(kvp_seq_open(f.ns, &opts, &seq), -KVP_EINVAL);
	assert_int_equal(kvp_seq_open(NULL, NULL, &seq), -KVP_EINVAL);
	assert_int_equal(kvp_seq_open(f.ns, NULL, &seq), 0);
	assert_int_equal(kvp_seq_append(seq, NULL, 1), -KVP_EINVAL);
	assert_int_equal(kvp_seq_append(seq, tokens, 4), 4);
	assert_int_equal(kvp_seq_commit(seq, 5), -KVP_EINVAL);
	assert_int_equal(kvp_seq_truncate(seq, 5), -KVP_EINVAL);
	assert_null(kvp_seq_row(seq, LAYERS, KVP_K, 0, 0));
	assert_null(kvp_seq_row(seq, 0, KVP_K, HEADS, 0));
	assert_null(kvp_seq_row(seq, 0, KVP_K, 0, 4));
	assert_null(kvp_seq_block(seq, 4, &index));
	assert_non_null(kvp_seq_block(seq, 3, &index));
	assert_int_equal(index, 3);
	kvp_seq_close(seq);
	done_with(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_series_of_calls_keeps_every_row),
		cmocka_unit_test(a_new_sequence_is_empty),
		cmocka_unit_test(matching_comes_first_and_finds_nothing_alone),
		cmocka_unit_test(the_fork_copies_only_the_tail),
		cmocka_unit_test(a_window_lets_no_block_go_that_is_still_seen),
		cmocka_unit_test(a_sequence_refuses_what_makes_no_sense),
	};

	return cmocka_run_group_tests_name("client sequences", tests, NULL, NULL);
}
