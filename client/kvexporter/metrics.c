/* metrics.c - see metrics.h */
#define _GNU_SOURCE 1
#include "metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvctl/pool.h"
#include "client/kvctl/quantity.h"
#include "client/kvctl/snapshot.h"

#define VALUE(counter) ((uint64_t)atomic_load_explicit(&(counter), memory_order_relaxed))
#define LABEL_ROOM 600

/* COUNTER and GAUGE of counters.def */
static const char counter_suffix[] = "_total", gauge_suffix[] = "";
#define SUFFIX(kind) (strcmp(#kind, "COUNTER") == 0 ? counter_suffix : gauge_suffix)
#define TYPE(kind) (strcmp(#kind, "COUNTER") == 0 ? "counter" : "gauge")

static void family(FILE *out, const char *name, const char *suffix, const char *type, const char *help)
{
	fprintf(out, "# HELP kvpool_%s%s %s\n# TYPE kvpool_%s%s %s\n", name, suffix, help, name, suffix, type);
}

/* Foreign bytes as the value of a label. */
static const char *label(char text[LABEL_ROOM], const char *from, size_t room)
{
	char clean[LABEL_ROOM / 2];
	size_t n = 0;

	text_clean(clean, sizeof(clean), from, room);
	for (const char *c = clean; *c; c++) {
		if (*c == '"' || *c == '\\')
			text[n++] = '\\';
		text[n++] = *c;
	}
	text[n] = 0;
	return text;
}

static void pool_counters(FILE *out, const struct kvp_counters *counters)
{
#define KVP_COUNTER(name, kind, unit, help) \
	family(out, #name, SUFFIX(kind), TYPE(kind), help); \
	fprintf(out, "kvpool_" #name "%s %" PRIu64 "\n", SUFFIX(kind), VALUE(counters->name));
#include "counters.def"
#undef KVP_COUNTER
}

/* "ns=..., id=..." of a namespace. */
static const char *ns_labels(const struct kvp_ns_row *row, char text[2 * LABEL_ROOM])
{
	char name[LABEL_ROOM];

	snprintf(text, 2 * LABEL_ROOM, "ns=\"%s\",id=\"%016" PRIx64 "\",owner=\"%u\"",
		label(name, row->name, sizeof(row->name)), VALUE(row->ns_id), row->owner_uid);
	return text;
}

static void ns_counters(FILE *out, const struct snapshot *snapshot)
{
	char labels[2 * LABEL_ROOM];

#define KVP_NS_COUNTER(name, kind, unit, help) \
	family(out, "namespace_" #name, SUFFIX(kind), TYPE(kind), help); \
	for (unsigned i = 0; i < snapshot->n_ns; i++) \
		fprintf(out, "kvpool_namespace_" #name "%s{%s} %" PRIu64 "\n", SUFFIX(kind), \
			ns_labels(&snapshot->ns[i], labels), VALUE(snapshot->ns[i].counters.name));
#include "counters.def"
#undef KVP_NS_COUNTER
	family(out, "namespace_block_bytes", "", "gauge", "Bytes of a block.");
	for (unsigned i = 0; i < snapshot->n_ns; i++)
		fprintf(out, "kvpool_namespace_block_bytes{%s} %" PRIu64 "\n", ns_labels(&snapshot->ns[i], labels),
			snapshot->ns[i].block_bytes);
	family(out, "namespace_misses", "_total", "counter", "Misses by their reason.");
	for (unsigned i = 0; i < snapshot->n_ns; i++) {
		const struct kvp_ns_counters *c = &snapshot->ns[i].counters;
		const struct {
			const char *reason;
			uint64_t n;
		} misses[] = {{"never", VALUE(c->miss_never)}, {"evicted", VALUE(c->miss_evicted)},
			{"sibling", VALUE(c->miss_sibling)}, {"damaged", VALUE(c->miss_damaged)},
			{"tier", VALUE(c->miss_tier)}, {"cost", VALUE(c->miss_cost)},
			{"unasked", VALUE(c->miss_unasked)}};

		ns_labels(&snapshot->ns[i], labels);
		for (unsigned j = 0; j < sizeof(misses) / sizeof(misses[0]); j++)
			fprintf(out, "kvpool_namespace_misses_total{%s,reason=\"%s\"} %" PRIu64 "\n", labels,
				misses[j].reason, misses[j].n);
	}
}

static void nodes(FILE *out, const struct kvp_stats *head)
{
	unsigned n = head->n_nodes < KVP_STATS_NODES_MAX ? head->n_nodes : KVP_STATS_NODES_MAX;

	family(out, "node_bytes", "", "gauge",
		"Memory of a NUMA node: asked for, got, used, placed there, in huge pages.");
	for (unsigned i = 0; i < n; i++) {
		const struct kvp_node_row *row = &head->nodes[i];

#define NODE(what) fprintf(out, "kvpool_node_bytes{node=\"%u\",what=\"" #what "\"} %" PRIu64 "\n", row->id, row->what)
		NODE(asked);
		NODE(got);
		NODE(used);
		NODE(placed);
		NODE(huge);
#undef NODE
	}
}

static void stores(FILE *out, const struct kvp_stats *head)
{
	unsigned n = head->n_stores < KVP_STATS_STORES_MAX ? head->n_stores : KVP_STATS_STORES_MAX;
	char path[LABEL_ROOM];

#define STORE(name, suffix, type, what, help) \
	family(out, "store_" name, suffix, type, help); \
	for (unsigned i = 0; i < n; i++) \
		fprintf(out, "kvpool_store_" name "%s{store=\"%s\"} %" PRIu64 "\n", suffix, \
			label(path, head->stores[i].path, sizeof(head->stores[i].path)), \
			(uint64_t)head->stores[i].what);
	STORE("state", "", "gauge", state, "0 off, 1 up, 2 down after an error, 3 full and not reclaiming.")
	STORE("capacity_bytes", "", "gauge", capacity, "Room of the store.")
	STORE("live_bytes", "", "gauge", live, "Records that can still be found.")
	STORE("in_flight", "", "gauge", in_flight, "Transfers under way or queued.")
	STORE("write_errors", "_total", "counter", write_errors, "Failed writes and flushes since the start.")
	STORE("read_errors", "_total", "counter", read_errors, "Failed reads since the start.")
	STORE("damaged", "_total", "counter", damaged, "Records refused since the start.")
#undef STORE
}

static void curve(FILE *out, const struct snapshot *snapshot)
{
	const struct kvp_counters *c = &snapshot->head.counters;
	double tokens = (double)VALUE(snapshot->curve.tokens), pool = (double)VALUE(c->pool_bytes);
	double spill = VALUE(c->spill_state) ? (double)VALUE(c->spill_capacity_bytes) : 0;

	if (!snapshot->has_curve || tokens <= 0)
		return;
	family(out, "curve_share", "", "gauge",
		"Part of the tokens of the last hours that a pool so many times as large, with the store as it is, would have found.");
	for (unsigned i = 0; i <= 4; i++)
		fprintf(out, "kvpool_curve_share{times=\"%g\"} %.4f\n", .5 * (1u << i),
			kvp_curve_hits(&snapshot->curve, pool * .5 * (1u << i) + spill) / tokens);
}

static void life(FILE *out, const struct pool *pool)
{
	char name[LABEL_ROOM];

	family(out, "up", "", "gauge", "1: the daemon serves.");
	fprintf(out, "kvpool_up %d\n", pool && pool_up(pool));
	if (!pool)
		return;
	family(out, "info", "", "gauge", "Which pool.");
	fprintf(out, "kvpool_info{name=\"%s\",uuid=\"%s\",state=\"%s\"} 1\n",
		label(name, pool->name, sizeof(pool->name)), pool->uuid, pool_life_name(pool->life));
	if (pool->heartbeat_age_s < 0)
		return;
	family(out, "heartbeat_age_seconds", "", "gauge", "Since the daemon's last sign of life.");
	fprintf(out, "kvpool_heartbeat_age_seconds %.3f\n", pool->heartbeat_age_s);
}

int metrics_make(const char *socket, const char *name, char **text, size_t *bytes)
{
	FILE *out = open_memstream(text, bytes);
	struct snapshot snapshot;
	struct pool pool;
	bool failed;

	if (!out)
		return -ENOMEM;
	if (pool_find(&pool, socket, name) || snapshot_take(&snapshot, &pool, false)) {
		life(out, NULL);
	} else {
		life(out, &pool);
		pool_counters(out, &snapshot.head.counters);
		ns_counters(out, &snapshot);
		nodes(out, &snapshot.head);
		stores(out, &snapshot.head);
		curve(out, &snapshot);
		snapshot_free(&snapshot);
	}
	failed = ferror(out) != 0;
	if (fclose(out) == 0 && !failed)
		return 0;
	free(*text);
	return -ENOMEM;
}
