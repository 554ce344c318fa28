/*
 * spill_drop.c - records that no longer count: a mark in the superblock, durable before anybody is told
 *
 * A mark names a namespace, or all, and a sequence number: records in segments before it do not count at the next
 * start. So a drop costs one page, however much is dropped; the bytes stay until their segments are used again.  The
 * page goes to the older copy of the superblock, as at a start, and the start number goes up with it.  The loop's
 * thread.
 *
 * The store makes such a mark for all by itself before a segment with lists of deleted keys is used anew: it is the
 * oldest then in which anything lives, so nothing is lost by it, and what these lists kept dead can lie only where the
 * mark says that nothing counts.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "spill_store.h"

struct drop {
	struct io_op op;
	struct spill *spill;
	struct spill_super super; /* as it will be */
	spill_done_fn done;
	void *owner;
	uint8_t *page;
};

static void drop_end(struct drop *drop, int res)
{
	struct spill *spill = drop->spill;
	spill_done_fn done = drop->done;
	void *owner = drop->owner;

	if (res == 0) { /* what a thread that checks records reads, the UUID, is not written */
		spill->file.super.start = drop->super.start;
		spill->file.super.n_drops = drop->super.n_drops;
		memcpy(spill->file.super.drops, drop->super.drops, sizeof(drop->super.drops));
	}
	spill->drop = NULL;
	free(drop->page);
	free(drop);
	done(owner, res, 0);
}

static void drop_synced(struct io_op *op, int64_t res)
{
	drop_end(op->owner, res < 0 ? (int)res : 0);
}

static void drop_written(struct io_op *op, int64_t res)
{
	struct drop *drop = op->owner;

	if (res < 0) {
		drop_end(drop, (int)res);
		return;
	}
	drop->op = (struct io_op){.kind = IO_DATASYNC, .fd = drop->spill->file.fd, .done = drop_synced, .owner = drop};
	spill_submit(drop->spill, &drop->op);
}

/* Write @super, as it is to be, in the place of the one there is. Return: 0; -ENOMEM. */
static int drop_write(struct spill *spill, const struct spill_super *super, spill_done_fn done, void *owner)
{
	struct drop *drop = calloc(1, sizeof(*drop));

	if (!drop || !(drop->page = aligned_alloc(SPILL_PAGE, SPILL_PAGE))) {
		free(drop);
		return -ENOMEM;
	}
	drop->super = *super;
	drop->super.start++;
	drop->spill = spill;
	drop->done = done;
	drop->owner = owner;
	spill->drop = drop;
	spill_super_encode(drop->page, &drop->super);
	drop->op = (struct io_op){.kind = IO_WRITE,
		.fd = spill->file.fd,
		.off = drop->super.start % 2 * SPILL_PAGE,
		.iov[0] = {drop->page, SPILL_PAGE},
		.n_iov = 1,
		.done = drop_written,
		.owner = drop};
	spill_submit(spill, &drop->op);
	return 0;
}

int spill_drop(struct spill *spill, uint64_t ns_id, spill_done_fn done, void *owner)
{
	struct spill_super super = spill->file.super;

	if (spill->drop)
		return -EBUSY;
	if (spill->health.state == SPILL_DOWN)
		return -ENODEV;
	segment_close(spill); /* what is written from now on is of a later sequence */
	if (spill_super_drop(&super, ns_id, spill->next_sequence) < 0)
		return -ENOSPC;
	return drop_write(spill, &super, done, owner);
}

/* Who waits for the segment looks again. */
static void drop_passed_done(void *owner, int res, spill_place none)
{
	(void)none;
	if (res < 0)
		health_failed(owner, SPILL_NO_SEGMENT, "writing the superblock", -res);
}

int drop_passed(struct spill *spill, uint32_t i)
{
	struct spill_super super = spill->file.super;
	int r;

	if (spill_super_dropped(&super, 0, spill->segments[i].sequence))
		return 0;
	if (spill->drop)
		return -EAGAIN;
	r = spill_super_pass(&super, spill->segments[i].sequence + 1);
	if (r == 0)
		r = drop_write(spill, &super, drop_passed_done, spill);
	return r < 0 ? r : -EAGAIN;
}
