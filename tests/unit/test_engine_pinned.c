/*
 * test_engine_pinned.c - our own model's greedy ids, written down: with the repository's weights the engine says these
 *
 * On the paths below the best logit leads by enough that the order of sums does not decide, so every instruction set
 * gives the same ids.  New weights need new lists: tests/data/model/README.md says how.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../client/kvengine/file.h"
#include "../../client/kvengine/generate.h"
#include "../../client/kvengine/kv.h"
#include "../../client/kvengine/tokenizer.h"

#define MODEL "tests/data/model/kjv.kvm"
#define TOKENS "tests/data/model/kjv.tok"
#define STEPS 48

struct pinned {
	const char *name;
	uint32_t type; /* enum kvattn_type of the stored K and V */
	uint32_t ids[STEPS]; /* generated after the prompt */
};

#include "../data/model/pinned.h"

static const char prompt[] = PINNED_PROMPT;

#include "engine_fixture.h"

static void assert_pinned_in(
	const struct engine *e, const char *text, size_t length, const struct pinned *pinned, uint32_t layout)
{
	const struct kv_opts kv = {.layout = layout, .type = pinned->type, .block_tokens = 16};
	const struct generate_opts opts = {.steps = STEPS, .chunk = 64};
	struct generate_result result = {0};
	struct kv_store *store = NULL;
	struct error error = {0};
	uint32_t *ids;
	int64_t n = tokenizer_encode(&e->tokenizer, text, length, e->model.context, &ids, &error);

	if (n < 0 || kv_private_open(&e->model, &kv, &store, &error) < 0 ||
		generate_run(&e->model, store, ids, (uint64_t)n, &opts, &result, &error) < 0)
		fail_msg("%s", error.text);
	assert_int_equal(result.n_ids, n + STEPS);
	for (int i = 0; i < STEPS; i++)
		if (result.ids[n + i] != pinned->ids[i])
			fail_msg("%s: id %d is %u, not %u", pinned->name, i, result.ids[n + i], pinned->ids[i]);
	kv_close(store);
	free(result.ids);
	free(ids);
}

static void assert_pinned(const struct engine *e, const char *text, size_t length, const struct pinned *pinned)
{
	static const uint32_t layouts[] = {KVP_LAYOUT_HND, KVP_LAYOUT_NHD, KVP_LAYOUT_TILED};

	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
		assert_pinned_in(e, text, length, pinned, layouts[i]);
}

static void after_a_short_prompt_it_says_what_is_written_down(void **state)
{
	static const enum row_isa isas[] = {ROW_ISA_PLAIN, ROW_ISA_AVX2, ROW_ISA_AVX512, ROW_ISA_AUTO};

	for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
		if (row_isa_force(isas[i]) < 0) {
			print_message("without instruction set %d: not on this CPU\n", isas[i]);
			continue;
		}
		for (size_t p = 0; p < sizeof(pinned_short) / sizeof(pinned_short[0]); p++)
			assert_pinned(*state, prompt, strlen(prompt), &pinned_short[p]);
	}
}

static void after_the_long_prompt_it_says_what_is_written_down(void **state)
{
	struct error error = {0};
	struct file begin, ending;
	char *text;

	if (file_map(&begin, "tests/data/model/prompt.txt", &error) < 0 ||
		file_map(&ending, "tests/data/model/ending-a.txt", &error) < 0)
		fail_msg("%s", error.text);
	text = malloc(begin.size + ending.size);
	memcpy(text, begin.bytes, begin.size);
	memcpy(text + begin.size, ending.bytes, ending.size);
	for (size_t p = 0; p < sizeof(pinned_long) / sizeof(pinned_long[0]); p++)
		assert_pinned(*state, text, begin.size + ending.size, &pinned_long[p]);
	free(text);
	file_unmap(&begin);
	file_unmap(&ending);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_a_short_prompt_it_says_what_is_written_down),
		cmocka_unit_test(after_the_long_prompt_it_says_what_is_written_down),
	};

	return cmocka_run_group_tests(tests, engine_open, engine_close);
}
