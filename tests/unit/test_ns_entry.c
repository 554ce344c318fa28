/* test_ns_entry.c - the keys a namespace knows: found as long as they are there, each visited once; and an index
   repaired */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "block_fixture.h"

#define MANY 20000u

static const struct kvp_key none = {{0, 0}};

static uint64_t visited(struct ns *ns)
{
	uint64_t n = 0;

	for (struct entry *e = ns_entry_next(ns, NULL); e; e = ns_entry_next(ns, e)) {
		assert_int_equal(e->stamp, 0); /* nobody is visited twice */
		e->stamp = 1;
		n++;
	}
	for (struct entry *e = ns_entry_next(ns, NULL); e; e = ns_entry_next(ns, e))
		e->stamp = 0;
	return n;
}

static void whatever_comes_and_goes_each_key_is_found_and_visited_once(void **state)
{
	static bool there[MANY];
	struct fixture *f = given_pool(7);
	uint64_t n = 0;

	(void)state;
	memset(there, 0, sizeof(there));
	assert_null(ns_entry_next(&f->ns, NULL));
	for (unsigned step = 0; step < 5 * MANY; step++) {
		uint32_t k = next(f) % MANY;
		struct kvp_key key = {{k / 3, k % 3}}; /* hardly as spread as hashes */
		struct entry *e = ns_entry(&f->ns, &key);

		assert_int_equal(e != NULL, there[k]);
		if (e && step % 3 == 0) {
			ns_entry_drop(e);
			there[k] = false;
			n--;
		} else if (!e) {
			e = ns_entry_add(&f->ns, &key, &none);
			assert_non_null(e);
			e->stamp = 0;
			there[k] = true;
			n++;
		}
		assert_int_equal(f->ns.entries.n, n);
		if (step % 9973 == 0)
			assert_int_equal(visited(&f->ns), n);
	}
	assert_int_equal(visited(&f->ns), n);
	for (struct entry *e; (e = ns_entry_next(&f->ns, NULL)); n--)
		ns_entry_drop(e);
	assert_int_equal(n, 0);
	done_with(f);
}

/* Small: chains stay short only if the hash spreads what clients choose. */
static void keys_a_client_chose_alike_do_not_share_a_bucket(void **state)
{
	struct fixture *f = given_pool(7);
	unsigned longest = 0;

	(void)state;
	for (uint64_t k = 1; k <= 4096; k++) {
		struct kvp_key key = {{k << 40, 0x1234567800000000ull}};

		assert_non_null(ns_entry_add(&f->ns, &key, &none));
	}
	for (uint64_t i = 0; i < f->ns.entries.n_buckets; i++) {
		unsigned n = 0;

		for (const struct entry *e = f->ns.entries.buckets[i]; e; e = e->hash_next)
			n++;
		longest = n > longest ? n : longest;
	}
	assert_in_range(longest, 1, 16);
	done_with(f);
}

static void an_index_left_with_wrong_missing_and_double_hints_finds_every_block_after_a_start(void **state)
{
	static const bool all[SESSIONS] = {true, true, true};

	(void)state;
	for (uint32_t seed = 1; seed <= 200; seed++) {
		struct fixture *f = given_pool(seed);
		struct kvp_key keys[20];
		unsigned hints = 0;

		for (unsigned i = 0; i < 20; i++)
			keys[i] = given_block(f, NULL)->key;
		for (unsigned i = 0; i < 12; i++) {
			_Atomic uint64_t *at = &f->ns.index[next(f) % 16].hint[next(f) % KVP_INDEX_WIDTH];
			const struct kvp_key *key = &keys[next(f) % 20];

			switch (next(f) % 3) {
			case 0:
				atomic_store(at, 0);
				break;
			case 1: /* there twice, or where nobody looks */
				atomic_store(at, kvp_hint(key, found_at(f, key) % SLOTS));
				break;
			default:
				atomic_store(at, (uint64_t)next(f) << 32 | next(f) % (2 * SLOTS));
			}
		}
		restart(f, all);
		for (unsigned b = 0; b < 16; b++)
			for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++)
				hints += atomic_load(&f->ns.index[b].hint[i]) != 0;
		assert_int_equal(hints, 20);
		for (unsigned i = 0; i < 20; i++)
			assert_int_equal(found_at(f, &keys[i]), ns_entry(&f->ns, &keys[i])->slot);
		done_with(f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whatever_comes_and_goes_each_key_is_found_and_visited_once),
		cmocka_unit_test(keys_a_client_chose_alike_do_not_share_a_bucket),
		cmocka_unit_test(an_index_left_with_wrong_missing_and_double_hints_finds_every_block_after_a_start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
