/* test_spill_crash.c - the spill store when its process is killed, and at offsets beyond 4 GiB */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include "refuse.h"
#include "spill_fixture.h"

#define MIB (1ull << 20)
#define KEYS 64

static int setup(void **state)
{
	*state = fixture_new(*state, 16 * MIB, MIB);
	return 0;
}

static int teardown(void **state)
{
	fixture_free(*state);
	return 0;
}

/* ---- killed at random moments ---- */

/* Lengths and contents alternate with the version. */
static uint64_t version_bytes(unsigned version)
{
	return 1000 + version % 7 * 9000;
}

/* What the writer tells the outside, in shared memory. */
struct diary {
	_Atomic unsigned n_written; /* done() said so */
	_Atomic unsigned started;
};

struct writer {
	struct fixture *f;
	struct diary *diary;
	unsigned start;
};

struct flight {
	struct block block; /* what lies in memory */
	struct writer *writer;
	uint8_t *memory;
	bool busy;
};

static void flight_done(void *owner, int res, spill_place place)
{
	struct flight *flight = owner;
	struct fixture *f = flight->writer->f;
	struct block *b = &f->blocks[flight->block.k];

	flight->busy = false;
	if (res < 0)
		return;
	if (b->place)
		spill_forget(f->spill, b->place);
	b->place = place;
	atomic_fetch_add(&flight->writer->diary->n_written, 1);
}

/* Writes versions of random keys, many at once, until it is killed. */
static int write_until_killed(struct writer *writer)
{
	enum { FLIGHTS = 12 };
	struct fixture *f = writer->f;
	struct flight flights[FLIGHTS] = {0};
	unsigned seed = 99 + writer->start * 7, version = writer->start * 1000000;

	if (fixture_open(f) < 0)
		return 1;
	for (unsigned i = 0; i < FLIGHTS; i++) {
		flights[i].writer = writer;
		flights[i].memory = aligned_alloc(4096, 65536);
	}
	atomic_store(&writer->diary->started, 1);
	for (;;) {
		for (unsigned i = 0; i < FLIGHTS; i++) {
			struct flight *flight = &flights[i];
			struct spill_record record;

			if (flight->busy)
				continue;
			flight->block = (struct block){.k = (unsigned)rand_r(&seed) % KEYS, .version = ++version};
			flight->block.bytes = version_bytes(version);
			block_fill(&flight->block, flight->memory);
			record = block_record(&flight->block);
			/* the cookie is the key's block: what gone() will want */
			flight->busy = spill_write(f->spill, &record, flight->memory, &f->blocks[flight->block.k],
					       flight_done, flight) == 0;
		}
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
		spill_tick(f->spill);
	}
}

static void killed_at_any_moment_every_record_is_right_or_absent_and_space_is_bounded(void **state)
{
	enum { ROUNDS = 25 };
	struct fixture *f = *state;
	struct diary *diary = mmap(NULL, sizeof(*diary), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned seed = 2024, exact = 0, torn = 0, written = 0;

	for (unsigned round = 0; round < ROUNDS; round++) {
		struct writer writer = {f, diary, round};
		pid_t pid;

		atomic_store(&diary->started, 0);
		atomic_store(&diary->n_written, 0);
		fflush(NULL);
		pid = fork();
		if (pid == 0)
			_exit(write_until_killed(&writer));
		while (!atomic_load(&diary->started) && waitpid(pid, NULL, WNOHANG) == 0)
			usleep(200);
		/* after some writes and some time, so that a slow machine has something to kill too */
		for (unsigned n = (unsigned)rand_r(&seed) % 60, ms = 0; atomic_load(&diary->n_written) < n && ms < 2000;
			ms++)
			usleep(1000);
		usleep((unsigned)rand_r(&seed) % 20000);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		written += atomic_load(&diary->n_written);

		assert_int_equal(fixture_open(f), 0);
		assert_true(file_bytes(f, NULL) <= f->opts.capacity);
		assert_true(file_bytes(f, NULL) <= stats_of(f).used_bytes + MIB);
		for (unsigned k = 0; k < KEYS; k++) {
			int r = get(f, k);

			assert_true(r == 0 || r == -EBADMSG || r == -ENOENT);
			exact += r == 0;
			torn += r == -EBADMSG;
			if (f->blocks[k].n_found) /* length and content are of one version */
				assert_int_equal(f->blocks[k].bytes, version_bytes(f->blocks[k].version));
		}
		assert_int_equal(f->n_unknown, 0);
		assert_true(store_adds_up(f));
		fixture_close(f);
	}
	assert_true(written > 200);
	assert_true(exact > ROUNDS * KEYS / 2);
	assert_in_range(torn, 0, ROUNDS * 12); /* what was in flight, no more */
	munmap(diary, sizeof(*diary));
}

/* ---- the lock outlives a dead owner as long as its I/O ---- */

/* A store of three segments, two blocks a start; every other one is killed. */
static void fifty_starts_of_a_small_store_forget_nothing_that_fits(void **state)
{
	enum { STARTS = 50, EACH = 2, SIZE = 20000 };
	struct fixture *f = *state;

	f->opts.capacity = SPILL_SUPER_AREA + 3 * MIB;
	f->opts.segment_bytes = MIB;
	for (unsigned start = 0; start < STARTS; start++) {
		pid_t pid;
		int status;

		fflush(NULL);
		pid = fork();
		if (pid == 0) {
			if (fixture_open(f) < 0 || f->n_found != start * EACH)
				_exit(1);
			for (unsigned k = 0; k < EACH; k++)
				if (put(f, start * EACH + k, SIZE) < 0)
					_exit(2);
			if (f->n_gone)
				_exit(3);
			if (start % 2)
				raise(SIGKILL);
			spill_close(f->spill);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, start % 2 ? SIGKILL : 0);
	}
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->n_found, STARTS * EACH);
	for (unsigned k = 0; k < STARTS * EACH; k++)
		assert_int_equal(get(f, k), 0);
	assert_true(store_adds_up(f));
}

static void the_lock_of_a_dead_owner_whose_io_still_runs_is_waited_for(void **state)
{
	struct fixture *f = *state;
	uint64_t start;
	pid_t pid;

	pid = fork();
	if (pid == 0) {
		if (fixture_open(f) < 0 || put(f, 1, 5000) != 0)
			_exit(1);
		if (fork() == 0) { /* has the open file as an I/O in flight has it */
			usleep(1200000);
			_exit(0);
		}
		kill(getpid(), SIGKILL);
	}
	waitpid(pid, NULL, 0);
	start = loop_now();
	assert_int_equal(fixture_open(f), 0);
	assert_true(loop_now() - start > SPILL_SECOND / 4);
	assert_int_equal(get(f, 1), 0);
}

/* ---- B19 ---- */

static void records_across_and_beyond_2_and_4_gib_are_exact(void **state)
{
	static const struct spill_record none = {.bytes = 1};
	const uint64_t segment_bytes = 1ull << 30;
	/* in file offsets: ends at, starts at and straddles 2^31 and 2^32; a pair exactly 2^32 apart */
	static const uint64_t offs[] = {(1ull << 31) - 16384, 1ull << 31, (1ull << 32) - 8192, (1ull << 32) + 12288,
		(1ull << 20), (1ull << 20) + (1ull << 32), (2ull << 32) + (1ull << 20)};
	enum { N = sizeof(offs) / sizeof(offs[0]) };
	struct fixture *f = *state;
	struct statfs fs;

	assert_int_equal(statfs(f->dir, &fs), 0);
	if ((uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize < 12ull << 30 || fs.f_type == 0x01021994 /* tmpfs */) {
		print_message("skipped: needs 12 GiB of disk in %s\n", f->dir);
		skip();
	}
	f->opts.segment_bytes = segment_bytes;
	f->opts.capacity = SPILL_SUPER_AREA + 9 * segment_bytes;
	assert_int_equal(fixture_open(f), 0);
	for (unsigned k = 0; k < N; k++) {
		struct spill *spill = f->spill;
		uint32_t i = (uint32_t)((offs[k] - SPILL_SUPER_AREA) / segment_bytes);

		while (spill->n_present <= i) {
			segment_allocate(spill);
			while (spill->allocating)
				spill_wait(spill, loop_now() + SPILL_SECOND);
		}
		/* have the store write just there */
		if (spill->open != i) {
			spill->open = SPILL_NO_SEGMENT;
			spill->segments[i].state = SEGMENT_OPEN;
			spill->segments[i].sequence = spill->next_sequence++;
			spill->open = i;
		}
		spill->segments[i].used = offs[k] - segment_off(spill, i);
		assert_true(segment_add(spill, i, 0, &none, RECORD_DEAD) >= 0); /* not the first: that writes more */
		assert_int_equal(put(f, k, 12288), 0);
		assert_int_equal(block_off(f, k), offs[k]);
	}
	for (unsigned k = 0; k < N; k++)
		assert_int_equal(get(f, k), 0);
	/* one whole segment each, found again by a start */
	fixture_close(f);
	unlink(f->path);
	assert_int_equal(fixture_open(f), 0);
	for (unsigned k = 0; k < 9; k++) {
		assert_int_equal(put(f, k, 12288 + k), 0);
		segment_close(f->spill);
		settle(f);
	}
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(f->n_found, 9);
	for (unsigned k = 0; k < 9; k++)
		assert_int_equal(get(f, k), 0);
	assert_true(file_bytes(f, NULL) > 1ull << 33);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		EACH_WAY(killed_at_any_moment_every_record_is_right_or_absent_and_space_is_bounded),
		EACH_WAY(fifty_starts_of_a_small_store_forget_nothing_that_fits),
		EACH_WAY(the_lock_of_a_dead_owner_whose_io_still_runs_is_waited_for),
		EACH_WAY(records_across_and_beyond_2_and_4_gib_are_exact),
	};

	return cmocka_run_group_tests_name("spill crashes", tests, NULL, NULL);
}
