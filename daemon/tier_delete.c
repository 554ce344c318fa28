/*
 * tier_delete.c - blocks somebody does not want any more: they go at once, and it is answered when no start finds them again
 *
 * A record of such a key may lie in any store, known here or not: written twice, or dropped from the tables with its parent.  So each
 * key goes into a list in the log of every store (spill_kill()), and so does what went with it.  One list is on its way at a time;
 * what is deleted meanwhile goes into the next one, all of it together.  A request is a job until its keys are noted.  It answers what is
 * true: where a store cannot note it, the blocks are gone all the same, and the answer is EIO.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "peer.h"
#include "spill_set.h"
#include "tier_parts.h"

#define NOTE_NS 10000000000ull /* for a client that gives no deadline */

/* What goes, of one request. */
struct going {
	struct block_name *names;
	uint64_t n, room;
	bool short_of_memory;
};

static void going_add(struct going *going, uint64_t ns_id, const struct kvp_key *key)
{
	if (going->n == going->room) {
		uint64_t room = going->room ? 2 * going->room : 16;
		struct block_name *names = realloc(going->names, room * sizeof(*names));

		if (!names) {
			going->short_of_memory = true;
			return;
		}
		going->names = names;
		going->room = room;
	}
	going->names[going->n++] = (struct block_name){ns_id, *key};
}

static void went(void *owner, const struct entry *e)
{
	going_add(owner, e->ns->id, &e->key);
}

/* Return: KVP_MISS: it is gone; else why it is not. A block of the base is still found through @ns. */
static struct kvp_wire_found delete_one(struct ns *ns, const struct kvp_key *key, struct going *going)
{
	struct entry *e = ns_entry(ns, key), *below = ns->base ? ns_entry(ns->base, key) : NULL;

	if (!e)
		going_add(going, ns->id, key); /* an old record of it may be left */
	else if (!block_forget(e, went, going))
		return (struct kvp_wire_found){.state = e->slot != NO_SLOT ? KVP_HIT_RAM : KVP_PENDING};
	if (below && (below->slot != NO_SLOT || below->cold))
		return (struct kvp_wire_found){
			.state = below->slot != NO_SLOT ? KVP_HIT_RAM : KVP_HIT_SPILL, .reason = KVP_WIRE_OF_BASE};
	return (struct kvp_wire_found){.state = KVP_MISS};
}

void job_answer_delete(struct job *job)
{
	if (job->peer && !job->error)
		peer_answer(job->peer, KVP_MSG_DELETE, job->id, 0, job->found, job->n * sizeof(*job->found), NULL, 0);
	else if (job->peer)
		peer_refuse(job->peer, KVP_MSG_DELETE, job->id, EIO,
			"what is not in use is gone, but the spill store could not note it: %s: a start of the daemon may find it "
			"again; delete it once more when kvctl stats shows all stores up",
			strerror(job->error));
	job_free(job);
}

static struct job *delete_job(
	struct peer *peer, uint64_t msg_id, const struct kvp_wire_found *found, uint32_t n, uint64_t deadline_ns)
{
	struct job *job = job_new(JOB_DELETE, NULL, peer, msg_id, deadline_ns ? deadline_ns : loop_now() + NOTE_NS);

	if (!job)
		return NULL;
	job->found = malloc(n * sizeof(*found));
	if (!job->found) {
		job_free(job);
		return NULL;
	}
	memcpy(job->found, found, n * sizeof(*found));
	job->n = n;
	return job;
}

void tier_delete(struct ns *ns, struct peer *peer, uint64_t msg_id, const void *keys, uint32_t n, uint64_t deadline_ns)
{
	static struct kvp_wire_found found[KVP_WIRE_BATCH_MAX];
	struct tier *tier = ns->d->tier;
	struct going going = {0};
	struct job *job;

	if (!job_allowed(peer, KVP_MSG_DELETE, msg_id))
		return;
	for (uint32_t i = 0; i < n; i++) {
		struct kvp_key key;

		memcpy(&key, (const char *)keys + i * sizeof(key), sizeof(key));
		found[i] = delete_one(ns, &key, &going);
	}
	if (!tier->spill || !n || (!going.n && !going.short_of_memory)) {
		free(going.names);
		peer_answer(peer, KVP_MSG_DELETE, msg_id, 0, found, n * sizeof(found[0]), NULL, 0);
		tier_serve(ns);
		return;
	}
	job = delete_job(peer, msg_id, found, n, deadline_ns);
	if (!job || going.short_of_memory) {
		free(going.names);
		if (job)
			job_free(job);
		peer_refuse(peer, KVP_MSG_DELETE, msg_id, KVP_ENOMEM,
			"the daemon is out of memory: what is not in use is gone, but a start may find it again");
	} else {
		job->todo = going.names;
		job->n_todo = going.n;
		delete_step(tier);
	}
	tier_serve(ns);
}

/* ---- lists, one after the other ---- */

static struct job *delete_next(const struct tier *tier, struct job *job)
{
	/* the oldest first: they are put in front */
	for (job = job->all_prev; job != &tier->jobs; job = job->all_prev)
		if (job->kind == JOB_DELETE)
			return job;
	return NULL;
}

/* @res: of the list that has their keys. */
static void delete_noted(void *owner, int res, spill_place none)
{
	struct tier *tier = owner;

	(void)none;
	tier->noting = false;
	if (tier->d->stopping)
		return;
	for (struct job *job = delete_next(tier, &tier->jobs), *next; job; job = next) {
		uint64_t n = job->n_noting;

		next = delete_next(tier, job);
		job->n_noting = 0;
		if (!n || res == -EAGAIN) /* then once more, with all that has come meanwhile */
			continue;
		job->todo_at += n;
		job->error = -res;
		if (res < 0 || job->todo_at == job->n_todo)
			job_answer_delete(job);
	}
	if (res == 0)
		delete_step(tier);
}

void delete_step(struct tier *tier)
{
	static struct spill_kill kills[SPILL_KILLS_MAX];
	uint32_t n = 0;
	int r;

	if (tier->noting)
		return;
	for (struct job *job = delete_next(tier, &tier->jobs); job && n < SPILL_KILLS_MAX; job = delete_next(tier, job))
		for (; job->todo_at + job->n_noting < job->n_todo && n < SPILL_KILLS_MAX; job->n_noting++) {
			const struct block_name *name = &job->todo[job->todo_at + job->n_noting];

			kills[n++] = (struct spill_kill){name->ns_id, name->key};
		}
	if (!n)
		return;
	tier->noting = true; /* it is never done before this returns */
	r = spill_set_kill(tier->spill, kills, n, delete_noted, tier);
	if (r < 0)
		delete_noted(tier, r == -ENOENT ? 0 : r, 0);
}
