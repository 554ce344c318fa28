/*
 * replay_best.c - the optimum: what is used again latest goes first, and need not be taken in at all
 *
 * Exact for whole prefixes: a block is never used later than what hangs below it, so of equals the deepest goes first
 * and what is left is always reachable.
 */
#include "replay.h"

#include <errno.h>
#include <stdlib.h>

#define NEVER UINT32_MAX

/* A heap of blocks by next use, the latest on top; of equals the one that stands deeper in its request. */
struct future {
	uint32_t *heap; /* from 1 */
	uint32_t *place; /* by block; 0: not in */
	uint32_t *next; /* by block: the request that uses it next */
	uint32_t *depth;
	uint32_t n;
};

static bool later(const struct future *f, uint32_t a, uint32_t b)
{
	return f->next[a] != f->next[b] ? f->next[a] > f->next[b] : f->depth[a] > f->depth[b];
}

static void future_put(struct future *f, uint32_t i, uint32_t block)
{
	f->heap[i] = block;
	f->place[block] = i;
}

/* It is in, or its next use changed. */
static void future_settle(struct future *f, uint32_t block)
{
	uint32_t i = f->place[block] ? f->place[block] : ++f->n;

	for (; i > 1 && later(f, block, f->heap[i / 2]); i /= 2)
		future_put(f, i, f->heap[i / 2]);
	for (uint32_t child; (child = 2 * i) <= f->n; i = child) {
		child += child < f->n && later(f, f->heap[child + 1], f->heap[child]);
		if (!later(f, f->heap[child], block))
			break;
		future_put(f, i, f->heap[child]);
	}
	future_put(f, i, block);
}

static void future_pop(struct future *f)
{
	uint32_t last = f->heap[f->n--];

	f->place[f->heap[1]] = 0;
	if (!f->n)
		return;
	f->place[last] = 1;
	future_settle(f, last);
}

/* By position in the trace: which request uses that block next. */
static uint32_t *uses_next(const struct replay_trace *trace)
{
	uint32_t *next = malloc(trace->n_ids * sizeof(*next));
	uint32_t *seen = malloc((uint64_t)trace->n_blocks * sizeof(*seen));

	for (uint32_t i = 0; seen && i < trace->n_blocks; i++)
		seen[i] = NEVER;
	for (uint64_t r = trace->n_requests; next && seen && r > 0; r--) {
		const struct replay_request *request = &trace->requests[r - 1];

		for (uint64_t k = request->first; k < request->first + request->n; k++) {
			next[k] = seen[trace->ids[k]];
			seen[trace->ids[k]] = (uint32_t)(r - 1);
		}
	}
	if (!seen) {
		free(next);
		next = NULL;
	}
	free(seen);
	return next;
}

int64_t replay_best(const struct replay_trace *trace, uint64_t blocks)
{
	struct future f = {.heap = calloc((uint64_t)trace->n_blocks + 2, sizeof(*f.heap)),
		.place = calloc(trace->n_blocks, sizeof(*f.place)),
		.next = calloc(trace->n_blocks, sizeof(*f.next)),
		.depth = calloc(trace->n_blocks, sizeof(*f.depth))};
	uint32_t *next = uses_next(trace);
	int64_t hits = -ENOMEM;

	if (!f.heap || !f.place || !f.next || !f.depth || !next)
		goto out;
	hits = 0;
	for (uint64_t r = 0; r < trace->n_requests; r++) {
		const struct replay_request *request = &trace->requests[r];
		const uint32_t *ids = trace->ids + request->first;
		uint32_t found = 0;

		while (found < request->n && f.place[ids[found]])
			found++;
		hits += found;
		for (uint32_t k = 0; k < request->n; k++) {
			f.next[ids[k]] = next[request->first + k];
			f.depth[ids[k]] = k;
			future_settle(&f, ids[k]);
		}
		while (f.n > blocks)
			future_pop(&f);
	}
out:
	free(f.heap);
	free(f.place);
	free(f.next);
	free(f.depth);
	free(next);
	return hits;
}
