/*
 * block.h - the life of a block: granted, published, evicted, restored; the only writer of descriptor words
 *
 *	from       to           who, when
 *	FREE       GRANTED      block_grant: a writer may store
 *	FREE       RESTORING    block_begin_fill: a read or the daemon's own copy will land
 *	GRANTED    PUBLISHED    block_publish
 *	GRANTED    FREE         block_release_grant: given back, or its owner is gone           generation + 1
 *	GRANTED    TAKEN        block_take: past its limit, the writer may still store          generation + 1
 *	TAKEN      FREE         block_release_grant: the writer gave it back or is gone         generation + 1
 *	TAKEN      FREE         block_release_set_aside: nobody's I/O, nobody's pin             generation + 1
 *	RESTORING  PUBLISHED    block_publish after a good fill
 *	RESTORING  FREE         block_drop_fill: damaged, failed, cancelled                     generation + 1
 *	RESTORING  TAKEN        at a start, while a dead daemon's I/O still runs, or pinned;
 *	                        block_drop_fill: it was arriving, and somebody may hold it      generation + 1
 *	PUBLISHED  DRAINING     block_evict: nobody new will pin it
 *	DRAINING   PUBLISHED    block_evict: somebody had; or a new daemon found it so
 *	DRAINING   FREE         block_evict                                                     generation + 1
 *	FREE       RETIRED      generations used up
 */
#ifndef KVPOOL_BLOCK_H
#define KVPOOL_BLOCK_H

#include "namespace.h"
#include "session.h"

/** block_grant() - Return: a slot, or NO_SLOT: none free in this namespace now. */
uint64_t block_grant(
	struct ns *ns, struct member *member, uint32_t node, uint64_t *generation); /* far ones as ns_room() has it */
/** block_release_grant() - a GRANTED or TAKEN slot of @member becomes free. Return: false: that grant does not
 *  stand. */
bool block_release_grant(struct member *member, uint64_t slot, uint64_t generation);
/** block_release_all_grants() - its session is gone. */
void block_release_all_grants(struct member *member);
/** block_keep_grants() - after a resume: only those listed stand */
void block_keep_grants(struct member *member, const struct kvp_wire_grant *grants, uint32_t n);
/** block_take_late() - withdraw grants older than the limit */
void block_take_late(struct daemon *d);

/** block_begin_fill() - Return: a slot in RESTORING for @e, or NO_SLOT. */
uint64_t block_begin_fill(struct ns *ns, struct entry *e);
void block_drop_fill(struct ns *ns, uint64_t slot);
/** block_arrive() - the first @layers layers of @e are in its fill, compared: who was told of it may use them */
void block_arrive(struct entry *e, uint32_t layers);
/** block_arrives() - is it being read, and may be used as far as it is there? */
bool block_arrives(const struct entry *e);

/** block_publish_grant() - KVP_MSG_PUBLISH for one item of an in-place namespace */
void block_publish_grant(struct member *member, const struct kvp_wire_item *item, struct kvp_wire_result *result);
/** block_publish_fill() - the bytes landed: @slot (RESTORING) becomes the hot copy of @e */
void block_publish_fill(struct entry *e, uint64_t slot);
/** block_admit() - may an item with this key and parent be published now? Return: 0: yes; else enum
 *  kvp_publish_result. */
int block_admit(struct ns *ns, const struct kvp_wire_item *item, struct kvp_wire_result *result);

/** block_evict() - let go of the hot copy if nobody pins it. Return: false: pinned, held or busy; its stamp is
 *  renewed. */
bool block_evict(struct entry *e);
/** block_forget() - it goes, from memory and from the store, as if it had never been there, after all that hangs below it.
 *  @went: told of each that goes, just before it does; or NULL.
 *  Return: false: it or one of those is pinned, held, busy, or of another namespace, or they are many: call again. */
bool block_forget(struct entry *e, void (*went)(void *owner, const struct entry *e), void *owner);
/** block_let_go() - as block_forget(), of it alone: what hangs below it stays, without a parent. Return: false: in
 *  use. */
bool block_let_go(struct entry *e);
/** block_hold() - keep it from eviction until whoever was told of it has used it, for about a second at most.  One without its
 *  parent is held for its second once: who asks for its chain again and again does not keep it from going (orphan.h) */
void block_hold(struct entry *e);
/** block_used() - somebody used it in tick @used: if that is after block_hold(), it is held no longer */
void block_used(struct entry *e, uint32_t used);
/** block_is_held() - by block_hold(), or by a transfer of its bytes */
bool block_is_held(struct entry *e);
/** block_drop_slab() - all blocks of a condemned slab go, pinned or not, and all grants in it.
 *  Return: false: a transfer is still under way in it, call again. */
bool block_drop_slab(struct ns *ns, struct slab *slab);
/** block_entry() - the entry for an item that was admitted, made if need be. NULL: no memory. */
struct entry *block_entry(struct ns *ns, const struct kvp_wire_item *item);
/** block_move() - copy a published block out of a withdrawn slab to a free slot of its namespace. Return: false: pinned, no slot,
 *  or its bytes are broken. */
bool block_move(struct entry *e, struct slab *away_from);

/** block_demote() - move it to a far node, where it is used in place. Return: false: as block_move(). */
bool block_demote(struct entry *e);

/** block_repair_index() - after a restart, first: take out hints that are wrong or there twice; what is missing is put in
 *  with the block */
void block_repair_index(struct ns *ns);
/** block_adopt_published() - then: what is PUBLISHED may be pinned.  Of a block that is there twice, for a
 *  move was cut short, this copy stays: the other one is DRAINING, so nobody holds it */
void block_adopt_published(struct ns *ns, struct slab *slab);
/** block_adopt_slab() - last: go through all descriptors of a slab */
void block_adopt_slab(struct ns *ns, struct slab *slab);
/** block_release_set_aside() - no I/O of a dead daemon runs: TAKEN slots without an owner, pinned by nobody, become free.  Some
 *  that are left: d->set_aside. */
void block_release_set_aside(struct daemon *d);

/** block_sweep() - go on counting held blocks, a bounded piece a call */
void block_sweep(struct daemon *d);

#endif
