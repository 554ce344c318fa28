/*
 * spill_raw.c - a block device as the file of a spill store: who may have it, whether it may be written to, emptying it
 *
 * Runs only at a start, synchronously, for spill_file.c.  The device is opened with O_EXCL, so that neither a mount nor
 * another daemon, by whatever name, has it at the same time, and flock()ed, for kvctl store, but shared: udev looks at
 * devices too.  Nobody is to lose what lies on a device by a typo: one that is not a store of ours is begun only if its
 * first and last MiB are zeroes.
 *
 * All segments are there from the start, and the first page of each says whether it was ever used: so those pages are
 * zeroes before the superblock says that there is a store.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault.h"
#include "loop.h"
#include "spill_store.h"

#define MIB (1u << 20)

static int raw_refused(const struct spill_file *file, int err, char message[256])
{
	const char *way_out =
		err == ENOENT || err == ENXIO ? "is it plugged in? or change --spill"
		: err == EBUSY ? "it is mounted, or another program has it (lsblk shows what): change --spill"
		: err == EACCES || err == EPERM
			? "give it to the daemon's user (a udev rule with OWNER=); in a unit, PrivateDevices=no and DeviceAllow="
		: err == EROFS ? "it is read-only: make it writable (blockdev --setrw), or change --spill"
			       : "change --spill";

	snprintf(message, 256, "cannot open spill store %.70s: %s; %s", file->path, strerror(err), way_out);
	return -err;
}

int spill_raw_path(struct spill_file *file, const char *path)
{
	char *real = realpath(path, NULL); /* names by serial number are symbolic links */
	int n = snprintf(file->path, sizeof(file->path), "%s", real ? real : path);

	free(real);
	return n >= (int)sizeof(file->path) - 8 ? -ENAMETOOLONG : 0;
}

/* Some drivers let nobody open such a device to write, the others refuse each write: it looks like missing rights. */
static bool raw_is_read_only(const struct spill_file *file)
{
	int fd = file->fd < 0 ? open(file->path, O_RDONLY | O_CLOEXEC) : file->fd, read_only = 0;

	if (fd < 0 || ioctl(fd, BLKROGET, &read_only) < 0)
		read_only = 0;
	if (fd >= 0 && fd != file->fd)
		close(fd);
	return read_only;
}

int spill_raw_open(struct spill_file *file, char message[256])
{
	/* what a killed daemon had under way keeps it a moment longer; a mount, or a daemon that lives, for ever */
	uint64_t end = loop_now() + SPILL_SECOND;
	struct stat st;
	int err;

	if (stat(file->path, &st) < 0)
		return raw_refused(file, errno, message);
	if (!S_ISBLK(st.st_mode)) {
		snprintf(message, 256,
			"spill store %.120s is no block device: give a directory outside /dev, or a device",
			file->path);
		return -ENOTBLK;
	}
	while ((file->fd = open(file->path, O_RDWR | O_EXCL | O_CLOEXEC)) < 0 && errno == EBUSY && loop_now() < end)
		usleep(10000);
	err = file->fd < 0 ? errno : 0;
	if ((!err || err == EACCES || err == EPERM) && raw_is_read_only(file))
		err = EROFS;
	return err ? raw_refused(file, err, message) : 0;
}

int spill_raw_capacity(const struct spill_file *file, uint64_t *capacity, char message[256])
{
	uint64_t bytes;

	if (ioctl(file->fd, BLKGETSIZE64, &bytes) < 0)
		return raw_refused(file, errno, message);
	if (!*capacity)
		*capacity = bytes;
	if (bytes < SPILL_CAPACITY_MIN) {
		snprintf(message, 256,
			"spill store %.80s has %" PRIu64
			" bytes, a store needs %llu (16M) at least: give a larger device",
			file->path, bytes, SPILL_CAPACITY_MIN);
		return -EINVAL;
	}
	if (*capacity <= bytes)
		return 0;
	snprintf(message, 256,
		"spill store %.80s has %" PRIu64 " bytes, --spill asks for %" PRIu64
		" of them: give less, or no SIZE for all there is",
		file->path, bytes, *capacity);
	return -EINVAL;
}

uint32_t spill_raw_alignment(int fd)
{
	int bytes = 0;

	return ioctl(fd, BLKSSZGET, &bytes) < 0 || bytes <= 0 ? 0 : (uint32_t)bytes;
}

uint32_t spill_raw_sector(int fd)
{
	unsigned int bytes = 0;

	return ioctl(fd, BLKPBSZGET, &bytes) < 0 ? 0 : bytes;
}

/* Return: 1: nothing but zeroes from @off on, for @n bytes; 0: *at is not; -errno. */
static int raw_is_zero(int fd, uint64_t off, uint64_t n, uint64_t *at)
{
	_Alignas(SPILL_PAGE) uint8_t page[SPILL_PAGE];

	for (uint64_t end = off + n; off < end; off += sizeof(page)) {
		ssize_t got = pread(fd, page, sizeof(page), (off_t)off);

		if (got != (ssize_t)sizeof(page))
			return got < 0 ? -errno : -EIO;
		for (unsigned i = 0; i < sizeof(page); i++)
			if (page[i]) {
				*at = off + i;
				return 0;
			}
	}
	return 1;
}

/* Both copies of the superblock are damaged, but one of them was ours. */
static bool raw_was_ours(int fd)
{
	_Alignas(SPILL_PAGE) uint8_t page[SPILL_PAGE];
	uint64_t magic;

	for (unsigned copy = 0; copy < 2; copy++) {
		if (pread(fd, page, sizeof(page), copy * SPILL_PAGE) != (ssize_t)sizeof(page))
			continue;
		memcpy(&magic, page, sizeof(magic));
		if (le64toh(magic) == SPILL_SUPER_MAGIC)
			return true;
	}
	return false;
}

int spill_raw_may_begin(const struct spill_file *file, int why, char note[128], char message[256])
{
	uint64_t bytes, at = 0;
	int r;

	if (why == -EPROTONOSUPPORT) {
		snprintf(message, 256,
			"spill store %.60s is of another version: start the kvpoold that made it, or, if none of it is wanted, empty it: blkdiscard -z %.60s",
			file->path, file->path);
		return why;
	}
	if (raw_was_ours(file->fd)) {
		snprintf(note, 128, "; begun anew: its superblock is damaged");
		return 0;
	}
	if (ioctl(file->fd, BLKGETSIZE64, &bytes) < 0)
		return raw_refused(file, errno, message);
	bytes = bytes / SPILL_PAGE * SPILL_PAGE;
	r = raw_is_zero(file->fd, 0, bytes < MIB ? bytes : MIB, &at);
	if (r > 0 && bytes > MIB)
		r = raw_is_zero(file->fd, bytes - MIB, MIB, &at);
	if (r < 0)
		return raw_refused(file, -r, message);
	if (r > 0) {
		snprintf(note, 128, "; a new store: nothing was there");
		return 0;
	}
	snprintf(message, 256,
		"spill store %.40s: the device holds something else (byte %" PRIu64
		"); if none of it is wanted: wipefs -a %.40s, then blkdiscard -z %.40s",
		file->path, at, file->path, file->path);
	return -EEXIST;
}

static int raw_zero_page(int fd, uint64_t off)
{
	static const _Alignas(SPILL_PAGE) uint8_t zeroes[SPILL_PAGE];
	ssize_t n = pwrite(fd, zeroes, sizeof(zeroes), (off_t)off);

	return (int)FAULT_INT("spill.raw.zero", n == (ssize_t)sizeof(zeroes) ? 0 : n < 0 ? -errno : -EIO);
}

int spill_raw_unuse(const struct spill_file *file, uint64_t first, uint64_t n)
{
	int r = 0;

	for (uint64_t i = first; i < n && r == 0; i++)
		r = raw_zero_page(file->fd, SPILL_SUPER_AREA + i * file->super.segment_bytes);
	if (r == 0 && first < n && fdatasync(file->fd) < 0)
		r = -errno;
	return r;
}

int spill_raw_forget_super(const struct spill_file *file)
{
	int r = raw_zero_page(file->fd, (file->super.start + 1) % 2 * SPILL_PAGE);

	return r < 0 ? r : fdatasync(file->fd) < 0 ? -errno : 0;
}
