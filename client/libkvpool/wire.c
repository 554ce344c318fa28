/*
 * wire.c - messages: requests out from any thread, answers in by the keeper
 *
 * A request is in client->requests from the moment it is sent until it is answered, withdrawn, or the connection ends.
 * Sending never blocks in the kernel: the socket is tried under client->lock, a full one is waited for outside it.
 * Answers nobody waits for any more still count: late grants go to the stock, descriptors are closed.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEND_MS 1000 /* a daemon that reads nothing for so long counts as not there */
#define SEND_TURN_MS 10

/* ---- requests ---- */

struct request *request_new(struct kvp_client *client, struct session *session, uint16_t type, size_t body_bytes)
{
	struct request *request = calloc(1, sizeof(*request));
	pthread_condattr_t attr;

	if (!request)
		return NULL;
	request->packet_bytes = sizeof(struct kvp_msg) + body_bytes;
	request->packet = calloc(1, request->packet_bytes);
	if (!request->packet) {
		free(request);
		return NULL;
	}
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&request->cond, &attr);
	pthread_condattr_destroy(&attr);
	request->client = client;
	request->session = session;
	request->type = type;
	return request;
}

bool request_body_take(const struct request *request, void *to, size_t room, size_t least)
{
	size_t known = request->body_bytes < room ? request->body_bytes : room;

	if (request->body_bytes < least)
		return false;
	memcpy(to, request->body, known);
	memset((char *)to + known, 0, room - known);
	return true;
}

bool wire_can(struct kvp_client *client, enum kvp_wire_can what)
{
	bool can;

	pthread_mutex_lock(&client->lock);
	can = client->can & what;
	pthread_mutex_unlock(&client->lock);
	return can;
}

static void request_link(struct kvp_client *client, struct request *request)
{
	request->next = NULL;
	request->prev = NULL;
	if (client->requests) { /* at the end: they are sent again in the order they were made */
		struct request *last = client->requests;

		while (last->next)
			last = last->next;
		last->next = request;
		request->prev = last;
	} else {
		client->requests = request;
	}
	request->linked = true;
}

static void request_unlink(struct kvp_client *client, struct request *request)
{
	if (!request->linked)
		return;
	if (request->prev)
		request->prev->next = request->next;
	else
		client->requests = request->next;
	if (request->next)
		request->next->prev = request->prev;
	request->linked = false;
}

void request_free(struct request *request)
{
	struct kvp_client *client;

	if (!request)
		return;
	client = request->client;
	pthread_mutex_lock(&client->lock);
	request_unlink(client, request);
	pthread_mutex_unlock(&client->lock);
	for (unsigned i = 0; i < request->n_fds; i++)
		close(request->fds[i]);
	pthread_cond_destroy(&request->cond);
	free(request->packet);
	free(request->body);
	free(request);
}

/* ---- out ---- */

static int packet_send(int fd, const struct iovec *iov, int n_iov)
{
	struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)n_iov};
	ssize_t n;

	do
		n = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n >= 0)
		return 0;
	return errno == EAGAIN || errno == ENOBUFS ? -EAGAIN : -KVP_EDETACHED;
}

static void request_stamp(struct kvp_client *client, struct request *request)
{
	struct kvp_msg msg = {.magic = KVP_WIRE_MAGIC,
		.type = request->type,
		.bytes = (uint32_t)request->packet_bytes,
		.id = ++client->next_id};

	request->id = msg.id;
	request->connection = client->connection;
	memcpy(request->packet, &msg, sizeof(msg));
}

/* Under client->lock. */
static int request_try(struct kvp_client *client, struct request *request)
{
	struct iovec iov = {request->packet, request->packet_bytes};
	int r;

	request_stamp(client, request);
	if (!request->linked)
		request_link(client, request);
	r = packet_send(client->fd, &iov, 1);
	request->sent = r == 0;
	if (r < 0)
		request_unlink(client, request);
	return r;
}

static int session_online(struct kvp_client *client, const struct session *session, uint64_t only_on)
{
	if (session->gone)
		return fail(-KVP_EGONE, "the pool this belongs to is no more: what is of it stays readable");
	if (!client->online || (only_on && only_on != client->connection))
		return fail(-KVP_EDETACHED, "not attached to a daemon at %s: %s", client->socket, client->attach_text);
	return 0;
}

static void socket_wait(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};

	poll(&p, 1, SEND_TURN_MS);
}

static int request_send_by(struct request *request, uint64_t deadline_ns)
{
	struct kvp_client *client = request->client;
	uint64_t give_up = after_ms(SEND_MS);
	bool early = deadline_ns < give_up;
	int r, fd;

	for (;;) {
		pthread_mutex_lock(&client->lock);
		r = session_online(client, request->session, request->only_on);
		if (r == 0)
			r = request_try(client, request);
		fd = client->fd;
		pthread_mutex_unlock(&client->lock);
		if (r != -EAGAIN)
			return r;
		if (now_ns() >= (early ? deadline_ns : give_up) || keeper_is_me(client))
			return fail(early ? -KVP_ETIMEDOUT : -KVP_EDETACHED, "the daemon at %s does not take messages",
				client->socket);
		socket_wait(fd);
	}
}

int request_send(struct request *request)
{
	return request_send_by(request, UINT64_MAX);
}

int wire_raw(struct request *request)
{
	struct kvp_client *client = request->client;
	int r;

	pthread_mutex_lock(&client->lock);
	r = client->fd < 0 ? -KVP_EDETACHED : request_try(client, request);
	pthread_mutex_unlock(&client->lock);
	return r;
}

int client_tell(
	struct session *session, uint16_t type, const void *head, size_t n_head, const void *body, size_t n_body)
{
	struct kvp_client *client = session->client;
	struct kvp_msg msg = {
		.magic = KVP_WIRE_MAGIC, .type = type, .bytes = (uint32_t)(sizeof(msg) + n_head + n_body)};
	struct iovec iov[3] = {
		{&msg, sizeof(msg)}, {(void *)(uintptr_t)head, n_head}, {(void *)(uintptr_t)body, n_body}};
	int r;

	pthread_mutex_lock(&client->lock);
	r = session_online(client, session, 0);
	if (r == 0)
		r = packet_send(client->fd, iov, 3);
	pthread_mutex_unlock(&client->lock);
	return r;
}

void client_wake(struct kvp_client *client)
{
	uint64_t one = 1;
	ssize_t n = write(client->wake_fd, &one, sizeof(one));

	(void)n; /* full: it is awake already */
}

/* ---- waiting ---- */

/* The keeper itself waits by receiving: nobody else would bring the answer. */
static void keeper_pump(struct kvp_client *client, const struct request *request, uint64_t deadline_ns)
{
	while (!request->answered && client->fd >= 0) {
		struct pollfd p = {.fd = client->fd, .events = POLLIN};
		uint64_t now = now_ns();

		if (now >= deadline_ns)
			return;
		poll(&p, 1, (int)((deadline_ns - now) / MS) + 1);
		if (wire_receive(client) < 0)
			wire_down(client);
	}
}

int request_wait(struct request **at, uint64_t deadline_ns)
{
	struct request *request = *at;
	struct kvp_client *client = request->client;
	struct timespec until = timespec_of(deadline_ns);
	int r = 0;

	if (keeper_is_me(client))
		keeper_pump(client, request, deadline_ns);
	pthread_mutex_lock(&client->lock);
	while (!request->answered && r == 0 && !keeper_is_me(client))
		r = pthread_cond_timedwait(&request->cond, &client->lock, &until);
	if (request->answered) {
		r = request->status;
	} else if (request->lasting && !request->sent && !request->resending) {
		r = -KVP_EDETACHED; /* no connection: nobody will ever see it */
		request_unlink(client, request);
	} else {
		r = -KVP_ETIMEDOUT;
		if (request->late) {
			request->done = request->late;
			*at = NULL;
		} else {
			request_unlink(client, request);
		}
	}
	pthread_mutex_unlock(&client->lock);
	if (!request->answered || r == -KVP_ETIMEDOUT)
		return fail(r, "the daemon at %s did not answer in time", client->socket);
	if (r < 0)
		fail(r, "%s", request->text);
	if (r < 0 && request->differs[0])
		self_set_differs(request->differs);
	return r < 0 ? r : 0;
}

int request_call(struct request **at, uint64_t deadline_ns)
{
	struct kvp_client *client = (*at)->client;
	int r = request_send_by(*at, deadline_ns);

	if (r < 0)
		return r;
	if (!keeper_is_me(client))
		count_add(client, COUNT_ROUND_TRIPS, 1);
	return request_wait(at, deadline_ns);
}

void request_orphan(struct request *request, void (*done)(struct request *request))
{
	struct kvp_client *client = request->client;
	bool answered;

	pthread_mutex_lock(&client->lock);
	answered = request->answered;
	request->done = done;
	pthread_mutex_unlock(&client->lock);
	if (answered)
		done(request);
}

/* ---- in ---- */

/* Under client->lock: wake who waits. Return: true: nobody does, done() is to be called without the lock. */
static bool request_answer(struct kvp_client *client, struct request *request, int status)
{
	request_unlink(client, request);
	request->status = status;
	request->answered = true;
	pthread_cond_signal(&request->cond);
	return request->done != NULL;
}

static unsigned fds_take(struct msghdr *msg, int fds[KVP_WIRE_FDS_MAX])
{
	unsigned n_fds = 0;

	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		size_t n;

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(int));
			if (n_fds < KVP_WIRE_FDS_MAX)
				fds[n_fds++] = fd;
			else
				close(fd);
		}
	}
	return n_fds;
}

static void fds_close(const int *fds, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		close(fds[i]);
}

/* The daemon does not want this client: by the keeper. */
static int wire_refused(struct kvp_client *client, int status, const char *text)
{
	client->refusal = status;
	snprintf(client->refusal_text, sizeof(client->refusal_text), "%s", text);
	return status;
}

/* A refusal's body is a sentence; other bodies are kept for the one who asked. */
static int answer_body(struct request *request, int status, const char *body, size_t n)
{
	if (status < 0) {
		size_t text = strnlen(body, n); /* the field that differs may follow it */

		snprintf(request->text, sizeof(request->text), "%.*s", (int)text, body);
		if (request->type == KVP_MSG_HELLO)
			wire_refused(request->client, status, request->text);
		if (text < n)
			snprintf(request->differs, sizeof(request->differs), "%.*s", (int)(n - text - 1),
				body + text + 1);
		return status;
	}
	request->body = malloc(n ? n : 1);
	if (!request->body)
		return -KVP_ENOMEM;
	memcpy(request->body, body, n);
	request->body_bytes = n;
	return 0;
}

/* Descriptors were dropped on the way here: what came is useless, since nobody can tell which are missing. */
static int answer_truncated(struct request *request)
{
	snprintf(request->text, sizeof(request->text),
		"descriptors sent by the daemon did not fit: this process has none left, raise its limit (ulimit -n)");
	return -KVP_EQUOTA;
}

static int wire_packet(struct kvp_client *client, size_t bytes, const int *fds, unsigned n_fds, bool truncated)
{
	struct request *request;
	struct kvp_msg msg;
	bool call = false;
	int status;

	if (bytes < sizeof(msg))
		return -KVP_EPROTO;
	memcpy(&msg, client->packet, sizeof(msg));
	if (msg.magic != KVP_WIRE_MAGIC || msg.bytes != bytes || !(msg.type & KVP_MSG_REPLY) || msg.status > 0)
		return -KVP_EPROTO;
	if (!msg.id && msg.type == (KVP_MSG_HELLO | KVP_MSG_REPLY) && msg.status < 0) {
		/* told before anything was asked: why this connection is closed */
		char text[sizeof(client->refusal_text)];

		snprintf(text, sizeof(text), "%.*s", (int)(bytes - sizeof(msg)), client->packet + sizeof(msg));
		return wire_refused(client, msg.status, text);
	}
	pthread_mutex_lock(&client->lock);
	for (request = client->requests; request; request = request->next)
		if (request->id == msg.id && request->sent)
			break;
	if (request && (request->type | KVP_MSG_REPLY) != msg.type) {
		pthread_mutex_unlock(&client->lock);
		return -KVP_EPROTO;
	}
	if (request) {
		status = answer_body(request, msg.status, client->packet + sizeof(msg), bytes - sizeof(msg));
		if (!client->resuming && (truncated || n_fds != msg.n_fds)) {
			status = answer_truncated(request);
		} else {
			memcpy(request->fds, fds, n_fds * sizeof(int));
			request->n_fds = n_fds;
			n_fds = 0;
		}
		call = request_answer(client, request, status);
	}
	pthread_mutex_unlock(&client->lock);
	fds_close(fds, n_fds);
	if (call)
		request->done(request);
	return 1;
}

int wire_receive(struct kvp_client *client)
{
	union {
		char bytes[CMSG_SPACE(KVP_WIRE_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {client->packet, KVP_WIRE_MAX};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	int fds[KVP_WIRE_FDS_MAX], r;
	unsigned n_fds;
	ssize_t n;

	if (client->fd < 0)
		return -KVP_EDETACHED;
	/* The answer to HELLO brings the session object once more.  To close any descriptor of it would drop the process's
	   record lock, and a daemon that looks just then takes us for dead; what is never received needs no closing. */
	if (client->resuming)
		msg.msg_controllen = 0;
	do
		n = recvmsg(client->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == ECONNRESET) /* closed before it read our last message; what it said before comes now */
		n = recvmsg(client->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n <= 0)
		return -KVP_EDETACHED;
	n_fds = fds_take(&msg, fds);
	if (msg.msg_flags & MSG_TRUNC)
		r = -KVP_EPROTO;
	else
		r = wire_packet(client, (size_t)n, fds, n_fds, msg.msg_flags & MSG_CTRUNC);
	if (r < 0)
		fds_close(fds, n_fds);
	return r;
}

/* End a list of requests whose callers do not wait. */
static void requests_done(struct request *call)
{
	for (struct request *next; call; call = next) {
		next = call->next;
		call->done(call);
	}
}

/* The connection is over: what cannot wait for the next one is answered so. */
void wire_down(struct kvp_client *client)
{
	struct request *call = NULL, *next;

	pthread_mutex_lock(&client->lock);
	client->online = false;
	pthread_cond_broadcast(&client->changed);
	if (atomic_load(&client->state) == KVP_ATTACHED)
		atomic_store(&client->state, KVP_DETACHED);
	registry_lock();
	if (client->fd >= 0)
		close(client->fd);
	client->fd = -1;
	registry_unlock();
	for (struct request *request = client->requests; request; request = next) {
		next = request->next;
		request->sent = false;
		if (request->lasting)
			continue;
		snprintf(request->text, sizeof(request->text), "the connection to the daemon at %s ended",
			client->socket);
		if (request_answer(client, request, -KVP_EDETACHED)) {
			request->next = call;
			call = request;
		}
	}
	pthread_mutex_unlock(&client->lock);
	requests_done(call);
}

void wire_end_session(struct kvp_client *client, const struct session *session)
{
	struct request *call = NULL, *next;

	pthread_mutex_lock(&client->lock);
	for (struct request *request = client->requests; request; request = next) {
		next = request->next;
		if (session && request->session != session)
			continue;
		snprintf(request->text, sizeof(request->text), "the pool is another one now");
		if (request_answer(client, request, -KVP_EGONE)) {
			request->next = call;
			call = request;
		}
	}
	pthread_mutex_unlock(&client->lock);
	requests_done(call);
}

/* The first request that waits to be sent again, kept from being withdrawn; NULL: none. */
static struct request *request_unsent(struct kvp_client *client)
{
	struct request *request;

	pthread_mutex_lock(&client->lock);
	for (request = client->requests; request; request = request->next)
		if (request->lasting && !request->sent)
			break;
	if (request)
		request->resending = true;
	pthread_mutex_unlock(&client->lock);
	return request;
}

/* Return: 0; -EAGAIN: the socket is full; -KVP_EDETACHED. */
static int request_resend(struct kvp_client *client, struct request *request, bool same_epoch)
{
	struct iovec iov = {request->packet, request->packet_bytes};
	int end = request->again ? request->again(request, same_epoch) : 0, r = 0;
	bool call = false;

	pthread_mutex_lock(&client->lock);
	request->resending = false;
	if (end < 0) {
		call = request_answer(client, request, end);
	} else {
		request_stamp(client, request);
		r = packet_send(client->fd, &iov, 1);
		request->sent = r == 0;
	}
	pthread_mutex_unlock(&client->lock);
	if (call)
		request->done(request);
	return r;
}

void wire_resend(struct kvp_client *client, bool same_epoch)
{
	struct request *request;

	while (client->fd >= 0 && (request = request_unsent(client))) {
		int r = request_resend(client, request, same_epoch);

		if (r == -EAGAIN) { /* make way for its answers, then try again */
			r = wire_receive(client);
			if (r == 0)
				socket_wait(client->fd);
		}
		if (r < 0)
			wire_down(client);
	}
}
