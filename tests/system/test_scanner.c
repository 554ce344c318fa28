/*
 * test_scanner.c - a batch job that reads each prompt once, beside engines that come back: their working set stays
 *
 * Two users, each by a socket of its own (--listen PATH,uid=N), so that it needs no root.  One chats; the other one has
 * an agent, whose blocks come back too, and the job, in a namespace of its own.  Between two uses of a chain the job
 * publishes more than the pool holds: one order by least recent use over all of it would find nothing again.
 *
 * kvpool-test: parallel timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trial.h"

#define POOL 128u /* blocks, in eight slabs */
#define CHAINS 4u
#define DEPTH 8u
#define ROUNDS 6u
#define SCANNED (POOL + 32u) /* blocks of the job in a round */
#define USERS 2u

enum { CHAT, AGENT, JOB, ENGINES };

struct engine {
	struct kvp_client *client;
	struct kvp_ns *ns;
	uint64_t id, hits;
};

struct beside {
	struct trial t;
	char sockets[USERS][128];
	struct engine engines[ENGINES];
	uint64_t n_scanned;
};

static void engine_open(struct beside *b, unsigned which, unsigned user, const char *name)
{
	/* nothing kept at hand: a slab with a granted block does not move */
	struct kvp_open_opts opts = {.size = sizeof(opts),
		.socket = b->sockets[user],
		.connect_timeout_ms = 5000,
		.stock_blocks = KVP_STOCK_NONE};
	struct kvp_ns_info info = {.size = sizeof(info)};
	struct engine *engine = &b->engines[which];
	struct kvp_desc desc;

	trial_desc(&desc);
	assert_int_equal(kvp_open(&opts, &engine->client), 0);
	assert_int_equal(trial_ns(engine->client, name, &desc, &engine->ns), 0);
	assert_int_equal(kvp_ns_info(engine->ns, &info), 0);
	engine->id = info.ns_id;
}

static struct beside *given(const char *policy)
{
	struct beside *b = calloc(1, sizeof(*b));
	char listen[USERS][160];

	assert_non_null(b);
	assert_int_equal(host_open(&b->t.host, geteuid()), 0);
	for (unsigned i = 0; i < USERS; i++) {
		snprintf(b->sockets[i], sizeof(b->sockets[i]), "%s/%u", b->t.host.dir, i);
		snprintf(listen[i], sizeof(listen[i]), "%s,uid=%u,gid=%u", b->sockets[i], 7001 + i, 7001 + i);
	}
	assert_int_equal(host_start(&b->t.host, (const char *[]){"--pool", "8M", "--slab", "1M", "--free-percent", "0",
							"--spill", "off", "--policy", policy, "--listen", listen[0],
							"--listen", listen[1], NULL}),
		0);
	engine_open(b, CHAT, 0, "chat");
	engine_open(b, AGENT, 1, "agent");
	engine_open(b, JOB, 1, "job");
	return b;
}

static void end(struct beside *b)
{
	for (unsigned i = 0; i < ENGINES; i++) {
		kvp_ns_close(b->engines[i].ns);
		kvp_close(b->engines[i].client);
	}
	assert_true(trial_end(&b->t));
	free(b);
}

static void publish_rest(struct engine *engine, const struct kvp_key *keys, unsigned from, unsigned n)
{
	for (unsigned k = from; k < n; k++) {
		int r = trial_put(engine->ns, &keys[k], k ? &keys[k - 1] : NULL, k, TRIAL_BLOCK);

		if (r == KVP_PUB_REJECTED)
			return; /* its parent went for it: its chain ends here */
		assert_true(r == KVP_PUB_STORED || r == KVP_PUB_EXISTS);
	}
}

/* A request: what is there of a chain is used, the rest computed. */
static void request(struct engine *engine, uint64_t chain)
{
	struct kvp_key keys[DEPTH];
	struct kvp_view views[DEPTH];
	int64_t found;

	for (unsigned k = 0; k < DEPTH; k++)
		keys[k] = wire_key(chain * DEPTH + k);
	found = kvp_acquire(engine->ns, keys, DEPTH, 0, 0, views);
	assert_true(found >= 0);
	kvp_release(views, DEPTH);
	engine->hits += (uint64_t)found;
	publish_rest(engine, keys, (unsigned)found, DEPTH);
}

static void use_working_sets(struct beside *b)
{
	for (uint64_t chain = 0; chain < CHAINS; chain++) {
		request(&b->engines[CHAT], chain);
		request(&b->engines[AGENT], chain);
	}
}

static void scan(struct beside *b, struct engine *engine)
{
	for (unsigned n = 0; n < SCANNED; n += DEPTH)
		request(engine, 1000 + b->n_scanned++);
}

static bool uses_are_known(void *arg)
{
	struct beside *b = arg;

	for (unsigned i = CHAT; i <= AGENT; i++)
		if (atomic_load(&host_ns_row(&b->t.host, b->engines[i].id)->counters.hits_ram) < 2 * CHAINS * DEPTH)
			return false;
	return true;
}

/* Return: blocks that chat and agent found in the rounds that count. */
static uint64_t found_beside(const char *policy, bool job)
{
	struct beside *b = given(policy);
	uint64_t hits;

	for (unsigned round = 0; round < 3; round++)
		use_working_sets(b);
	assert_true(wire_until(uses_are_known, b, 20000));
	wire_sleep_ms(300); /* and taken note of */
	b->engines[CHAT].hits = b->engines[AGENT].hits = 0;
	for (unsigned round = 0; round < ROUNDS; round++) {
		if (job)
			scan(b, &b->engines[JOB]);
		use_working_sets(b);
	}
	hits = b->engines[CHAT].hits + b->engines[AGENT].hits;
	assert_int_equal(b->engines[JOB].hits, 0);
	assert_true(!job || atomic_load(&host_ns_row(&b->t.host, b->engines[JOB].id)->counters.slots) > 0);
	end(b);
	return hits;
}

static void a_job_that_reads_each_prompt_once_leaves_the_others_their_working_sets(void **state)
{
	const char *policy = *state;
	uint64_t alone = found_beside(policy, false), beside = found_beside(policy, true);

	print_message("%s: %lu of %u blocks found beside the job, %lu without it\n", policy, (unsigned long)beside,
		2 * ROUNDS * CHAINS * DEPTH, (unsigned long)alone);
	assert_int_equal(alone, 2 * ROUNDS * CHAINS * DEPTH);
	assert_true(beside >= alone - alone / 10);
}

/* In one namespace nothing but the policy tells them apart. */
static uint64_t found_in_one_namespace(const char *policy, uint32_t *leads)
{
	struct beside *b = given(policy);
	struct engine *chat = &b->engines[CHAT];
	uint64_t hits;

	for (unsigned round = 0; round < 4 * ROUNDS; round++) {
		if (round == 3 * ROUNDS)
			chat->hits = 0;
		scan(b, chat);
		for (uint64_t chain = 0; chain < CHAINS; chain++)
			request(chat, chain);
		wire_sleep_ms(20); /* a tick at least */
	}
	*leads = (uint32_t)atomic_load(&host_ns_row(&b->t.host, chat->id)->counters.policy);
	hits = chat->hits;
	end(b);
	return hits;
}

static void in_one_namespace_the_learned_order_keeps_what_comes_back_from_a_job_that_lru_lets_flush_it(void **state)
{
	uint32_t leads;
	uint64_t lru = found_in_one_namespace("lru", &leads), learned;

	(void)state;
	assert_int_equal(leads, 0);
	learned = found_in_one_namespace("learned", &leads);
	print_message("of %u blocks lru found %lu, learned %lu\n", ROUNDS * CHAINS * DEPTH, (unsigned long)lru,
		(unsigned long)learned);
	assert_int_equal(lru, 0);
	assert_int_equal(leads, 2);
	assert_true(learned >= ROUNDS * CHAINS * DEPTH / 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate(
			a_job_that_reads_each_prompt_once_leaves_the_others_their_working_sets, (char[]){"lru"}),
		cmocka_unit_test_prestate(
			a_job_that_reads_each_prompt_once_leaves_the_others_their_working_sets, (char[]){"learned"}),
		cmocka_unit_test(
			in_one_namespace_the_learned_order_keeps_what_comes_back_from_a_job_that_lru_lets_flush_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
