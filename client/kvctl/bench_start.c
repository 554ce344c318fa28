/*
 * bench_start.c - kvctl bench start: how fast a daemon gets its memory, and how fast it is back with all its blocks
 *
 * Daemons of its own, one after the other in one directory.  What is compared is taken in turns, and the least of the
 * rounds is told: what is measured has no luck, only bad luck.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "kvctl.h"
#include "kvpool_wire.h"
#include "load.h"
#include "pool.h"
#include "snapshot.h"

#define KIB ((uint64_t)1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define POPULATE_BYTES (2 * GIB)
#define POPULATE_ROUNDS 3
#define SMALL_POOL (64 * MIB) /* a start that populates next to nothing */
#define POPULATE_TARGET 1.25
#define BLOCK (4 * KIB)
#define RECORD (2 * BLOCK) /* with its header page */
#define BATCH 8192u
#define WARM_SECONDS 1.0
#define COLD_SECONDS 5.0
#define OWN_BYTES 300. /* of the daemon, a block */
#define MILLION 1e6
#define HIT_NS 60000000000ull
#define SETTLE_NS 3000000000ull
#define THREADS_MAX 256u

static double seconds_since(uint64_t start_ns)
{
	return (double)(now_ns() - start_ns) / 1e9;
}

/* ---- population ---- */

struct populate_part {
	pthread_t thread;
	char *at;
	uint64_t bytes;
	int error;
};

static void *populate_run(void *arg)
{
	struct populate_part *part = arg;

	part->error = madvise(part->at, part->bytes, MADV_POPULATE_WRITE) < 0 ? errno : 0;
	return NULL;
}

static unsigned cpus_allowed(void)
{
	cpu_set_t cpus;
	unsigned n = sched_getaffinity(0, sizeof(cpus), &cpus) < 0 ? 1 : (unsigned)CPU_COUNT(&cpus);

	return n > THREADS_MAX ? THREADS_MAX : n;
}

/* The same memory without a daemon, by a thread for each CPU. Return: seconds; 0: not possible here. */
static double populate_plain(uint64_t bytes)
{
	struct populate_part parts[THREADS_MAX];
	unsigned n = cpus_allowed(), started = 0;
	uint64_t each = bytes / n / MIB * MIB, start;
	int fd = memfd_create("kvctl-bench", MFD_CLOEXEC);
	char *map = MAP_FAILED;
	double took = 0;
	bool ok = true;

	if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
		map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	start = now_ns();
	for (; map != MAP_FAILED && started < n && ok; started += ok) {
		struct populate_part *part = &parts[started];

		part->at = map + started * each;
		part->bytes = started == n - 1 ? bytes - started * each : each;
		ok = pthread_create(&part->thread, NULL, populate_run, part) == 0;
	}
	for (unsigned i = 0; i < started; i++) {
		pthread_join(parts[i].thread, NULL);
		ok = ok && !parts[i].error;
	}
	took = seconds_since(start);
	if (map != MAP_FAILED)
		munmap(map, bytes);
	if (fd >= 0)
		close(fd);
	return ok && started == n ? took : 0;
}

/* Of a daemon that has nothing yet, until it serves. Return: seconds; < 0: it did not start (said). */
static double start_takes(struct bench *bench, uint64_t pool_bytes)
{
	uint64_t start = now_ns();
	double took;

	if (bench_daemon_run(&bench->own, pool_bytes, 0, 0))
		return -1;
	took = seconds_since(start);
	bench_daemon_halt(&bench->own);
	bench_daemon_forget(&bench->own);
	return took;
}

static int populate_measure(struct bench *bench)
{
	uint64_t bytes = bench_pool_fit(POPULATE_BYTES);
	double ours = 1e9, plain = 1e9, least = 1e9, gib = (double)(bytes - SMALL_POOL) / (double)GIB;

	if (bytes < 4 * SMALL_POOL) {
		bench_say("populating left out: too little memory is free");
		return 0;
	}
	bench_say("start: populating %" PRIu64 " MiB, %u rounds ...", bytes / MIB, POPULATE_ROUNDS);
	for (unsigned i = 0; i < POPULATE_ROUNDS; i++) {
		double large = start_takes(bench, bytes), small = start_takes(bench, SMALL_POOL), yard;

		if (large < 0 || small < 0)
			return KVCTL_FAILED;
		yard = populate_plain(bytes - SMALL_POOL);
		ours = large < ours ? large : ours;
		least = small < least ? small : least;
		plain = yard < plain ? yard : plain;
	}
	bench_row(bench, "ms", least * 1e3, NULL, 0, BENCH_NO_TARGET, "start with a new pool of %" PRIu64 " MiB",
		SMALL_POOL / MIB);
	bench_row(bench, "ms", (ours - least) / gib * 1e3, plain > 0 ? "MADV_POPULATE_WRITE" : NULL, plain / gib * 1e3,
		plain > 0 ? POPULATE_TARGET : BENCH_NO_TARGET, "populate a GiB of the pool, %u CPUs", cpus_allowed());
	return 0;
}

/* ---- recovery ---- */

/* Records in the store, as the stats page says, which may be a second old. */
static uint64_t records_there(const struct bench *bench, uint64_t wanted)
{
	uint64_t n = 0, end = now_ns() + SETTLE_NS;
	struct snapshot snapshot;
	struct pool pool;

	while (n < wanted && now_ns() < end) {
		if (pool_find(&pool, bench->own.socket, NULL) || snapshot_take(&snapshot, &pool, false))
			return 0;
		if (snapshot.head.n_stores)
			n = snapshot.head.stores[0].live_records;
		snapshot_free(&snapshot);
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	}
	return n;
}

/* Blocks 0..n-1 published and written out. Return: 0; exit code (said). */
static int records_make(struct bench *bench, uint64_t n)
{
	struct load load;
	int r = load_open(&load, bench->own.socket, "bench-start", BLOCK, BATCH);

	for (uint64_t i = 0; i < n && !r; i += BATCH)
		r = load_publish(&load, i, n - i < BATCH ? n - i : BATCH, BLOCK, true);
	load_close(&load);
	return r ? r : bench_ask_daemon(bench->own.socket, KVP_MSG_DRAIN);
}

/* What the daemon takes beside the pool. */
static void memory_rows(struct bench *bench, uint64_t n, bool judged, const char *when)
{
	unsigned long long kib = 0;
	char path[64], line[128];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)bench->own.pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "RssAnon: %llu", &kib) == 1)
			break;
	if (file)
		fclose(file);
	if (kib)
		bench_row(bench, "bytes", (double)kib * 1024 / (double)n, judged ? "limit" : NULL, OWN_BYTES, judged,
			"the daemon's own memory, a block, %s", when);
}

/* Start it, and get block @k. Return: seconds for both; < 0: it was not there (said). */
static double first_hit(struct bench *bench, uint64_t pool_bytes, uint64_t spill_bytes, uint64_t k)
{
	struct kvp_key key = load_key(k);
	uint64_t start = now_ns();
	struct kvp_view view;
	struct load load;
	double took = -1;

	if (bench_daemon_run(&bench->own, pool_bytes, spill_bytes, 0) ||
		load_open(&load, bench->own.socket, "bench-start", BLOCK, 1))
		return -1;
	if (kvp_acquire(load.ns, &key, 1, 0, now_ns() + HIT_NS, &view) == 1) {
		took = *(const uint64_t *)view.data == k ? seconds_since(start) : -1;
		kvp_release(&view, 1);
	}
	load_close(&load);
	if (took < 0)
		complain("bench: block %" PRIu64 " is not there after a start", k);
	return took;
}

/* As many as the disk has room for. */
static uint64_t records_fit(const struct bench *bench, uint64_t wanted)
{
	struct statvfs fs;
	uint64_t most;

	if (statvfs(bench->own.dir, &fs) < 0)
		return wanted;
	most = (uint64_t)fs.f_bavail * fs.f_frsize / 10 * 9 / RECORD;
	if (most >= wanted)
		return wanted;
	bench_say("disk is short: %" PRIu64 " records instead of %" PRIu64, most, wanted);
	return most;
}

static int recovery_measure(struct bench *bench)
{
	uint64_t n = records_fit(bench, bench->records), found;
	uint64_t pool_bytes = bench_pool_fit((n * BLOCK / 10 * 11 + 256 * MIB) & ~(64 * MIB - 1));
	uint64_t spill_bytes = n * RECORD / 10 * 11 + 256 * MIB;
	double warm, cold;
	int r;

	bench_say("start: %" PRIu64 " blocks of 4 KiB are published and written to the store ...", n);
	r = bench_daemon_run(&bench->own, pool_bytes, spill_bytes, 0);
	r = r ? r : records_make(bench, n);
	if (r)
		return r;
	found = records_there(bench, n);
	bench_daemon_halt(&bench->own);
	warm = first_hit(bench, pool_bytes, spill_bytes, n - 1);
	if (warm < 0)
		return KVCTL_FAILED;
	memory_rows(bench, n, n >= MILLION, "in memory and in the store");
	bench_daemon_halt(&bench->own);
	bench_daemon_forget(&bench->own);
	/* a small pool: what memory takes is told above */
	cold = first_hit(bench, SMALL_POOL, spill_bytes, n / 2);
	if (cold < 0)
		return KVCTL_FAILED;
	if (found)
		memory_rows(bench, found, found >= MILLION, "in the store alone");
	bench_row(bench, "s", warm, n >= MILLION ? "limit" : NULL, WARM_SECONDS, n >= MILLION,
		"restart to the first hit, %" PRIu64 " blocks in memory", n);
	bench_row(bench, "s", cold, found >= MILLION ? "limit" : NULL, COLD_SECONDS, found >= MILLION,
		"start to the first hit, %" PRIu64 " records in the store", found);
	bench_row(bench, "us", cold * 1e6 / (double)(found ? found : 1), NULL, 0, BENCH_NO_TARGET,
		"that start, for each record");
	return 0;
}

int bench_start(struct bench *bench)
{
	int r = populate_measure(bench);

	return r ? r : recovery_measure(bench);
}
