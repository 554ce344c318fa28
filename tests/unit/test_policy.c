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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_is_always_the_one_unused_for_longest),
		cmocka_unit_test(ticks_that_wrap_keep_their_order),
		cmocka_unit_test(of_one_tick_who_came_first_goes_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
