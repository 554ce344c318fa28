/* attend.c - see attend.h */
#include "attend.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int attend_parse(const char *text, struct attend *how)
{
	static const struct {
		const char *name;
		enum attend_kind kind;
		unsigned long least;
	} kinds[] = {{"window:", ATTEND_WINDOW, 1}, {"sparse:", ATTEND_SPARSE, 1},
		{"heavy:", ATTEND_HEAVY, ATTEND_HEAVY_MIN}};

	*how = (struct attend){.kind = ATTEND_FULL};
	if (strcmp(text, "full") == 0)
		return 0;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		const size_t length = strlen(kinds[i].name);
		unsigned long n;
		char *end;

		if (strncmp(text, kinds[i].name, length) != 0)
			continue;
		errno = 0;
		n = strtoul(text + length, &end, 10);
		if (errno || end == text + length || *end || text[length] == '-' || n < kinds[i].least || n > 1u << 24)
			return -EINVAL;
		*how = (struct attend){.kind = kinds[i].kind, .n = (uint32_t)n};
		return 0;
	}
	return -EINVAL;
}

int attend_init(struct attend_state *a, const struct attend *how, struct kv_store *store, uint32_t n_heads,
	uint32_t max_rows, uint64_t n_prompt, uint64_t max_tokens, struct error *error)
{
	const struct kvattn_geom *geom = &store->geom[0];
	const uint64_t n_blocks = max_tokens / geom->block_tokens + 1;
	const size_t rows = how->piece ? (size_t)max_rows * n_heads : 0;

	*a = (struct attend_state){.how = *how, .store = store, .error = error, .n_prompt = n_prompt};
	kvattn_opts_init(&a->attn, n_heads);
	if (how->kind == ATTEND_WINDOW) {
		a->attn.window = how->n;
		a->attn.sink_tokens = ATTEND_SINKS;
	}
	a->mass = calloc(n_prompt + 1, sizeof(*a->mass));
	a->head_mass = calloc(geom->n_kv_heads * (n_prompt + 1), sizeof(*a->head_mass));
	a->summaries = calloc(n_blocks, sizeof(*a->summaries));
	a->picks = calloc(n_blocks * geom->n_kv_heads, sizeof(*a->picks));
	a->blocks = calloc(n_blocks, sizeof(*a->blocks));
	a->part = calloc(rows * geom->dim_v + 1, sizeof(*a->part));
	a->sum = calloc(rows * geom->dim_v + 1, sizeof(*a->sum));
	a->part_lse = calloc(rows + 1, sizeof(*a->part_lse));
	a->sum_lse = calloc(rows + 1, sizeof(*a->sum_lse));
	if (a->mass && a->head_mass && a->summaries && a->picks && a->blocks && a->part && a->sum && a->part_lse &&
		a->sum_lse && (how->threads < 2 || kvattn_crew_new(how->threads, 0, &a->crew) == 0))
		return 0;
	attend_deinit(a);
	return -ENOMEM;
}

void attend_deinit(struct attend_state *a)
{
	free(a->mass);
	free(a->head_mass);
	free(a->summaries);
	free(a->picks);
	free(a->blocks);
	free(a->part);
	free(a->sum);
	free(a->part_lse);
	free(a->sum_lse);
	kvattn_crew_free(a->crew);
	*a = (struct attend_state){0};
}

/* ---- by one thread, or a crew ---- */

static int attend_one(struct attend_state *a, uint32_t layer, const struct kvattn_seq *seq)
{
	const int16_t *nodes = a->crew && a->store->ops->nodes ? a->store->ops->nodes(a->store) : NULL;

	return kvattn_crew_attend(a->crew, &a->store->geom[layer], seq, 1, &a->attn, &nodes);
}

/* ---- sparse ---- */

static int select_range(struct attend_state *a, uint64_t first, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		a->blocks[i] = first + i;
	return a->store->ops->select(a->store, a->blocks, n, &a->table, a->error);
}

/* All of the prompt's blocks, never more than a piece of them at hand: parts of the keys joined by their
   log-sum-exp. */
static int attend_pieces(struct attend_state *a, uint32_t layer, struct kvattn_seq *seq, uint64_t n_blocks)
{
	const struct kvattn_geom *geom = &a->store->geom[layer];
	const uint64_t rows = seq->n_q * a->attn.n_q_heads;
	const struct kvattn_part parts[] = {{a->sum, a->sum_lse}, {a->part, a->part_lse}};
	const size_t row = (size_t)a->attn.n_q_heads * geom->dim_v;
	float *out = seq->out;
	int r = 0;

	seq->out_stride = 0;
	for (uint64_t first = 0; r == 0 && first < n_blocks; first += a->how.piece) {
		const uint64_t n = n_blocks - first < a->how.piece ? n_blocks - first : a->how.piece;

		r = select_range(a, first, n);
		seq->table = a->table;
		seq->out = first ? a->part : a->sum;
		seq->lse = first ? a->part_lse : a->sum_lse;
		if (r == 0)
			r = attend_one(a, layer, seq);
		if (r == 0 && first)
			r = kvattn_merge(parts, 2, rows, geom->dim_v, a->sum, a->sum_lse);
	}
	for (uint64_t i = 0; r == 0 && i < seq->n_q; i++)
		memcpy(out + i * seq->q_stride, a->sum + i * row, row * sizeof(*out));
	return r;
}

/* What any KV head picked of the full blocks, and the ones that are still being filled. Return: blocks. */
static uint64_t picks_join(
	struct attend_state *a, uint32_t n_heads, uint64_t n_picks, uint64_t n_full, uint64_t n_blocks)
{
	uint64_t n = 0;

	for (uint64_t b = 0; b < n_full; b++)
		a->blocks[b] = 0;
	for (uint64_t i = 0; i < n_heads * n_picks; i++)
		a->blocks[a->picks[i]] = 1;
	for (uint64_t b = 0; b < n_full; b++)
		if (a->blocks[b]) /* n <= b: what is still to be read is not overwritten */
			a->blocks[n++] = b;
	for (uint64_t b = n_full; b < n_blocks; b++)
		a->blocks[n++] = b;
	return n;
}

static int sparse_select(struct attend_state *a, uint32_t layer, uint64_t first, const float *q)
{
	const struct kvattn_geom *geom = &a->store->geom[layer];
	const uint64_t n_blocks = first / geom->block_tokens + 1;
	const int64_t n_full = a->store->ops->summaries(a->store, layer, a->summaries);
	struct kvattn_select ask = {.size = sizeof(ask),
		.n_q_heads = a->attn.n_q_heads,
		.q = q,
		.summaries = a->summaries,
		.n_select = a->how.n,
		.keep_first = a->how.n > 1, /* the sinks' */
		.keep_last = a->how.n > 2};
	int64_t n;

	if (n_full < 0)
		return (int)n_full;
	ask.n_blocks = (uint64_t)n_full;
	a->there += n_blocks;
	if (a->how.n >= ask.n_blocks) {
		a->seen += n_blocks;
		return select_range(a, 0, n_blocks);
	}
	n = kvattn_select(geom, &ask, a->picks);
	if (n < 0)
		return (int)n;
	n = (int64_t)picks_join(a, geom->n_kv_heads, (uint64_t)n, ask.n_blocks, n_blocks);
	a->seen += (uint64_t)n;
	return a->store->ops->select(a->store, a->blocks, (uint64_t)n, &a->table, a->error);
}

/* ---- heavy ---- */

/* Attention of the prompt's last rows, and what they weigh each token, all heads and layers added up. */
static int observe(struct attend_state *a, uint32_t layer, struct kvattn_seq *seq)
{
	const struct kvattn_geom *geom = &a->store->geom[layer];
	int r;

	memset(a->head_mass, 0, geom->n_kv_heads * a->n_prompt * sizeof(*a->head_mass));
	seq->mass = a->head_mass;
	seq->mass_stride = a->n_prompt;
	r = attend_one(a, layer, seq);
	for (uint64_t i = 0; r == 0 && i < geom->n_kv_heads * a->n_prompt; i++)
		a->mass[i % a->n_prompt] += a->head_mass[i];
	return r;
}

/* Mark the sinks, the latest, then the heaviest of the others, until @n are. */
static void heavy_choose(struct attend_state *a, uint64_t n, uint64_t *tokens)
{
	const uint64_t n_recent = (n - ATTEND_SINKS) / 2;
	uint64_t at = 0;

	for (uint64_t i = 0; i < a->n_prompt; i++)
		if (i < ATTEND_SINKS || i >= a->n_prompt - n_recent)
			a->mass[i] = INFINITY;
	for (uint64_t taken = ATTEND_SINKS + n_recent; taken < n; taken++) {
		uint64_t best = 0;
		float most = -1;

		for (uint64_t i = 0; i < a->n_prompt; i++)
			if (a->mass[i] < INFINITY && a->mass[i] > most) {
				most = a->mass[i];
				best = i;
			}
		a->mass[best] = INFINITY;
	}
	for (uint64_t i = 0; i < a->n_prompt && at < n; i++)
		if (a->mass[i] == INFINITY)
			tokens[at++] = i;
}

int attend_prompt_ends(struct attend_state *a)
{
	/* whole tiles: types with groups across tokens go on with a new one */
	const uint64_t n = a->how.n / 16 * 16;
	uint64_t *tokens;
	int r;

	a->decoding = true;
	if (a->how.kind != ATTEND_HEAVY || n >= a->n_prompt)
		return 0;
	tokens = calloc(n, sizeof(*tokens));
	if (!tokens)
		return error_set(a->error, -ENOMEM, "not enough memory for a list of the kept tokens");
	heavy_choose(a, n, tokens);
	r = a->store->ops->compact(a->store, tokens, n, a->error);
	free(tokens);
	a->n_dropped = a->n_prompt - n;
	return r;
}

/* ---- rows ---- */

int attend_begin(struct attend_state *a)
{
	if (a->how.kind != ATTEND_SPARSE)
		return a->store->ops->table(a->store, &a->table);
	return 0; /* chosen by layer, or all of them once the rows are known */
}

int attend_rows(
	struct attend_state *a, uint32_t layer, uint64_t first, uint32_t n, const float *q, float *out, size_t stride)
{
	const bool observed = a->how.kind == ATTEND_HEAVY && !a->decoding && first + n == a->n_prompt;
	struct kvattn_seq seq = {
		.q = q,
		.out = out,
		.q_stride = stride,
		.out_stride = stride,
		.n_q = n,
		.q_end = first + n - a->n_dropped,
		.causal = 1,
	};
	int r = 0;

	if (a->how.kind == ATTEND_SPARSE && a->decoding)
		r = sparse_select(a, layer, first, q);
	else if (a->how.kind == ATTEND_SPARSE && a->how.piece)
		return attend_pieces(a, layer, &seq, (first + n - 1) / a->store->geom[0].block_tokens + 1);
	else if (a->how.kind == ATTEND_SPARSE && layer == 0)
		r = select_range(a, 0, (first + n - 1) / a->store->geom[0].block_tokens + 1);
	seq.table = a->table;
	if (r == 0)
		r = attend_one(a, layer, &seq);
	if (r < 0 || !observed)
		return r;
	/* once more for the last rows alone: the same bits, and their attention mass */
	seq.n_q = n < ATTEND_OBSERVED ? n : ATTEND_OBSERVED;
	seq.q = q + (n - seq.n_q) * stride;
	seq.out = out + (n - seq.n_q) * stride;
	return observe(a, layer, &seq);
}
