/* test_spill_fault.c - the spill store when disk, file system or kernel fail it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "refuse.h"
#include "spill_fixture.h"

#define MIB (1ull << 20)
#define SIZE 500000 /* 8 to a segment of 4 MiB */

static int setup(void **state)
{
	struct fixture *f = fixture_new(*state, 64 * MIB, 4 * MIB);

	*state = f;
	return fixture_open(f);
}

static int teardown(void **state)
{
	fixture_free(*state);
	return 0;
}

/* A tick, and all it starts. */
static void wait_for_all(struct fixture *f)
{
	while (io_in_flight(f->spill->io))
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
}

static void tick(struct fixture *f)
{
	spill_tick(f->spill);
	wait_for_all(f);
}

/* As if the time for the next probes had come. */
static void tick_in_time(struct fixture *f)
{
	wait_for_all(f); /* a look at the file may be under way */
	f->spill->health.probe_at_ns = 0;
	f->spill->no_space_until_ns = 0;
	for (uint32_t i = 0; i < f->spill->n_present; i++)
		f->spill->segments[i].probe_at_ns = 0;
	tick(f);
}

static uint32_t segment_of(struct fixture *f, unsigned k)
{
	uint32_t i;

	assert_non_null(segment_find(f->spill, f->blocks[k].place, &i));
	return i;
}

/* ---- writes ---- */

static void a_failed_write_is_not_recorded_counted_and_told_with_path_and_errno(void **state)
{
	struct fixture *f = *state;
	struct spill_stats s;

	assert_int_equal(put(f, 0, SIZE), 0);
	fault_arm("io.write=-EIO@1");
	assert_int_equal(put(f, 1, SIZE), -EIO);
	s = stats_of(f);
	assert_int_equal(f->blocks[1].place, 0);
	assert_int_equal(s.live_records, 1);
	assert_int_equal(s.write_errors, 1);
	assert_int_equal(s.state, SPILL_DOWN);
	assert_int_equal(s.last_errno, EIO);
	assert_non_null(strstr(s.message, f->path));
	assert_non_null(strstr(s.message, "write failed: Input/output error (errno 5), since 2"));
	assert_non_null(strstr(s.message, " UTC; only read; up by itself when that is mended (tried each 30 s)"));
	assert_int_equal(put(f, 2, SIZE), -ENODEV);
	assert_int_equal(get(f, 0), 0); /* reads go on */
	assert_true(store_adds_up(f));
	assert_int_equal(fixture_reopen(f), 0); /* the bytes may have reached the disk all the same: right or missing */
	assert_int_equal(get(f, 0), 0);
	assert_int_equal(get(f, 1), f->blocks[1].place ? 0 : -ENOENT);
}

static void the_store_comes_back_after_a_second_and_the_segment_stays_aside(void **state)
{
	struct fixture *f = *state;
	uint32_t bad;
	uint64_t start;

	assert_int_equal(put(f, 0, SIZE), 0);
	bad = segment_of(f, 0);
	fault_arm("io.write=-EIO@1");
	assert_int_equal(put(f, 1, SIZE), -EIO);
	start = loop_now();
	while (stats_of(f).state == SPILL_DOWN && loop_now() - start < 5 * SPILL_SECOND) {
		tick(f);
		usleep(50000);
	}
	assert_int_equal(stats_of(f).state, SPILL_UP);
	assert_in_range(loop_now() - start, SPILL_SECOND * 9 / 10, 3 * SPILL_SECOND);
	assert_string_equal(stats_of(f).message, "");
	assert_int_equal(stats_of(f).last_errno, EIO); /* kept */
	assert_int_equal(put(f, 2, SIZE), 0);
	assert_int_not_equal(segment_of(f, 2), bad);
	assert_int_equal(f->spill->segments[bad].state, SEGMENT_BAD);
	tick_in_time(f); /* no probe where a record lives */
	assert_int_equal(f->spill->segments[bad].state, SEGMENT_BAD);
	assert_int_equal(get(f, 0), 0);
}

static void a_segment_set_aside_is_used_again_only_when_proved_good(void **state)
{
	struct fixture *f = *state;
	unsigned k = 2;
	uint32_t bad;

	assert_int_equal(put(f, 0, SIZE), 0);
	bad = segment_of(f, 0);
	fault_arm("io.write=-EIO@1");
	assert_int_equal(put(f, 1, SIZE), -EIO);
	tick_in_time(f);
	/* its records have their turn like those of the others */
	for (; f->blocks[0].place; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	assert_true(k > 100);
	for (unsigned n = 0; n < 130; n++, k++) {
		assert_int_equal(put(f, k, SIZE), 0);
		assert_int_not_equal(segment_of(f, k), bad);
	}
	fault_arm("spill.probe=-EIO");
	tick_in_time(f);
	assert_int_equal(f->spill->segments[bad].state, SEGMENT_BAD);
	assert_int_equal(f->spill->segments[bad].backoff_ns, 2 * SPILL_SECOND);
	assert_int_equal(stats_of(f).state, SPILL_UP); /* one bad place is no bad store */
	fault_arm("io.write.lost=1");
	tick_in_time(f);
	assert_int_equal(f->spill->segments[bad].state, SEGMENT_BAD);
	fault_arm("io.read.short=4096"); /* wipes the rest of what is read, then reads on */
	tick_in_time(f);
	assert_int_equal(f->spill->segments[bad].state, SEGMENT_EMPTY);
	fault_disarm();
	assert_int_equal(put(f, k, SIZE), 0);
	for (unsigned n = 0; n < 9; n++)
		assert_int_equal(put(f, ++k, SIZE), 0);
	assert_int_equal(f->spill->segments[bad].state != SEGMENT_BAD, 1);
	assert_true(f->spill->segments[bad].n_live > 0);
	assert_true(store_adds_up(f));
}

static void probes_that_fail_come_ever_later_but_no_more_than_30_s_apart(void **state)
{
	static const unsigned seconds[] = {1, 2, 4, 8, 16, 30, 30};
	struct fixture *f = *state;

	fault_arm("io.write=-EIO");
	assert_int_equal(put(f, 1, SIZE), -EIO);
	for (unsigned i = 0; i < sizeof(seconds) / sizeof(seconds[0]); i++) {
		assert_int_equal(f->spill->health.backoff_ns, seconds[i] * SPILL_SECOND);
		assert_in_range(f->spill->health.probe_at_ns, loop_now() + (seconds[i] - 1) * SPILL_SECOND,
			loop_now() + seconds[i] * SPILL_SECOND);
		tick_in_time(f);
		assert_int_equal(stats_of(f).state, SPILL_DOWN);
	}
	fault_disarm();
	tick_in_time(f);
	assert_int_equal(stats_of(f).state, SPILL_UP);
	/* down again at once: no new start with short waits, so at most a change of state a second */
	fault_arm("io.write=-EIO");
	assert_int_equal(put(f, 1, SIZE), -EIO);
	assert_int_equal(f->spill->health.backoff_ns, 30 * SPILL_SECOND);
}

static void many_writes_failing_at_once_are_all_told(void **state)
{
	enum { N = 16 };
	struct fixture *f = *state;

	fault_arm("io.write=-EIO@%3");
	for (unsigned k = 0; k < N; k++) {
		struct block *b = &f->blocks[k];
		struct spill_record record;

		b->bytes = 5000;
		record = block_record(b);
		block_fill(b, f->out + 8192 * k);
		assert_int_equal(spill_write(f->spill, &record, f->out + 8192 * k, b, block_done, b), 0);
	}
	settle(f);
	for (unsigned k = 0; k < N; k++) {
		assert_true(f->blocks[k].done);
		if (f->blocks[k].res == 0)
			assert_int_equal(get(f, k), 0);
		else
			assert_int_equal(f->blocks[k].place, 0);
	}
	assert_int_equal(stats_of(f).write_errors, 5);
	assert_true(store_adds_up(f));
}

/* ---- flushes ---- */

static void what_a_failed_flush_covered_is_gone_and_stays_gone(void **state)
{
	struct fixture *f = *state;

	for (unsigned k = 0; k < 8; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	assert_int_equal(put(f, 8, SIZE), 0); /* in the next segment */
	assert_int_equal(flush(f), 0);
	assert_int_equal(put(f, 9, SIZE), 0);
	fault_arm("io.sync=-EIO@1");
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(f->n_gone, 2);
	assert_int_equal(f->blocks[8].place, 0);
	assert_int_equal(f->blocks[9].place, 0);
	assert_int_equal(stats_of(f).state, SPILL_DOWN);
	assert_int_equal(stats_of(f).write_errors, 1);
	assert_int_equal(flush(f), 0); /* the second one says success, and that changes nothing */
	assert_int_equal(f->blocks[9].place, 0);
	for (unsigned k = 0; k < 8; k++)
		assert_int_equal(get(f, k), 0);
	tick_in_time(f);
	assert_int_equal(put(f, 10, SIZE), 0);
	assert_int_equal(get(f, 10), 0);
	assert_true(store_adds_up(f));
	/* a start may find them: they are right or missing, as everything */
	assert_int_equal(fixture_reopen(f), 0);
	for (unsigned k = 0; k < 11; k++)
		if (f->blocks[k].place)
			assert_int_equal(get(f, k), 0);
}

static void a_write_on_its_way_while_a_flush_fails_does_not_count(void **state)
{
	struct fixture *f = *state;

	for (unsigned round = 0; round < 20; round++) {
		struct block *b = &f->blocks[round];
		struct spill_record record;
		int res = 1;

		b->bytes = SIZE;
		record = block_record(b);
		block_fill(b, f->out);
		fault_arm("io.sync=-EIO@1");
		assert_int_equal(spill_flush(f->spill, flush_done, &res), 0);
		assert_int_equal(spill_write(f->spill, &record, f->out, b, block_done, b), 0);
		settle(f);
		assert_int_equal(res, -EIO);
		assert_true(b->done);
		assert_int_equal(b->place, 0);
		assert_true(store_adds_up(f));
		fault_disarm();
		tick_in_time(f);
		tick_in_time(f);
		tick_in_time(f);
	}
}

static void a_flush_does_not_vouch_for_a_write_that_ended_after_it_began(void **state)
{
	struct fixture *f = *state;
	int res = 1;

	assert_int_equal(put(f, 0, SIZE), 0);
	assert_int_equal(spill_flush(f->spill, flush_done, &res), 0);
	/* as if the write had ended only now */
	f->spill->segments[segment_of(f, 0)].dirty_serial = ++f->spill->write_serial;
	settle(f);
	assert_int_equal(res, 0);
	fault_arm("io.sync=-EIO@1");
	assert_int_equal(flush(f), -EIO);
	assert_int_equal(f->blocks[0].n_gone, 1);
}

static void a_probe_that_hears_of_a_lost_page_drops_what_it_may_be_about(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(put(f, 0, SIZE), 0);
	fault_arm("io.write=-EIO@1,io.sync=-EIO@1");
	assert_int_equal(put(f, 1, SIZE), -EIO);
	tick_in_time(f);
	assert_int_equal(stats_of(f).state, SPILL_DOWN);
	assert_int_equal(f->blocks[0].n_gone, 1);
}

/* ---- reads ---- */

static void a_failed_read_is_an_error_and_the_record_stays(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(put(f, 1, SIZE), 0);
	fault_arm("io.read=-EIO@1");
	assert_int_equal(get(f, 1), -EIO);
	assert_int_equal(stats_of(f).read_errors, 1);
	assert_int_equal(stats_of(f).state, SPILL_UP);
	assert_int_equal(get(f, 1), 0);
}

static void a_read_error_at_start_costs_its_segment_only(void **state)
{
	struct fixture *f = *state;
	struct log_catch log;
	uint32_t used;

	for (unsigned k = 0; k < 24; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	used = segment_of(f, 23) + 1;
	fixture_close(f);
	/* no segment that was never used: the first read, whichever it is, is that of a header */
	assert_int_equal(truncate(f->path, (off_t)(SPILL_SUPER_AREA + used * f->opts.segment_bytes)), 0);
	fault_arm("io.read=-EIO@1");
	log = log_catch();
	assert_int_equal(fixture_open(f), 0);
	fault_disarm();
	assert_int_equal(log_lines(&log, ": 1 of its "), 1);
	fclose(log.lines);
	assert_true(f->n_found >= 16 && f->n_found < 24);
	assert_int_equal(stats_of(f).read_errors, 1);
	for (unsigned k = 0; k < 24; k++)
		if (f->blocks[k].place)
			assert_int_equal(get(f, k), 0);
}

static void a_write_the_disk_only_claims_to_have_done_is_damage_when_it_is_read(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(put(f, 0, SIZE), 0);
	fault_arm("io.write.lost=1@1");
	assert_int_equal(put(f, 1, SIZE), 0);
	assert_int_equal(put(f, 2, SIZE), 0);
	assert_int_equal(get(f, 0), 0);
	assert_int_equal(get(f, 1), -EBADMSG);
	assert_int_equal(get(f, 2), 0);
}

static void short_and_interrupted_transfers_change_nothing(void **state)
{
	static const uint64_t sizes[] = {1, 4096, 5000, 12288, 300000};
	struct fixture *f = *state;

	fault_arm("io.write.short=8192@%2,io.read.short=4096@%3,io.write=-EINTR@%5,io.read=-EAGAIN@%7");
	for (unsigned k = 0; k < 5; k++)
		assert_int_equal(put(f, k, sizes[k]), 0);
	for (unsigned k = 0; k < 5; k++)
		assert_int_equal(get(f, k), 0);
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(f->n_found, 5);
	for (unsigned k = 0; k < 5; k++)
		assert_int_equal(get(f, k), 0);
	assert_int_equal(stats_of(f).write_errors + stats_of(f).read_errors + stats_of(f).damaged, 0);
}

/* ---- O_DIRECT ---- */

static void o_direct_refused_at_the_first_write_is_one_message_and_the_page_cache(void **state)
{
	static const struct {
		const char *fault, *word;
	} cases[] = {{"spill.direct=-EINVAL", "O_DIRECT refused: Invalid argument"},
		{"spill.direct=-EOPNOTSUPP", "O_DIRECT refused: Operation not supported"},
		{"spill.align=65536", "would need 65536-byte alignment"}};
	struct fixture *f = *state;

	if (!stats_of(f).direct) {
		print_message("not tried: no O_DIRECT in %s\n", f->dir);
		skip();
	}
	for (unsigned i = 0; i < 3; i++) {
		fixture_close(f);
		fault_arm(cases[i].fault);
		assert_int_equal(fixture_open(f), 0);
		assert_non_null(strstr(f->message, cases[i].word));
		assert_non_null(strstr(f->message, "page cache"));
		assert_false(stats_of(f).direct);
		assert_int_equal(put(f, 1, 5000), 0);
		assert_int_equal(get(f, 1), 0);
	}
}

static void o_direct_refused_while_running_loses_nothing(void **state)
{
	struct fixture *f = *state;

	if (!stats_of(f).direct)
		skip();
	for (unsigned what = 0; what < 2; what++) {
		assert_int_equal(put(f, 0, SIZE), 0);
		fault_arm(what == 0 ? "io.write=-EINVAL@1" : "io.read=-EINVAL@1");
		assert_int_equal(what == 0 ? put(f, 1, SIZE) : get(f, 0), 0);
		assert_false(stats_of(f).direct);
		assert_int_equal(stats_of(f).state, SPILL_UP);
		assert_int_equal(put(f, 2, SIZE), 0);
		for (unsigned k = 0; k < 3; k++)
			assert_int_equal(get(f, k), f->blocks[k].place ? 0 : -ENOENT);
		assert_int_equal(fixture_reopen(f), 0);
	}
}

/* ---- room ---- */

static void a_full_file_system_makes_the_store_reclaim_earlier(void **state)
{
	struct fixture *f = *state;

	for (unsigned k = 0; k < 30; k++) /* 4 segments and one ahead */
		assert_int_equal(put(f, k, SIZE), 0);
	fault_arm("io.allocate=-ENOSPC");
	for (unsigned k = 30; k < 100; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	assert_int_equal(stats_of(f).state, SPILL_UP);
	assert_int_equal(stats_of(f).write_errors, 0);
	assert_true(f->spill->n_present <= 5);
	/* what there is, not what was asked for; and what becomes of it */
	assert_int_equal(stats_of(f).capacity, stats_of(f).used_bytes);
	assert_true(stats_of(f).capacity < f->opts.capacity);
	assert_non_null(strstr(stats_of(f).message, "asked again each 30 s: make room there"));
	for (unsigned k = 0; k < 100; k++)
		assert_int_equal(get(f, k), f->blocks[k].place ? 0 : -ENOENT);
	assert_true(f->n_gone >= 60);
	fault_disarm();
	f->spill->no_space_until_ns = 0; /* later */
	for (unsigned k = 100; k < 200; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	assert_true(f->spill->n_present > 10);
	assert_int_equal(stats_of(f).capacity, f->opts.capacity);
	assert_string_equal(stats_of(f).message, "");
}

static void with_no_room_at_all_the_store_is_full_and_serves_when_there_is_some(void **state)
{
	struct fixture *f = *state;

	fixture_close(f);
	unlink(f->path);
	fault_arm("io.allocate=-ENOSPC");
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(put(f, 1, SIZE), -ENOSPC);
	assert_int_equal(stats_of(f).state, SPILL_FULL);
	assert_int_equal(stats_of(f).last_errno, ENOSPC);
	assert_non_null(strstr(stats_of(f).message, "No space left"));
	assert_non_null(strstr(stats_of(f).message, "asked again each 30 s: make room there"));
	assert_int_equal(stats_of(f).capacity, SPILL_SUPER_AREA);
	fault_disarm();
	tick_in_time(f);
	assert_int_equal(stats_of(f).state, SPILL_UP);
	assert_int_equal(put(f, 1, SIZE), 0);
	assert_int_equal(get(f, 1), 0);
}

static void a_full_file_system_is_one_line_with_path_errno_and_way_out_and_one_when_there_is_room(void **state)
{
	struct fixture *f = *state;
	struct log_catch log = log_catch();

	for (unsigned k = 0; k < 30; k++) /* 4 segments and one ahead */
		put(f, k, SIZE);
	fault_arm("io.allocate=-ENOSPC");
	for (unsigned k = 30; k < 200; k++) {
		f->spill->no_space_until_ns = 0; /* asked again at each segment */
		put(f, k, SIZE);
	}
	fault_disarm();
	for (unsigned k = 200; k < 300; k++) {
		f->spill->no_space_until_ns = 0;
		put(f, k, SIZE);
	}
	assert_int_equal(log_lines(&log, "spill store"), 2);
	assert_int_equal(log_lines(&log, f->path), 2);
	assert_int_equal(log_lines(&log, "No space left on device (errno 28)"), 1);
	assert_int_equal(log_lines(&log, "make room on that file system, or give --spill a smaller size"), 1);
	assert_int_equal(log_lines(&log, "gives room again"), 1);
	assert_string_equal(stats_of(f).message, "");
	fclose(log.lines);
}

static void a_store_that_stays_full_is_one_line(void **state)
{
	struct fixture *f = *state;
	struct log_catch log;

	fixture_close(f);
	unlink(f->path);
	fault_arm("io.allocate=-ENOSPC");
	log = log_catch();
	assert_int_equal(fixture_open(f), 0);
	for (unsigned n = 0; n < 5; n++) {
		assert_int_equal(put(f, 1, SIZE), -ENOSPC);
		tick_in_time(f);
		assert_true(stats_of(f).takes_writes);
	}
	assert_int_equal(log_lines(&log, "errno 28"), 1);
	fclose(log.lines);
}

static void a_store_without_room_says_so_until_there_is_some_though_nobody_writes(void **state)
{
	struct fixture *f = *state;

	fixture_close(f);
	unlink(f->path);
	fault_arm("io.allocate=-ENOSPC");
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(put(f, 1, SIZE), -ENOSPC);
	assert_int_equal(stats_of(f).state, SPILL_FULL);
	assert_false(stats_of(f).takes_writes);
	for (unsigned n = 0; n < 3;
		n++) { /* a look at the file, a write that may try, the file system asked: nothing new */
		f->spill->health.look_at_ns = 0;
		tick_in_time(f);
		assert_int_equal(stats_of(f).state, SPILL_FULL);
		assert_true(stats_of(f).takes_writes);
		assert_non_null(strstr(stats_of(f).message, "No space left"));
	}
	assert_int_equal(put(f, 1, SIZE), -ENOSPC);
	assert_int_equal(stats_of(f).state, SPILL_FULL);
	assert_false(stats_of(f).takes_writes); /* it has tried */
	fault_disarm();
	tick(f);
	assert_int_equal(stats_of(f).state, SPILL_FULL);
	f->spill->no_space_until_ns = 0; /* half a minute later */
	tick(f);
	assert_int_equal(stats_of(f).state, SPILL_UP);
	assert_string_equal(stats_of(f).message, "");
	assert_int_equal(f->spill->n_present, 1);
	tick_in_time(f);
	assert_int_equal(f->spill->n_present, 1); /* not longer than is asked for */
	assert_int_equal(put(f, 1, SIZE), 0);
}

static void a_full_store_whose_file_has_gone_is_down(void **state)
{
	struct fixture *f = *state;

	fixture_close(f);
	unlink(f->path);
	fault_arm("io.allocate=-ENOSPC");
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(put(f, 1, SIZE), -ENOSPC);
	unlink(f->path);
	f->spill->health.look_at_ns = 0;
	tick(f);
	assert_int_equal(stats_of(f).state, SPILL_DOWN);
	assert_int_equal(stats_of(f).last_errno, ENOENT);
}

static void a_store_whose_segments_all_failed_is_full_until_one_is_proved_good(void **state)
{
	struct fixture *f = *state;

	for (unsigned k = 0; k < f->spill->n_segments; k++) {
		fault_arm("io.write=-EIO@1");
		assert_int_equal(put(f, k, SIZE), -EIO);
		fault_disarm();
		for (uint32_t i = 0; i < f->spill->n_present; i++)
			f->spill->segments[i].probe_at_ns = UINT64_MAX;
		f->spill->health.probe_at_ns = 0;
		tick(f);
		assert_int_equal(stats_of(f).state, SPILL_UP);
	}
	assert_int_equal(put(f, 100, SIZE), -ENOSPC);
	assert_int_equal(stats_of(f).state, SPILL_FULL);
	tick_in_time(f);
	assert_int_equal(stats_of(f).state, SPILL_UP);
	assert_int_equal(put(f, 100, SIZE), 0);
}

static void a_file_system_without_fallocate_serves(void **state)
{
	struct fixture *f = *state;

	fixture_close(f);
	unlink(f->path);
	fault_arm("io.allocate=-EOPNOTSUPP");
	assert_int_equal(fixture_open(f), 0);
	for (unsigned k = 0; k < 150; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	/* no room for a write then means: close the segment, not: the segment is bad */
	fault_arm("io.allocate=-EOPNOTSUPP,io.write=-ENOSPC@1");
	assert_int_equal(put(f, 150, SIZE), -ENOSPC);
	assert_int_equal(stats_of(f).state, SPILL_FULL);
	assert_non_null(strstr(stats_of(f).message, "the next write tries again: make room there"));
	for (uint32_t i = 0; i < f->spill->n_present; i++)
		assert_int_not_equal(f->spill->segments[i].state, SEGMENT_BAD);
	assert_int_equal(put(f, 151, SIZE), 0); /* as one that was on its way */
	assert_int_equal(stats_of(f).state, SPILL_FULL);
	tick_in_time(f);
	assert_int_equal(stats_of(f).state, SPILL_FULL); /* only a write can tell */
	assert_int_equal(put(f, 152, SIZE), 0);
	assert_int_equal(stats_of(f).state, SPILL_UP);
	fault_disarm();
	assert_int_equal(fixture_reopen(f), 0);
	assert_true(f->n_found > 100);
	for (unsigned k = 0; k < 153; k++)
		if (f->blocks[k].place)
			assert_int_equal(get(f, k), 0);
}

/* ---- the file itself ---- */

static void a_store_removed_or_moved_while_running_goes_down_and_comes_back_with_it(void **state)
{
	struct fixture *f = *state;
	char elsewhere[128];

	snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", f->dir);
	assert_int_equal(put(f, 1, SIZE), 0);
	f->spill->health.look_at_ns = 0; /* 2 s have passed */
	tick(f);
	assert_int_equal(stats_of(f).state, SPILL_UP);
	assert_in_range(f->spill->health.look_at_ns, loop_now() + SPILL_SECOND, loop_now() + 2 * SPILL_SECOND);
	assert_int_equal(rename(f->path, elsewhere), 0);
	f->spill->health.look_at_ns = 0;
	tick(f);
	assert_int_equal(stats_of(f).state, SPILL_DOWN);
	assert_int_equal(stats_of(f).last_errno, ENOENT);
	assert_non_null(strstr(stats_of(f).message, f->path));
	assert_non_null(strstr(stats_of(f).message, "; only read; tried each 30 s: put the file back, or restart"));
	assert_int_equal(get(f, 1), 0); /* as it says */
	assert_int_equal(put(f, 2, SIZE), -ENODEV);
	tick_in_time(f);
	assert_int_equal(stats_of(f).state, SPILL_DOWN);
	close(open(f->path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)); /* another file in its place is not ours */
	tick_in_time(f);
	assert_int_equal(stats_of(f).last_errno, ESTALE);
	assert_int_equal(stats_of(f).state, SPILL_DOWN);
	assert_int_equal(rename(elsewhere, f->path), 0);
	tick_in_time(f);
	assert_int_equal(stats_of(f).state, SPILL_UP);
	assert_int_equal(put(f, 2, SIZE), 0);
	assert_int_equal(get(f, 1), 0);
}

static int unwritable_directory(void *arg)
{
	struct fixture *f = arg;

	if (chown(f->dir, 65534, 65534) < 0 || setgid(65534) < 0 || setuid(65534) < 0)
		return 77;
	CHILD_CHECK(fixture_open(f) == 0);
	CHILD_CHECK(put(f, 1, SIZE) == 0);
	chmod(f->dir, 0500);
	f->spill->health.look_at_ns = 0;
	tick(f);
	CHILD_CHECK(stats_of(f).state == SPILL_DOWN && stats_of(f).last_errno == EACCES);
	CHILD_CHECK(strstr(stats_of(f).message, "Permission denied"));
	chmod(f->dir, 0700);
	tick_in_time(f);
	CHILD_CHECK(stats_of(f).state == SPILL_UP);
	CHILD_CHECK(put(f, 2, SIZE) == 0 && get(f, 1) == 0);
	fixture_close(f);
	return 0;
}

static void a_directory_made_unwritable_while_running_takes_the_store_down_until_it_is_writable(void **state)
{
	struct fixture *f = *state;
	int r;

	fixture_close(f);
	unlink(f->path);
	r = in_child(unwritable_directory, f);
	if (r == 77)
		print_message("not tried: only root can become another user\n");
	else
		assert_int_equal(r, 0);
	chown(f->dir, geteuid(), getegid());
	unlink(f->path);
	assert_int_equal(fixture_open(f), 0);
}

/* ---- a disk that hangs ---- */

static int close_with_a_hung_write(void *arg)
{
	struct fixture *f = arg;
	struct spill_record record;
	struct log_catch log;
	uint64_t start;

	f->opts.close_ms = 300;
	CHILD_CHECK(fixture_open(f) == 0);
	CHILD_CHECK(put(f, 0, SIZE) == 0);
	f->blocks[1].bytes = SIZE;
	record = block_record(&f->blocks[1]);
	fault_arm("io.hang=1@1");
	CHILD_CHECK(spill_write(f->spill, &record, f->out, &f->blocks[1], block_done, &f->blocks[1]) == 0);
	start = loop_now();
	log = log_catch();
	fixture_close(f);
	CHILD_CHECK(loop_now() - start >= SPILL_SECOND * 3 / 10 && loop_now() - start < SPILL_SECOND * 2);
	CHILD_CHECK(log_lines(&log, "1 transfers have not ended after") == 1 && log_lines(&log, f->path) == 1);
	return 0;
}

/* A write that hangs, as if 6 s had gone by; then the disk is back and ends it. */
static void a_disk_that_ends_nothing_for_5_s_is_down_and_comes_back_by_itself(void **state)
{
	struct fixture *f = *state;
	struct block *b = &f->blocks[1];
	struct spill_record record;

	assert_int_equal(put(f, 0, SIZE), 0);
	b->bytes = SIZE;
	record = block_record(b);
	block_fill(b, f->out);
	fault_arm("io.hang=1");
	assert_int_equal(spill_write(f->spill, &record, f->out, b, block_done, b), 0);
	for (unsigned n = 0; n < 100; n++) {
		usleep(1000);
		spill_reap(f->spill);
	}
	assert_false(b->done);
	assert_true(spill_stalled(f->spill, SPILL_SECOND / 20));
	spill_tick(f->spill);
	assert_int_equal(stats_of(f).state, SPILL_UP); /* not yet */
	f->spill->moved_ns -= 6 * SPILL_SECOND;
	spill_tick(f->spill);
	assert_int_equal(stats_of(f).state, SPILL_DOWN);
	assert_int_equal(stats_of(f).last_errno, ETIMEDOUT);
	assert_true(spill_hung(f->spill));
	assert_non_null(strstr(
		stats_of(f).message, "waiting 5 s for a transfer failed: Connection timed out (errno 110), since"));
	fault_arm("io.hang.end=1"); /* what hung ends; nothing else hangs */
	settle(f);
	assert_true(b->done);
	assert_int_equal(b->res, 0);
	assert_false(spill_hung(f->spill));
	tick_in_time(f);
	assert_int_equal(stats_of(f).state, SPILL_UP);
	assert_int_equal(get(f, 0), 0);
	assert_int_equal(get(f, 1), 0);
	assert_true(store_adds_up(f));
}

/* The kernel finds an open file by its path without the disk. */
static void a_look_at_the_file_of_a_hung_disk_is_no_sign_of_life(void **state)
{
	struct fixture *f = *state;
	struct block *b = &f->blocks[0];
	struct spill_record record;
	char rule[32];

	settle(f);
	b->bytes = SIZE;
	record = block_record(b);
	block_fill(b, f->out);
	snprintf(rule, sizeof(rule), "io.hang.fd=%d", f->spill->file.fd);
	fault_arm(rule); /* all but the look, which opens by a path */
	assert_int_equal(spill_write(f->spill, &record, f->out, b, block_done, b), 0);
	spill_reap(f->spill);
	f->spill->moved_ns -= 6 * SPILL_SECOND;
	f->spill->health.hung = true; /* the look, not the tick, is what is looked at here */
	f->spill->health.look_at_ns = 0;
	spill_tick(f->spill);
	for (unsigned n = 0; n < 5000 && !f->spill->health.look_at_ns; n++) {
		usleep(1000);
		spill_reap(f->spill);
	}
	assert_true(f->spill->health.look_at_ns != 0); /* it was found to be there */
	assert_true(spill_stalled(f->spill, 5 * SPILL_SECOND));
	assert_true(spill_hung(f->spill));
	assert_int_equal(stats_of(f).state, SPILL_UP);
	f->spill->health.hung = false;
	spill_tick(f->spill);
	assert_int_equal(stats_of(f).state, SPILL_DOWN);
	assert_int_equal(stats_of(f).last_errno, ETIMEDOUT);
	fault_arm("io.hang.end=1");
	settle(f);
	assert_false(spill_hung(f->spill));
	assert_int_equal(b->res, 0);
}

static void closing_a_store_on_a_hung_disk_ends_in_time_and_says_so(void **state)
{
	struct fixture *f = *state;

	fixture_close(f);
	assert_int_equal(in_child(close_with_a_hung_write, f), 0);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(get(f, 0), 0);
}

/* ---- io_uring refused ---- */

struct refusal {
	struct fixture *f;
	int nr, err;
	bool ring_serves;
};

static int serve_refused(void *arg)
{
	struct refusal *refusal = arg;
	struct fixture *f = refusal->f;

	refuse_syscall(refusal->nr, refusal->err);
	CHILD_CHECK(fixture_open(f) == 0);
	CHILD_CHECK(stats_of(f).uring == refusal->ring_serves);
	CHILD_CHECK((strstr(f->message, "not io_uring") != NULL) != refusal->ring_serves);
	for (unsigned k = 0; k < 20; k++)
		CHILD_CHECK(put(f, k, SIZE) == 0);
	for (unsigned k = 0; k < 20; k++)
		CHILD_CHECK(get(f, k) == 0);
	CHILD_CHECK(fixture_reopen(f) == 0);
	for (unsigned k = 0; k < 20; k++)
		CHILD_CHECK(get(f, k) == 0);
	fixture_close(f);
	return 0;
}

static void where_io_uring_is_refused_the_results_are_the_same(void **state)
{
	struct fixture *f = *state;
	struct refusal refusals[] = {
		{f, __NR_io_uring_setup, EPERM, false},
		{f, __NR_io_uring_setup, ENOSYS, false},
		{f, __NR_io_uring_enter, EPERM, false},
		{f, __NR_io_uring_register, EPERM, true},
	};

	fixture_close(f);
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
		assert_int_equal(in_child(serve_refused, &refusals[i]), 0);
	assert_int_equal(fixture_open(f), 0);
}

/* ---- B17 ---- */

struct client {
	struct fixture *f;
	struct block block;
	uint8_t *memory;
	unsigned left, *n_done;
	bool started, failed, reading;
};

static void client_done(void *owner, int res, spill_place place)
{
	struct client *c = owner;

	++*c->n_done;
	c->left--;
	c->started = false;
	if (res != 0 || (c->reading && !block_is(&c->block, c->memory)))
		c->failed = true;
	c->block.place = place;
}

/* One write, then 4 reads of it, over and over. */
static void client_step(struct client *c)
{
	struct spill_record record;
	int r;

	if (c->started || !c->left)
		return;
	c->reading = c->left % 5 != 0 && c->block.place;
	if (!c->reading) {
		if (c->block.place)
			spill_forget(c->f->spill, c->block.place);
		c->block.place = 0;
		c->block.version++;
		block_fill(&c->block, c->memory);
	} else {
		memset(c->memory, 0, 512);
	}
	record = block_record(&c->block);
	r = c->reading ? spill_read(c->f->spill, c->block.place, &record, c->memory, client_done, c)
		       : spill_write(c->f->spill, &record, c->memory, c, client_done, c);
	if (r == 0)
		c->started = true;
	else if (r != -EAGAIN)
		c->failed = true;
}

static void client_gone(void *owner, void *cookie)
{
	struct client *c = cookie;

	(void)owner;
	c->block.place = 0;
}

static void a_hundred_thousand_requests_of_64_clients_pass_the_smallest_ring(void **state)
{
#ifdef __SANITIZE_THREAD__
	enum { CLIENTS = 64, EACH = 10000 / CLIENTS + 1 };
#else
	enum { CLIENTS = 64, EACH = 100000 / CLIENTS + 1 };
#endif
	struct fixture *f = *state;
	struct client *clients = calloc(CLIENTS, sizeof(*clients));
	uint8_t *memory = aligned_alloc(4096, CLIENTS * 4096);
	uint64_t start = loop_now();
	unsigned n_done = 0;

	fixture_close(f);
	f->opts.gone = client_gone;
	assert_int_equal(fixture_open(f), 0);
	for (unsigned i = 0; i < CLIENTS; i++)
		clients[i] = (struct client){.f = f,
			.block = {.k = i, .bytes = 512},
			.memory = memory + 4096 * i,
			.left = EACH,
			.n_done = &n_done};
	while (n_done < CLIENTS * EACH && loop_now() - start < 110 * SPILL_SECOND) {
		for (unsigned i = 0; i < CLIENTS; i++)
			client_step(&clients[i]);
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
	}
	assert_int_equal(n_done, CLIENTS * EACH);
	assert_int_equal(stats_of(f).in_flight, 0);
	for (unsigned i = 0; i < CLIENTS; i++)
		assert_false(clients[i].failed);
	assert_true(store_adds_up(f));
	f->opts.gone = fixture_gone;
	free(clients);
	free(memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(a_failed_write_is_not_recorded_counted_and_told_with_path_and_errno),
		BOTH(the_store_comes_back_after_a_second_and_the_segment_stays_aside),
		ONCE(a_segment_set_aside_is_used_again_only_when_proved_good),
		ONCE(probes_that_fail_come_ever_later_but_no_more_than_30_s_apart),
		BOTH(many_writes_failing_at_once_are_all_told),
		BOTH(what_a_failed_flush_covered_is_gone_and_stays_gone),
		BOTH(a_write_on_its_way_while_a_flush_fails_does_not_count),
		ONCE(a_flush_does_not_vouch_for_a_write_that_ended_after_it_began),
		ONCE(a_probe_that_hears_of_a_lost_page_drops_what_it_may_be_about),
		BOTH(a_failed_read_is_an_error_and_the_record_stays),
		ONCE(a_read_error_at_start_costs_its_segment_only),
		BOTH(a_write_the_disk_only_claims_to_have_done_is_damage_when_it_is_read),
		BOTH(short_and_interrupted_transfers_change_nothing),
		ONCE(o_direct_refused_at_the_first_write_is_one_message_and_the_page_cache),
		BOTH(o_direct_refused_while_running_loses_nothing),
		ONCE(a_full_file_system_makes_the_store_reclaim_earlier),
		BOTH(with_no_room_at_all_the_store_is_full_and_serves_when_there_is_some),
		ONCE(a_full_file_system_is_one_line_with_path_errno_and_way_out_and_one_when_there_is_room),
		ONCE(a_store_that_stays_full_is_one_line),
		BOTH(a_store_without_room_says_so_until_there_is_some_though_nobody_writes),
		ONCE(a_full_store_whose_file_has_gone_is_down),
		ONCE(a_store_whose_segments_all_failed_is_full_until_one_is_proved_good),
		ONCE(a_file_system_without_fallocate_serves),
		BOTH(a_store_removed_or_moved_while_running_goes_down_and_comes_back_with_it),
		ONCE(a_directory_made_unwritable_while_running_takes_the_store_down_until_it_is_writable),
		BOTH(a_disk_that_ends_nothing_for_5_s_is_down_and_comes_back_by_itself),
		BOTH(a_look_at_the_file_of_a_hung_disk_is_no_sign_of_life),
		BOTH(closing_a_store_on_a_hung_disk_ends_in_time_and_says_so),
		ONCE(where_io_uring_is_refused_the_results_are_the_same),
		BOTH(a_hundred_thousand_requests_of_64_clients_pass_the_smallest_ring),
	};

	return cmocka_run_group_tests_name("spill faults", tests, NULL, NULL);
}
