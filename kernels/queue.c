/* queue.c - see queue.h; threads meet in atomic counters only */
#include "queue.h"

#include <errno.h>
#include <stdlib.h>

void queue_init(struct queue *queue, uint64_t n)
{
	queue->order = NULL;
	for (uint32_t i = 0; i <= QUEUE_NODES; i++) {
		atomic_init(&queue->shares[i].next, 0);
		queue->shares[i].end = i == QUEUE_NOWHERE ? n : 0;
	}
}

int queue_sort(struct queue *queue, uint64_t n, uint32_t (*node_of)(void *arg, uint64_t i), void *arg)
{
	uint64_t at[QUEUE_NODES + 1] = {0}, first = 0;
	uint8_t *nodes = malloc(n ? n : 1);

	queue->order = calloc(n ? n : 1, sizeof(*queue->order));
	if (!nodes || !queue->order) {
		free(nodes);
		queue_deinit(queue);
		return -ENOMEM;
	}
	for (uint64_t i = 0; i < n; i++)
		at[nodes[i] = (uint8_t)node_of(arg, i)]++;
	for (uint32_t i = 0; i <= QUEUE_NODES; i++) {
		const uint64_t count = at[i];

		at[i] = first;
		atomic_init(&queue->shares[i].next, first);
		queue->shares[i].end = first += count;
	}
	for (uint64_t i = 0; i < n; i++)
		queue->order[at[nodes[i]]++] = i;
	free(nodes);
	return 0;
}

void queue_deinit(struct queue *queue)
{
	free(queue->order);
	queue->order = NULL;
}

/* Reading first keeps the counter of an empty share from growing with each visit. */
static bool share_take(struct queue *queue, uint32_t i, uint64_t *unit)
{
	struct queue_share *share = &queue->shares[i];
	uint64_t at = atomic_load_explicit(&share->next, memory_order_relaxed);

	if (at >= share->end)
		return false;
	at = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
	if (at >= share->end)
		return false;
	*unit = queue->order ? queue->order[at] : at;
	return true;
}

bool queue_take(struct queue *queue, uint32_t node, uint64_t *unit)
{
	if (node < QUEUE_NODES && share_take(queue, node, unit))
		return true;
	if (share_take(queue, QUEUE_NOWHERE, unit))
		return true;
	for (uint32_t i = 1; i <= QUEUE_NODES && queue->order; i++)
		if (share_take(queue, (node + i) % QUEUE_NODES, unit))
			return true;
	return false;
}
