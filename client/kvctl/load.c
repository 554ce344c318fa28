/* load.c - see load.h */
#define _GNU_SOURCE 1
#include "load.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "kvctl.h"
#include "pool.h"

#define BATCH 256
#define ATTACH_NS 10000000000ull

int load_open_desc(
	struct load *load, const char *socket, const char *ns_name, const struct kvp_desc *desc, uint32_t stock)
{
	struct kvp_open_opts opts = {.size = sizeof(opts),
		.socket = socket,
		.comm = "kvctl bench",
		.connect_timeout_ms = 5000,
		.stock_blocks = stock};
	struct kvp_ns_opts ns_opts = {
		.size = sizeof(ns_opts), .name = ns_name, .owner_uid = KVP_UID_SELF, .desc = desc};

	memset(load, 0, sizeof(*load));
	if (kvp_open(&opts, &load->client) < 0) {
		complain("bench: out of memory");
		return KVCTL_FAILED;
	}
	if (kvp_state(load->client, NULL) != KVP_ATTACHED) {
		complain("bench: no daemon at %s: %s; start one, or let --self do it", socket, kvp_error(load->client));
		load_close(load);
		return KVCTL_DOWN;
	}
	if (kvp_ns_open(load->client, &ns_opts, &load->ns) < 0) {
		complain("bench: namespace %s: %s", ns_name, kvp_error(load->client));
		load_close(load);
		return KVCTL_FAILED;
	}
	/* opened detached if the daemon was slow to answer: then it joins by itself */
	for (uint64_t end = now_ns() + ATTACH_NS; now_ns() < end;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL)) {
		struct kvp_ns_info info = {.size = sizeof(info)};

		if (kvp_ns_info(load->ns, &info) == 0 && info.ns_id)
			return 0;
	}
	complain("bench: namespace %s was not joined: %s", ns_name, kvp_error(load->client));
	load_close(load);
	return KVCTL_DOWN;
}

int load_open(struct load *load, const char *socket, const char *ns_name, uint64_t block_bytes, uint32_t stock)
{
	struct kvp_desc desc;

	kvp_desc_init(&desc, KVP_LAYOUT_OPAQUE, 1, 0, 0, 0, KVP_TYPE_F16);
	desc.block_bytes = block_bytes;
	snprintf(desc.engine, sizeof(desc.engine), "kvctl-bench");
	return load_open_desc(load, socket, ns_name, &desc, stock);
}

void load_close(struct load *load)
{
	if (load->ns)
		kvp_ns_close(load->ns);
	if (load->client)
		kvp_close(load->client);
	memset(load, 0, sizeof(*load));
}

struct kvp_key load_key(uint64_t i)
{
	struct kvp_key key;

	for (unsigned w = 0; w < 2; w++) { /* splitmix64 */
		uint64_t z = (2 * i + w + 1) * 0x9e3779b97f4a7c15u;

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		key.w[w] = z ^ z >> 31;
	}
	return key;
}

struct kvp_key *load_keys_shuffled(uint64_t n, uint64_t seed)
{
	struct kvp_key *keys = malloc(n * sizeof(*keys));

	for (uint64_t i = 0; keys && i < n; i++) {
		uint64_t j;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		j = (seed >> 20) % (i + 1);
		if (j < i)
			keys[i] = keys[j];
		keys[j] = load_key(i);
	}
	return keys;
}

void load_fill(void *data, uint64_t i, uint64_t bytes)
{
	uint64_t *at = data;

	for (uint64_t w = 0; w < bytes / 8; w++)
		at[w] = i + w;
}

uint64_t load_read_lines(const void *data, uint64_t bytes)
{
	const uint64_t *at = data;
	uint64_t sum = 0;

	for (uint64_t w = 0; w < bytes / 8; w += 8)
		sum += at[w];
	return sum;
}

static int load_publish_batch(struct load *load, uint64_t first, uint32_t n, uint64_t block_bytes, bool fill)
{
	struct kvp_publish_item items[BATCH];
	struct kvp_block_ref blocks[BATCH];
	uint8_t results[BATCH];
	int64_t got = kvp_reserve(load->ns, n, 0, kvp_deadline_ms(10000), blocks);

	if (got <= 0)
		return (int)got;
	memset(items, 0, sizeof(items));
	for (int64_t i = 0; i < got; i++) {
		if (fill)
			load_fill(blocks[i].data, first + (uint64_t)i, block_bytes);
		items[i].key = load_key(first + (uint64_t)i);
		items[i].block = &blocks[i];
		items[i].used_tokens = 1;
	}
	n = (uint32_t)got;
	got = kvp_publish(load->ns, items, n, results);
	return got == n ? (int)n : got < 0 ? (int)got : -KVP_EPROTO;
}

int load_publish(struct load *load, uint64_t first, uint64_t n, uint64_t block_bytes, bool fill)
{
	while (n) {
		int r = load_publish_batch(load, first, n < BATCH ? (uint32_t)n : BATCH, block_bytes, fill);

		if (r <= 0) {
			complain("bench: publishing block %" PRIu64 ": %s", first,
				r ? kvp_error(load->client) : "no room: use a larger pool, or --self");
			return KVCTL_FAILED;
		}
		first += (uint64_t)r;
		n -= (uint64_t)r;
	}
	return 0;
}

uint64_t load_cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double load_median(double *values, unsigned n)
{
	qsort(values, n, sizeof(*values), compare);
	return values[n / 2];
}

double load_lowest_tenth(double *values, unsigned n)
{
	qsort(values, n, sizeof(*values), compare);
	return values[n / 10];
}

double *load_results(unsigned n)
{
	void *map = mmap(NULL, n * sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return map == MAP_FAILED ? NULL : map;
}

int load_processes(unsigned n, int (*body)(void *owner, unsigned index, double *results), void *owner, double *results,
	unsigned n_results)
{
	int failed = 0;

	fflush(NULL);
	for (unsigned i = 0; i < n; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(body(owner, i, results + i * n_results));
		}
		failed += pid < 0;
	}
	for (unsigned i = 0; i < n; i++) {
		int status;

		if (wait(&status) > 0 && status)
			failed++;
	}
	return failed ? KVCTL_FAILED : 0;
}

int load_index_open(struct load_index *index, const char *socket, const struct kvp_ns *ns)
{
	struct kvp_ns_info info = {.size = sizeof(info)};
	const struct kvp_ns_header *head;
	char path[POOL_PATH_MAX];
	struct pool pool;
	struct stat st;
	int fd;

	memset(index, 0, sizeof(*index));
	if (kvp_ns_info(ns, &info) < 0 || pool_find(&pool, socket, NULL))
		return KVCTL_FAILED;
	pool_path(&pool, path, "ns-%016" PRIx64, info.ns_id);
	fd = pool_object_open(&pool, path, &st);
	if (fd < 0) {
		complain(
			"bench: %s: %s: the yardstick probes the index itself: run as root or the pool's user, or with --self",
			path, strerror(-fd));
		return KVCTL_FAILED;
	}
	/* nobody cuts it: the namespace is ours */
	index->map_bytes = (uint64_t)st.st_size;
	index->map = mmap(NULL, index->map_bytes, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (index->map == MAP_FAILED || index->map_bytes < sizeof(*head)) {
		index->map = NULL;
		complain("bench: cannot map %s", path);
		return KVCTL_FAILED;
	}
	head = index->map;
	index->buckets = (const void *)((const char *)index->map + head->index_off);
	index->n_buckets = head->n_buckets;
	index->blocks = (const void *)((const char *)index->map + head->block_off);
	index->n_blocks = (uint64_t)head->max_places * head->slots_per_slab;
	return 0;
}

void load_index_close(struct load_index *index)
{
	if (index->map)
		munmap(index->map, index->map_bytes);
	index->map = NULL;
}

uint64_t load_index_probe(const struct load_index *index, const struct kvp_key *key)
{
	uint64_t home = kvp_index_home(key, index->n_buckets);

	for (unsigned probe = 0; probe < KVP_INDEX_PROBES; probe++) {
		const struct kvp_index_bucket *bucket = &index->buckets[(home + probe) & (index->n_buckets - 1)];
		bool full = true;

		for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++) {
			uint64_t hint = atomic_load_explicit(&bucket->hint[i], memory_order_acquire);
			uint64_t slot = kvp_hint_slot(hint);

			full = full && hint;
			if (hint >> 32 != kvp_index_tag(key) || slot >= index->n_blocks)
				continue;
			if (index->blocks[slot].key.w[0] == key->w[0] && index->blocks[slot].key.w[1] == key->w[1])
				return slot;
		}
		if (!full)
			break;
	}
	return UINT64_MAX;
}
