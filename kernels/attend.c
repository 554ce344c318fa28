/*
 * attend.c - the public call: checks, cuts into tasks, spans merged in fixed order
 *
 * A row's keys are cut at fixed borders (every SPAN keys of the table) whatever the call looks like, each span is done by
 * the kernel from an empty state, and spans are merged first to last: that is the promise of kvattn.h.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

#define SPAN 1024

const char *kvattn_isa(void)
{
	return kernel_scalar.name;
}

void kvattn_alibi_slopes(uint32_t n, float *slopes)
{
	uint32_t whole = 1;

	while (whole * 2 <= n)
		whole *= 2;
	for (uint32_t h = 0; h < n; h++)
		slopes[h] = h < whole ? exp2f(-8.0f * (float)(h + 1) / (float)whole)
				      : exp2f(-4.0f * (float)(2 * (h - whole) + 1) / (float)whole);
}

void kvattn_merge(uint32_t n_parts, const float *const *outs, const float *const *lses, uint64_t n_rows, uint32_t dim,
	float *out, float *lse)
{
	for (uint64_t row = 0; row < n_rows; row++) {
		float max = -INFINITY, sum = 0;

		for (uint32_t i = 0; i < n_parts; i++)
			max = fmaxf(max, lses[i][row]);
		for (uint32_t i = 0; i < n_parts && max > -INFINITY; i++)
			sum += expf(lses[i][row] - max);
		for (uint32_t d = 0; d < dim; d++) {
			float x = 0;

			for (uint32_t i = 0; i < n_parts && max > -INFINITY; i++)
				if (lses[i][row] > -INFINITY)
					x += expf(lses[i][row] - max) / sum * outs[i][row * dim + d];
			out[row * dim + d] = x;
		}
		if (lse)
			lse[row] = max > -INFINITY ? max + logf(sum) : -INFINITY;
	}
}

static int check(
	const struct kvattn_geom *g, const struct kvattn_seq *seqs, uint32_t n_seqs, const struct kvattn_opts *opts)
{
	if (!g || !opts || (!seqs && n_seqs) || g->size != sizeof(*g) || opts->size != sizeof(*opts))
		return -EINVAL;
	if (!g->n_kv_heads || !opts->n_q_heads || opts->n_q_heads % g->n_kv_heads || !g->dim_k || !g->dim_v ||
		g->dim_k > KVATTN_DIM_MAX || g->dim_v > KVATTN_DIM_MAX || !g->block_tokens)
		return -EINVAL;
	if (!(opts->softcap >= 0) || isinf(opts->softcap))
		return -EINVAL;
	if (g->layout != KVATTN_ROWS || !type_bytes(g->type_k) || !type_bytes(g->type_v))
		return -ENOTSUP;
	for (uint32_t i = 0; i < n_seqs; i++) {
		const struct kvattn_seq *s = &seqs[i];

		if (s->size != sizeof(*s) || (s->n_q && (!s->q || !s->out)) ||
			(s->table.n_blocks && !s->table.blocks) ||
			s->table.n_tokens > s->table.n_blocks * g->block_tokens)
			return -EINVAL;
		for (uint64_t b = 0; b < s->table.n_blocks; b++)
			if (!s->table.blocks[b] && b * g->block_tokens < s->table.n_tokens)
				return -EINVAL;
	}
	return 0;
}

/* State of one row's heads: acc, max, sum; one for the row, one for the span being done. */
struct state {
	float *acc, *max, *sum;
};

static void state_clear(const struct state *s, uint32_t heads, uint32_t dim)
{
	memset(s->acc, 0, sizeof(float) * heads * dim);
	for (uint32_t h = 0; h < heads; h++) {
		s->max[h] = -INFINITY;
		s->sum[h] = 0;
	}
}

static void state_add(const struct state *to, const struct state *from, uint32_t heads, uint32_t dim)
{
	for (uint32_t h = 0; h < heads; h++) {
		float max = fmaxf(to->max[h], from->max[h]), a, b;

		if (from->max[h] == -INFINITY)
			continue;
		a = expf(to->max[h] - max);
		b = expf(from->max[h] - max);
		to->max[h] = max;
		to->sum[h] = to->sum[h] * a + from->sum[h] * b;
		for (uint32_t d = 0; d < dim; d++)
			to->acc[h * dim + d] = to->acc[h * dim + d] * a + from->acc[h * dim + d] * b;
	}
}

static void row_finish(const struct kvattn_seq *s, const struct kvattn_opts *opts, const struct state *st, uint32_t row,
	uint32_t first_head, uint32_t heads, uint32_t dim, uint64_t out_stride)
{
	for (uint32_t h = 0; h < heads; h++) {
		uint32_t head = first_head + h;
		float *out = s->out + row * out_stride + (uint64_t)head * dim;
		float max = st->max[h], sum = st->sum[h];

		if (opts->sink_logits) {
			float sink = opts->sink_logits[head], m = fmaxf(max, sink);

			sum = (max > -INFINITY ? sum * expf(max - m) : 0) + (m > -INFINITY ? expf(sink - m) : 0);
			for (uint32_t d = 0; d < dim; d++)
				out[d] = max > -INFINITY ? st->acc[h * dim + d] * expf(max - m) / sum : 0;
			max = m;
		} else {
			for (uint32_t d = 0; d < dim; d++)
				out[d] = max > -INFINITY ? st->acc[h * dim + d] / sum : 0;
		}
		if (s->lse)
			s->lse[(uint64_t)row * opts->n_q_heads + head] = max > -INFINITY ? max + logf(sum) : -INFINITY;
	}
}

static void attend_seq(
	const struct kvattn_geom *g, const struct kvattn_seq *s, const struct kvattn_opts *opts, float *scratch)
{
	uint32_t heads = opts->n_q_heads / g->n_kv_heads;
	uint64_t q_stride = s->q_stride ? s->q_stride : (uint64_t)opts->n_q_heads * g->dim_k;
	uint64_t out_stride = s->out_stride ? s->out_stride : (uint64_t)opts->n_q_heads * g->dim_v;
	uint64_t n = s->table.n_tokens, last_pos = 0;
	struct state whole = {scratch, scratch + heads * g->dim_v, scratch + heads * (g->dim_v + 1)};
	struct state part = {scratch + heads * (g->dim_v + 2), scratch + heads * (2 * g->dim_v + 2),
		scratch + heads * (2 * g->dim_v + 3)};
	struct kernel_task task = {.geom = g, .table = &s->table, .opts = opts, .n_heads = heads};

	task.scale = s->scale != 0 ? s->scale : isnan(opts->scale) ? 1 / sqrtf((float)g->dim_k) : opts->scale;
	if (n)
		last_pos = table_pos(&s->table, g->block_tokens, (n - 1) / g->block_tokens) + (n - 1) % g->block_tokens;
	for (uint32_t row = 0; row < s->n_q; row++) {
		int64_t pos =
			s->q_pos == KVATTN_POS_LAST ? (int64_t)last_pos - (int64_t)s->n_q + 1 + row : s->q_pos + row;

		for (uint32_t g_head = 0; g_head < g->n_kv_heads; g_head++) {
			struct kernel_row r = {.pos = pos, .acc = part.acc, .max = part.max, .sum = part.sum};

			task.kv_head = g_head;
			task.first_head = g_head * heads;
			r.q = s->q + row * q_stride + (uint64_t)task.first_head * g->dim_k;
			state_clear(&whole, heads, g->dim_v);
			for (task.begin = 0; task.begin < n; task.begin = task.end) {
				task.end = n - task.begin > SPAN ? task.begin + SPAN : n;
				state_clear(&part, heads, g->dim_v);
				kernel_scalar.attend(&task, &r);
				state_add(&whole, &part, heads, g->dim_v);
			}
			row_finish(s, opts, &whole, row, task.first_head, heads, g->dim_v, out_stride);
		}
	}
}

int kvattn_attend(
	const struct kvattn_geom *g, const struct kvattn_seq *seqs, uint32_t n_seqs, const struct kvattn_opts *opts)
{
	int r = check(g, seqs, n_seqs, opts);
	float *scratch;

	if (r < 0)
		return r;
	scratch = malloc(sizeof(float) * 2 * (opts->n_q_heads / g->n_kv_heads) * (g->dim_v + 2));
	if (!scratch)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_seqs; i++)
		attend_seq(g, &seqs[i], opts, scratch);
	free(scratch);
	return 0;
}
