/*
 * spill.h - the store of cold blocks: a log of segments in a file
 *
 * Knows records (who am I, how long, checksums) and segments; knows nothing of namespaces' rules, slots or policy.  The
 * caller keeps for each record its place (struct spill_place) and gives a cookie by which it is told when the store lets
 * the record go.  One thread (the loop); the callbacks run inside spill_reap(), spill_write() or spill_recover().
 *
 * On disk: DIR/kvpool.store, or a block device = superblock, then segments, each with a header of its own and records: header page with the
 * record's name, place and checksums, then the data.  kvpool_spill.h has the bytes.  One vectored write puts header and
 * data down, straight from the caller's memory.  A record counts only if its header's checksum, store, segment sequence
 * and own place agree, its data only if the checksum agrees, at every read: a torn, stale or swapped record is a miss.  With a key
 * (kvpool_cipher.h) data is encrypted in the worker on its way, into memory of the store's, and decrypted where it is to be.
 * A start goes on behind the last record of the log.  Capacity is a bound on the file, superblock included.
 */
#ifndef KVPOOL_DAEMON_SPILL_H
#define KVPOOL_DAEMON_SPILL_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvpool_spill.h"

struct spill;
struct spill_keys;

enum spill_state { /* as counter spill_state */
	SPILL_OFF = 0,
	SPILL_UP = 1,
	SPILL_DOWN = 2, /* a write or flush failed, or the disk hangs; tried again with back-off by spill_tick() */
	SPILL_FULL =
		3, /* the file system is full and no segment can be had, since a write found that, until there is room */
};

typedef uint64_t spill_place; /* 0: none */
#define SPILL_STORES_MAX 16 /* whose places can be told apart */
#define SPILL_PLACE_STORE_SHIFT 60

/* Ended transfer. res 0; -EBADMSG record damaged: it is forgotten, and gone() was called just before; -EIO and other
   -errno.  @place: of the record written or read; 0 when it was not written. */
typedef void (*spill_done_fn)(void *owner, int res, spill_place place);

struct spill_opts {
	const char *dir; /* or a block device */
	bool raw; /* it is one */
	uint64_t capacity; /* bytes, at least 3 segments; 0: all of the device */
	uint64_t
		segment_bytes; /* 0: as in the store there, or chosen from the capacity (64 MiB at most, unless the hint
				   asks for more); a record longer than a segment is -EFBIG */
	uint64_t largest_block; /* hint for segment_bytes; a store in which nothing lives is made anew to hold it */
	uint32_t unit; /* of a new store; 0: as its device asks, which is for all but tests */
	unsigned depth; /* transfers at once; 0: 32 */
	unsigned close_ms; /* 0: SPILL_CLOSE_NS */
	bool use_uring;
	const cpu_set_t *cpus; /* where the store's worker runs, or NULL; looked at only by spill_open() */
	int lock_fd; /* for struct io_opts: the store's once spill_open() succeeded, which closes it */
	uint32_t
		device; /* spill_device() of the directory when a store was last there; 0: not known.  On another one no store is made
			    anew: its file system is not mounted */
	/* What is written is encrypted with the first of these, and what lies there may be with any; NULL: nothing is.  As long as the
	   store is open.  A store that was begun without is not opened with, nor the other way round: -EKEYREJECTED. */
	const struct spill_keys *keys;
	unsigned number; /* of the store among several, below SPILL_STORES_MAX: part of its places */
	void *owner;
	/* The store lets this record go: its segment is reclaimed, its flush failed, or it was found damaged.  May call
	   spill_forget(), nothing else here. */
	void (*gone)(void *owner, void *cookie);
	/* So many bytes of the log more, or less, are records of this namespace, whether they still count or not; or NULL. */
	void (*charged)(void *owner, uint64_t ns_id, int64_t bytes);
	/* Where the layers of this namespace's blocks end, whose records are then to have a checksum of each, and be told of while
	   they come; NULL: it has none.  Valid as long as a transfer of such a block is under way.  Or NULL. */
	const struct spill_layers *(*layers)(void *owner, uint64_t ns_id);
	/* The first @layers layers are there, and are right, of what spill_read() was called for by @reader; more than told
	   before, not yet all.  Its done() follows, and may bring an error all the same.  With layers() only. */
	void (*layers_came)(void *owner, void *reader, uint32_t layers);
	/* Recovery: a record was found. Return the cookie, or NULL: not wanted. A later one of the same key replaces the
	   earlier: the caller calls spill_forget() for the one it does not keep.  *spill is set by then. */
	void *(*found)(void *owner, const struct spill_record *record, spill_place place);
	/* spill_set only, of store @number, missing at the start: it is there, in the thread that has opened it, for what may wait for
	   its disk.  Then, inside spill_set_tick(), again and again as long as the answer is that there is more to do before its
	   records are told.  And: all of them are told, it serves.  Or NULL. */
	void (*opened)(void *owner, unsigned number);
	bool (*arrived)(void *owner, unsigned number);
	void (*joined)(void *owner, unsigned number);
	/* While spill_open() works through a large store, about once a second, for whoever waits; or NULL. */
	void (*progress)(void *owner, uint64_t segments_done, uint64_t segments);
};

/**
 * spill_open() - open or make the store in opts->dir and find what is in it (reads headers only)
 * Another live daemon on the same store (also by another path): -EBUSY.  Unknown format version or damaged superblock:
 * the old file is moved aside to kvpool.store.bad and a new store begun, said in @message.
 * Copies of a store directory get along: the lock is on the file.  I/O of a killed daemon that still runs holds the lock
 * too: waits up to 5 s for it.  Blocks; to be called before the loop runs.
 * @message: 256 bytes: on failure object, cause and way out; on success the engine and whether O_DIRECT is on
 * Return: 0; -EBUSY; -EINVAL; -errno of the directory or file.
 */
int spill_open(struct spill **spill, const struct spill_opts *opts, char message[256]);

/** spill_begin(), spill_tell() - the two halves of spill_open(): the first tells found() nothing and may run in any thread,
 *  the second hands over what was found.  After a failure of either there is no store. */
int spill_begin(struct spill **spill, const struct spill_opts *opts, char message[256]);
int spill_tell(struct spill **spill, char message[256]);
/** spill_tell_some() - as spill_tell(), for a loop that serves: about @n records a call, and nothing is waited for.  Until all are told
 *  the store may be read and reaped, no more.  Return: 1: there are more; 0; -errno. */
int spill_tell_some(struct spill **spill, uint64_t n, char message[256]);

/** spill_device() - on which device the directory lies. Return: 0: it is not there. */
uint32_t spill_device(const char *dir);

/** spill_peek() - whose file is there? Locks nothing, changes nothing. */
struct spill_identity {
	bool is_store; /* a superblock of this version is there, and this is what it says */
	uint8_t uuid[16];
	bool is_copy; /* it was made as another file */
	uint64_t dev, inode; /* of what the path leads to; 0, 0: nothing */
};
void spill_peek(const struct spill_opts *opts, struct spill_identity *identity);

/** spill_close() - waits for what is in flight (done() is called), flushes, closes; up to opts->close_ms for all of it.  What
 *  has not ended then is left to the end of the process, with a line in the log. */
#define SPILL_CLOSE_NS 15000000000ull
void spill_close(struct spill *spill);
/** spill_close_by() - up to @deadline_ns instead */
void spill_close_by(struct spill *spill, uint64_t deadline_ns);
/** spill_abandon() - the device of a store that is DOWN is not there any more: about @n of its records a call are told gone(), and
 *  when none is left and nothing is under way the store is freed, and nothing written.  Return: true: it was freed. */
bool spill_abandon(struct spill *spill, uint64_t n);

/**
 * spill_write() - append a record; @data stays unchanged until done
 * record->codec: SPILL_ZSTD is a wish: it goes down packed where that makes it shorter by an eighth (SPILL_SHORTER), else
 * plain.  SPILL_SAMPLE: plain, but inside done() spill_packed() tells what packing would make of it.
 * @data is block memory, 4096-byte aligned, readable up to the next 4096 bytes after record->bytes.
 * Return: 0; -EAGAIN: queue full, or the next segment is being made: try after spill_reap() returned more than 0; -EFBIG;
 *         -EINVAL: no bytes; -ENODEV: store down; -ENOSPC: no segment can be had.
 */
int spill_write(struct spill *spill, const struct spill_record *record, const void *data, void *cookie,
	spill_done_fn done, void *owner);

#define SPILL_SAMPLE 255u /* a codec that is in no record */
#define SPILL_SHORTER(pages) ((pages) - ((pages) + 7) / 8) /* most pages a packed record may have, of so many */
struct spill_packed {
	uint32_t codec; /* as it went down, or SPILL_SAMPLE */
	uint64_t bytes; /* of the block */
	uint64_t stored; /* of the record's data on disk, whole pages; SPILL_SAMPLE: as they would be, packed */
	uint64_t unpack_ns; /* SPILL_SAMPLE: CPU time to unpack it; 0: it does not get shorter */
};
/** spill_packed() - inside the done() of a write: what became of the bytes */
const struct spill_packed *spill_packed(const struct spill *spill);

/** spill_longest() - bytes of the longest record that fits a segment of this store */
uint64_t spill_longest(const struct spill *spill);

/** spill_read() - read a record's data to @data (4096-byte aligned, room up to the next 4096), checking all checksums and
 *  that it is @record.  Return: 0; -EAGAIN. */
int spill_read(struct spill *spill, spill_place place, const struct spill_record *record, void *data,
	spill_done_fn done, void *owner);

/** spill_forget() - the caller no longer knows this record (gone() is not called) */
void spill_forget(struct spill *spill, spill_place place);

/** spill_passed() - how much of the log, 0 to 1, was written since the record: at 1 its segment is the next to go, about */
double spill_passed(const struct spill *spill, spill_place place);

/** spill_give_up() - let the oldest full segment go in which all that was written is of namespaces that agree. Return: there was one. */
bool spill_give_up(struct spill *spill, bool (*agrees)(void *owner, uint64_t ns_id), void *owner);

/** spill_flush() - all writes done so far become durable. done(owner, res, 0). Return: 0; -EAGAIN. */
int spill_flush(struct spill *spill, spill_done_fn done, void *owner);

/** spill_drop() - records of the namespace (0: of all) written before this call no longer count at the next start; durable
 *  when done(owner, res, 0) is called.  The caller forgets those it knows.  Return: 0; -EBUSY: one is under way; -ENODEV:
 *  store down; -ENOSPC: marks of too many namespaces, drop all; -ENOMEM. */
int spill_drop(struct spill *spill, uint64_t ns_id, spill_done_fn done, void *owner);

/** spill_kill() - no record of these keys that was written before this call counts at a later start, though the store knows of none;
 *  the caller forgets those it knows.  So from done(owner, 0, 0) on, whatever becomes of the process; a power cut may undo it until a
 *  flush that begins after that, and a flush that fails undoes it, as it does what was written.
 *  @n: SPILL_KILLS_MAX at most. Return: 0; -ENOENT: nothing was ever written here; as spill_write(); -ENOMEM. */
int spill_kill(struct spill *spill, const struct spill_kill *kills, uint32_t n, spill_done_fn done, void *owner);

/** spill_scrub_rate() - bytes a second that are read again in the background to find damage; 0: none */
void spill_scrub_rate(struct spill *spill, uint64_t bytes_per_s);
/** spill_scrub_now() - a pass from the beginning, at this rate. Return: bytes in it. */
uint64_t spill_scrub_now(struct spill *spill, uint64_t bytes_per_s);
/** spill_telling_damage() - inside gone(): is it because a scrub found the record damaged? */
bool spill_telling_damage(const struct spill *spill);

int spill_fd(const struct spill *spill); /* readable: call spill_reap() */
/** spill_reap() - work on what has ended. Return: transfers ended, the store's own included. */
unsigned spill_reap(struct spill *spill);
/** spill_wait() - as spill_reap(), blocking up to @deadline_ns: for start, drain and tests */
unsigned spill_wait(struct spill *spill, uint64_t deadline_ns);
/** spill_writing() - blocks of a namespace that are being written to it; spill_reading() - read from it */
unsigned spill_writing(const struct spill *spill, uint64_t ns_id);
unsigned spill_reading(const struct spill *spill, uint64_t ns_id);
/** spill_stalled() - are transfers under way, of which none has ended for @ns? */
bool spill_stalled(const struct spill *spill, uint64_t ns);
/** spill_hung() - for so long that the store is down for it, and what is read may never come */
bool spill_hung(const struct spill *spill);
/** spill_tick() - about once a second: brings a store that went down back up (a probe write with back-off), and segments
 *  in which something failed back into use once a probe has proved them good */
void spill_tick(struct spill *spill);

struct spill_stats {
	enum spill_state state;
	bool takes_writes; /* UP; FULL for so long that the next write may see whether there is room again */
	bool uring, direct, encrypted;
	int last_errno;
	int64_t since; /* seconds since the epoch: of the state, 0: since the start */
	uint64_t queued_bytes; /* of the transfers in flight */
	uint64_t capacity; /* as configured, or what the file system gives of it */
	uint64_t used_bytes, live_bytes, live_records, in_flight;
	double read_ns_per_byte; /* at which plain records came lately, all together; 0: not known yet */
	uint64_t writes, write_bytes, reads, read_bytes, write_errors, read_errors, damaged, skipped, reclaimed;
	uint64_t scrub_bytes, scrub_passes, scrub_damaged;
	char message
		[256]; /* state DOWN or FULL: path, errno, since when; UP, but its file system is full: that; else empty */
};
void spill_stats(const struct spill *spill, struct spill_stats *stats);

#endif
