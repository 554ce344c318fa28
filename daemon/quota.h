/*
 * quota.h - how much of the pool's memory one namespace may have, and one uid with all of its namespaces
 *
 * Counted in slabs, and asked before a namespace gets one.  At its quota a namespace makes room among its own blocks,
 * so its uid harms nobody but itself; only where all of those are in use is a RESERVE refused, with the limit named.
 * Over a quota that was lowered, or that the last daemon did not have, slabs leave one at a time, as from a pool that
 * shrinks.
 */
#ifndef KVPOOL_QUOTA_H
#define KVPOOL_QUOTA_H

#include "namespace.h"

/** quota_allows() - may the namespace have one more slab? @donor: it comes from this one; NULL: of spare memory. */
bool quota_allows(const struct ns *ns, const struct ns *donor);

/** quota_refusal() - which limit keeps the namespace from a slab, for a human. Return: false: none does. */
bool quota_refusal(const struct ns *ns, char text[256]);

/** quota_look() - a few times a second: who has more than it may gives one slab */
void quota_look(struct daemon *d);

/** quota_stats() - at the start and after a reload: the limits as they are shown */
void quota_stats(struct daemon *d);

#endif
