/*
 * spill_pack.h - a block's bytes packed for the disk, and back
 *
 * zstd, level 1, one frame, behind a struct spill_disk_pack.  kvpoold.8 has the figures that chose it.  For the worker
 * of a spill store: one thread at a time has a packer.  What comes off the disk is foreign: nothing is stored past what
 * the caller says there is room for, whatever it claims, and what comes out is compared with the checksum of what went
 * in.
 */
#ifndef KVPOOL_SPILL_PACK_H
#define KVPOOL_SPILL_PACK_H

#include <stdint.h>

struct packer;

/** packer_new() - Return: NULL: no memory. Its working memory comes with the first use. */
struct packer *packer_new(void);
void packer_free(struct packer *packer);

/**
 * packer_pack() - @bytes of @data, which another process may be storing to, into @out
 * @room: what is longer does not pay
 * Return: bytes in @out; 0: they would be more than @room; -ENOMEM.
 */
int64_t packer_pack(struct packer *packer, const void *data, uint64_t bytes, void *out, uint64_t room);

/** packer_unpack() - exactly @bytes to @data. Return: 0; -EBADMSG: @in is not those bytes packed; -ENOMEM. */
int packer_unpack(struct packer *packer, const void *in, uint64_t stored, void *data, uint64_t bytes);

/** packer_time() - CPU time it takes to unpack what was packed last. Return: ns, at least 1; 0: not told. */
uint64_t packer_time(struct packer *packer, const void *in, uint64_t stored, uint64_t bytes);

#endif
