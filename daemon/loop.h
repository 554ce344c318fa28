/*
 * loop.h - the serving loop: descriptors that become ready, and timers
 *
 * One thread, everything in callbacks.  Readiness comes from io_uring (POLL_ADD) or, where io_uring is refused, from
 * epoll: same behaviour, chosen at loop_open().  Disk rings are sources like sockets: their descriptor becomes
 * readable. A callback works until EAGAIN or a bound of its own, and returns; level-triggered: what is left is told
 * again. Readiness that somebody used up meanwhile may still be told once, so descriptors are non-blocking.
 */
#ifndef KVPOOL_LOOP_H
#define KVPOOL_LOOP_H

#include <stdbool.h>
#include <stdint.h>

struct loop;

#define LOOP_IN 1u
#define LOOP_OUT 2u
#define LOOP_HUP 4u /* always told, never asked for */

/* Embedded in its owner, who keeps it until loop_del(). */
struct loop_source {
	int fd;
	uint32_t events; /* LOOP_IN | LOOP_OUT asked for */
	void (*ready)(struct loop_source *source, uint32_t events);
	void *owner;
	uint64_t opaque[2]; /* the loop's */
};

/* Embedded likewise. One shot; ring() may arm it again. */
struct loop_timer {
	void (*ring)(struct loop_timer *timer);
	void *owner;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC */
	uint32_t heap_index; /* the loop's; 0: not armed */
};

/**
 * loop_open() - @use_uring: try io_uring first
 * @message: 256 bytes: which engine serves, and why not io_uring
 * Return: 0; -ENOMEM; -errno of epoll.
 */
int loop_open(struct loop **loop, bool use_uring, char message[256]);
void loop_close(struct loop *loop);

/** loop_add() - watch source->fd. Return: 0; -errno. */
int loop_add(struct loop *loop, struct loop_source *source);
/** loop_set_events() - change what is watched for. Return: 0; -errno. */
int loop_set_events(struct loop *loop, struct loop_source *source, uint32_t events);
/** loop_del() - may be called in any callback, its own too; no callback of it comes afterwards; before close(fd).
 *  One that is not watched is passed over. */
void loop_del(struct loop *loop, struct loop_source *source);

void loop_timer_set(struct loop *loop, struct loop_timer *timer, uint64_t deadline_ns);
void loop_timer_cancel(struct loop *loop, struct loop_timer *timer);

/** loop_run() - serve until loop_stop(). Return: 0; -errno: the engine itself failed. */
int loop_run(struct loop *loop);
void loop_stop(struct loop *loop);

uint64_t loop_now(void); /* CLOCK_MONOTONIC ns */

#endif
