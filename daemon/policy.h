/*
 * policy.h - which block goes next: least recently used leaves; and of several namespaces, whose memory is worth least
 *
 * The order is the namespace's (KVP_NS_LEARNED): by least recent use, or learned (kvpool_policy.h), which decides while
 * it leads and no store takes what goes: what goes there is not lost, and memory in front of a store is best kept by
 * least recent use.
 *
 * Least recent use is by stamp of the last use; candidates are hot entries without hot children.  A heap per namespace;
 * where nodes without CPUs are a tier of their own, one for each tier, and from the upper one those may go, downwards,
 * whose children are all further down.  The
 * caller refreshes an entry's stamp from the pin tables when it comes up, and puts it back if it was used meanwhile.
 */
#ifndef KVPOOL_POLICY_H
#define KVPOOL_POLICY_H

#include "namespace.h"

/** policy_add() - Return: false: no memory. */
bool policy_add(struct ns *ns, struct entry *e);
void policy_remove(struct ns *ns, struct entry *e);
/** policy_touch() - its stamp changed */
void policy_touch(struct ns *ns, struct entry *e);
/** policy_first() - the candidate unused for longest, of those that lie furthest; NULL: none. Stays in. */
struct entry *policy_first(struct ns *ns);
/** policy_first_near(), policy_first_far() - of those in one tier; a near one may still have children far away */
struct entry *policy_first_near(struct ns *ns);
struct entry *policy_first_far(struct ns *ns);

/** policy_candidate() - the @i-th of all, from 0 on, those unused for longest among the first ones; NULL: past the last */
struct entry *policy_candidate(struct ns *ns, uint32_t i);

/** policy_begin() - a namespace there was not, or of the last daemon: as its header says. Without memory by least
 *  recent use. */
void policy_begin(struct ns *ns);
/** policy_choose() - the other order, from now on. Return: 0; -ENOMEM. */
int policy_choose(struct ns *ns, bool learned);
void policy_end(struct ns *ns);
/** policy_tick() - several times a second: its size, what was hot before it (a piece), its gauges */
void policy_tick(struct ns *ns);
/** policy_request() - a client is about to use this chain, as far as it is there, and to publish the rest. @hint: enum
 *  kvp_hint. */
void policy_request(struct ns *ns, const struct kvp_key *keys, uint32_t n, uint32_t hint);
/** policy_came(), policy_went() - it is hot, or about to be hot no more */
void policy_came(struct entry *e);
void policy_went(struct entry *e);
/** policy_leads() - does the learned order decide? */
bool policy_leads(const struct ns *ns);
/** policy_first_learned() - what goes next by it; NULL: none. Stays in. */
struct entry *policy_first_learned(struct ns *ns);
/** policy_knew() - was the use at @stamp, which a pin table tells, of a request that the learned order was told? */
bool policy_knew(struct ns *ns, const struct entry *e, uint32_t stamp);
/** policy_uses(), policy_chance() - how often it was used, and how likely it is again within @seconds; of a learned
 *  order only */
unsigned policy_uses(struct ns *ns, const struct entry *e);
double policy_chance(struct ns *ns, const struct entry *e, double seconds);
/** policy_defer() - it cannot go now: others come first, in every order */
void policy_defer(struct ns *ns, struct entry *e);

/**
 * policy_learn() - how a namespace is used, over the last minutes (halved each minute)
 * @used, @stored: blocks found and blocks published, counted since ever.  Call it about once a second or more often.
 */
void policy_learn(struct policy_use *use, uint64_t used, uint64_t stored, uint64_t now_ns);

/**
 * policy_worth() - of a byte of the namespace that would go next, to be compared with others'
 * @age: ticks for which its oldest block has been unused
 * @cost: weigh by what computing a byte again costs, as its clients say (only where all that are compared say it)
 *
 * What is used again after so long, if ever, is likely used again in as long: chance of use by age.  The chance is the
 * part of all it handles that was used again; a scanner, which only publishes, has next to none, however young its
 * blocks are.  Never below an eighth, so old memory goes all the same; a quarter while little is known.  Ten seconds
 * are added to each age: what differs by less is not worth moving a slab.
 */
double policy_worth(const struct ns *ns, uint32_t age, bool cost);

#endif
