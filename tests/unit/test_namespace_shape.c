/* test_namespace_shape.c - how much of the memory is blocks, and how much is about them */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "daemon/namespace.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

static struct kvp_pool_header pool_of(uint64_t pool_bytes, uint64_t slab_bytes)
{
	return (struct kvp_pool_header){.pool_bytes = pool_bytes,
		.slab_bytes = slab_bytes,
		.max_places = (uint32_t)(2 * (pool_bytes / slab_bytes) + 64)};
}

static void a_slab_is_whole_blocks_and_less_than_seven_percent_of_it_lies_idle(void **state)
{
	struct kvp_pool_header pool = pool_of(4 * GIB, 64 * MIB);

	(void)state;
	for (uint64_t bytes = 1; bytes <= 300 * MIB; bytes += bytes < 64 * KIB ? 4001 : bytes / 13) {
		struct ns_shape s = ns_shape(&pool, bytes);

		assert_int_equal(s.stride % 4096, 0);
		assert_true(s.stride >= bytes && s.stride < bytes + 4096);
		assert_true(s.slots_per_slab >= 1);
		assert_true(s.slots_per_slab * s.stride <= s.slab_bytes);
		assert_true((s.slab_bytes - s.slots_per_slab * s.stride) * 100 <= s.slab_bytes * 7);
		assert_true(s.slab_bytes == pool.slab_bytes || s.slab_bytes == s.slots_per_slab * s.stride);
	}
}

static void blocks_of_five_mib_waste_less_than_seven_percent_of_the_pool(void **state)
{
	struct kvp_pool_header pool = pool_of(1 * GIB, 64 * MIB);
	struct ns_shape s = ns_shape(&pool, 5 * MIB);
	uint64_t blocks = pool.pool_bytes / s.slab_bytes * s.slots_per_slab;

	(void)state;
	assert_true(blocks * 5 * MIB * 100 >= pool.pool_bytes * 93);
}

/* Shared memory of a full namespace beside the bytes of its slabs: header, slab table, index, descriptors in use. */
static uint64_t meta_bytes(const struct kvp_pool_header *pool, const struct ns_shape *s, uint64_t *blocks)
{
	*blocks = pool->pool_bytes / s->slab_bytes * s->slots_per_slab;
	return s->block_off + *blocks * sizeof(struct kvp_block) + 2 * KVP_PAGE;
}

static void bookkeeping_of_small_blocks_is_at_most_300_bytes_each(void **state)
{
	static const uint64_t pools[] = {64 * MIB, 256 * MIB, 1 * GIB, 5 * GIB, 12 * GIB, 100 * GIB};

	(void)state;
	for (unsigned i = 0; i < sizeof(pools) / sizeof(pools[0]); i++)
		for (uint64_t bytes = 4 * KIB; bytes <= 64 * KIB; bytes *= 2) {
			struct kvp_pool_header pool = pool_of(pools[i], 64 * MIB);
			struct ns_shape s = ns_shape(&pool, bytes);
			uint64_t blocks, meta = meta_bytes(&pool, &s, &blocks);

			assert_true(meta <= blocks * 300);
		}
}

static void shared_memory_is_at_most_1_02_times_the_payload_for_2_mib_blocks(void **state)
{
	struct kvp_pool_header pool = pool_of(1 * GIB, 64 * MIB);
	struct ns_shape s = ns_shape(&pool, 2 * MIB);
	uint64_t blocks, meta = meta_bytes(&pool, &s, &blocks);

	(void)state;
	assert_int_equal(blocks, 512);
	/* and the pool's own: header, stats; a session's pages are 8 bytes a block */
	meta += KVP_PAGE + 1 * MIB + 8 * blocks;
	assert_true((pool.pool_bytes + meta) * 100 <= blocks * 2 * MIB * 102);
}

static void the_index_has_room_for_the_most_blocks_there_can_be_and_its_parts_do_not_overlap(void **state)
{
	static const uint64_t sizes[] = {4096, 5000, 64 * KIB, 2 * MIB, 5 * MIB, 100 * MIB};

	(void)state;
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct kvp_pool_header pool = pool_of(3 * GIB, 64 * MIB);
		struct ns_shape s = ns_shape(&pool, sizes[i]);
		uint64_t most = pool.pool_bytes / s.slab_bytes * s.slots_per_slab;

		assert_true(s.n_buckets * KVP_INDEX_WIDTH >= 2 * most);
		assert_int_equal(s.n_buckets & (s.n_buckets - 1), 0);
		assert_true(s.slab_off >= sizeof(struct kvp_ns_header));
		assert_true(s.index_off >= s.slab_off + pool.max_places * sizeof(struct kvp_slab));
		assert_true(s.block_off >= s.index_off + s.n_buckets * sizeof(struct kvp_index_bucket));
		assert_true(s.object_bytes >=
			    s.block_off + (uint64_t)pool.max_places * s.slots_per_slab * sizeof(struct kvp_block));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_slab_is_whole_blocks_and_less_than_seven_percent_of_it_lies_idle),
		cmocka_unit_test(blocks_of_five_mib_waste_less_than_seven_percent_of_the_pool),
		cmocka_unit_test(bookkeeping_of_small_blocks_is_at_most_300_bytes_each),
		cmocka_unit_test(shared_memory_is_at_most_1_02_times_the_payload_for_2_mib_blocks),
		cmocka_unit_test(the_index_has_room_for_the_most_blocks_there_can_be_and_its_parts_do_not_overlap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
