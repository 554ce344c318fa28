/* test_kvctl_bench.c - kvctl bench --self: rows as others script against them, and nothing left behind.  No times are
   judged. kvpool-test: timeout=300 */
#include "test_kvctl_fixture.h"

#include <math.h>
#include <sched.h>
#include <sys/mount.h>

static int outputs_setup(void **state)
{
	struct fake *f = calloc(1, sizeof(*f));

	f->out = malloc(FAKE_OUTPUT);
	f->err = malloc(FAKE_OUTPUT);
	*state = f;
	return 0;
}

static int outputs_teardown(void **state)
{
	struct fake *f = *state;

	free(f->out);
	free(f->err);
	free(f);
	return 0;
}

static bool kvpoold_is_there(void)
{
	char path[PATH_MAX + 64], *dir;

	snprintf(path, sizeof(path), "%s", kvctl_path());
	dir = dirname(path);
	strcat(dir, "/kvpoold");
	return access(dir, X_OK) == 0;
}

#define need_kvpoold() \
	do { \
		if (!kvpoold_is_there()) { \
			print_message("skipped: no kvpoold beside kvctl\n"); \
			skip(); \
		} \
	} while (0)

/* Neither its pool nor a directory of it. */
static void assert_nothing_left(pid_t pid)
{
	char path[64];
	DIR *dir;
	struct dirent *entry;

	snprintf(path, sizeof(path), "/dev/shm/kvpool.bench-%d", (int)pid);
	assert_int_not_equal(access(path, F_OK), 0);
	dir = opendir("/proc");
	while ((entry = readdir(dir))) {
		char command[512] = "";
		int fd;

		snprintf(path, sizeof(path), "/proc/%.20s/cmdline", entry->d_name);
		fd = open(path, O_RDONLY);
		if (fd < 0)
			continue;
		if (read(fd, command, sizeof(command) - 1) > 0 && !strcmp(command, "kvpoold"))
			for (char *at = command; at < command + sizeof(command) - 1; at += strlen(at) + 1) {
				snprintf(path, sizeof(path), "bench-%d", (int)pid);
				assert_string_not_equal(at, path);
			}
		close(fd);
	}
	closedir(dir);
}

static void rows_have_the_form_others_script_against(void **state)
{
	struct fake *f = *state;
	bool missed = false;
	json_t *json, *row;
	size_t i;
	int code;

	need_kvpoold();
	code = run(f, "bench", "publish", "--self", "--json");
	if (code > 1)
		fail_msg("exit %d: %s", code, f->err);
	json = parsed(f);
	assert_true(json_is_array(json) && json_array_size(json) >= 4);
	json_array_foreach(json, i, row)
	{
		json_t *ok = json_object_get(row, "ok"), *ratio = json_object_get(row, "ratio");

		assert_int_equal(json_object_size(row), 7);
		assert_true(json_is_string(json_object_get(row, "name")));
		assert_true(json_is_real(json_object_get(row, "value")));
		assert_true(json_is_string(json_object_get(row, "unit")));
		assert_true(json_is_boolean(ok) || json_is_null(ok));
		if (json_is_real(ratio))
			assert_true(json_real_value(ratio) * json_real_value(json_object_get(row, "yardstick_value")) <=
				    json_real_value(json_object_get(row, "value")) * 1.001);
		missed = missed || json_is_false(ok);
	}
	assert_int_equal(code, missed);
	json_decref(json);
	assert_nothing_left(f->pid);
}

static void attention_over_the_pool_is_that_over_private_memory(void **state)
{
	struct fake *f = *state;
	int code;

	need_kvpoold();
	code = run(f, "bench", "attn", "--self");
	if (code != 0 &&
		!(code == 1 && strstr(f->out, "MISSED"))) /* a loaded machine, or one without vectors, may miss it */
		fail_msg("%s%s", f->out, f->err);
	assert_says(f->out, "decode step over 32768 tokens in the pool");
	assert_says(f->out, "four streams");
	assert_nothing_left(f->pid);
}

/* Made-up keys, always the same: what is picked is better than the latest, and there is little of it. */
static void an_eighth_of_the_blocks_is_nearly_all_of_attention(void **state)
{
	struct fake *f = *state;

	need_kvpoold();
	if (run(f, "bench", "sparse", "--self") != 0)
		fail_msg("%s%s", f->out, f->err);
	assert_says(f->out, "blocks restored");
	assert_says(f->out, "relative L2 error against all blocks");
	assert_null(strstr(f->out, "MISSED"));
	assert_nothing_left(f->pid);
}

/* PATH with a fio that always tells the same and notes what it was asked for, and beside whom; or with none. */
static void given_fio(const char *answer)
{
	char dir[] = "/var/tmp/kvt-fio-XXXXXX", path[64], both[128];
	FILE *script;

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/fio", dir);
	if (answer) {
		script = fopen(path, "w");
		assert_non_null(script);
		fprintf(script,
			"#!/bin/sh\necho \"$*\" >>%s/asked\n"
			"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -ao 'kvpoold --socket.*' >>%s/asked\n"
			"echo 'fio: a word before'\necho '%s'\n",
			dir, dir, answer);
		fclose(script);
		assert_int_equal(chmod(path, 0700), 0);
	}
	snprintf(both, sizeof(both), "%s:%s", dir, answer ? "/usr/bin:/bin" : "/nowhere");
	setenv("PATH", both, 1);
}

static void fio_taken_away(void)
{
	char dir[64], path[80];

	snprintf(dir, sizeof(dir), "%.*s", (int)strcspn(getenv("PATH"), ":"), getenv("PATH"));
	snprintf(path, sizeof(path), "%s/fio", dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/asked", dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/kvbench-ring", dir);
	unlink(path);
	rmdir(dir);
	setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
}

/* Where fio was given too, for where kvctl has none beside it. */
static void given_ring(void)
{
	char path[80];
	FILE *script;

	snprintf(path, sizeof(path), "%.*s/kvbench-ring", (int)strcspn(getenv("PATH"), ":"), getenv("PATH"));
	script = fopen(path, "w");
	assert_non_null(script);
	fprintf(script, "#!/bin/sh\necho 'ns 20000'\n");
	fclose(script);
	assert_int_equal(chmod(path, 0700), 0);
}

static void spill_stands_beside_fio_at_each_size(void **state)
{
	struct fake *f = *state;
	unsigned n = 0, n_ring = 0;
	json_t *rows;

	need_kvpoold();
	/* 100 MB in 100 ms, and twice as long with the flush */
	given_fio(
		"{\"jobs\": [{\"job_runtime\": 200, \"read\": {\"runtime\": 100, \"io_bytes\": 100000000, \"clat_ns\": "
		"{\"percentile\": {\"99.000000\": 5000}}}, \"write\": {\"runtime\": 100, \"io_bytes\": 100000000}}]}");
	given_ring();
	assert_in_range(run(f, "bench", "spill", "--self", "--json", "--pairs", "1", "--depth", "8"), 0, 1);
	fio_taken_away();
	rows = json_loads(f->out, 0, NULL);
	assert_non_null(rows);
	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *row = json_array_get(rows, i);
		const char *name = json_string_value(json_object_get(row, "name"));
		double fio = json_number_value(json_object_get(row, "yardstick_value"));
		unsigned kib = 0;

		if (!strncmp(name, "a bare ring: ", 13)) { /* what of it is the memory's: 64 and 256 KiB */
			assert_true(json_number_value(json_object_get(row, "value")) > 0);
			assert_true(json_is_null(json_object_get(row, "ok")));
			n_ring++;
		}
		if (sscanf(name, "spill %u KiB x 8", &kib) == 1)
			assert_true(fabs(fio - kib * 1024 / 500.) < 0.001); /* us at 500 MB/s */
		else if (sscanf(name, "restore %u KiB x 8", &kib) == 1)
			assert_true(fabs(fio - kib * 1024 / 1000.) < 0.001);
		else
			continue;
		assert_true(json_number_value(json_object_get(row, "value")) > 0);
		assert_true(json_is_boolean(json_object_get(row, "ok"))); /* a band of nothing: it is claimed */
		n++;
	}
	assert_int_equal(n, 8);
	assert_int_equal(n_ring, 4);
	json_decref(rows);
}

/* A limit gives what it allows by the tenth of a second, and a read of anybody's before a pass gives it more at
   once. */
static void passes_of_spill_differ_over_a_step_of_a_limit_and_nothing_scrubs_beside(void **state)
{
	uint64_t least = UINT64_MAX, most = 0;
	struct fake *f = *state;
	bool scrubs = true;
	char path[80], line[16384];
	FILE *asked;

	need_kvpoold();
	given_fio("{\"jobs\": [{\"job_runtime\": 200, \"read\": {\"runtime\": 100, \"io_bytes\": 100000000}, "
		  "\"write\": {\"runtime\": 100, \"io_bytes\": 100000000}}]}");
	assert_in_range(run(f, "bench", "spill", "--self", "--json", "--pairs", "2", "--depth", "8"), 0, 1);
	snprintf(path, sizeof(path), "%.*s/asked", (int)strcspn(getenv("PATH"), ":"), getenv("PATH"));
	asked = fopen(path, "r");
	assert_non_null(asked);
	while (fgets(line, sizeof(line), asked)) {
		const char *size = strstr(line, "--size=");

		if (strstr(line, "--name bench-") && strstr(line, "--spill-scrub 0 "))
			scrubs = false;
		if (strncmp(line, "--ioengine", 10) || !size)
			continue;
		least = strtoull(size + 7, NULL, 10) < least ? strtoull(size + 7, NULL, 10) : least;
		most = strtoull(size + 7, NULL, 10) > most ? strtoull(size + 7, NULL, 10) : most;
	}
	fclose(asked);
	fio_taken_away();
	assert_false(scrubs);
	assert_int_equal(most - least, 48 << 20); /* two rounds: half a step between them */
}

static void without_fio_it_is_said_and_no_yardstick_made_up(void **state)
{
	struct fake *f = *state;
	json_t *rows;

	need_kvpoold();
	given_fio(NULL);
	assert_in_range(run(f, "bench", "spill", "--self", "--json", "--pairs", "1", "--depth", "8"), 0, 1);
	fio_taken_away();
	assert_says(f->err, "fio is not installed");
	rows = json_loads(f->out, 0, NULL);
	assert_non_null(rows);
	assert_true(json_array_size(rows) >= 8);
	assert_true(json_is_null(json_object_get(json_array_get(rows, 0), "yardstick")));
	assert_true(json_is_null(json_object_get(json_array_get(rows, 0), "ok")));
	json_decref(rows);
}

static void starts_stand_beside_plain_memory_and_every_record_is_found(void **state)
{
	static const char *const names[] = {"start with a new pool of 64 MiB", "populate a GiB of the pool",
		"the daemon's own memory, a block, in memory and in the store",
		"the daemon's own memory, a block, in the store alone",
		"restart to the first hit, 3000 blocks in memory", "start to the first hit, 3000 records in the store"};
	struct fake *f = *state;
	json_t *rows;

	need_kvpoold();
	assert_int_equal(run(f, "bench", "start"), 2); /* no daemon of others is stopped */
	assert_in_range(run(f, "bench", "start", "--self", "--json", "--records", "3000"), 0, 1);
	rows = json_loads(f->out, 0, NULL);
	assert_non_null(rows);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const json_t *row = json_array_get(rows, i);
		const char *name = json_string_value(json_object_get(row, "name"));

		if (strncmp(name, names[i], strlen(names[i])))
			fail_msg("%s", name);
		assert_true(json_number_value(json_object_get(row, "value")) > 0);
	}
	json_decref(rows);
	assert_nothing_left(f->pid);
}

static void an_ordinary_user_may_measure_too(void **state)
{
	const char *path = kvctl_path(); /* while it can be found: other users may not get there */
	pid_t pid;
	int status;

	(void)state;
	need_kvpoold();
	if (geteuid() != 0) {
		print_message("skipped: cannot change uid; the other cases are an ordinary user's\n");
		skip();
	}
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		unsetenv("TMPDIR"); /* it is root's */
		dup2(null, 1);
		if (setgid(61001) || setuid(61001))
			_exit(99);
		if (access(path, X_OK) < 0)
			_exit(77);
		execl(path, "kvctl", "bench", "publish", "--self", (char *)NULL);
		_exit(98);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		print_message("skipped: other users cannot reach %s\n", path);
		skip();
	}
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1); /* 1: a target missed */
	assert_nothing_left(pid);
}

static void interrupted(const char *what)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		dup2(null, 1);
		dup2(null, 2);
		execl(kvctl_path(), "kvctl", "bench", what, "--self", (char *)NULL);
		_exit(127);
	}
	usleep(700000);
	kill(pid, SIGINT);
	assert_true(waitpid(pid, &status, 0) == pid);
	assert_true(WIFEXITED(status));
	assert_nothing_left(pid);
}

static void an_interrupted_run_leaves_nothing(void **state)
{
	(void)state;
	need_kvpoold();
	interrupted("publish");
	interrupted("start");
}

/* With a /dev/shm of 16 MiB of its own. */
static void a_daemon_that_does_not_start_is_told_with_its_reason(void **state)
{
	int ends[2], status;
	char text[4096];
	size_t n = 0;
	ssize_t r;
	pid_t pid;

	(void)state;
	need_kvpoold();
	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDERR_FILENO);
		if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
			mount("none", "/dev/shm", "tmpfs", 0, "size=16M") < 0)
			_exit(77);
		execl(kvctl_path(), "kvctl", "bench", "publish", "--self", (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	while ((r = read(ends[0], text + n, sizeof(text) - 1 - n)) > 0)
		n += (size_t)r;
	text[n] = 0;
	close(ends[0]);
	assert_true(waitpid(pid, &status, 0) == pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		print_message("skipped: no mount namespace\n");
		skip();
	}
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	assert_says(text, "/dev/shm has");
	assert_says(text, "--pool needs");
}

static void wrong_words_are_refused(void **state)
{
	struct fake *f = *state;

	assert_int_equal(run(f, "bench"), 2);
	assert_says(f->err, "pin, publish, share, spill, start, attn, sparse");
	assert_int_equal(run(f, "bench", "speed"), 2);
	assert_int_equal(run(f, "bench", "pin", "--socket", "/nowhere/at/all"), 4);
}

#define test(name) cmocka_unit_test_setup_teardown(name, outputs_setup, outputs_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(rows_have_the_form_others_script_against),
		test(attention_over_the_pool_is_that_over_private_memory),
		test(an_eighth_of_the_blocks_is_nearly_all_of_attention),
		test(spill_stands_beside_fio_at_each_size),
		test(passes_of_spill_differ_over_a_step_of_a_limit_and_nothing_scrubs_beside),
		test(without_fio_it_is_said_and_no_yardstick_made_up),
		test(starts_stand_beside_plain_memory_and_every_record_is_found),
		test(an_ordinary_user_may_measure_too),
		test(an_interrupted_run_leaves_nothing),
		test(a_daemon_that_does_not_start_is_told_with_its_reason),
		test(wrong_words_are_refused),
	};

	return cmocka_run_group_tests_name("kvctl bench", tests, NULL, NULL);
}
