/* request.c - see request.h */
#include "request.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "block.h"
#include "cold.h"
#include "events.h"
#include "forget.h"
#include "kvpool_desc.h"
#include "log.h"
#include "namespace.h"
#include "peer.h"
#include "policy.h"
#include "resize.h"
#include "session.h"
#include "shm.h"
#include "slab.h"
#include "tier.h"

#define STAGE_BLOCKS_MAX 256
#define STAGE_BYTES_MAX (64ull << 20) /* and at least one block: allocating it must not hold up the others */

/* A message with a fixed head and @n items behind it: are all there? What lies behind them is of a later minor version. */
static bool body_fits(size_t bytes, size_t head, uint64_t n, size_t item, uint32_t most)
{
	return bytes >= head && n <= most && bytes >= head + n * item;
}

/* A batch, and its @item bytes for each of at most @most items behind it. Return: false: it is not as long as it says. */
static bool batch_take(
	struct kvp_wire_batch *batch, void *items, size_t item, uint32_t most, const void *body, size_t n)
{
	memcpy(batch, body, sizeof(*batch)); /* so much is there: on_ns_message() */
	if (!body_fits(n, sizeof(*batch), batch->n, item, most))
		return false;
	memcpy(items, (const char *)body + sizeof(*batch), batch->n * item);
	return true;
}

/* The body of a client of this minor version, of an earlier or of a later one. Return: false: it has less than 1.0 had. */
static bool body_take(void *to, size_t room, size_t least, const void *body, size_t n)
{
	size_t known = n < room ? n : room;

	if (n < least)
		return false;
	memcpy(to, body, known);
	memset((char *)to + known, 0, room - known);
	return true;
}

static void on_hello(struct peer *peer, const struct kvp_msg *msg, const void *body, size_t n)
{
	struct kvp_wire_hello hello;
	struct kvp_wire_welcome welcome = {.major = KVP_WIRE_MAJOR,
		.minor = KVP_WIRE_MINOR,
		.heartbeat_ms = peer->d->config.heartbeat_ms,
		.hold_limit_ms = peer->d->config.hold_limit_ms,
		.grant_limit_ms = peer->d->config.grant_limit_ms,
		.can = KVP_CAN_LONGER | KVP_CAN_DEADLINE | KVP_CAN_REQUEST | KVP_CAN_UNMAPPED | KVP_CAN_LEAVE |
		       KVP_CAN_COLD};
	struct pool *pool = &peer->d->pool;
	struct session *s;
	char reason[256] = "";
	int fds[2], r;

	/* of another major version it may have any length, but begins with the versions */
	if (!body_take(&hello, sizeof(hello), offsetof(struct kvp_wire_hello, session_id), body, n)) {
		peer_close(peer, "its HELLO has the wrong length");
		return;
	}
	if (hello.major != KVP_WIRE_MAJOR || hello.layout_major != KVP_LAYOUT_MAJOR || n < KVP_HELLO_LEAST) {
		snprintf(reason, sizeof(reason),
			"this kvpoold speaks wire %u.%u and layout %u.%u, the client %u.%u and %u.%u: use the library of the daemon's major version",
			KVP_WIRE_MAJOR, KVP_WIRE_MINOR, KVP_LAYOUT_MAJOR, KVP_LAYOUT_MINOR, hello.major, hello.minor,
			hello.layout_major, hello.layout_minor);
		peer_went_without(peer->d, peer->uid, peer->pid, reason);
		peer_refuse(peer, msg->type, msg->id, KVP_EVERSION, "%s", reason);
		return;
	}
	if (peer->session) {
		peer_close(peer, "it said HELLO twice");
		return;
	}
	if (hello.session_id && memcmp(hello.uuid, pool->uuid, 16) != 0)
		r = -KVP_EGONE;
	else if (hello.session_id)
		r = session_resume(peer->d, peer, &hello, &s);
	else
		r = session_open(peer->d, peer, &hello, &s, reason);
	if (r < 0) {
		if (r != -KVP_EGONE && r != -KVP_ESTALE) /* no descriptor and no room too */
			peer_went_without(peer->d, peer->uid, peer->pid, reason);
		peer_refuse(peer, msg->type, msg->id, -r, "%s",
			r == -KVP_EGONE	   ? "the session is of another pool"
			: r == -KVP_ESTALE ? "there is no such session any more"
					   : reason);
		return;
	}
	welcome.session_id = s->id;
	welcome.epoch = atomic_load(&pool->header->epoch);
	memcpy(welcome.uuid, pool->uuid, 16);
	fds[0] = shm_reopen_ro(pool->header_fd);
	fds[1] = s->fd;
	if (fds[0] < 0) {
		const char *why = "the daemon has no descriptor left: raise LimitNOFILE";

		peer_went_without(peer->d, peer->uid, peer->pid, why);
		peer_refuse(peer, msg->type, msg->id, KVP_EQUOTA, "%s", why);
		session_end(s, "no descriptor left for it");
		return;
	}
	peer_answer(peer, msg->type, msg->id, 0, &welcome, sizeof(welcome), fds, 2);
	close(fds[0]);
}

static void on_ping(struct peer *peer, const struct kvp_msg *msg)
{
	struct kvp_wire_pong pong = {
		.epoch = atomic_load(&peer->d->pool.header->epoch), .state = atomic_load(&peer->d->pool.header->state)};

	peer_answer(peer, msg->type, msg->id, 0, &pong, sizeof(pong), NULL, 0);
}

static void on_join(struct peer *peer, const struct kvp_msg *msg, const void *body, size_t n)
{
	struct kvp_wire_join join;
	struct kvp_wire_joined joined;
	struct member *member;
	struct ns *ns;
	char reason[256];
	int r, fd;

	if (!body_take(&join, sizeof(join), KVP_JOIN_LEAST, body, n)) {
		peer_close(peer, "its JOIN has the wrong length");
		return;
	}
	r = ns_join(peer->d, peer->session, &join, &ns, &joined, reason);
	if (r == -KVP_EMISMATCH && join.flags & KVP_NS_JOIN) { /* for programs, the field behind the text */
		peer_refuse(peer, msg->type, msg->id, -r, "%s%c%s", reason, 0, joined.differs);
		return;
	}
	if (r < 0) {
		peer_refuse(peer, msg->type, msg->id, -r, "%s", reason);
		return;
	}
	fd = shm_reopen_ro(ns->fd);
	member = fd < 0 ? NULL : session_join(peer->session, ns, !(joined.flags & KVP_NS_READONLY));
	if (!member) {
		peer_refuse(peer, msg->type, msg->id, KVP_EQUOTA,
			"the daemon has no descriptor or memory left: raise LimitNOFILE");
		if (fd >= 0)
			close(fd);
		return;
	}
	member->cost_ns_per_token = join.cost_ns_per_token ? join.cost_ns_per_token : ns->cost_ns_per_token;
	peer_answer(peer, msg->type, msg->id, 0, &joined, sizeof(joined), &fd, 1);
	close(fd);
}

/* One place of a MAP. Return: a descriptor to send and close, or -1 with mapped->status set. */
static int map_place(struct member *member, uint32_t place, bool writable, struct kvp_wire_mapped *mapped)
{
	struct ns *ns = member->ns;
	struct slab *slab = place < ns->head->max_places ? ns->d->slabs[place] : NULL;
	int fd;

	*mapped = (struct kvp_wire_mapped){.place = place};
	if (!slab || slab->ns != ns || slab->condemned) {
		mapped->status = -KVP_ESTALE;
		return -1;
	}
	if (writable && (ns->head->flags & KVP_NS_COPIED || !member->writable || !member->session->grants_at[place])) {
		mapped->status = -KVP_EACCES;
		return -1;
	}
	mapped->number = slab->number;
	mapped->bytes = slab->bytes;
	mapped->status = session_give_place(member->session, place);
	if (mapped->status < 0)
		return -1;
	if (writable && slab_let_write(slab) < 0) {
		mapped->status = -KVP_ENOSPC;
		return -1;
	}
	fd = writable ? fcntl(slab->fd, F_DUPFD_CLOEXEC, 0) : shm_reopen_ro(slab->fd);
	if (fd < 0)
		mapped->status = -KVP_EQUOTA;
	else if (writable)
		member->session->has_place[place] |= PLACE_WRITABLE;
	return fd;
}

static void on_map(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	struct kvp_wire_map map;
	struct kvp_wire_mapped mapped[KVP_WIRE_FDS_MAX] = {{0}};
	uint32_t places[KVP_WIRE_FDS_MAX];
	int fds[KVP_WIRE_FDS_MAX] = {-1};
	unsigned n_fds = 0;

	memcpy(&map, body, sizeof(map));
	if (!body_fits(n, sizeof(map), map.n, sizeof(uint32_t), KVP_WIRE_FDS_MAX)) {
		peer_close(peer, "its MAP has the wrong length");
		return;
	}
	memcpy(places, (const char *)body + sizeof(map), map.n * sizeof(places[0]));
	for (uint32_t i = 0; i < map.n; i++) {
		int fd = map_place(member, places[i], map.writable != 0, &mapped[i]);

		if (fd >= 0)
			fds[n_fds++] = fd;
	}
	peer_answer(peer, msg->type, msg->id, 0, mapped, map.n * sizeof(mapped[0]), fds, n_fds);
	for (unsigned i = 0; i < n_fds; i++)
		close(fds[i]);
}

static void on_reserve(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	struct kvp_wire_reserve reserve;

	if (!body_take(&reserve, sizeof(reserve), KVP_RESERVE_LEAST, body, n)) {
		peer_close(peer, "its RESERVE has the wrong length");
		return;
	}
	if (!member->writable || member->ns->head->flags & KVP_NS_COPIED) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES, "namespace %s is %s", member->ns->head->name,
			member->writable ? "copied: publish from a staging area" : "read-only to you");
		return;
	}
	if (reserve.n > KVP_WIRE_BATCH_MAX)
		reserve.n = KVP_WIRE_BATCH_MAX;
	if (!reserve.n) {
		peer_answer(peer, msg->type, msg->id, 0, NULL, 0, NULL, 0);
		return;
	}
	tier_reserve(
		member, peer, msg->id, reserve.n, topology_index(peer->d->topology, reserve.node), reserve.deadline_ns);
}

static void on_publish(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	static struct kvp_wire_item items[KVP_WIRE_BATCH_MAX];
	static struct kvp_wire_result results[KVP_WIRE_BATCH_MAX];
	struct kvp_wire_batch batch;

	if (!batch_take(&batch, items, sizeof(items[0]), KVP_WIRE_BATCH_MAX, body, n)) {
		peer_close(peer, "its PUBLISH has the wrong length");
		return;
	}
	if (!member->writable) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES, "namespace %s is read-only to you",
			member->ns->head->name);
		return;
	}
	if (member->ns->head->flags & KVP_NS_COPIED) {
		tier_publish_staged(member, peer, msg->id, items, batch.n);
		return;
	}
	for (uint32_t i = 0; i < batch.n; i++)
		block_publish_grant(member, &items[i], &results[i]);
	peer_answer(peer, msg->type, msg->id, 0, results, batch.n * sizeof(results[0]), NULL, 0);
	tier_serve(member->ns);
}

/* ABANDON and GRANTS: a list of grants. */
static void on_grants(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	static struct kvp_wire_grant grants[KVP_WIRE_BATCH_MAX];
	struct kvp_wire_batch batch;

	if (!batch_take(&batch, grants, sizeof(grants[0]), KVP_WIRE_BATCH_MAX, body, n)) {
		peer_close(peer, "its list of grants has the wrong length");
		return;
	}
	if (msg->type == KVP_MSG_GRANTS)
		block_keep_grants(member, grants, batch.n);
	else
		for (uint32_t i = 0; i < batch.n; i++)
			block_release_grant(member, grants[i].slot, grants[i].generation);
	peer_answer(peer, msg->type, msg->id, 0, NULL, 0, NULL, 0);
	tier_serve(member->ns);
}

static void on_lookup(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	static struct kvp_key keys[KVP_WIRE_BATCH_MAX];
	static struct kvp_wire_found found[KVP_WIRE_BATCH_MAX];
	struct kvp_wire_batch batch;

	if (!batch_take(&batch, keys, sizeof(keys[0]), KVP_WIRE_BATCH_MAX, body, n)) {
		peer_close(peer, "its LOOKUP has the wrong length");
		return;
	}
	for (uint32_t i = 0; i < batch.n; i++)
		tier_lookup(member->ns, &keys[i],
			batch.flags & KVP_WIRE_TOUCH ? TIER_TOUCH
			: msg->id		     ? TIER_LOOK
						     : TIER_MISSED,
			&found[i]);
	peer_answer(peer, msg->type, msg->id, 0, found, batch.n * sizeof(found[0]), NULL, 0);
}

static void on_request(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	static struct kvp_key keys[KVP_WIRE_REQUEST_MAX];
	struct kvp_wire_batch batch;

	if (!batch_take(&batch, keys, sizeof(keys[0]), KVP_WIRE_REQUEST_MAX, body, n)) {
		peer_close(peer, "its REQUEST has the wrong length");
		return;
	}
	policy_request(member->ns, keys, batch.n, batch.flags);
	peer_answer(peer, msg->type, msg->id, 0, NULL, 0, NULL, 0);
}

/* UNMAPPED and LEAVE: slabs that are not mapped there any more. Return: false: it is not as long as it says. */
static bool unmapped_take(struct peer *peer, const void *body, size_t n)
{
	static uint64_t numbers[KVP_WIRE_BATCH_MAX];
	struct kvp_wire_batch batch;

	if (!batch_take(&batch, numbers, sizeof(numbers[0]), KVP_WIRE_BATCH_MAX, body, n)) {
		peer_close(peer, "its list of slabs has the wrong length");
		return false;
	}
	for (uint32_t i = 0; i < batch.n; i++)
		slab_unmapped(peer->session, numbers[i]);
	return true;
}

static void on_unmapped(struct peer *peer, const struct kvp_msg *msg, const void *body, size_t n)
{
	if (unmapped_take(peer, body, n))
		peer_answer(peer, msg->type, msg->id, 0, NULL, 0, NULL, 0);
}

static void on_leave(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	struct ns *ns = member->ns;

	if (!unmapped_take(peer, body, n))
		return;
	if (!session_leave(member)) {
		peer_refuse(peer, msg->type, msg->id, EBUSY,
			"namespace %s: blocks of it are held, or requests wait there: let go of them first",
			ns->head->name);
		return;
	}
	peer_answer(peer, msg->type, msg->id, 0, NULL, 0, NULL, 0);
	tier_serve(ns);
}

static void on_restore(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	static struct kvp_key keys[KVP_WIRE_BATCH_MAX];
	struct kvp_wire_restore restore;

	if (n < sizeof(restore)) {
		peer_close(peer, "its RESTORE has the wrong length");
		return;
	}
	memcpy(&restore, body, sizeof(restore));
	if (!body_fits(n, sizeof(restore), restore.n, sizeof(keys[0]), KVP_WIRE_BATCH_MAX)) {
		peer_close(peer, "its RESTORE has the wrong length");
		return;
	}
	memcpy(keys, (const char *)body + sizeof(restore), restore.n * sizeof(keys[0]));
	tier_restore(member, peer, msg->id, keys, restore.n, restore.flags, restore.deadline_ns);
}

/* One writer alone leaves half for the next, those who wait and he have like shares; nobody has one before those who have
 * waited longer. Return: blocks, 0: there is no room. */
static uint64_t stage_room(const struct member *member, uint64_t wish, uint64_t most)
{
	const struct daemon *d = member->session->d;
	uint64_t stride = member->ns->head->block_stride, ahead, left;
	unsigned n_waiting;

	ahead = session_stage_waits(d, member, &n_waiting);
	left = most > d->stage_bytes ? most - d->stage_bytes : 0;
	if (!d->stage_bytes && !ahead && left < stride)
		return 1; /* a block larger than the bound: one at a time */
	if (left < ahead + stride)
		return 0;
	if (wish > STAGE_BLOCKS_MAX)
		wish = STAGE_BLOCKS_MAX;
	while (wish > 1 && (wish * stride > STAGE_BYTES_MAX || wish * stride > left / (n_waiting + 2) ||
				   wish * stride > left - ahead))
		wish /= 2;
	return wish;
}

static void on_stage(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	struct daemon *d = peer->d;
	struct kvp_wire_stage stage;
	struct kvp_wire_staged staged = {0};
	uint64_t most = d->config.pool_bytes / 8;

	if (!body_take(&stage, sizeof(stage), KVP_STAGE_LEAST, body, n)) {
		peer_close(peer, "its STAGE has the wrong length");
		return;
	}
	if (!member->writable || !(member->ns->head->flags & KVP_NS_COPIED)) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES, "namespace %s is not copied, or read-only to you",
			member->ns->head->name);
		return;
	}
	if (!stage.n_blocks) {
		session_give_stage(member);
		member->stage_wish_ns = 0;
		peer_answer(peer, msg->type, msg->id, 0, &staged, sizeof(staged), NULL, 0);
		return;
	}
	if (!member->stage) {
		session_wish_stage(member);
		stage.n_blocks = stage_room(member, stage.n_blocks, most);
		if (!stage.n_blocks || session_make_stage(member, stage.n_blocks) < 0) {
			peer_refuse(peer, msg->type, msg->id, KVP_ENOSPC,
				"staging areas of all writers together are at their bound of %" PRIu64
				" bytes (an eighth of --pool) and blocks lie in each: wait longer, let writers publish or "
				"abandon what they reserved, or raise --pool",
				most);
			return;
		}
		member->stage_wish_ns = 0;
	}
	staged.bytes = member->stage->bytes;
	staged.n_blocks = member->stage->n_blocks;
	peer_answer(peer, msg->type, msg->id, 0, &staged, sizeof(staged), &member->stage->fd, 1);
}

static void on_events(struct peer *peer, const struct kvp_msg *msg, struct member *member)
{
	struct kvp_wire_ring ring;
	int fd, r = events_open(member->ns);

	if (r < 0) {
		peer_refuse(peer, msg->type, msg->id, KVP_ENOMEM, "namespace %s: no memory for its events: %s",
			member->ns->head->name, strerror(-r));
		return;
	}
	fd = shm_reopen_ro(member->ns->ring_fd);
	if (fd < 0) {
		peer_refuse(peer, msg->type, msg->id, KVP_EQUOTA,
			"the daemon has no descriptor left: raise LimitNOFILE of kvpoold");
		return;
	}
	ring.bytes = member->ns->ring->object_bytes;
	peer_answer(peer, msg->type, msg->id, 0, &ring, sizeof(ring), &fd, 1);
	close(fd);
}

/* Whoever asked waits no longer, and may have said otherwise since: what lay in the socket past its deadline, while we were
   stopped, is not done. 0: of a client that gives none. */
static bool asked_too_late(struct peer *peer, const struct kvp_msg *msg, uint64_t deadline_ns)
{
	uint64_t now = loop_now();

	if (!deadline_ns || now < deadline_ns)
		return false;
	log_line(peer->admin ? LOG_LEVEL_WARN : LOG_LEVEL_DEBUG,
		"request %u of uid %u, pid %d is not done: it was read %.1f s after its deadline", msg->type,
		(unsigned)peer->uid, (int)peer->pid, (double)(now - deadline_ns) / 1e9);
	peer_refuse(peer, msg->type, msg->id, ETIME, "not done: it was read only after its deadline: ask again");
	return true;
}

static void on_delete(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	struct kvp_wire_batch batch;
	uint64_t deadline_ns = 0;
	size_t behind;

	memcpy(&batch, body, sizeof(batch));
	if (!body_fits(n, sizeof(batch), batch.n, sizeof(struct kvp_key), KVP_WIRE_BATCH_MAX)) {
		peer_close(peer, "its DELETE has the wrong length");
		return;
	}
	behind = sizeof(batch) + batch.n * sizeof(struct kvp_key);
	if (batch.flags & KVP_WIRE_DEADLINE && n >= behind + sizeof(deadline_ns))
		memcpy(&deadline_ns, (const char *)body + behind, sizeof(deadline_ns));
	if (!member->writable) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES, "namespace %s is read-only to you",
			member->ns->head->name);
		return;
	}
	if (!asked_too_late(peer, msg, deadline_ns))
		tier_delete(member->ns, peer, msg->id, (const char *)body + sizeof(batch), batch.n, deadline_ns);
}

static void on_clear(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body, size_t n)
{
	struct kvp_wire_restore clear;

	if (!body_take(&clear, sizeof(clear), sizeof(clear), body, n)) {
		peer_close(peer, "its CLEAR has the wrong length");
		return;
	}
	if (peer->session->uid != member->ns->head->owner_uid) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES, "namespace %s: only its owner, uid %u, may clear it",
			member->ns->head->name, (unsigned)member->ns->head->owner_uid);
		return;
	}
	if (!asked_too_late(peer, msg, clear.deadline_ns))
		forget_clear(member->ns, peer, msg->id, clear.flags & KVP_WIRE_NO_WAIT ? 0 : clear.deadline_ns);
}

static void on_usage(struct peer *peer, const struct kvp_msg *msg, struct member *member)
{
	const struct ns *ns = member->ns;
	const struct kvp_ns_counters *c = &ns->row->counters;
	struct kvp_wire_usage usage = {.capacity_bytes = peer->d->config.pool_bytes,
		.ram_blocks = atomic_load(&c->published),
		.spill_blocks = atomic_load(&c->cold) + atomic_load(&c->clean),
		.lookups = atomic_load(&c->lookups),
		.hits_ram = atomic_load(&c->hits_ram),
		.hits_spill = atomic_load(&c->hits_spill),
		.tokens_ram = atomic_load(&c->tokens_ram),
		.tokens_spill = atomic_load(&c->tokens_spill),
		.stored = atomic_load(&c->stored),
		.evicted = atomic_load(&c->evicted),
		.dropped = atomic_load(&c->dropped),
		.restored = atomic_load(&c->restored)};

	usage.ram_bytes = usage.ram_blocks * ns->head->block_stride;
	usage.spill_bytes = usage.spill_blocks * ns->head->block_bytes;
	peer_answer(peer, msg->type, msg->id, 0, &usage, sizeof(usage), NULL, 0);
}

/* What operators do to blocks and memory can be found in the log afterwards, and whose doing it was. */
static void admin_log(const struct peer *peer, uint16_t type, const struct kvp_wire_admin *admin)
{
	const struct ns *ns = admin->ns_id ? ns_find(peer->d, admin->ns_id) : NULL;
	char what[200] = "purge: all memory of the pool is given back", of[KVP_NAME_MAX + 40] = "all namespaces";

	if (admin->ns_id)
		snprintf(of, sizeof(of), "namespace %016" PRIx64 " (%s)", admin->ns_id,
			ns ? ns->head->name : "not in memory");
	if (type == KVP_MSG_DRAIN)
		snprintf(what, sizeof(what), "drain of the pool to its store");
	else if (type == KVP_MSG_STORE_DROP)
		snprintf(what, sizeof(what), "store drop of %s: what the store holds of it is forgotten", of);
	else if (type == KVP_MSG_NS_POLICY)
		snprintf(what, sizeof(what), "policy of %s: %s", of, admin->n ? "learned" : "lru");
	else if (type == KVP_MSG_STORE_SCRUB)
		snprintf(what, sizeof(what), "scrub of the store");
	else if (type == KVP_MSG_EVICT && admin->n == UINT64_MAX)
		snprintf(what, sizeof(what), "evict of all blocks of %s", of);
	else if (type == KVP_MSG_EVICT)
		snprintf(what, sizeof(what), "evict of %" PRIu64 " blocks of %s", admin->n, of);
	log_info("asked for by uid %u, pid %d: %s", (unsigned)peer->uid, (int)peer->pid, what);
}

/* Kept in the namespace's header and, where there is one, beside the store. */
static void admin_policy(struct peer *peer, const struct kvp_msg *msg, const struct kvp_wire_admin *admin)
{
	struct ns *ns = ns_find(peer->d, admin->ns_id);
	struct kvp_wire_admin_done done = {0};
	int r = 0;

	if (!ns || admin->n > 1) {
		peer_refuse(peer, msg->type, msg->id, ns ? KVP_EINVAL : KVP_ENOENT,
			ns ? "policy %" PRIu64 " is unknown to this kvpoold" : "there is no namespace %016" PRIx64,
			ns ? admin->n : admin->ns_id);
		return;
	}
	done.n_done = !(ns->head->flags & KVP_NS_LEARNED) != !admin->n;
	if (done.n_done)
		r = policy_choose(ns, admin->n);
	if (r < 0) {
		peer_refuse(
			peer, msg->type, msg->id, KVP_ENOMEM, "namespace %s: no memory for its policy", ns->head->name);
		return;
	}
	if (done.n_done && peer->d->config.n_stores)
		ns_file_save(ns);
	peer_answer(peer, msg->type, msg->id, 0, &done, sizeof(done), NULL, 0);
}

static void on_admin(struct peer *peer, const struct kvp_msg *msg, const void *body, size_t n)
{
	struct kvp_wire_admin admin;
	struct kvp_wire_admin_done done = {0};

	if (!peer->admin) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES,
			"only root, the daemon's user or its group may do this, on the operators' socket %s",
			peer->d->config.admin_socket);
		return;
	}
	if (msg->type == KVP_MSG_RESIZE && n >= KVP_RESIZE_LEAST) {
		struct kvp_wire_resize resize;

		body_take(&resize, sizeof(resize), KVP_RESIZE_LEAST, body, n);
		resize.pool[sizeof(resize.pool) - 1] = 0;
		if (!asked_too_late(peer, msg, resize.deadline_ns))
			resize_ask(peer->d, peer, msg->id, resize.pool, resize.deadline_ns);
		return;
	}
	if (msg->type == KVP_MSG_RESIZE || !body_take(&admin, sizeof(admin), KVP_ADMIN_LEAST, body, n)) {
		peer_close(peer, "its request has the wrong length");
		return;
	}
	if (asked_too_late(peer, msg, admin.deadline_ns))
		return;
	admin_log(peer, msg->type, &admin);
	switch (msg->type) {
	case KVP_MSG_DRAIN:
		tier_drain(peer->d, peer, msg->id, admin.deadline_ns);
		return;
	case KVP_MSG_STORE_DROP:
		tier_store_drop(peer->d, peer, msg->id, admin.ns_id, admin.deadline_ns);
		return;
	case KVP_MSG_NS_POLICY:
		admin_policy(peer, msg, &admin);
		return;
	case KVP_MSG_STORE_SCRUB:
		tier_store_scrub(peer->d, peer, msg->id, admin.n);
		return;
	case KVP_MSG_EVICT:
		tier_evict(peer->d, peer, msg->id, admin.ns_id, admin.n, admin.deadline_ns);
		return;
	default:
		peer->d->purge_at_end = true;
		loop_stop(peer->d->loop);
	}
	peer_answer(peer, msg->type, msg->id, 0, &done, sizeof(done), NULL, 0);
}

static void on_cold_ns(struct peer *peer, const struct kvp_msg *msg, const void *body, size_t n)
{
	struct kvp_wire_cold_ns found = {0};
	struct kvp_wire_cold_ask ask;
	struct kvp_key key, parent;
	struct ns *to;
	bool more;

	if (!body_take(&ask, sizeof(ask), KVP_COLD_ASK_LEAST, body, n)) {
		peer_close(peer, "its COLD_NS has the wrong length");
		return;
	}
	to = cold_next(peer->session, ask.after);
	if (to) {
		uint32_t at = to->cold_at;

		found = (struct kvp_wire_cold_ns){.ns_id = to->id,
			.owner_uid = to->head->owner_uid,
			.from = cold_from(to)->head->desc,
			.to = to->head->desc};
		memcpy(found.name, to->head->name, sizeof(found.name));
		found.has = cold_find(to, ask.idle_ms, &parent, &key, 1, &more);
		if (found.has) /* it is named when it is asked for */
			to->cold_at = at;
		else if (more)
			found.has = KVP_COLD_MORE;
	}
	peer_answer(peer, msg->type, msg->id, 0, &found, to ? sizeof(found) : 0, NULL, 0);
}

static void on_cold(struct peer *peer, const struct kvp_msg *msg, struct member *member, const void *body)
{
	static struct kvp_key keys[1 + KVP_WIRE_BATCH_MAX];
	const struct ns *from = cold_from(member->ns);
	struct kvp_wire_batch batch;
	uint32_t n = 0;
	bool more = false;

	memcpy(&batch, body, sizeof(batch)); /* so much is there: on_ns_message() */
	if (!member->writable || (from && !ns_may_read(from, peer->session))) {
		peer_refuse(peer, msg->type, msg->id, KVP_EACCES, "namespace %s is read-only to you",
			member->ns->head->name);
		return;
	}
	if (batch.n > KVP_WIRE_BATCH_MAX)
		batch.n = KVP_WIRE_BATCH_MAX;
	if (batch.n)
		n = cold_find(member->ns, batch.flags, keys, keys + 1, batch.n, &more);
	peer_answer(peer, msg->type, msg->id, 0, keys, n || more ? (1 + n) * sizeof(keys[0]) : 0, NULL, 0);
}

/* Messages about a namespace begin with its id. */
static void on_ns_message(struct peer *peer, const struct kvp_msg *msg, const void *body, size_t n)
{
	struct member *member;
	struct ns *ns;
	uint64_t ns_id;

	if (n < 16) {
		peer_close(peer, "its message is too short");
		return;
	}
	memcpy(&ns_id, body, sizeof(ns_id));
	ns = ns_find(peer->d, ns_id);
	member = ns ? session_member(peer->session, ns) : NULL;
	if (!member) { /* the same answer whether there is one or not */
		peer_refuse(peer, msg->type, msg->id, KVP_ENOENT, "namespace %016" PRIx64 " was not joined", ns_id);
		return;
	}
	switch (msg->type) {
	case KVP_MSG_MAP:
		on_map(peer, msg, member, body, n);
		return;
	case KVP_MSG_RESERVE:
		on_reserve(peer, msg, member, body, n);
		return;
	case KVP_MSG_PUBLISH:
		on_publish(peer, msg, member, body, n);
		return;
	case KVP_MSG_ABANDON:
	case KVP_MSG_GRANTS:
		on_grants(peer, msg, member, body, n);
		return;
	case KVP_MSG_LOOKUP:
		on_lookup(peer, msg, member, body, n);
		return;
	case KVP_MSG_RESTORE:
		on_restore(peer, msg, member, body, n);
		return;
	case KVP_MSG_REQUEST:
		on_request(peer, msg, member, body, n);
		return;
	case KVP_MSG_UNMAPPED:
		on_unmapped(peer, msg, body, n);
		return;
	case KVP_MSG_LEAVE:
		on_leave(peer, msg, member, body, n);
		return;
	case KVP_MSG_EVENTS:
		on_events(peer, msg, member);
		return;
	case KVP_MSG_DELETE:
		on_delete(peer, msg, member, body, n);
		return;
	case KVP_MSG_CLEAR:
		on_clear(peer, msg, member, body, n);
		return;
	case KVP_MSG_USAGE:
		on_usage(peer, msg, member);
		return;
	case KVP_MSG_COLD:
		on_cold(peer, msg, member, body);
		return;
	default:
		on_stage(peer, msg, member, body, n);
	}
}

void request_handle(struct peer *peer, const void *packet, size_t bytes)
{
	struct kvp_msg msg;
	const void *body = (const char *)packet + sizeof(msg);
	size_t n = bytes - sizeof(msg);

	gauge_add(&peer->d->pool.stats->counters.messages, 1);
	if (bytes < sizeof(msg)) {
		peer_close(peer, "its message is shorter than a header");
		return;
	}
	memcpy(&msg, packet, sizeof(msg));
	if (msg.magic != KVP_WIRE_MAGIC || msg.bytes != bytes || msg.n_fds) {
		peer_close(peer, "its message has a wrong header");
		return;
	}
	switch (msg.type) {
	case KVP_MSG_HELLO:
		on_hello(peer, &msg, body, n);
		return;
	case KVP_MSG_PING:
		if (peer->session)
			peer->session->heard_ns = loop_now();
		on_ping(peer, &msg);
		return;
	case KVP_MSG_DRAIN:
	case KVP_MSG_PURGE:
	case KVP_MSG_EVICT:
	case KVP_MSG_RESIZE:
	case KVP_MSG_STORE_DROP:
	case KVP_MSG_STORE_SCRUB:
	case KVP_MSG_NS_POLICY:
		on_admin(peer, &msg, body, n);
		return;
	default:
		break;
	}
	if (!peer->session) {
		peer_close(peer, "it did not begin with HELLO");
		return;
	}
	peer->session->heard_ns = loop_now();
	switch (msg.type) {
	case KVP_MSG_BYE: {
		struct session *s = peer->session;

		/* its process lives on and may still hold views: they are void from now on, as it said itself */
		session_end(s, NULL);
		return;
	}
	case KVP_MSG_JOIN:
		on_join(peer, &msg, body, n);
		return;
	case KVP_MSG_COLD_NS:
		on_cold_ns(peer, &msg, body, n);
		return;
	case KVP_MSG_MAP:
	case KVP_MSG_RESERVE:
	case KVP_MSG_PUBLISH:
	case KVP_MSG_ABANDON:
	case KVP_MSG_GRANTS:
	case KVP_MSG_LOOKUP:
	case KVP_MSG_RESTORE:
	case KVP_MSG_STAGE:
	case KVP_MSG_EVENTS:
	case KVP_MSG_DELETE:
	case KVP_MSG_CLEAR:
	case KVP_MSG_USAGE:
	case KVP_MSG_REQUEST:
	case KVP_MSG_UNMAPPED:
	case KVP_MSG_LEAVE:
	case KVP_MSG_COLD:
		on_ns_message(peer, &msg, body, n);
		return;
	default:
		peer_refuse(
			peer, msg.type, msg.id, KVP_ENOTSUP, "message type %u is unknown to this kvpoold", msg.type);
	}
}
