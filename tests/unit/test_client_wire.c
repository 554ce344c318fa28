/* test_client_wire.c - a peer that is no proper daemon: the library stays detached, says why, and harms nobody */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "kvpool.h"
#include "kvpool_shm.h"
#include "kvpool_wire.h"

#define PLACES 4
#define PIN_STRIDE 4096

/* What the peer does wrong, in an otherwise right answer to HELLO. */
enum wrong {
	NOTHING_WRONG,
	OF_1_0, /* nothing: an earlier minor version says less */
	OF_A_LATER_MINOR, /* nothing: it says more, and has more in its objects */
	OTHER_VERSION,
	PINS_IN_COUNTS,
	GARBAGE,
	WRONG_MAGIC,
	WRONG_LENGTH,
	WRONG_TYPE,
	WRONG_ID,
	TOO_LONG,
	SHORT_BODY,
	NO_DESCRIPTORS,
	MORE_DESCRIPTORS_SAID,
	EMPTY_HEADER,
	HEADER_OF_OTHER_LAYOUT,
	HEADER_OF_OTHER_POOL,
	HEADER_WITHOUT_MAGIC,
	HEADER_OF_OTHER_ENDIAN,
	HEADER_TOO_SMALL,
	HEADER_TOO_LARGE,
	SHORT_SESSION,
	SESSION_OF_OTHER_ID,
	PINS_OUT_OF_BOUNDS,
	HANGS_UP,
	SAYS_NOTHING,
	N_WRONG,
};

struct peer {
	char path[64];
	int listener;
	enum wrong wrong;
	pthread_t thread;
	_Atomic bool stop;
	_Atomic unsigned hellos;
};

static int object_of(const void *bytes, size_t n, size_t size)
{
	int fd = memfd_create("kvpool-test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(pwrite(fd, bytes, n, 0), n);
	return fd;
}

static int header_object(enum wrong wrong)
{
	struct kvp_pool_header header = {.magic = wrong == HEADER_WITHOUT_MAGIC ? 0 : KVP_MAGIC_HEADER,
		.layout_major = KVP_LAYOUT_MAJOR + (wrong == HEADER_OF_OTHER_LAYOUT),
		.endian = wrong == HEADER_OF_OTHER_ENDIAN ? 0x04030201 : KVP_ENDIAN,
		.layout_minor = wrong == OF_A_LATER_MINOR ? KVP_LAYOUT_MINOR + 1 : 0,
		.header_bytes = wrong == HEADER_TOO_SMALL   ? KVP_POOL_HEADER_LEAST - 8
				: wrong == OF_A_LATER_MINOR ? sizeof(header) + 64
				: wrong == HEADER_TOO_LARGE ? KVP_PAGE + 8
							    : sizeof(header),
		.uuid = {wrong == HEADER_OF_OTHER_POOL ? 9 : 1},
		.max_places = PLACES,
		.pool_bytes = 1 << 20,
		.pin_stride = PIN_STRIDE};

	return object_of(&header, sizeof(header), wrong == EMPTY_HEADER ? sizeof(header) : KVP_PAGE);
}

static int session_object(enum wrong wrong)
{
	struct kvp_session_header head = {.magic = KVP_MAGIC_SESSION,
		.layout_major = KVP_LAYOUT_MAJOR,
		.endian = KVP_ENDIAN,
		.session_id = wrong == SESSION_OF_OTHER_ID ? 6 : 5,
		.word = 1,
		.layout_minor = wrong == OF_A_LATER_MINOR ? KVP_LAYOUT_MINOR + 1 : 0,
		.pins_off = wrong == PINS_OUT_OF_BOUNDS ? 5 * KVP_PAGE
			    : wrong == PINS_IN_COUNTS	? KVP_PAGE
			    : wrong == OF_A_LATER_MINOR ? KVP_SESSION_PINS_OFF + KVP_PAGE
							: KVP_SESSION_PINS_OFF,
		.pin_stride = PIN_STRIDE};

	return object_of(&head, sizeof(head),
		wrong == SHORT_SESSION
			? KVP_SESSION_PINS_OFF
			: KVP_SESSION_PINS_OFF + (wrong == OF_A_LATER_MINOR) * KVP_PAGE + PLACES * PIN_STRIDE);
}

static void send_packet(int fd, const void *packet, size_t n, const int *fds, unsigned n_fds)
{
	union {
		char bytes[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct iovec iov = {(void *)(uintptr_t)packet, n};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t sent;

	if (n_fds) {
		struct cmsghdr *cmsg;

		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
	}
	sent = sendmsg(fd, &msg, MSG_NOSIGNAL);
	(void)sent;
}

static void answer_hello(int fd, const struct kvp_msg *asked, enum wrong wrong)
{
	static const char refusal[] = "this daemon speaks wire 7.0";
	static char huge[KVP_WIRE_MAX + 1000];
	struct {
		struct kvp_msg msg;
		struct kvp_wire_welcome welcome;
	} reply = {{.magic = KVP_WIRE_MAGIC + (wrong == WRONG_MAGIC),
			   .type = (wrong == WRONG_TYPE ? KVP_MSG_PING : KVP_MSG_HELLO) | KVP_MSG_REPLY,
			   .n_fds = 2 + (wrong == MORE_DESCRIPTORS_SAID),
			   .bytes = sizeof(reply) + (wrong == WRONG_LENGTH),
			   .id = asked->id + (wrong == WRONG_ID)},
		{.major = KVP_WIRE_MAJOR, .heartbeat_ms = 1000, .session_id = 5, .epoch = 3, .uuid = {1}}};
	int fds[2] = {header_object(wrong), session_object(wrong)};

	if (wrong == OTHER_VERSION) {
		reply.msg.status = -KVP_EVERSION;
		reply.msg.n_fds = 0;
		reply.msg.bytes = sizeof(reply.msg) + sizeof(refusal) - 1;
		memcpy(huge, &reply.msg, sizeof(reply.msg));
		memcpy(huge + sizeof(reply.msg), refusal, sizeof(refusal));
		send_packet(fd, huge, reply.msg.bytes, NULL, 0);
	} else if (wrong == GARBAGE) {
		send_packet(fd, "hello?", 6, fds, 2);
	} else if (wrong == TOO_LONG) {
		memcpy(huge, &reply.msg, sizeof(reply.msg));
		send_packet(fd, huge, sizeof(huge), fds, 2);
	} else if (wrong == SHORT_BODY) {
		reply.msg.bytes = sizeof(reply.msg) + KVP_WELCOME_LEAST - 8;
		send_packet(fd, &reply, reply.msg.bytes, fds, 2);
	} else if (wrong == OF_1_0) {
		reply.msg.bytes = sizeof(reply.msg) + KVP_WELCOME_LEAST;
		send_packet(fd, &reply, reply.msg.bytes, fds, 2);
	} else if (wrong == OF_A_LATER_MINOR) {
		reply.msg.bytes = sizeof(reply) + 40;
		memcpy(huge, &reply, sizeof(reply));
		send_packet(fd, huge, reply.msg.bytes, fds, 2);
	} else if (wrong == NO_DESCRIPTORS) {
		reply.msg.n_fds = 0;
		send_packet(fd, &reply, sizeof(reply), NULL, 0);
	} else if (wrong != SAYS_NOTHING && wrong != HANGS_UP) {
		send_packet(fd, &reply, sizeof(reply), fds, 2);
	}
	close(fds[0]);
	close(fds[1]);
}

static void serve_one(struct peer *peer, int fd)
{
	char packet[4096];

	while (!atomic_load(&peer->stop)) {
		struct kvp_msg msg;
		ssize_t n = recv(fd, packet, sizeof(packet), 0);

		if (n < (ssize_t)sizeof(msg))
			return;
		memcpy(&msg, packet, sizeof(msg));
		if (msg.type != KVP_MSG_HELLO)
			continue;
		atomic_fetch_add(&peer->hellos, 1);
		answer_hello(fd, &msg, peer->wrong);
		if (peer->wrong == HANGS_UP)
			return;
	}
}

static void *peer_main(void *arg)
{
	struct peer *peer = arg;

	while (!atomic_load(&peer->stop)) {
		int fd = accept(peer->listener, NULL, NULL);

		if (fd < 0)
			return NULL;
		serve_one(peer, fd);
		close(fd);
	}
	return NULL;
}

static struct peer *given_peer(enum wrong wrong)
{
	struct peer *peer = calloc(1, sizeof(*peer));
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	assert_non_null(peer);
	peer->wrong = wrong;
	snprintf(peer->path, sizeof(peer->path), "/tmp/kvpool-test-peer-%d", (int)getpid());
	unlink(peer->path);
	strcpy(address.sun_path, peer->path);
	peer->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(peer->listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(peer->listener, 8), 0);
	assert_int_equal(pthread_create(&peer->thread, NULL, peer_main, peer), 0);
	return peer;
}

static void peer_end(struct peer *peer)
{
	atomic_store(&peer->stop, true);
	shutdown(peer->listener, SHUT_RDWR);
	pthread_join(peer->thread, NULL);
	close(peer->listener);
	unlink(peer->path);
	free(peer);
}

static struct kvp_client *given_client(const struct peer *peer)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = peer->path, .connect_timeout_ms = 300};
	struct kvp_client *client;

	assert_int_equal(kvp_open(&opts, &client), 0);
	return client;
}

static void a_right_answer_attaches(void **state)
{
	struct peer *peer = given_peer(NOTHING_WRONG);
	struct kvp_client *client = given_client(peer);
	uint64_t epoch;

	(void)state;
	assert_int_equal(kvp_state(client, &epoch), KVP_ATTACHED);
	assert_int_equal(epoch, 3);
	kvp_close(client);
	peer_end(peer);
}

static void other_minor_versions_attach(void **state)
{
	(void)state;
	for (enum wrong version = OF_1_0; version <= OF_A_LATER_MINOR; version++) {
		struct peer *peer = given_peer(version);
		struct kvp_client *client = given_client(peer);

		assert_int_equal(kvp_state(client, NULL), KVP_ATTACHED);
		kvp_close(client);
		peer_end(peer);
	}
}

/* Their pins lie where this library counts: that is not found out by storing there. */
static void sessions_of_before_1_0_are_told_and_not_used(void **state)
{
	struct peer *peer = given_peer(PINS_IN_COUNTS);
	struct kvp_client *client = given_client(peer);

	(void)state;
	assert_int_equal(kvp_state(client, NULL), KVP_INCOMPATIBLE);
	assert_non_null(strstr(kvp_error(client), "older than the first version"));
	kvp_close(client);
	peer_end(peer);
}

static void another_version_is_told_and_not_used(void **state)
{
	struct peer *peer = given_peer(OTHER_VERSION);
	struct kvp_client *client = given_client(peer);

	(void)state;
	assert_int_equal(kvp_state(client, NULL), KVP_INCOMPATIBLE);
	assert_non_null(strstr(kvp_error(client), "wire 7.0"));
	assert_int_equal(kvp_ping(client, kvp_deadline_ms(10)), -KVP_EDETACHED);
	kvp_close(client);
	peer_end(peer);
}

static void a_header_of_another_size_is_refused_with_both_sizes_named(void **state)
{
	char ours[32], theirs[32];

	(void)state;
	snprintf(ours, sizeof(ours), " in %zu,", sizeof(struct kvp_pool_header));
	for (enum wrong wrong = HEADER_TOO_SMALL; wrong <= HEADER_TOO_LARGE; wrong++) {
		struct peer *peer = given_peer(wrong);
		struct kvp_client *client = given_client(peer);

		snprintf(theirs, sizeof(theirs), " in %zu bytes",
			wrong == HEADER_TOO_SMALL ? (size_t)KVP_POOL_HEADER_LEAST - 8 : KVP_PAGE + 8);
		assert_int_equal(kvp_state(client, NULL), KVP_INCOMPATIBLE);
		assert_non_null(strstr(kvp_error(client), theirs));
		assert_non_null(strstr(kvp_error(client), ours));
		kvp_close(client);
		peer_end(peer);
	}
}

static void whatever_is_wrong_the_client_stays_detached_and_tries_again(void **state)
{
	(void)state;
	for (enum wrong wrong = GARBAGE; wrong < N_WRONG; wrong++) {
		struct peer *peer = given_peer(wrong);
		struct kvp_client *client = given_client(peer);
		uint64_t until = kvp_deadline_ms(15000);
		enum kvp_state is = kvp_state(client, NULL);

		if (is == KVP_ATTACHED)
			fail_msg("attached to a peer with fault %d", (int)wrong);
		while (atomic_load(&peer->hellos) < 2 && kvp_deadline_ms(0) < until)
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		if (atomic_load(&peer->hellos) < 2)
			fail_msg("not tried again after fault %d", (int)wrong);
		kvp_close(client);
		peer_end(peer);
	}
}

static unsigned open_descriptors(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += lseek(fd, 0, SEEK_CUR) >= 0 || dup2(fd, fd) == fd;
	return n;
}

static void no_descriptor_is_left_behind(void **state)
{
	unsigned before = open_descriptors();

	(void)state;
	for (enum wrong wrong = NOTHING_WRONG; wrong < SAYS_NOTHING; wrong++) {
		struct peer *peer = given_peer(wrong);
		struct kvp_client *client = given_client(peer);

		kvp_close(client);
		peer_end(peer);
	}
	assert_int_equal(open_descriptors(), before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_right_answer_attaches),
		cmocka_unit_test(other_minor_versions_attach),
		cmocka_unit_test(sessions_of_before_1_0_are_told_and_not_used),
		cmocka_unit_test(another_version_is_told_and_not_used),
		cmocka_unit_test(a_header_of_another_size_is_refused_with_both_sizes_named),
		cmocka_unit_test(whatever_is_wrong_the_client_stays_detached_and_tries_again),
		cmocka_unit_test(no_descriptor_is_left_behind),
	};

	return cmocka_run_group_tests_name("client wire", tests, NULL, NULL);
}
