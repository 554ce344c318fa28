/*
 * policy_parts.h - inside of kvpool_policy.h: what its files share
 *
 * policy_learner.c how likely a block of a class is used again at an age, policy_blocks.c what is known of blocks,
 * policy_learned.c the order in which they go and the shadows that guard it.
 */
#ifndef KVPOOL_POLICY_PARTS_H
#define KVPOOL_POLICY_PARTS_H

#include <assert.h>

#include "kvpool_policy.h"

/* ---- policy_learner.c ---- */

#define AGES 36u /* half powers of two of seconds; the last is open */
#define BANDS 9u /* of four ages */
#define USE_CLASSES 7u
#define MATCH_CLASSES 4u
#define CLASSES (USE_CLASSES * MATCH_CLASSES * POLICY_HINTS)
#define USES_MAX 63u /* counted no further */
#define RING 65536u
#define REMEMBERED 8u /* times the capacity: blocks of which it is known that they were used */

/* A sampled touch of a block, until the next one of the same block, or until it was overrun. */
struct touch {
	uint32_t at; /* a stamp */
	uint32_t tag : 24; /* of the block: no other is taken for it */
	uint32_t class : 7;
	uint32_t alive : 1; /* not touched again as yet */
};

struct learner {
	double used[AGES], seen[AGES]; /* touches that were followed by another at that age, and that came to it */
	double hit[3][USE_CLASSES][BANDS], expected[3][USE_CLASSES][BANDS]; /* by use, match, hint: their factors */
	uint64_t updates;
	struct touch ring[RING];
	uint32_t sample_mask; /* of tags: blocks whose touches are in the ring */
	uint64_t next; /* touches so far */
	uint64_t at[AGES - 1]; /* how far it was looked which have come to the age after this one */
	uint64_t touches; /* sampled or not, since the tables were made */
	bool met[CLASSES];
	float hazard[CLASSES][AGES]; /* chance of a use at an age, when it comes to that */
	float worth[CLASSES][AGES]; /* most uses a second of memory, from an age on */
};

#define STAMP_HZ 256.0 /* stamps wrap after half a year; only differences count */
static inline uint32_t stamp_of(double now)
{
	return (uint32_t)(uint64_t)(now * STAMP_HZ);
}
static inline double stamp_age(uint32_t stamp, double now)
{
	int32_t passed = (int32_t)(stamp_of(now) - stamp);

	return passed > 0 ? passed / STAMP_HZ : 0;
}

void learner_init(struct learner *t, uint64_t capacity);
/** learner_sample() - of so many blocks that the ring goes back as far as what is remembered */
void learner_sample(struct learner *t, uint64_t capacity);
/** learner_advance() - time passed: what came to a next age without a use is counted */
void learner_advance(struct learner *t, double now);
/** learner_touch() - a block was used. @tag: of its key; @slot: what the last call said for it. Return: to be
 *  remembered with it. */
uint16_t learner_touch(struct learner *t, uint32_t tag, uint16_t slot, uint8_t class, double now);
/** learner_chance() - of a use within @horizon_s, at an age */
double learner_chance(const struct learner *t, uint8_t class, double age, double horizon_s);
uint8_t learner_class(unsigned uses, unsigned match, enum policy_hint hint);
/** learner_match() - the class of how much of a request was known */
unsigned learner_match(uint64_t matched, uint64_t n);
unsigned learner_age(double seconds);

/* ---- policy_blocks.c ---- */

enum { SET_MEMORY, SET_LEARNED, SET_LRU, SETS }; /* what is in, and what two shadows would have */
#define TREES 2u /* sets in which parents may be older than their children: all but the last */

/* A block that is in one of the sets, or of the last request. */
struct node {
	struct kvp_key key;
	uint32_t hash_next;
	uint32_t parent, first_child;
	struct {
		uint32_t prev, next;
	} link[SETS];
	uint32_t stamp; /* of its last use */
	uint32_t request : 29; /* the last that named it */
	uint32_t held : 1; /* in memory, and could not go when it was looked at */
	uint32_t first : TREES; /* bits: sets in which it is one of the first to go */
	uint16_t ring; /* learner_touch()'s */
	uint16_t uses : 6; /* at most USES_MAX */
	uint16_t class : 7;
	uint16_t in : SETS; /* bits: sets */
};

static_assert(sizeof(struct node) == 64, "a cache line each, two to three of them a block of memory");

/* What of a node nobody asks for when all of a request is there. */
struct kin {
	uint32_t next_sibling, prev_sibling;
	uint32_t children[TREES]; /* how many of its children are in that set */
};

/* Blocks that were used and are in no set: sets of eight, a cache line each, the last forgotten first. */
struct ghosts {
	uint64_t (*line)[8]; /* tag:37 | ring:16 | uses:7 | match:2 | hint:2; 0: none */
	uint64_t n_lines;
};

struct blocks {
	struct node *node; /* from 1; 0 is none */
	struct kin *kin; /* of each */
	uint32_t n, room, kin_room, n_used; /* handed out ever, there is memory for, in use */
	uint32_t free; /* chain by hash_next */
	uint32_t *bucket; /* a linear hash: one is split for each node that is too many */
	uint64_t n_buckets, buckets_room;
	uint64_t seed;
	struct ghosts ghosts;
};

bool blocks_init(struct blocks *b, uint64_t capacity, uint64_t seed);
void blocks_free(struct blocks *b);
/** blocks_resize() - remember enough for so many blocks: where that is more than before, anew. Return: false: no memory, nothing
 *  changed. */
bool blocks_resize(struct blocks *b, uint64_t capacity);
/** blocks_find() - Return: 0: not among them */
uint32_t blocks_find(const struct blocks *b, const struct kvp_key *key);
/** blocks_get() - it, or a new one that remembers what was known (uses 0: nothing). Return: 0: no memory. */
uint32_t blocks_get(struct blocks *b, const struct kvp_key *key);
/** blocks_peek() - what is remembered of one that is not among them: uses, 0 for none, and its class */
unsigned blocks_peek(const struct blocks *b, const struct kvp_key *key, uint8_t *class);
/** blocks_forget() - it is in no set any more: only its use is remembered */
void blocks_forget(struct blocks *b, uint32_t i);
/** blocks_hang() - its parent is known now */
void blocks_hang(struct blocks *b, uint32_t i, uint32_t parent);
/** blocks_is_above() - is @i an ancestor of @below, or the same?  Keys that others chose may name each other. */
bool blocks_is_above(const struct blocks *b, uint32_t i, uint32_t below);
enum blocks_step {
	STEP_BUCKET,
	STEP_NODE,
	STEP_NEXT
}; /* the place, the first that lies there, the one behind it if need be */
/** blocks_prefetch() - it will be asked for: each step when the one before has had time to come */
void blocks_prefetch(const struct blocks *b, const struct kvp_key *key, enum blocks_step step);
/** blocks_prefetch_neighbours() - it will be taken out of the lists it is in */
void blocks_prefetch_neighbours(const struct blocks *b, uint32_t i);
uint32_t block_tag(const struct blocks *b, const struct kvp_key *key);
uint64_t blocks_bytes(const struct blocks *b);

#endif
