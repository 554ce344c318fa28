/*
 * spill_segment.c - segments: which is written, which comes next, what lives in them
 *
 * See the drawing at enum segment_state.  The loop's thread.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "loop.h"
#include "spill_store.h"

#define NO_SPACE_WAIT_NS (30 * SPILL_SECOND) /* a full file system is asked again so much later */

/* A place: 20 bits record + 1, 24 bits segment, 16 bits of the sequence number, which tell an earlier use, and 4 bits
   that say which store. */
#define PLACE_RECORD_BITS 20
#define PLACE_SEGMENT_BITS 24
#define PLACE_SEQUENCE_MASK 0xffffull
static_assert(SPILL_STORES_MAX <= 16, "as a place holds");

uint64_t segment_off(const struct spill *spill, uint32_t i)
{
	return SPILL_SUPER_AREA + (uint64_t)i * spill->file.super.segment_bytes;
}

spill_place segment_place(const struct spill *spill, uint32_t i, uint32_t record)
{
	return (uint64_t)spill->opts.number << SPILL_PLACE_STORE_SHIFT |
	       (spill->segments[i].sequence & PLACE_SEQUENCE_MASK) << (PLACE_RECORD_BITS + PLACE_SEGMENT_BITS) |
	       (uint64_t)i << PLACE_RECORD_BITS | (record + 1);
}

static uint32_t place_segment(spill_place place)
{
	return (uint32_t)(place >> PLACE_RECORD_BITS & ((1u << PLACE_SEGMENT_BITS) - 1));
}

struct record *segment_find(struct spill *spill, spill_place place, uint32_t *i)
{
	uint32_t record = (uint32_t)(place & ((1u << PLACE_RECORD_BITS) - 1));
	struct segment *segment;

	*i = place_segment(place);
	if (!record-- || *i >= spill->n_segments)
		return NULL;
	segment = &spill->segments[*i];
	if (record >= segment->n_records || segment_place(spill, *i, record) != place)
		return NULL;
	return &segment->records[record];
}

/* By segments; until the file is as long as it may be none has to go. */
double spill_passed(const struct spill *spill, spill_place place)
{
	uint32_t i = place_segment(place), n = spill->health.short_of_room ? spill->n_present : spill->n_segments;
	uint64_t since = i < spill->n_segments ? spill->n_opened - 1 - spill->segments[i].turn : 0;

	return since < n ? (double)since / n : 1;
}

/* ---- records ---- */

struct spill_spot record_spot(const struct spill *spill, uint32_t i, const struct record *record)
{
	uint64_t in_segment = (uint64_t)record->at * spill->file.super.unit;

	return (struct spill_spot){.uuid = spill->file.super.uuid,
		.sequence = spill->segments[i].sequence,
		.off = segment_off(spill, i) + in_segment,
		.room = spill->file.super.segment_bytes - in_segment,
		.unit = spill->file.super.unit};
}

uint64_t record_bytes(const struct spill *spill, const struct record *record)
{
	return (uint64_t)record->span * spill->file.super.unit;
}

int64_t segment_add(
	struct spill *spill, uint32_t i, uint64_t off, const struct spill_record *record, enum record_state state)
{
	struct segment *segment = &spill->segments[i];
	uint32_t unit = spill->file.super.unit;

	if (segment->n_records == segment->room || !segment->index) {
		uint32_t room = segment->n_records < segment->room ? segment->room
				: segment->room			   ? 2 * segment->room
								   : 16;
		struct record *records = realloc(segment->records, room * sizeof(*records));
		struct spill_record *index;

		if (!records)
			return -ENOMEM;
		segment->records = records;
		index = realloc(segment->index, room * sizeof(*index));
		if (!index)
			return -ENOMEM;
		segment->index = index;
		segment->room = room;
	}
	segment->index[segment->n_records] = *record;
	segment->records[segment->n_records] = (struct record){.at = (uint32_t)(off / unit),
		.span = (uint32_t)(spill_span(record, unit) / unit),
		.header = record->header,
		.state = (uint8_t)state};
	return segment->n_records++;
}

void segment_forget_index(struct segment *segment)
{
	free(segment->index);
	segment->index = NULL;
}

void segment_let_live(struct spill *spill, uint32_t i, uint32_t index, void *cookie)
{
	struct segment *segment = &spill->segments[i];
	struct record *record = &segment->records[index];

	record->state = RECORD_LIVE;
	record->cookie = cookie;
	segment->n_live++;
	if (cookie == &kill_cookie) {
		segment->n_kills++;
		return;
	}
	spill->stats.live_records++;
	spill->stats.live_bytes += record_bytes(spill, record);
}

/* Nothing lives in it: whoever needs room has it, and it is no owner's any more. */
static void segment_settle_shares(struct spill *spill, uint32_t i)
{
	const struct segment *segment = &spill->segments[i];

	if (!segment->n_live && !segment->n_writers && segment->state != SEGMENT_OPEN)
		share_release(spill, i);
}

void segment_drop(struct spill *spill, uint32_t i, uint32_t index, bool tell)
{
	struct segment *segment = &spill->segments[i];
	struct record *record = &segment->records[index];

	if (record->state != RECORD_LIVE)
		return;
	record->state = RECORD_DEAD;
	segment->n_live--;
	segment_settle_shares(spill, i);
	if (record->cookie == &kill_cookie) {
		segment->n_kills--;
		return;
	}
	spill->stats.live_records--;
	spill->stats.live_bytes -= record_bytes(spill, record);
	if (!tell)
		return;
	spill->telling = true;
	spill->opts.gone(spill->opts.owner, record->cookie);
	spill->telling = false;
}

/* gone() may forget others here meanwhile; those are passed over. */
void segment_drop_all(struct spill *spill, uint32_t i, bool lists)
{
	const struct segment *segment = &spill->segments[i];

	for (uint32_t k = 0; k < segment->n_records; k++)
		if (lists || segment->records[k].cookie != &kill_cookie)
			segment_drop(spill, i, k, true);
}

/* ---- which segment ---- */

static bool segment_is_busy(const struct segment *segment)
{
	return segment->n_readers || segment->n_writers;
}

static void segment_open(struct spill *spill, uint32_t i)
{
	struct segment *segment = &spill->segments[i];

	assert(segment->state == SEGMENT_EMPTY && !segment->n_live && !segment_is_busy(segment));
	assert(spill->open == SPILL_NO_SEGMENT);
	segment->state = SEGMENT_OPEN;
	share_release(spill, i);
	segment_forget_index(segment);
	segment->n_records = segment->n_kills = 0;
	segment->used = SPILL_PAGE;
	segment->sequence = spill->next_sequence++;
	segment->turn = spill->n_opened++;
	segment->key_id = spill->opts.keys ? spill->opts.keys->keys[0].id : 0;
	segment->dirty = segment->flush_failed = segment->sealed = false;
	spill->open = i;
}

/* Else each start would take a segment for its own, and push out the oldest of a small store.  Nothing of an earlier
   daemon can still be written there: the lock of the file is ours.  Behind the last record no other one of this use can come to
   light, for the start has looked at every page.  Not with another key: all in a segment is of one.  What a mark in the superblock covers would be dropped with it. */
void segment_continue(struct spill *spill, uint32_t i)
{
	struct segment *segment = &spill->segments[i];
	uint64_t end = segment_off(spill, i) + spill->file.super.segment_bytes;

	if (segment->state != SEGMENT_FULL || !segment->whole || end > spill->file.bytes ||
		(spill->opts.keys && segment->key_id != spill->opts.keys->keys[0].id) ||
		spill_super_dropped_any(&spill->file.super, segment->sequence) ||
		segment->used + 2 * SPILL_PAGE + seal_bytes(segment->n_records + 1) > spill->file.super.segment_bytes)
		return;
	assert(spill->open == SPILL_NO_SEGMENT);
	segment->state = SEGMENT_OPEN;
	spill->open = i;
}

void segment_close(struct spill *spill)
{
	if (spill->open == SPILL_NO_SEGMENT)
		return;
	spill->segments[spill->open].state = SEGMENT_FULL;
	segment_settle_shares(spill, spill->open);
	spill->open = SPILL_NO_SEGMENT;
	/* a flush for each segment: bounds what a power cut or a failed flush takes, and what the page cache holds
	   back */
	spill_flush_own(spill);
}

static void segment_allocated(struct io_op *op, int64_t res)
{
	struct spill *spill = op->owner;

	spill->allocating = false;
	/* a file system without fallocate() gives room when it is written to */
	spill->unreserved = res == -EOPNOTSUPP || res == -ENOSYS || res == -EINVAL;
	if (res == 0)
		health_room(spill);
	if (res == 0 || spill->unreserved) {
		spill->segments[spill->n_present++].state = SEGMENT_EMPTY;
		return;
	}
	spill->no_space_until_ns = loop_now() + NO_SPACE_WAIT_NS;
	if (res != -ENOSPC && res != -EDQUOT && res != -EFBIG)
		health_failed(spill, SPILL_NO_SEGMENT, "making the file longer", (int)-res);
	else
		health_no_room(spill, (int)-res);
}

void segment_no_space(struct spill *spill, uint32_t i, int err)
{
	spill->stats.write_errors++;
	if (spill->open == i)
		segment_close(spill);
	spill->no_space_until_ns = spill->segments[i].probe_at_ns = loop_now() + NO_SPACE_WAIT_NS;
	health_full(spill, true, err);
}

void segment_allocate(struct spill *spill)
{
	if (spill->allocating || spill->n_present >= spill->n_segments || loop_now() < spill->no_space_until_ns)
		return;
	spill->allocating = true;
	spill->allocate_op = (struct io_op){.kind = IO_ALLOCATE,
		.fd = spill->file.fd,
		.off = segment_off(spill, spill->n_present),
		.iov[0].iov_len = spill->file.super.segment_bytes,
		.n_iov = 0,
		.done = segment_allocated,
		.owner = spill};
	spill_submit(spill, &spill->allocate_op);
}

static uint32_t segment_empty(const struct spill *spill)
{
	for (uint32_t i = 0; i < spill->n_present; i++)
		if (spill->segments[i].state == SEGMENT_EMPTY)
			return i;
	return SPILL_NO_SEGMENT;
}

void segment_ask_for_room(struct spill *spill)
{
	if (spill->health.short_of_room && !spill->unreserved && segment_empty(spill) == SPILL_NO_SEGMENT)
		segment_allocate(spill);
}

/* Does nothing live in an older one?  Then a mark may say so. */
static bool segment_is_oldest(const struct spill *spill, uint32_t i)
{
	for (uint32_t k = 0; k < spill->n_present; k++)
		if (spill->segments[k].sequence < spill->segments[i].sequence &&
			(spill->segments[k].n_live || spill->segments[k].n_writers))
			return false;
	return true;
}

/* The segment to give up: one in which nothing lives, else the oldest. @busy: there are some, but in use. */
static uint32_t segment_victim(const struct spill *spill, bool *busy)
{
	uint32_t best = SPILL_NO_SEGMENT;
	uint64_t now = loop_now();

	*busy = false;
	for (uint32_t i = 0; i < spill->n_present; i++) {
		const struct segment *segment = &spill->segments[i];

		if (segment->state != SEGMENT_FULL && !(segment->state == SEGMENT_BAD && segment->n_live))
			continue;
		if (segment_is_busy(segment)) {
			*busy = true;
			continue;
		}
		if (segment->state == SEGMENT_FULL && !segment->n_live) {
			if (now >= segment->probe_at_ns)
				return i;
			continue;
		}
		if (best == SPILL_NO_SEGMENT || segment->sequence < spill->segments[best].sequence)
			best = i;
	}
	return best;
}

/* Return: an empty segment; -EAGAIN; -ENOSPC. */
static int64_t segment_reclaim(struct spill *spill)
{
	uint32_t i;
	bool busy;
	int r = 0;

	while ((i = segment_victim(spill, &busy)) != SPILL_NO_SEGMENT) {
		struct segment *segment = &spill->segments[i];

		if (segment->n_kills && !segment_is_oldest(spill, i))
			return -EAGAIN;
		/* before a mark may say that they do not count, so that nothing is there that a start would not find */
		spill->stats.reclaimed += segment->n_live - segment->n_kills;
		segment_drop_all(spill, i, false);
		/* its lists of deleted keys go after all that they name: that must not come to light again, wherever it
		   lies */
		if (segment->n_kills && (r = drop_passed(spill, i)) == -EAGAIN)
			return -EAGAIN;
		if (r < 0)
			break;
		segment_drop_all(spill, i, true);
		if (segment->state == SEGMENT_BAD)
			continue; /* its turn has come, but it must be proved good first */
		segment->state = SEGMENT_EMPTY;
		segment_forget_index(segment);
		return i;
	}
	return busy ? -EAGAIN : -ENOSPC;
}

int64_t segment_for(struct spill *spill, uint64_t span)
{
	int64_t i;

	if (spill->open != SPILL_NO_SEGMENT) {
		const struct segment *open = &spill->segments[spill->open];

		if (open->used + span + seal_bytes(open->n_records + 1) <= spill->file.super.segment_bytes) {
			if (!open->sealed)
				return spill->open;
			seal_break(spill);
			return -EAGAIN;
		}
		segment_close(spill);
	}
	i = segment_empty(spill);
	if (i == SPILL_NO_SEGMENT) {
		segment_allocate(spill);
		i = spill->allocating ? -EAGAIN : segment_reclaim(spill);
	}
	if (i < 0)
		return i;
	segment_open(spill, (uint32_t)i);
	if (segment_empty(spill) == SPILL_NO_SEGMENT)
		segment_allocate(spill); /* ahead of need */
	return i;
}
