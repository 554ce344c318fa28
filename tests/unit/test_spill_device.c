/* test_spill_device.c - the spill store on real small file systems: full, with 4096-byte sectors, failing */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <linux/fs.h>
#include <linux/loop.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>

#include "../../daemon/spill_set.h"
#include "spill_fixture.h"

#define MIB (1ull << 20)
#define SIZE 500000

struct place {
	struct fixture *f;
	char base[80], dir[100], backing[100], device[32];
	int loop_fd;
	bool mounted_base, mounted_dir;
};

static int setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	p->f = fixture_new(*state, 64 * MIB, 4 * MIB);
	p->f->opts.unit = 0; /* as the device asks */
	p->loop_fd = -1;
	snprintf(p->base, sizeof(p->base), "%s/base", p->f->dir);
	snprintf(p->dir, sizeof(p->dir), "%s/mount", p->f->dir);
	snprintf(p->backing, sizeof(p->backing), "%s/disk", p->base);
	mkdir(p->base, 0700);
	mkdir(p->dir, 0700);
	p->f->opts.dir = p->dir;
	snprintf(p->f->path, sizeof(p->f->path), "%.70s/mount/" SPILL_STORE_NAME, p->f->dir);
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct place *p = *state;

	fault_disarm();
	fixture_close(p->f);
	if (p->mounted_dir)
		umount2(p->dir, MNT_DETACH);
	if (p->loop_fd >= 0) {
		ioctl(p->loop_fd, LOOP_CLR_FD);
		close(p->loop_fd);
	}
	if (p->mounted_base)
		umount2(p->base, MNT_DETACH);
	fixture_free(p->f);
	free(p);
	return 0;
}

static void mount_tmpfs(struct place *p, const char *dir, const char *options, bool *mounted)
{
	if (mount("none", dir, "tmpfs", 0, options) < 0) {
		print_message("skipped: cannot mount a tmpfs (%s)\n", strerror(errno));
		skip();
	}
	(void)p;
	*mounted = true;
}

/* A loop device over p->backing, with that sector size. */
static void make_loop(struct place *p, uint64_t bytes, uint32_t sector)
{
	struct loop_config config = {.block_size = sector};
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), n = -1;

	if (control >= 0) {
		n = ioctl(control, LOOP_CTL_GET_FREE);
		close(control);
	}
	snprintf(p->device, sizeof(p->device), "/dev/loop%d", n);
	p->loop_fd = n < 0 ? -1 : open(p->device, O_RDWR | O_CLOEXEC);
	if (p->loop_fd < 0) {
		print_message("skipped: no loop device (%s)\n", strerror(errno));
		skip();
	}
	config.fd = (uint32_t)open(p->backing, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(ftruncate((int)config.fd, (off_t)bytes), 0);
	if (ioctl(p->loop_fd, LOOP_CONFIGURE, &config) < 0) {
		close((int)config.fd);
		close(p->loop_fd);
		p->loop_fd = -1;
		print_message("skipped: the loop device cannot be set up (%s)\n", strerror(errno));
		skip();
	}
	close((int)config.fd);
}

/* ext4 on it. */
static void mount_loop(struct place *p, uint64_t bytes, uint32_t sector)
{
	char command[300];

	make_loop(p, bytes, sector);
	snprintf(command, sizeof(command), "mkfs.ext4 -q -b 4096 -O ^has_journal -m 0 -E nodiscard %s >/dev/null 2>&1",
		p->device);
	if (system(command) != 0 || mount(p->device, p->dir, "ext4", 0, "errors=continue") < 0) {
		print_message("skipped: no ext4 on the loop device\n");
		skip();
	}
	p->mounted_dir = true;
}

/* B15 */
static void on_4096_byte_sectors_blocks_of_any_size_come_back_exact(void **state)
{
	static const uint64_t sizes[] = {1, 512, 4096, 5000, 12288, 3333, BLOCK_MAX};
	enum { N = sizeof(sizes) / sizeof(sizes[0]) };
	struct place *p = *state;
	struct fixture *f = p->f;

	mount_loop(p, 128 * MIB, 4096);
	assert_int_equal(fixture_open(f), 0);
	assert_true(stats_of(f).direct); /* asked of the file, and it does */
	for (unsigned k = 0; k < N; k++)
		assert_int_equal(put(f, k, sizes[k]), 0);
	for (unsigned k = 0; k < N; k++)
		assert_int_equal(get(f, k), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(fixture_reopen(f), 0);
	for (unsigned k = 0; k < N; k++)
		assert_int_equal(get(f, k), 0);
	assert_true(stats_of(f).direct);
	assert_int_equal(stats_of(f).write_errors + stats_of(f).read_errors + stats_of(f).damaged, 0);
}

/* Each write ends well, or with an error that says why; what is there is exact, or damaged if the disk may lie. */
static unsigned fill(struct fixture *f, unsigned n, bool may_lie)
{
	unsigned stored = 0;

	for (unsigned k = 0; k < n; k++) {
		int r = put(f, k, SIZE);

		assert_true(r == 0 || r == -ENOSPC || r == -EIO || r == -ENODEV);
		stored += r == 0;
		if (r < 0) { /* as if the time for the next try had come */
			f->spill->health.probe_at_ns = 0;
			spill_tick(f->spill);
			while (io_in_flight(f->spill->io))
				spill_wait(f->spill, loop_now() + SPILL_SECOND);
		}
		assert_true(store_adds_up(f));
	}
	for (unsigned k = 0; k < n; k++) {
		bool there = f->blocks[k].place != 0;
		int r = get(f, k);

		assert_true(there ? r == 0 || (may_lie && r == -EBADMSG) : r == -ENOENT);
	}
	return stored;
}

static void on_a_file_system_smaller_than_the_capacity_the_store_makes_do(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;

	struct log_catch log;

	mount_tmpfs(p, p->dir, "size=14m,mode=700", &p->mounted_dir);
	log = log_catch();
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(log_lines(&log, "is to hold 67108864 bytes, but its file system has room for 1"), 1);
	assert_int_equal(log_lines(&log, f->path), 1);
	fclose(log.lines);
	assert_int_equal(fill(f, 100, false), 100);
	assert_int_equal(f->spill->n_present, 3);
	assert_int_equal(stats_of(f).write_errors, 0);
	assert_non_null(strstr(stats_of(f).message, ": room for 12648448 of "));
	assert_int_equal(fixture_reopen(f), 0);
	assert_true(f->n_found >= 16);
	assert_int_equal(fill(f, 30, false), 30);
}

/* As ext4 leaves it when it has room for a part of what is asked for. */
static void a_part_of_a_segment_that_was_never_written_is_no_room(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	uint64_t used;
	struct stat st;

	mount_tmpfs(p, p->dir, "size=14m,mode=700", &p->mounted_dir);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(fill(f, 100, false), 100);
	used = stats_of(f).used_bytes;
	fixture_close(f);
	assert_int_equal(stat(f->path, &st), 0);
	assert_int_equal(truncate(f->path, st.st_size + (off_t)MIB), 0);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->spill->n_present, 3);
	assert_int_equal(stats_of(f).used_bytes, used);
	assert_int_equal(fill(f, 60, false), 60);
	assert_int_equal(f->spill->n_present, 3);
	assert_int_equal(stats_of(f).write_errors, 0);
}

static void with_room_for_one_segment_the_start_says_what_that_comes_to(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	struct log_catch log;

	mount_tmpfs(p, p->dir, "size=7m,mode=700", &p->mounted_dir);
	log = log_catch();
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(log_lines(&log, "there is room for 1 of its segments of 4194304 bytes"), 1);
	fclose(log.lines);
}

static void on_a_full_file_system_without_fallocate_it_makes_do_too(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;

	mount_tmpfs(p, p->dir, "size=14m,mode=700", &p->mounted_dir);
	fault_arm("io.allocate=-EOPNOTSUPP");
	assert_int_equal(fixture_open(f), 0);
	assert_true(fill(f, 100, false) > 60);
	for (uint32_t i = 0; i < f->spill->n_present; i++)
		assert_int_not_equal(f->spill->segments[i].state, SEGMENT_BAD);
}

static void with_no_room_for_a_superblock_the_start_is_refused(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	char fat[128];
	int fd;

	mount_tmpfs(p, p->dir, "size=1m,mode=700", &p->mounted_dir);
	snprintf(fat, sizeof(fat), "%s/fat", p->dir);
	fd = open(fat, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(posix_fallocate(fd, 0, MIB), 0);
	close(fd);
	assert_int_equal(fixture_open(f), -ENOSPC);
	assert_non_null(strstr(f->message, "No space left"));
	assert_non_null(strstr(f->message, f->path));
	unlink(fat);
	unlink(f->path);
	assert_int_equal(fixture_open(f), 0); /* one segment does not fit: full, but alive */
	assert_int_equal(put(f, 1, SIZE), -ENOSPC);
	assert_int_equal(stats_of(f).state, SPILL_FULL);
}

/* A disk whose blocks fail beyond some point: a loop device over a sparse file on a tmpfs too small for it.  It even
   lies: the loop driver calls a write that was cut short a success. */
static void on_a_disk_that_fails_in_parts_what_is_stored_is_exact(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	unsigned stored;

	mount_tmpfs(p, p->base, "size=24m,mode=700", &p->mounted_base);
	mount_loop(p, 96 * MIB, 512);
	assert_int_equal(fixture_open(f), 0);
	stored = fill(f, 120, true);
	assert_true(stored >= 20); /* 24 MiB less what ext4 wants */
	assert_true(stats_of(f).write_errors > 0);
	assert_in_range(stats_of(f).last_errno, 1, 200);
	/* the disk is mended: what was set aside is proved good, then used */
	mount("none", p->base, "tmpfs", MS_REMOUNT, "size=200m,mode=700");
	for (unsigned n = 0; n < 40; n++) {
		f->spill->health.probe_at_ns = f->spill->no_space_until_ns = 0;
		for (uint32_t i = 0; i < f->spill->n_present; i++)
			f->spill->segments[i].probe_at_ns = 0;
		spill_tick(f->spill);
		while (io_in_flight(f->spill->io))
			spill_wait(f->spill, loop_now() + SPILL_SECOND);
	}
	assert_int_equal(stats_of(f).state, SPILL_UP);
	assert_int_equal(fill(f, 150, false), 150);
	assert_int_equal(f->spill->n_present, 15);
}

/* ---- raw devices ---- */

static void given_raw(struct place *p, uint64_t bytes, uint32_t sector)
{
	make_loop(p, bytes, sector);
	p->f->opts.dir = p->device;
	p->f->opts.raw = true;
	p->f->opts.capacity = 0;
	snprintf(p->f->path, sizeof(p->f->path), "%s", p->device);
}

/* What lies there, of no file system. */
static void scribble(struct place *p, uint64_t off, uint64_t n)
{
	int fd = open(p->device, O_RDWR | O_CLOEXEC);

	memset(p->f->out, 0xa5, 65536);
	for (uint64_t at = off; at < off + n; at += 65536)
		assert_true(pwrite(fd, p->f->out, off + n - at < 65536 ? off + n - at : 65536, (off_t)at) > 0);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

static XXH128_hash_t all_of(const struct place *p)
{
	char *bytes = malloc(MIB);
	int fd = open(p->backing, O_RDONLY | O_CLOEXEC);
	XXH3_state_t *state = XXH3_createState();
	XXH128_hash_t hash;
	ssize_t n;

	XXH3_128bits_reset(state);
	while ((n = read(fd, bytes, MIB)) > 0)
		XXH3_128bits_update(state, bytes, (size_t)n);
	hash = XXH3_128bits_digest(state);
	XXH3_freeState(state);
	close(fd);
	free(bytes);
	return hash;
}

static void raw_serves(void **state, uint32_t sector)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	struct log_catch log;

	given_raw(p, 64 * MIB, sector);
	scribble(p, MIB, 62 * MIB); /* of an earlier life: neither records nor a loss */
	log = log_catch();
	assert_int_equal(fixture_open(f), 0);
	assert_non_null(strstr(f->message, "a new store: nothing was there"));
	assert_int_equal(stats_of(f).capacity, 64 * MIB);
	assert_true(stats_of(f).direct);
	assert_int_equal(f->spill->file.super.unit, sector); /* and so long are headers */
	for (unsigned k = 0; k < 60; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(f->n_found, 60);
	for (unsigned k = 0; k < 60; k++)
		assert_int_equal(get(f, k), 0);
	assert_int_equal(fill(f, 200, false), 200); /* more than it holds: the oldest segments go */
	assert_true(store_adds_up(f));
	assert_int_equal(stats_of(f).write_errors + stats_of(f).read_errors + stats_of(f).damaged, 0);
	assert_int_equal(fixture_reopen(f), 0);
	assert_true(f->n_found >= 90);
	assert_int_equal(stats_of(f).skipped, 0);
	assert_int_equal(log_lines(&log, "cannot be read any more"), 0);
	fclose(log.lines);
}

static void a_raw_device_is_a_store_of_all_its_bytes(void **state)
{
	raw_serves(state, 512);
}

static void a_raw_device_with_4096_byte_sectors_is_one_too(void **state)
{
	raw_serves(state, 4096);
}

/* The disk goes into a machine whose drives have other sectors, byte for byte. */
static void move_to(struct place *p, uint32_t sector)
{
	fixture_close(p->f);
	ioctl(p->loop_fd, LOOP_CLR_FD);
	close(p->loop_fd);
	make_loop(p, 64 * MIB, sector);
	p->f->opts.dir = p->device;
}

static void a_store_moved_to_larger_sectors_serves_says_what_it_costs_and_is_made_anew_when_empty(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	struct log_catch log;
	int dropped = 1;

	given_raw(p, 64 * MIB, 512);
	assert_int_equal(fixture_open(f), 0);
	for (unsigned k = 0; k < 60; k++)
		assert_int_equal(put(f, k, 10000 + k), 0);
	move_to(p, 4096);
	log = log_catch();
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(log_lines(&log, "was made where sectors have 512 bytes, here they have 4096: "), 1);
	fclose(log.lines);
	assert_false(stats_of(f).direct);
	assert_non_null(strstr(f->message, "O_DIRECT would need 4096-byte alignment"));
	assert_int_equal(f->n_found, 60);
	for (unsigned k = 60; k < 90; k++)
		assert_int_equal(put(f, k, 10000 + k), 0);
	assert_int_equal(fixture_reopen(f), 0);
	for (unsigned k = 0; k < 90; k++)
		assert_int_equal(get(f, k), 0);
	move_to(p, 512); /* and back */
	assert_int_equal(fixture_open(f), 0);
	assert_true(stats_of(f).direct);
	for (unsigned k = 0; k < 90; k++) {
		assert_int_equal(get(f, k), 0);
		spill_forget(f->spill, f->blocks[k].place);
	}
	assert_int_equal(spill_drop(f->spill, 0, flush_done, &dropped), 0);
	settle(f);
	while (io_in_flight(f->spill->io))
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
	assert_int_equal(dropped, 0);
	move_to(p, 4096);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->n_found, 0);
	assert_int_equal(f->spill->file.super.unit, 4096);
	assert_true(stats_of(f).direct); /* from now on, not from the next start on */
	assert_true(fcntl(f->spill->file.fd, F_GETFL) & O_DIRECT);
	assert_non_null(strstr(f->message, "made anew, so with O_DIRECT"));
	assert_int_equal(put(f, 1, SIZE), 0);
	assert_int_equal(fixture_reopen(f), 0);
	assert_true(stats_of(f).direct);
	assert_int_equal(get(f, 1), 0);
}

static void a_store_of_pages_goes_on_as_one_whatever_the_sectors_are(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;

	given_raw(p, 64 * MIB, 512);
	f->opts.unit = SPILL_PAGE; /* as every kvpoold of before made it */
	assert_int_equal(fixture_open(f), 0);
	for (unsigned k = 0; k < 20; k++)
		assert_int_equal(put(f, k, 10000 + k), 0);
	f->opts.unit = 0;
	for (unsigned again = 0; again < 2; again++) {
		assert_int_equal(fixture_reopen(f), 0);
		assert_int_equal(f->spill->file.super.unit, SPILL_PAGE);
		assert_int_equal(put(f, 20 + again, SIZE), 0);
	}
	for (unsigned k = 0; k < 22; k++)
		assert_int_equal(get(f, k), 0);
}

static void refused_and_left_alone(struct place *p, int err, const char *why)
{
	XXH128_hash_t before = all_of(p);

	assert_int_equal(fixture_open(p->f), err);
	assert_non_null(strstr(p->f->message, why));
	assert_non_null(strstr(p->f->message, p->device));
	assert_true(XXH128_isEqual(before, all_of(p)));
}

/* ---- raw devices, encrypted ---- */

static struct spill_keys device_keys[2]; /* the right one, another */

static void given_keys(void)
{
	assert_true(sodium_init() >= 0);
	for (unsigned i = 0; i < 2; i++) {
		device_keys[i].n = 1;
		memset(device_keys[i].keys[0].bytes, '1' + (int)i, SPILL_KEY_BYTES);
		spill_key_set_id(&device_keys[i].keys[0]);
	}
}

static void lies_there_in_plain(struct place *p, unsigned k, bool plain)
{
	struct block b = {.k = k, .bytes = SIZE};
	int fd = open(p->backing, O_RDONLY | O_CLOEXEC);
	char *disk = mmap(NULL, 64 * MIB, PROT_READ, MAP_SHARED, fd, 0);

	assert_true(fd >= 0 && disk != MAP_FAILED);
	block_fill(&b, p->f->out);
	for (unsigned at = 0; at < SIZE - 32; at += 49999)
		assert_int_equal(memmem(disk, 64 * MIB, p->f->out + at, 32) != NULL, plain);
	munmap(disk, 64 * MIB);
	close(fd);
}

static void encrypted_raw_serves(void **state, uint32_t sector)
{
	struct place *p = *state;

	given_keys();
	p->f->opts.keys = &device_keys[0];
	raw_serves(state, sector);
	assert_true(stats_of(p->f).encrypted);
	for (unsigned k = 190; k < 200; k++) /* the newest */
		assert_int_equal(get(p->f, k), 0);
	fixture_close(p->f);
	for (unsigned k = 190; k < 200; k++)
		lies_there_in_plain(p, k, false);
}

static void a_raw_device_with_a_key_is_a_store_with_nothing_in_plain(void **state)
{
	encrypted_raw_serves(state, 512);
}

static void a_raw_device_with_4096_byte_sectors_and_a_key_is_one_too(void **state)
{
	encrypted_raw_serves(state, 4096);
}

/* On a device there is no file to be made anew: the store there is, or none. */
static void a_device_is_not_opened_without_its_key_or_with_another_and_keeps_every_byte(void **state)
{
	const struct spill_keys *const wrong[] = {NULL, &device_keys[1]};
	struct place *p = *state;
	struct fixture *f = p->f;
	XXH128_hash_t before;

	given_keys();
	given_raw(p, 64 * MIB, 512);
	f->opts.keys = &device_keys[0];
	assert_int_equal(fixture_open(f), 0);
	for (unsigned k = 0; k < 20; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	fixture_close(f);
	before = all_of(p);
	for (unsigned i = 0; i < 2; i++) {
		f->opts.keys = wrong[i];
		assert_true(fixture_open(f) < 0);
		assert_non_null(strstr(f->message, p->device));
		assert_true(XXH128_isEqual(before, all_of(p)));
	}
	f->opts.keys = &device_keys[0];
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->n_found, 20);
	for (unsigned k = 0; k < 20; k++)
		assert_int_equal(get(f, k), 0);
}

static void a_device_in_plain_is_not_opened_with_a_key_and_keeps_every_byte(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	XXH128_hash_t before;

	given_keys();
	given_raw(p, 64 * MIB, 512);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(put(f, 1, SIZE), 0);
	fixture_close(f);
	lies_there_in_plain(p, 1, true); /* so not seeing it elsewhere tells something */
	before = all_of(p);
	f->opts.keys = &device_keys[0];
	assert_true(fixture_open(f) < 0);
	assert_non_null(strstr(f->message, p->device));
	assert_true(XXH128_isEqual(before, all_of(p)));
	f->opts.keys = NULL;
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(get(f, 1), 0);
}

static void a_device_with_something_on_it_is_refused_and_keeps_every_byte(void **state)
{
	static const uint64_t places[] = {0, 65536, MIB - 1, 63 * MIB, 64 * MIB - 1};
	struct place *p = *state;
	char command[300];

	given_raw(p, 64 * MIB, 512);
	snprintf(command, sizeof(command), "mkfs.ext4 -q -E nodiscard %s >/dev/null 2>&1", p->device);
	assert_int_equal(system(command), 0);
	refused_and_left_alone(p, -EEXIST, ", then blkdiscard -z ");
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(command, sizeof(command), "wipefs -q -a %s && blkdiscard -z %s", p->device, p->device);
		assert_int_equal(system(command), 0); /* the way out it told */
		scribble(p, places[i], 1);
		refused_and_left_alone(p, -EEXIST, "holds something else");
	}
	assert_int_equal(system(command), 0);
	assert_int_equal(fixture_open(p->f), 0);
}

static void a_mounted_device_is_refused_and_keeps_every_byte(void **state)
{
	struct place *p = *state;

	mount_loop(p, 64 * MIB, 512);
	sync();
	p->f->opts.dir = p->device;
	p->f->opts.raw = true;
	refused_and_left_alone(p, -EBUSY, "it is mounted");
}

static void two_stores_never_share_a_device_by_whatever_name(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	struct spill_opts second;
	struct spill_identity ids[2];
	struct spill *other = NULL;
	char name[120], message[256];

	given_raw(p, 64 * MIB, 512);
	snprintf(name, sizeof(name), "%s/by-name", f->dir);
	assert_int_equal(symlink(p->device, name), 0);
	assert_int_equal(fixture_open(f), 0);
	second = f->opts;
	second.dir = name;
	assert_int_equal(spill_open(&other, &second, message), -EBUSY);
	assert_null(other);
	assert_non_null(strstr(message, p->device));
	spill_peek(&f->opts, &ids[0]);
	spill_peek(&second, &ids[1]);
	assert_true(ids[0].is_store && ids[1].is_store && !ids[0].is_copy);
	assert_true(ids[0].dev == ids[1].dev && ids[0].inode == ids[1].inode);
	assert_int_equal(put(f, 1, SIZE), 0);
	fixture_close(f);
	f->opts.dir = name;
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(get(f, 1), 0);
}

static void what_is_no_device_or_smaller_than_asked_for_is_refused(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	char file[120];

	given_raw(p, 64 * MIB, 512);
	f->opts.capacity = 65 * MIB;
	refused_and_left_alone(p, -EINVAL, "has 67108864 bytes");
	snprintf(file, sizeof(file), "%s/plain", f->dir);
	close(open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	f->opts.dir = file;
	assert_int_equal(fixture_open(f), -ENOTBLK);
	f->opts.dir = "/dev/kvpool-not-there";
	assert_int_equal(fixture_open(f), -ENOENT);
	assert_non_null(strstr(f->message, "is it plugged in?"));
}

static void a_device_that_is_read_only_or_too_small_is_refused_as_such(void **state)
{
	static const int on = 1;
	struct place *p = *state;

	given_raw(p, 15 * MIB, 512);
	refused_and_left_alone(p, -EINVAL, "has 15728640 bytes, a store needs 16777216 (16M) at least");
	assert_int_equal(ftruncate(open(p->backing, O_WRONLY | O_CLOEXEC), 16 * MIB), 0);
	assert_int_equal(ioctl(p->loop_fd, LOOP_SET_CAPACITY), 0);
	assert_int_equal(ioctl(p->loop_fd, BLKROSET, &on), 0);
	refused_and_left_alone(p, -EROFS, "it is read-only: make it writable (blockdev --setrw)");
	assert_int_equal(ioctl(p->loop_fd, BLKROSET, &(int){0}), 0);
	assert_int_equal(fixture_open(p->f), 0);
}

static void a_device_used_in_part_and_then_in_full_loses_nothing(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	struct log_catch log;

	given_raw(p, 64 * MIB, 512);
	scribble(p, 20 * MIB, 43 * MIB);
	f->opts.capacity = 16 * MIB + 65536;
	log = log_catch();
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->spill->n_present, 4);
	for (unsigned k = 0; k < 20; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	fixture_close(f);
	f->opts.capacity = 0;
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->n_found, 20);
	assert_int_equal(f->spill->n_present, 15);
	for (unsigned k = 0; k < 20; k++)
		assert_int_equal(get(f, k), 0);
	assert_int_equal(log_lines(&log, "cannot be read any more"), 0);
	fclose(log.lines);
}

static void a_store_begun_anew_on_a_device_shows_nothing_of_the_old_one(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	int fd;

	given_raw(p, 64 * MIB, 512);
	assert_int_equal(fixture_open(f), 0);
	for (unsigned k = 0; k < 40; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	fixture_close(f);
	f->opts.segment_bytes = 2 * MIB;
	assert_int_equal(fixture_open(f), 0);
	assert_non_null(strstr(f->message, "begun anew"));
	assert_int_equal(f->n_found, 0);
	assert_int_equal(put(f, 1, SIZE), 0);
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(f->n_found, 1);
	assert_int_equal(get(f, 1), 0);
	fixture_close(f);
	/* both superblocks damaged: it was ours, so it may be begun anew */
	fd = open(p->device, O_RDWR | O_CLOEXEC);
	assert_int_equal(pwrite(fd, "damage", 6, 100), 6);
	assert_int_equal(pwrite(fd, "damage", 6, 4196), 6);
	close(fd);
	assert_int_equal(fixture_open(f), 0);
	assert_non_null(strstr(f->message, "its superblock is damaged"));
	assert_int_equal(f->n_found, 0);
}

/* As if it were killed there: what was begun is no store yet, and no stranger's either. */
static void a_device_whose_making_was_cut_short_is_made_at_the_next_start(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;

	given_raw(p, 64 * MIB, 512);
	fault_arm("spill.raw.zero=-EIO@9");
	assert_int_equal(fixture_open(f), -EIO);
	fault_disarm();
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(put(f, 1, SIZE), 0);
	fixture_close(f);
	f->opts.segment_bytes = 2 * MIB; /* and one that was to take the place of another: that is still there */
	fault_arm("spill.raw.zero=-EIO@9");
	assert_int_equal(fixture_open(f), -EIO);
	fault_disarm();
	f->opts.segment_bytes = 4 * MIB;
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(put(f, 2, SIZE), 0);
	assert_int_equal(get(f, 2), 0);
}

/* As the kernel names a drive. */
static void given_node(const char *node, const char *device)
{
	struct stat st;
	int fd;

	assert_int_equal(stat(device, &st), 0);
	assert_int_equal(mknod(node, S_IFBLK | 0600, st.st_rdev), 0);
	fd = open(node, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		print_message("skipped: no devices in %s (%s)\n", node, strerror(errno));
		skip();
	}
	close(fd);
}

static int set_wait_for(struct spill_set *set, const struct block *b, int r)
{
	while (r == 0 && !b->done)
		spill_set_wait(set, loop_now() + SPILL_SECOND);
	return r < 0 ? r : b->res;
}

static int set_put(struct spill_set *set, struct fixture *f, unsigned k)
{
	struct block *b = &f->blocks[k];
	struct spill_record record;

	*b = (struct block){.k = k, .bytes = SIZE};
	record = block_record(b);
	block_fill(b, f->out);
	return set_wait_for(set, b, spill_set_write(set, &record, f->out, b, block_done, b));
}

static int set_get(struct spill_set *set, struct fixture *f, unsigned k)
{
	struct block *b = &f->blocks[k];
	struct spill_record record = block_record(b);
	int r;

	b->done = false;
	r = set_wait_for(set, b, spill_set_read(set, b->place, &record, f->in, block_done, b));
	return r < 0 ? r : !block_is(b, f->in);
}

/* Until the one store is that, or half a minute has passed. */
static struct spill_stats set_tick_until(struct spill_set *set, bool serves)
{
	struct spill_stats stats;

	for (unsigned n = 0; n < 600 && (spill_set_serves(set, 0) != serves || spill_set_missing(set) == serves); n++) {
		spill_set_wait(set, loop_now() + SPILL_SECOND / 20);
		spill_set_tick(set);
	}
	spill_set_store_stats(set, 0, &stats);
	assert_int_equal(spill_set_serves(set, 0), serves);
	return stats;
}

static void a_device_that_is_served_may_be_looked_at_by_udev_and_is_seen_to_be_served(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	int fd;

	given_raw(p, 64 * MIB, 512);
	assert_int_equal(fixture_open(f), 0);
	fd = open(p->device, O_RDONLY | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_SH | LOCK_NB), 0); /* as udev does */
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1); /* as kvctl store does */
	fixture_close(f);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	close(fd);
}

static void a_drive_that_is_pulled_is_off_and_plugged_in_again_back_with_all_its_blocks(void **state)
{
	struct place *p = *state;
	struct fixture *f = p->f;
	struct spill_set *set = NULL;
	struct spill_stats stats;
	char node[100], away[100];
	int res = 1;

	given_raw(p, 64 * MIB, 512);
	snprintf(node, sizeof(node), "%.80s/drive", f->dir);
	snprintf(away, sizeof(away), "%.80s/pulled", f->dir);
	given_node(node, p->device);
	f->opts.dir = node;
	assert_int_equal(spill_set_open(&set, &f->opts, 1, f->message), 0);
	for (unsigned k = 0; k < 40; k++)
		assert_int_equal(set_put(set, f, k), 0);
	assert_int_equal(spill_set_flush(set, flush_done, &res), 0);
	while (res == 1)
		spill_set_wait(set, loop_now() + SPILL_SECOND);

	assert_int_equal(rename(node, away), 0);
	stats = set_tick_until(set, false);
	assert_int_equal(stats.state, SPILL_DOWN);
	assert_int_equal(stats.last_errno, ENOENT);
	assert_true(stats.since > 0);
	assert_non_null(strstr(stats.message, "is not there any more"));
	assert_int_equal(stats.writes, 40);
	spill_set_stats(set, &stats);
	assert_int_equal(stats.writes, 40); /* what was counted stays counted */
	assert_int_equal(f->n_gone, 40);
	assert_int_equal(set_put(set, f, 41), -ENODEV);

	ioctl(p->loop_fd, LOOP_CLR_FD);
	close(p->loop_fd);
	make_loop(p, 64 * MIB, 512);
	given_node(node, p->device);
	stats = set_tick_until(set, true);
	assert_int_equal(stats.state, SPILL_UP);
	assert_int_equal(f->n_found, 40);
	for (unsigned k = 0; k < 40; k++)
		assert_int_equal(set_get(set, f, k), 0);
	assert_int_equal(set_put(set, f, 41), 0);
	spill_set_stats(set, &stats);
	assert_int_equal(stats.writes, 41);
	spill_set_close(set);
}

#define RAW(test) ONCE(test)

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(on_4096_byte_sectors_blocks_of_any_size_come_back_exact),
		BOTH(on_a_file_system_smaller_than_the_capacity_the_store_makes_do),
		BOTH(with_room_for_one_segment_the_start_says_what_that_comes_to),
		BOTH(on_a_full_file_system_without_fallocate_it_makes_do_too),
		BOTH(a_part_of_a_segment_that_was_never_written_is_no_room),
		BOTH(with_no_room_for_a_superblock_the_start_is_refused),
		BOTH(on_a_disk_that_fails_in_parts_what_is_stored_is_exact),
		BOTH(a_raw_device_is_a_store_of_all_its_bytes),
		BOTH(a_raw_device_with_4096_byte_sectors_is_one_too),
		BOTH(a_raw_device_with_a_key_is_a_store_with_nothing_in_plain),
		BOTH(a_raw_device_with_4096_byte_sectors_and_a_key_is_one_too),
		RAW(a_store_moved_to_larger_sectors_serves_says_what_it_costs_and_is_made_anew_when_empty),
		RAW(a_store_of_pages_goes_on_as_one_whatever_the_sectors_are),
		RAW(a_device_is_not_opened_without_its_key_or_with_another_and_keeps_every_byte),
		RAW(a_device_in_plain_is_not_opened_with_a_key_and_keeps_every_byte),
		RAW(a_device_with_something_on_it_is_refused_and_keeps_every_byte),
		RAW(a_mounted_device_is_refused_and_keeps_every_byte),
		RAW(two_stores_never_share_a_device_by_whatever_name),
		RAW(what_is_no_device_or_smaller_than_asked_for_is_refused),
		RAW(a_device_that_is_read_only_or_too_small_is_refused_as_such),
		RAW(a_device_used_in_part_and_then_in_full_loses_nothing),
		RAW(a_store_begun_anew_on_a_device_shows_nothing_of_the_old_one),
		RAW(a_device_whose_making_was_cut_short_is_made_at_the_next_start),
		RAW(a_device_that_is_served_may_be_looked_at_by_udev_and_is_seen_to_be_served),
		RAW(a_drive_that_is_pulled_is_off_and_plugged_in_again_back_with_all_its_blocks),
	};

	return cmocka_run_group_tests_name("spill devices", tests, NULL, NULL);
}
