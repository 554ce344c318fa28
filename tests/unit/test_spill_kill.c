/*
 * test_spill_kill.c - a deleted key stays deleted, whatever becomes of the process, and what is written anew is found
 *
 * A SIGKILL leaves the file as it is at some moment: here it is copied at that moment, and the copy opened.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <unistd.h>

#include "spill_fixture.h"

#define MIB (1ull << 20)
#define SIZE 20000
#define N 40

static int setup(void **state)
{
	struct fixture *f = fixture_new(*state, 16 * MIB, MIB);

	*state = f;
	return fixture_open(f);
}

static int teardown(void **state)
{
	fixture_free(*state);
	return 0;
}

static void copy_file(const char *from, const char *to)
{
	char *bytes = malloc(MIB);
	int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	ssize_t n;

	assert_true(in >= 0 && out >= 0);
	while ((n = read(in, bytes, MIB)) > 0)
		assert_int_equal(write(out, bytes, (size_t)n), n);
	assert_int_equal(n, 0);
	close(in);
	close(out);
	free(bytes);
}

/* What a start would find if the process were killed now: a store of its own, to be freed. */
static struct fixture *killed_now(struct fixture *f)
{
	struct way way = {f->opts.use_uring, f->opts.unit};
	struct fixture *g = fixture_new(&way, f->opts.capacity, f->opts.segment_bytes);

	copy_file(f->path, g->path);
	assert_int_equal(fixture_open(g), 0);
	assert_true(store_adds_up(g));
	return g;
}

static unsigned n_found(struct fixture *f, unsigned from, unsigned to)
{
	unsigned n = 0;

	for (unsigned k = from; k < to; k++)
		n += f->blocks[k].place != 0;
	return n;
}

static struct spill_kill kill_of(unsigned k)
{
	struct block b = {.k = k};

	return (struct spill_kill){.ns_id = NS_ID, .key = block_record(&b).key};
}

static void forget(struct fixture *f, unsigned k)
{
	if (f->blocks[k].place)
		spill_forget(f->spill, f->blocks[k].place);
	f->blocks[k].place = 0;
}

/* As the daemon does: it is forgotten, and noted. Return: what done() was told; what was refused. */
static int delete_some(struct fixture *f, unsigned from, unsigned to)
{
	static struct spill_kill kills[SPILL_KILLS_MAX];
	int r, res = 1;

	for (unsigned k = from; k < to; k++) {
		forget(f, k);
		kills[k - from] = kill_of(k);
	}
	while ((r = spill_kill(f->spill, kills, to - from, flush_done, &res)) == -EAGAIN)
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
	if (r < 0)
		return r;
	while (res == 1)
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
	return res;
}

static void given_blocks(struct fixture *f, unsigned n)
{
	for (unsigned k = 0; k < n; k++)
		assert_int_equal(put(f, k, SIZE), 0);
}

static void a_deleted_key_is_not_found_after_a_kill_right_after_the_answer(void **state)
{
	struct fixture *f = *state, *g;

	given_blocks(f, N);
	assert_int_equal(delete_some(f, 3, 10), 0);
	g = killed_now(f);
	assert_int_equal(g->n_found, N - 7);
	assert_int_equal(n_found(g, 3, 10), 0);
	assert_int_equal(fixture_reopen(g), 0); /* sealed by now, the list named in the seal */
	assert_int_equal(g->n_found, N - 7);
	assert_int_equal(n_found(g, 3, 10), 0);
	assert_int_equal(get(g, 2), 0);
	fixture_free(g);
}

static void a_deleted_key_is_not_found_after_a_stop_in_order(void **state)
{
	struct fixture *f = *state;

	given_blocks(f, N);
	assert_int_equal(delete_some(f, 0, 1), 0);
	assert_int_equal(stats_of(f).live_records, N - 1); /* a list is no block */
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(fixture_reopen(f), 0);
		assert_int_equal(f->n_found, N - 1);
		assert_int_equal(f->n_unknown, 0);
		assert_int_equal(stats_of(f).live_records, N - 1);
		assert_int_equal(put(f, 100 + i, SIZE), 0); /* the log goes on behind it */
		forget(f, 100 + i);
		assert_int_equal(delete_some(f, 100 + i, 101 + i), 0);
	}
}

static void what_is_written_after_its_deletion_is_found(void **state)
{
	struct fixture *f = *state, *g;

	given_blocks(f, N);
	assert_int_equal(delete_some(f, 5, 8), 0);
	assert_int_equal(put_version(f, 6, SIZE, 1), 0);
	g = killed_now(f);
	assert_int_equal(g->n_found, N - 2);
	assert_int_equal(g->blocks[6].version, 1);
	assert_int_equal(get(g, 6), 0);
	assert_int_equal(delete_some(g, 6, 7), 0); /* and once more, by another daemon */
	assert_int_equal(fixture_reopen(g), 0);
	assert_int_equal(n_found(g, 5, 8), 0);
	fixture_free(g);
}

static void of_a_key_that_nobody_knows_any_more_no_record_is_found(void **state)
{
	struct fixture *f = *state, *g;

	given_blocks(f, N);
	assert_int_equal(put_version(f, 4, SIZE, 1), 0);
	assert_int_equal(put_version(f, 4, SIZE, 2), 0);
	forget(f, 4); /* its parent went, say */
	g = killed_now(f);
	assert_true(g->blocks[4].place != 0);
	fixture_free(g);
	assert_int_equal(delete_some(f, 4, 5), 0);
	g = killed_now(f);
	assert_int_equal(g->blocks[4].place, 0);
	fixture_free(g);
}

static void a_deletion_is_of_its_namespace_only(void **state)
{
	struct fixture *f = *state, *g;
	struct spill_kill other = kill_of(3);
	int res = 1;

	given_blocks(f, N);
	other.ns_id++;
	assert_int_equal(spill_kill(f->spill, &other, 1, flush_done, &res), 0);
	settle(f);
	assert_int_equal(res, 0);
	g = killed_now(f);
	assert_int_equal(g->n_found, N);
	fixture_free(g);
}

static void lists_of_any_number_and_length_are_read(void **state)
{
	struct fixture *f = *state, *g;
	enum { LISTS = 100 };

	given_blocks(f, N);
	assert_int_equal(delete_some(f, 1000, 1000 + SPILL_KILLS_MAX), 0);
	for (unsigned k = 0; k < LISTS; k++) /* one each */
		assert_int_equal(delete_some(f, k, k + 1), 0);
	assert_int_equal(put_version(f, 2, SIZE, 1), 0);
	g = killed_now(f);
	assert_int_equal(g->n_found, 1);
	assert_int_equal(get(g, 2), 0);
	fixture_free(g);
}

static void where_nothing_was_ever_written_nothing_is_noted(void **state)
{
	struct fixture *f = *state;
	struct spill_kill kill = kill_of(1);

	assert_int_equal(spill_kill(f->spill, &kill, 1, NULL, NULL), -ENOENT);
	assert_int_equal(put(f, 0, SIZE), 0);
	assert_int_equal(delete_some(f, 1, 2), 0);
}

static void a_store_that_is_down_says_that_it_cannot_note_it(void **state)
{
	struct fixture *f = *state, *g;

	given_blocks(f, N);
	fault_arm("io.write=-EIO");
	assert_int_equal(delete_some(f, 1, 2), -EIO);
	assert_int_equal(delete_some(f, 2, 3), -ENODEV);
	fault_disarm();
	g = killed_now(f);
	assert_true(g->blocks[2].place != 0);
	fixture_free(g);
	for (unsigned n = 0; n < 600 && stats_of(f).state != SPILL_UP; n++) {
		spill_wait(f->spill, loop_now() + SPILL_SECOND / 20);
		usleep(10000);
		spill_tick(f->spill);
	}
	assert_int_equal(delete_some(f, 1, 3), 0);
	g = killed_now(f);
	assert_int_equal(n_found(g, 1, 3), 0);
	fixture_free(g);
}

static void a_damaged_list_is_said(void **state)
{
	struct fixture *f = *state;
	struct log_catch lines;
	uint64_t off;
	int fd;

	given_blocks(f, 2);
	off = segment_off(f->spill, f->spill->open) + f->spill->segments[f->spill->open].used;
	assert_int_equal(delete_some(f, 0, 1), 0);
	fault_arm("spill.seal=-1"); /* it would not name what is dead */
	fixture_close(f);
	fault_disarm();
	fd = open(f->path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, "x", 1, (off_t)(off + f->opts.unit + 3)), 1);
	close(fd);
	lines = log_catch();
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(log_lines(&lines, "1 lists of deleted keys are damaged"), 1);
	fclose(lines.lines);
	assert_int_equal(f->n_found, 2);
}

/* ---- a store that goes round ---- */

#define KEYS 60u

/* As an ideal daemon: which keys are deleted for good at this moment, by an answer? */
struct model {
	bool deleted[KEYS];
};

static void look_after_a_kill(struct fixture *f, const struct model *model, unsigned *n_checked)
{
	struct fixture *g = killed_now(f);

	for (unsigned k = 0; k < KEYS; k++) {
		if (!model->deleted[k])
			continue;
		++*n_checked;
		if (g->blocks[k].place)
			fail_msg("key %u was deleted and is found", k);
	}
	for (unsigned k = 0; k < KEYS; k++) /* what the living one can be asked for, the next one can */
		if (f->blocks[k].place)
			assert_int_equal(g->blocks[k].place != 0, true);
	fixture_free(g);
}

static void go_round(struct fixture *f, unsigned seed, unsigned n_steps, bool failing)
{
	struct model model = {0};
	unsigned n_checked = 0, version = 0;

	for (unsigned step = 0; step < n_steps; step++) {
		unsigned k = (unsigned)rand_r(&seed) % KEYS;

		if (failing && step % 97 == 0)
			fault_arm("io.write=-EIO@3");
		if (rand_r(&seed) % 4) {
			bool was_deleted = model.deleted[k];

			model.deleted[k] = false; /* from here on it may be found, even where the write fails */
			if (put_version(f, k, SIZE, ++version) == -ENODEV)
				model.deleted[k] = was_deleted;
		} else if (delete_some(f, k, k + 1) == 0) {
			model.deleted[k] = true;
		}
		for (unsigned n = 0; n < 400 && stats_of(f).state != SPILL_UP; n++) {
			spill_wait(f->spill, loop_now() + SPILL_SECOND / 50);
			usleep(10000);
			spill_tick(f->spill);
		}
		if (step % 60 == 59)
			look_after_a_kill(f, &model, &n_checked);
		if (step % 400 == 399) {
			assert_int_equal(fixture_reopen(f), 0);
			for (k = 0; k < KEYS; k++)
				assert_false(model.deleted[k] && f->blocks[k].place);
		}
		assert_true(store_adds_up(f));
	}
	assert_true(n_checked > 100);
	assert_true(stats_of(f).state == SPILL_UP);
	assert_true(spill_super_has_all(&f->spill->file.super)); /* it went round, over lists too */
}

static void in_a_store_that_is_full_and_goes_round_what_was_deleted_is_not_found(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 2; seed++) {
		struct fixture *f = fixture_new(seed == 1 ? &with_threads : &with_sectors, 512 << 10, 96 << 10);

		assert_int_equal(fixture_open(f), 0);
		go_round(f, seed, 1000, false);
		fixture_free(f);
	}
}

static void where_segments_fail_and_are_set_aside_what_was_deleted_is_not_found(void **state)
{
	struct fixture *f = fixture_new(&with_threads, 768 << 10, 96 << 10);

	(void)state;
	assert_int_equal(fixture_open(f), 0);
	go_round(f, 7, 700, true);
	fixture_free(f);
}

static void a_namespace_dropped_stays_so_when_the_log_passes_it(void **state)
{
	struct spill_super super = {0};

	(void)state;
	for (uint64_t ns = 1; ns < SPILL_DROPS_MAX; ns++)
		assert_int_equal(spill_super_drop(&super, ns, ns), 0);
	assert_int_equal(spill_super_drop(&super, 500, 500), -ENOSPC);
	assert_int_equal(spill_super_pass(&super, 100), 0);
	assert_true(spill_super_dropped(&super, 7777, 99));
	assert_false(spill_super_dropped(&super, 7777, 100));
	assert_true(spill_super_dropped(&super, 120, 119));
	assert_false(spill_super_dropped(&super, 120, 120));
	assert_int_equal(super.n_drops, SPILL_DROPS_MAX - 100);
	assert_int_equal(spill_super_pass(&super, 50), 0); /* nothing that was left behind comes back */
	assert_true(spill_super_dropped(&super, 7777, 99));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH_UNITS(a_deleted_key_is_not_found_after_a_kill_right_after_the_answer),
		BOTH_UNITS(a_deleted_key_is_not_found_after_a_stop_in_order),
		BOTH_UNITS(what_is_written_after_its_deletion_is_found),
		BOTH_UNITS(of_a_key_that_nobody_knows_any_more_no_record_is_found),
		BOTH_UNITS(a_deletion_is_of_its_namespace_only),
		BOTH_UNITS(lists_of_any_number_and_length_are_read),
		BOTH_UNITS(where_nothing_was_ever_written_nothing_is_noted),
		BOTH_UNITS(a_store_that_is_down_says_that_it_cannot_note_it),
		BOTH_UNITS(a_damaged_list_is_said),
		cmocka_unit_test(in_a_store_that_is_full_and_goes_round_what_was_deleted_is_not_found),
		cmocka_unit_test(where_segments_fail_and_are_set_aside_what_was_deleted_is_not_found),
		cmocka_unit_test(a_namespace_dropped_stays_so_when_the_log_passes_it),
	};

	return cmocka_run_group_tests_name("spill deletions", tests, NULL, NULL);
}
