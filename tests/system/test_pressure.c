/*
 * test_pressure.c - what the control group says of memory, told by files of the test's own, and what the daemon does
 * about it
 *
 * kvpool-test: parallel
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire.h"

#define MIB (1024u * 1024)
#define GROUP "/sys/fs/cgroup/host/pool"
#define OLD "/sys/fs/cgroup/memory"

struct fixture {
	struct host host;
	char root[64];
};

/* A file of the made-up host, and the directories it needs. */
static void say(const struct fixture *f, const char *name, const char *format, uint64_t value)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s%s", f->root, name);
	for (char *at = path + strlen(f->root) + 1; (at = strchr(at, '/')); at++) {
		*at = 0;
		mkdir(path, 0755);
		*at = '/';
	}
	file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file, format, value);
	fclose(file);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	strcpy(f->root, "/tmp/kvpool-root-XXXXXX");
	assert_non_null(mkdtemp(f->root));
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	say(f, "/proc/self/cgroup", "0::/host/pool\n", 0);
	say(f, GROUP "/memory.max", "max\n", 0);
	say(f, GROUP "/memory.current", "%lu\n", 0);
	setenv("KVPOOL_ROOT", f->root, 1);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	static const char *const names[] = {"/proc/self/cgroup", "/proc/self", "/proc", GROUP "/memory.max",
		GROUP "/memory.high", GROUP "/memory.current", GROUP "/memory.stat", GROUP,
		"/sys/fs/cgroup/host/memory.max", "/sys/fs/cgroup/host/memory.current",
		"/sys/fs/cgroup/host/memory.stat", "/sys/fs/cgroup/host", OLD "/host/pool/memory.limit_in_bytes",
		OLD "/host/pool/memory.usage_in_bytes", OLD "/host/pool", OLD "/host/memory.limit_in_bytes",
		OLD "/host/memory.usage_in_bytes", OLD "/host/memory.stat", OLD "/host", OLD "/memory.limit_in_bytes",
		OLD, "/sys/fs/cgroup", "/sys/fs", "/sys", ""};
	struct fixture *f = *state;
	bool good = !f->host.pid || (host_alive(&f->host) && host_conserves(&f->host));
	char path[256];

	unsetenv("KVPOOL_ROOT");
	host_close(&f->host);
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", f->root, names[i]);
		if (rmdir(path) < 0)
			unlink(path);
	}
	free(f);
	return good ? 0 : -1;
}

/* 16 MiB in slabs of 1 MiB; a tenth of the limit is to stay free. */
static int start(struct fixture *f)
{
	return host_start(&f->host, (const char *[]){"--pool", "16M", "--slab", "1M", "--free-percent", "0", "--spill",
					    "off", "--cgroup-headroom", "10", NULL});
}

static uint64_t in_slabs(const struct fixture *f)
{
	return atomic_load(&f->host.stats->counters.slab_bytes_allocated);
}

static bool is_smaller(void *arg)
{
	return in_slabs(arg) < 16 * MIB;
}

static void memory_is_given_back_before_the_limit_bites_and_taken_again_when_there_is_room(void **state)
{
	struct fixture *f = *state;
	uint64_t low;

	say(f, GROUP "/memory.max", "%lu\n", 100 * MIB);
	say(f, GROUP "/memory.current", "%lu\n", 40 * MIB); /* 84 left, but for what the pool takes */
	assert_int_equal(start(f), 0);
	wire_sleep_ms(1200);
	assert_int_equal(in_slabs(f), 16 * MIB);
	say(f, GROUP "/memory.current", "%lu\n", 78 * MIB); /* some 6 left, 10 are to stay */
	assert_true(wire_until(is_smaller, f, 5000));
	wire_sleep_ms(700);
	low = in_slabs(f);
	assert_in_range(low, 8 * MIB, 13 * MIB); /* as much as lacks, at once */
	assert_non_null(strstr(f->host.stats->pressure_message, "of its limit of 104857600"));
	assert_int_equal(atomic_load(&f->host.stats->counters.given_back_bytes), 16 * MIB - low);
	wire_sleep_ms(2500);
	assert_int_equal(in_slabs(f), low); /* that was enough */
	say(f, GROUP "/memory.current", "%lu\n", 20 * MIB);
	for (unsigned i = 0; i < 400 && in_slabs(f) <= low; i++)
		wire_sleep_ms(50);
	assert_true(in_slabs(f) > low);
}

static void page_cache_in_the_group_is_no_reason(void **state)
{
	struct fixture *f = *state;

	say(f, GROUP "/memory.max", "%lu\n", 100 * MIB);
	say(f, GROUP "/memory.current", "%lu\n", 99 * MIB);
	say(f, GROUP "/memory.stat", "anon 1000\nfile %lu\nshmem 16777216\n", 90 * MIB);
	assert_int_equal(start(f), 0);
	wire_sleep_ms(1500);
	assert_int_equal(in_slabs(f), 16 * MIB);
}

static void a_soft_limit_counts_and_so_does_one_of_a_group_above(void **state)
{
	struct fixture *f = *state;

	say(f, GROUP "/memory.high", "%lu\n", 22 * MIB);
	say(f, "/sys/fs/cgroup/host/memory.max", "%lu\n", 200 * MIB);
	say(f, "/sys/fs/cgroup/host/memory.current", "%lu\n", 20 * MIB);
	say(f, GROUP "/memory.current", "%lu\n", 4 * MIB);
	assert_int_equal(start(f), 0);
	assert_true(wire_until(is_smaller, f, 5000));
	assert_non_null(strstr(f->host.stats->pressure_message, "/host/pool uses"));
	host_stop(&f->host);
	say(f, GROUP "/memory.high", "max\n", 0);
	say(f, "/sys/fs/cgroup/host/memory.current", "%lu\n", 195 * MIB);
	assert_int_equal(start(f), 0);
	assert_true(wire_until(is_smaller, f, 5000));
	assert_non_null(strstr(f->host.stats->pressure_message, "/host uses"));
}

/* B49, as the real kernel has it: tests/vm/guest, limit() */
static void pages_an_earlier_daemon_touched_count_though_the_group_is_not_charged_for_them(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(start(f), 0);
	host_kill(&f->host);
	say(f, GROUP "/memory.max", "%lu\n", 20 * MIB);
	say(f, GROUP "/memory.current", "%lu\n", 3 * MIB); /* what a new daemon has touched: the pool is not in it */
	say(f, GROUP "/memory.stat", "file 0\nshmem %lu\n", 0);
	assert_int_equal(start(f), 0);
	assert_true(wire_until(is_smaller, f, 5000));
}

static void a_pool_larger_than_the_limit_is_refused_with_both_numbers(void **state)
{
	struct fixture *f = *state;

	say(f, "/sys/fs/cgroup/host/memory.max", "%lu\n", 15 * MIB);
	assert_true(start(f) < 0);
	assert_true(
		host_logged(&f->host, "--pool, 16777216, is more than this cgroup's memory limit of 15728640", 1000));
}

static void where_cgroups_are_of_version_1_their_limit_counts_as_well(void **state)
{
	struct fixture *f = *state;

	say(f, "/proc/self/cgroup", "4:memory:/host/pool\n1:cpu:/\n0::/\n", 0);
	say(f, OLD "/host/pool/memory.limit_in_bytes", "9223372036854771712\n", 0); /* none */
	say(f, OLD "/host/pool/memory.usage_in_bytes", "%lu\n", 5 * MIB);
	say(f, OLD "/host/memory.limit_in_bytes", "%lu\n", 15 * MIB);
	assert_true(start(f) < 0);
	assert_true(host_logged(&f->host, "is more than this cgroup's memory limit of 15728640", 1000));
	say(f, OLD "/host/memory.limit_in_bytes", "%lu\n", 100 * MIB);
	say(f, OLD "/host/memory.usage_in_bytes", "%lu\n", 99 * MIB);
	say(f, OLD "/host/memory.stat", "cache 5\nshmem 5\ntotal_cache %lu\ntotal_shmem 16777216\n", 90 * MIB);
	assert_int_equal(start(f), 0); /* page cache is no reason */
	wire_sleep_ms(1500);
	assert_int_equal(in_slabs(f), 16 * MIB);
	say(f, OLD "/host/memory.stat", "total_cache %lu\ntotal_shmem 16777216\n", 16 * MIB);
	assert_true(wire_until(is_smaller, f, 5000));
	assert_non_null(strstr(f->host.stats->pressure_message, "/host uses"));
}

static void in_a_container_of_version_1_the_uppermost_group_is_its_own(void **state)
{
	struct fixture *f = *state;

	say(f, "/proc/self/cgroup", "4:memory:/docker/0123\n0::/\n", 0);
	say(f, OLD "/memory.limit_in_bytes", "%lu\n", 15 * MIB);
	assert_true(start(f) < 0);
	assert_true(host_logged(&f->host, "is more than this cgroup's memory limit of 15728640", 1000));
}

static void how_pressure_is_watched_is_said(void **state)
{
	struct fixture *f = *state;

	unsetenv("KVPOOL_ROOT"); /* the kernel's own file: a trigger, or where that is refused looking */
	assert_int_equal(host_start(&f->host, (const char *[]){"--pool", "2M", "--slab", "1M", "--spill", "off",
						      "--pressure", "90", NULL}),
		0);
	if (access("/proc/pressure/memory", R_OK) < 0)
		skip();
	assert_true(host_logged(&f->host, "memory pressure: /", 2000));
	if (host_logged(&f->host, "tells by a trigger", 0)) {
		assert_int_equal(f->host.stats->pressure_watch, KVP_PRESSURE_TRIGGER);
	} else {
		assert_true(host_logged(&f->host, "is looked at twice a second (a trigger is refused", 1000));
		assert_int_equal(f->host.stats->pressure_watch, KVP_PRESSURE_LOOKED_AT);
	}
}

static void a_pressure_file_that_cannot_be_read_is_said(void **state)
{
	struct fixture *f = *state;
	char path[128];

	snprintf(path, sizeof(path), "%s/nothing", f->root);
	assert_int_equal(host_start(&f->host, (const char *[]){"--pool", "2M", "--slab", "1M", "--spill", "off",
						      "--pressure", "90", "--pressure-file", path, NULL}),
		0);
	assert_true(host_logged(&f->host, "memory pressure cannot be watched", 2000));
	assert_int_equal(f->host.stats->pressure_watch, KVP_PRESSURE_UNREADABLE);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(memory_is_given_back_before_the_limit_bites_and_taken_again_when_there_is_room),
		TEST(page_cache_in_the_group_is_no_reason),
		TEST(a_soft_limit_counts_and_so_does_one_of_a_group_above),
		TEST(pages_an_earlier_daemon_touched_count_though_the_group_is_not_charged_for_them),
		TEST(a_pool_larger_than_the_limit_is_refused_with_both_numbers),
		TEST(where_cgroups_are_of_version_1_their_limit_counts_as_well),
		TEST(in_a_container_of_version_1_the_uppermost_group_is_its_own),
		TEST(how_pressure_is_watched_is_said),
		TEST(a_pressure_file_that_cannot_be_read_is_said),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
