/* report.c - see report.h */
#include "report.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvctl.h"
#include "quantity.h"

void report_head(const struct pool *pool)
{
	char life[160], socket[KVP_SOCKET_MAX];

	printf("kvpool %s: %s\n", pool->name, pool_life_text(pool, life, sizeof(life)));
	printf("socket %s  pid %d  start %" PRIu64 "\n",
		text_path(socket, sizeof(socket), pool->socket, sizeof(pool->socket)), (int)pool->header.daemon_pid,
		(uint64_t)C(pool->header.epoch));
}

void report_inconsistent(const struct pool *pool, const struct snapshot *snapshot)
{
	if (!snapshot->inconsistent)
		return;
	if (pool->life == POOL_SERVING || pool->life == POOL_STARTING)
		printf("note: the daemon changed the numbers while they were copied: sums may not add up\n");
	else
		printf("note: the daemon stands in the middle of a change: sums may not add up until the next start\n");
}

int report_exit(const struct pool *pool)
{
	return pool_up(pool) ? KVCTL_DONE : KVCTL_DOWN;
}

json_t *json_u64(uint64_t n)
{
	return json_integer(n > INT64_MAX ? INT64_MAX : (json_int_t)n);
}

json_t *json_id(uint64_t id)
{
	return json_sprintf("%016" PRIx64, id);
}

json_t *json_text(const char *text, size_t room)
{
	char clean[512];

	return json_string(text_clean(clean, sizeof(clean), text, room));
}

json_t *json_path(const char *path, size_t room)
{
	char clean[512];

	return json_string(text_path(clean, sizeof(clean), path, room));
}

json_t *report_pool_json(const struct pool *pool)
{
	const struct kvp_pool_header *header = &pool->header;
	json_t *json = json_object();
	char life[160];

	json_object_set_new(json, "name", json_string(pool->name));
	json_object_set_new(json, "uuid", json_string(pool->uuid));
	json_object_set_new(json, "socket", json_path(pool->socket, sizeof(pool->socket)));
	json_object_set_new(json, "state", json_string(pool_life_name(pool->life)));
	json_object_set_new(json, "state_text", json_string(pool_life_text(pool, life, sizeof(life))));
	json_object_set_new(json, "up", json_boolean(pool_up(pool)));
	json_object_set_new(
		json, "heartbeat_age_s", pool->heartbeat_age_s < 0 ? json_null() : json_real(pool->heartbeat_age_s));
	json_object_set_new(json, "pid", json_integer(header->daemon_pid));
	json_object_set_new(json, "pid_alive", json_boolean(pool->pid_state != 0));
	json_object_set_new(json, "same_boot", json_boolean(pool->same_boot));
	json_object_set_new(json, "epoch", json_u64(C(header->epoch)));
	json_object_set_new(json, "layout", json_sprintf("%u.%u", header->layout_major, header->layout_minor));
	json_object_set_new(json, "owner_uid", json_integer(pool->uid));
	json_object_set_new(json, "pool_bytes", json_u64(header->pool_bytes));
	json_object_set_new(json, "slab_bytes", json_u64(header->slab_bytes));
	json_object_set_new(json, "max_places", json_integer(header->max_places));
	return json;
}

json_t *report_counters_json(const struct kvp_counters *counters)
{
	json_t *json = json_object();

#define KVP_COUNTER(name, kind, unit, help) json_object_set_new(json, #name, json_u64(C(counters->name)));
#include "counters.def"
#undef KVP_COUNTER
	return json;
}

json_t *report_ns_counters_json(const struct kvp_ns_counters *counters)
{
	json_t *json = json_object();

#define KVP_NS_COUNTER(name, kind, unit, help) json_object_set_new(json, #name, json_u64(C(counters->name)));
#include "counters.def"
#undef KVP_NS_COUNTER
	return json;
}

static json_t *unit_json(const char *kind, const char *unit, const char *help)
{
	json_t *json = json_object();

	json_object_set_new(json, "kind", json_string(kind));
	json_object_set_new(json, "unit", json_string(unit));
	json_object_set_new(json, "help", json_string(help));
	return json;
}

json_t *report_units_json(void)
{
	json_t *json = json_object(), *pool = json_object(), *ns = json_object();

#define KVP_COUNTER(name, kind, unit, help) json_object_set_new(pool, #name, unit_json(#kind, #unit, help));
#include "counters.def"
#undef KVP_COUNTER
#define KVP_NS_COUNTER(name, kind, unit, help) json_object_set_new(ns, #name, unit_json(#kind, #unit, help));
#include "counters.def"
#undef KVP_NS_COUNTER
	json_object_set_new(json, "pool", pool);
	json_object_set_new(json, "namespace", ns);
	return json;
}

int report_json_print(json_t *json, int compact)
{
	char *text = json ? json_dumps(json, (compact ? JSON_COMPACT : JSON_INDENT(2)) | JSON_PRESERVE_ORDER) : NULL;

	json_decref(json);
	if (!text) {
		complain("out of memory for the JSON text");
		return KVCTL_FAILED;
	}
	printf("%s\n", text);
	free(text);
	return 0;
}

const char *report_user(uint32_t uid, char text[32])
{
	const struct passwd *user = getpwuid(uid);

	if (user && strlen(user->pw_name) < 32)
		snprintf(text, 32, "%s", user->pw_name);
	else
		snprintf(text, 32, "%u", uid);
	return text;
}

uint64_t report_slot_bytes(const struct kvp_ns_row *row)
{
	return row->slots_per_slab ? row->slab_bytes / row->slots_per_slab : row->block_bytes;
}

struct ns_balance report_balance(const struct kvp_ns_counters *counters)
{
	struct ns_balance balance = {
		.in_transit = C(counters->granted) + C(counters->restoring) + C(counters->taken),
		.total = C(counters->slots) - C(counters->retired),
	};
	uint64_t held = C(counters->held), published = C(counters->published);

	balance.evictable = published > held ? published - held : 0;
	balance.holds =
		held <= published && C(counters->free) + held + balance.evictable + balance.in_transit == balance.total;
	return balance;
}
