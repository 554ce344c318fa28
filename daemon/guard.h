/*
 * guard.h - memory a client can write can also be punched, cut or grown by it: touching it must not kill the daemon
 *
 * A mapping registered here may be touched by the loop.  If the object behind it shrinks, the SIGBUS handler maps
 * zeroes over the whole mapping and marks it condemned; the toucher goes on reading zeroes and looks at
 * guard_condemned() afterwards.  SIGBUS anywhere else still ends the process.
 */
#ifndef KVPOOL_GUARD_H
#define KVPOOL_GUARD_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define GUARD_NONE (-1)

/** guard_init() - install the SIGBUS handler; once, before any guard_add(). Return: 0; -errno. */
int guard_init(void);
/** guard_add() - Return: a guard number, or -ENOSPC when all are in use. */
int guard_add(void *addr, size_t len);
void guard_remove(int guard);
bool guard_condemned(int guard);
/** guard_thread_mask() - signals that a thread of ours blocks: all, but those a fault of its own raises.  The kernel kills a
 *  process at once for a fault whose signal is blocked, whatever handler there is. */
void guard_thread_mask(sigset_t *mask);

#endif
