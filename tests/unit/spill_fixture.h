/*
 * spill_fixture.h - a spill store in a scratch directory, and blocks whose bytes are known from their number
 */
#ifndef KVPOOL_TEST_SPILL_FIXTURE_H
#define KVPOOL_TEST_SPILL_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../../daemon/io_memory.h"
#include "../../daemon/loop.h"
#include "../../daemon/spill_store.h"
#include "scratch.h"

#define NS_ID 7
#define BLOCK_MAX (2u << 20)
#define BLOCKS 20000

/* How a store moves bytes, and what it pads headers to. */
struct way {
	bool uring;
	uint32_t unit;
};
__attribute__((unused)) static struct way with_uring = {true, SPILL_PAGE}, with_threads = {false, SPILL_PAGE},
					  with_sectors = {true, SPILL_UNIT_MIN};

#define BY(test, way) \
	{ \
#test " (" #way ")", test, setup, teardown, &(way) \
	}
#define ONCE(test) BY(test, with_uring)
#define BOTH(test) BY(test, with_uring), BY(test, with_threads)
#define BOTH_UNITS(test) BY(test, with_threads), BY(test, with_sectors)
#define BY_RING(test) BY(test, with_uring), BY(test, with_sectors)
#define EACH_WAY(test) BOTH(test), BY(test, with_sectors)

/* As the store's caller knows a block. */
struct block {
	unsigned k; /* its number; the key */
	unsigned version; /* what lies in it */
	uint64_t bytes;
	spill_place place; /* 0: not in the store */
	int res; /* of the last transfer */
	bool done;
	unsigned n_gone, n_found;
};

struct fixture {
	struct spill *spill;
	struct spill_opts opts;
	char dir[64], path[96];
	char message[256];
	uint8_t *out, *in;
	struct block *blocks; /* by number */
	unsigned n_gone, n_found, n_unknown;
	struct block *forget_on_gone; /* called spill_forget() for from gone() */
};

/* The content check of the trials, with the version.  Byte by byte, so out of the thread sanitizer's sight: too
   slow. */
#define NO_TSAN __attribute__((no_sanitize("thread")))
static inline NO_TSAN void block_fill(const struct block *b, uint8_t *bytes)
{
	for (uint64_t i = 0; i < b->bytes; i++)
		bytes[i] = (uint8_t)(131 * b->k + 7 * i + 13 * (i / 256) + 29 * b->version);
}

static inline NO_TSAN bool block_is(const struct block *b, const uint8_t *bytes)
{
	for (uint64_t i = 0; i < b->bytes; i++)
		if (bytes[i] != (uint8_t)(131 * b->k + 7 * i + 13 * (i / 256) + 29 * b->version))
			return false;
	return true;
}

static inline struct spill_record block_record(const struct block *b)
{
	return (struct spill_record){.ns_id = NS_ID,
		.key.w = {b->k + 1, 0x9e3779b97f4a7c15u * (b->k + 1)},
		.parent.w = {b->k, b->k ? 1 : 0},
		.bytes = b->bytes,
		.used_tokens = b->version};
}

static inline void fixture_gone(void *owner, void *cookie)
{
	struct fixture *f = owner;
	struct block *b = cookie;

	b->place = 0;
	b->n_gone++;
	f->n_gone++;
	if (f->forget_on_gone && f->forget_on_gone->place) {
		spill_forget(f->spill, f->forget_on_gone->place);
		f->forget_on_gone->place = 0;
	}
}

static inline void *fixture_found(void *owner, const struct spill_record *record, spill_place place)
{
	struct fixture *f = owner;
	unsigned k = (unsigned)record->key.w[0] - 1;
	struct block *b = &f->blocks[k];

	if (record->ns_id != NS_ID || k >= BLOCKS || record->key.w[1] != 0x9e3779b97f4a7c15u * (k + 1) ||
		record->parent.w[0] != k) {
		f->n_unknown++;
		return NULL;
	}
	if (b->place)
		spill_forget(f->spill, b->place);
	b->k = k;
	b->place = place;
	b->bytes = record->bytes;
	b->version = record->used_tokens;
	b->n_found++;
	f->n_found++;
	return b;
}

/* @bytes: capacity. */
static inline struct fixture *fixture_new(const struct way *way, uint64_t capacity, uint64_t segment_bytes)
{
	struct fixture *f = calloc(1, sizeof(*f));

	fault_disarm();
	scratch_make(f->dir);
	snprintf(f->path, sizeof(f->path), "%s/" SPILL_STORE_NAME, f->dir);
	f->opts = (struct spill_opts){.dir = f->dir,
		.capacity = capacity,
		.segment_bytes = segment_bytes,
		.depth = 8,
		.use_uring = way->uring,
		.unit = way->unit,
		.lock_fd = -1,
		.owner = f,
		.gone = fixture_gone,
		.found = fixture_found};
	f->out = aligned_alloc(4096, BLOCK_MAX + 4096);
	f->in = aligned_alloc(4096, BLOCK_MAX + 4096);
	io_memory_lend(f->out, BLOCK_MAX + 4096);
	io_memory_lend(f->in, BLOCK_MAX + 4096);
	f->blocks = calloc(BLOCKS, sizeof(*f->blocks));
	return f;
}

static inline int fixture_open(struct fixture *f)
{
	for (unsigned k = 0; k < BLOCKS; k++)
		f->blocks[k] = (struct block){.k = k};
	f->n_gone = f->n_found = f->n_unknown = 0;
	return spill_open(&f->spill, &f->opts, f->message);
}

static inline void fixture_close(struct fixture *f)
{
	spill_close(f->spill);
	f->spill = NULL;
}

static inline int fixture_reopen(struct fixture *f)
{
	fixture_close(f);
	return fixture_open(f);
}

static inline void fixture_free(struct fixture *f)
{
	fault_disarm();
	fixture_close(f);
	scratch_remove(f->dir);
	io_memory_take_back(f->out);
	io_memory_take_back(f->in);
	free(f->out);
	free(f->in);
	free(f->blocks);
	free(f);
}

static inline void block_done(void *owner, int res, spill_place place)
{
	struct block *b = owner;

	b->res = res;
	b->done = true;
	if (place && res == 0)
		b->place = place;
}

static inline void settle(struct fixture *f)
{
	struct spill_stats s;

	for (spill_stats(f->spill, &s); s.in_flight; spill_stats(f->spill, &s))
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
	spill_reap(f->spill);
}

/* Write block @k with @bytes of @version. Return: spill_write()'s answer, or what became of it. */
static inline int put_version(struct fixture *f, unsigned k, uint64_t bytes, unsigned version)
{
	struct block *b = &f->blocks[k];
	spill_place old = b->place;
	struct spill_record record;
	int r;

	b->bytes = bytes;
	b->version = version;
	b->place = 0;
	b->done = false;
	record = block_record(b);
	block_fill(b, f->out);
	while ((r = spill_write(f->spill, &record, f->out, b, block_done, b)) == -EAGAIN)
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
	if (r < 0)
		return r;
	settle(f);
	if (old && b->n_gone == 0)
		spill_forget(f->spill, old);
	return b->done ? b->res : -ETIMEDOUT;
}

static inline int put(struct fixture *f, unsigned k, uint64_t bytes)
{
	return put_version(f, k, bytes, 0);
}

/* Read block @k, over what lies in f->in. Return: 0: exact; -errno; 1: wrong bytes. */
static inline int get_over(struct fixture *f, unsigned k)
{
	struct block *b = &f->blocks[k];
	struct spill_record record = block_record(b);
	int r;

	if (!b->place)
		return -ENOENT;
	b->done = false;
	while ((r = spill_read(f->spill, b->place, &record, f->in, block_done, b)) == -EAGAIN)
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
	settle(f);
	if (!b->done)
		return -ETIMEDOUT;
	return b->res < 0 ? b->res : !block_is(b, f->in);
}

static inline int get(struct fixture *f, unsigned k)
{
	memset(f->in, 0xee, f->blocks[k].bytes);
	return get_over(f, k);
}

static inline void flush_done(void *owner, int res, spill_place place)
{
	(void)place;
	*(int *)owner = res;
}

static inline int flush(struct fixture *f)
{
	int res = 1;

	if (spill_flush(f->spill, flush_done, &res) < 0)
		return -EAGAIN;
	settle(f);
	return res;
}

/* What a plain record of so many bytes takes up, without layers. */
static inline uint64_t span_of(const struct fixture *f, uint64_t bytes)
{
	uint32_t unit = f->spill->file.super.unit;
	struct spill_record record = {
		.bytes = bytes, .header = (uint16_t)spill_header_bytes(0, f->spill->cipher != NULL, unit)};

	return spill_span(&record, unit);
}

static inline const struct record *block_at(struct fixture *f, unsigned k, uint32_t *i)
{
	const struct record *record = segment_find(f->spill, f->blocks[k].place, i);

	assert_non_null(record);
	return record;
}

/* Where block @k's header lies in the file, how long it is, and where the data begins. */
static inline uint64_t block_off(struct fixture *f, unsigned k)
{
	uint32_t i;
	const struct record *record = block_at(f, k, &i);

	return record_spot(f->spill, i, record).off;
}

static inline uint64_t header_of(struct fixture *f, unsigned k)
{
	uint32_t i;

	return block_at(f, k, &i)->header;
}

static inline uint64_t data_off(struct fixture *f, unsigned k)
{
	return block_off(f, k) + header_of(f, k);
}

static inline struct spill_stats stats_of(struct fixture *f)
{
	struct spill_stats s;

	spill_stats(f->spill, &s);
	return s;
}

/* Bytes of the file as it is: length and what is allocated. */
static inline uint64_t file_bytes(const struct fixture *f, uint64_t *allocated)
{
	struct stat st = {0};

	stat(f->path, &st);
	if (allocated)
		*allocated = (uint64_t)st.st_blocks * 512;
	return (uint64_t)st.st_size;
}

/* What is logged from here on; the lines are not shown.  log_lines() ends it: how many of them have @text? */
struct log_catch {
	FILE *lines;
	int stderr_fd;
};

static inline struct log_catch log_catch(void)
{
	struct log_catch c = {tmpfile(), dup(STDERR_FILENO)};

	dup2(fileno(c.lines), STDERR_FILENO);
	return c;
}

static inline unsigned log_lines(struct log_catch *c, const char *text)
{
	char line[1300];
	unsigned n = 0;

	if (c->stderr_fd >= 0) {
		dup2(c->stderr_fd, STDERR_FILENO);
		close(c->stderr_fd);
		c->stderr_fd = -1;
	}
	rewind(c->lines);
	while (fgets(line, sizeof(line), c->lines))
		n += strstr(line, text) != NULL;
	return n;
}

/* Bookkeeping adds up: what the segments say is what the totals say. */
static inline bool store_adds_up(const struct fixture *f)
{
	const struct spill *spill = f->spill;
	uint64_t live = 0, bytes = 0, open = 0;

	for (uint32_t i = 0; i < spill->n_segments; i++) {
		const struct segment *segment = &spill->segments[i];
		uint32_t n = 0, n_kills = 0;

		for (uint32_t k = 0; k < segment->n_records; k++)
			if (segment->records[k].state == RECORD_LIVE) {
				bool kills = segment->records[k].cookie == &kill_cookie;

				n++;
				n_kills += kills;
				bytes += kills ? 0 : record_bytes(spill, &segment->records[k]);
			}
		if (n != segment->n_live || n_kills != segment->n_kills ||
			segment->used > spill->file.super.segment_bytes ||
			(n && (segment->state == SEGMENT_EMPTY || segment->state == SEGMENT_ABSENT)))
			return false;
		live += n - n_kills;
		open += segment->state == SEGMENT_OPEN;
	}
	return live == spill->stats.live_records && bytes == spill->stats.live_bytes && open <= 1;
}

#endif
