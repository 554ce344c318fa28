/*
 * policy_blocks.c - what a policy knows of blocks: those in one of its sets, by key and as a tree; and of others that
 * they were used
 *
 * Memory for nodes grows by a sixteenth at a time, buckets one by one as in ns_entry.c, so no call moves all of them.
 * Ghosts are made for the capacity; where that doubles they are made anew, and what they knew is forgotten: a pool that
 * still grows has lost little.
 */
#include "policy_parts.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define GHOST_LINES_MIN \
	12500u /* a hundred thousand blocks: a small pool meets as many that come back as a large one does */
#define BUCKETS_MIN 4096u
#define NODES_MIN 1024u
#define HUGE_PAGE (2ul << 20)
#define SMALL_PAGE 4096ul

/* Both halves of a product with the seed: who does not know it finds no keys alike.  A trace's keys nobody chose: 0, no
   seed. */
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

/* ---- memory ---- */

/* Of ten million blocks each look would miss the TLB too: zeroes in huge pages, where the system gives some.  A table
   begins where one does, and when it has to move it moves by whole ones: what realloc() has moved is in small pages. */
static void *table_map(size_t bytes)
{
	size_t pages = (bytes + SMALL_PAGE - 1) & ~(SMALL_PAGE - 1), before;
	char *at = mmap(NULL, pages + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	before = -(uintptr_t)at & (HUGE_PAGE - 1);
	if (before)
		munmap(at, before);
	munmap(at + before + pages, HUGE_PAGE - before);
	madvise(at + before, pages, MADV_HUGEPAGE);
	return at + before;
}

static void table_unmap(void *at, size_t bytes)
{
	if (at)
		munmap(at, bytes);
}

/* Return: NULL: no memory, and nothing changed. */
static void *table_grow(void *at, size_t bytes, size_t more)
{
	void *to;

	if (!at)
		return table_map(more);
	if (mremap(at, bytes, more, 0) != MAP_FAILED)
		return at;
	to = table_map(more);
	if (!to || mremap(at, bytes, more, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED)
		return to;
	munmap(to, more);
	return NULL;
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
	g->line = table_map(g->n_lines * sizeof(*g->line));
	return g->line;
}

static void ghosts_free(struct ghosts *g)
{
	table_unmap(g->line, g->n_lines * sizeof(*g->line));
}

bool blocks_init(struct blocks *b, uint64_t capacity, uint64_t seed)
{
	memset(b, 0, sizeof(*b));
	b->seed = seed;
	for (b->n_buckets = BUCKETS_MIN; b->n_buckets < 2 * capacity && b->n_buckets < 1ull << 32;)
		b->n_buckets *= 2;
	b->buckets_room = b->n_buckets;
	b->bucket = table_map(b->n_buckets * sizeof(*b->bucket));
	if (b->bucket && ghosts_init(&b->ghosts, capacity))
		return true;
	blocks_free(b);
	return false;
}

void blocks_free(struct blocks *b)
{
	table_unmap(b->node, b->room * sizeof(*b->node));
	table_unmap(b->kin, b->kin_room * sizeof(*b->kin));
	table_unmap(b->bucket, b->buckets_room * sizeof(*b->bucket));
	ghosts_free(&b->ghosts);
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
		size_t bytes = b->buckets_room * sizeof(*b->bucket);
		uint32_t *more = table_grow(b->bucket, bytes, 2 * bytes);

		if (!more)
			return;
		b->bucket = more;
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
	ghosts_free(&b->ghosts);
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
		__builtin_prefetch(node, 1);
	else if (node->hash_next && memcmp(&node->key, key, sizeof(*key)))
		__builtin_prefetch(&b->node[node->hash_next], 1);
}

void blocks_prefetch_neighbours(const struct blocks *b, uint32_t i)
{
	for (unsigned s = 0; s < SETS; s++) {
		__builtin_prefetch(&b->node[b->node[i].link[s].prev], 1);
		__builtin_prefetch(&b->node[b->node[i].link[s].next], 1);
	}
}

/* Room for more nodes. Return: false: no memory. */
static bool blocks_grow(struct blocks *b)
{
	uint64_t room = b->room ? b->room + b->room / 16 : NODES_MIN;
	void *more;

	if (room >= UINT32_MAX)
		return false;
	if (b->kin_room < room) {
		more = table_grow(b->kin, b->kin_room * sizeof(*b->kin), room * sizeof(*b->kin));
		if (!more)
			return false;
		b->kin = more;
		b->kin_room = (uint32_t)room;
	}
	more = table_grow(b->node, b->room * sizeof(*b->node), room * sizeof(*b->node));
	if (!more)
		return false;
	b->node = more;
	b->room = (uint32_t)room;
	return true;
}

static uint32_t blocks_new(struct blocks *b)
{
	uint32_t i = b->free;

	if (i) {
		b->free = b->node[i].hash_next;
	} else {
		if (b->n + 1 >= b->room && !blocks_grow(b))
			return 0;
		i = ++b->n;
	}
	b->n_used++;
	memset(&b->node[i], 0, sizeof(b->node[i]));
	memset(&b->kin[i], 0, sizeof(b->kin[i]));
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
	struct kin *kin = &b->kin[i];

	if (!node->parent)
		return;
	for (unsigned s = 0; s < TREES; s++)
		b->kin[node->parent].children[s] -= node->in >> s & 1;
	if (kin->prev_sibling)
		b->kin[kin->prev_sibling].next_sibling = kin->next_sibling;
	else
		b->node[node->parent].first_child = kin->next_sibling;
	if (kin->next_sibling)
		b->kin[kin->next_sibling].prev_sibling = kin->prev_sibling;
	node->parent = kin->next_sibling = kin->prev_sibling = 0;
}

/* First among its siblings, also when it hangs there already: those used lately are looked at first. */
void blocks_hang(struct blocks *b, uint32_t i, uint32_t parent)
{
	struct node *node = &b->node[i];
	struct kin *kin = &b->kin[i];

	if (node->parent == parent && (!parent || b->node[parent].first_child == i))
		return;
	blocks_unhang(b, i);
	if (!parent || parent == i)
		return;
	node->parent = parent;
	kin->next_sibling = b->node[parent].first_child;
	if (kin->next_sibling)
		b->kin[kin->next_sibling].prev_sibling = i;
	b->node[parent].first_child = i;
	for (unsigned s = 0; s < TREES; s++)
		b->kin[parent].children[s] += node->in >> s & 1;
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
	return b->room * sizeof(*b->node) + b->kin_room * sizeof(*b->kin) + b->buckets_room * sizeof(*b->bucket) +
	       b->ghosts.n_lines * sizeof(*b->ghosts.line);
}
