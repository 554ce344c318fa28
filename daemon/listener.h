/*
 * listener.h - the sockets the daemon listens on: their paths, who comes by which, and who is turned away at the door
 *
 * Those handed over by the service manager, else the configured ones.  A path that a dead daemon left is taken over; one that
 * is served is not.  Who is turned away is told why.
 */
#ifndef KVPOOL_LISTENER_H
#define KVPOOL_LISTENER_H

#include "daemon.h"

/** listener_check() - could the configured paths be listened on, as far as can be seen at once? Return: 0; -errno, @message */
int listener_check(const struct config *config, char message[256]);
/** listener_start() - listen. Return: 0, or -errno with @message saying which socket and what to do */
int listener_start(struct daemon *d, char message[256]);
void listener_stop(struct daemon *d);

#endif
