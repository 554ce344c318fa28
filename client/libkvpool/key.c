/*
 * key.c - keys of blocks and descriptors of namespaces: hashing and arithmetic, nothing else
 */
#include "internal.h"

#include <sodium.h>
#include <string.h>

#include "kvpool_derived.h"

#define CHAIN_BYTE 1
#define BYTES_MAX 1024
#define EXTRA_MAX 4096

/* While detached keys are made under a secret of zeroes; they are made again when the namespace's own is known. */
static const uint8_t no_secret[32];

const uint8_t *ns_secret(const struct kvp_ns *ns)
{
	const struct ns_map *map = atomic_load_explicit(&ns->map, memory_order_acquire);

	return map ? map->secret : no_secret;
}

static void put_u32(uint8_t out[4], uint32_t value)
{
	for (unsigned i = 0; i < 4; i++)
		out[i] = (uint8_t)(value >> 8 * i);
}

static void put_u64(uint8_t out[8], uint64_t value)
{
	put_u32(out, (uint32_t)value);
	put_u32(out + 4, (uint32_t)(value >> 32));
}

static uint64_t get_u64(const uint8_t in[8])
{
	uint64_t value = 0;

	for (unsigned i = 0; i < 8; i++)
		value |= (uint64_t)in[i] << 8 * i;
	return value;
}

static void hash_u32(crypto_generichash_state *hash, uint32_t value)
{
	uint8_t bytes[4];

	put_u32(bytes, value);
	crypto_generichash_update(hash, bytes, sizeof(bytes));
}

static void hash_tokens(crypto_generichash_state *hash, const uint32_t *tokens, uint32_t n)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	crypto_generichash_update(hash, (const uint8_t *)tokens, 4ull * n);
#else
	for (uint32_t i = 0; i < n; i++)
		hash_u32(hash, tokens[i]);
#endif
}

static void hash_end(crypto_generichash_state *hash, struct kvp_key *key)
{
	uint8_t out[16];

	crypto_generichash_final(hash, out, sizeof(out));
	key->w[0] = get_u64(out);
	key->w[1] = get_u64(out + 8);
	if (kvp_key_is_none(key))
		key->w[1] = 1; /* all zero means none */
}

void key_block(const uint8_t secret[32], const struct kvp_key *parent, const uint32_t *tokens, uint32_t n,
	const void *extra, uint32_t n_extra, struct kvp_key *key)
{
	static const uint8_t chain_byte = CHAIN_BYTE;
	crypto_generichash_state hash;
	uint8_t above[16] = {0};

	if (parent) {
		put_u64(above, parent->w[0]);
		put_u64(above + 8, parent->w[1]);
	}
	crypto_generichash_init(&hash, secret, 32, 16);
	crypto_generichash_update(&hash, &chain_byte, 1);
	crypto_generichash_update(&hash, above, sizeof(above));
	hash_u32(&hash, n);
	hash_tokens(&hash, tokens, n);
	hash_u32(&hash, n_extra);
	if (n_extra)
		crypto_generichash_update(&hash, extra, n_extra);
	hash_end(&hash, key);
}

static int extra_bad(const void *extra, uint32_t n_extra)
{
	if (n_extra > EXTRA_MAX || (n_extra && !extra))
		return fail(-KVP_EINVAL, "n_extra: 0 to %d bytes, got %u%s", EXTRA_MAX, n_extra,
			extra ? "" : " at a null pointer");
	return 0;
}

int64_t kvp_hash_chain(const struct kvp_ns *ns, const struct kvp_key *parent, const uint32_t *tokens, uint64_t n,
	const void *extra, uint32_t n_extra, struct kvp_key *keys)
{
	uint32_t width;
	const uint8_t *secret;
	int r = ns_bad(ns);

	if (r < 0 || (r = extra_bad(extra, n_extra)) < 0)
		return r;
	width = ns->join.desc.block_tokens;
	if (n >= width && (!tokens || !keys))
		return fail(-KVP_EINVAL, "tokens and keys: a null pointer");
	secret = ns_secret(ns);
	for (uint64_t i = 0; i < n / width; i++) {
		key_block(secret, parent, tokens + i * width, width, extra, n_extra, &keys[i]);
		parent = &keys[i];
	}
	return (int64_t)(n / width);
}

int kvp_hash_block(const struct kvp_ns *ns, const struct kvp_key *parent, const uint32_t *tokens, uint32_t n,
	const void *extra, uint32_t n_extra, struct kvp_key *key)
{
	int r = ns_bad(ns);

	if (r < 0 || (r = extra_bad(extra, n_extra)) < 0)
		return r;
	if (!tokens || !key || !n || n > ns->join.desc.block_tokens)
		return fail(-KVP_EINVAL, "n: 1 to block_tokens (%u) tokens, got %u", ns->join.desc.block_tokens, n);
	key_block(ns_secret(ns), parent, tokens, n, extra, n_extra, key);
	return 0;
}

int kvp_hash_bytes(const struct kvp_ns *ns, const void *bytes, uint32_t n, struct kvp_key *key)
{
	int r = ns_bad(ns);

	if (r < 0)
		return r;
	if (!bytes || !key || !n || n > BYTES_MAX)
		return fail(-KVP_EINVAL, "n: keys of 1 to %d bytes, got %u", BYTES_MAX, n);
	kvp_key_of_bytes(ns_secret(ns), bytes, n, key);
	return 0;
}

/* ---- descriptors ---- */

void kvp_desc_init(struct kvp_desc *desc, uint32_t layout, uint32_t block_tokens, uint32_t n_layers, uint32_t kv_heads,
	uint32_t head_dim, uint32_t type)
{
	memset(desc, 0, sizeof(*desc));
	desc->size = sizeof(*desc);
	desc->version = 1;
	desc->layout = layout;
	desc->block_tokens = block_tokens;
	desc->n_layers = n_layers;
	desc->type_k = desc->type_v = type;
	desc->tp_size = desc->pp_size = desc->cp_size = 1;
	desc->hash_scheme = 1;
	for (uint32_t i = 0; i < n_layers && i < KVP_LAYERS_MAX; i++)
		desc->layers[i] = (struct kvp_layer){
			.kind = KVP_LAYER_FULL, .kv_heads = kv_heads, .dim_k = head_dim, .dim_v = head_dim};
}

static bool layer_is_zero(const struct kvp_layer *layer)
{
	static const struct kvp_layer none;

	return memcmp(layer, &none, sizeof(none)) == 0;
}

/* What has no meaning to this library.  Not asked by the daemon, to whom blocks are bytes, and kinds of a later library no
   harm: namespaces that have such a descriptor stay as they are.  Return: 0; -KVP_EINVAL, *@field named. */
static int desc_unknown(const struct kvp_desc *desc, const char **field)
{
	*field = "rope_pairing";
	if (desc->rope_pairing > KVP_ROPE_HALF)
		return fail(-KVP_EINVAL, "descriptor: field rope_pairing: %u is none of enum kvp_rope_pairing",
			desc->rope_pairing);
	*field = "hash_scheme";
	if (desc->hash_scheme > 2)
		return fail(-KVP_EINVAL, "descriptor: field hash_scheme: %u, 1 and 2 are known", desc->hash_scheme);
	*field = "layers";
	for (uint32_t i = 0; i < KVP_LAYERS_MAX; i++) {
		const struct kvp_layer *layer = &desc->layers[i];

		if (i >= desc->n_layers && !layer_is_zero(layer))
			return fail(-KVP_EINVAL, "descriptor: field layers: the one at %u is not zero, n_layers is %u",
				i, desc->n_layers);
		if (layer->kind > KVP_LAYER_STATE || layer->reserved)
			return fail(-KVP_EINVAL,
				"descriptor: field layers: the one at %u has kind %u, reserved %u: none of enum kvp_layer_kind, or not zero",
				i, layer->kind, layer->reserved);
	}
	*field = NULL;
	return 0;
}

/* What would do in a field that kvp_desc_bad() names. */
static const char *desc_bound(const struct kvp_desc *desc, const char *field)
{
	static const struct {
		const char *field, *bound;
	} bounds[] = {
		{"size", "another size than this library's; kvp_desc_init() sets it"},
		{"version", "it must be 1"},
		{"layout", "HND, NHD, TILED or OPAQUE"},
		{"block_tokens", "1 to 16777216, and a block of 2^40 bytes at most"},
		{"n_layers", "1 to 128, or 0 with OPAQUE"},
		{"endianness", "it must be 0, little-endian"},
		{"engine", "text of 127 bytes at most"},
		{"hash_name", "text of 31 bytes at most"},
		{"type_k", "f32, f16, bf16 or fp8; int8 and int4 with TILED only"},
		{"type_v", "f32, f16, bf16 or fp8; int8 and int4 with TILED only"},
		{"k_order", "it must be 0"},
		{"quant_block", "it must be 0"},
		{"layers", "of each: kv_heads and dim_k 1 to 4096, dim_v 0 to 4096"},
	};

	if (!strcmp(field, "block_bytes"))
		return desc->layout == KVP_LAYOUT_OPAQUE ? "1 to 2^40" : "0, or what the other fields make";
	for (unsigned i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++)
		if (!strcmp(field, bounds[i].field))
			return bounds[i].bound;
	return "nothing that this library knows";
}

int kvp_desc_check(const struct kvp_desc *desc, const char **field, uint64_t *block_bytes)
{
	uint64_t bytes = 0;
	const char *bad = desc ? kvp_desc_bad(desc, &bytes) : "size";
	int r = bad ? fail(-KVP_EINVAL, "descriptor: field %s is out of bounds: %s", bad, desc_bound(desc, bad))
		    : desc_unknown(desc, &bad);

	if (field)
		*field = bad;
	if (r < 0)
		return r;
	if (block_bytes)
		*block_bytes = bytes;
	return 0;
}

const char *kvp_desc_differs(const struct kvp_desc *a, const struct kvp_desc *b)
{
	if (!a || !b) /* as none of any size */
		return a == b ? NULL : "size";
	return kvp_desc_diff(a, b);
}
