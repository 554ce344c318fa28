/*
 * orphan.h - blocks in memory whose parent went: nobody can find them, so they go, as soon as nobody holds them
 *
 * The loop's thread.  An eviction leaves none, for leaves go first; a slab that its writer broke, a record that is damaged, forgotten by
 * the store, or dropped from it do.
 */
#ifndef KVPOOL_DAEMON_ORPHAN_H
#define KVPOOL_DAEMON_ORPHAN_H

#include "namespace.h"

/** orphan_add() - @e is one */
void orphan_add(const struct entry *e);
/** orphan_step() - let go of those that nobody holds, a piece a call */
void orphan_step(struct daemon *d);

#endif
