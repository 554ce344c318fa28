/*
 * geom.c - where K and V lie in a block: arithmetic on the descriptor
 */
#include "internal.h"

#include <string.h>

#include "kvattn.h"

struct geom_strides {
	uint64_t token, head; /* TILED: tile, head */
};

static uint32_t geom_elem(const struct kvp_desc *desc, enum kvp_kv which)
{
	return tiled_elem_bytes(which == KVP_K ? desc->type_k : desc->type_v);
}

static struct geom_strides geom_strides(const struct kvp_desc *desc, uint32_t layer, enum kvp_kv which)
{
	const struct kvp_layer *l = &desc->layers[layer];
	uint64_t row = (uint64_t)geom_elem(desc, which) * (which == KVP_K ? l->dim_k : l->dim_v);
	uint64_t tile;

	switch (desc->layout) {
	case KVP_LAYOUT_TILED:
		tile = kvp_tile_bytes(desc, layer, KVP_K) + kvp_tile_bytes(desc, layer, KVP_V);
		return (struct geom_strides){.token = tile, .head = tile * kvp_tiles(desc)};
	case KVP_LAYOUT_HND:
		return (struct geom_strides){.token = row, .head = row * desc->block_tokens};
	default:
		return (struct geom_strides){.token = row * l->kv_heads, .head = row};
	}
}

static int geom_bad(const struct kvp_ns *ns, uint32_t layer)
{
	int r = ns_bad(ns);

	if (r < 0)
		return r;
	if (ns->join.desc.layout == KVP_LAYOUT_OPAQUE)
		return fail(-KVP_ENOTSUP, "namespace %s: OPAQUE blocks have no geometry", ns->join.name);
	if (layer >= ns->join.desc.n_layers)
		return fail(-KVP_EINVAL, "layer: %u of %u", layer, ns->join.desc.n_layers);
	return 0;
}

int kvp_geom(const struct kvp_ns *ns, uint32_t layer, enum kvp_kv which, uint64_t *off, uint64_t *token_stride,
	uint64_t *head_stride, uint32_t *elem_bytes)
{
	int r = geom_bad(ns, layer);
	struct geom_strides strides;

	if (r < 0)
		return r;
	if (which != KVP_K && which != KVP_V)
		return fail(-KVP_EINVAL, "which: neither KVP_K nor KVP_V");
	if (ns->join.desc.layout == KVP_LAYOUT_TILED)
		return fail(-KVP_ENOTSUP,
			"namespace %s: TILED blocks have no rows; kvp_attn_geom() tells where they lie", ns->join.name);
	strides = geom_strides(&ns->join.desc, layer, which);
	if (off)
		*off = ns->off[2 * layer + which];
	if (token_stride)
		*token_stride = strides.token;
	if (head_stride)
		*head_stride = strides.head;
	if (elem_bytes)
		*elem_bytes = geom_elem(&ns->join.desc, which);
	return 0;
}

int kvp_attn_geom(const struct kvp_ns *ns, uint32_t layer, struct kvattn_geom *geom)
{
	int r = geom_bad(ns, layer);
	struct geom_strides k, v;
	const struct kvp_desc *desc;
	enum kvp_kv values;

	if (r < 0)
		return r;
	if (!geom)
		return fail(-KVP_EINVAL, "geom: a null pointer");
	desc = &ns->join.desc;
	values = desc->layers[layer].dim_v ? KVP_V : KVP_K; /* what stores no V has it in K's first dims */
	k = geom_strides(desc, layer, KVP_K);
	v = geom_strides(desc, layer, values);
	*geom = (struct kvattn_geom){
		.size = sizeof(*geom),
		.layout = desc->layout == KVP_LAYOUT_TILED ? KVATTN_TILED : KVATTN_ROWS,
		.type_k = desc->type_k,
		.type_v = values == KVP_V ? desc->type_v : desc->type_k,
		.n_kv_heads = desc->layers[layer].kv_heads,
		.dim_k = desc->layers[layer].dim_k,
		.dim_v = values == KVP_V ? desc->layers[layer].dim_v : desc->layers[layer].dim_k,
		.block_tokens = desc->block_tokens,
		.k_off = ns->off[2 * layer],
		.v_off = ns->off[2 * layer + values],
		.k_token_stride = k.token,
		.k_head_stride = k.head,
		.v_token_stride = v.token,
		.v_head_stride = v.head,
	};
	return 0;
}

/* Some of each head's bytes. */
static uint64_t heads_copy(char *to, const char *from, uint32_t n_heads, uint64_t stride, uint64_t bytes)
{
	for (uint32_t head = 0; head < n_heads; head++)
		memcpy(to + head * stride, from + head * stride, bytes);
	return n_heads * bytes;
}

/* One tensor's rows of the first tokens: contiguous with [token][head], a piece for each head with [head][token]. */
static uint64_t tensor_rows_copy(
	const struct kvp_desc *desc, char *to, const char *from, uint32_t layer, enum kvp_kv which, uint32_t n_tokens)
{
	struct geom_strides strides = geom_strides(desc, layer, which);
	uint64_t bytes = strides.token * n_tokens;

	if (desc->layout == KVP_LAYOUT_HND)
		return heads_copy(to, from, desc->layers[layer].kv_heads, strides.head, bytes);
	memcpy(to, from, bytes);
	return bytes;
}

/* The tiles that the first tokens touch, whole: what lies behind these tokens in the last one is nobody's. */
static uint64_t tiles_copy(const struct kvp_desc *desc, char *to, const char *from, uint32_t layer, uint32_t n_tokens)
{
	struct geom_strides strides = geom_strides(desc, layer, KVP_K);
	uint64_t tile = tiled_tokens(desc->block_tokens);

	return heads_copy(
		to, from, desc->layers[layer].kv_heads, strides.head, tiled_up(n_tokens, tile) / tile * strides.token);
}

static uint64_t layer_rows_copy(const struct kvp_ns *ns, char *to, const char *from, uint32_t layer, uint32_t n_tokens)
{
	const struct kvp_desc *desc = &ns->join.desc;
	uint64_t k = ns->off[2 * layer], v = ns->off[2 * layer + 1];

	if (desc->layout == KVP_LAYOUT_TILED)
		return tiles_copy(desc, to + k, from + k, layer, n_tokens);
	return tensor_rows_copy(desc, to + k, from + k, layer, KVP_K, n_tokens) +
	       tensor_rows_copy(desc, to + v, from + v, layer, KVP_V, n_tokens);
}

uint64_t rows_copy(const struct kvp_ns *ns, void *to, const void *from, uint32_t n_tokens, uint64_t used_bytes)
{
	const struct kvp_desc *desc = &ns->join.desc;
	uint64_t bytes = 0;

	if (desc->layout == KVP_LAYOUT_OPAQUE) {
		memcpy(to, from, used_bytes);
		return used_bytes;
	}
	for (uint32_t layer = 0; layer < desc->n_layers; layer++)
		bytes += layer_rows_copy(ns, to, from, layer, n_tokens);
	return bytes;
}
