/*
 * spill_pack.c - see spill_pack.h
 *
 * A block is copied before it is packed: a compressor that sees its input change under its hands promises nothing, and
 * the checksum is to be of what was packed.  The copy and zstd's state are the only memory: a block and 1.5 MB, none of
 * it in a core dump (zstd keeps pieces of the input as they are).
 */
#define ZSTD_STATIC_LINKING_ONLY /* contexts in memory of our own */
#include "spill_pack.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvpool_unpack.h"
#include "undumped.h"

#define LEVEL 1

struct packer {
	ZSTD_CCtx *compress;
	ZSTD_DCtx *decompress;
	uint8_t *copy;
	uint64_t room; /* of copy */
};

static void *zstd_new(void *owner, size_t bytes)
{
	(void)owner;
	return undumped_new(bytes);
}

static void zstd_free(void *owner, void *at)
{
	(void)owner;
	undumped_free(at);
}

static const ZSTD_customMem undumped = {zstd_new, zstd_free, NULL};

struct packer *packer_new(void)
{
	return calloc(1, sizeof(struct packer));
}

void packer_free(struct packer *packer)
{
	if (!packer)
		return;
	ZSTD_freeCCtx(packer->compress);
	ZSTD_freeDCtx(packer->decompress);
	undumped_free(packer->copy);
	free(packer);
}

static bool packer_make_room(struct packer *packer, uint64_t bytes)
{
	if (!packer->compress)
		packer->compress = ZSTD_createCCtx_advanced(undumped);
	if (packer->room < bytes) {
		undumped_free(packer->copy);
		packer->copy = undumped_new(bytes);
		packer->room = packer->copy ? bytes : 0;
	}
	return packer->compress && packer->room >= bytes;
}

int64_t packer_pack(struct packer *packer, const void *data, uint64_t bytes, void *out, uint64_t room)
{
	struct spill_disk_pack head = {.magic = htole64(SPILL_PACK_MAGIC), .bytes = htole64(bytes)};
	struct spill_hash hash;
	size_t n;

	if (room <= sizeof(head))
		return 0;
	if (!packer_make_room(packer, bytes))
		return -ENOMEM;
	memcpy(packer->copy, data, bytes);
	hash = spill_hash_data(packer->copy, bytes);
	for (int i = 0; i < 2; i++)
		head.hash[i] = htole64(hash.w[i]);
	memcpy(out, &head, sizeof(head));
	n = ZSTD_compressCCtx(
		packer->compress, (char *)out + sizeof(head), room - sizeof(head), packer->copy, bytes, LEVEL);
	return ZSTD_isError(n) ? 0 : (int64_t)(sizeof(head) + n);
}

int packer_unpack(struct packer *packer, const void *in, uint64_t stored, void *data, uint64_t bytes)
{
	if (!packer->decompress && !(packer->decompress = ZSTD_createDCtx_advanced(undumped)))
		return -ENOMEM;
	return spill_unpack(packer->decompress, in, stored, data, bytes);
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint64_t packer_time(struct packer *packer, const void *in, uint64_t stored, uint64_t bytes)
{
	uint64_t start = cpu_ns();

	if (packer->room < bytes || packer_unpack(packer, in, stored, packer->copy, bytes) < 0)
		return 0;
	return cpu_ns() - start + 1;
}
