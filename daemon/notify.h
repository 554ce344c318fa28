/*
 * notify.h - what the service manager is told; the loop, and the start before it
 *
 * The protocol of sd_notify(3), which waits as long as the manager reads nothing (stopped, frozen, very busy):
 * everybody who is served here would wait with it.
 */
#ifndef KVPOOLD_NOTIFY_H
#define KVPOOLD_NOTIFY_H

#include <stdbool.h>

#define NOTIFY_START_MS 1000 /* before it serves: what is told of the start is worth so much */

/** notify_say() - @wait_ms: at most. Return: false: the manager had no room for it; what must arrive is said again
 *  later. */
__attribute__((format(printf, 2, 3))) bool notify_say(unsigned wait_ms, const char *format, ...);

#endif
