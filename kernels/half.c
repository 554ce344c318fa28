/* half.c - f16 and bf16 in plain C, for machines without F16C and for the reference */
#include <string.h>

#include "kernel.h"

static float float_of(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}
static uint32_t bits_of(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

float half_to_float(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;

	if (exponent == 31)
		return float_of(sign | 0x7f800000 | mantissa << 13);
	if (exponent)
		return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
	/* subnormal: mantissa * 2^-24, exact in f32 */
	return float_of(sign | bits_of((float)mantissa * 0x1p-24f));
}

uint16_t half_from_float(float f)
{
	uint32_t bits = bits_of(f), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;

	if (rest > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (rest >= 0x477ff000) /* 65520 and above round to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (rest < 0x38800000) { /* below 2^-14: the f32 adder rounds to the grid of 2^-24 */
		float grid = float_of(rest) + 0x1p-1f;

		return (uint16_t)(sign | (bits_of(grid) - bits_of(0x1p-1f)));
	}
	rest += 0xfff + (rest >> 13 & 1);
	return (uint16_t)(sign | ((rest >> 13) - (112u << 10)));
}

float bf16_to_float(uint16_t b)
{
	return float_of((uint32_t)b << 16);
}

uint16_t bf16_from_float(float f)
{
	uint32_t bits = bits_of(f);

	if ((bits & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
