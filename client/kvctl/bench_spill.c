/*
 * bench_spill.c - kvctl bench spill: blocks to the spill store and back, beside fio on the same file system
 *
 * Disks vary by a factor of four within minutes: a round of ours and two of fio's are taken in turns, and the band in
 * which fio is beside itself is told with each row.  Where that band is wider than what is to be shown, no target is
 * set.
 *
 * A cgroup's limit lets through what a tenth of a second is worth at once, and then as much each tenth of a second: the
 * time of one pass is a stair of its bytes, on which a few more cost nothing or a whole step.  So passes differ in
 * length, round by round, over one step, and what is told is the time of all rounds together.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "kvctl.h"
#include "kvpool_spill.h"
#include "kvpool_wire.h"
#include "load.h"
#include "pool.h"
#include "snapshot.h"

#define KIB ((uint64_t)1024)
#define MIB (1024 * KIB)
#define VOLUME_MAX (480 * MIB) /* of the longest pass */
#define VOLUME_MIN (32 * MIB)
#define VOLUME_STEP (96 * MIB) /* a tenth of a second at 1 GB/s: the shortest pass is so much shorter */
#define FILL_MAX (8192 * MIB)
#define BATCH 64u
#define WAIT_NS 60000000000ull
#define TARGET (1 / 0.95)
#define BAND 0.05 /* half of it; wider: nothing can be claimed */
#define RING_BELOW MIB
#define CPU_LIMIT 0.15 /* cores a GB/s beside the checksum */
#define LATENCY_BLOCK MIB
#define LATENCY_SAMPLES 256u
#define LATENCY_SET 32u

static const uint64_t sizes[] = {64 * KIB, 256 * KIB, MIB, 2 * MIB};
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

struct spill_bench {
	struct bench *bench;
	struct load load;
	char file[320]; /* fio's, */
	uint64_t file_off; /* from there on */
	uint64_t most; /* bytes of the longest pass */
	uint64_t volume; /* of the pass that is taken */
	bool fio;
	int pid; /* of the daemon */
	double hash_ns_per_byte;
	uint64_t next_key;
	double cpu_ns, cpu_bytes; /* of the daemon, while it moved so much */
};

/* One round, MB/s: [0] spill, [1] restore. */
struct spill_round {
	uint64_t bytes;
	double ours[2], fio[2], again[2];
	double ring_us[2]; /* of small blocks: by a bare ring; else 0 */
};

static double mb_per_s(uint64_t bytes, uint64_t start_ns)
{
	return (double)bytes / 1e6 / ((double)(now_ns() - start_ns) / 1e9);
}

/* CPU time of the daemon with all its threads, the kernel's workers for it too; 0: not told. */
static double daemon_cpu_ns(int pid)
{
	unsigned long long user = 0, kernel = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &kernel) != 2)
		user = kernel = 0;
	fclose(f);
	return (double)(user + kernel) * 1e9 / (double)sysconf(_SC_CLK_TCK);
}

/* Nanoseconds a byte of the checksum of a record, of memory that is in no cache. */
static double hash_cost(void)
{
	uint64_t bytes = 64 * MIB, best = UINT64_MAX;
	uint8_t *memory = malloc(bytes);
	volatile uint64_t sink;

	if (!memory)
		return 0;
	memset(memory, 0x5a, bytes);
	for (unsigned i = 0; i < 5; i++) {
		uint64_t start = load_cpu_ns(), took;

		sink = spill_hash_data(memory, bytes).w[0];
		took = load_cpu_ns() - start;
		best = took < best ? took : best;
	}
	(void)sink;
	free(memory);
	return (double)best / (double)bytes;
}

/* All of them are asked for at once, as an engine does that knows its prompt; then taken a batch a message. */
static int read_back(struct load *load, uint64_t first, uint64_t n)
{
	struct kvp_key *keys = calloc(n, sizeof(*keys));
	struct kvp_view views[BATCH];
	int r = 0;

	if (!keys)
		return KVCTL_FAILED;
	for (uint64_t i = 0; i < n; i++)
		keys[i] = load_key(first + i);
	kvp_prefetch(load->ns, keys, (uint32_t)n);
	for (uint64_t i = 0; i < n && !r;) {
		uint32_t k = n - i < BATCH ? (uint32_t)(n - i) : BATCH;
		int64_t got = kvp_acquire(load->ns, keys + i, k, 0, now_ns() + WAIT_NS, views);

		for (int64_t j = 0; j < got && !r; j++)
			if (*(const uint64_t *)views[j].data != first + i + (uint64_t)j) {
				complain(
					"bench: block %" PRIu64 " came back with other bytes", first + i + (uint64_t)j);
				r = KVCTL_FAILED;
			}
		kvp_release(views, k);
		if (got <= 0) {
			complain("bench: block %" PRIu64 " did not come back from the store", first + i);
			r = KVCTL_FAILED;
		}
		i += got > 0 ? (uint64_t)got : 0;
	}
	free(keys);
	return r;
}

/* Publish, write out, forget, read back: *@speed of the two that count. */
static int our_pass(struct spill_bench *s, uint64_t block_bytes, double speed[2])
{
	uint64_t n = s->volume / block_bytes, first = s->next_key, start;
	double cpu;
	int r = load_publish(&s->load, first, n, block_bytes, true);

	s->next_key += n;
	cpu = daemon_cpu_ns(s->pid);
	start = now_ns();
	if (!r)
		r = bench_ask_daemon(s->bench->socket, KVP_MSG_DRAIN);
	speed[0] = mb_per_s(n * block_bytes, start);
	s->cpu_ns += daemon_cpu_ns(s->pid) - cpu;
	if (!r)
		r = bench_ask_daemon(s->bench->socket, KVP_MSG_EVICT);
	cpu = daemon_cpu_ns(s->pid);
	start = now_ns();
	if (!r)
		r = read_back(&s->load, first, n);
	speed[1] = mb_per_s(n * block_bytes, start);
	s->cpu_ns += daemon_cpu_ns(s->pid) - cpu;
	s->cpu_bytes += 2. * (double)(n * block_bytes);
	return r;
}

static void fio_pass(const struct spill_bench *s, uint64_t block_bytes, double speed[2])
{
	for (unsigned side = 0; side < 2 && s->fio; side++)
		speed[side] = bench_fio_speed(s->file, s->file_off, side == 0, block_bytes, s->bench->depth, s->volume);
}

/* fio's buffers stay in a cache, for small blocks; those of a pool do not, and have a header. */
static void ring_pass(const struct spill_bench *s, uint64_t block_bytes, double us[2])
{
	for (unsigned side = 0; side < 2 && s->fio && !s->file_off && block_bytes < RING_BELOW; side++)
		us[side] = bench_ring_us(s->file, side == 0, block_bytes, s->bench->depth, s->volume);
}

/* The last one is the longest; whole blocks of each size. */
static uint64_t round_volume(const struct spill_bench *s, unsigned i)
{
	uint64_t less = VOLUME_STEP * (s->bench->pairs - 1 - i) / s->bench->pairs;

	return s->most > 2 * VOLUME_STEP ? s->most - less / (2 * MIB) * (2 * MIB) : s->most;
}

/* Who comes first changes from round to round. */
static int take_round(struct spill_bench *s, unsigned i, uint64_t block_bytes, struct spill_round *round)
{
	int r = 0;

	memset(round, 0, sizeof(*round));
	s->volume = round->bytes = round_volume(s, i);
	if (i % 2)
		fio_pass(s, block_bytes, round->fio);
	r = our_pass(s, block_bytes, round->ours);
	if (i % 2 == 0)
		fio_pass(s, block_bytes, round->fio);
	ring_pass(s, block_bytes, round->ring_us);
	fio_pass(s, block_bytes, round->again);
	return r;
}

/* Microseconds a block of all rounds together, the @n speeds in MB/s; 0: one of them failed. */
static double block_us(const struct spill_round *rounds, const double *speeds, unsigned n, uint64_t block_bytes)
{
	uint64_t blocks = 0;
	double us = 0;

	for (unsigned i = 0; i < n; i++) {
		if (speeds[i] <= 0)
			return 0;
		us += (double)rounds[i].bytes / speeds[i];
		blocks += rounds[i].bytes / block_bytes;
	}
	return us / (double)blocks;
}

static void size_row(struct spill_bench *s, uint64_t block_bytes, unsigned side, const struct spill_round *rounds)
{
	double ours[BENCH_PAIRS_MAX], fio[BENCH_PAIRS_MAX], band[BENCH_PAIRS_MAX];
	const char *name = side == 0 ? "spill" : "restore";
	unsigned n = s->bench->pairs;
	double us, limit, low, high;
	char text[64] = "";

	for (unsigned i = 0; i < n; i++) {
		ours[i] = rounds[i].ours[side];
		fio[i] = rounds[i].fio[side];
		band[i] = rounds[i].again[side] > 0 ? rounds[i].fio[side] / rounds[i].again[side] : 0;
	}
	load_median(band, n); /* sorts them */
	low = band[n / 4];
	high = band[n - 1 - n / 4];
	snprintf(text, sizeof(text), "fio (beside itself %.2f-%.2f)", low, high);
	us = block_us(rounds, fio, n, block_bytes);
	limit = us <= 0 || high - low > 2 * BAND ? BENCH_NO_TARGET : TARGET;
	bench_row(s->bench, "us", block_us(rounds, ours, n, block_bytes), s->fio ? text : NULL, us, limit,
		"%s %" PRIu64 " KiB x %u", name, block_bytes / KIB, s->bench->depth);
}

/* What of that is of the records and not of who moves them. */
static void ring_row(struct spill_bench *s, uint64_t block_bytes, unsigned side, const struct spill_round *rounds)
{
	double ring[BENCH_PAIRS_MAX], fio[BENCH_PAIRS_MAX], us;
	const char *name = side == 0 ? "spill" : "restore";
	unsigned n = s->bench->pairs;

	for (unsigned i = 0; i < n; i++) {
		ring[i] = rounds[i].ring_us[side] > 0 ? (double)block_bytes / rounds[i].ring_us[side] : 0;
		fio[i] = rounds[i].fio[side];
	}
	us = block_us(rounds, ring, n, block_bytes);
	if (us > 0)
		bench_row(s->bench, "us", us, "fio", block_us(rounds, fio, n, block_bytes), BENCH_NO_TARGET,
			"a bare ring: %s %" PRIu64 " KiB x %u", name, block_bytes / KIB, s->bench->depth);
}

static int size_measure(struct spill_bench *s, uint64_t block_bytes)
{
	struct spill_round rounds[BENCH_PAIRS_MAX];
	char name[32];
	int r;

	snprintf(name, sizeof(name), "bench-spill-%" PRIu64, block_bytes / KIB);
	bench_say("spill: blocks of %" PRIu64 " KiB, %u at once, %u rounds ...", block_bytes / KIB, s->bench->depth,
		s->bench->pairs);
	/* no more in stock than a small part of the pool */
	r = load_open(&s->load, s->bench->socket, name, block_bytes, (uint32_t)(16 * MIB / block_bytes));
	if (!r)
		r = take_round(s, s->bench->pairs - 1, block_bytes, &rounds[0]); /* grows files and touches memory */
	for (unsigned i = 0; !r && i < s->bench->pairs; i++)
		r = take_round(s, i, block_bytes, &rounds[i]);
	load_close(&s->load);
	for (unsigned side = 0; !r && side < 2; side++) {
		size_row(s, block_bytes, side, rounds);
		ring_row(s, block_bytes, side, rounds);
	}
	return r;
}

/* All of it lies in the pool, and in the store beside what is written over. */
static uint64_t pass_volume(const struct bench *bench)
{
	uint64_t most = bench->pool_bytes * 3 / 10;

	if (most > bench->spill_bytes / 3)
		most = bench->spill_bytes / 3;
	most -= most % VOLUME_MIN;
	return most > VOLUME_MAX ? VOLUME_MAX : most < VOLUME_MIN ? VOLUME_MIN : most;
}

/* Write all of the store once, as fio's file is before it is measured: a file system takes longer where nothing was. */
static int fill_store(struct spill_bench *s)
{
	uint64_t bytes = s->bench->spill_bytes < FILL_MAX ? s->bench->spill_bytes : FILL_MAX;
	int r = load_open(&s->load, s->bench->socket, "bench-spill-fill", MIB, 16);

	bench_say("spill: filling the store with %" PRIu64 " MiB ...", bytes / MIB);
	for (uint64_t done = 0; !r && done < bytes; done += s->volume) {
		r = load_publish(&s->load, s->next_key, s->volume / MIB, MIB, true);
		s->next_key += s->volume / MIB;
		r = r ? r : bench_ask_daemon(s->bench->socket, KVP_MSG_DRAIN);
	}
	if (!r) /* what stayed in memory would be written once more, over what is measured */
		r = bench_ask_daemon(s->bench->socket, KVP_MSG_EVICT);
	load_close(&s->load);
	return r;
}

/* ---- restores beside writes ---- */

/* Publish for ever: what does not fit is written out.  It makes blocks as fast as a processor copies, and the store
   takes what it can; so it gives way on the processor to those that are measured, the daemon first. */
static void write_for_ever(const struct bench *bench)
{
	struct load load;

	setpriority(PRIO_PROCESS, 0, 19);
	if (load_open(&load, bench->socket, "bench-spill-load", LATENCY_BLOCK, LATENCY_SET / 2))
		_exit(1);
	for (uint64_t k = 1ull << 40;; k += BATCH)
		if (load_publish(&load, k, BATCH, LATENCY_BLOCK, true))
			_exit(1);
}

static int compare_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Block after block. Return: microseconds; 0: too few came back. */
static double restore_p99_us(struct spill_bench *s)
{
	double us[LATENCY_SAMPLES];
	unsigned n = 0;

	for (unsigned tries = 0; n < LATENCY_SAMPLES && tries < 64; tries++) {
		uint64_t first = s->next_key;

		s->next_key += LATENCY_SET;
		if (load_publish(&s->load, first, LATENCY_SET, LATENCY_BLOCK, true) ||
			bench_ask_daemon(s->bench->socket, KVP_MSG_DRAIN) ||
			bench_ask_daemon(s->bench->socket, KVP_MSG_EVICT))
			return 0;
		for (uint64_t i = 0; i < LATENCY_SET && n < LATENCY_SAMPLES; i++) {
			struct kvp_key key = load_key(first + i);
			uint64_t start = now_ns();
			struct kvp_view view;

			if (kvp_acquire(s->load.ns, &key, 1, 0, now_ns() + WAIT_NS, &view) != 1)
				continue; /* written over by the load meanwhile */
			if (view.hit == KVP_HIT_SPILL)
				us[n++] = (double)(now_ns() - start) / 1e3;
			kvp_release(&view, 1);
		}
	}
	if (n < LATENCY_SAMPLES)
		return 0;
	qsort(us, n, sizeof(us[0]), compare_double);
	return us[n * 99 / 100];
}

/* Bytes its store has been given so far; 0: not told. */
static uint64_t daemon_written(const struct bench *bench)
{
	struct snapshot snapshot;
	struct pool pool;
	uint64_t bytes;

	if (pool_find(&pool, bench->socket, NULL) || snapshot_take(&snapshot, &pool, false))
		return 0;
	bytes = atomic_load(&snapshot.head.counters.spill_write_bytes);
	snapshot_free(&snapshot);
	return bytes;
}

static int latency_measure(struct spill_bench *s)
{
	double alone, beside, fio_alone = 0, fio_beside = 0, most;
	int r = load_open(&s->load, s->bench->socket, "bench-spill-p99", LATENCY_BLOCK, LATENCY_SET / 2);
	uint64_t written, start;
	double speed;
	pid_t pid;

	if (r)
		return r;
	bench_say("spill: restores of 1 MiB alone, then beside writes ...");
	alone = restore_p99_us(s);
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		write_for_ever(s->bench);
	written = daemon_written(s->bench);
	start = now_ns();
	beside = restore_p99_us(s);
	speed = mb_per_s(daemon_written(s->bench) - written, start);
	if (s->fio)
		fio_beside = bench_fio_p99_us(s->file, s->file_off, LATENCY_BLOCK, s->volume);
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	load_close(&s->load);
	if (s->fio && bench_ask_daemon(s->bench->socket, KVP_MSG_DRAIN) == 0)
		fio_alone = bench_fio_p99_us(s->file, s->file_off, LATENCY_BLOCK, s->volume);
	if (alone <= 0 || beside <= 0) {
		bench_say("restores beside writes left out: too few blocks came back, the load had written over them");
		return 0;
	}
	most = fio_alone > 0 && fio_beside / fio_alone > 2 ? fio_beside / fio_alone : 2;
	bench_row(s->bench, "us", alone, fio_alone > 0 ? "fio" : NULL, fio_alone, BENCH_NO_TARGET,
		"p99 of restoring 1 MiB, alone");
	bench_row(s->bench, "us", beside, fio_beside > 0 ? "fio beside the same" : NULL, fio_beside, BENCH_NO_TARGET,
		"p99 of restoring 1 MiB, beside writes of ours");
	bench_row(s->bench, "MB/s", speed, NULL, 0, BENCH_NO_TARGET, "written meanwhile");
	bench_row(s->bench, "times", beside / alone, most > 2 ? "fio's own" : "twice", most, 1,
		"p99 beside writes / alone");
	return 0;
}

/* ---- all of it ---- */

static void cpu_row(struct spill_bench *s)
{
	double ns_per_byte = s->cpu_bytes > 0 ? s->cpu_ns / s->cpu_bytes : 0;

	if (ns_per_byte <= 0)
		return;
	/* the limit is of all sizes together */
	bench_row(s->bench, "cores", ns_per_byte - s->hash_ns_per_byte, "limit", CPU_LIMIT,
		s->bench->size ? BENCH_NO_TARGET : 1, "CPU a GB/s x %u, beside the checksum's %.2f", s->bench->depth,
		s->hash_ns_per_byte);
}

int bench_spill(struct bench *bench)
{
	struct spill_bench s = {.bench = bench, .fio = bench_fio_there(), .next_key = 1};
	struct pool pool;
	bool known = !bench->size;
	struct stat st;
	int r;

	for (unsigned i = 0; i < N_SIZES; i++)
		known |= sizes[i] == bench->size;
	if (!known) {
		complain("bench: --size is one of 64K, 256K, 1M and 2M");
		return KVCTL_USAGE;
	}
	if (!bench->spill_dir[0]) {
		complain("bench: this daemon has no spill store: start it with --spill DIR:SIZE, or use --self");
		return KVCTL_FAILED;
	}
	if (bench->device) { /* behind the store */
		snprintf(s.file, sizeof(s.file), "%s", bench->spill_dir);
		s.file_off = bench->spill_bytes;
	} else {
		snprintf(s.file, sizeof(s.file), "%s/kvctl-bench-%d", bench->spill_dir, (int)getpid());
	}
	if (!bench->device && stat(bench->spill_dir, &st) == 0 && S_ISBLK(st.st_mode) && s.fio) {
		bench_say("no yardstick is taken: fio would write over the store on %s", bench->spill_dir);
		s.fio = false;
	} else if (!s.fio)
		bench_say("fio is not installed: no yardstick is taken (apt-get install fio)");
	if (!bench->depth)
		bench->depth = 32; /* as the daemon does by itself */
	r = pool_find(&pool, bench->socket, NULL);
	if (r)
		return r;
	s.pid = pool.header.daemon_pid;
	s.volume = s.most = pass_volume(bench);
	s.hash_ns_per_byte = hash_cost();
	r = fill_store(&s);
	for (unsigned i = 0; i < N_SIZES && !r; i++) {
		if (bench->size && sizes[i] != bench->size)
			continue;
		r = size_measure(&s, sizes[i]);
		if (!r)
			r = bench_ask_daemon(bench->socket, KVP_MSG_EVICT);
	}
	if (!r)
		cpu_row(&s);
	if (!r && bench->depth == 32 && !bench->size)
		r = latency_measure(&s);
	if (!bench->device)
		unlink(s.file);
	return r;
}
