/*
 * policy.h - which block goes next: least recently used leaves
 *
 * The order is by stamp of the last use; candidates are hot entries without hot children.  A heap per namespace.  The
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
/** policy_first() - the candidate unused for longest, NULL: none. Stays in. */
struct entry *policy_first(struct ns *ns);

#endif
