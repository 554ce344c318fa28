/*
 * spill.c - see spill.h: the interface, and transfers from the caller's memory to a record and back
 *
 * A transfer has two pages of its own for headers, with which it can fold and unfold one, and is otherwise the caller's memory.  It is used from the call that
 * starts it to its done(), which may start others.
 *
 * A record that is to be packed has no place until the worker has packed it, for only then its length is known: the write
 * is first an operation that moves nothing, then one like any other.  When no segment can be had just then, it waits in a
 * list.  Packed bytes lie in memory that is lent to the transfer.
 */
#include "spill.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io_memory.h"
#include "loop.h"
#include "spill_store.h"
#include "undumped.h"

#define SMALL_BYTES (1u << 20) /* so much is on its way at once in however many transfers there are, */
#define TRANSFERS_MIN 40u /* which are so many at least: some small ones wait while others move */

/* ---- transfers ---- */

void spill_submit(struct spill *spill, struct io_op *op)
{
	if (!io_in_flight(spill->io))
		spill->moved_ns = loop_now();
	io_submit(spill->io, op);
}

static struct transfer *transfer_new(struct spill *spill, enum transfer_kind kind, spill_done_fn done, void *owner)
{
	struct transfer *t = spill->free_transfers;

	assert(!spill->telling);
	if (!t)
		return NULL;
	spill->free_transfers = t->next;
	spill->n_used++;
	t->record.bytes = 0;
	t->packed = t->packing = false;
	t->layers = NULL;
	t->encrypted = false;
	t->bad = 0;
	t->memory = NULL;
	t->told = (struct spill_packed){0};
	spill->n_writes += kind == TRANSFER_WRITE;
	t->kind = kind;
	t->done = done;
	t->owner = owner;
	t->place = 0;
	return t;
}

static void transfer_free(struct transfer *t)
{
	struct spill *spill = t->spill;

	spill->n_used--;
	spill->n_used_bytes -= t->record.bytes;
	spill->n_writes -= t->kind == TRANSFER_WRITE;
	if (t->kind == TRANSFER_WRITE && t->memory)
		spill->pack_writing -= spill_memory_room(t->memory);
	spill_memory_give(spill, t->memory);
	t->memory = NULL;
	t->kind = TRANSFER_FREE;
	t->next = spill->free_transfers;
	spill->free_transfers = t;
}

static void transfer_end(struct transfer *t, int res, spill_place place)
{
	struct spill *spill = t->spill;
	spill_done_fn done = t->done;
	void *owner = t->owner;

	transfer_free(t);
	spill->ended = t; /* done() may start others, but none before it has looked */
	if (done)
		done(owner, res, place);
	spill->ended = NULL;
}

static void write_before(struct io_op *op);
static int64_t read_after(struct io_op *op, int64_t res);

static void transfer_submit(
	struct transfer *t, enum io_kind kind, uint64_t off, int n_iov, void (*done)(struct io_op *, int64_t))
{
	t->direct = t->spill->file.direct;
	t->op.kind = kind;
	t->op.fd = t->spill->file.fd;
	t->op.off = off;
	t->op.n_iov = n_iov;
	t->op.done = done;
	t->op.before = t->kind == TRANSFER_WRITE ? write_before : NULL;
	t->op.after = t->kind == TRANSFER_READ ? read_after : NULL;
	t->op.owner = t;
	spill_submit(t->spill, &t->op);
}

static uint32_t unit_of(const struct spill *spill)
{
	return spill->file.super.unit;
}

/* ---- write ---- */

/* O_DIRECT may be refused only now: then the page cache serves, and nothing is lost. */
static bool transfer_retried(struct transfer *t, int64_t res)
{
	if (!t->direct || (res != -EINVAL && res != -EOPNOTSUPP))
		return false;
	spill_file_leave_direct(&t->spill->file, (int)-res);
	t->direct = false;
	spill_submit(t->spill, &t->op);
	return true;
}

static void write_failed(struct transfer *t, int err)
{
	struct spill *spill = t->spill;

	spill->segments[t->segment].records[t->index].state = RECORD_DEAD;
	if (err == ENOSPC || err == EDQUOT) /* a file system without fallocate(); the segment is not to blame */
		segment_no_space(spill, t->segment, err);
	else
		health_failed(spill, t->segment, "write", err);
	transfer_end(t, -err, 0);
}

static void write_done(struct io_op *op, int64_t res)
{
	struct transfer *t = op->owner;
	struct spill *spill = t->spill;
	struct segment *segment = &spill->segments[t->segment];

	if (transfer_retried(t, res))
		return;
	segment->n_writers--;
	spill->write_serial++;
	if (res >= 0 && (segment->flush_failed || t->bad))
		res = -EIO;
	if (res < 0) {
		write_failed(t, (int)-res);
		return;
	}
	health_written(spill);
	segment->dirty = true;
	segment->dirty_serial = spill->write_serial;
	segment_let_live(spill, t->segment, t->index, t->cookie);
	if (!t->packing)
		t->told = (struct spill_packed){.bytes = t->record.bytes, .stored = spill_pages(t->record.bytes)};
	spill->stats.writes++;
	spill->stats.write_bytes += (uint64_t)res;
	transfer_end(t, 0, t->place);
}

uint64_t spill_longest(const struct spill *spill)
{
	return spill->file.super.segment_bytes - 2 * SPILL_PAGE;
}

/* With @n transfers under way, of @most: may one of @bytes begin?  Of small ones more are on their way, so that those that lie side
   by side can be moved as one while the next ones are made ready. */
static bool transfer_may_begin(const struct spill *spill, unsigned n, unsigned most, uint64_t bytes)
{
	return n < most || spill->n_used_bytes + bytes <= SMALL_BYTES;
}

/* May a record of this length be written now? Return: 0; -errno as spill_write(). */
static int write_refused(const struct spill *spill, uint64_t bytes)
{
	if (!bytes)
		return -EINVAL;
	if (bytes > spill_longest(spill))
		return -EFBIG;
	if (spill->health.state == SPILL_DOWN)
		return -ENODEV;
	/* two: closing a segment takes one for its flush */
	if (spill->n_writes >= spill->n_transfers / 2 || !spill->free_transfers || !spill->free_transfers->next ||
		!transfer_may_begin(spill, spill->n_writes, 2 * spill->opts.depth, bytes))
		return -EAGAIN;
	return 0;
}

/* In the worker.  Should libcrypto refuse, nothing of it goes down. */
static void write_encrypt(struct transfer *t)
{
	const void *data = t->packed ? t->pack : t->data;

	if (t->encrypted)
		return;
	t->encrypted = true;
	t->bad = spill_record_encrypt(
		t->spill->cipher, t->head + SPILL_PAGE, &t->spot, &t->record, t->layers, data, t->pack);
	if (t->bad < 0) {
		memset(t->head + SPILL_PAGE, 0, SPILL_PAGE);
		memset(t->pack, 0, spill_pages(spill_data_bytes(&t->record)));
		return;
	}
	spill_header_fold(t->head + SPILL_PAGE, unit_of(t->spill));
}

/* In the worker: the headers, with the data's checksum. */
static void write_before(struct io_op *op)
{
	struct transfer *t = op->owner;

	if (t->index == 0) {
		struct spill_spot spot = {.uuid = t->spot.uuid, .sequence = t->spot.sequence, .off = op->off};

		spill_segment_encode(t->head, &spot);
	}
	if (t->spill->cipher) {
		write_encrypt(t);
		return;
	}
	spill_record_encode(t->head + SPILL_PAGE, &t->spot, &t->record,
		spill_hash_data(op->iov[1].iov_base, spill_data_bytes(&t->record)));
	if (t->layers)
		spill_record_set_layers(t->head + SPILL_PAGE, t->layers, op->iov[1].iov_base);
	spill_header_fold(t->head + SPILL_PAGE, unit_of(t->spill));
}

/* Of a whole block in a namespace with layers, going or lying plain. */
static const struct spill_layers *layers_of(const struct spill *spill, const struct spill_record *record)
{
	const struct spill_layers *layers =
		spill->opts.layers ? spill->opts.layers(spill->opts.owner, record->ns_id) : NULL;

	return layers && layers->n && layers->ends[layers->n - 1] == record->bytes ? layers : NULL;
}

/* Headers and data as one write.  The segment's own header goes down with its first record. */
static void write_submit(struct transfer *t)
{
	struct spill *spill = t->spill;
	const void *data = t->packed || spill->cipher ? t->pack : t->data;
	uint64_t before = t->index == 0 ? SPILL_PAGE : 0;

	t->spot = record_spot(spill, t->segment, &spill->segments[t->segment].records[t->index]);
	t->op.iov[0] = (struct iovec){t->head + SPILL_PAGE - before, before + t->record.header};
	t->op.iov[1] =
		(struct iovec){(void *)(uintptr_t)data, spill_round_up(spill_data_bytes(&t->record), unit_of(spill))};
	transfer_submit(t, IO_WRITE, t->spot.off - before, 2, write_done);
}

/* As it will be encoded: what is encrypted is one layer at least. */
static uint16_t write_header_bytes(const struct transfer *t)
{
	bool encrypted = t->spill->cipher != NULL;
	uint32_t n = t->layers ? t->layers->n : encrypted;

	return (uint16_t)spill_header_bytes(n, encrypted, unit_of(t->spill));
}

/* Its place, and on its way there. Return: 0; -errno as spill_write(). */
static int write_place(struct transfer *t)
{
	struct spill *spill = t->spill;
	struct segment *segment;
	int64_t i, index;

	if (!spill->free_transfers) /* closing a segment takes one for its flush */
		return -EAGAIN;
	t->record.header = write_header_bytes(t);
	i = segment_for(spill, spill_span(&t->record, unit_of(spill)));
	if (i == -ENOSPC)
		health_full(spill, false, ENOSPC);
	if (i < 0)
		return (int)i;
	segment = &spill->segments[i];
	index = segment_add(spill, (uint32_t)i, segment->used, &t->record, RECORD_WRITING);
	if (index < 0)
		return -EAGAIN;
	share_add(spill, (uint32_t)i, &t->record);
	t->segment = (uint32_t)i;
	t->index = (uint32_t)index;
	t->place = segment_place(spill, t->segment, t->index);
	segment->used += spill_span(&t->record, unit_of(spill));
	segment->n_writers++;
	write_submit(t);
	return 0;
}

/* ---- write, packed ---- */

/* In the worker. */
static void pack_before(struct io_op *op)
{
	struct transfer *t = op->owner;
	struct packer *packer = t->spill->packer;
	uint64_t most = SPILL_SHORTER(spill_pages(t->record.bytes) / SPILL_PAGE) * SPILL_PAGE;
	bool sample = t->record.codec == SPILL_SAMPLE;
	int64_t n = packer_pack(packer, t->data, t->record.bytes, t->pack, most);

	t->record.codec = SPILL_PLAIN;
	t->told.codec = sample ? SPILL_SAMPLE : SPILL_PLAIN;
	t->told.bytes = t->record.bytes;
	t->told.stored = spill_pages(t->record.bytes);
	if (n <= 0)
		return;
	t->told.stored = spill_pages((uint64_t)n);
	if (sample) {
		t->told.unpack_ns = packer_time(packer, t->pack, (uint64_t)n, t->record.bytes);
		return;
	}
	memset(t->pack + n, 0,
		t->told.stored - (uint64_t)n); /* no byte of memory that is not its own goes to the disk */
	t->record.codec = t->told.codec = SPILL_ZSTD;
	t->record.stored = (uint32_t)n;
	t->packed = true;
}

/* Those that wait for a segment, in their order. */
static void pack_place_waiting(struct spill *spill)
{
	while (spill->placeless) {
		struct transfer *t = spill->placeless;
		int r = spill->health.state == SPILL_DOWN ? -ENODEV : write_place(t);

		if (r == -EAGAIN && io_in_flight(spill->io))
			return; /* what ends calls again */
		spill->placeless = t->next;
		if (r < 0)
			transfer_end(t, r, 0);
	}
}

static void pack_done(struct io_op *op, int64_t res)
{
	struct transfer *t = op->owner;
	struct spill *spill = t->spill;

	(void)res;
	spill->n_idle++;
	t->next = NULL;
	if (spill->placeless)
		spill->last_placeless->next = t;
	else
		spill->placeless = t;
	spill->last_placeless = t;
	pack_place_waiting(spill);
}

/* What is read goes before: writes have half of it. */
static struct spill_memory *pack_memory(struct spill *spill, uint64_t most)
{
	return !spill->pack_writing || spill->pack_writing + most <= PACK_MOST / 2 ? spill_memory_take(spill, most)
										   : NULL;
}

static void transfer_lend(struct transfer *t, struct spill_memory *memory)
{
	t->memory = memory;
	t->pack = spill_memory_bytes(memory);
}

int spill_write(struct spill *spill, const struct spill_record *record, const void *data, void *cookie,
	spill_done_fn done, void *owner)
{
	uint64_t most = SPILL_SHORTER(spill_pages(record->bytes) / SPILL_PAGE) * SPILL_PAGE;
	bool pack = record->codec != SPILL_PLAIN && most;
	uint64_t room = spill->cipher ? spill_pages(record->bytes) : most;
	struct spill_memory *memory = NULL;
	struct transfer *t;
	int r = write_refused(spill, record->bytes);

	if (r == 0 && (pack || spill->cipher) && !(memory = pack_memory(spill, room)))
		r = -EAGAIN;
	if (r < 0)
		return r;
	t = transfer_new(spill, TRANSFER_WRITE, done, owner);
	t->record = *record;
	t->record.codec = pack ? record->codec : SPILL_PLAIN;
	t->record.stored = 0;
	t->data = data;
	t->cookie = cookie;
	spill->n_used_bytes += record->bytes;
	if (memory) {
		transfer_lend(t, memory);
		spill->pack_writing += spill_memory_room(memory);
	}
	if (pack) {
		t->packing = true;
		t->op = (struct io_op){.kind = IO_WORK, .before = pack_before, .done = pack_done, .owner = t};
		spill_submit(spill, &t->op);
		return 0;
	}
	t->layers = layers_of(spill, record);
	r = write_place(t);
	if (r < 0)
		transfer_free(t);
	return r;
}

const struct spill_packed *spill_packed(const struct spill *spill)
{
	return &spill->ended->told;
}

/* ---- read ---- */

/* The header that came back, as it was before it was folded. */
static const void *read_head(const struct transfer *t)
{
	return spill_header_page(t->head, t->spot.unit, t->head + SPILL_PAGE);
}

/* Is @head that of the record that was asked for? Return: 0; -EBADMSG. */
static int read_header(const struct transfer *t, const void *head, struct spill_record *found, struct spill_hash *hash)
{
	if (spill_record_open(t->spill->cipher, head, &t->spot, found, hash) < 0)
		return -EBADMSG;
	/* the parent is no part of a block's identity, its key has it */
	if (found->ns_id != t->record.ns_id || memcmp(&found->key, &t->record.key, sizeof(found->key)) ||
		found->bytes != t->record.bytes || found->used_tokens != t->record.used_tokens)
		return -EBADMSG;
	if ((found->codec != SPILL_PLAIN) != t->packed || found->header != t->record.header ||
		spill_round_up(spill_data_bytes(found), t->spot.unit) != t->data_bytes)
		return -EBADMSG; /* it is not as long as the table has it */
	return 0;
}

/* Every byte of it? Then the bytes are where they were wanted. Return: 0; -EBADMSG; -ENOMEM. */
static int read_take(const struct transfer *t)
{
	void *data = t->packed ? t->pack : t->into;
	struct spill_cipher *cipher = t->spill->cipher;
	const void *head = read_head(t);
	struct spill_record found;
	struct spill_hash hash;

	if (read_header(t, head, &found, &hash) < 0)
		return -EBADMSG;
	if (cipher ? spill_data_decrypt(cipher, head, data) < 0
		   : !spill_hash_equal(hash, spill_hash_data(data, spill_data_bytes(&found))))
		return -EBADMSG;
	return t->packed ? packer_unpack(t->spill->packer, t->pack, found.stored, t->into, found.bytes) : 0;
}

/* In the worker. */
static int64_t read_after(struct io_op *op, int64_t res)
{
	struct transfer *t = op->owner;

	int r = res < 0 ? 0 : read_take(t);

	t->right = res >= 0 && r == 0;
	return r == -ENOMEM ? r : res;
}

/* How fast the device gives what lies plain, measured over all reads under way together. */
static void read_measure(struct spill *spill, const struct transfer *t, int64_t bytes)
{
	uint64_t now = loop_now();
	double sample = (double)(now - spill->read_event_ns) / (double)(bytes > 0 ? bytes : 1);
	double *speed = &spill->stats.read_ns_per_byte;

	spill->n_reads--;
	spill->read_event_ns = now;
	if (bytes > 0 && !t->packed)
		*speed += (sample - *speed) / (*speed > 0 ? 16 : 1);
}

/* All of it has come, or will not. @res: bytes; -errno. */
static void read_end(struct transfer *t, int64_t res)
{
	struct spill *spill = t->spill;

	read_measure(spill, t, res);
	if (res >= 0) {
		spill->stats.reads++;
		spill->stats.read_bytes += (uint64_t)res;
	}
	if (res == -ENODATA || (res >= 0 && !t->right)) { /* ENODATA: the file has been cut */
		health_damaged(spill, t->segment, &spill->segments[t->segment].records[t->index]);
		segment_drop(spill, t->segment, t->index, true);
		res = -EBADMSG;
	} else if (res < 0) {
		health_unread(spill, t->segment, &spill->segments[t->segment].records[t->index], (int)-res);
	}
	spill->segments[t->segment].n_readers--;
	transfer_end(t, res < 0 ? (int)res : 0, t->place);
}

static void read_done(struct io_op *op, int64_t res)
{
	struct transfer *t = op->owner;

	if (transfer_retried(t, res))
		return;
	if (t->kind == TRANSFER_LOST)
		transfer_end(t, -EBADMSG, t->place);
	else
		read_end(t, res);
}

/* ---- read, in parts ---- */

static bool parts_have_layers(const struct transfer *t, const void *head)
{
	return t->spill->cipher ? spill_record_parts_are(head, t->layers) : spill_record_has_layers(head, t->layers);
}

static bool parts_layer_is_right(const struct transfer *t, const void *head, uint32_t i)
{
	return t->spill->cipher ? spill_part_decrypt(t->spill->cipher, head, t->into, i) == 0
				: spill_layer_is_right(head, t->into, t->layers, i);
}

/* What has come without a gap is compared, layer by layer; a record without such checksums when all of it has. */
static void parts_compare(struct transfer *t)
{
	const void *head = read_head(t);
	uint64_t there = t->parts[t->n_parts_there - 1].end;
	struct spill_record found;
	struct spill_hash hash;

	if (!t->layers_right && (t->bad = read_header(t, head, &found, &hash)) < 0)
		return;
	if (!parts_have_layers(t, head)) {
		if (t->n_parts_there == t->n_parts && (t->bad = read_take(t)) == 0)
			t->layers_right = t->layers->n;
		return;
	}
	while (t->layers_right < t->layers->n && t->layers->ends[t->layers_right] <= there) {
		if (!parts_layer_is_right(t, head, t->layers_right)) {
			t->bad = -EBADMSG;
			return;
		}
		t->layers_right++;
	}
}

/* In the worker, which alone has the parts of a transfer until they are done. */
static int64_t part_after(struct io_op *op, int64_t res)
{
	struct part *part = (struct part *)((char *)op - offsetof(struct part, op));
	struct transfer *t = op->owner;
	unsigned before = t->n_parts_there;

	if (res < 0 && !(part->direct && (res == -EINVAL || res == -EOPNOTSUPP)))
		t->bad = t->bad ? t->bad : (int)res;
	part->there = res >= 0;
	while (!t->bad && t->n_parts_there < t->n_parts && t->parts[t->n_parts_there].there)
		t->n_parts_there++;
	if (t->n_parts_there > before)
		parts_compare(t);
	part->layers_right = t->bad ? 0 : t->layers_right;
	return res;
}

static void part_done(struct io_op *op, int64_t res)
{
	struct part *part = (struct part *)((char *)op - offsetof(struct part, op));
	struct transfer *t = op->owner;
	struct spill *spill = t->spill;

	if (part->direct && (res == -EINVAL || res == -EOPNOTSUPP)) { /* as transfer_retried() */
		spill_file_leave_direct(&spill->file, (int)-res);
		part->direct = false;
		spill_submit(spill, op);
		return;
	}
	if (--t->n_parts_left) {
		if (part->layers_right > t->layers_told)
			spill->opts.layers_came(spill->opts.owner, t->owner, t->layers_told = part->layers_right);
		return;
	}
	t->right = !t->bad && t->layers_right == t->layers->n;
	free(t->parts);
	t->parts = NULL;
	read_end(t, t->bad && t->bad != -EBADMSG ? t->bad : (int64_t)(t->data_bytes + t->record.header));
}

/* Where a part ends: at a page, behind the layer that is nearest to an even share. */
static uint64_t part_end(const struct transfer *t, unsigned i, unsigned n)
{
	uint64_t share = t->data_bytes / n * (i + 1), end = t->data_bytes;

	for (uint32_t k = 0; i + 1 < n && k < t->layers->n; k++)
		if (t->layers->ends[k] >= share) {
			end = spill_pages(t->layers->ends[k]);
			break;
		}
	return end < t->data_bytes ? end : t->data_bytes;
}

static bool parts_submit(struct transfer *t)
{
	uint64_t most = t->data_bytes / PART_MIN, at = 0;
	unsigned n = most < PARTS_MAX ? (unsigned)most : PARTS_MAX;
	struct part *parts = n > 1 ? calloc(n, sizeof(*parts)) : NULL;

	if (!parts)
		return false;
	t->parts = parts;
	t->n_parts = t->n_parts_there = t->layers_right = t->layers_told = 0;
	t->bad = 0;
	for (unsigned i = 0; i < n && at < t->data_bytes; i++) {
		struct part *part = &parts[t->n_parts];
		uint64_t end = part_end(t, i, n);
		struct iovec data = {(char *)t->into + at, end - at};

		if (end <= at)
			continue;
		part->end = end;
		part->direct = t->spill->file.direct;
		part->op = (struct io_op){.kind = IO_READ,
			.fd = t->spill->file.fd,
			.off = at ? t->spot.off + t->record.header + at : t->spot.off,
			.iov = {at ? data : (struct iovec){t->head, t->record.header}, data},
			.n_iov = at ? 1 : 2,
			.done = part_done,
			.after = part_after,
			.owner = t};
		at = end;
		t->n_parts++;
	}
	t->n_parts_left = t->n_parts;
	for (unsigned i = 0, all = t->n_parts; i < all; i++)
		spill_submit(t->spill, &parts[i].op);
	return true;
}

int spill_read(struct spill *spill, spill_place place, const struct spill_record *record, void *data,
	spill_done_fn done, void *owner)
{
	uint32_t i;
	struct record *at = segment_find(spill, place, &i);
	uint64_t plain = spill_round_up(record->bytes, unit_of(spill));
	uint64_t data_bytes = at ? record_bytes(spill, at) - at->header : 0;
	bool lost = !at || at->state != RECORD_LIVE || !record->bytes || data_bytes > plain;
	bool packed = !lost && data_bytes < plain;
	struct spill_memory *memory = NULL;
	struct transfer *t;

	if (!transfer_may_begin(spill, spill->n_used, 4 * spill->opts.depth, record->bytes) ||
		(packed && !(memory = spill_memory_take(spill, data_bytes))))
		return -EAGAIN;
	t = transfer_new(spill, lost ? TRANSFER_LOST : TRANSFER_READ, done, owner);
	if (!t) {
		spill_memory_give(spill, memory);
		return -EAGAIN;
	}
	if (packed)
		transfer_lend(t, memory);
	t->place = place;
	if (lost) { /* told later all the same, from spill_reap() */
		transfer_submit(t, IO_READ, 0, 0, read_done);
		return 0;
	}
	t->segment = i;
	t->index = (uint32_t)(at - spill->segments[i].records);
	t->record = *record;
	t->record.header = at->header;
	spill->n_used_bytes += record->bytes;
	t->spot = record_spot(spill, i, at);
	t->packed = packed;
	t->into = data;
	t->data_bytes = data_bytes;
	t->layers = packed ? NULL : layers_of(spill, record);
	t->op.iov[0] = (struct iovec){t->head, at->header};
	t->op.iov[1] = (struct iovec){packed ? t->pack : data, data_bytes};
	spill->segments[i].n_readers++;
	if (!spill->n_reads++)
		spill->read_event_ns = loop_now();
	if (t->layers && parts_submit(t))
		return 0;
	transfer_submit(t, IO_READ, t->spot.off, 2, read_done);
	return 0;
}

void spill_forget(struct spill *spill, spill_place place)
{
	uint32_t i;
	struct record *record = segment_find(spill, place, &i);

	if (record)
		segment_drop(spill, i, (uint32_t)(record - spill->segments[i].records), false);
}

/* ---- flush ---- */

static void flush_done(struct io_op *op, int64_t res)
{
	struct transfer *t = op->owner;
	struct spill *spill = t->spill;

	if (res < 0)
		health_flush_failed(spill, (int)-res);
	for (uint32_t i = 0; res >= 0 && i < spill->n_present; i++)
		if (spill->segments[i].dirty_serial <= t->serial)
			spill->segments[i].dirty = false;
	if (res >= 0)
		seal_ready(spill);
	transfer_end(t, (int)res, 0);
}

int spill_flush(struct spill *spill, spill_done_fn done, void *owner)
{
	struct transfer *t = transfer_new(spill, TRANSFER_FLUSH, done, owner);

	if (!t)
		return -EAGAIN;
	t->serial = spill->write_serial;
	transfer_submit(t, IO_DATASYNC, 0, 0, flush_done);
	return 0;
}

void spill_flush_own(struct spill *spill)
{
	spill_flush(spill, NULL, NULL);
}

/* ---- open and close ---- */

static int spill_make_transfers(struct spill *spill)
{
	spill->n_transfers = 4 * spill->opts.depth > TRANSFERS_MIN ? 4 * spill->opts.depth : TRANSFERS_MIN;
	spill->transfers = calloc(spill->n_transfers, sizeof(*spill->transfers));
	spill->heads = aligned_alloc(SPILL_PAGE, (size_t)spill->n_transfers * 2 * SPILL_PAGE);
	spill->health.probe.bytes = aligned_alloc(SPILL_PAGE, SPILL_PROBE_BYTES);
	spill->packer = packer_new();
	if (spill->opts.keys && spill_cipher_init(&spill->worker_cipher, spill->opts.keys) < 0)
		return -ENOMEM;
	spill->cipher = spill->opts.keys ? &spill->worker_cipher : NULL;
	if (!spill->transfers || !spill->heads || !spill->health.probe.bytes || !spill->packer)
		return -ENOMEM;
	io_memory_lend(spill->heads, (uint64_t)spill->n_transfers * 2 * SPILL_PAGE);
	for (unsigned i = spill->n_transfers; i-- > 0;) {
		spill->transfers[i].spill = spill;
		spill->transfers[i].head = spill->heads + (size_t)i * 2 * SPILL_PAGE;
		spill->transfers[i].next = spill->free_transfers;
		spill->free_transfers = &spill->transfers[i];
	}
	return 0;
}

static void segment_release(struct segment *segment)
{
	free(segment->records);
	free(segment->index);
}

static int spill_make_segments(struct spill *spill)
{
	uint64_t segment_bytes = spill->file.super.segment_bytes;
	uint64_t n = (spill->opts.capacity - SPILL_SUPER_AREA) / segment_bytes;
	uint64_t in_file = spill->file.bytes > SPILL_SUPER_AREA ? spill->file.bytes - SPILL_SUPER_AREA : 0;

	if (n > 1u << 24) /* as a place holds; more would be segments far too small */
		n = 1u << 24;
	spill->n_segments = (uint32_t)n;
	in_file = (in_file + segment_bytes - 1) / segment_bytes;
	spill->n_present = (uint32_t)(in_file < n ? in_file : n);
	spill->segments = calloc(n, sizeof(*spill->segments));
	if (!spill->segments)
		return -ENOMEM;
	for (uint32_t i = 0; i < spill->n_present; i++)
		spill->segments[i].state = SEGMENT_EMPTY;
	spill->open = SPILL_NO_SEGMENT;
	spill->next_sequence = (spill->file.super.start << 32) + 1;
	return 0;
}

static void spill_free(struct spill *spill)
{
	io_close(spill->io);
	spill_file_close(&spill->file);
	for (uint32_t i = 0; spill->segments && i < spill->n_segments; i++) {
		share_release(spill, i);
		segment_release(&spill->segments[i]);
	}
	free(spill->segments);
	for (unsigned i = 0; spill->transfers && i < spill->n_transfers; i++)
		spill_memory_give(spill, spill->transfers[i].memory);
	spill_memory_free_all(spill);
	packer_free(spill->packer);
	spill_cipher_deinit(&spill->worker_cipher);
	free(spill->transfers);
	io_memory_take_back(spill->heads);
	free(spill->heads);
	free(spill->health.probe.bytes);
	undumped_free(spill->scrub.bytes);
	free(spill->order);
	kill_table_free(spill->kills);
	free(spill);
}

/* Nothing lives in it, so nothing is lost by other segments. */
static int spill_remake(struct spill *spill)
{
	int r = spill_file_remake(&spill->file, &spill->opts);

	if (r <= 0)
		return r;
	log_info("spill store %s: nothing was in it, so it is made anew with segments of %" PRIu64 " bytes",
		spill->file.path, spill->file.super.segment_bytes);
	for (uint32_t i = 0; i < spill->n_segments; i++)
		segment_release(&spill->segments[i]);
	free(spill->segments);
	spill->segments = NULL;
	return spill_make_segments(spill);
}

/* What needs nobody else: may run in any thread. */
static int spill_start(struct spill *spill, char message[256])
{
	struct io_opts io_opts = {.depth = spill->opts.depth,
		.use_uring = spill->opts.use_uring,
		.worker = true,
		.cpus = spill->opts.cpus,
		.lock_fd = -1};
	int r = spill_make_transfers(spill);

	if (r == 0)
		r = spill_make_segments(spill);
	if (r < 0) {
		snprintf(message, 256, "out of memory for spill store %.150s", spill->file.path);
		return r;
	}
	/* a copy: where the scan fails the caller's is still the caller's */
	if (spill->opts.lock_fd >= 0)
		io_opts.lock_fd = fcntl(spill->opts.lock_fd, F_DUPFD_CLOEXEC, 0);
	r = io_open(&spill->io, &io_opts, message);
	if (r < 0) {
		if (io_opts.lock_fd >= 0)
			close(io_opts.lock_fd);
		return r;
	}
	r = spill_scan(spill);
	if (r < 0)
		snprintf(message, 256, "cannot read spill store %.150s: %s", spill->file.path, strerror(-r));
	return r;
}

static void text_append(char text[256], const char *format, ...)
{
	size_t n = strlen(text);
	va_list args;

	va_start(args, format);
	vsnprintf(text + n, 256 - n, format, args);
	va_end(args);
}

int spill_begin(struct spill **result, const struct spill_opts *opts, char message[256])
{
	struct spill *spill = calloc(1, sizeof(*spill));
	char note[128], direct[256], engine[256] = "out of memory";
	int r;

	*result = NULL;
	if (!spill) {
		snprintf(message, 256, "out of memory");
		return -ENOMEM;
	}
	assert(opts->number < SPILL_STORES_MAX);
	spill->opts = *opts;
	spill->opts.depth = opts->depth ? opts->depth : 32;
	spill->file.fd = -1;
	spill->health.state = SPILL_UP;
	r = spill_file_open(&spill->file, &spill->opts, note, direct);
	snprintf(message, 256, "%s", direct);
	if (r == 0)
		r = spill_start(spill, engine);
	if (r < 0) {
		if (spill->file.fd >= 0)
			snprintf(message, 256, "%s", engine);
		spill_free(spill);
		return r;
	}
	if (opts->lock_fd >= 0)
		close(opts->lock_fd);
	spill->opts.lock_fd = -1;
	*result = spill;
	message[0] = 0;
	text_append(message, "%s; %s%s", engine, direct, note);
	return 0;
}

static int tell_failed(struct spill **result, int r, char message[256])
{
	snprintf(message, 256, "cannot read spill store %.150s: %s", (*result)->file.path, strerror(-r));
	spill_free(*result);
	*result = NULL;
	return r;
}

static void tell_end(struct spill *spill, char message[256])
{
	uint32_t n_unsealed = 0;

	if (!spill->n_present)
		segment_allocate(spill);
	for (uint32_t i = 0; i < spill->n_present; i++)
		n_unsealed += spill->segments[i].dirty;
	if (n_unsealed) /* once flushed, they are sealed */
		spill_flush_own(spill);
	text_append(message, "; %" PRIu64 " records in %u segments", spill->stats.live_records,
		spill->n_present + spill->allocating);
	if (n_unsealed)
		text_append(message,
			", %u of them not sealed, as a kill leaves them: read record by record, what is whole in them counts",
			n_unsealed);
}

int spill_tell(struct spill **result, char message[256])
{
	struct spill *spill = *result;
	bool direct = spill->file.direct;
	int r = spill_tell_found(spill, UINT64_MAX);

	if (r == 0 && !spill->stats.live_records &&
		(spill->opts.largest_block > spill_longest(spill) || spill->file.small_unit))
		r = spill_remake(spill);
	if (r < 0)
		return tell_failed(result, r, message);
	if (direct != spill->file.direct)
		text_append(message, "; made anew, so with O_DIRECT");
	tell_end(spill, message);
	while (spill->allocating)
		io_wait(spill->io, loop_now() + SPILL_SECOND);
	return 0;
}

int spill_tell_some(struct spill **result, uint64_t n, char message[256])
{
	int r = spill_tell_found(*result, n);

	if (r < 0)
		return tell_failed(result, r, message);
	if (r == 0)
		tell_end(*result, message);
	return r;
}

int spill_open(struct spill **result, const struct spill_opts *opts, char message[256])
{
	int r = spill_begin(result, opts, message);

	return r < 0 ? r : spill_tell(result, message);
}

static bool spill_settle(struct spill *spill, uint64_t deadline_ns)
{
	while (io_in_flight(spill->io) && loop_now() < deadline_ns) {
		io_wait(spill->io, deadline_ns);
		pack_place_waiting(spill);
	}
	return !io_in_flight(spill->io);
}

void spill_close(struct spill *spill)
{
	if (spill)
		spill_close_by(spill,
			loop_now() + (spill->opts.close_ms ? spill->opts.close_ms * 1000000ull : SPILL_CLOSE_NS));
}

void spill_close_by(struct spill *spill, uint64_t deadline_ns)
{
	uint64_t start_ns = loop_now();

	spill->scrub.allowance = 0; /* no further record */
	if (spill_settle(spill, deadline_ns) && spill->free_transfers) {
		if (spill->open != SPILL_NO_SEGMENT)
			segment_close(spill); /* flushes, then seals */
		else
			spill_flush_own(spill);
	}
	if (spill_settle(spill, deadline_ns)) {
		spill_free(spill);
		return;
	}
	/* what they write from and to must stay, so everything does: the process is about to end */
	log_warn("spill store %s: %u transfers have not ended after %" PRIu64
		 " ms: is the disk hung? stopping without them; what they wrote may be missing at the next start",
		spill->file.path, io_in_flight(spill->io), (loop_now() - start_ns) / 1000000);
}

bool spill_abandon(struct spill *spill, uint64_t n)
{
	uint64_t least = spill->stats.live_records > n ? spill->stats.live_records - n : 0;

	for (uint32_t i = 0; i < spill->n_present && spill->stats.live_records > least; i++)
		if (spill->segments[i].n_live)
			segment_drop_all(spill, i, true);
	if (spill->stats.live_records || spill->n_used || io_in_flight(spill->io))
		return false;
	spill_free(spill);
	return true;
}

/* ---- the rest ---- */

int spill_fd(const struct spill *spill)
{
	return io_fd(spill->io);
}

static unsigned spill_moved(struct spill *spill, unsigned n)
{
	if (n > spill->n_idle) {
		spill->moved_ns = loop_now();
		spill->health.hung = false;
	}
	spill->n_idle = 0;
	pack_place_waiting(spill);
	return n;
}

unsigned spill_reap(struct spill *spill)
{
	return spill_moved(spill, io_reap(spill->io));
}

unsigned spill_wait(struct spill *spill, uint64_t deadline_ns)
{
	return spill_moved(spill, io_wait(spill->io, deadline_ns));
}

static unsigned spill_moving(const struct spill *spill, enum transfer_kind kind, uint64_t ns_id)
{
	unsigned n = 0;

	for (unsigned i = 0; spill->n_used && i < spill->n_transfers; i++)
		n += spill->transfers[i].kind == kind && spill->transfers[i].record.ns_id == ns_id;
	return n;
}

unsigned spill_writing(const struct spill *spill, uint64_t ns_id)
{
	return spill_moving(spill, TRANSFER_WRITE, ns_id);
}

unsigned spill_reading(const struct spill *spill, uint64_t ns_id)
{
	return spill_moving(spill, TRANSFER_READ, ns_id);
}

bool spill_stalled(const struct spill *spill, uint64_t ns)
{
	return io_in_flight(spill->io) && loop_now() - spill->moved_ns > ns;
}

bool spill_hung(const struct spill *spill)
{
	return spill->health.hung;
}

bool spill_telling_damage(const struct spill *spill)
{
	return spill->telling_damage;
}

void spill_tick(struct spill *spill)
{
	health_tick(spill);
	scrub_tick(spill);
}

/* What a store that is down still does, and what brings it back. */
static const char *spill_way_out(const struct spill *spill)
{
	int err = spill->health.last_errno;

	if (spill->health.state == SPILL_FULL)
		return spill->health.refused ? "; the next write tries again: make room there"
					     : "; asked again each 30 s: make room there";
	if (spill->health.hung)
		return "; not written to; up by itself when the disk moves again";
	return err == ENOENT || err == ESTALE ? "; only read; tried each 30 s: put the file back, or restart"
					      : "; only read; up by itself when that is mended (tried each 30 s)";
}

void spill_stats(const struct spill *spill, struct spill_stats *stats)
{
	*stats = spill->stats;
	stats->state = spill->health.state;
	stats->takes_writes = health_takes_writes(spill);
	stats->uring = io_is_uring(spill->io);
	stats->direct = spill->file.direct;
	stats->encrypted = spill->cipher != NULL;
	stats->last_errno = spill->health.last_errno;
	stats->since = spill->health.since;
	stats->queued_bytes = spill->n_used_bytes;
	stats->used_bytes = SPILL_SUPER_AREA + (uint64_t)spill->n_present * spill->file.super.segment_bytes;
	/* what the file system does not give is no room, whatever was asked for */
	stats->capacity = spill->health.short_of_room ? stats->used_bytes : spill->opts.capacity;
	stats->in_flight = spill->n_used;
	stats->message[0] = 0;
	if (spill->health.state != SPILL_UP)
		snprintf(stats->message, sizeof(stats->message), "%.90s: %.98s%s", spill->file.path, spill->health.what,
			spill_way_out(spill));
	else if (spill->health.short_of_room)
		snprintf(stats->message, sizeof(stats->message),
			"%.80s: room for %" PRIu64 " of %" PRIu64 " bytes on its file system, in segments of %" PRIu64
			"; asked again each 30 s: make room there, or give --spill a smaller size",
			spill->file.path, stats->used_bytes, spill->opts.capacity, spill->file.super.segment_bytes);
}
