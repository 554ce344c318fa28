/*
 * ns_entry.c - the keys a namespace knows, hot and cold: the table, the trees they form, and what is remembered of
 * those gone
 *
 * The table is a linear hash: it grows by one bucket with each entry that is too many for it, by splitting one, so no
 * call ever moves more than a few entries.  Keys come from clients, so they are hashed with a seed of our own.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL /* short keys: a call costs as much as the hash */
#include <xxhash.h>

#include "events.h"
#include "kvpool_desc.h"
#include "namespace.h"
#include "orphan.h"
#include "policy.h"
#include "tier.h"

#define TABLE_EXPECT_MAX \
	(1ull << 24) /* buckets for what the last daemon counted, whatever it counted; more come as always */
#define TABLE_FIRST 16u /* buckets */

static uint64_t table_hash(const struct kvp_key *key)
{
	static uint64_t seed;

	if (!seed)
		randombytes_buf(&seed, sizeof(seed));
	return XXH3_64bits_withSeed(key, sizeof(*key), seed);
}

/* The highest power of two that is not above the number of buckets: those from there on were split off. */
static uint64_t table_half(const struct entry_table *table)
{
	return 1ull << (63 - __builtin_clzll(table->n_buckets));
}

static uint64_t table_index(const struct entry_table *table, const struct kvp_key *key)
{
	uint64_t hash = table_hash(key), half = table_half(table), i = hash & (2 * half - 1);

	return i < table->n_buckets ? i : hash & (half - 1);
}

static struct entry **table_bucket(const struct entry_table *table, const struct kvp_key *key)
{
	return &table->buckets[table_index(table, key)];
}

static bool table_make_room(struct entry_table *table, uint64_t room)
{
	struct entry **buckets = realloc(table->buckets, room * sizeof(struct entry *));

	if (!buckets)
		return false;
	memset(buckets + table->room, 0, (room - table->room) * sizeof(struct entry *));
	table->buckets = buckets;
	table->room = room;
	return true;
}

/* One bucket more: those entries of its lower twin that belong there move. */
static void table_split(struct entry_table *table)
{
	uint64_t half = table_half(table), from = table->n_buckets - half;
	struct entry **at, **to;

	if (table->n_buckets == table->room && !table_make_room(table, 2 * table->room))
		return; /* no memory: chains grow longer */
	at = &table->buckets[from];
	to = &table->buckets[table->n_buckets];
	while (*at) {
		struct entry *e = *at;

		if (!(table_hash(&e->key) & half)) {
			at = &e->hash_next;
			continue;
		}
		*at = e->hash_next;
		e->hash_next = *to;
		*to = e;
	}
	table->n_buckets++;
}

static bool table_add(struct entry_table *table, struct entry *e)
{
	struct entry **bucket;
	uint64_t i;

	if (!table->n_buckets) {
		if (!table_make_room(table, TABLE_FIRST))
			return false;
		table->n_buckets = TABLE_FIRST;
	}
	i = table_index(table, &e->key);
	bucket = &table->buckets[i];
	e->hash_next = *bucket;
	*bucket = e;
	if (!table->n || i < table->first)
		table->first = i;
	if (++table->n > table->n_buckets)
		table_split(table);
	return true;
}

static void table_remove(struct entry_table *table, struct entry *e)
{
	struct entry **at = table_bucket(table, &e->key);

	while (*at != e)
		at = &(*at)->hash_next;
	*at = e->hash_next;
	table->n--;
}

struct entry *ns_entry_next(struct ns *ns, const struct entry *e)
{
	struct entry_table *table = &ns->entries;
	uint64_t i;

	if (e && e->hash_next)
		return e->hash_next;
	if (!table->n)
		return NULL;
	for (i = e ? table_index(table, &e->key) + 1 : table->first; i < table->n_buckets; i++)
		if (table->buckets[i]) {
			if (!e)
				table->first = i;
			return table->buckets[i];
		}
	return NULL;
}

void ns_entry_expect(struct ns *ns, uint64_t n)
{
	if (n > TABLE_EXPECT_MAX)
		n = TABLE_EXPECT_MAX;
	if (ns->entries.n || n <= TABLE_FIRST || !table_make_room(&ns->entries, n))
		return;
	ns->entries.n_buckets = n;
}

void ns_entry_prefetch(const struct ns *ns, const struct kvp_key *key, bool soon)
{
	if (!ns->entries.n_buckets)
		return;
	if (soon)
		__builtin_prefetch(*table_bucket(&ns->entries, key));
	else
		__builtin_prefetch(table_bucket(&ns->entries, key));
}

void ns_entry_free_all(struct ns *ns)
{
	for (uint64_t i = 0; i < ns->entries.n_buckets; i++)
		while (ns->entries.buckets[i]) {
			struct entry *e = ns->entries.buckets[i];

			ns->entries.buckets[i] = e->hash_next;
			free(e);
		}
	free(ns->entries.buckets);
	memset(&ns->entries, 0, sizeof(ns->entries));
}

struct entry *ns_entry(struct ns *ns, const struct kvp_key *key)
{
	const struct entry_table *table = &ns->entries;
	struct entry *e = table->n ? *table_bucket(table, key) : NULL;

	while (e && !kvp_key_same(&e->key, key))
		e = e->hash_next;
	return e;
}

struct entry *ns_entry_above(struct ns *ns, const struct kvp_key *key)
{
	struct entry *e = ns_entry(ns, key);

	return e || !ns->base ? e : ns_entry(ns->base, key);
}

/* May it leave its node as far as those below it go?  A block on a far node leaves memory; from elsewhere it may go
   there. */
static bool entry_may_go(const struct entry *e)
{
	return e->slot != NO_SLOT && !(e->far ? e->n_hot_children : e->n_near_children);
}

/* @e became hot (1), or is hot no more (-1): what its parent counts, and whether that may go. */
static void parent_count(const struct entry *e, int sign)
{
	struct entry *parent = e->parent;

	if (!parent)
		return;
	parent->n_hot_children += (uint32_t)sign;
	parent->n_near_children += e->far ? 0 : (uint32_t)sign;
	if (!entry_may_go(parent))
		policy_remove(parent->ns, parent);
	else if (sign < 0)
		policy_add(parent->ns, parent);
}

bool ns_entry_link(struct entry *e)
{
	if (e->parent || kvp_key_is_none(&e->parent_key))
		return true;
	e->parent = ns_entry_above(e->ns, &e->parent_key);
	if (!e->parent)
		return false;
	e->next_sibling = e->parent->first_child;
	if (e->next_sibling)
		e->next_sibling->prev_sibling = e;
	e->parent->first_child = e;
	if (e->slot != NO_SLOT)
		parent_count(e, 1);
	return true;
}

static void ns_entry_unlink(struct entry *e)
{
	struct entry *parent = e->parent;

	if (!parent)
		return;
	if (e->prev_sibling)
		e->prev_sibling->next_sibling = e->next_sibling;
	else
		parent->first_child = e->next_sibling;
	if (e->next_sibling)
		e->next_sibling->prev_sibling = e->prev_sibling;
	if (e->slot != NO_SLOT)
		parent_count(e, -1);
	e->parent = e->next_sibling = e->prev_sibling = NULL;
}

struct entry *ns_entry_add(struct ns *ns, const struct kvp_key *key, const struct kvp_key *parent)
{
	struct entry *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->key = *key;
	e->parent_key = *parent;
	e->ns = ns;
	e->slot = NO_SLOT;
	e->stamp = daemon_tick(ns->d);
	if (!table_add(&ns->entries, e)) {
		free(e);
		return NULL;
	}
	ns_entry_link(e);
	return e;
}

void ns_entry_set_hot(struct entry *e, uint64_t slot)
{
	e->slot = slot;
	e->far = ns_slab(e->ns, slot)->far;
	parent_count(e, 1);
	if (entry_may_go(e))
		policy_add(e->ns, e);
	policy_came(e);
}

bool ns_entry_each(struct ns *ns, uint64_t *at, uint64_t n, void (*each)(struct entry *e))
{
	/* the table grows by splitting: what moves meanwhile moves to a bucket behind */
	for (; n && *at < ns->entries.n_buckets; n--, (*at)++)
		for (struct entry *e = ns->entries.buckets[*at]; e; e = e->hash_next)
			each(e);
	return *at < ns->entries.n_buckets;
}

void ns_entry_set_cold_only(struct entry *e)
{
	policy_went(e);
	policy_remove(e->ns, e);
	e->slot = NO_SLOT;
	parent_count(e, -1);
	e->far = false;
}

void ns_entry_settle(struct entry *e)
{
	if (entry_may_go(e))
		policy_add(e->ns, e);
}

static void ns_entry_free(struct entry *e)
{
	if (e->cold) {
		tier_cold_forget(e->ns->d, e->cold);
		gauge_add(&e->ns->row->counters.cold, -1);
		events_removed(e, KVP_HIT_SPILL);
	}
	ns_entry_unlink(e);
	policy_remove(e->ns, e);
	table_remove(&e->ns->entries, e);
	free(e);
}

void ns_entry_drop(struct entry *top)
{
	struct entry *e = top;

	/* chains are long: no recursion */
	for (;;) {
		struct entry *child = e->first_child, *parent = e->parent;

		if (child && (child->slot != NO_SLOT || child->io != ENTRY_IDLE)) {
			ns_entry_unlink(child);
			child->doomed = child->slot == NO_SLOT;
			child->stamp = daemon_tick(child->ns->d) - INT32_MAX / 2; /* unreachable: first to go */
			policy_touch(child->ns, child);
			if (child->slot != NO_SLOT)
				orphan_add(child);
			continue;
		}
		if (child) {
			e = child;
			continue;
		}
		if (e->io != ENTRY_IDLE) {
			ns_entry_unlink(e);
			e->doomed = true;
		} else {
			ns_entry_free(e);
		}
		if (e == top)
			return;
		e = parent;
	}
}

void ns_entry_part(struct entry *e)
{
	while (e->first_child)
		ns_entry_unlink(e->first_child);
	if (e->io != ENTRY_IDLE) {
		ns_entry_unlink(e);
		e->doomed = true;
	} else {
		ns_entry_free(e);
	}
}

/* ---- why a key is not there ---- */

void ns_ghost_add(struct ns *ns, const struct kvp_key *key, enum kvp_miss_reason reason)
{
	if (!ns->ghosts)
		ns->ghosts = calloc(GHOSTS, sizeof(*ns->ghosts));
	if (ns->ghosts)
		ns->ghosts[key->w[0] % GHOSTS] =
			(uint32_t)(key->w[1] >> 34) << 2 | (reason == KVP_MISS_DAMAGED ? 2u : 1u);
}

static bool ns_sibling_has(struct ns *ns, const struct kvp_key *key)
{
	for (struct ns *other = ns->d->namespaces; other; other = other->next)
		if (other != ns && other->head->owner_uid == ns->head->owner_uid &&
			!strcmp(other->head->name, ns->head->name) && ns_entry(other, key))
			return true;
	return false;
}

enum kvp_miss_reason ns_miss_reason(struct ns *ns, const struct kvp_key *key)
{
	uint32_t ghost = ns->ghosts ? ns->ghosts[key->w[0] % GHOSTS] : 0;

	if (ghost && ghost >> 2 == (uint32_t)(key->w[1] >> 34))
		return (ghost & 3) == 2 ? KVP_MISS_DAMAGED : KVP_MISS_EVICTED;
	return ns_sibling_has(ns, key) ? KVP_MISS_SIBLING : KVP_MISS_NEVER;
}

/* ---- after a start ---- */

/* Its parent, and its place among the candidates. Return: false: it is cold and its parent not known, as yet. */
static bool entry_settle(struct entry *e)
{
	bool linked = ns_entry_link(e);

	if (entry_may_go(e))
		policy_add(e->ns, e); /* a child that is linked later takes it out again */
	return linked || e->slot != NO_SLOT;
}

/* Hot ones in the order of their slots, which is that of memory; then the cold ones. */
static bool ns_settle(struct ns *ns, bool keep)
{
	bool all = true;
	struct entry *e;

	for (uint32_t place = 0; place < ns->head->max_places; place++) {
		struct slab *slab = ns->d->slabs[place];

		for (uint32_t i = 0; slab && slab->ns == ns && i < slab->n_slots; i++) {
			uint64_t word = atomic_load(&ns->blocks[(uint64_t)place * slab->n_slots + i].word);

			if (kvp_word_state(word) != KVP_BLOCK_PUBLISHED)
				continue;
			e = slab->slots[i].who;
			entry_settle(e);
			if (!keep && !e->parent && !kvp_key_is_none(&e->parent_key))
				orphan_add(e);
		}
	}
	if (!atomic_load(&ns->row->counters.cold))
		return true;
	for (e = ns_entry_next(ns, NULL); e; e = ns_entry_next(ns, e))
		all = (e->slot != NO_SLOT || entry_settle(e)) && all;
	return all;
}

/* Cold entries whose chain is broken go, for nobody can find them; one somebody works on is his.  Dropping takes others
   with it, of this bucket too. */
static void bucket_drop_unreachable(struct ns *ns, uint64_t i)
{
	struct entry *e = ns->entries.buckets[i];

	while (e)
		if (e->slot == NO_SLOT && e->io == ENTRY_IDLE && !e->parent && !kvp_key_is_none(&e->parent_key)) {
			ns_entry_drop(e);
			e = ns->entries.buckets[i];
		} else {
			e = e->hash_next;
		}
}

void ns_link_all(struct daemon *d, bool keep)
{
	bool all = true;

	for (struct ns *ns = d->namespaces; ns; ns = ns->next)
		all = ns_settle(ns, keep) && all;
	for (struct ns *ns = all || keep ? NULL : d->namespaces; ns; ns = ns->next)
		for (uint64_t i = 0; i < ns->entries.n_buckets; i++)
			bucket_drop_unreachable(ns, i);
}

bool ns_link_some(struct ns *ns, uint64_t *at, uint64_t n, bool drop)
{
	/* the table grows by splitting: what moves meanwhile moves to a bucket behind */
	for (; n && *at < ns->entries.n_buckets; n--, (*at)++) {
		if (drop)
			bucket_drop_unreachable(ns, *at);
		for (struct entry *e = ns->entries.buckets[*at]; e; e = e->hash_next)
			if (!e->doomed && !ns_entry_link(e) && drop && e->slot != NO_SLOT)
				orphan_add(e);
	}
	return *at < ns->entries.n_buckets;
}
