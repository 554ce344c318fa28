/*
 * self.c - what belongs to the process and its threads: error texts, counts, handles, fork
 *
 * Owns the list of clients, a struct self for each thread that called us, and the table of holds.  All of it is
 * bookkeeping: nothing of one client is seen by another.
 */
#include "internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FLUSH_NS 1000000ull

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t self_key;
static bool self_key_made;
__thread struct self *self_mine __attribute__((tls_model("initial-exec")));
_Atomic bool process_forked;
static struct kvp_client *clients;

_Atomic(struct hold *) hold_chunks[CHUNKS_MAX];
static uint32_t n_holds; /* ever made */
static uint32_t *free_holds;
static uint32_t n_free_holds, free_holds_room;

/* ---- threads ---- */

static void holds_give_back(struct self *self, uint32_t n)
{
	if (n_free_holds + n > free_holds_room) {
		uint32_t room = free_holds_room ? 2 * free_holds_room : 1024;
		uint32_t *more = realloc(free_holds, room * sizeof(*more));

		if (!more)
			return; /* these handles are not used again */
		free_holds = more;
		free_holds_room = room;
	}
	for (; n; n--)
		free_holds[n_free_holds++] = self->spare[--self->n_spare];
}

static void self_end(void *arg)
{
	struct self *self = arg;

	pthread_mutex_lock(&lock);
	while (self->parts) {
		struct part *part = self->parts;
		struct kvp_client *client = part->client;

		self->parts = part->thread_next;
		if (client) {
			struct part **at = &client->parts;

			for (unsigned i = 0; i < N_COUNTS; i++)
				atomic_fetch_add(&client->gone_counts[i], atomic_load(&part->counts[i]));
			for (unsigned ns = 0; ns < KVP_CLIENT_NS_MAX; ns++)
				for (unsigned i = 0; i < N_NS_COUNTS; i++)
					atomic_fetch_add(
						&client->gone_ns_counts[ns][i], atomic_load(&part->ns_counts[ns][i]));
			while (*at != part)
				at = &(*at)->client_next;
			*at = part->client_next;
		}
		free(part);
	}
	holds_give_back(self, self->n_spare);
	pthread_mutex_unlock(&lock);
	if (self_mine == self)
		self_mine = NULL;
	free(self);
}

struct self *self_make(void)
{
	struct self *self = calloc(1, sizeof(*self));

	if (!self)
		return NULL;
	if (self_key_made && pthread_setspecific(self_key, self) != 0) {
		free(self);
		return NULL;
	}
	self_mine = self;
	return self;
}

void fail_say(const char *format, ...)
{
	struct self *self = self_get();
	va_list args;

	if (!self)
		return;
	self->differs[0] = 0;
	va_start(args, format);
	vsnprintf(self->error, sizeof(self->error), format, args);
	va_end(args);
}

const char *self_error(void)
{
	return self_mine ? self_mine->error : "";
}

const char *self_differs(void)
{
	return self_mine ? self_mine->differs : "";
}

void self_set_differs(const char *field)
{
	struct self *self = self_get();

	if (self)
		snprintf(self->differs, sizeof(self->differs), "%s", field);
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* ---- counts ---- */

static struct part *part_new(struct self *self, struct kvp_client *client)
{
	struct part *part = calloc(1, sizeof(*part)), **at = &self->parts;

	if (!part)
		return NULL;
	pthread_mutex_lock(&lock);
	while (*at) { /* those of closed clients go */
		struct part *old = *at;

		if (old->client) {
			at = &old->thread_next;
			continue;
		}
		*at = old->thread_next;
		free(old);
	}
	part->client = client;
	part->client_next = client->parts;
	client->parts = part;
	part->thread_next = self->parts;
	self->parts = part;
	pthread_mutex_unlock(&lock);
	return part;
}

struct part *part_find(struct kvp_client *client)
{
	struct self *self = self_get();
	struct part *part = self ? self->parts : NULL;

	while (part && atomic_load_explicit(&part->client, memory_order_relaxed) != client)
		part = part->thread_next;
	return part || !self ? part : part_new(self, client);
}

void count_add(struct kvp_client *client, enum count which, uint64_t n)
{
	struct part *part = part_get(client);

	if (part)
		part_add(part, which, n);
	else
		atomic_fetch_add_explicit(&client->gone_counts[which], n, memory_order_relaxed);
}

static uint64_t sum_lookups(const uint64_t sums[N_NS_COUNTS])
{
	return sums[COUNT_HITS_RAM] + sums[COUNT_HITS_SPILL] + sums[COUNT_MISSES];
}

void count_sum(struct kvp_client *client, uint64_t sums[N_COUNTS], uint64_t (*of_ns)[N_NS_COUNTS])
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < N_COUNTS; i++) {
		sums[i] = atomic_load_explicit(&client->gone_counts[i], memory_order_relaxed);
		for (const struct part *part = client->parts; part; part = part->client_next)
			sums[i] += atomic_load_explicit(&part->counts[i], memory_order_relaxed);
	}
	for (unsigned at = 0; at < KVP_CLIENT_NS_MAX; at++) {
		uint64_t mine[N_NS_COUNTS] = {0};

		for (unsigned i = COUNT_HITS_RAM; i < N_NS_COUNTS; i++) {
			mine[i] = atomic_load_explicit(&client->gone_ns_counts[at][i], memory_order_relaxed);
			for (const struct part *part = client->parts; part; part = part->client_next)
				mine[i] += atomic_load_explicit(&part->ns_counts[at][i], memory_order_relaxed);
			sums[i] += mine[i];
		}
		mine[COUNT_LOOKUPS] = sum_lookups(mine);
		if (of_ns)
			memcpy(of_ns[at], mine, sizeof(mine));
	}
	sums[COUNT_LOOKUPS] = sum_lookups(sums);
	pthread_mutex_unlock(&lock);
}

void count_flush(struct session *s)
{
	uint64_t sums[N_COUNTS], of_ns[KVP_CLIENT_NS_MAX][N_NS_COUNTS];
	_Atomic uint64_t *out = &s->head->counts.lookups;

	if (s->client->flags & KVP_OPEN_QUIET)
		return;
	count_sum(s->client, sums, of_ns);
	for (unsigned i = 0; i <= COUNT_LOST_HOLDS; i++)
		atomic_store_explicit(&out[i], sums[i] - s->counts_base[i], memory_order_relaxed);
	for (unsigned at = 0; at < KVP_CLIENT_NS_MAX && atomic_load(&s->head->ns_counts[at].ns_id); at++) {
		out = &s->head->ns_counts[at].lookups;
		for (unsigned i = 0; i < N_NS_COUNTS; i++)
			atomic_store_explicit(&out[i], of_ns[at][i] - s->ns_counts_base[at][i], memory_order_relaxed);
	}
}

void count_flush_soon(struct session *s)
{
	uint64_t now = now_ns(), last = atomic_load_explicit(&s->client->flushed_ns, memory_order_relaxed);

	/* two at once may store the older sums last: the daemon takes what is more, and the next flush mends it */
	if (now - last >= FLUSH_NS && atomic_compare_exchange_strong(&s->client->flushed_ns, &last, now))
		count_flush(s);
}

/* ---- clients and fork ---- */

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&lock);
}

/* The child's handles are dead, and its copy of the socket goes at once: kept open it would hide the parent's end. */
static void after_fork_child(void)
{
	for (struct kvp_client *client = clients; client; client = client->registry_next) {
		atomic_store(&process_forked, true);
		atomic_store(&client->dead, true);
		atomic_store(&client->state, KVP_DETACHED);
		if (client->fd >= 0)
			close(client->fd);
		client->fd = -1;
	}
	clients = NULL;
	pthread_mutex_unlock(&lock);
}

static void process_start(void)
{
	self_key_made = pthread_key_create(&self_key, self_end) == 0;
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

int registry_add(struct kvp_client *client)
{
	pthread_once(&once, process_start);
	pthread_mutex_lock(&lock);
	client->registry_next = clients;
	clients = client;
	pthread_mutex_unlock(&lock);
	return 0;
}

void registry_remove(struct kvp_client *client)
{
	pthread_mutex_lock(&lock);
	for (struct kvp_client **at = &clients; *at; at = &(*at)->registry_next)
		if (*at == client) {
			*at = client->registry_next;
			break;
		}
	while (client->parts) { /* freed by their threads */
		client->parts->client = NULL;
		client->parts = client->parts->client_next;
	}
	pthread_mutex_unlock(&lock);
}

void registry_lock(void)
{
	pthread_mutex_lock(&lock);
}

void registry_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

/* ---- holds ---- */

static bool holds_make(void)
{
	struct hold *chunk =
		n_holds / CHUNK_HOLDS < CHUNKS_MAX ? aligned_alloc(64, CHUNK_HOLDS * sizeof(*chunk)) : NULL;

	_Static_assert(sizeof(struct hold) == 64, "one cache line");
	if (!chunk)
		return false;
	memset(chunk, 0, CHUNK_HOLDS * sizeof(*chunk));
	atomic_store_explicit(&hold_chunks[n_holds / CHUNK_HOLDS], chunk, memory_order_release);
	n_holds += CHUNK_HOLDS;
	return true;
}

void holds_refill(struct self *self)
{
	static uint32_t next; /* not yet used once */

	pthread_mutex_lock(&lock);
	while (self->n_spare < SPARE_HOLDS / 2) {
		if (n_free_holds)
			self->spare[self->n_spare++] = free_holds[--n_free_holds];
		else if (next < n_holds || holds_make())
			self->spare[self->n_spare++] = next++;
		else
			break;
	}
	pthread_mutex_unlock(&lock);
}

void holds_spill(struct self *self)
{
	pthread_mutex_lock(&lock);
	holds_give_back(self, SPARE_HOLDS / 2);
	pthread_mutex_unlock(&lock);
}

uint64_t hold_new(enum hold_kind kind, void *owner, uint64_t slot, uint64_t generation)
{
	uint64_t handle = 0;
	struct hold *hold = hold_take(&handle);

	if (!hold)
		return 0;
	hold->kind = (uint16_t)kind;
	hold->owner = owner;
	hold->slot = slot;
	hold->generation = generation;
	return handle;
}

void hold_end(uint64_t handle)
{
	struct hold *hold = hold_get(handle);

	if (hold)
		hold_end_at(hold, handle);
}
