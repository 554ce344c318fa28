/*
 * bench_pin.c - kvctl bench pin: lookup + pin + unpin of a block, beside a bare probe of the same index and LMDB's get
 *
 * The bare probe reads the namespace's own index and descriptors through a mapping of its own, compares the key, pins
 * nothing.  All go through the same keys in the same random order, slice by slice in turns; LMDB's get in such an order
 * too.  Probes are told twice: one after the other, as by a reader who uses what it found before it looks for more
 * (pins are like that anyway: each is two locked operations, which nothing overtakes), and overlapping.  Nobody waits
 * for anything, so CPU time is told, and of all slices of a kind the one below which a tenth lies: where the CPU's
 * other thread is somebody's, stores and loads take twice as long at times, also without kvpool.  Such a time may
 * outlast a round of slices, so a row that is over its target is measured for more rounds, both sides alike.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <inttypes.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "bench.h"
#include "kvctl.h"
#include "load.h"
#include "pool.h"

#define BLOCK_BYTES 64
#define STRIDE 4096 /* what such a block takes */
#define SLICES 60 /* of a round */
#define ROUNDS 4 /* at most */
#define TARGET 2.0 /* a pin, in bare probes */
#define SLICE_OPS (50000 / RUN * RUN)
#define SLICE_REST_NS 50000000 /* a CPU shared with others has slower times, of up to a second: slices lie in several */
#define TRAPPED_OPS 10000u
#define RUN 32 /* keys of one call, as of a prompt's blocks */

enum {
	PIN_NS, /* one key a call */
	RUN_NS, /* RUN keys a call */
	BARE_NS, /* each probe waits for the one before */
	OVERLAP_NS, /* the CPU may run probes into each other */
	FIRST_NS,
	SYSCALLS,
	N_RESULTS,
};

struct pin_job {
	const struct bench *bench;
	uint64_t n_blocks;
	char ns_name[32];
};

/* ---- no system call: in this thread each one is trapped and counted ---- */

static _Atomic unsigned n_trapped;

static void on_trap(int signal, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;

	(void)signal;
	(void)info;
	atomic_fetch_add_explicit(&n_trapped, 1, memory_order_relaxed);
#ifdef __x86_64__
	uc->uc_mcontext.gregs[REG_RAX] = -ENOSYS;
#else
	(void)uc;
#endif
}

static bool trap_system_calls(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
	};
	struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};
	struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};

	return sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* ---- the loops ---- */

struct walk {
	const struct kvp_key *keys;
	uint64_t n, at;
};

/* The next @n keys, which lie side by side; the last few before the end are passed over. */
static const struct kvp_key *walk_next(struct walk *walk, uint64_t n)
{
	const struct kvp_key *keys;

	if (walk->at + n > walk->n)
		walk->at = 0;
	keys = &walk->keys[walk->at];
	walk->at += n;
	return keys;
}

/* Return: blocks that were not found. */
static uint64_t pin_ops(struct load *load, struct walk *walk, uint64_t ops, uint32_t run, uint64_t deadline_ns)
{
	uint64_t missed = 0;

	for (uint64_t n = 0; n < ops; n += run) {
		struct kvp_view views[RUN];

		missed += run -
			  (uint64_t)kvp_acquire(load->ns, walk_next(walk, run) + missed, run, 0, deadline_ns, views);
		kvp_release(views, run);
	}
	return missed;
}

/* Return: ns a block; < 0: a miss. */
static double pin_slice(struct load *load, struct walk *walk, uint64_t ops, uint32_t run, uint64_t deadline_ns)
{
	uint64_t start = load_cpu_ns(), missed = pin_ops(load, walk, ops, run, deadline_ns);

	return missed ? -1 : (double)(load_cpu_ns() - start) / (double)ops;
}

/* @chained: where the next key lies follows from what was found, as it does in pin_ops(). */
static double bare_slice(const struct load_index *index, struct walk *walk, uint64_t ops, bool chained)
{
	uint64_t start = load_cpu_ns(), missed = 0;

	for (uint64_t i = 0; i < ops; i++)
		missed += load_index_probe(index, walk_next(walk, 1) + (chained ? missed : 0)) == UINT64_MAX;
	return missed ? -1 : (double)(load_cpu_ns() - start) / (double)ops;
}

/* What the slices took, ns a block, of every round so far. */
struct slices {
	unsigned n;
	double pins[ROUNDS * SLICES], runs[ROUNDS * SLICES], bares[ROUNDS * SLICES], overlaps[ROUNDS * SLICES];
};

/* Return: false: a miss. */
static bool slice_measure(
	struct load *load, const struct load_index *index, struct walk *walk, struct walk *other, struct slices *slices)
{
	unsigned i = slices->n++;

	bare_slice(index, other, SLICE_OPS, true); /* awake again: the first one after a rest is slower */
	slices->bares[i] = bare_slice(index, other, SLICE_OPS, true);
	slices->overlaps[i] = bare_slice(index, other, SLICE_OPS, false);
	slices->pins[i] = pin_slice(load, walk, SLICE_OPS, 1, 0);
	slices->runs[i] = pin_slice(load, walk, SLICE_OPS, RUN, 0);
	return slices->pins[i] >= 0 && slices->runs[i] >= 0 && slices->bares[i] >= 0 && slices->overlaps[i] >= 0;
}

static int pin_measure(struct load *load, const struct load_index *index, struct walk *walk, double *results)
{
	struct slices slices = {0};
	struct walk other = *walk;

	/* first passes: slabs are mapped, pages touched */
	results[FIRST_NS] = pin_slice(load, walk, walk->n, 1, kvp_deadline_ms(60000));
	if (results[FIRST_NS] < 0 || bare_slice(index, &other, walk->n, true) < 0)
		return -1;
	do {
		for (unsigned i = 0; i < SLICES; i++) {
			if (!slice_measure(load, index, walk, &other, &slices))
				return -1;
			nanosleep(&(struct timespec){.tv_nsec = SLICE_REST_NS}, NULL);
		}
		results[PIN_NS] = load_lowest_tenth(slices.pins, slices.n);
		results[RUN_NS] = load_lowest_tenth(slices.runs, slices.n);
		results[BARE_NS] = load_lowest_tenth(slices.bares, slices.n);
		results[OVERLAP_NS] = load_lowest_tenth(slices.overlaps, slices.n);
	} while (slices.n < ROUNDS * SLICES &&
		 (results[PIN_NS] > TARGET * results[BARE_NS] || results[RUN_NS] > TARGET * results[BARE_NS]));
	return 0;
}

static int pin_body(void *owner, unsigned process, double *results)
{
	const struct pin_job *job = owner;
	struct load_index index;
	struct load load;
	struct walk walk = {.n = job->n_blocks};
	int r = load_open(&load, job->bench->socket, job->ns_name, BLOCK_BYTES, KVP_STOCK_NONE);

	if (r || load_index_open(&index, job->bench->socket, load.ns))
		return r ? r : KVCTL_FAILED;
	walk.keys = load_keys_shuffled(job->n_blocks, process + 1);
	if (!walk.keys || pin_measure(&load, &index, &walk, results) < 0) {
		complain("bench: a published block was not found: was it evicted? use a pool of its own, or --self");
		return KVCTL_FAILED;
	}
	results[SYSCALLS] = -1;
	if (trap_system_calls()) {
		/* nothing else may be called from here on but the end */
		pin_ops(&load, &walk, TRAPPED_OPS, 1, 0);
		results[SYSCALLS] = atomic_load(&n_trapped);
	}
	_exit(0); /* to close the client needs system calls: its session ends with this process */
}

static double mean_of(const double *results, unsigned n_processes, unsigned which)
{
	double sum = 0;

	for (unsigned i = 0; i < n_processes; i++)
		sum += results[i * N_RESULTS + which];
	return sum / n_processes;
}

static int pin_fill(void *owner, unsigned process, double *results)
{
	const struct pin_job *job = owner;
	struct load load;
	int r = load_open(&load, job->bench->socket, job->ns_name, BLOCK_BYTES, 256);

	(void)process;
	(void)results;
	if (!r)
		r = load_publish(&load, 0, job->n_blocks, BLOCK_BYTES, false);
	load_close(&load);
	return r;
}

static int pin_rows(struct bench *bench, struct pin_job *job, unsigned n_processes)
{
	double *results = load_results(BENCH_PROCESSES_MAX * N_RESULTS), bare, lmdb;
	const char *many = n_processes > 1 ? "es" : "";
	int r;

	if (!results)
		return KVCTL_FAILED;
	bench_say("pin: %" PRIu64 " blocks, %u process%s ...", job->n_blocks, n_processes, many);
	r = load_processes(n_processes, pin_body, job, results, N_RESULTS);
	if (r)
		return r;
	bare = mean_of(results, n_processes, BARE_NS);
	lmdb = bench_peer("lookup", "lmdb", job->n_blocks, BLOCK_BYTES, n_processes);
	for (unsigned i = 0; i < 2; i++) {
		double pin = mean_of(results, n_processes, i ? RUN_NS : PIN_NS);
		char name[80];

		snprintf(name, sizeof(name), "pin+unpin, %" PRIu64 " blocks, %u process%s, %u a call", job->n_blocks,
			n_processes, many, i ? RUN : 1);
		bench_row(bench, "ns", pin, "bare probe", bare, TARGET, "%s", name);
		if (i)
			bench_row(bench, "ns", pin, "bare probes, overlapping",
				mean_of(results, n_processes, OVERLAP_NS), BENCH_NO_TARGET, "%s", name);
		if (lmdb > 0)
			bench_row(bench, "ns", pin, "LMDB get", lmdb, 0.5, "%s", name);
	}
	if (n_processes == 1) {
		bench_row(bench, "ns", mean_of(results, 1, FIRST_NS), NULL, 0, BENCH_NO_TARGET,
			"the first pass (mapping, first touch), %" PRIu64 " blocks", job->n_blocks);
		if (results[SYSCALLS] >= 0)
			bench_row(bench, "calls", results[SYSCALLS], NULL, 0, BENCH_ZERO,
				"system calls in %u lookup+pin+unpin, %" PRIu64 " blocks", TRAPPED_OPS, job->n_blocks);
		else
			bench_say("system calls are not counted: seccomp is refused here");
	}
	return 0;
}

int bench_pin(struct bench *bench)
{
	uint64_t most = bench->pool_bytes / STRIDE / 10 * 9;
	uint64_t counts[] = {1000, most < 1000000 ? most : 1000000};

	if (counts[1] < 1000000)
		bench_say("the pool has room for %" PRIu64 " blocks only, not for a million", counts[1]);
	for (unsigned i = 0; i < 2; i++) {
		struct pin_job job = {.bench = bench, .n_blocks = counts[i]};
		int r;

		snprintf(job.ns_name, sizeof(job.ns_name), "bench-pin-%" PRIu64, counts[i]);
		bench_say("publishing %" PRIu64 " blocks ...", counts[i]);
		r = load_processes(1, pin_fill, &job, NULL, 0);
		for (unsigned n = 1; !r && n <= 2; n++)
			r = pin_rows(bench, &job, n);
		if (r)
			return r;
	}
	return 0;
}
