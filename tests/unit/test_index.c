/* test_index.c - the index against a plain array of what it should hold */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/index.h"

#define SLOTS 2048u

struct fixture {
	struct index index;
	struct kvp_block *blocks;
	bool in[SLOTS]; /* the model: this slot's hint is in the index */
	uint64_t seed;
};

static uint64_t next(struct fixture *f)
{
	f->seed ^= f->seed << 13;
	f->seed ^= f->seed >> 7;
	f->seed ^= f->seed << 17;
	return f->seed;
}

static void given_index(struct fixture *f, uint64_t n_buckets, uint64_t seed)
{
	memset(f, 0, sizeof(*f));
	f->seed = seed;
	f->blocks = calloc(SLOTS, sizeof(*f->blocks));
	f->index = (struct index){.buckets = aligned_alloc(64, n_buckets * sizeof(struct kvp_index_bucket)),
		.n_buckets = n_buckets,
		.blocks = f->blocks,
		.n_blocks = SLOTS};
	assert_non_null(f->blocks);
	assert_non_null(f->index.buckets);
	memset(f->index.buckets, 0, n_buckets * sizeof(struct kvp_index_bucket));
}

static void done_with(struct fixture *f)
{
	free(f->index.buckets);
	free(f->blocks);
}

static uint64_t hint_at(const struct fixture *f, uint64_t bucket, unsigned i)
{
	return atomic_load(&f->index.buckets[bucket].hint[i]);
}

static bool bucket_is_full(const struct fixture *f, uint64_t bucket)
{
	for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++)
		if (!hint_at(f, bucket, i))
			return false;
	return true;
}

/* What a reader relies on: between a hint and its home all buckets are full, and no hint is there twice or astray. */
static void holds_what_readers_rely_on(const struct fixture *f)
{
	unsigned n_in = 0, n_hints = 0;

	for (unsigned slot = 0; slot < SLOTS; slot++)
		n_in += f->in[slot];
	for (uint64_t b = 0; b < f->index.n_buckets; b++)
		for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++) {
			uint64_t hint = hint_at(f, b, i), slot = kvp_hint_slot(hint), home;

			if (!hint)
				continue;
			n_hints++;
			assert_true(slot < SLOTS);
			assert_true(f->in[slot]);
			assert_true(hint == kvp_hint(&f->blocks[slot].key, slot));
			home = kvp_index_home(&f->blocks[slot].key, f->index.n_buckets);
			assert_true(((b - home) & (f->index.n_buckets - 1)) < KVP_INDEX_PROBES);
			for (uint64_t at = home; at != b; at = (at + 1) & (f->index.n_buckets - 1))
				assert_true(bucket_is_full(f, at));
		}
	assert_int_equal(n_hints, n_in);
	for (unsigned slot = 0; slot < SLOTS; slot++)
		assert_true(!f->in[slot] || index_find(&f->index, &f->blocks[slot].key) == slot);
}

/* @homes: how many different home buckets the keys have: few make them crowd. */
static void insert(struct fixture *f, unsigned slot, uint64_t homes)
{
	struct kvp_block *block = &f->blocks[slot];

	block->key.w[0] = next(f) << 16 | next(f) % homes;
	block->key.w[1] = next(f);
	f->in[slot] = index_insert(&f->index, &block->key, slot);
}

static void remove_slot(struct fixture *f, unsigned slot)
{
	struct kvp_key key = f->blocks[slot].key;

	index_remove(&f->index, &key, slot);
	f->in[slot] = false;
	assert_true(index_find(&f->index, &key) == UINT64_MAX);
}

static void random_work(uint64_t n_buckets, uint64_t homes, unsigned most, uint64_t seed)
{
	struct fixture f;

	given_index(&f, n_buckets, seed);
	for (unsigned step = 0; step < 20000; step++) {
		unsigned slot = (unsigned)(next(&f) % most);

		if (f.in[slot])
			remove_slot(&f, slot);
		else
			insert(&f, slot, homes);
		if (step % 97 == 0)
			holds_what_readers_rely_on(&f);
	}
	holds_what_readers_rely_on(&f);
	for (unsigned slot = 0; slot < most; slot++)
		if (f.in[slot])
			remove_slot(&f, slot);
	for (uint64_t b = 0; b < n_buckets; b++)
		for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++)
			assert_int_equal(hint_at(&f, b, i), 0);
	done_with(&f);
}

static void after_any_order_of_inserts_and_removes_what_is_in_is_found(void **state)
{
	(void)state;
	random_work(256, 256, 1024, 1); /* half full, as in service */
	random_work(256, 256, 2000, 2); /* nearly full */
	random_work(1024, 1024, 2048, 3);
}

static void crowded_homes_spill_over_into_the_buckets_behind_and_come_back(void **state)
{
	(void)state;
	random_work(64, 5, 300, 4);
	random_work(64, 60, 600, 5); /* more than there is room for */
	random_work(16, 16, 128, 6); /* exactly as much as there is room for */
	random_work(8, 8, 100, 7); /* as many buckets as probes: they wrap */
	random_work(8, 1, 100, 8);
}

static void a_key_with_no_room_within_its_probes_is_refused_and_harms_nothing(void **state)
{
	struct fixture f;

	(void)state;
	given_index(&f, 64, 9);
	for (unsigned slot = 0; slot < 64; slot++) { /* 8 buckets of 8, all at home in the first */
		insert(&f, slot, 1);
		assert_true(f.in[slot]);
	}
	insert(&f, 64, 1);
	assert_false(f.in[64]);
	holds_what_readers_rely_on(&f);
	index_remove(&f.index, &f.blocks[64].key, 64); /* was never in: nothing happens */
	holds_what_readers_rely_on(&f);
	remove_slot(&f, 10);
	insert(&f, 64, 1);
	assert_true(f.in[64]);
	holds_what_readers_rely_on(&f);
	done_with(&f);
}

static void a_hint_that_points_nowhere_is_passed_over(void **state)
{
	struct fixture f;
	struct kvp_key key;

	(void)state;
	given_index(&f, 16, 10);
	insert(&f, 3, 1);
	key = f.blocks[3].key;
	atomic_store(&f.index.buckets[0].hint[5], (uint64_t)kvp_index_tag(&key) << 32 | (SLOTS + 7));
	atomic_store(&f.index.buckets[0].hint[6], (uint64_t)kvp_index_tag(&key) << 32 | 9); /* of another key */
	assert_int_equal(index_find(&f.index, &key), 3);
	index_remove(&f.index, &key, 3);
	assert_true(index_find(&f.index, &key) == UINT64_MAX);
	done_with(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_any_order_of_inserts_and_removes_what_is_in_is_found),
		cmocka_unit_test(crowded_homes_spill_over_into_the_buckets_behind_and_come_back),
		cmocka_unit_test(a_key_with_no_room_within_its_probes_is_refused_and_harms_nothing),
		cmocka_unit_test(a_hint_that_points_nowhere_is_passed_over),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
