/* test_kvctl_top.c - the frame of kvctl top, from made-up looks at a pool: rates, order, what belongs to whom, any
   size */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvctl/kvctl.h"
#include "client/kvctl/top_frame.h"

#define BLOCK 65536u

/* kvctl's main.c is not here */
void complain(const char *format, ...)
{
	(void)format;
}
int output_end(int code)
{
	return code;
}
int usage_print(const char *command)
{
	(void)command;
	return KVCTL_DONE;
}

struct fixture {
	struct top_data data;
	struct top_wish wish;
	struct top_frame frame;
	char all[1 << 16];
};

static void given_ns(
	struct snapshot *snapshot, uint64_t id, const char *name, uint64_t published, uint64_t lookups, uint64_t hits)
{
	struct kvp_ns_row *row = &snapshot->ns[snapshot->n_ns++];

	row->ns_id = id;
	row->block_bytes = BLOCK;
	snprintf(row->name, sizeof(row->name), "%s", name);
	row->counters.slots = row->counters.published = published;
	row->counters.lookups = lookups;
	row->counters.hits_ram = hits;
	row->counters.miss_evicted = lookups - hits;
}

static void given_client(
	struct snapshot *snapshot, uint64_t id, const char *name, uint64_t ns_id, uint64_t lookups, uint64_t oldest_ms)
{
	struct kvp_session_row *row = &snapshot->sessions[snapshot->n_sessions++];

	row->session_id = id;
	row->pid = 1000 + (int)id;
	row->connected = 1;
	snprintf(row->comm, sizeof(row->comm), "%s", name);
	row->lookups = lookups;
	row->oldest_pin_ms = oldest_ms;
	row->pins = oldest_ms != 0;
	row->ns_ids[0] = ns_id;
}

static void given_look(struct snapshot *snapshot, unsigned times)
{
	snapshot->ns = calloc(4, sizeof(*snapshot->ns));
	snapshot->sessions = calloc(4, sizeof(*snapshot->sessions));
	snapshot->head.counters.pool_bytes = 100 * BLOCK;
	given_ns(snapshot, 1, "large", 60, 1000, 900);
	given_ns(snapshot, 2, "busy", 20, 1000 + times * 400, 500 + times * 100);
	given_client(snapshot, 11, "reader", 1, 100, 5000);
	given_client(snapshot, 12, "engine", 2, 100 + times * 400, 0);
}

/* Two looks, two seconds apart, in which "engine" asked "busy" for 400 blocks and 100 were there. */
static int given(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	given_look(&f->data.before, 0);
	given_look(&f->data.now, 1);
	f->data.found = f->data.has_before = true;
	f->data.seconds = 2;
	f->data.pool.life = POOL_SERVING;
	strcpy(f->data.pool.name, "here");
	*state = f;
	return 0;
}

static int done(void **state)
{
	struct fixture *f = *state;

	top_frame_free(&f->frame);
	snapshot_free(&f->data.now);
	snapshot_free(&f->data.before);
	free(f);
	return 0;
}

static const char *shown(struct fixture *f, unsigned rows, unsigned columns)
{
	size_t n = 0;

	top_frame_free(&f->frame);
	assert_int_equal(top_frame_make(&f->frame, rows, columns, &f->data, &f->wish), 0);
	for (unsigned i = 0; i < rows; i++) {
		const char *row = f->frame.text + (size_t)i * (columns + 1);

		assert_int_equal(strlen(row), columns);
		n += (size_t)sprintf(f->all + n, "%s\n", row);
	}
	return f->all;
}

static void assert_shows(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" is not on:\n%s", part, text);
}

static void assert_order(const char *text, const char *first, const char *second)
{
	const char *a = strstr(text, first), *b = strstr(text, second);

	if (!a || !b || a > b)
		fail_msg("\"%s\" does not stand before \"%s\" on:\n%s", first, second, text);
}

static void a_namespace_that_makes_way_takes_no_rate_of_the_others_along(void **state)
{
	struct fixture *f = *state;

	given_ns(&f->data.before, 3, "gone", 10, 100000, 100000);
	assert_shows(shown(f, 24, 80), " 25 % of 200 blocks/s");
}

static void rates_are_of_what_changed_between_two_looks(void **state)
{
	struct fixture *f = *state;
	const char *text = shown(f, 24, 80);

	assert_shows(text, "kvpool here: serving");
	assert_shows(text, " 25 % of 200 blocks/s");
	assert_shows(text, "MISSES evicted 150/s");
	assert_shows(text, "80 % 5 MiB of 6.2 MiB");
	f->data.has_before = false;
	text = shown(f, 24, 80);
	assert_shows(text, "of 2,400 blocks, 0 tokens in all");
	assert_shows(text, "    ASKED ");
}

static void what_a_client_found_is_of_the_same_seconds_as_what_it_asked(void **state)
{
	struct fixture *f = *state;

	f->data.before.sessions[1].hits_ram = 100; /* all it asked for then */
	f->data.now.sessions[1].hits_ram = 120;
	f->data.now.sessions[1].hits_spill = 200;
	assert_shows(shown(f, 24, 80), "      200   5 %  50 %");
}

static void the_largest_figures_fit_into_80_columns(void **state)
{
	struct fixture *f = *state;
	struct kvp_counters *c = &f->data.now.head.counters;

	c->spill_state = 1;
	c->spill_capacity_bytes = 1023ull << 30;
	c->spill_live_bytes = c->spill_used_bytes = c->spill_read_bytes = c->spill_write_bytes = 1022ull << 30;
	c->spill_in_flight = 256;
	c->spill_read_queue = 1023ull << 20;
	f->data.now.ns[0].counters.tokens_ram = 99900000000;
	f->data.now.ns[0].counters.lookups = 99900000000;
	for (unsigned i = 0; i < 2; i++) {
		f->data.has_before = i;
		assert_shows(shown(f, 24, 80), " queued ");
		assert_shows(f->all, i ? "tokens/s" : "tokens in all");
	}
}

static void who_has_held_a_block_for_longest_is_named(void **state)
{
	struct fixture *f = *state;

	assert_shows(shown(f, 24, 80), "OLDEST hold 5 s, by reader, pid 1011");
	f->data.now.sessions[0].oldest_pin_ms = 0;
	assert_shows(shown(f, 24, 80), "OLDEST nobody holds a block");
}

static void both_tables_are_sorted_as_wished(void **state)
{
	struct fixture *f = *state;

	assert_order(shown(f, 24, 80), "\nbusy ", "\nlarge ");
	assert_order(f->all, "\nengine ", "\nreader ");
	f->wish.sort = TOP_BY_SIZE;
	assert_order(shown(f, 24, 80), "\nlarge ", "\nbusy ");
	f->wish.sort = TOP_BY_HELD;
	assert_order(shown(f, 24, 80), "\nreader ", "\nengine ");
	f->wish.sort = TOP_BY_NAME;
	assert_order(shown(f, 24, 80), "\nbusy ", "\nlarge ");
	assert_order(f->all, "\nengine ", "\nreader ");
}

static void inside_a_client_are_its_namespaces_and_inside_a_namespace_its_clients(void **state)
{
	struct fixture *f = *state;

	f->wish.clients = true;
	f->wish.chosen = 1;
	shown(f, 24, 80);
	f->wish.inside = top_frame_chosen(&f->data, &f->wish);
	assert_int_equal(f->wish.inside, 11);
	assert_shows(shown(f, 24, 80), "\nlarge ");
	assert_null(strstr(f->all, "\nbusy "));
	assert_null(strstr(f->all, "\nengine "));
	f->wish = (struct top_wish){.inside = 2};
	assert_shows(shown(f, 24, 80), "\nengine ");
	assert_null(strstr(f->all, "\nreader "));
	assert_null(strstr(f->all, "\nlarge "));
}

static void a_choice_beyond_the_end_is_the_last_one(void **state)
{
	struct fixture *f = *state;

	f->wish.chosen = 99;
	shown(f, 24, 80);
	assert_int_equal(f->wish.chosen, 1);
}

static void what_is_wrong_is_told_and_what_was_seen_stays(void **state)
{
	struct fixture *f = *state;

	strcpy(f->data.trouble, "kvctl: it is gone");
	f->data.pool.life = POOL_SILENT;
	assert_shows(shown(f, 24, 80), "it is gone");
	assert_shows(f->all, "\nbusy ");
	f->data.found = false;
	assert_shows(shown(f, 24, 80), "no pool");
	f->data.found = true;
}

static void every_size_of_terminal_is_filled_and_not_left(void **state)
{
	struct fixture *f = *state;

	for (unsigned rows = 1; rows < 60; rows++)
		for (unsigned columns = 1; columns < 220; columns += columns < 90 ? 1 : 13)
			for (unsigned help = 0; help < 2; help++) {
				f->wish.help = help;
				f->wish.curve = columns % 2;
				shown(f, rows, columns);
			}
}

#define test(name) cmocka_unit_test_setup_teardown(name, given, done)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(rates_are_of_what_changed_between_two_looks),
		test(a_namespace_that_makes_way_takes_no_rate_of_the_others_along),
		test(what_a_client_found_is_of_the_same_seconds_as_what_it_asked),
		test(the_largest_figures_fit_into_80_columns),
		test(who_has_held_a_block_for_longest_is_named),
		test(both_tables_are_sorted_as_wished),
		test(inside_a_client_are_its_namespaces_and_inside_a_namespace_its_clients),
		test(a_choice_beyond_the_end_is_the_last_one),
		test(what_is_wrong_is_told_and_what_was_seen_stays),
		test(every_size_of_terminal_is_filled_and_not_left),
	};

	return cmocka_run_group_tests_name("kvctl top", tests, NULL, NULL);
}
