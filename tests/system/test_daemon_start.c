/*
 * test_daemon_start.c - what a daemon is handed by a service manager, and what it refuses at its start, to an operator or an engine: each with its way out
 *
 * kvpool-test: parallel
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define FD_FIRST 3 /* of those handed over */

/* ---- with a service manager ---- */

static int listens_at(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 8), 0);
	return fd;
}

/* As a service manager runs it: descriptors from 3 on, told by the environment. */
static void run_with(struct host *host, const int *fds, unsigned n, const char *names)
{
	int log = open(host->log, O_WRONLY | O_CREAT | O_APPEND, 0644);

	assert_true(log >= 0);
	fflush(NULL);
	host->pid = fork();
	if (host->pid == 0) {
		char text[32];

		for (unsigned i = 0; i < n; i++) /* above where they go, so that none is closed on the way */
			if (fcntl(fds[i], F_DUPFD, 100 + (int)i) != 100 + (int)i)
				_exit(96);
		dup2(log, 2);
		for (unsigned i = 0; i < n; i++)
			dup2(100 + (int)i, FD_FIRST + (int)i);
		snprintf(text, sizeof(text), "%d", (int)getpid());
		setenv("LISTEN_PID", text, 1);
		snprintf(text, sizeof(text), "%u", n);
		setenv("LISTEN_FDS", text, 1);
		setenv("LISTEN_FDNAMES", names, 1);
		execl(host->binary, "kvpoold", "--socket", host->socket, "--name", host->name, "--pool", "4M", "--slab",
			"1M", "--spill", "off", (char *)NULL);
		_exit(95);
	}
	close(log);
}

static void sockets_handed_over_are_served_by_their_names_and_stay_with_who_made_them(void **state)
{
	char admin[128];
	struct trial t;
	int fds[2];

	(void)state;
	trial_given(&t, geteuid(), "4M", NULL);
	snprintf(admin, sizeof(admin), "%s.admin", t.host.socket);
	fds[0] = listens_at(admin);
	fds[1] = listens_at(t.host.socket);
	run_with(&t.host, fds, 2, "admin:clients");
	assert_int_equal(TRIAL_KVCTL(&t, NULL, 0, "ping", "--timeout", "20"), 0);
	assert_int_equal(TRIAL_KVCTL(&t, NULL, 0, "evict"), 0); /* by the other one */
	assert_int_equal(host_stop(&t.host), 0);
	assert_int_equal(access(t.host.socket, F_OK), 0); /* the service manager listens on, for the next start */
	assert_int_equal(access(admin, F_OK), 0);
	run_with(&t.host, fds, 2, "admin:clients");
	assert_int_equal(TRIAL_KVCTL(&t, NULL, 0, "ping", "--timeout", "20"), 0);
	assert_int_equal(host_stop(&t.host), 0);
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(TRIAL_KVCTL(&t, NULL, 0, "purge"), 0);
	host_close(&t.host);
}

static void what_is_handed_over_and_is_no_listening_socket_is_refused_by_its_name(void **state)
{
	struct host host;
	int fds[2], status;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	fds[0] = listens_at(host.socket);
	fds[1] = open("/dev/null", O_RDWR);
	run_with(&host, fds, 2, "clients:nonsense");
	assert_true(waitpid(host.pid, &status, 0) == host.pid);
	host.pid = 0;
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
	assert_true(host_logged(&host, "descriptor 4 (nonsense) is not a listening sequential-packet socket", 1000));
	assert_true(host_logged(&host, "ListenSequentialPacket=", 0));
	close(fds[0]);
	close(fds[1]);
	host_close(&host);
}

static void a_service_manager_with_a_watchdog_hears_of_it_in_time(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = 20};
	const char *const given[] = {"--pool", "4M", "--slab", "1M", "--spill", "off", NULL};
	unsigned beats = 0;
	struct host host;
	char text[512];
	ssize_t n;
	int fd;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", host.dir);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
	setenv("NOTIFY_SOCKET", address.sun_path, 1);
	setenv("WATCHDOG_USEC", "400000", 1);
	assert_int_equal(host_start(&host, given), 0);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	while (beats < 3 && (n = recv(fd, text, sizeof(text) - 1, 0)) > 0) {
		text[n] = 0;
		beats += strstr(text, "WATCHDOG=1") != NULL;
	}
	assert_int_equal(beats, 3);
	close(fd);
	host_close(&host);
}

/* ---- refused at the start ---- */

static void a_file_where_the_socket_should_be_is_left_alone_and_named(void **state)
{
	const char *const given[] = {"--pool", "4M", "--slab", "1M", "--spill", "off", NULL};
	struct host host;
	struct stat st;
	int fd;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	fd = open(host.socket, O_RDWR | O_CREAT, 0600);
	assert_true(fd >= 0 && write(fd, "mine", 4) == 4);
	close(fd);
	assert_true(host_start(&host, given) < -1000);
	assert_true(host_logged(&host, "exists and is not a socket: remove it, or choose another --socket", 1000));
	assert_false(host_logged(&host, "objects removed", 0));
	assert_int_equal(stat(host.socket, &st), 0);
	assert_int_equal(st.st_size, 4);
	assert_int_equal(host_objects(&host, NULL), 0); /* a pool nobody has used is not left behind */
	unlink(host.socket);
	host_close(&host);
}

static void a_socket_whose_directory_is_missing_is_refused_with_the_way_out(void **state)
{
	const char *const given[] = {"--pool", "4M", "--slab", "1M", "--spill", "off", NULL};
	struct host host;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	snprintf(host.socket, sizeof(host.socket), "%.60s/none/sock", host.dir);
	assert_true(host_start(&host, given) < -1000);
	assert_true(host_logged(&host, "none/sock: No such file or directory; make its directory first", 1000));
	assert_false(host_logged(&host, "objects removed", 0)); /* before any memory was made */
	host_close(&host);
}

/* A large pool takes its time to make, and to put away again. */
static void a_directory_of_namespaces_that_is_missing_is_refused_before_any_memory_is_made(void **state)
{
	const char *const given[] = {
		"--pool", "4M", "--slab", "1M", "--spill", "/dev/null", "--namespace-dir", "/nowhere/at/all", NULL};
	struct host host;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	assert_int_equal(host_start(&host, given), -1001);
	assert_true(host_logged(&host, "namespace-dir /nowhere/at/all: No such file or directory", 1000));
	assert_false(host_logged(&host, "objects removed", 0));
	host_close(&host);
}

static void a_size_of_slabs_a_kept_pool_was_not_made_with_is_said(void **state)
{
	const char *const made[] = {"--pool", "8M", "--slab", "1M", "--spill", "off", NULL};
	const char *const other[] = {"--pool", "8M", "--slab", "2M", "--spill", "off", NULL};
	const char *const usual[] = {"--pool", "8M", "--spill", "off", NULL};
	const char *const said = "this pool was made with 1048576 and stays so until kvctl purge";
	struct host host;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	assert_int_equal(host_start(&host, made), 0);
	assert_int_equal(host_stop(&host), 0);
	assert_int_equal(host_start(&host, made), 0);
	assert_int_equal(host_stop(&host), 0);
	assert_int_equal(host_start(&host, usual), 0);
	assert_int_equal(host_stop(&host), 0);
	assert_false(host_logged(&host, said, 0)); /* as it was asked for, or nothing was */
	assert_int_equal(host_start(&host, other), 0);
	assert_true(host_logged(&host, said, 1000));
	host_close(&host);
}

static void a_pool_kept_in_memory_is_not_started_larger_than_it_was_made_for(void **state)
{
	const char *const small[] = {"--pool", "2M", "--slab", "1M", "--spill", "off", NULL};
	char size[32];
	const char *const large[] = {"--pool", size, "--slab", "1M", "--spill", "off", NULL};
	const struct kvp_pool_header *header;
	char path[160];
	struct host host;
	int fd;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	assert_int_equal(host_start(&host, small), 0);
	host_object(&host, path, "header");
	fd = open(path, O_RDONLY);
	assert_true(fd >= 0);
	header = mmap(NULL, KVP_PAGE, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(header != MAP_FAILED);
	close(fd);
	snprintf(size, sizeof(size), "%uM", header->max_places + 1);
	assert_int_equal(host_stop(&host), 0);
	assert_true(host_start(&host, large) < -1000);
	assert_true(host_logged(&host, "the pool kept in memory was made for ", 1000));
	assert_true(host_logged(&host, "start smaller, or drop it with kvctl purge first", 0));
	assert_int_equal(host_start(&host, small), 0); /* it is there as it was */
	munmap((void *)(uintptr_t)header, KVP_PAGE);
	host_close(&host);
}

static void what_only_a_start_can_change_is_named_by_a_reload(void **state)
{
	char conf[96];
	const char *const given[] = {"--config", conf, NULL};
	struct host host;
	FILE *file;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	snprintf(conf, sizeof(conf), "%.60s/conf", host.dir);
	for (unsigned i = 0; i < 2; i++) {
		file = fopen(conf, "w");
		assert_non_null(file);
		fprintf(file, "pool = %s\nslab = 1M\nspill = off\n", i ? "8M" : "4M");
		fclose(file);
		if (!i)
			assert_int_equal(host_start(&host, given), 0);
	}
	assert_int_equal(kill(host.pid, SIGHUP), 0);
	assert_true(host_logged(&host, "as before until the next start", 10000));
	assert_true(host_logged(&host, "reload: ", 0));
	assert_true(host_alive(&host));
	host_close(&host);
}

/* ---- refused to an operator ---- */

static void without_a_store_what_needs_one_is_refused_and_said(void **state)
{
	static const struct {
		const char *words[4];
		const char *said;
	} cases[] = {
		{{"drain"}, "there is no spill store: start kvpoold with --spill DIR:SIZE"},
		{{"store", "drop", "--yes"}, "there is no spill store"},
		{{"store", "scrub"}, "there is no spill store"},
		{{"store", "scrub", "--rate", "1M"}, "there is no spill store"},
		{{"store", "list"}, "this pool's daemon has no spill store"},
		{{"store", "verify"}, "this pool's daemon has no spill store"},
	};
	char out[4096];
	struct trial t;

	(void)state;
	trial_given(&t, geteuid(), "4M", NULL);
	trial_start(&t);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *words[5] = {
			cases[i].words[0], cases[i].words[1], cases[i].words[2], cases[i].words[3], NULL};

		assert_int_equal(trial_kvctl(&t, out, sizeof(out), words), 1);
		if (!strstr(out, cases[i].said))
			fail_msg("%s", out);
	}
	assert_true(trial_end(&t));
}

static void a_policy_is_set_by_name_for_a_namespace_that_is_there(void **state)
{
	char out[4096];
	struct trial t;

	(void)state;
	trial_given(&t, geteuid(), "4M", NULL);
	trial_start(&t);
	trial_attach(&t);
	assert_int_equal(TRIAL_KVCTL(&t, out, sizeof(out), "ns", "set", "m", "policy=learned"), 0);
	assert_non_null(strstr(out, "m: policy=learned\n"));
	assert_int_equal(TRIAL_KVCTL(&t, out, sizeof(out), "ns", "set", "m", "policy=learned"), 0);
	assert_non_null(strstr(out, "m: policy=learned, as before"));
	assert_int_equal(TRIAL_KVCTL(&t, out, sizeof(out), "ns", "set", "m", "policy=lru"), 0);
	assert_int_equal(TRIAL_KVCTL(&t, out, sizeof(out), "ns", "set", "n", "policy=lru"), 1);
	assert_non_null(strstr(out, "no namespace n; kvctl ns lists them"));
	assert_int_equal(TRIAL_KVCTL(&t, out, sizeof(out), "evict", "--ns", "n"), 1);
	assert_non_null(strstr(out, "no namespace n"));
	assert_true(trial_end(&t));
}

/* ---- refused to an engine ---- */

/* The disk hangs, so that what is asked for stays on its way. */
static void what_may_be_on_its_way_for_a_user_is_bounded_and_the_limit_named(void **state)
{
	const char *build = getenv("BUILD");
	struct kvp_wire_found found[32];
	struct kvp_key keys[32];
	struct {
		struct kvp_wire_restore head;
		struct kvp_key keys[32];
	} ask = {.head = {.n = 32}};
	struct kvp_wire_join join = {.name = "m", .owner_uid = KVP_UID_SELF};
	struct wire_ns ns;
	struct wire w;
	struct trial t;

	(void)state;
	trial_given(&t, geteuid(), "8M", "64M");
	trial_start(&t);
	trial_attach(&t);
	for (uint64_t k = 0; k < 32; k++) {
		keys[k] = ask.keys[k] = wire_key(k);
		assert_int_equal(trial_put(t.ns, &keys[k], NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
	assert_int_equal(TRIAL_KVCTL(&t, NULL, 0, "drain"), 0);
	trial_detach(&t);
	assert_int_equal(host_stop(&t.host), 0);
	trial_memory_gone(&t);
	snprintf(t.host.binary, sizeof(t.host.binary), "%s/kvpoold-fault", build ? build : "build");
	for (unsigned i = 0; t.host.argv[i]; i++) /* the limit: in place of what is of no use here */
		if (!strcmp(t.host.argv[i], "--free-percent")) {
			t.host.argv[i] = "--uid-max-transit";
			t.host.argv[i + 1] = "1M";
		}
	setenv("KVPOOL_FAULT", "io.hang=1@8+", 1);
	trial_start(&t);
	unsetenv("KVPOOL_FAULT");
	assert_int_equal(wire_open(&w, t.host.socket), 0);
	trial_desc(&join.desc);
	assert_int_equal(wire_join_as(&w, &ns, &join), 0);
	ask.head.ns_id = ns.id;
	ask.head.deadline_ns = wire_now() + 4000000000ull;
	assert_int_equal(wire_send(&w, KVP_MSG_RESTORE, 99, &ask, sizeof(ask), NULL, 0), 0);
	assert_int_equal(wire_restore(&ns, keys, 32, 100, found), -KVP_EQUOTA);
	assert_non_null(strstr(w.text, "1048576 bytes are on their way for uid"));
	assert_non_null(strstr(w.text, "raise uid-max-transit"));
	wire_leave(&ns);
	wire_close(&w);
	host_close(&t.host);
}

/* ---- one clear at a time ---- */

static void while_a_namespace_is_cleared_a_second_clear_is_told_to_wait(void **state)
{
	const char *const given[] = {"--pool", "4M", "--slab", "1M", "--spill", "off", "--heartbeat", "200", NULL};
	struct kvp_wire_restore clear = {0};
	struct kvp_wire_pong pong;
	struct kvp_key key = wire_key(1);
	struct wire_pinned pinned;
	struct wire first, second;
	struct wire_ns ns, other;
	struct host host;

	(void)state;
	trial_namespace(&host, given, &first, &ns, "m", 65536);
	assert_int_equal(wire_open(&second, host.socket), 0);
	assert_int_equal(wire_join(&second, &other, "m", 65536), 0);
	assert_int_equal(wire_put(&ns, &key, NULL, 1, 1000), KVP_PUB_STORED);
	assert_int_equal(wire_pin(&other, &key, &pinned), 1); /* so that the first one has to wait */
	clear.ns_id = ns.id;
	clear.deadline_ns = wire_now() + 600000000000ull;
	assert_int_equal(wire_send(&first, KVP_MSG_CLEAR, 77, &clear, sizeof(clear), NULL, 0), 0);
	assert_int_equal(wire_call(&first, KVP_MSG_PING, NULL, 0, &pong, sizeof(pong)), sizeof(pong));
	assert_true(wire_call(&second, KVP_MSG_CLEAR, &clear, sizeof(clear), NULL, 0) < 0);
	assert_non_null(strstr(second.text, "it is being cleared: wait for that"));
	wire_leave(&ns);
	wire_close(&first); /* who asked is gone, what was asked for is done all the same */
	wire_unpin(&other, &pinned);
	for (unsigned i = 0; i < 400 && wire_pin(&other, &key, &pinned) == 1; i++) {
		wire_unpin(&other, &pinned);
		wire_sleep_ms(50);
	}
	assert_int_equal(wire_pin(&other, &key, &pinned), 0);
	assert_true(host_alive(&host));
	wire_leave(&other);
	wire_close(&second);
	host_close(&host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sockets_handed_over_are_served_by_their_names_and_stay_with_who_made_them),
		cmocka_unit_test(what_is_handed_over_and_is_no_listening_socket_is_refused_by_its_name),
		cmocka_unit_test(a_service_manager_with_a_watchdog_hears_of_it_in_time),
		cmocka_unit_test(a_file_where_the_socket_should_be_is_left_alone_and_named),
		cmocka_unit_test(a_socket_whose_directory_is_missing_is_refused_with_the_way_out),
		cmocka_unit_test(a_directory_of_namespaces_that_is_missing_is_refused_before_any_memory_is_made),
		cmocka_unit_test(a_size_of_slabs_a_kept_pool_was_not_made_with_is_said),
		cmocka_unit_test(a_pool_kept_in_memory_is_not_started_larger_than_it_was_made_for),
		cmocka_unit_test(what_only_a_start_can_change_is_named_by_a_reload),
		cmocka_unit_test(without_a_store_what_needs_one_is_refused_and_said),
		cmocka_unit_test(a_policy_is_set_by_name_for_a_namespace_that_is_there),
		cmocka_unit_test(what_may_be_on_its_way_for_a_user_is_bounded_and_the_limit_named),
		cmocka_unit_test(while_a_namespace_is_cleared_a_second_clear_is_told_to_wait),
	};

	return cmocka_run_group_tests_name("a daemon's start", tests, NULL, NULL);
}
