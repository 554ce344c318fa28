/*
 * io_worker.c - a thread that has an io to itself: submits, reaps, and works out what before() and after() are for
 *
 * Queues under one lock: asked, from the caller, reads before the rest, and ended, back to it.  Each side is woken by
 * an eventfd, and only when it sleeps or has not been woken yet, so that under load hardly a system call is spent on
 * it.  The thread sleeps in the ring itself, which reads its eventfd: one system call hands over, sleeps and sees what
 * has ended.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "guard.h"
#include "io_engine.h"

struct io_worker {
	struct io *io; /* the thread's */
	pthread_t thread;
	int ask_fd, ended_fd;
	struct io_queue fresh; /* the thread's: ended, not handed over yet */
	uint64_t fresh_bytes;
	pthread_mutex_t lock; /* for what follows */
	struct io_queue reads, rest, ended;
	bool asleep; /* the thread is, or is about to */
	bool told; /* ended_fd is readable */
	bool stop;
	_Atomic bool uring;
};

#define HAND_OVER_BYTES (256u << 10) /* so much is worth waking the caller for, though more is about to end */

static void eventfd_raise(int fd)
{
	uint64_t one = 1;

	while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
		continue;
}

static void eventfd_clear(int fd)
{
	uint64_t count;

	while (read(fd, &count, sizeof(count)) < 0 && errno == EINTR)
		continue;
}

/* ---- the thread ---- */

static void worker_op_ended(void *owner, struct io_op *op)
{
	struct io_worker *worker = owner;

	io_queue_push(&worker->fresh, op);
	worker->fresh_bytes += op->own.total;
}

static void worker_hand_over(struct io_worker *worker)
{
	atomic_store_explicit(&worker->uring, io_is_uring(worker->io), memory_order_relaxed);
	if (!worker->fresh.head)
		return;
	worker->fresh_bytes = 0;
	pthread_mutex_lock(&worker->lock);
	for (struct io_op *op; (op = io_queue_pop(&worker->fresh));)
		io_queue_push(&worker->ended, op);
	if (!worker->told)
		eventfd_raise(worker->ended_fd);
	worker->told = true;
	pthread_mutex_unlock(&worker->lock);
}

/* What is asked for next, or NULL; *@more: and there is more of it. Return: false: stop. */
static bool worker_next(struct io_worker *worker, struct io_op **op, bool *more)
{
	bool go_on;

	pthread_mutex_lock(&worker->lock);
	worker->asleep = false;
	*op = io_queue_pop(worker->reads.head ? &worker->reads : &worker->rest);
	*more = worker->reads.head || worker->rest.head;
	go_on = *op || !worker->stop;
	pthread_mutex_unlock(&worker->lock);
	return go_on;
}

/* Who asks from now on wakes us. Return: false: somebody has asked already. */
static bool worker_may_sleep(struct io_worker *worker)
{
	bool may;

	pthread_mutex_lock(&worker->lock);
	worker->asleep = may = !worker->reads.head && !worker->rest.head && !worker->stop;
	pthread_mutex_unlock(&worker->lock);
	return may;
}

/* Between two checksums the device gets the next operations, what has ended is seen, and what was asked meanwhile,
   reads first: nobody waits for a row of checksums. */
static void *worker_run(void *owner)
{
	struct io_worker *worker = owner;
	struct io_op *op;
	bool more;

	while (worker_next(worker, &op, &more)) {
		bool over, next_over;

		if (op)
			io_add(worker->io, op);
		over = io_collect(worker->io);
		if (over || more)
			io_push(worker->io, !more);
		if (over)
			io_finish(worker->io);
		next_over = io_collect(worker->io);
		if (!next_over || worker->fresh_bytes >= HAND_OVER_BYTES)
			worker_hand_over(worker);
		if (!op && !over && !next_over && worker_may_sleep(worker))
			io_sleep(worker->io, worker->ask_fd);
	}
	return NULL;
}

/* ---- the caller ---- */

/* No signal is for the thread: they go to who waits for them. */
static int worker_start(struct io_worker *worker, const cpu_set_t *cpus)
{
	sigset_t mask, before;
	int r;

	guard_thread_mask(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, &before);
	r = -pthread_create(&worker->thread, NULL, worker_run, worker);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r < 0)
		return r;
	pthread_setname_np(worker->thread, "kvpoold-io");
	if (cpus)
		pthread_setaffinity_np(worker->thread, sizeof(*cpus), cpus); /* a wish: refused, it runs anywhere */
	return 0;
}

static void worker_free(struct io_worker *worker)
{
	if (worker->ask_fd >= 0)
		close(worker->ask_fd);
	if (worker->ended_fd >= 0)
		close(worker->ended_fd);
	pthread_mutex_destroy(&worker->lock);
	free(worker);
}

int io_worker_open(struct io_worker **result, struct io *io, const cpu_set_t *cpus)
{
	struct io_worker *worker = calloc(1, sizeof(*worker));
	int r;

	*result = NULL;
	if (!worker)
		return -ENOMEM;
	pthread_mutex_init(&worker->lock, NULL);
	worker->io = io;
	worker->uring = io_is_uring(io);
	worker->ask_fd = eventfd(0, EFD_CLOEXEC); /* io_uring does not wait for what does not block */
	worker->ended_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	io_hand_over(io, worker_op_ended, worker);
	r = worker->ask_fd < 0 || worker->ended_fd < 0 ? -errno : worker_start(worker, cpus);
	if (r < 0) {
		io_hand_over(io, NULL, NULL);
		worker_free(worker);
		return r;
	}
	*result = worker;
	return 0;
}

void io_worker_close(struct io_worker *worker)
{
	pthread_mutex_lock(&worker->lock);
	assert(!worker->reads.head && !worker->rest.head);
	worker->stop = true;
	pthread_mutex_unlock(&worker->lock);
	eventfd_raise(worker->ask_fd);
	pthread_join(worker->thread, NULL);
	io_hand_over(worker->io, NULL, NULL);
	worker_free(worker);
}

int io_worker_fd(const struct io_worker *worker)
{
	return worker->ended_fd;
}

static void worker_ask(struct io_worker *worker, struct io_op *op)
{
	bool wake;

	pthread_mutex_lock(&worker->lock);
	if (op)
		io_queue_push(op->kind == IO_READ ? &worker->reads : &worker->rest, op);
	wake = worker->asleep;
	worker->asleep = false;
	pthread_mutex_unlock(&worker->lock);
	if (wake)
		eventfd_raise(worker->ask_fd);
}

void io_worker_submit(struct io_worker *worker, struct io_op *op)
{
	worker_ask(worker, op);
}

void io_worker_poke(struct io_worker *worker)
{
	worker_ask(worker, NULL);
}

struct io_queue io_worker_ended(struct io_worker *worker)
{
	struct io_queue ended;

	pthread_mutex_lock(&worker->lock);
	ended = worker->ended;
	worker->ended = (struct io_queue){NULL, NULL};
	if (worker->told)
		eventfd_clear(worker->ended_fd);
	worker->told = false;
	pthread_mutex_unlock(&worker->lock);
	return ended;
}

bool io_worker_is_uring(const struct io_worker *worker)
{
	return atomic_load_explicit(&worker->uring, memory_order_relaxed);
}
