/* test_spill_set.c - several spill stores side by side: where records go, and what happens when one is not there */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/syscall.h>
#include <unistd.h>

#include "../../daemon/spill_set.h"
#include "spill_fixture.h"

#define MIB (1ull << 20)
#define STORES 3
#define SIZE 100000

/* The fixture's blocks, and the stores DIR/0, DIR/1, ... over them. */
struct stores {
	struct fixture *f;
	struct spill_set *set;
	struct spill_opts opts[STORES];
	char dirs[STORES][80];
	uint8_t *out[BLOCKS]; /* of each block: what is being written stays as it is */
	unsigned n;
	unsigned n_opened, n_arrived; /* calls for a store that came back */
	bool serving; /* as the daemon: of stores that come later what is known already is not wanted */
	char message[256];
};

static void *set_found(void *owner, const struct spill_record *record, spill_place place)
{
	struct stores *s = owner;
	struct block *b = &s->f->blocks[record->key.w[0] - 1];

	if (b->place && s->serving)
		return NULL;
	if (b->place)
		spill_set_forget(s->set, b->place);
	*b = (struct block){.k = (unsigned)record->key.w[0] - 1, .bytes = record->bytes, .place = place};
	s->f->n_found++;
	return b;
}

static void set_gone(void *owner, void *cookie)
{
	struct stores *s = owner;
	struct block *b = cookie;

	b->place = 0;
	s->f->n_gone++;
}

static int stores_open(struct stores *s)
{
	int r;

	for (unsigned k = 0; k < BLOCKS; k++)
		s->f->blocks[k] = (struct block){.k = k};
	s->f->n_found = s->f->n_gone = 0;
	s->serving = false;
	r = spill_set_open(&s->set, s->opts, s->n, s->message);
	s->serving = true;
	return r;
}

static void stores_close(struct stores *s)
{
	spill_set_close(s->set);
	s->set = NULL;
}

static struct spill_stats store_stats(struct stores *s, unsigned i)
{
	struct spill_stats stats;

	spill_set_store_stats(s->set, i, &stats);
	return stats;
}

static struct spill_stats set_stats(struct stores *s)
{
	struct spill_stats stats;

	spill_set_stats(s->set, &stats);
	return stats;
}

static int setup(void **state)
{
	struct stores *s = calloc(1, sizeof(*s));

	s->f = fixture_new(&with_uring, 64 * MIB, MIB);
	s->n = STORES;
	for (unsigned i = 0; i < STORES; i++) {
		snprintf(s->dirs[i], sizeof(s->dirs[i]), "%s/%u", s->f->dir, i);
		mkdir(s->dirs[i], 0700);
		s->opts[i] = s->f->opts;
		s->opts[i].dir = s->dirs[i];
		s->opts[i].owner = s;
		s->opts[i].gone = set_gone;
		s->opts[i].found = set_found;
	}
	*state = s;
	return stores_open(s);
}

static int teardown(void **state)
{
	struct stores *s = *state;

	fault_disarm();
	stores_close(s);
	fixture_free(s->f);
	for (unsigned k = 0; k < BLOCKS; k++)
		free(s->out[k]);
	free(s);
	return 0;
}

/* Start writing block @k. */
static int begin(struct stores *s, unsigned k, uint64_t bytes)
{
	struct block *b = &s->f->blocks[k];
	struct spill_record record;

	b->bytes = bytes;
	b->place = 0;
	b->done = false;
	record = block_record(b);
	free(s->out[k]);
	s->out[k] = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	block_fill(b, s->out[k]);
	return spill_set_write(s->set, &record, s->out[k], b, block_done, b);
}

static void set_settle(struct stores *s)
{
	while (set_stats(s).in_flight)
		spill_set_wait(s->set, loop_now() + SPILL_SECOND);
}

static int set_put(struct stores *s, unsigned k, uint64_t bytes)
{
	int r;

	while ((r = begin(s, k, bytes)) == -EAGAIN)
		spill_set_wait(s->set, loop_now() + SPILL_SECOND);
	if (r < 0)
		return r;
	while (!s->f->blocks[k].done)
		spill_set_wait(s->set, loop_now() + SPILL_SECOND);
	return s->f->blocks[k].res;
}

static int set_get(struct stores *s, unsigned k)
{
	struct block *b = &s->f->blocks[k];
	struct spill_record record = block_record(b);
	int r;

	if (!b->place)
		return -ENOENT;
	b->done = false;
	r = spill_set_read(s->set, b->place, &record, s->f->in, block_done, b);
	if (r < 0)
		return r;
	while (!b->done)
		spill_set_wait(s->set, loop_now() + SPILL_SECOND);
	return b->res < 0 ? b->res : !block_is(b, s->f->in);
}

static int set_flush(struct stores *s)
{
	int res = 1;

	if (spill_set_flush(s->set, flush_done, &res) < 0)
		return -EAGAIN;
	while (res == 1)
		spill_set_wait(s->set, loop_now() + SPILL_SECOND);
	return res;
}

static unsigned store_of(const struct stores *s, unsigned k)
{
	return (unsigned)(s->f->blocks[k].place >> SPILL_PLACE_STORE_SHIFT);
}

static void tick_until(struct stores *s, unsigned i, enum spill_state state)
{
	for (unsigned n = 0; n < 600 && store_stats(s, i).state != state; n++) {
		spill_set_wait(s->set, loop_now() + SPILL_SECOND / 20);
		spill_set_tick(s->set);
	}
	assert_int_equal(store_stats(s, i).state, state);
}

static void move_away(struct stores *s, unsigned i, char away[100])
{
	snprintf(away, 100, "%s.away", s->dirs[i]);
	assert_int_equal(rename(s->dirs[i], away), 0);
}

static void a_record_goes_to_the_store_with_the_least_to_do(void **state)
{
	struct stores *s = *state;
	uint64_t queued[STORES];

	assert_int_equal(begin(s, 0, 1000000), 0);
	for (unsigned k = 1; k < 9; k++) /* what is under way is not looked at in between: it all counts as queued */
		assert_int_equal(begin(s, k, SIZE), 0);
	for (unsigned i = 0; i < STORES; i++)
		queued[i] = store_stats(s, i).queued_bytes;
	assert_int_equal(queued[0], 1000000);
	assert_int_equal(queued[1], 4 * SIZE);
	assert_int_equal(queued[2], 4 * SIZE);
	set_settle(s);
	for (unsigned k = 0; k < 9; k++)
		assert_int_equal(set_get(s, k), 0);
	assert_int_equal(set_stats(s).live_records, 9);
}

static void with_nothing_to_do_the_store_with_the_most_room_gets_it(void **state)
{
	struct stores *s = *state;

	stores_close(s);
	s->opts[1].capacity = 32 * MIB;
	s->opts[2].capacity = 16 * MIB;
	assert_int_equal(stores_open(s), 0);
	for (unsigned k = 0; k < 112; k++)
		assert_int_equal(set_put(s, k, SIZE), 0);
	assert_in_range(store_stats(s, 0).live_records, 60, 68);
	assert_in_range(store_stats(s, 1).live_records, 29, 36);
	assert_in_range(store_stats(s, 2).live_records, 13, 19);
}

static void after_a_restart_each_store_is_found_by_what_is_in_it_whatever_its_place(void **state)
{
	struct stores *s = *state;
	struct spill_opts first = s->opts[0];

	for (unsigned k = 0; k < 60; k++)
		assert_int_equal(set_put(s, k, SIZE), 0);
	assert_int_equal(set_flush(s), 0);
	stores_close(s);
	s->opts[0] = s->opts[2];
	s->opts[2] = first;
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(s->f->n_found, 60);
	for (unsigned k = 0; k < 60; k++)
		assert_int_equal(set_get(s, k), 0);
	assert_non_null(strstr(s->message, "3 of 3 stores serve"));
}

static void a_store_missing_at_the_start_is_said_and_the_others_serve_until_it_is_back(void **state)
{
	struct stores *s = *state;
	unsigned lost = 0;
	struct log_catch log;
	char away[100];

	for (unsigned k = 0; k < 60; k++)
		assert_int_equal(set_put(s, k, SIZE), 0);
	for (unsigned k = 0; k < 60; k++)
		lost += store_of(s, k) == 1;
	assert_true(lost > 0);
	stores_close(s);
	move_away(s, 1, away);
	log = log_catch();
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(log_lines(&log, "/1 is missing, and the others serve without it"), 1);
	assert_int_equal(s->f->n_found, 60 - lost);
	assert_int_equal(store_stats(s, 1).state, SPILL_DOWN);
	assert_int_equal(store_stats(s, 1).last_errno, ENOENT);
	assert_true(store_stats(s, 1).since > 0);
	assert_non_null(strstr(set_stats(s).message, s->dirs[1]));
	assert_int_equal(set_stats(s).state, SPILL_UP);
	for (unsigned k = 60; k < 80; k++)
		assert_int_equal(set_put(s, k, SIZE), 0);
	assert_int_equal(set_flush(s), 0);
	stores_close(s);
	assert_int_equal(rename(away, s->dirs[1]), 0);
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(s->f->n_found, 80);
	for (unsigned k = 0; k < 80; k++)
		assert_int_equal(set_get(s, k), 0);
}

static void set_opened(void *owner, unsigned number)
{
	struct stores *s = owner;

	s->n_opened += number == 1 && syscall(SYS_gettid) != getpid();
}

static bool set_arrived(void *owner, unsigned number)
{
	struct stores *s = owner;

	s->n_arrived += number == 1 && s->n_opened == 1 && !s->f->n_found;
	return s->n_arrived < 3;
}

static void nothing_is_told_of_a_store_that_comes_back_before_what_it_needs_is_made(void **state)
{
	struct stores *s = *state;
	char away[100];
	unsigned lost = 0;

	for (unsigned k = 0; k < 60; k++)
		assert_int_equal(set_put(s, k, SIZE), 0);
	assert_int_equal(set_flush(s), 0);
	for (unsigned k = 0; k < 60; k++)
		lost += store_of(s, k) == 1;
	stores_close(s);
	move_away(s, 1, away);
	s->opts[1].opened = set_opened;
	s->opts[1].arrived = set_arrived;
	assert_int_equal(stores_open(s), 0);
	s->f->n_found = 0;
	assert_int_equal(rename(away, s->dirs[1]), 0);
	tick_until(s, 1, SPILL_UP);
	assert_int_equal(s->n_opened, 1);
	assert_int_equal(s->n_arrived, 3);
	assert_int_equal(s->f->n_found, lost);
	for (unsigned k = 0; k < 60; k++)
		assert_int_equal(set_get(s, k), 0);
}

static void a_store_that_comes_back_joins_and_nothing_newer_is_overwritten(void **state)
{
	struct stores *s = *state;
	spill_place newer[60];
	struct log_catch log;
	unsigned lost = 0;
	char away[100];

	for (unsigned k = 0; k < 60; k++)
		assert_int_equal(set_put(s, k, SIZE), 0);
	assert_int_equal(set_flush(s), 0);
	stores_close(s);
	move_away(s, 1, away);
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(spill_set_missing(s->set), 1);
	for (unsigned k = 0; k < 60; k++)
		lost += !s->f->blocks[k].place;
	assert_true(lost > 10);
	for (unsigned k = 0, n = 0; k < 60 && n < lost / 2; k++) /* half of them are written again meanwhile */
		if (!s->f->blocks[k].place) {
			assert_int_equal(set_put(s, k, SIZE), 0);
			n++;
		}
	for (unsigned k = 0; k < 60; k++)
		newer[k] = s->f->blocks[k].place;
	log = log_catch();
	assert_int_equal(rename(away, s->dirs[1]), 0);
	tick_until(s, 1, SPILL_UP);
	assert_int_equal(log_lines(&log, "/1 is back: "), 1);
	assert_int_equal(spill_set_missing(s->set), 0);
	assert_int_equal(store_stats(s, 1).last_errno, 0);
	for (unsigned k = 0; k < 60; k++) {
		assert_true(!newer[k] || s->f->blocks[k].place == newer[k]);
		assert_int_equal(set_get(s, k), 0);
	}
	for (unsigned k = 60; k < 90; k++) /* and it takes its part of what comes */
		assert_int_equal(set_put(s, k, SIZE), 0);
	assert_true(store_stats(s, 1).writes > 5);
	assert_int_equal(set_flush(s), 0);
	stores_close(s);
	assert_int_equal(stores_open(s), 0);
	for (unsigned k = 0; k < 90; k++)
		assert_int_equal(set_get(s, k), 0);
}

static void with_no_store_at_all_the_start_goes_on_and_they_join_when_they_come(void **state)
{
	struct stores *s = *state;
	char away[STORES][100];
	int res = 1;

	for (unsigned k = 0; k < 30; k++)
		assert_int_equal(set_put(s, k, SIZE), 0);
	assert_int_equal(set_flush(s), 0);
	for (s->n = STORES; s->n; s->n -= 2) { /* three of them, and one alone */
		unsigned there = 0;

		res = 1;
		stores_close(s);
		for (unsigned i = 0; i < s->n; i++)
			move_away(s, i, away[i]);
		assert_int_equal(stores_open(s), 0);
		assert_int_equal(set_stats(s).state, SPILL_DOWN);
		assert_non_null(strstr(set_stats(s).message, "make the directory"));
		assert_non_null(strstr(set_stats(s).message, "looked for every other second"));
		assert_int_equal(begin(s, 40, SIZE), -ENODEV);
		assert_int_equal(spill_set_flush(s->set, flush_done, &res), -ENODEV);
		assert_int_equal(spill_set_drop(s->set, 0, flush_done, &res), -ENODEV);
		for (unsigned i = 0; i < s->n; i++)
			assert_int_equal(rename(away[i], s->dirs[i]), 0);
		for (unsigned i = 0; i < s->n; i++)
			tick_until(s, i, SPILL_UP);
		for (unsigned k = 0; k < 30; k++) {
			there += s->f->blocks[k].place != 0;
			assert_true(!s->f->blocks[k].place || set_get(s, k) == 0);
		}
		assert_int_equal(there, s->n * 10);
		assert_int_equal(set_put(s, 40, SIZE), 0);
		spill_set_forget(s->set, s->f->blocks[40].place);
		assert_int_equal(spill_set_drop(s->set, 7777, flush_done, &res), 0);
		while (res > 0)
			spill_set_wait(s->set, loop_now() + SPILL_SECOND);
		if (s->n == 1)
			break;
	}
}

static void a_store_that_can_never_be_is_a_reason_not_to_start(void **state)
{
	struct stores *s = *state;

	stores_close(s);
	for (unsigned i = 0; i < STORES; i++)
		s->opts[i].capacity = 4096;
	assert_int_equal(stores_open(s), -EINVAL);
	assert_null(s->set);
	assert_non_null(strstr(s->message, "too small"));
}

static void where_a_store_was_on_another_device_none_is_made_anew(void **state)
{
	struct stores *s = *state;
	char path[120];
	int fd;

	stores_close(s);
	snprintf(path, sizeof(path), "%s/" SPILL_STORE_NAME, s->dirs[1]);
	s->opts[1].device = spill_device(s->dirs[1]);
	assert_int_not_equal(s->opts[1].device, 0);
	assert_int_equal(unlink(path), 0); /* an operator took it away: the device is the same */
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(access(path, F_OK), 0);
	stores_close(s);
	s->opts[1].device ^= 1;
	assert_int_equal(stores_open(s), 0); /* another device, but a store is on it */
	assert_int_equal(store_stats(s, 1).state, SPILL_UP);
	stores_close(s);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(stores_open(s), 0); /* an empty mount point */
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(store_stats(s, 1).last_errno, ENODEV);
	assert_non_null(strstr(store_stats(s, 1).message, "is its file system not mounted?"));
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600); /* as the message says */
	assert_true(fd >= 0);
	close(fd);
	tick_until(s, 1, SPILL_UP);
}

static void a_store_another_daemon_has_is_left_out(void **state)
{
	struct stores *s = *state;
	struct spill *other;
	struct spill_opts opts = s->f->opts;

	stores_close(s);
	opts.dir = s->dirs[1];
	assert_int_equal(spill_open(&other, &opts, s->message), 0);
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(store_stats(s, 1).last_errno, EBUSY);
	assert_non_null(strstr(store_stats(s, 1).message, "in use by process"));
	assert_int_equal(set_put(s, 0, SIZE), 0);
	stores_close(s);
	spill_close(other);
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(store_stats(s, 1).state, SPILL_UP);
}

static void copy_store(struct stores *s, unsigned from, unsigned to)
{
	char command[300];

	snprintf(command, sizeof(command), "rm -f %s/* && cp %s/" SPILL_STORE_NAME " %s/", s->dirs[to], s->dirs[from],
		s->dirs[to]);
	assert_int_equal(system(command), 0);
}

static void of_a_store_and_its_copy_the_copy_is_left_out_untouched(void **state)
{
	struct stores *s = *state;
	struct spill_opts first;

	for (unsigned k = 0; k < 30; k++)
		assert_int_equal(set_put(s, k, SIZE), 0);
	stores_close(s);
	copy_store(s, 0, 1);
	for (unsigned turn = 0; turn < 4; turn++) { /* in either order, and a refusal leaves no trace */
		unsigned copy = turn % 2 ? 0 : 1;

		assert_int_equal(stores_open(s), 0);
		assert_int_equal(store_stats(s, copy).last_errno, EEXIST);
		assert_non_null(strstr(store_stats(s, copy).message, "a copy of the store in "));
		assert_int_equal(store_stats(s, !copy).state, SPILL_UP);
		assert_int_equal(s->f->n_found, 20);
		stores_close(s);
		first = s->opts[0];
		s->opts[0] = s->opts[1];
		s->opts[1] = first;
	}
}

static void a_copy_alone_is_taken_as_it_is_and_said(void **state)
{
	struct stores *s = *state;

	for (unsigned k = 0; k < 30; k++)
		assert_int_equal(set_put(s, k, SIZE), 0);
	stores_close(s);
	copy_store(s, 0, 1);
	s->opts[0] = s->opts[1];
	s->n = 1;
	assert_int_equal(stores_open(s), 0);
	assert_non_null(strstr(s->message, "a copy, or moved here from elsewhere"));
	assert_int_equal(s->f->n_found, 10);
	for (unsigned k = 0; k < 30; k++)
		assert_int_equal(set_get(s, k), s->f->blocks[k].place ? 0 : -ENOENT);
	stores_close(s);
	assert_int_equal(stores_open(s), 0); /* from now on it is itself */
	assert_null(strstr(s->message, "a copy"));
}

static void one_file_by_two_paths_is_served_once(void **state)
{
	struct stores *s = *state;
	char command[300];
	unsigned out;

	stores_close(s);
	snprintf(command, sizeof(command), "rm -rf %s && ln -s %s %s", s->dirs[1], s->dirs[0], s->dirs[1]);
	assert_int_equal(system(command), 0);
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(store_stats(s, 0).state, SPILL_UP);
	assert_int_equal(store_stats(s, 1).last_errno, EEXIST);
	assert_non_null(strstr(store_stats(s, 1).message, "the file itself of the store in "));
	assert_int_equal(set_put(s, 0, SIZE), 0);
	stores_close(s);
	snprintf(command, sizeof(command), "rm %s/" SPILL_STORE_NAME, s->dirs[0]);
	assert_int_equal(system(command), 0);
	assert_int_equal(stores_open(s), 0); /* there is no file yet to tell it by */
	out = store_stats(s, 0).state == SPILL_UP;
	assert_int_equal(store_stats(s, !out).state, SPILL_UP);
	assert_int_equal(store_stats(s, out).last_errno, EBUSY);
	assert_non_null(strstr(store_stats(s, out).message, "two --spill lead to one directory"));
	assert_int_equal(set_put(s, 1, SIZE), 0);
}

/* The descriptor by which store @i works. */
static int store_fd(const struct stores *s, unsigned i)
{
	struct stat ours, st;
	char path[120];

	snprintf(path, sizeof(path), "%s/" SPILL_STORE_NAME, s->opts[i].dir);
	assert_int_equal(stat(path, &ours), 0);
	for (int fd = 3; fd < 1000; fd++)
		if (fstat(fd, &st) == 0 && st.st_ino == ours.st_ino && st.st_dev == ours.st_dev)
			return fd;
	fail();
	return -1;
}

static void a_store_that_hangs_is_passed_over_and_comes_back_by_itself(void **state)
{
	struct stores *s = *state;
	char fault[40];
	unsigned hung;

	for (unsigned k = 0; k < 30; k++)
		assert_int_equal(set_put(s, k, SIZE), 0);
	set_settle(s);
	usleep(100000); /* the stores' own operations too */
	spill_set_reap(s->set);
	hung = store_of(s, 29);
	snprintf(fault, sizeof(fault), "io.hang.fd=%d", store_fd(s, hung));
	fault_arm(fault);
	for (unsigned k = 30; k < 33; k++) /* one for each */
		assert_int_equal(begin(s, k, SIZE), 0);
	assert_true(store_stats(s, hung).queued_bytes > 0);
	usleep(600000);
	spill_set_reap(s->set);
	assert_int_equal(spill_set_stuck(s->set, NS_ID), 1);
	assert_int_equal(spill_set_stuck(s->set, NS_ID + 1), 0); /* it has the room it waits for */
	for (unsigned k = 33; k < 60; k++) { /* none waits */
		assert_int_equal(set_put(s, k, SIZE), 0);
		assert_int_not_equal(store_of(s, k), hung);
	}
	tick_until(s, hung, SPILL_DOWN);
	assert_int_equal(store_stats(s, hung).last_errno, ETIMEDOUT);
	assert_int_equal(set_stats(s).state, SPILL_UP);
	assert_non_null(strstr(set_stats(s).message, s->opts[hung].dir));
	for (unsigned k = 0; k < 60; k++)
		if (s->f->blocks[k].place) {
			assert_int_equal(spill_set_hung(s->set, s->f->blocks[k].place), store_of(s, k) == hung);
			if (store_of(s, k) != hung)
				assert_int_equal(set_get(s, k), 0);
		}
	assert_int_equal(set_flush(s), -ETIMEDOUT); /* of the others all is down; not of this one */
	fault_arm("io.hang.end=1");
	tick_until(s, hung, SPILL_UP);
	set_settle(s);
	assert_int_equal(spill_set_stuck(s->set, NS_ID), 0);
	fault_disarm();
	for (unsigned k = 0; k < 60; k++)
		assert_int_equal(set_get(s, k), 0);
}

static void a_store_that_fails_is_off_alone_and_named_with_errno_count_and_since_when(void **state)
{
	struct stores *s = *state;
	char away[100];
	struct log_catch log;

	for (unsigned k = 0; k < 30; k++)
		assert_int_equal(set_put(s, k, SIZE), 0);
	move_away(s, 2, away);
	tick_until(s, 2, SPILL_DOWN);
	assert_int_equal(store_stats(s, 2).last_errno, ENOENT);
	assert_int_equal(store_stats(s, 2).write_errors, 1);
	assert_in_range(store_stats(s, 2).since, time(NULL) - 100, time(NULL));
	assert_non_null(strstr(store_stats(s, 2).message, s->dirs[2]));
	for (unsigned k = 30; k < 50; k++) {
		assert_int_equal(set_put(s, k, SIZE), 0);
		assert_int_not_equal(store_of(s, k), 2);
	}
	assert_int_equal(rename(away, s->dirs[2]), 0);
	log = log_catch();
	tick_until(s, 2, SPILL_UP);
	assert_int_equal(log_lines(&log, "is up again\n"), 1); /* nothing more to say */
	fclose(log.lines);
	assert_int_equal(store_stats(s, 0).state, SPILL_UP);
	for (unsigned k = 0; k < 50; k++)
		assert_int_equal(set_get(s, k), 0);
}

static void a_full_store_is_passed_over_and_tried_again_by_a_write(void **state)
{
	struct stores *s = *state;
	char path[120];

	stores_close(s);
	snprintf(path, sizeof(path), "%s/" SPILL_STORE_NAME, s->dirs[1]);
	assert_int_equal(unlink(path), 0); /* the others have a segment each */
	fault_arm("io.allocate=-ENOSPC");
	assert_int_equal(stores_open(s), 0);
	for (unsigned n = 0; n < 3; n++) {
		for (unsigned k = 0; k < 6; k++) /* the others are asked after it */
			assert_int_equal(set_put(s, 6 * n + k, SIZE), 0);
		assert_int_equal(store_stats(s, 1).state, SPILL_FULL);
		assert_false(store_stats(s, 1).takes_writes);
		assert_int_equal(store_stats(s, 1).live_records, 0);
		assert_int_equal(set_stats(s).state, SPILL_UP);
		assert_true(set_stats(s).takes_writes);
		for (unsigned k = 0; k < 200 && !store_stats(s, 1).takes_writes; k++) {
			spill_set_wait(s->set, loop_now() + SPILL_SECOND / 20);
			spill_set_tick(s->set);
		}
		assert_int_equal(store_stats(s, 1).state, SPILL_FULL);
		assert_true(store_stats(s, 1).takes_writes);
	}
}

static void more_than_all_can_hold_goes_round_and_what_is_there_is_right(void **state)
{
	struct stores *s = *state;
	unsigned there = 0;

	stores_close(s);
	for (unsigned i = 0; i < STORES; i++)
		s->opts[i].capacity = 8 * MIB;
	assert_int_equal(stores_open(s), 0);
	for (unsigned k = 0; k < 600; k++) {
		int r;

		while ((r = begin(s, k, SIZE)) == -EAGAIN)
			spill_set_wait(s->set, loop_now() + SPILL_SECOND / 100);
		assert_int_equal(r, 0);
	}
	set_settle(s);
	for (unsigned k = 0; k < 600; k++)
		if (s->f->blocks[k].place) {
			assert_int_equal(set_get(s, k), 0);
			there++;
		}
	assert_int_equal(there + s->f->n_gone, 600);
	assert_int_equal(set_stats(s).live_records, there);
	assert_in_range(there, 120, 240);
}

static void a_drop_is_for_all_stores_or_for_none(void **state)
{
	struct stores *s = *state;
	char away[100];
	int res = 1;

	for (unsigned k = 0; k < 30; k++)
		assert_int_equal(set_put(s, k, SIZE), 0);
	assert_int_equal(set_flush(s), 0);
	stores_close(s);
	move_away(s, 1, away);
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(
		spill_set_drop(s->set, NS_ID, flush_done, &res), -ENODEV); /* it would come back with that one */
	stores_close(s);
	assert_int_equal(rename(away, s->dirs[1]), 0);
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(s->f->n_found, 30);
	assert_int_equal(spill_set_drop(s->set, NS_ID, flush_done, &res), 0);
	while (res == 1)
		spill_set_wait(s->set, loop_now() + SPILL_SECOND);
	assert_int_equal(res, 0);
	stores_close(s);
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(s->f->n_found, 0);
}

/* As the daemon does: who is told of a write asks what became of it. */
static void asks_about_it(void *owner, int res, spill_place place)
{
	struct stores *s = owner;

	if (res < 0)
		return;
	assert_non_null(spill_set_packed(s->set, place));
	s->f->n_found++;
}

static struct spill_kill kill_of(unsigned k)
{
	struct block b = {.k = k};

	return (struct spill_kill){.ns_id = NS_ID, .key = block_record(&b).key};
}

static int set_kill(struct stores *s, unsigned k)
{
	struct spill_kill kill = kill_of(k);
	int r, res = 1;

	if (s->f->blocks[k].place)
		spill_set_forget(s->set, s->f->blocks[k].place);
	s->f->blocks[k].place = 0;
	do { /* one that took it may wait for another one */
		res = 1;
		r = spill_set_kill(s->set, &kill, 1, flush_done, &res);
		do
			spill_set_wait(s->set, loop_now() + SPILL_SECOND);
		while (r == 0 && res == 1);
	} while (r == -EAGAIN || (r == 0 && res == -EAGAIN));
	return r < 0 ? r : res;
}

/* One record of it in each store, of which only the last is known. */
static void given_a_key_in_every_store(struct stores *s, unsigned k)
{
	bool in[STORES] = {false};

	for (unsigned n = 0, other = 1000; n < STORES; other++) {
		assert_int_equal(set_put(s, k, SIZE), 0);
		n += !in[store_of(s, k)];
		in[store_of(s, k)] = true;
		assert_int_equal(set_put(s, other, SIZE), 0);
	}
}

static void a_deleted_key_is_found_in_no_store_and_what_is_written_anew_is(void **state)
{
	struct stores *s = *state;

	given_a_key_in_every_store(s, 1);
	given_a_key_in_every_store(s, 2);
	assert_int_equal(set_kill(s, 1), 0);
	assert_int_equal(set_kill(s, 2), 0);
	assert_int_equal(set_put(s, 2, SIZE), 0); /* whichever store it is in: the others' old ones are no rivals */
	stores_close(s);
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(s->f->blocks[1].place, 0);
	assert_int_equal(set_get(s, 2), 0);
}

static void a_deletion_is_refused_as_long_as_a_store_is_missing_and_holds_in_one_that_joins(void **state)
{
	struct stores *s = *state;
	char away[100];

	given_a_key_in_every_store(s, 1);
	given_a_key_in_every_store(s, 2);
	assert_int_equal(set_kill(s, 1), 0);
	stores_close(s);
	move_away(s, 1, away);
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(set_kill(s, 2), -ENODEV);
	assert_int_equal(rename(away, s->dirs[1]), 0);
	tick_until(s, 1, SPILL_UP);
	assert_int_equal(s->f->blocks[1].place, 0); /* its list came with it */
	assert_int_equal(set_get(s, 2), 0);
	assert_int_equal(store_of(s, 2), 1);
	assert_int_equal(set_kill(s, 2), 0);
	stores_close(s);
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(s->f->blocks[1].place, 0);
	assert_int_equal(s->f->blocks[2].place, 0);
}

static void what_ends_while_the_stores_are_closed_is_told_with_all_there_is_to_know(void **state)
{
	struct stores *s = *state;

	s->f->n_found = 0;
	for (unsigned k = 0; k < 12; k++) {
		struct block *b = &s->f->blocks[k];
		struct spill_record record;

		b->bytes = SIZE;
		record = block_record(b);
		free(s->out[k]);
		s->out[k] = aligned_alloc(4096, (SIZE + 4095) / 4096 * 4096);
		block_fill(b, s->out[k]);
		assert_int_equal(spill_set_write(s->set, &record, s->out[k], b, asks_about_it, s), 0);
	}
	stores_close(s);
	assert_int_equal(s->f->n_found, 12);
}

static void one_store_alone_has_places_as_it_always_had(void **state)
{
	struct stores *s = *state;

	stores_close(s);
	s->n = 1;
	assert_int_equal(stores_open(s), 0);
	assert_int_equal(set_put(s, 0, SIZE), 0);
	assert_int_equal(set_flush(s), 0);
	assert_int_equal(set_get(s, 0), 0);
	assert_int_equal(store_of(s, 0), 0);
	assert_null(strstr(s->message, "stores serve"));
	assert_non_null(strstr(s->message, "disk I/O by"));
}

#define SET(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SET(a_record_goes_to_the_store_with_the_least_to_do),
		SET(with_nothing_to_do_the_store_with_the_most_room_gets_it),
		SET(after_a_restart_each_store_is_found_by_what_is_in_it_whatever_its_place),
		SET(a_store_missing_at_the_start_is_said_and_the_others_serve_until_it_is_back),
		SET(nothing_is_told_of_a_store_that_comes_back_before_what_it_needs_is_made),
		SET(a_store_that_comes_back_joins_and_nothing_newer_is_overwritten),
		SET(with_no_store_at_all_the_start_goes_on_and_they_join_when_they_come),
		SET(a_store_that_can_never_be_is_a_reason_not_to_start),
		SET(where_a_store_was_on_another_device_none_is_made_anew),
		SET(a_store_another_daemon_has_is_left_out),
		SET(of_a_store_and_its_copy_the_copy_is_left_out_untouched),
		SET(a_copy_alone_is_taken_as_it_is_and_said),
		SET(one_file_by_two_paths_is_served_once),
		SET(a_store_that_hangs_is_passed_over_and_comes_back_by_itself),
		SET(a_store_that_fails_is_off_alone_and_named_with_errno_count_and_since_when),
		SET(a_full_store_is_passed_over_and_tried_again_by_a_write),
		SET(more_than_all_can_hold_goes_round_and_what_is_there_is_right),
		SET(a_drop_is_for_all_stores_or_for_none),
		SET(a_deleted_key_is_found_in_no_store_and_what_is_written_anew_is),
		SET(a_deletion_is_refused_as_long_as_a_store_is_missing_and_holds_in_one_that_joins),
		SET(what_ends_while_the_stores_are_closed_is_told_with_all_there_is_to_know),
		SET(one_store_alone_has_places_as_it_always_had),
	};

	return cmocka_run_group_tests_name("spill set", tests, NULL, NULL);
}
