/*
 * test_attn_mass.c - attention mass by key: what a call adds, and what it does not depend on
 *
 * Values against float64: test_attn_reference.c.
 */
#include <errno.h>

#include "test_attn_fixture.h"

enum { HEADS = 2, GROUP = 3, DIM = 32, N = 2500, N_Q = 5 };

struct numbers {
	float k[N * HEADS * DIM], v[N * HEADS * DIM], q[N_Q * HEADS * GROUP * DIM];
};

static struct numbers *numbers_new(void)
{
	struct numbers *numbers = must(malloc(sizeof(*numbers)));
	uint64_t seed = 3;

	noise_gauss(&seed, numbers->k, COUNT(numbers->k));
	noise_gauss(&seed, numbers->v, COUNT(numbers->v));
	noise_gauss(&seed, numbers->q, COUNT(numbers->q));
	return numbers;
}

struct way {
	uint32_t type, block_tokens, threads;
	enum order order;
	bool with_lse;
};

/* Attention of all rows; @mass: [HEADS][N], added to. */
static void attend(const struct numbers *numbers, const struct way *way, const struct kvattn_opts *given, float *mass)
{
	const struct kvattn_shape shape = {1, HEADS, DIM, DIM, way->type, way->type, way->block_tokens};
	static float out[N_Q * HEADS * GROUP * DIM], lse[N_Q * HEADS * GROUP];
	struct kvattn_opts opts = *given;
	struct kvattn_seq seq;
	struct kv kv;

	kv_open(&kv, &shape, way->order, N);
	kv_fill(&kv, numbers->k, numbers->v);
	seq = kv_seq(&kv, numbers->q, N_Q, out);
	seq.mass = mass;
	seq.lse = way->with_lse ? lse : NULL;
	opts.n_threads = way->threads;
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	kv_close(&kv);
}

static struct kvattn_opts defaults(void)
{
	struct kvattn_opts opts;

	kvattn_opts_init(&opts, HEADS * GROUP);
	return opts;
}

static void each_row_shares_out_one(void **state)
{
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16, KVATTN_I8, KVATTN_I4};
	struct numbers *numbers = numbers_new();

	(void)state;
	for (size_t i = 0; i < COUNT(types); i++) {
		const struct way way = {types[i], 64, 1, ORDER_TILED, false};
		float *mass = floats(HEADS * N);
		struct kvattn_opts opts = defaults();

		for (int time = 1; time <= 2; time++) { /* a second call adds as much again */
			attend(numbers, &way, &opts, mass);
			for (int h = 0; h < HEADS; h++) {
				double sum = 0;

				for (int j = 0; j < N; j++)
					sum += mass[h * N + j];
				assert_true(fabs(sum - time * N_Q * GROUP) <= 1e-5 * N_Q * GROUP);
			}
		}
		free(mass);
	}
	free(numbers);
}

static void threads_blocks_and_lse_change_no_bit(void **state)
{
	static const struct way ways[] = {{KVATTN_F16, 64, 1, ORDER_TILED, true},
		{KVATTN_F16, 64, 3, ORDER_TILED, true}, {KVATTN_F16, 16, 2, ORDER_TILED, false},
		{KVATTN_F16, 5, 1, ORDER_TILED, false}};
	static const struct way rows[] = {{KVATTN_F16, 64, 1, ORDER_HND, true}, {KVATTN_F16, 64, 3, ORDER_NHD, true},
		{KVATTN_F16, 7, 2, ORDER_HND, false}, {KVATTN_F16, 4096, 1, ORDER_NHD, false}};
	struct numbers *numbers = numbers_new();
	struct kvattn_opts opts = defaults();

	(void)state;
	for (int kind = 0; kind < 2; kind++) {
		const struct way *all = kind ? rows : ways;
		float *first = floats(HEADS * N);

		attend(numbers, &all[0], &opts, first);
		for (int i = 1; i < 4; i++) {
			float *mass = floats(HEADS * N);

			attend(numbers, &all[i], &opts, mass);
			assert_memory_equal(mass, first, HEADS * N * sizeof(float));
			free(mass);
		}
		free(first);
	}
	free(numbers);
}

static void keys_out_of_sight_gain_nothing(void **state)
{
	const struct way way = {KVATTN_F32, 64, 1, ORDER_TILED, false};
	struct numbers *numbers = numbers_new();
	struct kvattn_opts opts = defaults();
	float *mass = floats(HEADS * N);

	(void)state;
	opts.window = 100;
	opts.sink_tokens = 4;
	attend(numbers, &way, &opts, mass);
	for (int h = 0; h < HEADS; h++)
		for (int j = 0; j < N; j++)
			if (j < 4 || j >= N - 100)
				assert_true(mass[h * N + j] > 0);
			else if (j < N - 100 - N_Q + 1)
				assert_true(mass[h * N + j] == 0);
	free(mass);
	free(numbers);
}

/* Mass goes by place in the table, whatever the position: a ring of blocks in order of position. */
static void mass_goes_by_index_where_blocks_have_positions(void **state)
{
	enum { BLOCK = 16, BLOCKS = 4, KEYS = BLOCK * BLOCKS };
	static const uint64_t pos[BLOCKS] = {160, 1008, 1024, 3000};
	const struct kvattn_shape shape = {1, 1, 16, 16, KVATTN_F32, KVATTN_F32, BLOCK};
	float k[KEYS * 16] = {0}, v[KEYS * 16] = {0}, q[16] = {1}, out[16], mass[KEYS + 8];
	struct kvattn_opts opts;

	(void)state;
	kvattn_opts_init(&opts, 1);
	opts.scale = 1;
	k[37 * 16] = 50; /* all of the weight */
	for (enum order order = ORDER_HND; order < N_ORDERS; order++) {
		struct kvattn_seq seq;
		struct kv kv;

		memset(mass, 0, sizeof(mass));
		kv_open(&kv, &shape, order, KEYS - 3);
		kv_fill(&kv, k, v);
		seq = kv_seq(&kv, q, 1, out);
		seq.table.block_pos = pos;
		seq.mass = mass;
		seq.mass_stride = KEYS + 8;
		assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
		for (int j = 0; j < KEYS + 8; j++)
			assert_true(fabsf(mass[j] - (j == 37)) <= 1e-6f && (j < KEYS - 3 || mass[j] == 0));
		seq.mass_stride = KEYS - 4;
		assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), -EINVAL);
		kv_close(&kv);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_row_shares_out_one),
		cmocka_unit_test(threads_blocks_and_lse_change_no_bit),
		cmocka_unit_test(keys_out_of_sight_gain_nothing),
		cmocka_unit_test(mass_goes_by_index_where_blocks_have_positions),
	};
	const int r = levels_run(argv);

	(void)argc;
	return r >= 0 ? r : cmocka_run_group_tests_name(kvattn_isa_name(), tests, NULL, NULL);
}
