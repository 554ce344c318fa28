/* test_io.c - disk I/O, each test with the ring and with its twin on threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <semaphore.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "../../daemon/io.h"
#include "../../daemon/io_memory.h"
#include "../../daemon/loop.h"
#include "refuse.h"
#include "scratch.h"
#include "lines.h"

#define SECOND 1000000000ull

struct how {
	bool uring, worker;
};
static struct how with_uring = {.uring = true}, with_threads = {.uring = false}, with_worker = {true, true};

struct fixture {
	struct io *io;
	bool uring, worker;
	char dir[64], path[80];
	int fd; /* through the page cache */
	int direct_fd; /* -1: this file system has no O_DIRECT */
	uint8_t *out, *in; /* 1 MiB each, aligned */
	char message[256];
};

#define BUFFER (1u << 20)

static int open_with_depth(struct fixture *f, unsigned depth)
{
	struct io_opts opts = {.depth = depth, .use_uring = f->uring, .worker = f->worker, .lock_fd = -1};

	return io_open(&f->io, &opts, f->message);
}

static int setup(void **state)
{
	struct how *how = *state;
	struct fixture *f = calloc(1, sizeof(*f));

	fault_disarm();
	f->uring = how->uring;
	f->worker = how->worker;
	scratch_make(f->dir);
	snprintf(f->path, sizeof(f->path), "%s/file", f->dir);
	f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	f->direct_fd = open(f->path, O_RDWR | O_DIRECT | O_CLOEXEC);
	f->out = aligned_alloc(4096, BUFFER);
	f->in = aligned_alloc(4096, BUFFER);
	for (size_t i = 0; i < BUFFER; i++)
		f->out[i] = (uint8_t)(i * 131 + i / 256 * 7);
	if (open_with_depth(f, 8) < 0)
		return -1;
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	fault_disarm();
	io_close(f->io);
	close(f->fd);
	if (f->direct_fd >= 0)
		close(f->direct_fd);
	scratch_remove(f->dir);
	free(f->out);
	free(f->in);
	free(f);
	return 0;
}

struct job {
	struct io_op op;
	int64_t res;
	unsigned n_done;
	unsigned *order, at; /* when it ended, among those who share the counter */
};

static void job_done(struct io_op *op, int64_t res)
{
	struct job *job = op->owner;

	job->res = res;
	job->n_done++;
	if (job->order)
		job->at = ++*job->order;
}

static struct job job_of(enum io_kind kind, int fd, uint64_t off, void *bytes, size_t n)
{
	return (struct job){.op = {.kind = kind,
				    .fd = fd,
				    .off = off,
				    .iov[0] = {bytes, n},
				    .n_iov = bytes ? 1 : 0,
				    .done = job_done}};
}

static void job_start(struct fixture *f, struct job *job)
{
	job->op.owner = job;
	io_submit(f->io, &job->op);
}

static int64_t job_run(struct fixture *f, struct job job)
{
	uint64_t deadline = loop_now() + 20 * SECOND;

	job_start(f, &job);
	while (!job.n_done && loop_now() < deadline)
		io_wait(f->io, deadline);
	if (io_in_flight(f->io))
		fail_msg("an operation has not ended");
	assert_int_equal(job.n_done, 1);
	return job.res;
}

static int64_t put(struct fixture *f, int fd, uint64_t off, void *bytes, size_t n)
{
	return job_run(f, job_of(IO_WRITE, fd, off, bytes, n));
}

static int64_t get(struct fixture *f, int fd, uint64_t off, void *bytes, size_t n)
{
	memset(bytes, 0xee, n);
	return job_run(f, job_of(IO_READ, fd, off, bytes, n));
}

static void the_engine_asked_for_serves_and_the_message_names_it(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(io_is_uring(f->io), f->uring);
	assert_non_null(strstr(f->message, f->uring ? "by io_uring" : "threads, not io_uring: as configured"));
}

static void what_was_written_is_read_back(void **state)
{
	static const size_t sizes[] = {1, 512, 4096, 5000, 12288, BUFFER};
	struct fixture *f = *state;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		assert_int_equal(put(f, f->fd, 77 * i, f->out, sizes[i]), sizes[i]);
		assert_int_equal(get(f, f->fd, 77 * i, f->in, sizes[i]), sizes[i]);
		assert_memory_equal(f->in, f->out, sizes[i]);
	}
	assert_int_equal(job_run(f, job_of(IO_DATASYNC, f->fd, 0, NULL, 0)), 0);
}

static void two_pieces_of_memory_go_down_as_one_and_come_back(void **state)
{
	struct fixture *f = *state;
	struct job job = job_of(IO_WRITE, f->direct_fd >= 0 ? f->direct_fd : f->fd, 8192, f->out + 65536, 4096);

	job.op.iov[1] = (struct iovec){f->out, 40960};
	job.op.n_iov = 2;
	assert_int_equal(job_run(f, job), 45056);
	assert_int_equal(get(f, f->fd, 8192, f->in, 45056), 45056);
	assert_memory_equal(f->in, f->out + 65536, 4096);
	assert_memory_equal(f->in + 4096, f->out, 40960);
}

static void nothing_at_all_is_moved_at_once(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(get(f, f->fd, 0, f->in, 0), 0);
}

static void a_read_past_the_end_is_enodata(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(put(f, f->fd, 0, f->out, 5000), 5000);
	assert_int_equal(get(f, f->fd, 4096, f->in, 4096), -ENODATA);
	assert_int_equal(get(f, f->fd, 8192, f->in, 4096), -ENODATA);
	if (f->direct_fd < 0)
		return;
	assert_int_equal(get(f, f->direct_fd, 0, f->in, 8192), -ENODATA);
	assert_int_equal(get(f, f->direct_fd, 4096, f->in, 4096), -ENODATA);
	assert_int_equal(get(f, f->direct_fd, 0, f->in, 4096), 4096);
}

static void short_transfers_are_continued(void **state)
{
	/* 1000 is no place where O_DIRECT may go on; 1 and 4000 are before the first such place: cut once, not for
	   ever */
	static const char *const faults[] = {"io.write.short=8192@%2,io.read.short=8192@%2",
		"io.write.short=5000@%2,io.read.short=9000@%2", "io.write.short=1@%2,io.read.short=1@%2",
		"io.write.short=4000@1,io.read.short=4000@1"};
	struct fixture *f = *state;
	int fds[2] = {f->fd, f->direct_fd};

	for (int i = 0; i < 2; i++) {
		size_t n = i ? 65536 : 9000;

		for (size_t k = 0; k < sizeof(faults) / sizeof(faults[0]) && fds[i] >= 0; k++) {
			fault_arm(faults[k]);
			memset(f->in, 0, n);
			assert_int_equal(pwrite(f->fd, f->in, n, 4096), n);
			assert_int_equal(put(f, fds[i], 4096, f->out, n), n);
			assert_int_equal(get(f, fds[i], 4096, f->in, n), n);
			assert_memory_equal(f->in, f->out, n);
			fault_disarm();
			assert_int_equal(get(f, fds[i], 4096, f->in, n), n);
			assert_memory_equal(f->in, f->out, n);
		}
	}
}

static void a_transfer_that_never_gets_anywhere_ends_with_eio(void **state)
{
	struct fixture *f = *state;

	fault_arm("io.write.short=0");
	assert_int_equal(put(f, f->fd, 0, f->out, 4096), -EIO);
	if (f->direct_fd < 0)
		return;
	fault_arm("io.write.short=100");
	assert_int_equal(put(f, f->direct_fd, 0, f->out, 4096), -EIO);
}

static void interrupted_and_refused_for_now_is_tried_again(void **state)
{
	struct fixture *f = *state;

	fault_arm("io.write=-EINTR@1,io.write=-EAGAIN@2,io.write=-EAGAIN@3,io.read=-EAGAIN@1,io.read=-EINTR@2,"
		  "io.sync=-EINTR@1");
	assert_int_equal(put(f, f->fd, 0, f->out, 4096), 4096);
	assert_int_equal(get(f, f->fd, 0, f->in, 4096), 4096);
	assert_int_equal(job_run(f, job_of(IO_DATASYNC, f->fd, 0, NULL, 0)), 0);
	assert_memory_equal(f->in, f->out, 4096);
}

static void trying_again_has_an_end(void **state)
{
	struct fixture *f = *state;
	uint64_t start = loop_now();

	fault_arm("io.write=-EAGAIN,io.sync=-EINTR");
	assert_int_equal(put(f, f->fd, 0, f->out, 4096), -EAGAIN);
	assert_int_equal(job_run(f, job_of(IO_DATASYNC, f->fd, 0, NULL, 0)), -EINTR);
	assert_true(loop_now() - start < 10 * SECOND);
}

static void an_error_is_told_once_and_the_next_operation_is_served(void **state)
{
	struct fixture *f = *state;

	fault_arm("io.write=-EIO@1,io.read=-EIO@1,io.sync=-ENOSPC@1");
	assert_int_equal(put(f, f->fd, 0, f->out, 4096), -EIO);
	assert_int_equal(put(f, f->fd, 0, f->out, 4096), 4096);
	assert_int_equal(get(f, f->fd, 0, f->in, 4096), -EIO);
	assert_int_equal(get(f, f->fd, 0, f->in, 4096), 4096);
	assert_int_equal(job_run(f, job_of(IO_DATASYNC, f->fd, 0, NULL, 0)), -ENOSPC);
	assert_int_equal(job_run(f, job_of(IO_DATASYNC, f->fd, 0, NULL, 0)), 0);
	assert_int_equal(job_run(f, job_of(IO_READ, -1, 0, f->in, 4096)), -EBADF);
	assert_int_equal(io_is_uring(f->io), f->uring);
}

static void an_operation_that_is_wrong_for_both_engines_changes_none(void **state)
{
	struct fixture *f = *state;

	if (f->direct_fd < 0)
		skip();
	assert_int_equal(put(f, f->direct_fd, 0, f->out + 8, 1000), -EINVAL);
	assert_int_equal(io_is_uring(f->io), f->uring);
}

/* B17: 64 clients with one operation each in flight, and a ring of 8. */
struct client {
	struct io_op op;
	struct fixture *f;
	unsigned left;
	unsigned *n_done;
	uint8_t *bytes;
	bool failed;
	uint64_t off;
};

static void client_next(struct client *c)
{
	c->op.kind = c->left % 2 ? IO_READ : IO_WRITE;
	c->op.iov[0] = (struct iovec){c->bytes, 512};
	if (c->op.kind == IO_WRITE)
		memset(c->bytes, (int)(c->left % 251), 512);
	else
		memset(c->bytes, 0xee, 512);
	io_submit(c->f->io, &c->op);
}

static void client_done(struct io_op *op, int64_t res)
{
	struct client *c = op->owner;

	++*c->n_done;
	if (res != 512 || (op->kind == IO_READ && c->bytes[511] != (uint8_t)((c->left + 1) % 251)))
		c->failed = true;
	if (--c->left)
		client_next(c);
}

static void a_ring_of_8_survives_100000_requests_of_64_clients(void **state)
{
	enum { CLIENTS = 64, TOTAL = 100000 };
	struct fixture *f = *state;
	struct client clients[CLIENTS] = {0};
	unsigned n_done = 0, ended = 0;
	uint64_t deadline = loop_now() + 30 * SECOND;
	int fd = memfd_create("kvpool-test", MFD_CLOEXEC);

	for (unsigned i = 0; i < CLIENTS; i++) {
		clients[i] = (struct client){.f = f,
			.left = TOTAL / CLIENTS + (i < TOTAL % CLIENTS) + 1,
			.n_done = &n_done,
			.bytes = f->in + 4096 * i};
		clients[i].left &= ~1u;
		clients[i].op = (struct io_op){
			.fd = fd, .off = 4096 * i, .n_iov = 1, .done = client_done, .owner = &clients[i]};
		client_next(&clients[i]);
	}
	while (io_in_flight(f->io) && loop_now() < deadline)
		ended += io_wait(f->io, deadline);
	assert_int_equal(io_in_flight(f->io), 0);
	assert_int_equal(ended, n_done);
	assert_true(n_done >= TOTAL - CLIENTS);
	for (unsigned i = 0; i < CLIENTS; i++)
		assert_false(clients[i].failed);
	close(fd);
}

static void a_read_overtakes_the_writes_that_wait(void **state)
{
	enum { N = 400 };
	struct fixture *f = *state;
	struct job *writes = calloc(N, sizeof(*writes)), read = job_of(IO_READ, f->fd, 0, f->in, 4096);
	unsigned order = 0;

	assert_int_equal(put(f, f->fd, 0, f->out, 4096), 4096);
	for (unsigned i = 0; i < N; i++) {
		writes[i] = job_of(IO_WRITE, f->fd, 4096 + 4096 * i, f->out, 4096);
		writes[i].order = &order;
		job_start(f, &writes[i]);
	}
	read.order = &order;
	job_start(f, &read);
	while (io_in_flight(f->io))
		io_wait(f->io, loop_now() + SECOND);
	assert_int_equal(read.res, 4096);
	assert_true(read.at < 40); /* those under way, no more */
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(writes[i].res, 4096);
	free(writes);
}

static sem_t first_began, first_may_go;
static unsigned n_begun, read_begun;

static void wait_to_begin(struct io_op *op)
{
	n_begun++;
	if (op->kind == IO_READ)
		read_begun = n_begun;
	if (n_begun > 1)
		return;
	sem_post(&first_began);
	while (sem_wait(&first_may_go) < 0)
		continue;
}

static void the_worker_takes_a_read_before_the_writes_that_wait_for_it(void **state)
{
	enum { N = 20 };
	struct fixture *f = *state;
	struct job writes[N], read = job_of(IO_READ, f->fd, 0, f->in, 4096);

	assert_int_equal(put(f, f->fd, 0, f->out, 4096), 4096);
	sem_init(&first_began, 0, 0);
	sem_init(&first_may_go, 0, 0);
	n_begun = read_begun = 0;
	for (unsigned i = 0; i < N; i++) {
		writes[i] = job_of(IO_WRITE, f->fd, 4096 + 4096 * i, f->out, 4096);
		writes[i].op.before = wait_to_begin;
		job_start(f, &writes[i]);
		while (i == 0 && sem_wait(&first_began) < 0)
			continue;
	}
	read.op.before = wait_to_begin;
	job_start(f, &read);
	sem_post(&first_may_go);
	while (io_in_flight(f->io))
		io_wait(f->io, loop_now() + SECOND);
	assert_int_equal(n_begun, N + 1);
	assert_int_equal(read_begun, 2);
	assert_int_equal(read.res, 4096);
	sem_destroy(&first_began);
	sem_destroy(&first_may_go);
}

static void fill_first_byte(struct io_op *op)
{
	*(uint8_t *)op->iov[0].iov_base = 0xab;
}

static int64_t add_first_byte(struct io_op *op, int64_t res)
{
	return res + *(uint8_t *)op->iov[0].iov_base;
}

static void what_is_worked_out_for_an_operation_is_there_when_it_starts_and_when_it_is_told(void **state)
{
	struct fixture *f = *state;
	struct job write = job_of(IO_WRITE, f->fd, 0, f->out, 4096), read = job_of(IO_READ, f->fd, 0, f->in, 4096);

	f->out[0] = 0;
	write.op.before = fill_first_byte;
	job_start(f, &write);
	while (io_in_flight(f->io))
		io_wait(f->io, loop_now() + SECOND);
	assert_int_equal(write.res, 4096);
	read.op.after = add_first_byte;
	job_start(f, &read);
	while (io_in_flight(f->io))
		io_wait(f->io, loop_now() + SECOND);
	assert_int_equal(read.res, 4096 + 0xab);
}

static void writes_that_hang_leave_places_to_reads(void **state)
{
	enum { N = 12 };
	struct fixture *f = *state;
	struct job writes[N], read_job = job_of(IO_READ, f->fd, 0, f->in, 4096);
	uint64_t deadline = loop_now() + 5 * SECOND;
	int pipes[2];

	assert_int_equal(put(f, f->fd, 0, f->out, 4096), 4096);
	assert_int_equal(pipe(pipes), 0); /* a device that takes nothing */
	while (fcntl(pipes[1], F_SETFL, O_NONBLOCK), write(pipes[1], f->out, 4096) > 0)
		;
	fcntl(pipes[1], F_SETFL, 0);
	for (unsigned i = 0; i < N; i++) {
		writes[i] = job_of(IO_WRITE, pipes[1], 0, f->out, 4096);
		job_start(f, &writes[i]);
	}
	job_start(f, &read_job);
	while (!read_job.n_done && loop_now() < deadline)
		io_wait(f->io, loop_now() + SECOND / 10);
	assert_int_equal(read_job.n_done, 1);
	assert_int_equal(io_in_flight(f->io), N);
	fcntl(pipes[0], F_SETFL, O_NONBLOCK);
	while (io_in_flight(f->io) && loop_now() < deadline) {
		if (read(pipes[0], f->in, 65536) < 0)
			usleep(1000);
		io_reap(f->io);
	}
	assert_int_equal(io_in_flight(f->io), 0);
	close(pipes[0]);
	close(pipes[1]);
}

static void no_more_bytes_are_being_written_than_a_device_needs(void **state)
{
	enum { LONG = 4 << 20, N = 3 };
	struct fixture *f = *state;
	uint8_t *bytes = calloc(1, LONG), *sink = malloc(LONG);
	struct job writes[N], read_job = job_of(IO_READ, f->fd, 0, f->in, 4096);
	uint64_t deadline = loop_now() + 20 * SECOND;
	int pipes[2];

	assert_non_null(bytes);
	assert_non_null(sink);
	assert_int_equal(put(f, f->fd, 0, f->out, 4096), 4096);
	assert_int_equal(pipe(pipes), 0); /* a slow device */
	writes[0] = job_of(IO_WRITE, pipes[1], 0, bytes, LONG);
	writes[1] = job_of(IO_WRITE, pipes[1], 0, bytes, LONG);
	writes[2] = job_of(IO_WRITE, f->fd, 0, f->out, 4096); /* would end at once */
	for (unsigned i = 0; i < N; i++)
		job_start(f, &writes[i]);
	job_start(f, &read_job);
	while (!read_job.n_done && loop_now() < deadline)
		io_wait(f->io, loop_now() + SECOND / 10);
	assert_int_equal(read_job.n_done, 1);
	io_wait(f->io, loop_now() + SECOND / 10);
	assert_int_equal(io_in_flight(f->io), N);
	fcntl(pipes[0], F_SETFL, O_NONBLOCK);
	while (io_in_flight(f->io) && loop_now() < deadline) {
		if (read(pipes[0], sink, LONG) < 0)
			usleep(1000);
		io_reap(f->io);
	}
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(writes[i].res, i < 2 ? LONG : 4096);
	close(pipes[0]);
	close(pipes[1]);
	free(bytes);
	free(sink);
}

static void fewer_bytes_are_being_written_while_somebody_reads(void **state)
{
	enum { LONG = 3 << 20 };
	struct fixture *f = *state;
	uint8_t *bytes = calloc(1, LONG), *sink = malloc(LONG);
	struct job reader, slow, quick;
	uint64_t deadline = loop_now() + 20 * SECOND;
	int in[2], out[2];

	assert_non_null(bytes);
	assert_non_null(sink);
	assert_int_equal(pipe(in), 0); /* devices that are slow */
	assert_int_equal(pipe(out), 0);
	reader = job_of(IO_READ, in[0], 0, f->in, 4096);
	slow = job_of(IO_WRITE, out[1], 0, bytes, LONG);
	quick = job_of(IO_WRITE, f->fd, 0, f->out, 4096); /* would end at once */
	job_start(f, &reader);
	job_start(f, &slow);
	job_start(f, &quick);
	io_wait(f->io, loop_now() + SECOND / 10);
	assert_int_equal(io_in_flight(f->io), 3);
	assert_int_equal(write(in[1], f->out, 4096), 4096);
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	while (io_in_flight(f->io) && loop_now() < deadline) {
		if (read(out[0], sink, LONG) < 0)
			usleep(1000);
		io_reap(f->io);
	}
	assert_int_equal(reader.res, 4096);
	assert_int_equal(slow.res, LONG);
	assert_int_equal(quick.res, 4096);
	for (unsigned i = 0; i < 2; i++) {
		close(in[i]);
		close(out[i]);
	}
	free(bytes);
	free(sink);
}

/* The next read of who reads now and then is not to find a full queue of writes. */
static void soon_after_a_read_few_bytes_are_being_written(void **state)
{
	enum { LONG = 3 << 20 };
	struct fixture *f = *state;
	uint8_t *bytes = calloc(1, LONG), *sink = malloc(LONG);
	struct job reader = job_of(IO_READ, f->fd, 0, f->in, 4096), slow, quick;
	uint64_t deadline = loop_now() + 20 * SECOND, read_ns;
	int pipes[2];

	assert_non_null(bytes);
	assert_non_null(sink);
	assert_int_equal(put(f, f->fd, 0, f->out, 4096), 4096);
	assert_int_equal(pipe(pipes), 0); /* a slow device */
	slow = job_of(IO_WRITE, pipes[1], 0, bytes, LONG);
	quick = job_of(IO_WRITE, f->fd, 0, f->out, 4096); /* would end at once */
	read_ns = loop_now();
	job_start(f, &reader);
	while (!reader.n_done && loop_now() < deadline)
		io_wait(f->io, loop_now() + SECOND / 10);
	usleep(100000);
	job_start(f, &slow);
	job_start(f, &quick);
	io_wait(f->io, loop_now() + SECOND / 10);
	if (loop_now() - read_ns < SECOND) /* else we stood still */
		assert_int_equal(io_in_flight(f->io), 2);
	fcntl(pipes[0], F_SETFL, O_NONBLOCK);
	while (io_in_flight(f->io) && loop_now() < deadline) {
		if (read(pipes[0], sink, LONG) < 0)
			usleep(1000);
		io_reap(f->io);
	}
	assert_int_equal(reader.res, 4096);
	assert_int_equal(slow.res, LONG);
	assert_int_equal(quick.res, 4096);
	close(pipes[0]);
	close(pipes[1]);
	free(bytes);
	free(sink);
}

static bool pipe_is_emptied(int fd, uint64_t deadline)
{
	int left = 1;

	while (ioctl(fd, FIONREAD, &left) == 0 && left && loop_now() < deadline)
		usleep(1000); /* what was started goes on without being reaped */
	return !left;
}

/* Reads of a pipe, where they wait; it does not look at where they are said to lie. */
static void small_ones_that_lie_side_by_side_share_a_place(void **state)
{
	static const uint64_t offs[] = {0, 100, 108, 92, 200};
	enum { N = sizeof(offs) / sizeof(offs[0]) };
	struct fixture *f = *state;
	uint64_t deadline = loop_now() + 20 * SECOND;
	struct job reads[N];
	int pipes[2], left;

	io_close(f->io);
	assert_int_equal(open_with_depth(f, 1), 0);
	assert_int_equal(pipe(pipes), 0);
	for (unsigned i = 0; i < N; i++) {
		reads[i] = job_of(IO_READ, pipes[0], offs[i], f->in + 8 * i, 8);
		job_start(f, &reads[i]);
	}
	assert_int_equal(write(pipes[1], f->out, 8), 8); /* for the only one that was started */
	while (!reads[0].n_done && loop_now() < deadline)
		io_wait(f->io, deadline);
	assert_int_equal(write(pipes[1], f->out, 24), 24);
	assert_true(pipe_is_emptied(pipes[0], deadline));
	assert_int_equal(write(pipes[1], f->out, 8), 8); /* the one apart has no place yet */
	assert_int_equal(ioctl(pipes[0], FIONREAD, &left), 0);
	assert_int_equal(left, 8);
	while (io_in_flight(f->io) && loop_now() < deadline)
		io_wait(f->io, deadline);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(reads[i].res, 8);
	close(pipes[0]);
	close(pipes[1]);
}

struct stream {
	struct job job;
	struct fixture *f;
	struct job *until;
	unsigned n;
};

static void stream_done(struct io_op *op, int64_t res)
{
	struct stream *s = op->owner;

	(void)res;
	if (!s->until->n_done && ++s->n < 100000)
		io_submit(s->f->io, op);
}

static void a_stream_of_reads_does_not_stop_a_write_for_ever(void **state)
{
	enum { N = 32 };
	struct fixture *f = *state;
	struct stream streams[N];
	struct job write = job_of(IO_WRITE, f->fd, 0, f->out, 4096);
	unsigned n = 0;

	assert_int_equal(put(f, f->fd, 0, f->out, 4096), 4096);
	for (unsigned i = 0; i < N; i++) {
		streams[i] = (struct stream){.f = f, .until = &write};
		streams[i].job = job_of(IO_READ, f->fd, 0, f->in + 4096 * i, 4096);
		streams[i].job.op.done = stream_done;
		streams[i].job.op.owner = &streams[i];
		io_submit(f->io, &streams[i].job.op);
	}
	job_start(f, &write);
	while (io_in_flight(f->io))
		io_wait(f->io, loop_now() + SECOND);
	for (unsigned i = 0; i < N; i++)
		n += streams[i].n;
	assert_int_equal(write.res, 4096);
	assert_true(n < 20000);
}

static void offsets_beyond_2_and_4_gib_are_exact(void **state)
{
	static const uint64_t offs[] = {(1ull << 31) - 4096, 1ull << 31, (1ull << 32) - 4096, 1ull << 32, 0, 8192,
		(1ull << 32) + 8192, 9ull << 32};
	enum { N = sizeof(offs) / sizeof(offs[0]) };
	struct fixture *f = *state;
	int fd = f->direct_fd >= 0 ? f->direct_fd : f->fd;

	for (unsigned i = 0; i < N; i++)
		assert_int_equal(put(f, fd, offs[i], f->out + 4096 * i, 4096), 4096);
	for (unsigned i = 0; i < N; i++) {
		assert_int_equal(get(f, fd, offs[i], f->in, 4096), 4096);
		assert_memory_equal(f->in, f->out + 4096 * i, 4096);
	}
}

static void a_transfer_over_2_gib_is_told_in_full(void **state)
{
#ifdef __SANITIZE_THREAD__
	(void)state;
	print_message("skipped: the thread sanitizer's shadow of 3 GiB does not fit\n");
	skip();
#else
	const size_t half = 1500ull << 20;
	struct fixture *f = *state;
	void *zeros = mmap(NULL, half, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	struct job job = job_of(IO_WRITE, fd, 0, zeros, half);

	assert_ptr_not_equal(zeros, MAP_FAILED);
	job.op.iov[1] = job.op.iov[0];
	job.op.n_iov = 2;
	assert_int_equal(job_run(f, job), 2 * half);
	munmap(zeros, half);
	close(fd);
#endif
}

static bool is_readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

static void the_descriptor_is_readable_when_there_is_something_to_reap(void **state)
{
	struct fixture *f = *state;
	struct job job = job_of(IO_WRITE, f->fd, 0, f->out, 4096);
	struct pollfd p = {.fd = io_fd(f->io), .events = POLLIN};

	assert_false(is_readable(io_fd(f->io)));
	job_start(f, &job);
	assert_int_equal(poll(&p, 1, 10000), 1);
	assert_int_equal(job.n_done, 0);
	assert_int_equal(io_reap(f->io), 1);
	assert_int_equal(job.n_done, 1);
	io_reap(f->io);
	assert_false(is_readable(io_fd(f->io)));
}

static void source_reap(struct loop_source *source, uint32_t events)
{
	(void)events;
	io_reap(source->owner);
}

static void ring_stop(struct loop_timer *timer)
{
	loop_stop(timer->owner);
}

static void both_loops_serve_the_engine_as_a_source(void **state)
{
	struct fixture *f = *state;

	for (int by_uring = 0; by_uring < 2; by_uring++) {
		struct loop_source source = {
			.fd = io_fd(f->io), .events = LOOP_IN, .ready = source_reap, .owner = f->io};
		struct loop_timer timer = {.ring = ring_stop};
		struct job jobs[64];
		struct loop *loop;
		char message[256];

		assert_int_equal(loop_open(&loop, by_uring, message), 0);
		timer.owner = loop;
		assert_int_equal(loop_add(loop, &source), 0);
		for (unsigned i = 0; i < 64; i++) {
			jobs[i] = job_of(IO_WRITE, f->fd, 4096 * i, f->out, 4096);
			job_start(f, &jobs[i]);
		}
		for (unsigned turn = 0; turn < 100 && io_in_flight(f->io); turn++) {
			loop_timer_set(loop, &timer, loop_now() + SECOND / 20);
			assert_int_equal(loop_run(loop), 0);
		}
		for (unsigned i = 0; i < 64; i++)
			assert_int_equal(jobs[i].res, 4096);
		loop_del(loop, &source);
		loop_close(loop);
	}
}

static void closing_waits_for_what_is_in_flight(void **state)
{
	enum { N = 100 };
	struct fixture *f = *state;
	struct job jobs[N];

	for (unsigned i = 0; i < N; i++) {
		jobs[i] = job_of(IO_WRITE, f->fd, 4096 * i, f->out, 4096);
		job_start(f, &jobs[i]);
	}
	io_close(f->io);
	for (unsigned i = 0; i < N; i++) {
		assert_int_equal(jobs[i].n_done, 1);
		assert_int_equal(jobs[i].res, 4096);
	}
	assert_int_equal(open_with_depth(f, 8), 0);
}

/* Of the engine's threads those that block all signals that can be blocked, but not those of a fault of their own. */
static unsigned threads_masked_rightly(void)
{
	static const int faults[] = {SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};
	unsigned long long wanted = 0x7fffffff & ~(1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1));
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	unsigned n = 0;

	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		wanted &= ~(1ull << (faults[i] - 1));
	while ((entry = readdir(dir))) {
		char path[300], line[128];
		unsigned long long blocked = 0;
		bool ours = false;
		FILE *status;

		if (entry->d_name[0] == '.' || atoi(entry->d_name) == getpid())
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
		status = fopen(path, "re");
		while (status && fgets(line, sizeof(line), status)) {
			ours |= strcmp(line, "Name:\tkvpoold-io\n") == 0; /* io_uring's kernel workers are here too */
			sscanf(line, "SigBlk: %llx", &blocked);
		}
		if (status)
			fclose(status);
		n += ours && (blocked & 0x7fffffff) == wanted;
	}
	closedir(dir);
	return n;
}

static void the_engines_threads_block_all_signals_but_those_of_faults(void **state)
{
	struct fixture *f = *state;
	unsigned expected = (f->uring ? 0 : 4) + f->worker;

	/* a thread begins with all of them blocked, for as long as the C library makes it ready */
	for (unsigned i = 0; i < 500 && threads_masked_rightly() != expected; i++)
		usleep(10000);
	assert_int_equal(threads_masked_rightly(), expected);
}

static int lock_file(struct fixture *f, char path[96])
{
	int fd;

	snprintf(path, 96, "%s/lock", f->dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	return fd;
}

static bool lock_is_free(const char *path, unsigned seconds)
{
	uint64_t deadline = loop_now() + seconds * SECOND;
	int fd = open(path, O_RDWR | O_CLOEXEC), r;

	while ((r = flock(fd, LOCK_EX | LOCK_NB)) < 0 && loop_now() < deadline)
		usleep(5000);
	close(fd);
	return r == 0;
}

static void the_lock_file_is_locked_as_long_as_the_engine_lives(void **state)
{
	struct fixture *f = *state;
	struct io_opts opts = {.depth = 8, .use_uring = f->uring};
	struct io *io;
	char path[96];

	opts.lock_fd = lock_file(f, path);
	assert_int_equal(io_open(&io, &opts, f->message), 0);
	assert_false(lock_is_free(path, 0));
	if (f->uring) /* the ring has it; ours is closed */
		assert_int_equal(fcntl(opts.lock_fd, F_GETFD), -1);
	io_close(io);
	assert_true(lock_is_free(path, 2));
}

static void the_lock_falls_when_the_process_is_killed(void **state)
{
	struct fixture *f = *state;
	struct io_opts opts = {.depth = 8, .use_uring = f->uring};
	struct io *io;
	char path[96];
	int ready[2];
	pid_t pid;
	char c;

	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (pid == 0) {
		opts.lock_fd = lock_file(f, path);
		if (io_open(&io, &opts, f->message) == 0 && write(ready[1], "x", 1) == 1)
			pause();
		_exit(1);
	}
	assert_int_equal(read(ready[0], &c, 1), 1);
	snprintf(path, sizeof(path), "%s/lock", f->dir);
	assert_false(lock_is_free(path, 0));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_true(lock_is_free(path, 5));
	close(ready[0]);
	close(ready[1]);
}

/* ---- B56: io_uring refused in every way there is ---- */

static int round_trips(struct fixture *f)
{
	enum { N = 40 };
	struct job jobs[N];

	for (unsigned i = 0; i < N; i++) {
		jobs[i] = job_of(IO_WRITE, f->fd, 4096 * i, f->out + 4096 * i, 4096);
		job_start(f, &jobs[i]);
	}
	while (io_in_flight(f->io))
		io_wait(f->io, loop_now() + SECOND);
	for (unsigned i = 0; i < N; i++)
		CHILD_CHECK(jobs[i].n_done == 1 && jobs[i].res == 4096);
	jobs[0] = job_of(IO_READ, f->fd, 0, f->in, 4096 * N);
	job_start(f, &jobs[0]);
	while (io_in_flight(f->io))
		io_wait(f->io, loop_now() + SECOND);
	CHILD_CHECK(jobs[0].res == 4096 * N);
	CHILD_CHECK(memcmp(f->in, f->out, 4096 * N) == 0);
	return 0;
}

struct refusal {
	struct fixture *f;
	int nr, err;
	const char *word;
};

static int refused_from_the_start(void *arg)
{
	struct refusal *refusal = arg;
	struct fixture *f = refusal->f;

	refuse_syscall(refusal->nr, refusal->err);
	f->uring = true;
	CHILD_CHECK(open_with_depth(f, 8) == 0);
	CHILD_CHECK(!io_is_uring(f->io));
	CHILD_CHECK(strstr(f->message, "threads, not io_uring") && strstr(f->message, refusal->word));
	if (round_trips(f) != 0)
		return 1;
	io_close(f->io);
	return 0;
}

static void where_set_up_or_enter_is_refused_threads_serve(void **state)
{
	struct fixture *f = *state;
	struct refusal refusals[] = {
		{f, __NR_io_uring_setup, EPERM, "seccomp"},
		{f, __NR_io_uring_setup, ENOSYS, "kernel"},
		{f, __NR_io_uring_enter, EPERM, "io_uring_enter"},
		{f, __NR_io_uring_enter, ENOSYS, "io_uring_enter"},
	};

	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
		assert_int_equal(in_child(refused_from_the_start, &refusals[i]), 0);
}

static int register_refused(void *arg)
{
	struct fixture *f = arg;
	struct io_opts opts = {.depth = 8, .use_uring = true};
	char path[96];

	refuse_syscall(__NR_io_uring_register, EPERM);
	opts.lock_fd = lock_file(f, path);
	CHILD_CHECK(io_open(&f->io, &opts, f->message) == 0);
	CHILD_CHECK(io_is_uring(f->io));
	CHILD_CHECK(fcntl(opts.lock_fd, F_GETFD) >= 0 && !lock_is_free(path, 0));
	if (round_trips(f) != 0)
		return 1;
	io_close(f->io);
	CHILD_CHECK(lock_is_free(path, 2));
	return 0;
}

static void where_register_is_refused_the_ring_serves_without(void **state)
{
	assert_int_equal(in_child(register_refused, *state), 0);
}

static int operations_refused_at_start(void *arg)
{
	struct fixture *f = arg;

	fault_arm("io.ring.try=-EINVAL@3"); /* the read */
	CHILD_CHECK(open_with_depth(f, 8) == 0);
	CHILD_CHECK(!io_is_uring(f->io) && strstr(f->message, "io_uring read"));
	if (round_trips(f) != 0)
		return 1;
	io_close(f->io);
	return 0;
}

static void where_single_operations_are_refused_at_start_threads_serve(void **state)
{
	assert_int_equal(in_child(operations_refused_at_start, *state), 0);
}

struct late {
	struct fixture *f;
	const char *fault; /* NULL: io_uring_enter() is refused */
	char log[100];
};

static int refused_later(void *arg)
{
	struct late *late = arg;
	struct fixture *f = late->f;
	struct job early[8];

	CHILD_CHECK(freopen(late->log, "w", stderr));
	CHILD_CHECK(open_with_depth(f, 8) == 0 && io_is_uring(f->io));
	for (unsigned i = 0; i < 8; i++) { /* in flight when it happens */
		early[i] = job_of(IO_WRITE, f->fd, (1 << 20) + 4096 * i, f->out, 4096);
		if (i == 5 && late->fault)
			fault_arm(late->fault);
		else if (i == 5)
			refuse_syscall(__NR_io_uring_enter, EPERM);
		job_start(f, &early[i]);
	}
	if (round_trips(f) != 0)
		return 1;
	for (unsigned i = 0; i < 8; i++)
		CHILD_CHECK(early[i].n_done == 1 && early[i].res == 4096);
	CHILD_CHECK(!io_is_uring(f->io));
	io_close(f->io);
	return 0;
}

static void refused_while_running_threads_take_over_and_one_line_says_so(void **state)
{
	struct fixture *f = *state;
	struct late lates[] = {{f, NULL, ""}, {f, "io.ring=-EOPNOTSUPP", ""}, {f, "io.ring=-EINVAL", ""},
		{f, "io.ring=-EPERM@2", ""}, {f, "io.ring.submit=-EPERM@1", ""}};

	if (!f->uring)
		skip();
	for (size_t i = 0; i < sizeof(lates) / sizeof(lates[0]); i++) {
		snprintf(lates[i].log, sizeof(lates[i].log), "%s/log", f->dir);
		assert_int_equal(in_child(refused_later, &lates[i]), 0);
		assert_int_equal(lines_with(lates[i].log, "not io_uring"), 1);
	}
}

static int memory_short(void *arg)
{
	struct fixture *f = arg;

	fault_arm("io.ring.submit=-EAGAIN@%2");
	CHILD_CHECK(open_with_depth(f, 8) == 0 && io_is_uring(f->io));
	if (round_trips(f) != 0)
		return 1;
	CHILD_CHECK(io_is_uring(f->io));
	io_close(f->io);
	return 0;
}

static void a_kernel_short_of_memory_is_asked_again(void **state)
{
	assert_int_equal(in_child(memory_short, *state), 0);
}

/* ---- pinned memory ---- */

/* As a slab: a shared mapping of 4k pages, lent. */
static uint8_t *lent_memory(size_t bytes, int *fd)
{
	uint8_t *memory;

	*fd = memfd_create("lent", MFD_CLOEXEC);
	assert_int_equal(ftruncate(*fd, (off_t)bytes), 0);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	memset(memory, 0x11, bytes);
	io_memory_lend(memory, bytes);
	return memory;
}

static void lent_memory_gone(uint8_t *memory, size_t bytes, int fd)
{
	io_memory_take_back(memory);
	munmap(memory, bytes);
	close(fd);
}

/* Two pieces of lent memory to @off and back. Return: 0; what differs. */
static int two_pieces_round_trip(struct fixture *f, int fd, uint8_t *memory, uint64_t off)
{
	struct job job = job_of(IO_WRITE, fd, off, memory, 4096);

	memcpy(memory, f->out, 4096);
	memcpy(memory + 8192, f->out + 4096, 65536);
	job.op.iov[1] = (struct iovec){memory + 8192, 65536};
	job.op.n_iov = 2;
	if (job_run(f, job) != 69632)
		return 1;
	memset(memory, 0xee, 80 * 1024);
	job.op.kind = IO_READ;
	if (job_run(f, job) != 69632)
		return 2;
	return memcmp(memory, f->out, 4096) || memcmp(memory + 8192, f->out + 4096, 65536) ? 3 : 0;
}

static void lent_memory_is_pinned_when_first_used_and_let_go_when_taken_back(void **state)
{
	struct fixture *f = *state;
	int fd = f->direct_fd >= 0 ? f->direct_fd : f->fd, memory_fd;
	uint8_t *memory = lent_memory(BUFFER, &memory_fd);

	assert_int_equal(io_memory_pinned(), 0);
	assert_int_equal(two_pieces_round_trip(f, fd, memory, 8192), 0);
	assert_int_equal(io_memory_pinned(), f->uring ? BUFFER : 0);
	io_memory_take_back(memory);
	assert_int_equal(io_memory_pinned(), 0);
	assert_int_equal(two_pieces_round_trip(f, fd, memory, 8192), 0); /* without */
	assert_int_equal(io_memory_pinned(), 0);
	lent_memory_gone(memory, BUFFER, memory_fd);
}

/* The trap: through a buffer that stayed pinned the old pages would be written. */
static void after_a_punch_the_new_pages_are_written_not_those_that_were_pinned(void **state)
{
	struct fixture *f = *state;
	int memory_fd;
	uint8_t *memory = lent_memory(BUFFER, &memory_fd);

	assert_int_equal(two_pieces_round_trip(f, f->fd, memory, 0), 0);
	io_memory_take_back(memory);
	assert_int_equal(fallocate(memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BUFFER), 0);
	io_memory_lend(memory, BUFFER);
	memset(memory, 0x77, 4096);
	assert_int_equal(put(f, f->fd, 0, memory, 4096), 4096);
	assert_int_equal(io_memory_pinned(), f->uring ? BUFFER : 0);
	assert_int_equal(pread(f->fd, f->in, 4096, 0), 4096);
	for (unsigned i = 0; i < 4096; i++)
		assert_int_equal(f->in[i], 0x77);
	lent_memory_gone(memory, BUFFER, memory_fd);
}

static void pinned_memory_goes_with_its_ring(void **state)
{
	struct fixture *f = *state;
	int memory_fd;
	uint8_t *memory = lent_memory(BUFFER, &memory_fd);

	assert_int_equal(two_pieces_round_trip(f, f->fd, memory, 0), 0);
	io_close(f->io);
	assert_int_equal(io_memory_pinned(), 0);
	assert_int_equal(open_with_depth(f, 8), 0);
	assert_int_equal(two_pieces_round_trip(f, f->fd, memory, 0), 0);
	lent_memory_gone(memory, BUFFER, memory_fd);
}

static void what_is_partly_lent_or_crosses_two_pieces_moves_all_the_same(void **state)
{
	struct fixture *f = *state;
	int memory_fd;
	uint8_t *memory = lent_memory(BUFFER, &memory_fd);

	io_memory_take_back(memory);
	io_memory_lend(memory, 65536);
	io_memory_lend(memory + 65536, BUFFER - 65536);
	for (uint64_t at = 0; at <= 131072; at += 32768) {
		memcpy(memory + at, f->out, 65536);
		assert_int_equal(put(f, f->fd, 0, memory + at, 65536), 65536);
		assert_int_equal(get(f, f->fd, 0, memory + at, 65536), 65536);
		assert_memory_equal(memory + at, f->out, 65536);
	}
	assert_int_equal(io_memory_pinned(), f->uring ? BUFFER : 0);
	io_memory_take_back(memory + 65536);
	assert_int_equal(io_memory_pinned(), f->uring ? 65536 : 0);
	lent_memory_gone(memory, BUFFER, memory_fd);
	assert_int_equal(io_memory_pinned(), 0);
}

static void short_and_refused_transfers_of_pinned_memory_are_continued(void **state)
{
	static const char *const faults[] = {"io.write.short=8192@%2,io.read.short=8192@%2",
		"io.write.short=4096@1,io.read.short=4096@1", "io.write.short=5000@%2,io.read.short=9000@%2",
		"io.write=-EINTR@1,io.read=-EAGAIN@1", "io.ring.submit=-EAGAIN@%2"};
	struct fixture *f = *state;
	int fds[2] = {f->fd, f->direct_fd}, memory_fd;
	uint8_t *memory = lent_memory(BUFFER, &memory_fd);

	for (int i = 0; i < 2; i++)
		for (size_t k = 0; k < sizeof(faults) / sizeof(faults[0]) && fds[i] >= 0; k++) {
			fault_arm(faults[k]);
			assert_int_equal(two_pieces_round_trip(f, fds[i], memory, 4096), 0);
			fault_disarm();
		}
	lent_memory_gone(memory, BUFFER, memory_fd);
}

/* Two pieces of memory each, forward or from the end; those that wait for the only place go together. */
static void move_all(struct fixture *f, enum io_kind kind, uint8_t *memory, unsigned n, bool backward)
{
	struct job jobs[40];

	assert_true(n <= 40);
	for (unsigned i = 0; i < n; i++) {
		unsigned k = backward ? n - 1 - i : i;

		jobs[i] = job_of(
			kind, f->direct_fd >= 0 ? f->direct_fd : f->fd, 12288 * k, memory + 12288 * k + 8192, 4096);
		jobs[i].op.iov[1] = (struct iovec){memory + 12288 * k, 8192};
		jobs[i].op.n_iov = 2;
	}
	for (unsigned i = 0; i < n; i++)
		job_start(f, &jobs[i]);
	while (io_in_flight(f->io))
		io_wait(f->io, loop_now() + SECOND);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(jobs[i].res, 12288);
}

static void what_goes_together_comes_back_exact(void **state)
{
	enum { N = 40, BYTES = N * 12288 };
	static const char *const faults[] = {"", "io.write.short=8192@%3,io.read.short=4096@%2",
		"io.write=-EINTR@%3,io.read=-EINTR@%2", "io.write=-EAGAIN@%7,io.read=-EAGAIN@%5"};
	struct fixture *f = *state;
	int memory_fd;
	uint8_t *memory = lent_memory(BUFFER, &memory_fd);

	io_close(f->io);
	assert_int_equal(open_with_depth(f, 1), 0);
	for (unsigned i = 0; i < 4 * sizeof(faults) / sizeof(faults[0]); i++) {
		for (unsigned k = 0; k < BYTES; k++)
			memory[k] = (uint8_t)(f->out[k] + i);
		if (faults[i / 4][0])
			fault_arm(faults[i / 4]);
		move_all(f, IO_WRITE, memory, N, i & 1);
		memset(memory, 0, BYTES);
		move_all(f, IO_READ, memory, N, i & 2);
		fault_disarm();
		for (unsigned k = 0; k < BYTES; k++)
			if (memory[k] != (uint8_t)(f->out[k] + i))
				fail_msg("round %u: byte %u is another one", i, k);
	}
	lent_memory_gone(memory, BUFFER, memory_fd);
}

static int pinning_refused(void *arg)
{
	struct late *late = arg;
	struct fixture *f = late->f;
	struct rlimit limit = {1 << 16, 1 << 16};
	int memory_fd;
	uint8_t *memory = lent_memory(BUFFER, &memory_fd), *second = lent_memory(16384, &memory_fd);

	CHILD_CHECK(freopen(late->log, "w", stderr));
	if (late->fault)
		fault_arm(late->fault);
	else if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0 || setresuid(65534, 65534, 65534) < 0)
		return 77;
	CHILD_CHECK(open_with_depth(f, 8) == 0 && io_is_uring(f->io));
	for (unsigned i = 0; i < 3; i++)
		if (two_pieces_round_trip(f, f->fd, memory, 0) != 0)
			return 1;
	CHILD_CHECK(io_memory_pinned() == 0 && io_is_uring(f->io));
	io_memory_take_back(memory);
	if (!late->fault) { /* there is room for this one, and it is found when the ring is asked anew */
		io_close(f->io);
		CHILD_CHECK(open_with_depth(f, 8) == 0 && io_is_uring(f->io));
		CHILD_CHECK(put(f, f->fd, 0, second, 16384) == 16384 && io_memory_pinned() == 16384);
	}
	io_close(f->io);
	return 0;
}

static void where_memory_cannot_be_pinned_one_line_says_so_and_the_ring_serves(void **state)
{
	struct fixture *f = *state;
	struct late lates[] = {{f, "io.pin=-ENOMEM", ""}, {f, "io.pin=-EPERM", ""}, {f, NULL, ""}};

	if (!f->uring)
		skip();
	for (size_t i = 0; i < sizeof(lates) / sizeof(lates[0]); i++) {
		int r;

		snprintf(lates[i].log, sizeof(lates[i].log), "%s/log", f->dir);
		r = in_child(pinning_refused, &lates[i]);
		if (r == 77)
			continue; /* not root: this user may have locked memory elsewhere */
		assert_int_equal(r, 0);
		assert_int_equal(lines_with(lates[i].log, "pinning memory for disk I/O"), 1);
	}
}

/* The kernel may take one part of an operation and not the other. */
static int refused_between_parts(void *arg)
{
	struct late *late = arg;
	struct fixture *f = late->f;
	int memory_fd;
	uint8_t *memory = lent_memory(BUFFER, &memory_fd);

	CHILD_CHECK(freopen(late->log, "w", stderr));
	CHILD_CHECK(open_with_depth(f, 8) == 0 && io_is_uring(f->io));
	if (two_pieces_round_trip(f, f->fd, memory, 0) != 0)
		return 1;
	CHILD_CHECK(io_memory_pinned() == BUFFER);
	fault_arm(late->fault);
	if (two_pieces_round_trip(f, f->fd, memory, 0) != 0)
		return 1;
	CHILD_CHECK(!io_is_uring(f->io));
	io_close(f->io);
	return 0;
}

static void refused_while_memory_is_pinned_threads_take_over(void **state)
{
	struct fixture *f = *state;
	struct late lates[] = {{f, "io.ring=-EOPNOTSUPP", ""}, {f, "io.ring.submit=-EPERM@1", ""}};

	for (size_t i = 0; i < sizeof(lates) / sizeof(lates[0]); i++) {
		snprintf(lates[i].log, sizeof(lates[i].log), "%s/log", f->dir);
		assert_int_equal(in_child(refused_between_parts, &lates[i]), 0);
		assert_int_equal(lines_with(lates[i].log, "not io_uring"), 1);
	}
}

static void many_requests_of_pinned_memory_come_back_exact(void **state)
{
	enum { N = 64, SIZE = 16384, ROUNDS = 40 };
	struct fixture *f = *state;
	int memory_fd, fd = f->direct_fd >= 0 ? f->direct_fd : f->fd;
	uint8_t *memory = lent_memory(BUFFER, &memory_fd);
	static struct job jobs[N];
	uint64_t deadline = loop_now() + 60 * SECOND;

	for (unsigned round = 0; round < ROUNDS; round++) {
		bool write = round % 2 == 0;

		for (unsigned i = 0; i < N; i++) {
			memset(memory + SIZE * i, write ? (int)(i + round) : 0xee, SIZE);
			jobs[i] = job_of(write ? IO_WRITE : IO_READ, fd, (uint64_t)SIZE * i, memory + SIZE * i, 4096);
			jobs[i].op.iov[1] = (struct iovec){memory + SIZE * i + 4096, SIZE - 4096};
			jobs[i].op.n_iov = 2;
			job_start(f, &jobs[i]);
		}
		while (io_in_flight(f->io) && loop_now() < deadline)
			io_wait(f->io, deadline);
		for (unsigned i = 0; i < N; i++) {
			assert_int_equal(jobs[i].n_done, 1);
			assert_int_equal(jobs[i].res, SIZE);
			for (unsigned k = 0; !write && k < SIZE; k += 512)
				assert_int_equal(memory[SIZE * i + k], (uint8_t)(i + round - 1));
		}
	}
	lent_memory_gone(memory, BUFFER, memory_fd);
}

#define ALL(test) \
	{#test " (io_uring)", test, setup, teardown, &with_uring}, \
		{#test " (threads)", test, setup, teardown, &with_threads}, \
	{ \
#test " (worker)", test, setup, teardown, &with_worker \
	}
#define ENGINES(test) \
	{#test " (io_uring)", test, setup, teardown, &with_uring}, \
	{ \
#test " (threads)", test, setup, teardown, &with_threads \
	}
#define WORKER(test) \
	{ \
#test, test, setup, teardown, &with_worker \
	}
#define RING(test) \
	{ \
#test, test, setup, teardown, &with_uring \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ALL(the_engine_asked_for_serves_and_the_message_names_it),
		ALL(what_was_written_is_read_back),
		ALL(two_pieces_of_memory_go_down_as_one_and_come_back),
		ALL(nothing_at_all_is_moved_at_once),
		ALL(a_read_past_the_end_is_enodata),
		ALL(short_transfers_are_continued),
		ALL(a_transfer_that_never_gets_anywhere_ends_with_eio),
		ALL(interrupted_and_refused_for_now_is_tried_again),
		RING(trying_again_has_an_end),
		ALL(an_error_is_told_once_and_the_next_operation_is_served),
		ALL(an_operation_that_is_wrong_for_both_engines_changes_none),
		ALL(a_ring_of_8_survives_100000_requests_of_64_clients),
		ENGINES(a_read_overtakes_the_writes_that_wait),
		WORKER(the_worker_takes_a_read_before_the_writes_that_wait_for_it),
		ALL(what_is_worked_out_for_an_operation_is_there_when_it_starts_and_when_it_is_told),
		RING(writes_that_hang_leave_places_to_reads),
		RING(no_more_bytes_are_being_written_than_a_device_needs),
		RING(fewer_bytes_are_being_written_while_somebody_reads),
		RING(soon_after_a_read_few_bytes_are_being_written),
		RING(small_ones_that_lie_side_by_side_share_a_place),
		ALL(a_stream_of_reads_does_not_stop_a_write_for_ever),
		ALL(offsets_beyond_2_and_4_gib_are_exact),
		ALL(a_transfer_over_2_gib_is_told_in_full),
		ALL(the_descriptor_is_readable_when_there_is_something_to_reap),
		ALL(both_loops_serve_the_engine_as_a_source),
		ALL(closing_waits_for_what_is_in_flight),
		ALL(the_engines_threads_block_all_signals_but_those_of_faults),
		ALL(the_lock_file_is_locked_as_long_as_the_engine_lives),
		ALL(the_lock_falls_when_the_process_is_killed),
		RING(where_set_up_or_enter_is_refused_threads_serve),
		RING(where_register_is_refused_the_ring_serves_without),
		RING(where_single_operations_are_refused_at_start_threads_serve),
		RING(refused_while_running_threads_take_over_and_one_line_says_so),
		RING(a_kernel_short_of_memory_is_asked_again),
		ALL(lent_memory_is_pinned_when_first_used_and_let_go_when_taken_back),
		ALL(after_a_punch_the_new_pages_are_written_not_those_that_were_pinned),
		ALL(pinned_memory_goes_with_its_ring),
		ALL(what_is_partly_lent_or_crosses_two_pieces_moves_all_the_same),
		ALL(short_and_refused_transfers_of_pinned_memory_are_continued),
		RING(where_memory_cannot_be_pinned_one_line_says_so_and_the_ring_serves),
		RING(refused_while_memory_is_pinned_threads_take_over),
		ALL(many_requests_of_pinned_memory_come_back_exact),
		ALL(what_goes_together_comes_back_exact),
	};

	return cmocka_run_group_tests_name("io", tests, NULL, NULL);
}
