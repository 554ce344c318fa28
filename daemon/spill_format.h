/*
 * spill_format.h - the bytes of a spill store on disk, and what makes them count
 *
 *	0       superblock, two copies (each start writes the older one), probe page; SPILL_SUPER_AREA in all
 *	then    segments of segment_bytes each: header page, then records: header page, data padded to pages; a segment
 *	        that is full ends with its seal: pages with an entry for each record, and in its last page their checksum
 *
 * Everything is little-endian and lies in pages of 4096 bytes; the last word of each page is the XXH3-64 of the rest.  A
 * record's header repeats the store's UUID, its segment's sequence number and its own place in the file, so a page of
 * another store, of an earlier use of the segment or of another place is no record of ours.
 *
 * Foreign bytes: decoders look at bounds first.  They keep no state and call nothing but the hash.
 */
#ifndef KVPOOL_SPILL_FORMAT_H
#define KVPOOL_SPILL_FORMAT_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spill.h"

#define SPILL_VERSION 1u
#define SPILL_PAGE 4096u
#define SPILL_SUPER_AREA 65536u
#define SPILL_PROBE_OFF 12288u /* in the superblock area, a multiple of 4096 and of nothing larger */
#define SPILL_SEGMENT_MIN 65536u
#define SPILL_SEGMENT_MAX (4ull << 30)
#define SPILL_START_MAX 0xfffffffeu /* the upper half of a sequence number */

struct spill_disk_super {
	uint64_t magic;
	uint32_t version;
	uint32_t page;
	uint8_t uuid[16];
	uint64_t capacity;
	uint64_t segment_bytes;
	uint64_t start; /* how often a daemon has opened the store */
	uint64_t pid; /* of the last that did, for messages */
	uint8_t zero[4024];
	uint64_t checksum;
};
static_assert(offsetof(struct spill_disk_super, version) == 8, "store format 1");
static_assert(offsetof(struct spill_disk_super, page) == 12, "store format 1");
static_assert(offsetof(struct spill_disk_super, uuid) == 16, "store format 1");
static_assert(offsetof(struct spill_disk_super, capacity) == 32, "store format 1");
static_assert(offsetof(struct spill_disk_super, segment_bytes) == 40, "store format 1");
static_assert(offsetof(struct spill_disk_super, start) == 48, "store format 1");
static_assert(offsetof(struct spill_disk_super, pid) == 56, "store format 1");
static_assert(offsetof(struct spill_disk_super, checksum) == SPILL_PAGE - 8, "store format 1");
static_assert(sizeof(struct spill_disk_super) == SPILL_PAGE, "store format 1");

struct spill_disk_segment {
	uint64_t magic;
	uint32_t version;
	uint32_t page;
	uint8_t uuid[16];
	uint64_t sequence;
	uint64_t off; /* its own place in the file */
	uint8_t zero[4040];
	uint64_t checksum;
};
static_assert(offsetof(struct spill_disk_segment, version) == 8, "store format 1");
static_assert(offsetof(struct spill_disk_segment, page) == 12, "store format 1");
static_assert(offsetof(struct spill_disk_segment, uuid) == 16, "store format 1");
static_assert(offsetof(struct spill_disk_segment, sequence) == 32, "store format 1");
static_assert(offsetof(struct spill_disk_segment, off) == 40, "store format 1");
static_assert(offsetof(struct spill_disk_segment, checksum) == SPILL_PAGE - 8, "store format 1");
static_assert(sizeof(struct spill_disk_segment) == SPILL_PAGE, "store format 1");

struct spill_disk_record {
	uint64_t magic;
	uint32_t version;
	uint32_t page;
	uint8_t uuid[16];
	uint64_t sequence; /* of its segment */
	uint64_t off; /* its own place in the file */
	uint64_t ns_id;
	uint64_t key[2];
	uint64_t parent[2];
	uint64_t bytes; /* of data */
	uint32_t used_tokens;
	uint32_t flags;
	uint64_t data_hash[2]; /* XXH3-128 of the data without padding */
	uint8_t zero[3968];
	uint64_t checksum;
};
static_assert(offsetof(struct spill_disk_record, version) == 8, "store format 1");
static_assert(offsetof(struct spill_disk_record, page) == 12, "store format 1");
static_assert(offsetof(struct spill_disk_record, uuid) == 16, "store format 1");
static_assert(offsetof(struct spill_disk_record, sequence) == 32, "store format 1");
static_assert(offsetof(struct spill_disk_record, off) == 40, "store format 1");
static_assert(offsetof(struct spill_disk_record, ns_id) == 48, "store format 1");
static_assert(offsetof(struct spill_disk_record, key) == 56, "store format 1");
static_assert(offsetof(struct spill_disk_record, parent) == 72, "store format 1");
static_assert(offsetof(struct spill_disk_record, bytes) == 88, "store format 1");
static_assert(offsetof(struct spill_disk_record, used_tokens) == 96, "store format 1");
static_assert(offsetof(struct spill_disk_record, flags) == 100, "store format 1");
static_assert(offsetof(struct spill_disk_record, data_hash) == 104, "store format 1");
static_assert(offsetof(struct spill_disk_record, checksum) == SPILL_PAGE - 8, "store format 1");
static_assert(sizeof(struct spill_disk_record) == SPILL_PAGE, "store format 1");

/* What a record's header says, for a start that need not read the headers. */
struct spill_disk_entry {
	uint64_t ns_id;
	uint64_t key[2];
	uint64_t parent[2];
	uint64_t bytes;
	uint32_t used_tokens;
	uint32_t flags;
	uint32_t page; /* of its header, in the segment */
	uint32_t zero;
};
static_assert(sizeof(struct spill_disk_entry) == 64, "store format 1");
static_assert(offsetof(struct spill_disk_entry, page) == 56, "store format 1");

struct spill_disk_seal {
	uint64_t magic;
	uint32_t version;
	uint32_t page;
	uint8_t uuid[16];
	uint64_t sequence; /* of its segment */
	uint64_t off; /* its own place in the file */
	uint64_t used; /* where the records end, in the segment */
	uint64_t n; /* entries, in the pages just before this one */
	uint64_t index_hash[2]; /* XXH3-128 of those pages */
	uint8_t zero[4008];
	uint64_t checksum;
};
static_assert(offsetof(struct spill_disk_seal, sequence) == 32, "store format 1");
static_assert(offsetof(struct spill_disk_seal, used) == 48, "store format 1");
static_assert(offsetof(struct spill_disk_seal, index_hash) == 64, "store format 1");
static_assert(offsetof(struct spill_disk_seal, checksum) == SPILL_PAGE - 8, "store format 1");
static_assert(sizeof(struct spill_disk_seal) == SPILL_PAGE, "store format 1");

struct spill_super {
	uint8_t uuid[16];
	uint64_t capacity, segment_bytes, start, pid;
};

/* Where a segment or record header must say that it is. */
struct spill_spot {
	const uint8_t *uuid;
	uint64_t sequence;
	uint64_t off; /* in the file */
	uint64_t room; /* bytes from there to the end of the segment */
};

struct spill_hash {
	uint64_t w[2];
};

/** spill_span() - bytes a record of @bytes takes up in its segment, header included */
static inline uint64_t spill_span(uint64_t bytes)
{
	return SPILL_PAGE + (bytes + SPILL_PAGE - 1) / SPILL_PAGE * SPILL_PAGE;
}

struct spill_seal {
	uint64_t used, n;
	struct spill_hash index_hash;
};

/** spill_index_bytes() - pages for the entries of @n records; the seal's own page comes on top */
static inline uint64_t spill_index_bytes(uint64_t n)
{
	return (n * sizeof(struct spill_disk_entry) + SPILL_PAGE - 1) / SPILL_PAGE * SPILL_PAGE;
}

struct spill_hash spill_hash_data(const void *data, uint64_t bytes);
bool spill_hash_equal(struct spill_hash a, struct spill_hash b);

/* Pages are SPILL_PAGE bytes, 8-byte aligned.  Decoders: 0; -EBADMSG: not ours or damaged, *out untouched. */
void spill_super_encode(void *page, const struct spill_super *super);
/** spill_super_decode() - also -EPROTONOSUPPORT: a store of another format version */
int spill_super_decode(const void *page, struct spill_super *super);

/** spill_page_is_of() - does it name that store? For pages that do not decode. */
bool spill_page_is_of(const void *page, const uint8_t *uuid);
/** spill_page_sequence() - what a segment's or record's page says, right or not */
uint64_t spill_page_sequence(const void *page);

void spill_segment_encode(void *page, const struct spill_spot *spot);
/** spill_segment_decode() - spot->sequence is not looked at but filled in */
int spill_segment_decode(const void *page, struct spill_spot *spot);

void spill_record_encode(
	void *page, const struct spill_spot *spot, const struct spill_record *record, struct spill_hash hash);
int spill_record_decode(
	const void *page, const struct spill_spot *spot, struct spill_record *record, struct spill_hash *hash);

void spill_entry_encode(struct spill_disk_entry *entry, const struct spill_record *record, uint32_t page);
/** spill_entry_decode() - 0; -EBADMSG: it does not lie between the bytes @from and @to of its segment */
int spill_entry_decode(
	const struct spill_disk_entry *entry, uint64_t from, uint64_t to, struct spill_record *record, uint32_t *page);

void spill_seal_encode(void *page, const struct spill_spot *spot, const struct spill_seal *seal);
/** spill_seal_decode() - @segment_bytes: bound of what it may say */
int spill_seal_decode(const void *page, const struct spill_spot *spot, uint64_t segment_bytes, struct spill_seal *seal);

#endif
