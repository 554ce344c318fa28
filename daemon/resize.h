/*
 * resize.h - the budget changes while the daemon serves: each node grows and shrinks, slab by slab
 *
 * The new budget holds at once for everything that is allocated from then on; what is too much goes as it can: spare
 * slabs, then slabs emptied by eviction and by moving blocks.  A held block stays, and with it its slab, until it is
 * let go.
 */
#ifndef KVPOOL_RESIZE_H
#define KVPOOL_RESIZE_H

#include "daemon.h"

/** resize_start() - after everything else: a pool kept in memory may be larger than --pool now */
int resize_start(struct daemon *d);
void resize_stop(struct daemon *d);
/** resize_ask() - KVP_MSG_RESIZE: @pool as in --pool. Answers when it is done, or at the deadline. */
void resize_ask(struct daemon *d, struct peer *peer, uint64_t msg_id, const char *pool, uint64_t deadline_ns);
/** resize_to() - the same for ourselves. Return: false: one that was asked for is under way. */
bool resize_to(struct daemon *d, uint64_t bytes);
/** resize_peer_gone() - nobody waits for the answer; it goes on */
void resize_peer_gone(struct daemon *d, struct peer *peer);

#endif
