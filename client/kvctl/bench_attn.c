/*
 * bench_attn.c - kvctl bench attn: a decode step over blocks of the pool, in place, beside the same over private
 * contiguous memory and beside reading the same bytes
 *
 * One layer of 32 query and 8 KV heads of 128, f16, blocks of 64 tokens as the pool's own layout has them (HND), one
 * thread. Processor time, the least of some turns between what is compared: other work on the machine shows less so.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <inttypes.h>
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
#define BLOCK_BYTES (2u * KV_HEADS * BLOCK_TOKENS * DIM * 2u)
#define SLICES 9
#define STREAMS 4u /* blocks read side by side: one after the other leaves half of the memory's speed unused */
#define READ_SHARE 0.60 /* of that speed, at least */

struct attn_job {
	struct kvattn_geom geom;
	struct kvattn_opts opts;
	const void *pool_blocks[N_BLOCKS];
	const void *flat_blocks[N_BLOCKS];
	char *flat;
	float q[Q_HEADS * DIM];
	float out_pool[Q_HEADS * DIM], out_flat[Q_HEADS * DIM];
};

static float noise(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (float)(*seed >> 40) / (float)(1 << 23) - 1.0f;
}

static void block_fill(const struct attn_job *job, void *block, uint64_t i)
{
	static float k[BLOCK_TOKENS * KV_HEADS * DIM], v[BLOCK_TOKENS * KV_HEADS * DIM];
	uint64_t seed = i + 1;

	for (unsigned j = 0; j < BLOCK_TOKENS * KV_HEADS * DIM; j++) {
		k[j] = noise(&seed);
		v[j] = noise(&seed);
	}
	kvattn_put(&job->geom, block, 0, BLOCK_TOKENS, k, 0, v, 0);
}

static int publish_all(struct attn_job *job, struct load *load)
{
	for (uint64_t i = 0; i < N_BLOCKS; i++) {
		struct kvp_key key = load_key(i);
		struct kvp_block_ref block;
		struct kvp_publish_item item = {.key = key, .block = &block, .used_tokens = BLOCK_TOKENS};
		uint8_t result;

		if (kvp_reserve(load->ns, 1, 0, kvp_deadline_ms(10000), &block) != 1) {
			complain("bench: no room for block %" PRIu64 ": use a pool of 256M or more, or --self", i);
			return KVCTL_FAILED;
		}
		block_fill(job, block.data, i);
		memcpy(job->flat + i * BLOCK_BYTES, block.data, BLOCK_BYTES);
		if (kvp_publish(load->ns, &item, 1, &result) != 1) {
			complain("bench: block %" PRIu64 " was not published: %s", i, kvp_error(load->client));
			return KVCTL_FAILED;
		}
	}
	return 0;
}

static double cpu_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* One decode step. Return: ms; < 0: refused. */
static double step(const struct attn_job *job, const void *const *blocks, float *out)
{
	struct kvattn_seq seq = {
		.table = {.blocks = blocks, .n_blocks = N_BLOCKS, .n_tokens = (uint64_t)N_BLOCKS * BLOCK_TOKENS},
		.q = job->q,
		.out = out,
		.n_q = 1,
		.causal = 1,
	};
	double start = cpu_ms();

	return kvattn_attend(&job->geom, &seq, 1, &job->opts) < 0 ? -1 : cpu_ms() - start;
}

/* A word of every line. */
static double read_all(const struct attn_job *job, volatile uint64_t *sum)
{
	double start = cpu_ms();
	uint64_t all = 0;

	for (unsigned i = 0; i < N_BLOCKS; i += STREAMS)
		for (unsigned at = 0; at < BLOCK_BYTES / sizeof(uint64_t); at += 64 / sizeof(uint64_t))
			for (unsigned s = 0; s < STREAMS; s++)
				all += ((const uint64_t *)job->pool_blocks[i + s])[at];
	*sum += all;
	return cpu_ms() - start;
}

static double least(const double *values)
{
	double low = values[0];

	for (unsigned i = 1; i < SLICES; i++)
		low = values[i] < low ? values[i] : low;
	return low;
}

static int attn_measure(struct bench *bench, struct attn_job *job)
{
	double pool[SLICES], flat[SLICES], reads[SLICES], p, f, r;
	volatile uint64_t sum = 0;

	for (unsigned i = 0; i <= SLICES; i++) { /* the first round touches */
		unsigned at = i ? i - 1 : 0;

		reads[at] = read_all(job, &sum);
		pool[at] = step(job, job->pool_blocks, job->out_pool);
		flat[at] = step(job, job->flat_blocks, job->out_flat);
		if (pool[at] < 0 || flat[at] < 0) {
			complain("bench: kvattn_attend() refuses the shape");
			return KVCTL_FAILED;
		}
	}
	if (memcmp(job->out_pool, job->out_flat, sizeof(job->out_pool))) {
		complain("bench: attention over the pool's blocks differs from that over private memory");
		return KVCTL_FAILED;
	}
	p = least(pool);
	f = least(flat);
	r = least(reads);
	bench_row(bench, "ms", p, "private contiguous memory", f, BENCH_NO_TARGET,
		"decode step over %u tokens in the pool (%s)", N_BLOCKS * BLOCK_TOKENS, kvattn_isa_name());
	bench_row(bench, "ms", p, "reading the same lines, four streams", r, 1 / READ_SHARE,
		"  beside reading: %.1f GB/s of K and V, one thread", (double)N_BLOCKS * BLOCK_BYTES / p / 1e6);
	return 0;
}

static int attn_run(struct bench *bench, struct attn_job *job, struct load *load)
{
	struct kvp_view *views = calloc(N_BLOCKS, sizeof(*views));
	struct kvp_key keys[N_BLOCKS];
	int64_t got;
	int r = publish_all(job, load);

	for (uint64_t i = 0; i < N_BLOCKS; i++)
		keys[i] = load_key(i);
	got = r || !views ? 0 : kvp_acquire(load->ns, keys, N_BLOCKS, 0, kvp_deadline_ms(10000), views);
	if (!r && got != N_BLOCKS) {
		complain("bench: only %" PRId64 " of %u blocks are there: use a larger pool, or --self", got, N_BLOCKS);
		r = KVCTL_FAILED;
	}
	for (int64_t i = 0; i < got; i++) {
		job->pool_blocks[i] = views[i].data;
		job->flat_blocks[i] = job->flat + i * BLOCK_BYTES;
	}
	if (!r)
		r = attn_measure(bench, job);
	if (views)
		kvp_release(views, N_BLOCKS);
	free(views);
	return r;
}

int bench_attn(struct bench *bench)
{
	static const struct kvattn_shape shape = {1, KV_HEADS, DIM, DIM, KVATTN_F16, KVATTN_F16, BLOCK_TOKENS};
	struct attn_job *job = calloc(1, sizeof(*job));
	uint64_t seed = 7;
	struct kvp_desc desc;
	struct load load;
	int r;

	if (!job || kvattn_geom_init_hnd(&job->geom, &shape, 0) < 0)
		return KVCTL_FAILED;
	kvattn_opts_init(&job->opts, Q_HEADS);
	for (unsigned i = 0; i < Q_HEADS * DIM; i++)
		job->q[i] = noise(&seed);
	job->flat = mmap(NULL, (size_t)N_BLOCKS * BLOCK_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (job->flat == MAP_FAILED) {
		free(job);
		return KVCTL_FAILED;
	}
	kvp_desc_init(&desc, KVP_LAYOUT_HND, BLOCK_TOKENS, 1, KV_HEADS, DIM, KVP_TYPE_F16);
	r = load_open_desc(&load, bench->socket, "bench-attn", &desc, 8);
	bench_say("attn: publishing %u blocks of %u KiB ...", N_BLOCKS, BLOCK_BYTES / 1024);
	if (!r)
		r = attn_run(bench, job, &load);
	load_close(&load);
	munmap(job->flat, (size_t)N_BLOCKS * BLOCK_BYTES);
	free(job);
	return r;
}
