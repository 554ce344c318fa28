/*
 * attn_neon.c - attention with Advanced SIMD: four lanes, thirty-two registers
 *
 * Every processor of the 64-bit ARM architecture has it.  Built and tested under an emulator (make check-arm): its results
 * are those of the others, its speed was never measured.  SVE would be another file like this one.
 */
#if defined(__aarch64__)
#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TARGET
#define LANES 4u
#define KEY_ROWS 4 /* with four keys: 16 sums, 4 keys, a query */
#define KEY_VECS 4 /* TILED: vectors of keys at a time */
#define VALUE_ROWS 4
#define VALUE_VECS 4 /* 16 sums, 4 values, a weight */
#define VEC static inline __attribute__((always_inline))

typedef float32x4_t vec;

#include "attn_lanes.h"

VEC vec vec_set1(float f)
{
	return vdupq_n_f32(f);
}

VEC vec vec_load_f16(const uint16_t *p)
{
	return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

VEC vec vec_load_bf16(const uint16_t *p)
{
	return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

/* The low or the high ones of four pairs. */
VEC vec vec_load_bf16_of(const uint16_t *pairs, bool high)
{
	const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(pairs));

	return vreinterpretq_f32_u32(high ? vandq_u32(both, vdupq_n_u32(0xffff0000)) : vshlq_n_u32(both, 16));
}

/* Four bytes, of no alignment. */
VEC int8x8_t vec_bytes(const void *p)
{
	int32_t word;

	memcpy(&word, p, sizeof(word));
	return vreinterpret_s8_s32(vdup_n_s32(word));
}

VEC vec vec_load_i8(const int8_t *p)
{
	return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vec_bytes(p)))));
}

/* Four bits, unsigned: @up bits from below in each word. */
VEC vec vec_load_u4(const uint8_t *p, uint32_t up)
{
	const uint32x4_t words = vreinterpretq_u32_u8(vld1q_u8(p));

	return vcvtq_f32_u32(vandq_u32(vshlq_u32(words, vdupq_n_s32(-(int)up)), vdupq_n_u32(15)));
}

/* Shifted into binary16 an E4M3 is 2^8 too small, subnormals too; NaN comes out as 480. */
VEC vec vec_load_e4m3(const uint8_t *p)
{
	const int16x4_t wide = vget_low_s16(vmovl_s8(vec_bytes(p)));
	const uint16x4_t half = vand_u16(vreinterpret_u16_s16(vshl_n_s16(wide, 7)), vdup_n_u16(0xbf80));
	const vec value = vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(half)), 256);
	const uint32x4_t nan = vandq_u32(vceqq_f32(vabsq_f32(value), vdupq_n_f32(480)), vdupq_n_u32(0x7fc00000));

	return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(value), nan));
}

/* Rounds to nearest even. */
VEC void vec_store_f16(uint16_t *p, vec v)
{
	vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
}

/* a * b + c, rounded once */
VEC vec vec_fma(vec a, vec b, vec c)
{
	return vfmaq_f32(c, a, b);
}

/* Both give NaN where either is. */
VEC vec vec_max(vec a, vec b)
{
	return vmaxq_f32(a, b);
}

VEC vec vec_min(vec a, vec b)
{
	return vminq_f32(a, b);
}

VEC vec vec_abs(vec a)
{
	return vabsq_f32(a);
}

/* @magnitude, which is not negative, with the sign of @sign */
VEC vec vec_copysign(vec magnitude, vec sign)
{
	return vbslq_f32(vdupq_n_u32(0x80000000), sign, magnitude);
}

/* The nearest number of sixteen significant bits. */
VEC vec vec_short(vec a)
{
	const uint32x4_t up = vaddq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(0x80));

	return vreinterpretq_f32_u32(vandq_u32(up, vdupq_n_u32(0xffffff00)));
}

VEC vec vec_round(vec a)
{
	return vrndnq_f32(a);
}

/* a * 2^n, n whole, -126 .. 127 */
VEC vec vec_scale2(vec a, vec n)
{
	const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));

	return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}

/* 0 where x < limit, else a */
VEC vec vec_zero_below(vec a, vec x, vec limit)
{
	return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(a), vcltq_f32(x, limit)));
}

/* x < limit ? below : above */
VEC vec vec_choose_below(vec x, vec limit, vec below, vec above)
{
	return vbslq_f32(vcltq_f32(x, limit), below, above);
}

/* A bit for each lane. */
VEC uint32x4_t vec_lane_bits(void)
{
	static const uint32_t bits[LANES] = {1, 2, 4, 8};

	return vld1q_u32(bits);
}

/* a where the lane's bit is set, else other */
VEC vec vec_keep(vec a, uint64_t bits, vec other)
{
	return vbslq_f32(vtstq_u32(vdupq_n_u32((uint32_t)bits), vec_lane_bits()), a, other);
}

/* a bit for each lane that differs; NaN differs from everything */
VEC uint64_t vec_differ(vec a, vec b)
{
	return vaddvq_u32(vbicq_u32(vec_lane_bits(), vceqq_f32(a, b)));
}

VEC float vec_top(vec a)
{
	return vmaxvq_f32(a);
}

VEC float vec_total(vec a)
{
	return vaddvq_f32(a);
}

/* Four vectors to the sums of their lanes. */
VEC void vec_store_sums(float *p, vec a, vec b, vec c, vec d)
{
	vst1q_f32(p, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

/* The lanes in the order of vec_store_sums(): first with second, those two with the next two, and on by doubling. */
static const uint8_t sum_lanes[LANES] = {0, 1, 2, 3};

#include "attn_vec.h"
#include "attn_tmpl.h"
#include "attn_tiled.h"

TILED_ISA(neon, TILED_VECTORS);

#endif
