/*
 * queue.h - units of work that threads take one by one, those of a thread's own node first
 *
 * Which thread takes a unit shows in no bit (see attn.h), so nodes are advice: who finds nothing on its own node goes on
 * with what belongs to none, then with the others'.
 */
#ifndef KVATTN_QUEUE_H
#define KVATTN_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define QUEUE_NODES 64u /* beyond these a node is not told apart */
#define QUEUE_NOWHERE QUEUE_NODES

/* Units in order[first .. end - 1]. */
struct queue_share {
	_Atomic uint64_t next;
	uint64_t end;
};

struct queue {
	uint64_t *order; /* by node; NULL: all belong to none, in order */
	struct queue_share shares[QUEUE_NODES + 1]; /* by node, then those of none */
};

/** queue_init() - units 0 .. @n - 1 that belong to no node */
void queue_init(struct queue *queue, uint64_t n);

/**
 * queue_sort() - units 0 .. @n - 1, unit i on node @node_of(@arg, i), which is below QUEUE_NODES, or QUEUE_NOWHERE
 *
 * Return: 0; -ENOMEM: queue_init() is still possible.  queue_deinit() gives the memory back.
 */
int queue_sort(struct queue *queue, uint64_t n, uint32_t (*node_of)(void *arg, uint64_t i), void *arg);
void queue_deinit(struct queue *queue);

/** queue_take() - the next unit for a thread on @node. Return: false when there is none left. */
bool queue_take(struct queue *queue, uint32_t node, uint64_t *unit);

#endif
