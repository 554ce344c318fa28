/*
 * purge.c - kvctl purge: remove a pool from memory, through its daemon or, without one, under the pool's lock
 *
 * The lock on /dev/shm/kvpool.<NAME> is what a daemon holds for life: whoever has it is alone.  Order without a daemon:
 * objects, header, pool file last, so that a kill in between leaves what the next purge or the next daemon finds.
 */
#define _GNU_SOURCE 1
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "purge.h"

#include "admin.h"
#include "kvctl.h"
#include "option.h"
#include "pool.h"
#include "quantity.h"

#define DEADLINE_NS 10000000000ull

struct sweep {
	uid_t uid;
	unsigned n_slabs, n_other, n_failed;
	uint64_t bytes;
};

static void sweep_remove(struct sweep *sweep, const char *path)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return;
	if (!S_ISREG(st.st_mode) || st.st_uid != sweep->uid) {
		complain("purge: %s is not the pool's (owner uid %u, or no file): left alone", path, st.st_uid);
		return;
	}
	if (unlink(path) < 0) {
		complain("purge: cannot remove %s: %s", path, strerror(errno));
		sweep->n_failed++;
		return;
	}
	sweep->bytes += (uint64_t)st.st_blocks * 512;
	if (strstr(path, "-slab-") || strstr(path, "-stage-"))
		sweep->n_slabs++;
	else
		sweep->n_other++;
}

/* All objects of one pool in one directory, but its header. */
static int sweep_dir(struct sweep *sweep, const char *in, const char *uuid)
{
	char path[POOL_PATH_MAX + 256], found[POOL_UUID_TEXT];
	DIR *dir = opendir(in);
	struct dirent *entry;

	if (!dir) {
		complain("purge: cannot list %s: %s", in, strerror(errno));
		return KVCTL_FAILED;
	}
	while ((entry = readdir(dir))) {
		const char *rest = pool_uuid_of_name(entry->d_name, found);

		if (!rest || strcmp(found, uuid) || !strcmp(rest, "header"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", in, entry->d_name);
		sweep_remove(sweep, path);
	}
	closedir(dir);
	return 0;
}

static int sweep_pool(struct sweep *sweep, const char *uuid)
{
	char path[POOL_PATH_MAX];
	int r = sweep_dir(sweep, POOL_SHM_DIR, uuid);

	if (r)
		return r;
	snprintf(path, sizeof(path), POOL_SHM_DIR "/kvp-%s-header", uuid);
	sweep_remove(sweep, path);
	return 0;
}

/* A socket file of the pool at which nobody listens; the service manager listens at its own. */
static void sweep_socket(struct sweep *sweep, const char *path)
{
	struct stat st;
	int fd;

	if (lstat(path, &st) < 0 || !S_ISSOCK(st.st_mode) || st.st_uid != sweep->uid)
		return;
	fd = admin_connect(path);
	if (fd >= 0)
		close(fd);
	if (fd != -ECONNREFUSED)
		return;
	if (unlink(path) < 0)
		complain("purge: cannot remove the socket %s: %s", path, strerror(errno));
	else
		sweep->n_other++;
}

/* Those whose paths the header tells; of --listen and --admin-socket only the daemon knows, and the next one takes them
   over. */
static void sweep_sockets(struct sweep *sweep, const struct pool *pool)
{
	char path[KVP_SOCKET_MAX];

	if (pool->socket[0] != '/')
		return;
	sweep_socket(sweep, pool->socket);
	if (snprintf(path, sizeof(path), "%s.admin", pool->socket) < (int)sizeof(path))
		sweep_socket(sweep, path);
}

/* Locked and still the file of that name, or -1 (said). A missing one is made, so that no daemon starts meanwhile. */
static int pool_file_lock(const struct pool *pool, char path[POOL_PATH_MAX], struct stat *st)
{
	struct stat at;
	int fd;

	snprintf(path, POOL_PATH_MAX, POOL_SHM_DIR "/kvpool.%s", pool->name);
	/* O_CREAT on another user's existing file in a sticky directory is refused, even to root
	   (fs.protected_regular) */
	fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 && errno == ENOENT)
		fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0) {
		complain("purge: cannot open the pool's file %s: %s: only root or its owner (uid %u) may purge", path,
			strerror(errno), pool->uid);
		return -1;
	}
	if (fstat(fd, st) < 0 || !S_ISREG(st->st_mode) || (st->st_uid != pool->uid && st->st_uid != geteuid())) {
		complain(
			"purge: %s is not the pool's (owner uid %u, the pool's is %u): remove it by hand if you know it",
			path, st->st_uid, pool->uid);
		close(fd);
		return -1;
	}
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		complain("purge: pool %s: its daemon (pid %d) holds the lock on %s, so it lives or is dying, but does "
			 "not answer at its admin socket: stop or kill it, then purge again",
			pool->name, (int)pool->header.daemon_pid, path);
		close(fd);
		return -1;
	}
	if (stat(path, &at) < 0 || at.st_ino != st->st_ino || at.st_dev != st->st_dev) {
		complain("purge: %s was just replaced: another purge, or a start; look again", path);
		close(fd);
		return -1;
	}
	return fd;
}

int purge_without_daemon(const char *socket, const char *name, bool quiet)
{
	char path[POOL_PATH_MAX], text[POOL_UUID_TEXT] = "", size[QUANTITY_ROOM];
	struct sweep sweep = {0};
	struct pool pool;
	uint8_t uuid[16];
	struct stat st;
	int fd, r = pool_find(&pool, socket, name);

	if (r)
		return r;
	if (geteuid() != 0 && geteuid() != pool.uid) {
		complain("purge: pool %s is uid %u's: only root or that user may purge it without its daemon",
			pool.name, pool.uid);
		return KVCTL_FAILED;
	}
	fd = pool_file_lock(&pool, path, &st);
	if (fd < 0)
		return KVCTL_FAILED;
	sweep.uid = pool.uid;
	r = pool.header.huge_dir[0] ? sweep_dir(&sweep, pool.header.huge_dir, pool.uuid) : 0;
	if (!r)
		r = sweep_pool(&sweep, pool.uuid);
	/* the file may name another pool: one that a later start made and that lost its header */
	if (!r && pool_read(fd, text, POOL_UUID_TEXT - 1, 0) == 0 && pool_uuid_parse(text, uuid) &&
		strcmp(text, pool.uuid))
		r = sweep_pool(&sweep, text);
	if (!r && !sweep.n_failed && unlink(path) < 0) {
		complain("purge: cannot remove %s: %s", path, strerror(errno));
		r = KVCTL_FAILED;
	}
	close(fd);
	if (!r && !sweep.n_failed)
		sweep_sockets(&sweep, &pool);
	if (!quiet)
		printf("purged pool %s: %u slabs and %u other objects, %s freed\n", pool.name, sweep.n_slabs,
			sweep.n_other, quantity_bytes(size, sweep.bytes));
	return r || sweep.n_failed ? KVCTL_FAILED : KVCTL_DONE;
}

/* The daemon answers first and removes then, its file last. Another file of that name is a next daemon's. */
static bool wait_until_gone(const char *pool_file, ino_t inode, uint64_t deadline_ns)
{
	struct stat st;

	while (stat(pool_file, &st) == 0 && st.st_ino == inode) {
		if (now_ns() >= deadline_ns)
			return false;
		nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	}
	return true;
}

/* By the daemon. Return: exit code. */
static int purge_by_daemon(
	const struct options *options, const char *admin, int fd, const char *admin_path, uint64_t deadline_ns)
{
	struct kvp_wire_admin_done done = {0};
	struct kvp_wire_admin ask = {.deadline_ns = deadline_ns};
	char path[POOL_PATH_MAX] = "";
	struct stat st = {0};
	struct pool pool;
	int r;

	/* with --admin alone nothing says which pool that is: its daemon's word has to do */
	if ((!admin || options->socket || options->name) && pool_find(&pool, options->socket, options->name) == 0) {
		snprintf(path, sizeof(path), POOL_SHM_DIR "/kvpool.%s", pool.name);
		if (stat(path, &st) < 0)
			path[0] = 0;
	}
	r = admin_ask(fd, "purge", KVP_MSG_PURGE, &ask, sizeof(ask), deadline_ns, &done);
	if (r < 0)
		admin_complain("purge", admin_path, r);
	if (r == -ETIMEDOUT)
		admin_complain_late("purge", fd);
	if (r)
		return r == -ETIMEDOUT || r == -EAGAIN ? KVCTL_DOWN : KVCTL_FAILED;
	if (path[0] && !wait_until_gone(path, st.st_ino, deadline_ns)) {
		complain("purge: the daemon has said yes, but %s is still there at the deadline: look with kvctl stats",
			path);
		return KVCTL_DOWN;
	}
	printf("purged: the daemon has given back all memory of its pool and ended\n");
	return KVCTL_DONE;
}

int purge_command(int argc, char **argv)
{
	static const struct option longs[] = {OPTION_POOL, {"deadline", required_argument, NULL, 'd'},
		{"admin", required_argument, NULL, 'a'}, OPTION_LAST};
	struct options options = {.command = "purge", .longs = longs, .argc = argc, .argv = argv};
	char path[KVP_SOCKET_MAX];
	uint64_t limit_ns = DEADLINE_NS, deadline_ns;
	const char *admin = NULL;
	int c, fd, r;

	c = admin_option_next(&options, &admin, &limit_ns);
	if (c != OPTION_END)
		return option_exit(c);
	r = admin_socket_path(&options, admin, path);
	if (r)
		return r;
	deadline_ns = now_ns() + limit_ns;
	fd = admin_connect_in(path, limit_ns);
	if (fd < 0) {
		if (!admin_nobody(fd)) {
			admin_complain("purge", path, fd);
			return fd == -ETIMEDOUT ? KVCTL_DOWN : KVCTL_FAILED;
		}
		return output_end(purge_without_daemon(options.socket, options.name, false));
	}
	r = purge_by_daemon(&options, admin, fd, path, deadline_ns);
	close(fd);
	return output_end(r);
}
