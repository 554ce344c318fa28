/* generate.c - see generate.h */
#include "generate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sampler.h"
#include "tokenizer.h"

#define TILE_TOKENS 16u /* of KVATTN_TILED */

struct run {
	struct forward forward;
	struct kv_store *store;
	const struct generate_opts *opts;
	struct generate_result *result;
	struct error *error;
	struct attend_state attend;
	float *tile_k; /* K of int4: [layer][16][n_kv_heads * head_dim], the rows so far of the tile that is not full */
};

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void rest_ms(uint32_t ms)
{
	struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

	while (ms > 0 && nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

/* K of int4 has groups across the tokens of a tile, so a tile is put again with each row that comes to it.  The first row
 * of a block, and so of all that comes after a match, begins a tile. */
static int tiles_put(
	const struct run *run, uint32_t layer, void *block, uint32_t index, uint32_t n, const float *k, size_t stride)
{
	const struct kvattn_geom *geom = &run->store->geom[layer];
	const uint32_t tile = geom->block_tokens < TILE_TOKENS ? geom->block_tokens : TILE_TOKENS;
	const size_t row = (size_t)geom->n_kv_heads * geom->dim_k;
	float *rows = run->tile_k + layer * TILE_TOKENS * row;
	int r = 0;

	for (uint32_t done = 0, take; r == 0 && done < n; done += take) {
		const uint32_t at = (index + done) % tile;

		take = tile - at < n - done ? tile - at : n - done;
		for (uint32_t i = 0; i < take; i++)
			memcpy(rows + (at + i) * row, k + (done + i) * stride, row * sizeof(*rows));
		r = kvattn_put(geom, block, index + done - at, at + take, rows, row, NULL, 0);
	}
	return r;
}

static int rows_put(const struct run *run, uint32_t layer, void *block, uint32_t index, uint32_t n, const float *k,
	const float *v, size_t stride)
{
	const struct kvattn_geom *geom = &run->store->geom[layer];
	int r;

	if (geom->type_k != KVATTN_I4)
		return kvattn_put(geom, block, index, n, k, stride, v, stride);
	r = tiles_put(run, layer, block, index, n, k, stride);
	return r < 0 ? r : kvattn_put(geom, block, index, n, NULL, 0, v, stride);
}

/* K and V of the new rows, block by block. */
static int run_store(
	void *context, uint32_t layer, uint64_t first, uint32_t n, const float *k, const float *v, size_t stride)
{
	const struct run *run = context;
	const struct kvattn_geom *geom = &run->store->geom[layer];

	for (uint32_t done = 0, take; done < n; done += take) {
		uint32_t index;
		void *block = run->store->ops->block(run->store, first - run->attend.n_dropped + done, &index);
		int r;

		if (!block)
			return -EROFS; /* only our own bug: these tokens were just appended */
		take = geom->block_tokens - index;
		if (take > n - done)
			take = n - done;
		r = rows_put(run, layer, block, index, take, k + done * stride, v + done * stride, stride);
		if (r < 0)
			return r;
	}
	return 0;
}

static int run_attend(
	void *context, uint32_t layer, uint64_t first, uint32_t n, const float *q, float *out, size_t stride)
{
	struct run *run = context;

	return attend_rows(&run->attend, layer, first, n, q, out, stride);
}

/* Compute tokens first .. first + n - 1 of the result's ids; the last one's logits if @want_logits. */
static int run_tokens(struct run *run, uint64_t first, uint64_t n, bool want_logits)
{
	const struct forward_attention attention = {run_store, run_attend, run};
	int64_t r = run->store->ops->append(run->store, run->result->ids + first, n, run->error);

	if (r < 0)
		return (int)r;
	r = attend_begin(&run->attend);
	if (r < 0)
		return error_set(run->error, (int)r, "the block table cannot be had: %s", strerror((int)-r));
	r = forward_run(&run->forward, run->result->ids + first, (uint32_t)n, first, want_logits ? 1 : 0, &attention);
	if (r == -ESTALE)
		return (int)r; /* said */
	if (r < 0)
		return error_set(run->error, (int)r, "the forward pass at token %llu failed: %s",
			(unsigned long long)first, strerror((int)-r));
	run->result->forward_tokens += n;
	r = run->store->ops->commit(run->store, first - run->attend.n_dropped + n, run->error);
	return r < 0 ? (int)r : 0;
}

/* From @first to the end of the ids, chunk by chunk. */
static int run_rest(struct run *run, uint64_t first)
{
	int r = 0;

	for (uint64_t n; r == 0 && first < run->result->n_ids; first += n) {
		n = run->result->n_ids - first;
		if (n > run->opts->chunk)
			n = run->opts->chunk;
		r = run_tokens(run, first, n, first + n == run->result->n_ids);
	}
	return r;
}

static int run_prompt(struct run *run)
{
	struct generate_result *result = run->result;
	const int64_t reused = run->store->ops->match(run->store, result->ids, result->n_ids, run->error);
	struct kv_counts counts;
	int r;

	if (reused < 0)
		return (int)reused;
	run->store->ops->counts(run->store, &counts);
	result->reused_ram = counts.reused_ram;
	result->reused_spill = counts.reused_spill;
	result->computed = result->n_ids - (uint64_t)reused;
	r = run_rest(run, (uint64_t)reused);
	return r < 0 ? r : attend_prompt_ends(&run->attend);
}

static int run_step(struct run *run)
{
	if (!run->opts->forget)
		return run_rest(run, run->result->n_ids - 1);
	run->store->ops->restart(run->store);
	return run_rest(run, 0);
}

/* One token after the other, until the steps are done, BOS, or the context is full. */
static int run_decode(struct run *run, uint32_t steps)
{
	struct generate_result *result = run->result;
	const struct model *model = run->forward.model;
	double busy_ms = 0;
	uint32_t n = 0;
	int r = 0;

	while (n < steps) {
		const uint32_t id = sampler_greedy(run->forward.logits, model->n_vocab);
		double start;

		if (id == TOKEN_BOS)
			break;
		result->ids[result->n_ids++] = id;
		result->full = ++n < steps && result->n_ids > model->context;
		if (n == steps || result->full)
			break;
		rest_ms(run->opts->pace_ms);
		start = now_ms();
		r = run_step(run);
		if (r < 0)
			return r;
		busy_ms += now_ms() - start;
	}
	if (n > 1 && busy_ms > 0)
		result->decode_tok_s = (n - 1) / (busy_ms / 1e3);
	return 0;
}

static int run_counts(struct run *run)
{
	struct kv_counts counts;

	run->store->ops->counts(run->store, &counts);
	run->result->copied_bytes = counts.copied_bytes;
	run->result->restored = counts.restored;
	if (run->attend.there)
		run->result->attended = (double)run->attend.seen / (double)run->attend.there;
	if (counts.lost > 0)
		return error_set(run->error, -ESTALE,
			"%llu blocks were taken away while in use (this process was stopped past the hold limit)",
			(unsigned long long)counts.lost);
	return 0;
}

static int run_generate(struct run *run)
{
	const double start = now_ms();
	int r = run_prompt(run);

	if (r < 0)
		return r;
	run->result->ttft_ms = now_ms() - start;
	r = run_decode(run, run->opts->steps);
	return r < 0 ? r : run_counts(run);
}

/* -log of the probability of @id, given the logits. */
static double logits_loss(const float *logits, uint32_t n, uint32_t id)
{
	double top = -INFINITY, sum = 0;

	for (uint32_t i = 0; i < n; i++)
		top = logits[i] > top ? logits[i] : top;
	for (uint32_t i = 0; i < n; i++)
		sum += exp(logits[i] - top);
	return top + log(sum) - logits[id];
}

/* The ids past the prompt one by one, as if each had been chosen. */
static int run_score(struct run *run, const uint32_t *ids, uint64_t n, struct generate_score *score)
{
	struct generate_result *result = run->result;
	const struct model *model = run->forward.model;
	int r = run_prompt(run);

	for (uint64_t i = result->prompt_tokens; r == 0 && i < n; i++) {
		const float *logits = run->forward.logits;

		score->best[i - result->prompt_tokens] = sampler_greedy(logits, model->n_vocab);
		score->loss += logits_loss(logits, model->n_vocab, ids[i]);
		result->ids[result->n_ids++] = ids[i];
		if (i + 1 < n)
			r = run_rest(run, i);
	}
	return r < 0 ? r : run_counts(run);
}

/* @more: room for ids after the prompt */
static int run_open(
	struct run *run, const struct model *model, const uint32_t *prompt, uint64_t n_prompt, uint64_t more)
{
	struct generate_result *result = run->result;
	const struct generate_opts *opts = run->opts;

	*result = (struct generate_result){.n_ids = n_prompt, .prompt_tokens = n_prompt, .attended = 1};
	if (n_prompt < 1 || n_prompt > model->context)
		return error_set(run->error, -E2BIG, "the prompt is %llu tokens, the model's context %u; shorten it",
			(unsigned long long)n_prompt, model->context);
	result->ids = calloc(n_prompt + more + 1, sizeof(*result->ids));
	run->tile_k =
		calloc((size_t)model->n_layers * TILE_TOKENS * model->n_kv_heads * model->head_dim, sizeof(float));
	if (!result->ids || !run->tile_k || forward_init(&run->forward, model, opts->chunk) < 0 ||
		attend_init(&run->attend, &opts->attend, run->store, model->n_heads, opts->chunk, n_prompt,
			model->context, run->error) < 0)
		return error_set(run->error, -ENOMEM,
			"not enough memory for chunks of %u tokens; use a smaller --chunk", opts->chunk);
	memcpy(result->ids, prompt, n_prompt * sizeof(*prompt));
	return 0;
}

static int run_close(struct run *run, int r)
{
	attend_deinit(&run->attend);
	forward_deinit(&run->forward);
	free(run->tile_k);
	if (r < 0) {
		free(run->result->ids);
		run->result->ids = NULL;
	}
	return r;
}

int generate_run(const struct model *model, struct kv_store *store, const uint32_t *prompt, uint64_t n_prompt,
	const struct generate_opts *opts, struct generate_result *result, struct error *error)
{
	struct run run = {.store = store, .opts = opts, .result = result, .error = error};
	int r = run_open(&run, model, prompt, n_prompt, opts->steps);

	return run_close(&run, r < 0 ? r : run_generate(&run));
}

int generate_score(const struct model *model, struct kv_store *store, const uint32_t *ids, uint64_t n,
	uint64_t n_prompt, const struct generate_opts *opts, struct generate_score *score, struct error *error)
{
	struct generate_result result;
	struct run run = {.store = store, .opts = opts, .result = &result, .error = error};
	int r;

	if (n > model->context || n_prompt >= n)
		return error_set(error, -E2BIG, "%llu tokens to score, the model's context is %u",
			(unsigned long long)n, model->context);
	*score = (struct generate_score){.best = calloc(n - n_prompt, sizeof(*score->best))};
	if (!score->best)
		return error_set(error, -ENOMEM, "not enough memory for %llu tokens", (unsigned long long)n);
	r = run_open(&run, model, ids, n_prompt, n - n_prompt);
	if (r == 0)
		r = run_score(&run, ids, n, score);
	score->attended = result.attended;
	free(result.ids);
	result.ids = NULL;
	r = run_close(&run, r);
	if (r < 0)
		free(score->best);
	return r;
}
