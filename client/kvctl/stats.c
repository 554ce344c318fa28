/*
 * stats.c - kvctl stats: all counters as a page for a person, or as JSON
 *
 * Reads shared memory only, waits for nobody: works with the daemon stopped, hung or dead, and says which.
 */
#define _GNU_SOURCE 1
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "curve.h"
#include "kvctl.h"
#include "ns.h"
#include "option.h"
#include "pool.h"
#include "postmortem.h"
#include "quantity.h"
#include "report.h"
#include "snapshot.h"
#include "table.h"

#define BAR 40
#define WORTH_TELLING 4096 /* bytes: less is rounding */

/* The sums over all namespaces, counters of its own name each. */
struct totals {
	struct kvp_ns_counters blocks;
	uint64_t held_bytes, evictable_bytes, transit_bytes;
};

static void totals_add(struct totals *totals, const struct kvp_ns_row *row)
{
	struct ns_balance balance = report_balance(&row->counters);

#define KVP_NS_COUNTER(name, kind, unit, help) totals->blocks.name += C(row->counters.name);
#include "counters.def"
#undef KVP_NS_COUNTER
	totals->held_bytes += C(row->counters.held) * report_slot_bytes(row);
	totals->evictable_bytes += balance.evictable * report_slot_bytes(row);
	totals->transit_bytes += balance.in_transit * report_slot_bytes(row);
}

static double share(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

static const char *pressure_watch_name(uint32_t watch)
{
	static const char *const names[] = {"off", "looked at", "trigger", "unreadable"};

	return watch < 4 ? names[watch] : "?";
}

static void print_pressure(const struct kvp_stats *head)
{
	static const char *const watched[] = {"", "is looked at twice a second (a trigger is refused)",
		"is told by a trigger of the kernel", "cannot be watched: the log says why"};
	char message[256];

	if (head->pressure_watch && head->pressure_watch < 4)
		printf("       memory pressure %s\n", watched[head->pressure_watch]);
	text_clean(message, sizeof(message), head->pressure_message, sizeof(head->pressure_message));
	if (message[0])
		printf("       %s\n", message);
}

static void print_memory(const struct snapshot *snapshot, const struct totals *totals, uint64_t slab, uint32_t places)
{
	const struct kvp_counters *c = &snapshot->head.counters;
	uint64_t pool = C(c->pool_bytes), rest = slab ? pool % slab : 0;
	uint64_t used = totals->held_bytes + totals->evictable_bytes + totals->transit_bytes;
	const struct bar_part parts[] = {{'#', share(totals->held_bytes, pool)},
		{'+', share(totals->transit_bytes, pool)}, {'=', share(totals->evictable_bytes, pool)}};
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], d[QUANTITY_ROOM], message[256];

	printf("DRAM   ");
	bar_print(BAR, parts, 3);
	printf(" %7s  %s of %s\n", quantity_share(a, used, pool), quantity_bytes(b, used), quantity_bytes(d, pool));
	printf("       # held %s  + in transit %s  = evictable %s\n", quantity_bytes(a, totals->held_bytes),
		quantity_bytes(b, totals->transit_bytes), quantity_bytes(d, totals->evictable_bytes));
	printf("       %" PRIu64 " slabs, %s allocated, %s in no namespace", (uint64_t)C(c->slabs),
		quantity_bytes(a, C(c->slab_bytes_allocated)), quantity_bytes(b, C(c->slab_bytes_free)));
	printf("; bookkeeping %s\n", quantity_bytes(a, C(c->meta_bytes)));
	if (slab)
		printf("       kvctl resize takes it to %s at most (%u slabs of %s)\n",
			quantity_bytes(a, places * slab), places, quantity_bytes(b, slab));
	if (pool > C(c->slab_bytes_allocated) && rest >= WORTH_TELLING)
		printf("       %s of the pool are not used: it is no multiple of the slab, %s\n",
			quantity_bytes(a, rest), quantity_bytes(b, slab));
	if (C(totals->blocks.demoted))
		printf("       %s blocks moved to nodes without CPUs\n", quantity_count(a, C(totals->blocks.demoted)));
	if (C(c->slab_bytes_staging) || C(c->slab_bytes_leaving) || C(c->slabs_condemned))
		printf("       staging %s, leaving %s; %" PRIu64 " slabs condemned\n",
			quantity_bytes(a, C(c->slab_bytes_staging)), quantity_bytes(b, C(c->slab_bytes_leaving)),
			(uint64_t)C(c->slabs_condemned));
	print_pressure(&snapshot->head);
	text_clean(message, sizeof(message), snapshot->head.numa_message, sizeof(snapshot->head.numa_message));
	if (message[0])
		printf("       placement: %s\n", message);
	text_clean(message, sizeof(message), snapshot->head.pages_message, sizeof(snapshot->head.pages_message));
	if (message[0])
		printf("       %s\n", message);
}

static const char *pages_name(uint32_t pages)
{
	static const char *const pages_names[] = {"4k", "thp", "2M", "1G"};

	return pages < 4 ? pages_names[pages] : "?";
}

/* By NUMA node. One node that got what was asked for, in common pages, is not worth a table. */
static void print_nodes(const struct kvp_stats *head)
{
	static const char *const heads[] = {
		"<NODE", "<CPUS", ">ASKED", ">GOT", ">USED", ">ON NODE", ">BOUND", ">PAGES", ">HUGE", ">SIZE"};
	unsigned n = head->n_nodes < KVP_STATS_NODES_MAX ? head->n_nodes : KVP_STATS_NODES_MAX;
	struct table table;

	if (n < 2 && !head->pages)
		return;
	table_init(&table, heads, 10);
	for (unsigned i = 0; i < n; i++) {
		const struct kvp_node_row *row = &head->nodes[i];
		char a[QUANTITY_ROOM];

		table_cell(&table, "node%u", row->id);
		table_cell(&table, "%s", row->has_cpus ? "yes" : "none");
		table_cell(&table, "%s", quantity_bytes(a, row->asked));
		table_cell(&table, "%s", quantity_bytes(a, row->got));
		table_cell(&table, "%s", quantity_bytes(a, row->used));
		table_cell(&table, "%s", quantity_share(a, row->placed, row->got));
		table_cell(&table, "%u of %u", row->n_bound, row->n_slabs);
		table_cell(&table, "%s", pages_name(head->pages));
		table_cell(&table, "%s", quantity_share(a, head->pages ? row->huge : row->got, row->got));
		table_cell(&table, "%s", quantity_bytes(a, row->memory));
	}
	table_print(&table, 0);
}

static json_t *nodes_json(const struct kvp_stats *head)
{
	unsigned n = head->n_nodes < KVP_STATS_NODES_MAX ? head->n_nodes : KVP_STATS_NODES_MAX;
	json_t *list = json_array();

	for (unsigned i = 0; i < n; i++) {
		const struct kvp_node_row *row = &head->nodes[i];
		json_t *json = json_object();

		json_object_set_new(json, "node", json_u64(row->id));
		json_object_set_new(json, "has_cpus", json_boolean(row->has_cpus));
		json_object_set_new(json, "memory_bytes", json_u64(row->memory));
		json_object_set_new(json, "asked_bytes", json_u64(row->asked));
		json_object_set_new(json, "got_bytes", json_u64(row->got));
		json_object_set_new(json, "used_bytes", json_u64(row->used));
		json_object_set_new(json, "placed_bytes", json_u64(row->placed));
		json_object_set_new(json, "huge_bytes", json_u64(row->huge));
		json_object_set_new(json, "slabs", json_u64(row->n_slabs));
		json_object_set_new(json, "bound_slabs", json_u64(row->n_bound));
		json_array_append_new(list, json);
	}
	return list;
}

static const char *spill_state_name(uint64_t state)
{
	static const char *const names[] = {"off", "up", "DOWN", "FULL, not reclaiming"};

	return state < 4 ? names[state] : "?";
}

/* How it does its I/O; nothing of one that does none. */
static const char *spill_engine(uint64_t state, uint64_t uring, uint64_t direct)
{
	if (state == 2)
		return "";
	return uring	? direct ? ", io_uring, O_DIRECT" : ", io_uring, page cache"
	       : direct ? ", threads, O_DIRECT"
			: ", threads, page cache";
}

static unsigned stores_shown(const struct kvp_stats *head)
{
	return head->n_stores < KVP_STATS_STORES_MAX ? head->n_stores : KVP_STATS_STORES_MAX;
}

static void print_stores(const struct kvp_stats *head)
{
	for (unsigned i = 0; i < stores_shown(head); i++) {
		const struct kvp_store_row *row = &head->stores[i];
		char path[256], message[256], a[QUANTITY_ROOM], b[QUANTITY_ROOM];

		text_path(path, sizeof(path), row->path, sizeof(row->path));
		text_clean(message, sizeof(message), row->message, sizeof(row->message));
		printf("       %s: %s, %s of %s%s, %" PRIu64 " errors\n", spill_state_name(row->state), path,
			quantity_bytes(a, row->live), quantity_bytes(b, row->capacity),
			spill_engine(row->state, row->uring, row->direct), row->write_errors + row->read_errors);
		if (message[0])
			printf("         %s\n", message);
	}
}

static json_t *stores_json(const struct kvp_stats *head)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < stores_shown(head); i++) {
		const struct kvp_store_row *row = &head->stores[i];
		json_t *json = json_object();

		json_object_set_new(json, "path", json_path(row->path, sizeof(row->path)));
		json_object_set_new(json, "state", json_string(spill_state_name(row->state)));
		json_object_set_new(json, "message", json_text(row->message, sizeof(row->message)));
		json_object_set_new(json, "errno", json_u64(row->last_errno));
		json_object_set_new(json, "since", json_u64(row->since));
		json_object_set_new(json, "node", row->node == UINT32_MAX ? json_null() : json_u64(row->node));
		json_object_set_new(json, "uring", json_boolean(row->uring));
		json_object_set_new(json, "direct", json_boolean(row->direct));
		json_object_set_new(json, "capacity_bytes", json_u64(row->capacity));
		json_object_set_new(json, "used_bytes", json_u64(row->used));
		json_object_set_new(json, "live_bytes", json_u64(row->live));
		json_object_set_new(json, "live_records", json_u64(row->live_records));
		json_object_set_new(json, "in_flight", json_u64(row->in_flight));
		json_object_set_new(json, "queued_bytes", json_u64(row->queued));
		json_object_set_new(json, "writes", json_u64(row->writes));
		json_object_set_new(json, "write_bytes", json_u64(row->write_bytes));
		json_object_set_new(json, "reads", json_u64(row->reads));
		json_object_set_new(json, "read_bytes", json_u64(row->read_bytes));
		json_object_set_new(json, "write_errors", json_u64(row->write_errors));
		json_object_set_new(json, "read_errors", json_u64(row->read_errors));
		json_object_set_new(json, "damaged", json_u64(row->damaged));
		json_array_append_new(list, json);
	}
	return list;
}

/* How fast blocks come back, and what for: of the namespace whose last cold run would take longest. */
static void print_restores(const struct snapshot *snapshot, const struct totals *totals)
{
	const struct kvp_counters *c = &snapshot->head.counters;
	const struct kvp_ns_row *slowest = NULL;
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], d[QUANTITY_ROOM], name[KVP_NAME_MAX];

	if (C(c->spill_read_speed) || C(c->spill_read_queue))
		printf("       blocks come back at %s/s, %s queued; %s of them read ahead\n",
			quantity_bytes(a, C(c->spill_read_speed)), quantity_bytes(b, C(c->spill_read_queue)),
			quantity_count(d, C(totals->blocks.read_ahead)));
	for (unsigned i = 0; i < snapshot->n_ns; i++)
		if (C(snapshot->ns[i].counters.restore_us) > (slowest ? C(slowest->counters.restore_us) : 0))
			slowest = &snapshot->ns[i];
	if (!slowest)
		return;
	printf("       the last cold blocks asked for of %.20s: %.1f ms to read", ns_name(slowest, name),
		(double)C(slowest->counters.restore_us) / 1000);
	if (C(slowest->counters.recompute_us))
		printf(", %.1f ms to compute", (double)C(slowest->counters.recompute_us) / 1000);
	printf("\n");
}

/* Blocks that were not written, or not found again, and why: only what there was. */
static void print_dropped(const struct kvp_counters *c)
{
	const struct {
		uint64_t n;
		const char *why;
	} parts[] = {{C(c->spill_too_slow), "the store was too slow"}, {C(c->spill_too_long), "longer than a segment"},
		{C(c->spill_over_quota), "over a quota of the store"},
		{C(c->spill_skipped), "places unreadable at starts"},
		{C(c->spill_scrub_damaged), "found damaged by the scrub"}};
	const char *between = "       ";

	for (unsigned i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (!parts[i].n)
			continue;
		printf("%s%s %" PRIu64, between, parts[i].why, parts[i].n);
		between = ", ";
	}
	if (between[0] == ',')
		printf("\n");
}

static void print_spill(const struct snapshot *snapshot, const struct totals *totals)
{
	const struct kvp_counters *c = &snapshot->head.counters;
	uint64_t capacity = C(c->spill_capacity_bytes), used = C(c->spill_used_bytes), live = C(c->spill_live_bytes);
	const struct bar_part parts[] = {
		{'#', share(live, capacity)}, {'-', share(used > live ? used - live : 0, capacity)}};
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], d[QUANTITY_ROOM], message[256], dir[256];

	text_clean(message, sizeof(message), snapshot->head.spill_message, sizeof(snapshot->head.spill_message));
	text_path(dir, sizeof(dir), snapshot->head.spill_dir, sizeof(snapshot->head.spill_dir));
	if (!C(c->spill_state)) {
		printf("SPILL  %s\n", message[0] ? message : "off");
		return;
	}
	printf("SPILL  ");
	bar_print(BAR, parts, 2);
	printf(" %7s  %s of %s\n", quantity_share(a, live, capacity), quantity_bytes(b, live),
		quantity_bytes(d, capacity));
	printf("       # can be found  - the rest of the segments in use %s\n",
		quantity_bytes(a, used > live ? used - live : 0));
	if (snapshot->head.n_stores > 1) {
		print_stores(&snapshot->head);
		if (C(c->spill_encrypted))
			printf("       what is written there is encrypted\n");
	} else {
		printf("       %s: %s%s%s\n", spill_state_name(C(c->spill_state)), dir,
			spill_engine(C(c->spill_state), C(c->spill_uring), C(c->spill_direct)),
			C(c->spill_encrypted) ? ", encrypted" : "");
		if (message[0])
			printf("       %s\n", message);
	}
	printf("       wrote %s blocks, %s (%" PRIu64 " errors); ", quantity_count(a, C(c->spill_writes)),
		quantity_bytes(b, C(c->spill_write_bytes)), (uint64_t)C(c->spill_write_errors));
	printf("read %s, %s (%" PRIu64 " errors)\n", quantity_count(a, C(c->spill_reads)),
		quantity_bytes(b, C(c->spill_read_bytes)), (uint64_t)C(c->spill_read_errors));
	if (C(c->spill_budget_bytes))
		printf("       today %s of a budget of %s written; %s blocks dropped for it\n",
			quantity_bytes(a, C(c->spill_day_bytes)), quantity_bytes(b, C(c->spill_budget_bytes)),
			quantity_count(d, C(c->spill_over_budget)));
	printf("       damaged %" PRIu64 ", reclaimed %" PRIu64 ", in flight %" PRIu64, (uint64_t)C(c->spill_damaged),
		(uint64_t)C(c->spill_reclaimed), (uint64_t)C(c->spill_in_flight));
	if (C(c->spill_last_errno))
		printf(", last error %d (%s)", (int)C(c->spill_last_errno), strerror((int)C(c->spill_last_errno)));
	printf("\n");
	print_dropped(c);
	print_restores(snapshot, totals);
}

static void print_hits(const struct totals *totals)
{
	const struct kvp_ns_counters *c = &totals->blocks;
	uint64_t lookups = C(c->lookups), hits = C(c->hits_ram) + C(c->hits_spill);
	const struct bar_part parts[] = {
		{'#', share(C(c->hits_ram), lookups)}, {'=', share(C(c->hits_spill), lookups)}};
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], d[QUANTITY_ROOM];

	printf("HITS   ");
	bar_print(BAR, parts, 2);
	printf(" %7s  of %s blocks asked\n", quantity_share(a, hits, lookups), quantity_count(b, lookups));
	printf("       # DRAM %s  = spill %s  . missed %s\n", quantity_share(a, C(c->hits_ram), lookups),
		quantity_share(b, C(c->hits_spill), lookups),
		quantity_share(d, lookups > hits ? lookups - hits : 0, lookups));
	printf("       tokens reused: %s from DRAM, %s from spill\n", quantity_count(a, C(c->tokens_ram)),
		quantity_count(b, C(c->tokens_spill)));
	if (C(c->saved_us))
		printf("       computing saved: %s, in namespaces that say what it costs\n",
			quantity_age(a, (double)C(c->saved_us) / 1e6));
	printf("MISSES not remembered %" PRIu64 ", evicted %" PRIu64 ", sibling namespace %" PRIu64 ", damaged %" PRIu64
	       ",\n",
		(uint64_t)C(c->miss_never), (uint64_t)C(c->miss_evicted), (uint64_t)C(c->miss_sibling),
		(uint64_t)C(c->miss_damaged));
	printf("       tier down %" PRIu64 ", slower than computing %" PRIu64 ", there but unused %" PRIu64 "\n",
		(uint64_t)C(c->miss_tier), (uint64_t)C(c->miss_cost), (uint64_t)C(c->miss_unasked));
}

static void print_balance(const struct snapshot *snapshot)
{
	static const char *const heads[] = {
		"<BLOCKS OF", ">FREE", ">+ HELD", ">+ EVICTABLE", ">+ IN TRANSIT", ">= TOTAL", "<SUM"};
	struct table table;

	table_init(&table, heads, 7);
	for (unsigned i = 0; i < snapshot->n_ns; i++) {
		const struct kvp_ns_row *row = &snapshot->ns[i];
		struct ns_balance balance = report_balance(&row->counters);
		char name[KVP_NAME_MAX];

		table_cell(&table, "%.14s", ns_name(row, name));
		table_cell(&table, "%" PRIu64, (uint64_t)C(row->counters.free));
		table_cell(&table, "%" PRIu64, (uint64_t)C(row->counters.held));
		table_cell(&table, "%" PRIu64, balance.evictable);
		table_cell(&table, "%" PRIu64, balance.in_transit);
		table_cell(&table, "%" PRIu64, balance.total);
		if (C(row->counters.retired))
			table_cell(&table, "%s, %" PRIu64 " retired", balance.holds ? "ok" : "NOT SO",
				(uint64_t)C(row->counters.retired));
		else
			table_cell(&table, "%s", balance.holds ? "ok" : "NOT SO");
	}
	table_print(&table, 0);
}

static void print_clients(const struct kvp_counters *c)
{
	printf("CLIENTS %" PRIu64 " now; opened %" PRIu64 ", came back %" PRIu64 ", died %" PRIu64 ", put out %" PRIu64
	       ", refused %" PRIu64 "\n",
		(uint64_t)C(c->sessions), (uint64_t)C(c->sessions_opened), (uint64_t)C(c->sessions_resumed),
		(uint64_t)C(c->sessions_died), (uint64_t)C(c->sessions_condemned), (uint64_t)C(c->connections_refused));
	printf("        messages %" PRIu64 " (%" PRIu64 " refused), longest turn of the loop %.1f ms\n",
		(uint64_t)C(c->messages), (uint64_t)C(c->messages_refused), (double)C(c->loop_max_us) / 1000);
	if (C(c->log_lines_lost))
		printf("        %" PRIu64 " lines of the log are lost: standard error did not take them\n",
			(uint64_t)C(c->log_lines_lost));
}

static uint64_t ns_memory(const struct kvp_ns_row *row)
{
	return row->slots_per_slab ? C(row->counters.slots) / row->slots_per_slab * row->slab_bytes : 0;
}

/* Whose namespaces have how much of what a uid may have. */
static void print_quotas(const struct snapshot *snapshot)
{
	const struct kvp_counters *c = &snapshot->head.counters;
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], user[32];
	const char *head = "QUOTAS";

	if (C(c->namespace_max_bytes)) {
		printf("%-6s a namespace may have %s\n", head, quantity_bytes(a, C(c->namespace_max_bytes)));
		head = "";
	}
	if (C(c->namespace_max_spill_bytes)) {
		printf("%-6s a namespace may have %s of the spill store\n", head,
			quantity_bytes(a, C(c->namespace_max_spill_bytes)));
		head = "";
	}
	for (unsigned i = 0; (C(c->uid_max_bytes) || C(c->uid_max_spill_bytes)) && i < snapshot->n_ns; i++) {
		uint32_t uid = snapshot->ns[i].owner_uid;
		uint64_t bytes = 0, spilled = 0;
		bool said = false;

		for (unsigned j = 0; j < snapshot->n_ns; j++) {
			said = said || (j < i && snapshot->ns[j].owner_uid == uid);
			bytes += snapshot->ns[j].owner_uid == uid ? ns_memory(&snapshot->ns[j]) : 0;
			spilled += snapshot->ns[j].owner_uid == uid ? C(snapshot->ns[j].counters.spill_log_bytes) : 0;
		}
		if (said)
			continue;
		printf("%-6s %s has", head, report_user(uid, user));
		if (C(c->uid_max_bytes))
			printf(" %s of %s", quantity_bytes(a, bytes), quantity_bytes(b, C(c->uid_max_bytes)));
		if (C(c->uid_max_spill_bytes))
			printf("%s %s of %s of the spill store", C(c->uid_max_bytes) ? "," : "",
				quantity_bytes(a, spilled), quantity_bytes(b, C(c->uid_max_spill_bytes)));
		printf("\n");
		head = "";
	}
}

static void stats_page(const struct pool *pool, const struct snapshot *snapshot, uint64_t more)
{
	struct totals totals = {0};

	for (unsigned i = 0; i < snapshot->n_ns; i++)
		totals_add(&totals, &snapshot->ns[i]);
	report_head(pool);
	report_inconsistent(pool, snapshot);
	printf("\n");
	print_memory(snapshot, &totals, pool->header.slab_bytes, pool->header.max_places);
	print_nodes(&snapshot->head);
	print_spill(snapshot, &totals);
	print_hits(&totals);
	curve_print(snapshot, more);
	print_clients(&snapshot->head.counters);
	print_quotas(snapshot);
	if (!snapshot->n_ns)
		return;
	printf("\n");
	ns_print(snapshot, 0);
	printf("\n");
	print_balance(snapshot);
}

static json_t *stats_json(const struct pool *pool, const struct snapshot *snapshot, uint64_t more)
{
	json_t *json = json_object(), *list = json_array(), *spill = json_object();
	const struct kvp_stats *head = &snapshot->head;

	json_object_set_new(json, "pool", report_pool_json(pool));
	json_object_set_new(json, "version", json_u64(snapshot->version));
	json_object_set_new(json, "inconsistent", json_boolean(snapshot->inconsistent));
	json_object_set_new(json, "counters", report_counters_json(&head->counters));
	json_object_set_new(spill, "state", json_string(spill_state_name(C(head->counters.spill_state))));
	json_object_set_new(spill, "dir", json_path(head->spill_dir, sizeof(head->spill_dir)));
	json_object_set_new(spill, "message", json_text(head->spill_message, sizeof(head->spill_message)));
	json_object_set_new(spill, "encrypted", json_boolean(C(head->counters.spill_encrypted)));
	json_object_set_new(spill, "stores", stores_json(head));
	json_object_set_new(json, "spill", spill);
	json_object_set_new(json, "nodes", nodes_json(head));
	json_object_set_new(
		json, "pressure_message", json_text(head->pressure_message, sizeof(head->pressure_message)));
	json_object_set_new(json, "pressure_watch", json_string(pressure_watch_name(head->pressure_watch)));
	json_object_set_new(json, "pages", json_string(pages_name(head->pages)));
	json_object_set_new(json, "pages_message", json_text(head->pages_message, sizeof(head->pages_message)));
	json_object_set_new(json, "numa_message", json_text(head->numa_message, sizeof(head->numa_message)));
	for (unsigned i = 0; i < snapshot->n_ns; i++)
		json_array_append_new(list, ns_json(&snapshot->ns[i]));
	json_object_set_new(json, "namespaces", list);
	json_object_set_new(json, "curve", curve_json(snapshot, more));
	json_object_set_new(json, "units", report_units_json());
	return json;
}

/* One look. Return: exit code. */
static int stats_once(const struct options *options, bool watching, uint64_t more, bool post_mortem)
{
	struct snapshot snapshot;
	struct pool pool;
	int r = pool_find(&pool, options->socket, options->name);

	if (!r)
		r = snapshot_take(&snapshot, &pool, false);
	if (r)
		return r;
	if (options->json) {
		json_t *json = stats_json(&pool, &snapshot, more);

		if (post_mortem)
			json_object_set_new(json, "post_mortem", postmortem_json(&pool, &snapshot));
		r = report_json_print(json, watching);
	} else {
		if (watching && isatty(STDOUT_FILENO))
			printf("\033[H\033[2J"); /* from the top of an empty screen */
		if (post_mortem)
			postmortem_print(&pool, &snapshot);
		stats_page(&pool, &snapshot, more);
		if (watching)
			printf("\n");
	}
	snapshot_free(&snapshot);
	return r || post_mortem ? r : report_exit(&pool);
}

int stats_command(int argc, char **argv)
{
	static const struct option longs[] = {OPTION_POOL, OPTION_JSON, {"watch", optional_argument, NULL, 'w'},
		{"more", required_argument, NULL, 'm'}, {"post-mortem", no_argument, NULL, 'p'}, OPTION_LAST};
	struct options options = {.command = "stats", .longs = longs, .argc = argc, .argv = argv};
	uint64_t every_ns = 0, more = 0;
	bool post_mortem = false;
	int c, r;

	while ((c = option_next(&options)) >= 0) {
		const char *value;

		if (c == 'p') {
			post_mortem = true;
			continue;
		}
		if (c == 'm') {
			if (quantity_parse_bytes(optarg, &more) == 0 && more)
				continue;
			c = option_wrong(&options, "--more", optarg, "a size, for example 64G");
			break;
		}
		value = option_take_number(&options);
		every_ns = 1000000000;
		if (value && (quantity_parse_seconds(value, &every_ns) < 0 || every_ns < 10000000)) {
			c = option_wrong(&options, "--watch", value, "a number of seconds, 0.01 at least");
			break;
		}
	}
	if (c != OPTION_END)
		return option_exit(c);
	for (;;) {
		r = output_end(stats_once(&options, every_ns != 0, more, post_mortem));
		if (!every_ns || r == KVCTL_OUTPUT || r == KVCTL_NO_POOL)
			return r;
		nanosleep(&(struct timespec){.tv_sec = (time_t)(every_ns / 1000000000),
				  .tv_nsec = (long)(every_ns % 1000000000)},
			NULL);
	}
}
