/* pressure.c - see pressure.h */
#include "pressure.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "cgroup.h"
#include "log.h"
#include "resize.h"

#define LOOK_NS 500000000ull
#define DOWN_NS 2000000000ull /* between two steps down: the first must show in the figure */
#define CALM_NS 5000000000ull /* so long it must be calm before a step up */
#define STEPS 16u /* of --pool */
#define FLOOR 4u /* a quarter is kept */
#define WINDOW_US 2000000u /* of a trigger: the one users without capabilities may ask for */

struct pressure {
	struct daemon *d;
	struct loop_timer timer;
	struct loop_source
		trigger; /* an epoll instance with the trigger in it: io_uring tells no POLLPRI (tried); fd -1: none */
	int trigger_fd;
	uint32_t armed_percent; /* for which the trigger was set, or refused */
	bool triggered;
	char path[CGROUP_PATH_MAX];
	uint64_t last_step_ns, calm_since_ns;
	bool unreadable;
};

/* What was seen in one look. */
struct sight {
	bool short_time, triggered, short_room, calm;
	double percent;
	struct cgroup_use cgroup;
	int64_t room; /* of the cgroup's limit, with the whole budget allocated */
};

/* The file of our cgroup (version 2), or the host's. */
static void pressure_find(struct pressure *p)
{
	char own[CGROUP_PATH_MAX];

	snprintf(p->path, sizeof(p->path), "%s", p->d->config.pressure_file);
	if (p->path[0])
		return;
	if (!cgroup_own(own) || snprintf(p->path, sizeof(p->path), "%s/memory.pressure", own) >= (int)sizeof(p->path) ||
		access(p->path, R_OK) < 0)
		cgroup_file(p->path, "/proc/pressure/memory");
}

/* Percent of the last ten seconds in which somebody waited for memory. Return: 0; -errno. */
static int pressure_read(struct pressure *p, double *percent)
{
	FILE *file = fopen(p->path, "re");
	int n;

	if (!file)
		return -errno;
	n = fscanf(file, "some avg10=%lf", percent);
	fclose(file);
	return n == 1 ? 0 : -EPROTO;
}

/* ---- the trigger ---- */

static void trigger_end(struct pressure *p)
{
	if (p->trigger.fd < 0)
		return;
	loop_del(p->d->loop, &p->trigger);
	close(p->trigger.fd);
	close(p->trigger_fd);
	p->trigger.fd = p->trigger_fd = -1;
	p->d->pool.stats->pressure_watch = KVP_PRESSURE_LOOKED_AT;
}

static void pressure_look(struct loop_timer *timer);

static void trigger_ready(struct loop_source *source, uint32_t events)
{
	struct pressure *p = source->owner;
	struct epoll_event event = {.events = 0};

	(void)events; /* having been told is the event: looking at the trigger may already have taken it */
	if (epoll_wait(source->fd, &event, 1, 0) == 1 && event.events & (EPOLLERR | EPOLLHUP)) { /* the group is gone */
		trigger_end(p);
		return;
	}
	p->triggered = true;
	pressure_look(&p->timer);
}

/* Return: 0; -errno: triggers are refused here, or this is no file of the kernel's. */
static int trigger_set(struct pressure *p, uint32_t percent)
{
	struct epoll_event event = {.events = EPOLLPRI};
	struct statfs fs;
	char text[64];
	int r = 0, fd = open(p->path, O_RDWR | O_CLOEXEC | O_NONBLOCK), epoll = -1;

	if (fd < 0)
		return -errno;
	snprintf(text, sizeof(text), "some %u %u", percent * (WINDOW_US / 100), WINDOW_US);
	if (fstatfs(fd, &fs) < 0 || (fs.f_type != PROC_SUPER_MAGIC && fs.f_type != CGROUP2_SUPER_MAGIC))
		r = -ENOTSUP;
	else if (write(fd, text, strlen(text) + 1) < 0 || (epoll = epoll_create1(EPOLL_CLOEXEC)) < 0 ||
		 epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
		r = -errno;
	p->trigger.fd = epoll;
	p->trigger_fd = fd;
	if (r == 0)
		r = loop_add(p->d->loop, &p->trigger);
	if (r == 0)
		return 0;
	if (epoll >= 0)
		close(epoll);
	close(fd);
	p->trigger.fd = p->trigger_fd = -1;
	return r;
}

/* A reload may change the limit. */
static void trigger_follow(struct pressure *p, uint32_t percent)
{
	int r;

	if (p->armed_percent == percent)
		return;
	p->armed_percent = percent;
	trigger_end(p);
	p->d->pool.stats->pressure_watch = KVP_PRESSURE_OFF;
	if (!percent)
		return;
	r = trigger_set(p, percent);
	p->d->pool.stats->pressure_watch = r < 0 ? KVP_PRESSURE_LOOKED_AT : KVP_PRESSURE_TRIGGER;
	if (r < 0)
		log_info("memory pressure: %s is looked at twice a second (a trigger is refused: %s)", p->path,
			strerror(-r));
	else
		log_info("memory pressure: %s tells by a trigger", p->path);
}

/* ---- looking and stepping ---- */

static void sight_of_time(struct pressure *p, struct sight *sight)
{
	uint32_t limit = p->d->config.pressure_percent;
	int r = limit ? pressure_read(p, &sight->percent) : 0;

	if (r < 0 && !p->unreadable)
		log_warn("memory pressure cannot be watched: %s: %s; memory is not given back by itself for it",
			p->path, r == -EPROTO ? "not of the form \"some avg10=...\"" : strerror(-r));
	if (p->unreadable != (r < 0))
		p->d->pool.stats->pressure_watch = r < 0	       ? KVP_PRESSURE_UNREADABLE
						   : p->trigger.fd < 0 ? KVP_PRESSURE_LOOKED_AT
								       : KVP_PRESSURE_TRIGGER;
	p->unreadable = r < 0;
	sight->triggered = p->triggered;
	sight->short_time = limit && r == 0 && (sight->percent > limit || p->triggered);
	sight->calm &= !limit || (r == 0 && sight->percent * 2 < limit && !p->triggered);
	p->triggered = false;
}

static void sight_of_room(struct pressure *p, struct sight *sight)
{
	struct daemon *d = p->d;
	uint64_t in_shm = d->slab_bytes_total + d->leaving_bytes + d->stage_bytes + d->pool.meta_bytes, keep;
	bool huge = kvp_pages_in_hugetlbfs(d->pool.header->pages);

	for (unsigned i = 0; huge && i < topology_n_nodes(d->topology); i++)
		in_shm -= d->nodes[i].huge; /* charged to nobody's memory limit */
	sight->cgroup.limit = UINT64_MAX;
	if (d->config.cgroup_headroom)
		cgroup_use(&sight->cgroup, in_shm);
	if (sight->cgroup.limit == UINT64_MAX)
		return;
	/* what is on its way out is as good as gone, what is on its way in as good as there */
	sight->room = (int64_t)(sight->cgroup.limit - sight->cgroup.used + d->slab_bytes_total - d->budget_bytes);
	keep = sight->cgroup.limit / 100 * d->config.cgroup_headroom;
	sight->short_room = sight->room < (int64_t)keep;
	sight->calm &= sight->room > (int64_t)(2 * keep + d->pool.header->slab_bytes);
}

static void pressure_say_why(struct pressure *p, const struct sight *sight)
{
	struct daemon *d = p->d;
	char why[160];

	if (sight->short_room)
		snprintf(why, sizeof(why), "%.60s uses %" PRIu64 " bytes of its limit of %" PRIu64, sight->cgroup.path,
			sight->cgroup.used, sight->cgroup.limit);
	else if (sight->short_time && sight->triggered)
		snprintf(why, sizeof(why), "memory was short (more than %u %% of 2 s, by the trigger in %.60s)",
			d->config.pressure_percent, p->path);
	else if (sight->short_time)
		snprintf(why, sizeof(why),
			"memory was short (%.1f %% of the time at the last step, limit %u %%; %.60s)", sight->percent,
			d->config.pressure_percent, p->path);
	else
		snprintf(why, sizeof(why), "memory was short, and comes back a step every %u s",
			(unsigned)(CALM_NS / 1000000000));
	d->pool.stats->pressure_message[0] = 0;
	if (d->budget_bytes < d->config.pool_bytes)
		snprintf(d->pool.stats->pressure_message, sizeof(d->pool.stats->pressure_message),
			"%" PRIu64 " of %" PRIu64 " bytes are given back: %s", d->config.pool_bytes - d->budget_bytes,
			d->config.pool_bytes, why);
	gauge_set(&d->pool.stats->counters.given_back_bytes, d->config.pool_bytes - d->budget_bytes);
}

static void pressure_step(struct pressure *p, uint64_t budget, const struct sight *sight)
{
	struct daemon *d = p->d;
	uint64_t had = d->budget_bytes;

	p->last_step_ns = p->calm_since_ns = loop_now();
	if (!resize_to(d, budget))
		return; /* an operator's resize is under way: that first */
	pressure_say_why(p, sight);
	log_info("the budget goes from %" PRIu64 " to %" PRIu64 " bytes%s%s", had, budget,
		d->pool.stats->pressure_message[0] ? ": " : "", d->pool.stats->pressure_message);
}

static void pressure_look(struct loop_timer *timer)
{
	struct pressure *p = timer->owner;
	struct daemon *d = p->d;
	uint64_t now = loop_now(), pool = d->config.pool_bytes, slab = d->pool.header->slab_bytes;
	uint64_t step = pool / STEPS > slab ? pool / STEPS / slab * slab : slab, least = pool / FLOOR;
	struct sight sight = {.calm = true};

	loop_timer_set(d->loop, &p->timer, now + LOOK_NS);
	trigger_follow(p, d->config.pressure_percent);
	sight_of_time(p, &sight);
	sight_of_room(p, &sight);
	if (!sight.calm)
		p->calm_since_ns = now;
	if ((sight.short_time || sight.short_room) && now - p->last_step_ns >= DOWN_NS &&
		d->budget_bytes > least + slab) {
		uint64_t keep = sight.short_room ? sight.cgroup.limit / 100 * d->config.cgroup_headroom : 0;
		uint64_t lacks = sight.short_room ? (keep - (uint64_t)sight.room + slab - 1) / slab * slab : 0;

		step = step > lacks ? step : lacks;
		pressure_step(p, d->budget_bytes > least + step ? d->budget_bytes - step : least, &sight);
	} else if (now - p->calm_since_ns >= CALM_NS && d->budget_bytes < pool) {
		pressure_step(p, d->budget_bytes + step < pool ? d->budget_bytes + step : pool, &sight);
	}
}

int pressure_start(struct daemon *d)
{
	struct pressure *p = calloc(1, sizeof(*p));

	gauge_set(&d->pool.stats->counters.given_back_bytes, 0);
	d->pool.stats->pressure_message[0] = 0;
	d->pool.stats->pressure_watch = KVP_PRESSURE_OFF;
	if (!p)
		return -ENOMEM;
	p->d = d;
	p->timer = (struct loop_timer){.ring = pressure_look, .owner = p};
	p->trigger = (struct loop_source){.fd = -1, .events = LOOP_IN, .ready = trigger_ready, .owner = p};
	p->calm_since_ns = loop_now();
	pressure_find(p);
	d->pressure = p;
	loop_timer_set(d->loop, &p->timer, loop_now());
	return 0;
}

void pressure_stop(struct daemon *d)
{
	if (!d->pressure)
		return;
	loop_timer_cancel(d->loop, &d->pressure->timer);
	trigger_end(d->pressure);
	free(d->pressure);
	d->pressure = NULL;
}
