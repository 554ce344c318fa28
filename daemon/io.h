/*
 * io.h - asynchronous reads and writes of files: a ring, or its twin on threads
 *
 * Used by the spill store and for copies out of staging objects.  One thread calls; done() runs inside io_reap().  With
 * io_opts.worker all the rest, before() and after() too, runs in a thread of this io's own (io_worker.c).
 * Reads go before writes that wait.  Short transfers are continued, EINTR and EAGAIN tried again, a full ring queues:
 * done() tells all bytes or an error, exactly once for each op.  Where the kernel refuses io_uring, at the start or
 * later, the threads serve, and one line says so.
 */
#ifndef KVPOOL_IO_H
#define KVPOOL_IO_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct io;

enum io_kind {
	IO_READ,
	IO_WRITE,
	IO_DATASYNC,
	IO_ALLOCATE, /* room for iov[0].iov_len bytes at off, as fallocate(): no wait for the file system in the loop */
	IO_WORK, /* nothing: what before() does is all of it */
	IO_OPEN, /* the path at iov[0].iov_base with the flags in off; done() gets a descriptor, to be closed there */
};

/* Embedded in its owner, untouched from io_submit() to done(). */
struct io_op {
	enum io_kind kind;
	int fd;
	uint64_t off;
	struct iovec iov[2]; /* as given; the engine keeps its own place */
	int n_iov;
	/* bytes moved (all of them), 0 for DATASYNC, ALLOCATE and WORK, a descriptor for OPEN; or -errno; end of file:
	   -ENODATA */
	void (*done)(struct io_op *op, int64_t res);
	/* or NULL; in the worker where there is one, so they touch nothing but what the op owns: before it is started
	   (iov may be changed), and when it has ended, to say what done() is told. Checksums are worked out here. */
	void (*before)(struct io_op *op);
	int64_t (*after)(struct io_op *op, int64_t res);
	void *owner;
	struct { /* the engine's */
		struct io_op *next;
		struct iovec iov[2]; /* what is left to move */
		int n_iov;
		uint64_t moved, total;
		int64_t res;
		int refused; /* errno with which the ring refused it; the threads then had it */
		unsigned tries;
		bool joined, backward; /* takes no place of its own; lies before the one whose place it shares */
	} own;
};

#define IO_JOIN_BYTES (288u << 10) /* four records of 64 KiB with their headers */

struct io_opts {
	/* places of the ring: operations at once; 0: 32. Small ones that lie side by side in the file and wait together
	   share a place, up to IO_JOIN_BYTES. The twin does as many as it has threads. */
	unsigned depth;
	unsigned threads; /* of the twin; 0: 4 */
	bool use_uring;
	bool worker; /* a thread does the work; where none can be had, the caller's does */
	const cpu_set_t *cpus; /* where it runs, or NULL */
	/* -1, or a flock()ed file, the engine's once io_open() succeeded: the ring registers it and closes the
	   descriptor, so that the lock falls only when the last I/O has ended, even after SIGKILL.  The twin just keeps it open. */
	int lock_fd;
};

/** io_open() - @message: 256 bytes, which engine and why not io_uring. Return: 0; -ENOMEM; -errno. */
int io_open(struct io **io, const struct io_opts *opts, char message[256]);
/** io_close() - waits for what is in flight, calling done() */
void io_close(struct io *io);
/** io_submit() - always takes the op (queues without bound; callers bound themselves) */
void io_submit(struct io *io, struct io_op *op);
/** io_fd() - readable when io_reap() has work */
int io_fd(const struct io *io);
/** io_reap() - call done() of what has ended. Return: ops ended. */
unsigned io_reap(struct io *io);
/** io_wait() - block until at least one op ended or @deadline_ns, then as io_reap(). For start and drain, never the
 *  loop. */
unsigned io_wait(struct io *io, uint64_t deadline_ns);
unsigned io_in_flight(const struct io *io); /* submitted and not done */
bool io_is_uring(const struct io *io); /* now: it may change to false */

#endif
