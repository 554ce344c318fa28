/*
 * test_traced.c - a running daemon, driven through libkvpool with a trace, finds line for line what kvctl replay says
 * of that trace
 *
 * kvpool-test: parallel timeout=600
 *
 * What a daemon has of its own is taken from it: its tick stands still, and the test sets it as the trace's times say,
 * so that ages are the trace's; the seed of its hash of keys, which says what is forgotten first of what it remembers,
 * is replay's; no blocks are kept free, none given back to the host.  One client, without a stock of grants.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/kvctl/replay.h"
#include "trial.h"

#define BLOCK 4096u
#define TOKENS 16u
#define ROOM 256u /* blocks: of a slab */

#define TURNS 3000u /* requests of a made-up trace */
#define CHATS 48u /* that go on at a time */
#define LONGEST 24u /* blocks */
#define REAL 700u /* requests of a real one */
#define LONGEST_REAL 512u
#define RUNNING 16u /* requests of an engine that holds what it found and published */

/* ---- traces ---- */

struct chat {
	uint32_t ids[LONGEST];
	uint32_t n;
};

static uint32_t dice(uint32_t *seed)
{
	*seed = *seed * 1664525u + 1013904223u;
	return *seed >> 8;
}

/* People who chat: three ways to begin, some go on soon, some late, many never; each turn adds to what was said. */
static struct replay_trace given_chats(uint32_t seed)
{
	struct replay_trace trace = {.block_tokens = TOKENS, .n_requests = TURNS, .n_blocks = 3};
	struct chat *chats = calloc(CHATS, sizeof(*chats));
	uint64_t ticks = 0;

	trace.requests = calloc(TURNS, sizeof(*trace.requests));
	trace.ids = calloc((size_t)TURNS * LONGEST, sizeof(*trace.ids));
	assert_true(chats && trace.requests && trace.ids);
	for (uint64_t r = 0; r < TURNS; r++) {
		struct chat *chat = &chats[dice(&seed) % (dice(&seed) % 4 ? CHATS / 8 : CHATS)];
		uint32_t more = 1 + dice(&seed) % 4;

		if (!chat->n || chat->n + more > LONGEST || dice(&seed) % 6 == 0) {
			chat->n = 1;
			chat->ids[0] = dice(&seed) % 3;
		}
		while (more--)
			chat->ids[chat->n++] = trace.n_blocks++;
		ticks += 1 + (dice(&seed) % 8 ? dice(&seed) % 40 : dice(&seed) % 2000);
		trace.requests[r] = (struct replay_request){.time_ms = ticks * KVP_TICK_MS,
			.first = trace.n_ids,
			.n = chat->n,
			.tokens = (uint64_t)TOKENS * chat->n};
		memcpy(trace.ids + trace.n_ids, chat->ids, chat->n * sizeof(*chat->ids));
		trace.n_ids += chat->n;
		trace.n_tokens += trace.requests[r].tokens;
	}
	free(chats);
	trace.keys = calloc(trace.n_blocks, sizeof(*trace.keys));
	assert_non_null(trace.keys);
	for (uint32_t i = 0; i < trace.n_blocks; i++)
		trace.keys[i] = wire_key(i);
	return trace;
}

/* The first of a real one, at times that are ticks and no two alike. */
static struct replay_trace given_real(const char *name, uint64_t n_requests)
{
	const char *top = getenv("TOP");
	struct replay_trace trace;
	char path[512], why[256];
	uint64_t last = 0;
	int r;

	snprintf(path, sizeof(path), "%s/../shared/traces/%s.kvt.zst", top ? top : ".", name);
	r = replay_trace_read(&trace, path, why);
	if (r == -ENOENT) {
		print_message("skipped: no trace %s beside the repository\n", name);
		skip();
	}
	if (r < 0)
		fail_msg("%s", why);
	trace.n_requests = n_requests < trace.n_requests ? n_requests : trace.n_requests;
	for (r = 0; (uint64_t)r < trace.n_requests; r++) {
		uint64_t tick = trace.requests[r].time_ms / KVP_TICK_MS;

		last = tick > last ? tick : last + 1;
		trace.requests[r].time_ms = last * KVP_TICK_MS;
	}
	return trace;
}

/* ---- the daemon ---- */

struct driven {
	struct trial t;
	struct kvp_pool_header *header;
	uint32_t first_tick;
	struct kvp_view *views;
	const struct kvp_ns_counters *counters;
	uint64_t asked, hits, served, told, rejected;
};

enum engine {
	COPIES, /* published block by block, nothing held */
	AT_ONCE, /* what was found is held, the rest published together */
	HOLDS, /* block by block, all of it held while the next ones are served */
};

static struct driven *given_daemon(const char *policy, uint64_t blocks)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .connect_timeout_ms = 5000, .stock_blocks = KVP_STOCK_NONE};
	struct kvp_ns_info info = {.size = sizeof(info)};
	struct driven *d = calloc(1, sizeof(*d));
	const char *build = getenv("BUILD");
	char pool[32], path[160];
	struct kvp_desc desc;
	int fd;

	assert_non_null(d);
	snprintf(pool, sizeof(pool), "%lluK", (unsigned long long)blocks * BLOCK / 1024);
	trial_given(&d->t, geteuid(), pool, NULL);
	trial_option(&d->t, "--policy", policy);
	trial_option(&d->t, "--pressure", "0");
	trial_option(&d->t, "--cgroup-headroom", "0");
	snprintf(d->t.host.binary, sizeof(d->t.host.binary), "%s/kvpoold-fault", build ? build : "build");
	setenv("KVPOOL_FAULT", "clock.still=1,policy.seed=0", 1);
	trial_start(&d->t);
	unsetenv("KVPOOL_FAULT");
	host_object(&d->t.host, path, "header");
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	d->header = mmap(NULL, sizeof(*d->header), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(d->header, MAP_FAILED);
	close(fd);
	d->first_tick = atomic_load(&d->header->tick);
	opts.socket = d->t.host.socket;
	assert_int_equal(kvp_open(&opts, &d->t.client), 0);
	kvp_desc_init(&desc, KVP_LAYOUT_OPAQUE, TOKENS, 0, 0, 0, 0);
	desc.block_bytes = BLOCK;
	strcpy(desc.engine, "traced/1");
	assert_int_equal(trial_ns(d->t.client, "m", &desc, &d->t.ns), 0);
	assert_int_equal(kvp_ns_info(d->t.ns, &info), 0);
	d->counters = &host_ns_row(&d->t.host, info.ns_id)->counters;
	d->views = calloc((size_t)RUNNING * LONGEST_REAL, sizeof(*d->views));
	assert_non_null(d->views);
	return d;
}

static void end(struct driven *d)
{
	kvp_release(d->views, RUNNING * LONGEST_REAL);
	free(d->views);
	munmap(d->header, sizeof(*d->header));
	assert_true(trial_end(&d->t));
	free(d);
}

/* @n blocks below @parent (NULL: none), reserved and published together. @views: they are held by these. Return: all
   are in. */
static bool publish(
	struct driven *d, const struct kvp_key *keys, uint32_t n, const struct kvp_key *parent, struct kvp_view *views)
{
	struct kvp_publish_item items[LONGEST_REAL];
	struct kvp_block_ref blocks[LONGEST_REAL];
	uint8_t results[LONGEST_REAL] = {0};
	bool all = true;

	for (uint32_t got = 0; got < n;) {
		int64_t more = kvp_reserve(d->t.ns, n - got, 0, kvp_deadline_ms(60000), blocks + got);

		assert_true(more > 0);
		got += (uint32_t)more;
	}
	for (uint32_t k = 0; k < n; k++) {
		items[k] = (struct kvp_publish_item){.key = keys[k],
			.block = &blocks[k],
			.used_tokens = TOKENS,
			.used_bytes = BLOCK,
			.view = views ? &views[k] : NULL};
		if (k || parent)
			items[k].parent = k ? keys[k - 1] : *parent;
	}
	kvp_publish(d->t.ns, items, n, results);
	for (uint32_t k = 0; k < n; k++) {
		assert_true(results[k] == KVP_PUB_STORED || results[k] == KVP_PUB_REJECTED);
		d->rejected += results[k] == KVP_PUB_REJECTED;
		all = all && results[k] == KVP_PUB_STORED;
	}
	kvp_abandon(blocks, n);
	return all;
}

/* Told, looked for, and what is missing published. Return: blocks found. */
static uint32_t serve(struct driven *d, const struct replay_request *request, const struct kvp_key *keys, uint32_t hint,
	enum engine engine)
{
	struct kvp_view *views = d->views + d->served++ % RUNNING * LONGEST_REAL;
	uint32_t n = engine == AT_ONCE ? request->n : 1;
	int64_t found;

	atomic_store(&d->header->tick, d->first_tick + (uint32_t)(request->time_ms / KVP_TICK_MS));
	kvp_release(views, LONGEST_REAL);
	assert_int_equal(kvp_request(d->t.ns, keys, request->n, hint), 0);
	found = kvp_acquire(d->t.ns, keys, request->n, KVP_ACQUIRE_TOLD, 0, views);
	assert_true(found >= 0);
	if (engine == COPIES)
		kvp_release(views, (uint32_t)found);
	for (uint32_t k = (uint32_t)found; k < request->n; k += n)
		if (!publish(d, &keys[k], n < request->n - k ? n : request->n - k, k ? &keys[k - 1] : NULL,
			    engine == HOLDS ? &views[k] : NULL))
			break;
	if (engine == AT_ONCE)
		kvp_release(views, (uint32_t)found);
	assert_int_equal(kvp_ping(d->t.client, kvp_deadline_ms(60000)), 0); /* all was read at this tick */
	d->told += atomic_load(&d->counters->policy) != 0;
	assert_int_equal(atomic_load(&d->counters->requests), d->told);
	assert_int_equal(atomic_load(&d->counters->rejected), d->rejected);
	return (uint32_t)found;
}

/* ---- side by side ---- */

struct run {
	uint64_t room; /* blocks */
	enum replay_policy policy;
	double hints_wrong; /* below 0: no hints */
	enum engine engine;
};

static void compare(const struct replay_trace *trace, const struct run *run)
{
	uint32_t *found = calloc(trace->n_requests, sizeof(*found));
	uint8_t *hints = calloc(trace->n_requests, 1);
	struct replay_options options = {.policy = run->policy,
		.pool = run->room,
		.hints_wrong = run->hints_wrong,
		.seed = 1,
		.found = found,
		.hints = hints};
	struct replay_result result;
	struct kvp_key keys[LONGEST_REAL];
	struct driven *d;

	assert_true(found && hints);
	assert_int_equal(replay_run(trace, &options, &result), 0);
	d = given_daemon(run->policy == REPLAY_LRU ? "lru" : "learned", run->room);
	for (uint64_t r = 0; r < trace->n_requests; r++) {
		const struct replay_request *request = &trace->requests[r];
		uint32_t here;

		assert_in_range(request->n, 1, LONGEST_REAL);
		for (uint32_t k = 0; k < request->n; k++)
			keys[k] = trace->keys[trace->ids[request->first + k]];
		here = serve(d, request, keys, hints[r], run->engine);
		if (here != found[r] && run->engine != HOLDS)
			fail_msg("request %lu: %u blocks found, %u by replay", (unsigned long)r, here, found[r]);
		d->asked += request->n;
		d->hits += here;
	}
	print_message("%lu requests, %lu blocks found of %lu, %lu by replay\n", (unsigned long)trace->n_requests,
		(unsigned long)d->hits, (unsigned long)d->asked, (unsigned long)result.pool_hits);
	if (run->engine == HOLDS)
		assert_true(d->hits >= result.pool_hits * 9 / 10);
	else
		assert_int_equal(atomic_load(&d->counters->evicted), result.evicted);
	assert_int_equal(atomic_load(&d->counters->policy), run->policy == REPLAY_LRU ? 0 : 2); /* it came to lead */
	assert_true(atomic_load(&d->counters->evicted) > run->room);
	end(d);
	free(found);
	free(hints);
}

static void replay_trace_drop(struct replay_trace *trace)
{
	free(trace->requests);
	free(trace->ids);
	free(trace->keys);
}

static void a_made_up_trace_finds_what_replay_says_line_for_line(void **state)
{
	const struct run *run = *state;
	struct replay_trace trace = given_chats(7);

	compare(&trace, run);
	replay_trace_drop(&trace);
}

static void a_real_trace_finds_what_replay_says_line_for_line(void **state)
{
	const struct run *run = *state;
	struct replay_trace trace = given_real("conv-h1", REAL);

	compare(&trace, run);
	replay_trace_free(&trace);
}

/* What it holds is not there for others; but whoever holds something does not undo the order by it. */
static void while_requests_hold_their_blocks_the_order_decides_all_the_same(void **state)
{
	const struct run *run = *state;
	struct replay_trace trace = given_real("conv-h1", REAL);

	compare(&trace, run);
	replay_trace_free(&trace);
}

int main(void)
{
	static struct run small[] = {{ROOM, REPLAY_LRU, -1, COPIES}, {ROOM, REPLAY_LRU, -1, AT_ONCE},
		{ROOM, REPLAY_LEARNED, -1, COPIES}, {ROOM, REPLAY_LEARNED, 0.1, COPIES}};
	static struct run large[] = {{8 * ROOM, REPLAY_LRU, -1, AT_ONCE}, {8 * ROOM, REPLAY_LEARNED, -1, COPIES},
		{8 * ROOM, REPLAY_LEARNED, 0.1, COPIES}, {8 * ROOM, REPLAY_LEARNED, 0.1, HOLDS}};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate(a_made_up_trace_finds_what_replay_says_line_for_line, &small[0]),
		cmocka_unit_test_prestate(a_made_up_trace_finds_what_replay_says_line_for_line, &small[1]),
		cmocka_unit_test_prestate(a_made_up_trace_finds_what_replay_says_line_for_line, &small[2]),
		cmocka_unit_test_prestate(a_made_up_trace_finds_what_replay_says_line_for_line, &small[3]),
		cmocka_unit_test_prestate(a_real_trace_finds_what_replay_says_line_for_line, &large[0]),
		cmocka_unit_test_prestate(a_real_trace_finds_what_replay_says_line_for_line, &large[1]),
		cmocka_unit_test_prestate(a_real_trace_finds_what_replay_says_line_for_line, &large[2]),
		cmocka_unit_test_prestate(while_requests_hold_their_blocks_the_order_decides_all_the_same, &large[3]),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
