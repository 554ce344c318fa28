/*
 * plan.c - kvctl plan; see plan.h.  The formulas and their sources are in kvctl(1).
 */
#include "plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kvctl.h"
#include "kvpool_desc.h"
#include "kvpool_shm.h"
#include "kvpool_spill.h"
#include "option.h"
#include "quantity.h"
#include "report.h"

#define MIB (1024ull * 1024)
#define SPILL_SEGMENT (64 * MIB)

static uint64_t round_up(uint64_t n, uint64_t step)
{
	return (n + step - 1) / step * step;
}

static uint64_t elem_bits(uint64_t type)
{
	return type == KVP_TYPE_I4 ? 4 : 8 * tiled_elem_bytes((uint32_t)type);
}

static uint64_t tensor_bytes(const struct plan_input *in, enum kvp_kv which, uint64_t tokens)
{
	uint64_t bits = which == KVP_K ? in->dim_k * elem_bits(in->type_k) : in->dim_v * elem_bits(in->type_v);

	return in->kv_heads * tokens * ((bits + 7) / 8 + in->scale_bytes);
}

/* TILED: as the daemon reckons it, scales and all. */
static uint64_t tiled_layer_bytes(const struct plan_input *in)
{
	const struct kvp_desc desc = {.layout = KVP_LAYOUT_TILED,
		.block_tokens = (uint32_t)in->block_tokens,
		.type_k = (uint32_t)in->type_k,
		.type_v = (uint32_t)in->type_v,
		.layers = {{.kv_heads = (uint32_t)in->kv_heads,
			.dim_k = (uint32_t)in->dim_k,
			.dim_v = (uint32_t)in->dim_v}}};

	return kvp_tensor_off(&desc, 1, KVP_K);
}

static void plan_block(const struct plan_input *in, struct plan *plan)
{
	if (in->layout == KVP_LAYOUT_TILED) {
		plan->block_bytes = in->layers * tiled_layer_bytes(in);
		plan->token_bytes = (plan->block_bytes + in->block_tokens - 1) / in->block_tokens;
	} else {
		plan->token_bytes = in->layers * (tensor_bytes(in, KVP_K, 1) + tensor_bytes(in, KVP_V, 1));
		plan->block_bytes =
			in->layers * (round_up(tensor_bytes(in, KVP_K, in->block_tokens), KVP_TENSOR_ALIGN) +
					     round_up(tensor_bytes(in, KVP_V, in->block_tokens), KVP_TENSOR_ALIGN));
	}
	plan->block_stride = round_up(plan->block_bytes, KVP_PAGE);
}

static void plan_slab(const struct plan_input *in, struct plan *plan)
{
	uint64_t slab = in->slab_bytes, n;

	if (!slab)
		slab = kvp_default_slab(in->pool_bytes);
	slab -= slab % KVP_PAGE;
	n = slab / plan->block_stride;
	n = n ? n : 1;
	/* as the daemon: slabs as they are, unless more than 7 % of one would lie idle */
	if (n * plan->block_stride > slab || (slab - n * plan->block_stride) * 100 > slab * 7)
		slab = n * plan->block_stride;
	plan->slab_bytes = slab;
	plan->slots_per_slab = n;
}

static struct plan_tier plan_tier(const struct plan_input *in, const struct plan *plan, uint64_t blocks)
{
	return (struct plan_tier){
		.blocks = blocks,
		.tokens = blocks * in->block_tokens,
		.contexts = blocks / plan->context_blocks,
	};
}

static uint64_t spill_blocks(const struct plan_input *in, const struct plan *plan)
{
	uint32_t layers = in->layers < SPILL_LAYERS_MAX ? (uint32_t)in->layers : SPILL_LAYERS_MAX;
	uint64_t record = spill_header_bytes(layers, false, (uint32_t)in->spill_sector) + plan->block_stride;

	uint64_t segment;

	if (in->spill_bytes < SPILL_SUPER_AREA)
		return 0;
	segment = (in->spill_bytes - SPILL_SUPER_AREA) / 8 / SPILL_PAGE * SPILL_PAGE;
	if (segment > SPILL_SEGMENT)
		segment = SPILL_SEGMENT;
	if (segment < SPILL_PAGE + record)
		return (in->spill_bytes - SPILL_SUPER_AREA) / record;
	return (in->spill_bytes - SPILL_SUPER_AREA) / segment * ((segment - SPILL_PAGE) / record);
}

static void plan_steps(const struct plan_input *in, struct plan *plan)
{
	double n = (double)in->context, weights = (double)in->params;
	double row =
		(double)in->layers * (double)in->heads * (double)(in->dim_k + in->dim_v); /* one key of one query */

	plan->cached.flops = 2 * weights + 2 * row * n;
	plan->cached.bytes = weights * (double)in->weight_bytes + n * (double)plan->token_bytes;
	plan->uncached.flops = 2 * weights * n + row * n * (n + 1);
	plan->uncached.bytes = weights * (double)in->weight_bytes;
}

void plan_make(const struct plan_input *in, struct plan *plan)
{
	memset(plan, 0, sizeof(*plan));
	plan_block(in, plan);
	plan->context_blocks = (in->context + in->block_tokens - 1) / in->block_tokens;
	plan->context_bytes = plan->context_blocks * plan->block_stride;
	plan_slab(in, plan);
	plan->dram = plan_tier(in, plan, in->pool_bytes / plan->slab_bytes * plan->slots_per_slab);
	plan->spill = plan_tier(in, plan, spill_blocks(in, plan));
	if (in->params)
		plan_steps(in, plan);
}

static const char *flops_text(char text[QUANTITY_ROOM], double flops)
{
	static const char *const units[] = {"", " k", " M", " G", " T", " P", " E"};
	unsigned i = 0;

	for (; flops >= 1000 && i < 6; i++)
		flops /= 1000;
	snprintf(text, QUANTITY_ROOM, "%.3g%sFLOP", flops, i ? units[i] : " ");
	return text;
}

static void tier_print(const char *name, uint64_t bytes, const struct plan_tier *tier, uint64_t context)
{
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], c[QUANTITY_ROOM], d[QUANTITY_ROOM];

	printf("%s %s: %s blocks, %s tokens, %" PRIu64 " contexts of %s\n", name, quantity_bytes(a, bytes),
		quantity_count(b, tier->blocks), quantity_count(c, tier->tokens), tier->contexts,
		quantity_count(d, context));
}

/* Of a block without anything added: neither alignment nor, TILED, tokens of a last tile that is not full. */
static double nominal_bytes(const struct plan_input *in, const struct plan *plan)
{
	uint64_t tile = tiled_tokens((uint32_t)in->block_tokens);

	if (in->layout != KVP_LAYOUT_TILED)
		return (double)(plan->token_bytes * in->block_tokens);
	return (double)plan->block_bytes * (double)in->block_tokens / (double)round_up(in->block_tokens, tile);
}

static void plan_print(const struct plan_input *in, const struct plan *plan)
{
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM];
	double nominal = nominal_bytes(in, plan);

	printf("token    %" PRIu64 " bytes (%s)\n", plan->token_bytes, quantity_bytes(a, plan->token_bytes));
	printf("block    %" PRIu64 " tokens, %" PRIu64 " bytes (%s), padded to %" PRIu64 " (+%.2f %%)\n",
		in->block_tokens, plan->block_bytes, quantity_bytes(a, plan->block_bytes), plan->block_stride,
		100.0 * ((double)plan->block_stride - nominal) / nominal);
	printf("context  %" PRIu64 " tokens, %" PRIu64 " blocks, %s\n", in->context, plan->context_blocks,
		quantity_bytes(a, plan->context_bytes));
	printf("slab     %s, %" PRIu64 " blocks\n", quantity_bytes(a, plan->slab_bytes), plan->slots_per_slab);
	tier_print("DRAM    ", in->pool_bytes, &plan->dram, in->context);
	if (in->spill_bytes)
		tier_print("spill   ", in->spill_bytes, &plan->spill, in->context);
	if (!plan->dram.contexts)
		printf("note     one context does not fit: give a larger --pool, or a shorter --context\n");
	if (!in->params)
		return;
	printf("step     the last token of a context:\n");
	printf("  cached    %s, %s read\n", flops_text(a, plan->cached.flops),
		quantity_bytes(b, (uint64_t)plan->cached.bytes));
	printf("  uncached  %s, %s read: %.4g times the arithmetic\n", flops_text(a, plan->uncached.flops),
		quantity_bytes(b, (uint64_t)plan->uncached.bytes), plan->uncached.flops / plan->cached.flops);
}

static json_t *tier_json(uint64_t bytes, const struct plan_tier *tier)
{
	json_t *json = json_object();

	json_object_set_new(json, "bytes", json_u64(bytes));
	json_object_set_new(json, "blocks", json_u64(tier->blocks));
	json_object_set_new(json, "tokens", json_u64(tier->tokens));
	json_object_set_new(json, "contexts", json_u64(tier->contexts));
	return json;
}

static json_t *step_json(const struct plan_step *step)
{
	json_t *json = json_object();

	json_object_set_new(json, "flops", json_real(step->flops));
	json_object_set_new(json, "bytes", json_real(step->bytes));
	return json;
}

static json_t *plan_json(const struct plan_input *in, const struct plan *plan)
{
	json_t *json = json_object();

	json_object_set_new(json, "token_bytes", json_u64(plan->token_bytes));
	json_object_set_new(json, "block_tokens", json_u64(in->block_tokens));
	json_object_set_new(json, "block_bytes", json_u64(plan->block_bytes));
	json_object_set_new(json, "block_stride", json_u64(plan->block_stride));
	json_object_set_new(json, "context_tokens", json_u64(in->context));
	json_object_set_new(json, "context_blocks", json_u64(plan->context_blocks));
	json_object_set_new(json, "context_bytes", json_u64(plan->context_bytes));
	json_object_set_new(json, "slab_bytes", json_u64(plan->slab_bytes));
	json_object_set_new(json, "slots_per_slab", json_u64(plan->slots_per_slab));
	json_object_set_new(json, "dram", tier_json(in->pool_bytes, &plan->dram));
	json_object_set_new(json, "spill", in->spill_bytes ? tier_json(in->spill_bytes, &plan->spill) : json_null());
	json_object_set_new(json, "params", in->params ? json_u64(in->params) : json_null());
	json_object_set_new(json, "step_cached", in->params ? step_json(&plan->cached) : json_null());
	json_object_set_new(json, "step_uncached", in->params ? step_json(&plan->uncached) : json_null());
	return json;
}

enum {
	OPT_DTYPE = 256,
	OPT_DTYPE_V,
	OPT_LAYOUT,
	OPT_NUMBER, /* + index into numbers[] */
};

struct plan_number {
	const char *name;
	size_t off;
	uint64_t max;
	bool size; /* 64M, 2G by 1024; else a count, 8k by 1000 */
};
#define AT(field) offsetof(struct plan_input, field)
static const struct plan_number numbers[] = {
	{"layers", AT(layers), KVP_LAYERS_MAX, false},
	{"kv-heads", AT(kv_heads), 4096, false},
	{"head-dim", AT(dim_k), 4096, false},
	{"dim-v", AT(dim_v), 4096, false},
	{"block-tokens", AT(block_tokens), 1 << 24, false},
	{"scale-bytes", AT(scale_bytes), 1 << 10, false},
	{"pool", AT(pool_bytes), 1ull << 50, true},
	{"slab", AT(slab_bytes), 1ull << 50, true},
	{"spill", AT(spill_bytes), 1ull << 50, true},
	{"spill-sector", AT(spill_sector), SPILL_PAGE, true},
	{"context", AT(context), 1 << 30, false},
	{"heads", AT(heads), 1 << 16, false},
	{"hidden", 0, 1 << 20, false}, /* sets params */
	{"params", AT(params), 1ull << 50, false},
	{"weight-bytes", AT(weight_bytes), 8, false},
};
#define N_NUMBERS (sizeof(numbers) / sizeof(numbers[0]))

static int plan_set_number(const struct options *options, const struct plan_number *number, const char *value,
	struct plan_input *in, uint64_t *hidden)
{
	uint64_t n;
	int r = number->size ? quantity_parse_bytes(value, &n) : quantity_parse_count(value, 0, number->max, &n);

	if (r < 0 || n > number->max || (!n && strcmp(number->name, "scale-bytes"))) {
		char wanted[96], name[32];

		snprintf(name, sizeof(name), "--%s", number->name);
		if (number->size)
			snprintf(wanted, sizeof(wanted), "a size: use 4096, 64M, 2G");
		else
			snprintf(wanted, sizeof(wanted), "a number from 1 to %" PRIu64, number->max);
		return option_wrong(options, name, value, wanted);
	}
	if (!strcmp(number->name, "hidden"))
		*hidden = n;
	else
		memcpy((char *)in + number->off, &n, sizeof(n));
	return 0;
}

static int plan_set_dtype(const struct options *options, const char *name, const char *value, uint64_t *type)
{
	for (uint32_t t = KVP_TYPE_F32; kvp_type_name(t); t++)
		if (!strcmp(kvp_type_name(t), value)) {
			*type = t;
			return 0;
		}
	return option_wrong(options, name, value, "f32, f16, bf16, fp8, int8 or int4");
}

static int plan_set_layout(const struct options *options, const char *value, uint64_t *layout)
{
	*layout = strcmp(value, "tiled") ? 0 : KVP_LAYOUT_TILED;
	return *layout || !strcmp(value, "rows") ? 0 : option_wrong(options, "--layout", value, "rows or tiled");
}

static int plan_set(const struct options *options, int c, const char *value, struct plan_input *in, uint64_t *hidden)
{
	switch (c) {
	case OPT_DTYPE:
		return plan_set_dtype(options, "--dtype", value, &in->type_k);
	case OPT_DTYPE_V:
		return plan_set_dtype(options, "--dtype-v", value, &in->type_v);
	case OPT_LAYOUT:
		return plan_set_layout(options, value, &in->layout);
	default:
		return plan_set_number(options, &numbers[c - OPT_NUMBER], value, in, hidden);
	}
}

static int plan_options(struct options *options, struct plan_input *in)
{
	struct option longs[N_NUMBERS + 6] = {0};
	uint64_t hidden = 0;
	int c, r = 0;

	for (unsigned i = 0; i < N_NUMBERS; i++)
		longs[i] = (struct option){numbers[i].name, required_argument, NULL, OPT_NUMBER + (int)i};
	longs[N_NUMBERS] = (struct option){"dtype", required_argument, NULL, OPT_DTYPE};
	longs[N_NUMBERS + 1] = (struct option){"dtype-v", required_argument, NULL, OPT_DTYPE_V};
	longs[N_NUMBERS + 2] = (struct option){"layout", required_argument, NULL, OPT_LAYOUT};
	longs[N_NUMBERS + 3] = (struct option)OPTION_JSON;
	longs[N_NUMBERS + 4] = (struct option){"help", no_argument, NULL, 'h'};
	options->longs = longs;
	in->scale_bytes = UINT64_MAX;
	while (!r && (c = option_next(options)) >= 0)
		r = plan_set(options, c, optarg, in, &hidden);
	if (r || c != OPTION_END)
		return r ? r : c;
	if (!in->layers || !in->kv_heads || !in->dim_k || !in->type_k || !in->block_tokens || !in->pool_bytes) {
		complain(
			"plan: --layers, --kv-heads, --head-dim, --dtype, --block-tokens and --pool must be given; see "
			"kvctl help plan");
		return OPTION_WRONG;
	}
	in->spill_sector = in->spill_sector ? in->spill_sector : SPILL_PAGE;
	if (!spill_unit_ok((uint32_t)in->spill_sector)) {
		complain("plan: --spill-sector is 512, 1024, 2048 or 4096");
		return OPTION_WRONG;
	}
	in->dim_v = in->dim_v ? in->dim_v : in->dim_k;
	in->heads = in->heads ? in->heads : in->kv_heads;
	in->context = in->context ? in->context : 8192;
	in->weight_bytes = in->weight_bytes ? in->weight_bytes : 2;
	in->type_v = in->type_v ? in->type_v : in->type_k;
	if (in->layout == KVP_LAYOUT_TILED && in->scale_bytes != UINT64_MAX) {
		complain("plan: --scale-bytes: --layout tiled has scales of its own");
		return OPTION_WRONG;
	}
	if (!tiled_only((uint32_t)in->type_k) && !tiled_only((uint32_t)in->type_v))
		in->scale_bytes = 0;
	else if (in->scale_bytes == UINT64_MAX)
		in->scale_bytes = 4;
	if (!in->params)
		in->params = 12 * in->layers * hidden * hidden;
	return OPTION_END;
}

int plan_command(int argc, char **argv)
{
	struct options options = {.command = "plan", .argc = argc, .argv = argv};
	struct plan_input in = {0};
	struct plan plan;
	int c = plan_options(&options, &in);

	if (c != OPTION_END)
		return option_exit(c);
	plan_make(&in, &plan);
	if (plan.slab_bytes > in.pool_bytes) {
		complain("plan: a block of %" PRIu64 " bytes is larger than the whole pool (%" PRIu64
			 "): use fewer --block-tokens, or a larger --pool",
			plan.block_stride, in.pool_bytes);
		return KVCTL_FAILED;
	}
	if (options.json)
		return output_end(report_json_print(plan_json(&in, &plan), 0));
	plan_print(&in, &plan);
	return output_end(KVCTL_DONE);
}
