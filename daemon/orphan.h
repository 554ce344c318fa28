/*
 * orphan.h - blocks whose parent went with a slab that its writer broke: nobody can find them, so they go, as soon as nobody holds them
 *
 * The loop's thread.  An eviction leaves none, for leaves go first.
 */
#ifndef KVPOOL_DAEMON_ORPHAN_H
#define KVPOOL_DAEMON_ORPHAN_H

#include "namespace.h"

/** orphan_add() - @e is one; orphan_add_below() - the blocks in memory right below @e are, for @e goes */
void orphan_add(const struct entry *e);
void orphan_add_below(const struct entry *e);
/** orphan_step() - let go of those that nobody holds, a piece a call */
void orphan_step(struct daemon *d);

#endif
