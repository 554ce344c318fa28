/*
 * policy_learned.c - the order in which blocks go: by class of use, age and hint; and the guard that lets it decide
 * only where it is better
 *
 * Blocks of a set are in lists by class, used last first, and of one request its first block first.  One that comes in
 * and is worth less than all that might go for it is in a list of its own, until it is used again: it had to come in,
 * for its writer holds it, and is the first to go. Else what goes is the tail of one of these lists, the one whose
 * memory is worth least by the learner's tables, or a leaf below it.  What could not go, for it is in use, stands aside
 * for a moment with all it hangs below, or it would be named again and again.  While the order does not lead its caller
 * goes by least recent use; the lists stay as they are.  See kvpool_policy.h.
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
#define STEP \
	16u /* blocks of a chain between one step of fetching a node and the next; before the first one numbers wrap */
#define CHILDREN_LOOKED_AT 8u
#define HELD_S 0.25 /* what could not go is not named again for so long */
#define HELD_STEP 16u /* stamps: no more often is all looked up that a block hangs below */
#define BACK 64u /* of those, back among the others with each that is named */
#define CHILDREN_PASSED 4096u /* that are not in the set */
#define TRIMMED 64u /* blocks a shadow that is too large lets go with a request */

#define FIRST_TO_GO CLASSES /* the list behind those of the classes */
#define HELD (CLASSES + 1) /* and what could not go, looked at last first */
#define LISTS (CLASSES + 2)
#define REQUESTS ((1u << 29) - 1)

struct set {
	uint32_t head[LISTS], tail[LISTS];
	uint32_t tail_stamp[LISTS]; /* of each tail: all are looked at for each that goes, and lie side by side here */
	uint32_t last
		[LISTS]; /* by list: the deepest block of the last request that is in: what comes next goes behind it */
	uint64_t some[2]; /* bits: lists that are not empty */
	uint64_t n;
	double went; /* worth of what went last, for what comes next; negative: one of the first to go, or nothing */
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
	bool full; /* what is in had to make room */
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
	if (!set->by_class)
		return 0;
	if (node->held && set->bit == SET_MEMORY)
		return HELD;
	return node->first >> set->bit & 1 ? FIRST_TO_GO : node->class;
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

static void set_take(struct learned *l, struct set *set, uint32_t i)
{
	struct node *me = &l->blocks.node[i];

	set_unlink(l, set, i);
	me->in &= (uint8_t) ~(1u << set->bit);
	if (set->bit < TREES)
		me->first &= (uint8_t) ~(1u << set->bit) & 3;
	if (set->bit == SET_MEMORY)
		me->held = 0;
	set->n--;
	if (me->parent && set->bit < TREES)
		l->blocks.kin[me->parent].children[set->bit]--;
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
	const struct kin *kin = l->blocks.kin;

	while (set->bit < TREES && kin[i].children[set->bit]) {
		unsigned looked = 0, passed = 0;
		uint32_t best = 0;
		double least = INFINITY;

		for (uint32_t c = node[i].first_child; c && looked < CHILDREN_LOOKED_AT && passed < CHILDREN_PASSED;
			c = kin[c].next_sibling) {
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

/* The tail of one of the first @n lists that is worth least, and but for the first to go none of the last request; 0:
   there is none. */
static uint32_t set_least(const struct learned *l, const struct set *set, unsigned n, double now, double *worth)
{
	const struct node *node = l->blocks.node;
	uint32_t best = 0;

	*worth = INFINITY;
	for (unsigned w = 0; w < 2; w++)
		for (uint64_t some = set->some[w]; some; some &= some - 1) {
			unsigned list = 64 * w + (unsigned)__builtin_ctzll(some);
			uint32_t i = set->tail[list], stamp = set->tail_stamp[list];
			double this;

			if (list >= n)
				break;
			if (list ==
				FIRST_TO_GO) { /* of the last request too: what would hang below it is worth no more */
				*worth = -1;
				return i;
			}
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

/* Is it worth less than what went for it, or below one that is? */
static bool set_is_first(const struct learned *l, struct set *set, uint32_t i, double now)
{
	const struct node *node = l->blocks.node, *me = &node[i];
	double went = set->went;

	set->went = -1;
	if (!set->by_worth)
		return false;
	if (me->parent && set_has(set, &node[me->parent]) && node[me->parent].first >> set->bit & 1)
		return true;
	if (went < 0)
		set_least(l, set, CLASSES, now, &went);
	return went > l->learner.worth[me->class][0] && went < INFINITY;
}

/* @full: for it another one goes. */
static void set_add(struct learned *l, struct set *set, uint32_t i, bool full, double now)
{
	struct node *me = &l->blocks.node[i];
	uint32_t *last;

	if (full && set_is_first(l, set, i, now))
		me->first |= 1u << set->bit & 3;
	last = &set->last[set_list(set, me)];
	set_link(l, set, i, me->request == l->request ? *last : 0);
	if (me->request == l->request)
		*last = i;
	me->in |= 1u << set->bit & 7;
	set->n++;
	if (me->parent && set->bit < TREES)
		l->blocks.kin[me->parent].children[set->bit]++;
}

/* ---- a request ---- */

/* Nodes of the last request that came into no set. */
static void learned_end_request(struct learned *l)
{
	l->request = l->request < REQUESTS ? l->request + 1 : 1; /* a new node is of none */
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
	for (uint64_t k = 0; k < n + 3 * STEP; k++) {
		uint64_t at = k - 3 * STEP;
		uint32_t i;

		if (k < n)
			blocks_prefetch(&l->blocks, &keys[k], STEP_BUCKET);
		if (k - STEP < n)
			blocks_prefetch(&l->blocks, &keys[k - STEP], STEP_NODE);
		if (k - 2 * STEP < n)
			blocks_prefetch(&l->blocks, &keys[k - 2 * STEP], STEP_NEXT);
		if (at >= n)
			continue;
		i = blocks_get(&l->blocks, &keys[at]);
		if (!i)
			return -ENOMEM;
		if (l->blocks.node[i].request == l->request)
			return -EINVAL; /* the same key twice: no chain */
		l->blocks.node[i].request = l->request;
		blocks_hang(&l->blocks, i, at ? l->chain[at - 1] : 0);
		l->chain[l->n_chain++] = i;
		blocks_prefetch_neighbours(&l->blocks, i);
		if (known == at && l->blocks.node[i].uses)
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
	node->first = 0;
	node->held = 0;
	node->uses += node->uses < USES_MAX;
	node->class = learner_class(node->uses, match, hint) & 127;
	node->stamp = stamp_of(now);
	node->ring =
		learner_touch(&l->learner, block_tag(&l->blocks, &node->key), node->ring, (uint8_t)node->class, now);
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

/* What goes next: a leaf. 0: there is none. */
static uint32_t set_victim(const struct learned *l, struct set *set, double now)
{
	uint32_t least = set_least(l, set, HELD, now, &set->went);

	return least ? set_leaf(l, set, least, now) : 0;
}

/* Room for @n more. Return: false: there is nothing that might go. */
static bool set_room(struct learned *l, struct set *set, uint64_t n, unsigned most, double now)
{
	for (; set->n + n > l->capacity && most; most--) {
		uint32_t i = set_victim(l, set, now);

		if (!i)
			return false;
		set_take(l, set, i);
	}
	return set->n + n <= l->capacity;
}

/* What a shadow would keep of the request. Return: what it had. */
static uint64_t shadow_serve(struct learned *l, struct set *set, double now)
{
	uint64_t hits = set_relink(l, set);
	bool full;

	set_room(l, set, 0, TRIMMED, now); /* after the capacity became less */
	for (uint64_t k = hits; k < l->n_chain; k++) {
		if (set_has(set, &l->blocks.node[l->chain[k]]))
			continue;
		full = set->n >= l->capacity;
		if (full && (!set_room(l, set, 1, 1, now) || (k && !set_has(set, &l->blocks.node[l->chain[k - 1]]))))
			break;
		set_add(l, set, l->chain[k], full, now);
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
	for (uint64_t k = 0; k < n; k++) {
		learned_touch(l, l->chain[k], match, now, hint);
	}
	if (l->guarded) {
		uint64_t learned = shadow_serve(l, &l->set[SET_LEARNED], now);

		guard_judge(l, learned, shadow_serve(l, &l->set[SET_LRU], now));
	}
	return (int64_t)set_relink(l, &l->set[SET_MEMORY]);
}

/* ---- what is in ---- */

static void learned_hang(struct learned *l, uint32_t i, uint32_t parent)
{
	if (!l->blocks.node[i].parent && parent && !blocks_is_above(&l->blocks, i, parent))
		blocks_hang(&l->blocks, i, parent);
}

/* Into the set of what is in, below its parent. */
static void learned_add(struct learned *l, uint32_t i, uint32_t parent, double now)
{
	learned_hang(l, i, parent);
	set_add(l, &l->set[SET_MEMORY], i, l->full, now);
}

int learned_insert(struct learned *l, const struct kvp_key *key, const struct kvp_key *parent, double now)
{
	uint32_t i = blocks_get(&l->blocks, key), above = parent ? blocks_find(&l->blocks, parent) : 0;

	if (!i)
		return -ENOMEM;
	if (set_has(&l->set[SET_MEMORY], &l->blocks.node[i]))
		return 0;
	if (!l->blocks.node[i]
			.request) { /* nobody said that it was asked for: what an engine wrote goes on from what it read */
		unsigned class = above ? l->blocks.node[above].class : 0;

		if (!l->blocks.node[i].uses)
			learned_touch(l, i, class / POLICY_HINTS % MATCH_CLASSES, now, class % POLICY_HINTS);
		else
			l->blocks.node[i].stamp =
				stamp_of(now); /* it comes late for its request, or back from a store */
	}
	learned_add(l, i, above, now);
	return 0;
}

int learned_adopt(struct learned *l, const struct kvp_key *key, const struct kvp_key *parent, double age_s, double now)
{
	uint32_t i = blocks_get(&l->blocks, key);
	struct node *node = &l->blocks.node[i];

	if (!i)
		return -ENOMEM;
	if (set_has(&l->set[SET_MEMORY], node)) {
		learned_hang(l, i, parent ? blocks_find(&l->blocks, parent) : 0); /* it may have come since */
		return 0;
	}
	if (!node->uses) {
		node->uses = 1;
		node->class = learner_class(1, 0, POLICY_HINT_NONE) & 127;
		node->stamp = stamp_of(now > age_s ? now - age_s : 0);
	}
	learned_add(l, i, parent ? blocks_find(&l->blocks, parent) : 0, now);
	return 0;
}

void learned_remove(struct learned *l, const struct kvp_key *key)
{
	uint32_t i = blocks_find(&l->blocks, key);

	if (i && set_has(&l->set[SET_MEMORY], &l->blocks.node[i]))
		set_take(l, &l->set[SET_MEMORY], i);
}

/* Long enough ago that it could not go: among the others again. */
static void learned_take_back(struct learned *l, double now)
{
	struct set *set = &l->set[SET_MEMORY];

	for (unsigned n = 0; n < BACK && set->tail[HELD] && stamp_age(set->tail_stamp[HELD], now) >= HELD_S; n++) {
		uint32_t i = set->tail[HELD];

		set_unlink(l, set, i);
		l->blocks.node[i].held = 0;
		set_link(l, set, i, 0);
	}
}

bool learned_victim(struct learned *l, double now, struct kvp_key *key)
{
	struct set *set = &l->set[SET_MEMORY];
	uint32_t i;

	learned_take_back(l, now);
	i = set_victim(l, set, now);
	l->full = true;
	if (!i)
		return false;
	*key = l->blocks.node[i].key;
	return true;
}

void learned_defer(struct learned *l, const struct kvp_key *key, double now)
{
	struct set *set = &l->set[SET_MEMORY];
	uint32_t i = blocks_find(&l->blocks, key), stamp = stamp_of(now) & ~(HELD_STEP - 1);

	/* nor can what it hangs below: named, that would lead to it again */
	for (; i && set_has(set, &l->blocks.node[i]); i = l->blocks.node[i].parent) {
		struct node *node = &l->blocks.node[i];

		if (node->held && node->stamp == stamp)
			return;
		set_unlink(l, set, i);
		node->held = 1;
		node->stamp = stamp;
		set_link(l, set, i, 0);
	}
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

struct learned *learned_new(uint64_t capacity, bool guarded, uint64_t seed)
{
	struct learned *l = calloc(1, sizeof(*l));

	if (!l || !blocks_init(&l->blocks, capacity, seed)) {
		free(l);
		return NULL;
	}
	l->capacity = capacity;
	l->guarded = guarded;
	l->request = 1;
	for (unsigned s = 0; s < SETS; s++) {
		l->set[s].bit = s;
		l->set[s].by_class = s != SET_LRU;
	}
	l->set[SET_MEMORY].by_worth = !guarded;
	l->set[SET_LEARNED].by_worth = true;
	learner_init(&l->learner, capacity);
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
	l->full = l->full && capacity <= l->capacity;
	l->capacity = capacity;
	learner_sample(&l->learner, capacity);
	return blocks_resize(&l->blocks, capacity);
}

bool learned_leads(const struct learned *l)
{
	return l->set[SET_MEMORY].by_worth;
}
