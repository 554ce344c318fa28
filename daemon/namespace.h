/*
 * namespace.h - namespaces: blocks of one model in one layout for one trust domain
 *
 * Owns the namespace object (header, slab table, descriptors, index), who may enter, siblings, and the table of known
 * keys (entries, hot or cold).  What happens to single blocks is block.c's.
 */
#ifndef KVPOOL_NAMESPACE_H
#define KVPOOL_NAMESPACE_H

#include <assert.h>

#include "daemon.h"
#include "kvpool_policy.h"
#include "kvpool_wire.h"
#include "slab.h"

#define NO_SLOT UINT64_MAX

enum entry_io {
	ENTRY_IDLE = 0,
	ENTRY_WRITING = 1, /* hot, its cold copy is being written */
	ENTRY_READING = 2, /* cold, RESTORING into a slot */
	ENTRY_QUEUED = 3, /* cold, waits for a slot or for the queue of the store */
};

/* A known key: hot (in a slot), cold (in the spill store), or both ("clean").  Trees by parent, across a base's
   border. */
struct entry {
	struct entry *hash_next;
	struct kvp_key key;
	struct kvp_key parent_key;
	struct ns *ns;
	struct entry *parent;
	struct entry *first_child, *next_sibling, *prev_sibling;
	uint32_t n_hot_children;
	uint32_t n_near_children; /* of these, not on a far node */
	uint64_t slot; /* NO_SLOT: not hot */
	uint64_t fill; /* while READING: the slot it lands in */
	spill_place cold; /* 0: no copy in the store */
	uint64_t bytes;
	uint32_t used_tokens;
	union {
		struct lru_leaf leaf; /* policy.c's */
		uint32_t stamp; /* tick of the last use known here; pin tables may know a later one */
	};
	uint32_t
		hold_until; /* tick: not evicted before; 0: no hold.  For blocks a reply has named, until they are pinned */
	uint8_t io; /* enum entry_io */
	bool far; /* while hot: its slot is on a far node */
	bool doomed; /* forget it when its transfer has ended */
	bool awaited; /* WRITING: by a drain */
	struct waiter *waiters; /* requests that wait for its read: tier.c's */
	struct entry *queue_next; /* QUEUED */
};

struct entry_table { /* ns_entry.c's */
	struct entry **buckets;
	uint64_t n_buckets, room, n;
	uint64_t first; /* no entry in a bucket below */
};

/* One session in one namespace. */
struct member {
	struct session *session;
	struct ns *ns;
	struct member *next; /* of the session */
	uint64_t grants; /* head: slot + 1; GRANTED and TAKEN slots of this member */
	uint64_t n_grants;
	bool writable;
	struct stage *stage; /* COPIED: its staging area; NULL: none */
	uint64_t stage_wish_ns,
		stage_asked_ns; /* it found no room for one: since when, and when it last asked; 0: no */
	uint32_t n_ahead; /* COPIED: publishes that wait for earlier ones, which bring a block's parent */
	uint64_t cost_ns_per_token; /* to recompute, as this client says; 0: unknown */
};

/* How it is used lately, see policy_learn(). */
struct policy_use {
	double used, stored; /* blocks */
	uint64_t used_seen, stored_seen, at_ns;
};

struct job;

/* What packing made of the blocks that were tried. */
struct ns_pack {
	uint32_t n;
	uint64_t bytes, stored;
	uint64_t timed_bytes, unpack_ns; /* of those that became shorter */
};

struct ns {
	struct ns *next;
	struct daemon *d;
	uint64_t id;
	int fd;
	struct kvp_ns_header *head;
	struct kvp_slab *slab_table;
	struct kvp_block *blocks;
	struct kvp_index_bucket *index;
	struct kvp_ns_row *row;
	struct ns *base;
	unsigned n_based; /* namespaces with this base */
	unsigned n_members; /* sessions that joined and live */
	uint32_t left_tick; /* when the last one left */
	struct entry_table entries;
	uint8_t *indexed; /* at a start: a bit for each slot whose hint was found good */
	struct policy_use use;
	struct lru heap, far_heap; /* candidates for leaving their node: those elsewhere, those on far nodes */
	struct learned *learned; /* policy.c's, as what follows; NULL: by least recent use */
	uint64_t learned_ticks; /* its time, that never goes back */
	uint32_t learned_tick; /* up to which that was counted */
	unsigned adopting; /* rounds left over what was hot before it: in, then below their parents */
	uint64_t adopt_at; /* the next bucket */
	bool moving; /* a block goes from one slot to another: to the policy nothing happens */
	uint64_t n_slots, n_free;
	uint64_t n_free_far; /* of n_free: on far nodes */
	bool near_stuck; /* all near memory is in use: grants come from the far nodes too */
	uint64_t n_coming; /* slots of slabs being made for it */
	uint32_t coming_on[TOPOLOGY_NODES_MAX]; /* by node: those slabs */
	struct slab *open[TOPOLOGY_NODES_MAX]; /* by node: slabs with free slots, those in use longest first */
	uint64_t n_writing; /* blocks whose cold copy is being written */
	uint64_t n_reading; /* blocks that are being read, into slots of its own */
	struct ns_pack pack;
	struct spill_layers
		*layers; /* KVP_NS_LAYERS: where they end, once a record was written or read; tier_layers() */
	uint64_t sweep_held; /* counted so far in this round */
	struct job *waits; /* requests without a slot yet, oldest first: tier.c's */
	struct entry *restore_head, *restore_tail; /* ENTRY_QUEUED */
	uint32_t *ghosts; /* what was evicted or damaged: tag:30 | reason:2, by key; NULL until first used */
	uint64_t cost_ns_per_token;
	uint64_t no_room_until_ns; /* nothing was evictable: do not look again before */
	struct kvp_ring *ring; /* events.c's; NULL: nobody has asked for it */
	int ring_fd;
	bool quiet; /* being cleared: what goes is not told one by one */
	struct clear *clear; /* forget.c's, while it is being cleared */
	struct slab
		*emptying; /* withdrawn: its blocks are being moved to others, for it is to go to another namespace */
	uint64_t emptying_until_ns; /* nobody has asked for it since: it stays */
	uint64_t keeps_until_ns; /* no slab of it could be emptied: others are asked before */
	uint64_t steal_after_ns; /* do not look at the others' memory again before */
	uint32_t cold_at; /* cold.c's: the candidate of what it is made of that is looked at next */
	uint64_t link_at; /* tier.c's, while a store that came back is linked to it: the next bucket */
};

#define GHOSTS 65536u

/* All sizes of a namespace follow from its blocks' bytes and from the pool. */
struct ns_shape {
	uint64_t block_bytes, stride, slab_bytes, n_buckets;
	uint64_t slab_off, block_off, index_off, object_bytes;
	uint32_t slots_per_slab;
};
struct ns_shape ns_shape(const struct kvp_pool_header *pool, uint64_t block_bytes);

/* What makes a namespace: who, what, and the secret of its keys.  Kept with the spill store too. */
struct ns_birth {
	uint64_t id;
	uint32_t owner_uid, owner_gid, mode, flags;
	uint64_t base_id;
	uint64_t cost_ns_per_token;
	uint8_t secret[32];
	char name[KVP_NAME_MAX];
	struct kvp_desc desc;
};
/** ns_make() - make its object and list it. Return: 0; -KVP_E... */
int ns_make(struct daemon *d, const struct ns_birth *birth, struct ns **ns, char reason[256]);

struct ns_births;
/** ns_file_check() - may namespaces' files be where the configuration says? Return: 0; -errno. */
int ns_file_check(const struct config *config, char message[256]);
/** ns_file_save(), ns_file_load_all() - ns_file.c: namespaces come back with the store after a reboot */
int ns_file_save(const struct ns *ns);
void ns_file_remove(const struct ns *ns);
void ns_file_load_all(struct daemon *d);
/** ns_births_read() - what the files in @dir, which stays, say, behind what is in @births (or NULL); in any thread, for each file may
 *  wait for the disk.  Return: NULL: no memory. */
struct ns_births *ns_births_read(struct ns_births *births, const char *dir);
/** ns_births_make() - make those that are not there yet, up to @until_ns of loop_now(). Return: there are more. */
bool ns_births_make(struct daemon *d, struct ns_births *births, uint64_t until_ns);
void ns_births_free(struct ns_births *births);
/** ns_file_spread() - what is missing in one place is there at the next start too: @n files of those that lack, for each waits for
 *  the disk.  Return: there are more. */
bool ns_file_spread(struct daemon *d, const char *dir, unsigned n);

/** ns_start() - adopt the namespaces of the last daemon, then load those the spill directory knows */
int ns_start(struct daemon *d, char message[256]);
/** ns_adopt_blocks() - second part of the start, once the sessions are known: go through all descriptors */
void ns_adopt_blocks(struct daemon *d);
/** ns_link_all() - third part, once the store told what it has: parents, candidates for eviction; and, but for @keep, cold entries
 *  that are unreachable go */
void ns_link_all(struct daemon *d, bool keep);
/** ns_link_some() - while serving, once a store that was missing told what it has: as ns_link_all() from bucket *@at on, @n of them;
 *  @drop: what is unreachable goes, else parents are found. Return: there are more. */
bool ns_link_some(struct ns *ns, uint64_t *at, uint64_t n, bool drop);
/** ns_stop() - the last thing they see: the process ends */
void ns_stop(struct daemon *d);

struct ns *ns_find(struct daemon *d, uint64_t id);

/**
 * ns_join() - create or join by KVP_MSG_JOIN's rules
 * @reason: 256 bytes for a human on failure
 * Return: 0 and *ns, *joined filled; -KVP_E...
 */
int ns_join(struct daemon *d, struct session *session, const struct kvp_wire_join *join, struct ns **ns,
	struct kvp_wire_joined *joined, char reason[256]);

bool ns_may_read(const struct ns *ns, const struct session *session);
bool ns_may_write(const struct ns *ns, const struct session *session);

struct entry *ns_entry(struct ns *ns, const struct kvp_key *key);
/** ns_entry_next() - in no order; NULL: the first. None may be added or dropped on the way. */
struct entry *ns_entry_next(struct ns *ns, const struct entry *e);
/** ns_entry_expect() - at a start: so many will come */
void ns_entry_expect(struct ns *ns, uint64_t n);
/** ns_entry_prefetch() - it will be asked for: later, then soon */
void ns_entry_prefetch(const struct ns *ns, const struct kvp_key *key, bool soon);
/** ns_entry_free_all() - the table too; no counter, heap or tree is kept in step */
void ns_entry_free_all(struct ns *ns);
/** ns_entry_above() - in the namespace, or in its base */
struct entry *ns_entry_above(struct ns *ns, const struct kvp_key *key);
/** ns_entry_add() - a new entry, linked to its parent if that is known. NULL: no memory. */
struct entry *ns_entry_add(struct ns *ns, const struct kvp_key *key, const struct kvp_key *parent);
/** ns_entry_link() - find its parent now (after recovery). Return: false: it names one that is not known. */
bool ns_entry_link(struct entry *e);
/** ns_entry_set_hot(), ns_entry_set_cold_only() - keep the parent's count and the candidates in step */
void ns_entry_set_hot(struct entry *e, uint64_t slot);
void ns_entry_set_cold_only(struct entry *e);
/** ns_entry_each() - call it for those in @n buckets from *@at on; likewise, while serving. Return: there are more. */
bool ns_entry_each(struct ns *ns, uint64_t *at, uint64_t n, void (*each)(struct entry *e));
/** ns_entry_settle() - a transfer of its bytes has ended: it may be a candidate again */
void ns_entry_settle(struct entry *e);
/** ns_entry_drop() - neither hot nor cold any more: it goes, and what hangs below it and is only cold. Hot blocks below
 *  become first in line for eviction. One with a transfer under way goes when that has ended. */
void ns_entry_drop(struct entry *e);
/** ns_entry_part() - likewise, but what hangs below it stays, for it may come back: its store did not forget it */
void ns_entry_part(struct entry *e);

void ns_ghost_add(struct ns *ns, const struct kvp_key *key, enum kvp_miss_reason reason);
enum kvp_miss_reason ns_miss_reason(struct ns *ns, const struct kvp_key *key);

/** ns_add_slab() - take a spare slab into the namespace, or have one made (n_coming). @node: index, or TOPOLOGY_ANY;
 *  unless @only_there, the nearest that has some.  Return: false: none to be had. */
bool ns_add_slab(struct ns *ns, uint32_t node, bool only_there);
void ns_attach_slab(struct ns *ns, struct slab *slab, bool adopted);
/** ns_slab_came() - the slab that was to be made for the namespace on @node, spare as yet; NULL: it could not be
 *  made */
void ns_slab_came(struct ns *ns, uint32_t node, struct slab *slab);
/** ns_remove_slab() - all its slots are free or retired. @slab is no more when it returns; its memory goes to @heir, or to
 *  whoever wants some (NULL). */
void ns_remove_slab(struct ns *ns, struct slab *slab, struct ns *heir);

/* Free slots there are more, or fewer, in a slab of which slots are given out. */
static inline void ns_count_free(struct ns *ns, const struct slab *slab, int64_t n)
{
	ns->n_free += (uint64_t)n;
	ns->n_free_far += slab->far ? (uint64_t)n : 0;
}
/* Free slots for what is new: what lies far is for what has not been used for long, unless nothing else can be had. */
static inline uint64_t ns_room(const struct ns *ns)
{
	return ns->near_stuck ? ns->n_free : ns->n_free - ns->n_free_far;
}
static inline struct slab *ns_slab_of(const struct ns *ns, uint64_t slot)
{
	uint64_t place = slot / ns->head->slots_per_slab;
	struct slab *slab;

	if (place >= ns->head->max_places)
		return NULL;
	slab = ns->d->slabs[place];
	return slab && slab->ns == ns ? slab : NULL;
}
/* of a slot that is there: one that a client names is looked up with ns_slab_of() first */
static inline struct slab *ns_slab(const struct ns *ns, uint64_t slot)
{
	struct slab *slab = ns_slab_of(ns, slot);

	assert(slab);
	return slab;
}
static inline struct slab_slot *ns_slot(const struct ns *ns, uint64_t slot)
{
	return &ns_slab(ns, slot)->slots[slot % ns->head->slots_per_slab];
}
static inline char *ns_slot_data(const struct ns *ns, uint64_t slot)
{
	return ns_slab(ns, slot)->map + slot % ns->head->slots_per_slab * ns->head->block_stride;
}

#endif
