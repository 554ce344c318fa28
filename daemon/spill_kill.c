/*
 * spill_kill.c - keys that were deleted: lists of them in the log, so that no start finds a record of theirs again
 *
 * A list is a record like any other: it is written behind all that it kills, lives in its segment and is named in its
 * seal.  What it kills may be records nobody knows any more, of a key that was written twice or lost with its parent,
 * so a list names keys, not places.  A start reads all lists before it tells of records (in the thread that scans, see
 * kill_find()); of each key the last list counts, and only for records before it: what was written anew is found.  When
 * a segment with lists is used anew: drop_passed().
 *
 * Stores of one set know nothing of each other: each has a list of its own, in its own order.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "loop.h"
#include "spill_store.h"

char kill_cookie;

/* ---- writing ---- */

struct kill {
	spill_done_fn done;
	void *owner;
	void *bytes;
};

static void kill_free(struct kill *kill)
{
	free(kill->bytes);
	free(kill);
}

static void kill_done(void *owner, int res, spill_place place)
{
	struct kill *kill = owner;

	(void)place;
	kill->done(kill->owner, res, 0);
	kill_free(kill);
}

static bool never_written(const struct spill *spill)
{
	for (uint32_t i = 0; i < spill->n_present; i++)
		if (spill->segments[i].sequence)
			return false;
	return true;
}

static struct kill *kill_new(const struct spill_kill *kills, uint32_t n, uint64_t bytes)
{
	uint64_t room = spill_pages(bytes);
	struct kill *kill = calloc(1, sizeof(*kill));
	struct spill_disk_kill *disk;

	if (!kill || !(kill->bytes = aligned_alloc(SPILL_PAGE, room))) {
		free(kill);
		return NULL;
	}
	memset(kill->bytes, 0, room);
	disk = kill->bytes;
	for (uint32_t i = 0; i < n; i++)
		disk[i] = (struct spill_disk_kill){
			htole64(kills[i].ns_id), {htole64(kills[i].key.w[0]), htole64(kills[i].key.w[1])}};
	return kill;
}

int spill_kill(struct spill *spill, const struct spill_kill *kills, uint32_t n, spill_done_fn done, void *owner)
{
	struct spill_record record = {.bytes = n * sizeof(struct spill_disk_kill), .flags = SPILL_RECORD_KILLS};
	struct kill *kill;
	int r;

	if (!n || n > SPILL_KILLS_MAX)
		return -EINVAL;
	if (never_written(spill))
		return -ENOENT;
	kill = kill_new(kills, n, record.bytes);
	if (!kill)
		return -ENOMEM;
	kill->done = done;
	kill->owner = owner;
	r = spill_write(spill, &record, kill->bytes, &kill_cookie, kill_done, kill);
	if (r < 0)
		kill_free(kill);
	return r;
}

/* ---- the table of a start ---- */

/* Of each key the last list: where it lies in the log. */
struct killed {
	struct spill_kill kill;
	uint64_t sequence; /* 0: an empty place */
	uint32_t at; /* in units */
};

struct kill_table {
	struct killed *places;
	uint64_t n, room; /* a power of two, at least twice as many */
	uint64_t seed; /* of the store's UUID, which no client is told: keys are theirs to choose */
};

static struct killed *table_place(const struct kill_table *table, const struct spill_kill *kill)
{
	uint64_t at = XXH3_64bits_withSeed(kill, sizeof(*kill), table->seed);

	for (;; at++) {
		struct killed *place = &table->places[at & (table->room - 1)];

		if (!place->sequence || !memcmp(&place->kill, kill, sizeof(*kill)))
			return place;
	}
}

static int table_grow(struct kill_table *table)
{
	struct kill_table larger = *table;

	larger.room = table->room ? 2 * table->room : 1024;
	larger.places = calloc(larger.room, sizeof(*larger.places));
	if (!larger.places)
		return -ENOMEM;
	for (uint64_t i = 0; i < table->room; i++)
		if (table->places[i].sequence)
			*table_place(&larger, &table->places[i].kill) = table->places[i];
	free(table->places);
	*table = larger;
	return 0;
}

static bool is_before(uint64_t sequence, uint32_t at, const struct killed *killed)
{
	return sequence != killed->sequence ? sequence < killed->sequence : at < killed->at;
}

static int table_add(struct kill_table *table, const struct spill_kill *kill, uint64_t sequence, uint32_t at)
{
	struct killed *place;

	if (2 * table->n >= table->room && table_grow(table) < 0)
		return -ENOMEM;
	place = table_place(table, kill);
	if (place->sequence && is_before(sequence, at, place))
		return 0;
	table->n += !place->sequence;
	*place = (struct killed){*kill, sequence, at};
	return 0;
}

void kill_table_free(struct kill_table *table)
{
	if (table)
		free(table->places);
	free(table);
}

bool kill_hits(const struct kill_table *table, const struct spill_record *record, uint64_t sequence, uint32_t at)
{
	struct spill_kill kill = {.ns_id = record->ns_id, .key = record->key};
	const struct killed *killed;

	if (!table || !table->n || spill_is_kills(record))
		return false;
	killed = table_place(table, &kill);
	return killed->sequence && is_before(sequence, at, killed);
}

/* ---- reading ---- */

struct finder {
	struct spill *spill;
	struct spill_cipher *cipher;
	uint32_t segment, index; /* looked at next */
	uint64_t n_bad;
	int error;
};

struct reading {
	struct io_op op;
	struct finder *finder;
	struct spill_spot spot;
	uint8_t *bytes;
};

static void reading_next(struct reading *reading);

static int list_take(struct kill_table *table, const struct reading *reading, int64_t res)
{
	const struct spill_super *super = &reading->finder->spill->file.super;
	uint32_t at = (uint32_t)((reading->spot.off - SPILL_SUPER_AREA) % super->segment_bytes / super->unit);
	struct spill_cipher *cipher = reading->finder->cipher;
	_Alignas(8) uint8_t page[SPILL_PAGE];
	const void *head = spill_header_page(reading->bytes, super->unit, page);
	const struct spill_disk_kill *disk;
	struct spill_record record;
	struct spill_hash hash;
	int r = 0;

	if (res != (int64_t)reading->op.iov[0].iov_len ||
		spill_record_open(cipher, head, &reading->spot, &record, &hash) < 0 || !spill_is_kills(&record) ||
		spill_span(&record, super->unit) > (uint64_t)res)
		return -EBADMSG;
	disk = (const void *)(reading->bytes + record.header);
	if (!spill_hash_equal(hash, spill_hash_data(disk, record.bytes)) ||
		(cipher && spill_data_decrypt(cipher, head, reading->bytes + record.header) < 0))
		return -EBADMSG;
	for (uint64_t i = 0; r == 0 && i < record.bytes / sizeof(*disk); i++) {
		struct spill_kill kill = {le64toh(disk[i].ns_id), {{le64toh(disk[i].key[0]), le64toh(disk[i].key[1])}}};

		r = table_add(table, &kill, reading->spot.sequence, at);
	}
	return r;
}

static void reading_done(struct io_op *op, int64_t res)
{
	struct reading *reading = op->owner;
	struct finder *finder = reading->finder;
	int r = list_take(finder->spill->kills, reading, res);

	if (r == -EBADMSG)
		finder->n_bad++;
	else if (r < 0)
		finder->error = r;
	reading_next(reading);
}

/* The next list that counts, or none. */
static bool finder_step(struct finder *finder)
{
	const struct spill *spill = finder->spill;

	for (; finder->segment < spill->n_present; finder->segment++, finder->index = 0) {
		const struct segment *segment = &spill->segments[finder->segment];

		if (spill_super_dropped(&spill->file.super, 0, segment->sequence))
			continue;
		for (; finder->index < segment->n_records; finder->index++)
			if (spill_is_kills(&segment->index[finder->index]))
				return true;
	}
	return false;
}

static void reading_next(struct reading *reading)
{
	struct finder *finder = reading->finder;
	struct spill *spill = finder->spill;
	const struct record *record;

	if (finder->error || !finder_step(finder))
		return;
	record = &spill->segments[finder->segment].records[finder->index++];
	reading->spot = record_spot(spill, finder->segment, record);
	reading->op = (struct io_op){.kind = IO_READ,
		.fd = spill->file.fd,
		.off = reading->spot.off,
		.iov[0] = {reading->bytes, record_bytes(spill, record)},
		.n_iov = 1,
		.done = reading_done,
		.owner = reading};
	io_submit(spill->io, &reading->op);
}

int kill_find(struct spill *spill, struct spill_cipher *cipher, uint8_t *bytes, unsigned n_reads)
{
	struct finder finder = {.spill = spill, .cipher = cipher};
	struct reading *readings;

	static_assert(
		SPILL_KILLS_READ >= SPILL_PAGE + SPILL_KILLS_MAX * sizeof(struct spill_disk_kill), "all of a list");
	if (!finder_step(&finder))
		return 0;
	spill->kills = calloc(1, sizeof(*spill->kills));
	readings = calloc(n_reads, sizeof(*readings));
	if (!spill->kills || !readings) {
		free(readings);
		return -ENOMEM;
	}
	memcpy(&spill->kills->seed, spill->file.super.uuid, sizeof(spill->kills->seed));
	for (unsigned i = 0; i < n_reads; i++) {
		readings[i].finder = &finder;
		readings[i].bytes = bytes + (size_t)i * SPILL_KILLS_READ;
		reading_next(&readings[i]);
	}
	while (io_in_flight(spill->io))
		io_wait(spill->io, loop_now() + SPILL_SECOND);
	if (finder.n_bad)
		log_warn(
			"spill store %s: %llu lists of deleted keys are damaged: what they name may be found again; delete it once more",
			spill->file.path, (unsigned long long)finder.n_bad);
	free(readings);
	return finder.error;
}
