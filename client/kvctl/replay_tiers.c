/*
 * replay_tiers.c - a trace, played through a policy as the daemon asks it
 *
 * Without a store the policy chooses what leaves memory.  With one, memory is in front of it by least recent use, as
 * what leaves it is not lost, and admission says what comes into the store, by what the policy knows.  What leaves that
 * is what was written first, as in the daemon's log, with all that hangs below it unless it is in memory too; room that
 * it leaves behind it does so in turn, as a log's; what leaves memory again with a copy there that is old may be
 * written again.  Or the policy chooses it, which no log can.
 */
#include "replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MEMORY, STORE, TIERS };

struct replay_block {
	struct lru_leaf leaf[TIERS];
	uint32_t parent; /* + 1; first_child, next_sibling likewise */
	uint32_t first_child, next_sibling;
	uint32_t n_children[TIERS]; /* in that tier */
	uint64_t written; /* its place in the log, + 1; 0: in none */
	bool in[TIERS];
};

struct replay_tier {
	uint64_t n, room;
	struct lru lru;
	struct learned *learned; /* NULL: by lru */
};

struct replay {
	const struct replay_trace *trace;
	const struct replay_options *options;
	struct replay_result *result;
	struct replay_block *blocks;
	uint32_t *table; /* block + 1 by key, as a daemon finds it */
	uint64_t mask;
	struct replay_tier tier[TIERS];
	struct admission admission;
	struct learned *learned; /* the tier's that has one */
	uint32_t *log; /* blocks, in a ring of the store's room */
	uint64_t n_written;
	struct kvp_key *keys; /* of the request */
	uint32_t *numbers;
	uint32_t stamp; /* of the request */
	double now;
};

static uint32_t *replay_place(struct replay *replay, const struct kvp_key *key)
{
	uint64_t at = key->w[0] & replay->mask;

	while (replay->table[at] && memcmp(&replay->trace->keys[replay->table[at] - 1], key, sizeof(*key)))
		at = (at + 1) & replay->mask;
	return &replay->table[at];
}

static uint32_t replay_find(struct replay *replay, const struct kvp_key *key)
{
	return *replay_place(replay, key) - 1;
}

/* ---- what is in a tier ---- */

static int tier_add(struct replay *replay, unsigned which, uint32_t i)
{
	struct replay_tier *tier = &replay->tier[which];
	struct replay_block *block = &replay->blocks[i],
			    *parent = block->parent ? &replay->blocks[block->parent - 1] : NULL;
	int r = 0;

	block->in[which] = true;
	tier->n++;
	if (parent && !parent->n_children[which]++)
		lru_remove(&tier->lru, &parent->leaf[which]);
	if (tier->learned)
		r = learned_insert(tier->learned, &replay->trace->keys[i],
			parent ? &replay->trace->keys[block->parent - 1] : NULL, replay->now);
	if (!block->n_children[which] && !lru_add(&tier->lru, &block->leaf[which]))
		r = -ENOMEM;
	return r;
}

static void tier_drop(struct replay *replay, unsigned which, uint32_t i)
{
	struct replay_tier *tier = &replay->tier[which];
	struct replay_block *block = &replay->blocks[i],
			    *parent = block->parent ? &replay->blocks[block->parent - 1] : NULL;

	block->in[which] = false;
	tier->n--;
	lru_remove(&tier->lru, &block->leaf[which]);
	if (tier->learned)
		learned_remove(tier->learned, &replay->trace->keys[i]);
	if (parent && !--parent->n_children[which] && parent->in[which])
		lru_add(&tier->lru, &parent->leaf[which]); /* it was in: there is room */
}

/* What goes next. Return: false: there is nothing but what was just asked for. */
static bool tier_victim(struct replay *replay, unsigned which, uint32_t *victim)
{
	struct replay_tier *tier = &replay->tier[which];
	struct lru_leaf *leaf = lru_first(&tier->lru);
	struct kvp_key key;

	if (tier->learned && learned_leads(tier->learned) && (which == STORE || !replay->tier[STORE].room)) {
		if (!learned_victim(tier->learned, replay->now, &key))
			return false;
		*victim = replay_find(replay, &key);
		return true;
	}
	if (!leaf || leaf->stamp == replay->stamp)
		return false;
	*victim = (uint32_t)((struct replay_block *)(void *)((char *)leaf - offsetof(struct replay_block, leaf) -
							     which * sizeof(*leaf)) -
			     replay->blocks);
	return true;
}

/* ---- from memory to the store ---- */

static void store_lose(struct replay *replay, uint32_t i)
{
	const struct replay_block *block = &replay->blocks[i];

	if (!block->in[MEMORY])
		admission_lost(&replay->admission,
			replay->now - (double)replay->trace->requests[block->leaf[MEMORY].stamp - 1].time_ms / 1e3);
	tier_drop(replay, STORE, i);
	replay->result->lost++;
}

/* All below it that is in the store: nobody could reach it.  A parent comes before its children in a trace, so this
   ends. */
static void store_lose_below(struct replay *replay, uint32_t i)
{
	uint32_t at = i;

	for (;;) {
		const struct replay_block *block = &replay->blocks[at];
		bool goes = at == i || (block->in[STORE] && !block->in[MEMORY]);

		if (goes && at != i)
			store_lose(replay, at);
		if (goes && block->first_child) {
			at = block->first_child - 1;
			continue;
		}
		while (at != i && !replay->blocks[at].next_sibling)
			at = replay->blocks[at].parent - 1;
		if (at == i)
			return;
		at = replay->blocks[at].next_sibling - 1;
	}
}

/* The place it takes in the log was another one's. */
static void log_write(struct replay *replay, uint32_t i)
{
	uint64_t room = replay->tier[STORE].room, at = replay->n_written % room;
	uint32_t old = replay->log[at];

	if (replay->n_written >= room && replay->blocks[old].in[STORE] &&
		replay->blocks[old].written == replay->n_written - room + 1) {
		store_lose(replay, old);
		if (!replay->blocks[old].in[MEMORY])
			store_lose_below(replay, old);
	}
	replay->log[at] = i;
	replay->blocks[i].written = ++replay->n_written;
}

/* Return: false: there is nothing that may go for it. */
static bool store_room(struct replay *replay, uint32_t i)
{
	struct replay_tier *store = &replay->tier[STORE];
	uint32_t victim;

	if (replay->log) {
		log_write(replay, i);
		return true;
	}
	if (store->n < store->room)
		return true;
	if (!tier_victim(replay, STORE, &victim))
		return false;
	store_lose(replay, victim);
	return true;
}

static bool replay_has(const struct replay *replay, uint32_t i)
{
	return replay->blocks[i].in[MEMORY] || replay->blocks[i].in[STORE];
}

static double store_chance(struct replay *replay, uint32_t i, double seconds)
{
	return replay->learned ? learned_chance(replay->learned, &replay->trace->keys[i], replay->now, seconds) : 1;
}

/* Its copy is old: is another one worth a write? */
static bool store_again(struct replay *replay, uint32_t i)
{
	struct admission *a = &replay->admission;
	uint64_t since = replay->n_written - replay->blocks[i].written;
	double left = replay->log ? admission_left(a, (double)since / (double)replay->tier[STORE].room) : -1;

	return left >= 0 && admission_again(a, store_chance(replay, i, a->horizon_s) - store_chance(replay, i, left));
}

static bool store_admits(struct replay *replay, uint32_t i)
{
	unsigned uses = replay->learned ? learned_uses(replay->learned, &replay->trace->keys[i]) : 2;

	return admission_offer(&replay->admission, replay->blocks[i].n_children[STORE], uses,
		store_chance(replay, i, replay->admission.horizon_s));
}

static int store_offer(struct replay *replay, uint32_t i)
{
	struct replay_block *block = &replay->blocks[i];
	bool again = block->in[STORE];

	if (!replay->tier[STORE].room)
		return 0;
	if (block->parent && !replay_has(replay, block->parent - 1))
		return 0; /* nobody could reach it */
	if (!(again ? store_again(replay, i) : store_admits(replay, i)))
		return 0;
	if (again)
		tier_drop(replay, STORE, i);
	if (!store_room(replay, i))
		return 0;
	replay->result->again += again;
	if (block->parent && !replay_has(replay, block->parent - 1))
		return 0; /* for it went what it would hang below */
	replay->result->written++;
	block->leaf[STORE].stamp = block->leaf[MEMORY].stamp;
	return tier_add(replay, STORE, i);
}

/* Return: 1: there is room; 0: there is none for it; -ENOMEM. */
static int memory_room(struct replay *replay)
{
	uint32_t victim;
	int r;

	if (replay->tier[MEMORY].n < replay->tier[MEMORY].room)
		return 1;
	if (!replay->tier[MEMORY].room || !tier_victim(replay, MEMORY, &victim))
		return 0;
	r = store_offer(replay, victim);
	if (r < 0)
		return r;
	tier_drop(replay, MEMORY, victim);
	replay->result->evicted++;
	return 1;
}

/* ---- a request ---- */

static void request_count(struct replay *replay, const uint32_t *numbers, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++) {
		const struct replay_block *block = &replay->blocks[numbers[k]];

		if (block->in[MEMORY])
			replay->result->pool_hits++;
		else if (block->in[STORE])
			replay->result->spill_hits++;
		else
			return;
	}
}

static void request_touch(struct replay *replay, const uint32_t *numbers, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++)
		for (unsigned which = 0; which < TIERS; which++) {
			struct lru_leaf *leaf = &replay->blocks[numbers[k]].leaf[which];

			leaf->stamp = replay->stamp;
			lru_touch(&replay->tier[which].lru, leaf);
		}
}

static void block_hang(struct replay *replay, uint32_t i, uint32_t parent)
{
	replay->blocks[i].parent = parent + 1;
	replay->blocks[i].next_sibling = replay->blocks[parent].first_child;
	replay->blocks[parent].first_child = i + 1;
}

/* What it asks for and is not in memory comes in, from the first block on. */
static int request_publish(struct replay *replay, const uint32_t *numbers, uint32_t n)
{
	bool room = true;

	for (uint32_t k = 0; k < n; k++) {
		struct replay_block *block = &replay->blocks[numbers[k]];
		int r;

		if (block->in[MEMORY])
			continue;
		if (k && !block->parent)
			block_hang(replay, numbers[k], numbers[k - 1]);
		r = room ? memory_room(replay) : 0;
		if (r > 0 && k && !replay_has(replay, numbers[k - 1]))
			r = 0; /* for it went what it would hang below: the daemon takes no block without its parent */
		if (r == 0 && room) {
			room = false;
			replay->result->refused += n - k;
		}
		r = r > 0 ? tier_add(replay, MEMORY, numbers[k]) : r < 0 ? r : store_offer(replay, numbers[k]);
		if (r < 0)
			return r;
	}
	return 0;
}

static int replay_request(struct replay *replay, uint32_t n, enum policy_hint hint)
{
	for (uint32_t k = 0; k < n; k++)
		replay->numbers[k] = replay_find(replay, &replay->keys[k]);
	request_count(replay, replay->numbers, n);
	for (unsigned which = 0; which < TIERS; which++) {
		int64_t r = replay->tier[which].learned
				    ? learned_request(replay->tier[which].learned, replay->keys, n, replay->now, hint)
				    : 0;

		if (r < 0)
			return (int)r;
	}
	request_touch(replay, replay->numbers, n);
	return request_publish(replay, replay->numbers, n);
}

/* ---- hints ---- */

/* By request: does a later one go on from its last block? */
static uint8_t *hints_make(const struct replay_trace *trace, const struct replay_options *options)
{
	uint8_t *hints = calloc(trace->n_requests, 1), *seen = calloc(trace->n_blocks, 1);
	uint64_t dice = options->seed;

	for (uint64_t r = trace->n_requests; hints && seen && options->hints_wrong >= 0 && r > 0; r--) {
		const struct replay_request *request = &trace->requests[r - 1];
		const uint32_t *ids = trace->ids + request->first;
		bool goes_on = seen[ids[request->n - 1]];

		dice = dice * 6364136223846793005ull + 1442695040888963407ull;
		if ((double)(dice >> 11) < options->hints_wrong * 0x1p53)
			goes_on = !goes_on;
		hints[r - 1] = goes_on ? POLICY_HINT_CONTINUES : POLICY_HINT_ENDS;
		for (uint32_t k = 0; k < request->n; k++)
			seen[ids[k]] = 1;
	}
	if (!seen) {
		free(hints);
		hints = NULL;
	}
	free(seen);
	return hints;
}

/* ---- all of it ---- */

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int float_compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static int replay_play(struct replay *replay, const uint8_t *hints, float *took)
{
	const struct replay_trace *trace = replay->trace;

	if (replay->options->hints)
		memcpy(replay->options->hints, hints, trace->n_requests);
	for (uint64_t r = 0; r < trace->n_requests; r++) {
		const struct replay_request *request = &trace->requests[r];
		uint64_t begin, before = replay->result->pool_hits;
		int result;

		for (uint32_t k = 0; k < request->n; k++)
			replay->keys[k] = trace->keys[trace->ids[request->first + k]];
		replay->stamp = (uint32_t)r + 1;
		replay->now = (double)request->time_ms / 1e3;
		begin = clock_ns();
		result = replay_request(replay, request->n, hints[r]);
		if (replay->options->found)
			replay->options->found[r] = (uint32_t)(replay->result->pool_hits - before);
		took[r] = (float)(clock_ns() - begin) / (float)request->n;
		if (result < 0)
			return result;
	}
	qsort(took, trace->n_requests, sizeof(*took), float_compare);
	replay->result->decision_ns = (double)took[trace->n_requests / 2];
	return 0;
}

static int replay_init(struct replay *replay)
{
	const struct replay_options *options = replay->options;
	const struct replay_trace *trace = replay->trace;
	bool has_log = options->spill && options->store == REPLAY_LOG;
	unsigned chooses = options->spill && !has_log ? STORE : MEMORY;
	uint64_t longest = 0;

	replay->tier[MEMORY].room = options->pool;
	replay->tier[STORE].room = options->spill;
	admission_init(&replay->admission, options->admission, options->budget);
	for (uint64_t r = 0; r < trace->n_requests; r++)
		longest = trace->requests[r].n > longest ? trace->requests[r].n : longest;
	for (replay->mask = 1; replay->mask < 2 * (uint64_t)trace->n_blocks;)
		replay->mask *= 2;
	replay->mask--;
	replay->blocks = calloc(trace->n_blocks, sizeof(*replay->blocks));
	replay->table = calloc(replay->mask + 1, sizeof(*replay->table));
	replay->keys = calloc(longest, sizeof(*replay->keys));
	replay->numbers = calloc(longest, sizeof(*replay->numbers));
	replay->log = has_log ? calloc(options->spill, sizeof(*replay->log)) : NULL;
	if (options->policy != REPLAY_LRU)
		replay->learned = replay->tier[chooses].learned =
			learned_new(replay->tier[chooses].room, options->policy == REPLAY_LEARNED, 0);
	if (!replay->blocks || !replay->table || !replay->keys || !replay->numbers || (has_log && !replay->log) ||
		(options->policy != REPLAY_LRU && !replay->learned))
		return -ENOMEM;
	for (uint32_t i = 0; i < trace->n_blocks; i++)
		*replay_place(replay, &trace->keys[i]) = i + 1;
	return 0;
}

int replay_run(const struct replay_trace *trace, const struct replay_options *options, struct replay_result *result)
{
	struct replay replay = {.trace = trace, .options = options, .result = result};
	uint8_t *hints = hints_make(trace, options);
	float *took = calloc(trace->n_requests, sizeof(*took));
	int r;

	memset(result, 0, sizeof(*result));
	r = replay_init(&replay);
	if (!r)
		r = hints && took ? replay_play(&replay, hints, took) : -ENOMEM;
	for (unsigned which = 0; which < TIERS; which++) {
		struct learned_view view;

		if (replay.tier[which].learned) {
			learned_view(replay.tier[which].learned, &view);
			result->policy_bytes = view.bytes;
			result->switches = view.switches;
		}
		learned_free(replay.tier[which].learned);
		lru_free(&replay.tier[which].lru);
	}
	free(replay.blocks);
	free(replay.table);
	free(replay.keys);
	free(replay.numbers);
	free(replay.log);
	free(hints);
	free(took);
	return r;
}
