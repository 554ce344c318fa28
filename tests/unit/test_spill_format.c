/* test_spill_format.c - the pages of a spill store: what they say comes back, and nothing else is believed */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kvpool_spill.h"

static const uint8_t ours[16] = "this store, ours", others[16] = "another's store ";

static struct spill_spot spot_of(uint64_t room)
{
	return (struct spill_spot){.uuid = ours,
		.sequence = (3ull << 32) + 9,
		.off = (5ull << 32) + 4096,
		.room = room,
		.unit = SPILL_PAGE};
}

static struct spill_record record_of(uint64_t bytes)
{
	return (struct spill_record){.ns_id = 7,
		.key.w = {1, 2},
		.parent.w = {3, 4},
		.bytes = bytes,
		.header = SPILL_PAGE,
		.used_tokens = 5,
		.flags = 6};
}

static void sign(uint8_t *page)
{
	XXH64_hash_t checksum = XXH3_64bits(page, SPILL_PAGE - 8);

	memcpy(page + SPILL_PAGE - 8, &checksum, 8);
}

static int decode(const uint8_t *page, struct spill_spot spot)
{
	struct spill_record record;
	struct spill_hash hash;

	return spill_record_decode(page, &spot, &record, &hash);
}

static void a_record_says_what_it_was_told(void **state)
{
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_spot spot = spot_of(1 << 20);
	struct spill_record record = record_of(5000), found;
	struct spill_hash hash = {.w = {11, 12}}, hash_found = {{0}};

	(void)state;
	spill_record_encode(page, &spot, &record, hash);
	assert_int_equal(spill_record_decode(page, &spot, &found, &hash_found), 0);
	assert_memory_equal(&found, &record, sizeof(record));
	assert_true(spill_hash_equal(hash, hash_found));
	/* the bytes are a contract: a change here is another version */
	assert_int_equal(
		XXH3_64bits(page, 56), XXH3_64bits("KVPRECRD\x01\0\0\0\0\x10\0\0this store, ours"
						   "\x09\0\0\0\x03\0\0\0\0\x10\0\0\x05\0\0\0\x07\0\0\0\0\0\0\0",
					       56));
}

static void a_list_of_deleted_keys_says_so_and_is_of_another_version(void **state)
{
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_spot spot = spot_of(1 << 20);
	struct spill_record record = {.bytes = 3 * 24, .header = SPILL_PAGE, .flags = SPILL_RECORD_KILLS}, found;
	struct spill_hash hash = {.w = {11, 12}}, hash_found = {{0}};
	struct spill_disk_entry entry;
	uint32_t at;

	(void)state;
	spill_record_encode(page, &spot, &record, hash);
	assert_int_equal(spill_record_decode(page, &spot, &found, &hash_found), 0);
	assert_memory_equal(&found, &record, sizeof(record));
	assert_true(spill_is_kills(&found));
	assert_int_equal(page[8], 3); /* who knows nothing of such lists finds no record */
	page[8] = 1;
	sign(page);
	assert_int_equal(decode(page, spot), -EBADMSG); /* a block by its version, a list by its flags */
	record.flags = 0;
	spill_record_encode(page, &spot, &record, hash);
	page[8] = 3;
	sign(page);
	assert_int_equal(decode(page, spot), -EBADMSG);
	for (uint64_t bytes = 24; bytes < 3 * 24; bytes++) {
		record = (struct spill_record){.bytes = bytes, .header = SPILL_PAGE, .flags = SPILL_RECORD_KILLS};
		spill_record_encode(page, &spot, &record, hash);
		assert_int_equal(decode(page, spot), bytes % 24 ? -EBADMSG : 0);
		spill_entry_encode(&entry, &record, 1, SPILL_PAGE);
		assert_int_equal(spill_entry_decode(&entry, SPILL_PAGE, SPILL_PAGE, 1 << 20, &found, &at),
			bytes % 24 ? -EBADMSG : 0);
	}
	record.bytes = (SPILL_KILLS_MAX + 1) * 24;
	spill_record_encode(page, &spot, &record, hash);
	assert_int_equal(decode(page, spot), -EBADMSG);
}

static void a_packed_record_says_so_and_is_of_another_version(void **state)
{
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_spot spot = spot_of(1 << 20);
	struct spill_record record = record_of(100000), found;
	struct spill_hash hash = {.w = {11, 12}}, hash_found = {{0}};

	(void)state;
	record.codec = SPILL_ZSTD;
	record.stored = 5000;
	spill_record_encode(page, &spot, &record, hash);
	assert_int_equal(spill_record_decode(page, &spot, &found, &hash_found), 0);
	assert_memory_equal(&found, &record, sizeof(record));
	assert_int_equal(spill_data_bytes(&found), 5000);
	assert_int_equal(page[8], 2); /* who knows nothing of packing finds no record */
	spot.room = 2 * SPILL_PAGE + 1; /* what lies there is what needs room */
	assert_int_equal(decode(page, spot), -EBADMSG);
	spot.room = 3 * SPILL_PAGE;
	assert_int_equal(decode(page, spot), 0);
}

static void a_packed_record_with_lengths_that_cannot_be_is_refused(void **state)
{
	static const struct {
		uint64_t bytes;
		uint32_t codec, stored;
	} bad[] = {{100000, SPILL_ZSTD, 0}, {100000, SPILL_ZSTD, 32}, {100000, SPILL_ZSTD, 99000},
		{100000, SPILL_ZSTD, UINT32_MAX}, {SPILL_SEGMENT_MAX + 1, SPILL_ZSTD, 5000},
		{UINT64_MAX, SPILL_ZSTD, 5000}, {0, SPILL_ZSTD, 5000}, {100000, 2, 5000}};
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_spot spot = spot_of(1 << 20);

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct spill_record record = record_of(bad[i].bytes), found;
		struct spill_disk_entry entry;
		uint32_t at;

		record.codec = bad[i].codec;
		record.stored = bad[i].stored;
		spill_record_encode(page, &spot, &record, (struct spill_hash){.w = {11, 12}});
		assert_int_equal(decode(page, spot), -EBADMSG);
		spill_entry_encode(&entry, &record, 1, SPILL_PAGE);
		if (bad[i].codec == SPILL_ZSTD && bad[i].stored)
			assert_int_equal(
				spill_entry_decode(&entry, SPILL_PAGE, SPILL_PAGE, 1 << 20, &found, &at), -EBADMSG);
	}
}

static void a_record_of_another_store_use_or_place_is_refused(void **state)
{
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_spot spot = spot_of(1 << 20), other;
	struct spill_record record = record_of(5000);

	(void)state;
	spill_record_encode(page, &spot, &record, (struct spill_hash){.w = {11, 12}});
	assert_int_equal(decode(page, spot), 0);
	other = spot;
	other.uuid = others;
	assert_int_equal(decode(page, other), -EBADMSG);
	other = spot;
	other.sequence++;
	assert_int_equal(decode(page, other), -EBADMSG);
	other = spot;
	other.off += 4096;
	assert_int_equal(decode(page, other), -EBADMSG);
	other = spot;
	other.off -= 1ull << 32;
	assert_int_equal(decode(page, other), -EBADMSG);
}

static void a_record_longer_than_the_room_it_has_is_refused(void **state)
{
	static const uint64_t bad[] = {0, 2 * SPILL_PAGE + 1, 3 * SPILL_PAGE, UINT64_MAX, UINT64_MAX - SPILL_PAGE};
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_spot spot = spot_of(3 * SPILL_PAGE);
	struct spill_record record = record_of(2 * SPILL_PAGE);

	(void)state;
	spill_record_encode(page, &spot, &record, (struct spill_hash){.w = {11, 12}});
	assert_int_equal(decode(page, spot), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		record = record_of(bad[i]);
		spill_record_encode(page, &spot, &record, (struct spill_hash){.w = {11, 12}});
		assert_int_equal(decode(page, spot), -EBADMSG);
	}
}

static void any_flipped_bit_of_a_page_is_refused(void **state)
{
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_spot spot = spot_of(1 << 20);
	struct spill_record record = record_of(5000);

	(void)state;
	spill_record_encode(page, &spot, &record, (struct spill_hash){.w = {11, 12}});
	for (unsigned bit = 0; bit < SPILL_PAGE * 8; bit++) {
		page[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_int_equal(decode(page, spot), -EBADMSG);
		page[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	assert_int_equal(decode(page, spot), 0);
}

/* ---- folded headers ---- */

/* A header with all that may be in it, of random bytes where it has any. */
static void header_make(uint8_t *page, uint32_t n_layers, bool encrypted, unsigned seed)
{
	struct spill_spot spot = spot_of(1 << 20);
	struct spill_record record = record_of(5000 + seed);
	struct spill_disk_record *disk = (void *)page;

	spill_record_encode(page, &spot, &record, (struct spill_hash){.w = {seed, 12}});
	disk->n_layers = htole32(n_layers);
	for (uint32_t i = 0; i < n_layers; i++)
		disk->layer_hash[i] =
			encrypted ? htole64(i + 1 < n_layers ? i + 1 : 5000 + seed) : (uint64_t)rand_r(&seed);
	if (encrypted) {
		spill_page_set_version(page, SPILL_VERSION_ENCRYPTED);
		for (uint8_t *at = (uint8_t *)&disk->key_id; at < disk->tags[0] + n_layers * SPILL_TAG; at++)
			*at = (uint8_t)rand_r(&seed);
		for (uint8_t *at = disk->box; at < page + SPILL_PAGE - 8; at++)
			*at = (uint8_t)rand_r(&seed);
	}
	spill_page_end(page);
}

static const uint32_t units[] = {512, 1024, 2048, 4096};
static const uint32_t layers[] = {0, 1, 32, 46, 47, 127, SPILL_LAYERS_MAX};
#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static void a_folded_header_is_no_longer_than_it_must_be_and_unfolds_to_what_it_was(void **state)
{
	_Alignas(8) uint8_t page[SPILL_PAGE], folded[SPILL_PAGE], again[SPILL_PAGE];
	struct spill_record record;
	struct spill_hash hash;

	(void)state;
	assert_int_equal(spill_header_bytes(0, false, 512), 512);
	assert_int_equal(spill_header_bytes(46, false, 512), 512);
	assert_int_equal(spill_header_bytes(47, false, 512), 1024);
	assert_int_equal(spill_header_bytes(1, true, 512), 512);
	assert_int_equal(spill_header_bytes(SPILL_LAYERS_MAX, true, 512), 3584);
	for (unsigned i = 0; i < 2 * N_OF(units) * N_OF(layers); i++) {
		bool encrypted = i % 2;
		uint32_t unit = units[i / 2 % N_OF(units)], n = layers[i / 2 / N_OF(units)];
		struct spill_spot spot = spot_of(1 << 20);
		uint32_t bytes = spill_header_bytes(n, encrypted, unit);

		if (encrypted && !n)
			continue;
		spot.unit = unit;
		header_make(page, n, encrypted, i);
		memcpy(folded, page, sizeof(page));
		spill_header_fold(folded, unit);
		memset(folded + bytes, 0xee, SPILL_PAGE - bytes); /* not looked at */
		memset(again, 0xdd, sizeof(again));
		assert_memory_equal(spill_header_page(folded, unit, again), page, SPILL_PAGE);
		assert_int_equal(spill_record_decode(spill_header_page(folded, unit, again), &spot, &record, &hash), 0);
		assert_int_equal(record.header, bytes);
		assert_int_equal(spill_span(&record, unit), bytes + spill_round_up(5000 + i, unit));
		spot.room = spill_span(&record, unit) - 1;
		assert_int_equal(
			spill_record_decode(spill_header_page(folded, unit, again), &spot, &record, &hash), -EBADMSG);
	}
}

static void any_flipped_bit_of_a_folded_header_is_refused(void **state)
{
	_Alignas(8) uint8_t folded[SPILL_PAGE], page[SPILL_PAGE];

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct spill_spot spot = spot_of(1 << 20);
		uint32_t n = i < 2 ? 1 : 50, bytes = spill_header_bytes(n, i % 2, 512);

		spot.unit = 512;
		header_make(folded, n, i % 2, i);
		spill_header_fold(folded, 512);
		assert_int_equal(decode(spill_header_page(folded, 512, page), spot), 0);
		for (unsigned bit = 0; bit < bytes * 8; bit++) {
			folded[bit / 8] ^= (uint8_t)(1u << bit % 8);
			assert_int_equal(decode(spill_header_page(folded, 512, page), spot), -EBADMSG);
			folded[bit / 8] ^= (uint8_t)(1u << bit % 8);
		}
	}
}

/* Power fails between any two sectors of it, over what lay there before: zeroes, data, a header of an earlier use. */
static void a_header_torn_at_any_sector_is_refused(void **state)
{
	_Alignas(8) uint8_t was[SPILL_PAGE], folded[SPILL_PAGE], torn[SPILL_PAGE], page[SPILL_PAGE];

	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		struct spill_spot spot = spot_of(1 << 20);
		uint32_t bytes = spill_header_bytes(SPILL_LAYERS_MAX, i % 2, 512);

		spot.unit = 512;
		header_make(folded, SPILL_LAYERS_MAX, i % 2, i);
		spill_header_fold(folded, 512);
		memset(was, i < 2 ? 0 : 0xa5, sizeof(was));
		if (i >= 4) {
			header_make(was, SPILL_LAYERS_MAX, i % 2, 100 + i);
			spill_header_fold(was, 512);
		}
		for (uint32_t mask = 1; mask + 1 < 1u << bytes / 512; mask++) {
			for (uint32_t k = 0; k < bytes / 512; k++)
				memcpy(torn + 512 * k, (mask >> k & 1 ? folded : was) + 512 * k, 512);
			if (!memcmp(torn, was, bytes) || !memcmp(torn, folded, bytes))
				continue; /* they have this sector in common */
			assert_int_equal(decode(spill_header_page(torn, 512, page), spot), -EBADMSG);
		}
	}
}

static void a_superblock_names_its_unit_and_who_knows_of_none_does_not_take_it(void **state)
{
	static const uint32_t bad[] = {0, 256, 513, 1536, 4096, 8192, UINT32_MAX};
	struct spill_super super = {.segment_bytes = 1 << 20, .start = 2}, found;
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_disk_super *disk = (void *)page;

	(void)state;
	for (unsigned i = 0; i < 2 * N_OF(units); i++) {
		super.unit = units[i / 2];
		super.n_keys = i % 2;
		super.key_ids[0] = i % 2 ? 77 : 0;
		spill_super_encode(page, &super);
		assert_int_equal(page[8], super.unit < SPILL_PAGE ? 5 : i % 2 ? 4 : 1);
		assert_int_equal(disk->unit, super.unit < SPILL_PAGE ? super.unit : 0);
		assert_int_equal(spill_super_decode(page, &found), 0);
		assert_int_equal(found.unit, super.unit);
		assert_int_equal(found.n_keys, i % 2);
		assert_int_equal(found.key_ids[0], super.key_ids[0]);
	}
	super.unit = 512;
	for (unsigned i = 0; i < N_OF(bad); i++) {
		spill_super_encode(page, &super);
		disk->unit = htole32(bad[i]);
		sign(page);
		assert_int_equal(spill_super_decode(page, &found), -EBADMSG);
	}
}

static void an_entry_tells_how_long_the_header_is(void **state)
{
	struct spill_record record = record_of(5000), found;
	struct spill_disk_entry entry;
	uint32_t at;

	(void)state;
	for (uint32_t header = 512; header <= SPILL_PAGE + 512; header += 512) {
		uint64_t from = 9 * 512ull, to = from + header + 5120;

		record.header = (uint16_t)header;
		spill_entry_encode(&entry, &record, 9, 512);
		assert_int_equal(
			spill_entry_decode(&entry, 512, from, to, &found, &at), header > SPILL_PAGE ? -EBADMSG : 0);
		assert_int_equal(spill_entry_decode(&entry, 512, from, to - 512, &found, &at), -EBADMSG);
		if (header > SPILL_PAGE)
			continue;
		assert_int_equal(at, 9);
		assert_memory_equal(&found, &record, sizeof(record));
	}
	/* of pages there is one */
	record.header = 2 * SPILL_PAGE;
	spill_entry_encode(&entry, &record, 9, SPILL_PAGE);
	assert_int_equal(spill_entry_decode(&entry, SPILL_PAGE, SPILL_PAGE, 1 << 20, &found, &at), -EBADMSG);
}

static void a_segment_of_another_store_or_place_is_refused(void **state)
{
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_spot spot = spot_of(1 << 20), found = spot;

	(void)state;
	spill_segment_encode(page, &spot);
	found.sequence = 0;
	assert_int_equal(spill_segment_decode(page, &found), 0);
	assert_int_equal(found.sequence, spot.sequence);
	found.off += 4096;
	assert_int_equal(spill_segment_decode(page, &found), -EBADMSG);
	found.off -= 4096;
	found.uuid = others;
	assert_int_equal(spill_segment_decode(page, &found), -EBADMSG);
	spot.sequence = 0;
	spill_segment_encode(page, &spot);
	assert_int_equal(spill_segment_decode(page, &spot), -EBADMSG);
}

static void kinds_of_pages_are_not_taken_for_one_another(void **state)
{
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_spot spot = spot_of(1 << 20);
	struct spill_record record = record_of(5000);
	struct spill_super super = {.segment_bytes = 1 << 20, .start = 2, .unit = SPILL_PAGE};

	(void)state;
	memcpy(super.uuid, ours, sizeof(ours));
	spill_record_encode(page, &spot, &record, (struct spill_hash){.w = {11, 12}});
	assert_int_equal(spill_segment_decode(page, &spot), -EBADMSG);
	assert_int_equal(spill_super_decode(page, &super), -EBADMSG);
	spill_segment_encode(page, &spot);
	assert_int_equal(decode(page, spot), -EBADMSG);
	assert_int_equal(spill_super_decode(page, &super), -EBADMSG);
	spill_super_encode(page, &super);
	assert_int_equal(decode(page, spot), -EBADMSG);
	assert_int_equal(spill_segment_decode(page, &spot), -EBADMSG);
}

static void a_superblock_out_of_bounds_or_of_another_version_is_refused(void **state)
{
	static const uint64_t bad[] = {
		0, SPILL_SEGMENT_MIN - 4096, SPILL_SEGMENT_MIN + 512, SPILL_SEGMENT_MAX + 4096, UINT64_MAX};
	_Alignas(8) uint8_t page[SPILL_PAGE], again[SPILL_PAGE];
	struct spill_super super = {.capacity = 1 << 30,
				   .segment_bytes = 1 << 20,
				   .start = 2,
				   .pid = 77,
				   .unit = SPILL_PAGE},
			   found = {.pid = 1};

	(void)state;
	spill_super_encode(page, &super);
	assert_int_equal(spill_super_decode(page, &found), 0);
	spill_super_encode(again, &found); /* not the structs: they have bytes between their fields */
	assert_memory_equal(again, page, sizeof(page));
	assert_int_equal(found.pid, 77);
	page[8]++; /* version */
	sign(page);
	assert_int_equal(spill_super_decode(page, &found), -EPROTONOSUPPORT);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		super.segment_bytes = bad[i];
		spill_super_encode(page, &super);
		assert_int_equal(spill_super_decode(page, &found), -EBADMSG);
	}
	super.segment_bytes = 1 << 20;
	super.start = SPILL_START_MAX;
	spill_super_encode(page, &super);
	assert_int_equal(spill_super_decode(page, &found), -EBADMSG);
}

static void a_seal_and_its_entries_say_what_they_were_told_and_nothing_out_of_bounds(void **state)
{
	_Alignas(8) uint8_t page[SPILL_PAGE];
	uint8_t uuid[16] = "sixteen bytes...";
	struct spill_spot spot = {.uuid = uuid, .sequence = 9, .off = 1 << 20, .unit = SPILL_PAGE};
	struct spill_seal seal = {.used = 65536, .n = 130, .index_hash.w = {1, 2}}, found = {0};
	struct spill_record record = record_of(5000), again;
	struct spill_disk_entry entry;
	uint32_t at;

	(void)state;
	spill_seal_encode(page, &spot, &seal);
	assert_int_equal(spill_seal_decode(page, &spot, 4 << 20, &found), 0);
	assert_int_equal(found.used, 65536);
	assert_int_equal(found.n, 130);
	assert_true(spill_hash_equal(found.index_hash, seal.index_hash));
	/* each record takes two pages at least: so many cannot be in so small a segment */
	assert_int_equal(spill_seal_decode(page, &spot, 65536 + 4 * SPILL_PAGE, &found), -EBADMSG);
	seal.n = 8;
	spill_seal_encode(page, &spot, &seal);
	assert_int_equal(spill_seal_decode(page, &spot, 65536 + 2 * SPILL_PAGE, &found), 0);
	assert_int_equal(spill_seal_decode(page, &spot, 65536 + SPILL_PAGE, &found), -EBADMSG);
	spot.sequence++;
	assert_int_equal(spill_seal_decode(page, &spot, 4 << 20, &found), -EBADMSG);
	spot.sequence--;
	spot.off += SPILL_PAGE;
	assert_int_equal(spill_seal_decode(page, &spot, 4 << 20, &found), -EBADMSG);
	seal.n = 0;
	spill_seal_encode(page, &spot, &seal);
	assert_int_equal(spill_seal_decode(page, &spot, 4 << 20, &found), -EBADMSG);
	/* header and two pages of data from page 5 on */
	spill_entry_encode(&entry, &record, 5, SPILL_PAGE);
	assert_int_equal(spill_entry_decode(&entry, SPILL_PAGE, 5 * SPILL_PAGE, 8 * SPILL_PAGE, &again, &at), 0);
	assert_int_equal(at, 5);
	assert_memory_equal(&again, &record, sizeof(record));
	assert_int_equal(spill_entry_decode(&entry, SPILL_PAGE, 6 * SPILL_PAGE, 8 * SPILL_PAGE, &again, &at), -EBADMSG);
	assert_int_equal(spill_entry_decode(&entry, SPILL_PAGE, 5 * SPILL_PAGE, 7 * SPILL_PAGE, &again, &at), -EBADMSG);
	record.bytes = UINT64_MAX;
	spill_entry_encode(&entry, &record, 5, SPILL_PAGE);
	assert_int_equal(spill_entry_decode(&entry, SPILL_PAGE, 5 * SPILL_PAGE, 8 * SPILL_PAGE, &again, &at), -EBADMSG);
}

#undef XXH3_128bits /* as every CPU works it out */
static void the_checksum_is_the_same_however_wide_the_vectors_are(void **state)
{
	static uint8_t data[3 * SPILL_PAGE + 100];

	(void)state;
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 131 + i / 256 * 7);
	for (size_t n = 1; n < sizeof(data); n += n < 300 ? 1 : 511) {
		XXH128_hash_t hash = XXH3_128bits(data, n);

		assert_true(spill_hash_equal(
			spill_hash_data(data, n), (struct spill_hash){.w = {hash.low64, hash.high64}}));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_record_says_what_it_was_told),
		cmocka_unit_test(a_packed_record_says_so_and_is_of_another_version),
		cmocka_unit_test(a_list_of_deleted_keys_says_so_and_is_of_another_version),
		cmocka_unit_test(a_packed_record_with_lengths_that_cannot_be_is_refused),
		cmocka_unit_test(a_record_of_another_store_use_or_place_is_refused),
		cmocka_unit_test(a_record_longer_than_the_room_it_has_is_refused),
		cmocka_unit_test(any_flipped_bit_of_a_page_is_refused),
		cmocka_unit_test(a_folded_header_is_no_longer_than_it_must_be_and_unfolds_to_what_it_was),
		cmocka_unit_test(any_flipped_bit_of_a_folded_header_is_refused),
		cmocka_unit_test(a_header_torn_at_any_sector_is_refused),
		cmocka_unit_test(a_superblock_names_its_unit_and_who_knows_of_none_does_not_take_it),
		cmocka_unit_test(an_entry_tells_how_long_the_header_is),
		cmocka_unit_test(a_segment_of_another_store_or_place_is_refused),
		cmocka_unit_test(kinds_of_pages_are_not_taken_for_one_another),
		cmocka_unit_test(a_seal_and_its_entries_say_what_they_were_told_and_nothing_out_of_bounds),
		cmocka_unit_test(the_checksum_is_the_same_however_wide_the_vectors_are),
		cmocka_unit_test(a_superblock_out_of_bounds_or_of_another_version_is_refused),
	};

	return cmocka_run_group_tests_name("spill format", tests, NULL, NULL);
}
