/*
 * tiled.h - where elements lie in a tile of KVATTN_TILED: K of one head by dimension, V by token
 *
 * A tile holds TILED_TOKENS tokens of one head, or a whole block's where blocks are shorter.  K is [dim][token], so
 * that a vector holds one dimension of sixteen keys and no dot product needs an add across lanes.  V is
 * [chunk of 64 dims][token][dim in the chunk], its dims rounded up to TILED_PAD, so that a pass over values reads
 * straight on.  I8 keeps a scale for each token behind the elements, as f32.  I4 is value = least + step * code, code
 * 0 .. 15, step and least f16 behind the codes: K's for each dim of a tile (real K has channels that stand out), V's for
 * each token and chunk of 64 dims.
 */
#ifndef KVATTN_TILED_H
#define KVATTN_TILED_H

#include <kvattn.h>

#include "attn.h"

#define TILED_TOKENS 16u
#define TILED_CHUNK 64u /* dims of V that are accumulated at a time */
#define TILED_PAD 16u
#define TILED_ALIGN 64u /* of K and V in a tile of a canonical block */

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

/** tiled_k_at() - index of an element of K in a tile of @tokens */
static inline size_t tiled_k_at(uint32_t tokens, uint32_t dim_at, uint32_t token)
{
	return (size_t)dim_at * tokens + token;
}

/** tiled_v_row() - dims of V from one token to the next in the chunk that begins at @dim_at */
static inline uint32_t tiled_v_row(uint32_t dim_v, uint32_t dim_at)
{
	const uint32_t left = (uint32_t)attn_round_up(dim_v, TILED_PAD) - dim_at;

	return left < TILED_CHUNK ? left : TILED_CHUNK;
}

/** tiled_v_at() - index of an element of V in a tile of @tokens */
static inline size_t tiled_v_at(uint32_t tokens, uint32_t dim_v, uint32_t dim_at, uint32_t token)
{
	const uint32_t chunk = dim_at / TILED_CHUNK * TILED_CHUNK;

	return (size_t)chunk * tokens + (size_t)token * tiled_v_row(dim_v, chunk) + (dim_at - chunk);
}

/** tiled_i4_row() - bytes of a token's @n dims in V of I4: dims in pairs of sixteen, low and high halves of 16 bytes */
static inline uint32_t tiled_i4_row(uint32_t n)
{
	return (n + 31) / 32 * 16;
}

/** tiled_scale_off() - bytes of a tile's elements, behind which the scales lie; @values: of V, else of K */
static inline size_t tiled_scale_off(uint32_t type, uint32_t dim, uint32_t tokens, bool values)
{
	const size_t padded = values ? attn_round_up(dim, TILED_PAD) : dim;

	if (type == KVATTN_I4 && values)
		return tokens *
		       (padded / TILED_CHUNK * (TILED_CHUNK / 2) + tiled_i4_row((uint32_t)(padded % TILED_CHUNK)));
	if (type == KVATTN_I4)
		return attn_round_up((padded + 1) / 2 * tokens, sizeof(float));
	return attn_round_up(padded * tokens * kvattn_type_bytes(type), sizeof(float));
}

/** tiled_i4_steps() - f16 steps of an I4 tile; as many least values follow.  K: by dim; V: [chunk][16] by token */
static inline size_t tiled_i4_steps(uint32_t dim, bool values)
{
	return values ? (dim + TILED_CHUNK - 1) / TILED_CHUNK * TILED_TOKENS : attn_round_up(dim, TILED_PAD);
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
