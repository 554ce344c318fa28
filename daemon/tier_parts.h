/*
 * tier_parts.h - inside of tier.h: what its files share
 *
 * tier.c the store and its writes, tier_pack.c which of them are packed, tier_room.c room, tier_restore.c blocks that
 * come back, tier_jobs.c who waits, tier_admin.c drain, evict, drop and scrub, tier_delete.c deleted keys;
 * quota_spill.c whose the stores are.
 */
#ifndef KVPOOL_TIER_PARTS_H
#define KVPOOL_TIER_PARTS_H

#include "config.h"
#include "io.h"
#include "loop.h"
#include "spill.h"
#include "tier.h"

#define RETRY_NS 20000000ull /* nothing could be evicted: look again after so long */
#define LOOKS_MAX 512 /* candidates looked at in one call */

enum job_kind {
	JOB_RESERVE,
	JOB_RESTORE,
	JOB_PUBLISH,
	JOB_DRAIN,
	JOB_EVICT,
	JOB_DROP,
	JOB_DELETE,
};

struct waiter {
	struct waiter *next; /* of the entry */
	struct entry *entry; /* NULL: done */
	struct job *job;
	uint32_t index;
};

struct job {
	struct job *next; /* in the list of its namespace, or of the tier */
	struct job *all_next, *all_prev;
	enum job_kind kind;
	uint64_t since_ns; /* it waits for a slot */
	uint64_t near_until_ns; /* RESERVE: so long for one on its node while that node's slab is made */
	struct daemon *d;
	struct peer *peer; /* NULL: gone, nobody hears the answer */
	struct member *member;
	struct ns *ns;
	uint64_t id;
	struct loop_timer timer;
	uint32_t n, n_left, node;
	bool layers; /* RESTORE: a block that arrives will do */
	bool in_pieces; /* RESTORE: who asks wants the first one soon, and asks for the rest again */
	uint32_t first; /* RESTORE: with this one it is answered; UINT32_MAX: when all are there */
	struct waiter *waiters; /* RESTORE */
	struct kvp_wire_found *found; /* RESTORE, DELETE */
	struct kvp_wire_item *items; /* PUBLISH */
	struct kvp_wire_result *results;
	uint32_t at; /* PUBLISH: item being worked on */
	uint64_t fill; /* PUBLISH: slot being copied into, or NO_SLOT */
	bool ahead; /* PUBLISH: waits for an earlier one of the same member, that publishes its next block's parent */
	struct io_op op;
	struct stage *stage; /* PUBLISH: of the member, that may go */
	uint64_t n_done; /* DRAIN, EVICT */
	struct block_name *todo; /* DRAIN, DROP, DELETE */
	uint64_t n_todo, todo_at, n_failed;
	uint64_t n_noting; /* DELETE: of todo, from todo_at on: in the list being written */
	int error; /* DRAIN: errno of the last write that failed; DELETE: why the store could not note it */
	bool flushing;
	uint64_t reclaimed; /* DRAIN: by the stores, when it began */
	uint64_t n_want, ns_id, n_looks; /* EVICT; ns_id 0: all; looks in vain since the last block that went */
};

/* A block that a drain has to write, or a drop or delete to forget. Keys, not entries: those may go meanwhile. */
struct block_name {
	uint64_t ns_id;
	struct kvp_key key;
};

struct tier {
	struct daemon *d;
	struct spill_set *spill; /* NULL: off */
	struct spill_keys
		*keys; /* of the stores, or NULL; left to the end of the process, as a worker of a hung disk may be */
	int store_nodes[CONFIG_STORES_MAX]; /* the kernel's numbers; -1: not known */
	uint64_t opening_ns; /* when opening the stores began */
	struct ns_births
		*births[CONFIG_STORES_MAX]; /* of a store that came back: the thread's that opens it, then the loop's */
	bool store_lacks_files[CONFIG_STORES_MAX]; /* it came back: of namespaces, perhaps */
	uint32_t store_devices[CONFIG_STORES_MAX]; /* spill_device(), as far as known */
	enum {
		LINK_NONE,
		LINK_PARENTS,
		LINK_DROP
	} link; /* stores came back: what is done with all namespaces, see ns_link_some() */
	struct loop_source spill_source;
	struct io *copies; /* out of staging areas */
	struct loop_source copies_source;
	struct job jobs; /* head of the list of all */
	struct job *drain, *evict, *drop;
	uint64_t n_awaited; /* writes a drain waits for, of this one or of one that was late */
	bool drain_first; /* the drain has the next free place in the stores' queues, not who waits for room */
	bool noting; /* deleted keys are being noted in the stores */
	struct loop_timer evict_timer, drop_timer; /* the next piece */
	uint64_t n_nobodys; /* records found of no namespace there is */
	uint64_t too_long; /* longest block the store could not take, as far as was said */
	struct quota_share *shares; /* quota_spill.c's: of the stores' logs */
	uint32_t n_shares;
	bool share_refused; /* somebody was at a quota since the last tick */
	struct admission admission; /* of learned namespaces, as spill-admit says */
	struct spill_stats told; /* what of the store's numbers is in the counters already */
	uint64_t reading_bytes; /* being read, or queued for it */
	uint64_t read_event_ns; /* last time a read ended, or the first of many began */
	double read_ns_per_byte; /* how fast they come, all together; 0: not known yet */
};

/* ---- tier.c ---- */

struct spill_record entry_record(const struct entry *e);
/** tier_may_write() - may this victim be written, by spill-admit and as far as the day's budget goes? */
bool tier_may_write(const struct entry *e);
/** tier_may_write_again() - has this victim a copy that is old, and would lose uses with it that are worth a write? */
bool tier_may_write_again(const struct entry *e);
/** tier_write() - start writing a victim's cold copy. Return: 0; -EAGAIN: later; -EDQUOT: its namespace or uid has all it may; other
 *  -errno: it cannot be written. */
int tier_write(struct entry *e);
/** tier_gone() - the store lost the record of entry @cookie */
void tier_gone(void *owner, void *cookie);

/* ---- tier_pack.c ---- */

/** pack_pays() - do blocks like those sampled, in a store that reads a byte in so long, go down packed? */
bool pack_pays(const struct ns_pack *pack, double read_ns_per_byte);
/** tier_codec() - how the next block of the namespace goes to the store */
uint32_t tier_codec(struct ns *ns);
/** tier_packed() - inside the done() of a write that went well: what it tells */
void tier_packed(struct ns *ns, spill_place place);

/* ---- tier_room.c ---- */

/** tier_evict_oldest() - evict, or start to write, until @want slots are free or coming. Return: 1; 0: they never will be, the
 *  rest is in use; -EAGAIN: the store takes no more writes now; -EINTR: so many looks did not do it. */
int tier_evict_oldest(struct ns *ns, uint64_t want, unsigned looks_max);

/* ---- tier_restore.c ---- */

/** tier_layers(), tier_layers_came() - for struct spill_opts */
const struct spill_layers *tier_layers(void *owner, uint64_t ns_id);
void tier_layers_came(void *owner, void *reader, uint32_t layers);
/** tier_start_reads() - start reads of queued entries as long as slots and the store's queue allow */
void tier_start_reads(struct ns *ns);

/* ---- tier_jobs.c ---- */

/** job_new() - a request that waits until @deadline_ns at most. Return: NULL: no memory. */
struct job *job_new(enum job_kind kind, struct member *member, struct peer *peer, uint64_t id, uint64_t deadline_ns);
void job_free(struct job *job);
/** job_allowed() - may this peer start a request that may wait? Else it is refused. */
bool job_allowed(struct peer *peer, uint16_t type, uint64_t msg_id);
/** job_answer_restore() - with what there is; ends the job */
void job_answer_restore(struct job *job);

/* ---- tier_admin.c ---- */

/** drain_written() - a write that a drain waited for has ended with @res */
void drain_written(struct tier *tier, int res);
/** drain_step(), evict_step() - go on, if one is under way */
void drain_step(struct tier *tier);
void evict_step(struct tier *tier);
/** job_answer_drain(), job_answer_evict(), job_answer_drop() - with what is done; end the job */
void job_answer_drain(struct job *job, bool late);
void job_answer_evict(struct job *job, bool late);
void job_answer_drop(struct job *job, bool late);

/* ---- tier_delete.c ---- */

/** delete_step() - note what waits for it */
void delete_step(struct tier *tier);
/** job_answer_delete() - ends the job */
void job_answer_delete(struct job *job);

#endif
