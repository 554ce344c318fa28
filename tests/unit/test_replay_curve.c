/*
 * test_replay_curve.c - the curve from a sample of the keys, against the exact one from all of them
 *
 * kvpool-test: timeout=300
 *
 * Exact: the position of each block in a list by last use, as it was before the request that asks for it, the end of a
 * chain older than its beginning.  That is what an LRU pool of so many blocks would have had.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvctl/replay.h"
#include "daemon/curve.h"

#define BLOCK 65536u
#define TOKENS 512u
#define TICKS 62u
#define SIZES 5u
#define POINTS 2.0 /* the estimate may be off by so much */

static const double parts[SIZES] = {.01, .02, .05, .10, .20}; /* of the distinct blocks */

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static double uniform(uint64_t *seed)
{
	return (double)(mix((*seed)++) >> 11) / 9007199254740992.0;
}

/* ---- the exact one ---- */

struct exact {
	uint32_t n_keys, room, next;
	uint32_t *position; /* by key; 0: never used */
	uint32_t *tree; /* blocks by position, from 1 */
	uint64_t *hits; /* by distance in blocks, this one included */
	uint64_t uses;
};

static void exact_add(struct exact *x, uint32_t i, uint32_t n)
{
	for (; i <= x->room; i += i & -i)
		x->tree[i] += n;
}

static uint32_t exact_sum(const struct exact *x, uint32_t i)
{
	uint32_t sum = 0;

	for (; i; i -= i & -i)
		sum += x->tree[i];
	return sum;
}

static struct exact exact_new(uint32_t n_keys, uint32_t n_uses)
{
	struct exact x = {.n_keys = n_keys, .room = n_uses + 1};

	x.position = calloc(n_keys, sizeof(*x.position));
	x.tree = calloc(x.room + 1, sizeof(*x.tree));
	x.hits = calloc(n_keys + 2, sizeof(*x.hits));
	assert_true(x.position && x.tree && x.hits);
	return x;
}

static void exact_free(struct exact *x)
{
	free(x->position);
	free(x->tree);
	free(x->hits);
}

static void exact_request(struct exact *x, const uint32_t *keys, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = x->position[keys[i]];

		x->uses++;
		if (at)
			x->hits[exact_sum(x, x->next) - exact_sum(x, at) + 1]++;
	}
	while (n-- > 0) {
		uint32_t *at = &x->position[keys[n]];

		if (*at)
			exact_add(x, *at, -1u);
		*at = ++x->next;
		exact_add(x, *at, 1);
	}
}

static double exact_percent(const struct exact *x, uint64_t blocks)
{
	uint64_t hits = 0;

	for (uint64_t i = 0; i <= blocks && i <= x->n_keys; i++)
		hits += x->hits[i];
	return 100.0 * (double)hits / (double)x->uses;
}

/* ---- the estimate ---- */

static double estimate_percent(const struct curve *curve, double blocks)
{
	struct kvp_curve told;

	curve_store(curve, &told);
	return 100 * kvp_curve_hits(&told, blocks * BLOCK) / (double)told.tokens;
}

static void curve_request(struct curve *curve, const uint32_t *keys, uint32_t n, uint32_t when)
{
	for (uint32_t i = 0; i < n; i++) {
		struct curve_use use = {.hash = mix(keys[i]), .bytes = BLOCK, .tokens = TOKENS, .when = when};

		if (curve_watches(curve, use.hash))
			curve_use(curve, &use);
		curve_told(curve, TOKENS);
	}
	curve_flush(curve);
}

static void then_both_agree(const char *name, const struct exact *x, const struct curve *curve)
{
	printf("%-10s", name);
	for (unsigned i = 0; i < SIZES; i++)
		printf("  %2.0f %%: %5.1f / %5.1f", 100 * parts[i], exact_percent(x, (uint64_t)(parts[i] * x->n_keys)),
			estimate_percent(curve, parts[i] * x->n_keys));
	printf("  (exact / estimate)\n");
	for (unsigned i = 0; i < SIZES; i++) {
		double is = exact_percent(x, (uint64_t)(parts[i] * x->n_keys));
		double told = estimate_percent(curve, parts[i] * x->n_keys);

		if (fabs(is - told) > POINTS)
			fail_msg(
				"%s, %g of all blocks: %.2f %%, and the estimate is %.2f %%", name, parts[i], is, told);
	}
}

/* Independent keys, the i-th of @n_keys asked for in proportion to 1 / i; every @scan_every-th use is of a key that
   never comes again. */
static void given_zipf(uint32_t n_keys, uint32_t n_uses, uint32_t scan_every, struct exact *x, struct curve *curve)
{
	double *sums = malloc(n_keys * sizeof(*sums)), all = 0;
	uint32_t scanned = n_keys;
	uint64_t seed = 42;

	for (uint32_t i = 0; i < n_keys; i++)
		sums[i] = all += 1.0 / (i + 1);
	*x = exact_new(n_keys + (scan_every ? n_uses / scan_every + 1 : 0), n_uses);
	for (uint32_t i = 0; i < n_uses; i++) {
		double at = uniform(&seed) * all;
		uint32_t low = 0, high = n_keys - 1, key;

		while (low < high) {
			uint32_t middle = (low + high) / 2;

			if (sums[middle] < at)
				low = middle + 1;
			else
				high = middle;
		}
		key = scan_every && i % scan_every == 0 ? scanned++ : low;
		exact_request(x, &key, 1);
		curve_request(curve, &key, 1, i + 1);
	}
	free(sums);
}

static void zipf_is_told(const char *name, uint32_t n_keys, uint32_t scan_every)
{
	struct curve *curve;
	struct exact x;

	assert_int_equal(curve_open(&curve, TICKS, 0), 0);
	given_zipf(n_keys, 600000, scan_every, &x, curve);
	then_both_agree(name, &x, curve);
	curve_close(curve);
	exact_free(&x);
}

static void skewed_traffic_is_told_within_two_points(void **state)
{
	(void)state;
	zipf_is_told("zipf", 200000, 0);
}

static void skewed_traffic_beside_a_scan_is_told_within_two_points(void **state)
{
	(void)state;
	zipf_is_told("zipf+scan", 100000, 3);
}

static void a_loop_larger_than_memory_gains_nothing_until_it_fits(void **state)
{
	struct curve *curve;

	(void)state;
	assert_int_equal(curve_open(&curve, TICKS, 0), 0);
	for (uint32_t i = 0; i < 400000; i++) {
		uint32_t key = i % 100000;

		curve_request(curve, &key, 1, i + 1);
	}
	assert_true(estimate_percent(curve, 90000) < 2);
	assert_true(fabs(estimate_percent(curve, 115000) - 75) < 2);
	curve_close(curve);
}

/* ---- traces beside the repository ---- */

static void trace_is_told_within_two_points(const char *name)
{
	const char *top = getenv("TOP");
	struct replay_trace trace;
	struct curve *curve;
	struct exact x;
	char path[512], why[256];
	int r;

	snprintf(path, sizeof(path), "%s/../shared/traces/%s.kvt.zst", top ? top : ".", name);
	r = replay_trace_read(&trace, path, why);
	if (r == -ENOENT) {
		printf("skipped: no trace %s beside the repository\n", name);
		skip();
	}
	if (r < 0)
		fail_msg("%s", why);
	x = exact_new(trace.n_blocks, (uint32_t)trace.n_ids);
	assert_int_equal(curve_open(&curve, TICKS, 0), 0);
	for (uint64_t i = 0; i < trace.n_requests; i++) {
		const struct replay_request *request = &trace.requests[i];

		exact_request(&x, trace.ids + request->first, request->n);
		curve_request(
			curve, trace.ids + request->first, request->n, (uint32_t)(request->time_ms * TICKS / 1000) + 1);
	}
	then_both_agree(name, &x, curve);
	curve_close(curve);
	exact_free(&x);
	replay_trace_free(&trace);
}

static void a_trace_of_chats_is_told_within_two_points(void **state)
{
	(void)state;
	trace_is_told_within_two_points("conv-h1");
}

static void a_trace_of_programmers_is_told_within_two_points(void **state)
{
	(void)state;
	trace_is_told_within_two_points("cc-A");
}

/* ---- rules ---- */

static void given_uses(struct curve *curve, uint32_t first, uint32_t n, uint32_t *when)
{
	for (uint32_t key = first; key < first + n; key++)
		curve_request(curve, &key, 1, ++*when);
}

static void a_use_that_was_told_already_is_not_another(void **state)
{
	struct kvp_curve told;
	struct curve *curve;
	uint32_t key = 7;

	(void)state;
	assert_int_equal(curve_open(&curve, TICKS, 0), 0);
	for (unsigned i = 0; i < 3; i++) {
		struct curve_use use = {.hash = mix(key), .bytes = BLOCK, .tokens = TOKENS, .when = 5};

		curve_use(curve, &use);
		if (i != 1)
			curve_flush(curve);
	}
	curve_told(curve, TOKENS);
	curve_store(curve, &told);
	assert_int_equal(told.tokens, TOKENS);
	assert_true(kvp_curve_hits(&told, 1e15) == 0);
	curve_close(curve);
}

static void a_key_used_twice_before_anybody_looks_is_new_once(void **state)
{
	struct kvp_curve told;
	struct curve *curve;

	(void)state;
	assert_int_equal(curve_open(&curve, TICKS, 0), 0);
	for (uint32_t i = 0; i < 200; i++) {
		struct curve_use use = {.hash = mix(i % 100), .bytes = BLOCK, .tokens = TOKENS, .when = i + 1};

		curve_use(curve, &use);
		curve_told(curve, TOKENS);
	}
	curve_flush(curve);
	curve_store(curve, &told);
	assert_int_equal(told.tokens, 200 * TOKENS);
	assert_true(kvp_curve_hits(&told, 1e12) == 100 * TOKENS);
	curve_close(curve);
}

static void uses_nobody_saw_would_be_found_in_any_memory(void **state)
{
	struct kvp_curve told;
	struct curve *curve;
	uint32_t when = 0;

	(void)state;
	assert_int_equal(curve_open(&curve, TICKS, 0), 0);
	given_uses(curve, 0, 100, &when);
	curve_told(curve, 300.0 * TOKENS);
	curve_store(curve, &told);
	assert_int_equal(told.tokens, 400 * TOKENS);
	assert_true(kvp_curve_hits(&told, BLOCK) == 300 * TOKENS);
	curve_close(curve);
}

static void larger_blocks_need_more_memory(void **state)
{
	struct kvp_curve told;
	struct curve *curve;

	(void)state;
	assert_int_equal(curve_open(&curve, TICKS, 0), 0);
	for (uint32_t i = 0; i < 20; i++) {
		struct curve_use use = {
			.hash = mix(i % 10), .bytes = i % 10 ? BLOCK : 100 * BLOCK, .tokens = TOKENS, .when = i + 1};

		curve_use(curve, &use);
		curve_told(curve, TOKENS);
		curve_flush(curve);
	}
	curve_store(curve, &told);
	assert_true(kvp_curve_hits(&told, 90.0 * BLOCK) == 0);
	assert_true(kvp_curve_hits(&told, 130.0 * BLOCK) == 10 * TOKENS);
	curve_close(curve);
}

static void what_was_long_ago_counts_half_and_is_forgotten(void **state)
{
	struct kvp_curve told;
	struct curve *curve;
	uint32_t when = 0;

	(void)state;
	assert_int_equal(curve_open(&curve, TICKS, 0), 0);
	given_uses(curve, 0, 1000, &when);
	given_uses(curve, 0, 1000, &when);
	curve_age(curve, when);
	curve_store(curve, &told);
	assert_int_equal(told.watched, 1000);
	assert_true(llabs((int64_t)told.tokens - 2000 * TOKENS) < 20 * TOKENS);
	curve_age(curve, when += KVP_CURVE_HALF_S * TICKS);
	curve_store(curve, &told);
	assert_true(llabs((int64_t)told.tokens - 1000 * TOKENS) < 20 * TOKENS);
	assert_true(fabs(100 * kvp_curve_hits(&told, 1e12) / (double)told.tokens - 50) < 1);
	curve_age(curve, when += CURVE_FORGET_S * TICKS);
	curve_store(curve, &told);
	assert_int_equal(told.watched, 0);
	curve_close(curve);
}

static void a_burst_of_keys_does_not_leave_a_thin_sample_for_ever(void **state)
{
	struct kvp_curve told;
	struct curve *curve;
	uint32_t when = 0;
	uint64_t thin;

	(void)state;
	assert_int_equal(curve_open(&curve, TICKS, 0), 0);
	given_uses(curve, 0, 40 * CURVE_SAMPLE, &when);
	curve_store(curve, &told);
	thin = told.one_in;
	assert_true(thin > 30000); /* one in thirty or fewer */
	for (unsigned day = 0; day < 6; day++) {
		curve_age(curve, when += (CURVE_FORGET_S + 1) * TICKS);
		given_uses(curve, 5000000, 20000, &when);
		curve_age(curve, when += TICKS);
	}
	given_uses(curve, 5000000, 20000, &when);
	curve_store(curve, &told);
	assert_true(told.one_in < thin / 4);
	assert_true(told.watched > 20000 / 16);
	/* of the last round all but what the sample could not know was found again, in what it takes and not in half of
	   that */
	assert_true(kvp_curve_hits(&told, 25000.0 * BLOCK) / (double)told.tokens > .4);
	assert_true(kvp_curve_hits(&told, 10000.0 * BLOCK) / (double)told.tokens < .05);
	curve_close(curve);
}

static void what_an_earlier_one_stored_goes_on_and_what_is_there_is_no_first_use(void **state)
{
	struct kvp_curve before, after;
	struct curve *curve;
	uint32_t when = 0;

	(void)state;
	assert_int_equal(curve_open(&curve, TICKS, 0), 0);
	given_uses(curve, 0, 1000, &when);
	given_uses(curve, 0, 1000, &when);
	curve_store(curve, &before);
	curve_close(curve);
	assert_int_equal(curve_open(&curve, TICKS, when), 0);
	curve_load(curve, &before);
	for (uint32_t i = 1000; i-- > 0;) { /* in no good order */
		struct curve_use use = {.hash = mix(i), .bytes = BLOCK, .tokens = TOKENS, .when = i + 1001};

		curve_seed(curve, &use);
	}
	curve_seeded(curve);
	curve_store(curve, &after);
	assert_int_equal(after.tokens, before.tokens);
	given_uses(curve, 0, 1000, &when);
	curve_store(curve, &after);
	assert_true(fabs(kvp_curve_hits(&after, 1100.0 * BLOCK) / TOKENS - 2000) < 2);
	assert_true(kvp_curve_hits(&after, 800.0 * BLOCK) / TOKENS < 2);
	curve_close(curve);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(skewed_traffic_is_told_within_two_points),
		cmocka_unit_test(skewed_traffic_beside_a_scan_is_told_within_two_points),
		cmocka_unit_test(a_loop_larger_than_memory_gains_nothing_until_it_fits),
		cmocka_unit_test(a_trace_of_chats_is_told_within_two_points),
		cmocka_unit_test(a_trace_of_programmers_is_told_within_two_points),
		cmocka_unit_test(a_use_that_was_told_already_is_not_another),
		cmocka_unit_test(a_key_used_twice_before_anybody_looks_is_new_once),
		cmocka_unit_test(uses_nobody_saw_would_be_found_in_any_memory),
		cmocka_unit_test(larger_blocks_need_more_memory),
		cmocka_unit_test(what_was_long_ago_counts_half_and_is_forgotten),
		cmocka_unit_test(a_burst_of_keys_does_not_leave_a_thin_sample_for_ever),
		cmocka_unit_test(what_an_earlier_one_stored_goes_on_and_what_is_there_is_no_first_use),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
