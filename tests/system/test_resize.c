/* test_resize.c - the pool grows and shrinks while it serves */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire.h"

#define MIB (1024u * 1024)
#define BLOCK 65536u /* 16 in a slab */

static const char *const eight[] = {"--pool", "8M", "--slab", "1M", "--free-percent", "0", "--spill", "off", NULL};

struct fixture {
	struct host host;
	struct wire w;
	struct wire_ns ns;
	struct wire admin;
	struct kvp_wire_admin_done done;
};

static struct fixture *given(const char *const *options)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	assert_int_equal(host_start(&f->host, options), 0);
	return f;
}

static void given_client(struct fixture *f)
{
	char admin[KVP_SOCKET_MAX + 8];

	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, &f->ns, "n", BLOCK), 0);
	snprintf(admin, sizeof(admin), "%s.admin", f->host.socket);
	assert_int_equal(wire_connect(&f->admin, admin), 0);
}

static int setup(void **state)
{
	*state = given(eight);
	given_client(*state);
	return 0;
}

static int on_three_nodes(void **state)
{
	setenv("HWLOC_SYNTHETIC", "node:3(memory=64MB) pu:1", 1);
	*state = given((const char *[]){"--pool", "9M", "--slab", "1M", "--free-percent", "0", "--spill", "off", NULL});
	given_client(*state);
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	bool good = host_alive(&f->host) && host_conserves(&f->host);

	unsetenv("HWLOC_SYNTHETIC");
	wire_close(&f->admin);
	wire_leave(&f->ns);
	wire_close(&f->w);
	host_close(&f->host);
	free(f);
	return good ? 0 : -1;
}

static int resize(struct fixture *f, const char *pool, unsigned ms)
{
	struct kvp_wire_resize ask = {.deadline_ns = wire_now() + ms * 1000000ull};

	strcpy(ask.pool, pool);
	memset(&f->done, 0, sizeof(f->done));
	return wire_call(&f->admin, KVP_MSG_RESIZE, &ask, sizeof(ask), &f->done, sizeof(f->done));
}

static uint64_t in_slabs(const struct fixture *f)
{
	return atomic_load(&f->host.stats->counters.slab_bytes_allocated);
}

/* What the slabs of this pool really occupy, those clients have mapped still included: by what the memory's names
   tell. */
static uint64_t in_shm(const struct fixture *f)
{
	uint64_t bytes = 0;

	for (unsigned place = 0; place < f->host.stats->max_places; place++) {
		const struct kvp_slab_row *row =
			(const struct kvp_slab_row *)(const void *)((const char *)f->host.stats +
								    f->host.stats->slab_off) +
			place;
		char rest[40], path[160];
		struct stat st;

		if (!atomic_load(&row->number))
			continue;
		snprintf(rest, sizeof(rest), "slab-%lu", (unsigned long)atomic_load(&row->number));
		host_object(&f->host, path, rest);
		bytes += stat(path, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
	}
	return bytes;
}

static void fill(struct fixture *f, uint64_t first, unsigned n)
{
	for (uint64_t k = first; k < first + n; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(wire_put(&f->ns, &key, NULL, k, 3000), KVP_PUB_STORED);
	}
}

static unsigned readable(struct fixture *f, uint64_t first, unsigned n)
{
	unsigned right = 0;

	for (uint64_t k = first; k < first + n; k++) {
		struct kvp_key key = wire_key(k);
		struct wire_pinned pinned;

		if (wire_pin(&f->ns, &key, &pinned) != 1)
			continue;
		assert_true(wire_right(pinned.data, pinned.used_bytes, k));
		wire_unpin(&f->ns, &pinned);
		right++;
	}
	return right;
}

static void an_empty_pool_shrinks_and_grows_to_the_byte(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(resize(f, "3M", 5000), sizeof(f->done));
	assert_int_equal(f->done.n_done, 3 * MIB);
	assert_int_equal(f->done.n_left + f->done.n_failed + f->done.late, 0);
	assert_int_equal(in_slabs(f), 3 * MIB);
	assert_int_equal(in_shm(f), 3 * MIB);
	assert_int_equal(f->w.header->pool_bytes, 3 * MIB);
	assert_int_equal(resize(f, "12M", 5000), sizeof(f->done));
	assert_int_equal(f->done.n_done, 12 * MIB);
	assert_int_equal(in_shm(f), 12 * MIB);
	fill(f, 0, 12 * 16);
	assert_int_equal(readable(f, 0, 12 * 16), 12 * 16);
}

static void a_full_pool_shrinks_by_what_was_used_least_lately(void **state)
{
	struct fixture *f = *state;

	fill(f, 0, 8 * 16);
	wire_sleep_ms(60);
	assert_int_equal(readable(f, 100, 20), 20); /* used */
	wire_sleep_ms(60);
	assert_int_equal(resize(f, "3M", 5000), sizeof(f->done));
	assert_int_equal(f->done.n_done, 3 * MIB);
	assert_int_equal(f->done.n_left, 0);
	assert_int_equal(in_shm(f), 3 * MIB);
	assert_int_equal(readable(f, 100, 20), 20);
	fill(f, 1000, 60); /* and within it life goes on */
	assert_int_equal(in_slabs(f), 3 * MIB);
}

static void what_is_held_stays_and_the_answer_says_so_and_it_goes_when_it_is_let_go(void **state)
{
	struct fixture *f = *state;
	struct wire_pinned pinned[8];
	uint64_t before = wire_now();

	fill(f, 0, 8 * 16);
	for (unsigned i = 0; i < 8; i++) { /* one in each slab */
		struct kvp_key key = wire_key(i * 16);

		assert_int_equal(wire_pin(&f->ns, &key, &pinned[i]), 1);
	}
	assert_int_equal(resize(f, "2M", 700), sizeof(f->done));
	assert_in_range((wire_now() - before) / 1000000, 600, 3000);
	assert_int_equal(f->done.late, 1);
	assert_int_equal(f->done.n_left, f->done.n_done - 2 * MIB);
	assert_int_equal(f->done.n_done, in_slabs(f));
	assert_int_equal(f->w.header->pool_bytes, in_slabs(f)); /* not less than there is */
	for (unsigned i = 0; i < 8; i++) {
		assert_true(wire_right(pinned[i].data, pinned[i].used_bytes, i * 16));
		assert_int_equal(atomic_load(&f->ns.blocks[pinned[i].slot].word), pinned[i].word);
		wire_unpin(&f->ns, &pinned[i]);
	}
	for (unsigned i = 0; i < 100 && in_slabs(f) > 2 * MIB; i++)
		wire_sleep_ms(50);
	assert_int_equal(in_slabs(f), 2 * MIB);
	assert_int_equal(f->w.header->pool_bytes, 2 * MIB);
}

static bool leaving_is_empty(void *arg)
{
	return atomic_load(&((struct fixture *)arg)->host.stats->counters.slab_bytes_leaving) == 0;
}

static void a_shrink_while_an_engine_keeps_old_slabs_mapped_stays_inside_the_budget(void **state)
{
	struct fixture *f = *state;
	uint64_t sum = 0;

	fill(f, 0, 8 * 16);
	assert_int_equal(readable(f, 0, 8 * 16), 8 * 16); /* all slabs are mapped here */
	assert_int_equal(resize(f, "2M", 5000), sizeof(f->done));
	assert_int_equal(in_slabs(f), 2 * MIB);
	assert_int_equal(in_shm(f), 2 * MIB); /* at the answer, though they are mapped */
	for (unsigned place = 0; place < WIRE_PLACES_MAX;
		place++) /* what left reads as zeroes, and fills itself by that */
		for (size_t off = 0; f->ns.at[place].ro && off < f->ns.at[place].bytes; off += 4096)
			sum += (unsigned char)f->ns.at[place].ro[off];
	(void)sum;
	fill(f, 1000,
		3 * 16); /* what leaves and filled itself again is out of the budget: nothing is made in its stead */
	assert_true(in_slabs(f) <= 2 * MIB);
	assert_true(wire_until(leaving_is_empty, f, 5000)); /* and is emptied again */
	assert_int_equal(in_shm(f), 2 * MIB);
}

static void each_node_grows_and_shrinks_by_itself(void **state)
{
	struct fixture *f = *state;
	static const unsigned want[] = {1, 5, 2};

	fill(f, 0, 9 * 16);
	assert_int_equal(resize(f, "node0=1M,node1=5M,node2=2M", 5000), sizeof(f->done));
	assert_int_equal(f->done.n_left + f->done.n_failed, 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(f->host.stats->nodes[i].asked, want[i] * MIB);
		assert_int_equal(f->host.stats->nodes[i].got, want[i] * MIB);
	}
	assert_int_equal(resize(f, "node0=1M,node7=5M", 5000), -KVP_EINVAL);
	assert_non_null(strstr(f->admin.text, "node7 is no node"));
	assert_int_equal(f->host.stats->nodes[1].asked, 5 * MIB); /* nothing was changed */
}

static void say_pressure(const struct fixture *f, const char *percent)
{
	char path[300];
	FILE *file;

	snprintf(path, sizeof(path), "%s.psi", f->host.socket);
	file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file, "some avg10=%s avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		percent);
	fclose(file);
}

static void memory_is_given_back_under_pressure_and_taken_again_after_it(void **state)
{
	struct fixture *f = *state;
	char path[300];
	uint64_t low;

	wire_close(&f->admin);
	wire_leave(&f->ns);
	wire_close(&f->w);
	host_stop(&f->host);
	snprintf(path, sizeof(path), "%s.psi", f->host.socket);
	say_pressure(f, "0.00");
	assert_int_equal(
		host_start(&f->host, (const char *[]){"--pool", "8M", "--slab", "1M", "--free-percent", "0", "--spill",
					     "off", "--pressure", "10", "--pressure-file", path, NULL}),
		0);
	given_client(f);
	fill(f, 0, 8 * 16);
	say_pressure(f, "9.00"); /* under the limit: nothing happens */
	wire_sleep_ms(1200);
	assert_int_equal(in_slabs(f), 8 * MIB);
	say_pressure(f, "35.20");
	for (unsigned i = 0; i < 150 && in_slabs(f) > 6 * MIB; i++)
		wire_sleep_ms(50);
	say_pressure(f, "7.00"); /* neither over the limit nor calm: it stays */
	wire_sleep_ms(700);
	low = in_slabs(f);
	assert_in_range(low, 2 * MIB, 6 * MIB);
	assert_int_equal(in_shm(f), low);
	assert_int_equal(atomic_load(&f->host.stats->counters.given_back_bytes), 8 * MIB - low);
	assert_non_null(strstr(f->host.stats->pressure_message, "memory was short"));
	wire_sleep_ms(1000);
	assert_int_equal(in_slabs(f), low);
	say_pressure(f, "0.00");
	for (unsigned i = 0; i < 300 && in_slabs(f) == low; i++)
		wire_sleep_ms(50);
	assert_true(in_slabs(f) > low);
	assert_int_equal(resize(f, "8M", 5000), sizeof(f->done)); /* an operator has the last word */
	assert_int_equal(in_slabs(f), 8 * MIB);
	assert_int_equal(atomic_load(&f->host.stats->counters.given_back_bytes), 0);
	unlink(path);
}

static void what_cannot_be_is_refused_and_changes_nothing(void **state)
{
	struct fixture *f = *state;
	static const char *const wrong[] = {"", "8X", "4096", "1000G", "8M,4M", "1T"};

	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(resize(f, wrong[i], 1000), -KVP_EINVAL);
	assert_int_equal(in_slabs(f), 8 * MIB);
	assert_int_equal(f->w.header->pool_bytes, 8 * MIB);
	assert_int_equal(resize(f, "8M", 1000), sizeof(f->done));
	assert_int_equal(f->done.n_done, 8 * MIB);
}

static void a_start_with_a_smaller_pool_shrinks_to_it_and_keeps_the_blocks_that_fit(void **state)
{
	struct fixture *f = *state;

	fill(f, 0, 8 * 16);
	wire_close(&f->admin);
	wire_leave(&f->ns);
	wire_close(&f->w);
	host_stop(&f->host);
	assert_int_equal(host_start(&f->host, (const char *[]){"--pool", "4M", "--slab", "1M", "--free-percent", "0",
						      "--spill", "off", NULL}),
		0);
	for (unsigned i = 0; i < 100 && in_slabs(f) > 4 * MIB; i++)
		wire_sleep_ms(50);
	assert_int_equal(in_slabs(f), 4 * MIB);
	assert_int_equal(in_shm(f), 4 * MIB);
	given_client(f);
	assert_in_range(readable(f, 0, 8 * 16), 3 * 16, 4 * 16);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

static void a_pool_can_grow_to_twice_its_slabs_and_sixty_four(void **state)
{
	/* the second is no multiple of a slab: what is left of it stays unused, and gives no room to grow either */
	static const char *const sizes[] = {"42M", "43M"};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct fixture *f = given((const char *[]){"--pool", sizes[i], "--slab", "2M", "--spill", "off", NULL});

		assert_int_equal(f->host.stats->max_places, 2 * 21 + 64);
		host_close(&f->host);
		free(f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pool_can_grow_to_twice_its_slabs_and_sixty_four),
		TEST(an_empty_pool_shrinks_and_grows_to_the_byte),
		TEST(a_full_pool_shrinks_by_what_was_used_least_lately),
		TEST(what_is_held_stays_and_the_answer_says_so_and_it_goes_when_it_is_let_go),
		TEST(a_shrink_while_an_engine_keeps_old_slabs_mapped_stays_inside_the_budget),
		cmocka_unit_test_setup_teardown(each_node_grows_and_shrinks_by_itself, on_three_nodes, teardown),
		TEST(memory_is_given_back_under_pressure_and_taken_again_after_it),
		TEST(what_cannot_be_is_refused_and_changes_nothing),
		TEST(a_start_with_a_smaller_pool_shrinks_to_it_and_keeps_the_blocks_that_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
