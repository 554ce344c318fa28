/*
 * clients.c - kvctl clients: the sessions, as the daemon's rows show them
 *
 * What a client says of itself (its name, its pid) is shown and believed by nobody.
 */
#include <inttypes.h>
#include <stdio.h>

#include "kvctl.h"
#include "option.h"
#include "pool.h"
#include "quantity.h"
#include "report.h"
#include "snapshot.h"
#include "table.h"

static double session_age_s(const struct kvp_session_row *row, const struct pool *pool)
{
	uint64_t now = now_ns();

	return pool->same_boot && row->opened_ns && row->opened_ns <= now ? (double)(now - row->opened_ns) / 1e9 : -1;
}

static json_t *session_json(const struct kvp_session_row *row, const struct pool *pool)
{
	double age = session_age_s(row, pool);
	json_t *json = json_object();

	json_object_set_new(json, "session_id", json_id(C(row->session_id)));
	json_object_set_new(json, "comm", json_text(row->comm, sizeof(row->comm)));
	json_object_set_new(json, "pid", json_integer(row->pid));
	json_object_set_new(json, "uid", json_integer(row->uid));
	json_object_set_new(json, "gid", json_integer(row->gid));
	json_object_set_new(json, "connected", json_boolean(row->connected));
	json_object_set_new(json, "age_s", age < 0 ? json_null() : json_real(age));
#define FIELD(name) json_object_set_new(json, #name, json_u64(C(row->name)))
	FIELD(grants);
	FIELD(staged);
	FIELD(pins);
	FIELD(slabs);
	FIELD(lookups);
	FIELD(hits_ram);
	FIELD(hits_spill);
	FIELD(misses);
	FIELD(tokens_ram);
	FIELD(tokens_spill);
	FIELD(copied_bytes);
	FIELD(private_blocks);
	FIELD(lost_holds);
#undef FIELD
	return json;
}

static void clients_print(const struct pool *pool, const struct snapshot *snapshot)
{
	static const char *const heads[] = {
		">PID", "<USER", "<COMMAND", ">AGE", ">HOLDS", ">GRANTS", ">ASKED", ">DRAM", ">SPILL"};
	struct table table;

	table_init(&table, heads, 9);
	for (unsigned i = 0; i < snapshot->n_sessions; i++) {
		const struct kvp_session_row *row = &snapshot->sessions[i];
		char comm[sizeof(row->comm)], user[32], text[QUANTITY_ROOM];

		table_cell(&table, "%d", row->pid);
		table_cell(&table, "%.8s", report_user(row->uid, user));
		table_cell(&table, "%.12s", text_clean(comm, sizeof(comm), row->comm, sizeof(row->comm)));
		quantity_age(text, session_age_s(row, pool));
		table_cell(&table, "%s", row->connected ? text : "closed");
		table_cell(&table, "%s", quantity_short(text, C(row->pins)));
		table_cell(&table, "%s", quantity_short(text, C(row->grants) + C(row->staged)));
		table_cell(&table, "%s", quantity_short(text, C(row->lookups)));
		table_cell(&table, "%s", quantity_share_short(text, C(row->hits_ram), C(row->lookups)));
		table_cell(&table, "%s", quantity_share_short(text, C(row->hits_spill), C(row->lookups)));
	}
	if (snapshot->n_sessions)
		table_print(&table, 0);
	else
		printf("no clients\n");
}

static int clients_show(const struct pool *pool, const struct snapshot *snapshot, bool as_json)
{
	json_t *json, *list;

	if (!as_json) {
		report_head(pool);
		report_inconsistent(pool, snapshot);
		printf("\n");
		clients_print(pool, snapshot);
		return report_exit(pool);
	}
	json = json_object();
	list = json_array();
	json_object_set_new(json, "pool", report_pool_json(pool));
	json_object_set_new(json, "inconsistent", json_boolean(snapshot->inconsistent));
	for (unsigned i = 0; i < snapshot->n_sessions; i++)
		json_array_append_new(list, session_json(&snapshot->sessions[i], pool));
	json_object_set_new(json, "clients", list);
	return report_json_print(json, 0) ? KVCTL_FAILED : report_exit(pool);
}

int clients_command(int argc, char **argv)
{
	static const struct option longs[] = {OPTION_POOL, OPTION_JSON, OPTION_LAST};
	struct options options = {.command = "clients", .longs = longs, .argc = argc, .argv = argv};
	struct snapshot snapshot;
	struct pool pool;
	int c, r;

	c = option_next(&options);
	if (c != OPTION_END)
		return option_exit(c);
	r = pool_find(&pool, options.socket, options.name);
	if (!r)
		r = snapshot_take(&snapshot, &pool, false);
	if (r)
		return r;
	r = clients_show(&pool, &snapshot, options.json);
	snapshot_free(&snapshot);
	return output_end(r);
}
