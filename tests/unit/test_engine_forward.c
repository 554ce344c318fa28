/*
 * test_engine_forward.c - the reference engine computes the right tokens, and the same bits however the work is cut
 *
 * The published model (../shared/models) is checked against its published texts where it is there; our own model
 * against the ids written down below.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../client/kvengine/file.h"
#include "../../client/kvengine/generate.h"
#include "../../client/kvengine/kv.h"
#include "../../client/kvengine/sampler.h"
#include "../../client/kvengine/tokenizer.h"

#define STORIES "../shared/models/stories260K.bin"
#define STORIES_TOKENS "../shared/models/tok512.bin"
#define OWN "tests/data/model/kjv.kvm"
#define OWN_TOKENS "tests/data/model/kjv.tok"
#define PROMPT "tests/data/model/prompt.txt"
#define ENDING "tests/data/model/ending-a.txt"

struct engine {
	struct model model;
	struct tokenizer tokenizer;
};

static void engine_open(struct engine *e, const char *model, const char *tokens)
{
	struct error error = {0};
	int r = model_open(&e->model, model, &error);

	if (r == -ENOENT) {
		print_message("skipped: %s\n", error.text);
		skip();
	}
	if (r < 0 || tokenizer_open(&e->tokenizer, tokens, e->model.n_vocab, &error) < 0)
		fail_msg("%s", error.text);
}

static void engine_close(struct engine *e)
{
	tokenizer_close(&e->tokenizer);
	model_close(&e->model);
}

static struct generate_result engine_run(
	struct engine *e, const char *prompt, const struct kv_opts *kv, const struct generate_opts *opts)
{
	struct generate_result result = {0};
	struct kv_store *store = NULL;
	struct error error = {0};
	uint32_t *ids;
	int64_t n = tokenizer_encode(&e->tokenizer, prompt, strlen(prompt), e->model.context, &ids, &error);

	if (n < 0 || kv_private_open(&e->model, kv, &store, &error) < 0 ||
		generate_run(&e->model, store, ids, (uint64_t)n, opts, &result, &error) < 0)
		fail_msg("%s", error.text);
	kv_close(store);
	free(ids);
	return result;
}

static void assert_text(
	struct engine *e, const char *prompt, uint32_t type, uint64_t n_ids, const uint32_t first[32], const char *md5)
{
	const struct kv_opts kv = {.type = type, .block_tokens = 16};
	const struct generate_opts opts = {.steps = 256, .chunk = 64};
	struct generate_result result = engine_run(e, prompt, &kv, &opts);
	char path[] = "/tmp/kvengine-text-XXXXXX", command[128], got[33] = {0};
	char *text;
	int64_t length = tokenizer_decode(&e->tokenizer, result.ids, result.n_ids, &text);
	int fd = mkstemp(path);
	FILE *sum;

	assert_int_equal(result.n_ids, n_ids);
	assert_memory_equal(result.ids, first, 32 * sizeof(*first));
	assert_int_equal(write(fd, text, (size_t)length), length);
	assert_int_equal(write(fd, "\n", 1), 1);
	close(fd);
	snprintf(command, sizeof(command), "md5sum %s", path);
	sum = popen(command, "r");
	assert_non_null(sum);
	assert_int_equal(fread(got, 1, 32, sum), 32);
	pclose(sum);
	unlink(path);
	assert_string_equal(got, md5);
	free(text);
	free(result.ids);
}

static const uint32_t lily[32] = {1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426, 338,
	401, 396, 267, 337, 410, 408, 419, 292, 411, 322, 265, 282, 295, 433, 426};
static const uint32_t tom[32] = {1, 385, 328, 432, 274, 287, 269, 301, 425, 411, 263, 377, 267, 265, 282, 295, 433, 426,
	342, 394, 261, 370, 268, 414, 444, 335, 261, 370, 268, 414, 444, 426};
static const uint32_t cat[32] = {1, 291, 280, 294, 262, 294, 353, 265, 284, 294, 426, 291, 280, 294, 286, 399, 393, 426,
	291, 280, 294, 286, 399, 393, 426, 291, 280, 294, 286, 399, 393, 426};

static void the_published_model_gives_the_published_texts(void **state)
{
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16};
	struct engine e;

	(void)state;
	engine_open(&e, STORIES, STORIES_TOKENS);
	for (int i = 0; i < 2; i++) {
		assert_text(&e, "", types[i], 257, lily, "4dea1f2cb295ed525ebada921cfacc49");
		assert_text(&e, "One day, Tom and Sue went to the park.", types[i], 186, tom,
			"5a5d77457d4584177220ec789d161e8e");
		assert_text(&e, "The cat sat on the mat.", types[i], 156, cat, "1eba44a85258f6d649a53ba456407030");
	}
	engine_close(&e);
}

/* Attention without libkvattn: plain loops over contiguous f32, double sums. The truth the engine's wiring is held
   to. */
struct plain {
	const struct model *model;
	float *k, *v; /* [layer][context][kv_heads][head_dim] */
};

static int plain_store(
	void *context, uint32_t layer, uint64_t first, uint32_t n, const float *k, const float *v, size_t stride)
{
	struct plain *p = context;
	const size_t row = p->model->n_kv_heads * p->model->head_dim;
	const size_t at = ((size_t)layer * p->model->context + first) * row;

	for (uint32_t r = 0; r < n; r++) {
		memcpy(p->k + at + r * row, k + r * stride, row * sizeof(float));
		memcpy(p->v + at + r * row, v + r * stride, row * sizeof(float));
	}
	return 0;
}

static void plain_head(
	const struct plain *p, uint32_t layer, uint64_t n_keys, uint32_t head, const float *q, float *out)
{
	const struct model *m = p->model;
	const size_t row = m->n_kv_heads * m->head_dim;
	const size_t at = (size_t)layer * m->context * row + head / (m->n_heads / m->n_kv_heads) * m->head_dim;
	double sum[256] = {0}, total = 0;

	for (uint64_t t = 0; t < n_keys; t++) {
		double score = 0;

		for (uint32_t i = 0; i < m->head_dim; i++)
			score += (double)q[i] * (double)p->k[at + t * row + i];
		score = exp(score /
			    sqrt(m->head_dim)); /* scores of these models are small: no need to take off the largest */
		total += score;
		for (uint32_t i = 0; i < m->head_dim; i++)
			sum[i] += score * (double)p->v[at + t * row + i];
	}
	for (uint32_t i = 0; i < m->head_dim; i++)
		out[i] = (float)(sum[i] / total);
}

static int plain_attend(
	void *context, uint32_t layer, uint64_t first, uint32_t n, const float *q, float *out, size_t stride)
{
	const struct plain *p = context;
	const struct model *m = p->model;

	for (uint32_t r = 0; r < n; r++)
		for (uint32_t h = 0; h < m->n_heads; h++)
			plain_head(p, layer, first + r + 1, h, q + r * stride + h * m->head_dim,
				out + r * stride + h * m->head_dim);
	return 0;
}

/* Logits of every row of @ids, cut into chunks of @chunk: the caller frees them. */
static float *plain_logits(const struct model *m, const uint32_t *ids, uint32_t n, uint32_t chunk)
{
	const size_t kv = (size_t)m->n_layers * m->context * m->n_kv_heads * m->head_dim;
	struct plain plain = {m, calloc(kv, sizeof(float)), calloc(kv, sizeof(float))};
	const struct forward_attention attention = {plain_store, plain_attend, &plain};
	float *logits = calloc((size_t)n * m->n_vocab, sizeof(float));
	struct forward f;

	assert_int_equal(forward_init(&f, m, chunk), 0);
	for (uint32_t first = 0, take; first < n; first += take) {
		take = n - first < chunk ? n - first : chunk;
		assert_int_equal(forward_run(&f, ids + first, take, first, take, &attention), 0);
		for (uint32_t r = 0; r < take; r++)
			memcpy(logits + (size_t)(first + r) * m->n_vocab, f.logits + (size_t)r * f.logits_stride,
				m->n_vocab * sizeof(float));
	}
	forward_deinit(&f);
	free(plain.k);
	free(plain.v);
	return logits;
}

static struct engine any_engine(void)
{
	struct engine e;

	if (access(OWN, R_OK) == 0)
		engine_open(&e, OWN, OWN_TOKENS);
	else
		engine_open(&e, STORIES, STORIES_TOKENS);
	return e;
}

static const char passage[] =
	"And it came to pass in those days, that there went out a decree from the king, that all the "
	"people should go up to the city; and they went every man with his house, and told him all the things that were done.\n";

static void logits_are_the_same_bits_however_the_prompt_is_cut(void **state)
{
	static const uint32_t chunks[] = {1, 2, 3, 7, 8, 9, 16, 31, 64};
	static const enum row_isa isas[] = {ROW_ISA_PLAIN, ROW_ISA_AVX2, ROW_ISA_AVX512, ROW_ISA_AUTO};
	struct engine e = any_engine();
	struct error error = {0};
	uint32_t *ids;
	int64_t n = tokenizer_encode(&e.tokenizer, passage, strlen(passage), e.model.context, &ids, &error);

	(void)state;
	assert_true(n > 64);
	for (int i = 0; i < 4; i++) {
		float *whole;

		if (row_isa_force(isas[i]) < 0) {
			print_message("without instruction set %d: not on this CPU\n", isas[i]);
			continue;
		}
		whole = plain_logits(&e.model, ids, (uint32_t)n, (uint32_t)n);
		for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
			float *cut = plain_logits(&e.model, ids, (uint32_t)n, chunks[c]);

			assert_memory_equal(cut, whole, (size_t)n * e.model.n_vocab * sizeof(float));
			free(cut);
		}
		free(whole);
	}
	free(ids);
	engine_close(&e);
}

static void the_engine_picks_what_plain_attention_picks(void **state)
{
	const struct kv_opts kv = {.type = KVATTN_F32, .block_tokens = 16};
	const struct generate_opts opts = {.steps = 100, .chunk = 32};
	struct engine e = any_engine();
	struct generate_result result = engine_run(&e, passage, &kv, &opts);
	float *logits = plain_logits(&e.model, result.ids, (uint32_t)result.n_ids, 64);

	(void)state;
	assert_true(result.n_ids > result.prompt_tokens);
	for (uint64_t at = result.prompt_tokens; at < result.n_ids; at++)
		assert_int_equal(result.ids[at], sampler_greedy(logits + (at - 1) * e.model.n_vocab, e.model.n_vocab));
	free(logits);
	free(result.ids);
	engine_close(&e);
}

static void assert_same(const struct generate_result *a, const struct generate_result *b)
{
	assert_int_equal(a->n_ids, b->n_ids);
	assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof(*a->ids));
}

static void ids_depend_on_no_chunk_and_no_block_size(void **state)
{
	static const struct {
		uint32_t chunk, block_tokens;
	} cases[] = {{1, 16}, {7, 16}, {16, 16}, {512, 16}, {64, 1}, {64, 7}, {5, 64}, {33, 512}};
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16, KVATTN_BF16};
	struct engine e = any_engine();

	(void)state;
	for (int t = 0; t < 3; t++) {
		struct kv_opts kv = {.type = types[t], .block_tokens = 16};
		struct generate_opts opts = {.steps = 30, .chunk = 64};
		struct generate_result first = engine_run(&e, passage, &kv, &opts);

		assert_int_equal(first.computed, first.prompt_tokens);
		assert_int_equal(first.forward_tokens, first.n_ids - 1);
		for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
			struct generate_result other;

			kv.block_tokens = cases[c].block_tokens;
			opts.chunk = cases[c].chunk;
			other = engine_run(&e, passage, &kv, &opts);
			assert_same(&first, &other);
			free(other.ids);
		}
		free(first.ids);
	}
	engine_close(&e);
}

static void an_engine_that_forgets_everything_gives_the_same_ids(void **state)
{
	const struct kv_opts kv = {.type = KVATTN_F32, .block_tokens = 16};
	const struct generate_opts keeps = {.steps = 12, .chunk = 64},
				   forgets = {.steps = 12, .chunk = 64, .forget = true};
	struct engine e = any_engine();
	struct generate_result a = engine_run(&e, passage, &kv, &keeps), b = engine_run(&e, passage, &kv, &forgets);

	(void)state;
	assert_same(&a, &b);
	assert_true(b.forward_tokens > 8 * b.prompt_tokens);
	free(a.ids);
	free(b.ids);
	engine_close(&e);
}

static void generation_ends_where_the_context_ends(void **state)
{
	const struct kv_opts kv = {.type = KVATTN_F32, .block_tokens = 16};
	const struct generate_opts opts = {.steps = 100000, .chunk = 64};
	struct engine e = any_engine();
	struct generate_result result;

	(void)state;
	e.model.context = 150;
	result = engine_run(&e, passage, &kv, &opts);
	assert_true(result.n_ids <= 151); /* the last one is chosen, not computed */
	assert_true(result.forward_tokens <= 150);
	free(result.ids);
	engine_close(&e);
}

static void a_pass_refuses_ids_positions_and_counts_out_of_range(void **state)
{
	const struct forward_attention attention = {plain_store, plain_attend, NULL};
	struct engine e = any_engine();
	const uint32_t good[2] = {1, 2}, bad[2] = {1, e.model.n_vocab};
	struct forward f;

	(void)state;
	assert_int_equal(forward_init(&f, &e.model, 2), 0);
	assert_int_equal(forward_run(&f, good, 0, 0, 0, &attention), -EINVAL);
	assert_int_equal(forward_run(&f, good, 3, 0, 0, &attention), -EINVAL);
	assert_int_equal(forward_run(&f, good, 1, 0, 2, &attention), -EINVAL);
	assert_int_equal(forward_run(&f, bad, 2, 0, 1, &attention), -EINVAL);
	assert_int_equal(forward_run(&f, good, 2, e.model.context - 1, 1, &attention), -EINVAL);
	assert_int_equal(forward_run(&f, good, 1, UINT64_MAX, 1, &attention), -EINVAL);
	forward_deinit(&f);
	engine_close(&e);
}

static void greedy_takes_the_lowest_id_of_equals(void **state)
{
	static const float logits[] = {-3, 2, -1, 2, 1};

	(void)state;
	assert_int_equal(sampler_greedy(logits, 5), 1);
	assert_int_equal(sampler_greedy(logits, 1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_published_model_gives_the_published_texts),
		cmocka_unit_test(logits_are_the_same_bits_however_the_prompt_is_cut),
		cmocka_unit_test(the_engine_picks_what_plain_attention_picks),
		cmocka_unit_test(ids_depend_on_no_chunk_and_no_block_size),
		cmocka_unit_test(an_engine_that_forgets_everything_gives_the_same_ids),
		cmocka_unit_test(generation_ends_where_the_context_ends),
		cmocka_unit_test(a_pass_refuses_ids_positions_and_counts_out_of_range),
		cmocka_unit_test(greedy_takes_the_lowest_id_of_equals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
