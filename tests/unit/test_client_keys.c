/* test_client_keys.c - keys byte for byte, descriptors field by field, and where K and V lie */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvattn.h"
#include "kvpool.h"

#define BLOCK_TOKENS 16

struct fixture {
	struct kvp_client *client;
	struct kvp_ns *ns;
};

static struct kvp_ns *given_ns(struct kvp_client *client, const struct kvp_desc *desc)
{
	struct kvp_ns_opts opts = {.size = sizeof(opts), .name = "keys", .owner_uid = KVP_UID_SELF, .desc = desc};
	struct kvp_ns *ns;

	assert_int_equal(kvp_ns_open(client, &opts, &ns), 0);
	return ns;
}

static int setup(void **state)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .flags = KVP_OPEN_OFFLINE};
	struct fixture *f = calloc(1, sizeof(*f));
	struct kvp_desc desc;

	kvp_desc_init(&desc, KVP_LAYOUT_HND, BLOCK_TOKENS, 2, 2, 8, KVP_TYPE_F16);
	assert_int_equal(kvp_open(&opts, &f->client), 0);
	f->ns = given_ns(f->client, &desc);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	kvp_close(f->client);
	free(f);
	return 0;
}

/* ---- keys ---- */

static void put(uint8_t **at, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		*(*at)++ = (uint8_t)(value >> 8 * i);
}

/* As kvpool.h words it, spelled out into one buffer and hashed at once. */
static struct kvp_key spelled_out(
	const struct kvp_key *parent, const uint32_t *tokens, uint32_t n, const void *extra, uint32_t n_extra)
{
	static uint8_t buffer[65536];
	static const uint8_t secret[32]; /* of a namespace that was never attached */
	uint8_t *at = buffer, out[16];
	struct kvp_key key = {{0, 0}};

	put(&at, 1, 1);
	put(&at, parent ? parent->w[0] : 0, 8);
	put(&at, parent ? parent->w[1] : 0, 8);
	put(&at, n, 4);
	for (uint32_t i = 0; i < n; i++)
		put(&at, tokens[i], 4);
	put(&at, n_extra, 4);
	if (n_extra)
		memcpy(at, extra, n_extra);
	at += n_extra;
	crypto_generichash(out, sizeof(out), buffer, (size_t)(at - buffer), secret, sizeof(secret));
	for (unsigned i = 0; i < 16; i++)
		key.w[i / 8] |= (uint64_t)out[i] << 8 * (i % 8);
	return key;
}

static void assert_key(const struct kvp_key *key, const char *hex)
{
	char text[33];

	for (unsigned i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", (unsigned)(key->w[i / 8] >> 8 * (i % 8) & 0xff));
	assert_string_equal(text, hex);
}

static void the_vectors_of_the_manual_hold(void **state)
{
	struct fixture *f = *state;
	uint32_t tokens[32];
	struct kvp_key keys[2], key;

	for (uint32_t i = 0; i < 32; i++)
		tokens[i] = i;
	/* from another implementation of BLAKE2b: hashlib of Python 3.11 */
	assert_int_equal(kvp_hash_chain(f->ns, NULL, tokens, 32, NULL, 0, keys), 2);
	assert_key(&keys[0], "3372306c2bcd9eccda84b540a10c7ef6");
	assert_key(&keys[1], "462100e678b08d75698781e75e9b9f49");
	assert_int_equal(kvp_hash_block(f->ns, &keys[0], tokens + 16, 5, NULL, 0, &key), 0);
	assert_key(&key, "a4fbaf718322c5d5d85f7bae8cea1552");
	assert_int_equal(kvp_hash_chain(f->ns, NULL, tokens, 16, "\4\0\0\0saltlora", 12, &key), 1);
	assert_key(&key, "6e0bc780347ac661c5159e4c96c9815b");
	assert_int_equal(kvp_hash_bytes(f->ns, "hello", 5, &key), 0);
	assert_key(&key, "7d436c092084003c26dc579f82769171");
}

static void a_chain_is_what_the_header_spells_out(void **state)
{
	struct fixture *f = *state;
	uint32_t tokens[3 * BLOCK_TOKENS + 5];
	uint8_t extra[4096];
	struct kvp_key keys[3], want;

	randombytes_buf(tokens, sizeof(tokens));
	randombytes_buf(extra, sizeof(extra));
	for (uint32_t n_extra = 0; n_extra <= sizeof(extra); n_extra += n_extra ? 4095 : 1) {
		const struct kvp_key *parent = NULL;

		assert_int_equal(kvp_hash_chain(f->ns, NULL, tokens, 3 * BLOCK_TOKENS + 5, extra, n_extra, keys), 3);
		for (uint32_t b = 0; b < 3; b++) {
			want = spelled_out(parent, tokens + b * BLOCK_TOKENS, BLOCK_TOKENS, extra, n_extra);
			assert_memory_equal(&keys[b], &want, sizeof(want));
			parent = &keys[b];
		}
	}
}

static void a_chain_may_be_hashed_in_pieces(void **state)
{
	struct fixture *f = *state;
	uint32_t tokens[4 * BLOCK_TOKENS];
	struct kvp_key whole[4], pieces[4];

	randombytes_buf(tokens, sizeof(tokens));
	assert_int_equal(kvp_hash_chain(f->ns, NULL, tokens, 4 * BLOCK_TOKENS, "x", 1, whole), 4);
	assert_int_equal(kvp_hash_chain(f->ns, NULL, tokens, BLOCK_TOKENS, "x", 1, pieces), 1);
	assert_int_equal(
		kvp_hash_chain(f->ns, &pieces[0], tokens + BLOCK_TOKENS, 3 * BLOCK_TOKENS, "x", 1, pieces + 1), 3);
	assert_memory_equal(whole, pieces, sizeof(whole));
}

static void every_part_of_a_block_changes_its_key(void **state)
{
	struct fixture *f = *state;
	uint32_t tokens[BLOCK_TOKENS] = {1, 2, 3}, other[BLOCK_TOKENS] = {1, 2, 4};
	struct kvp_key parent = {{5, 6}}, keys[6];

	kvp_hash_block(f->ns, NULL, tokens, BLOCK_TOKENS, NULL, 0, &keys[0]);
	kvp_hash_block(f->ns, NULL, other, BLOCK_TOKENS, NULL, 0, &keys[1]);
	kvp_hash_block(f->ns, &parent, tokens, BLOCK_TOKENS, NULL, 0, &keys[2]);
	kvp_hash_block(f->ns, NULL, tokens, BLOCK_TOKENS, "a", 1, &keys[3]);
	kvp_hash_block(f->ns, NULL, tokens, BLOCK_TOKENS - 1, NULL, 0, &keys[4]);
	kvp_hash_bytes(f->ns, tokens, sizeof(tokens), &keys[5]);
	for (unsigned a = 0; a < 6; a++)
		for (unsigned b = 0; b < a; b++)
			assert_memory_not_equal(&keys[a], &keys[b], sizeof(keys[a]));
}

static void hashing_refuses_what_it_cannot_hash(void **state)
{
	struct fixture *f = *state;
	uint32_t tokens[BLOCK_TOKENS] = {0};
	struct kvp_key key;

	assert_int_equal(kvp_hash_chain(NULL, NULL, tokens, BLOCK_TOKENS, NULL, 0, &key), -KVP_EINVAL);
	assert_int_equal(kvp_hash_chain(f->ns, NULL, NULL, BLOCK_TOKENS, NULL, 0, &key), -KVP_EINVAL);
	assert_int_equal(kvp_hash_chain(f->ns, NULL, tokens, BLOCK_TOKENS, NULL, 1, &key), -KVP_EINVAL);
	assert_int_equal(kvp_hash_chain(f->ns, NULL, tokens, BLOCK_TOKENS, tokens, 4097, &key), -KVP_EINVAL);
	assert_int_equal(kvp_hash_chain(f->ns, NULL, tokens, BLOCK_TOKENS - 1, NULL, 0, &key), 0);
	assert_int_equal(kvp_hash_block(f->ns, NULL, tokens, 0, NULL, 0, &key), -KVP_EINVAL);
	assert_int_equal(kvp_hash_block(f->ns, NULL, tokens, BLOCK_TOKENS + 1, NULL, 0, &key), -KVP_EINVAL);
	assert_int_equal(kvp_hash_bytes(f->ns, tokens, 0, &key), -KVP_EINVAL);
	assert_int_equal(kvp_hash_bytes(f->ns, tokens, 1025, &key), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(f->client), "1025"));
}

/* ---- descriptors ---- */

static void a_bad_descriptor_names_its_field(void **state)
{
	struct kvp_desc good, bad;
	const char *field;
	uint64_t bytes;

	(void)state;
	kvp_desc_init(&good, KVP_LAYOUT_HND, 16, 2, 2, 8, KVP_TYPE_F16);
	assert_int_equal(kvp_desc_check(&good, &field, &bytes), 0);
	assert_null(field);
	assert_int_equal(bytes, 2 * 2 * 2 * 16 * 8 * 2);
#define BAD(name, change, bound) \
	do { \
		bad = good; \
		change; \
		assert_int_equal(kvp_desc_check(&bad, &field, NULL), -KVP_EINVAL); \
		assert_string_equal(field, name); \
		if (!strstr(kvp_error(NULL), name) || !strstr(kvp_error(NULL), bound)) \
			fail_msg("not a word of %s, %s: %s", name, bound, kvp_error(NULL)); \
	} while (0)
	BAD("size", bad.size--, "another size than this library's");
	BAD("version", bad.version = 2, "it must be 1");
	BAD("layout", bad.layout = KVP_LAYOUT_TILED + 1, "HND, NHD, TILED or OPAQUE");
	BAD("layout", bad.layout = 0, "HND, NHD, TILED or OPAQUE");
	BAD("layout", bad.layout = 3,
		"HND, NHD, TILED or OPAQUE"); /* tiles with bf16 in another order: their bytes would be read wrong */
	BAD("layout", bad.layout = 5, "HND, NHD, TILED or OPAQUE"); /* tiles with int4 in another order */
	BAD("type_k", bad.type_k = KVP_TYPE_I8, "int8 and int4 with TILED only"); /* in tiles only */
	BAD("type_v", bad.type_v = KVP_TYPE_I4, "int8 and int4 with TILED only");
	BAD("block_tokens", bad.block_tokens = 0, "1 to 16777216");
	BAD("n_layers", bad.n_layers = KVP_LAYERS_MAX + 1, "1 to 128");
	BAD("type_k", bad.type_k = 9, "f32, f16, bf16 or fp8");
	BAD("type_v", bad.type_v = 0, "f32, f16, bf16 or fp8");
	BAD("layers", bad.layers[1].kv_heads = 0, "1 to 4096");
	BAD("block_bytes", bad.block_bytes = 5, "0");
	BAD("endianness", bad.endianness = 1, "it must be 0");
	BAD("rope_pairing", bad.rope_pairing = 3, "3 is none of enum kvp_rope_pairing");
	BAD("hash_scheme", bad.hash_scheme = 3, "1 and 2 are known");
	BAD("layers", bad.layers[1].kind = KVP_LAYER_STATE + 1, "the one at 1 has kind");
	BAD("layers", bad.layers[0].reserved = 1, "reserved 1");
	/* behind the last one: it would be another descriptor for nothing */
	BAD("layers", bad.layers[2].kv_heads = 1, "the one at 2 is not zero");
	BAD("layers", bad.layers[KVP_LAYERS_MAX - 1].window = 1, "the one at 127 is not zero");
	BAD("layers", (bad.layout = KVP_LAYOUT_OPAQUE, bad.block_bytes = 64, bad.n_layers = 0),
		"the one at 0 is not zero");
#undef BAD
}

static void two_descriptors_differ_by_the_name_of_a_field(void **state)
{
	struct kvp_desc a, b;

	(void)state;
	kvp_desc_init(&a, KVP_LAYOUT_HND, 16, 2, 2, 8, KVP_TYPE_F16);
	b = a;
	assert_null(kvp_desc_differs(&a, &b));
	assert_null(kvp_desc_differs(NULL, NULL));
	assert_string_equal(kvp_desc_differs(&a, NULL), "size");
	assert_string_equal(kvp_desc_differs(NULL, &a), "size");
#define DIFFERS(name, change) \
	do { \
		b = a; \
		change; \
		assert_string_equal(kvp_desc_differs(&a, &b), name); \
	} while (0)
	DIFFERS("layout", b.layout = KVP_LAYOUT_TILED);
	DIFFERS("type_k", b.type_k = KVP_TYPE_BF16);
	DIFFERS("type_v", b.type_v = KVP_TYPE_FP8);
	DIFFERS("block_tokens", b.block_tokens = 32);
	DIFFERS("n_layers", b.n_layers = 1);
	DIFFERS("layers", b.layers[1].window = 7);
	DIFFERS("model", b.model[31] = 1);
	DIFFERS("adapter", b.adapter[0] = 1);
	DIFFERS("rope_base", b.rope_base = 1e4);
	DIFFERS("tp_rank", b.tp_rank = 1);
	DIFFERS("engine", b.engine[127] = 1);
#undef DIFFERS
}

/* ---- geometry ---- */

static void tensors_follow_each_other_aligned_to_a_line(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc desc;
	struct kvp_ns *ns;
	uint64_t want = 0;

	/* 3 tokens, 1 head of 5 f16: 30 bytes a tensor, so padding shows */
	kvp_desc_init(&desc, KVP_LAYOUT_HND, 3, 3, 1, 5, KVP_TYPE_F16);
	desc.layers[1].dim_v = 40; /* 240 bytes, 256 with padding */
	ns = given_ns(f->client, &desc);
	for (uint32_t layer = 0; layer < 3; layer++)
		for (int which = KVP_K; which <= KVP_V; which++) {
			uint64_t off, token, head;
			uint32_t elem, dim = which == KVP_V ? desc.layers[layer].dim_v : 5;

			assert_int_equal(kvp_geom(ns, layer, (enum kvp_kv)which, &off, &token, &head, &elem), 0);
			assert_int_equal(off, want);
			assert_int_equal(off % 64, 0);
			assert_int_equal(elem, 2);
			assert_int_equal(token, 2 * dim);
			assert_int_equal(head, 3 * 2 * dim);
			want += (3 * 2 * dim + 63) / 64 * 64;
		}
	struct kvp_ns_info info = {.size = sizeof(info)};

	assert_int_equal(kvp_ns_info(ns, &info), 0);
	assert_int_equal(info.block_bytes, want);
	assert_int_equal(info.block_stride, 4096);
	kvp_ns_close(ns);
}

static void token_major_strides_are_those_of_nhd(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc desc;
	uint64_t off, token, head;
	struct kvp_ns *ns;

	kvp_desc_init(&desc, KVP_LAYOUT_NHD, 16, 2, 4, 8, KVP_TYPE_F32);
	ns = given_ns(f->client, &desc);
	assert_int_equal(kvp_geom(ns, 1, KVP_V, &off, &token, &head, NULL), 0);
	assert_int_equal(off, 3 * 16 * 4 * 8 * 4);
	assert_int_equal(token, 4 * 8 * 4);
	assert_int_equal(head, 8 * 4);
	assert_int_equal(kvp_geom(ns, 2, KVP_K, &off, NULL, NULL, NULL), -KVP_EINVAL);
	kvp_ns_close(ns);
}

static void the_kernels_geometry_is_the_same(void **state)
{
	struct fixture *f = *state;

	for (uint32_t layout = KVP_LAYOUT_HND; layout <= KVP_LAYOUT_NHD; layout++) {
		struct kvattn_shape shape = {.n_layers = 3,
			.n_kv_heads = 2,
			.dim_k = 20,
			.dim_v = 20,
			.type_k = KVATTN_BF16,
			.type_v = KVATTN_BF16,
			.block_tokens = 7};
		struct kvattn_geom theirs, ours;
		struct kvp_desc desc;
		struct kvp_ns *ns;

		kvp_desc_init(&desc, layout, 7, 3, 2, 20, KVP_TYPE_BF16);
		ns = given_ns(f->client, &desc);
		for (uint32_t layer = 0; layer < 3; layer++) {
			memset(&theirs, 0, sizeof(theirs));
			memset(&ours, 0, sizeof(ours));
			assert_int_equal((layout == KVP_LAYOUT_HND ? kvattn_geom_init_hnd : kvattn_geom_init_nhd)(
						 &theirs, &shape, layer),
				0);
			assert_int_equal(kvp_attn_geom(ns, layer, &ours), 0);
			assert_memory_equal(&ours, &theirs, sizeof(ours));
		}
		kvp_ns_close(ns);
	}
}

/* All pairs of types, block sizes that are and are not whole tiles, K and V of different size. */
static void tiles_lie_where_the_kernels_have_them(void **state)
{
	static const uint32_t widths[] = {1, 7, 16, 64, 100};
	static const uint32_t dims[][2] = {{20, 20}, {576, 512}, {64, 129}, {5, 33}};
	struct fixture *f = *state;

	for (uint32_t i = 0; i < 5 * 4 * 36; i++) {
		struct kvattn_shape shape = {.n_layers = 3,
			.n_kv_heads = 2,
			.dim_k = dims[i / 5 % 4][0],
			.dim_v = dims[i / 5 % 4][1],
			.type_k = 1 + i / 20 % 6,
			.type_v = 1 + i / 120,
			.block_tokens = widths[i % 5]};
		struct kvattn_geom theirs, ours;
		struct kvp_desc desc;
		struct kvp_ns *ns;
		uint64_t bytes, off;

		kvp_desc_init(&desc, KVP_LAYOUT_TILED, shape.block_tokens, 3, 2, shape.dim_k, shape.type_k);
		desc.type_v = shape.type_v;
		for (uint32_t layer = 0; layer < 3; layer++)
			desc.layers[layer].dim_v = shape.dim_v;
		assert_int_equal(kvp_desc_check(&desc, NULL, &bytes), 0);
		assert_int_equal(bytes, kvattn_block_bytes_tiled(&shape));
		ns = given_ns(f->client, &desc);
		for (uint32_t layer = 0; layer < 3; layer++) {
			memset(&theirs, 0, sizeof(theirs));
			memset(&ours, 0, sizeof(ours));
			assert_int_equal(kvattn_geom_init_tiled(&theirs, &shape, layer), 0);
			assert_int_equal(kvp_attn_geom(ns, layer, &ours), 0);
			assert_memory_equal(&ours, &theirs, sizeof(ours));
		}
		assert_int_equal(kvp_geom(ns, 0, KVP_K, &off, NULL, NULL, NULL), -KVP_ENOTSUP);
		kvp_ns_close(ns);
	}
}

static void a_whole_context_in_one_block_may_pass_4_gib(void **state)
{
	struct fixture *f = *state;
	struct kvp_ns_info info = {.size = sizeof(info)};
	struct kvp_desc desc;
	uint64_t off, token, head;
	struct kvp_ns *ns;

	/* 131072 tokens x 32 layers x 8 heads x 128 x f16 = 16 GiB */
	kvp_desc_init(&desc, KVP_LAYOUT_HND, 131072, 32, 8, 128, KVP_TYPE_F16);
	ns = given_ns(f->client, &desc);
	assert_int_equal(kvp_ns_info(ns, &info), 0);
	assert_true(info.block_bytes == 16ull << 30);
	assert_int_equal(kvp_geom(ns, 31, KVP_V, &off, &token, &head, NULL), 0);
	assert_true(off == 63 * (256ull << 20));
	assert_true(head == 32ull << 20);
	kvp_ns_close(ns);
}

static void opaque_blocks_have_no_geometry(void **state)
{
	struct fixture *f = *state;
	struct kvattn_geom geom;
	struct kvp_desc desc;
	uint64_t off;
	struct kvp_ns *ns;

	kvp_desc_init(&desc, KVP_LAYOUT_OPAQUE, 256, 0, 0, 0, 0);
	desc.block_bytes = 100000;
	strcpy(desc.engine, "llama.cpp-state/1/fa1");
	ns = given_ns(f->client, &desc);
	assert_int_equal(kvp_geom(ns, 0, KVP_K, &off, NULL, NULL, NULL), -KVP_ENOTSUP);
	assert_int_equal(kvp_attn_geom(ns, 0, &geom), -KVP_ENOTSUP);
	kvp_ns_close(ns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(the_vectors_of_the_manual_hold),
		TEST(a_chain_is_what_the_header_spells_out),
		TEST(a_chain_may_be_hashed_in_pieces),
		TEST(every_part_of_a_block_changes_its_key),
		TEST(hashing_refuses_what_it_cannot_hash),
		TEST(a_bad_descriptor_names_its_field),
		TEST(two_descriptors_differ_by_the_name_of_a_field),
		TEST(tensors_follow_each_other_aligned_to_a_line),
		TEST(token_major_strides_are_those_of_nhd),
		TEST(the_kernels_geometry_is_the_same),
		TEST(tiles_lie_where_the_kernels_have_them),
		TEST(a_whole_context_in_one_block_may_pass_4_gib),
		TEST(opaque_blocks_have_no_geometry),
	};

	return cmocka_run_group_tests_name("client keys", tests, NULL, NULL);
}
