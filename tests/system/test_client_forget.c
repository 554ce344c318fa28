/*
 * test_client_forget.c - blocks an engine does not want any more: by key, all of them, and what is left in numbers
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trial.h"

#define N 40u

static int setup(void **state)
{
	if (trial_setup(state, "4M", "64M") < 0)
		return -1;
	trial_attach(*state);
	return 0;
}

static void given_blocks(struct trial *t, struct kvp_key keys[N])
{
	for (unsigned i = 0; i < N; i++) {
		keys[i] = wire_key(i);
		assert_int_equal(
			trial_put(t->ns, &keys[i], i % 4 ? &keys[i - 1] : NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
	}
}

/* How many are there, wherever. */
static unsigned n_there(struct trial *t, const struct kvp_key keys[N])
{
	struct kvp_match_part part = {.ns = t->ns, .keys = keys};
	uint8_t states[N];
	unsigned n = 0;

	assert_true(kvp_match(&part, 1, N, KVP_MATCH_ALL, states) >= 0);
	for (unsigned i = 0; i < N; i++)
		n += states[i] != KVP_MISS;
	return n;
}

static struct kvp_stats_of stats_of(struct trial *t)
{
	struct kvp_stats_of stats = {.size = sizeof(stats)};

	assert_int_equal(kvp_stats(t->ns, &stats, kvp_deadline_ms(10000)), 0);
	return stats;
}

static void a_deleted_block_is_gone_and_can_be_stored_anew(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[N], stranger = wire_key(999);

	given_blocks(t, keys);
	assert_int_equal(kvp_delete(t->ns, &keys[3], 1, kvp_deadline_ms(10000)), 1);
	assert_int_equal(kvp_delete(t->ns, &stranger, 1, 0), 1); /* it is not there either */
	assert_int_equal(n_there(t, keys), N - 1);
	assert_int_equal(trial_get(t->ns, &keys[3], 3, TRIAL_BLOCK), 0);
	assert_int_equal(trial_put(t->ns, &keys[3], NULL, 77, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(trial_get(t->ns, &keys[3], 77, TRIAL_BLOCK), 1);
}

static void a_block_in_use_stays_until_it_is_let_go(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[N];
	struct kvp_view view;

	given_blocks(t, keys);
	assert_int_equal(kvp_acquire(t->ns, &keys[7], 1, 0, 0, &view), 1);
	assert_int_equal(
		kvp_delete(t->ns, keys, 8, kvp_deadline_ms(2000)), 4); /* those before it in its chain stay too */
	assert_int_equal(kvp_delete(t->ns, &keys[7], 1, 0), 0);
	assert_true(wire_right(view.data, TRIAL_BLOCK, 7)); /* nobody has touched it */
	assert_int_equal(kvp_release(&view, 1), 0);
	assert_int_equal(kvp_delete(t->ns, &keys[4], 1, kvp_deadline_ms(10000)), 1);
	assert_int_equal(n_there(t, keys), N - 8);
}

static void what_lies_in_the_store_is_deleted_too(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[N];

	given_blocks(t, keys);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict"), 0);
	assert_int_equal(stats_of(t).ram_blocks, 0);
	assert_int_equal(stats_of(t).spill_blocks, N);
	assert_int_equal(kvp_delete(t->ns, &keys[3], 1, kvp_deadline_ms(10000)), 1);
	assert_int_equal(stats_of(t).spill_blocks, N - 1);
	/* the first of a chain takes what hangs below it */
	assert_int_equal(kvp_delete(t->ns, &keys[4], 1, kvp_deadline_ms(10000)), 1);
	assert_int_equal(n_there(t, keys), N - 5);
}

static void a_block_of_the_base_is_not_gone_through_the_namespace_above(void **state)
{
	struct trial *t = *state;
	struct kvp_desc desc;
	struct kvp_ns_opts opts = {
		.size = sizeof(opts), .name = "above", .desc = &desc, .owner_uid = KVP_UID_SELF, .base = t->ns};
	struct kvp_key keys[2] = {wire_key(1), wire_key(2)};
	struct kvp_ns *above;
	uint64_t begin;

	trial_desc(&desc);
	assert_int_equal(kvp_ns_open(t->client, &opts, &above), 0);
	assert_int_equal(trial_put(t->ns, &keys[0], NULL, 1, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(trial_put(above, &keys[1], &keys[0], 2, TRIAL_BLOCK), KVP_PUB_STORED);
	begin = wire_now();
	assert_int_equal(kvp_delete(above, keys, 2, kvp_deadline_ms(20000)), 1);
	assert_true(wire_now() - begin < 15000000000ull); /* nobody waits for what will not go */
	assert_non_null(strstr(kvp_error(t->client), "base"));
	assert_int_equal(trial_get(above, &keys[0], 1, TRIAL_BLOCK), 1);
	assert_int_equal(trial_get(above, &keys[1], 2, TRIAL_BLOCK), 0);
	assert_int_equal(kvp_delete(t->ns, keys, 1, kvp_deadline_ms(20000)), 1);
	assert_int_equal(trial_get(above, &keys[0], 1, TRIAL_BLOCK), 0);
	kvp_ns_close(above);
}

static void kill_and_start(struct trial *t, bool memory_too)
{
	trial_detach(t);
	host_kill(&t->host);
	if (memory_too)
		trial_memory_gone(t);
	trial_start(t);
	trial_attach(t);
}

static void a_deleted_block_is_not_found_after_a_kill_right_after_the_answer(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[N];

	for (unsigned round = 0; round < 2; round++) {
		given_blocks(t, keys);
		assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
		assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict", "20"), 0);
		assert_int_equal(kvp_delete(t->ns, &keys[3], 1, kvp_deadline_ms(10000)), 1);
		assert_int_equal(kvp_delete(t->ns, &keys[8], 1, kvp_deadline_ms(10000)), 1); /* and three below it */
		kill_and_start(t, round);
		assert_int_equal(n_there(t, keys), N - 5);
		assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "store", "verify"), 0); /* a list is no damage */
		/* the parent of those below comes back, they do not */
		assert_int_equal(trial_put(t->ns, &keys[8], NULL, 8, TRIAL_BLOCK), KVP_PUB_STORED);
		kill_and_start(t, false);
		assert_int_equal(n_there(t, keys), N - 4);
		assert_int_equal(kvp_clear(t->ns, kvp_deadline_ms(20000)), 0);
	}
}

static void a_block_deleted_and_stored_anew_is_found_after_a_kill(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[N];

	given_blocks(t, keys);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	assert_int_equal(kvp_delete(t->ns, &keys[3], 1, kvp_deadline_ms(10000)), 1);
	assert_int_equal(trial_put(t->ns, &keys[3], &keys[2], 77, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	kill_and_start(t, true);
	assert_int_equal(trial_get(t->ns, &keys[3], 77, TRIAL_BLOCK), 1);
	assert_int_equal(n_there(t, keys), N);
}

static void blocks_deleted_while_they_are_written_out_are_not_found(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[N];

	given_blocks(t, keys);
	for (unsigned i = 0; i < 100; i++) { /* the store is written to all the time, and made room for */
		struct kvp_key other = wire_key(1000 + i);

		assert_int_equal(trial_put(t->ns, &other, NULL, 1000 + i, TRIAL_BLOCK), KVP_PUB_STORED);
		if (i % 3 == 0)
			assert_int_equal(kvp_delete(t->ns, &keys[i / 3], 1, kvp_deadline_ms(10000)), 1);
	}
	kill_and_start(t, true);
	for (unsigned i = 0; i < 34; i++)
		assert_int_equal(trial_get(t->ns, &keys[i], i, TRIAL_BLOCK), 0);
}

static void a_deletion_the_store_cannot_note_says_so(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[N], more = wire_key(900);
	char path[160], away[180];

	given_blocks(t, keys);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	snprintf(path, sizeof(path), "%s/kvpool.store", t->spill);
	snprintf(away, sizeof(away), "%s.away", path);
	assert_int_equal(rename(path, away), 0);
	assert_true(host_logged(&t->host, " is down", 20000));
	assert_int_equal(kvp_delete(t->ns, &keys[3], 1, kvp_deadline_ms(10000)), -EIO);
	assert_non_null(strstr(kvp_error(t->client), "could not note it"));
	assert_int_equal(n_there(t, keys), N - 1); /* gone all the same */
	assert_int_equal(rename(away, path), 0);
	assert_true(host_logged(&t->host, " is up again", 60000));
	assert_int_equal(kvp_delete(t->ns, &keys[3], 1, kvp_deadline_ms(10000)), 1); /* once more, as it says */
	assert_int_equal(trial_put(t->ns, &more, NULL, 900, TRIAL_BLOCK), KVP_PUB_STORED);
	kill_and_start(t, true);
	assert_int_equal(n_there(t, keys), N - 1);
}

static void a_queue_deletes_and_tells_of_each(void **state)
{
	struct trial *t = *state;
	struct kvp_queue *queue;
	struct kvp_completion completion;
	struct kvp_key keys[N];
	static struct kvp_io ios[N];
	struct kvp_view view;

	given_blocks(t, keys);
	for (unsigned i = 0; i < N; i++)
		ios[i].key = keys[i];
	assert_int_equal(kvp_acquire(t->ns, &keys[5], 1, 0, 0, &view), 1);
	assert_int_equal(kvp_queue_open(t->client, NULL, &queue), 0);
	assert_int_equal(kvp_submit(queue, t->ns, KVP_OP_DELETE, ios, N, kvp_deadline_ms(2000), 1), 0);
	assert_int_equal(kvp_queue_poll(queue, &completion, 1, kvp_deadline_ms(20000)), 1);
	assert_int_equal(completion.n_done, N - 2);
	for (unsigned i = 0; i < N; i++) /* the one in use and the one above it */
		assert_int_equal(ios[i].status, i == 5 || i == 4 ? KVP_IO_REJECTED : KVP_IO_DONE);
	kvp_release(&view, 1);
	kvp_queue_close(queue);
}

static void a_cleared_namespace_stays_empty_over_a_reboot(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[N], later = wire_key(500);

	given_blocks(t, keys);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict", "20"), 0);
	assert_int_equal(kvp_clear(t->ns, kvp_deadline_ms(20000)), 0);
	assert_int_equal(n_there(t, keys), 0);
	assert_int_equal(stats_of(t).ram_blocks + stats_of(t).spill_blocks, 0);
	assert_int_equal(trial_put(t->ns, &later, NULL, 500, TRIAL_BLOCK), KVP_PUB_STORED);
	trial_reboot(t);
	assert_int_equal(n_there(t, keys), 0);
	assert_int_equal(trial_get(t->ns, &later, 500, TRIAL_BLOCK), 1); /* the reboot brings back what there was */
}

static void a_clear_leaves_blocks_in_use_and_says_how_many(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[N];
	struct kvp_view views[2];

	given_blocks(t, keys);
	assert_int_equal(kvp_acquire(t->ns, keys, 2, 0, 0, views), 2);
	assert_int_equal(kvp_clear(t->ns, kvp_deadline_ms(4000)), 2);
	assert_int_equal(n_there(t, keys), 2);
	for (unsigned i = 0; i < 2; i++)
		assert_true(wire_right(views[i].data, TRIAL_BLOCK, i));
	kvp_release(views, 2);
	assert_int_equal(kvp_clear(t->ns, kvp_deadline_ms(20000)), 0);
	assert_int_equal(n_there(t, keys), 0);
}

/* The shortest of some: on a loaded machine one may be late by any time. */
static uint64_t asked_while_stopped(struct trial *t, const struct kvp_key *keys, bool clear, uint32_t ms)
{
	uint64_t best = UINT64_MAX;

	kill(t->host.pid, SIGSTOP);
	for (unsigned i = 0; i < 3; i++) {
		uint64_t start = wire_now(), deadline = ms ? kvp_deadline_ms(ms) : 0;
		int64_t r = clear ? kvp_clear(t->ns, deadline) : kvp_delete(t->ns, keys, N, deadline);

		best = wire_now() - start < best ? wire_now() - start : best;
		if (r != -KVP_ETIMEDOUT)
			best = UINT64_MAX;
	}
	kill(t->host.pid, SIGCONT);
	return best / 1000000;
}

static void a_stopped_daemon_is_waited_for_to_the_deadline_and_does_nothing_afterwards(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[N];
	struct kvp_view view;

	given_blocks(t, keys);
	assert_in_range(asked_while_stopped(t, keys, false, 200), 200, 900);
	assert_in_range(asked_while_stopped(t, keys, true, 200), 200, 900);
	assert_in_range(asked_while_stopped(t, keys, true, 0), 1000, 4000); /* 0: a second for the answer */
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "ping", "--timeout", "20"), 0);
	assert_int_equal(stats_of(t).ram_blocks, N); /* behind those messages: they were read, and refused */
	assert_int_equal(kvp_acquire(t->ns, keys, 1, 0, 0, &view), 1);
	kvp_release(&view, 1);
	assert_int_equal(kvp_clear(t->ns, 0), 0);
	assert_int_equal(stats_of(t).ram_blocks, 0);
}

static void who_may_only_read_deletes_nothing(void **state)
{
	struct trial *t = *state;
	struct kvp_ns_opts opts = {
		.size = sizeof(opts), .name = "m", .owner_uid = KVP_UID_SELF, .flags = KVP_NS_READONLY | KVP_NS_JOIN};
	struct kvp_key keys[N];
	struct kvp_client *client;
	struct kvp_desc desc;
	struct kvp_ns *ns;

	given_blocks(t, keys);
	trial_desc(&desc);
	opts.desc = &desc;
	assert_int_equal(trial_client(t, &client), 0);
	assert_int_equal(kvp_ns_open(client, &opts, &ns), 0);
	assert_int_equal(kvp_delete(ns, keys, 1, 0), -KVP_EACCES);
	assert_non_null(strstr(kvp_error(client), "read-only"));
	kvp_ns_close(ns);
	kvp_close(client);
	assert_int_equal(n_there(t, keys), N);
}

static void who_opened_it_to_look_up_only_lets_nothing_go(void **state)
{
	struct trial *t = *state;
	struct kvp_queue *queue;
	struct kvp_completion done;
	struct kvp_client *client;
	struct kvp_key keys[N];
	struct kvp_desc desc;

	given_blocks(t, keys);
	trial_desc(&desc);
	assert_int_equal(trial_client(t, &client), 0);
	for (unsigned beside = 0; beside < 2; beside++) { /* the second one beside a handle that may write */
		struct kvp_client *of = beside ? t->client : client;
		struct kvp_ns_opts opts = {.size = sizeof(opts),
			.name = "m",
			.owner_uid = KVP_UID_SELF,
			.flags = KVP_NS_READONLY,
			.desc = &desc};
		struct kvp_io io = {.key = keys[0]};
		struct kvp_ns *ns;

		assert_int_equal(kvp_ns_open(of, &opts, &ns), 0);
		assert_int_equal(kvp_delete(ns, keys, 1, kvp_deadline_ms(1000)), -KVP_EACCES);
		assert_int_equal(kvp_clear(ns, kvp_deadline_ms(1000)), -KVP_EACCES);
		assert_non_null(strstr(kvp_error(of), "read-only"));
		assert_int_equal(kvp_queue_open(of, NULL, &queue), 0);
		assert_int_equal(kvp_submit(queue, ns, KVP_OP_DELETE, &io, 1, kvp_deadline_ms(1000), 0), 0);
		assert_int_equal(kvp_queue_poll(queue, &done, 1, kvp_deadline_ms(5000)), 1);
		assert_int_equal(io.status, KVP_IO_REJECTED);
		kvp_queue_close(queue);
		kvp_ns_close(ns);
	}
	kvp_close(client);
	assert_int_equal(n_there(t, keys), N);
	assert_int_equal(kvp_clear(t->ns, kvp_deadline_ms(1000)), 0);
	assert_int_equal(n_there(t, keys), 0);
}

static void a_touch_keeps_blocks_from_being_the_first_to_go(void **state)
{
	struct trial *t = *state;
	struct kvp_match_part part = {.ns = t->ns};
	struct kvp_key keys[N];
	uint8_t states[N];

	for (unsigned i = 0; i < N; i++) {
		keys[i] = wire_key(i);
		assert_int_equal(trial_put(t->ns, &keys[i], NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
		if (i == N / 2)
			wire_sleep_ms(4 * KVP_TICK_MS);
	}
	wire_sleep_ms(4 * KVP_TICK_MS);
	assert_int_equal(kvp_touch(t->ns, keys, N / 2), N / 2);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict", "10"), 0);
	part.keys = keys;
	assert_true(kvp_match(&part, 1, N, KVP_MATCH_ALL, states) >= 0);
	for (unsigned i = 0; i < N / 2; i++)
		assert_int_equal(states[i], KVP_HIT_RAM); /* the older ones, but touched */
}

static void without_a_daemon_each_says_so(void **state)
{
	struct trial *t = *state;
	struct kvp_stats_of stats = {.size = sizeof(stats)};
	struct kvp_key keys[N];

	given_blocks(t, keys);
	trial_detach(t);
	host_kill(&t->host);
	trial_attach(t);
	assert_int_equal(kvp_delete(t->ns, keys, 1, 0), -KVP_EDETACHED);
	assert_int_equal(kvp_clear(t->ns, 0), -KVP_EDETACHED);
	assert_int_equal(kvp_stats(t->ns, &stats, 0), -KVP_EDETACHED);
	assert_int_equal(kvp_touch(t->ns, keys, N), 0);
	trial_start(t);
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, trial_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(a_deleted_block_is_gone_and_can_be_stored_anew),
		WITH_DAEMON(a_block_in_use_stays_until_it_is_let_go),
		WITH_DAEMON(what_lies_in_the_store_is_deleted_too),
		WITH_DAEMON(a_deleted_block_is_not_found_after_a_kill_right_after_the_answer),
		WITH_DAEMON(a_block_deleted_and_stored_anew_is_found_after_a_kill),
		WITH_DAEMON(blocks_deleted_while_they_are_written_out_are_not_found),
		WITH_DAEMON(a_deletion_the_store_cannot_note_says_so),
		WITH_DAEMON(a_queue_deletes_and_tells_of_each),
		WITH_DAEMON(a_cleared_namespace_stays_empty_over_a_reboot),
		WITH_DAEMON(a_clear_leaves_blocks_in_use_and_says_how_many),
		WITH_DAEMON(a_stopped_daemon_is_waited_for_to_the_deadline_and_does_nothing_afterwards),
		WITH_DAEMON(who_may_only_read_deletes_nothing),
		WITH_DAEMON(a_block_of_the_base_is_not_gone_through_the_namespace_above),
		WITH_DAEMON(who_opened_it_to_look_up_only_lets_nothing_go),
		WITH_DAEMON(a_touch_keeps_blocks_from_being_the_first_to_go),
		WITH_DAEMON(without_a_daemon_each_says_so),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
