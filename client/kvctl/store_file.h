/*
 * store_file.h - a spill store as it lies on disk, read without its daemon, or beside it
 *
 * Nothing here writes but store_file_drop(), under the store's lock.  What is read beside a daemon may change
 * meanwhile: a segment whose use changed is looked at again, and what does not count yet is no damage until it stays
 * so.
 */
#ifndef KVCTL_STORE_FILE_H
#define KVCTL_STORE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "kvpool_cipher.h"
#include "kvpool_unpack.h"

#define STORE_PATH_MAX 512

struct store_file {
	int fd;
	char path[STORE_PATH_MAX];
	bool device; /* a block device */
	bool served; /* somebody holds its lock */
	struct spill_super super;
	uint64_t bytes; /* of the file */
	uint32_t n_segments; /* as far as the file reaches */
	uint8_t *bytes_read; /* a chunk, or a record */
	uint64_t room;
	uint64_t holds; /* bytes it can be, as its file system has room; at most its capacity */
	struct spill_cipher *
		cipher; /* that of the caller's keys, all that the store needs; NULL: it has none, or they are not there */
	struct spill_cipher own_cipher;
	ZSTD_DCtx *zstd; /* once a packed record was checked */
	uint8_t *unpacked;
	uint64_t unpacked_room;
};

/** store_file_open() - @path: directory, file or block device. @keys: of those that are encrypted, or NULL: of their records then
 *  only length and checksum are known, no namespace and no key.  Return: 0; KVCTL_FAILED (said). */
int store_file_open(struct store_file *store, const char *path, const struct spill_keys *keys, bool write);
/** store_file_is_closed() - encrypted, and not with these keys */
bool store_file_is_closed(const struct store_file *store);
void store_file_close(struct store_file *store);

/* What one segment holds. */
struct store_segment {
	uint64_t sequence; /* 0: never used, or lost */
	bool sealed;
	bool lost; /* used, and nothing in it can be read */
	uint64_t n_lost; /* records its seal speaks of, and that are not there */
	uint64_t n_records, bytes; /* of blocks */
	uint64_t stored; /* of their data, as it lies: less, where it is packed */
	uint64_t n_dropped; /* records that do not count any more: kvctl store drop */
	uint64_t n_kills; /* lists of deleted keys, whose records are counted as long as they lie there */
	uint64_t n_damaged;
	uint64_t n_gaps; /* places where no record can be read, but behind them one can */
	uint64_t n_unread; /* the device would not give them */
};

/* Called for each record that counts. @damaged: its data was looked at, and is not what was written. */
typedef void (*store_record_fn)(void *owner, const struct spill_record *record, bool damaged);

/** store_file_segment() - go through segment @i. @check: read the data too. @seen NULL: only counted. Return: 0;
 *  -errno. */
int store_file_segment(struct store_file *store, uint32_t i, bool check, store_record_fn seen, void *owner,
	struct store_segment *segment);
/** store_file_drop() - no record of @ns_id (0: of all) counts any more. The caller has opened it to write, and it is not
 *  served.  Return: 0; -errno. */
int store_file_drop(struct store_file *store, uint64_t ns_id);

#endif
