/* geom.h - checks of a geometry, and rows of a block whatever its layout; arithmetic only, any thread */
#ifndef KVATTN_GEOM_H
#define KVATTN_GEOM_H

#include <kvattn.h>

#include "attn.h"

/** geom_check() - Return: 0; -EINVAL a field is out of range; -ENOTSUP type or layout is not served */
int geom_check(const struct kvattn_geom *geom);

/** geom_latent() - whether V has no bytes of its own, but is the first dims of K */
static inline bool geom_latent(const struct kvattn_geom *geom)
{
	return geom->v_off == geom->k_off;
}

/* K or V of a layer. */
struct geom_tensor {
	uint64_t off, token_stride, head_stride;
	uint32_t dim, type;
	uint32_t tile; /* tokens of a tile; 0: a token's elements lie side by side */
	uint32_t tile_dim; /* of the vectors in a tile: V that is the first dims of K lies in K's */
	bool values; /* lies as V does */
};

struct geom_tensor geom_tensor_k(const struct kvattn_geom *geom);
struct geom_tensor geom_tensor_v(const struct kvattn_geom *geom);

/** geom_token_move() - a token's elements, without its scale, from a tile of @from_tile tokens to one of @to_tile */
void geom_token_move(const struct geom_tensor *t, char *to, uint32_t to_tile, uint32_t to_token, const char *from,
	uint32_t from_tile, uint32_t from_token);

/** geom_row_load() - one head's vector of one token, as f32 */
void geom_row_load(const struct attn_isa *isa, const struct geom_tensor *t, const char *block, uint64_t token,
	uint32_t head, float *row);

#endif
