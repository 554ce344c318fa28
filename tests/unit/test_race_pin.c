/*
 * test_race_pin.c - the reader of libkvpool against the evictor of kvpoold, as fast as both can
 *
 * The evictor takes a block away and publishes another one in the same slot at once, so that whatever hold it overlooks
 * is seen: as wrong bytes under a pin, or as a hold that was gone when it was given back.  RACE_SECONDS: how long, 3 if
 * unset.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "block_fixture.h"
#include "race_reader.h"

#define KEYS 2u
#define USED 256u
#define RACE_SECONDS 3

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void publish(struct fixture *f, uint32_t n, struct kvp_key key)
{
	struct kvp_wire_item item = {.key = key, .used_bytes = USED, .used_tokens = 16};
	struct kvp_wire_result result;
	uint64_t content = race_content(n);

	item.slot = block_grant(&f->ns, f->members[1], TOPOLOGY_ANY, &item.generation);
	assert_true(item.slot != NO_SLOT);
	for (unsigned at = 0; at < USED; at += sizeof(content))
		memcpy(ns_slot_data(&f->ns, item.slot) + at, &content, sizeof(content));
	block_publish_grant(f->members[1], &item, &result);
	assert_int_equal(result.result, KVP_PUB_STORED);
}

static struct race_reader reader_of(struct fixture *f, const struct kvp_key *keys)
{
	struct session *s = &f->sessions[0];
	struct race_reader reader = {.memory = {.pool = f->d.pool.header,
					     .session = s->head,
					     .ns = f->ns.head,
					     .slabs = f->ns.slab_table,
					     .blocks = f->ns.blocks,
					     .index = f->ns.index},
		.keys = keys,
		.n_keys = KEYS};

	s->head->pins_off = s->pins_off;
	s->head->pin_stride = KVP_PAGE;
	atomic_store(&s->head->word, 1);
	for (uint32_t place = 0; place < PLACES; place++)
		reader.memory.slab_bytes[place] = f->slabs[place].map;
	return reader;
}

static void no_reader_ever_holds_what_was_taken_away(void **state)
{
	struct fixture *f = given_pool(1);
	struct kvp_key keys[KEYS];
	struct race_reader reader;
	const char *seconds = getenv("RACE_SECONDS");
	uint64_t evicted = 0, held = 0, end;
	pthread_t thread;

	(void)state;
	for (uint32_t n = 0; n < KEYS; n++)
		keys[n] = key_of(n + 1);
	reader = reader_of(f, keys);
	assert_int_equal(pthread_create(&thread, NULL, race_read, &reader), 0);
	end = now() + (seconds ? strtoull(seconds, NULL, 10) : RACE_SECONDS) * 1000000000ull;
	while (now() < end)
		for (unsigned i = 0; i < 1000; i++) {
			uint32_t n = next(f) % KEYS;
			struct entry *e = ns_entry(&f->ns, &keys[n]);

			/* whoever of the two is not there comes into the slot that is free now */
			if (!e) {
				publish(f, n, keys[n]);
			} else if (block_evict(e)) {
				evicted++;
				if (!ns_entry(&f->ns, &keys[1 - n]))
					publish(f, 1 - n, keys[1 - n]);
			} else {
				held++;
			}
		}
	atomic_store(&reader.stop, true);
	pthread_join(thread, NULL);
	printf("%" PRIu64 " blocks taken away, %" PRIu64 " held at that moment; %" PRIu64 " looks, %" PRIu64
	       " reads, %" PRIu64 " wrong, %" PRIu64 " holds lost\n",
		evicted, held, reader.looks, reader.reads, reader.wrong, reader.lost);
	assert_int_equal(reader.wrong, 0);
	assert_int_equal(reader.lost, 0);
	assert_true(evicted > 1000 && reader.reads > 1000);
	assert_true(held > 0); /* they did meet */
	done_with(f);
}

static void what_is_pinned_is_of_a_session_that_counts_a_slab_that_is_mapped_and_the_key_asked_for(void **state)
{
	struct fixture *f = given_pool(2);
	struct kvp_key key = key_of(1), other = {{key.w[0], key.w[1] ^ 1}}; /* same bucket, same tag */
	struct race_reader reader = reader_of(f, &key);
	uint64_t content = 0, slot;

	(void)state;
	publish(f, 0, key);
	slot = found_at(f, &key);
	assert_true(race_find(&reader.memory, &key, &content));
	assert_int_equal(content, race_content(0));
	assert_false(race_find(&reader.memory, &other, &content));

	atomic_store(&f->sessions[0].head->word, 0); /* put out: nobody counts its pins */
	assert_false(race_find(&reader.memory, &key, &content));
	atomic_store(&f->sessions[0].head->word, 1);

	f->ns.blocks[slot].slab_number++; /* another slab came to this place between two looks */
	assert_false(race_find(&reader.memory, &key, &content));
	f->ns.blocks[slot].slab_number--;

	assert_true(race_find(&reader.memory, &key, &content));
	assert_false(pinned(f, slot)); /* every look has given its pin back */
	done_with(f);
}

static void store_half(struct fixture *f, uint64_t slot, uint32_t n, unsigned half)
{
	uint64_t content = race_content(n);

	for (unsigned at = half * USED / 2; at < (half + 1) * USED / 2; at += sizeof(content))
		memcpy(ns_slot_data(&f->ns, slot) + at, &content, sizeof(content));
}

/* Blocks are read back in two halves, and every other read fails; slots that are free are filled at once. */
static void what_a_reader_holds_of_an_arriving_block_stays_whatever_becomes_of_the_read(void **state)
{
	struct fixture *f = given_pool(3);
	struct kvp_key keys[KEYS];
	struct race_reader reader;
	const char *seconds = getenv("RACE_SECONDS");
	uint64_t failed = 0, came = 0, held = 0, end;
	pthread_t thread;

	(void)state;
	for (uint32_t n = 0; n < KEYS; n++)
		keys[n] = key_of(n + 1);
	reader = reader_of(f, keys);
	assert_int_equal(pthread_create(&thread, NULL, race_arrive, &reader), 0);
	end = now() + (seconds ? strtoull(seconds, NULL, 10) : RACE_SECONDS) * 1000000000ull;
	while (now() < end)
		for (unsigned i = 0; i < 1000; i++) {
			uint32_t n = next(f) % KEYS;
			struct kvp_key none = {{0, 0}};
			struct entry *e = ns_entry(&f->ns, &keys[n]);

			if (!e && !(e = ns_entry_add(&f->ns, &keys[n], &none)))
				continue;
			if (e->slot != NO_SLOT && !block_evict(e)) {
				held++;
				continue;
			}
			e = ns_entry(&f->ns, &keys[n]);
			if (!e && !(e = ns_entry_add(&f->ns, &keys[n], &none)))
				continue;
			e->bytes = USED;
			e->used_tokens = 16;
			e->fill = block_begin_fill(&f->ns, e);
			if (e->fill == NO_SLOT) {
				block_release_set_aside(&f->d);
				continue;
			}
			e->io = ENTRY_READING;
			store_half(f, e->fill, n, 0);
			block_arrive(e, 1);
			atomic_store(&reader.slot, e->fill);
			for (unsigned spin = next(f) % 400; spin; spin--)
				__asm__ volatile("" ::: "memory");
			e->io = ENTRY_IDLE;
			if (next(f) % 2) {
				block_drop_fill(&f->ns, e->fill);
				failed++;
				held += state_of(f, e->fill) == KVP_BLOCK_TAKEN && pinned(f, e->fill);
				block_release_set_aside(&f->d);
			} else {
				store_half(f, e->fill, n, 1);
				block_publish_fill(e, e->fill);
				e->hold_until = 0;
				came++;
			}
		}
	atomic_store(&reader.stop, true);
	pthread_join(thread, NULL);
	printf("%" PRIu64 " reads failed, %" PRIu64 " came, %" PRIu64 " held at that moment; %" PRIu64
	       " looks, %" PRIu64 " reads, %" PRIu64 " of them whole, %" PRIu64 " wrong\n",
		failed, came, held, reader.looks, reader.reads, reader.whole, reader.wrong);
	assert_int_equal(reader.wrong, 0);
	assert_true(failed > 1000 && came > 1000 && reader.reads > 100);
	block_release_set_aside(&f->d);
	assert_false(f->d.set_aside); /* and every slot has come back */
	for (uint64_t slot = 0; slot < SLOTS; slot++)
		assert_true(state_of(f, slot) == KVP_BLOCK_FREE || state_of(f, slot) == KVP_BLOCK_PUBLISHED);
	done_with(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			what_is_pinned_is_of_a_session_that_counts_a_slab_that_is_mapped_and_the_key_asked_for),
		cmocka_unit_test(no_reader_ever_holds_what_was_taken_away),
		cmocka_unit_test(what_a_reader_holds_of_an_arriving_block_stays_whatever_becomes_of_the_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
