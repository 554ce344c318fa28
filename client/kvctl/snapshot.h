/*
 * snapshot.h - a copy of the stats object: the counters, and the rows in use
 */
#ifndef KVCTL_SNAPSHOT_H
#define KVCTL_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>

#include "kvpool_stats.h"
#include "pool.h"

struct snapshot_slab {
	uint32_t place;
	struct kvp_slab_row row;
};

struct snapshot {
	struct kvp_stats head;
	struct kvp_ns_row *ns; /* only rows in use */
	unsigned n_ns;
	struct kvp_session_row *sessions;
	unsigned n_sessions;
	struct snapshot_slab *slabs;
	unsigned n_slabs;
	struct kvp_curve curve;
	bool has_curve;
	uint64_t version;
	bool inconsistent; /* the daemon changed it during every try, or was killed while it did: sums may not add up */
};

/**
 * snapshot_take() - copy the stats object of @pool
 * @patient: try for a second, not a tenth, to get a consistent copy
 * Return: 0; KVCTL_NO_POOL: it cannot be read (said).
 */
int snapshot_take(struct snapshot *snapshot, const struct pool *pool, bool patient);
void snapshot_free(struct snapshot *snapshot);

/** snapshot_version() - the version as it is now. Return: 0; -errno. */
int snapshot_version(const struct pool *pool, uint64_t *version);

const struct kvp_ns_row *snapshot_ns(const struct snapshot *snapshot, uint64_t ns_id);

#endif
