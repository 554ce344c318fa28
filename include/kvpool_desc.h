/*
 * kvpool_desc.h - arithmetic on descriptors that daemon and library must agree on
 *
 * Inside kvpool only; the public calls are kvp_desc_check(), kvp_desc_differs() and kvp_geom() in kvpool.h.
 */
#ifndef KVPOOL_DESC_H
#define KVPOOL_DESC_H

#include <stdbool.h>
#include <string.h>

#include "kvattn_tile.h"
#include "kvpool.h"

#define KVP_TENSOR_ALIGN TILED_ALIGN
#define KVP_BLOCK_BYTES_MAX (1ull << 40)

/** kvp_type_name() - as operators write it; NULL: no type */
static inline const char *kvp_type_name(uint32_t type)
{
	static const char *const names[] = {
		[KVP_TYPE_F32] = "f32",
		[KVP_TYPE_F16] = "f16",
		[KVP_TYPE_BF16] = "bf16",
		[KVP_TYPE_I8] = "int8",
		[KVP_TYPE_I4] = "int4",
		[KVP_TYPE_FP8] = "fp8",
	};

	return type < sizeof(names) / sizeof(names[0]) ? names[type] : NULL;
}

static inline bool kvp_type_ok(uint32_t layout, uint32_t type)
{
	return kvp_type_name(type) && (layout == KVP_LAYOUT_TILED || !tiled_only(type));
}

/* TILED: K or V of one head's tile */
static inline uint64_t kvp_tile_bytes(const struct kvp_desc *desc, uint32_t layer, enum kvp_kv which)
{
	const struct kvp_layer *l = &desc->layers[layer];
	uint32_t dim = which == KVP_K ? l->dim_k : l->dim_v;
	uint32_t type = which == KVP_K ? desc->type_k : desc->type_v;

	return dim ? tiled_up(tiled_bytes(type, dim, tiled_tokens(desc->block_tokens), which == KVP_V), TILED_ALIGN)
		   : 0;
}

/* TILED: tiles of a head in a block */
static inline uint64_t kvp_tiles(const struct kvp_desc *desc)
{
	return tiled_up(desc->block_tokens, tiled_tokens(desc->block_tokens)) / tiled_tokens(desc->block_tokens);
}

/* Of one layer's K or V; TILED has them in turns. */
static inline uint64_t kvp_tensor_bytes(const struct kvp_desc *desc, uint32_t layer, enum kvp_kv which)
{
	const struct kvp_layer *l = &desc->layers[layer];
	uint64_t dim = which == KVP_K ? l->dim_k : l->dim_v;

	if (desc->layout == KVP_LAYOUT_TILED)
		return l->kv_heads * kvp_tiles(desc) * kvp_tile_bytes(desc, layer, which);
	return tiled_up(
		dim * l->kv_heads * desc->block_tokens * tiled_elem_bytes(which == KVP_K ? desc->type_k : desc->type_v),
		KVP_TENSOR_ALIGN);
}

/* Bytes from the block's base to a layer's K or V (TILED: of its first tile); layer n_layers: the block's length. */
static inline uint64_t kvp_tensor_off(const struct kvp_desc *desc, uint32_t layer, enum kvp_kv which)
{
	uint64_t off = 0;

	for (uint32_t i = 0; i < layer; i++)
		off += kvp_tensor_bytes(desc, i, KVP_K) + kvp_tensor_bytes(desc, i, KVP_V);
	if (which == KVP_K)
		return off;
	return off + (desc->layout == KVP_LAYOUT_TILED ? kvp_tile_bytes(desc, layer, KVP_K)
						       : kvp_tensor_bytes(desc, layer, KVP_K));
}

/* Name of the first bad field, or NULL and the payload bytes of a block. */
static inline const char *kvp_desc_bad(const struct kvp_desc *desc, uint64_t *block_bytes)
{
	uint64_t bytes = 0;

	if (desc->size != sizeof(*desc))
		return "size";
	if (desc->version != 1)
		return "version";
	if ((desc->layout < KVP_LAYOUT_HND || desc->layout > KVP_LAYOUT_NHD) && desc->layout != KVP_LAYOUT_OPAQUE &&
		desc->layout != KVP_LAYOUT_TILED)
		return "layout";
	if (!desc->block_tokens || desc->block_tokens > 1u << 24)
		return "block_tokens";
	if (desc->n_layers > KVP_LAYERS_MAX || (!desc->n_layers && desc->layout != KVP_LAYOUT_OPAQUE))
		return "n_layers";
	if (desc->endianness)
		return "endianness";
	if (memchr(desc->engine, 0, sizeof(desc->engine)) == NULL)
		return "engine";
	if (memchr(desc->hash_name, 0, sizeof(desc->hash_name)) == NULL)
		return "hash_name";
	if (desc->layout == KVP_LAYOUT_OPAQUE) {
		if (!desc->block_bytes || desc->block_bytes > KVP_BLOCK_BYTES_MAX)
			return "block_bytes";
		*block_bytes = desc->block_bytes;
		return NULL;
	}
	if (!kvp_type_ok(desc->layout, desc->type_k))
		return "type_k";
	if (!kvp_type_ok(desc->layout, desc->type_v))
		return "type_v";
	if (desc->k_order)
		return "k_order";
	if (desc->quant_block)
		return "quant_block";
	for (uint32_t i = 0; i < desc->n_layers; i++) {
		const struct kvp_layer *l = &desc->layers[i];

		if (!l->kv_heads || l->kv_heads > 4096 || !l->dim_k || l->dim_k > 4096 || l->dim_v > 4096)
			return "layers";
		bytes += kvp_tensor_bytes(desc, i, KVP_K) + kvp_tensor_bytes(desc, i, KVP_V);
		if (bytes > KVP_BLOCK_BYTES_MAX)
			return "block_tokens";
	}
	if (desc->block_bytes && desc->block_bytes != bytes)
		return "block_bytes";
	*block_bytes = bytes;
	return NULL;
}

/* Name of the first field that differs, or NULL. */
static inline const char *kvp_desc_diff(const struct kvp_desc *a, const struct kvp_desc *b)
{
#define KVP_DIFF(field) \
	if (memcmp(&a->field, &b->field, sizeof(a->field)) != 0) \
		return #field;
	KVP_DIFF(size)
	KVP_DIFF(version)
	KVP_DIFF(layout)
	KVP_DIFF(block_tokens)
	KVP_DIFF(block_bytes)
	KVP_DIFF(n_layers)
	KVP_DIFF(type_k)
	KVP_DIFF(type_v)
	KVP_DIFF(k_order)
	KVP_DIFF(quant_block)
	KVP_DIFF(scale_place)
	KVP_DIFF(rope_pairing)
	KVP_DIFF(rope_scaling)
	KVP_DIFF(rope_base)
	KVP_DIFF(rope_factor)
	KVP_DIFF(rope_extra)
	KVP_DIFF(model)
	KVP_DIFF(tokenizer)
	KVP_DIFF(adapter)
	KVP_DIFF(tp_size)
	KVP_DIFF(tp_rank)
	KVP_DIFF(pp_size)
	KVP_DIFF(pp_rank)
	KVP_DIFF(cp_size)
	KVP_DIFF(cp_rank)
	KVP_DIFF(kv_group)
	KVP_DIFF(hash_scheme)
	KVP_DIFF(salt_policy)
	KVP_DIFF(endianness)
	KVP_DIFF(hash_name)
	KVP_DIFF(engine)
	KVP_DIFF(layers)
#undef KVP_DIFF
	return NULL;
}

static inline bool kvp_name_ok(const char *name)
{
	return name[0] && name[0] != '.' && strlen(name) < KVP_NAME_MAX &&
	       !name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")];
}

static inline bool kvp_key_is_none(const struct kvp_key *key)
{
	return !key->w[0] && !key->w[1];
}
static inline bool kvp_key_same(const struct kvp_key *a, const struct kvp_key *b)
{
	return a->w[0] == b->w[0] && a->w[1] == b->w[1];
}

#endif
