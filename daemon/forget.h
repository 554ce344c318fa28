/*
 * forget.h - KVP_MSG_CLEAR: all blocks a namespace has now go, from memory and from the store, for good
 *
 * A piece a turn; blocks in use are asked again until the deadline.  Then a mark in the store, so that no start finds a
 * record that was written up to now.  One clear of a namespace at a time.
 */
#ifndef KVPOOL_FORGET_H
#define KVPOOL_FORGET_H

#include "namespace.h"

/** forget_clear() - answers by the deadline (0: blocks in use are not waited for), if the store notes it in time, with
 *  kvp_wire_admin_done: n_left are in use; error: the store could not be marked */
void forget_clear(struct ns *ns, struct peer *peer, uint64_t msg_id, uint64_t deadline_ns);
/** forget_peer_gone(), forget_ns_gone() - nobody hears the answer; there is nothing to forget any more */
void forget_peer_gone(struct daemon *d, struct peer *peer);
void forget_ns_gone(struct ns *ns);

#endif
