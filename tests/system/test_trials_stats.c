/*
 * test_trials_stats.c - trials: what an operator is told, in odd states
 *
 * B40, B83 of kvctl with a daemon that serves, starts, stops, hangs or is dead; B34 as an engine sees it.
 *
 * kvpool-test: timeout=120
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define SECOND 1000000000ull
#define CROWD 1000u

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

/* kvctl stats --json: valid, and of this pool. */
static void stats_are_valid(const struct trial *t)
{
	static char out[1 << 20];
	json_error_t error;
	json_t *json;

	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "stats", "--json"), 0);
	json = json_loads(out, 0, &error);
	assert_non_null(json);
	json_decref(json);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "stats"), 0);
	assert_non_null(strstr(out, t->host.name));
}

static void with_the_tier_off_and_nobody_there_stats_are_whole(void **state)
{
	struct trial *t = *state;

	stats_are_valid(t);
	trial_attach(t);
	stats_are_valid(t);
}

/* Short: at most three lines. */
static bool is_short(const char *text)
{
	unsigned lines = 0;

	for (; *text; text++)
		lines += *text == '\n';
	return lines >= 1 && lines <= 3;
}

static void of_a_dead_daemon_ping_says_so_shortly_and_stats_tell_it(void **state)
{
	struct trial *t = *state;
	char out[16384];

	for (unsigned stopped = 0; stopped < 2; stopped++) {
		if (stopped)
			host_stop(&t->host);
		else
			host_kill(&t->host);
		assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "stats"), 3); /* at once, whatever its heartbeat */
		assert_non_null(strstr(out, stopped ? "stopped in order" : "gone"));
		assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "ping"), 3);
		assert_true(is_short(out));
		assert_non_null(strstr(out, "no daemon"));
		assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "stats"), 3);
		assert_null(strstr(out, ": serving\n"));
		assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "drain"), 3);
		assert_true(is_short(out));
		trial_start(t);
		stats_are_valid(t);
	}
}

static void with_no_pool_at_all_the_answer_is_short_and_an_error(void **state)
{
	struct trial t;
	char out[4096];

	(void)state;
	trial_given(&t, geteuid(), "2M", NULL);
	assert_int_equal(TRIAL_KVCTL(&t, out, sizeof(out), "stats"), 4);
	assert_true(is_short(out));
	assert_true(trial_end(&t));
}

static void of_a_stopped_daemon_stats_come_within_five_seconds_and_tell_it(void **state)
{
	struct trial *t = *state;
	char out[16384];
	uint64_t from = wire_now();
	int r;

	kill(t->host.pid, SIGSTOP);
	wire_sleep_ms(2500);
	from = wire_now();
	r = TRIAL_KVCTL(t, out, sizeof(out), "stats");
	assert_true(wire_now() - from < 5 * SECOND);
	assert_int_equal(r, 3);
	assert_null(strstr(out, ": serving\n"));
	from = wire_now();
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "ping"), 3);
	assert_true(wire_now() - from < 5 * SECOND);
	assert_non_null(strstr(out, "does not answer"));
	assert_null(strstr(out, "no daemon"));
	kill(t->host.pid, SIGCONT);
	from = wire_now();
	while (TRIAL_KVCTL(t, out, sizeof(out), "stats") != 0) /* until its next heartbeat */
		assert_true(wire_now() - from < 5 * SECOND);
	stats_are_valid(t);
}

/* kvctl with its output in @path, or in a pipe nobody reads. */
static pid_t kvctl_into(const struct trial *t, const char *path, const char *word)
{
	const char *build = getenv("BUILD");
	char kvctl[512];
	pid_t pid = fork();
	int ends[2];

	if (pid != 0)
		return pid;
	snprintf(kvctl, sizeof(kvctl), "%s/kvctl", build ? build : "build");
	if (path) {
		dup2(open(path, O_WRONLY | O_CLOEXEC), 1);
	} else if (pipe(ends) == 0) {
		dup2(ends[1], 1);
		close(ends[0]);
	}
	signal(SIGPIPE, SIG_DFL);
	dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), 2);
	execl(kvctl, "kvctl", word, "--socket", t->host.socket, "--name", t->host.name, NULL);
	_exit(95);
}

static void output_that_is_not_taken_ends_kvctl_without_a_crash(void **state)
{
	static const char *const words[] = {"stats", "ns", "clients", "check"};
	struct trial *t = *state;
	int status;

	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		assert_int_equal(waitpid(kvctl_into(t, "/dev/full", words[i]), &status, 0) > 0, 1);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 5);
		assert_int_equal(waitpid(kvctl_into(t, NULL, words[i]), &status, 0) > 0, 1);
		assert_true(WIFEXITED(status) || WTERMSIG(status) == SIGPIPE);
		assert_true(!WIFEXITED(status) || WEXITSTATUS(status) == 5 || WEXITSTATUS(status) == 0);
	}
	assert_true(host_alive(&t->host));
}

static void a_thousand_at_once_are_all_answered(void **state)
{
	struct trial *t = *state;
	static pid_t pids[CROWD];
	int status;

	for (unsigned i = 0; i < CROWD; i++) {
		pids[i] = kvctl_into(t, "/dev/null", i & 1 ? "stats" : "ping");
		assert_true(pids[i] > 0);
	}
	for (unsigned i = 0; i < CROWD; i++) {
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		if (i & 1) /* the others may find no place in the listening queue in time */
			assert_int_equal(status, 0);
	}
	assert_true(host_alive(&t->host));
	stats_are_valid(t);
}

static void while_the_daemon_starts_and_stops_stats_never_crash(void **state)
{
	struct trial *t = *state;
	int status;

	for (unsigned i = 0; i < 10; i++) {
		pid_t pids[8];

		for (unsigned j = 0; j < 8; j++)
			pids[j] = kvctl_into(t, "/dev/null", "stats");
		if (i & 1)
			host_stop(&t->host);
		else
			host_kill(&t->host);
		trial_start(t);
		for (unsigned j = 0; j < 8; j++) {
			assert_int_equal(waitpid(pids[j], &status, 0), pids[j]);
			assert_true(WIFEXITED(status));
			assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3 || WEXITSTATUS(status) == 4);
		}
	}
}

/* ---- B34 ---- */

#define HELD 8u

static void of_another_pool_old_views_stay_right_and_publishing_says_gone(void **state)
{
	struct trial *t = *state;
	struct kvp_view views[HELD], fresh;
	struct kvp_block_ref block;
	struct kvp_key keys[HELD], key = wire_key(77);
	struct kvp_publish_item item = {.key = key, .block = &block, .used_tokens = TRIAL_TOKENS};
	uint64_t until = wire_now() + 20 * SECOND;
	uint8_t result = 0;

	trial_attach(t);
	for (unsigned i = 0; i < HELD; i++) {
		keys[i] = wire_key(i);
		assert_int_equal(trial_put(t->ns, &keys[i], NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
		assert_int_equal(kvp_acquire(t->ns, &keys[i], 1, 0, 0, &views[i]), 1);
	}
	assert_int_equal(kvp_reserve(t->ns, 1, 0, kvp_deadline_ms(1000), &block), 1);
	wire_fill(block.data, TRIAL_BLOCK, 77);
	host_kill(&t->host);
	trial_memory_gone(t);
	assert_true(kvp_acquire(t->ns, &keys[0], 1, 0, 0, &fresh) <= 1);
	kvp_release(&fresh, 1);
	trial_start(t);
	while (kvp_ping(t->client, kvp_deadline_ms(1000)) < 0 && wire_now() < until)
		wire_sleep_ms(20);
	for (unsigned i = 0; i < HELD; i++)
		assert_true(wire_right(views[i].data, TRIAL_BLOCK, i));
	assert_int_equal(trial_get(t->ns, &keys[0], 0, TRIAL_BLOCK), 0);
	kvp_publish(t->ns, &item, 1, &result);
	assert_int_equal(result, KVP_PUB_GONE);
	assert_true(wire_right(block.data, TRIAL_BLOCK, 77));
	kvp_abandon(&block, 1);
	kvp_release(views, HELD);
	assert_int_equal(trial_get(t->ns, &key, 77, TRIAL_BLOCK), 0);
	assert_int_equal(trial_put(t->ns, &key, NULL, 77, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(trial_get(t->ns, &key, 77, TRIAL_BLOCK), 1);
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(with_the_tier_off_and_nobody_there_stats_are_whole),
		WITH_DAEMON(of_a_dead_daemon_ping_says_so_shortly_and_stats_tell_it),
		cmocka_unit_test(with_no_pool_at_all_the_answer_is_short_and_an_error),
		WITH_DAEMON(of_a_stopped_daemon_stats_come_within_five_seconds_and_tell_it),
		WITH_DAEMON(output_that_is_not_taken_ends_kvctl_without_a_crash),
		WITH_DAEMON(a_thousand_at_once_are_all_answered),
		WITH_DAEMON(while_the_daemon_starts_and_stops_stats_never_crash),
		WITH_DAEMON(of_another_pool_old_views_stay_right_and_publishing_says_gone),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
