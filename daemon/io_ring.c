/*
 * io_ring.c - operations by io_uring
 *
 * The kernel is given slot and generation, never a pointer.  There are as many slots as the ring has entries, so neither
 * of its queues can overflow.
 */
#include "io_engine.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fault.h"

struct io_ring_slot {
	struct io_op *op; /* NULL: free */
	uint32_t generation;
	uint32_t next_free;
};

struct io_ring {
	struct io_uring ring;
	struct io_ring_slot *slots;
	unsigned depth, free_slot; /* free_slot: index + 1; 0: none */
};

static void ring_prep(struct io_uring_sqe *sqe, const struct io_op *op)
{
	uint64_t off = op->off + op->own.moved;

	switch (op->kind) {
	case IO_READ:
		io_uring_prep_readv(sqe, op->fd, op->own.iov, (unsigned)op->own.n_iov, off);
		break;
	case IO_WRITE:
		io_uring_prep_writev(sqe, op->fd, op->own.iov, (unsigned)op->own.n_iov, off);
		break;
	case IO_DATASYNC:
		io_uring_prep_fsync(sqe, op->fd, IORING_FSYNC_DATASYNC);
		break;
	case IO_ALLOCATE:
		io_uring_prep_fallocate(sqe, op->fd, 0, (off_t)op->off, (off_t)op->iov[0].iov_len);
		break;
	case IO_OPEN:
		io_uring_prep_openat(sqe, AT_FDCWD, op->iov[0].iov_base, (int)op->off, 0);
		break;
	}
}

/* One operation, waited for: only before the ring serves. */
static int ring_try(struct io_uring *ring, struct io_op *op)
{
	struct __kernel_timespec timeout = {.tv_sec = 5};
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	struct io_uring_cqe *cqe;
	int r;

	ring_prep(sqe, op);
	r = io_uring_submit(ring);
	if (r < 0)
		return r;
	do
		r = io_uring_wait_cqe_timeout(ring, &cqe, &timeout);
	while (r == -EINTR);
	if (r < 0)
		return r;
	r = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return r;
}

/* A ring that was set up may still refuse single operations: try each kind once on a file of our own. */
static int ring_try_all(struct io_uring *ring, char why[URING_WHY_MAX])
{
	static const struct {
		enum io_kind kind;
		const char *step;
		int res;
	} steps[] = {
		{IO_WRITE, "io_uring write", 8},
		{IO_DATASYNC, "io_uring fsync", 0},
		{IO_READ, "io_uring read", 8},
	};
	char bytes[8] = "kvpool";
	int fd = memfd_create("kvpoold-ring", MFD_CLOEXEC), r = 0;

	if (fd < 0)
		return 0; /* nothing to try on; the first real operation will tell */
	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]) && r == 0; i++) {
		struct io_op op = {
			.kind = steps[i].kind, .fd = fd, .own.n_iov = 1, .own.iov[0] = {bytes, sizeof(bytes)}};

		r = (int)FAULT_INT("io.ring.try", ring_try(ring, &op));
		r = r < 0 ? r : r == steps[i].res ? 0 : -EIO;
		if (r < 0)
			uring_explain(-r, steps[i].step, why);
	}
	close(fd);
	return r;
}

int io_ring_open(struct io_ring **result, unsigned depth, int *lock_fd, char why[URING_WHY_MAX])
{
	struct io_ring *ring = calloc(1, sizeof(*ring));
	int r;

	*result = NULL;
	if (!ring || !(ring->slots = calloc(depth, sizeof(*ring->slots)))) {
		free(ring);
		snprintf(why, URING_WHY_MAX, "out of memory");
		return -ENOMEM;
	}
	r = uring_open(&ring->ring, depth, 2 * depth, why);
	if (r == 0) {
		r = ring_try_all(&ring->ring, why);
		if (r < 0)
			io_uring_queue_exit(&ring->ring);
	}
	if (r < 0) {
		free(ring->slots);
		free(ring);
		return r;
	}
	ring->depth = depth;
	for (unsigned i = depth; i-- > 0;) {
		ring->slots[i].next_free = ring->free_slot;
		ring->free_slot = i + 1;
	}
	if (*lock_fd >= 0 && io_uring_register_files(&ring->ring, lock_fd, 1) == 0) {
		close(*lock_fd);
		*lock_fd = -1;
	}
	*result = ring;
	return 0;
}

void io_ring_close(struct io_ring *ring)
{
	if (!ring)
		return;
	/* the ring itself is taken down in the background; the lock file's lock is to fall now */
	io_uring_unregister_files(&ring->ring);
	io_uring_queue_exit(&ring->ring);
	free(ring->slots);
	free(ring);
}

int io_ring_fd(const struct io_ring *ring)
{
	return ring->ring.ring_fd;
}

static void ring_free_slot(struct io_ring *ring, unsigned i)
{
	ring->slots[i].op = NULL;
	ring->slots[i].generation++;
	ring->slots[i].next_free = ring->free_slot;
	ring->free_slot = i + 1;
}

int io_ring_push(struct io_ring *ring)
{
	int r = (int)FAULT_INT("io.ring.submit", 0);

	if (r == 0)
		r = io_uring_submit(&ring->ring);
	/* EAGAIN, EBUSY: the kernel is short of memory; the entries stay where they are and go with a later call */
	return r >= 0 || r == -EAGAIN || r == -EBUSY || r == -EINTR ? 0 : r;
}

bool io_ring_waits(const struct io_ring *ring)
{
	return io_uring_sq_ready(&ring->ring) != 0;
}

int io_ring_start(struct io_ring *ring, struct io_op *op)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->ring);
	unsigned i = ring->free_slot - 1;

	assert(sqe && ring->free_slot); /* io.c keeps the count */
	ring->free_slot = ring->slots[i].next_free;
	ring->slots[i].op = op;
	ring_prep(sqe, op);
	io_uring_sqe_set_data64(sqe, (uint64_t)i << 32 | ring->slots[i].generation);
	return io_ring_push(ring);
}

static struct io_op *ring_op(struct io_ring *ring, uint64_t data)
{
	uint32_t i = (uint32_t)(data >> 32);
	struct io_op *op;

	if (i >= ring->depth || ring->slots[i].generation != (uint32_t)data)
		return NULL;
	op = ring->slots[i].op;
	if (op)
		ring_free_slot(ring, i);
	return op;
}

/* Entries lie in two stages: flushed to the kernel's queue but not consumed, and not even flushed. */
struct io_op *io_ring_take_back(struct io_ring *ring)
{
	struct io_uring_sq *sq = &ring->ring.sq;
	unsigned head = __atomic_load_n(sq->khead, __ATOMIC_ACQUIRE), tail = *sq->ktail;
	struct io_op *op = NULL;

	for (; !op && head != tail; head++)
		op = ring_op(ring, sq->sqes[sq->array[head & *sq->kring_mask]].user_data);
	for (head = sq->sqe_head; !op && head != sq->sqe_tail; head++)
		op = ring_op(ring, sq->sqes[head & *sq->kring_mask].user_data);
	return op; /* its slot is free now: the next call passes over it */
}

struct io_op *io_ring_ended(struct io_ring *ring)
{
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&ring->ring, &cqe) == 0) {
		struct io_op *op = ring_op(ring, cqe->user_data);
		int res = cqe->res;

		io_uring_cqe_seen(&ring->ring, cqe);
		if (op) {
			op->own.res = FAULT_INT("io.ring", res);
			return op;
		}
	}
	return NULL;
}
