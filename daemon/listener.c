/* listener.c - see listener.h */
#include "listener.h"

#include <errno.h>
#include <libgen.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "kvpool_wire.h"
#include "log.h"
#include "peer.h"
#include "pool.h"

#define ACCEPT_AGAIN_NS 100000000ull /* no descriptor or no memory for a connection: tried again after so long */
#define PROBE_MS 100
#define PROBES 20
#define LISTENERS_MAX (CONFIG_LISTEN_MAX + 10)

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
	peer_went_without(d, cred.uid, cred.pid, packet.text);
	packet.msg.bytes = (uint32_t)(sizeof(packet.msg) + strlen(packet.text));
	if (send(fd, &packet, packet.msg.bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		log_debug("a connection that is refused was not told why: %s", strerror(errno));
	close(fd);
}

static void listener_accept_one(struct listener *listener, int fd)
{
	struct daemon *d = listener->d;
	uid_t uid = KVP_OVERFLOW_UID;
	int r;

	/* operators get in when clients have taken all there is */
	if (d->n_peers >= 2 * d->config.max_clients && !listener->admin) {
		connection_refuse(d, fd, KVP_EQUOTA, "%u connections are open: raise max-clients (%u)", d->n_peers,
			d->config.max_clients);
		return;
	}
	r = peer_open(d, fd, listener->policy, listener->admin, &uid);
	if (r < 0)
		connection_refuse(d, fd, r == -EPERM ? KVP_EACCES : KVP_EQUOTA, "a connection of uid %u: %s",
			(unsigned)uid,
			r == -EPERM    ? "it comes from another user namespace, its uid could be anybody's"
			: r == -EDQUOT ? "it has as many as uid-max-clients allows: raise it"
				       : strerror(-r));
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

static int listener_cannot(const char *path, int r, char message[256])
{
	snprintf(message, 256, "cannot listen on %s: %s%s", path, strerror(-r),
		r == -ENOENT ? "; make its directory first"
		: r == -EACCES || r == -EPERM
			? "; give the daemon's user its directory (in a unit, RuntimeDirectory=), or choose another --socket"
		: r == -EROFS ? "; choose another --socket, in a unit RuntimeDirectory= or ReadWritePaths="
			      : "; choose another --socket");
	return r;
}

/* Could a socket be made there? *@there: something is, and it is a socket. */
static int path_look(const char *path, bool *there, char message[256])
{
	char dir[KVP_SOCKET_MAX];
	struct stat st;

	*there = lstat(path, &st) == 0;
	if (*there && !S_ISSOCK(st.st_mode)) {
		snprintf(message, 256, "%s exists and is not a socket: remove it, or choose another --socket", path);
		return -EEXIST;
	}
	snprintf(dir, sizeof(dir), "%s", path);
	return access(dirname(dir), W_OK | X_OK) < 0 ? listener_cannot(path, -errno, message) : 0;
}

/* Is the path a socket that nobody serves any more? Then it may go. */
static int listener_clear_path(const char *path, char message[256])
{
	pid_t pid = 0;
	bool there;
	int r = path_look(path, &there, message);

	if (r < 0 || !there)
		return r;
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
		close(fd);
		return listener_cannot(listener->path, r, message);
	}
	listener->source.fd = fd;
	return 0;
}

static int listener_watch(struct daemon *d, struct listener *listener, char message[256])
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
		r = listener_watch(d, listener, message);
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
	return listener_watch(d, listener, message);
}

int listener_check(const struct config *config, char message[256])
{
	bool passed = getenv("LISTEN_FDS"), there; /* which ones, listener_start() looks */
	int r = passed ? 0 : path_look(config->socket, &there, message);

	if (r == 0 && !passed)
		r = path_look(config->admin_socket, &there, message);
	for (unsigned i = 0; i < config->n_listen && r == 0; i++)
		r = path_look(config->listen[i].path, &there, message);
	return r;
}

int listener_start(struct daemon *d, char message[256])
{
	bool have[2] = {false, false};
	int r;

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

void listener_stop(struct daemon *d)
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
}
