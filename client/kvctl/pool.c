/* pool.c - see pool.h */
#define _GNU_SOURCE 1
#include "pool.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kvctl.h"
#include "quantity.h"

/* What pool_find() looks for, and what it saw that was not it. */
struct search {
	const char *socket; /* absolute; NULL: any */
	char socket_real[PATH_MAX];
	const char *name;
	uid_t owners[5];
	unsigned n_owners;
	char refusal[512]; /* a pool that may be the one and cannot be read */
	unsigned n_refusals;
	char others[512]; /* pools that are not the one */
	size_t n_others;
	bool found;
};

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

bool pool_uuid_parse(const char *text, uint8_t uuid[16])
{
	unsigned n = 0;

	for (unsigned i = 0; i < POOL_UUID_TEXT - 1; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;
		char c = text[i];

		if (dash && c == '-')
			continue;
		/* lower case only: one pool, one name */
		if (dash || !isxdigit((unsigned char)c) || isupper((unsigned char)c))
			return false;
		unsigned digit = c <= '9' ? (unsigned)(c - '0') : (unsigned)(c - 'a' + 10);

		uuid[n / 2] = (uint8_t)(n % 2 ? (uuid[n / 2] | digit) : digit << 4);
		n++;
	}
	return true;
}

const char *pool_uuid_of_name(const char *file_name, char uuid[POOL_UUID_TEXT])
{
	uint8_t bytes[16];

	if (strncmp(file_name, "kvp-", 4) || strlen(file_name) < 4 + POOL_UUID_TEXT ||
		!pool_uuid_parse(file_name + 4, bytes) || file_name[4 + POOL_UUID_TEXT - 1] != '-')
		return NULL;
	memcpy(uuid, file_name + 4, POOL_UUID_TEXT - 1);
	uuid[POOL_UUID_TEXT - 1] = 0;
	return file_name + 4 + POOL_UUID_TEXT;
}

void pool_path(const struct pool *pool, char path[POOL_PATH_MAX], const char *rest_format, ...)
{
	int n = snprintf(path, POOL_PATH_MAX, POOL_SHM_DIR "/kvp-%s-", pool->uuid);
	va_list args;

	va_start(args, rest_format);
	vsnprintf(path + n, POOL_PATH_MAX - (size_t)n, rest_format, args);
	va_end(args);
}

int pool_read(int fd, void *to, uint64_t bytes, uint64_t off)
{
	char *at = to;

	while (bytes) {
		ssize_t n = pread(fd, at, bytes, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -ENODATA;
		at += n;
		off += (uint64_t)n;
		bytes -= (uint64_t)n;
	}
	return 0;
}

static int pool_open_regular(const char *path, struct stat *st)
{
	/* O_NONBLOCK: somebody's fifo of this name must not stop us */
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (fstat(fd, st) < 0 || !S_ISREG(st->st_mode) || st->st_nlink > 1) {
		close(fd);
		return -EPERM;
	}
	return fd;
}

int pool_object_open(const struct pool *pool, const char *path, struct stat *st)
{
	int fd = pool_open_regular(path, st);

	if (fd >= 0 && st->st_uid != pool->uid) {
		close(fd);
		return -EPERM;
	}
	return fd;
}

int pool_socket_path(const char *socket, char path[KVP_SOCKET_MAX])
{
	char cwd[PATH_MAX] = "";
	int n;

	if (!socket)
		socket = getenv("KVPOOL_SOCKET");
	if (!socket || !socket[0])
		socket = KVP_DEFAULT_SOCKET;
	if (socket[0] != '/' && !getcwd(cwd, sizeof(cwd))) {
		complain("socket %s: the working directory cannot be told (%s): give an absolute path", socket,
			strerror(errno));
		return KVCTL_USAGE;
	}
	n = snprintf(path, KVP_SOCKET_MAX, "%s%s%s", cwd, cwd[0] ? "/" : "", socket);
	if (n >= KVP_SOCKET_MAX) {
		complain("socket %s%s%s: longer than the %d bytes of a Unix address: give a shorter path", cwd,
			cwd[0] ? "/" : "", socket, KVP_SOCKET_MAX - 1);
		return KVCTL_USAGE;
	}
	return 0;
}

/* The real path even when the socket itself is gone: of its directory, then. */
static void socket_real_path(const char *socket, char real[PATH_MAX])
{
	char dir[KVP_SOCKET_MAX];
	const char *base = strrchr(socket, '/');
	size_t n;

	if (realpath(socket, real))
		return;
	snprintf(dir, sizeof(dir), "%.*s", base && base > socket ? (int)(base - socket) : 1, socket);
	if (!base || !realpath(dir, real)) {
		snprintf(real, PATH_MAX, "%s", socket);
		return;
	}
	n = strlen(real);
	snprintf(real + n, PATH_MAX - n, "%s%s", n > 1 ? "/" : "", base + 1);
}

static void search_add_owner(struct search *search, const char *path, bool parent)
{
	char at[PATH_MAX];
	struct stat st;

	snprintf(at, sizeof(at), "%s", path);
	if (parent) {
		char *slash = strrchr(at, '/');

		if (!slash)
			return;
		slash[slash == at] = 0;
	}
	/* a directory where anybody may make names vouches for nobody */
	if (lstat(at, &st) < 0 || (parent && (st.st_mode & S_IWOTH)))
		return;
	search->owners[search->n_owners++] = st.st_uid;
}

static bool search_trusts(const struct search *search, uid_t uid)
{
	for (unsigned i = 0; i < search->n_owners; i++)
		if (search->owners[i] == uid)
			return true;
	return false;
}

static void search_note_other(struct search *search, const char *name, const char *socket, const char *why)
{
	char shown[KVP_SOCKET_MAX];

	int n = snprintf(search->others + search->n_others, sizeof(search->others) - search->n_others,
		"%s%s (socket %s%s)", search->n_others ? ", " : "", name,
		text_path(shown, sizeof(shown), socket, KVP_SOCKET_MAX), why);

	if (n > 0 && search->n_others + (size_t)n < sizeof(search->others))
		search->n_others += (size_t)n;
	else
		search->others[search->n_others] = 0; /* no half names */
}

/* Is the object what a header must be?  The message names both versions. */
static bool header_readable(
	const struct kvp_pool_header *header, const uint8_t uuid[16], uint64_t file_bytes, char *why, size_t room)
{
	if (header->magic != KVP_MAGIC_HEADER) {
		snprintf(why, room, "it does not begin as a pool header does");
		return false;
	}
	if (header->endian != KVP_ENDIAN) {
		snprintf(why, room, "its byte order mark is %08x, this kvctl's is %08x", header->endian, KVP_ENDIAN);
		return false;
	}
	if (header->layout_major != KVP_LAYOUT_MAJOR) {
		snprintf(why, room,
			"its layout is version %u.%u, this kvctl reads %u.x (%u.%u): use the kvctl of its daemon",
			header->layout_major, header->layout_minor, KVP_LAYOUT_MAJOR, KVP_LAYOUT_MAJOR,
			KVP_LAYOUT_MINOR);
		return false;
	}
	if (header->header_bytes < KVP_POOL_HEADER_LEAST || header->header_bytes > file_bytes ||
		file_bytes < sizeof(*header)) {
		snprintf(why, room,
			"layout version %u.%u with a header of %llu bytes in a file of %llu, this kvctl's %u.%u has %zu",
			header->layout_major, header->layout_minor, (unsigned long long)header->header_bytes,
			(unsigned long long)file_bytes, KVP_LAYOUT_MAJOR, KVP_LAYOUT_MINOR, sizeof(*header));
		return false;
	}
	if (memcmp(header->uuid, uuid, 16)) {
		snprintf(why, room, "the UUID inside is not the one of its name");
		return false;
	}
	return true;
}

static bool search_socket_matches(const struct search *search, const char *socket)
{
	char real[PATH_MAX];

	if (!search->socket || !strcmp(search->socket, socket))
		return true;
	socket_real_path(socket, real);
	return !strcmp(search->socket_real, real);
}

/* Only said if nothing is found: a stale pool beside the right one is no news.  The first one stands for all. */
static void search_note_refusal(struct search *search, const char *path, const char *why)
{
	if (!search->n_refusals++)
		snprintf(search->refusal, sizeof(search->refusal), "%s is passed over: %s", path, why);
}

static void search_note_unreadable(struct search *search, const char *path, int error)
{
	char why[160];
	struct stat st;

	/* a name of somebody who may not own the pool is nothing to us */
	if (error == -ENOENT || lstat(path, &st) < 0 || !search_trusts(search, st.st_uid))
		return;
	if (error == -EACCES)
		snprintf(why, sizeof(why),
			"it may not be read (owner uid %u, group %u): join its operators' group, or run kvctl as root",
			st.st_uid, st.st_gid);
	else if (error == -EPERM || error == -ELOOP)
		snprintf(why, sizeof(why), "it is a link, or no regular file");
	else
		snprintf(why, sizeof(why), "%s", strerror(-error));
	search_note_refusal(search, path, why);
}

/* One /dev/shm/kvp-<uuid>-header: take it if it is (a newer one of) what is looked for. */
static void search_try(struct search *search, struct pool *best, const char *path, const char *uuid_text)
{
	struct pool pool = {0};
	uint8_t uuid[16];
	char why[256];
	struct stat st;
	int fd = pool_open_regular(path, &st);
	int r;

	if (fd < 0) {
		search_note_unreadable(search, path, fd);
		return;
	}
	r = pool_read(fd, &pool.header,
		(uint64_t)st.st_size < sizeof(pool.header) ? (uint64_t)st.st_size : sizeof(pool.header), 0);
	close(fd);
	if (r < 0 || !pool_uuid_parse(uuid_text, uuid))
		return;
	text_clean(pool.name, sizeof(pool.name), pool.header.pool_name, sizeof(pool.header.pool_name));
	snprintf(pool.socket, sizeof(pool.socket), "%.*s", (int)sizeof(pool.header.socket) - 1, pool.header.socket);
	pool.header.huge_dir[sizeof(pool.header.huge_dir) - 1] = 0;
	if (!search_trusts(search, st.st_uid)) {
		snprintf(why, sizeof(why), "; of uid %u, which %s; only --name takes it", st.st_uid,
			search->socket ? "owns neither the socket nor its directory" : "does not own the pool's file");
		search_note_other(search, pool.name, pool.socket, why);
		return;
	}
	if (!header_readable(&pool.header, uuid, (uint64_t)st.st_size, why, sizeof(why))) {
		search_note_refusal(search, path, why);
		return;
	}
	if (!search_socket_matches(search, pool.socket) || (search->name && strcmp(search->name, pool.name))) {
		search_note_other(search, pool.name, pool.socket, "");
		return;
	}
	if (search->found && atomic_load(&best->header.heartbeat_ns) >= atomic_load(&pool.header.heartbeat_ns))
		return;
	memcpy(pool.uuid, uuid_text, POOL_UUID_TEXT);
	pool.uid = st.st_uid;
	pool.gid = st.st_gid;
	*best = pool;
	search->found = true;
}

static int search_failed(const struct search *search)
{
	char what[PATH_MAX];

	if (search->socket && search->name)
		snprintf(what, sizeof(what), "named %s at socket %s", search->name, search->socket);
	else if (search->socket)
		snprintf(what, sizeof(what), "at socket %s", search->socket);
	else
		snprintf(what, sizeof(what), "named %s", search->name);
	if (search->n_refusals > 1)
		complain("no pool %s that this kvctl can read: %s (and %u more)", what, search->refusal,
			search->n_refusals - 1);
	else if (search->n_refusals)
		complain("no pool %s that this kvctl can read: %s", what, search->refusal);
	else if (search->n_others)
		complain("no pool %s in " POOL_SHM_DIR "; there are: %s; choose with --socket or --name", what,
			search->others);
	else
		complain("no pool %s in " POOL_SHM_DIR ": start kvpoold, or choose with --socket or --name", what);
	return KVCTL_NO_POOL;
}

int pool_find(struct pool *pool, const char *socket, const char *name)
{
	struct search search = {.name = name, .owners = {0, geteuid()}, .n_owners = 2};
	char socket_path[KVP_SOCKET_MAX], pool_file[PATH_MAX];
	struct dirent *entry;
	DIR *dir;

	if (socket || !name) {
		if (pool_socket_path(socket, socket_path))
			return KVCTL_USAGE;
		search.socket = socket_path;
		socket_real_path(socket_path, search.socket_real);
		search_add_owner(&search, search.socket_real, false);
		search_add_owner(&search, search.socket_real, true);
	} else {
		snprintf(pool_file, sizeof(pool_file), POOL_SHM_DIR "/kvpool.%s", name);
		search_add_owner(&search, pool_file, false);
	}
	dir = opendir(POOL_SHM_DIR);
	if (!dir) {
		complain("cannot list " POOL_SHM_DIR ": %s; is it mounted?", strerror(errno));
		return KVCTL_NO_POOL;
	}
	while ((entry = readdir(dir))) {
		char path[POOL_PATH_MAX], uuid_text[POOL_UUID_TEXT];
		const char *rest = pool_uuid_of_name(entry->d_name, uuid_text);

		if (!rest || strcmp(rest, "header"))
			continue;
		snprintf(path, sizeof(path), POOL_SHM_DIR "/kvp-%s-header", uuid_text);
		search_try(&search, pool, path, uuid_text);
	}
	closedir(dir);
	if (!search.found)
		return search_failed(&search);
	return pool_look(pool);
}

static bool boot_is_same(const uint8_t boot_id[16])
{
	char text[POOL_UUID_TEXT] = "";
	uint8_t now[16];
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return true; /* not to be told: the heartbeat decides */
	if (pool_read(fd, text, POOL_UUID_TEXT - 1, 0) < 0 || !pool_uuid_parse(text, now))
		memcpy(now, boot_id, 16);
	close(fd);
	return !memcmp(now, boot_id, 16);
}

/* For people only: a pid of another pid namespace may read as gone, or as somebody else. */
static char pid_state(int32_t pid)
{
	char path[64], text[512] = "";
	char *at;
	int fd;

	if (pid <= 0 || (kill(pid, 0) < 0 && errno == ESRCH))
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 'S';
	if (pread(fd, text, sizeof(text) - 1, 0) < 0)
		text[0] = 0;
	close(fd);
	at = strrchr(text, ')'); /* the name before may hold anything */
	return at && at[1] == ' ' && at[2] ? at[2] : 'S';
}

/* The kernel's word: a daemon holds this lock on the header for as long as it lives, in whatever pid namespace. */
static bool daemon_lives(int header_fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

	return fcntl(header_fd, F_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}

int pool_look(struct pool *pool)
{
	char path[POOL_PATH_MAX];
	bool lives = false;
	struct stat st;
	uint64_t beat, now;
	int fd, r;

	pool_path(pool, path, "header");
	fd = pool_object_open(pool, path, &st);
	r = fd < 0 ? fd : pool_read(fd, &pool->header, sizeof(pool->header), 0);
	if (fd >= 0) {
		lives = daemon_lives(fd);
		close(fd);
	}
	if (r < 0) {
		complain("%s: gone, or cut short (%s): the pool was purged; look again", path, strerror(-r));
		return KVCTL_NO_POOL;
	}
	now = now_ns(); /* after the read: a heartbeat is never of the future */
	beat = atomic_load(&pool->header.heartbeat_ns);
	pool->same_boot = boot_is_same(pool->header.boot_id);
	pool->heartbeat_age_s = pool->same_boot && beat && beat <= now ? (double)(now - beat) / 1e9 : -1;
	pool->pid_state = lives ? pid_state(pool->header.daemon_pid) : 0;
	if (lives && !pool->pid_state)
		pool->pid_state = 'S'; /* in a pid namespace that is not ours */
	if (atomic_load(&pool->header.state) == KVP_DAEMON_STOPPED)
		pool->life = POOL_STOPPED;
	else if (!lives || pool->heartbeat_age_s < 0 || pool->heartbeat_age_s > (double)POOL_SILENT_NS / 1e9)
		pool->life = POOL_SILENT;
	else if (atomic_load(&pool->header.state) == KVP_DAEMON_SERVING)
		pool->life = POOL_SERVING;
	else
		pool->life = POOL_STARTING;
	return 0;
}

bool pool_up(const struct pool *pool)
{
	return pool->life == POOL_SERVING;
}

const char *pool_life_name(enum pool_life life)
{
	static const char *const names[] = {
		[POOL_SERVING] = "serving",
		[POOL_STARTING] = "starting",
		[POOL_STOPPED] = "stopped",
		[POOL_SILENT] = "silent",
	};

	return names[life];
}

static const char *pid_state_text(char state)
{
	switch (state) {
	case 0:
		return "gone";
	case 'T':
	case 't':
		return "alive, stopped by a signal or debugger";
	case 'D':
		return "alive, waiting in the kernel";
	case 'Z':
	case 'X':
		return "dying";
	default:
		return "alive";
	}
}

const char *pool_life_text(const struct pool *pool, char *text, size_t room)
{
	char age[48] = "none";

	switch (pool->life) {
	case POOL_SERVING:
		snprintf(text, room, "serving");
		break;
	case POOL_STARTING:
		snprintf(text, room, "starting");
		break;
	case POOL_STOPPED:
		snprintf(text, room, "stopped in order (memory kept)");
		break;
	case POOL_SILENT:
		if (pool->heartbeat_age_s >= 0)
			snprintf(age, sizeof(age), "%.1f s old", pool->heartbeat_age_s);
		else if (!pool->same_boot)
			snprintf(age, sizeof(age), "of an earlier boot");
		snprintf(text, room, "not answering%s: heartbeat %s, pid %d %s",
			atomic_load(&pool->header.state) == KVP_DAEMON_STARTING ? " (starting)" : "", age,
			(int)pool->header.daemon_pid, pid_state_text(pool->pid_state));
		break;
	}
	return text;
}
