/*
 * spill_file.c - the file of a spill store: who may have it, what it is, and how it wants its I/O
 *
 * Runs only at start and end, synchronously.  The file is opened once and keeps its open file description, so the flock
 * on it lasts exactly as long as something can still write through it: a killed daemon's I/O in flight included.
 */
#include "spill_store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fault.h"
#include "loop.h"

#define FILE_LOCK_WAIT_NS (5 * SPILL_SECOND)

/* ---- lock ---- */

/* The later of the two copies that is good. Return: 0; -EPROTONOSUPPORT; -EBADMSG: none. */
static int file_read_super(int fd, struct spill_super *super)
{
	_Alignas(SPILL_PAGE) uint8_t page[SPILL_PAGE];
	int result = -EBADMSG;

	for (unsigned copy = 0; copy < 2; copy++) {
		struct spill_super s;
		int r;

		if (pread(fd, page, sizeof(page), copy * SPILL_PAGE) != (ssize_t)sizeof(page))
			continue;
		r = spill_super_decode(page, &s);
		if (r == 0 && (result != 0 || s.start > super->start))
			*super = s;
		if (r == 0 || (result != 0 && r == -EPROTONOSUPPORT))
			result = r;
	}
	return result;
}

/* Alive, as far as can be seen: not a zombie.  In another pid namespace the number means nothing; then it looks dead. */
static bool pid_lives(uint64_t pid)
{
	char path[64], state = 'Z';
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%" PRIu64 "/stat", pid);
	f = fopen(path, "re");
	if (!f)
		return false;
	if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 'Z';
	fclose(f);
	return state != 'Z' && state != 'X';
}

static int file_lock_refused(struct spill_file *file, uint64_t pid, char message[256])
{
	if (pid == (uint64_t)getpid()) {
		snprintf(message, 256,
			"spill store %.120s is in use by process %" PRIu64
			", this one: two --spill lead to one directory, leave one out",
			file->path, pid);
		return -EBUSY;
	}
	snprintf(message, 256,
		"spill store %.120s is in use by process %" PRIu64
		"; give each daemon a spill directory of its own, or stop that one",
		file->path, pid);
	return -EBUSY;
}

/* One owner for a file, by whatever path.  I/O of a dead owner ends, so it is waited for; a living owner is not.
   A device has one owner by O_EXCL.  udev passes over one that is locked against its look, and its queue would not get empty. */
static int file_lock(struct spill_file *file, char message[256])
{
	int how = (file->raw ? LOCK_SH : LOCK_EX) | LOCK_NB;
	uint64_t start = loop_now(), wait_ns = FILE_LOCK_WAIT_NS;
	struct spill_super super = {.pid = 0};
	bool said = false;

	while (flock(file->fd, how) < 0) {
		if (errno != EWOULDBLOCK && errno != EINTR) {
			snprintf(message, 256, "cannot lock spill store %.150s: %s", file->path, strerror(errno));
			return -errno;
		}
		file_read_super(file->fd, &super);
		if (pid_lives(super.pid))
			wait_ns = SPILL_SECOND / 2; /* no more than a process needs to end */
		if (loop_now() - start >= wait_ns)
			return file_lock_refused(file, super.pid, message);
		if (!said && loop_now() - start > SPILL_SECOND / 4) {
			said = true;
			log_info("waiting for the lock of spill store %s, held by process %" PRIu64 " or its last I/O",
				file->path, super.pid);
		}
		usleep(10000);
	}
	return 0;
}

/* ---- open ---- */

static int file_open_refused(const struct spill_file *file, int err, char message[256])
{
	const char *way_out =
		err == ENOENT  ? "make the directory, or change --spill"
		: err == EROFS ? "it is on a read-only file system: change --spill, or in a unit ReadWritePaths="
		: err == EACCES || err == EPERM
			? "give the daemon's user the directory; in a unit, StateDirectory= or ReadWritePaths="
		: err == ELOOP			 ? "it must be a plain file, not a symbolic link"
		: err == ENOSPC || err == EDQUOT ? "make room, or change --spill"
						 : "change --spill";

	snprintf(message, 256, "cannot open spill store %.100s: %s; %s", file->path, strerror(err), way_out);
	return -err;
}

uint32_t spill_device(const char *dir)
{
	struct stat st;

	/* as the kernel numbers them; 0 is no device with a file system */
	return stat(dir, &st) < 0 ? 0 : major(st.st_dev) << 20 | (minor(st.st_dev) & 0xfffff);
}

/* Nothing is there, and another device than the one a store was on: that one's file system is not mounted. */
static int file_check_device(const struct spill_file *file, const struct spill_opts *opts, char message[256])
{
	uint32_t device = spill_device(opts->dir);

	if (!opts->device || !device || device == opts->device || access(file->path, F_OK) == 0)
		return 0;
	snprintf(message, 256,
		"%.80s is not on the device the store there was on, and has none: is its file system not mounted? "
		"To begin a new store there: touch kvpool.store in it, as the daemon's user",
		opts->dir);
	return -ENODEV;
}

static int file_open_locked(struct spill_file *file, char message[256])
{
	struct stat ours, there;
	int r;

	for (unsigned tries = 0; tries < 100; tries++) {
		file->fd = open(file->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
		if (file->fd < 0)
			return file_open_refused(file, errno, message);
		if (fstat(file->fd, &ours) < 0 || !S_ISREG(ours.st_mode) || ours.st_uid != geteuid()) {
			snprintf(message, 256,
				"spill store %.120s is not a plain file of uid %u; remove it or change --spill",
				file->path, (unsigned)geteuid());
			return -EPERM;
		}
		/* that was against a FIFO in its place; with it the ring would not wait for the disk */
		fcntl(file->fd, F_SETFL, fcntl(file->fd, F_GETFL) & ~O_NONBLOCK);
		r = file_lock(file, message);
		if (r < 0)
			return r;
		/* moved aside by the one who had the lock before us? */
		if (stat(file->path, &there) == 0 && there.st_ino == ours.st_ino && there.st_dev == ours.st_dev) {
			if (ours.st_mode & 077)
				fchmod(file->fd, 0600); /* prompts lie in it */
			return 0;
		}
		close(file->fd);
		file->fd = -1;
	}
	snprintf(message, 256, "spill store %.150s changes under our hands; who else works there?", file->path);
	return -EBUSY;
}

/* ---- superblock ---- */

static uint64_t count_segments(uint64_t capacity, uint64_t segment_bytes)
{
	return capacity <= SPILL_SUPER_AREA ? 0 : (capacity - SPILL_SUPER_AREA) / segment_bytes;
}

/* An eighth of the capacity, 64 MiB at most; but a few of the longest records we know of. */
static uint64_t choose_segment_bytes(const struct spill_opts *opts)
{
	uint64_t most = count_segments(opts->capacity, 1) / 3 / SPILL_PAGE * SPILL_PAGE;
	uint64_t record = SPILL_PAGE + spill_pages(opts->largest_block);
	uint64_t bytes = count_segments(opts->capacity, 1) / 8 / SPILL_PAGE * SPILL_PAGE; /* of what is left for them */

	if (opts->segment_bytes)
		return spill_pages(opts->segment_bytes);
	if (bytes > 64 << 20)
		bytes = 64 << 20;
	if (opts->largest_block) {
		/* no more than the rest of a record lies idle at the end, beside the seal */
		uint64_t n = bytes > record ? (bytes - SPILL_PAGE) / record : 1;

		n = n ? n : 1;
		bytes = SPILL_PAGE + n * record + seal_bytes(n);
	}
	if (bytes < SPILL_SEGMENT_MIN)
		bytes = SPILL_SEGMENT_MIN;
	if (bytes > most)
		bytes = most;
	return spill_pages(bytes);
}

/* Is the store as it is what was asked for? */
static bool layout_fits(const struct spill_super *super, const struct spill_opts *opts)
{
	if (opts->segment_bytes && super->segment_bytes != spill_pages(opts->segment_bytes))
		return false;
	return count_segments(opts->capacity, super->segment_bytes) >= 3;
}

static int file_write_super(struct spill_file *file)
{
	_Alignas(SPILL_PAGE) uint8_t page[SPILL_PAGE];
	ssize_t n;

	spill_super_encode(page, &file->super);
	n = pwrite(file->fd, page, sizeof(page), (off_t)(file->super.start % 2 * SPILL_PAGE));
	if (n != (ssize_t)sizeof(page))
		return n < 0 ? -errno : -ENOSPC;
	return fdatasync(file->fd) < 0 ? -errno : 0;
}

/* What is written from now on needs this key to be read. Return: 0; -ENOSPC. */
static int file_add_key(struct spill_file *file, const struct spill_opts *opts)
{
	struct spill_super *super = &file->super;
	uint32_t i = 0;

	if (!opts->keys)
		return 0;
	while (i < super->n_keys && super->key_ids[i] != opts->keys->keys[0].id)
		i++;
	if (i == SPILL_KEYS_MAX)
		return -ENOSPC;
	super->key_ids[i] = opts->keys->keys[0].id;
	if (i == super->n_keys)
		super->n_keys++;
	return 0;
}

/* Is all that lies there to be read with what was given?  A start that went on without it would lose it, or leave in plain what
   is to be encrypted. */
static int file_check_keys(struct spill_file *file, const struct spill_opts *opts, char message[256])
{
	const struct spill_super *super = &file->super;
	const char *way_out = file->raw ? "empty it: blkdiscard -z" : "remove it: rm";

	if (opts->keys && !super->n_keys) {
		snprintf(message, 256,
			"spill store %.50s was written without a key: start without spill-key-file, or, if none of it is wanted, %s %.50s",
			file->path, way_out, file->path);
		return -EKEYREJECTED;
	}
	for (uint32_t i = 0; i < super->n_keys; i++) {
		if (spill_key_find(opts->keys, super->key_ids[i]))
			continue;
		snprintf(message, 256,
			"spill store %.50s was written with key %016" PRIx64
			", which %s: give it, or, if none of it is wanted, %s %.50s",
			file->path, super->key_ids[i],
			opts->keys ? "is in no spill-key-file given" : "spill-key-file is to name", way_out,
			file->path);
		return -EKEYREJECTED;
	}
	if (file_add_key(file, opts) < 0) {
		snprintf(message, 256,
			"spill store %.60s holds records of %u keys: go on with the last one first in spill-key-file until a start says that others may be left out",
			file->path, SPILL_KEYS_MAX);
		return -EKEYREJECTED;
	}
	return 0;
}

/* Nothing can lie in it: no segment was ever made, or kvctl store drop gave the room back. */
static bool file_is_unused(const struct spill_file *file, const struct stat *st)
{
	return !file->raw && st->st_size <= (off_t)SPILL_SUPER_AREA;
}

/* What the device, or the file system, writes without reading first: the unit of a new store. */
static uint32_t choose_unit(const struct spill_file *file, const struct spill_opts *opts)
{
	uint32_t unit = SPILL_UNIT_MIN, wish = 0;
	struct statvfs fs;

	if (file->raw)
		wish = spill_raw_sector(file->fd);
	else if (fstatvfs(file->fd, &fs) == 0 && fs.f_bsize <= SPILL_PAGE)
		wish = (uint32_t)fs.f_bsize;
	if (opts->unit)
		wish = opts->unit;
	while (unit < SPILL_PAGE && (!wish || unit < wish))
		unit *= 2;
	return unit;
}

static int file_begin_store(struct spill_file *file, const struct spill_opts *opts)
{
	uint64_t start = file->raw ? file->super.start : 0; /* its superblock is to be the later one */
	int r;

	file->super = (struct spill_super){
		.segment_bytes = choose_segment_bytes(opts), .start = start, .unit = choose_unit(file, opts)};
	file_add_key(file, opts);
	if (getrandom(file->super.uuid, sizeof(file->super.uuid), 0) != (ssize_t)sizeof(file->super.uuid))
		return -EIO;
	if (file->raw)
		return spill_raw_unuse(file, 0, count_segments(opts->capacity, file->super.segment_bytes));
	if (ftruncate(file->fd, 0) < 0)
		return -errno;
	r = posix_fallocate(file->fd, 0, SPILL_SUPER_AREA);
	return -r;
}

/* A file that is no store of ours stays for whoever wants to look at it. */
static int file_move_aside(struct spill_file *file, const char *why, char note[128], char message[256])
{
	char aside[sizeof(file->path) + 8];

	snprintf(aside, sizeof(aside), "%s.bad", file->path);
	if (rename(file->path, aside) < 0) {
		snprintf(message, 256, "spill store %.80s is %s and cannot be moved aside: %s; remove it", file->path,
			why, strerror(errno));
		return -errno;
	}
	snprintf(note, 128, "; the old file is %s and was moved aside to " SPILL_STORE_NAME ".bad", why);
	close(file->fd);
	file->fd = -1;
	return file_open_locked(file, message);
}

/* A device that became larger has segments that were never ours. */
static int file_extend(struct spill_file *file, const struct spill_opts *opts)
{
	if (!file->raw)
		return 0;
	return spill_raw_unuse(file, count_segments(file->super.capacity, file->super.segment_bytes),
		count_segments(opts->capacity, file->super.segment_bytes));
}

/* There is no superblock, @why. */
static int file_begin_where_none_is(
	struct spill_file *file, const struct spill_opts *opts, int why, bool empty, char note[128], char message[256])
{
	int r = 0;

	if (file->raw)
		r = spill_raw_may_begin(file, why, note, message);
	else if (!empty)
		r = file_move_aside(file, why == -EPROTONOSUPPORT ? "of another version" : "damaged", note, message);
	else /* an operator may know better: a file system that is not mounted looks like this */
		snprintf(note, 128, "; a new store: nothing was there");
	if (r < 0)
		return r;
	r = file_begin_store(file, opts);
	return r < 0 ? file_open_refused(file, -r, message) : 0;
}

static int file_settle_super(struct spill_file *file, const struct spill_opts *opts, char note[128], char message[256])
{
	struct stat st;
	bool begun = true;
	int r = file_read_super(file->fd, &file->super);

	if (fstat(file->fd, &st) < 0)
		return -errno;
	if (r < 0) {
		r = file_begin_where_none_is(file, opts, r, st.st_size == 0, note, message);
		if (r < 0)
			return r;
	} else if (file_is_unused(file, &st) && (opts->keys != NULL) != (file->super.n_keys != 0)) {
		r = file_begin_store(file, opts);
	} else if ((r = file_check_keys(file, opts, message)) < 0) {
		return r;
	} else if (!layout_fits(&file->super, opts)) {
		snprintf(note, 128, "; begun anew: its segments of %" PRIu64 " bytes do not fit what is configured",
			file->super.segment_bytes);
		r = file_begin_store(file, opts);
	} else {
		r = file_extend(file, opts);
		begun = false;
	}
	if (r == 0) {
		if (file->super.inode && file->super.inode != st.st_ino)
			snprintf(note, 128, "; a copy, or moved here from elsewhere: taken as it is");
		file->super.inode = S_ISREG(st.st_mode) ? st.st_ino : 0;
		file->super.capacity = opts->capacity;
		file->super.start++;
		file->super.pid = (uint64_t)getpid();
		r = file_write_super(file);
	}
	if (r == 0 && begun && file->raw)
		r = spill_raw_forget_super(file);
	if (r == 0 && fstat(file->fd, &st) == 0 && (uint64_t)st.st_size > opts->capacity &&
		ftruncate(file->fd, (off_t)opts->capacity) < 0)
		r = -errno;
	if (r < 0)
		return file_open_refused(file, -r, message);
	return 0;
}

/* ---- O_DIRECT ---- */

void spill_file_leave_direct(struct spill_file *file, int err)
{
	int flags = fcntl(file->fd, F_GETFL);

	if (!file->direct)
		return;
	file->direct = false;
	fcntl(file->fd, F_SETFL, flags & ~O_DIRECT);
	log_warn(
		"spill store %s: O_DIRECT is refused (%s); going on through the page cache", file->path, strerror(err));
}

/* What the file asks for, where the kernel tells: 0: unknown; UINT32_MAX: no O_DIRECT. */
static uint32_t direct_alignment(int fd)
{
	struct statx stx;

#ifdef STATX_DIOALIGN
	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 && (stx.stx_mask & STATX_DIOALIGN)) {
		uint32_t align = stx.stx_dio_offset_align > stx.stx_dio_mem_align ? stx.stx_dio_offset_align
										  : stx.stx_dio_mem_align;

		return (uint32_t)FAULT_INT("spill.align", align ? align : UINT32_MAX);
	}
#else
	(void)stx;
#endif
	return (uint32_t)FAULT_INT("spill.align", spill_raw_alignment(fd));
}

/* Write and read as records do: memory at a page, places that are multiples of the unit and of nothing larger. */
static int direct_try(int fd, uint32_t unit)
{
	uint8_t *pages = aligned_alloc(4 * SPILL_PAGE, 4 * SPILL_PAGE), *page;
	off_t off = SPILL_PROBE_OFF + unit % SPILL_PAGE;
	int r = 0;

	if (!pages)
		return -ENOMEM;
	page = pages + SPILL_PAGE;
	memset(page, 0x5a, unit);
	errno = 0;
	if (pwrite(fd, page, unit, off) != (ssize_t)unit || pread(fd, page, unit, off) != (ssize_t)unit)
		r = errno ? -errno : -EIO;
	free(pages);
	return (int)FAULT_INT("spill.direct", r);
}

/* @why: 64 bytes: why not. */
static void file_settle_direct(struct spill_file *file, char why[64])
{
	int flags = fcntl(file->fd, F_GETFL), r;
	uint32_t align;

	if (FAULT_INT("spill.direct.flag", 0) < 0 || fcntl(file->fd, F_SETFL, flags | O_DIRECT) < 0) {
		snprintf(why, 64, "O_DIRECT refused by this file system");
		return;
	}
	align = direct_alignment(file->fd);
	r = align == UINT32_MAX ? -EINVAL : align > file->super.unit ? -ERANGE : direct_try(file->fd, file->super.unit);
	if (r == 0) {
		file->direct = true;
		return;
	}
	fcntl(file->fd, F_SETFL, flags & ~O_DIRECT);
	if (r == -ERANGE)
		snprintf(why, 64, "O_DIRECT would need %u-byte alignment", align);
	else
		snprintf(why, 64, "O_DIRECT refused: %.40s", strerror(-r));
}

/* A store that was copied or moved: its records share what is written at once here, one with the next. */
static void file_warn_of_sectors(struct spill_file *file, const struct spill_opts *opts)
{
	uint32_t here = choose_unit(file, opts);

	file->small_unit = file->super.unit < here;
	if (file->small_unit)
		log_warn(
			"spill store %s was made where sectors have %u bytes, here they have %u: it serves, but each write takes a read before it, and a power cut may take a record beside the one that was being written; when nothing is left in it (kvctl store drop), a start makes it anew for these",
			file->path, file->super.unit, here);
}

/* Is there room for all of it? If not it makes do with less, but the operator meant something else. */
static void file_warn_of_room(const struct spill_file *file, uint64_t capacity)
{
	struct statvfs fs;
	struct stat st;
	uint64_t have, room, n;

	if (file->raw || fstat(file->fd, &st) < 0 || fstatvfs(file->fd, &fs) < 0)
		return;
	have = (uint64_t)st.st_blocks * 512;
	room = have + (uint64_t)fs.f_bavail * fs.f_frsize;
	if (room >= capacity)
		return;
	n = count_segments(room, file->super.segment_bytes);
	if (n < 2) /* each one that begins pushes out the other one's blocks, drained or not */
		log_warn(
			"spill store %s: there is room for %" PRIu64 " of its segments of %" PRIu64
			" bytes: what is written there soon pushes out what was written before: a drain keeps next to nothing",
			file->path, n, file->super.segment_bytes);
	log_warn("spill store %s is to hold %" PRIu64 " bytes, but its file system has room for %" PRIu64 " (%" PRIu64
		 " of them in use by it already): make room there, or give --spill a smaller size",
		file->path, capacity, room, have);
}

/* ---- the interface ---- */

static int file_set_path(struct spill_file *file, const struct spill_opts *opts)
{
	int n;

	file->raw = opts->raw;
	if (file->raw)
		return spill_raw_path(file, opts->dir);
	n = snprintf(file->path, sizeof(file->path), "%s/" SPILL_STORE_NAME, opts->dir);
	return n >= (int)sizeof(file->path) - 8 ? -ENAMETOOLONG : 0;
}

static int file_check_capacity(const struct spill_opts *opts, char message[256])
{
	uint64_t segment_bytes = choose_segment_bytes(opts);

	if (count_segments(opts->capacity, segment_bytes) >= 3 && segment_bytes >= SPILL_SEGMENT_MIN &&
		segment_bytes <= SPILL_SEGMENT_MAX)
		return 0;
	snprintf(message, 256,
		"spill capacity of %" PRIu64 " bytes is too small: 3 segments of %" PRIu64
		" and %u are needed; raise SIZE in --spill DIR:SIZE",
		opts->capacity, segment_bytes > SPILL_SEGMENT_MIN ? segment_bytes : SPILL_SEGMENT_MIN,
		SPILL_SUPER_AREA);
	return -EINVAL;
}

/* It is ours alone from here on, and there is room for a store. */
static int file_claim(struct spill_file *file, struct spill_opts *opts, char message[256])
{
	int r = file->raw ? spill_raw_open(file, message) : file_check_capacity(opts, message);

	if (r == 0 && !file->raw)
		r = file_check_device(file, opts, message);
	if (r < 0)
		return r;
	if (!file->raw)
		return file_open_locked(file, message);
	r = file_lock(file, message);
	if (r == 0)
		r = spill_raw_capacity(file, &opts->capacity, message);
	return r < 0 ? r : file_check_capacity(opts, message);
}

int spill_file_open(struct spill_file *file, struct spill_opts *opts, char note[128], char message[256])
{
	char why[64] = "";
	struct stat st;
	int r;

	memset(file, 0, sizeof(*file));
	file->fd = -1;
	note[0] = 0;
	if (file_set_path(file, opts) < 0) {
		snprintf(message, 256, "spill directory's name is too long: %.100s...", opts->dir);
		return -ENAMETOOLONG;
	}
	r = file_claim(file, opts, message);
	if (r == 0)
		r = file_settle_super(file, opts, note, message);
	if (r == 0 && fstat(file->fd, &st) < 0)
		r = -errno;
	if (r < 0) {
		spill_file_close(file);
		return r;
	}
	file->bytes = file->raw ? opts->capacity : (uint64_t)st.st_size;
	file_warn_of_room(file, opts->capacity);
	file_warn_of_sectors(file, opts);
	file_settle_direct(file, why);
	snprintf(message, 256, "%s", file->direct ? "O_DIRECT" : why);
	if (!file->direct)
		snprintf(message + strlen(message), 256 - strlen(message), ", so through the page cache");
	return 0;
}

void spill_peek(const struct spill_opts *opts, struct spill_identity *identity)
{
	struct spill_file file = {.fd = -1};
	struct spill_super super;
	struct stat st;

	memset(identity, 0, sizeof(*identity));
	if (file_set_path(&file, opts) == 0)
		file.fd = open(file.path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (file.fd < 0 || fstat(file.fd, &st) < 0) {
		spill_file_close(&file);
		return;
	}
	identity->dev = S_ISBLK(st.st_mode) ? st.st_rdev : st.st_dev;
	identity->inode = S_ISBLK(st.st_mode) ? UINT64_MAX : st.st_ino; /* by another name it is the same device */
	if ((S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)) && file_read_super(file.fd, &super) == 0) {
		identity->is_store = true;
		memcpy(identity->uuid, super.uuid, sizeof(identity->uuid));
		identity->is_copy = super.inode && super.inode != st.st_ino;
	}
	spill_file_close(&file);
}

int spill_file_remake(struct spill_file *file, const struct spill_opts *opts)
{
	uint64_t start = file->super.start, inode = file->super.inode;
	char why[64];
	int r;

	if (choose_segment_bytes(opts) == file->super.segment_bytes && !file->small_unit)
		return 0;
	r = file_begin_store(file, opts);
	if (r < 0)
		return r;
	file->small_unit = false;
	file->bytes = file->raw ? opts->capacity : SPILL_SUPER_AREA;
	file->super.capacity = opts->capacity;
	file->super.start = start + 1;
	file->super.inode = inode;
	file->super.pid = (uint64_t)getpid();
	r = file_write_super(file);
	if (r == 0 && file->raw)
		r = spill_raw_forget_super(file);
	if (r < 0)
		return r;
	if (!file->direct) /* its sectors may have been what O_DIRECT was refused for */
		file_settle_direct(file, why);
	return 1;
}

int spill_file_pass_keys(struct spill_file *file, const struct spill_opts *opts, const uint64_t *used, uint32_t n)
{
	struct spill_super was = file->super;
	struct spill_super *super = &file->super;

	super->n_keys = 0;
	file_add_key(file, opts);
	for (uint32_t i = 0; i < n; i++)
		if (used[i] != opts->keys->keys[0].id && super->n_keys < SPILL_KEYS_MAX)
			super->key_ids[super->n_keys++] = used[i];
	for (uint32_t i = 0; i < was.n_keys; i++) {
		bool there = false;

		for (uint32_t k = 0; k < super->n_keys; k++)
			there |= super->key_ids[k] == was.key_ids[i];
		if (!there)
			log_info("spill store %s: nothing is left in it that needs key %016" PRIx64
				 ": that one may be left out of spill-key-file",
				file->path, was.key_ids[i]);
	}
	if (super->n_keys == was.n_keys)
		return 0;
	super->start++; /* to the older copy */
	return file_write_super(file);
}

void spill_file_close(struct spill_file *file)
{
	if (file->fd >= 0)
		close(file->fd);
	file->fd = -1;
}
