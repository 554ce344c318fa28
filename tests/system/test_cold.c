/*
 * test_cold.c - blocks that nobody has used for long are quantised beside, where their owner allows it: kvpoold and kvpool-cold
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvattn.h"
#include "kvpool.h"
#include "wire.h"

#define LAYERS 2u
#define HEADS 2u
#define DIM 64u
#define WIDTH 16u /* a block: 32 KiB of f32 */
#define ROW (HEADS * DIM)
#define CHAIN 40u
#define SOMEBODY 12345u /* not the overflow uid, which is refused at the door */

struct fixture {
	struct host host;
	char spill[128], helper_log[112];
	struct kvp_client *client;
	struct kvp_ns *ns;
	pid_t helper;
};

static struct kvp_ns *given_ns(const struct fixture *f, const char *name, const struct kvp_desc *desc, uint32_t flags)
{
	struct kvp_ns_opts opts = {
		.size = sizeof(opts), .name = name, .owner_uid = KVP_UID_SELF, .desc = desc, .flags = flags};
	struct kvp_ns *ns;

	if (kvp_ns_open(f->client, &opts, &ns) < 0)
		fail_msg("%s", kvp_error(f->client));
	return ns;
}

static struct kvp_desc exact_desc(void)
{
	struct kvp_desc desc;

	kvp_desc_init(&desc, KVP_LAYOUT_HND, WIDTH, LAYERS, HEADS, DIM, KVP_TYPE_F32);
	return desc;
}

static struct kvp_desc small_desc(void)
{
	struct kvp_desc desc = exact_desc(), small;

	assert_int_equal(kvp_desc_quantised(&desc, KVP_TYPE_I8, KVP_TYPE_I8, &small), 0);
	return small;
}

static void open_client(struct fixture *f)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = f->host.socket, .connect_timeout_ms = 5000};
	struct kvp_desc desc = exact_desc();

	assert_int_equal(kvp_open(&opts, &f->client), 0);
	f->ns = given_ns(f, "m", &desc, 0);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	const char *options[] = {"--pool", "32M", "--slab", "1M", "--free-percent", "0", "--heartbeat", "200",
		"--spill", f->spill, NULL};
	char dir[96];

	assert_non_null(f);
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	snprintf(dir, sizeof(dir), "%s/spill", f->host.dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	snprintf(f->spill, sizeof(f->spill), "%s:256M", dir);
	snprintf(f->helper_log, sizeof(f->helper_log), "%s/helper", f->host.dir);
	assert_int_equal(host_start(&f->host, options), 0);
	open_client(f);
	*state = f;
	return 0;
}

static void helper_start_every(struct fixture *f, uid_t uid, const char *idle, const char *rate, const char *every)
{
	const char *build = getenv("BUILD");
	char path[512];

	snprintf(path, sizeof(path), "%s/kvpool-cold", build ? build : "build");
	f->helper = fork();
	if (f->helper)
		return;
	int fd = open(f->helper_log, O_WRONLY | O_CREAT | O_APPEND, 0644);

	dup2(fd, 1);
	dup2(fd, 2);
	if (uid && (setgid(uid) < 0 || setuid(uid) < 0))
		_exit(98);
	execl(path, "kvpool-cold", "--socket", f->host.socket, "--idle", idle, "--every", every, "--rate", rate,
		(char *)NULL);
	_exit(99);
}

static int helper_end(struct fixture *f, int number)
{
	int status = -1;

	if (f->helper > 0 && kill(f->helper, number) == 0)
		waitpid(f->helper, &status, 0);
	f->helper = 0;
	return status;
}

static void helper_start(struct fixture *f, uid_t uid, const char *idle, const char *rate)
{
	helper_start_every(f, uid, idle, rate, "100");
}

static void assert_helper_said(const struct fixture *f, const char *text)
{
	int fd = open(f->helper_log, O_RDONLY);
	char said[1024] = "";

	assert_true(fd >= 0 && read(fd, said, sizeof(said) - 1) >= 0);
	close(fd);
	assert_string_equal(said, text);
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	bool good;

	helper_end(f, SIGKILL);
	good = host_alive(&f->host) && host_conserves(&f->host);
	kvp_ns_close(f->ns);
	kvp_close(f->client);
	host_close(&f->host);
	free(f);
	return good ? 0 : -1;
}

/* ---- blocks that tell where they belong ---- */

static float value_of(uint64_t seed, uint32_t layer, uint32_t token, uint32_t i)
{
	return (float)((seed * 131 + layer * 17 + token * 31 + i * 7919) % 4096) / 1024 - 2;
}

static void rows_of(uint64_t seed, uint32_t layer, float k[WIDTH * ROW], float v[WIDTH * ROW])
{
	for (uint32_t t = 0; t < WIDTH; t++)
		for (uint32_t i = 0; i < ROW; i++) {
			k[t * ROW + i] = value_of(seed, layer, t, i);
			v[t * ROW + i] = -value_of(seed, layer, t, i);
		}
}

static void block_fill(const struct kvp_ns *ns, uint64_t seed, void *block)
{
	static float k[WIDTH * ROW], v[WIDTH * ROW];

	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		struct kvattn_geom geom;

		rows_of(seed, layer, k, v);
		assert_int_equal(kvp_attn_geom(ns, layer, &geom), 0);
		assert_int_equal(kvattn_put(&geom, block, 0, WIDTH, k, 0, v, 0), 0);
	}
}

/* The largest relative L2 error of a layer's K or V. */
static double block_error(const struct kvp_ns *ns, uint64_t seed, const void *block)
{
	static float k[WIDTH * ROW], v[WIDTH * ROW], want_k[WIDTH * ROW], want_v[WIDTH * ROW];
	double worst = 0;

	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		double off_k = 0, off_v = 0, all_k = 0, all_v = 0;
		struct kvattn_geom geom;

		rows_of(seed, layer, want_k, want_v);
		assert_int_equal(kvp_attn_geom(ns, layer, &geom), 0);
		assert_int_equal(kvattn_get(&geom, block, 0, WIDTH, k, 0, v, 0), 0);
		for (uint32_t i = 0; i < WIDTH * ROW; i++) {
			off_k += pow((double)k[i] - (double)want_k[i], 2);
			off_v += pow((double)v[i] - (double)want_v[i], 2);
			all_k += pow((double)want_k[i], 2);
			all_v += pow((double)want_v[i], 2);
		}
		worst = fmax(worst, fmax(sqrt(off_k / all_k), sqrt(off_v / all_v)));
	}
	return worst;
}

/* A chain, its blocks under keys from wire_key(@first) on. */
static void publish_chain(struct fixture *f, struct kvp_ns *ns, uint64_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct kvp_block_ref block;
		struct kvp_publish_item item = {.key = wire_key(first + i), .block = &block, .used_tokens = WIDTH};
		uint8_t result;

		if (i)
			item.parent = wire_key(first + i - 1);
		if (kvp_reserve(ns, 1, 0, kvp_deadline_ms(10000), &block) != 1)
			fail_msg("%s", kvp_error(f->client));
		block_fill(ns, first + i, block.data);
		if (kvp_publish(ns, &item, 1, &result) != 1)
			fail_msg("block %u from %llu on: result %u: %s, state %d", i, (unsigned long long)first, result,
				kvp_error(f->client), (int)kvp_state(f->client, NULL));
	}
}

/* A daemon that just came serves before this client has mapped all of its memory again: a miss then, and soon none. */
static void hold_one(struct kvp_ns *ns, const struct kvp_key *key, struct kvp_view *view)
{
	uint64_t until = kvp_deadline_ms(10000);

	while (kvp_acquire(ns, key, 1, 0, until, view) != 1) {
		if (wire_now() > until)
			fail_msg("a block is missing, for reason %u", view->reason);
		wire_sleep_ms(20);
	}
}

struct made {
	struct kvp_ns *to;
	uint64_t first;
	uint32_t n;
};

static bool is_there(void *arg)
{
	const struct made *made = arg;

	for (uint32_t i = 0; i < made->n; i++) {
		struct kvp_key key = wire_key(made->first + i), derived;
		struct kvp_match_part part = {.ns = made->to, .keys = &derived};

		assert_int_equal(kvp_key_derived(made->to, &key, &derived), 0);
		if (kvp_match(&part, 1, 1, 0, NULL) != 1)
			return false;
	}
	return true;
}

static void assert_made(struct made *made, unsigned ms)
{
	if (!wire_until(is_there, made, ms))
		fail_msg("of the chain from %llu on some blocks were not quantised", (unsigned long long)made->first);
	for (uint32_t i = 0; i < made->n; i++) {
		struct kvp_key key = wire_key(made->first + i), derived;
		struct kvp_view view;

		assert_int_equal(kvp_acquire(made->to, &key, 1, 0, 0, &view), 0); /* not under the exact block's key */
		assert_int_equal(kvp_key_derived(made->to, &key, &derived), 0);
		hold_one(made->to, &derived, &view);
		assert_int_equal(view.used_tokens, WIDTH);
		assert_true(block_error(made->to, made->first + i, view.data) < 9.4e-3);
		kvp_release(&view, 1);
	}
}

static void assert_exact(struct kvp_ns *ns, uint64_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct kvp_key key = wire_key(first + i);
		struct kvp_view view;

		hold_one(ns, &key, &view);
		assert_true(block_error(ns, first + i, view.data) == 0);
		kvp_release(&view, 1);
	}
}

static const struct kvp_ns_row *row_of(struct fixture *f, struct kvp_ns *ns)
{
	struct kvp_ns_info info = {.size = sizeof(info)};

	assert_int_equal(kvp_ns_info(ns, &info), 0);
	return host_ns_row(&f->host, info.ns_id);
}

static void what_is_cold_is_found_quantised_where_its_owner_allowed_it(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc small = small_desc();
	struct kvp_ns *to = given_ns(f, "m", &small, KVP_NS_COLD);
	struct made made = {.to = to, .first = 100, .n = CHAIN};
	uint64_t lookups, stored;

	publish_chain(f, f->ns, 100, CHAIN);
	wire_sleep_ms(500); /* what this client counts has come over */
	lookups = atomic_load(&row_of(f, f->ns)->counters.lookups);
	helper_start(f, 0, "1000", "64");
	assert_made(&made, 20000);
	stored = atomic_load(&row_of(f, to)->counters.stored);
	assert_int_equal(stored, CHAIN);
	assert_int_equal(atomic_load(&row_of(f, f->ns)->counters.lookups), lookups); /* nobody used them */
	assert_int_equal(atomic_load(&row_of(f, f->ns)->counters.published), CHAIN);
	assert_exact(f->ns, 100, CHAIN);
	wire_sleep_ms(1500); /* all there: it has nothing more to do, and is in no namespace */
	assert_int_equal(atomic_load(&row_of(f, to)->counters.stored), stored);
	assert_int_equal(helper_end(f, SIGTERM), 0);
	kvp_ns_close(to);
}

/* A piece at a time, and more ends of chains than the daemon looks at for one question. */
static void long_chains_and_many_ends_are_done_in_one_round(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc small = small_desc();
	struct kvp_ns *to = given_ns(f, "m", &small, KVP_NS_COLD);
	struct made chain = {.to = to, .first = 10000, .n = 70}, last = {.to = to, .first = 20000, .n = 1};
	uint64_t began;

	for (uint64_t i = 0; i < 300; i++)
		publish_chain(f, f->ns, 100 + i, 1); /* ends at once */
	helper_start(f, 0, "1000", "64");
	for (uint64_t i = 0; i < 300; i++) {
		struct made end = {.to = to, .first = 100 + i, .n = 1};

		assert_true(wire_until(is_there, &end, 20000));
	}
	helper_end(f, SIGTERM);
	publish_chain(f, f->ns, 10000, 70);
	publish_chain(f, f->ns, 20000, 1);
	wire_sleep_ms(1500);
	helper_start_every(f, 0, "1000", "64", "60000"); /* one round, within the test */
	began = wire_now();
	assert_made(&chain, 20000);
	assert_made(&last, 20000);
	print_message("behind 300 that are done 71 in %llu ms\n", (unsigned long long)((wire_now() - began) / 1000000));
	kvp_ns_close(to);
}

static void where_the_owner_did_not_allow_it_nothing_is_quantised(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc desc = exact_desc(), small = small_desc();
	struct kvp_ns *not_allowed = given_ns(f, "n", &small, 0), *without = given_ns(f, "w", &desc, 0);
	struct kvp_ns *to = given_ns(f, "m", &small, KVP_NS_COLD), *exact = given_ns(f, "n", &desc, 0);
	struct made made = {.to = to, .first = 100, .n = 3};
	struct kvp_ns_opts opts = {.size = sizeof(opts), .name = "x", .desc = &desc, .flags = KVP_NS_COLD};
	struct kvp_ns *refused;

	opts.owner_uid = KVP_UID_SELF;
	assert_int_equal(kvp_ns_open(f->client, &opts, &refused), -KVP_EINVAL); /* not one of kvp_desc_quantised() */
	publish_chain(f, exact, 200, 3);
	publish_chain(f, without, 300, 3);
	publish_chain(f, f->ns, 100, 3);
	helper_start(f, 0, "500", "64");
	assert_made(&made, 20000);
	wire_sleep_ms(1000);
	assert_int_equal(atomic_load(&row_of(f, not_allowed)->counters.stored), 0);
	assert_int_equal(atomic_load(&row_of(f, to)->counters.stored), 3);
	kvp_ns_close(not_allowed);
	kvp_ns_close(without);
	kvp_ns_close(exact);
	kvp_ns_close(to);
}

static void what_is_used_is_not_cold(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc small = small_desc();
	struct kvp_ns *to = given_ns(f, "m", &small, KVP_NS_COLD);
	struct made made = {.to = to, .first = 100, .n = 3};
	struct kvp_key last = wire_key(202);

	publish_chain(f, f->ns, 100, 3);
	publish_chain(f, f->ns, 200, 3);
	helper_start(f, 0, "1500", "64");
	for (unsigned i = 0; i < 30; i++) {
		assert_int_equal(kvp_touch(f->ns, &last, 1), 1);
		wire_sleep_ms(100);
	}
	assert_made(&made, 20000);
	assert_int_equal(atomic_load(&row_of(f, to)->counters.stored), 3);
	kvp_ns_close(to);
}

/* The labelled one is open to others, who may then do this too where they may read the exact one. */
static void given_open_pair(
	struct fixture *f, const char *name, uint32_t mode, struct kvp_ns **from, struct kvp_ns **to)
{
	struct kvp_desc desc = exact_desc(), small = small_desc();
	struct kvp_ns_opts opts = {.size = sizeof(opts), .name = name, .owner_uid = KVP_UID_SELF, .desc = &desc};

	opts.mode = mode;
	assert_int_equal(kvp_ns_open(f->client, &opts, from), 0);
	opts.mode = 0666;
	opts.desc = &small;
	opts.flags = KVP_NS_COLD;
	assert_int_equal(kvp_ns_open(f->client, &opts, to), 0);
}

static void who_may_not_read_a_namespace_is_not_told_of_it(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc small = small_desc();
	struct kvp_ns *to, *open_from, *open_to, *half_from, *half_to;
	struct made made = {.first = 200, .n = 3};

	if (geteuid()) /* it takes another user */
		skip();
	to = given_ns(f, "m", &small, KVP_NS_COLD);
	given_open_pair(f, "open", 0644, &open_from, &open_to);
	given_open_pair(f, "half", 0600, &half_from, &half_to);
	made.to = open_to;
	assert_int_equal(chmod(f->host.dir, 0755), 0);
	publish_chain(f, f->ns, 100, 3);
	publish_chain(f, half_from, 300, 3);
	publish_chain(f, open_from, 200, 3);
	helper_start(f, SOMEBODY, "100", "64");
	assert_made(&made, 20000);
	wire_sleep_ms(1000);
	assert_int_equal(atomic_load(&row_of(f, to)->counters.stored), 0);
	assert_int_equal(helper_end(f, SIGTERM), 0);
	assert_helper_said(
		f, "3 blocks quantised, 98304 bytes of exact ones, 0 errors\n"); /* and was refused nothing */
	kvp_ns_close(half_from);
	kvp_ns_close(half_to);
	kvp_ns_close(open_from);
	kvp_ns_close(open_to);
	kvp_ns_close(to);
}

static void evict_one(struct fixture *f, struct kvp_ns *ns)
{
	struct kvp_ns_info info = {.size = sizeof(info)};
	struct kvp_wire_admin admin = {.deadline_ns = wire_now() + 10000000000ull, .n = 1};
	struct kvp_wire_admin_done done = {0};
	char path[sizeof(f->host.socket) + 8];
	struct wire w;

	assert_int_equal(kvp_ns_info(ns, &info), 0);
	admin.ns_id = info.ns_id;
	snprintf(path, sizeof(path), "%s.admin", f->host.socket);
	assert_int_equal(wire_connect(&w, path), 0);
	assert_int_equal(wire_call(&w, KVP_MSG_EVICT, &admin, sizeof(admin), &done, sizeof(done)), (int)sizeof(done));
	assert_int_equal(done.n_done, 1);
	wire_close(&w);
}

static void being_quantised_keeps_no_block_in_memory(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc small = small_desc();
	struct kvp_ns *to = given_ns(f, "m", &small, KVP_NS_COLD);
	struct made made = {.to = to, .first = 100, .n = 3};
	struct kvp_key keys[6] = {
		wire_key(100), wire_key(101), wire_key(102), wire_key(200), wire_key(201), wire_key(202)};
	struct kvp_match_part part = {.ns = f->ns, .keys = keys};
	uint8_t states[6];

	publish_chain(f, f->ns, 100, 3);
	wire_sleep_ms(1000);
	publish_chain(f, f->ns, 200, 3); /* later than those before, sooner than the helper looks at them */
	helper_start(f, 0, "1500", "64");
	assert_made(&made, 20000);
	assert_int_equal(helper_end(f, SIGTERM), 0);
	for (unsigned i = 0; i < 3; i++) /* a block can go when what hangs below it has gone */
		evict_one(f, f->ns);
	assert_int_equal(kvp_match(&part, 1, 6, KVP_MATCH_ALL, states), 6);
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(states[i], i < 3 ? KVP_HIT_SPILL : KVP_HIT_RAM);
	kvp_ns_close(to);
}

static void what_was_made_and_went_is_not_made_again(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc small = small_desc();
	struct kvp_ns *to = given_ns(f, "m", &small, KVP_NS_COLD);
	struct made made = {.to = to, .first = 100, .n = 3};
	struct kvp_key keys[3];

	publish_chain(f, f->ns, 100, 3);
	helper_start(f, 0, "200", "64");
	assert_made(&made, 20000);
	for (unsigned i = 0; i < 3; i++) {
		struct kvp_key key = wire_key(100 + i);

		assert_int_equal(kvp_key_derived(to, &key, &keys[i]), 0);
	}
	assert_int_equal(kvp_delete(to, keys, 3, kvp_deadline_ms(10000)), 3);
	wire_sleep_ms(1000);
	assert_int_equal(atomic_load(&row_of(f, to)->counters.stored), 3);
	assert_exact(f->ns, 100, 3);
	kvp_ns_close(to);
}

/* By hand: what no helper would send, and what it would be told in namespaces that are not for it. */
static void questions_for_what_is_cold_are_checked_as_any_others(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc small = small_desc(), desc = exact_desc();
	struct kvp_ns *to = given_ns(f, "m", &small, KVP_NS_COLD);
	struct kvp_wire_join join = {.owner_uid = KVP_UID_SELF, .flags = KVP_NS_JOIN | KVP_NS_READONLY, .name = "m"};
	struct kvp_wire_cold_ask ask = {.idle_ms = 0};
	struct kvp_wire_batch batch = {.n = UINT32_MAX};
	static struct kvp_wire_cold_ns found;
	struct kvp_key keys[8];
	struct wire w;
	struct wire_ns ns;

	publish_chain(f, f->ns, 100, 3);
	assert_int_equal(wire_open(&w, f->host.socket), 0);
	assert_int_equal(wire_call(&w, KVP_MSG_COLD_NS, &ask, sizeof(ask), &found, sizeof(found)), sizeof(found));
	assert_int_equal(found.has, 1);
	ask.idle_ms = 60000;
	assert_int_equal(wire_call(&w, KVP_MSG_COLD_NS, &ask, sizeof(ask), &found, sizeof(found)), sizeof(found));
	assert_int_equal(found.has, 0);
	ask.after = found.ns_id;
	assert_int_equal(wire_call(&w, KVP_MSG_COLD_NS, &ask, sizeof(ask), &found, sizeof(found)), 0);
	batch.ns_id = ask.after;
	assert_int_equal(wire_call(&w, KVP_MSG_COLD, &batch, sizeof(batch), keys, sizeof(keys)), -KVP_ENOENT);
	join.desc = small;
	assert_int_equal(wire_join_as(&w, &ns, &join), 0);
	assert_int_equal(wire_call(&w, KVP_MSG_COLD, &batch, sizeof(batch), keys, sizeof(keys)), -KVP_EACCES);
	wire_leave(&ns);
	join.flags = KVP_NS_JOIN;
	join.desc = desc;
	assert_int_equal(wire_join_as(&w, &ns, &join), 0);
	batch.ns_id = ns.id; /* the exact one: nothing is made of it into itself */
	assert_int_equal(wire_call(&w, KVP_MSG_COLD, &batch, sizeof(batch), keys, sizeof(keys)), 0);
	wire_leave(&ns);
	assert_int_equal(wire_call(&w, KVP_MSG_COLD_NS, &ask, sizeof(ask) - 1, &found, sizeof(found)), WIRE_HUNG_UP);
	wire_close(&w);
	kvp_ns_close(to);
}

static bool is_attached(void *arg)
{
	const struct fixture *f = arg;

	return kvp_state(f->client, NULL) == KVP_ATTACHED;
}

static void a_kill_of_the_helper_or_the_daemon_at_any_moment_loses_nothing(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc small = small_desc();
	struct kvp_ns *to = given_ns(f, "m", &small, KVP_NS_COLD);

	for (unsigned round = 0; round < 8; round++) {
		struct made made = {.to = to, .first = 1000 * (round + 1), .n = CHAIN};

		assert_true(wire_until(is_attached, f, 10000));
		publish_chain(f, f->ns, made.first, CHAIN);
		helper_start(f, 0, "200", "1"); /* slow: a second for a chain */
		wire_sleep_ms(200 + 40 * round);
		helper_end(f, SIGKILL);
		helper_start(f, 0, "200", "1");
		if (round % 2) {
			wire_sleep_ms(20 * round);
			host_kill(&f->host);
			assert_int_equal(host_start(&f->host, NULL), 0);
		}
		assert_made(&made, 30000);
		assert_exact(f->ns, made.first, CHAIN);
		helper_end(f, SIGTERM);
	}
	kvp_ns_close(to);
}

/* A pool too small for it all: nobody is kept waiting, and nothing is made again and again. */
static void a_full_pool_serves_as_if_nobody_quantised(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc small = small_desc();
	struct kvp_ns *to = given_ns(f, "m", &small, KVP_NS_COLD);
	uint64_t slowest = 0, stored;

	helper_start(f, 0, "300", "64");
	for (unsigned chain = 0; chain < 45; chain++) { /* 56 MiB through 32 */
		uint64_t began = wire_now();

		publish_chain(f, f->ns, 1000 * (chain + 1), CHAIN);
		slowest = wire_now() - began > slowest ? wire_now() - began : slowest;
		wire_sleep_ms(100);
	}
	print_message(
		"a chain of 1.25 MiB was published in %llu ms at most\n", (unsigned long long)(slowest / 1000000));
	wire_sleep_ms(3000);
	stored = atomic_load(&row_of(f, to)->counters.stored);
	assert_true(stored > 0 && stored <= 45 * CHAIN);
	for (unsigned chain = 0; chain < 45; chain++)
		assert_exact(f->ns, 1000 * (chain + 1), CHAIN);
	kvp_ns_close(to);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(what_is_cold_is_found_quantised_where_its_owner_allowed_it),
		TEST(long_chains_and_many_ends_are_done_in_one_round),
		TEST(where_the_owner_did_not_allow_it_nothing_is_quantised),
		TEST(what_is_used_is_not_cold),
		TEST(who_may_not_read_a_namespace_is_not_told_of_it),
		TEST(being_quantised_keeps_no_block_in_memory),
		TEST(what_was_made_and_went_is_not_made_again),
		TEST(questions_for_what_is_cold_are_checked_as_any_others),
		TEST(a_kill_of_the_helper_or_the_daemon_at_any_moment_loses_nothing),
		TEST(a_full_pool_serves_as_if_nobody_quantised),
	};

	if (argc > 1) /* one of them */
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
