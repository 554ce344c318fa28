/*
 * prog_worker.c - an engine made for being killed: finds, reads, checks and publishes blocks that name their key
 *
 * usage: prog_worker SOCKET NAMESPACE SEED SHARED_FILE
 *
 * Byte i of block k is (131 k + 7 i + 13 floor(i / 256)) mod 256, k from chain and depth.  Every byte of every view is
 * checked; a wrong one that the release does not tell to be void is counted and ends the program with status 99.
 * SHARED_FILE: struct totals, mapped by all workers and read by the driver.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kvpool.h"

#define BLOCK_BYTES 20000
#define CHAINS 24
#define DEPTH 24

struct totals {
	_Atomic uint64_t reads, wrong, lost, stored, exists, rejected, private_blocks, hits_ram, hits_spill, errors;
};

static uint64_t random_state;

static uint64_t random_next(void)
{
	uint64_t x = random_state += 0x9e3779b97f4a7c15ull; /* splitmix64 (Steele, Lea, Flood 2014) */

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint8_t content(uint64_t block, uint64_t i)
{
	return (uint8_t)(131 * block + 7 * i + 13 * (i / 256));
}

static void fill(uint8_t *data, uint64_t block)
{
	for (uint64_t i = 0; i < BLOCK_BYTES; i++)
		data[i] = content(block, i);
}

static bool right(const uint8_t *data, uint64_t block)
{
	for (uint64_t i = 0; i < BLOCK_BYTES; i++)
		if (data[i] != content(block, i))
			return false;
	return true;
}

static void chain_keys(struct kvp_ns *ns, uint32_t chain, struct kvp_key *keys)
{
	for (uint32_t depth = 0; depth < DEPTH; depth++) {
		uint32_t name[2] = {chain, depth};

		if (kvp_hash_bytes(ns, name, sizeof(name), &keys[depth]) < 0)
			abort();
	}
}

/* Check what is held, let go, and only then judge: a lost hold makes what was read void. */
static void check_and_release(struct totals *totals, uint32_t chain, struct kvp_view *views, uint32_t n)
{
	uint32_t n_wrong = 0;

	for (uint32_t i = 0; i < n; i++) {
		n_wrong += !right(views[i].data, chain * DEPTH + i);
		atomic_fetch_add(views[i].hit == KVP_HIT_SPILL ? &totals->hits_spill : &totals->hits_ram, 1);
	}
	atomic_fetch_add(&totals->reads, n);
	if (kvp_release(views, n) > 0) {
		atomic_fetch_add(&totals->lost, 1);
		return;
	}
	if (n_wrong) {
		atomic_fetch_add(&totals->wrong, n_wrong);
		fprintf(stderr, "prog_worker: %u of %u blocks of chain %u are wrong\n", n_wrong, n, chain);
		_exit(99);
	}
}

static void extend(struct totals *totals, struct kvp_ns *ns, const struct kvp_key *keys, uint32_t chain, uint32_t from)
{
	struct kvp_block_ref blocks[4];
	struct kvp_publish_item items[4];
	struct kvp_view views[4];
	uint8_t results[4] = {0};
	uint32_t want = 1 + (uint32_t)(random_next() % 4), n = 0;
	int64_t got;

	memset(blocks, 0, sizeof(blocks));
	memset(items, 0, sizeof(items));
	memset(views, 0, sizeof(views));
	if (from + want > DEPTH)
		want = DEPTH - from;
	if (!want)
		return;
	got = kvp_reserve(ns, want, random_next() % 8 ? 0 : KVP_PRIVATE, kvp_deadline_ms(20), blocks);
	if (got < 0) {
		atomic_fetch_add(&totals->errors, 1);
		return;
	}
	for (; n < (uint32_t)got; n++) {
		fill(blocks[n].data, chain * DEPTH + from + n);
		atomic_fetch_add(&totals->private_blocks, blocks[n].is_private);
		items[n].key = keys[from + n];
		items[n].parent = from + n ? keys[from + n - 1] : (struct kvp_key){{0, 0}};
		items[n].block = &blocks[n];
		items[n].used_tokens = 1;
		items[n].used_bytes = BLOCK_BYTES;
		items[n].view = &views[n];
	}
	if (random_next() % 16 && n)
		kvp_publish(ns, items, n, results);
	for (uint32_t i = 0; i < n; i++) {
		atomic_fetch_add(results[i] == KVP_PUB_STORED	? &totals->stored
				 : results[i] == KVP_PUB_EXISTS ? &totals->exists
								: &totals->rejected,
			1);
		if (!views[i].data)
			continue;
		if (!right(views[i].data, chain * DEPTH + from + i) && !kvp_lost(&views[i], 1)) {
			atomic_fetch_add(&totals->wrong, 1);
			fprintf(stderr, "prog_worker: a block just published is wrong\n");
			_exit(99);
		}
	}
	kvp_release(views, n);
	kvp_abandon(blocks, n);
}

static void work(struct totals *totals, struct kvp_ns *ns)
{
	struct kvp_key keys[DEPTH];
	struct kvp_view views[DEPTH];

	for (;;) {
		/* a few chains are asked for far more often than the others */
		uint32_t chain = (uint32_t)(random_next() % (random_next() % 2 ? 4 : CHAINS));
		uint64_t wait_ms = random_next() % 3 ? 0 : random_next() % 50;
		int64_t n;

		chain_keys(ns, chain, keys);
		memset(views, 0, sizeof(views));
		n = kvp_acquire(ns, keys, DEPTH, 0, wait_ms ? kvp_deadline_ms((uint32_t)wait_ms) : 0, views);
		if (n < 0) {
			atomic_fetch_add(&totals->errors, 1);
			usleep(1000);
			continue;
		}
		if (random_next() % 32 == 0)
			usleep((useconds_t)(random_next() % 20000)); /* hold them for a while */
		check_and_release(totals, chain, views, (uint32_t)n);
		extend(totals, ns, keys, chain, (uint32_t)n);
	}
}

int main(int argc, char **argv)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .comm = "prog_worker"};
	struct kvp_desc desc;
	struct kvp_ns_opts ns_opts = {.size = sizeof(ns_opts), .desc = &desc, .owner_uid = KVP_UID_SELF};
	struct kvp_client *client;
	struct totals *totals;
	struct kvp_ns *ns;
	int fd;

	if (argc != 5) {
		fprintf(stderr, "usage: prog_worker SOCKET NAMESPACE SEED SHARED_FILE\n");
		return 2;
	}
	fd = open(argv[4], O_RDWR | O_CLOEXEC);
	totals = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*totals), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (totals == MAP_FAILED)
		return 2;
	random_state = strtoull(argv[3], NULL, 10);
	opts.socket = argv[1];
	ns_opts.name = argv[2];
	kvp_desc_init(&desc, KVP_LAYOUT_OPAQUE, 1, 0, 0, 0, 0);
	desc.block_bytes = BLOCK_BYTES;
	desc.hash_scheme = 2;
	snprintf(desc.engine, sizeof(desc.engine), "prog_worker/1");
	if (kvp_open(&opts, &client) < 0 || kvp_ns_open(client, &ns_opts, &ns) < 0) {
		fprintf(stderr, "prog_worker: %s\n", kvp_error(NULL));
		return 1;
	}
	work(totals, ns);
	return 0;
}
