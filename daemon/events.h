/*
 * events.h - what happens to the blocks of a namespace, told to who asked
 *
 * Owns the event rings (struct kvp_ring): one a namespace, made when a member first asks for it.  Telling is a few
 * stores and never waits; a reader that is slower than the ring is long has lost what it missed, and sees that it did.
 * A ring lives as long as its namespace in this daemon; the next daemon's is another one, which readers see by its
 * numbers.
 */
#ifndef KVPOOL_EVENTS_H
#define KVPOOL_EVENTS_H

#include "namespace.h"

/** events_open() - have a ring. Return: 0; -errno. */
int events_open(struct ns *ns);
/** events_close() - nothing comes any more; who has it mapped keeps it */
void events_close(struct ns *ns);

/** events_stored(), events_removed() - the block is in that tier now, or no more. @tier: KVP_HIT_RAM or
 *  KVP_HIT_SPILL. */
void events_stored(const struct entry *e, uint32_t tier);
void events_removed(const struct entry *e, uint32_t tier);
/** events_cleared() - all blocks told before are as good as gone; those that stay are told again */
void events_cleared(struct ns *ns);

#endif
