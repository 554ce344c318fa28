/* census.c - see census.h */
#define _GNU_SOURCE 1
#include "census.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PLACES_MAX (1u << 24)
#define SLOTS_PER_SLAB_MAX (1u << 28)
#define DRAINING_TRIES 50
#define MARK_HELD 1
#define MARK_HINTED 2

static uint64_t load64(const _Atomic uint64_t *at)
{
	return atomic_load_explicit(at, memory_order_relaxed);
}

/* Offsets and sizes within the object: nothing is read before this holds. */
static bool census_head_fits(const struct kvp_ns_header *head, uint64_t bytes)
{
	uint64_t blocks;

	if (head->magic != KVP_MAGIC_NS || head->layout_major != KVP_LAYOUT_MAJOR || head->endian != KVP_ENDIAN)
		return false;
	if (!head->max_places || head->max_places > PLACES_MAX || !head->slots_per_slab ||
		head->slots_per_slab > SLOTS_PER_SLAB_MAX || !head->n_buckets ||
		head->n_buckets & (head->n_buckets - 1))
		return false;
	blocks = (uint64_t)head->max_places * head->slots_per_slab; /* < 2^52 */
	return head->slab_off <= bytes && head->block_off <= bytes && head->index_off <= bytes &&
	       head->max_places * sizeof(struct kvp_slab) <= bytes - head->slab_off &&
	       blocks * sizeof(struct kvp_block) <= bytes - head->block_off &&
	       head->n_buckets <= (bytes - head->index_off) / sizeof(struct kvp_index_bucket);
}

static void census_check_head(
	struct census *census, const struct kvp_ns_row *row, uint64_t bytes, struct findings *findings)
{
	const struct kvp_ns_header *head = census->head;
	const char *object = census->object;

	expect_u64(findings, FINDING_HARD, object, "ns_id as in its name", load64(&row->ns_id), head->ns_id);
	expect_u64(findings, FINDING_HARD, object, "object_bytes as the file is long", bytes, head->object_bytes);
	expect_u64(findings, FINDING_HARD, object, "block_bytes as in its row", row->block_bytes, head->block_bytes);
	expect_u64(findings, FINDING_HARD, object, "slab_bytes as in its row", row->slab_bytes, head->slab_bytes);
	expect_u64(findings, FINDING_HARD, object, "slots_per_slab as in its row", row->slots_per_slab,
		head->slots_per_slab);
	expect_u64(findings, FINDING_HARD, object, "base_id as in its row", row->base_id, head->base_id);
	expect_u64(findings, FINDING_HARD, object, "owner_uid as in its row", row->owner_uid, head->owner_uid);
	expect_u64(findings, FINDING_HARD, object, "mode as in its row", row->mode, head->mode);
	expect(findings, FINDING_HARD, head->block_stride >= head->block_bytes && head->block_stride % KVP_PAGE == 0,
		object, "block_stride is block_bytes rounded up to pages", "a multiple of 4096", "%" PRIu64,
		head->block_stride);
	expect(findings, FINDING_HARD, head->slab_bytes / head->slots_per_slab >= head->block_stride, object,
		"a slab holds its slots", "slots_per_slab * block_stride <= slab_bytes", "%u * %" PRIu64 " > %" PRIu64,
		head->slots_per_slab, head->block_stride, head->slab_bytes);
}

static int census_read_places(struct census *census)
{
	const struct kvp_ns_header *head = census->head;
	uint64_t bytes = head->slots_per_slab * sizeof(struct kvp_block);
	int r = pool_read(census->fd, census->slabs, head->max_places * sizeof(struct kvp_slab), head->slab_off);

	for (uint32_t place = 0; !r && place < head->max_places; place++) {
		if (!load64(&census->slabs[place].number))
			continue;
		census->places[place] = malloc(bytes);
		census->marks[place] = calloc(head->slots_per_slab, 1);
		if (!census->places[place] || !census->marks[place])
			return -ENOMEM;
		r = pool_read(census->fd, census->places[place], bytes, head->block_off + place * bytes);
	}
	return r;
}

static int census_read(struct census *census)
{
	const struct kvp_ns_header *head = census->head;

	census->slabs = calloc(head->max_places, sizeof(*census->slabs));
	census->places = calloc(head->max_places, sizeof(*census->places));
	census->marks = calloc(head->max_places, sizeof(*census->marks));
	census->index = malloc(head->n_buckets * sizeof(*census->index));
	if (!census->slabs || !census->places || !census->marks || !census->index)
		return -ENOMEM;
	/* index last: a block published after the descriptors were read then shows as a stray hint, not as a lost
	   block */
	return census_read_places(census) < 0 ? -EIO
					      : pool_read(census->fd, census->index,
							head->n_buckets * sizeof(*census->index), head->index_off);
}

int census_open(struct census *census, const struct pool *pool, const struct kvp_ns_row *row, struct findings *findings)
{
	struct stat st;
	char path[POOL_PATH_MAX];
	int r;

	memset(census, 0, sizeof(*census));
	census->ns_id = load64(&row->ns_id);
	census->base_id = row->base_id;
	pool_path(pool, path, "ns-%016" PRIx64, census->ns_id);
	snprintf(census->object, sizeof(census->object), "%s", path + sizeof(POOL_SHM_DIR));
	census->fd = pool_object_open(pool, path, &st);
	if (census->fd == -EACCES)
		return -EACCES;
	if (!expect(findings, FINDING_SOFT, census->fd >= 0, census->object, "object of a listed namespace", "there",
		    "%s", census->fd < 0 ? strerror(-census->fd) : ""))
		return 0;
	census->head = calloc(1, sizeof(*census->head));
	if (!census->head)
		return -ENOMEM;
	r = pool_read(census->fd, census->head, sizeof(*census->head), 0);
	memset(census->head->secret, 0, sizeof(census->head->secret)); /* nothing of ours */
	if (!expect(findings, FINDING_HARD, r == 0 && census_head_fits(census->head, (uint64_t)st.st_size),
		    census->object, "head of the object", "magic, layout 1.x, offsets inside",
		    "layout %u.%u in %" PRIu64 " bytes", census->head->layout_major, census->head->layout_minor,
		    (uint64_t)st.st_size))
		return 0;
	census_check_head(census, row, (uint64_t)st.st_size, findings);
	r = census_read(census);
	if (r == -ENOMEM)
		return r;
	census->readable = expect(findings, FINDING_HARD, r == 0, census->object, "its parts can be read", "all bytes",
		"%s", strerror(-r));
	return 0;
}

void census_close(struct census *census)
{
	if (census->fd >= 0)
		close(census->fd);
	for (uint32_t place = 0; census->head && place < census->head->max_places; place++) {
		if (census->places)
			free(census->places[place]);
		if (census->marks)
			free(census->marks[place]);
	}
	free(census->places);
	free(census->marks);
	free(census->slabs);
	free(census->index);
	free(census->keys);
	free(census->head);
	memset(census, 0, sizeof(*census));
	census->fd = -1;
}

/* DRAINING never spans a wait: look again. */
static enum kvp_block_state census_settle(struct census *census, uint32_t place, uint32_t i)
{
	struct kvp_block *block = &census->places[place][i];
	uint64_t off = census->head->block_off +
		       ((uint64_t)place * census->head->slots_per_slab + i) * sizeof(struct kvp_block);

	for (unsigned tries = 0; tries < DRAINING_TRIES; tries++) {
		if (kvp_word_state(load64(&block->word)) != KVP_BLOCK_DRAINING)
			break;
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
		if (pool_read(census->fd, block, sizeof(*block), off) < 0)
			break;
	}
	return kvp_word_state(load64(&block->word));
}

void census_count(struct census *census)
{
	for (uint32_t place = 0; place < census->head->max_places; place++) {
		if (!census->places[place])
			continue;
		for (uint32_t i = 0; i < census->head->slots_per_slab; i++) {
			enum kvp_block_state state = kvp_word_state(load64(&census->places[place][i].word));

			if (state == KVP_BLOCK_DRAINING)
				state = census_settle(census, place, i);
			census->slots++;
			if (state == KVP_BLOCK_DRAINING) {
				census->draining++;
				state = KVP_BLOCK_PUBLISHED; /* still readable */
			}
			if (state <= KVP_BLOCK_RETIRED)
				census->by_state[state]++;
		}
	}
}

const struct kvp_block *census_block(const struct census *census, uint64_t slot)
{
	uint64_t place = slot / census->head->slots_per_slab;

	if (place >= census->head->max_places || !census->places[place])
		return NULL;
	return &census->places[place][slot % census->head->slots_per_slab];
}

static bool block_readable(const struct kvp_block *block)
{
	enum kvp_block_state state = kvp_word_state(load64(&block->word));

	return state == KVP_BLOCK_PUBLISHED || state == KVP_BLOCK_DRAINING;
}

static bool key_is(const struct kvp_key *a, const struct kvp_key *b)
{
	return a->w[0] == b->w[0] && a->w[1] == b->w[1];
}

/* Where @key is, or where it would go. */
static uint64_t *census_key_place(const struct census *census, const struct kvp_key *key)
{
	uint64_t mask = census->n_keys_room - 1;

	for (uint64_t at = key->w[0] ^ key->w[1];; at++) {
		uint64_t *place = &census->keys[at & mask];

		if (!*place || key_is(&census_block(census, *place - 1)->key, key))
			return place;
	}
}

static bool census_findable(const struct census *census, const struct kvp_key *key, uint64_t slot)
{
	uint64_t n = census->head->n_buckets, home = kvp_index_home(key, n);
	uint64_t probes = n < KVP_INDEX_PROBES ? n : KVP_INDEX_PROBES;

	for (uint64_t probe = 0; probe < probes; probe++) {
		const struct kvp_index_bucket *bucket = &census->index[(home + probe) & (n - 1)];
		bool full = true;

		for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++) {
			uint64_t hint = load64(&bucket->hint[i]);

			if (hint == kvp_hint(key, slot))
				return true;
			full = full && hint;
		}
		if (!full) /* a reader stops here */
			return false;
	}
	return false;
}

static void census_check_published(struct census *census, uint64_t slot, const struct kvp_block *block,
	const char *object, struct findings *findings)
{
	const struct kvp_ns_header *head = census->head;
	uint64_t *at;

	expect(findings, FINDING_SOFT, block->used_bytes <= head->block_bytes, object,
		"used_bytes of a published block", "at most block_bytes", "%" PRIu64, block->used_bytes);
	expect(findings, FINDING_SOFT, block->used_tokens <= head->desc.block_tokens, object,
		"used_tokens of a published block", "at most block_tokens", "%u", block->used_tokens);
	if (!expect(findings, FINDING_SOFT, block->key.w[0] || block->key.w[1], object, "key of a published block",
		    "not all zero", "all zero"))
		return;
	expect(findings, FINDING_SOFT, census_findable(census, &block->key, slot), object,
		"its hint is found by a reader's probes", "a hint", "none");
	at = census_key_place(census, &block->key);
	if (expect(findings, FINDING_SOFT, !*at, object, "its key is published once", "no other slot",
		    "slot %" PRIu64 " too", *at ? *at - 1 : 0))
		*at = slot + 1;
}

static void census_check_place(struct census *census, uint32_t place, struct findings *findings)
{
	uint64_t number = load64(&census->slabs[place].number);

	for (uint32_t i = 0; i < census->head->slots_per_slab; i++) {
		const struct kvp_block *block = &census->places[place][i];
		uint64_t slot = (uint64_t)place * census->head->slots_per_slab + i, word = load64(&block->word);
		char object[sizeof(census->object) + 32];

		snprintf(object, sizeof(object), "%s slot %" PRIu64, census->object, slot);
		expect(findings, FINDING_HARD, kvp_word_state(word) <= KVP_BLOCK_RETIRED, object, "state of the word",
			"0 to 6", "%u", (unsigned)kvp_word_state(word));
		expect(findings, FINDING_SOFT, kvp_word_state(word) != KVP_BLOCK_DRAINING, object,
			"DRAINING does not last", "another state soon", "DRAINING");
		expect(findings, FINDING_SOFT, block->slab_number == number, object, "slab_number as in the slab table",
			"that of its place", "%" PRIu64, block->slab_number);
		if (kvp_word_state(word) == KVP_BLOCK_RETIRED)
			expect(findings, FINDING_HARD, kvp_word_generation(word) == KVP_GENERATION_MAX, object,
				"a retired slot has used up its generations", "2^56 - 1", "%" PRIu64,
				kvp_word_generation(word));
		if (block_readable(block))
			census_check_published(census, slot, block, object, findings);
	}
}

static void census_check_hint(struct census *census, uint64_t bucket, uint64_t hint, struct findings *findings)
{
	uint64_t slot = kvp_hint_slot(hint);
	uint64_t n_slots = (uint64_t)census->head->max_places * census->head->slots_per_slab;
	const struct kvp_block *block;
	char object[sizeof(census->object) + 64];
	uint8_t *mark;

	snprintf(object, sizeof(object), "%s bucket %" PRIu64 " slot %" PRIu64, census->object, bucket, slot);
	if (!expect(findings, FINDING_HARD, slot < n_slots, object, "a hint points inside", "a slot of the object",
		    "of %" PRIu64, n_slots))
		return;
	block = census_block(census, slot);
	if (!expect(findings, FINDING_SOFT, block && block_readable(block) && kvp_hint(&block->key, slot) == hint,
		    object, "a hint points to a published block of its tag", "PUBLISHED, same tag",
		    block ? "state %u" : "no slab there", block ? (unsigned)kvp_word_state(load64(&block->word)) : 0))
		return;
	mark = &census->marks[slot / census->head->slots_per_slab][slot % census->head->slots_per_slab];
	expect(findings, FINDING_SOFT, !(*mark & MARK_HINTED), object, "one hint for a slot", "1", "2 or more");
	*mark |= MARK_HINTED;
}

void census_check_blocks(struct census *census, struct findings *findings)
{
	uint64_t room = 16;

	while (room < 2 * census->slots)
		room *= 2;
	census->n_keys_room = room;
	census->keys = calloc(room, sizeof(*census->keys));
	if (!census->keys) {
		findings->n_skipped++;
		return;
	}
	for (uint32_t place = 0; place < census->head->max_places; place++)
		if (census->places[place])
			census_check_place(census, place, findings);
	for (uint64_t b = 0; b < census->head->n_buckets; b++)
		for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++)
			if (load64(&census->index[b].hint[i]))
				census_check_hint(census, b, load64(&census->index[b].hint[i]), findings);
}

static bool census_has_key(const struct census *census, const struct kvp_key *key)
{
	return census && census->readable && census->keys && *census_key_place(census, key);
}

/* A set of keys, enough for one for each published block; the all-zero key is never put in. */
static bool key_set_add(struct kvp_key *set, uint64_t room, const struct kvp_key *key)
{
	for (uint64_t at = key->w[0] ^ key->w[1];; at++) {
		struct kvp_key *place = &set[at & (room - 1)];

		if (key_is(place, key))
			return false;
		if (place->w[0] || place->w[1])
			continue;
		*place = *key;
		return true;
	}
}

uint64_t census_missing_parents(const struct census *census, const struct census *base)
{
	struct kvp_key *set = census->keys ? calloc(census->n_keys_room, sizeof(*set)) : NULL;
	uint64_t missing = 0;

	for (uint64_t at = 0; set && at < census->n_keys_room; at++) {
		const struct kvp_key *parent;

		if (!census->keys[at])
			continue;
		if (census->marks[(census->keys[at] - 1) / census->head->slots_per_slab]
				 [(census->keys[at] - 1) % census->head->slots_per_slab] &
			MARK_HELD)
			continue;
		parent = &census_block(census, census->keys[at] - 1)->parent;
		if ((!parent->w[0] && !parent->w[1]) || census_has_key(census, parent) || census_has_key(base, parent))
			continue;
		missing += key_set_add(set, census->n_keys_room, parent);
	}
	free(set);
	return missing;
}

bool census_hold(struct census *census, uint32_t place, uint32_t index)
{
	uint8_t *mark;

	if (place >= census->head->max_places || !census->places[place] || index >= census->head->slots_per_slab ||
		!block_readable(&census->places[place][index]))
		return false;
	mark = &census->marks[place][index];
	census->held_slots += !(*mark & MARK_HELD);
	*mark |= MARK_HELD;
	return true;
}

uint64_t census_grants_of(const struct census *census, uint64_t session_id)
{
	uint64_t n = 0;

	for (uint32_t place = 0; place < census->head->max_places; place++)
		for (uint32_t i = 0; census->places[place] && i < census->head->slots_per_slab; i++) {
			const struct kvp_block *block = &census->places[place][i];
			enum kvp_block_state state = kvp_word_state(load64(&block->word));

			n += (state == KVP_BLOCK_GRANTED || state == KVP_BLOCK_TAKEN) && block->key.w[0] == session_id;
		}
	return n;
}
