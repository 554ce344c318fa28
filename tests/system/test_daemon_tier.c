/* test_daemon_tier.c - blocks that go to the spill store and come back, over restarts and reboots */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvpool_desc.h"
#include "kvpool_spill.h"
#include "tests/unit/lines.h"
#include "wire.h"

#define KIB 1024u
#define MIB (1024u * KIB)
#define BLOCK (64 * KIB)
#define HOLD_NS 950000000ull /* what came back stays a second, in ticks */

struct fixture {
	struct host host;
	char spill[160], spill_option[200];
	const char *options[16];
	struct wire w;
	struct wire_ns ns;
	pid_t flood;
};

static void connect_client(struct fixture *f)
{
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, &f->ns, "m", BLOCK), 0);
}

static void disconnect(struct fixture *f)
{
	if (f->ns.head)
		wire_leave(&f->ns);
	wire_close(&f->w);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->w.fd = f->w.header_fd = f->w.session_fd = f->ns.fd = f->ns.stage_fd = -1;
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	snprintf(f->spill, sizeof(f->spill), "/var/tmp/kvpool-test-spill-%d", (int)getpid());
	mkdir(f->spill, 0700);
	snprintf(f->spill_option, sizeof(f->spill_option), "%s:64M", f->spill);
	memcpy(f->options,
		(const char *[]){"--pool", "2M", "--slab", "1M", "--free-percent", "0", "--heartbeat", "100", "--spill",
			f->spill_option, NULL},
		11 * sizeof(char *));
	assert_int_equal(host_start(&f->host, f->options), 0);
	connect_client(f);
	*state = f;
	return 0;
}

static void remove_dir(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(path);
}

static void flood_end(struct fixture *f)
{
	if (f->flood > 0) {
		kill(f->flood, SIGKILL);
		waitpid(f->flood, NULL, 0);
	}
	f->flood = 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	bool good;

	flood_end(f);
	good = !f->host.pid || (host_alive(&f->host) && host_conserves(&f->host));
	disconnect(f);
	host_close(&f->host);
	remove_dir(f->spill);
	free(f);
	return good ? 0 : -1;
}

static void put(struct wire_ns *ns, uint64_t k, const struct kvp_key *parent)
{
	struct kvp_key key = wire_key(k);

	assert_int_equal(wire_put(ns, &key, parent, k, 10000), KVP_PUB_STORED);
}

/* 1: exactly its bytes; 0: a miss, with its reason. What came back is held for a second, or until it is used: only
   after that may it have gone again, and is fetched once more. */
static int comes_back(struct wire_ns *ns, uint64_t k, uint32_t *reason)
{
	struct kvp_key key = wire_key(k);
	struct wire_pinned pinned;
	struct kvp_wire_found found = {0};
	uint64_t asked = 0;
	int right;

	if (reason)
		*reason = 0;
	while (!wire_pin(ns, &key, &pinned)) {
		if (asked && wire_now() - asked < HOLD_NS)
			fail_msg("block %u is gone %u ms after it was asked for", (unsigned)k,
				(unsigned)((wire_now() - asked) / 1000000));
		asked = wire_now();
		assert_int_equal(wire_restore(ns, &key, 1, 10000, &found), sizeof(found));
		if (found.state == KVP_HIT_RAM)
			continue;
		if (reason)
			*reason = found.reason;
		else
			print_message("block %u: a miss, state %u, reason %u\n", (unsigned)k, (unsigned)found.state,
				(unsigned)found.reason);
		return 0;
	}
	right = wire_right(pinned.data, pinned.used_bytes, k);
	assert_true(right);
	wire_unpin(ns, &pinned);
	return right;
}

static uint64_t counter(struct fixture *f, size_t off)
{
	const struct kvp_ns_row *row = host_ns_row(&f->host, f->ns.id);

	return atomic_load((const _Atomic uint64_t *)(const void *)((const char *)&row->counters + off));
}
#define COUNTER(f, name) counter(f, offsetof(struct kvp_ns_counters, name))

/* All shared memory is gone, as after a reboot; what is on disk is not. */
static void reboot(struct fixture *f, bool in_order)
{
	char path[400], prefix[160];
	DIR *dir;
	struct dirent *entry;

	disconnect(f);
	if (in_order)
		host_stop(&f->host);
	else
		host_kill(&f->host);
	host_object(&f->host, prefix, "");
	dir = opendir("/dev/shm");
	while ((entry = readdir(dir)))
		if (!strncmp(entry->d_name, prefix + 9, strlen(prefix + 9)))
			unlinkat(dirfd(dir), entry->d_name, 0);
	closedir(dir);
	snprintf(path, sizeof(path), "/dev/shm/kvpool.%s", f->host.name);
	unlink(path);
	assert_int_equal(host_start(&f->host, NULL), 0);
	connect_client(f);
}

static int ask(struct fixture *f, uint16_t type, uint64_t n, struct kvp_wire_admin_done *done)
{
	struct kvp_wire_admin admin = {.deadline_ns = wire_now() + 10000000000ull, .n = n};
	char path[112];
	struct wire w;
	int r;

	snprintf(path, sizeof(path), "%s.admin", f->host.socket);
	r = wire_connect(&w, path);
	if (r == 0)
		r = wire_call(&w, type, &admin, sizeof(admin), done, sizeof(*done));
	wire_close(&w);
	return r;
}

static int drain(struct fixture *f, struct kvp_wire_admin_done *done)
{
	return ask(f, KVP_MSG_DRAIN, 0, done);
}

/* ---- there and back ---- */

static void what_does_not_fit_goes_to_disk_and_comes_back_exactly(void **state)
{
	struct fixture *f = *state;

	for (uint64_t k = 0; k < 200; k++) /* six times the pool */
		put(&f->ns, k, NULL);
	for (uint64_t k = 0; k < 200; k++)
		assert_int_equal(comes_back(&f->ns, k, NULL), 1);
	assert_int_equal(COUNTER(f, dropped), 0);
	assert_true(COUNTER(f, restored) >= 168);
	assert_int_equal(COUNTER(f, published) + COUNTER(f, cold), 200);
}

static void a_chain_comes_back_from_disk_as_a_run(void **state)
{
	struct fixture *f = *state;
	struct kvp_key keys[20];
	struct kvp_wire_found found[20];
	unsigned restored = 0;

	for (uint64_t k = 0; k < 20; k++) {
		keys[k] = wire_key(k);
		put(&f->ns, k, k ? &keys[k - 1] : NULL);
	}
	wire_sleep_ms(3 * KVP_TICK_MS); /* of one tick's blocks any may go first */
	for (uint64_t k = 1000; k < 1100; k++)
		put(&f->ns, k, NULL);
	assert_int_equal(wire_restore(&f->ns, keys, 20, 10000, found), sizeof(found));
	for (uint64_t k = 0; k < 20; k++) {
		assert_int_equal(found[k].state, KVP_HIT_RAM);
		restored += found[k].reason == KVP_WIRE_RESTORED;
		assert_int_equal(comes_back(&f->ns, k, NULL), 1);
	}
	assert_int_equal(restored, 20);
	assert_int_equal(wire_restore(&f->ns, keys, 20, 10000, found), sizeof(found)); /* now they are there */
	for (uint64_t k = 0; k < 20; k++) {
		assert_int_equal(found[k].state, KVP_HIT_RAM);
		assert_int_equal(found[k].reason, 0);
	}
}

static void the_same_key_twice_in_one_request_is_read_once(void **state)
{
	struct fixture *f = *state;
	struct kvp_key keys[6];
	struct kvp_wire_found found[6];

	for (uint64_t k = 0; k < 100; k++)
		put(&f->ns, k, NULL);
	for (unsigned i = 0; i < 6; i++)
		keys[i] = wire_key(i / 3);
	assert_int_equal(wire_restore(&f->ns, keys, 6, 10000, found), sizeof(found));
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(found[i].state, KVP_HIT_RAM);
	assert_int_equal(COUNTER(f, restored), 2);
}

static void a_restore_that_cannot_be_done_by_its_deadline_says_pending(void **state)
{
	struct fixture *f = *state;
	struct wire_pinned pinned[32];
	struct kvp_wire_found found;
	struct kvp_key cold = wire_key(0);
	unsigned n = 0;
	uint64_t before;

	for (uint64_t k = 0; k < 100; k++)
		put(&f->ns, k, NULL);
	for (uint64_t k = 0; k < 100; k++) { /* hold all that is in DRAM */
		struct kvp_key key = wire_key(k);

		if (wire_pin(&f->ns, &key, &pinned[n]))
			n++;
	}
	assert_int_equal(n, 32);
	before = wire_now();
	assert_int_equal(wire_restore(&f->ns, &cold, 1, 300, &found), sizeof(found));
	assert_true(wire_now() - before > 290000000ull);
	assert_int_equal(found.state, KVP_PENDING);
	while (n--)
		wire_unpin(&f->ns, &pinned[n]);
	assert_int_equal(comes_back(&f->ns, 0, NULL), 1);
}

static void a_run_that_would_load_slower_than_it_is_computed_is_a_miss(void **state)
{
	struct fixture *f = *state;
	struct kvp_wire_join join = {.name = "m", .owner_uid = KVP_UID_SELF, .cost_ns_per_token = 1};
	uint32_t reason;
	struct wire fast;
	struct wire_ns ns;

	for (uint64_t k = 0; k < 100; k++)
		put(&f->ns, k, NULL);
	for (uint64_t k = 0; k < 10; k++) /* how fast the store is becomes known */
		assert_int_equal(comes_back(&f->ns, k, NULL), 1);
	wire_desc(&join.desc, BLOCK, 1);
	assert_int_equal(wire_open(&fast, f->host.socket), 0);
	assert_int_equal(wire_join_as(&fast, &ns, &join), 0); /* it computes a block in 16 ns */
	assert_int_equal(comes_back(&ns, 50, &reason), 0);
	assert_int_equal(reason, KVP_MISS_COST);
	assert_int_equal(COUNTER(f, miss_cost), 1);
	assert_int_equal(COUNTER(f, recompute_us), 0); /* 16 ns */
	assert_true(COUNTER(f, restore_us) > 0);
	assert_int_equal(comes_back(&f->ns, 50, NULL), 1); /* who did not say what it costs gets it */
	wire_leave(&ns);
	wire_close(&fast);
}

static void a_damaged_record_is_a_miss_that_says_so(void **state)
{
	struct fixture *f = *state;
	char path[200];
	unsigned damaged = 0;
	uint32_t reason;
	int fd;

	for (uint64_t k = 0; k < 100; k++)
		put(&f->ns, k, NULL);
	snprintf(path, sizeof(path), "%s/kvpool.store", f->spill);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	for (off_t off = 2 * 1024 * 1024; off < 4 * 1024 * 1024;
		off += 32 * 1024) /* inside of block data, and headers */
		assert_int_equal(pwrite(fd, "\xff\x00\xff\x00\xff", 5, off + 8300), 5);
	close(fd);
	for (uint64_t k = 0; k < 100; k++)
		if (!comes_back(&f->ns, k, &reason)) {
			assert_int_equal(reason, KVP_MISS_DAMAGED);
			damaged++;
		}
	assert_true(damaged > 5);
	assert_true(atomic_load(&f->host.stats->counters.spill_damaged) >= damaged);
	for (uint64_t k = 0; k < 60; k++) /* and all of it can be published again */
		(void)wire_put(&f->ns, &(struct kvp_key){{wire_key(k).w[0], wire_key(k).w[1]}}, NULL, k, 10000);
	for (uint64_t k = 0; k < 60; k++)
		assert_int_equal(comes_back(&f->ns, k, NULL), 1);
}

/* ---- restarts ---- */

static void after_a_kill_of_the_daemon_cold_blocks_are_found_again(void **state)
{
	struct fixture *f = *state;

	for (uint64_t k = 0; k < 100; k++)
		put(&f->ns, k, NULL);
	for (unsigned round = 0; round < 3; round++) {
		unsigned back = 0;

		disconnect(f);
		host_kill(&f->host);
		assert_int_equal(host_start(&f->host, NULL), 0);
		connect_client(f);
		for (uint64_t k = 0; k < 100; k++)
			back += comes_back(&f->ns, k, NULL) == 1;
		assert_int_equal(back, 100);
		assert_true(host_conserves(&f->host));
	}
}

static void after_a_drain_and_a_reboot_everything_is_back_under_its_old_keys(void **state)
{
	struct fixture *f = *state;
	struct kvp_wire_admin_done done;
	struct kvp_key keys[30];
	uint64_t id = f->ns.id;
	uint8_t secret[32];

	memcpy(secret, f->ns.head->secret, 32);
	for (uint64_t k = 0; k < 30; k++) {
		keys[k] = wire_key(k);
		put(&f->ns, k, k ? &keys[k - 1] : NULL);
	}
	assert_int_equal(drain(f, &done), sizeof(done));
	assert_int_equal(done.n_left, 0);
	assert_int_equal(done.n_done, 30);
	assert_int_equal(COUNTER(f, clean), 30);
	reboot(f, true);
	assert_int_equal(f->ns.id, id);
	assert_memory_equal(f->ns.head->secret, secret, 32);
	assert_int_equal(COUNTER(f, cold), 30);
	for (uint64_t k = 0; k < 30; k++)
		assert_int_equal(comes_back(&f->ns, k, NULL), 1);
}

/* The slot of each block of which a record lies in the store, in the order of the log. Return: how many. */
static unsigned slots_in_store(struct fixture *f, unsigned n_blocks, uint64_t *slots)
{
	char path[200], page[SPILL_PAGE];
	unsigned n = 0;
	int fd;

	snprintf(path, sizeof(path), "%s/" SPILL_STORE_NAME, f->spill);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	while (n < n_blocks && read(fd, page, sizeof(page)) == (ssize_t)sizeof(page)) {
		struct spill_disk_record disk;

		memcpy(&disk, page, sizeof(disk));
		for (uint64_t k = 0; le64toh(disk.magic) == SPILL_RECORD_MAGIC && k < n_blocks; k++) {
			struct kvp_key key = wire_key(k);
			struct wire_pinned pinned;

			if (le64toh(disk.key[0]) != key.w[0] || le64toh(disk.key[1]) != key.w[1])
				continue;
			assert_true(wire_pin(&f->ns, &key, &pinned));
			slots[n++] = pinned.slot;
			wire_unpin(&f->ns, &pinned);
		}
	}
	close(fd);
	return n;
}

static void a_drain_writes_blocks_in_the_order_of_memory(void **state)
{
	struct fixture *f = *state;
	struct kvp_wire_admin_done done;
	uint64_t slots[30];

	for (uint64_t k = 0; k < 30; k++)
		put(&f->ns, k, NULL);
	assert_int_equal(drain(f, &done), sizeof(done));
	assert_int_equal(done.n_done, 30);
	assert_int_equal(slots_in_store(f, 30, slots), 30);
	for (unsigned i = 1; i < 30; i++)
		assert_true(slots[i] > slots[i - 1]);
}

static void evict_ends_though_a_namespace_has_no_memory(void **state)
{
	struct fixture *f = *state;
	struct kvp_wire_admin_done done;
	struct wire_ns empty;

	for (uint64_t k = 0; k < 30; k++)
		put(&f->ns, k, NULL);
	assert_int_equal(wire_join(&f->w, &empty, "empty", BLOCK), 0);
	assert_int_equal(atomic_load(&host_ns_row(&f->host, empty.id)->counters.slots), 0);
	assert_int_equal(ask(f, KVP_MSG_EVICT, UINT64_MAX, &done), sizeof(done));
	assert_int_equal(done.n_done, 30);
	assert_int_equal(done.n_left, 0);
	assert_int_equal(done.late, 0);
	wire_leave(&empty);
}

static void evict_drops_as_many_as_asked_though_they_are_written_first(void **state)
{
	struct fixture *f = *state;
	struct kvp_wire_admin_done done;
	struct wire_pinned pinned;
	struct kvp_key key = wire_key(29);

	for (uint64_t k = 0; k < 30; k++)
		put(&f->ns, k, NULL);
	assert_int_equal(ask(f, KVP_MSG_EVICT, 12, &done), sizeof(done));
	assert_int_equal(done.n_done, 12);
	assert_int_equal(done.n_left, 0);
	assert_int_equal(COUNTER(f, published), 18);
	assert_int_equal(COUNTER(f, cold), 12);
	assert_int_equal(COUNTER(f, dropped), 0);
	assert_int_equal(wire_pin(&f->ns, &key, &pinned), 1);
	assert_int_equal(ask(f, KVP_MSG_EVICT, UINT64_MAX, &done), sizeof(done));
	assert_int_equal(done.n_done, 17);
	assert_int_equal(done.n_left, 1); /* held */
	assert_int_equal(done.late, 0);
	wire_unpin(&f->ns, &pinned);
	assert_int_equal(ask(f, KVP_MSG_EVICT, 7, &done), sizeof(done));
	assert_int_equal(done.n_done, 1);
	assert_int_equal(done.n_left, 0);
	for (uint64_t k = 0; k < 30; k++)
		assert_int_equal(comes_back(&f->ns, k, NULL), 1);
}

/* Publishes for ever; what does not fit is written. */
static void flood_begin(struct fixture *f)
{
	struct wire w;
	struct wire_ns ns;

	f->flood = fork();
	assert_true(f->flood >= 0);
	if (f->flood)
		return;
	if (wire_open(&w, f->host.socket) || wire_join(&w, &ns, "flood", BLOCK))
		_exit(1);
	for (uint64_t k = 1u << 20;; k++) {
		struct kvp_key key = wire_key(k);

		if (wire_put(&ns, &key, NULL, k, 10000) < 0)
			_exit(1);
	}
}

static bool flood_is_written(void *arg)
{
	return atomic_load(&((struct fixture *)arg)->host.stats->counters.spill_day_bytes) > 64 * MIB;
}

static void a_drain_and_an_evict_end_though_others_publish_all_the_time(void **state)
{
	struct fixture *f = *state;
	struct kvp_wire_admin_done done;

	for (uint64_t k = 0; k < 10; k++)
		put(&f->ns, k, NULL);
	flood_begin(f);
	assert_true(wire_until(flood_is_written, f, 60000));
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(ask(f, KVP_MSG_DRAIN, 0, &done), sizeof(done));
		assert_int_equal(done.late, 0);
		assert_true(done.n_done + done.n_left <= 31); /* those there were, of a pool of two slabs */
		assert_int_equal(ask(f, KVP_MSG_EVICT, UINT64_MAX, &done), sizeof(done));
		assert_int_equal(done.late, 0);
		assert_true(done.n_done <= 31);
	}
	assert_int_equal(waitpid(f->flood, NULL, WNOHANG), 0); /* it still does */
	flood_end(f);
}

static void a_drain_to_a_store_that_takes_nothing_ends_at_once_and_says_why(void **state)
{
	struct fixture *f = *state;
	char binary[sizeof(f->host.binary)];
	struct kvp_wire_admin_done done;
	const char *build = getenv("BUILD");
	uint64_t start;

	disconnect(f);
	assert_int_equal(host_stop(&f->host), 0);
	memcpy(binary, f->host.binary, sizeof(binary));
	snprintf(f->host.binary, sizeof(f->host.binary), "%s/kvpoold-fault", build ? build : "build");
	setenv("KVPOOL_FAULT", "io.write=-EIO", 1);
	assert_int_equal(host_start(&f->host, NULL), 0);
	unsetenv("KVPOOL_FAULT");
	memcpy(f->host.binary, binary, sizeof(binary));
	connect_client(f);
	for (uint64_t k = 0; k < 30; k++)
		put(&f->ns, k, NULL);
	start = wire_now();
	assert_int_equal(drain(f, &done), sizeof(done));
	assert_true(wire_now() - start < 5000000000ull);
	assert_int_equal(done.n_done, 0);
	assert_int_equal(done.n_left, 30);
	assert_int_equal(done.n_failed, 30);
	assert_int_equal(done.error, EIO);
	assert_int_equal(done.late, 0);
}

static void what_goes_over_the_days_budget_is_dropped_and_counted_and_a_drain_is_not(void **state)
{
	struct fixture *f = *state;
	struct kvp_wire_admin_done done;

	disconnect(f);
	assert_int_equal(host_stop(&f->host), 0);
	f->options[10] = "--spill-write-budget";
	f->options[11] = "1M"; /* 16 blocks */
	f->options[12] = NULL;
	assert_int_equal(host_start(&f->host, f->options), 0);
	connect_client(f);
	for (unsigned round = 0; round < 2; round++) {
		for (uint64_t k = 0; k < 100; k++)
			put(&f->ns, 1000 * round + k, NULL);
		assert_int_equal(COUNTER(f, cold), 16);
		assert_int_equal(atomic_load(&f->host.stats->counters.spill_day_bytes), MIB);
		assert_true(atomic_load(&f->host.stats->counters.spill_over_budget) >= 100 - 32 - 16);
		disconnect(f);
		assert_int_equal(host_stop(&f->host), 0);
		assert_int_equal(host_start(&f->host, NULL), 0); /* the same day goes on */
		connect_client(f);
	}
	assert_int_equal(drain(f, &done), sizeof(done));
	assert_int_equal(done.n_left, 0);
	assert_true(done.n_done > 20);
}

/* All reads and writes hang from the @n-th on. */
static void start_hanging(struct fixture *f, unsigned n)
{
	char binary[sizeof(f->host.binary)], rule[32];
	const char *build = getenv("BUILD");

	memcpy(binary, f->host.binary, sizeof(binary));
	snprintf(f->host.binary, sizeof(f->host.binary), "%s/kvpoold-fault", build ? build : "build");
	snprintf(rule, sizeof(rule), "io.hang=1@%u+", n);
	setenv("KVPOOL_FAULT", rule, 1);
	assert_int_equal(host_start(&f->host, NULL), 0);
	unsetenv("KVPOOL_FAULT");
	memcpy(f->host.binary, binary, sizeof(binary));
}

static void a_hung_disk_stops_nobody_and_shows_within_seconds(void **state)
{
	struct fixture *f = *state;
	uint64_t start, worst = 0;

	disconnect(f);
	assert_int_equal(host_stop(&f->host), 0);
	start_hanging(f, 20);
	connect_client(f);
	start = wire_now();
	for (uint64_t k = 0; wire_now() - start < 9000000000ull; k++) {
		uint64_t before = wire_now();

		put(&f->ns, k, NULL);
		if (wire_now() - before > worst)
			worst = wire_now() - before;
		if (k > 200)
			wire_sleep_ms(20);
	}
	assert_true(worst < 4000000000ull);
	assert_true(atomic_load(&f->host.stats->counters.spill_too_slow) > 0);
	assert_int_equal(atomic_load(&f->host.stats->counters.spill_state), 2);
	assert_int_equal(atomic_load(&f->host.stats->counters.spill_last_errno), ETIMEDOUT);
	assert_true(host_logged(&f->host, "waiting 5 s for a transfer failed", 0));
	disconnect(f);
	host_kill(&f->host);
	assert_int_equal(host_start(&f->host, NULL), 0);
	connect_client(f);
}

static void reads_of_a_hung_disk_do_not_take_all_memory(void **state)
{
	struct fixture *f = *state;
	struct kvp_wire_admin_done done;
	struct kvp_wire_found found[64];
	struct kvp_key keys[64];

	for (uint64_t k = 0; k < 100; k++)
		put(&f->ns, k, NULL);
	assert_int_equal(drain(f, &done), sizeof(done));
	disconnect(f);
	assert_int_equal(host_stop(&f->host), 0);
	start_hanging(f, 8);
	connect_client(f);
	for (uint64_t k = 0; k < 64; k++) /* twice the pool */
		keys[k] = wire_key(k);
	assert_true(wire_restore(&f->ns, keys, 64, 2000, found) > 0);
	for (uint64_t k = 200; k < 204; k++)
		put(&f->ns, k, NULL);
	disconnect(f);
	host_kill(&f->host);
	assert_int_equal(host_start(&f->host, NULL), 0);
	connect_client(f);
}

static bool pinned_is(void *arg)
{
	const struct kvp_counters *c = &((struct fixture *)arg)->host.stats->counters;
	uint64_t pinned = atomic_load(&c->spill_pinned_bytes);

	/* the slabs there are, and 1 MiB for the headers of transfers: 128 of two pages */
	return pinned > MIB && pinned <= atomic_load(&c->slab_bytes_allocated) + MIB;
}

/* A punch would not free it, and what is written from there would be what it was before. */
static void memory_that_leaves_the_pool_is_pinned_no_more(void **state)
{
	struct fixture *f = *state;
	const struct kvp_counters *c = &f->host.stats->counters;
	struct kvp_wire_resize ask = {.deadline_ns = wire_now() + 5000000000ull};
	struct kvp_wire_admin_done done;
	char path[KVP_SOCKET_MAX + 8];
	struct wire admin;

	if (!atomic_load(&c->spill_uring)) {
		print_message("skipped: no io_uring here\n");
		skip();
	}
	for (uint64_t k = 0; k < 100; k++)
		put(&f->ns, k, NULL);
	assert_true(wire_until(pinned_is, f, 5000));
	assert_true(atomic_load(&c->spill_pinned_bytes) > 2 * MIB); /* both slabs */
	snprintf(path, sizeof(path), "%s.admin", f->host.socket);
	assert_int_equal(wire_connect(&admin, path), 0);
	snprintf(ask.pool, sizeof(ask.pool), "1M");
	assert_int_equal(wire_call(&admin, KVP_MSG_RESIZE, &ask, sizeof(ask), &done, sizeof(done)), sizeof(done));
	wire_close(&admin);
	assert_int_equal(atomic_load(&c->slab_bytes_allocated), MIB);
	assert_true(wire_until(pinned_is, f, 5000));
	for (uint64_t k = 0; k < 100; k++) /* the slab that is left, and blocks written by way of both */
		assert_int_equal(comes_back(&f->ns, k, NULL), 1);
	assert_true(wire_until(pinned_is, f, 5000));
}

static void of_a_key_written_twice_the_later_record_counts_after_a_reboot(void **state)
{
	struct fixture *f = *state;
	struct kvp_key key = wire_key(7);
	struct kvp_wire_admin_done done;
	struct wire_pinned pinned;
	struct kvp_wire_found found;
	uint32_t lengths[] = {BLOCK, BLOCK / 2, BLOCK - 4096};
	uint64_t dropped;

	for (unsigned i = 0; i < 3; i++) {
		struct kvp_wire_grant grant;
		struct kvp_wire_item item = {.key = key, .used_bytes = lengths[i], .used_tokens = 16};
		struct kvp_wire_result result;

		assert_int_equal(wire_reserve(&f->ns, &grant, 1, 10000), 1);
		wire_fill(wire_data(&f->ns, grant.slot), BLOCK, 100 + i);
		item.slot = grant.slot;
		item.generation = grant.generation;
		assert_int_equal(wire_publish(&f->ns, &item, 1, &result), 1);
		assert_int_equal(result.result, KVP_PUB_STORED);
		assert_int_equal(drain(f, &done), sizeof(done));
		for (uint64_t k = 0; k < 40; k++) /* out of DRAM with it */
			put(&f->ns, 1000 * (i + 1) + k, NULL);
	}
	assert_int_equal(drain(f, &done), sizeof(done));
	dropped =
		COUNTER(f, dropped); /* where the host stood still for seconds, eviction does not wait for the store */
	reboot(f, false);
	assert_int_equal(COUNTER(f, cold) + dropped, 1 + 3 * 40);
	assert_int_equal(wire_restore(&f->ns, &key, 1, 10000, &found), sizeof(found));
	assert_int_equal(found.state, KVP_HIT_RAM);
	assert_int_equal(wire_pin(&f->ns, &key, &pinned), 1);
	assert_int_equal(pinned.used_bytes, lengths[2]);
	assert_true(wire_right(pinned.data, lengths[2], 102));
	wire_unpin(&f->ns, &pinned);
}

static void kills_while_blocks_come_and_go_never_show_wrong_bytes(void **state)
{
	struct fixture *f = *state;
	uint64_t k = 0;

	for (unsigned round = 0; round < 12; round++) {
		pid_t killer;

		fflush(NULL);
		killer = fork();
		if (killer == 0) {
			wire_sleep_ms(10 + 7 * round);
			kill(f->host.pid, SIGKILL);
			_exit(0);
		}
		for (;; k++) {
			struct kvp_key key = wire_key(k), old = wire_key(k > 50 ? k - 50 : 0);
			struct kvp_wire_found found;
			struct wire_pinned pinned;

			if (wire_put(&f->ns, &key, NULL, k, 3000) < 0)
				break;
			if (wire_restore(&f->ns, &old, 1, 3000, &found) < 0)
				break;
			if (found.state == KVP_HIT_RAM && wire_pin(&f->ns, &old, &pinned)) {
				assert_true(wire_right(pinned.data, pinned.used_bytes, k > 50 ? k - 50 : 0));
				wire_unpin(&f->ns, &pinned);
			}
		}
		waitpid(killer, NULL, 0);
		disconnect(f);
		host_kill(&f->host);
		assert_int_equal(host_start(&f->host, NULL), 0);
		connect_client(f);
		for (uint64_t i = k > 80 ? k - 80 : 0; i < k; i++)
			(void)comes_back(&f->ns, i, NULL); /* right or missing */
		assert_true(host_conserves(&f->host));
		k++;
	}
	/* what a dead daemon's reads may still land in is set aside until they have ended */
	for (unsigned i = 0; i < 200 && COUNTER(f, taken) + COUNTER(f, restoring); i++)
		wire_sleep_ms(25);
	assert_int_equal(COUNTER(f, taken), 0);
	assert_int_equal(COUNTER(f, restoring), 0);
}

static void blocks_longer_than_a_segment_are_counted_said_once_and_stored_by_a_store_made_for_them(void **state)
{
	struct fixture *f = *state;
	const struct kvp_ns_row *row;
	struct wire_ns big;

	disconnect(f);
	assert_int_equal(host_stop(&f->host), 0);
	remove_dir(f->spill);
	mkdir(f->spill, 0700);
	snprintf(f->spill_option, sizeof(f->spill_option), "%s:16M", f->spill); /* segments of 2 MiB at most */
	f->options[1] = "16M";
	f->options[3] = "4M";
	assert_int_equal(host_start(&f->host, f->options), 0);
	connect_client(f);
	for (unsigned round = 0; round < 2; round++) {
		assert_int_equal(wire_join(&f->w, &big, "big", 3 * 1024 * KIB), 0);
		for (uint64_t k = 0; k < 20; k++)
			put(&big, 1000 * round + k, NULL);
		row = host_ns_row(&f->host, big.id);
		if (round == 0) {
			assert_true(atomic_load(&f->host.stats->counters.spill_too_long) >= 10);
			assert_int_equal(atomic_load(&row->counters.cold), 0);
			assert_true(host_logged(&f->host, "(namespace big) are longer than its segments hold", 0));
		} else {
			assert_true(atomic_load(&row->counters.cold) > 0);
		}
		wire_leave(&big);
		disconnect(f);
		assert_int_equal(host_stop(&f->host), 0);
		assert_int_equal(host_start(&f->host, NULL), 0);
		connect_client(f);
	}
}

/* B26 */
static void a_second_daemon_on_the_same_spill_directory_is_refused(void **state)
{
	struct fixture *f = *state;
	struct host second;

	put(&f->ns, 1, NULL);
	assert_int_equal(host_open(&second, geteuid()), 0);
	assert_int_equal(host_start(&second, f->options), -1001);
	assert_true(host_logged(&second, f->spill, 1000));
	assert_int_equal(host_objects(&second, NULL), 0);
	host_close(&second);
	assert_int_equal(comes_back(&f->ns, 1, NULL), 1);
}

static void a_namespace_file_of_another_version_is_said_plainly_and_passed_over(void **state)
{
	struct fixture *f = *state;
	char path[256];
	uint32_t version = 2;
	int fd;

	put(&f->ns, 1, NULL);
	snprintf(path, sizeof(path), "%s/ns-%016llx.kvns", f->spill, (unsigned long long)f->ns.id);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, &version, 4, 8), 4);
	close(fd);
	reboot(f, true);
	assert_true(host_logged(&f->host, "a newer kvpoold wrote it", 0));
	put(&f->ns, 2, NULL);
}

static void a_namespace_file_of_the_wrong_mode_is_said_once_with_its_cost_and_the_way_out(void **state)
{
	struct fixture *f = *state;
	struct kvp_wire_admin_done done;
	char path[256];

	for (uint64_t k = 0; k < 10; k++)
		put(&f->ns, k, NULL);
	assert_int_equal(drain(f, &done), sizeof(done));
	snprintf(path, sizeof(path), "%s/ns-%016llx.kvns", f->spill, (unsigned long long)f->ns.id);
	assert_int_equal(chmod(path, 0644), 0);
	reboot(f, true);
	assert_int_equal(lines_with(f->host.log,
				 "is passed over, so no block of its namespace comes back from the store: it must be"),
		1);
	assert_int_equal(lines_with(f->host.log, "mode 0600: chown and chmod it, and restart"), 1);
	assert_int_equal(lines_with(f->host.log, "10 records are of namespaces without a file"), 1);
}

/* A namespace that is gone takes its records with it. */
static void what_is_no_ones_any_more_on_disk_is_garbage(void **state)
{
	struct fixture *f = *state;
	char path[256];

	for (uint64_t k = 0; k < 100; k++)
		put(&f->ns, k, NULL);
	snprintf(path, sizeof(path), "%s/ns-%016llx.kvns", f->spill, (unsigned long long)f->ns.id);
	assert_int_equal(unlink(path), 0);
	reboot(f, true);
	assert_true(host_logged(&f->host, " records are of namespaces without a file ns-*.kvns", 0));
	assert_int_equal(COUNTER(f, cold), 0);
	for (uint64_t k = 0; k < 10; k++)
		assert_int_equal(comes_back(&f->ns, k, NULL), 0);
	for (uint64_t k = 0; k < 100; k++)
		put(&f->ns, k, NULL);
	for (uint64_t k = 0; k < 100; k++)
		assert_int_equal(comes_back(&f->ns, k, NULL), 1);
}

#define WITH_SPILL(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_SPILL(what_does_not_fit_goes_to_disk_and_comes_back_exactly),
		WITH_SPILL(a_chain_comes_back_from_disk_as_a_run),
		WITH_SPILL(the_same_key_twice_in_one_request_is_read_once),
		WITH_SPILL(a_restore_that_cannot_be_done_by_its_deadline_says_pending),
		WITH_SPILL(a_run_that_would_load_slower_than_it_is_computed_is_a_miss),
		WITH_SPILL(a_damaged_record_is_a_miss_that_says_so),
		WITH_SPILL(after_a_kill_of_the_daemon_cold_blocks_are_found_again),
		WITH_SPILL(after_a_drain_and_a_reboot_everything_is_back_under_its_old_keys),
		WITH_SPILL(a_drain_writes_blocks_in_the_order_of_memory),
		WITH_SPILL(evict_ends_though_a_namespace_has_no_memory),
		WITH_SPILL(evict_drops_as_many_as_asked_though_they_are_written_first),
		WITH_SPILL(a_drain_and_an_evict_end_though_others_publish_all_the_time),
		WITH_SPILL(what_goes_over_the_days_budget_is_dropped_and_counted_and_a_drain_is_not),
		WITH_SPILL(memory_that_leaves_the_pool_is_pinned_no_more),
		WITH_SPILL(a_hung_disk_stops_nobody_and_shows_within_seconds),
		WITH_SPILL(reads_of_a_hung_disk_do_not_take_all_memory),
		WITH_SPILL(a_drain_to_a_store_that_takes_nothing_ends_at_once_and_says_why),
		WITH_SPILL(of_a_key_written_twice_the_later_record_counts_after_a_reboot),
		WITH_SPILL(kills_while_blocks_come_and_go_never_show_wrong_bytes),
		WITH_SPILL(blocks_longer_than_a_segment_are_counted_said_once_and_stored_by_a_store_made_for_them),
		WITH_SPILL(a_second_daemon_on_the_same_spill_directory_is_refused),
		WITH_SPILL(a_namespace_file_of_another_version_is_said_plainly_and_passed_over),
		WITH_SPILL(a_namespace_file_of_the_wrong_mode_is_said_once_with_its_cost_and_the_way_out),
		WITH_SPILL(what_is_no_ones_any_more_on_disk_is_garbage),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
