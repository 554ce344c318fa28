/*
 * spill_scrub.c - read what is cold again and again, at a bounded rate, so that damage is found before it is asked for
 *
 * One record at a time, in the order of the segments; what is read costs as many bytes of the rate as it has, and a
 * record longer than a second's worth is waited for.  A record that is damaged is dropped and told as at a read.  The
 * loop's thread; started by spill_tick(), goes on by its own completions.
 */
#include <stdlib.h>

#include "loop.h"
#include "spill_store.h"
#include "undumped.h"

#define FIRST_PASS_NS (60 * SPILL_SECOND) /* a start has other things to do */

/* In the worker. */
static int64_t scrub_after(struct io_op *op, int64_t res)
{
	struct spill *spill = op->owner;
	struct scrub *scrub = &spill->scrub;
	_Alignas(8) uint8_t page[SPILL_PAGE];
	struct spill_record record;
	struct spill_hash hash;

	/* encrypted data as it lies: whether it is what was encrypted each read looks at */
	scrub->right = res >= 0 &&
		       spill_record_open(spill->cipher, spill_header_page(scrub->bytes, scrub->spot.unit, page),
			       &scrub->spot, &record, &hash) == 0 &&
		       spill_span(&record, scrub->spot.unit) <= op->iov[0].iov_len &&
		       spill_hash_equal(hash, spill_hash_data(scrub->bytes + record.header, spill_data_bytes(&record)));
	return res;
}

static void scrub_next(struct spill *spill);

static void scrub_done(struct io_op *op, int64_t res)
{
	struct spill *spill = op->owner;
	struct scrub *scrub = &spill->scrub;
	struct record *record = &spill->segments[scrub->segment].records[scrub->index];

	scrub->busy = false;
	spill->segments[scrub->segment].n_readers--;
	if (record->state != RECORD_LIVE) {
		/* forgotten meanwhile */
	} else if (res == -ENODATA || (res >= 0 && !scrub->right)) {
		health_damaged(spill, scrub->segment, record);
		spill->stats.scrub_damaged++;
		spill->telling_damage = true;
		segment_drop(spill, scrub->segment, scrub->index, true);
		spill->telling_damage = false;
	} else if (res < 0) {
		health_unread(spill, scrub->segment, record, (int)-res);
	}
	spill->stats.scrub_bytes += op->iov[0].iov_len;
	scrub->index++;
	scrub_next(spill);
}

/* The next live record from where it stands, or NULL: the pass is over. */
static const struct record *scrub_find(struct spill *spill)
{
	struct scrub *scrub = &spill->scrub;

	for (; scrub->segment < spill->n_present; scrub->segment++, scrub->index = 0) {
		const struct segment *segment = &spill->segments[scrub->segment];

		if (segment->state != SEGMENT_FULL && segment->state != SEGMENT_OPEN)
			continue;
		for (; scrub->index < segment->n_records; scrub->index++)
			if (segment->records[scrub->index].state == RECORD_LIVE)
				return &segment->records[scrub->index];
	}
	return NULL;
}

static void scrub_end_pass(struct spill *spill)
{
	struct scrub *scrub = &spill->scrub;

	spill->stats.scrub_passes++;
	scrub->segment = scrub->index = 0;
	scrub->once_rate = 0;
	undumped_free(scrub->bytes);
	scrub->bytes = NULL;
	scrub->room = 0;
}

/* Room for @bytes. Return: false: no memory now; the next tick tries again. */
static bool scrub_make_room(struct scrub *scrub, uint64_t bytes)
{
	if (scrub->room >= bytes)
		return true;
	undumped_free(scrub->bytes);
	scrub->bytes = undumped_new(bytes);
	scrub->room = scrub->bytes ? bytes : 0;
	return scrub->bytes != NULL;
}

static void scrub_next(struct spill *spill)
{
	struct scrub *scrub = &spill->scrub;
	const struct record *record;
	uint64_t bytes;

	if (scrub->busy || scrub->allowance <= 0 || spill->health.state == SPILL_DOWN)
		return;
	record = scrub_find(spill);
	if (!record) {
		scrub_end_pass(spill);
		return;
	}
	bytes = record_bytes(spill, record);
	if (!scrub_make_room(scrub, spill_pages(bytes)))
		return;
	scrub->busy = true;
	scrub->spot = record_spot(spill, scrub->segment, record);
	scrub->allowance -= (int64_t)bytes;
	spill->segments[scrub->segment].n_readers++;
	scrub->op = (struct io_op){.kind = IO_READ,
		.fd = spill->file.fd,
		.off = scrub->spot.off,
		.iov[0] = {scrub->bytes, bytes},
		.n_iov = 1,
		.done = scrub_done,
		.after = scrub_after,
		.owner = spill};
	spill_submit(spill, &scrub->op);
}

void spill_scrub_rate(struct spill *spill, uint64_t bytes_per_s)
{
	spill->scrub.rate = bytes_per_s;
}

uint64_t spill_scrub_now(struct spill *spill, uint64_t bytes_per_s)
{
	struct scrub *scrub = &spill->scrub;

	if (!scrub->busy)
		scrub->segment = scrub->index = 0;
	scrub->once_rate = bytes_per_s;
	scrub->allowance = (int64_t)bytes_per_s;
	scrub->at_ns = loop_now();
	scrub_next(spill);
	return spill->stats.live_bytes;
}

void scrub_tick(struct spill *spill)
{
	struct scrub *scrub = &spill->scrub;
	uint64_t now = loop_now(), rate = scrub->once_rate ? scrub->once_rate : scrub->rate, past;

	if (!scrub->at_ns)
		scrub->at_ns = now + FIRST_PASS_NS;
	if (!rate || (int64_t)(now - scrub->at_ns) < 0)
		return;
	past = now - scrub->at_ns;
	past = past > SPILL_SECOND * 2 ? SPILL_SECOND * 2 : past;
	scrub->at_ns = now;
	scrub->allowance += (int64_t)((double)rate * (double)past / (double)SPILL_SECOND);
	if (scrub->allowance > (int64_t)rate)
		scrub->allowance = (int64_t)rate;
	scrub_next(spill);
}
