/*
 * fuzz_client_descriptor.c - a namespace's descriptor as foreign bytes, as the library judges it and the daemon too
 *
 * One that is taken has a size that fits its layers: no sum of it has gone round.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvpool_desc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition)
{
	if (!condition)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvp_desc desc, other;
	const char *field = NULL;
	uint64_t block_bytes = 0, off = 0;

	memset(&desc, 0, sizeof(desc));
	memcpy(&desc, data, size < sizeof(desc) ? size : sizeof(desc));
	must(kvp_desc_differs(&desc, &desc) == NULL);
	other = desc;
	other.block_tokens ^= 1;
	must(!strcmp(kvp_desc_differs(&desc, &other), "block_tokens"));
	if (kvp_desc_check(&desc, &field, &block_bytes) < 0) {
		must(field != NULL);
		return 0;
	}
	must(field == NULL && block_bytes > 0 && block_bytes <= KVP_BLOCK_BYTES_MAX);
	if (desc.layout == KVP_LAYOUT_OPAQUE)
		return 0;
	for (uint32_t i = 0; i < desc.n_layers; i++)
		for (int which = KVP_K; which <= KVP_V; which++) {
			uint64_t at = kvp_tensor_off(&desc, i, which), bytes = kvp_tensor_bytes(&desc, i, which);

			must(at % KVP_TENSOR_ALIGN == 0);
			if (desc.layout == KVP_LAYOUT_TILED) /* K and V of a head's tiles in turns */
				must(which == KVP_K ? at == off : at <= off);
			else
				must(at == off);
			off += bytes;
			must(off <= block_bytes);
		}
	must(off == block_bytes);
	return 0;
}
