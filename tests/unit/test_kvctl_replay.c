/* test_kvctl_replay.c - kvctl replay against plain searches on small traces, and on real ones where they lie beside the
   repository */
#include "test_kvctl_fixture.h"

#include <zstd.h>

#include "client/kvctl/replay.h"

#define REAL "../shared/traces/"

struct outputs {
	struct fake fake;
	char dir[32];
	char path[64];
};

static int outputs_setup(void **state)
{
	struct outputs *o = calloc(1, sizeof(*o));

	o->fake.out = malloc(FAKE_OUTPUT);
	o->fake.err = malloc(FAKE_OUTPUT);
	strcpy(o->dir, "/tmp/kvp-replay-XXXXXX");
	assert_non_null(mkdtemp(o->dir));
	snprintf(o->path, sizeof(o->path), "%s/trace", o->dir);
	*state = o;
	return 0;
}

static int outputs_teardown(void **state)
{
	struct outputs *o = *state;

	unlink(o->path);
	rmdir(o->dir);
	free(o->fake.out);
	free(o->fake.err);
	free(o);
	return 0;
}

static void given_file(struct outputs *o, const void *bytes, size_t n)
{
	FILE *file = fopen(o->path, "w");

	assert_non_null(file);
	assert_true(fwrite(bytes, 1, n, file) == n);
	fclose(file);
}

static void given_text(struct outputs *o, const char *text)
{
	given_file(o, text, strlen(text));
}

static struct replay_trace given_trace(struct outputs *o, const char *text)
{
	struct replay_trace trace;
	char why[256] = "";

	given_text(o, text);
	if (replay_trace_read(&trace, o->path, why) < 0)
		fail_msg("%s", why);
	return trace;
}

/* Sessions that grow, some with the same first blocks, some that come once. Blocks of 4 tokens. */
static struct replay_trace given_traffic(struct outputs *o, uint32_t seed, unsigned n)
{
	struct replay_trace trace;
	size_t room = 1 << 20, at = 0;
	char *text = malloc(room);
	unsigned length[30] = {0};

	at += (size_t)snprintf(text, room, "# kvt1 block=4\n");
	for (unsigned i = 0; i < n; i++) {
		unsigned s, first;

		seed = seed * 1664525u + 1013904223u;
		s = (seed >> 8) % 30;
		length[s] = length[s] < 12 ? length[s] + 1 + (seed >> 20) % 3 : 1;
		first = s < 6 ? 0 : 1000 * s; /* of six sessions the first two blocks are the same */
		at += (size_t)snprintf(text + at, room - at, "%u %u 1 %u-%u", i * 700, 4 * length[s] + 2, first,
			first + (length[s] > 1));
		if (length[s] > 2)
			at += (size_t)snprintf(text + at, room - at, " %u-%u", 1000 * s + 2, 1000 * s + length[s] - 1);
		at += (size_t)snprintf(text + at, room - at, " %u\n", 1000 * s + 900); /* not whole: never counted */
	}
	trace = given_trace(o, text);
	free(text);
	return trace;
}

/* Tail-first LRU as plainly as can be: by last request, then by depth. Return: blocks found. */
static uint64_t plain_lru(const struct replay_trace *trace, unsigned room)
{
	uint32_t *used = calloc(trace->n_blocks, 4), *depth = calloc(trace->n_blocks, 4);
	uint64_t hits = 0;
	unsigned n = 0;

	for (uint32_t r = 0; r < trace->n_requests; r++) {
		const struct replay_request *request = &trace->requests[r];
		const uint32_t *ids = trace->ids + request->first;
		uint32_t k = 0;

		for (; k < request->n && used[ids[k]]; k++)
			hits++;
		for (uint32_t i = 0; i < k; i++)
			used[ids[i]] = r + 1;
		for (; k < request->n; k++) {
			if (n == room) {
				uint32_t oldest = UINT32_MAX;

				for (uint32_t i = 0; i < trace->n_blocks; i++)
					if (used[i] && used[i] <= r &&
						(oldest == UINT32_MAX || used[i] < used[oldest] ||
							(used[i] == used[oldest] && depth[i] > depth[oldest])))
						oldest = i;
				if (oldest == UINT32_MAX)
					break;
				used[oldest] = 0;
				n--;
			}
			used[ids[k]] = r + 1;
			depth[ids[k]] = k;
			n++;
		}
	}
	free(used);
	free(depth);
	return hits;
}

static uint64_t hits_of(const struct replay_trace *trace, enum replay_policy policy, uint64_t room, double hints_wrong)
{
	struct replay_options options = {.policy = policy, .pool = room, .hints_wrong = hints_wrong, .seed = 1};
	struct replay_result result;

	assert_int_equal(replay_run(trace, &options, &result), 0);
	return result.pool_hits;
}

static void lru_finds_what_a_plain_search_finds(void **state)
{
	for (uint32_t seed = 1; seed < 5; seed++) {
		struct replay_trace trace = given_traffic(*state, seed, 800);

		for (unsigned room = 1; room < 200; room += 17)
			assert_int_equal(hits_of(&trace, REPLAY_LRU, room, -1), plain_lru(&trace, room));
		replay_trace_free(&trace);
	}
}

/* All that can be kept of a few requests, tried one by one. */
static uint64_t best_from(const struct replay_trace *trace, uint32_t r, unsigned in, unsigned room)
{
	const struct replay_request *request;
	const uint32_t *ids;
	unsigned all = in;
	uint64_t hits = 0, best = 0;

	if (r == trace->n_requests)
		return 0;
	request = &trace->requests[r];
	ids = trace->ids + request->first;
	while (hits < request->n && in >> ids[hits] & 1)
		hits++;
	for (uint32_t k = 0; k < request->n; k++)
		all |= 1u << ids[k];
	for (unsigned keep = all;; keep = (keep - 1) & all) {
		if ((unsigned)__builtin_popcount(keep) ==
			(room < (unsigned)__builtin_popcount(all) ? room : (unsigned)__builtin_popcount(all))) {
			uint64_t later = best_from(trace, r + 1, keep, room);

			best = later > best ? later : best;
		}
		if (!keep)
			break;
	}
	return hits + best;
}

static void nothing_finds_more_than_the_optimum_and_that_is_reached(void **state)
{
	struct replay_trace small = given_trace(*state,
		"# block=1\n0 3 0 0-2\n1 2 0 3-4\n2 4 0 0-2 5\n3 2 0 6 7\n4 2 0 3-4\n5 3 0 0-1 8\n6 4 0 0-2 5\n");

	for (unsigned room = 1; room <= 9; room++)
		assert_int_equal(replay_best(&small, room), best_from(&small, 0, 0, room));
	replay_trace_free(&small);
	for (uint32_t seed = 1; seed < 4; seed++) {
		struct replay_trace trace = given_traffic(*state, seed, 2000);

		for (unsigned room = 1; room < 300; room += 31) {
			uint64_t best = (uint64_t)replay_best(&trace, room);

			assert_true(hits_of(&trace, REPLAY_LRU, room, -1) <= best);
			assert_true(hits_of(&trace, REPLAY_LEARNED, room, -1) <= best);
			assert_true(hits_of(&trace, REPLAY_UNGUARDED, room, 0) <= best);
		}
		assert_int_equal(replay_best(&trace, trace.n_blocks), hits_of(&trace, REPLAY_LRU, trace.n_blocks, -1));
		replay_trace_free(&trace);
	}
}

static void a_store_holds_what_left_memory_and_no_more_than_its_room(void **state)
{
	struct replay_trace trace = given_traffic(*state, 9, 2000);

	for (enum admission_kind admission = ADMIT_ALL; admission <= ADMIT_CHANCE; admission++)
		for (unsigned how = 0; how < 6; how++) {
			struct replay_options options = {.policy = (enum replay_policy)(how % 3),
				.store = how < 3 ? REPLAY_CHOSEN : REPLAY_LOG,
				.pool = 40,
				.spill = 60,
				.hints_wrong = 0.1,
				.admission = admission,
				.budget = 0.3,
				.seed = 1};
			struct replay_result result;

			assert_int_equal(replay_run(&trace, &options, &result), 0);
			assert_true(result.spill_hits > 0);
			assert_true(result.written >= result.lost + result.again);
			assert_true(result.written - result.lost - result.again <= 60);
			assert_true(!result.again ==
				    (how <= 3 || admission != ADMIT_CHANCE)); /* 3: lru, which knows no chance */
			assert_true(result.pool_hits + result.spill_hits <= (uint64_t)replay_best(&trace, 100));
			assert_int_equal(result.pool_hits, hits_of(&trace, REPLAY_LRU, 40, -1));
		}
	replay_trace_free(&trace);
}

static struct replay_result through_a_log(struct outputs *o, uint64_t room, const char *text)
{
	struct replay_options options = {
		.store = REPLAY_LOG, .pool = 2, .spill = room, .hints_wrong = -1, .policy = REPLAY_LRU};
	struct replay_trace trace = given_trace(o, text);
	struct replay_result result;

	assert_int_equal(replay_run(&trace, &options, &result), 0);
	assert_int_equal(result.pool_hits, 0);
	replay_trace_free(&trace);
	return result;
}

/* Memory is two blocks, of which the deeper one leaves it first. */
static void a_log_lets_go_of_what_was_written_first_and_of_what_hangs_below_it(void **state)
{
	/* written: 1, 0, 3, then 2 where 1 was; 0 comes back, and 5 and 4 are written where it and 3 were; 2 comes
	   back */
	struct replay_result result =
		through_a_log(*state, 3, "# block=1\n0 2 0 0-1\n1 2 0 2-3\n2 2 0 4-5\n3 2 0 0-1\n4 2 0 2-3\n");

	assert_int_equal(result.spill_hits, 2);
	assert_int_equal(result.written, 8);
	assert_int_equal(result.lost, 5);
	/* 0 is written before 1, which comes to hang below it, and goes: 1 with it, though its own place is not needed
	   as yet */
	result =
		through_a_log(*state, 4, "# block=1\n0 1 0 0\n1 2 0 2-3\n2 2 0 0-1\n3 2 0 4-5\n4 2 0 6-7\n5 2 0 0-1\n");
	assert_int_equal(result.spill_hits, 1);
	assert_int_equal(result.written, 8);
	assert_int_equal(result.lost, 4);
}

/* ---- formats ---- */

static const char kvt[] = "# kvt1 block=512\n0 1536 7 0-2\n\n1000 1100 7 0 1 5\n2000 2048 1 0-1 6-7\n";

static void the_same_trace_in_each_format_is_the_same(void **state)
{
	struct outputs *o = *state;
	struct replay_trace a = given_trace(o, kvt), b, c;
	char packed[1024], why[256] = "";
	size_t n = ZSTD_compress(packed, sizeof(packed), kvt, strlen(kvt), 3);

	b = given_trace(o,
		"{\"timestamp\": 0, \"input_length\": 1536, \"output_length\": 7, \"hash_ids\": [10, 11, 12]}\n"
		"{\"timestamp\": 1000, \"input_length\": 1100, \"output_length\": 7, \"hash_ids\": [10, 11, 99]}\n"
		"{\"timestamp\": 2000, \"input_length\": 2048, \"output_length\": 1, \"hash_ids\": [10, 11, 13, 14]}");
	given_file(o, packed, n);
	if (replay_trace_read(&c, o->path, why) < 0)
		fail_msg("%s", why);
	assert_int_equal(a.n_requests, 3);
	assert_int_equal(a.n_blocks, 5);
	assert_int_equal(a.n_ids, 9); /* the one that is not whole is not among them */
	assert_int_equal(a.n_tokens, 1536 + 1100 + 2048);
	assert_int_equal(b.n_ids, 9);
	assert_int_equal(c.n_ids, 9);
	assert_int_equal(b.n_tokens, a.n_tokens);
	assert_memory_equal(a.ids, b.ids, 9 * sizeof(*a.ids));
	assert_memory_equal(a.ids, c.ids, 9 * sizeof(*a.ids));
	replay_trace_free(&a);
	replay_trace_free(&b);
	replay_trace_free(&c);
}

static void a_line_that_is_none_is_named_with_its_column_and_cause(void **state)
{
	static const struct {
		const char *text, *says;
	} wrong[] = {
		{"0 512 1 0\n1 512 x\n", "line 2, column 7: output_tokens is no number below 2^63: \"x\""},
		{"5 512 1 0\n4 512 1 0\n", "line 2, its time, 4 ms, is before 5 ms of a request above it"},
		{"0 512 1 3-2\n", "line 1, column 9: a range of ids ends before it begins"},
		{"0 512 1 3-\n", "line 1, column 11: the end of a range of ids is missing"},
		{"0 512 1 7 8x\n", "line 1, column 12: a block's id is no number below 2^63: \"x\""},
		{"0 512 1 0-99999999999\n", "line 1, column 9: a range of ids"},
		{"0 512\n", "line 1, column 6: output_tokens is missing"},
		{"# block=0\n", "line 1, column 10: block= must be 1 to 1048576"},
		{"0 512 1 0\n{\"timestamp\": 1}\n", "line 2, \"input_length\" is missing"},
		{"{\"timestamp\": -1}\n", "line 1, \"timestamp\" is no whole number"},
		{"{\"timestamp\": 1, \"input_length\": 9}\n", "line 1, \"hash_ids\" is missing"},
		{"{\"timestamp\": 1, \"input_length\": 9, \"hash_ids\": [1, true]}\n",
			"line 1, \"hash_ids\"[1] is no whole number"},
		{"{\"timestamp\" 1}\n", "line 1, column 14: no JSON object: "},
	};
	struct outputs *o = *state;

	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		given_text(o, wrong[i].text);
		assert_int_equal(run(&o->fake, "replay", o->path, "--pool", "10"), 1);
		assert_says(o->fake.err, wrong[i].says);
	}
	given_text(o, "# nothing\n");
	assert_int_equal(run(&o->fake, "replay", o->path, "--pool", "10"), 1);
	assert_says(o->fake.err, "no request in it");
	given_file(o, "\x28\xb5\x2f\xfd----------", 14);
	assert_int_equal(run(&o->fake, "replay", o->path, "--pool", "10"), 1);
	assert_says(o->fake.err, "not compressed by zstd");
}

/* As many lines as came: what is made of half a trace is wrong, and looks right. */
static void a_trace_that_was_cut_off_or_is_no_file_is_refused(void **state)
{
	struct outputs *o = *state;
	char packed[1024];
	size_t n = ZSTD_compress(packed, sizeof(packed), kvt, strlen(kvt), 3);

	for (size_t cut = 5; cut < n; cut++) {
		given_file(o, packed, cut);
		assert_int_equal(run(&o->fake, "replay", o->path, "--pool", "10"), 1);
		assert_says(o->fake.err, "the file was cut off");
	}
	assert_int_equal(run(&o->fake, "replay", "/tmp", "--pool", "10"), 1);
	assert_says(o->fake.err, "/tmp: Is a directory");
}

/* ---- the command ---- */

static void sizes_are_blocks_shares_or_bytes(void **state)
{
	static const char *const sizes[] = {"40", "10%", "640k"};
	struct outputs *o = *state;
	struct replay_trace trace = given_traffic(o, 3, 1500);
	uint64_t expected[] = {40, trace.n_blocks / 10, 40};

	for (unsigned i = 0; i < 3; i++) {
		json_t *json, *result;

		assert_int_equal(run(&o->fake, "replay", o->path, "--pool", sizes[i], "--policy", "lru",
					 "--block-bytes", "16k", "--json"),
			0);
		json = parsed(&o->fake);
		result = json_object_get(json, "result");
		assert_int_equal(json_integer_value(json_object_get(result, "pool_blocks")), expected[i]);
		assert_int_equal(json_integer_value(json_object_get(result, "pool_hits")),
			hits_of(&trace, REPLAY_LRU, expected[i], -1));
		assert_true(json_real_value(json_object_get(result, "decision_ns")) > 0);
		json_decref(json);
	}
	assert_int_equal(run(&o->fake, "replay", o->path, "--pool", "640k"), 2);
	assert_says(o->fake.err, "--block-bytes");
	assert_int_equal(run(&o->fake, "replay", o->path, "--pool", "101%"), 2);
	assert_int_equal(run(&o->fake, "replay", o->path), 2);
	assert_int_equal(run(&o->fake, "replay", o->path, "--pool", "10", "--admit", "reused"), 2);
	assert_int_equal(run(&o->fake, "replay", o->path, "--pool", "10", "--hints", "2"), 2);
	replay_trace_free(&trace);
}

static void a_page_tells_policy_hints_memory_store_and_optimum(void **state)
{
	struct outputs *o = *state;
	struct replay_trace trace = given_traffic(o, 5, 1500);
	char hits[64];

	assert_int_equal(run(&o->fake, "replay", o->path, "--pool", "40", "--policy", "lru"), 0);
	assert_says(o->fake.out, "policy lru\n");
	assert_says(o->fake.out, "memory");
	assert_null(strstr(o->fake.out, "store"));
	snprintf(hits, sizeof(hits), "  %.2f\n",
		100.0 * (double)hits_of(&trace, REPLAY_LRU, 40, -1) * trace.block_tokens / (double)trace.n_tokens);
	assert_says(o->fake.out, hits);
	assert_int_equal(run(&o->fake, "replay", o->path, "--pool", "40", "--spill", "100", "--hints", "0.1", "--admit",
				 "chance"),
		0);
	assert_says(o->fake.out,
		"policy learned, a hint a request, 10 % of them wrong, to the store: chance (25 % of what is offered)");
	assert_says(o->fake.out, "the optimum");
	assert_says(o->fake.out, "again), lost from the store");
	replay_trace_free(&trace);
}

static void a_sweep_shows_lru_the_policy_and_the_optimum(void **state)
{
	struct outputs *o = *state;
	struct replay_trace trace = given_traffic(o, 4, 1500);
	json_t *json, *row;
	size_t i;

	assert_int_equal(run(&o->fake, "replay", o->path, "--sweep"), 0);
	assert_says(o->fake.out, "optimum");
	assert_int_equal(run(&o->fake, "replay", o->path, "--sweep", "--json"), 0);
	json = parsed(&o->fake);
	assert_int_equal(json_array_size(json_object_get(json, "sweep")), 8);
	json_array_foreach(json_object_get(json, "sweep"), i, row)
	{
		double lru = json_real_value(json_object_get(row, "lru_percent"));
		double best = json_real_value(json_object_get(row, "best_percent"));

		assert_true(lru <= best && json_real_value(json_object_get(row, "pool_percent")) <= best);
	}
	json_decref(json);
	replay_trace_free(&trace);
}

/* ---- real traffic ---- */

static double percent_of(const struct replay_trace *trace, uint64_t blocks)
{
	return 100.0 * (double)blocks * trace->block_tokens / (double)trace->n_tokens;
}

static bool given_real(struct replay_trace *trace, const char *name)
{
	char path[128], why[256];

	snprintf(path, sizeof(path), REAL "%s", name);
	if (access(path, R_OK) < 0) {
		print_message("no %s\n", path);
		return false;
	}
	assert_int_equal(replay_trace_read(trace, path, why), 0);
	return true;
}

/* What the policies were chosen by, and its counting. */
static void of_an_hour_of_conversations_the_learned_order_keeps_half_as_much_again(void **state)
{
	static const double lru_percent[] = {4.35, 10.43}, times[] = {1.7, 1.5}, best_percent[] = {18.02, 32.32};
	struct replay_trace trace;

	(void)state;
	if (!given_real(&trace, "conv-h1.kvt.zst"))
		skip();
	for (unsigned i = 0; i < 2; i++) {
		uint64_t room = (uint64_t)trace.n_blocks * (i ? 5 : 1) / 100;
		double lru = percent_of(&trace, hits_of(&trace, REPLAY_LRU, room, -1));
		double best = percent_of(&trace, (uint64_t)replay_best(&trace, room));

		assert_true(lru > lru_percent[i] - 0.01 && lru < lru_percent[i] + 0.01);
		assert_true(best > best_percent[i] - 0.01 && best < best_percent[i] + 0.01);
		assert_true(percent_of(&trace, hits_of(&trace, REPLAY_LEARNED, room, -1)) >= times[i] * lru);
	}
	assert_true(percent_of(&trace, hits_of(&trace, REPLAY_LEARNED, trace.n_blocks / 20, 0.1)) >= 22);
	replay_trace_free(&trace);
}

static void with_hints_a_store_finds_most_for_less_than_a_write_a_hit(void **state)
{
	struct replay_options options = {
		.policy = REPLAY_LEARNED, .hints_wrong = 0.1, .admission = ADMIT_CHANCE, .budget = 0.25, .seed = 1};
	struct replay_result result;
	struct replay_trace trace;
	uint64_t served;

	(void)state;
	if (!given_real(&trace, "conv-h1.kvt.zst"))
		skip();
	options.pool = trace.n_blocks / 100;
	options.spill = trace.n_blocks / 5;
	for (unsigned how = 0; how < 2; how++) {
		options.store = how ? REPLAY_LOG : REPLAY_CHOSEN;
		assert_int_equal(replay_run(&trace, &options, &result), 0);
		served = result.pool_hits + result.spill_hits;
		assert_true(percent_of(&trace, served) >= 30);
		assert_true((double)result.written <= 0.9 * (double)served);
	}
	replay_trace_free(&trace);
}

static void guarded_it_is_nowhere_much_below_lru(void **state)
{
	static const unsigned sizes[] = {1, 5, 10, 20};
	struct replay_trace trace;

	(void)state;
	if (!given_real(&trace, "synth-h1.kvt.zst"))
		skip();
	for (unsigned i = 0; i < 4; i++) {
		uint64_t room = (uint64_t)trace.n_blocks * sizes[i] / 100;

		assert_true(percent_of(&trace, hits_of(&trace, REPLAY_LEARNED, room, -1)) >
			    percent_of(&trace, hits_of(&trace, REPLAY_LRU, room, -1)) - 0.3);
	}
	replay_trace_free(&trace);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lru_finds_what_a_plain_search_finds),
		cmocka_unit_test(nothing_finds_more_than_the_optimum_and_that_is_reached),
		cmocka_unit_test(a_store_holds_what_left_memory_and_no_more_than_its_room),
		cmocka_unit_test(a_log_lets_go_of_what_was_written_first_and_of_what_hangs_below_it),
		cmocka_unit_test(the_same_trace_in_each_format_is_the_same),
		cmocka_unit_test(a_line_that_is_none_is_named_with_its_column_and_cause),
		cmocka_unit_test(a_trace_that_was_cut_off_or_is_no_file_is_refused),
		cmocka_unit_test(sizes_are_blocks_shares_or_bytes),
		cmocka_unit_test(a_page_tells_policy_hints_memory_store_and_optimum),
		cmocka_unit_test(a_sweep_shows_lru_the_policy_and_the_optimum),
		cmocka_unit_test(of_an_hour_of_conversations_the_learned_order_keeps_half_as_much_again),
		cmocka_unit_test(with_hints_a_store_finds_most_for_less_than_a_write_a_hit),
		cmocka_unit_test(guarded_it_is_nowhere_much_below_lru),
	};

	return cmocka_run_group_tests(tests, outputs_setup, outputs_teardown);
}
