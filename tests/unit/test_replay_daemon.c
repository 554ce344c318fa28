/*
 * test_replay_daemon.c - the daemon's blocks under a learned policy: hit for hit what kvctl replay says, and in step
 * with what is in memory
 *
 * The daemon is block_fixture.h's, its time is the test's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "block_fixture.h"
#include "client/kvctl/replay.h"
#include "daemon/tier_parts.h"
#include "kvpool_desc.h"

#define REQUESTS 4000u
#define DEPTH 10u

static struct fixture *given_learned(uint32_t seed)
{
	struct fixture *f = given_pool(seed);

	f->d.tier = calloc(1, sizeof(*f->d.tier));
	f->d.served = true;
	assert_int_equal(policy_choose(&f->ns, true), 0);
	return f;
}

static void end(struct fixture *f)
{
	policy_end(&f->ns);
	free(f->d.tier);
	done_with(f);
}

static uint64_t n_known(const struct fixture *f)
{
	struct learned_view view;

	learned_view(f->ns.learned, &view);
	return view.n;
}

static uint64_t n_hot(struct fixture *f)
{
	uint64_t n = 0;

	for (struct entry *e = ns_entry_next(&f->ns, NULL); e; e = ns_entry_next(&f->ns, e))
		n += e->slot != NO_SLOT;
	return n;
}

/* ---- hit for hit ---- */

/* Chains in turn, more than there is room for, and some at random; every request a chain's first blocks. */
static struct replay_trace given_trace(uint32_t seed, unsigned n_chains, bool in_turn)
{
	struct replay_trace trace = {.block_tokens = 16, .n_requests = REQUESTS, .n_blocks = n_chains * DEPTH};
	uint64_t time = 0;

	trace.requests = calloc(REQUESTS, sizeof(*trace.requests));
	trace.ids = calloc((uint64_t)REQUESTS * DEPTH, sizeof(*trace.ids));
	trace.keys = calloc(trace.n_blocks, sizeof(*trace.keys));
	for (uint32_t i = 0; i < trace.n_blocks; i++)
		trace.keys[i] = key_of(1 + i);
	for (uint64_t r = 0; r < REQUESTS; r++) {
		struct replay_request *request = &trace.requests[r];
		unsigned chain;

		seed = seed * 1664525u + 1013904223u;
		time += 1 + (seed >> 8) % 100;
		chain = in_turn || seed >> 28 ? (unsigned)(r % n_chains) : (seed >> 12) % n_chains;
		*request = (struct replay_request){.time_ms = time * KVP_TICK_MS,
			.first = trace.n_ids,
			.n = in_turn ? DEPTH : 1 + (seed >> 16) % DEPTH};
		request->tokens = 16 * request->n;
		trace.n_tokens += request->tokens;
		for (uint32_t k = 0; k < request->n; k++) /* every four chains begin alike */
			trace.ids[trace.n_ids++] = (k < 2 ? chain - chain % 4 : chain) * DEPTH + k;
	}
	return trace;
}

static void trace_free(struct replay_trace *trace)
{
	free(trace->requests);
	free(trace->ids);
	free(trace->keys);
}

/* As an engine does that copies: one block after the other, none held. Return: published. */
static bool publish(struct fixture *f, const struct kvp_key *key, const struct kvp_key *parent)
{
	struct kvp_wire_item item = {.key = *key, .used_bytes = BLOCK, .used_tokens = 16};
	struct kvp_wire_result result;

	if (!f->ns.n_free)
		assert_int_equal(tier_evict_oldest(&f->ns, 1, LOOKS_MAX), 1);
	if (parent)
		item.parent = *parent;
	item.slot = block_grant(&f->ns, f->members[0], TOPOLOGY_ANY, &item.generation);
	assert_true(item.slot != NO_SLOT);
	block_publish_grant(f->members[0], &item, &result);
	if (result.result != KVP_PUB_STORED && result.result != KVP_PUB_EXISTS)
		assert_int_equal(result.result, KVP_PUB_REJECTED);
	if (result.result != KVP_PUB_STORED)
		block_release_grant(f->members[0], item.slot, item.generation);
	return result.result != KVP_PUB_REJECTED;
}

static uint32_t serve(struct fixture *f, const struct replay_trace *trace, const struct replay_request *request)
{
	struct kvp_key keys[DEPTH];
	uint32_t found = 0;

	for (uint32_t k = 0; k < request->n; k++)
		keys[k] = trace->keys[trace->ids[request->first + k]];
	atomic_store(&f->d.pool.header->tick, 1000 + (uint32_t)(request->time_ms / KVP_TICK_MS));
	for (; found < request->n && found_at(f, &keys[found]) != NO_SLOT; found++)
		;
	policy_request(&f->ns, keys, request->n, KVP_HINT_NONE);
	for (uint32_t k = 0; k < request->n; k++)
		if (found_at(f, &keys[k]) == NO_SLOT && !publish(f, &keys[k], k ? &keys[k - 1] : NULL))
			break;
	assert_int_equal(n_known(f), n_hot(f));
	return found;
}

static void compare(uint32_t seed, unsigned n_chains, bool in_turn, bool leads)
{
	struct fixture *f = given_learned(seed);
	struct replay_trace trace = given_trace(seed, n_chains, in_turn);
	uint32_t *found = calloc(REQUESTS, sizeof(*found));
	struct replay_options options = {
		.policy = REPLAY_LEARNED, .pool = SLOTS, .hints_wrong = -1, .seed = 1, .found = found};
	struct replay_result result;
	bool led = false;

	assert_int_equal(replay_run(&trace, &options, &result), 0);
	for (uint64_t r = 0; r < REQUESTS; r++) {
		uint32_t here = serve(f, &trace, &trace.requests[r]);

		if (here != found[r])
			fail_msg("request %lu: %u blocks found, %u by replay", (unsigned long)r, here, found[r]);
		led = led || policy_leads(&f->ns);
	}
	print_message("%lu hits alike, %s\n", (unsigned long)result.pool_hits,
		led ? "some by the learned order" : "all by lru");
	assert_true(led || !leads);
	assert_true(result.pool_hits > 0);
	free(found);
	trace_free(&trace);
	end(f);
}

static void a_trace_finds_what_replay_says_hit_for_hit(void **state)
{
	(void)state;
	compare(1, 8, true, true);
	compare(2, 8, true, true);
	compare(3, 12, false, false);
	compare(4, 20, false, false);
	compare(5, 5, false, false);
}

/* ---- in step ---- */

static void whatever_comes_moves_and_goes_the_policy_knows_what_is_hot(void **state)
{
	struct fixture *f = given_learned(11);
	struct kvp_key last = {{0, 0}};

	(void)state;
	for (unsigned step = 0; step < 4000; step++) {
		uint32_t dice = next(f) % 16;
		struct entry *e = ns_entry_next(&f->ns, NULL);

		atomic_fetch_add(&f->d.pool.header->tick, 1 + next(f) % 200);
		for (uint32_t skip = e ? next(f) % 40 : 0; skip && e; skip--)
			e = ns_entry_next(&f->ns, e);
		if (dice < 9) {
			struct kvp_key key = key_of(++f->next_key);
			bool below = dice < 6 && !kvp_key_is_none(&last) && ns_entry(&f->ns, &last);

			if (dice % 2)
				policy_request(&f->ns, &key, 1, dice % POLICY_HINTS);
			if (publish(f, &key, below ? &last : NULL))
				last = key;
		} else if (e && dice == 9) {
			block_forget(e, NULL, NULL);
		} else if (e && dice == 10 && f->ns.n_free) {
			block_move(e, ns_slab_of(&f->ns, e->slot));
		} else if (e && dice == 11) {
			policy_request(&f->ns, &e->key, 1, KVP_HINT_SOON);
		} else if (e && dice == 12) {
			tier_evict_oldest(&f->ns, f->ns.n_free + 1, LOOKS_MAX);
		} else if (dice == 13) {
			policy_tick(&f->ns);
		} else if (dice == 14 && step % 7 == 0) {
			assert_int_equal(policy_choose(&f->ns, false), 0);
			assert_int_equal(atomic_load(&f->row.counters.policy_bytes), 0);
			assert_int_equal(policy_choose(&f->ns, true), 0);
			policy_tick(&f->ns);
			policy_tick(&f->ns);
		}
		assert_int_equal(n_known(f), n_hot(f));
	}
	assert_in_range(atomic_load(&f->row.counters.policy_bytes), 1, 4u << 20);
	end(f);
}

static void a_start_takes_over_what_is_in_memory(void **state)
{
	struct fixture *f = given_learned(12);
	struct kvp_key last;

	(void)state;
	given_block(f, NULL);
	for (unsigned i = 0; i < 20; i++) {
		last = key_of(f->next_key);
		given_block(f, i % 5 ? &last : NULL);
	}
	policy_end(&f->ns);
	f->d.served = false;
	policy_begin(&f->ns); /* as the namespace's header says */
	restart(f, (bool[SESSIONS]){true, true, true});
	f->d.served = true;
	policy_tick(&f->ns);
	policy_tick(&f->ns);
	assert_int_equal(n_known(f), 21);
	assert_int_equal(n_hot(f), 21);
	end(f);
}

/* Its worth is by requests; a use it was not told of it hears of when it is about to let go of the block. */
static void what_is_pinned_stays_and_what_was_used_untold_comes_later(void **state)
{
	struct fixture *f = given_learned(13);
	uint64_t untold;

	(void)state;
	learned_free(f->ns.learned);
	f->ns.learned = learned_new(SLOTS, false, 0); /* it leads from the start */
	for (unsigned i = 0; i < SLOTS; i++)
		given_block(f, NULL);
	atomic_fetch_add(&f->d.pool.header->tick, 3000);
	pin(f, 0, ns_entry(&f->ns, &(struct kvp_key){{key_of(1).w[0], key_of(1).w[1]}})->slot, 1);
	untold = ns_entry(&f->ns, &(struct kvp_key){{key_of(2).w[0], key_of(2).w[1]}})->slot;
	pin(f, 1, untold, 1);
	pin(f, 1, untold, -1);
	assert_int_equal(tier_evict_oldest(&f->ns, SLOTS - 2, LOOKS_MAX), 1);
	assert_int_equal(n_hot(f), 2);
	for (uint64_t i = 1; i <= 2; i++) {
		struct kvp_key key = key_of(i);

		assert_true(found_at(f, &key) != NO_SLOT);
	}
	assert_int_equal(tier_evict_oldest(&f->ns, SLOTS, LOOKS_MAX), 0); /* one is held */
	assert_int_equal(n_hot(f), 1);
	end(f);
}

static struct entry *request_block(struct fixture *f, const struct kvp_key *key, unsigned times)
{
	for (; times; times--) {
		atomic_fetch_add(&f->d.pool.header->tick, 100);
		policy_request(&f->ns, key, 1, KVP_HINT_NONE);
		publish(f, key, NULL);
	}
	return ns_entry(&f->ns, key);
}

static void what_was_used_once_is_not_written_where_spill_admits_the_reused(void **state)
{
	struct fixture *f = given_learned(14);
	struct kvp_key once = key_of(100), twice = key_of(200);
	struct entry *e = request_block(f, &once, 1), *child;

	(void)state;
	assert_true(tier_may_write(e));
	strcpy(f->d.config.spill_admit, "reused");
	assert_false(tier_may_write(e));
	assert_int_equal(atomic_load(&f->d.pool.stats->counters.spill_not_admitted), 1);
	assert_true(tier_may_write(request_block(f, &twice, 2)));
	child = given_block(f, &once);
	assert_false(tier_may_write(e));
	child->cold = 1; /* nobody would find it without its parent */
	assert_true(tier_may_write(e));
	child->cold = 0;
	strcpy(f->d.config.spill_admit, "chance");
	f->d.config.spill_admit_percent = 1;
	for (unsigned i = 0; i < 200000; i++) /* the chance it takes goes up until little is written */
		tier_may_write(e);
	assert_true(f->d.tier->admission.theta > policy_chance(&f->ns, e, f->d.tier->admission.horizon_s) / 1.1);
	assert_int_equal(policy_choose(&f->ns, false), 0);
	assert_true(tier_may_write(e)); /* by least recent use nothing is known of uses */
	end(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_trace_finds_what_replay_says_hit_for_hit),
		cmocka_unit_test(whatever_comes_moves_and_goes_the_policy_knows_what_is_hot),
		cmocka_unit_test(a_start_takes_over_what_is_in_memory),
		cmocka_unit_test(what_was_used_once_is_not_written_where_spill_admits_the_reused),
		cmocka_unit_test(what_is_pinned_stays_and_what_was_used_untold_comes_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
