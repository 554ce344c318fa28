/*
 * bench_attn.c - kvctl bench attn: a decode step over blocks of the pool, in place, beside the same over private
 * contiguous memory and beside reading the same bytes
 *
 * One layer of 32 query and 8 KV heads of 128, f16, blocks of 64 tokens, one thread.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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
	uint64_t start = now_ns();

	return kvattn_attend(&job->geom, &seq, 1, &job->opts) < 0 ? -1 : (double)(now_ns() - start) / 1e6;
}

static double read_all(const struct attn_job *job, volatile uint64_t *sum)
{
	uint64_t start = now_ns();

	for (unsigned i = 0; i < N_BLOCKS; i++)
		*sum += load_read_lines(job->pool_blocks[i], BLOCK_BYTES);
	return (double)(now_ns() - start) / 1e6;
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
	p = load_median(pool, SLICES);
	f = load_median(flat, SLICES);
	r = load_median(reads, SLICES);
	bench_row(bench, "ms", p, "private contiguous memory", f, BENCH_NO_TARGET,
		"decode step over %u tokens in the pool (%s)", N_BLOCKS * BLOCK_TOKENS, kvattn_isa_name());
	bench_row(bench, "GB/s", (double)N_BLOCKS * BLOCK_BYTES / p / 1e6, "reading the same lines",
		(double)N_BLOCKS * BLOCK_BYTES / r / 1e6, BENCH_NO_TARGET, "  bytes of K and V a second, one thread");
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
