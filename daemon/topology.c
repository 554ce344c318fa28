/* topology.c - see topology.h */
#include "topology.h"

#include <errno.h>
#include <hwloc.h>
#include <hwloc/distances.h>
#include <hwloc/glibc-sched.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "guard.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define POPULATE_THREADS_MAX 16
#define POPULATE_PIECE (32ull << 20)
#define POPULATE_SHARE (512ull << 20) /* worth a thread */

struct topology {
	hwloc_topology_t hwloc;
	unsigned n_nodes;
	hwloc_obj_t *nodes;
	hwloc_bitmap_t with_cpus; /* by the kernel's numbers */
	uint8_t (*near)[TOPOLOGY_NODES_MAX]; /* row: a node; all nodes, the nearest first */
};

/* Nodes of CXL memory have the CPUs of the whole machine beside them in hwloc's tree: the kernel knows better. In a
   topology that is not this machine's, a node that shares the CPUs of one before it counts as one without. */
static void topology_find_cpus(struct topology *t)
{
	char line[1024] = "";
	FILE *file = hwloc_topology_is_thissystem(t->hwloc) ? fopen("/sys/devices/system/node/has_cpu", "re") : NULL;

	t->with_cpus = hwloc_bitmap_alloc();
	if (file) {
		if (fgets(line, sizeof(line), file)) {
			line[strcspn(line, "\n")] = 0;
			hwloc_bitmap_list_sscanf(t->with_cpus, line);
		}
		fclose(file);
	}
	for (unsigned i = 0; i < t->n_nodes && !line[0]; i++) {
		bool own = !hwloc_bitmap_iszero(t->nodes[i]->cpuset);

		for (unsigned j = 0; j < i; j++)
			own = own && !hwloc_bitmap_intersects(t->nodes[i]->cpuset, t->nodes[j]->cpuset);
		if (own)
			hwloc_bitmap_set(t->with_cpus, t->nodes[i]->os_index);
	}
}

/* Latency by the kernel's table; 0: it says nothing. */
static uint64_t topology_distance(
	const struct hwloc_distances_s *distances, const struct hwloc_obj *from, const struct hwloc_obj *to)
{
	unsigned row = UINT_MAX, column = UINT_MAX;

	for (unsigned i = 0; distances && i < distances->nbobjs; i++) {
		row = distances->objs[i] == from ? i : row;
		column = distances->objs[i] == to ? i : column;
	}
	return row == UINT_MAX || column == UINT_MAX ? 0 : distances->values[row * distances->nbobjs + column];
}

/* hwloc's order follows its tree, where a node without CPUs may come before others: tables read better by number. */
static int node_compare(const void *a, const void *b)
{
	unsigned x = (*(const hwloc_obj_t *)a)->os_index, y = (*(const hwloc_obj_t *)b)->os_index;

	return (x > y) - (x < y);
}

static int topology_sort_near(struct topology *t)
{
	struct hwloc_distances_s *distances = NULL;
	unsigned n = 1;

	t->near = calloc(t->n_nodes ? t->n_nodes : 1, sizeof(*t->near));
	if (!t->near)
		return -ENOMEM;
	if (hwloc_distances_get(t->hwloc, &n, &distances,
		    HWLOC_DISTANCES_KIND_FROM_OS | HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) < 0 ||
		!n)
		distances = NULL;
	for (unsigned i = 0; i < t->n_nodes; i++) {
		uint64_t far[TOPOLOGY_NODES_MAX];
		uint8_t *near = t->near[i];

		for (unsigned j = 0; j < t->n_nodes; j++) {
			unsigned at = j;

			far[j] = i == j ? 0 : 1 + topology_distance(distances, t->nodes[i], t->nodes[j]);
			for (; at && far[near[at - 1]] > far[j]; at--)
				near[at] = near[at - 1];
			near[at] = (uint8_t)j;
		}
	}
	if (distances)
		hwloc_distances_release(t->hwloc, distances);
	return 0;
}

unsigned topology_near(const struct topology *t, uint32_t i, unsigned k)
{
	return !t || i >= t->n_nodes || k >= t->n_nodes ? k : t->near[i][k];
}

int topology_open(struct topology **topology)
{
	struct topology *t = calloc(1, sizeof(*t));
	hwloc_obj_t node = NULL;
	int n;

	if (!t)
		return -ENOMEM;
	if (hwloc_topology_init(&t->hwloc) < 0) {
		free(t);
		return -EIO;
	}
	if (hwloc_topology_load(t->hwloc) < 0) {
		topology_close(t);
		return -EIO;
	}
	n = hwloc_get_nbobjs_by_type(t->hwloc, HWLOC_OBJ_NUMANODE);
	t->nodes = calloc(n > 0 ? (size_t)n : 1, sizeof(*t->nodes));
	if (!t->nodes) {
		topology_close(t);
		return -ENOMEM;
	}
	/* the loaded topology already holds only what cpuset and cgroup allow */
	while ((node = hwloc_get_next_obj_by_type(t->hwloc, HWLOC_OBJ_NUMANODE, node)))
		if (node->attr->numanode.local_memory && t->n_nodes < TOPOLOGY_NODES_MAX)
			t->nodes[t->n_nodes++] = node;
	qsort(t->nodes, t->n_nodes, sizeof(t->nodes[0]), node_compare);
	topology_find_cpus(t);
	if (topology_sort_near(t) < 0) {
		topology_close(t);
		return -ENOMEM;
	}
	*topology = t;
	return 0;
}

void topology_close(struct topology *t)
{
	if (!t)
		return;
	hwloc_topology_destroy(t->hwloc);
	hwloc_bitmap_free(t->with_cpus);
	free(t->nodes);
	free(t->near);
	free(t);
}

unsigned topology_n_nodes(const struct topology *t)
{
	return t->n_nodes ? t->n_nodes : 1;
}

unsigned topology_n_cpus(const struct topology *t)
{
	int n = hwloc_get_nbobjs_by_type(t->hwloc, HWLOC_OBJ_PU);

	return n < 1 ? 1 : (unsigned)n;
}

uint32_t topology_node_id(const struct topology *t, unsigned i)
{
	return i < t->n_nodes ? t->nodes[i]->os_index : 0;
}

uint64_t topology_node_memory(const struct topology *t, unsigned i)
{
	return i < t->n_nodes ? t->nodes[i]->attr->numanode.local_memory : 0;
}

bool topology_has_cpus(const struct topology *t, unsigned i)
{
	return i >= t->n_nodes || hwloc_bitmap_isset(t->with_cpus, t->nodes[i]->os_index);
}

bool topology_is_far(const struct topology *t, unsigned i)
{
	if (!t || topology_has_cpus(t, i))
		return false;
	for (unsigned j = 0; j < t->n_nodes; j++)
		if (topology_has_cpus(t, j))
			return true;
	return false;
}

uint32_t topology_index(const struct topology *t, uint32_t id)
{
	struct hwloc_distances_s *distances = NULL;
	unsigned n = 1;
	uint32_t best = TOPOLOGY_ANY;
	uint64_t least = UINT64_MAX;

	if (id == TOPOLOGY_ANY || t->n_nodes < 2)
		return TOPOLOGY_ANY;
	for (unsigned i = 0; i < t->n_nodes; i++)
		if (t->nodes[i]->os_index == id)
			return i;
	/* a node with CPUs and no memory, or none of ours */
	if (hwloc_distances_get(t->hwloc, &n, &distances,
		    HWLOC_DISTANCES_KIND_FROM_OS | HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) < 0 ||
		!n)
		return TOPOLOGY_ANY;
	for (unsigned from = 0; from < distances->nbobjs; from++) {
		if (distances->objs[from]->type != HWLOC_OBJ_NUMANODE || distances->objs[from]->os_index != id)
			continue;
		for (unsigned to = 0; to < distances->nbobjs; to++)
			for (unsigned i = 0; i < t->n_nodes; i++) {
				uint64_t far = distances->values[from * distances->nbobjs + to];

				if (t->nodes[i] == distances->objs[to] && far < least) {
					least = far;
					best = i;
				}
			}
	}
	hwloc_distances_release(t->hwloc, distances);
	return best;
}

/* hwloc would say the same, but for that it has to look through all of the PCI bus at each start. */
int topology_device_node(uint64_t dev)
{
	char link[64], path[PATH_MAX + 16];
	int node = -1;

	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(dev), minor(dev));
	if (!realpath(link, path))
		return -1;
	/* from the partition up to the device that hangs on a bus */
	for (char *end; node < 0 && (end = strrchr(path, '/')) && strncmp(path, "/sys/devices/", 13) == 0; *end = 0) {
		size_t n = strlen(path);
		FILE *file;

		snprintf(path + n, sizeof(path) - n, "/numa_node");
		file = fopen(path, "re");
		path[n] = 0;
		if (!file)
			continue;
		if (fscanf(file, "%d", &node) != 1)
			node = -1;
		fclose(file);
	}
	return node;
}

bool topology_node_cpus(const struct topology *t, int id, cpu_set_t *cpus)
{
	hwloc_obj_t node = id < 0 ? NULL : hwloc_get_numanode_obj_by_os_index(t->hwloc, (unsigned)id);

	CPU_ZERO(cpus);
	return node && t->n_nodes > 1 && !hwloc_bitmap_iszero(node->cpuset) &&
	       hwloc_cpuset_to_glibc_sched_affinity(t->hwloc, node->cpuset, cpus, sizeof(*cpus)) == 0;
}

int topology_bind(struct topology *t, void *addr, uint64_t len, unsigned i)
{
	if (t->n_nodes < 2)
		return 0; /* one node: nothing to choose */
	if (hwloc_set_area_membind(t->hwloc, addr, len, t->nodes[i]->nodeset, HWLOC_MEMBIND_BIND,
		    HWLOC_MEMBIND_BYNODESET | HWLOC_MEMBIND_STRICT) < 0)
		return -errno;
	return 0;
}

struct populate {
	struct topology *topology;
	unsigned node;
	char *addr;
	uint64_t len;
	_Atomic uint64_t next;
	_Atomic int error;
};

bool topology_can_populate(void)
{
	return madvise(NULL, 0, MADV_POPULATE_WRITE) == 0; /* of nothing: is the advice known? */
}

static int populate_piece(char *addr, uint64_t len)
{
	if (madvise(addr, len, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return -errno;
	/* before Linux 5.14: an atomic "or 0" touches a page and keeps what others store into it */
	for (uint64_t at = 0; at < len; at += 4096)
		__atomic_fetch_or(addr + at, 0, __ATOMIC_RELAXED);
	return 0;
}

static void *populate_thread(void *arg)
{
	struct populate *p = arg;
	uint64_t at;

	if (p->topology->n_nodes > 1)
		hwloc_set_cpubind(p->topology->hwloc,
			hwloc_bitmap_iszero(p->topology->nodes[p->node]->cpuset)
				? hwloc_get_root_obj(p->topology->hwloc)->cpuset
				: p->topology->nodes[p->node]->cpuset,
			HWLOC_CPUBIND_THREAD);
	while ((at = atomic_fetch_add(&p->next, POPULATE_PIECE)) < p->len) {
		int r = populate_piece(p->addr + at, p->len - at < POPULATE_PIECE ? p->len - at : POPULATE_PIECE);

		if (r < 0)
			atomic_store(&p->error, r);
	}
	return NULL;
}

int topology_populate(struct topology *t, void *addr, uint64_t len, unsigned i)
{
	struct populate p = {.topology = t, .node = i, .addr = addr, .len = len};
	pthread_t threads[POPULATE_THREADS_MAX];
	unsigned want = topology_n_cpus(t), n = 0;
	sigset_t mask, old;

	if (want > POPULATE_THREADS_MAX)
		want = POPULATE_THREADS_MAX;
	if (want > 1 + len / POPULATE_SHARE)
		want = (unsigned)(1 + len / POPULATE_SHARE);
	guard_thread_mask(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, &old);
	while (n + 1 < want && pthread_create(&threads[n], NULL, populate_thread, &p) == 0)
		n++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	populate_thread(&p);
	for (unsigned j = 0; j < n; j++)
		pthread_join(threads[j], NULL);
	return atomic_load(&p.error);
}

int64_t topology_placed(const struct topology *t, void *addr, uint64_t len, unsigned i)
{
	void *pages[512];
	int at[512];
	int64_t placed = 0;

	if (t->n_nodes < 2 || !hwloc_topology_is_thissystem(t->hwloc))
		return (int64_t)len;
	for (uint64_t off = 0; off < len;) {
		unsigned long n = 0;

		for (; n < 512 && off < len; n++, off += 4096)
			pages[n] = (char *)addr + off;
		if (syscall(SYS_move_pages, 0, n, pages, NULL, at, 0) < 0)
			return -errno;
		while (n--)
			placed += at[n] == (int)t->nodes[i]->os_index ? 4096 : 0;
	}
	return placed;
}
