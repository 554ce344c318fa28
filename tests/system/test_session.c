/*
 * test_session.c - a session is its process's for as long as that lives, however often the daemon changes
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define RESTARTS 48u

static int setup(void **state)
{
	if (trial_setup(state, "4M", NULL) < 0)
		return -1;
	trial_attach(*state);
	return 0;
}

struct watch {
	pid_t pid;
	_Atomic uint64_t looks, free; /* times the lock was looked at, and was nobody's */
	_Atomic bool stop;
};

/* In a process of its own: ask the kernel, as the daemon does, as fast as can be. */
static void watch_lock(struct watch *watch, const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (fd >= 0 && !atomic_load(&watch->stop)) {
		struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

		if (fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK)
			atomic_fetch_add(&watch->free, 1);
		atomic_fetch_add(&watch->looks, 1);
	}
	_exit(fd < 0);
}

static struct watch *watch_begin(const struct trial *t)
{
	struct watch *watch = mmap(NULL, sizeof(*watch), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char pattern[160];
	glob_t found;
	pid_t pid;

	assert_ptr_not_equal(watch, MAP_FAILED);
	host_object(&t->host, pattern, "sess-*");
	assert_int_equal(glob(pattern, 0, NULL, &found), 0);
	assert_int_equal(found.gl_pathc, 1);
	pid = fork();
	if (!pid)
		watch_lock(watch, found.gl_pathv[0]);
	watch->pid = pid;
	globfree(&found);
	while (!atomic_load(&watch->looks))
		usleep(100);
	return watch;
}

static void watch_end(struct watch *watch)
{
	int status;

	atomic_store(&watch->stop, true);
	assert_int_equal(waitpid(watch->pid, &status, 0), watch->pid);
	assert_int_equal(status, 0);
}

static unsigned n_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void killed_and_attached_again(struct trial *t)
{
	uint64_t epoch, now = 0;

	kvp_state(t->client, &epoch);
	host_kill(&t->host);
	trial_start(t);
	for (unsigned ms = 0; ms < 60000 && (kvp_state(t->client, &now) != KVP_ATTACHED || now == epoch); ms++)
		usleep(1000);
	assert_int_equal(kvp_state(t->client, &now), KVP_ATTACHED);
	assert_int_not_equal(now, epoch);
}

static struct kvp_ns *copied_ns(const struct trial *t)
{
	struct kvp_desc desc;
	struct kvp_ns_opts opts = {
		.size = sizeof(opts), .name = "copied", .desc = &desc, .owner_uid = KVP_UID_SELF, .mode = 0666};
	struct kvp_ns *ns = NULL;

	trial_desc(&desc);
	assert_int_equal(kvp_ns_open(t->client, &opts, &ns), 0);
	return ns;
}

static void staging_areas_of_daemons_that_are_gone_are_not_kept_mapped(void **state)
{
	struct trial *t = *state;
	struct kvp_ns *ns = copied_ns(t);

	for (uint64_t i = 0; i < 12; i++) {
		struct kvp_key key = wire_key(i);

		assert_int_equal(trial_put(ns, &key, NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
		killed_and_attached_again(t);
	}
	for (unsigned ms = 0; ms < 20000 && wire_n_mapped("stage-") > 1; ms += 10)
		usleep(10000);
	assert_true(wire_n_mapped("stage-") <= 1);
	for (uint64_t i = 0; i < 12; i++) {
		struct kvp_key key = wire_key(i);

		assert_int_equal(trial_get(ns, &key, i, TRIAL_BLOCK), 1);
	}
	kvp_ns_close(ns);
}

/* A daemon that starts while the lock is free takes the process for dead: what it holds, and what it writes, for free room. */
static void its_lock_is_held_without_a_gap_over_any_number_of_restarts(void **state)
{
	struct trial *t = *state;
	struct kvp_key key = wire_key(1);
	struct watch *watch = watch_begin(t);
	struct kvp_view view;
	unsigned n = 0;

	assert_int_equal(trial_put(t->ns, &key, NULL, 1, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(kvp_acquire(t->ns, &key, 1, 0, kvp_deadline_ms(10000), &view), 1);
	for (unsigned i = 0; i < RESTARTS; i++) {
		killed_and_attached_again(t);
		n = i ? n : n_descriptors();
		assert_int_equal(atomic_load(&watch->free), 0);
	}
	assert_true(n_descriptors() <= n);
	assert_int_equal(kvp_release(&view, 1), 0);
	watch_end(watch);
	assert_int_equal(atomic_load(&watch->free), 0);
	munmap(watch, sizeof(*watch));
}

/* Readers that have not come back yet: nobody has joined the namespace, and they hold blocks of it all the same. */
static void a_namespace_of_held_blocks_is_not_unused_before_its_clients_are_back(void **state)
{
	const char *const two[] = {"--pool", "4M", "--slab", "256k", "--max-namespaces", "2", NULL};
	struct kvp_key key = wire_key(1);
	struct wire_pinned pinned;
	struct wire_ns held, other, more;
	struct wire w, newcomer;
	struct host host;

	(void)state;
	trial_namespace(&host, two, &w, &held, "held", 4096);
	assert_int_equal(wire_put(&held, &key, NULL, 1, 5000), KVP_PUB_STORED);
	assert_int_equal(wire_pin(&held, &key, &pinned), 1);
	host_kill(&host);
	assert_int_equal(host_start(&host, NULL), 0);
	assert_int_equal(wire_open(&newcomer, host.socket), 0);
	assert_int_equal(wire_join(&newcomer, &other, "other", 4096), 0);
	assert_int_equal(wire_join(&newcomer, &more, "more", 4096), -KVP_EQUOTA);
	assert_true(wire_right(pinned.data, 4096, 1));
	wire_unpin(&held, &pinned);
	wire_leave(&held);
	wire_close(&w); /* now nobody is in it */
	wire_sleep_ms(500);
	for (unsigned i = 0; i < 50 && wire_join(&newcomer, &more, "more", 4096) < 0; i++)
		wire_sleep_ms(100);
	assert_int_equal(wire_put(&more, &key, NULL, 2, 5000), KVP_PUB_STORED);
	wire_leave(&more);
	wire_leave(&other);
	wire_close(&newcomer);
	host_close(&host);
}

/* A session object is its client's to write: what a start reads there is no right to anything. */
static void pages_for_pins_of_others_let_nobody_in_after_a_start(void **state)
{
	const char *const small[] = {"--pool", "4M", "--slab", "256k", NULL};
	struct kvp_key key = wire_key(1);
	struct wire_ns theirs;
	struct wire owner, thief, again;
	struct kvp_wire_usage usage;
	struct host host;
	uint64_t ask[2] = {0}, id;
	char *pins;

	(void)state;
	trial_namespace(&host, small, &owner, &theirs, "theirs", 4096);
	assert_int_equal(wire_put(&theirs, &key, NULL, 1, 5000), KVP_PUB_STORED);
	assert_int_equal(wire_open(&thief, host.socket), 0);
	id = thief.welcome.session_id;
	pins = (char *)thief.session + thief.session->pins_off;
	for (uint64_t place = 0; place < thief.header->max_places; place++)
		*(volatile char *)(pins + place * thief.session->pin_stride) = 0;
	ask[0] = theirs.id;
	assert_int_equal(wire_call(&thief, KVP_MSG_USAGE, ask, sizeof(ask), &usage, sizeof(usage)), -KVP_ENOENT);
	host_kill(&host);
	assert_int_equal(host_start(&host, NULL), 0);
	close(thief.fd);
	assert_int_equal(wire_connect(&again, host.socket), 0);
	thief.fd = again.fd;
	assert_int_equal(wire_hello(&thief, id), 0);
	assert_int_equal(thief.welcome.session_id, id);
	assert_int_equal(wire_call(&thief, KVP_MSG_USAGE, ask, sizeof(ask), &usage, sizeof(usage)), -KVP_ENOENT);
	wire_leave(&theirs);
	wire_close(&owner);
	wire_close(&thief);
	host_close(&host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			its_lock_is_held_without_a_gap_over_any_number_of_restarts, setup, trial_teardown),
		cmocka_unit_test_setup_teardown(
			staging_areas_of_daemons_that_are_gone_are_not_kept_mapped, setup, trial_teardown),
		cmocka_unit_test(a_namespace_of_held_blocks_is_not_unused_before_its_clients_are_back),
		cmocka_unit_test(pages_for_pins_of_others_let_nobody_in_after_a_start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
