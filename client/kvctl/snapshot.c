/* snapshot.c - see snapshot.h */
#define _GNU_SOURCE 1
#include "snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kvctl.h"

#define TRIES_NS 100000000ull
#define TRIES_PATIENT_NS 1000000000ull

/* The raw bytes of the object, read whole: rows lie in it as its head says, and head and rows are checked to be
   inside. */
struct raw {
	int fd;
	char *bytes;
	uint64_t size;
};

static void raw_close(struct raw *raw)
{
	if (raw->fd >= 0)
		close(raw->fd);
	free(raw->bytes);
}

static int refuse(const char *path, const char *why)
{
	complain("%s: %s", path, why);
	return KVCTL_NO_POOL;
}

static bool part_inside(uint32_t off, uint32_t row_bytes, uint64_t n, size_t least, uint64_t size)
{
	return off % 8 == 0 && row_bytes % 8 == 0 && row_bytes >= least && (uint64_t)off + row_bytes * n <= size;
}

/* Of another minor version rows and counters may be longer, or shorter: what it does not count is shown as 0.  Before
   the last of 1.0 they were in no fixed order. */
static bool counters_readable(const struct kvp_stats *head, uint64_t size)
{
	uint64_t end = offsetof(struct kvp_stats, counters) + (uint64_t)head->counters_bytes;

	if (!head->layout_minor &&
		(head->counters_bytes < KVP_COUNTERS_BYTES_1_0 || head->ns_row_bytes < KVP_NS_ROW_BYTES_1_0))
		return false;
	return head->counters_bytes % 8 == 0 && end <= size && end <= head->ns_off;
}

static int head_check(const struct kvp_stats *head, const struct pool *pool, uint64_t size, const char *path)
{
	char why[256];

	if (head->magic != KVP_MAGIC_STATS || head->endian != KVP_ENDIAN)
		return refuse(path, "it does not begin as a stats object does");
	if (head->layout_major != KVP_LAYOUT_MAJOR) {
		snprintf(why, sizeof(why), "its layout is version %u.%u, this kvctl reads %u.%u", head->layout_major,
			head->layout_minor, KVP_LAYOUT_MAJOR, KVP_LAYOUT_MINOR);
		return refuse(path, why);
	}
	if (memcmp(head->uuid, pool->header.uuid, 16))
		return refuse(path, "the UUID inside is not the one of its name");
	if (head->object_bytes > size || head->object_bytes < sizeof(*head) || !counters_readable(head, size) ||
		!part_inside(head->ns_off, head->ns_row_bytes, KVP_STATS_NS_MAX, offsetof(struct kvp_ns_row, counters),
			size) ||
		!part_inside(head->session_off, head->session_row_bytes, KVP_STATS_SESSIONS_MAX, KVP_SESSION_ROW_LEAST,
			size) ||
		!part_inside(head->slab_off, head->slab_row_bytes, head->max_places, KVP_SLAB_ROW_LEAST, size)) {
		snprintf(why, sizeof(why),
			"layout version %u.%u with sizes that this kvctl's %u.%u does not know, or cut short (%llu bytes)",
			head->layout_major, head->layout_minor, KVP_LAYOUT_MAJOR, KVP_LAYOUT_MINOR,
			(unsigned long long)size);
		return refuse(path, why);
	}
	return 0;
}

/* Behind its counters lies no counter. */
static void head_cut(struct kvp_stats *head)
{
	if (head->counters_bytes < sizeof(head->counters))
		memset((char *)&head->counters + head->counters_bytes, 0,
			sizeof(head->counters) - head->counters_bytes);
}

static int raw_open(struct raw *raw, const struct pool *pool)
{
	char path[POOL_PATH_MAX];
	struct kvp_stats head;
	struct stat st;
	int r;

	*raw = (struct raw){.fd = -1};
	pool_path(pool, path, "stats");
	raw->fd = pool_object_open(pool, path, &st);
	if (raw->fd < 0)
		return refuse(path, raw->fd == -EACCES
					    ? "may not be read: join the operators' group, or run kvctl as root"
					    : strerror(-raw->fd));
	raw->size = (uint64_t)st.st_size;
	if (raw->size < sizeof(head) || raw->size > 1ull << 30 || pool_read(raw->fd, &head, sizeof(head), 0) < 0)
		return refuse(path, "cut short, or no stats object: a head does not fit in it");
	r = head_check(&head, pool, raw->size, path);
	if (r)
		return r;
	raw->size = head.object_bytes;
	raw->bytes = malloc(raw->size);
	if (!raw->bytes)
		return refuse(path, "out of memory");
	return 0;
}

static int raw_version(const struct raw *raw, uint64_t *version)
{
	return pool_read(raw->fd, version, sizeof(*version), offsetof(struct kvp_stats, version));
}

/* Copy until the version before and after is the same even number, or time is up: then the last copy has to do. */
static int raw_copy(struct raw *raw, uint64_t tries_ns, uint64_t *version, bool *inconsistent)
{
	uint64_t deadline = now_ns() + tries_ns;
	uint64_t after = 0;
	int r;

	for (;;) {
		bool late = now_ns() >= deadline;

		r = raw_version(raw, version);
		if (!r && *version & 1 && !late) {
			nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
			continue;
		}
		if (!r)
			r = pool_read(raw->fd, raw->bytes, raw->size, 0);
		if (!r)
			r = raw_version(raw, &after);
		if (r < 0)
			return r;
		if (*version == after && !(after & 1)) {
			*inconsistent = false;
			return 0;
		}
		if (late)
			break;
	}
	*inconsistent = true;
	return 0;
}

/* Rows whose first word, the id, is not 0, put together; of each of them the @known bytes, as far as it has them, after
   @before bytes of room. */
static unsigned rows_take(const struct raw *raw, uint32_t off, uint32_t row_bytes, unsigned n, void *to, size_t known,
	size_t stride, size_t before)
{
	unsigned taken = 0;

	for (unsigned i = 0; i < n; i++) {
		const char *row = raw->bytes + off + (uint64_t)row_bytes * i;
		uint64_t id;

		memcpy(&id, row, sizeof(id));
		if (!id)
			continue;
		memcpy((char *)to + stride * taken + before, row, row_bytes < known ? row_bytes : known);
		if (before)
			*(uint32_t *)(void *)((char *)to + stride * taken) = i;
		taken++;
	}
	return taken;
}

static int snapshot_rows(struct snapshot *snapshot, const struct raw *raw)
{
	const struct kvp_stats *head = &snapshot->head;

	snapshot->ns = calloc(KVP_STATS_NS_MAX, sizeof(*snapshot->ns));
	snapshot->sessions = calloc(KVP_STATS_SESSIONS_MAX, sizeof(*snapshot->sessions));
	snapshot->slabs = calloc(head->max_places + 1ull, sizeof(*snapshot->slabs));
	if (!snapshot->ns || !snapshot->sessions || !snapshot->slabs)
		return -ENOMEM;
	snapshot->n_ns = rows_take(raw, head->ns_off, head->ns_row_bytes, KVP_STATS_NS_MAX, snapshot->ns,
		sizeof(*snapshot->ns), sizeof(*snapshot->ns), 0);
	snapshot->n_sessions = rows_take(raw, head->session_off, head->session_row_bytes, KVP_STATS_SESSIONS_MAX,
		snapshot->sessions, sizeof(*snapshot->sessions), sizeof(*snapshot->sessions), 0);
	snapshot->n_slabs = rows_take(raw, head->slab_off, head->slab_row_bytes, head->max_places, snapshot->slabs,
		sizeof(struct kvp_slab_row), sizeof(*snapshot->slabs), offsetof(struct snapshot_slab, row));
	return 0;
}

/* A daemon of before has none. */
static void snapshot_curve(struct snapshot *snapshot, const struct raw *raw)
{
	const struct kvp_stats *head = &snapshot->head;

	if (!head->curve_off || head->curve_off % 8 || head->curve_bytes < sizeof(snapshot->curve) ||
		(uint64_t)head->curve_off + head->curve_bytes > raw->size)
		return;
	memcpy(&snapshot->curve, raw->bytes + head->curve_off, sizeof(snapshot->curve));
	snapshot->has_curve = true;
}

int snapshot_take(struct snapshot *snapshot, const struct pool *pool, bool patient)
{
	char path[POOL_PATH_MAX];
	struct raw raw;
	int r;

	memset(snapshot, 0, sizeof(*snapshot));
	pool_path(pool, path, "stats");
	r = raw_open(&raw, pool);
	if (!r) {
		r = raw_copy(&raw, patient ? TRIES_PATIENT_NS : TRIES_NS, &snapshot->version, &snapshot->inconsistent);
		if (r < 0)
			r = refuse(path, r == -ENODATA ? "cut short while it was read" : strerror(-r));
	}
	if (!r) {
		memcpy(&snapshot->head, raw.bytes, sizeof(snapshot->head));
		r = head_check(&snapshot->head, pool, raw.size, path); /* again: it was copied anew */
		head_cut(&snapshot->head);
	}
	if (!r && snapshot_rows(snapshot, &raw) < 0)
		r = refuse(path, "out of memory");
	if (!r)
		snapshot_curve(snapshot, &raw);
	raw_close(&raw);
	if (r)
		snapshot_free(snapshot);
	return r;
}

void snapshot_free(struct snapshot *snapshot)
{
	free(snapshot->ns);
	free(snapshot->sessions);
	free(snapshot->slabs);
	snapshot->ns = NULL;
	snapshot->sessions = NULL;
	snapshot->slabs = NULL;
}

int snapshot_version(const struct pool *pool, uint64_t *version)
{
	struct raw raw = {.fd = -1};
	char path[POOL_PATH_MAX];
	struct stat st;
	int r;

	pool_path(pool, path, "stats");
	raw.fd = pool_object_open(pool, path, &st);
	if (raw.fd < 0)
		return raw.fd;
	r = raw_version(&raw, version);
	close(raw.fd);
	return r;
}

const struct kvp_ns_row *snapshot_ns(const struct snapshot *snapshot, uint64_t ns_id)
{
	for (unsigned i = 0; i < snapshot->n_ns; i++)
		if (atomic_load(&snapshot->ns[i].ns_id) == ns_id)
			return &snapshot->ns[i];
	return NULL;
}
