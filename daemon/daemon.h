/*
 * daemon.h - the daemon as a whole: what its parts reach through
 *
 * One thread, the loop, owns all of it.  Parts call downwards: peer -> session, namespace -> block -> tier, slab,
 * index, policy -> pool, shm; nobody calls up but through callbacks.
 */
#ifndef KVPOOL_DAEMON_H
#define KVPOOL_DAEMON_H

#include "budget.h"
#include "config.h"
#include "loop.h"
#include "pages.h"
#include "pool.h"
#include "spill.h"
#include "topology.h"

struct io;
struct ns;
struct orphans;
struct peer;
struct reuse;
struct session;
struct slab;
struct tier;

struct daemon {
	struct config config;
	struct loop *loop;
	struct pool pool;
	struct topology *topology;

	/* slab.c */
	struct slab **slabs; /* by place; max_places */
	uint64_t budget_bytes; /* for all slabs */
	struct budget_node nodes[TOPOLOGY_NODES_MAX];
	uint64_t slab_bytes_total, slab_bytes_spare;
	uint32_t n_slabs;
	struct maker *maker;
	struct loop_source maker_source;
	uint64_t slab_bytes_moving; /* of the budget: slabs being made, and those being emptied for them */
	uint32_t n_making, n_coming; /* jobs of the maker; those that make a slab */
	struct resize *resize;
	struct pressure *pressure;
	char *slab_failure; /* somebody who fills the budget wants to know: 256 bytes, why one could not be made */
	struct leaving *leaving; /* slabs that clients still have mapped */
	uint64_t leaving_bytes; /* what they occupy: out of the budget */
	bool has_far; /* some node is topology_is_far() */
	bool numa_warned;
	bool pages_here, pages_short_said; /* pages.c's */

	/* namespace.c */
	struct ns *namespaces; /* list */
	unsigned n_namespaces;
	struct ns *ended; /* left to the end of the process */
	uint64_t collects; /* id of the one for which spare slabs are gathered; 0: none */
	uint64_t collects_until_ns;

	/* policy.c */
	uint64_t policy_seed; /* of the hashes of keys in learned orders */

	struct orphans *orphans; /* orphan.c's, or NULL */

	/* session.c */
	struct session *sessions; /* list */
	unsigned n_sessions;
	uint64_t stage_bytes; /* staging areas: beside the pool's budget, bounded by it */
	bool holds_wanted; /* memory was needed and all of it held: sessions past hold-limit lose theirs */
	bool own_holds_wanted; /* likewise all that a quota lets this uid have: its own sessions only */
	uint32_t own_holds_uid;

	/* peer.c */
	struct peer *peers; /* list */
	unsigned n_peers;
	struct loop_timer *beat; /* main.c's; slow while nobody is there, so whoever comes first starts it anew */
	struct loop_timer bury; /* frees the closed ones, outside of everybody's callbacks */

	/* listener.c */
	struct listener *listeners;
	unsigned n_listeners;

	/* tier.c */
	struct tier *tier;
	struct reuse *reuse;
	bool set_aside; /* some slots are TAKEN and nobody's: looked at again by tier_tick() */
	bool old_io; /* a dead daemon's I/O has not ended: its slots are set aside */

	bool served; /* got as far as readiness */
	bool stopping;
	bool purge_at_end;
};

static inline uint32_t daemon_tick(const struct daemon *d)
{
	return atomic_load_explicit(&d->pool.header->tick, memory_order_relaxed);
}
#define TICKS_PER_SECOND (1000 / KVP_TICK_MS)

#endif
