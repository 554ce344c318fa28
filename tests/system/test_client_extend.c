/*
 * test_client_extend.c - a block that begins as a copy of another one's first tokens, and the regions that blocks lie
 * in
 *
 * kvpool-test: timeout=120
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trial.h"

#define TOKENS 16u
#define LAYERS 2u
#define HEADS 2u
#define DIM 64u
#define ROW (DIM * 2) /* f16 */
#define SHAPED (LAYERS * 2 * HEADS * TOKENS * ROW)

static int setup(void **state)
{
	return trial_setup(state, "4M", NULL);
}

static void given_ns(struct trial *t, const char *name, uint32_t layout)
{
	struct kvp_desc desc;

	assert_int_equal(trial_client(t, &t->client), 0);
	if (layout == KVP_LAYOUT_OPAQUE)
		trial_desc(&desc);
	else
		kvp_desc_init(&desc, layout, TOKENS, LAYERS, HEADS, DIM, KVP_TYPE_F16);
	assert_int_equal(trial_ns(t->client, name, &desc, &t->ns), 0);
}

static struct kvp_view held(struct trial *t, uint64_t k, uint64_t bytes)
{
	struct kvp_key key = wire_key(k);
	struct kvp_view view;

	assert_int_equal(trial_put(t->ns, &key, NULL, k, bytes), KVP_PUB_STORED);
	assert_int_equal(kvp_acquire(t->ns, &key, 1, 0, kvp_deadline_ms(10000), &view), 1);
	return view;
}

/* With no deadline of its own it may find none in time on a busy machine; that there is room is known. */
static int extended(const struct kvp_view *view, uint32_t used_tokens, struct kvp_block_ref *block)
{
	uint64_t end = kvp_deadline_ms(20000);
	int r;

	while ((r = kvp_reserve_extend(view, used_tokens, 0, block)) == -KVP_ENOSPC && kvp_deadline_ms(0) < end)
		;
	return r;
}

static bool rows_same(
	const struct trial *t, const void *a, const void *b, uint32_t layer, enum kvp_kv which, uint32_t token)
{
	uint64_t off, token_stride, head_stride;
	uint32_t elem_bytes;

	assert_int_equal(kvp_geom(t->ns, layer, which, &off, &token_stride, &head_stride, &elem_bytes), 0);
	for (uint32_t head = 0; head < HEADS; head++) {
		uint64_t at = off + head * head_stride + token * token_stride;

		if (memcmp((const char *)a + at, (const char *)b + at, ROW))
			return false;
	}
	return true;
}

/* It is published with fewer tokens, and another process's view of it would have them. */
static void the_first_tokens_are_there_in_each_layer_and_head_and_the_rest_is_the_writers(void **state)
{
	static const uint32_t layouts[] = {KVP_LAYOUT_HND, KVP_LAYOUT_NHD};
	struct trial *t = *state;

	for (unsigned i = 0; i < 2; i++) {
		struct kvp_publish_item item = {.key = wire_key(1000), .used_tokens = 5, .used_bytes = SHAPED};
		struct kvp_block_ref block;
		struct kvp_view view, again;
		uint8_t result = 0;

		given_ns(t, i ? "nhd" : "hnd", layouts[i]);
		view = held(t, 1, SHAPED);
		assert_int_equal(extended(&view, 5, &block), 0);
		assert_false(block.is_private);
		assert_ptr_not_equal(block.data, view.data);
		for (uint32_t layer = 0; layer < LAYERS; layer++)
			for (uint32_t token = 0; token < 5; token++) {
				assert_true(rows_same(t, block.data, view.data, layer, KVP_K, token));
				assert_true(rows_same(t, block.data, view.data, layer, KVP_V, token));
			}
		item.block = &block;
		assert_int_equal(kvp_publish(t->ns, &item, 1, &result), 1);
		assert_int_equal(result, KVP_PUB_STORED);
		kvp_abandon(&block, 1);
		assert_int_equal(kvp_acquire(t->ns, &item.key, 1, 0, kvp_deadline_ms(10000), &again), 1);
		assert_int_equal(again.used_tokens, 5);
		assert_true(rows_same(t, again.data, view.data, LAYERS - 1, KVP_V, 4));
		kvp_release(&again, 1);
		kvp_release(&view, 1);
		trial_detach(t);
	}
}

static void of_opaque_blocks_all_bytes_are_copied(void **state)
{
	struct trial *t = *state;
	struct kvp_block_ref block;
	struct kvp_view view;

	given_ns(t, "opaque", KVP_LAYOUT_OPAQUE);
	view = held(t, 7, TRIAL_BLOCK);
	assert_int_equal(extended(&view, TRIAL_TOKENS, &block), 0);
	assert_true(wire_right(block.data, TRIAL_BLOCK, 7));
	memset(block.data, 0, TRIAL_BLOCK); /* a copy of its own */
	assert_true(wire_right(view.data, TRIAL_BLOCK, 7));
	kvp_abandon(&block, 1);
	kvp_release(&view, 1);
}

static void what_cannot_be_extended_is_refused_with_the_reason(void **state)
{
	struct trial *t = *state;
	struct kvp_block_ref block;
	struct kvp_view view, none = {0};

	given_ns(t, "opaque", KVP_LAYOUT_OPAQUE);
	view = held(t, 8, TRIAL_BLOCK);
	assert_int_equal(kvp_reserve_extend(NULL, 1, 0, &block), -KVP_EINVAL);
	assert_int_equal(kvp_reserve_extend(&none, 1, 0, &block), -KVP_EINVAL);
	assert_int_equal(kvp_reserve_extend(&view, 1, 0, NULL), -KVP_EINVAL);
	assert_int_equal(kvp_reserve_extend(&view, TRIAL_TOKENS + 1, 0, &block), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(NULL), "used_tokens: 17 of 16"));
	assert_int_equal(kvp_reserve_extend(&view, 1, 8, &block), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(NULL), "only KVP_PRIVATE is known"));
	kvp_release(&view, 1);
	assert_int_equal(kvp_reserve_extend(&view, 1, 0, &block), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(NULL), "not a held one"));
}

/* All of the pool is held: 4 MiB of it. */
static void without_room_in_the_pool_a_copy_is_private_where_that_will_do(void **state)
{
	enum { ALL = 80 };
	struct trial *t = *state;
	struct kvp_block_ref blocks[ALL], block;
	struct kvp_view view;
	int64_t n;

	given_ns(t, "opaque", KVP_LAYOUT_OPAQUE);
	view = held(t, 9, TRIAL_BLOCK);
	n = kvp_reserve(t->ns, ALL, 0, kvp_deadline_ms(3000), blocks);
	assert_true(n > 0 && n < ALL);
	assert_int_equal(kvp_reserve_extend(&view, TRIAL_TOKENS, 0, &block), -KVP_ENOSPC);
	assert_non_null(strstr(kvp_error(NULL), "KVP_PRIVATE gives private memory"));
	assert_int_equal(kvp_reserve_extend(&view, TRIAL_TOKENS, KVP_PRIVATE, &block), 0);
	assert_true(block.is_private);
	assert_true(wire_right(block.data, TRIAL_BLOCK, 9));
	kvp_abandon(&block, 1);
	kvp_abandon(blocks, (uint32_t)n);
	kvp_release(&view, 1);
}

static void every_block_lies_in_one_of_the_regions_that_are_told(void **state)
{
	struct trial *t = *state;
	const void *base = NULL;
	struct kvp_view view;
	unsigned n = 0, found = 0;
	size_t len = 0;

	given_ns(t, "opaque", KVP_LAYOUT_OPAQUE);
	view = held(t, 10, TRIAL_BLOCK);
	for (uint32_t i = 0; kvp_region(t->client, i, &base, &len) == 1; i++, n++)
		found += (const char *)view.data >= (const char *)base &&
			 (const char *)view.data + TRIAL_BLOCK <= (const char *)base + len;
	assert_true(n > 0);
	assert_true(found >= 1);
	assert_int_equal(kvp_region(t->client, n, &base, &len), 0);
	assert_int_equal(kvp_region(t->client, 0, NULL, &len), 0);
	assert_int_equal(kvp_region(NULL, 0, &base, &len), 0);
	kvp_release(&view, 1);
}

#define test(name) cmocka_unit_test_setup_teardown(name, setup, trial_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(the_first_tokens_are_there_in_each_layer_and_head_and_the_rest_is_the_writers),
		test(of_opaque_blocks_all_bytes_are_copied),
		test(what_cannot_be_extended_is_refused_with_the_reason),
		test(without_room_in_the_pool_a_copy_is_private_where_that_will_do),
		test(every_block_lies_in_one_of_the_regions_that_are_told),
	};

	return cmocka_run_group_tests_name("blocks that begin as others", tests, NULL, NULL);
}
