/*
 * test_client_tiers.c - libkvpool and blocks that are not in DRAM, no longer held, or of groups
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvpool.h"
#include "wire.h"

#define BLOCK 60000u
#define BLOCK_TOKENS 16u

/* Children of this process open clients of their own, with threads: ThreadSanitizer is told to bear it. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "die_after_fork=0";
}

struct fixture {
	struct host host;
	char spill[128];
	struct kvp_client *client;
	struct kvp_ns *ns;
};

static void open_client(const struct fixture *f, struct kvp_client **client, struct kvp_ns **ns)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = f->host.socket, .connect_timeout_ms = 5000};
	struct kvp_desc desc;
	struct kvp_ns_opts ns_opts = {.size = sizeof(ns_opts), .name = "t", .owner_uid = KVP_UID_SELF, .desc = &desc};

	kvp_desc_init(&desc, KVP_LAYOUT_OPAQUE, BLOCK_TOKENS, 0, 0, 0, 0);
	desc.block_bytes = BLOCK;
	assert_int_equal(kvp_open(&opts, client), 0);
	assert_int_equal(kvp_ns_open(*client, &ns_opts, ns), 0);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	const char *options[] = {"--pool", "4M", "--slab", "1M", "--free-percent", "0", "--heartbeat", "200",
		"--hold-limit", "500", "--spill", f->spill, NULL}; /* 68 blocks */
	char dir[96];

	assert_non_null(f);
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	snprintf(dir, sizeof(dir), "%s/spill", f->host.dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	snprintf(f->spill, sizeof(f->spill), "%s:64M", dir);
	assert_int_equal(host_start(&f->host, options), 0);
	open_client(f, &f->client, &f->ns);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	bool good = host_alive(&f->host) && host_conserves(&f->host);

	kvp_ns_close(f->ns);
	kvp_close(f->client);
	host_close(&f->host);
	free(f);
	return good ? 0 : -1;
}

static int put(struct kvp_ns *ns, uint64_t k, const struct kvp_key *parent)
{
	struct kvp_block_ref block;
	struct kvp_publish_item item = {.key = wire_key(k), .block = &block, .used_tokens = BLOCK_TOKENS};
	uint8_t result = 0;

	if (kvp_reserve(ns, 1, 0, kvp_deadline_ms(5000), &block) != 1)
		return -1;
	if (parent)
		item.parent = *parent;
	wire_fill(block.data, BLOCK, k);
	kvp_publish(ns, &item, 1, &result);
	kvp_abandon(&block, 1);
	return result;
}

static void put_many(struct kvp_ns *ns, uint64_t first, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(put(ns, first + i, NULL), KVP_PUB_STORED);
}

static const struct kvp_ns_row *ns_row(const struct fixture *f)
{
	const struct kvp_ns_row *rows = (const void *)((const char *)f->host.stats + f->host.stats->ns_off);

	while (strcmp(rows->name, "t"))
		rows++;
	return rows;
}

static void spilled_blocks_come_back_by_the_deadline(void **state)
{
	struct fixture *f = *state;
	struct kvp_counts counts = {.size = sizeof(counts)};
	struct kvp_key keys[20];
	struct kvp_match_part part = {.ns = f->ns, .keys = keys};
	struct kvp_view views[20];
	uint8_t states[20];

	for (unsigned i = 0; i < 20; i++)
		keys[i] = wire_key(i);
	put_many(f->ns, 0, 20);
	put_many(f->ns, 1000, 150);
	assert_int_equal(kvp_match(&part, 1, 20, 0, states), 20);
	assert_int_equal(states[0], KVP_HIT_SPILL);
	assert_int_equal(kvp_acquire(f->ns, keys, 1, 0, 0, views), 0); /* a try reads nothing */
	assert_int_equal(kvp_acquire(f->ns, keys, 20, 0, kvp_deadline_ms(10000), views), 20);
	for (unsigned i = 0; i < 20; i++) {
		assert_true(wire_right(views[i].data, BLOCK, i));
		assert_int_equal(views[i].hit, KVP_HIT_SPILL);
	}
	assert_int_equal(kvp_match(&part, 1, 20, 0, states), 20);
	assert_int_equal(states[0], KVP_HIT_RAM);
	assert_int_equal(kvp_release(views, 20), 0);
	assert_int_equal(kvp_counts(f->client, &counts), 0);
	assert_int_equal(counts.hits_spill, 20);
	assert_int_equal(counts.tokens_spill, 20 * BLOCK_TOKENS);
}

static void what_another_has_brought_back_is_found_in_dram(void **state)
{
	struct fixture *f = *state;
	struct kvp_counts counts = {.size = sizeof(counts)};
	struct kvp_key keys[4] = {wire_key(1), wire_key(2), wire_key(3), wire_key(99999)};
	struct kvp_view views[4], held[2];
	struct kvp_client *other;
	struct kvp_ns *ns;

	put_many(f->ns, 0, 10);
	put_many(f->ns, 1000, 150);
	open_client(f, &other, &ns);
	assert_int_equal(kvp_acquire(ns, &keys[1], 2, 0, kvp_deadline_ms(10000), held), 2);
	assert_int_equal(kvp_acquire(f->ns, keys, 4, 0, kvp_deadline_ms(10000), views), 3);
	assert_int_equal(views[0].hit, KVP_HIT_SPILL); /* one message asks for all four */
	assert_int_equal(views[1].hit, KVP_HIT_RAM);
	assert_int_equal(views[2].hit, KVP_HIT_RAM);
	assert_int_equal(views[3].hit, KVP_MISS);
	kvp_release(views, 4);
	assert_int_equal(kvp_counts(f->client, &counts), 0);
	assert_int_equal(counts.hits_spill, 1);
	assert_int_equal(counts.hits_ram, 2);
	assert_int_equal(counts.misses, 1);
	kvp_release(held, 2);
	kvp_ns_close(ns);
	kvp_close(other);
}

static void a_prefetched_block_is_a_hit(void **state)
{
	struct fixture *f = *state;
	struct kvp_key keys[10];
	struct kvp_match_part part = {.ns = f->ns, .keys = keys};
	struct kvp_view views[10];
	uint8_t states[10];
	uint64_t until = wire_now() + 10000000000ull;

	for (unsigned i = 0; i < 10; i++)
		keys[i] = wire_key(i);
	put_many(f->ns, 0, 10);
	assert_int_equal(kvp_prefetch(f->ns, keys, 10), 0); /* nothing to read */
	put_many(f->ns, 1000, 150);
	assert_int_equal(kvp_prefetch(f->ns, keys, 10), 10);
	do
		kvp_match(&part, 1, 10, KVP_MATCH_ALL, states);
	while (states[9] != KVP_HIT_RAM && wire_now() < until);
	assert_int_equal(kvp_acquire(f->ns, keys, 10, 0, 0, views), 10);
	for (unsigned i = 0; i < 10; i++)
		assert_true(wire_right(views[i].data, BLOCK, i));
	assert_int_equal(kvp_release(views, 10), 0);
}

static void what_has_come_back_is_given_while_the_rest_is_waited_for(void **state)
{
	struct fixture *f = *state;
	struct kvp_counts counts = {.size = sizeof(counts)};
	struct kvp_key keys[10];
	struct kvp_view views[10], held[64];
	unsigned n_held = 0;
	uint64_t deadline;
	int64_t got, more;

	for (unsigned i = 0; i < 10; i++)
		keys[i] = wire_key(i);
	put_many(f->ns, 0, 10);
	put_many(f->ns, 1000, 150);
	for (unsigned i = 0; i < 150 && n_held < 60; i++) { /* of 4 x 17: room for eight, less what the stock has */
		struct kvp_key key = wire_key(1149 - i);

		n_held += (unsigned)kvp_acquire(f->ns, &key, 1, 0, 0, &held[n_held]);
	}
	assert_int_equal(n_held, 60);
	deadline = kvp_deadline_ms(30000);
	got = kvp_acquire(f->ns, keys, 10, KVP_ACQUIRE_SOME, deadline, views);
	assert_in_range(got, 1, 8);
	assert_true(wire_now() < deadline); /* the others cannot come */
	for (int64_t i = got; i < 10; i++)
		assert_int_equal(views[i].hit, KVP_PENDING);
	kvp_release(held, n_held);
	for (; got < 10; got += more) {
		more = kvp_acquire(f->ns, keys + got, (uint32_t)(10 - got), KVP_ACQUIRE_SOME, deadline, views + got);
		assert_true(more > 0);
	}
	for (unsigned i = 0; i < 10; i++)
		assert_true(wire_right(views[i].data, BLOCK, i));
	assert_int_equal(kvp_release(views, 10), 0);
	assert_int_equal(kvp_counts(f->client, &counts), 0);
	assert_int_equal(counts.hits_spill + counts.hits_ram, 10 + 60);
}

static void of_a_run_in_pieces_each_miss_is_counted_once(void **state)
{
	struct fixture *f = *state;
	struct kvp_counts counts = {.size = sizeof(counts)};
	struct kvp_key keys[10];
	struct kvp_view views[10];
	int64_t got = 0, more;

	for (unsigned i = 0; i < 10; i++)
		keys[i] = wire_key(i < 6 ? i : 5000 + i); /* the last four were never there */
	put_many(f->ns, 0, 6);
	put_many(f->ns, 1000, 150);
	while ((more = kvp_acquire(f->ns, keys + got, (uint32_t)(10 - got), KVP_ACQUIRE_SOME, kvp_deadline_ms(10000),
			views + got)) > 0)
		got += more;
	assert_int_equal(got, 6);
	assert_int_equal(views[6].hit, KVP_MISS);
	assert_int_equal(kvp_release(views, 6), 0);
	assert_int_equal(kvp_counts(f->client, &counts), 0);
	assert_int_equal(counts.misses, 4);
	assert_int_equal(kvp_ping(f->client, kvp_deadline_ms(5000)), 0); /* what it was told before has been counted */
	assert_int_equal(atomic_load(&ns_row(f)->counters.miss_never), 4);
}

static uint64_t misses_told(const struct kvp_ns_counters *c)
{
	return atomic_load(&c->lookups) - atomic_load(&c->hits_ram) - atomic_load(&c->hits_spill);
}

static bool all_is_counted(void *arg)
{
	struct fixture *f = arg;
	struct kvp_counts counts = {.size = sizeof(counts)};
	const struct kvp_ns_counters *c = &ns_row(f)->counters;

	assert_int_equal(kvp_counts(f->client, &counts), 0);
	return misses_told(c) == counts.misses && atomic_load(&c->lookups) == counts.lookups;
}

/* Spilled, past a miss, or never there: for the daemon's hit rate as for the engine's. */
static void what_is_not_waited_for_is_missed_for_a_true_reason_and_counted_by_both(void **state)
{
	struct fixture *f = *state;
	struct kvp_key keys[8];
	struct kvp_view views[8];

	for (unsigned i = 0; i < 8; i++)
		keys[i] = wire_key(i < 6 ? i : 5000 + i); /* the last two were never there */
	put_many(f->ns, 0, 6);
	put_many(f->ns, 1000, 150);
	assert_int_equal(kvp_acquire(f->ns, keys, 8, 0, 0, views), 0);
	for (unsigned i = 0; i < 8; i++) {
		assert_int_equal(views[i].hit, KVP_MISS);
		assert_int_equal(views[i].reason, KVP_MISS_UNASKED);
	}
	assert_true(wire_until(all_is_counted, f, 10000));
	assert_int_equal(atomic_load(&ns_row(f)->counters.miss_unasked), 6);
	assert_int_equal(atomic_load(&ns_row(f)->counters.miss_never), 2);
	keys[2] = wire_key(7777); /* what is behind it is there, and of no use */
	assert_int_equal(kvp_acquire(f->ns, keys, 8, 0, kvp_deadline_ms(10000), views), 2);
	assert_int_equal(views[2].reason, KVP_MISS_NEVER);
	assert_int_equal(views[3].reason, KVP_MISS_UNASKED);
	assert_int_equal(kvp_release(views, 2), 0);
	assert_true(wire_until(all_is_counted, f, 10000));
	assert_int_equal(atomic_load(&ns_row(f)->counters.miss_unasked), 9);
	assert_int_equal(atomic_load(&ns_row(f)->counters.miss_never), 5);
}

/* All that may go. */
static void evict_all(struct fixture *f)
{
	struct kvp_wire_admin admin = {.deadline_ns = wire_now() + 10000000000ull, .n = UINT64_MAX};
	struct kvp_wire_admin_done done;
	char path[sizeof(f->host.socket) + 8];
	struct wire w;

	snprintf(path, sizeof(path), "%s.admin", f->host.socket);
	assert_int_equal(wire_connect(&w, path), 0);
	assert_int_equal(wire_call(&w, KVP_MSG_EVICT, &admin, sizeof(admin), &done, sizeof(done)), (int)sizeof(done));
	wire_close(&w);
}

static void given_a_cold_chain(struct fixture *f, struct kvp_key *keys, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		keys[i] = wire_key(i);
		assert_int_equal(put(f->ns, i, i ? &keys[i - 1] : NULL), KVP_PUB_STORED);
	}
}

static bool eighteen_were_read(void *arg)
{
	return atomic_load(&ns_row(arg)->counters.restored) >= 18;
}

static void a_chain_is_read_ahead_into_free_room(void **state)
{
	struct fixture *f = *state;
	struct kvp_key keys[30];
	struct kvp_view views[30];

	given_a_cold_chain(f, keys, 30);
	wire_sleep_ms(1100); /* what was published a moment ago is held */
	evict_all(f);
	assert_int_equal(atomic_load(&ns_row(f)->counters.cold), 30);
	assert_int_equal(kvp_acquire(f->ns, keys, 2, 0, kvp_deadline_ms(10000), views), 2);
	assert_true(wire_until(eighteen_were_read, f, 10000));
	assert_int_equal(atomic_load(&ns_row(f)->counters.read_ahead), 16);
	assert_int_equal(kvp_acquire(f->ns, keys + 2, 16, 0, 0, views + 2), 16); /* no read, no wait */
	assert_int_equal(kvp_acquire(f->ns, keys + 18, 12, 0, kvp_deadline_ms(10000), views + 18), 12);
	for (unsigned i = 0; i < 30; i++)
		assert_true(wire_right(views[i].data, BLOCK, i));
	assert_int_equal(atomic_load(&ns_row(f)->counters.restored), 30); /* each once */
	assert_int_equal(kvp_release(views, 30), 0);
}

static void nothing_goes_for_what_is_read_ahead(void **state)
{
	struct fixture *f = *state;
	struct kvp_key keys[30];
	struct kvp_view view;
	uint64_t evicted;

	given_a_cold_chain(f, keys, 30);
	put_many(f->ns, 1000, 150);
	evicted = atomic_load(&ns_row(f)->counters.evicted);
	assert_int_equal(kvp_acquire(f->ns, keys, 1, 0, kvp_deadline_ms(10000), &view), 1);
	assert_int_equal(atomic_load(&ns_row(f)->counters.read_ahead), 0); /* the pool is full */
	assert_in_range(atomic_load(&ns_row(f)->counters.evicted), evicted, evicted + 1);
	assert_int_equal(kvp_release(&view, 1), 0);
}

static void more_than_the_pool_holds_is_no_error(void **state)
{
	struct fixture *f = *state;
	struct kvp_key keys[100];
	struct kvp_view views[100];
	int64_t got;

	for (unsigned i = 0; i < 100; i++)
		keys[i] = wire_key(i);
	put_many(f->ns, 0, 100);
	got = kvp_acquire(f->ns, keys, 100, 0, kvp_deadline_ms(1500), views);
	assert_in_range(got, 56, 68); /* as many as there is room for */
	for (int64_t i = 0; i < got; i++)
		assert_true(wire_right(views[i].data, BLOCK, (uint64_t)i));
	for (int64_t i = got; i < 100; i++)
		assert_null(views[i].data);
	assert_int_equal(kvp_release(views, 100), 0);
}

static void several_parts_have_what_all_of_them_have(void **state)
{
	struct fixture *f = *state;
	struct kvp_key full[8], window[8];
	struct kvp_match_part parts[2] = {{.ns = f->ns, .keys = full}, {.ns = f->ns, .keys = window, .rule = 2}};
	uint8_t states[8];

	for (unsigned i = 0; i < 8; i++) {
		full[i] = wire_key(i);
		window[i] = wire_key(100 + i);
	}
	put_many(f->ns, 0, 7); /* of the first group 7 blocks */
	assert_int_equal(put(f->ns, 103, NULL), KVP_PUB_STORED);
	assert_int_equal(put(f->ns, 104, NULL), KVP_PUB_STORED);
	assert_int_equal(put(f->ns, 106, NULL), KVP_PUB_STORED); /* of the window group 3, 4 and 6 */
	assert_int_equal(kvp_match(parts, 1, 8, 0, NULL), 7);
	assert_int_equal(kvp_match(parts + 1, 1, 8, 0, NULL), 5); /* its last two: 3 and 4 */
	assert_int_equal(kvp_match(parts, 2, 8, KVP_MATCH_ALL, states), 5);
	assert_int_equal(states[0], KVP_MISS);
	assert_int_equal(states[3], KVP_HIT_RAM);
	assert_int_equal(states[6], KVP_HIT_RAM);
	assert_int_equal(states[7], KVP_MISS);
}

static void misses_are_counted_by_their_reason(void **state)
{
	struct fixture *f = *state;
	struct kvp_ns_info info = {.size = sizeof(info)};
	struct kvp_key keys[3] = {wire_key(1), wire_key(2), wire_key(3)};
	const struct kvp_ns_row *row;
	struct kvp_view views[3];

	assert_int_equal(kvp_ns_info(f->ns, &info), 0);
	row = host_ns_row(&f->host, info.ns_id);
	assert_int_equal(put(f->ns, 1, NULL), KVP_PUB_STORED);
	assert_int_equal(kvp_acquire(f->ns, keys, 3, 0, 0, views), 1);
	kvp_release(views, 3);
	for (unsigned i = 0; i < 100 && atomic_load(&row->counters.lookups) < 3; i++)
		wire_sleep_ms(20);
	assert_int_equal(atomic_load(&row->counters.lookups), 3);
	assert_int_equal(atomic_load(&row->counters.hits_ram), 1);
	assert_int_equal(atomic_load(&row->counters.tokens_ram), BLOCK_TOKENS);
	assert_true(atomic_load(&row->counters.miss_never) >= 1);
}

/* What the child tells by its exit status. */
enum told {
	TOLD_LOST = 0,
	TOLD_KEPT = 1,
	TOLD_NOTHING = 2,
};

static int hold_and_stop(const struct fixture *f)
{
	struct kvp_client *client;
	struct kvp_ns *ns;
	struct kvp_view view;
	struct kvp_key key = wire_key(1);
	int before;

	open_client(f, &client, &ns);
	if (kvp_acquire(ns, &key, 1, 0, kvp_deadline_ms(1000), &view) != 1)
		return TOLD_NOTHING;
	kill(getpid(), SIGSTOP);
	before = kvp_lost(&view, 1);
	return kvp_release(&view, 1) == 1 && before == 1 ? TOLD_LOST : TOLD_KEPT;
}

static void a_reader_stopped_too_long_learns_that_its_hold_was_lost(void **state)
{
	struct fixture *f = *state;
	struct kvp_key key = wire_key(1);
	struct kvp_match_part part = {.ns = f->ns, .keys = &key};
	struct kvp_block_ref *blocks = calloc(68, sizeof(*blocks));
	uint8_t there = KVP_HIT_RAM;
	int status;
	int64_t n;
	pid_t pid;

	assert_int_equal(put(f->ns, 1, NULL), KVP_PUB_STORED);
	pid = fork();
	if (pid == 0)
		_exit(hold_and_stop(f));
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	n = kvp_reserve(f->ns, 68, 0, kvp_deadline_ms(4000), blocks); /* somebody needs all there is */
	kvp_match(&part, 1, 1, KVP_MATCH_ALL, &there);
	kvp_abandon(blocks, (uint32_t)n);
	free(blocks);
	kill(pid, SIGCONT);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_not_equal(there, KVP_HIT_RAM);
	assert_int_equal(WEXITSTATUS(status), TOLD_LOST);
}

static void what_a_killed_process_held_is_free_again(void **state)
{
	struct fixture *f = *state;
	struct kvp_ns_info info = {.size = sizeof(info)};
	const struct kvp_ns_row *row;
	int status;
	pid_t pid;

	assert_int_equal(put(f->ns, 1, NULL), KVP_PUB_STORED);
	pid = fork();
	if (pid == 0) {
		struct kvp_client *client;
		struct kvp_block_ref blocks[30];
		struct kvp_view view;
		struct kvp_key key = wire_key(1);
		struct kvp_ns *ns;

		open_client(f, &client, &ns);
		if (kvp_acquire(ns, &key, 1, 0, kvp_deadline_ms(1000), &view) != 1 ||
			kvp_reserve(ns, 30, 0, kvp_deadline_ms(1000), blocks) != 30)
			_exit(1);
		kill(getpid(), SIGKILL);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(kvp_ns_info(f->ns, &info), 0);
	row = host_ns_row(&f->host, info.ns_id);
	for (unsigned i = 0; i < 100 && (atomic_load(&row->counters.granted) || atomic_load(&row->counters.held)); i++)
		wire_sleep_ms(20);
	assert_int_equal(atomic_load(&row->counters.granted), 0);
	assert_int_equal(atomic_load(&row->counters.held), 0);
	put_many(f->ns, 1000, 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(spilled_blocks_come_back_by_the_deadline),
		TEST(what_another_has_brought_back_is_found_in_dram),
		TEST(a_prefetched_block_is_a_hit),
		TEST(what_has_come_back_is_given_while_the_rest_is_waited_for),
		TEST(of_a_run_in_pieces_each_miss_is_counted_once),
		TEST(what_is_not_waited_for_is_missed_for_a_true_reason_and_counted_by_both),
		TEST(a_chain_is_read_ahead_into_free_room),
		TEST(nothing_goes_for_what_is_read_ahead),
		TEST(more_than_the_pool_holds_is_no_error),
		TEST(several_parts_have_what_all_of_them_have),
		TEST(misses_are_counted_by_their_reason),
		TEST(a_reader_stopped_too_long_learns_that_its_hold_was_lost),
		TEST(what_a_killed_process_held_is_free_again),
	};

	if (getenv("KVPOOL_TEST_ONLY"))
		cmocka_set_test_filter(getenv("KVPOOL_TEST_ONLY"));
	return cmocka_run_group_tests_name("client and tiers", tests, NULL, NULL);
}
