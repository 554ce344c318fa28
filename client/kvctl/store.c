/*
 * store.c - kvctl store: what the spill store holds, whether it is what was written, and how to be rid of it
 *
 * list and verify read the store itself and ask the daemon nothing; scrub is the daemon's; drop is the daemon's while
 * one runs, else it is done here under the store's lock.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "admin.h"
#include "kvctl.h"
#include "ns.h"
#include "option.h"
#include "pool.h"
#include "quantity.h"
#include "report.h"
#include "snapshot.h"
#include "store_file.h"
#include "table.h"

#define SECOND_NS 1000000000ull
#define SETTLE_NS (3 * SECOND_NS) /* what a daemon is writing is there by then */
#define NS_MAX 1024 /* namespaces told apart */
#define STORES_MAX 64
#define BAR_WIDTH 30

struct store_ns {
	uint64_t id, n_records, bytes, n_damaged;
};

/* What was asked for, and what of it has been seen. */
struct look {
	const struct options *options;
	const struct spill_keys *keys; /* or NULL */
	const char *paths[STORES_MAX];
	unsigned n_paths;
	char dirs[KVP_STATS_STORES_MAX][256]; /* of the pool, where no path was given */
	struct snapshot snapshot;
	bool has_snapshot;
	struct store_ns ns[NS_MAX];
	unsigned n_ns;
	uint64_t n_more; /* records of namespaces beyond those */
	bool bad; /* some store is not as it was written */
	bool bar;
	uint64_t bar_ns;
	json_t *stores;
};

/* Names of namespaces, and where the store is. A path needs no pool: it is looked at only if one is named. */
static int look_open(struct look *look)
{
	struct pool pool;
	int r;

	if (look->n_paths && !look->options->socket && !look->options->name)
		return 0;
	r = pool_find(&pool, look->options->socket, look->options->name);
	if (!r)
		r = snapshot_take(&look->snapshot, &pool, false);
	if (r)
		return r;
	look->has_snapshot = true;
	if (look->n_paths)
		return 0;
	for (unsigned i = 0; i < look->snapshot.head.n_stores && i < KVP_STATS_STORES_MAX; i++) {
		snprintf(look->dirs[i], sizeof(look->dirs[i]), "%.*s",
			(int)sizeof(look->snapshot.head.stores[i].path) - 1, look->snapshot.head.stores[i].path);
		look->paths[look->n_paths++] = look->dirs[i];
	}
	if (!look->n_paths) {
		complain("store: this pool's daemon has no spill store; or name a store by its path");
		return KVCTL_FAILED;
	}
	return 0;
}

static void look_close(struct look *look)
{
	if (look->has_snapshot)
		snapshot_free(&look->snapshot);
}

static void look_record(void *owner, const struct spill_record *record, bool damaged)
{
	struct look *look = owner;
	unsigned i = 0;

	while (i < look->n_ns && look->ns[i].id != record->ns_id)
		i++;
	if (i == NS_MAX) {
		look->n_more++;
		return;
	}
	if (i == look->n_ns)
		look->ns[look->n_ns++] = (struct store_ns){.id = record->ns_id};
	look->ns[i].n_records++;
	look->ns[i].bytes += record->bytes;
	look->ns[i].n_damaged += damaged;
}

/* All of a store's segments together. */
struct store_sum {
	uint32_t n_used, n_lost_segments, n_unsealed;
	uint64_t n_records, bytes, stored, n_dropped, n_damaged, n_gaps, n_unread, n_lost;
};

static void segment_add_up(struct store_sum *sum, const struct store_segment *one)
{
	sum->n_used += one->n_records != 0;
	sum->n_lost_segments += one->lost;
	sum->n_unsealed += one->n_records && !one->sealed;
	sum->n_records += one->n_records;
	sum->bytes += one->bytes;
	sum->stored += one->stored;
	sum->n_dropped += one->n_dropped;
	sum->n_damaged += one->n_damaged;
	sum->n_gaps += one->n_gaps;
	sum->n_unread += one->n_unread;
	sum->n_lost += one->n_lost;
}

/* What is not there any more, for list and verify. @indent: before each line. */
static void sum_print_lost(const struct store_file *store, const struct store_sum *sum, const char *indent)
{
	if (sum->n_lost_segments)
		printf("%ssegments that were used and cannot be read: %u of %u\n", indent, sum->n_lost_segments,
			store->n_segments);
	if (sum->n_lost)
		printf("%srecords that seals of segments speak of and that are lost: %" PRIu64 "\n", indent,
			sum->n_lost);
	if (sum->n_unsealed && !store->served)
		printf("%ssegments without a seal (the daemon was killed, or it is damaged), which may have had more records: %u\n",
			indent, sum->n_unsealed);
}

static void store_print_keys(const struct store_file *store)
{
	for (uint32_t i = 0; i < store->super.n_keys; i++)
		printf("%s %016" PRIx64, i ? "," : "  encrypted, with key", store->super.key_ids[i]);
	if (store_file_is_closed(store))
		printf("; without --key-file its records can be counted and their checksums compared, no more");
	if (store->super.n_keys)
		printf("\n");
}

/* ---- list ---- */

static const char *ns_name_of(const struct look *look, uint64_t id, char text[KVP_NAME_MAX])
{
	const struct kvp_ns_row *row = look->has_snapshot ? snapshot_ns(&look->snapshot, id) : NULL;

	return row ? ns_name(row, text) : "";
}

static json_t *store_json(const struct store_file *store, const struct store_sum *sum)
{
	json_t *json = json_object();

	json_object_set_new(json, "path", json_path(store->path, sizeof(store->path)));
	json_object_set_new(json, "served", json_boolean(store->served));
	json_object_set_new(json, "capacity", json_u64(store->holds));
	json_object_set_new(json, "capacity_asked", json_u64(store->super.capacity));
	json_object_set_new(json, "file_bytes", json_u64(store->bytes));
	json_object_set_new(json, "segment_bytes", json_u64(store->super.segment_bytes));
	json_object_set_new(json, "segments", json_u64(store->n_segments));
	json_object_set_new(json, "segments_used", json_u64(sum->n_used));
	json_object_set_new(json, "starts", json_u64(store->super.start));
	json_object_set_new(json, "records", json_u64(sum->n_records));
	json_object_set_new(json, "bytes", json_u64(sum->bytes));
	json_object_set_new(json, "stored_bytes", json_u64(sum->stored));
	json_object_set_new(json, "dropped", json_u64(sum->n_dropped));
	json_object_set_new(json, "damaged", json_u64(sum->n_damaged));
	json_object_set_new(json, "gaps", json_u64(sum->n_gaps));
	json_object_set_new(json, "unread", json_u64(sum->n_unread));
	json_object_set_new(json, "segments_lost", json_u64(sum->n_lost_segments));
	json_object_set_new(json, "segments_unsealed", json_u64(sum->n_unsealed));
	json_object_set_new(json, "lost", json_u64(sum->n_lost));
	json_object_set_new(json, "encrypted", json_boolean(store->super.n_keys));
	json_object_set_new(json, "decrypted", json_boolean(store->cipher != NULL));
	return json;
}

static void list_print_ns(struct look *look)
{
	static const char *const heads[] = {"<NAMESPACE", "<ID", ">RECORDS", ">BYTES"};
	struct table table;

	table_init(&table, heads, 4);
	for (unsigned i = 0; i < look->n_ns; i++) {
		char name[KVP_NAME_MAX], text[QUANTITY_ROOM];

		table_cell(&table, "%.24s", ns_name_of(look, look->ns[i].id, name));
		table_cell(&table, "%016" PRIx64, look->ns[i].id);
		table_cell(&table, "%s", quantity_count(text, look->ns[i].n_records));
		table_cell(&table, "%s", quantity_bytes(text, look->ns[i].bytes));
	}
	if (look->n_ns) {
		printf("\n");
		table_print(&table, 0);
	}
	if (look->n_more)
		printf("and %" PRIu64 " records of further namespaces\n", look->n_more);
}

static json_t *ns_list_json(struct look *look)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < look->n_ns; i++) {
		char name[KVP_NAME_MAX];
		json_t *json = json_object();

		json_object_set_new(json, "ns_id", json_id(look->ns[i].id));
		json_object_set_new(json, "name", json_string(ns_name_of(look, look->ns[i].id, name)));
		json_object_set_new(json, "records", json_u64(look->ns[i].n_records));
		json_object_set_new(json, "bytes", json_u64(look->ns[i].bytes));
		json_object_set_new(json, "damaged", json_u64(look->ns[i].n_damaged));
		json_array_append_new(list, json);
	}
	return list;
}

static int list_one(struct look *look, const char *path)
{
	struct store_segment one;
	struct store_sum sum = {0};
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], c[QUANTITY_ROOM];
	struct store_file store;
	int r = store_file_open(&store, path, look->keys, false);

	if (r)
		return r;
	for (uint32_t i = 0; i < store.n_segments; i++) {
		store_file_segment(&store, i, false, look_record, look, &one);
		segment_add_up(&sum, &one);
	}
	if (look->options->json) {
		json_array_append_new(look->stores, store_json(&store, &sum));
	} else {
		printf("%s  %s\n", store.path, store.served ? "in use by a daemon" : "not in use");
		printf("  %u of %u segments of %s in use, capacity %s", sum.n_used, store.n_segments,
			quantity_bytes(a, store.super.segment_bytes), quantity_bytes(b, store.holds));
		if (store.holds < store.super.capacity)
			printf(" of the %s asked for: its file system has no more",
				quantity_bytes(c, store.super.capacity));
		printf("\n");
		printf("  %s records, %s", quantity_count(a, sum.n_records), quantity_bytes(b, sum.bytes));
		if (sum.stored != sum.bytes)
			printf(" in %s", quantity_bytes(c, sum.stored));
		printf(sum.n_dropped ? "; %s dropped, not overwritten yet\n" : "\n", quantity_count(c, sum.n_dropped));
		store_print_keys(&store);
		sum_print_lost(&store, &sum, "  ");
	}
	store_file_close(&store);
	return 0;
}

static int list_stores(struct look *look)
{
	int r = 0;

	for (unsigned i = 0; i < look->n_paths; i++) {
		int one = list_one(look, look->paths[i]);

		r = r ? r : one;
	}
	if (look->options->json) {
		json_t *json = json_object();

		json_object_set_new(json, "stores", look->stores);
		json_object_set_new(json, "namespaces", ns_list_json(look));
		return report_json_print(json, 0) ? KVCTL_FAILED : r;
	}
	list_print_ns(look);
	return r;
}

/* ---- verify ---- */

static void bar_show(struct look *look, const struct store_file *store, uint32_t done, uint64_t start_ns)
{
	uint64_t now = now_ns(), bytes = (uint64_t)done * store->super.segment_bytes;
	unsigned marks = store->n_segments ? (unsigned)((uint64_t)done * BAR_WIDTH / store->n_segments) : BAR_WIDTH;
	char speed[QUANTITY_ROOM];

	if (!look->bar || (now < look->bar_ns && done < store->n_segments))
		return;
	look->bar_ns = now + SECOND_NS / 10;
	quantity_bytes(speed, (uint64_t)((double)bytes * 1e9 / (double)(now - start_ns + 1)));
	fprintf(stderr, "\r[%.*s%*s] %3u %%  %s/s   ", (int)marks, "##############################",
		(int)(BAR_WIDTH - marks), "",
		store->n_segments ? (unsigned)((uint64_t)done * 100 / store->n_segments) : 100, speed);
	if (done == store->n_segments)
		fprintf(stderr, "\n");
}

static bool segment_looks_bad(const struct store_segment *segment)
{
	return segment->n_damaged || segment->n_gaps || segment->n_unread || segment->lost || segment->n_lost;
}

/* What looks wrong beside a daemon is looked at again when what it was writing is there. */
static void verify_again(struct store_file *store, struct store_segment *segments)
{
	bool slept = false;

	for (uint32_t i = 0; store->served && i < store->n_segments; i++) {
		if (!segment_looks_bad(&segments[i]))
			continue;
		if (!slept)
			nanosleep(&(struct timespec){.tv_sec = SETTLE_NS / SECOND_NS}, NULL);
		slept = true;
		for (unsigned tries = 0; tries < 10; tries++) {
			uint64_t sequence = segments[i].sequence;

			store_file_segment(store, i, true, NULL, NULL, &segments[i]);
			if (!segment_looks_bad(&segments[i]) || segments[i].sequence == sequence)
				break; /* else it began to be used anew: that takes its time too */
			nanosleep(&(struct timespec){.tv_sec = SETTLE_NS / SECOND_NS}, NULL);
		}
	}
}

static void verify_print(const struct store_file *store, const struct store_sum *sum)
{
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM];

	printf("%s: %s records, %s read", store->path, quantity_count(a, sum->n_records),
		quantity_bytes(b, sum->bytes));
	if (sum->n_gaps)
		printf("; at %" PRIu64 " places of the log there is none: damaged, or cut off by a crash", sum->n_gaps);
	if (sum->n_unread)
		printf("; the device would not give %" PRIu64 " of them", sum->n_unread);
	printf("; %" PRIu64 " damaged\n", sum->n_damaged);
	store_print_keys(store);
	sum_print_lost(store, sum, "  ");
}

static int verify_one(struct look *look, const char *path)
{
	struct store_segment *segments;
	struct store_sum sum = {0};
	uint64_t start_ns = now_ns();
	struct store_file store;
	int r = store_file_open(&store, path, look->keys, false);

	if (r)
		return r;
	segments = calloc(store.n_segments ? store.n_segments : 1, sizeof(*segments));
	if (!segments) {
		complain("store: out of memory");
		store_file_close(&store);
		return KVCTL_FAILED;
	}
	for (uint32_t i = 0; i < store.n_segments; i++) {
		bar_show(look, &store, i, start_ns);
		store_file_segment(&store, i, true, NULL, NULL, &segments[i]);
	}
	bar_show(look, &store, store.n_segments, start_ns);
	verify_again(&store, segments);
	for (uint32_t i = 0; i < store.n_segments; i++)
		segment_add_up(&sum, &segments[i]);
	if (look->options->json)
		json_array_append_new(look->stores, store_json(&store, &sum));
	else
		verify_print(&store, &sum);
	look->bad |= sum.n_damaged || sum.n_unread || sum.n_lost_segments || sum.n_lost;
	free(segments);
	store_file_close(&store);
	return 0;
}

static int verify_stores(struct look *look)
{
	int r = 0;

	look->bar = isatty(STDERR_FILENO) && !look->options->json;
	for (unsigned i = 0; i < look->n_paths; i++) {
		int one = verify_one(look, look->paths[i]);

		r = r ? r : one;
	}
	if (look->options->json && report_json_print(look->stores, 0))
		return KVCTL_FAILED;
	return r ? r : look->bad ? KVCTL_FAILED : KVCTL_DONE;
}

/* ---- drop and scrub ---- */

struct store_ask {
	const char *admin;
	const char *ns;
	uint64_t rate, limit_ns;
	bool yes;
};

static int drop_ns(struct look *look, const char *text, uint64_t *ns_id)
{
	char *end;

	*ns_id = 0;
	if (!text)
		return 0;
	if (look->has_snapshot)
		return ns_choose(&look->snapshot, text, ns_id);
	*ns_id = strtoull(text, &end, 16);
	if (strlen(text) == 16 && !*end && *ns_id)
		return 0;
	complain(
		"store: without the pool a namespace is known by its id alone, 16 digits: kvctl store list tells it; or "
		"name the pool with --name");
	return KVCTL_FAILED;
}

static int drop_offline(struct look *look, uint64_t ns_id)
{
	int code = 0;

	for (unsigned i = 0; i < look->n_paths; i++) {
		struct store_file store;
		int r = store_file_open(&store, look->paths[i], NULL, true);

		if (!r && store.served) {
			complain(
				"store: %s is in use by a daemon: leave the path out, so that it is asked", store.path);
			r = KVCTL_FAILED;
		} else if (!r) {
			r = store_file_drop(&store, ns_id);
			if (r < 0)
				complain("store: cannot drop from %s: %s", store.path, strerror(-r));
			else
				printf("dropped: no block of %s comes back from %s\n",
					ns_id ? "the namespace" : "any namespace", store.path);
			r = r < 0 ? KVCTL_FAILED : 0;
		}
		store_file_close(&store);
		code = code ? code : r;
	}
	return code;
}

static int drop_by_daemon(const struct look *look, const struct store_ask *store_ask, uint64_t ns_id)
{
	struct kvp_wire_admin ask = {.ns_id = ns_id};
	struct kvp_wire_admin_done done = {0};
	int r = admin_do(
		look->options, store_ask->admin, KVP_MSG_STORE_DROP, &ask, sizeof(ask), store_ask->limit_ns, &done);

	if (r)
		return r;
	if (done.error) {
		complain("store: the superblock could not be written: %s; drop again when the store works",
			strerror(done.error));
		return KVCTL_FAILED;
	}
	printf("dropped: %" PRIu64 " blocks are forgotten", done.n_done);
	if (done.late)
		printf("; the deadline came first, %" PRIu64 " are left: drop again", done.n_left);
	printf("\n");
	return done.late ? KVCTL_FAILED : KVCTL_DONE;
}

static bool daemon_is_there(const struct look *look, const char *admin)
{
	char path[KVP_SOCKET_MAX];
	int fd = admin_socket_path(look->options, admin, path) ? -ENOENT : admin_connect(path);

	if (fd >= 0)
		close(fd);
	return !admin_nobody(fd);
}

static int store_drop(struct look *look, const struct store_ask *ask)
{
	bool by_path = look->n_paths != 0;
	uint64_t ns_id;
	int r;

	if (!ask->yes) {
		complain("store: drop forgets %s for good: say --yes",
			ask->ns ? "what the store holds of the namespace" : "all that the store holds");
		return KVCTL_USAGE;
	}
	if (!by_path && daemon_is_there(look, ask->admin)) {
		r = ask->ns ? look_open(look) : 0;
		if (!r)
			r = drop_ns(look, ask->ns, &ns_id);
		return r ? r : drop_by_daemon(look, ask, ns_id);
	}
	r = by_path && !ask->ns ? 0 : look_open(look);
	if (!r)
		r = drop_ns(look, ask->ns, &ns_id);
	return r ? r : drop_offline(look, ns_id);
}

static int store_scrub(const struct look *look, const struct store_ask *store_ask)
{
	struct kvp_wire_admin ask = {.n = store_ask->rate};
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM];
	struct kvp_wire_admin_done done = {0};
	int r = admin_do(
		look->options, store_ask->admin, KVP_MSG_STORE_SCRUB, &ask, sizeof(ask), store_ask->limit_ns, &done);

	if (r)
		return r;
	printf("scrubbing: %s at %s/s; spill_scrub_passes and spill_scrub_damaged in kvctl stats tell the end\n",
		quantity_bytes(a, done.n_left), quantity_bytes(b, done.n_done));
	return KVCTL_DONE;
}

/* ---- which ---- */

/* In memory that no core has. */
static int store_add_key(struct look *look, struct spill_keys **keys, const char *path)
{
	char message[256];
	int r;

	if (sodium_init() < 0 || (!*keys && !(*keys = sodium_malloc(sizeof(**keys))))) {
		complain("store: out of memory for a key");
		return KVCTL_FAILED;
	}
	if (!look->keys)
		(*keys)->n = 0;
	look->keys = *keys;
	r = spill_keys_add(*keys, path, (uid_t)-1, message);
	if (r < 0)
		complain("store: %s", message);
	return r < 0 ? KVCTL_FAILED : 0;
}

/* Where it lies, by whatever name. Return: false: nothing is there, which is said when it is opened. */
static bool store_identity(const char *path, struct stat *st)
{
	char file[STORE_PATH_MAX];

	if (stat(path, st) < 0)
		return false;
	snprintf(file, sizeof(file), "%.490s/" SPILL_STORE_NAME, path);
	return !S_ISDIR(st->st_mode) || stat(file, st) == 0;
}

static bool same_store(const struct stat *a, const struct stat *b)
{
	if (S_ISBLK(a->st_mode) && S_ISBLK(b->st_mode))
		return a->st_rdev == b->st_rdev;
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* What stands for one store twice would be counted twice. */
static int look_add_path(struct look *look, const char *path)
{
	struct stat st, other;

	for (unsigned i = 0; store_identity(path, &st) && i < look->n_paths; i++)
		if (store_identity(look->paths[i], &other) && same_store(&st, &other)) {
			complain("store: %s and %s are one store: name it once", look->paths[i], path);
			return KVCTL_USAGE;
		}
	look->paths[look->n_paths++] = path;
	return 0;
}

/* An option that would do nothing was meant to do something. */
static int ask_check(const char *what, const struct store_ask *ask)
{
	const char *option = ask->rate && strcmp(what, "scrub") ? "--rate is for scrub"
			     : ask->ns && strcmp(what, "drop")	? "--ns is for drop"
								: NULL;

	if (option)
		complain("store: %s, not for %s; see kvctl help store", option, what);
	return option ? KVCTL_USAGE : 0;
}

static int store_run(struct look *look, const char *what, const struct store_ask *ask)
{
	int r = ask_check(what, ask);

	if (r)
		return r;
	if (!strcmp(what, "drop"))
		return store_drop(look, ask);
	if (!strcmp(what, "scrub"))
		return store_scrub(look, ask);
	if (strcmp(what, "list") && strcmp(what, "verify")) {
		complain("store: name one of list, verify, scrub, drop, not \"%s\"; see kvctl help store", what);
		return KVCTL_USAGE;
	}
	r = look_open(look);
	if (r)
		return r;
	if (look->options->json)
		look->stores = json_array();
	return !strcmp(what, "list") ? list_stores(look) : verify_stores(look);
}

int store_command(int argc, char **argv)
{
	static const struct option longs[] = {OPTION_POOL, OPTION_JSON, {"ns", required_argument, NULL, 'N'},
		{"rate", required_argument, NULL, 'r'}, {"yes", no_argument, NULL, 'y'},
		{"deadline", required_argument, NULL, 'd'}, {"admin", required_argument, NULL, 'a'},
		{"key-file", required_argument, NULL, 'k'}, OPTION_LAST};
	struct options options = {
		.command = "store", .longs = longs, .argc = argc, .argv = argv, .max_rest = 1 + STORES_MAX};
	struct store_ask ask = {.limit_ns = 30 * SECOND_NS};
	struct spill_keys *keys = NULL;
	static struct look look;
	int c, r;

	look.options = &options;
	while ((c = admin_option_next(&options, &ask.admin, &ask.limit_ns)) >= 0) {
		if (c == 'y')
			ask.yes = true;
		else if (c == 'N')
			ask.ns = optarg;
		else if (c == 'k' && (r = store_add_key(&look, &keys, optarg)))
			return r;
		else if (c == 'r' && (quantity_parse_bytes(optarg, &ask.rate) < 0 || !ask.rate))
			return option_exit(option_wrong(&options, "--rate", optarg, "a size"));
	}
	if (c != OPTION_END)
		return option_exit(c);
	if (optind >= argc) {
		complain("store: name one of list, verify, scrub, drop; see kvctl help store");
		return KVCTL_USAGE;
	}
	for (int i = optind + 1; i < argc; i++)
		if ((r = look_add_path(&look, argv[i])))
			return r;
	r = store_run(&look, argv[optind], &ask);
	look_close(&look);
	return output_end(r);
}
