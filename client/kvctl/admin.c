/*
 * admin.c - kvctl ping, drain, evict: what needs the daemon to answer; and the way to its admin socket
 *
 * Every wait has a deadline.  The daemon's answer is copied once, checked, then used.
 */
#define _GNU_SOURCE 1
#include "admin.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "kvctl.h"
#include "kvpool.h"
#include "kvpool_shm.h"
#include "ns.h"
#include "option.h"
#include "pool.h"
#include "quantity.h"
#include "snapshot.h"

#define SECOND_NS 1000000000ull
#define CONNECT_NS (2 * SECOND_NS) /* a full backlog of a hung daemon */
#define ANSWER_NS \
	SECOND_NS /* of the time there is, at most a quarter: the daemon answers at its deadline, and we want it by ours */
#define NOTE_NS SECOND_NS /* waiting longer is told */
#define TRY_MS 50u /* a ping that has less cannot tell why nobody answers */

/* The daemon's socket: as said, else from the header of the pool of that name. */
static int socket_of(const struct options *options, char path[KVP_SOCKET_MAX])
{
	struct pool pool;
	int r;

	if (options->socket || !options->name)
		return pool_socket_path(options->socket, path);
	r = pool_find(&pool, NULL, options->name);
	if (!r)
		memcpy(path, pool.socket, KVP_SOCKET_MAX);
	return r;
}

int admin_option_next(struct options *options, const char **admin, uint64_t *limit_ns)
{
	int c;

	while ((c = option_next(options)) == 'a' || c == 'd') {
		if (c == 'a')
			*admin = optarg;
		else if (quantity_parse_seconds(optarg, limit_ns) < 0)
			return option_wrong(options, "--deadline", optarg, "a number of seconds");
	}
	return c;
}

int admin_socket_path(const struct options *options, const char *admin, char path[KVP_SOCKET_MAX])
{
	char socket[KVP_SOCKET_MAX];
	int r;

	if (admin)
		return pool_socket_path(admin, path);
	r = socket_of(options, socket);
	if (r)
		return r;
	if (strlen(socket) + sizeof(".admin") > KVP_SOCKET_MAX) {
		complain("socket %s: with .admin it is longer than a Unix address: give --admin PATH", socket);
		return KVCTL_USAGE;
	}
	stpcpy(stpcpy(path, socket), ".admin");
	return 0;
}

int admin_connect(const char *path)
{
	return admin_connect_in(path, CONNECT_NS);
}

int admin_connect_in(const char *path, uint64_t limit_ns)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	uint64_t us = (limit_ns < CONNECT_NS ? limit_ns : CONNECT_NS) / 1000;
	struct timeval limit = {
		.tv_sec = (time_t)(us / 1000000), .tv_usec = us % 1000000 ? (suseconds_t)(us % 1000000) : 1};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return -errno;
	memcpy(address.sun_path, path, strlen(path) + 1);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		r = errno == EAGAIN ? -ETIMEDOUT : -errno;
		close(fd);
		return r;
	}
	return fd;
}

bool admin_nobody(int error)
{
	return error == -ENOENT || error == -ECONNREFUSED;
}

void admin_complain(const char *what, const char *path, int error)
{
	if (admin_nobody(error))
		complain("%s: nobody listens at %s (%s): is kvpoold running? choose it with --socket or --name", what,
			path, strerror(-error));
	else if (error == -EACCES || error == -EPERM)
		complain("%s: %s does not let you in (%s): only root and the operators' group may", what, path,
			strerror(-error));
	else if (error == -ETIMEDOUT)
		complain("%s: no answer at %s in time: kvctl stats tells how the daemon does", what, path);
	else if (error == -EAGAIN)
		complain(
			"%s: the daemon at %s did not take the request, nothing will come of it: kvctl stats tells how "
			"the daemon does",
			what, path);
	else if (error == -ECONNRESET || error == -EPIPE)
		complain("%s: the daemon closed %s: only root and the operators' group may use it; its log says why",
			what, path);
	else
		complain("%s: %s: %s", what, path, strerror(-error));
}

static int answer_check(
	const char *what, const char *packet, ssize_t n, uint16_t type, struct kvp_wire_admin_done *done)
{
	struct kvp_msg msg;
	char text[300];

	if (n < (ssize_t)sizeof(msg))
		return -EPROTO;
	memcpy(&msg, packet, sizeof(msg));
	if (msg.magic != KVP_WIRE_MAGIC || msg.bytes != (size_t)n || msg.type != (type | KVP_MSG_REPLY))
		return -EPROTO;
	if (msg.status < 0) {
		text_clean(text, sizeof(text), packet + sizeof(msg), (size_t)n - sizeof(msg));
		complain("%s: the daemon refuses: %s", what, text[0] ? text : strerror(-msg.status));
		return 1;
	}
	n -= (ssize_t)sizeof(msg);
	if (n < (ssize_t)offsetof(struct kvp_wire_admin_done, n_failed))
		return -EPROTO;
	memset(done, 0, sizeof(*done)); /* an older daemon says less */
	memcpy(done, packet + sizeof(msg), (size_t)n < sizeof(*done) ? (size_t)n : sizeof(*done));
	return 0;
}

int admin_ask(int fd, const char *what, uint16_t type, const void *ask, size_t ask_bytes, uint64_t deadline_ns,
	struct kvp_wire_admin_done *done)
{
	struct kvp_msg head = {
		.magic = KVP_WIRE_MAGIC, .type = type, .bytes = (uint32_t)(sizeof(head) + ask_bytes), .id = 1};
	struct iovec iov[2] = {{&head, sizeof(head)}, {(void *)(uintptr_t)ask, ask_bytes}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
	uint64_t note_ns = now_ns() + NOTE_NS;
	char answer[4096];

	if (sendmsg(fd, &msg, MSG_NOSIGNAL) < 0)
		return -errno;
	for (;;) {
		uint64_t now = now_ns(), until = note_ns && note_ns < deadline_ns ? note_ns : deadline_ns;
		struct pollfd wait = {.fd = fd, .events = POLLIN};
		int ms = now >= until ? 0 : (int)((until - now + 999999) / 1000000);
		int r = poll(&wait, 1, ms);
		ssize_t n;

		if (r < 0 && errno != EINTR)
			return -errno;
		if (r == 0 && until == deadline_ns)
			return -ETIMEDOUT;
		if (r == 0) {
			complain("%s: waiting for the daemon's answer, %.1f s more at most", what,
				(double)(deadline_ns - note_ns) / SECOND_NS);
			note_ns = 0;
		}
		if (r <= 0)
			continue;
		n = recv(fd, answer, sizeof(answer), MSG_DONTWAIT);
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ECONNRESET;
		return answer_check(what, answer, n, type, done);
	}
}

void admin_complain_late(const char *what, int fd)
{
	int unread = 0;

	if (ioctl(fd, SIOCOUTQ, &unread) == 0 && unread)
		complain(
			"%s: not done: the daemon has not read the request, and when it goes on it refuses what is past its deadline",
			what);
	else
		complain(
			"%s: the daemon has read the request, so it may be done, or in part: kvctl stats and the daemon's log tell",
			what);
}

int admin_do(const struct options *options, const char *admin, uint16_t type, void *ask, size_t ask_bytes,
	uint64_t limit_ns, struct kvp_wire_admin_done *done)
{
	uint64_t answer_ns = limit_ns / 4 < ANSWER_NS ? limit_ns / 4 : ANSWER_NS, deadline_ns = now_ns() + limit_ns;
	uint64_t daemons_ns = deadline_ns - answer_ns;
	char path[KVP_SOCKET_MAX];
	int r = admin_socket_path(options, admin, path);
	int fd;

	if (r)
		return r;
	fd = admin_connect_in(path, limit_ns);
	if (fd < 0) {
		admin_complain(options->command, path, fd);
		return admin_nobody(fd) || fd == -ETIMEDOUT ? KVCTL_DOWN : KVCTL_FAILED;
	}
	memcpy(ask, &daemons_ns, sizeof(daemons_ns));
	r = admin_ask(fd, options->command, type, ask, ask_bytes, deadline_ns, done);
	if (r < 0)
		admin_complain(options->command, path, r);
	if (r == -ETIMEDOUT)
		admin_complain_late(options->command, fd);
	close(fd);
	return !r ? 0 : r == -ETIMEDOUT || r == -EAGAIN ? KVCTL_DOWN : KVCTL_FAILED;
}

/* Why some is left, and what helps: more time only where time was short. */
static void drain_print_left(const struct kvp_wire_admin_done *done)
{
	if (done->n_failed)
		printf("; %" PRIu64
		       " could not be written (%s): the store is full or failing, kvctl stats says why: mend that, "
		       "then drain again",
			done->n_failed, done->error ? strerror(done->error) : "no reason given");
	if (done->n_pushed)
		printf("; %" PRIu64
		       " were written and pushed out again by those after them: the store has no room for all, give --spill more",
			done->n_pushed);
	if (done->n_left > done->n_failed + done->n_pushed)
		printf("; %" PRIu64 " at the deadline: drain again, with a longer --deadline",
			done->n_left - done->n_failed - done->n_pushed);
}

int drain_command(int argc, char **argv)
{
	static const struct option longs[] = {OPTION_POOL, {"deadline", required_argument, NULL, 'd'},
		{"admin", required_argument, NULL, 'a'}, OPTION_LAST};
	struct options options = {.command = "drain", .longs = longs, .argc = argc, .argv = argv};
	struct kvp_wire_admin ask = {0};
	struct kvp_wire_admin_done done = {0};
	uint64_t limit_ns = 30 * SECOND_NS;
	const char *admin = NULL;
	int c, r;

	c = admin_option_next(&options, &admin, &limit_ns);
	if (c != OPTION_END)
		return option_exit(c);
	r = admin_do(&options, admin, KVP_MSG_DRAIN, &ask, sizeof(ask), limit_ns, &done);
	if (r)
		return r;
	printf("drained: %" PRIu64 " blocks written, %" PRIu64 " left", done.n_done, done.n_left);
	drain_print_left(&done);
	printf("\n");
	return output_end(done.n_left ? KVCTL_FAILED : KVCTL_DONE);
}

int admin_ns(const struct options *options, const char *name, uint64_t *ns_id)
{
	struct snapshot snapshot;
	struct pool pool;
	int r = pool_find(&pool, options->socket, options->name);

	if (!r)
		r = snapshot_take(&snapshot, &pool, false);
	if (r)
		return r;
	r = ns_choose(&snapshot, name, ns_id);
	snapshot_free(&snapshot);
	return r;
}

/* Asked for a number: fewer than that is a failure.  Asked for all: what is held may stay. */
static int evict_print(uint64_t asked, const struct kvp_wire_admin_done *done)
{
	bool all = asked == UINT64_MAX;

	printf("evicted: %" PRIu64, done->n_done);
	if (!all && done->n_done < asked)
		printf(" of %" PRIu64, asked);
	printf(" block%s", (all || done->n_done >= asked ? done->n_done : asked) == 1 ? "" : "s");
	if (done->late)
		printf("; the deadline came first, %" PRIu64 " are left: evict again, with a longer --deadline",
			done->n_left);
	else if (done->n_left)
		printf("; %" PRIu64 " are held, in use, or have children that are", done->n_left);
	else if (!all && done->n_done < asked)
		printf("; there are no more");
	printf("\n");
	return output_end(done->late || (!all && done->n_done < asked) ? KVCTL_FAILED : KVCTL_DONE);
}

int evict_command(int argc, char **argv)
{
	static const struct option longs[] = {OPTION_POOL, {"ns", required_argument, NULL, 'N'},
		{"deadline", required_argument, NULL, 'd'}, {"admin", required_argument, NULL, 'a'}, OPTION_LAST};
	struct options options = {.command = "evict", .longs = longs, .argc = argc, .argv = argv, .max_rest = 1};
	struct kvp_wire_admin ask = {.n = UINT64_MAX};
	const char *ns = NULL, *admin = NULL;
	uint64_t limit_ns = 30 * SECOND_NS;
	struct kvp_wire_admin_done done = {0};
	int c, r;

	while ((c = admin_option_next(&options, &admin, &limit_ns)) >= 0)
		ns = optarg;
	if (c != OPTION_END)
		return option_exit(c);
	if (optind < argc && quantity_parse_count(argv[optind], 1, UINT64_MAX, &ask.n) < 0)
		return option_exit(option_wrong(&options, "N", argv[optind], "a number of blocks, 1 at least"));
	r = ns ? admin_ns(&options, ns, &ask.ns_id) : 0;
	if (!r)
		r = admin_do(&options, admin, KVP_MSG_EVICT, &ask, sizeof(ask), limit_ns, &done);
	return r ? r : evict_print(ask.n, &done);
}

static int resize_print(const struct kvp_wire_admin_done *done)
{
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM];

	printf("resized: %s in slabs", quantity_bytes(a, done->n_done));
	if (done->n_left)
		printf("; %s too much are held, or not written yet: they go as soon as they can",
			quantity_bytes(b, done->n_left));
	if (done->n_failed)
		printf("; %s could not be added: the daemon's log says why", quantity_bytes(b, done->n_failed));
	printf("\n");
	return output_end(done->n_left || done->n_failed ? KVCTL_FAILED : KVCTL_DONE);
}

/* "64G", or "node0=64G,node2=128G"; bounds are the daemon's to know. */
static bool resize_size_ok(const char *text)
{
	char copy[sizeof(((struct kvp_wire_resize *)NULL)->pool)], *rest;
	uint64_t bytes;

	if (strncmp(text, "node", 4))
		return quantity_parse_bytes(text, &bytes) == 0;
	strcpy(copy, text);
	for (char *part = strtok_r(copy, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
		const char *value = strchr(part, '=');

		if (strncmp(part, "node", 4) || !value || quantity_parse_bytes(value + 1, &bytes) < 0)
			return false;
	}
	return true;
}

/* What looks like an option is a size of less than nothing. NULL: there is none. */
static const char *resize_negative(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (argv[i][0] == '-' && isdigit((unsigned char)argv[i][1]) && strncmp(argv[i - 1], "--", 2))
			return argv[i];
	return NULL;
}

int resize_command(int argc, char **argv)
{
	static const struct option longs[] = {OPTION_POOL, {"deadline", required_argument, NULL, 'd'},
		{"admin", required_argument, NULL, 'a'}, OPTION_LAST};
	struct options options = {.command = "resize", .longs = longs, .argc = argc, .argv = argv, .max_rest = 1};
	uint64_t limit_ns = 30 * SECOND_NS;
	struct kvp_wire_admin_done done = {0};
	struct kvp_wire_resize ask = {0};
	const char *admin = NULL;
	int c, r;

	if (resize_negative(argc, argv)) {
		complain("resize: \"%s\": give the size the pool is to have, not what it is to lose: 64G, or "
			 "node0=64G,node2=128G",
			resize_negative(argc, argv));
		return KVCTL_USAGE;
	}
	c = admin_option_next(&options, &admin, &limit_ns);
	if (c != OPTION_END)
		return option_exit(c);
	if (optind >= argc || strlen(argv[optind]) >= sizeof(ask.pool) || !resize_size_ok(argv[optind])) {
		complain("resize: give the size of the pool, or of nodes: 64G, or node0=64G,node2=128G");
		return KVCTL_USAGE;
	}
	strcpy(ask.pool, argv[optind]);
	r = admin_do(&options, admin, KVP_MSG_RESIZE, &ask, sizeof(ask), limit_ns, &done);
	return r ? r : resize_print(&done);
}

/* Is nobody at that socket? */
static bool ping_nobody(const char *socket)
{
	int fd = admin_connect(socket);

	if (fd >= 0)
		close(fd);
	return admin_nobody(fd);
}

/* Until it serves, time is up, or @waits is not set and nobody is there; the library's own back-off would make us late. */
static int ping_wait(const char *socket, uint64_t deadline_ns, bool waits, char *why, size_t room, uint64_t *took_ns)
{
	int r = -KVP_EDETACHED, before = 0;

	do {
		uint64_t now = now_ns(), left_ms = deadline_ns > now ? (deadline_ns - now) / 1000000 : 0;
		struct kvp_open_opts opts = {
			.size = sizeof(opts),
			.socket = socket,
			.connect_timeout_ms = left_ms > TRY_MS ? (uint32_t)left_ms : TRY_MS,
			.comm = "kvctl ping",
			.flags = KVP_OPEN_NO_PREFAULT,
			.stock_blocks = KVP_STOCK_NONE,
		};
		struct kvp_client *client;

		r = kvp_open(&opts, &client);
		if (r < 0) {
			snprintf(why, room, "%s", strerror(-r));
			return r;
		}
		*took_ns = now_ns();
		r = kvp_ping(client, now_ns() + SECOND_NS < deadline_ns ? deadline_ns : now_ns() + SECOND_NS);
		*took_ns = now_ns() - *took_ns;
		if (kvp_state(client, NULL) == KVP_INCOMPATIBLE)
			r = -KVP_EVERSION;
		if (before == -KVP_EQUOTA && now_ns() >= deadline_ns && (r == -KVP_EDETACHED || r == -KVP_ETIMEDOUT))
			r = before; /* this try had no time: what the one before was told stands */
		else
			snprintf(why, room, "%s", r < 0 ? kvp_error(client) : "");
		kvp_close(client);
		before = r;
		if (!r || r == -KVP_EVERSION || r == -KVP_EACCES || now_ns() >= deadline_ns ||
			(!waits && ping_nobody(socket)))
			return r;
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	} while (now_ns() < deadline_ns);
	return r;
}

/* Why nothing came back, in the words that tell an operator where to look. */
static void ping_complain(const char *socket, int error, const char *why)
{
	char before[KVP_SOCKET_MAX + 64];
	int n = snprintf(before, sizeof(before), "not attached to a daemon at %s: ", socket);
	int fd = error == -KVP_EVERSION ? -EPROTO : admin_connect(socket);
	bool named;

	if (fd >= 0)
		close(fd);
	if (!strncmp(why, before, (size_t)n))
		why += n; /* the library says it to those who asked for more than a ping */
	named = strstr(why, socket) !=
		NULL; /* each way of not answering has its own words: one names it, another not */
	if (admin_nobody(fd))
		complain("ping: no daemon at %s: %s; start kvpoold, or choose another by --socket or KVPOOL_SOCKET",
			socket, strerror(-fd));
	else if (error == -KVP_EQUOTA)
		complain("ping: kept out: %s", why);
	else if (error == -KVP_EACCES)
		complain("ping: not let in: %s", why);
	else if (error == -KVP_ETIMEDOUT || fd == -ETIMEDOUT)
		complain("ping: the daemon%s%s does not answer: %s%s", named ? "" : " at ", named ? "" : socket, why,
			strstr(why, "kvctl stats") ? "" : ": kvctl stats tells how it does");
	else if (fd >= 0) /* it answers, with a refusal */
		complain("ping: the daemon at %s does not serve us: %s", socket, why[0] ? why : strerror(-error));
	else
		complain("ping: %s%s%s", named ? "" : socket, named ? "" : ": ", why[0] ? why : strerror(-error));
}

int ping_command(int argc, char **argv)
{
	static const struct option longs[] = {OPTION_POOL, {"timeout", required_argument, NULL, 't'}, OPTION_LAST};
	struct options options = {.command = "ping", .longs = longs, .argc = argc, .argv = argv};
	uint64_t limit_ns = SECOND_NS, took_ns = 0;
	char socket[KVP_SOCKET_MAX], why[300];
	bool waits = false;
	int c, r;

	while ((c = option_next(&options)) >= 0) {
		if (quantity_parse_seconds(optarg, &limit_ns) < 0)
			return option_exit(option_wrong(&options, "--timeout", optarg, "a number of seconds"));
		waits = true;
	}
	if (c != OPTION_END)
		return option_exit(c);
	r = socket_of(&options, socket);
	if (r)
		return r;
	r = ping_wait(socket, now_ns() + limit_ns, waits, why, sizeof(why), &took_ns);
	if (r < 0) {
		ping_complain(socket, r, why);
		return r == -KVP_EVERSION ? KVCTL_NO_POOL : KVCTL_DOWN;
	}
	printf("serving at %s, %.0f us\n", socket, (double)took_ns / 1000);
	return output_end(KVCTL_DONE);
}
