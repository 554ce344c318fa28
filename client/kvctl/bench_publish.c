/*
 * bench_publish.c - kvctl bench publish: what reserve + publish in batches cost beyond writing the bytes
 *
 * Every page of the pool that is written to has been written to before: the first pass over the pool is told apart.
 */
#define _GNU_SOURCE 1
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"
#include "kvctl.h"
#include "load.h"
#include "pool.h"

#define BATCH 64
#define BLOCK_BYTES (64u * 1024)
#define BOUND_US 3.0 /* a block, the target */
#define ROUNDS 41

struct publish_times {
	double reserve, write, publish; /* ns a block */
};

/* One batch; @first is the number of its first block. Return: 0; KVCTL_FAILED (said). */
static int publish_batch(struct load *load, uint64_t first, struct publish_times *times)
{
	struct kvp_publish_item items[BATCH];
	struct kvp_block_ref blocks[BATCH];
	uint8_t results[BATCH];
	uint64_t start = now_ns(), reserved, written;
	int64_t got = kvp_reserve(load->ns, BATCH, 0, kvp_deadline_ms(10000), blocks);

	if (got != BATCH) {
		complain("bench: reserving %u blocks: got %" PRId64 ": %s", BATCH, got, kvp_error(load->client));
		return KVCTL_FAILED;
	}
	reserved = now_ns();
	memset(items, 0, sizeof(items));
	for (unsigned i = 0; i < BATCH; i++) {
		load_fill(blocks[i].data, first + i, BLOCK_BYTES);
		items[i].key = load_key(first + i);
		items[i].block = &blocks[i];
		items[i].used_tokens = 1;
	}
	written = now_ns();
	got = kvp_publish(load->ns, items, BATCH, results);
	times->reserve = (double)(reserved - start) / BATCH;
	times->write = (double)(written - reserved) / BATCH;
	times->publish = (double)(now_ns() - written) / BATCH;
	if (got == BATCH)
		return 0;
	complain("bench: publishing %u blocks: %" PRId64 " were stored: %s", BATCH, got, kvp_error(load->client));
	return KVCTL_FAILED;
}

/* The same writing into bare shared memory that was touched before. */
static double write_bare_ns(void)
{
	double times[9];
	char *map = mmap(
		NULL, BATCH * BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (map == MAP_FAILED)
		return 0;
	for (unsigned s = 0; s < 10; s++) {
		uint64_t start = now_ns();

		for (unsigned i = 0; i < BATCH; i++)
			load_fill(map + i * BLOCK_BYTES, i, BLOCK_BYTES);
		if (s)
			times[s - 1] = (double)(now_ns() - start) / BATCH;
	}
	munmap(map, BATCH * BLOCK_BYTES);
	return load_median(times, 9);
}

static int publish_rounds(struct load *load, uint64_t *next, unsigned rounds, struct publish_times *median)
{
	double reserve[ROUNDS], write[ROUNDS], publish[ROUNDS];

	for (unsigned i = 0; i < rounds; i++) {
		struct publish_times times;
		int r = publish_batch(load, *next, &times);

		if (r)
			return r;
		*next += BATCH;
		reserve[i] = times.reserve;
		write[i] = times.write;
		publish[i] = times.publish;
	}
	median->reserve = load_median(reserve, rounds);
	median->write = load_median(write, rounds);
	median->publish = load_median(publish, rounds);
	return 0;
}

static void publish_rows(
	struct bench *bench, const struct publish_times *times, const char *when, double limit, double bare)
{
	bench_row(bench, "us", (times->reserve + times->publish) / 1000, "the bound of 3 us", BOUND_US, limit,
		"reserve + publish a block, %s", when);
	bench_row(bench, "us", times->reserve / 1000, NULL, 0, BENCH_NO_TARGET, "  of that reserve");
	bench_row(bench, "us", times->publish / 1000, NULL, 0, BENCH_NO_TARGET, "  of that publish");
	bench_row(bench, "us", times->write / 1000, "the same into bare memory", bare / 1000, BENCH_NO_TARGET,
		"  writing its %u KiB", BLOCK_BYTES / 1024);
}

int bench_publish(struct bench *bench)
{
	struct publish_times first, again;
	uint64_t next = 0, pool_blocks = bench->pool_bytes / BLOCK_BYTES, pass = pool_blocks / BATCH / 2;
	struct load load;
	double bare;
	int r = load_open(&load, bench->socket, "bench-publish", BLOCK_BYTES, BATCH);

	if (r)
		return r;
	if (pass < ROUNDS + 4) {
		complain("bench: a pool of %" PRIu64 " bytes is too small for this: use one of 384M or more, or --self",
			bench->pool_bytes);
		load_close(&load);
		return KVCTL_FAILED;
	}
	bare = write_bare_ns();
	bench_say("publishing into memory never touched by this process ...");
	r = publish_rounds(&load, &next, ROUNDS, &first);
	/* over the pool's size twice: every slab is mapped and touched, and from now on room is made by eviction */
	bench_say("publishing twice the pool ...");
	while (!r && next < 2 * pool_blocks) {
		struct publish_times ignored;

		r = publish_batch(&load, next, &ignored);
		next += BATCH;
	}
	if (!r)
		r = publish_rounds(&load, &next, ROUNDS, &again);
	if (!r) {
		publish_rows(bench, &again, "in a full pool (evicting)", 1.0, bare);
		publish_rows(bench, &first, "first pass", BENCH_NO_TARGET, bare);
	}
	load_close(&load);
	return r;
}
