/*
 * tier_room.c - room for what comes: eviction, demotion, slabs that move between namespaces or leave
 *
 * Memory moves between namespaces a slab at a time: from one nobody uses before a namespace evicts blocks of its own,
 * then from one whose memory is worth less than half of its own (policy_worth()), and when nothing of its own may go,
 * from the one that has most.  The donor's oldest blocks go as they always do, and what is left in one slab moves to
 * its others.
 */
#include <errno.h>

#include "block.h"
#include "policy.h"
#include "quota.h"
#include "session.h"
#include "slab.h"
#include "spill_set.h"
#include "tier_parts.h"

#define STEAL_LOOKS_MAX 4096 /* candidates looked at in one call when a whole slab is wanted */
#define MOVE_MAX (16ull << 20) /* bytes copied in one call to empty a slab */
#define SLOW_NS 2000000000ull /* a store that ends nothing, or lets a request wait, for so long is not waited for */
#define EMPTYING_NS 1000000000ull
#define STEAL_NS 100000000ull /* how often a namespace looks at the memory of the others */

/* ---- eviction ---- */

/* Does the store let people wait? A block that is dropped costs less than an engine that stands still. */
static bool tier_is_slow(const struct ns *ns)
{
	const struct tier *tier = ns->d->tier;

	return tier->spill && (spill_set_stalled(tier->spill, SLOW_NS) ||
				      (ns->n_writing && ns->waits && loop_now() - ns->waits->since_ns > SLOW_NS));
}

/* Slots that writes under way will let go, soon: not those of a store that hangs beside one that moves. */
static uint64_t tier_coming(const struct ns *ns)
{
	uint64_t stuck = ns->n_writing ? spill_set_stuck(ns->d->tier->spill, ns->id) : 0;

	return ns->n_writing > stuck && !tier_is_slow(ns) ? ns->n_writing - stuck : 0;
}

/* Before it goes; again, if its copy is old and that holds up nobody. */
static bool tier_is_to_write(const struct entry *e)
{
	bool slow = !ns_room(e->ns) && tier_is_slow(e->ns);

	if (e->cold)
		return !slow && tier_may_write_again(e);
	if (!slow)
		return tier_may_write(e);
	gauge_add(&e->ns->d->pool.stats->counters.spill_too_slow, 1);
	return false;
}

enum order { ORDER_NEAR, ORDER_FAR, ORDER_LEARNED };

static struct entry *tier_first(struct ns *ns, enum order order)
{
	switch (order) {
	case ORDER_LEARNED:
		return policy_first_learned(ns);
	case ORDER_FAR:
		return policy_first_far(ns);
	default:
		return policy_first_near(ns);
	}
}

/* Evict, or start to write, what goes first in this order, until @want slots are free or coming. Return: 1; 0: they
   never will be, the rest is in use; -EAGAIN: the store takes no more writes now; -EINTR: so many looks did not do it. */
static int tier_evict_from(struct ns *ns, enum order order, uint64_t want, unsigned looks_max)
{
	struct daemon *d = ns->d;
	struct entry *first_held = NULL;
	bool spill = tier_on(d);

	for (unsigned looks = 0; looks < looks_max && ns->n_free + tier_coming(ns) < want; looks++) {
		struct entry *e = tier_first(ns, order);
		uint32_t place, index, stamp;

		if (!e || e == first_held)
			return 0; /* all round: everything is in use */
		place = (uint32_t)(e->slot / ns->head->slots_per_slab);
		index = (uint32_t)(e->slot % ns->head->slots_per_slab);
		stamp = e->stamp;
		if (session_pins(d, place, index, &stamp) || block_is_held(e) || e->n_hot_children) {
			if (!first_held)
				first_held = e;
			policy_defer(ns, e);
			continue;
		}
		if (stamp != e->stamp) { /* used since it was put in order */
			bool knew = order == ORDER_LEARNED && policy_knew(ns, e, stamp);

			if (order == ORDER_LEARNED && !knew)
				policy_defer(ns, e);
			e->stamp = stamp;
			policy_touch(ns, e);
			if (!knew)
				continue;
		}
		if (spill && tier_is_to_write(e)) {
			int r = tier_write(e);

			if (r == 0)
				continue;
			if (r == -EAGAIN && !e->cold)
				return r;
		}
		if (!block_evict(e))
			policy_defer(ns, e);
	}
	return ns->n_free + tier_coming(ns) < want ? -EINTR : 1;
}

/* The learned order goes across nodes; by least recent use what lies far was used least lately: it goes first. */
int tier_evict_oldest(struct ns *ns, uint64_t want, unsigned looks_max)
{
	int r = policy_leads(ns) && !tier_on(ns->d) ? tier_evict_from(ns, ORDER_LEARNED, want, looks_max) : 0;

	if (!r && policy_first_far(ns))
		r = tier_evict_from(ns, ORDER_FAR, want, looks_max);
	return r ? r : tier_evict_from(ns, ORDER_NEAR, want, looks_max);
}

/* A free slot on a far node, or one that comes. Return: slots free there now. */
static uint64_t tier_far_room(struct ns *ns, uint32_t node)
{
	for (unsigned k = 0; !ns->n_free_far && k < topology_n_nodes(ns->d->topology); k++) {
		uint32_t i = topology_near(ns->d->topology, node, k);

		if (topology_is_far(ns->d->topology, i) && !ns->coming_on[i])
			ns_add_slab(ns, i, true);
	}
	return ns->n_free_far;
}

/* Nodes without CPUs are a tier between: what was used least lately moves there, a bounded piece a call, before
   anything has to leave memory, and is used there in place.  Nothing comes back up: its use there costs less than a copy each way, and what
   is read back or published again is near anyway. */
static void tier_demote(struct ns *ns, uint64_t want)
{
	struct entry *first_held = NULL;
	uint64_t moved = 0;

	ns->near_stuck = false;
	for (unsigned looks = 0; ns_room(ns) < want && looks < LOOKS_MAX && moved < MOVE_MAX; looks++) {
		struct entry *e = policy_first_near(ns);
		uint32_t stamp;
		bool pinned;

		if (!e || e == first_held)
			break;
		stamp = e->stamp;
		pinned = session_pins(ns->d, (uint32_t)(e->slot / ns->head->slots_per_slab),
			(uint32_t)(e->slot % ns->head->slots_per_slab), &stamp);
		if (!pinned && stamp != e->stamp && !block_is_held(e)) { /* used since it was put in order */
			e->stamp = stamp;
			policy_touch(ns, e);
			continue;
		}
		if (!pinned && !block_is_held(e) && !tier_far_room(ns, ns_slab(ns, e->slot)->node))
			return;
		if (!pinned && block_demote(e)) {
			moved += ns->head->block_stride;
			continue;
		}
		first_held = first_held ? first_held : e;
		e->stamp = daemon_tick(ns->d);
		policy_touch(ns, e);
	}
	/* everything is in use: what is new may lie far too */
	ns->near_stuck = !moved && !ns_room(ns) && !ns->n_coming && !tier_coming(ns);
	if (ns->near_stuck)
		tier_far_room(ns, TOPOLOGY_ANY);
}

/* ---- slabs that move ---- */

/* Are all its slots free, or blocks that nobody holds now? */
static bool tier_may_empty(struct ns *donor, const struct slab *slab)
{
	for (uint32_t i = 0; i < slab->n_slots; i++) {
		uint64_t slot = (uint64_t)slab->place * slab->n_slots + i;
		enum kvp_block_state state = kvp_word_state(atomic_load(&donor->blocks[slot].word));

		if (state == KVP_BLOCK_FREE || state == KVP_BLOCK_RETIRED)
			continue;
		if (state != KVP_BLOCK_PUBLISHED || block_is_held(slab->slots[i].who) ||
			session_pins(donor->d, slab->place, i, NULL))
			return false;
	}
	return true;
}

/* The slab of @donor (on @node) with the fewest blocks, if there is room for them in its others. */
static struct slab *tier_slab_to_empty(struct ns *donor, uint32_t node)
{
	struct slab *best = NULL;

	if (donor->n_free < donor->head->slots_per_slab)
		return NULL;
	for (uint32_t place = 0; place < donor->head->max_places; place++) {
		struct slab *slab = donor->d->slabs[place];

		if (slab && slab->ns == donor && !slab->withdrawn && (node == TOPOLOGY_ANY || slab->node == node) &&
			(!best || slab->n_free > best->n_free) && tier_may_empty(donor, slab))
			best = slab;
	}
	return best;
}

/* Empty one slab of @donor by moving its blocks to its other slabs, a piece a call. Return: true: it is empty, and gone
   to
   @heir. */
static bool tier_empty_slab(struct ns *donor, struct ns *heir, uint32_t node)
{
	uint32_t width = donor->head->slots_per_slab;
	uint64_t moved = 0;

	if (!donor->emptying) {
		donor->emptying = tier_slab_to_empty(donor, node);
		if (!donor->emptying)
			return false;
		slab_withdraw(donor->emptying);
	}
	donor->emptying_until_ns = loop_now() + EMPTYING_NS;
	for (uint32_t i = 0; i < width; i++) {
		uint64_t slot = (uint64_t)donor->emptying->place * width + i;
		enum kvp_block_state state = kvp_word_state(atomic_load(&donor->blocks[slot].word));

		if (state == KVP_BLOCK_FREE || state == KVP_BLOCK_RETIRED)
			continue;
		if (moved >= MOVE_MAX)
			return false; /* who wants it asks again */
		if (state != KVP_BLOCK_PUBLISHED || !block_move(donor->emptying->slots[i].who, donor->emptying)) {
			slab_give_again(donor->emptying);
			donor->emptying = NULL;
			return false;
		}
		moved += donor->head->block_stride;
	}
	ns_remove_slab(donor, donor->emptying, heir);
	return true;
}

/* For how long has its oldest candidate not been used? Uses that only the pin tables know are put in order on the
   way. */
static uint32_t tier_oldest_age(struct ns *ns)
{
	struct daemon *d = ns->d;

	for (unsigned looks = 0; looks < 64; looks++) {
		struct entry *e = policy_first(ns);
		uint32_t stamp;

		if (!e)
			return 0;
		stamp = e->stamp;
		if (session_pins(d, (uint32_t)(e->slot / ns->head->slots_per_slab),
			    (uint32_t)(e->slot % ns->head->slots_per_slab), &stamp))
			stamp = daemon_tick(d);
		if (stamp == e->stamp)
			return daemon_tick(d) - stamp;
		e->stamp = stamp;
		policy_touch(ns, e);
	}
	return 0;
}

static bool ns_is_unused(const struct ns *ns)
{
	return !ns->n_members && !ns->n_based;
}

/* With a slab less, has it still its minimum, and one at least? */
static bool ns_spares_slab(const struct ns *ns)
{
	uint64_t slab = ns->head->slots_per_slab, left = ns->n_slots > slab ? ns->n_slots - slab : 0;

	return left && left * ns->head->block_stride >= ns->d->config.namespace_min;
}

/* A share nobody takes: the minimum of each namespace that is used, one slab at least, but for one that has none. */
static bool tier_may_give(const struct ns *ns, const struct ns *other)
{
	if (other == ns || !other->n_slots || (int64_t)(loop_now() - other->keeps_until_ns) < 0)
		return false;
	if (!quota_allows(ns, other))
		return false;
	return !ns->n_slots || ns_is_unused(other) || ns_spares_slab(other);
}

/* Does everybody who has memory say what computing costs? Else it says nothing about who should give. */
static bool tier_costs_known(const struct daemon *d)
{
	for (const struct ns *ns = d->namespaces; ns; ns = ns->next)
		if (ns->n_slots && !ns->cost_ns_per_token)
			return false;
	return true;
}

static double tier_worth(struct ns *ns, bool cost)
{
	return policy_worth(ns, tier_oldest_age(ns), cost);
}

/* A namespace whose memory is worth less than ours: nobody uses it, or not half as much. */
static struct ns *tier_idle_donor(struct ns *ns)
{
	bool cost = tier_costs_known(ns->d) && ns->cost_ns_per_token;
	double least = tier_worth(ns, cost) / 2;
	struct ns *donor = NULL;

	for (struct ns *other = ns->d->namespaces; other; other = other->next) {
		double worth;

		if (!tier_may_give(ns, other))
			continue;
		if (ns_is_unused(other))
			return other;
		worth = tier_worth(other, cost);
		if (worth < least) {
			least = worth;
			donor = other;
		}
	}
	return donor;
}

/* The namespace that has most memory, if that is more than ours; of equals the one that has used its own least
   lately. */
static struct ns *tier_largest_donor(struct ns *ns)
{
	uint64_t most = ns->n_slots * ns->head->block_stride;
	uint32_t oldest = 0;
	struct ns *donor = NULL;

	for (struct ns *other = ns->d->namespaces; other; other = other->next) {
		uint64_t bytes = other->n_slots * other->head->block_stride;
		uint32_t age;

		if (bytes < most || (!donor && bytes == most) || !tier_may_give(ns, other))
			continue;
		age = tier_oldest_age(other);
		if (bytes == most && age <= oldest)
			continue;
		most = bytes;
		oldest = age;
		donor = other;
	}
	return donor;
}

/* Work on emptying a slab of @donor for @heir, or for nobody. */
static bool tier_take_slab(struct ns *donor, struct ns *heir, uint32_t node)
{
	tier_evict_oldest(
		donor, donor->head->slots_per_slab - (donor->emptying ? donor->emptying->n_free : 0), STEAL_LOOKS_MAX);
	if (tier_empty_slab(donor, heir, node))
		return true;
	if (!donor->emptying && !donor->n_writing)
		donor->keeps_until_ns = loop_now() + STEAL_NS; /* all in use: ask others meanwhile */
	return false;
}

static bool tier_steal(struct ns *ns, struct ns *donor)
{
	return donor && tier_take_slab(donor, ns, TOPOLOGY_ANY);
}

/* Who has memory on the node and misses it least: nobody uses it, or what would go is worth least. */
static struct ns *tier_shrink_donor(struct daemon *d, uint32_t node)
{
	struct ns *donor = NULL, *last = NULL;
	bool cost = tier_costs_known(d), spares = false;
	uint64_t now = loop_now();
	double least = 0;

	for (uint32_t place = 0; place < d->pool.header->max_places; place++) {
		struct slab *slab = d->slabs[place];
		struct ns *ns = slab && slab->node == node ? slab->ns : NULL;
		double worth;

		if (!ns || ns == last)
			continue;
		last = ns;
		if (ns->emptying || ns_is_unused(ns))
			return ns; /* what is begun first */
		if ((int64_t)(now - ns->keeps_until_ns) < 0)
			continue;
		if (spares && !ns_spares_slab(ns))
			continue; /* minimum shares go last: all of them together may be more than the budget */
		worth = tier_worth(ns, cost);
		if (!donor || worth < least || (!spares && ns_spares_slab(ns))) {
			donor = ns;
			least = worth;
			spares = ns_spares_slab(ns);
		}
	}
	return donor;
}

bool tier_shrink(struct daemon *d, uint32_t i)
{
	struct ns *donor = tier_shrink_donor(d, i);

	return donor && tier_take_slab(donor, NULL, i);
}

/* All is in use. Who is at its quota is in nobody's way but its own. */
static void tier_want_holds(struct ns *ns)
{
	if (quota_allows(ns, NULL)) {
		ns->d->holds_wanted = true;
		return;
	}
	ns->d->own_holds_wanted = true;
	ns->d->own_holds_uid = ns->head->owner_uid;
}

bool tier_shrink_ns(struct ns *ns)
{
	return tier_take_slab(ns, NULL, TOPOLOGY_ANY);
}

uint64_t tier_make_room(struct ns *ns, uint64_t want, uint32_t node)
{
	uint64_t now;

	if (topology_is_far(ns->d->topology, node)) { /* asked for by name */
		if (ns->open[node] || (!ns->coming_on[node] && ns_add_slab(ns, node, true) && ns->open[node]))
			return ns->n_free_far;
		node = TOPOLOGY_ANY;
	}
	/* free slots elsewhere do not keep a caller from memory near it, if there is some to spare */
	if (node != TOPOLOGY_ANY && ns->n_free + ns->n_coming && !ns->coming_on[node] && !ns->open[node])
		ns_add_slab(ns, node, true);
	while (ns_room(ns) + ns->n_coming < want && ns_add_slab(ns, node, false))
		;
	if (ns->d->has_far)
		tier_demote(ns, want);
	if (ns_room(ns) + ns->n_coming + tier_coming(ns) >= want)
		return ns_room(ns);
	now = loop_now();
	if (now < ns->no_room_until_ns)
		return ns_room(ns);
	if (now >= ns->steal_after_ns && !tier_steal(ns, tier_idle_donor(ns)))
		ns->steal_after_ns = now + STEAL_NS;
	if (ns_room(ns) + ns->n_coming + tier_coming(ns) >= want)
		return ns_room(ns); /* what comes is worth more than what would go for it */
	tier_evict_oldest(ns, ns->n_free - ns_room(ns) + want, LOOKS_MAX);
	if (ns->d->has_far)
		tier_demote(ns, want);
	if (!ns_room(ns) && !tier_coming(ns) && !ns->n_coming && !tier_steal(ns, tier_largest_donor(ns))) {
		ns->no_room_until_ns = now + RETRY_NS;
		tier_want_holds(ns);
	}
	return ns_room(ns);
}
