/*
 * main.c - kvengine, kvpool's reference engine: greedy text from a small Llama-architecture model, one JSON object
 *
 * Made to show and test the pool, not to serve: one request, one thread but for attention.  Options in --help.
 */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "generate.h"
#include "kv.h"
#include "kvpool_desc.h"
#include "kvpool_stdio.h"
#include "tokenizer.h"

enum exit_code {
	EXIT_USAGE = 2,
	EXIT_FULL = 3, /* what was generated is there */
};

struct config {
	const char *model, *tokenizer, *prompt, *prompt_file;
	const char *kv_name, *attn_name;
	struct kv_opts kv;
	struct kv_pool_opts pool;
	struct generate_opts generate;
	uint32_t threads;
	bool no_pool, json;
};

enum option_id {
	OPT_MODEL = 256,
	OPT_TOKENIZER,
	OPT_PROMPT,
	OPT_PROMPT_FILE,
	OPT_STEPS,
	OPT_NO_POOL,
	OPT_NO_KV,
	OPT_KV,
	OPT_LAYOUT,
	OPT_ATTN,
	OPT_RESIDENT,
	OPT_BLOCK_TOKENS,
	OPT_CHUNK,
	OPT_THREADS,
	OPT_SOCKET,
	OPT_NAME,
	OPT_PACE,
	OPT_JSON,
	OPT_HELP,
};

static const struct option options[] = {
	{"model", required_argument, NULL, OPT_MODEL},
	{"tokenizer", required_argument, NULL, OPT_TOKENIZER},
	{"prompt", required_argument, NULL, OPT_PROMPT},
	{"prompt-file", required_argument, NULL, OPT_PROMPT_FILE},
	{"steps", required_argument, NULL, OPT_STEPS},
	{"no-pool", no_argument, NULL, OPT_NO_POOL},
	{"no-kv", no_argument, NULL, OPT_NO_KV},
	{"kv", required_argument, NULL, OPT_KV},
	{"layout", required_argument, NULL, OPT_LAYOUT},
	{"attn", required_argument, NULL, OPT_ATTN},
	{"resident", required_argument, NULL, OPT_RESIDENT},
	{"block-tokens", required_argument, NULL, OPT_BLOCK_TOKENS},
	{"chunk", required_argument, NULL, OPT_CHUNK},
	{"threads", required_argument, NULL, OPT_THREADS},
	{"socket", required_argument, NULL, OPT_SOCKET},
	{"name", required_argument, NULL, OPT_NAME},
	{"pace", required_argument, NULL, OPT_PACE},
	{"json", no_argument, NULL, OPT_JSON},
	{"help", no_argument, NULL, OPT_HELP},
	{0},
};

static const char usage[] =
	"kvengine --model FILE [--tokenizer FILE] --prompt TEXT|--prompt-file FILE [options]\n"
	"\n"
	"Greedy text from a Llama-architecture model, its K and V in kvpool's pool.\n"
	"\n"
	"  --model FILE        checkpoint, of kvpool's format or llama2.c's\n"
	"  --tokenizer FILE    in llama2.c's format; default: the model's name with .tok at its end\n"
	"  --prompt TEXT       the prompt, or\n"
	"  --prompt-file FILE  the file that holds it, taken as it is\n"
	"  --steps N           tokens to generate at most (64)\n"
	"  --kv TYPE           how K and V are stored: f32, f16, bf16, fp8, int8 or int4 (f32); K:V for two types\n"
	"  --layout L          of the blocks: tiled, hnd or nhd (tiled); int8 and int4 are in tiled only\n"
	"  --attn HOW          full; window:W tokens and 4 sinks; sparse:K blocks a KV head, chosen by their summaries;\n"
	"                      heavy:N tokens of the prompt kept: sinks, latest, most attended (full)\n"
	"  --resident N        with sparse: blocks held at most, the others may go to the spill store (all)\n"
	"  --block-tokens N    tokens of a block (16)\n"
	"  --chunk N           prompt tokens computed together (64)\n"
	"  --threads N|auto    that attend, the others waiting meanwhile; the ids are the same (1)\n"
	"  --socket PATH       of the daemon; default: KVPOOL_SOCKET, else /run/kvpool/kvpoold.sock\n"
	"  --name NS           namespace in the pool (kvengine)\n"
	"  --no-pool           keep K and V in this process's memory\n"
	"  --no-kv             keep none: compute everything again at each step\n"
	"  --pace MS           rest that long between tokens, for watchers\n"
	"  --json              print one JSON object instead of the text\n"
	"\n"
	"Exit status: 0 done, 1 failed, 2 wrong usage, 3 the context was full before the last step.\n";

static int number_parse(const char *text, const char *option, uint32_t min, uint32_t max, uint32_t *value)
{
	char *end;
	unsigned long n;

	errno = 0;
	n = strtoul(text, &end, 10);
	if (errno || end == text || *end || text[0] == '-' || n < min || n > max) {
		fprintf(stderr, "kvengine: --%s %s: give a number from %u to %u\n", option, text, min, max);
		return -EINVAL;
	}
	*value = (uint32_t)n;
	return 0;
}

/* The type called by the first @length characters of @text; 0: none. */
static uint32_t type_named(const char *text, size_t length)
{
	for (uint32_t type = KVP_TYPE_F32; kvp_type_name(type); type++)
		if (strlen(kvp_type_name(type)) == length && strncmp(kvp_type_name(type), text, length) == 0)
			return type;
	return 0;
}

/* "int8", or "int8:int4" with V's after the colon */
static int type_parse(const char *text, struct config *config)
{
	const char *v = strchr(text, ':');

	config->kv.type = type_named(text, v ? (size_t)(v - text) : strlen(text));
	config->kv.type_v = v ? type_named(v + 1, strlen(v + 1)) : config->kv.type;
	config->kv_name = text;
	if (config->kv.type && config->kv.type_v)
		return 0;
	fprintf(stderr, "kvengine: --kv %s: give f32, f16, bf16, fp8, int8 or int4, or two of them: K:V\n", text);
	return -EINVAL;
}

static int layout_parse(const char *text, struct config *config)
{
	static const struct {
		const char *name;
		uint32_t layout;
	} layouts[] = {{"tiled", KVP_LAYOUT_TILED}, {"hnd", KVP_LAYOUT_HND}, {"nhd", KVP_LAYOUT_NHD}};

	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
		if (strcmp(text, layouts[i].name) == 0) {
			config->kv.layout = layouts[i].layout;
			return 0;
		}
	fprintf(stderr, "kvengine: --layout %s: give tiled, hnd or nhd\n", text);
	return -EINVAL;
}

static int option_take(int id, const char *value, struct config *config)
{
	switch (id) {
	case OPT_MODEL:
		config->model = value;
		return 0;
	case OPT_TOKENIZER:
		config->tokenizer = value;
		return 0;
	case OPT_PROMPT:
		config->prompt = value;
		return 0;
	case OPT_PROMPT_FILE:
		config->prompt_file = value;
		return 0;
	case OPT_STEPS:
		return number_parse(value, "steps", 0, 1 << 20, &config->generate.steps);
	case OPT_NO_POOL:
		config->no_pool = true;
		return 0;
	case OPT_NO_KV:
		config->generate.forget = true;
		return 0;
	case OPT_KV:
		return type_parse(value, config);
	case OPT_LAYOUT:
		return layout_parse(value, config);
	case OPT_ATTN:
		config->attn_name = value;
		if (attend_parse(value, &config->generate.attend) == 0)
			return 0;
		fprintf(stderr, "kvengine: --attn %s: give full, window:W, sparse:K or heavy:N (N from %u)\n", value,
			ATTEND_HEAVY_MIN);
		return -EINVAL;
	case OPT_RESIDENT:
		return number_parse(value, "resident", 1, 1 << 24, &config->kv.resident_blocks);
	case OPT_BLOCK_TOKENS:
		return number_parse(value, "block-tokens", 1, 1 << 20, &config->kv.block_tokens);
	case OPT_CHUNK:
		return number_parse(value, "chunk", 1, 4096, &config->generate.chunk);
	case OPT_THREADS:
		if (strcmp(value, "auto") != 0)
			return number_parse(value, "threads", 1, 1024, &config->threads);
		config->threads = KVATTN_THREADS_AUTO;
		return 0;
	case OPT_SOCKET:
		config->pool.socket = value;
		return 0;
	case OPT_NAME:
		config->pool.name = value;
		return 0;
	case OPT_PACE:
		return number_parse(value, "pace", 0, 60000, &config->generate.pace_ms);
	case OPT_JSON:
		config->json = true;
		return 0;
	default:
		return -EINVAL;
	}
}

/* The option that begins most alike; "": none does. */
static const char *option_like(const char *name)
{
	const char *best = "";
	size_t most = 1; /* one letter alike is none */

	for (const struct option *option = options; option->name; option++) {
		size_t n = 0;

		while (name[n] && name[n] == option->name[n])
			n++;
		if (n > most) {
			most = n;
			best = option->name;
		}
	}
	return best;
}

static int option_wrong(int id, const char *word)
{
	const char *like = option_like(word + strspn(word, "-"));

	if (id == ':')
		fprintf(stderr, "kvengine: %s needs a value; kvengine --help lists the options\n", word);
	else
		fprintf(stderr, "kvengine: unknown option %s;%s%s%s kvengine --help lists the options\n", word,
			like[0] ? " did you mean --" : "", like, like[0] ? "?" : "");
	return -EINVAL;
}

/* Return: 0; 1 help was given; -EINVAL with the reason printed. */
static int config_parse(int argc, char **argv, struct config *config)
{
	int id;

	opterr = 0;
	while ((id = getopt_long(argc, argv, ":", options, NULL)) != -1) {
		if (id == '?' || id == ':')
			return option_wrong(id, argv[optind - 1]);
		if (id == OPT_HELP) {
			fputs(usage, stdout);
			return 1;
		}
		if (option_take(id, optarg, config) < 0)
			return -EINVAL;
	}
	if (optind < argc)
		fprintf(stderr, "kvengine: %s: options only; a prompt goes after --prompt\n", argv[optind]);
	else if (!config->model)
		fputs("kvengine: --model is missing; kvengine --help lists the options\n", stderr);
	else if (config->kv.layout && config->kv.layout != KVP_LAYOUT_TILED &&
		 (tiled_only(config->kv.type) || tiled_only(config->kv.type_v)))
		fputs("kvengine: --kv int8 and int4 need --layout tiled\n", stderr);
	else if (config->generate.forget && config->generate.attend.kind != ATTEND_FULL)
		fputs("kvengine: --no-kv computes all again: it goes with --attn full only\n", stderr);
	else if (config->kv.resident_blocks && config->generate.attend.kind != ATTEND_SPARSE)
		fputs("kvengine: --resident goes with --attn sparse only\n", stderr);
	else if (!config->prompt == !config->prompt_file)
		fputs("kvengine: give either --prompt or --prompt-file\n", stderr);
	else
		return 0;
	return -EINVAL;
}

/* The model's path with its last suffix replaced by ".tok". */
static int tokenizer_default(const char *model, char *path, size_t size)
{
	const char *slash = strrchr(model, '/'), *dot = strrchr(model, '.');
	const size_t stem = dot && (!slash || dot > slash + 1) && dot != model ? (size_t)(dot - model) : strlen(model);

	if (stem + sizeof(".tok") > size)
		return -ENAMETOOLONG;
	memcpy(path, model, stem);
	strcpy(path + stem, ".tok");
	return 0;
}

static int inputs_open(
	const struct config *config, struct model *model, struct tokenizer *tokenizer, struct error *error)
{
	char path[PATH_MAX];
	int r = model_open(model, config->model, error);

	if (r < 0)
		return r;
	if (config->tokenizer)
		return tokenizer_open(tokenizer, config->tokenizer, model->n_vocab, error);
	if (tokenizer_default(config->model, path, sizeof(path)) < 0)
		return error_set(error, -ENAMETOOLONG, "%s: the path is too long", config->model);
	r = tokenizer_open(tokenizer, path, model->n_vocab, error);
	if (r == -ENOENT)
		return error_set(
			error, r, "%s: there is no tokenizer beside the model; give its path with --tokenizer", path);
	return r;
}

static int64_t prompt_encode(const struct config *config, const struct model *model, const struct tokenizer *tokenizer,
	uint32_t **ids, struct error *error)
{
	struct file file;
	int64_t n;

	if (config->prompt)
		return tokenizer_encode(tokenizer, config->prompt, strlen(config->prompt), model->context, ids, error);
	n = file_map(&file, config->prompt_file, error);
	if (n < 0)
		return n;
	n = tokenizer_encode(tokenizer, (const char *)file.bytes, file.size, model->context, ids, error);
	file_unmap(&file);
	return n;
}

/* Text for JSON: bytes that are not UTF-8 become U+FFFD.  Generated bytes need not make whole characters. */
static json_t *json_text(const char *text, size_t length)
{
	static const char replacement[] = "\xef\xbf\xbd";
	json_t *json = json_stringn(text, length);
	char *clean = json ? NULL : malloc(3 * length + 1);
	size_t n = 0;

	for (size_t at = 0, take; clean && at < length; at += take) {
		json_t *whole = NULL;

		for (take = length - at < 4 ? length - at : 4; take > 0 && !whole; take -= !whole)
			whole = json_stringn(text + at, take);
		memcpy(clean + n, whole ? text + at : replacement, whole ? take : 3);
		n += whole ? take : 3;
		take = whole ? take : 1;
		json_decref(whole);
	}
	if (clean)
		json = json_stringn(clean, n);
	free(clean);
	return json;
}

static int result_print_json(
	const struct config *config, const struct generate_result *result, const char *text, size_t length)
{
	json_t *ids = json_array();
	json_t *json;

	for (uint64_t i = 0; i < result->n_ids; i++)
		json_array_append_new(ids, json_integer(result->ids[i]));
	json = json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:s, s:I, s:s, s:f, s:I}", "ids", ids,
		"text", json_text(text, length), "prompt_tokens", (json_int_t)result->prompt_tokens, "reused_ram",
		(json_int_t)result->reused_ram, "reused_spill", (json_int_t)result->reused_spill, "computed",
		(json_int_t)result->computed, "forward_tokens", (json_int_t)result->forward_tokens, "ttft_ms",
		result->ttft_ms, "decode_tok_s", result->decode_tok_s, "isa", kvattn_isa_name(), "kv", config->kv_name,
		"copied_bytes", (json_int_t)result->copied_bytes, "attn", config->attn_name, "attended",
		result->attended, "restored", (json_int_t)result->restored);
	if (!json)
		return -ENOMEM;
	json_dumpf(json, stdout, JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(json);
	return 0;
}

static int result_print(const struct config *config, const struct tokenizer *tokenizer,
	const struct generate_result *result, struct error *error)
{
	char *text;
	const int64_t length = tokenizer_decode(tokenizer, result->ids, result->n_ids, &text);
	int r = 0;

	if (length < 0)
		return error_set(error, -ENOMEM, "not enough memory for the text");
	if (config->json) {
		r = result_print_json(config, result, text, (size_t)length);
	} else {
		fwrite(text, 1, (size_t)length, stdout);
		putchar('\n');
	}
	free(text);
	if (r < 0)
		return error_set(error, r, "not enough memory for the result");
	if (fflush(stdout) != 0)
		return error_set(error, -errno, "standard output: %s", strerror(errno));
	return 0;
}

static int store_open(const struct config *config, bool no_pool, const struct model *model,
	const struct tokenizer *tokenizer, struct kv_store **store, struct error *error)
{
	const enum attend_kind kind = config->generate.attend.kind;
	struct kv_pool_opts pool = config->pool;
	struct kv_opts kv = config->kv;

	/* what chooses blocks or tokens is libkvpool's, with a pool or without */
	if ((no_pool && kind != ATTEND_SPARSE && kind != ATTEND_HEAVY) || config->generate.forget)
		return kv_private_open(model, &kv, store, error);
	pool.tokenizer = tokenizer->fingerprint;
	pool.offline = no_pool;
	kv.summaries = kind == ATTEND_SPARSE;
	if (kind == ATTEND_SPARSE || kind == ATTEND_WINDOW) /* heavy: the prompt is exact, what is kept is labelled */
		kv.label = config->attn_name;
	if (kind == ATTEND_WINDOW) {
		kv.window = config->generate.attend.n;
		kv.sinks = ATTEND_SINKS;
	}
	return kv_pool_open(model, &kv, &pool, store, error);
}

static int generate(const struct config *config, const struct model *model, const struct tokenizer *tokenizer,
	const uint32_t *ids, uint64_t n, struct generate_result *result, struct error *error)
{
	struct generate_opts opts = config->generate;
	struct kv_store *store = NULL;
	int r = store_open(config, config->no_pool, model, tokenizer, &store, error);

	if (r < 0)
		return r;
	opts.attend.piece = config->kv.resident_blocks;
	opts.attend.threads = config->threads;
	r = generate_run(model, store, ids, n, &opts, result, error);
	kv_close(store);
	if (r != -ESTALE)
		return r;
	/* Blocks vanished under the sequence, so nothing it gave can be trusted: once more, from memory of our own. */
	fprintf(stderr, "kvengine: %s; computing again without the pool\n", error->text);
	r = store_open(config, true, model, tokenizer, &store, error);
	if (r < 0)
		return r;
	r = generate_run(model, store, ids, n, &opts, result, error);
	kv_close(store);
	return r;
}

/* Return: 0; EXIT_FULL. */
static int full_tell(const struct config *config, const struct generate_result *result, const struct model *model)
{
	if (!result->full)
		return 0;
	fprintf(stderr, "kvengine: the model's context of %u tokens is full after %llu of %u steps\n", model->context,
		(unsigned long long)(result->n_ids - result->prompt_tokens), config->generate.steps);
	return EXIT_FULL;
}

/* Return: 0, EXIT_FULL; negative errno. */
static int run(const struct config *config, struct error *error)
{
	struct generate_result result = {0};
	struct tokenizer tokenizer = {0};
	struct model model = {0};
	uint32_t *ids = NULL;
	int64_t r = inputs_open(config, &model, &tokenizer, error);

	if (r == 0)
		r = prompt_encode(config, &model, &tokenizer, &ids, error);
	if (r >= 0)
		r = generate(config, &model, &tokenizer, ids, (uint64_t)r, &result, error);
	if (r == 0)
		r = result_print(config, &tokenizer, &result, error);
	if (r == 0)
		r = full_tell(config, &result, &model);
	free(result.ids);
	free(ids);
	tokenizer_close(&tokenizer);
	model_close(&model);
	return (int)r;
}

int main(int argc, char **argv)
{
	struct config config = {
		.kv = {.type = KVATTN_F32, .block_tokens = 16},
		.kv_name = "f32",
		.attn_name = "full",
		.pool = {.name = "kvengine"},
		.generate = {.steps = 64, .chunk = 64},
	};
	struct error error = {0};
	int r;

	if (kvp_stdio_hold() < 0)
		return EXIT_FAILURE;
	r = config_parse(argc, argv, &config);
	if (r != 0)
		return r > 0 ? EXIT_SUCCESS : EXIT_USAGE;
	r = run(&config, &error);
	if (r < 0) {
		fprintf(stderr, "kvengine: %s\n", error.text);
		return EXIT_FAILURE;
	}
	return r;
}
