/*
 * forward.h - one forward pass: rows of tokens through the model, attention left to the caller
 *
 * The pass knows nothing of where K and V live.  For each layer it hands the new rows to "store" and asks "attend" for
 * the result over all positions up to each row's own.  What it gives for a row depends on the token ids before it
 * alone, bit for bit, not on how the ids were cut into calls (see rowmath.h), provided "attend" keeps the same promise.
 *
 * One thread at a time; several struct forward may share a model.
 */
#ifndef KVENGINE_FORWARD_H
#define KVENGINE_FORWARD_H

#include <stdint.h>

#include "model.h"

/* Both return 0 or a negative errno, which ends the pass and is passed on as it is.  Rows are @stride floats apart. */
struct forward_attention {
	/* K (rotated) and V of positions first .. first + n - 1: rows of [kv_heads][head_dim] */
	int (*store)(void *context, uint32_t layer, uint64_t first, uint32_t n, const float *k, const float *v,
		size_t stride);
	/* causal attention of the same positions' queries (rotated, unscaled): rows of [heads][head_dim], out alike */
	int (*attend)(
		void *context, uint32_t layer, uint64_t first, uint32_t n, const float *q, float *out, size_t stride);
	void *context;
};

struct forward {
	const struct model *model;
	uint32_t max_rows;
	uint32_t logits_stride; /* floats from one row of logits to the next */
	float *cosine, *sine; /* [context][head_dim / 2] */
	float *x, *h, *q, *k, *v, *gate, *up, *logits; /* [max_rows][padded size] */
};

/** forward_init() - @max_rows: the longest chunk. Return: 0; -ENOMEM. */
int forward_init(struct forward *forward, const struct model *model, uint32_t max_rows);
/** forward_deinit() - may run twice */
void forward_deinit(struct forward *forward);

/**
 * forward_run() - tokens @ids at positions @first .. @first + n - 1
 * @n: 1 .. max_rows; @n_logits: of how many of the last rows logits are wanted, 0 .. n; they are then in
 * forward->logits, n_logits rows
 * Return: 0; -EINVAL a bad id, position or count; what "store" or "attend" returned.
 */
int forward_run(struct forward *forward, const uint32_t *ids, uint32_t n, uint64_t first, uint32_t n_logits,
	const struct forward_attention *attention);

#endif
