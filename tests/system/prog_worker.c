/*
 * prog_worker.c - an engine made for being killed: finds, reads, checks and publishes blocks that name their key
 *
 * usage: prog_worker [OPTION]... SOCKET NAMESPACE SEED SHARED_FILE
 *
 *	-b BYTES   of a block, 20000
 *	-o UID     whose namespace, its own
 *	-m OCTAL   the namespace's mode when this one makes it, 0600; with others' write bits publishing copies
 *	-p NAME    make it a child of the owner's namespace of this name: what lies there is found, and never written
 *	-r         look up only
 *	-k MS      keep what is found for so long, as a request in mid-token, and check it then
 *	-f         read as fast as can be: nearly all requests are for what is in memory, and wait for nobody; which chains
 *	           all ask for changes all the time, so that these blocks, too, go and come back
 *	-t FILE    requests to repeat, from a random one on: a line is the ids of a prompt's blocks, "a-b" for a run of them;
 *	           else chains are made up
 *	-x         break what it may write: punch its blocks, cut and grow its session object; what it reads is its own affair
 *
 * Every byte of every view is checked; a wrong one that the release does not tell to be void is counted and ends the
 * program with status 99; one that got no namespace ends with status 75.  SHARED_FILE: struct totals, mapped by all
 * workers and read by the driver.
 */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvpool.h"
#include "patience.h"
#include "pattern.h"

#define CHAINS 24u
#define DEPTH 24u
#define DEPTH_MAX 64u /* of a repeated request */
#define EXTEND_MAX 4u
#define SLOW_US 100000u
#define ENGINES_MAX 64u
#define FAST_TURNS 4096u /* of these one is a usual one */
#define HOT_MS 128u /* so long all fast ones ask for the same chains */
#define HOT_CHAINS 4u
#define ALONE_TURNS 64u /* nobody took what was published: so many turns without */
#define EMPTY_US 1000u /* nothing there, and nobody to publish to */

/* As the driver reads it (host.py). */
struct totals {
	_Atomic uint64_t reads, wrong, lost, stored, exists, rejected, private_blocks, hits_ram, hits_spill, errors;
	_Atomic uint64_t late_us; /* longest that a call took beyond its deadline */
	_Atomic uint64_t publish_us; /* longest publish */
	_Atomic uint64_t broken; /* times one broke what it may write */
	_Atomic uint64_t slow; /* calls that took longer beyond their deadline than SLOW_US */
	_Atomic uint64_t engines; /* there were so many: each has its number */
	_Atomic uint64_t slow_of
		[ENGINES_MAX]; /* of those, calls while the daemon went, was away or came, by the engine's number */
};

struct worker {
	struct totals *totals;
	struct kvp_client *client;
	struct kvp_ns *ns;
	struct patience patience;
	uint64_t number; /* of this engine */
	const char *socket, *name, *parent, *trace;
	uint64_t block_bytes, n_words, salt;
	uint32_t owner, mode;
	useconds_t keep_us; /* 0: not for long */
	bool reads_only, breaks, fast;
	unsigned n_alone; /* turns of a fast one until it tries again to publish */
	unsigned n_empty; /* turns that found nothing, at a stretch */
	struct kvp_key keys[CHAINS * DEPTH]; /* of a fast one: worked out once */
	const char *requests, *at, *end; /* the file of -t */
};

struct request {
	uint64_t ids[DEPTH_MAX];
	struct kvp_key keys[DEPTH_MAX];
	uint32_t n;
};

static uint64_t random_state;

static uint64_t random_next(void)
{
	uint64_t x = random_state += 0x9e3779b97f4a7c15ull; /* splitmix64 (Steele, Lea, Flood 2014) */

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static void most(_Atomic uint64_t *counter, uint64_t value)
{
	uint64_t seen = atomic_load(counter);

	while (value > seen && !atomic_compare_exchange_weak(counter, &seen, value))
		;
}

struct call {
	uint64_t start_ns, waited_ns, epoch;
	bool attached;
};

static struct call call_begin(const struct worker *w)
{
	struct call call = {.waited_ns = w->fast ? 0 : patience_waited(&w->patience)};

	call.attached = kvp_state(w->client, &call.epoch) == KVP_ATTACHED;
	call.start_ns = kvp_deadline_ms(0);
	return call;
}

/* Slow is what was so without the time that other programs ran. Of a fast engine nobody asks it. Return: us beyond the
   deadline. */
static uint64_t call_end(struct worker *w, const struct call *call, uint64_t deadline_ns)
{
	uint64_t now = kvp_deadline_ms(0), due = deadline_ns ? deadline_ns : call->start_ns, epoch, waited;
	uint64_t late = now > due ? now - due : 0;
	bool attached = kvp_state(w->client, &epoch) == KVP_ATTACHED;

	if (w->fast || late / 1000 <= SLOW_US)
		return late / 1000;
	waited = patience_waited(&w->patience) - call->waited_ns;
	if (late > waited && (late - waited) / 1000 > SLOW_US) {
		atomic_fetch_add(&w->totals->slow, 1);
		if (!call->attached || !attached || call->epoch != epoch)
			atomic_fetch_add(&w->totals->slow_of[w->number], 1);
	}
	return late / 1000;
}

/* Content is of a name and its owner, so that another tenant's block of the same id is a wrong one; a child has its
   parent's, for it finds the parent's blocks. */
static uint64_t salt_of(const char *name, uint32_t owner, uint64_t block_bytes)
{
	uint64_t salt = 0xcbf29ce484222325ull ^ owner ^ block_bytes << 32; /* FNV-1a */

	for (; *name; name++)
		salt = (salt ^ (uint8_t)*name) * 0x100000001b3ull;
	return salt;
}

/* ---- requests ---- */

static void request_add(struct request *request, uint64_t id)
{
	if (request->n < DEPTH_MAX)
		request->ids[request->n++] = id;
}

/* A few chains are asked for far more often than the others. */
static void request_made_up(struct request *request)
{
	uint64_t chain = random_next() % (random_next() % 2 ? 4 : CHAINS);

	for (uint64_t depth = 0; depth < DEPTH; depth++)
		request_add(request, chain * DEPTH + depth);
}

static uint64_t number(const char **at, const char *end)
{
	uint64_t n = 0;

	while (*at < end && isdigit((unsigned char)**at))
		n = n * 10 + (uint64_t)(*(*at)++ - '0');
	return n;
}

static void request_repeated(struct worker *w, struct request *request)
{
	if (w->at == w->end)
		w->at = w->requests;
	while (w->at < w->end && *w->at != '\n') {
		uint64_t from = number(&w->at, w->end), to = from;

		if (w->at < w->end && *w->at == '-') {
			w->at++;
			to = number(&w->at, w->end);
		}
		for (uint64_t id = from; id <= to && request->n < DEPTH_MAX; id++)
			request_add(request, id);
		while (w->at < w->end && *w->at != '\n' && !isdigit((unsigned char)*w->at))
			w->at++;
	}
	w->at += w->at < w->end;
}

static void request_next(struct worker *w, struct request *request)
{
	request->n = 0;
	if (w->requests)
		request_repeated(w, request);
	else
		request_made_up(request);
	for (uint32_t i = 0; i < request->n; i++)
		if (kvp_hash_bytes(w->ns, &request->ids[i], sizeof(request->ids[i]), &request->keys[i]) < 0)
			abort();
}

/* One of the chains all fast ones ask for just now, or any. */
static void request_hot(const struct worker *w, struct request *request)
{
	uint64_t since = kvp_deadline_ms(0) / (HOT_MS * 1000000ull);
	uint64_t first = since * 0x9e3779b97f4a7c15ull >> 32;
	uint64_t chain = (w->n_alone ? random_next() : first + random_next() % HOT_CHAINS) % CHAINS;

	request->n = DEPTH;
	for (uint32_t i = 0; i < DEPTH; i++) {
		request->ids[i] = chain * DEPTH + i;
		request->keys[i] = w->keys[chain * DEPTH + i];
	}
}

static int requests_open(struct worker *w)
{
	struct stat st;
	int fd = open(w->trace, O_RDONLY | O_CLOEXEC);
	void *map;

	if (fd < 0 || fstat(fd, &st) < 0 || !st.st_size)
		return -1;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		return -1;
	w->requests = map;
	w->end = w->requests + st.st_size;
	w->at = w->requests + random_next() % (uint64_t)st.st_size;
	while (w->at < w->end && *w->at != '\n')
		w->at++;
	w->at += w->at < w->end;
	return 0;
}

/* ---- reading and writing ---- */

static bool right(const struct worker *w, const void *data, uint64_t id)
{
	return pattern_right(data, w->n_words, w->salt + id);
}

static void wrong(const struct worker *w, uint64_t n, const char *what, uint64_t id)
{
	atomic_fetch_add(&w->totals->wrong, n);
	fprintf(stderr, "prog_worker: wrong bytes: %s, %s id %llu\n", what, w->name, (unsigned long long)id);
	_exit(99);
}

/* Check what is held, let go, and only then judge: a lost hold makes what was read void. */
static void check_and_release(struct worker *w, const struct request *request, struct kvp_view *views, uint32_t n)
{
	struct totals *totals = w->totals;
	uint32_t n_wrong = 0, first = 0, n_spill = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (!right(w, views[i].data, request->ids[i]) && !n_wrong++)
			first = i;
		n_spill += views[i].hit == KVP_HIT_SPILL;
	}
	atomic_fetch_add(&totals->reads, n);
	atomic_fetch_add(&totals->hits_ram, n - n_spill);
	if (n_spill)
		atomic_fetch_add(&totals->hits_spill, n_spill);
	if (kvp_release(views, n) > 0)
		atomic_fetch_add(&totals->lost, 1);
	else if (n_wrong && !w->breaks)
		wrong(w, n_wrong, "found", request->ids[first]);
}

/* What a hostile writer can do to memory that is its own to write. */
static void break_something(const struct worker *w, const struct kvp_block_ref *block)
{
	struct dirent *entry;
	DIR *dir;

	atomic_fetch_add(&w->totals->broken, 1);
	if (random_next() % 2) {
		madvise(block->data, w->block_bytes, MADV_REMOVE);
		return;
	}
	dir = opendir("/proc/self/fd");
	while (dir && (entry = readdir(dir))) {
		char link[64], path[256] = "";
		int fd = atoi(entry->d_name);

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		if (readlink(link, path, sizeof(path) - 1) > 0 && strstr(path, "/kvp-"))
			(void)!ftruncate(fd, random_next() % 2 ? 0 : 1 << 30);
	}
	if (dir)
		closedir(dir);
}

static void judge_published(struct worker *w, uint8_t result, const struct kvp_view *view, uint64_t id)
{
	struct totals *totals = w->totals;

	atomic_fetch_add(result == KVP_PUB_STORED   ? &totals->stored
			 : result == KVP_PUB_EXISTS ? &totals->exists
						    : &totals->rejected,
		1);
	if (view->data && !w->breaks && !right(w, view->data, id) && !kvp_lost(view, 1))
		wrong(w, 1, "just published", id);
}

/* Return: blocks stored. */
static int64_t publish(
	struct worker *w, const struct request *request, uint32_t from, struct kvp_block_ref *blocks, uint32_t n)
{
	struct kvp_publish_item items[EXTEND_MAX];
	struct kvp_view views[EXTEND_MAX];
	uint8_t results[EXTEND_MAX] = {0};
	struct call call;
	int64_t n_stored = 0;

	memset(items, 0, sizeof(items));
	memset(views, 0, sizeof(views));
	for (uint32_t i = 0; i < n; i++) {
		items[i].key = request->keys[from + i];
		items[i].parent = from + i ? request->keys[from + i - 1] : (struct kvp_key){{0, 0}};
		items[i].block = &blocks[i];
		items[i].used_tokens = 1;
		items[i].used_bytes = w->block_bytes;
		items[i].view = &views[i];
	}
	call = call_begin(w);
	kvp_publish(w->ns, items, n, results);
	most(&w->totals->publish_us, call_end(w, &call, 0));
	for (uint32_t i = 0; i < n; i++) {
		judge_published(w, results[i], &views[i], request->ids[from + i]);
		n_stored += results[i] == KVP_PUB_STORED;
	}
	kvp_release(views, n);
	return n_stored;
}

/* Return: blocks that were taken. */
static int64_t extend(struct worker *w, const struct request *request, uint32_t from, uint32_t wait_ms)
{
	struct kvp_block_ref blocks[EXTEND_MAX];
	uint32_t want = 1 + (uint32_t)(random_next() % EXTEND_MAX);
	uint64_t deadline = wait_ms ? kvp_deadline_ms(wait_ms) : 0;
	struct call call = call_begin(w);
	int64_t n, n_stored = 0;

	if (from + want > request->n)
		want = request->n - from;
	if (!want || w->reads_only)
		return 0;
	memset(blocks, 0, sizeof(blocks));
	n = kvp_reserve(w->ns, want, random_next() % 8 ? 0 : KVP_PRIVATE, deadline, blocks);
	most(&w->totals->late_us, call_end(w, &call, deadline));
	if (n < 0) {
		atomic_fetch_add(&w->totals->errors, 1);
		fprintf(stderr, "prog_worker: reserve: %s\n", kvp_error(NULL));
		return n;
	}
	for (uint32_t i = 0; i < (uint32_t)n; i++) {
		pattern_fill(blocks[i].data, w->n_words, w->salt + request->ids[from + i]);
		atomic_fetch_add(&w->totals->private_blocks, blocks[i].is_private);
	}
	if (w->breaks && n && random_next() % 16 == 0)
		break_something(w, &blocks[0]);
	if (random_next() % 16 && n)
		n_stored = publish(w, request, from, blocks, (uint32_t)n);
	kvp_abandon(blocks, (uint32_t)n);
	return n_stored;
}

/* What engines also do: none of it may make a later read wrong. */
static void by_the_way(struct worker *w, const struct request *request)
{
	switch (random_next() % 64) {
	case 0:
		kvp_prefetch(w->ns, request->keys, request->n);
		break;
	case 1:
		kvp_touch(w->ns, request->keys, request->n);
		break;
	case 2:
		if (!w->reads_only)
			kvp_delete(w->ns, &request->keys[request->n / 2], 1, kvp_deadline_ms(5));
		break;
	case 3:
		if (w->owner == geteuid() && random_next() % 64 == 0)
			kvp_clear(w->ns, kvp_deadline_ms(20));
		break;
	default:
		break;
	}
}

static int64_t acquire(
	struct worker *w, const struct request *request, uint32_t wait_ms, struct kvp_view views[DEPTH_MAX])
{
	uint64_t deadline = wait_ms ? kvp_deadline_ms(wait_ms) : 0;
	struct call call = call_begin(w);
	int64_t n;

	memset(views, 0, request->n * sizeof(*views));
	n = kvp_acquire(w->ns, request->keys, request->n, 0, deadline, views);
	most(&w->totals->late_us, call_end(w, &call, deadline));
	if (n < 0) {
		atomic_fetch_add(&w->totals->errors, 1);
		fprintf(stderr, "prog_worker: acquire: %s\n", kvp_error(NULL));
		usleep(1000);
	}
	return n;
}

static void work(struct worker *w)
{
	struct kvp_view views[DEPTH_MAX];
	struct request request;
	int64_t n;

	request_next(w, &request);
	if (!request.n)
		return;
	n = acquire(w, &request, random_next() % 3 ? 0 : (uint32_t)(random_next() % 50), views);
	if (n < 0)
		return;
	if (w->keep_us && n)
		usleep(w->keep_us);
	else if (random_next() % 32 == 0)
		usleep((useconds_t)(random_next() % 20000)); /* hold them for a while */
	check_and_release(w, &request, views, (uint32_t)n);
	extend(w, &request, (uint32_t)n, 20);
	by_the_way(w, &request);
}

/* What is missing is published; where nobody takes it, what else is there is read meanwhile. */
static void work_fast(struct worker *w)
{
	struct kvp_view views[DEPTH_MAX];
	struct request request;
	int64_t n;

	request_hot(w, &request);
	n = acquire(w, &request, 0, views);
	if (n < 0)
		return;
	check_and_release(w, &request, views, (uint32_t)n);
	w->n_alone -= w->n_alone > 0;
	if (n < request.n && !w->n_alone && extend(w, &request, (uint32_t)n, 0) <= 0)
		w->n_alone = ALONE_TURNS;
	w->n_empty = n ? 0 : w->n_empty + 1;
	if (w->n_empty > CHAINS)
		usleep(EMPTY_US);
}

static void keys_make(struct worker *w)
{
	for (uint64_t id = 0; id < CHAINS * DEPTH; id++)
		if (kvp_hash_bytes(w->ns, &id, sizeof(id), &w->keys[id]) < 0)
			abort();
}

/* ---- its place ---- */

static int open_ns(const struct worker *w, struct kvp_client *client, const char *name, struct kvp_ns *base, bool ro,
	struct kvp_ns **ns)
{
	struct kvp_desc desc;
	struct kvp_ns_opts opts = {.size = sizeof(opts),
		.flags = ro ? KVP_NS_READONLY : 0,
		.name = name,
		.desc = &desc,
		.owner_uid = w->owner,
		.mode = w->mode,
		.base = base};

	kvp_desc_init(&desc, KVP_LAYOUT_OPAQUE, 1, 0, 0, 0, 0);
	desc.block_bytes = w->block_bytes;
	desc.hash_scheme = 2;
	snprintf(desc.engine, sizeof(desc.engine), "prog_worker/1");
	return kvp_ns_open(client, &opts, ns);
}

static int settle(struct worker *w)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = w->socket, .comm = "prog_worker"};
	struct kvp_client *client;
	struct kvp_ns *base = NULL;
	struct worker child = *w;

	if (w->trace && requests_open(w) < 0) {
		fprintf(stderr, "prog_worker: no requests in %s\n", w->trace);
		return -1;
	}
	w->salt = salt_of(w->parent ? w->parent : w->name, w->owner, w->block_bytes);
	child.owner = w->parent ? geteuid() : w->owner;
	if (kvp_open(&opts, &client) < 0 ||
		(w->parent && open_ns(w, client, w->parent, NULL, w->owner != geteuid(), &base) < 0) ||
		open_ns(&child, client, w->name, base, w->reads_only, &w->ns) < 0) {
		fprintf(stderr, "prog_worker: %s: %s\n", w->name, kvp_error(NULL));
		return -1;
	}
	w->owner = child.owner;
	w->client = client;
	w->number = atomic_fetch_add(&w->totals->engines, 1) % ENGINES_MAX;
	patience_begin(&w->patience); /* the library's thread is there */
	return 0;
}

static int options(struct worker *w, int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "b:fk:o:m:p:rt:x")) >= 0) {
		if (c == 'b')
			w->block_bytes = strtoull(optarg, NULL, 10);
		else if (c == 'f')
			w->fast = true;
		else if (c == 'k')
			w->keep_us = (useconds_t)strtoul(optarg, NULL, 10) * 1000;
		else if (c == 'o')
			w->owner = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 'm')
			w->mode = (uint32_t)strtoul(optarg, NULL, 8);
		else if (c == 'p')
			w->parent = optarg;
		else if (c == 'r')
			w->reads_only = true;
		else if (c == 't')
			w->trace = optarg;
		else if (c == 'x')
			w->breaks = true;
		else
			return -1;
	}
	w->n_words = w->block_bytes / 8;
	return argc - optind == 4 && w->block_bytes % 8 == 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
	static struct worker w = {.block_bytes = 20000, .mode = 0600};
	int fd;

	w.owner = geteuid();
	if (options(&w, argc, argv) < 0) {
		fprintf(stderr, "usage: prog_worker [OPTION]... SOCKET NAMESPACE SEED SHARED_FILE\n");
		return 2;
	}
	argv += optind;
	fd = open(argv[3], O_RDWR | O_CLOEXEC);
	w.totals = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*w.totals), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (w.totals == MAP_FAILED)
		return 2;
	if (w.breaks)
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); /* its SIGBUS is no news */
	w.socket = argv[0];
	w.name = argv[1];
	random_state = strtoull(argv[2], NULL, 10);
	if (settle(&w) < 0)
		return 75; /* EX_TEMPFAIL: there may be room later */
	if (w.fast)
		keys_make(&w);
	for (;;)
		if (w.fast && random_next() % FAST_TURNS)
			work_fast(&w);
		else
			work(&w);
}
