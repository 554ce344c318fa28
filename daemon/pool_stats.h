/*
 * pool_stats.h - the stats object's layout (kvpool_stats.h): made, judged, and taken over from a kvpoold that had other
 * counters
 *
 * Counters come and go between minor versions; the roll of namespaces, sessions and slabs in the same object must not
 * be lost for that: with it would go every block in memory.  Used by pool.c only, under the pool's lock.
 */
#ifndef KVPOOL_POOL_STATS_H
#define KVPOOL_POOL_STATS_H

#include "pool.h"

uint64_t pool_stats_bytes(uint64_t max_places);
/** pool_stats_fill() - the head of a new object */
void pool_stats_fill(struct kvp_stats *stats, const uint8_t uuid[16], uint32_t max_places);
/** pool_stats_fit() - is it of this pool and of this very layout? */
bool pool_stats_fit(const struct kvp_stats *stats, const uint8_t uuid[16], uint32_t max_places);
/** pool_stats_renew() - replace the pool's object if only its counters differ. Return: 0, though it may not fit;
 *  -errno, said. */
int pool_stats_renew(const struct pool *pool, char message[256]);

#endif
