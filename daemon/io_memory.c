/*
 * io_memory.c - see io_memory.h
 *
 * Two locks: of the list of what is lent, never held over a system call, and of the list of rings, which keeps a ring
 * there while something is taken back from it; each ring has a third one, for what it has pinned.  Order: rings, ring,
 * lent. Who pins looks into the list under the ring's lock; who takes back takes it off the list first, then goes
 * through the rings: so what was pinned just before is found there.
 */
#include "io_memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "log.h"

#define BUFFERS_MAX 16384u /* as the kernel allows */
#define PIECE_BYTES \
	(256ull << 20) /* pinned at once: so long the ring stands still, some 10 ms with 4k pages; 1 GiB at most */

struct range {
	uintptr_t base;
	uint64_t bytes;
};

static pthread_mutex_t lent_lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *lent;
static unsigned n_lent, lent_room;

static pthread_mutex_t rings_lock = PTHREAD_MUTEX_INITIALIZER;
static struct io_buffers *rings;
static _Atomic uint64_t pinned;
static atomic_bool said;

uint64_t io_memory_pinned(void)
{
	return atomic_load_explicit(&pinned, memory_order_relaxed);
}

/* ---- what is lent ---- */

void io_memory_lend(void *base, uint64_t bytes)
{
	pthread_mutex_lock(&lent_lock);
	if (n_lent == lent_room) {
		unsigned room = lent_room ? 2 * lent_room : 64;
		struct range *more = realloc(lent, room * sizeof(*more));

		if (more) {
			lent = more;
			lent_room = room;
		}
	}
	if (n_lent < lent_room)
		lent[n_lent++] = (struct range){(uintptr_t)base, bytes};
	pthread_mutex_unlock(&lent_lock);
}

/* Return: its bytes; 0: it was not lent. */
static uint64_t lent_remove(uintptr_t base)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&lent_lock);
	for (unsigned i = 0; i < n_lent && !bytes; i++)
		if (lent[i].base == base) {
			bytes = lent[i].bytes;
			lent[i] = lent[--n_lent];
		}
	if (!n_lent) {
		free(lent);
		lent = NULL;
		lent_room = 0;
	}
	pthread_mutex_unlock(&lent_lock);
	return bytes;
}

/* The piece of lent memory in which @at lies. */
static bool lent_piece(uintptr_t at, struct io_piece *piece)
{
	bool found = false;

	pthread_mutex_lock(&lent_lock);
	for (unsigned i = 0; i < n_lent && !found; i++) {
		uint64_t in = at - lent[i].base;

		if (at < lent[i].base || in >= lent[i].bytes)
			continue;
		found = true;
		piece->base = lent[i].base + in / PIECE_BYTES * PIECE_BYTES;
		piece->end = lent[i].base + lent[i].bytes;
		if (piece->end - piece->base > PIECE_BYTES)
			piece->end = piece->base + PIECE_BYTES;
	}
	pthread_mutex_unlock(&lent_lock);
	return found;
}

/* ---- what a ring has pinned ---- */

static void say_refused(int err)
{
	char why[URING_WHY_MAX];

	if (atomic_exchange(&said, true))
		return;
	uring_explain(err, "pinning memory for disk I/O", why);
	log_info("%s; going on with %" PRIu64 " bytes pinned, the rest costs a little more CPU", why,
		io_memory_pinned());
}

void io_buffers_open(struct io_buffers *buffers, struct io_uring *ring)
{
	memset(buffers, 0, sizeof(*buffers));
	pthread_mutex_init(&buffers->lock, NULL);
	buffers->used = calloc(BUFFERS_MAX, 1);
	if (!buffers->used || io_uring_register_buffers_sparse(ring, BUFFERS_MAX) < 0)
		return; /* an older kernel, or refused */
	buffers->ring = ring;
	pthread_mutex_lock(&rings_lock);
	buffers->next = rings;
	rings = buffers;
	pthread_mutex_unlock(&rings_lock);
}

void io_buffers_close(struct io_buffers *buffers)
{
	struct io_buffers **at = &rings;

	pthread_mutex_lock(&rings_lock);
	while (*at && *at != buffers)
		at = &(*at)->next;
	if (*at)
		*at = buffers->next;
	pthread_mutex_unlock(&rings_lock);
	/* now, not when the kernel gets to it: these bytes are locked */
	if (buffers->ring)
		io_uring_unregister_buffers(buffers->ring);
	for (unsigned i = 0; i < buffers->n; i++)
		if (buffers->pieces[i].index >= 0)
			atomic_fetch_sub(&pinned, buffers->pieces[i].end - buffers->pieces[i].base);
	free(buffers->pieces);
	free(buffers->used);
	pthread_mutex_destroy(&buffers->lock);
}

/* Return: how many pieces begin at @at or before. */
static unsigned piece_after(const struct io_buffers *buffers, uintptr_t at)
{
	unsigned low = 0, high = buffers->n;

	while (low < high) {
		unsigned middle = (low + high) / 2;

		if (buffers->pieces[middle].base <= at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static int buffers_update(struct io_buffers *buffers, int index, void *base, uint64_t bytes)
{
	struct iovec iov = {base, bytes};
	__u64 tag = 0;
	int r = io_uring_register_buffers_update_tag(buffers->ring, (unsigned)index, &iov, &tag, 1);

	return r < 0 ? r : r == 1 ? 0 : -EINVAL;
}

/* Return: an index nothing has; -1: none. */
static int buffers_index(const struct io_buffers *buffers)
{
	const uint8_t *free_one = memchr(buffers->used, 0, BUFFERS_MAX);

	return free_one ? (int)(free_one - buffers->used) : -1;
}

/* Return: is the piece there now? A piece the kernel would not have is remembered as such. */
static bool buffers_pin(struct io_buffers *buffers, struct io_piece piece)
{
	unsigned i = piece_after(buffers, piece.base);
	int r;

	if (buffers->n == buffers->room) {
		unsigned room = buffers->room ? 2 * buffers->room : 64;
		struct io_piece *more = realloc(buffers->pieces, room * sizeof(*more));

		if (!more)
			return false;
		buffers->pieces = more;
		buffers->room = room;
	}
	piece.index = buffers_index(buffers);
	if (piece.index < 0)
		return false;
	r = (int)FAULT_INT("io.pin", 0);
	if (r == 0)
		r = buffers_update(buffers, piece.index, (void *)piece.base, piece.end - piece.base);
	if (r < 0)
		say_refused(-r);
	if (r == -ENOMEM) {
		buffers->full = true;
		return false;
	}
	if (r < 0) {
		piece.index = -1;
	} else {
		buffers->used[piece.index] = true;
		atomic_fetch_add(&pinned, piece.end - piece.base);
	}
	memmove(&buffers->pieces[i + 1], &buffers->pieces[i], (buffers->n++ - i) * sizeof(*buffers->pieces));
	buffers->pieces[i] = piece;
	return true;
}

int io_buffers_find(struct io_buffers *buffers, const void *base, uint64_t bytes)
{
	uintptr_t at = (uintptr_t)base;
	struct io_piece piece;
	int index = -1;

	if (!buffers->ring)
		return -1;
	pthread_mutex_lock(&buffers->lock);
	for (unsigned again = 0; again < 2 && !buffers->off; again++) {
		unsigned i = piece_after(buffers, at);

		if (i && at < buffers->pieces[i - 1].end) {
			if (bytes <= buffers->pieces[i - 1].end - at)
				index = buffers->pieces[i - 1].index;
			break;
		}
		if (again || buffers->full || !lent_piece(at, &piece) || !buffers_pin(buffers, piece))
			break;
	}
	pthread_mutex_unlock(&buffers->lock);
	return index;
}

void io_buffers_refused(struct io_buffers *buffers, int err)
{
	pthread_mutex_lock(&buffers->lock);
	buffers->off = true;
	pthread_mutex_unlock(&buffers->lock);
	say_refused(err);
}

static void buffers_unpin(struct io_buffers *buffers, uintptr_t base, uint64_t bytes)
{
	unsigned first, i;

	pthread_mutex_lock(&buffers->lock);
	first = piece_after(buffers, base - 1);
	for (i = first; i < buffers->n && buffers->pieces[i].base < base + bytes; i++) {
		const struct io_piece *piece = &buffers->pieces[i];

		if (piece->index < 0)
			continue;
		if (buffers_update(buffers, piece->index, NULL, 0) < 0)
			continue; /* cannot be; its index is not used again */
		buffers->used[piece->index] = false;
		buffers->full = false;
		atomic_fetch_sub(&pinned, piece->end - piece->base);
	}
	if (i > first) /* else there may be no array at all */
		memmove(&buffers->pieces[first], &buffers->pieces[i], (buffers->n - i) * sizeof(*buffers->pieces));
	buffers->n -= i - first;
	pthread_mutex_unlock(&buffers->lock);
}

void io_memory_take_back(void *base)
{
	uint64_t bytes = lent_remove((uintptr_t)base);

	if (!bytes)
		return;
	pthread_mutex_lock(&rings_lock);
	for (struct io_buffers *buffers = rings; buffers; buffers = buffers->next)
		buffers_unpin(buffers, (uintptr_t)base, bytes);
	pthread_mutex_unlock(&rings_lock);
}
