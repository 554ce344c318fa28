/*
 * test_attn_tune.c - what belongs to the machine shows in no bit; what the caller may choose shows as the header says
 *
 * kvpool-test: timeout=300
 */
#include <errno.h>

#include "kernels/tune.h"
#include "test_attn_fixture.h"

#define KV_HEADS 2u
#define Q_HEADS 8u
#define DIM 64u
#define TOKENS 1500u
#define ROWS 3u
#define OUT (ROWS * Q_HEADS * DIM)

/* Attention of the last @n_q of three rows over the same keys, whatever the type and layout; @out: of those rows. */
static void attend(uint32_t type, enum order order, uint32_t n_q, uint32_t flags, float *out)
{
	const struct kvattn_shape shape = {1, KV_HEADS, DIM, DIM, type, type, 64};
	float *k = floats((size_t)TOKENS * KV_HEADS * DIM), *v = floats((size_t)TOKENS * KV_HEADS * DIM);
	float q[ROWS * Q_HEADS * DIM];
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	uint64_t seed = 5;
	struct kv kv;

	noise_fill(&seed, k, (size_t)TOKENS * KV_HEADS * DIM, 1);
	noise_fill(&seed, v, (size_t)TOKENS * KV_HEADS * DIM, 1);
	noise_fill(&seed, q, ROWS * Q_HEADS * DIM, 3);
	kv_open(&kv, &shape, order, TOKENS);
	kv_fill(&kv, k, v);
	kvattn_opts_init(&opts, Q_HEADS);
	opts.flags = flags;
	seq = kv_seq(&kv, q + (size_t)(ROWS - n_q) * Q_HEADS * DIM, n_q, out);
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	kv_close(&kv);
	free(k), free(v);
}

static void how_far_ahead_memory_is_asked_for_changes_no_bit(void **state)
{
	static const uint32_t distances[] = {64, 704, 2048, 8192, TUNE_AHEAD_MAX};
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16, KVATTN_BF16, KVATTN_FP8_E4M3, KVATTN_I8, KVATTN_I4};

	(void)state;
	for (size_t t = 0; t < COUNT(types); t++)
		for (enum order order = types[t] == KVATTN_I8 || types[t] == KVATTN_I4 ? ORDER_TILED : ORDER_HND;
			order < N_ORDERS; order++) {
			float want[OUT], out[OUT];

			tune_ahead_set(distances[2]);
			attend(types[t], order, ROWS, 0, want);
			for (size_t i = 0; i < COUNT(distances); i++) {
				tune_ahead_set(distances[i]);
				assert_int_equal(tune_ahead(), distances[i]);
				attend(types[t], order, ROWS, 0, out);
				assert_memory_equal(out, want, sizeof(want));
			}
		}
}

static void a_distance_that_cannot_be_meant_is_passed_over(void **state)
{
	static const char *const wrong[] = {
		"", "0", "63", "65537", "-64", " 64", "2048x", "2k", "99999999999999999999"};

	(void)state;
	assert_int_equal(tune_ahead_of(NULL), 0);
	for (size_t i = 0; i < COUNT(wrong); i++)
		assert_int_equal(tune_ahead_of(wrong[i]), 0);
	assert_int_equal(tune_ahead_of("64"), 64);
	assert_int_equal(tune_ahead_of("2100"), 2048); /* whole lines */
	assert_int_equal(tune_ahead_of("65536"), 65536);
}

static void what_is_measured_is_used_and_what_is_told_is_not_measured(void **state)
{
	int64_t best;

	(void)state;
	setenv("KVATTN_AHEAD", "1088", 1);
	assert_int_equal(kvattn_calibrate(), 1088);
	assert_int_equal(tune_ahead(), 1088);
	unsetenv("KVATTN_AHEAD");
	if (SANITIZED) {
		print_message("nothing is measured under a sanitizer\n");
		skip();
	}
	best = kvattn_calibrate();
	assert_in_range(best, 1024, 8192);
	assert_int_equal(tune_ahead(), best);
}

/* The sum of a result's bits, so that another process can say it. */
static uint64_t bits_of(const float *out, size_t n)
{
	const unsigned char *bytes = (const unsigned char *)out;
	uint64_t sum = 14695981039346656037u;

	for (size_t i = 0; i < n * sizeof(*out); i++)
		sum = (sum ^ bytes[i]) * 1099511628211u;
	return sum;
}

/* What a process that may use no more than @isa gets. */
static uint64_t bits_with(const char *isa)
{
	char command[160], line[32] = "";
	FILE *pipe;

	snprintf(command, sizeof(command), "ATTN_SAY_BITS=1 KVATTN_ISA=%s exec /proc/%d/exe", isa, (int)getpid());
	pipe = must(popen(command, "r"));
	assert_non_null(fgets(line, sizeof(line), pipe));
	assert_int_equal(pclose(pipe), 0);
	return strtoull(line, NULL, 16);
}

static void bf16_by_vectors_has_the_bits_of_the_level_without_tiles(void **state)
{
	const bool amx = strcmp(kvattn_isa_name(), "avx512amx") == 0;
	float tiles[OUT], vectors[OUT], last[OUT];

	(void)state;
	attend(KVATTN_BF16, ORDER_TILED, ROWS, 0, tiles);
	attend(KVATTN_BF16, ORDER_TILED, ROWS, KVATTN_BF16_VECTORS, vectors);
	assert_int_equal(bits_of(vectors, OUT), bits_with(amx ? "avx512vnni" : kvattn_isa_name()));
	assert_int_equal(memcmp(tiles, vectors, sizeof(tiles)) != 0, amx); /* it does choose */
	/* and the promise holds with it: a row alone is the row among others */
	attend(KVATTN_BF16, ORDER_TILED, 1, KVATTN_BF16_VECTORS, last);
	assert_memory_equal(last, vectors + (size_t)(ROWS - 1) * Q_HEADS * DIM, Q_HEADS * DIM * sizeof(float));
}

static void the_choice_concerns_nothing_else(void **state)
{
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16, KVATTN_I8, KVATTN_I4, KVATTN_FP8_E4M3};
	float want[OUT], out[OUT];

	(void)state;
	for (size_t t = 0; t < COUNT(types); t++) {
		attend(types[t], ORDER_TILED, ROWS, 0, want);
		attend(types[t], ORDER_TILED, ROWS, KVATTN_BF16_VECTORS, out);
		assert_memory_equal(out, want, sizeof(want));
	}
	attend(KVATTN_BF16, ORDER_HND, ROWS, 0, want);
	attend(KVATTN_BF16, ORDER_HND, ROWS, KVATTN_BF16_VECTORS, out);
	assert_memory_equal(out, want, sizeof(want));
}

static int bits_say(void)
{
	float out[OUT];

	attend(KVATTN_BF16, ORDER_TILED, ROWS, 0, out);
	return printf("%llx\n", (unsigned long long)bits_of(out, OUT)) < 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(how_far_ahead_memory_is_asked_for_changes_no_bit),
		cmocka_unit_test(a_distance_that_cannot_be_meant_is_passed_over),
		cmocka_unit_test(what_is_measured_is_used_and_what_is_told_is_not_measured),
		cmocka_unit_test(bf16_by_vectors_has_the_bits_of_the_level_without_tiles),
		cmocka_unit_test(the_choice_concerns_nothing_else),
	};

	return getenv("ATTN_SAY_BITS") ? bits_say() : cmocka_run_group_tests(tests, NULL, NULL);
}
