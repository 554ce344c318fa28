/* block.c - see block.h */
#include "block.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "events.h"
#include "guard.h"
#include "index.h"
#include "kvpool_desc.h"
#include "log.h"
#include "policy.h"
#include "reuse.h"
#include "tier.h"

#define FILL_LOOKS 8
#define FORGET_MAX 4096 /* blocks of a tree in one call */
#define REPAIR_AHEAD 4 /* buckets whose blocks are fetched meanwhile */
#define ADOPT_AHEAD 8

#define BIT(state) (1u << (state))
/* row: from; bits: where it may go (the table in block.h) */
static const uint8_t block_next[] = {
	[KVP_BLOCK_FREE] = BIT(KVP_BLOCK_GRANTED) | BIT(KVP_BLOCK_RESTORING),
	[KVP_BLOCK_GRANTED] =
		BIT(KVP_BLOCK_PUBLISHED) | BIT(KVP_BLOCK_FREE) | BIT(KVP_BLOCK_TAKEN) | BIT(KVP_BLOCK_RETIRED),
	[KVP_BLOCK_RESTORING] =
		BIT(KVP_BLOCK_PUBLISHED) | BIT(KVP_BLOCK_FREE) | BIT(KVP_BLOCK_TAKEN) | BIT(KVP_BLOCK_RETIRED),
	[KVP_BLOCK_PUBLISHED] = BIT(KVP_BLOCK_DRAINING),
	[KVP_BLOCK_DRAINING] = BIT(KVP_BLOCK_PUBLISHED) | BIT(KVP_BLOCK_FREE) | BIT(KVP_BLOCK_RETIRED),
	[KVP_BLOCK_TAKEN] = BIT(KVP_BLOCK_FREE) | BIT(KVP_BLOCK_RETIRED),
	[KVP_BLOCK_RETIRED] = 0,
};

static _Atomic uint64_t *block_gauge(struct ns *ns, enum kvp_block_state state)
{
	struct kvp_ns_counters *c = &ns->row->counters;

	switch (state) {
	case KVP_BLOCK_FREE:
		return &c->free;
	case KVP_BLOCK_GRANTED:
		return &c->granted;
	case KVP_BLOCK_RESTORING:
		return &c->restoring;
	case KVP_BLOCK_TAKEN:
		return &c->taken;
	case KVP_BLOCK_RETIRED:
		return &c->retired;
	default:
		return &c->published; /* DRAINING lasts no longer than a look */
	}
}

static uint64_t block_word(const struct ns *ns, uint64_t slot)
{
	return atomic_load_explicit(&ns->blocks[slot].word, memory_order_relaxed); /* only we write it */
}

/* The one place where a word changes. */
static void block_set_word(struct ns *ns, uint64_t slot, uint64_t generation, enum kvp_block_state to)
{
	enum kvp_block_state from = kvp_word_state(block_word(ns, slot));

	assert(block_next[from] & BIT(to));
	if (block_gauge(ns, from) != block_gauge(ns, to)) {
		pool_stats_begin(&ns->d->pool);
		gauge_add(block_gauge(ns, from), -1);
		gauge_add(block_gauge(ns, to), 1);
		/* held is from the last look: never more than there is */
		if (atomic_load(&ns->row->counters.held) > atomic_load(&ns->row->counters.published))
			gauge_set(&ns->row->counters.held, atomic_load(&ns->row->counters.published));
		pool_stats_end(&ns->d->pool);
	}
	/* seq_cst: for DRAINING it must come before the loads of the pin counts; for PUBLISHED release would do */
	atomic_store(&ns->blocks[slot].word, kvp_word(generation, to));
}

static struct index block_index(const struct ns *ns)
{
	return (struct index){
		ns->index, ns->head->n_buckets, ns->blocks, (uint64_t)ns->head->max_places * ns->head->slots_per_slab};
}

static uint32_t slot_place(const struct ns *ns, uint64_t slot)
{
	return (uint32_t)(slot / ns->head->slots_per_slab);
}
static uint32_t slot_index(const struct ns *ns, uint64_t slot)
{
	return (uint32_t)(slot % ns->head->slots_per_slab);
}

/* ---- free slots ---- */

static void slot_push_free(struct ns *ns, struct slab *slab, uint32_t index)
{
	slab->slots[index].who = NULL;
	slab->slots[index].next = slab->free_head;
	slab->free_head = index + 1;
	slab->n_free++;
	if (!slab->withdrawn)
		ns_count_free(ns, slab, 1);
	slab_set_open(slab);
}

/* Back to FREE: the generation goes up, so whatever was said of the slot before is known to be old. */
static void block_free(struct ns *ns, uint64_t slot)
{
	uint64_t generation = kvp_word_generation(block_word(ns, slot)) + 1;

	if (generation >= KVP_GENERATION_MAX) {
		block_set_word(ns, slot, KVP_GENERATION_MAX, KVP_BLOCK_RETIRED);
		ns_slot(ns, slot)->who = NULL;
		return;
	}
	block_set_word(ns, slot, generation, KVP_BLOCK_FREE);
	ns->no_room_until_ns = 0;
	slot_push_free(ns, ns_slab(ns, slot), slot_index(ns, slot));
}

/* The fullest of the first slabs on a node that have free slots: emptier ones get the chance to become empty. */
static struct slab *slab_to_fill(struct ns *ns, uint32_t node)
{
	struct slab *best = ns->open[node], *slab = best;

	for (unsigned looks = 1; slab && looks < FILL_LOOKS; looks++) {
		slab = slab->open_next;
		if (slab && slab->n_free < best->n_free)
			best = slab;
	}
	return best;
}

/* The nearest slab to @node with free slots, on a far node or elsewhere. */
static struct slab *slab_nearest(struct ns *ns, uint32_t node, bool far)
{
	for (unsigned i = 0; i < TOPOLOGY_NODES_MAX; i++) {
		struct slab *slab = slab_to_fill(ns, topology_near(ns->d->topology, node, i));

		if (slab && slab->far == far)
			return slab;
	}
	return NULL;
}

#define SLOT_NEAR 1u
#define SLOT_FAR 2u

/* A free slot on @node, or else on the nearest one that has any; on far nodes last. */
static uint64_t slot_pop_free(struct ns *ns, uint32_t node, unsigned where)
{
	struct slab *best = NULL;
	uint32_t index;

	if (!ns->n_free)
		return NO_SLOT;
	if (node < TOPOLOGY_NODES_MAX && where & SLOT_NEAR) /* that very one, far or not */
		best = slab_to_fill(ns, node);
	if (!best && where & SLOT_NEAR && ns->n_free > ns->n_free_far)
		best = slab_nearest(ns, node, false);
	if (!best && where & SLOT_FAR && ns->n_free_far)
		best = slab_nearest(ns, node, true);
	if (!best)
		return NO_SLOT;
	index = best->free_head - 1;
	best->free_head = best->slots[index].next;
	best->n_free--;
	ns_count_free(ns, best, -1);
	slab_set_open(best);
	return (uint64_t)best->place * ns->head->slots_per_slab + index;
}

/* ---- grants ---- */

static void grant_link(struct member *member, uint64_t slot)
{
	struct slab_slot *side = ns_slot(member->ns, slot);

	side->who = member;
	side->prev = 0;
	side->next = (uint32_t)member->grants;
	if (member->grants)
		ns_slot(member->ns, member->grants - 1)->prev = (uint32_t)slot + 1;
	member->grants = slot + 1;
	member->n_grants++;
	member->session->grants_at[slot_place(member->ns, slot)]++;
	gauge_add(&member->session->row->grants, 1);
}

static void grant_unlink(struct member *member, uint64_t slot)
{
	struct slab_slot *side = ns_slot(member->ns, slot);

	if (side->prev)
		ns_slot(member->ns, side->prev - 1u)->next = side->next;
	else
		member->grants = side->next;
	if (side->next)
		ns_slot(member->ns, side->next - 1u)->prev = side->prev;
	side->who = NULL;
	member->n_grants--;
	member->session->grants_at[slot_place(member->ns, slot)]--;
	gauge_add(&member->session->row->grants, -1);
}

uint64_t block_grant(struct ns *ns, struct member *member, uint32_t node, uint64_t *generation)
{
	uint64_t slot = slot_pop_free(ns, node, ns->near_stuck ? SLOT_NEAR | SLOT_FAR : SLOT_NEAR);

	if (slot == NO_SLOT)
		return slot;
	*generation = kvp_word_generation(block_word(ns, slot));
	ns->blocks[slot].key = (struct kvp_key){{member->session->id, 0}};
	block_set_word(ns, slot, *generation, KVP_BLOCK_GRANTED);
	ns_slot(ns, slot)->since = daemon_tick(ns->d);
	grant_link(member, slot);
	gauge_add(&ns->row->counters.grants, 1);
	return slot;
}

/* Does a grant of this slot, generation and member stand (or stand withdrawn)? */
static bool grant_stands(const struct member *member, uint64_t slot, uint64_t generation, enum kvp_block_state *state)
{
	uint64_t word;

	if (!ns_slab_of(member->ns, slot) || ns_slot(member->ns, slot)->who != member)
		return false;
	word = block_word(member->ns, slot);
	*state = kvp_word_state(word);
	return (*state == KVP_BLOCK_GRANTED && kvp_word_generation(word) == generation) ||
	       (*state == KVP_BLOCK_TAKEN && kvp_word_generation(word) == generation + 1);
}

bool block_release_grant(struct member *member, uint64_t slot, uint64_t generation)
{
	enum kvp_block_state state;

	if (!grant_stands(member, slot, generation, &state))
		return false;
	grant_unlink(member, slot);
	block_free(member->ns, slot);
	return true;
}

void block_release_all_grants(struct member *member)
{
	while (member->grants) {
		uint64_t slot = member->grants - 1;

		grant_unlink(member, slot);
		block_free(member->ns, slot);
	}
}

static void block_take(struct member *member, uint64_t slot)
{
	/* the writer may still store: the slot is set aside, out of its reach to publish */
	block_set_word(member->ns, slot, kvp_word_generation(block_word(member->ns, slot)) + 1, KVP_BLOCK_TAKEN);
}

void block_keep_grants(struct member *member, const struct kvp_wire_grant *grants, uint32_t n)
{
	struct ns *ns = member->ns;
	uint64_t kept_head = 0, n_kept = 0;

	/* the listed ones go to a list of their own, the rest was granted by an answer that never arrived: free */
	for (uint32_t i = 0; i < n; i++) {
		enum kvp_block_state state;

		if (!grant_stands(member, grants[i].slot, grants[i].generation, &state))
			continue;
		grant_unlink(member, grants[i].slot);
		ns_slot(ns, grants[i].slot)->next = (uint32_t)kept_head;
		kept_head = grants[i].slot + 1;
		n_kept++;
	}
	block_release_all_grants(member);
	while (n_kept--) {
		uint64_t slot = kept_head - 1;

		kept_head = ns_slot(ns, slot)->next;
		grant_link(member, slot);
	}
}

void block_take_late(struct daemon *d)
{
	uint32_t limit = d->config.grant_limit_ms / KVP_TICK_MS, now = daemon_tick(d);

	for (struct session *s = d->sessions; s; s = s->next) {
		if (s->peer)
			continue; /* it is here and can be asked: its grants stand */
		for (struct member *member = s->members; member; member = member->next)
			for (uint64_t at = member->grants; at; at = ns_slot(member->ns, at - 1)->next) {
				uint64_t word = block_word(member->ns, at - 1);

				if (kvp_word_state(word) == KVP_BLOCK_GRANTED &&
					now - ns_slot(member->ns, at - 1)->since > limit)
					block_take(member, at - 1);
			}
	}
}

/* ---- publish ---- */

/* The last tick in which a use is of before the hold. */
static uint32_t hold_since(const struct entry *e)
{
	return e->hold_until - TICKS_PER_SECOND - 1;
}

/* A use of this very tick is its own, unless the slot has one already: then that is of the block that was there
   before. */
static void block_hold_anew(struct entry *e)
{
	struct ns *ns = e->ns;
	uint32_t used = daemon_tick(ns->d) - 1;

	if (e->slot != NO_SLOT)
		session_pins(ns->d, slot_place(ns, e->slot), slot_index(ns, e->slot), &used);
	e->hold_until = used + 1 + TICKS_PER_SECOND;
}

void block_hold(struct entry *e)
{
	if (!e->hold_until || e->parent || kvp_key_is_none(&e->parent_key))
		block_hold_anew(e);
}

void block_used(struct entry *e, uint32_t used)
{
	if (e->hold_until && (int32_t)(used - hold_since(e)) > 0)
		e->hold_until = 0;
}

static void block_set_fields(const struct entry *e, uint64_t slot)
{
	struct kvp_block *block = &e->ns->blocks[slot];

	block->key = e->key;
	block->parent = e->parent_key;
	block->used_bytes = e->bytes;
	block->used_tokens = e->used_tokens;
}

static void block_make_hot(struct entry *e, uint64_t slot, uint64_t used_bytes, uint32_t used_tokens)
{
	struct ns *ns = e->ns;
	struct index index = block_index(ns);

	e->bytes = used_bytes;
	e->used_tokens = used_tokens;
	if (kvp_word_state(block_word(ns, slot)) != KVP_BLOCK_RESTORING || !atomic_load(&ns->blocks[slot].layers))
		block_set_fields(e, slot); /* else they are there, and somebody may be reading them */
	ns_slot(ns, slot)->who = e;
	e->stamp = daemon_tick(ns->d);
	block_set_word(ns, slot, kvp_word_generation(block_word(ns, slot)), KVP_BLOCK_PUBLISHED);
	if (!index_insert(&index, &e->key, slot))
		log_debug("namespace %s: index bucket full, a block cannot be found in DRAM", ns->head->name);
	ns_entry_set_hot(e, slot);
	if (e->cold) {
		gauge_add(&ns->row->counters.cold, -1);
		gauge_add(&ns->row->counters.clean, 1);
	}
}

int block_admit(struct ns *ns, const struct kvp_wire_item *item, struct kvp_wire_result *result)
{
	struct entry *e = ns_entry(ns, &item->key);

	if (kvp_key_is_none(&item->key) || kvp_key_same(&item->key, &item->parent) ||
		item->used_bytes > ns->head->block_bytes || item->used_tokens > ns->head->desc.block_tokens) {
		result->result = -KVP_EINVAL;
		return result->result;
	}
	if (e && e->slot != NO_SLOT) {
		block_hold(e);
		result->result = KVP_PUB_EXISTS;
		result->slot = e->slot;
		result->generation = kvp_word_generation(block_word(ns, e->slot));
		gauge_add(&ns->row->counters.exists, 1);
		return result->result;
	}
	if (!kvp_key_is_none(&item->parent) && !ns_entry_above(ns, &item->parent)) {
		result->result = KVP_PUB_REJECTED;
		gauge_add(&ns->row->counters.rejected, 1);
		return result->result;
	}
	return 0;
}

struct entry *block_entry(struct ns *ns, const struct kvp_wire_item *item)
{
	struct entry *e = ns_entry(ns, &item->key);

	if (!e)
		return ns_entry_add(ns, &item->key, &item->parent);
	/* one that was to go when its transfer has ended: now it stays */
	e->doomed = false;
	ns_entry_link(e);
	if (e->cold && (e->bytes != item->used_bytes || e->used_tokens != item->used_tokens)) {
		/* not the same block, whatever its writer says: the cold copy is not one of this */
		tier_cold_forget(ns->d, e->cold);
		e->cold = 0;
		gauge_add(&ns->row->counters.cold, -1);
		events_removed(e, KVP_HIT_SPILL);
	}
	return e;
}

void block_publish_grant(struct member *member, const struct kvp_wire_item *item, struct kvp_wire_result *result)
{
	struct ns *ns = member->ns;
	enum kvp_block_state state;
	struct entry *e;

	memset(result, 0, sizeof(*result));
	if (!grant_stands(member, item->slot, item->generation, &state) || state != KVP_BLOCK_GRANTED) {
		result->result = -KVP_ESTALE;
		return;
	}
	if (block_admit(ns, item, result))
		return;
	e = block_entry(ns, item);
	if (!e) {
		result->result = KVP_PUB_REJECTED;
		return;
	}
	grant_unlink(member, item->slot);
	/* no hold: a writer that goes on using it has pinned the slot before it sent this */
	block_make_hot(e, item->slot, item->used_bytes, item->used_tokens);
	result->result = KVP_PUB_STORED;
	result->slot = item->slot;
	result->generation = item->generation;
	gauge_add(&ns->row->counters.stored, 1);
	reuse_stored(e);
	events_stored(e, KVP_HIT_RAM);
	tier_entry_ready(e);
}

/* ---- fills: restores and copies ---- */

/* Nothing is there yet, whatever an earlier block of the slot left in its fields: so a reader who was told the slot
   long ago sees. */
static void block_set_restoring(struct ns *ns, uint64_t slot)
{
	ns->blocks[slot].key = (struct kvp_key){{0, 0}};
	atomic_store(&ns->blocks[slot].layers, 0);
	block_set_word(ns, slot, kvp_word_generation(block_word(ns, slot)), KVP_BLOCK_RESTORING);
}

uint64_t block_begin_fill(struct ns *ns, struct entry *e)
{
	uint64_t slot = slot_pop_free(ns, TOPOLOGY_ANY, SLOT_NEAR | SLOT_FAR);

	if (slot == NO_SLOT)
		return slot;
	block_set_restoring(ns, slot);
	ns_slot(ns, slot)->who = e;
	ns_slot(ns, slot)->io++;
	return slot;
}

static void block_tell_layers(struct ns *ns, uint64_t slot, uint32_t layers)
{
	_Atomic uint32_t *at = &ns->blocks[slot].layers;

	atomic_store(at, layers);
	syscall(SYS_futex, at, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void block_arrive(struct entry *e, uint32_t layers)
{
	if (!atomic_load(&e->ns->blocks[e->fill].layers))
		block_set_fields(e, e->fill);
	block_tell_layers(e->ns, e->fill, layers);
}

bool block_arrives(const struct entry *e)
{
	return e->io == ENTRY_READING && atomic_load(&e->ns->blocks[e->fill].layers);
}

void block_drop_fill(struct ns *ns, uint64_t slot)
{
	uint64_t generation = kvp_word_generation(block_word(ns, slot)) + 1;

	ns_slot(ns, slot)->io--;
	if (!atomic_load(&ns->blocks[slot].layers) || generation + 1 >= KVP_GENERATION_MAX) {
		block_free(ns, slot);
		return;
	}
	/* it was arriving, and somebody may hold it: whoever does learns that it never will, and the slot waits for
	   them */
	block_set_word(ns, slot, generation, KVP_BLOCK_TAKEN);
	ns_slot(ns, slot)->who = NULL;
	ns->d->set_aside = true;
	block_tell_layers(ns, slot, KVP_LAYERS_VOID);
}

void block_publish_fill(struct entry *e, uint64_t slot)
{
	ns_slot(e->ns, slot)->io--;
	block_make_hot(e, slot, e->bytes, e->used_tokens);
	if (atomic_load(&e->ns->blocks[slot].layers))
		block_tell_layers(e->ns, slot, 0); /* who waits sees the word */
	events_stored(e, KVP_HIT_RAM);
	block_hold_anew(e);
}

/* ---- evict ---- */

/* DRAINING if nobody pins it; else it is put back, its stamp renewed. */
static bool block_drain(struct entry *e)
{
	struct ns *ns = e->ns;
	uint64_t slot = e->slot, generation = kvp_word_generation(block_word(ns, slot));
	uint32_t stamp = e->stamp;

	block_set_word(ns, slot, generation, KVP_BLOCK_DRAINING);
	if (!session_pins(ns->d, slot_place(ns, slot), slot_index(ns, slot), &stamp)) {
		e->stamp = stamp;
		return true;
	}
	block_set_word(ns, slot, generation, KVP_BLOCK_PUBLISHED);
	e->stamp = daemon_tick(ns->d);
	policy_touch(ns, e);
	return false;
}

bool block_is_held(struct entry *e)
{
	struct ns *ns = e->ns;
	uint32_t used = hold_since(e);

	if (ns_slot(ns, e->slot)->io)
		return true;
	if (!e->hold_until)
		return false;
	/* the hold is over when its second is, or when somebody has used the block since; a pin counts by itself */
	session_pins(ns->d, slot_place(ns, e->slot), slot_index(ns, e->slot), &used);
	block_used(e, used);
	if ((int32_t)(daemon_tick(ns->d) - e->hold_until) >= 0)
		e->hold_until = 0;
	return e->hold_until;
}

/* Its hot copy, DRAINING, goes: unlinked from the index, then free. The entry goes too when nothing is left of it. */
static void block_unpublish(struct entry *e)
{
	struct ns *ns = e->ns;
	struct index index = block_index(ns);
	uint64_t slot = e->slot;

	index_remove(&index, &e->key, slot);
	block_free(ns, slot);
	ns_entry_set_cold_only(e);
	gauge_add(&ns->row->counters.evicted, 1);
	events_removed(e, KVP_HIT_RAM);
	if (e->cold) {
		gauge_add(&ns->row->counters.clean, -1);
		gauge_add(&ns->row->counters.cold, 1);
		return;
	}
	gauge_add(&ns->row->counters.dropped, 1);
	ns_ghost_add(ns, &e->key, KVP_MISS_EVICTED);
	ns_entry_drop(e);
}

bool block_evict(struct entry *e)
{
	if (block_is_held(e) || !block_drain(e))
		return false;
	block_unpublish(e);
	return true;
}

/* One with nothing below it. */
static bool block_forget_leaf(struct entry *e, void (*went)(void *owner, const struct entry *e), void *owner)
{
	struct ns *ns = e->ns;
	bool hot = e->slot != NO_SLOT;

	if (e->io != ENTRY_IDLE || (hot && (block_is_held(e) || !block_drain(e))))
		return false;
	if (went)
		went(owner, e);
	if (e->cold) {
		tier_cold_forget(ns->d, e->cold);
		e->cold = 0;
		gauge_add(hot ? &ns->row->counters.clean : &ns->row->counters.cold, -1);
		events_removed(e, KVP_HIT_SPILL);
	}
	if (hot) {
		block_unpublish(e);
		return true;
	}
	ns_ghost_add(ns, &e->key, KVP_MISS_EVICTED);
	ns_entry_drop(e);
	return true;
}

bool block_let_go(struct entry *e)
{
	return block_forget_leaf(e, NULL, NULL);
}

bool block_forget(struct entry *top, void (*went)(void *owner, const struct entry *e), void *owner)
{
	struct entry *e = top;

	for (unsigned n = 0; n < FORGET_MAX; n++) {
		struct entry *parent;
		bool last;

		while (e->first_child)
			e = e->first_child;
		parent = e->parent;
		last = e == top;
		if (e->ns != top->ns || !block_forget_leaf(e, went, owner))
			return false;
		if (last)
			return true;
		e = parent;
	}
	return false;
}

bool block_drop_slab(struct ns *ns, struct slab *slab)
{
	bool done = true;

	for (uint32_t i = 0; i < slab->n_slots; i++) {
		uint64_t slot = (uint64_t)slab->place * ns->head->slots_per_slab + i;
		enum kvp_block_state state = kvp_word_state(block_word(ns, slot));
		bool granted = state == KVP_BLOCK_GRANTED || (state == KVP_BLOCK_TAKEN && slab->slots[i].who);
		bool dead_read = state == KVP_BLOCK_TAKEN && !granted && ns->d->old_io; /* a dead daemon's */

		if (slab->slots[i].io || state == KVP_BLOCK_RESTORING || dead_read) {
			done = false;
		} else if (granted) {
			grant_unlink(slab->slots[i].who, slot);
			block_free(ns, slot);
		} else if (state == KVP_BLOCK_TAKEN) {
			block_free(ns, slot); /* who pins it holds nothing any more */
		} else if (state == KVP_BLOCK_PUBLISHED) {
			block_set_word(ns, slot, kvp_word_generation(block_word(ns, slot)), KVP_BLOCK_DRAINING);
			block_unpublish(slab->slots[i].who);
		}
	}
	return done;
}

static bool block_move_to(struct entry *e, const struct slab *away_from, unsigned where)
{
	struct ns *ns = e->ns;
	struct index index = block_index(ns);
	uint64_t from = e->slot, to;
	uint64_t stamp = e->stamp;

	if (block_is_held(e))
		return false;
	to = slot_pop_free(ns, away_from->node, where);
	if (to == NO_SLOT)
		return false;
	block_set_restoring(ns, to);
	/* The old place drains before the copy, so nobody reads it meanwhile: one memcpy between populated pages, no
	   wait. Killed here, the next daemon puts the old place back and frees the new one. */
	if (!block_drain(e)) {
		block_free(ns, to);
		return false;
	}
	memcpy(ns_slot_data(ns, to), ns_slot_data(ns, from), e->bytes);
	if (guard_condemned(away_from->guard)) {
		/* a writer cut it: what was copied is not what was published.  Put back: it goes with its slab, and is
		   not gone under the hands of who wanted it moved */
		block_set_word(ns, from, kvp_word_generation(block_word(ns, from)), KVP_BLOCK_PUBLISHED);
		block_free(ns, to);
		return false;
	}
	ns->moving = true;
	ns_entry_set_cold_only(e);
	index_remove(&index, &e->key, from);
	if (e->cold) {
		gauge_add(&ns->row->counters.clean, -1);
		gauge_add(&ns->row->counters.cold, 1);
	}
	block_make_hot(e, to, e->bytes, e->used_tokens);
	ns->moving = false;
	e->stamp = (uint32_t)stamp;
	policy_touch(ns, e);
	block_free(ns, from);
	return true;
}

bool block_move(struct entry *e, struct slab *away_from)
{
	return block_move_to(e, away_from, SLOT_NEAR | SLOT_FAR);
}

bool block_demote(struct entry *e)
{
	if (!block_move_to(e, ns_slab(e->ns, e->slot), SLOT_FAR))
		return false;
	gauge_add(&e->ns->row->counters.demoted, 1);
	return true;
}

/* ---- after a restart ---- */

static bool slot_bit(const struct ns *ns, uint64_t slot)
{
	return ns->indexed[slot / 8] & 1u << slot % 8;
}

/* Is this hint, of bucket @b behind @n_full full ones, right, found by a reader's probes, and the only one of its
   slot? */
static bool hint_is_good(struct ns *ns, uint64_t hint, uint64_t b, uint64_t n_full)
{
	uint64_t slot = kvp_hint_slot(hint), mask = ns->head->n_buckets - 1, far;
	const struct slab *slab = ns_slab_of(ns, slot);
	const struct kvp_block *block = &ns->blocks[slot];
	enum kvp_block_state state;

	if (!slab || block->slab_number != slab->number || kvp_hint(&block->key, slot) != hint)
		return false;
	state = kvp_word_state(block_word(ns, slot));
	far = (b - kvp_index_home(&block->key, mask + 1)) & mask;
	return (state == KVP_BLOCK_PUBLISHED || state == KVP_BLOCK_DRAINING) && far <= n_full &&
	       far < KVP_INDEX_PROBES && !(ns->indexed && slot_bit(ns, slot));
}

static void hints_prefetch(const struct ns *ns, uint64_t b)
{
	for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++) {
		uint64_t slot = kvp_hint_slot(atomic_load_explicit(&ns->index[b].hint[i], memory_order_relaxed));

		if (ns_slab_of(ns, slot))
			__builtin_prefetch(&ns->blocks[slot]);
	}
}

static bool bucket_is_full(const struct ns *ns, uint64_t b)
{
	for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++)
		if (!atomic_load_explicit(&ns->index[b].hint[i], memory_order_relaxed))
			return false;
	return true;
}

/* Return: how many were taken out. */
static uint64_t index_repair_pass(struct ns *ns)
{
	uint64_t mask = ns->head->n_buckets - 1, n_full = 0, n_bad = 0;

	while (n_full < KVP_INDEX_PROBES && n_full <= mask && bucket_is_full(ns, (0 - n_full - 1) & mask))
		n_full++;
	for (uint64_t b = 0; b <= mask; b++) {
		hints_prefetch(ns, (b + REPAIR_AHEAD) & mask);
		for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++) {
			uint64_t hint = atomic_load_explicit(&ns->index[b].hint[i], memory_order_relaxed);

			if (!hint)
				continue;
			if (!hint_is_good(ns, hint, b, n_full)) {
				atomic_store(&ns->index[b].hint[i], 0);
				n_bad++;
			} else if (ns->indexed) {
				ns->indexed[kvp_hint_slot(hint) / 8] |= (uint8_t)(1u << kvp_hint_slot(hint) % 8);
			}
		}
		n_full = bucket_is_full(ns, b) ? n_full + 1 : 0;
	}
	return n_bad;
}

void block_repair_index(struct ns *ns)
{
	uint64_t bytes = ((uint64_t)ns->head->max_places * ns->head->slots_per_slab + 7) / 8;

	ns->indexed = calloc(bytes, 1); /* NULL: slower, and hints that are there twice stay until their block goes */
	/* again: a hint taken out of the last buckets may leave one behind it, in the first, that no probe reaches */
	while (index_repair_pass(ns) && ns->indexed)
		memset(ns->indexed, 0, bytes);
}

/* GRANTED and TAKEN: with its owner as long as that lives. */
static bool adopt_grant(struct ns *ns, uint64_t slot)
{
	struct session *s = session_find(ns->d, ns->blocks[slot].key.w[0]);
	struct member *member = s ? session_join(s, ns, true) : NULL;

	if (!member)
		return false;
	ns_slot(ns, slot)->since = daemon_tick(ns->d);
	grant_link(member, slot);
	return true;
}

/* Return: false: it is damaged, or there already. */
static bool adopt_published(struct ns *ns, struct slab *slab, uint64_t slot)
{
	struct kvp_block *block = &ns->blocks[slot];
	struct index index = block_index(ns);
	struct entry *e = ns_entry(ns, &block->key);
	uint64_t generation = kvp_word_generation(block_word(ns, slot));

	if (e || kvp_key_is_none(&block->key) || block->used_bytes > ns->head->block_bytes ||
		!(e = ns_entry_add(ns, &block->key, &block->parent)))
		return false;
	atomic_store(&block->word, kvp_word(generation, KVP_BLOCK_PUBLISHED));
	gauge_add(&ns->row->counters.published, 1);
	e->bytes = block->used_bytes;
	e->used_tokens = block->used_tokens;
	slab->slots[slot_index(ns, slot)].who = e;
	e->stamp = 0;
	session_pins(ns->d, slab->place, slot_index(ns, slot), &e->stamp);
	e->far = slab->far;
	if (e->parent)
		ns_entry_set_hot(e, slot);
	else
		e->slot = slot;
	if (ns->indexed ? !slot_bit(ns, slot) : index_find(&index, &e->key) != slot)
		index_insert(&index, &e->key, slot);
	return true;
}

void block_adopt_published(struct ns *ns, struct slab *slab)
{
	for (uint32_t i = 0; i < slab->n_slots; i++) {
		uint64_t slot = (uint64_t)slab->place * ns->head->slots_per_slab + i;

		if (i + 2 * ADOPT_AHEAD < slab->n_slots)
			ns_entry_prefetch(ns, &ns->blocks[slot + 2 * ADOPT_AHEAD].key, false);
		if (i + ADOPT_AHEAD < slab->n_slots)
			ns_entry_prefetch(ns, &ns->blocks[slot + ADOPT_AHEAD].key, true);
		if (ns->blocks[slot].slab_number == slab->number &&
			kvp_word_state(block_word(ns, slot)) == KVP_BLOCK_PUBLISHED)
			adopt_published(ns, slab, slot);
	}
}

void block_adopt_slab(struct ns *ns, struct slab *slab)
{
	struct index index;

	slab->free_head = slab->n_free = 0;
	slab_set_open(slab);
	for (uint32_t i = slab->n_slots; i-- > 0;) {
		uint64_t slot = (uint64_t)slab->place * ns->head->slots_per_slab + i;
		uint64_t word = atomic_load(&ns->blocks[slot].word), generation = kvp_word_generation(word);
		enum kvp_block_state state = kvp_word_state(word);

		gauge_add(&ns->row->counters.slots, 1);
		if (ns->blocks[slot].slab_number != slab->number) {
			/* the words are of another slab that was here: what they say is not of these bytes */
			if (state != KVP_BLOCK_FREE && state != KVP_BLOCK_RETIRED) {
				atomic_store(&ns->blocks[slot].word, kvp_word(++generation, KVP_BLOCK_FREE));
				state = KVP_BLOCK_FREE;
			}
			ns->blocks[slot].slab_number = slab->number;
		}
		switch (state) {
		case KVP_BLOCK_PUBLISHED:
		case KVP_BLOCK_DRAINING: /* put back, unless a move was cut short after its second copy was published */
			if (slab->slots[i].who || adopt_published(ns, slab, slot))
				continue;
			index = block_index(ns);
			index_remove(&index, &ns->blocks[slot].key, slot);
			break;
		case KVP_BLOCK_RETIRED:
			gauge_add(&ns->row->counters.retired, 1);
			continue;
		case KVP_BLOCK_GRANTED:
		case KVP_BLOCK_TAKEN:
			if (adopt_grant(ns, slot)) {
				gauge_add(block_gauge(ns, state), 1);
				continue;
			}
			if (state == KVP_BLOCK_GRANTED ||
				(!ns->d->old_io && !session_pins(ns->d, slab->place, i, NULL)))
				break;
			ns->d->set_aside = true;
			gauge_add(&ns->row->counters.taken, 1);
			continue;
		case KVP_BLOCK_RESTORING:
			if (!ns->d->old_io && !session_pins(ns->d, slab->place, i, NULL))
				break;
			ns->d->set_aside = true;
			atomic_store(&ns->blocks[slot].word, kvp_word(generation + 1, KVP_BLOCK_TAKEN));
			block_tell_layers(ns, slot, KVP_LAYERS_VOID);
			gauge_add(&ns->row->counters.taken, 1);
			continue;
		default:
			break;
		}
		if (state != KVP_BLOCK_FREE)
			atomic_store(&ns->blocks[slot].word, kvp_word(generation + 1, KVP_BLOCK_FREE));
		gauge_add(&ns->row->counters.free, 1);
		slot_push_free(ns, slab, i);
	}
}

void block_release_set_aside(struct daemon *d)
{
	d->set_aside = false;
	for (struct ns *ns = d->namespaces; ns; ns = ns->next)
		for (uint32_t place = 0; place < ns->head->max_places; place++) {
			struct slab *slab = d->slabs[place];

			for (uint32_t i = 0; slab && slab->ns == ns && i < slab->n_slots; i++) {
				uint64_t slot = (uint64_t)place * ns->head->slots_per_slab + i;

				if (slab->slots[i].who || kvp_word_state(block_word(ns, slot)) != KVP_BLOCK_TAKEN)
					continue;
				if (session_pins(d, place, i, NULL))
					d->set_aside = true; /* somebody held it while it was arriving */
				else
					block_free(ns, slot);
			}
		}
}

/* ---- counting what is held ---- */

#define SWEEP_LOOKS 200000
#define SWEEP_USE 8 /* telling of a use takes as long as so many looks: its entry lies elsewhere */

/* One slot: who holds it, since when, and was it used since the sweep before this one began (@since)? */
static bool block_sweep_slot(struct daemon *d, struct slab *slab, uint32_t i, uint32_t since, uint64_t *looks)
{
	uint32_t tick = daemon_tick(d), latest = since;
	bool held = false;

	for (struct session *s = d->sessions; s; s = s->next) {
		const struct kvp_pin *pin;
		uint32_t stamp;

		if (!s->has_place[slab->place] || s->ending)
			continue;
		(*looks)++;
		pin = session_pin(s, slab->place, i);
		stamp = atomic_load_explicit(&pin->stamp, memory_order_relaxed);
		if ((int32_t)(stamp - latest) > 0 && (int32_t)(tick - stamp) >= 0)
			latest = stamp;
		if (!atomic_load_explicit(&pin->count, memory_order_relaxed))
			continue;
		held = true;
		s->sweep_pins++;
		if (stamp && (int32_t)(tick - stamp) > 0 && tick - stamp > s->sweep_oldest)
			s->sweep_oldest = tick - stamp;
	}
	if (latest != since) {
		*looks += SWEEP_USE;
		reuse_seen(slab->slots[i].who, latest);
	}
	return held;
}

/* What a whole sweep has counted of the sessions; the next one begins. */
static void block_sweep_ends(struct daemon *d)
{
	uint32_t oldest = 0;

	for (struct session *s = d->sessions; s; s = s->next) {
		gauge_set(&s->row->pins, s->sweep_pins);
		gauge_set(&s->row->oldest_pin_ms, (uint64_t)s->sweep_oldest * KVP_TICK_MS);
		oldest = s->sweep_oldest > oldest ? s->sweep_oldest : oldest;
		s->sweep_pins = 0;
		s->sweep_oldest = 0;
	}
	gauge_set(&d->pool.stats->counters.oldest_pin_ms, (uint64_t)oldest * KVP_TICK_MS);
	gauge_add(&d->pool.stats->counters.pin_sweeps, 1); /* last: who reads it has what was counted */
	session_limit_pins(d);
	session_limit_age(d);
}

void block_sweep(struct daemon *d)
{
	static uint64_t at_ns_id; /* where the last call stopped */
	static uint32_t at_place;
	static uint32_t before, began; /* ticks at which the sweep before this one, and this one, began */
	uint64_t looks = 0;
	struct ns *ns = ns_find(d, at_ns_id);

	if (!ns) {
		ns = d->namespaces;
		at_place = 0;
		before = began ? began : daemon_tick(d);
		began = daemon_tick(d);
		if (ns)
			ns->sweep_held = 0;
		block_sweep_ends(d);
	}
	while (ns && looks < SWEEP_LOOKS) {
		struct slab *slab = at_place < ns->head->max_places ? d->slabs[at_place] : NULL;

		if (at_place >= ns->head->max_places) {
			gauge_set(&ns->row->counters.held, ns->sweep_held);
			ns = ns->next;
			at_place = 0;
			if (ns)
				ns->sweep_held = 0;
			continue;
		}
		for (uint32_t i = 0; slab && slab->ns == ns && i < slab->n_slots; i++) {
			uint64_t slot = (uint64_t)at_place * ns->head->slots_per_slab + i;

			if (kvp_word_state(block_word(ns, slot)) == KVP_BLOCK_PUBLISHED)
				ns->sweep_held += block_sweep_slot(d, slab, i, before - 1, &looks);
		}
		at_place++;
		looks++;
	}
	at_ns_id = ns ? ns->id : 0;
}
