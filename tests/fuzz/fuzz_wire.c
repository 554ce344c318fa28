/*
 * fuzz_wire.c - messages of a client as foreign bytes, in a daemon that is real but for its sockets and its loop
 *
 * Input: a byte of choices, then messages: type, length (2 bytes), body.  The header is put round them, and the id of a
 * namespace that was joined where one belongs, for a fuzzer would guess neither; type 255 is a packet as it is, 254:
 * the client goes and another one comes.  At the end the client goes and the daemon's books must balance.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "daemon/daemon.h"
#include "daemon/guard.h"
#include "daemon/log.h"
#include "daemon/namespace.h"
#include "daemon/peer.h"
#include "daemon/request.h"
#include "daemon/session.h"
#include "daemon/slab.h"
#include "daemon/tier.h"
#include "kvpool_desc.h"

#define CHOICE_HELLO 1 /* begin as a client does: HELLO, JOIN */
#define CHOICE_OPERATOR 2
#define CHOICE_COPIED 4
#define TYPE_RAW 255
#define TYPE_NEXT_CLIENT 254
#define TYPE_STRANGE_NS 128 /* the body's first bytes stay as they are */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct daemon d;

#define must(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
			abort(); \
		} \
	} while (0)

static void pool_remove(void)
{
	pool_purge(&d.pool, &d.config);
}

static void given_daemon(void)
{
	char message[256] = "";
	int r;

	config_defaults(&d.config);
	snprintf(d.config.name, sizeof(d.config.name), "fuzz-%d", (int)getpid());
	snprintf(d.config.log_level, sizeof(d.config.log_level), "err");
	d.config.pool_bytes = 1u << 20;
	d.config.slab_bytes = 64u << 10;
	d.config.max_namespaces = 6;
	d.config.uid_max_namespaces = 4;
	log_set_level(LOG_LEVEL_ERR);
	must(sodium_init() >= 0 && guard_init() == 0);
	must(loop_open(&d.loop, false, message) == 0 && topology_open(&d.topology) == 0);
	r = pool_open(&d.pool, &d.config, message);
	r = r < 0 ? r : slab_start(&d, message);
	r = r < 0 ? r : ns_start(&d, message);
	r = r < 0 ? r : session_start(&d, message);
	peer_start(&d);
	if (r == 0) {
		ns_adopt_blocks(&d);
		r = tier_start(&d, message);
	}
	if (r < 0) {
		fprintf(stderr, "the daemon does not start: %s\n", message);
		abort();
	}
	atexit(pool_remove);
}

static void send_message(struct peer *peer, uint16_t type, const void *body, size_t n)
{
	static char packet[KVP_WIRE_MAX];
	struct kvp_msg msg = {.magic = KVP_WIRE_MAGIC, .type = type, .bytes = (uint32_t)(sizeof(msg) + n), .id = 1};
	char *exact;

	if (peer->closing || n > sizeof(packet) - sizeof(msg))
		return;
	/* as long as it is: a sanitizer sees a read past its end */
	exact = malloc(sizeof(msg) + n);
	must(exact != NULL);
	memcpy(exact, &msg, sizeof(msg));
	memcpy(exact + sizeof(msg), body, n);
	request_handle(peer, exact, sizeof(msg) + n);
	free(exact);
}

/* Take the answers and their descriptors, so that nothing piles up. */
static void read_answers(int fd)
{
	static char packet[KVP_WIRE_MAX];
	union {
		char bytes[CMSG_SPACE(KVP_WIRE_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;

	for (;;) {
		struct iovec iov = {packet, sizeof(packet)};
		struct msghdr msg = {
			.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
		struct kvp_msg head;
		ssize_t n = recvmsg(fd, &msg, MSG_DONTWAIT);

		if (n <= 0)
			return;
		must((size_t)n >= sizeof(head) && !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)));
		memcpy(&head, packet, sizeof(head));
		must(head.magic == KVP_WIRE_MAGIC && head.bytes == (size_t)n && head.type & KVP_MSG_REPLY);
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
			for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
				int got;

				memcpy(&got, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
				close(got);
			}
	}
}

static void say_hello(struct peer *peer, uint32_t flags)
{
	struct kvp_wire_hello hello = {.major = KVP_WIRE_MAJOR,
		.minor = KVP_WIRE_MINOR,
		.layout_major = KVP_LAYOUT_MAJOR,
		.layout_minor = KVP_LAYOUT_MINOR};
	struct kvp_wire_join join = {.owner_uid = KVP_UID_SELF, .flags = flags};

	strcpy(join.name, flags & KVP_NS_COPIED ? "copied" : "in-place");
	join.desc.size = sizeof(join.desc);
	join.desc.version = 1;
	join.desc.layout = KVP_LAYOUT_OPAQUE;
	join.desc.block_tokens = 16;
	join.desc.block_bytes = 4096;
	send_message(peer, KVP_MSG_HELLO, &hello, sizeof(hello));
	send_message(peer, KVP_MSG_JOIN, &join, sizeof(join));
}

static uint64_t joined_ns(const struct peer *peer)
{
	return peer->session && peer->session->members ? peer->session->members->ns->id : 0;
}

static void turn_over(struct loop_timer *timer)
{
	loop_stop(timer->owner);
}

static bool settled(void)
{
	for (struct ns *ns = d.namespaces; ns; ns = ns->next)
		if (atomic_load(&ns->row->counters.restoring) || ns->n_writing)
			return false;
	return !d.stage_bytes && !d.peers && !d.sessions;
}

/* The client is gone; what the daemon does in pieces comes to its end. */
static void let_it_settle(void)
{
	struct loop_timer turn = {.ring = turn_over, .owner = d.loop};

	for (unsigned i = 0; i < 1000; i++) {
		peer_bury(&d);
		session_look(&d);
		tier_tick(&d);
		if (settled())
			return;
		loop_timer_set(d.loop, &turn, loop_now() + 100000);
		must(loop_run(d.loop) == 0);
		loop_timer_cancel(d.loop, &turn);
	}
}

static void books_balance(void)
{
	uint64_t bytes = 0;

	for (struct ns *ns = d.namespaces; ns; ns = ns->next) {
		struct kvp_ns_counters *c = &ns->row->counters;

		must(atomic_load(&c->slots) == ns->n_slots && atomic_load(&c->granted) == 0);
		must(atomic_load(&c->free) + atomic_load(&c->restoring) + atomic_load(&c->published) +
				atomic_load(&c->taken) + atomic_load(&c->retired) ==
			ns->n_slots);
		must(ns->n_members == 0);
	}
	for (uint32_t place = 0; place < d.pool.header->max_places; place++)
		bytes += d.slabs[place] ? d.slabs[place]->bytes : 0;
	must(bytes == d.slab_bytes_total && bytes <= d.config.pool_bytes);
	must(!d.peers && !d.sessions && !d.n_sessions && !d.n_peers && !d.stage_bytes);
}

struct client {
	struct peer *peer;
	int fd;
	uint8_t choices;
};

static void client_comes(struct client *client)
{
	struct peer *peer = calloc(1, sizeof(*peer));
	int ends[2];

	must(peer && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends) == 0);
	client->peer = peer;
	client->fd = ends[1];
	peer->d = &d;
	peer->source = (struct loop_source){.fd = ends[0], .events = LOOP_IN, .owner = peer};
	peer->uid = geteuid();
	peer->gid = getegid();
	peer->pid = getpid();
	peer->admin = client->choices & CHOICE_OPERATOR;
	must(loop_add(d.loop, &peer->source) == 0);
	peer->next = d.peers;
	d.peers = peer;
	d.n_peers++;
	if (client->choices & CHOICE_HELLO)
		say_hello(peer, client->choices & CHOICE_COPIED ? KVP_NS_COPIED : 0);
}

static void client_goes(struct client *client)
{
	if (!client->peer->closing)
		peer_close(client->peer, NULL);
	close(client->fd);
	let_it_settle();
}

static void client_says(struct client *client, uint8_t type, const void *bytes, size_t n)
{
	uint64_t ns_id = joined_ns(client->peer);
	char *body = malloc(n + 1);

	must(body != NULL);
	memcpy(body, bytes, n);
	if (type == TYPE_RAW) {
		request_handle(client->peer, body, n);
	} else {
		if (!(type & TYPE_STRANGE_NS) && n >= sizeof(ns_id) && ns_id)
			memcpy(body, &ns_id, sizeof(ns_id));
		send_message(client->peer, type & ~TYPE_STRANGE_NS, body, n);
	}
	free(body);
	read_answers(client->fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct client client = {.choices = size ? data[0] : 0};

	if (!d.loop)
		given_daemon();
	client_comes(&client);
	for (size_t at = 1; at + 3 <= size && !client.peer->closing;) {
		uint8_t type = data[at];
		size_t n = data[at + 1] | (size_t)data[at + 2] << 8;

		at += 3;
		n = n < size - at ? n : size - at;
		if (type == TYPE_NEXT_CLIENT) {
			client_goes(&client);
			client_comes(&client);
		} else {
			client_says(&client, type, data + at, n);
		}
		at += n;
	}
	client_goes(&client);
	d.purge_at_end = false;
	books_balance();
	return 0;
}
