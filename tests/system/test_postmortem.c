/*
 * test_postmortem.c - after a daemon's end an operator finds how it ended, where, and what it had in hand
 *
 * kvpool-test: parallel timeout=120
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define PAGE 16384
#define SECRET "these are bytes of a block, and nobody's but its readers'"

static int setup(void **state)
{
	return trial_setup(state, "4M", NULL);
}

static void ends_by(struct trial *t, int sig)
{
	int status = 0;

	kill(t->host.pid, sig);
	waitpid(t->host.pid, &status, 0);
	t->host.pid = 0;
	assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : 0, sig);
}

static void post_mortem(const struct trial *t, char page[PAGE])
{
	assert_int_equal(TRIAL_KVCTL(t, page, PAGE, "stats", "--post-mortem"), 0);
}

static void says(const char *page, const char *text)
{
	if (!strstr(page, text))
		fail_msg("\"%s\" is not said in:\n%s", text, page);
}

/* A sanitizer takes the signal, and tells more. */
static void skip_in_a_sanitizer(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	printf("skipped: the sanitizer handles crashes\n");
	skip();
#endif
}

static void a_crash_is_told_with_signal_place_and_build_id_also_when_the_next_daemon_serves(void **state)
{
	struct trial *t = *state;
	struct kvp_key key = wire_key(1);
	char page[PAGE], line[64];

	skip_in_a_sanitizer();
	trial_attach(t);
	assert_int_equal(trial_put(t->ns, &key, NULL, 1, TRIAL_BLOCK), KVP_PUB_STORED);
	snprintf(line, sizeof(line), "of pid %d at 20", (int)t->host.pid);
	ends_by(t, SIGSEGV);
	post_mortem(t, page);
	says(page, "it crashed");
	says(page, "crash   signal 11 (Segmentation fault)");
	says(page, line);
	says(page, "build id ");
	assert_null(strstr(page, "build id unknown"));
	says(page, "addr2line -f -i -e kvpoold");
	says(page, "0x"); /* a place in the program: the serving loop, at least */
	says(page, "kept    1 blocks in memory");
	trial_start(t);
	assert_true(host_logged(&t->host, "crashed by signal 11", 0));
	post_mortem(t, page);
	says(page, "it lives");
	says(page, "crash   signal 11");
	assert_int_equal(trial_get(t->ns, &key, 1, TRIAL_BLOCK), 1);
}

static void a_hung_loop_that_the_watchdog_aborts_is_told_by_where_it_stood(void **state)
{
	struct trial *t = *state;
	char page[PAGE];

	skip_in_a_sanitizer();
	ends_by(t, SIGABRT);
	post_mortem(t, page);
	says(page, "crash   signal 6 (Aborted)");
	trial_start(t);
}

static void of_a_killed_one_it_is_said_that_it_was_killed(void **state)
{
	struct trial *t = *state;
	char page[PAGE];

	ends_by(t, SIGKILL);
	post_mortem(t, page);
	says(page, "it was killed");
	says(page, "crash   none was recorded");
	trial_start(t);
	assert_true(host_logged(&t->host, "was killed: by whom the kernel's log may tell", 0));
}

static void who_stopped_in_order_did_not_crash(void **state)
{
	struct trial *t = *state;
	char page[PAGE];

	assert_int_equal(host_stop(&t->host), 0);
	post_mortem(t, page);
	says(page, "it stopped in order");
	trial_start(t);
	assert_false(host_logged(&t->host, "the last kvpoold", 0));
}

/* Does any file below @dir hold these bytes? */
static bool found_in(const char *dir, const void *bytes, size_t n)
{
	char command[512], hex[3 * 64 + 1] = "";

	for (size_t i = 0; i < n && i < 48; i++)
		snprintf(hex + 4 * i, 5, "\\x%02x", ((const uint8_t *)bytes)[i]);
	snprintf(command, sizeof(command), "LC_ALL=C grep -rqaP '%s' %s", hex, dir);
	return system(command) == 0;
}

static void a_support_bundle_has_state_and_surroundings_and_no_block_key_or_secret(void **state)
{
	struct trial *t = *state;
	struct kvp_key key = wire_key(77);
	struct kvp_publish_item item = {.key = key, .used_tokens = TRIAL_TOKENS};
	struct kvp_block_ref block;
	char file[128], dir[128], command[1024], page[PAGE];
	uint8_t result = 0;
	struct stat st;

	trial_attach(t);
	assert_int_equal(kvp_reserve(t->ns, 1, 0, kvp_deadline_ms(5000), &block), 1);
	strcpy(block.data, SECRET);
	item.block = &block;
	kvp_publish(t->ns, &item, 1, &result);
	assert_int_equal(result, KVP_PUB_STORED);
	snprintf(file, sizeof(file), "%s/bundle.tgz", t->host.dir);
	snprintf(dir, sizeof(dir), "%s/opened", t->host.dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	assert_int_equal(TRIAL_KVCTL(t, page, sizeof(page), "support-bundle", "--output", file), 0);
	says(page, file);
	assert_int_equal(stat(file, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	snprintf(command, sizeof(command),
		"tar -xzf %s -C %s --strip-components=1 && cd %s && grep -q '^POST MORTEM' post-mortem.txt && "
		"grep -q violations check.txt && grep -q '\"counters\"' stats.json && test -s file-proc-meminfo.txt",
		file, dir, dir);
	assert_int_equal(system(command), 0);
	assert_true(found_in(dir, "kvpool", 6)); /* the search itself finds what is there */
	assert_false(found_in(dir, SECRET, 24));
	assert_false(found_in(dir, &key, sizeof(key)));
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	assert_int_equal(system(command), 0);
}

#define TRIAL(test) cmocka_unit_test_setup_teardown(test, setup, trial_teardown)

static unsigned remains_in(const char *dir)
{
	DIR *at = opendir(dir);
	const struct dirent *entry;
	unsigned n = 0;

	assert_non_null(at);
	while ((entry = readdir(at)))
		n += strstr(entry->d_name, "bundle") != NULL;
	closedir(at);
	return n;
}

static void a_support_bundle_that_cannot_be_written_says_so_and_leaves_what_was_there(void **state)
{
	struct trial *t = *state;
	const char *path = getenv("PATH"), *tmp = getenv("TMPDIR");
	char file[160], page[4096];
	struct stat st;
	FILE *mine;

	setenv("TMPDIR", t->host.dir, 1);
	snprintf(file, sizeof(file), "%s/mine.tgz", t->host.dir);
	mine = fopen(file, "we");
	assert_true(mine && fputs("mine", mine) >= 0 && fclose(mine) == 0);
	assert_int_equal(TRIAL_KVCTL(t, page, sizeof(page), "support-bundle", "--output", file), 1);
	assert_non_null(strstr(page, "mine.tgz: it is there already: name another --output"));
	assert_true(stat(file, &st) == 0 && st.st_size == 4);
	assert_int_equal(TRIAL_KVCTL(t, page, sizeof(page), "support-bundle", "--output", "/nowhere/at/all"), 1);
	assert_non_null(strstr(page, "/nowhere/at/all: No such file or directory: name another --output"));
	setenv("PATH", "/nowhere", 1); /* no tar either */
	snprintf(file, sizeof(file), "%s/other.tgz", t->host.dir);
	assert_int_equal(TRIAL_KVCTL(t, page, sizeof(page), "support-bundle", "--output", file), 1);
	setenv("PATH", path, 1);
	if (tmp)
		setenv("TMPDIR", tmp, 1);
	else
		unsetenv("TMPDIR");
	assert_non_null(strstr(page, "tar cannot write"));
	assert_int_equal(access(file, F_OK), -1);
	assert_int_equal(remains_in(t->host.dir), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TRIAL(a_crash_is_told_with_signal_place_and_build_id_also_when_the_next_daemon_serves),
		TRIAL(a_hung_loop_that_the_watchdog_aborts_is_told_by_where_it_stood),
		TRIAL(of_a_killed_one_it_is_said_that_it_was_killed),
		TRIAL(who_stopped_in_order_did_not_crash),
		TRIAL(a_support_bundle_has_state_and_surroundings_and_no_block_key_or_secret),
		TRIAL(a_support_bundle_that_cannot_be_written_says_so_and_leaves_what_was_there),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
