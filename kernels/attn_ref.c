/*
 * attn_ref.c - attention in plain C: the truth the other instruction sets are held to, and what runs where there are
 * none
 *
 * Works one split off tile by tile: the keys of a tile of 64 positions are widened to f32, then every row of the group
 * takes them in.  Nothing here depends on the machine.
 */
#include <math.h>
#include <string.h>

#include "attn.h"
#include "geom.h"
#include "half.h"

/* A dot product runs in this many sums side by side, else each addition would wait for the one before. */
#define LANES 8u

struct ref_tile {
	uint64_t present; /* a bit for each position that has a key */
	int64_t pos; /* of bit 0 */
	uint64_t key[ATTN_TILE]; /* their indices in the table, by position */
	float *k; /* [ATTN_TILE][dim_k], by position */
	float *v; /* [ATTN_TILE][dim_v] */
};

static void ref_store(uint32_t type, void *to, const float *from, size_t n)
{
	uint16_t *half = to;

	if (type == KVATTN_F32)
		memcpy(to, from, n * sizeof(float));
	else if (type == KVATTN_F16)
		for (size_t i = 0; i < n; i++)
			half[i] = half_f16_from(from[i]);
	else if (type == KVATTN_FP8_E4M3)
		for (size_t i = 0; i < n; i++)
			((uint8_t *)to)[i] = half_e4m3_from(from[i]);
	else
		for (size_t i = 0; i < n; i++)
			half[i] = half_bf16_from(from[i]);
}

static void ref_load(uint32_t type, float *to, const void *from, size_t n)
{
	const uint16_t *half = from;

	if (type == KVATTN_F32)
		memcpy(to, from, n * sizeof(float));
	else if (type == KVATTN_F16)
		for (size_t i = 0; i < n; i++)
			to[i] = half_f16_to(half[i]);
	else if (type == KVATTN_FP8_E4M3)
		for (size_t i = 0; i < n; i++)
			to[i] = half_e4m3_to(((const uint8_t *)from)[i]);
	else
		for (size_t i = 0; i < n; i++)
			to[i] = half_bf16_to(half[i]);
}

static size_t ref_scratch_bytes(const struct attn_call *call, uint32_t rows, uint32_t rows_per_head)
{
	(void)rows;
	(void)rows_per_head;
	return (size_t)ATTN_TILE * (call->geom.dim_k + call->geom.dim_v) * sizeof(float);
}

/* The keys of one KV head at positions tile->pos and on. */
static void tile_load(const struct attn_part *part, uint32_t head, struct ref_tile *tile)
{
	const struct geom_tensor k = geom_tensor_k(&part->call->geom), v = geom_tensor_v(&part->call->geom);

	tile->present = 0;
	for (uint32_t i = 0; i < part->n_runs; i++) {
		const struct attn_run *run = &part->runs[i];
		const int64_t from = run->pos > tile->pos ? run->pos : tile->pos;
		const int64_t run_end = run->pos + run->n, tile_end = tile->pos + ATTN_TILE;
		const int64_t to = run_end < tile_end ? run_end : tile_end;

		for (int64_t pos = from; pos < to; pos++) {
			const uint64_t token = run->token + (uint64_t)(pos - run->pos);
			const size_t slot = (size_t)(pos - tile->pos);

			geom_row_load(&attn_isa_scalar, &k, run->block, token, head, tile->k + slot * k.dim);
			geom_row_load(&attn_isa_scalar, &v, run->block, token, head, tile->v + slot * v.dim);
			tile->present |= 1ull << slot;
			tile->key[slot] = run->key + (uint64_t)(pos - run->pos);
		}
	}
}

static float dot(const float *a, const float *b, uint32_t n)
{
	float sum[LANES] = {0};
	uint32_t i = 0;

	for (; i + LANES <= n; i += LANES)
		for (uint32_t lane = 0; lane < LANES; lane++)
			sum[lane] += a[i + lane] * b[i + lane];
	for (; i < n; i++)
		sum[i % LANES] += a[i] * b[i];
	return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

/* Scale, soft cap, bias: everything before the mask. */
static float score(const struct attn_part *part, uint32_t q_head, const float *q, const float *k, int64_t distance)
{
	const struct attn_call *call = part->call;
	float z = part->seq->scale * dot(q, k, call->geom.dim_k);

	if (call->opts.softcap > 0)
		z = call->opts.softcap * tanhf(z / call->opts.softcap);
	if (call->opts.alibi_slopes)
		z -= call->opts.alibi_slopes[q_head] * (float)distance;
	return z;
}

/* Adds the weighted values of a tile.  A sum of their own first: a long sum that takes in values one by one would round
 * each to its own coarse grid. */
static void row_add(
	const struct ref_tile *tile, uint64_t seen, const float *z, float top, uint32_t dim_v, float *acc, float *l)
{
	float sum[KVATTN_DIM_MAX] = {0}, weights = 0;

	for (; seen; seen &= seen - 1) {
		const uint32_t i = (uint32_t)__builtin_ctzll(seen);
		const float weight = expf(z[i] - top), *v = tile->v + (size_t)i * dim_v;

		weights += weight;
		for (uint32_t d = 0; d < dim_v; d++)
			sum[d] += weight * v[d];
	}
	for (uint32_t d = 0; d < dim_v; d++)
		acc[d] += sum[d];
	*l += weights;
}

/* What the keys in @seen weigh. */
static void row_mass(const struct attn_part *part, const struct ref_tile *tile, uint64_t seen, const float *z,
	uint32_t q_head, float lse)
{
	float *mass = part->seq->s->mass + q_head / part->call->group * part->seq->mass_stride;

	for (; seen; seen &= seen - 1) {
		const uint32_t i = (uint32_t)__builtin_ctzll(seen);

		mass[tile->key[i]] += expf(z[i] - lse);
	}
}

/* One row takes in one tile: scores of what it sees, new maximum, then the weighted sum. */
static void row_take(const struct attn_part *part, const struct ref_tile *tile, uint32_t row, uint32_t q_head,
	const float *q, int64_t p)
{
	const struct attn_call *call = part->call;
	const uint32_t dim_v = call->geom.dim_v;
	uint64_t seen = tile->present & attn_seen(call, part->seq, p, tile->pos);
	float *acc = part->state.acc + (size_t)row * call->acc_floats;
	float z[ATTN_TILE], top = part->state.m[row];

	for (uint64_t left = seen; left; left &= left - 1) {
		const uint32_t i = (uint32_t)__builtin_ctzll(left);

		z[i] = score(part, q_head, q, tile->k + (size_t)i * call->geom.dim_k, p - tile->pos - i);
		if (z[i] == -INFINITY)
			seen &= ~(1ull << i);
		else if (!(z[i] <= top)) /* NaN too: it must reach the result */
			top = z[i];
	}
	if (!seen)
		return;
	if (part->weighs) {
		row_mass(part, tile, seen, z, q_head, attn_row_lse(part, row / call->group % part->rows.n_q, q_head));
		return;
	}
	if (part->state.m[row] != top && part->state.m[row] != -INFINITY) {
		const float shrink = expf(part->state.m[row] - top);

		part->state.l[row] *= shrink;
		for (uint32_t d = 0; d < dim_v; d++)
			acc[d] *= shrink;
	}
	part->state.m[row] = top;
	row_add(tile, seen, z, top, dim_v, acc, &part->state.l[row]);
}

static void head_take(const struct attn_part *part, const struct ref_tile *tile, uint32_t h)
{
	const struct attn_call *call = part->call;
	const struct attn_rows *rows = &part->rows;

	for (uint32_t q = 0; q < rows->n_q; q++) {
		const uint64_t row_q = rows->q0 + q;

		for (uint32_t g = 0; g < call->group; g++) {
			const uint32_t q_head = (rows->head0 + h) * call->group + g;

			row_take(part, tile, (h * rows->n_q + q) * call->group + g, q_head,
				part->seq->s->q + row_q * part->seq->q_stride + (size_t)q_head * call->geom.dim_k,
				part->seq->pos0 + (int64_t)row_q);
		}
	}
}

static void ref_part(const struct attn_part *part)
{
	const struct attn_call *call = part->call;
	const uint32_t n_rows = attn_row_count(call, &part->rows);
	struct ref_tile tile = {.k = part->scratch};

	tile.v = tile.k + (size_t)ATTN_TILE * call->geom.dim_k;
	memset(part->state.acc, 0, (size_t)n_rows * call->acc_floats * sizeof(float));
	for (uint32_t r = 0; r < n_rows; r++) {
		part->state.m[r] = -INFINITY;
		part->state.l[r] = 0;
	}
	for (uint32_t t = 0; t < ATTN_SPLIT; t += ATTN_TILE) {
		tile.pos = part->split.pos + t;
		for (uint32_t h = 0; h < part->rows.n_heads; h++) {
			tile_load(part, part->rows.head0 + h, &tile);
			if (tile.present)
				head_take(part, &tile, h);
		}
	}
}

const struct attn_isa attn_isa_scalar = {
	.name = "scalar",
	.scratch_bytes = ref_scratch_bytes,
	.part = ref_part,
	.store = ref_store,
	.load = ref_load,
};
