/* store.c - geometry, and K and V rows in and out of blocks */
#include <errno.h>
#include <string.h>

#include "kernel.h"

static uint64_t tensor_bytes(uint32_t heads, uint32_t dim, uint32_t type, uint32_t tokens)
{
	return ((uint64_t)heads * dim * type_bytes(type) * tokens + 63) & ~63ull;
}

uint64_t kvattn_geom_init(struct kvattn_geom *geom, bool nhd, uint32_t n_layers, uint32_t layer, uint32_t n_kv_heads,
	uint32_t dim_k, uint32_t dim_v, uint32_t type_k, uint32_t type_v, uint32_t block_tokens)
{
	uint64_t k_bytes = tensor_bytes(n_kv_heads, dim_k, type_k, block_tokens);
	uint64_t v_bytes = tensor_bytes(n_kv_heads, dim_v, type_v, block_tokens);
	uint64_t k_row = (uint64_t)dim_k * type_bytes(type_k), v_row = (uint64_t)dim_v * type_bytes(type_v);

	if (!geom || layer >= n_layers || !k_bytes || !v_bytes || dim_k > KVATTN_DIM_MAX || dim_v > KVATTN_DIM_MAX)
		return 0;
	*geom = (struct kvattn_geom){
		.size = sizeof(*geom),
		.type_k = type_k,
		.type_v = type_v,
		.layout = KVATTN_ROWS,
		.n_kv_heads = n_kv_heads,
		.dim_k = dim_k,
		.dim_v = dim_v,
		.block_tokens = block_tokens,
		.k_off = layer * (k_bytes + v_bytes),
		.v_off = layer * (k_bytes + v_bytes) + k_bytes,
		.k_token_stride = nhd ? n_kv_heads * k_row : k_row,
		.k_head_stride = nhd ? k_row : block_tokens * k_row,
		.v_token_stride = nhd ? n_kv_heads * v_row : v_row,
		.v_head_stride = nhd ? v_row : block_tokens * v_row,
	};
	return n_layers * (k_bytes + v_bytes);
}

static int geom_check(const struct kvattn_geom *g, const void *block, uint32_t first, uint32_t n)
{
	if (!g || g->size != sizeof(*g) || !block || n > g->block_tokens || first > g->block_tokens - n)
		return -EINVAL;
	if (g->layout != KVATTN_ROWS || !type_bytes(g->type_k) || !type_bytes(g->type_v))
		return -ENOTSUP;
	return 0;
}

static void row_put(char *at, uint32_t type, const float *from, uint32_t n)
{
	uint16_t *half = (uint16_t *)(void *)at;

	if (type == KVATTN_F32) {
		memcpy(at, from, n * sizeof(*from));
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		half[i] = type == KVATTN_F16 ? half_from_float(from[i]) : bf16_from_float(from[i]);
}

static void row_get(const char *at, uint32_t type, float *to, uint32_t n)
{
	const uint16_t *half = (const uint16_t *)(const void *)at;

	if (type == KVATTN_F32) {
		memcpy(to, at, n * sizeof(*to));
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		to[i] = type == KVATTN_F16 ? half_to_float(half[i]) : bf16_to_float(half[i]);
}

int kvattn_put(const struct kvattn_geom *g, void *block, uint32_t first, uint32_t n, const float *k, const float *v)
{
	int r = geom_check(g, block, first, n);

	for (uint32_t t = 0; r == 0 && t < n; t++)
		for (uint32_t h = 0; h < g->n_kv_heads; h++) {
			uint64_t row = (uint64_t)t * g->n_kv_heads + h;

			if (k)
				row_put((char *)block + g->k_off + (first + t) * g->k_token_stride +
						h * g->k_head_stride,
					g->type_k, k + row * g->dim_k, g->dim_k);
			if (v)
				row_put((char *)block + g->v_off + (first + t) * g->v_token_stride +
						h * g->v_head_stride,
					g->type_v, v + row * g->dim_v, g->dim_v);
		}
	return r;
}

int kvattn_get(const struct kvattn_geom *g, const void *block, uint32_t first, uint32_t n, float *k, float *v)
{
	int r = geom_check(g, block, first, n);

	for (uint32_t t = 0; r == 0 && t < n; t++)
		for (uint32_t h = 0; h < g->n_kv_heads; h++) {
			uint64_t row = (uint64_t)t * g->n_kv_heads + h;

			if (k)
				row_get((const char *)block + g->k_off + (first + t) * g->k_token_stride +
						h * g->k_head_stride,
					g->type_k, k + row * g->dim_k, g->dim_k);
			if (v)
				row_get((const char *)block + g->v_off + (first + t) * g->v_token_stride +
						h * g->v_head_stride,
					g->type_v, v + row * g->dim_v, g->dim_v);
		}
	return r;
}
