/*
 * kvpool_spill.h - the bytes of a spill store on disk, and what makes them count
 *
 *	0       superblock, two copies (each start writes the older one), probe page; SPILL_SUPER_AREA in all
 *	then    segments of segment_bytes each: header page, then records: header, data padded to units; a segment
 *	        that is full ends with its seal: pages with an entry for each record, and in its last page their checksum
 *
 * A unit is what the device writes without reading first, asked when the store was made: a page, or a power of two of 512 at
 * least.  Where it is a page, so is each record's header.  Else a header is that page folded to as few units as it takes, by
 * leaving out where it is always zero (spill_header_fold()); the superblock is of version 5 then and names the unit.
 *
 * A record's data is the block's bytes, or these packed: struct spill_disk_pack, then what the codec made of them.  Or it
 * is a list of keys that were deleted (SPILL_RECORD_KILLS, struct spill_disk_kill): records of these that lie before it in
 * the log do not count any more.
 *
 * Everything is little-endian and in pages of 4096 bytes; the last word of each page is the XXH3-64 of the rest, of a folded
 * one of the page that it was.  A record's header repeats the store's UUID, its segment's sequence number and its own place in the file, so a page of
 * another store, of an earlier use of the segment or of another place is no record of ours.
 *
 * In a store with a key (kvpool_cipher.h) data is encrypted as it lies, and so are the entries of a seal and what of a
 * record's header tells whose it is: struct spill_disk_box.  Version 4 of superblock, record and seal.
 *
 * Foreign bytes: decoders look at bounds first.  They keep no state and call nothing but the hash.  Pages are SPILL_PAGE
 * bytes, 8-byte aligned.  Decoders return 0; -EBADMSG: not ours or damaged, *out untouched.
 *
 * Inside kvpool only: the daemon, which alone writes, and kvctl store.  Whoever includes it links libxxhash.
 */
#ifndef KVPOOL_SPILL_H
#define KVPOOL_SPILL_H

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <xxhash.h>
#if defined(__x86_64__) && !defined(XXH_INLINE_ALL) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> /* the same functions, bit for bit, by the widest vectors this CPU has */
#endif

#include "kvpool.h"

#define SPILL_STORE_NAME "kvpool.store"
#define SPILL_VERSION 1u
#define SPILL_VERSION_PACKED 2u /* of a record whose data is packed: what knows nothing of packing takes it for none */
#define SPILL_VERSION_KILLS 3u /* of one that is a list of deleted keys, likewise */
#define SPILL_VERSION_ENCRYPTED 4u /* of superblock, record and seal of a store with a key */
#define SPILL_VERSION_UNITS 5u /* of the superblock of a store whose unit is less than a page, with a key or without */
#define SPILL_PAGE 4096u
#define SPILL_UNIT_MIN 512u
#define SPILL_SUPER_AREA 65536u
#define SPILL_CAPACITY_MIN (16ull << 20) /* that somebody may ask for, or a device may have */
#define SPILL_PROBE_OFF 12288u /* in the superblock area, a multiple of 4096 and of nothing larger */
#define SPILL_SEGMENT_MIN 65536u
#define SPILL_SEGMENT_MAX (4ull << 30)
#define SPILL_START_MAX 0xfffffffeu /* the upper half of a sequence number */
#define SPILL_DROPS_MAX 128u
#define SPILL_LAYERS_MAX 128u
#define SPILL_KEYS_MAX 8u /* with which records of one store may be encrypted */
#define SPILL_TAG 16u /* bytes that authenticate what was encrypted */
#define SPILL_SALT 32u

#define SPILL_SUPER_MAGIC 0x45524f545350564bull /* "KVPSTORE" */
#define SPILL_SEGMENT_MAGIC 0x544d47455350564bull /* "KVPSEGMT" */
#define SPILL_RECORD_MAGIC 0x445243455250564bull /* "KVPRECRD" */
#define SPILL_PACK_MAGIC 0x314b43415050564bull /* "KVPPACK1" */
#define SPILL_SEAL_MAGIC 0x444c41455350564bull /* "KVPSEALD" */

enum spill_codec {
	SPILL_PLAIN = 0,
	SPILL_ZSTD = 1,
};

/* Records of the namespace (0: of all) in segments before that sequence number no longer count. */
struct spill_disk_drop {
	uint64_t ns_id;
	uint64_t below;
};

struct spill_disk_super {
	uint64_t magic;
	uint32_t version;
	uint32_t page;
	uint8_t uuid[16];
	uint64_t capacity;
	uint64_t segment_bytes;
	uint64_t start; /* how often a daemon has opened the store */
	uint64_t pid; /* of the last that did, for messages */
	uint64_t n_drops;
	struct spill_disk_drop drops[SPILL_DROPS_MAX];
	uint64_t
		inode; /* of the file it is; another one: this is a copy; 0: not known (a device, or an older kvpoold) */
	uint64_t n_keys; /* version 4 and 5: of */
	uint64_t key_ids[SPILL_KEYS_MAX]; /* all that may be needed to read what is there */
	uint32_t unit; /* version 5; else it is a page */
	uint8_t zero[1884];
	uint64_t checksum;
};
static_assert(offsetof(struct spill_disk_super, key_ids) == 2136, "store format 1");
static_assert(offsetof(struct spill_disk_super, unit) == 2200, "store format 1");
static_assert(offsetof(struct spill_disk_super, version) == 8, "store format 1");
static_assert(offsetof(struct spill_disk_super, page) == 12, "store format 1");
static_assert(offsetof(struct spill_disk_super, uuid) == 16, "store format 1");
static_assert(offsetof(struct spill_disk_super, capacity) == 32, "store format 1");
static_assert(offsetof(struct spill_disk_super, segment_bytes) == 40, "store format 1");
static_assert(offsetof(struct spill_disk_super, start) == 48, "store format 1");
static_assert(offsetof(struct spill_disk_super, pid) == 56, "store format 1");
static_assert(offsetof(struct spill_disk_super, drops) == 72, "store format 1");
static_assert(offsetof(struct spill_disk_super, inode) == 2120, "store format 1");
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
	uint32_t page; /* folded: bytes of the header */
	uint8_t uuid[16];
	uint64_t sequence; /* of its segment */
	uint64_t off; /* its own place in the file */
	uint64_t ns_id;
	uint64_t key[2];
	uint64_t parent[2];
	uint64_t bytes; /* of the block */
	uint32_t used_tokens;
	uint32_t flags;
	uint64_t data_hash[2]; /* XXH3-128 of the data as it lies here, without padding */
	uint64_t stored; /* version 2: bytes of the data as it lies here; the block has more */
	uint32_t codec; /* version 2: enum spill_codec */
	uint32_t n_layers; /* 0: none of what follows */
	/* XXH3-64 of each layer's bytes, one behind the other, all of the data.  Version 4, n_layers being 1 at least: where each
	   ends in the data, each encrypted by itself */
	uint64_t layer_hash[SPILL_LAYERS_MAX];
	uint64_t key_id; /* version 4 has all of what follows, and no ns_id, key, parent and used_tokens above */
	uint8_t salt[SPILL_SALT]; /* random, of this record alone: its key is made of it */
	uint8_t tags[SPILL_LAYERS_MAX][SPILL_TAG]; /* of each layer */
	uint8_t zero[760];
	uint8_t box[64]; /* struct spill_disk_box, encrypted; its tag covers all of the header before it too */
	uint8_t box_tag[SPILL_TAG];
	uint64_t checksum;
};
static_assert(offsetof(struct spill_disk_record, key_id) == 1160, "store format 1");
static_assert(offsetof(struct spill_disk_record, tags) == 1200, "store format 1");
static_assert(offsetof(struct spill_disk_record, box) == 4008, "store format 1");
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
static_assert(offsetof(struct spill_disk_record, stored) == 120, "store format 1");
static_assert(offsetof(struct spill_disk_record, codec) == 128, "store format 1");
static_assert(offsetof(struct spill_disk_record, layer_hash) == 136, "store format 1");
static_assert(offsetof(struct spill_disk_record, checksum) == SPILL_PAGE - 8, "store format 1");
static_assert(sizeof(struct spill_disk_record) == SPILL_PAGE, "store format 1");

/* What a stolen drive is not to tell of a record. */
struct spill_disk_box {
	uint64_t ns_id;
	uint64_t key[2];
	uint64_t parent[2];
	uint32_t used_tokens;
	uint8_t zero[20];
};
static_assert(sizeof(struct spill_disk_box) == sizeof(((struct spill_disk_record *)0)->box), "store format 1");

/* What a record's header says, for a start that need not read the headers. */
struct spill_disk_entry {
	uint64_t ns_id;
	uint64_t key[2];
	uint64_t parent[2];
	uint64_t bytes; /* of the block; the highest byte: units of its header less one */
	uint32_t used_tokens;
	uint32_t flags;
	uint32_t at; /* its place in the segment, in units */
	uint32_t stored; /* packed: as in its header; 0: it is plain */
};
static_assert(sizeof(struct spill_disk_entry) == 64, "store format 1");
static_assert(offsetof(struct spill_disk_entry, at) == 56, "store format 1");
static_assert(offsetof(struct spill_disk_entry, stored) == 60, "store format 1");

/* Of a list of deleted keys: so many bytes of data make one. */
struct spill_disk_kill {
	uint64_t ns_id;
	uint64_t key[2];
};
static_assert(sizeof(struct spill_disk_kill) == 24, "store format 1");
#define SPILL_RECORD_KILLS 0x80000000u /* in a record's flags; its namespace and key are none */
#define SPILL_KILLS_MAX 2048u /* in one list: it fits the smallest segment */

/* Packed data begins with it. */
struct spill_disk_pack {
	uint64_t magic;
	uint64_t bytes; /* of the block */
	uint64_t hash[2]; /* XXH3-128 of the block: what comes out must be what went in */
};
static_assert(sizeof(struct spill_disk_pack) == 32, "store format 1");

struct spill_disk_seal {
	uint64_t magic;
	uint32_t version;
	uint32_t page;
	uint8_t uuid[16];
	uint64_t sequence; /* of its segment */
	uint64_t off; /* its own place in the file */
	uint64_t used; /* where the records end, in the segment */
	uint64_t n; /* entries, in the pages just before this one */
	uint64_t index_hash[2]; /* XXH3-128 of those pages, as they lie there */
	uint64_t key_id; /* version 4: those pages are encrypted */
	uint8_t salt[SPILL_SALT];
	uint8_t tag[SPILL_TAG]; /* of them, and of all before it in this page */
	uint8_t zero[3952];
	uint64_t checksum;
};
static_assert(offsetof(struct spill_disk_seal, tag) == 120, "store format 1");
static_assert(offsetof(struct spill_disk_seal, sequence) == 32, "store format 1");
static_assert(offsetof(struct spill_disk_seal, used) == 48, "store format 1");
static_assert(offsetof(struct spill_disk_seal, index_hash) == 64, "store format 1");
static_assert(offsetof(struct spill_disk_seal, checksum) == SPILL_PAGE - 8, "store format 1");
static_assert(sizeof(struct spill_disk_seal) == SPILL_PAGE, "store format 1");

struct spill_record {
	uint64_t ns_id;
	struct kvp_key key;
	struct kvp_key parent;
	uint64_t bytes; /* of the block: used bytes */
	uint32_t used_tokens;
	uint32_t flags;
	uint16_t codec; /* enum spill_codec */
	uint16_t header; /* bytes of it, as it lies on disk */
	uint32_t stored; /* packed: bytes of data on disk; plain: 0 */
};

struct spill_kill {
	uint64_t ns_id;
	struct kvp_key key;
};

struct spill_super {
	uint8_t uuid[16];
	uint64_t capacity, segment_bytes, start, pid, inode;
	uint32_t n_drops;
	struct spill_disk_drop drops[SPILL_DROPS_MAX]; /* in this machine's order of bytes */
	uint32_t n_keys; /* 0: nothing in it is encrypted; else everything is */
	uint64_t key_ids[SPILL_KEYS_MAX];
	uint32_t unit;
};

/* Where a segment or record header must say that it is. */
struct spill_spot {
	const uint8_t *uuid;
	uint64_t sequence;
	uint64_t off; /* in the file */
	uint64_t room; /* bytes from there to the end of the segment */
	uint32_t unit; /* of the store; a segment's header does without */
};

struct spill_hash {
	uint64_t w[2];
};

/** spill_unit_ok() - may it be one? */
static inline bool spill_unit_ok(uint32_t unit)
{
	return unit >= SPILL_UNIT_MIN && unit <= SPILL_PAGE && !(unit & (unit - 1));
}

static inline uint64_t spill_round_up(uint64_t bytes, uint32_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

/** spill_pages() - bytes of the pages of memory that @bytes lie in */
static inline uint64_t spill_pages(uint64_t bytes)
{
	return spill_round_up(bytes, SPILL_PAGE);
}

/** spill_data_bytes() - of its data, as it lies on disk */
static inline uint64_t spill_data_bytes(const struct spill_record *record)
{
	return record->codec == SPILL_PLAIN ? record->bytes : record->stored;
}

/** spill_span() - bytes a record takes up in its segment, header included */
static inline uint64_t spill_span(const struct spill_record *record, uint32_t unit)
{
	return record->header + spill_round_up(spill_data_bytes(record), unit);
}

/* Packed data is shorter by a page at least, so the length of a record tells whether it is. */
static inline bool spill_packed_ok(uint32_t codec, uint64_t stored, uint64_t bytes)
{
	return codec == SPILL_ZSTD && stored > sizeof(struct spill_disk_pack) && stored <= UINT32_MAX &&
	       bytes <= SPILL_SEGMENT_MAX && spill_pages(stored) < spill_pages(bytes);
}

/** spill_is_kills() - a list of deleted keys, no block */
static inline bool spill_is_kills(const struct spill_record *record)
{
	return record->flags & SPILL_RECORD_KILLS;
}

/* As long as a list is, if it is one. */
static inline bool spill_kills_ok(uint32_t flags, uint64_t stored, uint64_t bytes)
{
	return !(flags & SPILL_RECORD_KILLS) || (!stored && bytes && bytes % sizeof(struct spill_disk_kill) == 0 &&
							bytes / sizeof(struct spill_disk_kill) <= SPILL_KILLS_MAX);
}

struct spill_seal {
	uint64_t used, n;
	struct spill_hash index_hash;
};

/** spill_index_bytes() - pages for the entries of @n records; the seal's own page comes on top */
static inline uint64_t spill_index_bytes(uint64_t n)
{
	return spill_pages(n * sizeof(struct spill_disk_entry));
}

/* What all kinds of page begin with. */
struct spill_disk_head {
	uint64_t magic;
	uint32_t version;
	uint32_t page;
	uint8_t uuid[16];
};

static inline uint64_t spill_page_checksum(const void *page)
{
	return XXH3_64bits(page, SPILL_PAGE - sizeof(uint64_t));
}

/* Cleared whole, so that no byte of memory that is not ours reaches the disk. */
static inline void spill_page_begin(void *page, uint64_t magic, const uint8_t uuid[16])
{
	struct spill_disk_head head = {
		.magic = htole64(magic), .version = htole32(SPILL_VERSION), .page = htole32(SPILL_PAGE)};

	memset(page, 0, SPILL_PAGE);
	memcpy(head.uuid, uuid, sizeof(head.uuid));
	memcpy(page, &head, sizeof(head));
}

static inline void spill_page_end(void *page)
{
	uint64_t checksum = htole64(spill_page_checksum(page));

	memcpy((char *)page + SPILL_PAGE - sizeof(checksum), &checksum, sizeof(checksum));
}

static inline void spill_page_set_version(void *page, uint32_t version)
{
	version = htole32(version);
	memcpy((char *)page + offsetof(struct spill_disk_head, version), &version, sizeof(version));
}

static inline uint32_t spill_page_version(const void *page)
{
	uint32_t version;

	memcpy(&version, (const char *)page + offsetof(struct spill_disk_head, version), sizeof(version));
	return le32toh(version);
}

/** spill_page_encrypted() - of a superblock, record or seal: is what belongs to it encrypted? */
static inline bool spill_page_encrypted(const void *page)
{
	return spill_page_version(page) == SPILL_VERSION_ENCRYPTED;
}

static inline bool spill_version_ok(uint64_t magic, uint32_t version)
{
	switch (version) {
	case SPILL_VERSION:
		return true;
	case SPILL_VERSION_PACKED:
	case SPILL_VERSION_KILLS:
		return magic == SPILL_RECORD_MAGIC;
	case SPILL_VERSION_ENCRYPTED:
		return magic != SPILL_SEGMENT_MAGIC;
	case SPILL_VERSION_UNITS:
		return magic == SPILL_SUPER_MAGIC;
	default:
		return false;
	}
}

/* @uuid: whose page it must be, or NULL. */
static inline int spill_page_check(const void *page, uint64_t magic, const uint8_t *uuid)
{
	struct spill_disk_head head;
	uint64_t checksum;

	memcpy(&head, page, sizeof(head));
	memcpy(&checksum, (const char *)page + SPILL_PAGE - sizeof(checksum), sizeof(checksum));
	if (le64toh(head.magic) != magic || le64toh(checksum) != spill_page_checksum(page))
		return -EBADMSG;
	if (!spill_version_ok(magic, le32toh(head.version)))
		return -EPROTONOSUPPORT;
	if (le32toh(head.page) != SPILL_PAGE)
		return -EPROTONOSUPPORT;
	if (uuid && memcmp(head.uuid, uuid, sizeof(head.uuid)))
		return -EBADMSG;
	return 0;
}

/* Data of a record is in no cache as a rule, and what fetches ahead by itself stops at the end of a page: their beginnings are
   asked for before. */
static inline struct spill_hash spill_hash_data(const void *data, uint64_t bytes)
{
	XXH128_hash_t hash;

	for (uint64_t at = 0; at < bytes; at += SPILL_PAGE)
		__builtin_prefetch((const char *)data + at);
	hash = XXH3_128bits(data, bytes);

	return (struct spill_hash){.w = {hash.low64, hash.high64}};
}

static inline bool spill_hash_equal(struct spill_hash a, struct spill_hash b)
{
	return a.w[0] == b.w[0] && a.w[1] == b.w[1];
}

static inline void spill_super_encode(void *page, const struct spill_super *super)
{
	struct spill_disk_super *disk = page;

	spill_page_begin(page, SPILL_SUPER_MAGIC, super->uuid);
	disk->capacity = htole64(super->capacity);
	disk->segment_bytes = htole64(super->segment_bytes);
	disk->start = htole64(super->start);
	disk->pid = htole64(super->pid);
	disk->inode = htole64(super->inode);
	disk->n_drops = htole64(super->n_drops);
	for (uint32_t i = 0; i < super->n_drops; i++)
		disk->drops[i] =
			(struct spill_disk_drop){htole64(super->drops[i].ns_id), htole64(super->drops[i].below)};
	if (super->n_keys)
		spill_page_set_version(page, SPILL_VERSION_ENCRYPTED);
	if (super->unit != SPILL_PAGE) {
		spill_page_set_version(page, SPILL_VERSION_UNITS);
		disk->unit = htole32(super->unit);
	}
	disk->n_keys = htole64(super->n_keys);
	for (uint32_t i = 0; i < super->n_keys; i++)
		disk->key_ids[i] = htole64(super->key_ids[i]);
	spill_page_end(page);
}

/** spill_super_decode() - also -EPROTONOSUPPORT: a store of another format version */
static inline int spill_super_decode(const void *page, struct spill_super *super)
{
	const struct spill_disk_super *disk = page;
	struct spill_super s;
	bool units;
	int r = spill_page_check(page, SPILL_SUPER_MAGIC, NULL);

	if (r < 0)
		return r;
	memcpy(s.uuid, disk->uuid, sizeof(s.uuid));
	s.capacity = le64toh(disk->capacity);
	s.segment_bytes = le64toh(disk->segment_bytes);
	s.start = le64toh(disk->start);
	s.pid = le64toh(disk->pid);
	s.inode = le64toh(disk->inode);
	if (le64toh(disk->n_drops) > SPILL_DROPS_MAX)
		return -EBADMSG;
	s.n_drops = (uint32_t)le64toh(disk->n_drops);
	memset(s.drops, 0, sizeof(s.drops));
	for (uint32_t i = 0; i < s.n_drops; i++)
		s.drops[i] = (struct spill_disk_drop){le64toh(disk->drops[i].ns_id), le64toh(disk->drops[i].below)};
	s.n_keys = 0;
	memset(s.key_ids, 0, sizeof(s.key_ids));
	units = spill_page_version(page) == SPILL_VERSION_UNITS;
	if (spill_page_encrypted(page) || (units && disk->n_keys)) {
		if (!disk->n_keys || le64toh(disk->n_keys) > SPILL_KEYS_MAX)
			return -EBADMSG;
		s.n_keys = (uint32_t)le64toh(disk->n_keys);
		for (uint32_t i = 0; i < s.n_keys; i++)
			s.key_ids[i] = le64toh(disk->key_ids[i]);
	}
	s.unit = units ? le32toh(disk->unit) : SPILL_PAGE;
	if (!spill_unit_ok(s.unit) || (units && s.unit == SPILL_PAGE))
		return -EBADMSG;
	if (s.segment_bytes < SPILL_SEGMENT_MIN || s.segment_bytes > SPILL_SEGMENT_MAX ||
		s.segment_bytes % SPILL_PAGE || s.start >= SPILL_START_MAX)
		return -EBADMSG;
	*super = s;
	return 0;
}

/** spill_super_dropped() - do records of the namespace in a segment of this use no longer count? */
static inline bool spill_super_dropped(const struct spill_super *super, uint64_t ns_id, uint64_t sequence)
{
	for (uint32_t i = 0; i < super->n_drops; i++)
		if ((!super->drops[i].ns_id || super->drops[i].ns_id == ns_id) && sequence < super->drops[i].below)
			return true;
	return false;
}

/** spill_super_dropped_any() - would a record of some namespace not count in a segment of this use? */
static inline bool spill_super_dropped_any(const struct spill_super *super, uint64_t sequence)
{
	for (uint32_t i = 0; i < super->n_drops; i++)
		if (sequence < super->drops[i].below)
			return true;
	return false;
}

static inline bool spill_super_has_all(const struct spill_super *super)
{
	for (uint32_t i = 0; i < super->n_drops; i++)
		if (!super->drops[i].ns_id)
			return true;
	return false;
}

/** spill_super_drop() - add a mark; one for all (@ns_id 0) takes the place of the others. Return: 0; -ENOSPC. */
static inline int spill_super_drop(struct spill_super *super, uint64_t ns_id, uint64_t below)
{
	uint32_t i = 0;

	if (!ns_id)
		super->n_drops = 0;
	while (i < super->n_drops && super->drops[i].ns_id != ns_id)
		i++;
	/* there is always room for one for all: see spill_super_pass() */
	if (i == SPILL_DROPS_MAX || (i == SPILL_DROPS_MAX - 1 && !spill_super_has_all(super)))
		return -ENOSPC;
	if (i == super->n_drops)
		super->n_drops++;
	super->drops[i] = (struct spill_disk_drop){ns_id, below};
	return 0;
}

/** spill_super_pass() - the log has left behind all that was written in segments before @below: a mark for all, which leaves those
 *  that say more. Return: 0; -ENOSPC: an older kvpoold has filled the last place. */
static inline int spill_super_pass(struct spill_super *super, uint64_t below)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < super->n_drops; i++) {
		if (!super->drops[i].ns_id && super->drops[i].below > below)
			below = super->drops[i].below;
		if (super->drops[i].ns_id)
			super->drops[n++] = super->drops[i];
	}
	super->n_drops = 0;
	for (uint32_t i = 0; i < n; i++)
		if (super->drops[i].below > below)
			super->drops[super->n_drops++] = super->drops[i];
	if (super->n_drops == SPILL_DROPS_MAX)
		return -ENOSPC;
	super->drops[super->n_drops++] = (struct spill_disk_drop){0, below};
	return 0;
}

/** spill_page_is_of() - does it name that store? For pages that do not decode. */
static inline bool spill_page_is_of(const void *page, const uint8_t *uuid)
{
	const struct spill_disk_segment *disk = page;

	return memcmp(disk->uuid, uuid, sizeof(disk->uuid)) == 0;
}

/** spill_page_sequence() - what a segment's or record's page says, right or not */
static inline uint64_t spill_page_sequence(const void *page)
{
	const struct spill_disk_segment *disk = page;

	static_assert(
		offsetof(struct spill_disk_segment, sequence) == offsetof(struct spill_disk_record, sequence), "alike");
	return le64toh(disk->sequence);
}

static inline void spill_segment_encode(void *page, const struct spill_spot *spot)
{
	struct spill_disk_segment *disk = page;

	spill_page_begin(page, SPILL_SEGMENT_MAGIC, spot->uuid);
	disk->sequence = htole64(spot->sequence);
	disk->off = htole64(spot->off);
	spill_page_end(page);
}

/** spill_segment_decode() - spot->sequence is not looked at but filled in */
static inline int spill_segment_decode(const void *page, struct spill_spot *spot)
{
	const struct spill_disk_segment *disk = page;

	if (spill_page_check(page, SPILL_SEGMENT_MAGIC, spot->uuid) < 0 || le64toh(disk->off) != spot->off ||
		!disk->sequence)
		return -EBADMSG;
	spot->sequence = le64toh(disk->sequence);
	return 0;
}

/* ---- a record's header, folded ---- */

/* What of the page is not always zero: the fields with a word for each layer; key, salt and tags; and its end. */
struct spill_header_parts {
	uint32_t fields, secrets, end;
};

static inline struct spill_header_parts spill_header_parts(uint32_t n_layers, bool encrypted)
{
	struct spill_header_parts parts = {.fields = offsetof(struct spill_disk_record, layer_hash) + n_layers * 8,
		.end = SPILL_PAGE - offsetof(struct spill_disk_record, checksum)};

	if (encrypted) {
		parts.secrets = offsetof(struct spill_disk_record, tags) - offsetof(struct spill_disk_record, key_id) +
				n_layers * SPILL_TAG;
		parts.end = SPILL_PAGE - offsetof(struct spill_disk_record, box);
	}
	return parts;
}

/** spill_header_bytes() - of a header with so many layers, SPILL_LAYERS_MAX at most; of an encrypted one, 1 at least */
static inline uint32_t spill_header_bytes(uint32_t n_layers, bool encrypted, uint32_t unit)
{
	struct spill_header_parts parts = spill_header_parts(n_layers, encrypted);

	static_assert(136 + 40 + 88 + SPILL_LAYERS_MAX * (8 + SPILL_TAG) <= SPILL_PAGE, "all of them fit a page");
	return (uint32_t)spill_round_up(parts.fields + parts.secrets + parts.end, unit);
}

/** spill_header_fold() - an encoded header, where it is, as it goes to the disk */
static inline void spill_header_fold(void *page, uint32_t unit)
{
	struct spill_disk_record *disk = page;
	uint32_t n = le32toh(disk->n_layers), bytes = spill_header_bytes(n, spill_page_encrypted(page), unit);
	struct spill_header_parts parts = spill_header_parts(n, spill_page_encrypted(page));
	char *at = page;

	if (unit == SPILL_PAGE)
		return;
	disk->page = htole32(bytes);
	memmove(at + parts.fields, &disk->key_id, parts.secrets);
	memmove(at + bytes - parts.end, at + SPILL_PAGE - parts.end, parts.end);
	memset(at + parts.fields + parts.secrets, 0, bytes - parts.fields - parts.secrets - parts.end);
}

static inline bool spill_header_is_zero(const char *at, const char *end)
{
	while (at < end && !*at)
		at++;
	return at == end;
}

/**
 * spill_header_page() - the page that a header was before it was folded
 * @raw:    what lies there, SPILL_PAGE bytes that may be looked at, 8-byte aligned
 * @page:   room for it
 * Return: that, or @raw where nothing is folded; of what is no header a page that is none either.
 */
static inline const void *spill_header_page(const void *raw, uint32_t unit, void *page)
{
	const struct spill_disk_record *folded = raw;
	struct spill_disk_record *disk = page;
	struct spill_header_parts parts;
	uint32_t n, bytes;
	const char *at = raw;

	if (unit == SPILL_PAGE)
		return raw;
	memset(page, 0, SPILL_PAGE);
	n = le32toh(folded->n_layers);
	if (le64toh(folded->magic) != SPILL_RECORD_MAGIC || n > SPILL_LAYERS_MAX)
		return page;
	bytes = spill_header_bytes(n, spill_page_encrypted(raw), unit);
	parts = spill_header_parts(n, spill_page_encrypted(raw));
	if (le32toh(folded->page) != bytes ||
		!spill_header_is_zero(at + parts.fields + parts.secrets, at + bytes - parts.end))
		return page;
	memcpy(page, at, parts.fields);
	memcpy(&disk->key_id, at + parts.fields, parts.secrets);
	memcpy((char *)page + SPILL_PAGE - parts.end, at + bytes - parts.end, parts.end);
	disk->page = htole32(SPILL_PAGE);
	return page;
}

/** spill_record_encode() - @hash: of the data as it lies on disk */
static inline void spill_record_encode(
	void *page, const struct spill_spot *spot, const struct spill_record *record, struct spill_hash hash)
{
	struct spill_disk_record *disk = page;

	spill_page_begin(page, SPILL_RECORD_MAGIC, spot->uuid);
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
	if (record->codec != SPILL_PLAIN) {
		disk->version = htole32(SPILL_VERSION_PACKED);
		disk->stored = htole64(record->stored);
		disk->codec = htole32(record->codec);
	}
	if (spill_is_kills(record))
		disk->version = htole32(SPILL_VERSION_KILLS);
	spill_page_end(page);
}

/* Where a block's layers end, each behind the one before; the last one is the block's end. */
struct spill_layers {
	uint32_t n; /* 0: it has none */
	uint64_t ends[SPILL_LAYERS_MAX];
};

static inline uint64_t spill_layer_hash(const void *data, const struct spill_layers *layers, uint32_t i)
{
	uint64_t from = i ? layers->ends[i - 1] : 0;

	return XXH3_64bits((const char *)data + from, layers->ends[i] - from);
}

/** spill_record_set_layers() - into an encoded header, that of a plain record: @data's layers */
static inline void spill_record_set_layers(void *page, const struct spill_layers *layers, const void *data)
{
	struct spill_disk_record *disk = page;

	disk->n_layers = htole32(layers->n);
	for (uint32_t i = 0; i < layers->n; i++)
		disk->layer_hash[i] = htole64(spill_layer_hash(data, layers, i));
	spill_page_end(page);
}

/** spill_record_has_layers() - does a header that was decoded tell of as many? */
static inline bool spill_record_has_layers(const void *page, const struct spill_layers *layers)
{
	const struct spill_disk_record *disk = page;

	return layers->n && le32toh(disk->n_layers) == layers->n && le32toh(disk->version) == SPILL_VERSION;
}

static inline bool spill_layer_is_right(
	const void *page, const void *data, const struct spill_layers *layers, uint32_t i)
{
	const struct spill_disk_record *disk = page;

	return le64toh(disk->layer_hash[i]) == spill_layer_hash(data, layers, i);
}

/* Of an encrypted one: its parts are all of the data, one behind the other. */
static inline bool spill_parts_ok(const struct spill_disk_record *disk, uint64_t data)
{
	uint32_t n = le32toh(disk->n_layers);
	uint64_t at = 0;

	if (!n || n > SPILL_LAYERS_MAX)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		if (le64toh(disk->layer_hash[i]) <= at)
			return false;
		at = le64toh(disk->layer_hash[i]);
	}
	return at == data;
}

/** spill_record_decode() - of an encrypted one ns_id, key, parent and used_tokens are 0: see spill_record_open() */
static inline int spill_record_decode(
	const void *page, const struct spill_spot *spot, struct spill_record *record, struct spill_hash *hash)
{
	const struct spill_disk_record *disk = page;
	uint64_t bytes, stored = 0, data;
	uint32_t codec = SPILL_PLAIN, header;
	bool encrypted;

	if (spill_page_check(page, SPILL_RECORD_MAGIC, spot->uuid) < 0)
		return -EBADMSG;
	if (le64toh(disk->sequence) != spot->sequence || le64toh(disk->off) != spot->off)
		return -EBADMSG;
	bytes = le64toh(disk->bytes);
	encrypted = spill_page_encrypted(page);
	if (le32toh(disk->version) == SPILL_VERSION_PACKED || (encrypted && disk->codec)) {
		stored = le64toh(disk->stored);
		codec = le32toh(disk->codec);
		if (!spill_packed_ok(codec, stored, bytes))
			return -EBADMSG;
	}
	data = stored ? stored : bytes;
	if (le32toh(disk->n_layers) > SPILL_LAYERS_MAX)
		return -EBADMSG;
	header = spill_header_bytes(le32toh(disk->n_layers), encrypted, spot->unit);
	if (!data || data > spot->room || header + spill_round_up(data, spot->unit) > spot->room)
		return -EBADMSG;
	if ((!encrypted &&
		    !(le32toh(disk->flags) & SPILL_RECORD_KILLS) != (le32toh(disk->version) != SPILL_VERSION_KILLS)) ||
		!spill_kills_ok(le32toh(disk->flags), stored, bytes))
		return -EBADMSG;
	if (encrypted && !spill_parts_ok(disk, data))
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
	record->codec = (uint16_t)codec;
	record->header = (uint16_t)header;
	record->stored = (uint32_t)stored;
	return 0;
}

#define SPILL_ENTRY_HEADER_SHIFT 56

static inline void spill_entry_encode(
	struct spill_disk_entry *entry, const struct spill_record *record, uint32_t at, uint32_t unit)
{
	uint64_t more = record->header / unit - 1;

	*entry = (struct spill_disk_entry){.ns_id = htole64(record->ns_id),
		.bytes = htole64(record->bytes | more << SPILL_ENTRY_HEADER_SHIFT),
		.used_tokens = htole32(record->used_tokens),
		.flags = htole32(record->flags),
		.at = htole32(at),
		.stored = htole32(record->stored)};
	for (int i = 0; i < 2; i++) {
		entry->key[i] = htole64(record->key.w[i]);
		entry->parent[i] = htole64(record->parent.w[i]);
	}
}

/** spill_entry_decode() - 0; -EBADMSG: it does not lie between the bytes @from and @to of its segment. @at: in units */
static inline int spill_entry_decode(const struct spill_disk_entry *entry, uint32_t unit, uint64_t from, uint64_t to,
	struct spill_record *record, uint32_t *at)
{
	uint64_t off = (uint64_t)le32toh(entry->at) * unit;
	uint64_t header = ((le64toh(entry->bytes) >> SPILL_ENTRY_HEADER_SHIFT) + 1) * unit;
	uint64_t bytes = le64toh(entry->bytes) & ((1ull << SPILL_ENTRY_HEADER_SHIFT) - 1);
	uint32_t stored = le32toh(entry->stored);
	uint64_t data = stored ? stored : bytes;

	if (off < from || off > to || header > SPILL_PAGE || !data || data > to - off ||
		header + spill_round_up(data, unit) > to - off ||
		(stored && !spill_packed_ok(SPILL_ZSTD, stored, bytes)) ||
		!spill_kills_ok(le32toh(entry->flags), stored, bytes))
		return -EBADMSG;
	*record = (struct spill_record){.ns_id = le64toh(entry->ns_id),
		.bytes = bytes,
		.header = (uint16_t)header,
		.used_tokens = le32toh(entry->used_tokens),
		.flags = le32toh(entry->flags),
		.codec = stored ? SPILL_ZSTD : SPILL_PLAIN,
		.stored = stored};
	for (int i = 0; i < 2; i++) {
		record->key.w[i] = le64toh(entry->key[i]);
		record->parent.w[i] = le64toh(entry->parent[i]);
	}
	*at = le32toh(entry->at);
	return 0;
}

static inline void spill_seal_encode(void *page, const struct spill_spot *spot, const struct spill_seal *seal)
{
	struct spill_disk_seal *disk = page;

	spill_page_begin(page, SPILL_SEAL_MAGIC, spot->uuid);
	disk->sequence = htole64(spot->sequence);
	disk->off = htole64(spot->off);
	disk->used = htole64(seal->used);
	disk->n = htole64(seal->n);
	for (int i = 0; i < 2; i++)
		disk->index_hash[i] = htole64(seal->index_hash.w[i]);
	spill_page_end(page);
}

/** spill_seal_decode() - @segment_bytes: bound of what it may say */
static inline int spill_seal_decode(
	const void *page, const struct spill_spot *spot, uint64_t segment_bytes, struct spill_seal *seal)
{
	const struct spill_disk_seal *disk = page;
	uint64_t used = le64toh(disk->used), n = le64toh(disk->n);

	if (spill_page_check(page, SPILL_SEAL_MAGIC, spot->uuid) < 0 || le64toh(disk->sequence) != spot->sequence ||
		le64toh(disk->off) != spot->off)
		return -EBADMSG;
	if (!n || n > segment_bytes / (2 * spot->unit) || used < SPILL_PAGE || used > segment_bytes ||
		spill_index_bytes(n) + SPILL_PAGE > segment_bytes - used)
		return -EBADMSG;
	*seal = (struct spill_seal){.used = used, .n = n};
	for (int i = 0; i < 2; i++)
		seal->index_hash.w[i] = le64toh(disk->index_hash[i]);
	return 0;
}

/* ---- segments that cannot be read ---- */

/** spill_probe_byte() - what a probe leaves at @off of the file, instead of a segment that was set aside */
static inline uint8_t spill_probe_byte(uint64_t off)
{
	return (uint8_t)(off / SPILL_PAGE * 31 + off);
}

/**
 * spill_segment_is_lost() - a segment's first page names no use: was it never used, or can it not be read any more?
 * @head:          that page
 * @seal_page:     its last page, or NULL: the device would not give it
 * @spot:          of the last page; sequence and unit are filled in
 * @n:             records it had, as far as its seal is left; else 0
 */
static inline bool spill_segment_is_lost(const struct spill_super *super, const uint8_t *head, const uint8_t *seal_page,
	struct spill_spot *spot, uint64_t *n)
{
	uint64_t off = spot->off - (super->segment_bytes - SPILL_PAGE);
	bool zero = true, probe = true;
	struct spill_seal seal;

	*n = 0;
	for (unsigned i = 0; i < SPILL_PAGE; i++) {
		zero = zero && !head[i];
		probe = probe && head[i] == spill_probe_byte(off + i);
	}
	if (probe)
		return false;
	spot->sequence = seal_page ? spill_page_sequence(seal_page) : 0;
	spot->unit = super->unit;
	if (!seal_page || spill_seal_decode(seal_page, spot, super->segment_bytes, &seal) < 0)
		return !zero;
	if (spill_super_dropped(super, 0, spot->sequence))
		return false;
	*n = seal.n;
	return true;
}

#endif
