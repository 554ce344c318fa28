/*
 * tier_admin.c - what an operator asks for: drain, evict, store drop, store scrub
 *
 * One of each kind at a time, a piece a turn; each is a job (tier_jobs.c), so its deadline answers it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "peer.h"
#include "slab.h"
#include "spill_set.h"
#include "tier_parts.h"

#define DROP_MAX 4096 /* blocks forgotten in one turn */

/* ---- answers ---- */

/* The end of what an operator asked for: request.c has told the beginning. */
static void job_log_end(const char *what, const struct kvp_wire_admin_done *done)
{
	log_info("%s: %" PRIu64 " blocks done, %" PRIu64 " left%s%s%s", what, done->n_done, done->n_left,
		done->late ? "; its deadline came first" : "", done->error ? ": " : "",
		done->error ? strerror(done->error) : "");
}

static uint64_t tier_reclaimed(const struct tier *tier)
{
	struct spill_stats stats;

	spill_set_stats(tier->spill, &stats);
	return stats.reclaimed;
}

/* Blocks that a drain has written, and that are in no store any more: it went round.  What somebody deleted meanwhile
   is none of these: there are no more of them than the stores have used anew. */
static uint64_t drain_pushed(const struct job *job)
{
	uint64_t n = 0, most = tier_reclaimed(job->d->tier) - job->reclaimed;

	for (uint64_t i = 0; most && i < job->todo_at; i++) {
		struct ns *ns = ns_find(job->d, job->todo[i].ns_id);
		const struct entry *e = ns ? ns_entry(ns, &job->todo[i].key) : NULL;

		n += !e || (!e->cold && e->io == ENTRY_IDLE);
	}
	n = n > job->n_failed ? n - job->n_failed : 0;
	n = n < most ? n : most;
	return n < job->n_done ? n : job->n_done;
}

void job_answer_drain(struct job *job, bool late)
{
	uint64_t n_pushed = drain_pushed(job);
	struct kvp_wire_admin_done done = {.n_done = job->n_done - n_pushed,
		.n_left = job->n_left + n_pushed,
		.n_failed = job->n_failed,
		.error = job->error,
		.late = late,
		.n_pushed = n_pushed};

	job->d->tier->drain = NULL;
	job_log_end("drain", &done);
	if (job->peer)
		peer_answer(job->peer, KVP_MSG_DRAIN, job->id, 0, &done, sizeof(done), NULL, 0);
	job_free(job);
}

/* How many blocks it is about: while others publish there is always one more. */
static uint64_t evict_count(const struct daemon *d, uint64_t ns_id)
{
	uint64_t n = 0;

	for (const struct ns *ns = d->namespaces; ns; ns = ns->next)
		if (!ns_id || ns->id == ns_id)
			n += atomic_load(&ns->row->counters.published);
	return n;
}

void job_answer_evict(struct job *job, bool late)
{
	struct kvp_wire_admin_done done = {
		.n_done = job->n_done, .n_left = evict_count(job->d, job->ns_id), .late = late};

	if (done.n_left > job->n_want - job->n_done)
		done.n_left = job->n_want - job->n_done;
	job->d->tier->evict = NULL;
	loop_timer_cancel(job->d->loop, &job->d->tier->evict_timer);
	job_log_end("evict", &done);
	if (job->peer)
		peer_answer(job->peer, KVP_MSG_EVICT, job->id, 0, &done, sizeof(done), NULL, 0);
	job_free(job);
}

void job_answer_drop(struct job *job, bool late)
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

/* The blocks a drain has to write, those of now, in the order in which they lie in memory: as that is the order in
   which they came, by and large, what is read together later lies together in the store.  Return: how many; @todo: NULL, or room for them. */
static uint64_t drain_list(const struct daemon *d, struct block_name *todo)
{
	uint64_t n = 0;

	for (uint32_t place = 0; place < d->pool.header->max_places; place++) {
		const struct slab *slab = d->slabs[place];

		for (uint32_t i = 0; slab && slab->ns && i < slab->n_slots; i++) {
			uint64_t slot = (uint64_t)place * slab->n_slots + i;
			const struct entry *e = slab->slots[i].who;

			if (kvp_word_state(atomic_load(&slab->ns->blocks[slot].word)) != KVP_BLOCK_PUBLISHED || e->cold)
				continue;
			if (todo)
				todo[n] = (struct block_name){slab->ns->id, e->key};
			n++;
		}
	}
	return n;
}

/* List the cold blocks of @ns_id (0: of all) for a drop: those of now, what comes later is not its. */
static int drop_list(struct job *job, uint64_t ns_id)
{
	uint64_t n = 0;

	for (int count = 1; count >= 0; count--) {
		for (struct ns *ns = job->d->namespaces; ns; ns = ns->next)
			for (const struct entry *e = ns_entry_next(ns, NULL); e; e = ns_entry_next(ns, e)) {
				if ((ns_id && ns->id != ns_id) || !e->cold)
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

/* Return: 0: being written, or written, gone, or cold by now; -EAGAIN: later; other -errno. */
static int drain_one(struct tier *tier, const struct block_name *item)
{
	struct ns *ns = ns_find(tier->d, item->ns_id);
	struct entry *e = ns ? ns_entry(ns, &item->key) : NULL;
	int r = 0;

	if (!e || e->slot == NO_SLOT || e->cold)
		return 0;
	if (e->io == ENTRY_IDLE)
		r = tier_on(tier->d) ? tier_write(e) : -ENODEV;
	if (r == 0 && e->io == ENTRY_WRITING && !e->awaited) {
		e->awaited = true;
		tier->n_awaited++;
	}
	return r;
}

void drain_written(struct tier *tier, int res)
{
	tier->n_awaited--;
	if (!tier->drain)
		return;
	tier->drain->n_done += res == 0;
	tier->drain->n_failed += res < 0;
	if (res < 0)
		tier->drain->error = -res;
}

/* Start writes until the store's queue is full; when all are started and have ended, flush and answer.  What others
   write meanwhile is not waited for: under load somebody always writes. */
void drain_step(struct tier *tier)
{
	struct job *job = tier->drain;
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
	job->n_left = (uint32_t)(job->n_todo - job->todo_at + tier->n_awaited + job->n_failed);
	if (tier->n_awaited || job->todo_at < job->n_todo)
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
	job->n_todo = drain_list(d, NULL);
	job->todo = calloc(job->n_todo ? job->n_todo : 1, sizeof(*job->todo));
	if (!job->todo) {
		job_free(job);
		peer_refuse(peer, KVP_MSG_DRAIN, msg_id, KVP_ENOMEM, "the daemon is out of memory");
		return;
	}
	drain_list(d, job->todo);
	job->reclaimed = tier_reclaimed(d->tier);
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
void evict_step(struct tier *tier)
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
	job->ns_id = ns_id;
	job->n_want = evict_count(d, ns_id);
	if (n < job->n_want)
		job->n_want = n;
	d->tier->evict = job;
	d->tier->evict_timer.ring = evict_ring;
	d->tier->evict_timer.owner = d->tier;
	evict_step(d->tier);
}

/* ---- drop and scrub ---- */

/* A piece a turn: a million of them would hold up everybody. */
static void drop_ring(struct loop_timer *timer)
{
	struct tier *tier = timer->owner;
	struct job *job = tier->drop;

	for (unsigned n = 0; n < DROP_MAX && job->todo_at < job->n_todo; n++) {
		const struct block_name *name = &job->todo[job->todo_at++];
		struct ns *ns = ns_find(tier->d, name->ns_id);
		struct entry *e = ns ? ns_entry(ns, &name->key) : NULL;

		job->n_done++; /* also what went with a block above it */
		if (!e || !e->cold)
			continue;
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

static void drop_refusal(const struct tier *tier, int r, char text[400])
{
	struct spill_stats stats;

	snprintf(text, 400, "%s",
		r == -EBUSY ? "a drop is under way: wait for it"
		: r == -ENOSPC
			? "so many namespaces were dropped that there is no room for one more: drop the whole store"
			: "the daemon is out of memory");
	for (unsigned i = 0; r == -ENODEV && i < spill_set_n(tier->spill); i++) {
		spill_set_store_stats(tier->spill, i, &stats);
		if (stats.state == SPILL_DOWN)
			snprintf(text, 400, "store %.120s is down, and would keep its records: %.220s",
				tier->d->config.stores[i].path, stats.message);
	}
}

void tier_store_drop(struct daemon *d, struct peer *peer, uint64_t msg_id, uint64_t ns_id, uint64_t deadline_ns)
{
	struct tier *tier = d->tier;
	struct job *job;
	char text[400];
	int r;

	if (!tier->spill || tier->drop) {
		drop_refusal(tier, -EBUSY, text);
		peer_refuse(peer, KVP_MSG_STORE_DROP, msg_id, tier->spill ? EBUSY : KVP_ENOTSUP, "%s",
			tier->spill ? text : "there is no spill store");
		return;
	}
	job = job_new(JOB_DROP, NULL, peer, msg_id, deadline_ns);
	r = job ? drop_list(job, ns_id) : -ENOMEM;
	tier->drop = job;
	if (r == 0)
		r = spill_set_drop(tier->spill, ns_id, drop_marked, tier);
	if (r == 0)
		return;
	tier->drop = NULL;
	if (job)
		job_free(job);
	drop_refusal(tier, r, text);
	peer_refuse(peer, KVP_MSG_STORE_DROP, msg_id, -r, "%s", text);
}

int tier_store_forget(struct daemon *d, uint64_t ns_id, void (*done)(void *owner, int res, uint64_t none), void *owner)
{
	return d->tier->spill ? spill_set_drop(d->tier->spill, ns_id, done, owner) : -ENOENT;
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
