/*
 * io_engine.h - inside of io.h: the two engines under io.c, and the thread over it
 *
 * An engine moves one operation's own.iov at off + own.moved once and tells what the kernel said; queues, order, short
 * transfers and errors are io.c's.
 */
#ifndef KVPOOL_IO_ENGINE_H
#define KVPOOL_IO_ENGINE_H

#include "io.h"
#include "io_memory.h"
#include "uring.h"

struct io_ring;
struct io_twin;

/** io_ring_open() - Return: 0; -errno with @why. @lock_fd: as in struct io_opts. */
int io_ring_open(struct io_ring **ring, unsigned depth, int *lock_fd, char why[URING_WHY_MAX]);
void io_ring_close(struct io_ring *ring);
int io_ring_fd(const struct io_ring *ring);
/** io_ring_start() - at most depth at once; queued until the next io_ring_push() or io_ring_sleep() */
void io_ring_start(struct io_ring *ring, struct io_op *op);
/** io_ring_push() - hand all that is queued to the kernel. Return: 0; -errno: the kernel takes none any more. */
int io_ring_push(struct io_ring *ring);
/** io_ring_sleep() - that, and sleep until something has ended or @ask_fd, an eventfd, was raised. Return: likewise. */
int io_ring_sleep(struct io_ring *ring, int ask_fd);
/** io_ring_waits() - are there operations the kernel has not taken yet? */
bool io_ring_waits(const struct io_ring *ring);
/** io_ring_take_back() - after io_ring_push() failed: one op the kernel never got, or NULL */
struct io_op *io_ring_take_back(struct io_ring *ring);
/** io_ring_ended() - an op that has ended, own.res set; NULL: none now */
struct io_op *io_ring_ended(struct io_ring *ring);

/** io_twin_open() - Return: 0; -errno: not even one thread could be had. */
int io_twin_open(struct io_twin **twin, unsigned threads);
void io_twin_close(struct io_twin *twin);
int io_twin_fd(const struct io_twin *twin);
void io_twin_start(struct io_twin *twin, struct io_op *op);
struct io_op *io_twin_ended(struct io_twin *twin);

struct io_queue {
	struct io_op *head, *tail; /* by own.next */
};
void io_queue_push(struct io_queue *queue, struct io_op *op);
struct io_op *io_queue_pop(struct io_queue *queue);

struct io_worker;

/** io_worker_open() - a thread that has @io to itself from now on. Return: 0; -errno: @io is still the caller's. */
int io_worker_open(struct io_worker **worker, struct io *io, const cpu_set_t *cpus);
/** io_worker_close() - nothing may be under way; @io is the caller's again */
void io_worker_close(struct io_worker *worker);
int io_worker_fd(const struct io_worker *worker);
void io_worker_submit(struct io_worker *worker, struct io_op *op);
/** io_worker_ended() - all that has ended, own.res set */
struct io_queue io_worker_ended(struct io_worker *worker);
bool io_worker_is_uring(const struct io_worker *worker);
/** io_worker_poke() - look again */
void io_worker_poke(struct io_worker *worker);

/* For io_worker.c: io_submit() and io_reap() in steps, so that what is worked out for an operation (before(), after())
   never keeps the device waiting for the next one. */
/** io_hand_over() - @io tells of ended operations here instead of by done() */
void io_hand_over(struct io *io, void (*ended)(void *owner, struct io_op *op), void *owner);
/** io_add() - io_submit(), but the kernel need not hear of it yet */
void io_add(struct io *io, struct io_op *op);
/** io_collect() - see what an engine has done with, and start what waits. Return: is there something for
 *  io_finish()? */
bool io_collect(struct io *io);
/** io_push() - the kernel hears of all that was started; unless @all, only if it is worth a system call */
void io_push(struct io *io, bool all);
/** io_finish() - work on one op an engine is done with, and tell. Return: false: there is none. */
bool io_finish(struct io *io);
/** io_sleep() - io_push(), then wait until an engine has done something or @ask_fd, an eventfd, was raised */
void io_sleep(struct io *io, int ask_fd);

#endif
