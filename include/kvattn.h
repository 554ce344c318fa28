/*
 * kvattn.h - libkvattn: attention over K and V that lie in blocks
 *
 * Knows nothing of the pool: a sequence is a table of block addresses.  One call does decode (few query rows) and causal,
 * chunked prefill, for a batch of sequences of unequal length.
 *
 * For query row r of a sequence, at absolute position p, query head h, its KV head g = h / (n_q_heads / n_kv_heads), and
 * each key j at position pos(j) that the row may see:
 *
 *	z_j = scale * (q . k_j)                       scale
 *	z_j = softcap * tanh(z_j / softcap)           soft cap, if any (Gemma 2)
 *	z_j = z_j - slope[h] * (p - pos(j))           ALiBi, if any (Press et al. 2022)
 *	out = sum_j e^z_j v_j / (sum_j e^z_j + e^sink[h])      the sink only if given (as in gpt-oss)
 *	lse = log(sum_j e^z_j + e^sink[h])
 *
 * in this order; hidden keys are passed over, never multiplied by 0.  A row that sees nothing gives zeros and lse =
 * -infinity (or the sink).  Causal: pos(j) <= p.  Window W: p - pos(j) < W, so min(p + 1, W) keys; the first sink_tokens
 * positions stay visible.
 *
 * Promise: the bits of a row's result depend on its query, its visible keys and their positions, the block size and the
 * instruction set (kvattn_isa()), and on nothing else: not on how queries are cut into calls, what else is in the batch,
 * the number of threads, or where blocks lie.
 *
 * Threads: every call may run in any number of threads at once.  Errors: negative errno; nothing is printed.
 */
#ifndef KVATTN_H
#define KVATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef KVATTN_API
#define KVATTN_API __attribute__((visibility("default")))
#endif

enum kvattn_type {
	KVATTN_F32 = 1,
	KVATTN_F16 = 2,
	KVATTN_BF16 = 3,
	/* 4..7: fp8, int8, int4: reserved, refused with -ENOTSUP */
};
enum kvattn_layout {
	KVATTN_ROWS = 0, /* K and V row-major: [token][dim] under any strides (HND and NHD blocks) */
	KVATTN_TILED = 1, /* reserved, refused with -ENOTSUP */
};

#define KVATTN_DIM_MAX 576

/* One layer inside a block. */
struct kvattn_geom {
	uint32_t size; /* sizeof(struct kvattn_geom) */
	uint32_t type_k, type_v; /* enum kvattn_type */
	uint32_t layout; /* enum kvattn_layout */
	uint32_t n_kv_heads;
	uint32_t dim_k, dim_v; /* 1..KVATTN_DIM_MAX, may differ */
	uint32_t block_tokens; /* 1 .. a whole context */
	uint64_t k_off, v_off; /* bytes from the block's base to head 0, token 0 */
	uint64_t k_token_stride, k_head_stride, v_token_stride, v_head_stride; /* bytes */
};

/**
 * kvattn_geom_init() - layer @layer of a block [layer][K, V][kv_head][token][dim] (@nhd: [token][kv_head]), tensors aligned
 * to 64 bytes, all layers alike
 * Return: bytes of a whole block of @n_layers layers; 0: a bad argument.
 */
KVATTN_API uint64_t kvattn_geom_init(struct kvattn_geom *geom, bool nhd, uint32_t n_layers, uint32_t layer,
	uint32_t n_kv_heads, uint32_t dim_k, uint32_t dim_v, uint32_t type_k, uint32_t type_v, uint32_t block_tokens);

/* The blocks of one sequence. All are full but the last. */
struct kvattn_table {
	const void *const *blocks; /* n_blocks base addresses; the same one may come twice */
	uint64_t n_blocks;
	uint64_t n_tokens; /* in all blocks together */
	const uint64_t *
		block_pos; /* position of each block's first token, ascending; NULL: block i begins at i * block_tokens */
};

struct kvattn_seq {
	uint32_t size; /* sizeof(struct kvattn_seq) */
	uint32_t n_q; /* query rows; may be 0 */
	struct kvattn_table table;
	const float *q; /* [n_q][n_q_heads][dim_k] */
	uint64_t q_stride; /* floats between rows; 0: n_q_heads * dim_k */
	float *out; /* [n_q][n_q_heads][dim_v] */
	uint64_t out_stride; /* floats; 0: n_q_heads * dim_v */
	float *lse; /* [n_q][n_q_heads], or NULL */
	int64_t q_pos; /* position of row 0; KVATTN_POS_LAST: the last row is the last key */
	float scale; /* of this sequence; 0: the call's */
	uint32_t reserved;
};
#define KVATTN_POS_LAST INT64_MIN

struct kvattn_opts {
	uint32_t size; /* sizeof(struct kvattn_opts) */
	uint32_t n_q_heads; /* a multiple of n_kv_heads */
	float scale; /* NAN: 1 / sqrt(dim_k) */
	float softcap; /* 0: off; negative or NAN: refused */
	uint64_t window; /* tokens; 0: off */
	uint64_t sink_tokens; /* with a window: first positions that stay visible */
	bool not_causal; /* every row sees every key (of its window) */
	uint32_t n_threads; /* 0, 1: the caller alone; KVATTN_THREADS_AUTO: the CPUs this process may use */
	const float *sink_logits; /* [n_q_heads], or NULL */
	const float *alibi; /* slopes [n_q_heads], or NULL */
};
#define KVATTN_THREADS_AUTO UINT32_MAX

/**
 * kvattn_attend() - attention of a batch
 * Blocks the caller until all is computed; needs scratch memory of about n_threads * (n_q_heads / n_kv_heads) * dim floats.
 * Return: 0; -EINVAL a bad argument (sizes, head counts, NULL, a block missing); -ENOTSUP a reserved type or layout;
 *         -ENOMEM.
 */
KVATTN_API int kvattn_attend(
	const struct kvattn_geom *geom, const struct kvattn_seq *seqs, uint32_t n_seqs, const struct kvattn_opts *opts);

/**
 * kvattn_merge() - join results over disjoint sets of keys: out = sum_i e^(lse_i - lse) out_i, lse = log sum_i e^lse_i
 * @outs: n_parts pointers to [n_rows][dim]; @lses: to [n_rows]; an empty part has lse = -infinity
 * @out, @lse: may be those of a part; @lse may be NULL
 * Sink logits belong to one part only.
 */
KVATTN_API void kvattn_merge(uint32_t n_parts, const float *const *outs, const float *const *lses, uint64_t n_rows,
	uint32_t dim, float *out, float *lse);

/**
 * kvattn_put() - store K and V of tokens [first, first + n) of a block in its layout and types, rounding to nearest even
 * @k: f32 [n][n_kv_heads][dim_k], or NULL; @v: f32 [n][n_kv_heads][dim_v], or NULL
 * Return: 0; -EINVAL; -ENOTSUP.
 */
KVATTN_API int kvattn_put(
	const struct kvattn_geom *geom, void *block, uint32_t first, uint32_t n, const float *k, const float *v);

/** kvattn_get() - the reverse, exact. Return: 0; -EINVAL; -ENOTSUP. */
KVATTN_API int kvattn_get(
	const struct kvattn_geom *geom, const void *block, uint32_t first, uint32_t n, float *k, float *v);

/** kvattn_alibi_slopes() - 2^(-8 i / n) for powers of two, and the paper's interleaving for other head counts. */
KVATTN_API void kvattn_alibi_slopes(uint32_t n_heads, float *slopes);

/**
 * kvattn_isa() - instruction set in use: "scalar", "avx2" or "avx512"
 * Picked once, by what CPU and operating system offer; KVATTN_ISA in the environment can only choose a lower one.
 */
KVATTN_API const char *kvattn_isa(void);

#ifdef __cplusplus
}
#endif
#endif
