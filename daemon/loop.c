/*
 * loop.c - see loop.h
 *
 * A source has a slot in a table; the kernel is given slot and generation, never a pointer.  The generation goes up
 * whenever the slot's watch changes or ends, so whatever the kernel still tells about an earlier watch is dropped.
 *
 * io_uring: POLL_ADD is one shot, which makes it level-triggered: after each callback the slot goes on the list of
 * those to arm, and all of them are armed in the same system call that waits.  A new watch on a ready descriptor
 * completes at once.  epoll: as it is.
 */
#include "loop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "uring.h"

#define LOOP_BATCH 64 /* events told in one turn; timers come between turns */
#define LOOP_ENTRIES 256
#define LOOP_COMPLETIONS 4096
#define LOOP_NO_DATA UINT64_MAX /* user_data of our own cancels; no slot has it */

struct loop_slot {
	struct loop_source *source; /* NULL: free */
	uint32_t generation;
	uint32_t next_free;
	bool armed; /* io_uring: a POLL_ADD of this generation is in the kernel or its queue */
	bool to_arm; /* io_uring: on the list */
};

struct loop_list {
	uint64_t *items;
	uint32_t n, room;
};

struct loop {
	bool uring;
	bool stop;
	bool no_pwait2; /* epoll: only milliseconds */
	int epoll_fd;
	struct io_uring ring;

	struct loop_slot *slots;
	uint32_t n_slots, free_slot; /* free_slot: index + 1; 0: none */
	struct loop_list arm; /* slots whose POLL_ADD is still to be queued; room for every slot */
	struct loop_list cancel; /* user_data of watches that ended and are still to be cancelled */

	struct loop_timer **heap; /* from 1 */
	uint32_t n_timers, timer_room;
};

struct loop_event {
	uint64_t data;
	int res; /* poll bits; or -errno */
};

uint64_t loop_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- slots ---- */

static int list_reserve(struct loop_list *list, uint32_t n)
{
	uint32_t room = list->room ? list->room : 16;
	uint64_t *items;

	if (n <= list->room)
		return 0;
	while (room < n)
		room *= 2;
	items = realloc(list->items, room * sizeof(*items));
	if (!items)
		return -ENOMEM;
	list->items = items;
	list->room = room;
	return 0;
}

static uint64_t slot_data(const struct loop *loop, uint32_t i)
{
	return (uint64_t)i << 32 | loop->slots[i].generation;
}

static int slot_new(struct loop *loop, struct loop_source *source, uint32_t *index)
{
	uint32_t i;

	if (!loop->free_slot) {
		uint32_t n = loop->n_slots ? 2 * loop->n_slots : 32;
		struct loop_slot *slots = realloc(loop->slots, n * sizeof(*slots));

		if (!slots)
			return -ENOMEM;
		loop->slots = slots;
		memset(slots + loop->n_slots, 0, (n - loop->n_slots) * sizeof(*slots));
		for (i = n; i-- > loop->n_slots;) {
			slots[i].next_free = loop->free_slot;
			loop->free_slot = i + 1;
		}
		loop->n_slots = n;
	}
	if (list_reserve(&loop->arm, loop->n_slots) < 0)
		return -ENOMEM;
	i = loop->free_slot - 1;
	loop->free_slot = loop->slots[i].next_free;
	loop->slots[i].source = source;
	source->opaque[0] = (uint64_t)i + 1;
	*index = i;
	return 0;
}

static void slot_free(struct loop *loop, uint32_t i)
{
	loop->slots[i].source->opaque[0] = 0;
	loop->slots[i].source = NULL;
	loop->slots[i].next_free = loop->free_slot;
	loop->free_slot = i + 1;
}

static uint32_t poll_of(uint32_t events)
{
	return (events & LOOP_IN ? POLLIN : 0) | (events & LOOP_OUT ? POLLOUT : 0);
}

static uint32_t events_of(uint32_t bits)
{
	return (bits & POLLIN ? LOOP_IN : 0) | (bits & POLLOUT ? LOOP_OUT : 0) |
	       (bits & (POLLHUP | POLLERR | POLLNVAL) ? LOOP_HUP : 0);
}

/* ---- io_uring ---- */

static void uring_want_arm(struct loop *loop, uint32_t i)
{
	if (loop->slots[i].to_arm)
		return;
	loop->slots[i].to_arm = true;
	loop->arm.items[loop->arm.n++] = i; /* slot_new() saw to the room */
}

/* End the slot's watch: what it still tells is stale from now on. */
static void uring_disarm(struct loop *loop, uint32_t i)
{
	struct loop_slot *slot = &loop->slots[i];

	if (slot->armed && list_reserve(&loop->cancel, loop->cancel.n + 1) == 0)
		loop->cancel.items[loop->cancel.n++] = slot_data(loop, i);
	/* without memory for the cancel the watch stays until it fires, and is then dropped as stale */
	slot->armed = false;
	slot->generation++;
}

static struct io_uring_sqe *uring_sqe(struct loop *loop)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);

	if (sqe)
		return sqe;
	io_uring_submit(&loop->ring); /* an error keeps the queue full: the caller tries again next turn */
	return io_uring_get_sqe(&loop->ring);
}

static bool uring_queue_cancels(struct loop *loop)
{
	while (loop->cancel.n) {
		struct io_uring_sqe *sqe = uring_sqe(loop);

		if (!sqe)
			return false;
		io_uring_prep_poll_remove(sqe, loop->cancel.items[--loop->cancel.n]);
		io_uring_sqe_set_data64(sqe, LOOP_NO_DATA);
	}
	return true;
}

/* Return: all queued; false: no room in the ring, some are left for the next turn. */
static bool uring_queue_all(struct loop *loop)
{
	if (!uring_queue_cancels(loop))
		return false;
	while (loop->arm.n) {
		uint32_t i = (uint32_t)loop->arm.items[loop->arm.n - 1];
		struct loop_slot *slot = &loop->slots[i];

		if (slot->source && !slot->armed) {
			struct io_uring_sqe *sqe = uring_sqe(loop);

			if (!sqe)
				return false;
			io_uring_prep_poll_add(sqe, slot->source->fd, poll_of(slot->source->events));
			io_uring_sqe_set_data64(sqe, slot_data(loop, i));
			slot->armed = true;
		}
		slot->to_arm = false;
		loop->arm.n--;
	}
	return true;
}

/* Return: events; 0; -errno. @timeout_ns: UINT64_MAX: none. */
static int uring_wait(struct loop *loop, uint64_t timeout_ns, struct loop_event *events)
{
	struct io_uring_cqe *cqes[LOOP_BATCH], *first;
	struct __kernel_timespec timeout;
	unsigned n;
	int r;

	if (!uring_queue_all(loop) && timeout_ns > 1000000)
		timeout_ns = 1000000;
	timeout.tv_sec = (int64_t)(timeout_ns / 1000000000u);
	timeout.tv_nsec = (int64_t)(timeout_ns % 1000000000u);
	r = io_uring_submit_and_wait_timeout(&loop->ring, &first, 1, timeout_ns == UINT64_MAX ? NULL : &timeout, NULL);
	/* EBUSY: completions wait to be taken.  EAGAIN: the kernel is short of memory just now. */
	if (r < 0 && r != -ETIME && r != -EINTR && r != -EBUSY && r != -EAGAIN)
		return r;
	n = io_uring_peek_batch_cqe(&loop->ring, cqes, LOOP_BATCH);
	for (unsigned i = 0; i < n; i++)
		events[i] = (struct loop_event){.data = cqes[i]->user_data, .res = cqes[i]->res};
	io_uring_cq_advance(&loop->ring, n);
	if (!n && r == -EAGAIN)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	return (int)n;
}

/* ---- epoll ---- */

static int epoll_change(struct loop *loop, int what, uint32_t i)
{
	struct epoll_event event = {
		.events = poll_of(loop->slots[i].source->events), /* the bits are poll's */
		.data.u64 = slot_data(loop, i),
	};

	return epoll_ctl(loop->epoll_fd, what, loop->slots[i].source->fd, &event) < 0 ? -errno : 0;
}

static int epoll_await(struct loop *loop, uint64_t timeout_ns, struct epoll_event *events)
{
	struct timespec timeout = {
		.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};
	uint64_t ms = timeout_ns / 1000000u + (timeout_ns % 1000000u != 0);
	int n;

	if (timeout_ns == UINT64_MAX)
		return epoll_wait(loop->epoll_fd, events, LOOP_BATCH, -1);
	if (!loop->no_pwait2) {
		n = epoll_pwait2(loop->epoll_fd, events, LOOP_BATCH, &timeout, NULL);
		if (n >= 0 || (errno != ENOSYS && errno != EPERM))
			return n;
		loop->no_pwait2 = true;
	}
	return epoll_wait(loop->epoll_fd, events, LOOP_BATCH, ms > 3600000 ? 3600000 : (int)ms);
}

static int epoll_events(struct loop *loop, uint64_t timeout_ns, struct loop_event *events)
{
	struct epoll_event told[LOOP_BATCH];
	int n = epoll_await(loop, timeout_ns, told);

	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	for (int i = 0; i < n; i++)
		events[i] = (struct loop_event){.data = told[i].data.u64, .res = (int)told[i].events};
	return n;
}

/* ---- sources ---- */

int loop_add(struct loop *loop, struct loop_source *source)
{
	uint32_t i;
	int r;

	if (fcntl(source->fd, F_GETFD) < 0)
		return -errno;
	r = slot_new(loop, source, &i);
	if (r < 0)
		return r;
	if (loop->uring) {
		uring_want_arm(loop, i);
		return 0;
	}
	r = epoll_change(loop, EPOLL_CTL_ADD, i);
	if (r < 0)
		slot_free(loop, i);
	return r;
}

int loop_set_events(struct loop *loop, struct loop_source *source, uint32_t events)
{
	uint32_t i = (uint32_t)source->opaque[0] - 1;
	uint32_t old = source->events;
	int r;

	if (!source->opaque[0])
		return -EINVAL;
	if (events == old)
		return 0;
	source->events = events;
	if (loop->uring) {
		uring_disarm(loop, i);
		uring_want_arm(loop, i);
		return 0;
	}
	r = epoll_change(loop, EPOLL_CTL_MOD, i);
	if (r < 0)
		source->events = old;
	return r;
}

void loop_del(struct loop *loop, struct loop_source *source)
{
	uint32_t i = (uint32_t)source->opaque[0] - 1;

	if (!source->opaque[0])
		return;
	if (loop->uring) {
		uring_disarm(loop, i);
		/* at once: a watch keeps the file open, and the peer is to see the close() that follows */
		if (loop->cancel.n && uring_queue_cancels(loop))
			io_uring_submit(&loop->ring);
	} else {
		epoll_change(loop, EPOLL_CTL_DEL, i);
		loop->slots[i].generation++;
	}
	slot_free(loop, i);
}

static void loop_dispatch(struct loop *loop, const struct loop_event *event)
{
	uint32_t i = (uint32_t)(event->data >> 32);
	struct loop_source *source;
	uint32_t events;

	if (event->data == LOOP_NO_DATA || i >= loop->n_slots)
		return;
	source = loop->slots[i].source;
	if (!source || loop->slots[i].generation != (uint32_t)event->data)
		return;
	if (loop->uring) {
		loop->slots[i].armed = false;
		uring_want_arm(loop, i);
		if (event->res == -EAGAIN || event->res == -ENOMEM || event->res == -EINTR || event->res == -ECANCELED)
			return;
	}
	/* a descriptor that cannot be polled has hung up, as far as its owner is concerned */
	events = event->res < 0 ? LOOP_HUP : events_of((uint32_t)event->res);
	if (events)
		source->ready(source, events);
}

/* ---- timers: a binary heap, the earliest at 1 ---- */

static void heap_put(struct loop *loop, uint32_t i, struct loop_timer *timer)
{
	loop->heap[i] = timer;
	timer->heap_index = i;
}

/* Find the place for @timer when the one at @i is open. */
static void heap_settle(struct loop *loop, uint32_t i, struct loop_timer *timer)
{
	while (i > 1 && loop->heap[i / 2]->deadline_ns > timer->deadline_ns) {
		heap_put(loop, i, loop->heap[i / 2]);
		i /= 2;
	}
	for (;;) {
		uint32_t child = 2 * i;

		if (child > loop->n_timers)
			break;
		if (child < loop->n_timers && loop->heap[child + 1]->deadline_ns < loop->heap[child]->deadline_ns)
			child++;
		if (loop->heap[child]->deadline_ns >= timer->deadline_ns)
			break;
		heap_put(loop, i, loop->heap[child]);
		i = child;
	}
	heap_put(loop, i, timer);
}

static void heap_grow(struct loop *loop)
{
	uint32_t room = loop->timer_room ? 2 * loop->timer_room : 64;
	struct loop_timer **heap = realloc(loop->heap, room * sizeof(struct loop_timer *));

	/* a timer that could not be armed would be a wait without end; a few kilobytes that cannot be had are the
	   end */
	if (!heap)
		abort();
	loop->heap = heap;
	loop->timer_room = room;
}

void loop_timer_set(struct loop *loop, struct loop_timer *timer, uint64_t deadline_ns)
{
	loop_timer_cancel(loop, timer);
	if (loop->n_timers + 1 >= loop->timer_room)
		heap_grow(loop);
	timer->deadline_ns = deadline_ns;
	loop->n_timers++;
	heap_settle(loop, loop->n_timers, timer);
}

void loop_timer_cancel(struct loop *loop, struct loop_timer *timer)
{
	uint32_t i = timer->heap_index;
	struct loop_timer *last;

	if (!i)
		return;
	timer->heap_index = 0;
	last = loop->heap[loop->n_timers--];
	if (last != timer)
		heap_settle(loop, i, last);
}

static void loop_run_timers(struct loop *loop)
{
	uint64_t now = loop_now();

	/* one armed again for a time that has passed waits for the next turn */
	for (uint32_t n = loop->n_timers; n && loop->n_timers && loop->heap[1]->deadline_ns <= now; n--) {
		struct loop_timer *timer = loop->heap[1];

		loop_timer_cancel(loop, timer);
		timer->ring(timer);
	}
}

/* ---- the loop ---- */

int loop_open(struct loop **result, bool use_uring, char message[256])
{
	struct loop *loop = calloc(1, sizeof(*loop));
	char why[URING_WHY_MAX] = "as configured";

	*result = NULL;
	if (!loop)
		return -ENOMEM;
	loop->epoll_fd = -1;
	if (use_uring && uring_open(&loop->ring, LOOP_ENTRIES, LOOP_COMPLETIONS, why) == 0) {
		loop->uring = true;
		snprintf(message, 256, "events by io_uring");
		*result = loop;
		return 0;
	}
	loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (loop->epoll_fd < 0) {
		int err = errno;

		snprintf(message, 256, "no event engine: epoll: %s; io_uring: %s", strerror(err), why);
		free(loop);
		return -err;
	}
	snprintf(message, 256, "events by epoll, not io_uring: %s", why);
	*result = loop;
	return 0;
}

void loop_close(struct loop *loop)
{
	if (!loop)
		return;
	if (loop->uring)
		io_uring_queue_exit(&loop->ring);
	else
		close(loop->epoll_fd);
	free(loop->slots);
	free(loop->arm.items);
	free(loop->cancel.items);
	free(loop->heap);
	free(loop);
}

static uint64_t loop_timeout(const struct loop *loop)
{
	uint64_t now;

	if (!loop->n_timers)
		return UINT64_MAX;
	now = loop_now();
	return loop->heap[1]->deadline_ns > now ? loop->heap[1]->deadline_ns - now : 0;
}

int loop_run(struct loop *loop)
{
	struct loop_event events[LOOP_BATCH];

	loop->stop = false;
	while (!loop->stop) {
		int n = loop->uring ? uring_wait(loop, loop_timeout(loop), events)
				    : epoll_events(loop, loop_timeout(loop), events);

		if (n < 0)
			return n;
		for (int i = 0; i < n; i++)
			loop_dispatch(loop, &events[i]);
		loop_run_timers(loop);
	}
	return 0;
}

void loop_stop(struct loop *loop)
{
	loop->stop = true;
}
