/* test_loop.c - the serving loop, each test with both engines */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "../../daemon/loop.h"
#include "refuse.h"

static bool with_uring = true, with_epoll = false;

struct watch {
	struct loop_source source;
	struct fixture *f;
	unsigned told;
	uint32_t events; /* all that was told */
	unsigned stop_after; /* 0: never */
	bool drain; /* read what is there */
	struct watch *kill; /* delete this one when told */
};

struct ticker {
	struct loop_timer timer;
	struct fixture *f;
	unsigned rung;
	unsigned order;
	uint64_t at_ns;
	uint64_t again_ns; /* 0: once */
};

struct fixture {
	struct loop *loop;
	bool uring;
	struct ticker guard; /* no test hangs */
	bool timed_out;
	unsigned rung;
	unsigned left; /* sources that are still to be told before the loop stops; 0: it runs until its guard rings */
	char message[256];
};

static void guard_ring(struct loop_timer *timer)
{
	struct fixture *f = timer->owner;

	f->timed_out = true;
	loop_stop(f->loop);
}

static int setup(void **state)
{
	bool uring = *(bool *)*state;
	struct fixture *f = calloc(1, sizeof(*f));

	f->uring = uring;
	if (loop_open(&f->loop, uring, f->message) < 0)
		return -1;
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	loop_close(f->loop);
	free(f);
	return 0;
}

/* Serve for @ms at most. */
static void run(struct fixture *f, unsigned ms)
{
	f->guard.timer = (struct loop_timer){.ring = guard_ring, .owner = f};
	f->timed_out = false;
	loop_timer_set(f->loop, &f->guard.timer, loop_now() + ms * 1000000ull);
	assert_int_equal(loop_run(f->loop), 0);
	loop_timer_cancel(f->loop, &f->guard.timer);
}

static void watch_ready(struct loop_source *source, uint32_t events)
{
	struct watch *w = source->owner;
	uint64_t value;

	if (!w->told++ && w->f->left && !--w->f->left)
		loop_stop(w->f->loop);
	w->events |= events;
	if (w->drain)
		while (read(source->fd, &value, sizeof(value)) > 0)
			;
	if (w->kill)
		loop_del(w->f->loop, &w->kill->source);
	if (w->stop_after && w->told >= w->stop_after)
		loop_stop(w->f->loop);
}

static struct watch watch_of(struct fixture *f, int fd, uint32_t events)
{
	return (struct watch){.source = {.fd = fd, .events = events, .ready = watch_ready}, .f = f};
}

static void watch_add(struct watch *w)
{
	w->source.owner = w;
	assert_int_equal(loop_add(w->f->loop, &w->source), 0);
}

static int event_fd(unsigned value)
{
	int fd = eventfd(value, EFD_CLOEXEC | EFD_NONBLOCK);

	assert_true(fd >= 0);
	return fd;
}

static void the_engine_asked_for_serves_and_the_message_names_it(void **state)
{
	struct fixture *f = *state;

	assert_non_null(strstr(f->message, f->uring ? "by io_uring" : "by epoll"));
}

static void what_is_left_unread_is_told_again(void **state)
{
	struct fixture *f = *state;
	struct watch w = watch_of(f, event_fd(1), LOOP_IN);

	w.stop_after = 5;
	watch_add(&w);
	run(f, 2000);
	assert_false(f->timed_out);
	assert_int_equal(w.told, 5);
	assert_int_equal(w.events, LOOP_IN);
	loop_del(f->loop, &w.source);
	close(w.source.fd);
}

static void what_was_read_is_not_told_again(void **state)
{
	struct fixture *f = *state;
	struct watch w = watch_of(f, event_fd(1), LOOP_IN);

	w.drain = true;
	watch_add(&w);
	run(f, 30);
	assert_true(f->timed_out);
	assert_int_equal(w.told, 1);
	loop_del(f->loop, &w.source);
	close(w.source.fd);
}

static void a_source_deleted_by_another_in_the_same_turn_is_not_told(void **state)
{
	struct fixture *f = *state;
	struct watch a = watch_of(f, event_fd(1), LOOP_IN), b = watch_of(f, event_fd(1), LOOP_IN);

	a.kill = &b;
	b.kill = &a;
	watch_add(&a);
	watch_add(&b);
	a.drain = b.drain = true;
	run(f, 30);
	assert_int_equal(a.told + b.told, 1);
	loop_del(f->loop, &a.source);
	loop_del(f->loop, &b.source);
	close(a.source.fd);
	close(b.source.fd);
}

static void a_source_that_deletes_itself_is_told_once(void **state)
{
	struct fixture *f = *state;
	struct watch w = watch_of(f, event_fd(1), LOOP_IN);

	w.kill = &w;
	watch_add(&w);
	run(f, 30);
	assert_int_equal(w.told, 1);
	close(w.source.fd);
}

static void a_new_source_on_an_old_descriptor_number_hears_only_its_own(void **state)
{
	struct fixture *f = *state;
	struct watch old = watch_of(f, event_fd(0), LOOP_IN), fresh;
	int fd = old.source.fd;

	watch_add(&old);
	run(f, 5); /* its watch is in the kernel now */
	assert_int_equal(write(fd, &(uint64_t){1}, 8), 8);
	loop_del(f->loop, &old.source);
	close(fd);
	fresh = watch_of(f, event_fd(0), LOOP_IN);
	assert_int_equal(fresh.source.fd, fd);
	watch_add(&fresh);
	run(f, 30);
	assert_int_equal(old.told, 0);
	assert_int_equal(fresh.told, 0);
	assert_int_equal(write(fd, &(uint64_t){1}, 8), 8);
	fresh.stop_after = 1;
	run(f, 2000);
	assert_int_equal(fresh.told, 1);
	loop_del(f->loop, &fresh.source);
	close(fd);
}

static void events_can_be_changed_and_the_old_ones_are_not_told(void **state)
{
	struct fixture *f = *state;
	struct watch w;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	w = watch_of(f, pair[0], LOOP_OUT);
	w.stop_after = 1;
	watch_add(&w);
	run(f, 2000);
	assert_int_equal(w.events, LOOP_OUT);
	w.told = w.events = 0;
	w.stop_after = 0;
	assert_int_equal(loop_set_events(f->loop, &w.source, LOOP_IN), 0);
	run(f, 30);
	assert_int_equal(w.told, 0);
	assert_int_equal(write(pair[1], "x", 1), 1);
	w.stop_after = 1;
	assert_int_equal(loop_set_events(f->loop, &w.source, LOOP_IN | LOOP_OUT), 0);
	run(f, 2000);
	assert_int_equal(w.events, LOOP_IN | LOOP_OUT);
	loop_del(f->loop, &w.source);
	close(pair[0]);
	close(pair[1]);
}

static void a_hang_up_is_told_without_being_asked_for(void **state)
{
	struct fixture *f = *state;
	struct watch w;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	w = watch_of(f, pair[0], 0);
	w.stop_after = 1;
	watch_add(&w);
	run(f, 20);
	assert_int_equal(w.told, 0);
	close(pair[1]);
	run(f, 2000);
	assert_int_equal(w.events, LOOP_HUP);
	loop_del(f->loop, &w.source);
	close(pair[0]);
}

static void the_peer_sees_the_close_that_follows_a_del_at_once(void **state)
{
	struct fixture *f = *state;
	struct watch w;
	int pair[2];
	char c;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	w = watch_of(f, pair[0], LOOP_IN);
	watch_add(&w);
	run(f, 5);
	loop_del(f->loop, &w.source);
	close(pair[0]);
	assert_int_equal(recv(pair[1], &c, 1, MSG_DONTWAIT), 0);
	close(pair[1]);
}

static void more_sources_than_the_ring_has_entries_are_all_told(void **state)
{
	enum { N = 6000 };
	struct rlimit limit = {N + 100, N + 100};
	struct fixture *f = *state;
	struct watch *w = calloc(N, sizeof(*w));
	unsigned told = 0;

	setrlimit(RLIMIT_NOFILE, &limit);
	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur < N + 100) {
		print_message("skipped: no %d descriptors for this user\n", N + 100);
		free(w);
		skip();
	}
	for (unsigned i = 0; i < N; i++) {
		w[i] = watch_of(f, event_fd(1), LOOP_IN);
		w[i].drain = true;
		watch_add(&w[i]);
	}
	f->left = N;
	run(f, 60000);
	assert_int_equal(f->left, 0);
	run(f, 30); /* nor is any told twice */
	for (unsigned i = 0; i < N; i++)
		told += w[i].told == 1;
	assert_int_equal(told, N);
	for (unsigned i = 0; i < N; i++) {
		loop_del(f->loop, &w[i].source);
		close(w[i].source.fd);
	}
	free(w);
}

static void ticker_ring(struct loop_timer *timer)
{
	struct ticker *t = timer->owner;

	t->rung++;
	t->at_ns = loop_now();
	t->order = ++t->f->rung;
	if (t->again_ns)
		loop_timer_set(t->f->loop, timer, t->again_ns == 1 ? 0 : loop_now() + t->again_ns);
}

static void timers_ring_in_order_once_and_never_early(void **state)
{
	enum { N = 200 };
	struct fixture *f = *state;
	struct ticker t[N] = {0};
	uint64_t start = loop_now();

	for (unsigned i = 0; i < N; i++) {
		t[i].f = f;
		t[i].timer = (struct loop_timer){.ring = ticker_ring, .owner = &t[i]};
		loop_timer_set(f->loop, &t[i].timer, start + (1 + i * 37 % N) * 200000ull);
	}
	for (unsigned i = 0; i < N; i += 3)
		loop_timer_cancel(f->loop, &t[i].timer);
	for (unsigned i = 1; i < N; i += 3) /* moving one is setting it */
		loop_timer_set(f->loop, &t[i].timer, start + (1 + i * 91 % N) * 200000ull);
	run(f, 80);
	for (unsigned i = 0; i < N; i++) {
		assert_int_equal(t[i].rung, i % 3 != 0);
		assert_int_equal(t[i].timer.heap_index, 0);
		if (i % 3 == 0)
			continue;
		assert_true(t[i].at_ns >= t[i].timer.deadline_ns);
		for (unsigned k = 0; k < N; k++)
			if (k % 3 && t[k].timer.deadline_ns < t[i].timer.deadline_ns)
				assert_true(t[k].order < t[i].order);
	}
}

static void a_timer_that_is_always_due_starves_nobody(void **state)
{
	struct fixture *f = *state;
	struct ticker t = {.f = f, .again_ns = 1};
	struct watch w = watch_of(f, event_fd(1), LOOP_IN);

	t.timer = (struct loop_timer){.ring = ticker_ring, .owner = &t};
	loop_timer_set(f->loop, &t.timer, 0);
	w.stop_after = 100;
	watch_add(&w);
	run(f, 5000);
	assert_int_equal(w.told, 100);
	assert_true(t.rung >= 90);
	loop_timer_cancel(f->loop, &t.timer);
	loop_del(f->loop, &w.source);
	close(w.source.fd);
}

static void an_idle_loop_sleeps(void **state)
{
	struct fixture *f = *state;
	struct watch w = watch_of(f, event_fd(0), LOOP_IN);
	struct rusage before, after;
	uint64_t start = loop_now();

	watch_add(&w);
	getrusage(RUSAGE_THREAD, &before);
	run(f, 100);
	getrusage(RUSAGE_THREAD, &after);
	assert_in_range(loop_now() - start, 100000000, 2000000000);
	assert_true(after.ru_nvcsw - before.ru_nvcsw < 20);
	loop_del(f->loop, &w.source);
	close(w.source.fd);
}

/* Random adds, dels and changes against what must be told: the living, when ready; never a deleted or deaf one. */
static void a_random_life_of_sources_tells_exactly_the_living(void **state)
{
	enum { N = 96, ROUNDS = 400 };
	struct fixture *f = *state;
	struct watch w[N];
	bool live[N] = {0}, ready[N] = {0};
	unsigned seed = 4711;

	for (unsigned i = 0; i < N; i++)
		w[i] = watch_of(f, event_fd(0), LOOP_IN);
	for (unsigned round = 0; round < ROUNDS; round++) {
		for (unsigned k = 0; k < 20; k++) {
			unsigned i = (unsigned)rand_r(&seed) % N;
			uint64_t value = 1;

			switch ((unsigned)rand_r(&seed) % 4) {
			case 0:
				if (live[i])
					loop_del(f->loop, &w[i].source);
				else
					watch_add(&w[i]);
				live[i] = !live[i];
				break;
			case 1:
				if (!ready[i])
					assert_int_equal(write(w[i].source.fd, &value, 8), 8);
				else
					assert_int_equal(read(w[i].source.fd, &value, 8), 8);
				ready[i] = !ready[i];
				break;
			default:
				if (live[i])
					loop_set_events(f->loop, &w[i].source, w[i].source.events ? 0 : LOOP_IN);
			}
		}
		for (unsigned i = 0; i < N; i++)
			w[i].told = 0;
		run(f, 1);
		for (unsigned i = 0; i < N; i++) {
			bool listens = live[i] && w[i].source.events;

			if (listens && ready[i])
				assert_true(w[i].told > 0);
			else /* readiness that was there and went again may be told, once */
				assert_in_range(w[i].told, 0, listens);
		}
	}
	for (unsigned i = 0; i < N; i++) {
		if (live[i])
			loop_del(f->loop, &w[i].source);
		close(w[i].source.fd);
	}
}

static void a_closed_descriptor_is_refused(void **state)
{
	struct fixture *f = *state;
	struct watch w = watch_of(f, 987, LOOP_IN);

	assert_int_equal(loop_add(f->loop, &w.source), -EBADF);
}

struct refusal {
	int nr, err;
	const char *word;
};

static int serve_refused(void *arg)
{
	const struct refusal *refusal = arg;
	struct fixture f = {0};
	struct watch w = watch_of(&f, event_fd(1), LOOP_IN);

	refuse_syscall(refusal->nr, refusal->err);
	CHILD_CHECK(loop_open(&f.loop, true, f.message) == 0);
	CHILD_CHECK(strstr(f.message, "by epoll, not io_uring"));
	CHILD_CHECK(strstr(f.message, refusal->word));
	w.stop_after = 3;
	w.source.owner = &w;
	CHILD_CHECK(loop_add(f.loop, &w.source) == 0);
	CHILD_CHECK(loop_run(f.loop) == 0);
	CHILD_CHECK(w.told == 3);
	loop_close(f.loop);
	return 0;
}

static void where_io_uring_is_refused_epoll_serves_and_the_message_says_why(void **state)
{
	static struct refusal refusals[] = {
		{__NR_io_uring_setup, EPERM, "seccomp"},
		{__NR_io_uring_setup, ENOSYS, "kernel"},
		{__NR_io_uring_setup, ENOMEM, "memory"},
		{__NR_io_uring_enter, EPERM, "io_uring_enter"},
		{__NR_io_uring_enter, ENOSYS, "io_uring_enter"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
		assert_int_equal(in_child(serve_refused, &refusals[i]), 0);
}

static int serve_coarse(void *arg)
{
	struct fixture f = {0};
	uint64_t start = loop_now();

	(void)arg;
	refuse_syscall(__NR_epoll_pwait2, ENOSYS);
	CHILD_CHECK(loop_open(&f.loop, false, f.message) == 0);
	run(&f, 10);
	CHILD_CHECK(f.timed_out && loop_now() - start >= 10000000);
	loop_close(f.loop);
	return 0;
}

static void without_epoll_pwait2_timers_ring_too(void **state)
{
	(void)state;
	assert_int_equal(in_child(serve_coarse, NULL), 0);
}

#define BOTH(test) \
	{#test " (io_uring)", test, setup, teardown, &with_uring}, \
	{ \
#test " (epoll)", test, setup, teardown, &with_epoll \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(the_engine_asked_for_serves_and_the_message_names_it),
		BOTH(what_is_left_unread_is_told_again),
		BOTH(what_was_read_is_not_told_again),
		BOTH(a_source_deleted_by_another_in_the_same_turn_is_not_told),
		BOTH(a_source_that_deletes_itself_is_told_once),
		BOTH(a_new_source_on_an_old_descriptor_number_hears_only_its_own),
		BOTH(events_can_be_changed_and_the_old_ones_are_not_told),
		BOTH(a_hang_up_is_told_without_being_asked_for),
		BOTH(the_peer_sees_the_close_that_follows_a_del_at_once),
		BOTH(more_sources_than_the_ring_has_entries_are_all_told),
		BOTH(timers_ring_in_order_once_and_never_early),
		BOTH(a_timer_that_is_always_due_starves_nobody),
		BOTH(an_idle_loop_sleeps),
		BOTH(a_random_life_of_sources_tells_exactly_the_living),
		BOTH(a_closed_descriptor_is_refused),
		cmocka_unit_test(where_io_uring_is_refused_epoll_serves_and_the_message_says_why),
		cmocka_unit_test(without_epoll_pwait2_timers_ring_too),
	};

	return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
