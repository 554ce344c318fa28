/*
 * main.c - kvpoold: start in order, serve, stop in order
 *
 * Start: configuration, lock of the pool, memory, namespaces, sessions, descriptors, spill store, sockets; only then
 * readiness is told.  Stop: sockets, what is in flight, and all shared memory stays for the next start.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "block.h"
#include "crash.h"
#include "daemon.h"
#include "fault.h"
#include "guard.h"
#include "kvpool_stdio.h"
#include "listener.h"
#include "log.h"
#include "namespace.h"
#include "notify.h"
#include "orphan.h"
#include "peer.h"
#include "pressure.h"
#include "quota.h"
#include "resize.h"
#include "reuse.h"
#include "session.h"
#include "slab.h"
#include "tier.h"

#define BEAT_NS (KVP_TICK_MS * 1000000ull) /* with clients: stamps and liveness */
#define IDLE_BEAT_NS 200000000ull /* without */
#define LOOK_NS 100000000ull
#define TIER_NS 50000000ull

struct beat {
	struct daemon *d;
	struct loop_timer timer;
	uint64_t next_look, next_tier, next_watchdog, watchdog_ns, last_turn, log_lost;
	bool ready_told; /* else at the next beat */
};
struct signals {
	struct daemon *d;
	struct beat *beat;
	struct loop_source source;
	int argc;
	char **argv;
};

static void beat_ring(struct loop_timer *timer)
{
	struct beat *beat = timer->owner;
	struct daemon *d = beat->d;
	uint64_t now = loop_now(), late_us = beat->timer.deadline_ns && now > beat->timer.deadline_ns
						     ? (now - beat->timer.deadline_ns) / 1000
						     : 0;

	/* a beat comes as late as the turn before it was long */
	if (late_us > atomic_load_explicit(&d->pool.stats->counters.loop_max_us, memory_order_relaxed))
		gauge_set(&d->pool.stats->counters.loop_max_us, late_us);
	if (!FAULT_INT("clock.still", 0)) /* else it is for a test to say how late it is */
		atomic_store_explicit(&d->pool.header->tick, (uint32_t)(now / BEAT_NS), memory_order_relaxed);
	atomic_store_explicit(&d->pool.header->heartbeat_ns, now, memory_order_relaxed);
	gauge_set(&d->pool.stats->counters.meta_bytes, d->pool.meta_bytes);
	if (log_lost() != beat->log_lost) {
		atomic_fetch_add_explicit(
			&d->pool.stats->counters.log_lines_lost, log_lost() - beat->log_lost, memory_order_relaxed);
		beat->log_lost = log_lost();
	}
	peer_bury(d);
	if (now >= beat->next_look) {
		beat->next_look = now + LOOK_NS;
		session_look(d);
		slab_look(d);
		orphan_step(d);
		block_sweep(d);
		block_take_late(d);
		quota_look(d);
	}
	if (now >= beat->next_tier) {
		beat->next_tier = now + TIER_NS;
		tier_tick(d);
		reuse_tick(d);
	}
	if (beat->watchdog_ns && now >= beat->next_watchdog) {
		beat->next_watchdog = now + beat->watchdog_ns / 4;
		notify_say(0, "WATCHDOG=1");
	}
	if (!beat->ready_told)
		beat->ready_told = notify_say(0, "READY=1\nSTATUS=serving");
	loop_timer_set(d->loop, timer, now + (d->n_sessions || d->n_peers ? BEAT_NS : IDLE_BEAT_NS));
}

static void daemon_dump(struct daemon *d)
{
	log_info("state: %u sessions, %u connections, %" PRIu64 " bytes in slabs of which %" PRIu64 " spare",
		d->n_sessions, d->n_peers, d->slab_bytes_total, slab_spare_bytes(d));
	for (struct ns *ns = d->namespaces; ns; ns = ns->next) {
		struct kvp_ns_counters *c = &ns->row->counters;

		log_info("state: namespace %s of uid %u: %" PRIu64 " slots, %" PRIu64 " free, %" PRIu64
			 " granted, %" PRIu64 " published (%" PRIu64 " held), %" PRIu64 " cold, %" PRIu64
			 " being written",
			ns->head->name, ns->head->owner_uid, ns->n_slots, ns->n_free,
			(uint64_t)atomic_load(&c->granted), (uint64_t)atomic_load(&c->published),
			(uint64_t)atomic_load(&c->held), (uint64_t)atomic_load(&c->cold), ns->n_writing);
	}
}

static void daemon_log_level(const struct config *config)
{
	log_set_level(!strcmp(config->log_level, "err")	    ? LOG_LEVEL_ERR
		      : !strcmp(config->log_level, "warn")  ? LOG_LEVEL_WARN
		      : !strcmp(config->log_level, "debug") ? LOG_LEVEL_DEBUG
							    : LOG_LEVEL_INFO);
}

/* What was asked for a pool that is to be made, and is not heeded for one that is there. */
static void daemon_tell_slab(const struct pool *pool, const struct config *config)
{
	if (config->slab_asked && config->slab_bytes != pool->header->slab_bytes)
		log_warn("slab = %" PRIu64 ": this pool was made with %" PRIu64 " and stays so until kvctl purge",
			config->slab_bytes, pool->header->slab_bytes);
}

/* A pool is whole slabs. */
static void daemon_tell_rest(const struct pool *pool, const struct config *config)
{
	uint64_t slab = pool->header->slab_bytes, rest = config->pool_bytes % slab;

	if (rest >= CONFIG_SLAB_MIN)
		log_info("pool = %" PRIu64 " is %" PRIu64 " slabs of %" PRIu64 " bytes, the other %" PRIu64
			 " bytes are not used: make it a multiple of the slab",
			config->pool_bytes, config->pool_bytes / slab, slab, rest);
}

/* SIGHUP: what may change while serving. */
static void daemon_reload(struct signals *signals)
{
	struct config *now = &signals->d->config, fresh;
	char message[256] = "";

	config_defaults(&fresh);
	if (config_parse_args(&fresh, signals->argc, signals->argv, message) < 0) {
		log_err("not reloaded, the old values stay: %s", message);
		return;
	}
	if (config_reload(now, &fresh, message))
		log_warn("reload: %s: as before until the next start", message);
	daemon_log_level(now);
	quota_stats(signals->d);
	log_info("reloaded");
}

static void signals_ready(struct loop_source *source, uint32_t events)
{
	struct signals *signals = source->owner;
	struct signalfd_siginfo info;

	(void)events;
	while (read(source->fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		switch (info.ssi_signo) {
		case SIGHUP:
			notify_say(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, loop_now() / 1000);
			daemon_reload(signals);
			signals->beat->ready_told = notify_say(0, "READY=1");
			break;
		case SIGUSR1:
			daemon_dump(signals->d);
			break;
		default:
			loop_stop(signals->d->loop);
		}
	}
}

static int signals_start(struct daemon *d, struct signals *signals)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	signals->d = d;
	signals->source = (struct loop_source){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK),
		.events = LOOP_IN,
		.ready = signals_ready,
		.owner = signals};
	return signals->source.fd < 0 ? -errno : loop_add(d->loop, &signals->source);
}

static void raise_limits(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* Everything before the sockets, in the order the protocol wants. */
static int daemon_start(struct daemon *d, char message[256])
{
	int r;

	r = ns_file_check(&d->config, message); /* at once: making a large pool takes its time */
	if (r == 0)
		r = listener_check(&d->config, message);
	if (r < 0)
		return r;
	r = topology_open(&d->topology);
	if (r < 0) {
		snprintf(message, 256, "hwloc cannot read the machine's topology: is /sys mounted?");
		return r;
	}
	r = pool_open(&d->pool, &d->config, message);
	if (r < 0)
		return r;
	crash_attach(d->pool.header);
	if (d->pool.found && atomic_load(&d->pool.before.state) != KVP_DAEMON_STOPPED)
		crash_tell_last(d->pool.header, d->pool.before.daemon_pid);
	daemon_tell_slab(&d->pool, &d->config);
	daemon_tell_rest(&d->pool, &d->config);
	randombytes_buf(&d->policy_seed, sizeof(d->policy_seed));
	d->policy_seed = (uint64_t)FAULT_INT("policy.seed", (int64_t)d->policy_seed);
	atomic_store(&d->pool.header->tick, (uint32_t)(loop_now() / BEAT_NS));
	d->old_io = d->pool.found && pool_old_io(&d->pool);
	if ((r = slab_start(d, message)) < 0 || (r = ns_start(d, message)) < 0 || (r = session_start(d, message)) < 0)
		return r;
	pool_progress(&d->pool, "taking over the blocks in memory");
	ns_adopt_blocks(d);
	ns_file_load_all(d);
	quota_stats(d);
	pool_progress(&d->pool, "opening the spill store");
	r = tier_start(d, message);
	if (r == 0)
		r = reuse_start(d);
	if (r == 0)
		r = resize_start(d);
	if (r == 0)
		r = pressure_start(d);
	if (r < 0)
		return r;
	peer_start(d);
	return listener_start(d, message);
}

static void daemon_stop(struct daemon *d)
{
	uint64_t kept = 0, blocks = 0;

	d->stopping = true;
	notify_say(0, "STOPPING=1");
	listener_stop(d);
	peer_stop(d);
	pressure_stop(d);
	resize_stop(d);
	tier_stop(d);
	reuse_stop(d);
	for (struct ns *ns = d->namespaces; ns; ns = ns->next)
		blocks += atomic_load(&ns->row->counters.published);
	kept = d->slab_bytes_total;
	session_stop(d);
	ns_stop(d);
	slab_stop(d);
	if (d->pool.header && d->served)
		atomic_store(&d->pool.header->state, KVP_DAEMON_STOPPED);
	else if (d->pool.header)
		pool_put_back(&d->pool);
	if (d->purge_at_end)
		pool_purge(&d->pool, &d->config);
	else if (d->pool.header && d->served)
		log_info("stopped: %" PRIu64 " bytes of shared memory with %" PRIu64
			 " blocks stay for the next start; kvctl purge --name %s frees them",
			kept, blocks, d->config.name);
	crash_attach(NULL);
	pool_close(&d->pool);
	topology_close(d->topology);
	free(d->tier);
	d->tier = NULL;
}

static int daemon_serve(struct daemon *d, int argc, char **argv)
{
	struct beat beat = {.d = d, .timer = {.ring = beat_ring}, .ready_told = true};
	struct signals signals = {.beat = &beat, .argc = argc, .argv = argv};
	uint64_t watchdog_us = 0, started = loop_now();
	char message[256] = "", engine[256] = "";
	int r;

	r = loop_open(&d->loop, strcmp(d->config.io, "threads") != 0, engine);
	if (r < 0)
		snprintf(message, 256, "cannot make the serving loop: %s", strerror(-r));
	if (r == 0)
		r = signals_start(d, &signals);
	if (r == 0)
		r = daemon_start(d, message);
	if (r == 0) {
		log_info("%s", engine);
		if (sd_watchdog_enabled(0, &watchdog_us) > 0)
			beat.watchdog_ns = watchdog_us * 1000;
		beat.timer.owner = &beat;
		d->beat = &beat.timer;
		d->served = true;
		gauge_set(&d->pool.stats->counters.loop_max_us, 0);
		atomic_store(&d->pool.header->state, KVP_DAEMON_SERVING);
		beat_ring(&beat.timer);
		log_info("serving pool %s on %s: %" PRIu64
			 " bytes in slabs, %u namespaces, %u sessions adopted, ready after %" PRIu64 " ms",
			d->config.name, d->config.socket, d->slab_bytes_total, d->n_namespaces, d->n_sessions,
			(loop_now() - started) / 1000000);
		beat.ready_told = notify_say(NOTIFY_START_MS, "READY=1\nSTATUS=serving");
		r = loop_run(d->loop);
		if (r < 0)
			log_err("the serving loop failed: %s", strerror(-r));
	} else {
		log_err("not started: %s", message[0] ? message : strerror(-r));
		d->purge_at_end = d->pool.header && !d->pool.found; /* nobody has used it: leave nothing behind */
	}
	daemon_stop(d);
	loop_close(d->loop);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	static struct daemon d;
	char message[256] = "";
	gid_t gid;
	int r;

	if (kvp_stdio_hold() < 0)
		return EXIT_FAILURE; /* nothing to say it on */
	log_open();
	config_defaults(&d.config);
	r = config_parse_args(&d.config, argc, argv, message);
	if (r > 0)
		return EXIT_SUCCESS;
	if (r == 0)
		r = pool_group(&d.config, &gid, message);
	if (r < 0) {
		log_err("%s", message);
		return 2;
	}
	daemon_log_level(&d.config);
	if (sodium_init() < 0 || crash_init() < 0 || guard_init() < 0) {
		log_err("cannot initialise: no random numbers, or no signal handlers");
		return EXIT_FAILURE;
	}
	raise_limits();
	return daemon_serve(&d, argc, argv);
}
