/* spill_format.c - see spill_format.h */
#include "spill_format.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <xxhash.h>

#define SPILL_SUPER_MAGIC 0x45524f545350564bull /* "KVPSTORE" */
#define SPILL_SEGMENT_MAGIC 0x544d47455350564bull /* "KVPSEGMT" */
#define SPILL_RECORD_MAGIC 0x445243455250564bull /* "KVPRECRD" */
#define SPILL_SEAL_MAGIC 0x444c41455350564bull /* "KVPSEALD" */

/* What all three kinds of page begin with. */
struct spill_disk_head {
	uint64_t magic;
	uint32_t version;
	uint32_t page;
	uint8_t uuid[16];
};

static uint64_t page_checksum(const void *page)
{
	return XXH3_64bits(page, SPILL_PAGE - sizeof(uint64_t));
}

/* Cleared whole, so that no byte of memory that is not ours reaches the disk. */
static void page_begin(void *page, uint64_t magic, const uint8_t uuid[16])
{
	struct spill_disk_head head = {
		.magic = htole64(magic), .version = htole32(SPILL_VERSION), .page = htole32(SPILL_PAGE)};

	memset(page, 0, SPILL_PAGE);
	memcpy(head.uuid, uuid, sizeof(head.uuid));
	memcpy(page, &head, sizeof(head));
}

static void page_end(void *page)
{
	uint64_t checksum = htole64(page_checksum(page));

	memcpy((char *)page + SPILL_PAGE - sizeof(checksum), &checksum, sizeof(checksum));
}

/* @uuid: whose page it must be, or NULL. */
static int page_check(const void *page, uint64_t magic, const uint8_t *uuid)
{
	struct spill_disk_head head;
	uint64_t checksum;

	memcpy(&head, page, sizeof(head));
	memcpy(&checksum, (const char *)page + SPILL_PAGE - sizeof(checksum), sizeof(checksum));
	if (le64toh(head.magic) != magic || le64toh(checksum) != page_checksum(page))
		return -EBADMSG;
	if (le32toh(head.version) != SPILL_VERSION || le32toh(head.page) != SPILL_PAGE)
		return -EPROTONOSUPPORT;
	if (uuid && memcmp(head.uuid, uuid, sizeof(head.uuid)))
		return -EBADMSG;
	return 0;
}

struct spill_hash spill_hash_data(const void *data, uint64_t bytes)
{
	XXH128_hash_t hash = XXH3_128bits(data, bytes);

	return (struct spill_hash){.w = {hash.low64, hash.high64}};
}

bool spill_hash_equal(struct spill_hash a, struct spill_hash b)
{
	return a.w[0] == b.w[0] && a.w[1] == b.w[1];
}

void spill_super_encode(void *page, const struct spill_super *super)
{
	struct spill_disk_super *disk = page;

	page_begin(page, SPILL_SUPER_MAGIC, super->uuid);
	disk->capacity = htole64(super->capacity);
	disk->segment_bytes = htole64(super->segment_bytes);
	disk->start = htole64(super->start);
	disk->pid = htole64(super->pid);
	page_end(page);
}

int spill_super_decode(const void *page, struct spill_super *super)
{
	const struct spill_disk_super *disk = page;
	struct spill_super s;
	int r = page_check(page, SPILL_SUPER_MAGIC, NULL);

	if (r < 0)
		return r;
	memcpy(s.uuid, disk->uuid, sizeof(s.uuid));
	s.capacity = le64toh(disk->capacity);
	s.segment_bytes = le64toh(disk->segment_bytes);
	s.start = le64toh(disk->start);
	s.pid = le64toh(disk->pid);
	if (s.segment_bytes < SPILL_SEGMENT_MIN || s.segment_bytes > SPILL_SEGMENT_MAX ||
		s.segment_bytes % SPILL_PAGE || s.start >= SPILL_START_MAX)
		return -EBADMSG;
	*super = s;
	return 0;
}

bool spill_page_is_of(const void *page, const uint8_t *uuid)
{
	const struct spill_disk_segment *disk = page;

	return memcmp(disk->uuid, uuid, sizeof(disk->uuid)) == 0;
}

uint64_t spill_page_sequence(const void *page)
{
	const struct spill_disk_segment *disk = page;

	static_assert(
		offsetof(struct spill_disk_segment, sequence) == offsetof(struct spill_disk_record, sequence), "alike");
	return le64toh(disk->sequence);
}

void spill_segment_encode(void *page, const struct spill_spot *spot)
{
	struct spill_disk_segment *disk = page;

	page_begin(page, SPILL_SEGMENT_MAGIC, spot->uuid);
	disk->sequence = htole64(spot->sequence);
	disk->off = htole64(spot->off);
	page_end(page);
}

int spill_segment_decode(const void *page, struct spill_spot *spot)
{
	const struct spill_disk_segment *disk = page;

	if (page_check(page, SPILL_SEGMENT_MAGIC, spot->uuid) < 0 || le64toh(disk->off) != spot->off || !disk->sequence)
		return -EBADMSG;
	spot->sequence = le64toh(disk->sequence);
	return 0;
}

void spill_record_encode(
	void *page, const struct spill_spot *spot, const struct spill_record *record, struct spill_hash hash)
{
	struct spill_disk_record *disk = page;

	page_begin(page, SPILL_RECORD_MAGIC, spot->uuid);
	disk->sequence = htole64(spot->sequence);
	disk->off = htole64(spot->off);
	disk->ns_id = htole64(record->ns_id);
	for (int i = 0; i < 2; i++) {
		disk->key[i] = htole64(record->key.w[i]);
		disk->parent[i] = htole64(record->parent.w[i]);
		disk->data_hash[i] = htole64(hash.w[i]);
	}
	disk->bytes = htole64(record->bytes);
	disk->used_tokens = htole32(record->used_tokens);
	disk->flags = htole32(record->flags);
	page_end(page);
}

int spill_record_decode(
	const void *page, const struct spill_spot *spot, struct spill_record *record, struct spill_hash *hash)
{
	const struct spill_disk_record *disk = page;
	uint64_t bytes;

	if (page_check(page, SPILL_RECORD_MAGIC, spot->uuid) < 0)
		return -EBADMSG;
	if (le64toh(disk->sequence) != spot->sequence || le64toh(disk->off) != spot->off)
		return -EBADMSG;
	bytes = le64toh(disk->bytes);
	if (!bytes || bytes > spot->room || spill_span(bytes) > spot->room)
		return -EBADMSG;
	record->ns_id = le64toh(disk->ns_id);
	for (int i = 0; i < 2; i++) {
		record->key.w[i] = le64toh(disk->key[i]);
		record->parent.w[i] = le64toh(disk->parent[i]);
		hash->w[i] = le64toh(disk->data_hash[i]);
	}
	record->bytes = bytes;
	record->used_tokens = le32toh(disk->used_tokens);
	record->flags = le32toh(disk->flags);
	return 0;
}

void spill_entry_encode(struct spill_disk_entry *entry, const struct spill_record *record, uint32_t page)
{
	*entry = (struct spill_disk_entry){.ns_id = htole64(record->ns_id),
		.bytes = htole64(record->bytes),
		.used_tokens = htole32(record->used_tokens),
		.flags = htole32(record->flags),
		.page = htole32(page)};
	for (int i = 0; i < 2; i++) {
		entry->key[i] = htole64(record->key.w[i]);
		entry->parent[i] = htole64(record->parent.w[i]);
	}
}

int spill_entry_decode(
	const struct spill_disk_entry *entry, uint64_t from, uint64_t to, struct spill_record *record, uint32_t *page)
{
	uint64_t bytes = le64toh(entry->bytes), off = (uint64_t)le32toh(entry->page) * SPILL_PAGE;

	if (off < from || off > to || !bytes || bytes > to - off || spill_span(bytes) > to - off)
		return -EBADMSG;
	*record = (struct spill_record){.ns_id = le64toh(entry->ns_id),
		.bytes = bytes,
		.used_tokens = le32toh(entry->used_tokens),
		.flags = le32toh(entry->flags)};
	for (int i = 0; i < 2; i++) {
		record->key.w[i] = le64toh(entry->key[i]);
		record->parent.w[i] = le64toh(entry->parent[i]);
	}
	*page = le32toh(entry->page);
	return 0;
}

void spill_seal_encode(void *page, const struct spill_spot *spot, const struct spill_seal *seal)
{
	struct spill_disk_seal *disk = page;

	page_begin(page, SPILL_SEAL_MAGIC, spot->uuid);
	disk->sequence = htole64(spot->sequence);
	disk->off = htole64(spot->off);
	disk->used = htole64(seal->used);
	disk->n = htole64(seal->n);
	for (int i = 0; i < 2; i++)
		disk->index_hash[i] = htole64(seal->index_hash.w[i]);
	page_end(page);
}

int spill_seal_decode(const void *page, const struct spill_spot *spot, uint64_t segment_bytes, struct spill_seal *seal)
{
	const struct spill_disk_seal *disk = page;
	uint64_t used = le64toh(disk->used), n = le64toh(disk->n);

	if (page_check(page, SPILL_SEAL_MAGIC, spot->uuid) < 0 || le64toh(disk->sequence) != spot->sequence ||
		le64toh(disk->off) != spot->off)
		return -EBADMSG;
	if (!n || n > segment_bytes / (2 * SPILL_PAGE) || used < SPILL_PAGE || used > segment_bytes ||
		spill_index_bytes(n) + SPILL_PAGE > segment_bytes - used)
		return -EBADMSG;
	*seal = (struct spill_seal){.used = used, .n = n};
	for (int i = 0; i < 2; i++)
		seal->index_hash.w[i] = le64toh(disk->index_hash[i]);
	return 0;
}
