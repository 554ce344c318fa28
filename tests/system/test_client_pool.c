/*
 * test_client_pool.c - libkvpool against a real kvpoold: finding, holding, writing, and what survives what
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvpool.h"
#include "wire.h"

#define BLOCK 20000u
#define BLOCK_TOKENS 16u

static const char *const small_pool[] = {
	"--pool", "8M", "--slab", "1M", "--free-percent", "0", "--spill", "off", "--heartbeat", "200", NULL};

/* Children of this process open clients of their own, with threads: ThreadSanitizer is told to bear it. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "die_after_fork=0";
}

struct fixture {
	struct host host;
	struct kvp_client *a, *b; /* two clients, as in two processes */
	struct kvp_ns *ns_a, *ns_b;
};

static struct kvp_client *open_client(const struct fixture *f)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = f->host.socket, .connect_timeout_ms = 5000};
	struct kvp_client *client;

	assert_int_equal(kvp_open(&opts, &client), 0);
	assert_int_equal(kvp_state(client, NULL), KVP_ATTACHED);
	return client;
}

static void opaque(struct kvp_desc *desc, uint64_t bytes)
{
	kvp_desc_init(desc, KVP_LAYOUT_OPAQUE, BLOCK_TOKENS, 0, 0, 0, 0);
	desc->block_bytes = bytes;
	strcpy(desc->engine, "test/1");
}

static int try_ns(struct kvp_client *client, const char *name, uint32_t flags, uint32_t mode, struct kvp_ns *base,
	uint64_t bytes, struct kvp_ns **ns)
{
	struct kvp_desc desc;
	struct kvp_ns_opts opts = {.size = sizeof(opts),
		.flags = flags,
		.mode = mode,
		.name = name,
		.owner_uid = KVP_UID_SELF,
		.base = base,
		.desc = &desc};

	opaque(&desc, bytes);
	return kvp_ns_open(client, &opts, ns);
}

static struct kvp_ns *open_ns(struct kvp_client *client, const char *name, uint32_t flags)
{
	struct kvp_ns_info info = {.size = sizeof(info)};
	struct kvp_ns *ns;

	assert_int_equal(try_ns(client, name, flags, 0, NULL, BLOCK, &ns), 0);
	assert_int_equal(kvp_ns_info(ns, &info), 0);
	assert_int_not_equal(info.ns_id, 0);
	return ns;
}

static struct fixture *given_daemon(const char *const *options)
{
	struct fixture *f = calloc(1, sizeof(*f));
	int r;

	assert_non_null(f);
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	r = host_start(&f->host, options);
	if (r < 0)
		host_logged(&f->host, "", 0);
	assert_int_equal(r, 0);
	return f;
}

static int setup(void **state)
{
	struct fixture *f = given_daemon(small_pool);

	f->a = open_client(f);
	f->b = open_client(f);
	f->ns_a = open_ns(f->a, "n", 0);
	f->ns_b = open_ns(f->b, "n", 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	bool good = host_alive(&f->host) && host_conserves(&f->host);

	kvp_ns_close(f->ns_a);
	kvp_ns_close(f->ns_b);
	kvp_close(f->a);
	kvp_close(f->b);
	host_close(&f->host);
	free(f);
	return good ? 0 : -1;
}

/* Publish block @k under wire_key(k) below @parent. Return: the result; -1: no block to be had. */
static int put(struct kvp_ns *ns, uint64_t k, const struct kvp_key *parent, struct kvp_view *view)
{
	struct kvp_block_ref block;
	struct kvp_publish_item item = {.key = wire_key(k), .block = &block, .used_tokens = BLOCK_TOKENS, .view = view};
	uint8_t result = 0;

	if (kvp_reserve(ns, 1, 0, kvp_deadline_ms(1000), &block) != 1)
		return -1;
	if (parent)
		item.parent = *parent;
	wire_fill(block.data, BLOCK, k);
	kvp_publish(ns, &item, 1, &result);
	kvp_abandon(&block, 1);
	return result;
}

static int64_t get(struct kvp_ns *ns, uint64_t k, uint32_t wait_ms, struct kvp_view *view)
{
	struct kvp_key key = wire_key(k);

	return kvp_acquire(ns, &key, 1, 0, wait_ms ? kvp_deadline_ms(wait_ms) : 0, view);
}

/* ---- sharing ---- */

static void what_one_publishes_the_other_reads_in_place(void **state)
{
	struct fixture *f = *state;
	struct kvp_key keys[3] = {wire_key(1), wire_key(2), wire_key(3)};
	struct kvp_match_part part = {.ns = f->ns_b, .keys = keys};
	struct kvp_counts counts = {.size = sizeof(counts)};
	struct kvp_view views[3];
	uint8_t states[3];

	assert_int_equal(put(f->ns_a, 1, NULL, NULL), KVP_PUB_STORED);
	assert_int_equal(put(f->ns_a, 2, &keys[0], NULL), KVP_PUB_STORED);
	assert_int_equal(kvp_match(&part, 1, 3, 0, states), 2);
	assert_int_equal(states[1], KVP_HIT_RAM);
	assert_int_equal(states[2], KVP_MISS);
	assert_int_equal(kvp_acquire(f->ns_b, keys, 3, 0, kvp_deadline_ms(1000), views), 2);
	for (unsigned i = 0; i < 2; i++) {
		assert_true(wire_right(views[i].data, BLOCK, i + 1));
		assert_int_equal((uintptr_t)views[i].data % 4096, 0);
		assert_int_equal(views[i].used_bytes, BLOCK);
		assert_int_equal(views[i].used_tokens, BLOCK_TOKENS);
		assert_int_equal(views[i].hit, KVP_HIT_RAM);
	}
	assert_null(views[2].data);
	assert_int_equal(views[2].reason, KVP_MISS_NEVER);
	assert_int_equal(kvp_lost(views, 3), 0);
	assert_int_equal(kvp_release(views, 3), 0);
	assert_int_equal(kvp_counts(f->b, &counts), 0);
	assert_int_equal(counts.hits_ram, 2);
	assert_int_equal(counts.tokens_ram, 2 * BLOCK_TOKENS);
	assert_int_equal(counts.misses, 1);
	assert_int_equal(counts.copied_bytes, 0);
}

static void a_second_hit_makes_no_round_trip(void **state)
{
	struct fixture *f = *state;
	struct kvp_counts before = {.size = sizeof(before)}, after = before;
	struct kvp_key key = wire_key(1);
	struct kvp_match_part part = {.ns = f->ns_b, .keys = &key};
	struct kvp_view view;

	assert_int_equal(put(f->ns_a, 1, NULL, NULL), KVP_PUB_STORED);
	assert_int_equal(get(f->ns_b, 1, 1000, &view), 1);
	kvp_release(&view, 1);
	assert_int_equal(kvp_counts(f->b, &before), 0);
	for (unsigned i = 0; i < 1000; i++) {
		assert_int_equal(kvp_match(&part, 1, 1, 0, NULL), 1);
		assert_int_equal(get(f->ns_b, 1, 0, &view), 1);
		assert_int_equal(kvp_release(&view, 1), 0);
	}
	assert_int_equal(kvp_counts(f->b, &after), 0);
	assert_int_equal(after.round_trips, before.round_trips);
	assert_int_equal(after.hits_ram, before.hits_ram + 1000);
}

static sigjmp_buf fault;

static void on_fault(int sig)
{
	(void)sig;
	siglongjmp(fault, 1);
}

static void a_view_cannot_be_stored_into_not_even_by_its_writer(void **state)
{
	struct fixture *f = *state;
	struct sigaction action = {.sa_handler = on_fault}, before;
	struct kvp_view views[2];
	volatile unsigned faults = 0;

	assert_int_equal(put(f->ns_a, 1, NULL, &views[0]), KVP_PUB_STORED);
	assert_true(wire_right(views[0].data, BLOCK, 1));
	assert_int_equal(get(f->ns_b, 1, 1000, &views[1]), 1);
	sigaction(SIGSEGV, &action, &before);
	for (volatile unsigned i = 0; i < 2; i++)
		if (sigsetjmp(fault, 1))
			faults++;
		else
			*(volatile char *)(uintptr_t)views[i].data = 1;
	sigaction(SIGSEGV, &before, NULL);
	assert_int_equal(faults, 2);
	assert_int_equal(kvp_release(views, 2), 0);
}

static void a_key_that_is_there_gives_the_block_that_is_there(void **state)
{
	struct fixture *f = *state;
	struct kvp_view first, second;

	assert_int_equal(put(f->ns_a, 1, NULL, &first), KVP_PUB_STORED);
	assert_int_equal(put(f->ns_b, 1, NULL, &second), KVP_PUB_EXISTS);
	assert_true(wire_right(second.data, BLOCK, 1));
	assert_int_equal(kvp_release(&first, 1), 0);
	assert_int_equal(kvp_release(&second, 1), 0);
}

static void a_block_whose_parent_is_unknown_stays_the_writers(void **state)
{
	struct fixture *f = *state;
	struct kvp_block_ref block;
	struct kvp_publish_item item = {.key = wire_key(2), .parent = wire_key(1), .block = &block, .used_tokens = 16};
	uint8_t result;

	assert_int_equal(kvp_reserve(f->ns_a, 1, 0, kvp_deadline_ms(1000), &block), 1);
	wire_fill(block.data, BLOCK, 2);
	assert_int_equal(kvp_publish(f->ns_a, &item, 1, &result), 0);
	assert_int_equal(result, KVP_PUB_REJECTED);
	assert_non_null(strstr(kvp_error(f->a), "its parent is not in the pool"));
	assert_non_null(block.data);
	memset(block.data, 0, BLOCK); /* still writable */
	assert_int_equal(put(f->ns_a, 1, NULL, NULL), KVP_PUB_STORED);
	wire_fill(block.data, BLOCK, 2);
	assert_int_equal(kvp_publish(f->ns_a, &item, 1, &result), 1);
	assert_int_equal(result, KVP_PUB_STORED);
	assert_null(block.data);
}

static void a_block_twice_in_one_call_is_published_once(void **state)
{
	struct fixture *f = *state;
	struct kvp_block_ref block;
	struct kvp_view views[2];
	struct kvp_publish_item items[2] = {{.key = wire_key(1), .block = &block, .used_tokens = 16, .view = &views[0]},
		{.key = wire_key(2), .block = &block, .used_tokens = 16, .view = &views[1]}};
	uint8_t results[2];

	assert_int_equal(kvp_reserve(f->ns_a, 1, 0, kvp_deadline_ms(1000), &block), 1);
	assert_int_equal(kvp_publish(f->ns_a, items, 2, results), 1);
	assert_int_equal(results[0], KVP_PUB_STORED);
	assert_int_equal(results[1], KVP_PUB_REJECTED);
	assert_non_null(views[0].data);
	assert_null(views[1].data);
	assert_int_equal(kvp_release(views, 2), 0);
}

static void publishing_without_waiting_arrives(void **state)
{
	struct fixture *f = *state;
	struct kvp_block_ref blocks[40];
	struct kvp_publish_item items[40];
	struct kvp_key keys[40];
	struct kvp_match_part part = {.ns = f->ns_b, .keys = keys};
	uint64_t until = wire_now() + 2000000000u;

	assert_int_equal(kvp_reserve(f->ns_a, 40, 0, kvp_deadline_ms(1000), blocks), 40);
	for (unsigned i = 0; i < 40; i++) {
		wire_fill(blocks[i].data, BLOCK, i);
		keys[i] = wire_key(i);
		items[i] = (struct kvp_publish_item){.key = keys[i], .block = &blocks[i], .used_tokens = 16};
		if (i)
			items[i].parent = keys[i - 1];
	}
	assert_int_equal(kvp_publish(f->ns_a, items, 40, NULL), 40);
	for (unsigned i = 0; i < 40; i++)
		assert_null(blocks[i].data);
	while (kvp_match(&part, 1, 40, 0, NULL) < 40 && wire_now() < until)
		wire_sleep_ms(1);
	assert_int_equal(kvp_match(&part, 1, 40, 0, NULL), 40);
}

static void more_blocks_than_one_message_holds(void **state)
{
	enum { N = 5000 };
	struct fixture *f = *state;
	struct kvp_block_ref *blocks = calloc(N, sizeof(*blocks));
	struct kvp_publish_item *items = calloc(N, sizeof(*items));
	struct kvp_view *views = calloc(N, sizeof(*views));
	struct kvp_key *keys = calloc(N, sizeof(*keys));
	uint8_t *results = calloc(N, 1);
	struct kvp_ns *ns_a, *ns_b;
	unsigned published = 0;

	assert_int_equal(try_ns(f->a, "tiny", 0, 0, NULL, 1000, &ns_a), 0);
	assert_int_equal(try_ns(f->b, "tiny", 0, 0, NULL, 1000, &ns_b), 0);
	while (published < 1400) {
		int64_t got = kvp_reserve(ns_a, 700, 0, kvp_deadline_ms(1000), blocks);
		unsigned n = (unsigned)got;

		assert_true(got > 0);
		for (unsigned i = 0; i < n; i++) {
			wire_fill(blocks[i].data, 1000, published + i);
			items[i] = (struct kvp_publish_item){.key = wire_key(published + i),
				.block = &blocks[i],
				.used_tokens = 1 + i % 16,
				.used_bytes = 1000};
		}
		assert_int_equal(kvp_publish(ns_a, items, n, results), n);
		published += n;
	}
	for (unsigned i = 0; i < N; i++)
		keys[i] = wire_key(published - 1 - i);
	struct kvp_match_part part = {.ns = ns_b, .keys = keys};
	int64_t there = kvp_match(&part, 1, N, 0, NULL);

	assert_int_equal(there, 1400);
	assert_int_equal(kvp_acquire(ns_b, keys, N, 0, kvp_deadline_ms(1000), views), there);
	for (int64_t i = 0; i < there; i++)
		assert_true(wire_right(views[i].data, 1000, published - 1 - (unsigned)i));
	assert_int_equal(kvp_release(views, N), 0);
	kvp_ns_close(ns_a);
	kvp_ns_close(ns_b);
	free(blocks);
	free(items);
	free(views);
	free(keys);
	free(results);
}

/* ---- holding ---- */

static void what_is_held_stays_whatever_else_is_written(void **state)
{
	struct fixture *f = *state;
	struct kvp_view held[20];
	unsigned stored = 0;

	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(put(f->ns_a, i, NULL, NULL), KVP_PUB_STORED);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(get(f->ns_b, i, 1000, &held[i]), 1);
	for (unsigned i = 1000; i < 3000; i++) /* the pool holds about 400 */
		stored += put(f->ns_a, i, NULL, NULL) == KVP_PUB_STORED;
	assert_true(stored > 1000);
	for (unsigned i = 0; i < 20; i++)
		assert_true(wire_right(held[i].data, BLOCK, i));
	assert_int_equal(kvp_release(held, 20), 0);
}

static void nothing_can_be_had_while_everything_is_held(void **state)
{
	struct fixture *f = *state;
	struct kvp_block_ref *blocks = calloc(1000, sizeof(*blocks)), more[8];
	uint64_t before;
	int64_t n = 0, more_n;

	/* on a busy machine the first answer may come before everything is made ready */
	while ((more_n = kvp_reserve(f->ns_a, (uint32_t)(1000 - n), 0, kvp_deadline_ms(200), blocks + n)) > 0)
		n += more_n;
	assert_true(n > 300 && n < 1000);
	before = wire_now();
	assert_int_equal(kvp_reserve(f->ns_b, 8, 0, kvp_deadline_ms(1000), more), 0);
	assert_non_null(strstr(kvp_error(f->b), "namespace n: the pool had no room by the deadline"));
	assert_in_range((wire_now() - before) / 1000000, 950, 1500);
	kvp_abandon(blocks, 1);
	assert_int_equal(kvp_reserve(f->ns_b, 1, 0, kvp_deadline_ms(1000), more), 1);
	kvp_abandon(more, 1);
	kvp_abandon(blocks, (uint32_t)n);
	free(blocks);
}

/* What was asked for to fill the stock is not kept from who waits. */
static void a_reserve_that_waits_gets_all_there_is(void **state)
{
	struct fixture *f = *state;
	struct kvp_block_ref *blocks = calloc(1000, sizeof(*blocks));
	int64_t all = kvp_reserve(f->ns_a, 1000, 0, kvp_deadline_ms(2000), blocks);

	kvp_abandon(blocks, (uint32_t)all);
	for (unsigned round = 0; round < 40; round++) {
		struct kvp_client *client = open_client(f);
		struct kvp_ns *ns = open_ns(client, "n", 0);

		assert_int_equal(kvp_reserve(ns, (uint32_t)all, 0, kvp_deadline_ms(800), blocks), all);
		kvp_abandon(blocks, (uint32_t)all);
		kvp_ns_close(ns);
		kvp_close(client);
	}
	free(blocks);
}

static void a_handle_released_twice_takes_nobody_elses_hold(void **state)
{
	struct fixture *f = *state;
	struct kvp_view one, copy, other;

	assert_int_equal(put(f->ns_a, 1, NULL, NULL), KVP_PUB_STORED);
	assert_int_equal(get(f->ns_b, 1, 1000, &one), 1);
	assert_int_equal(get(f->ns_b, 1, 1000, &other), 1);
	copy = one;
	assert_int_equal(kvp_release(&one, 1), 0);
	for (unsigned i = 0; i < 5; i++) {
		struct kvp_view again = copy;

		assert_int_equal(kvp_release(&again, 1), 0);
	}
	wire_sleep_ms(1100);
	for (unsigned i = 1000; i < 2500; i++)
		put(f->ns_a, i, NULL, NULL);
	assert_int_equal(kvp_lost(&other, 1), 0);
	assert_true(wire_right(other.data, BLOCK, 1));
	assert_int_equal(kvp_release(&other, 1), 0);
}

static void *continue_soon(void *arg)
{
	wire_sleep_ms(100);
	kill(((struct host *)arg)->pid, SIGCONT);
	return NULL;
}

/* Not in the index when it is looked for, in memory when it is asked for: no store had a part in that, there is none.
   One client, for what comes by one socket is read in its order; of two sockets either may be read first. */
static void what_is_published_while_it_is_asked_for_is_a_hit_in_dram(void **state)
{
	struct fixture *f = *state;
	struct kvp_counts counts = {.size = sizeof(counts)};
	struct kvp_block_ref block;
	struct kvp_publish_item item = {.key = wire_key(77), .block = &block, .used_tokens = 16};
	struct kvp_view view;
	pthread_t thread;

	assert_int_equal(kvp_reserve(f->ns_a, 1, 0, kvp_deadline_ms(5000), &block), 1);
	wire_fill(block.data, BLOCK, 77);
	kill(f->host.pid, SIGSTOP);
	kvp_publish(f->ns_a, &item, 1, NULL);
	assert_int_equal(pthread_create(&thread, NULL, continue_soon, &f->host), 0);
	assert_int_equal(get(f->ns_a, 77, 5000, &view), 1);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(view.hit, KVP_HIT_RAM);
	assert_true(wire_right(view.data, BLOCK, 77));
	kvp_release(&view, 1);
	assert_int_equal(kvp_counts(f->a, &counts), 0);
	assert_int_equal(counts.hits_spill, 0);
	assert_int_equal(counts.hits_ram, 1);
}

/* ---- namespaces ---- */

static void joining_what_is_not_there_or_is_other_is_refused(void **state)
{
	struct fixture *f = *state;
	struct kvp_ns_info info = {.size = sizeof(info)};
	struct kvp_ns *ns;

	assert_int_equal(try_ns(f->a, "nowhere", KVP_NS_JOIN, 0, NULL, BLOCK, &ns), -KVP_ENOENT);
	assert_non_null(strstr(kvp_error(f->a), "nowhere"));
	assert_string_equal(kvp_differs(f->a), "");
	assert_int_equal(try_ns(f->a, "n", KVP_NS_JOIN, 0, NULL, BLOCK + 1, &ns), -KVP_EMISMATCH);
	assert_non_null(strstr(kvp_error(f->a), "block_bytes"));
	assert_string_equal(kvp_differs(f->a), "block_bytes");
	assert_int_equal(try_ns(f->a, "n", KVP_NS_JOIN, 0, NULL, BLOCK, &ns), 0);
	kvp_ns_close(ns);
	assert_int_equal(try_ns(f->a, "n", 0, 0, NULL, BLOCK + 1, &ns), 0);
	assert_int_equal(kvp_ns_info(ns, &info), 0);
	assert_true(info.flags & KVP_NS_SIBLING);
	assert_int_equal(info.n_siblings, 1);
	assert_string_equal(info.differs, "block_bytes");
	kvp_ns_close(ns);
}

static void a_sibling_finds_nothing_and_is_told_why(void **state)
{
	struct fixture *f = *state;
	struct kvp_view view;
	struct kvp_ns *sibling;

	assert_int_equal(put(f->ns_a, 1, NULL, NULL), KVP_PUB_STORED);
	assert_int_equal(try_ns(f->b, "n", 0, 0, NULL, BLOCK + 1, &sibling), 0);
	assert_int_equal(get(sibling, 1, 1000, &view), 0);
	assert_int_equal(view.reason, KVP_MISS_SIBLING);
	kvp_ns_close(sibling);
}

static void a_copied_namespace_takes_blocks_by_staging(void **state)
{
	struct fixture *f = *state;
	struct kvp_counts counts = {.size = sizeof(counts)};
	struct kvp_ns *ns_a, *ns_b;
	struct kvp_view view, other;

	assert_int_equal(try_ns(f->a, "copied", KVP_NS_COPIED, 0, NULL, BLOCK, &ns_a), 0);
	assert_int_equal(try_ns(f->b, "copied", 0, 0, NULL, BLOCK, &ns_b), 0);
	for (unsigned i = 0; i < 300; i++) { /* more than the staging area holds at once */
		assert_int_equal(put(ns_a, i, NULL, &view), KVP_PUB_STORED);
		assert_true(wire_right(view.data, BLOCK, i));
		assert_int_equal(kvp_release(&view, 1), 0);
	}
	assert_int_equal(put(ns_b, 7, NULL, &other), KVP_PUB_EXISTS);
	assert_true(wire_right(other.data, BLOCK, 7));
	assert_int_equal(kvp_release(&other, 1), 0);
	assert_int_equal(get(ns_b, 5, 1000, &other), 1);
	assert_true(wire_right(other.data, BLOCK, 5));
	assert_int_equal(kvp_release(&other, 1), 0);
	assert_int_equal(kvp_counts(f->a, &counts), 0);
	assert_int_equal(counts.copied_bytes, 300 * BLOCK);
	kvp_ns_close(ns_a);
	kvp_ns_close(ns_b);
}

#define LONG_BLOCK 200000u /* the bound of all staging areas holds five */
#define WRITERS 8u

/* One block of LONG_BLOCK bytes, as kvp_error() says it when there is none. */
static void put_long(struct kvp_ns *ns, uint64_t k)
{
	struct kvp_block_ref block;
	struct kvp_publish_item item = {.key = wire_key(k), .block = &block, .used_tokens = BLOCK_TOKENS};
	uint8_t result = 0;

	if (kvp_reserve(ns, 1, 0, kvp_deadline_ms(60000), &block) != 1)
		fail_msg("%s", kvp_error(NULL));
	wire_fill(block.data, LONG_BLOCK, k);
	assert_int_equal(kvp_publish(ns, &item, 1, &result), 1);
	assert_int_equal(result, KVP_PUB_STORED);
}

static bool nothing_is_staged(void *arg)
{
	struct fixture *f = arg;

	return !atomic_load(&f->host.stats->counters.slab_bytes_staging);
}

static uint64_t staged_by_all(const struct fixture *f)
{
	const struct kvp_stats *stats = f->host.stats;
	const struct kvp_session_row *rows = (const void *)((const char *)stats + stats->session_off);
	uint64_t n = 0;

	for (unsigned i = 0; i < KVP_STATS_SESSIONS_MAX; i++)
		n += atomic_load(&rows[i].session_id) ? atomic_load(&rows[i].staged) : 0;
	return n;
}

static void who_asks_for_what_a_copied_namespace_is_not_or_has_not_is_told_so(void **state)
{
	struct fixture *f = *state;
	struct kvp_block_ref blocks[50] = {0};
	struct kvp_ns *ns, *other;
	int64_t n;

	assert_int_equal(try_ns(f->a, "long", KVP_NS_COPIED, 0, NULL, LONG_BLOCK, &ns), 0);
	assert_int_equal(try_ns(f->b, "long", KVP_NS_IN_PLACE, 0, NULL, LONG_BLOCK, &other), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(f->b), "namespace long of uid "));
	assert_non_null(strstr(kvp_error(f->b), " was made copied: "));
	assert_int_equal(try_ns(f->b, "n", KVP_NS_COPIED, 0, NULL, BLOCK, &other), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(f->b), " was made in place: "));
	n = kvp_reserve(ns, 50, 0, kvp_deadline_ms(20000), blocks);
	assert_in_range(n, 1, 5);
	assert_int_equal(staged_by_all(f), n); /* an operator sees who has them */
	assert_non_null(strstr(kvp_error(f->a), "its staging area has "));
	assert_non_null(strstr(kvp_error(f->a), "fewer are free than the 50 asked for"));
	assert_int_equal(kvp_reserve(ns, 1, 0, kvp_deadline_ms(50), blocks + n), 0);
	assert_non_null(strstr(kvp_error(f->a), "fewer are free than the 1 asked for"));
	kvp_abandon(blocks, (uint32_t)n);
	assert_true(wire_until(nothing_is_staged, f, 20000));
	assert_int_equal(staged_by_all(f), 0);
	kvp_ns_close(ns);
}

static void idle_writers_of_a_copied_namespace_keep_nobody_waiting(void **state)
{
	struct fixture *f = *state;
	struct kvp_client *clients[WRITERS];
	struct kvp_ns *ns[WRITERS];

	for (unsigned i = 0; i < WRITERS; i++) { /* those before stay connected */
		clients[i] = open_client(f);
		assert_int_equal(try_ns(clients[i], "long", KVP_NS_COPIED, 0, NULL, LONG_BLOCK, &ns[i]), 0);
		for (unsigned k = 0; k < 3; k++)
			put_long(ns[i], 10 * i + k);
	}
	put_long(ns[0], 1000); /* who gave up its area gets another */
	assert_true(wire_until(nothing_is_staged, f, 20000));
	for (unsigned i = 0; i < WRITERS; i++) {
		kvp_ns_close(ns[i]);
		kvp_close(clients[i]);
	}
}

static void a_reserved_block_of_a_copied_namespace_stays_however_long_it_is_idle(void **state)
{
	struct fixture *f = *state;
	struct kvp_block_ref block;
	struct kvp_view view;
	struct kvp_publish_item item = {
		.key = wire_key(1), .block = &block, .used_tokens = BLOCK_TOKENS, .view = &view};
	struct kvp_ns *ns;
	uint8_t result = 0;

	assert_int_equal(try_ns(f->a, "long", KVP_NS_COPIED, 0, NULL, LONG_BLOCK, &ns), 0);
	assert_int_equal(kvp_reserve(ns, 1, 0, kvp_deadline_ms(20000), &block), 1);
	wire_fill(block.data, LONG_BLOCK, 1);
	wire_sleep_ms(1000);
	assert_false(nothing_is_staged(f));
	assert_int_equal(kvp_publish(ns, &item, 1, &result), 1);
	assert_int_equal(result, KVP_PUB_STORED);
	assert_true(wire_right(view.data, LONG_BLOCK, 1));
	assert_int_equal(kvp_release(&view, 1), 0);
	assert_true(wire_until(nothing_is_staged, f, 20000));
	kvp_ns_close(ns);
}

struct busy {
	pthread_t thread;
	struct kvp_ns *ns;
	uint64_t first;
	_Atomic uint64_t n;
	_Atomic bool *over;
};

static void *publishes_without_a_pause(void *arg)
{
	struct busy *busy = arg;

	while (!atomic_load(busy->over)) {
		struct kvp_block_ref block;
		struct kvp_publish_item item = {.block = &block, .used_tokens = BLOCK_TOKENS};
		uint8_t result = 0;

		item.key = wire_key(busy->first + busy->n);
		if (kvp_reserve(busy->ns, 1, 0, kvp_deadline_ms(100), &block) != 1)
			continue;
		memset(block.data, 0, LONG_BLOCK);
		if (kvp_publish(busy->ns, &item, 1, &result) == 1)
			atomic_fetch_add(&busy->n, 1);
		else
			kvp_abandon(&block, 1);
	}
	return NULL;
}

static bool all_have_published(void *arg)
{
	const struct busy *busy = arg;
	bool all = true;

	for (unsigned i = 0; i < WRITERS; i++)
		all = all && atomic_load(&busy[i].n) >= 5;
	return all;
}

static void busy_writers_of_a_copied_namespace_take_turns(void **state)
{
	struct fixture *f = *state;
	struct busy busy[WRITERS];
	struct kvp_client *clients[WRITERS];
	_Atomic bool over = false;
	bool all;

	for (unsigned i = 0; i < WRITERS; i++) {
		clients[i] = open_client(f);
		busy[i] = (struct busy){.first = 1000000 * (i + 1), .over = &over};
		assert_int_equal(try_ns(clients[i], "long", KVP_NS_COPIED, 0, NULL, LONG_BLOCK, &busy[i].ns), 0);
	}
	for (unsigned i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&busy[i].thread, NULL, publishes_without_a_pause, &busy[i]), 0);
	all = wire_until(all_have_published, busy, 60000);
	atomic_store(&over, true);
	for (unsigned i = 0; i < WRITERS; i++) {
		pthread_join(busy[i].thread, NULL);
		print_message("writer %u: %llu blocks\n", i, (unsigned long long)busy[i].n);
		kvp_ns_close(busy[i].ns);
		kvp_close(clients[i]);
	}
	assert_true(all);
}

static void a_base_is_found_through_and_never_written(void **state)
{
	struct fixture *f = *state;
	struct kvp_key base_key = wire_key(1), keys[2] = {wire_key(1), wire_key(2)};
	struct kvp_view views[2], view;
	struct kvp_ns *child, *child_b;

	assert_int_equal(put(f->ns_a, 1, NULL, NULL), KVP_PUB_STORED);
	assert_int_equal(try_ns(f->a, "child", 0, 0, f->ns_a, BLOCK, &child), 0);
	assert_int_equal(put(child, 2, &base_key, NULL), KVP_PUB_STORED); /* its parent lies in the base */
	/* another client joins only the child: its base comes with it */
	assert_int_equal(try_ns(f->b, "child", 0, 0, NULL, BLOCK, &child_b), 0);
	assert_int_equal(kvp_acquire(child_b, keys, 2, 0, kvp_deadline_ms(1000), views), 2);
	assert_true(wire_right(views[0].data, BLOCK, 1));
	assert_true(wire_right(views[1].data, BLOCK, 2));
	assert_int_equal(kvp_release(views, 2), 0);
	assert_int_equal(get(f->ns_b, 2, 100, &view), 0);
	kvp_ns_close(child_b);
	kvp_ns_close(child);
}

static void keys_are_the_same_in_every_client(void **state)
{
	struct fixture *f = *state;
	uint32_t tokens[32] = {1, 2, 3};
	struct kvp_key a[2], b[2], zero[2];
	struct kvp_open_opts offline = {.size = sizeof(offline), .flags = KVP_OPEN_OFFLINE};
	struct kvp_client *client;
	struct kvp_ns *ns;

	assert_int_equal(kvp_hash_chain(f->ns_a, NULL, tokens, 32, NULL, 0, a), 2);
	assert_int_equal(kvp_hash_chain(f->ns_b, NULL, tokens, 32, NULL, 0, b), 2);
	assert_memory_equal(a, b, sizeof(a));
	assert_int_equal(kvp_open(&offline, &client), 0);
	assert_int_equal(try_ns(client, "n", 0, 0, NULL, BLOCK, &ns), 0);
	assert_int_equal(kvp_hash_chain(ns, NULL, tokens, 32, NULL, 0, zero), 2);
	assert_memory_not_equal(a, zero, sizeof(a)); /* the namespace's secret is in them */
	kvp_ns_close(ns);
	kvp_close(client);
}

/* ---- the daemon goes and comes ---- */

static bool attached(void *arg)
{
	return kvp_state(arg, NULL) == KVP_ATTACHED && kvp_ping(arg, kvp_deadline_ms(100)) == 0;
}

static bool detached(void *arg)
{
	return kvp_state(arg, NULL) == KVP_DETACHED;
}

static void a_killed_daemon_takes_nothing_along(void **state)
{
	struct fixture *f = *state;
	struct kvp_view held[30], view;
	struct kvp_block_ref granted[4];
	struct kvp_publish_item item = {.key = wire_key(500), .block = &granted[0], .used_tokens = 16, .view = &view};
	uint64_t epoch, later;
	uint8_t result;

	for (unsigned i = 0; i < 30; i++)
		assert_int_equal(put(f->ns_a, i, NULL, NULL), KVP_PUB_STORED);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(get(f->ns_b, i, 1000, &held[i]), 1);
	assert_int_equal(kvp_reserve(f->ns_b, 4, 0, kvp_deadline_ms(1000), granted), 4);
	wire_fill(granted[0].data, BLOCK, 500);
	kvp_state(f->b, &epoch);

	host_kill(&f->host);
	assert_true(wire_until(detached, f->b, 2000));
	for (unsigned i = 0; i < 20; i++)
		assert_true(wire_right(held[i].data, BLOCK, i)); /* held views stay readable */
	assert_int_equal(get(f->ns_b, 25, 0, &held[25]), 1); /* what is mapped is found */
	assert_int_equal(kvp_release(&held[25], 1), 0);
	assert_int_equal(get(f->ns_b, 999, 100, &view), 0);
	assert_int_equal(kvp_release(held, 5), 0);

	assert_int_equal(host_start(&f->host, NULL), 0);
	assert_true(wire_until(attached, f->b, 5000));
	assert_true(wire_until(attached, f->a, 5000));
	kvp_state(f->b, &later);
	assert_int_not_equal(epoch, later);
	/* the grant stood over the restart */
	assert_int_equal(kvp_publish(f->ns_b, &item, 1, &result), 1);
	assert_int_equal(result, KVP_PUB_STORED);
	assert_true(wire_right(view.data, BLOCK, 500));
	/* and so did the holds */
	for (unsigned i = 1000; i < 2500; i++)
		put(f->ns_a, i, NULL, NULL);
	for (unsigned i = 5; i < 20; i++)
		assert_true(wire_right(held[i].data, BLOCK, i));
	assert_int_equal(kvp_release(held + 5, 15), 0);
	assert_int_equal(kvp_release(&view, 1), 0);
	kvp_abandon(granted, 4);
}

struct publisher {
	struct kvp_ns *ns;
	uint64_t first;
	unsigned n, unknown, stored, wrong, lost;
};

static void *publish_many(void *arg)
{
	struct publisher *p = arg;

	for (unsigned i = 0; i < p->n; i++) {
		struct kvp_view view = {0};
		int r = put(p->ns, p->first + i, NULL, &view);

		p->unknown += r == 0;
		p->stored += r == KVP_PUB_STORED;
		if (view.data)
			p->wrong += !wire_right(view.data, BLOCK, p->first + i);
		p->lost += (unsigned)kvp_release(&view, 1);
	}
	return NULL;
}

static void a_publish_under_way_survives_the_daemon(void **state)
{
	struct fixture *f = *state;
	unsigned stored = 0;

	for (unsigned round = 0; round < 8; round++) {
		struct publisher p = {.ns = f->ns_a, .first = round * 1000, .n = 200};
		pthread_t thread;

		pthread_create(&thread, NULL, publish_many, &p);
		wire_sleep_ms(1 + 3 * round);
		host_kill(&f->host);
		wire_sleep_ms(20);
		assert_int_equal(host_start(&f->host, NULL), 0);
		pthread_join(thread, NULL);
		assert_int_equal(p.unknown, 0);
		assert_int_equal(p.wrong, 0);
		assert_int_equal(p.lost, 0);
		stored += p.stored;
		assert_true(wire_until(attached, f->a, 5000));
		assert_true(wire_until(attached, f->b, 5000));
		for (unsigned i = 0; i < p.n; i++) {
			struct kvp_view view;

			if (get(f->ns_b, p.first + i, 0, &view) == 1)
				assert_true(wire_right(view.data, BLOCK, p.first + i));
			assert_int_equal(kvp_release(&view, 1), 0);
		}
	}
	assert_true(stored > 200);
}

struct storer {
	struct kvp_ns *ns;
	uint64_t sign;
	_Atomic bool stop;
	unsigned rounds, spoilt;
};

/* Every block that was lent holds what its borrower stored, until he gives it back. Many busy threads: each of them is
 * sometimes kept from what it just received until the daemon has come again. */
static void *store_and_look(void *arg)
{
	struct storer *s = arg;

	for (; !atomic_load(&s->stop); s->rounds++) {
		struct kvp_block_ref blocks[24] = {{0}};
		int64_t n = kvp_reserve(s->ns, 24, 0, kvp_deadline_ms(20), blocks);

		for (int64_t i = 0; i < n; i++)
			wire_fill(blocks[i].data, BLOCK, s->sign);
		for (int64_t i = 0; i < n; i++)
			s->spoilt += !wire_right(blocks[i].data, BLOCK, s->sign);
		kvp_abandon(blocks, n < 0 ? 0 : (uint32_t)n);
	}
	return NULL;
}

static void no_block_is_lent_twice_however_often_the_daemon_is_killed(void **state)
{
	struct fixture *f = *state;
	struct storer storers[16];
	pthread_t threads[16];
	unsigned rounds = 0, spoilt = 0;

	for (unsigned i = 0; i < 16; i++) {
		storers[i] = (struct storer){.ns = i % 2 ? f->ns_a : f->ns_b, .sign = i};
		pthread_create(&threads[i], NULL, store_and_look, &storers[i]);
	}
	for (unsigned i = 0; i < 60; i++) {
		wire_sleep_ms(10 + i % 7 * 5);
		host_kill(&f->host);
		assert_int_equal(host_start(&f->host, NULL), 0);
	}
	for (unsigned i = 0; i < 16; i++) {
		atomic_store(&storers[i].stop, true);
		pthread_join(threads[i], NULL);
		rounds += storers[i].rounds;
		spoilt += storers[i].spoilt;
	}
	assert_int_equal(spoilt, 0);
	assert_true(rounds > 100);
	assert_true(wire_until(attached, f->a, 5000));
	assert_true(wire_until(attached, f->b, 5000));
}

static void of_another_pool_nothing_is_mixed_in(void **state)
{
	struct fixture *f = *state;
	struct kvp_block_ref block;
	struct kvp_view held[2], fresh;
	struct kvp_publish_item item = {.key = wire_key(9), .block = &block, .used_tokens = 16};
	struct host gone = f->host;
	uint8_t result = 0;

	assert_int_equal(put(f->ns_a, 1, NULL, &held[0]), KVP_PUB_STORED);
	assert_int_equal(get(f->ns_b, 1, 1000, &held[1]), 1);
	assert_int_equal(kvp_reserve(f->ns_b, 1, 0, kvp_deadline_ms(1000), &block), 1);
	wire_fill(block.data, BLOCK, 9);
	host_kill(&f->host);
	snprintf(f->host.name, sizeof(f->host.name), "test-%d-other", (int)getpid()); /* same socket, another pool */
	assert_int_equal(host_start(&f->host, NULL), 0);
	assert_true(wire_until(attached, f->a, 5000));
	assert_true(wire_until(attached, f->b, 5000));
	assert_true(wire_right(held[0].data, BLOCK, 1));
	assert_true(wire_right(held[1].data, BLOCK, 1));
	assert_int_equal(kvp_publish(f->ns_b, &item, 1, &result), 0);
	assert_int_equal(result, KVP_PUB_GONE);
	assert_int_equal(block.is_private, 1);
	assert_true(wire_right(block.data, BLOCK, 9));
	wire_sleep_ms(300); /* namespaces are joined anew */
	assert_int_equal(get(f->ns_b, 1, 100, &fresh), 0);
	assert_int_equal(put(f->ns_a, 1, NULL, NULL), KVP_PUB_STORED);
	assert_int_equal(get(f->ns_b, 1, 1000, &fresh), 1);
	assert_true(wire_right(fresh.data, BLOCK, 1));
	assert_int_equal(kvp_release(&fresh, 1), 0);
	assert_int_equal(kvp_release(held, 2), 0);
	kvp_abandon(&block, 1);
	wire_sleep_ms(400); /* the sweep over the old pool's mappings must hurt nobody */
	assert_int_equal(get(f->ns_b, 1, 1000, &fresh), 1);
	assert_true(wire_right(fresh.data, BLOCK, 1));
	assert_int_equal(kvp_release(&fresh, 1), 0);
	gone.pid = 0;
	gone.stats = NULL;
	strcpy(gone.dir, "/tmp/kvpool-test-none");
	host_close(&gone);
}

static void a_daemon_that_hangs_costs_no_more_than_the_deadline(void **state)
{
	struct fixture *f = *state;
	struct kvp_key keys[2] = {wire_key(1), wire_key(2)};
	struct kvp_match_part part = {.ns = f->ns_b, .keys = keys};
	struct kvp_block_ref block;
	struct kvp_view views[2];
	uint64_t before;

	assert_int_equal(put(f->ns_a, 1, NULL, NULL), KVP_PUB_STORED);
	assert_int_equal(get(f->ns_b, 1, 1000, views), 1);
	kvp_release(views, 1);
	kill(f->host.pid, SIGSTOP);
	before = wire_now();
	assert_int_equal(kvp_acquire(f->ns_b, keys, 2, 0, kvp_deadline_ms(200), views), 1);
	assert_in_range((wire_now() - before) / 1000000, 190, 400);
	assert_true(wire_right(views[0].data, BLOCK, 1));
	assert_int_equal(kvp_release(views, 2), 0);
	before = wire_now();
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(kvp_match(&part, 1, 2, 0, NULL), 1);
	assert_true(wire_now() - before < 500000000u); /* the first call waits a little, the others know */
	before = wire_now();
	assert_int_equal(kvp_reserve(f->ns_b, 1, 0, kvp_deadline_ms(100), &block), 0);
	assert_int_equal(kvp_ping(f->b, kvp_deadline_ms(100)), -KVP_ETIMEDOUT);
	assert_true(wire_now() - before < 600000000u);
	kill(f->host.pid, SIGCONT);
	assert_true(wire_until(attached, f->b, 5000));
	assert_int_equal(kvp_reserve(f->ns_b, 1, 0, kvp_deadline_ms(2000), &block), 1); /* a late grant is not lost */
	kvp_abandon(&block, 1);
}

/* ---- processes ---- */

static void a_forked_child_hides_nothing_of_its_parents_end(void **state)
{
	struct fixture *f = *state;
	int go[2], status;
	char byte;
	pid_t pid, child;

	assert_int_equal(pipe(go), 0);
	pid = fork();
	if (pid == 0) { /* an engine of its own, whose child outlives it */
		struct kvp_open_opts opts = {.size = sizeof(opts), .socket = f->host.socket};
		struct kvp_client *client;
		struct kvp_ns *ns;
		struct kvp_view view;

		if (kvp_open(&opts, &client) < 0 || try_ns(client, "n", 0, 0, NULL, BLOCK, &ns) < 0 ||
			put(ns, 77, NULL, &view) != KVP_PUB_STORED)
			_exit(1);
		child = fork();
		if (child == 0) {
			close(go[1]);
			if (read(go[0], &byte, 1) < 0) /* until the test is through */
				_exit(1);
			_exit(kvp_release(&view, 1));
		}
		_exit(child < 0);
	}
	close(go[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(host_logged(&f->host, "", 0));
	/* its session ends though its child lives: what it held can be evicted */
	for (unsigned i = 0; i < 100 && atomic_load(&f->host.stats->counters.sessions) > 2; i++)
		wire_sleep_ms(20);
	assert_int_equal(atomic_load(&f->host.stats->counters.sessions), 2);
	close(go[1]);
}

static void without_descriptors_there_is_a_clear_error(void **state)
{
	struct fixture *f = *state;
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = f->host.socket};
	struct rlimit before, tight;
	struct kvp_client *client;
	int fds[256], n = 0;

	getrlimit(RLIMIT_NOFILE, &before);
	tight = before;
	tight.rlim_cur = 200;
	setrlimit(RLIMIT_NOFILE, &tight);
	while (n < 256 && (fds[n] = dup(0)) >= 0)
		n++;
	/* one for the socket, one for waking, none for what HELLO sends */
	close(fds[--n]);
	close(fds[--n]);
	assert_int_equal(kvp_open(&opts, &client), 0);
	assert_int_equal(kvp_state(client, NULL), KVP_DETACHED);
	assert_int_equal(kvp_ping(client, kvp_deadline_ms(100)), -KVP_EQUOTA);
	while (n)
		close(fds[--n]);
	setrlimit(RLIMIT_NOFILE, &before);
	assert_true(wire_until(attached, client, 5000));
	kvp_close(client);
}

/* ---- many at once ---- */

struct work {
	struct kvp_ns *ns;
	uint64_t seed;
	unsigned wrong, hits, stored;
};

static void *work(void *arg)
{
	struct work *w = arg;

	for (unsigned i = 0; i < 3000; i++) {
		uint64_t k = (w->seed += 0x9e3779b97f4a7c15ull, (w->seed ^ w->seed >> 29) % 600);
		struct kvp_view view = {0};

		if (get(w->ns, k, i % 5 ? 0 : 5, &view) == 1) {
			bool right = wire_right(view.data, BLOCK, k);

			w->hits++;
			if (kvp_release(&view, 1) == 0)
				w->wrong += !right;
		} else {
			int r = put(w->ns, k, NULL, &view);

			w->stored += r == KVP_PUB_STORED;
			if (view.data)
				w->wrong += !wire_right(view.data, BLOCK, k);
			kvp_release(&view, 1);
		}
	}
	return NULL;
}

static void threads_of_two_clients_never_read_a_wrong_byte(void **state)
{
	struct fixture *f = *state;
	struct work works[6];
	pthread_t threads[6];
	unsigned hits = 0, stored = 0;

	for (unsigned i = 0; i < 6; i++) {
		works[i] = (struct work){.ns = i % 2 ? f->ns_a : f->ns_b, .seed = i};
		pthread_create(&threads[i], NULL, work, &works[i]);
	}
	for (unsigned i = 0; i < 6; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(works[i].wrong, 0);
		hits += works[i].hits;
		stored += works[i].stored;
	}
	assert_true(hits > 1000);
	assert_true(stored > 500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(what_one_publishes_the_other_reads_in_place),
		TEST(a_second_hit_makes_no_round_trip),
		TEST(a_view_cannot_be_stored_into_not_even_by_its_writer),
		TEST(a_key_that_is_there_gives_the_block_that_is_there),
		TEST(a_block_whose_parent_is_unknown_stays_the_writers),
		TEST(a_block_twice_in_one_call_is_published_once),
		TEST(publishing_without_waiting_arrives),
		TEST(more_blocks_than_one_message_holds),
		TEST(what_is_held_stays_whatever_else_is_written),
		TEST(nothing_can_be_had_while_everything_is_held),
		TEST(a_reserve_that_waits_gets_all_there_is),
		TEST(a_handle_released_twice_takes_nobody_elses_hold),
		TEST(what_is_published_while_it_is_asked_for_is_a_hit_in_dram),
		TEST(joining_what_is_not_there_or_is_other_is_refused),
		TEST(a_sibling_finds_nothing_and_is_told_why),
		TEST(a_copied_namespace_takes_blocks_by_staging),
		TEST(who_asks_for_what_a_copied_namespace_is_not_or_has_not_is_told_so),
		TEST(idle_writers_of_a_copied_namespace_keep_nobody_waiting),
		TEST(a_reserved_block_of_a_copied_namespace_stays_however_long_it_is_idle),
		TEST(busy_writers_of_a_copied_namespace_take_turns),
		TEST(a_base_is_found_through_and_never_written),
		TEST(keys_are_the_same_in_every_client),
		TEST(a_killed_daemon_takes_nothing_along),
		TEST(a_publish_under_way_survives_the_daemon),
		TEST(no_block_is_lent_twice_however_often_the_daemon_is_killed),
		TEST(of_another_pool_nothing_is_mixed_in),
		TEST(a_daemon_that_hangs_costs_no_more_than_the_deadline),
		TEST(a_forked_child_hides_nothing_of_its_parents_end),
		TEST(without_descriptors_there_is_a_clear_error),
		TEST(threads_of_two_clients_never_read_a_wrong_byte),
	};

	if (getenv("KVPOOL_TEST_ONLY"))
		cmocka_set_test_filter(getenv("KVPOOL_TEST_ONLY"));
	return cmocka_run_group_tests_name("client and pool", tests, NULL, NULL);
}
