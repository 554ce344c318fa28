/* peer.c - see peer.h */
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "forget.h"
#include "log.h"
#include "request.h"
#include "resize.h"
#include "session.h"
#include "tier.h"

#define OUT_MAX 256 /* answers a peer may leave unread before it is put out */
#define MESSAGES_A_TURN 16 /* of one peer, before others get their turn */

struct peer_out {
	struct peer_out *next;
	unsigned n_fds;
	int fds[KVP_WIRE_FDS_MAX];
	size_t bytes;
	char packet[];
};

#define RETRY_NS 5000000ull /* an answer that waits for something the socket does not tell */
#define UID_SPARE_PEERS 16 /* connections of a uid beside those of its sessions: resumes, pings */

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
/* An engine that runs without the pool says so to its own users at most: whoever looks after the host is told here. */
void peer_went_without(struct daemon *d, uid_t uid, pid_t pid, const char *why)
{
	static struct log_limit limit;

	gauge_add(&d->pool.stats->counters.connections_refused, 1);
	log_limited(&limit, LOG_LEVEL_WARN, "client of uid %u, pid %d is refused, it runs without the pool: %s",
		(unsigned)uid, (int)pid, why);
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
		request_handle(peer, peer_packet, (size_t)n);
	}
}
/* ---- who it is ---- */

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

int peer_open(struct daemon *d, int fd, const struct config_listen *policy, bool operators, uid_t *uid)
{
	struct peer *peer = calloc(1, sizeof(*peer));
	int r;

	if (!peer)
		return -ENOMEM;
	peer->d = d;
	peer->source = (struct loop_source){.fd = fd, .events = LOOP_IN, .ready = peer_ready, .owner = peer};
	peer->retry = (struct loop_timer){.ring = peer_retry, .owner = peer};
	r = peer_identify(peer, policy);
	*uid = peer->uid;
	if (r == 0 && !operators && peer_count_of(d, peer->uid) >= d->config.uid_max_clients + UID_SPARE_PEERS)
		r = -EDQUOT;
	if (r == 0)
		r = loop_add(d->loop, &peer->source);
	if (r < 0) {
		free(peer->groups);
		free(peer);
		return r;
	}
	peer->admin = operators && peer_is_operator(d, peer);
	peer->next = d->peers;
	d->peers = peer;
	if (!d->n_peers++ && !d->n_sessions && d->beat)
		loop_timer_set(d->loop, d->beat, loop_now());
	return 0;
}

void peer_start(struct daemon *d)
{
	d->bury = (struct loop_timer){.ring = peer_bury_ring, .owner = d};
}

void peer_stop(struct daemon *d)
{
	for (struct peer *peer = d->peers; peer; peer = peer->next) {
		peer->session = NULL; /* sessions outlive us */
		peer_close(peer, NULL);
	}
	peer_bury(d);
}
