/*
 * attn_avx2.c - attention with AVX2, FMA and F16C: eight lanes, sixteen registers
 *
 * Entered only through dispatch.c, on processors and systems that have all of it.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define LANES 8u
#define KEY_ROWS 2 /* with four keys: 8 sums, 4 keys, a query */
#define KEY_VECS 4 /* TILED: vectors of keys at a time */
#define VALUE_ROWS 4
#define VALUE_VECS 2 /* 8 sums, 2 values, a weight */
#define VEC TARGET static inline __attribute__((always_inline))

typedef __m256 vec;

#include "attn_lanes.h"

VEC vec vec_set1(float f)
{
	return _mm256_set1_ps(f);
}

VEC vec vec_load_f16(const uint16_t *p)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

VEC vec vec_load_bf16(const uint16_t *p)
{
	const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));

	return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* The low or the high ones of eight pairs. */
VEC vec vec_load_bf16_of(const uint16_t *pairs, bool high)
{
	const __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)pairs);

	return _mm256_castsi256_ps(
		high ? _mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000)) : _mm256_slli_epi32(both, 16));
}

VEC vec vec_load_i8(const int8_t *p)
{
	return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* Four bits, unsigned: @up bits from below in each word. */
VEC vec vec_load_u4(const uint8_t *p, uint32_t up)
{
	const __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)p);

	return _mm256_cvtepi32_ps(
		_mm256_and_si256(_mm256_srl_epi32(words, _mm_cvtsi32_si128((int)up)), _mm256_set1_epi32(15)));
}

/* Shifted into binary16 an E4M3 is 2^8 too small, subnormals too; NaN comes out as 480. */
VEC vec vec_load_e4m3(const uint8_t *p)
{
	const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
	const __m128i half = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xbf80));
	const vec value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
	const vec size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), value);

	return _mm256_or_ps(value, _mm256_and_ps(_mm256_cmp_ps(size, _mm256_set1_ps(480), _CMP_EQ_OQ),
					   _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000))));
}

/* Rounds to nearest even. */
VEC void vec_store_f16(uint16_t *p, vec v)
{
	_mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* a * b + c, rounded once */
VEC vec vec_fma(vec a, vec b, vec c)
{
	return _mm256_fmadd_ps(a, b, c);
}

/* Both give @b where either is NaN. */
VEC vec vec_max(vec a, vec b)
{
	return _mm256_max_ps(a, b);
}

VEC vec vec_min(vec a, vec b)
{
	return _mm256_min_ps(a, b);
}

VEC vec vec_abs(vec a)
{
	return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

/* @magnitude, which is not negative, with the sign of @sign */
VEC vec vec_copysign(vec magnitude, vec sign)
{
	return _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}

/* The nearest number of sixteen significant bits. */
VEC vec vec_short(vec a)
{
	const __m256i up = _mm256_add_epi32(_mm256_castps_si256(a), _mm256_set1_epi32(0x80));

	return _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32((int)0xffffff00)));
}

VEC vec vec_round(vec a)
{
	return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a * 2^n, n whole, -126 .. 127 */
VEC vec vec_scale2(vec a, vec n)
{
	const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));

	return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

/* 0 where x < limit, else a */
VEC vec vec_zero_below(vec a, vec x, vec limit)
{
	return _mm256_and_ps(a, _mm256_cmp_ps(x, limit, _CMP_NLT_UQ));
}

/* x < limit ? below : above */
VEC vec vec_choose_below(vec x, vec limit, vec below, vec above)
{
	return _mm256_blendv_ps(above, below, _mm256_cmp_ps(x, limit, _CMP_LT_OQ));
}

/* a where the lane's bit is set, else other */
VEC vec vec_keep(vec a, uint64_t bits, vec other)
{
	const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
	const __m256i set = _mm256_and_si256(_mm256_set1_epi32((int)(bits & 0xff)), lane);

	return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane)));
}

/* a bit for each lane that differs; NaN differs from everything */
VEC uint64_t vec_differ(vec a, vec b)
{
	return (uint64_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ));
}

VEC float vec_top(vec a)
{
	__m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

	x = _mm_max_ps(x, _mm_movehl_ps(x, x));
	return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

VEC float vec_total(vec a)
{
	__m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

	x = _mm_add_ps(x, _mm_movehl_ps(x, x));
	return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

/* Four vectors to the sums of their lanes: within 128 bits first, then over the halves. */
VEC void vec_store_sums(float *p, vec a, vec b, vec c, vec d)
{
	const vec ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
	const vec cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
	const vec abcd = _mm256_add_ps(
		_mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)), _mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));

	_mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
}

/* The lanes in the order of vec_store_sums(): first with second, those two with the next two, and on by doubling. */
static const uint8_t sum_lanes[LANES] = {0, 2, 1, 3, 4, 6, 5, 7};

#include "attn_vec.h"
#include "attn_tmpl.h"
#include "attn_tiled.h"

TILED_ISA(avx2, TILED_VECTORS);

#endif
