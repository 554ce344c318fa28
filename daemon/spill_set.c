/* spill_set.c - see spill_set.h.  The loop's thread; the first half of a start runs in a thread for each store. */
#include "spill_set.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "loop.h"
#include "spill_attempt.h"

#define RETRY_NS 2000000000ull /* how often a store that is missing is looked for */
#define TELL_RECORDS 16384 /* of one that came back, told in a tick: some milliseconds */
#define STALLED_NS 500000000ull /* a store that ends nothing for so long is passed over while another one moves */

struct member {
	struct spill *spill; /* NULL: left out */
	struct spill_opts opts;
	cpu_set_t cpus;
	struct spill_identity id; /* of what it serves */
	int error;
	bool was_down;
	bool telling; /* it came back, and not all of its records are told: it is read, no more */
	bool arriving; /* none of them is told yet: arrived() has more to do */
	struct spill_attempt *attempt; /* to open it, under way */
	uint64_t retry_ns; /* the next one */
	char message[256]; /* of its start */
	time_t since; /* left out */
	struct spill_stats past; /* counts of stores that were here and are closed: what is counted never goes down */
};

struct spill_set {
	unsigned n;
	int wake_fd; /* epoll of all stores; -1: there is one, and its own serves */
	int lock_fd; /* for stores that come later, or -1 */
	bool telling_pulled;
	struct member members[SPILL_STORES_MAX];
};

/* One store that was there from the start, and stays, is served without anything in between; else NULL. */
static struct spill *set_only(const struct spill_set *set)
{
	return set->wake_fd < 0 && set->n == 1 ? set->members[0].spill : NULL;
}

/* A flush or a drop of all: the stores' answers, put together. */
struct all {
	spill_done_fn done;
	void *owner;
	unsigned n_left;
	int res;
};

static void counts_add(struct spill_stats *sum, const struct spill_stats *one)
{
	sum->writes += one->writes;
	sum->write_bytes += one->write_bytes;
	sum->reads += one->reads;
	sum->read_bytes += one->read_bytes;
	sum->write_errors += one->write_errors;
	sum->read_errors += one->read_errors;
	sum->damaged += one->damaged;
	sum->skipped += one->skipped;
	sum->scrub_bytes += one->scrub_bytes;
	sum->scrub_passes += one->scrub_passes;
	sum->scrub_damaged += one->scrub_damaged;
	sum->reclaimed += one->reclaimed;
}

/* ---- start ---- */

static void member_leave_out(struct member *member, int error, const char *why)
{
	if (member->error != error)
		member->since = time(NULL);
	member->error = error;
	member->retry_ns = loop_now() + RETRY_NS;
	if (why != member->message)
		snprintf(member->message, sizeof(member->message), "%s", why);
}

/* One file twice, or two copies of one store: which of the two is left out? */
static void set_leave_out_copies(struct spill_set *set)
{
	struct spill_identity ids[SPILL_STORES_MAX];
	char why[256];

	for (unsigned i = 0; i < set->n; i++)
		spill_peek(&set->members[i].opts, &ids[i]);
	for (unsigned j = 1; j < set->n; j++)
		for (unsigned i = 0; i < j; i++) {
			bool same = ids[i].inode && ids[i].inode == ids[j].inode && ids[i].dev == ids[j].dev;
			unsigned out = !same && ids[i].is_copy && !ids[j].is_copy ? i : j;

			if (set->members[i].error || set->members[j].error || !spill_same(&ids[i], &ids[j]))
				continue;
			snprintf(why, sizeof(why),
				"%s of the store in %.100s: it is left out; give --spill another directory, or remove the copy",
				same ? "the file itself" : "a copy", set->members[i + j - out].opts.dir);
			member_leave_out(&set->members[out], -EEXIST, why);
		}
}

static void *member_begin(void *owner)
{
	struct member *member = owner;
	int r = spill_begin(&member->spill, &member->opts, member->message);

	if (r < 0) {
		member_leave_out(member, r, member->message);
		return NULL;
	}
	member->opts.lock_fd = -1; /* the store's */
	spill_peek(&member->opts, &member->id);
	return NULL;
}

/* All at once: what a start takes is waiting for devices. */
static void set_begin(struct spill_set *set)
{
	pthread_t threads[SPILL_STORES_MAX];
	bool started[SPILL_STORES_MAX] = {false};

	for (unsigned i = 1; i < set->n; i++)
		if (!set->members[i].error)
			started[i] = pthread_create(&threads[i], NULL, member_begin, &set->members[i]) == 0;
	for (unsigned i = 0; i < set->n; i++) {
		if (started[i])
			pthread_join(threads[i], NULL);
		else if (!set->members[i].error)
			member_begin(&set->members[i]);
	}
}

/* Each ring holds the lock of its own. */
static void set_share_lock(struct spill_set *set, int lock_fd)
{
	for (unsigned i = 0; i < set->n; i++)
		set->members[i].opts.lock_fd = lock_fd < 0 ? -1 : fcntl(lock_fd, F_DUPFD_CLOEXEC, 0);
}

static void set_settle_lock(struct spill_set *set)
{
	for (unsigned i = 0; i < set->n; i++) {
		if (set->members[i].opts.lock_fd >= 0)
			close(set->members[i].opts.lock_fd);
		set->members[i].opts.lock_fd = -1;
	}
}

static int member_watch(const struct spill_set *set, const struct member *member)
{
	struct epoll_event event = {.events = EPOLLIN};

	return epoll_ctl(set->wake_fd, EPOLL_CTL_ADD, spill_fd(member->spill), &event) < 0 ? -errno : 0;
}

static int set_watch(struct spill_set *set)
{
	int r = 0;

	set->wake_fd = epoll_create1(EPOLL_CLOEXEC);
	if (set->wake_fd < 0)
		return -errno;
	for (unsigned i = 0; r == 0 && i < set->n; i++)
		if (set->members[i].spill)
			r = member_watch(set, &set->members[i]);
	return r;
}

/* May that end by itself, or by somebody who mounts or mends something? */
static bool error_passes(int error)
{
	static const int passing[] = {
		ENOENT, ENODEV, ENXIO, ENOMEDIUM, EIO, EROFS, ESTALE, ENOTCONN, ETIMEDOUT, EHOSTDOWN, ENOSPC, EDQUOT};

	for (unsigned i = 0; i < sizeof(passing) / sizeof(passing[0]); i++)
		if (error == -passing[i])
			return true;
	return false;
}

/* Left out, and looked for. Rights may be those of a mount point without its mount. */
static bool member_is_missing(const struct member *member)
{
	return !member->spill && (error_passes(member->error) || member->error == -EACCES || member->error == -EPERM);
}

/* Nothing serves: is that a reason not to start? Not where all may come back as they went. */
static int set_refusal(const struct spill_set *set)
{
	for (unsigned i = 0; i < set->n; i++)
		if (!error_passes(set->members[i].error))
			return set->members[i].error;
	return 0;
}

/* Return: stores that serve. */
static unsigned set_tell(struct spill_set *set)
{
	unsigned n = 0;

	for (unsigned i = 0; i < set->n; i++) {
		struct member *member = &set->members[i];
		int r = member->spill ? spill_tell(&member->spill, member->message) : 0;

		if (r < 0)
			member_leave_out(member, r, member->message);
		n += member->spill != NULL;
	}
	return n;
}

/* @message: that of the one store; of several each has a line of its own. */
static void set_say(const struct spill_set *set, unsigned serving, char message[256])
{
	for (unsigned i = 0; i < set->n; i++) {
		const struct member *member = &set->members[i];

		if (set->n > 1 || !member->spill)
			log_line(member->spill ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, "spill store %s%s: %s%s",
				member->opts.dir,
				member->spill ? ""
				: serving     ? " is missing, and the others serve without it"
					      : " is missing",
				member->message, member_is_missing(member) ? "; looked for every other second" : "");
	}
	if (set->n == 1 || !serving)
		snprintf(message, 256, "%s", set->members[0].message);
	else
		snprintf(message, 256, "%u of %u stores serve", serving, set->n);
}

static void set_fill(struct spill_set *set, const struct spill_opts *opts, unsigned n)
{
	set->n = n;
	set->wake_fd = set->lock_fd = -1;
	for (unsigned i = 0; i < n; i++) {
		struct member *member = &set->members[i];

		member->opts = opts[i];
		member->opts.number = i;
		if (opts[i].cpus) {
			member->cpus = *opts[i].cpus;
			member->opts.cpus = &member->cpus;
		}
	}
}

int spill_set_open(struct spill_set **result, const struct spill_opts *opts, unsigned n, char message[256])
{
	struct spill_set *set = calloc(1, sizeof(*set));
	unsigned serving;
	int r = 0;

	*result = NULL;
	if (!set || !n || n > SPILL_STORES_MAX) {
		free(set);
		snprintf(message, 256, set ? "too many spill stores" : "out of memory");
		return set ? -EINVAL : -ENOMEM;
	}
	*result = set; /* found() calls spill_set_forget() */
	set_fill(set, opts, n);
	set_share_lock(set, opts[0].lock_fd);
	set_leave_out_copies(set);
	set_begin(set);
	serving = set_tell(set);
	set_settle_lock(set);
	if (!serving)
		r = set_refusal(set);
	if (r == 0) {
		set_say(set, serving, message);
		set->lock_fd = opts[0].lock_fd;
		if (n > 1 || !serving || opts[0].raw)
			r = set_watch(set);
	} else {
		snprintf(message, 256, "%s", set->members[0].message);
	}
	if (r < 0) {
		set->lock_fd = -1; /* the caller's */
		spill_set_close(set);
		*result = NULL;
	}
	return r;
}

void spill_set_close(struct spill_set *set)
{
	uint64_t deadline_ns = loop_now() + SPILL_CLOSE_NS;

	if (!set)
		return;
	/* what hangs comes last: it may have the rest of the time, not that of the others */
	for (int hung = 0; hung <= 1; hung++)
		for (unsigned i = 0; i < set->n; i++) {
			struct spill *spill = set->members[i].spill;

			if (!spill || (!hung && spill_hung(spill)))
				continue;
			spill_close_by(spill, deadline_ns);
			set->members[i].spill = NULL; /* not before: what ends meanwhile is told, and asks about it */
		}
	for (unsigned i = 0; i < set->n; i++)
		if (set->members[i].attempt)
			spill_attempt_give_up(set->members[i].attempt, deadline_ns);
	if (set->wake_fd >= 0)
		close(set->wake_fd);
	if (set->lock_fd >= 0)
		close(set->lock_fd);
	free(set);
}

/* ---- stores that come later ---- */

unsigned spill_set_missing(const struct spill_set *set)
{
	unsigned n = 0;

	for (unsigned i = 0; i < set->n; i++)
		n += set->members[i].telling || member_is_missing(&set->members[i]);
	return n;
}

static void member_look_for(struct spill_set *set, struct member *member)
{
	struct spill_identity others[SPILL_STORES_MAX];
	struct spill_opts opts = member->opts;
	unsigned n = 0;

	for (unsigned i = 0; i < set->n; i++)
		if (set->members[i].spill)
			others[n++] = set->members[i].id;
	opts.lock_fd = set->lock_fd;
	opts.progress = NULL; /* nobody waits for it */
	member->attempt = spill_attempt_new(&opts, others, n);
	member->retry_ns = loop_now() + RETRY_NS;
}

/* It came back: who knows its namespaces makes them known before its records are told. */
static void member_arrived(struct spill_set *set, struct member *member, struct spill *spill)
{
	member->spill = spill;
	if (member_watch(set, member) < 0) {
		spill_close(spill);
		member->spill = NULL;
		member_leave_out(member, -ENOMEM, "no descriptor to watch it by");
		return;
	}
	spill_peek(&member->opts, &member->id);
	member->telling = true;
	member->arriving = member->opts.arrived != NULL;
	member->error = 0;
}

static void member_tell(struct member *member)
{
	int r;

	if (member->arriving) {
		member->arriving = member->opts.arrived(member->opts.owner, member->opts.number);
		return;
	}
	r = spill_tell_some(&member->spill, TELL_RECORDS, member->message);
	if (r > 0)
		return;
	member->telling = false;
	if (r < 0) {
		member_leave_out(member, r, member->message);
		return;
	}
	log_info("spill store %s is back: %s", member->opts.dir, member->message);
	if (member->opts.joined)
		member->opts.joined(member->opts.owner, member->opts.number);
}

/* A drive that was pulled is another device when it is plugged in again, and an open descriptor of the old one is good
   for nothing: the store is closed, and looked for as one that was missing at the start. */
static void member_part_with_pulled(struct spill_set *set, struct member *member)
{
	static const int pulled[] = {ENOENT, ENODEV, ENXIO, ENOMEDIUM, ESTALE};
	struct spill_stats stats;
	char why[256];
	bool freed;

	spill_stats(member->spill, &stats);
	for (unsigned i = 0; i < sizeof(pulled) / sizeof(pulled[0]); i++) {
		if (stats.state != SPILL_DOWN || stats.last_errno != pulled[i])
			continue;
		set->telling_pulled = true;
		freed = spill_abandon(member->spill, TELL_RECORDS);
		set->telling_pulled = false;
		if (!freed)
			return;
		counts_add(&member->past, &stats);
		member->spill = NULL;
		member->was_down = false;
		snprintf(why, sizeof(why), "%.120s is not there any more: %s (errno %d)", member->opts.dir,
			strerror(pulled[i]), pulled[i]);
		member_leave_out(member, -pulled[i], why);
		log_warn("spill store %s; what lies in it is missed until it is plugged in again", why);
		return;
	}
}

static void member_tick_missing(struct spill_set *set, struct member *member)
{
	struct spill *spill = NULL;
	char message[256];
	int error, before = member->error;

	if (!member->attempt) {
		if (loop_now() >= member->retry_ns)
			member_look_for(set, member);
		return;
	}
	if (!spill_attempt_end(member->attempt, &spill, &error, message))
		return;
	member->attempt = NULL;
	memcpy(member->message, message, sizeof(message));
	if (spill) {
		member_arrived(set, member, spill);
		return;
	}
	member_leave_out(member, error, member->message);
	if (error != before)
		log_warn("spill store %s is still missing: %s", member->opts.dir, message);
}

/* ---- transfers ---- */

static struct spill *set_store(const struct spill_set *set, spill_place place)
{
	unsigned i = (unsigned)(place >> SPILL_PLACE_STORE_SHIFT);

	return i < set->n ? set->members[i].spill : NULL;
}

/* What of a store counts when the next record looks for one. */
struct bid {
	struct spill *spill;
	bool slow;
	uint64_t queued, full; /* full: of 65536 */
};

static bool bid_is_better(const struct bid *a, const struct bid *b)
{
	if (a->slow != b->slow)
		return !a->slow;
	if (a->queued != b->queued)
		return a->queued < b->queued;
	return a->full < b->full;
}

/* Stores that take writes, the best first. */
static unsigned set_bids(const struct spill_set *set, struct bid bids[SPILL_STORES_MAX])
{
	unsigned n = 0;

	for (unsigned i = 0; i < set->n; i++) {
		struct spill *spill = set->members[i].spill;
		struct spill_stats stats;
		struct bid bid = {.spill = spill};
		unsigned at = n;

		if (!spill || set->members[i].telling)
			continue;
		spill_stats(spill, &stats);
		bid.slow = !stats.takes_writes || spill_stalled(spill, STALLED_NS);
		bid.queued = stats.queued_bytes;
		bid.full = (stats.live_bytes >> 16) * 65536 / ((stats.capacity >> 16) + 1);
		for (; at && bid_is_better(&bid, &bids[at - 1]); at--)
			bids[at] = bids[at - 1];
		bids[at] = bid;
		n++;
	}
	return n;
}

/* What several refusals come to: the one that leaves most hope. */
static int refusal_of(int a, int b)
{
	static const int order[] = {-EAGAIN, -ENOSPC, -ENODEV, -EFBIG};

	for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]); i++)
		if (a == order[i] || b == order[i])
			return order[i];
	return a ? a : b;
}

int spill_set_write(struct spill_set *set, const struct spill_record *record, const void *data, void *cookie,
	spill_done_fn done, void *owner)
{
	struct bid bids[SPILL_STORES_MAX];
	unsigned n;
	int r = 0;

	if (set_only(set))
		return spill_write(set_only(set), record, data, cookie, done, owner);
	n = set_bids(set, bids);
	if (!n)
		return -ENODEV;
	for (unsigned i = 0; i < n; i++) {
		int one;

		if (bids[i].slow && r == -EAGAIN)
			return r; /* a better one will take it soon */
		one = spill_write(bids[i].spill, record, data, cookie, done, owner);
		if (one == 0)
			return 0;
		r = refusal_of(r, one);
	}
	return r;
}

const struct spill_packed *spill_set_packed(const struct spill_set *set, spill_place place)
{
	const struct spill *spill = set_store(set, place);

	return spill ? spill_packed(spill) : NULL;
}

int spill_set_read(struct spill_set *set, spill_place place, const struct spill_record *record, void *data,
	spill_done_fn done, void *owner)
{
	struct spill *spill = set_store(set, place);

	return spill ? spill_read(spill, place, record, data, done, owner) : -ENODEV;
}

double spill_set_passed(const struct spill_set *set, spill_place place)
{
	const struct spill *spill = set_store(set, place);

	return spill ? spill_passed(spill, place) : 0;
}

void spill_set_forget(struct spill_set *set, spill_place place)
{
	struct spill *spill = set_store(set, place);

	if (spill)
		spill_forget(spill, place);
}

bool spill_set_give_up(struct spill_set *set, bool (*agrees)(void *owner, uint64_t ns_id), void *owner)
{
	for (unsigned i = 0; i < set->n; i++)
		if (set->members[i].spill && !set->members[i].telling &&
			spill_give_up(set->members[i].spill, agrees, owner))
			return true;
	return false;
}

static void all_done(void *owner, int res, spill_place place)
{
	struct all *all = owner;

	if (res < 0 && all->res == 0)
		all->res = res;
	if (--all->n_left)
		return;
	all->done(all->owner, all->res, place);
	free(all);
}

/* What @n stores were asked, the last refusal being @r. Return: as the call. */
static int all_asked(struct all *all, unsigned n, int r)
{
	if (!n) {
		free(all);
		return r;
	}
	all->n_left = n; /* none ends before spill_reap() */
	all->res = r;
	return 0;
}

static struct all *all_new(spill_done_fn done, void *owner)
{
	struct all *all = calloc(1, sizeof(*all));

	if (all)
		*all = (struct all){.done = done, .owner = owner};
	return all;
}

int spill_set_flush(struct spill_set *set, spill_done_fn done, void *owner)
{
	struct all *all;
	unsigned n = 0;
	int r = 0;

	if (set_only(set))
		return spill_flush(set_only(set), done, owner);
	all = all_new(done, owner);
	if (!all)
		return -EAGAIN;
	for (unsigned i = 0; i < set->n; i++) {
		struct spill *spill = set->members[i].spill;
		int one;

		if (!spill || set->members[i].telling)
			continue;
		/* one that hangs has nothing that counts as written, and would keep the others' answer */
		one = spill_hung(spill) ? -ETIMEDOUT : spill_flush(spill, all_done, all);
		n += one == 0;
		r = one < 0 ? one : r;
	}
	return all_asked(all, n, n || r ? r : -ENODEV);
}

/* One that is down, missing or still being told would bring back what it has. */
static bool set_is_all_up(const struct spill_set *set)
{
	for (unsigned i = 0; i < set->n; i++) {
		struct spill_stats stats;

		spill_set_store_stats(set, i, &stats);
		if (stats.state == SPILL_DOWN)
			return false;
	}
	return true;
}

int spill_set_kill(
	struct spill_set *set, const struct spill_kill *kills, uint32_t n_kills, spill_done_fn done, void *owner)
{
	struct all *all;
	unsigned n = 0;
	int r = -ENOENT;

	if (!set_is_all_up(set))
		return -ENODEV;
	if (set_only(set))
		return spill_kill(set_only(set), kills, n_kills, done, owner);
	all = all_new(done, owner);
	if (!all)
		return -ENOMEM;
	for (unsigned i = 0; i < set->n; i++) {
		int one = spill_kill(set->members[i].spill, kills, n_kills, all_done, all);

		n += one == 0;
		r = one < 0 && one != -ENOENT ? one : r;
	}
	return all_asked(all, n, n && r == -ENOENT ? 0 : r);
}

int spill_set_drop(struct spill_set *set, uint64_t ns_id, spill_done_fn done, void *owner)
{
	struct all *all;
	unsigned n = 0;
	int r = 0;

	if (set_only(set))
		return spill_drop(set_only(set), ns_id, done, owner);
	if (!set_is_all_up(set))
		return -ENODEV;
	all = all_new(done, owner);
	if (!all)
		return -ENOMEM;
	for (unsigned i = 0; i < set->n; i++) {
		int one = spill_drop(set->members[i].spill, ns_id, all_done, all);

		n += one == 0;
		r = one < 0 ? one : r;
	}
	return all_asked(all, n, r);
}

void spill_set_scrub_rate(struct spill_set *set, uint64_t bytes_per_s)
{
	for (unsigned i = 0; i < set->n; i++)
		if (set->members[i].spill)
			spill_scrub_rate(set->members[i].spill, (bytes_per_s + set->n - 1) / set->n);
}

uint64_t spill_set_scrub_now(struct spill_set *set, uint64_t bytes_per_s)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < set->n; i++)
		if (set->members[i].spill && !set->members[i].telling)
			bytes += spill_scrub_now(set->members[i].spill, (bytes_per_s + set->n - 1) / set->n);
	return bytes;
}

bool spill_set_telling_pulled(const struct spill_set *set)
{
	return set->telling_pulled;
}

bool spill_set_telling_damage(const struct spill_set *set)
{
	for (unsigned i = 0; i < set->n; i++)
		if (set->members[i].spill && spill_telling_damage(set->members[i].spill))
			return true;
	return false;
}

/* ---- the loop ---- */

int spill_set_fd(const struct spill_set *set)
{
	return set_only(set) ? spill_fd(set_only(set)) : set->wake_fd;
}

unsigned spill_set_reap(struct spill_set *set)
{
	unsigned n = 0;

	for (unsigned i = 0; i < set->n; i++)
		if (set->members[i].spill)
			n += spill_reap(set->members[i].spill);
	return n;
}

unsigned spill_set_wait(struct spill_set *set, uint64_t deadline_ns)
{
	struct pollfd wake = {.fd = spill_set_fd(set), .events = POLLIN};
	unsigned n;

	while ((n = spill_set_reap(set)) == 0 && loop_now() < deadline_ns)
		poll(&wake, 1, 10);
	return n;
}

/* A line each time a store goes down, and when it is up again. */
static void member_say_state(struct member *member)
{
	struct spill_stats stats;
	bool down;

	spill_stats(member->spill, &stats);
	down = stats.state == SPILL_DOWN;
	if (down == member->was_down)
		return;
	member->was_down = down;
	log_line(down ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "spill store %s is %s%s%s", member->opts.dir,
		down ? "down" : "up again", stats.message[0] ? ": " : "", stats.message);
}

void spill_set_tick(struct spill_set *set)
{
	for (unsigned i = 0; i < set->n; i++) {
		struct member *member = &set->members[i];

		if (member->telling) {
			member_tell(member);
		} else if (member->spill) {
			spill_tick(member->spill);
			member_say_state(member);
			if (member->opts.raw)
				member_part_with_pulled(set, member);
		} else if (member->attempt || member_is_missing(member)) {
			member_tick_missing(set, member);
		}
	}
}

/* ---- looking ---- */

uint64_t spill_set_longest(const struct spill_set *set)
{
	uint64_t longest = 0;

	for (unsigned i = 0; i < set->n; i++)
		if (set->members[i].spill && spill_longest(set->members[i].spill) > longest)
			longest = spill_longest(set->members[i].spill);
	return longest;
}

unsigned spill_set_stuck(const struct spill_set *set, uint64_t ns_id)
{
	unsigned n = 0;

	for (unsigned i = 0; i < set->n; i++)
		if (set->members[i].spill && spill_stalled(set->members[i].spill, STALLED_NS))
			n += spill_writing(set->members[i].spill, ns_id);
	for (unsigned i = 0; n && i < set->n; i++) {
		const struct spill *spill = set->members[i].spill;
		struct spill_stats stats;

		if (!spill || spill_stalled(spill, STALLED_NS))
			continue;
		spill_stats(spill, &stats);
		if (stats.takes_writes)
			return n;
	}
	return 0;
}

unsigned spill_set_stuck_reads(const struct spill_set *set, uint64_t ns_id)
{
	unsigned n = 0;

	for (unsigned i = 0; i < set->n; i++)
		if (set->members[i].spill && spill_hung(set->members[i].spill))
			n += spill_reading(set->members[i].spill, ns_id);
	return n;
}

bool spill_set_stalled(const struct spill_set *set, uint64_t ns)
{
	bool stalled = false;

	for (unsigned i = 0; i < set->n; i++) {
		struct spill_stats stats;

		if (!set->members[i].spill)
			continue;
		spill_stats(set->members[i].spill, &stats);
		if (!stats.takes_writes && set->n > 1)
			continue;
		if (!spill_stalled(set->members[i].spill, ns))
			return false;
		stalled = true;
	}
	return stalled;
}

bool spill_set_hung(const struct spill_set *set, spill_place place)
{
	const struct spill *spill = set_store(set, place);

	return !spill || spill_hung(spill);
}

bool spill_set_serves(const struct spill_set *set, unsigned i)
{
	return set->members[i].spill != NULL;
}

unsigned spill_set_n(const struct spill_set *set)
{
	return set->n;
}

void spill_set_store_stats(const struct spill_set *set, unsigned i, struct spill_stats *stats)
{
	const struct member *member = &set->members[i];

	if (member->spill) {
		spill_stats(member->spill, stats);
		counts_add(stats, &member->past);
		if (!member->telling)
			return;
		stats->state = SPILL_DOWN;
		stats->takes_writes = false;
		snprintf(stats->message, sizeof(stats->message), "%.120s is back, and what is in it is being found",
			member->opts.dir);
		return;
	}
	*stats = (struct spill_stats){.state = SPILL_DOWN, .last_errno = -member->error, .since = member->since};
	counts_add(stats, &member->past);
	snprintf(stats->message, sizeof(stats->message), "%.210s%s", member->message,
		member_is_missing(member) ? "; looked for every other second" : "");
}

/* The worst message is the one to be seen: it says which store. */
void spill_set_stats(const struct spill_set *set, struct spill_stats *all)
{
	if (set_only(set)) {
		spill_stats(set_only(set), all);
		return;
	}
	*all = (struct spill_stats){
		.state = SPILL_DOWN, .uring = true, .direct = true, .encrypted = set->members[0].opts.keys != NULL};
	for (unsigned i = 0; i < set->n; i++) {
		struct spill_stats one;

		spill_set_store_stats(set, i, &one);
		if (one.state == SPILL_UP || (one.state == SPILL_FULL && all->state == SPILL_DOWN))
			all->state = one.state;
		if (one.message[0] && (!all->message[0] || one.state == SPILL_DOWN))
			memcpy(all->message, one.message, sizeof(all->message));
		all->takes_writes |= one.takes_writes;
		all->last_errno = one.last_errno ? one.last_errno : all->last_errno;
		counts_add(all, &one);
		if (!set->members[i].spill)
			continue;
		all->uring &= one.uring;
		all->direct &= one.direct;
		all->queued_bytes += one.queued_bytes;
		all->capacity += one.capacity;
		all->used_bytes += one.used_bytes;
		all->live_bytes += one.live_bytes;
		all->live_records += one.live_records;
		all->in_flight += one.in_flight;
		/* the fastest: what slows that one down does not pay */
		if (one.read_ns_per_byte > 0 &&
			(all->read_ns_per_byte <= 0 || one.read_ns_per_byte < all->read_ns_per_byte))
			all->read_ns_per_byte = one.read_ns_per_byte;
	}
}
