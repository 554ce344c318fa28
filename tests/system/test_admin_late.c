/*
 * test_admin_late.c - what operators ask of a daemon that is stopped, and what becomes of it when the daemon goes on
 *
 * kvpool-test: parallel
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
#include <unistd.h>

#include "trial.h"

#define MIB (1024u * 1024)
#define N 12u /* blocks; there is memory for 16 */

static struct kvp_key keys[N];

static void put(const struct trial *t, unsigned from, unsigned to)
{
	for (unsigned k = from; k < to; k++) {
		keys[k] = (struct kvp_key){.w = {k + 1, 0x5555}};
		assert_int_equal(trial_put(t->ns, &keys[k], NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
}

static int setup(void **state)
{
	struct trial *t;

	trial_setup(state, "1M", "64M");
	t = *state;
	trial_attach(t);
	put(t, 0, N - 2);
	return 0;
}

static void with_its_daemon_stopped(const struct trial *t, const char *const *words)
{
	char out[4096], *done;

	kill(t->host.pid, SIGSTOP);
	assert_int_equal(trial_kvctl(t, out, sizeof(out), words), 3);
	done = strstr(out, "not done: the daemon has not read the request");
	kill(t->host.pid, SIGCONT);
	if (!done)
		fail_msg("%s: %s", words[0], out);
}
#define STOPPED(t, ...) with_its_daemon_stopped(t, (const char *const[]){__VA_ARGS__, NULL})

static uint64_t published(struct trial *t)
{
	struct kvp_ns_info info = {.size = sizeof(info)};

	assert_int_equal(kvp_ns_info(t->ns, &info), 0);
	return atomic_load(&host_ns_row(&t->host, info.ns_id)->counters.published);
}

static void what_is_read_after_its_deadline_is_not_carried_out(void **state)
{
	struct trial *t = *state;
	const struct kvp_counters *c = &t->host.stats->counters;

	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	put(t, N - 2, N); /* a drain would write these */
	assert_int_equal(atomic_load(&c->spill_writes), N - 2);
	STOPPED(t, "resize", "--deadline", "0.2", "2M");
	STOPPED(t, "drain", "--deadline", "0.2");
	STOPPED(t, "evict", "--deadline", "0.2");
	STOPPED(t, "store", "drop", "--yes", "--deadline", "0.2");
	STOPPED(t, "purge", "--deadline", "0.2");
	assert_true(host_logged(&t->host, "s after its deadline", 5000));
	assert_true(host_alive(&t->host));
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "ping"), 0);
	wire_sleep_ms(300);
	assert_int_equal(atomic_load(&c->pool_bytes), MIB);
	assert_int_equal(published(t), N);
	assert_int_equal(atomic_load(&c->spill_writes), N - 2);
	for (unsigned k = 0; k < N; k++)
		assert_int_equal(trial_get(t->ns, &keys[k], k, TRIAL_BLOCK), 1);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict", "--deadline", "20"), 0); /* and asked anew it is done */
	assert_int_equal(published(t), 0);
	for (unsigned k = 0; k < N; k++) /* no record was dropped */
		assert_int_equal(trial_get(t->ns, &keys[k], k, TRIAL_BLOCK), 1);
}

static void what_is_read_before_its_deadline_is_carried_out_though_the_daemon_was_stopped(void **state)
{
	struct trial *t = *state;
	struct kvp_wire_resize resize = {.deadline_ns = wire_now() + 30000000000ull, .pool = "2M"};
	struct kvp_wire_admin_done done = {0};
	char admin[KVP_SOCKET_MAX + 8];
	struct wire w;

	snprintf(admin, sizeof(admin), "%s.admin", t->host.socket);
	assert_int_equal(wire_connect(&w, admin), 0);
	kill(t->host.pid, SIGSTOP);
	assert_int_equal(wire_send(&w, KVP_MSG_RESIZE, 77, &resize, sizeof(resize), NULL, 0), 0);
	kill(t->host.pid, SIGCONT);
	assert_int_equal(wire_receive(&w, 77, &done, sizeof(done), NULL, NULL, 30000), sizeof(done));
	assert_int_equal(done.n_done, 2 * MIB);
	resize.deadline_ns = wire_now() - 1;
	strcpy(resize.pool, "1M");
	assert_int_equal(wire_call(&w, KVP_MSG_RESIZE, &resize, sizeof(resize), &done, sizeof(done)), -ETIME);
	assert_non_null(strstr(w.text, "only after its deadline"));
	assert_int_equal(atomic_load(&t->host.stats->counters.pool_bytes), 2 * MIB);
	wire_close(&w);
}

static int teardown(void **state)
{
	trial_detach(*state);
	return trial_teardown(state);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_is_read_after_its_deadline_is_not_carried_out),
		TEST(what_is_read_before_its_deadline_is_carried_out_though_the_daemon_was_stopped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
