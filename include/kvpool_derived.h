/*
 * kvpool_derived.h - what was made of another namespace's blocks: its descriptor and label, and its keys
 *
 * Inside kvpool only, where daemon and library must agree; the calls are kvp_desc_quantised(), kvp_key_derived() and
 * kvp_hash_bytes().
 */
#ifndef KVPOOL_DERIVED_H
#define KVPOOL_DERIVED_H

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "kvpool_desc.h"

#define KVP_QUANTISED "kvpool-quantised/1 from"

static inline void kvp_bytes_put(uint8_t *out, uint64_t value, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		out[i] = (uint8_t)(value >> 8 * i);
}

/** kvp_key_of_bytes() - BLAKE2b-128 with the secret over byte 2 | u32 n | bytes */
static inline void kvp_key_of_bytes(const uint8_t secret[32], const void *bytes, uint32_t n, struct kvp_key *key)
{
	crypto_generichash_state hash;
	uint8_t head[5] = {2}, out[16];

	kvp_bytes_put(head + 1, n, 4);
	crypto_generichash_init(&hash, secret, 32, 16);
	crypto_generichash_update(&hash, head, sizeof(head));
	crypto_generichash_update(&hash, bytes, n);
	crypto_generichash_final(&hash, out, sizeof(out));
	*key = (struct kvp_key){{0, 0}};
	for (unsigned i = 0; i < 16; i++)
		key->w[i / 8] |= (uint64_t)out[i] << 8 * (i % 8);
	if (kvp_key_is_none(key))
		key->w[1] = 1; /* all zero means none */
}

/** kvp_key_of_derived() - of what was made of the block under @key, in the namespace with this secret and label */
static inline void kvp_key_of_derived(
	const uint8_t secret[32], const char label[128], const struct kvp_key *key, struct kvp_key *out)
{
	uint8_t bytes[16 + 128];

	kvp_bytes_put(bytes, key->w[0], 8);
	kvp_bytes_put(bytes + 8, key->w[1], 8);
	memcpy(bytes + 16, label, 128);
	kvp_key_of_bytes(secret, bytes, sizeof(bytes), out);
}

/** kvp_desc_label() - where an engine names its own format. Return: false: there is no room for it. */
static inline bool kvp_desc_label(struct kvp_desc *desc, const struct kvp_desc *of, const char *what)
{
	const char *layout = of->layout == KVP_LAYOUT_TILED ? "TILED" : of->layout == KVP_LAYOUT_HND ? "HND" : "NHD";
	int n = snprintf(desc->engine, sizeof(desc->engine), "%s %s %s/%s%s%s", what, layout, kvp_type_name(of->type_k),
		kvp_type_name(of->type_v), of->engine[0] ? ", " : "", of->engine);

	return n < (int)sizeof(desc->engine);
}

/** kvp_desc_unlabelled() - of what is made of @of, a whole one and not OPAQUE, but for types and label */
static inline void kvp_desc_unlabelled(const struct kvp_desc *of, struct kvp_desc *desc)
{
	*desc = *of;
	memset(desc->engine, 0, sizeof(desc->engine));
	desc->block_bytes = 0;
}

/** kvp_desc_of_types() - of its blocks converted. Return: as kvp_desc_label(). */
static inline bool kvp_desc_of_types(const struct kvp_desc *of, uint32_t type_k, uint32_t type_v, struct kvp_desc *desc)
{
	kvp_desc_unlabelled(of, desc);
	desc->layout = KVP_LAYOUT_TILED;
	desc->type_k = type_k;
	desc->type_v = type_v;
	return kvp_desc_label(desc, of, KVP_QUANTISED);
}

#endif
