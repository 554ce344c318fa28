/*
 * main.c - kvpool-cold: what nobody has used for long, quantised into the namespace its owner made for that
 *
 * A client like any other, run as the owner of the namespaces: it may do what he may, and the daemon serves it no
 * differently.  It looks without being counted (KVP_OPEN_QUIET), waits for nothing, holds little, and is in a namespace
 * only while there is something to do.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvattn.h"
#include "kvpool.h"
#include "kvpool_stdio.h"

#define USAGE 2
#define PIECE_BYTES (8ull << 20) /* of exact blocks, held at a time; one at least */
#define PIECE_BLOCKS 32u
#define PIECES_MAX 64u /* of one namespace, then come the others */
#define MAP_MS 50 /* a slab is mapped within, or asked for again the next time */
#define TRIES 4
#define PAUSE_MAX_MS 30000u

struct helper {
	const char *socket;
	uint32_t idle_ms, every_ms;
	uint64_t rate; /* bytes of exact blocks a second */
	struct kvp_client *client;
	uint64_t blocks, bytes, errors;
	bool short_of_room;
};

static const struct kvp_kernels kernels = KVP_KERNELS_OF_KVATTN;
static volatile sig_atomic_t ending;

static void end(int number)
{
	(void)number;
	ending = 1;
}

/* What is the same as before is not said again. */
static void complain(const char *format, ...)
{
	static char last[600];
	char text[600];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (!strcmp(text, last))
		return;
	strcpy(last, text);
	fprintf(stderr, "kvpool-cold: %s\n", text);
}

static void pause_ms(uint64_t ms)
{
	struct timespec left = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000 * 1000000)};

	if (!ending)
		nanosleep(&left, NULL); /* a signal ends it */
}

/* A daemon that is away or starting, and blocks that went meanwhile, are none. */
static void helper_failed(struct helper *h, int64_t r, const char *name)
{
	if (r == -KVP_EDETACHED || r == -KVP_ETIMEDOUT || r == -KVP_ESHUTDOWN || r == -KVP_ESTALE || r == -KVP_ENOENT)
		return;
	h->errors++;
	complain("%s%s%s", name, *name ? ": " : "", kvp_error(h->client));
}

static int open_one(const struct helper *h, const struct kvp_cold *cold, const struct kvp_desc *desc, uint32_t flags,
	struct kvp_ns **ns)
{
	struct kvp_ns_opts opts = {.size = sizeof(opts),
		.flags = KVP_NS_JOIN | flags,
		.name = cold->name,
		.desc = desc,
		.owner_uid = cold->owner_uid};

	return kvp_ns_open(h->client, &opts, ns);
}

/* One piece. Return: blocks that are there now; 0: there is no room, or they went; < 0. */
static int64_t piece_make(
	struct kvp_ns *from, struct kvp_ns *to, const struct kvp_key *parent, const struct kvp_key *keys, uint32_t n)
{
	int64_t r = 0;

	for (unsigned try = 0; !r && try < TRIES && !ending; try++) {
		if (try)
			pause_ms(MAP_MS);
		r = kvp_quantise(
			from, to, &kernels, parent, keys, n, 0); /* 0: nothing is read back, nobody made to wait */
	}
	return r;
}

static void pair_work(struct helper *h, struct kvp_ns *from, struct kvp_ns *to, const char *name)
{
	struct kvp_ns_info info = {.size = sizeof(info)};
	struct kvp_key parent, keys[PIECE_BLOCKS];
	uint32_t max = PIECE_BLOCKS;

	kvp_ns_info(from, &info);
	if (info.block_bytes * max > PIECE_BYTES)
		max = info.block_bytes < PIECE_BYTES ? (uint32_t)(PIECE_BYTES / info.block_bytes) : 1;
	for (unsigned i = 0; i < PIECES_MAX && !ending; i++) {
		int64_t n = kvp_cold_keys(from, to, h->idle_ms, &parent, keys, max);
		int64_t done = n > 0 ? piece_make(from, to, &parent, keys, (uint32_t)n) : n;

		if (done < 0)
			helper_failed(h, done, name);
		if (n > 0 && !done)
			h->short_of_room = true;
		if (done <= 0)
			return;
		h->blocks += (uint64_t)done;
		h->bytes += (uint64_t)done * info.block_bytes;
		pause_ms((uint64_t)done * info.block_bytes * 1000 / h->rate);
	}
}

static void pair_open(struct helper *h, const struct kvp_cold *cold)
{
	struct kvp_ns *from = NULL, *to = NULL;
	int r = open_one(h, cold, &cold->from, KVP_NS_READONLY, &from);

	if (r == 0)
		r = open_one(h, cold, &cold->to, 0, &to);
	if (r < 0)
		helper_failed(h, r, cold->name);
	else
		pair_work(h, from, to, cold->name);
	kvp_ns_close(to);
	kvp_ns_close(from);
}

/* All namespaces once. */
static void helper_round(struct helper *h)
{
	struct kvp_cold *cold = calloc(1, sizeof(*cold));
	uint64_t after = 0;
	int r = 0;

	h->short_of_room = false;
	while (cold && !ending) {
		cold->size = sizeof(*cold);
		r = kvp_cold_next(h->client, &after, h->idle_ms, cold);
		if (r <= 0)
			break;
		pair_open(h, cold);
	}
	if (r < 0)
		helper_failed(h, r, "");
	free(cold);
}

static int helper_run(struct helper *h)
{
	struct kvp_open_opts opts = {.size = sizeof(opts),
		.socket = h->socket,
		.flags = KVP_OPEN_QUIET | KVP_OPEN_NO_PREFAULT,
		.stock_blocks = KVP_STOCK_NONE};
	uint64_t pause;

	if (kvp_open(&opts, &h->client) < 0) {
		complain("%s", kvp_error(NULL));
		return EXIT_FAILURE;
	}
	for (pause = h->every_ms; !ending; pause_ms(pause)) {
		uint64_t before = h->blocks;

		helper_round(h);
		pause = !h->short_of_room || h->blocks > before ? h->every_ms
			: 2 * pause < PAUSE_MAX_MS		? 2 * pause
								: PAUSE_MAX_MS;
	}
	kvp_close(h->client);
	printf("%" PRIu64 " blocks quantised, %" PRIu64 " bytes of exact ones, %" PRIu64 " errors\n", h->blocks,
		h->bytes, h->errors);
	return EXIT_SUCCESS;
}

/* Return: false: not a number from 1 to @most, or more than that behind it. */
static bool number_take(const char *text, uint64_t most, uint64_t *number)
{
	char *rest;

	errno = 0;
	*number = strtoull(text, &rest, 10);
	return *text >= '0' && *text <= '9' && !*rest && !errno && *number && *number <= most;
}

static int options_take(struct helper *h, int argc, char **argv)
{
	static const struct option longs[] = {{"socket", required_argument, NULL, 's'},
		{"idle", required_argument, NULL, 'i'}, {"every", required_argument, NULL, 'e'},
		{"rate", required_argument, NULL, 'r'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
	uint64_t number = 1;
	int c;

	opterr = 0;
	while ((c = getopt_long(argc, argv, ":", longs, NULL)) != -1) {
		bool good = c == 's' || c == 'h' || c == ':' || c == '?' ||
			    number_take(optarg, c == 'r' ? 1u << 20 : 86400000, &number);

		if (c == 'h') {
			printf("usage: kvpool-cold [--socket PATH] [--idle MS] [--every MS] [--rate MIB]\n\n"
			       "Quantises blocks nobody has used for --idle (30000) into the namespaces that were made\n"
			       "with KVP_NS_COLD, at --rate MiB a second (64); see kvpool-cold(1).\n");
			exit(EXIT_SUCCESS);
		}
		if (!good || c == ':' || c == '?') {
			complain(c == '?'   ? "unknown option %s; kvpool-cold --help lists them"
				 : c == ':' ? "%s needs a value; kvpool-cold --help lists them"
					    : "%s: not a number from 1 on; kvpool-cold --help says of what",
				argv[optind - 1]);
			return USAGE;
		}
		if (c == 's')
			h->socket = optarg;
		if (c == 'i')
			h->idle_ms = (uint32_t)number;
		if (c == 'e')
			h->every_ms = (uint32_t)number;
		if (c == 'r')
			h->rate = number << 20;
	}
	if (optind == argc)
		return 0;
	complain("unexpected argument %s; see --help", argv[optind]);
	return USAGE;
}

int main(int argc, char **argv)
{
	struct helper h = {.idle_ms = 30000, .every_ms = 1000, .rate = 64 << 20};
	struct sigaction action = {.sa_handler = end}; /* without SA_RESTART: it ends a pause */
	int r;

	if (kvp_stdio_hold() < 0)
		return EXIT_FAILURE;
	r = options_take(&h, argc, argv);
	if (r)
		return r;
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	return helper_run(&h);
}
