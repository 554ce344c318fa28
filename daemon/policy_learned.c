/*
 * policy_learned.c - the order in which blocks go: by class of use, age and hint; and the guard that lets it decide only where it is better
 *
 * Blocks of a set are in lists by class, used last first, and of one request its first block first.  What goes is the tail of one of these lists,
 * the one whose memory is worth least by the learner's tables, or a leaf below it.  While least recent use leads it is the oldest of the
 * tails; the lists stay as they are.  See kvpool_policy.h.
 */
#include "policy_parts.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAD_Z 1.75 /* standard deviations of hits ahead before the learned order leads */
#define LAG_Z 1.5 /* behind, before it does so no more */
#define LEAD_MEMORY(capacity) \
	(4.0 * (double)(capacity) + 20000) /* blocks asked for until the lead is forgotten to 1/e */
#define CHILDREN_LOOKED_AT 8u
#define CHILDREN_PASSED 4096u /* that are not in the set */

struct set {
	uint32_t head[CLASSES], tail[CLASSES];
	uint32_t
		tail_stamp[CLASSES]; /* of each tail: all are looked at for each that goes, and lie side by side here */
	uint32_t last
		[CLASSES]; /* by class: the deepest block of the last request that is in: what comes next goes behind it */
	uint64_t some[2]; /* bits: lists that are not empty */
	uint64_t n;
	unsigned bit; /* which of node.in, node.link */
	bool by_worth;
	bool by_class; /* else one list */
};

struct learned {
	uint64_t capacity;
	bool guarded;
	struct learner learner;
	struct blocks blocks;
	struct set set[SETS];
	uint32_t request, stamp; /* the last, and when */
	uint32_t *chain; /* nodes of the last request */
	uint64_t n_chain, room;
	double lead, variance; /* hits ahead of least recent use, decayed, and their squares */
	uint64_t switches;
};

/* ---- sets ---- */

static bool set_has(const struct set *set, const struct node *node)
{
	return node->in >> set->bit & 1;
}

static unsigned set_list(const struct set *set, const struct node *node)
{
	return set->by_class ? node->class : 0;
}

static void set_unlink(struct learned *l, struct set *set, uint32_t i)
{
	struct node *node = l->blocks.node, *me = &node[i];
	unsigned list = set_list(set, me);
	uint32_t prev = me->link[set->bit].prev, next = me->link[set->bit].next;

	if (prev)
		node[prev].link[set->bit].next = next;
	else
		set->head[list] = next;
	if (next) {
		node[next].link[set->bit].prev = prev;
	} else {
		set->tail[list] = prev;
		set->tail_stamp[list] = prev ? node[prev].stamp : 0;
	}
	if (set->last[list] == i)
		set->last[list] = 0;
	if (!set->head[list])
		set->some[list / 64] &= ~(1ull << list % 64);
}

/* Behind @before; 0: at the head. */
static void set_link(struct learned *l, struct set *set, uint32_t i, uint32_t before)
{
	struct node *node = l->blocks.node, *me = &node[i];
	unsigned list = set_list(set, me);
	uint32_t next = before ? node[before].link[set->bit].next : set->head[list];

	me->link[set->bit].prev = before;
	me->link[set->bit].next = next;
	if (before)
		node[before].link[set->bit].next = i;
	else
		set->head[list] = i;
	if (next) {
		node[next].link[set->bit].prev = i;
	} else {
		set->tail[list] = i;
		set->tail_stamp[list] = me->stamp;
	}
	set->some[list / 64] |= 1ull << list % 64;
}

static void set_add(struct learned *l, struct set *set, uint32_t i)
{
	struct node *me = &l->blocks.node[i];
	uint32_t *last = &set->last[set_list(set, me)];

	set_link(l, set, i, me->request == l->request ? *last : 0);
	if (me->request == l->request)
		*last = i;
	me->in |= 1u << set->bit & 7;
	set->n++;
	if (me->parent && set->bit < TREES)
		l->blocks.node[me->parent].children[set->bit]++;
}

static void set_take(struct learned *l, struct set *set, uint32_t i)
{
	struct node *me = &l->blocks.node[i];

	set_unlink(l, set, i);
	me->in &= (uint8_t) ~(1u << set->bit);
	set->n--;
	if (me->parent && set->bit < TREES)
		l->blocks.node[me->parent].children[set->bit]--;
	if (!me->in && me->request != l->request)
		blocks_forget(&l->blocks, i);
}

/* The lower, the sooner it goes. */
static double set_worth(const struct learned *l, const struct set *set, unsigned class, uint32_t stamp, double now)
{
	double age = stamp_age(stamp, now);

	return set->by_worth ? l->learner.worth[class][learner_age(age)] : -age;
}

/* A leaf below it, each time the child that is worth least of those looked at. 0: none found. */
static uint32_t set_leaf(const struct learned *l, const struct set *set, uint32_t i, double now)
{
	const struct node *node = l->blocks.node;

	while (set->bit < TREES && node[i].children[set->bit]) {
		unsigned looked = 0, passed = 0;
		uint32_t best = 0;
		double least = INFINITY;

		for (uint32_t c = node[i].first_child; c && looked < CHILDREN_LOOKED_AT && passed < CHILDREN_PASSED;
			c = node[c].next_sibling) {
			double worth;

			if (!set_has(set, &node[c])) {
				passed++;
				continue;
			}
			looked++;
			worth = set_worth(l, set, node[c].class, node[c].stamp, now);
			if (worth < least) {
				least = worth;
				best = c;
			}
		}
		if (!best)
			return 0;
		i = best;
	}
	return i;
}

/* The tail that is worth least, none of the last request; 0: there is none. */
static uint32_t set_least(const struct learned *l, const struct set *set, double now, double *worth)
{
	const struct node *node = l->blocks.node;
	uint32_t best = 0;

	*worth = INFINITY;
	for (unsigned w = 0; w < 2; w++)
		for (uint64_t some = set->some[w]; some; some &= some - 1) {
			unsigned list = 64 * w + (unsigned)__builtin_ctzll(some);
			uint32_t i = set->tail[list], stamp = set->tail_stamp[list];
			double this;

			if (stamp == l->stamp) {
				while (i && node[i].request == l->request)
					i = node[i].link[set->bit].prev;
				if (!i)
					continue;
				stamp = node[i].stamp;
			}
			this = set_worth(l, set, list, stamp, now);
			if (this < *worth) {
				*worth = this;
				best = i;
			}
		}
	return best;
}

/* ---- a request ---- */

/* Nodes of the last request that came into no set. */
static void learned_end_request(struct learned *l)
{
	l->request++;
	for (uint64_t k = l->n_chain; k > 0; k--)
		if (!l->blocks.node[l->chain[k - 1]].in)
			blocks_forget(&l->blocks, l->chain[k - 1]);
	l->n_chain = 0;
	for (unsigned s = 0; s < SETS; s++)
		memset(l->set[s].last, 0, sizeof(l->set[s].last));
}

/* Nodes for all of it. Return: how many of the leading ones are known. */
static int64_t learned_chain(struct learned *l, const struct kvp_key *keys, uint64_t n)
{
	uint64_t known = 0;

	if (n > l->room) {
		uint32_t *chain = realloc(l->chain, n * sizeof(*chain));

		if (!chain)
			return -ENOMEM;
		l->chain = chain;
		l->room = n;
	}
	for (uint64_t k = 0; k < n && k < 8; k++)
		blocks_prefetch(&l->blocks, &keys[k], false);
	for (uint64_t k = 0; k < n; k++) {
		uint32_t i;

		if (k + 8 < n)
			blocks_prefetch(&l->blocks, &keys[k + 8], false);
		if (k + 4 < n)
			blocks_prefetch(&l->blocks, &keys[k + 4], true);
		i = blocks_get(&l->blocks, &keys[k]);
		if (!i)
			return -ENOMEM;
		if (l->blocks.node[i].request == l->request)
			return -EINVAL; /* the same key twice: no chain */
		l->blocks.node[i].request = l->request;
		blocks_hang(&l->blocks, i, k ? l->chain[k - 1] : 0);
		l->chain[l->n_chain++] = i;
		if (known == k && l->blocks.node[i].uses)
			known++;
	}
	return (int64_t)known;
}

/* It was used: another class, out of its lists for now. */
static void learned_touch(struct learned *l, uint32_t i, unsigned match, double now, enum policy_hint hint)
{
	struct node *node = &l->blocks.node[i];

	for (unsigned s = 0; s < SETS; s++)
		if (set_has(&l->set[s], node))
			set_unlink(l, &l->set[s], i);
	node->uses += node->uses < USES_MAX;
	node->class = learner_class(node->uses, match, hint) & 127;
	node->stamp = stamp_of(now);
	node->ring = learner_touch(&l->learner, block_tag(&node->key), node->ring, (uint8_t)node->class, now);
}

/* Back into the lists. Return: how many of the leading ones are in. */
static uint64_t set_relink(struct learned *l, struct set *set)
{
	const struct node *node = l->blocks.node;
	uint64_t hits = 0;

	while (hits < l->n_chain && set_has(set, &node[l->chain[hits]]))
		hits++;
	for (uint64_t k = l->n_chain; k > 0; k--) {
		uint32_t i = l->chain[k - 1], *last = &set->last[set_list(set, &node[i])];

		if (!set_has(set, &node[i]))
			continue;
		set_link(l, set, i, 0);
		if (!*last)
			*last = i;
	}
	return hits;
}

/* Room for one more of the last request. Return: false: what would go is worth more, or there is nothing. */
static bool set_room(struct learned *l, struct set *set, uint32_t i, double now)
{
	double worth;
	uint32_t least;

	if (set->n < l->capacity)
		return true;
	least = set_least(l, set, now, &worth);
	if (!least || (set->by_worth && worth > l->learner.worth[l->blocks.node[i].class][0]))
		return false;
	least = set_leaf(l, set, least, now);
	if (!least)
		return false;
	set_take(l, set, least);
	return true;
}

/* What a shadow would keep of the request. Return: what it had. */
static uint64_t shadow_serve(struct learned *l, struct set *set, double now)
{
	uint64_t hits = set_relink(l, set);

	for (uint64_t k = hits; k < l->n_chain; k++) {
		if (set_has(set, &l->blocks.node[l->chain[k]]))
			continue;
		if (!set_room(l, set, l->chain[k], now))
			break;
		set_add(l, set, l->chain[k]);
	}
	return hits;
}

/* Who leads? */
static void guard_judge(struct learned *l, uint64_t learned, uint64_t lru)
{
	double ahead = (double)learned - (double)lru;
	double kept = exp(-(double)l->n_chain / LEAD_MEMORY(l->capacity)), z;
	bool leads = l->set[SET_MEMORY].by_worth;

	l->lead = l->lead * kept + ahead;
	l->variance = l->variance * kept + ahead * ahead;
	z = l->lead / sqrt(l->variance + 1);
	if (leads ? z < -LAG_Z : z > LEAD_Z) {
		l->set[SET_MEMORY].by_worth = !leads;
		l->switches++;
	}
}

int64_t learned_request(struct learned *l, const struct kvp_key *keys, uint64_t n, double now, enum policy_hint hint)
{
	int64_t known;
	unsigned match;

	learned_end_request(l);
	l->stamp = stamp_of(now);
	learner_advance(&l->learner, now);
	known = learned_chain(l, keys, n);
	if (known < 0)
		return known;
	match = learner_match((uint64_t)known, n);
	for (uint64_t k = 0; k < n; k++)
		learned_touch(l, l->chain[k], match, now, hint);
	if (l->guarded) {
		uint64_t learned = shadow_serve(l, &l->set[SET_LEARNED], now);

		guard_judge(l, learned, shadow_serve(l, &l->set[SET_LRU], now));
	}
	return (int64_t)set_relink(l, &l->set[SET_MEMORY]);
}

/* ---- what is in ---- */

bool learned_admits(struct learned *l, const struct kvp_key *key, double now)
{
	const struct set *set = &l->set[SET_MEMORY];
	uint32_t i = blocks_find(&l->blocks, key), least;
	uint8_t class = 0;
	double worth;

	if (i)
		class = l->blocks.node[i].class;
	else
		blocks_peek(&l->blocks, key, &class);
	least = set_least(l, set, now, &worth);
	return least && (!set->by_worth || worth <= l->learner.worth[class][0]);
}

int learned_insert(struct learned *l, const struct kvp_key *key, const struct kvp_key *parent, double now)
{
	struct set *set = &l->set[SET_MEMORY];
	uint32_t i = blocks_get(&l->blocks, key);

	if (!i)
		return -ENOMEM;
	if (set_has(set, &l->blocks.node[i]))
		return 0;
	if (!l->blocks.node[i].request)
		learned_touch(l, i, 0, now, POLICY_HINT_NONE); /* nobody said that it was asked for */
	if (!l->blocks.node[i].parent && parent && !blocks_is_above(&l->blocks, i, blocks_find(&l->blocks, parent)))
		blocks_hang(&l->blocks, i, blocks_find(&l->blocks, parent));
	set_add(l, set, i);
	return 0;
}

void learned_remove(struct learned *l, const struct kvp_key *key)
{
	uint32_t i = blocks_find(&l->blocks, key);

	if (i && set_has(&l->set[SET_MEMORY], &l->blocks.node[i]))
		set_take(l, &l->set[SET_MEMORY], i);
}

bool learned_victim(struct learned *l, double now, struct kvp_key *key)
{
	double worth;
	uint32_t i = set_least(l, &l->set[SET_MEMORY], now, &worth);

	if (i)
		i = set_leaf(l, &l->set[SET_MEMORY], i, now);
	if (!i)
		return false;
	*key = l->blocks.node[i].key;
	return true;
}

void learned_defer(struct learned *l, const struct kvp_key *key, double now)
{
	uint32_t i = blocks_find(&l->blocks, key);

	if (!i || !set_has(&l->set[SET_MEMORY], &l->blocks.node[i]))
		return;
	set_unlink(l, &l->set[SET_MEMORY], i);
	l->blocks.node[i].stamp = stamp_of(now);
	set_link(l, &l->set[SET_MEMORY], i, 0);
}

/* ---- what is known of a block ---- */

static unsigned learned_known(
	const struct learned *l, const struct kvp_key *key, uint8_t *class, double *age, double now)
{
	uint32_t i = blocks_find(&l->blocks, key);

	*age = 0;
	if (!i)
		return blocks_peek(&l->blocks, key, class);
	*class = l->blocks.node[i].class;
	*age = stamp_age(l->blocks.node[i].stamp, now);
	return l->blocks.node[i].uses;
}

double learned_chance(struct learned *l, const struct kvp_key *key, double now, double horizon_s)
{
	uint8_t class;
	double age;

	learned_known(l, key, &class, &age, now);
	return learner_chance(&l->learner, class, age, horizon_s);
}

double learned_age(struct learned *l, const struct kvp_key *key, double now)
{
	uint8_t class;
	double age;

	learned_known(l, key, &class, &age, now);
	return age;
}

unsigned learned_uses(struct learned *l, const struct kvp_key *key)
{
	uint8_t class;
	double age;

	return learned_known(l, key, &class, &age, 0);
}

void learned_view(const struct learned *l, struct learned_view *view)
{
	*view = (struct learned_view){.n = l->set[SET_MEMORY].n,
		.capacity = l->capacity,
		.bytes = sizeof(*l) + blocks_bytes(&l->blocks) + l->room * sizeof(*l->chain),
		.leads = l->set[SET_MEMORY].by_worth,
		.lead = l->lead,
		.switches = l->switches};
}

/* ---- life ---- */

struct learned *learned_new(uint64_t capacity, bool guarded)
{
	struct learned *l = calloc(1, sizeof(*l));

	if (!l || !blocks_init(&l->blocks, capacity)) {
		free(l);
		return NULL;
	}
	l->capacity = capacity;
	l->guarded = guarded;
	l->request = 1; /* a new node is of none */
	for (unsigned s = 0; s < SETS; s++) {
		l->set[s].bit = s;
		l->set[s].by_class = s != SET_LRU;
	}
	l->set[SET_MEMORY].by_worth = !guarded;
	l->set[SET_LEARNED].by_worth = true;
	learner_init(&l->learner);
	return l;
}

void learned_free(struct learned *l)
{
	if (!l)
		return;
	blocks_free(&l->blocks);
	free(l->chain);
	free(l);
}

bool learned_resize(struct learned *l, uint64_t capacity)
{
	if (capacity == l->capacity)
		return true;
	if (!blocks_resize(&l->blocks, capacity))
		return false;
	l->capacity = capacity;
	for (unsigned s = SET_LEARNED; s < SETS; s++)
		while (l->set[s].n > capacity) {
			double worth;
			uint32_t i = set_least(l, &l->set[s], 0, &worth);

			i = i ? set_leaf(l, &l->set[s], i, 0) : 0;
			if (!i)
				break;
			set_take(l, &l->set[s], i);
		}
	return true;
}
