/*
 * replay.c - kvctl replay: what a pool of a size would have kept of a trace, beside least recent use and the optimum;
 * see replay.h
 */
#include "replay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kvctl.h"
#include "option.h"
#include "quantity.h"
#include "report.h"
#include "table.h"

enum {
	OPT_POOL = 256,
	OPT_SPILL,
	OPT_POLICY,
	OPT_HINTS,
	OPT_STORE,
	OPT_ADMIT,
	OPT_BUDGET,
	OPT_BLOCK_BYTES,
	OPT_SWEEP,
};

static const char *const policies[] = {"lru", "learned", "unguarded"};
static const char *const stores[] = {"chosen", "log"};
static const char *const admissions[] = {"all", "reused", "chance"};
/* percent of the blocks of a trace */
static const double sweep_sizes[] = {0.5, 1, 2, 5, 10, 20, 50, 100};

struct replay_input {
	struct options options;
	const char *pool, *spill; /* as given */
	uint64_t block_bytes;
	bool sweep;
	struct replay_options play;
};

/* ---- options ---- */

static int name_index(const char *const *names, unsigned n, const char *name)
{
	for (unsigned i = 0; i < n; i++)
		if (!strcmp(names[i], name))
			return (int)i;
	return -1;
}

static int share_parse(const char *text, double *share)
{
	char *end;

	*share = strtod(text, &end);
	return end == text || *end || !(*share >= 0 && *share <= 1) ? -EINVAL : 0;
}

static int replay_set(struct replay_input *in, int c)
{
	int i = 0;

	switch (c) {
	case OPT_POOL:
		in->pool = optarg;
		return 0;
	case OPT_SPILL:
		in->spill = optarg;
		return 0;
	case OPT_POLICY:
		i = name_index(policies, 3, optarg);
		if (i < 0)
			return option_wrong(&in->options, "--policy", optarg, "lru, learned or unguarded");
		in->play.policy = (enum replay_policy)i;
		return 0;
	case OPT_STORE:
		i = name_index(stores, 2, optarg);
		if (i < 0)
			return option_wrong(&in->options, "--store", optarg, "chosen or log");
		in->play.store = (enum replay_store)i;
		return 0;
	case OPT_ADMIT:
		i = name_index(admissions, 3, optarg);
		if (i < 0)
			return option_wrong(&in->options, "--admit", optarg, "all, reused or chance");
		in->play.admission = (enum admission_kind)i;
		return 0;
	case OPT_HINTS:
		return share_parse(optarg, &in->play.hints_wrong) < 0
			       ? option_wrong(&in->options, "--hints", optarg, "the share that is wrong, from 0 to 1")
			       : 0;
	case OPT_BUDGET:
		return share_parse(optarg, &in->play.budget) < 0
			       ? option_wrong(&in->options, "--write-budget", optarg, "a share from 0 to 1")
			       : 0;
	case OPT_BLOCK_BYTES:
		if (quantity_parse_bytes(optarg, &in->block_bytes) < 0 || !in->block_bytes)
			return option_wrong(&in->options, "--block-bytes", optarg, "a size: use 4096, 2M");
		return 0;
	default:
		in->sweep = true;
		return 0;
	}
}

static int replay_options_read(struct replay_input *in)
{
	static const struct option longs[] = {{"pool", required_argument, NULL, OPT_POOL},
		{"spill", required_argument, NULL, OPT_SPILL}, {"policy", required_argument, NULL, OPT_POLICY},
		{"hints", required_argument, NULL, OPT_HINTS}, {"store", required_argument, NULL, OPT_STORE},
		{"admit", required_argument, NULL, OPT_ADMIT}, {"write-budget", required_argument, NULL, OPT_BUDGET},
		{"block-bytes", required_argument, NULL, OPT_BLOCK_BYTES}, {"sweep", no_argument, NULL, OPT_SWEEP},
		OPTION_JSON, OPTION_LAST};
	int c;

	in->options.longs = longs;
	in->options.max_rest = 1;
	while ((c = option_next(&in->options)) >= 0) {
		int r = replay_set(in, c);

		if (r < 0)
			return r;
	}
	if (c != OPTION_END)
		return c;
	if (optind >= in->options.argc || (!in->pool && !in->sweep)) {
		complain("replay: a trace and --pool must be given, or a trace and --sweep; see kvctl help replay");
		return OPTION_WRONG;
	}
	if (in->sweep && (in->pool || in->spill)) {
		complain("replay: --sweep chooses the sizes itself: leave out --pool and --spill");
		return OPTION_WRONG;
	}
	if (in->play.admission != ADMIT_ALL && (!in->spill || in->play.policy == REPLAY_LRU)) {
		complain(
			"replay: --admit goes by what --policy learned knows, for a store: give --policy learned and --spill");
		return OPTION_WRONG;
	}
	return OPTION_END;
}

/* "5%" of the trace's blocks, "4500" blocks, or bytes: "64G". */
static int replay_size(const struct replay_input *in, const struct replay_trace *trace, const char *name,
	const char *text, uint64_t *blocks)
{
	uint64_t bytes;
	char *end;
	double n = strtod(text, &end);

	if (end != text && !strcmp(end, "%") && n > 0 && n <= 100) {
		*blocks = (uint64_t)(n * trace->n_blocks / 100);
		return 0;
	}
	if (quantity_parse_bytes(text, &bytes) < 0)
		return option_wrong(&in->options, name, text, "a size: use 4500 (blocks), 5% (of the trace's), 64G");
	*blocks = bytes;
	if (text[strspn(text, "0123456789")] == 0)
		return *blocks <= UINT32_MAX / 4 ? 0 : option_wrong(&in->options, name, text, "a number of blocks");
	if (!in->block_bytes) {
		complain(
			"replay: %s %s is in bytes: say with --block-bytes what a block of %u tokens takes (kvctl plan tells)",
			name, text, trace->block_tokens);
		return OPTION_WRONG;
	}
	*blocks = bytes / in->block_bytes;
	return *blocks <= UINT32_MAX / 4 ? 0 : option_wrong(&in->options, name, text, "so small");
}

/* ---- output ---- */

static double percent(const struct replay_trace *trace, uint64_t blocks)
{
	return 100.0 * (double)blocks * trace->block_tokens / (double)trace->n_tokens;
}

static double written_per_served(const struct replay_result *result)
{
	uint64_t served = result->pool_hits + result->spill_hits;

	return served ? (double)result->written / (double)served : 0;
}

static void trace_print(const struct replay_trace *trace, const char *path)
{
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], c[QUANTITY_ROOM];

	printf("%s: %s requests, %s tokens, %s blocks of %u tokens\n", path, quantity_count(a, trace->n_requests),
		quantity_count(b, trace->n_tokens), quantity_count(c, trace->n_blocks), trace->block_tokens);
}

static void policy_print(const struct replay_options *play)
{
	printf("policy %s", policies[play->policy]);
	if (play->hints_wrong >= 0)
		printf(", a hint a request, %.0f %% of them wrong", 100 * play->hints_wrong);
	if (play->spill)
		printf(", to the store: %s", admissions[play->admission]);
	if (play->spill && play->admission == ADMIT_CHANCE)
		printf(" (%.0f %% of what is offered)", 100 * play->budget);
	if (play->spill && play->store == REPLAY_LOG)
		printf(", from it: what was written first");
	printf("\n");
}

static void result_print(const struct replay_trace *trace, const struct replay_input *in,
	const struct replay_result *result, uint64_t best)
{
	static const char *const heads[] = {"<", ">blocks", ">hits", ">% of tokens"};
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], c[QUANTITY_ROOM];
	struct table table;

	trace_print(trace, in->options.argv[optind]);
	policy_print(&in->play);
	table_init(&table, heads, 4);
	for (unsigned i = 0; i < 3; i++) {
		uint64_t hits = i == 0 ? result->pool_hits : i == 1 ? result->spill_hits : best;
		uint64_t room = i == 0 ? in->play.pool : i == 1 ? in->play.spill : in->play.pool + in->play.spill;

		if (i == 1 && !room)
			continue;
		table_cell(&table, "%s", i == 0 ? "memory" : i == 1 ? "store" : "the optimum");
		table_cell(&table, "%s", quantity_count(a, room));
		table_cell(&table, "%s", quantity_count(a, hits));
		table_cell(&table, "%.2f", percent(trace, hits));
	}
	table_print(&table, 0);
	printf("evicted %s, not taken in %s", quantity_count(a, result->evicted), quantity_count(b, result->refused));
	if (in->play.spill)
		printf(", written %s (%.2f a block served, %s of them again), lost from the store %s",
			quantity_count(a, result->written), written_per_served(result),
			quantity_count(b, result->again), quantity_count(c, result->lost));
	printf("\n");
	printf("%.0f ns a decision\n", result->decision_ns);
}

static json_t *result_json(const struct replay_trace *trace, const struct replay_options *play,
	const struct replay_result *result, uint64_t best)
{
	json_t *json = json_object();

	json_object_set_new(json, "policy", json_string(policies[play->policy]));
	json_object_set_new(json, "store", json_string(stores[play->store]));
	json_object_set_new(json, "pool_blocks", json_u64(play->pool));
	json_object_set_new(json, "spill_blocks", json_u64(play->spill));
	json_object_set_new(json, "pool_hits", json_u64(result->pool_hits));
	json_object_set_new(json, "spill_hits", json_u64(result->spill_hits));
	json_object_set_new(json, "best_hits", json_u64(best));
	json_object_set_new(json, "pool_percent", json_real(percent(trace, result->pool_hits)));
	json_object_set_new(json, "spill_percent", json_real(percent(trace, result->spill_hits)));
	json_object_set_new(json, "best_percent", json_real(percent(trace, best)));
	json_object_set_new(json, "evicted", json_u64(result->evicted));
	json_object_set_new(json, "refused", json_u64(result->refused));
	json_object_set_new(json, "written", json_u64(result->written));
	json_object_set_new(json, "written_again", json_u64(result->again));
	json_object_set_new(json, "lost", json_u64(result->lost));
	json_object_set_new(json, "written_per_served", json_real(written_per_served(result)));
	json_object_set_new(json, "decision_ns", json_real(result->decision_ns));
	json_object_set_new(json, "policy_bytes", json_u64(result->policy_bytes));
	json_object_set_new(json, "switches", json_u64(result->switches));
	return json;
}

static json_t *trace_json(const struct replay_trace *trace, const char *path)
{
	json_t *json = json_object();

	json_object_set_new(json, "trace", json_text(path, strlen(path)));
	json_object_set_new(json, "requests", json_u64(trace->n_requests));
	json_object_set_new(json, "tokens", json_u64(trace->n_tokens));
	json_object_set_new(json, "blocks", json_u64(trace->n_blocks));
	json_object_set_new(json, "block_tokens", json_u64(trace->block_tokens));
	return json;
}

/* ---- the command ---- */

static int replay_one(const struct replay_trace *trace, struct replay_input *in, json_t *json)
{
	struct replay_result result;
	int64_t best;
	int r;

	if (replay_size(in, trace, "--pool", in->pool, &in->play.pool) < 0 ||
		(in->spill && replay_size(in, trace, "--spill", in->spill, &in->play.spill) < 0))
		return -EINVAL;
	r = replay_run(trace, &in->play, &result);
	best = r < 0 ? r : replay_best(trace, in->play.pool + in->play.spill);
	if (best < 0)
		return (int)best;
	if (in->options.json)
		json_object_set_new(json, "result", result_json(trace, &in->play, &result, (uint64_t)best));
	else
		result_print(trace, in, &result, (uint64_t)best);
	return 0;
}

static void sweep_print(const json_t *sizes, const char *policy)
{
	static const char *const columns[] = {"lru_percent", "pool_percent", "best_percent"};
	const char *heads[] = {">size", ">blocks", ">lru", NULL, ">optimum"};
	char name[32], n[QUANTITY_ROOM];
	struct table table;
	json_t *row;
	size_t i;

	snprintf(name, sizeof(name), ">%s", policy);
	heads[3] = name;
	table_init(&table, heads, 5);
	json_array_foreach(sizes, i, row)
	{
		table_cell(&table, "%g %%", json_real_value(json_object_get(row, "size_percent")));
		table_cell(&table, "%s",
			quantity_count(n, (uint64_t)json_integer_value(json_object_get(row, "pool_blocks"))));
		for (unsigned c = 0; c < 3; c++)
			table_cell(&table, "%.2f", json_real_value(json_object_get(row, columns[c])));
	}
	table_print(&table, 0);
}

static int replay_sweep(const struct replay_trace *trace, struct replay_input *in, json_t *json)
{
	struct replay_options lru = {.policy = REPLAY_LRU, .hints_wrong = -1};
	json_t *sizes = json_array();
	int r = 0;

	for (unsigned i = 0; !r && i < sizeof(sweep_sizes) / sizeof(sweep_sizes[0]); i++) {
		struct replay_result by_lru = {0}, result = {0};
		int64_t best;
		json_t *row;

		lru.pool = in->play.pool = (uint64_t)(sweep_sizes[i] * trace->n_blocks / 100);
		r = replay_run(trace, &lru, &by_lru);
		r = r ? r : replay_run(trace, &in->play, &result);
		best = r ? r : replay_best(trace, lru.pool);
		if (best < 0) {
			r = (int)best;
			break;
		}
		row = result_json(trace, &in->play, &result, (uint64_t)best);
		json_object_set_new(row, "size_percent", json_real(sweep_sizes[i]));
		json_object_set_new(row, "lru_percent", json_real(percent(trace, by_lru.pool_hits)));
		json_array_append_new(sizes, row);
	}
	json_object_set_new(json, "sweep", sizes);
	if (r || in->options.json)
		return r;
	trace_print(trace, in->options.argv[optind]);
	policy_print(&in->play);
	printf("hits in %% of tokens, by size in %% of the trace's blocks:\n");
	sweep_print(sizes, policies[in->play.policy]);
	return 0;
}

int replay_command(int argc, char **argv)
{
	struct replay_input in = {.options = {.command = "replay", .argc = argc, .argv = argv},
		.play = {.policy = REPLAY_LEARNED, .hints_wrong = -1, .budget = 0.25, .seed = 1}};
	struct replay_trace trace;
	char why[256];
	json_t *json;
	int c = replay_options_read(&in), r;

	if (c != OPTION_END)
		return option_exit(c);
	if (replay_trace_read(&trace, argv[optind], why) < 0) {
		complain("replay: %s", why);
		return KVCTL_FAILED;
	}
	json = trace_json(&trace, argv[optind]);
	r = in.sweep ? replay_sweep(&trace, &in, json) : replay_one(&trace, &in, json);
	replay_trace_free(&trace);
	if (r == -ENOMEM)
		complain(
			"replay: %s: out of memory: a trace takes some 100 bytes a block, twice, and 4 a block asked for",
			argv[optind]);
	if (r < 0 || !in.options.json)
		json_decref(json);
	else
		r = report_json_print(json, 0);
	return output_end(r == -EINVAL ? KVCTL_USAGE : r < 0 ? KVCTL_FAILED : r);
}
