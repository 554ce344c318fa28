/*
 * io_memory.h - memory that transfers are made from and to again and again, which rings may keep pinned (fixed buffers)
 *
 * A transfer of pinned memory spares the kernel the work of finding and holding its pages each time: on 4k pages more
 * work than all the rest of it.  The owners of memory say here where it lies (slabs, the headers of a store's
 * transfers); each ring pins a piece of it when an operation first touches it, as far as the locked-memory limit goes,
 * and does without otherwise.  What a ring has pinned stays allocated, and is what its transfers see, whatever is
 * punched or unmapped meanwhile: so memory is taken back here first.
 *
 * All calls from any thread.  None waits for a transfer.
 */
#ifndef KVPOOL_IO_MEMORY_H
#define KVPOOL_IO_MEMORY_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "uring.h"

/** io_memory_lend() - @base, mapped for reading and writing, may be pinned. Out of memory: it never will be. */
void io_memory_lend(void *base, uint64_t bytes);
/** io_memory_take_back() - no transfer is under way in it any more, and none begins: no page of it is pinned when this
 *  returns.  Without effect where nothing was lent. */
void io_memory_take_back(void *base);
/** io_memory_pinned() - bytes, by all rings together */
uint64_t io_memory_pinned(void);

/* ---- for io_ring.c ---- */

struct io_piece {
	uintptr_t base, end;
	int index; /* in the ring's table; -1: the kernel would not have it */
};

/* What one ring has pinned. */
struct io_buffers {
	struct io_buffers *next;
	struct io_uring *ring; /* NULL: it takes none */
	pthread_mutex_t lock; /* of what follows */
	struct io_piece *pieces; /* by base */
	unsigned n, room;
	uint8_t *used; /* of each index: is it? */
	bool full; /* the limit is reached; asked again when something was taken back */
	bool off; /* a transfer of pinned memory was refused: none any more */
};

void io_buffers_open(struct io_buffers *buffers, struct io_uring *ring);
/** io_buffers_close() - before the ring goes */
void io_buffers_close(struct io_buffers *buffers);
/** io_buffers_find() - Return: index of the buffer that holds all of it, pinned just now if need be; -1: none. */
int io_buffers_find(struct io_buffers *buffers, const void *base, uint64_t bytes);
/** io_buffers_refused() - the kernel does not do it with these */
void io_buffers_refused(struct io_buffers *buffers, int err);

#endif
