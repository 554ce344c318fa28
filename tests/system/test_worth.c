/*
 * test_worth.c - a namespace whose blocks are used again beside one that only publishes: whose memory goes
 *
 * kvpool-test: parallel
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trial.h"

#define SLAB 16u /* blocks */
#define SLABS 8u /* of the pool */
#define SCANNER 100000u /* its first block */

struct beside {
	struct trial t; /* t.ns: of the engine */
	struct kvp_client *scanner;
	struct kvp_ns *scan;
	unsigned n_scanned;
	uint64_t engine_id, scan_id;
};

static struct kvp_key key_of(unsigned k)
{
	return (struct kvp_key){.w = {k + 1, 0x5555}};
}

static void put(struct kvp_ns *ns, unsigned from, unsigned to)
{
	for (unsigned k = from; k < to; k++) {
		struct kvp_key key = key_of(k);

		assert_int_equal(trial_put(ns, &key, NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
}

static void scan(struct beside *b, unsigned n)
{
	put(b->scan, SCANNER + b->n_scanned, SCANNER + b->n_scanned + n);
	b->n_scanned += n;
}

static unsigned read_all(struct beside *b, unsigned n)
{
	unsigned there = 0;

	for (unsigned k = 0; k < n; k++) {
		struct kvp_key key = key_of(k);
		int r = trial_get(b->t.ns, &key, k, TRIAL_BLOCK);

		assert_true(r >= 0);
		there += r == 1;
	}
	return there;
}

static uint64_t slabs_of(struct beside *b, uint64_t ns_id)
{
	return atomic_load(&host_ns_row(&b->t.host, ns_id)->counters.slots) / SLAB;
}

static uint64_t id_of(const struct kvp_ns *ns)
{
	struct kvp_ns_info info = {.size = sizeof(info)};

	assert_int_equal(kvp_ns_info(ns, &info), 0);
	return info.ns_id;
}

static bool hits_are_known(void *arg)
{
	struct beside *b = arg;

	return atomic_load(&host_ns_row(&b->t.host, b->engine_id)->counters.hits_ram) >= 160;
}

/* The engine fills @slabs of the pool, the scanner the others, and goes on; then the engine's blocks are used again and
   again. */
static struct beside *given(unsigned slabs)
{
	struct beside *b = calloc(1, sizeof(*b));
	/* nothing kept at hand: a slab with a granted block does not move */
	struct kvp_open_opts opts = {.size = sizeof(opts), .connect_timeout_ms = 5000, .stock_blocks = KVP_STOCK_NONE};
	struct kvp_desc desc;

	trial_given(&b->t, geteuid(), "8M", NULL);
	trial_start(&b->t);
	trial_attach(&b->t);
	trial_desc(&desc);
	opts.socket = b->t.host.socket;
	assert_int_equal(kvp_open(&opts, &b->scanner), 0);
	assert_int_equal(trial_ns(b->scanner, "scan", &desc, &b->scan), 0);
	b->engine_id = id_of(b->t.ns);
	b->scan_id = id_of(b->scan);
	put(b->t.ns, 0, slabs * SLAB - 4); /* without what its library keeps at hand */
	for (unsigned i = 0; i < SLABS && slabs_of(b, b->engine_id) + slabs_of(b, b->scan_id) < SLABS; i++)
		scan(b, SLAB);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(read_all(b, slabs * SLAB - 4), slabs * SLAB - 4);
	assert_true(wire_until(hits_are_known, b, 10000));
	wire_sleep_ms(300); /* and taken note of */
	scan(b, 2 * SLAB); /* used later than all of the engine's */
	return b;
}

static int with_a_large_scanner(void **state)
{
	*state = given(2);
	return 0;
}

static int with_half_each(void **state)
{
	*state = given(4);
	return 0;
}

static int teardown(void **state)
{
	struct beside *b = *state;
	bool good;

	kvp_ns_close(b->scan);
	kvp_close(b->scanner);
	good = trial_end(&b->t);
	free(b);
	return good ? 0 : -1;
}

static void a_namespace_that_is_used_again_takes_memory_from_a_scanner_and_not_its_last(void **state)
{
	struct beside *b = *state;
	unsigned n = 2 * SLAB - 4;

	assert_true(slabs_of(b, b->scan_id) >= 5);
	for (unsigned i = 0; i < 9; i++) { /* it grows as it is used: nothing of its own goes for it */
		put(b->t.ns, n, n + 8);
		n += 8;
		assert_true(read_all(b, n) >= n - 8);
	}
	assert_true(slabs_of(b, b->engine_id) >= 6);
	put(b->t.ns, n, n + 4 * SLAB);
	assert_true(slabs_of(b, b->scan_id) >= 1);
	scan(b, 2 * SLAB); /* it is served all the same */
}

static void a_pool_that_shrinks_takes_from_the_scanner_first_though_it_published_last(void **state)
{
	struct beside *b = *state;
	uint64_t slabs = slabs_of(b, b->engine_id);

	assert_true(slabs >= 4);
	assert_int_equal(TRIAL_KVCTL(&b->t, NULL, 0, "resize", "--deadline", "30", "5M"), 0);
	assert_int_equal(slabs_of(b, b->engine_id), slabs);
	assert_true(read_all(b, 4 * SLAB - 4) >= 4 * SLAB - 8);
	assert_true(slabs_of(b, b->scan_id) <= 1);
	scan(b, SLAB / 2);
	assert_true(slabs_of(b, b->scan_id) >= 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_namespace_that_is_used_again_takes_memory_from_a_scanner_and_not_its_last,
			with_a_large_scanner, teardown),
		cmocka_unit_test_setup_teardown(
			a_pool_that_shrinks_takes_from_the_scanner_first_though_it_published_last, with_half_each,
			teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
