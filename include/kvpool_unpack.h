/*
 * kvpool_unpack.h - what a packed record of a spill store unpacks to
 *
 * Inside kvpool only: the daemon, for each read, and kvctl store verify.  Whoever includes it links libzstd and
 * libxxhash.
 */
#ifndef KVPOOL_UNPACK_H
#define KVPOOL_UNPACK_H

#include <zstd.h>

#include "kvpool_spill.h"

/** spill_unpack() - @in: a record's data, of @stored bytes; @data: room for the block's @bytes, past which nothing is stored
 *  whatever @in says.  Return: 0: exactly what was packed; -EBADMSG. */
static inline int spill_unpack(ZSTD_DCtx *zstd, const void *in, uint64_t stored, void *data, uint64_t bytes)
{
	struct spill_disk_pack head;
	struct spill_hash hash;
	size_t n;

	if (stored <= sizeof(head))
		return -EBADMSG;
	memcpy(&head, in, sizeof(head));
	if (le64toh(head.magic) != SPILL_PACK_MAGIC || le64toh(head.bytes) != bytes)
		return -EBADMSG;
	n = ZSTD_decompressDCtx(zstd, data, bytes, (const char *)in + sizeof(head), stored - sizeof(head));
	if (ZSTD_isError(n) || n != bytes)
		return -EBADMSG;
	for (int i = 0; i < 2; i++)
		hash.w[i] = le64toh(head.hash[i]);
	return spill_hash_equal(hash, spill_hash_data(data, bytes)) ? 0 : -EBADMSG;
}

#endif
