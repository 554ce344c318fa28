/* test_engine_kv.c - where the engine keeps K and V: its own memory, or libkvpool's; with no daemon both give the
   same */
#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "../../client/kvengine/generate.h"
#include "../../client/kvengine/kv.h"
#include "../../client/kvengine/tokenizer.h"

#define MODEL "tests/data/model/kjv.kvm"
#define TOKENS "tests/data/model/kjv.tok"
#define NOWHERE "/nonexistent/kvpoold.sock"

static const char prompt[] =
	"And it came to pass, when the king had heard the words of the prophet, that he rent his clothes.\n";

#include "engine_fixture.h"

static struct kv_store *given_private(const struct engine *e, uint32_t block_tokens)
{
	const struct kv_opts opts = {.type = KVATTN_F16, .block_tokens = block_tokens};
	struct kv_store *store = NULL;
	struct error error = {0};

	if (kv_private_open(&e->model, &opts, &store, &error) < 0)
		fail_msg("%s", error.text);
	return store;
}

static struct kv_store *given_pool(const struct engine *e, uint32_t type)
{
	const struct kv_opts opts = {.type = type, .block_tokens = 16};
	const struct kv_pool_opts pool = {.socket = NOWHERE, .name = "test", .tokenizer = e->tokenizer.fingerprint};
	struct kv_store *store = NULL;
	struct error error = {0};

	if (kv_pool_open(&e->model, &opts, &pool, &store, &error) < 0)
		fail_msg("%s", error.text);
	return store;
}

static void a_private_store_has_room_for_the_context_and_no_more(void **state)
{
	struct engine *e = *state;
	struct kv_store *store = given_private(e, 7);
	const uint32_t *ids = calloc(e->model.context + 7, sizeof(*ids));
	struct error error = {0};
	struct kvattn_table table;
	uint32_t index;

	assert_int_equal(store->ops->match(store, e->ids, e->n, &error), 0);
	assert_null(store->ops->block(store, 0, &index));
	assert_int_equal(store->ops->append(store, ids, 10, &error), 10);
	assert_non_null(store->ops->block(store, 9, &index));
	assert_int_equal(index, 2);
	assert_null(store->ops->block(store, 10, &index));
	assert_int_equal(store->ops->table(store, &table), 0);
	assert_int_equal(table.n_tokens, 10);
	assert_int_equal(table.n_blocks, 2);
	assert_int_equal(store->ops->append(store, ids, e->model.context - 10, &error), e->model.context);
	assert_int_equal(store->ops->append(store, ids, 7, &error), -ENOSPC);
	assert_non_null(strstr(error.text, "context is full"));
	store->ops->restart(store);
	assert_int_equal(store->ops->append(store, ids, 1, &error), 1);
	kv_close(store);
	free((void *)(uintptr_t)ids);
}

/* What it says of it is not read from what it freed, which is overwritten here. */
static void a_table_that_memory_does_not_hold_is_refused_and_its_length_told(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	(void)state;
	print_message("skipped: a sanitizer ends a program that memory is refused to\n");
	skip();
#else
	const struct kv_opts opts = {.type = KVATTN_F16, .block_tokens = 1};
	struct model model = ((struct engine *)*state)->model;
	struct rlimit before, limit;
	struct kv_store *store;
	struct error error = {0};
	int r;

	model.context = UINT32_MAX;
	assert_int_equal(getrlimit(RLIMIT_DATA, &before), 0);
	limit = (struct rlimit){.rlim_cur = 4ull << 30, .rlim_max = before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_DATA, &limit), 0);
	mallopt(M_PERTURB, 0x55);
	r = kv_private_open(&model, &opts, &store, &error);
	mallopt(M_PERTURB, 0);
	assert_int_equal(setrlimit(RLIMIT_DATA, &before), 0);
	assert_int_equal(r, -ENOMEM);
	assert_null(store);
	assert_non_null(strstr(error.text, "a table of 4294967295 blocks"));
#endif
}

static void a_store_that_libkvattn_cannot_serve_is_refused(void **state)
{
	struct engine *e = *state;
	const struct kv_opts type = {.type = 99, .block_tokens = 16}, block = {.type = KVATTN_F32, .block_tokens = 0};
	struct kv_store *store = NULL;
	struct error error = {0};

	assert_true(kv_private_open(&e->model, &type, &store, &error) < 0);
	assert_null(store);
	assert_true(kv_private_open(&e->model, &block, &store, &error) < 0);
	assert_null(store);
}

static void without_a_daemon_the_pool_gives_what_private_memory_gives(void **state)
{
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16, KVATTN_BF16, KVATTN_FP8_E4M3, KVATTN_I8, KVATTN_I4};
	const struct generate_opts opts = {.steps = 40, .chunk = 24};
	struct engine *e = *state;

	for (int t = 0; t < 6; t++) {
		const struct kv_opts kv = {.type = types[t], .block_tokens = 16};
		struct generate_result alone, pooled;
		struct kv_store *private = NULL, *pool = given_pool(e, types[t]);
		struct error error = {0};

		assert_int_equal(kv_private_open(&e->model, &kv, &private, &error), 0);
		assert_int_equal(generate_run(&e->model, private, e->ids, e->n, &opts, &alone, &error), 0);
		assert_int_equal(generate_run(&e->model, pool, e->ids, e->n, &opts, &pooled, &error), 0);
		assert_int_equal(pooled.n_ids, alone.n_ids);
		assert_memory_equal(pooled.ids, alone.ids, alone.n_ids * sizeof(*alone.ids));
		assert_int_equal(pooled.reused_ram + pooled.reused_spill, 0);
		assert_int_equal(pooled.copied_bytes, 0);
		free(alone.ids);
		free(pooled.ids);
		kv_close(private);
		kv_close(pool);
	}
}

/* Layer 0's K follows from the tokens alone, so however its rows came in, its tiles must hold the same. */
static void rows_of_int4_may_come_one_by_one(void **state)
{
	struct engine *e = *state;
	float *k[2];

	for (int i = 0; i < 2; i++) {
		const struct kv_opts kv = {.type = KVATTN_I4, .block_tokens = 24}; /* the second tile is half of one */
		const struct generate_opts opts = {.steps = 0, .chunk = i ? 5 : 64};
		struct generate_result result;
		struct kv_store *store = NULL;
		struct kvattn_table table;
		struct error error = {0};
		size_t row;

		assert_int_equal(kv_private_open(&e->model, &kv, &store, &error), 0);
		assert_int_equal(generate_run(&e->model, store, e->ids, e->n, &opts, &result, &error), 0);
		assert_int_equal(store->ops->table(store, &table), 0);
		row = (size_t)e->model.n_kv_heads * e->model.head_dim;
		k[i] = calloc(e->n, row * sizeof(float));
		for (uint64_t b = 0; b * 24 < e->n; b++)
			assert_int_equal(kvattn_get(&store->geom[0], table.blocks[b], 0,
						 (uint32_t)(e->n - b * 24 < 24 ? e->n - b * 24 : 24),
						 k[i] + b * 24 * row, 0, NULL, 0),
				0);
		free(result.ids);
		kv_close(store);
	}
	assert_memory_equal(k[0], k[1], e->n * e->model.n_kv_heads * e->model.head_dim * sizeof(float));
	free(k[0]);
	free(k[1]);
}

static void a_prompt_longer_than_the_context_is_refused(void **state)
{
	struct engine *e = *state;
	const struct generate_opts opts = {.steps = 1, .chunk = 64};
	uint32_t *ids = calloc(e->model.context + 1, sizeof(*ids));
	struct kv_store *store = given_private(e, 16);
	struct generate_result result;
	struct error error = {0};

	assert_int_equal(generate_run(&e->model, store, ids, e->model.context + 1, &opts, &result, &error), -E2BIG);
	assert_non_null(strstr(error.text, "shorten it"));
	assert_null(result.ids);
	assert_int_equal(generate_run(&e->model, store, ids, 0, &opts, &result, &error), -E2BIG);
	kv_close(store);
	free(ids);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_private_store_has_room_for_the_context_and_no_more),
		cmocka_unit_test(a_table_that_memory_does_not_hold_is_refused_and_its_length_told),
		cmocka_unit_test(a_store_that_libkvattn_cannot_serve_is_refused),
		cmocka_unit_test(without_a_daemon_the_pool_gives_what_private_memory_gives),
		cmocka_unit_test(rows_of_int4_may_come_one_by_one),
		cmocka_unit_test(a_prompt_longer_than_the_context_is_refused),
	};

	return cmocka_run_group_tests(tests, engine_open, engine_close);
}
