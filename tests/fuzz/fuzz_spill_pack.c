/*
 * fuzz_spill_pack.c - packed data of a record as foreign bytes
 *
 * Input: two bytes that say how long the block is to be, then the data.  The head would keep a fuzzer out for ever, so
 * its magic and length are put right when the first byte is odd.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../daemon/spill_pack.h"
#include "kvpool_spill.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct packer *packer = packer_new();
	struct spill_disk_pack head;
	uint64_t bytes;
	uint8_t *in, *out;

	if (size < 2 || size > 1 << 16) {
		packer_free(packer);
		return 0;
	}
	bytes = 1 + (data[0] | (uint64_t)data[1] << 8);
	in = malloc(size - 2 + 1);
	out = malloc(bytes); /* no more: a sanitizer sees what is stored past it */
	memcpy(in, data + 2, size - 2);
	if (data[0] & 1 && size - 2 >= sizeof(head)) {
		memcpy(&head, in, sizeof(head));
		head.magic = SPILL_PACK_MAGIC;
		head.bytes = bytes;
		memcpy(in, &head, sizeof(head));
	}
	if (packer_unpack(packer, in, size - 2, out, bytes) == 0) {
		uint8_t *again = malloc(2 * bytes + 1024), *back = malloc(bytes);
		int64_t n = packer_pack(packer, out, bytes, again, 2 * bytes + 1024);

		if (n <= 0 || packer_unpack(packer, again, (uint64_t)n, back, bytes) < 0 || memcmp(out, back, bytes))
			abort();
		free(again);
		free(back);
	}
	free(in);
	free(out);
	packer_free(packer);
	return 0;
}
