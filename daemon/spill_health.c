/*
 * spill_health.c - what fails, what is set aside for it, and how it comes back
 *
 * A failed write or flush takes the store down: no more writes until a probe write at a place of its own has gone
 * through, tried after 1 s, then twice as long each time, 30 s at most.  The segment is BAD: never written again until
 * every byte that was written to it has been overwritten, flushed and read back by a probe.  Before that its living
 * records must have had their turn, for the probe would overwrite them.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "fault.h"
#include "loop.h"
#include "spill_store.h"

#define BACKOFF_MIN_NS SPILL_SECOND
#define BACKOFF_MAX_NS (30 * SPILL_SECOND)
#define FULL_NS (5 * SPILL_SECOND)

static uint64_t backoff_next(uint64_t backoff_ns)
{
	return backoff_ns * 2 > BACKOFF_MAX_NS ? BACKOFF_MAX_NS : backoff_ns * 2;
}

static void health_set(struct spill *spill, enum spill_state state, const char *what, int err)
{
	struct health *health = &spill->health;
	time_t now = time(NULL);
	char since[32] = "";
	struct tm tm;

	health->last_errno = err;
	if (health->state == state)
		return;
	health->state = state;
	health->backoff_ns = BACKOFF_MIN_NS;
	health->probe_at_ns = loop_now() + health->backoff_ns;
	if (gmtime_r(&now, &tm))
		strftime(since, sizeof(since), "%Y-%m-%d %H:%M:%S UTC", &tm);
	snprintf(health->what, sizeof(health->what), "%s failed: %s (errno %d), since %s", what, strerror(err), err,
		since);
}

static void segment_condemn(struct spill *spill, uint32_t i)
{
	struct segment *segment = &spill->segments[i];

	if (segment->state == SEGMENT_BAD)
		return;
	if (spill->open == i)
		spill->open = SPILL_NO_SEGMENT;
	segment->state = SEGMENT_BAD;
	segment->backoff_ns = BACKOFF_MIN_NS;
	segment->probe_at_ns = loop_now() + segment->backoff_ns;
}

void health_failed(struct spill *spill, uint32_t i, const char *what, int err)
{
	spill->stats.write_errors++;
	if (i != SPILL_NO_SEGMENT) {
		segment_condemn(spill, i);
		log_limited(&spill->health.limit, LOG_LEVEL_WARN,
			"spill store %s: %s at segment %u failed: %s (errno %d)", spill->file.path, what, i,
			strerror(err), err);
	}
	health_set(spill, SPILL_DOWN, what, err);
}

void health_flush_failed(struct spill *spill, int err)
{
	/* the kernel tells a lost page once: nothing written since the last good flush can be believed */
	for (uint32_t i = 0; i < spill->n_present; i++) {
		struct segment *segment = &spill->segments[i];

		if (!segment->dirty && !segment->n_writers)
			continue;
		segment_condemn(spill, i);
		segment->flush_failed = true;
		segment->dirty = false;
		segment_drop_all(spill, i);
	}
	health_failed(spill, SPILL_NO_SEGMENT, "flush", err);
	log_limited(&spill->health.limit, LOG_LEVEL_WARN,
		"spill store %s: flush failed: %s (errno %d); what was written since the last one is dropped",
		spill->file.path, strerror(err), err);
}

void health_full(struct spill *spill, int err)
{
	if (spill->health.state != SPILL_UP)
		return;
	health_set(spill, SPILL_FULL, "finding room", err);
	spill->health.probe_at_ns = loop_now() + FULL_NS;
}

/* ---- probes ---- */

static void probe_done(struct io_op *op, int64_t res);

static void probe_pattern(const struct probe *probe, uint8_t *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)((probe->at + i) / SPILL_PAGE * 31 + i);
}

static void probe_step(struct spill *spill)
{
	static const enum io_kind kinds[] = {
		[PROBE_WRITE] = IO_WRITE, [PROBE_SYNC] = IO_DATASYNC, [PROBE_READ] = IO_READ};
	struct probe *probe = &spill->health.probe;
	size_t n = probe->end - probe->at < SPILL_PROBE_BYTES ? (size_t)(probe->end - probe->at) : SPILL_PROBE_BYTES;

	if (probe->stage == PROBE_WRITE)
		probe_pattern(probe, probe->bytes, n);
	else
		memset(probe->bytes, 0, n);
	probe->op = (struct io_op){.kind = kinds[probe->stage],
		.fd = spill->file.fd,
		.off = probe->at,
		.iov[0] = {probe->bytes, n},
		.n_iov = probe->stage == PROBE_SYNC ? 0 : 1,
		.done = probe_done,
		.owner = spill};
	io_submit(spill->io, &probe->op);
}

static void probe_start(struct spill *spill, uint32_t i)
{
	struct probe *probe = &spill->health.probe;

	probe->segment = i;
	probe->at = i == SPILL_NO_SEGMENT ? SPILL_PROBE_OFF : segment_off(spill, i);
	probe->end = probe->at + (i == SPILL_NO_SEGMENT ? SPILL_PAGE : spill->segments[i].used);
	probe->stage = PROBE_WRITE;
	probe_step(spill);
}

static void probe_end(struct spill *spill, int err)
{
	struct health *health = &spill->health;
	struct segment *segment;

	health->probe.stage = PROBE_IDLE;
	if (health->probe.segment == SPILL_NO_SEGMENT) {
		if (err) {
			health->last_errno = err;
			health->backoff_ns = backoff_next(health->backoff_ns);
			health->probe_at_ns = loop_now() + health->backoff_ns;
		} else {
			health->state = SPILL_UP;
			health->what[0] = 0;
		}
		return;
	}
	segment = &spill->segments[health->probe.segment];
	if (err) {
		health->last_errno = err;
		segment->backoff_ns = backoff_next(segment->backoff_ns);
		segment->probe_at_ns = loop_now() + segment->backoff_ns;
	} else {
		segment->state = SEGMENT_EMPTY;
	}
}

static void probe_done(struct io_op *op, int64_t res)
{
	struct spill *spill = op->owner;
	struct probe *probe = &spill->health.probe;
	uint64_t start = probe->segment == SPILL_NO_SEGMENT ? SPILL_PROBE_OFF : segment_off(spill, probe->segment);

	res = FAULT_INT("spill.probe", res);
	if (res < 0) {
		probe_end(spill, (int)-res);
		return;
	}
	if (probe->stage == PROBE_READ)
		for (size_t i = 0; i < (size_t)res; i++)
			if (probe->bytes[i] != (uint8_t)((probe->at + i) / SPILL_PAGE * 31 + i)) {
				probe_end(spill, EIO);
				return;
			}
	if (probe->stage == PROBE_SYNC) {
		probe->stage = PROBE_READ;
		probe->at = start;
	} else {
		probe->at += (uint64_t)res;
		if (probe->at >= probe->end && probe->stage == PROBE_READ) {
			probe_end(spill, 0);
			return;
		}
		if (probe->at >= probe->end)
			probe->stage = PROBE_SYNC;
	}
	probe_step(spill);
}

static uint32_t segment_to_probe(const struct spill *spill)
{
	uint64_t now = loop_now();

	for (uint32_t i = 0; i < spill->n_present; i++) {
		const struct segment *segment = &spill->segments[i];

		if (segment->state == SEGMENT_BAD && !segment->n_live && !segment->n_readers && !segment->n_writers &&
			now >= segment->probe_at_ns)
			return i;
	}
	return SPILL_NO_SEGMENT;
}

void health_tick(struct spill *spill)
{
	struct health *health = &spill->health;
	uint32_t i;

	if (health->state == SPILL_FULL && loop_now() >= health->probe_at_ns) {
		health->state = SPILL_UP; /* the next write finds out */
		health->what[0] = 0;
	}
	if (health->probe.stage != PROBE_IDLE)
		return;
	if (health->state == SPILL_DOWN) {
		if (loop_now() >= health->probe_at_ns)
			probe_start(spill, SPILL_NO_SEGMENT);
		return;
	}
	i = segment_to_probe(spill);
	if (i != SPILL_NO_SEGMENT)
		probe_start(spill, i);
}
