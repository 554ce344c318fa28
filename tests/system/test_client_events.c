/*
 * test_client_events.c - what a router hears of a namespace: every block that comes and goes, or that it missed some
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trial.h"

#define ROOM 256u

static int setup(void **state)
{
	if (trial_setup(state, "4M", "64M") < 0)
		return -1;
	trial_attach(*state);
	return 0;
}

static void put(struct trial *t, uint64_t k, const struct kvp_key *parent)
{
	struct kvp_key key = wire_key(k);

	assert_int_equal(trial_put(t->ns, &key, parent, k, TRIAL_BLOCK), KVP_PUB_STORED);
}

static int64_t read_events(struct trial *t, uint64_t *from, struct kvp_event events[ROOM], unsigned ms)
{
	return kvp_events(t->ns, from, events, ROOM, ms ? kvp_deadline_ms(ms) : 0);
}

/* Begin to listen. */
static void listen_now(struct trial *t, uint64_t *from)
{
	struct kvp_event events[ROOM];

	*from = 0;
	assert_int_equal(read_events(t, from, events, 10000), 1);
	assert_int_equal(events[0].kind, KVP_EVENT_GAP);
}

static bool same_key(const struct kvp_key *a, uint64_t k)
{
	struct kvp_key key = wire_key(k);

	return !memcmp(a, &key, sizeof(key));
}

static void what_is_stored_and_removed_is_told_in_order_without_gaps(void **state)
{
	struct trial *t = *state;
	struct kvp_event events[ROOM];
	struct kvp_key first = wire_key(1), second = wire_key(2), none = {{0, 0}};
	uint64_t from;

	put(t, 0, NULL); /* nobody listens */
	listen_now(t, &from);
	put(t, 1, NULL);
	put(t, 2, &first);
	assert_int_equal(kvp_delete(t->ns, &second, 1, kvp_deadline_ms(10000)), 1);
	assert_int_equal(read_events(t, &from, events, 10000), 3);
	for (unsigned i = 1; i < 3; i++)
		assert_int_equal(events[i].seq, events[0].seq + i);
	assert_int_equal(events[0].kind, KVP_EVENT_STORED);
	assert_true(same_key(&events[0].key, 1) && !memcmp(&events[0].parent, &none, sizeof(none)));
	assert_int_equal(events[0].tier, KVP_HIT_RAM);
	assert_int_equal(events[0].used_tokens, TRIAL_TOKENS);
	assert_int_equal(events[1].kind, KVP_EVENT_STORED);
	assert_true(same_key(&events[1].key, 2) && same_key(&events[1].parent, 1));
	assert_int_equal(events[2].kind, KVP_EVENT_REMOVED);
	assert_true(same_key(&events[2].key, 2));
	assert_int_equal(read_events(t, &from, events, 0), 0);
	assert_int_equal(from, events[2].seq + 1);
}

static void a_block_that_moves_to_the_store_and_back_is_told_by_tier(void **state)
{
	struct trial *t = *state;
	struct kvp_event events[ROOM];
	struct kvp_key key = wire_key(1);
	uint64_t from;

	listen_now(t, &from);
	put(t, 1, NULL);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict", "1"), 0);
	assert_int_equal(trial_get(t->ns, &key, 1, TRIAL_BLOCK), 1);
	assert_int_equal(read_events(t, &from, events, 10000), 4);
	assert_int_equal(events[0].kind, KVP_EVENT_STORED);
	assert_int_equal(events[0].tier, KVP_HIT_RAM);
	assert_int_equal(events[1].kind, KVP_EVENT_STORED);
	assert_int_equal(events[1].tier, KVP_HIT_SPILL);
	assert_int_equal(events[2].kind, KVP_EVENT_REMOVED);
	assert_int_equal(events[2].tier, KVP_HIT_RAM);
	assert_int_equal(events[3].kind, KVP_EVENT_STORED);
	assert_int_equal(events[3].tier, KVP_HIT_RAM);
}

/* A reader that does what events say knows what is there. @known: by key number. */
static void apply(const struct kvp_event *event, uint8_t *known, unsigned n)
{
	uint8_t bit = event->tier == KVP_HIT_RAM ? 1 : 2;

	if (event->kind == KVP_EVENT_CLEARED)
		memset(known, 0, n);
	for (unsigned k = 0; k < n; k++)
		if (same_key(&event->key, k))
			known[k] = event->kind == KVP_EVENT_STORED ? known[k] | bit : known[k] & (uint8_t)~bit;
}

static void whoever_follows_the_events_knows_what_is_there(void **state)
{
	struct trial *t = *state;
	struct kvp_event events[ROOM];
	uint8_t known[150] = {0}, states[150];
	struct kvp_key keys[150];
	struct kvp_view views[2];
	struct kvp_match_part part = {.ns = t->ns, .keys = keys};
	uint64_t from;
	int64_t n;

	listen_now(t, &from);
	for (unsigned k = 0; k < 150; k++) { /* more than twice what the pool holds: evictions by themselves */
		keys[k] = wire_key(k);
		put(t, k, k % 5 ? &keys[k - 1] : NULL);
		if (k == 59) { /* two of them in use */
			assert_int_equal(kvp_acquire(t->ns, &keys[55], 2, 0, 0, views), 2);
			assert_int_equal(kvp_clear(t->ns, kvp_deadline_ms(4000)), 2);
			kvp_release(views, 2);
		}
		if (k % 15 == 4) /* the middle of a chain, and what hangs below it */
			kvp_delete(t->ns, &keys[k - 2], 1, kvp_deadline_ms(10000));
	}
	wire_sleep_ms(300); /* writes under way end */
	while ((n = read_events(t, &from, events, 100)) > 0)
		for (int64_t i = 0; i < n; i++) {
			assert_int_not_equal(events[i].kind, KVP_EVENT_GAP);
			apply(&events[i], known, 150);
		}
	assert_true(kvp_match(&part, 1, 150, KVP_MATCH_ALL, states) >= 0);
	for (unsigned k = 0; k < 150; k++) {
		assert_int_equal(known[k] != 0, states[k] != KVP_MISS);
		assert_int_equal(known[k] & 1, states[k] == KVP_HIT_RAM);
	}
}

static void a_slow_reader_is_told_that_it_missed_some(void **state)
{
	struct trial *t = *state;
	struct kvp_event events[ROOM];
	struct kvp_key key = wire_key(1);
	uint64_t from, next = 0;
	unsigned n_gaps = 0, n_events = 0;
	int64_t n;

	listen_now(t, &from);
	for (unsigned i = 0; i < KVP_RING_EVENTS * 3 / 4; i++) { /* two events each */
		put(t, 1, NULL);
		assert_int_equal(kvp_delete(t->ns, &key, 1, kvp_deadline_ms(10000)), 1);
	}
	while ((n = read_events(t, &from, events, 0)) > 0)
		for (int64_t i = 0; i < n; i++) {
			if (events[i].kind == KVP_EVENT_GAP) {
				n_gaps++;
			} else {
				assert_true(!next || events[i].seq == next);
				next = events[i].seq + 1;
				n_events++;
			}
		}
	assert_int_equal(n_gaps, 1);
	assert_in_range(n_events, KVP_RING_EVENTS / 2, KVP_RING_EVENTS);
	assert_true(same_key(&events[0].key, 1));
}

static void another_daemon_is_a_gap_and_goes_on(void **state)
{
	struct trial *t = *state;
	struct kvp_event events[ROOM];
	uint64_t from, last;

	listen_now(t, &from);
	put(t, 1, NULL);
	assert_int_equal(read_events(t, &from, events, 10000), 1);
	last = events[0].seq;
	host_kill(&t->host);
	assert_int_equal(read_events(t, &from, events, 50), 0); /* none there: none come */
	trial_start(t);
	assert_int_equal(read_events(t, &from, events, 20000), 1);
	assert_int_equal(events[0].kind, KVP_EVENT_GAP);
	assert_true(events[0].seq > last);
	put(t, 2, NULL);
	assert_int_equal(read_events(t, &from, events, 10000), 1);
	assert_true(same_key(&events[0].key, 2));
}

/* The wall clock of the next daemon is a day behind: numbers do not begin below those that were told. */
static void numbers_grow_though_the_wall_clock_went_back(void **state)
{
	struct trial *t = *state;
	const int64_t day_before = -86400;
	const char *build = getenv("BUILD");
	struct kvp_event events[ROOM];
	char shim[512], file[160];
	uint64_t from, last;
	int fd;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	skip(); /* nothing is preloaded before its runtime */
#endif
	snprintf(shim, sizeof(shim), "%s/test/wallclock.so", build ? build : "build");
	assert_int_equal(access(shim, R_OK), 0); /* else it would go by the true clock, and say nothing */
	snprintf(file, sizeof(file), "%s/wallclock", t->host.dir);
	fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	assert_int_equal(write(fd, &day_before, sizeof(day_before)), sizeof(day_before));
	close(fd);
	listen_now(t, &from);
	put(t, 1, NULL);
	assert_int_equal(read_events(t, &from, events, 10000), 1);
	last = events[0].seq;
	host_kill(&t->host);
	setenv("LD_PRELOAD", shim, 1);
	setenv("KVPOOL_WALLCLOCK", file, 1);
	trial_start(t);
	unsetenv("LD_PRELOAD");
	unsetenv("KVPOOL_WALLCLOCK");
	assert_int_equal(read_events(t, &from, events, 20000), 1);
	assert_int_equal(events[0].kind, KVP_EVENT_GAP);
	assert_true(events[0].seq > last);
	unlink(file);
}

static void nobody_writes_into_the_ring_and_no_stranger_reads_it(void **state)
{
	struct trial *t = *state;
	struct kvp_wire_batch ask = {0};
	struct kvp_wire_ring told;
	struct wire w;
	struct wire_ns ns;
	char path[64];
	int fds[4], rw;
	unsigned n_fds = 4;

	assert_int_equal(wire_open(&w, t->host.socket), 0);
	assert_int_equal(wire_join(&w, &ns, "other", TRIAL_BLOCK), 0);
	ask.ns_id = ns.id;
	assert_int_equal(wire_send(&w, KVP_MSG_EVENTS, 900, &ask, sizeof(ask), NULL, 0), 0);
	assert_int_equal(wire_receive(&w, 900, &told, sizeof(told), fds, &n_fds, WIRE_TIMEOUT_MS), sizeof(told));
	assert_int_equal(n_fds, 1);
	assert_ptr_equal(mmap(NULL, told.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0), MAP_FAILED);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fds[0]);
	rw = open(path, O_RDWR); /* our own uid's: it opens, and yet */
	if (rw >= 0) {
		assert_int_equal(write(rw, "x", 1), -1);
		assert_int_equal(ftruncate(rw, 0), -1);
		assert_ptr_equal(mmap(NULL, told.bytes, PROT_WRITE, MAP_SHARED, rw, 0), MAP_FAILED);
		close(rw);
	}
	close(fds[0]);
	ask.ns_id = ns.id + 1; /* not joined */
	assert_int_equal(wire_call(&w, KVP_MSG_EVENTS, &ask, sizeof(ask), &told, sizeof(told)), -KVP_ENOENT);
	wire_leave(&ns);
	wire_close(&w);
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, trial_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(what_is_stored_and_removed_is_told_in_order_without_gaps),
		WITH_DAEMON(a_block_that_moves_to_the_store_and_back_is_told_by_tier),
		WITH_DAEMON(whoever_follows_the_events_knows_what_is_there),
		WITH_DAEMON(a_slow_reader_is_told_that_it_missed_some),
		WITH_DAEMON(another_daemon_is_a_gap_and_goes_on),
		WITH_DAEMON(numbers_grow_though_the_wall_clock_went_back),
		WITH_DAEMON(nobody_writes_into_the_ring_and_no_stranger_reads_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
