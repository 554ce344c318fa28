/*
 * policy.c - see policy.h.  The orders of a namespace's blocks are policy_lru.c's and policy_learned.c's, which kvctl
 * replay has too.
 */
#include "policy.h"

#include <assert.h>
#include <stddef.h>

#include "kvpool_desc.h"
#include "log.h"
#include "tier.h"

#define SECOND_NS 1000000000ull
#define SECOND_KEPT 0.98851402 /* 2^(-1/60): halved each minute */
#define FORGOTTEN_S 1200 /* nothing is left by then */
#define EVIDENCE 32 /* blocks: with fewer it is not known how they are used */
#define CHANCE_UNKNOWN (1.0 / 4)
#define CHANCE_LEAST (1.0 / 8)
#define AGE_ADDED (10 * TICKS_PER_SECOND)
#define TIME_FIRST (1000000ull * TICKS_PER_SECOND) /* what was there before has an age */
#define ADOPT_BUCKETS 4096 /* of keys, in a tick: some milliseconds */
#define PINNED_LATE_S 2 /* a request is told, then what it found is pinned */

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

struct entry *policy_candidate(struct ns *ns, uint32_t i)
{
	if (i < ns->far_heap.n)
		return policy_entry(ns->far_heap.at[i + 1]);
	i -= ns->far_heap.n;
	return i < ns->heap.n ? policy_entry(ns->heap.at[i + 1]) : NULL;
}

/* ---- learned ---- */

static double policy_seconds(uint64_t ticks)
{
	return (double)(ticks * KVP_TICK_MS) / 1e3;
}

static double policy_now(struct ns *ns)
{
	uint32_t tick = daemon_tick(ns->d);

	if ((int32_t)(tick - ns->learned_tick) > 0)
		ns->learned_ticks += tick - ns->learned_tick;
	ns->learned_tick = tick;
	return policy_seconds(ns->learned_ticks);
}

/* Blocks it has room for, with all the memory that nobody has as yet. */
static uint64_t policy_capacity(const struct ns *ns)
{
	const struct daemon *d = ns->d;
	uint64_t taken = d->slab_bytes_total - d->slab_bytes_spare;
	uint64_t slots = ns->n_slots + (d->budget_bytes > taken ? d->budget_bytes - taken : 0) / ns->head->block_stride;

	return slots - slots * d->config.free_percent / 100;
}

int policy_choose(struct ns *ns, bool learned)
{
	uint64_t seed = ns->d->policy_seed;

	if (learned && !ns->learned) {
		ns->learned = learned_new(policy_capacity(ns), true, seed);
		if (!ns->learned)
			return -ENOMEM;
		ns->learned_ticks = TIME_FIRST;
		ns->learned_tick = daemon_tick(ns->d);
		ns->adopting = 2;
		ns->adopt_at = 0;
	}
	if (!learned)
		policy_end(ns);
	ns->row->flags = (ns->head->flags & ~(uint32_t)KVP_NS_LEARNED) | (learned ? KVP_NS_LEARNED : 0);
	__atomic_store_n(
		&ns->head->flags, ns->row->flags, __ATOMIC_RELAXED); /* clients look there before they tell requests */
	policy_tick(ns);
	return 0;
}

void policy_begin(struct ns *ns)
{
	if (ns->head->flags & KVP_NS_LEARNED && policy_choose(ns, true) < 0)
		log_warn("namespace %s: no memory for its policy: what goes is what was unused for longest",
			ns->head->name);
}

void policy_end(struct ns *ns)
{
	learned_free(ns->learned);
	ns->learned = NULL;
	ns->adopting = 0;
}

/* What was hot before anything was learned; a second time, for by then its parent is in. */
static void policy_adopt(struct entry *e)
{
	struct ns *ns = e->ns;
	int32_t age = (int32_t)(daemon_tick(ns->d) - e->stamp);

	if (e->slot != NO_SLOT)
		learned_adopt(ns->learned, &e->key, kvp_key_is_none(&e->parent_key) ? NULL : &e->parent_key,
			policy_seconds(age > 0 ? (uint32_t)age : 0), policy_now(ns));
}

void policy_tick(struct ns *ns)
{
	struct kvp_ns_counters *c = &ns->row->counters;
	struct learned_view view = {0};

	if (ns->learned) {
		learned_view(ns->learned, &view);
		if (view.capacity != policy_capacity(ns))
			learned_resize(ns->learned, policy_capacity(ns));
	}
	gauge_set(&c->policy, !ns->learned ? 0 : view.leads && !tier_on(ns->d) ? 2 : 1); /* what decides now */
	gauge_set(&c->policy_bytes, view.bytes);
	if (!ns->adopting || ns_entry_each(ns, &ns->adopt_at, ADOPT_BUCKETS, policy_adopt))
		return;
	ns->adopting--;
	ns->adopt_at = 0;
}

void policy_request(struct ns *ns, const struct kvp_key *keys, uint32_t n, uint32_t hint)
{
	const struct entry *first = n ? ns_entry_above(ns, keys) : NULL;

	/* what goes on where something ends was told with its beginning */
	if (!ns->learned || !n || (first && !kvp_key_is_none(&first->parent_key)))
		return;
	if (learned_request(ns->learned, keys, n, policy_now(ns), hint < POLICY_HINTS ? hint : POLICY_HINT_NONE) < 0)
		return;
	gauge_add(&ns->row->counters.requests, 1);
	for (uint32_t k = 0; k < n; k++) {
		struct entry *e = ns_entry_above(ns, &keys[k]);

		if (k + 4 < n)
			ns_entry_prefetch(ns, &keys[k + 4], true);
		if (!e || e->slot == NO_SLOT)
			continue;
		e->stamp = daemon_tick(ns->d);
		policy_touch(e->ns, e);
	}
}

void policy_came(struct entry *e)
{
	struct ns *ns = e->ns;

	if (!ns->learned || ns->moving || !ns->d->served) /* at a start it is policy_adopt()'s */
		return;
	if (learned_insert(
		    ns->learned, &e->key, kvp_key_is_none(&e->parent_key) ? NULL : &e->parent_key, policy_now(ns)) < 0)
		ns->adopting = 2; /* no memory: again later */
}

void policy_went(struct entry *e)
{
	if (e->ns->learned && !e->ns->moving)
		learned_remove(e->ns->learned, &e->key);
}

bool policy_leads(const struct ns *ns)
{
	return ns->learned && learned_leads(ns->learned);
}

struct entry *policy_first_learned(struct ns *ns)
{
	struct kvp_key key;
	struct entry *e = learned_victim(ns->learned, policy_now(ns), &key) ? ns_entry(ns, &key) : NULL;

	assert(!e || e->slot != NO_SLOT);
	return e;
}

bool policy_knew(struct ns *ns, const struct entry *e, uint32_t stamp)
{
	double now = policy_now(ns);

	return learned_age(ns->learned, &e->key, now) <= policy_seconds(daemon_tick(ns->d) - stamp) + PINNED_LATE_S;
}

unsigned policy_uses(struct ns *ns, const struct entry *e)
{
	return learned_uses(ns->learned, &e->key);
}

double policy_chance(struct ns *ns, const struct entry *e, double seconds)
{
	return learned_chance(ns->learned, &e->key, policy_now(ns), seconds);
}

void policy_defer(struct ns *ns, struct entry *e)
{
	e->stamp = daemon_tick(ns->d);
	policy_touch(ns, e);
	if (ns->learned)
		learned_defer(ns->learned, &e->key, policy_now(ns));
}

/* ---- worth ---- */

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
