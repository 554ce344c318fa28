/* test_daemon_life.c - deaths, stops and restarts: of clients, of the daemon, and of what it finds at its start */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire.h"

#define KIB 1024u
#define BLOCK (64 * KIB)
#define MIB (1024ull * KIB)

static const char *const options[] = {
	"--pool", "8M", "--slab", "1M", "--heartbeat", "100", "--free-percent", "0", "--spill", "off", NULL};

struct fixture {
	struct host host;
	struct wire w;
	struct wire_ns ns;
};

static void connect_client(struct fixture *f)
{
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, &f->ns, "m", BLOCK), 0);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->w.fd = f->w.header_fd = f->w.session_fd = f->ns.fd = f->ns.stage_fd = -1;
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	assert_int_equal(host_start(&f->host, options), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	bool good = !f->host.pid || (host_alive(&f->host) && host_conserves(&f->host));

	if (f->ns.head)
		wire_leave(&f->ns);
	wire_close(&f->w);
	host_close(&f->host);
	free(f);
	return good ? 0 : -1;
}

/* B54: a service manager's patience, in a child. Return (its exit status): 0: ready before it was over; 1: it was over,
   and the daemon would have been killed; 2: ready at once, which proves nothing. */
static int waits_for(int fd, unsigned limit_ms)
{
	uint64_t began = wire_now(), until = began + limit_ms * 1000000ull;
	char text[512];

	for (;;) {
		uint64_t now = wire_now();
		struct pollfd told = {.fd = fd, .events = POLLIN};
		const char *more;
		ssize_t n;

		if (now >= until || poll(&told, 1, (int)((until - now) / 1000000) + 1) < 1)
			return 1;
		n = recv(fd, text, sizeof(text) - 1, 0);
		if (n <= 0)
			return 1;
		text[n] = 0;
		if (strstr(text, "READY=1"))
			return wire_now() - began > limit_ms * 1000000ull ? 0 : 2;
		more = strstr(text, "EXTEND_TIMEOUT_USEC=");
		if (more) {
			uint64_t extended =
				wire_now() + strtoull(more + strlen("EXTEND_TIMEOUT_USEC="), NULL, 10) * 1000;

			until = extended > until ? extended : until;
		}
	}
}

/* A service manager's end of the notifications, in a child. Return (its exit status): 0: it was told all of these in
   this order, each with more time, and readiness only afterwards. */
static int notified(int fd, const char *const *told)
{
	char text[512];
	ssize_t n;

	while ((n = recv(fd, text, sizeof(text) - 1, 0)) > 0) {
		text[n] = 0;
		if (*told && strstr(text, *told) && strstr(text, "EXTEND_TIMEOUT_USEC="))
			told++;
		if (strstr(text, "READY=1"))
			return *told ? 1 : 0;
	}
	return 2;
}

/* Start it with a service manager that listens: it is to be told all of this, or, NULL, has no more patience than
   @limit_ms. */
static void start_notifying(struct host *host, const char *const *given, const char *const *told, unsigned limit_ms)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = 30};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), status = -1;
	pid_t child;

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", host->dir);
	unlink(address.sun_path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
	fflush(NULL);
	child = fork(); /* it reads while we wait for the daemon: a full queue would hold that up */
	if (child == 0)
		_exit(told ? notified(fd, told) : waits_for(fd, limit_ms));
	setenv("NOTIFY_SOCKET", address.sun_path, 1);
	assert_int_equal(host_start(host, given), 0);
	unsetenv("NOTIFY_SOCKET");
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	close(fd);
}

static void while_it_starts_the_service_manager_is_told_how_far_it_is(void **state)
{
	char spill[120];
	const char *const given[] = {"--pool", "8M", "--slab", "1M", "--spill", spill, NULL};
	struct host host;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	snprintf(spill, sizeof(spill), "%s:64M", host.dir);
	start_notifying(&host, given,
		(const char *const[]){"STATUS=populating the pool: ", "STATUS=populating the pool: 8 of 8 MiB",
			"STATUS=taking over the blocks in memory", "STATUS=opening the spill store", NULL},
		0);
	assert_int_equal(host_stop(&host), 0);
	start_notifying(&host, given, /* with a store that has something to be looked at */
		(const char *const[]){"STATUS=taking over the blocks in memory", "STATUS=opening the spill store",
			"STATUS=finding what is in the spill store: ", NULL},
		0);
	host_close(&host);
}

static void a_start_longer_than_the_services_limit_is_waited_for(void **state)
{
	const char *const given[] = {"--pool", "16M", "--slab", "1M", "--spill", "off", NULL};
	const char *build = getenv("BUILD");
	struct host host;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	snprintf(host.binary, sizeof(host.binary), "%s/kvpoold-fault", build ? build : "build");
	setenv("KVPOOL_FAULT", "slab.slow_ms=800", 1);
	start_notifying(&host, given, NULL, 10000); /* 16 slabs: it takes 12.8 s at least */
	unsetenv("KVPOOL_FAULT");
	host_close(&host);
}

static bool sent(int fd, const struct sockaddr_un *to)
{
	return sendto(fd, "STATUS=", 7, MSG_DONTWAIT, (const struct sockaddr *)to, sizeof(*to)) == 7;
}

static void a_service_manager_that_reads_nothing_stops_nobody(void **state)
{
	const char *const given[] = {"--pool", "4M", "--slab", "1M", "--spill", "off", NULL};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = 60};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), filler = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct host host;
	char text[600];
	bool ready = false, watched = false;
	ssize_t n;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", host.dir);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	while (sent(filler, &address))
		;
	setenv("NOTIFY_SOCKET", address.sun_path, 1);
	setenv("WATCHDOG_USEC", "40000", 1);
	assert_int_equal(host_start(&host, given), 0);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	assert_int_equal(kill(host.pid, SIGHUP), 0);
	assert_true(host_logged(&host, "reloaded", 20000));
	assert_true(host_alive(&host));
	/* once it reads again, it learns that all is well */
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
	while (!(ready && watched) && (n = recv(fd, text, sizeof(text) - 1, 0)) > 0) {
		text[n] = 0;
		ready = ready || strstr(text, "READY=1");
		watched = watched || strstr(text, "WATCHDOG=1");
	}
	assert_true(ready && watched);
	assert_int_equal(host_stop(&host), 0);
	close(fd);
	close(filler);
	host_close(&host);
}

static void what_of_a_pool_is_no_whole_slab_is_told(void **state)
{
	static const char *const odd[] = {"--pool", "3M", "--slab", "2M", "--spill", "off", NULL};
	struct host host;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	assert_int_equal(host_start(&host, odd), 0);
	assert_true(host_logged(&host, "is 1 slabs of 2097152 bytes, the other 1048576 bytes are not used", 1000));
	assert_int_equal(atomic_load(&host.stats->counters.slab_bytes_allocated), 2 * MIB);
	host_close(&host);
}

static void put(struct wire_ns *ns, uint64_t k)
{
	struct kvp_key key = wire_key(k);

	assert_int_equal(wire_put(ns, &key, NULL, k, 3000), KVP_PUB_STORED);
}

static bool reads_right(struct wire_ns *ns, uint64_t k)
{
	struct kvp_key key = wire_key(k);
	struct wire_pinned pinned;
	bool right;

	if (!wire_pin(ns, &key, &pinned))
		return false;
	right = wire_right(pinned.data, pinned.used_bytes, k);
	assert_true(right);
	wire_unpin(ns, &pinned);
	return right;
}

struct gauges {
	struct fixture *f;
	uint64_t ns_id, held, granted, sessions;
};

static bool gauges_are(void *arg)
{
	const struct gauges *g = arg;
	const struct kvp_ns_row *row = host_ns_row(&g->f->host, g->ns_id);

	return row && atomic_load(&row->counters.held) == g->held &&
	       atomic_load(&row->counters.granted) == g->granted &&
	       atomic_load(&g->f->host.stats->counters.sessions) == g->sessions;
}

/* Within @ms: so many blocks held, granted and sessions. */
static void wait_gauges(struct fixture *f, uint64_t held, uint64_t granted, uint64_t sessions, unsigned ms)
{
	struct gauges g = {f, f->ns.id, held, granted, sessions};

	assert_true(wire_until(gauges_are, &g, ms));
}

/* ---- a client in a process of its own ---- */

struct child {
	pid_t pid;
	int tell, hear; /* pipes: the parent tells, the parent hears */
};

/* It attaches, publishes blocks @first.. and pins 4 of them, reserves 3 more, says so, and waits to be told. */
static void child_main(const char *socket, uint64_t first, int hear, int tell)
{
	struct wire w;
	struct wire_ns ns;
	struct wire_pinned pinned;
	struct kvp_wire_grant grants[3];
	char go;

	if (wire_open(&w, socket) < 0 || wire_join(&w, &ns, "m", BLOCK) < 0)
		_exit(2);
	for (uint64_t k = first; k < first + 4; k++) {
		struct kvp_key key = wire_key(k);
		int r = wire_put(&ns, &key, NULL, k, 2000);

		if ((r != KVP_PUB_STORED && r != KVP_PUB_EXISTS) || wire_pin(&ns, &key, &pinned) != 1)
			_exit(3);
	}
	if (wire_reserve(&ns, grants, 3, 2000) != 3 || !wire_data(&ns, grants[0].slot))
		_exit(4);
	if (write(tell, "r", 1) != 1)
		_exit(5);
	while (read(hear, &go, 1) == 1 && go == 'w')
		if (write(tell, atomic_load(&w.session->word) ? "1" : "0", 1) != 1)
			break;
	_exit(0);
}

static struct child given_child(const char *socket, uint64_t first)
{
	int to[2], from[2];
	struct child child;
	char ready;

	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	fflush(NULL);
	child.pid = fork();
	if (child.pid == 0) {
		close(to[1]);
		close(from[0]);
		child_main(socket, first, to[0], from[1]);
	}
	close(to[0]);
	close(from[1]);
	child.tell = to[1];
	child.hear = from[0];
	assert_int_equal(read(child.hear, &ready, 1), 1);
	return child;
}

static void child_end(struct child *child, int sig)
{
	int status;

	kill(child->pid, sig);
	assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
	close(child->tell);
	close(child->hear);
}

/* Does its session still count? */
static bool child_counts(const struct child *child)
{
	char word = 0;

	assert_int_equal(write(child->tell, "w", 1), 1);
	assert_int_equal(read(child->hear, &word, 1), 1);
	return word == '1';
}

/* ---- clients that die ---- */

/* B08 */
static void a_killed_client_leaves_no_pin_and_no_grant_behind_for_longer_than_two_seconds(void **state)
{
	struct fixture *f = *state;
	struct child child;
	struct kvp_wire_grant all[128];

	connect_client(f);
	child = given_child(f->host.socket, 1);
	wait_gauges(f, 4, 3, 2, 5000);
	child_end(&child, SIGKILL);
	wait_gauges(f, 0, 0, 1, 2000);
	for (uint64_t k = 1; k <= 4; k++)
		assert_true(reads_right(&f->ns, k)); /* what it published stays */
	assert_int_equal(wire_reserve(&f->ns, all, 128, 2000), 128); /* a full-pool alloc works */
	assert_int_equal(atomic_load(&f->host.stats->counters.sessions_died), 1);
}

/* B38, fewer rounds */
static void killed_clients_cost_the_daemon_nothing_in_the_end(void **state)
{
	struct fixture *f = *state;
	unsigned fds = 0, maps = 0, objects = 0;

	connect_client(f);
	for (unsigned round = 0; round < 100; round++) {
		struct child child = given_child(f->host.socket, round % 8 * 4);

		child_end(&child, SIGKILL);
		if (round == 10) {
			wait_gauges(f, 0, 0, 1, 2000);
			fds = host_n_fds(&f->host);
			maps = host_n_maps(&f->host);
			objects = host_objects(&f->host, NULL);
		}
	}
	wait_gauges(f, 0, 0, 1, 2000);
	assert_true(host_n_fds(&f->host) <= fds + 5);
	assert_true(host_n_maps(&f->host) <= maps + 5);
	assert_int_equal(host_objects(&f->host, NULL), objects);
}

static void a_stopped_client_is_not_taken_for_dead(void **state)
{
	struct fixture *f = *state;
	struct child child;

	connect_client(f);
	child = given_child(f->host.socket, 1);
	wait_gauges(f, 4, 3, 2, 5000);
	kill(child.pid, SIGSTOP);
	wire_sleep_ms(1500); /* 15 heartbeats */
	wait_gauges(f, 4, 3, 2, 1000);
	kill(child.pid, SIGCONT);
	assert_true(child_counts(&child));
	child_end(&child, SIGKILL);
	wait_gauges(f, 0, 0, 1, 2000);
}

static void a_silent_client_past_the_hold_limit_loses_its_holds_when_memory_is_needed_and_can_tell(void **state)
{
	static const char *const limited[] = {
		"--pool", "1M", "--slab", "1M", "--hold-limit", "500", "--free-percent", "0", NULL};
	struct fixture *f = *state;
	struct kvp_wire_grant grants[16];
	struct child child;

	host_kill(&f->host);
	assert_int_equal(host_start(&f->host, limited), 0); /* a smaller pool: the old one is dropped by a purge */
	host_close(&f->host);
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	assert_int_equal(host_start(&f->host, limited), 0);
	connect_client(f);
	child = given_child(f->host.socket, 1); /* 4 held, 3 granted of 16 */
	wait_gauges(f, 4, 3, 2, 5000);
	kill(child.pid, SIGSTOP);
	wire_sleep_ms(800);
	wait_gauges(f, 4, 3, 2, 1000); /* nobody needs it: nothing happens */
	assert_int_equal(wire_reserve(&f->ns, grants, 9, 0), 9);
	assert_true(wire_reserve(&f->ns, grants + 9, 1, 5000) == 1);
	assert_true(host_logged(&f->host, "hold-limit", 1000));
	assert_int_equal(atomic_load(&f->host.stats->counters.sessions_condemned), 1);
	kill(child.pid, SIGCONT);
	assert_false(child_counts(&child));
	child_end(&child, SIGKILL);
	wait_gauges(f, 0, 10, 1, 3000);
}

static void a_closed_socket_alone_ends_nothing_and_the_session_resumes(void **state)
{
	struct fixture *f = *state;
	struct kvp_wire_grant grants[2];
	struct wire_pinned pinned;
	struct kvp_key key = wire_key(1);
	uint64_t id;

	connect_client(f);
	put(&f->ns, 1);
	assert_int_equal(wire_pin(&f->ns, &key, &pinned), 1);
	assert_int_equal(wire_reserve(&f->ns, grants, 2, 0), 2);
	id = f->w.welcome.session_id;
	wire_drop(&f->w);
	wire_sleep_ms(800);
	wait_gauges(f, 1, 2, 1, 2000);
	{
		struct wire again;
		struct kvp_wire_item item = {.slot = grants[0].slot,
			.generation = grants[0].generation,
			.key = wire_key(2),
			.used_bytes = BLOCK,
			.used_tokens = 16};
		struct kvp_wire_result result;

		assert_int_equal(wire_connect(&again, f->host.socket), 0);
		f->w.fd = again.fd;
		assert_int_equal(wire_hello(&f->w, id), 0);
		assert_int_equal(f->w.welcome.session_id, id);
		wire_fill(wire_data(&f->ns, grants[0].slot), BLOCK, 2);
		assert_int_equal(wire_publish(&f->ns, &item, 1, &result), 1);
		assert_int_equal(result.result, KVP_PUB_STORED);
	}
	assert_true(reads_right(&f->ns, 2));
	wire_unpin(&f->ns, &pinned);
}

static void a_client_whose_lock_is_free_for_long_is_gone_though_its_socket_is_open(void **state)
{
	struct fixture *f = *state;
	struct flock unlock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
	struct kvp_wire_grant grant;

	connect_client(f);
	assert_int_equal(wire_reserve(&f->ns, &grant, 1, 0), 1);
	assert_int_equal(fcntl(f->w.session_fd, F_SETLK, &unlock), 0);
	wait_gauges(f, 0, 0, 0, 3000);
	assert_true(host_logged(&f->host, "its lock is free", 1000));
}

static void bye_ends_the_session_at_once_though_its_process_lives(void **state)
{
	struct fixture *f = *state;
	struct wire_pinned pinned;
	struct kvp_key key = wire_key(1);

	connect_client(f);
	put(&f->ns, 1);
	assert_int_equal(wire_pin(&f->ns, &key, &pinned), 1);
	wait_gauges(f, 1, 0, 1, 2000);
	assert_int_equal(wire_send(&f->w, KVP_MSG_BYE, 0, NULL, 0, NULL, 0), 0);
	wait_gauges(f, 0, 0, 1, 2000); /* its word is cleared; the object goes with its process, that may still store */
	assert_int_equal(atomic_load(&f->w.session->word), 0);
	close(f->w.session_fd);
	f->w.session_fd = -1;
	wait_gauges(f, 0, 0, 0, 2000);
}

/* ---- the daemon dies ---- */

static void resume(struct fixture *f)
{
	struct wire again;
	struct kvp_wire_join join = {.ns_id = f->ns.id};
	struct wire_ns joined;

	assert_int_equal(wire_connect(&again, f->host.socket), 0);
	wire_drop(&f->w);
	f->w.fd = again.fd;
	assert_int_equal(wire_hello(&f->w, f->w.welcome.session_id), 0);
	assert_int_equal(wire_join_as(&f->w, &joined, &join), 0);
	assert_int_equal(joined.id, f->ns.id);
	wire_leave(&joined);
}

struct flicker {
	int fd;
	_Atomic bool stop;
};

static void *flicker_run(void *owner)
{
	struct flicker *flicker = owner;

	while (!atomic_load(&flicker->stop)) {
		struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

		fcntl(flicker->fd, F_SETLK, &lock);
		usleep(1500);
		lock.l_type = F_WRLCK;
		fcntl(flicker->fd, F_SETLK, &lock);
		usleep(1500);
	}
	return NULL;
}

/* Libraries of before close a descriptor of the session object now and then, which drops the lock until they take it
   anew. */
static void a_lock_that_is_free_for_a_moment_while_a_daemon_starts_is_no_death(void **state)
{
	struct fixture *f = *state;
	struct flicker flicker;
	struct kvp_wire_grant grant;
	pthread_t thread;

	connect_client(f);
	assert_int_equal(wire_reserve(&f->ns, &grant, 1, 0), 1);
	for (unsigned i = 0; i < 8; i++) {
		host_kill(&f->host);
		flicker = (struct flicker){.fd = f->w.session_fd};
		assert_int_equal(pthread_create(&thread, NULL, flicker_run, &flicker), 0);
		assert_int_equal(host_start(&f->host, NULL), 0);
		atomic_store(&flicker.stop, true);
		pthread_join(thread, NULL);
		resume(f); /* the same session, or it asserts */
	}
}

static void after_a_kill_of_the_daemon_blocks_pins_and_grants_are_all_still_there(void **state)
{
	struct fixture *f = *state;
	struct wire_pinned pinned[4];
	struct kvp_wire_grant grants[5];
	struct kvp_wire_item item = {.key = wire_key(500), .used_bytes = BLOCK, .used_tokens = 16};
	struct kvp_wire_result result;
	uint64_t epoch;

	connect_client(f);
	for (uint64_t k = 0; k < 100; k++)
		put(&f->ns, k);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(
			wire_pin(&f->ns, &(struct kvp_key){{wire_key(i).w[0], wire_key(i).w[1]}}, &pinned[i]), 1);
	assert_int_equal(wire_reserve(&f->ns, grants, 5, 0), 5);
	wire_fill(wire_data(&f->ns, grants[0].slot), BLOCK, 500);
	epoch = f->w.welcome.epoch;
	for (uint64_t k = 0; k < 100; k++)
		assert_true(reads_right(&f->ns, k)); /* all is mapped now */

	host_kill(&f->host);
	for (uint64_t k = 0; k < 100; k++)
		assert_true(reads_right(&f->ns, k)); /* with no daemon at all */
	assert_int_equal(host_start(&f->host, NULL), 0);
	wait_gauges(f, 4, 5, 1, 3000); /* before the engine has called in */
	assert_int_equal(atomic_load(&f->w.session->word), 1);
	resume(f);
	assert_true(f->w.welcome.epoch > epoch);
	for (uint64_t k = 0; k < 100; k++)
		assert_true(reads_right(&f->ns, k));
	assert_true(wire_keep(&f->ns, grants, 2) >= 0); /* the others it does not list: an answer that never arrived */
	wait_gauges(f, 4, 2, 1, 3000);
	item.slot = grants[0].slot;
	item.generation = grants[0].generation;
	assert_int_equal(wire_publish(&f->ns, &item, 1, &result), 1);
	assert_int_equal(result.result, KVP_PUB_STORED);
	assert_true(reads_right(&f->ns, 500));
	item.slot = grants[4].slot;
	item.generation = grants[4].generation;
	item.key = wire_key(501);
	assert_int_equal(wire_publish(&f->ns, &item, 1, &result), 1);
	assert_int_equal(result.result, -KVP_ESTALE);
	/* pins of before stop eviction of now */
	for (uint64_t k = 1000; k < 1200; k++)
		put(&f->ns, k);
	for (unsigned i = 0; i < 4; i++) {
		assert_true(wire_right(pinned[i].data, BLOCK, i));
		assert_true(atomic_load(&f->ns.blocks[pinned[i].slot].word) == pinned[i].word);
		wire_unpin(&f->ns, &pinned[i]);
	}
	assert_true(wire_abandon(&f->ns, grants + 1, 1) >= 0);
	wait_gauges(f, 0, 0, 1, 3000);
}

static void a_pin_in_a_place_never_pinned_before_a_kill_counts_after_it(void **state)
{
	struct fixture *f = *state;
	struct wire other;
	struct wire_ns ns;
	struct wire_pinned pinned;

	connect_client(f);
	put(&f->ns, 1);
	for (uint32_t place = 0; place < f->ns.head->max_places; place++)
		if (atomic_load(&f->ns.slabs[place].number))
			assert_int_equal(wire_map(&f->ns, place, false), 0);
	host_kill(&f->host);
	assert_int_equal(host_start(&f->host, NULL), 0);
	/* the new daemon knows of the place only by the page it finds; the client has not called in */
	assert_int_equal(wire_pin(&f->ns, &(struct kvp_key){{wire_key(1).w[0], wire_key(1).w[1]}}, &pinned), 1);
	assert_int_equal(wire_open(&other, f->host.socket), 0);
	assert_int_equal(wire_join(&other, &ns, "m", BLOCK), 0);
	for (uint64_t k = 1000; k < 1200; k++)
		put(&ns, k); /* more than there is room for */
	assert_true(wire_right(pinned.data, BLOCK, 1));
	assert_true(atomic_load(&f->ns.blocks[pinned.slot].word) == pinned.word);
	wire_unpin(&f->ns, &pinned);
	wire_leave(&ns);
	wire_close(&other);
}

static void a_client_that_died_while_there_was_no_daemon_leaves_nothing_either(void **state)
{
	struct fixture *f = *state;
	struct child child;

	connect_client(f);
	child = given_child(f->host.socket, 1);
	wait_gauges(f, 4, 3, 2, 5000);
	host_kill(&f->host);
	child_end(&child, SIGKILL);
	assert_int_equal(host_start(&f->host, NULL), 0);
	wait_gauges(f, 0, 0, 1, 2000);
	resume(f);
	for (uint64_t k = 1; k <= 4; k++)
		assert_true(reads_right(&f->ns, k));
}

static void twenty_kills_under_load_leave_right_bytes_and_sums(void **state)
{
	struct fixture *f = *state;
	uint64_t k = 0;

	connect_client(f);
	for (unsigned round = 0; round < 20; round++) {
		pid_t killer;
		uint64_t first = k;
		int go[2];
		char c;

		assert_int_equal(pipe(go), 0);
		fflush(NULL);
		killer = fork();
		if (killer == 0) {
			close(go[1]);
			if (read(go[0], &c, 1) == 1)
				wire_sleep_ms(round * 3);
			kill(f->host.pid, SIGKILL);
			_exit(0);
		}
		for (;; k++) {
			struct kvp_key key = wire_key(k);
			int r = wire_put(&f->ns, &key, NULL, k, 2000);

			if (r != KVP_PUB_STORED)
				break;
			if (k == first + 12) /* however slow the machine is */
				assert_int_equal(write(go[1], "", 1), 1);
		}
		close(go[0]);
		close(go[1]);
		waitpid(killer, NULL, 0);
		host_kill(&f->host);
		assert_int_equal(host_start(&f->host, NULL), 0);
		resume(f);
		assert_true(wire_keep(&f->ns, NULL, 0) >= 0);
		for (uint64_t i = k > first + 20 ? k - 20 : first; i < k; i++)
			assert_true(reads_right(&f->ns, i)); /* what was answered STORED is there */
		assert_true(host_conserves(&f->host));
		k++; /* its fate is not known */
	}
	assert_true(k > 200);
	wait_gauges(f, 0, 0, 1, 2000);
}

static void a_second_daemon_of_the_same_pool_is_refused_and_the_first_does_not_notice(void **state)
{
	struct fixture *f = *state;
	struct host second = f->host;
	char command[1024];

	snprintf(second.socket, sizeof(second.socket), "%s/other", f->host.dir);
	snprintf(second.log, sizeof(second.log), "%s/other.log", f->host.dir);
	second.stats = NULL;
	assert_int_equal(host_start(&second, options), -1001);
	assert_true(host_logged(&second, "is served by another kvpoold (pid ", 1000));
	assert_true(host_logged(&second, "choose another --name", 1000));
	/* another pool, but the socket of the first; by hand, for host_start() would take the first's answers for the
	   second's */
	snprintf(command, sizeof(command), "'%s' --name '%.20s-b' --socket '%s' --pool 1M 2>> '%s'", f->host.binary,
		f->host.name, f->host.socket, second.log);
	assert_int_equal(WEXITSTATUS(system(command)), 1);
	assert_true(host_logged(&second, "is served by another daemon", 1000));
	snprintf(command, sizeof(command), "/dev/shm/kvpool.%.20s-b", f->host.name);
	assert_int_equal(access(command, F_OK), -1); /* it left nothing behind */
	assert_true(host_alive(&f->host));
	connect_client(f);
	put(&f->ns, 1);
}

/* B28 */
static void five_kills_never_take_more_than_one_pool_of_memory(void **state)
{
	struct fixture *f = *state;
	uint64_t bytes, first;

	host_objects(&f->host, &first);
	assert_true(first >= 8 * MIB);
	for (unsigned i = 0; i < 5; i++) {
		connect_client(f);
		for (uint64_t k = 0; k < 140; k++)
			put(&f->ns, 1000 * i + k);
		wire_leave(&f->ns);
		wire_close(&f->w);
		host_kill(&f->host);
		host_objects(&f->host, &bytes);
		assert_true(bytes <= 8 * MIB + 2 * MIB);
		assert_int_equal(host_start(&f->host, NULL), 0);
		host_objects(&f->host, &bytes);
		assert_true(bytes <= 8 * MIB + 2 * MIB);
	}
}

static int admin_purge(struct fixture *f)
{
	struct kvp_wire_admin admin = {.deadline_ns = 0};
	struct kvp_wire_admin_done done;
	char path[112];
	struct wire w;
	int r;

	snprintf(path, sizeof(path), "%s.admin", f->host.socket);
	r = wire_connect(&w, path);
	if (r == 0)
		r = wire_call(&w, KVP_MSG_PURGE, &admin, sizeof(admin), &done, sizeof(done));
	wire_close(&w);
	return r;
}

static void a_purge_by_an_operator_leaves_nothing(void **state)
{
	struct fixture *f = *state;
	char path[160];
	struct stat st;
	int status;

	connect_client(f);
	put(&f->ns, 1);
	assert_int_equal(admin_purge(f), sizeof(struct kvp_wire_admin_done));
	assert_int_equal(waitpid(f->host.pid, &status, 0), f->host.pid);
	f->host.pid = 0;
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(host_objects(&f->host, NULL), 0);
	snprintf(path, sizeof(path), "/dev/shm/kvpool.%s", f->host.name);
	assert_int_equal(stat(path, &st), -1);
}

/* B34: the pool is another one now. */
static void a_daemon_of_another_pool_refuses_the_old_session_and_old_mappings_stay_readable(void **state)
{
	struct fixture *f = *state;
	struct wire_pinned pinned;
	struct kvp_key key = wire_key(1);
	struct wire again;

	connect_client(f);
	put(&f->ns, 1);
	assert_int_equal(wire_pin(&f->ns, &key, &pinned), 1);
	assert_true(admin_purge(f) >= 0);
	waitpid(f->host.pid, NULL, 0);
	f->host.pid = 0;
	assert_int_equal(host_start(&f->host, NULL), 0);
	assert_int_equal(wire_connect(&again, f->host.socket), 0);
	memcpy(again.welcome.uuid, f->w.welcome.uuid, 16);
	assert_int_equal(wire_hello(&again, f->w.welcome.session_id), -KVP_EGONE);
	wire_close(&again);
	assert_true(wire_right(pinned.data, BLOCK, 1));
}

/* ---- signals ---- */

static void sigterm_keeps_the_memory_says_how_much_and_how_to_free_it(void **state)
{
	struct fixture *f = *state;
	int status;

	connect_client(f);
	for (uint64_t k = 0; k < 50; k++)
		put(&f->ns, k);
	status = host_stop(&f->host);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_true(host_logged(&f->host, "stopped: 8388608 bytes of shared memory with 50 blocks stay", 1000));
	assert_true(host_logged(&f->host, "kvctl purge", 0));
	assert_int_equal(atomic_load(&f->w.header->state), KVP_DAEMON_STOPPED);
	assert_int_equal(access(f->host.socket, F_OK), -1);
	assert_int_equal(host_start(&f->host, NULL), 0);
	resume(f);
	for (uint64_t k = 0; k < 50; k++)
		assert_true(reads_right(&f->ns, k));
}

static void write_config(const struct fixture *f, const char *text)
{
	char path[96];
	FILE *file;

	snprintf(path, sizeof(path), "%s/conf", f->host.dir);
	file = fopen(path, "we");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void sighup_rereads_what_may_change_and_a_bad_file_changes_nothing(void **state)
{
	struct fixture *f = *state;
	char path[96];
	const char *with_file[] = {"--pool", "8M", "--slab", "1M", "--config", path, NULL};
	struct wire second, third;

	snprintf(path, sizeof(path), "%s/conf", f->host.dir);
	host_kill(&f->host);
	write_config(f, "uid-max-clients = 1\n");
	assert_int_equal(host_start(&f->host, with_file), 0);
	connect_client(f);
	assert_int_equal(wire_open(&second, f->host.socket), -KVP_EQUOTA);
	wire_close(&second);
	write_config(f, "uid-max-clients = 2\nlog-level = debug\n");
	kill(f->host.pid, SIGHUP);
	assert_true(host_logged(&f->host, ": reloaded", 5000));
	assert_int_equal(wire_open(&second, f->host.socket), 0);
	write_config(f, "uid-max-clients = 3\nuid-max-clinets = 4\n");
	kill(f->host.pid, SIGHUP);
	assert_true(host_logged(&f->host, "not reloaded, the old values stay", 5000));
	assert_true(
		host_logged(&f->host, "conf:2: no option \"uid-max-clinets\"; did you mean \"uid-max-clients\"", 0));
	assert_int_equal(wire_open(&third, f->host.socket), -KVP_EQUOTA);
	wire_close(&third);
	wire_close(&second);
}

static void sigusr1_dumps_the_state(void **state)
{
	struct fixture *f = *state;

	connect_client(f);
	put(&f->ns, 1);
	kill(f->host.pid, SIGUSR1);
	assert_true(host_logged(&f->host, "state: namespace m of uid", 5000));
	assert_true(host_logged(&f->host, "1 published", 0));
}

/* ---- what is found at the start ---- */

static void an_object_nobody_lists_is_removed_at_the_start(void **state)
{
	struct fixture *f = *state;
	static const char *const names[] = {"slab-999", "ns-00000000000000ff", "sess-00000000000000ff", "stage-998"};
	char path[160];

	host_kill(&f->host);
	for (unsigned i = 0; i < 4; i++) {
		int fd;

		host_object(&f->host, path, names[i]);
		fd = open(path, O_RDWR | O_CREAT, 0600);
		assert_true(fd >= 0);
		assert_int_equal(ftruncate(fd, 4096), 0);
		close(fd);
	}
	assert_int_equal(host_start(&f->host, NULL), 0);
	for (unsigned i = 0; i < 4; i++) {
		host_object(&f->host, path, names[i]);
		assert_int_equal(access(path, F_OK), -1);
	}
}

static int header_field_off(size_t off, const void *value, size_t n, struct fixture *f)
{
	char path[160];
	int fd, r;

	host_object(&f->host, path, "header");
	fd = open(path, O_RDWR);
	r = pwrite(fd, value, n, (off_t)off) == (ssize_t)n ? 0 : -1;
	close(fd);
	return r;
}

static void a_pool_that_does_not_fit_is_dropped_with_one_line_and_a_new_one_made(void **state)
{
	struct fixture *f = *state;
	static const uint16_t major = 9;
	static const uint64_t magic = 0x1234;
	static const uint32_t endian = 0x04030201;
	static const uint64_t bytes = 12;
	char path[160];

	for (unsigned round = 0; round < 6; round++) {
		uint8_t before[16];

		connect_client(f);
		put(&f->ns, 1);
		wire_leave(&f->ns);
		wire_close(&f->w);
		memcpy(before, f->host.uuid, 16);
		host_kill(&f->host);
		switch (round) {
		case 0:
			assert_int_equal(
				header_field_off(offsetof(struct kvp_pool_header, layout_major), &major, 2, f), 0);
			break;
		case 1:
			assert_int_equal(header_field_off(offsetof(struct kvp_pool_header, magic), &magic, 8, f), 0);
			break;
		case 2:
			assert_int_equal(header_field_off(offsetof(struct kvp_pool_header, endian), &endian, 4, f), 0);
			break;
		case 3:
			assert_int_equal(
				header_field_off(offsetof(struct kvp_pool_header, header_bytes), &bytes, 8, f), 0);
			break;
		case 4:
			host_object(&f->host, path, "header");
			assert_int_equal(truncate(path, 100), 0);
			break;
		default:
			host_object(&f->host, path, "stats");
			assert_int_equal(truncate(path, 5000), 0);
		}
		assert_int_equal(host_start(&f->host, NULL), 0);
		assert_true(host_logged(&f->host, "of an earlier daemon is dropped", 0));
		assert_memory_not_equal(before, f->host.uuid, 16);
		connect_client(f);
		assert_false(reads_right(&f->ns, 1));
		wire_leave(&f->ns);
		wire_close(&f->w);
	}
	snprintf(path, sizeof(path), "its layout is version 9.%u with a header of %zu bytes, this kvpoold's is %u.%u",
		KVP_LAYOUT_MINOR, sizeof(struct kvp_pool_header), KVP_LAYOUT_MAJOR, KVP_LAYOUT_MINOR);
	assert_true(host_logged(&f->host, path, 0));
}

static void a_lost_or_broken_slab_loses_its_blocks_and_never_lends_their_names_to_other_bytes(void **state)
{
	struct fixture *f = *state;
	unsigned lost = 0;

	connect_client(f);
	for (unsigned round = 0; round < 3; round++) {
		uint64_t first = round * 1000, number;
		char path[160], rest[40];
		int fd;

		for (uint64_t k = first; k < first + 128; k++)
			put(&f->ns, k);
		number = atomic_load(&f->ns.slabs[3].number);
		assert_true(number != 0);
		host_kill(&f->host);
		snprintf(rest, sizeof(rest), "slab-%llu", (unsigned long long)number);
		host_object(&f->host, path, rest);
		fd = open(path, O_RDWR);
		assert_true(fd >= 0);
		if (round == 0)
			assert_int_equal(unlink(path), 0);
		else if (round == 1)
			assert_int_equal(ftruncate(fd, 4096), 0);
		else
			assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, MIB / 2), 0);
		close(fd);
		assert_int_equal(host_start(&f->host, NULL), 0);
		resume(f);
		/* a slab of zeroes takes the place: what its descriptors say of before must not speak for it */
		for (unsigned turn = 0; turn < 2; turn++) {
			unsigned found = 0;

			for (uint64_t k = first; k < first + 128; k++)
				found += reads_right(&f->ns, k);
			assert_in_range(found, 0, 112);
			lost += 128 - found;
			for (uint64_t k = first + 500; turn == 0 && k < first + 520; k++)
				put(&f->ns, k);
		}
	}
	assert_true(lost >= 6 * 16);
	assert_true(host_logged(&f->host, "is lost or changed: its blocks are dropped", 0));
}

static void a_damaged_namespace_is_dropped_and_its_memory_used_again(void **state)
{
	struct fixture *f = *state;
	char path[160], rest[40];

	connect_client(f);
	for (uint64_t k = 0; k < 128; k++)
		put(&f->ns, k);
	snprintf(rest, sizeof(rest), "ns-%016llx", (unsigned long long)f->ns.id);
	host_object(&f->host, path, rest);
	wire_leave(&f->ns);
	wire_close(&f->w);
	host_kill(&f->host);
	assert_int_equal(truncate(path, 8192), 0);
	assert_int_equal(host_start(&f->host, NULL), 0);
	assert_true(host_logged(&f->host, "of the last daemon is lost or damaged", 0));
	connect_client(f);
	for (uint64_t k = 0; k < 128; k++)
		assert_false(reads_right(&f->ns, k));
	for (uint64_t k = 0; k < 128; k++)
		put(&f->ns, k);
	for (uint64_t k = 0; k < 128; k++)
		assert_true(reads_right(&f->ns, k));
}

static char path_to_spoil[80];

static int start_with_pool_file(struct fixture *f, void (*spoil)(void))
{

	host_close(&f->host);
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	snprintf(path_to_spoil, sizeof(path_to_spoil), "/dev/shm/kvpool.%s", f->host.name);
	spoil();
	return host_start(&f->host, options);
}

static void spoil_symlink(void)
{
	assert_int_equal(symlink("/etc/hostname", path_to_spoil), 0);
}

static void spoil_link(void)
{
	char other[200];
	int fd = open(path_to_spoil, O_RDWR | O_CREAT, 0600);

	assert_true(fd >= 0);
	close(fd);
	snprintf(other, sizeof(other), "%s.second", path_to_spoil);
	assert_int_equal(link(path_to_spoil, other), 0);
}

static void spoil_owner(void)
{
	int fd = open(path_to_spoil, O_RDWR | O_CREAT, 0666);

	assert_true(fd >= 0);
	assert_int_equal(fchown(fd, 61003, 61003), 0);
	close(fd);
}

static void spoil_text(void)
{
	int fd = open(path_to_spoil, O_RDWR | O_CREAT, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, "no uuid at all", 14), 14);
	close(fd);
}

static void a_pool_file_that_is_not_ours_is_refused_and_a_senseless_one_written_anew(void **state)
{
	struct fixture *f = *state;
	char path[200];

	assert_int_equal(start_with_pool_file(f, spoil_symlink), -1001);
	assert_int_equal(start_with_pool_file(f, spoil_link), -1001);
	assert_true(host_logged(&f->host, "is not ours (owner, type or links)", 0));
	snprintf(path, sizeof(path), "/dev/shm/kvpool.%s.second", f->host.name);
	unlink(path);
	if (geteuid() == 0)
		assert_int_equal(start_with_pool_file(f, spoil_owner), -1001);
	assert_int_equal(start_with_pool_file(f, spoil_text), 0);
}

/* ---- starts that must not succeed ---- */

static void refused(struct fixture *f, const char *const *with, int status, const char *text)
{
	host_close(&f->host);
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	assert_int_equal(host_start(&f->host, with), -(1000 + status));
	if (!host_logged(&f->host, text, 0))
		fail_msg("not in the log: %s", text);
	assert_int_equal(host_objects(&f->host, NULL), 0);
}

static void a_pool_larger_than_the_memory_there_is_is_refused_with_the_way_out(void **state)
{
	struct fixture *f = *state;
	char path[160];

	refused(f, (const char *const[]){"--pool", "40T", "--slab", "1G", NULL}, 1, "give a smaller one");
	snprintf(path, sizeof(path), "/dev/shm/kvpool.%s", f->host.name);
	assert_int_equal(access(path, F_OK), -1); /* a start that fails leaves nothing */
}

static void a_full_dev_shm_is_refused_before_readiness(void **state)
{
	struct fixture *f = *state;
	int status;
	pid_t pid;

	host_close(&f->host);
	if (geteuid() != 0) {
		printf("skipped: mounting a small /dev/shm needs root\n");
		skip();
	}
	fflush(NULL);
	pid = fork();
	if (pid == 0) { /* in a mount namespace of its own, with 4 MiB of /dev/shm */
		static const char *const with[] = {"--pool", "8M", "--slab", "1M", NULL};
		struct host host;
		int r;

		if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
			mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=4m") < 0)
			_exit(77);
		if (host_open(&host, 0) < 0)
			_exit(2);
		r = host_start(&host, with);
		if (r != -1001 || !host_logged(&host, "/dev/shm has ", 0) || !host_logged(&host, "enlarge it", 0))
			_exit(3);
		if (host_start(&host, (const char *const[]){"--pool", "2M", "--slab", "1M", NULL}) != 0)
			_exit(4);
		host_close(&host);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WEXITSTATUS(status) == 77) {
		printf("skipped: no mount namespace to be had here\n");
		skip();
	}
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_senseless_configuration_ends_the_start_with_status_2_and_a_hint(void **state)
{
	struct fixture *f = *state;

	refused(f, (const char *const[]){"--pool", "3X", NULL}, 2, "\"3X\" is not a size, or sizes of nodes: use 64G");
	refused(f, (const char *const[]){"--poool", "3G", NULL}, 2, "did you mean --pool");
	refused(f, (const char *const[]){"--socket", "relative/path", NULL}, 2, "give an absolute one");
	refused(f,
		(const char *const[]){"--socket",
			"/tmp/a-path-that-is-longer-than-a-unix-address-can-hold-because-it-goes-on-and-on-and-on-and-on-and-on/sock",
			NULL},
		2, "use a shorter");
	refused(f, (const char *const[]){"--socket", "/tmp/no/such/directory/sock", "--pool", "1M", NULL}, 1,
		"make its directory first");
	refused(f, (const char *const[]){"--group", "no-such-group-here", NULL}, 2, "there is no such group");
}

/* As an ordinary user's daemon, where only root may write. */
static void a_socket_directory_that_may_not_be_written_is_named_with_the_way_out(void **state)
{
	struct fixture *f = *state;

	host_close(&f->host);
	assert_int_equal(host_open(&f->host, geteuid() ? geteuid() : 12345), 0);
	assert_int_equal(
		host_start(&f->host, (const char *const[]){"--socket", "/kvpool-test-sock", "--pool", "1M", NULL}),
		-1001);
	assert_true(host_logged(&f->host,
		"cannot listen on /kvpool-test-sock: Permission denied; give the daemon's user its directory", 0));
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(while_it_starts_the_service_manager_is_told_how_far_it_is),
		cmocka_unit_test(a_start_longer_than_the_services_limit_is_waited_for),
		cmocka_unit_test(a_service_manager_that_reads_nothing_stops_nobody),
		cmocka_unit_test(what_of_a_pool_is_no_whole_slab_is_told),
		WITH_DAEMON(a_killed_client_leaves_no_pin_and_no_grant_behind_for_longer_than_two_seconds),
		WITH_DAEMON(killed_clients_cost_the_daemon_nothing_in_the_end),
		WITH_DAEMON(a_stopped_client_is_not_taken_for_dead),
		WITH_DAEMON(a_silent_client_past_the_hold_limit_loses_its_holds_when_memory_is_needed_and_can_tell),
		WITH_DAEMON(a_closed_socket_alone_ends_nothing_and_the_session_resumes),
		WITH_DAEMON(a_client_whose_lock_is_free_for_long_is_gone_though_its_socket_is_open),
		WITH_DAEMON(bye_ends_the_session_at_once_though_its_process_lives),
		WITH_DAEMON(a_lock_that_is_free_for_a_moment_while_a_daemon_starts_is_no_death),
		WITH_DAEMON(after_a_kill_of_the_daemon_blocks_pins_and_grants_are_all_still_there),
		WITH_DAEMON(a_pin_in_a_place_never_pinned_before_a_kill_counts_after_it),
		WITH_DAEMON(a_client_that_died_while_there_was_no_daemon_leaves_nothing_either),
		WITH_DAEMON(twenty_kills_under_load_leave_right_bytes_and_sums),
		WITH_DAEMON(a_second_daemon_of_the_same_pool_is_refused_and_the_first_does_not_notice),
		WITH_DAEMON(five_kills_never_take_more_than_one_pool_of_memory),
		WITH_DAEMON(a_purge_by_an_operator_leaves_nothing),
		WITH_DAEMON(a_daemon_of_another_pool_refuses_the_old_session_and_old_mappings_stay_readable),
		WITH_DAEMON(sigterm_keeps_the_memory_says_how_much_and_how_to_free_it),
		WITH_DAEMON(sighup_rereads_what_may_change_and_a_bad_file_changes_nothing),
		WITH_DAEMON(sigusr1_dumps_the_state),
		WITH_DAEMON(an_object_nobody_lists_is_removed_at_the_start),
		WITH_DAEMON(a_pool_that_does_not_fit_is_dropped_with_one_line_and_a_new_one_made),
		WITH_DAEMON(a_lost_or_broken_slab_loses_its_blocks_and_never_lends_their_names_to_other_bytes),
		WITH_DAEMON(a_damaged_namespace_is_dropped_and_its_memory_used_again),
		WITH_DAEMON(a_pool_file_that_is_not_ours_is_refused_and_a_senseless_one_written_anew),
		WITH_DAEMON(a_pool_larger_than_the_memory_there_is_is_refused_with_the_way_out),
		WITH_DAEMON(a_full_dev_shm_is_refused_before_readiness),
		WITH_DAEMON(a_socket_directory_that_may_not_be_written_is_named_with_the_way_out),
		WITH_DAEMON(a_senseless_configuration_ends_the_start_with_status_2_and_a_hint),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
