/*
 * spill_memory.c - memory for packed bytes on their way: lent to a transfer for as long as it lasts, bounded over all
 * of them
 *
 * Pieces are kept when they come back, the one used last on top, so their pages are touched once and stay in the cache.
 * They are no transfer's own: one that moves plain bytes, which most may, has none, however many of them there are in
 * between. The loop's thread takes and gives; the worker only looks at the bytes.
 */
#include <stdlib.h>

#include "spill_store.h"
#include "undumped.h"

struct spill_memory {
	struct spill_memory *next; /* while idle */
	uint64_t room;
	uint8_t *bytes;
};

static void memory_free(struct spill *spill, struct spill_memory **at)
{
	struct spill_memory *memory = *at;

	*at = memory->next;
	spill->pack_room -= memory->room;
	undumped_free(memory->bytes);
	free(memory);
}

/* The smallest idle one that will do: a larger one is for who needs it. */
static struct spill_memory *memory_idle(struct spill *spill, uint64_t bytes)
{
	struct spill_memory **best = NULL, *memory;

	for (struct spill_memory **at = &spill->pack_idle; *at; at = &(*at)->next)
		if ((*at)->room >= bytes && (!best || (*at)->room < (*best)->room))
			best = at;
	if (!best)
		return NULL;
	memory = *best;
	*best = memory->next;
	return memory;
}

struct spill_memory *spill_memory_take(struct spill *spill, uint64_t bytes)
{
	struct spill_memory *memory = memory_idle(spill, bytes);

	if (memory)
		return memory;
	while (spill->pack_idle && spill->pack_room + bytes > PACK_MOST)
		memory_free(spill, &spill->pack_idle);
	if (spill->pack_room && spill->pack_room + bytes > PACK_MOST)
		return NULL;
	memory = calloc(1, sizeof(*memory));
	if (!memory || !(memory->bytes = undumped_new(bytes))) {
		free(memory);
		return NULL;
	}
	memory->room = bytes;
	spill->pack_room += bytes;
	spill->n_pack_made++;
	return memory;
}

void spill_memory_give(struct spill *spill, struct spill_memory *memory)
{
	if (!memory)
		return;
	memory->next = spill->pack_idle;
	spill->pack_idle = memory;
}

uint8_t *spill_memory_bytes(const struct spill_memory *memory)
{
	return memory->bytes;
}

uint64_t spill_memory_room(const struct spill_memory *memory)
{
	return memory->room;
}

void spill_memory_free_all(struct spill *spill)
{
	while (spill->pack_idle)
		memory_free(spill, &spill->pack_idle);
}
