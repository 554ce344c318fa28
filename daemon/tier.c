/*
 * tier.c - see tier.h
 *
 * Requests that wait are jobs: in the list of their namespace while they need a slot (RESERVE, copied PUBLISH), linked
 * from entries by waiters while they wait for reads (RESTORE).  Every job has a timer for its deadline; whoever ends a
 * job answers it once and frees it.  An answer never frees a peer, a session or a job (see peer.h), so it may come first.
 *
 * Memory moves between namespaces a slab at a time: from one nobody uses before a namespace evicts blocks of its own, then
 * from one whose oldest block has been unused far longer than its own oldest, and when nothing of its own may go, from
 * the one that has most.  The donor's oldest blocks go as they always do, and what is left in one slab moves to its others.
 */
#include "tier.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "block.h"
#include "guard.h"
#include "io.h"
#include "kvpool_desc.h"
#include "log.h"
#include "peer.h"
#include "policy.h"
#include "session.h"
#include "slab.h"
#include "spill_set.h"

#define RETRY_NS 20000000ull /* nothing could be evicted: look again after so long */
#define PUBLISH_WAIT_NS 2000000000ull /* a copied publish waits so long for a slot */
#define LOOKS_MAX 512 /* candidates looked at in one call */
#define STEAL_LOOKS_MAX 4096 /* and when a whole slab is wanted */
#define MOVE_MAX (16ull << 20) /* bytes copied in one call to empty a slab */
#define SLOW_NS 2000000000ull /* a store that ends nothing, or lets a request wait, for so long is not waited for */
#define EMPTYING_NS 1000000000ull
#define READ_AHEAD_LOOKS 1100 /* entries looked at to find what to read ahead */
#define DROP_MAX 4096 /* blocks forgotten in one turn */
#define JOBS_MAX 256 /* requests of one peer that wait */
#define STEAL_NS 100000000ull /* how often a namespace looks at the memory of the others */
#define STEAL_TICKS (10 * TICKS_PER_SECOND) /* so much longer, and twice as long, unused: worth moving a slab for */

enum job_kind {
	JOB_RESERVE,
	JOB_RESTORE,
	JOB_PUBLISH,
	JOB_DRAIN,
	JOB_EVICT,
	JOB_DROP,
};

struct waiter {
	struct waiter *next; /* of the entry */
	struct entry *entry; /* NULL: done */
	struct job *job;
	uint32_t index;
};

struct job {
	struct job *next; /* in the list of its namespace, or of the tier */
	struct job *all_next, *all_prev;
	enum job_kind kind;
	uint64_t since_ns; /* it waits for a slot */
	uint64_t near_until_ns; /* RESERVE: so long for one on its node while that node's slab is made */
	struct daemon *d;
	struct peer *peer; /* NULL: gone, nobody hears the answer */
	struct member *member;
	struct ns *ns;
	uint64_t id;
	struct loop_timer timer;
	uint32_t n, n_left, node;
	uint32_t first; /* RESTORE: with this one it is answered; UINT32_MAX: when all are there */
	struct waiter *waiters; /* RESTORE */
	struct kvp_wire_found *found; /* RESTORE */
	struct kvp_wire_item *items; /* PUBLISH */
	struct kvp_wire_result *results;
	uint32_t at; /* PUBLISH: item being worked on */
	uint64_t fill; /* PUBLISH: slot being copied into, or NO_SLOT */
	struct io_op op;
	struct stage *stage; /* PUBLISH: of the member, that may go */
	uint64_t n_done; /* DRAIN, EVICT */
	struct block_name *todo; /* DRAIN, DROP */
	uint64_t n_todo, todo_at, n_failed;
	int error; /* DRAIN: errno of the last write that failed */
	bool flushing;
	uint64_t n_want, ns_id, n_looks; /* EVICT; ns_id 0: all; looks in vain since the last block that went */
};

/* A block that a drain has to write, or a drop to forget. Keys, not entries: those may go meanwhile. */
struct block_name {
	uint64_t ns_id;
	struct kvp_key key;
};

struct tier {
	struct daemon *d;
	struct spill_set *spill; /* NULL: off */
	int store_nodes[CONFIG_STORES_MAX]; /* the kernel's numbers; -1: not known */
	struct loop_source spill_source;
	struct io *copies; /* out of staging areas */
	struct loop_source copies_source;
	struct job jobs; /* head of the list of all */
	struct job *drain, *evict, *drop;
	struct loop_timer evict_timer, drop_timer; /* the next piece */
	uint64_t n_nobodys; /* records found of no namespace there is */
	uint64_t too_long; /* longest block the store could not take, as far as was said */
	struct spill_stats told; /* what of the store's numbers is in the counters already */
	uint64_t reading_bytes; /* being read, or queued for it */
	uint64_t read_event_ns; /* last time a read ended, or the first of many began */
	double read_ns_per_byte; /* how fast they come, all together; 0: not known yet */
};

static void job_publish_step(struct job *job);
static bool job_grant(struct job *job, bool late);
static void tier_start_reads(struct ns *ns);
static void drain_step(struct tier *tier);
static void evict_step(struct tier *tier);

/* ---- jobs ---- */

static void job_deadline(struct loop_timer *timer);

static struct job *job_new(
	enum job_kind kind, struct member *member, struct peer *peer, uint64_t id, uint64_t deadline_ns)
{
	struct daemon *d = peer->d;
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->kind = kind;
	job->d = d;
	job->peer = peer;
	job->member = member;
	job->ns = member ? member->ns : NULL;
	job->id = id;
	job->fill = NO_SLOT;
	job->timer.ring = job_deadline;
	job->timer.owner = job;
	job->all_next = d->tier->jobs.all_next;
	job->all_prev = &d->tier->jobs;
	job->all_next->all_prev = job;
	d->tier->jobs.all_next = job;
	peer->n_jobs++;
	loop_timer_set(d->loop, &job->timer, deadline_ns);
	return job;
}

/* Bytes of blocks that are on their way for requests of @uid. */
static uint64_t jobs_transit_of(const struct tier *tier, uid_t uid)
{
	uint64_t bytes = 0;

	for (const struct job *job = tier->jobs.all_next; job != &tier->jobs; job = job->all_next)
		if (job->member && job->member->session->uid == uid)
			bytes += (job->kind == JOB_RESTORE	    ? job->n_left
					 : job->kind == JOB_PUBLISH ? job->n - job->at
								    : 0) *
				 job->ns->head->block_bytes;
	return bytes;
}

/* May this peer start a request that may wait? Else it is refused. */
static bool job_allowed(struct peer *peer, uint16_t type, uint64_t msg_id)
{
	uint64_t most = peer->d->config.uid_max_transit;

	if (peer->n_jobs >= JOBS_MAX) {
		peer_refuse(peer, type, msg_id, KVP_EQUOTA, "%u requests of this client wait already: take the answers",
			JOBS_MAX);
		return false;
	}
	if (type != KVP_MSG_RESERVE && jobs_transit_of(peer->d->tier, peer->uid) > most) {
		peer_refuse(peer, type, msg_id, KVP_EQUOTA,
			"%" PRIu64
			" bytes are on their way for uid %u already: ask for less at once, or raise uid-max-transit",
			most, (unsigned)peer->uid);
		return false;
	}
	return true;
}

static void job_leave_list(struct job *job)
{
	if (!job->ns)
		return;
	for (struct job **at = &job->ns->waits; *at; at = &(*at)->next)
		if (*at == job) {
			*at = job->next;
			return;
		}
}

static void job_free(struct job *job)
{
	loop_timer_cancel(job->d->loop, &job->timer);
	job_leave_list(job);
	if (job->peer)
		job->peer->n_jobs--;
	if (job->stage)
		session_put_stage(job->d, job->stage);
	job->all_prev->all_next = job->all_next;
	job->all_next->all_prev = job->all_prev;
	for (uint32_t i = 0; job->waiters && i < job->n; i++) {
		struct entry *e = job->waiters[i].entry;

		for (struct waiter **at = e ? &e->waiters : NULL; at && *at; at = &(*at)->next)
			if (*at == &job->waiters[i]) {
				*at = job->waiters[i].next;
				break;
			}
	}
	free(job->waiters);
	free(job->found);
	free(job->items);
	free(job->results);
	free(job->todo);
	free(job);
}

static void job_wait_for_slot(struct job *job)
{
	struct job **at = &job->ns->waits;

	while (*at)
		at = &(*at)->next;
	job->next = NULL;
	job->since_ns = loop_now();
	*at = job;
}

static void job_answer_restore(struct job *job)
{
	if (job->peer)
		peer_answer(job->peer, KVP_MSG_RESTORE, job->id, 0, job->found, job->n * sizeof(*job->found), NULL, 0);
	job_free(job);
}

static void job_answer_publish(struct job *job)
{
	if (job->peer)
		peer_answer(
			job->peer, KVP_MSG_PUBLISH, job->id, 0, job->results, job->n * sizeof(*job->results), NULL, 0);
	job_free(job);
}

/* The end of what an operator asked for: peer.c has told the beginning. */
static void job_log_end(const char *what, const struct kvp_wire_admin_done *done)
{
	log_info("%s: %" PRIu64 " blocks done, %" PRIu64 " left%s%s%s", what, done->n_done, done->n_left,
		done->late ? "; its deadline came first" : "", done->error ? ": " : "",
		done->error ? strerror(done->error) : "");
}

static void job_answer_drain(struct job *job, bool late)
{
	struct kvp_wire_admin_done done = {.n_done = job->n_done,
		.n_left = job->n_left,
		.n_failed = job->n_failed,
		.error = job->error,
		.late = late};

	job->d->tier->drain = NULL;
	job_log_end("drain", &done);
	if (job->peer)
		peer_answer(job->peer, KVP_MSG_DRAIN, job->id, 0, &done, sizeof(done), NULL, 0);
	job_free(job);
}

static void job_answer_evict(struct job *job, bool late)
{
	struct kvp_wire_admin_done done = {.n_done = job->n_done, .late = late};

	for (struct ns *ns = job->d->namespaces; ns; ns = ns->next)
		if (!job->ns_id || ns->id == job->ns_id)
			done.n_left += atomic_load(&ns->row->counters.published);
	if (done.n_left > job->n_want - job->n_done)
		done.n_left = job->n_want - job->n_done;
	job->d->tier->evict = NULL;
	loop_timer_cancel(job->d->loop, &job->d->tier->evict_timer);
	job_log_end("evict", &done);
	if (job->peer)
		peer_answer(job->peer, KVP_MSG_EVICT, job->id, 0, &done, sizeof(done), NULL, 0);
	job_free(job);
}

static void job_answer_drop(struct job *job, bool late)
{
	struct kvp_wire_admin_done done = {
		.n_done = job->n_done, .n_left = job->n_todo - job->todo_at, .error = job->error, .late = late};

	job->d->tier->drop = NULL;
	loop_timer_cancel(job->d->loop, &job->d->tier->drop_timer);
	job_log_end("store drop", &done);
	if (job->peer)
		peer_answer(job->peer, KVP_MSG_STORE_DROP, job->id, 0, &done, sizeof(done), NULL, 0);
	job_free(job);
}

static void job_deadline(struct loop_timer *timer)
{
	struct job *job = timer->owner;

	switch (job->kind) {
	case JOB_RESERVE:
		job_grant(job, true); /* far memory, if there was any while it waited for near memory */
		return;
	case JOB_RESTORE:
		job_answer_restore(job);
		return;
	case JOB_PUBLISH:
		if (job->fill != NO_SLOT)
			return; /* a copy is under way and will go on with the rest by itself */
		for (; job->at < job->n; job->at++) {
			job->results[job->at].result = KVP_PUB_REJECTED;
			gauge_add(&job->ns->row->counters.rejected, 1);
		}
		job_answer_publish(job);
		return;
	case JOB_DRAIN:
		job_answer_drain(job, true);
		return;
	case JOB_EVICT:
		job_answer_evict(job, true);
		return;
	case JOB_DROP:
		job_answer_drop(job, true);
		return;
	}
}

/* ---- making room ---- */

bool tier_on(const struct daemon *d)
{
	struct spill_stats stats;

	if (!d->tier->spill)
		return false;
	spill_set_stats(d->tier->spill, &stats);
	return stats.state == SPILL_UP;
}

static struct spill_record entry_record(const struct entry *e)
{
	return (struct spill_record){.ns_id = e->ns->id,
		.key = e->key,
		.parent = e->parent_key,
		.bytes = e->bytes,
		.used_tokens = e->used_tokens};
}

static void tier_written(void *owner, int res, spill_place place)
{
	struct entry *e = owner;
	struct ns *ns = e->ns;

	ns_slot(ns, e->slot)->io--;
	e->io = ENTRY_IDLE;
	ns->n_writing--;
	if (res == 0 && guard_condemned(ns_slab_of(ns, e->slot)->guard)) {
		/* a writer cut the slab meanwhile: what was written is not what was published */
		spill_set_forget(ns->d->tier->spill, place);
		res = -EFAULT;
	}
	if (res == 0) {
		e->cold = place;
		gauge_add(&ns->row->counters.clean, 1);
	}
	ns_entry_settle(e);
	if (ns->d->tier->drain) {
		ns->d->tier->drain->n_done += res == 0;
		ns->d->tier->drain->n_failed += res < 0;
		if (res < 0)
			ns->d->tier->drain->error = -res;
	}
	if (!ns->d->stopping) {
		tier_serve(ns);
		drain_step(ns->d->tier);
		evict_step(ns->d->tier);
	}
}

/* Counted each time, said once for each greater length. */
static void tier_too_long(struct ns *ns, uint64_t bytes)
{
	struct tier *tier = ns->d->tier;

	gauge_add(&ns->d->pool.stats->counters.spill_too_long, 1);
	if (bytes <= tier->too_long)
		return;
	tier->too_long = bytes;
	log_warn(
		"spill store %s: blocks of %" PRIu64 " bytes (namespace %s) are longer than its segments hold, %" PRIu64
		" bytes: they are dropped, not written; to have them written too, stop kvpoold, remove the store and start: "
		"it is then made for them",
		ns->d->config.stores[0].path, bytes, ns->head->name, spill_set_longest(tier->spill));
}

static uint64_t tier_today(void)
{
	return (uint64_t)time(NULL) / 86400;
}

/* What was written today, over restarts of the daemon too; a new day begins at 0. */
static uint64_t tier_written_today(struct tier *tier)
{
	struct kvp_counters *c = &tier->d->pool.stats->counters;

	if (atomic_load(&c->spill_day) != tier_today()) {
		gauge_set(&c->spill_day, tier_today());
		gauge_set(&c->spill_day_bytes, 0);
	}
	return atomic_load(&c->spill_day_bytes);
}

/* May this victim be written, as far as the day's budget goes? */
static bool tier_may_write(const struct entry *e)
{
	struct daemon *d = e->ns->d;

	if (!d->config.spill_write_budget || tier_written_today(d->tier) + e->bytes <= d->config.spill_write_budget)
		return true;
	gauge_add(&d->pool.stats->counters.spill_over_budget, 1);
	return false;
}

/* Start writing a victim's cold copy. Return: 0; -EAGAIN: later; other -errno: it cannot be written. */
static int tier_write(struct entry *e)
{
	struct spill_record record = entry_record(e);
	int r = spill_set_write(e->ns->d->tier->spill, &record, ns_slot_data(e->ns, e->slot), e, tier_written, e);

	if (r == -EFBIG)
		tier_too_long(e->ns, record.bytes);
	if (r < 0)
		return r;
	tier_written_today(e->ns->d->tier);
	gauge_add(&e->ns->d->pool.stats->counters.spill_day_bytes, (int64_t)record.bytes);
	e->io = ENTRY_WRITING;
	ns_slot(e->ns, e->slot)->io++;
	e->ns->n_writing++;
	policy_remove(e->ns, e);
	return 0;
}

/* Does the store let people wait? A block that is dropped costs less than an engine that stands still. */
static bool tier_is_slow(const struct ns *ns)
{
	const struct tier *tier = ns->d->tier;

	return tier->spill && (spill_set_stalled(tier->spill, SLOW_NS) ||
				      (ns->n_writing && ns->waits && loop_now() - ns->waits->since_ns > SLOW_NS));
}

/* Slots that writes under way will let go, soon. */
static uint64_t tier_coming(const struct ns *ns)
{
	return ns->n_writing && !tier_is_slow(ns) ? ns->n_writing : 0;
}

/* Evict, or start to write, the oldest candidates, until @want slots are free or coming. Return: 1; 0: they never will be,
   the rest is in use; -EAGAIN: the store takes no more writes now; -EINTR: so many looks did not do it. */
static int tier_evict_from(struct ns *ns, bool far, uint64_t want, unsigned looks_max)
{
	struct daemon *d = ns->d;
	struct entry *first_held = NULL;
	bool spill = tier_on(d);

	for (unsigned looks = 0; looks < looks_max && ns->n_free + tier_coming(ns) < want; looks++) {
		struct entry *e = far ? policy_first_far(ns) : policy_first_near(ns);
		uint32_t place, index, stamp;

		if (!e || e == first_held)
			return 0; /* all round: everything is in use */
		place = (uint32_t)(e->slot / ns->head->slots_per_slab);
		index = (uint32_t)(e->slot % ns->head->slots_per_slab);
		stamp = e->stamp;
		if (session_pins(d, place, index, &stamp) || block_is_held(e) || e->n_hot_children) {
			if (!first_held)
				first_held = e;
			e->stamp = daemon_tick(d);
			policy_touch(ns, e);
			continue;
		}
		if (stamp != e->stamp) { /* used since it was put in order */
			e->stamp = stamp;
			policy_touch(ns, e);
			continue;
		}
		if (!e->cold && spill && !ns_room(ns) && tier_is_slow(ns)) {
			gauge_add(&d->pool.stats->counters.spill_too_slow, 1);
		} else if (!e->cold && spill && tier_may_write(e)) {
			int r = tier_write(e);

			if (r == 0)
				continue;
			if (r == -EAGAIN)
				return r;
		}
		if (!block_evict(e)) {
			e->stamp = daemon_tick(d);
			policy_touch(ns, e);
		}
	}
	return ns->n_free + tier_coming(ns) < want ? -EINTR : 1;
}

/* What lies far was used least lately: it goes first. */
static int tier_evict_oldest(struct ns *ns, uint64_t want, unsigned looks_max)
{
	int r = policy_first_far(ns) ? tier_evict_from(ns, true, want, looks_max) : 0;

	return r ? r : tier_evict_from(ns, false, want, looks_max);
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

/* Nodes without CPUs are a tier between: what was used least lately moves there, a bounded piece a call, before anything has to
   leave memory, and is used there in place.  Nothing comes back up: its use there costs less than a copy each way, and what
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
		if (!pinned && !block_is_held(e) && !tier_far_room(ns, ns_slab_of(ns, e->slot)->node))
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

/* Empty one slab of @donor by moving its blocks to its other slabs, a piece a call. Return: true: it is empty, and gone to
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

/* For how long has its oldest candidate not been used? Uses that only the pin tables know are put in order on the way. */
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
	return !ns->n_slots || ns_is_unused(other) || ns_spares_slab(other);
}

/* A namespace whose memory is worth less than ours: nobody uses it, or its oldest block has been unused for far longer. */
static struct ns *tier_idle_donor(struct ns *ns)
{
	uint64_t least = 2ull * tier_oldest_age(ns) + STEAL_TICKS;
	struct ns *donor = NULL;

	for (struct ns *other = ns->d->namespaces; other; other = other->next) {
		uint32_t age;

		if (!tier_may_give(ns, other))
			continue;
		if (ns_is_unused(other))
			return other;
		age = tier_oldest_age(other);
		if (age > least) {
			least = age;
			donor = other;
		}
	}
	return donor;
}

/* The namespace that has most memory, if that is more than ours; of equals the one that has used its own least lately. */
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

/* Who has memory on the node and misses it least: nobody uses it, or its oldest block has been unused for longest. */
static struct ns *tier_shrink_donor(struct daemon *d, uint32_t node)
{
	struct ns *donor = NULL, *last = NULL;
	uint64_t now = loop_now();
	uint32_t oldest = 0;
	bool spares = false;

	for (uint32_t place = 0; place < d->pool.header->max_places; place++) {
		struct slab *slab = d->slabs[place];
		struct ns *ns = slab && slab->node == node ? slab->ns : NULL;
		uint32_t age;

		if (!ns || ns == last)
			continue;
		last = ns;
		if (ns->emptying || ns_is_unused(ns))
			return ns; /* what is begun first */
		if ((int64_t)(now - ns->keeps_until_ns) < 0)
			continue;
		if (spares && !ns_spares_slab(ns))
			continue; /* minimum shares go last: all of them together may be more than the budget */
		age = tier_oldest_age(ns);
		if (!donor || age > oldest || (!spares && ns_spares_slab(ns))) {
			donor = ns;
			oldest = age;
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
		ns->d->holds_wanted = true;
	}
	return ns_room(ns);
}

/* ---- RESERVE ---- */

/* Is a slab for it being made on its very node?  That takes milliseconds, and a block there is near for good. */
static bool tier_near_comes(const struct ns *ns, uint32_t node)
{
	return node != TOPOLOGY_ANY && !ns->open[node] && ns->coming_on[node];
}

static uint32_t tier_grant(struct member *member, uint32_t n, uint32_t node, struct kvp_wire_grant *grants)
{
	uint32_t got = 0;

	while (got < n) {
		grants[got].slot = block_grant(member->ns, member, node, &grants[got].generation);
		if (grants[got].slot == NO_SLOT)
			break;
		got++;
	}
	return got;
}

void tier_reserve(
	struct member *member, struct peer *peer, uint64_t msg_id, uint32_t n, uint32_t node, uint64_t deadline_ns)
{
	struct kvp_wire_grant grants[KVP_WIRE_BATCH_MAX];
	struct job *job;
	uint64_t now = loop_now();
	uint32_t got = 0;

	if (!member->ns->waits) { /* who came first is served first */
		tier_make_room(member->ns, n, node);
		if (deadline_ns <= now || !tier_near_comes(member->ns, node))
			got = tier_grant(member, n, node, grants);
	}
	if (!got && deadline_ns > now) {
		if (!job_allowed(peer, KVP_MSG_RESERVE, msg_id))
			return;
		job = job_new(JOB_RESERVE, member, peer, msg_id, deadline_ns);
		if (job) {
			job->n = n;
			job->node = node;
			job->near_until_ns = now + (deadline_ns - now) / 2;
			job_wait_for_slot(job);
			return;
		}
	}
	gauge_add(&member->ns->row->counters.no_room, n - got);
	peer_answer(peer, KVP_MSG_RESERVE, msg_id, 0, grants, got * sizeof(grants[0]), NULL, 0);
	tier_serve(member->ns); /* refill what is kept ready */
}

/* With what there is: at the deadline that may be nothing. */
static bool job_grant(struct job *job, bool late)
{
	struct kvp_wire_grant grants[KVP_WIRE_BATCH_MAX];
	uint32_t got = tier_grant(job->member, job->n, job->node, grants);

	if (!got && !late)
		return false;
	gauge_add(&job->ns->row->counters.no_room, late ? job->n - got : 0);
	if (job->peer)
		peer_answer(job->peer, KVP_MSG_RESERVE, job->id, 0, grants, got * sizeof(grants[0]), NULL, 0);
	job_free(job);
	return true;
}

static bool job_serve_reserve(struct job *job)
{
	tier_make_room(job->ns, 1, job->node);
	return job_grant(job, false);
}

void tier_serve(struct ns *ns)
{
	uint64_t ready = ns->n_slots * ns->d->config.free_percent / 100;

	for (struct job *job = ns->waits, *next; job; job = next) {
		next = job->next;
		if (job->kind == JOB_RESERVE && tier_near_comes(ns, job->node) && loop_now() < job->near_until_ns)
			continue; /* others need not wait for its slab */
		if (job->kind == JOB_RESERVE) {
			if (!job_serve_reserve(job))
				return;
			continue;
		}
		if (!tier_make_room(ns, 1, TOPOLOGY_ANY))
			return;
		job_leave_list(job);
		job_publish_step(job);
	}
	tier_start_reads(ns);
	if (ready && ns_room(ns) < ready)
		tier_make_room(ns, ready, TOPOLOGY_ANY);
}

/* ---- RESTORE ---- */

static void tier_entry_answer(struct entry *e, struct kvp_wire_found found)
{
	while (e->waiters) {
		struct waiter *waiter = e->waiters;
		struct job *job = waiter->job;

		e->waiters = waiter->next;
		waiter->entry = NULL;
		job->found[waiter->index] = found;
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

/* Start reads of queued entries as long as slots and the store's queue allow. */
static void tier_start_reads(struct ns *ns)
{
	while (ns->restore_head) {
		struct entry *e = ns->restore_head;
		struct spill_record record = entry_record(e);

		if (e->slot == NO_SLOT && e->cold && !e->doomed) {
			if (!tier_make_room(ns, 1, TOPOLOGY_ANY))
				return;
			e->fill = block_begin_fill(ns, e);
			if (e->fill == NO_SLOT)
				return;
			if (spill_set_read(ns->d->tier->spill, e->cold, &record, ns_slot_data(ns, e->fill),
				    tier_read_done, e) < 0) {
				block_drop_fill(ns, e->fill);
				return; /* the queue is full: a completion calls again */
			}
			e->io = ENTRY_READING;
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
	default:
		gauge_add(&c->miss_never, 1);
		return;
	}
}

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
	} else if (e->io == ENTRY_READING || e->io == ENTRY_QUEUED) {
		found.state = KVP_PENDING;
	} else if (!ns->d->tier->spill || spill_set_hung(ns->d->tier->spill, e->cold)) {
		found.reason = KVP_MISS_TIER;
	} else {
		found.state = KVP_HIT_SPILL;
	}
	return found;
}

void tier_lookup(struct ns *ns, const struct kvp_key *key, bool touch, struct kvp_wire_found *found)
{
	struct entry *e;

	*found = tier_find(ns, key, &e);
	if (found->state == KVP_MISS)
		tier_count_miss(ns, found->reason);
	if (touch && e && found->state != KVP_MISS) {
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

/* Start reading a block nobody has asked for: into a slot that is free, and of those kept ready no more than half. */
static bool tier_read_ahead_one(struct entry *e)
{
	struct ns *ns = e->ns;
	struct tier *tier = ns->d->tier;
	struct spill_record record = entry_record(e);

	if (ns->waits || ns->restore_head)
		return false; /* those who ask come first */
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

/* ---- PUBLISH into a copied namespace ---- */

static void job_copied(struct io_op *op, int64_t res)
{
	struct job *job = op->owner;
	struct ns *ns = job->ns;
	struct kvp_wire_item *item = &job->items[job->at];
	struct kvp_wire_result *result = &job->results[job->at];
	struct entry *e = NULL;
	uint64_t slot = job->fill;

	job->fill = NO_SLOT;
	if (res < 0) { /* its staging area was cut */
		result->result = KVP_PUB_REJECTED;
		gauge_add(&ns->row->counters.rejected, 1);
	} else if (job->member && !block_admit(ns, item, result)) {
		e = block_entry(ns, item);
	}
	if (!e) {
		if (!result->result)
			result->result = KVP_PUB_REJECTED;
		block_drop_fill(ns, slot);
	} else {
		e->bytes = item->used_bytes;
		e->used_tokens = item->used_tokens;
		block_publish_fill(e, slot);
		result->result = KVP_PUB_STORED;
		result->slot = slot;
		result->generation = kvp_word_generation(atomic_load(&ns->blocks[slot].word));
		gauge_add(&ns->row->counters.stored, 1);
		tier_entry_ready(e);
	}
	job->at++;
	if (ns->d->stopping)
		return;
	if (!job->member) {
		job_free(job);
		return;
	}
	job_publish_step(job);
	tier_serve(ns);
}

/* Go on with the items until one must wait: for its copy, or for a slot. */
static void job_publish_step(struct job *job)
{
	struct ns *ns = job->ns;

	for (; job->at < job->n; job->at++) {
		struct kvp_wire_item *item = &job->items[job->at];
		struct kvp_wire_result *result = &job->results[job->at];

		if (!job->stage || item->slot >= job->stage->n_blocks || !item->used_bytes ||
			!(item->flags & KVP_ITEM_STAGED)) {
			result->result = -KVP_EINVAL;
			continue;
		}
		if (block_admit(ns, item, result))
			continue;
		if (!tier_make_room(ns, 1, TOPOLOGY_ANY) || (job->fill = block_begin_fill(ns, NULL)) == NO_SLOT) {
			if (loop_now() < job->timer.deadline_ns) {
				job_wait_for_slot(job);
				return;
			}
			result->result = KVP_PUB_REJECTED;
			gauge_add(&ns->row->counters.rejected, 1);
			continue;
		}
		/* through the kernel: a staging area its writer cuts is an error there, not a SIGBUS here */
		job->op = (struct io_op){.kind = IO_READ,
			.fd = job->stage->fd,
			.off = item->slot * ns->head->block_stride,
			.iov = {{ns_slot_data(ns, job->fill), item->used_bytes}},
			.n_iov = 1,
			.done = job_copied,
			.owner = job};
		io_submit(ns->d->tier->copies, &job->op);
		return;
	}
	job_answer_publish(job);
}

void tier_publish_staged(
	struct member *member, struct peer *peer, uint64_t msg_id, const struct kvp_wire_item *items, uint32_t n)
{
	struct job *job;

	if (!job_allowed(peer, KVP_MSG_PUBLISH, msg_id))
		return;
	job = job_new(JOB_PUBLISH, member, peer, msg_id, loop_now() + PUBLISH_WAIT_NS);
	if (job) {
		job->items = calloc(n ? n : 1, sizeof(*items));
		job->results = calloc(n ? n : 1, sizeof(*job->results));
	}
	if (!job || !job->items || !job->results) {
		if (job)
			job_free(job);
		peer_refuse(peer, KVP_MSG_PUBLISH, msg_id, KVP_ENOMEM, "the daemon is out of memory");
		return;
	}
	job->n = n;
	memcpy(job->items, items, n * sizeof(*items));
	job->stage = member->stage;
	if (job->stage)
		job->stage->n_users++;
	job_publish_step(job);
}

/* ---- who goes away ---- */

void tier_peer_gone(struct daemon *d, struct peer *peer)
{
	for (struct job *job = d->tier->jobs.all_next, *next; job != &d->tier->jobs; job = next) {
		next = job->all_next;
		if (job->peer != peer)
			continue;
		job->peer = NULL;
		if (job->kind == JOB_RESERVE)
			job_free(job); /* grants nobody would hear of */
	}
}

void tier_member_gone(struct member *member)
{
	struct daemon *d = member->session->d;

	for (struct job *job = d->tier->jobs.all_next, *next; job != &d->tier->jobs; job = next) {
		next = job->all_next;
		if (job->member != member)
			continue;
		job->member = NULL;
		if (job->fill == NO_SLOT)
			job_free(job);
		else
			job_leave_list(job); /* its copy ends it */
	}
}

/* ---- drain and evict ---- */

static void drain_flushed(void *owner, int res, spill_place place)
{
	struct tier *tier = owner;

	(void)place;
	if (!tier->drain)
		return;
	if (res < 0) {
		tier->drain->n_failed += tier->drain->n_done;
		tier->drain->n_left += (uint32_t)tier->drain->n_done;
		tier->drain->n_done = 0;
		tier->drain->error = -res;
	}
	job_answer_drain(tier->drain, false);
}

static bool drain_wants(const struct entry *e)
{
	return e->slot != NO_SLOT && !e->cold;
}

static bool drop_wants(const struct entry *e)
{
	return e->cold != 0;
}

/* List the blocks of @ns_id (0: of all) for a drain or a drop: those of now, what comes later is not its. */
static int job_list(struct job *job, uint64_t ns_id, bool (*wants)(const struct entry *))
{
	uint64_t n = 0;

	for (int count = 1; count >= 0; count--) {
		for (struct ns *ns = job->d->namespaces; ns; ns = ns->next)
			for (const struct entry *e = ns_entry_next(ns, NULL); e; e = ns_entry_next(ns, e)) {
				if ((ns_id && ns->id != ns_id) || !wants(e))
					continue;
				if (count)
					n++;
				else
					job->todo[job->n_todo++] = (struct block_name){ns->id, e->key};
			}
		if (count && !(job->todo = calloc(n ? n : 1, sizeof(*job->todo))))
			return -ENOMEM;
	}
	return 0;
}

/* Why the store takes nothing. */
static int tier_errno(const struct tier *tier)
{
	struct spill_stats stats;

	spill_set_stats(tier->spill, &stats);
	return stats.last_errno ? stats.last_errno : ENODEV;
}

/* Return: 0: written, gone, or cold by now; 1: being written; -EAGAIN: later; other -errno. */
static int drain_one(struct tier *tier, const struct block_name *item)
{
	struct ns *ns = ns_find(tier->d, item->ns_id);
	struct entry *e = ns ? ns_entry(ns, &item->key) : NULL;
	int r;

	if (!e || e->slot == NO_SLOT || e->cold)
		return 0;
	if (e->io != ENTRY_IDLE)
		return 1;
	r = tier_on(tier->d) ? tier_write(e) : -ENODEV;
	return r < 0 ? r : 1;
}

/* Start writes until the store's queue is full; when all are started and have ended, flush and answer. */
static void drain_step(struct tier *tier)
{
	struct job *job = tier->drain;
	uint64_t writing = 0;
	int r = 0;

	if (!job || job->flushing)
		return;
	while (job->todo_at < job->n_todo && r != -EAGAIN) {
		r = drain_one(tier, &job->todo[job->todo_at]);
		if (r == -EAGAIN)
			break; /* completions call again */
		job->n_failed += r < 0;
		if (r < 0)
			job->error = r == -ENODEV ? tier_errno(tier) : -r;
		job->todo_at++;
	}
	for (struct ns *ns = tier->d->namespaces; ns; ns = ns->next)
		writing += ns->n_writing;
	job->n_left = (uint32_t)(job->n_todo - job->todo_at + writing + job->n_failed);
	if (writing || job->todo_at < job->n_todo)
		return;
	if (spill_set_flush(tier->spill, drain_flushed, tier) < 0)
		return; /* tier_tick() comes again */
	job->flushing = true;
}

void tier_drain(struct daemon *d, struct peer *peer, uint64_t msg_id, uint64_t deadline_ns)
{
	struct job *job;

	if (d->tier->drain) {
		peer_refuse(peer, KVP_MSG_DRAIN, msg_id, EBUSY, "a drain is under way: wait for it");
		return;
	}
	if (!d->tier->spill) {
		peer_refuse(peer, KVP_MSG_DRAIN, msg_id, KVP_ENOTSUP,
			"there is no spill store: start kvpoold with --spill DIR:SIZE");
		return;
	}
	job = job_new(JOB_DRAIN, NULL, peer, msg_id, deadline_ns);
	if (!job) {
		peer_refuse(peer, KVP_MSG_DRAIN, msg_id, KVP_ENOMEM, "the daemon is out of memory");
		return;
	}
	if (job_list(job, 0, drain_wants) < 0) {
		job_free(job);
		peer_refuse(peer, KVP_MSG_DRAIN, msg_id, KVP_ENOMEM, "the daemon is out of memory");
		return;
	}
	d->tier->drain = job;
	drain_step(d->tier);
}

/* A piece of it for one namespace. Return: more may come. */
static bool evict_some(struct job *job, struct ns *ns)
{
	uint64_t before = ns->n_free, want = job->n_want - job->n_done, n_blocks = ns->n_slots;
	int r;

	if (!n_blocks) /* others have its memory: as many as it has are free at once, but that is no sign that more will be */
		return false;
	r = tier_evict_oldest(ns, before + (want < n_blocks ? want : n_blocks), LOOKS_MAX);
	job->n_done += ns->n_free - before;
	job->n_looks = ns->n_free != before || ns->n_writing ? 0 : job->n_looks + LOOKS_MAX;
	/* a whole round of looks that found only blocks in use is as good as an end */
	return ns->n_writing || r == 1 || r == -EAGAIN || (r == -EINTR && job->n_looks < n_blocks + LOOKS_MAX);
}

/* Clean blocks, and those no store takes, go now; the others when they have been written, which calls again. */
static void evict_step(struct tier *tier)
{
	struct job *job = tier->evict;
	uint64_t writing = 0, before;
	bool more = false;

	if (!job)
		return;
	before = job->n_done;
	for (struct ns *ns = tier->d->namespaces; ns && job->n_done < job->n_want; ns = ns->next) {
		if (job->ns_id && ns->id != job->ns_id)
			continue;
		more |= evict_some(job, ns);
		writing += ns->n_writing;
	}
	if (job->n_done >= job->n_want || !more)
		job_answer_evict(job, false);
	else if (!tier->evict_timer.heap_index) /* a piece a turn; or look whether the store takes more */
		loop_timer_set(tier->d->loop, &tier->evict_timer,
			loop_now() + (job->n_done > before || !writing ? 1000000 : RETRY_NS));
}

static void evict_ring(struct loop_timer *timer)
{
	evict_step(timer->owner);
}

void tier_evict(struct daemon *d, struct peer *peer, uint64_t msg_id, uint64_t ns_id, uint64_t n, uint64_t deadline_ns)
{
	struct job *job;

	if (d->tier->evict) {
		peer_refuse(peer, KVP_MSG_EVICT, msg_id, EBUSY, "an evict is under way: wait for it");
		return;
	}
	job = job_new(JOB_EVICT, NULL, peer, msg_id, deadline_ns);
	if (!job) {
		peer_refuse(peer, KVP_MSG_EVICT, msg_id, KVP_ENOMEM, "the daemon is out of memory");
		return;
	}
	job->n_want = n;
	job->ns_id = ns_id;
	d->tier->evict = job;
	d->tier->evict_timer.ring = evict_ring;
	d->tier->evict_timer.owner = d->tier;
	evict_step(d->tier);
}

/* ---- drop and scrub ---- */

static void tier_gone(void *owner, void *cookie);

/* A piece a turn: a million of them would hold up everybody. */
static void drop_ring(struct loop_timer *timer)
{
	struct tier *tier = timer->owner;
	struct job *job = tier->drop;

	for (unsigned n = 0; n < DROP_MAX && job->todo_at < job->n_todo; n++) {
		const struct block_name *name = &job->todo[job->todo_at++];
		struct ns *ns = ns_find(tier->d, name->ns_id);
		struct entry *e = ns ? ns_entry(ns, &name->key) : NULL;

		if (!e || !e->cold)
			continue;
		job->n_done++;
		spill_set_forget(tier->spill, e->cold);
		tier_gone(tier->d, e);
	}
	if (job->todo_at == job->n_todo)
		job_answer_drop(job, false);
	else
		loop_timer_set(tier->d->loop, &tier->drop_timer, loop_now() + 1000000);
}

/* The store will not find them again; now they are forgotten here too. */
static void drop_marked(void *owner, int res, spill_place place)
{
	struct tier *tier = owner;
	struct job *job = tier->drop;

	(void)place;
	if (!job || tier->d->stopping)
		return;
	if (res < 0) {
		job->error = -res;
		job_answer_drop(job, false);
		return;
	}
	tier->drop_timer.ring = drop_ring;
	tier->drop_timer.owner = tier;
	drop_ring(&tier->drop_timer);
}

static const char *drop_refusal(int r)
{
	return r == -EBUSY    ? "a drop is under way: wait for it"
	       : r == -ENODEV ? "the store is down: kvctl stats says why"
	       : r == -ENOSPC
		       ? "so many namespaces were dropped that there is no room for one more: drop the whole store"
		       : "the daemon is out of memory";
}

void tier_store_drop(struct daemon *d, struct peer *peer, uint64_t msg_id, uint64_t ns_id, uint64_t deadline_ns)
{
	struct tier *tier = d->tier;
	struct job *job;
	int r;

	if (!tier->spill || tier->drop) {
		peer_refuse(peer, KVP_MSG_STORE_DROP, msg_id, tier->spill ? EBUSY : KVP_ENOTSUP, "%s",
			tier->spill ? drop_refusal(-EBUSY) : "there is no spill store");
		return;
	}
	job = job_new(JOB_DROP, NULL, peer, msg_id, deadline_ns);
	r = job ? job_list(job, ns_id, drop_wants) : -ENOMEM;
	tier->drop = job;
	if (r == 0)
		r = spill_set_drop(tier->spill, ns_id, drop_marked, tier);
	if (r == 0)
		return;
	tier->drop = NULL;
	if (job)
		job_free(job);
	peer_refuse(peer, KVP_MSG_STORE_DROP, msg_id, -r, "%s", drop_refusal(r));
}

void tier_store_scrub(struct daemon *d, struct peer *peer, uint64_t msg_id, uint64_t bytes_per_s)
{
	struct kvp_wire_admin_done done = {.n_done = bytes_per_s ? bytes_per_s : d->config.spill_scrub};

	if (!d->tier->spill || !done.n_done) {
		peer_refuse(peer, KVP_MSG_STORE_SCRUB, msg_id, KVP_ENOTSUP, "%s",
			d->tier->spill ? "spill-scrub is 0: say how fast, with --rate" : "there is no spill store");
		return;
	}
	done.n_left = spill_set_scrub_now(d->tier->spill, done.n_done);
	peer_answer(peer, KVP_MSG_STORE_SCRUB, msg_id, 0, &done, sizeof(done), NULL, 0);
}

/* ---- the store ---- */

void tier_cold_forget(struct daemon *d, spill_place place)
{
	if (d->tier && d->tier->spill)
		spill_set_forget(d->tier->spill, place);
}

static void tier_gone(void *owner, void *cookie)
{
	struct entry *e = cookie;

	(void)owner;
	if (!e->cold)
		return;
	e->cold = 0;
	if (e->slot != NO_SLOT) {
		gauge_add(&e->ns->row->counters.clean, -1);
		return;
	}
	gauge_add(&e->ns->row->counters.cold, -1);
	if (e->io != ENTRY_IDLE)
		return; /* whoever works on it sees that it has no place any more */
	ns_ghost_add(
		e->ns, &e->key, spill_set_telling_damage(e->ns->d->tier->spill) ? KVP_MISS_DAMAGED : KVP_MISS_EVICTED);
	ns_entry_drop(e);
}

static void *tier_found(void *owner, const struct spill_record *record, spill_place place)
{
	struct daemon *d = owner;
	struct ns *ns = ns_find(d, record->ns_id);
	struct entry *e;

	d->tier->n_nobodys += !ns;
	if (!ns || record->bytes > ns->head->block_bytes || record->used_tokens > ns->head->desc.block_tokens ||
		kvp_key_is_none(&record->key))
		return NULL;
	e = ns_entry(ns, &record->key);
	if (!e)
		e = ns_entry_add(ns, &record->key, &record->parent);
	if (!e)
		return NULL;
	if (e->cold) /* written twice: the later one counts */
		spill_set_forget(d->tier->spill, e->cold);
	else
		gauge_add(e->slot == NO_SLOT ? &ns->row->counters.cold : &ns->row->counters.clean, 1);
	e->cold = place;
	if (e->slot == NO_SLOT) {
		e->bytes = record->bytes;
		e->used_tokens = record->used_tokens;
		e->stamp = 0;
	}
	return e;
}

static void tier_spill_ready(struct loop_source *source, uint32_t events)
{
	struct tier *tier = source->owner;
	bool ended;

	(void)events;
	ended = spill_set_reap(tier->spill) > 0;
	tier_stats(tier->d);
	if (!ended || tier->d->stopping)
		return;
	/* what ended may be the store's own, the next segment say, for which others wait */
	for (struct ns *ns = tier->d->namespaces; ns; ns = ns->next)
		tier_serve(ns);
	drain_step(tier);
	evict_step(tier);
}

static void tier_copies_ready(struct loop_source *source, uint32_t events)
{
	struct tier *tier = source->owner;

	(void)events;
	io_reap(tier->copies);
}

static int store_node(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -1;
	return topology_device_node(S_ISBLK(st.st_mode) ? st.st_rdev : st.st_dev);
}

/* Namespaces that made way for others leave records behind; but where nothing is anybody's, the files were left behind. */
static void tier_say_nobodys(const struct tier *tier)
{
	struct spill_stats stats;

	spill_set_stats(tier->spill, &stats);
	if (tier->n_nobodys)
		log_line(stats.live_records ? LOG_LEVEL_INFO : LOG_LEVEL_WARN,
			"spill store %s: %" PRIu64
			" records are of namespaces without a file ns-*.kvns beside the store, and are misses; if those files were left behind when it was moved, put them there, mode 0600 and the daemon's own, and restart before the room is used anew",
			tier->d->config.stores[0].path, tier->n_nobodys);
}

static int tier_open_spill(struct daemon *d, char message[256])
{
	struct tier *tier = d->tier;
	struct spill_opts opts[CONFIG_STORES_MAX];
	cpu_set_t cpus[CONFIG_STORES_MAX];
	uint64_t largest_block = 0;
	int r;

	for (struct ns *ns = d->namespaces; ns; ns = ns->next)
		if (ns->head->block_bytes > largest_block)
			largest_block = ns->head->block_bytes;
	for (unsigned i = 0; i < d->config.n_stores; i++) {
		tier->store_nodes[i] = store_node(d->config.stores[i].path);
		opts[i] = (struct spill_opts){.dir = d->config.stores[i].path,
			.cpus = topology_node_cpus(d->topology, tier->store_nodes[i], &cpus[i]) ? &cpus[i] : NULL,
			.capacity = d->config.stores[i].bytes,
			.depth = d->config.spill_depth,
			.largest_block = largest_block,
			.use_uring = strcmp(d->config.io, "threads") != 0,
			.lock_fd = d->pool.io_lock_fd,
			.owner = d,
			.gone = tier_gone,
			.found = tier_found};
	}
	r = spill_set_open(&tier->spill, opts, d->config.n_stores, message);
	if (r < 0)
		return r;
	d->pool.io_lock_fd = -1; /* the stores' rings have it */
	tier_say_nobodys(tier);
	snprintf(d->pool.stats->spill_dir, sizeof(d->pool.stats->spill_dir), "%s", d->config.stores[0].path);
	log_info("spill store %s: %s", d->config.stores[0].path, message);
	tier->spill_source = (struct loop_source){
		.fd = spill_set_fd(tier->spill), .events = LOOP_IN, .ready = tier_spill_ready, .owner = tier};
	return loop_add(d->loop, &tier->spill_source);
}

static void tier_store_rows(struct daemon *d)
{
	struct kvp_stats *stats = d->pool.stats;

	stats->n_stores = d->tier->spill ? spill_set_n(d->tier->spill) : 0;
	for (unsigned i = 0; i < stats->n_stores; i++) {
		struct kvp_store_row *row = &stats->stores[i];
		struct spill_stats s;

		spill_set_store_stats(d->tier->spill, i, &s);
		*row = (struct kvp_store_row){.state = s.state,
			.uring = s.uring,
			.direct = s.direct,
			.node = (uint32_t)d->tier->store_nodes[i],
			.last_errno = (uint32_t)s.last_errno,
			.since = (uint64_t)s.since,
			.capacity = s.capacity ? s.capacity : d->config.stores[i].bytes,
			.used = s.used_bytes,
			.live = s.live_bytes,
			.live_records = s.live_records,
			.in_flight = s.in_flight,
			.queued = s.queued_bytes,
			.writes = s.writes,
			.write_bytes = s.write_bytes,
			.reads = s.reads,
			.read_bytes = s.read_bytes,
			.write_errors = s.write_errors,
			.read_errors = s.read_errors,
			.damaged = s.damaged};
		snprintf(row->path, sizeof(row->path), "%s", d->config.stores[i].path);
		snprintf(row->message, sizeof(row->message), "%s", s.message);
	}
}

int tier_start(struct daemon *d, char message[256])
{
	struct tier *tier = calloc(1, sizeof(*tier));
	struct io_opts copies = {.depth = 16, .threads = 2, .use_uring = false, .lock_fd = -1};
	int r;

	if (!tier)
		return -ENOMEM;
	d->tier = tier;
	tier->d = d;
	tier->jobs.all_next = tier->jobs.all_prev = &tier->jobs;
	/* copies between mappings use CPU, not a device: threads, never the ring's inline path in the loop */
	r = io_open(&tier->copies, &copies, message);
	if (r < 0)
		return r;
	tier->copies_source = (struct loop_source){
		.fd = io_fd(tier->copies), .events = LOOP_IN, .ready = tier_copies_ready, .owner = tier};
	r = loop_add(d->loop, &tier->copies_source);
	if (r == 0 && d->config.n_stores)
		r = tier_open_spill(d, message);
	if (r == 0)
		ns_link_all(d);
	tier_stats(d);
	tier_store_rows(d);
	return r;
}

void tier_stop(struct daemon *d)
{
	struct tier *tier = d->tier;

	if (!tier)
		return;
	if (tier->copies)
		io_close(tier->copies);
	if (tier->spill)
		spill_set_close(tier->spill);
	tier->spill = NULL;
	while (tier->jobs.all_next && tier->jobs.all_next != &tier->jobs) {
		tier->jobs.all_next->peer = NULL;
		job_free(tier->jobs.all_next);
	}
}

void tier_stats(struct daemon *d)
{
	struct kvp_counters *c = &d->pool.stats->counters;
	struct spill_stats s, *told = &d->tier->told;

	if (!d->tier->spill) {
		gauge_set(&c->spill_state, SPILL_OFF);
		snprintf(d->pool.stats->spill_message, sizeof(d->pool.stats->spill_message), "off: no --spill given");
		return;
	}
	spill_set_stats(d->tier->spill, &s);
	gauge_set(&c->spill_state, s.state);
	gauge_set(&c->spill_uring, s.uring);
	gauge_set(&c->spill_direct, s.direct);
	gauge_set(&c->spill_capacity_bytes, s.capacity);
	gauge_set(&c->spill_used_bytes, s.used_bytes);
	gauge_set(&c->spill_live_bytes, s.live_bytes);
	gauge_add(&c->spill_writes, (int64_t)(s.writes - told->writes));
	gauge_add(&c->spill_write_bytes, (int64_t)(s.write_bytes - told->write_bytes));
	gauge_add(&c->spill_reads, (int64_t)(s.reads - told->reads));
	gauge_add(&c->spill_read_bytes, (int64_t)(s.read_bytes - told->read_bytes));
	gauge_add(&c->spill_write_errors, (int64_t)(s.write_errors - told->write_errors));
	gauge_add(&c->spill_read_errors, (int64_t)(s.read_errors - told->read_errors));
	gauge_add(&c->spill_damaged, (int64_t)(s.damaged - told->damaged));
	gauge_add(&c->spill_skipped, (int64_t)(s.skipped - told->skipped));
	gauge_add(&c->spill_scrub_bytes, (int64_t)(s.scrub_bytes - told->scrub_bytes));
	gauge_add(&c->spill_scrub_passes, (int64_t)(s.scrub_passes - told->scrub_passes));
	gauge_add(&c->spill_scrub_damaged, (int64_t)(s.scrub_damaged - told->scrub_damaged));
	gauge_add(&c->spill_reclaimed, (int64_t)(s.reclaimed - told->reclaimed));
	*told = s; /* counters go on over daemon restarts, the store's own begin at 0 */
	tier_written_today(d->tier);
	gauge_set(&c->spill_budget_bytes, d->config.spill_write_budget);
	gauge_set(&c->spill_last_errno, (uint64_t)s.last_errno);
	gauge_set(&c->spill_in_flight, s.in_flight);
	gauge_set(&c->spill_read_queue, d->tier->reading_bytes);
	gauge_set(
		&c->spill_read_speed, d->tier->read_ns_per_byte > 0 ? (uint64_t)(1e9 / d->tier->read_ns_per_byte) : 0);
	snprintf(d->pool.stats->spill_message, sizeof(d->pool.stats->spill_message), "%s", s.message);
}

void tier_tick(struct daemon *d)
{
	if (d->tier->spill) {
		spill_set_scrub_rate(d->tier->spill, d->config.spill_scrub);
		spill_set_tick(d->tier->spill);
	}
	tier_stats(d);
	tier_store_rows(d);
	if (d->old_io && !pool_old_io(&d->pool)) {
		d->old_io = false;
		block_release_set_aside(d);
		log_info("the last daemon's I/O has ended: its slots are free again");
	}
	for (struct ns *ns = d->namespaces; ns; ns = ns->next) {
		if (ns->emptying && loop_now() > ns->emptying_until_ns) {
			slab_give_again(ns->emptying);
			ns->emptying = NULL;
		}
		tier_serve(ns);
	}
	drain_step(d->tier);
}
