/*
 * geom.c - where K and V lie in a block, and rows going in and out of one
 *
 * Arithmetic only; any thread.
 */
#include "geom.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "attn.h"
#include "dispatch.h"
#include "half.h"
#include "tiled.h"

uint32_t kvattn_type_bytes(uint32_t type)
{
	return tiled_elem_bytes(type);
}

static bool type_served(uint32_t layout, uint32_t type)
{
	if (layout == KVATTN_TILED && type == KVATTN_I4)
		return true;
	return kvattn_type_bytes(type) && (layout == KVATTN_TILED || !tiled_only(type));
}

static int shape_check(uint32_t layout, uint32_t n_kv_heads, uint32_t dim_k, uint32_t dim_v, uint32_t block_tokens,
	uint32_t type_k, uint32_t type_v)
{
	if (!n_kv_heads || n_kv_heads > KVATTN_HEADS_MAX || !dim_k || dim_k > KVATTN_DIM_MAX || !dim_v ||
		dim_v > KVATTN_DIM_MAX || !block_tokens || block_tokens > KVATTN_BLOCK_TOKENS_MAX)
		return -EINVAL;
	if (!type_served(layout, type_k) || !type_served(layout, type_v))
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

static uint32_t align_of(const struct kvattn_geom *geom, uint32_t type)
{
	return geom->layout == KVATTN_TILED && tiled_only(type) ? sizeof(float) : kvattn_type_bytes(type);
}

/* V that lies in tiles of K has all that tells where from K. */
static bool latent_bad(const struct kvattn_geom *geom)
{
	return geom->layout == KVATTN_TILED && geom_latent(geom) &&
	       (geom->type_v != geom->type_k || geom->dim_v > geom->dim_k ||
		       geom->v_token_stride != geom->k_token_stride || geom->v_head_stride != geom->k_head_stride);
}

int geom_check(const struct kvattn_geom *geom)
{
	int r;

	if (!geom || geom->size != sizeof(*geom))
		return -EINVAL;
	if (geom->layout != KVATTN_ROWS && geom->layout != KVATTN_TILED)
		return -EINVAL;
	r = shape_check(geom->layout, geom->n_kv_heads, geom->dim_k, geom->dim_v, geom->block_tokens, geom->type_k,
		geom->type_v);
	if (r < 0)
		return r;
	r = tensor_check(geom, geom->k_off, geom->k_token_stride, geom->k_head_stride, align_of(geom, geom->type_k));
	if (r < 0)
		return r;
	if (latent_bad(geom))
		return -EINVAL;
	return tensor_check(geom, geom->v_off, geom->v_token_stride, geom->v_head_stride, align_of(geom, geom->type_v));
}

static int layers_check(const struct kvattn_shape *shape, uint32_t layout)
{
	if (!shape || !shape->n_layers || shape->n_layers > 1u << 16)
		return -EINVAL;
	return shape_check(layout, shape->n_kv_heads, shape->dim_k, shape->dim_v, shape->block_tokens, shape->type_k,
		shape->type_v);
}

/* At most 2^12 heads * 2^31 tokens * 576 * 4 bytes: below 2^55, and 2^16 layers of K and V of that would wrap. */
static uint64_t tensor_bytes(const struct kvattn_shape *shape, uint32_t dim, uint32_t type)
{
	const uint64_t bytes = (uint64_t)shape->n_kv_heads * shape->block_tokens * dim * kvattn_type_bytes(type);

	return attn_round_up(bytes, 64);
}

/* K of one head's tile, padded; V follows */
static uint64_t tile_k_bytes(const struct kvattn_shape *shape)
{
	return attn_round_up(
		tiled_bytes(shape->type_k, shape->dim_k, tiled_tokens(shape->block_tokens), false), TILED_ALIGN);
}

static uint64_t tile_all_bytes(const struct kvattn_shape *shape)
{
	return tile_k_bytes(shape) +
	       attn_round_up(
		       tiled_bytes(shape->type_v, shape->dim_v, tiled_tokens(shape->block_tokens), true), TILED_ALIGN);
}

static uint64_t tiles_in_block(const struct kvattn_shape *shape)
{
	const uint64_t tokens = tiled_tokens(shape->block_tokens);

	return (shape->block_tokens + tokens - 1) / tokens;
}

static uint64_t layer_bytes(const struct kvattn_shape *shape, uint32_t layout)
{
	if (layout == KVATTN_TILED)
		return shape->n_kv_heads * tiles_in_block(shape) * tile_all_bytes(shape);
	return tensor_bytes(shape, shape->dim_k, shape->type_k) + tensor_bytes(shape, shape->dim_v, shape->type_v);
}

static uint64_t block_bytes(const struct kvattn_shape *shape, uint32_t layout)
{
	uint64_t block;

	if (layers_check(shape, layout) < 0)
		return 0;
	if (__builtin_mul_overflow(layer_bytes(shape, layout), (uint64_t)shape->n_layers, &block) ||
		block > UINT64_MAX / 8)
		return 0;
	return block;
}

uint64_t kvattn_block_bytes(const struct kvattn_shape *shape)
{
	return block_bytes(shape, KVATTN_ROWS);
}

uint64_t kvattn_block_bytes_tiled(const struct kvattn_shape *shape)
{
	return block_bytes(shape, KVATTN_TILED);
}

/* What all layouts have in common. */
static int geom_begin(struct kvattn_geom *geom, const struct kvattn_shape *shape, uint32_t layer, uint32_t layout)
{
	const int r = layers_check(shape, layout);

	if (r < 0)
		return r;
	if (!geom || layer >= shape->n_layers || !block_bytes(shape, layout))
		return -EINVAL;
	*geom = (struct kvattn_geom){
		.size = sizeof(*geom),
		.layout = layout,
		.type_k = shape->type_k,
		.type_v = shape->type_v,
		.n_kv_heads = shape->n_kv_heads,
		.dim_k = shape->dim_k,
		.dim_v = shape->dim_v,
		.block_tokens = shape->block_tokens,
		.k_off = layer * layer_bytes(shape, layout),
	};
	return 0;
}

static int geom_init(struct kvattn_geom *geom, const struct kvattn_shape *shape, uint32_t layer, bool token_outer)
{
	const int r = geom_begin(geom, shape, layer, KVATTN_ROWS);
	uint64_t k_row, v_row;

	if (r < 0)
		return r;
	k_row = (uint64_t)shape->dim_k * kvattn_type_bytes(shape->type_k);
	v_row = (uint64_t)shape->dim_v * kvattn_type_bytes(shape->type_v);
	geom->k_token_stride = token_outer ? k_row * shape->n_kv_heads : k_row;
	geom->k_head_stride = token_outer ? k_row : k_row * shape->block_tokens;
	geom->v_token_stride = token_outer ? v_row * shape->n_kv_heads : v_row;
	geom->v_head_stride = token_outer ? v_row : v_row * shape->block_tokens;
	geom->v_off = geom->k_off + tensor_bytes(shape, shape->dim_k, shape->type_k);
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

int kvattn_geom_init_tiled(struct kvattn_geom *geom, const struct kvattn_shape *shape, uint32_t layer)
{
	const int r = geom_begin(geom, shape, layer, KVATTN_TILED);

	if (r < 0)
		return r;
	geom->k_token_stride = geom->v_token_stride = tile_all_bytes(shape);
	geom->k_head_stride = geom->v_head_stride = tile_all_bytes(shape) * tiles_in_block(shape);
	geom->v_off = geom->k_off + tile_k_bytes(shape);
	return 0;
}

struct geom_tensor geom_tensor_k(const struct kvattn_geom *geom)
{
	return (struct geom_tensor){geom->k_off, geom->k_token_stride, geom->k_head_stride, geom->dim_k, geom->type_k,
		geom->layout == KVATTN_TILED ? tiled_tokens(geom->block_tokens) : 0, geom->dim_k, false};
}

struct geom_tensor geom_tensor_v(const struct kvattn_geom *geom)
{
	return (struct geom_tensor){geom->v_off, geom->v_token_stride, geom->v_head_stride, geom->dim_v, geom->type_v,
		geom->layout == KVATTN_TILED ? tiled_tokens(geom->block_tokens) : 0,
		geom_latent(geom) ? geom->dim_k : geom->dim_v, !geom_latent(geom)};
}

/* ---- Rows of one head ---- */

#define STRIDED(to, to_step, from, from_step, n, type) \
	for (uint32_t i = 0; i < (n); i++) \
	((type *)(void *)(to))[(size_t)i * (to_step)] = ((const type *)(const void *)(from))[(size_t)i * (from_step)]

static void strided_copy(uint32_t elem, char *to, uint32_t to_step, const char *from, uint32_t from_step, uint32_t n)
{
	if (elem == 4)
		STRIDED(to, to_step, from, from_step, n, uint32_t);
	else if (elem == 2)
		STRIDED(to, to_step, from, from_step, n, uint16_t);
	else
		STRIDED(to, to_step, from, from_step, n, uint8_t);
}

static void pairs_move(const struct geom_tensor *t, char *to, uint32_t to_tile, uint32_t to_token, const char *from,
	uint32_t from_tile, uint32_t from_token)
{
	for (uint32_t d = 0; d < t->dim; d++) {
		const size_t at = t->values ? tiled_v_at(t->type, to_tile, t->dim, d, to_token)
					    : tiled_k_at(t->type, to_tile, d, to_token);
		const size_t from_at = t->values ? tiled_v_at(t->type, from_tile, t->dim, d, from_token)
						 : tiled_k_at(t->type, from_tile, d, from_token);

		((uint16_t *)(void *)to)[at] = ((const uint16_t *)(const void *)from)[from_at];
	}
}

/* Elements side by side are a tile of one token. */
void geom_token_move(const struct geom_tensor *t, char *to, uint32_t to_tile, uint32_t to_token, const char *from,
	uint32_t from_tile, uint32_t from_token)
{
	const uint32_t elem = kvattn_type_bytes(t->type);

	if (tiled_paired(t->type)) {
		pairs_move(t, to, to_tile, to_token, from, from_tile, from_token);
		return;
	}
	if (!t->values) {
		strided_copy(elem, to + (size_t)to_token * elem, to_tile, from + (size_t)from_token * elem, from_tile,
			t->dim);
		return;
	}
	for (uint32_t c = 0; c < t->dim; c += TILED_CHUNK) {
		const uint32_t n = t->dim - c < TILED_CHUNK ? t->dim - c : TILED_CHUNK;

		memcpy(to + tiled_v_at(t->type, to_tile, t->dim, c, to_token) * elem,
			from + tiled_v_at(t->type, from_tile, t->dim, c, from_token) * elem, (size_t)n * elem);
	}
}

/* The squared distance of @n numbers, a multiple of four, from their multiples of @scale.  Four sums side by side and
 * no fused operation: the same choice on every processor. */
static float codes_distance(const float *x, uint32_t n, float scale)
{
	typedef float four __attribute__((vector_size(16), may_alias, aligned(4)));
	const float inverse = 1 / scale, whole = 0x1.8p23f; /* added and taken off again it rounds */
	four sum = {0};

	for (uint32_t d = 0; d < n; d += 4) {
		const four value = *(const four *)(const void *)(x + d) * inverse;
		const four rest = value - ((value + whole) - whole);

		sum += rest * rest;
	}
	return (sum[0] + sum[1] + sum[2] + sum[3]) * scale * scale;
}

/* How far numbers lie from their codes depends on luck: of a few scales about the same the luckiest. */
static float codes_scale(const float *row, uint32_t n, float top)
{
	static const float tries[] = {127.35f, 126.65f, 126.3f, 125.95f};
	float x[KVATTN_DIM_MAX + 3] = {0}, best = top / 127, least;

	memcpy(x, row, n * sizeof(float));
	if (!(1 / best <= FLT_MAX)) /* nothing but zeros, or too little for a scale of its own */
		return best;
	n = (uint32_t)attn_round_up(n, 4);
	least = codes_distance(x, n, best);
	for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]) && least > 0; i++) {
		const float distance = codes_distance(x, n, top / tries[i]);

		if (distance < least) {
			least = distance;
			best = top / tries[i];
		}
	}
	return best;
}

/* Codes of -127 .. 127 and their scale.  A row with anything infinite or NaN in it becomes NaN as a whole: it must not
 * pass for numbers. */
static float codes_from(int8_t *codes, const float *row, uint32_t n)
{
	float top = 0, scale;
	bool finite = true;

	for (uint32_t d = 0; d < n; d++) {
		finite &= isfinite(row[d]) != 0;
		top = fabsf(row[d]) > top ? fabsf(row[d]) : top;
	}
	if (!finite) {
		memset(codes, 1, n);
		return NAN;
	}
	scale = codes_scale(row, n, top);
	if (scale == 0) {
		memset(codes, 0, n);
		return 0;
	}
	for (uint32_t d = 0; d < n; d++) {
		const float code = rintf(row[d] / scale);

		codes[d] = (int8_t)(code > 127 ? 127 : code < -127 ? -127 : code);
	}
	return scale;
}

/* ---- I4: groups of codes with a step and a least value ---- */

struct i4_group {
	uint16_t step, least;
};

/* Sixteen values between the least and the largest of @n numbers @stride apart.  What f16 cannot hold, or is not
 * finite, makes the group NaN. */
static struct i4_group i4_codes(uint8_t *codes, const float *x, size_t stride, uint32_t n)
{
	float low = x[0], high = x[0], step, least;
	struct i4_group group;
	bool finite = true;

	for (uint32_t i = 0; i < n; i++) {
		const float value = x[i * stride];

		finite &= isfinite(value) != 0;
		low = value < low ? value : low;
		high = value > high ? value : high;
	}
	group.step = half_f16_from((high - low) / 15);
	group.least = half_f16_from(low);
	step = half_f16_to(group.step);
	least = half_f16_to(group.least);
	if (!finite || !isfinite(step) || !isfinite(least))
		group.step = group.least = half_f16_from(NAN), step = 0;
	for (uint32_t i = 0; i < n; i++) {
		const float code = step > 0 ? rintf((x[i * stride] - least) / step) : 0;

		codes[i] = (uint8_t)(code > 15 ? 15 : code > 0 ? code : 0);
	}
	return group;
}

static float i4_value(struct i4_group group, uint32_t code)
{
	return half_f16_to(group.step) * (float)code + half_f16_to(group.least);
}

static void nibble_set(uint8_t *byte, bool high, uint32_t code)
{
	*byte = (uint8_t)(high ? (*byte & 0x0f) | code << 4 : (*byte & 0xf0) | code);
}

static size_t i4_at(const struct geom_tensor *t, uint32_t dim_at, uint32_t token, bool *high)
{
	return tiled_code_at(t->tile, t->tile_dim, dim_at, token, t->values, high);
}

/* Where the scales of a tile lie, or its steps. */
static size_t scale_off(const struct geom_tensor *t)
{
	return tiled_scale_off(t->type, t->tile_dim, t->tile, t->values);
}

static uint16_t *i4_steps(const struct geom_tensor *t, char *tile)
{
	return (uint16_t *)(void *)(tile + scale_off(t));
}

/* A tile's K: tokens 0 .. @n - 1, the rest is left without a value of its own. */
static void i4_k_store(const struct geom_tensor *t, char *tile, const float *rows, size_t stride, uint32_t n)
{
	uint16_t *step = i4_steps(t, tile), *least = step + tiled_i4_steps(t->dim, false);

	memset(tile, 0, tiled_bytes(t->type, t->dim, t->tile, false));
	for (uint32_t d = 0; d < t->dim; d++) {
		uint8_t codes[TILED_TOKENS];
		const struct i4_group group = i4_codes(codes, rows + d, stride, n);

		step[d] = group.step;
		least[d] = group.least;
		for (uint32_t i = 0; i < n; i++) {
			bool high;
			const size_t at = i4_at(t, d, i, &high);

			nibble_set((uint8_t *)tile + at, high, codes[i]);
		}
	}
}

static void i4_v_store(const struct geom_tensor *t, char *tile, uint32_t token, const float *row)
{
	uint16_t *step = i4_steps(t, tile), *least = step + tiled_i4_steps(t->dim, true);

	for (uint32_t c = 0; c < t->dim; c += TILED_CHUNK) {
		const uint32_t n = t->dim - c < TILED_CHUNK ? t->dim - c : TILED_CHUNK;
		const size_t at_group = c / TILED_CHUNK * TILED_TOKENS + token;
		uint8_t codes[TILED_CHUNK];
		const struct i4_group group = i4_codes(codes, row + c, 1, n);

		step[at_group] = group.step;
		least[at_group] = group.least;
		for (uint32_t i = 0; i < n; i++) {
			bool high;
			const size_t at = i4_at(t, c + i, token, &high);

			nibble_set((uint8_t *)tile + at, high, codes[i]);
		}
	}
}

static void i4_load(const struct geom_tensor *t, const char *tile, uint32_t token, float *row)
{
	const uint16_t *step = (const uint16_t *)(const void *)(tile + scale_off(t));
	const uint16_t *least = step + tiled_i4_steps(t->tile_dim, t->values);

	for (uint32_t d = 0; d < t->dim; d++) {
		const size_t at_group = t->values ? d / TILED_CHUNK * TILED_TOKENS + token : d;
		const struct i4_group group = {step[at_group], least[at_group]};
		bool high;
		const uint8_t byte = (uint8_t)tile[i4_at(t, d, token, &high)];

		row[d] = i4_value(group, high ? byte >> 4 : byte & 15);
	}
}

static void tile_row_store(
	const struct attn_isa *isa, const struct geom_tensor *t, char *tile, uint32_t token, const float *row)
{
	_Alignas(float) char elems[KVATTN_DIM_MAX * sizeof(float)];

	if (t->type == KVATTN_I4) {
		i4_v_store(t, tile, token, row);
		return;
	}
	if (tiled_scaled(t->type)) {
		const float scale = codes_from((int8_t *)elems, row, t->dim);

		memcpy(tile + scale_off(t) + token * sizeof(scale), &scale, sizeof(scale));
	} else {
		isa->store(t->type, elems, row, t->dim);
	}
	geom_token_move(t, tile, t->tile, token, elems, 1, 0);
}

static void tile_row_load(
	const struct attn_isa *isa, const struct geom_tensor *t, const char *tile, uint32_t token, float *row)
{
	_Alignas(float) char elems[KVATTN_DIM_MAX * sizeof(float)];
	float scale;

	if (t->type == KVATTN_I4) {
		i4_load(t, tile, token, row);
		return;
	}
	geom_token_move(t, elems, 1, 0, tile, t->tile, token);
	if (!tiled_scaled(t->type)) {
		isa->load(t->type, row, elems, t->dim);
		return;
	}
	memcpy(&scale, tile + scale_off(t) + token * sizeof(scale), sizeof(scale));
	for (uint32_t d = 0; d < t->dim; d++)
		row[d] = scale * (float)(int8_t)elems[d];
}

/* Where a row lies, or the tile it is in. */
static uint64_t row_off(const struct geom_tensor *t, uint64_t token, uint32_t head)
{
	return t->off + (t->tile ? token / t->tile : token) * t->token_stride + head * t->head_stride;
}

void geom_row_load(const struct attn_isa *isa, const struct geom_tensor *t, const char *block, uint64_t token,
	uint32_t head, float *row)
{
	const char *at = block + row_off(t, token, head);

	if (t->tile)
		tile_row_load(isa, t, at, (uint32_t)(token % t->tile), row);
	else
		isa->load(t->type, row, at, t->dim);
}

static void row_store(const struct attn_isa *isa, const struct geom_tensor *t, char *block, uint64_t token,
	uint32_t head, const float *row)
{
	char *at = block + row_off(t, token, head);

	if (t->tile)
		tile_row_store(isa, t, at, (uint32_t)(token % t->tile), row);
	else
		isa->store(t->type, at, row, t->dim);
}

/* ---- Rows in and out ---- */

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

/* K of I4 has groups across the tokens of a tile: tile by tile. */
static void tiles_put(const struct kvattn_geom *geom, const struct geom_tensor *t, char *block, uint32_t first,
	uint32_t n, const float *rows, size_t stride)
{
	for (uint32_t i = 0; i < n; i += t->tile)
		for (uint32_t h = 0; h < geom->n_kv_heads; h++)
			i4_k_store(t, block + row_off(t, first + (uint64_t)i, h),
				rows + i * stride + (size_t)h * t->dim, stride, n - i < t->tile ? n - i : t->tile);
}

static void tensor_put(const struct kvattn_geom *geom, const struct geom_tensor *t, char *block, uint32_t first,
	uint32_t n, const float *rows, size_t stride)
{
	const struct attn_isa *isa = dispatch_isa(false);

	if (t->type == KVATTN_I4 && !t->values) {
		tiles_put(geom, t, block, first, n, rows, stride);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t h = 0; h < geom->n_kv_heads; h++)
			row_store(isa, t, block, first + (uint64_t)i, h, rows + i * stride + (size_t)h * t->dim);
}

static void tensor_get(const struct kvattn_geom *geom, const struct geom_tensor *t, const char *block, uint32_t first,
	uint32_t n, float *rows, size_t stride)
{
	const struct attn_isa *isa = dispatch_isa(false);

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t h = 0; h < geom->n_kv_heads; h++)
			geom_row_load(isa, t, block, first + (uint64_t)i, h, rows + i * stride + (size_t)h * t->dim);
}

int kvattn_put(const struct kvattn_geom *geom, void *block, uint32_t first_token, uint32_t n_tokens, const float *k,
	size_t k_stride, const float *v, size_t v_stride)
{
	const int r = range_check(geom, block, first_token, n_tokens);
	struct geom_tensor t;

	if (r < 0)
		return r;
	if (stride_check(geom, geom->dim_k, &k_stride) < 0 || stride_check(geom, geom->dim_v, &v_stride) < 0)
		return -EINVAL;
	t = geom_tensor_k(geom);
	if (k && t.type == KVATTN_I4 && first_token % t.tile)
		return -EINVAL;
	if (v && t.tile && geom_latent(geom))
		return -EINVAL;
	if (k)
		tensor_put(geom, &t, block, first_token, n_tokens, k, k_stride);
	t = geom_tensor_v(geom);
	if (v)
		tensor_put(geom, &t, block, first_token, n_tokens, v, v_stride);
	return 0;
}

int kvattn_get(const struct kvattn_geom *geom, const void *block, uint32_t first_token, uint32_t n_tokens, float *k,
	size_t k_stride, float *v, size_t v_stride)
{
	const int r = range_check(geom, block, first_token, n_tokens);
	struct geom_tensor t;

	if (r < 0)
		return r;
	if (stride_check(geom, geom->dim_k, &k_stride) < 0 || stride_check(geom, geom->dim_v, &v_stride) < 0)
		return -EINVAL;
	t = geom_tensor_k(geom);
	if (k)
		tensor_get(geom, &t, block, first_token, n_tokens, k, k_stride);
	t = geom_tensor_v(geom);
	if (v)
		tensor_get(geom, &t, block, first_token, n_tokens, v, v_stride);
	return 0;
}
