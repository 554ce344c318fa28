/*
 * test_attn_select.c - trees of guessed tokens, selected blocks, and blocks in another type
 */
#include <errno.h>

#include "test_attn_fixture.h"

/* ---- Trees ---- */

/* Row @r alone over the keys its tree shows, one block each, at their positions. */
static void row_alone(const struct kv *kv, const struct kvattn_seq *tree, uint32_t r, uint32_t heads,
	const struct kvattn_opts *opts, float *out)
{
	const uint64_t n = kv->n_tokens, n_q = tree->n_q, first = n - n_q, words = (n_q + 63) / 64;
	const void **blocks = must(calloc(n, sizeof(*blocks)));
	uint64_t *pos = must(calloc(n, sizeof(*pos))), shown = 0;
	struct kvattn_seq seq = *tree;

	for (uint64_t j = 0; j <= first + r; j++)
		if (j < first || tree->tree[r * words + (j - first) / 64] >> (j - first) % 64 & 1) {
			blocks[shown] = kv->blocks[j];
			pos[shown++] = j;
		}
	seq.table = (struct kvattn_table){blocks, pos, shown, shown};
	seq.q = tree->q + (size_t)r * heads * kv->shape.dim_k;
	seq.out = out;
	seq.n_q = 1;
	seq.q_end = first + r + 1;
	seq.tree = NULL;
	assert_int_equal(kvattn_attend(&kv->geom, &seq, 1, opts), 0);
	free(blocks), free(pos);
}

static void check_tree(enum order order, uint32_t n_before, uint32_t n_q, uint64_t window)
{
	enum { HEADS = 2, DIM = 24 };
	const struct kvattn_shape shape = {1, 1, DIM, DIM, KVATTN_F16, KVATTN_F16, 1};
	const uint32_t n = n_before + n_q, words = (n_q + 63) / 64;
	float *k = floats((size_t)n * DIM), *v = floats((size_t)n * DIM), *q = floats((size_t)n_q * HEADS * DIM);
	float *out = floats((size_t)n_q * HEADS * DIM), alone[HEADS * DIM];
	uint64_t *tree = must(calloc((size_t)n_q * words, sizeof(*tree))), seed = n_q + window;
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	struct kv kv;

	noise_fill(&seed, k, (size_t)n * DIM, 1);
	noise_fill(&seed, v, (size_t)n * DIM, 1);
	noise_fill(&seed, q, (size_t)n_q * HEADS * DIM, 3);
	for (uint32_t r = 0; r < n_q; r++) { /* each row sees itself and what one earlier row sees */
		if (r)
			memcpy(tree + (size_t)r * words, tree + (size_t)noise_below(&seed, r) * words,
				words * sizeof(*tree));
		tree[(size_t)r * words + r / 64] |= 1ull << r % 64;
	}
	kv_open(&kv, &shape, order, n);
	kv_fill(&kv, k, v);
	kvattn_opts_init(&opts, HEADS);
	opts.window = window;
	seq = kv_seq(&kv, q, n_q, out);
	seq.tree = tree;
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	for (uint32_t r = 0; r < n_q; r++) {
		row_alone(&kv, &seq, r, HEADS, &opts, alone);
		if (memcmp(alone, out + (size_t)r * HEADS * DIM, sizeof(alone)))
			fail_msg("%s %u keys before %u rows, window %llu: row %u sees other keys", order_names[order],
				n_before, n_q, (unsigned long long)window, r);
	}
	kv_close(&kv);
	free(k), free(v), free(q), free(out), free(tree);
}

static void a_row_of_a_tree_sees_its_branch_and_no_other(void **state)
{
	(void)state;
	for (enum order order = 0; order < N_ORDERS; order++) {
		check_tree(order, 0, 7, 0);
		check_tree(order, 100, 8, 0);
		check_tree(order, 1000, 70, 0);
		check_tree(order, 61, 130, 0);
		check_tree(order, 100, 40, 30);
	}
}

/* What @q makes of the keys before @before and from @end on. */
static void attend_around(const struct kv *kv, const float *q, uint32_t before, uint32_t end, float *out)
{
	const struct kvattn_shape shape = kv->shape;
	const void **blocks = must(calloc(kv->n_tokens, sizeof(*blocks)));
	uint64_t n = 0;
	struct kvattn_opts opts;
	struct kvattn_seq seq;

	assert_int_equal(shape.block_tokens, 1);
	for (uint32_t j = 0; j < kv->n_tokens; j++)
		if (j < before || j >= end)
			blocks[n++] = kv->blocks[j];
	seq = kv_seq(kv, q, 1, out);
	seq.table = (struct kvattn_table){.blocks = blocks, .n_blocks = n, .n_tokens = n};
	kvattn_opts_init(&opts, 1);
	assert_int_equal(kvattn_attend(&kv->geom, &seq, 1, &opts), 0);
	free(blocks);
}

/* @n_q rows that end at @end and see none of their own keys see all others, wherever a run of keys begins. */
static void check_keys_behind(enum order order, uint32_t end, uint32_t n_q)
{
	enum { DIM = 8, N = 200 };
	const uint64_t none[65 * 2] = {0};
	float *k = floats(N * DIM), *v = floats(N * DIM), *q = floats(65 * DIM), *out = floats(65 * DIM), around[DIM];
	uint64_t seed = 5;
	struct kvattn_opts opts;

	noise_fill(&seed, k, N * DIM, 1);
	noise_fill(&seed, v, N * DIM, 1);
	noise_fill(&seed, q, 65 * DIM, 1);
	kvattn_opts_init(&opts, 1);
	for (uint32_t block_tokens = 1; block_tokens <= 64; block_tokens *= 64) {
		const struct kvattn_shape shape = {1, 1, DIM, DIM, KVATTN_F32, KVATTN_F32, block_tokens};
		struct kvattn_seq seq;
		struct kv kv;

		kv_open(&kv, &shape, order, N);
		kv_fill(&kv, k, v);
		seq = kv_seq(&kv, q, n_q, out);
		seq.causal = 0;
		seq.q_end = end;
		seq.tree = none;
		if (block_tokens == 1)
			attend_around(&kv, q, end < n_q ? 0 : end - n_q, end, around);
		assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
		for (uint32_t d = 0; d < DIM; d++)
			if (!(fabsf(around[d] - out[d]) < 1e-5f))
				fail_msg("%s, %u rows that end at %u, blocks of %u: %g is not %g", order_names[order],
					n_q, end, block_tokens, (double)out[d], (double)around[d]);
		kv_close(&kv);
	}
	free(k), free(v), free(q), free(out);
}

static void a_tree_says_nothing_of_keys_behind_its_rows(void **state)
{
	static const uint32_t ends[] = {1, 5, 64, 70, 130}, rows[] = {1, 5, 63, 64, 65};

	(void)state;
	for (enum order order = 0; order < N_ORDERS; order++)
		for (uint32_t i = 0; i < COUNT(ends) * COUNT(rows); i++)
			check_keys_behind(order, ends[i / COUNT(rows)], rows[i % COUNT(rows)]);
}

/* ---- Selection ---- */

struct pages {
	struct kv kv;
	float *k, *v, q[4 * 16], *made[20];
	const float *summaries[20];
};

static void pages_open(struct pages *p, enum order order, uint64_t seed)
{
	const struct kvattn_shape shape = {1, 2, 16, 16, KVATTN_F32, KVATTN_F32, 16};

	p->k = floats(20 * 16 * 32);
	p->v = floats(20 * 16 * 32);
	noise_fill(&seed, p->k, 20 * 16 * 32, 1);
	noise_fill(&seed, p->v, 20 * 16 * 32, 1);
	noise_fill(&seed, p->q, 4 * 16, 1);
	kv_open(&p->kv, &shape, order, 20 * 16 - 5);
	kv_fill(&p->kv, p->k, p->v);
	assert_int_equal(kvattn_summary_bytes(&p->kv.geom), 2 * 2 * 16 * 4);
	for (uint32_t b = 0; b < 20; b++) {
		p->summaries[b] = p->made[b] = floats(2 * 2 * 16);
		assert_int_equal(kvattn_summarise(&p->kv.geom, p->kv.blocks[b], b < 19 ? 16 : 11, p->made[b]), 0);
	}
}

static void pages_close(struct pages *p)
{
	for (uint32_t b = 0; b < 20; b++)
		free(p->made[b]);
	kv_close(&p->kv);
	free(p->k), free(p->v);
}

static struct kvattn_select ask_for(const struct pages *p, uint64_t n)
{
	return (struct kvattn_select){
		.size = sizeof(struct kvattn_select),
		.n_q_heads = 4,
		.q = p->q,
		.summaries = p->summaries,
		.n_blocks = 20,
		.n_select = n,
	};
}

/* The bytes past the last token are NaN: a summary that took them in would be too. */
static void a_summary_bounds_every_key_of_its_block(void **state)
{
	struct pages p;

	(void)state;
	for (enum order order = 0; order < N_ORDERS; order++) {
		pages_open(&p, order, 3);
		for (uint32_t t = 0; t < p.kv.n_tokens; t++)
			for (uint32_t h = 0; h < 2; h++)
				for (uint32_t d = 0; d < 16; d++) {
					const float *s = p.summaries[t / 16] + h * 32, x = p.k[(t * 2 + h) * 16 + d];

					assert_true(s[d] <= x && x <= s[16 + d]);
				}
		pages_close(&p);
	}
}

static void the_block_with_the_best_key_is_selected(void **state)
{
	uint64_t blocks[2 * 20];
	struct kvattn_select ask;
	struct pages p;

	(void)state;
	pages_open(&p, ORDER_TILED, 5);
	ask = ask_for(&p, 3);
	ask.keep_first = 1;
	ask.keep_last = 1;
	for (uint32_t b = 1; b < 19; b++) { /* a key of each KV head along its second query head */
		float row[32];

		for (uint32_t i = 0; i < 32; i++)
			row[i] = 10 * p.q[(i / 16 * 2 + 1) * 16 + i % 16];
		assert_int_equal(kvattn_put(&p.kv.geom, kv_block(&p.kv, b), b % 16, 1, row, 0, NULL, 0), 0);
		assert_int_equal(kvattn_summarise(&p.kv.geom, p.kv.blocks[b], 16, p.made[b]), 0);
		assert_int_equal(kvattn_select(&p.kv.geom, &ask, blocks), 3);
		for (uint32_t h = 0; h < 2; h++)
			assert_true(blocks[3 * h] == 0 && blocks[3 * h + 1] == b && blocks[3 * h + 2] == 19);
		kv_fill(&p.kv, p.k, p.v);
		assert_int_equal(kvattn_summarise(&p.kv.geom, p.kv.blocks[b], 16, p.made[b]), 0);
	}
	pages_close(&p);
}

/* All blocks selected, head by head: the very bits of attention over everything. */
static void attention_over_every_block_selected_is_full_attention(void **state)
{
	float full[4 * 16], part[4 * 16];
	uint64_t blocks[2 * 20], pos[20];
	const void *table[20];
	struct kvattn_opts opts;
	struct kvattn_select ask;
	struct kvattn_seq seq;
	struct pages p;

	(void)state;
	for (enum order order = 0; order < N_ORDERS; order++) {
		pages_open(&p, order, 6);
		kvattn_opts_init(&opts, 4);
		seq = kv_seq(&p.kv, p.q, 1, full);
		assert_int_equal(kvattn_attend(&p.kv.geom, &seq, 1, &opts), 0);
		ask = ask_for(&p, 99);
		assert_int_equal(kvattn_select(&p.kv.geom, &ask, blocks), 20);
		opts.n_q_heads = 2;
		for (uint32_t h = 0; h < 2; h++) {
			struct kvattn_geom one;

			assert_int_equal(kvattn_geom_head(&p.kv.geom, h, &one), 0);
			for (uint32_t i = 0; i < 20; i++) {
				table[i] = p.kv.blocks[blocks[h * 20 + i]];
				pos[i] = blocks[h * 20 + i] * 16;
			}
			seq.table = (struct kvattn_table){table, pos, 20, p.kv.n_tokens};
			seq.q = p.q + h * 32;
			seq.out = part + h * 32;
			assert_int_equal(kvattn_attend(&one, &seq, 1, &opts), 0);
		}
		assert_memory_equal(full, part, sizeof(full));
		pages_close(&p);
	}
}

static void impossible_selections_are_refused(void **state)
{
	uint64_t blocks[40];
	struct kvattn_select ask;
	struct kvattn_geom one;
	struct pages p;

	(void)state;
	pages_open(&p, ORDER_HND, 7);
	ask = ask_for(&p, 4);
	ask.n_q_heads = 3;
	assert_int_equal(kvattn_select(&p.kv.geom, &ask, blocks), -EINVAL);
	ask = ask_for(&p, 4);
	ask.keep_first = 3;
	ask.keep_last = 2;
	assert_int_equal(kvattn_select(&p.kv.geom, &ask, blocks), -EINVAL);
	ask = ask_for(&p, 4);
	ask.size = 0;
	assert_int_equal(kvattn_select(&p.kv.geom, &ask, blocks), -EINVAL);
	ask = ask_for(&p, 0);
	assert_int_equal(kvattn_select(&p.kv.geom, &ask, blocks), 0);
	assert_int_equal(kvattn_geom_head(&p.kv.geom, 2, &one), -EINVAL);
	assert_int_equal(kvattn_summarise(&p.kv.geom, p.kv.blocks[0], 17, p.made[0]), -EINVAL);
	pages_close(&p);
}

/* ---- Another type ---- */

static void converted_blocks_are_what_get_and_put_make_of_them(void **state)
{
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16, KVATTN_FP8_E4M3, KVATTN_I8, KVATTN_I4};
	const struct kvattn_shape shape = {1, 3, 40, 72, KVATTN_F16, KVATTN_F16, 64};
	float *k = floats(50 * 120), *v = floats(50 * 216), *k_back = floats(50 * 120), *v_back = floats(50 * 216);
	uint64_t seed = 1;
	struct kv from;

	(void)state;
	noise_fill(&seed, k, 50 * 120, 3);
	noise_fill(&seed, v, 50 * 216, 3);
	kv_open(&from, &shape, ORDER_HND, 50);
	kv_fill(&from, k, v);
	kv_read(&from, k, v); /* as f16 has them */
	for (size_t i = 0; i < COUNT(types); i++) {
		struct kvattn_shape other = shape;
		struct kv put, made;

		other.type_k = other.type_v = types[i];
		kv_open(&put, &other, ORDER_TILED, 50);
		kv_open(&made, &other, ORDER_TILED, 50);
		kv_fill(&put, k, v);
		assert_int_equal(kvattn_convert(&from.geom, from.blocks[0], &made.geom, kv_block(&made, 0), 50), 0);
		assert_memory_equal(put.memory, made.memory, put.block_bytes);
		kv_read(&made, k_back, v_back);
		if (types[i] == KVATTN_F32) {
			assert_memory_equal(k, k_back, 50 * 120 * sizeof(float));
			assert_memory_equal(v, v_back, 50 * 216 * sizeof(float));
		}
		made.geom.dim_v--;
		assert_int_equal(kvattn_convert(&from.geom, from.blocks[0], &made.geom, made.memory, 50), -EINVAL);
		kv_close(&put);
		kv_close(&made);
	}
	assert_int_equal(kvattn_convert(&from.geom, from.blocks[0], &from.geom, from.memory, 65), -EINVAL);
	kv_close(&from);
	free(k), free(v), free(k_back), free(v_back);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_row_of_a_tree_sees_its_branch_and_no_other),
		cmocka_unit_test(a_tree_says_nothing_of_keys_behind_its_rows),
		cmocka_unit_test(a_summary_bounds_every_key_of_its_block),
		cmocka_unit_test(the_block_with_the_best_key_is_selected),
		cmocka_unit_test(attention_over_every_block_selected_is_full_attention),
		cmocka_unit_test(impossible_selections_are_refused),
		cmocka_unit_test(converted_blocks_are_what_get_and_put_make_of_them),
	};
	const int r = levels_run(argv);

	(void)argc;
	return r >= 0 ? r : cmocka_run_group_tests_name(kvattn_isa_name(), tests, NULL, NULL);
}
