/* pool.c - see pool.h */
#include "pool.h"
#include "pool_stats.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <uuid/uuid.h>

#include "log.h"
#include "notify.h"
#include "loop.h"
#include "pages.h"
#include "shm.h"

#define POOL_FILE_BYTES 64 /* "<uuid> <pid>\n", padded with spaces */
#define EPOCH_STARTS 4096ull /* of one pool, before its numbers reach those another one may begin with */
#define EPOCH_FIRST_MASK (((1ull << 52) - 1) & ~(EPOCH_STARTS - 1)) /* exact in the numbers of JSON readers */
#define DYING_WAIT_MS 10000

bool pool_process_is_gone(pid_t pid)
{
	char path[64], text[4096];
	const char *pending;
	FILE *file;
	size_t n;

	if (pid <= 0 || (kill(pid, 0) < 0 && errno == ESRCH))
		return true;
	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return true;
	n = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[n] = 0;
	if (strstr(text, "State:\tZ") || strstr(text, "State:\tX"))
		return true;
	pending = strstr(text, "ShdPnd:\t");
	return pending && (strtoull(pending + 8, NULL, 16) >> (SIGKILL - 1) & 1);
}

static pid_t pool_file_pid(int fd, char uuid_text[UUID_STR_LEN])
{
	char text[POOL_FILE_BYTES + 1] = "";
	int pid = 0;

	uuid_text[0] = 0;
	if (pread(fd, text, POOL_FILE_BYTES, 0) < 0)
		return 0;
	if (sscanf(text, "%36s %d", uuid_text, &pid) < 1)
		uuid_text[0] = 0;
	return pid;
}

/* Lock the pool's file, and be sure that the name still is that file (a purge may have taken it away meanwhile). */
static int pool_lock(struct pool *pool, const char *name, char message[256])
{
	char uuid_text[UUID_STR_LEN];
	uint64_t deadline = loop_now() + DYING_WAIT_MS * 1000000ull;
	bool said = false;
	struct stat st, at;

	snprintf(pool->file_path, sizeof(pool->file_path), SHM_DIR "/kvpool.%s", name);
	for (;;) {
		int fd = open(pool->file_path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

		if (fd < 0) {
			snprintf(message, 256, "cannot open the pool's file %s: %s%s", pool->file_path, strerror(errno),
				errno == EACCES	  ? "; it belongs to another user: choose another --name"
				: errno == ENOENT ? "; there is no " SHM_DIR ": mkdir it and mount a tmpfs there"
						  : "");
			return -errno;
		}
		if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_nlink != 1) {
			close(fd);
			snprintf(message, 256,
				"%s is not ours (owner, type or links): choose another --name, or remove it",
				pool->file_path);
			return -EPERM;
		}
		if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
			if (stat(pool->file_path, &at) == 0 && at.st_ino == st.st_ino && at.st_dev == st.st_dev) {
				pool->file_fd = fd;
				return 0;
			}
			close(fd);
			continue;
		}
		pid_t pid = pool_file_pid(fd, uuid_text);

		close(fd);
		if (!pool_process_is_gone(pid) || loop_now() > deadline) {
			snprintf(message, 256,
				"pool %s is served by another kvpoold (pid %d holds %s): stop it, or choose another --name",
				name, (int)pid, pool->file_path);
			return -EBUSY;
		}
		if (!said)
			log_warn("pool %s: its last daemon (pid %d) is still dying; waiting up to %d s", name, (int)pid,
				DYING_WAIT_MS / 1000);
		said = true;
		nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	}
}

static int pool_file_write(struct pool *pool)
{
	char text[POOL_FILE_BYTES + 1], uuid_text[UUID_STR_LEN];

	uuid_unparse_lower(pool->uuid, uuid_text);
	snprintf(text, sizeof(text), "%s %-26d\n", uuid_text, (int)getpid());
	return pwrite(pool->file_fd, text, strlen(text), 0) == (ssize_t)strlen(text) ? 0 : -EIO;
}

static void pool_stats_parts(struct pool *pool)
{
	pool->ns_rows = (struct kvp_ns_row *)(void *)((char *)pool->stats + pool->stats->ns_off);
	pool->session_rows = (struct kvp_session_row *)(void *)((char *)pool->stats + pool->stats->session_off);
	pool->slab_rows = (struct kvp_slab_row *)(void *)((char *)pool->stats + pool->stats->slab_off);
	pool->curve = (struct kvp_curve *)(void *)((char *)pool->stats + pool->stats->curve_off);
}

/* Make or find one object of fixed length, allocate it whole and map it. */
static void *pool_object(struct pool *pool, const char *rest, uint64_t bytes, bool make, int *fd_out, char message[256])
{
	char name[KVP_OBJECT_NAME_MAX];
	uint64_t have = bytes;
	void *map;
	int fd, r;

	shm_object_name(name, pool->uuid, "%s", rest);
	fd = make ? shm_make(name, bytes, pool->group) : shm_find(name, &have, pool->group);
	if (fd < 0 || have != bytes) {
		snprintf(message, 256, "%s" SHM_DIR "%s: %s", make ? "cannot make " : "", name,
			fd < 0 ? strerror(-fd) : "wrong length");
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	r = shm_reserve(fd, 0, bytes);
	map = r < 0 ? NULL : shm_map(fd, bytes);
	if (!map) {
		snprintf(message, 256, SHM_DIR "%s: no room for %" PRIu64 " bytes (%s): enlarge " SHM_DIR, name, bytes,
			strerror(r < 0 ? -r : errno));
		close(fd);
		return NULL;
	}
	*fd_out = fd;
	return map;
}

static uint64_t clock_base_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec - loop_now();
}

uint64_t pool_clock(const struct pool *pool)
{
	return pool->header->clock_base + loop_now();
}

static void pool_header_fill(struct pool *pool, const struct config *config)
{
	struct kvp_pool_header *header = pool->header;
	uint64_t max_places = 2 * (config->pool_bytes / config->slab_bytes) + 64;
	FILE *file;
	char boot[UUID_STR_LEN] = "";

	header->layout_major = KVP_LAYOUT_MAJOR;
	header->layout_minor = KVP_LAYOUT_MINOR;
	header->endian = KVP_ENDIAN;
	header->header_bytes = sizeof(*header);
	memcpy(header->uuid, pool->uuid, 16);
	header->max_places = (uint32_t)max_places;
	header->slab_bytes = config->slab_bytes;
	header->pages = config->pages;
	header->clock_base = clock_base_now();
	/* a slab holds at most slab / 4096 blocks, whatever the namespace */
	header->pin_stride =
		(config->slab_bytes / KVP_PAGE * sizeof(struct kvp_pin) + KVP_PAGE - 1) & ~(uint64_t)(KVP_PAGE - 1);
	snprintf(header->pool_name, sizeof(header->pool_name), "%s", config->name);
	file = fopen("/proc/sys/kernel/random/boot_id", "re");
	if (file) {
		if (fscanf(file, "%36s", boot) != 1 || uuid_parse(boot, header->boot_id) < 0)
			memset(header->boot_id, 0, 16);
		fclose(file);
	}
	header->magic = KVP_MAGIC_HEADER;
}

static bool pool_header_fits(const struct kvp_pool_header *header, const struct pool *pool, char message[256])
{
	if (header->magic != KVP_MAGIC_HEADER || header->endian != KVP_ENDIAN || memcmp(header->uuid, pool->uuid, 16)) {
		snprintf(message, 256, "its header is not one of ours, or of another byte order");
		return false;
	}
	if (header->layout_major != KVP_LAYOUT_MAJOR || header->header_bytes < KVP_POOL_HEADER_LEAST ||
		header->header_bytes > KVP_CRASH_OFF) {
		snprintf(message, 256,
			"its layout is version %u.%u with a header of %" PRIu64 " bytes, this kvpoold's is %u.%u",
			header->layout_major, header->layout_minor, header->header_bytes, KVP_LAYOUT_MAJOR,
			KVP_LAYOUT_MINOR);
		return false;
	}
	return true;
}

/* Of what another minor version left: what is not known here is nobody's from now on. */
static void pool_header_renew(struct kvp_pool_header *header)
{
	if (header->layout_minor != KVP_LAYOUT_MINOR)
		log_info("the kvpoold before had layout %u.%u, this one has %u.%u", header->layout_major,
			header->layout_minor, KVP_LAYOUT_MAJOR, KVP_LAYOUT_MINOR);
	if (header->header_bytes > sizeof(*header))
		memset(header + 1, 0, header->header_bytes - sizeof(*header));
	header->header_bytes = sizeof(*header);
	header->layout_minor = KVP_LAYOUT_MINOR;
	if (!header->clock_base) /* 1.0 went by the wall clock */
		header->clock_base = clock_base_now();
}

/* Objects of an earlier daemon: map them if they fit. Return: 0; -errno with the reason in @message. */
static int pool_adopt(struct pool *pool, char message[256])
{
	int r;

	pool->header = pool_object(pool, "header", KVP_PAGE, false, &pool->header_fd, message);
	if (!pool->header)
		return -ENOENT;
	if (!pool_header_fits(pool->header, pool, message))
		return -EPROTO;
	r = pool_stats_renew(pool, message);
	if (r < 0)
		return r;
	pool->stats =
		pool_object(pool, "stats", pool_stats_bytes(pool->header->max_places), false, &pool->stats_fd, message);
	if (!pool->stats)
		return -ENOENT;
	if (!pool_stats_fit(pool->stats, pool->uuid, pool->header->max_places)) {
		snprintf(message, 256, "its stats object does not fit this kvpoold");
		return -EPROTO;
	}
	pool_header_renew(pool->header);
	pool->stats->layout_minor = KVP_LAYOUT_MINOR;
	pool_stats_parts(pool);
	if (atomic_load(&pool->stats->version) & 1) /* killed between begin and end; gauges are counted anew */
		atomic_fetch_add(&pool->stats->version, 1);
	return 0;
}

static void pool_unmap(struct pool *pool)
{
	if (pool->header) {
		munmap(pool->header, KVP_PAGE);
		close(pool->header_fd);
	}
	if (pool->stats) {
		munmap(pool->stats, pool_stats_bytes(pool->stats->max_places));
		close(pool->stats_fd);
	}
	pool->header = NULL;
	pool->stats = NULL;
}

static int pool_make(struct pool *pool, const struct config *config, char message[256])
{
	uint64_t epoch;

	uuid_generate_random(pool->uuid);
	if (pool_file_write(pool) < 0) {
		snprintf(message, 256, "cannot write %s: no room in " SHM_DIR "? enlarge it", pool->file_path);
		return -ENOSPC;
	}
	pool->header = pool_object(pool, "header", KVP_PAGE, true, &pool->header_fd, message);
	if (!pool->header)
		return -ENOSPC;
	pool_header_fill(pool, config);
	/* an engine that compares epochs must not take a new pool for the old one: each begins somewhere else */
	randombytes_buf(&epoch, sizeof(epoch));
	atomic_store(&pool->header->epoch, (epoch & EPOCH_FIRST_MASK) + EPOCH_STARTS);
	pool->stats =
		pool_object(pool, "stats", pool_stats_bytes(pool->header->max_places), true, &pool->stats_fd, message);
	if (!pool->stats)
		return -ENOSPC;
	pool_stats_fill(pool->stats, pool->uuid, pool->header->max_places);
	pool_stats_parts(pool);
	return 0;
}

int pool_group(const struct config *config, gid_t *gid, char message[256])
{
	const struct group *group;

	*gid = (gid_t)-1;
	if (!config->group[0])
		return 0;
	group = getgrnam(config->group);
	if (!group) {
		snprintf(message, 256,
			"group = \"%s\": there is no such group; make it with groupadd, or leave group out",
			config->group);
		config_where(config, message);
		return -EINVAL;
	}
	*gid = group->gr_gid;
	return 0;
}

/* This daemon's I/O lock file: held by its rings, so that a successor knows when its last I/O has ended. */
static int pool_io_lock(struct pool *pool, char message[256])
{
	char name[KVP_OBJECT_NAME_MAX];
	int fd;

	shm_object_name(name, pool->uuid, "io-%" PRIu64, (uint64_t)atomic_load(&pool->header->epoch));
	shm_remove(name);
	fd = shm_make(name, 0, (gid_t)-1);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0) {
		snprintf(message, 256, "cannot make and lock " SHM_DIR "%s: %s", name, strerror(fd < 0 ? -fd : errno));
		if (fd >= 0)
			close(fd);
		return -EIO;
	}
	pool->io_lock_fd = fd;
	return 0;
}

/* Who only looks asks the kernel whether this lock is held (F_GETLK): no pid to be reused, nothing to be disturbed.  Of
   the open file description, which is nobody's but ours: clients get descriptors of their own. */
static int pool_life_lock(const struct pool *pool, char message[256])
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

	if (fcntl(pool->header_fd, F_OFD_SETLK, &lock) == 0)
		return 0;
	snprintf(message, 256, "cannot lock the pool's header in " SHM_DIR ": %s", strerror(errno));
	return -EIO;
}

int pool_open(struct pool *pool, const struct config *config, char message[256])
{
	char uuid_text[UUID_STR_LEN], why[256];
	int r;

	memset(pool, 0, sizeof(*pool));
	pool->file_fd = pool->io_lock_fd = -1;
	r = pool_group(config, &pool->group, message);
	if (r < 0)
		return r;
	r = pool_lock(pool, config->name, message);
	if (r < 0)
		return r;
	pool_file_pid(pool->file_fd, uuid_text);
	if (uuid_text[0] && uuid_parse(uuid_text, pool->uuid) == 0) {
		r = pool_adopt(pool, why);
		if (r == 0) {
			pool->found = true;
			r = pool_file_write(pool); /* our pid */
		} else {
			unsigned n;

			pool_unmap(pool);
			n = shm_remove_all(pool->uuid, NULL, NULL);
			pages_remove_all(pool->uuid, NULL, config, NULL, NULL);
			log_warn("pool %s of an earlier daemon is dropped (%u objects): %s", config->name, n, why);
		}
	}
	if (!pool->found)
		r = pool_make(pool, config, message);
	if (r == 0)
		r = pool_life_lock(pool, message);
	if (r < 0)
		return r;
	memcpy(&pool->before, pool->header, sizeof(pool->before));
	atomic_store(&pool->header->state, KVP_DAEMON_STARTING);
	atomic_fetch_add(&pool->header->epoch, 1);
	atomic_store(&pool->header->heartbeat_ns, loop_now());
	pool->header->daemon_pid = getpid();
	pool->header->pool_bytes = config->pool_bytes;
	snprintf(pool->header->socket, sizeof(pool->header->socket), "%s", config->socket);
	gauge_add(&pool->stats->counters.starts, 1);
	gauge_set(&pool->stats->counters.pool_bytes, config->pool_bytes);
	pool->meta_bytes = KVP_PAGE + pool->stats->object_bytes;
	return pool_io_lock(pool, message);
}

void pool_put_back(struct pool *pool)
{
	struct kvp_pool_header *header = pool->header;
	const struct kvp_pool_header *before = &pool->before;

	header->daemon_pid = before->daemon_pid;
	memcpy(header->socket, before->socket, sizeof(header->socket));
	header->pool_bytes = before->pool_bytes;
	gauge_set(&pool->stats->counters.pool_bytes, before->pool_bytes);
	atomic_store(&header->heartbeat_ns, atomic_load(&before->heartbeat_ns));
	atomic_store(&header->state, atomic_load(&before->state)); /* after a kill that is not in order */
}

void pool_close(struct pool *pool)
{
	pool_unmap(pool);
	if (pool->io_lock_fd >= 0)
		close(pool->io_lock_fd);
	if (pool->file_fd >= 0)
		close(pool->file_fd);
	pool->file_fd = pool->io_lock_fd = -1;
}

void pool_purge(struct pool *pool, const struct config *config)
{
	unsigned n = shm_remove_all(pool->uuid, NULL, NULL);

	pages_remove_all(pool->uuid, pool->header, config, NULL, NULL);

	unlink(pool->file_path);
	log_info("pool %s: %u objects removed from " SHM_DIR, pool->file_path + sizeof(SHM_DIR "/kvpool.") - 1, n + 1);
}

bool pool_old_io(struct pool *pool)
{
	char prefix[KVP_OBJECT_NAME_MAX], own[KVP_OBJECT_NAME_MAX];
	DIR *dir = opendir(SHM_DIR);
	struct dirent *entry;
	bool runs = false;

	if (!dir)
		return false;
	shm_object_name(prefix, pool->uuid, "io-");
	shm_object_name(own, pool->uuid, "io-%" PRIu64, (uint64_t)atomic_load(&pool->header->epoch));
	while ((entry = readdir(dir))) {
		int fd;

		if (strncmp(entry->d_name, prefix + 1, strlen(prefix) - 1) || !strcmp(entry->d_name, own + 1))
			continue;
		fd = openat(dirfd(dir), entry->d_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			unlinkat(dirfd(dir), entry->d_name, 0);
		else
			runs = true;
		close(fd);
	}
	closedir(dir);
	return runs;
}

void pool_progress(struct pool *pool, const char *what)
{
	atomic_store(&pool->header->heartbeat_ns, loop_now());
	notify_say(NOTIFY_START_MS, "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=%s", what);
}

/* Seqlock of one writer: odd first, then the changes (release fence), then even (release). */
void pool_stats_begin(struct pool *pool)
{
	gauge_add(&pool->stats->version, 1);
	atomic_thread_fence(memory_order_release);
}

void pool_stats_end(struct pool *pool)
{
	atomic_store_explicit(&pool->stats->version,
		atomic_load_explicit(&pool->stats->version, memory_order_relaxed) + 1, memory_order_release);
}
