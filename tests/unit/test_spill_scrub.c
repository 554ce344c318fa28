/* test_spill_scrub.c - what is cold is read again, and what was dropped does not come back */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>

#include "spill_fixture.h"

#define MIB (1ull << 20)
#define N 40

static int setup(void **state)
{
	struct fixture *f = fixture_new(*state, 64 * MIB, 4 * MIB);

	*state = f;
	if (fixture_open(f) < 0)
		return -1;
	for (unsigned k = 0; k < N; k++)
		assert_int_equal(put(f, k, 300000), 0);
	return 0;
}

static int teardown(void **state)
{
	fixture_free(*state);
	return 0;
}

static void damage(struct fixture *f, unsigned k)
{
	int fd = open(f->path, O_RDWR | O_CLOEXEC);
	off_t off = (off_t)(data_off(f, k) + 12345);
	uint8_t byte = 0;

	assert_true(fd >= 0 && pread(fd, &byte, 1, off) == 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, off), 1);
	fsync(fd);
	close(fd);
}

static int drop(struct fixture *f, uint64_t ns_id)
{
	int res = 1, r = spill_drop(f->spill, ns_id, flush_done, &res);

	if (r < 0)
		return r;
	assert_int_equal(spill_drop(f->spill, ns_id, flush_done, &res), -EBUSY);
	while (res > 0)
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
	return res;
}

static void wait_for_pass(struct fixture *f)
{
	uint64_t until = loop_now() + 20 * SPILL_SECOND;

	while (!stats_of(f).scrub_passes && loop_now() < until) {
		spill_wait(f->spill, loop_now() + SPILL_SECOND / 10);
		spill_tick(f->spill);
	}
	assert_int_equal(stats_of(f).scrub_passes, 1);
}

static void a_scrub_finds_the_damaged_record_and_no_other(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(flush(f), 0);
	damage(f, 17);
	spill_scrub_now(f->spill, 1000 * MIB);
	wait_for_pass(f);
	assert_int_equal(stats_of(f).scrub_damaged, 1);
	assert_int_equal(stats_of(f).damaged, 1);
	assert_int_equal(f->n_gone, 1);
	assert_int_equal(f->blocks[17].n_gone, 1);
	assert_int_equal(stats_of(f).live_records, N - 1);
	assert_int_equal(stats_of(f).scrub_bytes, N * span_of(f, 300000));
	for (unsigned k = 0; k < N; k++)
		assert_int_equal(get(f, k), k == 17 ? -ENOENT : 0);
	assert_true(store_adds_up(f));
}

/* A thousand of them are no thousand lines; the store is named, and how many there are. */
static void damage_is_logged_whether_a_reader_or_a_scrub_finds_it(void **state)
{
	struct fixture *f = *state;
	struct log_catch caught;
	char name[160];

	assert_int_equal(flush(f), 0);
	for (unsigned k = 10; k < 20; k++)
		damage(f, k);
	snprintf(name, sizeof(name), "spill store %s: the record at byte", f->path);
	caught = log_catch();
	assert_int_equal(get(f, 10), -EBADMSG);
	assert_int_equal(log_lines(&caught, name), 1);
	caught = log_catch();
	f->spill->health.read_limit.next_ns = 0;
	spill_scrub_now(f->spill, 1000 * MIB);
	wait_for_pass(f);
	assert_in_range(log_lines(&caught, name), 1, 9);
	assert_int_equal(stats_of(f).damaged, 10);
	assert_int_equal(log_lines(&caught, "kvctl store verify"), log_lines(&caught, name));
}

static void a_scrub_reads_no_more_than_its_rate(void **state)
{
	struct fixture *f = *state;

	uint64_t rate = 2 * span_of(f, 300000), start = loop_now(), seconds;

	spill_scrub_now(f->spill, rate);
	for (unsigned i = 0; i < 100; i++) { /* time has to go by, not calls */
		spill_wait(f->spill, loop_now() + SPILL_SECOND / 100);
		spill_tick(f->spill);
	}
	seconds = (loop_now() - start) / SPILL_SECOND + 1;
	assert_true(stats_of(f).scrub_bytes >= rate);
	assert_true(stats_of(f).scrub_bytes <= (seconds + 1) * rate + rate / 2); /* the last one may go beyond it */
}

/* What the worker found, before the loop was told: nothing orders the two, the bell was rung after it. */
static NO_TSAN bool scrub_found_right(const struct fixture *f)
{
	return f->spill->scrub.right;
}

static void a_long_record_is_hashed_for_a_scrub_off_the_loop(void **state)
{
	struct fixture *f = *state;
	struct pollfd bell;

	assert_int_equal(drop(f, 0), 0);
	fixture_reopen(f);
	assert_int_equal(put(f, 0, BLOCK_MAX), 0);
	for (unsigned i = 0; i < 20; i++) /* the store's own operations end too */
		spill_wait(f->spill, loop_now() + SPILL_SECOND / 100);
	bell = (struct pollfd){.fd = spill_fd(f->spill), .events = POLLIN};
	assert_int_equal(poll(&bell, 1, 0), 0);
	assert_int_equal(spill_scrub_now(f->spill, 64 * MIB), span_of(f, BLOCK_MAX));
	assert_true(f->spill->scrub.busy);
	assert_int_equal(poll(&bell, 1, 20000), 1); /* the loop does nothing meanwhile */
	assert_true(scrub_found_right(f));
	assert_int_equal(stats_of(f).scrub_bytes, 0); /* it has not even looked */
	spill_reap(f->spill);
	assert_true(stats_of(f).scrub_bytes > BLOCK_MAX);
	assert_int_equal(stats_of(f).scrub_damaged, 0);
}

static void the_first_pass_waits_until_the_start_is_over(void **state)
{
	struct fixture *f = *state;

	spill_scrub_rate(f->spill, 1000 * MIB);
	for (unsigned i = 0; i < 5; i++) {
		spill_tick(f->spill);
		settle(f);
	}
	assert_int_equal(stats_of(f).scrub_bytes, 0);
}

static void a_segment_that_is_read_for_a_scrub_is_not_reused(void **state)
{
	struct fixture *f = *state;

	spill_scrub_now(f->spill, 1000 * MIB);
	for (unsigned k = 100; k < 600; k++) /* three times the capacity, beside it */
		assert_int_equal(put(f, k, 300000), 0);
	settle(f);
	assert_int_equal(stats_of(f).scrub_damaged, 0);
	assert_int_equal(stats_of(f).damaged, 0);
	assert_true(store_adds_up(f));
}

static void what_was_dropped_does_not_come_back(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(drop(f, NS_ID), 0);
	for (unsigned k = N; k < N + 5; k++) /* written after it: they count */
		assert_int_equal(put(f, k, 300000), 0);
	for (unsigned starts = 0; starts < 3; starts++) {
		assert_int_equal(fixture_reopen(f), 0);
		assert_int_equal(f->n_found, 5);
		for (unsigned k = 0; k < N + 5; k++)
			assert_int_equal(get(f, k), k < N ? -ENOENT : 0);
		assert_true(store_adds_up(f));
	}
}

static void what_is_written_after_a_drop_and_a_start_is_there_at_the_next(void **state)
{
	static const uint64_t of[] = {NS_ID, NS_ID + 1, 0};
	struct fixture *f = *state;

	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(put(f, N, 300000), 0);
		assert_int_equal(drop(f, of[i]), 0);
		assert_int_equal(fixture_reopen(f), 0);
		assert_int_equal(put(f, N + 1, 300000), 0);
		assert_int_equal(fixture_reopen(f), 0);
		assert_int_equal(get(f, N + 1), 0);
		assert_int_equal(get(f, N), of[i] == NS_ID + 1 ? 0 : -ENOENT);
	}
}

static void a_drop_of_all_takes_every_namespace(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(drop(f, 0), 0);
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(f->n_found, 0);
}

static void a_drop_of_another_namespace_leaves_ours(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(drop(f, NS_ID + 1), 0);
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(f->n_found, N);
}

static void a_drop_that_cannot_be_written_says_so(void **state)
{
	struct fixture *f = *state;

	fault_arm("io.write=-EIO");
	assert_int_equal(drop(f, NS_ID), -EIO);
	fault_disarm();
	assert_int_equal(drop(f, NS_ID), 0); /* nothing is left behind that would refuse it */
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(f->n_found, 0);
}

static void marks_of_too_many_namespaces_are_refused_until_all_is_dropped(void **state)
{
	struct fixture *f = *state;

	for (uint64_t id = 0; id < SPILL_DROPS_MAX - 1; id++) /* one place is for a mark for all */
		assert_int_equal(drop(f, 1000 + id), 0);
	assert_int_equal(drop(f, 5000), -ENOSPC);
	assert_int_equal(drop(f, 1003), 0); /* that one has its mark */
	assert_int_equal(drop(f, 0), 0);
	assert_int_equal(drop(f, 5000), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BY_RING(a_scrub_finds_the_damaged_record_and_no_other),
		BY_RING(damage_is_logged_whether_a_reader_or_a_scrub_finds_it),
		BY_RING(a_scrub_reads_no_more_than_its_rate),
		BY_RING(a_long_record_is_hashed_for_a_scrub_off_the_loop),
		BY_RING(the_first_pass_waits_until_the_start_is_over),
		BY_RING(a_segment_that_is_read_for_a_scrub_is_not_reused),
		BY_RING(what_was_dropped_does_not_come_back),
		BY_RING(what_is_written_after_a_drop_and_a_start_is_there_at_the_next),
		BY_RING(a_drop_of_all_takes_every_namespace),
		BY_RING(a_drop_of_another_namespace_leaves_ours),
		BY_RING(a_drop_that_cannot_be_written_says_so),
		BY_RING(marks_of_too_many_namespaces_are_refused_until_all_is_dropped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
