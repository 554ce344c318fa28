/*
 * report.h - what the commands that show a pool print alike: its head, its counters, JSON
 */
#ifndef KVCTL_REPORT_H
#define KVCTL_REPORT_H

#include <jansson.h>
#include <stdint.h>

#include "pool.h"
#include "snapshot.h"

#define REPORT_WIDTH 80

/** report_head() - two lines: which pool, how its daemon does */
void report_head(const struct pool *pool);
/** report_inconsistent() - one line if the copy is not consistent */
void report_inconsistent(const struct pool *pool, const struct snapshot *snapshot);
/** report_exit() - KVCTL_DONE while the daemon serves, else KVCTL_DOWN */
int report_exit(const struct pool *pool);

/** report_pool_json() - name, uuid, socket, state ... */
json_t *report_pool_json(const struct pool *pool);
/** report_counters_json(), report_ns_counters_json() - every counter by its name */
json_t *report_counters_json(const struct kvp_counters *counters);
json_t *report_ns_counters_json(const struct kvp_ns_counters *counters);
/** report_units_json() - kind, unit and help of every counter */
json_t *report_units_json(void);
/** report_json_print() - to stdout, one line if @compact; takes the reference. Return: 0; KVCTL_FAILED: out of
 *  memory. */
int report_json_print(json_t *json, int compact);

json_t *json_u64(uint64_t n); /* JSON integers end at 2^63 - 1 here: a larger one is shown as that */
json_t *json_id(uint64_t id); /* as in object names: 16 lower-case hex digits */
json_t *json_text(const char *text, size_t room); /* foreign bytes, cleaned */
json_t *json_path(const char *path, size_t room); /* likewise, by text_path() */

/* The user's name for a table, or the number. */
const char *report_user(uint32_t uid, char text[32]);

struct ns_balance {
	uint64_t in_transit; /* granted + restoring + taken */
	uint64_t evictable; /* published - held */
	uint64_t total; /* slots - retired */
	int holds; /* free + held + evictable + in transit = total */
};
struct ns_balance report_balance(const struct kvp_ns_counters *counters);
/** report_slot_bytes() - what a block of the namespace takes of the pool, with its share of what is left over of a
 *  slab */
uint64_t report_slot_bytes(const struct kvp_ns_row *row);

/* Value of a counter in a copy nobody else changes. */
#define C(counter) atomic_load_explicit(&(counter), memory_order_relaxed)

#endif
