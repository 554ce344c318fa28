/*
 * io_ring.c - operations by io_uring
 *
 * The kernel is given slot, part and generation, never a pointer.  An operation has one part, or, where its memory is
 * pinned (io_memory.h), one for each piece of it, for no kernel of today takes pieces of several pinned buffers at
 * once; they lie side by side on the disk and are submitted together.  There are entries for two parts of each slot, so
 * neither of the ring's queues can overflow.
 *
 * Entries are only queued by io_ring_start(): one system call, io_ring_push() or io_ring_sleep(), hands over many.
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

#define RING_PARTS 2 /* as an operation has pieces of memory */
#define RING_ASKED UINT64_MAX /* user_data of the read that ends when somebody raises the caller's event */

struct io_ring_slot {
	struct io_op *op; /* NULL: free */
	uint32_t generation;
	uint32_t next_free;
	bool fixed; /* its memory is pinned */
	unsigned n_parts, n_left; /* n_left: not ended yet */
	unsigned taken; /* bit for each part that was taken back */
	int res[RING_PARTS];
};

struct io_ring {
	struct io_uring ring;
	struct io_ring_slot *slots;
	struct io_buffers buffers;
	unsigned depth, free_slot; /* free_slot: index + 1; 0: none */
	bool ask_armed;
};

static uint64_t ask_count; /* what that read reads; nobody looks at it, and it outlives every ring */

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
	case IO_WORK: /* never gets here */
		io_uring_prep_nop(sqe);
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
	r = uring_open(&ring->ring, RING_PARTS * depth + 1, 2 * (RING_PARTS * depth + 1), why);
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
	io_buffers_open(&ring->buffers, &ring->ring);
	*result = ring;
	return 0;
}

void io_ring_close(struct io_ring *ring)
{
	if (!ring)
		return;
	/* the ring itself is taken down in the background; the lock file's lock is to fall now */
	io_uring_unregister_files(&ring->ring);
	io_buffers_close(&ring->buffers);
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

/* Hand over what is queued. @wait: and sleep until something has ended. */
static int ring_enter(struct io_ring *ring, bool wait)
{
	int r = (int)FAULT_INT("io.ring.submit", 0);

	if (r == 0)
		r = wait ? io_uring_submit_and_wait(&ring->ring, 1) : io_uring_submit(&ring->ring);
	/* EAGAIN, EBUSY: the kernel is short of memory; the entries stay where they are and go with a later call */
	return r >= 0 || r == -EAGAIN || r == -EBUSY || r == -EINTR ? 0 : r;
}

int io_ring_push(struct io_ring *ring)
{
	return ring_enter(ring, false);
}

int io_ring_sleep(struct io_ring *ring, int ask_fd)
{
	struct io_uring_sqe *sqe = ring->ask_armed ? NULL : io_uring_get_sqe(&ring->ring);

	if (sqe) {
		io_uring_prep_read(sqe, ask_fd, &ask_count, sizeof(ask_count), 0);
		io_uring_sqe_set_data64(sqe, RING_ASKED);
		ring->ask_armed = true;
	}
	return ring_enter(ring, true);
}

bool io_ring_waits(const struct io_ring *ring)
{
	return io_uring_sq_ready(&ring->ring) != 0;
}

static struct io_uring_sqe *ring_sqe(struct io_ring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->ring);

	assert(sqe); /* io.c keeps the count */
	return sqe;
}

static void ring_mark(const struct io_ring *ring, struct io_uring_sqe *sqe, unsigned i, unsigned part)
{
	io_uring_sqe_set_data64(sqe, (uint64_t)i << 33 | (uint64_t)part << 32 | ring->slots[i].generation);
}

/* Return: false: its memory is not pinned, nothing was queued. */
static bool ring_start_fixed(struct io_ring *ring, unsigned i, const struct io_op *op)
{
	uint64_t off = op->off + op->own.moved;
	int index[RING_PARTS];

	if ((op->kind != IO_READ && op->kind != IO_WRITE) || !op->own.n_iov)
		return false;
	for (int k = 0; k < op->own.n_iov; k++) {
		index[k] = io_buffers_find(&ring->buffers, op->own.iov[k].iov_base, op->own.iov[k].iov_len);
		if (index[k] < 0)
			return false;
	}
	for (int n = 0; n < op->own.n_iov; n++) {
		struct io_uring_sqe *sqe = ring_sqe(ring);
		int k = op->own.backward ? op->own.n_iov - 1 - n : n;
		struct iovec iov = op->own.iov[k];
		uint64_t at = k ? off + op->own.iov[0].iov_len : off;

		if (op->kind == IO_READ)
			io_uring_prep_read_fixed(sqe, op->fd, iov.iov_base, (unsigned)iov.iov_len, at, index[k]);
		else
			io_uring_prep_write_fixed(sqe, op->fd, iov.iov_base, (unsigned)iov.iov_len, at, index[k]);
		ring_mark(ring, sqe, i, (unsigned)k);
	}
	return true;
}

void io_ring_start(struct io_ring *ring, struct io_op *op)
{
	unsigned i = ring->free_slot - 1;
	struct io_ring_slot *slot = &ring->slots[i];

	assert(ring->free_slot); /* io.c keeps the count */
	ring->free_slot = slot->next_free;
	slot->op = op;
	slot->taken = 0;
	slot->fixed = ring_start_fixed(ring, i, op);
	slot->n_left = slot->n_parts = slot->fixed ? (unsigned)op->own.n_iov : 1;
	if (!slot->fixed) {
		struct io_uring_sqe *sqe = ring_sqe(ring);

		ring_prep(sqe, op);
		ring_mark(ring, sqe, i, 0);
	}
}

/* What one vectored call would have said. */
static int slot_result(struct io_ring *ring, const struct io_ring_slot *slot)
{
	int sum = 0;

	for (unsigned k = 0; k < slot->n_parts; k++) {
		int res = slot->res[k];

		if (slot->fixed && (res == -EFAULT || res == -EINVAL || res == -EOPNOTSUPP)) {
			io_buffers_refused(&ring->buffers, -res);
			return -EINTR; /* again, without */
		}
		if (res < 0)
			return res;
		sum += res;
		if ((size_t)res < slot->op->own.iov[k].iov_len)
			break; /* what lies behind a gap does not count */
	}
	return sum;
}

static struct io_ring_slot *ring_slot(struct io_ring *ring, uint64_t data)
{
	uint64_t i = data >> 33;

	if (i >= ring->depth || ring->slots[i].generation != (uint32_t)data || !ring->slots[i].op)
		return NULL;
	return &ring->slots[i];
}

/* One part has ended with @res. Return: the operation, ended, own.res set; NULL: not yet. */
static struct io_op *ring_part_ended(struct io_ring *ring, uint64_t data, int res)
{
	struct io_ring_slot *slot = ring_slot(ring, data);
	struct io_op *op;

	if (!slot)
		return NULL;
	slot->res[data >> 32 & 1] = res;
	if (--slot->n_left)
		return NULL;
	op = slot->op;
	op->own.res = FAULT_INT("io.ring", slot_result(ring, slot));
	ring_free_slot(ring, (unsigned)(slot - ring->slots));
	return op;
}

/* A part the kernel never got. Return: the operation, if it has no part of it; else it ends later, and is tried
   again. */
static struct io_op *ring_part_taken(struct io_ring *ring, uint64_t data)
{
	struct io_ring_slot *slot = ring_slot(ring, data);
	unsigned part = data >> 32 & 1;
	struct io_op *op;

	if (!slot || slot->taken & 1u << part)
		return NULL;
	slot->taken |= 1u << part;
	slot->res[part] = -EAGAIN;
	if (--slot->n_left)
		return NULL;
	op = slot->op;
	ring_free_slot(ring, (unsigned)(slot - ring->slots));
	return op;
}

/* Entries lie in two stages: flushed to the kernel's queue but not consumed, and not even flushed. */
struct io_op *io_ring_take_back(struct io_ring *ring)
{
	struct io_uring_sq *sq = &ring->ring.sq;
	unsigned head = __atomic_load_n(sq->khead, __ATOMIC_ACQUIRE), tail = *sq->ktail;
	struct io_op *op = NULL;

	for (; !op && head != tail; head++)
		op = ring_part_taken(ring, sq->sqes[sq->array[head & *sq->kring_mask]].user_data);
	for (head = sq->sqe_head; !op && head != sq->sqe_tail; head++)
		op = ring_part_taken(ring, sq->sqes[head & *sq->kring_mask].user_data);
	return op; /* its slot is free now: the next call passes over it */
}

struct io_op *io_ring_ended(struct io_ring *ring)
{
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&ring->ring, &cqe) == 0) {
		uint64_t data = cqe->user_data;
		struct io_op *op;
		int res = cqe->res;

		io_uring_cqe_seen(&ring->ring, cqe);
		if (data == RING_ASKED) {
			ring->ask_armed = false;
			continue;
		}
		op = ring_part_ended(ring, data, res);
		if (op)
			return op;
	}
	return NULL;
}
