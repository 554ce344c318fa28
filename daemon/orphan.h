/*
 * orphan.h - blocks in memory whose parent went: nobody can find them, so they go, as soon as nobody holds them
 *
 * The loop's thread.  An eviction leaves none, for leaves go first; a slab that its writer broke, a record that is
 * damaged, forgotten by the store, or dropped from it do.
 *
 * A block in memory has its parent, hot or cold; or is in this list; or a store is missing, in which the parent may
 * lie: then it stays (ns_link_all(), ns_entry_part()) until all stores are there (ns_link_some()).  It leaves the list
 * with a parent or forgotten, hot or cold: what an eviction wrote to the store meanwhile would come back from there and
 * be in no list.  So it is there without a parent only while it is held: by pins, by a transfer, and for one second by
 * an answer that named it (block_hold()).  kvctl check lets what is pinned pass, and looks for longer than that second.
 */
#ifndef KVPOOL_DAEMON_ORPHAN_H
#define KVPOOL_DAEMON_ORPHAN_H

#include "namespace.h"

/** orphan_add() - @e is one */
void orphan_add(const struct entry *e);
/** orphan_step() - let go of those that nobody holds, a piece a call */
void orphan_step(struct daemon *d);

#endif
