/*
 * spill_store.h - inside of spill.h: the store's file, its segments, its transfers
 *
 * spill.c the interface and the transfers, spill_file.c the file with its lock, superblock and alignment, spill_raw.c
 * where it is a block device,
 * spill_segment.c segments and their records, spill_seal.c what makes a start short, spill_health.c errors, quarantine
 * and probes, spill_memory.c memory for packed bytes, spill_recover.c the start, spill_kill.c deleted keys,
 * spill_scrub.c and spill_drop.c what their names say, spill_share.c whose the log is.
 */
#ifndef KVPOOL_SPILL_STORE_H
#define KVPOOL_SPILL_STORE_H

#include <time.h>

#include "io.h"
#include "kvpool_cipher.h"
#include "log.h"
#include "spill.h"
#include "spill_pack.h"

#define SPILL_NO_SEGMENT UINT32_MAX
#define SPILL_SECOND 1000000000ull
#define SPILL_PROBE_BYTES 65536u

/* ---- spill_file.c ---- */

struct spill_file {
	int fd;
	bool raw; /* a block device: as long as it is, and with all its segments from the start */
	bool direct; /* O_DIRECT is on */
	bool small_unit; /* the store was made where sectors are smaller */
	char path[512];
	struct spill_super super;
	uint64_t bytes; /* of the file, when it was opened */
};

/** spill_file_open() - lock, read or make the superblock, settle on O_DIRECT. @note: 128 bytes, what a person should know.
 *  opts->capacity: filled in where it was left to the device. */
int spill_file_open(struct spill_file *file, struct spill_opts *opts, char note[128], char message[256]);
void spill_file_close(struct spill_file *file);
/** spill_file_remake() - an empty store, its segments chosen anew. Return: 1; 0: those it has are the best for the
 *  capacity; -errno. */
int spill_file_remake(struct spill_file *file, const struct spill_opts *opts);
/** spill_file_pass_keys() - no record is left of keys that are not in @used (@n of them) but the first of opts->keys: whoever has them may
 *  give them away. Return: 0; -errno. */
int spill_file_pass_keys(struct spill_file *file, const struct spill_opts *opts, const uint64_t *used, uint32_t n);
/** spill_file_leave_direct() - go on through the page cache, and say so */
void spill_file_leave_direct(struct spill_file *file, int err);

/* ---- spill_raw.c, for spill_file.c; 0 or -errno, with @message where there is one ---- */

/** spill_raw_path() - where the device is really */
int spill_raw_path(struct spill_file *file, const char *path);
/** spill_raw_open() - for us alone */
int spill_raw_open(struct spill_file *file, char message[256]);
/** spill_raw_capacity() - is there so much; 0: all there is, filled in */
int spill_raw_capacity(const struct spill_file *file, uint64_t *capacity, char message[256]);
/** spill_raw_alignment() - of its transfers, in bytes; 0: not known */
uint32_t spill_raw_alignment(int fd);
/** spill_raw_sector() - what it writes without reading first; 0: not known */
uint32_t spill_raw_sector(int fd);
/** spill_raw_may_begin() - there is no superblock, @why: nothing else either, which a store would write over? */
int spill_raw_may_begin(const struct spill_file *file, int why, char note[128], char message[256]);
/** spill_raw_unuse() - segments from @first up to @n were never used, whatever lies there */
int spill_raw_unuse(const struct spill_file *file, uint64_t first, uint64_t n);
/** spill_raw_forget_super() - the copy that is not the current one may be of an earlier store */
int spill_raw_forget_super(const struct spill_file *file);

/* ---- spill_segment.c ---- */

/*
 * A segment is ABSENT (the file does not reach so far), EMPTY, OPEN (records are appended), FULL, or BAD (a write or
 * flush in it failed).
 *
 *	ABSENT -> EMPTY   allocated
 *	EMPTY -> OPEN     segment_open(), one at a time
 *	FULL -> OPEN      segment_continue(), by a start: the last one of the log, if it was left with room
 *	OPEN -> FULL      segment_close(): the next record does not fit
 *	OPEN, FULL -> BAD segment_condemn()
 *	FULL -> EMPTY     segment_reclaim(): oldest first; no transfer may be under way in it
 *	BAD -> EMPTY      proved good by a probe of all that was written to, once no record lives in it
 */
enum segment_state {
	SEGMENT_ABSENT,
	SEGMENT_EMPTY,
	SEGMENT_OPEN,
	SEGMENT_FULL,
	SEGMENT_BAD,
};

enum record_state {
	RECORD_DEAD,
	RECORD_WRITING,
	RECORD_LIVE,
};

struct record {
	uint32_t at; /* place in its segment, in units of the store */
	uint32_t span; /* header included, likewise */
	uint16_t header; /* bytes of it */
	uint8_t state; /* enum record_state */
	void *cookie;
};

struct segment {
	enum segment_state state;
	bool dirty; /* something was written since the last good flush */
	bool sealed; /* as the start found it: nothing was written since */
	bool whole; /* as the start found it: its header names its use, and all of it could be read */
	bool flush_failed; /* BAD: nothing in it counts, not even what is still being written */
	uint32_t n_writers, n_readers; /* transfers under way */
	uint32_t n_live, n_records, room;
	uint32_t n_kills; /* of those that live: lists of deleted keys */
	uint64_t sequence; /* each start begins anew far above the last one's */
	uint64_t turn; /* how many were opened before it */
	uint64_t key_id; /* of a store with keys: all in it is encrypted with this one; 0: not known */
	uint64_t used; /* where the next record goes */
	uint64_t dirty_serial; /* of the last write that ended here */
	uint64_t probe_at_ns,
		backoff_ns; /* BAD; FULL and nothing lives in it: the file system had no room for it, wait */
	struct record *records; /* in the order of the log */
	struct shares *shares; /* spill_share.c's: whose they are, while something lives in it; or NULL */
	struct spill_record *index; /* what they are, likewise; NULL: sealed, or nothing to seal */
};

/** segment_off() - where it begins in the file */
uint64_t segment_off(const struct spill *spill, uint32_t i);
spill_place segment_place(const struct spill *spill, uint32_t i, uint32_t record);
/** segment_find() - Return: the record of a place, with *i; NULL: it is of an earlier use of the segment. */
struct record *segment_find(struct spill *spill, spill_place place, uint32_t *i);
/** segment_add() - append to the table of @i what lies at @off in it. Return: index; -ENOMEM. */
int64_t segment_add(
	struct spill *spill, uint32_t i, uint64_t off, const struct spill_record *record, enum record_state state);
/** record_spot() - where it lies */
struct spill_spot record_spot(const struct spill *spill, uint32_t i, const struct record *record);
/** record_bytes() - that it takes, header included */
uint64_t record_bytes(const struct spill *spill, const struct record *record);
/** segment_forget_index() - it is not going to be sealed (any more) */
void segment_forget_index(struct segment *segment);
void segment_let_live(struct spill *spill, uint32_t i, uint32_t record, void *cookie);
/** segment_drop() - @record is dead; its cookie is told when @tell */
void segment_drop(struct spill *spill, uint32_t i, uint32_t record, bool tell);
/** segment_drop_all() - all that lives in it, told; @lists: its lists of deleted keys too */
void segment_drop_all(struct spill *spill, uint32_t i, bool lists);

/** segment_for() - the open segment with room for @span. Return: its index; -EAGAIN; -ENOSPC. */
int64_t segment_for(struct spill *spill, uint64_t span);
void segment_close(struct spill *spill);
/** segment_continue() - @i, which the start found, is written on where its records end, if that can be */
void segment_continue(struct spill *spill, uint32_t i);
/** segment_no_space() - the file system had no room for what was written to @i: it is closed, the store full for a
 *  while */
void segment_no_space(struct spill *spill, uint32_t i, int err);
/** segment_ask_for_room() - a file system that had no room for one more segment, in the background and each 30 s at
 *  most */
void segment_ask_for_room(struct spill *spill);
/** segment_allocate() - make the file one segment longer, in the background */
void segment_allocate(struct spill *spill);

/* ---- spill_share.c ---- */

/** share_add() - @record has a place in segment @i */
void share_add(struct spill *spill, uint32_t i, const struct spill_record *record);
/** share_release() - nothing in it takes room any more */
void share_release(struct spill *spill, uint32_t i);

/* ---- spill_seal.c ---- */

/** seal_bytes() - what the seal of a segment with @n records takes of it */
uint64_t seal_bytes(uint64_t n);
/** seal_ready() - seal every full segment whose records are durable */
void seal_ready(struct spill *spill);
/** seal_break() - in the background: the open segment is to be written on, which its seal knows nothing of */
void seal_break(struct spill *spill);

/* ---- spill_health.c ---- */

enum probe_stage {
	PROBE_IDLE,
	PROBE_FILE, /* is our file still there, and may we write there? */
	PROBE_WRITE,
	PROBE_SYNC,
	PROBE_READ,
};

struct probe {
	enum probe_stage stage;
	bool only_file; /* the store is not down: a look now and then */
	uint32_t segment; /* SPILL_NO_SEGMENT: the store, at SPILL_PROBE_OFF */
	uint64_t start, at, end;
	uint8_t *bytes;
	struct io_op op;
};

struct health {
	enum spill_state state; /* UP, DOWN or FULL */
	int last_errno;
	time_t since; /* wall clock, of the state */
	uint64_t probe_at_ns, backoff_ns; /* FULL: when the next write may try */
	bool refused; /* FULL: the file system refused what was written, not to make the file longer */
	uint64_t look_at_ns; /* UP or FULL: at the file, again */
	uint64_t up_since_ns;
	char what[224]; /* went wrong, and since when */
	bool hung; /* operations are under way, and none has ended for HUNG_NS */
	bool short_of_room; /* the file system gives less than the capacity; said once, until it gives again */
	struct probe probe;
	struct log_limit limit, read_limit; /* of writes and flushes; of reads */
};

/** health_failed() - a transfer of @i failed: the segment is set aside, the store goes down */
void health_failed(struct spill *spill, uint32_t i, const char *what, int err);
/** health_flush_failed() - everything written since the last good flush is gone */
void health_flush_failed(struct spill *spill, int err);
/** health_full() - no segment can be had at all; @refused: or a write to one was refused for want of room */
void health_full(struct spill *spill, bool refused, int err);
/** health_written() - a write ended well */
void health_written(struct spill *spill);
/** health_takes_writes() - may one be tried? */
bool health_takes_writes(const struct spill *spill);
/** health_no_room(), health_room() - the file system refused to make the file longer, and gives again: a line each time that
 *  changes */
void health_no_room(struct spill *spill, int err);
void health_room(struct spill *spill);
/** health_damaged() - @record of @i was read, and is not what was written: counted and said, for the caller to drop */
void health_damaged(struct spill *spill, uint32_t i, const struct record *record);
/** health_unread() - the device would not give @record of @i */
void health_unread(struct spill *spill, uint32_t i, const struct record *record, int err);
void health_tick(struct spill *spill);

/* ---- spill_recover.c ---- */

/** spill_scan() - find the records of all segments; no callback but progress(). Return: 0; -ENOMEM. */
int spill_scan(struct spill *spill);
/** spill_tell_found() - tell found() of about @n of them, in the order of the log. Return: 1: there are more; 0;
 *  -ENOMEM. */
int spill_tell_found(struct spill *spill, uint64_t n);

/* ---- spill_kill.c ---- */

/* The cookie of a list of deleted keys, whom nobody is told of. */
extern char kill_cookie;
struct kill_table;
/** kill_find() - in the scan: read all lists that were found. @cipher: the scan's, or NULL; @bytes: room for so many reads of
 *  SPILL_KILLS_READ. Return: 0; -ENOMEM. */
int kill_find(struct spill *spill, struct spill_cipher *cipher, uint8_t *bytes, unsigned n_reads);
#define SPILL_KILLS_READ 65536u
/** kill_hits() - was the key of @record, at unit @at of a segment with @sequence, deleted after that was written? */
bool kill_hits(const struct kill_table *table, const struct spill_record *record, uint64_t sequence, uint32_t at);
void kill_table_free(struct kill_table *table);

/* ---- spill_drop.c ---- */

/** drop_passed() - the log has left behind everything up to segment @i, the superblock says so soon. Return: 0: it does say so;
 *  -EAGAIN: it will; -ENOMEM; -ENOSPC. */
int drop_passed(struct spill *spill, uint32_t i);

/* ---- spill_scrub.c ---- */

struct scrub {
	uint64_t rate; /* bytes a second; 0: none */
	uint64_t once_rate; /* of a pass that was asked for; 0: none */
	int64_t allowance; /* bytes that may be read now */
	uint64_t at_ns; /* when that was reckoned last, or when the first pass begins; 0: not begun */
	bool busy;
	bool right; /* what was read last is what was written */
	struct spill_spot spot; /* of what is being read */
	uint32_t segment, index; /* being read, or next */
	uint8_t *bytes;
	uint64_t room;
	struct io_op op;
};
void scrub_tick(struct spill *spill);

/* ---- spill_memory.c ---- */

struct spill_memory;
/** spill_memory_take() - for @bytes at least. Return: NULL: not before others have ended. */
struct spill_memory *spill_memory_take(struct spill *spill, uint64_t bytes);
void spill_memory_give(struct spill *spill, struct spill_memory *memory);
uint8_t *spill_memory_bytes(const struct spill_memory *memory);
uint64_t spill_memory_room(const struct spill_memory *memory);
void spill_memory_free_all(struct spill *spill);

/* ---- spill.c ---- */

enum transfer_kind {
	TRANSFER_FREE,
	TRANSFER_WRITE,
	TRANSFER_READ,
	TRANSFER_FLUSH,
	TRANSFER_LOST, /* a read of a record that is no more: ends through the engine like the others */
};

/* A piece of a record that is read by itself. */
struct part {
	struct io_op op;
	uint64_t end; /* of the data in it and in those before */
	bool there, direct;
	uint32_t layers_right; /* of the transfer, when this one had come */
};

struct transfer {
	struct transfer *next; /* while free */
	struct spill *spill;
	struct io_op op;
	enum transfer_kind kind;
	uint32_t segment, index; /* of the record */
	spill_place place;
	struct spill_record record;
	struct spill_spot spot; /* of the record; the worker looks at it while the segment's table may move */
	bool right; /* READ: what came back is the record, every byte of it */
	bool direct; /* as it was submitted */
	uint64_t serial; /* FLUSH: what was written up to here */
	void *cookie;
	spill_done_fn done;
	void *owner;
	uint8_t *
		head; /* two pages: WRITE: for a segment's header and a record's; READ: for what is read of that, and what it was */
	const void *data; /* WRITE: the block's bytes */
	void *into; /* READ: where they are to be */
	uint64_t data_bytes; /* READ: of the record's data, whole units */
	bool packed; /* READ: it lies packed; WRITE: it goes down so */
	bool packing; /* WRITE: it was to be packed */
	const struct spill_layers *layers; /* WRITE: to be summed up; READ: as it is read in parts; else NULL */
	struct part *parts; /* of a read in parts */
	unsigned n_parts, n_parts_left;
	unsigned n_parts_there; /* the worker's, as the next two: the first ones that have come, without a gap */
	uint32_t layers_right; /* the first ones that were compared */
	int bad; /* 0; -errno of a part, or of what was found in it; WRITE: of encrypting it */
	uint32_t layers_told;
	bool encrypted; /* WRITE: what is to go down is there; it may be asked to twice */
	uint8_t *pack; /* packed or encrypted bytes on their way: memory's */
	struct spill_memory *memory; /* lent to it; or NULL */
	struct spill_packed told;
};

struct spill {
	struct spill_opts opts;
	struct spill_file file;
	struct io *io;
	uint64_t moved_ns; /* when an operation last ended, or the first of those under way began */
	unsigned
		n_idle; /* of those that have just ended: looks at the file and packing, for which the disk need not move */
	struct health health;
	struct scrub scrub;
	struct drop *drop; /* spill_drop.c: under way, or NULL */
	struct order *order; /* spill_recover.c: of what is being told, or NULL */
	struct kill_table *kills; /* found by the scan, for what is told; or NULL */
	uint32_t n_order, order_at;

	struct segment *segments;
	uint32_t n_segments; /* as the capacity allows */
	uint32_t n_present; /* the file reaches so far */
	uint32_t open; /* or SPILL_NO_SEGMENT */
	uint64_t next_sequence;
	uint64_t n_opened; /* segments, those that the start found included */
	uint64_t write_serial; /* writes ended */
	bool allocating;
	bool unreserved; /* no fallocate() here: room is given, or not, to each write */
	struct io_op allocate_op;
	uint64_t no_space_until_ns;

	struct transfer *transfers, *free_transfers;
	uint8_t *heads;
	struct packer *packer; /* the worker's */
	struct spill_cipher worker_cipher;
	struct spill_cipher *cipher; /* that, the worker's; NULL: the store has no key */
	struct spill_memory *pack_idle; /* spill_memory.c's: nobody has it just now */
	uint64_t pack_room; /* of all such memory, PACK_MOST at most */
	uint64_t n_pack_made; /* pieces of it so far */
	uint64_t pack_writing; /* of those that write, half of it at most */
	struct transfer *placeless, *last_placeless; /* packed, and waiting for a segment */
	const struct transfer *ended; /* whose done() is being called */
	uint64_t read_event_ns; /* last time a read ended, or the first of many began */
	unsigned n_reads;
	unsigned n_transfers, n_writes; /* n_transfers: all there are, of which half may be writes */
	unsigned n_used;
	uint64_t n_used_bytes;
	bool telling; /* inside gone(): no transfer may be started */
	bool telling_damage; /* and a scrub found it damaged */
	struct spill_stats stats;
};

#define PARTS_MAX 4u /* a record is read in so many pieces at most, */
#define PART_MIN (64u << 10) /* none much smaller */
#define PACK_MOST \
	(64u << 20) /* bytes of memory for packed or encrypted records on their way; one longer than that goes alone */

/** spill_submit() - every operation of a store that serves goes this way */
void spill_submit(struct spill *spill, struct io_op *op);
/** spill_flush_own() - as spill_flush(), for the store itself; without effect when no transfer is free */
void spill_flush_own(struct spill *spill);

#endif
