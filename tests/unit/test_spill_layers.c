/* test_spill_layers.c - records read in parts: layers are told of in order, and none before it was compared */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "spill_fixture.h"

#define MIB (1ull << 20)
#define LAYERS 12u
#define BYTES (LAYERS * 100000u)

static struct spill_layers layers;
static struct fixture *fixture; /* of the test that runs */
static uint32_t n_told, last_told;
static uint32_t most; /* so many may be told */

static const struct spill_layers *layers_of_ns(void *owner, uint64_t ns_id)
{
	(void)owner;
	return ns_id == NS_ID ? &layers : NULL;
}

static void came(void *owner, void *reader, uint32_t n)
{
	const struct block *b = reader;
	struct block first = *b;

	assert_ptr_equal(owner, fixture);
	assert_true(n > last_told && n < LAYERS && n <= most);
	assert_false(b->done);
	first.bytes = layers.ends[n - 1];
	assert_true(block_is(&first, fixture->in)); /* what is told of is there, and right */
	last_told = n;
	n_told++;
}

static int setup(void **state)
{
	struct fixture *f = fixture_new(*state, 64 * MIB, 8 * MIB);

	layers.n = LAYERS;
	for (uint32_t i = 0; i < LAYERS; i++)
		layers.ends[i] = (i + 1) * 100000ull;
	f->opts.layers = layers_of_ns;
	f->opts.layers_came = came;
	*state = fixture = f;
	n_told = last_told = 0;
	most = LAYERS;
	return fixture_open(f);
}

static int teardown(void **state)
{
	fixture_free(*state);
	return 0;
}

static int get_in_layers(struct fixture *f, unsigned k)
{
	n_told = last_told = 0;
	return get(f, k);
}

static void layers_are_told_of_in_order_as_they_come_and_the_block_is_exact(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(put(f, 0, BYTES), 0);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(get_in_layers(f, 0), 0);
	assert_int_equal(stats_of(f).reads, 20);
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(get_in_layers(f, 0), 0);
	assert_true(store_adds_up(f));
}

/* One operation at once: its parts come one after the other.  Those that were done when the loop looked are told of
   together, all of them at times, so it is read until one was told of before the rest. */
static void a_record_comes_in_parts_each_told_of(void **state)
{
	struct fixture *f = *state;

	fixture_close(f);
	f->opts.depth = 1;
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(put(f, 0, BYTES), 0);
	for (unsigned i = 0; i < 1000 && !n_told; i++) {
		assert_int_equal(get_in_layers(f, 0), 0);
		assert_true(n_told < PARTS_MAX);
	}
	assert_true(n_told);
}

static void flip(const struct fixture *f, uint64_t at)
{
	uint8_t byte;
	int fd = open(f->path, O_RDWR | O_CLOEXEC);

	assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
	byte ^= 16;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

static void a_damaged_layer_is_never_told_of_nor_any_behind_it(void **state)
{
	struct fixture *f = *state;

	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		assert_int_equal(put(f, layer, BYTES), 0);
		flip(f, data_off(f, layer) + layer * 100000u + 31);
		most = layer;
		assert_int_equal(get_in_layers(f, layer), -EBADMSG);
		assert_int_equal(f->blocks[layer].n_gone, 1);
		assert_int_equal(stats_of(f).damaged, layer + 1);
	}
	assert_true(store_adds_up(f));
}

static void a_damaged_header_tells_of_nothing(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(put(f, 0, BYTES), 0);
	flip(f, block_off(f, 0) + 140); /* a layer's checksum */
	most = 0;
	assert_int_equal(get_in_layers(f, 0), -EBADMSG);
	assert_int_equal(n_told, 0);
}

static void a_part_that_cannot_be_read_fails_the_block_and_is_no_damage(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(put(f, 0, BYTES), 0);
	for (unsigned part = 1; part <= PARTS_MAX; part++) {
		char text[32];

		snprintf(text, sizeof(text), "io.read=-EIO@%u", part);
		fault_arm(text);
		assert_int_equal(get_in_layers(f, 0), -EIO);
		fault_disarm();
		assert_int_equal(stats_of(f).damaged, 0);
		assert_true(f->blocks[0].place != 0);
		assert_int_equal(get_in_layers(f, 0), 0);
	}
	assert_true(store_adds_up(f));
}

static void a_record_without_checksums_of_layers_is_read_and_told_of_when_it_is_whole(void **state)
{
	struct fixture *f = *state;

	f->opts.layers = NULL;
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(put(f, 0, BYTES), 0);
	f->opts.layers = layers_of_ns;
	assert_int_equal(fixture_reopen(f), 0);
	most = 0;
	assert_int_equal(get_in_layers(f, 0), 0);
	assert_int_equal(n_told, 0);
	flip(f, data_off(f, 0) + BYTES - 1);
	assert_int_equal(get_in_layers(f, 0), -EBADMSG);
}

static void a_record_with_checksums_of_layers_is_read_by_who_asks_for_none(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(put(f, 0, BYTES), 0);
	f->opts.layers = NULL;
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(get_in_layers(f, 0), 0);
	assert_int_equal(n_told, 0);
}

static void a_block_that_is_not_all_of_its_layers_is_read_at_once(void **state)
{
	struct fixture *f = *state;

	most = 0;
	assert_int_equal(put(f, 0, BYTES - 1), 0);
	assert_int_equal(put(f, 1, 100), 0);
	assert_int_equal(get_in_layers(f, 0), 0);
	assert_int_equal(get_in_layers(f, 1), 0);
	assert_int_equal(n_told, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		EACH_WAY(layers_are_told_of_in_order_as_they_come_and_the_block_is_exact),
		EACH_WAY(a_record_comes_in_parts_each_told_of),
		EACH_WAY(a_damaged_layer_is_never_told_of_nor_any_behind_it),
		EACH_WAY(a_damaged_header_tells_of_nothing),
		EACH_WAY(a_part_that_cannot_be_read_fails_the_block_and_is_no_damage),
		EACH_WAY(a_record_without_checksums_of_layers_is_read_and_told_of_when_it_is_whole),
		EACH_WAY(a_record_with_checksums_of_layers_is_read_by_who_asks_for_none),
		EACH_WAY(a_block_that_is_not_all_of_its_layers_is_read_at_once),
	};

	return cmocka_run_group_tests_name("spill_layers", tests, NULL, NULL);
}
