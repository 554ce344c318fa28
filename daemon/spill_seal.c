/*
 * spill_seal.c - the seal of a full segment: an entry for each record, so that a start need not read their headers
 *
 * A segment is sealed once it is full and all that was written to it is durable (after a good flush), so a seal never
 * names what a power cut could still take.  It lies at the segment's end, named after this use of the segment; a start
 * that finds none, or one of an earlier use, or a damaged one, goes through the headers.  At most the last segments of
 * a killed daemon have none; the next start seals them.  A seal is a hint like everything in memory: each read checks
 * the record itself.
 *
 * A stop seals the open segment too, full or not, and the next start goes on in it.  Before the first record is added
 * the seal is overwritten, for a start that believed it would know nothing of that record.  Then the record is written,
 * and only then flushed, so what is known to be durable is never behind a seal that stands.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "loop.h"
#include "spill_store.h"

struct seal {
	struct io_op op;
	struct spill *spill;
	uint32_t segment;
	bool direct; /* as it was submitted */
	uint8_t *bytes;
	uint64_t n_bytes, key_id;
};

uint64_t seal_bytes(uint64_t n)
{
	return spill_index_bytes(n) + SPILL_PAGE;
}

/* One that could not be written is missed by nobody but the next start. */
static void seal_done(struct io_op *op, int64_t res)
{
	struct seal *seal = op->owner;
	struct segment *segment = &seal->spill->segments[seal->segment];

	segment->n_writers--;
	if (res >= 0)
		seal->spill->stats.write_bytes += (uint64_t)res;
	free(seal->bytes);
	free(seal);
}

/* In the worker.  What could not be encrypted is no seal. */
static void seal_before(struct io_op *op)
{
	struct seal *seal = op->owner;
	uint64_t n = seal->n_bytes - SPILL_PAGE;

	if (spill_seal_encrypt(seal->spill->cipher, seal->key_id, seal->bytes + n, seal->bytes, n) < 0)
		memset(seal->bytes, 0, seal->n_bytes);
}

/* The entries of what lives in @segment and their seal, in memory. Return: false: out of memory. */
static bool seal_fill(struct seal *seal, const struct segment *segment, uint64_t off, uint64_t n_bytes)
{
	struct spill *spill = seal->spill;
	struct spill_disk_entry *entries;
	struct spill_seal told = {.used = segment->used};
	struct spill_spot spot = {.uuid = spill->file.super.uuid,
		.sequence = segment->sequence,
		.off = off + n_bytes - SPILL_PAGE,
		.room = SPILL_PAGE};

	seal->bytes = aligned_alloc(SPILL_PAGE, n_bytes);
	if (!seal->bytes)
		return false;
	memset(seal->bytes, 0, n_bytes);
	entries = (struct spill_disk_entry *)(void *)seal->bytes;
	for (uint32_t i = 0; i < segment->n_records; i++)
		if (segment->records[i].state == RECORD_LIVE)
			spill_entry_encode(
				&entries[told.n++], &segment->index[i], segment->records[i].at, spill->file.super.unit);
	told.index_hash = spill_hash_data(seal->bytes, n_bytes - SPILL_PAGE);
	spill_seal_encode(seal->bytes + n_bytes - SPILL_PAGE, &spot, &told);
	return true;
}

static void seal_segment(struct spill *spill, uint32_t i)
{
	struct segment *segment = &spill->segments[i];
	uint64_t n_bytes = seal_bytes(segment->n_live), end = segment_off(spill, i) + spill->file.super.segment_bytes;
	struct seal *seal;

	if (segment->sealed || !segment->n_live || segment->used + n_bytes > spill->file.super.segment_bytes ||
		FAULT_INT("spill.seal", 0) < 0) {
		segment_forget_index(segment); /* it has one; or no room, of an older layout say */
		return;
	}
	seal = calloc(1, sizeof(*seal));
	if (!seal)
		return;
	seal->spill = spill;
	seal->segment = i;
	seal->n_bytes = n_bytes;
	seal->key_id = segment->key_id;
	if (!seal_fill(seal, segment, end - n_bytes, n_bytes)) {
		free(seal);
		return;
	}
	segment_forget_index(segment);
	segment->n_writers++;
	seal->op = (struct io_op){.kind = IO_WRITE,
		.fd = spill->file.fd,
		.off = end - n_bytes,
		.iov[0] = {seal->bytes, n_bytes},
		.n_iov = 1,
		.done = seal_done,
		.before = spill->cipher ? seal_before : NULL,
		.owner = seal};
	spill_submit(spill, &seal->op);
}

void seal_ready(struct spill *spill)
{
	for (uint32_t i = 0; i < spill->n_present; i++) {
		const struct segment *segment = &spill->segments[i];

		if (segment->state == SEGMENT_FULL && segment->index && !segment->dirty && !segment->n_writers)
			seal_segment(spill, i);
	}
}

static void seal_broken(struct io_op *op, int64_t res)
{
	struct seal *seal = op->owner;
	struct spill *spill = seal->spill;
	struct segment *segment = &spill->segments[seal->segment];

	segment->n_writers--;
	if (res >= 0) {
		segment->sealed = false;
		spill->stats.write_bytes += (uint64_t)res;
	} else if (seal->direct && (res == -EINVAL || res == -EOPNOTSUPP)) { /* who writes next tries again */
		spill_file_leave_direct(&spill->file, (int)-res);
	} else {
		health_failed(spill, seal->segment, "write", (int)-res);
	}
	free(seal->bytes);
	free(seal);
}

void seal_break(struct spill *spill)
{
	struct segment *segment = &spill->segments[spill->open];
	struct seal *seal = segment->n_writers ? NULL : calloc(1, sizeof(*seal)); /* it is on its way */

	if (!seal || !(seal->bytes = aligned_alloc(SPILL_PAGE, SPILL_PAGE))) {
		free(seal);
		return;
	}
	memset(seal->bytes, 0, SPILL_PAGE);
	seal->spill = spill;
	seal->segment = spill->open;
	seal->direct = spill->file.direct;
	segment->n_writers++;
	seal->op = (struct io_op){.kind = IO_WRITE,
		.fd = spill->file.fd,
		.off = segment_off(spill, spill->open) + spill->file.super.segment_bytes - SPILL_PAGE,
		.iov[0] = {seal->bytes, SPILL_PAGE},
		.n_iov = 1,
		.done = seal_broken,
		.owner = seal};
	spill_submit(spill, &seal->op);
}
