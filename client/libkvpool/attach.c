/*
 * attach.c - from a socket to a session with its namespaces, again and again
 *
 * The order of a resumed connection: HELLO with the session's id, JOIN of every namespace it had, GRANTS of what it still
 * holds, publishes whose answers were lost, then everything else.  A daemon that does not know the session (another
 * pool, or the session was ended) gets a new HELLO; what was of the old session becomes private.
 *
 * By the keeper, between attach_enter() and attach_leave(); attach_join() also by kvp_ns_open().
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* A lock with a deadline. Held over round trips, so the keeper, who brings the answers, waits for it only when there is
 * no connection to wait for. */
bool attach_enter(struct kvp_client *client, uint64_t deadline_ns)
{
	struct timespec until = timespec_of(deadline_ns);
	bool got;

	pthread_mutex_lock(&client->lock);
	while (client->attaching && now_ns() < deadline_ns)
		pthread_cond_timedwait(&client->changed, &client->lock, &until);
	got = !client->attaching;
	client->attaching = true;
	pthread_mutex_unlock(&client->lock);
	return got;
}

void attach_leave(struct kvp_client *client)
{
	pthread_mutex_lock(&client->lock);
	client->attaching = false;
	pthread_cond_broadcast(&client->changed);
	pthread_mutex_unlock(&client->lock);
}

static void attach_note(struct kvp_client *client, int r)
{
	pthread_mutex_lock(&client->lock);
	client->attach_error = r;
	snprintf(client->attach_text, sizeof(client->attach_text), "%s", self_error());
	pthread_mutex_unlock(&client->lock);
}

static int attach_call(struct request *request, uint64_t deadline_ns)
{
	int r;

	if (!keeper_is_me(request->client))
		return request_call(&request, deadline_ns);
	r = wire_raw(request);
	return r < 0 ? fail(r, "the connection to the daemon at %s ended", request->client->socket)
		     : request_wait(&request, deadline_ns);
}

/* ---- the socket ---- */

/* Which rule keeps us out. */
static int socket_denied(const struct kvp_client *client)
{
	struct stat st;

	if (stat(client->socket, &st) < 0)
		return fail(-KVP_EACCES,
			"%s: Permission denied: a directory above it does not let uid %u through: ask its owner for "
			"execute permission there, or set KVPOOL_SOCKET",
			client->socket, (unsigned)geteuid());
	return fail(-KVP_EACCES,
		"%s: Permission denied: mode %04o lets in uid %u and group %u, this is uid %u: join that group, or have "
		"socket-mode widened",
		client->socket, (unsigned)st.st_mode & 07777u, (unsigned)st.st_uid, (unsigned)st.st_gid,
		(unsigned)geteuid());
}

static int socket_connect(struct kvp_client *client)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd, r;

	strcpy(address.sun_path, client->socket); /* its length was checked */
	pthread_mutex_lock(&client->lock);
	registry_lock(); /* a fork now would leave the child an open socket nobody knows */
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	r = fd < 0 ? -errno : 0;
	if (r == 0)
		client->fd = fd;
	registry_unlock();
	client->connection++;
	pthread_mutex_unlock(&client->lock);
	if (r < 0)
		return fail(-KVP_EDETACHED, "no socket can be made: %s", strerror(-r));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
		fail(-KVP_ETIMEDOUT, "it took the connection and has not answered: kvctl stats tells how it does");
		attach_note(client, -KVP_ETIMEDOUT);
		return 0;
	}
	if (errno == EACCES || errno == EPERM)
		return socket_denied(client);
	if (errno == EAGAIN)
		return fail(-KVP_ETIMEDOUT, "the daemon at %s takes no connection: it hangs, or very many wait",
			client->socket);
	return fail(-KVP_EDETACHED, "no daemon at %s: %s; start kvpoold, or set KVPOOL_SOCKET", client->socket,
		strerror(errno));
}

/* ---- the session ---- */

static const _Atomic uint32_t no_tick;

static int header_open(struct session *s, int fd)
{
	const struct kvp_pool_header *header = map_object(fd, KVP_PAGE, false);

	if (!header)
		return -KVP_EPROTO;
	/* a later minor version may have made it longer */
	if (header->magic == KVP_MAGIC_HEADER && header->layout_major == KVP_LAYOUT_MAJOR &&
		header->endian == KVP_ENDIAN && header->header_bytes >= KVP_POOL_HEADER_LEAST &&
		header->header_bytes <= KVP_PAGE && !memcmp(header->uuid, s->uuid, 16)) {
		s->header = header;
		s->tick = s->client->flags & KVP_OPEN_QUIET ? &no_tick : &header->tick;
		return 0;
	}
	fail(-KVP_EVERSION,
		"the pool's header has layout %u.%u in %llu bytes, this library %u.%u in %zu, or is of another pool",
		header->layout_major, header->layout_minor, (unsigned long long)header->header_bytes, KVP_LAYOUT_MAJOR,
		KVP_LAYOUT_MINOR, sizeof(*header));
	munmap((void *)(uintptr_t)header, KVP_PAGE);
	return -KVP_EVERSION;
}

static bool session_head_ok(const struct session *s)
{
	const struct kvp_session_header *head = s->head;

	return head->magic == KVP_MAGIC_SESSION && head->layout_major == KVP_LAYOUT_MAJOR &&
	       head->endian == KVP_ENDIAN && head->session_id == s->id && head->pin_stride == s->header->pin_stride &&
	       head->pins_off >= KVP_SESSION_PINS_OFF_LEAST && head->pins_off % sizeof(uint64_t) == 0 &&
	       head->pins_off <= s->bytes && head->pin_stride &&
	       (s->bytes - head->pins_off) / head->pin_stride >= s->header->max_places;
}

/* Before a session counted for each namespace its pins began where ours still has counts. */
static bool session_head_too_old(const struct kvp_session_header *head)
{
	return head->magic == KVP_MAGIC_SESSION && head->layout_major == KVP_LAYOUT_MAJOR && !head->layout_minor &&
	       head->pins_off < KVP_SESSION_PINS_OFF_LEAST;
}

static int session_lock(const struct session *s)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

	if (fcntl(s->fd, F_SETLK, &lock) == 0)
		return 0;
	return fail(-KVP_EPROTO, "the session's lock cannot be taken: %s", strerror(errno));
}

static int session_new(struct kvp_client *client, const struct kvp_wire_welcome *welcome, const int fds[2])
{
	struct session *s = calloc(1, sizeof(*s));
	off_t bytes = lseek(fds[1], 0, SEEK_END);
	uint64_t sums[N_COUNTS];
	struct stat st;
	int r;

	if (!s)
		return fail(-KVP_ENOMEM, "out of memory");
	s->client = client;
	s->id = welcome->session_id;
	memcpy(s->uuid, welcome->uuid, sizeof(s->uuid));
	s->fd = fds[1];
	s->bytes = bytes > 0 ? (uint64_t)bytes : 0;
	if (fstat(s->fd, &st) == 0) {
		s->dev = st.st_dev;
		s->ino = st.st_ino;
	}
	r = header_open(s, fds[0]);
	s->head = r == 0 && s->bytes >= KVP_PAGE ? map_object(s->fd, s->bytes, true) : NULL;
	if (s->head && session_head_ok(s))
		r = session_lock(s);
	else if (s->head && session_head_too_old(s->head))
		r = fail(-KVP_EVERSION,
			"the daemon at %s is older than the first version this library works with: restart it with the kvpoold of this library",
			client->socket);
	else if (r == 0)
		r = fail(-KVP_EPROTO, "the session object of the daemon at %s does not fit its header", client->socket);
	if (r < 0) {
		if (s->head)
			munmap(s->head, s->bytes);
		if (s->header)
			munmap((void *)(uintptr_t)s->header, KVP_PAGE);
		free(s); /* the descriptors stay the caller's */
		return r;
	}
	s->pins = (char *)s->head + s->head->pins_off;
	s->pin_stride = s->head->pin_stride;
	s->max_places = s->header->max_places;
	count_sum(client, sums, s->ns_counts_base);
	memcpy(s->counts_base, sums, sizeof(sums));
	atomic_store(&client->session, s);
	return 0;
}

void session_gone(struct session *s)
{
	struct kvp_client *client = s->client;

	pthread_mutex_lock(&client->lock);
	s->gone = true;
	atomic_store(&s->head->word, 0); /* nobody pins in it from now on: see session_sweep() */
	atomic_store(&client->session, NULL);
	s->next = client->old;
	client->old = s;
	for (struct kvp_ns *ns = client->namespaces; ns; ns = ns->next) {
		atomic_store(&ns->map, NULL);
		ns->join_error = 0;
	}
	pthread_mutex_unlock(&client->lock);
	for (struct ns_map *map = s->maps; map; map = map->next)
		stock_drop(map);
	wire_end_session(client, s);
}

void session_sweep(struct kvp_client *client)
{
	for (struct session *s = client->old; s; s = s->next) {
		bool idle = true;

		if (s->swept)
			continue;
		for (struct ns_map *map = s->maps; map; map = map->next)
			idle = map_retire(map) && idle;
		if (!idle)
			continue;
		/* nobody stores into its grants any more: the lock tells so */
		close(s->fd);
		s->fd = -1;
		s->swept = true;
	}
}

void session_close(struct session *s, bool in_child)
{
	while (s->maps) {
		struct ns_map *map = s->maps;

		s->maps = map->next;
		map_close(map, in_child);
	}
	if (!in_child) {
		atomic_store(&s->head->left, 1); /* the daemon may not be there to hear it said */
		munmap(s->head, s->bytes);
		munmap((void *)(uintptr_t)s->header, KVP_PAGE);
	}
	if (s->fd >= 0)
		close(s->fd);
	free(s);
}

/* ---- HELLO ---- */

static int hello_answered(struct kvp_client *client, struct request *request, struct kvp_wire_welcome *welcome)
{
	struct session *s = atomic_load(&client->session);
	int r;

	if (!request_body_take(request, welcome, sizeof(*welcome), KVP_WELCOME_LEAST))
		return fail(-KVP_EPROTO, "the daemon at %s answers HELLO with %zu bytes", client->socket,
			request->body_bytes);
	if (s && (welcome->session_id != s->id || memcmp(welcome->uuid, s->uuid, 16) != 0))
		return fail(-KVP_EPROTO, "the daemon at %s resumes another session", client->socket);
	if (s)
		return session_lock(s); /* it is ours, unless somebody in this process closed what is not his */
	if (request->n_fds != 2)
		return fail(-KVP_EPROTO, "the daemon at %s sends %u descriptors with HELLO", client->socket,
			request->n_fds);
	r = session_new(client, welcome, request->fds);
	if (r < 0)
		return r;
	close(request->fds[0]);
	request->n_fds = 0; /* the other one is the session's */
	return 0;
}

static int hello_once(struct kvp_client *client, struct kvp_wire_welcome *welcome)
{
	struct request *request = request_new(client, NULL, KVP_MSG_HELLO, sizeof(struct kvp_wire_hello));
	struct session *s = atomic_load(&client->session);
	struct kvp_wire_hello *hello;
	int r;

	if (!request)
		return fail(-KVP_ENOMEM, "out of memory");
	client->refusal = 0;
	hello = request_body(request);
	*hello = (struct kvp_wire_hello){.major = KVP_WIRE_MAJOR,
		.minor = KVP_WIRE_MINOR,
		.layout_major = KVP_LAYOUT_MAJOR,
		.layout_minor = KVP_LAYOUT_MINOR,
		.session_id = s ? s->id : 0,
		.pid = (int32_t)getpid()};
	if (s)
		memcpy(hello->uuid, s->uuid, 16);
	memcpy(hello->comm, client->comm, sizeof(hello->comm));
	client->resuming = s != NULL;
	/* on a busy host a daemon that is there takes its time: who opened the client said how long that may be */
	r = attach_call(
		request, after_ms(client->connect_timeout_ms > ANSWER_MS ? client->connect_timeout_ms : ANSWER_MS));
	if (r == 0)
		r = hello_answered(client, request, welcome);
	request_free(request);
	if (r == -KVP_EDETACHED && !client->refusal)
		wire_receive(client); /* closed before it could be sent: perhaps with a word */
	client->resuming = false;
	return client->refusal ? fail(client->refusal, "%s", client->refusal_text) : r;
}

static int hello(struct kvp_client *client, struct kvp_wire_welcome *welcome)
{
	struct session *s = atomic_load(&client->session);
	int r = hello_once(client, welcome);

	if (s && (r == -KVP_EGONE || r == -KVP_ESTALE)) {
		session_gone(s);
		r = hello_once(client, welcome);
	}
	return r;
}

/* ---- JOIN ---- */

static struct ns_map *map_find(struct session *s, uint64_t ns_id)
{
	struct ns_map *map;

	pthread_mutex_lock(&s->client->lock);
	for (map = s->maps; map && (map->ns_id != ns_id || map->lost); map = map->next)
		;
	pthread_mutex_unlock(&s->client->lock);
	return map;
}

/* JOIN, and the mapping that stands for what it gives. */
static int join_map(struct session *s, const struct kvp_wire_join *join, uint64_t deadline_ns, struct ns_map **map,
	char differs[32])
{
	struct request *request = request_new(s->client, s, KVP_MSG_JOIN, sizeof(*join));
	struct kvp_wire_joined joined;
	int r;

	if (!request)
		return fail(-KVP_ENOMEM, "out of memory");
	memcpy(request_body(request), join, sizeof(*join));
	r = attach_call(request, deadline_ns);
	if (r == 0 && (!request_body_take(request, &joined, sizeof(joined), KVP_JOINED_LEAST) || request->n_fds != 1))
		r = fail(-KVP_EPROTO, "the daemon at %s answers JOIN with %zu bytes", s->client->socket,
			request->body_bytes);
	if (r == 0) {
		joined.differs[sizeof(joined.differs) - 1] = 0;
		memcpy(differs, joined.differs, sizeof(joined.differs));
		*map = map_find(s, joined.ns_id);
		if (!*map)
			r = map_open(s, request->fds[0], &joined, map);
		else if (!(joined.flags & KVP_NS_READONLY))
			atomic_fetch_and(&(*map)->flags, ~(uint32_t)KVP_NS_READONLY);
	}
	request_free(request);
	return r;
}

static int join_base(struct ns_map *map, uint64_t deadline_ns)
{
	struct kvp_wire_join join = {.ns_id = map->head->base_id, .flags = KVP_NS_READONLY};
	char differs[32];

	if (!join.ns_id || map->base)
		return 0;
	return join_map(map->session, &join, deadline_ns, &map->base, differs);
}

int attach_join(struct kvp_ns *ns, uint64_t deadline_ns)
{
	struct kvp_client *client = ns->client;
	struct session *s = atomic_load(&client->session);
	struct kvp_wire_join join = ns->join;
	struct ns_map *map = NULL, *base;
	char differs[32] = "";
	int r;

	if (atomic_load(&ns->map))
		return 0;
	if (!s)
		return -KVP_EDETACHED;
	if (ns->base) {
		r = attach_join(ns->base, deadline_ns);
		if (r < 0)
			return r;
		base = atomic_load(&ns->base->map);
		join.base_id = base ? base->ns_id : 0;
	}
	r = join_map(s, &join, deadline_ns, &map, differs);
	if (r == 0)
		r = join_base(map, deadline_ns);
	if (r == 0 && (map->block_bytes != ns->block_bytes || map->block_stride != ns->block_stride))
		r = fail(-KVP_EPROTO,
			"namespace %s: the daemon says %" PRIu64 " bytes a block, the descriptor %" PRIu64,
			ns->join.name, map->block_bytes, ns->block_bytes);
	if (r < 0)
		return r;
	pthread_mutex_lock(&client->lock);
	if (!s->gone)
		atomic_store_explicit(&ns->map, map, memory_order_release);
	pthread_mutex_unlock(&client->lock);
	return 0;
}

/* The namespace is no more (purged, say): nothing new is found in it, it is made again by name. */
static void map_lost(struct ns_map *map)
{
	struct kvp_client *client = map->session->client;

	pthread_mutex_lock(&client->lock);
	for (struct kvp_ns *ns = client->namespaces; ns; ns = ns->next)
		if (atomic_load(&ns->map) == map)
			atomic_store(&ns->map, NULL);
	map->lost = true;
	pthread_mutex_unlock(&client->lock);
	stock_drop(map);
}

static int resume_map(struct ns_map *map)
{
	struct kvp_wire_join join = {
		.ns_id = map->ns_id, .flags = map->flags & KVP_NS_READONLY, .desc = map->head->desc};
	struct ns_map *same;
	char differs[32];
	int r;

	if (map->lost)
		return 0;
	memcpy(join.name, map->head->name, sizeof(join.name));
	r = join_map(map->session, &join, after_ms(ANSWER_MS), &same, differs);
	if (r == -KVP_ENOENT || r == -KVP_EACCES) {
		map_lost(map);
		return 0;
	}
	return r < 0 ? r : grants_list(map);
}

/* ---- all of it ---- */

static int attach_resume(struct kvp_client *client, uint64_t epoch)
{
	struct session *s = atomic_load(&client->session);

	for (struct ns_map *map = s->maps; map; map = map->next) {
		int r;

		if (epoch != client->last_epoch)
			stages_forget(map); /* a new daemon keeps no staging areas */
		else
			stages_keep(map);
		r = resume_map(map);

		if (r < 0)
			return r;
	}
	return 0;
}

static void attach_done(struct kvp_client *client, const struct kvp_wire_welcome *welcome)
{
	bool same_epoch = client->last_epoch == welcome->epoch;

	wire_resend(client, same_epoch);
	if (client->fd < 0)
		return;
	client->last_epoch = welcome->epoch;
	pthread_mutex_lock(&client->lock);
	client->heartbeat_ms = welcome->heartbeat_ms < 50      ? 50
			       : welcome->heartbeat_ms > 60000 ? 60000
							       : welcome->heartbeat_ms;
	client->online = true;
	client->can = welcome->can;
	client->attach_error = 0;
	client->attach_text[0] = 0;
	atomic_store(&client->epoch, welcome->epoch);
	atomic_store(&client->state, KVP_ATTACHED);
	pthread_mutex_unlock(&client->lock);
}

int attach_try(struct kvp_client *client)
{
	struct kvp_wire_welcome welcome;
	int r;

	if (!attach_enter(client, after_ms(ANSWER_MS)))
		return -KVP_EDETACHED;
	r = socket_connect(client);
	if (r == 0)
		r = hello(client, &welcome);
	if (r == 0)
		r = attach_resume(client, welcome.epoch);
	if (r == 0)
		attach_done(client, &welcome);
	if (r < 0) {
		attach_note(client, r);
		wire_down(client);
	}
	if (r == -KVP_EVERSION)
		atomic_store(&client->state, KVP_INCOMPATIBLE);
	else if (r == -KVP_EACCES || ((r == -KVP_EQUOTA || r == -KVP_ENOSPC) && client->refusal == r))
		atomic_store(&client->state, KVP_REFUSED);
	else if (r < 0)
		atomic_store(&client->state, KVP_DETACHED);
	attach_leave(client);
	if (r == 0 && client->online)
		attach_join_waiting(client);
	return r < 0 ? r : client->online ? 0 : -KVP_EDETACHED;
}

static struct kvp_ns *ns_waiting(struct kvp_client *client)
{
	struct kvp_ns *ns;

	pthread_mutex_lock(&client->lock);
	for (ns = client->namespaces; ns; ns = ns->next)
		if (!atomic_load(&ns->map) && !ns->join_error)
			break;
	pthread_mutex_unlock(&client->lock);
	return ns;
}

void attach_join_waiting(struct kvp_client *client)
{
	struct kvp_ns *ns;

	if (!attach_enter(client, 0))
		return; /* whoever is at it may be waiting for an answer that we are to receive */
	while (client->online && (ns = ns_waiting(client))) {
		int r = attach_join(ns, after_ms(ANSWER_MS));

		if (r < 0 && r != -KVP_EDETACHED)
			ns->join_error = r; /* tried again at the next beat, and on the next connection */
		if (r < 0)
			break;
	}
	attach_leave(client);
}
