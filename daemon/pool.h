/*
 * pool.h - the pool as an object of the host: its file and lock, its UUID, header and stats objects
 *
 * One daemon a pool: the lock on /dev/shm/kvpool.<NAME> is taken before anything else is touched.  Clients never get a
 * descriptor of that file, so none can hold the lock.
 */
#ifndef KVPOOL_POOL_H
#define KVPOOL_POOL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "config.h"
#include "kvpool_shm.h"
#include "kvpool_stats.h"

struct pool {
	uint8_t uuid[16];
	bool found; /* objects of an earlier daemon were there and fit */
	int file_fd; /* locked */
	gid_t group; /* of operators, or (gid_t)-1 */
	struct kvp_pool_header *header;
	int header_fd;
	struct kvp_stats *stats;
	int stats_fd;
	struct kvp_ns_row *ns_rows;
	struct kvp_session_row *session_rows;
	struct kvp_slab_row *slab_rows;
	struct kvp_curve *curve;
	uint64_t meta_bytes; /* shared memory allocated for other things than block bytes */
	char file_path[96];
	struct kvp_pool_header before; /* as the daemon before this one left it */
	int io_lock_fd; /* flock()ed file of this daemon's rings; the spill store's ring takes it over */
};

/**
 * pool_open() - lock the pool and find or make its header and stats
 * @message: 256 bytes: object, cause, way out
 * Return: 0; -EBUSY: another daemon serves it; -errno.
 */
int pool_open(struct pool *pool, const struct config *config, char message[256]);

/** pool_group() - the operators' group; -1: none. Return: 0; -EINVAL: there is no such group. */
int pool_group(const struct config *config, gid_t *gid, char message[256]);

/** pool_process_is_gone() - dead, or on its way out.  A number of another pid namespace reads as gone. */
bool pool_process_is_gone(pid_t pid);

/** pool_put_back() - this daemon did not get as far as serving: who looks sees the one before it, as that was left */
void pool_put_back(struct pool *pool);

/** pool_close() - unmap; the objects stay for the next daemon. */
void pool_close(struct pool *pool);

/** pool_purge() - remove all objects of the pool, its file last */
void pool_purge(struct pool *pool, const struct config *config);

/** pool_old_io() - does I/O of a dead daemon of this pool still run? (its rings' lock files) Removes the files of those
 *  that ended. */
bool pool_old_io(struct pool *pool);

/** pool_progress() - the start goes on: tell the service manager, and who looks at the header, not to lose patience */
void pool_progress(struct pool *pool, const char *what);

/** pool_clock() - nanoseconds that never go back while the pool is there, whoever serves it, whatever becomes of the wall clock; from
 *  the wall clock's time when the pool was made */
uint64_t pool_clock(const struct pool *pool);

/** pool_stats_begin(), pool_stats_end() - around changes that must be seen together */
void pool_stats_begin(struct pool *pool);
void pool_stats_end(struct pool *pool);

static inline void gauge_add(_Atomic uint64_t *gauge, int64_t n)
{
	/* one writer: no need for a locked add */
	atomic_store_explicit(
		gauge, atomic_load_explicit(gauge, memory_order_relaxed) + (uint64_t)n, memory_order_relaxed);
}
static inline void gauge_set(_Atomic uint64_t *gauge, uint64_t n)
{
	atomic_store_explicit(gauge, n, memory_order_relaxed);
}

#endif
