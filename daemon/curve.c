/*
 * curve.c - see curve.h
 *
 * The watched keys lie in a table by hash, in a heap by hash (who goes when the threshold falls), and at positions, one
 * a use, the latest highest; a Fenwick tree over the positions has the bytes, so "bytes used since" is one sum.  When
 * the positions are used up, all are given out anew, closed up.
 *
 * The threshold rises again when the sample has become thin (after a burst of keys): keys between the counted and the
 * watched threshold are on probation, watched but neither counted nor weighed, until all of them that are ever used
 * again have been seen.
 */
#include "curve.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POSITIONS (4u * CURVE_SAMPLE)
#define BUCKETS (2u * CURVE_SAMPLE)
#define PENDING 4096u
#define NONE UINT32_MAX
#define WHOLE 18446744073709551616.0 /* 2^64: all hashes */

struct watched {
	uint64_t hash;
	uint64_t bytes;
	uint32_t when; /* of its last use */
	uint32_t position;
	uint32_t heap_at;
	uint32_t next; /* of its bucket, or free */
	uint32_t batch; /* of uses, in which it was used last */
};

struct curve {
	uint32_t ticks;
	uint32_t now;
	uint64_t threshold; /* watched: hash < */
	uint64_t counted; /* weighed and counted: hash < this one, which is not above */
	uint32_t promote_at; /* while they differ */
	uint32_t n, free;
	uint32_t next_position, oldest;
	uint32_t n_pending;
	uint32_t batch, batch_begin; /* the position at which it begins */
	double told, seen, seconds; /* aged, as the bins; seen: of bins and first uses */
	double bins[KVP_CURVE_BINS];
	struct watched watched[CURVE_SAMPLE];
	uint32_t heap[CURVE_SAMPLE]; /* the largest hash first */
	uint32_t buckets[BUCKETS];
	uint32_t at[POSITIONS]; /* who is there */
	uint64_t tree[POSITIONS + 1]; /* from 1 */
	struct curve_use pending[PENDING];
};

/* ---- bytes by position ---- */

static void tree_add(struct curve *c, uint32_t position, uint64_t bytes)
{
	for (uint32_t i = position + 1; i <= POSITIONS; i += i & -i)
		c->tree[i] += bytes; /* modulo 2^64: less is added as well */
}

/* Of all before @position. */
static uint64_t tree_sum(const struct curve *c, uint32_t position)
{
	uint64_t sum = 0;

	for (uint32_t i = position; i; i -= i & -i)
		sum += c->tree[i];
	return sum;
}

static uint64_t watched_weight(const struct curve *c, const struct watched *w)
{
	return w->hash < c->counted ? w->bytes : 0;
}

/* The positions in order, closed up; and the tree as the counted threshold wants it. */
static void positions_close_up(struct curve *c)
{
	uint32_t n = 0;

	memset(c->tree, 0, sizeof(c->tree));
	for (uint32_t i = c->oldest; i < c->next_position; i++) {
		uint32_t who = c->at[i];

		if (who == NONE)
			continue;
		c->at[n] = who;
		c->watched[who].position = n;
		tree_add(c, n, watched_weight(c, &c->watched[who]));
		n++;
	}
	c->oldest = 0;
	c->next_position = n;
}

static void position_leave(struct curve *c, struct watched *w)
{
	tree_add(c, w->position, -watched_weight(c, w));
	c->at[w->position] = NONE;
}

static void position_take(struct curve *c, struct watched *w)
{
	if (c->next_position == POSITIONS)
		positions_close_up(c);
	w->position = c->next_position++;
	c->at[w->position] = (uint32_t)(w - c->watched);
	tree_add(c, w->position, watched_weight(c, w));
}

/* ---- the heap ---- */

static void heap_put(struct curve *c, uint32_t i, uint32_t who)
{
	c->heap[i] = who;
	c->watched[who].heap_at = i;
}

static void heap_up(struct curve *c, uint32_t i, uint32_t who)
{
	for (; i && c->watched[c->heap[(i - 1) / 2]].hash < c->watched[who].hash; i = (i - 1) / 2)
		heap_put(c, i, c->heap[(i - 1) / 2]);
	heap_put(c, i, who);
}

static void heap_down(struct curve *c, uint32_t i, uint32_t who)
{
	for (uint32_t child; (child = 2 * i + 1) < c->n; i = child) {
		if (child + 1 < c->n && c->watched[c->heap[child]].hash < c->watched[c->heap[child + 1]].hash)
			child++;
		if (c->watched[c->heap[child]].hash <= c->watched[who].hash)
			break;
		heap_put(c, i, c->heap[child]);
	}
	heap_put(c, i, who);
}

/* ---- the watched ---- */

static uint32_t *bucket_of(struct curve *c, uint64_t hash)
{
	return &c->buckets[hash * 0x9e3779b97f4a7c15ull >> 48 & (BUCKETS - 1)];
}

static struct watched *watched_find(struct curve *c, uint64_t hash)
{
	for (uint32_t i = *bucket_of(c, hash); i != NONE; i = c->watched[i].next)
		if (c->watched[i].hash == hash)
			return &c->watched[i];
	return NULL;
}

static void watched_drop(struct curve *c, struct watched *w)
{
	uint32_t who = (uint32_t)(w - c->watched), last = c->heap[--c->n], hole = w->heap_at;
	uint32_t *link = bucket_of(c, w->hash);

	position_leave(c, w);
	while (*link != who)
		link = &c->watched[*link].next;
	*link = w->next;
	if (last != who) {
		heap_up(c, hole, last);
		heap_down(c, c->watched[last].heap_at, last);
	}
	w->next = c->free;
	c->free = who;
}

/* Whoever has the largest hash goes, with all that would be like it. */
static void threshold_lower(struct curve *c)
{
	struct watched *w = &c->watched[c->heap[0]];
	uint64_t hash = w->hash;

	watched_drop(c, w);
	c->threshold = hash;
	if (c->counted > hash)
		c->counted = hash; /* nobody else lay between: no weight changes */
}

/* Return: NULL: its hash is not below the threshold any more. */
static struct watched *watched_add(struct curve *c, const struct curve_use *use)
{
	struct watched *w;
	uint32_t who, *bucket;

	if (c->n == CURVE_SAMPLE)
		threshold_lower(c);
	if (use->hash >= c->threshold)
		return NULL;
	who = c->free;
	w = &c->watched[who];
	c->free = w->next;
	bucket = bucket_of(c, use->hash);
	*w = (struct watched){.hash = use->hash, .bytes = use->bytes, .when = use->when, .next = *bucket};
	*bucket = who;
	heap_up(c, c->n++, who);
	position_take(c, w);
	return w;
}

/* ---- counting ---- */

static unsigned bin_of(double bytes)
{
	double octaves = log2(bytes) - KVP_CURVE_SHIFT;

	if (!(octaves > 0))
		return 0;
	return octaves * KVP_CURVE_OCTAVE > KVP_CURVE_BINS - 1 ? KVP_CURVE_BINS - 1
							       : (unsigned)ceil(octaves * KVP_CURVE_OCTAVE);
}

static double curve_part(const struct curve *c)
{
	return c->counted == UINT64_MAX ? 1 : (double)c->counted / WHOLE;
}

static void use_count(struct curve *c, const struct curve_use *use, const struct watched *w)
{
	double part = curve_part(c), weight = use->tokens / part;
	uint64_t since;

	if (use->hash >= c->counted)
		return;
	c->seen += weight;
	if (!w)
		return; /* the first */
	/* as it was before all of these */
	since = w->batch == c->batch ? 0 : tree_sum(c, c->batch_begin) - tree_sum(c, w->position + 1);
	c->bins[bin_of((double)since / part + (double)use->bytes)] += weight;
}

bool curve_watches(const struct curve *c, uint64_t hash)
{
	return hash < c->threshold;
}

void curve_use(struct curve *c, const struct curve_use *use)
{
	if (!curve_watches(c, use->hash) || !use->bytes)
		return;
	if (c->n_pending == PENDING)
		curve_flush(c);
	c->pending[c->n_pending++] = *use;
}

/* The new ones come to stand behind all others here, the old ones stay where they were until all are counted. */
static void batch_count(struct curve *c, const struct curve_use *use)
{
	struct watched *w = watched_find(c, use->hash);

	if (w && (int32_t)(use->when - w->when) <= 0)
		return; /* known */
	use_count(c, use, w);
	if (!w)
		w = watched_add(c, use);
	if (!w)
		return;
	w->when = use->when;
	w->batch = c->batch;
}

void curve_flush(struct curve *c)
{
	if (c->next_position > POSITIONS - 2 * PENDING)
		positions_close_up(c);
	c->batch++;
	c->batch_begin = c->next_position;
	for (uint32_t i = 0; i < c->n_pending; i++)
		batch_count(c, &c->pending[i]);
	while (c->n_pending > 0) {
		const struct curve_use *use = &c->pending[--c->n_pending];
		struct watched *w = watched_find(c, use->hash);

		if (!w || w->batch != c->batch)
			continue; /* known, or no longer watched */
		position_leave(c, w);
		w->bytes = use->bytes;
		position_take(c, w);
	}
}

void curve_told(struct curve *c, double tokens)
{
	c->told += tokens;
}

/* ---- seeds ---- */

void curve_seed(struct curve *c, const struct curve_use *use)
{
	if (curve_watches(c, use->hash) && use->bytes && !watched_find(c, use->hash))
		watched_add(c, use);
}

struct seed {
	uint32_t age, who;
};

static int seed_compare(const void *a_, const void *b_)
{
	const struct seed *a = a_, *b = b_;

	return a->age != b->age ? (a->age < b->age ? 1 : -1) : (a->who > b->who) - (a->who < b->who);
}

void curve_seeded(struct curve *c)
{
	struct seed *seeds = malloc((c->n + 1) * sizeof(*seeds));
	uint32_t n = 0;

	if (!seeds)
		return; /* in the order they came, then */
	for (uint32_t i = 0; i < c->n; i++)
		seeds[i] = (struct seed){.age = c->now - c->watched[c->heap[i]].when, .who = c->heap[i]};
	qsort(seeds, c->n, sizeof(*seeds), seed_compare);
	for (n = 0; n < c->n; n++)
		c->at[n] = seeds[n].who;
	c->oldest = 0;
	c->next_position = n;
	positions_close_up(c);
	free(seeds);
}

/* ---- time ---- */

static void curve_forget(struct curve *c)
{
	while (c->oldest < c->next_position) {
		uint32_t who = c->at[c->oldest];

		if (who != NONE) {
			if ((c->now - c->watched[who].when) / c->ticks < CURVE_FORGET_S)
				return;
			watched_drop(c, &c->watched[who]);
		}
		c->oldest++;
	}
}

static void curve_widen(struct curve *c)
{
	if (c->threshold > c->counted && (int32_t)(c->now - c->promote_at) >= 0) {
		c->counted = c->threshold;
		positions_close_up(c);
	}
	if (c->threshold > c->counted || c->threshold == UINT64_MAX || c->n >= CURVE_SAMPLE / 4)
		return;
	c->threshold = c->threshold > UINT64_MAX / 2 ? UINT64_MAX : 2 * c->threshold;
	c->promote_at = c->now + CURVE_FORGET_S * c->ticks;
}

void curve_age(struct curve *c, uint32_t when)
{
	double seconds = (double)(when - c->now) / c->ticks, kept;

	if ((int32_t)(when - c->now) <= 0)
		return;
	kept = exp2(-seconds / KVP_CURVE_HALF_S);
	for (unsigned i = 0; i < KVP_CURVE_BINS; i++)
		c->bins[i] *= kept;
	c->told *= kept;
	c->seen *= kept;
	c->seconds = c->seconds * kept + seconds;
	c->now = when;
	curve_forget(c);
	curve_widen(c);
}

/* ---- in and out ---- */

int curve_open(struct curve **curve, uint32_t ticks, uint32_t when)
{
	struct curve *c = calloc(1, sizeof(*c));

	*curve = c;
	if (!c)
		return -ENOMEM;
	c->ticks = ticks;
	c->now = when;
	c->threshold = c->counted = UINT64_MAX;
	for (uint32_t i = 0; i < CURVE_SAMPLE; i++)
		c->watched[i].next = i + 1 < CURVE_SAMPLE ? i + 1 : NONE;
	memset(c->buckets, 0xff, sizeof(c->buckets));
	return 0;
}

void curve_close(struct curve *c)
{
	free(c);
}

void curve_load(struct curve *c, const struct kvp_curve *from)
{
	c->told = c->seen = (double)atomic_load_explicit(&from->tokens, memory_order_relaxed);
	c->seconds = (double)atomic_load_explicit(&from->seconds, memory_order_relaxed);
	for (unsigned i = 0; i < KVP_CURVE_BINS; i++)
		c->bins[i] = (double)atomic_load_explicit(&from->bins[i], memory_order_relaxed);
}

static void value_store(_Atomic uint64_t *to, double value)
{
	atomic_store_explicit(to, value > 0 ? (uint64_t)(value + 0.5) : 0, memory_order_relaxed);
}

void curve_store(const struct curve *c, struct kvp_curve *to)
{
	double unseen = c->told - c->seen, first = c->bins[0] + unseen > 0 ? unseen : -c->bins[0];

	value_store(&to->tokens, c->seen + first);
	value_store(&to->seconds, c->seconds);
	value_store(&to->watched, c->n);
	value_store(&to->one_in, 1000 / curve_part(c));
	for (unsigned i = 0; i < KVP_CURVE_BINS; i++)
		value_store(&to->bins[i], c->bins[i] + (i ? 0 : first));
}
