/*
 * plan.h - arithmetic of a model's KV: what a block is, what a pool holds, what a step costs.  No pool is needed.
 */
#ifndef KVCTL_PLAN_H
#define KVCTL_PLAN_H

#include <stdint.h>

struct plan_input {
	uint64_t layers, kv_heads, dim_k, dim_v, block_tokens;
	uint64_t layout; /* KVP_LAYOUT_TILED; 0: rows, as HND and NHD, or an engine's own with scale_bytes */
	uint64_t type_k, type_v; /* enum kvp_type */
	uint64_t scale_bytes; /* for each token and head of K and of V */
	uint64_t pool_bytes, slab_bytes, spill_bytes;
	uint64_t spill_sector; /* what a header is rounded up to */
	uint64_t context;
	uint64_t heads; /* query heads */
	uint64_t params; /* 0: no arithmetic of a step */
	uint64_t weight_bytes;
};

struct plan_tier {
	uint64_t blocks, tokens, contexts;
};

struct plan_step {
	double flops, bytes;
};

struct plan {
	uint64_t token_bytes; /* nominal: no padding */
	uint64_t block_bytes; /* tensors aligned to 64 */
	uint64_t block_stride; /* rounded up to 4096 */
	uint64_t context_blocks, context_bytes;
	uint64_t slab_bytes, slots_per_slab;
	struct plan_tier dram, spill;
	struct plan_step cached, uncached; /* the step that makes the last token of a context */
};

void plan_make(const struct plan_input *in, struct plan *plan);

#endif
