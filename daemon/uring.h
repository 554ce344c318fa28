/*
 * uring.h - getting a ring that really works, or the reason why not
 *
 * The loop and the spill store's I/O both want one and both have a way without.  Containers, sysctl and seccomp refuse
 * io_uring at its set-up, at io_uring_enter() or one operation at a time, so a ring counts only after a round trip.
 */
#ifndef KVPOOL_URING_H
#define KVPOOL_URING_H

#include <liburing.h>

#define URING_WHY_MAX 160

/**
 * uring_open() - make a ring and send one NOP through it
 * @cq_entries: room for completions; more wait in the kernel, none is lost
 * @why: on failure the reason, for people
 * Return: 0; -errno.
 */
int uring_open(struct io_uring *ring, unsigned entries, unsigned cq_entries, char why[URING_WHY_MAX]);

/** uring_explain() - what an errno of io_uring means on a host, for people */
void uring_explain(int err, const char *step, char why[URING_WHY_MAX]);

#endif
