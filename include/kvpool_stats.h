/*
 * kvpool_stats.h - the stats object: all counters, and the roll of namespaces, sessions and slabs
 *
 * Written by the daemon only, mapped by nobody but the daemon and kvctl (0640, operators' group), so that operators see
 * it with the daemon hung or dead, and the next daemon finds what the last one had: an object that no row lists is not
 * part of the pool.  Objects are made before their row is filled, and their row is emptied before they are unlinked.
 *
 * A row counts when its id (number) is not 0: it is stored last (release) and cleared first.
 * Consistency: `version` is odd while the daemon changes rows or the gauges that add up; a reader copies the object,
 * and copies again if version moved or was odd.  It stays odd if the daemon was killed right there.
 */
#ifndef KVPOOL_STATS_H
#define KVPOOL_STATS_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "kvpool.h"

#define KVP_MAGIC_STATS 0x315441545350564bull
#define KVP_STATS_NS_MAX 1024
#define KVP_STATS_SESSIONS_MAX 2048
#define KVP_STATS_SESSION_NS 8
/* The last of layout 1.0 had its first so many counters, and namespaces' rows of this length; earlier ones had them in
   another order. */
#define KVP_COUNTERS_BYTES_1_0 416u
#define KVP_NS_ROW_BYTES_1_0 424u

struct kvp_counters {
#define KVP_COUNTER(name, kind, unit, help) _Atomic uint64_t name;
#include "counters.def"
#undef KVP_COUNTER
};
struct kvp_ns_counters {
#define KVP_NS_COUNTER(name, kind, unit, help) _Atomic uint64_t name;
#include "counters.def"
#undef KVP_NS_COUNTER
};

static_assert(offsetof(struct kvp_counters, oldest_pin_ms) + 8 == KVP_COUNTERS_BYTES_1_0,
	"counters are added at the end of their part: others know those they have by their place");
static_assert(offsetof(struct kvp_counters, spill_not_admitted) == KVP_COUNTERS_BYTES_1_0 + 2 * 8, "likewise");
static_assert(offsetof(struct kvp_ns_counters, pack_percent) == 37 * 8, "likewise");
static_assert(offsetof(struct kvp_ns_counters, requests) == 42 * 8, "likewise");

struct kvp_ns_row {
	_Atomic uint64_t ns_id;
	uint32_t owner_uid;
	uint32_t mode;
	uint32_t flags; /* enum kvp_ns_flags */
	uint32_t block_tokens;
	uint64_t base_id;
	uint64_t block_bytes;
	uint64_t slab_bytes;
	uint32_t slots_per_slab;
	uint16_t layout; /* enum kvp_layout */
	uint8_t type_k, type_v; /* enum kvp_type; 0: OPAQUE */
	char name[KVP_NAME_MAX];
	struct kvp_ns_counters counters;
};

struct kvp_session_row {
	_Atomic uint64_t session_id;
	uint32_t uid;
	uint32_t gid;
	int32_t pid; /* as the kernel told it; shown only */
	uint32_t connected; /* 1: its socket is open */
	uint64_t opened_ns; /* CLOCK_MONOTONIC */
	char comm[32];
	_Atomic uint64_t grants; /* blocks it may store into */
	_Atomic uint64_t pins; /* blocks it held at the last look */
	_Atomic uint64_t slabs; /* slabs it has mapped */
	_Atomic uint64_t lookups;
	_Atomic uint64_t hits_ram;
	_Atomic uint64_t hits_spill;
	_Atomic uint64_t misses;
	_Atomic uint64_t tokens_ram;
	_Atomic uint64_t tokens_spill;
	_Atomic uint64_t copied_bytes;
	_Atomic uint64_t private_blocks;
	_Atomic uint64_t lost_holds;
	_Atomic uint64_t oldest_pin_ms; /* for so long it has held a block, at the last look; 0: it holds none */
	_Atomic uint64_t ns_ids[KVP_STATS_SESSION_NS]; /* it has joined these, as far as they fit; 0: none */
	_Atomic uint64_t staged; /* blocks of its staging areas, which it may store into too */
};
#define KVP_SESSION_ROW_LEAST 232u

enum kvp_slab_use {
	KVP_SLAB_SPARE = 1, /* populated, of no namespace */
	KVP_SLAB_BLOCKS = 2, /* in the slab table of ns_id */
	KVP_SLAB_LEAVING = 4, /* unlinked, counted until the last mapping is gone */
};
/* Row i of the slab part is place i. */
struct kvp_slab_row {
	_Atomic uint64_t number;
	uint64_t bytes;
	uint64_t ns_id;
	uint64_t placed; /* bytes that lie on its node, by the kernel's word; UINT64_MAX: it was not told */
	uint32_t use;
	uint32_t node;
	uint32_t page_kib; /* of its pages; above 4 where pages is 2M or 1G: it lies in the header's huge_dir */
	uint32_t bound; /* 1: bound to its node */
};
#define KVP_SLAB_ROW_LEAST 48u

/* How time lost to waiting for memory is watched. */
enum kvp_pressure_watch {
	KVP_PRESSURE_OFF = 0,
	KVP_PRESSURE_LOOKED_AT = 1, /* twice a second: a trigger is refused */
	KVP_PRESSURE_TRIGGER = 2, /* the kernel tells as well */
	KVP_PRESSURE_UNREADABLE = 3,
};

/* A NUMA node with memory. */
#define KVP_STATS_NODES_MAX 64
struct kvp_node_row {
	uint32_t id; /* the kernel's number */
	uint32_t has_cpus; /* 0: memory only */
	uint64_t memory; /* of the node, as hwloc tells; 0: unknown */
	uint64_t asked; /* its budget for slabs */
	uint64_t got; /* bytes in slabs there */
	uint64_t used; /* of these, in namespaces */
	uint64_t placed; /* of got: pages that lie there by the kernel's word */
	uint32_t n_slabs;
	uint32_t n_bound; /* of these, bound to the node */
	uint64_t huge; /* of got: in pages larger than 4k, of the size that was wished for */
};

/* A spill store, in the order of the configuration. */
#define KVP_STATS_STORES_MAX 16
struct kvp_store_row {
	char path[256];
	char message[256]; /* what is wrong, and since when; "": nothing */
	uint32_t state; /* as counter spill_state */
	uint32_t uring; /* 1: by io_uring, 0: by threads */
	uint32_t direct; /* 1: O_DIRECT, 0: through the page cache */
	uint32_t node; /* of its device, UINT32_MAX: not known */
	uint32_t last_errno;
	uint32_t device; /* on which it lies, or lay last: major << 20 | minor; 0: not known */
	uint64_t since; /* of the state: seconds since the epoch; 0: since the start */
	uint64_t capacity, used, live, live_records;
	uint64_t in_flight, queued; /* transfers, and their bytes */
	uint64_t writes, write_bytes, reads, read_bytes; /* since the start, as what follows */
	uint64_t write_errors, read_errors, damaged;
};

/*
 * What other sizes of memory would have given the traffic of the last hours: of all tokens used, how many had their
 * block again among the last so many bytes used.  Bin i counts those that need more than kvp_curve_edge(i - 1) and at
 * most kvp_curve_edge(i); what is in no bin was used for the first time, as far as is remembered.  Older uses count
 * less: halved every KVP_CURVE_HALF_S.
 */
#define KVP_CURVE_BINS 224u
#define KVP_CURVE_OCTAVE 8u /* bins from a size to twice that size */
#define KVP_CURVE_SHIFT 16u /* the first bin ends at 64 KiB, the last at 16 TiB */
#define KVP_CURVE_HALF_S 7200u
struct kvp_curve {
	_Atomic uint64_t tokens; /* of all uses: found, or computed and published */
	_Atomic uint64_t seconds; /* in which they came, aged alike */
	_Atomic uint64_t watched; /* keys of which the uses are known */
	_Atomic uint64_t one_in; /* they stand for so many keys each, times 1000 */
	_Atomic uint64_t bins[KVP_CURVE_BINS];
};
/* The largest memory, in bytes, that bin @i stands for. */
static inline double kvp_curve_edge(unsigned i)
{
	static const double steps[KVP_CURVE_OCTAVE] = {1, 1.0905077326652577, 1.189207115002721, 1.2968395546510096,
		1.4142135623730951, 1.5422108254079407, 1.681792830507429, 1.8340080864093424}; /* 2^(n / 8) */

	return (double)(1ull << (KVP_CURVE_SHIFT + i / KVP_CURVE_OCTAVE)) * steps[i % KVP_CURVE_OCTAVE];
}
/* Tokens that @bytes of memory would have had. */
static inline double kvp_curve_hits(const struct kvp_curve *curve, double bytes)
{
	double hits = 0, below = 0;

	for (unsigned i = 0; i < KVP_CURVE_BINS && below < bytes; i++) {
		double edge = kvp_curve_edge(i),
		       n = (double)atomic_load_explicit(&curve->bins[i], memory_order_relaxed);

		hits += edge <= bytes ? n : n * (bytes - below) / (edge - below);
		below = edge;
	}
	return hits;
}

struct kvp_stats {
	uint64_t magic;
	uint16_t layout_major;
	uint16_t layout_minor;
	uint32_t endian;
	uint8_t uuid[16];
	uint64_t object_bytes;
	uint32_t counters_bytes; /* sizes of the writer's structs */
	uint32_t ns_row_bytes;
	uint32_t session_row_bytes;
	uint32_t slab_row_bytes;
	uint32_t ns_off; /* struct kvp_ns_row[KVP_STATS_NS_MAX] */
	uint32_t session_off;
	uint32_t slab_off; /* struct kvp_slab_row[max_places] */
	uint32_t max_places;
	_Atomic uint64_t version;
	_Atomic uint64_t next_number; /* next slab number: never given again */
	uint32_t curve_off; /* struct kvp_curve; 0: the writer has none */
	uint32_t curve_bytes;
	char spill_dir[256]; /* of the first store */
	char spill_message[256]; /* why the tier is off or down, or which of its stores is */
	char pressure_message[256]; /* why the pool is smaller than --pool, if it is */
	char numa_message[256]; /* why slabs are unbound, if they are */
	char pages_message[256]; /* why slabs are made of smaller pages than wished, if some are */
	uint32_t n_nodes;
	uint32_t pages; /* enum kvp_pages: the wish */
	uint32_t n_stores;
	uint32_t pressure_watch; /* enum kvp_pressure_watch */
	struct kvp_node_row nodes[KVP_STATS_NODES_MAX];
	struct kvp_store_row stores[KVP_STATS_STORES_MAX];
	struct kvp_counters counters;
};

#endif
