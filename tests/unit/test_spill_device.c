/* test_spill_device.c - the spill store on real small file systems: full, with 4096-byte sectors, failing */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mount.h>

#include "spill_fixture.h"

#define MIB (1ull << 20)
#define SIZE 500000

static bool with_uring = true, with_threads = false;

struct place {
	struct fixture *f;
	char base[80], dir[100], backing[100], device[32];
	int loop_fd;
	bool mounted_base, mounted_dir;
};

static int setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	p->f = fixture_new(*(bool *)*state, 64 * MIB, 4 * MIB);
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

/* ext4 on a loop device over p->backing, with that sector size. */
static void mount_loop(struct place *p, uint64_t bytes, uint32_t sector)
{
	struct loop_config config = {.block_size = sector};
	char command[300];
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
	snprintf(command, sizeof(command), "mkfs.ext4 -q -b 4096 -O ^has_journal -m 0 -E nodiscard %s >/dev/null 2>&1",
		p->device);
	if (system(command) != 0 || mount(p->device, p->dir, "ext4", 0, "errors=continue") < 0) {
		print_message("skipped: no ext4 on the loop device\n");
		skip();
	}
	p->mounted_dir = true;
}

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

/* A disk whose blocks fail beyond some point: a loop device over a sparse file on a tmpfs too small for it.  It even lies:
   the loop driver calls a write that was cut short a success. */
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

#define BOTH(test) \
	{#test " (io_uring)", test, setup, teardown, &with_uring}, \
	{ \
#test " (threads)", test, setup, teardown, &with_threads \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(on_4096_byte_sectors_blocks_of_any_size_come_back_exact),
		BOTH(on_a_file_system_smaller_than_the_capacity_the_store_makes_do),
		BOTH(on_a_full_file_system_without_fallocate_it_makes_do_too),
		BOTH(with_no_room_for_a_superblock_the_start_is_refused),
		BOTH(on_a_disk_that_fails_in_parts_what_is_stored_is_exact),
	};

	return cmocka_run_group_tests_name("spill devices", tests, NULL, NULL);
}
