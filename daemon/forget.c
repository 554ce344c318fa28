/* forget.c - see forget.h */
#include "forget.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "block.h"
#include "events.h"
#include "log.h"
#include "peer.h"
#include "tier.h"

#define PIECE 4096 /* blocks in one turn */
#define TURN_NS 1000000ull
#define MARK_NS \
	2000000000ull /* of the time there is, at most half: so long before the deadline the store's mark is begun */
#define AGAIN_NS 20000000ull /* in use, or another mark is on its way: look again after so long */

struct clear {
	struct ns *ns; /* NULL: gone before its mark was durable */
	struct peer *peer; /* NULL: gone */
	uint64_t msg_id;
	uint64_t wait_until_ns; /* for blocks in use: before the deadline, for the mark takes time */
	struct loop_timer timer;
	struct kvp_key *keys; /* still to go */
	uint64_t n_keys, at, n_kept; /* kept: in use, at the front again */
	uint64_t n_all;
	bool marking;
	bool first_round; /* not told one by one */
	bool late; /* its deadline came, some are in use */
	int error;
};

static void clear_free(struct clear *clear)
{
	free(clear->keys);
	free(clear);
}

static void clear_answer(struct clear *clear)
{
	struct ns *ns = clear->ns;
	uint64_t n_left = clear->n_kept + clear->n_keys - clear->at;
	struct kvp_wire_admin_done done = {
		.n_done = clear->n_all - n_left, .n_left = n_left, .error = clear->error, .late = clear->late};

	loop_timer_cancel(ns->d->loop, &clear->timer);
	log_info("namespace %s of uid %u is cleared by its owner: %" PRIu64 " blocks are gone, %" PRIu64 " in use stay",
		ns->head->name, ns->head->owner_uid, done.n_done, done.n_left);
	if (clear->peer)
		peer_answer(clear->peer, KVP_MSG_CLEAR, clear->msg_id, 0, &done, sizeof(done), NULL, 0);
	ns->clear = NULL;
	clear->ns = NULL;
	if (!clear->marking)
		clear_free(clear);
}

/* All blocks of now; what comes later is not meant. Return: 0; -ENOMEM. */
static int clear_list(struct clear *clear)
{
	struct ns *ns = clear->ns;

	clear->keys = malloc((ns->entries.n ? ns->entries.n : 1) * sizeof(*clear->keys));
	if (!clear->keys)
		return -ENOMEM;
	for (const struct entry *e = ns_entry_next(ns, NULL); e; e = ns_entry_next(ns, e))
		clear->keys[clear->n_keys++] = e->key;
	clear->n_all = clear->n_keys;
	return 0;
}

/* What was told as cleared with the rest and is there still. */
static void clear_tell_kept(const struct clear *clear)
{
	for (uint64_t i = 0; i < clear->n_kept; i++) {
		const struct entry *e = ns_entry(clear->ns, &clear->keys[i]);

		if (e && e->slot != NO_SLOT)
			events_stored(e, KVP_HIT_RAM);
		if (e && e->cold)
			events_stored(e, KVP_HIT_SPILL);
	}
}

static void clear_piece(struct clear *clear)
{
	struct ns *ns = clear->ns;

	ns->quiet = clear->first_round;
	for (unsigned n = 0; n < PIECE && clear->at < clear->n_keys; n++) {
		struct kvp_key key = clear->keys[clear->at++];
		struct entry *e = ns_entry(ns, &key);

		if (e && !block_forget(e, NULL, NULL)) /* the mark covers them all */
			clear->keys[clear->n_kept++] = key;
	}
	ns->quiet = false;
	if (clear->first_round && clear->at == clear->n_keys) {
		clear->first_round = false;
		clear_tell_kept(clear);
	}
}

static void clear_marked(void *owner, int res, uint64_t none)
{
	struct clear *clear = owner;

	(void)none;
	clear->marking = false;
	clear->error = -res;
	if (!clear->ns)
		clear_free(clear);
	else if (!clear->ns->d->stopping)
		clear_answer(clear);
}

/* Last, so that it covers what was written meanwhile. */
static void clear_mark(struct loop_timer *timer)
{
	struct clear *clear = timer->owner;
	struct daemon *d = clear->ns->d;
	int r;

	clear->marking = true; /* it may be done before this returns */
	r = tier_store_forget(d, clear->ns->id, clear_marked, clear);
	if (r == 0)
		return;
	clear->marking = false;
	if (r == -EBUSY) {
		loop_timer_set(d->loop, timer, loop_now() + AGAIN_NS);
		return;
	}
	clear->error = r == -ENOENT ? 0 : -r;
	clear_answer(clear);
}

static void clear_step(struct loop_timer *timer)
{
	struct clear *clear = timer->owner;
	struct ns *ns = clear->ns;
	bool late = loop_now() >= clear->wait_until_ns;

	clear_piece(clear);
	tier_serve(ns);
	if (clear->at < clear->n_keys && (clear->first_round || !late)) {
		loop_timer_set(ns->d->loop, timer, loop_now() + TURN_NS);
	} else if (late || !clear->n_kept) {
		clear->late = clear->n_kept;
		timer->ring = clear_mark;
		clear_mark(timer);
	} else {
		clear->n_keys = clear->n_kept;
		clear->at = clear->n_kept = 0;
		loop_timer_set(ns->d->loop, timer, loop_now() + AGAIN_NS);
	}
}

void forget_clear(struct ns *ns, struct peer *peer, uint64_t msg_id, uint64_t deadline_ns)
{
	struct clear *clear = ns->clear ? NULL : calloc(1, sizeof(*clear));
	uint64_t now = loop_now(), left = deadline_ns > now ? deadline_ns - now : 0;

	if (!clear) {
		peer_refuse(peer, KVP_MSG_CLEAR, msg_id, ns->clear ? EBUSY : KVP_ENOMEM, "namespace %s: %s",
			ns->head->name,
			ns->clear ? "it is being cleared: wait for that" : "the daemon is out of memory");
		return;
	}
	*clear = (struct clear){.ns = ns,
		.peer = peer,
		.msg_id = msg_id,
		.wait_until_ns = deadline_ns - (left / 2 < MARK_NS ? left / 2 : MARK_NS),
		.first_round = true,
		.timer = {.ring = clear_step, .owner = clear}};
	if (clear_list(clear) < 0) {
		clear_free(clear);
		peer_refuse(peer, KVP_MSG_CLEAR, msg_id, KVP_ENOMEM, "the daemon is out of memory");
		return;
	}
	ns->clear = clear;
	events_cleared(ns);
	clear_step(&clear->timer);
}

void forget_peer_gone(struct daemon *d, struct peer *peer)
{
	for (struct ns *ns = d->namespaces; ns; ns = ns->next)
		if (ns->clear && ns->clear->peer == peer)
			ns->clear->peer = NULL;
}

void forget_ns_gone(struct ns *ns)
{
	struct clear *clear = ns->clear;

	if (!clear)
		return;
	loop_timer_cancel(ns->d->loop, &clear->timer);
	ns->clear = NULL;
	clear->ns = NULL;
	if (!clear->marking)
		clear_free(clear);
}
