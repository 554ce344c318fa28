/*
 * test_trials_refused.c - trials: the kernel or the host refuses what kvpoold would like to use
 *
 * B46, B51, B56, B57, B58.  What is refused is refused for the rest of this program, so the order of the cases matters:
 * each later filter says more than the ones before it.
 *
 * kvpool-test: timeout=120
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "trial.h"

#define N 60u /* blocks: twice what memory holds */

static struct trial *given(uid_t uid)
{
	struct trial *t = malloc(sizeof(*t));

	assert_non_null(t);
	trial_given(t, uid, "2M", "64M");
	return t;
}

/* There and back over memory, disk and a restart: all exact. */
static void serves(struct trial *t)
{
	trial_start(t);
	trial_attach(t);
	for (unsigned rebooted = 0; rebooted < 2; rebooted++) {
		for (uint64_t k = 0; k < N; k++) {
			struct kvp_key key = wire_key(k);

			if (!rebooted)
				assert_int_equal(trial_put(t->ns, &key, NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
		}
		for (uint64_t k = 0; k < N; k++) {
			struct kvp_key key = wire_key(k);

			assert_int_equal(trial_get(t->ns, &key, k, TRIAL_BLOCK), 1);
		}
		if (!rebooted)
			trial_reboot(t);
	}
}

static void stats_say(const struct trial *t, const char *engine)
{
	char stats[8192];

	assert_int_equal(TRIAL_KVCTL(t, stats, sizeof(stats), "stats"), 0);
	assert_non_null(strstr(stats, engine));
}

static void end(struct trial *t)
{
	assert_true(trial_end(t));
	free(t);
}

/* ---- B57 ---- */

static void under_a_small_limit_of_locked_memory(rlim_t limit)
{
	struct rlimit was, small = {limit, limit};
	struct trial *t, *second;

	if (geteuid() != 0) /* which may lock what it likes, and lends the others its right to set limits */
		skip();
	getrlimit(RLIMIT_MEMLOCK, &was);
	t = given(61001);
	second = given(61001);
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &small), 0);
	serves(t);
	serves(second);
	setrlimit(RLIMIT_MEMLOCK, &was);
	end(second);
	end(t);
}

static void with_64_kib_of_locked_memory_two_daemons_of_a_user_serve_exactly(void **state)
{
	(void)state;
	under_a_small_limit_of_locked_memory(64 << 10);
}

static void with_no_locked_memory_at_all_two_daemons_of_a_user_serve_exactly(void **state)
{
	(void)state;
	under_a_small_limit_of_locked_memory(0);
}

/* ---- B51 ---- */

static struct trial *given_locked(uid_t uid)
{
	struct trial *t = given(uid);

	trial_option(t, "--lock-memory", "yes");
	return t;
}

static void a_pool_that_may_not_be_locked_is_served_unlocked_with_a_warning(void **state)
{
	struct rlimit was, small = {64 << 10, 64 << 10};
	struct trial *t;

	(void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	print_message("skipped: with a sanitizer mlock() does nothing\n");
	skip();
#endif
	if (geteuid() != 0)
		skip();
	getrlimit(RLIMIT_MEMLOCK, &was);
	if (was.rlim_max < small.rlim_max) /* by the cases before, where root may not raise it again */
		small.rlim_cur = small.rlim_max = was.rlim_max;
	t = given_locked(61001);
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &small), 0);
	serves(t);
	setrlimit(RLIMIT_MEMLOCK, &was);
	assert_true(host_logged(&t->host, "lock-memory: cannot lock", 0));
	assert_true(host_logged(&t->host, "going on unlocked", 0));
	end(t);
}

static void a_pool_larger_than_memory_is_refused_before_it_serves_locked_or_not(void **state)
{
	static const char *const lock[] = {"no", "yes"};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct trial *t = given(geteuid());
		const char *options[] = {
			"--pool", "16T", "--slab", "4G", "--spill", "off", "--lock-memory", lock[i], NULL};

		assert_int_equal(host_start(&t->host, options), -1001);
		assert_true(host_logged(&t->host, "or give a smaller one", 0));
		end(t);
	}
}

/* ---- B58 ---- */

static void bad_socket(const char *path, int status, const char *said)
{
	struct trial *t = given(geteuid());
	const char *options[] = {"--socket", path, "--pool", "2M", "--slab", "1M", "--spill", "off", NULL};

	assert_int_equal(host_start(&t->host, options), -status);
	assert_true(host_logged(&t->host, said, 0));
	end(t);
}

static void a_socket_that_nobody_could_find_is_refused_with_the_reason(void **state)
{
	char path[200];

	(void)state;
	memset(path, 'a', sizeof(path));
	memcpy(path, "/tmp/", 5);
	path[120] = 0;
	bad_socket(path, 1002, "120 bytes long, at most 107");
	bad_socket("/tmp/kvpool-test-no-such-dir/sock", 1001, "/tmp/kvpool-test-no-such-dir");
	bad_socket("/proc/sock", 1001, "/proc/sock");
}

static void a_relative_socket_is_refused(void **state)
{
	(void)state;
	bad_socket("kvpool-test-relative/sock", 1002, "kvpool-test-relative/sock");
}

static void an_engine_is_told_about_a_socket_path_too_long(void **state)
{
	char path[200];
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = path};
	struct kvp_client *client = NULL;

	(void)state;
	memset(path, 'a', sizeof(path));
	path[0] = '/';
	path[120] = 0;
	assert_int_equal(kvp_open(&opts, &client), -KVP_EINVAL);
	assert_true(strlen(kvp_error(NULL)) > 10);
}

/* ---- B56 ---- */

static void refuse(int call, int err)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};

	assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog), 0);
}

static void serves_with_threads(void)
{
	struct trial *t = given(geteuid());

	serves(t);
	stats_say(t, "threads");
	end(t);
}

static void where_registering_with_io_uring_is_refused_all_is_exact(void **state)
{
	struct trial *t = given(geteuid());

	(void)state;
	refuse(SYS_io_uring_register, EPERM);
	serves(t);
	end(t);
}

static void where_entering_io_uring_is_refused_threads_do_the_same(void **state)
{
	(void)state;
	refuse(SYS_io_uring_enter, EPERM);
	serves_with_threads();
}

static void where_io_uring_is_not_permitted_threads_do_the_same(void **state)
{
	(void)state;
	refuse(SYS_io_uring_setup, EPERM);
	serves_with_threads();
}

static void where_there_is_no_io_uring_threads_do_the_same(void **state)
{
	(void)state;
	refuse(SYS_io_uring_setup, ENOSYS);
	serves_with_threads();
}

static void where_io_uring_is_asked_for_and_refused_the_start_says_so_or_threads_serve(void **state)
{
	struct trial *t = given(geteuid());
	const char *options[] = {"--pool", "2M", "--slab", "1M", "--io", "uring", "--spill", t->spill_option, NULL};
	int r = host_start(&t->host, options);

	(void)state;
	assert_true(r == 0 || r == -1001);
	assert_true(host_logged(&t->host, "io_uring", 0));
	end(t);
}

/* B46 has this of memory policy: a default container refuses it. */
static void where_memory_policy_is_refused_blocks_are_served_unbound(void **state)
{
	static const int calls[] = {SYS_mbind, SYS_set_mempolicy, SYS_get_mempolicy, SYS_move_pages};
	static const int errors[] = {EPERM, ENOSYS};

	(void)state;
	for (unsigned e = 0; e < 2; e++) {
		struct trial *t = given(geteuid());

		for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
			refuse(calls[i], errors[e]);
		serves(t);
		end(t);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(with_64_kib_of_locked_memory_two_daemons_of_a_user_serve_exactly),
		cmocka_unit_test(with_no_locked_memory_at_all_two_daemons_of_a_user_serve_exactly),
		cmocka_unit_test(a_pool_that_may_not_be_locked_is_served_unlocked_with_a_warning),
		cmocka_unit_test(a_pool_larger_than_memory_is_refused_before_it_serves_locked_or_not),
		cmocka_unit_test(a_socket_that_nobody_could_find_is_refused_with_the_reason),
		cmocka_unit_test(a_relative_socket_is_refused),
		cmocka_unit_test(an_engine_is_told_about_a_socket_path_too_long),
		cmocka_unit_test(where_registering_with_io_uring_is_refused_all_is_exact),
		cmocka_unit_test(where_entering_io_uring_is_refused_threads_do_the_same),
		cmocka_unit_test(where_io_uring_is_not_permitted_threads_do_the_same),
		cmocka_unit_test(where_there_is_no_io_uring_threads_do_the_same),
		cmocka_unit_test(where_io_uring_is_asked_for_and_refused_the_start_says_so_or_threads_serve),
		cmocka_unit_test(where_memory_policy_is_refused_blocks_are_served_unbound),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
