/* pool_stats.c - see pool_stats.h */
#include "pool_stats.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "log.h"
#include "shm.h"

/* What every kvpoold of this major version has at the same place: the head to the end of its stores, rows before their
   counters. */
static_assert(offsetof(struct kvp_stats, next_number) == 80, "layout v1");
static_assert(offsetof(struct kvp_stats, nodes) == 1392, "layout v1");
static_assert(sizeof(struct kvp_node_row) == 64, "layout v1");
static_assert(sizeof(struct kvp_store_row) == 648, "layout v1");
static_assert(offsetof(struct kvp_ns_row, counters) == 120, "layout v1");
#define HEAD_KEPT (offsetof(struct kvp_stats, stores) + KVP_STATS_STORES_MAX * sizeof(struct kvp_store_row))

uint64_t pool_stats_bytes(uint64_t max_places)
{
	uint64_t bytes = sizeof(struct kvp_stats);

	bytes = (bytes + 63) & ~63ull;
	bytes += KVP_STATS_NS_MAX * sizeof(struct kvp_ns_row) +
		 KVP_STATS_SESSIONS_MAX * sizeof(struct kvp_session_row) + max_places * sizeof(struct kvp_slab_row) +
		 sizeof(struct kvp_curve);
	return (bytes + KVP_PAGE - 1) & ~(uint64_t)(KVP_PAGE - 1);
}

void pool_stats_fill(struct kvp_stats *stats, const uint8_t uuid[16], uint32_t max_places)
{
	uint32_t off = (sizeof(struct kvp_stats) + 63) & ~63u;

	stats->layout_major = KVP_LAYOUT_MAJOR;
	stats->layout_minor = KVP_LAYOUT_MINOR;
	stats->endian = KVP_ENDIAN;
	memcpy(stats->uuid, uuid, 16);
	stats->object_bytes = pool_stats_bytes(max_places);
	stats->counters_bytes = sizeof(struct kvp_counters);
	stats->ns_row_bytes = sizeof(struct kvp_ns_row);
	stats->session_row_bytes = sizeof(struct kvp_session_row);
	stats->slab_row_bytes = sizeof(struct kvp_slab_row);
	stats->max_places = max_places;
	stats->ns_off = off;
	stats->session_off = stats->ns_off + KVP_STATS_NS_MAX * (uint32_t)sizeof(struct kvp_ns_row);
	stats->slab_off = stats->session_off + KVP_STATS_SESSIONS_MAX * (uint32_t)sizeof(struct kvp_session_row);
	stats->curve_off = stats->slab_off + stats->max_places * (uint32_t)sizeof(struct kvp_slab_row);
	stats->curve_bytes = sizeof(struct kvp_curve);
	atomic_store(&stats->next_number, 1);
	stats->magic = KVP_MAGIC_STATS;
}

bool pool_stats_fit(const struct kvp_stats *stats, const uint8_t uuid[16], uint32_t max_places)
{
	return stats->magic == KVP_MAGIC_STATS && stats->layout_major == KVP_LAYOUT_MAJOR &&
	       stats->endian == KVP_ENDIAN && !memcmp(stats->uuid, uuid, 16) &&
	       stats->counters_bytes == sizeof(struct kvp_counters) &&
	       stats->ns_row_bytes == sizeof(struct kvp_ns_row) &&
	       stats->session_row_bytes == sizeof(struct kvp_session_row) &&
	       stats->slab_row_bytes == sizeof(struct kvp_slab_row) && stats->curve_off &&
	       stats->curve_bytes == sizeof(struct kvp_curve) && stats->max_places == max_places &&
	       stats->object_bytes == pool_stats_bytes(stats->max_places);
}

/* A part of @n rows of @row_bytes, all of it inside the object? */
static bool rows_inside(const struct kvp_stats *old, uint64_t bytes, uint32_t off, uint32_t row_bytes, uint32_t n)
{
	return old->object_bytes <= bytes && row_bytes >= sizeof(uint64_t) && off % 8 == 0 && row_bytes % 8 == 0 &&
	       off >= HEAD_KEPT && (uint64_t)off + (uint64_t)row_bytes * n <= bytes;
}

/* Its own counters, between its head and its rows? */
static bool counters_inside(const struct kvp_stats *old, uint64_t bytes)
{
	uint64_t end = offsetof(struct kvp_stats, counters) + (uint64_t)old->counters_bytes;

	return old->counters_bytes % 8 == 0 && end <= bytes && end <= old->ns_off;
}

/* Of this pool and major version, with counters or rows of other sizes than ours? */
static bool is_of_another_minor(
	const struct kvp_stats *old, uint64_t bytes, const uint8_t uuid[16], uint32_t max_places)
{
	return old->magic == KVP_MAGIC_STATS && old->layout_major == KVP_LAYOUT_MAJOR && old->endian == KVP_ENDIAN &&
	       !memcmp(old->uuid, uuid, 16) && old->max_places == max_places &&
	       rows_inside(old, bytes, old->ns_off, old->ns_row_bytes, KVP_STATS_NS_MAX) &&
	       rows_inside(old, bytes, old->session_off, old->session_row_bytes, KVP_STATS_SESSIONS_MAX) &&
	       rows_inside(old, bytes, old->slab_off, old->slab_row_bytes, max_places) &&
	       old->ns_row_bytes >= offsetof(struct kvp_ns_row, counters) &&
	       old->session_row_bytes >= KVP_SESSION_ROW_LEAST && old->slab_row_bytes >= KVP_SLAB_ROW_LEAST &&
	       counters_inside(old, bytes);
}

/* From the last of layout 1.0 on counters are only ever added at the end. */
static bool stats_keeps_counts(const struct kvp_stats *old)
{
	return old->layout_minor >= 1 ||
	       (old->counters_bytes == KVP_COUNTERS_BYTES_1_0 && old->ns_row_bytes == KVP_NS_ROW_BYTES_1_0);
}

static void rows_copy(char *to, uint32_t to_bytes, const char *from, uint32_t from_bytes, uint32_t row_kept, uint32_t n)
{
	uint32_t kept = from_bytes < row_kept ? from_bytes : row_kept;

	for (uint32_t i = 0; i < n; i++)
		memcpy(to + (uint64_t)to_bytes * i, from + (uint64_t)from_bytes * i, kept);
}

/* Whose rows they are is kept, and what was counted, as far as it is counted here; but of 1.0, which long had its
   counters in no fixed order, counts begin again. */
static void stats_take_over(struct kvp_stats *now, const struct kvp_stats *old)
{
	char *to = (char *)now;
	const char *from = (const char *)old;
	struct kvp_stats ours = *now;
	bool counts = stats_keeps_counts(old);

	memcpy(now, old, HEAD_KEPT);
	memcpy(now, &ours, offsetof(struct kvp_stats, version)); /* sizes and places are ours */
	now->curve_off = ours.curve_off;
	now->curve_bytes = ours.curve_bytes;
	atomic_store(&now->version, 0);
	if (old->curve_bytes == now->curve_bytes && (uint64_t)old->curve_off + old->curve_bytes <= old->object_bytes)
		memcpy(to + now->curve_off, from + old->curve_off, now->curve_bytes);
	if (counts)
		rows_copy((char *)&now->counters, now->counters_bytes, (const char *)&old->counters,
			old->counters_bytes, now->counters_bytes, 1);
	rows_copy(to + now->ns_off, now->ns_row_bytes, from + old->ns_off, old->ns_row_bytes,
		counts ? sizeof(struct kvp_ns_row) : offsetof(struct kvp_ns_row, counters), KVP_STATS_NS_MAX);
	rows_copy(to + now->session_off, now->session_row_bytes, from + old->session_off, old->session_row_bytes,
		sizeof(struct kvp_session_row), KVP_STATS_SESSIONS_MAX);
	rows_copy(to + now->slab_off, now->slab_row_bytes, from + old->slab_off, old->slab_row_bytes,
		sizeof(struct kvp_slab_row), now->max_places);
}

/* A new object of our layout takes the old one's name in one step: a kill leaves the one or the other. */
static int stats_replace(const struct pool *pool, const struct kvp_stats *old, char message[256])
{
	uint32_t max_places = pool->header->max_places;
	uint64_t bytes = pool_stats_bytes(max_places);
	char name[KVP_OBJECT_NAME_MAX], next[KVP_OBJECT_NAME_MAX], paths[2][KVP_OBJECT_NAME_MAX + 16];
	struct kvp_stats *now;
	int fd, r;

	shm_object_name(name, pool->uuid, "stats");
	shm_object_name(next, pool->uuid, "stats-next");
	shm_remove(next);
	fd = shm_make(next, bytes, pool->group);
	r = fd < 0 ? fd : shm_reserve(fd, 0, bytes);
	now = r < 0 ? NULL : shm_map(fd, bytes);
	if (now) {
		pool_stats_fill(now, pool->uuid, max_places);
		stats_take_over(now, old);
		munmap(now, bytes);
		snprintf(paths[0], sizeof(paths[0]), SHM_DIR "%s", next);
		snprintf(paths[1], sizeof(paths[1]), SHM_DIR "%s", name);
		r = rename(paths[0], paths[1]) < 0 ? -errno : 0;
	} else if (r == 0) {
		r = -errno;
	}
	if (fd >= 0)
		close(fd);
	if (r < 0) {
		shm_remove(next);
		snprintf(message, 256, "no room in " SHM_DIR " for its stats object in this kvpoold's layout: %s",
			strerror(-r));
	}
	return r;
}

int pool_stats_renew(const struct pool *pool, char message[256])
{
	char name[KVP_OBJECT_NAME_MAX];
	uint64_t bytes = 0;
	struct kvp_stats *old;
	int fd, r = 0;

	shm_object_name(name, pool->uuid, "stats");
	fd = shm_find(name, &bytes, pool->group);
	if (fd < 0 || bytes < HEAD_KEPT) {
		if (fd >= 0)
			close(fd);
		return 0; /* that it is missing, or cut, who maps it says */
	}
	old = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (old == MAP_FAILED)
		return 0;
	if (!pool_stats_fit(old, pool->uuid, pool->header->max_places) &&
		is_of_another_minor(old, bytes, pool->uuid, pool->header->max_places)) {
		r = stats_replace(pool, old, message);
		if (r == 0)
			log_info(
				"the kvpoold before had other counters than this one: blocks and sessions are taken over, %s",
				stats_keeps_counts(old) ? "counts go on" : "counts begin at 0");
	}
	munmap(old, bytes);
	return r;
}
