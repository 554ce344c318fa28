/*
 * kv.h - where an engine keeps K and V: its own memory (kv_private.c) or the host's pool (kv_pool.c)
 *
 * A store holds one sequence of tokens in blocks that libkvattn reads in place.  Order of calls:
 *
 *	match once -> { append, put K and V of every layer, attend over the table, commit } ... -> close
 *
 * One thread.  Errors are negative errno with the sentence in @error where there is one.
 */
#ifndef KVENGINE_KV_H
#define KVENGINE_KV_H

#include <stdbool.h>
#include <stdint.h>

#include <kvattn.h>
#include <kvpool.h>

#include "error.h"
#include "model.h"

struct kv_counts {
	uint64_t reused_ram, reused_spill; /* tokens found by match */
	uint64_t copied_bytes; /* block bytes copied by the store itself */
	uint64_t lost; /* blocks lost while in use: what was computed from them is void */
	uint64_t restored; /* blocks that came back from the spill store to be attended */
};

struct kv_store;

struct kv_ops {
	/* how many leading tokens of @ids are there already: a multiple of the block size less than @n */
	int64_t (*match)(struct kv_store *store, const uint32_t *ids, uint64_t n, struct error *error);
	/* room for @n more tokens; returns the new length */
	int64_t (*append)(struct kv_store *store, const uint32_t *ids, uint64_t n, struct error *error);
	/* writable base of the block that holds token @pos, and the token's place in it; NULL: not writable */
	void *(*block)(struct kv_store *store, uint64_t pos, uint32_t *index);
	/* valid until the next append or restart */
	int (*table)(struct kv_store *store, struct kvattn_table *table);
	/* of each block of the table given last, the NUMA node; NULL: this store cannot tell */
	const int16_t *(*nodes)(const struct kv_store *store);
	/* all layers of the tokens before @n are stored */
	int64_t (*commit)(struct kv_store *store, uint64_t n, struct error *error);
	/* of a layer, one for each full committed block; returns their number. NULL, as are the next two: this store
	   cannot */
	int64_t (*summaries)(const struct kv_store *store, uint32_t layer, const float **summaries);
	/* have these blocks at hand, a table of them; valid until the next call but summaries */
	int (*select)(struct kv_store *store, const uint64_t *blocks, uint64_t n, struct kvattn_table *table,
		struct error *error);
	/* keep these tokens only; they are counted from 0 then */
	int (*compact)(struct kv_store *store, const uint64_t *tokens, uint64_t n, struct error *error);
	/* forget all tokens, keep the memory; NULL: this store cannot */
	void (*restart)(struct kv_store *store);
	void (*counts)(const struct kv_store *store, struct kv_counts *counts);
	void (*close)(struct kv_store *store);
};

struct kv_store {
	const struct kv_ops *ops;
	uint32_t n_layers;
	struct kvattn_geom geom[MODEL_LAYERS_MAX]; /* by layer */
};

struct kv_opts {
	uint32_t layout; /* enum kvp_layout; 0: TILED, the fastest */
	uint32_t type; /* enum kvattn_type of the stored K and V */
	uint32_t type_v; /* of V, if not that of K; else 0 */
	uint32_t block_tokens;
	/* of the pool's store only */
	bool summaries; /* for select */
	uint32_t resident_blocks; /* with summaries: blocks held at most; 0: all */
	uint32_t window, sinks; /* tokens; blocks before are let go */
	const char
		*label; /* K and V are of attention to a part of the keys, this one: found under it only. NULL: exact */
};

struct kv_pool_opts {
	const char *socket; /* NULL: KVPOOL_SOCKET, else the default */
	const char *name; /* of the namespace */
	const uint8_t *tokenizer; /* 32 bytes: its fingerprint */
	bool offline; /* private memory, whether there is a daemon or not */
};

static inline uint32_t kv_layout(const struct kv_opts *opts)
{
	return opts->layout ? opts->layout : KVP_LAYOUT_TILED;
}
static inline uint32_t kv_type_v(const struct kv_opts *opts)
{
	return opts->type_v ? opts->type_v : opts->type;
}

/** kv_private_open() - a store in this process's memory. Return: 0; -EINVAL; -ENOMEM. */
int kv_private_open(
	const struct model *model, const struct kv_opts *opts, struct kv_store **store, struct error *error);

/** kv_pool_open() - a store in the pool; without a daemon it works from private memory and finds nothing.
 *  Return: 0; negative errno: the namespace cannot be opened. */
int kv_pool_open(const struct model *model, const struct kv_opts *opts, const struct kv_pool_opts *pool,
	struct kv_store **store, struct error *error);

/** kv_close() - let go of all; NULL is passed over */
static inline void kv_close(struct kv_store *store)
{
	if (store)
		store->ops->close(store);
}

#endif
