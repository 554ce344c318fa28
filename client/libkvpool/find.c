/*
 * find.c - finding, pinning and releasing blocks; what engines call most
 *
 * The reader's side of the protocol at struct kvp_block.  A key that lies in a mapped slab is found, pinned and
 * released with no system call, no lock and no store to memory that another process writes, but for the pin itself.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* Inlined for good: what is found stays in registers. */
#define HOT inline __attribute__((always_inline))

#define BUSY_TRIES 64 /* DRAINING lasts a look at the pin tables; a word that moves more often is a miss */
#define PREFETCH_AHEAD 16 /* keys; a bucket is on its way before it is looked into, */
#define GUESS_AHEAD 8 /* and a descriptor and its pin before they are: a locked operation lets nothing overtake it */
#define RESTORE_BYTES (256ull << 20) /* asked back at once: restored blocks are held for about a second until pinned */
#define RESTORE_SLACK_MS 50 /* the answer comes by the deadline; it still has to arrive */

/* ---- one slot ---- */

static inline struct kvp_pin *slot_pin(const struct ns_map *map, uint64_t slot)
{
	uint32_t place = slot_place(map, slot);

	return session_pin(map->session, place, (uint32_t)slot - place * map->slots_per_slab);
}

static inline bool block_has_key(const struct kvp_block *block, const struct kvp_key *key)
{
	/* relaxed atomics: also read without a pin, where the daemon may be writing; the word read again tells */
	return __atomic_load_n(&block->key.w[0], __ATOMIC_RELAXED) == key->w[0] &&
	       __atomic_load_n(&block->key.w[1], __ATOMIC_RELAXED) == key->w[1];
}

/* Without a pin: does the slot hold the key just now? Only for places that have a slab. */
static bool slot_seems(const struct ns_map *map, uint64_t slot, const struct kvp_key *key)
{
	const struct kvp_block *block = &map->blocks[slot];
	uint64_t word = atomic_load_explicit(&block->word, memory_order_acquire);
	bool same;

	if (kvp_word_state(word) != KVP_BLOCK_PUBLISHED && kvp_word_state(word) != KVP_BLOCK_DRAINING)
		return false;
	same = block_has_key(block, key);
	atomic_thread_fence(memory_order_acquire);
	return same && kvp_word_generation(atomic_load_explicit(&block->word, memory_order_relaxed)) ==
			       kvp_word_generation(word);
}

static void pin_drop(struct kvp_pin *pin)
{
	atomic_fetch_sub_explicit(&pin->count, 1, memory_order_release);
}

/* @mapped: a slot whose slab is not mapped is of no use to the caller. */
static HOT enum found slot_try(
	struct ns_map *map, uint64_t slot, const struct kvp_key *key, struct spot *spot, const bool mapped)
{
	const struct session *session = map->session;
	const struct kvp_block *block;
	const struct slab_map *slab;
	struct kvp_pin *pin;
	uint64_t word, number;
	uint32_t place, index;

	if (slot >= map->n_slots)
		return FOUND_NOT;
	place = slot_place(map, slot);
	number = atomic_load_explicit(&map->slabs[place].number, memory_order_acquire);
	if (!number)
		return FOUND_NOT; /* its descriptors are not there to be touched */
	slab = atomic_load_explicit(&map->ro[place], memory_order_acquire);
	if (!slab || slab->number != number) {
		if (mapped)
			return FOUND_NOT;
		spot->map = map;
		spot->slot = slot;
		return slot_seems(map, slot, key) ? FOUND_UNMAPPED : FOUND_NOT;
	}
	block = &map->blocks[slot];
	word = atomic_load_explicit(&block->word, memory_order_acquire);
	if (kvp_word_state(word) != KVP_BLOCK_PUBLISHED)
		return kvp_word_state(word) == KVP_BLOCK_DRAINING ? FOUND_BUSY : FOUND_NOT;
	index = (uint32_t)slot - place * map->slots_per_slab;
	pin = session_pin(session, place, index);
	atomic_fetch_add_explicit(&pin->count, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&block->word, memory_order_seq_cst) != word) {
		pin_drop(pin);
		return FOUND_BUSY;
	}
	if (!atomic_load_explicit(&session->head->word, memory_order_seq_cst) || block->slab_number != slab->number ||
		!block_has_key(block, key)) {
		pin_drop(pin);
		return FOUND_NOT;
	}
	atomic_store_explicit(&pin->stamp, session_tick(session), memory_order_relaxed);
	spot->map = map;
	spot->slot = slot;
	spot->generation = kvp_word_generation(word);
	spot->data = slab->base + index * map->block_stride;
	spot->used_bytes = block->used_bytes;
	spot->used_tokens = block->used_tokens;
	spot->block = block;
	spot->pin = pin;
	return FOUND_PINNED;
}

enum found find_pin_slot(struct ns_map *map, uint64_t slot, const struct kvp_key *key, struct spot *spot)
{
	return slot_try(map, slot, key, spot, false);
}

enum found find_pin_arriving(
	struct ns_map *map, uint64_t slot, const struct kvp_key *key, struct spot *spot, uint32_t *layers)
{
	const struct kvp_block *block;
	const struct slab_map *slab;
	struct kvp_pin *pin;
	uint64_t word, again;
	uint32_t place;

	if (slot >= map->n_slots)
		return FOUND_NOT;
	place = slot_place(map, slot);
	slab = atomic_load_explicit(&map->ro[place], memory_order_acquire);
	if (!slab || slab->number != atomic_load_explicit(&map->slabs[place].number, memory_order_acquire))
		return FOUND_UNMAPPED;
	block = &map->blocks[slot];
	word = atomic_load_explicit(&block->word, memory_order_acquire);
	if (kvp_word_state(word) != KVP_BLOCK_RESTORING)
		return FOUND_NOT;
	pin = slot_pin(map, slot);
	atomic_fetch_add_explicit(&pin->count, 1, memory_order_seq_cst);
	*layers = atomic_load_explicit(&block->layers, memory_order_seq_cst);
	again = atomic_load_explicit(&block->word, memory_order_seq_cst);
	if (kvp_word_generation(again) == kvp_word_generation(word) && kvp_word_state(again) == KVP_BLOCK_PUBLISHED)
		*layers = UINT32_MAX;
	else if (again != word || *layers == KVP_LAYERS_VOID)
		*layers = 0;
	if (!*layers || !atomic_load_explicit(&map->session->head->word, memory_order_seq_cst) ||
		block->slab_number != slab->number || !block_has_key(block, key)) {
		pin_drop(pin);
		return FOUND_NOT;
	}
	atomic_store_explicit(&pin->stamp, session_tick(map->session), memory_order_relaxed);
	*spot = (struct spot){.map = map,
		.slot = slot,
		.generation = kvp_word_generation(word),
		.data = slab->base + ((uint32_t)slot - place * map->slots_per_slab) * map->block_stride,
		.used_bytes = block->used_bytes,
		.used_tokens = block->used_tokens,
		.block = block,
		.pin = pin};
	return FOUND_PINNED;
}

static HOT bool block_lost(const struct kvp_block *block, uint64_t generation)
{
	uint64_t word;

	atomic_thread_fence(memory_order_acquire); /* what was read of the block comes before this look */
	word = atomic_load_explicit(&block->word, memory_order_relaxed);
	return kvp_word_generation(word) != generation ||
	       (kvp_word_state(word) != KVP_BLOCK_PUBLISHED && kvp_word_state(word) != KVP_BLOCK_DRAINING);
}

bool spot_lost(const struct ns_map *map, uint64_t slot, uint64_t generation)
{
	return block_lost(&map->blocks[slot], generation);
}

bool spot_unpin(const struct ns_map *map, uint64_t slot, uint64_t generation)
{
	bool lost = spot_lost(map, slot, generation);

	pin_drop(slot_pin(map, slot));
	return lost;
}

void spot_pin_again(const struct ns_map *map, uint64_t slot)
{
	struct kvp_pin *pin = slot_pin(map, slot);

	atomic_fetch_add_explicit(&pin->count, 1, memory_order_seq_cst);
	/* what an earlier use of the slot left there would make this the oldest hold of all */
	atomic_store_explicit(&pin->stamp, session_tick(map->session), memory_order_relaxed);
}

/* ---- the index ---- */

static enum found slot_look(struct ns_map *map, uint64_t slot, const struct kvp_key *key, enum lookup how)
{
	const struct slab_map *slab;
	uint64_t number;

	if (slot >= map->n_slots)
		return FOUND_NOT;
	number = atomic_load_explicit(&map->slabs[slot_place(map, slot)].number, memory_order_acquire);
	if (!number || !slot_seems(map, slot, key))
		return FOUND_NOT;
	slab = atomic_load_explicit(&map->ro[slot_place(map, slot)], memory_order_acquire);
	if (how == LOOKUP_TOUCH && slab && slab->number == number) /* pin pages exist for mapped slabs only */
		atomic_store_explicit(&slot_pin(map, slot)->stamp, session_tick(map->session), memory_order_relaxed);
	return FOUND_PINNED;
}

static HOT enum found hint_try(
	struct ns_map *map, uint64_t slot, const struct kvp_key *key, enum lookup how, struct spot *spot)
{
	return how == LOOKUP_PIN ? slot_try(map, slot, key, spot, false) : slot_look(map, slot, key, how);
}

static HOT bool bucket_is_full(const struct kvp_index_bucket *bucket)
{
	for (unsigned i = KVP_INDEX_WIDTH; i-- > 0;) /* the last place is the first one to be empty */
		if (!atomic_load_explicit(&bucket->hint[i], memory_order_relaxed))
			return false;
	return true;
}

/* One pass over the key's buckets. FOUND_BUSY: a hint pointed to a slot that was just being looked at by the
   evictor. */
static HOT enum found index_probe(struct ns_map *map, const struct kvp_key *key, enum lookup how, struct spot *spot)
{
	const uint64_t home = kvp_index_home(key, map->n_buckets);
	const uint64_t n_probes = map->n_buckets < KVP_INDEX_PROBES ? map->n_buckets : KVP_INDEX_PROBES;
	const uint32_t tag = kvp_index_tag(key);
	enum found best = FOUND_NOT;

	for (uint64_t probe = 0; probe < n_probes; probe++) {
		const struct kvp_index_bucket *bucket = &map->index[(home + probe) & (map->n_buckets - 1)];

		for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++) {
			uint64_t hint = atomic_load_explicit(&bucket->hint[i], memory_order_acquire);
			enum found r;

			if ((uint32_t)(hint >> 32) != tag || !hint)
				continue;
			r = hint_try(map, kvp_hint_slot(hint), key, how, spot);
			if (r == FOUND_PINNED || r == FOUND_UNMAPPED)
				return r;
			if (r == FOUND_BUSY)
				best = FOUND_BUSY;
		}
		if (!bucket_is_full(bucket))
			break;
	}
	return best;
}

static HOT enum found index_find(struct ns_map *map, const struct kvp_key *key, enum lookup how, struct spot *spot)
{
	enum found r = FOUND_NOT;

	for (unsigned i = 0; i < BUSY_TRIES; i++) {
		r = index_probe(map, key, how, spot);
		if (r != FOUND_BUSY)
			break;
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
	}
	return r;
}

enum found find_pin(struct ns_map *map, const struct kvp_key *key, struct spot *spot)
{
	enum found r = index_find(map, key, LOOKUP_PIN, spot);

	return r == FOUND_NOT && map->base ? index_find(map->base, key, LOOKUP_PIN, spot) : r;
}

enum found find_pin_wait(struct ns_map *map, const struct kvp_key *key, uint64_t deadline_ns, struct spot *spot)
{
	enum found r = find_pin(map, key, spot);

	if (r != FOUND_UNMAPPED)
		return r;
	map = spot->map;
	if (!deadline_ns) {
		atomic_store_explicit(&map->map_wanted, true, memory_order_relaxed);
		client_wake(map->session->client);
		return r;
	}
	return map_ahead(map, slot_place(map, spot->slot), deadline_ns) > 0 ? find_pin(map, key, spot) : r;
}

bool find_look(struct ns_map *map, const struct kvp_key *key, enum lookup how)
{
	struct spot spot;

	return index_find(map, key, how, &spot) == FOUND_PINNED ||
	       (map->base && index_find(map->base, key, how, &spot) == FOUND_PINNED);
}

static HOT void index_prefetch(const struct ns_map *map, const struct kvp_key *key)
{
	__builtin_prefetch(&map->index[kvp_index_home(key, map->n_buckets)]);
}

/* Where the key's home bucket says it is; UINT64_MAX: not there. @fetch: what a pin needs of it as well. */
static HOT uint64_t slot_guess(const struct ns_map *map, const struct kvp_key *key, bool fetch)
{
	const struct kvp_index_bucket *bucket = &map->index[kvp_index_home(key, map->n_buckets)];

	for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++) {
		uint64_t hint = atomic_load_explicit(&bucket->hint[i], memory_order_acquire);
		uint64_t slot = kvp_hint_slot(hint);

		if ((uint32_t)(hint >> 32) != kvp_index_tag(key) || !hint || slot >= map->n_slots)
			continue;
		if (fetch) {
			__builtin_prefetch(&map->blocks[slot]);
			__builtin_prefetch(slot_pin(map, slot), 1);
		}
		return slot;
	}
	return UINT64_MAX;
}

/* ---- views ---- */

/*
 * Between two pins, and between a pin and its release, each store costs: a locked operation waits until those before it
 * are in the cache, and registers saved by a function are stores too.  So these are few, and what is rare is called.
 */

static HOT void view_set(struct kvp_view *view, struct kvp_ns *ns, const struct spot *spot, uint32_t hit,
	struct hold *hold, uint64_t handle)
{
	hold->kind = HOLD_VIEW;
	hold->arriving = 0;
	hold->owner = spot->map;
	hold->block = spot->block;
	hold->generation = spot->generation;
	hold->pin = spot->pin;
	/* field by field: a whole one would be cleared first, with a string instruction; the rest of opaque is not
	   looked at */
	view->data = spot->data;
	view->used_bytes = spot->used_bytes;
	view->used_tokens = spot->used_tokens;
	view->layers_ready = ns->join.desc.n_layers;
	view->hit = hit;
	view->reason = 0;
	view->ns = ns;
	view->opaque[0] = handle;
}

static HOT bool view_take(struct kvp_view *view, struct kvp_ns *ns, const struct spot *spot, uint32_t hit)
{
	uint64_t handle;
	struct hold *hold = hold_take(&handle);

	if (!hold) {
		pin_drop(spot->pin);
		return false;
	}
	view_set(view, ns, spot, hit, hold, handle);
	return true;
}

bool view_fill(struct kvp_view *view, struct kvp_ns *ns, const struct spot *spot, uint32_t hit)
{
	struct spot whole = *spot;

	whole.block = &spot->map->blocks[spot->slot];
	whole.pin = slot_pin(spot->map, spot->slot);
	return view_take(view, ns, &whole, hit);
}

static void view_miss(struct kvp_view *view, struct kvp_ns *ns, uint32_t hit, uint32_t reason)
{
	*view = (struct kvp_view){.hit = hit, .reason = hit == KVP_MISS ? reason : 0, .ns = ns};
}

static struct kvp_client *hold_client(const struct hold *hold)
{
	return ((const struct ns_map *)hold->owner)->session->client;
}

/* In a child after fork() the parent's mappings are not there. */
static inline bool hold_is_dead(const struct hold *hold)
{
	return atomic_load_explicit(&process_forked, memory_order_relaxed) && atomic_load(&hold_client(hold)->dead);
}

/* Of a hold whose block is not there as a whole: one that was given while it was being read back may stand all the
   same. */
static bool hold_lost_for_good(const struct hold *hold)
{
	uint64_t word = atomic_load_explicit(&hold->block->word, memory_order_relaxed);

	return !hold->arriving || kvp_word_generation(word) != hold->generation ||
	       (kvp_word_state(word) != KVP_BLOCK_RESTORING && block_lost(hold->block, hold->generation));
}

/* As block_lost(), of a hold. */
static HOT bool hold_lost(const struct hold *hold)
{
	return block_lost(hold->block, hold->generation) && hold_lost_for_good(hold);
}

/* The usual release. Return: false: nothing was done. */
static HOT bool view_release_usual(struct kvp_view *view)
{
	struct self *self = self_mine;
	const uint64_t handle = view->opaque[0];
	struct hold *hold;

	if (!view->data || !self || self->n_spare == SPARE_HOLDS ||
		atomic_load_explicit(&process_forked, memory_order_relaxed))
		return false;
	hold = hold_get(handle);
	if (!hold || hold->kind != HOLD_VIEW || block_lost(hold->block, hold->generation))
		return false;
	pin_drop(hold->pin);
	view->data = NULL;
	hold_void(hold);
	self->spare[self->n_spare++] = (uint32_t)handle;
	return true;
}

/* Any release. Return: true: the hold had been lost. */
static __attribute__((noinline)) bool view_release(struct kvp_view *view)
{
	struct hold *hold = view->data ? hold_get(view->opaque[0]) : NULL;
	bool lost = false;

	view->data = NULL;
	if (!hold || hold->kind != HOLD_VIEW)
		return false; /* released before, or never given */
	if (!hold_is_dead(hold)) {
		lost = hold_lost(hold);
		pin_drop(hold->pin);
	}
	if (lost)
		count_add(hold_client(hold), COUNT_LOST_HOLDS, 1);
	hold_end_at(hold, view->opaque[0]);
	return lost;
}

static __attribute__((noinline)) int views_release(struct kvp_view *views, uint32_t n)
{
	int lost = 0;

	for (uint32_t i = 0; views && i < n; i++)
		lost += !view_release_usual(&views[i]) && view_release(&views[i]);
	return lost;
}

int kvp_release(struct kvp_view *views, uint32_t n)
{
	return n == 1 && views && view_release_usual(views) ? 0 : views_release(views, n);
}

int kvp_view_node(const struct kvp_view *view)
{
	const struct hold *hold = view && view->data ? hold_get(view->opaque[0]) : NULL;
	const struct ns_map *map;
	uint32_t node;

	if (!hold || hold->kind != HOLD_VIEW || hold_is_dead(hold))
		return -KVP_ENOENT;
	map = hold->owner;
	node = map->slabs[slot_place(map, hold_slot(hold))].node;
	return node <= INT32_MAX ? (int)node : -KVP_ENOENT;
}

int kvp_lost(const struct kvp_view *views, uint32_t n)
{
	int lost = 0;

	for (uint32_t i = 0; views && i < n; i++) {
		const struct hold *hold = views[i].data ? hold_get(views[i].opaque[0]) : NULL;

		if (hold && hold->kind == HOLD_VIEW && !hold_is_dead(hold))
			lost += hold_lost(hold);
	}
	return lost;
}

/* ---- acquire ---- */

#define VIEW_ARRIVES 2u /* in opaque of a view that is not filled yet: 1 + the slot it is being read back into, or 0 */
#define VIEW_RESTORED 1u /* in opaque of a view that is not filled yet: it was read back for this call */

struct acquire {
	struct kvp_ns *ns;
	struct ns_map *map;
	const struct kvp_key *keys;
	struct kvp_view *views;
	uint32_t n;
	uint32_t at; /* usable so far */
	uint32_t asked_to; /* keys before this came by RESTORE */
	bool some; /* KVP_ACQUIRE_SOME */
	bool layers; /* KVP_ACQUIRE_LAYERS */
	bool told; /* KVP_ACQUIRE_TOLD */
	uint64_t deadline_ns;
	uint64_t tokens[2], hits[2]; /* ram, spill */
	uint32_t reason; /* of the first miss, as far as is known here */
};

/* The key at a->at has no hint in the index, or lies in a slab that is not mapped. Return: true: pinned all the
   same. */
static __attribute__((noinline)) bool acquire_slowly(struct acquire *a, struct spot *spot)
{
	enum found r = find_pin(a->map, &a->keys[a->at], spot);

	if (r == FOUND_UNMAPPED)
		r = find_pin_wait(a->map, &a->keys[a->at], a->deadline_ns, spot);
	if (r != FOUND_PINNED)
		a->reason = r == FOUND_NOT ? KVP_MISS_UNASKED : KVP_MISS_PINS;
	return r == FOUND_PINNED;
}

static HOT bool acquire_take(struct acquire *a, const struct spot *spot)
{
	bool spill = a->at < a->asked_to && a->views[a->at].opaque[VIEW_RESTORED];

	if (!view_take(&a->views[a->at], a->ns, spot, spill ? KVP_HIT_SPILL : KVP_HIT_RAM)) {
		a->reason = KVP_MISS_PINS;
		return false;
	}
	a->hits[spill]++;
	a->tokens[spill] += spot->used_tokens;
	return true;
}

/* The key at a->at was said to arrive in a slot. Return: true: it is given as far as it is there. */
static __attribute__((noinline)) bool acquire_arriving(struct acquire *a)
{
	struct kvp_view *view = &a->views[a->at];
	uint64_t slot = a->layers && a->at < a->asked_to ? view->opaque[VIEW_ARRIVES] : 0;
	struct hold *hold;
	struct spot spot;
	uint32_t layers;
	enum found r;

	if (!slot--)
		return false;
	r = find_pin_arriving(a->map, slot, &a->keys[a->at], &spot, &layers);
	if (r == FOUND_UNMAPPED && slot < a->map->n_slots &&
		map_ahead(a->map, slot_place(a->map, slot), a->deadline_ns) > 0)
		r = find_pin_arriving(a->map, slot, &a->keys[a->at], &spot, &layers);
	if (r != FOUND_PINNED || !acquire_take(a, &spot))
		return false;
	hold = hold_get(view->opaque[0]);
	if (layers < view->layers_ready) {
		view->layers_ready = layers;
		hold->arriving = 1;
	}
	return true;
}

/* Pin from a->at on as long as the keys are in DRAM. */
static void acquire_run(struct acquire *a)
{
	uint64_t guesses[GUESS_AHEAD];

	for (uint32_t i = a->at; i < a->n && i < a->at + PREFETCH_AHEAD; i++)
		index_prefetch(a->map, &a->keys[i]);
	for (uint32_t i = a->at; i < a->n && i < a->at + GUESS_AHEAD; i++)
		guesses[i % GUESS_AHEAD] = slot_guess(a->map, &a->keys[i], true);
	for (; a->at < a->n; a->at++) {
		uint64_t *guess = &guesses[a->at % GUESS_AHEAD];
		struct spot spot = {0}, slow;
		bool pinned = slot_try(a->map, *guess, &a->keys[a->at], &spot, true) == FOUND_PINNED;

		if (a->at + PREFETCH_AHEAD < a->n)
			index_prefetch(a->map, &a->keys[a->at + PREFETCH_AHEAD]);
		if (a->at + GUESS_AHEAD < a->n)
			*guess = slot_guess(a->map, &a->keys[a->at + GUESS_AHEAD], true);
		if (pinned ? !acquire_take(a, &spot) : !acquire_slowly(a, &slow) || !acquire_take(a, &slow)) {
			if (pinned || !acquire_arriving(a))
				return;
		}
	}
}

/* Keys asked back in one message: little enough that all of them find room, and are pinned while that is kept for
   them. */
static uint32_t restore_most(const struct ns_map *map)
{
	uint64_t bytes = map->session->header->pool_bytes / 8, n;

	n = (bytes < RESTORE_BYTES ? bytes : RESTORE_BYTES) / map->block_stride;
	return n < 4 ? 4 : n > KVP_WIRE_BATCH_MAX ? KVP_WIRE_BATCH_MAX : (uint32_t)n;
}

static uint32_t acquire_piece(const struct acquire *a)
{
	uint32_t most = restore_most(a->map), n = a->n - a->at;

	return n < most ? n : most;
}

/* Bring the next keys back, or learn why not. Return: false: no use going on. */
static bool acquire_restore(struct acquire *a)
{
	uint32_t n = acquire_piece(a);
	struct request *request;
	bool more = false;

	request = restore_request(a->map, a->keys + a->at, n,
		(a->some ? KVP_WIRE_FIRST : 0) | (a->layers ? KVP_WIRE_LAYERS : 0), a->deadline_ns);
	if (request && request_call(&request, a->deadline_ns + RESTORE_SLACK_MS * MS) == 0) {
		for (uint32_t i = 0; i < n && (i + 1) * sizeof(struct kvp_wire_found) <= request->body_bytes; i++) {
			struct kvp_view *view = &a->views[a->at + i];
			struct kvp_wire_found found;
			bool restored;

			memcpy(&found, request->body + i * sizeof(found), sizeof(found));
			if (i == 0)
				more = found.state == KVP_HIT_RAM;
			restored = found.state == KVP_HIT_RAM &&
				   (found.reason == KVP_WIRE_RESTORED || found.reason == KVP_WIRE_ARRIVES ||
					   (a->at + i < a->asked_to && view->opaque[VIEW_RESTORED]));
			view_miss(view, a->ns, found.state, found.reason);
			view->opaque[VIEW_RESTORED] = restored;
			if (found.state == KVP_HIT_RAM && found.reason == KVP_WIRE_ARRIVES)
				view->opaque[VIEW_ARRIVES] = found.slot + 1;
		}
		a->asked_to = a->at + n;
	}
	request_free(request);
	return more;
}

static void acquire_count(const struct acquire *a, uint32_t n_missed)
{
	struct part *part = part_get(a->ns->client);

	if (!part)
		return;
	if (a->hits[0]) {
		part_add_ns(part, a->map, COUNT_HITS_RAM, a->hits[0]);
		part_add_ns(part, a->map, COUNT_TOKENS_RAM, a->tokens[0]);
	}
	if (a->hits[1]) {
		part_add_ns(part, a->map, COUNT_HITS_SPILL, a->hits[1]);
		part_add_ns(part, a->map, COUNT_TOKENS_SPILL, a->tokens[1]);
	}
	if (n_missed)
		part_add_ns(part, a->map, COUNT_MISSES, n_missed);
	if (a->map)
		count_flush_soon(a->map->session);
}

/* What the views past the usable ones tell: what the daemon said of them, else what is known here. */
static void acquire_rest(struct acquire *a, uint32_t reason)
{
	for (uint32_t i = a->at; i < a->n; i++) {
		struct kvp_view *view = &a->views[i];

		if (i < a->asked_to && view->hit != KVP_HIT_RAM)
			continue;
		if (i > a->at && reason != KVP_MISS_DETACHED)
			view_miss(view, a->ns, KVP_MISS, KVP_MISS_UNASKED); /* it may be there, but past the run */
		else
			view_miss(view, a->ns, KVP_MISS, i < a->asked_to ? KVP_MISS_PINS : reason);
	}
}

/* Some are usable: the reads of the others begin, or go on, while the caller works on these. */
static int64_t acquire_some(struct acquire *a)
{
	if (!a->asked_to)
		restore_tell(a->map, a->keys + a->at, acquire_piece(a));
	for (uint32_t i = a->at; i < a->n; i++)
		if (i >= a->asked_to || a->views[i].hit == KVP_HIT_RAM)
			view_miss(&a->views[i], a->ns, KVP_PENDING, 0);
	acquire_count(a, 0);
	return a->at;
}

/* What goes on where another block ends was told with its beginning. */
static __attribute__((noinline)) void acquire_tell(const struct acquire *a)
{
	const struct hold *hold = a->at ? hold_get(a->views[0].opaque[0]) : NULL;

	if (!hold || kvp_key_is_none(&hold->block->parent))
		request_tell(a->map, a->keys, a->n, KVP_HINT_NONE);
}

/* Past a miss nothing is asked back, but missed it is; what the daemon said to be a miss it has counted. */
static void acquire_tell_missed(const struct acquire *a)
{
	for (uint32_t i = a->at, n; i < a->n; i += n) {
		bool counted = i < a->asked_to && a->views[i].hit == KVP_MISS;

		for (n = 1; i + n < a->n && counted == (i + n < a->asked_to && a->views[i + n].hit == KVP_MISS);)
			n++;
		if (!counted)
			lookup_tell(a->map, a->keys + i, n);
	}
}

static __attribute__((noinline)) int64_t acquire_many(struct acquire *a)
{
	if (!a->map) {
		acquire_rest(a, KVP_MISS_DETACHED);
		acquire_count(a, a->n - a->at);
		return 0;
	}
	if (!atomic_load_explicit(&a->map->used, memory_order_relaxed))
		atomic_store_explicit(&a->map->used, true, memory_order_relaxed);
	acquire_run(a);
	if (!a->told && map_is_learned(a->map))
		acquire_tell(a);
	if (a->at == a->n) {
		acquire_count(a, a->n - a->at);
		return a->n;
	}
	if (a->some && a->at && a->deadline_ns)
		return acquire_some(a);
	for (uint32_t round = 0; a->deadline_ns && a->at < a->n && round < a->n + 4; round++) {
		uint32_t before = a->at;

		if (!acquire_restore(a))
			break;
		acquire_run(a);
		if (a->some && a->at && a->at < a->n)
			return acquire_some(a);
		if (a->at < a->asked_to && a->views[a->at].hit == KVP_MISS)
			break; /* asked again it would count as another miss */
		if (a->at == before && now_ns() >= a->deadline_ns)
			break;
	}
	acquire_tell_missed(a);
	acquire_rest(a, kvp_state(a->ns->client, NULL) == KVP_ATTACHED ? a->reason : KVP_MISS_DETACHED);
	acquire_count(a, a->n - a->at);
	return a->at;
}

/*
 * One key that lies where its home bucket says: the shortest way, with no call in it that is not the last one, as each
 * register saved is a store that the pin has to wait for.  Return: false: nothing was done.
 */
static HOT bool acquire_one(struct kvp_ns *ns, const struct kvp_key *key, struct kvp_view *view)
{
	struct ns_map *map = atomic_load_explicit(&ns->map, memory_order_acquire);
	struct self *self = self_mine;
	struct part *part = self ? self->parts : NULL;
	struct hold *hold;
	struct spot spot;
	uint64_t handle;

	if (!map || !part || !self->n_spare ||
		atomic_load_explicit(&part->client, memory_order_relaxed) != ns->client ||
		atomic_load_explicit(&ns->client->dead, memory_order_relaxed) ||
		map_is_learned(map)) /* last: in a child after fork() it is not there to be looked at */
		return false;
	if (slot_try(map, slot_guess(map, key, false), key, &spot, true) != FOUND_PINNED)
		return false;
	hold = hold_take_spare(self, &handle);
	view_set(view, ns, &spot, KVP_HIT_RAM, hold, handle);
	part_add_ns(part, map, COUNT_HITS_RAM, 1);
	part_add_ns(part, map, COUNT_TOKENS_RAM, spot.used_tokens);
	return true;
}

static __attribute__((noinline)) int64_t acquire_checked(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n,
	uint32_t flags, uint64_t deadline_ns, struct kvp_view *views)
{
	int r = ns_bad(ns);

	if (r < 0)
		return r;
	if (n && (!keys || !views))
		return fail(-KVP_EINVAL, "keys and views: a null pointer");
	if (flags & ~(uint32_t)(KVP_ACQUIRE_SOME | KVP_ACQUIRE_LAYERS | KVP_ACQUIRE_TOLD))
		return fail(-KVP_EINVAL, "flags: %#x, only KVP_ACQUIRE_SOME, _LAYERS and _TOLD are known", flags);
	return acquire_many(&(struct acquire){.ns = ns,
		.map = atomic_load_explicit(&ns->map, memory_order_acquire),
		.keys = keys,
		.views = views,
		.n = n,
		.deadline_ns = deadline_ns,
		.some = flags & KVP_ACQUIRE_SOME,
		.layers = flags & KVP_ACQUIRE_LAYERS,
		.told = flags & KVP_ACQUIRE_TOLD});
}

int64_t kvp_acquire(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n, uint32_t flags, uint64_t deadline_ns,
	struct kvp_view *views)
{
	if (n == 1 && ns && keys && views && !flags && acquire_one(ns, keys, views))
		return 1;
	return acquire_checked(ns, keys, n, flags, deadline_ns, views);
}
