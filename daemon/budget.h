/*
 * budget.h - how much memory each node gives to slabs: what the operator asked for, shared out, and what came of it
 *
 * The books are slab.c's to keep in step: a slab counts on its node while it is there (total, and spare), and what a
 * maker has under way counts as moving.  Nothing is allocated that does not fit in its node's budget and in the pool's.
 */
#ifndef KVPOOL_BUDGET_H
#define KVPOOL_BUDGET_H

#include <stdint.h>

#include "topology.h"

struct daemon;

struct budget_node {
	uint64_t budget;
	uint64_t total, spare; /* bytes in slabs; of these, in no namespace */
	uint64_t moving; /* slabs being made, and those being emptied for them */
	uint64_t huge; /* of total: bytes in pages larger than 4k */
	uint64_t placed; /* of total: bytes that really lie on this node, as the kernel told */
	uint32_t n_bound, n_slabs;
};

/** budget_start() - by --pool, for the nodes there are. Return: 0; -EINVAL with @message. */
int budget_start(struct daemon *d, char message[256]);
/** budget_share_out() - over the nodes with memory, equal shares as far as their sizes let */
void budget_share_out(struct daemon *d, uint64_t bytes);
/** budget_set() - another budget of all, in the proportions of --pool */
void budget_set(struct daemon *d, uint64_t bytes);
/** budget_room() - what may be allocated on node @i now */
uint64_t budget_room(const struct daemon *d, uint32_t i);
/** budget_over() - by how much node @i holds more than its budget */
uint64_t budget_over(const struct daemon *d, uint32_t i);
/** budget_stats() - into the stats object */
void budget_stats(struct daemon *d);

#endif
