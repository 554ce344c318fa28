/*
 * test_attn_block.c - geometry, rows into blocks and out of them, arguments that are refused, the choice of
 * instructions
 */
#include <errno.h>

#include "test_attn_fixture.h"

#include "kernels/cpu.h"

/* ---- Geometry ---- */

static void offsets_follow_from_the_shape(void **state)
{
	const struct kvattn_shape shape = {3, 2, 5, 7, KVATTN_F16, KVATTN_F32, 4};
	/* K: 2 heads * 4 tokens * 5 * 2 bytes = 80, padded to 128; V: 2 * 4 * 7 * 4 = 224, padded to 256 */
	struct kvattn_geom geom;

	(void)state;
	assert_int_equal(kvattn_block_bytes(&shape), 3 * (128 + 256));
	assert_int_equal(kvattn_geom_init_hnd(&geom, &shape, 2), 0);
	assert_int_equal(geom.k_off, 2 * 384);
	assert_int_equal(geom.v_off, 2 * 384 + 128);
	assert_int_equal(geom.k_token_stride, 10);
	assert_int_equal(geom.k_head_stride, 40);
	assert_int_equal(geom.v_token_stride, 28);
	assert_int_equal(geom.v_head_stride, 112);
	assert_int_equal(kvattn_geom_init_nhd(&geom, &shape, 0), 0);
	assert_int_equal(geom.k_off, 0);
	assert_int_equal(geom.k_token_stride, 20);
	assert_int_equal(geom.k_head_stride, 10);
	assert_int_equal(geom.v_token_stride, 56);
	assert_int_equal(geom.v_head_stride, 28);
}

/* The order the header names, element by element: blocks are kept, so it may never change. */
static void elements_of_a_tile_lie_where_the_header_says(void **state)
{
	static const uint32_t sizes[] = {1, 5, 16, 40};

	(void)state;
	for (size_t i = 0; i < COUNT(sizes); i++) {
		const uint32_t n = sizes[i], tile = n < 16 ? n : 16;
		const struct kvattn_shape shape = {2, 2, 7, 81, KVATTN_F32, KVATTN_F32, n};
		float *k = floats(n * 2 * 7), *v = floats(n * 2 * 81);
		struct kv kv;

		for (uint32_t j = 0; j < n * 2 * 7; j++)
			k[j] = (float)j;
		for (uint32_t j = 0; j < n * 2 * 81; j++)
			v[j] = -(float)j;
		kv_open(&kv, &shape, ORDER_TILED, n);
		kv_fill(&kv, k, v);
		for (uint32_t t = 0; t < n; t++)
			for (uint32_t h = 0; h < 2; h++) {
				const uint64_t at = t / tile * kv.geom.k_token_stride + h * kv.geom.k_head_stride;
				const float *tk = (const float *)(const void *)(kv.memory + kv.geom.k_off + at);
				const float *tv = (const float *)(const void *)(kv.memory + kv.geom.v_off + at);

				for (uint32_t d = 0; d < 7; d++)
					assert_true(tk[d * tile + t % tile] == k[(t * 2 + h) * 7 + d]);
				for (uint32_t d = 0; d < 81; d++) /* 81 is 96 with padding: chunks of 64 and 32 */
					assert_true(tv[d / 64 * 64 * tile + t % tile * (d < 64 ? 64 : 32) + d % 64] ==
						    v[(t * 2 + h) * 81 + d]);
			}
		assert_true(kv.geom.v_head_stride == kv.geom.k_head_stride);
		assert_true(kv.block_bytes == 2 * 2 * kv.geom.k_head_stride);
		kv_close(&kv);
		free(k), free(v);
	}
}

static uint16_t bf16_bits(float whole)
{
	uint32_t bits;

	memcpy(&bits, &whole, sizeof(bits));
	assert_int_equal(bits & 0xffff, 0);
	return (uint16_t)(bits >> 16);
}

/* Pairs: of dims in K, of tokens in V, whole ones also where dims or tokens are odd. */
static void bf16_lies_in_pairs(void **state)
{
	static const uint32_t sizes[] = {1, 5, 16, 40};

	(void)state;
	for (size_t i = 0; i < COUNT(sizes); i++) {
		const uint32_t n = sizes[i], tile = n < 16 ? n : 16, whole = tile == 1 ? 1 : (tile + 1) / 2 * 2;
		const struct kvattn_shape shape = {1, 1, 7, 81, KVATTN_BF16, KVATTN_BF16, n};
		float *k = floats(n * 7), *v = floats(n * 81);
		struct kv kv;

		for (uint32_t j = 0; j < n * 7; j++)
			k[j] = (float)(j % 251);
		for (uint32_t j = 0; j < n * 81; j++)
			v[j] = -(float)(j % 241);
		kv_open(&kv, &shape, ORDER_TILED, n);
		kv_fill(&kv, k, v);
		for (uint32_t t = 0; t < n; t++) {
			const uint64_t at = t / tile * kv.geom.k_token_stride;
			const uint16_t *tk = (const uint16_t *)(const void *)(kv.memory + kv.geom.k_off + at);
			const uint16_t *tv = (const uint16_t *)(const void *)(kv.memory + kv.geom.v_off + at);
			const uint32_t s = t % tile;

			for (uint32_t d = 0; d < 7; d++)
				assert_int_equal(tk[d / 2 * 2 * tile + 2 * s + d % 2], bf16_bits(k[t * 7 + d]));
			for (uint32_t d = 0; d < 81; d++) {
				const uint32_t row = d < 64 ? 64 : 32, first = d / 64 * 64 * whole;
				const uint32_t in = tile == 1 ? d % 64 : s / 2 * 2 * row + 2 * (d % 64) + s % 2;

				assert_int_equal(tv[first + in], bf16_bits(v[t * 81 + d]));
			}
		}
		assert_true(kv.geom.v_off - kv.geom.k_off >= 8 * tile * sizeof(uint16_t));
		assert_true(kv.geom.k_token_stride >= (8 * tile + 96 * whole) * sizeof(uint16_t));
		kv_close(&kv);
		free(k), free(v);
	}
}

static void impossible_shapes_are_refused(void **state)
{
	const struct kvattn_shape good = {1, 1, 64, 64, KVATTN_F16, KVATTN_F16, 16};
	struct kvattn_shape bad[9];
	struct kvattn_geom geom;

	(void)state;
	for (size_t i = 0; i < COUNT(bad); i++)
		bad[i] = good;
	bad[0].n_layers = 0;
	bad[1].n_kv_heads = 0;
	bad[2].n_kv_heads = KVATTN_HEADS_MAX + 1;
	bad[3].dim_k = 0;
	bad[4].dim_k = KVATTN_DIM_MAX + 1;
	bad[5].dim_v = 0;
	bad[6].dim_v = KVATTN_DIM_MAX + 1;
	bad[7].block_tokens = 0;
	/* 2^16 layers of 2^12 heads * 2^31 tokens * 576 * 4 bytes do not fit 64 bits */
	bad[8] = (struct kvattn_shape){1 << 16, KVATTN_HEADS_MAX, 576, 576, KVATTN_F32, KVATTN_F32, 1u << 31};
	for (size_t i = 0; i < COUNT(bad); i++) {
		assert_int_equal(kvattn_geom_init_hnd(&geom, &bad[i], 0), -EINVAL);
		assert_int_equal(kvattn_block_bytes(&bad[i]), 0);
	}
	assert_int_equal(kvattn_geom_init_hnd(&geom, &good, 1), -EINVAL);
	assert_int_equal(kvattn_geom_init_hnd(NULL, &good, 0), -EINVAL);
	assert_int_equal(kvattn_geom_init_hnd(&geom, NULL, 0), -EINVAL);
	for (uint32_t type = 0; type < 9; type++) {
		const bool served = (type >= KVATTN_F32 && type <= KVATTN_BF16) || type == KVATTN_FP8_E4M3;

		bad[0] = good;
		bad[0].type_v = type;
		assert_int_equal(kvattn_geom_init_nhd(&geom, &bad[0], 0), served ? 0 : -ENOTSUP);
		assert_int_equal(kvattn_geom_init_tiled(&geom, &bad[0], 0),
			type >= KVATTN_F32 && type <= KVATTN_FP8_E4M3 ? 0 : -ENOTSUP);
	}
	assert_int_equal(kvattn_type_bytes(KVATTN_F32), 4);
	assert_int_equal(kvattn_type_bytes(KVATTN_F16), 2);
	assert_int_equal(kvattn_type_bytes(KVATTN_BF16), 2);
	assert_int_equal(kvattn_type_bytes(KVATTN_I8), 1);
	assert_int_equal(kvattn_type_bytes(KVATTN_FP8_E4M3), 1);
	assert_int_equal(kvattn_type_bytes(KVATTN_I4), 0);
}

/* ---- Rounding ---- */

/* @f rounded to a format of @bits significant bits, smallest exponent @least, values from @overflow on infinite */
static float rounded(float f, int bits, int least, double overflow)
{
	const double x = fabs((double)f);
	int exponent;
	double step, near;

	if (isnan(f) || isinf(f) || x == 0)
		return f;
	if (x >= overflow)
		return copysignf(INFINITY, f);
	exponent = ilogb(x);
	step = ldexp(1, (exponent < least ? least : exponent) - bits + 1);
	near = nearbyint(x / step) * step; /* to nearest even, as the default is; the quotient is exact */
	return copysignf((float)near, f);
}

static float stored(uint32_t type, float f)
{
	switch (type) {
	case KVATTN_F16:
		return rounded(f, 11, -14, 65520);
	case KVATTN_BF16:
		return rounded(f, 8, -126, 0x1.ffp127);
	default:
		return f;
	}
}

static void same_number(uint32_t type, float got, float want, float from)
{
	uint32_t a, b;

	memcpy(&a, &got, 4);
	memcpy(&b, &want, 4);
	if (!(isnan(got) && isnan(want)) && a != b)
		fail_msg("type %u: %a became %a, right is %a", type, from, got, want);
}

/* @n numbers of one token and head through a block; odd lengths reach the part a vector does not */
static void through_a_block(uint32_t type, const float *from, float *to, uint32_t n)
{
	const struct kvattn_shape shape = {1, 1, n, n, type, type, 1};
	struct kv kv;

	kv_open(&kv, &shape, ORDER_HND, 1);
	kv_fill(&kv, from, NULL);
	kv_read(&kv, to, NULL);
	kv_close(&kv);
}

static void numbers_are_rounded_to_nearest_even(void **state)
{
	static const float special[] = {0, -0.0f, 1, -1, 65504, 65519.99f, 65520, 65536, 1e30f, -1e30f, INFINITY,
		-INFINITY, NAN, 0x1p-14f, 0x1p-15f, 0x1.ffcp-15f, 0x1.ffep-15f, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f,
		0x1.8p-24f, 0x1p-26f, 0x1.002p0f, 0x1.006p0f, 0x1.00200000p0f, 0x1.01p0f, 0x1.03p0f, 0x1.fep127f,
		0x1.fefffep127f, 0x1.ffp127f, 0x1.fffffep127f, 0x1p-126f, 0x1p-133f, 0x1p-134f, 0x1.8p-133f, 0x1p-149f};
	float from[COUNT(special)], to[COUNT(special)];
	uint64_t seed = 21;

	(void)state;
	for (size_t t = 0; t < COUNT(attn_types); t++)
		for (uint32_t round = 0; round < 2000; round++) {
			const uint32_t n = round ? 1 + round % (uint32_t)COUNT(from) : (uint32_t)COUNT(from);

			for (uint32_t i = 0; i < n; i++) {
				const uint32_t bits = (uint32_t)noise_next(&seed) << 8 ^ (uint32_t)noise_next(&seed);

				if (round == 0)
					from[i] = special[i];
				else if (round % 2)
					memcpy(&from[i], &bits, 4);
				else
					from[i] = ldexpf(noise_float(&seed), (int)noise_below(&seed, 45) - 27);
			}
			through_a_block(attn_types[t], from, to, n);
			for (uint32_t i = 0; i < n; i++)
				same_number(attn_types[t], to[i], stored(attn_types[t], from[i]), from[i]);
		}
}

static void every_half_comes_back_as_itself(void **state)
{
	const struct kvattn_shape shapes[] = {
		{1, 1, 256, 256, KVATTN_F16, KVATTN_F16, 256}, {1, 1, 256, 256, KVATTN_BF16, KVATTN_BF16, 256}};
	float *wide = floats(65536);

	(void)state;
	for (size_t i = 0; i < COUNT(shapes); i++) {
		struct kv kv;
		uint16_t *k;

		kv_open(&kv, &shapes[i], ORDER_HND, 256);
		k = (uint16_t *)(void *)kv.memory;
		for (uint32_t h = 0; h < 65536; h++)
			k[h] = (uint16_t)h;
		kv_read(&kv, wide, NULL);
		memset(kv.memory, 0xff, kv.block_bytes);
		kv_fill(&kv, wide, NULL);
		for (uint32_t h = 0; h < 65536; h++)
			if (k[h] != h && !isnan(wide[h]))
				fail_msg("type %u: %#x came back as %#x", shapes[i].type_k, h, k[h]);
			else if (isnan(wide[h]))
				assert_true((k[h] & 0x8000) == (h & 0x8000) && (k[h] & 0x7fff) > (i ? 0x7f80 : 0x7c00));
		kv_close(&kv);
	}
	free(wide);
}

/* E4M3: four significant bits, 2^-6 the smallest normal, 448 the largest; what is finite stays finite. */
static void fp8_is_rounded_to_nearest_even_and_saturates(void **state)
{
	float from[576], to[576];
	uint64_t seed = 8;

	(void)state;
	for (uint32_t round = 0; round < 300; round++) {
		const uint32_t n = 1 + noise_below(&seed, 576);

		for (uint32_t i = 0; i < n; i++)
			from[i] = round % 3 ? ldexpf(noise_float(&seed), (int)noise_below(&seed, 24) - 12)
					    : ldexpf((float)noise_below(&seed, 64) - 32,
						      (int)noise_below(&seed, 20) - 14);
		from[0] = round == 0 ? INFINITY : round == 1 ? NAN : round == 2 ? -3e38f : from[0];
		through_a_block(KVATTN_FP8_E4M3, from, to, n);
		for (uint32_t i = 0; i < n; i++) {
			const float near = rounded(from[i], 4, -6, 1e30);
			const float want = fabsf(near) > 448 ? copysignf(448, near) : near;

			same_number(KVATTN_FP8_E4M3, to[i], isfinite(from[i]) ? want : NAN, from[i]);
		}
	}
}

/* K of int4 has groups across the tokens of a tile: rows come in tiles, from a tile's first token on. */
static void int4_keys_come_in_tiles(void **state)
{
	const struct kvattn_shape shape = {1, 2, 24, 40, KVATTN_I4, KVATTN_I4, 64};
	float k[40 * 48], v[40 * 80], back_k[40 * 48], back_v[40 * 80];
	uint64_t seed = 4;
	struct kv kv;

	(void)state;
	for (size_t i = 0; i < COUNT(k); i++) /* sixteen values a group, on f16's grid: exact */
		k[i] = (float)noise_below(&seed, 16) * 0.25f - 2;
	for (size_t i = 0; i < COUNT(v); i++)
		v[i] = (float)noise_below(&seed, 16) * 0.5f + 8;
	for (uint32_t i = 0; i < 48; i++)
		for (uint32_t tile = 0; tile < 40; tile += 16) {
			k[tile * 48 + i] = -2;
			k[(tile + 1) * 48 + i] = 1.75f;
		}
	for (uint32_t i = 0; i < 40 * 80; i += 40) {
		v[i] = 8;
		v[i + 1] = 15.5f;
	}
	kv_open(&kv, &shape, ORDER_TILED, 64);
	assert_int_equal(kvattn_put(&kv.geom, kv.memory, 8, 16, k, 0, NULL, 0), -EINVAL);
	assert_int_equal(kvattn_put(&kv.geom, kv.memory, 16, 40, k, 0, v, 0), 0);
	assert_int_equal(kvattn_get(&kv.geom, kv.memory, 16, 40, back_k, 0, back_v, 0), 0);
	assert_memory_equal(k, back_k, sizeof(k));
	assert_memory_equal(v, back_v, sizeof(v));
	kv_close(&kv);
}

/* V without bytes of its own is the first dims of K: it is read from there, put with it, and converted with it. */
static void values_may_be_the_first_dims_of_keys(void **state)
{
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16, KVATTN_BF16, KVATTN_FP8_E4M3, KVATTN_I8, KVATTN_I4};
	static const struct kvattn_shape apart_shape = {1, 2, 33, 21, KVATTN_F32, KVATTN_F32, 32};
	float k[32 * 2 * 33], back_k[32 * 2 * 33], back_v[32 * 2 * 21], v[32 * 2 * 21] = {0};
	struct kv apart, kv;
	uint64_t seed = 6;

	(void)state;
	noise_fill(&seed, k, COUNT(k), 3);
	for (size_t i = 0; i < COUNT(types); i++) {
		const struct kvattn_shape shape = {1, 2, 33, 21, types[i], types[i], 32};

		kv_open(&apart, &apart_shape, ORDER_TILED, 32);
		kv_open_latent(&kv, &shape, 32);
		assert_int_equal(kvattn_put(&kv.geom, kv.memory, 0, 32, k, 0, v, 0), -EINVAL);
		assert_int_equal(kvattn_put(&kv.geom, kv.memory, 0, 32, k, 0, NULL, 0), 0);
		assert_int_equal(kvattn_get(&kv.geom, kv.memory, 0, 32, back_k, 0, back_v, 0), 0);
		for (uint32_t row = 0; row < 32 * 2; row++)
			assert_memory_equal(back_k + row * 33, back_v + row * 21, 21 * sizeof(float));
		assert_int_equal(kvattn_convert(&apart.geom, apart.memory, &kv.geom, kv.memory, 32), -EINVAL);
		assert_int_equal(kvattn_convert(&kv.geom, kv.memory, &apart.geom, apart.memory, 32), 0);
		assert_int_equal(kvattn_get(&apart.geom, apart.memory, 0, 32, k, 0, v, 0), 0);
		assert_memory_equal(k, back_k, sizeof(k));
		assert_memory_equal(v, back_v, sizeof(v));
		kv_close(&apart);
		kv_open_latent(&apart, &apart_shape, 32);
		assert_int_equal(kvattn_convert(&kv.geom, kv.memory, &apart.geom, apart.memory, 32), 0);
		assert_int_equal(kvattn_get(&apart.geom, apart.memory, 0, 32, k, 0, v, 0), 0);
		assert_memory_equal(k, back_k, sizeof(k));
		assert_memory_equal(v, back_v, sizeof(v));
		kv_close(&apart), kv_close(&kv);
	}
}

static void tiles_are_shared_by_values_that_are_keys_and_no_others(void **state)
{
	const struct kvattn_shape shape = {1, 2, 32, 16, KVATTN_F16, KVATTN_F16, 32};
	struct kvattn_geom geom, bad[5];
	float k[2 * 32] = {0};
	struct kv kv;

	(void)state;
	kv_open_latent(&kv, &shape, 32);
	geom = kv.geom;
	assert_int_equal(kvattn_put(&geom, kv.memory, 0, 1, k, 0, NULL, 0), 0);
	for (size_t i = 0; i < COUNT(bad); i++)
		bad[i] = geom;
	bad[0].type_v = KVATTN_BF16;
	bad[1].dim_v = 33;
	bad[2].v_token_stride *= 2;
	bad[3].v_head_stride *= 2;
	bad[4].type_k = KVATTN_F32;
	for (size_t i = 0; i < COUNT(bad); i++)
		assert_int_equal(kvattn_put(&bad[i], kv.memory, 0, 1, k, 0, NULL, 0), -EINVAL);
	kv_close(&kv);
}

static void put_writes_its_rows_and_nothing_else(void **state)
{
	(void)state;
	for (size_t t = 0; t < COUNT(attn_types); t++)
		for (enum order order = 0; order < N_ORDERS; order++) {
			const struct kvattn_shape shape = {2, 3, 19, 21, attn_types[t], attn_types[t], 8};
			float k[2 * 70], v[2 * 70], k_back[57], v_back[63];
			struct kv kv;
			size_t changed = 0;

			kv_open(&kv, &shape, order, 8);
			for (int i = 0; i < 140; i++)
				k[i] = v[i] = (float)i / 4 - 10;
			/* tokens 5 and 6, rows wider than needed */
			assert_int_equal(kvattn_put(&kv.geom, kv.memory, 5, 2, k, 70, v, 70), 0);
			for (uint64_t i = 0; i < kv.block_bytes; i++)
				changed += kv.memory[i] != (char)0xff;
			assert_true(changed <= 2 * 3 * (19 + 21) * kvattn_type_bytes(attn_types[t]));
			assert_int_equal(kvattn_get(&kv.geom, kv.memory, 6, 1, k_back, 0, v_back, 0), 0);
			assert_memory_equal(k_back, k + 70, sizeof(k_back));
			assert_memory_equal(v_back, v + 70, sizeof(v_back));
			assert_int_equal(kvattn_get(&kv.geom, kv.memory, 4, 1, k_back, 0, NULL, 0), 0);
			assert_true(isnan(k_back[0]) && isnan(k_back[56]));
			assert_int_equal(kvattn_get(&kv.geom, kv.memory, 7, 1, k_back, 0, NULL, 0), 0);
			assert_true(isnan(k_back[0]) && isnan(k_back[56]));
			kv_close(&kv);
		}
}

/* ---- Refusals ---- */

struct asked {
	struct kv kv;
	struct kvattn_geom geom;
	struct kvattn_seq seq;
	struct kvattn_opts opts;
	float q[4 * 16], out[4 * 16], values[4];
	uint64_t pos[2];
};

static void asked_open(struct asked *a)
{
	const struct kvattn_shape shape = {1, 2, 16, 16, KVATTN_F16, KVATTN_F16, 16};
	float zeros[32 * 2 * 16] = {0};

	memset(a, 0, sizeof(*a));
	kv_open(&a->kv, &shape, ORDER_HND, 20);
	kv_fill(&a->kv, zeros, zeros);
	a->geom = a->kv.geom;
	a->seq = kv_seq(&a->kv, a->q, 1, a->out);
	kvattn_opts_init(&a->opts, 4);
	a->pos[1] = 16;
}

typedef void (*spoil_fn)(struct asked *a);

#define SPOIL(name, what) \
	static void name(struct asked *a) \
	{ \
		what; \
	}

SPOIL(spoil_nothing, (void)a)
SPOIL(spoil_positions, a->seq.table.block_pos = a->pos)
SPOIL(spoil_no_rows, a->seq.n_q = 0; a->seq.q = NULL; a->seq.out = NULL)
SPOIL(spoil_geom_size, a->geom.size--)
SPOIL(spoil_layout, a->geom.layout = 7)
SPOIL(spoil_layout_zero, a->geom.layout = 0)
SPOIL(spoil_tiled_i8, a->geom.layout = KVATTN_TILED; a->geom.type_k = KVATTN_I8; a->geom.k_token_stride = 6)
SPOIL(spoil_type_i8, a->geom.type_k = KVATTN_I8)
SPOIL(spoil_type_i4, a->geom.type_v = KVATTN_I4)
SPOIL(spoil_type_unknown, a->geom.type_v = 7)
SPOIL(spoil_dim, a->geom.dim_k = 0)
SPOIL(spoil_dim_wide, a->geom.dim_v = KVATTN_DIM_MAX + 1)
SPOIL(spoil_no_heads, a->geom.n_kv_heads = 0)
SPOIL(spoil_block_tokens, a->geom.block_tokens = 0)
SPOIL(spoil_odd_stride, a->geom.k_token_stride++)
SPOIL(spoil_odd_offset, a->geom.v_off++)
SPOIL(spoil_wrapping_stride, a->geom.v_token_stride = UINT64_MAX / 2 + 1)
SPOIL(spoil_wrapping_offset, a->geom.k_off = UINT64_MAX - 1)
SPOIL(spoil_opts_size, a->opts.size++)
SPOIL(spoil_opts_flags, a->opts.flags = 2)
SPOIL(spoil_no_q_heads, a->opts.n_q_heads = 0)
SPOIL(spoil_q_heads, a->opts.n_q_heads = 5)
SPOIL(spoil_scale, a->opts.scale = INFINITY)
SPOIL(spoil_softcap_negative, a->opts.softcap = -1)
SPOIL(spoil_softcap_nan, a->opts.softcap = NAN)
SPOIL(spoil_softcap_infinite, a->opts.softcap = INFINITY)
SPOIL(spoil_sink_nan, a->values[3] = NAN; a->opts.sink_logits = a->values)
SPOIL(spoil_sink_infinite, a->values[0] = INFINITY; a->opts.sink_logits = a->values)
SPOIL(spoil_slope, a->values[3] = -INFINITY; a->opts.alibi_slopes = a->values)
SPOIL(spoil_no_q, a->seq.q = NULL)
SPOIL(spoil_no_out, a->seq.out = NULL)
SPOIL(spoil_q_stride, a->seq.q_stride = 4 * 16 - 1)
SPOIL(spoil_out_stride, a->seq.out_stride = 4 * 16 - 1)
SPOIL(spoil_q_end, a->seq.q_end = KVATTN_TOKENS_MAX + 1)
SPOIL(spoil_causal, a->seq.causal = 2)
SPOIL(spoil_reserved, a->seq.reserved[0] = 1)
SPOIL(spoil_reserved0, a->seq.reserved0 = 1)
SPOIL(spoil_own_scale, a->values[0] = NAN; a->seq.scale = a->values)
SPOIL(spoil_no_blocks, a->seq.table.blocks = NULL)
SPOIL(spoil_null_block, a->kv.blocks[1] = NULL)
SPOIL(spoil_few_blocks, a->seq.table.n_blocks = 1)
SPOIL(spoil_many_tokens, a->seq.table.n_tokens = KVATTN_TOKENS_MAX + 1)
SPOIL(spoil_position, a->pos[1] = KVATTN_TOKENS_MAX; a->seq.table.block_pos = a->pos)

static void arguments_out_of_range_are_refused(void **state)
{
	static const struct {
		const char *what;
		spoil_fn spoil;
		int result;
	} cases[] = {
#define CASE(name, result) {#name, spoil_##name, result}
		CASE(nothing, 0),
		CASE(positions, 0),
		CASE(no_rows, 0),
		CASE(geom_size, -EINVAL),
		CASE(layout, -EINVAL),
		CASE(layout_zero, -EINVAL),
		CASE(tiled_i8, -EINVAL),
		CASE(type_i8, -ENOTSUP),
		CASE(type_i4, -ENOTSUP),
		CASE(type_unknown, -ENOTSUP),
		CASE(dim, -EINVAL),
		CASE(dim_wide, -EINVAL),
		CASE(no_heads, -EINVAL),
		CASE(block_tokens, -EINVAL),
		CASE(odd_stride, -EINVAL),
		CASE(odd_offset, -EINVAL),
		CASE(wrapping_stride, -EINVAL),
		CASE(wrapping_offset, -EINVAL),
		CASE(opts_size, -EINVAL),
		CASE(opts_flags, -EINVAL),
		CASE(no_q_heads, -EINVAL),
		CASE(q_heads, -EINVAL),
		CASE(scale, -EINVAL),
		CASE(softcap_negative, -EINVAL),
		CASE(softcap_nan, -EINVAL),
		CASE(softcap_infinite, -EINVAL),
		CASE(sink_nan, -EINVAL),
		CASE(sink_infinite, -EINVAL),
		CASE(slope, -EINVAL),
		CASE(no_q, -EINVAL),
		CASE(no_out, -EINVAL),
		CASE(q_stride, -EINVAL),
		CASE(out_stride, -EINVAL),
		CASE(q_end, -EINVAL),
		CASE(causal, -EINVAL),
		CASE(reserved, -EINVAL),
		CASE(reserved0, -EINVAL),
		CASE(own_scale, -EINVAL),
		CASE(no_blocks, -EINVAL),
		CASE(null_block, -EINVAL),
		CASE(few_blocks, -EINVAL),
		CASE(many_tokens, -EINVAL),
		CASE(position, -EINVAL),
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct asked a;
		int r;

		asked_open(&a);
		cases[i].spoil(&a);
		r = kvattn_attend(&a.geom, &a.seq, 1, &a.opts);
		if (r != cases[i].result)
			fail_msg("%s: %d, right is %d", cases[i].what, r, cases[i].result);
		kv_close(&a.kv);
	}
}

static void a_bad_sequence_spoils_no_other_call(void **state)
{
	struct kvattn_seq seqs[2];
	struct asked a;

	(void)state;
	asked_open(&a);
	seqs[0] = seqs[1] = a.seq;
	seqs[1].causal = 3;
	assert_int_equal(kvattn_attend(&a.geom, seqs, 2, &a.opts), -EINVAL);
	assert_int_equal(kvattn_attend(&a.geom, NULL, 1, &a.opts), -EINVAL);
	assert_int_equal(kvattn_attend(&a.geom, NULL, 0, &a.opts), 0);
	assert_int_equal(kvattn_attend(NULL, seqs, 1, &a.opts), -EINVAL);
	assert_int_equal(kvattn_attend(&a.geom, seqs, 1, NULL), -EINVAL);
	assert_int_equal(kvattn_attend(&a.geom, seqs, 1, &a.opts), 0);
	kv_close(&a.kv);
}

static void rows_that_do_not_fit_a_block_are_refused(void **state)
{
	struct asked a;
	float row[32] = {0};

	(void)state;
	asked_open(&a);
	assert_int_equal(kvattn_put(&a.geom, a.kv.memory, 15, 1, row, 0, row, 0), 0);
	assert_int_equal(kvattn_put(&a.geom, a.kv.memory, 16, 1, row, 0, row, 0), -EINVAL);
	assert_int_equal(kvattn_put(&a.geom, a.kv.memory, 15, UINT32_MAX, row, 0, row, 0), -EINVAL);
	assert_int_equal(kvattn_put(&a.geom, NULL, 0, 1, row, 0, row, 0), -EINVAL);
	assert_int_equal(kvattn_put(&a.geom, a.kv.memory, 0, 1, row, 31, row, 0), -EINVAL);
	assert_int_equal(kvattn_put(&a.geom, a.kv.memory, 16, 0, row, 0, row, 0), 0);
	assert_int_equal(kvattn_get(&a.geom, a.kv.memory, 16, 1, row, 0, row, 0), -EINVAL);
	assert_int_equal(kvattn_get(&a.geom, a.kv.memory, 0, 1, row, 0, row, 31), -EINVAL);
	a.geom.type_v = KVATTN_I8;
	assert_int_equal(kvattn_put(&a.geom, a.kv.memory, 0, 1, row, 0, row, 0), -ENOTSUP);
	kv_close(&a.kv);
}

static void merge_refuses_what_it_cannot_read(void **state)
{
	float out[4] = {0}, lse[1] = {0};
	struct kvattn_part part = {out, lse};

	(void)state;
	assert_int_equal(kvattn_merge(&part, 1, 1, 0, out, lse), -EINVAL);
	assert_int_equal(kvattn_merge(&part, 1, 1, KVATTN_DIM_MAX + 1, out, lse), -EINVAL);
	assert_int_equal(kvattn_merge(&part, 1, 1, 4, NULL, lse), -EINVAL);
	assert_int_equal(kvattn_merge(NULL, 1, 1, 4, out, lse), -EINVAL);
	part.lse = NULL;
	assert_int_equal(kvattn_merge(&part, 1, 1, 4, out, lse), -EINVAL);
	assert_int_equal(kvattn_merge(&part, 1, 0, 4, NULL, NULL), 0);
}

/* ---- Instruction sets ---- */

/* What a fresh process with KVATTN_ISA=@value computes with; this program prints it when asked so. */
static void isa_asked(const char *value, char *name, size_t size)
{
	char command[256];
	FILE *pipe;

	snprintf(command, sizeof(command), "ATTN_SAY_ISA=1 KVATTN_ISA=%s exec /proc/%d/exe", value, (int)getpid());
	pipe = popen(command, "r");
	assert_non_null(pipe);
	assert_non_null(fgets(name, (int)size, pipe));
	name[strcspn(name, "\n")] = '\0';
	assert_int_equal(pclose(pipe), 0);
}

static int isa_rank(const char *name)
{
	static const char *const names[] = {"scalar", "avx2", "avx512", "avx512vnni", "avx512amx"};

	for (int i = 0; i < (int)COUNT(names); i++)
		if (strcmp(name, names[i]) == 0)
			return i;
	return -1;
}

static void the_environment_only_takes_instructions_away(void **state)
{
	char best[32], got[32];

	(void)state;
#if !defined(__x86_64__)
	print_message("these are names of x86's instruction sets\n");
	skip();
#endif
	isa_asked("nonsense", best, sizeof(best));
	assert_true(isa_rank(best) >= 0);
	isa_asked("avx512amx", got, sizeof(got));
	assert_string_equal(got, best);
	isa_asked("avx512vnni", got, sizeof(got));
	assert_true(isa_rank(got) == (isa_rank(best) < 3 ? isa_rank(best) : 3));
	isa_asked("avx512", got, sizeof(got));
	assert_true(isa_rank(got) == (isa_rank(best) < 2 ? isa_rank(best) : 2));
	isa_asked("avx2", got, sizeof(got));
	assert_true(isa_rank(got) == (isa_rank(best) < 1 ? 0 : 1));
	isa_asked("scalar", got, sizeof(got));
	assert_string_equal(got, "scalar");
	assert_int_equal(kvattn_version() >> 16, KVATTN_VERSION_MAJOR);
}

/* B75: bits of CPUID beside bits of what the system saves; tests/system/test_emulated.sh has it where they cannot be
   run */
static void a_level_needs_its_instructions_and_its_registers_saved(void **state)
{
	static const struct cpu_says all = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
	static const struct {
		const char *lacks;
		struct cpu_says without; /* these bits */
		enum cpu_level best;
	} cases[] = {
		{"nothing", {0}, CPU_AVX512AMX},
		{"all", {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}, CPU_SCALAR},
		{"SSE4.2 and AES, which nobody asks for", {.leaf1_ecx = 1u << 20 | 1u << 25}, CPU_AVX512AMX},
		{"FMA", {.leaf1_ecx = 1u << 12}, CPU_SCALAR},
		{"OSXSAVE", {.leaf1_ecx = 1u << 27}, CPU_SCALAR},
		{"AVX", {.leaf1_ecx = 1u << 28}, CPU_SCALAR},
		{"F16C", {.leaf1_ecx = 1u << 29}, CPU_SCALAR},
		{"AVX2", {.leaf7_ebx = 1u << 5}, CPU_SCALAR},
		{"AVX512F", {.leaf7_ebx = 1u << 16}, CPU_AVX2},
		{"AVX512DQ", {.leaf7_ebx = 1u << 17}, CPU_AVX2},
		{"AVX512BW", {.leaf7_ebx = 1u << 30}, CPU_AVX2},
		{"AVX512VL", {.leaf7_ebx = 1u << 31}, CPU_AVX2},
		{"AVX512VBMI", {.leaf7_ecx = 1u << 1}, CPU_AVX512},
		{"AVX512VNNI", {.leaf7_ecx = 1u << 11}, CPU_AVX512},
		{"AMX-BF16", {.leaf7_edx = 1u << 22}, CPU_AVX512VNNI},
		{"AMX-TILE", {.leaf7_edx = 1u << 24}, CPU_AVX512VNNI},
		{"saved XMM", {.xcr0 = 1u << 1}, CPU_SCALAR},
		{"saved YMM", {.xcr0 = 1u << 2}, CPU_SCALAR},
		{"saved masks", {.xcr0 = 1u << 5}, CPU_AVX2},
		{"saved upper halves of ZMM 0 to 15", {.xcr0 = 1u << 6}, CPU_AVX2},
		{"saved ZMM 16 to 31", {.xcr0 = 1u << 7}, CPU_AVX2},
		{"saved shapes of tiles", {.xcr0 = 1u << 17}, CPU_AVX512VNNI},
		{"saved tiles", {.xcr0 = 1u << 18}, CPU_AVX512VNNI},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct cpu_says *no = &cases[i].without;
		const struct cpu_says says = {all.leaf1_ecx & ~no->leaf1_ecx, all.leaf7_ebx & ~no->leaf7_ebx,
			all.leaf7_ecx & ~no->leaf7_ecx, all.leaf7_edx & ~no->leaf7_edx, all.xcr0 & ~no->xcr0};

		if (cpu_level_of(&says) != cases[i].best)
			fail_msg("without %s: level %d", cases[i].lacks, (int)cpu_level_of(&says));
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(offsets_follow_from_the_shape),
		cmocka_unit_test(elements_of_a_tile_lie_where_the_header_says),
		cmocka_unit_test(bf16_lies_in_pairs),
		cmocka_unit_test(impossible_shapes_are_refused),
		cmocka_unit_test(numbers_are_rounded_to_nearest_even),
		cmocka_unit_test(every_half_comes_back_as_itself),
		cmocka_unit_test(fp8_is_rounded_to_nearest_even_and_saturates),
		cmocka_unit_test(int4_keys_come_in_tiles),
		cmocka_unit_test(values_may_be_the_first_dims_of_keys),
		cmocka_unit_test(tiles_are_shared_by_values_that_are_keys_and_no_others),
		cmocka_unit_test(put_writes_its_rows_and_nothing_else),
		cmocka_unit_test(arguments_out_of_range_are_refused),
		cmocka_unit_test(a_bad_sequence_spoils_no_other_call),
		cmocka_unit_test(rows_that_do_not_fit_a_block_are_refused),
		cmocka_unit_test(merge_refuses_what_it_cannot_read),
		cmocka_unit_test(the_environment_only_takes_instructions_away),
		cmocka_unit_test(a_level_needs_its_instructions_and_its_registers_saved),
	};
	int r;

	(void)argc;
	if (getenv("ATTN_SAY_ISA"))
		return puts(kvattn_isa_name()) < 0;
	r = levels_run(argv);
	return r >= 0 ? r : cmocka_run_group_tests_name(kvattn_isa_name(), tests, NULL, NULL);
}
