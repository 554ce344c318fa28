/*
 * test_shares.c - memory between namespaces: who needs it gets it, but for what is left to each
 *
 * kvpool-test: parallel
 */
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

#define BLOCK 65536u
#define SLAB 16u /* blocks */
#define SLABS 8u /* of the pool */
#define GREEDY 5000u /* its first block */
#define GRAB_MS \
	6000 /* a slab that moves takes milliseconds: on a host that stands still for seconds it comes all the same */

struct fixture {
	struct host host;
	struct wire w, admin;
	struct wire_ns quiet, greedy;
	struct wire_pinned held[SLABS * SLAB];
	unsigned n_held;
};

/* A pool of eight slabs, of which one namespace has filled six and another one has none as yet. */
static struct fixture *given(const char *least)
{
	struct fixture *f = calloc(1, sizeof(*f));
	char admin[KVP_SOCKET_MAX + 8];

	assert_non_null(f);
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	assert_int_equal(host_start(&f->host, (const char *[]){"--pool", "8M", "--slab", "1M", "--free-percent", "0",
						      "--spill", "off", "--namespace-min", least, NULL}),
		0);
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, &f->quiet, "quiet", BLOCK), 0);
	assert_int_equal(wire_join(&f->w, &f->greedy, "greedy", BLOCK), 0);
	snprintf(admin, sizeof(admin), "%s.admin", f->host.socket);
	assert_int_equal(wire_connect(&f->admin, admin), 0);
	for (uint64_t k = 0; k < 6 * SLAB; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(wire_put(&f->quiet, &key, NULL, k, 3000), KVP_PUB_STORED);
	}
	return f;
}

static int with_five_slabs_each(void **state)
{
	*state = given("5M");
	return 0;
}

static int with_a_slab_each(void **state)
{
	*state = given("0");
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	bool good = host_alive(&f->host) && host_conserves(&f->host);

	wire_close(&f->admin);
	wire_leave(&f->greedy);
	wire_leave(&f->quiet);
	wire_close(&f->w);
	host_close(&f->host);
	free(f);
	return good ? 0 : -1;
}

static uint64_t slabs_of(struct fixture *f, const struct wire_ns *ns)
{
	return atomic_load(&host_ns_row(&f->host, ns->id)->counters.slots) / SLAB;
}

static unsigned readable(struct wire_ns *ns, uint64_t first, unsigned n)
{
	unsigned right = 0;

	for (uint64_t k = first; k < first + n; k++) {
		struct kvp_key key = wire_key(k);
		struct wire_pinned pinned;

		if (wire_pin(ns, &key, &pinned) != 1)
			continue;
		assert_true(wire_right(pinned.data, pinned.used_bytes, k));
		wire_unpin(ns, &pinned);
		right++;
	}
	return right;
}

/* Reads all that is left of it, and says so, as the library does for an engine: what a namespace is worth goes by what
   was used.
   Return: how many blocks. */
static unsigned use_quiet(struct fixture *f)
{
	struct kvp_client_ns_counts *counts = &f->w.session->ns_counts[0];
	unsigned n = readable(&f->quiet, 0, 6 * SLAB);

	atomic_store(&counts->ns_id, f->quiet.id);
	atomic_fetch_add(&counts->lookups, n);
	atomic_fetch_add(&counts->hits_ram, n);
	return n;
}

/* It publishes and holds all it has, so that nothing of its own may go, until it gets no more. @in_use: the other one
   goes on reading what it has, so that it is worth as much, however long all this takes. */
static void grab(struct fixture *f, bool in_use)
{
	for (; f->n_held < SLABS * SLAB; f->n_held++) {
		struct kvp_key key = wire_key(GREEDY + f->n_held);

		if (in_use)
			use_quiet(f);
		if (wire_put(&f->greedy, &key, NULL, GREEDY + f->n_held, GRAB_MS) != KVP_PUB_STORED)
			return;
		assert_int_equal(wire_pin(&f->greedy, &key, &f->held[f->n_held]), 1);
	}
}

static void let_go(struct fixture *f)
{
	while (f->n_held)
		wire_unpin(&f->greedy, &f->held[--f->n_held]);
}

static void a_greedy_namespace_never_takes_anothers_minimum(void **state)
{
	struct fixture *f = *state;

	grab(f, false);
	assert_int_equal(slabs_of(f, &f->quiet), 5);
	assert_int_equal(slabs_of(f, &f->greedy), 3);
	assert_int_equal(f->n_held, 3 * SLAB);
	assert_int_equal(readable(&f->quiet, SLAB, 5 * SLAB), 5 * SLAB); /* all but what it used least lately */
	let_go(f);
}

static void without_a_minimum_it_takes_as_much_as_the_other_uses_and_no_more(void **state)
{
	struct fixture *f = *state;

	grab(f, true);
	assert_int_equal(slabs_of(f, &f->greedy), 4);
	assert_int_equal(slabs_of(f, &f->quiet), 4);
	assert_int_equal(f->n_held, 4 * SLAB);
	let_go(f);
}

/* The daemon has counted @n uses, and gone on: it looks at what is used, then at what that is worth, over and over. */
static void uses_are_known(struct fixture *f, uint64_t n)
{
	const _Atomic uint64_t *sweeps = &f->host.stats->counters.pin_sweeps;
	uint64_t until = wire_now() + 20000000000ull, from;

	while (atomic_load(&host_ns_row(&f->host, f->quiet.id)->counters.hits_ram) < n && wire_now() < until)
		wire_sleep_ms(20);
	from = atomic_load(sweeps);
	while (atomic_load(sweeps) < from + 2 && wire_now() < until)
		wire_sleep_ms(20);
	assert_true(wire_now() < until);
}

static void a_pool_that_shrinks_takes_minimum_shares_last(void **state)
{
	struct fixture *f = *state;
	struct kvp_wire_resize ask = {.deadline_ns = wire_now() + 5000000000ull, .pool = "6M"};
	struct kvp_wire_admin_done done;

	for (uint64_t k = 0; k < 2 * SLAB; k++) { /* its two slabs are less than its minimum */
		struct kvp_key key = wire_key(GREEDY + k);

		assert_int_equal(wire_put(&f->greedy, &key, NULL, GREEDY + k, 3000), KVP_PUB_STORED);
	}
	assert_int_equal(use_quiet(f), 6 * SLAB); /* used later than those */
	uses_are_known(f, 6 * SLAB);
	assert_int_equal(wire_call(&f->admin, KVP_MSG_RESIZE, &ask, sizeof(ask), &done, sizeof(done)), sizeof(done));
	assert_int_equal(done.n_left, 0);
	assert_int_equal(slabs_of(f, &f->quiet), 5); /* what is above its minimum went first, though it was used last */
	assert_int_equal(slabs_of(f, &f->greedy),
		1); /* then what was used least lately: there is less than all minimum shares */
}

#define TEST(test, given) cmocka_unit_test_setup_teardown(test, given, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_greedy_namespace_never_takes_anothers_minimum, with_five_slabs_each),
		TEST(without_a_minimum_it_takes_as_much_as_the_other_uses_and_no_more, with_a_slab_each),
		TEST(a_pool_that_shrinks_takes_minimum_shares_last, with_five_slabs_each),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
