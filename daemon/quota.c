/* quota.c - see quota.h */
#include "quota.h"

#include <inttypes.h>
#include <stdio.h>

#include "log.h"
#include "tier.h"

/* Slabs on their way to it count as its own. */
static uint64_t quota_ns_bytes(const struct ns *ns)
{
	return (ns->n_slots + ns->n_coming) / ns->head->slots_per_slab * ns->head->slab_bytes;
}

static uint64_t quota_uid_bytes(const struct daemon *d, uint32_t uid)
{
	uint64_t bytes = 0;

	for (const struct ns *ns = d->namespaces; ns; ns = ns->next)
		if (ns->head->owner_uid == uid)
			bytes += quota_ns_bytes(ns);
	return bytes;
}

static bool quota_ns_allows(const struct ns *ns)
{
	uint64_t most = ns->d->config.namespace_max;

	return !most || quota_ns_bytes(ns) + ns->head->slab_bytes <= most;
}

static bool quota_uid_allows(const struct ns *ns, const struct ns *donor)
{
	uint64_t most = ns->d->config.uid_max_memory, more = ns->head->slab_bytes, less = 0;

	if (!most)
		return true;
	if (donor && donor->head->owner_uid == ns->head->owner_uid)
		less = donor->head->slab_bytes; /* it stays with the same uid */
	return quota_uid_bytes(ns->d, ns->head->owner_uid) + more <= most + less;
}

bool quota_allows(const struct ns *ns, const struct ns *donor)
{
	return quota_ns_allows(ns) && quota_uid_allows(ns, donor);
}

bool quota_refusal(const struct ns *ns, char text[256])
{
	const struct config *config = &ns->d->config;

	if (!quota_ns_allows(ns))
		snprintf(text, 256,
			"namespace %s has %" PRIu64 " bytes of memory, all in use, and a slab is %" PRIu64
			": release or publish some, or raise namespace-max (%" PRIu64 ")",
			ns->head->name, quota_ns_bytes(ns), ns->head->slab_bytes, config->namespace_max);
	else if (!quota_uid_allows(ns, NULL))
		snprintf(text, 256,
			"uid %u has %" PRIu64 " bytes of memory, all in use, and a slab of namespace %s is %" PRIu64
			": release or publish some, or raise uid-max-memory (%" PRIu64 ")",
			ns->head->owner_uid, quota_uid_bytes(ns->d, ns->head->owner_uid), ns->head->name,
			ns->head->slab_bytes, config->uid_max_memory);
	else
		return false;
	return true;
}

static bool quota_is_over(const struct ns *ns)
{
	const struct config *config = &ns->d->config;

	return (config->namespace_max && quota_ns_bytes(ns) > config->namespace_max) ||
	       (config->uid_max_memory && quota_uid_bytes(ns->d, ns->head->owner_uid) > config->uid_max_memory);
}

/* Of those that are over: what is begun first, then the one with most. */
void quota_look(struct daemon *d)
{
	struct ns *most = NULL;

	if (!d->config.namespace_max && !d->config.uid_max_memory)
		return;
	for (struct ns *ns = d->namespaces; ns; ns = ns->next) {
		if (!ns->n_slots || (int64_t)(loop_now() - ns->keeps_until_ns) < 0 || !quota_is_over(ns))
			continue;
		if (!most || ns->emptying || (!most->emptying && quota_ns_bytes(ns) > quota_ns_bytes(most)))
			most = ns;
	}
	if (most)
		tier_shrink_ns(most);
}

/* Memory comes in slabs: who may have less than one gets none. */
static void quota_say_least(const struct daemon *d, const char *name, uint64_t bytes)
{
	uint64_t slab = d->pool.header->slab_bytes;

	if (bytes && bytes < slab)
		log_warn("%s = %" PRIu64 " is less than a slab: a namespace of slabs of %" PRIu64
			 " bytes gets no memory; give that at least, or a smaller --slab",
			name, bytes, slab);
}

void quota_stats(struct daemon *d)
{
	quota_say_least(d, "namespace-max", d->config.namespace_max);
	quota_say_least(d, "uid-max-memory", d->config.uid_max_memory);
	gauge_set(&d->pool.stats->counters.namespace_max_bytes, d->config.namespace_max);
	gauge_set(&d->pool.stats->counters.uid_max_bytes, d->config.uid_max_memory);
	gauge_set(&d->pool.stats->counters.namespace_max_spill_bytes, d->config.namespace_max_spill);
	gauge_set(&d->pool.stats->counters.uid_max_spill_bytes, d->config.uid_max_spill);
}
