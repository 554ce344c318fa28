/*
 * test_trials_tier.c - trials: half of the state is lost, old, damaged, or somebody else's
 *
 * B20, B21, B24, B25, B26, B27, B53, B79, B80 on a whole daemon; tests/unit/test_spill*.c has them on the store alone.
 * "Right or missing": exact bytes or a miss, never anything else.
 *
 * kvpool-test: parallel timeout=300
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define N 100u /* blocks: three times what memory holds */
#define PAGE 4096

static struct trial *given(uid_t uid, const char *spill)
{
	struct trial *t = malloc(sizeof(*t));

	assert_non_null(t);
	trial_given(t, uid, "2M", spill);
	return t;
}

static int setup(void **state)
{
	struct trial *t = given(geteuid(), "64M");

	trial_start(t);
	trial_attach(t);
	*state = t;
	return 0;
}

static void put_blocks(struct kvp_ns *ns, uint64_t first, unsigned n)
{
	for (uint64_t k = first; k < first + n; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(trial_put(ns, &key, NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
}

/* Return: how many are there; all of them are right. */
static unsigned right_or_missing(struct kvp_ns *ns, uint64_t first, unsigned n)
{
	unsigned there = 0;

	for (uint64_t k = first; k < first + n; k++) {
		struct kvp_key key = wire_key(k);
		int r = trial_get(ns, &key, k, TRIAL_BLOCK);

		assert_true(r >= 0);
		there += (unsigned)r;
	}
	return there;
}

static void store_path(const struct trial *t, char path[128])
{
	snprintf(path, 128, "%s/kvpool.store", t->spill);
}

static void shell(const char *command, const char *a, const char *b)
{
	char text[512];

	snprintf(text, sizeof(text), command, a, b);
	assert_int_equal(system(text), 0);
}

static uint64_t pool_counter(const struct trial *t, size_t off)
{
	return atomic_load((const _Atomic uint64_t *)(const void *)((const char *)&t->host.stats->counters + off));
}
#define COUNTER(t, name) pool_counter(t, offsetof(struct kvp_counters, name))

/* ---- B25 ---- */

static void damage_payload(const struct trial *t, uint64_t k)
{
	static char want[PAGE], page[PAGE];
	char path[128];
	unsigned found = 0;
	int fd;

	store_path(t, path);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	wire_fill(want, PAGE, k);
	for (off_t off = 0; pread(fd, page, PAGE, off) == PAGE; off += PAGE)
		if (!memcmp(page, want, PAGE)) {
			assert_int_equal(pwrite(fd, "\xff\x00\xff", 3, off + 1000), 3);
			found++;
		}
	close(fd);
	assert_true(found > 0);
}

static void a_drain_to_a_store_without_room_for_all_tells_how_many_are_left(void **state)
{
	enum { MANY = 500 };
	struct trial trial, *t = &trial;
	char out[1024] = "";
	unsigned n_written = 0, n_left = 0, n_pushed = 0, n_there = 0;
	const char *pushed;

	(void)state;
	trial_given(t, geteuid(), "64M", "16M"); /* 256 blocks of it at most */
	trial_start(t);
	trial_attach(t);
	for (unsigned i = 0; i < MANY; i++) {
		struct kvp_key key = wire_key(i);

		assert_int_equal(trial_put(t->ns, &key, NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
	}
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "drain"), 1);
	assert_int_equal(sscanf(out, "drained: %u blocks written, %u left", &n_written, &n_left), 2);
	pushed = strstr(out, "left; ");
	assert_non_null(pushed);
	assert_int_equal(sscanf(pushed, "left; %u were written and pushed out again", &n_pushed), 1);
	assert_int_equal(n_written + n_left, MANY);
	assert_int_equal(n_pushed, n_left);
	assert_in_range(n_written, 1, 256);
	trial_detach(t);
	host_kill(&t->host);
	trial_memory_gone(t);
	trial_start(t);
	trial_attach(t);
	for (unsigned i = 0; i < MANY; i++) {
		struct kvp_key key = wire_key(i);

		n_there += trial_get(t->ns, &key, i, TRIAL_BLOCK) == 1;
	}
	assert_int_equal(n_there, n_written);
	assert_true(trial_end(t));
}

static void a_chain_with_a_damaged_block_is_usable_up_to_there_and_leaves_no_debris(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[16];
	struct kvp_view views[16];

	for (unsigned i = 0; i < 16; i++) {
		keys[i] = wire_key(i);
		assert_int_equal(trial_put(t->ns, &keys[i], i ? &keys[i - 1] : NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
	}
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	trial_detach(t);
	assert_int_equal(host_stop(&t->host), 0);
	trial_memory_gone(t);
	damage_payload(t, 9);
	trial_start(t);
	trial_attach(t);
	assert_int_equal(kvp_acquire(t->ns, keys, 16, 0, kvp_deadline_ms(10000), views), 9);
	for (unsigned i = 0; i < 9; i++)
		assert_true(wire_right(views[i].data, TRIAL_BLOCK, i));
	kvp_release(views, 16);
	put_blocks(t->ns, 1000, 60); /* into the same slots */
	assert_int_equal(right_or_missing(t->ns, 1000, 60), 60);
	assert_int_equal(kvp_acquire(t->ns, keys, 0, 0, kvp_deadline_ms(1000), views), 0);
	keys[15] = wire_key(99999);
	assert_int_equal(kvp_acquire(t->ns, &keys[15], 1, 0, kvp_deadline_ms(1000), views), 0);
	assert_int_equal(trial_get(t->ns, &keys[9], 9, TRIAL_BLOCK), 0);
	assert_int_equal(trial_put(t->ns, &keys[9], &keys[8], 9, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(kvp_acquire(t->ns, keys, 10, 0, kvp_deadline_ms(10000), views), 10);
	for (unsigned i = 0; i < 10; i++)
		assert_true(wire_right(views[i].data, TRIAL_BLOCK, i));
	kvp_release(views, 10);
}

/* ---- what a reader held it holds no longer than it lives ---- */

static void what_a_reader_had_read_back_may_go_when_it_has_left(void **state)
{
	struct trial *t = *state;
	char out[4096];

	put_blocks(t->ns, 0, 8);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict"), 0);
	usleep(2 * KVP_TICK_MS * 1000); /* else the writer's use of the slot is of the same tick, and does not count */
	for (uint64_t k = 0; k < 8; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(trial_get(t->ns, &key, k, TRIAL_BLOCK), 1);
	}
	trial_detach(t);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "evict"), 0);
	assert_non_null(strstr(out, "evicted: 8 blocks"));
}

/* ---- B27 ---- */

enum lost {
	LOST_MEMORY,
	LOST_STORE,
	LOST_SPILL_FILES, /* all in the directory */
	LOST_NAMESPACES, /* their files there */
	LOST_HALF_STORE,
	OLD_STORE,
	OLD_STORE_AND_MEMORY,
	N_LOST,
};

static void lose(const struct trial *t, enum lost what)
{
	char path[128];

	store_path(t, path);
	if (what == LOST_MEMORY || what == OLD_STORE_AND_MEMORY)
		trial_memory_gone(t);
	if (what == LOST_STORE)
		assert_int_equal(unlink(path), 0);
	if (what == LOST_SPILL_FILES)
		shell("rm -f %s/*", t->spill, "");
	if (what == LOST_NAMESPACES)
		shell("rm -f %s/ns-*", t->spill, "");
	if (what == LOST_HALF_STORE)
		assert_int_equal(truncate(path, 4 << 20), 0);
	if (what == OLD_STORE || what == OLD_STORE_AND_MEMORY)
		shell("cp %s.old %s", path, path);
}

static void restart_without(struct trial *t, enum lost what)
{
	char path[128];

	store_path(t, path);
	put_blocks(t->ns, 0, N);
	trial_detach(t);
	assert_int_equal(host_stop(&t->host), 0);
	shell("cp %s %s.old", path, path);
	trial_start(t);
	trial_attach(t);
	put_blocks(t->ns, 1000, N);
	trial_detach(t);
	assert_int_equal(host_stop(&t->host), 0);
	lose(t, what);
	trial_start(t);
	trial_attach(t);
}

static void half_of_the_state_lost(enum lost what)
{
	struct trial *t = given(geteuid(), "64M");
	unsigned there;

	trial_start(t);
	trial_attach(t);
	restart_without(t, what);
	there = right_or_missing(t->ns, 0, N) + right_or_missing(t->ns, 1000, N);
	if (what == LOST_STORE || what == OLD_STORE) /* memory was not lost */
		assert_true(there > 0);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "stats"), 0);
	put_blocks(t->ns, 2000, N);
	assert_int_equal(right_or_missing(t->ns, 2000, N), N);
	assert_true(trial_end(t));
	free(t);
}

static void without_its_memory_each_block_is_right_or_missing(void **state)
{
	(void)state;
	half_of_the_state_lost(LOST_MEMORY);
}

static void without_its_store_each_block_is_right_or_missing(void **state)
{
	(void)state;
	half_of_the_state_lost(LOST_STORE);
	half_of_the_state_lost(LOST_SPILL_FILES);
}

static void without_its_namespace_files_each_block_is_right_or_missing(void **state)
{
	(void)state;
	half_of_the_state_lost(LOST_NAMESPACES);
}

static void with_half_of_its_store_each_block_is_right_or_missing(void **state)
{
	(void)state;
	half_of_the_state_lost(LOST_HALF_STORE);
}

static void with_the_store_of_an_older_stop_each_block_is_right_or_missing(void **state)
{
	(void)state;
	half_of_the_state_lost(OLD_STORE);
	half_of_the_state_lost(OLD_STORE_AND_MEMORY);
}

/* ---- B26 ---- */

static void no_second_owner_comes_by_a_link_and_a_copy_is_a_store_of_its_own(void **state)
{
	struct trial *t = *state, *second = given(geteuid(), "64M");
	char link[96];

	put_blocks(t->ns, 0, N);
	snprintf(link, sizeof(link), "%s/link", second->host.dir);
	assert_int_equal(symlink(t->spill, link), 0);
	snprintf(second->spill_option, sizeof(second->spill_option), "%s:64M", link);
	assert_int_equal(host_start(&second->host, NULL), -1001);
	assert_true(host_logged(&second->host, t->spill, 0) || host_logged(&second->host, link, 0));
	shell("cp %s/* %s/", t->spill, second->spill);
	snprintf(second->spill_option, sizeof(second->spill_option), "%s:64M", second->spill);
	trial_start(second);
	trial_attach(second);
	right_or_missing(second->ns, 0, N);
	put_blocks(second->ns, 1000, N);
	assert_int_equal(right_or_missing(second->ns, 1000, N), N);
	assert_true(trial_end(second));
	free(second);
	assert_int_equal(right_or_missing(t->ns, 0, N), N);
}

/* ---- B21, B79 ---- */

static uint64_t bytes_on_disk(const struct trial *t)
{
	DIR *dir = opendir(t->spill);
	struct dirent *entry;
	uint64_t bytes = 0;
	struct stat st;

	assert_non_null(dir);
	while ((entry = readdir(dir)))
		if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
			bytes += (uint64_t)st.st_blocks * 512;
	closedir(dir);
	return bytes;
}

static void three_times_the_stores_size_never_takes_more_than_its_size(void **state)
{
	struct trial *t = given(geteuid(), "16M");

	(void)state;
	trial_start(t);
	trial_attach(t);
	for (unsigned i = 0; i < 48; i++) {
		put_blocks(t->ns, i * 16, 16);
		assert_true(bytes_on_disk(t) <= (17u << 20));
	}
	assert_true(trial_end(t));
	free(t);
}

static void there_is_no_store_without_a_size(void **state)
{
	struct trial *t = given(geteuid(), "16M");

	(void)state;
	snprintf(t->spill_option, sizeof(t->spill_option), "%s", t->spill);
	assert_int_equal(host_start(&t->host, NULL), -1002);
	assert_true(trial_end(t));
	free(t);
}

static void crashes_leave_nothing_on_disk_that_is_not_counted(void **state)
{
	struct trial *t = given(geteuid(), "16M");
	unsigned seed = 1;

	(void)state;
	trial_start(t);
	for (unsigned round = 0; round < 12; round++) {
		trial_attach(t);
		put_blocks(t->ns, round * 1000, 40 + (unsigned)rand_r(&seed) % 60);
		trial_detach(t);
		host_kill(&t->host);
		trial_start(t);
		assert_true(bytes_on_disk(t) <= (17u << 20));
		assert_true(COUNTER(t, spill_used_bytes) <= 16u << 20);
	}
	trial_attach(t);
	for (unsigned round = 0; round < 12; round++)
		right_or_missing(t->ns, round * 1000, 100);
	assert_true(trial_end(t));
	free(t);
}

/* ---- B24 ---- */

#define REWRITTEN 8u

/* What is published under key @k the @turn-th time: its length tells which pattern it must hold. */
static uint64_t bytes_of(unsigned turn)
{
	return turn & 1 ? TRIAL_BLOCK : TRIAL_BLOCK / 2 + 17;
}

/* What the readers are told. */
struct tell {
	_Atomic int stop;
	_Atomic int rest; /* what is read all the time is never forgotten */
};

static int read_until_stopped(const struct trial *t, const struct tell *tell)
{
	struct kvp_client *client;
	struct kvp_desc desc;
	struct kvp_ns *ns;

	trial_desc(&desc);
	if (trial_client(t, &client) < 0 || trial_ns(client, "m", &desc, &ns) < 0)
		return 2;
	for (uint64_t i = 0; !atomic_load(&tell->stop) && getppid() != 1; i++) {
		uint64_t k = i % REWRITTEN;
		struct kvp_key key = wire_key(k);
		struct kvp_view view;
		bool right = true;

		if (atomic_load(&tell->rest)) {
			wire_sleep_ms(1);
			continue;
		}
		if (kvp_acquire(ns, &key, 1, 0, kvp_deadline_ms(50), &view) == 1) {
			right = view.used_bytes == bytes_of(0)
					? wire_right(view.data, bytes_of(0), k)
					: view.used_bytes == bytes_of(1) && wire_right(view.data, bytes_of(1), 500 + k);
			kvp_release(&view, 1);
		}
		if (!right)
			return 1;
	}
	return 0;
}

/* Return: is none of the keys left, neither in memory nor in the store? */
static bool forgotten(struct kvp_ns *ns)
{
	struct kvp_key keys[REWRITTEN];
	struct kvp_match_part part = {.ns = ns, .keys = keys};
	uint8_t states[REWRITTEN];
	bool none = true;

	for (uint64_t k = 0; k < REWRITTEN; k++)
		keys[k] = wire_key(k);
	assert_true(kvp_match(&part, 1, REWRITTEN, KVP_MATCH_ALL, states) >= 0);
	for (unsigned i = 0; i < REWRITTEN; i++)
		none = none && states[i] == KVP_MISS;
	return none;
}

static void fill(struct kvp_ns *ns, uint64_t first, unsigned n)
{
	for (uint64_t k = first; k < first + n; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(trial_put(ns, &key, NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
}

/* @turn: no other may be the same: what fills the store has keys of its own. */
static void rewrite(struct trial *t, struct tell *tell, unsigned turn, bool after_kill)
{
	uint64_t other = (turn + 1) * 1000000ull, until = kvp_deadline_ms(60000);

	for (uint64_t k = 0; k < REWRITTEN; k++) {
		struct kvp_key key = wire_key(k);

		int r = trial_put(t->ns, &key, NULL, (turn & 1) * 500 + k, bytes_of(turn));

		/* after a kill a start may find again what the log had given up but not written over, and a reader
		   bring it back before us: then it is wholly old */
		assert_true(r == KVP_PUB_STORED || (r == KVP_PUB_EXISTS && after_kill));
	}
	fill(t->ns, other, 100); /* with readers that bring them back */
	atomic_store(&tell->rest, 1);
	for (unsigned more = 100; !forgotten(t->ns); more += 20) {
		/* what was read back for a reader that stopped then is held for a second yet, however much comes after
		   it */
		assert_true(kvp_deadline_ms(0) < until && more < 1000000);
		fill(t->ns, other + more, 20);
		if (more >= 1000) /* a disk slower than this is passed by, and nothing in the store makes room */
			assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	}
	atomic_store(&tell->rest, 0);
}

static void a_key_written_again_and_again_is_read_wholly_old_or_wholly_new(void **state)
{
	struct trial *t = given(geteuid(), "16M"); /* the least there is: keys are forgotten soon */
	struct tell *tell = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t readers[4];
	int status;

	(void)state;
	assert_true(tell != MAP_FAILED);
	trial_start(t);
	for (unsigned i = 0; i < 4; i++) {
		readers[i] = fork();
		if (readers[i] == 0)
			_exit(read_until_stopped(t, tell));
	}
	for (unsigned round = 0; round < 4; round++) {
		trial_attach(t);
		for (unsigned turn = 0; turn < 3; turn++)
			rewrite(t, tell, 3 * round + turn, round && !turn);
		host_kill(&t->host);
		trial_start(t);
		trial_detach(t);
	}
	atomic_store(&tell->stop, 1);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(waitpid(readers[i], &status, 0), readers[i]);
		assert_int_equal(status, 0);
	}
	munmap(tell, PAGE);
	assert_true(trial_end(t));
	free(t);
}

static void what_hangs_below_dropped_records_is_no_orphan(void **state)
{
	struct trial *t = given(geteuid(), "64M");
	unsigned seed = 7, n_back = 0;

	(void)state;
	trial_start(t);
	trial_attach(t);
	for (unsigned round = 0; round < 12; round++) {
		struct kvp_key parent = {{0}};

		for (unsigned k = 0; k < 200; k++) {
			struct kvp_key key = wire_key(round * 1000 + k);

			assert_int_equal(trial_put(t->ns, &key, k ? &parent : NULL, round * 1000 + k, TRIAL_BLOCK),
				KVP_PUB_STORED);
			parent = key;
		}
		for (unsigned i = 0; i < 24; i++) { /* from the middle: what is above them stays in the store */
			unsigned k = round * 1000 + (unsigned)rand_r(&seed) % 200;
			struct kvp_key key = wire_key(k);

			n_back += trial_get(t->ns, &key, k, TRIAL_BLOCK) == 1;
		}
		assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "store", "drop", "--yes"), 0);
		assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "check"), 0);
	}
	assert_true(n_back > 0);
	assert_true(trial_end(t));
	free(t);
}

/* ---- B20 ---- */

static void what_could_not_be_written_is_never_found_and_the_failures_are_counted(void **state)
{
	struct trial *t = given(geteuid(), "64M");
	char binary[sizeof(t->host.binary)], stats[8192];
	const char *build = getenv("BUILD");

	(void)state;
	memcpy(binary, t->host.binary, sizeof(binary));
	snprintf(t->host.binary, sizeof(t->host.binary), "%s/kvpoold-fault", build ? build : "build");
	setenv("KVPOOL_FAULT", "io.write=-EIO@%5,io.sync=-EIO@%3", 1);
	trial_start(t);
	unsetenv("KVPOOL_FAULT");
	trial_attach(t);
	put_blocks(t->ns, 0, 2 * N);
	right_or_missing(t->ns, 0, 2 * N);
	assert_true(COUNTER(t, spill_write_errors) > 0);
	assert_int_equal(COUNTER(t, spill_last_errno), 5);
	assert_int_equal(TRIAL_KVCTL(t, stats, sizeof(stats), "stats"), 0);
	/* as long as it is down, and once it is up again */
	assert_true(strstr(stats, "errno 5") || strstr(stats, "last error 5 "));
	trial_detach(t);
	assert_int_equal(host_stop(&t->host), 0);
	trial_memory_gone(t);
	memcpy(t->host.binary, binary, sizeof(binary));
	trial_start(t);
	trial_attach(t);
	right_or_missing(t->ns, 0, 2 * N);
	assert_true(trial_end(t));
	free(t);
}

/* ---- B53, B80 ---- */

static void a_directory_that_cannot_be_written_refuses_the_start_with_path_and_errno(void **state)
{
	struct trial *t;

	(void)state;
	if (geteuid() != 0)
		skip();
	t = given(61001, "16M");
	assert_int_equal(chown(t->spill, 0, 0), 0);
	assert_int_equal(chmod(t->spill, 0555), 0);
	assert_int_equal(host_start(&t->host, NULL), -1001);
	assert_true(host_logged(&t->host, t->spill, 0));
	assert_true(host_logged(&t->host, "Permission denied", 0) || host_logged(&t->host, "errno", 0));
	assert_true(trial_end(t));
	free(t);
}

static unsigned lines_in(const char *path)
{
	FILE *file = fopen(path, "re");
	unsigned n = 0;
	int c;

	assert_non_null(file);
	while ((c = fgetc(file)) != EOF)
		n += c == '\n';
	fclose(file);
	return n;
}

static bool tier_is(const struct trial *t, uint64_t want, unsigned ms)
{
	uint64_t until = wire_now() + ms * 1000000ull;

	while (COUNTER(t, spill_state) != want && wire_now() < until)
		wire_sleep_ms(50);
	return COUNTER(t, spill_state) == want;
}

static void a_directory_taken_away_shows_in_stats_within_five_seconds_and_comes_back(void **state)
{
	struct trial *t = *state;
	char away[96], stats[8192];
	unsigned lines;
	uint64_t from;

	put_blocks(t->ns, 0, N);
	lines = lines_in(t->host.log);
	from = wire_now();
	snprintf(away, sizeof(away), "%s.away", t->spill);
	assert_int_equal(rename(t->spill, away), 0);
	put_blocks(t->ns, 1000, N); /* served all the same */
	assert_true(tier_is(t, 2, 5000));
	assert_int_equal(TRIAL_KVCTL(t, stats, sizeof(stats), "stats"), 0);
	assert_non_null(strstr(stats, "down"));
	assert_non_null(strstr(stats, "errno"));
	put_blocks(t->ns, 2000, N);
	right_or_missing(t->ns, 0, N);
	wire_sleep_ms(2000);
	assert_true(lines_in(t->host.log) - lines <= 2 + (wire_now() - from) / 1000000000u);
	assert_true(host_logged(&t->host, t->spill, 0));
	assert_int_equal(rename(away, t->spill), 0);
	assert_true(tier_is(t, 1, 40000));
	put_blocks(t->ns, 3000, N);
	assert_int_equal(right_or_missing(t->ns, 3000, N), N);
}

/* By a read-only mount over it: a mount or file system in which a file is open for writing takes no remount, except
   when the kernel itself finds it broken. */
static void a_directory_read_only_all_of_a_sudden_shows_and_comes_back_when_it_is_writable(void **state)
{
	struct trial *t = *state;
	char stats[8192];

	if (geteuid() != 0)
		skip();
	put_blocks(t->ns, 0, N);
	assert_int_equal(mount(t->spill, t->spill, NULL, MS_BIND, NULL), 0);
	assert_int_equal(mount(NULL, t->spill, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), 0);
	assert_true(tier_is(t, 2, 5000));
	assert_int_equal(TRIAL_KVCTL(t, stats, sizeof(stats), "stats"), 0);
	assert_non_null(strstr(stats, "Read-only file system (errno 30)"));
	assert_non_null(strstr(stats, t->spill));
	put_blocks(t->ns, 1000, N); /* served all the same */
	right_or_missing(t->ns, 0, N);
	assert_int_equal(umount2(t->spill, MNT_DETACH), 0);
	assert_true(tier_is(t, 1, 40000));
	put_blocks(t->ns, 2000, N);
	assert_int_equal(right_or_missing(t->ns, 2000, N), N);
}

#define WITH_STORE(test) cmocka_unit_test_setup_teardown(test, setup, trial_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_drain_to_a_store_without_room_for_all_tells_how_many_are_left),
		WITH_STORE(a_chain_with_a_damaged_block_is_usable_up_to_there_and_leaves_no_debris),
		WITH_STORE(what_a_reader_had_read_back_may_go_when_it_has_left),
		cmocka_unit_test(without_its_memory_each_block_is_right_or_missing),
		cmocka_unit_test(without_its_store_each_block_is_right_or_missing),
		cmocka_unit_test(without_its_namespace_files_each_block_is_right_or_missing),
		cmocka_unit_test(with_half_of_its_store_each_block_is_right_or_missing),
		cmocka_unit_test(with_the_store_of_an_older_stop_each_block_is_right_or_missing),
		WITH_STORE(no_second_owner_comes_by_a_link_and_a_copy_is_a_store_of_its_own),
		cmocka_unit_test(three_times_the_stores_size_never_takes_more_than_its_size),
		cmocka_unit_test(there_is_no_store_without_a_size),
		cmocka_unit_test(crashes_leave_nothing_on_disk_that_is_not_counted),
		cmocka_unit_test(what_hangs_below_dropped_records_is_no_orphan),
		cmocka_unit_test(a_key_written_again_and_again_is_read_wholly_old_or_wholly_new),
		cmocka_unit_test(what_could_not_be_written_is_never_found_and_the_failures_are_counted),
		cmocka_unit_test(a_directory_that_cannot_be_written_refuses_the_start_with_path_and_errno),
		WITH_STORE(a_directory_taken_away_shows_in_stats_within_five_seconds_and_comes_back),
		WITH_STORE(a_directory_read_only_all_of_a_sudden_shows_and_comes_back_when_it_is_writable),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
