/*
 * test_trials_counts.c - trials: counters stay true when clients leave in whatever way
 *
 * kvpool-test: timeout=120
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
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define SECOND 1000000000ull
#define N 8u

static int setup(void **state)
{
	struct trial *t = malloc(sizeof(*t));

	assert_non_null(t);
	trial_given(t, geteuid(), "2M", NULL);
	trial_start(t);
	*state = t;
	return 0;
}

static int teardown(void **state)
{
	struct trial *t = *state;
	bool good = trial_end(t);

	free(t);
	return good ? 0 : -1;
}

static uint64_t ns_id_of(const struct kvp_ns *ns)
{
	struct kvp_ns_info info = {.size = sizeof(info)};

	assert_int_equal(kvp_ns_info(ns, &info), 0);
	return info.ns_id;
}

static void becomes(const _Atomic uint64_t *counter, uint64_t value)
{
	uint64_t until = wire_now() + 5 * SECOND;

	while (atomic_load(counter) != value && wire_now() < until)
		wire_sleep_ms(10);
	assert_int_equal(atomic_load(counter), value);
}

static void with_nobody_left_nothing_is_held(void **state)
{
	struct trial *t = *state;
	struct kvp_view views[N];
	struct kvp_key keys[N];
	const struct kvp_ns_row *row;

	trial_attach(t);
	for (unsigned i = 0; i < N; i++) {
		keys[i] = wire_key(i);
		assert_int_equal(trial_put(t->ns, &keys[i], NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
	}
	assert_int_equal(kvp_acquire(t->ns, keys, N, 0, 0, views), N);
	row = host_ns_row(&t->host, ns_id_of(t->ns));
	assert_non_null(row);
	becomes(&row->counters.held, N);
	trial_detach(t);
	becomes(&t->host.stats->counters.sessions, 0);
	becomes(&row->counters.held, 0);
	assert_int_equal(atomic_load(&row->counters.published), N);
}

/* A child that is attached: by @go it is told to leave in order. Return: its pid. */
static pid_t attached_child(const struct trial *t, int *go)
{
	int up[2], down[2];
	char c = 0;
	pid_t pid;

	assert_int_equal(pipe(up), 0);
	assert_int_equal(pipe(down), 0);
	pid = fork();
	if (pid == 0) {
		struct kvp_client *client;

		close(up[0]);
		close(down[1]);
		if (trial_client(t, &client) < 0 || kvp_state(client, NULL) != KVP_ATTACHED)
			_exit(1);
		if (write(up[1], &c, 1) != 1 || read(down[0], &c, 1) < 0)
			_exit(1);
		kvp_close(client);
		_exit(0);
	}
	close(up[1]);
	close(down[0]);
	assert_true(pid > 0);
	assert_int_equal(read(up[0], &c, 1), 1);
	close(up[0]);
	*go = down[1];
	return pid;
}

/* One attached child ends while the daemon is killed; then there is a daemon again. */
static void ends_without_a_daemon(struct trial *t, bool in_order)
{
	pid_t pid;
	int go, status;

	pid = attached_child(t, &go);
	host_kill(&t->host);
	if (!in_order)
		kill(pid, SIGKILL);
	close(go);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (in_order)
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	trial_start(t);
	becomes(&t->host.stats->counters.sessions, 0);
}

static void who_leaves_in_order_while_the_daemon_is_down_has_not_died(void **state)
{
	struct trial *t = *state;

	ends_without_a_daemon(t, true);
	assert_int_equal(atomic_load(&t->host.stats->counters.sessions_died), 0);
	ends_without_a_daemon(t, false);
	assert_int_equal(atomic_load(&t->host.stats->counters.sessions_died), 1);
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(with_nobody_left_nothing_is_held),
		WITH_DAEMON(who_leaves_in_order_while_the_daemon_is_down_has_not_died),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
