/*
 * bench_sparse.c - kvctl bench sparse: decode over a context larger than the pool, an eighth of its blocks at a time
 *
 * One layer of 32 query and 8 KV heads of 128, f16 in TILED, 512 blocks of 64 tokens.  Each KV head picks 8 blocks by
 * their summaries, all heads attend to what any picked; unpicked blocks may lie in the spill store.  Made-up keys: four
 * blocks share a topic, as passages of a text do, and a query is about one of them for some steps.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bench.h"
#include "kvattn.h"
#include "kvctl.h"
#include "load.h"
#include "pool.h"

#define Q_HEADS 32u
#define KV_HEADS 8u
#define DIM 128u
#define BLOCK_TOKENS 64u
#define N_BLOCKS 512u /* 32768 tokens, 128 MiB */
#define PICKS 8u /* a KV head; of all heads together at most an eighth of the blocks */
#define TOPIC_BLOCKS 4u
#define STEPS 48u
#define STEPS_A_TOPIC 4u
#define WAIT_MS 60000u

struct sparse_job {
	struct kvattn_geom geom;
	struct kvattn_opts opts;
	struct kvp_ns *summaries;
	struct kvp_seq *seq;
	char *flat; /* the same blocks once more, for the truth */
	uint64_t block_bytes;
	const void *flat_blocks[N_BLOCKS];
	const float *summary[N_BLOCKS];
	uint64_t picks[KV_HEADS * PICKS], blocks[N_BLOCKS];
	float q[Q_HEADS * DIM], full[Q_HEADS * DIM], sparse[Q_HEADS * DIM], latest[Q_HEADS * DIM];
	float full_lse[Q_HEADS], sparse_lse[Q_HEADS], latest_lse[Q_HEADS];
};

struct sparse_sums {
	double select_ns, bring_ns, attend_ns, full_ns;
	double error, latest_error; /* squared, relative */
	double weight, latest_weight; /* of the softmax in the blocks attended to */
	uint64_t attended, restored;
};

/* Uniform in -1 .. 1, the same for the same arguments. */
static float noise(uint64_t a, uint64_t b)
{
	const struct kvp_key key = load_key(a << 32 ^ b);

	return (float)(key.w[0] >> 40) / (float)(1 << 23) - 1.0f;
}

static float topic(uint64_t which, uint32_t head, uint32_t d)
{
	return noise(1000000 + which, head * DIM + d);
}

static void block_fill(struct sparse_job *job, void *block, uint64_t b)
{
	static float k[BLOCK_TOKENS * KV_HEADS * DIM], v[BLOCK_TOKENS * KV_HEADS * DIM];

	for (uint32_t t = 0, i = 0; t < BLOCK_TOKENS; t++)
		for (uint32_t h = 0; h < KV_HEADS; h++)
			for (uint32_t d = 0; d < DIM; d++, i++) {
				k[i] = topic(b / TOPIC_BLOCKS, h, d) + noise(2 * b, i);
				v[i] = noise(2 * b + 1, i);
			}
	kvattn_put(&job->geom, block, 0, BLOCK_TOKENS, k, 0, v, 0);
	memcpy(job->flat + b * job->block_bytes, block, job->block_bytes);
	job->flat_blocks[b] = job->flat + b * job->block_bytes;
}

static void query_fill(struct sparse_job *job, uint64_t step)
{
	const uint64_t which = load_key(step / STEPS_A_TOPIC).w[0] % (N_BLOCKS / TOPIC_BLOCKS);

	for (uint32_t h = 0, i = 0; h < Q_HEADS; h++)
		for (uint32_t d = 0; d < DIM; d++, i++)
			job->q[i] = 2 * topic(which, h / (Q_HEADS / KV_HEADS), d) + noise(3000000 + step, i);
}

/* What was made while the pool had no room is brought into it by later commits. */
static int all_published(const struct sparse_job *job, const struct load *load)
{
	const uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	struct kvp_seq_stats stats = {.size = sizeof(stats)};

	while (kvp_seq_commit(job->seq, N_BLOCKS * BLOCK_TOKENS) >= 0 && kvp_seq_stats(job->seq, &stats) == 0 &&
		now_ns() < end) {
		if (!stats.private_blocks && stats.published >= N_BLOCKS)
			return 0;
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	}
	complain("bench: %" PRIu64 " of %u blocks were published, %" PRIu64 " found no room: %s", stats.published,
		N_BLOCKS, stats.private_blocks, kvp_error(load->client));
	return KVCTL_FAILED;
}

static int context_make(struct sparse_job *job, const struct load *load)
{
	uint32_t tokens[BLOCK_TOKENS];

	for (uint64_t b = 0; b < N_BLOCKS; b++) {
		uint64_t pos = b * BLOCK_TOKENS;
		void *block;

		for (uint32_t t = 0; t < BLOCK_TOKENS; t++)
			tokens[t] = (uint32_t)(pos + t);
		block = kvp_seq_append(job->seq, tokens, BLOCK_TOKENS) < 0 ? NULL : kvp_seq_block(job->seq, pos, NULL);
		if (!block) {
			complain("bench: block %" PRIu64 ": %s", b, kvp_error(load->client));
			return KVCTL_FAILED;
		}
		block_fill(job, block, b);
		kvp_seq_commit(job->seq, pos + BLOCK_TOKENS);
	}
	return all_published(job, load);
}

static int attend(const struct sparse_job *job, const struct kvattn_table *table, float *out, float *lse)
{
	const struct kvattn_seq seq = {.table = *table,
		.q = job->q,
		.out = out,
		.lse = lse,
		.n_q = 1,
		.q_end = N_BLOCKS * BLOCK_TOKENS,
		.causal = 1};

	return kvattn_attend(&job->geom, &seq, 1, &job->opts);
}

static double error_squared(const float *have, const float *want)
{
	double error = 0, size = 0;

	for (uint32_t i = 0; i < Q_HEADS * DIM; i++) {
		error += pow((double)have[i] - (double)want[i], 2);
		size += pow((double)want[i], 2);
	}
	return size > 0 ? error / size : 0;
}

/* Mean over the heads. */
static double weight_of(const float *lse, const float *full)
{
	double sum = 0;

	for (uint32_t h = 0; h < Q_HEADS; h++)
		sum += exp((double)lse[h] - (double)full[h]);
	return sum / Q_HEADS;
}

/* Which blocks any head picks. Return: how many; < 0 */
static int64_t pick(struct sparse_job *job)
{
	const struct kvattn_select ask = {.size = sizeof(ask),
		.n_q_heads = Q_HEADS,
		.q = job->q,
		.summaries = job->summary,
		.n_blocks = N_BLOCKS,
		.n_select = PICKS,
		.keep_first = 1,
		.keep_last = 1};
	int64_t n = kvp_seq_summaries(job->seq, 0, job->summary);
	bool any[N_BLOCKS] = {false};

	if (n == N_BLOCKS)
		n = kvattn_select(&job->geom, &ask, job->picks);
	if (n < 0)
		return n;
	for (uint64_t i = 0; i < KV_HEADS * (uint64_t)n; i++)
		any[job->picks[i]] = true;
	n = 0;
	for (uint64_t b = 0; b < N_BLOCKS; b++)
		if (any[b])
			job->blocks[n++] = b;
	return n;
}

/* One decode step three ways: picked blocks, as many of the latest, all of them. */
static int step(struct sparse_job *job, uint64_t at, struct sparse_sums *sums)
{
	struct kvattn_table table, latest,
		full = {.blocks = job->flat_blocks, .n_blocks = N_BLOCKS, .n_tokens = N_BLOCKS * BLOCK_TOKENS};
	uint64_t pos[N_BLOCKS], clock[4];
	int64_t n, r;

	query_fill(job, at);
	clock[0] = now_ns();
	n = pick(job);
	if (n < 0)
		return (int)n;
	clock[1] = now_ns();
	r = kvp_seq_select(job->seq, job->blocks, (uint64_t)n, kvp_deadline_ms(WAIT_MS), &table);
	clock[2] = now_ns();
	if (r >= 0)
		sums->restored += (uint64_t)r;
	if (r >= 0)
		r = attend(job, &table, job->sparse, job->sparse_lse);
	clock[3] = now_ns();
	sums->select_ns += (double)(clock[1] - clock[0]);
	sums->bring_ns += (double)(clock[2] - clock[1]);
	sums->attend_ns += (double)(clock[3] - clock[2]);
	sums->attended += (uint64_t)n;
	if (r >= 0)
		r = attend(job, &full, job->full, job->full_lse);
	sums->full_ns += (double)(now_ns() - clock[3]);
	for (uint64_t b = 0; b < (uint64_t)n; b++)
		pos[b] = (N_BLOCKS - (uint64_t)n + b) * BLOCK_TOKENS;
	latest = (struct kvattn_table){.blocks = job->flat_blocks + N_BLOCKS - n,
		.block_pos = pos,
		.n_blocks = (uint64_t)n,
		.n_tokens = (uint64_t)n * BLOCK_TOKENS};
	if (r >= 0)
		r = attend(job, &latest, job->latest, job->latest_lse);
	sums->error += error_squared(job->sparse, job->full);
	sums->latest_error += error_squared(job->latest, job->full);
	sums->weight += weight_of(job->sparse_lse, job->full_lse);
	sums->latest_weight += weight_of(job->latest_lse, job->full_lse);
	return r < 0 ? (int)r : 0;
}

static void sparse_rows(struct bench *bench, const struct sparse_sums *sums)
{
	const double ms = 1e6 * STEPS;

	bench_row(bench, "ms", (sums->select_ns + sums->bring_ns + sums->attend_ns) / ms,
		"all blocks in private memory", sums->full_ns / ms, BENCH_NO_TARGET,
		"decode step over %u tokens, blocks by their summaries (%s)", N_BLOCKS * BLOCK_TOKENS,
		kvattn_isa_name());
	bench_row(bench, "ms", sums->select_ns / ms, "all blocks in private memory", sums->full_ns / ms,
		BENCH_NO_TARGET, "  of it scoring summaries");
	bench_row(bench, "ms", sums->bring_ns / ms, "all blocks in private memory", sums->full_ns / ms, BENCH_NO_TARGET,
		"  of it waiting for blocks of the store");
	bench_row(bench, "ms", sums->attend_ns / ms, "all blocks in private memory", sums->full_ns / ms,
		BENCH_NO_TARGET, "  of it attention");
	bench_row(bench, "blocks", (double)sums->attended / STEPS, "an eighth of all", N_BLOCKS / 8.0, 1,
		"  blocks attended to");
	bench_row(bench, "blocks", (double)sums->restored / STEPS, "attended to", (double)sums->attended / STEPS, 1,
		"  blocks restored");
	bench_row(bench, "", sums->weight / STEPS, "as many of the latest", sums->latest_weight / STEPS,
		BENCH_NO_TARGET, "  share of the softmax in them");
	bench_row(bench, "", sqrt(sums->error / STEPS), "as many of the latest", sqrt(sums->latest_error / STEPS), 1,
		"  relative L2 error against all blocks");
}

static int sparse_run(struct bench *bench, struct sparse_job *job, const struct load *load)
{
	struct sparse_sums sums = {0};
	int r = context_make(job, load);

	for (uint64_t at = 0; !r && at < STEPS; at++)
		if (step(job, at, &sums) < 0) {
			complain("bench: step %" PRIu64 ": %s", at, kvp_error(load->client));
			r = KVCTL_FAILED;
		}
	if (!r)
		sparse_rows(bench, &sums);
	return r;
}

static int sparse_open(struct sparse_job *job, const struct kvp_desc *desc, const struct load *load)
{
	static const struct kvp_kernels kernels = KVP_KERNELS_OF_KVATTN;
	struct kvp_desc summaries;
	struct kvp_ns_opts ns = {
		.size = sizeof(ns), .name = "bench-sparse", .owner_uid = KVP_UID_SELF, .desc = &summaries};
	struct kvp_seq_opts seq = {.size = sizeof(seq), .kernels = &kernels, .resident_blocks = N_BLOCKS / 8};

	if (kvp_desc_summaries(desc, &summaries) < 0 || kvp_ns_open(load->client, &ns, &job->summaries) < 0 ||
		kvp_attn_geom(load->ns, 0, &job->geom) < 0) {
		complain("bench: summaries: %s", kvp_error(load->client));
		return KVCTL_FAILED;
	}
	seq.summaries = job->summaries;
	if (kvp_seq_open(load->ns, &seq, &job->seq) == 0)
		return 0;
	complain("bench: %s", kvp_error(load->client));
	return KVCTL_FAILED;
}

int bench_sparse(struct bench *bench)
{
	struct sparse_job *job = calloc(1, sizeof(*job));
	struct kvp_desc desc;
	struct load load;
	int r;

	if (!job)
		return KVCTL_FAILED;
	kvattn_opts_init(&job->opts, Q_HEADS);
	kvp_desc_init(&desc, KVP_LAYOUT_TILED, BLOCK_TOKENS, 1, KV_HEADS, DIM, KVP_TYPE_F16);
	kvp_desc_check(&desc, NULL, &job->block_bytes);
	job->flat = mmap(NULL, N_BLOCKS * job->block_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (job->flat == MAP_FAILED) {
		free(job);
		return KVCTL_FAILED;
	}
	if (!bench->spill_dir[0] || bench->pool_bytes > N_BLOCKS * job->block_bytes)
		bench_say("this pool can hold the whole context, or has no spill store: nothing will be restored");
	r = load_open_desc(&load, bench->socket, "bench-sparse", &desc, 8);
	bench_say("sparse: publishing %u blocks of %" PRIu64 " KiB ...", N_BLOCKS, job->block_bytes / 1024);
	if (!r)
		r = sparse_open(job, &desc, &load);
	if (!r)
		r = sparse_run(bench, job, &load);
	kvp_seq_close(job->seq);
	kvp_ns_close(job->summaries);
	load_close(&load);
	munmap(job->flat, N_BLOCKS * job->block_bytes);
	free(job);
	return r;
}
