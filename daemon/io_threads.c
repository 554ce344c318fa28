/*
 * io_threads.c - the twin: operations by threads with preadv() and pwritev()
 *
 * The owner's thread puts operations on one list and takes them from another; both lie under one mutex.  The threads
 * block all signals but those of a fault, touch nothing but the operation in hand, and never outlive io_twin_close().
 */
#include "io_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "guard.h"

struct io_twin {
	pthread_mutex_t mutex;
	pthread_cond_t work;
	struct io_op *todo_head, *todo_tail;
	struct io_op *ended_head, *ended_tail;
	bool stop;
	bool told; /* event_fd is readable */
	int event_fd;
	unsigned n_threads;
	pthread_t threads[];
};

static void list_push(struct io_op **head, struct io_op **tail, struct io_op *op)
{
	op->own.next = NULL;
	if (*head)
		(*tail)->own.next = op;
	else
		*head = op;
	*tail = op;
}

static struct io_op *list_pop(struct io_op **head)
{
	struct io_op *op = *head;

	if (op)
		*head = op->own.next;
	return op;
}

static int64_t twin_do(const struct io_op *op)
{
	off_t off = (off_t)(op->off + op->own.moved);
	ssize_t r = -1;

	switch (op->kind) {
	case IO_READ:
		r = preadv(op->fd, op->own.iov, op->own.n_iov, off);
		break;
	case IO_WRITE:
		r = pwritev(op->fd, op->own.iov, op->own.n_iov, off);
		break;
	case IO_DATASYNC:
		r = fdatasync(op->fd);
		break;
	case IO_WORK: /* never gets here */
		return 0;
	case IO_ALLOCATE:
		r = fallocate(op->fd, 0, (off_t)op->off, (off_t)op->iov[0].iov_len);
		break;
	case IO_OPEN:
		r = open(op->iov[0].iov_base, (int)op->off);
		break;
	}
	return r < 0 ? -errno : r;
}

static void *twin_thread(void *arg)
{
	struct io_twin *twin = arg;

	pthread_mutex_lock(&twin->mutex);
	for (;;) {
		struct io_op *op = list_pop(&twin->todo_head);
		uint64_t one = 1;

		if (!op && twin->stop)
			break;
		if (!op) {
			pthread_cond_wait(&twin->work, &twin->mutex);
			continue;
		}
		pthread_mutex_unlock(&twin->mutex);
		op->own.res = twin_do(op);
		pthread_mutex_lock(&twin->mutex);
		list_push(&twin->ended_head, &twin->ended_tail, op);
		if (!twin->told)
			twin->told = write(twin->event_fd, &one, sizeof(one)) > 0;
	}
	pthread_mutex_unlock(&twin->mutex);
	return NULL;
}

static int twin_start_threads(struct io_twin *twin, unsigned threads)
{
	sigset_t mask, old;
	int r = 0;

	guard_thread_mask(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, &old);
	while (twin->n_threads < threads && r == 0) {
		r = pthread_create(&twin->threads[twin->n_threads], NULL, twin_thread, twin);
		if (r == 0)
			pthread_setname_np(twin->threads[twin->n_threads++], "kvpoold-io");
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return twin->n_threads ? 0 : -r;
}

int io_twin_open(struct io_twin **result, unsigned threads)
{
	struct io_twin *twin = calloc(1, sizeof(*twin) + threads * sizeof(pthread_t));
	int r;

	*result = NULL;
	if (!twin)
		return -ENOMEM;
	pthread_mutex_init(&twin->mutex, NULL);
	pthread_cond_init(&twin->work, NULL);
	twin->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = twin->event_fd < 0 ? -errno : twin_start_threads(twin, threads);
	if (r < 0) {
		io_twin_close(twin);
		return r;
	}
	*result = twin;
	return 0;
}

void io_twin_close(struct io_twin *twin)
{
	if (!twin)
		return;
	pthread_mutex_lock(&twin->mutex);
	twin->stop = true;
	pthread_cond_broadcast(&twin->work);
	pthread_mutex_unlock(&twin->mutex);
	for (unsigned i = 0; i < twin->n_threads; i++)
		pthread_join(twin->threads[i], NULL);
	if (twin->event_fd >= 0)
		close(twin->event_fd);
	pthread_cond_destroy(&twin->work);
	pthread_mutex_destroy(&twin->mutex);
	free(twin);
}

int io_twin_fd(const struct io_twin *twin)
{
	return twin->event_fd;
}

void io_twin_start(struct io_twin *twin, struct io_op *op)
{
	pthread_mutex_lock(&twin->mutex);
	list_push(&twin->todo_head, &twin->todo_tail, op);
	pthread_cond_signal(&twin->work);
	pthread_mutex_unlock(&twin->mutex);
}

struct io_op *io_twin_ended(struct io_twin *twin)
{
	struct io_op *op;
	uint64_t count;

	pthread_mutex_lock(&twin->mutex);
	op = list_pop(&twin->ended_head);
	if (!twin->ended_head && twin->told) /* list and event are emptied under the same lock: none is missed */
		twin->told = read(twin->event_fd, &count, sizeof(count)) < 0;
	pthread_mutex_unlock(&twin->mutex);
	return op;
}
