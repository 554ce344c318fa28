/*
 * keeper.c - the thread that keeps a client attached, off the engine's threads
 *
 * Receives answers, connects and connects again, shows the daemon that we live, keeps stocks filled, maps and touches
 * slabs ahead of need, hands counts over.  It blocks all signals and waits for nobody longer than an answer takes.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#define RECEIVE_TURN 64
#define STAGE_LOOK_MS 100 /* how often is looked whether a staging area is still used */

static __thread const struct kvp_client *keeping;

bool keeper_is_me(const struct kvp_client *client)
{
	return keeping == client;
}

/* The daemon asks the kernel whether this lock is held. Something in this process may have closed a descriptor of the
 * object, or ours altogether: then a number we no longer own is not touched. */
static void keeper_hold_lock(struct session *s)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
	struct stat st;

	if (s->fd >= 0 && fstat(s->fd, &st) == 0 && st.st_dev == s->dev && st.st_ino == s->ino)
		fcntl(s->fd, F_SETLK, &lock);
}

static void keeper_try(struct kvp_client *client)
{
	int r = attach_try(client);
	uint64_t now = now_ns();

	if (r == 0) {
		client->away_since_ns = 0;
		client->next_beat_ns = now;
	} else {
		if (!client->away_since_ns)
			client->away_since_ns = now;
		client->next_try_ns = now + keeper_pause_ns(now - client->away_since_ns);
	}
	pthread_mutex_lock(&client->lock);
	client->tried = true;
	pthread_cond_broadcast(&client->changed);
	pthread_mutex_unlock(&client->lock);
}

static void keeper_beat(struct kvp_client *client)
{
	struct session *s = atomic_load(&client->session);

	if (s) {
		keeper_hold_lock(s);
		client_tell(s, KVP_MSG_PING, NULL, 0, NULL, 0); /* holds of who is not heard of may be revoked */
		count_flush(s);
	}
	session_sweep(client);
	pthread_mutex_lock(&client->lock);
	for (struct kvp_ns *ns = client->namespaces; ns; ns = ns->next)
		ns->join_error = 0; /* once more at each beat */
	pthread_mutex_unlock(&client->lock);
	client->next_beat_ns = after_ms(client->heartbeat_ms * 3 / 4);
}

/* What readers of the namespace will need soon: mappings of slabs they have not met yet, grants for writers. Return: it has
 * a staging area, that is to be looked at soon. */
static bool keeper_tend(struct ns_map *map)
{
	uint64_t changes;

	if (map->lost)
		return false;
	if (atomic_load_explicit(&map->used, memory_order_relaxed)) {
		changes = atomic_load_explicit(&map->head->slab_changes, memory_order_acquire);
		if (atomic_exchange(&map->map_wanted, false) || changes != map->changes_seen) {
			if (map_ahead(map, UINT32_MAX, after_ms(ANSWER_MS)) <= 0)
				map->changes_seen = changes;
		}
	}
	if (!(map->flags & (KVP_NS_READONLY | KVP_NS_COPIED)))
		stock_keep(map);
	unmap_keep(map);
	return map->flags & KVP_NS_COPIED && stage_keep(map);
}

static void keeper_tend_all(struct kvp_client *client)
{
	bool staging = false;
	struct session *s = atomic_load(&client->session);
	struct ns_map *map;

	if (!client->online || !s)
		return;
	attach_join_waiting(client);
	leave_closed(client);
	pthread_mutex_lock(&client->lock);
	map = s->maps;
	pthread_mutex_unlock(&client->lock);
	for (; map && client->online && !s->gone; map = map->next)
		staging = keeper_tend(map) || staging;
	client->next_tend_ns = staging ? after_ms(STAGE_LOOK_MS) : UINT64_MAX;
}

static int keeper_timeout(const struct kvp_client *client, bool touching)
{
	uint64_t now = now_ns(), next = client->next_beat_ns;

	if (touching)
		return 0;
	if (client->fd < 0)
		next = earlier(next, client->next_try_ns);
	else if (client->online)
		next = earlier(next, client->next_tend_ns);
	return next <= now ? 0 : (int)((next - now) / MS) + 1;
}

static bool keeper_closing(struct kvp_client *client)
{
	bool closing;

	pthread_mutex_lock(&client->lock);
	closing = client->closing;
	pthread_mutex_unlock(&client->lock);
	return closing;
}

static void keeper_receive(struct kvp_client *client)
{
	int r = 1;

	for (unsigned i = 0; i < RECEIVE_TURN && r > 0; i++)
		r = wire_receive(client);
	if (r < 0) {
		wire_down(client);
		client->next_try_ns = client->away_since_ns =
			now_ns(); /* at once: a daemon that restarts listens again soon */
	}
}

void *keeper_main(void *arg)
{
	struct kvp_client *client = arg;
	bool touching = false;

	keeping = client;
	pthread_setname_np(pthread_self(), "kvpool");
	while (!keeper_closing(client)) {
		struct pollfd p[2] = {{.fd = client->wake_fd, .events = POLLIN}, {.fd = client->fd, .events = POLLIN}};
		uint64_t n;

		if (client->fd < 0 && now_ns() >= client->next_try_ns) {
			keeper_try(client);
			continue;
		}
		if (poll(p, 2, keeper_timeout(client, touching)) < 0 && errno != EINTR)
			break;
		if (p[0].revents && read(client->wake_fd, &n, sizeof(n)) < 0 && errno != EAGAIN)
			break;
		if (client->fd >= 0 && p[1].fd == client->fd && p[1].revents)
			keeper_receive(client);
		if (now_ns() >= client->next_beat_ns)
			keeper_beat(client);
		if (client->online)
			keeper_tend_all(client);
		touching = map_touch(client);
	}
	if (atomic_load(&client->session))
		count_flush(atomic_load(&client->session));
	return NULL;
}
