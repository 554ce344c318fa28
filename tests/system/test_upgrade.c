/*
 * test_upgrade.c - a kvpoold of another minor version takes over what the one before left in memory
 *
 * The other one is made of the stats object it would have left: with counters more, or fewer, and so with all rows
 * elsewhere.
 *
 * kvpool-test: parallel
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire.h"

#define BLOCK 20000u
#define N 40u

struct fixture {
	struct host host;
	struct wire w;
	struct wire_ns ns;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	assert_int_equal(
		host_start(&f->host, (const char *[]){"--pool", "4M", "--slab", "1M", "--spill", "off", NULL}), 0);
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, &f->ns, "m", BLOCK), 0);
	for (uint64_t k = 0; k < N; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(wire_put(&f->ns, &key, NULL, k, 2000), KVP_PUB_STORED);
	}
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	bool good = host_alive(&f->host) && host_conserves(&f->host);

	wire_leave(&f->ns);
	wire_close(&f->w);
	host_close(&f->host);
	free(f);
	return good ? 0 : -1;
}

static void rows_move(char *to, uint32_t to_bytes, const char *from, uint32_t from_bytes, uint32_t n, uint32_t n_kept)
{
	for (uint32_t i = 0; i < n; i++)
		memcpy(to + (size_t)to_bytes * i, from + (size_t)from_bytes * i, n_kept);
}

/* The stats object as a kvpoold of layout 1.@minor with @more counters, of the pool and of each namespace, has it:
   noise in those. */
static void stats_of_another_minor(const struct host *host, int more, uint16_t minor)
{
	const struct kvp_stats *now = host->stats;
	uint32_t ns_bytes = (uint32_t)((int)now->ns_row_bytes + 8 * more), least;
	size_t head = (sizeof(*now) + (size_t)(8 * more) + 63) & ~(size_t)63;
	size_t ns_off = head, session_off = ns_off + (size_t)ns_bytes * KVP_STATS_NS_MAX;
	size_t slab_off = session_off + (size_t)now->session_row_bytes * KVP_STATS_SESSIONS_MAX;
	size_t bytes = (slab_off + (size_t)now->slab_row_bytes * now->max_places + 4095) & ~(size_t)4095;
	const char *from = (const char *)now;
	char *to = malloc(bytes), path[160];
	struct kvp_stats *other = (void *)to;
	int fd;

	assert_non_null(to);
	memset(to, 0x5a, bytes);
	memcpy(to, from, sizeof(*now) - (more < 0 ? (size_t)(8 * -more) : 0));
	other->layout_minor = minor;
	other->object_bytes = bytes;
	other->counters_bytes = (uint32_t)((int)now->counters_bytes + 8 * more);
	other->ns_row_bytes = ns_bytes;
	other->ns_off = (uint32_t)ns_off;
	other->session_off = (uint32_t)session_off;
	other->slab_off = (uint32_t)slab_off;
	memset(to + ns_off, 0, bytes - ns_off);
	least = ns_bytes < now->ns_row_bytes ? ns_bytes : now->ns_row_bytes;
	rows_move(to + ns_off, ns_bytes, from + now->ns_off, now->ns_row_bytes, KVP_STATS_NS_MAX, least);
	memcpy(to + session_off, from + now->session_off, slab_off - session_off);
	memcpy(to + slab_off, from + now->slab_off, (size_t)now->slab_row_bytes * now->max_places);
	host_object(host, path, "stats");
	fd = open(path, O_WRONLY | O_TRUNC);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, to, bytes), bytes);
	close(fd);
	free(to);
}

/* Blocks, a hold and a session that was there all the time. */
static void goes_on_after(struct fixture *f, int more, uint16_t minor)
{
	struct kvp_key key = wire_key(7);
	struct wire_pinned pinned;
	uint8_t uuid[16];
	char path[160];
	struct stat st;

	memcpy(uuid, f->host.uuid, 16);
	assert_int_equal(wire_pin(&f->ns, &key, &pinned), 1);
	host_kill(&f->host);
	stats_of_another_minor(&f->host, more, minor);
	assert_int_equal(host_start(&f->host, NULL), 0);
	assert_memory_equal(uuid, f->host.uuid, 16);
	assert_true(host_logged(&f->host, minor ? "counts go on" : "counts begin at 0", 0));
	assert_int_equal(f->host.stats->counters_bytes, sizeof(struct kvp_counters));
	assert_int_equal(atomic_load(&f->host.stats->counters.sessions), 1);
	assert_int_equal(atomic_load(&host_ns_row(&f->host, f->ns.id)->counters.published), N);
	assert_int_equal(atomic_load(&host_ns_row(&f->host, f->ns.id)->counters.stored), minor ? N : 0);
	assert_int_equal(atomic_load(&f->host.stats->counters.sessions_opened), minor ? 1 : 0);
	assert_true(wire_right(pinned.data, pinned.used_bytes, 7));
	wire_unpin(&f->ns, &pinned);
	for (uint64_t k = 0; k < N; k++) {
		key = wire_key(k);
		assert_int_equal(wire_pin(&f->ns, &key, &pinned), 1);
		assert_true(wire_right(pinned.data, pinned.used_bytes, k));
		wire_unpin(&f->ns, &pinned);
	}
	host_object(&f->host, path, "stats-next");
	assert_int_equal(stat(path, &st), -1);
}

static void blocks_and_sessions_of_a_kvpoold_with_more_counters_are_taken_over(void **state)
{
	goes_on_after(*state, 3, KVP_LAYOUT_MINOR + 1);
}

static void blocks_and_sessions_of_a_kvpoold_with_fewer_counters_are_taken_over(void **state)
{
	goes_on_after(*state, -3, KVP_LAYOUT_MINOR);
}

/* It had its counters in no fixed order. */
static void counts_of_layout_1_0_begin_again_and_its_blocks_and_sessions_stay(void **state)
{
	goes_on_after(*state, -3, 0);
}

/* A kvpoold of another minor version begins the pins of a session later: where its header says is where they count. */
static void holds_count_where_the_session_says_its_pins_begin(void **state)
{
	struct fixture *f = *state;
	const uint64_t pins_off = KVP_SESSION_PINS_OFF + KVP_PAGE;
	uint64_t bytes = f->w.session->object_bytes + KVP_PAGE;
	struct {
		struct kvp_wire_batch head;
		struct kvp_key key;
	} ask = {.head = {.n = 1}, .key = wire_key(7)};
	struct wire_pinned pinned;
	struct kvp_wire_found found;
	struct wire other;
	struct wire_ns ns;
	char page[KVP_PAGE];
	int fd = f->w.session_fd; /* closing another one of it would drop the session's lock */

	assert_int_equal(wire_pin(&f->ns, &ask.key, &pinned), 1);
	host_kill(&f->host);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	for (off_t at = (off_t)bytes - 2 * (off_t)KVP_PAGE; at >= (off_t)KVP_SESSION_PINS_OFF; at -= KVP_PAGE) {
		assert_int_equal(pread(fd, page, KVP_PAGE, at), KVP_PAGE);
		assert_int_equal(pwrite(fd, page, KVP_PAGE, at + KVP_PAGE), KVP_PAGE);
	}
	memset(page, 0, KVP_PAGE);
	assert_int_equal(pwrite(fd, page, KVP_PAGE, KVP_SESSION_PINS_OFF), KVP_PAGE);
	f->w.session->pins_off = pins_off;
	f->w.session->object_bytes = bytes;
	f->w.session->header_bytes = pins_off - 64;
	assert_int_equal(host_start(&f->host, NULL), 0);
	assert_int_equal(atomic_load(&f->host.stats->counters.sessions), 1);
	assert_int_equal(f->w.session->header_bytes, sizeof(struct kvp_session_header));
	assert_int_equal(wire_open(&other, f->host.socket), 0);
	assert_int_equal(wire_join(&other, &ns, "m", BLOCK), 0);
	ask.head.ns_id = ns.id;
	assert_int_equal(wire_call(&other, KVP_MSG_DELETE, &ask, sizeof(ask), &found, sizeof(found)), sizeof(found));
	assert_int_equal(found.state, KVP_HIT_RAM); /* in use */
	wire_unpin(&f->ns, &pinned);
	assert_int_equal(wire_call(&other, KVP_MSG_DELETE, &ask, sizeof(ask), &found, sizeof(found)), sizeof(found));
	assert_int_equal(found.state, KVP_MISS);
	wire_leave(&ns);
	wire_close(&other);
}

static void a_half_made_object_of_a_killed_upgrade_is_no_obstacle(void **state)
{
	struct fixture *f = *state;
	char path[160];
	int fd;

	host_object(&f->host, path, "stats-next");
	fd = open(path, O_WRONLY | O_CREAT, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 100), 0);
	close(fd);
	goes_on_after(f, 1, KVP_LAYOUT_MINOR);
}

/* Rows that would lie outside the object are those of no kvpoold: the pool is begun anew, and nothing is read out of
   bounds. */
static void senseless_sizes_are_not_followed(void **state)
{
	struct fixture *f = *state;
	const uint32_t off = 0x7ffffff8;
	char path[160];
	int fd;

	wire_leave(&f->ns);
	wire_close(&f->w);
	host_kill(&f->host);
	stats_of_another_minor(&f->host, 2, KVP_LAYOUT_MINOR + 1);
	host_object(&f->host, path, "stats");
	fd = open(path, O_WRONLY);
	assert_int_equal(pwrite(fd, &off, 4, offsetof(struct kvp_stats, session_off)), 4);
	close(fd);
	assert_int_equal(host_start(&f->host, NULL), 0);
	assert_true(host_logged(&f->host, "of an earlier daemon is dropped", 0));
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, &f->ns, "m", BLOCK), 0);
}

/* ---- levels ---- */

#define LEFT 0x5a5a5a5a5a5aull /* no level that anything here has */

struct level {
	const char *name;
	size_t at; /* in the stats object */
};

static unsigned levels_of(const struct host *host, const struct kvp_ns_row *row, struct level levels[128])
{
	size_t counters = offsetof(struct kvp_stats, counters), ns;
	unsigned n = 0;

	ns = (size_t)((const char *)row - (const char *)host->stats) + offsetof(struct kvp_ns_row, counters);
#define GAUGE true
#define COUNTER false
#define KVP_COUNTER(name, kind, unit, help) \
	if (kind) \
		levels[n++] = (struct level){#name, counters + offsetof(struct kvp_counters, name)};
#define KVP_NS_COUNTER(name, kind, unit, help) \
	if (kind) \
		levels[n++] = (struct level){"namespace: " #name, ns + offsetof(struct kvp_ns_counters, name)};
#include "counters.def"
#undef KVP_COUNTER
#undef KVP_NS_COUNTER
#undef GAUGE
#undef COUNTER
	assert_in_range(n, 40, 128);
	return n;
}

static unsigned levels_left(const struct host *host, const struct level *levels, unsigned n, char text[2000])
{
	unsigned left = 0;

	text[0] = 0;
	for (unsigned i = 0; i < n; i++) {
		uint64_t value;

		memcpy(&value, (const char *)host->stats + levels[i].at, sizeof(value));
		/* what was written today counts on */
		if (value != LEFT || !strcmp(levels[i].name, "spill_day_bytes"))
			continue;
		left++;
		snprintf(text + strlen(text), 2000 - strlen(text), " %s", levels[i].name);
	}
	return left;
}

/* The daemon is killed with all of them at a value of its own; the next one has options @then. */
static void no_level_stays(struct fixture *f, const char *const *then)
{
	const uint64_t left = LEFT;
	struct level levels[128];
	char path[160], text[2000];
	unsigned n = levels_of(&f->host, host_ns_row(&f->host, f->ns.id), levels);
	int fd;

	host_kill(&f->host);
	host_object(&f->host, path, "stats");
	fd = open(path, O_WRONLY);
	assert_true(fd >= 0);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(pwrite(fd, &left, sizeof(left), (off_t)levels[i].at), sizeof(left));
	close(fd);
	assert_int_equal(host_start(&f->host, then), 0);
	if (levels_left(&f->host, levels, n, text))
		fail_msg("of the last daemon it still says:%s", text);
}

static void a_daemon_says_no_level_that_the_last_one_had(void **state)
{
	no_level_stays(*state, NULL);
}

static void without_a_store_nothing_is_said_of_the_last_daemons_one(void **state)
{
	struct fixture *f = *state;
	char spill[160];

	snprintf(spill, sizeof(spill), "%s/spill:16M", f->host.dir);
	assert_int_equal(host_stop(&f->host), 0);
	assert_int_equal(
		host_start(&f->host, (const char *[]){"--pool", "4M", "--slab", "1M", "--spill", spill, NULL}), 0);
	no_level_stays(f, NULL);
	no_level_stays(f, (const char *[]){"--pool", "4M", "--slab", "1M", "--spill", "off", NULL});
	assert_int_equal(atomic_load(&f->host.stats->counters.spill_capacity_bytes), 0);
	assert_int_equal(atomic_load(&f->host.stats->counters.spill_used_bytes), 0);
	assert_int_equal(atomic_load(&host_ns_row(&f->host, f->ns.id)->counters.cold), 0);
}

#define WITH_BLOCKS(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_BLOCKS(blocks_and_sessions_of_a_kvpoold_with_more_counters_are_taken_over),
		WITH_BLOCKS(blocks_and_sessions_of_a_kvpoold_with_fewer_counters_are_taken_over),
		WITH_BLOCKS(counts_of_layout_1_0_begin_again_and_its_blocks_and_sessions_stay),
		WITH_BLOCKS(holds_count_where_the_session_says_its_pins_begin),
		WITH_BLOCKS(a_half_made_object_of_a_killed_upgrade_is_no_obstacle),
		WITH_BLOCKS(senseless_sizes_are_not_followed),
		WITH_BLOCKS(a_daemon_says_no_level_that_the_last_one_had),
		WITH_BLOCKS(without_a_store_nothing_is_said_of_the_last_daemons_one),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
