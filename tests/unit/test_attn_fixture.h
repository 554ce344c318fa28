/*
 * test_attn_fixture.h - sequences of keys and values in blocks, and a run of a test program at every instruction set
 *
 * Bytes of a block that no key owns are 0xff, NaN in every type: whoever uses one shows it in the result.
 */
#ifndef KVATTN_TEST_FIXTURE_H
#define KVATTN_TEST_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kvattn.h>

#if defined(__has_feature)
#define FEATURE(x) __has_feature(x)
#else
#define FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || FEATURE(address_sanitizer) || \
	FEATURE(thread_sanitizer)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
#if SANITIZED || defined(KVPOOL_TEST_ARM_CMOCKA_H) /* or emulated: less of what takes minutes else */
#define SLOW 1
#else
#define SLOW 0
#endif

/* Sums for comparison: out of the thread sanitizer's sight, too slow. */
#define NO_TSAN __attribute__((no_sanitize("thread")))

static const uint32_t attn_types[] = {KVATTN_F32, KVATTN_F16, KVATTN_BF16};
#if SLOW
static const uint32_t attn_block_sizes[] = {1, 32};
#else
static const uint32_t attn_block_sizes[] = {1, 16, 32, 64, 256};
#endif

enum order { ORDER_HND, ORDER_NHD, ORDER_TILED, N_ORDERS };
static const char *const order_names[] = {"", " NHD", " TILED"};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A sequence in blocks: one layer, K and V of every token set with kv_fill(). */
struct kv {
	struct kvattn_geom geom;
	struct kvattn_shape shape;
	uint64_t block_bytes, n_blocks, n_tokens;
	char *memory;
	const void **blocks;
};

static inline void *must(void *memory)
{
	assert_non_null(memory);
	return memory;
}

static inline float *floats(size_t n)
{
	return must(calloc(n ? n : 1, sizeof(float)));
}

/* Geometry of the last layer, and the block's bytes. */
static inline uint64_t order_geom(enum order order, const struct kvattn_shape *shape, struct kvattn_geom *geom)
{
	int (*const init[])(struct kvattn_geom *, const struct kvattn_shape *, uint32_t) = {
		kvattn_geom_init_hnd, kvattn_geom_init_nhd, kvattn_geom_init_tiled};

	assert_int_equal(init[order](geom, shape, shape->n_layers - 1), 0);
	return (order == ORDER_TILED ? kvattn_block_bytes_tiled : kvattn_block_bytes)(shape);
}

/* The same of one layer that stores K alone: V is its first dim_v dims. */
static inline uint64_t latent_geom(enum order order, const struct kvattn_shape *shape, struct kvattn_geom *geom)
{
	struct kvattn_shape both = *shape;
	uint64_t bytes, tiles = (shape->block_tokens + 15) / 16;

	both.n_layers = 1;
	both.dim_v = shape->dim_k;
	both.type_v = shape->type_k;
	order_geom(order, &both, geom);
	bytes = geom->v_off; /* of K, or of one of its tiles */
	geom->v_off = 0;
	geom->dim_v = shape->dim_v;
	if (order != ORDER_TILED)
		return bytes;
	geom->k_token_stride = geom->v_token_stride = bytes;
	geom->k_head_stride = geom->v_head_stride = bytes * tiles;
	return bytes * tiles * shape->n_kv_heads;
}

/* Of bytes as @geom has them. */
static inline void kv_open_as(struct kv *kv, const struct kvattn_shape *shape, const struct kvattn_geom *geom,
	uint64_t block_bytes, uint64_t n_tokens)
{
	*kv = (struct kv){.geom = *geom, .shape = *shape, .block_bytes = block_bytes, .n_tokens = n_tokens};
	kv->n_blocks = (n_tokens + shape->block_tokens - 1) / shape->block_tokens;
	kv->memory = must(aligned_alloc(64, (kv->n_blocks + 1) * kv->block_bytes));
	memset(kv->memory, 0xff, (kv->n_blocks + 1) * kv->block_bytes);
	kv->blocks = must(calloc(kv->n_blocks + 1, sizeof(*kv->blocks)));
	for (uint64_t b = 0; b < kv->n_blocks; b++)
		kv->blocks[b] = kv->memory + b * kv->block_bytes;
}

static inline void kv_open(struct kv *kv, const struct kvattn_shape *shape, enum order order, uint64_t n_tokens)
{
	struct kvattn_geom geom;
	const uint64_t block_bytes = order_geom(order, shape, &geom);

	kv_open_as(kv, shape, &geom, block_bytes, n_tokens);
}

/* K alone, TILED: kv_fill() leaves V out. */
static inline void kv_open_latent(struct kv *kv, const struct kvattn_shape *shape, uint64_t n_tokens)
{
	struct kvattn_geom geom;
	const uint64_t block_bytes = latent_geom(ORDER_TILED, shape, &geom);

	kv_open_as(kv, shape, &geom, block_bytes, n_tokens);
}

static inline void kv_close(struct kv *kv)
{
	free(kv->memory);
	free(kv->blocks);
	*kv = (struct kv){0};
}

static inline char *kv_block(const struct kv *kv, uint64_t b)
{
	return kv->memory + ((const char *)kv->blocks[b] - kv->memory);
}

/* @k: [n_tokens][n_kv_heads][dim_k], @v likewise; either may be NULL */
static inline void kv_fill(struct kv *kv, const float *k, const float *v)
{
	const bool latent = kv->geom.v_off == kv->geom.k_off;
	const size_t k_token = (size_t)kv->shape.n_kv_heads * kv->shape.dim_k;
	const size_t v_token = (size_t)kv->shape.n_kv_heads * kv->shape.dim_v;

	for (uint64_t b = 0; b < kv->n_blocks; b++) {
		const uint64_t first = b * kv->shape.block_tokens, left = kv->n_tokens - first;
		const uint32_t n = left < kv->shape.block_tokens ? (uint32_t)left : kv->shape.block_tokens;

		assert_int_equal(kvattn_put(&kv->geom, kv_block(kv, b), 0, n, k ? k + first * k_token : NULL, 0,
					 v && !latent ? v + first * v_token : NULL, 0),
			0);
	}
}

/* What the type made of the numbers, back as f32. */
static inline void kv_read(const struct kv *kv, float *k, float *v)
{
	const size_t k_token = (size_t)kv->shape.n_kv_heads * kv->shape.dim_k;
	const size_t v_token = (size_t)kv->shape.n_kv_heads * kv->shape.dim_v;

	for (uint64_t b = 0; b < kv->n_blocks; b++) {
		const uint64_t first = b * kv->shape.block_tokens, left = kv->n_tokens - first;
		const uint32_t n = left < kv->shape.block_tokens ? (uint32_t)left : kv->shape.block_tokens;

		assert_int_equal(kvattn_get(&kv->geom, kv->blocks[b], 0, n, k ? k + first * k_token : NULL, 0,
					 v ? v + first * v_token : NULL, 0),
			0);
	}
}

static inline struct kvattn_seq kv_seq(const struct kv *kv, const float *q, uint64_t n_q, float *out)
{
	return (struct kvattn_seq){
		.table = {.blocks = kv->blocks, .n_blocks = kv->n_blocks, .n_tokens = kv->n_tokens},
		.q = q,
		.out = out,
		.n_q = n_q,
		.causal = 1,
	};
}

/* Whether queries or weights are rounded to sixteen bits: BF16 in TILED by AMX. */
static inline bool rows_rounded(uint32_t type_k, uint32_t type_v, bool tiled)
{
	return tiled && (type_k == KVATTN_BF16 || type_v == KVATTN_BF16) && strcmp(kvattn_isa_name(), "avx512amx") == 0;
}

/* Whether queries or weights are whole numbers of eight or sixteen bits: of I8 and I4, where there are products of bytes. */
static inline bool rows_in_digits(uint32_t type_k, uint32_t type_v)
{
	return (type_k == KVATTN_I4 || type_v == KVATTN_I4 || type_k == KVATTN_I8 || type_v == KVATTN_I8) &&
	       (strcmp(kvattn_isa_name(), "avx512vnni") == 0 || strcmp(kvattn_isa_name(), "avx512amx") == 0);
}

/* ---- Numbers ---- */

static inline uint64_t noise_next(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return *seed >> 33;
}

static inline uint32_t noise_below(uint64_t *seed, uint32_t n)
{
	return (uint32_t)(noise_next(seed) % n);
}

/* -1 .. 1 */
static inline float noise_float(uint64_t *seed)
{
	return (float)((double)noise_next(seed) / 1073741824.0 - 1.0);
}

static inline void noise_fill(uint64_t *seed, float *x, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		x[i] = scale * noise_float(seed);
}

static inline void noise_gauss(uint64_t *seed, float *x, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const double u = ((double)noise_next(seed) + 1) / 2147483649.0,
			     v = (double)noise_next(seed) / 2147483648.0;

		x[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
	}
}

/* ---- Every instruction set ---- */

/* Runs this program again for each level; there it returns -1: go on and test.  Levels the machine lacks are said and
 * passed. */
static inline int levels_run(char **argv)
{
	static const char *const levels[] = {"scalar", "avx2", "avx512", "avx512vnni", "avx512amx"};
	int failed = 0;

	if (getenv("ATTN_ONLY")) /* an emulator takes minutes for all of them */
		cmocka_set_test_filter(getenv("ATTN_ONLY"));
	if (getenv("KVATTN_ISA")) {
		if (strcmp(getenv("KVATTN_ISA"), kvattn_isa_name()) == 0)
			return -1;
		printf("[  SKIPPED ] %s at %s: this machine has not more than %s\n", argv[0], getenv("KVATTN_ISA"),
			kvattn_isa_name());
		return 0;
	}
	for (size_t i = 0; i < COUNT(levels); i++) {
		const pid_t child = fork();
		int status = -1;

		if (child == 0) {
			setenv("KVATTN_ISA", levels[i], 1);
			execv("/proc/self/exe", argv);
			_exit(127);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status)) {
			fprintf(stderr, "%s: failed at KVATTN_ISA=%s (status %#x)\n", argv[0], levels[i],
				(unsigned)status);
			failed = 1;
		}
	}
	return failed;
}

#endif
