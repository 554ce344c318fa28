/*
 * tier_jobs.c - requests that wait: RESERVE, and PUBLISH into a copied namespace
 *
 * A job is in the list of its namespace while it needs a slot (RESERVE, copied PUBLISH), linked from entries by waiters
 * while it waits for reads (RESTORE), the tier's only one of its kind (DRAIN, EVICT, STORE_DROP), or one of those whose keys go into the
 * next list (DELETE).  Every job has a timer
 * for its deadline; whoever ends a job answers it once and frees it.  An answer never frees a peer, a session or a job (see
 * peer.h), so it may come first.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "kvpool_desc.h"
#include "peer.h"
#include "quota.h"
#include "reuse.h"
#include "session.h"
#include "tier_parts.h"

#define PUBLISH_WAIT_NS 2000000000ull /* a copied publish waits so long for a slot */
#define JOBS_MAX 256 /* requests of one peer that wait */

static void job_publish(struct job *job);
static void member_publish_on(struct member *member);
static bool job_grant(struct job *job, bool late);

/* ---- jobs ---- */

static void job_deadline(struct loop_timer *timer);

struct job *job_new(enum job_kind kind, struct member *member, struct peer *peer, uint64_t id, uint64_t deadline_ns)
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

static uint32_t jobs_of(const struct tier *tier, uid_t uid)
{
	uint32_t n = 0;

	for (const struct job *job = tier->jobs.all_next; job != &tier->jobs; job = job->all_next)
		n += job->member && job->member->session->uid == uid;
	return n;
}

bool job_allowed(struct peer *peer, uint16_t type, uint64_t msg_id)
{
	uint64_t most = peer->d->config.uid_max_transit;

	if (peer->n_jobs >= JOBS_MAX) {
		peer_refuse(peer, type, msg_id, KVP_EQUOTA, "%u requests of this client wait already: take the answers",
			JOBS_MAX);
		return false;
	}
	if (peer->d->config.uid_max_requests && jobs_of(peer->d->tier, peer->uid) >= peer->d->config.uid_max_requests) {
		peer_refuse(peer, type, msg_id, KVP_EQUOTA,
			"%u requests of uid %u wait already: ask for less at once, or raise uid-max-requests",
			peer->d->config.uid_max_requests, (unsigned)peer->uid);
		return false;
	}
	if (type != KVP_MSG_RESERVE && type != KVP_MSG_DELETE && jobs_transit_of(peer->d->tier, peer->uid) > most) {
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

void job_free(struct job *job)
{
	loop_timer_cancel(job->d->loop, &job->timer);
	job_leave_list(job);
	if (job->ahead && job->member)
		job->member->n_ahead--;
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

void job_answer_restore(struct job *job)
{
	if (job->peer)
		peer_answer(job->peer, KVP_MSG_RESTORE, job->id, 0, job->found, job->n * sizeof(*job->found), NULL, 0);
	job_free(job);
}

/* A writer that publishes all the time is told when others wait, and gives up its staging area after its turn. */
static void job_tell_wanted(struct job *job)
{
	unsigned n_waiting;

	if (!job->stage || !job->n)
		return;
	session_stage_waits(job->d, NULL, &n_waiting);
	if (n_waiting)
		job->results[0].flags |= KVP_RESULT_STAGE_WANTED;
}

static void job_answer_publish(struct job *job)
{
	job_tell_wanted(job);
	if (job->peer)
		peer_answer(
			job->peer, KVP_MSG_PUBLISH, job->id, 0, job->results, job->n * sizeof(*job->results), NULL, 0);
	job_free(job);
}

static void job_deadline(struct loop_timer *timer)
{
	struct job *job = timer->owner;
	struct member *member;

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
		member = job->member;
		job_answer_publish(job);
		member_publish_on(member);
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
	case JOB_DELETE:
		job->error = ETIMEDOUT;
		job_answer_delete(job);
		return;
	}
}

/* ---- RESERVE ---- */

/* Is a slab for it being made on its very node?  That takes milliseconds, and a block there is near for good. */
static bool tier_near_comes(const struct ns *ns, uint32_t node)
{
	return node != TOPOLOGY_ANY && !ns->open[node] && ns->coming_on[node];
}

/* No more than its uid may have: what is asked for beyond that is not given, the rest is. */
static uint32_t tier_grant(struct member *member, uint32_t n, uint32_t node, struct kvp_wire_grant *grants)
{
	uint32_t got = 0, left = session_grants_left(member->session);

	while (got < n && got < left) {
		grants[got].slot = block_grant(member->ns, member, node, &grants[got].generation);
		if (grants[got].slot == NO_SLOT)
			break;
		got++;
	}
	return got;
}

/* A uid that writes as many blocks as it may gets none until it is done with some, however long it would wait. */
static bool reserve_refuse(struct member *member, struct peer *peer, uint64_t msg_id)
{
	if (session_grants_left(member->session))
		return false;
	if (peer)
		peer_refuse(peer, KVP_MSG_RESERVE, msg_id, KVP_EQUOTA,
			"uid %u is writing %u blocks, as many as it may at once: publish or abandon some, or raise uid-max-grants",
			(unsigned)member->session->uid, member->session->d->config.uid_max_grants);
	return true;
}

/* What was asked for @n blocks and got @got; none because of a quota is said. */
static void reserve_answer(struct ns *ns, struct peer *peer, uint64_t msg_id, const struct kvp_wire_grant *grants,
	uint32_t n, uint32_t got)
{
	char text[256];

	gauge_add(&ns->row->counters.no_room, n - got);
	if (!got && quota_refusal(ns, text)) {
		gauge_add(&ns->row->counters.quota_refused, n);
		if (peer)
			peer_refuse(peer, KVP_MSG_RESERVE, msg_id, KVP_EQUOTA, "%s", text);
		return;
	}
	if (peer)
		peer_answer(peer, KVP_MSG_RESERVE, msg_id, 0, grants, got * sizeof(grants[0]), NULL, 0);
}

void tier_reserve(
	struct member *member, struct peer *peer, uint64_t msg_id, uint32_t n, uint32_t node, uint64_t deadline_ns)
{
	struct kvp_wire_grant grants[KVP_WIRE_BATCH_MAX];
	struct job *job;
	uint64_t now = loop_now();
	uint32_t got = 0;

	if (reserve_refuse(member, peer, msg_id))
		return;
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
	reserve_answer(member->ns, peer, msg_id, grants, n, got);
	tier_serve(member->ns); /* refill what is kept ready */
}

/* With what there is: at the deadline that may be nothing. */
static bool job_grant(struct job *job, bool late)
{
	struct kvp_wire_grant grants[KVP_WIRE_BATCH_MAX];
	uint32_t got;

	if (reserve_refuse(job->member, job->peer, job->id)) { /* nor does it keep those waiting that come behind it */
		job_free(job);
		return true;
	}
	got = tier_grant(job->member, job->n, job->node, grants);
	if (!got && !late)
		return false;
	reserve_answer(job->ns, job->peer, job->id, grants, late ? job->n : got, got);
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
		job_publish(job);
	}
	tier_start_reads(ns);
	if (ready && ns_room(ns) < ready)
		tier_make_room(ns, ready, TOPOLOGY_ANY);
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
		reuse_stored(e);
		tier_entry_ready(e);
	}
	job->at++;
	if (ns->d->stopping)
		return;
	if (!job->member) {
		job_free(job);
		return;
	}
	job_publish(job);
	tier_serve(ns);
}

/* Is what comes next to be below a block that an earlier publish of the same member is still copying, or waits to? */
static bool job_is_ahead_of_parent(const struct job *job)
{
	const struct kvp_wire_item *item = &job->items[job->at];

	if (job->at == job->n || kvp_key_is_none(&item->parent) || ns_entry_above(job->ns, &item->parent))
		return false;
	for (const struct job *older = job->all_next; older != &job->d->tier->jobs; older = older->all_next)
		if (older->kind == JOB_PUBLISH && older->member == job->member)
			return true;
	return false;
}

/* Go on with the items until one must wait: for its copy, or for a slot. */
static void job_publish_step(struct job *job)
{
	struct ns *ns = job->ns;

	for (; job->at < job->n; job->at++) {
		struct kvp_wire_item *item = &job->items[job->at];
		struct kvp_wire_result *result = &job->results[job->at];

		if (job_is_ahead_of_parent(job)) {
			job->ahead = true;
			job->member->n_ahead++;
			return;
		}
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

/* An earlier one has come further, or has ended: those that waited for it, the oldest first.  A step may end a
 * job for which others waited, so each look begins anew. */
static void member_publish_on(struct member *member)
{
	struct job *all = &member->session->d->tier->jobs, *job = all->all_prev;

	while (job != all && member->n_ahead) {
		if (job->member != member || !job->ahead || job_is_ahead_of_parent(job)) {
			job = job->all_prev;
			continue;
		}
		job->ahead = false;
		member->n_ahead--;
		job_publish_step(job);
		job = all->all_prev;
	}
}

static void job_publish(struct job *job)
{
	struct member *member = job->member;

	job_publish_step(job);
	member_publish_on(member);
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
	job_publish(job);
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

bool tier_member_waits(const struct member *member)
{
	const struct job *all = &member->session->d->tier->jobs, *job = all->all_next;

	while (job != all && job->member != member)
		job = job->all_next;
	return job != all;
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
