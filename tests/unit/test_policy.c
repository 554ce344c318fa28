/* test_policy.c - candidates for eviction against a plain search for the oldest */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/policy.h"

#define ENTRIES 500u

struct fixture {
	struct ns ns;
	struct entry entries[ENTRIES];
	uint64_t touched[ENTRIES]; /* the model: when it was put in order last; 0: not a candidate */
	uint64_t clock;
	uint32_t seed;
};

static struct fixture *given_policy(uint32_t seed)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->seed = seed;
	return f;
}

static void done_with(struct fixture *f)
{
	free(f->ns.heap.at);
	free(f);
}

static uint32_t next(struct fixture *f)
{
	f->seed = f->seed * 1664525u + 1013904223u;
	return f->seed >> 8;
}

static unsigned oldest(const struct fixture *f)
{
	unsigned best = ENTRIES;

	for (unsigned i = 0; i < ENTRIES; i++) {
		const struct entry *e = &f->entries[i];

		if (!f->touched[i])
			continue;
		if (best == ENTRIES || (int32_t)(e->stamp - f->entries[best].stamp) < 0 ||
			(e->stamp == f->entries[best].stamp && f->touched[i] < f->touched[best]))
			best = i;
	}
	return best;
}

static void random_work(uint32_t seed, uint32_t base)
{
	struct fixture *f = given_policy(seed);

	for (unsigned step = 0; step < 30000; step++) {
		unsigned i = next(f) % ENTRIES, first;
		struct entry *e = &f->entries[i];

		switch (next(f) % 4) {
		case 0:
			if (!f->touched[i]) {
				e->stamp = base + step / 50 + next(f) % 20;
				assert_true(policy_add(&f->ns, e));
				f->touched[i] = ++f->clock;
			}
			assert_true(policy_add(&f->ns, e)); /* once is enough */
			break;
		case 1:
			policy_remove(&f->ns, e);
			f->touched[i] = 0;
			break;
		default:
			e->stamp = base + step / 50 + next(f) % 20;
			policy_touch(&f->ns, e);
			if (f->touched[i])
				f->touched[i] = ++f->clock;
		}
		first = oldest(f);
		if (first == ENTRIES)
			assert_null(policy_first(&f->ns));
		else
			assert_ptr_equal(policy_first(&f->ns), &f->entries[first]);
	}
	for (unsigned i; (i = oldest(f)) < ENTRIES;) { /* they leave in order */
		assert_ptr_equal(policy_first(&f->ns), &f->entries[i]);
		policy_remove(&f->ns, &f->entries[i]);
		f->touched[i] = 0;
	}
	assert_null(policy_first(&f->ns));
	done_with(f);
}

static void the_first_is_always_the_one_unused_for_longest(void **state)
{
	(void)state;
	random_work(1, 1000);
	random_work(2, 77);
}

static void ticks_that_wrap_keep_their_order(void **state)
{
	(void)state;
	random_work(3, UINT32_MAX - 300);
	random_work(4, INT32_MAX - 300u);
}

static void of_one_tick_who_came_first_goes_first(void **state)
{
	struct fixture *f = given_policy(5);

	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		f->entries[i].stamp = 7;
		policy_add(&f->ns, &f->entries[i]);
	}
	policy_touch(&f->ns, &f->entries[0]);
	for (unsigned i = 1; i <= 100; i++) {
		assert_ptr_equal(policy_first(&f->ns), &f->entries[i % 100]);
		policy_remove(&f->ns, policy_first(&f->ns));
	}
	done_with(f);
}

#define SECOND 1000000000ull

/* A minute in which so many blocks were used and stored. */
static struct ns given_use(uint64_t used, uint64_t stored, struct kvp_ns_header *head)
{
	struct ns ns = {.head = head, .cost_ns_per_token = 1000};

	policy_learn(&ns.use, 7000, 9000, 1000 * SECOND); /* of before, not of this minute */
	policy_learn(&ns.use, 7000 + used, 9000 + stored, 1000 * SECOND);
	return ns;
}

static void memory_of_a_scanner_is_worth_less_than_what_is_used_again(void **state)
{
	struct kvp_ns_header head = {.block_bytes = 65536, .desc.block_tokens = 16};
	struct ns scanner = given_use(0, 1000, &head), engine = given_use(900, 100, &head), quiet;

	(void)state;
	assert_true(policy_worth(&scanner, 1, false) * 7 < policy_worth(&engine, 1, false));
	assert_true(policy_worth(&scanner, 1, false) < policy_worth(&engine, 60 * TICKS_PER_SECOND, false));
	/* but not for ever */
	assert_true(policy_worth(&scanner, 1, false) > policy_worth(&engine, 600 * TICKS_PER_SECOND, false));
	quiet = given_use(0, 5, &head); /* too few to know */
	assert_true(policy_worth(&quiet, 1, false) < policy_worth(&engine, 1, false) / 3);
	assert_true(policy_worth(&quiet, 1, false) > policy_worth(&scanner, 1, false) * 1.9);
}

static void of_equal_use_twice_as_old_and_ten_seconds_is_worth_half(void **state)
{
	struct kvp_ns_header head = {.block_bytes = 65536, .desc.block_tokens = 16};
	struct ns a = given_use(500, 500, &head), b = given_use(50, 50, &head);

	(void)state;
	for (uint32_t s = 0; s < 300; s += 7) {
		uint32_t age = s * TICKS_PER_SECOND, twice = 2 * age + 10 * TICKS_PER_SECOND;

		assert_true(policy_worth(&b, twice + 1, false) < policy_worth(&a, age, false) / 2);
		assert_true(policy_worth(&b, twice - 1, false) > policy_worth(&a, age, false) / 2);
	}
}

static void what_is_dear_to_compute_is_worth_more_a_byte(void **state)
{
	struct kvp_ns_header head = {.block_bytes = 65536, .desc.block_tokens = 16}, large = head;
	struct ns a = given_use(500, 500, &head), b = given_use(500, 500, &head), c = given_use(500, 500, &large);

	(void)state;
	b.cost_ns_per_token = 3000;
	large.block_bytes *= 4;
	assert_true(policy_worth(&b, 100, true) > 2.9 * policy_worth(&a, 100, true));
	assert_true(policy_worth(&c, 100, true) < policy_worth(&a, 100, true) / 3);
	assert_true(policy_worth(&b, 100, false) == policy_worth(&a, 100, false));
}

static void use_is_forgotten_by_halves_each_minute(void **state)
{
	struct kvp_ns_header head = {.block_bytes = 65536, .desc.block_tokens = 16};
	struct ns ns = given_use(800, 0, &head);

	(void)state;
	for (unsigned i = 1; i <= 600; i++) /* called ten times a second */
		policy_learn(&ns.use, 7800, 9000, 1000 * SECOND + i * SECOND / 10);
	assert_true(ns.use.used > 399 && ns.use.used < 401);
	policy_learn(&ns.use, 7800, 9400, 1120 * SECOND); /* a minute without a call */
	assert_true(ns.use.used > 199 && ns.use.used < 201);
	assert_true(ns.use.stored > 399 && ns.use.stored < 401);
	policy_learn(&ns.use, 7800, 9400, 1000000 * SECOND);
	assert_true(ns.use.used + ns.use.stored < 0.01);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_is_always_the_one_unused_for_longest),
		cmocka_unit_test(ticks_that_wrap_keep_their_order),
		cmocka_unit_test(of_one_tick_who_came_first_goes_first),
		cmocka_unit_test(memory_of_a_scanner_is_worth_less_than_what_is_used_again),
		cmocka_unit_test(of_equal_use_twice_as_old_and_ten_seconds_is_worth_half),
		cmocka_unit_test(what_is_dear_to_compute_is_worth_more_a_byte),
		cmocka_unit_test(use_is_forgotten_by_halves_each_minute),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
