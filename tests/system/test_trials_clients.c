/*
 * test_trials_clients.c - trials: engines that die, stall, come in crowds, or belong to somebody else
 *
 * B08, B09, B11, B12, B28, B31, B33, B35, B37, B38, B42 through libkvpool and with real SIGKILLs.
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#ifdef __has_feature
#define FEATURE(x) __has_feature(x)
#else
#define FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || FEATURE(address_sanitizer) || \
	FEATURE(thread_sanitizer)
#define KEEPS_FREED_MEMORY true
#else
#define KEEPS_FREED_MEMORY false
#endif

#define BLOCKS 32u /* in the pool */
#define SECOND 1000000000ull

static int setup(void **state)
{
	trial_setup(state, "2M", NULL);
	trial_attach(*state);
	return 0;
}

/* An engine in a process of its own, which dies with the test. */
struct engine {
	struct kvp_client *client;
	struct kvp_ns *ns;
};

static bool engine_begin(const struct trial *t, struct engine *e)
{
	struct kvp_desc desc;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	trial_desc(&desc);
	return trial_client(t, &e->client) == 0 && trial_ns(e->client, "m", &desc, &e->ns) == 0;
}

/* Tell the parent, and wait to be killed. */
static void engine_wait(int fd)
{
	if (write(fd, "x", 1) == 1)
		for (;;)
			pause();
	_exit(1);
}

/* Only the engine keeps the writing end: one that failed before it was ready ends the test, not the time for it. */
static void engine_ready(const int ends[2])
{
	char c;

	close(ends[1]);
	assert_int_equal(read(ends[0], &c, 1), 1);
	close(ends[0]);
}

static void engine_kill(pid_t pid)
{
	int status;

	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
}

/* How many of the pool's blocks can be had at once. */
static unsigned room(struct kvp_ns *ns, unsigned ms)
{
	struct kvp_block_ref blocks[BLOCKS + 1];
	unsigned got = 0;
	uint64_t deadline = kvp_deadline_ms(ms);
	int64_t r;

	while (got < BLOCKS && (r = kvp_reserve(ns, BLOCKS - got, 0, deadline, blocks + got)) > 0)
		got += (unsigned)r;
	for (unsigned i = 0; i < got; i++)
		for (unsigned j = 0; j < i; j++)
			assert_ptr_not_equal(blocks[i].data, blocks[j].data);
	kvp_abandon(blocks, got);
	return got;
}

static bool all_can_be_had(struct kvp_ns *ns, unsigned ms)
{
	uint64_t until = wire_now() + ms * 1000000ull;

	do
		if (room(ns, 100) == BLOCKS)
			return true;
	while (wire_now() < until);
	return false;
}

static void fill_pool(struct kvp_ns *ns)
{
	for (uint64_t k = 0; k < BLOCKS; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(trial_put(ns, &key, NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
}

/* ---- B08 ---- */

static void hold_all(const struct trial *t, int fd, bool closes)
{
	struct kvp_view views[10 * BLOCKS];
	struct engine e;

	if (!engine_begin(t, &e))
		_exit(1);
	for (unsigned i = 0; i < 10 * BLOCKS; i++) {
		struct kvp_key key = wire_key(i % BLOCKS);

		if (kvp_acquire(e.ns, &key, 1, 0, kvp_deadline_ms(1000), &views[i]) != 1)
			_exit(2);
	}
	if (closes && write(fd, "x", 1) == 1)
		_exit(0);
	engine_wait(fd);
}

static void holds_of_an_engine_that_went_are_free_in_two_seconds(void **state)
{
	struct trial *t = *state;

	for (unsigned closes = 0; closes < 2; closes++) {
		int ends[2], status;
		pid_t pid;

		fill_pool(t->ns);
		assert_int_equal(pipe(ends), 0);
		pid = fork();
		if (pid == 0)
			hold_all(t, ends[1], closes);
		engine_ready(ends);
		if (closes) {
			assert_int_equal(waitpid(pid, &status, 0), pid);
			assert_int_equal(status, 0);
		} else {
			assert_true(room(t->ns, 200) < BLOCKS);
			engine_kill(pid);
		}
		assert_true(all_can_be_had(t->ns, 2500));
		assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict"), 0);
	}
}

/* ---- B09 ---- */

static void while_all_is_held_another_engine_is_told_so_in_time_and_one_release_is_enough(void **state)
{
	struct trial *t = *state;
	struct kvp_view views[BLOCKS];
	struct kvp_block_ref block;
	struct kvp_client *client;
	struct kvp_desc desc;
	struct kvp_ns *ns;
	uint64_t from, cpu;

	fill_pool(t->ns);
	for (unsigned i = 0; i < BLOCKS; i++) {
		struct kvp_key key = wire_key(i);

		assert_int_equal(kvp_acquire(t->ns, &key, 1, 0, 0, &views[i]), 1);
	}
	trial_desc(&desc);
	assert_int_equal(trial_client(t, &client), 0);
	assert_int_equal(trial_ns(client, "m", &desc, &ns), 0);
	from = wire_now();
	cpu = host_cpu_ms(&t->host);
	assert_int_equal(kvp_reserve(ns, 1, 0, kvp_deadline_ms(1000), &block), 0);
	assert_in_range(wire_now() - from, SECOND * 9 / 10, SECOND * 2);
	assert_true(host_cpu_ms(&t->host) - cpu <= 60);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "stats"), 0);
	assert_int_equal(kvp_release(&views[7], 1), 0);
	from = wire_now();
	assert_int_equal(kvp_reserve(ns, 1, 0, kvp_deadline_ms(5000), &block), 1);
	assert_true(wire_now() - from < SECOND);
	kvp_abandon(&block, 1);
	kvp_release(views, BLOCKS);
	kvp_ns_close(ns);
	kvp_close(client);
	assert_true(all_can_be_had(t->ns, 2000)); /* what failed has left no trace */
}

/* ---- B11 ---- */

static void bad_releases_leave_the_whole_pool_to_be_given_out_once(void **state)
{
	struct trial *t = *state;
	struct kvp_view view, copy, forged;
	struct kvp_block_ref block, again;
	struct kvp_key key = wire_key(1);

	fill_pool(t->ns);
	assert_int_equal(kvp_acquire(t->ns, &key, 1, 0, 0, &view), 1);
	copy = forged = view;
	forged.opaque[0] ^= 0x12345;
	forged.opaque[1] = ~forged.opaque[1];
	forged.opaque[2] += 1000;
	kvp_release(&forged, 1);
	assert_int_equal(kvp_lost(&view, 1), 0);
	kvp_release(&view, 1);
	kvp_release(&view, 1);
	kvp_release(&copy, 1);
	assert_int_equal(kvp_reserve(t->ns, 1, 0, kvp_deadline_ms(1000), &block), 1);
	again = block;
	kvp_abandon(&block, 1);
	kvp_abandon(&block, 1);
	kvp_abandon(&again, 1);
	assert_int_equal(kvp_acquire(t->ns, &key, 1, 0, 0, &view), 1);
	host_kill(&t->host);
	trial_start(t);
	assert_int_equal(kvp_release(&view, 1), 0);
	kvp_release(&view, 1);
	assert_true(all_can_be_had(t->ns, 3000));
}

/* ---- B12 ---- */

static void the_tail_of_a_chain_goes_first(void **state)
{
	struct trial *t = *state;
	struct kvp_open_opts opts = {.size = sizeof(opts),
		.socket = t->host.socket,
		.connect_timeout_ms = 5000,
		.stock_blocks = KVP_STOCK_NONE};
	struct kvp_client *client;
	struct kvp_desc desc;
	struct kvp_ns *ns;

	trial_desc(&desc);
	assert_int_equal(kvp_open(&opts, &client), 0);
	assert_int_equal(trial_ns(client, "m", &desc, &ns), 0);
	for (unsigned round = 0; round < 100; round++) {
		struct kvp_block_ref blocks[BLOCKS];
		struct kvp_key keys[8];
		struct kvp_match_part part = {.ns = ns, .keys = keys};

		for (unsigned i = 0; i < 8; i++) {
			keys[i] = wire_key(round * 100 + i);
			assert_int_equal(
				trial_put(ns, &keys[i], i ? &keys[i - 1] : NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
		}
		assert_int_equal(kvp_reserve(ns, BLOCKS - 4, 0, kvp_deadline_ms(5000), blocks), BLOCKS - 4);
		assert_int_equal(kvp_match(&part, 1, 8, 0, NULL), 4);
		for (unsigned i = 4; i < 8; i++)
			assert_int_equal(trial_get(ns, &keys[i], i, TRIAL_BLOCK), 0);
		kvp_abandon(blocks, BLOCKS - 4);
	}
	kvp_ns_close(ns);
	kvp_close(client);
}

/* ---- B37 ---- */

static void begin_and_stall(const struct trial *t, int fd)
{
	struct kvp_block_ref block;
	struct engine e;

	if (!engine_begin(t, &e) || kvp_reserve(e.ns, 1, 0, kvp_deadline_ms(1000), &block) != 1)
		_exit(1);
	wire_fill(block.data, TRIAL_BLOCK / 2, 666);
	engine_wait(fd);
}

static void a_block_begun_and_never_published_is_nobodys(void **state)
{
	struct trial *t = *state;

	for (unsigned killed = 0; killed < 2; killed++) {
		struct kvp_key key = wire_key(10 + killed);
		uint64_t from;
		int ends[2];
		pid_t pid;

		assert_int_equal(pipe(ends), 0);
		pid = fork();
		if (pid == 0)
			begin_and_stall(t, ends[1]);
		engine_ready(ends);
		assert_int_equal(trial_get(t->ns, &key, 1, TRIAL_BLOCK), 0);
		if (killed)
			engine_kill(pid);
		from = wire_now();
		assert_int_equal(trial_put(t->ns, &key, NULL, 1, TRIAL_BLOCK), KVP_PUB_STORED);
		assert_true(wire_now() - from < SECOND);
		assert_int_equal(trial_get(t->ns, &key, 1, TRIAL_BLOCK), 1);
		if (!killed)
			engine_kill(pid);
	}
	assert_true(all_can_be_had(t->ns, 3000));
}

/* ---- B38 ---- */

static void hold_four(const struct trial *t, int fd)
{
	struct kvp_view views[4];
	struct engine e;

	if (!engine_begin(t, &e))
		_exit(1);
	for (unsigned i = 0; i < 4; i++) {
		struct kvp_key key = wire_key(i);

		if (kvp_acquire(e.ns, &key, 1, 0, kvp_deadline_ms(2000), &views[i]) != 1)
			_exit(2);
	}
	engine_wait(fd);
}

static bool no_more_than(struct trial *t, unsigned fds, unsigned maps)
{
	uint64_t until = wire_now() + 5 * SECOND;

	while ((host_n_fds(&t->host) > fds || host_n_maps(&t->host) > maps) && wire_now() < until)
		wire_sleep_ms(50);
	return host_n_fds(&t->host) <= fds && host_n_maps(&t->host) <= maps;
}

static void a_hundred_killed_engines_cost_the_daemon_nothing(void **state)
{
	struct trial *t = *state;
	unsigned fds = 0, maps = 0;
	uint64_t kib = 0;

	fill_pool(t->ns);
	for (unsigned round = 0; round < 100; round++) {
		int ends[2];
		pid_t pid;

		assert_int_equal(pipe(ends), 0);
		pid = fork();
		if (pid == 0)
			hold_four(t, ends[1]);
		engine_ready(ends);
		engine_kill(pid);
		if (round == 10) {
			wire_sleep_ms(2500); /* the dead are looked for now and then */
			fds = host_n_fds(&t->host);
			maps = host_n_maps(&t->host);
			kib = host_rss_kib(&t->host);
		}
	}
	assert_true(no_more_than(t, fds + 5, maps + 5));
	assert_true(kib > 0);
	if (!KEEPS_FREED_MEMORY)
		assert_in_range(host_rss_kib(&t->host), 0, kib + kib / 50 + 5 * KVP_PAGE / 1024);
}

/* ---- B33 ---- */

static int attach_in_a_loop(const struct trial *t, const _Atomic int *stop)
{
	struct kvp_desc desc;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	trial_desc(&desc);
	while (!atomic_load(stop)) {
		struct kvp_open_opts opts = {.size = sizeof(opts), .socket = t->host.socket, .connect_timeout_ms = 500};
		struct kvp_client *client;
		uint64_t from = wire_now();
		struct kvp_key key = wire_key(1);
		struct kvp_view view;
		struct kvp_ns *ns;

		if (kvp_open(&opts, &client) < 0)
			return 1;
		if (trial_ns(client, "m", &desc, &ns) < 0)
			return 2;
		if (kvp_acquire(ns, &key, 1, 0, 0, &view) == 1) {
			if (!wire_right(view.data, TRIAL_BLOCK, 1))
				return 3;
			kvp_release(&view, 1);
		}
		kvp_ns_close(ns);
		kvp_close(client);
		if (wire_now() - from > 10 * SECOND)
			return 4;
	}
	return 0;
}

static _Atomic int *shared_flag(void)
{
	_Atomic int *flag = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(flag != MAP_FAILED);
	return flag;
}

static void engines_that_attach_while_the_daemon_comes_and_goes_are_served_or_told(void **state)
{
	struct trial *t = *state;
	_Atomic int *stop = shared_flag();
	pid_t pids[32];
	struct kvp_key key = wire_key(1);

	assert_int_equal(trial_put(t->ns, &key, NULL, 1, TRIAL_BLOCK), KVP_PUB_STORED);
	trial_detach(t); /* a thread of ours at the fork would confuse ThreadSanitizer in the children */
	for (unsigned i = 0; i < 32; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			_exit(attach_in_a_loop(t, stop));
	}
	for (unsigned round = 0; round < 20; round++) {
		if (round & 1)
			host_kill(&t->host);
		else
			host_stop(&t->host);
		trial_start(t);
	}
	atomic_store(stop, 1);
	for (unsigned i = 0; i < 32; i++) {
		int status;

		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	munmap((void *)(uintptr_t)stop, 4096);
}

/* ---- B35 ---- */

/* All calls, over and over.  Return: the slowest one took more than a second: 1; wrong bytes: 2. */
static int work(const struct trial *t, unsigned seed, const _Atomic int *stop)
{
	uint64_t slowest = 0;
	struct engine e;

	if (!engine_begin(t, &e))
		return 3;
	while (!atomic_load(stop)) {
		uint64_t k = (uint64_t)rand_r(&seed) % 60, from = wire_now();
		struct kvp_key key = wire_key(k);
		struct kvp_match_part part = {.ns = e.ns, .keys = &key};
		struct kvp_view view;

		kvp_match(&part, 1, 1, 0, NULL);
		if (kvp_acquire(e.ns, &key, 1, 0, 0, &view) == 1) {
			if (!wire_right(view.data, TRIAL_BLOCK, k))
				return 2;
			kvp_release(&view, 1);
		} else {
			struct kvp_block_ref block;
			struct kvp_publish_item item = {.key = key, .block = &block, .used_tokens = TRIAL_TOKENS};
			uint8_t result;

			if (kvp_reserve(e.ns, 1, 0, kvp_deadline_ms(300), &block) == 1) {
				wire_fill(block.data, TRIAL_BLOCK, k);
				kvp_publish(e.ns, &item, 1, &result);
				kvp_abandon(&block, 1);
			}
		}
		if (wire_now() - from > slowest)
			slowest = wire_now() - from;
	}
	if (slowest > SECOND)
		fprintf(stderr, "slowest round of calls: %llu ms\n", (unsigned long long)slowest / 1000000);
	return slowest > SECOND;
}

static void nobody_waits_for_an_engine_that_is_killed_anywhere(void **state)
{
	struct trial *t = *state;
	_Atomic int *stop = shared_flag();
	unsigned seed = 7;
	pid_t pids[5];
	int status;

	for (unsigned i = 0; i < 4; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			_exit(work(t, i, stop));
	}
	for (unsigned round = 0; round < 150; round++) {
		pids[4] = fork();
		if (pids[4] == 0)
			_exit(work(t, 1000 + round, stop));
		wire_sleep_ms(5 + (unsigned)rand_r(&seed) % 60);
		engine_kill(pids[4]);
	}
	atomic_store(stop, 1);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	munmap((void *)(uintptr_t)stop, 4096);
	assert_true(all_can_be_had(t->ns, 5000));
}

/* ---- B42 ---- */

static void hold_one_in_a_pid_namespace(const struct trial *t, int fd)
{
	struct kvp_key key = wire_key(1);
	struct kvp_view view;
	struct engine e;

	if (unshare(CLONE_NEWPID) < 0)
		_exit(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (fork() == 0) {
		if (getpid() != 1 || !engine_begin(t, &e) ||
			kvp_acquire(e.ns, &key, 1, 0, kvp_deadline_ms(1000), &view) != 1)
			_exit(1);
		engine_wait(fd);
	}
	for (;;)
		pause();
}

static void an_engine_whose_pid_is_1_lives_as_long_as_it_lives(void **state)
{
	struct trial *t = *state;
	struct kvp_key key = wire_key(1);
	int ends[2];
	pid_t pid;

	if (geteuid() != 0)
		skip();
	fill_pool(t->ns);
	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0)
		hold_one_in_a_pid_namespace(t, ends[1]);
	engine_ready(ends);
	wire_sleep_ms(3000);
	assert_int_equal(room(t->ns, 500), BLOCKS - 1);
	assert_int_equal(trial_get(t->ns, &key, 1, TRIAL_BLOCK), 1);
	engine_kill(pid); /* and with it, by the death signal, the one inside */
	assert_true(all_can_be_had(t->ns, 3000));
}

static pid_t fork_as(pid_t want)
{
	struct clone_args args = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&want, .set_tid_size = 1};

	return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

static void a_dead_engines_pid_used_again_is_no_sign_of_life(void **state)
{
	struct trial *t = *state;
	int ends[2];
	pid_t pid, other;

	fill_pool(t->ns);
	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0)
		hold_all(t, ends[1], false);
	engine_ready(ends);
	assert_true(room(t->ns, 200) < BLOCKS);
	kill(t->host.pid, SIGSTOP); /* so that the daemon only sees it when the number is somebody else's */
	engine_kill(pid);
	other = fork_as(pid);
	if (other == 0)
		for (;;)
			pause();
	kill(t->host.pid, SIGCONT);
	if (other < 0 && (errno == EPERM || errno == ENOSYS)) {
		assert_true(all_can_be_had(t->ns, 2000));
		skip(); /* only who may choose numbers can try it */
	}
	assert_int_equal(other, pid);
	assert_true(all_can_be_had(t->ns, 2000));
	engine_kill(other);
}

/* ---- B31 ---- */

#define DAEMON_UID 61001u
#define INSIDE_UID 61002u
#define OUTSIDE_UID 61003u

/* Return: what the engine came to: 1 attached and could read and write; 0 not attached; else neither. */
static int engine_of(const struct trial *t, uid_t uid, gid_t gid, mode_t mask)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = t->host.socket, .connect_timeout_ms = 1000};
	struct kvp_key key = wire_key(uid + mask);
	struct kvp_client *client;
	struct kvp_desc desc;
	struct kvp_ns *ns;

	umask(mask);
	if (setgid(gid) < 0 || setuid(uid) < 0 || kvp_open(&opts, &client) < 0)
		return 2;
	if (kvp_state(client, NULL) != KVP_ATTACHED)
		return kvp_state(client, NULL) == KVP_REFUSED && strstr(kvp_error(client), "Permission denied") &&
				       strstr(kvp_error(client), "group 61001") &&
				       kvp_ping(client, kvp_deadline_ms(500)) == -KVP_EACCES
			       ? 0
			       : 3;
	trial_desc(&desc);
	if (trial_ns(client, "m", &desc, &ns) < 0)
		return 2;
	return trial_put(ns, &key, NULL, 5, TRIAL_BLOCK) == KVP_PUB_STORED && trial_get(ns, &key, 5, TRIAL_BLOCK) == 1
		       ? 1
		       : 2;
}

static int engine_as(const struct trial *t, uid_t uid, gid_t gid, mode_t mask)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		_exit(engine_of(t, uid, gid, mask));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void users_of_the_group_work_under_any_umask_and_others_get_nothing(void **state)
{
	struct trial t;
	const char *options[] = {
		"--pool", "2M", "--slab", "1M", "--free-percent", "0", "--socket-mode", "0660", "--spill", "off", NULL};

	(void)state;
	if (geteuid() != 0)
		skip();
	trial_given(&t, DAEMON_UID, "2M", NULL);
	assert_int_equal(host_start(&t.host, options), 0);
	assert_int_equal(engine_as(&t, INSIDE_UID, DAEMON_UID, 000), 1);
	assert_int_equal(engine_as(&t, INSIDE_UID, DAEMON_UID, 027), 1);
	assert_int_equal(engine_as(&t, INSIDE_UID, DAEMON_UID, 077), 1);
	assert_int_equal(engine_as(&t, OUTSIDE_UID, OUTSIDE_UID, 022), 0);
	assert_int_equal(TRIAL_KVCTL(&t, NULL, 0, "purge"), 0);
	assert_int_equal(host_objects(&t.host, NULL), 0);
	trial_end(&t);
}

/* ---- B28 ---- */

static void five_kills_take_one_pool_of_memory_and_purge_leaves_none(void **state)
{
	struct trial *t = *state;
	uint64_t bytes, now;
	int status;

	fill_pool(t->ns);
	host_objects(&t->host, &bytes);
	for (unsigned i = 0; i < 5; i++) {
		host_kill(&t->host);
		trial_start(t);
		host_objects(&t->host, &now);
		assert_true(now <= bytes + (1 << 20));
	}
	trial_detach(t);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "purge"), 0);
	assert_int_equal(host_objects(&t->host, NULL), 0);
	assert_int_equal(waitpid(t->host.pid, &status, 0), t->host.pid);
	assert_int_equal(status, 0);
	t->host.pid = 0;
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, trial_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(holds_of_an_engine_that_went_are_free_in_two_seconds),
		WITH_DAEMON(while_all_is_held_another_engine_is_told_so_in_time_and_one_release_is_enough),
		WITH_DAEMON(bad_releases_leave_the_whole_pool_to_be_given_out_once),
		WITH_DAEMON(the_tail_of_a_chain_goes_first),
		WITH_DAEMON(a_block_begun_and_never_published_is_nobodys),
		WITH_DAEMON(a_hundred_killed_engines_cost_the_daemon_nothing),
		WITH_DAEMON(engines_that_attach_while_the_daemon_comes_and_goes_are_served_or_told),
		WITH_DAEMON(nobody_waits_for_an_engine_that_is_killed_anywhere),
		WITH_DAEMON(a_dead_engines_pid_used_again_is_no_sign_of_life),
		WITH_DAEMON(an_engine_whose_pid_is_1_lives_as_long_as_it_lives),
		cmocka_unit_test(users_of_the_group_work_under_any_umask_and_others_get_nothing),
		WITH_DAEMON(five_kills_take_one_pool_of_memory_and_purge_leaves_none),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
