/*
 * tier_restore.c - blocks that come back: a key is found, priced, read, and read ahead
 *
 * A RESTORE waits as a job (tier_jobs.c) whose waiters hang at the entries being read.
 */
#include <errno.h>
#include <stdlib.h>

#include "block.h"
#include "events.h"
#include "kvpool_desc.h"
#include "peer.h"
#include "policy.h"
#include "session.h"
#include "spill_set.h"
#include "tier_parts.h"

#define READ_AHEAD_LOOKS 1100 /* entries looked at to find what to read ahead */

/* ---- misses ---- */

static void tier_count_miss(struct ns *ns, uint32_t reason)
{
	struct kvp_ns_counters *c = &ns->row->counters;

	gauge_add(&c->lookups, 1); /* here and with each hit that a client reports: so they are the sum of both */
	switch (reason) {
	case KVP_MISS_EVICTED:
		gauge_add(&c->miss_evicted, 1);
		return;
	case KVP_MISS_SIBLING:
		gauge_add(&c->miss_sibling, 1);
		return;
	case KVP_MISS_DAMAGED:
		gauge_add(&c->miss_damaged, 1);
		return;
	case KVP_MISS_TIER:
		gauge_add(&c->miss_tier, 1);
		return;
	case KVP_MISS_COST:
		gauge_add(&c->miss_cost, 1);
		return;
	case KVP_MISS_UNASKED:
		gauge_add(&c->miss_unasked, 1);
		return;
	default:
		gauge_add(&c->miss_never, 1);
		return;
	}
}

/* A key of @job at @index was said to come, and will not: nobody asks for it again, so it is counted now.  Who asks for
   a run in pieces asks for the rest again, unless the first one is a miss: then all that are known to be are counted with it. */
static void job_count_missed(const struct job *job, uint32_t index)
{
	for (uint32_t i = job->in_pieces ? 0 : index; i < (job->in_pieces ? job->n : index + 1); i++)
		if (job->found[i].state == KVP_MISS && !(job->in_pieces && index))
			tier_count_miss(job->ns, job->found[i].reason);
}

/* ---- who waits for a block ---- */

static void tier_entry_answer(struct entry *e, struct kvp_wire_found found)
{
	while (e->waiters) {
		struct waiter *waiter = e->waiters;
		struct job *job = waiter->job;

		e->waiters = waiter->next;
		waiter->entry = NULL;
		job->found[waiter->index] = found;
		if (found.state == KVP_MISS)
			job_count_missed(job, waiter->index);
		if (--job->n_left == 0 || waiter->index == job->first)
			job_answer_restore(job);
	}
}

void tier_entry_ready(struct entry *e)
{
	tier_entry_answer(e, (struct kvp_wire_found){.state = KVP_HIT_RAM, .slot = e->slot});
}

static void tier_entry_restored(struct entry *e)
{
	tier_entry_answer(
		e, (struct kvp_wire_found){.state = KVP_HIT_RAM, .reason = KVP_WIRE_RESTORED, .slot = e->slot});
}

static void tier_entry_missed(struct entry *e, enum kvp_miss_reason reason)
{
	tier_entry_answer(e, (struct kvp_wire_found){.state = KVP_MISS, .reason = reason});
}

/* Those who take it as it comes have what they waited for; who waits for it in another namespace cannot name its
   slot. */
static void tier_entry_arrives(struct entry *e)
{
	for (struct waiter **at = &e->waiters; *at;) {
		struct waiter *waiter = *at;
		struct job *job = waiter->job;

		if (!job->layers || job->ns != e->ns) {
			at = &waiter->next;
			continue;
		}
		*at = waiter->next;
		waiter->entry = NULL;
		job->found[waiter->index] =
			(struct kvp_wire_found){.state = KVP_HIT_RAM, .reason = KVP_WIRE_ARRIVES, .slot = e->fill};
		if (--job->n_left == 0 || waiter->index == job->first)
			job_answer_restore(job);
	}
}

/* ---- reads ---- */

const struct spill_layers *tier_layers(void *owner, uint64_t ns_id)
{
	struct ns *ns = ns_find(owner, ns_id);
	const struct kvp_desc *desc = ns ? &ns->head->desc : NULL;

	if (!ns || !(ns->head->flags & KVP_NS_LAYERS) || desc->layout == KVP_LAYOUT_OPAQUE || desc->n_layers < 2)
		return NULL;
	if (!ns->layers && (ns->layers = calloc(1, sizeof(*ns->layers)))) {
		ns->layers->n = desc->n_layers;
		for (uint32_t i = 0; i < desc->n_layers; i++)
			ns->layers->ends[i] = kvp_tensor_off(desc, i + 1, KVP_K);
	}
	return ns->layers;
}

void tier_layers_came(void *owner, void *reader, uint32_t layers)
{
	struct entry *e = reader;

	(void)owner;
	if (e->slot != NO_SLOT || e->doomed)
		return; /* published, or forgotten, meanwhile */
	block_arrive(e, layers);
	tier_entry_arrives(e);
}

/* How fast blocks come back, measured over all reads under way together. */
static void tier_read_ended(struct tier *tier, uint64_t bytes, bool good)
{
	uint64_t now = loop_now();
	double sample = (double)(now - tier->read_event_ns) / (double)bytes;

	tier->reading_bytes -= bytes;
	tier->read_event_ns = now;
	if (good)
		tier->read_ns_per_byte += (sample - tier->read_ns_per_byte) / (tier->read_ns_per_byte > 0 ? 16 : 1);
}

/* Would reading @bytes behind those under way take longer than computing @tokens? */
static bool tier_costs_more(struct ns *ns, uint64_t bytes, uint64_t tokens, uint64_t cost_ns_per_token)
{
	struct tier *tier = ns->d->tier;
	double read_ns = (double)(tier->reading_bytes + bytes) * tier->read_ns_per_byte;
	double compute_ns = (double)tokens * (double)cost_ns_per_token;

	if (!bytes)
		return false;
	gauge_set(&ns->row->counters.restore_us, (uint64_t)(read_ns / 1000));
	gauge_set(&ns->row->counters.recompute_us, (uint64_t)(compute_ns / 1000));
	if (!cost_ns_per_token || read_ns <= compute_ns)
		return false;
	tier->read_ns_per_byte *=
		1 - 1. / 64; /* what is not tried is not measured: believe it a little less each time */
	return true;
}

static void tier_read_done(void *owner, int res, spill_place place)
{
	struct entry *e = owner;
	struct ns *ns = e->ns;

	(void)place;
	tier_read_ended(ns->d->tier, ns->head->block_bytes, res == 0);
	e->io = ENTRY_IDLE;
	ns->n_reading--;
	if (res == 0 && e->slot == NO_SLOT && !e->doomed) {
		block_publish_fill(e, e->fill);
		gauge_add(&ns->row->counters.restored, 1);
		tier_entry_restored(e);
	} else {
		block_drop_fill(ns, e->fill);
		if (e->slot != NO_SLOT) { /* published meanwhile */
			tier_entry_ready(e);
		} else {
			tier_entry_missed(e, res == -EBADMSG ? KVP_MISS_DAMAGED : KVP_MISS_TIER);
			if (res == -EBADMSG && e->cold) {
				gauge_add(&ns->row->counters.cold, -1);
				e->cold = 0;
				events_removed(e, KVP_HIT_SPILL);
			}
			if (res == -EBADMSG)
				ns_ghost_add(ns, &e->key, KVP_MISS_DAMAGED);
			if (!e->cold || e->doomed)
				ns_entry_drop(e);
		}
	}
	if (!ns->d->stopping)
		tier_serve(ns);
}

/* Its copy is in a store that hangs, or in none that serves. */
static bool entry_hangs(const struct entry *e)
{
	struct spill_set *spill = e->ns->d->tier->spill;

	return !spill || spill_set_hung(spill, e->cold);
}

/* Reads under way leave a quarter of the slots, one at least, to what comes new: should the store hang, they have them
   until it is gone or well again.  Those that are stuck so no longer count. */
static bool tier_read_may(const struct ns *ns)
{
	uint64_t most = ns->n_slots - (ns->n_slots + 3) / 4;

	if (!most)
		most = 1;
	return ns->n_reading < most || ns->n_reading < most + spill_set_stuck_reads(ns->d->tier->spill, ns->id);
}

void tier_start_reads(struct ns *ns)
{
	while (ns->restore_head) {
		struct entry *e = ns->restore_head;
		struct spill_record record = entry_record(e);

		bool hangs = e->slot == NO_SLOT && e->cold && entry_hangs(e);

		if (e->slot == NO_SLOT && e->cold && !e->doomed && !hangs) {
			if (!tier_read_may(ns) || !tier_make_room(ns, 1, TOPOLOGY_ANY))
				return; /* a completion calls again */
			e->fill = block_begin_fill(ns, e);
			if (e->fill == NO_SLOT)
				return;
			if (spill_set_read(ns->d->tier->spill, e->cold, &record, ns_slot_data(ns, e->fill),
				    tier_read_done, e) < 0) {
				block_drop_fill(ns, e->fill);
				return; /* the queue is full */
			}
			e->io = ENTRY_READING;
			ns->n_reading++;
		}
		ns->restore_head = e->queue_next;
		if (!ns->restore_head)
			ns->restore_tail = NULL;
		if (e->io == ENTRY_READING)
			continue;
		ns->d->tier->reading_bytes -= ns->head->block_bytes;
		e->io = ENTRY_IDLE;
		if (e->slot != NO_SLOT) {
			tier_entry_ready(e);
		} else if (hangs && !e->doomed) { /* those behind it do not wait for that */
			tier_entry_missed(e, KVP_MISS_TIER);
		} else {
			tier_entry_missed(e, KVP_MISS_EVICTED);
			ns_entry_drop(e);
		}
	}
}

static void tier_read_begins(struct tier *tier, uint64_t bytes)
{
	if (!tier->reading_bytes)
		tier->read_event_ns = loop_now();
	tier->reading_bytes += bytes;
}

static void tier_queue_read(struct entry *e)
{
	struct ns *ns = e->ns;

	tier_read_begins(ns->d->tier, ns->head->block_bytes);
	e->io = ENTRY_QUEUED;
	e->queue_next = NULL;
	if (ns->restore_tail)
		ns->restore_tail->queue_next = e;
	else
		ns->restore_head = e;
	ns->restore_tail = e;
}

/* ---- finding ---- */

/* State of a key; *at its entry, if known here or in the base. */
static struct kvp_wire_found tier_find(struct ns *ns, const struct kvp_key *key, struct entry **at)
{
	struct entry *e = ns_entry_above(ns, key);
	struct kvp_wire_found found = {.state = KVP_MISS};

	*at = e;
	if (!e || (e->slot == NO_SLOT && !e->cold)) {
		found.reason = ns_miss_reason(ns, key);
	} else if (e->slot != NO_SLOT) {
		found.state = KVP_HIT_RAM;
		found.slot = e->slot;
	} else if (entry_hangs(e)) {
		found.reason = KVP_MISS_TIER;
	} else if (e->io == ENTRY_READING || e->io == ENTRY_QUEUED) {
		found.state = KVP_PENDING;
	} else {
		found.state = KVP_HIT_SPILL;
	}
	return found;
}

void tier_lookup(struct ns *ns, const struct kvp_key *key, enum tier_lookup how, struct kvp_wire_found *found)
{
	struct entry *e;

	*found = tier_find(ns, key, &e);
	if (found->state == KVP_MISS)
		tier_count_miss(ns, found->reason);
	else if (how == TIER_MISSED)
		tier_count_miss(ns, KVP_MISS_UNASKED);
	if (how == TIER_TOUCH && e && found->state != KVP_MISS) {
		e->stamp = daemon_tick(ns->d);
		policy_touch(e->ns, e);
	}
}

/* A run that would come slower than it is computed is a miss, as far as it is cold. */
static void tier_price(struct member *member, const struct kvp_key *keys, uint32_t n, struct kvp_wire_found *found)
{
	struct ns *ns = member->ns;
	uint64_t bytes = 0, tokens = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct entry *e = found[i].state == KVP_HIT_SPILL ? ns_entry_above(ns, &keys[i]) : NULL;

		bytes += e ? ns->head->block_bytes : 0;
		tokens += e ? e->used_tokens : 0;
	}
	if (!tier_costs_more(ns, bytes, tokens, member->cost_ns_per_token))
		return;
	for (uint32_t i = 0; i < n; i++)
		if (found[i].state == KVP_HIT_SPILL)
			found[i] = (struct kvp_wire_found){.state = KVP_MISS, .reason = KVP_MISS_COST};
}

/* ---- reading ahead ---- */

/* Start reading a block nobody has asked for: into a slot that is free, and of those kept ready no more than half.
   Return: go on with others. */
static bool tier_read_ahead_one(struct entry *e)
{
	struct ns *ns = e->ns;
	struct tier *tier = ns->d->tier;
	struct spill_record record = entry_record(e);

	if (ns->waits || ns->restore_head)
		return false; /* those who ask come first */
	if (entry_hangs(e))
		return true;
	if (!tier_read_may(ns))
		return false;
	if (ns->n_free <= ns->n_slots * ns->d->config.free_percent / 200 &&
		(!ns_add_slab(ns, TOPOLOGY_ANY, false) || !ns->n_free))
		return false;
	e->fill = block_begin_fill(ns, e);
	if (e->fill == NO_SLOT)
		return false;
	if (spill_set_read(tier->spill, e->cold, &record, ns_slot_data(ns, e->fill), tier_read_done, e) < 0) {
		block_drop_fill(ns, e->fill);
		return false;
	}
	e->io = ENTRY_READING;
	ns->n_reading++;
	tier_read_begins(tier, ns->head->block_bytes);
	gauge_add(&ns->row->counters.read_ahead, 1);
	return true;
}

/* What hangs below the last block of a run that is being read, level by level, is likely to be asked for next. */
static void tier_read_ahead(struct ns *ns, struct entry *last)
{
	struct entry *front[READ_AHEAD_LOOKS];
	uint32_t n = 1, n_read = 0;

	if (!last || !ns->d->tier->spill)
		return;
	front[0] = last;
	for (uint32_t i = 0; i < n; i++)
		for (struct entry *e = front[i]->first_child; e && n < READ_AHEAD_LOOKS; e = e->next_sibling) {
			if (e->ns != ns)
				continue; /* of a namespace that builds upon this one */
			front[n++] = e;
			if (e->slot != NO_SLOT || !e->cold || e->io != ENTRY_IDLE || e->doomed)
				continue;
			if (n_read++ == ns->d->config.read_ahead || !tier_read_ahead_one(e))
				return;
		}
}

void tier_restore(struct member *member, struct peer *peer, uint64_t msg_id, const struct kvp_key *keys, uint32_t n,
	uint32_t flags, uint64_t deadline_ns)
{
	struct ns *ns = member->ns;
	bool prefetch = flags & KVP_WIRE_PREFETCH, first = flags & KVP_WIRE_FIRST;
	uint32_t last = UINT32_MAX; /* of those that are known */
	struct job *job;

	if (!job_allowed(peer, KVP_MSG_RESTORE, msg_id))
		return;
	job = job_new(JOB_RESTORE, member, peer, msg_id, deadline_ns);
	if (job)
		job->found = calloc(n ? n : 1, sizeof(*job->found));
	if (job && !prefetch)
		job->waiters = calloc(n ? n : 1, sizeof(*job->waiters));
	if (!job || !job->found || (!prefetch && !job->waiters)) {
		if (job)
			job_free(job);
		peer_refuse(peer, KVP_MSG_RESTORE, msg_id, KVP_ENOMEM, "the daemon is out of memory");
		return;
	}
	job->n = n;
	job->layers = flags & KVP_WIRE_LAYERS;
	job->in_pieces = first;
	job->n_left = 1; /* not before all are looked at */
	job->first = UINT32_MAX;
	for (uint32_t i = 0; i < n; i++) {
		struct entry *e;

		job->found[i] = tier_find(ns, &keys[i], &e);
	}
	tier_price(member, keys, n, job->found);
	/* who asks for a run in pieces asks for the rest again: there it is counted */
	for (uint32_t i = 0; i < n && !prefetch && (!first || job->found[0].state == KVP_MISS); i++)
		if (job->found[i].state == KVP_MISS)
			tier_count_miss(ns, job->found[i].reason);
	for (uint32_t i = 0; i < n; i++) {
		struct entry *e = job->found[i].state == KVP_MISS ? NULL : ns_entry_above(ns, &keys[i]);

		if (!e)
			continue;
		last = i;
		block_hold(e); /* until the caller has pinned it, or its chain is complete */
		if (job->found[i].state == KVP_HIT_RAM)
			continue;
		if (job->found[i].state == KVP_HIT_SPILL) {
			if (e->io == ENTRY_IDLE) /* else the same key came twice */
				tier_queue_read(e);
			job->found[i].state = KVP_PENDING;
		}
		if (prefetch)
			continue;
		job->waiters[i] = (struct waiter){.next = e->waiters, .entry = e, .job = job, .index = i};
		e->waiters = &job->waiters[i];
		job->n_left++;
		if (job->layers && block_arrives(e))
			tier_entry_arrives(e);
	}
	tier_start_reads(ns);
	if (ns->base)
		tier_start_reads(ns->base);
	tier_read_ahead(ns, last < n ? ns_entry(ns, &keys[last]) : NULL);
	if (first) /* from here on: until then an answer would have ended the job under our hands */
		job->first = 0;
	if (--job->n_left == 0 || prefetch || (first && n && job->found[0].state != KVP_PENDING))
		job_answer_restore(job);
}
