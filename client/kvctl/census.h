/*
 * census.h - one namespace recounted from its own object: slab table, descriptors, index
 *
 * Read with pread, only places that hold a slab: descriptor pages of others do not exist and are not made by looking.
 * The copy is not of one instant; what a running daemon changed meanwhile is for the caller to look at again.
 */
#ifndef KVCTL_CENSUS_H
#define KVCTL_CENSUS_H

#include <stdint.h>

#include "finding.h"
#include "kvpool_stats.h"
#include "pool.h"

struct census {
	char object[POOL_PATH_MAX]; /* for findings */
	uint64_t ns_id, base_id;
	int fd;
	struct kvp_ns_header *head; /* a copy */
	struct kvp_slab *slabs; /* by place */
	struct kvp_block **places; /* by place: its descriptors, or NULL */
	struct kvp_index_bucket *index;
	uint64_t *keys; /* open addressing: slot + 1 of a published block */
	uint64_t n_keys_room;
	uint8_t **marks; /* by place, for each slot: held, hinted at */
	/* recounted */
	uint64_t slots, by_state[7], held_slots, draining;
	uint64_t pins; /* hash of all pins in its places, with their stamps */
	bool readable;
};

/** census_open() - read the whole object; findings tell what is wrong with its head. Return: 0; -ENOMEM; -EACCES. */
int census_open(
	struct census *census, const struct pool *pool, const struct kvp_ns_row *row, struct findings *findings);
void census_close(struct census *census);

/** census_count() - slots by state; whatever is DRAINING is looked at again for a while */
void census_count(struct census *census);
/** census_check_blocks() - each published block: its fields, its key once, its hint findable; each hint: its slot */
void census_check_blocks(struct census *census, struct findings *findings);
/** census_missing_parents() - published blocks that nobody holds, whose parent is not published here nor in @base (or NULL): it must be
 *  cold.  One that is held stays when its parent goes with a broken slab.  After census_hold(). */
uint64_t census_missing_parents(const struct census *census, const struct census *base);

/** census_block() - descriptor of a slot, NULL: no slab there, or out of bounds */
const struct kvp_block *census_block(const struct census *census, uint64_t slot);
/** census_hold() - some session pins this slot. Return: it holds a block there; a pin on any other slot is nobody's
 *  hold. */
bool census_hold(struct census *census, uint32_t place, uint32_t index);
/** census_grants_of() - slots granted to a session, those withdrawn and set aside included */
uint64_t census_grants_of(const struct census *census, uint64_t session_id);

#endif
