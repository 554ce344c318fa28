/*
 * kvattn_tile.h - the types of stored elements and the length of a tile of KVATTN_TILED
 *
 * Inside kvpool only, no code but arithmetic: the kernels read and write tiles by it, daemon and library lay out blocks
 * by it (kvpool_desc.h).  What is in a tile: kvattn.h and kernels/tiled.h.
 */
#ifndef KVATTN_TILE_H
#define KVATTN_TILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvattn.h"

#define TILED_TOKENS 16u
#define TILED_CHUNK 64u /* dims of V that are accumulated at a time */
#define TILED_PAD 16u
#define TILED_ALIGN 64u /* of K and V in a tile of a canonical block */

/** tiled_up() - @n rounded up to a multiple of @step */
static inline uint64_t tiled_up(uint64_t n, uint64_t step)
{
	return (n + step - 1) / step * step;
}

/** tiled_elem_bytes() - of an element of @type, in rows as in tiles, without its scale; 0: less than one, or no type */
static inline uint32_t tiled_elem_bytes(uint32_t type)
{
	switch (type) {
	case KVATTN_F32:
		return 4;
	case KVATTN_F16:
	case KVATTN_BF16:
		return 2;
	case KVATTN_I8:
	case KVATTN_FP8_E4M3:
		return 1;
	default:
		return 0;
	}
}

/** tiled_tokens() - of a tile in blocks of @block_tokens */
static inline uint32_t tiled_tokens(uint32_t block_tokens)
{
	return block_tokens < TILED_TOKENS ? block_tokens : TILED_TOKENS;
}

/** tiled_scaled() - whether @type keeps a scale for each token */
static inline bool tiled_scaled(uint32_t type)
{
	return type == KVATTN_I8;
}

/** tiled_only() - whether @type is served in this layout alone */
static inline bool tiled_only(uint32_t type)
{
	return type == KVATTN_I8 || type == KVATTN_I4;
}

/**
 * tiled_paired() - whether elements of @type lie in pairs, as products of bf16 take them: two dims of K, two tokens of
 * V
 */
static inline bool tiled_paired(uint32_t type)
{
	return type == KVATTN_BF16;
}

/** tiled_v_tokens() - of a tile of @tokens with V of @type: whole pairs, but in tiles of one token */
static inline uint32_t tiled_v_tokens(uint32_t type, uint32_t tokens)
{
	return tiled_paired(type) && tokens > 1 ? (uint32_t)tiled_up(tokens, 2) : tokens;
}

#define TILED_CODES_WORD 8u /* codes of I4 in a word of four bytes: eight dims of K, eight tokens of V */

/** tiled_scale_off() - bytes of a tile's elements, behind which the scales lie; @values: of V, else of K */
static inline size_t tiled_scale_off(uint32_t type, uint32_t dim, uint32_t tokens, bool values)
{
	const size_t padded = values ? tiled_up(dim, TILED_PAD) : tiled_paired(type) ? tiled_up(dim, 2) : dim;

	if (type == KVATTN_I4)
		return values ? tiled_up(tokens, TILED_CODES_WORD) / 2 * padded
			      : tiled_up(padded, TILED_CODES_WORD) / 2 * tokens;
	if (values)
		tokens = tiled_v_tokens(type, tokens);
	return tiled_up(padded * tokens * tiled_elem_bytes(type), sizeof(float));
}

/** tiled_i4_steps() - f16 steps of an I4 tile; as many least values follow.  K: by dim; V: [chunk][16] by token */
static inline size_t tiled_i4_steps(uint32_t dim, bool values)
{
	return values ? (dim + TILED_CHUNK - 1) / TILED_CHUNK * TILED_TOKENS : tiled_up(dim, TILED_PAD);
}

/** tiled_bytes() - of a tile's K or V */
static inline size_t tiled_bytes(uint32_t type, uint32_t dim, uint32_t tokens, bool values)
{
	const size_t scales = tiled_scaled(type)  ? tokens * sizeof(float)
			      : type == KVATTN_I4 ? 2 * tiled_i4_steps(dim, values) * sizeof(uint16_t)
						  : 0;

	return tiled_scale_off(type, dim, tokens, values) + scales;
}

#endif
