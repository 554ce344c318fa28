/*
 * test_daemon_stores.c - a daemon with several spill stores: kills, reboots, and a store that is not there
 *
 * kvpool-test: parallel timeout=240
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
#include <unistd.h>

#include "trial.h"

#define STORES 3
#define N 120

struct several {
	struct trial t;
	char dirs[STORES][100], options[STORES][120];
	struct kvp_key keys[N];
};

static void several_start(struct several *s, unsigned n, const char *free_percent)
{
	const char *options[24] = {
		"--pool", "2M", "--slab", "1M", "--free-percent", free_percent, "--heartbeat", "200"};

	for (unsigned i = 0; i < n; i++) {
		options[8 + 2 * i] = "--spill";
		options[9 + 2 * i] = s->options[i];
	}
	assert_int_equal(host_start(&s->t.host, options), 0);
}

static void several_options(struct several *s, unsigned n)
{
	several_start(s, n, "0");
}

static int setup(void **state)
{
	struct several *s = calloc(1, sizeof(*s));

	trial_given(&s->t, geteuid(), "2M", "64M");
	for (unsigned i = 0; i < STORES; i++) {
		snprintf(s->dirs[i], sizeof(s->dirs[i]), "%s/%u", s->t.spill, i);
		snprintf(s->options[i], sizeof(s->options[i]), "%s:32M", s->dirs[i]);
		assert_int_equal(mkdir(s->dirs[i], 0700), 0);
	}
	several_options(s, STORES);
	trial_attach(&s->t);
	for (unsigned k = 0; k < N; k++)
		s->keys[k] = (struct kvp_key){.w = {k + 1, 0x5555}};
	*state = s;
	return 0;
}

static int teardown(void **state)
{
	struct several *s = *state;
	bool good;

	trial_detach(&s->t);
	good = trial_end(&s->t);
	free(s);
	return good ? 0 : -1;
}

static void put_all(struct several *s, unsigned from, unsigned to)
{
	for (unsigned k = from; k < to; k++)
		assert_int_equal(trial_put(s->t.ns, &s->keys[k], NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
}

/* Return: how many are there, each exactly as it was. */
static unsigned get_all(struct several *s, unsigned n)
{
	unsigned there = 0;

	for (unsigned k = 0; k < n; k++) {
		int r = trial_get(s->t.ns, &s->keys[k], k, TRIAL_BLOCK);

		assert_true(r >= 0);
		there += r == 1;
	}
	return there;
}

/* What kvctl says of store @i. */
static json_int_t store_says(struct several *s, unsigned i, const char *name, char state[32])
{
	static char out[262144];
	const json_t *value, *store;
	json_int_t n;
	json_t *json;

	assert_int_equal(TRIAL_KVCTL(&s->t, out, sizeof(out), "stats", "--json"), 0);
	json = json_loads(out, 0, NULL);
	store = json_array_get(json_object_get(json_object_get(json, "spill"), "stores"), i);
	assert_non_null(store);
	snprintf(state, 32, "%s", json_string_value(json_object_get(store, "state")));
	value = json_object_get(store, name);
	assert_non_null(value);
	n = json_integer_value(value);
	json_decref(json);
	return n;
}

static void what_does_not_fit_is_spread_over_all_stores_and_comes_back_after_a_kill_and_a_reboot(void **state)
{
	struct several *s = *state;
	char says[32];

	put_all(s, 0, N);
	assert_int_equal(get_all(s, N), N);
	for (unsigned i = 0; i < STORES; i++) {
		/* the page is a second old at most */
		for (uint64_t until = kvp_deadline_ms(10000);
			store_says(s, i, "live_records", says) <= 10 && kvp_deadline_ms(0) < until;)
			wire_sleep_ms(50);
		assert_true(store_says(s, i, "live_records", says) > 10);
		assert_string_equal(says, "up");
	}
	assert_int_equal(TRIAL_KVCTL(&s->t, NULL, 0, "drain"), 0);
	trial_detach(&s->t);
	host_kill(&s->t.host);
	assert_int_equal(host_start(&s->t.host, NULL), 0);
	trial_attach(&s->t);
	assert_int_equal(get_all(s, N), N);
	trial_reboot(&s->t);
	assert_int_equal(get_all(s, N), N);
	assert_int_equal(TRIAL_KVCTL(&s->t, NULL, 0, "check"), 0);
}

static void with_a_store_missing_the_rest_is_served_under_the_old_keys_whichever_it_is(void **state)
{
	struct several *s = *state;
	char away[110], says[32], out[4096], down[140];

	put_all(s, 0, N);
	for (unsigned i = 0; i < STORES; i++) {
		unsigned there;

		assert_int_equal(TRIAL_KVCTL(&s->t, NULL, 0, "drain"), 0);
		trial_detach(&s->t);
		assert_int_equal(host_stop(&s->t.host), 0);
		trial_memory_gone(&s->t);
		snprintf(away, sizeof(away), "%s.away", s->dirs[i]);
		assert_int_equal(rename(s->dirs[i], away), 0);
		assert_int_equal(host_start(&s->t.host, NULL), 0);
		assert_true(host_logged(&s->t.host, "is missing, and the others serve without it", 1000));
		trial_attach(&s->t); /* the namespace is known by what lies beside the others */
		there = get_all(s, N);
		assert_in_range(there, N / 3, N - 10);
		assert_int_equal(store_says(s, i, "errno", says), ENOENT);
		assert_string_equal(says, "DOWN");
		assert_true(store_says(s, i, "since", says) > 0);
		assert_int_equal(TRIAL_KVCTL(&s->t, out, sizeof(out), "store", "drop", "--yes"), 1);
		snprintf(down, sizeof(down), "store %s is down, and would keep its records", s->dirs[i]);
		assert_non_null(strstr(out, down));
		trial_detach(&s->t);
		assert_int_equal(host_stop(&s->t.host), 0);
		trial_memory_gone(&s->t);
		assert_int_equal(rename(away, s->dirs[i]), 0);
		assert_int_equal(host_start(&s->t.host, NULL), 0);
		trial_attach(&s->t);
		assert_int_equal(get_all(s, N), N);
	}
}

/* Each block the child of the one before, so that what is found hangs together over all stores. */
static void a_store_missing_at_the_start_joins_while_the_daemon_serves(void **state)
{
	struct several *s = *state;
	char away[110], says[32], path[200];
	uint64_t until = wire_now() + 60000000000ull;

	for (unsigned k = 0; k < N; k++)
		assert_int_equal(
			trial_put(s->t.ns, &s->keys[k], k ? &s->keys[k - 1] : NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(TRIAL_KVCTL(&s->t, NULL, 0, "drain"), 0);
	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	trial_memory_gone(&s->t);
	snprintf(away, sizeof(away), "%s.away", s->dirs[1]);
	assert_int_equal(rename(s->dirs[1], away), 0);
	assert_int_equal(host_start(&s->t.host, NULL), 0);
	trial_attach(&s->t);
	assert_in_range(get_all(s, N), N / 3, N - 10);
	assert_int_equal(rename(away, s->dirs[1]), 0);
	snprintf(path, sizeof(path), "spill store %s is back: ", s->dirs[1]);
	assert_true(host_logged(&s->t.host, path, 20000));
	assert_int_equal(get_all(s, N), N);
	do /* the page is a second old at most */
		store_says(s, 1, "errno", says);
	while (strcmp(says, "up") && wire_now() < until);
	assert_string_equal(says, "up");
	assert_int_equal(TRIAL_KVCTL(&s->t, NULL, 0, "check"), 0);
	trial_reboot(&s->t);
	assert_int_equal(get_all(s, N), N);
}

/* The descriptor of this file in the daemon. */
static int daemon_fd(const struct several *s, const char *dir)
{
	char link[64], path[200];

	for (int fd = 3; fd < 1000; fd++) {
		ssize_t n;

		snprintf(link, sizeof(link), "/proc/%d/fd/%d", (int)s->t.host.pid, fd);
		n = readlink(link, path, sizeof(path) - 1);
		path[n < 0 ? 0 : n] = 0;
		if (!strncmp(path, dir, strlen(dir)) && path[strlen(dir)] == '/')
			return fd;
	}
	return -1;
}

static bool one_has_fd(const struct several *s, int fd)
{
	bool has = false;

	for (unsigned i = 0; i < STORES; i++)
		has = has || (s->t.host.pid && daemon_fd(s, s->dirs[i]) == fd);
	return has;
}

#define CHAIN 8u

/* Chains, so that what is read has something below it that is read ahead. */
static void put_chains(struct several *s, unsigned from, unsigned to)
{
	for (unsigned k = from; k < to; k++) {
		struct kvp_key key = {.w = {k + 1, 0x5555}}, parent = {.w = {k, 0x5555}};

		trial_put(s->t.ns, &key, k % CHAIN ? &parent : NULL, k,
			TRIAL_BLOCK); /* of a parent that was dropped none */
	}
}

/* Each is right, or a miss, and none waits until its deadline. Return: how many are there. */
static unsigned get_chains(struct several *s, unsigned n)
{
	unsigned found = 0;

	for (unsigned k = 0; k < n; k += CHAIN) {
		struct kvp_key keys[CHAIN];
		struct kvp_view views[CHAIN] = {0};
		uint64_t start = wire_now();
		int64_t got;

		for (unsigned i = 0; i < CHAIN; i++)
			keys[i] = (struct kvp_key){.w = {k + i + 1, 0x5555}};
		got = kvp_acquire(s->t.ns, keys, CHAIN, 0, kvp_deadline_ms(20000), views);
		assert_true(got >= 0);
		assert_true(wire_now() - start < 15000000000ull);
		for (int64_t i = 0; i < got; i++)
			assert_true(wire_right(views[i].data, TRIAL_BLOCK, k + (unsigned)i));
		kvp_release(views, (uint32_t)got);
		found += (unsigned)got;
	}
	return found;
}

/* Begin to read what is not in memory, and do not wait for it. */
static void begin_chains(struct several *s, unsigned n)
{
	for (unsigned k = 0; k < n; k++) {
		struct kvp_key key = {.w = {k + 1, 0x5555}};
		struct kvp_view view = {0};

		kvp_acquire(s->t.ns, &key, 1, 0, kvp_deadline_ms(1), &view);
		kvp_release(&view, 1);
	}
}

/* What is being written there is stuck in memory; what is not has the other stores. */
static void while_one_of_several_stores_hangs_nobody_waits_for_it(void **state)
{
	struct several *s = *state;
	const char *build = getenv("BUILD");
	char binary[sizeof(s->t.host.binary)], rule[64];
	uint64_t start;
	int fd;

	trial_detach(&s->t);
	fd = daemon_fd(s, s->dirs[1]);
	host_kill(&s->t.host);
	memcpy(binary, s->t.host.binary, sizeof(binary));
	snprintf(s->t.host.binary, sizeof(s->t.host.binary), "%s/kvpoold-fault", build ? build : "build");
	for (unsigned tries = 0; tries < 50 && !one_has_fd(s, fd); tries++) { /* they are opened in any order */
		if (tries)
			fd = daemon_fd(s, s->dirs[1]);
		snprintf(rule, sizeof(rule), "io.hang.fd=%d@300+", fd); /* it starts, and some of it is written */
		setenv("KVPOOL_FAULT", rule, 1);
		host_kill(&s->t.host);
		several_start(s, STORES, "20");
	}
	unsetenv("KVPOOL_FAULT");
	memcpy(s->t.host.binary, binary, sizeof(binary));
	assert_true(one_has_fd(s, fd));
	trial_attach(&s->t);
	put_chains(s, 0, 4 * N);
	begin_chains(s, 3 * CHAIN); /* it hangs, and nobody knows yet; a third of them lies there, which leaves room */
	for (unsigned ms = 0; ms < 30000 && atomic_load(&s->t.host.stats->counters.spill_last_errno) != ETIMEDOUT; ms++)
		usleep(1000);
	assert_int_equal(atomic_load(&s->t.host.stats->counters.spill_last_errno), ETIMEDOUT);
	start = wire_now();
	put_chains(s, 4 * N, 5 * N);
	assert_true(wire_now() - start < 60000000000ull); /* two seconds each it was */
	assert_true(get_chains(s, 5 * N) > 0);
	trial_detach(&s->t);
	host_kill(&s->t.host);
	several_options(s, STORES);
	trial_attach(&s->t);
}

static void without_its_only_store_a_daemon_serves_and_takes_it_when_it_is_mounted(void **state)
{
	struct several *s = *state;
	char away[110], path[200], out[4096];

	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	several_options(s, 1);
	trial_attach(&s->t);
	put_all(s, 0, 40);
	assert_int_equal(TRIAL_KVCTL(&s->t, NULL, 0, "drain"), 0);
	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	trial_memory_gone(&s->t);
	snprintf(away, sizeof(away), "%s.away", s->dirs[0]);
	assert_int_equal(rename(s->dirs[0], away), 0);
	assert_int_equal(host_start(&s->t.host, NULL), 0);
	snprintf(path, sizeof(path), "spill store %s is missing: ", s->dirs[0]);
	assert_true(host_logged(&s->t.host, path, 0));
	TRIAL_KVCTL(&s->t, out, sizeof(out), "stats");
	assert_non_null(strstr(out, "DOWN"));
	assert_non_null(strstr(out, "make the directory"));
	assert_null(strstr(out, "page cache")); /* it does no I/O at all */
	assert_int_equal(rename(away, s->dirs[0]), 0); /* with the file of its namespace, which nobody knew */
	snprintf(path, sizeof(path), "spill store %s is back: ", s->dirs[0]);
	assert_true(host_logged(&s->t.host, path, 20000));
	trial_attach(&s->t);
	assert_int_equal(get_all(s, 40), 40);
	wire_sleep_ms(2500); /* it looks at its file now and then: it is at home there */
	put_all(s, 40, N);
	trial_reboot(&s->t);
	assert_int_equal(get_all(s, N), N);
}

/* Memory is kept, and in it a block whose parent lies in the store that is gone. */
static void what_hangs_below_a_store_that_is_missing_is_no_violation(void **state)
{
	struct several *s = *state;
	char away[110], path[200];

	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	several_options(s, 1);
	trial_attach(&s->t);
	for (unsigned k = 0; k < N; k++)
		assert_int_equal(
			trial_put(s->t.ns, &s->keys[k], k ? &s->keys[k - 1] : NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(TRIAL_KVCTL(&s->t, NULL, 0, "drain"), 0);
	assert_int_equal(trial_get(s->t.ns, &s->keys[N - 10], N - 10, TRIAL_BLOCK), 1);
	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	snprintf(away, sizeof(away), "%s.away", s->dirs[0]);
	assert_int_equal(rename(s->dirs[0], away), 0);
	assert_int_equal(host_start(&s->t.host, NULL), 0);
	assert_int_equal(TRIAL_KVCTL(&s->t, NULL, 0, "check"), 0);
	assert_int_equal(rename(away, s->dirs[0]), 0);
	snprintf(path, sizeof(path), "spill store %s is back: ", s->dirs[0]);
	assert_true(host_logged(&s->t.host, path, 20000));
	trial_attach(&s->t);
	assert_int_equal(get_all(s, N), N);
	assert_int_equal(TRIAL_KVCTL(&s->t, NULL, 0, "check"), 0);
}

/* A directory is a symbolic link here, where an operator has a mount point. */
static void where_the_file_system_of_a_store_is_gone_none_is_made_below(void **state)
{
	struct several *s = *state;
	char real[110], below[64] = "/dev/shm/kvp-test-below-XXXXXX", path[200], out[4096];
	struct stat a, b;

	assert_non_null(mkdtemp(below));
	assert_int_equal(stat(below, &a), 0);
	assert_int_equal(stat(s->dirs[0], &b), 0);
	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	snprintf(real, sizeof(real), "%s.real", s->dirs[0]);
	assert_int_equal(rename(s->dirs[0], real), 0);
	assert_int_equal(symlink(real, s->dirs[0]), 0);
	several_options(s, 1);
	trial_attach(&s->t);
	put_all(s, 0, 40);
	assert_int_equal(TRIAL_KVCTL(&s->t, NULL, 0, "drain"), 0);
	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	assert_int_equal(unlink(s->dirs[0]), 0);
	assert_int_equal(symlink(below, s->dirs[0]), 0);
	for (unsigned i = 0; i < 2 && a.st_dev != b.st_dev; i++) { /* what is not known now is not forgotten either */
		assert_int_equal(host_start(&s->t.host, NULL), 0);
		assert_true(host_logged(&s->t.host, "is its file system not mounted?", 0));
		TRIAL_KVCTL(&s->t, out, sizeof(out), "stats");
		assert_non_null(strstr(out, "DOWN"));
		snprintf(path, sizeof(path), "%s/kvpool.store", below);
		assert_int_equal(access(path, F_OK), -1);
		if (!i)
			assert_int_equal(host_stop(&s->t.host), 0);
	}
	assert_int_equal(unlink(s->dirs[0]), 0);
	assert_int_equal(symlink(real, s->dirs[0]), 0);
	if (a.st_dev == b.st_dev) /* one file system: then there is only this to see */
		assert_int_equal(host_start(&s->t.host, NULL), 0);
	else
		assert_true(host_logged(&s->t.host, " is back: ", 20000));
	trial_attach(&s->t);
	assert_int_equal(get_all(s, 40), 40);
	snprintf(path, sizeof(path), "rm -rf %s", below);
	assert_int_equal(system(path), 0);
	assert_int_equal(unlink(s->dirs[0]), 0);
	assert_int_equal(rename(real, s->dirs[0]), 0);
}

static void a_store_more_and_a_store_less_are_taken_at_the_next_start(void **state)
{
	struct several *s = *state;
	unsigned there;

	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	several_options(s, 2);
	trial_attach(&s->t);
	put_all(s, 0, N / 2);
	trial_reboot(&s->t);
	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	several_options(s, 3);
	trial_attach(&s->t);
	assert_int_equal(get_all(s, N / 2), N / 2);
	put_all(s, N / 2, N);
	trial_reboot(&s->t);
	assert_int_equal(get_all(s, N), N);
	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	trial_memory_gone(&s->t);
	several_options(s, 1);
	trial_attach(&s->t);
	there = get_all(s, N);
	assert_in_range(there, 20, N - 20);
}

/* A loop device over a file of 64 MiB in that directory, which goes with this process whatever becomes of it. Return: false: none can be had. */
static bool loop_made(const char *dir, const char *sector_bytes, char device[32])
{
	char command[300];
	FILE *out;

	snprintf(command, sizeof(command),
		"truncate -s 64M %s/disk && exec losetup -b %s -f --show %s/disk 2>/dev/null", dir, sector_bytes, dir);
	out = popen(command, "re");
	assert_non_null(out);
	if (!fgets(device, 32, out))
		device[0] = 0;
	pclose(out);
	device[strcspn(device, "\n")] = 0;
	if (device[0] != '/')
		return false;
	snprintf(command, sizeof(command), "losetup -d %s", device); /* when the last one closes it */
	return open(device, O_RDONLY | O_CLOEXEC) >= 0 && system(command) == 0;
}

static void is_read_whole(const struct several *s, const char *key_file, const char *device)
{
	char out[8192];

	assert_int_equal(
		key_file ? TRIAL_KVCTL(&s->t, out, sizeof(out), "store", "verify", "--key-file", key_file, device)
			 : TRIAL_KVCTL(&s->t, out, sizeof(out), "store", "verify", device),
		0);
	assert_non_null(strstr(out, "0 damaged"));
	assert_non_null(strstr(out, "120"));
}

/* @key_file: of an encrypted one, NULL: in plain */
static void a_raw_device_serves(struct several *s, const char *key_file)
{
	char device[32], larger[32], out[8192], says[32];
	const char *options[] = {"--pool", "2M", "--slab", "1M", "--free-percent", "0", "--heartbeat", "200", "--spill",
		device, "--namespace-dir", s->dirs[0], key_file ? "--spill-key-file" : NULL, key_file, NULL};
	const char *wrong[] = {"--spill", device, "--namespace-dir", "/nowhere/at/all", NULL};
	char smaller[40];

	if (geteuid() != 0 || !loop_made(s->t.spill, "512", device)) {
		print_message("skipped: no loop device can be had here\n");
		skip();
	}
	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	trial_memory_gone(&s->t);
	assert_int_equal(host_start(&s->t.host, wrong), -1001);
	assert_true(host_logged(&s->t.host, "namespace-dir /nowhere/at/all: No such file or directory", 0));
	wrong[3] = device;
	assert_int_equal(host_start(&s->t.host, wrong), -1001);
	assert_true(host_logged(&s->t.host, ": Not a directory", 0));
	assert_int_equal(host_start(&s->t.host, options), 0);
	trial_attach(&s->t);
	put_all(s, 0, N);
	assert_int_equal(get_all(s, N), N);
	assert_int_equal(store_says(s, 0, "capacity_bytes", says), 64 << 20);
	assert_string_equal(says, "up");
	trial_detach(&s->t);
	host_kill(&s->t.host);
	assert_int_equal(host_start(&s->t.host, NULL), 0);
	trial_attach(&s->t);
	assert_int_equal(get_all(s, N), N);
	trial_reboot(&s->t);
	assert_int_equal(get_all(s, N), N);
	wire_sleep_ms(2500); /* it looks at its device now and then: it is at home there */
	assert_int_equal(TRIAL_KVCTL(&s->t, out, sizeof(out), "stats"), 0);
	assert_null(strstr(out, "DOWN"));
	assert_int_equal(TRIAL_KVCTL(&s->t, out, sizeof(out), "store", "verify"), 0);
	assert_non_null(strstr(out, device));
	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	assert_int_equal(TRIAL_KVCTL(&s->t, out, sizeof(out), "store", "list", device), 0);
	assert_non_null(strstr(out, "120"));
	assert_int_equal(strstr(out, "encrypted, with key ") != NULL, key_file != NULL);
	is_read_whole(s, key_file, device);
	if (loop_made(s->t.spill, "4096", larger)) /* moved to where sectors are larger than its headers */
		is_read_whole(s, key_file, larger);
	assert_int_equal(host_start(&s->t.host, NULL), 0);
	trial_attach(&s->t);
	put_chains(s, N, 5 * N); /* beyond its first 16 MiB */
	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	snprintf(smaller, sizeof(smaller), "%s:16M", device); /* its segments do not fit that: it is begun anew */
	options[9] = smaller;
	assert_int_equal(host_start(&s->t.host, options), 0);
	trial_attach(&s->t);
	put_all(s, 0, 10);
	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	assert_int_equal(TRIAL_KVCTL(&s->t, out, sizeof(out), "store", "verify", device), 0);
	assert_null(strstr(out, "cannot be read")); /* what lies behind it is not its own */
	assert_int_equal(host_start(&s->t.host, NULL), 0);
	trial_attach(&s->t);
}

static void stores_of_512_and_of_4096_bytes_a_sector_serve_side_by_side(void **state)
{
	struct several *s = *state;
	char devices[2][32], out[8192], says[32];
	const char *options[] = {"--pool", "2M", "--slab", "1M", "--free-percent", "0", "--heartbeat", "200", "--spill",
		devices[0], "--spill", devices[1], "--namespace-dir", s->dirs[0], NULL};

	if (geteuid() != 0 || !loop_made(s->dirs[1], "512", devices[0]) || !loop_made(s->dirs[2], "4096", devices[1])) {
		print_message("skipped: no loop devices can be had here\n");
		skip();
	}
	trial_detach(&s->t);
	assert_int_equal(host_stop(&s->t.host), 0);
	trial_memory_gone(&s->t);
	assert_int_equal(host_start(&s->t.host, options), 0);
	trial_attach(&s->t);
	put_all(s, 0, N);
	assert_int_equal(get_all(s, N), N);
	for (unsigned i = 0; i < 2; i++)
		assert_true(store_says(s, i, "live_records", says) > N / 4);
	trial_detach(&s->t);
	host_kill(&s->t.host);
	assert_int_equal(host_start(&s->t.host, NULL), 0);
	trial_attach(&s->t);
	assert_int_equal(get_all(s, N), N);
	trial_reboot(&s->t);
	assert_int_equal(get_all(s, N), N);
	assert_int_equal(TRIAL_KVCTL(&s->t, out, sizeof(out), "store", "verify"), 0);
	assert_non_null(strstr(out, devices[0]));
	assert_non_null(strstr(out, devices[1]));
}

static void blocks_on_a_raw_device_come_back_after_a_kill_and_a_reboot_and_kvctl_reads_them(void **state)
{
	a_raw_device_serves(*state, NULL);
}

static void encrypted_blocks_on_a_raw_device_come_back_after_a_kill_and_a_reboot_and_kvctl_reads_them(void **state)
{
	struct several *s = *state;
	char path[160];
	FILE *file;

	snprintf(path, sizeof(path), "%s/key", s->dirs[1]);
	file = fopen(path, "we");
	assert_non_null(file);
	assert_int_equal(fwrite("0123456789abcdefghijklmnopqrstuv", 1, 32, file), 32);
	fclose(file);
	assert_int_equal(chmod(path, 0400), 0);
	a_raw_device_serves(s, path);
	unlink(path);
}

/* As one is left where the file system knows no fallocate(): it ends with what was written last. */
static void cut_behind_the_last_record(const char *dir)
{
	char path[160], bytes[4096];
	static const char none[4096];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/kvpool.store", dir);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	while (pread(fd, bytes, sizeof(bytes), st.st_size - 4096) == 4096 && !memcmp(bytes, none, 4096))
		st.st_size -= 4096;
	assert_int_equal(ftruncate(fd, st.st_size), 0);
	close(fd);
}

static void a_store_that_ends_with_its_last_record_is_verified_to_its_end(void **state)
{
	struct several *s = *state;
	char whole[8192], out[8192];

	put_all(s, 0, N);
	assert_int_equal(TRIAL_KVCTL(&s->t, NULL, 0, "drain"), 0);
	trial_detach(&s->t);
	host_kill(&s->t.host);
	for (unsigned i = 0; i < STORES; i++) {
		assert_int_equal(TRIAL_KVCTL(&s->t, whole, sizeof(whole), "store", "verify", s->dirs[i]), 0);
		assert_null(strstr(whole, ": 0 records"));
		cut_behind_the_last_record(s->dirs[i]);
		assert_int_equal(TRIAL_KVCTL(&s->t, out, sizeof(out), "store", "verify", s->dirs[i]), 0);
		assert_string_equal(out, whole);
	}
	assert_int_equal(host_start(&s->t.host, NULL), 0);
	trial_attach(&s->t);
	assert_int_equal(get_all(s, N), N);
}

#define SEVERAL(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SEVERAL(what_does_not_fit_is_spread_over_all_stores_and_comes_back_after_a_kill_and_a_reboot),
		SEVERAL(with_a_store_missing_the_rest_is_served_under_the_old_keys_whichever_it_is),
		SEVERAL(a_store_missing_at_the_start_joins_while_the_daemon_serves),
		SEVERAL(while_one_of_several_stores_hangs_nobody_waits_for_it),
		SEVERAL(without_its_only_store_a_daemon_serves_and_takes_it_when_it_is_mounted),
		SEVERAL(what_hangs_below_a_store_that_is_missing_is_no_violation),
		SEVERAL(where_the_file_system_of_a_store_is_gone_none_is_made_below),
		SEVERAL(a_store_more_and_a_store_less_are_taken_at_the_next_start),
		SEVERAL(a_store_that_ends_with_its_last_record_is_verified_to_its_end),
		SEVERAL(stores_of_512_and_of_4096_bytes_a_sector_serve_side_by_side),
		SEVERAL(blocks_on_a_raw_device_come_back_after_a_kill_and_a_reboot_and_kvctl_reads_them),
		SEVERAL(encrypted_blocks_on_a_raw_device_come_back_after_a_kill_and_a_reboot_and_kvctl_reads_them),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
