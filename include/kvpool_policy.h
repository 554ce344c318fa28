/*
 * kvpool_policy.h - what stays: the policies, as the daemon and kvctl replay both link them
 *
 * Metadata only: no blocks, no shared memory, no clock, no daemon.  Whoever calls says what was asked for, when, and
 * what became resident; a policy says what goes next.  Its answers are advice: what is held, or has something hanging
 * below it, its caller passes over.  One thread. The objects are daemon/policy_*.c; nothing here is part of the
 * protocol, both sides are always of one build.
 */
#ifndef KVP_POLICY_H
#define KVP_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvpool.h"

/* ---- lru: tail first, over leaves ---- */

/* Stands in whatever can go.  Stamps and orders wrap: they are compared by difference. */
struct lru_leaf {
	uint32_t stamp; /* of its last use */
	uint32_t index; /* in the heap; 0: not a candidate */
	uint32_t order; /* among those of one stamp, who was put in order first */
};

struct lru {
	struct lru_leaf **at; /* from 1: a heap */
	uint32_t n, room;
	uint32_t next_order;
};

/** lru_add() - a candidate from now on; once is enough. Return: false: no memory. */
bool lru_add(struct lru *lru, struct lru_leaf *leaf);
void lru_remove(struct lru *lru, struct lru_leaf *leaf);
/** lru_touch() - its stamp changed */
void lru_touch(struct lru *lru, struct lru_leaf *leaf);
/** lru_first() - the candidate unused for longest; NULL: none. Stays in. */
static inline struct lru_leaf *lru_first(const struct lru *lru)
{
	return lru->n ? lru->at[1] : NULL;
}
void lru_free(struct lru *lru);

/* ---- learned: by class of use, age, and what clients say ---- */

/* What a client says of a request; advice, and believed as far as it came true lately.  As in kvpool.h. */
enum policy_hint {
	POLICY_HINT_NONE = 0,
	POLICY_HINT_ENDS = 1, /* one shot: nothing follows */
	POLICY_HINT_CONTINUES = 2, /* a next turn is likely */
	POLICY_HINT_SOON = 3, /* within moments: a tool runs */
	POLICY_HINTS
};

struct learned;

/**
 * learned_new() - a policy for so many blocks
 * @capacity: blocks it is to choose among, when full
 * @guarded:  it leads (learned_leads()) once it has shown itself better than least recent use, and no more when it was worse (two
 *            shadows, of metadata only, run along); else always
 * @seed:     of the hash of keys, so that who chooses keys cannot choose them alike; 0: nobody chose them; of equal seeds come equal decisions
 * Return: NULL: no memory.
 */
struct learned *learned_new(uint64_t capacity, bool guarded, uint64_t seed);
void learned_free(struct learned *l);
/** learned_resize() - it chooses among more, or fewer, from now on; takes no longer than a request.  Return: false: no memory to
 *  remember those of a larger one; all else is done. */
bool learned_resize(struct learned *l, uint64_t capacity);
/** learned_leads() - does its order decide?  Else what goes next is lru's to say. */
bool learned_leads(const struct learned *l);

/**
 * learned_request() - a request was looked up
 * @keys: its chain, whole, from the first block on: what is there and what will be published
 * @now:  seconds, never less than before
 * Return: how many of the leading ones are in; -ENOMEM.
 */
int64_t learned_request(struct learned *l, const struct kvp_key *keys, uint64_t n, double now, enum policy_hint hint);
/** learned_insert() - it is in from now on. @parent: NULL: none. One that no request named counts as one of its parent's.
 *  Return: 0; -ENOMEM. */
int learned_insert(struct learned *l, const struct kvp_key *key, const struct kvp_key *parent, double now);
/** learned_adopt() - it was in before anything was learned: in, unused for @age_s, and nothing is learned of it.
 *  Return: likewise. */
int learned_adopt(struct learned *l, const struct kvp_key *key, const struct kvp_key *parent, double age_s, double now);
/** learned_remove() - it is in no more; that it was used is remembered for a while */
void learned_remove(struct learned *l, const struct kvp_key *key);
/** learned_victim() - what goes next: a leaf; and none of the last request, but for what came in worth less than all that could go
 *  for it. Stays in. Return: false: there is none. */
bool learned_victim(struct learned *l, double now, struct kvp_key *key);
/** learned_defer() - that one cannot go now, it is in use: neither it nor what it hangs below is named for a moment */
void learned_defer(struct learned *l, const struct kvp_key *key, double now);
/** learned_chance() - that it is used again within @horizon_s, by what is known of it; of a stranger, that of a new
 *  one */
double learned_chance(struct learned *l, const struct kvp_key *key, double now, double horizon_s);
/** learned_age() - seconds since its last use; 0: not known */
double learned_age(struct learned *l, const struct kvp_key *key, double now);
/** learned_uses() - how often it was used, as far as is remembered */
unsigned learned_uses(struct learned *l, const struct kvp_key *key);

struct learned_view {
	uint64_t n; /* in */
	uint64_t capacity;
	uint64_t bytes; /* of metadata, all of it */
	bool leads; /* the learned order decides now */
	double lead; /* hits it was ahead of least recent use lately, decayed */
	uint64_t switches;
};
void learned_view(const struct learned *l, struct learned_view *view);

/* ---- admission: is a block that leaves memory worth a write? ---- */

enum admission_kind {
	ADMIT_ALL,
	ADMIT_REUSED, /* used twice at least */
	ADMIT_CHANCE, /* by the learned chance of its reuse, within a budget of writes */
};

struct admission {
	enum admission_kind kind;
	double budget; /* CHANCE: share of what is offered that may be written */
	double theta; /* the chance it takes */
	double horizon_s; /* for how long a block stays, about */
	uint32_t offers, written; /* since theta moved */
	uint32_t lost; /* what the horizon is the mean of */
};

void admission_init(struct admission *a, enum admission_kind kind, double budget);
/**
 * admission_offer() - a block leaves memory that has no copy in the store
 * @needed: something hangs below it in the store, which without it would be unreachable
 * @chance: learned_chance() within a->horizon_s; only for ADMIT_CHANCE
 * Return: write it.
 */
bool admission_offer(struct admission *a, bool needed, unsigned uses, double chance);
/**
 * admission_left() - for how long a copy will still be there behind which @passed of the store's log (0 to 1) was
 * written
 * Return: seconds; negative: long enough, or none is written again (only where it goes by chance).
 */
double admission_left(const struct admission *a, double passed);
/**
 * admission_again() - a block leaves memory whose copy in the store is old
 * @gained: learned_chance() within a->horizon_s, less that within admission_left()
 * Return: write it again.  Counts as written, of what others are offered.
 */
bool admission_again(struct admission *a, double gained);
/** admission_lost() - the store let go of a block unused for @age_s */
void admission_lost(struct admission *a, double age_s);

#endif
