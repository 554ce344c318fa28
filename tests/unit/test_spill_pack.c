/* test_spill_pack.c - records that lie packed: exact, bounded, never believed more than the checksums say */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <zstd.h>

#include "../../daemon/namespace.h"
#include "../../daemon/tier_parts.h"
#include "spill_fixture.h"

#define MIB (1ull << 20)
#define LIED 100000u /* bytes of the blocks that are forged */

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

/* As put(), with a wish. block_fill()'s bytes pack well. */
static int put_as(struct fixture *f, unsigned k, uint64_t bytes, uint32_t codec)
{
	struct block *b = &f->blocks[k];
	struct spill_record record;
	int r;

	*b = (struct block){.k = k, .bytes = bytes};
	record = block_record(b);
	record.codec = codec;
	block_fill(b, f->out);
	while ((r = spill_write(f->spill, &record, f->out, b, block_done, b)) == -EAGAIN)
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
	if (r < 0)
		return r;
	settle(f);
	return b->done ? b->res : -ETIMEDOUT;
}

/* On disk, with its header. */
static uint64_t bytes_of(struct fixture *f, unsigned k)
{
	uint32_t i;

	return record_bytes(f->spill, block_at(f, k, &i));
}

static const uint64_t sizes[] = {1, 4096, 4097, 8192, 8193, 20000, 65536, 1000001, BLOCK_MAX};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static void packed_blocks_of_any_size_come_back_exact(void **state)
{
	struct fixture *f = *state;

	for (unsigned k = 0; k < SIZES; k++)
		assert_int_equal(put_as(f, k, sizes[k], SPILL_ZSTD), 0);
	for (unsigned k = 0; k < SIZES; k++)
		assert_int_equal(get(f, k), 0);
	assert_int_equal(stats_of(f).live_records, SIZES);
	assert_true(store_adds_up(f));
}

static void what_is_packed_takes_fewer_bytes_of_the_store_and_is_counted_by_them(void **state)
{
	struct fixture *f = *state;
	struct spill_stats before = stats_of(f), after;

	assert_int_equal(put_as(f, 0, MIB, SPILL_ZSTD), 0);
	after = stats_of(f);
	assert_true(bytes_of(f, 0) < MIB / 8);
	assert_int_equal(after.live_bytes - before.live_bytes, bytes_of(f, 0));
	assert_true(after.write_bytes - before.write_bytes < MIB / 8);
}

static void packed_blocks_come_back_after_a_restart_sealed_or_not(void **state)
{
	struct fixture *f = *state;

	for (unsigned k = 0; k < SIZES; k++)
		assert_int_equal(put_as(f, k, sizes[k], SPILL_ZSTD), 0);
	assert_int_equal(fixture_reopen(f), 0); /* closed in order: by the seal */
	assert_int_equal(f->n_found, SIZES);
	assert_true(store_adds_up(f));
	for (unsigned k = 0; k < SIZES; k++)
		assert_int_equal(get(f, k), 0);
	fault_arm("spill.seal=-EIO");
	for (unsigned k = SIZES; k < 2 * SIZES; k++)
		assert_int_equal(put_as(f, k, sizes[k - SIZES], SPILL_ZSTD), 0);
	assert_int_equal(fixture_reopen(f), 0); /* from header to header */
	fault_disarm();
	assert_int_equal(f->n_found, 2 * SIZES);
	for (unsigned k = 0; k < 2 * SIZES; k++)
		assert_int_equal(get(f, k), 0);
	assert_true(store_adds_up(f));
}

static void plain_and_packed_records_lie_side_by_side(void **state)
{
	struct fixture *f = *state;

	for (unsigned k = 0; k < 20; k++)
		assert_int_equal(put_as(f, k, 30000 + k, k % 2 ? SPILL_ZSTD : SPILL_PLAIN), 0);
	assert_int_equal(fixture_reopen(f), 0);
	for (unsigned k = 0; k < 20; k++) {
		assert_int_equal(get(f, k), 0);
		assert_int_equal(bytes_of(f, k) < span_of(f, 30000 + k), k % 2);
	}
}

static void fill_random(uint8_t *bytes, uint64_t n)
{
	uint64_t x = 88172645463325252ull;

	for (uint64_t i = 0; i < n; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		bytes[i] = (uint8_t)x;
	}
}

static void what_does_not_get_shorter_goes_down_plain(void **state)
{
	struct fixture *f = *state;
	struct block *b = &f->blocks[0];
	struct spill_record record;

	b->bytes = 300000;
	record = block_record(b);
	record.codec = SPILL_ZSTD;
	fill_random(f->out, b->bytes);
	assert_int_equal(spill_write(f->spill, &record, f->out, b, block_done, b), 0);
	settle(f);
	assert_int_equal(b->res, 0);
	assert_int_equal(bytes_of(f, 0), span_of(f, b->bytes));
	record.codec = SPILL_PLAIN;
	assert_int_equal(spill_read(f->spill, b->place, &record, f->in, block_done, b), 0);
	settle(f);
	assert_int_equal(b->res, 0);
	assert_memory_equal(f->in, f->out, b->bytes);
}

static struct spill_packed told;

static void told_done(void *owner, int res, spill_place place)
{
	const struct fixture *f = owner;

	assert_int_equal(res, 0);
	assert_true(place != 0);
	told = *spill_packed(f->spill);
}

static void a_sample_lies_plain_and_tells_what_packing_would_bring(void **state)
{
	struct fixture *f = *state;
	struct block *b = &f->blocks[0];
	struct spill_record record;

	b->bytes = MIB;
	record = block_record(b);
	record.codec = SPILL_SAMPLE;
	block_fill(b, f->out);
	assert_int_equal(spill_write(f->spill, &record, f->out, b, told_done, f), 0);
	settle(f);
	assert_int_equal(told.codec, SPILL_SAMPLE);
	assert_int_equal(told.bytes, MIB);
	assert_true(told.stored < MIB / 8 && told.unpack_ns > 0);
	assert_int_equal(stats_of(f).live_bytes, span_of(f, MIB));
	fill_random(f->out, b->bytes);
	assert_int_equal(spill_write(f->spill, &record, f->out, b, told_done, f), 0);
	settle(f);
	assert_true(told.stored == MIB && told.unpack_ns == 0);
}

/* ---- lies ---- */

/* The data of record @k becomes what some writer with the store's UUID might leave there, all checksums on disk
   right. */
static void forge(struct fixture *f, unsigned k, const struct spill_disk_pack *pack, const void *frame, uint64_t n)
{
	_Alignas(8) uint8_t head[SPILL_PAGE], page[SPILL_PAGE], data[SPILL_PAGE] = {0};
	uint32_t unit = f->spill->file.super.unit;
	struct spill_spot spot = {.uuid = f->spill->file.super.uuid,
		.sequence = f->spill->segments[f->spill->open].sequence,
		.off = block_off(f, k),
		.room = MIB,
		.unit = unit};
	struct spill_record record = {0};
	struct spill_hash hash = {{0}};
	int fd = open(f->path, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0 && sizeof(*pack) + n <= sizeof(data));
	assert_int_equal(pread(fd, head, sizeof(head), (off_t)spot.off), sizeof(head));
	assert_int_equal(spill_record_decode(spill_header_page(head, unit, page), &spot, &record, &hash), 0);
	assert_int_equal(record.codec, SPILL_ZSTD);
	assert_true(spill_round_up(record.stored, unit) >= spill_round_up(sizeof(*pack) + n, unit));
	memcpy(data, pack, sizeof(*pack));
	memcpy(data + sizeof(*pack), frame, n);
	record.stored = (uint32_t)(sizeof(*pack) + n);
	spill_record_encode(page, &spot, &record, spill_hash_data(data, record.stored));
	spill_header_fold(page, unit);
	assert_int_equal(pwrite(fd, page, record.header, (off_t)spot.off), record.header);
	assert_int_equal(pwrite(fd, data, record.stored, (off_t)(spot.off + record.header)), record.stored);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

static uint64_t frame_of(const void *bytes, uint64_t n, uint8_t frame[SPILL_PAGE])
{
	size_t r = ZSTD_compress(frame, SPILL_PAGE - sizeof(struct spill_disk_pack), bytes, n, 1);

	assert_false(ZSTD_isError(r));
	return r;
}

static struct spill_disk_pack head_of(const void *bytes, uint64_t n)
{
	struct spill_hash hash = spill_hash_data(bytes, n);

	return (struct spill_disk_pack){.magic = SPILL_PACK_MAGIC, .bytes = n, .hash = {hash.w[0], hash.w[1]}};
}

static void a_forged_record_that_is_right_is_taken(void **state)
{
	struct fixture *f = *state;
	uint8_t frame[SPILL_PAGE];
	struct spill_disk_pack head;

	assert_int_equal(put_as(f, 0, LIED, SPILL_ZSTD), 0);
	head = head_of(f->out, LIED);
	forge(f, 0, &head, frame, frame_of(f->out, LIED, frame)); /* else the lies below would prove nothing */
	assert_int_equal(get(f, 0), 0);
}

static void a_lie_about_length_or_bytes_is_damage_and_stores_nothing_past_the_block(void **state)
{
	struct fixture *f = *state;
	uint8_t frame[SPILL_PAGE], *more = calloc(1, 2 * LIED);
	struct spill_disk_pack right, head;

	for (unsigned lie = 0; lie < 8; lie++) {
		uint64_t n;

		assert_int_equal(put_as(f, lie, LIED, SPILL_ZSTD), 0);
		memcpy(more, f->out, LIED);
		head = right = head_of(f->out, LIED);
		n = frame_of(f->out, LIED, frame);
		switch (lie) {
		case 0:
			head.magic++;
			break;
		case 1:
			head.bytes = 2 * LIED;
			break;
		case 2:
			head.bytes = LIED - 1;
			break;
		case 3:
			head.hash[1] ^= 1;
			break;
		case 4: /* a bomb */
			n = frame_of(more, 2 * LIED, frame);
			break;
		case 5:
			n = frame_of(f->out, LIED - 1, frame);
			break;
		case 6:
			n--;
			break;
		default: /* other bytes, as long */
			more[LIED / 2] ^= 1;
			n = frame_of(more, LIED, frame);
		}
		forge(f, lie, &head, frame, n);
		memset(f->in + LIED, 0x77, 8 * SPILL_PAGE);
		memcpy(f->in, f->out, LIED); /* what lay there before completes nothing */
		assert_int_equal(get_over(f, lie), -EBADMSG);
		for (unsigned i = 0; i < 8 * SPILL_PAGE; i++)
			assert_int_equal(f->in[LIED + i], 0x77);
		assert_int_equal(f->blocks[lie].n_gone, 1);
		assert_int_equal(stats_of(f).damaged, lie + 1);
	}
	free(more);
	assert_true(store_adds_up(f));
}

static void a_flipped_bit_of_packed_data_is_damage(void **state)
{
	struct fixture *f = *state;

	for (unsigned k = 0; k < 24; k++) {
		uint64_t at;
		uint8_t byte;
		int fd;

		assert_int_equal(put_as(f, k, LIED, SPILL_ZSTD), 0);
		at = data_off(f, k) + k * 7;
		fd = open(f->path, O_RDWR | O_CLOEXEC);
		assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
		byte ^= (uint8_t)(1u << k % 8);
		assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
		assert_int_equal(fsync(fd), 0);
		close(fd);
		assert_int_equal(get(f, k), -EBADMSG);
	}
}

/* ---- many, and failures ---- */

static void memory_for_packing_is_bounded_and_everything_gets_through(void **state)
{
	struct fixture *f = *state;
	unsigned n_waited = 0;

	for (unsigned k = 0; k < 200; k++) {
		struct block *b = &f->blocks[k];
		struct spill_record record;
		int r;

		*b = (struct block){.k = k, .bytes = BLOCK_MAX};
		record = block_record(b);
		record.codec = SPILL_ZSTD;
		if (k == 0)
			block_fill(b, f->out);
		while ((r = spill_write(f->spill, &record, f->out, b, block_done, b)) == -EAGAIN) {
			n_waited++;
			spill_wait(f->spill, loop_now() + SPILL_SECOND);
		}
		assert_int_equal(r, 0);
		assert_true(f->spill->pack_room <= PACK_MOST && f->spill->pack_writing <= PACK_MOST / 2);
	}
	settle(f);
	assert_true(n_waited > 0);
	assert_int_equal(f->spill->pack_writing, 0);
	assert_null(f->spill->placeless);
	for (unsigned k = 0; k < 200; k++)
		assert_true(f->blocks[k].done && f->blocks[k].res == 0);
	assert_int_equal(get(f, 0), 0);
	assert_true(store_adds_up(f));
}

static void memory_for_unpacking_is_bounded_and_everything_comes_back(void **state)
{
	enum { N = 60, TIMES = 3, BYTES = 1 << 20 };
	struct fixture *f = *state;
	struct block *reads = calloc(N * TIMES, sizeof(*reads));
	uint8_t *in = aligned_alloc(SPILL_PAGE, (size_t)N * TIMES * BYTES);
	uint64_t word = 1;

	assert_true(reads && in);
	f->opts.depth = 32; /* so many reads at once that they want more than there is */
	assert_int_equal(fixture_reopen(f), 0);
	memset(f->out, 0, BYTES);
	for (unsigned i = 0; i < BYTES / 4 * 3; i += 8) { /* the rest packs to nothing */
		word = word * 6364136223846793005u + 1442695040888963407u;
		memcpy(f->out + i, &word, 8);
	}
	for (unsigned k = 0; k < N; k++) {
		struct block *b = &f->blocks[k];
		struct spill_record record;

		*b = (struct block){.k = k, .bytes = BYTES};
		record = block_record(b);
		record.codec = SPILL_ZSTD;
		while (spill_write(f->spill, &record, f->out, b, block_done, b) == -EAGAIN)
			spill_wait(f->spill, loop_now() + SPILL_SECOND);
	}
	settle(f);
	for (unsigned i = 0; i < N * TIMES; i++) {
		const struct block *b = &f->blocks[i % N];
		struct spill_record record = block_record(b);

		assert_true(b->done && b->res == 0);
		while (spill_read(f->spill, b->place, &record, in + (size_t)i * BYTES, block_done, &reads[i]) ==
			-EAGAIN)
			spill_wait(f->spill, loop_now() + SPILL_SECOND);
		assert_true(f->spill->pack_room <= PACK_MOST);
	}
	settle(f);
	for (unsigned i = 0; i < N * TIMES; i++)
		assert_true(reads[i].done && reads[i].res == 0 && !memcmp(in + (size_t)i * BYTES, f->out, BYTES));
	free(in);
	free(reads);
}

/* Plain ones beside them need none; what packed ones need is made once, for as many as are under way at a time. */
static void memory_for_packing_is_used_again_whatever_moves_beside_it(void **state)
{
	enum { N = 60, BYTES = 1 << 20 };
	struct fixture *f = *state;

	for (unsigned round = 0; round < 3; round++) {
		for (unsigned k = 0; k < N; k++) {
			struct block *b = &f->blocks[k];
			struct spill_record record;

			*b = (struct block){.k = k, .bytes = BYTES};
			record = block_record(b);
			record.codec = k % 3 ? SPILL_PLAIN : SPILL_ZSTD;
			if (!k)
				block_fill(b, f->out);
			while (spill_write(f->spill, &record, f->out, b, block_done, b) == -EAGAIN)
				spill_wait(f->spill, loop_now() + SPILL_SECOND);
		}
		settle(f);
		for (unsigned k = 0; k < N; k++) /* small ones take what there is, and do not cut it */
			assert_int_equal(put_as(f, 1000 + k, 20000, SPILL_ZSTD), 0);
	}
	assert_in_range(f->spill->n_pack_made, 1, N / 3); /* no more than were ever under way */
}

static void packed_blocks_go_round_the_store_and_the_oldest_go_first(void **state)
{
	struct fixture *f = *state;
	unsigned n = 0;

	/* some 100 kB each after packing: three capacities of them */
	for (unsigned k = 0; k < 1000; k++) {
		struct block *b = &f->blocks[k];
		struct spill_record record;
		int r;

		*b = (struct block){.k = k, .bytes = 250000};
		block_fill(b, f->out);
		fill_random(f->out, 150000);
		record = block_record(b);
		record.codec = SPILL_ZSTD;
		while ((r = spill_write(f->spill, &record, f->out, b, block_done, b)) == -EAGAIN)
			spill_wait(f->spill, loop_now() + SPILL_SECOND);
		assert_int_equal(r, 0);
		settle(f);
		assert_int_equal(b->res, 0);
	}
	for (unsigned k = 0; k < 1000; k++)
		n += f->blocks[k].place != 0;
	assert_true(f->n_gone > 0 && n > 0 && f->blocks[999].place && !f->blocks[0].place);
	assert_int_equal(n, stats_of(f).live_records);
	assert_true(file_bytes(f, NULL) <= 64 * MIB);
	assert_true(store_adds_up(f));
}

static void a_packed_write_that_fails_says_so_and_leaves_nothing(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(put_as(f, 0, LIED, SPILL_ZSTD), 0);
	fault_arm("io.write=-EIO@1");
	assert_int_equal(put_as(f, 1, LIED, SPILL_ZSTD), -EIO);
	fault_disarm();
	assert_int_equal(f->blocks[1].place, 0);
	assert_int_equal(f->spill->pack_writing, 0);
	assert_int_equal(get(f, 0), 0);
	assert_true(store_adds_up(f));
}

static void a_store_that_goes_down_ends_what_is_being_packed(void **state)
{
	struct fixture *f = *state;
	struct block *b = &f->blocks[1];
	struct spill_record record;

	*b = (struct block){.k = 1, .bytes = BLOCK_MAX};
	block_fill(b, f->out);
	record = block_record(b);
	record.codec = SPILL_ZSTD;
	assert_int_equal(spill_write(f->spill, &record, f->out, b, block_done, b), 0);
	health_failed(f->spill, SPILL_NO_SEGMENT, "test", EIO);
	settle(f);
	assert_true(b->done);
	assert_int_equal(b->res, -ENODEV);
	assert_true(store_adds_up(f));
}

static void a_scrub_knows_packed_records_and_finds_the_damaged_one(void **state)
{
	struct fixture *f = *state;
	uint64_t at;

	for (unsigned k = 0; k < 4; k++)
		assert_int_equal(put_as(f, k, 500000, SPILL_ZSTD), 0);
	spill_scrub_now(f->spill, 1 << 30);
	for (unsigned i = 0; i < 1000 && stats_of(f).scrub_passes < 1; i++)
		spill_wait(f->spill, loop_now() + SPILL_SECOND / 100);
	assert_int_equal(stats_of(f).scrub_damaged, 0);
	assert_int_equal(stats_of(f).scrub_passes, 1);
	at = data_off(f, 2) + 50;
	{
		int fd = open(f->path, O_RDWR | O_CLOEXEC);

		assert_int_equal(pwrite(fd, "\xff\x01\xfe\x02", 4, (off_t)at), 4);
		assert_int_equal(fsync(fd), 0);
		close(fd);
	}
	spill_scrub_now(f->spill, 1 << 30);
	for (unsigned i = 0; i < 1000 && stats_of(f).scrub_passes < 2; i++)
		spill_wait(f->spill, loop_now() + SPILL_SECOND / 100);
	assert_int_equal(stats_of(f).scrub_damaged, 1);
	assert_int_equal(f->blocks[2].n_gone, 1);
	assert_int_equal(f->blocks[1].n_gone, 0);
}

/* ---- the rule ---- */

static void packing_pays_only_where_it_saves_an_eighth_and_unpacking_is_no_slower_than_the_device(void **state)
{
	/* 16 blocks of 1000 bytes, 1 ns a byte to unpack */
	struct ns_pack pack = {.n = 16, .bytes = 16000, .stored = 14000, .timed_bytes = 16000, .unpack_ns = 16000};

	(void)state;
	assert_true(pack_pays(&pack, 1.0));
	assert_true(pack_pays(&pack, 5.0));
	assert_false(pack_pays(&pack, 0.9)); /* a device that is faster than the thread */
	assert_false(pack_pays(&pack, 0)); /* nothing was read yet */
	pack.stored++;
	assert_false(pack_pays(&pack, 5.0));
	pack.stored = 1000;
	pack.n = 15;
	assert_false(pack_pays(&pack, 5.0));
	pack.n = 16;
	pack.timed_bytes = pack.unpack_ns = 0; /* none became shorter */
	assert_false(pack_pays(&pack, 5.0));
}

static void reads_of_plain_records_tell_how_fast_the_device_is(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(put_as(f, 0, MIB, SPILL_ZSTD), 0);
	assert_int_equal(get(f, 0), 0);
	assert_true(stats_of(f).read_ns_per_byte == 0);
	assert_int_equal(put_as(f, 1, MIB, SPILL_PLAIN), 0);
	assert_int_equal(get(f, 1), 0);
	assert_true(stats_of(f).read_ns_per_byte > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		EACH_WAY(packed_blocks_of_any_size_come_back_exact),
		ONCE(what_is_packed_takes_fewer_bytes_of_the_store_and_is_counted_by_them),
		EACH_WAY(packed_blocks_come_back_after_a_restart_sealed_or_not),
		ONCE(plain_and_packed_records_lie_side_by_side),
		ONCE(what_does_not_get_shorter_goes_down_plain),
		ONCE(a_sample_lies_plain_and_tells_what_packing_would_bring),
		ONCE(a_forged_record_that_is_right_is_taken),
		EACH_WAY(a_lie_about_length_or_bytes_is_damage_and_stores_nothing_past_the_block),
		ONCE(a_flipped_bit_of_packed_data_is_damage),
		EACH_WAY(memory_for_packing_is_used_again_whatever_moves_beside_it),
		EACH_WAY(memory_for_packing_is_bounded_and_everything_gets_through),
		EACH_WAY(memory_for_unpacking_is_bounded_and_everything_comes_back),
		EACH_WAY(packed_blocks_go_round_the_store_and_the_oldest_go_first),
		ONCE(a_packed_write_that_fails_says_so_and_leaves_nothing),
		ONCE(a_store_that_goes_down_ends_what_is_being_packed),
		ONCE(a_scrub_knows_packed_records_and_finds_the_damaged_one),
		ONCE(packing_pays_only_where_it_saves_an_eighth_and_unpacking_is_no_slower_than_the_device),
		ONCE(reads_of_plain_records_tell_how_fast_the_device_is),
	};

	return cmocka_run_group_tests_name("spill_pack", tests, NULL, NULL);
}
