/* test_policy_learned.c - the learned policy against plain arrays, and what it makes of traffic of known nature */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/policy_parts.h"

#define CHAINS 40u
#define DEPTH 12u
#define ROOM 150u

/* A pool by the policy's word: chains that share their first blocks. */
struct fixture {
	struct learned *l;
	bool in[CHAINS][DEPTH];
	uint64_t n, room;
	uint32_t seed;
	double now;
};

static uint32_t next(struct fixture *f)
{
	f->seed = f->seed * 1664525u + 1013904223u;
	return f->seed >> 8;
}

/* Every four chains have their first three blocks in common. */
static unsigned owner(unsigned chain, unsigned depth)
{
	return depth < 3 ? chain - chain % 4 : chain;
}

static struct kvp_key key_of(unsigned chain, unsigned depth)
{
	uint64_t x = (owner(chain, depth) * DEPTH + depth + 1) * 0x9e3779b97f4a7c15ull;

	return (struct kvp_key){{x ^ x >> 29, x * 0xbf58476d1ce4e5b9ull}};
}

static bool *place_of(struct fixture *f, const struct kvp_key *key, unsigned *chain, unsigned *depth)
{
	for (*chain = 0; *chain < CHAINS; ++*chain)
		for (*depth = 0; *depth < DEPTH; ++*depth) {
			struct kvp_key other = key_of(*chain, *depth);

			if (!memcmp(key, &other, sizeof(other)))
				return &f->in[owner(*chain, *depth)][*depth];
		}
	fail_msg("a block nobody has published");
	return NULL;
}

static bool has_child(const struct fixture *f, unsigned chain, unsigned depth)
{
	for (unsigned other = 0; depth + 1 < DEPTH && other < CHAINS; other++)
		if (owner(other, depth) == owner(chain, depth) && f->in[owner(other, depth + 1)][depth + 1])
			return true;
	return false;
}

static struct fixture *given_pool(uint64_t room, bool guarded, uint32_t seed)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->l = learned_new(room, guarded, seed);
	assert_non_null(f->l);
	f->room = room;
	f->seed = seed;
	return f;
}

static void done_with(struct fixture *f)
{
	learned_free(f->l);
	free(f);
}

/* For a block of @live, of which the first @found were there. Return: false: nothing may go. */
static bool make_room(struct fixture *f, unsigned live, unsigned found)
{
	struct kvp_key key;
	unsigned chain, depth;
	bool *in;

	if (f->n < f->room)
		return true;
	if (!learned_victim(f->l, f->now, &key))
		return false;
	in = place_of(f, &key, &chain, &depth);
	assert_true(*in);
	assert_false(has_child(f, chain, depth));
	assert_true(owner(chain, depth) != owner(live, depth) || depth >= found);
	learned_remove(f->l, &key);
	*in = false;
	f->n--;
	return true;
}

/* The first @n blocks of a chain are asked for, then published. Return: how many were there. */
static uint64_t request(struct fixture *f, unsigned chain, unsigned n, enum policy_hint hint)
{
	struct kvp_key keys[DEPTH] = {0};
	uint64_t hits = 0;

	for (unsigned i = 0; i < n; i++)
		keys[i] = key_of(chain, i);
	while (hits < n && f->in[owner(chain, (unsigned)hits)][hits])
		hits++;
	assert_int_equal(learned_request(f->l, keys, n, f->now, hint), hits);
	for (unsigned i = (unsigned)hits; i < n && make_room(f, chain, (unsigned)hits); i++) {
		if (i && !f->in[owner(chain, i - 1)][i - 1])
			break; /* for it went what it hangs below */
		assert_int_equal(learned_insert(f->l, &keys[i], i ? &keys[i - 1] : NULL, f->now), 0);
		f->in[owner(chain, i)][i] = true;
		f->n++;
	}
	return hits;
}

static void random_requests(bool guarded, uint32_t seed, double begin)
{
	struct fixture *f = given_pool(ROOM, guarded, seed);
	struct learned_view view;

	f->now = begin;
	for (unsigned step = 0; step < 6000; step++) {
		request(f, next(f) % CHAINS, 1 + next(f) % DEPTH, next(f) % POLICY_HINTS);
		f->now += (next(f) % 100) / 50.0;
		learned_view(f->l, &view);
		assert_int_equal(view.n, f->n);
		assert_true(f->n <= ROOM);
	}
	done_with(f);
}

static void what_goes_is_a_leaf_that_is_in_and_of_the_last_request_only_what_it_brought(void **state)
{
	(void)state;
	random_requests(false, 1, 100);
	random_requests(true, 2, 100);
}

static void requests_at_time_zero_are_like_any_others(void **state)
{
	struct fixture *f = given_pool(ROOM, true, 3);

	(void)state;
	for (unsigned step = 0; step < 2000; step++)
		request(f, next(f) % CHAINS, 1 + next(f) % DEPTH, POLICY_HINT_NONE);
	done_with(f);
	random_requests(true, 4, 0);
}

static void stamps_that_wrap_keep_their_order(void **state)
{
	(void)state;
	random_requests(true, 5, 4294967296.0 / STAMP_HZ - 3000);
}

/* Two sets of chains in turn, twice as many as there is room for: least recent use finds nothing, and keeping some
   finds those. */
static void until_the_learned_order_was_better_it_is_least_recent_use(void **state)
{
	struct fixture *f = given_pool(ROOM, true, 6), *free_one = given_pool(ROOM, false, 6);
	struct learned_view view;
	unsigned led = 0;

	(void)state;
	for (unsigned step = 0; step < 8000; step++) {
		unsigned chain = step % CHAINS;
		uint64_t hits;

		learned_view(f->l, &view);
		led += view.leads;
		hits = request(f, chain, DEPTH, POLICY_HINT_NONE);
		if (!led)
			assert_int_equal(
				hits, chain % 4 && step >= 1 ? 3 : 0); /* only what the three before have in common */
		request(free_one, chain, DEPTH, POLICY_HINT_NONE);
		f->now += 1;
		free_one->now += 1;
	}
	done_with(f);
	done_with(free_one);
}

/* A chain of four blocks a second; every fifth is asked for once more, twenty seconds later, when least recent use has
   let go of it.
   Return: how many of these were found. */
static double share_found(bool told, bool lies)
{
	struct learned *l = learned_new(60, false, 0);
	uint64_t n = 0, found = 0, asked = 0;

	assert_non_null(l);
	for (unsigned step = 0; step < 8000; step++) {
		unsigned back = step % 2 && step / 2 % 5 == 0 && step > 40 ? 40 : 0; /* two steps a second */
		unsigned chain = step / 2 - back / 2;
		bool again = !back && chain % 5 == 0;
		enum policy_hint hint = again != lies ? POLICY_HINT_CONTINUES : POLICY_HINT_ENDS;
		struct kvp_key keys[4], victim;
		int64_t in;

		if (step % 2 && !back)
			continue;
		for (unsigned i = 0; i < 4; i++)
			keys[i] = (struct kvp_key){{(4 * chain + i + 1) * 0x9e3779b97f4a7c15ull, chain}};
		in = learned_request(l, keys, 4, step / 2.0, told ? hint : POLICY_HINT_NONE);
		found += back && step > 4000 ? (uint64_t)in : 0;
		asked += back && step > 4000 ? 4 : 0;
		for (; in < 4; in++, n++) {
			if (n == 60) {
				if (!learned_victim(l, step / 2.0, &victim))
					break;
				learned_remove(l, &victim);
				n--;
			}
			assert_int_equal(learned_insert(l, &keys[in], in ? &keys[in - 1] : NULL, step / 2.0), 0);
		}
	}
	learned_free(l);
	return (double)found / (double)asked;
}

/* All touches of a small pool are learned from: no choice by hash, so nothing that a seed decides. */
static void which_seed_keys_are_hashed_with_makes_no_difference_in_a_small_pool(void **state)
{
	uint64_t hits[3] = {0};

	(void)state;
	for (uint32_t s = 0; s < 3; s++) {
		struct fixture *f = given_pool(ROOM, false, 1 + s);

		f->seed = 5;
		for (unsigned step = 0; step < 6000; step++) {
			unsigned chain = next(f) % 3 ? next(f) % 12 : next(f) % CHAINS;

			hits[s] += request(f, chain, 1 + next(f) % DEPTH, POLICY_HINT_NONE);
			f->now += (next(f) % 100) / 50.0;
		}
		done_with(f);
	}
	print_message("%lu hits\n", (unsigned long)hits[0]);
	assert_int_equal(hits[1], hits[0]);
	assert_int_equal(hits[2], hits[0]);
}

static void hints_that_come_true_find_more(void **state)
{
	(void)state;
	assert_true(share_found(true, false) > share_found(false, false) + 0.1);
	assert_true(share_found(true, false) > 0.9);
}

static void hints_that_are_always_wrong_are_understood_too(void **state)
{
	(void)state;
	assert_true(share_found(true, true) > share_found(true, false) - 0.02);
}

/* ---- the learner ---- */

static void a_class_used_again_at_an_age_is_worth_most_before_it(void **state)
{
	struct learner *t = calloc(1, sizeof(*t));
	uint8_t again = learner_class(3, 3, POLICY_HINT_NONE), once = learner_class(1, 0, POLICY_HINT_NONE);
	uint16_t slot[10] = {0};

	(void)state;
	assert_non_null(t);
	learner_init(t, ROOM);
	for (unsigned s = 0; s < 2000; s++) { /* ten blocks used every ten seconds, and one a second never again */
		learner_advance(t, s);
		slot[s % 10] = learner_touch(t, 2 * (s % 10) + 2, slot[s % 10], again, s);
		learner_touch(t, 2 * s + 1000, 0, once, s);
	}
	assert_true(t->worth[again][0] > 4 * t->worth[once][0]);
	assert_true(t->worth[again][learner_age(8)] > t->worth[again][learner_age(30)]);
	assert_true(learner_chance(t, again, 0, 20) > 0.7);
	assert_true(learner_chance(t, once, 0, 20) < 0.2);
	assert_true(learner_chance(t, again, 0, 1) < learner_chance(t, again, 0, 20));
	free(t);
}

/* More touches lie between two of a block than the ring has room for. */
static void in_a_large_pool_ages_are_learned_at_which_blocks_come_back_there(void **state)
{
	const uint32_t n = 6 * RING;
	struct learner *t = calloc(1, sizeof(*t));
	uint16_t *slot = calloc(n, sizeof(*slot));
	uint8_t class = learner_class(3, 3, POLICY_HINT_NONE);

	(void)state;
	assert_non_null(t);
	assert_non_null(slot);
	learner_init(t, n);
	for (uint32_t s = 0; s < 4 * n; s++) { /* each once in 100 seconds */
		double now = s * (100.0 / n);

		if (s % 256 == 0)
			learner_advance(t, now);
		slot[s % n] = learner_touch(t, s % n * 0x9e3779b9u, slot[s % n], class, now);
	}
	print_message("used again within 150 s: %.2f, within 50: %.2f\n", learner_chance(t, class, 0, 150),
		learner_chance(t, class, 0, 50));
	assert_true(learner_chance(t, class, 0, 150) > 0.7);
	assert_true(learner_chance(t, class, 0, 50) < 0.3);
	learner_sample(t, 64ull * n); /* of fewer blocks from now on: what the others did is not held against any */
	for (uint32_t s = 0; s < 20000; s++)
		learner_advance(t, 400 + s * 0.01);
	assert_true(learner_chance(t, class, 0, 150) > 0.6);
	free(slot);
	free(t);
}

static void ages_are_half_powers_of_two(void **state)
{
	(void)state;
	assert_int_equal(learner_age(0), 0);
	assert_int_equal(learner_age(0.99), 0);
	assert_int_equal(learner_age(1), 1);
	assert_int_equal(learner_age(1.42), 2);
	assert_int_equal(learner_age(2), 3);
	assert_int_equal(learner_age(1024), 21);
	assert_int_equal(learner_age(1e30), AGES - 1);
	assert_int_equal(learner_age(-1), 0);
}

/* ---- blocks ---- */

static void uses_are_remembered_after_a_block_went(void **state)
{
	struct fixture *f = given_pool(ROOM, true, 8);
	struct kvp_key key = key_of(0, 0);

	(void)state;
	for (unsigned i = 0; i < 5; i++)
		request(f, 0, 1, POLICY_HINT_NONE);
	for (unsigned round = 0; round < 3; round++)
		for (unsigned chain = 4; chain < CHAINS; chain++) {
			request(f, chain, DEPTH, POLICY_HINT_NONE);
			f->now += 1;
		}
	assert_false(f->in[0][0]);
	assert_int_equal(learned_uses(f->l, &key), 5);
	key.w[0]++;
	assert_int_equal(learned_uses(f->l, &key), 0);
	done_with(f);
}

static void assert_goes(struct learned *l, double now, const struct kvp_key *expected)
{
	struct kvp_key key;

	assert_true(learned_victim(l, now, &key));
	assert_memory_equal(&key, expected, sizeof(key));
}

static void what_is_in_use_stands_aside_with_all_it_hangs_below(void **state)
{
	struct learned *l = learned_new(8, false, 0);
	struct kvp_key chain[3] = {key_of(0, 3), key_of(0, 4), key_of(0, 5)}, other = key_of(1, 3), last = key_of(2, 3);
	struct kvp_key key;

	(void)state;
	assert_int_equal(learned_request(l, chain, 3, 1, POLICY_HINT_NONE), 0);
	for (unsigned k = 0; k < 3; k++)
		assert_int_equal(learned_insert(l, &chain[k], k ? &chain[k - 1] : NULL, 1), 0);
	assert_int_equal(learned_request(l, &other, 1, 50, POLICY_HINT_NONE), 0);
	assert_int_equal(learned_insert(l, &other, NULL, 50), 0);
	assert_int_equal(learned_request(l, &last, 1, 100, POLICY_HINT_NONE), 0);
	assert_int_equal(learned_insert(l, &last, NULL, 100), 0);
	assert_goes(l, 100, &chain[2]);
	learned_defer(l, &chain[2], 100);
	assert_goes(l, 100, &other);
	learned_defer(l, &other, 100);
	assert_false(learned_victim(l, 100.1, &key)); /* what is left is of the last request */
	assert_goes(l, 102, &chain[2]); /* a moment later */
	learned_remove(l, &chain[2]);
	learned_defer(l, &chain[1], 102);
	assert_int_equal(learned_request(l, chain, 2, 102, POLICY_HINT_NONE), 2); /* used: among the others at once */
	learned_remove(l, &other);
	assert_int_equal(learned_request(l, &last, 1, 102, POLICY_HINT_NONE), 1);
	assert_goes(l, 102, &chain[1]);
	learned_free(l);
}

static void keys_that_name_each_other_as_parents_make_no_loop(void **state)
{
	struct learned *l = learned_new(10, false, 0);
	struct kvp_key a = key_of(0, 0), b = key_of(1, 5), victim;

	(void)state;
	assert_non_null(l);
	assert_int_equal(learned_insert(l, &a, NULL, 1), 0);
	assert_int_equal(learned_insert(l, &b, &a, 1), 0);
	learned_remove(l, &a);
	assert_int_equal(learned_insert(l, &a, &b, 2), 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_true(learned_victim(l, 3 + i, &victim));
		learned_remove(l, &victim);
	}
	assert_false(learned_victim(l, 5, &victim));
	learned_free(l);
}

static void a_chain_that_names_a_key_twice_is_none(void **state)
{
	struct learned *l = learned_new(10, true, 0);
	struct kvp_key keys[] = {key_of(0, 0), key_of(1, 5), key_of(0, 0)};

	(void)state;
	assert_non_null(l);
	assert_true(learned_request(l, keys, 3, 1, POLICY_HINT_NONE) < 0);
	assert_int_equal(learned_request(l, keys, 2, 2, POLICY_HINT_NONE), 0);
	learned_free(l);
}

static void a_capacity_that_changes_keeps_what_is_in(void **state)
{
	struct fixture *f = given_pool(ROOM, true, 9);

	(void)state;
	for (unsigned step = 0; step < 9000; step++) {
		if (step % 1000 == 500) {
			f->room = 100 + next(f) % 100;
			assert_true(learned_resize(f->l, f->room));
		}
		while (f->n > f->room) {
			struct kvp_key key = {{0, 0}};
			unsigned chain, depth;

			assert_true(learned_victim(f->l, f->now, &key));
			*place_of(f, &key, &chain, &depth) = false;
			learned_remove(f->l, &key);
			f->n--;
		}
		request(f, next(f) % CHAINS, DEPTH, POLICY_HINT_NONE);
		f->now += 0.5;
	}
	done_with(f);
}

static void metadata_is_at_most_300_bytes_a_block(void **state)
{
	(void)state;
	for (uint64_t room = 10000; room <= 100000; room *= 10) {
		struct learned *l = learned_new(room, true, 0);
		struct learned_view view;
		struct kvp_key keys[20], victim;
		uint64_t n = 0;

		assert_non_null(l);
		for (uint64_t step = 0; step < room / 4; step++) {
			uint64_t chain = step % 3 ? step * 7919 % (room / 16 + 1) : step + room;

			for (uint64_t i = 0; i < 20; i++)
				keys[i] = (struct kvp_key){{(chain * 20 + i) * 0x9e3779b97f4a7c15ull,
					(chain + i) * 0xbf58476d1ce4e5b9ull}};
			for (int64_t i = learned_request(l, keys, 20, (double)step / 10, POLICY_HINT_NONE); i < 20;
				i++) {
				if (n >= room) {
					if (!learned_victim(l, (double)step / 10, &victim))
						break;
					learned_remove(l, &victim);
					n--;
				}
				assert_int_equal(
					learned_insert(l, &keys[i], i ? &keys[i - 1] : NULL, (double)step / 10), 0);
				n++;
			}
		}
		learned_view(l, &view);
		print_message("%lu blocks: %lu bytes each\n", (unsigned long)room, (unsigned long)(view.bytes / room));
		assert_true(view.bytes <= 300 * room);
		learned_free(l);
	}
}

/* Moved by less than a huge page they would be in small ones from then on. */
static void tables_that_grow_begin_where_a_huge_page_does_and_keep_what_they_have(void **state)
{
	enum { N = 300000, HUGE = 2 << 20 };
	struct blocks b;

	(void)state;
	assert_true(blocks_init(&b, 100, 7));
	for (uint64_t k = 1; k <= N; k++) {
		uint32_t i = blocks_get(&b, &(struct kvp_key){{k, ~k}});

		assert_true(i);
		assert_int_equal(b.node[i].uses, 0);
		b.node[i].uses = k % 64 & USES_MAX;
		b.kin[i].next_sibling = (uint32_t)k;
		assert_int_equal((uintptr_t)b.node % HUGE, 0);
		assert_int_equal((uintptr_t)b.kin % HUGE, 0);
		assert_int_equal((uintptr_t)b.bucket % HUGE, 0);
	}
	for (uint64_t k = 1; k <= N; k++) {
		uint32_t i = blocks_find(&b, &(struct kvp_key){{k, ~k}});

		assert_true(i);
		assert_int_equal(b.node[i].uses, k % 64);
		assert_int_equal(b.kin[i].next_sibling, k);
	}
	blocks_free(&b);
}

/* ---- admission ---- */

static void what_is_written_stays_near_its_budget(void **state)
{
	struct admission a;
	unsigned written = 0;
	uint32_t seed = 1;

	(void)state;
	admission_init(&a, ADMIT_CHANCE, 0.3);
	for (unsigned i = 0; i < 100000; i++) {
		bool write;

		seed = seed * 1664525u + 1013904223u;
		write = admission_offer(&a, false, 1, (seed >> 8) / 16777216.0);
		written += write && i >= 50000;
	}
	assert_in_range(written, 13000, 17000);
	assert_true(admission_offer(&a, true, 1, 0)); /* what something hangs on */
}

static void only_what_was_used_twice_is_written_where_so_chosen(void **state)
{
	struct admission a;

	(void)state;
	admission_init(&a, ADMIT_REUSED, 1);
	assert_false(admission_offer(&a, false, 1, 1));
	assert_true(admission_offer(&a, false, 2, 0));
	admission_init(&a, ADMIT_ALL, 0);
	assert_true(admission_offer(&a, false, 1, 0));
}

static void a_copy_is_written_again_when_it_is_old_and_for_what_it_would_lose(void **state)
{
	struct admission a;

	(void)state;
	admission_init(&a, ADMIT_CHANCE, 0.3);
	admission_lost(&a, 100);
	admission_lost(&a, 300);
	assert_true(admission_left(&a, 0.4) < 0); /* it stays long enough */
	assert_true(admission_left(&a, 0.75) > 49.9 && admission_left(&a, 0.75) < 50.1); /* of 200 s on average */
	assert_true(admission_left(&a, 1) >= 0);
	assert_false(admission_again(&a, a.theta / 2));
	assert_int_equal(a.written, 0);
	assert_true(admission_again(&a, a.theta));
	assert_int_equal(a.written, 1); /* of its budget */
	admission_init(&a, ADMIT_REUSED, 0.3);
	assert_true(admission_left(&a, 1) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_goes_is_a_leaf_that_is_in_and_of_the_last_request_only_what_it_brought),
		cmocka_unit_test(requests_at_time_zero_are_like_any_others),
		cmocka_unit_test(stamps_that_wrap_keep_their_order),
		cmocka_unit_test(until_the_learned_order_was_better_it_is_least_recent_use),
		cmocka_unit_test(which_seed_keys_are_hashed_with_makes_no_difference_in_a_small_pool),
		cmocka_unit_test(hints_that_come_true_find_more),
		cmocka_unit_test(hints_that_are_always_wrong_are_understood_too),
		cmocka_unit_test(a_class_used_again_at_an_age_is_worth_most_before_it),
		cmocka_unit_test(in_a_large_pool_ages_are_learned_at_which_blocks_come_back_there),
		cmocka_unit_test(ages_are_half_powers_of_two),
		cmocka_unit_test(uses_are_remembered_after_a_block_went),
		cmocka_unit_test(what_is_in_use_stands_aside_with_all_it_hangs_below),
		cmocka_unit_test(keys_that_name_each_other_as_parents_make_no_loop),
		cmocka_unit_test(a_chain_that_names_a_key_twice_is_none),
		cmocka_unit_test(a_capacity_that_changes_keeps_what_is_in),
		cmocka_unit_test(metadata_is_at_most_300_bytes_a_block),
		cmocka_unit_test(tables_that_grow_begin_where_a_huge_page_does_and_keep_what_they_have),
		cmocka_unit_test(what_is_written_stays_near_its_budget),
		cmocka_unit_test(only_what_was_used_twice_is_written_where_so_chosen),
		cmocka_unit_test(a_copy_is_written_again_when_it_is_old_and_for_what_it_would_lose),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
