/*
 * unmap.c - slabs that left their namespace: unmapped once nobody in this process can look at them, and the daemon told
 *
 * The daemon takes a slab away when nobody holds a block in it, or revokes what is held when a writer broke it.  So who
 * still pins a slot of the place when the slab has left may be looking at its bytes, and nobody else ever will: a reader
 * gets an address only under a pin that counts.  Those slots are noted before another slab is mapped at the place; each is
 * struck off when it is seen unpinned.  A grant that was not given back keeps the mapping too.
 *
 * A namespace the session leaves (leave.c) is unmapped as a whole.
 * Under map->lock; by the keeper, but unmap_left_at().  Regions that somebody asked for (kvp_region()) stay.
 */
#include "internal.h"

#include <stdlib.h>
#include <sys/mman.h>

#define AGAIN_MS 500

static bool slot_pinned(const struct slab_map *slab, uint32_t i)
{
	return atomic_load(&session_pin(slab->map->session, slab->place, i)->count);
}

/* It has left: who may be looking at it now? */
static void slab_left(struct slab_map *slab)
{
	uint32_t n = slab->map->slots_per_slab;

	if (slab->held)
		return;
	slab->held = calloc(n, 1);
	for (uint32_t i = 0; slab->held && i < n; i++)
		slab->held[i] = slot_pinned(slab, i);
}

static bool slab_looked_at(struct slab_map *slab)
{
	bool held = false;

	for (uint32_t i = 0; i < slab->map->slots_per_slab; i++) {
		slab->held[i] = slab->held[i] && slot_pinned(slab, i);
		held = held || slab->held[i] || (slab->grants && slab->grants[i]);
	}
	return held;
}

void unmap_left_at(struct ns_map *map, uint32_t place)
{
	uint64_t number = atomic_load_explicit(&map->slabs[place].number, memory_order_acquire);
	struct slab_map *ro = atomic_load_explicit(&map->ro[place], memory_order_relaxed), *rw = map->rw[place];

	if (ro && ro->number != number)
		slab_left(ro);
	if (rw && rw->number != number)
		slab_left(rw);
}

void unmap_note(struct ns_map *map, uint64_t number)
{
	for (const struct slab_map *slab = map->all; slab; slab = slab->next)
		if (slab->number == number)
			return;
	if (map->n_unmapped == map->unmapped_room) {
		uint32_t room = map->unmapped_room ? 2 * map->unmapped_room : 16;
		uint64_t *more = realloc(map->unmapped, room * sizeof(*more));

		if (!more)
			return; /* the daemon goes on looking after it: that costs it a descriptor */
		map->unmapped = more;
		map->unmapped_room = room;
	}
	map->unmapped[map->n_unmapped++] = number;
}

/* Out of the client's lists. Return: false: somebody was told of the region. */
static bool slab_unlist(struct kvp_client *client, struct slab_map *slab)
{
	uint32_t n = 0;
	bool told;

	pthread_mutex_lock(&client->lock);
	told = client->regions_told && !slab->writable;
	for (struct slab_map **at = &client->touch; !told && *at; at = &(*at)->touch_next)
		if (*at == slab) {
			*at = slab->touch_next;
			break;
		}
	for (uint32_t i = 0; !told && i < client->n_regions; i++)
		if (client->regions[i] != slab)
			client->regions[n++] = client->regions[i];
	client->n_regions = told ? client->n_regions : n;
	pthread_mutex_unlock(&client->lock);
	return !told;
}

/* A reader may have read the address of a mapping to read, not of what it maps: it stays in memory until the map goes. */
static void slab_unmap(struct ns_map *map, struct slab_map *slab)
{
	munmap(slab->base, slab->bytes);
	map->session->client->touched_bytes -= slab->touched;
	free(slab->held);
	slab->held = NULL;
	if (!slab->writable) {
		if (atomic_load_explicit(&map->ro[slab->place], memory_order_relaxed) == slab)
			atomic_store_explicit(&map->ro[slab->place], NULL, memory_order_release);
		slab->next = map->unused;
		map->unused = slab;
		return;
	}
	if (map->rw[slab->place] == slab)
		map->rw[slab->place] = NULL;
	free(slab->grants);
	free(slab);
}

/* Return: some are still looked at. */
static bool unmap_look(struct ns_map *map)
{
	bool more = false;

	for (uint32_t place = 0; place < map->max_places; place++)
		unmap_left_at(map, place);
	for (struct slab_map **at = &map->all; *at;) {
		struct slab_map *slab = *at;
		uint64_t number = slab->number;
		bool looked_at = slab->held && slab_looked_at(slab);

		more = more || looked_at;
		if (!slab->held || looked_at || !slab_unlist(map->session->client, slab)) {
			at = &slab->next;
			continue;
		}
		*at = slab->next;
		slab_unmap(map, slab);
		unmap_note(map, number);
	}
	return more;
}

/* Of the namespace still. */
static bool slab_in_use(const struct slab_map *slab)
{
	for (uint32_t i = 0; i < slab->map->slots_per_slab; i++)
		if (slot_pinned(slab, i) || (slab->grants && slab->grants[i]))
			return true;
	return false;
}

bool unmap_all(struct ns_map *map)
{
	for (uint32_t place = 0; place < map->max_places; place++)
		unmap_left_at(map, place);
	for (struct slab_map *slab = map->all; slab; slab = slab->next)
		if (slab->held ? slab_looked_at(slab) : slab_in_use(slab))
			return false;
	while (map->all) {
		struct slab_map *slab = map->all;
		uint64_t number = slab->number;

		if (!slab_unlist(map->session->client, slab))
			return false;
		map->all = slab->next;
		slab_unmap(map, slab);
		unmap_note(map, number);
	}
	return true;
}

void unmap_tell(struct ns_map *map)
{
	struct kvp_client *client = map->session->client;
	uint32_t n = map->n_unmapped < KVP_WIRE_BATCH_MAX ? map->n_unmapped : KVP_WIRE_BATCH_MAX;
	struct kvp_wire_batch head = {.ns_id = map->ns_id, .n = n};
	const uint64_t *numbers = map->unmapped + map->n_unmapped - n;

	if (!n)
		return;
	if (wire_can(client, KVP_CAN_UNMAPPED) &&
		client_tell(map->session, KVP_MSG_UNMAPPED, &head, sizeof(head), numbers, n * sizeof(*numbers)) < 0)
		return; /* later */
	map->n_unmapped -= n;
}

void unmap_keep(struct ns_map *map)
{
	uint64_t changes = atomic_load_explicit(&map->head->slab_changes, memory_order_acquire), now = now_ns();

	pthread_mutex_lock(&map->lock);
	if (changes != map->left_seen || (map->left_again_ns && now >= map->left_again_ns)) {
		map->left_seen = changes;
		map->left_again_ns = unmap_look(map) ? now + AGAIN_MS * MS : 0;
	}
	unmap_tell(map);
	pthread_mutex_unlock(&map->lock);
}
