/*
 * io.c - see io.h
 *
 * An op waits in the queue of its kind, is with an engine ("started", at most as many as the engine does at once),
 * waits for a back-off, or has ended:
 *
 *	queue --io_start--> started --io_step--> over --io_finish--> ended (done())
 *	  ^                    |                          short, or EINTR: queue, at its head
 *	  +-------- delayed <--+                          EAGAIN: delayed until the timer, then queue
 *
 * Between "over" and the end lies what is worked out for an op (after()).  The next ones are started first: the device
 * is not to wait for that.
 *
 * Reads go first.  Writes leave a quarter of the places to reads, and no more than IO_WRITE_BYTES of them are under
 * way, fewer while somebody reads, so a read never waits for a queue of writes in the device; each 16th op is a write
 * if one waits, so that a stream of reads does not stop them for ever.
 *
 * Small operations that lie side by side and wait together are started together, in one place: the kernel makes one
 * request of what it is given at once, so the device is asked, and wakes us, once for all of them.  Blocks leave memory
 * from the end of their chain and are read from its beginning, so those that are read often lie one before the other:
 * then the last part of each is given first.
 *
 * The engine is the ring as long as it works.  What the ring refuses with an errno that may mean "not by io_uring" is
 * given to the threads as a second opinion; if they can do it, the ring is done with and the threads serve from then
 * on.
 *
 * wake_fd is an epoll of the ring, the threads' event and the back-off timer: it stays the same when the engine
 * changes.
 */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "fault.h"
#include "io_engine.h"
#include "log.h"
#include "loop.h"

#define IO_TRIES_MAX 24 /* with the back-offs below a little over a second */
#define IO_DIRECT_STEP 4096u /* where a short O_DIRECT transfer goes on: no file system we know asks for more */
#define IO_REAP_MAX 256 /* ops ended in one io_reap() */
#define IO_PUSH_BYTES (256u << 10) /* so much is worth a system call of its own */
#define IO_WRITE_BYTES (8u << 20) /* more at once makes no device faster that we know, and a read waits behind it */
#define IO_WRITE_BYTES_READ (2u << 20) /* while somebody reads: each MiB is a millisecond to wait at 1 GB/s */
#define IO_READ_NS 1000000000ull /* somebody does for so long after a read began: who reads once soon reads again */
#define IO_JOINED_MAX 32 /* operations that share the place of another one, all together */

struct io {
	struct io_worker *worker; /* has the io that does the work; this one only counts */
	struct io *inner;
	void (*ended)(void *owner, struct io_op *op); /* NULL: op->done() */
	void *ended_owner;
	struct io_ring *ring; /* may be there though no longer used */
	struct io_twin *twin;
	bool uring; /* the ring serves */
	int wake_fd, timer_fd, lock_fd;
	unsigned depth, n_threads;
	unsigned n_started, n_writes_started, n_in_flight;
	unsigned n_with_twin; /* of those started, and of those that joined them */
	unsigned n_joined; /* started in the place of another one: not in n_started */
	const struct io_op *last; /* started, not told to the kernel yet: the next one may share its place; or NULL */
	uint64_t join_off, join_end; /* what moves in that place */
	unsigned n_unpushed; /* of those started, that the kernel has not heard of */
	uint64_t unpushed_bytes, writing_bytes;
	uint64_t read_ns; /* when a read was started last */
	unsigned n_reads_in_row;
	uint64_t n_ended;
	bool timer_armed;
	struct io_queue reads, writes, delayed, over;
#ifdef KVP_FAULT
	struct io_queue hung; /* never end */
#endif
};

/* ---- queues ---- */

void io_queue_push(struct io_queue *queue, struct io_op *op)
{
	op->own.next = NULL;
	if (queue->head)
		queue->tail->own.next = op;
	else
		queue->head = op;
	queue->tail = op;
}

static void queue_push_head(struct io_queue *queue, struct io_op *op)
{
	op->own.next = queue->head;
	if (!queue->head)
		queue->tail = op;
	queue->head = op;
}

struct io_op *io_queue_pop(struct io_queue *queue)
{
	struct io_op *op = queue->head;

	if (op)
		queue->head = op->own.next;
	return op;
}

static struct io_queue *io_queue_of(struct io *io, const struct io_op *op)
{
	return op->kind == IO_READ ? &io->reads : &io->writes;
}

static unsigned io_places(const struct io *io)
{
	return io->uring ? io->depth : io->n_threads;
}

static bool io_moves(const struct io_op *op)
{
	return op->kind == IO_READ || op->kind == IO_WRITE;
}

/* The next one, if it lies right behind or before what was started last. */
static struct io_op *io_next_joined(struct io *io)
{
	const struct io_op *last = io->last;
	struct io_op *op = last ? io_queue_of(io, last)->head : NULL;

	if (!op || op->kind != last->kind || op->fd != last->fd || op->own.moved || io->n_joined == IO_JOINED_MAX ||
		io->join_end - io->join_off + op->own.total > IO_JOIN_BYTES)
		return NULL;
	op->own.backward = op->off + op->own.total == io->join_off;
	return op->own.backward || op->off == io->join_end ? io_queue_pop(io_queue_of(io, op)) : NULL;
}

static bool io_is_read(const struct io *io)
{
	return io->n_started > io->n_writes_started || loop_now() - io->read_ns < IO_READ_NS;
}

static bool io_write_may(const struct io *io)
{
	unsigned places = io_places(io);
	uint64_t most;

	if (!io->writes.head || io->n_writes_started >= places - places / 4)
		return false;
	if (!io->writing_bytes)
		return true;
	most = io_is_read(io) ? IO_WRITE_BYTES_READ : IO_WRITE_BYTES;
	return io->writing_bytes + io->writes.head->own.total <= most;
}

static struct io_op *io_next(struct io *io)
{
	unsigned places = io_places(io);
	bool write_may = io_write_may(io);

	if (io->n_started >= places)
		return NULL;
	if (io->reads.head && !(write_may && io->n_reads_in_row >= 15)) {
		io->n_reads_in_row++;
		return io_queue_pop(&io->reads);
	}
	if (!write_may)
		return NULL;
	io->n_reads_in_row = 0;
	return io_queue_pop(&io->writes);
}

/* ---- engines ---- */

static int io_watch(struct io *io, int fd)
{
	struct epoll_event event = {.events = EPOLLIN};

	return epoll_ctl(io->wake_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static int io_open_twin(struct io *io)
{
	int r;

	if (io->twin)
		return 0;
	r = io_twin_open(&io->twin, io->n_threads);
	if (r < 0)
		return r;
	r = io_watch(io, io_twin_fd(io->twin));
	if (r < 0) {
		io_twin_close(io->twin);
		io->twin = NULL;
	}
	return r;
}

static void io_give_to_twin(struct io *io, struct io_op *op)
{
	io->n_with_twin++;
	io_twin_start(io->twin, op);
}

/* From now on the threads serve, which are there; they also get what the ring's kernel side has not seen yet. */
static void io_leave_ring(struct io *io, int err)
{
	char why[URING_WHY_MAX];
	struct io_op *op;

	if (!io->uring)
		return;
	io->uring = false;
	io->last = NULL;
	while ((op = io_ring_take_back(io->ring)))
		io_give_to_twin(io, op);
	uring_explain(err, "io_uring operation", why);
	log_warn("disk I/O by %u threads from now on, not io_uring: %s", io->n_threads, why);
}

static void io_arm_timer(struct io *io, unsigned tries)
{
	struct itimerspec when = {.it_value.tv_nsec = 1000000L << (tries < 6 ? tries : 6)};

	if (io->timer_armed)
		return;
	io->timer_armed = timerfd_settime(io->timer_fd, 0, &when, NULL) == 0;
}

/* The ring takes nothing any more. */
static int io_rescue(struct io *io, int err)
{
	int r = io_open_twin(io);

	if (r == 0)
		io_leave_ring(io, err);
	return r;
}

/* What is left to move, as the engines want it. */
static void io_set_place(struct io_op *op)
{
	uint64_t skip = op->own.moved;

	op->own.n_iov = 0;
	for (int i = 0; i < op->n_iov; i++) {
		struct iovec part = op->iov[i];
		size_t n = skip < part.iov_len ? (size_t)skip : part.iov_len;

		skip -= n;
		part.iov_base = (char *)part.iov_base + n;
		part.iov_len -= n;
		if (part.iov_len)
			op->own.iov[op->own.n_iov++] = part;
	}
}

static void io_start(struct io *io, struct io_op *op, bool joined)
{
	op->own.joined = joined;
	op->own.backward &= joined;
	io->n_joined += joined;
	io->n_started += !joined;
	io->n_writes_started += !joined && op->kind != IO_READ;
	if (op->kind == IO_READ)
		io->read_ns = loop_now();
	io->writing_bytes += op->kind == IO_WRITE ? op->own.total : 0;
	io_set_place(op);
	if (!io->uring) {
		io_give_to_twin(io, op);
		return;
	}
	io->n_unpushed += !joined;
	io->unpushed_bytes += op->own.total - op->own.moved;
	if (!joined)
		io->join_off = io->join_end = op->off;
	if (op->own.backward)
		io->join_off = op->off;
	else
		io->join_end = op->off + op->own.total;
	io->last = io_moves(op) && !op->own.moved ? op : NULL;
	io_ring_start(io->ring, op);
}

/* It is with no engine any more. */
static void io_stop(struct io *io, const struct io_op *op)
{
	io->n_joined -= op->own.joined;
	io->n_started -= !op->own.joined;
	io->n_writes_started -= !op->own.joined && op->kind != IO_READ;
	io->writing_bytes -= op->kind == IO_WRITE ? op->own.total : 0;
}

/* What the ring said when it was given what is queued. */
static void io_pushed(struct io *io, int r)
{
	io->n_unpushed = 0;
	io->unpushed_bytes = 0;
	io->last = NULL;
	if (r == 0 && io_ring_waits(io->ring))
		io_arm_timer(io, 0);
	if (r < 0)
		r = io_rescue(io, -r);
	if (r < 0) /* no ring and no threads: the next turn tries again, what waits stays with the ring */
		io_arm_timer(io, 6);
}

void io_push(struct io *io, bool all)
{
	if (!io->uring || !io->n_unpushed)
		return;
	if (all || io->unpushed_bytes >= IO_PUSH_BYTES || io->n_unpushed == io->n_started)
		io_pushed(io, io_ring_push(io->ring));
}

static void io_start_more(struct io *io)
{
	struct io_op *op;

	for (;;) {
		if ((op = io_next_joined(io)))
			io_start(io, op, true);
		else if ((op = io_next(io)))
			io_start(io, op, false);
		else
			return;
	}
}

/* ---- what an engine said ---- */

void io_hand_over(struct io *io, void (*ended)(void *owner, struct io_op *op), void *owner)
{
	io->ended = ended;
	io->ended_owner = owner;
}

static void io_end(struct io *io, struct io_op *op, int64_t res)
{
	op->own.res = res;
	io_queue_push(&io->over, op);
}

bool io_finish(struct io *io)
{
	struct io_op *op = io_queue_pop(&io->over);

	if (!op)
		return false;
	io->n_in_flight--;
	io->n_ended++;
	if (op->after)
		op->own.res = op->after(op, op->own.res);
	if (io->ended)
		io->ended(io->ended_owner, op);
	else
		op->done(op, op->own.res);
	return true;
}

/* May mean that only io_uring is refused, not the operation. */
static bool io_is_refusal(const struct io_op *op, int64_t res)
{
	if (op->kind == IO_OPEN && (res == -EPERM || res == -EACCES))
		return false;
	return res == -EINVAL || res == -EOPNOTSUPP || res == -ENOSYS || res == -EPERM || res == -EACCES;
}

static int64_t io_fault(struct io_op *op, int64_t res)
{
#ifdef KVP_FAULT
	static const char *const names[] = {[IO_READ] = "io.read",
		[IO_WRITE] = "io.write",
		[IO_DATASYNC] = "io.sync",
		[IO_ALLOCATE] = "io.allocate",
		[IO_OPEN] = "io.open"};
	int64_t most;

	res = FAULT_INT(names[op->kind], res);
	if (!io_moves(op) || res <= 0)
		return res;
	if (op->kind == IO_WRITE && FAULT_INT("io.write.lost", 0)) /* the disk says done, and is not */
		fallocate(op->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(op->off + op->own.moved), res);
	most = FAULT_INT(op->kind == IO_READ ? "io.read.short" : "io.write.short", res);
	if (most < res && op->kind == IO_READ) { /* wiped, so that luck cannot pass */
		uint64_t at = 0;

		for (int i = 0; i < op->own.n_iov; i++)
			for (size_t k = 0; k < op->own.iov[i].iov_len; k++, at++)
				if (at >= (uint64_t)most)
					((char *)op->own.iov[i].iov_base)[k] = (char)0xdb;
	}
	return most < res ? most : res;
#else
	(void)op;
	return res;
#endif
}

static bool io_at_end_of_file(const struct io_op *op, uint64_t moved)
{
	struct stat st;

	return fstat(op->fd, &st) < 0 || !S_ISREG(st.st_mode) || op->off + moved >= (uint64_t)st.st_size;
}

/* @n more bytes moved, not all. Return: 0: go on from own.moved; -errno. */
static int io_set_short(struct io_op *op, uint64_t n)
{
	uint64_t moved = op->own.moved + n;
	int flags;

	if (n == 0)
		return op->kind == IO_READ ? -ENODATA : -EIO;
	flags = fcntl(op->fd, F_GETFL);
	if (flags >= 0 && (flags & O_DIRECT) && (op->off + moved) % IO_DIRECT_STEP) {
		uint64_t step = (op->off + moved) / IO_DIRECT_STEP * IO_DIRECT_STEP;

		/* go on where O_DIRECT may: what lies between is moved twice.  Or not from the start on: then once
		   more. */
		step = step > op->off ? step - op->off : 0;
		if (step <= op->own.moved) {
			step = op->own.moved;
			if (op->kind == IO_READ && io_at_end_of_file(op, moved))
				return -ENODATA;
			if (++op->own.tries > IO_TRIES_MAX)
				return -EIO;
		}
		moved = step;
	}
	op->own.moved = moved;
	return 0;
}

static void io_step_again(struct io *io, struct io_op *op, int64_t res)
{
	if (++op->own.tries > IO_TRIES_MAX) {
		io_end(io, op, res);
	} else if (res == -EINTR) {
		queue_push_head(io_queue_of(io, op), op);
	} else {
		io_queue_push(&io->delayed, op);
		io_arm_timer(io, op->own.tries);
	}
}

/* An engine is done with @op: own.res. */
static void io_step(struct io *io, struct io_op *op, bool by_ring)
{
	int64_t res = op->own.res;
	int r;

#ifdef KVP_FAULT
	if (FAULT_INT("io.hang", 0) || FAULT_INT("io.hang.fd", INT32_MIN) == op->fd) {
		io_queue_push(&io->hung, op);
		return;
	}
#endif
	if (by_ring && io_is_refusal(op, res) && !op->own.refused && io_open_twin(io) == 0) {
		op->own.refused = (int)-res;
		io_give_to_twin(io, op);
		return;
	}
	if (op->own.refused && res >= 0)
		io_leave_ring(io, op->own.refused);
	io_stop(io, op);
	res = io_fault(op, res);
	if (res == -EINTR || res == -EAGAIN) {
		io_step_again(io, op, res);
	} else if (res < 0 || !io_moves(op)) {
		io_end(io, op, res);
	} else if (op->own.moved + (uint64_t)res >= op->own.total) {
		io_end(io, op, (int64_t)op->own.total);
	} else {
		r = io_set_short(op, (uint64_t)res);
		if (r < 0)
			io_end(io, op, r);
		else
			queue_push_head(io_queue_of(io, op), op);
	}
}

/* ---- the interface ---- */

static int io_open_fds(struct io *io)
{
	io->wake_fd = epoll_create1(EPOLL_CLOEXEC);
	if (io->wake_fd < 0)
		return -errno;
	io->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (io->timer_fd < 0)
		return -errno;
	return io_watch(io, io->timer_fd);
}

static int io_open_engine(struct io *io, const struct io_opts *opts, char message[256])
{
	char why[URING_WHY_MAX] = "as configured";
	int r;

	if (opts->use_uring && io_ring_open(&io->ring, io->depth + IO_JOINED_MAX, &io->lock_fd, why) == 0) {
		io->uring = true;
		snprintf(message, 256, "disk I/O by io_uring, %u at once", io->depth);
		return io_watch(io, io_ring_fd(io->ring));
	}
	r = io_open_twin(io);
	if (r < 0)
		snprintf(message, 256, "no disk I/O: threads: %s; io_uring: %s", strerror(-r), why);
	else
		snprintf(message, 256, "disk I/O by %u threads, not io_uring: %s", io->n_threads, why);
	return r;
}

static void io_free(struct io *io)
{
	io_ring_close(io->ring);
	io_twin_close(io->twin);
	if (io->timer_fd >= 0)
		close(io->timer_fd);
	if (io->wake_fd >= 0)
		close(io->wake_fd);
	free(io);
}

/* The io that does the work is behind @io, in a thread. Without one it does the work itself. */
static struct io *io_put_behind(struct io *inner, const struct io_opts *opts)
{
	struct io *io = calloc(1, sizeof(*io));

	if (!io)
		return inner;
	if (io_worker_open(&io->worker, inner, opts->cpus) < 0) {
		free(io);
		log_warn("no thread for disk I/O: checksums are worked out in the serving loop");
		return inner;
	}
	io->inner = inner;
	io->lock_fd = io->timer_fd = -1;
	io->wake_fd = io_worker_fd(io->worker);
	return io;
}

int io_open(struct io **result, const struct io_opts *opts, char message[256])
{
	struct io *io = calloc(1, sizeof(*io));
	int r;

	*result = NULL;
	if (!io) {
		snprintf(message, 256, "no disk I/O: out of memory");
		return -ENOMEM;
	}
	io->wake_fd = io->timer_fd = -1;
	io->lock_fd = opts->lock_fd;
	io->depth = opts->depth ? opts->depth : 32;
	if (io->depth > 4096)
		io->depth = 4096;
	io->n_threads = opts->threads ? opts->threads : 4;
	r = io_open_fds(io);
	if (r < 0)
		snprintf(message, 256, "no disk I/O: %s", strerror(-r));
	else
		r = io_open_engine(io, opts, message);
	if (r < 0) {
		io_free(io);
		return r;
	}
	*result = opts->worker ? io_put_behind(io, opts) : io;
	return 0;
}

void io_close(struct io *io)
{
	if (!io)
		return;
	while (io->n_in_flight)
		io_wait(io, loop_now() + 1000000000u);
	if (io->worker) {
		io_worker_close(io->worker);
		io_close(io->inner);
		free(io);
		return;
	}
	if (io->lock_fd >= 0)
		close(io->lock_fd);
	io_free(io);
}

void io_add(struct io *io, struct io_op *op)
{
	io->n_in_flight++;
	memset(&op->own, 0, sizeof(op->own));
	if (op->before)
		op->before(op);
	if (op->kind == IO_WORK) {
		io_end(io, op, 0);
		if (!io->ended)
			io_arm_timer(io, 0); /* who watches our descriptor is to come and be told */
		return;
	}
	for (int i = 0; i < op->n_iov; i++)
		op->own.total += op->iov[i].iov_len;
	io_queue_push(io_queue_of(io, op), op);
	io_start_more(io);
}

void io_submit(struct io *io, struct io_op *op)
{
	if (io->worker) {
		io->n_in_flight++;
		io_worker_submit(io->worker, op);
		return;
	}
	io_add(io, op);
	io_push(io, true);
}

int io_fd(const struct io *io)
{
	return io->wake_fd;
}

static void io_timer(struct io *io)
{
	uint64_t count;

	if (!io->timer_armed || read(io->timer_fd, &count, sizeof(count)) < 0)
		return;
	io->timer_armed = false;
	for (struct io_op *op; (op = io_queue_pop(&io->delayed));)
		queue_push_head(io_queue_of(io, op), op);
	if (!io->uring || !io_ring_waits(io->ring))
		return;
	io_pushed(io, io_ring_push(io->ring));
	if (io->uring && io_ring_waits(io->ring))
		io_arm_timer(io, 3);
}

static unsigned io_reap_worker(struct io *io)
{
	struct io_queue ended = io_worker_ended(io->worker);
	unsigned n = 0;

	for (struct io_op *op; (op = io_queue_pop(&ended)); n++) {
		io->n_in_flight--;
		op->done(op, op->own.res);
	}
#ifdef KVP_FAULT
	if (io->n_in_flight)
		io_worker_poke(io->worker); /* what hangs may end now */
#endif
	return n;
}

bool io_collect(struct io *io)
{
	struct io_op *op;

#ifdef KVP_FAULT
	while (io->hung.head && FAULT_INT("io.hang.end", 0))
		io_step(io, io_queue_pop(&io->hung), false);
#endif
	io_timer(io);
	while (io->ring && (op = io_ring_ended(io->ring)))
		io_step(io, op, true);
	while (io->n_with_twin && (op = io_twin_ended(io->twin))) {
		io->n_with_twin--;
		io_step(io, op, false);
	}
	io_start_more(io);
	return io->over.head;
}

unsigned io_reap(struct io *io)
{
	uint64_t before = io->n_ended;

	if (io->worker)
		return io_reap_worker(io);
	do {
		io_collect(io);
		io_push(io, true);
	} while (io_finish(io) && io->n_ended - before < IO_REAP_MAX);
	return (unsigned)(io->n_ended - before);
}

void io_sleep(struct io *io, int ask_fd)
{
	struct pollfd wake[2] = {{.fd = ask_fd, .events = POLLIN}, {.fd = io->wake_fd, .events = POLLIN}};
	uint64_t count;
	struct iovec iov = {&count, sizeof(count)};

	if (io->uring && !io->timer_armed && !io->n_with_twin) {
		io_pushed(io, io_ring_sleep(io->ring, ask_fd));
		return;
	}
	io_push(io, true);
	poll(wake, 2, -1);
	/* a read of the ring may have taken the count already, and this one is not to wait for the next */
	if (wake[0].revents && preadv2(ask_fd, &iov, 1, -1, RWF_NOWAIT) < 0)
		return;
}

unsigned io_wait(struct io *io, uint64_t deadline_ns)
{
	unsigned n;

	while ((n = io_reap(io)) == 0 && io->n_in_flight) {
		struct pollfd wake = {.fd = io->wake_fd, .events = POLLIN};
		uint64_t now = loop_now(), ms = deadline_ns > now ? (deadline_ns - now + 999999) / 1000000 : 0;

		if (!ms)
			break;
		poll(&wake, 1, ms > 1000 ? 1000 : (int)ms);
	}
	return n;
}

unsigned io_in_flight(const struct io *io)
{
	return io->n_in_flight;
}

bool io_is_uring(const struct io *io)
{
	return io->worker ? io_worker_is_uring(io->worker) : io->uring;
}
