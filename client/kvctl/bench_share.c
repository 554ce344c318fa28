/*
 * bench_share.c - kvctl bench share: a prefix published by one process, got by another and every cache line read
 *
 * Beside it the same reads from bare shared memory found by a bare hash index, and what LMDB, memcached and Redis take.
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
	BARE_NS,
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
	const char *map;
	struct {
		struct kvp_key key;
		uint64_t block; /* + 1 */
	} index[BARE_ROOM];
};

static void bare_put(struct bare *bare, const struct kvp_key *key, uint64_t block)
{
	uint64_t at = key->w[0] % BARE_ROOM;

	while (bare->index[at].block)
		at = (at + 1) % BARE_ROOM;
	bare->index[at].key = *key;
	bare->index[at].block = block + 1;
}

static const char *bare_get(const struct bare *bare, const struct kvp_key *key)
{
	for (uint64_t at = key->w[0] % BARE_ROOM; bare->index[at].block; at = (at + 1) % BARE_ROOM)
		if (bare->index[at].key.w[0] == key->w[0] && bare->index[at].key.w[1] == key->w[1])
			return bare->map + (bare->index[at].block - 1) * BLOCK_BYTES;
	return NULL;
}

/* All blocks once, in the order of @keys. Return: ns a block; < 0: a miss. @sum: of what was read. */
static double pool_pass(struct load *load, const struct kvp_key *keys, uint64_t n, uint64_t deadline_ns, uint64_t *sum)
{
	uint64_t start = now_ns();

	for (uint64_t i = 0; i < n; i++) {
		struct kvp_view view;

		if (kvp_acquire(load->ns, &keys[i], 1, 0, deadline_ns, &view) != 1)
			return -1;
		*sum += load_read_lines(view.data, BLOCK_BYTES);
		kvp_release(&view, 1);
	}
	return (double)(now_ns() - start) / (double)n;
}

static double bare_pass(const struct bare *bare, const struct kvp_key *keys, uint64_t n, uint64_t *sum)
{
	uint64_t start = now_ns();

	for (uint64_t i = 0; i < n; i++) {
		const char *data = bare_get(bare, &keys[i]);

		if (!data)
			return -1;
		*sum += load_read_lines(data, BLOCK_BYTES);
	}
	return (double)(now_ns() - start) / (double)n;
}

static int share_measure(
	struct load *load, const struct bare *bare, const struct kvp_key *keys, uint64_t n, double *results)
{
	uint64_t pool_sum = 0, bare_sum = 0;
	double pool[PASSES], other[PASSES];

	results[POOL_FIRST_NS] = pool_pass(load, keys, n, kvp_deadline_ms(60000), &pool_sum);
	results[BARE_FIRST_NS] = bare_pass(bare, keys, n, &bare_sum);
	for (unsigned i = 0; i < PASSES; i++) {
		other[i] = bare_pass(bare, keys, n, &bare_sum);
		pool[i] = pool_pass(load, keys, n, 0, &pool_sum);
		if (pool[i] < 0)
			break;
	}
	results[POOL_NS] = load_median(pool, PASSES);
	results[BARE_NS] = load_median(other, PASSES);
	if (results[POOL_FIRST_NS] < 0 || results[POOL_NS] < 0) {
		complain("bench: a published block was not found: was it evicted? use a larger pool, or --self");
		return KVCTL_FAILED;
	}
	if (pool_sum != bare_sum) {
		complain("bench: what was read is not what was written");
		return KVCTL_FAILED;
	}
	return 0;
}

static int share_reader(void *owner, unsigned process, double *results)
{
	const struct share_job *job = owner;
	static struct bare bare;
	struct kvp_key *keys = load_keys_shuffled(job->n_blocks, process + 1);
	struct load load;
	int r = load_open(&load, job->bench->socket, "bench-share", BLOCK_BYTES, KVP_STOCK_NONE);

	if (r || !keys)
		return KVCTL_FAILED;
	bare.map = mmap(NULL, job->n_blocks * BLOCK_BYTES, PROT_READ, MAP_SHARED, job->bare_fd, 0);
	if (bare.map == MAP_FAILED)
		return KVCTL_FAILED;
	for (uint64_t i = 0; i < job->n_blocks; i++) {
		struct kvp_key key = load_key(i);

		bare_put(&bare, &key, i);
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
	bench_row(bench, "us", pool_us, "bare shared memory", results[BARE_NS] / 1000, 1.1,
		"get and read a block of 2 MiB, second pass");
	bench_row(bench, "us", results[POOL_FIRST_NS] / 1000, "bare shared memory", results[BARE_FIRST_NS] / 1000,
		BENCH_NO_TARGET, "get and read a block of 2 MiB, first pass");
	share_peers(bench, job.n_blocks, pool_us);
	return 0;
}
