/*
 * bench_spill.c - kvctl bench spill: blocks to the spill store and back, beside plain O_DIRECT writes and reads there
 *
 * Disks of this kind of machine vary by a factor of four within minutes: both are measured in turns, three rounds.
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

#include "admin.h"
#include "bench.h"
#include "kvctl.h"
#include "load.h"
#include "pool.h"

#define BLOCK_BYTES (1u << 20)
#define ROUNDS 3
#define BATCH 16
#define WAIT_NS 60000000000ull

struct spill_round {
	double pool_write, raw_write, pool_read, raw_read; /* MB/s */
};

static double mb_per_s(uint64_t bytes, uint64_t start_ns)
{
	return (double)bytes / 1e6 / ((double)(now_ns() - start_ns) / 1e9);
}

/* Block after block, as one writer or reader would; fdatasync counts. Return: MB/s; 0: refused. */
static double raw_pass(const char *path, void *buffer, uint64_t n, bool write)
{
	int fd = open(path, (write ? O_WRONLY | O_CREAT : O_RDONLY) | O_DIRECT | O_CLOEXEC, 0600);
	uint64_t start = now_ns();
	double speed = 0;

	if (fd < 0)
		return 0;
	for (uint64_t i = 0; i < n; i++) {
		off_t off = (off_t)(i * BLOCK_BYTES);
		ssize_t r = write ? pwrite(fd, buffer, BLOCK_BYTES, off) : pread(fd, buffer, BLOCK_BYTES, off);

		if (r != BLOCK_BYTES)
			goto out;
	}
	if (!write || fdatasync(fd) == 0)
		speed = mb_per_s(n * BLOCK_BYTES, start);
out:
	close(fd);
	return speed;
}

static int drain(const struct bench *bench)
{
	struct kvp_wire_admin ask = {.deadline_ns = now_ns() + WAIT_NS};
	struct options options = {.command = "bench", .socket = bench->socket};
	struct kvp_wire_admin_done done;
	char path[KVP_SOCKET_MAX];
	int fd, r = admin_socket_path(&options, NULL, path);

	if (r)
		return r;
	fd = admin_connect(path);
	if (fd < 0) {
		admin_complain("bench", path, fd);
		return KVCTL_FAILED;
	}
	r = admin_ask(fd, "bench", KVP_MSG_DRAIN, &ask, sizeof(ask), ask.deadline_ns + WAIT_NS, &done);
	close(fd);
	if (r < 0)
		admin_complain("bench", path, r);
	return r ? KVCTL_FAILED : 0;
}

static int pool_read_back(struct load *load, uint64_t first, uint64_t n)
{
	for (uint64_t i = 0; i < n; i += BATCH) {
		struct kvp_view views[BATCH];
		struct kvp_key keys[BATCH];
		uint32_t k = n - i < BATCH ? (uint32_t)(n - i) : BATCH;
		int64_t got;

		for (uint32_t j = 0; j < k; j++)
			keys[j] = load_key(first + i + j);
		got = kvp_acquire(load->ns, keys, k, 0, now_ns() + WAIT_NS, views);
		for (int64_t j = 0; j < got; j++)
			if (*(const uint64_t *)views[j].data != first + i + (uint64_t)j) {
				complain(
					"bench: block %" PRIu64 " came back with other bytes", first + i + (uint64_t)j);
				return KVCTL_FAILED;
			}
		kvp_release(views, k);
		if (got != k) {
			complain("bench: block %" PRIu64 " did not come back from the store",
				first + i + (uint64_t)(got > 0 ? got : 0));
			return KVCTL_FAILED;
		}
	}
	return 0;
}

/* @n blocks, twice what the pool holds: the first half must come from the store. */
static int spill_round(
	struct bench *bench, struct load *load, unsigned round, uint64_t n, void *buffer, struct spill_round *result)
{
	char path[300];
	uint64_t first = round * n, start;
	int r;

	snprintf(path, sizeof(path), "%s/kvctl-bench-%d", bench->spill_dir, (int)getpid());
	result->raw_write = raw_pass(path, buffer, n, true);
	start = now_ns();
	r = load_publish(load, first, n, BLOCK_BYTES, true);
	if (!r)
		r = drain(bench);
	result->pool_write = mb_per_s(n * BLOCK_BYTES, start);
	result->raw_read = raw_pass(path, buffer, n / 2, false);
	start = now_ns();
	if (!r)
		r = pool_read_back(load, first, n / 2);
	result->pool_read = mb_per_s(n / 2 * BLOCK_BYTES, start);
	unlink(path);
	return r;
}

static void spill_rows(struct bench *bench, const struct spill_round *rounds)
{
	double pool_write[ROUNDS], raw_write[ROUNDS], pool_read[ROUNDS], raw_read[ROUNDS];

	for (unsigned i = 0; i < ROUNDS; i++) {
		pool_write[i] = rounds[i].pool_write;
		raw_write[i] = rounds[i].raw_write;
		pool_read[i] = rounds[i].pool_read;
		raw_read[i] = rounds[i].raw_read;
	}
	bench_row(bench, "MB/s", load_median(pool_write, ROUNDS), "O_DIRECT pwrite", load_median(raw_write, ROUNDS),
		BENCH_NO_TARGET, "publish blocks of 1 MiB into the store, drained");
	bench_row(bench, "MB/s", load_median(pool_read, ROUNDS), "O_DIRECT pread", load_median(raw_read, ROUNDS),
		BENCH_NO_TARGET, "get them back, checksums verified");
}

int bench_spill(struct bench *bench)
{
	struct spill_round rounds[ROUNDS];
	uint64_t n = bench->pool_bytes / BLOCK_BYTES * 2;
	struct load load;
	void *buffer;
	int r;

	if (!bench->spill_dir[0]) {
		complain("bench: this daemon has no spill store: start it with --spill DIR:SIZE, or use --self");
		return KVCTL_FAILED;
	}
	buffer = mmap(NULL, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (buffer == MAP_FAILED)
		return KVCTL_FAILED;
	n = n > 1024 ? 1024 : n;
	if (n * BLOCK_BYTES < bench->pool_bytes * 3 / 2)
		bench_say("the pool is large: part of what is read back may never have left it");
	r = load_open(&load, bench->socket, "bench-spill", BLOCK_BYTES, BATCH);
	for (unsigned i = 0; !r && i < ROUNDS; i++) {
		bench_say("spill: round %u of %u, %" PRIu64 " MiB ...", i + 1, ROUNDS, n);
		r = spill_round(bench, &load, i, n, buffer, &rounds[i]);
	}
	if (!r)
		spill_rows(bench, rounds);
	load_close(&load);
	munmap(buffer, BLOCK_BYTES);
	return r;
}
