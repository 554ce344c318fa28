/*
 * test_block.c - the life of blocks against a plain model, in a daemon without sockets, files or other processes
 *
 * The fixture is block_fixture.h's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/mman.h>
#include <unistd.h>

#include "block_fixture.h"
#include "daemon/orphan.h"
#include "kvpool_desc.h"

/* Gauges, words, entries, index, candidates and grants all tell the same story. */
static void all_agree(struct fixture *f)
{
	uint64_t n[8] = {0}, n_free = 0, grants = 0, hints = 0, candidates = 0;
	const struct kvp_ns_counters *c = &f->row.counters;

	for (uint64_t slot = 0; slot < SLOTS; slot++) {
		enum kvp_block_state state = state_of(f, slot);
		const struct kvp_block *block = &f->ns.blocks[slot];

		n[state]++;
		assert_int_not_equal(state, KVP_BLOCK_DRAINING); /* never outside of a look */
		if (state == KVP_BLOCK_PUBLISHED) {
			struct entry *e = ns_entry(&f->ns, &block->key);

			assert_non_null(e);
			assert_int_equal(e->slot, slot);
			assert_int_equal(found_at(f, &block->key), slot);
			assert_int_equal(e->leaf.index != 0, e->n_hot_children == 0);
		}
	}
	for (uint32_t place = 0; place < PLACES; place++)
		n_free += f->slabs[place].n_free;
	for (unsigned i = 0; i < SESSIONS; i++) {
		uint64_t mine = 0;

		if (!f->members[i])
			continue;
		for (uint64_t at = f->members[i]->grants; at; at = ns_slot(&f->ns, at - 1)->next) {
			assert_ptr_equal(ns_slot(&f->ns, at - 1)->who, f->members[i]);
			mine++;
		}
		assert_int_equal(mine, f->members[i]->n_grants);
		assert_int_equal(mine, atomic_load(&f->session_rows[i].grants));
		grants += mine;
	}
	for (unsigned b = 0; b < f->ns.head->n_buckets; b++)
		for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++)
			hints += atomic_load(&f->ns.index[b].hint[i]) != 0;
	for (struct entry *e = ns_entry_next(&f->ns, NULL); e; e = ns_entry_next(&f->ns, e)) {
		uint32_t hot = 0;

		for (const struct entry *child = e->first_child; child; child = child->next_sibling)
			hot += child->slot != NO_SLOT;
		assert_int_equal(hot, e->n_hot_children);
		candidates += e->leaf.index != 0;
		if (e->slot != NO_SLOT && e->parent)
			assert_true(e->parent->slot != NO_SLOT || e->parent->cold); /* reachable */
	}
	assert_int_equal(candidates, f->ns.heap.n);
	assert_int_equal(n[KVP_BLOCK_FREE], c->free);
	assert_int_equal(n[KVP_BLOCK_FREE], f->ns.n_free);
	assert_int_equal(n_free, f->ns.n_free);
	assert_int_equal(n[KVP_BLOCK_GRANTED], c->granted);
	assert_int_equal(n[KVP_BLOCK_TAKEN], c->taken);
	assert_int_equal(n[KVP_BLOCK_GRANTED] + n[KVP_BLOCK_TAKEN], grants);
	assert_int_equal(n[KVP_BLOCK_PUBLISHED], c->published);
	assert_int_equal(n[KVP_BLOCK_PUBLISHED], hints);
	assert_int_equal(n[KVP_BLOCK_RETIRED], c->retired);
	assert_int_equal(SLOTS, c->slots);
}

/* ---- random lives ---- */

struct grant {
	uint64_t slot, generation;
	unsigned who;
};

static void after_any_order_of_calls_gauges_words_index_and_grants_agree(void **state)
{
	struct fixture *f = given_pool(1);
	struct grant grants[SLOTS];
	unsigned n_grants = 0, restarts = 0;
	uint64_t last_generation[SLOTS] = {0};

	(void)state;
	for (unsigned step = 0; step < 40000; step++) {
		unsigned who = next(f) % SESSIONS;
		uint64_t slot = next(f) % SLOTS;
		struct entry *e = state_of(f, slot) == KVP_BLOCK_PUBLISHED ? ns_slot(&f->ns, slot)->who : NULL;

		atomic_store(&f->d.pool.header->tick, 1000 + step / 10);
		switch (next(f) % 8) {
		case 0: {
			struct grant grant = {.who = who};

			grant.slot = block_grant(&f->ns, f->members[who], TOPOLOGY_ANY, &grant.generation);
			if (grant.slot == NO_SLOT) {
				assert_int_equal(f->ns.n_free, 0);
				break;
			}
			for (unsigned i = 0; i < n_grants; i++)
				assert_true(grants[i].slot != grant.slot); /* never two owners */
			grants[n_grants++] = grant;
			break;
		}
		case 1:
		case 2:
			if (n_grants) { /* publish it, below something that is there or not */
				struct grant grant = grants[--n_grants];
				struct kvp_wire_item item = {.slot = grant.slot,
					.generation = grant.generation,
					.key = key_of(next(f) % 3 ? ++f->next_key : f->next_key),
					.used_bytes = BLOCK,
					.used_tokens = 16};
				struct kvp_wire_result result;

				if (e && next(f) % 2)
					item.parent = e->key;
				else if (next(f) % 8 == 0)
					item.parent = key_of(999999999);
				block_publish_grant(f->members[grant.who], &item, &result);
				if (result.result != KVP_PUB_STORED)
					block_release_grant(f->members[grant.who], grant.slot, grant.generation);
				/* what is used up is used up */
				block_publish_grant(f->members[grant.who], &item, &result);
				assert_int_equal(result.result, -KVP_ESTALE);
				assert_false(block_release_grant(f->members[grant.who], grant.slot, grant.generation));
			}
			break;
		case 3:
			if (n_grants) {
				struct grant grant = grants[--n_grants];

				assert_false(block_release_grant(
					f->members[(grant.who + 1) % SESSIONS], grant.slot, grant.generation));
				assert_true(block_release_grant(f->members[grant.who], grant.slot, grant.generation));
			}
			break;
		case 4:
			if (e)
				pin(f, who, slot, 1);
			break;
		case 5: {
			struct kvp_pin *at =
				session_pin(&f->sessions[who], (uint32_t)(slot / WIDTH), (uint32_t)(slot % WIDTH));

			if (atomic_load(&at->count))
				pin(f, who, slot, -1);
			break;
		}
		case 6:
			if (e && !e->n_hot_children) {
				bool was_pinned = pinned(f, slot);
				uint64_t generation = generation_of(f, slot);
				struct kvp_key key = e->key;
				bool went = block_evict(e);

				assert_true(!was_pinned || !went);
				if (went) {
					assert_true(found_at(f, &key) == UINT64_MAX);
					assert_int_equal(state_of(f, slot), KVP_BLOCK_FREE);
					assert_true(generation_of(f, slot) > generation);
				} else {
					assert_int_equal(generation_of(f, slot), generation);
				}
			}
			break;
		default:
			if (e && next(f) % 4 == 0) {
				bool was_pinned = pinned(f, slot), moved;
				struct kvp_key key = e->key;
				char *data = ns_slot_data(&f->ns, slot);

				memcpy(data, &key, sizeof(key));
				slab_withdraw(&f->slabs[slot / WIDTH]);
				moved = block_move(e, &f->slabs[slot / WIDTH]);
				slab_give_again(&f->slabs[slot / WIDTH]);
				if (moved) {
					assert_false(was_pinned);
					assert_true(found_at(f, &key) != slot);
					assert_memory_equal(ns_slot_data(&f->ns, found_at(f, &key)), &key, sizeof(key));
				}
			} else if (step % 500 == 7) {
				static const bool all[SESSIONS] = {true, true, true};

				restart(f, all);
				restarts++;
			}
		}
		for (uint64_t i = 0; i < SLOTS; i++) {
			assert_true(generation_of(f, i) >= last_generation[i]); /* it only grows */
			last_generation[i] = generation_of(f, i);
		}
		if (step % 13 == 0)
			all_agree(f);
	}
	all_agree(f);
	assert_true(restarts > 2);
	done_with(f);
}

/* ---- single facts ---- */

static void a_slot_that_has_used_up_its_generations_is_retired_and_never_given_out(void **state)
{
	struct fixture *f = given_pool(2);
	uint64_t slot, generation, seen = 0;

	(void)state;
	slot = block_grant(&f->ns, f->members[0], TOPOLOGY_ANY, &generation);
	assert_true(block_release_grant(f->members[0], slot, generation));
	atomic_store(&f->ns.blocks[slot].word, kvp_word(KVP_GENERATION_MAX - 1, KVP_BLOCK_FREE));
	for (unsigned i = 0; i < SLOTS; i++) {
		uint64_t got = block_grant(&f->ns, f->members[0], TOPOLOGY_ANY, &generation);

		assert_true(got != NO_SLOT);
		seen += got == slot;
	}
	assert_int_equal(seen, 1);
	block_release_all_grants(f->members[0]);
	assert_int_equal(state_of(f, slot), KVP_BLOCK_RETIRED);
	assert_int_equal(f->row.counters.retired, 1);
	all_agree(f);
	for (unsigned i = 0; i < SLOTS - 1; i++)
		assert_true(block_grant(&f->ns, f->members[0], TOPOLOGY_ANY, &generation) != slot);
	assert_int_equal(block_grant(&f->ns, f->members[0], TOPOLOGY_ANY, &generation), NO_SLOT);
	done_with(f);
}

static void a_grant_past_its_limit_of_one_who_is_away_is_set_aside_until_given_back(void **state)
{
	struct fixture *f = given_pool(3);
	struct kvp_wire_item item = {.key = key_of(1), .used_bytes = BLOCK, .used_tokens = 16};
	struct kvp_wire_result result;

	(void)state;
	item.slot = block_grant(&f->ns, f->members[0], TOPOLOGY_ANY, &item.generation);
	block_take_late(&f->d);
	assert_int_equal(state_of(f, item.slot), KVP_BLOCK_GRANTED);
	atomic_store(&f->d.pool.header->tick, 1000 + 1600 / KVP_TICK_MS + 2);
	f->sessions[0].peer = (struct peer *)f; /* it is here: it can be asked */
	block_take_late(&f->d);
	assert_int_equal(state_of(f, item.slot), KVP_BLOCK_GRANTED);
	f->sessions[0].peer = NULL;
	block_take_late(&f->d);
	assert_int_equal(state_of(f, item.slot), KVP_BLOCK_TAKEN);
	all_agree(f);
	block_publish_grant(f->members[0], &item, &result);
	assert_int_equal(result.result, -KVP_ESTALE);
	assert_false(block_release_grant(f->members[1], item.slot, item.generation));
	assert_int_equal(state_of(f, item.slot), KVP_BLOCK_TAKEN);
	assert_true(block_release_grant(f->members[0], item.slot, item.generation));
	assert_int_equal(state_of(f, item.slot), KVP_BLOCK_FREE);
	all_agree(f);
	done_with(f);
}

static void of_a_resumed_sessions_grants_only_the_listed_ones_stand(void **state)
{
	struct fixture *f = given_pool(4);
	struct kvp_wire_grant grants[6], keep[5];

	(void)state;
	for (unsigned i = 0; i < 6; i++)
		grants[i].slot = block_grant(&f->ns, f->members[1], TOPOLOGY_ANY, &grants[i].generation);
	keep[0] = grants[4];
	keep[1] = grants[1];
	keep[2] = grants[1]; /* twice */
	keep[3] = (struct kvp_wire_grant){grants[2].slot, grants[2].generation + 1}; /* forged */
	keep[4] = (struct kvp_wire_grant){SLOTS + 5, 0};
	block_keep_grants(f->members[1], keep, 5);
	assert_int_equal(f->members[1]->n_grants, 2);
	assert_int_equal(state_of(f, grants[4].slot), KVP_BLOCK_GRANTED);
	assert_int_equal(state_of(f, grants[1].slot), KVP_BLOCK_GRANTED);
	assert_int_equal(state_of(f, grants[2].slot), KVP_BLOCK_FREE);
	all_agree(f);
	block_keep_grants(f->members[1], NULL, 0);
	assert_int_equal(f->row.counters.granted, 0);
	all_agree(f);
	done_with(f);
}

static void a_hold_ends_with_the_first_use_or_its_second(void **state)
{
	struct fixture *f = given_pool(5);
	struct entry *a = given_block(f, NULL), *b = given_block(f, NULL);
	uint64_t slot = a->slot;

	(void)state;
	block_hold(a);
	block_hold(b);
	assert_false(block_evict(a));
	atomic_store(&f->d.pool.header->tick, 1010);
	pin(f, 2, slot, 1);
	assert_false(block_evict(a)); /* pinned */
	pin(f, 2, slot, -1);
	assert_true(block_evict(a)); /* used and let go */
	assert_false(block_evict(b));
	atomic_store(&f->d.pool.header->tick, 1000 + TICKS_PER_SECOND);
	assert_true(block_evict(b));
	all_agree(f);
	done_with(f);
}

static void a_use_of_the_block_that_was_there_before_ends_no_hold(void **state)
{
	struct fixture *f = given_pool(5);
	struct entry *a = given_block(f, NULL), *b;
	uint64_t slot = a->slot;

	(void)state;
	pin(f, 2, slot, 1);
	pin(f, 2, slot, -1);
	assert_true(block_evict(a));
	b = given_block(f, NULL); /* within the same tick */
	assert_int_equal(b->slot, slot);
	block_hold(b);
	assert_false(block_evict(b));
	block_used(b, daemon_tick(&f->d)); /* that is of the other block, too, for all that can be told */
	assert_false(block_evict(b));
	block_used(b, daemon_tick(&f->d) + 1); /* as a session says that ends */
	assert_true(block_evict(b));
	done_with(f);
}

static void a_stamp_from_the_future_keeps_nothing(void **state)
{
	struct fixture *f = given_pool(6);
	struct entry *e = given_block(f, NULL);
	uint32_t stamp = e->stamp;

	(void)state;
	atomic_store(&session_pin(&f->sessions[0], (uint32_t)(e->slot / WIDTH), (uint32_t)(e->slot % WIDTH))->stamp,
		daemon_tick(&f->d) + 100000);
	assert_false(session_pins(&f->d, (uint32_t)(e->slot / WIDTH), (uint32_t)(e->slot % WIDTH), &stamp));
	assert_int_equal(stamp, e->stamp);
	done_with(f);
}

/* ---- what a kill leaves ---- */

static void a_new_daemon_puts_draining_back_frees_what_was_being_filled_and_keeps_grants_of_the_living(void **state)
{
	static const bool lives[SESSIONS] = {true, false, true};
	struct fixture *f = given_pool(7);
	struct entry *a = given_block(f, NULL), *b = given_block(f, &a->key);
	struct kvp_key key_a = a->key, key_b = b->key;
	uint64_t slot_a = a->slot, slot_b = b->slot, fill, mine, dead, generation,
		 generation_a = generation_of(f, slot_a);

	(void)state;
	mine = block_grant(&f->ns, f->members[0], TOPOLOGY_ANY, &generation);
	dead = block_grant(&f->ns, f->members[1], TOPOLOGY_ANY, &generation);
	fill = block_begin_fill(&f->ns, NULL);
	atomic_store(&f->ns.blocks[slot_a].word, kvp_word(generation_a, KVP_BLOCK_DRAINING)); /* killed right there */
	restart(f, lives);
	assert_int_equal(state_of(f, slot_a), KVP_BLOCK_PUBLISHED);
	assert_int_equal(generation_of(f, slot_a), generation_a);
	assert_int_equal(found_at(f, &key_a), slot_a);
	assert_int_equal(found_at(f, &key_b), slot_b);
	assert_int_equal(ns_entry(&f->ns, &key_a)->n_hot_children, 1); /* and the chain is one again */
	assert_int_equal(state_of(f, mine), KVP_BLOCK_GRANTED);
	assert_int_equal(state_of(f, dead), KVP_BLOCK_FREE);
	assert_int_equal(state_of(f, fill), KVP_BLOCK_FREE);
	all_agree(f);
	done_with(f);
}

static void while_a_dead_daemons_reads_may_still_land_their_slots_are_set_aside(void **state)
{
	static const bool lives[SESSIONS] = {true, true, true};
	struct fixture *f = given_pool(8);
	uint64_t fill = block_begin_fill(&f->ns, NULL), generation = generation_of(f, fill);

	(void)state;
	f->d.old_io = true;
	restart(f, lives);
	assert_int_equal(state_of(f, fill), KVP_BLOCK_TAKEN);
	assert_true(generation_of(f, fill) > generation);
	assert_int_equal(f->row.counters.taken, 1);
	restart(f, lives); /* killed again, and it still may land */
	assert_int_equal(state_of(f, fill), KVP_BLOCK_TAKEN);
	assert_int_equal(f->row.counters.taken, 1);
	f->d.old_io = false;
	block_release_set_aside(&f->d);
	assert_int_equal(state_of(f, fill), KVP_BLOCK_FREE);
	all_agree(f);
	done_with(f);
}

/* A block being read back, its first layer there. */
static struct entry *given_arriving(struct fixture *f, uint64_t k)
{
	struct kvp_key key = key_of(1000 + k), none = {{0, 0}};
	struct entry *e = ns_entry_add(&f->ns, &key, &none);

	assert_non_null(e);
	e->bytes = BLOCK;
	e->used_tokens = 16;
	e->fill = block_begin_fill(&f->ns, e);
	assert_true(e->fill != NO_SLOT);
	e->io = ENTRY_READING;
	assert_false(block_arrives(e));
	block_arrive(e, 1);
	assert_true(block_arrives(e));
	return e;
}

static void an_arriving_block_has_its_fields_and_becomes_the_one_its_readers_hold(void **state)
{
	struct fixture *f = given_pool(21);
	struct entry *e = given_arriving(f, 1);
	const struct kvp_block *block = &f->ns.blocks[e->fill];
	uint64_t generation = generation_of(f, e->fill);

	(void)state;
	assert_int_equal(state_of(f, e->fill), KVP_BLOCK_RESTORING);
	assert_memory_equal(&block->key, &e->key, sizeof(e->key));
	assert_int_equal(block->used_bytes, BLOCK);
	assert_int_equal(block->used_tokens, 16);
	assert_int_equal(atomic_load(&block->layers), 1);
	assert_int_equal(found_at(f, &e->key), NO_SLOT); /* no hint leads there */
	pin(f, 0, e->fill, 1);
	e->io = ENTRY_IDLE;
	block_publish_fill(e, e->fill);
	e->hold_until = 0;
	assert_int_equal(state_of(f, e->slot), KVP_BLOCK_PUBLISHED);
	assert_int_equal(generation_of(f, e->slot), generation);
	assert_false(block_evict(e)); /* the pin it had is a pin like any other */
	pin(f, 0, e->slot, -1);
	all_agree(f);
	done_with(f);
}

static void while_somebody_holds_what_was_arriving_its_slot_is_nobodys_after_the_read_has_failed(void **state)
{
	struct fixture *f = given_pool(22);
	struct entry *e = given_arriving(f, 1);
	uint64_t slot = e->fill, generation = generation_of(f, slot);

	(void)state;
	pin(f, 1, slot, 1);
	e->io = ENTRY_IDLE;
	block_drop_fill(&f->ns, slot);
	assert_int_equal(state_of(f, slot), KVP_BLOCK_TAKEN);
	assert_int_equal(generation_of(f, slot), generation + 1); /* the hold is void */
	assert_int_equal(atomic_load(&f->ns.blocks[slot].layers), KVP_LAYERS_VOID);
	block_release_set_aside(&f->d);
	assert_int_equal(state_of(f, slot), KVP_BLOCK_TAKEN);
	assert_true(f->d.set_aside);
	pin(f, 1, slot, -1);
	block_release_set_aside(&f->d);
	assert_int_equal(state_of(f, slot), KVP_BLOCK_FREE);
	assert_false(f->d.set_aside);
	all_agree(f);
	done_with(f);
}

static void a_new_daemon_sets_aside_what_was_arriving_as_long_as_somebody_holds_it(void **state)
{
	static const bool lives[SESSIONS] = {true, true, true};
	struct fixture *f = given_pool(23);
	uint64_t held = given_arriving(f, 1)->fill, other = given_arriving(f, 2)->fill;
	uint64_t generation = generation_of(f, held);

	(void)state;
	pin(f, 2, held, 1);
	restart(f, lives);
	assert_int_equal(state_of(f, held), KVP_BLOCK_TAKEN);
	assert_true(generation_of(f, held) > generation);
	assert_int_equal(state_of(f, other), KVP_BLOCK_FREE);
	restart(f, lives); /* and the next one too */
	assert_int_equal(state_of(f, held), KVP_BLOCK_TAKEN);
	assert_int_equal(f->row.counters.taken, 1);
	pin(f, 2, held, -1);
	block_release_set_aside(&f->d);
	assert_int_equal(state_of(f, held), KVP_BLOCK_FREE);
	all_agree(f);
	done_with(f);
}

static void the_next_fill_of_a_slot_begins_with_no_layer(void **state)
{
	struct fixture *f = given_pool(24);
	struct entry *e = given_arriving(f, 1);
	uint64_t slot = e->fill;

	(void)state;
	atomic_store(&f->ns.blocks[slot].layers, 7);
	e->io = ENTRY_IDLE;
	block_drop_fill(&f->ns, slot);
	block_release_set_aside(&f->d);
	for (unsigned i = 0; i < SLOTS; i++) {
		uint64_t fill = block_begin_fill(&f->ns, NULL);

		assert_int_equal(atomic_load(&f->ns.blocks[fill].layers), 0);
		assert_true(kvp_key_is_none(&f->ns.blocks[fill].key));
	}
	done_with(f);
}

static void words_of_a_slab_that_is_gone_do_not_speak_for_the_one_at_its_place(void **state)
{
	static const bool lives[SESSIONS] = {true, true, true};
	struct fixture *f = given_pool(9);
	struct kvp_key keys[SLOTS];
	uint64_t generations[SLOTS];

	(void)state;
	for (unsigned i = 0; i < SLOTS; i++)
		keys[i] = given_block(f, NULL)->key;
	for (unsigned i = 0; i < SLOTS; i++)
		generations[i] = generation_of(f, i);
	f->slabs[2].number = 777; /* another object, all zeroes */
	atomic_store(&f->ns.slab_table[2].number, 777);
	memset(f->slabs[2].map, 0, f->slabs[2].bytes);
	restart(f, lives);
	assert_int_equal(f->row.counters.published, SLOTS - WIDTH);
	for (unsigned i = 0; i < SLOTS; i++) {
		uint64_t slot = found_at(f, &keys[i]);

		assert_true(slot == UINT64_MAX || slot / WIDTH != 2);
	}
	for (uint64_t slot = 2 * WIDTH; slot < 3 * WIDTH; slot++) {
		assert_int_equal(state_of(f, slot), KVP_BLOCK_FREE);
		assert_true(generation_of(f, slot) > generations[slot]);
		assert_int_equal(f->ns.blocks[slot].slab_number, 777);
	}
	done_with(f);
}

static void a_move_cut_short_by_a_kill_leaves_the_copy_somebody_may_hold(void **state)
{
	static const bool lives[SESSIONS] = {true, true, true};

	(void)state;
	for (unsigned forth = 0; forth <= 1; forth++) { /* in whatever order the two are met */
		struct fixture *f = given_pool(10);
		struct entry *e = given_block(f, NULL);
		struct kvp_key key = e->key;
		uint64_t a = e->slot, b = (a + WIDTH) % SLOTS, drained = forth ? a : b, held = forth ? b : a;
		uint64_t generation = generation_of(f, a);

		/* the second copy is published, the first not yet free */
		f->ns.blocks[b] = f->ns.blocks[a];
		f->ns.blocks[b].slab_number = f->slabs[b / WIDTH].number;
		atomic_store(&f->ns.blocks[drained].word, kvp_word(generation, KVP_BLOCK_DRAINING));
		pin(f, 0, held, 1);
		restart(f, lives);
		assert_int_equal(f->row.counters.published, 1);
		assert_int_equal(f->row.counters.free, SLOTS - 1);
		assert_int_equal(found_at(f, &key), held);
		assert_int_equal(ns_entry(&f->ns, &key)->slot, held);
		assert_int_equal(generation_of(f, held), generation);
		assert_int_equal(generation_of(f, drained), generation + 1);
		pin(f, 0, held, -1);
		all_agree(f);
		done_with(f);
	}
}

static void a_condemned_slab_gives_up_all_its_blocks_and_grants_and_no_new_ones(void **state)
{
	struct fixture *f = given_pool(11);
	uint64_t generation, slot;

	(void)state;
	for (unsigned i = 0; i < SLOTS / 2; i++)
		given_block(f, NULL);
	for (unsigned i = 0; i < SLOTS / 4; i++)
		block_grant(&f->ns, f->members[1], TOPOLOGY_ANY, &generation);
	f->slabs[1].condemned = true;
	slab_withdraw(&f->slabs[1]);
	pin(f, 0, 1 * WIDTH, 1); /* held or not */
	f->slabs[1].slots[0].io = 1;
	assert_false(block_drop_slab(&f->ns, &f->slabs[1])); /* its bytes are on their way somewhere */
	f->slabs[1].slots[0].io = 0;
	assert_true(block_drop_slab(&f->ns, &f->slabs[1]));
	for (slot = WIDTH; slot < 2 * WIDTH; slot++)
		assert_int_equal(state_of(f, slot), KVP_BLOCK_FREE);
	while ((slot = block_grant(&f->ns, f->members[2], TOPOLOGY_ANY, &generation)) != NO_SLOT)
		assert_true(slot / WIDTH != 1);
	assert_int_equal(f->ns.n_free, 0);
	done_with(f);
}

static void what_hangs_below_a_condemned_slab_goes_at_once_and_what_is_held_when_it_is_let_go(void **state)
{
	struct fixture *f = given_pool(12);
	uint64_t slots[SLOTS], n_published;
	struct slab *broken;
	struct entry *e = NULL;

	(void)state;
	for (unsigned i = 0; i < SLOTS; i++) { /* one chain over all slabs, one after the other */
		e = given_block(f, e ? &e->key : NULL);
		slots[i] = e->slot;
	}
	n_published = atomic_load(&f->row.counters.published);
	pin(f, 0, slots[2 * WIDTH + 3], 1);
	broken = &f->slabs[slots[WIDTH] / WIDTH];
	broken->condemned = true;
	slab_withdraw(broken);
	assert_true(block_drop_slab(&f->ns, broken));
	assert_int_equal(atomic_load(&f->row.counters.published), n_published - WIDTH);
	for (unsigned i = 0; i < 3; i++)
		orphan_step(&f->d);
	/* three before the held one went, it and what is below it stay */
	assert_int_equal(atomic_load(&f->row.counters.published), n_published - WIDTH - 3);
	assert_int_equal(state_of(f, slots[2 * WIDTH + 3]), KVP_BLOCK_PUBLISHED);
	pin(f, 0, slots[2 * WIDTH + 3], -1);
	for (unsigned i = 0; i < 3; i++)
		orphan_step(&f->d);
	assert_int_equal(atomic_load(&f->row.counters.published), WIDTH);
	assert_null(f->d.orphans);
	done_with(f);
}

/* A chain of two, the lower one in memory and without the upper one. */
static struct entry *given_orphan(struct fixture *f)
{
	struct entry *parent = given_block(f, NULL), *e = given_block(f, &parent->key);

	assert_true(block_let_go(parent));
	assert_null(e->parent);
	assert_non_null(f->d.orphans);
	return e;
}

static void what_lost_its_parent_and_went_to_the_store_meanwhile_is_forgotten_there_too(void **state)
{
	struct fixture *f = given_pool(13);
	struct entry *e = given_orphan(f);
	struct kvp_key key = e->key;

	(void)state;
	e->cold = 1;
	atomic_fetch_add(&f->row.counters.clean, 1);
	assert_true(block_evict(e)); /* before anybody looked for orphans */
	assert_int_equal(atomic_load(&f->row.counters.cold), 1);
	e->io = ENTRY_READING; /* somebody has asked for it */
	orphan_step(&f->d);
	assert_ptr_equal(ns_entry(&f->ns, &key), e);
	e->io = ENTRY_IDLE;
	orphan_step(&f->d);
	assert_null(ns_entry(&f->ns, &key));
	assert_int_equal(atomic_load(&f->row.counters.cold), 0);
	assert_null(f->d.orphans);
	done_with(f);
}

static void who_asks_for_what_lost_its_parent_again_and_again_does_not_keep_it(void **state)
{
	struct fixture *f = given_pool(14);
	struct kvp_key key = given_orphan(f)->key;
	uint32_t tick = 0;
	struct entry *e;

	(void)state;
	for (; (e = ns_entry(&f->ns, &key)) && tick < 3 * TICKS_PER_SECOND; tick++) {
		block_hold(e);
		atomic_fetch_add(&f->d.pool.header->tick, 1);
		if (tick % (TICKS_PER_SECOND / 10) == 0)
			orphan_step(&f->d);
	}
	/* its second, and until it is looked at */
	assert_in_range(tick, TICKS_PER_SECOND - 1, TICKS_PER_SECOND * 12 / 10);
	assert_null(e);
	done_with(f);
}

static void what_hangs_below_nothing_when_the_last_missing_store_is_there_goes(void **state)
{
	struct fixture *f = given_pool(15);
	struct entry *parent = given_block(f, NULL), *e = given_block(f, &parent->key);
	struct kvp_key key = e->key;
	uint64_t at = 0;

	(void)state;
	parent->cold = 1;
	atomic_fetch_add(&f->row.counters.clean, 1);
	assert_true(block_evict(parent));
	ns_entry_part(parent); /* its drive was pulled: the parent may come back */
	orphan_step(&f->d);
	assert_ptr_equal(ns_entry(&f->ns, &key), e);
	while (ns_link_some(&f->ns, &at, 1, true)) /* it is back, and did not have it */
		;
	orphan_step(&f->d);
	assert_null(ns_entry(&f->ns, &key));
	assert_int_equal(atomic_load(&f->row.counters.published), 0);
	done_with(f);
}

static void a_block_whose_slab_was_cut_under_a_move_stays_until_the_slab_is_condemned(void **state)
{
	struct fixture *f = given_pool(16);
	struct entry *e = given_block(f, NULL);
	struct slab *slab = ns_slab(&f->ns, e->slot);
	int fd = memfd_create("slab", MFD_CLOEXEC);
	void *whole = slab->map;

	(void)state;
	assert_int_equal(guard_init(), 0); /* cmocka put its own handler in its place */
	assert_int_equal(ftruncate(fd, WIDTH * BLOCK), 0);
	slab->map = mmap(NULL, WIDTH * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(slab->map != MAP_FAILED);
	slab->guard = guard_add(slab->map, WIDTH * BLOCK);
	assert_int_equal(ftruncate(fd, 0), 0);
	slab_withdraw(slab);
	assert_false(block_move(e, slab));
	assert_true(guard_condemned(slab->guard));
	slab_give_again(slab);
	assert_ptr_equal(ns_entry(&f->ns, &e->key), e); /* who wanted it moved goes on with it */
	assert_int_equal(state_of(f, e->slot), KVP_BLOCK_PUBLISHED);
	all_agree(f);
	guard_remove(slab->guard);
	slab->guard = GUARD_NONE;
	munmap(slab->map, WIDTH * BLOCK);
	close(fd);
	slab->map = whole;
	done_with(f);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_any_order_of_calls_gauges_words_index_and_grants_agree),
		cmocka_unit_test(a_slot_that_has_used_up_its_generations_is_retired_and_never_given_out),
		cmocka_unit_test(a_grant_past_its_limit_of_one_who_is_away_is_set_aside_until_given_back),
		cmocka_unit_test(of_a_resumed_sessions_grants_only_the_listed_ones_stand),
		cmocka_unit_test(an_arriving_block_has_its_fields_and_becomes_the_one_its_readers_hold),
		cmocka_unit_test(while_somebody_holds_what_was_arriving_its_slot_is_nobodys_after_the_read_has_failed),
		cmocka_unit_test(a_new_daemon_sets_aside_what_was_arriving_as_long_as_somebody_holds_it),
		cmocka_unit_test(the_next_fill_of_a_slot_begins_with_no_layer),
		cmocka_unit_test(a_hold_ends_with_the_first_use_or_its_second),
		cmocka_unit_test(a_use_of_the_block_that_was_there_before_ends_no_hold),
		cmocka_unit_test(a_stamp_from_the_future_keeps_nothing),
		cmocka_unit_test(
			a_new_daemon_puts_draining_back_frees_what_was_being_filled_and_keeps_grants_of_the_living),
		cmocka_unit_test(while_a_dead_daemons_reads_may_still_land_their_slots_are_set_aside),
		cmocka_unit_test(words_of_a_slab_that_is_gone_do_not_speak_for_the_one_at_its_place),
		cmocka_unit_test(a_move_cut_short_by_a_kill_leaves_the_copy_somebody_may_hold),
		cmocka_unit_test(a_condemned_slab_gives_up_all_its_blocks_and_grants_and_no_new_ones),
		cmocka_unit_test(what_hangs_below_a_condemned_slab_goes_at_once_and_what_is_held_when_it_is_let_go),
		cmocka_unit_test(a_block_whose_slab_was_cut_under_a_move_stays_until_the_slab_is_condemned),
		cmocka_unit_test(what_lost_its_parent_and_went_to_the_store_meanwhile_is_forgotten_there_too),
		cmocka_unit_test(who_asks_for_what_lost_its_parent_again_and_again_does_not_keep_it),
		cmocka_unit_test(what_hangs_below_nothing_when_the_last_missing_store_is_there_goes),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
