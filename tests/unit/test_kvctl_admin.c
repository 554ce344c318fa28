/* test_kvctl_admin.c - kvctl drain, evict and purge against an admin socket that answers well, badly, or not at all */
#include "test_kvctl_fixture.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "kvpool_wire.h"

enum answer {
	ANSWER_DONE, /* n_done 5, n_left as given */
	ANSWER_ONE, /* n_done 1 */
	ANSWER_FAILED, /* likewise, all but one of those left could not be written */
	ANSWER_IN_USE, /* likewise, no deadline is to blame */
	ANSWER_OLD, /* of a daemon that tells n_done and n_left only */
	ANSWER_REFUSED,
	ANSWER_GARBAGE,
	ANSWER_SHORT,
	ANSWER_OTHER_TYPE,
	ANSWER_PUSHED,
	ANSWER_CLOSE,
	ANSWER_NONE,
	ANSWER_READ, /* none either, but the request was read */
};

struct server {
	pid_t pid;
	struct kvp_msg *msg; /* what it was sent, in shared memory */
	struct kvp_wire_admin *ask;
};

static void serve(int listener, enum answer answer, uint64_t n_left, struct server *server)
{
	struct {
		struct kvp_msg msg;
		struct kvp_wire_admin_done done;
	} reply = {.done = {.n_done = 5, .n_left = n_left, .late = n_left > 0}};
	char packet[4096];
	int fd = accept(listener, NULL, NULL);
	ssize_t n;
	size_t bytes = sizeof(reply);

	if (answer == ANSWER_NONE)
		pause();
	n = recv(fd, packet, sizeof(packet), 0);
	if (answer == ANSWER_READ)
		pause();
	if (n != (ssize_t)(sizeof(*server->msg) + sizeof(*server->ask)))
		_exit(1);
	memcpy(server->msg, packet, sizeof(*server->msg));
	memcpy(server->ask, packet + sizeof(*server->msg), sizeof(*server->ask));
	reply.msg = (struct kvp_msg){.magic = KVP_WIRE_MAGIC,
		.type = (uint16_t)(server->msg->type | KVP_MSG_REPLY),
		.bytes = sizeof(reply),
		.id = server->msg->id};
	if (answer == ANSWER_ONE) {
		reply.done.n_done = 1;
	} else if (answer == ANSWER_FAILED) {
		reply.done.n_failed = n_left - 1;
		reply.done.error = ENOSPC;
	} else if (answer == ANSWER_PUSHED) {
		reply.done.n_pushed = n_left - 1;
	} else if (answer == ANSWER_IN_USE) {
		reply.done.late = 0;
	} else if (answer == ANSWER_OLD) {
		bytes = reply.msg.bytes = sizeof(reply.msg) + 16;
	} else if (answer == ANSWER_REFUSED) {
		reply.msg.status = -EACCES;
		memcpy(&reply.done, "no\033[2J", 7);
	} else if (answer == ANSWER_GARBAGE) {
		memset(&reply, 0x5a, sizeof(reply));
	} else if (answer == ANSWER_SHORT) {
		bytes = reply.msg.bytes = sizeof(reply.msg) + 4;
	} else if (answer == ANSWER_OTHER_TYPE) {
		reply.msg.type = KVP_MSG_PING | KVP_MSG_REPLY;
	}
	if (answer != ANSWER_CLOSE && send(fd, &reply, bytes, 0) != (ssize_t)bytes)
		_exit(1);
	_exit(0);
}

static struct server server_start(struct fake *f, enum answer answer, uint64_t n_left)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct server server;
	int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	server.msg = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	server.ask = (struct kvp_wire_admin *)(void *)(server.msg + 1);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s.admin", f->socket);
	unlink(address.sun_path);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 1), 0);
	server.pid = fork();
	if (server.pid == 0)
		serve(listener, answer, n_left, &server);
	close(listener);
	return server;
}

static void server_stop(struct fake *f, struct server *server)
{
	char path[128];

	kill(server->pid, SIGKILL);
	waitpid(server->pid, NULL, 0);
	snprintf(path, sizeof(path), "%s.admin", f->socket);
	unlink(path);
}

static void drain_asks_with_its_deadline_and_tells_what_is_left(void **state)
{
	struct fake *f = *state;
	uint64_t now = fake_now();
	struct server server = server_start(f, ANSWER_DONE, 0);

	assert_int_equal(run_here(f, "drain", "--deadline", "20"), 0);
	assert_says(f->out, "5 blocks written, 0 left");
	assert_int_equal(server.msg->type, KVP_MSG_DRAIN);
	assert_true(server.ask->deadline_ns >= now + 19000000000u && /* a second of ours is for its answer */
		    server.ask->deadline_ns < now + 25000000000u);
	server_stop(f, &server);
	server = server_start(f, ANSWER_DONE, 3);
	assert_int_equal(run_here(f, "drain"), 1);
	assert_says(f->out, "3 left");
	server_stop(f, &server);
}

static void drain_advises_more_time_only_where_time_was_short(void **state)
{
	struct fake *f = *state;
	struct server server = server_start(f, ANSWER_DONE, 3);

	assert_int_equal(run_here(f, "drain"), 1);
	assert_says(f->out, "3 at the deadline: drain again, with a longer --deadline");
	server_stop(f, &server);
	server = server_start(f, ANSWER_FAILED, 1001);
	assert_int_equal(run_here(f, "drain"), 1);
	assert_says(f->out, "1001 left; 1000 could not be written (No space left on device)");
	assert_says(f->out, "1 at the deadline");
	server_stop(f, &server);
	server = server_start(f, ANSWER_PUSHED, 7);
	assert_int_equal(run_here(f, "drain"), 1);
	assert_says(f->out, "7 left; 6 were written and pushed out again");
	assert_says(f->out, "1 at the deadline");
	server_stop(f, &server);
	server = server_start(f, ANSWER_OLD, 3); /* of a daemon that says no more */
	assert_int_equal(run_here(f, "drain"), 1);
	assert_says(f->out, "5 blocks written, 3 left; 3 at the deadline");
	server_stop(f, &server);
}

static void evict_says_when_it_falls_short_and_why(void **state)
{
	struct fake *f = *state;
	struct server server = server_start(f, ANSWER_IN_USE, 2);

	assert_int_equal(run_here(f, "evict", "7"), 1);
	assert_says(f->out, "evicted: 5 of 7 blocks; 2 are held");
	server_stop(f, &server);
	server = server_start(f, ANSWER_DONE, 0);
	assert_int_equal(run_here(f, "evict", "7"), 1);
	assert_says(f->out, "evicted: 5 of 7 blocks; there are no more");
	server_stop(f, &server);
	server = server_start(f, ANSWER_DONE, 9);
	assert_int_equal(run_here(f, "evict", "--deadline", "20"), 1);
	assert_says(f->out, "the deadline came first, 9 are left");
	server_stop(f, &server);
	server = server_start(f, ANSWER_IN_USE, 9); /* all that may go was asked for, and went */
	assert_int_equal(run_here(f, "evict"), 0);
	assert_says(f->out, "evicted: 5 blocks; 9 are held");
	server_stop(f, &server);
	server = server_start(f, ANSWER_ONE, 0);
	assert_int_equal(run_here(f, "evict", "1"), 0);
	assert_string_equal(f->out, "evicted: 1 block\n");
	server_stop(f, &server);
}

static void evict_names_the_namespace_and_the_number(void **state)
{
	struct fake *f = *state;
	struct server server = server_start(f, ANSWER_DONE, 0);

	assert_int_equal(run_here(f, "evict", "--ns", "model", "7"), 1);
	assert_says(f->out, "5 of 7 blocks");
	assert_int_equal(server.msg->type, KVP_MSG_EVICT);
	assert_int_equal(server.ask->ns_id, FAKE_NS);
	assert_int_equal(server.ask->n, 7);
	server_stop(f, &server);
	server = server_start(f, ANSWER_DONE, 0);
	assert_int_equal(run_here(f, "evict", "--ns", "0000000000000011"), 0);
	assert_int_equal(server.ask->ns_id, FAKE_NS);
	assert_true(server.ask->n == UINT64_MAX);
	server_stop(f, &server);
	assert_int_equal(run_here(f, "evict", "--ns", "other"), 1);
	assert_says(f->err, "no namespace other");
	assert_int_equal(run_here(f, "evict", "0"), 2);
}

static void namespaces_of_one_name_are_told_apart_by_their_ids(void **state)
{
	struct fake *f = *state;

	f->ns_row[1] = f->ns_row[0];
	f->ns_row[1].ns_id = 0x12;
	assert_int_equal(run_here(f, "evict", "--ns", "model"), 1);
	assert_says(f->err, "0000000000000011");
	assert_says(f->err, "0000000000000012");
}

static void a_refusal_is_told_in_the_daemon_s_words_made_harmless(void **state)
{
	struct fake *f = *state;
	struct server server = server_start(f, ANSWER_REFUSED, 0);

	assert_int_equal(run_here(f, "drain"), 1);
	assert_says(f->err, "refuses: no?[2J");
	server_stop(f, &server);
}

static void answers_that_are_none_are_errors(void **state)
{
	struct fake *f = *state;
	static const enum answer answers[] = {ANSWER_GARBAGE, ANSWER_SHORT, ANSWER_OTHER_TYPE, ANSWER_CLOSE};

	for (unsigned i = 0; i < 4; i++) {
		struct server server = server_start(f, answers[i], 0);

		assert_int_equal(run_here(f, "drain"), 1);
		server_stop(f, &server);
	}
}

static void silence_ends_at_the_deadline(void **state)
{
	struct fake *f = *state;
	struct server server = server_start(f, ANSWER_NONE, 0);
	uint64_t before = fake_now();

	assert_int_equal(run_here(f, "drain", "--deadline", "0.1"), 3);
	assert_true(fake_now() - before < 3000000000u);
	assert_says(f->err, "no answer");
	assert_says(f->err, "not done: the daemon has not read the request");
	server_stop(f, &server);
	server = server_start(f, ANSWER_READ, 0);
	assert_int_equal(run_here(f, "drain", "--deadline", "0.1"), 3);
	assert_says(f->err, "the daemon has read the request, so it may be done, or in part");
	server_stop(f, &server);
	server = server_start(f, ANSWER_NONE, 0);
	before = fake_now();
	assert_int_equal(run_here(f, "purge", "--deadline", "1.5"), 3);
	assert_true(fake_now() - before >= 1500000000u && fake_now() - before < 4000000000u);
	assert_says(f->err, "purge: waiting for the daemon's answer");
	assert_says(f->err, "no answer");
	assert_says(f->err, "purge: not done: the daemon has not read the request");
	server_stop(f, &server);
}

static void a_daemon_that_said_yes_and_does_not_end_is_no_purge(void **state)
{
	struct fake *f = *state;
	struct server server = server_start(f, ANSWER_DONE, 0);

	assert_int_equal(run_here(f, "purge", "--deadline", "0.3"), 3);
	assert_says(f->err, "is still there at the deadline");
	assert_null(strstr(f->out, "purged"));
	server_stop(f, &server);
}

static void given_socket(const char *path, bool listening)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	unlink(path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	if (listening)
		assert_int_equal(listen(fd, 1), 0); /* until this test program ends */
	else
		close(fd);
}

static void purge_without_a_daemon_takes_the_dead_sockets_too(void **state)
{
	struct fake *f = *state;
	char admin[128];

	snprintf(admin, sizeof(admin), "%s.admin", f->socket);
	given_socket(f->socket, false);
	given_socket(admin, false);
	assert_int_equal(run(f, "purge", "--name", f->name), 0);
	assert_int_equal(access(f->socket, F_OK), -1);
	assert_int_equal(access(admin, F_OK), -1);
}

static void a_socket_somebody_listens_at_is_not_taken(void **state)
{
	struct fake *f = *state;

	given_socket(f->socket, true); /* as the service manager does */
	assert_int_equal(run(f, "purge", "--name", f->name), 0);
	assert_int_equal(access(f->socket, F_OK), 0);
	unlink(f->socket);
}

static void a_size_that_is_none_is_refused_before_anybody_is_asked(void **state)
{
	static const char *const wrong[] = {"1Z", "", "many", "node0", "node0=", "node0=1G,1G", "node0=1Z"};
	struct fake *f = *state;

	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(run(f, "resize", "--socket", "/nowhere/at/all", wrong[i]), 2);
	assert_int_equal(run(f, "resize", "--socket", "/nowhere/at/all", "-5M"), 2);
	assert_says(f->err, "\"-5M\": give the size");
	assert_int_equal(run(f, "resize", "--socket", "/nowhere/at/all", "64G"), 3);
	assert_int_equal(run(f, "resize", "--socket", "/nowhere/at/all", "node0=64G,node2=1M"), 3);
}

static void nobody_there_is_told(void **state)
{
	struct fake *f = *state;

	assert_int_equal(run_here(f, "drain"), 3);
	assert_says(f->err, "nobody listens");
	assert_int_equal(run_here(f, "evict"), 3);
	assert_int_equal(run_here(f, "ping", "--timeout", "0"), 3);
	assert_int_equal(run(f, "ping", "--name", f->name, "--timeout", "0"), 3);
	assert_int_equal(run_here(f, "ping", "--timeout", "x"), 2);
}

static void ping_says_at_once_that_nobody_is_there_unless_it_is_to_wait(void **state)
{
	struct fake *f = *state;
	uint64_t before = fake_now();

	assert_int_equal(run_here(f, "ping"), 3);
	assert_true(fake_now() - before < 900000000u);
	assert_says(f->err, "no daemon at ");
	assert_says(f->err, "No such file or directory");
	before = fake_now();
	assert_int_equal(run_here(f, "ping", "--timeout", "1"), 3);
	assert_true(fake_now() - before >= 1000000000u);
	assert_says(f->err, "No such file or directory");
	assert_int_equal(run_here(f, "ping", "--timeout", "0"), 3);
	assert_says(f->err, "No such file or directory");
	given_socket(f->socket, false); /* of a daemon that is gone */
	before = fake_now();
	assert_int_equal(run_here(f, "ping"), 3);
	assert_true(fake_now() - before < 900000000u);
	assert_says(f->err, "Connection refused");
	unlink(f->socket);
}

static void purge_by_the_daemon_waits_until_its_file_is_gone(void **state)
{
	struct fake *f = *state;
	struct server server = server_start(f, ANSWER_DONE, 0);
	uint64_t before = fake_now();
	pid_t pid = fork();

	if (pid == 0) { /* the daemon's last act comes after its answer */
		usleep(300000);
		unlink(f->pool_file);
		_exit(0);
	}
	assert_int_equal(run_here(f, "purge"), 0);
	assert_int_equal(server.msg->type, KVP_MSG_PURGE);
	assert_true(fake_now() - before >= 250000000u);
	waitpid(pid, NULL, 0);
	server_stop(f, &server);
}

static void a_socket_path_too_long_is_refused(void **state)
{
	struct fake *f = *state;
	char path[120];

	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[104] = 0; /* fits, but not with .admin */
	assert_int_equal(run(f, "drain", "--socket", path), 2);
	path[104] = 'x';
	path[119] = 0;
	assert_int_equal(run(f, "ping", "--socket", path), 2);
	assert_int_equal(run(f, "stats", "--socket", path), 2);
}

#define test(name) cmocka_unit_test_setup_teardown(name, fake_setup, fake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(drain_asks_with_its_deadline_and_tells_what_is_left),
		test(drain_advises_more_time_only_where_time_was_short),
		test(evict_says_when_it_falls_short_and_why),
		test(evict_names_the_namespace_and_the_number),
		test(namespaces_of_one_name_are_told_apart_by_their_ids),
		test(a_refusal_is_told_in_the_daemon_s_words_made_harmless),
		test(answers_that_are_none_are_errors),
		test(silence_ends_at_the_deadline),
		test(a_daemon_that_said_yes_and_does_not_end_is_no_purge),
		test(purge_without_a_daemon_takes_the_dead_sockets_too),
		test(a_socket_somebody_listens_at_is_not_taken),
		test(a_size_that_is_none_is_refused_before_anybody_is_asked),
		test(nobody_there_is_told),
		test(ping_says_at_once_that_nobody_is_there_unless_it_is_to_wait),
		test(purge_by_the_daemon_waits_until_its_file_is_gone),
		test(a_socket_path_too_long_is_refused),
	};

	return cmocka_run_group_tests_name("kvctl admin", tests, NULL, NULL);
}
