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
	return trial_setup(state, "2M", NULL);
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

static unsigned times(const char *text, const char *what)
{
	unsigned n = 0;

	while ((text = strstr(text, what))) {
		text += strlen(what);
		n++;
	}
	return n;
}

static void a_start_that_fails_leaves_a_killed_or_stopped_daemon_with_its_pid_socket_and_size(void **state)
{
	static const char *const senseless[] = {"--pool", "3M", "--slab", "1M", "--socket", "/nonexistent/dir/sock",
		"--admin-socket", "/nonexistent/dir/sock.admin", NULL};
	struct trial *t = *state;
	const char *was[48];
	char out[16384], line[200];
	uint64_t pool;

	memcpy(was, t->host.argv, sizeof(was));
	for (unsigned stopped = 0; stopped < 2; stopped++) {
		snprintf(line, sizeof(line), "socket %s  pid %d ", t->host.socket, (int)t->host.pid);
		if (stopped)
			host_stop(&t->host);
		else
			host_kill(&t->host);
		pool = atomic_load(&t->host.stats->counters.pool_bytes); /* it may still be shrinking to 2M */
		assert_int_equal(host_start(&t->host, senseless), -1001);
		assert_true(host_logged(&t->host, "/nonexistent/dir/sock", 0));
		assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "stats"), 3);
		assert_non_null(strstr(out, line));
		assert_int_equal(atomic_load(&t->host.stats->counters.pool_bytes), pool);
		assert_int_equal(strstr(out, "stopped in order") != NULL, stopped);
		assert_int_equal(strstr(out, "gone") != NULL, !stopped);
		memcpy(t->host.argv, was, sizeof(was));
		trial_start(t);
	}
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
		for (uint64_t end = wire_now() + 20 * SECOND;
			;) { /* its ring may hold the socket after it was waited for */
			assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "ping"), 3);
			assert_true(is_short(out));
			assert_int_equal(times(out, t->host.socket), 1);
			if (strstr(out, "no daemon"))
				break;
			assert_true(wire_now() < end);
		}
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
	assert_int_equal(times(out, "kvctl stats tells how it does"), 1);
	assert_int_equal(times(out, t->host.socket), 1);
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

static void no_epoch_of_another_pool_is_met_again(void **state)
{
	struct trial *t = *state;
	uint64_t epochs[5], again;

	for (unsigned i = 0; i < 5; i++) {
		trial_attach(t);
		kvp_state(t->client, &epochs[i]);
		host_kill(&t->host);
		trial_detach(t);
		trial_start(t);
		trial_attach(t);
		kvp_state(t->client, &again);
		assert_int_equal(again, epochs[i] + 1);
		for (unsigned j = 0; j < i; j++)
			assert_true(epochs[i] > epochs[j] + 1 || epochs[j] > epochs[i] + 1);
		trial_detach(t);
		host_kill(&t->host);
		trial_memory_gone(t);
		trial_start(t);
	}
}

/* ---- what the counters say of clients ---- */

#define COUNTER(t, name) ((uint64_t)atomic_load(&(t)->host.stats->counters.name))

static const struct kvp_ns_counters *counters_of(struct trial *t)
{
	struct kvp_ns_info info = {.size = sizeof(info)};

	assert_int_equal(kvp_ns_info(t->ns, &info), 0);
	return &host_ns_row(&t->host, info.ns_id)->counters;
}

static uint64_t misses_in(const struct kvp_ns_counters *c)
{
	return atomic_load(&c->miss_never) + atomic_load(&c->miss_evicted) + atomic_load(&c->miss_sibling) +
	       atomic_load(&c->miss_damaged) + atomic_load(&c->miss_tier) + atomic_load(&c->miss_cost) +
	       atomic_load(&c->miss_unasked);
}

static uint64_t hits_in(const struct kvp_ns_counters *c)
{
	return atomic_load(&c->hits_ram) + atomic_load(&c->hits_spill);
}

/* An engine that looks up ten keys of which four are there, then is killed, or waits for that. */
static void look_up(const struct trial *t, unsigned times, bool waits)
{
	struct kvp_client *client;
	struct kvp_view views[10];
	struct kvp_key keys[10];
	struct kvp_desc desc;
	struct kvp_ns *ns;

	trial_desc(&desc);
	for (unsigned i = 0; i < 10; i++)
		keys[i] = wire_key(i);
	if (trial_client(t, &client) < 0 || trial_ns(client, "m", &desc, &ns) < 0)
		_exit(1);
	for (unsigned i = 0; i < times; i++)
		kvp_release(views, (uint32_t)kvp_acquire(ns, keys, 10, 0, kvp_deadline_ms(1000), views));
	if (waits)
		wire_sleep_ms(1500); /* its counts are handed over */
	kill(getpid(), SIGKILL);
}

static void lookups_are_hits_and_misses_also_of_an_engine_that_was_killed(void **state)
{
	struct trial *t = *state;
	const struct kvp_ns_counters *c;
	int status;

	trial_attach(t);
	for (uint64_t k = 0; k < 4; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(trial_put(t->ns, &key, NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
	trial_detach(t);
	for (unsigned waits = 0; waits < 2; waits++) {
		pid_t pid = fork();

		if (pid == 0)
			look_up(t, 20, waits);
		assert_int_equal(waitpid(pid, &status, 0), pid);
	}
	trial_attach(t);
	c = counters_of(t);
	assert_int_equal(misses_in(c), 2 * 20 * 6);
	assert_in_range(hits_in(c), 20 * 4, 2 * 20 * 4);
	assert_int_equal(atomic_load(&c->lookups), hits_in(c) + misses_in(c));
}

static void a_pool_full_of_blocks_smaller_than_their_slots_is_told_as_full(void **state)
{
	struct trial *t = *state;
	struct kvp_desc desc;
	struct kvp_ns *ns;
	char out[8192];

	trial_attach(t);
	trial_desc(&desc);
	desc.block_bytes = 128;
	assert_int_equal(trial_ns(t->client, "small", &desc, &ns), 0);
	for (uint64_t k = 0; k < 2 * (2u << 20) / 4096; k++) { /* twice what fits */
		struct kvp_key key = wire_key(k);

		assert_int_equal(trial_put(ns, &key, NULL, k, 128), KVP_PUB_STORED);
	}
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "stats"), 0);
	assert_non_null(strstr(out, " 2 MiB of 2 MiB"));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "top", "--once"), 0);
	assert_non_null(strstr(out, " 2 MiB of 2 MiB"));
}

/* ---- who is kept out ---- */

static bool attached(void *arg)
{
	return kvp_state(arg, NULL) == KVP_ATTACHED;
}

static struct kvp_client *kept_out(struct trial *t, const char *why)
{
	uint64_t refused = COUNTER(t, connections_refused);
	struct kvp_client *client;

	assert_int_equal(trial_client(t, &client), 0);
	assert_int_equal(kvp_state(client, NULL), KVP_REFUSED);
	assert_non_null(strstr(kvp_error(client), why));
	assert_int_equal(kvp_ping(client, kvp_deadline_ms(100)), -KVP_EQUOTA);
	assert_non_null(strstr(kvp_error(client), why));
	assert_true(COUNTER(t, connections_refused) > refused);
	return client;
}

static void who_is_one_too_many_learns_the_limit_and_gets_in_when_another_leaves(void **state)
{
	struct trial *t = *state;
	const char *options[] = {"--pool", "2M", "--slab", "1M", "--spill", "off", "--max-clients", "1", NULL};
	struct kvp_client *client;
	struct wire one;
	char out[4096];

	host_kill(&t->host);
	assert_int_equal(host_start(&t->host, options), 0);
	trial_attach(t);
	client = kept_out(t, "max-clients (1)"); /* as a session */
	kvp_close(client);
	assert_int_equal(wire_connect(&one, t->host.socket), 0);
	client = kept_out(t, "connections are open: raise max-clients (1)"); /* before it could say HELLO */
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "ping"), 3);
	assert_non_null(strstr(out, "kept out"));
	assert_null(strstr(out, "does not answer"));
	trial_detach(t);
	wire_close(&one);
	assert_true(wire_until(attached, client, 5000));
	kvp_close(client);
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, trial_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(with_the_tier_off_and_nobody_there_stats_are_whole),
		WITH_DAEMON(a_start_that_fails_leaves_a_killed_or_stopped_daemon_with_its_pid_socket_and_size),
		WITH_DAEMON(of_a_dead_daemon_ping_says_so_shortly_and_stats_tell_it),
		cmocka_unit_test(with_no_pool_at_all_the_answer_is_short_and_an_error),
		WITH_DAEMON(of_a_stopped_daemon_stats_come_within_five_seconds_and_tell_it),
		WITH_DAEMON(output_that_is_not_taken_ends_kvctl_without_a_crash),
		WITH_DAEMON(a_thousand_at_once_are_all_answered),
		WITH_DAEMON(while_the_daemon_starts_and_stops_stats_never_crash),
		WITH_DAEMON(no_epoch_of_another_pool_is_met_again),
		WITH_DAEMON(lookups_are_hits_and_misses_also_of_an_engine_that_was_killed),
		WITH_DAEMON(a_pool_full_of_blocks_smaller_than_their_slots_is_told_as_full),
		WITH_DAEMON(who_is_one_too_many_learns_the_limit_and_gets_in_when_another_leaves),
		WITH_DAEMON(of_another_pool_old_views_stay_right_and_publishing_says_gone),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
