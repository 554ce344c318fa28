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
#define MISSED 4u /* as many as are told the daemon in one message, with this pool */

static int setup(void **state)
{
	return trial_setup(state, "2M", NULL);
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

/* Asks for @n keys from @from on, and lets go of what it got. */
static int64_t child_asks(struct kvp_ns *ns, unsigned from, unsigned n)
{
	struct kvp_view views[N];
	struct kvp_key keys[N];
	int64_t got;

	for (unsigned i = 0; i < n; i++)
		keys[i] = wire_key(from + i);
	got = kvp_acquire(ns, keys, n, 0, kvp_deadline_ms(1000), views);
	kvp_release(views, n);
	return got;
}

static struct kvp_ns *ns_open(struct kvp_client *client, const char *name)
{
	struct kvp_desc desc;
	struct kvp_ns *ns = NULL;

	trial_desc(&desc);
	return trial_ns(client, name, &desc, &ns) < 0 ? NULL : ns;
}

/* At @go a child finds N in "m" and misses some in "other", and is killed at once, or leaves.  To be forked while this
 * process has no client: a thread may hold any lock at a fork. */
static pid_t child_of_two_namespaces(const struct trial *t, bool is_killed, int *go)
{
	int down[2];
	char c;
	pid_t pid;

	assert_int_equal(pipe(down), 0);
	pid = fork();
	if (pid == 0) {
		struct kvp_client *client;
		struct kvp_ns *m, *other;

		close(down[1]);
		if (read(down[0], &c, 1) != 1 || trial_client(t, &client) < 0)
			_exit(1);
		other = ns_open(client, "other");
		m = ns_open(client, "m");
		if (!m || !other || child_asks(m, 0, N) != N || child_asks(other, 1000, MISSED) != 0)
			_exit(2);
		if (is_killed)
			kill(getpid(), SIGKILL);
		kvp_close(client);
		_exit(0);
	}
	assert_true(pid > 0);
	close(down[0]);
	*go = down[1];
	return pid;
}

static void child_ends(pid_t pid, int go, bool is_killed)
{
	int status;

	assert_int_equal(write(go, "", 1), 1);
	close(go);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (is_killed)
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	else
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* @times such children were here. */
static void counts_are(struct trial *t, struct kvp_ns *other, uint64_t times)
{
	const struct kvp_ns_row *m = host_ns_row(&t->host, ns_id_of(t->ns));
	const struct kvp_ns_row *o = host_ns_row(&t->host, ns_id_of(other));

	assert_non_null(m);
	assert_non_null(o);
	becomes(&m->counters.lookups, times * N);
	assert_int_equal(atomic_load(&m->counters.hits_ram), times * N);
	assert_int_equal(atomic_load(&m->counters.tokens_ram), times * N * TRIAL_TOKENS);
	assert_int_equal(atomic_load(&m->counters.miss_never), 0);
	becomes(&o->counters.lookups, times * MISSED);
	assert_int_equal(atomic_load(&o->counters.hits_ram), 0);
	assert_int_equal(atomic_load(&o->counters.miss_never), times * MISSED);
}

static void counts_go_to_the_namespace_that_was_asked(void **state)
{
	struct trial *t = *state;
	struct kvp_ns *other;
	int go_one, go_two;
	pid_t one = child_of_two_namespaces(t, false, &go_one), two = child_of_two_namespaces(t, true, &go_two);

	trial_attach(t);
	other = ns_open(t->client, "other");
	assert_non_null(other);
	for (unsigned i = 0; i < N; i++) {
		struct kvp_key key = wire_key(i);

		assert_int_equal(trial_put(t->ns, &key, NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
	}
	child_ends(one, go_one, false);
	counts_are(t, other, 1);
	child_ends(two, go_two, true);
	becomes(&t->host.stats->counters.sessions, 1);
	counts_are(t, other, 2);
}

/* A client of two namespaces finds blocks while no daemon runs: the next one adds each to the namespace it was found
   in. */
static void counts_of_a_time_without_a_daemon_go_to_their_namespaces(void **state)
{
	struct trial *t = *state;
	const struct kvp_ns_row *first, *second;
	struct kvp_ns *other;
	struct kvp_key key[2] = {wire_key(1), wire_key(2)};
	uint64_t ids[2];

	trial_attach(t);
	other = ns_open(t->client, "other");
	assert_non_null(other);
	ids[0] = ns_id_of(t->ns);
	ids[1] = ns_id_of(other);
	assert_int_equal(trial_put(t->ns, &key[0], NULL, 1, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(trial_put(other, &key[1], NULL, 2, TRIAL_BLOCK), KVP_PUB_STORED);
	for (unsigned round = 1; round <= 2; round++) {
		struct kvp_view view;

		host_kill(&t->host);
		for (unsigned i = 0; i < 3 * N; i++) {
			struct kvp_ns *ns = i % 3 ? other : t->ns;

			assert_int_equal(kvp_acquire(ns, ns == other ? &key[1] : &key[0], 1, 0, 0, &view), 1);
			kvp_release(&view, 1);
		}
		trial_start(t);
		first = host_ns_row(&t->host, ids[0]);
		second = host_ns_row(&t->host, ids[1]);
		assert_non_null(first);
		assert_non_null(second);
		becomes(&second->counters.hits_ram, round * 2 * N);
		becomes(&first->counters.hits_ram, round * N);
		assert_int_equal(atomic_load(&first->counters.lookups), round * N);
		assert_int_equal(atomic_load(&second->counters.lookups), round * 2 * N);
	}
}

static void every_key_that_missed_was_asked_for(void **state)
{
	struct trial *t = *state;
	const struct kvp_ns_row *row;
	struct kvp_key keys[N];
	struct kvp_match_part part = {.keys = keys};

	trial_attach(t);
	part.ns = t->ns;
	row = host_ns_row(&t->host, ns_id_of(t->ns));
	assert_non_null(row);
	for (unsigned i = 0; i < N; i++)
		keys[i] = wire_key(i);
	for (unsigned i = 1; i <= 20; i++) {
		assert_int_equal(kvp_match(&part, 1, N, 0, NULL), 0);
		assert_int_equal(atomic_load(&row->counters.miss_never), i * N);
		assert_true(atomic_load(&row->counters.lookups) >= i * N);
	}
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, trial_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(with_nobody_left_nothing_is_held),
		WITH_DAEMON(counts_go_to_the_namespace_that_was_asked),
		WITH_DAEMON(counts_of_a_time_without_a_daemon_go_to_their_namespaces),
		WITH_DAEMON(every_key_that_missed_was_asked_for),
		WITH_DAEMON(who_leaves_in_order_while_the_daemon_is_down_has_not_died),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
