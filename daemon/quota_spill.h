/*
 * quota_spill.h - how much of the spill stores one namespace may have, and one uid with all of its namespaces
 *
 * Counted in bytes of the log, headers included, from the write until the segment is used anew: what was deleted or
 * written again takes its room all the same, or a uid that writes and deletes for ever would push out what others have.
 * Beyond its quota nothing of a namespace is written; for what is refused its own oldest segments make room, those in
 * which nobody has anything who was not refused too.  Over a quota that was lowered nothing is written until it has
 * become less.
 */
#ifndef KVPOOL_QUOTA_SPILL_H
#define KVPOOL_QUOTA_SPILL_H

#include "namespace.h"

/** quota_spill_charged() - for struct spill_opts: so much more, or less, of the stores' logs is the namespace's */
void quota_spill_charged(void *owner, uint64_t ns_id, int64_t bytes);
/** quota_spill_allows() - may a block of @bytes be written? If not, it is counted, and room is made for those that come
 *  later. */
bool quota_spill_allows(struct ns *ns, uint64_t bytes);
/** quota_spill_tick() - who was refused gives up a segment */
void quota_spill_tick(struct daemon *d);

#endif
