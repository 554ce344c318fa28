/*
 * spill_health.c - what fails and is damaged, and says so; what is set aside for it, and how it comes back
 *
 * A failed write or flush, or 5 s in which no transfer ended, takes the store down: no more writes until a probe write
 * at a place of its own has gone through, tried after 1 s, then twice as long each time, 30 s at most.  The same when a
 * look at the file, every 2 s, finds it gone or its directory unwritable: an open descriptor alone would not tell.  The
 * segment is BAD: never written again until every byte that was written to it has been overwritten, flushed and read
 * back by a probe.  Before that its living records must have had their turn, for the probe would overwrite them.
 *
 * A write that finds no room makes the store FULL until there is some: a write is let try every 5 s, and the file
 * system asked for one more segment every 30 s.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fault.h"
#include "loop.h"
#include "spill_store.h"

#define BACKOFF_MIN_NS SPILL_SECOND
#define BACKOFF_MAX_NS (30 * SPILL_SECOND)
#define FULL_NS (5 * SPILL_SECOND)
#define LOOK_NS (2 * SPILL_SECOND)
#define HUNG_NS (5 * SPILL_SECOND)
#define STEADY_NS (5 * SPILL_SECOND) /* up for less: the next back-off goes on where the last one was */

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
	health->since = now;
	if (health->backoff_ns && loop_now() - health->up_since_ns < STEADY_NS)
		health->backoff_ns = backoff_next(health->backoff_ns);
	else
		health->backoff_ns = BACKOFF_MIN_NS;
	health->probe_at_ns = loop_now() + health->backoff_ns;
	if (gmtime_r(&now, &tm))
		strftime(since, sizeof(since), "%Y-%m-%d %H:%M:%S UTC", &tm);
	snprintf(health->what, sizeof(health->what), "%s failed: %s (errno %d), since %s", what, strerror(err), err,
		since);
}

static void health_up(struct spill *spill)
{
	struct health *health = &spill->health;

	health->state = SPILL_UP;
	health->since = time(NULL);
	health->what[0] = 0;
	health->refused = false;
}

bool health_takes_writes(const struct spill *spill)
{
	const struct health *health = &spill->health;

	return health->state == SPILL_UP || (health->state == SPILL_FULL && loop_now() >= health->probe_at_ns);
}

static void segment_condemn(struct spill *spill, uint32_t i)
{
	struct segment *segment = &spill->segments[i];

	if (segment->state == SEGMENT_BAD)
		return;
	if (spill->open == i)
		spill->open = SPILL_NO_SEGMENT;
	segment->state = SEGMENT_BAD;
	segment_forget_index(segment);
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
		if (segment->n_kills)
			log_warn(
				"spill store %s: a flush failed, and with it went lists of keys that were deleted lately: a start may find some of them again; delete them once more",
				spill->file.path);
		segment_drop_all(spill, i, true);
	}
	health_failed(spill, SPILL_NO_SEGMENT, "flush", err);
	log_limited(&spill->health.limit, LOG_LEVEL_WARN,
		"spill store %s: flush failed: %s (errno %d); what was written since the last one is dropped",
		spill->file.path, strerror(err), err);
}

void health_damaged(struct spill *spill, uint32_t i, const struct record *record)
{
	spill->stats.damaged++;
	log_limited(&spill->health.read_limit, LOG_LEVEL_WARN,
		"spill store %s: the record at byte %" PRIu64
		" is not what was written there: its block is a miss from now on (%" PRIu64
		" such records since the start); look at that disk, and at who else writes to the file: kvctl store verify reads all of it",
		spill->file.path, record_spot(spill, i, record).off, spill->stats.damaged);
}

void health_unread(struct spill *spill, uint32_t i, const struct record *record, int err)
{
	spill->stats.read_errors++;
	spill->health.last_errno = err;
	log_limited(&spill->health.read_limit, LOG_LEVEL_WARN,
		"spill store %s: cannot read the record at byte %" PRIu64 ": %s (errno %d; %" PRIu64
		" such reads since the start); look at that disk",
		spill->file.path, record_spot(spill, i, record).off, strerror(err), err, spill->stats.read_errors);
}

static uint64_t health_bytes(const struct spill *spill)
{
	return SPILL_SUPER_AREA + (uint64_t)spill->n_present * spill->file.super.segment_bytes;
}

void health_no_room(struct spill *spill, int err)
{
	if (spill->health.short_of_room)
		return;
	spill->health.short_of_room = true;
	log_warn(
		"spill store %s: no room for more than %" PRIu64 " of its %" PRIu64
		" bytes: %s (errno %d); it makes do with those: make room on that file system, or give --spill a smaller size",
		spill->file.path, health_bytes(spill), spill->opts.capacity, strerror(err), err);
}

/* There is a segment to write to, which is room, but where a write was refused: only a write can tell there. */
static void health_has_segment(struct spill *spill)
{
	if (spill->health.state == SPILL_FULL && !spill->health.refused)
		health_up(spill);
}

void health_room(struct spill *spill)
{
	health_has_segment(spill);
	if (spill->health.state == SPILL_FULL)
		return;
	if (spill->health.short_of_room)
		log_info("spill store %s: its file system gives room again", spill->file.path);
	spill->health.short_of_room = false;
}

void health_full(struct spill *spill, bool refused, int err)
{
	struct health *health = &spill->health;

	if (health->state == SPILL_DOWN)
		return;
	health_no_room(spill, err);
	health_set(spill, SPILL_FULL, "finding room", err);
	health->refused |= refused;
	health->probe_at_ns = loop_now() + FULL_NS;
}

/* What was on its way when another write found no room tells nothing. */
void health_written(struct spill *spill)
{
	bool gives = spill->unreserved || spill->health.refused;

	if (!health_takes_writes(spill))
		return;
	if (spill->health.state == SPILL_FULL)
		health_up(spill);
	if (gives)
		health_room(spill);
}

/* ---- probes ---- */

static void probe_done(struct io_op *op, int64_t res);

static void probe_step(struct spill *spill)
{
	static const enum io_kind kinds[] = {
		[PROBE_FILE] = IO_OPEN, [PROBE_WRITE] = IO_WRITE, [PROBE_SYNC] = IO_DATASYNC, [PROBE_READ] = IO_READ};
	struct probe *probe = &spill->health.probe;
	size_t n = probe->end - probe->at < SPILL_PROBE_BYTES ? (size_t)(probe->end - probe->at) : SPILL_PROBE_BYTES;

	for (size_t i = 0; i < n; i++)
		probe->bytes[i] = probe->stage == PROBE_WRITE ? spill_probe_byte(probe->at + i) : 0;
	probe->op = (struct io_op){.kind = kinds[probe->stage],
		.fd = probe->stage == PROBE_FILE ? -1 : spill->file.fd,
		.off = probe->at,
		.iov[0] = {probe->bytes, n},
		.n_iov = probe->stage == PROBE_SYNC ? 0 : 1,
		.done = probe_done,
		.owner = spill};
	if (probe->stage == PROBE_FILE) {
		probe->op.iov[0].iov_base = spill->file.path;
		probe->op.off = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
		probe->op.n_iov = 0;
	}
	spill_submit(spill, &probe->op);
}

static void probe_start(struct spill *spill, uint32_t i)
{
	struct probe *probe = &spill->health.probe;

	probe->only_file = i == SPILL_NO_SEGMENT && spill->health.state != SPILL_DOWN;
	probe->segment = i;
	probe->start = probe->at = i == SPILL_NO_SEGMENT ? SPILL_PROBE_OFF : segment_off(spill, i);
	probe->end = probe->at + (i == SPILL_NO_SEGMENT ? SPILL_PAGE : spill->segments[i].used);
	probe->stage = i == SPILL_NO_SEGMENT ? PROBE_FILE : PROBE_WRITE;
	probe_step(spill);
}

/* @fd: the file by its path, or -errno. Return: 0; an errno. */
static int probe_file(const struct spill *spill, int64_t fd)
{
	struct stat there, ours;
	int err = fd < 0 ? (int)-fd : 0;

	if (!err && (fstat((int)fd, &there) < 0 || fstat(spill->file.fd, &ours) < 0))
		err = errno;
	if (!err && (there.st_ino != ours.st_ino || there.st_dev != ours.st_dev))
		err = ESTALE;
	if (!err && !spill->file.raw && faccessat(AT_FDCWD, spill->opts.dir, W_OK | X_OK, AT_EACCESS) < 0)
		err = errno; /* the open has just been along this path: no wait */
	if (fd >= 0)
		close((int)fd);
	return err;
}

static void probe_end(struct spill *spill, int err)
{
	struct health *health = &spill->health;
	struct segment *segment;

	health->probe.stage = PROBE_IDLE;
	if (health->probe.segment == SPILL_NO_SEGMENT) {
		health->look_at_ns = loop_now() + LOOK_NS;
		if (health->probe.only_file) {
			if (err)
				health_failed(spill, SPILL_NO_SEGMENT, "looking at the file", err);
		} else if (err) {
			health->last_errno = err;
			health->backoff_ns = backoff_next(health->backoff_ns);
			health->probe_at_ns = loop_now() + health->backoff_ns;
		} else {
			health_up(spill);
			health->up_since_ns = loop_now();
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
		health_has_segment(spill);
	}
}

static bool probe_matches(const struct probe *probe, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (probe->bytes[i] != spill_probe_byte(probe->at + i))
			return false;
	return true;
}

/* Write from start to end, flush, read from start to end. Return: 1: proved good; 0: more to do; -errno. */
static int probe_advance(struct spill *spill, int64_t res)
{
	struct probe *probe = &spill->health.probe;

	switch (probe->stage) {
	case PROBE_FILE:
		res = -probe_file(spill, res);
		probe->stage = PROBE_WRITE;
		return res < 0 ? (int)res : probe->only_file;
	case PROBE_SYNC:
		if (res < 0) /* the kernel tells a lost page once, and now it has told us */
			health_flush_failed(spill, (int)-res);
		probe->stage = PROBE_READ;
		probe->at = probe->start;
		return (int)res;
	default:
		break;
	}
	if (res < 0)
		return (int)res;
	if (probe->stage == PROBE_READ && !probe_matches(probe, (size_t)res))
		return -EIO;
	probe->at += (uint64_t)res;
	if (probe->at < probe->end)
		return 0;
	if (probe->stage == PROBE_READ)
		return 1;
	probe->stage = PROBE_SYNC;
	return 0;
}

static void probe_done(struct io_op *op, int64_t res)
{
	struct spill *spill = op->owner;
	int r;

	spill->n_idle += op->kind == IO_OPEN;
	r = probe_advance(spill, FAULT_INT("spill.probe", res));

	if (r == 0)
		probe_step(spill);
	else
		probe_end(spill, r < 0 ? -r : 0);
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

	if (!health->hung && spill_stalled(spill, HUNG_NS)) {
		health->hung = true;
		health_set(spill, SPILL_DOWN, "waiting 5 s for a transfer", ETIMEDOUT);
	}
	if (health->state != SPILL_DOWN)
		segment_ask_for_room(spill);
	if (health->probe.stage != PROBE_IDLE)
		return;
	if (health->state == SPILL_DOWN) {
		if (loop_now() >= health->probe_at_ns)
			probe_start(spill, SPILL_NO_SEGMENT);
		return;
	}
	i = segment_to_probe(spill);
	if (i != SPILL_NO_SEGMENT || loop_now() >= health->look_at_ns)
		probe_start(spill, i);
}
