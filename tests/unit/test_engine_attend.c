/* test_engine_attend.c - attention to a part of the keys, in private memory: where the part is all, the ids are
   full's */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../client/kvengine/generate.h"
#include "../../client/kvengine/kv.h"
#include "../../client/kvengine/tokenizer.h"

#define MODEL "tests/data/model/kjv.kvm"
#define TOKENS "tests/data/model/kjv.tok"
#define STEPS 40u

static const char prompt[] =
	"And it came to pass, when the king had heard the words of the prophet, that he rent his clothes, and put "
	"sackcloth upon his flesh, and fasted, and lay in sackcloth, and went softly.\n";

#include "engine_fixture.h"

static struct kv_store *given_store(const struct engine *e, uint32_t type, const struct attend *how)
{
	const struct kv_opts opts = {.type = type,
		.block_tokens = 16,
		.summaries = how->kind == ATTEND_SPARSE,
		.window = how->kind == ATTEND_WINDOW ? how->n : 0,
		.sinks = how->kind == ATTEND_WINDOW ? ATTEND_SINKS : 0};
	const struct kv_pool_opts pool = {.name = "test", .tokenizer = e->tokenizer.fingerprint, .offline = true};
	struct kv_store *store = NULL;
	struct error error = {0};

	if (kv_pool_open(&e->model, &opts, &pool, &store, &error) < 0)
		fail_msg("%s", error.text);
	return store;
}

static struct generate_result generated_by(
	const struct engine *e, uint32_t type, const char *attn, uint32_t piece, uint32_t threads)
{
	struct generate_opts opts = {.steps = STEPS, .chunk = 24};
	struct generate_result result;
	struct error error = {0};
	struct kv_store *store;

	assert_int_equal(attend_parse(attn, &opts.attend), 0);
	opts.attend.piece = piece;
	opts.attend.threads = threads;
	store = given_store(e, type, &opts.attend);
	if (generate_run(&e->model, store, e->ids, e->n, &opts, &result, &error) < 0)
		fail_msg("%s: %s", attn, error.text);
	assert_int_equal(result.n_ids, e->n + STEPS);
	kv_close(store);
	return result;
}

static struct generate_result generated(const struct engine *e, uint32_t type, const char *attn)
{
	return generated_by(e, type, attn, 0, 1);
}

static void a_part_that_is_all_gives_the_ids_of_full_attention(void **state)
{
	static const char *const parts[] = {"window:100000", "sparse:100000", "heavy:100000"};
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16, KVATTN_I8, KVATTN_I4};
	struct engine *e = *state;

	for (size_t t = 0; t < 4; t++) {
		struct generate_result full = generated(e, types[t], "full");

		for (size_t i = 0; i < 3; i++) {
			struct generate_result part = generated(e, types[t], parts[i]);

			assert_memory_equal(part.ids, full.ids, full.n_ids * sizeof(*full.ids));
			free(part.ids);
		}
		free(full.ids);
	}
}

/* By rounding the same, and this model is sure enough of these words. */
static void a_prompt_attended_piece_by_piece_gives_the_same_ids(void **state)
{
	struct generate_result full = generated(*state, KVATTN_F32, "full");
	struct generate_result pieces = generated_by(*state, KVATTN_F32, "sparse:100000", 2, 1);

	assert_memory_equal(pieces.ids, full.ids, full.n_ids * sizeof(*full.ids));
	free(pieces.ids);
	free(full.ids);
}

static void threads_change_no_id(void **state)
{
	static const char *const hows[] = {"full", "window:40", "sparse:2", "heavy:48"};

	for (size_t i = 0; i < 4; i++) {
		struct generate_result one = generated(*state, KVATTN_F16, hows[i]);
		struct generate_result three = generated_by(*state, KVATTN_F16, hows[i], 0, 3);

		assert_memory_equal(three.ids, one.ids, one.n_ids * sizeof(*one.ids));
		free(one.ids);
		free(three.ids);
	}
}

static void sparse_attention_reads_a_part_of_the_blocks(void **state)
{
	struct generate_result result = generated(*state, KVATTN_F16, "sparse:1");

	assert_true(result.attended > 0 && result.attended < 1);
	free(result.ids);
}

/* Two KV heads may pick one block each, beside the one being filled. */
static void sparse_attention_reads_no_more_than_each_head_may_pick(void **state)
{
	struct engine *e = *state;
	struct generate_result result = generated(e, KVATTN_F16, "sparse:1");
	const double most = (double)(e->model.n_kv_heads + 1) / (double)(e->n / 16 + 1);

	assert_true(result.attended <= most);
	free(result.ids);
}

static void int4_goes_on_after_tokens_were_dropped(void **state)
{
	struct generate_result result = generated(*state, KVATTN_I4, "heavy:48");

	free(result.ids);
}

/* With all but 64 tokens dropped the text is foreseen nearly as well as with all; with all but the sinks it is not. */
static void heavy_tokens_are_worth_more_than_the_others(void **state)
{
	static const char *const kinds[] = {"full", "heavy:64", "window:1"};
	struct engine *e = *state;
	struct generate_result said = generated(e, KVATTN_F32, "full");
	double loss[3];

	for (int i = 0; i < 3; i++) {
		struct generate_opts opts = {.chunk = 64};
		struct generate_score score;
		struct error error = {0};
		struct kv_store *store;

		assert_int_equal(attend_parse(kinds[i], &opts.attend), 0);
		store = given_store(e, KVATTN_F32, &opts.attend);
		if (generate_score(&e->model, store, said.ids, said.n_ids, e->n, &opts, &score, &error) < 0)
			fail_msg("%s", error.text);
		loss[i] = score.loss / STEPS;
		if (i == 0) /* full attention's own words are what it thinks likeliest */
			assert_memory_equal(score.best, said.ids + e->n, STEPS * sizeof(*score.best));
		free(score.best);
		kv_close(store);
	}
	assert_true(loss[1] < loss[0] + 0.5);
	assert_true(loss[2] > loss[0] + 1);
	free(said.ids);
}

static void an_attention_that_is_none_is_refused(void **state)
{
	static const char *const wrong[] = {
		"", "some", "window", "window:", "window:0", "sparse:-1", "sparse:4x", "heavy:31", "full:1"};
	struct attend how;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(attend_parse(wrong[i], &how), -EINVAL);
	assert_int_equal(attend_parse("sparse:7", &how), 0);
	assert_int_equal(how.kind, ATTEND_SPARSE);
	assert_int_equal(how.n, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_part_that_is_all_gives_the_ids_of_full_attention),
		cmocka_unit_test(a_prompt_attended_piece_by_piece_gives_the_same_ids),
		cmocka_unit_test(threads_change_no_id),
		cmocka_unit_test(sparse_attention_reads_a_part_of_the_blocks),
		cmocka_unit_test(sparse_attention_reads_no_more_than_each_head_may_pick),
		cmocka_unit_test(int4_goes_on_after_tokens_were_dropped),
		cmocka_unit_test(heavy_tokens_are_worth_more_than_the_others),
		cmocka_unit_test(an_attention_that_is_none_is_refused),
	};

	return cmocka_run_group_tests(tests, engine_open, engine_close);
}
