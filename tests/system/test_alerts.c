/*
 * test_alerts.c - each alert of systemd/kvpool.rules.yml is provoked once, and none fires of a pool that is well
 *
 * A daemon is brought into the state, kvpool-exporter is asked before and after, alerts.py says what fires.
 *
 * kvpool-test: timeout=180
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define MIB (1024u * 1024)
#define COUNTER(t, name) atomic_load(&(t)->host.stats->counters.name)

struct watch {
	struct trial t;
	pid_t exporter;
	unsigned port;
	char before[96], after[96];
};

static char provoked[4096] = "\n"; /* names, each between newlines */

static const char *env(const char *name, const char *otherwise)
{
	const char *value = getenv(name);

	return value ? value : otherwise;
}

/* What alerts.py prints, each line after a newline. */
static void alerts(char *out, size_t room, const char *words)
{
	char command[1024];
	size_t n = 1;
	FILE *pipe;

	snprintf(command, sizeof(command), "exec /usr/bin/python3 '%s/tests/system/alerts.py' %s", env("TOP", "."),
		words);
	pipe = popen(command, "r");
	assert_non_null(pipe);
	out[0] = '\n';
	n += fread(out + 1, 1, room - 2, pipe);
	out[n] = 0;
	assert_int_equal(pclose(pipe), 0);
}

static void scrape(struct watch *w, const char *file)
{
	char words[200], none[16];

	snprintf(words, sizeof(words), "scrape %u %s", w->port, file);
	alerts(none, sizeof(none), words);
}

static void exporter_start(struct watch *w)
{
	char path[512], line[64] = "";
	int ends[2];
	FILE *said;

	assert_int_equal(pipe(ends), 0);
	fflush(NULL);
	w->exporter = fork();
	if (w->exporter == 0) {
		dup2(ends[1], 1);
		close(ends[0]);
		snprintf(path, sizeof(path), "%s/kvpool-exporter", env("BUILD", "build"));
		execl(path, "kvpool-exporter", "--name", w->t.host.name, "--listen", "127.0.0.1:0", (char *)NULL);
		_exit(95);
	}
	close(ends[1]);
	said = fdopen(ends[0], "r");
	assert_non_null(said);
	assert_non_null(fgets(line, sizeof(line), said));
	fclose(said);
	assert_int_equal(sscanf(line, "listening on port %u", &w->port), 1);
}

/* A daemon, a client and an exporter that has been asked once. @spill: size of the store, NULL: none */
static void given(struct watch *w, const char *pool, const char *spill)
{
	memset(w, 0, sizeof(*w));
	trial_given(&w->t, geteuid(), pool, spill);
	snprintf(w->before, sizeof(w->before), "%s/before", w->t.host.dir);
	snprintf(w->after, sizeof(w->after), "%s/after", w->t.host.dir);
}

static void watched(struct watch *w)
{
	exporter_start(w);
	scrape(w, w->before);
}

static void started(struct watch *w, const char *pool, const char *spill)
{
	given(w, pool, spill);
	trial_start(&w->t);
	trial_attach(&w->t);
	watched(w);
}

static void firing(struct watch *w, char *out, size_t room)
{
	char words[512];

	scrape(w, w->after);
	snprintf(
		words, sizeof(words), "fire '%s/systemd/kvpool.rules.yml' %s %s", env("TOP", "."), w->before, w->after);
	alerts(out, room, words);
}

static bool fires(struct watch *w, const char *alert)
{
	char out[2048], name[64];

	firing(w, out, sizeof(out));
	snprintf(name, sizeof(name), "\n%s\n", alert);
	return strstr(out, name) != NULL;
}

/* It fires within five seconds, which counters of the daemon may need to be told. */
static void assert_fires(struct watch *w, const char *alert)
{
	uint64_t until = wire_now() + 5000000000ull;

	while (!fires(w, alert)) {
		if (wire_now() > until)
			fail_msg("%s does not fire", alert);
		wire_sleep_ms(100);
	}
	strcat(provoked, alert);
	strcat(provoked, "\n");
}

static void ended(struct watch *w)
{
	int status;

	kill(w->exporter, SIGTERM);
	assert_int_equal(waitpid(w->exporter, &status, 0), w->exporter);
	trial_detach(&w->t);
	host_close(&w->t.host);
}

static void put(struct watch *w, uint64_t first, unsigned n)
{
	for (uint64_t k = first; k < first + n; k++) {
		struct kvp_key key = wire_key(k);

		trial_put(w->t.ns, &key, NULL, k, TRIAL_BLOCK);
	}
}

/* Return: how many were found, all of them right. */
static unsigned get(struct watch *w, uint64_t first, unsigned n)
{
	unsigned found = 0;

	for (uint64_t k = first; k < first + n; k++) {
		struct kvp_key key = wire_key(k);
		int r = trial_get(w->t.ns, &key, k, TRIAL_BLOCK);

		assert_true(r >= 0);
		found += r == 1;
	}
	return found;
}

static void a_pool_at_work_fires_nothing(void **state)
{
	struct watch w;
	char out[2048];

	(void)state;
	started(&w, "4M", "64M");
	put(&w, 0, 200); /* more than memory holds */
	assert_true(get(&w, 0, 200) > 100);
	assert_int_equal(get(&w, 5000, 20), 0);
	assert_int_equal(TRIAL_KVCTL(&w.t, NULL, 0, "drain"), 0);
	trial_detach(&w.t);
	assert_int_equal(host_stop(&w.t.host), 0);
	trial_start(&w.t); /* one restart is no alert either */
	trial_attach(&w.t);
	assert_true(get(&w, 0, 200) > 100);
	firing(&w, out, sizeof(out));
	assert_string_equal(out, "\n");
	ended(&w);
}

static void kvpool_down_when_the_daemon_is_killed(void **state)
{
	struct watch w;

	(void)state;
	started(&w, "2M", NULL);
	assert_false(fires(&w, "KvpoolDown"));
	host_kill(&w.t.host);
	assert_fires(&w, "KvpoolDown");
	ended(&w);
}

static void kvpool_restarts_when_it_starts_again_and_again(void **state)
{
	struct watch w;

	(void)state;
	started(&w, "2M", NULL);
	for (unsigned i = 0; i < 4; i++) {
		assert_false(fires(&w, "KvpoolRestarts"));
		host_kill(&w.t.host);
		trial_start(&w.t);
	}
	assert_fires(&w, "KvpoolRestarts");
	ended(&w);
}

static void kvpool_tier_down_when_the_store_is_taken_away(void **state)
{
	struct watch w;
	char away[96];

	(void)state;
	started(&w, "2M", "64M");
	put(&w, 0, 10);
	snprintf(away, sizeof(away), "%s.away", w.t.spill);
	assert_int_equal(rename(w.t.spill, away), 0);
	put(&w, 1000, 60);
	assert_fires(&w, "KvpoolTierDown");
	assert_int_equal(rename(away, w.t.spill), 0);
	ended(&w);
}

static void kvpool_store_errors_when_writes_fail(void **state)
{
	struct watch w;

	(void)state;
	given(&w, "2M", "64M");
	snprintf(w.t.host.binary, sizeof(w.t.host.binary), "%s/kvpoold-fault", env("BUILD", "build"));
	setenv("KVPOOL_FAULT", "io.write=-EIO@20+", 1);
	trial_start(&w.t);
	unsetenv("KVPOOL_FAULT");
	trial_attach(&w.t);
	watched(&w);
	put(&w, 0, 100);
	assert_fires(&w, "KvpoolStoreErrors");
	ended(&w);
}

static void kvpool_store_full_when_something_else_fills_the_disk(void **state)
{
	struct watch w;
	char fat[96];
	int fd;

	(void)state;
	if (geteuid() != 0)
		skip();
	given(&w, "2M", "64M");
	if (mount("none", w.t.spill, "tmpfs", 0, "size=5m,mode=700") < 0)
		skip();
	snprintf(fat, sizeof(fat), "%s/fat", w.t.spill);
	fd = open(fat, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(posix_fallocate(fd, 0, 4 * MIB), 0); /* what is left holds no segment */
	close(fd);
	trial_start(&w.t);
	trial_attach(&w.t);
	watched(&w);
	put(&w, 0, 100);
	assert_fires(&w, "KvpoolStoreFull");
	for (unsigned n = 0; n < 14; n++) { /* nobody writes, and it goes on: it fires only after minutes */
		wire_sleep_ms(500);
		assert_true(fires(&w, "KvpoolStoreFull"));
	}
	umount2(w.t.spill, MNT_DETACH);
	ended(&w);
}

static void kvpool_store_quota_when_a_namespace_may_not_write_what_it_evicts(void **state)
{
	struct watch w;

	(void)state;
	given(&w, "2M", "64M");
	trial_option(&w.t, "--namespace-max-spill", "1M"); /* 15 blocks */
	trial_start(&w.t);
	trial_attach(&w.t);
	put(&w, 0, 10);
	assert_int_equal(TRIAL_KVCTL(&w.t, NULL, 0, "drain"), 0);
	watched(&w);
	assert_false(fires(&w, "KvpoolStoreQuota"));
	put(&w, 100, 200); /* a block in ten seconds, for ten minutes, is 60 */
	assert_fires(&w, "KvpoolStoreQuota");
	ended(&w);
}

/* Every page of the store's file but its first MiB is overwritten in its middle. */
static void spoil(const char *dir)
{
	struct dirent *entry;
	DIR *all = opendir(dir);

	assert_non_null(all);
	while ((entry = readdir(all))) {
		int fd = openat(dirfd(all), entry->d_name, O_RDWR | O_CLOEXEC);
		struct stat st;

		if (fd < 0)
			continue;
		fstat(fd, &st);
		for (off_t at = MIB + TRIAL_BLOCK / 2; S_ISREG(st.st_mode) && at < st.st_size; at += TRIAL_BLOCK / 2)
			assert_int_equal(pwrite(fd, "spoilt", 6, at), 6);
		close(fd);
	}
	closedir(all);
}

static void kvpool_damage_when_records_fail_their_checksums(void **state)
{
	struct watch w;

	(void)state;
	started(&w, "2M", "64M");
	put(&w, 0, 30);
	assert_int_equal(TRIAL_KVCTL(&w.t, NULL, 0, "drain"), 0);
	trial_detach(&w.t);
	assert_int_equal(host_stop(&w.t.host), 0);
	trial_memory_gone(&w.t);
	spoil(w.t.spill);
	trial_start(&w.t);
	trial_attach(&w.t);
	scrape(&w, w.before); /* counters begin anew with the memory */
	assert_true(get(&w, 0, 30) < 30);
	assert_fires(&w, "KvpoolDamage");
	ended(&w);
}

static void kvpool_no_hits_when_engines_ask_and_nothing_is_found(void **state)
{
	struct watch w;

	(void)state;
	started(&w, "2M", NULL);
	put(&w, 0, 4);
	assert_int_equal(get(&w, 100000, 1000), 0); /* more than one a second for a quarter of an hour */
	assert_fires(&w, "KvpoolNoHits");
	assert_int_equal(get(&w, 0, 1), 1);
	for (unsigned i = 0; i < 50 && fires(&w, "KvpoolNoHits"); i++)
		wire_sleep_ms(100);
	assert_false(fires(&w, "KvpoolNoHits"));
	ended(&w);
}

static void kvpool_no_room_when_all_is_held(void **state)
{
	struct kvp_view views[64];
	struct watch w;
	unsigned held = 0;

	(void)state;
	started(&w, "2M", NULL);
	put(&w, 0, 32);
	for (uint64_t k = 0; k < 32; k++) {
		struct kvp_key key = wire_key(k);

		held += kvp_acquire(w.t.ns, &key, 1, 0, kvp_deadline_ms(1000), &views[held]) == 1;
	}
	assert_true(held > 16);
	scrape(&w, w.before);
	assert_false(fires(&w, "KvpoolNoRoom"));
	put(&w, 100, 1); /* which waits its ten seconds */
	assert_fires(&w, "KvpoolNoRoom");
	kvp_release(views, held);
	ended(&w);
}

static void say(const char *root, const char *name, const char *text)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s%s", root, name);
	for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
		*at = 0;
		mkdir(path, 0755);
		*at = '/';
	}
	file = fopen(path, "we");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void kvpool_memory_given_back_when_the_host_is_short_of_it(void **state)
{
	static const char *const given_options[] = {"--pool", "16M", "--slab", "1M", "--free-percent", "0", "--spill",
		"off", "--cgroup-headroom", "10", NULL};
	char root[96], command[160];
	struct watch w;

	(void)state;
	given(&w, "16M", NULL);
	snprintf(root, sizeof(root), "%s/root", w.t.host.dir);
	mkdir(root, 0755);
	say(root, "/proc/self/cgroup", "0::/pool\n");
	say(root, "/sys/fs/cgroup/pool/memory.max", "104857600\n");
	say(root, "/sys/fs/cgroup/pool/memory.current", "41943040\n");
	setenv("KVPOOL_ROOT", root, 1);
	assert_int_equal(host_start(&w.t.host, given_options), 0);
	unsetenv("KVPOOL_ROOT");
	watched(&w);
	assert_false(fires(&w, "KvpoolMemoryGivenBack"));
	say(root, "/sys/fs/cgroup/pool/memory.current", "81788928\n");
	assert_fires(&w, "KvpoolMemoryGivenBack");
	snprintf(command, sizeof(command), "rm -r '%s'", root);
	assert_int_equal(system(command), 0);
	ended(&w);
}

/* Cuts its session object and goes on asking; in a child, which may die of it. */
static void breaks_its_session(const struct trial *t)
{
	struct kvp_wire_pong pong;
	struct wire w;
	struct wire_ns ns;

	if (wire_open(&w, t->host.socket) != 0 || wire_join(&w, &ns, "m", TRIAL_BLOCK) != 0 ||
		ftruncate(w.session_fd, 0) < 0)
		_exit(1);
	for (uint64_t k = 100; k < 250; k++) {
		struct kvp_key key = wire_key(k);

		if (wire_put(&ns, &key, NULL, k, 2000) < 0)
			break;
	}
	for (unsigned i = 0; i < 40 && wire_call(&w, KVP_MSG_PING, NULL, 0, &pong, sizeof(pong)) >= 0; i++)
		wire_sleep_ms(25);
	_exit(0);
}

static void kvpool_slabs_condemned_when_a_client_is_put_out(void **state)
{
	struct watch w;
	pid_t child;
	int status;

	(void)state;
	started(&w, "2M", NULL);
	fflush(NULL);
	child = fork();
	if (child == 0)
		breaks_its_session(&w.t);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_fires(&w, "KvpoolSlabsCondemned");
	ended(&w);
}

static void kvpool_slow_when_a_turn_of_the_loop_takes_long(void **state)
{
	struct watch w;

	(void)state;
	started(&w, "2M", NULL);
	assert_int_equal(kill(w.t.host.pid, SIGSTOP), 0);
	wire_sleep_ms(1300);
	assert_int_equal(kill(w.t.host.pid, SIGCONT), 0);
	assert_fires(&w, "KvpoolSlow");
	ended(&w);
}

/* Two hours pass for the daemon, which is started anew in a time namespace that is so much later; the pin stays.  The
   last case: what this process forks from now on lives there as well. */
static void kvpool_old_hold_when_a_block_has_been_held_for_hours(void **state)
{
	struct kvp_key key = wire_key(1);
	struct kvp_view view;
	struct watch w;
	FILE *offsets;

	(void)state;
	started(&w, "2M", NULL);
	put(&w, 1, 1);
	assert_int_equal(kvp_acquire(w.t.ns, &key, 1, 0, kvp_deadline_ms(1000), &view), 1);
	assert_false(fires(&w, "KvpoolOldHold"));
	if (unshare(CLONE_NEWTIME) < 0) {
		print_message("skipped: no time namespace here\n");
		ended(&w);
		skip();
	}
	offsets = fopen("/proc/self/timens_offsets", "we");
	assert_non_null(offsets);
	assert_true(fputs("monotonic 7200 0\n", offsets) >= 0);
	assert_int_equal(fclose(offsets), 0);
	host_kill(&w.t.host);
	trial_start(&w.t);
	assert_fires(&w, "KvpoolOldHold");
	assert_true(view.used_bytes == TRIAL_BLOCK && wire_right(view.data, TRIAL_BLOCK, 1));
	kvp_release(&view, 1);
	ended(&w);
}

static void every_alert_there_is_was_provoked(void **state)
{
	char out[2048], words[512], *rest = out;

	(void)state;
	snprintf(words, sizeof(words), "names '%s/systemd/kvpool.rules.yml'", env("TOP", "."));
	alerts(out, sizeof(out), words);
	for (const char *name; (name = strtok_r(rest, "\n", &rest));) {
		char line[64];

		snprintf(line, sizeof(line), "\n%s\n", name);
		if (!strstr(provoked, line))
			fail_msg("nothing here provokes %s", name);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pool_at_work_fires_nothing),
		cmocka_unit_test(kvpool_down_when_the_daemon_is_killed),
		cmocka_unit_test(kvpool_restarts_when_it_starts_again_and_again),
		cmocka_unit_test(kvpool_tier_down_when_the_store_is_taken_away),
		cmocka_unit_test(kvpool_store_errors_when_writes_fail),
		cmocka_unit_test(kvpool_store_full_when_something_else_fills_the_disk),
		cmocka_unit_test(kvpool_store_quota_when_a_namespace_may_not_write_what_it_evicts),
		cmocka_unit_test(kvpool_damage_when_records_fail_their_checksums),
		cmocka_unit_test(kvpool_no_hits_when_engines_ask_and_nothing_is_found),
		cmocka_unit_test(kvpool_no_room_when_all_is_held),
		cmocka_unit_test(kvpool_memory_given_back_when_the_host_is_short_of_it),
		cmocka_unit_test(kvpool_slabs_condemned_when_a_client_is_put_out),
		cmocka_unit_test(kvpool_slow_when_a_turn_of_the_loop_takes_long),
		cmocka_unit_test(kvpool_old_hold_when_a_block_has_been_held_for_hours),
		cmocka_unit_test(every_alert_there_is_was_provoked),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
