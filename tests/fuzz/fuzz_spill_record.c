/*
 * fuzz_spill_record.c - pages of a spill store as foreign bytes: superblock, segment header, record header, encrypted
 * or not
 *
 * Input: a byte of choices, then the page, zeros after its end.  The checksum would keep a fuzzer out for ever, so a
 * choice puts it right, another takes over the store, use and place that the page names.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kvpool_cipher.h"
#include "kvpool_spill.h"

#define CHOICE_KIND 3 /* 0 superblock, 1 segment, 2 record, 3 record, seal and entries */
#define CHOICE_CHECKSUM 4
#define CHOICE_OURS 8
#define CHOICE_TIGHT 16 /* little room is left in the segment */
#define CHOICE_ENCRYPT 32 /* what was decoded is encrypted and read back */

static void must(int condition)
{
	if (!condition)
		abort();
}

static void try_seal(const uint8_t *page, const struct spill_spot *spot)
{
	const struct spill_disk_entry *entries = (const struct spill_disk_entry *)(const void *)page;
	uint64_t to = spot->room / SPILL_PAGE * SPILL_PAGE, bytes = SPILL_SEGMENT_MAX;
	struct spill_record record;
	struct spill_seal seal;
	uint32_t at;

	if (spill_seal_decode(page, spot, bytes, &seal) == 0)
		must(seal.n > 0 && seal.used + spill_index_bytes(seal.n) + SPILL_PAGE <= bytes);
	for (unsigned i = 0; i < SPILL_PAGE / sizeof(*entries); i++)
		if (spill_entry_decode(&entries[i], spot->unit, SPILL_PAGE, to, &record, &at) == 0)
			must(at > 0 && record.header <= SPILL_PAGE && record.header % spot->unit == 0 &&
				(uint64_t)at * spot->unit + spill_span(&record, spot->unit) <= to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_super(const void *page)
{
	struct spill_super super, again;
	_Alignas(8) uint8_t encoded[SPILL_PAGE];

	if (spill_super_decode(page, &super) < 0)
		return;
	must(super.segment_bytes >= SPILL_SEGMENT_MIN && super.segment_bytes <= SPILL_SEGMENT_MAX);
	must(super.segment_bytes % SPILL_PAGE == 0 && super.start < SPILL_START_MAX);
	spill_super_encode(encoded, &super);
	must(spill_super_decode(encoded, &again) == 0);
	must(super.n_keys <= SPILL_KEYS_MAX && again.n_keys == super.n_keys &&
		!memcmp(super.key_ids, again.key_ids, sizeof(super.key_ids)));
	must(memcmp(super.uuid, again.uuid, sizeof(super.uuid)) == 0 && super.start == again.start &&
		super.segment_bytes == again.segment_bytes && super.capacity == again.capacity &&
		super.pid == again.pid);
}

static void try_segment(const void *page, struct spill_spot *spot)
{
	_Alignas(8) uint8_t encoded[SPILL_PAGE];
	uint64_t sequence;

	if (spill_segment_decode(page, spot) < 0)
		return;
	must(spot->sequence != 0);
	sequence = spot->sequence;
	spill_segment_encode(encoded, spot);
	must(spill_segment_decode(encoded, spot) == 0 && spot->sequence == sequence);
	spot->off += SPILL_PAGE; /* nowhere else */
	must(spill_segment_decode(encoded, spot) < 0);
}

/* A header that says it is encrypted, and never was by us: lengths that are within bounds, and no record. */
static void try_encrypted(struct spill_cipher *cipher, const void *page, const struct spill_spot *spot)
{
	const struct spill_disk_record *disk = page;
	struct spill_record record;
	struct spill_hash hash;

	must(spill_record_open(cipher, page, spot, &record, &hash) < 0);
	must(spill_record_open(NULL, page, spot, &record, &hash) < 0);
	must(le32toh(disk->n_layers) > 0 && le32toh(disk->n_layers) <= SPILL_LAYERS_MAX);
	must(le64toh(disk->layer_hash[le32toh(disk->n_layers) - 1]) < spot->room);
}

/* What may be in a header is what comes back, and a change of any byte is noticed. */
static void try_to_encrypt(
	struct spill_cipher *cipher, const struct spill_spot *spot, const struct spill_record *record)
{
	static _Alignas(8) uint8_t page[SPILL_PAGE], data[2 * SPILL_PAGE];
	struct spill_record again;
	struct spill_hash hash;

	if (spill_pages(spill_data_bytes(record)) > sizeof(data))
		return;
	must(spill_record_encrypt(cipher, page, spot, record, NULL, data, data) == 0);
	must(spill_record_open(cipher, page, spot, &again, &hash) == 0 && again.ns_id == record->ns_id &&
		!memcmp(&again.key, &record->key, sizeof(again.key)) && again.used_tokens == record->used_tokens &&
		again.bytes == record->bytes && again.stored == record->stored && again.flags == record->flags);
	must(spill_record_open(NULL, page, spot, &again, &hash) < 0);
	page[record->key.w[0] % (SPILL_PAGE - 8)] ^= 1;
	spill_page_end(page);
	must(spill_record_open(cipher, page, spot, &again, &hash) < 0);
}

/* What lies there as a header of sectors: within bounds, or none. */
static void try_folded(struct spill_cipher *cipher, const void *folded, struct spill_spot spot)
{
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_record record;
	struct spill_hash hash;

	spot.unit = SPILL_UNIT_MIN;
	if (spill_record_decode(spill_header_page(folded, spot.unit, page), &spot, &record, &hash) < 0)
		return;
	must(record.header >= SPILL_UNIT_MIN && record.header <= SPILL_PAGE);
	must(spill_span(&record, spot.unit) <= spot.room);
	spill_record_open(cipher, page, &spot, &record, &hash);
}

/* A header of ours comes back as it was, and is none any more if a byte is changed. */
static void try_to_fold(const void *encoded, struct spill_spot spot, uint64_t at)
{
	_Alignas(8) uint8_t folded[SPILL_PAGE], page[SPILL_PAGE];
	struct spill_record record;
	struct spill_hash hash;

	spot.unit = SPILL_UNIT_MIN;
	memcpy(folded, encoded, sizeof(folded));
	spill_header_fold(folded, spot.unit);
	must(!memcmp(spill_header_page(folded, spot.unit, page), encoded, SPILL_PAGE));
	must(spill_record_decode(page, &spot, &record, &hash) == 0);
	folded[at % record.header] ^= 1;
	must(spill_record_decode(spill_header_page(folded, spot.unit, page), &spot, &record, &hash) < 0);
}

static void try_record(struct spill_cipher *cipher, const void *page, struct spill_spot *spot, bool encrypt)
{
	_Alignas(8) uint8_t encoded[SPILL_PAGE];
	struct spill_record record, again;
	struct spill_hash hash, hash_again;

	if (spill_record_decode(page, spot, &record, &hash) < 0)
		return;
	must(spill_record_open(encrypt ? cipher : NULL, page, spot, &again, &hash_again) ==
		(!encrypt && !spill_page_encrypted(page) ? 0 : -EBADMSG));
	if (encrypt)
		try_to_encrypt(cipher, spot, &record);
	if (spill_page_encrypted(page)) {
		try_encrypted(cipher, page, spot);
		return;
	}
	must(spill_data_bytes(&record) > 0 && spill_data_bytes(&record) < spot->room);
	must(spill_span(&record, spot->unit) <= spot->room);
	must(record.codec == SPILL_PLAIN || spill_data_bytes(&record) < record.bytes);
	spill_record_encode(encoded, spot, &record, hash);
	must(spill_record_decode(encoded, spot, &again, &hash_again) == 0);
	must(memcmp(&record.key, &again.key, sizeof(record.key)) == 0 && record.bytes == again.bytes &&
		record.codec == again.codec && record.stored == again.stored && record.ns_id == again.ns_id &&
		record.used_tokens == again.used_tokens && spill_hash_equal(hash, hash_again));
	try_to_fold(encoded, *spot, record.key.w[0]);
	spot->off += SPILL_PAGE;
	must(spill_record_decode(encoded, spot, &again, &hash) < 0);
	spot->off -= SPILL_PAGE;
	spot->sequence++;
	must(spill_record_decode(encoded, spot, &again, &hash) < 0);
	spot->sequence--;
	encoded[record.bytes % SPILL_PAGE] ^= 1;
	must(spill_record_decode(encoded, spot, &again, &hash) < 0);
}

static struct spill_cipher *our_cipher(void)
{
	static struct spill_keys keys = {.n = 1};
	static struct spill_cipher cipher;

	if (!cipher.keys) {
		must(sodium_init() >= 0);
		spill_key_set_id(&keys.keys[0]);
		must(spill_cipher_init(&cipher, &keys) == 0);
	}
	return &cipher;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_Alignas(8) uint8_t page[SPILL_PAGE] = {0};
	uint8_t uuid[16] = "sixteen bytes...";
	struct spill_spot spot = {
		.uuid = uuid, .sequence = 1, .off = SPILL_SUPER_AREA, .room = 64 << 20, .unit = SPILL_PAGE};
	uint8_t choice;

	if (size < 1 || size > SPILL_PAGE + 1)
		return 0;
	choice = data[0];
	memcpy(page, data + 1, size - 1);
	if (choice & CHOICE_CHECKSUM) {
		XXH64_hash_t checksum = XXH3_64bits(page, SPILL_PAGE - 8);

		memcpy(page + SPILL_PAGE - 8, &checksum, 8);
	}
	if (choice & CHOICE_OURS) {
		memcpy(uuid, page + 16, 16);
		memcpy(&spot.sequence, page + 32, 8);
		memcpy(&spot.off, page + 40, 8);
	}
	if (choice & CHOICE_TIGHT)
		spot.room = 3 * SPILL_PAGE;
	if ((choice & CHOICE_KIND) == 0)
		try_super(page);
	else if ((choice & CHOICE_KIND) == 1)
		try_segment(page, &spot);
	else {
		try_folded(our_cipher(), page, spot);
		try_record(our_cipher(), page, &spot, choice & CHOICE_ENCRYPT);
	}
	if ((choice & CHOICE_KIND) == 3)
		try_seal(page, &spot);
	return 0;
}
