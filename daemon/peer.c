/* peer.c - see peer.h */
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "block.h"
#include "events.h"
#include "forget.h"
#include "kvpool_desc.h"
#include "log.h"
#include "namespace.h"
#include "policy.h"
#include "resize.h"
#include "session.h"
#include "shm.h"
#include "slab.h"
#include "tier.h"

#define OUT_MAX 256 /* answers a peer may leave unread before it is put out */
#define MESSAGES_A_TURN 16 /* of one peer, before others get their turn */
#define STAGE_BLOCKS_MAX 256
#define STAGE_BYTES_MAX (64ull << 20) /* and at least one block: allocating it must not hold up the others */

struct listener {
	struct daemon *d;
	struct loop_source source;
	bool admin;
	const struct config_listen *policy; /* who those are that come by it; NULL: as the kernel tells */
	bool passed; /* by the service manager: its path is not ours to remove */
	char path[KVP_SOCKET_MAX];
	int spare_fd; /* given up to refuse a connection when no descriptor is left; -1: it could not be had again */
	struct loop_timer again; /* while nobody can be taken on: when it is tried again */
};

struct peer_out {
	struct peer_out *next;
	unsigned n_fds;
	int fds[KVP_WIRE_FDS_MAX];
	size_t bytes;
	char packet[];
};

#define ACCEPT_AGAIN_NS 100000000ull /* no descriptor or no memory for a connection: tried again after so long */
#define RETRY_NS 5000000ull /* an answer that waits for something the socket does not tell */
#define UID_SPARE_PEERS 16 /* connections of a uid beside those of its sessions: resumes, pings */
#define PROBE_MS 100
#define PROBES 20
#define LISTENERS_MAX (CONFIG_LISTEN_MAX + 10)

static char peer_packet[KVP_WIRE_MAX]; /* the message being worked on; one thread */

/* ---- answers ---- */

static void peer_out_free(struct peer_out *out)
{
	for (unsigned i = 0; i < out->n_fds; i++)
		close(out->fds[i]);
	free(out);
}

/* Has it read all that was sent? */
static bool peer_read_all(const struct peer *peer)
{
	int unread = 0;

	return ioctl(peer->source.fd, SIOCOUTQ, &unread) < 0 || !unread;
}

/* Return: as sendmsg(); EBUSY: descriptors sent before are unread, and nobody may have two such answers on the way. */
static ssize_t peer_sendmsg(struct peer *peer, const struct iovec *iov, int n_iov, const int *fds, unsigned n_fds)
{
	union {
		char bytes[CMSG_SPACE(KVP_WIRE_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)n_iov};

	if (n_fds) {
		struct cmsghdr *cmsg;

		if (peer->fds_sent && !peer_read_all(peer)) {
			errno = EBUSY;
			return -1;
		}
		peer->fds_sent = true;
		memset(&control, 0, sizeof(control));
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
	}
	return sendmsg(peer->source.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* How the head of the queue gets away: the socket tells when it has room, other reasons are asked for again.  Nothing
   more is read before that. */
static void peer_wait(struct peer *peer, int error)
{
	if (error == EAGAIN) {
		loop_set_events(peer->d->loop, &peer->source, LOOP_OUT);
		return;
	}
	loop_set_events(peer->d->loop, &peer->source, 0);
	loop_timer_set(peer->d->loop, &peer->retry, loop_now() + RETRY_NS);
}

static void peer_queue(struct peer *peer, int error, const struct iovec *iov, int n_iov, const int *fds, unsigned n_fds)
{
	size_t bytes = 0;
	struct peer_out *out;
	char *at;

	for (int i = 0; i < n_iov; i++)
		bytes += iov[i].iov_len;
	out = peer->n_out < OUT_MAX ? calloc(1, sizeof(*out) + bytes) : NULL;
	if (!out) {
		peer_close(peer, "it does not read its answers");
		return;
	}
	at = out->packet;
	for (int i = 0; i < n_iov; i++) {
		if (iov[i].iov_len)
			memcpy(at, iov[i].iov_base, iov[i].iov_len);
		at += iov[i].iov_len;
	}
	out->bytes = bytes;
	for (; out->n_fds < n_fds; out->n_fds++) {
		out->fds[out->n_fds] = fcntl(fds[out->n_fds], F_DUPFD_CLOEXEC, 0);
		if (out->fds[out->n_fds] < 0) {
			peer_out_free(out);
			peer_close(peer, "no descriptor left for its answer");
			return;
		}
	}
	if (peer->out_tail)
		peer->out_tail->next = out;
	else
		peer->out_head = out;
	peer->out_tail = out;
	if (!peer->n_out++)
		peer_wait(peer, error);
}

static bool peer_later(int error)
{
	return error == EAGAIN || error == EBUSY || error == ETOOMANYREFS || error == ENOBUFS || error == ENOMEM;
}

static void peer_flush(struct peer *peer)
{
	while (peer->out_head) {
		struct peer_out *out = peer->out_head;
		struct iovec iov = {out->packet, out->bytes};

		if (peer_sendmsg(peer, &iov, 1, out->fds, out->n_fds) < 0) {
			if (peer_later(errno))
				peer_wait(peer, errno);
			else
				peer_close(peer, NULL);
			return;
		}
		peer->out_head = out->next;
		if (!peer->out_head)
			peer->out_tail = NULL;
		peer->n_out--;
		peer_out_free(out);
	}
	loop_set_events(peer->d->loop, &peer->source, LOOP_IN);
}

static void peer_retry(struct loop_timer *timer)
{
	peer_flush(timer->owner);
}

void peer_answer(struct peer *peer, uint16_t type, uint64_t id, int32_t status, const void *body, size_t n,
	const int *fds, unsigned n_fds)
{
	struct kvp_msg msg = {.magic = KVP_WIRE_MAGIC,
		.type = type | KVP_MSG_REPLY,
		.n_fds = (uint16_t)n_fds,
		.bytes = (uint32_t)(sizeof(msg) + n),
		.status = status,
		.id = id};
	struct iovec iov[2] = {{&msg, sizeof(msg)}, {(void *)(uintptr_t)body, n}};

	if (!id || peer->closing)
		return;
	if (peer->out_head)
		errno = EAGAIN;
	else if (peer_sendmsg(peer, iov, 2, fds, n_fds) >= 0)
		return;
	if (errno == ETOOMANYREFS && !peer->out_head) {
		/* others do not take the descriptors they were sent: the allowance of our uid is used up */
		peer_refuse(peer, type, id, KVP_EQUOTA,
			"too many descriptors are on their way to clients that do not take them: try again");
		return;
	}
	if (!peer_later(errno)) {
		peer_close(peer, NULL);
		return;
	}
	peer_queue(peer, errno, iov, 2, fds, n_fds);
}

void peer_refuse(struct peer *peer, uint16_t type, uint64_t id, int error, const char *format, ...)
{
	char text[256];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (n > (int)sizeof(text) - 1)
		n = sizeof(text) - 1;
	gauge_add(&peer->d->pool.stats->counters.messages_refused, 1);
	peer_answer(peer, type, id, -error, text, (size_t)n, NULL, 0);
}

void peer_close(struct peer *peer, const char *why)
{
	if (why) {
		static struct log_limit limit;

		log_limited(&limit, LOG_LEVEL_WARN, "client of uid %u, pid %d put out: %s", (unsigned)peer->uid,
			(int)peer->pid, why);
	}
	if (peer->closing)
		return;
	peer->closing = true;
	loop_del(peer->d->loop, &peer->source);
	loop_timer_cancel(peer->d->loop, &peer->retry);
	close(peer->source.fd);
	peer->source.fd = -1;
	loop_timer_set(peer->d->loop, &peer->d->bury, loop_now());
}

static void peer_bury_ring(struct loop_timer *timer)
{
	peer_bury(timer->owner);
}

void peer_bury(struct daemon *d)
{
	for (struct peer **at = &d->peers; *at;) {
		struct peer *peer = *at;

		if (!peer->closing) {
			at = &peer->next;
			continue;
		}
		*at = peer->next;
		d->n_peers--;
		tier_peer_gone(d, peer);
		resize_peer_gone(d, peer);
		forget_peer_gone(d, peer);
		if (peer->session) {
			struct session *s = peer->session;

			peer->session = NULL;
			session_disconnected(s);
		}
		while (peer->out_head) {
			struct peer_out *out = peer->out_head;

			peer->out_head = out->next;
			peer_out_free(out);
		}
		free(peer->groups);
		free(peer);
	}
}

/* ---- messages ---- */

/* A message with a fixed head and @n items behind it: are all there? What lies behind them is of a later minor version. */
static bool body_fits(size_t bytes, size_t head, uint64_t n, size_t item, uint32_t most)
{
	return bytes >= head && n <= most && bytes >= head + n * item;
}

/* A batch, and its @item bytes for each of at most @most items behind it. Return: false: it is not as long as it says. */
static bool batch_take(
	struct kvp_wire_batch *batch, void *items, size_t item, uint32_t most, const void *body, size_t n)
{
	memcpy(batch, body, sizeof(*batch)); /* so much is there: on_ns_message() */
	if (!body_fits(n, sizeof(*batch), batch->n, item, most))
		return false;
	memcpy(items, (const char *)body + sizeof(*batch), batch->n * item);
	return true;
}

/* The body of a client of this minor version, of an earlier or of a later one. Return: false: it has less than 1.0 had. */
static bool body_take(void *to, size_t room, size_t least, const void *body, size_t n)
{
	size_t known = n < room ? n : room;

	if (n < least)
		return false;
	memcpy(to, body, known);
	memset((char *)to + known, 0, room - known);
	return true;
}

/* An engine that runs without the pool says so to its own users at most: whoever looks after the host is told here. */
static void client_refused(struct daemon *d, uid_t uid, pid_t pid, const char *why)
{
	static struct log_limit limit;

	gauge_add(&d->pool.stats->counters.connections_refused, 1);
	log_limited(&limit, LOG_LEVEL_WARN, "client of uid %u, pid %d is refused, it runs without the pool: %s",
		(unsigned)uid, (int)pid, why);
}

static void on_hello(struct peer *peer, const struct kvp_msg *msg, const void *body, size_t n)
{
	struct kvp_wire_hello hello;
	struct kvp_wire_welcome welcome = {.major = KVP_WIRE_MAJOR,
		.minor = KVP_WIRE_MINOR,
		.heartbeat_ms = peer->d->config.heartbeat_ms,
		.hold_limit_ms = peer->d->config.hold_limit_ms,
		.grant_limit_ms = peer->d->config.grant_limit_ms,
		.can = KVP_CAN_LONGER | KVP_CAN_DEADLINE | KVP_CAN_REQUEST | KVP_CAN_UNMAPPED};
	struct pool *pool = &peer->d->pool;
	struct session *s;
	char reason[256] = "";
	int fds[2], r;

	/* of another major version it may have any length, but begins with the versions */
	if (!body_take(&hello, sizeof(hello), offsetof(struct kvp_wire_hello, session_id), body, n)) {
		peer_close(peer, "its HELLO has the wrong length");
		return;
	}
	if (hello.major != KVP_WIRE_MAJOR || hello.layout_major != KVP_LAYOUT_MAJOR || n < KVP_HELLO_LEAST) {
		snprintf(reason, sizeof(reason),
			"this kvpoold speaks wire %u.%u and layout %u.%u, the client %u.%u and %u.%u: use the library of the daemon's major version",
			KVP_WIRE_MAJOR, KVP_WIRE_MINOR, KVP_LAYOUT_MAJOR, KVP_LAYOUT_MINOR, hello.major, hello.minor,
			hello.layout_major, hello.layout_minor);
		client_refused(peer->d, peer->uid, peer->pid, reason);
		peer_refuse(peer, msg->type, msg->id, KVP_EVERSION, "%s", reason);
		return;
	}
	if (peer->session) {
		peer_close(peer, "it said HELLO twice");
		return;
	}
	if (hello.session_id && memcmp(hello.uuid, pool->uuid, 16) != 0)
		r = -KVP_EGONE;
	else if (hello.session_id)
		r = session_resume(peer->d, peer, &hello, &s);
	else
		r = session_open(peer->d, peer, &hello, &s, reason);
	if (r < 0) {
		if (r != -KVP_EGONE && r != -KVP_ESTALE) /* no descriptor and no room too */
			client_refused(peer->d, peer->uid, peer->pid, reason);
		peer_refuse(peer, msg->type, msg->id, -r, "%s",
			r == -KVP_EGONE	   ? "the session is of another pool"
			: r == -KVP_ESTALE ? "there is no such session any more"
					   : reason);
		return;
	}
	welcome.session_id = s->id;
	welcome.epoch = atomic_load(&pool->header->epoch);
	memcpy(welcome.uuid, pool->uuid, 16);
	fds[0] = shm_reopen_ro(pool->header_fd);
	fds[1] = s->fd;
	if (fds[0] < 0) {
		const char *why = "the daemon has no descriptor left: raise LimitNOFILE";

		client_refused(peer->d, peer->uid, peer->pid, why);
		peer_refuse(peer, msg->type, msg->id, KVP_EQUOTA, "%s", why);
		session_end(s, "no descriptor left for it");
		return;
	}
	peer_answer(peer, msg->type, msg->id, 0, &welcome, sizeof(welcome), fds, 2);
	close(fds[0]);
}

static void on_ping(struct peer *peer, const struct kvp_msg *msg)
{
	struct kvp_wire_pong pong = {
		.epoch = atomic_load(&peer->d->pool.header->epoch), .state = atomic_load(&peer->d->pool.header->state)};

	peer_answer(peer, msg->type, msg->id, 0, &pong, sizeof(pong), NULL, 0);
}

static void on_join(struct peer *peer, const struct kvp_msg *msg, const void *body, size_t n)
{
	struct kvp_wire_join join;
	struct kvp_wire_joined joined;
	struct member *member;
	struct ns *ns;
	char reason[256];
	int r, fd;

	if (!body_take(&join, sizeof(join), KVP_JOIN_LEAST, body, n)) {
		peer_close(peer, "its JOIN has the wrong length");
		return;
	}
	r = ns_join(peer->d, peer->session, &join, &ns, &joined, reason);
	if (r == -KVP_EMISMATCH && join.flags & KVP_NS_JOIN) { /* for programs, the field behind the text */
		peer_refuse(peer, msg->type, msg->id, -r, "%s%c%s", reason, 0, joined.differs);
		return;
	}
	if (r < 0) {
		peer_refuse(peer, msg->type, msg->id, -r, "%s", reason);
		return;
	}
	fd = shm_reopen_ro(ns->fd);
	member = fd < 0 ? NULL : session_join(peer->session, ns, !(joined.flags & KVP_NS_READONLY));
	if (!member) {
		peer_refuse(peer, msg->type, msg->id, KVP_EQUOTA,
			"the daemon has no descriptor or memory left: raise LimitNOFILE");
		if (fd >= 0)
			close(fd);
		return;
	}
	member->cost_ns_per_token = join.cost_ns_per_token ? join.cost_ns_per_token : ns->cost_ns_per_token;
	peer_answer(peer, msg->type, msg->id, 0, &joined, sizeof(joined), &fd, 1);
	close(fd);
}

/* One place of a MAP. Return: a descriptor to send and close, or -1 with mapped->status set. */
static int map_place(struct member *member, uint32_t place, bool writable, struct kvp_wire_mapped *mapped)
{
	struct ns *ns = member->ns;
	struct slab *slab = place < ns->head->max_places ? ns->d->slabs[place] : NULL;
	int fd;

	*mapped = (struct kvp_wire_mapped){.place = place};
	if (!slab || slab->ns != ns || slab->condemned) {
		mapped->status = -KVP_ESTALE;
		return -1;
	}
	if (writable && (ns->head->flags & KVP_NS_COPIED || !member->writable || !member->session->grants_at[place])) {
		mapped->status = -KVP_EACCES;
		return -1;
	}
	mapped->number = slab->number;
	mapped->bytes = slab->bytes;
	mapped->status = session_give_place(member->session, place);
	if (mapped->status < 0)
		return -1;
	if (writable && slab_let_write(slab) < 0) {
		mapped->status = -KVP_ENOSPC;
		return -1;
	}
	fd = writable ? fcntl(slab->fd, F_DUPFD_CLOEXEC, 0) : shm_reopen_ro(slab->fd);
	if (fd < 0)
		mapped->status = -KVP_EQUOTA;
	else if (writable)
		member->session->has_place[place] |= PLACE_WRITABLE;
	return fd;
}

static void on_map(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	struct kvp_wire_map map;
	struct kvp_wire_mapped mapped[KVP_WIRE_FDS_MAX] = {{0}};
	uint32_t places[KVP_WIRE_FDS_MAX];
	int fds[KVP_WIRE_FDS_MAX] = {-1};
	unsigned n_fds = 0;

	memcpy(&map, body, sizeof(map));
	if (!body_fits(n, sizeof(map), map.n, sizeof(uint32_t), KVP_WIRE_FDS_MAX)) {
		peer_close(peer, "its MAP has the wrong length");
		return;
	}
	memcpy(places, (const char *)body + sizeof(map), map.n * sizeof(places[0]));
	for (uint32_t i = 0; i < map.n; i++) {
		int fd = map_place(member, places[i], map.writable != 0, &mapped[i]);

		if (fd >= 0)
			fds[n_fds++] = fd;
	}
	peer_answer(peer, msg->type, msg->id, 0, mapped, map.n * sizeof(mapped[0]), fds, n_fds);
	for (unsigned i = 0; i < n_fds; i++)
		close(fds[i]);
}

static void on_reserve(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	struct kvp_wire_reserve reserve;
	uint32_t most = peer->d->config.uid_max_grants;

	if (!body_take(&reserve, sizeof(reserve), KVP_RESERVE_LEAST, body, n)) {
		peer_close(peer, "its RESERVE has the wrong length");
		return;
	}
	if (!member->writable || member->ns->head->flags & KVP_NS_COPIED) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES, "namespace %s is %s", member->ns->head->name,
			member->writable ? "copied: publish from a staging area" : "read-only to you");
		return;
	}
	if (reserve.n > KVP_WIRE_BATCH_MAX)
		reserve.n = KVP_WIRE_BATCH_MAX;
	if (most && session_grants_of(peer->d, peer->uid) + reserve.n > most) {
		peer_refuse(peer, msg->type, msg->id, KVP_EQUOTA,
			"uid %u would be writing more than %u blocks at once: publish or abandon some, or raise uid-max-grants",
			(unsigned)peer->uid, most);
		return;
	}
	if (!reserve.n) {
		peer_answer(peer, msg->type, msg->id, 0, NULL, 0, NULL, 0);
		return;
	}
	tier_reserve(
		member, peer, msg->id, reserve.n, topology_index(peer->d->topology, reserve.node), reserve.deadline_ns);
}

static void on_publish(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	static struct kvp_wire_item items[KVP_WIRE_BATCH_MAX];
	static struct kvp_wire_result results[KVP_WIRE_BATCH_MAX];
	struct kvp_wire_batch batch;

	if (!batch_take(&batch, items, sizeof(items[0]), KVP_WIRE_BATCH_MAX, body, n)) {
		peer_close(peer, "its PUBLISH has the wrong length");
		return;
	}
	if (!member->writable) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES, "namespace %s is read-only to you",
			member->ns->head->name);
		return;
	}
	if (member->ns->head->flags & KVP_NS_COPIED) {
		tier_publish_staged(member, peer, msg->id, items, batch.n);
		return;
	}
	for (uint32_t i = 0; i < batch.n; i++)
		block_publish_grant(member, &items[i], &results[i]);
	peer_answer(peer, msg->type, msg->id, 0, results, batch.n * sizeof(results[0]), NULL, 0);
	tier_serve(member->ns);
}

/* ABANDON and GRANTS: a list of grants. */
static void on_grants(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	static struct kvp_wire_grant grants[KVP_WIRE_BATCH_MAX];
	struct kvp_wire_batch batch;

	if (!batch_take(&batch, grants, sizeof(grants[0]), KVP_WIRE_BATCH_MAX, body, n)) {
		peer_close(peer, "its list of grants has the wrong length");
		return;
	}
	if (msg->type == KVP_MSG_GRANTS)
		block_keep_grants(member, grants, batch.n);
	else
		for (uint32_t i = 0; i < batch.n; i++)
			block_release_grant(member, grants[i].slot, grants[i].generation);
	peer_answer(peer, msg->type, msg->id, 0, NULL, 0, NULL, 0);
	tier_serve(member->ns);
}

static void on_lookup(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	static struct kvp_key keys[KVP_WIRE_BATCH_MAX];
	static struct kvp_wire_found found[KVP_WIRE_BATCH_MAX];
	struct kvp_wire_batch batch;

	if (!batch_take(&batch, keys, sizeof(keys[0]), KVP_WIRE_BATCH_MAX, body, n)) {
		peer_close(peer, "its LOOKUP has the wrong length");
		return;
	}
	for (uint32_t i = 0; i < batch.n; i++)
		tier_lookup(member->ns, &keys[i], batch.flags & KVP_WIRE_TOUCH, &found[i]);
	peer_answer(peer, msg->type, msg->id, 0, found, batch.n * sizeof(found[0]), NULL, 0);
}

static void on_request(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	static struct kvp_key keys[KVP_WIRE_REQUEST_MAX];
	struct kvp_wire_batch batch;

	if (!batch_take(&batch, keys, sizeof(keys[0]), KVP_WIRE_REQUEST_MAX, body, n)) {
		peer_close(peer, "its REQUEST has the wrong length");
		return;
	}
	policy_request(member->ns, keys, batch.n, batch.flags);
	peer_answer(peer, msg->type, msg->id, 0, NULL, 0, NULL, 0);
}

static void on_unmapped(struct peer *peer, const struct kvp_msg *msg, const void *body, size_t n)
{
	static uint64_t numbers[KVP_WIRE_BATCH_MAX];
	struct kvp_wire_batch batch;

	if (!batch_take(&batch, numbers, sizeof(numbers[0]), KVP_WIRE_BATCH_MAX, body, n)) {
		peer_close(peer, "its UNMAPPED has the wrong length");
		return;
	}
	for (uint32_t i = 0; i < batch.n; i++)
		slab_unmapped(peer->session, numbers[i]);
	peer_answer(peer, msg->type, msg->id, 0, NULL, 0, NULL, 0);
}

static void on_restore(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	static struct kvp_key keys[KVP_WIRE_BATCH_MAX];
	struct kvp_wire_restore restore;

	if (n < sizeof(restore)) {
		peer_close(peer, "its RESTORE has the wrong length");
		return;
	}
	memcpy(&restore, body, sizeof(restore));
	if (!body_fits(n, sizeof(restore), restore.n, sizeof(keys[0]), KVP_WIRE_BATCH_MAX)) {
		peer_close(peer, "its RESTORE has the wrong length");
		return;
	}
	memcpy(keys, (const char *)body + sizeof(restore), restore.n * sizeof(keys[0]));
	tier_restore(member, peer, msg->id, keys, restore.n, restore.flags, restore.deadline_ns);
}

/* One writer alone leaves half for the next, those who wait and he have like shares; nobody has one before those who have
 * waited longer. Return: blocks, 0: there is no room. */
static uint64_t stage_room(const struct member *member, uint64_t wish, uint64_t most)
{
	const struct daemon *d = member->session->d;
	uint64_t stride = member->ns->head->block_stride, ahead, left;
	unsigned n_waiting;

	ahead = session_stage_waits(d, member, &n_waiting);
	left = most > d->stage_bytes ? most - d->stage_bytes : 0;
	if (!d->stage_bytes && !ahead && left < stride)
		return 1; /* a block larger than the bound: one at a time */
	if (left < ahead + stride)
		return 0;
	if (wish > STAGE_BLOCKS_MAX)
		wish = STAGE_BLOCKS_MAX;
	while (wish > 1 && (wish * stride > STAGE_BYTES_MAX || wish * stride > left / (n_waiting + 2) ||
				   wish * stride > left - ahead))
		wish /= 2;
	return wish;
}

static void on_stage(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	struct daemon *d = peer->d;
	struct kvp_wire_stage stage;
	struct kvp_wire_staged staged = {0};
	uint64_t most = d->config.pool_bytes / 8;

	if (!body_take(&stage, sizeof(stage), KVP_STAGE_LEAST, body, n)) {
		peer_close(peer, "its STAGE has the wrong length");
		return;
	}
	if (!member->writable || !(member->ns->head->flags & KVP_NS_COPIED)) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES, "namespace %s is not copied, or read-only to you",
			member->ns->head->name);
		return;
	}
	if (!stage.n_blocks) {
		session_give_stage(member);
		member->stage_wish_ns = 0;
		peer_answer(peer, msg->type, msg->id, 0, &staged, sizeof(staged), NULL, 0);
		return;
	}
	if (!member->stage) {
		session_wish_stage(member);
		stage.n_blocks = stage_room(member, stage.n_blocks, most);
		if (!stage.n_blocks || session_make_stage(member, stage.n_blocks) < 0) {
			peer_refuse(peer, msg->type, msg->id, KVP_ENOSPC,
				"staging areas of all writers together are at their bound of %" PRIu64
				" bytes (an eighth of --pool) and blocks lie in each: wait longer, let writers publish or "
				"abandon what they reserved, or raise --pool",
				most);
			return;
		}
		member->stage_wish_ns = 0;
	}
	staged.bytes = member->stage->bytes;
	staged.n_blocks = member->stage->n_blocks;
	peer_answer(peer, msg->type, msg->id, 0, &staged, sizeof(staged), &member->stage->fd, 1);
}

static void on_events(struct peer *peer, const struct kvp_msg *msg, struct member *member)
{
	struct kvp_wire_ring ring;
	int fd, r = events_open(member->ns);

	if (r < 0) {
		peer_refuse(peer, msg->type, msg->id, KVP_ENOMEM, "namespace %s: no memory for its events: %s",
			member->ns->head->name, strerror(-r));
		return;
	}
	fd = shm_reopen_ro(member->ns->ring_fd);
	if (fd < 0) {
		peer_refuse(peer, msg->type, msg->id, KVP_EQUOTA,
			"the daemon has no descriptor left: raise LimitNOFILE of kvpoold");
		return;
	}
	ring.bytes = member->ns->ring->object_bytes;
	peer_answer(peer, msg->type, msg->id, 0, &ring, sizeof(ring), &fd, 1);
	close(fd);
}

/* Whoever asked waits no longer, and may have said otherwise since: what lay in the socket past its deadline, while we were
   stopped, is not done. 0: of a client that gives none. */
static bool asked_too_late(struct peer *peer, const struct kvp_msg *msg, uint64_t deadline_ns)
{
	uint64_t now = loop_now();

	if (!deadline_ns || now < deadline_ns)
		return false;
	log_line(peer->admin ? LOG_LEVEL_WARN : LOG_LEVEL_DEBUG,
		"request %u of uid %u, pid %d is not done: it was read %.1f s after its deadline", msg->type,
		(unsigned)peer->uid, (int)peer->pid, (double)(now - deadline_ns) / 1e9);
	peer_refuse(peer, msg->type, msg->id, ETIME, "not done: it was read only after its deadline: ask again");
	return true;
}

static void on_delete(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	struct kvp_wire_batch batch;
	uint64_t deadline_ns = 0;
	size_t behind;

	memcpy(&batch, body, sizeof(batch));
	if (!body_fits(n, sizeof(batch), batch.n, sizeof(struct kvp_key), KVP_WIRE_BATCH_MAX)) {
		peer_close(peer, "its DELETE has the wrong length");
		return;
	}
	behind = sizeof(batch) + batch.n * sizeof(struct kvp_key);
	if (batch.flags & KVP_WIRE_DEADLINE && n >= behind + sizeof(deadline_ns))
		memcpy(&deadline_ns, (const char *)body + behind, sizeof(deadline_ns));
	if (!member->writable) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES, "namespace %s is read-only to you",
			member->ns->head->name);
		return;
	}
	if (!asked_too_late(peer, msg, deadline_ns))
		tier_delete(member->ns, peer, msg->id, (const char *)body + sizeof(batch), batch.n, deadline_ns);
}

static void on_clear(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	struct kvp_wire_restore clear;

	if (!body_take(&clear, sizeof(clear), sizeof(clear), body, n)) {
		peer_close(peer, "its CLEAR has the wrong length");
		return;
	}
	if (peer->session->uid != member->ns->head->owner_uid) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES, "namespace %s: only its owner, uid %u, may clear it",
			member->ns->head->name, (unsigned)member->ns->head->owner_uid);
		return;
	}
	if (!asked_too_late(peer, msg, clear.deadline_ns))
		forget_clear(member->ns, peer, msg->id, clear.flags & KVP_WIRE_NO_WAIT ? 0 : clear.deadline_ns);
}

static void on_usage(struct peer *peer, const struct kvp_msg *msg, struct member *member)
{
	const struct ns *ns = member->ns;
	const struct kvp_ns_counters *c = &ns->row->counters;
	struct kvp_wire_usage usage = {.capacity_bytes = peer->d->config.pool_bytes,
		.ram_blocks = atomic_load(&c->published),
		.spill_blocks = atomic_load(&c->cold) + atomic_load(&c->clean),
		.lookups = atomic_load(&c->lookups),
		.hits_ram = atomic_load(&c->hits_ram),
		.hits_spill = atomic_load(&c->hits_spill),
		.tokens_ram = atomic_load(&c->tokens_ram),
		.tokens_spill = atomic_load(&c->tokens_spill),
		.stored = atomic_load(&c->stored),
		.evicted = atomic_load(&c->evicted),
		.dropped = atomic_load(&c->dropped),
		.restored = atomic_load(&c->restored)};

	usage.ram_bytes = usage.ram_blocks * ns->head->block_stride;
	usage.spill_bytes = usage.spill_blocks * ns->head->block_bytes;
	peer_answer(peer, msg->type, msg->id, 0, &usage, sizeof(usage), NULL, 0);
}

/* What operators do to blocks and memory can be found in the log afterwards, and whose doing it was. */
static void admin_log(const struct peer *peer, uint16_t type, const struct kvp_wire_admin *admin)
{
	const struct ns *ns = admin->ns_id ? ns_find(peer->d, admin->ns_id) : NULL;
	char what[200] = "purge: all memory of the pool is given back", of[KVP_NAME_MAX + 40] = "all namespaces";

	if (admin->ns_id)
		snprintf(of, sizeof(of), "namespace %016" PRIx64 " (%s)", admin->ns_id,
			ns ? ns->head->name : "not in memory");
	if (type == KVP_MSG_DRAIN)
		snprintf(what, sizeof(what), "drain of the pool to its store");
	else if (type == KVP_MSG_STORE_DROP)
		snprintf(what, sizeof(what), "store drop of %s: what the store holds of it is forgotten", of);
	else if (type == KVP_MSG_NS_POLICY)
		snprintf(what, sizeof(what), "policy of %s: %s", of, admin->n ? "learned" : "lru");
	else if (type == KVP_MSG_STORE_SCRUB)
		snprintf(what, sizeof(what), "scrub of the store");
	else if (type == KVP_MSG_EVICT && admin->n == UINT64_MAX)
		snprintf(what, sizeof(what), "evict of all blocks of %s", of);
	else if (type == KVP_MSG_EVICT)
		snprintf(what, sizeof(what), "evict of %" PRIu64 " blocks of %s", admin->n, of);
	log_info("asked for by uid %u, pid %d: %s", (unsigned)peer->uid, (int)peer->pid, what);
}

/* Kept in the namespace's header and, where there is one, beside the store. */
static void admin_policy(struct peer *peer, const struct kvp_msg *msg, const struct kvp_wire_admin *admin)
{
	struct ns *ns = ns_find(peer->d, admin->ns_id);
	struct kvp_wire_admin_done done = {0};
	int r = 0;

	if (!ns || admin->n > 1) {
		peer_refuse(peer, msg->type, msg->id, ns ? KVP_EINVAL : KVP_ENOENT,
			ns ? "policy %" PRIu64 " is unknown to this kvpoold" : "there is no namespace %016" PRIx64,
			ns ? admin->n : admin->ns_id);
		return;
	}
	done.n_done = !(ns->head->flags & KVP_NS_LEARNED) != !admin->n;
	if (done.n_done)
		r = policy_choose(ns, admin->n);
	if (r < 0) {
		peer_refuse(
			peer, msg->type, msg->id, KVP_ENOMEM, "namespace %s: no memory for its policy", ns->head->name);
		return;
	}
	if (done.n_done && peer->d->config.n_stores)
		ns_file_save(ns);
	peer_answer(peer, msg->type, msg->id, 0, &done, sizeof(done), NULL, 0);
}

static void on_admin(struct peer *peer, const struct kvp_msg *msg, const void *body, size_t n)
{
	struct kvp_wire_admin admin;
	struct kvp_wire_admin_done done = {0};

	if (!peer->admin) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES,
			"only root, the daemon's user or its group may do this, on the operators' socket %s",
			peer->d->config.admin_socket);
		return;
	}
	if (msg->type == KVP_MSG_RESIZE && n >= KVP_RESIZE_LEAST) {
		struct kvp_wire_resize resize;

		body_take(&resize, sizeof(resize), KVP_RESIZE_LEAST, body, n);
		resize.pool[sizeof(resize.pool) - 1] = 0;
		if (!asked_too_late(peer, msg, resize.deadline_ns))
			resize_ask(peer->d, peer, msg->id, resize.pool, resize.deadline_ns);
		return;
	}
	if (msg->type == KVP_MSG_RESIZE || !body_take(&admin, sizeof(admin), KVP_ADMIN_LEAST, body, n)) {
		peer_close(peer, "its request has the wrong length");
		return;
	}
	if (asked_too_late(peer, msg, admin.deadline_ns))
		return;
	admin_log(peer, msg->type, &admin);
	switch (msg->type) {
	case KVP_MSG_DRAIN:
		tier_drain(peer->d, peer, msg->id, admin.deadline_ns);
		return;
	case KVP_MSG_STORE_DROP:
		tier_store_drop(peer->d, peer, msg->id, admin.ns_id, admin.deadline_ns);
		return;
	case KVP_MSG_NS_POLICY:
		admin_policy(peer, msg, &admin);
		return;
	case KVP_MSG_STORE_SCRUB:
		tier_store_scrub(peer->d, peer, msg->id, admin.n);
		return;
	case KVP_MSG_EVICT:
		tier_evict(peer->d, peer, msg->id, admin.ns_id, admin.n, admin.deadline_ns);
		return;
	default:
		peer->d->purge_at_end = true;
		loop_stop(peer->d->loop);
	}
	peer_answer(peer, msg->type, msg->id, 0, &done, sizeof(done), NULL, 0);
}

/* Messages about a namespace begin with its id. */
static void on_ns_message(struct peer *peer, const struct kvp_msg *msg, const void *body, size_t n)
{
	struct member *member;
	struct ns *ns;
	uint64_t ns_id;

	if (n < 16) {
		peer_close(peer, "its message is too short");
		return;
	}
	memcpy(&ns_id, body, sizeof(ns_id));
	ns = ns_find(peer->d, ns_id);
	member = ns ? session_member(peer->session, ns) : NULL;
	if (!member) { /* the same answer whether there is one or not */
		peer_refuse(peer, msg->type, msg->id, KVP_ENOENT, "namespace %016" PRIx64 " was not joined", ns_id);
		return;
	}
	switch (msg->type) {
	case KVP_MSG_MAP:
		on_map(peer, msg, member, body, n);
		return;
	case KVP_MSG_RESERVE:
		on_reserve(peer, msg, member, body, n);
		return;
	case KVP_MSG_PUBLISH:
		on_publish(peer, msg, member, body, n);
		return;
	case KVP_MSG_ABANDON:
	case KVP_MSG_GRANTS:
		on_grants(peer, msg, member, body, n);
		return;
	case KVP_MSG_LOOKUP:
		on_lookup(peer, msg, member, body, n);
		return;
	case KVP_MSG_RESTORE:
		on_restore(peer, msg, member, body, n);
		return;
	case KVP_MSG_REQUEST:
		on_request(peer, msg, member, body, n);
		return;
	case KVP_MSG_UNMAPPED:
		on_unmapped(peer, msg, body, n);
		return;
	case KVP_MSG_EVENTS:
		on_events(peer, msg, member);
		return;
	case KVP_MSG_DELETE:
		on_delete(peer, msg, member, body, n);
		return;
	case KVP_MSG_CLEAR:
		on_clear(peer, msg, member, body, n);
		return;
	case KVP_MSG_USAGE:
		on_usage(peer, msg, member);
		return;
	default:
		on_stage(peer, msg, member, body, n);
	}
}

void peer_message(struct peer *peer, const void *packet, size_t bytes)
{
	struct kvp_msg msg;
	const void *body = (const char *)packet + sizeof(msg);
	size_t n = bytes - sizeof(msg);

	gauge_add(&peer->d->pool.stats->counters.messages, 1);
	if (bytes < sizeof(msg)) {
		peer_close(peer, "its message is shorter than a header");
		return;
	}
	memcpy(&msg, packet, sizeof(msg));
	if (msg.magic != KVP_WIRE_MAGIC || msg.bytes != bytes || msg.n_fds) {
		peer_close(peer, "its message has a wrong header");
		return;
	}
	switch (msg.type) {
	case KVP_MSG_HELLO:
		on_hello(peer, &msg, body, n);
		return;
	case KVP_MSG_PING:
		if (peer->session)
			peer->session->heard_ns = loop_now();
		on_ping(peer, &msg);
		return;
	case KVP_MSG_DRAIN:
	case KVP_MSG_PURGE:
	case KVP_MSG_EVICT:
	case KVP_MSG_RESIZE:
	case KVP_MSG_STORE_DROP:
	case KVP_MSG_STORE_SCRUB:
	case KVP_MSG_NS_POLICY:
		on_admin(peer, &msg, body, n);
		return;
	default:
		break;
	}
	if (!peer->session) {
		peer_close(peer, "it did not begin with HELLO");
		return;
	}
	peer->session->heard_ns = loop_now();
	switch (msg.type) {
	case KVP_MSG_BYE: {
		struct session *s = peer->session;

		/* its process lives on and may still hold views: they are void from now on, as it said itself */
		session_end(s, NULL);
		return;
	}
	case KVP_MSG_JOIN:
		on_join(peer, &msg, body, n);
		return;
	case KVP_MSG_MAP:
	case KVP_MSG_RESERVE:
	case KVP_MSG_PUBLISH:
	case KVP_MSG_ABANDON:
	case KVP_MSG_GRANTS:
	case KVP_MSG_LOOKUP:
	case KVP_MSG_RESTORE:
	case KVP_MSG_STAGE:
	case KVP_MSG_EVENTS:
	case KVP_MSG_DELETE:
	case KVP_MSG_CLEAR:
	case KVP_MSG_USAGE:
	case KVP_MSG_REQUEST:
	case KVP_MSG_UNMAPPED:
		on_ns_message(peer, &msg, body, n);
		return;
	default:
		peer_refuse(
			peer, msg.type, msg.id, KVP_ENOTSUP, "message type %u is unknown to this kvpoold", msg.type);
	}
}

/* Descriptors are not taken from clients: they could be anything, and cost us ours. */
static bool close_received_fds(struct msghdr *msg)
{
	bool any = msg->msg_flags & MSG_CTRUNC;

	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		int fds[256];
		size_t n;

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds, CMSG_DATA(cmsg), n * sizeof(int));
		for (size_t i = 0; i < n; i++)
			close(fds[i]);
		any = true;
	}
	return any;
}

static void peer_ready(struct loop_source *source, uint32_t events)
{
	struct peer *peer = source->owner;

	if (events & LOOP_OUT)
		peer_flush(peer);
	if (events & LOOP_HUP && peer->out_head && !peer->closing)
		peer_close(peer, NULL); /* nobody takes what is queued any more */
	for (unsigned i = 0; i < MESSAGES_A_TURN && !peer->closing && !peer->out_head; i++) {
		union {
			char bytes[CMSG_SPACE(253 * sizeof(int))];
			struct cmsghdr align;
		} control;
		struct iovec iov = {peer_packet, sizeof(peer_packet)};
		struct msghdr msg = {.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control.bytes,
			.msg_controllen = sizeof(control.bytes)};
		ssize_t n = recvmsg(source->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			peer_close(peer, NULL);
			return;
		}
		if (close_received_fds(&msg)) {
			peer_close(peer, "it sent descriptors");
			return;
		}
		if (msg.msg_flags & MSG_TRUNC) {
			peer_close(peer, "its message is too long");
			return;
		}
		peer_message(peer, peer_packet, (size_t)n);
	}
}

/* ---- listening ---- */

static bool peer_is_operator(const struct daemon *d, const struct peer *peer)
{
	if (peer->uid == 0 || peer->uid == geteuid())
		return true;
	if (d->pool.group == (gid_t)-1)
		return false;
	if (peer->gid == d->pool.group)
		return true;
	for (unsigned i = 0; i < peer->n_groups; i++)
		if (peer->groups[i] == d->pool.group)
			return true;
	return false;
}

static int peer_identify(struct peer *peer, const struct config_listen *policy)
{
	struct ucred cred;
	socklen_t n = sizeof(cred);

	if (getsockopt(peer->source.fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
		return -errno;
	peer->uid = cred.uid;
	peer->gid = cred.gid;
	peer->pid = cred.pid;
	if (policy && policy->has_uid) {
		peer->uid = policy->uid;
		peer->gid = policy->gid;
		return 0;
	}
	n = 0;
	if (getsockopt(peer->source.fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &n) < 0 && errno == ERANGE && n) {
		peer->groups = malloc(n);
		if (!peer->groups)
			return -ENOMEM;
		if (getsockopt(peer->source.fd, SOL_SOCKET, SO_PEERGROUPS, peer->groups, &n) < 0)
			return -errno;
		peer->n_groups = n / sizeof(gid_t);
	}
	return peer->uid == KVP_OVERFLOW_UID ? -EPERM : 0;
}

static unsigned peer_count_of(const struct daemon *d, uid_t uid)
{
	unsigned n = 0;

	for (const struct peer *peer = d->peers; peer; peer = peer->next)
		n += peer->uid == uid;
	return n;
}

/* Not taken on: the client is told why before it asks anything, or it would look as if no daemon were there. */
static __attribute__((format(printf, 4, 5))) void connection_refuse(
	struct daemon *d, int fd, int error, const char *format, ...)
{
	struct {
		struct kvp_msg msg;
		char text[256];
	} packet = {.msg = {.magic = KVP_WIRE_MAGIC, .type = KVP_MSG_HELLO | KVP_MSG_REPLY, .status = -error}};
	struct ucred cred = {.uid = KVP_OVERFLOW_UID};
	socklen_t n = sizeof(cred);
	va_list args;

	va_start(args, format);
	vsnprintf(packet.text, sizeof(packet.text), format, args);
	va_end(args);
	getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n);
	client_refused(d, cred.uid, cred.pid, packet.text);
	packet.msg.bytes = (uint32_t)(sizeof(packet.msg) + strlen(packet.text));
	if (send(fd, &packet, packet.msg.bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		log_debug("a connection that is refused was not told why: %s", strerror(errno));
	close(fd);
}

static void listener_accept_one(struct listener *listener, int fd)
{
	struct daemon *d = listener->d;
	/* operators get in when clients have taken all there is */
	struct peer *peer = d->n_peers < 2 * d->config.max_clients || listener->admin ? calloc(1, sizeof(*peer)) : NULL;
	int r;

	if (!peer) {
		connection_refuse(d, fd, KVP_EQUOTA, "%u connections are open: raise max-clients (%u)", d->n_peers,
			d->config.max_clients);
		return;
	}
	peer->d = d;
	peer->source = (struct loop_source){.fd = fd, .events = LOOP_IN, .ready = peer_ready, .owner = peer};
	peer->retry = (struct loop_timer){.ring = peer_retry, .owner = peer};
	r = peer_identify(peer, listener->policy);
	if (r == 0 && !listener->admin && peer_count_of(d, peer->uid) >= d->config.uid_max_clients + UID_SPARE_PEERS)
		r = -EDQUOT;
	if (r == 0)
		r = loop_add(d->loop, &peer->source);
	if (r < 0) {
		const char *why = r == -EPERM	 ? "it comes from another user namespace, its uid could be anybody's"
				  : r == -EDQUOT ? "it has as many as uid-max-clients allows: raise it"
						 : strerror(-r);

		connection_refuse(d, fd, r == -EPERM ? KVP_EACCES : KVP_EQUOTA, "a connection of uid %u: %s",
			(unsigned)peer->uid, why);
		free(peer->groups);
		free(peer);
		return;
	}
	peer->admin = listener->admin && peer_is_operator(d, peer);
	peer->next = d->peers;
	d->peers = peer;
	if (!d->n_peers++ && !d->n_sessions && d->beat)
		loop_timer_set(d->loop, d->beat, loop_now());
}

static void listener_again(struct loop_timer *timer)
{
	struct listener *listener = timer->owner;

	if (listener->spare_fd < 0)
		listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (loop_set_events(listener->d->loop, &listener->source, LOOP_IN) < 0)
		loop_timer_set(listener->d->loop, timer, loop_now() + ACCEPT_AGAIN_NS);
}

/* Who waits there stays ready: looked at all the time it would cost a processor. */
static void listener_pause(struct listener *listener, int err)
{
	static struct log_limit limit;

	log_limited(&limit, LOG_LEVEL_WARN, "%s: no connection can be taken on: %s; those there are go on%s",
		listener->path[0] ? listener->path : "a socket", strerror(err),
		err == EMFILE ? "; raise LimitNOFILE of kvpoold" : "");
	loop_set_events(listener->d->loop, &listener->source, 0);
	loop_timer_set(listener->d->loop, &listener->again, loop_now() + ACCEPT_AGAIN_NS);
}

static bool accept_is_none(int err)
{
	return err == EAGAIN || err == EINTR || err == ECONNABORTED;
}

static void listener_ready(struct loop_source *source, uint32_t events)
{
	struct listener *listener = source->owner;

	(void)events;
	for (unsigned i = 0; i < 64; i++) {
		int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			listener_accept_one(listener, fd);
			continue;
		}
		if (accept_is_none(errno))
			return;
		if ((errno != EMFILE && errno != ENFILE) || listener->spare_fd < 0) {
			listener_pause(listener, errno);
			return;
		}
		/* no descriptor left: give up the spare one to tell the client so, instead of spinning on it */
		close(listener->spare_fd);
		fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0)
			connection_refuse(listener->d, fd, KVP_EQUOTA,
				"the daemon has no descriptor left: raise LimitNOFILE of kvpoold");
		listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	}
}

/* Does somebody answer there?  A connection alone proves nothing: the ring of a killed daemon keeps its socket open for
   some milliseconds after the process is gone, or for as long as a disk makes its I/O hang.
   Return: 1; 0: nobody listens; -EAGAIN: somebody listens and says nothing; *pid: who. */
static int listener_probe(const char *path, pid_t *pid)
{
	const struct kvp_msg ping = {.magic = KVP_WIRE_MAGIC, .type = KVP_MSG_PING, .bytes = sizeof(ping), .id = 1};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct pollfd answer = {.events = POLLIN};
	struct ucred listens = {.pid = 0};
	socklen_t n = sizeof(listens);
	char reply[256];
	int r = -EAGAIN;

	strcpy(address.sun_path, path);
	answer.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (connect(answer.fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		r = errno == EAGAIN ? -EAGAIN : 0;
	else if (send(answer.fd, &ping, sizeof(ping), MSG_NOSIGNAL) == (ssize_t)sizeof(ping) &&
		 poll(&answer, 1, PROBE_MS) > 0 && recv(answer.fd, reply, sizeof(reply), MSG_DONTWAIT) > 0)
		r = 1;
	getsockopt(answer.fd, SOL_SOCKET, SO_PEERCRED, &listens, &n);
	*pid = listens.pid;
	close(answer.fd);
	return r;
}

/* Is the path a socket that nobody serves any more? Then it may go. */
static int listener_clear_path(const char *path, char message[256])
{
	struct stat st;
	pid_t pid = 0;
	int r;

	if (lstat(path, &st) < 0)
		return 0;
	if (!S_ISSOCK(st.st_mode)) {
		snprintf(message, 256, "%s exists and is not a socket: remove it, or choose another --socket", path);
		return -EEXIST;
	}
	for (unsigned tries = 0; (r = listener_probe(path, &pid)) == -EAGAIN && tries < PROBES; tries++)
		nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	if (r == 1 || (r < 0 && !pool_process_is_gone(pid))) {
		snprintf(message, 256,
			"%s is served by another daemon (of another pool, pid %d): stop it, or choose another --socket",
			path, (int)pid);
		return -EADDRINUSE;
	}
	if (r < 0)
		log_warn("%s: its last daemon (pid %d) is gone, its ring still holds the socket; taking the path over",
			path, (int)pid);
	unlink(path);
	return 0;
}

static int listener_bind(struct listener *listener, uint32_t mode, char message[256])
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	mode_t old;
	int fd, r = listener_clear_path(listener->path, message);

	if (r < 0)
		return r;
	strcpy(address.sun_path, listener->path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	old = umask(0777 & ~mode);
	r = bind(fd, (struct sockaddr *)&address, sizeof(address));
	r = r < 0 ? -errno : 0;
	umask(old);
	if (r == 0 && listen(fd, 512) < 0)
		r = -errno;
	if (r < 0) {
		snprintf(message, 256, "cannot listen on %s: %s%s", listener->path, strerror(-r),
			r == -ENOENT ? "; make its directory first"
			: r == -EACCES || r == -EPERM
				? "; give the daemon's user its directory (in a unit, RuntimeDirectory=), or choose another --socket"
			: r == -EROFS ? "; choose another --socket, in a unit RuntimeDirectory= or ReadWritePaths="
				      : "; choose another --socket");
		close(fd);
		return r;
	}
	listener->source.fd = fd;
	return 0;
}

static int listener_start(struct daemon *d, struct listener *listener, char message[256])
{
	int r;

	listener->d = d;
	listener->source.events = LOOP_IN;
	listener->source.ready = listener_ready;
	listener->source.owner = listener;
	listener->again = (struct loop_timer){.ring = listener_again, .owner = listener};
	listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	r = loop_add(d->loop, &listener->source);
	if (r < 0)
		snprintf(message, 256, "cannot watch the socket: %s", strerror(-r));
	return r;
}

/* Sockets handed over by the service manager, by name: "clients" and "admin". */
static int listeners_passed(struct daemon *d, char message[256])
{
	char **names = NULL;
	int n = sd_listen_fds_with_names(1, &names), r = 0;

	for (int i = 0; i < n && r == 0 && d->n_listeners < LISTENERS_MAX - CONFIG_LISTEN_MAX - 2; i++) {
		struct listener *listener = &d->listeners[d->n_listeners];
		int fd = SD_LISTEN_FDS_START + i;

		if (sd_is_socket(fd, AF_UNIX, SOCK_SEQPACKET, 1) <= 0) {
			snprintf(message, 256,
				"descriptor %d (%s) is not a listening sequential-packet socket: ListenSequentialPacket= in the socket unit",
				fd, names[i]);
			r = -EINVAL;
			break;
		}
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
		listener->source.fd = fd;
		listener->passed = true;
		listener->admin = !strcmp(names[i], "admin");
		d->n_listeners++;
		r = listener_start(d, listener, message);
	}
	for (int i = 0; i < n; i++)
		free(names[i]);
	free(names);
	return r < 0 ? r : n;
}

static int listener_open(struct daemon *d, const char *path, uint32_t mode, bool admin,
	const struct config_listen *policy, char message[256])
{
	struct listener *listener = &d->listeners[d->n_listeners];
	int r;

	listener->admin = admin;
	listener->policy = policy;
	strcpy(listener->path, path);
	r = listener_bind(listener, mode, message);
	if (r < 0)
		return r;
	d->n_listeners++;
	return listener_start(d, listener, message);
}

int peer_start(struct daemon *d, char message[256])
{
	bool have[2] = {false, false};
	int r;

	d->bury = (struct loop_timer){.ring = peer_bury_ring, .owner = d};
	d->listeners = calloc(LISTENERS_MAX, sizeof(*d->listeners));
	if (!d->listeners)
		return -ENOMEM;
	r = listeners_passed(d, message);
	for (unsigned i = 0; i < d->n_listeners; i++)
		have[d->listeners[i].admin] = true;
	for (int admin = 0; admin <= 1 && r >= 0; admin++)
		if (!have[admin])
			r = listener_open(d, admin ? d->config.admin_socket : d->config.socket, d->config.socket_mode,
				admin, NULL, message);
	for (unsigned i = 0; i < d->config.n_listen && r >= 0; i++) {
		const struct config_listen *policy = &d->config.listen[i];

		r = listener_open(
			d, policy->path, policy->mode ? policy->mode : d->config.socket_mode, false, policy, message);
	}
	return r < 0 ? r : 0;
}

void peer_stop(struct daemon *d)
{
	for (unsigned i = 0; i < d->n_listeners; i++) {
		struct listener *listener = &d->listeners[i];

		loop_del(d->loop, &listener->source);
		loop_timer_cancel(d->loop, &listener->again);
		close(listener->source.fd);
		if (listener->spare_fd >= 0)
			close(listener->spare_fd);
		if (!listener->passed)
			unlink(listener->path);
	}
	free(d->listeners);
	d->listeners = NULL;
	d->n_listeners = 0;
	for (struct peer *peer = d->peers; peer; peer = peer->next) {
		peer->session = NULL; /* sessions outlive us */
		peer_close(peer, NULL);
	}
	peer_bury(d);
}
