/* slab.c - see slab.h */
#include "slab.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guard.h"
#include "log.h"
#include "namespace.h"
#include "session.h"
#include "shm.h"

static struct kvp_slab_row *slab_row(const struct daemon *d, const struct slab *slab)
{
	return &d->pool.slab_rows[slab->place];
}

static void slab_count(struct daemon *d)
{
	uint64_t total = 0, spare = 0, n = 0;

	for (uint32_t i = 0; i < d->pool.header->max_places; i++) {
		const struct slab *slab = d->slabs[i];

		if (!slab)
			continue;
		n++;
		total += slab->bytes;
		spare += slab->use == KVP_SLAB_SPARE ? slab->bytes : 0;
	}
	d->slab_bytes_total = total;
	gauge_set(&d->pool.stats->counters.slabs, n);
	gauge_set(&d->pool.stats->counters.slab_bytes_allocated, total);
	gauge_set(&d->pool.stats->counters.slab_bytes_free, spare);
}

void slab_set_use(struct daemon *d, struct slab *slab, enum kvp_slab_use use, struct ns *ns)
{
	struct kvp_slab_row *row = slab_row(d, slab);

	pool_stats_begin(&d->pool);
	slab->use = use;
	slab->ns = ns;
	row->use = use;
	row->ns_id = ns ? ns->id : 0;
	slab_count(d);
	pool_stats_end(&d->pool);
}

static void slab_free(struct daemon *d, struct slab *slab)
{
	d->slabs[slab->place] = NULL;
	if (slab->map)
		munmap(slab->map, slab->bytes);
	if (slab->fd >= 0)
		close(slab->fd);
	free(slab->slots);
	free(slab);
}

/* Bind, allocate and touch. The slab's pages are really there when this returns 0. */
static int slab_fill(struct daemon *d, struct slab *slab, char message[256])
{
	int r;

	slab->map = shm_map(slab->fd, slab->bytes);
	if (!slab->map) {
		snprintf(message, 256, "cannot map a slab of %" PRIu64 " bytes: %s (vm.max_map_count?)", slab->bytes,
			strerror(errno));
		return -ENOMEM;
	}
	r = topology_bind(d->topology, slab->map, slab->bytes, slab->node);
	slab->bound = r == 0 && topology_n_nodes(d->topology) > 1;
	if (r < 0 && !d->numa_warned) {
		d->numa_warned = true;
		snprintf(d->pool.stats->numa_message, sizeof(d->pool.stats->numa_message),
			"unbound: binding memory to a node is refused here (%s)", strerror(-r));
		log_warn("NUMA: %s; going on unbound", d->pool.stats->numa_message);
	}
	r = shm_reserve(slab->fd, 0, slab->bytes);
	if (r == 0)
		r = topology_populate(d->topology, slab->map, slab->bytes, slab->node);
	if (r < 0) {
		snprintf(message, 256,
			"no room in " SHM_DIR " for slab %" PRIu64 " of %" PRIu64 " bytes (%s; %" PRIu64
			" bytes free there): enlarge it, or give a smaller --pool",
			slab->number, slab->bytes, strerror(-r), shm_free_bytes());
		return r;
	}
	if (d->config.lock_memory && mlock(slab->map, slab->bytes) < 0) {
		log_warn("lock-memory: cannot lock %" PRIu64
			 " bytes: %s (LimitMEMLOCK=infinity in the unit, or leave it off); going on unlocked",
			slab->bytes, strerror(errno));
		d->config.lock_memory = false;
	}
	return 0;
}

static struct slab *slab_make(struct daemon *d, uint64_t bytes, uint32_t node, char message[256])
{
	char name[KVP_OBJECT_NAME_MAX];
	struct slab *slab = calloc(1, sizeof(*slab));
	struct kvp_slab_row *row;
	uint32_t place = 0;

	while (place < d->pool.header->max_places && d->slabs[place])
		place++;
	if (!slab || place == d->pool.header->max_places) {
		snprintf(message, 256,
			slab ? "all %u places for slabs are in use: use a larger --slab" : "out of memory (%u places)",
			place);
		free(slab);
		return NULL;
	}
	slab->place = place;
	slab->bytes = bytes;
	slab->node = node;
	slab->use = KVP_SLAB_SPARE;
	slab->number = atomic_fetch_add(&d->pool.stats->next_number, 1);
	shm_object_name(name, d->pool.uuid, "slab-%" PRIu64, slab->number);
	slab->fd = shm_make(name, bytes, (gid_t)-1);
	d->slabs[place] = slab;
	if (slab->fd < 0 || slab_fill(d, slab, message) < 0) {
		if (slab->fd < 0)
			snprintf(message, 256, "cannot make " SHM_DIR "%s: %s", name, strerror(-slab->fd));
		shm_remove(name);
		slab_free(d, slab);
		return NULL;
	}
	row = slab_row(d, slab);
	pool_stats_begin(&d->pool);
	row->bytes = bytes;
	row->ns_id = 0;
	row->use = KVP_SLAB_SPARE;
	row->node = topology_node_id(d->topology, node);
	row->page_kib = 4;
	row->bound = slab->bound;
	atomic_store_explicit(&row->number, slab->number, memory_order_release);
	slab_count(d);
	pool_stats_end(&d->pool);
	return slab;
}

/* Unlist, unlink, punch empty: whoever still maps it reads zeroes and holds no memory of the budget. */
static void slab_destroy(struct daemon *d, struct slab *slab)
{
	char name[KVP_OBJECT_NAME_MAX];

	pool_stats_begin(&d->pool);
	atomic_store_explicit(&slab_row(d, slab)->number, 0, memory_order_release);
	shm_object_name(name, d->pool.uuid, "slab-%" PRIu64, slab->number);
	shm_remove(name);
	if (fallocate(slab->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)slab->bytes) < 0)
		log_warn("slab %" PRIu64 ": cannot give its memory back: %s", slab->number, strerror(errno));
	slab_free(d, slab);
	slab_count(d);
	pool_stats_end(&d->pool);
}

static struct slab *slab_find_spare(struct daemon *d, uint64_t bytes, uint32_t node)
{
	struct slab *other = NULL;

	for (uint32_t i = 0; i < d->pool.header->max_places; i++) {
		struct slab *slab = d->slabs[i];

		if (!slab || slab->use != KVP_SLAB_SPARE || (bytes && slab->bytes != bytes))
			continue;
		if (slab->node == node)
			return slab;
		other = slab;
	}
	return other;
}

struct slab *slab_take_spare(struct daemon *d, uint64_t bytes, uint32_t node)
{
	struct slab *slab = slab_find_spare(d, bytes, node);
	char message[256];

	if (slab)
		return slab;
	if (d->config.pool_bytes < d->slab_bytes_total || /* the budget was made smaller */
		d->config.pool_bytes - d->slab_bytes_total + slab_spare_bytes(d) < bytes)
		return NULL;
	while (d->config.pool_bytes - d->slab_bytes_total < bytes) {
		slab = slab_find_spare(d, 0, node);
		if (!slab)
			return NULL;
		slab_destroy(d, slab);
	}
	slab = slab_make(d, bytes, node, message);
	if (!slab) {
		static struct log_limit limit;

		log_limited(&limit, LOG_LEVEL_WARN, "%s", message);
	}
	return slab;
}

void slab_drop(struct daemon *d, struct slab *slab)
{
	static struct log_limit limit;
	uint32_t node = slab->node;
	char message[256];

	slab_destroy(d, slab);
	if (d->slab_bytes_total + d->pool.header->slab_bytes <= d->config.pool_bytes &&
		!slab_make(d, d->pool.header->slab_bytes, node, message))
		log_limited(&limit, LOG_LEVEL_WARN, "%s", message);
}

uint64_t slab_spare_bytes(const struct daemon *d)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < d->pool.header->max_places; i++)
		if (d->slabs[i] && d->slabs[i]->use == KVP_SLAB_SPARE)
			bytes += d->slabs[i]->bytes;
	return bytes;
}

/* A slab of the last daemon, as its row tells. */
static bool slab_adopt(struct daemon *d, uint32_t place)
{
	struct kvp_slab_row *row = &d->pool.slab_rows[place];
	uint64_t number = atomic_load(&row->number), bytes = 0;
	char name[KVP_OBJECT_NAME_MAX];
	struct slab *slab;
	int fd;

	shm_object_name(name, d->pool.uuid, "slab-%" PRIu64, number);
	fd = shm_find(name, &bytes, (gid_t)-1);
	slab = fd < 0 ? NULL : calloc(1, sizeof(*slab));
	if (!slab || bytes != row->bytes || (row->use != KVP_SLAB_BLOCKS && row->use != KVP_SLAB_SPARE)) {
		if (fd >= 0)
			close(fd);
		free(slab);
		shm_remove(name);
		atomic_store(&row->number, 0);
		log_warn("slab %" PRIu64 " of the last daemon is lost or changed: its blocks are dropped", number);
		return false;
	}
	slab->place = place;
	slab->number = number;
	slab->bytes = bytes;
	slab->use = row->use;
	slab->fd = fd;
	slab->bound = row->bound;
	for (unsigned i = 0; i < topology_n_nodes(d->topology); i++)
		if (topology_node_id(d->topology, i) == row->node)
			slab->node = i;
	slab->map = shm_map(fd, bytes);
	if (!slab->map) {
		slab->fd = fd;
		slab_free(d, slab);
		return false;
	}
	d->slabs[place] = slab;
	return true;
}

static bool slab_keep_object(void *owner, const char *rest)
{
	struct daemon *d = owner;
	uint64_t number;

	if (sscanf(rest, "slab-%" SCNu64, &number) != 1)
		return true; /* not a slab: others look after it */
	for (uint32_t i = 0; i < d->pool.header->max_places; i++)
		if (atomic_load(&d->pool.slab_rows[i].number) == number)
			return true;
	return false;
}

/* The smallest memory.max of our cgroup and those above it; UINT64_MAX: none. */
static uint64_t cgroup_limit(void)
{
	char line[512], path[600];
	uint64_t limit = UINT64_MAX;
	FILE *file = fopen("/proc/self/cgroup", "re");
	char *at = NULL;

	if (!file)
		return limit;
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, "0::", 3)) {
			line[strcspn(line, "\n")] = 0;
			at = line + 3;
			break;
		}
	fclose(file);
	for (; at && *at; *strrchr(at, '/') = 0) {
		unsigned long long bytes;

		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", at);
		file = fopen(path, "re");
		if (file) {
			if (fscanf(file, "%llu", &bytes) == 1 && bytes < limit)
				limit = bytes;
			fclose(file);
		}
		if (!strrchr(at, '/'))
			break;
	}
	return limit;
}

int slab_start(struct daemon *d, char message[256])
{
	unsigned n_nodes = topology_n_nodes(d->topology), next_node = 0;
	uint64_t limit = cgroup_limit(), missing;

	d->slabs = calloc(d->pool.header->max_places, sizeof(*d->slabs));
	if (!d->slabs)
		return -ENOMEM;
	if (d->config.pool_bytes > limit) {
		snprintf(message, 256,
			"--pool %" PRIu64 " is more than this cgroup's memory limit of %" PRIu64
			": raise the limit (MemoryMax=), or give a smaller --pool",
			d->config.pool_bytes, limit);
		return -ENOMEM;
	}
	if (d->pool.found) {
		shm_remove_all(d->pool.uuid, slab_keep_object, d);
		for (uint32_t i = 0; i < d->pool.header->max_places; i++)
			if (atomic_load(&d->pool.slab_rows[i].number))
				slab_adopt(d, i);
		slab_count(d);
	}
	for (struct slab *spare; d->slab_bytes_total > d->config.pool_bytes && (spare = slab_find_spare(d, 0, 0));)
		slab_destroy(d, spare);
	if (d->slab_bytes_total > d->config.pool_bytes) {
		snprintf(message, 256,
			"the pool kept in memory holds %" PRIu64 " bytes of blocks, more than --pool %" PRIu64
			": start with the old size, or drop it with kvctl purge",
			d->slab_bytes_total, d->config.pool_bytes);
		return -ENOSPC;
	}
	missing = (d->config.pool_bytes - d->slab_bytes_total) / d->pool.header->slab_bytes;
	if (missing * d->pool.header->slab_bytes > shm_free_bytes()) {
		snprintf(message, 256,
			SHM_DIR " has %" PRIu64 " bytes free, --pool needs %" PRIu64
				" more: enlarge it (mount -o remount,size=...), or give a smaller --pool",
			shm_free_bytes(), missing * d->pool.header->slab_bytes);
		return -ENOSPC;
	}
	while (d->slab_bytes_total + d->pool.header->slab_bytes <= d->config.pool_bytes) {
		if (!slab_make(d, d->pool.header->slab_bytes, next_node++ % n_nodes, message))
			return -ENOSPC;
		daemon_progress(d, "populating the pool");
	}
	return 0;
}

void slab_stop(struct daemon *d)
{
	if (!d->slabs)
		return;
	for (uint32_t i = 0; i < d->pool.header->max_places; i++)
		if (d->slabs[i])
			slab_free(d, d->slabs[i]);
	free(d->slabs);
	d->slabs = NULL;
}
