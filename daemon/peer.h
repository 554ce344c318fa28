/*
 * peer.h - connections: who is at the other end, packets in, answers out
 *
 * A packet is copied once; request.c checks and uses it.
 *
 * Closing has two steps: peer_close() shuts the socket and nothing more, so it may be called from anywhere, by an
 * answer that cannot be sent too; peer_bury(), from a timer, tells the session and the jobs, and frees.  So no answer
 * ever takes a session, a member or a job away under its caller.
 */
#ifndef KVPOOL_PEER_H
#define KVPOOL_PEER_H

#include "daemon.h"
#include "kvpool_wire.h"

struct peer {
	struct peer *next;
	struct daemon *d;
	struct loop_source source;
	uid_t uid;
	gid_t gid;
	pid_t pid;
	gid_t *groups;
	unsigned n_groups;
	bool admin; /* came by the operators' socket and may use it */
	bool closing;
	struct session *session;
	struct peer_out *out_head, *out_tail; /* answers the socket did not take yet */
	unsigned n_out;
	struct loop_timer retry; /* for the head of them: what it waits for is not told by the socket */
	bool fds_sent; /* an answer with descriptors was sent and may be unread */
	unsigned n_jobs; /* requests of it that wait */
};

void peer_start(struct daemon *d);
/** peer_stop() - all are closed and freed; their sessions live on */
void peer_stop(struct daemon *d);
/** peer_open() - a connection that came by a listener of @policy (NULL: they are who the kernel says), or by the operators'.
 *
 * Return: 0; or, with @fd still the caller's and *@uid set if it is known: -EPERM: of another user namespace; -EDQUOT: its user
 * has as many as it may; -ENOMEM, or what the kernel says. */
int peer_open(struct daemon *d, int fd, const struct config_listen *policy, bool operators, uid_t *uid);

/** peer_answer() - @fds are sent and stay the caller's; @id 0: nothing is sent */
void peer_answer(struct peer *peer, uint16_t type, uint64_t id, int32_t status, const void *body, size_t n,
	const int *fds, unsigned n_fds);
/** peer_refuse() - an answer with an error and a text */
void peer_refuse(struct peer *peer, uint16_t type, uint64_t id, int error, const char *format, ...)
	__attribute__((format(printf, 5, 6)));
/** peer_close() - shut the socket; its session lives on if its process does. @why: for the log, or NULL. */
void peer_close(struct peer *peer, const char *why);
/** peer_bury() - second step: free the closed ones; from a timer, never inside a peer's callback */
void peer_bury(struct daemon *d);

/** peer_went_without() - a client is refused, or turned away: it runs without the pool, and whoever looks after the
 * host is told, for an engine says so to its own users at most */
void peer_went_without(struct daemon *d, uid_t uid, pid_t pid, const char *why);

#endif
