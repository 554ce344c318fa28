/*
 * test_client_host.c - an engine on a host that is not kind to it: signals at any time, stopped anywhere, forks that know nothing of
 * us, programs it runs, no descriptors, no address space, /dev/shm full
 *
 * Whatever is refused, each call ends by its deadline with a documented answer, what is read is right, nobody else is
 * the poorer, and when there is room again the client works again by itself.
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define MIB (1u << 20)
#define LATE_NS 120000000000ull /* beyond all deadlines of some turns together, whatever else the host does */

static int setup(void **state)
{
	return trial_setup(state, "4M", "64M");
}

/* ---- an engine's turn: every call that may wait, or ask the kernel for something ---- */

struct engine {
	struct kvp_client *client;
	struct kvp_ns *ns;
	uint64_t next; /* block */
	unsigned n_shared, n_hits;
	const char *wrong; /* what was not as it should be */
	void (*between)(struct engine *engine); /* two calls */
};

static void step(struct engine *engine)
{
	if (engine->between)
		engine->between(engine);
}

static bool engine_publish(struct engine *engine, uint64_t k, const struct kvp_key *parent)
{
	struct kvp_block_ref block = {0};
	struct kvp_publish_item item = {
		.key = wire_key(k), .block = &block, .used_tokens = TRIAL_TOKENS, .used_bytes = TRIAL_BLOCK};
	struct kvp_view view = {0};
	uint8_t result = 0;
	int64_t n = kvp_reserve(engine->ns, 1, KVP_PRIVATE, kvp_deadline_ms(5000), &block);

	step(engine);
	if (n != 1) {
		if (n != -KVP_ENOMEM)
			engine->wrong = "a reserve that may be private gives none";
		return false;
	}
	wire_fill(block.data, TRIAL_BLOCK, k);
	engine->n_shared += !block.is_private;
	if (parent)
		item.parent = *parent;
	item.view = &view;
	step(engine);
	kvp_publish(engine->ns, &item, 1, &result);
	step(engine);
	if (view.data) {
		if (!wire_right(view.data, TRIAL_BLOCK, k) && !kvp_lost(&view, 1))
			engine->wrong = "a block just published has other bytes";
		kvp_release(&view, 1);
	}
	kvp_abandon(&block, 1);
	step(engine);
	return result == KVP_PUB_STORED || result == KVP_PUB_EXISTS;
}

static void engine_read(struct engine *engine, uint64_t k)
{
	struct kvp_key key = wire_key(k);
	struct kvp_view view = {0};
	int64_t n = kvp_acquire(engine->ns, &key, 1, 0, kvp_deadline_ms(5000), &view);

	step(engine);
	if (n != 1)
		return;
	if (!wire_right(view.data, TRIAL_BLOCK, k) && !kvp_lost(&view, 1))
		engine->wrong = "a block has other bytes";
	step(engine);
	kvp_release(&view, 1);
	engine->n_hits++;
}

static void engine_turn(struct engine *engine)
{
	uint64_t k = engine->next++;
	struct kvp_key key = wire_key(k), none = wire_key(k + 1000000000);
	struct kvp_match_part part = {.ns = engine->ns, .keys = &key};
	bool stored = engine_publish(engine, k, NULL);

	if (stored)
		engine_publish(engine, k + 500000000, &key);
	engine_read(engine, k);
	if (k % 100 >= 40)
		engine_read(engine, k - 40); /* from disk, as a rule */
	kvp_match(&part, 1, 1, KVP_MATCH_TOUCH, NULL);
	step(engine);
	kvp_touch(engine->ns, &key, 1);
	step(engine);
	kvp_delete(engine->ns, &none, 1, kvp_deadline_ms(5000));
	step(engine);
	kvp_ping(engine->client, kvp_deadline_ms(5000));
	step(engine);
}

static int engine_begin(struct engine *engine, const struct trial *t)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = t->host.socket, .connect_timeout_ms = 5000};
	struct kvp_desc desc;
	int r = kvp_open(&opts, &engine->client);

	step(engine);
	if (r < 0)
		return r;
	trial_desc(&desc);
	r = trial_ns(engine->client, "m", &desc, &engine->ns);
	step(engine);
	return r;
}

static void engine_end(struct engine *engine)
{
	if (engine->ns)
		kvp_ns_close(engine->ns);
	step(engine);
	if (engine->client)
		kvp_close(engine->client);
	engine->ns = NULL;
	engine->client = NULL;
}

/* Return: does it work as ever within ten seconds? */
static bool engine_recovers(struct engine *engine, const struct trial *t)
{
	uint64_t until = wire_now() + 10000000000ull;
	int r = engine->ns ? 0 : -1;

	if (r < 0) {
		engine_end(engine);
		r = engine_begin(engine, t);
	}
	while (r == 0 && wire_now() < until && !engine->wrong) {
		unsigned n_shared = engine->n_shared, n_hits = engine->n_hits;

		engine_turn(engine);
		if (engine->n_shared >= n_shared + 2 && engine->n_hits > n_hits)
			return true;
		wire_sleep_ms(20);
	}
	return false;
}

/* What a child found, for its parent. */
static void child_says(const struct engine *engine, const char *otherwise)
{
	const char *wrong = engine->wrong ? engine->wrong : otherwise;

	if (wrong)
		fprintf(stderr, "child: %s: %s\n", wrong, kvp_error(NULL));
	_exit(wrong ? 1 : 0);
}

static void child_is_well(pid_t pid)
{
	int status = 0;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static pid_t fork_engine(void)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

/* Others are served meanwhile. */
static void others_go_on(struct engine *other)
{
	unsigned n_shared = other->n_shared, n_hits = other->n_hits;

	engine_turn(other);
	assert_null(other->wrong);
	assert_int_equal(other->n_shared, n_shared + 2);
	assert_true(other->n_hits > n_hits);
}

/* ---- signals ---- */

static volatile sig_atomic_t n_signals;

static void on_signal(int sig)
{
	(void)sig;
	n_signals++;
}

/* Calls of the kernel end with EINTR as often as they can: the handler does not ask for them to be restarted. */
static void signals_storm(unsigned us)
{
	struct sigaction action = {.sa_handler = on_signal};
	struct itimerval timer = {.it_interval.tv_usec = us, .it_value.tv_usec = us};

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

static void a_storm_of_signals_changes_no_answer(void **state)
{
	struct trial *t = *state;
	struct engine engine = {0};

	signals_storm(500);
	for (unsigned round = 0; round < 10; round++) {
		unsigned n_shared = engine.n_shared, n_hits = engine.n_hits;

		assert_int_equal(engine_begin(&engine, t), 0);
		assert_int_equal(kvp_state(engine.client, NULL), KVP_ATTACHED);
		for (unsigned i = 0; i < 20; i++)
			engine_turn(&engine);
		assert_null(engine.wrong);
		assert_int_equal(engine.n_shared, n_shared + 40);
		assert_true(engine.n_hits >= n_hits + 20);
		engine_end(&engine);
	}
	signals_storm(0);
	assert_true(n_signals > 100);
}

/* The daemon asks for none, but a debugger's stop and start ends calls of the kernel just the same. */
static void a_daemon_stopped_and_started_again_and_again_serves_right(void **state)
{
	struct trial *t = *state;
	struct engine engine = {0};
	pid_t pid;

	assert_int_equal(engine_begin(&engine, t), 0);
	pid = fork_engine();
	if (pid == 0) {
		for (unsigned i = 0; i < 300; i++) {
			kill(t->host.pid, SIGSTOP);
			wire_sleep_ms(i % 3);
			kill(t->host.pid, SIGCONT);
			wire_sleep_ms(3);
		}
		_exit(0);
	}
	for (unsigned i = 0; i < 60; i++)
		engine_turn(&engine);
	child_is_well(pid);
	assert_null(engine.wrong);
	assert_true(engine_recovers(&engine, t));
	engine_end(&engine);
	assert_true(host_alive(&t->host));
}

/* ---- stopped ---- */

static void stop_here(struct engine *engine)
{
	(void)engine;
	raise(SIGSTOP);
}

/* With all that it holds at that step: a grant, a pin, a request, a turn of its keeper. */
static void an_engine_stopped_at_each_step_is_in_nobodys_way(void **state)
{
	struct trial *t = *state;
	struct engine stopped = {.between = stop_here, .next = 100000}, other = {0};
	unsigned n_stops = 0;
	int status;
	pid_t pid;

	pid = fork_engine(); /* before this process has threads: ThreadSanitizer takes the child's for the same ones */
	if (pid == 0) {
		if (engine_begin(&stopped, t) < 0)
			child_says(&stopped, "it does not attach");
		for (unsigned i = 0; i < 3; i++)
			engine_turn(&stopped);
		engine_end(&stopped);
		child_says(
			&stopped, stopped.n_shared == 6 && stopped.n_hits >= 3 ? NULL : "it got less than it should");
	}
	assert_int_equal(engine_begin(&other, t), 0);
	for (;;) {
		assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
		if (!WIFSTOPPED(status))
			break;
		n_stops++;
		others_go_on(&other);
		assert_int_equal(kill(pid, SIGCONT), 0);
	}
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_true(n_stops > 40);
	engine_end(&other);
}

static void engines_stopped_anywhere_are_in_nobodys_way(void **state)
{
	struct trial *t = *state;
	struct engine other = {0};
	pid_t pid;

	pid = fork_engine();
	if (pid == 0) {
		struct engine engine = {.next = 200000};

		if (engine_begin(&engine, t) < 0)
			child_says(&engine, "it does not attach");
		while (!engine.wrong)
			engine_turn(&engine);
		child_says(&engine, "it should have been killed");
	}
	assert_int_equal(engine_begin(&other, t), 0);
	for (unsigned i = 0; i < 40; i++) {
		wire_sleep_ms(i % 7);
		assert_int_equal(kill(pid, SIGSTOP), 0);
		others_go_on(&other);
		assert_int_equal(kill(pid, SIGCONT), 0);
	}
	assert_int_equal(waitpid(pid, NULL, WNOHANG), 0); /* it found nothing wrong */
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	others_go_on(&other);
	engine_end(&other);
}

/* ---- descriptors that others get ---- */

static unsigned sessions(const struct trial *t)
{
	return (unsigned)atomic_load(&t->host.stats->counters.sessions);
}

static bool sessions_become(const struct trial *t, unsigned n)
{
	for (unsigned i = 0; i < 500 && sessions(t) != n; i++)
		wire_sleep_ms(20);
	return sessions(t) == n;
}

/* Those that lack O_CLOEXEC, by what they are; but standard ones, and what it was given itself when it was started (in @given).
   Return: how many there are. */
static unsigned inherited(pid_t pid, const char *given, char *which, size_t room)
{
	char path[64], info[80], link[256], line[128];
	struct dirent *entry;
	unsigned n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	assert_non_null(dir);
	which[0] = 0;
	while ((entry = readdir(dir))) {
		unsigned flags = 0;
		ssize_t length;
		FILE *file;

		if (entry->d_name[0] == '.' || atoi(entry->d_name) <= 2)
			continue;
		snprintf(info, sizeof(info), "/proc/%d/fdinfo/%.20s", (int)pid, entry->d_name);
		file = fopen(info, "re");
		while (file && fgets(line, sizeof(line), file))
			if (sscanf(line, "flags: %o", &flags) == 1)
				break;
		if (!file)
			continue;
		fclose(file);
		if (flags & O_CLOEXEC)
			continue;
		length = readlinkat(dirfd(dir), entry->d_name, link, sizeof(link) - 1);
		link[length > 0 ? length : 0] = 0;
		if (strstr(given, link))
			continue;
		snprintf(which + strlen(which), room - strlen(which), " %s", link);
		n++;
	}
	closedir(dir);
	return n;
}

static void a_program_that_an_engine_or_the_daemon_runs_inherits_no_descriptor(void **state)
{
	struct trial *t = *state;
	struct engine engine = {0};
	char before[2048], given[8192], after[2048], binary[PATH_MAX];

	inherited(getpid(), "", before, sizeof(before));
	assert_non_null(realpath(t->host.binary, binary));
	snprintf(given, sizeof(given), "%s %s %s", before, binary, t->host.log);
	assert_int_equal(engine_begin(&engine, t), 0);
	for (unsigned i = 0; i < 60; i++)
		engine_turn(&engine);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	if (inherited(getpid(), before, after, sizeof(after)))
		fail_msg("a program run by an engine gets:%s", after);
	if (inherited(t->host.pid, given, after, sizeof(after)))
		fail_msg("a program run by the daemon would get:%s", after);
	engine_end(&engine);
}

/* Not by fork(): whoever calls the kernel itself, or vfork() and stays, has copies of all we have, and closes none of them. */
static void a_copy_of_the_process_that_nobody_was_told_of_keeps_no_session_alive(void **state)
{
	struct trial *t = *state;
	unsigned before = sessions(t);
	int ready[2], go[2];
	char byte = 0;
	pid_t pid;

	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	assert_int_equal(pipe2(go, O_CLOEXEC), 0);
	pid = fork_engine();
	if (pid == 0) {
		struct engine engine = {.next = 300000};
		struct kvp_key key = wire_key(300000);
		struct kvp_view view;

		close(go[1]);
		if (engine_begin(&engine, t) < 0)
			_exit(1);
		engine_turn(&engine);
		if (kvp_acquire(engine.ns, &key, 1, 0, kvp_deadline_ms(5000), &view) != 1)
			_exit(2);
		if (syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) == 0) {
			if (read(go[0], &byte, 1) < 0) /* until the test is through */
				_exit(1);
			_exit(0);
		}
		if (write(ready[1], &byte, 1) != 1)
			_exit(3);
		pause();
	}
	close(go[0]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_int_equal(sessions(t), before + 1);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_true(sessions_become(t, before)); /* its socket is still open, in the copy */
	close(go[1]);
	close(ready[0]);
	close(ready[1]);
}

/* As something that keeps "its" descriptors does, or a debugger. */
static void copies_of_a_socket_keep_no_closed_client_alive(void **state)
{
	struct trial *t = *state;
	unsigned before = sessions(t), n = 0;
	struct engine engine = {0};
	int copies[64];

	assert_int_equal(engine_begin(&engine, t), 0);
	engine_turn(&engine);
	for (int fd = 3; fd < 64; fd++) {
		int type;
		socklen_t length = sizeof(type);

		if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET)
			copies[n++] = dup(fd);
	}
	assert_true(n > 0);
	engine_end(&engine);
	assert_true(sessions_become(t, before));
	while (n)
		close(copies[--n]);
}

/* A library that makes a daemon of its process does so. */
static void an_engine_whose_descriptors_were_all_closed_ends_its_calls_in_time(void **state)
{
	struct trial *t = *state;
	pid_t pid = fork_engine();

	if (pid == 0) {
		struct engine engine = {.next = 350000};
		uint64_t before;

		if (engine_begin(&engine, t) < 0)
			child_says(&engine, "it does not attach");
		engine_turn(&engine);
		closefrom(3);
		before = wire_now();
		for (unsigned i = 0; i < 2; i++)
			engine_turn(&engine);
		if (wire_now() - before > LATE_NS)
			engine.wrong = "calls outlived their deadlines";
		engine_end(&engine);
		child_says(&engine, NULL);
	}
	child_is_well(pid);
}

/* ---- nothing to be had ---- */

#define SERVED 7 /* exit status */

static bool engine_tries(struct engine *engine, const struct trial *t)
{
	uint64_t before = wire_now();
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = t->host.socket, .connect_timeout_ms = 300};
	struct kvp_desc desc;

	trial_desc(&desc);
	if (!engine->client && kvp_open(&opts, &engine->client) < 0)
		return false;
	if (!engine->ns && trial_ns(engine->client, "m", &desc, &engine->ns) < 0)
		engine->ns = NULL;
	if (engine->ns) {
		engine_publish(engine, engine->next, NULL);
		engine_read(engine, engine->next++);
	}
	if (wire_now() - before > LATE_NS)
		engine->wrong = "calls outlived their deadlines";
	return engine->n_shared > 0;
}

/* In a child: it has less than it needs, and then enough. Does not return. */
static void child_tries_with(struct engine *engine, const struct trial *t, int resource, rlim_t less)
{
	struct rlimit was, tight;
	bool served;

	getrlimit(resource, &was);
	tight = was;
	tight.rlim_cur = less;
	setrlimit(resource, &tight);
	served = engine_tries(engine, t);
	served = engine_tries(engine, t) || served;
	setrlimit(resource, &was);
	if (!engine->wrong && !engine_recovers(engine, t))
		engine->wrong = "it does not work when there is enough again";
	engine_end(engine);
	if (engine->wrong)
		child_says(engine, NULL);
	_exit(served ? SERVED : 0);
}

static bool child_was_served(pid_t pid)
{
	int status = 0;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == SERVED);
	return WEXITSTATUS(status) == SERVED;
}

static unsigned descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

/* One more each time, so that each call of the kernel that wants one is the one to be refused. */
static void with_no_descriptor_for_any_step_an_engine_computes_and_attaches_when_there_is_one(void **state)
{
	struct trial *t = *state;

	for (unsigned spare = 0; spare < 10; spare++) {
		pid_t pid = fork_engine();
		struct engine engine = {.next = 400000 + spare * 1000};

		if (pid == 0) {
			while (dup(0) >= 0 && descriptors() < 60)
				;
			/* without . and .., and what it was counted by */
			child_tries_with(&engine, t, RLIMIT_NOFILE, descriptors() - 3 + spare);
		}
		child_was_served(pid);
	}
}

static uint64_t address_space(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (file && fscanf(file, "%lu", &pages) != 1)
		pages = 0;
	if (file)
		fclose(file);
	return pages * 4096ull;
}

/* A little more each time, so that each mapping, each thread, each allocation is the one to be refused. */
static void with_no_address_space_for_any_step_an_engine_computes_and_attaches_when_there_is_some(void **state)
{
	struct trial *t = *state;
	unsigned n_served = 0;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	skip(); /* a sanitizer that is given no memory ends the program */
#endif
	for (unsigned i = 0; i < 40; i++) {
		pid_t pid = fork_engine();
		struct engine engine = {.next = 500000 + i * 1000};

		if (pid == 0)
			child_tries_with(&engine, t, RLIMIT_AS, address_space() + i * 256 * 1024);
		n_served += child_was_served(pid);
	}
	assert_in_range(n_served, 1, 39); /* both kinds were seen */
}

/* ---- /dev/shm ---- */

/* Fills it to the last page. Return: its descriptor. */
static int shm_fill(void)
{
	static char page[4096];
	int fd = open("/dev/shm/fat", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	while (write(fd, page, sizeof(page)) == (ssize_t)sizeof(page))
		;
	return fd;
}

static uint64_t round_trips(const struct engine *engine)
{
	struct kvp_counts counts = {.size = sizeof(counts)};

	assert_int_equal(kvp_counts(engine->client, &counts), 0);
	return counts.round_trips;
}

static void with_dev_shm_full_in_the_middle_those_there_go_on_and_others_are_told_why(void **state)
{
	struct engine there = {0}, comes = {.next = 700000};
	struct trial t;
	int fat;

	(void)state;
	if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("none", "/dev/shm", "tmpfs", 0, "size=64m,mode=1777") < 0) {
		print_message("skipped: no /dev/shm of its own can be had\n");
		skip();
	}
	trial_given(&t, 0, "4M", "64M");
	trial_start(&t);
	assert_int_equal(engine_begin(&there, &t), 0);
	others_go_on(&there);
	fat = shm_fill();
	for (unsigned i = 0; i < 20; i++) { /* from private memory, where there is no room for what a mapping needs */
		uint64_t before = round_trips(&there);

		engine_turn(&there);
		assert_null(there.wrong);
		assert_true(round_trips(&there) - before < 50); /* not asked for again and again */
	}
	engine_begin(&comes, &t);
	assert_int_equal(kvp_state(comes.client, NULL), KVP_REFUSED); /* the daemon is there, and says why */
	assert_true(kvp_ping(comes.client, kvp_deadline_ms(1000)) < 0);
	assert_non_null(strstr(kvp_error(comes.client), "no room in /dev/shm"));
	assert_true(host_alive(&t.host));
	assert_int_equal(ftruncate(fat, 0), 0);
	close(fat);
	unlink("/dev/shm/fat");
	assert_true(engine_recovers(&comes, &t));
	assert_true(engine_recovers(&there, &t));
	engine_end(&comes);
	engine_end(&there);
	assert_true(trial_end(&t));
	umount2("/dev/shm", MNT_DETACH);
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, trial_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(a_storm_of_signals_changes_no_answer),
		WITH_DAEMON(a_daemon_stopped_and_started_again_and_again_serves_right),
		WITH_DAEMON(an_engine_stopped_at_each_step_is_in_nobodys_way),
		WITH_DAEMON(engines_stopped_anywhere_are_in_nobodys_way),
		WITH_DAEMON(a_program_that_an_engine_or_the_daemon_runs_inherits_no_descriptor),
		WITH_DAEMON(a_copy_of_the_process_that_nobody_was_told_of_keeps_no_session_alive),
		WITH_DAEMON(copies_of_a_socket_keep_no_closed_client_alive),
		WITH_DAEMON(an_engine_whose_descriptors_were_all_closed_ends_its_calls_in_time),
		WITH_DAEMON(with_no_descriptor_for_any_step_an_engine_computes_and_attaches_when_there_is_one),
		WITH_DAEMON(with_no_address_space_for_any_step_an_engine_computes_and_attaches_when_there_is_some),
		cmocka_unit_test(with_dev_shm_full_in_the_middle_those_there_go_on_and_others_are_told_why),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests_name("client host", tests, NULL, NULL);
}
