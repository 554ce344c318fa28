/*
 * prog_ledger.c - an engine that knows what it wrote: publishes numbered blocks and later asks for every one of them
 *
 * usage: prog_ledger SOCKET NAMESPACE write FROM TO          publish these blocks
 *        prog_ledger SOCKET NAMESPACE verify FROM TO A B     each is right or missing; none from A to below B is missing;
 *                                                            and how many lie on which node
 *                                     ... A B MS             with so long for each request, 60000 by default
 *        prog_ledger SOCKET NAMESPACE where N                reserve N blocks and ask the kernel on which nodes they lie
 *
 * Blocks are chains of 8, of the content pattern.h makes of their numbers.
 * Each prints one line; exit status 1: what was asked for could not be done, 99: wrong bytes, 98: a kept block is
 * missing.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kvpool.h"
#include "pattern.h"

#define BLOCK_BYTES 65536u
#define WORDS (BLOCK_BYTES / 8)
#define CHAIN 8u
#define NODES 64u
#define LIMIT_MS 60000u
#define ARGS 5u

static struct kvp_key key_of(struct kvp_ns *ns, uint64_t block)
{
	struct kvp_key key;

	if (kvp_hash_bytes(ns, &block, sizeof(block), &key) < 0)
		abort();
	return key;
}

/* The rest of one chain, from a block whose elders are published. Return: blocks stored or there already; < 0:
   kvp_error(). */
static int64_t write_some(struct kvp_ns *ns, uint64_t from, uint64_t to)
{
	struct kvp_block_ref blocks[CHAIN];
	struct kvp_publish_item items[CHAIN];
	uint8_t results[CHAIN] = {0};
	uint64_t end = from - from % CHAIN + CHAIN;
	uint32_t want = (uint32_t)((end < to ? end : to) - from);
	int64_t n, r, done = 0;

	memset(blocks, 0, sizeof(blocks));
	memset(items, 0, sizeof(items));
	n = kvp_reserve(ns, want, 0, kvp_deadline_ms(LIMIT_MS), blocks);
	for (int64_t i = 0; i < n; i++) {
		uint64_t block = from + (uint64_t)i;

		pattern_fill(blocks[i].data, WORDS, block);
		items[i].key = key_of(ns, block);
		items[i].parent = block % CHAIN ? key_of(ns, block - 1) : (struct kvp_key){{0, 0}};
		items[i].block = &blocks[i];
		items[i].used_tokens = 1;
		items[i].used_bytes = BLOCK_BYTES;
	}
	r = n > 0 ? kvp_publish(ns, items, (uint32_t)n, results) : n;
	for (int64_t i = 0; i < n && r >= 0; i++)
		done += results[i] == KVP_PUB_STORED || results[i] == KVP_PUB_EXISTS;
	if (n > 0)
		kvp_abandon(blocks, (uint32_t)n);
	return r < 0 ? r : done;
}

/* A block whose elder was evicted meanwhile is refused: then the chain is begun again, twice at most. */
static int ledger_write(struct kvp_ns *ns, uint64_t from, uint64_t to)
{
	unsigned again = 0;

	for (uint64_t block = from; block < to;) {
		int64_t n = write_some(ns, block, to);

		if (n < 0 || (n == 0 && again == 2)) {
			printf("ledger: stopped at block %lu: %s\n", (unsigned long)block, kvp_error(NULL));
			return 1;
		}
		again = n ? 0 : again + 1;
		block = n ? block + (uint64_t)n : block - block % CHAIN;
	}
	printf("ledger: wrote %lu to %lu\n", (unsigned long)from, (unsigned long)to);
	return 0;
}

/* The node of the page at @data, as the kernel has it (get_mempolicy with MPOL_F_NODE and MPOL_F_ADDR); -1: none. */
static int node_of(const void *data)
{
	int node = -1;

	(void)*(const volatile char *)data;
	return syscall(SYS_get_mempolicy, &node, NULL, 0, data, 3) < 0 || node >= (int)NODES ? -1 : node;
}

static void print_nodes(const uint64_t on[NODES])
{
	for (unsigned node = 0; node < NODES; node++)
		if (on[node])
			printf(" node%u=%lu", node, (unsigned long)on[node]);
}

struct found {
	uint64_t right, missing, wrong, kept_missing;
	uint64_t on[NODES]; /* of the right ones, by their first page */
	uint64_t slowest_ms; /* of the requests */
};

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* A block whose parent is missing is there nevertheless, and is looked for behind it.
   @limits: none from [0] to below [1] may be missing; [2]: milliseconds for the request.
   Return: how many were looked at; -1: said. */
static int64_t verify_chain(
	struct kvp_ns *ns, uint64_t from, uint64_t to, const uint64_t limits[3], struct found *found)
{
	struct kvp_key keys[CHAIN];
	struct kvp_view views[CHAIN];
	uint32_t n = (uint32_t)(to - from);
	uint64_t start = now_ms(), took;
	int64_t got;

	memset(views, 0, sizeof(views));
	for (uint32_t i = 0; i < n; i++)
		keys[i] = key_of(ns, from + i);
	got = kvp_acquire(ns, keys, n, 0, kvp_deadline_ms((uint32_t)limits[2]), views);
	took = now_ms() - start;
	found->slowest_ms = took > found->slowest_ms ? took : found->slowest_ms;
	if (got < 0) {
		printf("ledger: block %lu: %s\n", (unsigned long)from, kvp_error(NULL));
		return -1;
	}
	for (uint32_t i = 0; i < n && i <= got; i++) {
		if (i == got) {
			found->missing++;
			found->kept_missing += from + i >= limits[0] && from + i < limits[1];
		} else if (pattern_right(views[i].data, WORDS, from + i)) {
			int node = node_of(views[i].data);

			found->right++;
			if (node >= 0)
				found->on[node]++;
		} else {
			found->wrong++;
			printf("ledger: block %lu holds other bytes\n", (unsigned long)(from + i));
		}
	}
	if (kvp_release(views, (uint32_t)got) > 0) {
		printf("ledger: lost hold of block %lu\n", (unsigned long)from);
		return -1;
	}
	return got < n ? got + 1 : n;
}

static int ledger_verify(struct kvp_ns *ns, uint64_t from, uint64_t to, const uint64_t limits[3])
{
	struct found found = {0};

	for (uint64_t block = from; block < to;) {
		uint64_t end = block - block % CHAIN + CHAIN < to ? block - block % CHAIN + CHAIN : to;
		int64_t n = verify_chain(ns, block, end, limits, &found);

		if (n < 0)
			return 1;
		block += (uint64_t)n;
	}
	printf("ledger: asked=%lu right=%lu missing=%lu wrong=%lu kept_missing=%lu slowest_ms=%lu",
		(unsigned long)(to - from), (unsigned long)found.right, (unsigned long)found.missing,
		(unsigned long)found.wrong, (unsigned long)found.kept_missing, (unsigned long)found.slowest_ms);
	print_nodes(found.on);
	printf("\n");
	return found.wrong ? 99 : found.kept_missing ? 98 : 0;
}

static int ledger_where(struct kvp_ns *ns, uint64_t n)
{
	struct kvp_block_ref blocks[64];
	uint64_t on[NODES] = {0};
	unsigned n_private = 0, odd = 0;
	int64_t got;

	memset(blocks, 0, sizeof(blocks));
	got = kvp_reserve(ns, (uint32_t)(n < 64 ? n : 64), 0, kvp_deadline_ms(LIMIT_MS), blocks);
	if (got < 0) {
		printf("ledger: %s\n", kvp_error(NULL));
		return 1;
	}
	for (int64_t i = 0; i < got; i++)
		for (unsigned at = 0; at < BLOCK_BYTES; at += 4096) {
			int node = node_of((char *)blocks[i].data + at);

			n_private += blocks[i].is_private && !at;
			if (node < 0)
				odd++;
			else
				on[node]++;
		}
	printf("ledger: blocks=%ld private=%u", (long)got, n_private);
	print_nodes(on);
	printf("%s\n", odd ? " and pages on no node" : "");
	kvp_abandon(blocks, (uint32_t)got);
	return 0;
}

static int open_both(const char *socket, const char *name, struct kvp_client **client, struct kvp_ns **ns)
{
	struct kvp_open_opts opts = {
		.size = sizeof(opts), .socket = socket, .comm = "prog_ledger", .connect_timeout_ms = LIMIT_MS};
	struct kvp_desc desc;
	struct kvp_ns_opts ns_opts = {.size = sizeof(ns_opts), .name = name, .desc = &desc, .owner_uid = KVP_UID_SELF};

	kvp_desc_init(&desc, KVP_LAYOUT_OPAQUE, 1, 0, 0, 0, 0);
	desc.block_bytes = BLOCK_BYTES;
	desc.hash_scheme = 2;
	snprintf(desc.engine, sizeof(desc.engine), "prog_ledger/1");
	if (kvp_open(&opts, client) < 0 || kvp_ns_open(*client, &ns_opts, ns) < 0 ||
		kvp_state(*client, NULL) != KVP_ATTACHED) {
		printf("ledger: not attached: %s\n", kvp_error(NULL));
		return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct kvp_client *client;
	struct kvp_ns *ns;
	uint64_t number[ARGS] = {[4] = LIMIT_MS};
	const char *what = argc > 3 ? argv[3] : "";
	int r = 2;

	for (int i = 4; i < argc && i < 4 + (int)ARGS; i++)
		number[i - 4] = strtoull(argv[i], NULL, 10);
	if (argc < 5 || open_both(argv[1], argv[2], &client, &ns)) {
		fprintf(stderr, "usage: prog_ledger SOCKET NAMESPACE write|verify|where NUMBER...\n");
		return argc < 5 ? 2 : 1;
	}
	if (!strcmp(what, "write"))
		r = ledger_write(ns, number[0], number[1]);
	else if (!strcmp(what, "verify"))
		r = ledger_verify(ns, number[0], number[1], &number[2]);
	else if (!strcmp(what, "where"))
		r = ledger_where(ns, number[0]);
	kvp_ns_close(ns);
	kvp_close(client);
	return r;
}
