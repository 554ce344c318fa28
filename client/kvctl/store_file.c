/* store_file.c - see store_file.h */
#define _GNU_SOURCE 1
#include "store_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "kvctl.h"
#include "pool.h"

#define CHUNK (1u << 20)

/* ---- open ---- */

/* The later of the two copies that is good. */
static int read_super(struct store_file *store)
{
	int result = -EBADMSG;

	for (unsigned copy = 0; copy < 2; copy++) {
		struct spill_super super;
		int r = pool_read(store->fd, store->bytes_read, SPILL_PAGE, copy * SPILL_PAGE);

		if (r == 0)
			r = spill_super_decode(store->bytes_read, &super);
		if (r == 0 && (result != 0 || super.start > store->super.start))
			store->super = super;
		if (r == 0 || (result != 0 && r == -EPROTONOSUPPORT))
			result = r;
	}
	return result;
}

static int store_length(struct store_file *store)
{
	struct stat st;

	if (fstat(store->fd, &st) < 0)
		return -errno;
	store->device = S_ISBLK(st.st_mode);
	if (!store->device && !S_ISREG(st.st_mode))
		return -ENOTBLK;
	store->bytes = (uint64_t)st.st_size;
	if (store->device && ioctl(store->fd, BLKGETSIZE64, &store->bytes) < 0)
		return -errno;
	return 0;
}

/* What lies on a device behind its capacity is of a store that was there before, or somebody else's.  A file may end within
   its last segment, where the file system knows no fallocate(). */
static uint32_t count_segments(const struct store_file *store)
{
	uint64_t segment = store->super.segment_bytes, bytes = store->super.capacity;
	uint64_t n = bytes > SPILL_SUPER_AREA ? (bytes - SPILL_SUPER_AREA) / segment : 0;
	uint64_t there = store->bytes > SPILL_SUPER_AREA ? store->bytes - SPILL_SUPER_AREA : 0;

	there = store->device ? there / segment : (there + segment - 1) / segment;
	return (uint32_t)(there < n ? there : n);
}

/* What the file has, and what its file system would give it; what is above its capacity is not for it. */
static uint64_t store_holds(const struct store_file *store)
{
	uint64_t holds = store->bytes;
	struct statvfs fs;
	struct stat st;

	if (!store->device && fstat(store->fd, &st) == 0 && fstatvfs(store->fd, &fs) == 0)
		holds = (uint64_t)st.st_blocks * 512 + (uint64_t)fs.f_bavail * fs.f_frsize;
	return holds < store->super.capacity ? holds : store->super.capacity;
}

static int store_lock(struct store_file *store, bool write)
{
	/* the daemon shares the lock of a device with udev, that of a file with nobody */
	if (flock(store->fd, (write || store->device ? LOCK_EX : LOCK_SH) | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK)
			return -errno;
		store->served = true;
	} else if (!write) {
		flock(store->fd, LOCK_UN); /* a daemon may start meanwhile */
	}
	return 0;
}

static bool make_room(struct store_file *store, uint64_t bytes)
{
	uint8_t *more;

	if (store->room >= bytes)
		return true;
	more = aligned_alloc(SPILL_PAGE, bytes);
	if (!more)
		return false;
	free(store->bytes_read);
	store->bytes_read = more;
	store->room = bytes;
	return true;
}

static int open_what(struct store_file *store, const char *path, bool write)
{
	int flags = (write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	struct stat st = {0};

	snprintf(store->path, sizeof(store->path), "%.500s", path);
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		snprintf(store->path, sizeof(store->path), "%.490s/" SPILL_STORE_NAME, path);
	else if (S_ISBLK(st.st_mode))
		flags &= ~O_NOFOLLOW; /* names by serial number are symbolic links */
	/* past the page cache, which a daemon's direct writes may leave stale for a moment */
	store->fd = open(store->path, flags | O_DIRECT);
	if (store->fd < 0 && errno == EINVAL)
		store->fd = open(store->path, flags);
	return store->fd < 0 ? -errno : 0;
}

/* A store that was moved to larger sectors than it was made for: through the page cache, as a daemon goes there. */
static void leave_direct(struct store_file *store)
{
	uint32_t unit = store->super.unit;

	if (pread(store->fd, store->bytes_read, unit, SPILL_SUPER_AREA + unit) < 0 && errno == EINVAL)
		fcntl(store->fd, F_SETFL, fcntl(store->fd, F_GETFL) & ~O_DIRECT);
}

/* All keys it needs, or none: half of a store would be shown as all of it. */
static int store_take_keys(struct store_file *store, const struct spill_keys *keys)
{
	for (uint32_t i = 0; i < store->super.n_keys; i++) {
		if (!keys)
			return 0;
		if (!spill_key_find(keys, store->super.key_ids[i])) {
			complain("store: %s needs key %016" PRIx64
				 " too, which is in no --key-file given: name its file",
				store->path, store->super.key_ids[i]);
			return KVCTL_FAILED;
		}
	}
	if (!store->super.n_keys)
		return 0;
	if (spill_cipher_init(&store->own_cipher, keys) < 0) {
		complain("store: libcrypto has no AES-256-GCM here");
		return KVCTL_FAILED;
	}
	store->cipher = &store->own_cipher;
	return 0;
}

bool store_file_is_closed(const struct store_file *store)
{
	return store->super.n_keys && !store->cipher;
}

int store_file_open(struct store_file *store, const char *path, const struct spill_keys *keys, bool write)
{
	int r;

	memset(store, 0, sizeof(*store));
	store->fd = -1;
	r = open_what(store, path, write);
	if (r == 0)
		r = store_length(store);
	if (r == 0)
		r = store_lock(store, write);
	if (r == 0 && !make_room(store, CHUNK))
		r = -ENOMEM;
	if (r == 0)
		r = read_super(store);
	if (r < 0) {
		if (r == -EBADMSG || r == -ENODATA)
			complain("store: %s is no spill store, or its superblock is damaged", store->path);
		else if (r == -ENOTBLK)
			complain("store: %s is neither a directory, a file nor a block device", store->path);
		else if (r == -EPROTONOSUPPORT)
			complain("store: %s is of another format version; use the kvctl of the kvpoold that wrote it",
				store->path);
		else
			complain("store: cannot open %s: %s%s", store->path, strerror(-r),
				r == -EACCES ? ": only root and the daemon's user may" : "");
		store_file_close(store);
		return KVCTL_FAILED;
	}
	if (store_take_keys(store, keys)) {
		store_file_close(store);
		return KVCTL_FAILED;
	}
	leave_direct(store);
	store->holds = store_holds(store);
	store->n_segments = count_segments(store);
	return 0;
}

void store_file_close(struct store_file *store)
{
	if (store->fd >= 0)
		close(store->fd);
	store->fd = -1;
	free(store->bytes_read);
	store->bytes_read = NULL;
	store->room = 0;
	spill_cipher_deinit(&store->own_cipher);
	store->cipher = NULL;
	ZSTD_freeDCtx(store->zstd);
	free(store->unpacked);
	store->zstd = NULL;
	store->unpacked = NULL;
	store->unpacked_room = 0;
}

/* ---- a segment ---- */

/* One walk through a segment; the spot moves. */
struct walk {
	struct store_file *store;
	uint64_t base; /* of the segment, in the file */
	struct store_segment *segment;
	bool check;
	store_record_fn seen;
	void *owner;
	uint64_t have_at, have; /* what is in the store's buffer, in the segment */
	uint64_t gap_at;
};

static struct spill_spot walk_spot(const struct walk *walk, uint64_t at)
{
	return (struct spill_spot){.uuid = walk->store->super.uuid,
		.sequence = walk->segment->sequence,
		.off = walk->base + at,
		.room = walk->store->super.segment_bytes - at,
		.unit = walk->store->super.unit};
}

/* What is behind the end of a file was never written: it is zero. */
static int store_read(const struct store_file *store, void *to, uint64_t n, uint64_t off)
{
	uint64_t there = n;
	struct stat st;

	if (!store->device && fstat(store->fd, &st) == 0 && off + n > (uint64_t)st.st_size) {
		there = (uint64_t)st.st_size > off ? (uint64_t)st.st_size - off : 0;
		memset((char *)to + there, 0, n - there);
	}
	return pool_read(store->fd, to, there, off);
}

/* @bytes of the segment from @at on, in the buffer. Return: where; NULL: the device would not. */
static uint8_t *walk_read(struct walk *walk, uint64_t at, uint64_t bytes)
{
	struct store_file *store = walk->store;
	uint64_t n = store->super.segment_bytes - at;

	if (at >= walk->have_at && at + bytes <= walk->have_at + walk->have)
		return store->bytes_read + (at - walk->have_at);
	/* further records come along where they are small */
	n = n < CHUNK ? n : CHUNK;
	n = n < bytes ? bytes : n;
	walk->have = 0;
	if (!make_room(store, n) || store_read(store, store->bytes_read, n, walk->base + at) < 0)
		return NULL;
	walk->have_at = at;
	walk->have = n;
	return store->bytes_read;
}

static void walk_count(struct walk *walk, const struct spill_record *record, bool damaged)
{
	if (spill_super_dropped(&walk->store->super, record->ns_id, walk->segment->sequence)) {
		walk->segment->n_dropped++;
		return;
	}
	if (spill_is_kills(record)) {
		walk->segment->n_kills++;
		walk->segment->n_damaged += damaged;
		return;
	}
	walk->segment->n_records++;
	walk->segment->bytes += record->bytes;
	walk->segment->stored += spill_data_bytes(record);
	walk->segment->n_damaged += damaged;
	if (walk->seen)
		walk->seen(walk->owner, record, damaged);
}

/* As much of a header as can be known: without the keys no more than its lengths and checksums. */
static int walk_decode(struct walk *walk, const void *page, const struct spill_spot *spot, struct spill_record *record,
	struct spill_hash *hash)
{
	if (!store_file_is_closed(walk->store))
		return spill_record_open(walk->store->cipher, page, spot, record, hash);
	return spill_page_encrypted(page) ? spill_record_decode(page, spot, record, hash) : -EBADMSG;
}

/* Does packed @data unpack to what it says it was? */
static bool pack_is_right(struct store_file *store, const struct spill_record *record, const void *data)
{
	if (store->unpacked_room < record->bytes) {
		free(store->unpacked);
		store->unpacked = malloc(record->bytes);
		store->unpacked_room = store->unpacked ? record->bytes : 0;
	}
	if (!store->zstd)
		store->zstd = ZSTD_createDCtx();
	return store->zstd && store->unpacked_room >= record->bytes &&
	       spill_unpack(store->zstd, data, record->stored, store->unpacked, record->bytes) == 0;
}

/* Header and data of the record at @at, which is to be @wanted (NULL: whatever its header says). Return: is it all right?  What is
   encrypted is decrypted in the buffer: nobody looks at it twice. */
static bool record_is_right(struct walk *walk, uint64_t at, const struct spill_record *wanted)
{
	struct spill_spot spot = walk_spot(walk, at);
	uint8_t *bytes = walk_read(walk, at, spill_span(wanted, spot.unit)), *data;
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_record found;
	struct spill_hash hash;
	const void *head;

	if (!bytes) {
		walk->segment->n_unread++;
		return false;
	}
	data = bytes + wanted->header;
	head = spill_header_page(bytes, spot.unit, page);
	return walk_decode(walk, head, &spot, &found, &hash) == 0 && found.ns_id == wanted->ns_id &&
	       !memcmp(&found.key, &wanted->key, sizeof(found.key)) && found.bytes == wanted->bytes &&
	       found.codec == wanted->codec && found.stored == wanted->stored && found.header == wanted->header &&
	       spill_hash_equal(hash, spill_hash_data(data, spill_data_bytes(&found))) &&
	       (!walk->store->cipher || spill_data_decrypt(walk->store->cipher, head, data) == 0) &&
	       (found.codec == SPILL_PLAIN || store_file_is_closed(walk->store) ||
		       pack_is_right(walk->store, &found, data));
}

/* Which use of the segment is it? By its header, else by its first record. */
static uint64_t walk_sequence(struct walk *walk)
{
	const uint8_t *page = walk_read(walk, 0, 2 * SPILL_PAGE);
	struct spill_spot spot = walk_spot(walk, 0);
	_Alignas(8) uint8_t own[SPILL_PAGE];
	struct spill_record record;
	struct spill_hash hash;
	uint64_t torn;

	if (!page || !spill_page_is_of(page, spot.uuid))
		return 0;
	if (spill_segment_decode(page, &spot) == 0)
		return spot.sequence;
	torn = spill_page_sequence(page);
	page += SPILL_PAGE;
	spot = walk_spot(walk, SPILL_PAGE);
	spot.sequence = spill_page_sequence(page);
	walk->segment->n_gaps++;
	return spot.sequence && spot.sequence >= torn &&
			       walk_decode(walk, spill_header_page(page, spot.unit, own), &spot, &record, &hash) == 0
		       ? spot.sequence
		       : 0;
}

/* No use of it is named: never used, or lost? */
static void walk_lost(struct walk *walk)
{
	uint64_t segment_bytes = walk->store->super.segment_bytes;
	struct spill_spot spot = walk_spot(walk, segment_bytes - SPILL_PAGE);
	uint8_t head[SPILL_PAGE];
	const uint8_t *page = walk_read(walk, 0, SPILL_PAGE);

	if (!page) {
		walk->segment->n_unread++;
		walk->segment->lost = true;
		return;
	}
	memcpy(head, page, sizeof(head));
	page = walk_read(walk, segment_bytes - SPILL_PAGE, SPILL_PAGE);
	walk->segment->lost = spill_segment_is_lost(&walk->store->super, head, page, &spot, &walk->segment->n_lost);
}

/* Return: its entries, *seal filled; NULL: it has none that can be used here, seal->n is 0 or how many records it had. */
static struct spill_disk_entry *walk_index(struct walk *walk, struct spill_seal *seal)
{
	uint64_t segment_bytes = walk->store->super.segment_bytes, n;
	struct spill_spot spot = walk_spot(walk, segment_bytes - SPILL_PAGE);
	const uint8_t *page = walk_read(walk, segment_bytes - SPILL_PAGE, SPILL_PAGE);
	uint8_t own[SPILL_PAGE];
	struct spill_disk_entry *index;

	seal->n = 0;
	if (!page || spill_seal_decode(page, &spot, segment_bytes, seal) < 0)
		return NULL;
	memcpy(own, page, sizeof(own));
	n = spill_index_bytes(seal->n);
	page = walk_read(walk, segment_bytes - SPILL_PAGE - n, n);
	if (!page || !spill_hash_equal(seal->index_hash, spill_hash_data(page, n)))
		return NULL;
	if (store_file_is_closed(walk->store)) {
		walk->segment->sealed = true; /* and whole, though nobody reads it */
		return NULL;
	}
	index = malloc(n);
	if (!index)
		return NULL;
	memcpy(index, page, n);
	if (spill_seal_decrypt(walk->store->cipher, own, index, n) == 0)
		return index;
	free(index);
	return NULL;
}

static void walk_sealed(struct walk *walk, const struct spill_disk_entry *index, const struct spill_seal *seal)
{
	uint32_t unit = walk->store->super.unit;
	uint64_t end = SPILL_PAGE, off;

	walk->segment->sealed = true;
	for (uint64_t k = 0; k < seal->n; k++) {
		struct spill_record record;
		uint32_t at;

		if (spill_entry_decode(&index[k], unit, end, seal->used, &record, &at) < 0) {
			walk->segment->n_gaps++;
			return;
		}
		off = (uint64_t)at * unit;
		walk_count(walk, &record, walk->check && !record_is_right(walk, off, &record));
		end = off + spill_span(&record, unit);
	}
}

/* From header to header, as a start does. */
static void walk_log(struct walk *walk)
{
	_Alignas(8) uint8_t own[SPILL_PAGE];
	uint64_t at = SPILL_PAGE;

	while (at + SPILL_PAGE <= walk->store->super.segment_bytes) {
		const uint8_t *page = walk_read(walk, at, SPILL_PAGE);
		struct spill_spot spot = walk_spot(walk, at);
		struct spill_record record;
		struct spill_hash hash;

		if (!page || walk_decode(walk, spill_header_page(page, spot.unit, own), &spot, &record, &hash) < 0) {
			walk->segment->n_unread += !page;
			if (!walk->gap_at)
				walk->gap_at = at;
			at += spot.unit;
			continue;
		}
		walk->segment->n_gaps += walk->gap_at != 0;
		walk->gap_at = 0;
		walk_count(walk, &record, walk->check && !record_is_right(walk, at, &record));
		at += spill_span(&record, spot.unit);
	}
}

int store_file_segment(struct store_file *store, uint32_t i, bool check, store_record_fn seen, void *owner,
	struct store_segment *segment)
{
	struct walk walk = {.store = store,
		.base = SPILL_SUPER_AREA + (uint64_t)i * store->super.segment_bytes,
		.segment = segment,
		.check = check,
		.seen = seen,
		.owner = owner};
	struct spill_disk_entry *index;
	struct spill_seal seal;
	uint64_t n_there;

	memset(segment, 0, sizeof(*segment));
	segment->sequence = walk_sequence(&walk);
	if (!segment->sequence) {
		walk_lost(&walk);
		return 0;
	}
	index = walk_index(&walk, &seal);
	if (index)
		walk_sealed(&walk, index, &seal);
	else
		walk_log(&walk);
	n_there = segment->n_records + segment->n_dropped + segment->n_kills;
	if (seal.n > n_there && !spill_super_dropped(&store->super, 0, segment->sequence))
		segment->n_lost = seal.n - n_there;
	free(index);
	return 0;
}

/* ---- drop ---- */

int store_file_drop(struct store_file *store, uint64_t ns_id)
{
	struct spill_super super = store->super;
	int r;

	/* all that was written is of this start or earlier ones */
	super.start++;
	super.pid = (uint64_t)getpid();
	r = spill_super_drop(&super, ns_id, super.start << 32);
	if (r < 0)
		return r;
	if (!ns_id && !store->device)
		super.n_keys = 0; /* nothing is left that needs them, nor keeps a start without from it */
	spill_super_encode(store->bytes_read, &super);
	if (pwrite(store->fd, store->bytes_read, SPILL_PAGE, (off_t)(super.start % 2 * SPILL_PAGE)) !=
		(ssize_t)SPILL_PAGE)
		return errno ? -errno : -EIO;
	if (fdatasync(store->fd) < 0)
		return -errno;
	store->super = super;
	/* nothing in it counts: the file system may have the room */
	if (!ns_id && !store->device && ftruncate(store->fd, SPILL_SUPER_AREA) < 0)
		return -errno;
	return 0;
}
