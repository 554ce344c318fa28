/*
 * check.c - kvctl check: every invariant that can be seen from outside, recounted from the objects themselves
 *
 * Compares four things that different code wrote: descriptors and indexes, pin tables, the roll of rows, the files in
 * /dev/shm.  The daemon's sums are what is checked, never what is believed.  A running daemon changes things meanwhile:
 * gauges are compared only when neither version nor any counter of the row moved around the recount, and what a look
 * finds wrong is looked at again: only what lasts is a violation.
 */
#define _GNU_SOURCE 1
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "census.h"
#include "finding.h"
#include "kvctl.h"
#include "ns.h"
#include "option.h"
#include "pool.h"
#include "quantity.h"
#include "report.h"
#include "snapshot.h"

#define LASTING_NS 3000000000ull /* longer than a round of looking at pins, than two heartbeats */
#define PATIENCE_NS 10000000000ull /* for a daemon on a machine with more to do than it can */
#define PASS_PAUSE_NS 50000000
#define STABLE_TRIES 20
#define LOOKS 5 /* at least, where one takes long: on a busy host the first would be the last */
#define PIN_COUNT_MAX (1u << 24) /* threads and views of one session; more is a count that fell below 0 */

struct check {
	struct pool pool;
	struct snapshot snapshot;
	struct findings findings;
	struct census *census; /* one for each namespace row */
	uint64_t session_holds, session_pins; /* recounted, and a hash of its pins: of the session in hand */
};

static const struct kvp_slab_row *slab_row(const struct check *check, uint64_t number)
{
	for (unsigned i = 0; i < check->snapshot.n_slabs; i++)
		if (C(check->snapshot.slabs[i].row.number) == number)
			return &check->snapshot.slabs[i].row;
	return NULL;
}

static const struct kvp_session_row *session_row(const struct check *check, uint64_t id)
{
	for (unsigned i = 0; i < check->snapshot.n_sessions; i++)
		if (C(check->snapshot.sessions[i].session_id) == id)
			return &check->snapshot.sessions[i];
	return NULL;
}

static struct census *census_of(const struct check *check, uint64_t ns_id)
{
	for (unsigned i = 0; i < check->snapshot.n_ns; i++)
		if (check->census[i].ns_id == ns_id && check->census[i].readable)
			return &check->census[i];
	return NULL;
}

/* ---- files ---- */

static bool id_parse(const char *text, const char *prefix, int base, uint64_t *id)
{
	size_t n = strlen(prefix);
	const char *digits = base == 16 ? "0123456789abcdef" : "0123456789";

	if (strncmp(text, prefix, n) || !text[n] || text[n + strspn(text + n, digits)] ||
		(base == 16 && strlen(text + n) != 16))
		return false;
	*id = strtoull(text + n, NULL, base);
	return true;
}

/* A ring's lock file outlives its daemon until the ring's last I/O has ended. */
static bool io_file_busy(const struct check *check, const char *rest)
{
	char path[POOL_PATH_MAX];
	struct stat st;
	bool busy;
	int fd;

	pool_path(&check->pool, path, "%s", rest);
	fd = pool_object_open(&check->pool, path, &st);
	if (fd < 0)
		return false;
	busy = flock(fd, LOCK_SH | LOCK_NB) < 0;
	close(fd);
	return busy;
}

/* Is the object /dev/shm/kvp-<uuid>-<rest> part of the pool? */
static bool object_listed(const struct check *check, const char *rest)
{
	const struct kvp_slab_row *row;
	uint64_t id;

	if (!strcmp(rest, "header") || !strcmp(rest, "stats"))
		return true;
	if (id_parse(rest, "ns-", 16, &id))
		return snapshot_ns(&check->snapshot, id) != NULL;
	if (id_parse(rest, "sess-", 16, &id))
		return session_row(check, id) != NULL;
	if (id_parse(rest, "slab-", 10, &id)) {
		row = slab_row(check, id);
		return row && row->use != KVP_SLAB_LEAVING;
	}
	if (id_parse(rest, "stage-", 10, &id)) /* have no row: their sum is compared */
		return C(check->snapshot.head.counters.slab_bytes_staging) != 0;
	if (id_parse(rest, "io-", 10, &id))
		return id == C(check->pool.header.epoch) || io_file_busy(check, rest);
	return false;
}

static void check_files(struct check *check)
{
	struct findings *findings = &check->findings;
	DIR *dir = opendir(POOL_SHM_DIR);
	struct dirent *entry;
	uint64_t staging = 0;

	if (!dir) {
		findings->n_skipped++;
		return;
	}
	while ((entry = readdir(dir))) {
		char uuid[POOL_UUID_TEXT];
		const char *rest = pool_uuid_of_name(entry->d_name, uuid);
		struct stat st;

		if (!rest || strcmp(uuid, check->pool.uuid) ||
			fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		if (!strncmp(rest, "stage-", 6))
			staging += (uint64_t)st.st_size;
		expect(findings, FINDING_SOFT, object_listed(check, rest), entry->d_name, "an object that no row lists",
			"none", "%" PRIu64 " bytes of memory", (uint64_t)st.st_blocks * 512);
		expect(findings, FINDING_HARD, S_ISREG(st.st_mode) && st.st_uid == check->pool.uid && st.st_nlink == 1,
			entry->d_name, "a regular file of the pool's user, linked once", "so",
			"mode %o, uid %u, %u links", st.st_mode, st.st_uid, (unsigned)st.st_nlink);
		expect(findings, FINDING_SOFT,
			!(st.st_mode & (!strcmp(rest, "header") || !strcmp(rest, "stats") ? 037 : 077)), entry->d_name,
			"who may open it", "only its user (header, stats: its group may read)", "mode %04o",
			st.st_mode & 07777);
	}
	closedir(dir);
	if (check->snapshot.inconsistent)
		findings->n_skipped++;
	else
		expect_u64(findings, FINDING_SOFT, "stats", "slab_bytes_staging: gauge, objects",
			C(check->snapshot.head.counters.slab_bytes_staging), staging);
}

static void check_pool_file(struct check *check)
{
	char path[POOL_PATH_MAX], text[POOL_UUID_TEXT] = "";
	struct stat st;
	int fd, r;

	snprintf(path, sizeof(path), POOL_SHM_DIR "/kvpool.%s", check->pool.name);
	fd = pool_object_open(&check->pool, path, &st);
	r = fd < 0 ? fd : pool_read(fd, text, POOL_UUID_TEXT - 1, 0);
	if (fd >= 0)
		close(fd);
	expect(&check->findings, FINDING_SOFT, r == 0 && !strcmp(text, check->pool.uuid), path + sizeof(POOL_SHM_DIR),
		"the pool's file names this pool", check->pool.uuid, "%s", r < 0 ? strerror(-r) : text);
}

/* ---- slabs ---- */

static void check_slab_object(struct check *check, const struct kvp_slab_row *row)
{
	const struct kvp_pool_header *header = &check->pool.header;
	char path[POOL_PATH_MAX + KVP_HUGE_DIR_MAX];
	const char *object;
	struct stat st = {0};
	int r;

	snprintf(path, sizeof(path), "%s/kvp-%s-slab-%" PRIu64,
		kvp_pages_in_hugetlbfs(header->pages) && row->page_kib > 4 ? header->huge_dir : POOL_SHM_DIR,
		check->pool.uuid, (uint64_t)C(row->number));
	object = strrchr(path, '/') + 1;
	r = stat(path, &st);
	if (row->use == KVP_SLAB_LEAVING)
		return;
	if (!expect(&check->findings, FINDING_SOFT, r == 0, object, "object of a listed slab", "there", "%s",
		    r < 0 ? strerror(errno) : ""))
		return;
	/* clients may cut or punch what they write to: the daemon finds out, and so do we */
	expect_u64(&check->findings, FINDING_SOFT, object, "length as listed", row->bytes, (uint64_t)st.st_size);
	expect(&check->findings, FINDING_SOFT, (uint64_t)st.st_blocks * 512 >= row->bytes, object,
		"all of it is allocated", "as long as it is", "%" PRIu64 " of %" PRIu64, (uint64_t)st.st_blocks * 512,
		row->bytes);
}

static void check_slab_row(struct check *check, const struct snapshot_slab *slab)
{
	const struct kvp_slab_row *row = &slab->row;
	const struct census *census = census_of(check, row->ns_id);
	uint64_t number = C(row->number);
	char object[64];

	snprintf(object, sizeof(object), "slab %" PRIu64 " (place %u)", number, slab->place);
	expect(&check->findings, FINDING_HARD, number < C(check->snapshot.head.next_number), object,
		"numbers come from next_number", "a smaller one", "next is %" PRIu64,
		(uint64_t)C(check->snapshot.head.next_number));
	expect(&check->findings, FINDING_HARD, row->use >= KVP_SLAB_SPARE && row->use <= KVP_SLAB_LEAVING, object,
		"use", "1 to 4", "%u", row->use);
	expect(&check->findings, FINDING_HARD, slab_row(check, number) == row, object, "listed once", "1 row",
		"2 rows");
	if (row->use == KVP_SLAB_BLOCKS &&
		expect(&check->findings, FINDING_SOFT, census != NULL, object, "its namespace is listed", "a row",
			"no namespace %016" PRIx64, row->ns_id))
		expect(&check->findings, FINDING_SOFT,
			slab->place < census->head->max_places && C(census->slabs[slab->place].number) == number,
			object, "in the slab table of its namespace", "at its place", "not there");
	check_slab_object(check, row);
}

/* The other way round: what namespaces say they have. */
static void check_slab_tables(struct check *check)
{
	for (unsigned i = 0; i < check->snapshot.n_ns; i++) {
		const struct census *census = &check->census[i];

		for (uint32_t place = 0; census->readable && place < census->head->max_places; place++) {
			uint64_t number = C(census->slabs[place].number);
			const struct kvp_slab_row *row = number ? slab_row(check, number) : NULL;
			char object[POOL_PATH_MAX + 32];

			if (!number)
				continue;
			snprintf(object, sizeof(object), "%s place %u", census->object, place);
			expect(&check->findings, FINDING_SOFT,
				row && row->use == KVP_SLAB_BLOCKS && row->ns_id == census->ns_id, object,
				"its slab is listed, and as this namespace's", "a row that says so",
				row ? "slab %" PRIu64 " of another" : "slab %" PRIu64 " in no row", number);
			if (row)
				expect_u64(&check->findings, FINDING_SOFT, object, "bytes of its slab as listed",
					row->bytes, census->slabs[place].bytes);
		}
	}
}

static void check_slabs(struct check *check)
{
	const struct kvp_counters *c = &check->snapshot.head.counters;
	uint64_t total = 0, spare = 0;

	for (unsigned i = 0; i < check->snapshot.n_slabs; i++) {
		const struct kvp_slab_row *row = &check->snapshot.slabs[i].row;

		check_slab_row(check, &check->snapshot.slabs[i]);
		total += row->bytes;
		spare += row->use == KVP_SLAB_SPARE ? row->bytes : 0;
	}
	check_slab_tables(check);
	expect(&check->findings, FINDING_SOFT, total <= check->pool.header.pool_bytes, "slabs", "within the budget",
		"at most pool_bytes", "%" PRIu64 " > %" PRIu64, total, check->pool.header.pool_bytes);
	if (check->snapshot.inconsistent) {
		check->findings.n_skipped += 3;
		return;
	}
	expect_u64(&check->findings, FINDING_SOFT, "stats", "slabs: gauge, rows", C(c->slabs), check->snapshot.n_slabs);
	expect_u64(&check->findings, FINDING_SOFT, "stats", "slab_bytes_allocated: gauge, rows",
		C(c->slab_bytes_allocated), total);
	expect_u64(
		&check->findings, FINDING_SOFT, "stats", "slab_bytes_free: gauge, rows", C(c->slab_bytes_free), spare);
}

/* ---- sessions and their pins ---- */

/* Summed up, it tells whether any pin moved, and a use that is over too: stamps go on. */
static uint64_t pin_hash(uint32_t place, uint32_t index, uint32_t count, uint32_t stamp)
{
	uint64_t h = ((uint64_t)place << 32 | index) * 0x9e3779b97f4a7c15u ^ ((uint64_t)count << 32 | stamp);

	h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
	return h ^ h >> 32;
}

static void check_pin(
	struct check *check, const char *object, uint32_t place, uint32_t index, const struct kvp_pin *pin)
{
	uint32_t count = C(pin->count), stamp = C(pin->stamp);
	uint64_t hash = pin_hash(place, index, count, stamp);
	char where[POOL_PATH_MAX + 48];

	if (!count && !stamp)
		return;
	check->session_pins += hash;
	for (unsigned i = 0; i < check->snapshot.n_ns; i++)
		if (check->census[i].readable && place < check->census[i].head->max_places &&
			check->census[i].places[place])
			check->census[i].pins += hash;
	if (!count)
		return;
	snprintf(where, sizeof(where), "%s place %u slot %u", object, place, index);
	expect(&check->findings, FINDING_SOFT, count <= PIN_COUNT_MAX, where, "a pin count is one", "0 to 16777216",
		"%u", count);
	for (unsigned i = 0; i < check->snapshot.n_ns; i++)
		if (check->census[i].readable)
			check->session_holds += census_hold(&check->census[i], place, index);
}

/* The pages of the pin tables that are there; a hole holds no pin. */
static void check_pins(
	struct check *check, const char *object, int fd, const struct kvp_session_header *head, uint64_t bytes)
{
	struct kvp_pin pins[KVP_PAGE / sizeof(struct kvp_pin)];
	off_t at = (off_t)head->pins_off;

	while ((at = lseek(fd, at, SEEK_DATA)) >= 0 && (uint64_t)at < bytes) {
		uint64_t off = ((uint64_t)at & ~(uint64_t)(KVP_PAGE - 1)) - head->pins_off;
		uint64_t place = off / head->pin_stride, first = off % head->pin_stride / sizeof(struct kvp_pin);

		if (place >= check->pool.header.max_places ||
			pool_read(fd, pins, sizeof(pins), off + head->pins_off) < 0)
			break;
		for (unsigned i = 0; i < KVP_PAGE / sizeof(struct kvp_pin); i++)
			check_pin(check, object, (uint32_t)place, (uint32_t)(first + i), &pins[i]);
		at = (off_t)(off + head->pins_off + KVP_PAGE);
	}
}

static bool session_locked(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

	return fcntl(fd, F_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}

static int check_session(struct check *check, const struct kvp_session_row *row)
{
	struct findings *findings = &check->findings;
	const struct kvp_pool_header *header = &check->pool.header;
	char path[POOL_PATH_MAX];
	const char *object = path + sizeof(POOL_SHM_DIR);
	struct kvp_session_header head;
	struct stat st;
	int fd, r;

	pool_path(&check->pool, path, "sess-%016" PRIx64, (uint64_t)C(row->session_id));
	fd = pool_object_open(&check->pool, path, &st);
	if (fd == -EACCES)
		return fd;
	if (!expect(findings, FINDING_SOFT, fd >= 0, object, "object of a listed session", "there", "%s",
		    fd < 0 ? strerror(-fd) : ""))
		return 0;
	r = pool_read(fd, &head, sizeof(head), 0);
	/* SOFT: its client can write it; the daemon is to find out and put it out */
	if (expect(findings, FINDING_SOFT,
		    r == 0 && head.magic == KVP_MAGIC_SESSION && head.session_id == C(row->session_id) &&
			    head.pin_stride == header->pin_stride && head.pins_off >= KVP_SESSION_PINS_OFF_LEAST &&
			    head.pins_off % KVP_PAGE == 0 && head.pin_stride && head.pin_stride % KVP_PAGE == 0 &&
			    (uint64_t)st.st_size >= head.pins_off + header->max_places * head.pin_stride,
		    object, "head and length of the session object", "as the daemon made them",
		    "%" PRIu64 " bytes, id %016" PRIx64, (uint64_t)st.st_size, r < 0 ? 0 : head.session_id)) {
		check->session_holds = check->session_pins = 0;
		if (C(head.word)) /* 0: the daemon is ending it, its pins count no more */
			check_pins(check, object, fd, &head, (uint64_t)st.st_size);
		if (pool_up(&check->pool) && C(row->pins) != check->session_holds) {
			char what[64];

			/* the recount is part of the text: only one that stands still lasts */
			snprintf(what, sizeof(what), "pins: gauge, %" PRIu64 " in its table", check->session_holds);
			expect_pins(findings, object, what, C(row->pins), check->session_holds, check->session_pins,
				C(check->snapshot.head.counters.pin_sweeps));
		}
	}
	if (pool_up(&check->pool) && !row->connected)
		expect(findings, FINDING_SOFT, session_locked(fd), object,
			"socket closed, so its process lives and holds the lock", "locked",
			"free: a dead session that was not ended");
	close(fd);
	return 0;
}

static int check_sessions(struct check *check)
{
	for (unsigned i = 0; i < check->snapshot.n_sessions; i++) {
		int r = check_session(check, &check->snapshot.sessions[i]);

		if (r < 0)
			return r;
	}
	if (check->snapshot.inconsistent)
		check->findings.n_skipped++;
	else
		expect_u64(&check->findings, FINDING_SOFT, "stats", "sessions: gauge, rows",
			C(check->snapshot.head.counters.sessions), check->snapshot.n_sessions);
	return 0;
}

/* Namespaces all stood still: then what a session was granted is what its slots say. */
static void check_grants(struct check *check)
{
	for (unsigned i = 0; i < check->snapshot.n_sessions; i++) {
		const struct kvp_session_row *row = &check->snapshot.sessions[i];
		uint64_t grants = 0;
		char object[64];

		for (unsigned n = 0; n < check->snapshot.n_ns; n++)
			if (check->census[n].readable)
				grants += census_grants_of(&check->census[n], C(row->session_id));
		snprintf(object, sizeof(object), "session %016" PRIx64, (uint64_t)C(row->session_id));
		expect_u64(&check->findings, FINDING_SOFT, object, "grants: gauge, recounted", C(row->grants), grants);
	}
}

/* ---- namespaces ---- */

static void check_owners(struct check *check, const struct census *census)
{
	for (uint32_t place = 0; place < census->head->max_places; place++) {
		if (!census->places[place])
			continue;
		for (uint32_t i = 0; i < census->head->slots_per_slab; i++) {
			const struct kvp_block *block = &census->places[place][i];
			char object[POOL_PATH_MAX + 32];

			if (kvp_word_state(C(block->word)) != KVP_BLOCK_GRANTED)
				continue;
			snprintf(object, sizeof(object), "%s slot %" PRIu64, census->object,
				(uint64_t)place * census->head->slots_per_slab + i);
			expect(&check->findings, FINDING_SOFT, session_row(check, block->key.w[0]) != NULL, object,
				"a granted slot belongs to a listed session", "its row", "no session %016" PRIx64,
				block->key.w[0]);
		}
	}
}

/* One that serves uses the room of its superblock at least. */
static bool store_is_missing(const struct kvp_stats *stats)
{
	for (unsigned i = 0; i < stats->n_stores && i < KVP_STATS_STORES_MAX; i++)
		if (!stats->stores[i].used)
			return true;
	return false;
}

static void check_gauges(struct check *check, const struct census *census, const struct kvp_ns_row *row)
{
	static const struct {
		const char *what;
		enum kvp_block_state state;
	} gauges[] = {
		{"free: gauge, recounted", KVP_BLOCK_FREE},
		{"granted: gauge, recounted", KVP_BLOCK_GRANTED},
		{"restoring: gauge, recounted", KVP_BLOCK_RESTORING},
		{"published: gauge, recounted", KVP_BLOCK_PUBLISHED},
		{"taken: gauge, recounted", KVP_BLOCK_TAKEN},
		{"retired: gauge, recounted", KVP_BLOCK_RETIRED},
	};
	const struct kvp_ns_counters *c = &row->counters;
	const uint64_t values[] = {
		C(c->free), C(c->granted), C(c->restoring), C(c->published), C(c->taken), C(c->retired)};
	const struct census *base = census->base_id ? census_of(check, census->base_id) : NULL;
	const struct kvp_ns_row *base_row = census->base_id ? snapshot_ns(&check->snapshot, census->base_id) : NULL;
	uint64_t missing = census_missing_parents(census, base), cold = C(c->cold);

	expect_u64(
		&check->findings, FINDING_SOFT, census->object, "slots: gauge, recounted", C(c->slots), census->slots);
	for (unsigned i = 0; i < 6; i++)
		expect_u64(&check->findings, FINDING_SOFT, census->object, gauges[i].what, values[i],
			census->by_state[gauges[i].state]);
	expect(&check->findings, FINDING_SOFT, report_balance(c).holds, census->object,
		"free + held + evictable + in transit = total", "equal", "%" PRIu64 " slots", (uint64_t)C(c->slots));
	expect(&check->findings, FINDING_SOFT, C(c->clean) <= C(c->published), census->object,
		"clean blocks are published", "at most published", "%" PRIu64 " clean of %" PRIu64,
		(uint64_t)C(c->clean), (uint64_t)C(c->published));
	if (base_row)
		cold += C(base_row->counters.cold);
	if (store_is_missing(&check->snapshot.head)) { /* what lies there is not known, and its children wait for it */
		check->findings.n_skipped++;
		return;
	}
	expect(&check->findings, FINDING_SOFT, missing <= cold, census->object,
		"parents of published blocks are published or cold", "not more missing than are cold",
		"%" PRIu64 " not published, %" PRIu64 " cold", missing, cold);
}

static void check_held(struct check *check, const struct census *census, const struct kvp_ns_row *row)
{
	char what[80];

	if (!pool_up(&check->pool) || C(row->counters.held) == census->held_slots)
		return;
	snprintf(what, sizeof(what), "held: gauge, %" PRIu64 " in the pin tables", census->held_slots);
	expect_pins(&check->findings, census->object, what, C(row->counters.held), census->held_slots, census->pins,
		C(check->snapshot.head.counters.pin_sweeps));
}

/* Rows by the same version, with all counters equal: nothing was moved in between. */
static bool row_same(const struct kvp_ns_row *a, const struct kvp_ns_row *b)
{
	return C(a->ns_id) == C(b->ns_id) && !memcmp(&a->counters, &b->counters, sizeof(a->counters));
}

static int census_take(struct check *check, unsigned i)
{
	struct census *census = &check->census[i];
	int r = census_open(census, &check->pool, &check->snapshot.ns[i], &check->findings);

	if (r == 0 && census->readable)
		census_count(census);
	return r;
}

static bool snapshot_same(const struct check *check, const struct snapshot *after, unsigned i)
{
	const struct kvp_ns_row *row = snapshot_ns(after, C(check->snapshot.ns[i].ns_id));

	return !after->inconsistent && after->version == check->snapshot.version && row &&
	       row_same(row, &check->snapshot.ns[i]);
}

/* ---- one look ---- */

static void look_free(struct check *check)
{
	for (unsigned i = 0; check->census && i < check->snapshot.n_ns; i++)
		census_close(&check->census[i]);
	free(check->census);
	check->census = NULL;
	snapshot_free(&check->snapshot);
}

static int look_read(struct check *check)
{
	int r = snapshot_take(&check->snapshot, &check->pool, true);

	if (r)
		return r;
	check->census = calloc(check->snapshot.n_ns + 1u, sizeof(*check->census));
	if (!check->census)
		return -ENOMEM;
	for (unsigned i = 0; i < check->snapshot.n_ns; i++)
		check->census[i].fd = -1;
	for (unsigned i = 0; i < check->snapshot.n_ns; i++) {
		r = census_take(check, i);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Read until nothing moved around the reading, or often enough. Return: @same tells for which of the namespaces. */
static int look_read_still(struct check *check, bool *same)
{
	struct snapshot after;
	int r;

	for (unsigned tries = 0;; tries++) {
		bool all = true;

		findings_clear(&check->findings);
		r = look_read(check);
		if (r)
			return r;
		r = snapshot_take(&after, &check->pool, false);
		if (r)
			return r;
		for (unsigned i = 0; i < check->snapshot.n_ns; i++) {
			same[i] = !check->snapshot.inconsistent && snapshot_same(check, &after, i);
			all = all && same[i];
		}
		snapshot_free(&after);
		if (all || tries == STABLE_TRIES)
			return 0;
		look_free(check);
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
}

static int look(struct check *check)
{
	bool same[KVP_STATS_NS_MAX] = {false}, all = true;
	int r = look_read_still(check, same);

	if (r)
		return r;
	r = check_sessions(check); /* before held is compared */
	if (r < 0)
		return r;
	check_files(check);
	check_pool_file(check);
	check_slabs(check);
	for (unsigned i = 0; i < check->snapshot.n_ns; i++)
		if (check->census[i].readable)
			census_check_blocks(&check->census[i], &check->findings);
	for (unsigned i = 0; i < check->snapshot.n_ns; i++) {
		struct census *census = &check->census[i];

		if (!census->readable)
			continue;
		check_owners(check, census);
		check_held(check, census, &check->snapshot.ns[i]);
		if (same[i])
			check_gauges(check, census, &check->snapshot.ns[i]);
		else
			check->findings.n_skipped += 10;
		all = all && same[i];
	}
	if (all)
		check_grants(check);
	else
		check->findings.n_skipped++;
	return 0;
}

/* Look, and while a daemon runs look again at what seems wrong, until it is right or has lasted.  What it sums up in
   rounds has lasted when it has had its rounds, whatever the clock says. */
static int check_run(struct check *check)
{
	uint64_t start = now_ns();
	struct findings before = {0};
	unsigned looks = 1;
	int r;

	if (findings_init(&check->findings) < 0)
		return -ENOMEM;
	r = look(check);
	while (!r && check->findings.n && (pool_up(&check->pool) || check->pool.life == POOL_STARTING) &&
		(looks < LOOKS || now_ns() - start < (findings_n_green(&check->findings) ? PATIENCE_NS : LASTING_NS))) {
		looks++;
		look_free(check);
		nanosleep(&(struct timespec){.tv_nsec = PASS_PAUSE_NS}, NULL);
		findings_free(&before);
		before = check->findings;
		r = findings_init(&check->findings);
		if (!r)
			r = pool_look(&check->pool);
		if (!r)
			r = look(check);
		if (!r)
			findings_keep_seen(&check->findings, &before);
	}
	findings_free(&before);
	if (!r)
		findings_drop_green(&check->findings);
	return r;
}

/* ---- the report ---- */

/* What a killed or hung daemon stands in the middle of, the next start puts right: told, but no violation. */
static bool only_unfinished(const struct check *check, const struct finding *finding)
{
	return finding->class == FINDING_SOFT && (check->pool.life == POOL_SILENT || check->pool.life == POOL_STARTING);
}

static json_t *finding_json(const struct finding *finding)
{
	json_t *json = json_object();

	json_object_set_new(json, "object", json_text(finding->object, sizeof(finding->object)));
	json_object_set_new(json, "what", json_text(finding->what, sizeof(finding->what)));
	json_object_set_new(json, "expected", json_text(finding->expected, sizeof(finding->expected)));
	json_object_set_new(json, "found", json_text(finding->found, sizeof(finding->found)));
	return json;
}

static int report_as_json(const struct check *check, uint64_t n_violations)
{
	json_t *json = json_object(), *violations = json_array(), *unfinished = json_array();

	for (size_t i = 0; i < check->findings.n; i++)
		json_array_append_new(only_unfinished(check, &check->findings.all[i]) ? unfinished : violations,
			finding_json(&check->findings.all[i]));
	json_object_set_new(json, "pool", report_pool_json(&check->pool));
	json_object_set_new(json, "checks", json_u64(check->findings.n_checks));
	json_object_set_new(json, "not_compared", json_u64(check->findings.n_skipped));
	json_object_set_new(json, "n_violations", json_u64(n_violations));
	json_object_set_new(json, "violations", violations);
	json_object_set_new(json, "unfinished", unfinished);
	json_object_set_new(json, "ok", json_boolean(!n_violations));
	return report_json_print(json, 0);
}

static void report_as_text(const struct check *check, uint64_t n_violations, uint64_t n_unfinished)
{
	char life[160];

	for (size_t i = 0; i < check->findings.n; i++) {
		const struct finding *f = &check->findings.all[i];

		printf("%s %s: %s: expected %s, found %s\n", only_unfinished(check, f) ? "unfinished" : "VIOLATED",
			f->object, f->what, f->expected, f->found);
	}
	if (check->findings.n_lost)
		printf("and %" PRIu64 " more\n", check->findings.n_lost);
	if (n_unfinished)
		printf("%s: what it left unfinished the next start puts right\n",
			pool_life_text(&check->pool, life, sizeof(life)));
	if (check->findings.n_skipped)
		printf("%" PRIu64
		       " sums not compared: the daemon never held still, or was killed while it changed them\n",
			check->findings.n_skipped);
	printf("check: %" PRIu64 " checks, %" PRIu64 " violations\n", check->findings.n_checks, n_violations);
}

static int check_report(const struct check *check, bool as_json)
{
	uint64_t n_violations = check->findings.n_lost, n_unfinished = 0;

	for (size_t i = 0; i < check->findings.n; i++)
		*(only_unfinished(check, &check->findings.all[i]) ? &n_unfinished : &n_violations) += 1;
	if (as_json) {
		if (report_as_json(check, n_violations))
			return KVCTL_FAILED;
	} else {
		report_as_text(check, n_violations, n_unfinished);
	}
	return n_violations ? KVCTL_FAILED : KVCTL_DONE;
}

int check_command(int argc, char **argv)
{
	static const struct option longs[] = {OPTION_POOL, OPTION_JSON, OPTION_LAST};
	struct options options = {.command = "check", .longs = longs, .argc = argc, .argv = argv};
	struct check check = {0};
	int c, r;

	c = option_next(&options);
	if (c != OPTION_END)
		return option_exit(c);
	r = pool_find(&check.pool, options.socket, options.name);
	if (r)
		return r;
	r = check_run(&check);
	if (r == -EACCES) {
		complain("check: the objects of pool %s may not be read: only root and its user (uid %u) can check it",
			check.pool.name, check.pool.uid);
		r = KVCTL_NO_POOL;
	} else if (r < 0) {
		complain("check: %s", strerror(-r));
		r = KVCTL_FAILED;
	} else if (!r) {
		r = check_report(&check, options.json);
	}
	look_free(&check);
	findings_free(&check.findings);
	return output_end(r);
}
