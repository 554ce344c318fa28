/*
 * policy_blocks.c - what a policy knows of blocks: those in one of its sets, by key and as a tree; and of others that they were used
 *
 * Memory for nodes grows by a sixteenth at a time, buckets one by one as in ns_entry.c, so no call moves all of them.  Ghosts are made for the
 * capacity; where that doubles they are made anew, and what they knew is forgotten: a pool that still grows has lost little.
 */
#include "policy_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GHOST_LINES_MIN \
	12500u /* a hundred thousand blocks: a small pool meets as many that come back as a large one does */
#define BUCKETS_MIN 4096u
#define NODES_MIN 1024u
#define HUGE_PAGE (2ul << 20)

/* Both halves of a product with the seed: who does not know it finds no keys alike.  A trace's keys nobody chose: 0, no seed. */
static uint64_t block_hash(const struct blocks *b, const struct kvp_key *key)
{
	uint64_t h = (key->w[0] ^ (key->w[1] << 32 | key->w[1] >> 32)) * 0x9e3779b97f4a7c15ull;

	if (b->seed) {
		unsigned __int128 product = (unsigned __int128)(key->w[0] ^ b->seed) * (key->w[1] ^ ~b->seed);

		h = (uint64_t)product ^ (uint64_t)(product >> 64);
	}
	return (h ^ h >> 29) * 0xbf58476d1ce4e5b9ull;
}

uint32_t block_tag(const struct blocks *b, const struct kvp_key *key)
{
	return (uint32_t)(block_hash(b, key) >> 20);
}

/* Of ten million blocks each look would miss the TLB too: larger pages, where the system gives some. */
static void *with_huge_pages(void *at, size_t bytes)
{
	uintptr_t begin = ((uintptr_t)at + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1),
		  end = ((uintptr_t)at + bytes) & ~(HUGE_PAGE - 1);

	if (at && end > begin)
		madvise((char *)at + (begin - (uintptr_t)at), end - begin, MADV_HUGEPAGE);
	return at;
}

/* ---- ghosts ---- */

#define GHOST_TAG(ghost) ((ghost) >> 27)

static uint64_t ghost_tag(uint64_t hash)
{
	return (hash & ((1ull << 37) - 1)) | 1; /* never 0 */
}

static uint64_t *ghost_line(const struct ghosts *g, uint64_t hash)
{
	return g->line[(uint64_t)(((unsigned __int128)hash * g->n_lines) >> 64)];
}

static uint64_t ghost_peek(const struct ghosts *g, uint64_t hash, unsigned *at)
{
	const uint64_t *line = ghost_line(g, hash);

	for (unsigned i = 0; i < 8; i++)
		if (GHOST_TAG(line[i]) == ghost_tag(hash)) {
			*at = i;
			return line[i];
		}
	return 0;
}

static uint64_t ghost_take(struct ghosts *g, uint64_t hash)
{
	unsigned at = 0;
	uint64_t *line = ghost_line(g, hash), ghost = ghost_peek(g, hash, &at);

	if (!ghost)
		return 0;
	memmove(line + at, line + at + 1, (7 - at) * sizeof(*line));
	line[7] = 0;
	return ghost;
}

static void ghost_put(struct ghosts *g, uint64_t hash, const struct node *node)
{
	uint64_t *line = ghost_line(g, hash);

	memmove(line + 1, line, 7 * sizeof(*line));
	line[0] = ghost_tag(hash) << 27 | (uint64_t)node->ring << 11 | (uint64_t)node->uses << 4 |
		  node->class % (MATCH_CLASSES * POLICY_HINTS);
}

static unsigned ghost_uses(uint64_t ghost)
{
	return ghost >> 4 & 127;
}

static uint8_t ghost_class(uint64_t ghost)
{
	return learner_class(ghost_uses(ghost), ghost >> 2 & 3, ghost & 3);
}

/* ---- the table ---- */

static bool ghosts_init(struct ghosts *g, uint64_t capacity)
{
	static_assert(sizeof(*g->line) == REMEMBERED * sizeof(uint64_t), "a line for each block");
	g->n_lines = capacity > GHOST_LINES_MIN ? capacity : GHOST_LINES_MIN;
	g->line = with_huge_pages(calloc(g->n_lines, sizeof(*g->line)), g->n_lines * sizeof(*g->line));
	return g->line;
}

bool blocks_init(struct blocks *b, uint64_t capacity, uint64_t seed)
{
	memset(b, 0, sizeof(*b));
	b->seed = seed;
	for (b->n_buckets = BUCKETS_MIN; b->n_buckets < 2 * capacity && b->n_buckets < 1ull << 32;)
		b->n_buckets *= 2;
	b->buckets_room = b->n_buckets;
	b->bucket = with_huge_pages(calloc(b->n_buckets, sizeof(*b->bucket)), b->n_buckets * sizeof(*b->bucket));
	if (b->bucket && ghosts_init(&b->ghosts, capacity))
		return true;
	blocks_free(b);
	return false;
}

void blocks_free(struct blocks *b)
{
	free(b->node);
	free(b->bucket);
	free(b->ghosts.line);
	memset(b, 0, sizeof(*b));
}

/* The highest power of two that is not above the number of buckets: those from there on were split off. */
static uint64_t blocks_half(const struct blocks *b)
{
	return 1ull << (63 - __builtin_clzll(b->n_buckets));
}

static uint32_t *blocks_bucket(const struct blocks *b, uint64_t hash)
{
	uint64_t half = blocks_half(b), i = hash & (2 * half - 1);

	return &b->bucket[i < b->n_buckets ? i : hash & (half - 1)];
}

/* One bucket more: those of its lower twin that belong there move.  Without memory chains grow longer. */
static void blocks_split(struct blocks *b)
{
	uint64_t half = blocks_half(b), from = b->n_buckets - half;
	uint32_t *at, *to;

	if (b->n_buckets == b->buckets_room) {
		uint32_t *more = realloc(b->bucket, 2 * b->buckets_room * sizeof(*more));

		if (!more)
			return;
		b->bucket = with_huge_pages(more, 2 * b->buckets_room * sizeof(*more));
		b->buckets_room *= 2;
	}
	to = &b->bucket[b->n_buckets++];
	*to = 0;
	for (at = &b->bucket[from]; *at;) {
		struct node *node = &b->node[*at];
		uint32_t i = *at;

		if (!(block_hash(b, &node->key) & half)) {
			at = &node->hash_next;
			continue;
		}
		*at = node->hash_next;
		node->hash_next = *to;
		*to = i;
	}
}

static void blocks_hash_in(struct blocks *b, uint32_t i)
{
	uint32_t *bucket = blocks_bucket(b, block_hash(b, &b->node[i].key));

	b->node[i].hash_next = *bucket;
	*bucket = i;
	if (b->n_used > b->n_buckets)
		blocks_split(b);
}

bool blocks_resize(struct blocks *b, uint64_t capacity)
{
	struct ghosts ghosts;

	if (capacity < 2 * b->ghosts.n_lines)
		return true;
	if (!ghosts_init(&ghosts, capacity))
		return false;
	free(b->ghosts.line);
	b->ghosts = ghosts;
	return true;
}

uint32_t blocks_find(const struct blocks *b, const struct kvp_key *key)
{
	uint32_t i = *blocks_bucket(b, block_hash(b, key));

	while (i && memcmp(&b->node[i].key, key, sizeof(*key)))
		i = b->node[i].hash_next;
	return i;
}

/* A node lies across two cache lines, and what is asked for first is in the first of them. */
static void node_prefetch(const struct node *node)
{
	__builtin_prefetch(node, 1);
	__builtin_prefetch((const char *)(node + 1) - 1, 1);
}

void blocks_prefetch(const struct blocks *b, const struct kvp_key *key, enum blocks_step step)
{
	const uint32_t *bucket = blocks_bucket(b, block_hash(b, key));
	const struct node *node;

	if (step == STEP_BUCKET) {
		__builtin_prefetch(bucket);
		return;
	}
	if (!*bucket)
		return;
	node = &b->node[*bucket];
	if (step == STEP_NODE)
		node_prefetch(node);
	else if (node->hash_next && memcmp(&node->key, key, sizeof(*key)))
		node_prefetch(&b->node[node->hash_next]);
}

void blocks_prefetch_neighbours(const struct blocks *b, uint32_t i)
{
	for (unsigned s = 0; s < SETS; s++) {
		node_prefetch(&b->node[b->node[i].link[s].prev]);
		node_prefetch(&b->node[b->node[i].link[s].next]);
	}
}

static uint32_t blocks_new(struct blocks *b)
{
	uint32_t i = b->free;

	if (i) {
		b->free = b->node[i].hash_next;
	} else {
		if (b->n + 1 >= b->room) {
			uint64_t room = b->room ? b->room + b->room / 16 : NODES_MIN;
			struct node *node = room < UINT32_MAX ? realloc(b->node, room * sizeof(*node)) : NULL;

			if (!node)
				return 0;
			b->node = with_huge_pages(node, room * sizeof(*node));
			b->room = (uint32_t)room;
		}
		i = ++b->n;
	}
	b->n_used++;
	memset(&b->node[i], 0, sizeof(b->node[i]));
	return i;
}

uint32_t blocks_get(struct blocks *b, const struct kvp_key *key)
{
	uint32_t i = blocks_find(b, key);
	uint64_t ghost;

	if (i || !(i = blocks_new(b)))
		return i;
	ghost = ghost_take(&b->ghosts, block_hash(b, key));
	b->node[i].key = *key;
	b->node[i].uses = ghost_uses(ghost) & USES_MAX;
	b->node[i].ring = (uint16_t)(ghost >> 11);
	b->node[i].class = ghost ? ghost_class(ghost) & 127 : 0;
	blocks_hash_in(b, i);
	return i;
}

unsigned blocks_peek(const struct blocks *b, const struct kvp_key *key, uint8_t *class)
{
	unsigned at;
	uint64_t ghost = ghost_peek(&b->ghosts, block_hash(b, key), &at);

	*class = ghost ? ghost_class(ghost) : learner_class(1, 0, POLICY_HINT_NONE);
	return ghost_uses(ghost);
}

static void blocks_unhang(struct blocks *b, uint32_t i)
{
	struct node *node = &b->node[i];

	if (!node->parent)
		return;
	for (unsigned s = 0; s < TREES; s++)
		b->node[node->parent].children[s] -= node->in >> s & 1;
	if (node->prev_sibling)
		b->node[node->prev_sibling].next_sibling = node->next_sibling;
	else
		b->node[node->parent].first_child = node->next_sibling;
	if (node->next_sibling)
		b->node[node->next_sibling].prev_sibling = node->prev_sibling;
	node->parent = node->next_sibling = node->prev_sibling = 0;
}

/* First among its siblings, also when it hangs there already: those used lately are looked at first. */
void blocks_hang(struct blocks *b, uint32_t i, uint32_t parent)
{
	struct node *node = &b->node[i];

	if (node->parent == parent && (!parent || b->node[parent].first_child == i))
		return;
	blocks_unhang(b, i);
	if (!parent || parent == i)
		return;
	node->parent = parent;
	node->next_sibling = b->node[parent].first_child;
	if (node->next_sibling)
		b->node[node->next_sibling].prev_sibling = i;
	b->node[parent].first_child = i;
	for (unsigned s = 0; s < TREES; s++)
		b->node[parent].children[s] += node->in >> s & 1;
}

bool blocks_is_above(const struct blocks *b, uint32_t i, uint32_t below)
{
	while (below && below != i)
		below = b->node[below].parent;
	return below;
}

void blocks_forget(struct blocks *b, uint32_t i)
{
	struct node *node = &b->node[i];
	uint32_t *at = blocks_bucket(b, block_hash(b, &node->key));

	blocks_unhang(b, i);
	while (node->first_child)
		blocks_unhang(b, node->first_child);
	ghost_put(&b->ghosts, block_hash(b, &node->key), node);
	while (*at != i)
		at = &b->node[*at].hash_next;
	*at = node->hash_next;
	node->hash_next = b->free;
	b->free = i;
	b->n_used--;
}

uint64_t blocks_bytes(const struct blocks *b)
{
	return (uint64_t)b->room * sizeof(*b->node) + b->buckets_room * sizeof(*b->bucket) +
	       b->ghosts.n_lines * sizeof(*b->ghosts.line);
}
