/*
 * quality.c - what each type of stored K and V, and each way to attend to a part of the keys, costs in quality
 *
 * The repository's model on a chapter it was not trained on (tests/data/model): the first PROMPT tokens are given, the
 * others are foreseen one by one.  Loss is in nats a token; "same" is how often the likeliest token is the one of f32
 * and full attention.  Prints a table; exact numbers differ by rounding between instruction sets.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvengine/file.h"
#include "client/kvengine/generate.h"
#include "client/kvengine/tokenizer.h"
#include "kvpool_desc.h"

#define MODEL "tests/data/model/kjv.kvm"
#define TOKENS "tests/data/model/kjv.tok"
#define TEXT "tests/data/model/prompt.txt"
#define PROMPT 512u
#define BLOCK_TOKENS 16u

struct quality {
	struct model model;
	struct tokenizer tokenizer;
	uint32_t *ids;
	uint64_t n;
	uint32_t *best; /* of f32 and full attention */
	double loss;
};

struct row {
	uint32_t type_k, type_v;
	const char *attn;
};

static int inputs_open(struct quality *q, struct error *error)
{
	struct file file;
	int64_t n = model_open(&q->model, MODEL, error);

	if (n == 0)
		n = tokenizer_open(&q->tokenizer, TOKENS, q->model.n_vocab, error);
	if (n == 0)
		n = file_map(&file, TEXT, error);
	if (n < 0)
		return (int)n;
	n = tokenizer_encode(&q->tokenizer, (const char *)file.bytes, file.size, q->model.context, &q->ids, error);
	file_unmap(&file);
	q->n = n < 0 ? 0 : (uint64_t)n;
	return n < 0 ? (int)n : 0;
}

static int row_score(const struct quality *q, const struct row *row, struct generate_score *score, struct error *error)
{
	struct generate_opts opts = {.chunk = 64};
	struct kv_opts kv = {.type = row->type_k, .type_v = row->type_v, .block_tokens = BLOCK_TOKENS};
	const struct kv_pool_opts pool = {.name = "quality", .tokenizer = q->tokenizer.fingerprint, .offline = true};
	struct kv_store *store;
	int r;

	if (attend_parse(row->attn, &opts.attend) < 0)
		return error_set(error, -1, "%s: no such attention", row->attn);
	kv.summaries = opts.attend.kind == ATTEND_SPARSE;
	r = kv_pool_open(&q->model, &kv, &pool, &store, error);
	if (r < 0)
		return r;
	r = generate_score(&q->model, store, q->ids, q->n, PROMPT, &opts, score, error);
	kv_close(store);
	return r;
}

static double token_bytes(const struct model *m, const struct row *row)
{
	struct kvp_desc desc;
	uint64_t bytes = 0;

	kvp_desc_init(&desc, KVP_LAYOUT_TILED, BLOCK_TOKENS, m->n_layers, m->n_kv_heads, m->head_dim, row->type_k);
	desc.type_v = row->type_v;
	kvp_desc_check(&desc, NULL, &bytes);
	return (double)bytes / BLOCK_TOKENS;
}

static void row_print(struct quality *q, const struct row *row, struct generate_score *score)
{
	const uint64_t n = q->n - PROMPT;
	uint64_t same = 0;
	char kv[32];

	if (!q->best) {
		q->best = score->best;
		q->loss = score->loss;
	}
	for (uint64_t i = 0; i < n; i++)
		same += score->best[i] == q->best[i];
	snprintf(kv, sizeof(kv), row->type_k == row->type_v ? "%s" : "%s:%s", kvp_type_name(row->type_k),
		kvp_type_name(row->type_v));
	printf("| %-10s | %-10s | %6.0f | %.3f | %.4f | %+.4f | %6.3f | %5.1f %% |\n", kv, row->attn,
		token_bytes(&q->model, row), score->attended, score->loss / (double)n,
		(score->loss - q->loss) / (double)n, exp(score->loss / (double)n), 100.0 * (double)same / (double)n);
	if (score->best != q->best)
		free(score->best);
}

int main(void)
{
	static const struct row rows[] = {
		{KVP_TYPE_F32, KVP_TYPE_F32, "full"},
		{KVP_TYPE_F16, KVP_TYPE_F16, "full"},
		{KVP_TYPE_BF16, KVP_TYPE_BF16, "full"},
		{KVP_TYPE_FP8, KVP_TYPE_FP8, "full"},
		{KVP_TYPE_I8, KVP_TYPE_I8, "full"},
		{KVP_TYPE_I8, KVP_TYPE_I4, "full"},
		{KVP_TYPE_I4, KVP_TYPE_I4, "full"},
		{KVP_TYPE_F16, KVP_TYPE_F16, "sparse:16"},
		{KVP_TYPE_F16, KVP_TYPE_F16, "sparse:8"},
		{KVP_TYPE_F16, KVP_TYPE_F16, "sparse:4"},
		{KVP_TYPE_F16, KVP_TYPE_F16, "window:256"},
		{KVP_TYPE_F16, KVP_TYPE_F16, "window:128"},
		{KVP_TYPE_F16, KVP_TYPE_F16, "heavy:256"},
		{KVP_TYPE_F16, KVP_TYPE_F16, "heavy:128"},
		{KVP_TYPE_F16, KVP_TYPE_F16, "heavy:64"},
		{KVP_TYPE_I4, KVP_TYPE_I4, "sparse:8"},
	};
	struct quality q = {0};
	struct error error = {0};
	int r = inputs_open(&q, &error);

	if (r == 0 && q.n <= PROMPT)
		r = error_set(&error, -1, "%s: shorter than %u tokens", TEXT, PROMPT);
	if (r == 0)
		printf("%llu tokens foreseen after %u, blocks of %u, %s\n\n"
		       "| K and V    | attention  | bytes  | read  | loss   | more    | perpl. | same    |\n"
		       "| ---------- | ---------- | ------ | ----- | ------ | ------- | ------ | ------- |\n",
			(unsigned long long)(q.n - PROMPT), PROMPT, BLOCK_TOKENS, kvattn_isa_name());
	for (size_t i = 0; r == 0 && i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct generate_score score;

		r = row_score(&q, &rows[i], &score, &error);
		if (r == 0)
			row_print(&q, &rows[i], &score);
	}
	if (r < 0)
		fprintf(stderr, "kvbench-quality: %s\n", error.text);
	free(q.best);
	free(q.ids);
	tokenizer_close(&q.tokenizer);
	model_close(&q.model);
	return r < 0;
}
