/*
 * kvattn.h - attention over a paged KV cache, in place (libkvattn)
 *
 * Knows nothing of the pool: it reads blocks wherever they lie, through a table of pointers.  Order of calls:
 *
 *	kvattn_geom_init_hnd() or kvp_attn_geom()		once for each layer: where K and V lie in a block
 *	kvattn_put()						as tokens come: f32 rows into a block
 *	kvattn_attend()						as often as wanted: decode, prefill, batches
 *
 * What is computed, for query row r at position p and query head h, over the keys j it may see:
 *
 *	z_j  = scale * (q . k_j)				k_j of KV head h / (n_q_heads / n_kv_heads)
 *	z_j  = softcap * tanh(z_j / softcap)			if softcap > 0
 *	z_j  = z_j - slope_h * (p - pos_j)			if ALiBi slopes are given
 *	out  = sum_j exp(z_j) v_j / (sum_j exp(z_j) + exp(sink_h))
 *	lse  = log(sum_j exp(z_j) + exp(sink_h))		the sink's term only where sink_logits are given
 *
 * in this order: scale, soft cap, bias, mask, softmax with sink (Vaswani et al. 2017; soft cap as in Gemma 2; ALiBi:
 * Press et al. 2022; sink logits as in gpt-oss).  Key j is visible to position p when both hold:
 *
 *	not causal, or pos_j <= p
 *	no window, or pos_j > p - window, or pos_j < sink_tokens
 *
 * so a window of W shows min(p + 1, W) keys, itself included.  A hidden key is skipped, never multiplied by zero: NaN or
 * infinity in its bytes do no harm; a score of minus infinity hides its key too.  A row that sees nothing gives zeros,
 * and lse = -INFINITY (without a sink).  Scores, softmax and all sums are f32, so each f16 or bf16 value counts exactly.
 * (With AMX queries and weights of BF16 in TILED are rounded to sixteen significant bits; with VNNI queries of I8 to
 * whole numbers of sixteen bits and its weights to such of 24, those of I4 times its steps to whole numbers up to 127,
 * of sixteen bits where few of a query's stand far above the rest: results are within 3e-4 and 2e-2, relative L2, of
 * exact ones with what is stored, outlier channels or not.)
 *
 * Promise: on one instruction set (kvattn_isa_name()) the bits of a query row's result depend on that row, its
 * position, the options and the visible keys with their positions alone: not on how queries are cut into calls, what
 * else is in the batch, the number of threads, the block size, HND or NHD, or where blocks lie.  (Blocks listed with
 * block_pos out of order of position give results within rounding of that.  TILED has an order of sums of its own:
 * within it all of this holds, against HND and NHD it differs by rounding.)  So an engine that reuses KV computes the
 * very tokens of one that does not.
 *
 * Threads: every call may run in any number of threads at once, also after fork(); nothing blocks but the wait of
 * kvattn_attend() for its own threads, or kvattn_crew_attend() for the crew's.  No call keeps a pointer.  Calls return 0 or a negative errno and then have
 * written nothing the caller may rely on.  Environment: KVATTN_ISA=scalar|avx2|avx512|avx512vnni|avx512amx caps the instruction
 * set, KVATTN_AHEAD=bytes says how far ahead streams are prefetched, both read once.  With AMX the first call asks the system for the tiles' state, for the whole process: from then on an
 * alternate signal stack must have room for it (getauxval(AT_MINSIGSTKSZ)), or sigaltstack() fails; where there is a
 * smaller one already, and where it is refused, AMX is not used.
 */
#ifndef KVATTN_H
#define KVATTN_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVATTN_API __attribute__((visibility("default")))
#else
#define KVATTN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KVATTN_VERSION_MAJOR 0
#define KVATTN_VERSION_MINOR 1

/** kvattn_version() - of the library at run time: major << 16 | minor */
KVATTN_API uint32_t kvattn_version(void);

/** kvattn_isa_name() - "scalar", "avx2" (with FMA and F16C), "avx512" (F, BW, DQ, VL), "avx512vnni" (and VBMI) or "avx512amx" (and AMX); on ARM "neon" */
KVATTN_API const char *kvattn_isa_name(void);

/* ---- Where K and V lie ---- */

enum kvattn_type { /* of stored elements, little-endian; numbers never change */
	KVATTN_F32 = 1,
	KVATTN_F16 = 2, /* IEEE 754 binary16 */
	KVATTN_BF16 = 3,
	KVATTN_I8 = 4, /* a scale for each token and head, TILED only: value = scale * code, code -127 .. 127 */
	KVATTN_I4 = 5, /* groups with a step and a least value, TILED only: value = least + step * code, code 0 .. 15 */
	KVATTN_FP8_E4M3 = 6, /* of the OCP: no infinities, up to 448 */
};

enum kvattn_layout {
	KVATTN_ROWS = 1, /* a token's vector of one head is contiguous; the rest by strides */
	KVATTN_TILED = 2, /* tiles of 16 tokens of a head, K by dimension, V by token: the fastest */
};

#define KVATTN_DIM_MAX 576u
#define KVATTN_HEADS_MAX 4096u
#define KVATTN_BLOCK_TOKENS_MAX (1u << 31)
#define KVATTN_TOKENS_MAX (1ull << 40) /* positions and counts of tokens are below this */

/*
 * One layer inside a block.  Element d of head h of token t of K lies at
 * block + k_off + t * k_token_stride + h * k_head_stride + d * element size; V likewise.  Offsets and strides are bytes
 * and multiples of the element size.  K and V may share bytes (v_off == k_off, as in a latent cache): V is then the first
 * dim_v dims of K.
 *
 * TILED: a head's tokens are cut into tiles of T = min(16, block_tokens) tokens, tile i of head h lies at
 * block + k_off + i * k_token_stride + h * k_head_stride, V's likewise.  In K's tile dim d of token t is element
 * d * T + t.  V's dims are rounded up to 16 and cut into chunks of 64; in its tile dim d of token t of chunk c is element
 * c * 64 * T + t * (dims of the chunk) + d % 64.  BF16 lies in pairs: K's element d of token t is number
 * d / 2 * 2 * T + 2 * t + d % 2, dims rounded up to 2; V's number c * 64 * U + t / 2 * 2 * (dims of the chunk) + 2 * (d % 64)
 * + t % 2, U being T rounded up to 2 (T = 1: as the others).  I8 has T scales (f32) behind the elements, at a multiple of 4 bytes;
 * its offsets and strides are multiples of 4; so are I4's.  I4 has codes of four bits, then steps, then least values, both
 * f16.  Eight codes are a word of four bytes, byte i holds codes i (low half) and i + 4 (high).  K: word (d / 8) * T + t
 * holds dims d / 8 * 8 and on of token t, a group is a dim of a tile, groups are numbered by dim, rounded up to 16.  V: word
 * (t / 8) * P + d, P being the dims rounded up to 16, holds tokens t / 8 * 8 and on of dim d, a group is a token of a
 * chunk, number c * 16 + t.  The last tile of a block is a whole one: its rest is room unused.  Where V shares K's bytes
 * there is K's tile alone: types and strides are the same, dim_v is at most dim_k.
 */
struct kvattn_geom {
	uint32_t size; /* sizeof(struct kvattn_geom) */
	uint32_t layout; /* enum kvattn_layout */
	uint32_t type_k; /* enum kvattn_type */
	uint32_t type_v;
	uint32_t n_kv_heads;
	uint32_t dim_k; /* elements of a head's vector, 1 .. KVATTN_DIM_MAX */
	uint32_t dim_v;
	uint32_t block_tokens; /* 1 .. a whole context; fast: a multiple of 16 */
	uint64_t k_off;
	uint64_t v_off;
	uint64_t k_token_stride;
	uint64_t k_head_stride;
	uint64_t v_token_stride;
	uint64_t v_head_stride;
};

/* A block of equal layers, each tensor (K or V of a layer) padded to 64 bytes. */
struct kvattn_shape {
	uint32_t n_layers;
	uint32_t n_kv_heads;
	uint32_t dim_k;
	uint32_t dim_v;
	uint32_t type_k; /* enum kvattn_type */
	uint32_t type_v;
	uint32_t block_tokens;
};

/**
 * kvattn_geom_init_hnd() - geometry of one layer of a block [layer][K, V][kv_head][token][dim]
 * @geom:  filled, size and all
 * @layer: 0 .. shape->n_layers - 1
 *
 * The canonical layout; offsets are those of kvp_geom() for KVP_LAYOUT_HND.
 * Return: 0; -EINVAL a count is zero or too large; -ENOTSUP the type is not served.
 */
KVATTN_API int kvattn_geom_init_hnd(struct kvattn_geom *geom, const struct kvattn_shape *shape, uint32_t layer);

/** kvattn_geom_init_nhd() - the same for a block [layer][K, V][token][kv_head][dim] */
KVATTN_API int kvattn_geom_init_nhd(struct kvattn_geom *geom, const struct kvattn_shape *shape, uint32_t layer);

/**
 * kvattn_geom_init_tiled() - the same for a block [layer][kv_head][tile][K, V], each K and V padded to 64 bytes
 *
 * The fastest layout: a decode step reads it straight on, four blocks at a time.  block_tokens: 64 and more is
 * fastest, other multiples of 16 are fast; any other number works through copies.
 */
KVATTN_API int kvattn_geom_init_tiled(struct kvattn_geom *geom, const struct kvattn_shape *shape, uint32_t layer);

/** kvattn_block_bytes() - length of an HND or NHD block, without padding at its end; 0: the shape is refused */
KVATTN_API uint64_t kvattn_block_bytes(const struct kvattn_shape *shape);

/** kvattn_block_bytes_tiled() - the same of a TILED block */
KVATTN_API uint64_t kvattn_block_bytes_tiled(const struct kvattn_shape *shape);

/** kvattn_type_bytes() - of one element, without its scale; 0: less than a byte (I4), or the type is not served */
KVATTN_API uint32_t kvattn_type_bytes(uint32_t type);

/**
 * kvattn_put() - store f32 rows of K and V into a block, in its layout and type
 * @block:       base of the block, writable, aligned to the element size
 * @first_token: where in the block the first row goes; first_token + n_tokens <= block_tokens
 * @k:           [n_tokens][n_kv_heads][dim_k], RoPE applied; NULL: K stays as it is
 * @k_stride:    floats from one token to the next; 0: n_kv_heads * dim_k
 * @v:           [n_tokens][n_kv_heads][dim_v]; NULL: V stays as it is, as it must where it lies in K's tiles
 * @v_stride:    as @k_stride
 *
 * Rounds to nearest even, to infinity beyond the largest value; NaN stays NaN.  I8: the scale is near the largest
 * magnitude / 127; a row with anything not finite in it comes back as NaN throughout.  FP8: what is finite stays so, up to
 * 448; infinities become NaN.  I4: as I8 for a group, which f16 must hold; K comes in whole tiles: @first_token is a
 * multiple of T, and a last tile that is not full is complete as it is - more rows for it mean putting it again.  Only the bytes of these rows
 * are written.
 * Return: 0; -EINVAL; -ENOTSUP type or layout.
 */
KVATTN_API int kvattn_put(const struct kvattn_geom *geom, void *block, uint32_t first_token, uint32_t n_tokens,
	const float *k, size_t k_stride, const float *v, size_t v_stride);

/** kvattn_get() - the reverse: rows of a block as f32, exactly; arguments and errors as kvattn_put() */
KVATTN_API int kvattn_get(const struct kvattn_geom *geom, const void *block, uint32_t first_token, uint32_t n_tokens,
	float *k, size_t k_stride, float *v, size_t v_stride);

/**
 * kvattn_convert() - the rows of a block into a block of another type or layout
 * @from, @block:  a layer of a block; only read
 * @to, @to_block: of as many heads, dims and tokens; K and V share bytes in it only if they do in @from
 * @n_tokens:      the first ones, at most block_tokens
 *
 * Bits are those of kvattn_get() and kvattn_put().  What a narrower type loses it loses for good: such a block is not
 * the exact block and belongs under another name.
 * Return: 0; -EINVAL; -ENOTSUP type or layout; -ENOMEM.
 */
KVATTN_API int kvattn_convert(const struct kvattn_geom *from, const void *block, const struct kvattn_geom *to,
	void *to_block, uint32_t n_tokens);

/** kvattn_geom_head() - the geometry of one KV head: for attention of a head over blocks of its own choice */
KVATTN_API int kvattn_geom_head(const struct kvattn_geom *geom, uint32_t head, struct kvattn_geom *one);

/* ---- Sparse: which blocks a query needs ---- */

/** kvattn_summary_bytes() - of one layer of a block: f32 [kv_head][least, largest][dim_k]; 0: geometry refused */
KVATTN_API uint64_t kvattn_summary_bytes(const struct kvattn_geom *geom);

/**
 * kvattn_summarise() - the least and the largest value of each channel of K over the first @n_tokens of a block
 *
 * Made once, before the block is published; it need not lie in the block.
 * Return: 0; -EINVAL; -ENOTSUP.
 */
KVATTN_API int kvattn_summarise(const struct kvattn_geom *geom, const void *block, uint32_t n_tokens, float *summary);

struct kvattn_select {
	uint32_t size; /* sizeof(struct kvattn_select) */
	uint32_t n_q_heads; /* a multiple of n_kv_heads */
	const float *q; /* one row: [n_q_heads][dim_k], RoPE applied */
	const float *const *summaries; /* of each block, in order; the blocks themselves are not looked at */
	uint64_t n_blocks;
	uint64_t n_select; /* blocks a KV head may have, the kept ones among them */
	uint64_t keep_first; /* sinks: always selected */
	uint64_t keep_last; /* recent ones: always selected */
};

/**
 * kvattn_select() - the blocks whose keys can score highest against a query, for each KV head
 * @blocks: [n_kv_heads][return value]: indices, ascending
 *
 * A block's score is the bound of its best key for any query head of the group.  Attention over them: a table of those
 * blocks with their block_pos, for kvattn_geom_head() and the head's part of q and out; or one table of what any head
 * selected.
 * Return: blocks a head, min(n_select, n_blocks); -EINVAL; -ENOTSUP; -ENOMEM.
 */
KVATTN_API int64_t kvattn_select(const struct kvattn_geom *geom, const struct kvattn_select *ask, uint64_t *blocks);

/* ---- Attention ---- */

/*
 * The blocks of one sequence, in order.  All are full but the last one used, which holds what is left of n_tokens;
 * bytes past that are never read (TILED: read at most up to the end of their tile, and never used).  The same block may stand in many tables, and twice in one: its tokens then count
 * twice.
 */
struct kvattn_table {
	const void *const *blocks; /* base addresses, aligned to the element size (64 bytes and more is fastest) */
	const uint64_t *block_pos; /* position of each block's first token; NULL: block i starts at i * block_tokens */
	uint64_t n_blocks; /* at least n_tokens / block_tokens, rounded up; more are not looked at */
	uint64_t n_tokens; /* keys; 0: empty, blocks may be NULL */
};

/*
 * One sequence of a batch.  Zeroed fields are defaults; reserved ones must be zero.
 * out may not overlap anything else; everything else is only read and may be shared between sequences.
 */
struct kvattn_seq {
	struct kvattn_table table;
	const float *q; /* [n_q][n_q_heads][dim_k], RoPE applied */
	float *out; /* [n_q][n_q_heads][dim_v] */
	float *lse; /* [n_q][n_q_heads], dense; NULL: not wanted */
	uint64_t q_stride; /* floats from row to row; 0: n_q_heads * dim_k */
	uint64_t out_stride; /* 0: n_q_heads * dim_v */
	uint64_t n_q; /* query rows: 1 decode, more prefill; 0: nothing to do */
	uint64_t
		q_end; /* position after the last row's: row r is at q_end - n_q + r; 0: the last row is the last key */
	const float *scale; /* this sequence's own; NULL: that of the options */
	uint32_t causal; /* 1: a row sees no key of a later position; 0: all keys (a window still bounds below) */
	uint32_t reserved0;
	/*
	 * Tree of guessed tokens: [n_q][(n_q + 63) / 64], bit i of row r: r sees the key at the position of row i.  ANDed
	 * with what causal and window show; keys before and after theirs are not touched by it.  The rows' keys are the last n_q, in the
	 * rows' order, whatever their depth in the tree (which is RoPE's business; ALiBi goes by the order).  NULL: none.
	 */
	const uint64_t *tree;
	/*
	 * Attention mass, for who drops tokens by their importance: mass[h * mass_stride + j] grows by what key j weighs,
	 * exp(z_j) / (sum_j exp(z_j) + exp(sink)), summed over the rows and the query heads of KV head h.  So a call adds
	 * to what is there, and all keys of a head together gain n_q * n_q_heads / n_kv_heads, less the sinks' part.  Costs
	 * a second pass over K.  The same bits for any number of threads and any block size; not for another cut of the
	 * rows, whose sums are in another order.  May not overlap anything else.  NULL: not wanted.
	 */
	float *mass;
	uint64_t mass_stride; /* floats from KV head to KV head; 0: n_tokens */
	uint64_t reserved[1];
};

#define KVATTN_THREADS_AUTO UINT32_MAX

struct kvattn_opts {
	uint32_t size; /* sizeof(struct kvattn_opts) */
	uint32_t n_q_heads; /* a multiple of n_kv_heads */
	float scale; /* finite; NAN: 1 / sqrt(dim_k).  0 is a scale too, so start from kvattn_opts_init() */
	float softcap; /* 0: off; else finite and above 0 */
	uint64_t window; /* keys a row sees, itself included; 0: all */
	uint64_t sink_tokens; /* with a window: the first positions stay visible */
	const float
		*sink_logits; /* [n_q_heads]: exp(sink) joins the denominator; NULL: none; -INFINITY: none for a head */
	const float *alibi_slopes; /* [n_q_heads], finite; NULL: none */
	uint32_t n_threads; /* 0, 1: the caller only; KVATTN_THREADS_AUTO: one for each CPU that set and quota allow */
	uint32_t flags; /* enum kvattn_flags; the promise holds among calls with the same ones */
};

enum kvattn_flags {
	/*
	 * BF16 in TILED by vectors where AMX would multiply it: a decode step alone is quicker (AMX takes up to 1.4 times as
	 * long), a batch with a common beginning and prefill are slower (AMX takes 0.55 and 0.5 of the time).  The bits
	 * are those of "avx512vnni", so an engine that shares K and V with others, or reuses its own, chooses once for
	 * all its calls.  Without AMX it changes nothing.
	 */
	KVATTN_BF16_VECTORS = 1,
};

/** kvattn_opts_init() - defaults: scale 1 / sqrt(dim_k), everything else off, the caller's thread only */
KVATTN_API void kvattn_opts_init(struct kvattn_opts *opts, uint32_t n_q_heads);

/**
 * kvattn_attend() - attention of a batch of sequences over one layer of their blocks
 * @geom:   the layer
 * @seqs:   @n_seqs sequences of any lengths, decode and prefill mixed
 * @opts:   NULL is not allowed
 *
 * Causal rows of a chunk are the last keys: store K and V of the new tokens first, count them in n_tokens, then attend.
 * Memory: some hundred KiB a thread, up to 4 MiB for prefill, and for a long decode on several threads 1/1024 of n_tokens, times n_q *
 * n_q_heads * (dim_v + 18) * 4 bytes; never n_q * n_tokens.  With n_threads > 1 at most that many threads work, the
 * caller among them; they are gone on return, and where the system refuses a thread the others do its work.
 * Return: 0; -EINVAL an argument is out of range; -ENOTSUP type or layout not served; -ENOMEM.
 */
KVATTN_API int kvattn_attend(
	const struct kvattn_geom *geom, const struct kvattn_seq *seqs, uint64_t n_seqs, const struct kvattn_opts *opts);

/* ---- Threads that stay ---- */

/*
 * A crew is threads that wait for work between calls: nothing is made and joined for each of them, and on a machine with
 * several NUMA nodes each works on the blocks of its own.  Made once, by whoever has the CPUs; any number of threads may
 * call with the same crew at once and then share it.  It lives in the process that made it: in a child after fork() the
 * caller works alone, with the same bits, and may make a crew of its own.
 */
struct kvattn_crew;

#define KVATTN_CREW_LOOSE 1u /* not pinned: threads run where the system puts them */

/**
 * kvattn_crew_new() - make threads that stay
 * @n_threads: that work at once, the caller of kvattn_crew_attend() among them; KVATTN_THREADS_AUTO: one for each CPU that
 *             set and quota allow now
 * @flags:     0, or KVATTN_CREW_LOOSE
 * @crew:      set on success
 *
 * Where the process may use CPUs of several nodes, the threads are shared out over them and each is bound to those CPUs of
 * one node that the caller's set has; with one node they are not bound.  The caller itself is never bound.  A thread that
 * the system refuses is missing: kvattn_crew_size() tells.  All signals are blocked in them.
 * Return: 0; -EINVAL; -ENOMEM.
 */
KVATTN_API int kvattn_crew_new(uint32_t n_threads, uint32_t flags, struct kvattn_crew **crew);

/** kvattn_crew_free() - end the threads; no call with @crew may be under way or follow.  NULL is passed over.  In a child
 *  after fork() it gives back memory only. */
KVATTN_API void kvattn_crew_free(struct kvattn_crew *crew);

/** kvattn_crew_size() - threads that can work at once, the caller among them; 1 with NULL, and in a child after fork() */
KVATTN_API uint32_t kvattn_crew_size(const struct kvattn_crew *crew);

/**
 * kvattn_crew_attend() - kvattn_attend() by a crew
 * @crew:        NULL: as kvattn_attend(), threads made for the call
 * @opts:        n_threads: at most so many of the crew; 0 or KVATTN_THREADS_AUTO: all of it
 * @block_nodes: for each sequence the node of each block of its table, by the kernel's number, below 64; a negative one: not
 *               known.  NULL, or NULL for a sequence: none is known
 *
 * A long decode goes to threads split by split (1024 positions), to those of the node on which most of the split's blocks
 * lie first; who has nothing left on its own node takes what is left on others.  The bits are those of kvattn_attend().
 * Return: as kvattn_attend().
 */
KVATTN_API int kvattn_crew_attend(struct kvattn_crew *crew, const struct kvattn_geom *geom,
	const struct kvattn_seq *seqs, uint64_t n_seqs, const struct kvattn_opts *opts,
	const int16_t *const *block_nodes);

/* ---- What belongs to the machine ---- */

/**
 * kvattn_calibrate() - measure how far ahead memory is best asked for here, and do so from now on, in all threads
 *
 * Never needed and never changes a bit; for a machine that is not like those the usual distance was measured on
 * (2048 bytes; 8192 on AMD's: beyond 4096 into the second-level cache).  Takes
 * a second or two of one thread and 64 to 256 MiB meanwhile, on a quiet machine; calls at the same time are right, and
 * disturb it.  Where the environment says KVATTN_AHEAD=bytes (64 to 65536) nothing is measured.
 * Return: the bytes a stream is asked for ahead, also for KVATTN_AHEAD of later processes; -ENOMEM.
 */
KVATTN_API int64_t kvattn_calibrate(void);

/* Results over a part of the keys, as kvattn_attend() gives them: rows are query rows times heads. */
struct kvattn_part {
	const float *out; /* [n_rows][dim_v], dense */
	const float *lse; /* [n_rows] */
};

/**
 * kvattn_merge() - join results over disjoint parts of the keys by their log-sum-exp
 * @parts: @n_parts of them, may be 0; a row with lse = -INFINITY adds nothing
 * @out:   [n_rows][dim_v], dense; may be one of the parts
 * @lse:   [n_rows] or NULL; may be one of the parts
 *
 * out = sum_i exp(lse_i) out_i / sum_i exp(lse_i).  Give sink_logits to the call for one part only, or the sink counts
 * more than once.  Bits depend on the order of the parts.
 * Return: 0; -EINVAL.
 */
KVATTN_API int kvattn_merge(
	const struct kvattn_part *parts, uint64_t n_parts, uint64_t n_rows, uint32_t dim_v, float *out, float *lse);

/**
 * kvattn_alibi_slopes() - the slopes of Press et al. for @n_heads query heads
 * @slopes: [n_heads]: 2^(-8 i / n), i = 1 .. n, n the largest power of two <= n_heads, then every other one of 2 n's
 * Return: 0; -EINVAL no head, or more than KVATTN_HEADS_MAX.
 */
KVATTN_API int kvattn_alibi_slopes(uint32_t n_heads, float *slopes);

#ifdef __cplusplus
}
#endif

#endif
