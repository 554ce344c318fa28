/*
 * policy.c - see policy.h.  The order of blocks of a namespace is policy_lru.c's, which kvctl replay has too.
 */
#include "policy.h"

#include <assert.h>
#include <stddef.h>

#define SECOND_NS 1000000000ull
#define SECOND_KEPT 0.98851402 /* 2^(-1/60): halved each minute */
#define FORGOTTEN_S 1200 /* nothing is left by then */
#define EVIDENCE 32 /* blocks: with fewer it is not known how they are used */
#define CHANCE_UNKNOWN (1.0 / 4)
#define CHANCE_LEAST (1.0 / 8)
#define AGE_ADDED (10 * TICKS_PER_SECOND)

static_assert(offsetof(struct entry, leaf) == offsetof(struct entry, stamp) && !offsetof(struct lru_leaf, stamp),
	"an entry's stamp is its leaf's");

static struct lru *policy_heap_of(struct ns *ns, const struct entry *e)
{
	return e->far ? &ns->far_heap : &ns->heap;
}

bool policy_add(struct ns *ns, struct entry *e)
{
	return lru_add(policy_heap_of(ns, e), &e->leaf);
}

void policy_remove(struct ns *ns, struct entry *e)
{
	lru_remove(policy_heap_of(ns, e), &e->leaf);
}

void policy_touch(struct ns *ns, struct entry *e)
{
	lru_touch(policy_heap_of(ns, e), &e->leaf);
}

static struct entry *policy_entry(struct lru_leaf *leaf)
{
	return leaf ? (struct entry *)(void *)((char *)leaf - offsetof(struct entry, leaf)) : NULL;
}

struct entry *policy_first_near(struct ns *ns)
{
	return policy_entry(lru_first(&ns->heap));
}

struct entry *policy_first_far(struct ns *ns)
{
	return policy_entry(lru_first(&ns->far_heap));
}

struct entry *policy_first(struct ns *ns)
{
	struct entry *far = policy_first_far(ns);

	return far ? far : policy_first_near(ns);
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
