/*
 * policy.c - see policy.h.  The order of blocks is a binary heap, oldest stamp first, and of one tick (hundreds of blocks may be published in one)
 * who was put in order first.  Both wrap, so they are compared by difference.
 */
#include "policy.h"

#include <stdlib.h>

#define SECOND_NS 1000000000ull
#define SECOND_KEPT 0.98851402 /* 2^(-1/60): halved each minute */
#define FORGOTTEN_S 1200 /* nothing is left by then */
#define EVIDENCE 32 /* blocks: with fewer it is not known how they are used */
#define CHANCE_UNKNOWN (1.0 / 4)
#define CHANCE_LEAST (1.0 / 8)
#define AGE_ADDED (10 * TICKS_PER_SECOND)

static bool policy_before(const struct entry *a, const struct entry *b)
{
	return a->stamp != b->stamp ? (int32_t)(a->stamp - b->stamp) < 0 : (int32_t)(a->order - b->order) < 0;
}

static void policy_put(struct policy_heap *heap, uint32_t i, struct entry *e)
{
	heap->at[i] = e;
	e->heap_index = i;
}

static void policy_up(struct policy_heap *heap, uint32_t i, struct entry *e)
{
	for (; i > 1 && policy_before(e, heap->at[i / 2]); i /= 2)
		policy_put(heap, i, heap->at[i / 2]);
	policy_put(heap, i, e);
}

static void policy_down(struct policy_heap *heap, uint32_t i, struct entry *e)
{
	for (uint32_t child; (child = 2 * i) <= heap->n; i = child) {
		if (child < heap->n && policy_before(heap->at[child + 1], heap->at[child]))
			child++;
		if (!policy_before(heap->at[child], e))
			break;
		policy_put(heap, i, heap->at[child]);
	}
	policy_put(heap, i, e);
}

static struct policy_heap *policy_heap_of(struct ns *ns, const struct entry *e)
{
	return e->far ? &ns->far_heap : &ns->heap;
}

bool policy_add(struct ns *ns, struct entry *e)
{
	struct policy_heap *heap = policy_heap_of(ns, e);

	if (e->heap_index)
		return true;
	if (heap->n + 1 >= heap->room) {
		uint32_t room = heap->room ? 2 * heap->room : 64;
		struct entry **at = realloc(heap->at, room * sizeof(*at));

		if (!at)
			return false;
		heap->at = at;
		heap->room = room;
	}
	e->order = heap->next_order++;
	policy_up(heap, ++heap->n, e);
	return true;
}

void policy_remove(struct ns *ns, struct entry *e)
{
	struct policy_heap *heap = policy_heap_of(ns, e);
	uint32_t i = e->heap_index;
	struct entry *last;

	if (!i)
		return;
	e->heap_index = 0;
	last = heap->at[heap->n--];
	if (last == e)
		return;
	policy_up(heap, i, last);
	policy_down(heap, last->heap_index, last);
}

void policy_touch(struct ns *ns, struct entry *e)
{
	struct policy_heap *heap = policy_heap_of(ns, e);

	if (!e->heap_index)
		return;
	e->order = heap->next_order++;
	policy_up(heap, e->heap_index, e);
	policy_down(heap, e->heap_index, e);
}

struct entry *policy_first_near(struct ns *ns)
{
	return ns->heap.n ? ns->heap.at[1] : NULL;
}

struct entry *policy_first_far(struct ns *ns)
{
	return ns->far_heap.n ? ns->far_heap.at[1] : NULL;
}

struct entry *policy_first(struct ns *ns)
{
	return ns->far_heap.n ? ns->far_heap.at[1] : policy_first_near(ns);
}

void policy_learn(struct policy_use *use, uint64_t used, uint64_t stored, uint64_t now_ns)
{
	uint64_t seconds = (now_ns - use->at_ns) / SECOND_NS;

	if (!use->at_ns) { /* what was before is not of this minute */
		use->used_seen = used;
		use->stored_seen = stored;
		use->at_ns = now_ns;
		return;
	}
	use->at_ns += seconds * SECOND_NS;
	for (uint64_t i = 0; i < seconds && i < FORGOTTEN_S; i++) {
		use->used *= SECOND_KEPT;
		use->stored *= SECOND_KEPT;
	}
	use->used += (double)(used - use->used_seen);
	use->stored += (double)(stored - use->stored_seen);
	use->used_seen = used;
	use->stored_seen = stored;
}

double policy_worth(const struct ns *ns, uint32_t age, bool cost)
{
	double all = ns->use.used + ns->use.stored;
	double chance = all < EVIDENCE ? CHANCE_UNKNOWN : ns->use.used / all;
	double saved =
		cost ? (double)ns->cost_ns_per_token * ns->head->desc.block_tokens / (double)ns->head->block_bytes : 1;

	return (chance > CHANCE_LEAST ? chance : CHANCE_LEAST) * saved / ((double)age + AGE_ADDED);
}
