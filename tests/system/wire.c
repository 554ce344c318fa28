/* wire.c - see wire.h */
#include "tests/unit/lines.h"
#include "wire.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <uuid/uuid.h>

/* ---- time ---- */

uint64_t wire_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void wire_sleep_ms(unsigned ms)
{
	struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};

	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

bool wire_until(bool (*done)(void *arg), void *arg, unsigned ms)
{
	uint64_t deadline = wire_now() + ms * 1000000ull;

	for (;;) {
		if (done(arg))
			return true;
		if (wire_now() > deadline)
			return false;
		wire_sleep_ms(5);
	}
}

/* ---- the daemon ---- */

int host_open(struct host *host, uid_t uid)
{
	static unsigned serial;
	const char *binary = getenv("KVPOOLD"), *build = getenv("BUILD");

	memset(host, 0, sizeof(*host));
	host->uid = uid;
	if (binary)
		snprintf(host->binary, sizeof(host->binary), "%s", binary);
	else
		snprintf(host->binary, sizeof(host->binary), "%s/kvpoold", build ? build : "build");
	snprintf(host->dir, sizeof(host->dir), "/tmp/kvpool-test-XXXXXX");
	if (!mkdtemp(host->dir))
		return -errno;
	if (chmod(host->dir, 0755) < 0 || (uid != geteuid() && chown(host->dir, uid, (gid_t)uid) < 0))
		return -errno;
	snprintf(host->name, sizeof(host->name), "test-%d-%u", (int)getpid(), ++serial);
	snprintf(host->socket, sizeof(host->socket), "%s/sock", host->dir);
	snprintf(host->log, sizeof(host->log), "%s/log", host->dir);
	return 0;
}

static void host_exec(const struct host *host, int binary)
{
	const char *argv[64] = {"kvpoold", "--socket", host->socket, "--name", host->name};
	unsigned n = 5;
	extern char **environ;
	int fd = open(host->log, O_WRONLY | O_CREAT | O_APPEND, 0644);

	if (host->limit_nofile) {
		struct rlimit limit = {host->limit_nofile, host->limit_nofile};

		setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (fd < 0 || dup2(fd, 2) < 0)
		_exit(97);
	if (host->uid != geteuid() && (setgid((gid_t)host->uid) < 0 || setuid(host->uid) < 0))
		_exit(96);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that dies leaves no daemon behind; setuid() would undo it */
	for (unsigned i = 0; host->argv[i]; i++)
		argv[n++] = host->argv[i];
	argv[n] = NULL;
	fexecve(binary, (char *const *)(uintptr_t)argv, environ);
	perror(host->binary);
	_exit(95);
}

static int host_map_stats(struct host *host)
{
	char path[160], text[64] = "";
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "/dev/shm/kvpool.%s", host->name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, text, UUID_STR_LEN - 1) != UUID_STR_LEN - 1 || uuid_parse(text, host->uuid) < 0)
		return -EIO;
	close(fd);
	if (host->stats)
		munmap(host->stats, host->stats_bytes);
	host->stats = NULL;
	host_object(host, path, "stats");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -EIO;
	host->stats_bytes = (size_t)st.st_size;
	host->stats = mmap(NULL, host->stats_bytes, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (host->stats == MAP_FAILED)
		host->stats = NULL;
	return host->stats ? 0 : -EIO;
}

static bool host_serves(struct host *host)
{
	struct wire w;
	struct kvp_wire_pong pong;
	int r = wire_connect(&w, host->socket);

	if (r < 0)
		return false;
	r = wire_call(&w, KVP_MSG_PING, NULL, 0, &pong, sizeof(pong));
	close(w.fd);
	return r == (int)sizeof(pong) && pong.state == KVP_DAEMON_SERVING;
}

int host_start(struct host *host, const char *const *options)
{
	uint64_t deadline = wire_now() + WIRE_TIMEOUT_MS * 1000000ull;
	int binary = open(host->binary, O_PATH);

	if (binary < 0)
		return -errno;
	for (unsigned i = 0; options && i < 47; i++) {
		host->argv[i] = options[i];
		if (!options[i])
			break;
	}
	fflush(NULL);
	host->pid = fork();
	if (host->pid == 0)
		host_exec(host, binary);
	close(binary);
	while (wire_now() < deadline) {
		int status;

		if (waitpid(host->pid, &status, WNOHANG) == host->pid) {
			host->pid = 0;
			return -(1000 + (WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)));
		}
		if (host_serves(host))
			return host_map_stats(host);
		wire_sleep_ms(5);
	}
	return -ETIMEDOUT;
}

static int host_end(struct host *host, int sig)
{
	int status = 0;

	if (!host->pid)
		return -1;
	kill(host->pid, sig);
	waitpid(host->pid, &status, 0);
	host->pid = 0;
	return status;
}

int host_kill(struct host *host)
{
	return host_end(host, SIGKILL);
}

int host_stop(struct host *host)
{
	return host_end(host, SIGTERM);
}

bool host_alive(struct host *host)
{
	int status;

	return host->pid && waitpid(host->pid, &status, WNOHANG) == 0 && host_serves(host);
}

void host_object(const struct host *host, char path[160], const char *rest)
{
	char uuid[UUID_STR_LEN];

	uuid_unparse_lower(host->uuid, uuid);
	snprintf(path, 160, "/dev/shm/kvp-%s-%s", uuid, rest);
}

unsigned host_objects(const struct host *host, uint64_t *bytes)
{
	char prefix[160];
	DIR *dir = opendir("/dev/shm");
	struct dirent *entry;
	unsigned n = 0;

	host_object(host, prefix, "");
	if (bytes)
		*bytes = 0;
	while (dir && (entry = readdir(dir))) {
		struct stat st;

		if (strncmp(entry->d_name, prefix + 9, strlen(prefix + 9)) != 0)
			continue;
		n++;
		if (bytes && fstatat(dirfd(dir), entry->d_name, &st, 0) == 0)
			*bytes += (uint64_t)st.st_blocks * 512;
	}
	if (dir)
		closedir(dir);
	return n;
}

/* KVPOOL_TEST_LOG=1: what the daemon said, for whoever looks for a fault. */
static void host_show_log(const struct host *host)
{
	char text[4096];
	FILE *file = getenv("KVPOOL_TEST_LOG") ? fopen(host->log, "re") : NULL;
	size_t n;

	while (file && (n = fread(text, 1, sizeof(text), file)) > 0)
		fwrite(text, 1, n, stderr);
	if (file)
		fclose(file);
}

void host_close(struct host *host)
{
	char path[400], prefix[160];
	DIR *dir;
	struct dirent *entry;

	host_kill(host);
	host_show_log(host);
	if (host->stats)
		munmap(host->stats, host->stats_bytes);
	host->stats = NULL;
	host_object(host, prefix, "");
	dir = opendir("/dev/shm");
	while (dir && (entry = readdir(dir)))
		if (!strncmp(entry->d_name, prefix + 9, strlen(prefix + 9)))
			unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	snprintf(path, sizeof(path), "/dev/shm/kvpool.%s", host->name);
	unlink(path);
	dir = opendir(host->dir);
	while (dir && (entry = readdir(dir))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue; /* never what stands beside our own directory */
		snprintf(path, sizeof(path), "%s/%s", host->dir, entry->d_name);
		if (unlink(path) < 0 && errno == EISDIR) {
			DIR *sub = opendir(path);
			struct dirent *e;

			while (sub && (e = readdir(sub)))
				unlinkat(dirfd(sub), e->d_name, 0);
			if (sub)
				closedir(sub);
			rmdir(path);
		}
	}
	if (dir)
		closedir(dir);
	rmdir(host->dir);
}

struct logged {
	const struct host *host;
	const char *text;
};

static bool log_holds(void *arg)
{
	const struct logged *want = arg;
	char *text = NULL;
	size_t n = 0;
	bool found = false;
	FILE *file = fopen(want->host->log, "re");

	if (!file)
		return false;
	if (getdelim(&text, &n, 0, file) > 0)
		found = strstr(text, want->text) != NULL;
	free(text);
	fclose(file);
	return found;
}

bool host_logged(const struct host *host, const char *text, unsigned ms)
{
	struct logged want = {host, text};

	return wire_until(log_holds, &want, ms);
}

const struct kvp_ns_row *host_ns_row(struct host *host, uint64_t ns_id)
{
	const struct kvp_ns_row *rows = (const void *)((const char *)host->stats + host->stats->ns_off);

	for (unsigned i = 0; i < KVP_STATS_NS_MAX; i++)
		if (atomic_load(&rows[i].ns_id) == ns_id)
			return &rows[i];
	return NULL;
}

bool host_conserves(struct host *host)
{
	uint64_t deadline = wire_now() + 5000000000ull;
	struct kvp_stats *copy = malloc(host->stats_bytes);
	const struct kvp_ns_row *rows;
	bool good = true;

	while (copy) {
		uint64_t before = atomic_load(&host->stats->version);

		memcpy(copy, host->stats, host->stats_bytes);
		atomic_thread_fence(memory_order_acquire);
		if (!(before & 1) && atomic_load(&host->stats->version) == before)
			break;
		if (wire_now() > deadline) {
			free(copy);
			return false;
		}
	}
	if (!copy)
		return false;
	rows = (const void *)((const char *)copy + copy->ns_off);
	for (unsigned i = 0; i < KVP_STATS_NS_MAX; i++) {
		const struct kvp_ns_counters *c = &rows[i].counters;

		if (!rows[i].ns_id)
			continue;
		if (c->free + c->granted + c->restoring + c->taken + c->retired + c->published != c->slots ||
			c->held > c->published || c->clean > c->published) {
			fprintf(stderr,
				"namespace %s: %" PRIu64 " free, %" PRIu64 " granted, %" PRIu64 " restoring, %" PRIu64
				" taken, %" PRIu64 " retired, %" PRIu64 " published of %" PRIu64 "; %" PRIu64 " held\n",
				rows[i].name, (uint64_t)c->free, (uint64_t)c->granted, (uint64_t)c->restoring,
				(uint64_t)c->taken, (uint64_t)c->retired, (uint64_t)c->published, (uint64_t)c->slots,
				(uint64_t)c->held);
			good = false;
		}
	}
	free(copy);
	return good;
}

uint64_t host_rss_kib(const struct host *host)
{
	char path[64], line[256];
	unsigned long kib = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)host->pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file) && sscanf(line, "VmRSS: %lu", &kib) != 1)
		;
	if (file)
		fclose(file);
	return kib;
}

uint64_t host_cpu_ms(const struct host *host)
{
	char path[64], text[1024];
	unsigned long user = 0, system = 0;
	FILE *file;
	size_t n;
	char *at;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)host->pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	n = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[n] = 0;
	at = strrchr(text, ')');
	if (!at || sscanf(at + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
		return 0;
	return (user + system) * 1000 / (unsigned long)sysconf(_SC_CLK_TCK);
}

unsigned host_n_fds(const struct host *host)
{
	char path[64];
	DIR *dir;
	unsigned n = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)host->pid);
	dir = opendir(path);
	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

unsigned host_n_maps(const struct host *host)
{
	char path[64];
	FILE *file;
	unsigned n = 0;
	int c;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)host->pid);
	file = fopen(path, "re");
	while (file && (c = fgetc(file)) != EOF)
		n += c == '\n';
	if (file)
		fclose(file);
	return n;
}

unsigned wire_n_mapped(const char *object)
{
	return lines_with("/proc/self/maps", object);
}

/* ---- messages ---- */

int wire_connect(struct wire *w, const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	memset(w, 0, sizeof(*w));
	w->header_fd = w->session_fd = -1;
	w->next_id = 1;
	w->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (w->fd < 0)
		return -errno;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (connect(w->fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		int r = -errno;

		close(w->fd);
		w->fd = -1;
		return r;
	}
	return 0;
}

int wire_send(struct wire *w, uint16_t type, uint64_t id, const void *body, size_t n, const int *fds, unsigned n_fds)
{
	struct kvp_msg msg = {.magic = KVP_WIRE_MAGIC, .type = type, .bytes = (uint32_t)(sizeof(msg) + n), .id = id};
	struct iovec iov[2] = {{&msg, sizeof(msg)}, {(void *)(uintptr_t)body, n}};
	union {
		char bytes[CMSG_SPACE(KVP_WIRE_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct msghdr out = {.msg_iov = iov, .msg_iovlen = 2};

	if (n_fds) {
		struct cmsghdr *cmsg;

		out.msg_control = control.bytes;
		out.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&out);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
	}
	return sendmsg(w->fd, &out, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static unsigned take_fds(struct msghdr *in, int *fds, unsigned room)
{
	unsigned n = 0;

	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(in); cmsg; cmsg = CMSG_NXTHDR(in, cmsg)) {
		size_t have = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		for (size_t i = 0; i < have; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(fd), sizeof(fd));
			if (fds && n < room)
				fds[n++] = fd;
			else
				close(fd);
		}
	}
	return n;
}

int wire_receive(struct wire *w, uint64_t id, void *body, size_t room, int *fds, unsigned *n_fds, int timeout_ms)
{
	uint64_t deadline = wire_now() + (uint64_t)timeout_ms * 1000000;
	static __thread char buffer[KVP_WIRE_MAX];

	for (;;) {
		struct kvp_msg msg;
		union {
			char bytes[CMSG_SPACE(KVP_WIRE_FDS_MAX * sizeof(int))];
			struct cmsghdr align;
		} control;
		struct iovec iov[2] = {{&msg, sizeof(msg)}, {buffer, sizeof(buffer)}};
		struct msghdr in = {.msg_iov = iov,
			.msg_iovlen = 2,
			.msg_control = control.bytes,
			.msg_controllen = sizeof(control.bytes)};
		struct pollfd poll_in = {.fd = w->fd, .events = POLLIN};
		int left = (int)((int64_t)(deadline - wire_now()) / 1000000);
		unsigned got;
		ssize_t n;

		if (poll(&poll_in, 1, left < 0 ? 0 : left) <= 0)
			return WIRE_SILENT;
		n = recvmsg(w->fd, &in, MSG_CMSG_CLOEXEC);
		if (n < (ssize_t)sizeof(msg))
			return WIRE_HUNG_UP;
		got = take_fds(&in, fds, n_fds ? *n_fds : 0);
		if (msg.id != id || msg.bytes != (size_t)n || msg.magic != KVP_WIRE_MAGIC ||
			!(msg.type & KVP_MSG_REPLY)) {
			for (unsigned i = 0; i < got; i++)
				close(fds[i]);
			continue;
		}
		if (n_fds)
			*n_fds = got;
		n -= (ssize_t)sizeof(msg);
		if (msg.status < 0) {
			snprintf(w->text, sizeof(w->text), "%.*s", (int)n, buffer);
			return msg.status;
		}
		if ((size_t)n > room)
			return -EMSGSIZE;
		if (n)
			memcpy(body, buffer, (size_t)n);
		return (int)n;
	}
}

int wire_call(struct wire *w, uint16_t type, const void *body, size_t n, void *reply, size_t room)
{
	uint64_t id = w->next_id++;
	int r = wire_send(w, type, id, body, n, NULL, 0);

	if (r == -EPIPE || r == -ECONNRESET)
		return WIRE_HUNG_UP;
	return r < 0 ? r : wire_receive(w, id, reply, room, NULL, NULL, WIRE_TIMEOUT_MS);
}

/* ---- sessions ---- */

int wire_lock(struct wire *w)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

	return fcntl(w->session_fd, F_SETLK, &lock) < 0 ? -errno : 0;
}

int wire_hello(struct wire *w, uint64_t resume)
{
	struct kvp_wire_hello hello = {.major = KVP_WIRE_MAJOR,
		.minor = KVP_WIRE_MINOR,
		.layout_major = KVP_LAYOUT_MAJOR,
		.layout_minor = KVP_LAYOUT_MINOR,
		.session_id = resume,
		.pid = getpid(),
		.comm = "wire"};
	uint64_t id = w->next_id++;
	int fds[2] = {-1, -1}, r;
	unsigned n_fds = 2;

	if (resume)
		memcpy(hello.uuid, w->welcome.uuid, 16);
	r = wire_send(w, KVP_MSG_HELLO, id, &hello, sizeof(hello), NULL, 0);
	if (r < 0)
		return r;
	r = wire_receive(w, id, &w->welcome, sizeof(w->welcome), fds, &n_fds, WIRE_TIMEOUT_MS);
	if (r < 0)
		return r;
	if (r != (int)sizeof(w->welcome) || n_fds != 2)
		return -EPROTO;
	if (resume && w->session) { /* the lock is held already; closing another descriptor of it would drop it */
		close(fds[0]);
		close(fds[1]);
		return wire_lock(w);
	}
	w->header_fd = fds[0];
	w->session_fd = fds[1];
	w->header = mmap(NULL, KVP_PAGE, PROT_READ, MAP_SHARED, w->header_fd, 0);
	if (w->header == MAP_FAILED)
		return -errno;
	w->session_bytes = (size_t)lseek(w->session_fd, 0, SEEK_END);
	w->session = mmap(NULL, w->session_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, w->session_fd, 0);
	if (w->session == MAP_FAILED)
		return -errno;
	return wire_lock(w);
}

int wire_open(struct wire *w, const char *socket)
{
	int r = wire_connect(w, socket);

	return r < 0 ? r : wire_hello(w, 0);
}

void wire_drop(struct wire *w)
{
	if (w->fd >= 0)
		close(w->fd);
	w->fd = -1;
}

void wire_close(struct wire *w)
{
	wire_drop(w);
	if (w->header)
		munmap((void *)(uintptr_t)w->header, KVP_PAGE);
	if (w->session)
		munmap(w->session, w->session_bytes);
	w->header = NULL;
	w->session = NULL;
	if (w->header_fd >= 0)
		close(w->header_fd);
	if (w->session_fd >= 0)
		close(w->session_fd);
	w->header_fd = w->session_fd = -1;
}

/* ---- namespaces ---- */

void wire_desc(struct kvp_desc *desc, uint64_t bytes, uint8_t model)
{
	memset(desc, 0, sizeof(*desc));
	desc->size = sizeof(*desc);
	desc->version = 1;
	desc->layout = KVP_LAYOUT_OPAQUE;
	desc->block_tokens = 16;
	desc->block_bytes = bytes;
	desc->model[0] = model;
	snprintf(desc->engine, sizeof(desc->engine), "wire-test/1");
}

int wire_join_as(struct wire *w, struct wire_ns *ns, const struct kvp_wire_join *join)
{
	uint64_t id = w->next_id++;
	unsigned n_fds = 1;
	int fd = -1, r;
	off_t bytes;

	memset(ns, 0, sizeof(*ns));
	ns->w = w;
	ns->fd = ns->stage_fd = -1;
	r = wire_send(w, KVP_MSG_JOIN, id, join, sizeof(*join), NULL, 0);
	if (r < 0)
		return r;
	r = wire_receive(w, id, &ns->joined, sizeof(ns->joined), &fd, &n_fds, WIRE_TIMEOUT_MS);
	if (r < 0)
		return r;
	if (n_fds != 1)
		return -EPROTO;
	ns->fd = fd;
	ns->id = ns->joined.ns_id;
	bytes = lseek(fd, 0, SEEK_END);
	ns->head = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (ns->head == MAP_FAILED)
		return -errno;
	ns->slabs = (const void *)((const char *)ns->head + ns->head->slab_off);
	ns->blocks = (const void *)((const char *)ns->head + ns->head->block_off);
	ns->index = (const void *)((const char *)ns->head + ns->head->index_off);
	return ns->head->max_places > WIRE_PLACES_MAX ? -E2BIG : 0;
}

int wire_join(struct wire *w, struct wire_ns *ns, const char *name, uint64_t bytes)
{
	struct kvp_wire_join join = {.owner_uid = KVP_UID_SELF};

	snprintf(join.name, sizeof(join.name), "%s", name);
	wire_desc(&join.desc, bytes, 1);
	return wire_join_as(w, ns, &join);
}

void wire_leave(struct wire_ns *ns)
{
	for (unsigned i = 0; i < WIRE_PLACES_MAX; i++) {
		if (ns->at[i].ro)
			munmap((void *)(uintptr_t)ns->at[i].ro, ns->at[i].bytes);
		if (ns->at[i].rw)
			munmap(ns->at[i].rw, ns->at[i].bytes);
	}
	if (ns->stage)
		munmap(ns->stage, ns->staged.bytes);
	if (ns->stage_fd >= 0)
		close(ns->stage_fd);
	if (ns->head && ns->head != MAP_FAILED)
		munmap((void *)(uintptr_t)ns->head, ns->head->object_bytes);
	if (ns->fd >= 0)
		close(ns->fd);
	memset(ns, 0, sizeof(*ns));
	ns->fd = ns->stage_fd = -1;
}

int wire_map(struct wire_ns *ns, uint32_t place, bool writable)
{
	struct {
		struct kvp_wire_map map;
		uint32_t place;
	} body = {{ns->id, 1, writable}, place};
	struct kvp_wire_mapped mapped;
	uint64_t id = ns->w->next_id++;
	unsigned n_fds = 1;
	int fd = -1, r;
	void *at;

	r = wire_send(ns->w, KVP_MSG_MAP, id, &body, sizeof(body.map) + sizeof(body.place), NULL, 0);
	if (r < 0)
		return r;
	r = wire_receive(ns->w, id, &mapped, sizeof(mapped), &fd, &n_fds, WIRE_TIMEOUT_MS);
	if (r < 0)
		return r;
	if (mapped.status < 0)
		return mapped.status;
	if (n_fds != 1)
		return -EPROTO;
	at = mmap(NULL, mapped.bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		return -errno;
	if (ns->at[place].number != mapped.number) {
		if (ns->at[place].ro)
			munmap((void *)(uintptr_t)ns->at[place].ro, ns->at[place].bytes);
		if (ns->at[place].rw)
			munmap(ns->at[place].rw, ns->at[place].bytes);
		memset(&ns->at[place], 0, sizeof(ns->at[place]));
	}
	ns->at[place].number = mapped.number;
	ns->at[place].bytes = mapped.bytes;
	if (writable)
		ns->at[place].rw = at;
	else
		ns->at[place].ro = at;
	return 0;
}

/* ---- writing ---- */

int wire_reserve(struct wire_ns *ns, struct kvp_wire_grant *grants, uint32_t n, unsigned wait_ms)
{
	struct kvp_wire_reserve reserve = {.ns_id = ns->id,
		.n = n,
		.node = UINT32_MAX,
		.deadline_ns = wait_ms ? wire_now() + wait_ms * 1000000ull : 0};
	int r = wire_call(ns->w, KVP_MSG_RESERVE, &reserve, sizeof(reserve), grants, n * sizeof(*grants));

	return r < 0 ? r : r / (int)sizeof(*grants);
}

static int wire_list(struct wire_ns *ns, uint16_t type, const void *items, uint32_t n, size_t item, uint32_t flags,
	void *reply, size_t room)
{
	struct kvp_wire_batch batch = {.ns_id = ns->id, .n = n, .flags = flags};
	char *body = malloc(sizeof(batch) + n * item);
	int r;

	if (!body)
		return -ENOMEM;
	memcpy(body, &batch, sizeof(batch));
	if (n)
		memcpy(body + sizeof(batch), items, n * item);
	r = wire_call(ns->w, type, body, sizeof(batch) + n * item, reply, room);
	free(body);
	return r;
}

int wire_abandon(struct wire_ns *ns, const struct kvp_wire_grant *grants, uint32_t n)
{
	return wire_list(ns, KVP_MSG_ABANDON, grants, n, sizeof(*grants), 0, NULL, 0);
}

int wire_keep(struct wire_ns *ns, const struct kvp_wire_grant *grants, uint32_t n)
{
	return wire_list(ns, KVP_MSG_GRANTS, grants, n, sizeof(*grants), 0, NULL, 0);
}

char *wire_data(struct wire_ns *ns, uint64_t slot)
{
	uint32_t place = (uint32_t)(slot / ns->head->slots_per_slab);

	if (!ns->at[place].rw || ns->at[place].number != atomic_load(&ns->slabs[place].number))
		if (wire_map(ns, place, true) < 0)
			return NULL;
	return ns->at[place].rw + slot % ns->head->slots_per_slab * ns->head->block_stride;
}

int wire_publish(struct wire_ns *ns, const struct kvp_wire_item *items, uint32_t n, struct kvp_wire_result *results)
{
	int r = wire_list(ns, KVP_MSG_PUBLISH, items, n, sizeof(*items), 0, results, n * sizeof(*results));

	return r < 0 ? r : r / (int)sizeof(*results);
}

int wire_put(struct wire_ns *ns, const struct kvp_key *key, const struct kvp_key *parent, uint64_t k, unsigned wait_ms)
{
	struct kvp_wire_grant grant;
	struct kvp_wire_item item = {.key = *key, .used_bytes = ns->head->block_bytes, .used_tokens = 16};
	struct kvp_wire_result result;
	char *data;
	int r = wire_reserve(ns, &grant, 1, wait_ms);

	if (r <= 0)
		return r < 0 ? r : -KVP_ENOSPC;
	data = wire_data(ns, grant.slot);
	if (!data)
		return -EFAULT;
	wire_fill(data, ns->head->block_bytes, k);
	item.slot = grant.slot;
	item.generation = grant.generation;
	if (parent)
		item.parent = *parent;
	r = wire_publish(ns, &item, 1, &result);
	if (r < 0)
		return r;
	if (result.result != KVP_PUB_STORED)
		wire_abandon(ns, &grant, 1);
	return result.result;
}

int wire_stage(struct wire_ns *ns, uint64_t n_blocks)
{
	struct kvp_wire_stage stage = {.ns_id = ns->id, .n_blocks = n_blocks};
	uint64_t id = ns->w->next_id++;
	unsigned n_fds = 1;
	int r = wire_send(ns->w, KVP_MSG_STAGE, id, &stage, sizeof(stage), NULL, 0);

	if (r < 0)
		return r;
	r = wire_receive(ns->w, id, &ns->staged, sizeof(ns->staged), &ns->stage_fd, &n_fds, WIRE_TIMEOUT_MS);
	if (r < 0)
		return r;
	ns->stage = mmap(NULL, ns->staged.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ns->stage_fd, 0);
	return ns->stage == MAP_FAILED ? -errno : 0;
}

int wire_lookup(struct wire_ns *ns, const struct kvp_key *keys, uint32_t n, struct kvp_wire_found *found)
{
	return wire_list(ns, KVP_MSG_LOOKUP, keys, n, sizeof(*keys), 0, found, n * sizeof(*found));
}

int wire_restore(
	struct wire_ns *ns, const struct kvp_key *keys, uint32_t n, unsigned wait_ms, struct kvp_wire_found *found)
{
	struct kvp_wire_restore restore = {.ns_id = ns->id, .n = n, .deadline_ns = wire_now() + wait_ms * 1000000ull};
	char *body = malloc(sizeof(restore) + n * sizeof(*keys));
	int r;

	if (!body)
		return -ENOMEM;
	memcpy(body, &restore, sizeof(restore));
	memcpy(body + sizeof(restore), keys, n * sizeof(*keys));
	r = wire_call(ns->w, KVP_MSG_RESTORE, body, sizeof(restore) + n * sizeof(*keys), found, n * sizeof(*found));
	free(body);
	return r;
}

/* ---- reading ---- */

static struct kvp_pin *wire_pin_at(struct wire_ns *ns, uint64_t slot)
{
	uint64_t place = slot / ns->head->slots_per_slab, i = slot % ns->head->slots_per_slab;

	return (struct kvp_pin *)(void *)((char *)ns->w->session + ns->w->session->pins_off +
					  place * ns->w->session->pin_stride) +
	       i;
}

/* The protocol of struct kvp_block, word for word. */
static int wire_pin_slot(struct wire_ns *ns, uint64_t slot, const struct kvp_key *key, struct wire_pinned *pinned)
{
	uint32_t place = (uint32_t)(slot / ns->head->slots_per_slab);
	const struct kvp_block *block = &ns->blocks[slot];
	struct kvp_pin *pin;
	uint64_t word;

	if (place >= ns->head->max_places || !atomic_load(&ns->slabs[place].number))
		return 0;
	if (!ns->at[place].ro || ns->at[place].number != atomic_load(&ns->slabs[place].number))
		if (wire_map(ns, place, false) < 0)
			return 0;
	pin = wire_pin_at(ns, slot);
	word = atomic_load(&block->word);
	if (kvp_word_state(word) != KVP_BLOCK_PUBLISHED)
		return 0;
	atomic_fetch_add(&pin->count, 1);
	if (atomic_load(&block->word) == word && atomic_load(&ns->w->session->word) && block->key.w[0] == key->w[0] &&
		block->key.w[1] == key->w[1] && block->slab_number == ns->at[place].number) {
		atomic_store(&pin->stamp, atomic_load(&ns->w->header->tick));
		pinned->slot = slot;
		pinned->word = word;
		pinned->data = ns->at[place].ro + slot % ns->head->slots_per_slab * ns->head->block_stride;
		pinned->used_bytes = block->used_bytes;
		return 1;
	}
	atomic_fetch_sub_explicit(&pin->count, 1, memory_order_release);
	return 0;
}

int wire_pin(struct wire_ns *ns, const struct kvp_key *key, struct wire_pinned *pinned)
{
	uint64_t home = kvp_index_home(key, ns->head->n_buckets);

	for (unsigned probe = 0; probe < KVP_INDEX_PROBES; probe++) {
		const struct kvp_index_bucket *bucket = &ns->index[(home + probe) & (ns->head->n_buckets - 1)];
		bool full = true;

		for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++) {
			uint64_t hint = atomic_load(&bucket->hint[i]);

			full = full && hint;
			if (hint && hint >> 32 == kvp_index_tag(key) &&
				wire_pin_slot(ns, kvp_hint_slot(hint), key, pinned))
				return 1;
		}
		if (!full)
			break;
	}
	return 0;
}

void wire_unpin(struct wire_ns *ns, const struct wire_pinned *pinned)
{
	struct kvp_pin *pin = wire_pin_at(ns, pinned->slot);

	atomic_store(&pin->stamp, atomic_load(&ns->w->header->tick));
	atomic_fetch_sub_explicit(&pin->count, 1, memory_order_release);
}

/* ---- contents ---- */

void wire_fill(char *data, size_t n, uint64_t k)
{
	for (size_t i = 0; i < n; i++)
		data[i] = (char)(131 * k + 7 * i + 13 * (i / 256));
}

bool wire_right(const char *data, size_t n, uint64_t k)
{
	for (size_t i = 0; i < n; i++)
		if (data[i] != (char)(131 * k + 7 * i + 13 * (i / 256)))
			return false;
	return true;
}

struct kvp_key wire_key(uint64_t k)
{
	struct kvp_key key;

	for (int i = 0; i < 2; i++) { /* splitmix64 */
		uint64_t z = (k * 2 + (uint64_t)i + 1) * 0x9e3779b97f4a7c15ull;

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
		z = (z ^ z >> 27) * 0x94d049bb133111ebull;
		key.w[i] = z ^ z >> 31;
	}
	return key;
}
