/*
 * seq.c - sequences: tokens, and the blocks that hold their K and V
 *
 * A sequence belongs to one thread at a time.  Its blocks are cells; what the keeper learns about published ones comes in
 * by seq_sync() at the next call that changes the sequence, so a block table stays right until then.
 */
#include "seq.h"

#include <stdlib.h>
#include <string.h>

#include "kvattn.h"

#define SALT_MAX 64
#define EXTRA_MAX 4096
#define APPEND_MS \
	250 /* longest wait for room in the pool: a block kept out of it is computed again by everybody else */
#define NO_ROOM_MS 500 /* and not again before so long */
#define ONLY_STOCK 1 /* a deadline long past: nobody is asked */

/* ---- cells ---- */

struct cell *cell_new(const struct room *room)
{
	struct cell *cell = calloc(1, sizeof(*cell));

	if (!cell) {
		room_put_back(room);
		return NULL;
	}
	atomic_store(&cell->refs, 1);
	cell->room = *room;
	cell->data = room->data;
	cell->is_private = room->kind == HOLD_PRIVATE;
	return cell;
}

uint32_t cell_drop(struct cell *cell)
{
	uint32_t lost = 0;

	if (!cell || atomic_fetch_sub(&cell->refs, 1) != 1)
		return 0;
	if (cell->spot.map && spot_unpin(cell->spot.map, cell->spot.slot, cell->spot.generation)) {
		count_add(cell->spot.map->session->client, COUNT_LOST_HOLDS, 1);
		lost = 1;
	}
	room_put_back(&cell->room);
	room_put_back(&cell->left);
	free(cell);
	return lost;
}

struct cell *cell_away(void)
{
	struct cell *cell = calloc(1, sizeof(*cell));

	if (!cell)
		return NULL;
	atomic_store(&cell->refs, 1);
	atomic_store(&cell->state, CELL_AWAY);
	return cell;
}

void cell_take_view(struct cell *cell, struct kvp_view *view)
{
	const struct hold *hold = hold_get(view->opaque[0]);

	cell->spot = (struct spot){.map = hold->owner,
		.slot = hold_slot(hold),
		.generation = hold->generation,
		.data = view->data,
		.used_bytes = view->used_bytes,
		.used_tokens = view->used_tokens};
	atomic_store_explicit(&cell->state, CELL_STORED, memory_order_release);
	hold_end(view->opaque[0]);
	view->data = NULL;
}

void tally_drop(struct tally *tally)
{
	if (atomic_fetch_sub(&tally->refs, 1) == 1)
		free(tally);
}

/* ---- room for more ---- */

int array_grow(void **array, uint64_t *room, uint64_t want, size_t item)
{
	uint64_t n = *room ? *room : 16;
	void *more;

	if (want <= *room)
		return 0;
	while (n < want)
		n *= 2;
	more = n > SIZE_MAX / item ? NULL : realloc(*array, n * item);
	if (!more)
		return fail(-KVP_ENOMEM, "out of memory");
	*array = more;
	*room = n;
	return 0;
}

int seq_rooms(struct kvp_seq *seq, uint64_t n, struct room *rooms)
{
	struct kvp_ns *ns = seq->ns;
	uint64_t got = 0;

	while (got < n) {
		uint32_t want = n - got < KVP_WIRE_BATCH_MAX ? (uint32_t)(n - got) : KVP_WIRE_BATCH_MAX;
		uint64_t now = now_ns(), deadline = ONLY_STOCK;
		int64_t have = 0;

		if (now >= atomic_load_explicit(&ns->no_room_until_ns, memory_order_relaxed))
			deadline = now + APPEND_MS * MS;
		if (!seq->broken && !(ns->flags & KVP_NS_READONLY))
			have = room_take(ns, want, false, deadline, rooms + got);
		if (have < want && deadline != ONLY_STOCK)
			atomic_store_explicit(&ns->no_room_until_ns, now + NO_ROOM_MS * MS, memory_order_relaxed);
		have = have < 0 ? 0 : have;
		if (have < want)
			have += private_rooms(ns, want - (uint32_t)have, rooms + got + have);
		got += (uint64_t)have;
		if (have < want) {
			while (got)
				room_put_back(&rooms[--got]);
			return fail(-KVP_ENOMEM, "no memory for private blocks of %llu bytes",
				(unsigned long long)ns->block_bytes);
		}
	}
	return 0;
}

/* Cells for @n more blocks. */
static int seq_add_cells(struct kvp_seq *seq, uint64_t n)
{
	struct room *rooms;
	int r = array_grow((void **)&seq->cells, &seq->cells_room, seq->n_cells + n, sizeof(*seq->cells));

	if (r < 0 || !n)
		return r;
	rooms = calloc(n, sizeof(*rooms));
	if (!rooms)
		return fail(-KVP_ENOMEM, "out of memory");
	r = seq_rooms(seq, n, rooms);
	for (uint64_t i = 0; i < n && r == 0; i++) {
		struct cell *cell = cell_new(&rooms[i]);

		if (cell) {
			seq->cells[seq->n_cells++] = cell;
			continue;
		}
		while (++i < n)
			room_put_back(&rooms[i]);
		r = fail(-KVP_ENOMEM, "out of memory");
	}
	free(rooms);
	return r;
}

/* ---- keys ---- */

int seq_keys(struct kvp_seq *seq, uint64_t n)
{
	uint32_t width = seq->ns->join.desc.block_tokens;
	const uint8_t *secret = ns_secret(seq->ns);
	int r = array_grow((void **)&seq->keys, &seq->keys_room, n, sizeof(*seq->keys));

	if (r < 0)
		return r;
	if (memcmp(secret, seq->secret, sizeof(seq->secret)) != 0) {
		memcpy(seq->secret, secret, sizeof(seq->secret));
		seq->n_keys = 0;
	}
	for (; seq->n_keys < n; seq->n_keys++) {
		uint64_t b = seq->n_keys;

		key_block(seq->secret, b ? &seq->keys[b - 1] : NULL, seq->tokens + b * width, width,
			b ? seq->extra : seq->first_extra, b ? seq->n_extra : seq->n_first_extra, &seq->keys[b]);
	}
	return 0;
}

/* ---- open, close ---- */

/* The salt enters the first block: its length, itself, then what every block depends on. */
static int seq_extras(struct kvp_seq *seq, const struct kvp_seq_opts *opts)
{
	uint32_t n_prefix = opts && opts->n_salt ? 4 + opts->n_salt : 0;

	seq->n_extra = opts ? opts->n_extra : 0;
	seq->n_first_extra = seq->n_extra + n_prefix;
	seq->extra = malloc(seq->n_extra + 1);
	seq->first_extra = malloc(seq->n_first_extra + 1);
	if (!seq->extra || !seq->first_extra)
		return fail(-KVP_ENOMEM, "out of memory");
	for (unsigned i = 0; n_prefix && i < 4; i++)
		seq->first_extra[i] = (uint8_t)(opts->n_salt >> 8 * i);
	if (n_prefix)
		memcpy(seq->first_extra + 4, opts->salt, opts->n_salt);
	if (seq->n_extra) {
		memcpy(seq->extra, opts->extra, seq->n_extra);
		memcpy(seq->first_extra + n_prefix, opts->extra, seq->n_extra);
	}
	return 0;
}

static int seq_opts_bad(const struct kvp_seq_opts *opts)
{
	if (!opts)
		return 0;
	if (opts->size != sizeof(*opts))
		return fail(-KVP_EINVAL, "opts.size: %u, this library knows %zu", opts->size, sizeof(*opts));
	if (opts->n_salt > SALT_MAX || (opts->n_salt && !opts->salt))
		return fail(-KVP_EINVAL, "opts.n_salt: 0 to %d bytes", SALT_MAX);
	if (opts->n_extra > EXTRA_MAX || (opts->n_extra && !opts->extra))
		return fail(-KVP_EINVAL, "opts.n_extra: 0 to %d bytes", EXTRA_MAX);
	if (opts->hint > KVP_HINT_SOON)
		return fail(-KVP_EINVAL, "opts.hint: %u", opts->hint);
	if (opts->sinks && !opts->window)
		return fail(-KVP_EINVAL, "opts.sinks: without a window all tokens stay");
	if (!opts->summaries)
		return opts->resident_blocks ? fail(-KVP_EINVAL, "opts.resident_blocks: only with summaries") : 0;
	if (opts->window)
		return fail(-KVP_EINVAL, "opts.summaries: not with a window");
	if (!opts->kernels || opts->kernels->size != sizeof(*opts->kernels) || !opts->kernels->summarise)
		return fail(-KVP_EINVAL, "opts.kernels: summarise is missing; see KVP_KERNELS_OF_KVATTN");
	return 0;
}

static void seq_free(struct kvp_seq *seq)
{
	if (seq->tally)
		tally_drop(seq->tally);
	free(seq->summary);
	free(seq->extra);
	free(seq->first_extra);
	free(seq->tokens);
	free(seq->cells);
	free(seq->keys);
	free(seq->table_blocks);
	free(seq->table_pos);
	free(seq->table_nodes);
	free(seq);
}

struct kvp_seq *seq_new(struct kvp_ns *ns)
{
	struct kvp_seq *seq = calloc(1, sizeof(*seq));

	if (!seq)
		return NULL;
	seq->ns = ns;
	seq->tally = calloc(1, sizeof(*seq->tally));
	if (!seq->tally) {
		free(seq);
		return NULL;
	}
	atomic_store(&seq->tally->refs, 1);
	return seq;
}

static int summaries_bad(const struct kvp_ns *ns, const struct kvp_ns *summaries)
{
	struct kvp_desc want;
	const char *field;
	int r = ns_bad(summaries);

	if (r == 0)
		r = kvp_desc_summaries(&ns->join.desc, &want);
	if (r < 0)
		return r;
	field = kvp_desc_diff(&want, &summaries->join.desc);
	return field ? fail(-KVP_EINVAL,
			       "opts.summaries: namespace %s is not one for the blocks of %s, its descriptor differs in "
			       "%s; kvp_desc_summaries() makes the right one",
			       summaries->join.name, ns->join.name, field)
		     : 0;
}

int kvp_seq_open(struct kvp_ns *ns, const struct kvp_seq_opts *opts, struct kvp_seq **out)
{
	struct kvp_seq *seq;
	int r = ns_bad(ns);

	if (r == 0)
		r = seq_opts_bad(opts);
	if (r == 0 && opts && opts->summaries)
		r = summaries_bad(ns, opts->summaries);
	if (r == 0 && !out)
		r = fail(-KVP_EINVAL, "seq: a null pointer");
	if (r < 0)
		return r;
	*out = NULL;
	seq = seq_new(ns);
	if (!seq)
		return fail(-KVP_ENOMEM, "out of memory");
	if (opts) {
		seq->window = opts->window;
		seq->sinks = opts->sinks;
		seq->hint = opts->hint;
		seq->summaries = opts->summaries;
		seq->resident = opts->resident_blocks;
	}
	if (seq->summaries)
		seq->kernels = *opts->kernels;
	r = seq_extras(seq, opts);
	if (r < 0) {
		seq_free(seq);
		return r;
	}
	*out = seq;
	return 0;
}

int seq_bad(const struct kvp_seq *seq)
{
	if (!seq)
		return fail(-KVP_EINVAL, "seq: a null pointer");
	return ns_bad(seq->ns);
}

static void seq_drop_cells(struct kvp_seq *seq, uint64_t from)
{
	while (seq->n_cells > from)
		seq->lost += cell_drop(seq->cells[--seq->n_cells]);
}

int kvp_seq_close(struct kvp_seq *seq)
{
	struct ns_map *map;
	int lost;

	if (!seq)
		return 0;
	if (atomic_load(&seq->ns->client->dead)) { /* of the parent's blocks nothing is touched */
		for (uint64_t b = 0; b < seq->n_cells; b++)
			if (seq->cells[b] && atomic_fetch_sub(&seq->cells[b]->refs, 1) == 1)
				free(seq->cells[b]);
		seq_free(seq);
		return 0;
	}
	seq_drop_cells(seq, 0);
	seq_drop_summaries(seq, 0);
	map = atomic_load_explicit(&seq->ns->map, memory_order_acquire);
	if (map)
		stock_trim(map);
	lost = (int)seq->lost;
	seq_free(seq);
	return lost;
}

/* ---- match ---- */

static int seq_add_tokens(struct kvp_seq *seq, const uint32_t *tokens, uint64_t n)
{
	int r = array_grow((void **)&seq->tokens, &seq->tokens_room, seq->n_tokens + n, sizeof(*tokens));

	if (r == 0 && n)
		memcpy(seq->tokens + seq->n_tokens, tokens, n * sizeof(*tokens));
	return r;
}

static int64_t seq_take_views(struct kvp_seq *seq, struct kvp_view *views, uint64_t n)
{
	uint32_t width = seq->ns->join.desc.block_tokens;
	int r = array_grow((void **)&seq->cells, &seq->cells_room, n, sizeof(*seq->cells));

	for (uint64_t i = 0; i < n && r == 0; i++) {
		bool spill = views[i].hit == KVP_HIT_SPILL;
		struct cell *cell = views[i].used_tokens == width ? cell_away() : NULL;

		if (!cell)
			break;
		cell_take_view(cell, &views[i]);
		seq->cells[seq->n_cells++] = cell;
		*(spill ? &seq->reused_spill : &seq->reused_ram) += width;
	}
	kvp_release(views, (uint32_t)n);
	seq->n_tokens = seq->committed = seq->n_cells * width;
	return r < 0 ? r : (int64_t)seq->n_tokens;
}

static void seq_let_go(struct kvp_seq *seq);

int64_t kvp_seq_match(struct kvp_seq *seq, const uint32_t *tokens, uint64_t n, uint64_t deadline_ns)
{
	struct kvp_view *views;
	uint64_t n_blocks;
	int64_t got;
	int r = seq_bad(seq);

	if (r < 0)
		return r;
	if (seq->n_tokens)
		return fail(-KVP_EINVAL, "kvp_seq_match() comes first: the sequence has %llu tokens",
			(unsigned long long)seq->n_tokens);
	if (n && !tokens)
		return fail(-KVP_EINVAL, "tokens: a null pointer");
	n_blocks = n ? (n - 1) / seq->ns->join.desc.block_tokens : 0;
	if (!n_blocks || n_blocks > UINT32_MAX)
		return 0;
	views = calloc(n_blocks, sizeof(*views));
	r = views ? seq_add_tokens(seq, tokens, n) : fail(-KVP_ENOMEM, "out of memory");
	if (r == 0)
		r = seq_keys(seq, n_blocks);
	if (r == 0)
		r = kvp_request(seq->ns, seq->keys, (uint32_t)n_blocks, seq->hint);
	if (r < 0)
		got = r;
	else if (seq->summaries)
		got = seq_match_sparse(seq, n_blocks, deadline_ns);
	else
		got = kvp_acquire(seq->ns, seq->keys, (uint32_t)n_blocks, KVP_ACQUIRE_TOLD, deadline_ns, views);
	if (got >= 0 && !seq->summaries)
		got = seq_take_views(seq, views, (uint64_t)got);
	free(views);
	seq->n_keys = seq->n_cells; /* of the others the tokens are not yet the sequence's */
	seq_let_go(seq);
	return got;
}

/* ---- append ---- */

int64_t kvp_seq_append(struct kvp_seq *seq, const uint32_t *tokens, uint64_t n)
{
	uint32_t width;
	uint64_t need;
	int r = seq_bad(seq);

	if (r < 0)
		return r;
	if (n && !tokens)
		return fail(-KVP_EINVAL, "tokens: a null pointer");
	if (n > (1ull << 40) - seq->n_tokens)
		return fail(-KVP_EINVAL, "n: a sequence holds at most 2^40 tokens");
	width = seq->ns->join.desc.block_tokens;
	need = (seq->n_tokens + n + width - 1) / width;
	r = seq_add_tokens(seq, tokens, n);
	if (r == 0 && need > seq->n_cells) {
		uint64_t had = seq->n_cells;

		seq_cool(seq);

		r = seq_add_cells(seq, need - seq->n_cells);
		if (r < 0)
			seq_drop_cells(seq, had);
	}
	if (r < 0)
		return r;
	seq->n_tokens += n;
	return (int64_t)seq->n_tokens;
}

uint64_t kvp_seq_length(const struct kvp_seq *seq)
{
	return seq ? seq->n_tokens : 0;
}

/* Why a token cannot be stored; apart, for the way that all of them go is hot. */
static void seq_tell_unwritable(const struct kvp_seq *seq, uint64_t pos)
{
	if (seq_bad(seq) < 0)
		return;
	if (pos < seq->committed)
		fail(-KVP_EINVAL, "pos: %llu, and the first %llu tokens are committed: they are not written any more",
			(unsigned long long)pos, (unsigned long long)seq->committed);
	else if (pos >= seq->n_tokens)
		fail(-KVP_EINVAL, "pos: %llu, and the sequence has %llu tokens; kvp_seq_append() makes room",
			(unsigned long long)pos, (unsigned long long)seq->n_tokens);
	else
		fail(-KVP_EINVAL, "pos: %llu, the block of that token is not held any more", (unsigned long long)pos);
}

/* The block that holds token @pos, if that may still be stored. */
static const struct cell *seq_writable(const struct kvp_seq *seq, uint64_t pos)
{
	const struct cell *cell = NULL;

	if (seq && !atomic_load_explicit(&seq->ns->client->dead, memory_order_relaxed) && pos >= seq->committed &&
		pos < seq->n_tokens)
		cell = seq->cells[pos / seq->ns->join.desc.block_tokens];
	if (cell && cell->data)
		return cell;
	seq_tell_unwritable(seq, pos);
	return NULL;
}

void *kvp_seq_row(struct kvp_seq *seq, uint32_t layer, enum kvp_kv which, uint32_t head, uint64_t pos)
{
	const struct cell *cell = seq_writable(seq, pos);
	uint64_t off, token_stride, head_stride;
	uint32_t heads;

	if (!cell || kvp_geom(seq->ns, layer, which, &off, &token_stride, &head_stride, NULL) < 0)
		return NULL;
	heads = seq->ns->join.desc.layers[layer].kv_heads;
	if (head >= heads) {
		fail(-KVP_EINVAL, "head: %u of %u", head, heads);
		return NULL;
	}
	return cell->data + off + pos % seq->ns->join.desc.block_tokens * token_stride + head * head_stride;
}

void *kvp_seq_block(struct kvp_seq *seq, uint64_t pos, uint32_t *index)
{
	const struct cell *cell = seq_writable(seq, pos);

	if (!cell)
		return NULL;
	if (index)
		*index = (uint32_t)(pos % seq->ns->join.desc.block_tokens);
	return cell->data;
}

static int table_grow(struct kvp_seq *seq, uint64_t n)
{
	uint64_t room = seq->table_room, room_nodes = room;
	int r = array_grow((void **)&seq->table_blocks, &room, n, sizeof(*seq->table_blocks));

	if (r == 0)
		r = array_grow((void **)&seq->table_nodes, &room_nodes, n, sizeof(*seq->table_nodes));
	return r < 0 ? r : array_grow((void **)&seq->table_pos, &seq->table_room, n, sizeof(*seq->table_pos));
}

/* Of a block in the pool that is read there; one that is being written lies near its writer anyway. */
static int16_t cell_node(const struct cell *cell)
{
	uint32_t node;

	if (cell_state(cell) != CELL_STORED || !cell->spot.map)
		return -1;
	node = cell->spot.map->slabs[slot_place(cell->spot.map, cell->spot.slot)].node;
	return node <= INT16_MAX ? (int16_t)node : -1;
}

static void table_add(struct kvp_seq *seq, uint64_t b, struct kvattn_table *table)
{
	uint32_t width = seq->ns->join.desc.block_tokens;
	uint64_t left = seq->n_tokens - b * width;

	seq->table_blocks[table->n_blocks] = cell_data(seq->cells[b]);
	seq->table_nodes[table->n_blocks] = cell_node(seq->cells[b]);
	seq->table_pos[table->n_blocks++] = b * width;
	table->n_tokens += left < width ? left : width;
}

static void table_end(struct kvp_seq *seq, struct kvattn_table *table)
{
	table->blocks = seq->table_blocks;
	table->block_pos = table->n_blocks == seq->n_cells ? NULL : seq->table_pos;
}

int seq_table_of(struct kvp_seq *seq, const uint64_t *blocks, uint64_t n, struct kvattn_table *table)
{
	int r = table_grow(seq, n);

	*table = (struct kvattn_table){0};
	for (uint64_t i = 0; r == 0 && i < n; i++)
		table_add(seq, blocks[i], table);
	table_end(seq, table);
	return r;
}

int kvp_seq_table(struct kvp_seq *seq, struct kvattn_table *table)
{
	int r = seq_bad(seq);

	if (r == 0 && !table)
		r = fail(-KVP_EINVAL, "table: a null pointer");
	if (r < 0)
		return r;
	seq_sync(seq);
	r = table_grow(seq, seq->n_cells);
	if (r < 0)
		return r;
	*table = (struct kvattn_table){0};
	for (uint64_t b = 0; b < seq->n_cells; b++)
		if (seq->cells[b] && cell_state(seq->cells[b]) != CELL_AWAY)
			table_add(seq, b, table);
	table_end(seq, table);
	return 0;
}

const int16_t *kvp_seq_nodes(const struct kvp_seq *seq)
{
	return seq ? seq->table_nodes : NULL;
}

/* ---- commit ---- */

void seq_sync(struct kvp_seq *seq)
{
	for (uint64_t b = seq->n_settled; b < seq->n_cells; b++) {
		struct cell *cell = seq->cells[b];

		/* while it is on its way it is the keeper's; while a fork may be reading our own copy that stays */
		if (!cell || cell_state(cell) == CELL_SENT || atomic_load(&cell->refs) != 1)
			continue;
		if (cell->left.kind != HOLD_NONE) {
			cell->data = cell->room.data;
			room_put_back(&cell->left);
			cell->left.kind = HOLD_NONE;
		}
		if (cell_state(cell) != CELL_ELSEWHERE)
			continue;
		atomic_store_explicit(&cell->state, CELL_STORED, memory_order_release);
		room_put_back(&cell->room);
		cell->room.kind = HOLD_NONE;
	}
}

/* With a window: blocks that no later token sees. The next query is at position `committed`, and sees window keys,
 * itself included. */
static void seq_let_go(struct kvp_seq *seq)
{
	uint32_t width = seq->ns->join.desc.block_tokens;

	if (!seq->window || seq->committed + 1 < seq->window)
		return;
	for (; (seq->n_let_go + 1) * width <= seq->committed + 1 - seq->window; seq->n_let_go++) {
		struct cell *cell = seq->cells[seq->n_let_go];

		if (!cell || seq->n_let_go * width < seq->sinks)
			continue;
		if (cell_state(cell) == CELL_OPEN || cell_state(cell) == CELL_REFUSED)
			seq->broken = true; /* never sent: what follows has no parent in the pool */
		seq->lost += cell_drop(cell);
		seq->cells[seq->n_let_go] = NULL;
	}
}

int64_t kvp_seq_commit(struct kvp_seq *seq, uint64_t n)
{
	int r = seq_bad(seq);

	if (r < 0)
		return r;
	if (n > seq->n_tokens)
		return fail(-KVP_EINVAL, "n: %llu of %llu tokens", (unsigned long long)n,
			(unsigned long long)seq->n_tokens);
	if (n > seq->committed)
		seq->committed = n;
	seq_sync(seq);
	r = seq_summarise(seq);
	if (r < 0)
		return r;
	seq_publish(seq);
	seq_let_go(seq);
	seq_cool(seq);
	return (int64_t)atomic_load(&seq->tally->published);
}

/* ---- fork, truncate ---- */

/* A private copy of the first @n_tokens tokens of a cell. */
static struct cell *cell_copy(struct kvp_seq *seq, const struct cell *from, uint32_t n_tokens)
{
	struct room room;
	struct cell *cell;
	uint64_t bytes;

	if (seq_rooms(seq, 1, &room) < 0)
		return NULL;
	cell = cell_new(&room);
	if (!cell)
		return NULL;
	bytes = rows_copy(seq->ns, room.data, cell_data(from), n_tokens, seq->ns->block_bytes);
	count_add(seq->ns->client, COUNT_COPIED_BYTES, bytes);
	seq->copied_bytes += bytes;
	return cell;
}

static int fork_cells(struct kvp_seq *fork, const struct kvp_seq *seq)
{
	uint32_t width = seq->ns->join.desc.block_tokens;
	int r = array_grow((void **)&fork->cells, &fork->cells_room, seq->n_cells, sizeof(*fork->cells));

	for (uint64_t b = 0; b < seq->n_cells && r == 0; b++) {
		uint64_t left = seq->n_tokens - b * width;
		struct cell *cell = seq->cells[b];

		if (cell && (b + 1) * width <= seq->committed)
			atomic_fetch_add(&cell->refs, 1);
		else if (cell)
			cell = cell_copy(fork, cell, left < width ? (uint32_t)left : width);
		if (!cell && seq->cells[b])
			r = -KVP_ENOMEM;
		else
			fork->cells[fork->n_cells++] = cell;
	}
	return r;
}

int kvp_seq_fork(struct kvp_seq *seq, struct kvp_seq **out)
{
	struct kvp_seq *fork;
	int r = seq_bad(seq);

	if (r == 0 && !out)
		r = fail(-KVP_EINVAL, "fork: a null pointer");
	if (r < 0)
		return r;
	if (seq->summaries)
		return fail(-KVP_ENOTSUP, "a sequence with summaries cannot be forked in this version");
	*out = NULL;
	seq_sync(seq);
	fork = seq_new(seq->ns);
	if (!fork)
		return fail(-KVP_ENOMEM, "out of memory");
	fork->window = seq->window;
	fork->sinks = seq->sinks;
	fork->n_extra = seq->n_extra;
	fork->n_first_extra = seq->n_first_extra;
	fork->extra = malloc(seq->n_extra + 1);
	fork->first_extra = malloc(seq->n_first_extra + 1);
	fork->broken = seq->broken;
	r = fork->extra && fork->first_extra ? seq_add_tokens(fork, seq->tokens, seq->n_tokens) : -KVP_ENOMEM;
	if (r == 0) {
		memcpy(fork->extra, seq->extra, seq->n_extra);
		memcpy(fork->first_extra, seq->first_extra, seq->n_first_extra);
		r = fork_cells(fork, seq);
	}
	if (r < 0) {
		kvp_seq_close(fork);
		return fail(-KVP_ENOMEM, "out of memory");
	}
	fork->n_tokens = seq->n_tokens;
	fork->committed = seq->committed;
	fork->n_let_go = seq->n_let_go;
	*out = fork;
	return 0;
}

/* With a window: is all there that a query at position @n may see? */
static bool seq_sees(const struct kvp_seq *seq, uint64_t n)
{
	uint32_t width = seq->ns->join.desc.block_tokens;
	uint64_t from = seq->window && n + 1 > seq->window ? n + 1 - seq->window : 0;

	for (uint64_t b = from / width; b * width < n; b++)
		if (!seq->cells[b])
			return false;
	return true;
}

/* The last block becomes writable from token @n on: as it is, or as a copy. */
static int seq_open_tail(struct kvp_seq *seq, uint64_t n)
{
	uint32_t width = seq->ns->join.desc.block_tokens;
	struct cell **at = &seq->cells[n / width], *copy;
	enum cell_state state = cell_state(*at);

	if (state == CELL_AWAY)
		return fail(-KVP_EINVAL, "n: select the block that token %llu lies in first", (unsigned long long)n);
	if (atomic_load(&(*at)->refs) == 1 && (state == CELL_OPEN || state == CELL_REFUSED) &&
		(*at)->room.kind != HOLD_NONE && (*at)->left.kind == HOLD_NONE) {
		atomic_store(&(*at)->state, CELL_OPEN); /* it may be published as something else */
		return 0;
	}
	copy = cell_copy(seq, *at, (uint32_t)(n % width));
	if (!copy)
		return -KVP_ENOMEM;
	seq->lost += cell_drop(*at);
	*at = copy;
	return 0;
}

int kvp_seq_truncate(struct kvp_seq *seq, uint64_t n)
{
	uint32_t width;
	int r = seq_bad(seq);

	if (r < 0)
		return r;
	if (n > seq->n_tokens)
		return fail(-KVP_EINVAL, "n: %llu of %llu tokens", (unsigned long long)n,
			(unsigned long long)seq->n_tokens);
	if (!seq_sees(seq, n))
		return fail(
			-KVP_EINVAL, "n: blocks that token %llu sees were let go by the window", (unsigned long long)n);
	seq_sync(seq);
	width = seq->ns->join.desc.block_tokens;
	if (n % width)
		r = seq_open_tail(seq, n);
	if (r < 0)
		return r;
	seq_drop_cells(seq, (n + width - 1) / width);
	seq_drop_summaries(seq, n / width);
	seq->n_tokens = n;
	if (seq->committed > n)
		seq->committed = n;
	if (seq->n_keys > n / width)
		seq->n_keys = n / width;
	if (seq->n_settled > n / width)
		seq->n_settled = n / width;
	if (seq->n_let_go > n / width)
		seq->n_let_go = n / width;
	seq->broken = false; /* what broke it may be cut off; else it is met again */
	return 0;
}

int kvp_seq_stats(const struct kvp_seq *seq, struct kvp_seq_stats *stats)
{
	int r = seq_bad(seq);

	if (r < 0)
		return r;
	if (!stats)
		return fail(-KVP_EINVAL, "stats: a null pointer");
	if (stats->size != sizeof(*stats))
		return fail(-KVP_EINVAL, "stats.size: %u, this library knows %zu", stats->size, sizeof(*stats));
	*stats = (struct kvp_seq_stats){.size = sizeof(*stats),
		.lost = seq->lost,
		.tokens = seq->n_tokens,
		.reused_ram = seq->reused_ram,
		.reused_spill = seq->reused_spill,
		.published = atomic_load(&seq->tally->published),
		.copied_bytes = seq->copied_bytes,
		.restored = seq->restored,
		.private_blocks = seq_private_summaries(seq)};
	for (uint64_t b = 0; b < seq->n_cells; b++) {
		const struct cell *cell = seq->cells[b];

		if (!cell)
			continue;
		if (cell_state(cell) == CELL_STORED && cell->spot.map)
			stats->lost += spot_lost(cell->spot.map, cell->spot.slot, cell->spot.generation);
		else
			stats->private_blocks += cell->is_private;
	}
	return 0;
}
