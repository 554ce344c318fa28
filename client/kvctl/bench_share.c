/*
 * bench_share.c - kvctl bench share: a prefix published by one process, got by another and every cache line read
 *
 * Beside it the same reads found by a bare hash index, from the very same pages (what the pool's protocol costs) and
 * from shared memory of its own; and what LMDB, memcached and Redis take.  Two pieces of memory differ here by 10 or 20
 * % for no reason but where the hypervisor put them, so the target is on the same pages.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "kvctl.h"
#include "load.h"
#include "pool.h"

#define BLOCK_BYTES (2u << 20)
#define N_BLOCKS 512u /* 1 GiB */
#define PASSES 9

enum {
	POOL_NS,
	SAME_NS, /* the pool's pages, no pool */
	BARE_NS, /* other pages */
	POOL_FIRST_NS,
	BARE_FIRST_NS,
	N_RESULTS,
};

struct share_job {
	const struct bench *bench;
	uint64_t n_blocks;
	int bare_fd; /* the same bytes, block after block */
};

/* What two processes would make of shared memory by hand: key -> block, open addressing. */
#define BARE_ROOM (4 * N_BLOCKS)
struct bare {
	struct {
		struct kvp_key key;
		const char *data;
	} index[BARE_ROOM];
};

static void bare_put(struct bare *bare, const struct kvp_key *key, const char *data)
{
	uint64_t at = key->w[0] % BARE_ROOM;

	while (bare->index[at].data)
		at = (at + 1) % BARE_ROOM;
	bare->index[at].key = *key;
	bare->index[at].data = data;
}

static const char *bare_get(const struct bare *bare, const struct kvp_key *key)
{
	for (uint64_t at = key->w[0] % BARE_ROOM; bare->index[at].data; at = (at + 1) % BARE_ROOM)
		if (bare->index[at].key.w[0] == key->w[0] && bare->index[at].key.w[1] == key->w[1])
			return bare->index[at].data;
	return NULL;
}

/* Get one block and read it. Return: ns; < 0: a miss. @sum: of what was read. */
static double pool_get(struct load *load, const struct kvp_key *key, uint64_t deadline_ns, uint64_t *sum)
{
	uint64_t start = now_ns();
	struct kvp_view view;

	if (kvp_acquire(load->ns, key, 1, 0, deadline_ns, &view) != 1)
		return -1;
	*sum += load_read_lines(view.data, BLOCK_BYTES);
	kvp_release(&view, 1);
	return (double)(now_ns() - start);
}

static double bare_read(const struct bare *bare, const struct kvp_key *key, uint64_t *sum)
{
	uint64_t start = now_ns();
	const char *data = bare_get(bare, key);

	if (!data)
		return -1;
	*sum += load_read_lines(data, BLOCK_BYTES);
	return (double)(now_ns() - start);
}

struct share_times {
	double pool[PASSES * N_BLOCKS], same[PASSES * N_BLOCKS], bare[PASSES * N_BLOCKS];
	uint64_t pool_sum, same_sum, bare_sum;
};

/* Where the pool's blocks lie in this process. Return: 0; -1: a miss. */
static int same_find(struct load *load, struct bare *same, const struct kvp_key *keys, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		struct kvp_view view;

		if (kvp_acquire(load->ns, &keys[i], 1, 0, 0, &view) != 1)
			return -1;
		bare_put(same, &keys[i], view.data);
		kvp_release(&view, 1);
	}
	return 0;
}

/* The ways take turns, block by block: whoever disturbs the machine disturbs all.  The blocks read one after the other
 * lie far apart in the order: none finds in the cache what another has just read. Return: 0; -1: a miss. */
static int share_pass(struct load *load, const struct bare *same, const struct bare *bare, const struct kvp_key *keys,
	uint64_t n, struct share_times *times, uint64_t at)
{
	for (uint64_t i = 0; i < n; i++, at++) {
		times->same[at] = bare_read(same, &keys[(i + n / 3) % n], &times->same_sum);
		times->pool[at] = pool_get(load, &keys[i], 0, &times->pool_sum);
		times->bare[at] = bare_read(bare, &keys[(i + 2 * n / 3) % n], &times->bare_sum);
		if (times->pool[at] < 0 || times->same[at] < 0 || times->bare[at] < 0)
			return -1;
	}
	return 0;
}

static int first_pass(
	struct load *load, const struct bare *bare, const struct kvp_key *keys, uint64_t n, double *results)
{
	static double pool[N_BLOCKS], other[N_BLOCKS];
	uint64_t sum = 0;

	for (uint64_t i = 0; i < n; i++) {
		pool[i] = pool_get(load, &keys[i], kvp_deadline_ms(60000), &sum);
		other[i] = bare_read(bare, &keys[i], &sum);
		if (pool[i] < 0)
			return -1;
	}
	results[POOL_FIRST_NS] = load_median(pool, (unsigned)n);
	results[BARE_FIRST_NS] = load_median(other, (unsigned)n);
	return 0;
}

static int share_measure(
	struct load *load, const struct bare *bare, const struct kvp_key *keys, uint64_t n, double *results)
{
	static struct share_times times;
	static struct bare same;
	int r = first_pass(load, bare, keys, n, results);

	if (r == 0)
		r = same_find(load, &same, keys, n);
	for (unsigned i = 0; !r && i < PASSES; i++)
		r = share_pass(load, &same, bare, keys, n, &times, i * n);
	if (r < 0) {
		complain("bench: a published block was not found: was it evicted? use a larger pool, or --self");
		return KVCTL_FAILED;
	}
	results[POOL_NS] = load_median(times.pool, (unsigned)(PASSES * n));
	results[SAME_NS] = load_median(times.same, (unsigned)(PASSES * n));
	results[BARE_NS] = load_median(times.bare, (unsigned)(PASSES * n));
	if (times.pool_sum != times.bare_sum || times.pool_sum != times.same_sum) {
		complain("bench: what was read is not what was written");
		return KVCTL_FAILED;
	}
	return 0;
}

static int share_reader(void *owner, unsigned process, double *results)
{
	const struct share_job *job = owner;
	static struct bare bare;
	const char *map;
	struct kvp_key *keys = load_keys_shuffled(job->n_blocks, process + 1);
	struct load load;
	int r = load_open(&load, job->bench->socket, "bench-share", BLOCK_BYTES, KVP_STOCK_NONE);

	if (r || !keys)
		return KVCTL_FAILED;
	map = mmap(NULL, job->n_blocks * BLOCK_BYTES, PROT_READ, MAP_SHARED, job->bare_fd, 0);
	if (map == MAP_FAILED)
		return KVCTL_FAILED;
	for (uint64_t i = 0; i < job->n_blocks; i++) {
		struct kvp_key key = load_key(i);

		bare_put(&bare, &key, map + i * BLOCK_BYTES);
	}
	r = share_measure(&load, &bare, keys, job->n_blocks, results);
	load_close(&load);
	free(keys);
	return r;
}

static int share_writer(void *owner, unsigned process, double *results)
{
	const struct share_job *job = owner;
	struct load load;
	int r = load_open(&load, job->bench->socket, "bench-share", BLOCK_BYTES, 8);

	(void)process;
	(void)results;
	if (!r)
		r = load_publish(&load, 0, job->n_blocks, BLOCK_BYTES, true);
	load_close(&load);
	return r;
}

static int bare_make(struct share_job *job)
{
	uint64_t bytes = job->n_blocks * BLOCK_BYTES;
	char *map;

	job->bare_fd = memfd_create("kvctl-bench", MFD_CLOEXEC);
	if (job->bare_fd < 0 || ftruncate(job->bare_fd, (off_t)bytes) < 0 ||
		posix_fallocate(job->bare_fd, 0, (off_t)bytes) != 0) {
		complain("bench: no memory for %" PRIu64 " MiB of bare shared memory", bytes >> 20);
		return KVCTL_FAILED;
	}
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, job->bare_fd, 0);
	if (map == MAP_FAILED)
		return KVCTL_FAILED;
	for (uint64_t i = 0; i < job->n_blocks; i++)
		load_fill(map + i * BLOCK_BYTES, i, BLOCK_BYTES);
	munmap(map, bytes);
	return 0;
}

static void share_peers(struct bench *bench, uint64_t n_blocks, double pool_us)
{
	static const char *const peers[][2] = {{"lmdb", "LMDB"}, {"memcached", "memcached"}, {"redis", "Redis"}};

	for (unsigned i = 0; i < 3; i++) {
		double ns = bench_peer("share", peers[i][0], n_blocks, BLOCK_BYTES, 1);

		if (ns > 0)
			bench_row(bench, "us", pool_us, peers[i][1], ns / 1000, BENCH_NO_TARGET,
				"get and read a block of 2 MiB, second pass");
	}
}

int bench_share(struct bench *bench)
{
	struct share_job job = {.bench = bench, .n_blocks = N_BLOCKS};
	double *results = load_results(N_RESULTS), pool_us;
	int r;

	if (bench->pool_bytes / BLOCK_BYTES < N_BLOCKS) {
		job.n_blocks = bench->pool_bytes / BLOCK_BYTES / 2;
		bench_say("the pool holds less than 1 GiB: %" PRIu64 " blocks of 2 MiB instead", job.n_blocks);
	}
	if (!results || !job.n_blocks)
		return KVCTL_FAILED;
	bench_say("share: publishing %" PRIu64 " blocks of 2 MiB ...", job.n_blocks);
	r = load_processes(1, share_writer, &job, NULL, 0);
	if (!r)
		r = bare_make(&job);
	bench_say("share: reading them in another process ...");
	if (!r)
		r = load_processes(1, share_reader, &job, results, N_RESULTS);
	close(job.bare_fd);
	if (r)
		return r;
	pool_us = results[POOL_NS] / 1000;
	bench_row(bench, "us", pool_us, "the same pages, bare", results[SAME_NS] / 1000, 1.1,
		"get and read a block of 2 MiB, second pass");
	bench_row(bench, "us", pool_us, "other shared memory, bare", results[BARE_NS] / 1000, BENCH_NO_TARGET,
		"get and read a block of 2 MiB, second pass");
	bench_row(bench, "us", results[POOL_FIRST_NS] / 1000, "other shared memory, bare",
		results[BARE_FIRST_NS] / 1000, BENCH_NO_TARGET, "get and read a block of 2 MiB, first pass");
	share_peers(bench, job.n_blocks, pool_us);
	return 0;
}
