/*
 * attn_vec.h - rows of numbers to and from f32, for one instruction set with vectors; included before attn_tmpl.h
 *
 * Same bits as half.h (NaN of fp8: as NaN), which also does what is left over of a vector's length.
 */
#include <string.h>

#include <kvattn.h>

#include "half.h"

TARGET static void tmpl_store(uint32_t type, void *to, const float *from, size_t n)
{
	uint16_t *half = to;
	size_t i = 0;

	if (type == KVATTN_F32) {
		memcpy(to, from, n * sizeof(float));
		return;
	}
	if (type == KVATTN_F16) {
		for (; i + LANES <= n; i += LANES)
			vec_store_f16(half + i, vec_load(from + i));
		for (; i < n; i++)
			half[i] = half_f16_from(from[i]);
		return;
	}
	if (type == KVATTN_FP8_E4M3) {
		for (; i < n; i++)
			((uint8_t *)to)[i] = half_e4m3_from(from[i]);
		return;
	}
	for (; i < n; i++)
		half[i] = half_bf16_from(from[i]);
}

TARGET static void tmpl_load(uint32_t type, float *to, const void *from, size_t n)
{
	const uint16_t *half = from;
	size_t i = 0;

	if (type == KVATTN_F32) {
		memcpy(to, from, n * sizeof(float));
		return;
	}
	if (type == KVATTN_F16) {
		for (; i + LANES <= n; i += LANES)
			vec_store(to + i, vec_load_f16(half + i));
		for (; i < n; i++)
			to[i] = half_f16_to(half[i]);
		return;
	}
	if (type == KVATTN_FP8_E4M3) {
		for (; i + LANES <= n; i += LANES)
			vec_store(to + i, vec_load_e4m3((const uint8_t *)from + i));
		for (; i < n; i++)
			to[i] = half_e4m3_to(((const uint8_t *)from)[i]);
		return;
	}
	for (; i + LANES <= n; i += LANES)
		vec_store(to + i, vec_load_bf16(half + i));
	for (; i < n; i++)
		to[i] = half_bf16_to(half[i]);
}
