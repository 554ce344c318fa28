/* ns.c - see ns.h */
#include "ns.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin.h"
#include "kvctl.h"
#include "kvpool_desc.h"
#include "option.h"
#include "quantity.h"
#include "report.h"
#include "table.h"

#define SET_NS 10000000000ull /* longest wait for an answer: a file is flushed */

const char *ns_name(const struct kvp_ns_row *row, char text[KVP_NAME_MAX])
{
	return text_clean(text, KVP_NAME_MAX, row->name, sizeof(row->name));
}

static const char *layout_name(uint32_t layout)
{
	switch (layout) {
	case KVP_LAYOUT_HND:
		return "HND";
	case KVP_LAYOUT_NHD:
		return "NHD";
	case KVP_LAYOUT_TILED:
		return "TILED";
	case KVP_LAYOUT_OPAQUE:
		return "OPAQUE";
	default:
		return "?";
	}
}

/* "TILED, f16", "TILED, K int8, V int4" or "OPAQUE" */
static const char *shape_text(const struct kvp_ns_row *row, char text[48])
{
	const char *k = kvp_type_name(row->type_k), *v = kvp_type_name(row->type_v);

	if (row->layout == KVP_LAYOUT_OPAQUE || !k || !v)
		return layout_name(row->layout);
	if (row->type_k == row->type_v)
		snprintf(text, 48, "%s, %s", layout_name(row->layout), k);
	else
		snprintf(text, 48, "%s, K %s, V %s", layout_name(row->layout), k, v);
	return text;
}

static json_t *type_json(const struct kvp_ns_row *row, uint32_t type)
{
	const char *name = kvp_type_name(type);

	return name && row->layout != KVP_LAYOUT_OPAQUE ? json_string(name) : json_null();
}

json_t *ns_json(const struct kvp_ns_row *row)
{
	struct ns_balance balance = report_balance(&row->counters);
	json_t *json = json_object(), *sum = json_object();

	json_object_set_new(json, "name", json_text(row->name, sizeof(row->name)));
	json_object_set_new(json, "ns_id", json_id(C(row->ns_id)));
	json_object_set_new(json, "base_id", row->base_id ? json_id(row->base_id) : json_null());
	json_object_set_new(json, "owner_uid", json_integer(row->owner_uid));
	json_object_set_new(json, "mode", json_sprintf("%04o", row->mode));
	json_object_set_new(json, "copied", json_boolean(row->flags & KVP_NS_COPIED));
	json_object_set_new(json, "takes_cold", json_boolean(row->flags & KVP_NS_COLD));
	json_object_set_new(json, "policy", json_string(row->flags & KVP_NS_LEARNED ? "learned" : "lru"));
	json_object_set_new(json, "layout", json_string(layout_name(row->layout)));
	json_object_set_new(json, "type_k", type_json(row, row->type_k));
	json_object_set_new(json, "type_v", type_json(row, row->type_v));
	json_object_set_new(json, "block_tokens", json_integer(row->block_tokens));
	json_object_set_new(json, "block_bytes", json_u64(row->block_bytes));
	json_object_set_new(json, "slab_bytes", json_u64(row->slab_bytes));
	json_object_set_new(json, "slots_per_slab", json_integer(row->slots_per_slab));
	json_object_set_new(json, "counters", report_ns_counters_json(&row->counters));
	json_object_set_new(sum, "free", json_u64(C(row->counters.free)));
	json_object_set_new(sum, "held", json_u64(C(row->counters.held)));
	json_object_set_new(sum, "evictable", json_u64(balance.evictable));
	json_object_set_new(sum, "in_transit", json_u64(balance.in_transit));
	json_object_set_new(sum, "total", json_u64(balance.total));
	json_object_set_new(sum, "holds", json_boolean(balance.holds));
	json_object_set_new(json, "conservation", sum);
	return json;
}

/* With its id where another one is shown by the same name. */
static const char *ns_title(const struct snapshot *snapshot, const struct kvp_ns_row *row, char title[40])
{
	char name[KVP_NAME_MAX], other[KVP_NAME_MAX];
	bool same = false;

	ns_name(row, name);
	for (unsigned i = 0; i < snapshot->n_ns && !same; i++)
		same = &snapshot->ns[i] != row && !strncmp(ns_name(&snapshot->ns[i], other), name, 14);
	if (same)
		snprintf(title, 40, "%.14s %016" PRIx64, name, C(row->ns_id));
	else
		snprintf(title, 40, "%.14s", name);
	return title;
}

void ns_print(const struct snapshot *snapshot, unsigned indent)
{
	static const char *const heads[] = {
		"<NAMESPACE", "<OWNER", ">BLOCK", ">HOT", ">HELD", ">COLD", ">ASKED", ">DRAM", ">SPILL"};
	struct table table;

	table_init(&table, heads, 9);
	for (unsigned i = 0; i < snapshot->n_ns; i++) {
		const struct kvp_ns_row *row = &snapshot->ns[i];
		const struct kvp_ns_counters *c = &row->counters;
		char title[40], user[32], text[QUANTITY_ROOM];

		table_cell(&table, "%s", ns_title(snapshot, row, title));
		table_cell(&table, "%.8s", report_user(row->owner_uid, user));
		table_cell(&table, "%s", quantity_bytes(text, row->block_bytes));
		table_cell(&table, "%s", quantity_short(text, C(c->published)));
		table_cell(&table, "%s", quantity_short(text, C(c->held)));
		table_cell(&table, "%s", quantity_short(text, C(c->cold)));
		table_cell(&table, "%s", quantity_short(text, C(c->lookups)));
		table_cell(&table, "%s", quantity_share_short(text, C(c->hits_ram), C(c->lookups)));
		table_cell(&table, "%s", quantity_share_short(text, C(c->hits_spill), C(c->lookups)));
	}
	table_print(&table, indent);
}

static bool ns_id_parse(const char *text, uint64_t *id)
{
	char *end;

	if (strlen(text) != 16 || text[strspn(text, "0123456789abcdef")])
		return false;
	*id = strtoull(text, &end, 16);
	return *id != 0;
}

int ns_choose(const struct snapshot *snapshot, const char *text, uint64_t *ns_id)
{
	char list[512] = "";
	size_t n = 0;
	unsigned found = 0;
	uint64_t id;

	if (ns_id_parse(text, &id) && snapshot_ns(snapshot, id)) {
		*ns_id = id;
		return 0;
	}
	for (unsigned i = 0; i < snapshot->n_ns; i++) {
		const struct kvp_ns_row *row = &snapshot->ns[i];
		char name[KVP_NAME_MAX];

		if (strcmp(ns_name(row, name), text))
			continue;
		*ns_id = C(row->ns_id);
		found++;
		if (n < sizeof(list))
			n += (size_t)snprintf(list + n, sizeof(list) - n,
				"%s%016" PRIx64 " (uid %u, block %" PRIu64 " B)", found > 1 ? ", " : "", *ns_id,
				row->owner_uid, row->block_bytes);
	}
	if (found == 1)
		return 0;
	if (found)
		complain("%u namespaces are called %s: choose one by its id: %s", found, text, list);
	else
		complain("no namespace %s; kvctl ns lists them", text);
	return KVCTL_FAILED;
}

/* How its blocks lie in the spill store, once some went there. */
static void ns_print_pack(const struct kvp_ns_counters *counters)
{
	static const char *const states[] = {"as they are", "compressed", "as they are, being sampled"};
	uint64_t state = C(counters->pack_state), percent = C(counters->pack_percent), n = C(counters->packed);
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], c[QUANTITY_ROOM];

	if (!state && !percent && !n)
		return;
	printf("  spilled %s", state < 3 ? states[state] : "?");
	if (percent)
		printf("; sampled blocks would take %" PRIu64 " %%", percent);
	if (n)
		printf("; %s blocks so far, %s in %s", quantity_count(a, n),
			quantity_bytes(b, C(counters->packed_bytes)),
			quantity_bytes(c, C(counters->packed_stored_bytes)));
	printf("\n");
}

/* What stays, and what reuse was worth, where that is known. */
static void ns_print_policy(const struct kvp_ns_row *row, bool store)
{
	const struct kvp_ns_counters *c = &row->counters;
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM];

	if (row->flags & KVP_NS_LEARNED)
		printf("  policy learned, %s; %s requests told, %s of the daemon's memory\n",
			C(c->policy) == 2 ? "which decides"
			: store		  ? "for what is written: before a store least recent use decides"
					  : "on trial: least recent use decides",
			quantity_count(a, C(c->requests)), quantity_bytes(b, C(c->policy_bytes)));
	if (C(c->saved_us))
		printf("  reuse saved %.1f s of computing\n", (double)C(c->saved_us) / 1e6);
}

/* More than the table of kvctl stats: what a namespace is, under its line. */
static void ns_print_details(const struct snapshot *snapshot)
{
	for (unsigned i = 0; i < snapshot->n_ns; i++) {
		const struct kvp_ns_row *row = &snapshot->ns[i];
		char name[KVP_NAME_MAX], slab[QUANTITY_ROOM], shape[48], base[48] = "";

		if (row->base_id)
			snprintf(base, sizeof(base), ", base %016" PRIx64, row->base_id);
		printf("\n%s  id %016" PRIx64 ", mode %04o%s\n", ns_name(row, name), (uint64_t)C(row->ns_id), row->mode,
			base);
		printf("  %s, %u tokens a block, %" PRIu64 " bytes, %u blocks in a slab of %s, writers %s\n",
			shape_text(row, shape), row->block_tokens, row->block_bytes, row->slots_per_slab,
			quantity_bytes(slab, row->slab_bytes), row->flags & KVP_NS_COPIED ? "copied" : "in place");
		printf("  stored %" PRIu64 ", evicted %" PRIu64 " (%" PRIu64 " dropped), restored %" PRIu64
		       ", refused %" PRIu64 ", no room %" PRIu64 "\n",
			(uint64_t)C(row->counters.stored), (uint64_t)C(row->counters.evicted),
			(uint64_t)C(row->counters.dropped), (uint64_t)C(row->counters.restored),
			(uint64_t)C(row->counters.rejected), (uint64_t)C(row->counters.no_room));
		ns_print_policy(row, C(snapshot->head.counters.spill_state) == 1);
		ns_print_pack(&row->counters);
	}
}

static int ns_show(const struct pool *pool, const struct snapshot *snapshot, bool as_json)
{
	json_t *json, *list;

	if (!as_json) {
		report_head(pool);
		report_inconsistent(pool, snapshot);
		printf("\n");
		if (!snapshot->n_ns)
			printf("no namespaces\n");
		else
			ns_print(snapshot, 0);
		ns_print_details(snapshot);
		return report_exit(pool);
	}
	json = json_object();
	list = json_array();
	json_object_set_new(json, "pool", report_pool_json(pool));
	json_object_set_new(json, "inconsistent", json_boolean(snapshot->inconsistent));
	for (unsigned i = 0; i < snapshot->n_ns; i++)
		json_array_append_new(list, ns_json(&snapshot->ns[i]));
	json_object_set_new(json, "namespaces", list);
	return report_json_print(json, 0) ? KVCTL_FAILED : report_exit(pool);
}

/* kvctl ns set NAME policy=P */
static int ns_set(const struct options *options, const char *admin, char **words, int n)
{
	struct kvp_wire_admin ask = {0};
	struct kvp_wire_admin_done done = {0};
	int r;

	if (n != 2 || (strcmp(words[1], "policy=lru") && strcmp(words[1], "policy=learned"))) {
		complain("ns set: give a namespace, and policy=lru or policy=learned");
		return KVCTL_USAGE;
	}
	ask.n = !strcmp(words[1], "policy=learned");
	r = admin_ns(options, words[0], &ask.ns_id);
	if (!r)
		r = admin_do(options, admin, KVP_MSG_NS_POLICY, &ask, sizeof(ask), SET_NS, &done);
	if (r)
		return r;
	printf("%s: %s%s\n", words[0], words[1], done.n_done ? "" : ", as before");
	return output_end(KVCTL_DONE);
}

int ns_command(int argc, char **argv)
{
	static const struct option longs[] = {
		OPTION_POOL, {"admin", required_argument, NULL, 'a'}, OPTION_JSON, OPTION_LAST};
	struct options options = {.command = "ns", .longs = longs, .argc = argc, .argv = argv, .max_rest = 3};
	const char *admin = NULL;
	struct snapshot snapshot;
	struct pool pool;
	int c, r;

	while ((c = option_next(&options)) >= 0)
		admin = optarg;
	if (c != OPTION_END)
		return option_exit(c);
	if (optind < argc && !strcmp(argv[optind], "set"))
		return ns_set(&options, admin, argv + optind + 1, argc - optind - 1);
	if (optind < argc) {
		complain("ns: \"%s\" is nothing it does: kvctl ns, or kvctl ns set NAME policy=P", argv[optind]);
		return KVCTL_USAGE;
	}
	r = pool_find(&pool, options.socket, options.name);
	if (!r)
		r = snapshot_take(&snapshot, &pool, false);
	if (r)
		return r;
	r = ns_show(&pool, &snapshot, options.json);
	snapshot_free(&snapshot);
	return output_end(r);
}
