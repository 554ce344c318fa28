/*
 * curve.h - how many tokens would have been found with more memory, or with less, from a sample of the keys
 *
 * Spatially hashed sampling of a fixed size (SHARDS: Waldspurger et al., Efficient MRC Construction with SHARDS, FAST
 * 2015): a key is watched if its hash is below a threshold, which falls when there are more keys than places.  Of a
 * watched key each use tells how many bytes of watched keys were used since its last one; over the part of keys that is
 * watched, that is the memory in which it would have been found again by an LRU pool.  Uses nobody saw (of which only
 * the sum is told) were too soon after another to be seen, and count as found in any memory: SHARDS' own correction.
 *
 * Knows neither daemon nor shared memory but for the struct it fills; one thread; 3.3 MiB.
 */
#ifndef KVPOOL_CURVE_H
#define KVPOOL_CURVE_H

#include <stdbool.h>
#include <stdint.h>

#include "kvpool_stats.h"

#define CURVE_SAMPLE 32768u /* keys watched at most */
#define CURVE_FORGET_S 43200u /* a key not used for so long is a new one: 1/64 of its weight is left by then */

struct curve;

struct curve_use {
	uint64_t hash; /* of the key: evenly spread */
	uint64_t bytes; /* of memory that its block takes */
	uint32_t tokens;
	uint32_t when; /* tick; a use not later than the last one known of the key is that one */
};

/** curve_open() - @ticks a second; @when: the first one. Return: 0; -ENOMEM. */
int curve_open(struct curve **curve, uint32_t ticks, uint32_t when);
void curve_close(struct curve *curve);

/** curve_watches() - is this key one of the sample? Of others nothing need be told but their tokens. */
bool curve_watches(const struct curve *curve, uint64_t hash);
/** curve_use() - a use of a watched key. Counted with the next curve_flush(): what is told in between counts as used
 *  together. */
void curve_use(struct curve *curve, const struct curve_use *use);
/** curve_flush() - the uses told together: distances of all as it was before, then the last one told is the oldest */
void curve_flush(struct curve *curve);
/** curve_told() - so many tokens were used, of watched keys and others, seen and not */
void curve_told(struct curve *curve, double tokens);
/** curve_seed() - a key that was there before the first use, last used at @use->when; counts as no use. curve_seeded():
 *  those were all. */
void curve_seed(struct curve *curve, const struct curve_use *use);
void curve_seeded(struct curve *curve);
/** curve_age() - it is @when now: about once a second */
void curve_age(struct curve *curve, uint32_t when);

/** curve_load() - go on from what an earlier one has stored. curve_store() - as it is now. */
void curve_load(struct curve *curve, const struct kvp_curve *from);
void curve_store(const struct curve *curve, struct kvp_curve *to);

#endif
