/*
 * spill_set.h - several spill stores side by side, each on a device of its own, as one
 *
 * Each store is a struct spill: own file, lock, ring, worker, health.  A record goes to the store with the least to do,
 * or, where they have as little, to the one with the most room; its place says which it is.  A store that is down takes
 * nothing, the others go on.  Which records are where is known by each store's own log alone: stores may come, go and
 * change places between two starts, and what is in those that are there is found.
 *
 * Callbacks, threads and answers are as in spill.h; one store alone is served without anything in between.
 */
#ifndef KVPOOL_SPILL_SET_H
#define KVPOOL_SPILL_SET_H

#include "spill.h"

struct spill_set;

/**
 * spill_set_open() - open or make @n stores, side by side, then tell what is in them
 * @opts: of each; number is filled in.  owner, gone and found are the same for all.  lock_fd is that of the first.
 * A store that cannot be opened is said and left out.  Where the reason may pass (not mounted, no device) it is looked
 * for again from spill_set_tick(), by a thread, and joins when it is there: found() is told of its records some at a
 * time, meanwhile it is read and not written.  Where none serves the set is opened all the same if all may come.
 * Of two that are one file, or copies of each other, one is left out: the copy where it can be told, else the later
 * one.
 * Return: 0; -errno of a store that is not to be had: none serves.
 */
int spill_set_open(struct spill_set **set, const struct spill_opts *opts, unsigned n, char message[256]);
/** spill_set_close() - as spill_close(), all at once */
void spill_set_close(struct spill_set *set);

/* As their namesakes in spill.h. */
int spill_set_write(struct spill_set *set, const struct spill_record *record, const void *data, void *cookie,
	spill_done_fn done, void *owner);
/** spill_set_packed() - of the store that @place is in */
const struct spill_packed *spill_set_packed(const struct spill_set *set, spill_place place);
int spill_set_read(struct spill_set *set, spill_place place, const struct spill_record *record, void *data,
	spill_done_fn done, void *owner);
void spill_set_forget(struct spill_set *set, spill_place place);
double spill_set_passed(const struct spill_set *set, spill_place place);
/** spill_set_give_up() - in the first store that has one */
bool spill_set_give_up(struct spill_set *set, bool (*agrees)(void *owner, uint64_t ns_id), void *owner);
/** spill_set_flush() - of all stores; the first error of any. Return: 0; -EAGAIN; -ENODEV: none serves. */
int spill_set_flush(struct spill_set *set, spill_done_fn done, void *owner);
/** spill_set_drop() - in all stores. -ENODEV: one is down or missing, and what is in it would come back. done()
 *  once. */
int spill_set_drop(struct spill_set *set, uint64_t ns_id, spill_done_fn done, void *owner);
/** spill_set_kill() - in all stores, for any may have a record of these keys. -ENOENT: none has any; -ENODEV: one is down or
 *  missing, and what is in it would come back.  done(): -EAGAIN: one of them took it, another one is to be asked again, so all. */
int spill_set_kill(struct spill_set *set, const struct spill_kill *kills, uint32_t n, spill_done_fn done, void *owner);
/** spill_set_scrub_rate() - of all stores together */
void spill_set_scrub_rate(struct spill_set *set, uint64_t bytes_per_s);
uint64_t spill_set_scrub_now(struct spill_set *set, uint64_t bytes_per_s);
/** spill_set_telling_pulled() - inside gone(): its store is not there any more, and may be back */
bool spill_set_telling_pulled(const struct spill_set *set);
bool spill_set_telling_damage(const struct spill_set *set);
int spill_set_fd(const struct spill_set *set);
unsigned spill_set_reap(struct spill_set *set);
unsigned spill_set_wait(struct spill_set *set, uint64_t deadline_ns);
void spill_set_tick(struct spill_set *set);

/** spill_set_missing() - stores that are looked for, or have not told all yet: what is not found may be in one of
 *  them */
unsigned spill_set_missing(const struct spill_set *set);
/** spill_set_longest() - of the store that takes the longest */
uint64_t spill_set_longest(const struct spill_set *set);
/** spill_set_stuck() - blocks of a namespace being written to stores that have let nothing end for a while, while
 *  another one moves and takes writes; else 0 */
unsigned spill_set_stuck(const struct spill_set *set, uint64_t ns_id);
/** spill_set_stuck_reads() - blocks of a namespace being read from stores that hang */
unsigned spill_set_stuck_reads(const struct spill_set *set, uint64_t ns_id);
/** spill_set_stalled() - every store that is up has let nothing end for @ns */
bool spill_set_stalled(const struct spill_set *set, uint64_t ns);
/** spill_set_hung() - may what is read from @place never come? */
bool spill_set_hung(const struct spill_set *set, spill_place place);

/** spill_set_stats() - all together; state UP: one at least is */
void spill_set_stats(const struct spill_set *set, struct spill_stats *stats);
unsigned spill_set_n(const struct spill_set *set);
/** spill_set_serves() - is store @i there? */
bool spill_set_serves(const struct spill_set *set, unsigned i);
/** spill_set_store_stats() - of store @i, as configured; one that was left out is DOWN, and its message says why */
void spill_set_store_stats(const struct spill_set *set, unsigned i, struct spill_stats *stats);

#endif
