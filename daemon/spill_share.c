/*
 * spill_share.c - whose the log is: bytes of records, by namespace, in each segment and all together told to who asks
 * for it
 *
 * A record counts from when it has a place until its segment is used anew or nothing lives in it any more, and not only
 * as long as it lives: what was deleted or written again takes its room of the log all the same.  The loop's thread.
 */
#include <errno.h>
#include <stdlib.h>

#include "loop.h"
#include "spill_store.h"

struct share {
	uint64_t ns_id;
	uint64_t bytes;
};

struct shares {
	uint32_t n, room;
	struct share all[];
};

/* The namespace's, made if there is none. Return: NULL: no memory. */
static struct share *share_of(struct segment *segment, uint64_t ns_id)
{
	struct shares *shares = segment->shares;
	uint32_t n = shares ? shares->n : 0;

	/* the one that came last comes again, as a rule */
	for (uint32_t i = n; i-- > 0;)
		if (shares->all[i].ns_id == ns_id)
			return &shares->all[i];
	if (!shares || n == shares->room) {
		uint32_t room = n ? 2 * n : 4;

		shares = realloc(shares, sizeof(*shares) + room * sizeof(shares->all[0]));
		if (!shares)
			return NULL;
		shares->room = room;
		shares->n = n;
		segment->shares = shares;
	}
	shares->all[n] = (struct share){.ns_id = ns_id};
	shares->n = n + 1;
	return &shares->all[n];
}

void share_add(struct spill *spill, uint32_t i, const struct spill_record *record)
{
	struct share *share;
	uint64_t bytes = spill_span(record, spill->file.super.unit);

	if (!spill->opts.charged || spill_is_kills(record))
		return;
	share = share_of(&spill->segments[i], record->ns_id);
	if (!share)
		return; /* uncounted: to its owner's good */
	share->bytes += bytes;
	spill->opts.charged(spill->opts.owner, record->ns_id, (int64_t)bytes);
}

void share_release(struct spill *spill, uint32_t i)
{
	struct shares *shares = spill->segments[i].shares;

	spill->segments[i].shares = NULL;
	for (uint32_t k = 0; shares && k < shares->n; k++)
		spill->opts.charged(spill->opts.owner, shares->all[k].ns_id, -(int64_t)shares->all[k].bytes);
	free(shares);
}

static bool shares_agree(const struct shares *shares, bool (*agrees)(void *owner, uint64_t ns_id), void *owner)
{
	for (uint32_t k = 0; shares && k < shares->n; k++)
		if (!agrees(owner, shares->all[k].ns_id))
			return false;
	return true;
}

bool spill_give_up(struct spill *spill, bool (*agrees)(void *owner, uint64_t ns_id), void *owner)
{
	uint32_t best = SPILL_NO_SEGMENT;

	for (uint32_t i = 0; i < spill->n_present; i++) {
		const struct segment *segment = &spill->segments[i];

		/* one with lists of deleted keys has its own time: see segment_reclaim() */
		if (segment->state != SEGMENT_FULL || !segment->n_live || segment->n_kills || segment->n_readers ||
			segment->n_writers)
			continue;
		if ((best == SPILL_NO_SEGMENT || segment->sequence < spill->segments[best].sequence) &&
			shares_agree(segment->shares, agrees, owner))
			best = i;
	}
	if (best == SPILL_NO_SEGMENT)
		return false;
	spill->stats.reclaimed += spill->segments[best].n_live;
	segment_drop_all(spill, best, true);
	return true;
}
