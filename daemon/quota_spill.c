/* quota_spill.c - see quota_spill.h */
#include "quota_spill.h"

#include <stdlib.h>

#include "spill_set.h"
#include "tier_parts.h"

#define REFUSED_NS 1000000000ull /* a write refused so long ago is no reason to give anything up */

/* Of one namespace, or one that has ended: the uid pays for that one until the log has left it behind. */
struct quota_share {
	uint64_t ns_id;
	uint32_t uid;
	bool known; /* whose it is */
	uint64_t bytes;
	uint64_t refused_ns; /* when it, or its uid, was at its quota last */
};

static struct quota_share *share_find(struct tier *tier, uint64_t ns_id)
{
	for (uint32_t i = 0; i < tier->n_shares; i++)
		if (tier->shares[i].ns_id == ns_id)
			return &tier->shares[i];
	return NULL;
}

static struct quota_share *share_new(struct tier *tier, uint64_t ns_id)
{
	const struct ns *ns = ns_find(tier->d, ns_id);
	struct quota_share *shares = tier->shares;

	if (tier->n_shares % 16 == 0) {
		shares = realloc(shares, (tier->n_shares + 16) * sizeof(*shares));
		if (!shares)
			return NULL;
		tier->shares = shares;
	}
	shares[tier->n_shares] =
		(struct quota_share){.ns_id = ns_id, .known = ns != NULL, .uid = ns ? ns->head->owner_uid : 0};
	return &shares[tier->n_shares++];
}

void quota_spill_charged(void *owner, uint64_t ns_id, int64_t bytes)
{
	struct daemon *d = owner;
	struct tier *tier = d->tier;
	struct quota_share *share = share_find(tier, ns_id);
	struct ns *ns;

	if (!share && (bytes < 0 || !(share = share_new(tier, ns_id))))
		return;
	share->bytes = bytes < 0 && share->bytes < (uint64_t)-bytes ? 0 : share->bytes + (uint64_t)bytes;
	ns = ns_find(d, ns_id);
	if (ns && !d->stopping)
		gauge_set(&ns->row->counters.spill_log_bytes, share->bytes);
	if (!share->bytes)
		*share = tier->shares[--tier->n_shares];
}

static uint64_t share_of_uid(const struct tier *tier, uint32_t uid)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < tier->n_shares; i++)
		if (tier->shares[i].known && tier->shares[i].uid == uid)
			bytes += tier->shares[i].bytes;
	return bytes;
}

/* Those of the uid, or (@ns_id) one alone. */
static void share_refused(struct tier *tier, const struct ns *ns, uint64_t ns_id)
{
	for (uint32_t i = 0; i < tier->n_shares; i++) {
		struct quota_share *share = &tier->shares[i];

		if (share->known && share->uid == ns->head->owner_uid && (!ns_id || share->ns_id == ns_id))
			share->refused_ns = loop_now();
	}
	tier->share_refused = true;
}

bool quota_spill_allows(struct ns *ns, uint64_t bytes)
{
	const struct config *config = &ns->d->config;
	struct tier *tier = ns->d->tier;
	uint64_t span = SPILL_PAGE + spill_pages(bytes); /* a header has a page at most */
	const struct quota_share *share = config->namespace_max_spill ? share_find(tier, ns->id) : NULL;

	if (config->namespace_max_spill && (share ? share->bytes : 0) + span > config->namespace_max_spill)
		share_refused(tier, ns, ns->id);
	else if (config->uid_max_spill && share_of_uid(tier, ns->head->owner_uid) + span > config->uid_max_spill)
		share_refused(tier, ns, 0);
	else
		return true;
	gauge_add(&ns->d->pool.stats->counters.spill_over_quota, 1);
	gauge_add(&ns->row->counters.spill_over_quota, 1);
	return false;
}

/* Nobody's blocks are found by nobody. */
static bool share_agrees(void *owner, uint64_t ns_id)
{
	const struct quota_share *share = share_find(owner, ns_id);

	return !share || !share->known || (share->refused_ns && loop_now() - share->refused_ns < REFUSED_NS);
}

/* One a tick: what is given up is written again only as fast as blocks come. */
void quota_spill_tick(struct daemon *d)
{
	struct tier *tier = d->tier;

	if (!tier->share_refused)
		return;
	tier->share_refused = false;
	spill_set_give_up(tier->spill, share_agrees, tier);
}
