/*
 * tiled.h - where elements lie in a tile of KVATTN_TILED: K of one head by dimension, V by token (how long one is:
 * kvattn_tile.h)
 *
 * A tile holds TILED_TOKENS tokens of one head, or a whole block's where blocks are shorter.  K is [dim][token], so
 * that a vector holds one dimension of sixteen keys and no dot product needs an add across lanes.  V is
 * [chunk of 64 dims][token][dim in the chunk], its dims rounded up to TILED_PAD, so that a pass over values reads
 * straight on.  BF16 lies in pairs, [dims / 2][token][2] and [token / 2][dim in the chunk][2], as AMX multiplies them.  I8 keeps a scale for each token behind the elements, as f32.  I4 is value = least + step * code, code
 * 0 .. 15, step and least f16 behind the codes: K's for each dim of a tile (real K has channels that stand out), V's for
 * each token and chunk of 64 dims.  Eight codes are a word, so that a vector's low halves, and its high ones, are what a
 * product of bytes adds up: [dims / 8][token] in K, [token / 8][dim] in V.
 */
#ifndef KVATTN_TILED_H
#define KVATTN_TILED_H

#include <kvattn.h>
#include <kvattn_tile.h>

/** tiled_k_at() - index of an element of K in a tile of @tokens */
static inline size_t tiled_k_at(uint32_t type, uint32_t tokens, uint32_t dim_at, uint32_t token)
{
	if (tiled_paired(type))
		return (size_t)(dim_at / 2) * 2 * tokens + 2 * token + dim_at % 2;
	return (size_t)dim_at * tokens + token;
}

/** tiled_v_row() - dims of V from one token to the next in the chunk that begins at @dim_at */
static inline uint32_t tiled_v_row(uint32_t dim_v, uint32_t dim_at)
{
	const uint32_t left = (uint32_t)tiled_up(dim_v, TILED_PAD) - dim_at;

	return left < TILED_CHUNK ? left : TILED_CHUNK;
}

/** tiled_v_at() - index of an element of V in a tile of @tokens */
static inline size_t tiled_v_at(uint32_t type, uint32_t tokens, uint32_t dim_v, uint32_t dim_at, uint32_t token)
{
	const uint32_t chunk = dim_at / TILED_CHUNK * TILED_CHUNK;

	if (tiled_paired(type) && tokens > 1)
		return (size_t)chunk * tiled_v_tokens(type, tokens) +
		       (size_t)(token / 2) * 2 * tiled_v_row(dim_v, chunk) + 2 * (dim_at - chunk) + token % 2;
	return (size_t)chunk * tokens + (size_t)token * tiled_v_row(dim_v, chunk) + (dim_at - chunk);
}

/** tiled_code_at() - the byte that holds a code of I4 in a tile of @tokens, and whether in its high half; @dim: of V */
static inline size_t tiled_code_at(
	uint32_t tokens, uint32_t dim, uint32_t dim_at, uint32_t token, bool values, bool *high)
{
	const uint32_t in = (values ? token : dim_at) % TILED_CODES_WORD;
	const size_t word = values ? token / TILED_CODES_WORD * tiled_up(dim, TILED_PAD) + dim_at
				   : (size_t)(dim_at / TILED_CODES_WORD) * tokens + token;

	*high = in / 4;
	return word * 4 + in % 4;
}

#endif
