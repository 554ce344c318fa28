/*
 * test_reuse.c - what a daemon learns of the use of blocks: the curve of other sizes, and how long blocks are held
 *
 * kvpool-test: parallel
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trial.h"

#define MIB(n) ((n)*1048576.0)

static const struct kvp_curve *curve_of(const struct trial *t)
{
	const struct kvp_stats *stats = t->host.stats;

	return (const struct kvp_curve *)(const void *)((const char *)stats + stats->curve_off);
}

static uint64_t blocks_on_the_curve(const struct trial *t, double bytes)
{
	return (uint64_t)(kvp_curve_hits(curve_of(t), bytes) / TRIAL_TOKENS + .5);
}

static void put(struct trial *t, unsigned k)
{
	struct kvp_key key = wire_key(k);

	assert_int_equal(trial_put(t->ns, &key, NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
}

static bool found(struct trial *t, unsigned k)
{
	struct kvp_key key = wire_key(k);
	int r = trial_get(t->ns, &key, k, TRIAL_BLOCK);

	assert_true(r >= 0);
	return r == 1;
}

struct wanted {
	const struct trial *t;
	uint64_t blocks, uses;
};

/* Seen by their stamps: what nobody saw would count as found in any memory. */
static bool uses_are_seen(void *arg)
{
	const struct wanted *w = arg;

	return blocks_on_the_curve(w->t, 1e15) - blocks_on_the_curve(w->t, 65536) >= w->blocks &&
	       atomic_load(&curve_of(w->t)->tokens) / TRIAL_TOKENS + 1 >= w->uses;
}

static void hits_that_send_no_message_are_on_the_curve(void **state)
{
	struct trial *t = *state;

	for (unsigned k = 0; k < 40; k++)
		put(t, k);
	wire_sleep_ms(100); /* two uses within a tick are one */
	for (unsigned round = 1; round <= 3; round++) {
		struct wanted wanted = {.t = t, .blocks = round * 40 - round, .uses = 40 + round * 40 - 1};

		for (unsigned k = 0; k < 40; k++)
			assert_true(found(t, k));
		if (!wire_until(uses_are_seen, &wanted, 20000))
			fail_msg("round %u: %llu blocks seen", round, (unsigned long long)blocks_on_the_curve(t, 1e15));
	}
	assert_true(blocks_on_the_curve(t, MIB(4)) >= 117);
	assert_true(blocks_on_the_curve(t, MIB(1)) <= 60); /* what is seen at one look counts as one chain */
	assert_int_equal(atomic_load(&curve_of(t)->watched), 40);
}

static json_t *stats_json(const struct trial *t, int exit_code)
{
	char *out = calloc(1, 1 << 20);
	json_t *json;

	assert_int_equal(TRIAL_KVCTL(t, out, 1 << 20, "stats", "--json", "--more", "16M"), exit_code);
	json = json_loads(out, 0, NULL);
	assert_non_null(json);
	free(out);
	return json;
}

static double value(const json_t *json, const char *name)
{
	return json_number_value(json_object_get(json_object_get(json, "curve"), name));
}

static bool all_uses_are_told(void *arg)
{
	const struct wanted *w = arg;

	return atomic_load(&curve_of(w->t)->tokens) / TRIAL_TOKENS + 3 >= w->uses;
}

/* 200 blocks of 64 KiB in turns through a pool of 8 MiB: each is gone when it is asked for again. */
static void a_working_set_too_large_for_the_pool_is_told_what_more_memory_would_buy(void **state)
{
	struct trial *t = *state;
	struct wanted wanted = {.t = t, .uses = 600};
	json_t *json;

	for (unsigned i = 0; i < 600; i++) {
		if (!found(t, i % 200))
			put(t, i % 200);
		if (i % 200 == 199)
			wire_sleep_ms(100); /* two uses within a tick are one */
	}
	assert_true(wire_until(all_uses_are_told, &wanted, 20000));
	json = stats_json(t, 0);
	assert_true(value(json, "share") < .1);
	assert_true(value(json, "share_more_dram") > .6 && value(json, "share_more_dram") < .7);
	assert_true(value(json, "share_more_spill") > .6);
	json_decref(json);

	trial_detach(t);
	assert_int_equal(host_stop(&t->host), 0);
	json = stats_json(t, 3);
	assert_true(value(json, "share_more_dram") > .6 && value(json, "share_more_dram") < .7);
	json_decref(json);

	trial_start(t);
	trial_attach(t);
	json = stats_json(t, 0);
	assert_true(value(json, "tokens") > 590.0 * TRIAL_TOKENS);
	assert_true(value(json, "share_more_dram") > .6 && value(json, "share_more_dram") < .7);
	json_decref(json);
}

static bool a_block_is_held_long(void *arg)
{
	const struct trial *t = arg;

	return atomic_load(&t->host.stats->counters.oldest_pin_ms) >= 300;
}

static bool no_block_is_held(void *arg)
{
	const struct trial *t = arg;

	return atomic_load(&t->host.stats->counters.oldest_pin_ms) == 0;
}

static void the_oldest_hold_is_told_until_it_is_let_go(void **state)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .connect_timeout_ms = 5000, .stock_blocks = KVP_STOCK_NONE};
	struct trial *t = *state;
	struct kvp_key key = wire_key(1);
	struct kvp_client *other;
	struct kvp_view view = {0};
	struct kvp_desc desc;
	struct kvp_ns *ns;

	trial_desc(&desc);
	opts.socket = t->host.socket;
	put(t, 1);
	assert_int_equal(kvp_open(&opts, &other), 0);
	assert_int_equal(trial_ns(other, "m", &desc, &ns), 0);
	assert_true(wire_until(no_block_is_held, t, 10000));
	assert_int_equal(kvp_acquire(ns, &key, 1, 0, kvp_deadline_ms(10000), &view), 1);
	assert_true(wire_until(a_block_is_held_long, t, 20000));
	assert_int_equal(kvp_release(&view, 1), 0);
	assert_true(wire_until(no_block_is_held, t, 20000));
	kvp_close(other);
}

static void a_session_tells_which_namespaces_it_joined(void **state)
{
	struct trial *t = *state;
	const struct kvp_stats *stats = t->host.stats;
	const struct kvp_session_row *row =
		(const struct kvp_session_row *)(const void *)((const char *)stats + stats->session_off);
	struct kvp_ns_info info = {.size = sizeof(info)};
	uint64_t first, second;
	struct kvp_desc desc;
	struct kvp_ns *other;

	assert_int_equal(kvp_ns_info(t->ns, &info), 0);
	first = info.ns_id;
	assert_int_equal(atomic_load(&row->ns_ids[0]), first);
	assert_int_equal(atomic_load(&row->ns_ids[1]), 0);
	trial_desc(&desc);
	assert_int_equal(trial_ns(t->client, "other", &desc, &other), 0);
	assert_int_equal(kvp_ns_info(other, &info), 0);
	second = info.ns_id;
	assert_true(atomic_load(&row->ns_ids[0]) == first || atomic_load(&row->ns_ids[1]) == first);
	assert_true(atomic_load(&row->ns_ids[0]) == second || atomic_load(&row->ns_ids[1]) == second);
	assert_int_equal(atomic_load(&row->ns_ids[2]), 0);
}

static int given(void **state)
{
	int r = trial_setup(state, "8M", NULL);

	if (!r)
		trial_attach(*state);
	return r;
}

#define test(name) cmocka_unit_test_setup_teardown(name, given, trial_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(hits_that_send_no_message_are_on_the_curve),
		test(a_working_set_too_large_for_the_pool_is_told_what_more_memory_would_buy),
		test(a_session_tells_which_namespaces_it_joined),
		test(the_oldest_hold_is_told_until_it_is_let_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
