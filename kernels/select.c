/*
 * select.c - which blocks a query needs: summaries of keys, scores from them, the best of each KV head; and blocks in
 * another type
 *
 * A summary holds the least and the largest value of each channel of K over a block's tokens.  No key of the block
 * scores more against q than sum_d max(q_d * least_d, q_d * largest_d) (Quest: Tang et al. 2024).  Plain arithmetic; any
 * thread.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "dispatch.h"
#include "geom.h"

#define LANES 16u /* sums side by side */

uint64_t kvattn_summary_bytes(const struct kvattn_geom *geom)
{
	return geom_check(geom) < 0 ? 0 : 2 * sizeof(float) * (uint64_t)geom->n_kv_heads * geom->dim_k;
}

int kvattn_summarise(const struct kvattn_geom *geom, const void *block, uint32_t n_tokens, float *summary)
{
	const int r = geom_check(geom);
	const struct attn_isa *isa = dispatch_isa(false);
	struct geom_tensor k;

	if (r < 0)
		return r;
	if (!block || !summary || !n_tokens || n_tokens > geom->block_tokens)
		return -EINVAL;
	k = geom_tensor_k(geom);
	for (uint32_t h = 0; h < geom->n_kv_heads; h++) {
		float *least = summary + (size_t)h * 2 * k.dim, *most = least + k.dim, row[KVATTN_DIM_MAX];

		geom_row_load(isa, &k, block, 0, h, least);
		memcpy(most, least, k.dim * sizeof(float));
		for (uint32_t t = 1; t < n_tokens; t++) {
			geom_row_load(isa, &k, block, t, h, row);
			for (uint32_t d = 0; d < k.dim; d++) {
				least[d] = row[d] < least[d] ? row[d] : least[d];
				most[d] = row[d] > most[d] ? row[d] : most[d];
			}
		}
	}
	return 0;
}

/* The most a key of the block can score against @q; NaN counts as the most there is, so that nothing is lost by it.
 * Vectors of four that every processor has. */
static float bound(const float *q, const float *least, const float *most, uint32_t dim)
{
	typedef float four __attribute__((vector_size(16), may_alias, aligned(4)));
	typedef int32_t mask __attribute__((vector_size(16)));
	four sum[LANES / 4] = {{0}};
	float total = 0;
	uint32_t d = 0;

	for (; d + LANES <= dim; d += LANES)
		for (uint32_t i = 0; i < LANES / 4; i++) {
			const uint32_t at = d + 4 * i;
			const four by = *(const four *)(const void *)(q + at);
			const four a = by * *(const four *)(const void *)(least + at);
			const four b = by * *(const four *)(const void *)(most + at);
			const mask more = a > b;

			sum[i] += (four)(((mask)a & more) | ((mask)b & ~more));
		}
	for (; d < dim; d++) {
		const float a = q[d] * least[d], b = q[d] * most[d];

		sum[d % LANES / 4][d % 4] += a > b ? a : b;
	}
	for (uint32_t i = 0; i < LANES; i++)
		total += sum[i / 4][i % 4];
	return isnan(total) ? INFINITY : total;
}

struct candidate {
	float score;
	uint64_t block;
};

/* Best first; among equals the later block, which is nearer to the query. */
static int candidate_compare(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->score != y->score)
		return x->score < y->score ? 1 : -1;
	return x->block < y->block ? 1 : x->block > y->block ? -1 : 0;
}

static int index_compare(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* The blocks of one KV head, in order of position. */
static void head_select(const struct kvattn_select *ask, uint32_t dim, uint32_t group, uint32_t head, uint64_t n,
	struct candidate *all, uint64_t *blocks)
{
	for (uint64_t b = 0; b < ask->n_blocks; b++) {
		const float *least = ask->summaries[b] + (size_t)head * 2 * dim;

		all[b] = (struct candidate){-INFINITY, b};
		for (uint32_t g = 0; g < group; g++) {
			const float score = bound(ask->q + ((size_t)head * group + g) * dim, least, least + dim, dim);

			all[b].score = score > all[b].score ? score : all[b].score;
		}
		if (b < ask->keep_first || ask->n_blocks - b <= ask->keep_last)
			all[b].score = INFINITY;
	}
	qsort(all, ask->n_blocks, sizeof(*all), candidate_compare);
	for (uint64_t i = 0; i < n; i++)
		blocks[i] = all[i].block;
	qsort(blocks, n, sizeof(*blocks), index_compare);
}

int64_t kvattn_select(const struct kvattn_geom *geom, const struct kvattn_select *ask, uint64_t *blocks)
{
	const int r = geom_check(geom);
	struct candidate *all;
	uint64_t n;

	if (r < 0)
		return r;
	if (!ask || ask->size != sizeof(*ask) || !ask->n_q_heads || ask->n_q_heads > KVATTN_HEADS_MAX ||
		ask->n_q_heads % geom->n_kv_heads || ask->n_blocks > UINT32_MAX)
		return -EINVAL;
	n = ask->n_select < ask->n_blocks ? ask->n_select : ask->n_blocks;
	if (n == 0)
		return 0;
	if (!ask->summaries || !ask->q || !blocks || ask->keep_first > n || ask->keep_last > n - ask->keep_first)
		return -EINVAL;
	all = malloc(ask->n_blocks * sizeof(*all));
	if (!all)
		return -ENOMEM;
	for (uint32_t h = 0; h < geom->n_kv_heads; h++)
		head_select(ask, geom->dim_k, ask->n_q_heads / geom->n_kv_heads, h, n, all, blocks + h * n);
	free(all);
	return (int64_t)n;
}

int kvattn_geom_head(const struct kvattn_geom *geom, uint32_t head, struct kvattn_geom *one)
{
	const int r = geom_check(geom);

	if (r < 0)
		return r;
	if (!one || head >= geom->n_kv_heads)
		return -EINVAL;
	*one = *geom;
	one->n_kv_heads = 1;
	one->k_off += head * geom->k_head_stride;
	one->v_off += head * geom->v_head_stride;
	return 0;
}

/* ---- Another type or layout ---- */

static bool convertible(const struct kvattn_geom *from, const struct kvattn_geom *to)
{
	return from->n_kv_heads == to->n_kv_heads && from->dim_k == to->dim_k && from->dim_v == to->dim_v &&
	       from->block_tokens == to->block_tokens && (geom_latent(from) || !geom_latent(to));
}

int kvattn_convert(const struct kvattn_geom *from, const void *block, const struct kvattn_geom *to, void *to_block,
	uint32_t n_tokens)
{
	enum { STEP = 16 }; /* rows at a time: a tile */
	const int a = geom_check(from), b = geom_check(to);
	size_t k_row, v_row;
	float *rows, *v;
	int r = 0;

	if (a < 0 || b < 0)
		return a < 0 ? a : b;
	if (!convertible(from, to) || n_tokens > from->block_tokens || (n_tokens && (!block || !to_block)))
		return -EINVAL;
	k_row = (size_t)from->n_kv_heads * from->dim_k;
	v_row = (size_t)from->n_kv_heads * from->dim_v;
	rows = malloc(STEP * (k_row + v_row) * sizeof(float));
	if (!rows)
		return -ENOMEM;
	v = geom_latent(to) ? NULL : rows + STEP * k_row;
	for (uint32_t first = 0; first < n_tokens && r == 0; first += STEP) {
		const uint32_t n = n_tokens - first < STEP ? n_tokens - first : STEP;

		r = kvattn_get(from, block, first, n, rows, 0, v, 0);
		if (r == 0)
			r = kvattn_put(to, to_block, first, n, rows, 0, v, 0);
	}
	free(rows);
	return r;
}
