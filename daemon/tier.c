/*
 * tier.c - see tier.h: the store that is opened, written to, looked at and closed
 *
 * Of its files this is the one that starts and stops; tier_room.c makes room, tier_restore.c brings blocks back,
 * tier_jobs.c has who waits, tier_admin.c what an operator asks for.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "block.h"
#include "events.h"
#include "guard.h"
#include "kvpool_cipher.h"
#include "kvpool_desc.h"
#include "io_memory.h"
#include "log.h"
#include "policy.h"
#include "quota_spill.h"
#include "slab.h"
#include "spill_set.h"
#include "tier_parts.h"

#define CHILDREN_LOOKED_AT 64
#define PROGRESS_NS 5000000000ull /* between lines that tell how far the start is */
#define BIRTHS_NS 2000000ull /* in a tick for namespaces of a store that came back */
#define LINK_BUCKETS 16384 /* of keys, linked in a tick: some milliseconds */

/* ---- writes ---- */

double tier_read_ns(const struct daemon *d, uint64_t bytes)
{
	return d->tier ? d->tier->read_ns_per_byte * (double)bytes : 0;
}

bool tier_on(const struct daemon *d)
{
	struct spill_stats stats;

	if (!d->tier || !d->tier->spill)
		return false;
	spill_set_stats(d->tier->spill, &stats);
	return stats.takes_writes;
}

struct spill_record entry_record(const struct entry *e)
{
	return (struct spill_record){.ns_id = e->ns->id,
		.key = e->key,
		.parent = e->parent_key,
		.bytes = e->bytes,
		.used_tokens = e->used_tokens};
}

static void tier_written(void *owner, int res, spill_place place)
{
	struct entry *e = owner;
	struct ns *ns = e->ns;

	ns_slot(ns, e->slot)->io--;
	e->io = ENTRY_IDLE;
	ns->n_writing--;
	if (res == 0)
		tier_packed(ns, place);
	if (res == 0 && guard_condemned(ns_slab(ns, e->slot)->guard)) {
		/* a writer cut the slab meanwhile: what was written is not what was published */
		spill_set_forget(ns->d->tier->spill, place);
		res = -EFAULT;
	}
	if (res == 0) {
		if (e->cold) { /* written again: that one was old */
			spill_set_forget(ns->d->tier->spill, e->cold);
		} else {
			gauge_add(&ns->row->counters.clean, 1);
			events_stored(e, KVP_HIT_SPILL);
		}
		e->cold = place;
	}
	if (e->awaited)
		drain_written(ns->d->tier, res);
	e->awaited = false;
	ns_entry_settle(e);
	if (ns->d->stopping)
		return;
	/* in turns: neither has to wait for the other to want nothing */
	ns->d->tier->drain_first = !ns->d->tier->drain_first;
	if (ns->d->tier->drain_first)
		drain_step(ns->d->tier);
	tier_serve(ns);
	if (!ns->d->tier->drain_first)
		drain_step(ns->d->tier);
	evict_step(ns->d->tier);
}

/* Counted each time, said once for each greater length. */
static void tier_too_long(struct ns *ns, uint64_t bytes)
{
	struct tier *tier = ns->d->tier;

	gauge_add(&ns->d->pool.stats->counters.spill_too_long, 1);
	if (bytes <= tier->too_long)
		return;
	tier->too_long = bytes;
	log_warn(
		"spill store %s: blocks of %" PRIu64 " bytes (namespace %s) are longer than its segments hold, %" PRIu64
		" bytes: they are dropped, not written; to have them written too, stop kvpoold, remove the store and start: "
		"it is then made for them",
		ns->d->config.stores[0].path, bytes, ns->head->name, spill_set_longest(tier->spill));
}

static uint64_t tier_today(void)
{
	return (uint64_t)time(NULL) / 86400;
}

/* What was written today, over restarts of the daemon too; a new day begins at 0, but one to which the clock was put
   back has had its budget. */
static uint64_t tier_written_today(struct tier *tier)
{
	struct kvp_counters *c = &tier->d->pool.stats->counters;
	uint64_t today = tier_today();

	if (today > atomic_load(&c->spill_day))
		gauge_set(&c->spill_day_bytes, 0);
	gauge_set(&c->spill_day, today);
	return atomic_load(&c->spill_day_bytes);
}

/* Does something hang below it in the store, that nobody could find without it? Of very many nobody asks. */
static bool entry_is_needed(const struct entry *e)
{
	unsigned looked = 0;

	for (const struct entry *child = e->first_child; child; child = child->next_sibling)
		if (child->cold || ++looked == CHILDREN_LOOKED_AT)
			return true;
	return false;
}

/* As it is said now. */
static struct admission *tier_admission(const struct daemon *d)
{
	const struct config *config = &d->config;
	struct admission *a = &d->tier->admission;
	enum admission_kind kind = !strcmp(config->spill_admit, "reused")   ? ADMIT_REUSED
				   : !strcmp(config->spill_admit, "chance") ? ADMIT_CHANCE
									    : ADMIT_ALL;
	double budget = config->spill_admit_percent / 100.0;

	if (!a->horizon_s || a->kind != kind)
		admission_init(a, kind, budget);
	a->budget = budget;
	return a;
}

/* A namespace that goes by least recent use knows nothing of uses: all of it is written. */
static bool tier_admits(const struct entry *e)
{
	struct admission *a = tier_admission(e->ns->d);

	if (a->kind == ADMIT_ALL || !e->ns->learned)
		return true;
	return admission_offer(a, entry_is_needed(e), policy_uses(e->ns, e),
		a->kind == ADMIT_CHANCE ? policy_chance(e->ns, e, a->horizon_s) : 0);
}

static bool tier_has_budget(const struct entry *e)
{
	struct daemon *d = e->ns->d;

	return !d->config.spill_write_budget || tier_written_today(d->tier) + e->bytes <= d->config.spill_write_budget;
}

bool tier_may_write(const struct entry *e)
{
	struct kvp_counters *c = &e->ns->d->pool.stats->counters;

	if (!tier_admits(e)) {
		gauge_add(&c->spill_not_admitted, 1);
		return false;
	}
	if (tier_has_budget(e))
		return true;
	gauge_add(&c->spill_over_budget, 1);
	return false;
}

bool tier_may_write_again(const struct entry *e)
{
	struct ns *ns = e->ns;
	struct admission *a = tier_admission(ns->d);
	double left = ns->learned ? admission_left(a, spill_set_passed(ns->d->tier->spill, e->cold)) : -1;

	return left >= 0 && tier_has_budget(e) &&
	       admission_again(a, policy_chance(ns, e, a->horizon_s) - policy_chance(ns, e, left));
}

int tier_write(struct entry *e)
{
	struct spill_record record = entry_record(e);
	int r;

	if (!quota_spill_allows(e->ns, e->bytes))
		return -EDQUOT;
	record.codec = tier_codec(e->ns);
	r = spill_set_write(e->ns->d->tier->spill, &record, ns_slot_data(e->ns, e->slot), e, tier_written, e);

	if (r == -EFBIG)
		tier_too_long(e->ns, record.bytes);
	if (r < 0)
		return r;
	tier_written_today(e->ns->d->tier);
	gauge_add(&e->ns->d->pool.stats->counters.spill_day_bytes, (int64_t)record.bytes);
	e->io = ENTRY_WRITING;
	ns_slot(e->ns, e->slot)->io++;
	e->ns->n_writing++;
	policy_remove(e->ns, e);
	return 0;
}

/* ---- the store ---- */

void tier_cold_forget(struct daemon *d, spill_place place)
{
	if (d->tier && d->tier->spill)
		spill_set_forget(d->tier->spill, place);
}

void tier_gone(void *owner, void *cookie)
{
	struct entry *e = cookie;

	(void)owner;
	if (!e->cold)
		return;
	e->cold = 0;
	events_removed(e, KVP_HIT_SPILL);
	if (e->slot != NO_SLOT) {
		gauge_add(&e->ns->row->counters.clean, -1);
		return;
	}
	gauge_add(&e->ns->row->counters.cold, -1);
	if (e->ns->d->tier->admission.horizon_s && e->stamp) /* for how long blocks stay */
		admission_lost(
			&e->ns->d->tier->admission, (double)(daemon_tick(e->ns->d) - e->stamp) * KVP_TICK_MS / 1e3);
	if (e->io != ENTRY_IDLE)
		return; /* whoever works on it sees that it has no place any more */
	ns_ghost_add(
		e->ns, &e->key, spill_set_telling_damage(e->ns->d->tier->spill) ? KVP_MISS_DAMAGED : KVP_MISS_EVICTED);
	if (spill_set_telling_pulled(e->ns->d->tier->spill))
		ns_entry_part(e); /* what comes after it is found again behind it when the drive is back */
	else
		ns_entry_drop(e);
}

static void *tier_found(void *owner, const struct spill_record *record, spill_place place)
{
	struct daemon *d = owner;
	struct ns *ns = ns_find(d, record->ns_id);
	struct entry *e;

	d->tier->n_nobodys += !ns;
	if (!ns || record->bytes > ns->head->block_bytes || record->used_tokens > ns->head->desc.block_tokens ||
		kvp_key_is_none(&record->key))
		return NULL;
	e = ns_entry(ns, &record->key);
	if (!e)
		e = ns_entry_add(ns, &record->key, &record->parent);
	if (!e || e->doomed || (e->cold && d->served)) /* of one that came back: what is known is of a newer run */
		return NULL;
	if (e->slot != NO_SLOT && (e->bytes != record->bytes || e->used_tokens != record->used_tokens))
		return NULL; /* it would not be taken for this block's when it is read */
	if (e->cold) /* written twice: the later one counts */
		spill_set_forget(d->tier->spill, e->cold);
	else
		gauge_add(e->slot == NO_SLOT ? &ns->row->counters.cold : &ns->row->counters.clean, 1);
	e->cold = place;
	if (e->slot == NO_SLOT) {
		e->bytes = record->bytes;
		e->used_tokens = record->used_tokens;
		e->stamp = 0;
	}
	return e;
}

static void tier_spill_ready(struct loop_source *source, uint32_t events)
{
	struct tier *tier = source->owner;
	bool ended;

	(void)events;
	ended = spill_set_reap(tier->spill) > 0;
	tier_stats(tier->d);
	if (!ended || tier->d->stopping)
		return;
	/* what ended may be the store's own, the next segment say, for which others wait */
	for (struct ns *ns = tier->d->namespaces; ns; ns = ns->next)
		tier_serve(ns);
	drain_step(tier);
	evict_step(tier);
	delete_step(tier);
}

static void tier_copies_ready(struct loop_source *source, uint32_t events)
{
	struct tier *tier = source->owner;

	(void)events;
	io_reap(tier->copies);
}

static int store_node(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -1;
	return topology_device_node(S_ISBLK(st.st_mode) ? st.st_rdev : st.st_dev);
}

/* Namespaces that made way for others leave records behind; but where nothing is anybody's, the files were left
   behind. */
static void tier_say_nobodys(struct tier *tier, const char *path)
{
	struct spill_stats stats;

	spill_set_stats(tier->spill, &stats);
	if (tier->n_nobodys)
		log_line(stats.live_records ? LOG_LEVEL_INFO : LOG_LEVEL_WARN,
			"spill store %s: %" PRIu64
			" records are of namespaces without a file ns-*.kvns in %s, and are misses; if those files were left behind when it was moved, put them there, mode 0600 and the daemon's own, and restart before the room is used anew",
			path, tier->n_nobodys, config_namespace_dir(&tier->d->config, 0));
	tier->n_nobodys = 0;
}

/* ---- a store that was missing ---- */

/* In the thread that opened it: a thousand files are read in milliseconds, or in as long as that disk takes. */
static void tier_store_opened(void *owner, unsigned i)
{
	struct daemon *d = owner;

	ns_births_free(d->tier->births[i]); /* of a time when it was there, and could not be watched */
	d->tier->births[i] = NULL;
	if (!d->config.stores[i].device) /* those of devices lie elsewhere */
		d->tier->births[i] = ns_births_read(NULL, d->config.stores[i].path);
}

static bool tier_store_arrived(void *owner, unsigned i)
{
	struct daemon *d = owner;
	const char *path = d->config.stores[i].path;

	d->tier->store_nodes[i] = store_node(path);
	d->tier->store_devices[i] = spill_device(path);
	if (ns_births_make(d, d->tier->births[i], loop_now() + BIRTHS_NS))
		return true;
	ns_births_free(d->tier->births[i]);
	d->tier->births[i] = NULL;
	d->tier->store_lacks_files[i] = !d->config.stores[i].device;
	return false;
}

/* One a tick, for each waits for the disk. */
static void tier_spread_step(struct tier *tier)
{
	for (unsigned i = 0; i < tier->d->config.n_stores; i++)
		if (tier->store_lacks_files[i]) {
			tier->store_lacks_files[i] = ns_file_spread(tier->d, tier->d->config.stores[i].path, 1);
			return;
		}
}

static void tier_store_joined(void *owner, unsigned i)
{
	struct daemon *d = owner;

	tier_say_nobodys(d->tier, d->config.stores[i].path);
	d->tier->link = LINK_PARENTS;
	for (struct ns *ns = d->namespaces; ns; ns = ns->next)
		ns->link_at = 0;
}

/* A piece of it a tick.  As long as another store is missing a parent may be in that one, and nothing is unreachable
   for good. */
static void tier_link_step(struct tier *tier)
{
	bool more = false;

	if (tier->link == LINK_DROP && spill_set_missing(tier->spill))
		tier->link = LINK_NONE; /* one has gone meanwhile */
	if (tier->link == LINK_NONE)
		return;
	for (struct ns *ns = tier->d->namespaces; ns && !more; ns = ns->next)
		more = ns_link_some(ns, &ns->link_at, LINK_BUCKETS, tier->link == LINK_DROP);
	if (more)
		return;
	tier->link = tier->link == LINK_PARENTS && !spill_set_missing(tier->spill) ? LINK_DROP : LINK_NONE;
	for (struct ns *ns = tier->d->namespaces; ns; ns = ns->next)
		ns->link_at = 0;
}

/* The device a store of this pool lay on when it was last seen there, by what the last daemon left in the stats. */
static uint32_t tier_device_before(const struct kvp_stats *stats, const char *path)
{
	for (unsigned i = 0; i < stats->n_stores && i < KVP_STATS_STORES_MAX; i++)
		if (!strcmp(stats->stores[i].path, path))
			return stats->stores[i].device;
	return 0;
}

/* In the threads that open the stores. */
static void tier_progress(void *owner, uint64_t done, uint64_t segments)
{
	static _Atomic uint64_t next_ns;
	struct daemon *d = owner;
	uint64_t now = loop_now();
	char text[96];

	snprintf(text, sizeof(text), "finding what is in the spill store: %" PRIu64 " of %" PRIu64 " segments", done,
		segments);
	pool_progress(&d->pool, text);
	if (now - d->tier->opening_ns < PROGRESS_NS || now < atomic_load(&next_ns))
		return;
	atomic_store(&next_ns, now + PROGRESS_NS);
	log_info("%s", text);
}

/* In memory that is in no core and, where the limit allows, in no swap. */
static int tier_read_keys(struct daemon *d, char message[256])
{
	const struct config *config = &d->config;
	struct tier *tier = d->tier;
	int r = 0;

	static_assert(CONFIG_KEYS_MAX == SPILL_KEYS_MAX, "all that can be named can be read");
	if (!config->n_key_files)
		return 0;
	tier->keys = sodium_malloc(sizeof(*tier->keys));
	if (!tier->keys) {
		snprintf(message, 256, "out of memory for the spill store's key");
		return -ENOMEM;
	}
	memset(tier->keys, 0, sizeof(*tier->keys));
	for (unsigned i = 0; r == 0 && i < config->n_key_files; i++)
		r = spill_keys_add(tier->keys, config->key_files[i], geteuid(), message);
	if (r == 0)
		log_info("the spill store is encrypted, with key %016" PRIx64 " of %s", tier->keys->keys[0].id,
			config->key_files[0]);
	return r;
}

static int tier_open_spill(struct daemon *d, char message[256])
{
	struct tier *tier = d->tier;
	struct spill_opts opts[CONFIG_STORES_MAX];
	cpu_set_t cpus[CONFIG_STORES_MAX];
	uint64_t largest_block = 0;
	int r;

	for (struct ns *ns = d->namespaces; ns; ns = ns->next)
		if (ns->head->block_bytes > largest_block)
			largest_block = ns->head->block_bytes;
	for (unsigned i = 0; i < d->config.n_stores; i++) {
		tier->store_nodes[i] = store_node(d->config.stores[i].path);
		tier->store_devices[i] = tier_device_before(d->pool.stats, d->config.stores[i].path);
		opts[i] = (struct spill_opts){.dir = d->config.stores[i].path,
			.raw = d->config.stores[i].device,
			.cpus = topology_node_cpus(d->topology, tier->store_nodes[i], &cpus[i]) ? &cpus[i] : NULL,
			.capacity = d->config.stores[i].bytes,
			.depth = d->config.spill_depth,
			.largest_block = largest_block,
			.use_uring = strcmp(d->config.io, "threads") != 0,
			.lock_fd = d->pool.io_lock_fd,
			.device = tier->store_devices[i],
			.owner = d,
			.gone = tier_gone,
			.layers = tier_layers,
			.layers_came = tier_layers_came,
			.found = tier_found,
			.charged = quota_spill_charged,
			.opened = tier_store_opened,
			.arrived = tier_store_arrived,
			.joined = tier_store_joined,
			.progress = tier_progress};
	}
	r = tier_read_keys(d, message);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < d->config.n_stores; i++)
		opts[i].keys = tier->keys;
	tier->opening_ns = loop_now();
	r = spill_set_open(&tier->spill, opts, d->config.n_stores, message);
	if (r < 0)
		return r;
	d->pool.io_lock_fd = -1; /* the stores' rings have it */
	tier_say_nobodys(tier, d->config.stores[0].path);
	snprintf(d->pool.stats->spill_dir, sizeof(d->pool.stats->spill_dir), "%s", d->config.stores[0].path);
	for (unsigned i = 0; i < d->config.n_stores; i++)
		if (spill_set_serves(tier->spill, i))
			tier->store_devices[i] = spill_device(d->config.stores[i].path);
	if (tier_on(d))
		log_info("spill store %s: %s", d->config.stores[0].path, message);
	tier->spill_source = (struct loop_source){
		.fd = spill_set_fd(tier->spill), .events = LOOP_IN, .ready = tier_spill_ready, .owner = tier};
	return loop_add(d->loop, &tier->spill_source);
}

static void tier_store_rows(struct daemon *d)
{
	struct kvp_stats *stats = d->pool.stats;

	stats->n_stores = d->tier->spill ? spill_set_n(d->tier->spill) : 0;
	for (unsigned i = 0; i < stats->n_stores; i++) {
		struct kvp_store_row *row = &stats->stores[i];
		struct spill_stats s;

		spill_set_store_stats(d->tier->spill, i, &s);
		*row = (struct kvp_store_row){.state = s.state,
			.uring = s.uring,
			.direct = s.direct,
			.node = (uint32_t)d->tier->store_nodes[i],
			.last_errno = (uint32_t)s.last_errno,
			.device = d->tier->store_devices[i],
			.since = (uint64_t)s.since,
			.capacity = s.capacity ? s.capacity : d->config.stores[i].bytes,
			.used = s.used_bytes,
			.live = s.live_bytes,
			.live_records = s.live_records,
			.in_flight = s.in_flight,
			.queued = s.queued_bytes,
			.writes = s.writes,
			.write_bytes = s.write_bytes,
			.reads = s.reads,
			.read_bytes = s.read_bytes,
			.write_errors = s.write_errors,
			.read_errors = s.read_errors,
			.damaged = s.damaged};
		snprintf(row->path, sizeof(row->path), "%s", d->config.stores[i].path);
		snprintf(row->message, sizeof(row->message), "%s", s.message);
	}
}

int tier_start(struct daemon *d, char message[256])
{
	struct tier *tier = calloc(1, sizeof(*tier));
	struct io_opts copies = {.depth = 16, .threads = 2, .use_uring = false, .lock_fd = -1};
	int r;

	if (!tier)
		return -ENOMEM;
	d->tier = tier;
	tier->d = d;
	tier->jobs.all_next = tier->jobs.all_prev = &tier->jobs;
	/* copies between mappings use CPU, not a device: threads, never the ring's inline path in the loop */
	r = io_open(&tier->copies, &copies, message);
	if (r < 0)
		return r;
	tier->copies_source = (struct loop_source){
		.fd = io_fd(tier->copies), .events = LOOP_IN, .ready = tier_copies_ready, .owner = tier};
	r = loop_add(d->loop, &tier->copies_source);
	if (r == 0 && d->config.n_stores)
		r = tier_open_spill(d, message);
	if (r == 0)
		ns_link_all(d, d->tier->spill && spill_set_missing(d->tier->spill));
	tier_stats(d);
	gauge_set(&d->pool.stats->counters.spill_unpack_speed, 0); /* measured anew */
	if (r == 0) /* else what the last daemon knew of its stores stays */
		tier_store_rows(d);
	return r;
}

void tier_stop(struct daemon *d)
{
	struct tier *tier = d->tier;

	if (!tier)
		return;
	if (tier->copies)
		io_close(tier->copies);
	if (tier->spill)
		spill_set_close(tier->spill);
	tier->spill = NULL;
	free(tier->shares);
	tier->shares = NULL;
	tier->n_shares = 0;
	while (tier->jobs.all_next && tier->jobs.all_next != &tier->jobs) {
		tier->jobs.all_next->peer = NULL;
		job_free(tier->jobs.all_next);
	}
}

void tier_stats(struct daemon *d)
{
	struct kvp_counters *c = &d->pool.stats->counters;
	struct spill_stats s = {.state = SPILL_OFF, .message = "off: no --spill given"}, *told = &d->tier->told;

	if (d->tier->spill) /* else nothing stays of a store that the last daemon had */
		spill_set_stats(d->tier->spill, &s);
	gauge_set(&c->spill_state, s.state);
	gauge_set(&c->spill_uring, s.uring);
	gauge_set(&c->spill_direct, s.direct);
	gauge_set(&c->spill_encrypted, s.encrypted);
	gauge_set(&c->spill_capacity_bytes, s.capacity);
	gauge_set(&c->spill_used_bytes, s.used_bytes);
	gauge_set(&c->spill_live_bytes, s.live_bytes);
	gauge_add(&c->spill_writes, (int64_t)(s.writes - told->writes));
	gauge_add(&c->spill_write_bytes, (int64_t)(s.write_bytes - told->write_bytes));
	gauge_add(&c->spill_reads, (int64_t)(s.reads - told->reads));
	gauge_add(&c->spill_read_bytes, (int64_t)(s.read_bytes - told->read_bytes));
	gauge_add(&c->spill_write_errors, (int64_t)(s.write_errors - told->write_errors));
	gauge_add(&c->spill_read_errors, (int64_t)(s.read_errors - told->read_errors));
	gauge_add(&c->spill_damaged, (int64_t)(s.damaged - told->damaged));
	gauge_add(&c->spill_skipped, (int64_t)(s.skipped - told->skipped));
	gauge_add(&c->spill_scrub_bytes, (int64_t)(s.scrub_bytes - told->scrub_bytes));
	gauge_add(&c->spill_scrub_passes, (int64_t)(s.scrub_passes - told->scrub_passes));
	gauge_add(&c->spill_scrub_damaged, (int64_t)(s.scrub_damaged - told->scrub_damaged));
	gauge_add(&c->spill_reclaimed, (int64_t)(s.reclaimed - told->reclaimed));
	*told = s; /* counters go on over daemon restarts, the store's own begin at 0 */
	tier_written_today(d->tier);
	gauge_set(&c->spill_budget_bytes, d->config.spill_write_budget);
	gauge_set(&c->spill_last_errno, (uint64_t)s.last_errno);
	gauge_set(&c->spill_in_flight, s.in_flight);
	gauge_set(&c->spill_pinned_bytes, io_memory_pinned());
	gauge_set(&c->spill_read_queue, d->tier->reading_bytes);
	gauge_set(&c->spill_device_speed, s.read_ns_per_byte > 0 ? (uint64_t)(1e9 / s.read_ns_per_byte) : 0);
	gauge_set(
		&c->spill_read_speed, d->tier->read_ns_per_byte > 0 ? (uint64_t)(1e9 / d->tier->read_ns_per_byte) : 0);
	snprintf(d->pool.stats->spill_message, sizeof(d->pool.stats->spill_message), "%s", s.message);
}

void tier_tick(struct daemon *d)
{
	if (d->tier->spill) {
		spill_set_scrub_rate(d->tier->spill, d->config.spill_scrub);
		spill_set_tick(d->tier->spill);
		quota_spill_tick(d);
		tier_link_step(d->tier);
		tier_spread_step(d->tier);
	}
	tier_stats(d);
	tier_store_rows(d);
	if (d->old_io && !pool_old_io(&d->pool)) {
		d->old_io = false;
		d->set_aside = true;
		log_info("the last daemon's I/O has ended: its slots are free again");
	}
	if (d->set_aside && !d->old_io)
		block_release_set_aside(d);
	for (struct ns *ns = d->namespaces; ns; ns = ns->next) {
		if (ns->emptying && loop_now() > ns->emptying_until_ns) {
			slab_give_again(ns->emptying);
			ns->emptying = NULL;
		}
		policy_learn(&ns->use,
			atomic_load(&ns->row->counters.hits_ram) + atomic_load(&ns->row->counters.hits_spill),
			atomic_load(&ns->row->counters.stored), loop_now());
		policy_tick(ns);
		tier_serve(ns);
	}
	drain_step(d->tier);
	delete_step(d->tier);
}
