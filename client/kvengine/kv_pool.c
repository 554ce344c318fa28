/*
 * kv_pool.c - K and V in the host's pool: a libkvpool sequence behind the interface of kv.h
 *
 * Without a daemon libkvpool itself gives private memory of the same shape, so nothing here asks whether there is one.
 */
#include "kv.h"

#include <errno.h>
#include <kvpool.h>
#include <stdlib.h>
#include <string.h>

/* Longest wait for blocks that come back from the spill store; what is not there by then is computed. */
#define MATCH_WAIT_MS 2000
#define SELECT_WAIT_MS 10000 /* and for those that were there and are attended now */

struct kv_pool {
	struct kv_store store;
	struct kvp_client *client;
	struct kvp_ns *ns, *summaries;
	struct kvp_seq *seq;
};

static const struct kvp_kernels kernels = KVP_KERNELS_OF_KVATTN;

static struct kv_pool *pool_of(struct kv_store *store)
{
	return (struct kv_pool *)store;
}

static int pool_error(const struct kv_pool *p, struct error *error, int64_t r, const char *what)
{
	return error_set(error, (int)r, "%s: %s", what, kvp_error(p->client));
}

static int64_t pool_match(struct kv_store *store, const uint32_t *ids, uint64_t n, struct error *error)
{
	struct kv_pool *p = pool_of(store);
	const int64_t r = kvp_seq_match(p->seq, ids, n, kvp_deadline_ms(MATCH_WAIT_MS));

	return r < 0 ? pool_error(p, error, r, "the prompt cannot be looked up") : r;
}

static int64_t pool_append(struct kv_store *store, const uint32_t *ids, uint64_t n, struct error *error)
{
	struct kv_pool *p = pool_of(store);
	const int64_t r = kvp_seq_append(p->seq, ids, n);

	return r < 0 ? pool_error(p, error, r, "no room for K and V") : r;
}

static void *pool_block(struct kv_store *store, uint64_t pos, uint32_t *index)
{
	return kvp_seq_block(pool_of(store)->seq, pos, index);
}

static int pool_table(struct kv_store *store, struct kvattn_table *table)
{
	return kvp_seq_table(pool_of(store)->seq, table);
}

static const int16_t *pool_nodes(const struct kv_store *store)
{
	return kvp_seq_nodes(((const struct kv_pool *)store)->seq);
}

static int64_t pool_commit(struct kv_store *store, uint64_t n, struct error *error)
{
	struct kv_pool *p = pool_of(store);
	const int64_t r = kvp_seq_commit(p->seq, n);

	return r < 0 ? pool_error(p, error, r, "blocks cannot be published") : r;
}

static void pool_counts(const struct kv_store *store, struct kv_counts *counts)
{
	const struct kv_pool *p = (const struct kv_pool *)store;
	struct kvp_seq_stats stats = {.size = sizeof(stats)};

	*counts = (struct kv_counts){0};
	if (kvp_seq_stats(p->seq, &stats) < 0)
		return;
	counts->reused_ram = stats.reused_ram;
	counts->reused_spill = stats.reused_spill;
	counts->copied_bytes = stats.copied_bytes;
	counts->lost = stats.lost;
	counts->restored = stats.restored;
}

static int64_t pool_summaries(const struct kv_store *store, uint32_t layer, const float **summaries)
{
	return kvp_seq_summaries(((const struct kv_pool *)store)->seq, layer, summaries);
}

static int pool_select(
	struct kv_store *store, const uint64_t *blocks, uint64_t n, struct kvattn_table *table, struct error *error)
{
	struct kv_pool *p = pool_of(store);
	const int64_t r = kvp_seq_select(p->seq, blocks, n, kvp_deadline_ms(SELECT_WAIT_MS), table);

	/* as if it had been taken away while in use: what follows cannot be computed from it */
	if (r == -KVP_ETIMEDOUT)
		return pool_error(p, error, -ESTALE, "a block is waited for too long");
	return r < 0 ? pool_error(p, error, r, "selected blocks cannot be had") : 0;
}

static int pool_compact(struct kv_store *store, const uint64_t *tokens, uint64_t n, struct error *error)
{
	struct kv_pool *p = pool_of(store);
	const struct kvp_keep keep = {.size = sizeof(keep),
		.label = "kvengine/1",
		.n_label = 10,
		.tokens = tokens,
		.n = n,
		.kernels = &kernels};
	struct kvp_seq *kept;
	const int r = kvp_compact(p->seq, &keep, &kept);

	if (r < 0)
		return pool_error(p, error, r, "the kept tokens cannot be put together");
	if (kvp_seq_close(p->seq) > 0) {
		p->seq = kept;
		return error_set(error, -ESTALE, "blocks were taken away while they were read");
	}
	p->seq = kept;
	return 0;
}

static void pool_close(struct kv_store *store)
{
	struct kv_pool *p = pool_of(store);

	if (p->seq)
		kvp_seq_close(p->seq);
	if (p->summaries)
		kvp_ns_close(p->summaries);
	if (p->ns)
		kvp_ns_close(p->ns);
	if (p->client)
		kvp_close(p->client);
	free(p);
}

static const struct kv_ops pool_ops = {
	.match = pool_match,
	.append = pool_append,
	.block = pool_block,
	.table = pool_table,
	.nodes = pool_nodes,
	.commit = pool_commit,
	.summaries = pool_summaries,
	.select = pool_select,
	.compact = pool_compact,
	.counts = pool_counts,
	.close = pool_close,
};

/* All that the bytes of a block depend on: another model, type or block size is another namespace. */
static void desc_fill(
	const struct model *m, const struct kv_opts *opts, const uint8_t *tokenizer, struct kvp_desc *desc)
{
	kvp_desc_init(desc, kv_layout(opts), opts->block_tokens, m->n_layers, m->n_kv_heads, m->head_dim, opts->type);
	desc->type_v = kv_type_v(opts);
	desc->rope_pairing = KVP_ROPE_ADJACENT;
	desc->rope_base = (double)m->rope_base;
	memcpy(desc->model, m->fingerprint, sizeof(desc->model));
	memcpy(desc->tokenizer, tokenizer, sizeof(desc->tokenizer));
}

static int summaries_open(struct kv_pool *p, const struct kvp_desc *of, const char *name)
{
	struct kvp_desc desc;
	const struct kvp_ns_opts ns = {.size = sizeof(ns), .name = name, .owner_uid = KVP_UID_SELF, .desc = &desc};
	const int r = kvp_desc_summaries(of, &desc);

	return r < 0 ? r : kvp_ns_open(p->client, &ns, &p->summaries);
}

static int sequence_open(struct kv_pool *p, const struct model *model, const struct kv_opts *opts,
	const struct kv_pool_opts *pool, struct error *error)
{
	/* what a layer stores depends on what the layers below attended to: not the bytes of full attention's key */
	struct kvp_seq_opts seq = {.size = sizeof(seq),
		.extra = opts->label,
		.n_extra = opts->label ? (uint32_t)strlen(opts->label) : 0,
		.window = opts->window,
		.sinks = opts->sinks};
	struct kvp_ns_opts ns = {.size = sizeof(ns), .name = pool->name, .owner_uid = KVP_UID_SELF};
	struct kvp_desc desc;
	int r;

	desc_fill(model, opts, pool->tokenizer, &desc);
	ns.desc = &desc;
	r = kvp_ns_open(p->client, &ns, &p->ns);
	if (r < 0)
		return pool_error(p, error, r, "the namespace cannot be opened");
	for (uint32_t l = 0; r == 0 && l < model->n_layers; l++)
		r = kvp_attn_geom(p->ns, l, &p->store.geom[l]);
	if (r == 0 && opts->summaries) {
		r = summaries_open(p, &desc, pool->name);
		seq.summaries = p->summaries;
		seq.kernels = &kernels;
		seq.resident_blocks = opts->resident_blocks;
	}
	if (r == 0)
		r = kvp_seq_open(p->ns, &seq, &p->seq);
	return r < 0 ? pool_error(p, error, r, "a sequence cannot be opened") : 0;
}

int kv_pool_open(const struct model *model, const struct kv_opts *opts, const struct kv_pool_opts *pool,
	struct kv_store **store, struct error *error)
{
	const struct kvp_open_opts open = {.size = sizeof(open),
		.socket = pool->socket,
		.comm = "kvengine",
		.flags = pool->offline ? KVP_OPEN_OFFLINE : 0};
	struct kv_pool *p = calloc(1, sizeof(*p));
	int r;

	*store = NULL;
	if (!p)
		return error_set(error, -ENOMEM, "not enough memory for a sequence");
	p->store.ops = &pool_ops;
	p->store.n_layers = model->n_layers;
	r = kvp_open(&open, &p->client);
	if (r < 0)
		error_set(error, r, "the pool's client cannot be opened: %s", strerror(-r));
	else
		r = sequence_open(p, model, opts, pool, error);
	if (r < 0) {
		pool_close(&p->store);
		return r;
	}
	*store = &p->store;
	return 0;
}
