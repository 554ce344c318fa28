/*
 * block_fixture.h - a daemon without sockets, files or other processes, for tests of the life of blocks
 *
 * The pool's objects are plain memory, the sessions' pin tables too; block.c, namespace.c's entries, index.c and
 * policy.c are the real ones.
 */
#ifndef KVPOOL_TEST_BLOCK_FIXTURE_H
#define KVPOOL_TEST_BLOCK_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "daemon/block.h"
#include "daemon/guard.h"
#include "daemon/index.h"
#include "daemon/policy.h"
#include "daemon/tier.h"

#define PLACES 4u
#define WIDTH 8u /* slots in a slab */
#define SLOTS (PLACES * WIDTH)
#define BLOCK 4096u
#define SESSIONS 3u

struct fixture {
	struct daemon d;
	struct ns ns;
	struct kvp_ns_row row;
	struct session sessions[SESSIONS];
	struct kvp_session_row session_rows[SESSIONS];
	struct slab slabs[PLACES];
	struct member *members[SESSIONS];
	uint32_t seed;
	uint64_t next_key;
};

static inline void *zeroed(size_t bytes)
{
	void *at = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);

	assert_non_null(at);
	memset(at, 0, bytes);
	return at;
}

static inline void given_slab(struct fixture *f, uint32_t place)
{
	struct slab *slab = &f->slabs[place];

	*slab = (struct slab){.place = place,
		.number = 100 + place,
		.bytes = WIDTH * BLOCK,
		.use = KVP_SLAB_BLOCKS,
		.fd = -1,
		.guard = GUARD_NONE,
		.map = zeroed(WIDTH * BLOCK),
		.ns = &f->ns,
		.slots = calloc(WIDTH, sizeof(struct slab_slot)),
		.n_slots = WIDTH};
	f->d.slabs[place] = slab;
	atomic_store(&f->ns.slab_table[place].number, slab->number);
	f->ns.n_slots += WIDTH;
}

static inline void adopt_all(struct fixture *f)
{
	for (uint32_t place = 0; place < PLACES; place++)
		if (f->d.slabs[place])
			block_adopt_slab(&f->ns, f->d.slabs[place]);
}

static inline struct fixture *given_pool(uint32_t seed)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct kvp_ns_header *head = zeroed(sizeof(*head));

	assert_non_null(f);
	f->seed = seed;
	f->d.pool.header = zeroed(sizeof(*f->d.pool.header));
	f->d.pool.stats = zeroed(sizeof(*f->d.pool.stats));
	f->d.pool.header->max_places = PLACES;
	f->d.pool.header->pin_stride = KVP_PAGE;
	atomic_store(&f->d.pool.header->tick, 1000);
	f->d.slabs = calloc(PLACES, sizeof(*f->d.slabs));
	f->d.config.grant_limit_ms = 1600;
	head->max_places = PLACES;
	head->slots_per_slab = WIDTH;
	head->block_bytes = head->block_stride = BLOCK;
	head->n_buckets = 16;
	head->desc.block_tokens = 16;
	f->ns = (struct ns){.d = &f->d,
		.id = 1,
		.fd = -1,
		.head = head,
		.slab_table = zeroed(PLACES * sizeof(struct kvp_slab)),
		.blocks = zeroed(SLOTS * sizeof(struct kvp_block)),
		.index = zeroed(16 * sizeof(struct kvp_index_bucket)),
		.row = &f->row};
	f->d.namespaces = &f->ns;
	for (unsigned i = 0; i < SESSIONS; i++) {
		struct session *s = &f->sessions[i];

		*s = (struct session){.next = f->d.sessions,
			.d = &f->d,
			.id = 11 + i,
			.head = zeroed(KVP_SESSION_PINS_OFF + KVP_PAGE * PLACES),
			.pins_off = KVP_SESSION_PINS_OFF,
			.row = &f->session_rows[i],
			.has_place = calloc(PLACES, 1),
			.grants_at = calloc(PLACES, sizeof(uint32_t))};
		memset(s->has_place, PLACE_PINS, PLACES);
		f->d.sessions = s;
		f->members[i] = session_join(s, &f->ns, true);
	}
	for (uint32_t place = 0; place < PLACES; place++)
		given_slab(f, place);
	adopt_all(f);
	return f;
}

/* Forget all the daemon knows but what is in shared memory, as a kill does. */
static inline void restart(struct fixture *f, const bool *lives)
{
	ns_entry_free_all(&f->ns);
	f->ns.heap.n = 0;
	f->ns.n_free = 0;
	memset(&f->row.counters, 0, sizeof(f->row.counters));
	f->d.sessions = NULL;
	for (unsigned i = 0; i < SESSIONS; i++) {
		struct session *s = &f->sessions[i];

		free(f->members[i]);
		s->members = f->members[i] = NULL;
		memset(s->grants_at, 0, PLACES * sizeof(uint32_t));
		atomic_store(&s->row->grants, 0);
		if (!lives[i])
			continue;
		s->next = f->d.sessions;
		f->d.sessions = s;
	}
	for (uint32_t place = 0; place < PLACES; place++)
		memset(f->slabs[place].slots, 0, WIDTH * sizeof(struct slab_slot));
	f->ns.n_slots = 0;
	ns_adopt_blocks(&f->d);
	for (unsigned i = 0; i < SESSIONS; i++)
		if (lives[i])
			f->members[i] = session_join(&f->sessions[i], &f->ns, true);
	ns_link_all(&f->d, false);
}

static inline void done_with(struct fixture *f)
{
	ns_entry_free_all(&f->ns);
	for (unsigned i = 0; i < SESSIONS; i++) {
		free(f->members[i]);
		free(f->sessions[i].head);
		free(f->sessions[i].has_place);
		free(f->sessions[i].grants_at);
	}
	for (uint32_t place = 0; place < PLACES; place++) {
		free(f->slabs[place].map);
		free(f->slabs[place].slots);
	}
	free(f->ns.heap.at);
	free(f->ns.ghosts);
	free(f->ns.head);
	free(f->ns.slab_table);
	free(f->ns.blocks);
	free(f->ns.index);
	free(f->d.slabs);
	free(f->d.pool.header);
	free(f->d.pool.stats);
	free(f);
}

static inline uint32_t next(struct fixture *f)
{
	f->seed = f->seed * 1664525u + 1013904223u;
	return f->seed >> 8;
}

static inline enum kvp_block_state state_of(const struct fixture *f, uint64_t slot)
{
	return kvp_word_state(atomic_load(&f->ns.blocks[slot].word));
}

static inline uint64_t generation_of(const struct fixture *f, uint64_t slot)
{
	return kvp_word_generation(atomic_load(&f->ns.blocks[slot].word));
}

static inline struct kvp_key key_of(uint64_t n)
{
	return (struct kvp_key){{n * 0x9e3779b97f4a7c15ull, n * 0xbf58476d1ce4e5b9ull + 1}};
}

static inline uint64_t found_at(const struct fixture *f, const struct kvp_key *key)
{
	struct index index = {f->ns.index, f->ns.head->n_buckets, f->ns.blocks, SLOTS};

	return index_find(&index, key);
}

static inline void pin(struct fixture *f, unsigned who, uint64_t slot, int n)
{
	struct kvp_pin *at = session_pin(&f->sessions[who], (uint32_t)(slot / WIDTH), (uint32_t)(slot % WIDTH));

	atomic_fetch_add(&at->count, (uint32_t)n);
	atomic_store(&at->stamp, daemon_tick(&f->d));
}

static inline bool pinned(const struct fixture *f, uint64_t slot)
{
	for (unsigned i = 0; i < SESSIONS; i++)
		if (atomic_load(
			    &session_pin(&f->sessions[i], (uint32_t)(slot / WIDTH), (uint32_t)(slot % WIDTH))->count))
			return true;
	return false;
}

/* A published block under a new key below @parent (NULL: none). */
static inline struct entry *given_block(struct fixture *f, const struct kvp_key *parent)
{
	struct kvp_wire_item item = {.key = key_of(++f->next_key), .used_bytes = BLOCK, .used_tokens = 16};
	struct kvp_wire_result result;

	item.slot = block_grant(&f->ns, f->members[0], TOPOLOGY_ANY, &item.generation);
	assert_true(item.slot != NO_SLOT);
	if (parent)
		item.parent = *parent;
	block_publish_grant(f->members[0], &item, &result);
	assert_int_equal(result.result, KVP_PUB_STORED);
	return ns_entry(&f->ns, &item.key);
}

#endif
