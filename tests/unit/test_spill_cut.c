/*
 * test_spill_cut.c - the spill store when the power is cut: of what was written since the last flush any sector may be
 * lost
 *
 * The writes of the threads' engine are taken here, pwritev(), pwrite() and fdatasync() being defined in this program:
 * what each sector held is kept, in memory shared with the test, until a flush.  A cut is a SIGKILL, after which some
 * of these sectors, by the toss of a coin, or all of them, get back what they held.
 *
 * kvpool-test: timeout=300
 */
#define _GNU_SOURCE 1
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spill_fixture.h"

#define MIB (1ull << 20)
#define CAPACITY (8 * MIB)
#define SECTOR 512u
#define SECTORS (CAPACITY / SECTOR)
#define SIZE_OF(k) (1000 + (k) % 7 * 9000)

/* ---- the drive ---- */

/* Shared with the process that is killed. */
struct drive {
	bool unflushed[SECTORS];
	_Alignas(SECTOR) uint8_t held[SECTORS][SECTOR];
};
static struct drive *drive; /* NULL: everything is durable at once */
static pthread_mutex_t drive_lock = PTHREAD_MUTEX_INITIALIZER;

static void drive_keep(int fd, uint64_t off, uint64_t n)
{
	uint64_t i = off / SECTOR, last = (off + n + SECTOR - 1) / SECTOR, to;

	for (last = last < SECTORS ? last : SECTORS; i < last; i = to) {
		for (to = i; to < last && drive->unflushed[to] == drive->unflushed[i]; to++)
			;
		if (drive->unflushed[i])
			continue;
		memset(drive->held[i], 0, (to - i) * SECTOR);
		if (syscall(SYS_pread64, fd, drive->held[i], (to - i) * SECTOR, i * SECTOR) < 0)
			abort();
		memset(drive->unflushed + i, true, to - i);
	}
}

ssize_t pwritev(int fd, const struct iovec *iov, int n_iov, off_t off)
{
	uint64_t n = 0;
	ssize_t r;

	for (int i = 0; i < n_iov; i++)
		n += iov[i].iov_len;
	pthread_mutex_lock(&drive_lock);
	if (drive)
		drive_keep(fd, (uint64_t)off, n);
	r = syscall(SYS_pwritev, fd, iov, n_iov, off, 0);
	pthread_mutex_unlock(&drive_lock);
	return r;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t off)
{
	struct iovec iov = {(void *)(uintptr_t)data, n};

	return pwritev(fd, &iov, 1, off);
}

int fdatasync(int fd)
{
	(void)fd;
	pthread_mutex_lock(&drive_lock);
	if (drive)
		memset(drive->unflushed, 0, sizeof(drive->unflushed));
	pthread_mutex_unlock(&drive_lock);
	return 0;
}

/* Return: sectors that got back what they held. */
static unsigned drive_cut(const char *path, unsigned *seed, bool all)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	unsigned n = 0;

	for (unsigned i = 0; i < SECTORS && fd >= 0; i++) {
		if (!drive->unflushed[i] || (!all && rand_r(seed) % 2))
			continue;
		assert_int_equal(syscall(SYS_pwrite64, fd, drive->held[i], SECTOR, i * SECTOR), SECTOR);
		n++;
	}
	close(fd);
	memset(drive->unflushed, 0, sizeof(drive->unflushed));
	return n;
}

/* ---- who writes, and what may be asked of the store afterwards ---- */

enum fate {
	NOT_TRIED,
	TRIED,
	WRITTEN,
	FLUSHING,
	KEPT,
	GONE,
	DELETING, /* a list with it is on its way */
	DELETED,
	FLUSHING_DELETED,
	DELETED_FOR_GOOD,
};

struct diary {
	_Atomic uint8_t fate[BLOCKS];
	_Atomic unsigned next, n_kept, n_right, n_deleted;
	_Atomic bool started;
};
static struct diary *diary;

static void cut_gone(void *owner, void *cookie)
{
	struct fixture *f = owner;
	struct block *b = cookie;

	b->place = 0;
	f->n_gone++;
	atomic_store(&diary->fate[b->k], GONE);
}

static struct way with_threads_and_sectors = {false, SPILL_UNIT_MIN};

static int setup(void **state)
{
	struct fixture *f = fixture_new(*state, CAPACITY, MIB / 2);

	f->opts.gone = cut_gone;
	drive = mmap(NULL, sizeof(*drive), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	diary = mmap(NULL, sizeof(*diary), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	*state = f;
	return drive == MAP_FAILED || diary == MAP_FAILED;
}

static int teardown(void **state)
{
	munmap(drive, sizeof(*drive));
	munmap(diary, sizeof(*diary));
	drive = NULL;
	fixture_free(*state);
	return 0;
}

struct flight {
	struct block *block;
	uint8_t *memory;
	bool busy;
};

static void flight_done(void *owner, int res, spill_place place)
{
	struct flight *flight = owner;
	struct block *b = flight->block;

	flight->busy = false;
	if (res < 0)
		return;
	b->place = place;
	atomic_store(&diary->fate[b->k], WRITTEN);
}

static void all_flushed(void *owner, int res, spill_place place)
{
	(void)place;
	*(bool *)owner = false;
	for (unsigned k = 0; k < atomic_load(&diary->next) && res == 0; k++)
		if (atomic_load(&diary->fate[k]) == FLUSHING) {
			atomic_store(&diary->fate[k], KEPT);
			atomic_fetch_add(&diary->n_kept, 1);
		} else if (atomic_load(&diary->fate[k]) == FLUSHING_DELETED) {
			atomic_store(&diary->fate[k], DELETED_FOR_GOOD);
			atomic_fetch_add(&diary->n_deleted, 1);
		}
}

static void flush_some(struct fixture *f, bool *flushing)
{
	for (unsigned k = 0; k < atomic_load(&diary->next); k++)
		if (atomic_load(&diary->fate[k]) == WRITTEN)
			atomic_store(&diary->fate[k], FLUSHING);
		else if (atomic_load(&diary->fate[k]) == DELETED)
			atomic_store(&diary->fate[k], FLUSHING_DELETED);
	*flushing = spill_flush(f->spill, all_flushed, flushing) == 0;
}

/* The start after a cut.  What is found now is on the drive, and is asked for after later cuts too. */
static bool look(struct fixture *f)
{
	if (fixture_open(f) < 0)
		return false;
	for (unsigned k = 0; k < atomic_load(&diary->next); k++) {
		int r = get(f, k);

		if (atomic_load(&diary->fate[k]) == DELETED_FOR_GOOD) {
			if (r == -ENOENT)
				continue;
			print_message("block %u was deleted and is found: %d\n", k, r);
			return false;
		}
		if (r != 0 && (atomic_load(&diary->fate[k]) == KEPT || (r != -EBADMSG && r != -ENOENT))) {
			print_message("block %u, fate %u: %d\n", k, atomic_load(&diary->fate[k]), r);
			return false;
		}
		if (r == 0)
			atomic_fetch_add(&diary->n_right, 1);
		atomic_store(&diary->fate[k], r == 0 ? KEPT : GONE);
	}
	return f->n_unknown == 0 && store_adds_up(f);
}

/* A new block on its way, where there is room for one. */
static void write_one(struct fixture *f, struct flight *flight)
{
	unsigned k = atomic_load(&diary->next);
	struct spill_record record;

	if (k == BLOCKS)
		return;
	flight->block = &f->blocks[k];
	*flight->block = (struct block){.k = k, .version = 1, .bytes = SIZE_OF(k)};
	block_fill(flight->block, flight->memory);
	record = block_record(flight->block);
	atomic_store(&diary->fate[k], TRIED);
	flight->busy = spill_write(f->spill, &record, flight->memory, flight->block, flight_done, flight) == 0;
	if (flight->busy)
		atomic_store(&diary->next, k + 1);
}

static void one_deleted(void *owner, int res, spill_place place)
{
	_Atomic uint8_t *fate = owner;

	(void)place;
	if (res == 0)
		atomic_store(fate, DELETED);
}

/* One that was on the drive, whether it is there still or not. */
static void delete_one(struct fixture *f, unsigned k)
{
	struct spill_kill kill = {.ns_id = NS_ID};
	struct block *b = &f->blocks[k];

	if (atomic_load(&diary->fate[k]) != KEPT)
		return;
	b->k = k;
	kill.key = block_record(b).key;
	atomic_store(&diary->fate[k], DELETING); /* before: the call may be the last thing that is done */
	if (spill_kill(f->spill, &kill, 1, one_deleted, &diary->fate[k]) < 0) {
		uint8_t fate = DELETING; /* else it went meanwhile, for want of room */

		atomic_compare_exchange_strong(&diary->fate[k], &fate, KEPT);
		return;
	}
	if (b->place)
		spill_forget(f->spill, b->place);
	b->place = 0;
}

/* Many at once, deletions too, and now and then a flush; until it is killed. */
static int serve_until_cut(struct fixture *f, unsigned seed)
{
	struct flight flights[6] = {0};
	bool flushing = false;

	if (!look(f) || (seed % 3 == 0 && fixture_reopen(f) < 0)) /* a stop in order: that seals what is open */
		return 1;
	for (unsigned i = 0; i < 6; i++)
		flights[i].memory = aligned_alloc(4096, 65536);
	atomic_store(&diary->started, true);
	for (;;) {
		for (unsigned i = 0; i < 6; i++)
			if (!flights[i].busy)
				write_one(f, &flights[i]);
		if (atomic_load(&diary->next) && rand_r(&seed) % 2)
			delete_one(f, (unsigned)rand_r(&seed) % atomic_load(&diary->next));
		if (!flushing && rand_r(&seed) % 16 == 0)
			flush_some(f, &flushing);
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
		spill_tick(f->spill);
	}
}

static void cut_again_and_again(struct fixture *f, bool all, unsigned seed)
{
	enum { ROUNDS = 40 };
	unsigned n_lost = 0;

	for (unsigned round = 0; round < ROUNDS; round++) {
		unsigned from = atomic_load(&diary->next), n = (unsigned)rand_r(&seed) % 120;
		pid_t pid;
		int status;

		atomic_store(&diary->started, false);
		fflush(NULL);
		pid = fork();
		if (pid == 0)
			_exit(serve_until_cut(f, seed));
		/* in the midst of the start too */
		for (unsigned n_waits = 0; round % 4 != 3 && !atomic_load(&diary->started) && n_waits < 60000;
			n_waits++)
			usleep(200);
		for (unsigned ms = 0; round % 4 != 3 && atomic_load(&diary->next) - from < n && ms < 2000; ms++)
			usleep(1000);
		usleep((unsigned)rand_r(&seed) % 5000);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status));
		n_lost += drive_cut(f->path, &seed, all);
	}
	assert_true(look(f));
	print_message(
		"%u cuts: %u sectors lost, %u blocks asked for and right, %u of them flushed by the writer, %u deleted for good\n",
		ROUNDS, n_lost, atomic_load(&diary->n_right), atomic_load(&diary->n_kept),
		atomic_load(&diary->n_deleted));
	assert_true(atomic_load(&diary->n_deleted) > ROUNDS / 4);
	assert_true(atomic_load(&diary->n_right) > ROUNDS * 20);
	assert_true(n_lost > ROUNDS);
	assert_true(atomic_load(&diary->n_kept) > ROUNDS);
}

static void after_a_power_cut_that_tears_what_was_flushed_is_there_and_all_else_right_or_absent(void **state)
{
	cut_again_and_again(*state, false, 1);
}

static void after_a_power_cut_that_loses_all_unflushed_what_was_flushed_is_there(void **state)
{
	cut_again_and_again(*state, true, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BY(after_a_power_cut_that_tears_what_was_flushed_is_there_and_all_else_right_or_absent, with_threads),
		BY(after_a_power_cut_that_tears_what_was_flushed_is_there_and_all_else_right_or_absent,
			with_threads_and_sectors),
		BY(after_a_power_cut_that_loses_all_unflushed_what_was_flushed_is_there, with_threads),
		BY(after_a_power_cut_that_loses_all_unflushed_what_was_flushed_is_there, with_threads_and_sectors),
	};

	return cmocka_run_group_tests_name("spill power cuts", tests, NULL, NULL);
}
