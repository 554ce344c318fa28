/*
 * race_reader.h - the library's reader beside the daemon's evictor, in one process, over the same plain memory
 *
 * A file of its own, for the library and the daemon each have a struct session.
 */
#ifndef KVPOOL_TEST_RACE_READER_H
#define KVPOOL_TEST_RACE_READER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvpool_shm.h"

#define RACE_PLACES_MAX 8u

/* What a client has mapped. */
struct race_memory {
	const struct kvp_pool_header *pool;
	struct kvp_session_header *session;
	const struct kvp_ns_header *ns;
	const struct kvp_slab *slabs;
	const struct kvp_block *blocks;
	const struct kvp_index_bucket *index;
	char *slab_bytes[RACE_PLACES_MAX];
};

struct race_reader {
	struct race_memory memory;
	const struct kvp_key *keys;
	uint32_t n_keys;
	_Atomic bool stop;
	uint64_t looks, reads;
	uint64_t wrong; /* bytes of another key, or torn ones, under a pin */
	uint64_t lost; /* holds that were gone when they were given back, though nobody revokes */
	_Atomic uint64_t slot; /* race_arrive(): where a block arrives */
	uint64_t whole; /* of reads, those whose block was published in the meantime */
};

/** race_content() - what 8 bytes of the block of key @n hold */
static inline uint64_t race_content(uint32_t n)
{
	return 0x0101010101010101ull * (n + 1);
}

/** race_find() - one look as the library does it. Return: found, pinned, and given back; *content: what was read. */
bool race_find(const struct race_memory *memory, const struct kvp_key *key, uint64_t *content);
/** race_read() - a thread: find, pin, read, look, unpin, until told to stop */
void *race_read(void *reader);
/** race_arrive() - likewise, of blocks that are being read back */
void *race_arrive(void *reader);

#endif
