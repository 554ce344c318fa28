/*
 * half.h - binary16, bfloat16 and FP8 (E4M3) in plain C, for machines without F16C; the truth for those with it
 *
 * Rounding is to nearest even.  A NaN keeps its sign and the leading bits of its payload and becomes quiet, as
 * VCVTPS2PH does it.
 */
#ifndef KVATTN_HALF_H
#define KVATTN_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t half_bits(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static inline float half_float(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* @bits without its lowest @n bits, rounded to nearest even; a carry into the exponent is right as it is */
static inline uint32_t half_round(uint32_t bits, uint32_t n)
{
	return (bits + (1u << (n - 1)) - 1 + ((bits >> n) & 1)) >> n;
}

static inline uint16_t half_f16_from(float f)
{
	const uint32_t bits = half_bits(f), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;

	if (magnitude > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
	if (magnitude >=
		0x47800000) /* 2^16 and more; what is below and rounds up to it carries to infinity by itself */
		return (uint16_t)(sign | 0x7c00);
	if (magnitude >= 0x38800000) /* 2^-14: normal; the exponent's bias goes from 127 to 15 */
		return (uint16_t)(sign | half_round(magnitude - (112u << 23), 13));
	/* Subnormal: in a float of 0.5's exponent the last bit weighs 2^-24, f16's smallest step, so the addition
	 * rounds. */
	return (uint16_t)(sign | (half_bits(half_float(magnitude) + 0.5f) - half_bits(0.5f)));
}

static inline float half_f16_to(uint16_t h)
{
	const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 0x1f, mantissa = h & 0x3ff;

	if (exponent == 0) { /* subnormal: mantissa * 2^-24, exact */
		const float f = (float)mantissa * 0x1p-24f;

		return half_float(sign | half_bits(f));
	}
	if (exponent == 31)
		return half_float(sign | 0x7f800000 | (mantissa ? 0x400000 : 0) | mantissa << 13);
	return half_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t half_bf16_from(float f)
{
	const uint32_t bits = half_bits(f);

	if ((bits & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)half_round(bits, 16);
}

static inline float half_bf16_to(uint16_t b)
{
	return half_float((uint32_t)b << 16);
}

/* E4M3 of the OCP: bias 7, no infinities, largest value 448, all ones is NaN.  What is finite and too large becomes the
 * largest value; an infinity NaN. */
static inline uint8_t half_e4m3_from(float f)
{
	const uint32_t bits = half_bits(f), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;

	if (magnitude >= 0x7f800000)
		return (uint8_t)(sign | 0x7f);
	if (magnitude >= 0x43e00000) /* 448 */
		return (uint8_t)(sign | 0x7e);
	if (magnitude >= 0x3c800000) { /* 2^-6: normal; the exponent's bias goes from 127 to 7 */
		const uint32_t rounded = half_round(magnitude - (120u << 23), 20);

		return (uint8_t)(sign | (rounded > 0x7e ? 0x7e : rounded));
	}
	/* subnormal: in a float of 2^14's exponent the last bit weighs 2^-9, the smallest step */
	return (uint8_t)(sign | (half_bits(half_float(magnitude) + 0x1p14f) - half_bits(0x1p14f)));
}

static inline float half_e4m3_to(uint8_t b)
{
	const uint32_t sign = (uint32_t)(b & 0x80) << 24, exponent = b >> 3 & 0xf, mantissa = b & 7;

	if ((b & 0x7f) == 0x7f)
		return half_float(sign | 0x7fc00000);
	if (exponent == 0)
		return half_float(sign | half_bits((float)mantissa * 0x1p-9f));
	return half_float(sign | (exponent + 120) << 23 | mantissa << 20);
}

#endif
