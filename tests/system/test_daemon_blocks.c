/* test_daemon_blocks.c - namespaces and blocks as a client meets them: join, reserve, publish, find, evict */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

#define KIB 1024u
#define BLOCK (64 * KIB)

static const char *const small_pool[] = {
	"--pool", "8M", "--slab", "1M", "--free-percent", "0", "--spill", "off", NULL}; /* 128 blocks of 64 KiB */
/* exactly 12 blocks of 64 KiB: the smallest pool is 1 MiB, so one slab of it holds 12 of 84 KiB */
#define TWELFTH (84 * KIB)
static const char *const twelve[] = {"--pool", "1M", "--slab", "1M", "--free-percent", "0", "--spill", "off", NULL};

struct fixture {
	struct host host;
	struct wire w;
};

static struct fixture *given_daemon(const char *const *options)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	assert_int_equal(host_start(&f->host, options), 0);
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	return f;
}

static int small(void **state)
{
	*state = given_daemon(small_pool);
	return 0;
}

static int of_twelve(void **state)
{
	*state = given_daemon(twelve);
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	bool good = host_alive(&f->host) && host_conserves(&f->host);

	wire_close(&f->w);
	host_close(&f->host);
	free(f);
	return good ? 0 : -1;
}

static uint64_t counter(struct fixture *f, const struct wire_ns *ns, size_t off)
{
	const struct kvp_ns_row *row = host_ns_row(&f->host, ns->id);

	return atomic_load((const _Atomic uint64_t *)(const void *)((const char *)&row->counters + off));
}
#define COUNTER(f, ns, name) counter(f, ns, offsetof(struct kvp_ns_counters, name))

struct gauge_is {
	struct fixture *f;
	struct wire_ns *ns;
	size_t off;
	uint64_t value;
};

static bool gauge_is_there(void *arg)
{
	struct gauge_is *g = arg;

	return counter(g->f, g->ns, g->off) == g->value;
}
#define WAIT_COUNTER(f, ns, name, n) \
	assert_true(wire_until( \
		gauge_is_there, &(struct gauge_is){f, ns, offsetof(struct kvp_ns_counters, name), n}, 5000))

static struct wire_ns *given_ns(struct wire *w, const char *name, uint64_t bytes)
{
	struct wire_ns *ns = malloc(sizeof(*ns));

	assert_non_null(ns);
	assert_int_equal(wire_join(w, ns, name, bytes), 0);
	return ns;
}

static void done_with(struct wire_ns *ns)
{
	wire_leave(ns);
	free(ns);
}

static void put(struct wire_ns *ns, uint64_t k, const struct kvp_key *parent)
{
	struct kvp_key key = wire_key(k);

	assert_int_equal(wire_put(ns, &key, parent, k, 3000), KVP_PUB_STORED);
}

static bool reads_right(struct wire_ns *ns, uint64_t k)
{
	struct kvp_key key = wire_key(k);
	struct wire_pinned pinned;
	bool right;

	if (!wire_pin(ns, &key, &pinned))
		return false;
	right = wire_right(pinned.data, pinned.used_bytes, k);
	assert_true(right); /* a miss is an answer, other bytes are not */
	wire_unpin(ns, &pinned);
	return right;
}

/* ---- joining ---- */

static void a_namespace_is_made_once_and_found_again_by_its_name(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *one = given_ns(&f->w, "m", BLOCK), *two = given_ns(&f->w, "m", BLOCK);

	assert_true(one->joined.flags & KVP_NS_CREATED);
	assert_false(two->joined.flags & KVP_NS_CREATED);
	assert_int_equal(one->id, two->id);
	assert_int_equal(one->joined.flags & (KVP_NS_COPIED | KVP_NS_IN_PLACE), KVP_NS_IN_PLACE);
	assert_int_equal(one->head->block_bytes, BLOCK);
	assert_string_equal(one->head->name, "m");
	done_with(one);
	done_with(two);
}

static void the_same_name_with_another_descriptor_is_a_sibling_that_names_the_field(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *one = given_ns(&f->w, "m", BLOCK), two;
	struct kvp_wire_join join = {.name = "m", .owner_uid = KVP_UID_SELF};
	struct kvp_wire_found found;
	struct kvp_key key = wire_key(1);

	wire_desc(&join.desc, BLOCK, 2); /* other weights */
	assert_int_equal(wire_join_as(&f->w, &two, &join), 0);
	assert_int_not_equal(one->id, two.id);
	assert_true(two.joined.flags & KVP_NS_SIBLING);
	assert_int_equal(two.joined.n_siblings, 1);
	assert_string_equal(two.joined.differs, "model");
	put(one, 1, NULL);
	assert_true(wire_lookup(&two, &key, 1, &found) > 0);
	assert_int_equal(found.state, KVP_MISS);
	assert_int_equal(found.reason, KVP_MISS_SIBLING);
	assert_false(reads_right(&two, 1));
	assert_true(reads_right(one, 1));
	assert_int_equal(COUNTER(f, &two, miss_sibling), 1);
	wire_leave(&two);
	done_with(one);
}

static void an_explicit_join_of_another_descriptor_is_a_mismatch_that_names_the_field(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *one = given_ns(&f->w, "m", BLOCK), two;
	struct kvp_wire_join join = {.name = "m", .owner_uid = KVP_UID_SELF, .flags = KVP_NS_JOIN};

	wire_desc(&join.desc, BLOCK, 1);
	join.desc.block_tokens = 32;
	assert_int_equal(wire_join_as(&f->w, &two, &join), -KVP_EMISMATCH);
	assert_non_null(strstr(f->w.text, "block_tokens"));
	wire_desc(&join.desc, BLOCK, 1);
	assert_int_equal(wire_join_as(&f->w, &two, &join), 0);
	wire_leave(&two);
	strcpy(join.name, "nobody");
	assert_int_equal(wire_join_as(&f->w, &two, &join), -KVP_ENOENT);
	done_with(one);
}

static void names_modes_and_descriptors_out_of_bounds_are_refused_with_their_name(void **state)
{
	struct fixture *f = *state;
	struct kvp_wire_join good = {.name = "m", .owner_uid = KVP_UID_SELF}, join;
	struct wire_ns ns;

	wire_desc(&good.desc, BLOCK, 1);
	join = good;
	strcpy(join.name, "../etc");
	assert_int_equal(wire_join_as(&f->w, &ns, &join), -KVP_EINVAL);
	join = good;
	memset(join.name, 'a', sizeof(join.name)); /* not terminated */
	assert_int_equal(wire_join_as(&f->w, &ns, &join), -KVP_EINVAL);
	join = good;
	join.mode = 07777;
	assert_int_equal(wire_join_as(&f->w, &ns, &join), -KVP_EINVAL);
	join = good;
	join.flags = KVP_NS_COPIED | KVP_NS_IN_PLACE;
	assert_int_equal(wire_join_as(&f->w, &ns, &join), -KVP_EINVAL);
	join = good;
	join.desc.n_layers = 5000;
	assert_int_equal(wire_join_as(&f->w, &ns, &join), -KVP_EINVAL);
	assert_non_null(strstr(f->w.text, "n_layers"));
	join = good;
	join.desc.block_bytes = UINT64_MAX;
	assert_int_equal(wire_join_as(&f->w, &ns, &join), -KVP_EINVAL);
	assert_non_null(strstr(f->w.text, "block_bytes"));
	join = good;
	join.desc.block_bytes = 9 * 1024 * KIB; /* larger than the pool */
	assert_int_equal(wire_join_as(&f->w, &ns, &join), -KVP_EINVAL);
	assert_non_null(strstr(f->w.text, "--pool"));
	join = good;
	join.owner_uid = 12345; /* who joins a stranger's names the owner, and cannot make one for it */
	assert_int_equal(wire_join_as(&f->w, &ns, &join), -KVP_ENOENT);
}

static void a_namespace_nobody_uses_makes_room_for_a_new_one_at_the_limit(void **state)
{
	struct fixture *f = *state;

	for (unsigned i = 0; i < 100; i++) { /* 64 for one uid by default */
		struct wire w;
		struct wire_ns ns;
		char name[16];
		struct kvp_key key = wire_key(i);

		snprintf(name, sizeof(name), "n%u", i);
		assert_int_equal(wire_open(&w, f->host.socket), 0);
		assert_int_equal(wire_join(&w, &ns, name, BLOCK), 0);
		assert_int_equal(wire_put(&ns, &key, NULL, i, 3000), KVP_PUB_STORED);
		wire_leave(&ns);
		wire_close(&w);
		wire_sleep_ms(6); /* 64 of them: longer than the daemon takes to see that a session is gone */
	}
}

/* ---- mapping ---- */

static void a_slab_is_writable_only_for_a_session_with_a_grant_in_it(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", BLOCK);
	struct kvp_wire_grant grant;
	uint32_t place;

	assert_int_equal(wire_map(ns, 0, false), -KVP_ESTALE); /* it has no slab yet */
	assert_int_equal(wire_map(ns, 1000000, false), -KVP_ESTALE);
	assert_int_equal(wire_reserve(ns, &grant, 1, 0), 1);
	place = (uint32_t)(grant.slot / ns->head->slots_per_slab);
	assert_int_equal(wire_map(ns, place, true), 0);
	assert_true(wire_abandon(ns, &grant, 1) >= 0);
	assert_int_equal(wire_map(ns, place, true), -KVP_EACCES);
	assert_int_equal(wire_map(ns, place, false), 0);
	done_with(ns);
}

static void messages_about_a_namespace_not_joined_are_refused(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", BLOCK);
	struct wire other;
	struct wire_ns stranger = *ns;
	struct kvp_wire_grant grant;

	assert_int_equal(wire_open(&other, f->host.socket), 0);
	stranger.w = &other;
	assert_int_equal(wire_map(&stranger, 0, false), -KVP_ENOENT);
	assert_int_equal(wire_reserve(&stranger, &grant, 1, 0), -KVP_ENOENT);
	wire_close(&other);
	done_with(ns);
}

/* ---- writing and reading ---- */

static void a_published_block_reads_back_exactly_in_another_session(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", BLOCK), *theirs;
	struct wire other;

	assert_int_equal(wire_open(&other, f->host.socket), 0);
	theirs = given_ns(&other, "m", BLOCK);
	for (uint64_t k = 1; k <= 100; k++)
		put(ns, k, NULL);
	for (uint64_t k = 1; k <= 100; k++) {
		assert_true(reads_right(theirs, k));
		assert_true(reads_right(ns, k));
	}
	assert_false(reads_right(theirs, 101));
	assert_int_equal(COUNTER(f, ns, stored), 100);
	assert_int_equal(COUNTER(f, ns, published), 100);
	done_with(theirs);
	wire_close(&other);
	done_with(ns);
}

static void a_key_that_is_there_answers_exists_and_the_grant_stays_the_callers(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", BLOCK);
	struct kvp_wire_item item = {.key = wire_key(1), .used_bytes = BLOCK, .used_tokens = 16};
	struct kvp_wire_result result;
	struct kvp_wire_grant grant;

	put(ns, 1, NULL);
	assert_int_equal(wire_reserve(ns, &grant, 1, 0), 1);
	item.slot = grant.slot;
	item.generation = grant.generation;
	assert_int_equal(wire_publish(ns, &item, 1, &result), 1);
	assert_int_equal(result.result, KVP_PUB_EXISTS);
	assert_int_not_equal(result.slot, grant.slot);
	assert_int_equal(COUNTER(f, ns, granted), 1);
	item.key = wire_key(2);
	assert_int_equal(wire_publish(ns, &item, 1, &result), 1);
	assert_int_equal(result.result, KVP_PUB_STORED);
	assert_int_equal(COUNTER(f, ns, granted), 0);
	done_with(ns);
}

static void a_block_whose_parent_is_unknown_is_rejected_and_in_one_batch_parents_go_first(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", BLOCK);
	struct kvp_wire_grant grants[3];
	struct kvp_wire_item items[3];
	struct kvp_wire_result results[3];

	assert_int_equal(wire_reserve(ns, grants, 3, 0), 3);
	memset(items, 0, sizeof(items));
	for (unsigned i = 0; i < 3; i++) {
		items[i].slot = grants[i].slot;
		items[i].generation = grants[i].generation;
		items[i].key = wire_key(i);
		items[i].used_bytes = BLOCK;
		items[i].used_tokens = 16;
		if (i)
			items[i].parent = wire_key(i - 1);
	}
	assert_int_equal(wire_publish(ns, items + 1, 2, results), 2); /* without the first of them */
	assert_int_equal(results[0].result, KVP_PUB_REJECTED);
	assert_int_equal(results[1].result, KVP_PUB_REJECTED);
	assert_int_equal(COUNTER(f, ns, rejected), 2);
	assert_int_equal(wire_publish(ns, items, 3, results), 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(results[i].result, KVP_PUB_STORED);
	done_with(ns);
}

/* B06: the identity of a block is everything before it, which is in its key. */
static void blocks_of_equal_tokens_and_another_past_have_their_own_bytes(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", BLOCK);
	struct kvp_key a = wire_key(10), b = wire_key(11), d = wire_key(20), e = wire_key(21);

	put(ns, 10, NULL);
	put(ns, 11, &a);
	put(ns, 12, &b);
	put(ns, 20, NULL);
	put(ns, 21, &d);
	put(ns, 22, &e);
	assert_true(reads_right(ns, 12));
	assert_true(reads_right(ns, 22));
	done_with(ns);
}

static void items_out_of_bounds_are_refused_one_by_one(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", BLOCK);
	struct kvp_wire_grant grant;
	struct kvp_wire_item items[6];
	struct kvp_wire_result results[6];

	assert_int_equal(wire_reserve(ns, &grant, 1, 0), 1);
	for (unsigned i = 0; i < 6; i++)
		items[i] = (struct kvp_wire_item){.slot = grant.slot,
			.generation = grant.generation,
			.key = wire_key(i),
			.used_bytes = BLOCK,
			.used_tokens = 16};
	items[0].used_bytes = BLOCK + 1;
	items[1].used_tokens = 17;
	items[2].key = (struct kvp_key){{0, 0}};
	items[3].parent = items[3].key;
	items[4].generation++;
	items[5].slot = UINT64_MAX / 2;
	assert_int_equal(wire_publish(ns, items, 6, results), 6);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(results[i].result, -KVP_EINVAL);
	assert_int_equal(results[4].result, -KVP_ESTALE);
	assert_int_equal(results[5].result, -KVP_ESTALE);
	assert_int_equal(COUNTER(f, ns, granted), 1);
	done_with(ns);
}

/* B37 */
static void nothing_is_visible_before_publish_and_a_silent_writer_does_not_block_its_key(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", BLOCK), *theirs;
	struct kvp_wire_found found;
	struct kvp_wire_grant half;
	struct kvp_key key = wire_key(7);
	struct wire other;

	assert_int_equal(wire_reserve(ns, &half, 1, 0), 1);
	wire_fill(wire_data(ns, half.slot), BLOCK / 2, 7);
	assert_int_equal(wire_open(&other, f->host.socket), 0);
	theirs = given_ns(&other, "m", BLOCK);
	assert_false(reads_right(theirs, 7));
	assert_true(wire_lookup(theirs, &key, 1, &found) > 0);
	assert_int_equal(found.state, KVP_MISS);
	assert_int_equal(found.reason, KVP_MISS_NEVER);
	put(theirs, 7, NULL);
	assert_true(reads_right(theirs, 7));
	done_with(theirs);
	wire_close(&other);
	done_with(ns);
}

/* ---- grants ---- */

/* B11 */
static void bad_releases_have_no_effect_and_the_whole_pool_is_given_out_as_distinct_blocks(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", BLOCK), *theirs;
	struct kvp_wire_grant mine[2], hers, forged, all[200], more[8];
	struct wire other;
	static bool seen[100000];
	uint64_t total = 128;
	int n;

	assert_int_equal(wire_open(&other, f->host.socket), 0);
	theirs = given_ns(&other, "m", BLOCK);
	assert_int_equal(wire_reserve(ns, mine, 2, 0), 2);
	assert_int_equal(wire_reserve(theirs, &hers, 1, 0), 1);
	forged = (struct kvp_wire_grant){.slot = mine[0].slot, .generation = mine[0].generation + 1};

	assert_true(wire_abandon(ns, &hers, 1) >= 0); /* another session's */
	assert_true(wire_abandon(ns, &forged, 1) >= 0);
	forged.slot = UINT64_MAX - 5;
	assert_true(wire_abandon(ns, &forged, 1) >= 0);
	assert_int_equal(COUNTER(f, ns, granted), 3);
	assert_true(wire_abandon(ns, mine, 1) >= 0);
	assert_true(wire_abandon(ns, mine, 1) >= 0); /* twice */
	assert_true(wire_abandon(ns, mine, 1) >= 0);
	assert_int_equal(COUNTER(f, ns, granted), 2);
	assert_true(wire_abandon(ns, mine + 1, 1) >= 0);
	assert_true(wire_abandon(theirs, &hers, 1) >= 0);
	assert_int_equal(COUNTER(f, ns, granted), 0);
	assert_true(host_conserves(&f->host));

	n = wire_reserve(ns, all, 200, 0);
	assert_int_equal(n, total);
	for (int i = 0; i < n; i++) {
		assert_true(all[i].slot < sizeof(seen));
		assert_false(seen[all[i].slot]);
		seen[all[i].slot] = true;
	}
	assert_int_equal(wire_reserve(theirs, more, 8, 0), 0);
	assert_int_equal(COUNTER(f, ns, granted), total);
	assert_true(wire_abandon(ns, all, (uint32_t)n) >= 0);
	assert_int_equal(wire_reserve(theirs, more, 8, 0), 8); /* at once */
	done_with(theirs);
	wire_close(&other);
	done_with(ns);
}

static void a_publish_sent_twice_or_after_the_release_is_known(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", BLOCK);
	struct kvp_wire_item item = {.key = wire_key(1), .used_bytes = BLOCK, .used_tokens = 16};
	struct kvp_wire_result result;
	struct kvp_wire_grant grant;

	assert_int_equal(wire_reserve(ns, &grant, 1, 0), 1);
	item.slot = grant.slot;
	item.generation = grant.generation;
	assert_int_equal(wire_publish(ns, &item, 1, &result), 1);
	assert_int_equal(result.result, KVP_PUB_STORED);
	item.key = wire_key(2);
	assert_int_equal(wire_publish(ns, &item, 1, &result), 1);
	assert_int_equal(result.result, -KVP_ESTALE);
	assert_int_equal(wire_reserve(ns, &grant, 1, 0), 1);
	assert_true(wire_abandon(ns, &grant, 1) >= 0);
	item.slot = grant.slot;
	item.generation = grant.generation;
	assert_int_equal(wire_publish(ns, &item, 1, &result), 1);
	assert_int_equal(result.result, -KVP_ESTALE);
	done_with(ns);
}

/* ---- eviction ---- */

/* B12 */
static void of_a_chain_the_tail_goes_first_and_no_block_stays_that_cannot_be_reached(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", TWELFTH);

	for (uint64_t round = 0; round < 200; round++) {
		uint64_t chain = 1000 * (round + 1), other = chain + 500;
		struct kvp_key parent;
		struct kvp_wire_grant grants[8];

		for (uint64_t i = 0; i < 8; i++) {
			put(ns, chain + i, i ? &parent : NULL);
			parent = wire_key(chain + i);
			(void)reads_right(ns, chain + i);
		}
		for (unsigned i = 0; i < 8; i++) { /* unrelated, one after the other */
			int n = wire_reserve(ns, &grants[i], 1, 3000);

			assert_int_equal(n, 1);
		}
		for (uint64_t i = 0; i < 8; i++) {
			struct kvp_key key = wire_key(chain + i);
			struct kvp_wire_found found;

			assert_true(wire_lookup(ns, &key, 1, &found) > 0);
			assert_int_equal(found.state, i < 4 ? KVP_HIT_RAM : KVP_MISS);
			if (i >= 4)
				assert_int_equal(found.reason, KVP_MISS_EVICTED);
		}
		assert_int_equal(COUNTER(f, ns, published), 4);
		assert_true(wire_abandon(ns, grants, 8) >= 0);
		for (uint64_t i = 0; i < 4; i++)
			assert_true(reads_right(ns, chain + i));
		for (unsigned i = 0; i < 12; i++) /* an empty pool for the next round */
			put(ns, other + i, NULL);
	}
	done_with(ns);
}

static void the_block_used_last_goes_last(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", TWELFTH);

	for (uint64_t k = 0; k < 12; k++)
		put(ns, k, NULL);
	wire_sleep_ms(60); /* stamps are ticks of 16 ms */
	for (uint64_t k = 0; k < 12; k += 2)
		assert_true(reads_right(ns, k));
	wire_sleep_ms(60);
	for (uint64_t k = 100; k < 106; k++)
		put(ns, k, NULL);
	for (uint64_t k = 0; k < 12; k++)
		assert_int_equal(reads_right(ns, k), k % 2 == 0);
	done_with(ns);
}

/* B09 */
static void when_all_is_held_the_answer_is_no_space_in_time_and_one_release_is_enough(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", TWELFTH), *theirs;
	struct wire_pinned pinned[12];
	struct kvp_wire_grant grant;
	struct wire other;
	uint64_t before, cpu;

	assert_int_equal(wire_open(&other, f->host.socket), 0);
	theirs = given_ns(&other, "m", TWELFTH);
	for (uint64_t k = 0; k < 12; k++) {
		struct kvp_key key = wire_key(k);

		put(ns, k, NULL);
		assert_int_equal(wire_pin(ns, &key, &pinned[k]), 1);
	}
	wire_sleep_ms(300);
	before = wire_now();
	cpu = host_cpu_ms(&f->host);
	assert_int_equal(wire_reserve(theirs, &grant, 1, 1000), 0);
	cpu = host_cpu_ms(&f->host) - cpu;
	before = wire_now() - before;
	assert_true(before > 990000000ull);
	assert_true(before < 1500000000ull);
	assert_true(cpu <= 50); /* 5 % of a second */
	WAIT_COUNTER(f, ns, held, 12);
	for (uint64_t k = 0; k < 12; k++)
		assert_true(wire_right(pinned[k].data, pinned[k].used_bytes, k));
	wire_unpin(ns, &pinned[5]);
	assert_int_equal(wire_reserve(theirs, &grant, 1, 1000), 1);
	assert_int_equal(grant.slot, pinned[5].slot);
	for (uint64_t k = 0; k < 12; k++)
		if (k != 5)
			wire_unpin(ns, &pinned[k]);
	WAIT_COUNTER(f, ns, held, 0);
	done_with(theirs);
	wire_close(&other);
	done_with(ns);
}

static void a_waiting_reserve_is_served_when_a_grant_comes_back(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ns = given_ns(&f->w, "m", TWELFTH), *theirs;
	struct kvp_wire_grant grants[12], late;
	struct kvp_wire_reserve reserve;
	struct wire other;
	uint64_t id;

	assert_int_equal(wire_open(&other, f->host.socket), 0);
	theirs = given_ns(&other, "m", TWELFTH);
	assert_int_equal(wire_reserve(ns, grants, 12, 0), 12);
	reserve = (struct kvp_wire_reserve){
		.ns_id = theirs->id, .n = 1, .node = UINT32_MAX, .deadline_ns = wire_now() + 20000000000ull};
	id = other.next_id++;
	assert_int_equal(wire_send(&other, KVP_MSG_RESERVE, id, &reserve, sizeof(reserve), NULL, 0), 0);
	assert_int_equal(wire_receive(&other, id, &late, sizeof(late), NULL, NULL, 200), WIRE_SILENT);
	assert_true(wire_abandon(ns, grants, 1) >= 0);
	assert_int_equal(wire_receive(&other, id, &late, sizeof(late), NULL, NULL, 5000), sizeof(late));
	assert_int_equal(late.slot, grants[0].slot);
	assert_true(late.generation > grants[0].generation);
	done_with(theirs);
	wire_close(&other);
	done_with(ns);
}

/* ---- several namespaces ---- */

static void memory_moves_to_the_namespace_that_needs_it_and_held_blocks_stay(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *old = given_ns(&f->w, "old", BLOCK), *young = given_ns(&f->w, "young", 48 * KIB);
	struct wire_pinned pinned[4];
	uint64_t slots;

	for (uint64_t k = 0; k < 128; k++)
		put(old, k, NULL);
	assert_int_equal(COUNTER(f, old, slots), 128);
	for (unsigned i = 0; i < 4; i++) {
		struct kvp_key key = wire_key(i * 8);

		assert_int_equal(wire_pin(old, &key, &pinned[i]), 1);
	}
	for (uint64_t k = 0; k < 60; k++) {
		struct kvp_key key = wire_key(1000 + k);

		assert_int_equal(wire_put(young, &key, NULL, 1000 + k, 5000), KVP_PUB_STORED);
	}
	slots = COUNTER(f, old, slots);
	assert_true(slots < 128);
	assert_true(COUNTER(f, young, slots) >= 21);
	for (unsigned i = 0; i < 4; i++) {
		assert_true(wire_right(pinned[i].data, pinned[i].used_bytes, i * 8));
		assert_int_equal(atomic_load(&old->blocks[pinned[i].slot].word), pinned[i].word);
		wire_unpin(old, &pinned[i]);
	}
	for (uint64_t k = 0; k < 128; k++)
		(void)reads_right(old, k); /* right or missing */
	assert_true(atomic_load(&f->host.stats->counters.slab_bytes_allocated) <= 8 << 20);
	done_with(young);
	done_with(old);
}

static void a_namespace_nobody_uses_any_more_gives_all_its_memory_to_the_others(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *ours = given_ns(&f->w, "ours", BLOCK), theirs;
	struct wire other;
	uint64_t left_id;

	assert_int_equal(wire_open(&other, f->host.socket), 0);
	assert_int_equal(wire_join(&other, &theirs, "theirs", 48 * KIB), 0);
	left_id = theirs.id;
	for (uint64_t k = 0; k < 20; k++) { /* one slab: less than we have, so size alone takes nothing from it */
		struct kvp_key key = wire_key(k);

		assert_int_equal(wire_put(&theirs, &key, NULL, k, 3000), KVP_PUB_STORED);
	}
	wire_leave(&theirs);
	wire_close(&other);
	wire_sleep_ms(600);
	for (uint64_t k = 0; k < 128; k++)
		put(ours, 5000 + k, NULL);
	assert_int_equal(COUNTER(f, ours, slots), 128);
	assert_int_equal(COUNTER(f, ours, published), 128);
	if (host_ns_row(&f->host, left_id))
		assert_int_equal(atomic_load(&host_ns_row(&f->host, left_id)->counters.slots), 0);
	done_with(ours);
}

#define MANY 20 /* namespaces in 8 slabs */

static void more_namespaces_than_slabs_are_all_served_by_turns(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *many[MANY];
	uint64_t slots = 0;

	for (unsigned i = 0; i < MANY; i++) {
		char name[16];

		snprintf(name, sizeof(name), "n%u", i);
		many[i] = given_ns(&f->w, name, i % 2 ? BLOCK : 48 * KIB);
	}
	for (unsigned turn = 0; turn < 3; turn++)
		for (unsigned i = 0; i < MANY; i++) {
			struct kvp_key key = wire_key(turn * 100 + i);

			assert_int_equal(wire_put(many[i], &key, NULL, turn * 100 + i, 3000), KVP_PUB_STORED);
			assert_true(reads_right(many[i], turn * 100 + i));
		}
	for (unsigned i = 0; i < MANY; i++)
		slots += COUNTER(f, many[i], slots) != 0;
	assert_in_range(slots, 1, 8);
	assert_true(atomic_load(&f->host.stats->counters.slab_bytes_allocated) <= 8 << 20);
	for (unsigned i = 0; i < MANY; i++)
		done_with(many[i]);
}

static void a_namespace_without_memory_gets_the_one_slab_that_nobody_holds_and_no_other(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *many[9];
	struct wire_pinned pinned[8];
	struct kvp_key key;

	for (unsigned i = 0; i < 9; i++) {
		char name[16];

		snprintf(name, sizeof(name), "n%u", i);
		many[i] = given_ns(&f->w, name, BLOCK);
		if (i == 8)
			break;
		put(many[i], i, NULL);
		key = wire_key(i);
		assert_int_equal(wire_pin(many[i], &key, &pinned[i]), 1);
	}
	key = wire_key(8);
	assert_int_equal(wire_put(many[8], &key, NULL, 8, 300), -KVP_ENOSPC);
	wire_unpin(many[5], &pinned[5]);
	assert_int_equal(wire_put(many[8], &key, NULL, 8, 3000), KVP_PUB_STORED);
	for (unsigned i = 0; i < 8; i++) {
		assert_int_equal(COUNTER(f, many[i], slots) != 0, i != 5);
		if (i != 5)
			assert_true(wire_right(pinned[i].data, pinned[i].used_bytes, i));
		done_with(many[i]);
	}
	done_with(many[8]);
}

static void a_namespace_that_fills_up_leaves_the_others_their_last_slab(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *quiet[3], *loud;

	for (unsigned i = 0; i < 3; i++) {
		char name[16];

		snprintf(name, sizeof(name), "q%u", i);
		quiet[i] = given_ns(&f->w, name, BLOCK);
		put(quiet[i], i, NULL);
	}
	loud = given_ns(&f->w, "loud", BLOCK);
	for (uint64_t k = 0; k < 400; k++)
		put(loud, 1000 + k, NULL);
	assert_int_equal(COUNTER(f, loud, slots), 5 * 16);
	for (unsigned i = 0; i < 3; i++) {
		assert_true(reads_right(quiet[i], i));
		done_with(quiet[i]);
	}
	done_with(loud);
}

static void a_base_is_read_but_not_written_and_parents_may_lie_in_it(void **state)
{
	struct fixture *f = *state;
	struct wire_ns *base = given_ns(&f->w, "base", BLOCK), own;
	struct kvp_wire_join join = {.name = "own", .owner_uid = KVP_UID_SELF, .base_id = base->id};
	struct kvp_key parent = wire_key(1);
	struct kvp_wire_found found[2];
	struct kvp_key keys[2] = {wire_key(1), wire_key(2)};

	put(base, 1, NULL);
	wire_desc(&join.desc, BLOCK, 1);
	assert_int_equal(wire_join_as(&f->w, &own, &join), 0);
	assert_int_equal(own.joined.base_id, base->id);
	put(&own, 2, &parent);
	assert_true(wire_lookup(&own, keys, 2, found) > 0);
	assert_int_equal(found[0].state, KVP_HIT_RAM);
	assert_int_equal(found[1].state, KVP_HIT_RAM);
	assert_true(wire_lookup(base, keys, 2, found) > 0);
	assert_int_equal(found[0].state, KVP_HIT_RAM);
	assert_int_equal(found[1].state, KVP_MISS);
	join.desc.model[0] = 9;
	strcpy(join.name, "other");
	{
		struct wire_ns other;

		assert_int_equal(wire_join_as(&f->w, &other, &join), -KVP_EMISMATCH);
	}
	wire_leave(&own);
	done_with(base);
}

#define IN_SMALL(test) cmocka_unit_test_setup_teardown(test, small, teardown)
#define IN_TWELVE(test) cmocka_unit_test_setup_teardown(test, of_twelve, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		IN_SMALL(a_namespace_is_made_once_and_found_again_by_its_name),
		IN_SMALL(the_same_name_with_another_descriptor_is_a_sibling_that_names_the_field),
		IN_SMALL(an_explicit_join_of_another_descriptor_is_a_mismatch_that_names_the_field),
		IN_SMALL(names_modes_and_descriptors_out_of_bounds_are_refused_with_their_name),
		IN_SMALL(a_namespace_nobody_uses_makes_room_for_a_new_one_at_the_limit),
		IN_SMALL(a_slab_is_writable_only_for_a_session_with_a_grant_in_it),
		IN_SMALL(messages_about_a_namespace_not_joined_are_refused),
		IN_SMALL(a_published_block_reads_back_exactly_in_another_session),
		IN_SMALL(a_key_that_is_there_answers_exists_and_the_grant_stays_the_callers),
		IN_SMALL(a_block_whose_parent_is_unknown_is_rejected_and_in_one_batch_parents_go_first),
		IN_SMALL(blocks_of_equal_tokens_and_another_past_have_their_own_bytes),
		IN_SMALL(items_out_of_bounds_are_refused_one_by_one),
		IN_SMALL(nothing_is_visible_before_publish_and_a_silent_writer_does_not_block_its_key),
		IN_SMALL(bad_releases_have_no_effect_and_the_whole_pool_is_given_out_as_distinct_blocks),
		IN_SMALL(a_publish_sent_twice_or_after_the_release_is_known),
		IN_TWELVE(of_a_chain_the_tail_goes_first_and_no_block_stays_that_cannot_be_reached),
		IN_TWELVE(the_block_used_last_goes_last),
		IN_TWELVE(when_all_is_held_the_answer_is_no_space_in_time_and_one_release_is_enough),
		IN_TWELVE(a_waiting_reserve_is_served_when_a_grant_comes_back),
		IN_SMALL(memory_moves_to_the_namespace_that_needs_it_and_held_blocks_stay),
		IN_SMALL(a_namespace_nobody_uses_any_more_gives_all_its_memory_to_the_others),
		IN_SMALL(more_namespaces_than_slabs_are_all_served_by_turns),
		IN_SMALL(a_namespace_without_memory_gets_the_one_slab_that_nobody_holds_and_no_other),
		IN_SMALL(a_namespace_that_fills_up_leaves_the_others_their_last_slab),
		IN_SMALL(a_base_is_read_but_not_written_and_parents_may_lie_in_it),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
