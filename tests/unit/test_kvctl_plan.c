/* test_kvctl_plan.c - kvctl plan against cases worked out by hand, and against the arithmetic of the pool itself */
#include "test_kvctl_fixture.h"

#include "kvattn.h"
#include "kvpool_desc.h"

static int outputs_setup(void **state)
{
	struct fake *f = calloc(1, sizeof(*f));

	f->out = malloc(FAKE_OUTPUT);
	f->err = malloc(FAKE_OUTPUT);
	*state = f;
	return 0;
}

static int outputs_teardown(void **state)
{
	struct fake *f = *state;

	free(f->out);
	free(f->err);
	free(f);
	return 0;
}

static int64_t number(json_t *json, const char *name)
{
	json_t *value = json_object_get(json, name);

	if (!json_is_integer(value))
		fail_msg("no number %s", name);
	return json_integer_value(value);
}

/* Llama-3-8B: 2 x 32 layers x 8 heads x 128 x 2 bytes = 131072 a token; 16 tokens are 2 MiB, 8192 are 1 GiB. */
static void llama_3_8b_in_f16(void **state)
{
	struct fake *f = *state;
	json_t *json, *dram;

	assert_int_equal(run(f, "plan", "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--dtype", "f16",
				 "--block-tokens", "16", "--pool", "4G", "--heads", "32", "--params", "8G", "--json"),
		0);
	json = parsed(f);
	assert_int_equal(number(json, "token_bytes"), 131072);
	assert_int_equal(number(json, "block_bytes"), 2097152);
	assert_int_equal(number(json, "block_stride"), 2097152);
	assert_int_equal(number(json, "context_blocks"), 512);
	assert_int_equal(number(json, "context_bytes"), 1 << 30);
	assert_int_equal(number(json, "slab_bytes"), 16 << 20);
	assert_int_equal(number(json, "slots_per_slab"), 8);
	dram = json_object_get(json, "dram");
	assert_int_equal(number(dram, "blocks"), 2048);
	assert_int_equal(number(dram, "tokens"), 32768);
	assert_int_equal(number(dram, "contexts"), 4);
	assert_true(json_is_null(json_object_get(json, "spill")));
	/* cached: 2 x 8e9 + 2 x 8192 x 32 x 32 x 256; uncached: 2 x 8e9 x 8192 + 8192 x 8193 x 32 x 32 x 256 */
	assert_true(json_real_value(json_object_get(json_object_get(json, "step_cached"), "flops")) == 20294967296.0);
	assert_true(json_real_value(json_object_get(json_object_get(json, "step_uncached"), "flops")) ==
		    131072000000000.0 + 8192.0 * 8193 * 262144);
	assert_true(json_real_value(json_object_get(json_object_get(json, "step_cached"), "bytes")) ==
		    16000000000.0 + 8192.0 * 131072);
	json_decref(json);
}

/* 1 head of 3 in int4: 2 bytes + 4 of scale a token; 5 tokens are 30, aligned to 64; 2 layers x (K, V) are 256. */
static void a_small_odd_shape_in_int4_with_scales(void **state)
{
	struct fake *f = *state;
	json_t *json;

	assert_int_equal(run(f, "plan", "--layers", "2", "--kv-heads", "1", "--head-dim", "3", "--dtype", "int4",
				 "--block-tokens", "5", "--pool", "1M", "--context", "11", "--json"),
		0);
	json = parsed(f);
	assert_int_equal(number(json, "token_bytes"), 24);
	assert_int_equal(number(json, "block_bytes"), 256);
	assert_int_equal(number(json, "block_stride"), 4096);
	assert_int_equal(number(json, "context_blocks"), 3);
	assert_int_equal(number(json_object_get(json, "dram"), "blocks"), 256);
	assert_int_equal(number(json_object_get(json, "dram"), "contexts"), 85);
	assert_true(json_is_null(json_object_get(json, "step_cached")));
	json_decref(json);
}

/* 5 MiB blocks: 12 fill 60 of 64 MiB, 6.25 % idle: the slab stays.  9 MiB: 7 fill 63.  11 MiB: 5 fill 55, 14 % idle: cut. */
static void slabs_are_cut_when_more_than_7_percent_lie_idle(void **state)
{
	struct fake *f = *state;
	static const struct {
		const char *heads;
		int64_t slab_mib, slots, blocks; /* of 1 GiB */
	} cases[] = {{"5", 64, 12, 192}, {"9", 64, 7, 112}, {"11", 55, 5, 90}};

	for (unsigned i = 0; i < 3; i++) {
		json_t *json;

		/* 512 x 512 x 2 bytes x (K, V): 1 MiB for each head */
		assert_int_equal(
			run(f, "plan", "--layers", "1", "--kv-heads", cases[i].heads, "--head-dim", "512", "--dtype",
				"bf16", "--block-tokens", "512", "--pool", "1G", "--slab", "64M", "--json"),
			0);
		json = parsed(f);
		assert_int_equal(number(json, "slab_bytes"), cases[i].slab_mib << 20);
		assert_int_equal(number(json, "slots_per_slab"), cases[i].slots);
		assert_int_equal(number(json_object_get(json, "dram"), "blocks"), cases[i].blocks);
		json_decref(json);
	}
}

static void blocks_are_as_long_as_the_pool_makes_them(void **state)
{
	struct fake *f = *state;
	static const unsigned shapes[][4] = {{1, 1, 1, 1}, {3, 5, 7, 11}, {32, 8, 128, 16}, {2, 3, 80, 33}};

	for (unsigned i = 0; i < 4; i++) {
		struct kvp_desc desc = {.size = sizeof(desc),
			.version = 1,
			.layout = KVP_LAYOUT_HND,
			.block_tokens = shapes[i][3],
			.n_layers = shapes[i][0],
			.type_k = KVP_TYPE_F16,
			.type_v = KVP_TYPE_F16,
			.tp_size = 1,
			.pp_size = 1,
			.cp_size = 1,
			.hash_scheme = 1};
		char layers[16], heads[16], dim[16], tokens[16];
		uint64_t bytes = kvp_tensor_off(&desc, 0, KVP_K);
		json_t *json;

		for (unsigned l = 0; l < shapes[i][0]; l++)
			desc.layers[l] = (struct kvp_layer){.kind = KVP_LAYER_FULL,
				.kv_heads = shapes[i][1],
				.dim_k = shapes[i][2],
				.dim_v = shapes[i][2]};
		bytes = kvp_tensor_off(&desc, desc.n_layers, KVP_K);
		snprintf(layers, sizeof(layers), "%u", shapes[i][0]);
		snprintf(heads, sizeof(heads), "%u", shapes[i][1]);
		snprintf(dim, sizeof(dim), "%u", shapes[i][2]);
		snprintf(tokens, sizeof(tokens), "%u", shapes[i][3]);
		assert_int_equal(run(f, "plan", "--layers", layers, "--kv-heads", heads, "--head-dim", dim, "--dtype",
					 "f16", "--block-tokens", tokens, "--pool", "1G", "--json"),
			0);
		json = parsed(f);
		assert_int_equal(number(json, "block_bytes"), bytes);
		json_decref(json);
	}
}

/* Scales and all, as the kernels have it. */
static void tiled_blocks_are_as_long_as_the_kernels_make_them(void **state)
{
	static const char *const types[] = {
		"f32", "f16", "bf16", "int8", "int4", "fp8"}; /* in order of their numbers */
	struct fake *f = *state;

	for (uint32_t i = 0; i < 36; i++) {
		const struct kvattn_shape shape = {.n_layers = 3,
			.n_kv_heads = 5,
			.dim_k = 80,
			.dim_v = 96,
			.type_k = 1 + i % 6,
			.type_v = 1 + i / 6,
			.block_tokens = 40};
		json_t *json;

		assert_int_equal(run(f, "plan", "--layers", "3", "--kv-heads", "5", "--head-dim", "80", "--dim-v", "96",
					 "--layout", "tiled", "--dtype", types[i % 6], "--dtype-v", types[i / 6],
					 "--block-tokens", "40", "--pool", "1G", "--json"),
			0);
		json = parsed(f);
		assert_int_equal(number(json, "block_bytes"), kvattn_block_bytes_tiled(&shape));
		json_decref(json);
	}
}

static void a_tile_that_is_not_full_counts_as_padding(void **state)
{
	struct fake *f = *state;
#define LLAMA "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--dtype", "f16", "--pool", "1G"

	assert_int_equal(run(f, "plan", LLAMA, "--block-tokens", "17", "--layout", "tiled"), 0);
	assert_says(f->out, "padded to 4194304 (+88.24 %)"); /* 17 tokens take two tiles of 16 */
	assert_int_equal(run(f, "plan", LLAMA, "--block-tokens", "32", "--layout", "tiled"), 0);
	assert_says(f->out, "padded to 4194304 (+0.00 %)");
	assert_int_equal(run(f, "plan", LLAMA, "--block-tokens", "7", "--layout", "tiled"), 0);
	assert_says(f->out, "padded to 917504 (+0.00 %)"); /* a tile as long as the block */
	assert_int_equal(run(f, "plan", LLAMA, "--block-tokens", "17"), 0);
	assert_says(f->out, "padded to 2228224 (+0.00 %)");
}

static void what_makes_no_sense_is_refused(void **state)
{
	struct fake *f = *state;
#define SHAPE "--layers", "1", "--kv-heads", "1", "--head-dim", "64"

	assert_int_equal(run(f, "plan"), 2);
	assert_says(f->err, "--layers");
	assert_int_equal(run(f, "plan", SHAPE, "--dtype", "f64", "--block-tokens", "16", "--pool", "1G"), 2);
	assert_says(f->err, "int4");
	assert_int_equal(
		run(f, "plan", SHAPE, "--dtype", "f16", "--layout", "hexed", "--block-tokens", "16", "--pool", "1G"),
		2);
	assert_says(f->err, "tiled");
	assert_int_equal(run(f, "plan", SHAPE, "--dtype", "int8", "--layout", "tiled", "--scale-bytes", "2",
				 "--block-tokens", "16", "--pool", "1G"),
		2);
	assert_says(f->err, "--scale-bytes");
	assert_int_equal(run(f, "plan", SHAPE, "--dtype", "f16", "--block-tokens", "0", "--pool", "1G"), 2);
	/* what no namespace can have */
	assert_int_equal(
		run(f, "plan", SHAPE, "--layers", "129", "--dtype", "f16", "--block-tokens", "16", "--pool", "1G"), 2);
	assert_says(f->err, "from 1 to 128");
	assert_int_equal(
		run(f, "plan", SHAPE, "--head-dim", "4097", "--dtype", "f16", "--block-tokens", "16", "--pool", "1G"),
		2);
	assert_int_equal(run(f, "plan", SHAPE, "--dtype", "f16", "--block-tokens", "16", "--pool", "1Q"), 2);
	assert_int_equal(run(f, "plan", SHAPE, "--dtype", "f16", "--block-tokens", "-1", "--pool", "1G"), 2);
	assert_int_equal(run(f, "plan", SHAPE, "--dtype", "f32", "--block-tokens", "100000", "--pool", "1M"), 1);
	assert_says(f->err, "larger than the whole pool");
}

static void weights_are_counted_by_thousands_and_sizes_by_1024(void **state)
{
	struct fake *f = *state;
	json_t *json;

	assert_int_equal(run(f, "plan", LLAMA, "--block-tokens", "16", "--params", "8B", "--json"), 0);
	json = parsed(f);
	assert_int_equal(number(json, "params"), 8000000000);
	json_decref(json);
	assert_int_equal(run(f, "plan", LLAMA, "--block-tokens", "16", "--spill", "8B"), 2);
}

/* 32 layers fit a sector; 47 do not. */
static void on_a_device_a_record_takes_its_sectors(void **state)
{
	static const struct {
		const char *layers, *sector;
		uint64_t record;
	} cases[] = {{"32", "4096", 4096}, {"32", "512", 512}, {"46", "512", 512}, {"47", "512", 1024}};
	struct fake *f = *state;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t block = strtoull(cases[i].layers, NULL, 10) * 65536, segment = 64 << 20;
		json_t *json;

		assert_int_equal(run(f, "plan", "--layers", cases[i].layers, "--kv-heads", "8", "--head-dim", "128",
					 "--dtype", "f16", "--block-tokens", "16", "--pool", "4G", "--spill", "20G",
					 "--spill-sector", cases[i].sector, "--json"),
			0);
		json = parsed(f);
		assert_int_equal(number(json_object_get(json, "spill"), "blocks"),
			319 * ((segment - 4096) / (block + cases[i].record)));
		json_decref(json);
	}
	assert_int_equal(run(f, "plan", LLAMA, "--block-tokens", "16", "--spill-sector", "513"), 2);
	assert_says(f->err, "512, 1024, 2048 or 4096");
}

static void sizes_are_taken_as_people_write_them(void **state)
{
	static const char *const same[] = {"8G", "8g", "8GB", "8GiB", "8589934592"};
	static const char *const wrong[] = {"8B", "8Gb", "8x", "-8G", "8iB"};
	struct fake *f = *state;
	char first[4000] = "";

	for (unsigned i = 0; i < 5; i++) {
		assert_int_equal(run(f, "plan", "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--dtype",
					 "f16", "--block-tokens", "16", "--pool", same[i]),
			0);
		if (!i)
			snprintf(first, sizeof(first), "%s", f->out);
		assert_string_equal(f->out, first);
		assert_int_equal(run(f, "plan", "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--dtype",
					 "f16", "--block-tokens", "16", "--pool", wrong[i]),
			2);
	}
}

static void a_person_gets_lines(void **state)
{
	struct fake *f = *state;

	assert_int_equal(
		run(f, "plan", "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--dtype", "f16",
			"--block-tokens", "16", "--pool", "4G", "--spill", "20G", "--hidden", "4096", "--heads", "32"),
		0);
	assert_says(f->out, "token    131072 bytes (128 KiB)\n");
	assert_says(f->out, "2,048 blocks, 32,768 tokens, 4 contexts of 8,192");
	assert_says(f->out, "uncached");
}

/* Every counter is in the manual, with the help text it was declared with. */
static void the_manual_lists_every_counter(void **state)
{
	char *text = calloc(1, FAKE_OUTPUT);
	static const char *const roots[] = {".", "..", "../..", "../../.."};
	int fd = -1;

	(void)state;
	for (unsigned i = 0; i < 4 && fd < 0; i++) {
		char path[64];

		snprintf(path, sizeof(path), "%s/client/kvctl/kvctl.1", roots[i]);
		fd = open(path, O_RDONLY);
	}
	if (fd < 0) {
		free(text);
		print_message("skipped: no client/kvctl/kvctl.1 at or above the working directory\n");
		skip();
	}
	slurp(fd, text);
#define ENTRY(name, kind, unit, help) assert_says(text, ".TP\n.B " #name "\n" help "\n");
#define KVP_COUNTER ENTRY
#define KVP_NS_COUNTER ENTRY
#include "counters.def"
	free(text);
}

#define test(name) cmocka_unit_test_setup_teardown(name, outputs_setup, outputs_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(llama_3_8b_in_f16),
		test(a_small_odd_shape_in_int4_with_scales),
		test(slabs_are_cut_when_more_than_7_percent_lie_idle),
		test(blocks_are_as_long_as_the_pool_makes_them),
		test(tiled_blocks_are_as_long_as_the_kernels_make_them),
		test(a_tile_that_is_not_full_counts_as_padding),
		test(what_makes_no_sense_is_refused),
		test(weights_are_counted_by_thousands_and_sizes_by_1024),
		test(on_a_device_a_record_takes_its_sectors),
		test(sizes_are_taken_as_people_write_them),
		test(a_person_gets_lines),
		test(the_manual_lists_every_counter),
	};

	return cmocka_run_group_tests_name("kvctl plan", tests, NULL, NULL);
}
