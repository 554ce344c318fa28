/*
 * tune.c - what belongs to the machine: how far ahead streams are asked for, by itself, by the environment, or measured
 *
 * One atomic word.  The number of streams is not here: it is part of the order of sums, and so of the bits.
 */
#include "tune.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <kvattn.h>

#define AHEAD_NEAR \
	2048u /* of the Intel ones it was measured on: four streams of it fit a first-level cache beside sums */
#define AHEAD_FAR \
	8192u /* of AMD's Zen 4: a first-level cache that waits for memory itself has too few lines on their way */
#define LINE 64u
#define ROUNDS 8u
#define TOKENS_MIN 16384u /* 64 MiB */
#define TOKENS_MAX 65536u
#define BLOCK 64u
#define HEADS 8u
#define GROUP 4u
#define DIM 128u
#define BETTER 0.98 /* of the usual one's time: what is less is noise */

static _Atomic uint32_t ahead;

uint32_t tune_ahead_of(const char *text)
{
	char *end;
	unsigned long bytes;

	if (!text || *text < '0' || *text > '9')
		return 0;
	errno = 0;
	bytes = strtoul(text, &end, 10);
	if (errno || *end || bytes < TUNE_AHEAD_MIN || bytes > TUNE_AHEAD_MAX)
		return 0;
	return (uint32_t)(bytes / LINE * LINE);
}

static uint32_t ahead_usual(void)
{
#if defined(__x86_64__)
	return __builtin_cpu_is("amd") ? AHEAD_FAR : AHEAD_NEAR;
#else
	return AHEAD_NEAR;
#endif
}

uint32_t tune_ahead(void)
{
	uint32_t bytes = atomic_load_explicit(&ahead, memory_order_relaxed), none = 0;

	if (bytes)
		return bytes;
	bytes = tune_ahead_of(getenv("KVATTN_AHEAD"));
	bytes = bytes ? bytes : ahead_usual();
	/* what was measured meanwhile stays */
	return atomic_compare_exchange_strong_explicit(&ahead, &none, bytes, memory_order_relaxed, memory_order_relaxed)
		       ? bytes
		       : none;
}

void tune_ahead_set(uint32_t bytes)
{
	atomic_store_explicit(&ahead, bytes, memory_order_relaxed);
}

/* ---- Measuring ---- */

struct trial {
	struct kvattn_geom geom;
	struct kvattn_opts opts;
	char *bytes;
	const void **blocks;
	float *q, *out;
	uint64_t n_blocks;
};

static void trial_close(struct trial *trial)
{
	free(trial->bytes);
	free(trial->blocks);
	free(trial->q);
	free(trial->out);
}

/* Twice the last cache, if that is not too much: all comes from memory then, as a decode step's usually does. */
static uint64_t trial_tokens(uint64_t token_bytes)
{
	const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
	const uint64_t tokens = cache > 0 ? 2 * (uint64_t)cache / token_bytes / BLOCK * BLOCK : 0;

	return tokens < TOKENS_MIN ? TOKENS_MIN : tokens < TOKENS_MAX ? tokens : TOKENS_MAX;
}

static int trial_open(struct trial *trial)
{
	const struct kvattn_shape shape = {1, HEADS, DIM, DIM, KVATTN_F16, KVATTN_F16, BLOCK};
	const uint64_t block_bytes = kvattn_block_bytes_tiled(&shape);
	int r = kvattn_geom_init_tiled(&trial->geom, &shape, 0);

	if (r < 0)
		return r;
	kvattn_opts_init(&trial->opts, HEADS * GROUP);
	trial->n_blocks = trial_tokens(block_bytes / BLOCK) / BLOCK;
	trial->bytes = aligned_alloc(4096, trial->n_blocks * block_bytes);
	trial->blocks = calloc(trial->n_blocks, sizeof(*trial->blocks));
	trial->q = calloc(HEADS * GROUP * DIM, sizeof(float));
	trial->out = calloc(HEADS * GROUP * DIM, sizeof(float));
	if (!trial->bytes || !trial->blocks || !trial->q || !trial->out) {
		trial_close(trial);
		return -ENOMEM;
	}
	memset(trial->bytes, 0, trial->n_blocks * block_bytes); /* pages of its own, not the one of zeros */
	for (uint64_t b = 0; b < trial->n_blocks; b++)
		trial->blocks[b] = trial->bytes + b * block_bytes;
	return 0;
}

/* Processor time of one step; negative: it failed. */
static double trial_run(const struct trial *trial, uint32_t bytes)
{
	const struct kvattn_seq seq = {
		.table = {trial->blocks, NULL, trial->n_blocks, trial->n_blocks * BLOCK},
		.q = trial->q,
		.out = trial->out,
		.n_q = 1,
	};
	struct timespec from, to;

	tune_ahead_set(bytes);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
	if (kvattn_attend(&trial->geom, &seq, 1, &trial->opts) < 0)
		return -1;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
	return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

/* The distance whose quickest step is the quickest; they take turns, so that other work disturbs all alike. */
static uint32_t trial_best(const struct trial *trial)
{
	const uint32_t tried[] = {ahead_usual(), 1024, 1536, AHEAD_NEAR, 2560, 3072, 4096, AHEAD_FAR};
	enum { N = sizeof(tried) / sizeof(tried[0]) };
	double least[N] = {0};
	uint32_t best = 0;

	for (uint32_t round = 0; round < ROUNDS; round++)
		for (uint32_t i = 0; i < N; i++) {
			const double took = trial_run(trial, tried[i]);

			if (took < 0)
				return tried[0];
			least[i] = round && least[i] < took ? least[i] : took;
		}
	for (uint32_t i = 1; i < N; i++)
		if (least[i] < least[best] && least[i] < BETTER * least[0])
			best = i;
	return tried[best];
}

int64_t kvattn_calibrate(void)
{
	const uint32_t asked = tune_ahead_of(getenv("KVATTN_AHEAD"));
	struct trial trial = {0};
	uint32_t best = asked;
	int r = asked ? 0 : trial_open(&trial);

	if (r < 0)
		return r;
	if (!asked) {
		best = trial_best(&trial);
		trial_close(&trial);
	}
	tune_ahead_set(best);
	return best;
}
