/*
 * spill_recover.c - what is in a store: read the seals of all segments, then tell the caller in the order of the log
 *
 * Segments are read side by side: header, seal and its entries; those without a seal of this use from record to record:
 * a header says how far it is to the next.  A unit with which
 * no record of this use of the segment begins is the end of the log, a write that a crash cut off, or damage: the units
 * behind it are looked at one by one, and where a record of this use is found again, what lay between is counted as
 * skipped.  A block's bytes cannot pose as a record: they would have to name the store's UUID, which nobody is told.
 * A damaged segment header costs nothing if the first record's header is whole, for it names the use too.
 * Of whole records only headers are read; data is checked when it is asked for.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "loop.h"
#include "spill_store.h"
#include "undumped.h"

#define SCANS 32 /* segments at once */
#define SCAN_BYTES SPILL_KILLS_READ /* read at once where records are small */
#define SCAN_SMALL 32768u /* such records */

enum scan_stage {
	SCAN_LOG, /* from header to header */
	SCAN_SEAL,
	SCAN_INDEX,
	SCAN_LOST, /* no use of it is named: is there a seal? */
};

struct scan {
	struct io_op op;
	enum scan_stage stage;
	struct spill_seal seal;
	uint8_t *index;
	struct recovery *recovery;
	bool active;
	uint32_t segment;
	uint64_t at; /* the header wanted, in the segment */
	uint64_t have_at, have; /* what is in the buffer */
	uint64_t last_span;
	uint64_t gap_at; /* where no record was found any more; 0: all is well */
	uint64_t n_sealed; /* records its seal speaks of; 0: none, or nothing of it counts any more */
	uint64_t torn_sequence; /* what a damaged segment header still says */
	uint64_t most; /* bytes of a read: the file ended within a longer one */
	bool whole; /* its header names the use, and nothing of it could not be read */
	uint8_t *bytes;
};

struct recovery {
	struct spill *spill;
	uint32_t next; /* segment to be scanned */
	uint32_t n_done;
	uint64_t skipped_bytes;
	uint32_t n_lost_segments; /* used, and not to be read */
	uint64_t n_lost; /* records that seals speak of, and that are not there */
	int error;
	struct spill_cipher own_cipher;
	struct spill_cipher *cipher; /* that, this thread's; NULL: the store has no key */
	struct scan scans[SCANS];
	uint8_t *bytes;
	_Alignas(8) uint8_t page[SPILL_PAGE]; /* a header that was folded */
};

static void scan_read(struct scan *scan);
static void scan_read_at(struct scan *scan, uint64_t at, uint8_t *bytes, uint64_t n);

static void scan_start(struct scan *scan)
{
	struct recovery *recovery = scan->recovery;

	scan->active = !recovery->error && recovery->next < recovery->spill->n_present;
	if (!scan->active)
		return;
	scan->segment = recovery->next++;
	scan->at = scan->have = scan->last_span = scan->gap_at = scan->torn_sequence = scan->n_sealed = 0;
	scan->most = SCAN_BYTES;
	scan->whole = false;
	scan->stage = SCAN_LOG;
	scan_read(scan);
}

static void scan_end(struct scan *scan)
{
	struct recovery *recovery = scan->recovery;
	struct segment *segment = &recovery->spill->segments[scan->segment];

	recovery->n_done++;
	if (scan->n_sealed > segment->n_records)
		recovery->n_lost += scan->n_sealed - segment->n_records;
	segment->used = scan->gap_at ? scan->gap_at : scan->at;
	segment->whole = scan->whole;
	segment->state = segment->n_records ? SEGMENT_FULL : SEGMENT_EMPTY;
	segment->dirty = segment->n_records && !segment->sealed; /* until the first flush */
	scan_start(scan);
}

static struct spill_spot scan_spot(const struct scan *scan)
{
	const struct spill *spill = scan->recovery->spill;

	return (struct spill_spot){.uuid = spill->file.super.uuid,
		.sequence = spill->segments[scan->segment].sequence,
		.off = segment_off(spill, scan->segment) + scan->at,
		.room = spill->file.super.segment_bytes - scan->at,
		.unit = spill->file.super.unit};
}

/* Of the record whose header begins there. Return: 0; -EBADMSG: it is none. */
static int scan_open(struct scan *scan, const uint8_t *at, const struct spill_spot *spot, struct spill_record *record)
{
	struct recovery *recovery = scan->recovery;
	const void *page = spill_header_page(at, spot->unit, recovery->page);
	struct spill_hash hash;
	int r = spill_record_open(recovery->cipher, page, spot, record, &hash);

	if (r == 0 && recovery->cipher)
		recovery->spill->segments[scan->segment].key_id = spill_record_key_id(page);
	return r;
}

static void scan_count_skipped(struct scan *scan, uint64_t bytes)
{
	scan->recovery->spill->stats.skipped++;
	scan->recovery->skipped_bytes += bytes;
}

/* The segment's own header. Return: as scan_header(). */
static int64_t scan_segment_header(struct scan *scan, const uint8_t *page)
{
	struct spill *spill = scan->recovery->spill;
	struct spill_spot spot = scan_spot(scan);

	spill->segments[scan->segment].sequence = 0;
	if (spill_segment_decode(page, &spot) == 0) {
		spill->segments[scan->segment].sequence = spot.sequence;
		scan->whole = true;
		return SPILL_PAGE;
	}
	if (!spill_page_is_of(page, spot.uuid))
		return 0; /* never used, or lost */
	scan->torn_sequence = spill_page_sequence(page);
	return SPILL_PAGE;
}

/* The first record names the use of the segment where the header does not: not an earlier one than that was to
   begin. */
static bool scan_first_names_use(struct scan *scan, const uint8_t *page)
{
	struct spill_spot spot = scan_spot(scan);
	struct spill_record record;

	spot.sequence = spill_page_sequence(page);
	scan_count_skipped(scan, SPILL_PAGE);
	if (!spot.sequence || spot.sequence < scan->torn_sequence || scan_open(scan, page, &spot, &record) < 0)
		return false;
	scan->recovery->spill->segments[scan->segment].sequence = spot.sequence;
	return true;
}

/* One header. Return: bytes to the next, or to the next unit to look at; 0: nothing more can be in this segment;
   -ENOMEM. */
static int64_t scan_header(struct scan *scan, const uint8_t *page)
{
	struct spill *spill = scan->recovery->spill;
	struct spill_spot spot;
	struct spill_record record;

	if (scan->at == 0)
		return scan_segment_header(scan, page);
	if (!spill->segments[scan->segment].sequence && !scan_first_names_use(scan, page))
		return 0;
	spot = scan_spot(scan);
	if (scan_open(scan, page, &spot, &record) < 0) {
		if (!scan->gap_at)
			scan->gap_at = scan->at;
		return spot.unit;
	}
	if (scan->gap_at)
		scan_count_skipped(scan, scan->at - scan->gap_at);
	scan->gap_at = 0;
	scan->last_span = spill_span(&record, spot.unit);
	if (segment_add(spill, scan->segment, scan->at, &record, RECORD_DEAD) < 0)
		return -ENOMEM;
	return (int64_t)scan->last_span;
}

/* ---- by the seal ---- */

static struct spill_spot scan_seal_spot(const struct scan *scan)
{
	struct spill_spot spot = scan_spot(scan);

	spot.off = segment_off(scan->recovery->spill, scan->segment) + scan->recovery->spill->file.super.segment_bytes -
		   SPILL_PAGE;
	return spot;
}

/* No seal, or (not @none) one that cannot be used and may stand all the same: from header to header. */
static void scan_without_seal(struct scan *scan, bool none)
{
	scan->whole = scan->whole && none;
	free(scan->index);
	scan->index = NULL;
	scan->stage = SCAN_LOG;
	scan->have = 0;
	scan_read(scan);
}

static void scan_seal_done(struct scan *scan, int64_t res)
{
	struct spill_spot spot = scan_seal_spot(scan);
	uint64_t segment_bytes = scan->recovery->spill->file.super.segment_bytes;

	bool none = res == (int64_t)SPILL_PAGE && spill_seal_decode(scan->bytes, &spot, segment_bytes, &scan->seal) < 0;

	if (none || res != (int64_t)SPILL_PAGE ||
		!(scan->index = aligned_alloc(SPILL_PAGE, spill_index_bytes(scan->seal.n)))) {
		scan_without_seal(scan, none);
		return;
	}
	if (!spill_super_dropped(&scan->recovery->spill->file.super, 0, spot.sequence))
		scan->n_sealed = scan->seal.n;
	scan->stage = SCAN_INDEX;
	scan_read_at(scan, segment_bytes - SPILL_PAGE - spill_index_bytes(scan->seal.n), scan->index,
		spill_index_bytes(scan->seal.n));
}

/* Entries in the order of the log, one behind the other. Return: 0; -EBADMSG; -ENOMEM. */
static int scan_take_index(struct scan *scan)
{
	struct spill *spill = scan->recovery->spill;
	const struct spill_disk_entry *entries = (const struct spill_disk_entry *)(const void *)scan->index;
	uint64_t end = SPILL_PAGE, off;
	uint32_t unit = spill->file.super.unit;

	for (uint64_t i = 0; i < scan->seal.n; i++) {
		struct spill_record record;
		uint32_t at;

		if (spill_entry_decode(&entries[i], unit, end, scan->seal.used, &record, &at) < 0)
			return -EBADMSG;
		off = (uint64_t)at * unit;
		end = off + spill_span(&record, unit);
		if (segment_add(spill, scan->segment, off, &record, RECORD_DEAD) < 0)
			return -ENOMEM;
	}
	return 0;
}

static void scan_index_done(struct scan *scan, int64_t res)
{
	struct segment *segment = &scan->recovery->spill->segments[scan->segment];
	uint64_t n_bytes = spill_index_bytes(scan->seal.n);
	int r = -EBADMSG;

	if (res == (int64_t)n_bytes && spill_hash_equal(scan->seal.index_hash, spill_hash_data(scan->index, n_bytes)) &&
		spill_seal_decrypt(scan->recovery->cipher, scan->bytes, scan->index, n_bytes) == 0)
		r = scan_take_index(scan);
	if (r == -ENOMEM)
		scan->recovery->error = r;
	if (r == -EBADMSG) {
		segment->n_records = 0;
		scan_without_seal(scan, false);
		return;
	}
	free(scan->index);
	scan->index = NULL;
	scan->at = scan->seal.used;
	segment->sealed = true;
	if (scan->recovery->cipher)
		segment->key_id = spill_seal_key_id(scan->bytes);
	scan_end(scan);
}

/* ---- by the headers ---- */

/* What names no use is kept where it is: the seal is read behind it. */
static void scan_lost_begin(struct scan *scan)
{
	scan->stage = SCAN_LOST;
	scan_read_at(scan, scan->recovery->spill->file.super.segment_bytes - SPILL_PAGE, scan->bytes + SPILL_PAGE,
		SPILL_PAGE);
}

static void scan_lost_done(struct scan *scan, int64_t res)
{
	struct recovery *recovery = scan->recovery;
	struct spill_spot spot = scan_seal_spot(scan);

	if (spill_segment_is_lost(&recovery->spill->file.super, scan->bytes,
		    res == (int64_t)SPILL_PAGE ? scan->bytes + SPILL_PAGE : NULL, &spot, &scan->n_sealed))
		recovery->n_lost_segments++;
	scan_end(scan);
}

static void scan_log_done(struct scan *scan, int64_t res)
{
	struct io_op *op = &scan->op;
	struct spill *spill = scan->recovery->spill;

	if (res == -ENODATA && op->iov[0].iov_len > spill->file.super.unit) {
		/* without fallocate() it may end with a record, which may be shorter than a page */
		scan->most = scan->most > SPILL_PAGE ? SPILL_PAGE : scan->most - spill->file.super.unit;
		scan_read(scan);
		return;
	}
	if (res < 0 && res != -ENODATA) {
		scan->whole = false;
		spill->stats.read_errors++;
		scan->recovery->n_lost_segments++; /* from here on: the scan of it ends */
	}
	scan->have_at = scan->at;
	scan->have = res < 0 ? 0 : (uint64_t)res;
	if (scan->have && scan->have < SPILL_PAGE) {
		memset(scan->bytes + scan->have, 0, SPILL_PAGE - scan->have);
		scan->have = SPILL_PAGE;
	}
	while (scan->at >= scan->have_at && scan->at + SPILL_PAGE <= scan->have_at + scan->have) {
		int64_t span = scan_header(scan, scan->bytes + (scan->at - scan->have_at));

		if (span < 0)
			scan->recovery->error = (int)span;
		if (span <= 0) {
			if (span == 0)
				scan_lost_begin(scan);
			else
				scan_end(scan);
			return;
		}
		scan->at += (uint64_t)span;
		if (scan->at == SPILL_PAGE && spill->segments[scan->segment].sequence) {
			scan->stage = SCAN_SEAL;
			scan_read_at(scan, spill->file.super.segment_bytes - SPILL_PAGE, scan->bytes, SPILL_PAGE);
			return;
		}
	}
	if (res < 0 || scan->at + SPILL_PAGE > spill->file.super.segment_bytes)
		scan_end(scan);
	else
		scan_read(scan);
}

static void scan_done(struct io_op *op, int64_t res)
{
	struct scan *scan = op->owner;

	switch (scan->stage) {
	case SCAN_SEAL:
		scan_seal_done(scan, res);
		return;
	case SCAN_INDEX:
		scan_index_done(scan, res);
		return;
	case SCAN_LOST:
		scan_lost_done(scan, res);
		return;
	default:
		scan_log_done(scan, res);
	}
}

static void scan_read_at(struct scan *scan, uint64_t at, uint8_t *bytes, uint64_t n)
{
	struct spill *spill = scan->recovery->spill;

	scan->op = (struct io_op){.kind = IO_READ,
		.fd = spill->file.fd,
		.off = segment_off(spill, scan->segment) + at,
		.iov[0] = {bytes, n},
		.n_iov = 1,
		.done = scan_done,
		.owner = scan};
	io_submit(spill->io, &scan->op);
}

static void scan_read(struct scan *scan)
{
	bool small = scan->last_span && scan->last_span <= SCAN_SMALL;
	uint64_t left = scan->recovery->spill->file.super.segment_bytes - scan->at;
	uint64_t n = small || scan->gap_at ? SCAN_BYTES : SPILL_PAGE;

	n = n < scan->most ? n : scan->most;
	scan_read_at(scan, scan->at, scan->bytes, n < left ? n : left);
}

/* ---- telling ---- */

struct order {
	uint64_t sequence;
	uint32_t segment;
};

static int order_compare(const void *a, const void *b)
{
	const struct order *x = a, *y = b;

	return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

static void tell_segment(struct spill *spill, uint32_t i)
{
	struct segment *segment = &spill->segments[i];

	for (uint32_t k = 0; k < segment->n_records; k++) {
		void *cookie;

		share_add(spill, i, &segment->index[k]);
		if (spill_super_dropped(&spill->file.super, segment->index[k].ns_id, segment->sequence) ||
			kill_hits(spill->kills, &segment->index[k], segment->sequence, segment->records[k].at))
			continue;
		cookie = spill_is_kills(&segment->index[k])
				 ? &kill_cookie
				 : spill->opts.found(spill->opts.owner, &segment->index[k], segment_place(spill, i, k));
		if (cookie)
			segment_let_live(spill, i, k, cookie);
	}
	if (!segment->n_live && segment->state != SEGMENT_OPEN)
		share_release(spill, i);
	if (segment->sealed && segment->state == SEGMENT_FULL)
		segment_forget_index(segment);
}

static int tell_begin(struct spill *spill)
{
	spill->order = calloc(spill->n_present ? spill->n_present : 1, sizeof(*spill->order));
	if (!spill->order)
		return -ENOMEM;
	for (uint32_t i = 0; i < spill->n_present; i++)
		if (spill->segments[i].state == SEGMENT_FULL)
			spill->order[spill->n_order++] = (struct order){spill->segments[i].sequence, i};
	qsort(spill->order, spill->n_order, sizeof(*spill->order), order_compare);
	for (uint32_t k = 0; k < spill->n_order; k++)
		spill->segments[spill->order[k].segment].turn = spill->n_opened++;
	if (spill->n_order)
		segment_continue(spill, spill->order[spill->n_order - 1].segment);
	return 0;
}

int spill_tell_found(struct spill *spill, uint64_t n)
{
	uint64_t told = 0;

	if (!spill->order && tell_begin(spill) < 0)
		return -ENOMEM;
	for (; spill->order_at < spill->n_order && told < n; spill->order_at++) {
		uint32_t i = spill->order[spill->order_at].segment;

		told += spill->segments[i].n_records;
		tell_segment(spill, i);
	}
	if (spill->order_at < spill->n_order)
		return 1;
	/* a start number that was lost, say in a copy put back: go on after what is there all the same */
	if (spill->n_order && spill->order[spill->n_order - 1].sequence >= spill->next_sequence)
		spill->next_sequence = spill->order[spill->n_order - 1].sequence + 1;
	free(spill->order);
	spill->order = NULL;
	kill_table_free(spill->kills);
	spill->kills = NULL;
	return 0;
}

/* ---- all of it ---- */

static void recovery_progress(struct recovery *recovery, uint64_t *next_ns)
{
	struct spill *spill = recovery->spill;

	if (!spill->opts.progress || loop_now() < *next_ns)
		return;
	spill->opts.progress(spill->opts.owner, recovery->n_done, spill->n_present);
	*next_ns = loop_now() + SPILL_SECOND;
}

static int recovery_scan(struct recovery *recovery)
{
	uint64_t next_ns = 0; /* the first time at once: who waits learns what for */

	for (unsigned i = 0; i < SCANS; i++) {
		recovery->scans[i].recovery = recovery;
		recovery->scans[i].bytes = recovery->bytes + (size_t)i * SCAN_BYTES;
		scan_start(&recovery->scans[i]);
	}
	while (io_in_flight(recovery->spill->io)) {
		io_wait(recovery->spill->io, loop_now() + SPILL_SECOND / 2);
		recovery_progress(recovery, &next_ns);
	}
	return recovery->error;
}

/* A file system that had room for a part of a segment may leave the file that much longer: what was never written there
   is asked for anew, or it would be taken for room that is not there. */
static void recovery_leave_parts(struct spill *spill)
{
	while (spill->n_present && !spill->segments[spill->n_present - 1].n_records &&
		segment_off(spill, spill->n_present) > spill->file.bytes)
		spill->n_present--;
}

/* Keys of which nothing is left need not be given any more. */
static int recovery_pass_keys(struct spill *spill)
{
	uint64_t used[SPILL_KEYS_MAX];
	uint32_t n = 0;

	for (uint32_t i = 0; i < spill->n_present; i++) {
		const struct segment *segment = &spill->segments[i];
		uint32_t k = 0;

		if (!segment->key_id || spill_super_dropped(&spill->file.super, 0, segment->sequence))
			continue;
		while (k < n && used[k] != segment->key_id)
			k++;
		if (k == n && n < SPILL_KEYS_MAX)
			used[n++] = segment->key_id;
	}
	return spill_file_pass_keys(&spill->file, &spill->opts, used, n);
}

int spill_scan(struct spill *spill)
{
	struct recovery *recovery = calloc(1, sizeof(*recovery));
	int r = 0;

	if (!recovery)
		return -ENOMEM;
	recovery->spill = spill;
	if (spill->opts.keys) {
		recovery->cipher = &recovery->own_cipher;
		r = spill_cipher_init(recovery->cipher, spill->opts.keys);
	}
	recovery->bytes = undumped_new((uint64_t)SCANS * SCAN_BYTES);
	if (!recovery->bytes)
		r = -ENOMEM;
	if (r == 0)
		r = recovery_scan(recovery);
	if (r == 0)
		recovery_leave_parts(spill);
	if (r == 0)
		r = kill_find(spill, recovery->cipher, recovery->bytes, SCANS);
	if (r == 0 && recovery->cipher && !recovery->n_lost_segments)
		r = recovery_pass_keys(spill);
	if (r == 0 && spill->stats.skipped)
		log_warn(
			"spill store %s: at %" PRIu64 " places, %" PRIu64
			" bytes in all, no record could be read: damaged, or cut off by a crash; what follows them is used",
			spill->file.path, spill->stats.skipped, recovery->skipped_bytes);
	if (r == 0 && (recovery->n_lost_segments || recovery->n_lost))
		log_warn(
			"spill store %s: %u of its %u segments were used and cannot be read any more, and %" PRIu64
			" records that seals speak of are lost: was the file written to or cut by somebody else, is its disk all right?  What can be read is used, the room of the rest too",
			spill->file.path, recovery->n_lost_segments, spill->n_present, recovery->n_lost);
	spill_cipher_deinit(&recovery->own_cipher);
	undumped_free(recovery->bytes);
	free(recovery);
	return r;
}
