/* attn_ref.c - the truth in plain C: one row, one key after the other, online softmax (Milakov and Gimelshein 2018) */
#include <math.h>

#include "kernel.h"

static float load(const char *at, uint32_t type, uint32_t i)
{
	switch (type) {
	case KVATTN_F32:
		return ((const float *)(const void *)at)[i];
	case KVATTN_F16:
		return half_to_float(((const uint16_t *)(const void *)at)[i]);
	default:
		return bf16_to_float(((const uint16_t *)(const void *)at)[i]);
	}
}

static bool visible(const struct kvattn_opts *opts, int64_t p, int64_t pos)
{
	if (!opts->not_causal && pos > p)
		return false;
	return !opts->window || (uint64_t)pos < opts->sink_tokens || p - pos < (int64_t)opts->window;
}

static void attend_key(const struct kernel_task *task, const struct kernel_row *row, uint32_t h, const char *k,
	const char *v, int64_t pos)
{
	const struct kvattn_geom *g = task->geom;
	const float *q = row->q + (uint64_t)h * g->dim_k;
	float *acc = row->acc + (uint64_t)h * g->dim_v;
	float z = 0, weight, shrink;

	for (uint32_t i = 0; i < g->dim_k; i++)
		z += q[i] * load(k, g->type_k, i);
	z *= task->scale;
	if (task->opts->softcap > 0)
		z = task->opts->softcap * tanhf(z / task->opts->softcap);
	if (task->opts->alibi)
		z -= task->opts->alibi[task->first_head + h] * (float)(row->pos - pos);
	if (z == -INFINITY)
		return;
	if (z > row->max[h]) {
		shrink = expf(row->max[h] - z);
		row->max[h] = z;
		row->sum[h] *= shrink;
		for (uint32_t i = 0; i < g->dim_v; i++)
			acc[i] *= shrink;
	}
	weight = expf(z - row->max[h]);
	row->sum[h] += weight;
	for (uint32_t i = 0; i < g->dim_v; i++)
		acc[i] += weight * load(v, g->type_v, i);
}

static void attend(const struct kernel_task *task, const struct kernel_row *row)
{
	const struct kvattn_geom *g = task->geom;

	for (uint64_t j = task->begin; j < task->end; j++) {
		uint64_t block = j / g->block_tokens, token = j % g->block_tokens;
		int64_t pos = (int64_t)(table_pos(task->table, g->block_tokens, block) + token);
		const char *base = task->table->blocks[block];

		if (!visible(task->opts, row->pos, pos))
			continue;
		for (uint32_t h = 0; h < task->n_heads; h++)
			attend_key(task, row, h,
				base + g->k_off + task->kv_head * g->k_head_stride + token * g->k_token_stride,
				base + g->v_off + task->kv_head * g->v_head_stride + token * g->v_token_stride, pos);
	}
}

const struct kernel kernel_scalar = {"scalar", attend};
