/*
 * kernel.h - what a kernel is: one task of attention, done by one instruction set
 *
 * Inside libkvattn only.  A task is a few query rows of one KV head's group over one span of keys; dispatch.c cuts calls
 * into tasks and merges spans in fixed order, so every kernel keeps the promise of kvattn.h if it treats rows alike.
 */
#ifndef KVATTN_KERNEL_H
#define KVATTN_KERNEL_H

#include "kvattn.h"

/* Keys of a table, [begin, end) by their number in it, for one query row. */
struct kernel_row {
	const float *q; /* n_heads rows of dim_k, head_stride dim_k apart */
	int64_t pos; /* of the query */
	float *acc; /* [n_heads][dim_v]: sum of e^(z - max) v */
	float *max; /* [n_heads]: -infinity: nothing seen */
	float *sum; /* [n_heads]: sum of e^(z - max) */
};
struct kernel_task {
	const struct kvattn_geom *geom;
	const struct kvattn_table *table;
	const struct kvattn_opts *opts;
	float scale;
	uint32_t kv_head, first_head, n_heads; /* query heads of this KV head */
	uint64_t begin, end;
};

struct kernel {
	const char *name;
	/* adds the keys of the task to the row's state */
	void (*attend)(const struct kernel_task *task, const struct kernel_row *row);
};
extern const struct kernel kernel_scalar;

/* half.c: exact widening, rounding to nearest even */
float half_to_float(uint16_t h);
uint16_t half_from_float(float f);
float bf16_to_float(uint16_t b);
uint16_t bf16_from_float(float f);

static inline uint32_t type_bytes(uint32_t type)
{
	return type == KVATTN_F32 ? 4 : type == KVATTN_F16 || type == KVATTN_BF16 ? 2 : 0;
}
static inline uint64_t table_pos(const struct kvattn_table *table, uint32_t block_tokens, uint64_t block)
{
	return table->block_pos ? table->block_pos[block] : block * block_tokens;
}

#endif
