/*
 * attn_avx512.c - attention with AVX-512 (F, BW, DQ, VL; VNNI with VBMI; AMX): sixteen lanes, thirty-two registers
 *
 * Entered only through dispatch.c, on processors and systems that have all of it.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define LANES 16u
#define KEY_ROWS 4 /* with four keys: 16 sums, 4 keys, a query */
#define KEY_VECS 4 /* TILED: vectors of keys at a time */
#define VALUE_ROWS 4
#define VALUE_VECS 4 /* 16 sums, 4 values, a weight */
#define TILED_BYTES /* and pairs, see the end */
#define VEC TARGET static inline __attribute__((always_inline))

typedef __m512 vec;

#include "attn_lanes.h"

/* By hand: where it is short of registers gcc 12 puts a mask's two bytes into memory and reads eight (seen at -O1 with
 * sanitizers). */
VEC uint32_t mask_bits(__mmask16 mask)
{
	uint32_t bits;

	__asm__("kmovw %1, %0" : "=r"(bits) : "k"(mask));
	return bits;
}

VEC vec vec_set1(float f)
{
	return _mm512_set1_ps(f);
}

VEC vec vec_load_f16(const uint16_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

VEC vec vec_load_bf16(const uint16_t *p)
{
	const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));

	return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* The low or the high ones of sixteen pairs. */
VEC vec vec_load_bf16_of(const uint16_t *pairs, bool high)
{
	const __m512i both = _mm512_loadu_si512(pairs);

	return _mm512_castsi512_ps(
		high ? _mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000)) : _mm512_slli_epi32(both, 16));
}

VEC vec vec_load_i8(const int8_t *p)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

/* Four bits, unsigned: @up bits from below in each word. */
VEC vec vec_load_u4(const uint8_t *p, uint32_t up)
{
	const __m512i words = _mm512_srl_epi32(_mm512_loadu_si512(p), _mm_cvtsi32_si128((int)up));

	return _mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(15)));
}

/* Shifted into binary16 an E4M3 is 2^8 too small, subnormals too; NaN comes out as 480. */
VEC vec vec_load_e4m3(const uint8_t *p)
{
	const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
	const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80));
	const vec value = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256));

	return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(_mm512_abs_ps(value), _mm512_set1_ps(480), _CMP_EQ_OQ),
		_mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
}

/* Rounds to nearest even. */
VEC void vec_store_f16(uint16_t *p, vec v)
{
	_mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* a * b + c, rounded once */
VEC vec vec_fma(vec a, vec b, vec c)
{
	return _mm512_fmadd_ps(a, b, c);
}

/* Both give @b where either is NaN. */
VEC vec vec_max(vec a, vec b)
{
	return _mm512_max_ps(a, b);
}

VEC vec vec_min(vec a, vec b)
{
	return _mm512_min_ps(a, b);
}

VEC vec vec_abs(vec a)
{
	return _mm512_abs_ps(a);
}

/* @magnitude, which is not negative, with the sign of @sign */
VEC vec vec_copysign(vec magnitude, vec sign)
{
	return _mm512_or_ps(magnitude, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}

/* The nearest number of sixteen significant bits. */
VEC vec vec_short(vec a)
{
	const __m512i up = _mm512_add_epi32(_mm512_castps_si512(a), _mm512_set1_epi32(0x80));

	return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int)0xffffff00)));
}

VEC vec vec_round(vec a)
{
	return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a * 2^n, n whole, -126 .. 127 */
VEC vec vec_scale2(vec a, vec n)
{
	return _mm512_scalef_ps(a, n);
}

/* 0 where x < limit, else a */
VEC vec vec_zero_below(vec a, vec x, vec limit)
{
	return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), a);
}

/* x < limit ? below : above */
VEC vec vec_choose_below(vec x, vec limit, vec below, vec above)
{
	return _mm512_mask_mov_ps(above, _mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), below);
}

/* a where the lane's bit is set, else other */
VEC vec vec_keep(vec a, uint64_t bits, vec other)
{
	return _mm512_mask_mov_ps(other, (__mmask16)bits, a);
}

/* a bit for each lane that differs; NaN differs from everything */
VEC uint64_t vec_differ(vec a, vec b)
{
	return mask_bits(_mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ));
}

VEC float vec_top(vec a)
{
	return _mm512_reduce_max_ps(a);
}

VEC float vec_total(vec a)
{
	return _mm512_reduce_add_ps(a);
}

/* Four vectors to the sums of their lanes: within 128 bits first, then over the quarters. */
VEC void vec_store_sums(float *p, vec a, vec b, vec c, vec d)
{
	const vec ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
	const vec cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
	const vec abcd = _mm512_add_ps(
		_mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)), _mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
	const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));

	_mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

/* The lanes in the order of vec_store_sums(): first with second, those two with the next two, and on by doubling. */
static const uint8_t sum_lanes[LANES] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};

#include "attn_vec.h"
#include "attn_tmpl.h"
#include "attn_tiled.h"

TILED_ISA(avx512, TILED_VECTORS);
TILED_ISA(avx512vnni, TILED_CODES); /* and VBMI: products of bytes for I8 and I4 */
TILED_ISA(avx512amx, TILED_PAIRS); /* and AMX: products of tiles for BF16 */

#endif
