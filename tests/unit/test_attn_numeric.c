/*
 * test_attn_numeric.c - attention against values worked out by hand
 *
 * Scores are built exactly: the score sits in dimension 0 of K as a multiple of q's dimension 0, the rest is zero, the
 * scale is 1. V_j stands in every dimension d as V_j + d / 256 where the type holds that, so the answer has the same +
 * d / 256. As all stored numbers are exact, f16 and bf16 are held to f32's tolerance of 2e-6: a few roundings of 2^-24
 * each.
 */
#include "test_attn_fixture.h"

#define TOLERANCE 2e-6
#define TOLERANCE_SHORT 2e-5 /* two roundings to sixteen bits, see rows_rounded() */
#define TOLERANCE_ROUNDED 1e-3 /* where the type does not hold a whole V_j: bf16 from 256 on */

/* A sequence of one KV head and one query head, the same row asked n_q times. */
struct given {
	uint32_t n; /* keys */
	float q0; /* z_j = q0 * k[j] */
	const float *k; /* NULL: all zero */
	const float *v;
	uint32_t tail; /* keys written after the n, which nobody may look at */
	double want;
	double want_lse; /* NAN: not looked at */
	void (*options)(struct kvattn_opts *opts);
	bool exact;
};

/* Types that hold the numbers of some cases only: those are what they are checked with. */
static bool type_coarse(uint32_t type)
{
	return type == KVATTN_FP8_E4M3 || type == KVATTN_I4;
}

static const uint32_t every_type[] = {KVATTN_F32, KVATTN_F16, KVATTN_BF16, KVATTN_FP8_E4M3, KVATTN_I8, KVATTN_I4};

/* The first order that has it. */
static enum order type_order(uint32_t type)
{
	return type == KVATTN_I8 || type == KVATTN_I4 ? ORDER_TILED : 0;
}

static uint32_t cases_of[16]; /* by type; each with another number of threads than the last */
#define THREADS_MOST 4u

/* Whether keys and values come back as they were put. */
static bool keys_and_values_held(const struct kv *kv, uint32_t n, const float *k, const float *v)
{
	const size_t k_floats = (size_t)n * kv->shape.dim_k, v_floats = (size_t)n * kv->shape.dim_v;
	float *back_k = floats(kv->n_tokens * kv->shape.dim_k), *back_v = floats(kv->n_tokens * kv->shape.dim_v);
	bool held;

	kv_read(kv, back_k, back_v);
	held = memcmp(back_k, k, k_floats * sizeof(float)) == 0 && memcmp(back_v, v, v_floats * sizeof(float)) == 0;
	free(back_k), free(back_v);
	return held;
}

/* V_j + d / 256, and whether the type holds them all */
static bool values_spread(const struct kv *kv, const struct given *given, uint32_t n, float *v, float spread)
{
	const uint32_t dim = kv->shape.dim_v;
	bool held = true;
	uint16_t stored[8];

	for (uint32_t j = 0; j < n; j++)
		for (uint32_t d = 0; d < dim; d++)
			v[j * dim + d] = given->v[j] + spread * (float)d / 256;
	/* a row of one value is held, any other is rounded to a grid of its own */
	if (kv->shape.type_v == KVATTN_I8 || type_coarse(kv->shape.type_v))
		return spread == 0;
	for (uint32_t i = 0; kv->shape.type_v != KVATTN_F32 && i < given->n * dim; i++) {
		struct kvattn_geom one;
		const struct kvattn_shape shape = {1, 1, 1, 1, kv->shape.type_v, kv->shape.type_v, 1};
		float back;

		assert_int_equal(kvattn_geom_init_hnd(&one, &shape, 0), 0);
		one.v_off = 0;
		assert_int_equal(kvattn_put(&one, stored, 0, 1, NULL, 0, v + i, 0), 0);
		assert_int_equal(kvattn_get(&one, stored, 0, 1, NULL, 0, &back, 0), 0);
		held &= back == v[i] || isnan(v[i]);
	}
	return held;
}

static void check_value(const struct given *given, const char *what, double got, double want, double tolerance)
{
	if (given->exact ? got == want : fabs(got - want) <= tolerance * fabs(want))
		return;
	fail_msg("%s: got %.9g, right is %.9g", what, got, want);
}

static void check_shape(
	const struct given *given, uint32_t type, uint32_t block_tokens, enum order order, uint32_t dim, uint32_t n_q)
{
	const struct kvattn_shape shape = {1, 1, dim, dim, type, type, block_tokens};
	const uint32_t n = given->n + given->tail;
	float *k = floats((size_t)n * dim), *v = floats((size_t)n * dim), *q = floats((size_t)n_q * dim);
	float *out = floats((size_t)n_q * dim), *lse = floats(n_q), spread = 1;
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	struct kv kv;
	char what[128];
	const double sums = rows_rounded(type, type, order == ORDER_TILED) ? TOLERANCE_SHORT : TOLERANCE;
	double tolerance = sums;

	kv_open(&kv, &shape, order, n);
	for (uint32_t j = 0; given->k && j < n; j++)
		k[(size_t)j * dim] = given->k[j];
	if (!values_spread(&kv, given, n, v, spread)) {
		spread = 0;
		if (!values_spread(&kv, given, n, v, spread))
			tolerance = TOLERANCE_ROUNDED;
	}
	kv_fill(&kv, k, v);
	if (type_coarse(type) && !keys_and_values_held(&kv, given->n, k, v))
		goto close;
	cases_of[type]++;
	for (uint32_t r = 0; r < n_q; r++)
		q[(size_t)r * dim] = given->q0;
	kvattn_opts_init(&opts, 1);
	opts.scale = 1;
	opts.n_threads = 1 + cases_of[type] % THREADS_MOST;
	if (given->options)
		given->options(&opts);
	seq = kv_seq(&kv, q, n_q, out);
	seq.table.n_tokens = given->n;
	seq.lse = lse;
	seq.causal = 0; /* every row sees all */
	seq.q_end = given->n + n_q - 1; /* and row 0 is the last key, for windows and biases */
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	for (uint32_t r = 0; r < n_q; r++) {
		if (opts.window && r > 0) /* later rows see less */
			break;
		snprintf(what, sizeof(what), "type %u, blocks of %u%s, dim %u, row %u of %u", type, block_tokens,
			order_names[order], dim, r, n_q);
		for (uint32_t d = 0; d < dim; d++)
			check_value(given, what, out[(size_t)r * dim + d],
				given->want_lse == -INFINITY ? 0 : given->want + (double)spread * d / 256, tolerance);
		if (given->want_lse == -INFINITY)
			assert_true(lse[r] == -INFINITY);
		else if (!isnan(given->want_lse))
			assert_true(fabs(lse[r] - given->want_lse) <= sums * (1 + fabs(given->want_lse)));
	}
close:
	kv_close(&kv);
	free(k), free(v), free(q), free(out), free(lse);
}

/* A row with an infinity in it is NaN as a whole in a type with a scale. */
static bool given_finite(const struct given *given)
{
	for (uint32_t j = 0; j < given->n; j++)
		if ((given->k && !isfinite(given->k[j])) || !isfinite(given->v[j]))
			return false;
	return true;
}

/* Every type, block size and order, decode and prefill. */
static void check(const struct given *given)
{
	for (size_t b = 0; given_finite(given) && b < COUNT(attn_block_sizes); b++)
		for (uint32_t n_q = 1; n_q <= 14; n_q += 13)
			for (uint32_t dim = 20; dim <= 64; dim += 44) {
				check_shape(given, KVATTN_I8, attn_block_sizes[b], ORDER_TILED, dim, n_q);
				check_shape(given, KVATTN_I4, attn_block_sizes[b], ORDER_TILED, dim, n_q);
				for (enum order order = 0; order < N_ORDERS; order++)
					check_shape(given, KVATTN_FP8_E4M3, attn_block_sizes[b], order, dim, n_q);
			}
	for (size_t t = 0; t < COUNT(attn_types); t++)
		for (size_t b = 0; b < COUNT(attn_block_sizes); b++)
			for (uint32_t n_q = 1; n_q <= 14; n_q += 13)
				for (enum order order = 0; order < N_ORDERS; order++)
					check_shape(given, attn_types[t], attn_block_sizes[b], order,
						order == ORDER_NHD ? 20 : 64, n_q);
}

static float *counting(uint32_t n)
{
	float *v = floats(n);

	for (uint32_t j = 0; j < n; j++)
		v[j] = (float)j;
	return v;
}

static void equal_keys_give_the_mean(void **state)
{
	float *v = counting(17);

	(void)state;
	check(&(struct given){.n = 7, .v = v, .want = 3, .want_lse = log(7)});
	check(&(struct given){.n = 17, .v = v, .want = 8, .want_lse = log(17)});
	free(v);
}

static void a_single_token_is_returned_exactly(void **state)
{
	static const float k[] = {-3.5f}, v[] = {0.375f};

	(void)state;
	check(&(struct given){.n = 1, .q0 = 2, .k = k, .v = v, .want = 0.375, .want_lse = -7, .exact = true});
}

static void a_zero_query_gives_the_mean(void **state)
{
	float *k = floats(33), *v = counting(33);
	uint64_t seed = 3;

	(void)state;
	noise_fill(&seed, k, 33, 100);
	check(&(struct given){.n = 33, .k = k, .v = v, .want = 16, .want_lse = log(33)});
	free(k), free(v);
}

static void a_huge_gap_stays_finite(void **state)
{
	static const float k[] = {1, -1, -1}, v[] = {5, 1, 2};

	(void)state;
	check(&(struct given){.n = 3, .q0 = 1e4f, .k = k, .v = v, .want = 5, .want_lse = 1e4});
}

static void huge_equal_scores_give_the_mean(void **state)
{
	static const float up[] = {1, 1, 1, 1}, down[] = {-1, -1, -1, -1}, v[] = {0, 1, 2, 3};

	(void)state;
	check(&(struct given){.n = 4, .q0 = 1e4f, .k = up, .v = v, .want = 1.5, .want_lse = 1e4 + log(4)});
	check(&(struct given){.n = 4, .q0 = 1e4f, .k = down, .v = v, .want = 1.5, .want_lse = -1e4 + log(4)});
}

static void two_weights_share_three_to_one(void **state)
{
	static const float k[] = {0, 1}, v[] = {0, 4};

	(void)state;
	check(&(struct given){.n = 2, .q0 = logf(3), .k = k, .v = v, .want = 3, .want_lse = log(4)});
}

static void doubling_weights_form_their_series(void **state)
{
	float *j = counting(10);

	(void)state;
	check(&(struct given){.n = 4, .q0 = logf(2), .k = j, .v = j, .want = 34.0 / 15, .want_lse = log(15)});
	check(&(struct given){
		.n = 10, .q0 = logf(2), .k = j, .v = j, .want = (8 * 1024 + 2) / 1023.0, .want_lse = log(1023)});
	free(j);
}

/* B61, N08; N35 and rows that a window or the causal edge leaves without a key are below */
static void a_row_of_minus_infinities_gives_zeros(void **state)
{
	static const float k[] = {-INFINITY, -INFINITY, -INFINITY}, v[] = {1, 2, NAN};

	(void)state;
	check(&(struct given){.n = 3, .q0 = 1, .k = k, .v = v, .want_lse = -INFINITY, .exact = true});
}

static void half_of_the_keys_masked_leaves_the_mean_of_the_others(void **state)
{
	static const float k[] = {0, -INFINITY, 0, -INFINITY, 0, -INFINITY, 0, -INFINITY};
	static const float v[] = {0, 1, 2, 3, 4, 5, 6, 7};

	(void)state;
	check(&(struct given){.n = 8, .q0 = 1, .k = k, .v = v, .want = 3, .want_lse = log(4)});
}

static void a_score_of_minus_infinity_hides_its_value(void **state)
{
	static const float k[] = {0, -INFINITY, 0, -INFINITY}, v[] = {2, NAN, 4, INFINITY};

	(void)state;
	check(&(struct given){.n = 4, .q0 = 1, .k = k, .v = v, .want = 3, .want_lse = log(2)});
}

/* Blocks of two tokens at positions with gaps, whose places in a tile begin and end anywhere: only what is there counts. */
static void check_gaps(enum order order)
{
	static const uint64_t pos[] = {5, 9, 40, 47, 63, 1022, 1024, 2047};
	const struct kvattn_shape shape = {1, 1, 16, 16, KVATTN_F32, KVATTN_F32, 2};
	float k[256] = {0}, v[256], q[14 * 16] = {0}, out[14 * 16], lse[14];
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	struct kv kv;

	for (int i = 0; i < 256; i++)
		v[i] = (float)(i / 16);
	kv_open(&kv, &shape, order, 16);
	kv_fill(&kv, k, v);
	kvattn_opts_init(&opts, 1);
	for (uint32_t n = 1; n <= 16; n++)
		for (uint32_t n_q = 1; n_q <= 14; n_q += 13) {
			seq = kv_seq(&kv, q, n_q, out);
			seq.table.block_pos = pos;
			seq.table.n_tokens = n;
			seq.lse = lse;
			seq.q_end = 3000;
			assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
			for (uint32_t i = 0; i < n_q * 16; i++)
				assert_true(fabs(out[i] - (n - 1) / 2.0) <= 8 * TOLERANCE);
			assert_true(fabs(lse[n_q - 1] - log(n)) <= 3 * TOLERANCE);
		}
	kv_close(&kv);
}

static void positions_without_a_key_do_not_count(void **state)
{
	(void)state;
	for (enum order order = 0; order < N_ORDERS; order++)
		check_gaps(order);
}

static void keys_past_the_end_do_not_count(void **state)
{
	static const float k[] = {0, 0, 0, NAN, INFINITY, 60000, -60000}, v[] = {1, 2, 3, NAN, -INFINITY, 65504, 65504};
	static const float huge_k[] = {0, 0, 0, 3e38f, 3e38f}, huge_v[] = {1, 2, 3, 3e38f, -3e38f};

	(void)state;
	check(&(struct given){.n = 3, .tail = 4, .q0 = 1, .k = k, .v = v, .want = 2, .want_lse = log(3)});
	check(&(struct given){.n = 3, .tail = 2, .q0 = 1, .k = huge_k, .v = huge_v, .want = 2, .want_lse = log(3)});
}

static void every_head_size_works(void **state)
{
	static const uint32_t dims[] = {
		1, 2, 3, 5, 7, 8, 15, 17, 33, 40, 63, 64, 65, 80, 96, 100, 112, 128, 192, 256, 257, 512, 576};
	float *j = counting(4);
	const struct given given = {.n = 4, .q0 = logf(2), .k = j, .v = j, .want = 34.0 / 15, .want_lse = log(15)};

	(void)state;
	for (size_t i = 0; i < COUNT(dims); i++)
		for (size_t t = 0; t < COUNT(every_type); t++)
			for (uint32_t n_q = 1; n_q <= 14; n_q += 13)
				for (enum order order = type_order(every_type[t]); order < N_ORDERS; order++)
					check_shape(&given, every_type[t],
						attn_block_sizes[(i + t) % COUNT(attn_block_sizes)], order, dims[i],
						n_q);
	free(j);
}

static void lengths_need_not_be_multiples_of_the_block(void **state)
{
	float *v = counting(1000);

	(void)state;
	for (size_t b = 0; b < COUNT(attn_block_sizes); b++) {
		const uint32_t size = attn_block_sizes[b];
		const uint32_t lengths[] = {1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1, 1000};

		for (size_t i = 0; i < COUNT(lengths); i++) {
			for (size_t t = 0; lengths[i] && t < COUNT(every_type); t++)
				for (uint32_t n_q = 1; n_q <= 14; n_q += 13)
					check_shape(&(struct given){.n = lengths[i],
							    .v = v,
							    .want = (lengths[i] - 1) / 2.0,
							    .want_lse = log(lengths[i])},
						every_type[t], size,
						type_order(every_type[t]) ? ORDER_TILED : (t + i) % N_ORDERS, 32, n_q);
		}
	}
	free(v);
}

static uint64_t window_of_this_run;

static void with_window(struct kvattn_opts *opts)
{
	opts->window = window_of_this_run;
}

/* B63, N16 */
static void a_window_shows_its_number_of_keys(void **state)
{
	static const uint32_t windows[] = {1, 3, 16, 20, 25};
	static const double wants[] = {19, 18, 11.5, 9.5, 9.5};
	float *v = counting(20);

	(void)state;
	for (size_t i = 0; i < COUNT(windows); i++) {
		window_of_this_run = windows[i];
		check(&(struct given){.n = 20, .v = v, .want = wants[i], .want_lse = NAN, .options = with_window});
	}
	free(v);
}

/* Rows of one causal call against a list; keys all equal, V_j = j. */
static void check_rows(uint32_t n, uint32_t n_q, uint64_t q_end, uint64_t window, uint64_t sinks, const double *wants)
{
	for (size_t t = 0; t < N_ORDERS * COUNT(every_type); t++)
		for (size_t b = 0; t % N_ORDERS >= type_order(every_type[t / N_ORDERS]) && b < COUNT(attn_block_sizes);
			b++) {
			const uint32_t type = every_type[t / N_ORDERS];
			const struct kvattn_shape shape = {1, 1, 16, 16, type, type, attn_block_sizes[b]};
			float *k = floats(n * 16), *v = floats(n * 16), *q = floats(n_q * 16), *out = floats(n_q * 16);
			float *lse = floats(n_q);
			struct kvattn_opts opts;
			struct kvattn_seq seq;
			struct kv kv;

			kv_open(&kv, &shape, t % N_ORDERS, n);
			for (uint32_t i = 0; i < n * 16; i++)
				v[i] = (float)(i / 16);
			kv_fill(&kv, k, v);
			kvattn_opts_init(&opts, 1);
			opts.window = window;
			opts.sink_tokens = sinks;
			seq = kv_seq(&kv, q, n_q, out);
			seq.lse = lse;
			seq.q_end = q_end;
			assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
			for (uint32_t r = 0; r < n_q; r++) {
				for (uint32_t d = 0; d < 16; d++)
					if (!(fabs(out[r * 16 + d] - (isnan(wants[r]) ? 0 : wants[r])) <=
						    20 * TOLERANCE))
						fail_msg("type %u, blocks of %u, row %u: got %.9g, right is %.9g", type,
							attn_block_sizes[b], r, out[r * 16 + d], wants[r]);
				assert_true(isnan(wants[r]) == (lse[r] == -INFINITY));
			}
			kv_close(&kv);
			free(k), free(v), free(q), free(out), free(lse);
		}
}

/* B63, N17 */
static void each_causal_row_has_its_own_window(void **state)
{
	(void)state;
	check_rows(6, 6, 0, 3, 0, (const double[]){0, 0.5, 1, 2, 3, 4});
}

static void sink_tokens_stay_visible_behind_the_window(void **state)
{
	(void)state;
	/* row 5 sees 0, 1 and 4, 5: mean 2.5; row 2 sees 0, 1, 2 */
	check_rows(6, 6, 0, 2, 2, (const double[]){0, 0.5, 1, 1.5, 2, 2.5});
}

/* B62, N18 */
static void a_causal_chunk_ends_at_the_last_key(void **state)
{
	(void)state;
	check_rows(10, 4, 0, 0, 0, (const double[]){3, 3.5, 4, 4.5});
}

/* B61 */
static void rows_before_the_first_key_see_nothing(void **state)
{
	(void)state;
	check_rows(4, 6, 0, 0, 0, (const double[]){NAN, NAN, 0, 0.5, 1, 1.5});
	check_rows(4, 3, 1, 0, 0, (const double[]){NAN, NAN, 0});
	/* a window that has gone past the last key hides every key of its row, not of the others */
	check_rows(3, 4, 6, 2, 0, (const double[]){1.5, 2, NAN, NAN});
}

static void hidden_keys_are_never_multiplied_by_zero(void **state)
{
	/* key 2 is NaN: rows 0 and 1 lie before it, row 2 is the first that may see it */
	const struct kvattn_shape shape = {1, 1, 16, 16, KVATTN_F32, KVATTN_F32, 2};
	float k[48] = {0}, v[48] = {0}, q[48] = {0}, out[48];
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	struct kv kv;

	(void)state;
	for (int d = 0; d < 16; d++) {
		v[d] = 1, v[16 + d] = 3;
		k[32 + d] = v[32 + d] = NAN;
	}
	kv_open(&kv, &shape, ORDER_HND, 3);
	kv_fill(&kv, k, v);
	kvattn_opts_init(&opts, 1);
	seq = kv_seq(&kv, q, 3, out);
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	assert_true(out[0] == 1 && out[16] == 2);
	assert_true(isnan(out[32])); /* what is visible is not hidden */
	kv_close(&kv);
}

/* A row that sees key 0 and its own, or its own alone; that is NaN, wherever in a tile it lies. */
static void a_key_that_is_not_a_number_shows_whichever_stand_beside_it(void **state)
{
	(void)state;
	for (uint32_t p = 1; p < 70; p++)
		for (uint32_t sinks = 0; sinks < 2; sinks++)
			for (enum order order = ORDER_HND; order < N_ORDERS; order += ORDER_TILED) {
				const struct kvattn_shape shape = {1, 1, 16, 16, KVATTN_F32, KVATTN_F32, 16};
				float *k = floats((p + 1) * 16), *v = floats((p + 1) * 16), q[16] = {0}, out[16], lse;
				struct kvattn_opts opts;
				struct kvattn_seq seq;
				struct kv kv;

				for (uint32_t d = 0; d < 16; d++)
					k[p * 16 + d] = NAN;
				kv_open(&kv, &shape, order, p + 1);
				kv_fill(&kv, k, v);
				kvattn_opts_init(&opts, 1);
				opts.window = 1;
				opts.sink_tokens = sinks;
				seq = kv_seq(&kv, q, 1, out);
				seq.lse = &lse;
				assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
				if (!isnan(out[0]) || !isnan(lse))
					fail_msg("key %u, %u sinks%s: got %g, log-sum %g", p, sinks, order_names[order],
						out[0], lse);
				kv_close(&kv);
				free(k), free(v);
			}
}

static void hidden_values_of_every_type_do_no_harm(void **state)
{
	/* a hidden token's scale is NaN, and stands beside those of visible ones */
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16, KVATTN_BF16, KVATTN_FP8_E4M3, KVATTN_I8, KVATTN_I4};

	(void)state;
	for (size_t i = 0; i < COUNT(types); i++) {
		const struct kvattn_shape shape = {1, 1, 16, 16, KVATTN_F32, types[i], 16};
		float k[48] = {0}, v[48] = {0}, q[48] = {0}, out[48];
		struct kvattn_opts opts;
		struct kvattn_seq seq;
		struct kv kv;

		for (int d = 0; d < 16; d++)
			v[d] = 1 + (float)(d % 2), v[16 + d] = 3 + (float)(d % 2), v[32 + d] = NAN;
		kv_open(&kv, &shape, ORDER_TILED, 3);
		kv_fill(&kv, k, v);
		kvattn_opts_init(&opts, 1);
		seq = kv_seq(&kv, q, 3, out);
		assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
		if (!(fabsf(out[0] - 1) <= 0.02f && fabsf(out[16] - 2) <= 0.02f && isnan(out[32])))
			fail_msg("type %u: %g, %g, %g", types[i], out[0], out[16], out[32]);
		kv_close(&kv);
	}
}

static float softcap_of_this_run;

static void with_softcap(struct kvattn_opts *opts)
{
	opts->softcap = softcap_of_this_run;
}

/* B65, N21 */
static void the_soft_cap_comes_before_the_mask(void **state)
{
	static const float k[] = {1, 0, 1}, v[] = {10, 0, 60000};

	(void)state;
	softcap_of_this_run = 2;
	check(&(struct given){.n = 2,
		.tail = 1,
		.q0 = 1e4f,
		.k = k,
		.v = v,
		.want = 10 * exp(2) / (exp(2) + 1),
		.want_lse = NAN,
		.options = with_softcap});
}

/* B65, N22 */
static void the_soft_cap_bounds_and_zero_is_off(void **state)
{
	static const float k[] = {1, 0}, small_k[] = {1, 0}, v[] = {1, 0};
	const double capped = 50 * tanh(2);

	(void)state;
	softcap_of_this_run = 50;
	check(&(struct given){
		.n = 2, .q0 = 100, .k = k, .v = v, .want = 1, .want_lse = capped, .options = with_softcap});
	/* small scores pass nearly unchanged: 50 tanh(0.02) */
	check(&(struct given){.n = 2,
		.q0 = 1,
		.k = small_k,
		.v = v,
		.want = 1 / (1 + exp(-50 * tanh(0.02))),
		.want_lse = log(1 + exp(50 * tanh(0.02))),
		.options = with_softcap});
	softcap_of_this_run = 0;
	check(&(struct given){.n = 2, .q0 = 100, .k = k, .v = v, .want = 1, .want_lse = 100, .options = with_softcap});
}

static float slope_of_this_run;

static void with_slope(struct kvattn_opts *opts)
{
	opts->alibi_slopes = &slope_of_this_run;
}

/* B67, N24 */
static void alibi_weighs_by_distance(void **state)
{
	static const float v[] = {0, 1, 2};
	const double w1 = exp(-0.5), w2 = exp(-1.0);

	(void)state;
	slope_of_this_run = 0.5f;
	check_shape(&(struct given){.n = 2, .v = v, .want = 1 / (1 + w1), .want_lse = NAN, .options = with_slope},
		KVATTN_F32, 16, false, 16, 1);
	/* all rows of a later chunk: a constant shift of every score changes no weight */
	check(&(struct given){
		.n = 3, .v = v, .want = (2 + w1) / (1 + w1 + w2), .want_lse = NAN, .options = with_slope});
}

/* B67, N24 */
static void alibi_slopes_are_those_of_the_paper(void **state)
{
	static const float six[] = {0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-1f, 0x1p-3f};
	float slopes[12];

	(void)state;
	assert_int_equal(kvattn_alibi_slopes(8, slopes), 0);
	for (int h = 0; h < 8; h++)
		assert_true(slopes[h] == ldexpf(1, -1 - h));
	assert_int_equal(kvattn_alibi_slopes(6, slopes), 0);
	for (int h = 0; h < 6; h++)
		assert_true(slopes[h] == six[h]);
	assert_int_equal(kvattn_alibi_slopes(12, slopes), 0);
	for (int h = 0; h < 12; h++)
		assert_true(slopes[h] == (float)exp2(h < 8 ? -1.0 - h : -0.5 - (h - 8)));
	assert_int_equal(kvattn_alibi_slopes(0, slopes), -22);
	assert_int_equal(kvattn_alibi_slopes(KVATTN_HEADS_MAX + 1, slopes), -22);
}

/* V of KV head g is g + 1; one token */
static int heads_attend(
	uint32_t type, enum order order, uint32_t block_tokens, uint32_t q_heads, uint32_t kv_heads, float *out)
{
	const struct kvattn_shape shape = {1, kv_heads, 16, 16, type, type, block_tokens};
	float *k = floats(kv_heads * 16), *v = floats(kv_heads * 16), *q = floats(q_heads * 16);
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	struct kv kv;
	int r;

	for (uint32_t i = 0; i < kv_heads * 16; i++)
		v[i] = (float)(i / 16 + 1);
	kv_open(&kv, &shape, order, 1);
	kv_fill(&kv, k, v);
	kvattn_opts_init(&opts, q_heads);
	seq = kv_seq(&kv, q, 1, out);
	r = kvattn_attend(&kv.geom, &seq, 1, &opts);
	kv_close(&kv);
	free(k), free(v), free(q);
	return r;
}

static void check_heads(uint32_t type, enum order order, uint32_t block_tokens)
{
	static const struct {
		uint32_t q_heads, kv_heads;
	} cases[] = {{6, 2}, {48, 2}, {32, 1}, {12, 12}, {71, 1}, {28, 4}, {40, 8}};
	float out[71 * 16];

	for (size_t c = 0; c < COUNT(cases); c++) {
		assert_int_equal(heads_attend(type, order, block_tokens, cases[c].q_heads, cases[c].kv_heads, out), 0);
		for (uint32_t h = 0; h < cases[c].q_heads; h++) {
			const float want = (float)(h / (cases[c].q_heads / cases[c].kv_heads) + 1);

			for (uint32_t d = 0; d < 16; d++)
				if (out[h * 16 + d] != want)
					fail_msg("type %u%s, head %u of %u: got %.9g, right is %g", type,
						order_names[order], h, cases[c].q_heads, out[h * 16 + d], want);
		}
	}
	assert_int_equal(heads_attend(type, order, block_tokens, 3, 2, out), -22);
}

/* B64, N28 */
static void query_heads_find_their_kv_head(void **state)
{
	(void)state;
	for (size_t t = 0; t < COUNT(every_type); t++)
		for (enum order order = type_order(every_type[t]); order < N_ORDERS; order++)
			for (size_t b = 0; b < COUNT(attn_block_sizes); b++)
				check_heads(every_type[t], order, attn_block_sizes[b]);
}

static void a_page_listed_twice_counts_twice(void **state)
{
	const struct kvattn_shape shape = {1, 1, 16, 16, KVATTN_F32, KVATTN_F32, 16};
	float k[32 * 16] = {0}, v[32 * 16], q[16] = {0}, out[16];
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	struct kv kv;

	(void)state;
	for (int i = 0; i < 32 * 16; i++)
		v[i] = i < 256 ? 3 : 9;
	kv_open(&kv, &shape, ORDER_HND, 32);
	kv_fill(&kv, k, v);
	kvattn_opts_init(&opts, 1);
	seq = kv_seq(&kv, q, 1, out);
	seq.table.blocks = (const void *[]){kv.blocks[0], kv.blocks[0], kv.blocks[1]};
	seq.table.n_blocks = 3;
	seq.table.n_tokens = 48;
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	for (int d = 0; d < 16; d++)
		assert_true(out[d] == 5);
	kv_close(&kv);
}

/* B61, N35 */
static void an_empty_sequence_gives_zeros_and_leaves_its_neighbours_alone(void **state)
{
	const struct kvattn_shape shape = {1, 1, 16, 16, KVATTN_F32, KVATTN_F32, 16};
	float k[7 * 16] = {0}, v[7 * 16], q[16] = {0}, out[3][16], lse[3];
	struct kvattn_opts opts;
	struct kvattn_seq seqs[3];
	struct kv kv;

	(void)state;
	for (int i = 0; i < 7 * 16; i++)
		v[i] = (float)(i / 16);
	kv_open(&kv, &shape, ORDER_HND, 7);
	kv_fill(&kv, k, v);
	kvattn_opts_init(&opts, 1);
	for (int i = 0; i < 3; i++) {
		seqs[i] = kv_seq(&kv, q, 1, out[i]);
		seqs[i].lse = &lse[i];
	}
	seqs[1].table = (struct kvattn_table){0};
	memset(out, 0xff, sizeof(out));
	assert_int_equal(kvattn_attend(&kv.geom, seqs, 3, &opts), 0);
	for (int d = 0; d < 16; d++)
		assert_true(out[0][d] == 3 && out[1][d] == 0 && out[2][d] == 3);
	assert_true(lse[1] == -INFINITY && lse[0] == lse[2]);
	assert_int_equal(kvattn_attend(&kv.geom, seqs + 1, 1, &opts), 0);
	kv_close(&kv);
}

static float scale_of_this_run;

static void with_scale(struct kvattn_opts *opts)
{
	opts->scale = scale_of_this_run;
}

static void the_scale_may_be_default_zero_or_negative(void **state)
{
	static const float k[] = {1, 0}, v[] = {4, 0}, other_v[] = {0, 4};

	(void)state;
	scale_of_this_run = NAN; /* 1 / sqrt(64) */
	check_shape(&(struct given){.n = 2,
			    .q0 = 8 * logf(3),
			    .k = k,
			    .v = v,
			    .want = 3,
			    .want_lse = log(4),
			    .options = with_scale},
		KVATTN_F16, 16, false, 64, 1);
	scale_of_this_run = 0;
	check(&(struct given){
		.n = 2, .q0 = 5, .k = k, .v = other_v, .want = 2, .want_lse = log(2), .options = with_scale});
	scale_of_this_run = -1;
	check(&(struct given){.n = 2,
		.q0 = logf(3),
		.k = (const float[]){0, 1},
		.v = other_v,
		.want = 1,
		.want_lse = log(4.0 / 3),
		.options = with_scale});
}

static void check_unequal_lengths(uint32_t type, enum order order, uint32_t block_tokens)
{
	static const uint64_t lengths[] = {1, 17, 4096};
	static const double wants[] = {0, 8, 2047.5};
	const struct kvattn_shape shape = {1, 1, 16, 16, type, type, block_tokens};
	float *k = floats(4096 * 16), *v = floats(4096 * 16), q[16] = {0}, out[3][16];
	struct kvattn_opts opts;
	struct kvattn_seq seqs[3];
	struct kv kv;

	for (int i = 0; i < 4096 * 16; i++)
		v[i] = (float)(i / 16);
	kv_open(&kv, &shape, order, 4096);
	kv_fill(&kv, k, v);
	kvattn_opts_init(&opts, 1);
	for (int i = 0; i < 3; i++) {
		seqs[i] = kv_seq(&kv, q, 1, out[i]);
		seqs[i].table.n_tokens = lengths[i];
	}
	for (uint32_t threads = 1; threads <= 3; threads++) {
		opts.n_threads = threads;
		memset(out, 0xff, sizeof(out));
		assert_int_equal(kvattn_attend(&kv.geom, seqs, 3, &opts), 0);
		for (int i = 0; i < 3; i++)
			for (int d = 0; d < 16; d++)
				if (!(fabs(out[i][d] - wants[i]) <= TOLERANCE * wants[i]))
					fail_msg("type %u%s, blocks of %u, %u threads: got %.9g, right is %g", type,
						order_names[order], block_tokens, threads, out[i][d], wants[i]);
	}
	kv_close(&kv);
	free(k), free(v);
}

/* In types that hold a row of 4095. */
static void very_unequal_lengths_share_a_batch(void **state)
{
	(void)state;
	for (size_t b = 0; b < COUNT(attn_block_sizes); b++) {
		for (enum order order = 0; order < N_ORDERS; order++)
			check_unequal_lengths(KVATTN_F32, order, attn_block_sizes[b]);
		check_unequal_lengths(KVATTN_I8, ORDER_TILED, attn_block_sizes[b]);
	}
}

/* @n keys of small heads, all scores equal, V_j = even or odd */
static void check_long(
	enum order order, uint32_t type, uint32_t n, float even, float odd, double want, double tolerance)
{
	const struct kvattn_shape shape = {1, 1, 8, 8, type, type, 64};
	float *k = floats((size_t)n * 8), *v = floats((size_t)n * 8), *q = floats(14 * 8), *out = floats(14 * 8);
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	struct kv kv;

	for (size_t i = 0; i < (size_t)n * 8; i++)
		v[i] = i / 8 % 2 ? odd : even;
	kv_open(&kv, &shape, order, n);
	kv_fill(&kv, k, v);
	kvattn_opts_init(&opts, 1);
	for (uint32_t n_q = 1; n_q <= 14; n_q += 13) {
		seq = kv_seq(&kv, q, n_q, out);
		seq.causal = 0;
		assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
		for (uint32_t i = 0; i < n_q * 8; i++)
			if (!(fabs(out[i] - want) <= tolerance))
				fail_msg("type %u: got %.9g, right is %.9g", type, out[i], want);
	}
	kv_close(&kv);
	free(k), free(v), free(q), free(out);
}

/* B69, N39 */
static void a_long_context_keeps_its_accuracy(void **state)
{
	(void)state;
	for (size_t t = 0; t < COUNT(every_type); t++)
		for (enum order order = type_order(every_type[t]); order < N_ORDERS; order += ORDER_TILED)
			check_long(order, every_type[t], 131072, 0, 1, 0.5, 1e-5);
}

/* B69 */
static void sums_do_not_overflow_the_stored_type(void **state)
{
	(void)state;
	for (enum order order = ORDER_HND; order < N_ORDERS; order += ORDER_TILED) {
		check_long(order, KVATTN_F16, 4096, 60000, 60000, 60000, 60000 * TOLERANCE);
		check_long(order, KVATTN_BF16, 4096, 0x1p110f, 0x1p105f, 0x1p109 + 0x1p104, 0x1p109 * TOLERANCE);
	}
}

/* Codes -127 .. 127 at a scale of a half, one a token, each picked by a huge score. */
static void every_int8_code_is_its_multiple_of_the_scale(void **state)
{
	const struct kvattn_shape shape = {1, 1, 16, 16, KVATTN_F32, KVATTN_I8, 64};
	static float k[255 * 16], v[255 * 16];
	float q[16] = {0}, out[16];
	struct kvattn_opts opts;
	struct kv kv;

	(void)state;
	for (int j = 0; j < 255; j++)
		for (int d = 0; d < 16; d++) /* dim 1 sets the scale */
			v[j * 16 + d] = d == 1 ? 63.5f : 0.5f * (float)(j - 127);
	q[0] = 1;
	kvattn_opts_init(&opts, 1);
	opts.scale = 1;
	kv_open(&kv, &shape, ORDER_TILED, 255);
	for (int j = 0; j < 255; j++) {
		struct kvattn_seq seq = kv_seq(&kv, q, 1, out);

		k[j * 16] = 1e4f;
		kv_fill(&kv, k, v);
		k[j * 16] = 0;
		assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
		assert_true(out[0] == v[j * 16] && out[1] == 63.5f);
	}
	kv_close(&kv);
}

/* A row of zeros has no scale to divide by; one with a NaN in it is NaN throughout, and hides nowhere. */
static void int8_rows_without_a_scale_are_zero_or_nan(void **state)
{
	const struct kvattn_shape shape = {1, 1, 16, 16, KVATTN_I8, KVATTN_I8, 16};
	float k[32] = {0}, v[32] = {0}, q[16] = {1}, out[16];
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	struct kv kv;

	(void)state;
	kvattn_opts_init(&opts, 1);
	kv_open(&kv, &shape, ORDER_TILED, 2);
	seq = kv_seq(&kv, q, 1, out);
	kv_fill(&kv, k, v);
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	for (int d = 0; d < 16; d++)
		assert_true(out[d] == 0);
	v[3] = NAN;
	kv_fill(&kv, k, v);
	kv_read(&kv, NULL, v);
	for (int d = 0; d < 32; d++)
		assert_true(d < 16 ? isnan(v[d]) : v[d] == 0);
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	assert_true(isnan(out[0]));
	seq.q_end = 3; /* a window of the second key only: the first is skipped, not multiplied by zero */
	opts.window = 2;
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	for (int d = 0; d < 16; d++)
		assert_true(out[d] == 0);
	kv_close(&kv);
}

/* value = scale * code, whatever the signs: a block need not be of kvattn_put()'s making. */
static void int8_scales_may_be_negative(void **state)
{
	enum { DIM = 16, N = 16, K_BYTES = DIM * N + N * sizeof(float) };
	const struct kvattn_shape shape = {1, 1, DIM, DIM, KVATTN_I8, KVATTN_I8, N};
	float k[N * DIM], v[N * DIM], q[DIM], want[DIM], out[DIM];
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	uint64_t seed = 5;
	struct kv kv;

	(void)state;
	noise_fill(&seed, k, N * DIM, 1);
	noise_fill(&seed, v, N * DIM, 1);
	noise_fill(&seed, q, DIM, 4);
	kvattn_opts_init(&opts, 1);
	kv_open(&kv, &shape, ORDER_TILED, N);
	kv_fill(&kv, k, v);
	seq = kv_seq(&kv, q, 1, want);
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	for (int tensor = 0; tensor < 2; tensor++) {
		int8_t *codes = (int8_t *)kv_block(&kv, 0) + tensor * K_BYTES;
		float *scales = (float *)(void *)(codes + DIM * N);

		for (int i = 0; i < DIM * N; i++)
			codes[i] = (int8_t)-codes[i];
		for (int i = 0; i < N; i++)
			scales[i] = -scales[i];
	}
	seq.out = out;
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	for (int d = 0; d < DIM; d++)
		assert_true(fabsf(out[d] - want[d]) <= TOLERANCE);
	kv_close(&kv);
}

static void rising_and_falling_maxima_give_the_same(void **state)
{
	float k[200], v[200];
	/* bf16 holds whole numbers up to 256 */
	const double want = 1 / ((1 - exp(-200)) / (1 - exp(-1)));

	(void)state;
	for (int j = 0; j < 200; j++) {
		k[j] = (float)j;
		v[j] = j == 199;
	}
	check_shape(&(struct given){.n = 200, .q0 = 1, .k = k, .v = v, .want = want, .want_lse = NAN}, KVATTN_F32, 16,
		ORDER_HND, 1, 1);
	check(&(struct given){.n = 200, .q0 = 1, .k = k, .v = v, .want = want, .want_lse = NAN});
	for (int j = 0; j < 200; j++) {
		k[j] = (float)(199 - j);
		v[j] = j == 0;
	}
	check(&(struct given){.n = 200, .q0 = 1, .k = k, .v = v, .want = want, .want_lse = NAN});
}

static void splits_fold_whichever_has_the_larger_maximum(void **state)
{
	/* 1024 positions a split: the weights of one are three times those of the other */
	static float k[2048], v[2048];

	(void)state;
	for (int later = 0; later < 2; later++) {
		for (int j = 0; j < 2048; j++) {
			k[j] = j / 1024 == later;
			v[j] = j / 1024 == later ? 2 : 1;
		}
		for (enum order order = ORDER_HND; order < N_ORDERS; order++)
			check_shape(&(struct given){.n = 2048,
					    .q0 = logf(3),
					    .k = k,
					    .v = v,
					    .want = 1.75,
					    .want_lse = logf(4 * 1024)},
				KVATTN_F32, 64, order, 16, 1);
	}
}

static void parts_merge_by_their_log_sums(void **state)
{
	static const float out_a[2] = {0, 0.5f}, out_b[2] = {4, 4.5f}, none[2] = {NAN, NAN};
	const float lse_a = 0, lse_b = logf(3), lse_none = -INFINITY;
	const struct kvattn_part parts[] = {{none, &lse_none}, {out_a, &lse_a}, {none, &lse_none}, {out_b, &lse_b}};
	float out[2] = {9, 9}, lse = 9;

	(void)state;
	assert_int_equal(kvattn_merge(parts, 4, 1, 2, out, &lse), 0);
	assert_true(fabs(out[0] - 3) <= 3 * TOLERANCE && fabs(out[1] - 3.5) <= 3.5 * TOLERANCE);
	assert_true(fabs(lse - log(4)) <= TOLERANCE);
	assert_int_equal(kvattn_merge(parts, 1, 1, 2, out, &lse), 0);
	assert_true(out[0] == 0 && out[1] == 0 && lse == -INFINITY);
	assert_int_equal(kvattn_merge(NULL, 0, 1, 2, out, NULL), 0);
	assert_true(out[0] == 0);
}

static void check_ones(uint32_t type, enum order order, uint32_t block_tokens)
{
	const struct kvattn_shape shape = {1, 2, 40, 24, type, type, block_tokens};
	const uint32_t n = 1500, n_q = 20;
	float *k = floats((size_t)n * 2 * 40), *v = floats((size_t)n * 2 * 24), *q = floats(n_q * 6 * 40);
	float *out = floats(n_q * 6 * 24);
	uint64_t seed = 45;
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	struct kv kv;

	noise_fill(&seed, k, (size_t)n * 2 * 40, 2);
	noise_fill(&seed, q, n_q * 6 * 40, 3);
	for (size_t i = 0; i < (size_t)n * 2 * 24; i++)
		v[i] = 1;
	kv_open(&kv, &shape, order, n);
	kv_fill(&kv, k, v);
	kvattn_opts_init(&opts, 6);
	seq = kv_seq(&kv, q, n_q, out);
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	for (uint32_t i = 0; i < n_q * 6 * 24; i++)
		if (!(fabs(out[i] - 1) <= 1e-6))
			fail_msg("type %u%s, blocks of %u: got %.9g", type, order_names[order], block_tokens, out[i]);
	kv_close(&kv);
	free(k), free(v), free(q), free(out);
}

static void weights_sum_to_one(void **state)
{
	(void)state;
	for (size_t t = 0; t < COUNT(every_type); t++)
		for (enum order order = type_order(every_type[t]); order < N_ORDERS; order++)
			for (size_t b = 0; b < COUNT(attn_block_sizes); b++)
				check_ones(every_type[t], order, attn_block_sizes[b]);
}

static float sink_of_this_run;

static void with_sink(struct kvattn_opts *opts)
{
	opts->sink_logits = &sink_of_this_run;
}

static void a_sink_joins_the_denominator_alone(void **state)
{
	static const float v[] = {6, 6};

	(void)state;
	sink_of_this_run = logf(2);
	check_shape(&(struct given){.n = 1, .v = v, .want = 2, .want_lse = log(3), .options = with_sink}, KVATTN_F32,
		16, false, 1, 1);
	check_shape(&(struct given){.n = 2, .v = v, .want = 3, .want_lse = log(4), .options = with_sink}, KVATTN_F16,
		16, false, 1, 14);
	check_shape(&(struct given){.n = 0, .v = v, .want = 0, .want_lse = log(2), .options = with_sink, .exact = true},
		KVATTN_F32, 16, false, 1, 1);
	sink_of_this_run = -INFINITY;
	check(&(struct given){.n = 2, .v = v, .want = 6, .want_lse = log(2), .options = with_sink});
	sink_of_this_run = 200; /* far above every score: nothing is left of the values */
	check_shape(&(struct given){.n = 2, .v = v, .want = 0, .want_lse = 200, .options = with_sink, .exact = true},
		KVATTN_F32, 16, false, 1, 1);
}

/* Of those above: or they would have been checked with none. */
static void types_of_few_bits_hold_the_numbers_of_some_cases(void **state)
{
	(void)state;
	print_message("cases of fp8 %u, int4 %u\n", cases_of[KVATTN_FP8_E4M3], cases_of[KVATTN_I4]);
	assert_true(cases_of[KVATTN_FP8_E4M3] >= 100);
	assert_true(cases_of[KVATTN_I4] >= 50);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_keys_give_the_mean),
		cmocka_unit_test(a_single_token_is_returned_exactly),
		cmocka_unit_test(a_zero_query_gives_the_mean),
		cmocka_unit_test(a_huge_gap_stays_finite),
		cmocka_unit_test(huge_equal_scores_give_the_mean),
		cmocka_unit_test(two_weights_share_three_to_one),
		cmocka_unit_test(doubling_weights_form_their_series),
		cmocka_unit_test(a_row_of_minus_infinities_gives_zeros),
		cmocka_unit_test(half_of_the_keys_masked_leaves_the_mean_of_the_others),
		cmocka_unit_test(a_score_of_minus_infinity_hides_its_value),
		cmocka_unit_test(positions_without_a_key_do_not_count),
		cmocka_unit_test(keys_past_the_end_do_not_count),
		cmocka_unit_test(every_head_size_works),
		cmocka_unit_test(lengths_need_not_be_multiples_of_the_block),
		cmocka_unit_test(a_window_shows_its_number_of_keys),
		cmocka_unit_test(each_causal_row_has_its_own_window),
		cmocka_unit_test(sink_tokens_stay_visible_behind_the_window),
		cmocka_unit_test(a_causal_chunk_ends_at_the_last_key),
		cmocka_unit_test(rows_before_the_first_key_see_nothing),
		cmocka_unit_test(hidden_keys_are_never_multiplied_by_zero),
		cmocka_unit_test(a_key_that_is_not_a_number_shows_whichever_stand_beside_it),
		cmocka_unit_test(hidden_values_of_every_type_do_no_harm),
		cmocka_unit_test(the_soft_cap_comes_before_the_mask),
		cmocka_unit_test(the_soft_cap_bounds_and_zero_is_off),
		cmocka_unit_test(alibi_weighs_by_distance),
		cmocka_unit_test(alibi_slopes_are_those_of_the_paper),
		cmocka_unit_test(query_heads_find_their_kv_head),
		cmocka_unit_test(a_page_listed_twice_counts_twice),
		cmocka_unit_test(an_empty_sequence_gives_zeros_and_leaves_its_neighbours_alone),
		cmocka_unit_test(the_scale_may_be_default_zero_or_negative),
		cmocka_unit_test(very_unequal_lengths_share_a_batch),
		cmocka_unit_test(a_long_context_keeps_its_accuracy),
		cmocka_unit_test(sums_do_not_overflow_the_stored_type),
		cmocka_unit_test(every_int8_code_is_its_multiple_of_the_scale),
		cmocka_unit_test(int8_rows_without_a_scale_are_zero_or_nan),
		cmocka_unit_test(int8_scales_may_be_negative),
		cmocka_unit_test(rising_and_falling_maxima_give_the_same),
		cmocka_unit_test(splits_fold_whichever_has_the_larger_maximum),
		cmocka_unit_test(parts_merge_by_their_log_sums),
		cmocka_unit_test(weights_sum_to_one),
		cmocka_unit_test(a_sink_joins_the_denominator_alone),
		cmocka_unit_test(types_of_few_bits_hold_the_numbers_of_some_cases),
	};
	const int r = levels_run(argv);

	(void)argc;
	if (SANITIZED && r < 0)
		print_message("blocks of 1 and 32 tokens only: a sanitizer is that slow\n");
	return r >= 0 ? r : cmocka_run_group_tests_name(kvattn_isa_name(), tests, NULL, NULL);
}
