/*
 * test_spill.c - the spill store: round trips, space, recovery, damage, with both I/O engines, and with headers of sectors
 *
 * kvpool-test: timeout=300
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <sys/mount.h>

#include "refuse.h"
#include "spill_fixture.h"

#define MIB (1ull << 20)

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

/* ---- round trips ---- */

static void the_message_names_the_engine_and_o_direct(void **state)
{
	struct fixture *f = *state;

	assert_non_null(strstr(f->message, f->opts.use_uring ? "by io_uring" : "threads"));
	assert_non_null(strstr(f->message, stats_of(f).direct ? "O_DIRECT" : "page cache"));
	assert_int_equal(stats_of(f).uring, f->opts.use_uring);
}

/* A file system that is not mounted looks like this: only the log can tell. */
static void a_new_store_is_said_to_be_new(void **state)
{
	struct fixture *f = *state;

	assert_non_null(strstr(f->message, "a new store: nothing was there"));
	assert_int_equal(fixture_reopen(f), 0);
	assert_null(strstr(f->message, "a new store"));
}

static const uint64_t sizes[] = {1, 512, 4096, 5000, 12288, 12289, BLOCK_MAX};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static void blocks_of_any_size_come_back_exact(void **state)
{
	struct fixture *f = *state;

	for (unsigned k = 0; k < SIZES; k++)
		assert_int_equal(put(f, k, sizes[k]), 0);
	for (unsigned k = 0; k < SIZES; k++)
		assert_int_equal(get(f, k), 0);
	assert_int_equal(stats_of(f).writes, SIZES);
	assert_int_equal(stats_of(f).reads, SIZES);
	assert_int_equal(stats_of(f).live_records, SIZES);
	assert_true(store_adds_up(f));
}

static void blocks_of_any_size_come_back_after_a_restart(void **state)
{
	struct fixture *f = *state;

	for (unsigned k = 0; k < SIZES; k++)
		assert_int_equal(put(f, k, sizes[k]), 0);
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(f->n_found, SIZES);
	assert_int_equal(stats_of(f).live_records, SIZES);
	for (unsigned k = 0; k < SIZES; k++)
		assert_int_equal(get(f, k), 0);
	assert_true(store_adds_up(f));
}

static void without_o_direct_it_is_the_same(void **state)
{
	struct fixture *f = *state;

	fixture_close(f);
	fault_arm("spill.direct.flag=-EINVAL");
	assert_int_equal(fixture_open(f), 0);
	assert_false(stats_of(f).direct);
	assert_non_null(strstr(f->message, "page cache"));
	blocks_of_any_size_come_back_exact(state);
	assert_int_equal(fixture_reopen(f), 0);
	for (unsigned k = 0; k < SIZES; k++)
		assert_int_equal(get(f, k), 0);
}

static void many_at_once_come_back_exact(void **state)
{
	enum { N = 300 };
	struct fixture *f = *state;
	uint8_t *memory = aligned_alloc(4096, N * 8192);
	unsigned again = 0;

	for (unsigned pass = 0; pass < 2; pass++) {
		for (unsigned k = 0; k < N; k++) {
			struct block *b = &f->blocks[k];
			struct spill_record record;
			int r;

			b->bytes = 4097 + k;
			b->done = false;
			record = block_record(b);
			if (pass == 0)
				block_fill(b, memory + 8192 * k);
			else
				memset(memory + 8192 * k, 0, 8192);
			while ((r = pass == 0 ? spill_write(f->spill, &record, memory + 8192 * k, b, block_done, b)
					      : spill_read(f->spill, b->place, &record, memory + 8192 * k, block_done,
							b)) == -EAGAIN) {
				again++;
				spill_wait(f->spill, loop_now() + SPILL_SECOND);
			}
			assert_int_equal(r, 0);
		}
		settle(f);
		for (unsigned k = 0; k < N; k++) {
			assert_true(f->blocks[k].done);
			assert_int_equal(f->blocks[k].res, 0);
		}
	}
	for (unsigned k = 0; k < N; k++)
		assert_true(block_is(&f->blocks[k], memory + 8192 * k));
	assert_true(again > 0); /* the queue is bounded */
	assert_true(store_adds_up(f));
	free(memory);
}

/* Without a look at what has ended. Return: how many were taken. */
static unsigned write_until_refused(struct fixture *f, uint64_t bytes)
{
	unsigned n = 0;
	int r = 0;

	for (; r == 0; n += r == 0) {
		struct spill_record record;

		f->blocks[n].bytes = bytes;
		record = block_record(&f->blocks[n]);
		r = spill_write(f->spill, &record, f->out, &f->blocks[n], block_done, &f->blocks[n]);
	}
	assert_int_equal(r, -EAGAIN);
	settle(f);
	return n;
}

static void small_writes_are_on_their_way_beyond_the_depth_and_large_ones_are_not(void **state)
{
	struct fixture *f = *state;

	fixture_close(f);
	f->opts.depth = 1;
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(write_until_refused(f, 65536), 16); /* a MiB */
	assert_int_equal(write_until_refused(f, 4096), 20); /* half of the transfers */
	assert_int_equal(write_until_refused(f, 600000), 2);
	assert_true(store_adds_up(f));
}

static void a_write_beside_a_full_queue_of_reads_waits_for_its_turn(void **state)
{
	struct fixture *f = *state;
	struct spill_record record;
	unsigned n = 0;
	int r;

	assert_int_equal(put(f, 0, 100), 0);
	for (unsigned k = 1; k < 9; k++) /* the open segment is full: the next write also flushes it */
		assert_int_equal(put(f, k, 500000), 0);
	for (; n < f->spill->n_transfers - 1; n++) {
		record = block_record(&f->blocks[0]);
		assert_int_equal(
			spill_read(f->spill, f->blocks[0].place, &record, f->in + 4096 * n, block_done, &f->blocks[0]),
			0);
	}
	f->blocks[9].bytes = 500000;
	record = block_record(&f->blocks[9]);
	r = spill_write(f->spill, &record, f->out, &f->blocks[9], block_done, &f->blocks[9]);
	assert_int_equal(r, -EAGAIN);
	settle(f);
	assert_int_equal(put(f, 9, 500000), 0);
	assert_true(store_adds_up(f));
}

static void what_does_not_fit_a_segment_is_refused(void **state)
{
	struct fixture *f = *state;
	struct spill_record record = block_record(&f->blocks[0]);

	record.bytes = 0;
	assert_int_equal(spill_write(f->spill, &record, f->out, f, block_done, f), -EINVAL);
	record.bytes = 4 * MIB - 8192 + 1;
	assert_int_equal(spill_write(f->spill, &record, f->out, f, block_done, f), -EFBIG);
	record.bytes = UINT64_MAX;
	assert_int_equal(spill_write(f->spill, &record, f->out, f, block_done, f), -EFBIG);
}

static void a_forgotten_record_is_not_read_and_not_told_gone(void **state)
{
	struct fixture *f = *state;
	spill_place place;

	assert_int_equal(put(f, 1, 5000), 0);
	place = f->blocks[1].place;
	spill_forget(f->spill, place);
	assert_int_equal(stats_of(f).live_records, 0);
	assert_int_equal(stats_of(f).live_bytes, 0);
	spill_forget(f->spill, place);
	assert_int_equal(get(f, 1), -EBADMSG);
	assert_int_equal(f->n_gone, 0);
	assert_true(store_adds_up(f));
}

/* ---- identity ---- */

static void a_record_asked_for_under_another_name_is_refused(void **state)
{
	struct fixture *f = *state;

	for (unsigned what = 0; what < 5; what++) {
		struct block *b = &f->blocks[what];
		struct spill_record record;

		assert_int_equal(put(f, what, 5000), 0);
		record = block_record(b);
		record.ns_id += what == 0;
		record.key.w[0] ^= what == 1;
		record.key.w[1] ^= what == 2 ? 1ull << 63 : 0;
		record.bytes -= what == 3; /* same pages, other length */
		record.used_tokens += what == 4;
		b->done = false;
		assert_int_equal(spill_read(f->spill, b->place, &record, f->in, block_done, b), 0);
		settle(f);
		assert_true(b->done);
		assert_int_equal(b->res, -EBADMSG);
		assert_int_equal(b->n_gone, 1);
	}
	assert_int_equal(stats_of(f).damaged, 5);
}

static void edit(const struct fixture *f, uint64_t off, void *bytes, size_t n, bool write_it)
{
	int fd = open(f->path, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	if (write_it)
		assert_int_equal(pwrite(fd, bytes, n, (off_t)off), n);
	else
		assert_int_equal(pread(fd, bytes, n, (off_t)off), n);
	close(fd);
}

/* Change the byte there, whatever it is: an UUID may hold any. */
static void damage(const struct fixture *f, uint64_t off)
{
	uint8_t byte;

	edit(f, off, &byte, 1, false);
	byte ^= 0x77;
	edit(f, off, &byte, 1, true);
}

static void two_records_swapped_on_disk_are_both_refused(void **state)
{
	struct fixture *f = *state;
	uint64_t off[2], span = span_of(f, 12288), header = span - 12288;

	/* whole records, then only headers, then only data */
	for (unsigned what = 0; what < 3; what++) {
		uint64_t from = what == 2 ? header : 0, n = what == 1 ? header : span - from;

		assert_int_equal(put(f, 1, 12288), 0);
		assert_int_equal(put(f, 2, 12288), 0);
		assert_int_equal(put(f, 3, 12288), 0);
		off[0] = block_off(f, 1);
		off[1] = block_off(f, 2);
		fixture_close(f);
		edit(f, off[0] + from, f->out, n, false);
		edit(f, off[1] + from, f->in, n, false);
		edit(f, off[0] + from, f->in, n, true);
		edit(f, off[1] + from, f->out, n, true);
		assert_int_equal(fixture_open(f), 0);
		for (unsigned k = 1; k <= 2; k++) {
			int r = get(f, k);

			assert_true(r == -EBADMSG || r == -ENOENT);
			assert_int_equal(f->blocks[k].place, 0);
		}
		if (what == 2) {
			assert_int_equal(stats_of(f).damaged, 2);
			assert_int_equal(get(f, 3), 0);
		}
		fixture_close(f);
		unlink(f->path);
		assert_int_equal(fixture_open(f), 0);
	}
}

/* ---- damage ---- */

static void a_flipped_bit_anywhere_is_damage_or_absence_never_wrong_bytes(void **state)
{
	enum { N = 12, ROUNDS = 400 };
	struct fixture *f = *state;
	uint64_t end, whole;
	uint8_t *image;
	unsigned seed = 12345, damaged = 0, absent = 0, exact = 0;

	for (unsigned k = 0; k < N; k++)
		assert_int_equal(put(f, k, 100 + 1000 * k), 0);
	end = block_off(f, N - 1) + span_of(f, 100 + 1000 * (N - 1));
	if (f->opts.use_uring) /* once as a daemon leaves it that was killed, once in order */
		fault_arm("spill.seal=-EIO");
	fixture_close(f);
	fault_disarm();
	whole = file_bytes(f, NULL);
	assert_true(whole >= end);
	image = malloc(end);
	edit(f, 0, image, end, false);
	for (unsigned round = 0; round < ROUNDS; round++) {
		uint64_t at = (uint64_t)rand_r(&seed) % (end - SPILL_SUPER_AREA) + SPILL_SUPER_AREA;
		uint8_t byte = image[at] ^ (uint8_t)(1u << rand_r(&seed) % 8);

		if (round < 64) /* each field of the first pages too */
			at = SPILL_SUPER_AREA + (round % 2) * SPILL_PAGE + 4 * (round / 2), byte = image[at] ^ 0x10;
		edit(f, at, &byte, 1, true);
		assert_int_equal(fixture_open(f), 0);
		for (unsigned k = 0; k < N; k++) {
			int r = get(f, k);

			assert_true(r == 0 || r == -EBADMSG || r == -ENOENT);
			if (r == 0)
				assert_true(f->blocks[k].bytes == 100 + 1000 * k);
			exact += r == 0;
			damaged += r == -EBADMSG;
			absent += r == -ENOENT;
		}
		assert_true(store_adds_up(f));
		fixture_close(f);
		edit(f, 0, image, end, true); /* the start wrote its superblock */
	}
	assert_true(damaged > ROUNDS / 10 && absent > ROUNDS / 10 && exact > ROUNDS);
	free(image);
	assert_int_equal(fixture_open(f), 0);
}

/* ---- seals ---- */

static void put_many(struct fixture *f, unsigned n)
{
	for (unsigned k = 0; k < n; k++)
		assert_int_equal(put(f, k, 100 + k % 4000), 0);
}

static void after_a_stop_in_order_a_start_reads_a_little_of_each_segment_only(void **state)
{
	enum { N = 3000 };
	struct fixture *f = *state;
	char faults[64];

	for (unsigned sealed = 0; sealed < 2; sealed++) {
		if (!sealed)
			fault_arm("spill.seal=-EIO");
		put_many(f, N); /* some 500 to a segment */
		snprintf(faults, sizeof(faults), "io.read=-EIO@%u+", 3 * f->spill->n_present + 1);
		fixture_close(f);
		fault_arm(faults);
		assert_int_equal(fixture_open(f), 0);
		fault_disarm();
		assert_int_equal(f->n_found == N, sealed);
		for (unsigned k = 0; k < N && sealed; k += 7)
			assert_int_equal(get(f, k), 0);
		assert_true(store_adds_up(f));
		fixture_close(f);
		unlink(f->path);
		assert_int_equal(fixture_open(f), 0);
	}
}

static void what_a_kill_left_unsealed_is_sealed_by_the_next_start(void **state)
{
	enum { N = 700 };
	struct fixture *f = *state;

	fault_arm("spill.seal=-EIO");
	put_many(f, N);
	fixture_close(f);
	fault_disarm();
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->n_found, N);
	settle(f);
	while (io_in_flight(f->spill->io)) /* the seals */
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
	fixture_close(f);
	fault_arm("io.read=-EIO@10+");
	assert_int_equal(fixture_open(f), 0);
	fault_disarm();
	assert_int_equal(f->n_found, N);
	assert_int_equal(get(f, N - 1), 0);
}

static void a_segment_is_sealed_only_when_all_of_it_is_durable(void **state)
{
	struct fixture *f = *state;
	struct segment *segment = &f->spill->segments[0];
	struct block *late = &f->blocks[9];
	struct spill_record record;

	for (unsigned k = 0; k < 5; k++)
		assert_int_equal(put(f, k, 5000), 0);
	assert_true(f->spill->open == 0 && segment->dirty);
	segment_close(f->spill); /* its flush is on the way */
	seal_ready(f->spill);
	assert_non_null(segment->index);
	settle(f);
	assert_null(segment->index);

	assert_int_equal(put(f, 5, 5000), 0);
	assert_int_equal(flush(f), 0);
	segment = &f->spill->segments[f->spill->open];
	assert_false(segment->dirty);
	late->bytes = 5000;
	record = block_record(late);
	block_fill(late, f->out);
	assert_int_equal(spill_write(f->spill, &record, f->out, late, block_done, late), 0);
	segment_close(f->spill);
	seal_ready(f->spill); /* one is still being written */
	assert_non_null(segment->index);
	settle(f);
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(f->n_found, 7);
	for (unsigned k = 0; k < 6; k++)
		assert_int_equal(get(f, k), 0);
	assert_int_equal(get(f, 9), 0);
}

static void a_damaged_seal_costs_nothing(void **state)
{
	enum { N = 200 };
	struct fixture *f = *state;
	uint64_t end = SPILL_SUPER_AREA + 4 * MIB, bytes = seal_bytes(N);
	unsigned seed = 1;

	put_many(f, N);
	fixture_close(f);
	for (unsigned round = 0; round < 60; round++) {
		uint64_t at = end - 1 - (uint64_t)rand_r(&seed) % bytes;
		uint8_t was, byte;

		if (round < 20) /* each field of the seal, the first entries */
			at = (round < 10 ? end - SPILL_PAGE : end - bytes) + 8 * (round % 10);
		edit(f, at, &was, 1, false);
		byte = was ^ 0x5a;
		edit(f, at, &byte, 1, true);
		assert_int_equal(fixture_open(f), 0);
		assert_int_equal(f->n_found, N);
		assert_int_equal(get(f, round), 0);
		assert_true(store_adds_up(f));
		fault_arm("spill.seal=-EIO"); /* leave it as it is */
		fixture_close(f);
		fault_disarm();
		edit(f, at, &was, 1, true);
	}
	assert_int_equal(fixture_open(f), 0);
}

static void a_seal_of_an_earlier_use_of_the_segment_is_not_believed(void **state)
{
	enum { N = 200, SIZE = 500000 };
	struct fixture *f = *state;
	bool there[N];
	uint8_t *image = malloc(64 * MIB);
	uint64_t whole;
	unsigned n = 0;

	for (unsigned k = 0; k < N - 5;
		k++) /* 8 to a segment, 15 segments: all were sealed once, some are used again */
		assert_int_equal(put(f, k, SIZE), 0);
	for (unsigned k = 0; k < N; k++)
		n += there[k] = f->blocks[k].place != 0;
	whole = file_bytes(f, NULL);
	edit(f, 0, image, whole, false); /* as a kill leaves it: the open segment still has its old seal */
	assert_true(f->spill->open != SPILL_NO_SEGMENT);
	fixture_close(f);
	edit(f, 0, image, whole, true);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->n_found, n);
	for (unsigned k = 0; k < N; k++)
		assert_int_equal(get(f, k), there[k] ? 0 : -ENOENT);
	free(image);
}

static void a_damaged_record_header_costs_that_record_only_and_is_counted(void **state)
{
	enum { N = 30 };
	struct fixture *f = *state;
	uint64_t off[N], header = 0;
	struct log_catch log;

	fault_arm("spill.seal=-EIO"); /* else the headers are not read */
	for (unsigned k = 0; k < N; k++) { /* 8 to a segment */
		assert_int_equal(put(f, k, 400000 + 5000 * k), 0);
		off[k] = block_off(f, k);
		header = header_of(f, k);
	}
	fixture_close(f);
	fault_disarm();
	damage(f, off[2] + 20);
	damage(f, off[3] + 60); /* its neighbour: one place */
	damage(f, off[5] + header - 96);
	damage(f, off[20] + 8);
	log = log_catch();
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(log_lines(&log, "at 3 places, "), 1);
	fclose(log.lines);
	for (unsigned k = 0; k < N; k++)
		assert_int_equal(get(f, k), k == 2 || k == 3 || k == 5 || k == 20 ? -ENOENT : 0);
	assert_int_equal(stats_of(f).skipped, 3);
	assert_int_equal(f->n_found, N - 4);
	assert_true(store_adds_up(f));
}

static void a_damaged_segment_header_costs_nothing_but_a_look_at_the_first_record(void **state)
{
	static const unsigned at[] = {3, 17, 33, 41, 4095};
	struct fixture *f = *state;

	for (unsigned i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		uint64_t off;

		for (unsigned k = 0; k < 5; k++)
			assert_int_equal(put(f, k, 20000), 0);
		off = block_off(f, 0) - SPILL_PAGE;
		fixture_close(f);
		damage(f, off + at[i]);
		assert_int_equal(fixture_open(f), 0);
		for (unsigned k = 0; k < 5;
			k++) /* of a store's name damaged, nothing can be known; of a use said to be later, too */
			assert_int_equal(get(f, k), at[i] == 17 || at[i] == 33 ? -ENOENT : 0);
		assert_int_equal(stats_of(f).skipped, at[i] != 17);
		fixture_close(f);
		unlink(f->path);
		assert_int_equal(fixture_open(f), 0);
	}
}

static void overwrite(struct fixture *f, uint32_t segment, uint64_t from, uint64_t bytes, int with)
{
	uint8_t *noise = malloc(bytes);
	int fd = open(f->path, O_RDWR | O_CLOEXEC);
	unsigned seed = 77;

	for (uint64_t i = 0; i < bytes; i++)
		noise[i] = with < 0 ? (uint8_t)rand_r(&seed) : (uint8_t)with;
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, noise, bytes, (off_t)(SPILL_SUPER_AREA + segment * f->opts.segment_bytes + from)),
		(ssize_t)bytes);
	close(fd);
	free(noise);
}

/* Segments of 4 MiB, 8 records each: what of them is overwritten, with what, and what the start says of it. */
static void a_start_names_segments_it_cannot_read_and_the_records_their_seals_speak_of(void **state)
{
	enum { SEGMENT = 4 << 20, EACH = 8, N = 4 * EACH };
	static const struct {
		uint64_t from, bytes;
		int with;
		unsigned left; /* records found of the 32 */
		const char *said;
	} cases[] = {{0, SEGMENT, -1, N - EACH, "segments were used and cannot be read any more, and 0 records"},
		{0, SEGMENT / 2, -1, N - EACH, "segments were used and cannot be read any more, and 8 records"},
		{0, SEGMENT / 2, 0, N - EACH, "segments were used and cannot be read any more, and 8 records"},
		{SPILL_PAGE, SEGMENT / 2, -1, N, NULL}, /* its index is whole: a read finds out */
		{0, SEGMENT, 0, N - EACH, NULL}}; /* as if never used */
	struct fixture *f = *state;

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct log_catch log;

		fixture_close(f);
		unlink(f->path);
		f->opts.segment_bytes = SEGMENT;
		assert_int_equal(fixture_open(f), 0);
		for (unsigned k = 0; k < N; k++)
			assert_int_equal(put(f, k, 500000), 0);
		fixture_close(f);
		overwrite(f, 1, cases[i].from, cases[i].bytes, cases[i].with);
		log = log_catch();
		assert_int_equal(fixture_open(f), 0);
		assert_int_equal(log_lines(&log, "cannot be read any more"), cases[i].said != NULL);
		assert_int_equal(log_lines(&log, cases[i].said ? cases[i].said : f->path), cases[i].said != NULL);
		fclose(log.lines);
		assert_int_equal(f->n_found, cases[i].left);
		assert_true(store_adds_up(f));
	}
}

/* A segment that was set aside and proved good again has the bytes of the probe at its head. */
static void a_segment_that_a_probe_wrote_to_is_not_taken_for_a_lost_one(void **state)
{
	struct spill_super super = {.segment_bytes = SPILL_SEGMENT_MIN, .unit = SPILL_PAGE};
	struct spill_spot spot = {.uuid = super.uuid};
	uint8_t page[SPILL_PAGE];
	uint64_t n;

	(void)state;
	for (uint64_t i = 0; i < 1000; i++) {
		uint64_t off = SPILL_SUPER_AREA + i * SPILL_SEGMENT_MIN;

		for (unsigned k = 0; k < SPILL_PAGE; k++)
			page[k] = spill_probe_byte(off + k);
		spot.off = off + SPILL_SEGMENT_MIN - SPILL_PAGE;
		assert_false(spill_segment_is_lost(&super, page, NULL, &spot, &n));
		page[i] ^= 1;
		assert_true(spill_segment_is_lost(&super, page, NULL, &spot, &n));
		assert_int_equal(n, 0);
	}
}

static void damage_is_counted_told_and_then_forgotten(void **state)
{
	struct fixture *f = *state;
	uint8_t byte;
	uint64_t off;

	assert_int_equal(put(f, 1, 20000), 0);
	assert_int_equal(put(f, 2, 20000), 0);
	off = data_off(f, 1) + 19999;
	fixture_close(f);
	edit(f, off, &byte, 1, false);
	byte ^= 1;
	edit(f, off, &byte, 1, true);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(get(f, 1), -EBADMSG);
	assert_int_equal(f->blocks[1].n_gone, 1);
	assert_int_equal(stats_of(f).damaged, 1);
	assert_int_equal(stats_of(f).live_records, 1);
	assert_int_equal(get(f, 2), 0);
	assert_int_equal(stats_of(f).state, SPILL_UP);
}

static void a_header_damaged_under_a_running_store_is_refused(void **state)
{
	struct fixture *f = *state;
	uint8_t byte = 0x77;

	for (unsigned k = 0; k < 20; k++) {
		assert_int_equal(put(f, k, 5000), 0);
		assert_int_equal(get(f, k), 0);
		/* nothing of the record's own */
		edit(f, block_off(f, k) + 150 + (header_of(f, k) - 160) / 20 * k, &byte, 1, true);
		assert_int_equal(get(f, k), -EBADMSG);
	}
}

static void a_damaged_superblock_is_moved_aside_and_a_new_store_begun(void **state)
{
	struct fixture *f = *state;
	char aside[128];
	uint8_t junk[2 * SPILL_PAGE];

	snprintf(aside, sizeof(aside), "%s.bad", f->path);
	for (unsigned what = 0; what < 2; what++) {
		assert_int_equal(put(f, 1, 20000), 0);
		fixture_close(f);
		if (what == 0) {
			memset(junk, 0xa5, sizeof(junk));
		} else { /* of another version, checksum and all */
			struct spill_super super = {.segment_bytes = 4 * MIB, .start = 3, .unit = SPILL_PAGE};

			for (unsigned copy = 0; copy < 2; copy++) {
				spill_super_encode(junk + copy * SPILL_PAGE, &super);
				junk[copy * SPILL_PAGE + 8] = 77;
			}
		}
		edit(f, 0, junk, sizeof(junk), true);
		assert_int_equal(fixture_open(f), 0);
		assert_non_null(strstr(f->message, "moved aside"));
		assert_int_equal(f->n_found, 0);
		assert_int_equal(access(aside, F_OK), 0);
		assert_int_equal(put(f, 1, 20000), 0);
		assert_int_equal(get(f, 1), 0);
	}
}

static void each_start_has_a_number_of_its_own(void **state)
{
	struct fixture *f = *state;

	for (uint64_t start = 1; start < 6; start++) {
		assert_int_equal(f->spill->file.super.start, start);
		assert_int_equal(f->spill->next_sequence, (start << 32) + 1);
		assert_int_equal(f->spill->file.super.pid, getpid());
		assert_int_equal(fixture_reopen(f), 0);
	}
}

static void the_rings_operations_wait_for_the_disk(void **state)
{
	struct fixture *f = *state;

	/* with O_NONBLOCK on the file io_uring would answer EAGAIN instead */
	assert_int_equal(fcntl(f->spill->file.fd, F_GETFL) & O_NONBLOCK, 0);
}

static void one_damaged_copy_of_the_superblock_loses_nothing(void **state)
{
	struct fixture *f = *state;
	uint8_t junk[SPILL_PAGE];

	memset(junk, 0xa5, sizeof(junk));
	assert_int_equal(put(f, 1, 20000), 0);
	for (unsigned copy = 0; copy < 2; copy++) {
		assert_int_equal(fixture_reopen(f), 0); /* both copies are written by now */
		fixture_close(f);
		edit(f, copy * SPILL_PAGE, junk, sizeof(junk), true);
		assert_int_equal(fixture_open(f), 0);
		assert_null(strstr(f->message, "moved aside"));
		assert_int_equal(get(f, 1), 0);
	}
}

static void a_store_cut_short_or_emptied_opens_with_what_is_left(void **state)
{
	struct fixture *f = *state;
	uint64_t off;

	assert_int_equal(put(f, 1, 20000), 0);
	assert_int_equal(put(f, 2, 20000), 0);
	off = data_off(f, 2);
	fixture_close(f);
	assert_int_equal(truncate(f->path, (off_t)(off + 5)), 0);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(get(f, 1), 0);
	assert_int_equal(get(f, 2), -EBADMSG);
	assert_int_equal(put(f, 3, 20000), 0);
	assert_int_equal(get(f, 3), 0);
	fixture_close(f);
	assert_int_equal(truncate(f->path, 0), 0);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->n_found, 0);
	assert_int_equal(put(f, 3, 20000), 0);
	assert_int_equal(get(f, 3), 0);
}

static void a_record_shorter_than_a_page_at_the_end_of_a_file_without_fallocate_is_found(void **state)
{
	struct fixture *f = *state;

	for (unsigned n = 1; n < 9; n++) {
		fixture_close(f);
		unlink(f->path);
		fault_arm("io.allocate=-EOPNOTSUPP,spill.seal=-EIO");
		assert_int_equal(fixture_open(f), 0);
		for (unsigned k = 0; k < n; k++)
			assert_int_equal(put(f, k, 100 + 500 * k), 0);
		assert_int_equal(fixture_reopen(f), 0);
		assert_int_equal(f->n_found, n);
		for (unsigned k = 0; k < n; k++)
			assert_int_equal(get(f, k), 0);
	}
}

static void a_file_cut_under_a_running_store_is_damage_not_a_crash(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(put(f, 1, 20000), 0);
	assert_int_equal(truncate(f->path, SPILL_SUPER_AREA), 0);
	assert_int_equal(get(f, 1), -EBADMSG);
	assert_int_equal(put(f, 2, 20000), 0);
	assert_int_equal(get(f, 2), 0);
}

/* ---- space ---- */

static void the_file_never_outgrows_its_capacity_and_the_oldest_go_first(void **state)
{
	enum { N = 400 };
	struct fixture *f = *state;
	unsigned oldest = 0;

	for (unsigned k = 0; k < N; k++) { /* 3 times the capacity */
		uint64_t allocated;

		assert_int_equal(put(f, k, 500000), 0);
		assert_true(file_bytes(f, &allocated) <= f->opts.capacity);
		assert_true(allocated <= f->opts.capacity + 65536); /* and the file system's own */
		assert_true(file_bytes(f, NULL) <= stats_of(f).used_bytes + 4 * MIB);
		/* exactly a tail of the log is there */
		while (oldest < k && !f->blocks[oldest].place)
			oldest++;
		for (unsigned i = oldest; i <= k; i++)
			assert_true(f->blocks[i].place != 0);
		assert_true(store_adds_up(f));
	}
	assert_int_equal(f->n_gone, oldest);
	assert_int_equal(stats_of(f).reclaimed, oldest);
	assert_true(N - oldest > 90); /* 15 segments of 8, one of them just opened */
	for (unsigned k = oldest; k < N; k++)
		assert_int_equal(get(f, k), 0);
	assert_int_equal(fixture_reopen(f), 0);
	for (unsigned k = oldest; k < N; k++)
		assert_int_equal(get(f, k), 0);
	for (unsigned k = 0; k < oldest; k++)
		assert_int_equal(f->blocks[k].n_found, 0);
}

/* Also of what an earlier start wrote, though numbers begin anew with each. */
static void how_much_of_the_log_was_written_since_is_told_by_segments(void **state)
{
	enum { N = 119 }; /* 8 in each of 15 segments, less one */
	struct fixture *f = *state;

	for (unsigned k = 0; k < N; k++) {
		assert_int_equal(put(f, k, 500000), 0);
		assert_true(spill_passed(f->spill, f->blocks[k].place) == 0);
		if (k == N / 2)
			assert_int_equal(fixture_reopen(f), 0);
	}
	for (unsigned k = 0; k < N; k++)
		assert_true(fabs(spill_passed(f->spill, f->blocks[k].place) - (14 - k / 8) / 15.0) < 1e-9);
	for (unsigned k = N; k < N + 2; k++)
		assert_int_equal(put(f, k, 500000), 0);
	assert_true(fabs(spill_passed(f->spill, f->blocks[8].place) - 14 / 15.0) < 1e-9);
}

static void a_segment_without_living_records_is_taken_before_the_oldest(void **state)
{
	enum { N = 119 }; /* 8 in each of 15 segments, less one */
	struct fixture *f = *state;

	for (unsigned k = 0; k < N; k++)
		assert_int_equal(put(f, k, 500000), 0);
	for (unsigned k = 40; k < 48; k++) {
		spill_forget(f->spill, f->blocks[k].place);
		f->blocks[k].place = 0;
	}
	for (unsigned k = N; k < N + 9; k++)
		assert_int_equal(put(f, k, 500000), 0);
	assert_int_equal(f->n_gone, 0);
	assert_int_equal(put(f, N + 9, 500000), 0);
	assert_int_equal(f->n_gone, 8);
	assert_int_equal(f->blocks[0].place, 0);
	assert_int_equal(get(f, 8), 0);
}

static void gone_may_forget_others_of_the_same_segment(void **state)
{
	enum { N = 120 };
	struct fixture *f = *state;

	for (unsigned k = 0; k < N; k++)
		assert_int_equal(put(f, k, 500000), 0);
	f->forget_on_gone = &f->blocks[3];
	assert_int_equal(put(f, N, 500000), 0);
	assert_int_equal(f->n_gone, 7); /* not told of number 3 */
	assert_int_equal(f->blocks[3].n_gone, 0);
	assert_true(store_adds_up(f));
}

struct slow_read {
	struct fixture *f;
	unsigned n;
};

static void a_segment_is_not_reused_while_it_is_read(void **state)
{
	enum { N = 120 };
	struct fixture *f = *state;
	struct spill_record record;
	uint8_t *memory = aligned_alloc(4096, BLOCK_MAX);

	for (unsigned k = 0; k < N; k++)
		assert_int_equal(put(f, k, 500000), 0);
	record = block_record(&f->blocks[0]);
	f->blocks[0].done = false;
	assert_int_equal(spill_read(f->spill, f->blocks[0].place, &record, memory, block_done, &f->blocks[0]), 0);
	/* the next write takes a segment, and it is not the one being read, the oldest */
	f->blocks[N].bytes = 500000;
	record = block_record(&f->blocks[N]);
	block_fill(&f->blocks[N], f->out);
	assert_int_equal(spill_write(f->spill, &record, f->out, &f->blocks[N], block_done, &f->blocks[N]), 0);
	assert_int_equal(f->blocks[0].n_gone, 0);
	assert_int_equal(f->blocks[8].n_gone, 1);
	settle(f);
	assert_int_equal(f->blocks[0].res, 0);
	assert_true(block_is(&f->blocks[0], memory));
	assert_int_equal(get(f, N), 0);
	free(memory);
}

static void a_segment_that_can_be_had_after_a_completion_is_eagain_not_enospc(void **state)
{
	struct fixture *f = *state;
	struct spill_record record;
	uint8_t *memory = aligned_alloc(4096, 16 * BLOCK_MAX);
	unsigned k, n_read = 0;
	int r;

	fixture_close(f);
	unlink(f->path);
	f->opts.capacity = SPILL_SUPER_AREA + 12 * MIB; /* 3 segments */
	assert_int_equal(fixture_open(f), 0);
	for (k = 0; k < 3; k++)
		assert_int_equal(put(f, k, BLOCK_MAX), 0);
	for (unsigned i = 0; i < 3; i++) { /* all are read at once */
		record = block_record(&f->blocks[i]);
		f->blocks[i].done = false;
		assert_int_equal(spill_read(f->spill, f->blocks[i].place, &record, memory + i * BLOCK_MAX, block_done,
					 &f->blocks[i]),
			0);
		n_read++;
	}
	f->blocks[k].bytes = BLOCK_MAX;
	record = block_record(&f->blocks[k]);
	block_fill(&f->blocks[k], f->out);
	r = spill_write(f->spill, &record, f->out, &f->blocks[k], block_done, &f->blocks[k]);
	assert_int_equal(r, -EAGAIN);
	settle(f);
	for (unsigned i = 0; i < n_read; i++)
		assert_true(block_is(&f->blocks[i], memory + i * BLOCK_MAX));
	assert_int_equal(put(f, k, BLOCK_MAX), 0);
	free(memory);
}

static void a_place_of_an_earlier_use_of_a_segment_means_nothing(void **state)
{
	struct fixture *f = *state;
	spill_place old;
	uint32_t i;

	assert_int_equal(put(f, 0, 500000), 0);
	old = f->blocks[0].place;
	for (unsigned k = 1; f->blocks[0].place; k++)
		assert_int_equal(put(f, k, 500000), 0);
	assert_null(segment_find(f->spill, old, &i));
	assert_int_equal(f->spill->segments[i].n_live, 1); /* another record has its place now */
	spill_forget(f->spill, old);
	assert_int_equal(f->spill->segments[i].n_live, 1);
	f->blocks[0].place = old;
	assert_int_equal(get(f, 0), -EBADMSG);
	assert_int_equal(f->spill->segments[i].n_live, 1);
	assert_null(segment_find(f->spill, UINT64_MAX, &i));
	assert_null(segment_find(f->spill, 0, &i));
}

static void a_full_segment_is_flushed(void **state)
{
	struct fixture *f = *state;

	for (unsigned k = 0; k < 9; k++)
		assert_int_equal(put(f, k, 500000), 0);
	settle(f);
	assert_false(f->spill->segments[0].dirty);
	assert_true(f->spill->segments[1].dirty);
}

static void less_capacity_than_before_is_kept_to_at_once(void **state)
{
	struct fixture *f = *state;

	for (unsigned k = 0; k < 100; k++)
		assert_int_equal(put(f, k, 500000), 0);
	fixture_close(f);
	f->opts.capacity = 24 * MIB;
	assert_int_equal(fixture_open(f), 0);
	assert_true(file_bytes(f, NULL) <= 24 * MIB);
	for (unsigned k = 0; k < 100; k++)
		if (f->blocks[k].place)
			assert_int_equal(get(f, k), 0);
	assert_true(f->n_found >= 30);
	for (unsigned k = 100; k < 200; k++) {
		assert_int_equal(put(f, k, 500000), 0);
		assert_true(file_bytes(f, NULL) <= 24 * MIB);
	}
}

static void a_capacity_too_small_is_refused_with_the_number(void **state)
{
	struct fixture *f = *state;

	fixture_close(f);
	f->opts.capacity = 11 * MIB;
	assert_int_equal(fixture_open(f), -EINVAL);
	assert_non_null(strstr(f->message, "too small"));
	f->opts.segment_bytes = 0;
	f->opts.capacity = 200000;
	assert_int_equal(fixture_open(f), -EINVAL);
	f->opts.capacity = 300000;
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(put(f, 1, 20000), 0);
}

static void segments_are_chosen_to_hold_the_longest_block_we_know_of(void **state)
{
	static const struct {
		uint64_t capacity, block;
	} cases[] = {{64 * MIB, 0}, {1024 * MIB, 0}, {64 * MIB, 2 * MIB}, {16 * MIB, 5 * MIB}, {1024 * MIB, 5 * MIB},
		{400 * MIB, 100 * MIB}, {1ull << 40, 2 * MIB}};
	struct fixture *f = *state;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t segment_bytes, n, span;

		fixture_close(f);
		unlink(f->path);
		f->opts.segment_bytes = 0;
		f->opts.capacity = cases[i].capacity;
		f->opts.largest_block = cases[i].block;
		assert_int_equal(fixture_open(f), 0);
		segment_bytes = f->spill->file.super.segment_bytes;
		n = f->spill->n_segments;
		assert_true(n >= 3 && segment_bytes <= 101 * MIB);
		/* without a block to suit nothing lies idle but what is less than a segment */
		if (!cases[i].block && segment_bytes < 64 * MIB)
			assert_int_equal(n, 8);
		if (!cases[i].block)
			continue;
		span = span_of(f, cases[i].block);
		assert_true(span + SPILL_PAGE <= segment_bytes);
		/* at most an eighth of the room lies idle, where records are small enough for a choice */
		if (cases[i].capacity / cases[i].block >= 32)
			assert_true(n * ((segment_bytes - SPILL_PAGE) / span) * span >= cases[i].capacity / 8 * 7);
	}
}

static void an_empty_store_is_made_anew_for_longer_blocks_and_one_with_records_is_not(void **state)
{
	struct fixture *f = *state;
	uint64_t big = 4 * MIB;

	assert_int_equal(put(f, 1, 5000), 0);
	f->opts.segment_bytes = 0;
	f->opts.largest_block = big;
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(get(f, 1), 0);
	assert_int_equal(spill_longest(f->spill), 4 * MIB - 8192);
	fixture_close(f);
	unlink(f->path);
	f->opts.segment_bytes = 4 * MIB;
	assert_int_equal(fixture_open(f), 0);
	f->opts.segment_bytes = 0;
	assert_int_equal(fixture_reopen(f), 0);
	assert_true(spill_longest(f->spill) >= big);
	assert_true(store_adds_up(f));
	assert_int_equal(put(f, 2, 500000), 0);
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(get(f, 2), 0);
}

/* ---- order of the log ---- */

static void of_a_key_written_twice_the_later_record_is_the_last_found(void **state)
{
	struct fixture *f = *state;

	for (unsigned round = 0; round < 40; round++) { /* round the file, so that the latest is not the last in it */
		assert_int_equal(put_version(f, 1, 5000 + 1000 * round, round), 0);
		for (unsigned k = 10; k < 13; k++)
			assert_int_equal(put_version(f, k, 1000000, round), 0);
	}
	assert_int_equal(fixture_reopen(f), 0);
	assert_true(f->blocks[1].n_found > 1);
	assert_int_equal(f->blocks[1].version, 39);
	assert_int_equal(f->blocks[1].bytes, 44000);
	assert_int_equal(get(f, 1), 0);
	assert_int_equal(stats_of(f).live_records, 4);
	assert_true(store_adds_up(f));
}

static uint32_t segment_of(struct fixture *f, unsigned k)
{
	uint32_t i = SPILL_NO_SEGMENT;

	segment_find(f->spill, f->blocks[k].place, &i);
	return i;
}

static void a_start_goes_on_behind_the_last_record(void **state)
{
	enum { STARTS = 30 }; /* more than segments */
	struct fixture *f = *state;

	for (unsigned start = 0; start < STARTS; start++) {
		assert_int_equal(put(f, start, 5000), 0);
		assert_int_equal(segment_of(f, start), 0);
		assert_int_equal(f->spill->segments[0].n_records, start + 1);
		if (start % 3 == 0) /* as a kill leaves it: no seal */
			fault_arm("spill.seal=-EIO");
		fixture_close(f);
		fault_disarm();
		assert_int_equal(fixture_open(f), 0);
		assert_int_equal(f->n_found, start + 1);
		for (unsigned k = 0; k <= start; k++)
			assert_int_equal(get(f, k), 0);
		assert_true(store_adds_up(f));
	}
	for (unsigned k = 100; k < 120; k++) /* full, it is followed by the next one */
		assert_int_equal(put(f, k, 500000), 0);
	assert_int_equal(segment_of(f, 119), 2);
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(f->n_found, STARTS + 20);
}

static void a_seal_hides_nothing_that_was_written_behind_it(void **state)
{
	enum { EACH = 3 };
	struct fixture *f = *state;
	uint8_t *image = malloc(64 * MIB);
	uint64_t whole;

	for (unsigned round = 0; round < 3; round++) {
		assert_int_equal(fixture_reopen(f), 0); /* sealed from the second round on */
		for (unsigned k = 0; k < EACH; k++)
			assert_int_equal(put(f, round * EACH + k, 9000), 0);
		whole = file_bytes(f, NULL);
		edit(f, 0, image, whole, false); /* as a kill leaves it */
		fixture_close(f);
		edit(f, 0, image, whole, true);
		assert_int_equal(fixture_open(f), 0);
		assert_int_equal(f->n_found, (round + 1) * EACH);
		for (unsigned k = 0; k < f->n_found; k++)
			assert_int_equal(get(f, k), 0);
	}
	free(image);
}

static void a_start_that_writes_nothing_leaves_the_seal_as_it_is(void **state)
{
	unsigned n_present;
	char faults[64];
	struct fixture *f = *state;

	for (unsigned k = 0; k < 100; k++)
		assert_int_equal(put(f, k, 5000), 0);
	assert_int_equal(fixture_reopen(f), 0);
	n_present = f->spill->n_present;
	fault_arm("io.write=-EIO"); /* none of its own either */
	fixture_close(f);
	snprintf(faults, sizeof(faults), "io.read=-EIO@%u+", 3 * n_present + 1);
	fault_arm(faults); /* header, seal, entries: no header of a record is read */
	assert_int_equal(fixture_open(f), 0);
	fault_disarm();
	assert_int_equal(f->n_found, 100);
}

static void a_seal_that_cannot_be_broken_costs_the_write_and_nothing_else(void **state)
{
	struct fixture *f = *state;

	for (unsigned k = 0; k < 5; k++)
		assert_int_equal(put(f, k, 5000), 0);
	assert_int_equal(fixture_reopen(f), 0);
	fault_arm("io.write=-EIO@1");
	assert_int_equal(put(f, 5, 5000), -ENODEV); /* the store is down, as after any failed write */
	fault_disarm();
	assert_int_equal(f->spill->open, SPILL_NO_SEGMENT);
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(f->n_found, 5);
}

/* What a power cut left of the last write is written over; of one before others nothing is. */
static void a_torn_tail_is_written_over_and_a_hole_is_not(void **state)
{
	struct fixture *f = *state;
	uint64_t hole, tail;

	fault_arm("spill.seal=-EIO");
	for (unsigned k = 0; k < 6; k++)
		assert_int_equal(put(f, k, 9000), 0);
	hole = block_off(f, 2);
	tail = block_off(f, 5);
	fixture_close(f);
	damage(f, hole + 20);
	damage(f, tail + 20);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->n_found, 4);
	assert_int_equal(put(f, 7, 30000), 0);
	assert_int_equal(block_off(f, 7), tail);
	fixture_close(f);
	fault_disarm();
	damage(f, hole + 20); /* it comes to light after all: it is right, and so are the others */
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->n_found, 6);
	for (unsigned k = 0; k < 8; k++)
		assert_int_equal(get(f, k), k == 5 || k == 6 ? -ENOENT : 0);
	assert_true(store_adds_up(f));
}

/* What could not be read may come to light: a seal that stands, records.  Nothing is written behind that or over these. */
static void a_start_does_not_go_on_in_a_segment_it_could_not_read(void **state)
{
	enum { EACH = 5 };
	struct fixture *f = *state;
	unsigned n_new = 0;

	for (unsigned sealed = 0; sealed < 2; sealed++)
		for (unsigned nth = 2; nth < 8; nth++) { /* the first one is the segment's header */
			char faults[64];
			bool there[EACH + 1];

			for (unsigned k = 0; k < EACH; k++)
				assert_int_equal(put(f, k, 9000), 0);
			if (!sealed)
				fault_arm("spill.seal=-EIO");
			fixture_close(f);
			snprintf(faults, sizeof(faults), "io.read=-EIO@%u", nth);
			fault_arm(faults);
			assert_int_equal(fixture_open(f), 0);
			fault_disarm();
			for (unsigned k = 0; k < EACH; k++)
				there[k] = f->blocks[k].place != 0;
			there[EACH] = true;
			n_new += f->spill->open == SPILL_NO_SEGMENT;
			assert_true(f->n_found == EACH || f->spill->open == SPILL_NO_SEGMENT);
			assert_int_equal(put(f, EACH, 9000), 0);
			fault_arm("spill.seal=-EIO"); /* as a kill leaves it: no new seal takes the old one's place */
			assert_int_equal(fixture_reopen(f), 0);
			fault_disarm();
			for (unsigned k = 0; k <= EACH; k++)
				assert_true(!there[k] || get(f, k) == 0);
			fixture_close(f);
			unlink(f->path);
			assert_int_equal(fixture_open(f), 0);
		}
	assert_true(n_new > 2);
}

static void leftovers_of_an_earlier_use_of_a_segment_are_not_found(void **state)
{
	struct fixture *f = *state;
	uint32_t i;

	fixture_close(f);
	unlink(f->path);
	f->opts.capacity = SPILL_SUPER_AREA + 12 * MIB;
	assert_int_equal(fixture_open(f), 0);
	for (unsigned k = 0; k < 8 * 3; k++) /* all segments full */
		assert_int_equal(put(f, k, 500000), 0);
	for (unsigned k = 100; k < 102; k++) /* some are used again, but only their beginnings */
		assert_int_equal(put(f, k, 500000), 0);
	segment_find(f->spill, f->blocks[101].place, &i);
	assert_int_equal(fixture_reopen(f), 0);
	for (unsigned k = 0; k < 200; k++)
		if (f->blocks[k].place)
			assert_int_equal(get(f, k), 0);
	assert_int_equal(f->spill->segments[i].n_records, f->blocks[100].n_found + f->blocks[101].n_found);
	assert_int_equal(f->blocks[0].n_found, 0);
}

/* ---- who owns it ---- */

struct second {
	struct fixture *f;
	const char *dir;
	int expect;
};

static int open_second(void *arg)
{
	struct second *second = arg;
	struct spill_opts opts = second->f->opts;
	struct spill *spill;
	char message[256], owner[32];
	int r;

	opts.dir = second->dir;
	opts.use_uring = true; /* no threads: the thread sanitizer cannot tell the child's from the parent's */
	memset(second->f->blocks, 0, BLOCKS * sizeof(struct block)); /* the child's copy */
	r = spill_open(&spill, &opts, message);
	CHILD_CHECK(r == second->expect);
	if (r == 0) {
		second->f->spill = spill;
		CHILD_CHECK(get(second->f, 1) == 0);
		spill_close(spill);
		return 0;
	}
	snprintf(owner, sizeof(owner), "process %d", (int)getppid());
	CHILD_CHECK(strstr(message, owner));
	return 0;
}

static void a_second_owner_is_refused_by_any_path_and_a_copy_is_nobodys(void **state)
{
	struct fixture *f = *state;
	char link_dir[100], copy_dir[100], command[400];
	struct second second = {f, f->dir, -EBUSY};

	assert_int_equal(put(f, 1, 20000), 0);
	assert_int_equal(in_child(open_second, &second), 0);
	snprintf(link_dir, sizeof(link_dir), "%s.link", f->dir);
	assert_int_equal(symlink(f->dir, link_dir), 0);
	second.dir = link_dir;
	assert_int_equal(in_child(open_second, &second), 0);
	unlink(link_dir);
	/* a bind mount, where we may */
	snprintf(copy_dir, sizeof(copy_dir), "%s.copy", f->dir);
	assert_int_equal(mkdir(copy_dir, 0700), 0);
	second.dir = copy_dir;
	if (mount(f->dir, copy_dir, NULL, MS_BIND, NULL) == 0) {
		assert_int_equal(in_child(open_second, &second), 0);
		assert_int_equal(umount(copy_dir), 0);
	} else {
		print_message("not tried: a bind mount (%s)\n", strerror(errno));
	}
	snprintf(command, sizeof(command), "cp %s/* %s/", f->dir, copy_dir);
	assert_int_equal(system(command), 0);
	second.expect = 0;
#ifdef __SANITIZE_THREAD__
	print_message("not tried: ThreadSanitizer bears no new thread in a forked child of a process with threads\n");
#else
	assert_int_equal(in_child(open_second, &second), 0);
#endif
	scratch_remove(copy_dir);
	assert_int_equal(put(f, 2, 20000), 0); /* the first has noticed nothing */
	assert_int_equal(get(f, 1), 0);
}

static void a_directory_that_cannot_be_used_is_refused_with_path_and_errno(void **state)
{
	struct fixture *f = *state;
	char nowhere[100], path[128];

	fixture_close(f);
	snprintf(nowhere, sizeof(nowhere), "%s/nowhere", f->dir);
	f->opts.dir = nowhere;
	assert_int_equal(fixture_open(f), -ENOENT);
	assert_non_null(strstr(f->message, nowhere));
	assert_non_null(strstr(f->message, "No such file or directory"));
	assert_non_null(strstr(f->message, "make the directory"));

	assert_int_equal(mkdir(nowhere, 0700), 0);
	snprintf(path, sizeof(path), "%s/" SPILL_STORE_NAME, nowhere);
	assert_int_equal(symlink(f->path, path), 0);
	assert_int_equal(fixture_open(f), -ELOOP);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(fixture_open(f), -EPERM);
	unlink(path);
	if (mount("none", nowhere, "tmpfs", MS_RDONLY, "size=1m") == 0) {
		assert_int_equal(fixture_open(f), -EROFS);
		assert_non_null(strstr(f->message, "read-only"));
		umount(nowhere);
	} else {
		print_message("not tried: a read-only file system (%s)\n", strerror(errno));
	}
	f->opts.dir = f->dir;
	assert_int_equal(fixture_open(f), 0);
}

static int open_as_nobody(void *arg)
{
	struct fixture *f = arg;

	if (geteuid() != 0 || setgid(65534) < 0 || setuid(65534) < 0)
		return 77;
	CHILD_CHECK(fixture_open(f) == -EACCES);
	CHILD_CHECK(strstr(f->message, f->path) && strstr(f->message, "Permission denied"));
	return 0;
}

static void a_directory_of_another_user_is_refused_with_path_and_errno(void **state)
{
	struct fixture *f = *state;
	int r;

	fixture_close(f);
	r = in_child(open_as_nobody, f);
	if (r == 77)
		print_message("not tried: only root can become another user\n");
	else
		assert_int_equal(r, 0);
	assert_int_equal(fixture_open(f), 0);
}

static void the_store_is_its_owners_alone(void **state)
{
	struct fixture *f = *state;
	struct stat st;

	assert_int_equal(stat(f->path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	fixture_close(f);
	chmod(f->path, 0644);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(stat(f->path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		EACH_WAY(the_message_names_the_engine_and_o_direct),
		EACH_WAY(a_new_store_is_said_to_be_new),
		EACH_WAY(blocks_of_any_size_come_back_exact),
		EACH_WAY(blocks_of_any_size_come_back_after_a_restart),
		EACH_WAY(without_o_direct_it_is_the_same),
		EACH_WAY(many_at_once_come_back_exact),
		EACH_WAY(a_write_beside_a_full_queue_of_reads_waits_for_its_turn),
		EACH_WAY(small_writes_are_on_their_way_beyond_the_depth_and_large_ones_are_not),
		ONCE(what_does_not_fit_a_segment_is_refused),
		EACH_WAY(a_forgotten_record_is_not_read_and_not_told_gone),
		EACH_WAY(a_record_asked_for_under_another_name_is_refused),
		EACH_WAY(two_records_swapped_on_disk_are_both_refused),
		BY_RING(a_flipped_bit_anywhere_is_damage_or_absence_never_wrong_bytes),
		EACH_WAY(after_a_stop_in_order_a_start_reads_a_little_of_each_segment_only),
		EACH_WAY(what_a_kill_left_unsealed_is_sealed_by_the_next_start),
		EACH_WAY(a_segment_is_sealed_only_when_all_of_it_is_durable),
		BY_RING(a_damaged_seal_costs_nothing),
		EACH_WAY(a_seal_of_an_earlier_use_of_the_segment_is_not_believed),
		EACH_WAY(a_damaged_record_header_costs_that_record_only_and_is_counted),
		EACH_WAY(a_damaged_segment_header_costs_nothing_but_a_look_at_the_first_record),
		EACH_WAY(a_start_names_segments_it_cannot_read_and_the_records_their_seals_speak_of),
		ONCE(a_segment_that_a_probe_wrote_to_is_not_taken_for_a_lost_one),
		EACH_WAY(damage_is_counted_told_and_then_forgotten),
		EACH_WAY(a_header_damaged_under_a_running_store_is_refused),
		ONCE(a_damaged_superblock_is_moved_aside_and_a_new_store_begun),
		ONCE(each_start_has_a_number_of_its_own),
		ONCE(the_rings_operations_wait_for_the_disk),
		ONCE(one_damaged_copy_of_the_superblock_loses_nothing),
		EACH_WAY(a_store_cut_short_or_emptied_opens_with_what_is_left),
		EACH_WAY(a_record_shorter_than_a_page_at_the_end_of_a_file_without_fallocate_is_found),
		EACH_WAY(a_file_cut_under_a_running_store_is_damage_not_a_crash),
		BY_RING(the_file_never_outgrows_its_capacity_and_the_oldest_go_first),
		ONCE(how_much_of_the_log_was_written_since_is_told_by_segments),
		ONCE(a_segment_without_living_records_is_taken_before_the_oldest),
		ONCE(gone_may_forget_others_of_the_same_segment),
		EACH_WAY(a_segment_is_not_reused_while_it_is_read),
		EACH_WAY(a_segment_that_can_be_had_after_a_completion_is_eagain_not_enospc),
		ONCE(a_place_of_an_earlier_use_of_a_segment_means_nothing),
		ONCE(a_full_segment_is_flushed),
		ONCE(less_capacity_than_before_is_kept_to_at_once),
		ONCE(a_capacity_too_small_is_refused_with_the_number),
		ONCE(segments_are_chosen_to_hold_the_longest_block_we_know_of),
		ONCE(an_empty_store_is_made_anew_for_longer_blocks_and_one_with_records_is_not),
		EACH_WAY(of_a_key_written_twice_the_later_record_is_the_last_found),
		EACH_WAY(a_start_goes_on_behind_the_last_record),
		EACH_WAY(a_seal_hides_nothing_that_was_written_behind_it),
		ONCE(a_start_that_writes_nothing_leaves_the_seal_as_it_is),
		EACH_WAY(a_seal_that_cannot_be_broken_costs_the_write_and_nothing_else),
		EACH_WAY(a_torn_tail_is_written_over_and_a_hole_is_not),
		ONCE(a_start_does_not_go_on_in_a_segment_it_could_not_read),
		ONCE(leftovers_of_an_earlier_use_of_a_segment_are_not_found),
		EACH_WAY(a_second_owner_is_refused_by_any_path_and_a_copy_is_nobodys),
		ONCE(a_directory_that_cannot_be_used_is_refused_with_path_and_errno),
		ONCE(a_directory_of_another_user_is_refused_with_path_and_errno),
		ONCE(the_store_is_its_owners_alone),
	};

	return cmocka_run_group_tests_name("spill", tests, NULL, NULL);
}
