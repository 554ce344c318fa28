/* race_reader.c - see race_reader.h */
#include "race_reader.h"

#include <stdlib.h>

#include "client/libkvpool/internal.h"

struct mapped {
	struct session session;
	struct ns_map map;
	struct slab_map slabs[RACE_PLACES_MAX];
	_Atomic(struct slab_map *) ro[RACE_PLACES_MAX];
};

static struct mapped *map_all(const struct race_memory *memory)
{
	struct mapped *m = calloc(1, sizeof(*m));
	const struct kvp_ns_header *head = memory->ns;

	if (!m)
		abort();
	m->session.head = memory->session;
	m->session.pins = (char *)memory->session + memory->session->pins_off;
	m->session.pin_stride = memory->session->pin_stride;
	m->session.max_places = head->max_places;
	m->session.header = memory->pool;
	m->session.tick = &memory->pool->tick;
	m->map.session = &m->session;
	m->map.head = head;
	m->map.slabs = memory->slabs;
	m->map.blocks = memory->blocks;
	m->map.index = memory->index;
	m->map.n_buckets = head->n_buckets;
	m->map.n_slots = (uint64_t)head->max_places * head->slots_per_slab;
	m->map.block_bytes = head->block_bytes;
	m->map.block_stride = head->block_stride;
	m->map.slots_per_slab = head->slots_per_slab;
	m->map.slots_inverse = ((1ull << 63) - 1) / head->slots_per_slab + 1;
	m->map.max_places = head->max_places;
	m->map.ro = m->ro;
	for (uint32_t place = 0; place < head->max_places; place++) {
		m->slabs[place].base = memory->slab_bytes[place];
		m->slabs[place].number = atomic_load(&memory->slabs[place].number);
		m->slabs[place].place = place;
		atomic_store(&m->ro[place], &m->slabs[place]);
	}
	return m;
}

static bool right(const char *data, uint64_t bytes, uint64_t content)
{
	for (uint64_t at = 0; at < bytes; at += sizeof(content))
		if (*(const volatile uint64_t *)(const void *)(data + at) != content)
			return false;
	return true;
}

bool race_find(const struct race_memory *memory, const struct kvp_key *key, uint64_t *content)
{
	struct mapped *m = map_all(memory);
	struct spot spot;
	bool pinned = find_pin(&m->map, key, &spot) == FOUND_PINNED;

	if (pinned) {
		*content = *(const uint64_t *)(const void *)spot.data;
		spot_unpin(spot.map, spot.slot, spot.generation);
	}
	free(m);
	return pinned;
}

void *race_read(void *arg)
{
	struct race_reader *r = arg;
	struct mapped *m = map_all(&r->memory);
	uint32_t seed = 1;

	while (!atomic_load_explicit(&r->stop, memory_order_relaxed)) {
		uint32_t n = (seed = seed * 1664525u + 1013904223u) >> 16;
		struct spot spot;

		n %= r->n_keys;
		r->looks++;
		if (find_pin(&m->map, &r->keys[n], &spot) != FOUND_PINNED)
			continue;
		r->reads++;
		r->wrong += !right(spot.data, spot.used_bytes, race_content(n));
		r->lost += spot_unpin(spot.map, spot.slot, spot.generation);
	}
	free(m);
	return NULL;
}

/* Half a block is a layer: the first of two is there when the block may be pinned. */
void *race_arrive(void *arg)
{
	struct race_reader *r = arg;
	struct mapped *m = map_all(&r->memory);
	uint32_t seed = 1;

	while (!atomic_load_explicit(&r->stop, memory_order_relaxed)) {
		uint32_t n = (seed = seed * 1664525u + 1013904223u) >> 16, layers;
		uint64_t slot = atomic_load(&r->slot), word;
		struct spot spot;

		n %= r->n_keys;
		r->looks++;
		if (find_pin_arriving(&m->map, slot, &r->keys[n], &spot, &layers) != FOUND_PINNED)
			continue;
		r->reads++;
		/* whatever becomes of the block: what was there stays as long as it is pinned */
		r->wrong += !right(spot.data, spot.used_bytes / 2, race_content(n));
		word = atomic_load_explicit(&spot.block->word, memory_order_acquire); /* as kvp_view_wait_layer() */
		if (kvp_word_generation(word) == spot.generation && kvp_word_state(word) == KVP_BLOCK_PUBLISHED) {
			r->whole++;
			r->wrong += !right(spot.data, spot.used_bytes, race_content(n));
		}
		spot_unpin(spot.map, spot.slot, spot.generation);
	}
	free(m);
	return NULL;
}
