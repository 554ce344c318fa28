/* reuse.c - see reuse.h */
#include "reuse.h"

#include <stdlib.h>
#include <string.h>

#include "curve.h"

#define STORE_NS 1000000000ull

struct reuse {
	struct curve *curve;
	uint64_t tokens_seen; /* of the namespaces' counters */
	uint64_t store_at_ns;
	struct kvp_key stored; /* last */
};

static uint64_t entry_hash(const struct entry *e)
{
	uint64_t x = e->key.w[0] ^ (e->key.w[1] << 32 | e->key.w[1] >> 32) ^ e->ns->id * 0x9e3779b97f4a7c15ull;

	/* keys are hashes, but nothing makes a client tell the truth (finish of splitmix64) */
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static struct curve_use entry_use(const struct entry *e, uint32_t when)
{
	return (struct curve_use){
		.hash = entry_hash(e), .bytes = e->ns->head->block_stride, .tokens = e->used_tokens, .when = when};
}

static uint64_t tokens_found(const struct daemon *d)
{
	uint64_t tokens = 0;

	for (const struct ns *ns = d->namespaces; ns; ns = ns->next)
		tokens += atomic_load_explicit(&ns->row->counters.tokens_ram, memory_order_relaxed) +
			  atomic_load_explicit(&ns->row->counters.tokens_spill, memory_order_relaxed);
	return tokens;
}

/* What is there was used before, in the order of its stamps; what is only in the store before all of that. */
static void reuse_seed(struct reuse *reuse, struct daemon *d)
{
	uint32_t before = daemon_tick(d) - TICKS_PER_SECOND * CURVE_FORGET_S / 2;

	for (struct ns *ns = d->namespaces; ns; ns = ns->next)
		for (const struct entry *e = ns_entry_next(ns, NULL); e; e = ns_entry_next(ns, e)) {
			bool known = e->slot != NO_SLOT && (int32_t)(daemon_tick(d) - e->stamp) >= 0 && e->stamp;
			struct curve_use use = entry_use(e, known ? e->stamp : before);

			curve_seed(reuse->curve, &use);
		}
	curve_seeded(reuse->curve);
}

int reuse_start(struct daemon *d)
{
	struct reuse *reuse = calloc(1, sizeof(*reuse));

	if (!reuse)
		return -ENOMEM;
	if (curve_open(&reuse->curve, TICKS_PER_SECOND, daemon_tick(d)) < 0) {
		free(reuse);
		return -ENOMEM;
	}
	curve_load(reuse->curve, d->pool.curve);
	reuse_seed(reuse, d);
	reuse->tokens_seen = tokens_found(d);
	d->reuse = reuse;
	return 0;
}

static void reuse_store(const struct reuse *reuse, struct daemon *d)
{
	pool_stats_begin(&d->pool);
	curve_store(reuse->curve, d->pool.curve);
	pool_stats_end(&d->pool);
}

void reuse_stop(struct daemon *d)
{
	if (!d->reuse)
		return;
	if (d->served) {
		curve_flush(d->reuse->curve);
		reuse_store(d->reuse, d);
	}
	curve_close(d->reuse->curve);
	free(d->reuse);
	d->reuse = NULL;
}

void reuse_stored(struct entry *e)
{
	struct reuse *reuse = e->ns->d->reuse;
	struct curve_use use;

	if (!reuse)
		return;
	use = entry_use(e, e->stamp);
	/* a chain is used together, others one after the other */
	if (memcmp(&e->parent_key, &reuse->stored, sizeof(reuse->stored)) != 0)
		curve_flush(reuse->curve);
	reuse->stored = e->key;
	curve_told(reuse->curve, e->used_tokens);
	curve_use(reuse->curve, &use);
}

void reuse_seen(struct entry *e, uint32_t stamp)
{
	struct reuse *reuse = e->ns->d->reuse;
	struct curve_use use;

	if (!reuse)
		return;
	use = entry_use(e, stamp);
	curve_use(reuse->curve, &use);
}

void reuse_tick(struct daemon *d)
{
	struct reuse *reuse = d->reuse;
	uint64_t tokens;

	if (!reuse)
		return;
	curve_flush(reuse->curve);
	tokens = tokens_found(d);
	if (tokens > reuse->tokens_seen) /* less: a namespace has gone */
		curve_told(reuse->curve, (double)(tokens - reuse->tokens_seen));
	reuse->tokens_seen = tokens;
	if (loop_now() < reuse->store_at_ns)
		return;
	reuse->store_at_ns = loop_now() + STORE_NS;
	curve_age(reuse->curve, daemon_tick(d));
	reuse_store(reuse, d);
}
