/* cold.c - see cold.h */
#include "cold.h"

#include "kvpool_derived.h"
#include "policy.h"
#include "session.h"

#define COLD_LOOKS 256 /* in one call: some hundred us */
#define COLD_DEPTH 16384 /* blocks of a chain; what ends deeper is passed over */

struct ns *cold_from(const struct ns *to)
{
	const struct kvp_ns_header *head = to->head;
	struct kvp_desc made;

	if (!(head->flags & KVP_NS_COLD) || to->base || to->clear)
		return NULL;
	for (struct ns *from = to->d->namespaces; from; from = from->next)
		if (from != to && from->head->owner_uid == head->owner_uid && !strcmp(from->head->name, head->name) &&
			from->head->desc.layout != KVP_LAYOUT_OPAQUE && !from->base && !from->clear &&
			kvp_desc_of_types(&from->head->desc, head->desc.type_k, head->desc.type_v, &made) &&
			!kvp_desc_diff(&made, &head->desc))
			return from;
	return NULL;
}

struct ns *cold_next(const struct session *session, uint64_t after)
{
	struct ns *next = NULL;

	for (struct ns *to = session->d->namespaces; to; to = to->next) {
		const struct ns *from;

		if (to->id <= after || (next && to->id > next->id) || !ns_may_write(to, session))
			continue;
		from = cold_from(to);
		if (from && ns_may_read(from, session))
			next = to;
	}
	return next;
}

static struct entry *cold_made(struct ns *to, const struct entry *e, struct kvp_key *key)
{
	kvp_key_of_derived(to->head->secret, to->head->desc.engine, &e->key, key);
	return ns_entry(to, key);
}

static bool is_long_ago(const struct daemon *d, uint32_t stamp, uint32_t idle_ms)
{
	return (int64_t)(int32_t)(daemon_tick(d) - stamp) * KVP_TICK_MS >= idle_ms;
}

static bool cold_is_idle(const struct ns *from, const struct entry *e, uint32_t idle_ms)
{
	uint32_t stamp = e->stamp, width = from->head->slots_per_slab;

	if (e->slot == NO_SLOT || e->doomed || !is_long_ago(from->d, stamp, idle_ms))
		return false;
	return !session_pins(from->d, (uint32_t)(e->slot / width), (uint32_t)(e->slot % width), &stamp) &&
	       is_long_ago(from->d, stamp, idle_ms);
}

/* Of the chain that ends in @leaf, from its first block that is not in @to.  What is there is a beginning of it, for it
   was put there from its first block on, and went from its last: so that one is found by halves. */
static uint32_t cold_piece(
	struct ns *to, struct entry *leaf, struct kvp_key *parent, struct kvp_key *keys, uint32_t max)
{
	static const struct entry *chain[COLD_DEPTH];
	uint32_t depth = 0, low = 0, high, n;
	struct kvp_key key;

	for (struct entry *e = leaf; e; e = e->parent) {
		if (depth == COLD_DEPTH || e->slot == NO_SLOT || (!e->parent && !kvp_key_is_none(&e->parent_key)))
			return 0;
		chain[depth++] = e;
	}
	high = depth - 1; /* blocks above the leaf, which is not there */
	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (cold_made(to, chain[depth - 1 - middle], &key))
			low = middle + 1;
		else
			high = middle;
	}
	*parent = low ? chain[depth - low]->key : (struct kvp_key){{0, 0}};
	for (n = 0; n < max && low + n < depth; n++)
		keys[n] = chain[depth - 1 - low - n]->key;
	return n;
}

static bool somebody_waits(const struct daemon *d)
{
	for (const struct ns *ns = d->namespaces; ns; ns = ns->next)
		if (ns->waits)
			return true;
	return false;
}

uint32_t cold_find(
	struct ns *to, uint32_t idle_ms, struct kvp_key *parent, struct kvp_key *keys, uint32_t max, bool *more)
{
	struct ns *from = somebody_waits(to->d) ? NULL : cold_from(to);

	*more = false;
	for (unsigned looks = 0; from && looks < COLD_LOOKS; looks++) {
		struct entry *e = policy_candidate(from, to->cold_at);
		struct kvp_key key;
		uint32_t n;

		if (!e && !to->cold_at)
			return 0;
		if (!e) {
			to->cold_at = 0;
			return 0; /* once round: who asks has the others first */
		}
		/* what was in it and went was not wanted: it would go round for ever */
		n = cold_is_idle(from, e, idle_ms) && !cold_made(to, e, &key) &&
				    ns_miss_reason(to, &key) != KVP_MISS_EVICTED
			    ? cold_piece(to, e, parent, keys, max)
			    : 0;
		if (!n || kvp_key_same(&keys[n - 1], &e->key)) /* else the chain's next piece is asked for next */
			to->cold_at++;
		if (n)
			return n;
	}
	*more = from != NULL;
	return 0;
}
