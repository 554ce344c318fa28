/*
 * geom.c - where K and V lie in a block, and rows going in and out of one
 *
 * Arithmetic only; any thread.
 */
#include "geom.h"

#include <errno.h>

#include "attn.h"
#include "dispatch.h"

uint32_t kvattn_type_bytes(uint32_t type)
{
	switch (type) {
	case KVATTN_F32:
		return 4;
	case KVATTN_F16:
	case KVATTN_BF16:
		return 2;
	default:
		return 0;
	}
}

static int shape_check(
	uint32_t n_kv_heads, uint32_t dim_k, uint32_t dim_v, uint32_t block_tokens, uint32_t type_k, uint32_t type_v)
{
	if (!n_kv_heads || n_kv_heads > KVATTN_HEADS_MAX || !dim_k || dim_k > KVATTN_DIM_MAX || !dim_v ||
		dim_v > KVATTN_DIM_MAX || !block_tokens || block_tokens > KVATTN_BLOCK_TOKENS_MAX)
		return -EINVAL;
	if (!kvattn_type_bytes(type_k) || !kvattn_type_bytes(type_v))
		return -ENOTSUP;
	return 0;
}

/* The last byte's offset must not wrap: each product below is at most half of what 64 bits hold. */
static int tensor_check(
	const struct kvattn_geom *geom, uint64_t off, uint64_t token_stride, uint64_t head_stride, uint32_t elem)
{
	const uint64_t limit = UINT64_MAX / 8;

	if (off % elem || token_stride % elem || head_stride % elem)
		return -EINVAL;
	if (off > limit || token_stride > limit / geom->block_tokens || head_stride > limit / geom->n_kv_heads)
		return -EINVAL;
	return 0;
}

int geom_check(const struct kvattn_geom *geom)
{
	int r;

	if (!geom || geom->size != sizeof(*geom))
		return -EINVAL;
	if (geom->layout != KVATTN_ROWS)
		return geom->layout == KVATTN_TILED ? -ENOTSUP : -EINVAL;
	r = shape_check(geom->n_kv_heads, geom->dim_k, geom->dim_v, geom->block_tokens, geom->type_k, geom->type_v);
	if (r < 0)
		return r;
	r = tensor_check(geom, geom->k_off, geom->k_token_stride, geom->k_head_stride, kvattn_type_bytes(geom->type_k));
	if (r < 0)
		return r;
	return tensor_check(
		geom, geom->v_off, geom->v_token_stride, geom->v_head_stride, kvattn_type_bytes(geom->type_v));
}

static int layers_check(const struct kvattn_shape *shape)
{
	if (!shape || !shape->n_layers || shape->n_layers > 1u << 16)
		return -EINVAL;
	return shape_check(
		shape->n_kv_heads, shape->dim_k, shape->dim_v, shape->block_tokens, shape->type_k, shape->type_v);
}

/* At most 2^12 heads * 2^31 tokens * 576 * 4 bytes: below 2^55, and 2^16 layers of K and V of that would wrap. */
static uint64_t tensor_bytes(const struct kvattn_shape *shape, uint32_t dim, uint32_t type)
{
	const uint64_t bytes = (uint64_t)shape->n_kv_heads * shape->block_tokens * dim * kvattn_type_bytes(type);

	return attn_round_up(bytes, 64);
}

uint64_t kvattn_block_bytes(const struct kvattn_shape *shape)
{
	uint64_t layer, block;

	if (layers_check(shape) < 0)
		return 0;
	layer = tensor_bytes(shape, shape->dim_k, shape->type_k) + tensor_bytes(shape, shape->dim_v, shape->type_v);
	if (__builtin_mul_overflow(layer, (uint64_t)shape->n_layers, &block) || block > UINT64_MAX / 8)
		return 0;
	return block;
}

static int geom_init(struct kvattn_geom *geom, const struct kvattn_shape *shape, uint32_t layer, bool token_outer)
{
	uint64_t k_row, v_row, k_bytes;
	int r = layers_check(shape);

	if (r < 0)
		return r;
	if (!geom || layer >= shape->n_layers || !kvattn_block_bytes(shape))
		return -EINVAL;
	k_row = (uint64_t)shape->dim_k * kvattn_type_bytes(shape->type_k);
	v_row = (uint64_t)shape->dim_v * kvattn_type_bytes(shape->type_v);
	k_bytes = tensor_bytes(shape, shape->dim_k, shape->type_k);
	*geom = (struct kvattn_geom){
		.size = sizeof(*geom),
		.layout = KVATTN_ROWS,
		.type_k = shape->type_k,
		.type_v = shape->type_v,
		.n_kv_heads = shape->n_kv_heads,
		.dim_k = shape->dim_k,
		.dim_v = shape->dim_v,
		.block_tokens = shape->block_tokens,
		.k_off = layer * (k_bytes + tensor_bytes(shape, shape->dim_v, shape->type_v)),
		.k_token_stride = token_outer ? k_row * shape->n_kv_heads : k_row,
		.k_head_stride = token_outer ? k_row : k_row * shape->block_tokens,
		.v_token_stride = token_outer ? v_row * shape->n_kv_heads : v_row,
		.v_head_stride = token_outer ? v_row : v_row * shape->block_tokens,
	};
	geom->v_off = geom->k_off + k_bytes;
	return 0;
}

int kvattn_geom_init_hnd(struct kvattn_geom *geom, const struct kvattn_shape *shape, uint32_t layer)
{
	return geom_init(geom, shape, layer, false);
}

int kvattn_geom_init_nhd(struct kvattn_geom *geom, const struct kvattn_shape *shape, uint32_t layer)
{
	return geom_init(geom, shape, layer, true);
}

/* Of K or of V: what put and get need. */
struct tensor {
	uint64_t off, token_stride, head_stride;
	uint32_t dim, type;
};

static struct tensor tensor_k(const struct kvattn_geom *geom)
{
	return (struct tensor){geom->k_off, geom->k_token_stride, geom->k_head_stride, geom->dim_k, geom->type_k};
}

static struct tensor tensor_v(const struct kvattn_geom *geom)
{
	return (struct tensor){geom->v_off, geom->v_token_stride, geom->v_head_stride, geom->dim_v, geom->type_v};
}

static int range_check(const struct kvattn_geom *geom, const void *block, uint32_t first, uint32_t n)
{
	const int r = geom_check(geom);

	if (r < 0)
		return r;
	if (first > geom->block_tokens || n > geom->block_tokens - first || (n && !block))
		return -EINVAL;
	return 0;
}

static int stride_check(const struct kvattn_geom *geom, uint32_t dim, size_t *stride)
{
	const size_t dense = (size_t)geom->n_kv_heads * dim;

	if (*stride == 0)
		*stride = dense;
	return *stride < dense ? -EINVAL : 0;
}

static void tensor_put(const struct kvattn_geom *geom, const struct tensor *t, char *block, uint32_t first, uint32_t n,
	const float *rows, size_t stride)
{
	const struct attn_isa *isa = dispatch_isa();

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t h = 0; h < geom->n_kv_heads; h++)
			isa->store(t->type,
				block + t->off + (first + (uint64_t)i) * t->token_stride + h * t->head_stride,
				rows + i * stride + (size_t)h * t->dim, t->dim);
}

static void tensor_get(const struct kvattn_geom *geom, const struct tensor *t, const char *block, uint32_t first,
	uint32_t n, float *rows, size_t stride)
{
	const struct attn_isa *isa = dispatch_isa();

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t h = 0; h < geom->n_kv_heads; h++)
			isa->load(t->type, rows + i * stride + (size_t)h * t->dim,
				block + t->off + (first + (uint64_t)i) * t->token_stride + h * t->head_stride, t->dim);
}

int kvattn_put(const struct kvattn_geom *geom, void *block, uint32_t first_token, uint32_t n_tokens, const float *k,
	size_t k_stride, const float *v, size_t v_stride)
{
	const int r = range_check(geom, block, first_token, n_tokens);
	struct tensor t;

	if (r < 0)
		return r;
	if (stride_check(geom, geom->dim_k, &k_stride) < 0 || stride_check(geom, geom->dim_v, &v_stride) < 0)
		return -EINVAL;
	t = tensor_k(geom);
	if (k)
		tensor_put(geom, &t, block, first_token, n_tokens, k, k_stride);
	t = tensor_v(geom);
	if (v)
		tensor_put(geom, &t, block, first_token, n_tokens, v, v_stride);
	return 0;
}

int kvattn_get(const struct kvattn_geom *geom, const void *block, uint32_t first_token, uint32_t n_tokens, float *k,
	size_t k_stride, float *v, size_t v_stride)
{
	const int r = range_check(geom, block, first_token, n_tokens);
	struct tensor t;

	if (r < 0)
		return r;
	if (stride_check(geom, geom->dim_k, &k_stride) < 0 || stride_check(geom, geom->dim_v, &v_stride) < 0)
		return -EINVAL;
	t = tensor_k(geom);
	if (k)
		tensor_get(geom, &t, block, first_token, n_tokens, k, k_stride);
	t = tensor_v(geom);
	if (v)
		tensor_get(geom, &t, block, first_token, n_tokens, v, v_stride);
	return 0;
}
