/*
 * kv_private.c - K and V in this process's own memory, in blocks of the pool's shape: what an engine without a pool has
 *
 * The same attention runs over the same kind of table, so that a run without the pool gives the same bits.
 */
#include "kv.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* As in the pool: a block begins at a page. */
#define BLOCK_ALIGN 4096

struct kv_private {
	struct kv_store store;
	uint64_t block_bytes;
	uint32_t block_tokens;
	uint64_t n_tokens;
	void **blocks; /* n_blocks that are allocated, room for max_blocks */
	uint64_t n_blocks, max_blocks;
};

static struct kv_private *private_of(struct kv_store *store)
{
	return (struct kv_private *)store;
}

static int64_t private_match(struct kv_store *store, const uint32_t *ids, uint64_t n, struct error *error)
{
	(void)store, (void)ids, (void)n, (void)error;
	return 0;
}

static int64_t private_append(struct kv_store *store, const uint32_t *ids, uint64_t n, struct error *error)
{
	struct kv_private *p = private_of(store);
	const uint64_t blocks = (p->n_tokens + n + p->block_tokens - 1) / p->block_tokens;

	(void)ids;
	if (blocks > p->max_blocks)
		return error_set(
			error, -ENOSPC, "the model's context is full at %llu tokens", (unsigned long long)p->n_tokens);
	for (; p->n_blocks < blocks; p->n_blocks++) {
		p->blocks[p->n_blocks] = aligned_alloc(BLOCK_ALIGN, p->block_bytes);
		if (!p->blocks[p->n_blocks])
			return error_set(error, -ENOMEM, "no memory for a block of %llu bytes",
				(unsigned long long)p->block_bytes);
	}
	p->n_tokens += n;
	return (int64_t)p->n_tokens;
}

static void *private_block(struct kv_store *store, uint64_t pos, uint32_t *index)
{
	const struct kv_private *p = private_of(store);

	*index = (uint32_t)(pos % p->block_tokens);
	return pos < p->n_tokens ? p->blocks[pos / p->block_tokens] : NULL;
}

static int private_table(struct kv_store *store, struct kvattn_table *table)
{
	const struct kv_private *p = private_of(store);

	*table = (struct kvattn_table){
		.blocks = (const void *const *)p->blocks,
		.n_blocks = (p->n_tokens + p->block_tokens - 1) / p->block_tokens,
		.n_tokens = p->n_tokens,
	};
	return 0;
}

static int64_t private_commit(struct kv_store *store, uint64_t n, struct error *error)
{
	(void)store, (void)n, (void)error;
	return 0;
}

static void private_restart(struct kv_store *store)
{
	private_of(store)->n_tokens = 0;
}

static void private_counts(const struct kv_store *store, struct kv_counts *counts)
{
	(void)store;
	*counts = (struct kv_counts){0};
}

static void private_free(struct kv_private *p)
{
	for (uint64_t i = 0; i < p->n_blocks; i++)
		free(p->blocks[i]);
	free(p->blocks);
	free(p);
}

static void private_close(struct kv_store *store)
{
	private_free(private_of(store));
}

static const struct kv_ops private_ops = {
	.match = private_match,
	.append = private_append,
	.block = private_block,
	.table = private_table,
	.commit = private_commit,
	.restart = private_restart,
	.counts = private_counts,
	.close = private_close,
};

/* The layers' places in a block, and its length. */
static int shape_fill(struct kv_private *p, const struct model *model, const struct kv_opts *opts)
{
	const struct kvattn_shape shape = {
		.n_layers = model->n_layers,
		.n_kv_heads = model->n_kv_heads,
		.dim_k = model->head_dim,
		.dim_v = model->head_dim,
		.type_k = opts->type,
		.type_v = kv_type_v(opts),
		.block_tokens = opts->block_tokens,
	};
	const bool tiled = kv_layout(opts) == KVP_LAYOUT_TILED;
	int (*init)(struct kvattn_geom *, const struct kvattn_shape *, uint32_t) = tiled ? kvattn_geom_init_tiled
										   : kv_layout(opts) == KVP_LAYOUT_HND
											   ? kvattn_geom_init_hnd
											   : kvattn_geom_init_nhd;
	uint64_t bytes = tiled ? kvattn_block_bytes_tiled(&shape) : kvattn_block_bytes(&shape);
	int r = 0;

	for (uint32_t l = 0; r == 0 && l < model->n_layers; l++)
		r = init(&p->store.geom[l], &shape, l);
	p->block_bytes = (bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
	return r;
}

int kv_private_open(const struct model *model, const struct kv_opts *opts, struct kv_store **store, struct error *error)
{
	struct kv_private *p = calloc(1, sizeof(*p));
	int r;

	*store = NULL;
	if (!p)
		return error_set(error, -ENOMEM, "not enough memory for a sequence");
	p->store.ops = &private_ops;
	p->store.n_layers = model->n_layers;
	r = shape_fill(p, model, opts);
	if (r < 0) {
		private_free(p);
		return error_set(error, r, "libkvattn does not take blocks of %u tokens, %u heads of %u numbers: %s",
			opts->block_tokens, model->n_kv_heads, model->head_dim, strerror(-r));
	}
	p->block_tokens = opts->block_tokens;
	p->max_blocks = ((uint64_t)model->context + opts->block_tokens - 1) / opts->block_tokens;
	p->blocks = calloc(p->max_blocks, sizeof(*p->blocks));
	if (!p->blocks) {
		r = error_set(error, -ENOMEM, "not enough memory for a table of %llu blocks",
			(unsigned long long)p->max_blocks);
		private_free(p);
		return r;
	}
	*store = &p->store;
	return 0;
}
