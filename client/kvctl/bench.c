/* bench.c - kvctl bench: which one, against which daemon, and the rows at the end; see bench.h */
#define _GNU_SOURCE 1
#include "bench.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvctl.h"
#include "option.h"
#include "quantity.h"
#include "pool.h"
#include "report.h"
#include "snapshot.h"
#include "table.h"

#define MIB (1024ull * 1024)
#define GIB (1024 * MIB)
#define ORPHANS_NS 20000000000ull

static const struct bench_kind {
	const char *name;
	int (*run)(struct bench *bench);
	uint64_t pool_bytes; /* with --self */
	uint64_t spill_bytes;
	const unsigned *depths; /* one daemon for each; ends with 0 */
	bool own; /* it starts and stops daemons itself */
} kinds[] = {
	{"pin", bench_pin, 5 * GIB, 0, NULL, false}, {"publish", bench_publish, GIB, 0, NULL, false},
	{"share", bench_share, GIB + 256 * MIB, 0, NULL, false},
	{"spill", bench_spill, 1600 * MIB, 1600 * MIB, (const unsigned[]){1, 8, 32, 0}, false},
	{"start", bench_start, 0, 0, NULL, true}, {"attn", bench_attn, 512 * MIB, 0, NULL, false},
	{"sparse", bench_sparse, 128 * MIB, GIB, NULL,
		false}, /* in slabs of 64 MiB: one for the blocks, half of what there are */
};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

void bench_row(struct bench *bench, const char *unit, double value, const char *yardstick, double yardstick_value,
	double limit, const char *name_format, ...)
{
	struct bench_row *row;
	va_list args;

	if (bench->n_rows == BENCH_ROWS_MAX)
		return;
	row = &bench->rows[bench->n_rows++];
	row->unit = unit;
	row->value = value;
	snprintf(row->yardstick, sizeof(row->yardstick), "%s", yardstick ? yardstick : "");
	row->yardstick_value = yardstick_value;
	row->limit = limit;
	va_start(args, name_format);
	vsnprintf(row->name, sizeof(row->name), name_format, args);
	va_end(args);
}

void bench_say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

static double row_ratio(const struct bench_row *row)
{
	return row->yardstick_value > 0 ? row->value / row->yardstick_value : 0;
}

static bool row_ok(const struct bench_row *row)
{
	if (row->limit == BENCH_ZERO)
		return row->value <= 0;
	return row->limit == BENCH_NO_TARGET || row_ratio(row) <= row->limit;
}

static json_t *row_json(const struct bench_row *row)
{
	bool measured = row->yardstick[0] && row->yardstick_value > 0;
	json_t *json = json_object();

	json_object_set_new(json, "name", json_string(row->name));
	json_object_set_new(json, "value", json_real(row->value));
	json_object_set_new(json, "unit", json_string(row->unit));
	json_object_set_new(json, "yardstick", row->yardstick[0] ? json_string(row->yardstick) : json_null());
	json_object_set_new(json, "yardstick_value", measured ? json_real(row->yardstick_value) : json_null());
	json_object_set_new(json, "ratio", measured ? json_real(row_ratio(row)) : json_null());
	json_object_set_new(json, "ok", row->limit != BENCH_NO_TARGET ? json_boolean(row_ok(row)) : json_null());
	return json;
}

static void rows_print(const struct bench *bench)
{
	static const char *const heads[] = {"<MEASURED", ">", "<", "<YARDSTICK", ">", ">RATIO", "<TARGET"};
	struct table table;

	table_init(&table, heads, 7);
	for (unsigned i = 0; i < bench->n_rows; i++) {
		const struct bench_row *row = &bench->rows[i];
		bool measured = row->yardstick[0] && row->yardstick_value > 0;

		table_cell(&table, "%s", row->name);
		table_cell(&table, "%.5g", row->value);
		table_cell(&table, "%s", row->unit);
		table_cell(&table, "%s", row->yardstick);
		if (measured) {
			table_cell(&table, "%.5g", row->yardstick_value);
			table_cell(&table, "%.3f", row_ratio(row));
		} else {
			table_cell(&table, "%s", "");
			table_cell(&table, "%s", "");
		}
		if (row->limit == BENCH_NO_TARGET)
			table_cell(&table, "%s", "");
		else
			table_cell(&table, "<= %g %s", row->limit == BENCH_ZERO ? 0 : row->limit,
				row_ok(row) ? "ok" : "MISSED");
	}
	table_print(&table, 0);
}

static int rows_report(const struct bench *bench)
{
	int code = KVCTL_DONE;
	json_t *list;

	for (unsigned i = 0; i < bench->n_rows; i++)
		if (!row_ok(&bench->rows[i]))
			code = KVCTL_FAILED;
	if (!bench->json) {
		rows_print(bench);
		return code;
	}
	list = json_array();
	for (unsigned i = 0; i < bench->n_rows; i++)
		json_array_append_new(list, row_json(&bench->rows[i]));
	return report_json_print(list, 0) ? KVCTL_FAILED : code;
}

/* Against the daemon at bench->socket. Return: exit code; the rows are there. */
static int bench_run(struct bench *bench, const struct bench_kind *kind)
{
	struct snapshot snapshot;
	struct pool pool;
	int r = pool_find(&pool, bench->socket, NULL);

	if (!r)
		r = snapshot_take(&snapshot, &pool, false);
	if (r)
		return r;
	bench->pool_bytes = C(snapshot.head.counters.pool_bytes);
	bench->spill_bytes = C(snapshot.head.counters.spill_capacity_bytes);
	snprintf(bench->spill_dir, sizeof(bench->spill_dir), "%s", snapshot.head.spill_dir);
	snapshot_free(&snapshot);
	return kind->run(bench);
}

/* Half of what the machine has to spare: yardsticks need memory too. */
uint64_t bench_pool_fit(uint64_t wanted)
{
	unsigned long long kib = 0;
	uint64_t most = wanted;
	char line[128];
	FILE *file = fopen("/proc/meminfo", "re");

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
			most = kib * 1024 / 2 & ~(64 * MIB - 1);
	if (file)
		fclose(file);
	if (most >= wanted)
		return wanted;
	most = most < 64 * MIB ? 64 * MIB : most;
	bench_say("memory is short: a pool of %" PRIu64 " MiB instead of %" PRIu64, most >> 20, wanted >> 20);
	return most;
}

/* Daemons of a child that is gone: they are told to end by that, and are children of ours now. */
static void orphans_wait(void)
{
	uint64_t end = now_ns() + ORPHANS_NS;

	while (waitpid(-1, NULL, WNOHANG) >= 0 && now_ns() < end)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* In a child, so that whatever becomes of it the daemon and its memory go; its rows are in shared memory. */
static int bench_run_self(struct bench *bench, const struct bench_kind *kind, unsigned depth)
{
	struct bench_daemon daemon;
	sigset_t ends, old;
	int r, status = 0;
	pid_t pid;

	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGHUP);
	sigaddset(&ends, SIGCHLD);
	sigprocmask(SIG_BLOCK, &ends, &old);
	prctl(PR_SET_CHILD_SUBREAPER, 1); /* what the child leaves is ours to end */
	r = kind->own ? bench_daemon_make(&bench->own)
		      : bench_daemon_start(
				&daemon, bench->device, bench_pool_fit(kind->pool_bytes), kind->spill_bytes, depth);
	if (r) {
		sigprocmask(SIG_SETMASK, &old, NULL);
		return r;
	}
	bench->depth = depth;
	if (!kind->own)
		snprintf(bench->socket, sizeof(bench->socket), "%s", daemon.socket);
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		sigprocmask(SIG_SETMASK, &old, NULL);
		_exit(kind->own ? kind->run(bench) : bench_run(bench, kind));
	}
	for (;;) {
		int signal = sigwaitinfo(&ends, NULL);

		if (signal != SIGCHLD)
			kill(pid, SIGKILL);
		if (waitpid(pid, &status, WNOHANG) == pid)
			break;
	}
	if (kind->own)
		orphans_wait();
	bench_daemon_stop(kind->own ? &bench->own : &daemon);
	sigprocmask(SIG_SETMASK, &old, NULL);
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	complain("bench: ended by signal %d", WTERMSIG(status));
	return KVCTL_FAILED;
}

static int bench_run_depths(struct bench *bench, const struct bench_kind *kind)
{
	int r = 0;

	if (!kind->depths || bench->depth)
		return bench_run_self(bench, kind, bench->depth);
	for (const unsigned *depth = kind->depths; *depth && !r; depth++)
		r = bench_run_self(bench, kind, *depth);
	return r;
}

static const struct bench_kind *kind_find(const char *name)
{
	for (unsigned i = 0; name && i < N_KINDS; i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	return NULL;
}

int bench_command(int argc, char **argv)
{
	static const struct option longs[] = {OPTION_POOL, OPTION_JSON, {"self", no_argument, NULL, 'S'},
		{"pairs", required_argument, NULL, 'p'}, {"depth", required_argument, NULL, 'D'},
		{"records", required_argument, NULL, 'R'}, {"device", required_argument, NULL, 'B'},
		{"size", required_argument, NULL, 'Y'}, OPTION_LAST};
	struct options options = {.command = "bench", .longs = longs, .argc = argc, .argv = argv, .max_rest = 1};
	struct bench *bench = mmap(NULL, sizeof(*bench), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const struct bench_kind *kind;
	const char *device = NULL;
	bool self = false;
	uint64_t size = 0, pairs = 10, depth = 0, records = 1000000;
	struct pool pool;
	int c, r;

	if (bench == MAP_FAILED) {
		complain("bench: out of memory");
		return KVCTL_FAILED;
	}
	while ((c = option_next(&options)) >= 0)
		if (c == 'S')
			self = true;
		else if (c == 'B')
			device = optarg;
		else if (c == 'Y' && quantity_parse_bytes(optarg, &size) < 0)
			return option_exit(option_wrong(&options, "--size", optarg, "a size: use 64K, 2M"));
		else if (c == 'D' && quantity_parse_count(optarg, 1, 256, &depth) < 0)
			return option_exit(option_wrong(&options, "--depth", optarg, "a number from 1 to 256"));
		else if (c == 'R' && quantity_parse_count(optarg, 1000, 1u << 28, &records) < 0)
			return option_exit(option_wrong(&options, "--records", optarg, "a number from 1000 on"));
		else if (c == 'p' && quantity_parse_count(optarg, 1, BENCH_PAIRS_MAX, &pairs) < 0)
			return option_exit(option_wrong(&options, "--pairs", optarg, "a number from 1 to 100"));
	if (c != OPTION_END)
		return option_exit(c);
	kind = kind_find(optind < argc ? argv[optind] : NULL);
	if (!kind) {
		complain("bench: name one of pin, publish, share, spill, start, attn, sparse; see kvctl help bench");
		return KVCTL_USAGE;
	}
	if (device && (!self || strcmp(kind->name, "spill"))) {
		complain("bench: --device is for spill, with --self: what is on it is written over");
		return KVCTL_USAGE;
	}
	bench->json = options.json;
	bench->device = device;
	bench->size = size;
	bench->pairs = (unsigned)pairs;
	bench->depth = (unsigned)depth;
	bench->records = records;
	if (kind->own && !self) {
		complain("bench: %s stops and starts daemons: it takes its own, with --self", kind->name);
		return KVCTL_USAGE;
	}
	if (self) {
		r = bench_run_depths(bench, kind);
	} else {
		if (options.name && !options.socket) {
			r = pool_find(&pool, NULL, options.name);
			snprintf(bench->socket, sizeof(bench->socket), "%s", r ? "" : pool.socket);
		} else {
			r = pool_socket_path(options.socket, bench->socket);
		}
		r = r ? r : bench_run(bench, kind);
	}
	return output_end(r ? r : rows_report(bench));
}
