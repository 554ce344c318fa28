/*
 * policy.h - which block goes next: least recently used leaves
 *
 * The order is by stamp of the last use; candidates are hot entries without hot children.  A heap per namespace; where
 * nodes without CPUs are a tier of their own, one for each tier, and from the upper one those may go, downwards, whose
 * children are all further down.  The
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

#endif
