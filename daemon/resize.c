/* resize.c - see resize.h */
#include "resize.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvpool_wire.h"
#include "log.h"
#include "peer.h"
#include "shm.h"
#include "slab.h"
#include "tier.h"

#define STEP_NS 2000000ull
#define IDLE_STEP_NS 50000000ull /* nothing could go just now */
#define MAKING_MAX 4u

struct resize {
	struct daemon *d;
	struct loop_timer timer, deadline;
	struct peer *peer; /* who waits for the answer; NULL: nobody */
	uint64_t msg_id;
	bool active;
	bool growing; /* it goes up to the budget once; what slabs are destroyed for later is others' business */
	char failure[256]; /* why it could not grow */
};

static uint64_t resize_over(const struct daemon *d)
{
	uint64_t over = 0;

	for (unsigned i = 0; i < topology_n_nodes(d->topology); i++)
		over += budget_over(d, i);
	return over;
}

static uint64_t resize_missing(const struct daemon *d)
{
	uint64_t missing = 0, slab = d->pool.header->slab_bytes;

	for (unsigned i = 0; i < topology_n_nodes(d->topology); i++)
		missing += budget_room(d, i) / slab * slab;
	return missing;
}

static void resize_answer(struct resize *r, bool late)
{
	struct daemon *d = r->d;
	struct kvp_wire_admin_done done = {.n_done = d->slab_bytes_total,
		.n_left = resize_over(d),
		.n_failed = r->growing ? resize_missing(d) : 0,
		.error = r->failure[0] ? ENOMEM : 0,
		.late = late};

	loop_timer_cancel(d->loop, &r->deadline);
	if (r->peer)
		peer_answer(r->peer, KVP_MSG_RESIZE, r->msg_id, 0, &done, sizeof(done), NULL, 0);
	r->peer = NULL;
}

static void resize_end(struct resize *r)
{
	struct daemon *d = r->d;

	r->active = false;
	d->slab_failure = NULL;
	log_line(r->peer || r->failure[0] ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG,
		"resized: %" PRIu64 " bytes in slabs, the budget is %" PRIu64 "%s%s", d->slab_bytes_total,
		d->budget_bytes, r->failure[0] ? "; " : "", r->failure);
	resize_answer(r, false);
	r->growing = false;
}

/* A slab less on a node that has too much, if one can go now. Return: true: one is on its way. */
static bool resize_shrink(struct daemon *d, uint32_t i)
{
	return slab_release_spare(d, i) || tier_shrink(d, i);
}

static void resize_step(struct loop_timer *timer)
{
	struct resize *r = timer->owner;
	struct daemon *d = r->d;
	uint64_t slab = d->pool.header->slab_bytes;
	bool moved = false, left = false;

	for (unsigned i = 0; i < topology_n_nodes(d->topology); i++) {
		if (budget_over(d, i)) {
			left = true;
			moved |= resize_shrink(d, i);
		} else if (r->growing && !r->failure[0] && budget_room(d, i) >= slab) {
			left = true;
			moved |= d->n_making < MAKING_MAX && slab_make_spare(d, i);
		}
	}
	budget_stats(d);
	if (left || d->n_making)
		loop_timer_set(d->loop, &r->timer, loop_now() + (moved ? STEP_NS : IDLE_STEP_NS));
	else
		resize_end(r);
}

/* The budget stays what was asked for, and what is too much goes on to go; only nobody waits any more. */
static void resize_late(struct loop_timer *timer)
{
	struct resize *r = timer->owner;

	log_warn("resize: at the deadline %" PRIu64 " bytes are in slabs, the budget is %" PRIu64
		 "; the rest goes as it is let go",
		r->d->slab_bytes_total, r->d->budget_bytes);
	resize_answer(r, true);
}

/* Return: 0; -errno with the reason: nothing is changed. */
static int resize_set(struct daemon *d, const char *pool, char message[256])
{
	struct config fresh = d->config;
	struct budget_node before[TOPOLOGY_NODES_MAX];
	uint64_t slab = d->pool.header->slab_bytes, had = d->budget_bytes;
	struct config old = d->config;
	int r = config_parse_pool(&fresh, pool, message);

	if (r < 0)
		return r;
	if (fresh.pool_bytes < slab || fresh.pool_bytes / slab > d->pool.header->max_places) {
		snprintf(message, 256,
			"this pool takes from 1 to %u slabs of %" PRIu64 " bytes, %" PRIu64
			" in all: it was laid out so by the --pool it began with; for more: kvctl drain, kvctl purge, "
			"and start with a larger --pool",
			d->pool.header->max_places, slab, d->pool.header->max_places * slab);
		return -EINVAL;
	}
	if (fresh.pool_bytes > had) {
		r = slab_check_room(d, fresh.pool_bytes, fresh.pool_bytes - had, "the size asked for", message);
		if (r < 0)
			return r;
	}
	memcpy(before, d->nodes, sizeof(before));
	d->config.n_nodes = fresh.n_nodes;
	memcpy(d->config.nodes, fresh.nodes, sizeof(fresh.nodes));
	d->config.pool_bytes = fresh.pool_bytes;
	r = budget_start(d, message);
	if (r < 0) {
		for (unsigned i = 0; i < TOPOLOGY_NODES_MAX; i++)
			d->nodes[i].budget = before[i].budget;
		d->budget_bytes = had;
		d->config = old;
	}
	budget_stats(d);
	return r;
}

void resize_ask(struct daemon *d, struct peer *peer, uint64_t msg_id, const char *pool, uint64_t deadline_ns)
{
	struct resize *r = d->resize;
	uint64_t had = d->budget_bytes;
	char message[256];

	if (!r || r->peer) {
		peer_refuse(peer, KVP_MSG_RESIZE, msg_id, EBUSY, "a resize is under way: wait for it");
		return;
	}
	if (resize_set(d, pool, message) < 0) {
		peer_refuse(peer, KVP_MSG_RESIZE, msg_id, KVP_EINVAL, "%s", message);
		return;
	}
	gauge_set(&d->pool.stats->counters.given_back_bytes, 0); /* whatever was: this counts */
	d->pool.stats->pressure_message[0] = 0;
	log_info("asked for by uid %u, pid %d: resize from %" PRIu64 " to %" PRIu64 " bytes", (unsigned)peer->uid,
		(int)peer->pid, had, d->budget_bytes);
	r->peer = peer;
	r->msg_id = msg_id;
	r->active = r->growing = true;
	r->failure[0] = 0;
	d->slab_failure = r->failure;
	loop_timer_set(d->loop, &r->deadline, deadline_ns);
	loop_timer_set(d->loop, &r->timer, loop_now());
}

bool resize_to(struct daemon *d, uint64_t bytes)
{
	struct resize *r = d->resize;

	if (r->peer)
		return false;
	budget_set(d, bytes);
	r->active = r->growing = true;
	r->failure[0] = 0;
	d->slab_failure = r->failure;
	loop_timer_set(d->loop, &r->timer, loop_now());
	return true;
}

void resize_peer_gone(struct daemon *d, struct peer *peer)
{
	if (d->resize && d->resize->peer == peer) {
		loop_timer_cancel(d->loop, &d->resize->deadline);
		d->resize->peer = NULL;
	}
}

int resize_start(struct daemon *d)
{
	struct resize *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->d = d;
	r->timer = (struct loop_timer){.ring = resize_step, .owner = r};
	r->deadline = (struct loop_timer){.ring = resize_late, .owner = r};
	d->resize = r;
	if (!resize_over(d))
		return 0;
	log_warn("the pool kept in memory holds %" PRIu64 " bytes in slabs, --pool is %" PRIu64
		 ": it shrinks as blocks can go",
		d->slab_bytes_total, d->budget_bytes);
	r->active = true;
	loop_timer_set(d->loop, &r->timer, loop_now());
	return 0;
}

void resize_stop(struct daemon *d)
{
	struct resize *r = d->resize;

	if (!r)
		return;
	loop_timer_cancel(d->loop, &r->timer);
	loop_timer_cancel(d->loop, &r->deadline);
	d->slab_failure = NULL;
	d->resize = NULL;
	free(r);
}
