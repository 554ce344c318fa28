/*
 * tier.h - traffic between DRAM and the spill store, and who waits for it
 *
 * Makes room (writes victims out, evicts, moves slabs between namespaces), brings cold blocks back, answers RESERVE and
 * RESTORE by their deadlines, drains.
 */
#ifndef KVPOOL_TIER_H
#define KVPOOL_TIER_H

#include "namespace.h"

struct tier;

/** tier_start() - open the spill store and link what it knows to the namespaces. Return: 0; -errno with @message. */
int tier_start(struct daemon *d, char message[256]);
void tier_stop(struct daemon *d);

/** tier_read_ns() - for how long a block of so many bytes is read, as measured; 0: not known */
double tier_read_ns(const struct daemon *d, uint64_t bytes);
/** tier_on() - is there a store that takes writes now? */
bool tier_on(const struct daemon *d);

/** tier_make_room() - see to it that about @want slots are free soon, if need be near @node (index, or TOPOLOGY_ANY).
 *  Return: slots free now. */
uint64_t tier_make_room(struct ns *ns, uint64_t want, uint32_t node);
/** tier_serve() - slots or transfers became free: serve who waits, keep the reserve of free slots */
void tier_serve(struct ns *ns);
void tier_tick(struct daemon *d);

/** tier_reserve() - KVP_MSG_RESERVE. Answers now or by the deadline. @node: index, or TOPOLOGY_ANY. */
void tier_reserve(
	struct member *member, struct peer *peer, uint64_t msg_id, uint32_t n, uint32_t node, uint64_t deadline_ns);
/** tier_restore() - KVP_MSG_RESTORE, likewise */
void tier_restore(struct member *member, struct peer *peer, uint64_t msg_id, const struct kvp_key *keys, uint32_t n,
	uint32_t flags, uint64_t deadline_ns);
/** tier_publish_staged() - KVP_MSG_PUBLISH of a copied namespace */
void tier_publish_staged(
	struct member *member, struct peer *peer, uint64_t msg_id, const struct kvp_wire_item *items, uint32_t n);
enum tier_lookup {
	TIER_LOOK,
	TIER_TOUCH, /* counts as a use */
	TIER_MISSED, /* by who asks, whatever is here */
};
/** tier_lookup() - state of one key, without side effects but the count of misses, and a use if wanted */
void tier_lookup(struct ns *ns, const struct kvp_key *key, enum tier_lookup how, struct kvp_wire_found *found);

/** tier_entry_ready() - the entry became hot: who waits for it may have it */
void tier_entry_ready(struct entry *e);

/** tier_peer_gone(), tier_member_gone() - nobody waits there any more */
void tier_peer_gone(struct daemon *d, struct peer *peer);
void tier_member_gone(struct member *member);
/** tier_member_waits() - is a request of it not answered yet? */
bool tier_member_waits(const struct member *member);

/** tier_drain() - KVP_MSG_DRAIN: write all that is worth it by the deadline */
void tier_drain(struct daemon *d, struct peer *peer, uint64_t msg_id, uint64_t deadline_ns);
/** tier_evict() - KVP_MSG_EVICT: @n blocks of @ns_id (0: of all), those that are written first included, by the deadline */
void tier_evict(struct daemon *d, struct peer *peer, uint64_t msg_id, uint64_t ns_id, uint64_t n, uint64_t deadline_ns);

/** tier_delete() - KVP_MSG_DELETE: they go, and it is answered when no start finds them again. @keys: of struct kvp_key, anyhow
 *  aligned.  @deadline_ns: 0: of a client that gives none. */
void tier_delete(struct ns *ns, struct peer *peer, uint64_t msg_id, const void *keys, uint32_t n, uint64_t deadline_ns);

/** tier_store_drop() - KVP_MSG_STORE_DROP: no record of @ns_id (0: of all) written so far comes back, over restarts too */
void tier_store_drop(struct daemon *d, struct peer *peer, uint64_t msg_id, uint64_t ns_id, uint64_t deadline_ns);
/** tier_store_forget() - no record of @ns_id written so far comes back at a start; done(0 or -errno) once that is durable.
 *  Return: 0; -ENOENT: there is no store; -EBUSY: such a mark is on its way; -ENODEV: the store is down; -ENOSPC; -ENOMEM. */
int tier_store_forget(struct daemon *d, uint64_t ns_id, void (*done)(void *owner, int res, uint64_t none), void *owner);
/** tier_store_scrub() - KVP_MSG_STORE_SCRUB: read all of the store now, @bytes_per_s (0: as configured) */
void tier_store_scrub(struct daemon *d, struct peer *peer, uint64_t msg_id, uint64_t bytes_per_s);

/** tier_shrink() - empty a slab on node @i, a piece a call. Return: true: it is empty, and gone. */
bool tier_shrink(struct daemon *d, uint32_t i);
/** tier_shrink_ns() - likewise one of this namespace, which becomes a spare one */
bool tier_shrink_ns(struct ns *ns);

/** tier_cold_forget() - the caller dropped its entry: the record is garbage */
void tier_cold_forget(struct daemon *d, spill_place place);
/** tier_stats() - copy the store's numbers into the counters */
void tier_stats(struct daemon *d);

#endif
