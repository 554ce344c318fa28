/*
 * client.c - opening, closing and asking about a client
 */
#include "internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#define CLOSE_MS 1000 /* longest wait of kvp_close() for publishes under way */
#define KEEPER_STACK (512u << 10)

int client_bad(const struct kvp_client *client)
{
	if (!client)
		return fail(-KVP_EINVAL, "client: a null pointer");
	if (atomic_load_explicit(&client->dead, memory_order_relaxed))
		return fail(-KVP_EDETACHED,
			"this process is a fork of the one that opened the client: open one of its own");
	return 0;
}

/* ---- open ---- */

static int open_options(struct kvp_client *client, const struct kvp_open_opts *opts)
{
	const char *socket = opts && opts->socket ? opts->socket : NULL;

	if (opts && opts->size != sizeof(*opts))
		return fail(-KVP_EINVAL, "opts.size: %u, this library knows %zu", opts->size, sizeof(*opts));
	if (opts && opts->flags & ~(uint32_t)(KVP_OPEN_NO_PREFAULT | KVP_OPEN_OFFLINE | KVP_OPEN_QUIET))
		return fail(-KVP_EINVAL, "opts.flags: %#x holds unknown bits", opts->flags);
	if (!socket)
		socket = secure_getenv("KVPOOL_SOCKET");
	if (!socket || !*socket)
		socket = KVP_DEFAULT_SOCKET;
	if (strlen(socket) >= sizeof(client->socket))
		return fail(-KVP_EINVAL, "socket: %s is longer than the %zu bytes a Unix address holds", socket,
			sizeof(client->socket) - 1);
	strcpy(client->socket, socket);
	snprintf(client->comm, sizeof(client->comm), "%s",
		opts && opts->comm ? opts->comm : program_invocation_short_name);
	client->flags = opts ? opts->flags : 0;
	client->connect_timeout_ms = opts && opts->connect_timeout_ms ? opts->connect_timeout_ms : 1000;
	client->stock_blocks = !opts || !opts->stock_blocks	      ? STOCK_BLOCKS
			       : opts->stock_blocks == KVP_STOCK_NONE ? 0
								      : opts->stock_blocks;
	if (client->stock_blocks > KVP_WIRE_BATCH_MAX / 2)
		client->stock_blocks = KVP_WIRE_BATCH_MAX / 2;
	return 0;
}

static void client_free(struct kvp_client *client)
{
	pthread_mutex_destroy(&client->lock);
	pthread_cond_destroy(&client->changed);
	if (client->wake_fd >= 0)
		close(client->wake_fd);
	free(client->regions);
	free(client->packet);
	free(client);
}

static struct kvp_client *client_new(void)
{
	struct kvp_client *client = calloc(1, sizeof(*client));
	pthread_condattr_t attr;

	if (!client)
		return NULL;
	client->fd = -1;
	client->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	client->packet = malloc(KVP_WIRE_MAX);
	client->heartbeat_ms = 1000;
	atomic_store(&client->state, KVP_DETACHED);
	pthread_mutex_init(&client->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&client->changed, &attr);
	pthread_condattr_destroy(&attr);
	if (!client->packet) {
		client_free(client);
		return NULL;
	}
	return client;
}

/* The thread starts with all signals blocked, so none of them is ever taken by it. */
static int keeper_start(struct kvp_client *client)
{
	sigset_t all, before;
	pthread_attr_t attr;
	int r;

	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, KEEPER_STACK);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&client->keeper, &attr, keeper_main, client);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	client->has_keeper = r == 0;
	return r ? fail(-KVP_ENOMEM, "no thread can be made: %s", strerror(r)) : 0;
}

static void wait_for_try(struct kvp_client *client)
{
	uint64_t until = after_ms(client->connect_timeout_ms);
	struct timespec t = timespec_of(until);

	pthread_mutex_lock(&client->lock);
	while (!client->tried && pthread_cond_timedwait(&client->changed, &client->lock, &t) == 0)
		;
	pthread_mutex_unlock(&client->lock);
}

int client_detached(struct kvp_client *client)
{
	int r = -KVP_EDETACHED;

	pthread_mutex_lock(&client->lock);
	if (client->attach_error == -KVP_EACCES || client->attach_error == -KVP_EQUOTA ||
		client->attach_error == -KVP_ETIMEDOUT)
		r = client->attach_error;
	if (!client->online)
		fail(r, "not attached to a daemon at %s: %s", client->socket,
			client->attach_text[0] ? client->attach_text : "it was not looked for yet");
	pthread_mutex_unlock(&client->lock);
	return r;
}

int kvp_open(const struct kvp_open_opts *opts, struct kvp_client **out)
{
	struct kvp_client *client;
	int r;

	if (!out)
		return fail(-KVP_EINVAL, "client: a null pointer");
	*out = NULL;
	if (sodium_init() < 0)
		return fail(-KVP_ENOMEM, "libsodium does not start");
	client = client_new();
	if (!client)
		return fail(-KVP_ENOMEM, "out of memory");
	r = open_options(client, opts);
	if (r == 0 && client->wake_fd < 0)
		r = fail(-KVP_ENOMEM, "no descriptor left in this process: %s", strerror(errno));
	if (r < 0) {
		client_free(client);
		return r;
	}
	registry_add(client);
	if (!(client->flags & KVP_OPEN_OFFLINE)) {
		r = keeper_start(client);
		if (r < 0) {
			registry_remove(client);
			client_free(client);
			return r;
		}
		wait_for_try(client);
	}
	*out = client;
	client_detached(client);
	return 0;
}

/* ---- close ---- */

/* Publishes that nobody waits for are still worth a moment. */
static void wait_for_publishes(struct kvp_client *client)
{
	uint64_t until = after_ms(CLOSE_MS);
	bool some = true;

	while (some && now_ns() < until) {
		struct timespec t = {.tv_nsec = 1000000};

		some = false;
		pthread_mutex_lock(&client->lock);
		for (struct request *request = client->requests; request && client->online; request = request->next)
			some = some || request->lasting;
		pthread_mutex_unlock(&client->lock);
		if (some)
			nanosleep(&t, NULL);
	}
}

static void keeper_stop(struct kvp_client *client)
{
	if (!client->has_keeper)
		return;
	wait_for_publishes(client);
	pthread_mutex_lock(&client->lock);
	client->closing = true;
	pthread_mutex_unlock(&client->lock);
	client_wake(client);
	pthread_join(client->keeper, NULL);
}

static void sessions_close(struct kvp_client *client, bool in_child)
{
	struct session *s = atomic_load(&client->session);

	if (s)
		session_close(s, in_child);
	while (client->old) {
		s = client->old;
		client->old = s->next;
		session_close(s, in_child);
	}
}

/* First the lock goes with the session object's descriptor, then the word: so the daemon can end the session at
   once. */
static void say_bye(struct kvp_client *client)
{
	struct kvp_msg msg = {.magic = KVP_WIRE_MAGIC, .type = KVP_MSG_BYE, .bytes = sizeof(msg)};
	ssize_t n;

	if (client->fd < 0)
		return;
	n = send(client->fd, &msg, sizeof(msg), MSG_NOSIGNAL | MSG_DONTWAIT);
	(void)n; /* the closed socket and the free lock say the same */
	registry_lock();
	close(client->fd);
	client->fd = -1;
	registry_unlock();
}

void kvp_close(struct kvp_client *client)
{
	bool in_child;

	if (!client)
		return;
	in_child = atomic_load(&client->dead);
	if (!in_child) {
		keeper_stop(client);
		wire_end_session(client, NULL);
	}
	while (client->namespaces)
		kvp_ns_close(client->namespaces);
	sessions_close(client, in_child);
	if (!in_child)
		say_bye(client);
	registry_remove(client);
	client_free(client);
}

/* ---- asking ---- */

enum kvp_state kvp_state(const struct kvp_client *client, uint64_t *epoch)
{
	if (epoch)
		*epoch = client ? atomic_load_explicit(&client->epoch, memory_order_relaxed) : 0;
	return client ? (enum kvp_state)atomic_load_explicit(&client->state, memory_order_relaxed) : KVP_DETACHED;
}

const char *kvp_error(const struct kvp_client *client)
{
	(void)client; /* texts are the thread's */
	return self_error();
}

const char *kvp_differs(const struct kvp_client *client)
{
	(void)client; /* as the texts */
	return self_differs();
}

int kvp_ping(struct kvp_client *client, uint64_t deadline_ns)
{
	struct request *request;
	struct kvp_wire_pong pong;
	struct session *s;
	int r = client_bad(client);

	if (r < 0)
		return r;
	s = atomic_load(&client->session);
	if (!s)
		return client_detached(client);
	request = request_new(client, s, KVP_MSG_PING, 0);
	if (!request)
		return fail(-KVP_ENOMEM, "out of memory");
	r = request_call(&request, deadline_ns);
	if (r == 0 && !request_body_take(request, &pong, sizeof(pong), KVP_PONG_LEAST))
		r = fail(-KVP_EPROTO, "the daemon at %s answers PING with %zu bytes", client->socket,
			request->body_bytes);
	if (r == 0 && pong.state != KVP_DAEMON_SERVING)
		r = fail(-KVP_ESHUTDOWN, "the daemon at %s is starting or stopping", client->socket);
	request_free(request);
	return r;
}

uint64_t kvp_deadline_ms(uint32_t ms)
{
	return after_ms(ms);
}

int kvp_counts(const struct kvp_client *client, struct kvp_counts *counts)
{
	uint64_t sums[N_COUNTS];
	int r = client_bad(client);

	if (r < 0)
		return r;
	if (!counts)
		return fail(-KVP_EINVAL, "counts: a null pointer");
	if (counts->size != sizeof(*counts))
		return fail(-KVP_EINVAL, "counts.size: %u, this library knows %zu", counts->size, sizeof(*counts));
	count_sum((struct kvp_client *)(uintptr_t)client, sums, NULL);
	*counts = (struct kvp_counts){.size = sizeof(*counts),
		.lookups = sums[COUNT_LOOKUPS],
		.hits_ram = sums[COUNT_HITS_RAM],
		.hits_spill = sums[COUNT_HITS_SPILL],
		.misses = sums[COUNT_MISSES],
		.tokens_ram = sums[COUNT_TOKENS_RAM],
		.tokens_spill = sums[COUNT_TOKENS_SPILL],
		.copied_bytes = sums[COUNT_COPIED_BYTES],
		.private_blocks = sums[COUNT_PRIVATE_BLOCKS],
		.lost_holds = sums[COUNT_LOST_HOLDS],
		.round_trips = sums[COUNT_ROUND_TRIPS]};
	return 0;
}
