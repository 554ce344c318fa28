/*
 * index.h - the shared hash index of a namespace, its only writer's side
 *
 * Rules at struct kvp_index_bucket in kvpool_shm.h.
 */
#ifndef KVPOOL_INDEX_H
#define KVPOOL_INDEX_H

#include "kvpool_shm.h"

struct index {
	struct kvp_index_bucket *buckets;
	uint64_t n_buckets;
	const struct kvp_block *blocks;
	uint64_t n_blocks;
};

/** index_insert() - Return: false: no room within the probes; the block is then not findable, which is a miss. */
bool index_insert(const struct index *index, const struct kvp_key *key, uint64_t slot);
/** index_remove() - take out the hint of @slot, and keep later ones findable */
void index_remove(const struct index *index, const struct kvp_key *key, uint64_t slot);
/** index_find() - as a reader probes. Return: a slot whose descriptor has this key, or UINT64_MAX. */
uint64_t index_find(const struct index *index, const struct kvp_key *key);

#endif
