/*
 * main.c - kvctl: which command, and what all have in common: help, complaints, the end of the output
 */
#include "kvctl.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kvpool.h"
#include "kvpool_stdio.h"

struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *arguments;
	const char *summary;
	const char *details;
};

#define POOL_HELP \
	"  --socket PATH   the daemon's socket (else KVPOOL_SOCKET, else " KVP_DEFAULT_SOCKET ")\n" \
	"  --name NAME     the pool of that name\n"
#define JSON_HELP "  --json          for programs\n"

static const struct command commands[] = {
	{"stats", stats_command, "[--json] [--watch [SECONDS]] [--more SIZE] [--post-mortem]",
		"all counters, also with the daemon hung or dead",
		POOL_HELP JSON_HELP "  --watch [S]     again every S seconds (1)\n"
				    "  --more SIZE     what would so much more memory buy? (as much again)\n"
				    "  --post-mortem   first how the daemon ended, and what it had in hand\n"},
	{"top", top_command, "[--once] [--every SECONDS]", "the pool live on a terminal; keys: ? lists them",
		POOL_HELP "  --once          one frame as text (so too where there is no terminal)\n"
			  "  --every S       look again every S seconds (1)\n"},
	{"ns", ns_command, "[--json] | set NAME|ID policy=lru|learned", "namespaces, and what stays in one",
		POOL_HELP JSON_HELP "  --admin PATH    set: the admin socket (socket + .admin)\n"},
	{"clients", clients_command, "[--json]", "client sessions", POOL_HELP JSON_HELP},
	{"check", check_command, "[--json]", "recount everything and compare; exit 1 if an invariant is violated",
		POOL_HELP JSON_HELP "Needs root or the daemon's user: it reads every object of the pool.\n"},
	{"ping", ping_command, "[--timeout SECONDS]", "does the daemon serve? exit 0 as soon as it does",
		POOL_HELP "  --timeout S     wait at most so long (1, and not at all where nobody listens)\n"},
	{"drain", drain_command, "[--deadline SECONDS]", "write what is worth it to the spill store",
		POOL_HELP "  --admin PATH    the admin socket (socket + .admin)\n"
			  "  --deadline S    stop then (30)\n"},
	{"evict", evict_command, "[--ns NAME|ID] [--deadline SECONDS] [N]",
		"drop N blocks from memory, or all that nobody holds",
		POOL_HELP "  --admin PATH    the admin socket (socket + .admin)\n"
			  "  --ns NAME|ID    of this namespace only\n"
			  "  --deadline S    stop then (30)\n"},
	{"resize", resize_command, "[--deadline SECONDS] SIZE|nodeN=SIZE,...",
		"make the pool larger or smaller while it serves",
		POOL_HELP "  --admin PATH    the admin socket (socket + .admin)\n"
			  "  --deadline S    answer then, whatever is left (30)\n"},
	{"purge", purge_command, "[--deadline SECONDS]", "remove the pool from memory, its daemon too",
		POOL_HELP "  --admin PATH    the admin socket (socket + .admin)\n"
			  "  --deadline S    do not wait longer for the daemon (10)\n"
			  "With no daemon: as root or the pool's owner. The spill store stays.\n"},
	{"store", store_command, "list|verify|scrub|drop [PATH...] [--key-file FILE]... [--json]",
		"what the spill store holds, and is it right?",
		POOL_HELP JSON_HELP "  --rate SIZE     scrub: bytes a second (as the daemon is configured)\n"
				    "  --ns NAME|ID    drop: of this namespace only\n"
				    "  --yes           drop: for good\n"
				    "  --admin PATH    the admin socket (socket + .admin)\n"
				    "  --deadline S    scrub, drop: do not wait longer for the daemon (30)\n"
				    "PATH: directory, file or device of a store (else that of the pool).\n"
				    "  --key-file FILE  of an encrypted one; else its records are only counted\n"},
	{"support-bundle", bundle_command, "[--output FILE]",
		"state, log and surroundings of a pool in one file, for a report",
		POOL_HELP "  --output FILE   that one (kvpool-NAME-TIME.tar.gz here)\n"
			  "Waits 20 s at most for each of its parts. No block, key or secret is in it.\n"},
	{"plan", plan_command, "--layers N --kv-heads N --head-dim N --dtype T --block-tokens N --pool SIZE",
		"what a model needs, and what a pool holds",
		"  --dim-v N       dimension of V, if not that of K\n"
		"  --dtype T       f32, f16, bf16, fp8, int8 or int4\n"
		"  --dtype-v T     of V, if not that of K\n"
		"  --layout L      rows (HND, NHD, or an engine's own with scales), or tiled (rows)\n"
		"  --scale-bytes N rows of int8, int4: bytes of scales for each token and head of K and of V (4)\n"
		"  --slab SIZE     unit of memory (as kvpoold chooses by default)\n"
		"  --spill SIZE    room of the spill store\n"
		"  --spill-sector N  of the device it is: 512 ... (4096, as in a directory)\n"
		"  --context N     tokens of a context (8192)\n"
		"  --heads N       query heads (those of K)\n"
		"  --hidden N      width of the model; with it, or --params, the arithmetic of a step\n"
		"  --params N      weights, e.g. 8B (else 12 x layers x hidden^2)\n"
		"  --weight-bytes N  bytes of one weight (2)\n" JSON_HELP
		"Sizes by 1024: 64G is 64 x 2^30 bytes. Numbers by 1000: 8B, or 8G, is 8 x 10^9.\n"},
	{"replay", replay_command, "TRACE --pool N [--spill M] [--policy P] [--hints F] | TRACE --sweep",
		"what would have stayed of a trace of requests",
		"  --pool N        memory: 4500 (blocks), 5% (of the trace's blocks), or a size, 64G\n"
		"  --spill M       a store behind it, likewise\n"
		"  --store S       log (what was written first goes first, as in kvpoold) or chosen (by the policy, default)\n"
		"  --block-bytes B what a block takes, for sizes\n"
		"  --policy P      lru, learned (default), or unguarded (learned, never by lru)\n"
		"  --hints F       each request says whether it goes on; a share F of them says it wrong\n"
		"  --admit A       what is written to the store: all (default), reused, or chance\n"
		"  --write-budget F  chance: so much of what is offered (0.25)\n"
		"  --sweep         hits over sizes, beside lru and the optimum\n" JSON_HELP},
	{"bench", bench_command,
		"pin|publish|share|spill|start|attn|sparse [--json] [--self] [--pairs N] [--depth N] [--size SIZE]\n"
		"        [--device DEVICE] [--records N]",
		"measure beside yardsticks",
		POOL_HELP JSON_HELP
		"  --self          start a daemon for it, and remove everything afterwards; takes of /dev/shm\n"
		"                  pin 5G, share 1.25G, publish 1G, attn 512M, spill 1.25G, sparse 128M, but\n"
		"                  at most half of what is free; of the disk (TMPDIR, else /var/tmp) sparse 1G,\n"
		"                  spill 1.7G; start takes 4.5G and 9G of disk, with fewer records less; pin and\n"
		"                  start take minutes\n"
		"  --pairs N       spill: rounds of ours and of fio (10)\n"
		"  --depth N       spill: so many at once only (--self: 1, 8 and 32)\n"
		"  --size SIZE     spill: blocks of that size only (64K, 256K, 1M, 2M)\n"
		"  --device DEVICE spill, --self: on that block device, which is written over; 2.2G at least\n"
		"  --records N     start: so many in the store (1000000)\n"},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

void complain(const char *format, ...)
{
	va_list args;

	fflush(stdout); /* in the order it happened, where both go to one place */
	fprintf(stderr, "kvctl: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

int output_end(int code)
{
	bool failed =
		ferror(stdout); /* and the stream does not know why any more: what one byte more is refused for tells */

	clearerr(stdout);
	errno = 0;
	if ((!failed || putchar('\n') != EOF) && fflush(stdout) == 0 && !failed)
		return code;
	fprintf(stderr, "kvctl: standard output took not all: %s\n", strerror(errno ? errno : EIO));
	return KVCTL_OUTPUT;
}

static const struct command *command_find(const char *name)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

/* The one that begins most alike; "": none does. */
static const char *command_like(const char *name)
{
	const char *best = "";
	size_t most = 1; /* one letter alike is none */

	for (size_t i = 0; i < N_COMMANDS; i++) {
		size_t n = 0;

		while (name[n] && name[n] == commands[i].name[n])
			n++;
		if (n > most) {
			most = n;
			best = commands[i].name;
		}
	}
	return best;
}

static void usage_all(FILE *to)
{
	fprintf(to, "usage: kvctl COMMAND [OPTION]...\n\nLooks at and runs a kvpool; see kvctl(1).\n\n");
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(to, "  %-14s %s\n", commands[i].name, commands[i].summary);
	fprintf(to, "  %-14s %s\n\n", "help", "of one command");
	fprintf(to, "Exit codes: 0 fine, 1 failed or violated, 2 usage, 3 daemon not serving,\n"
		    "4 no readable pool, 5 output not taken.\n");
}

int usage_print(const char *name)
{
	const struct command *command = command_find(name);

	printf("usage: kvctl %s %s\n%s\n\n%s", command->name, command->arguments, command->summary, command->details);
	return KVCTL_DONE;
}

static int help_command(int argc, char **argv)
{
	if (argc < 2) {
		usage_all(stdout);
		return output_end(KVCTL_DONE);
	}
	if (!command_find(argv[1])) {
		complain("help: no command \"%s\"; kvctl help lists them", argv[1]);
		return KVCTL_USAGE;
	}
	return output_end(usage_print(argv[1]));
}

int main(int argc, char **argv)
{
	const struct command *command;

	if (kvp_stdio_hold() < 0)
		return KVCTL_FAILED;
	/* a closed pipe is a failed write, said by output_end() */
	signal(SIGPIPE, SIG_IGN);
	if (argc < 2) {
		usage_all(stderr);
		return KVCTL_USAGE;
	}
	if (!strcmp(argv[1], "help") || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
		return help_command(argc - 1, argv + 1);
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
		printf("kvctl %d.%d\n", KVP_VERSION_MAJOR, KVP_VERSION_MINOR);
		return output_end(KVCTL_DONE);
	}
	command = command_find(argv[1]);
	if (!command) {
		const char *like = command_like(argv[1]);

		if (argv[1][0] == '-')
			complain("the command comes first, not \"%s\"; kvctl help lists the commands", argv[1]);
		else
			complain("no command \"%s\"%s%s%s kvctl help lists the commands", argv[1],
				like[0] ? "; did you mean \"" : ";", like, like[0] ? "\"?" : "");
		return KVCTL_USAGE;
	}
	return command->run(argc - 1, argv + 1);
}
