/* pressure.c - see pressure.h */
#include "pressure.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "resize.h"

#define LOOK_NS 500000000ull
#define DOWN_NS 2000000000ull /* between two steps down: the first must show in the figure */
#define CALM_NS 5000000000ull /* so long it must be calm before a step up */
#define STEPS 16u /* of --pool */
#define FLOOR 4u /* a quarter is kept */

struct pressure {
	struct daemon *d;
	struct loop_timer timer;
	char path[600];
	uint64_t last_step_ns, calm_since_ns;
	bool unreadable;
};

/* The file of our cgroup (version 2), or the host's. */
static void pressure_find(struct pressure *p)
{
	char line[512];
	FILE *file;

	snprintf(p->path, sizeof(p->path), "%s", p->d->config.pressure_file);
	if (p->path[0])
		return;
	file = fopen("/proc/self/cgroup", "re");
	while (file && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "0::", 3))
			snprintf(p->path, sizeof(p->path), "/sys/fs/cgroup%s/memory.pressure", line + 3);
	}
	if (file)
		fclose(file);
	file = p->path[0] ? fopen(p->path, "re") : NULL;
	if (file)
		fclose(file);
	else
		strcpy(p->path, "/proc/pressure/memory");
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

static void pressure_step(struct pressure *p, uint64_t budget, double percent)
{
	struct daemon *d = p->d;
	uint64_t had = d->budget_bytes;

	p->last_step_ns = p->calm_since_ns = loop_now();
	if (!resize_to(d, budget))
		return; /* an operator's resize is under way: that first */
	d->pool.stats->pressure_message[0] = 0;
	if (budget < d->config.pool_bytes)
		snprintf(d->pool.stats->pressure_message, sizeof(d->pool.stats->pressure_message),
			"%" PRIu64 " of %" PRIu64
			" bytes are given back: memory was short (%.1f %% of the time at the last step, limit %u %%; %.80s)",
			d->config.pool_bytes - budget, d->config.pool_bytes, percent, d->config.pressure_percent,
			p->path);
	gauge_set(&d->pool.stats->counters.given_back_bytes, d->config.pool_bytes - budget);
	log_info("memory pressure is %.1f %%: the budget goes from %" PRIu64 " to %" PRIu64 " bytes", percent, had,
		budget);
}

static void pressure_look(struct loop_timer *timer)
{
	struct pressure *p = timer->owner;
	struct daemon *d = p->d;
	uint64_t now = loop_now(), pool = d->config.pool_bytes, slab = d->pool.header->slab_bytes;
	uint64_t step = pool / STEPS > slab ? pool / STEPS / slab * slab : slab, least = pool / FLOOR;
	uint32_t limit = d->config.pressure_percent; /* a reload may change it */
	double percent = 0;
	int r = limit ? pressure_read(p, &percent) : 0;

	loop_timer_set(d->loop, &p->timer, now + LOOK_NS);
	if (r < 0 && !p->unreadable)
		log_warn("memory pressure cannot be watched: %s: %s; memory is not given back by itself", p->path,
			r == -EPROTO ? "not of the form \"some avg10=...\"" : strerror(-r));
	p->unreadable = r < 0;
	if (r < 0 || (limit && percent * 2 >= limit))
		p->calm_since_ns = now;
	if (r < 0)
		return;
	if (limit && percent > limit && now - p->last_step_ns >= DOWN_NS && d->budget_bytes > least + slab)
		pressure_step(p, d->budget_bytes > least + step ? d->budget_bytes - step : least, percent);
	else if (now - p->calm_since_ns >= CALM_NS && d->budget_bytes < pool)
		pressure_step(p, d->budget_bytes + step < pool ? d->budget_bytes + step : pool, percent);
}

int pressure_start(struct daemon *d)
{
	struct pressure *p = calloc(1, sizeof(*p));

	gauge_set(&d->pool.stats->counters.given_back_bytes, 0);
	d->pool.stats->pressure_message[0] = 0;
	if (!p)
		return -ENOMEM;
	p->d = d;
	p->timer = (struct loop_timer){.ring = pressure_look, .owner = p};
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
	free(d->pressure);
	d->pressure = NULL;
}
