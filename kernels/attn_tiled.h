/*
 * attn_tiled.h - attention over one split of a TILED table; included by each attn_<isa>.c behind attn_tmpl.h
 *
 * What is worked on at once are four subtiles of 16 positions, STREAM_GAP positions apart: with blocks of 64 tokens the
 * four streams lie in four blocks.  Their scores lie side by side by position (index i = 16 * s + t); values are taken
 * in by turns, token t of each stream, then token t + 1 (bits of a mask in that order: see spread()).  A score is one
 * chain of multiply-adds over the dims; everything else is as in attn_tmpl.h, and the same promise holds.
 */
#include "tiled.h"

#define STREAM_GAP 64u /* positions between streams: four of them make a group */
#define GROUP_TOKENS (STREAMS * STREAM_GAP)
#define GROUP_STEPS (STREAM_GAP / SUB_TOKENS)
#define SPLIT_STEPS (ATTN_SPLIT / ATTN_TILE)
#define SUB_VECS (SUB_TOKENS / LANES) /* vectors of a subtile's dim */
#define KEY_STREAMS (KEY_VECS / SUB_VECS) /* streams that are scored at once */
#define DIM_STEP 4u
#define SOON_STEP (2 * DIM_STEP) /* dims of K between two calls of soon_ask() */

/* K or V of one head in one step. */
struct lanes {
	const char *base[STREAMS];
	const float *scale[STREAMS]; /* by token; NULL: none */
};

/* What a pass asks for ahead of time: line o of stream s at own[s] + o, from offset `turn` on at next[s] + o. */
struct fetch {
	const char *own[STREAMS], *next[STREAMS];
	size_t turn;
	bool far; /* see ask() */
};

/* The next step's K, or V, asked for little by little where many rows work on this one's. */
struct soon {
	const char *at[STREAMS];
	uint32_t lines, asked; /* of all streams, which take turns */
	uint32_t each; /* time */
};

struct tiled {
	struct work w;
	struct geom_tensor k, v;
	size_t k_bytes, v_bytes; /* of a tile in blocks */
	size_t k_fetch, v_fetch; /* I4: lines of what is asked for for each sixteen dims */
	bool step_ahead; /* both are I4, whose passes are too short for the next one's: a pass asks for its own next step */
	size_t ahead; /* bytes of a stream that are asked for before they are used */
	enum tiled_way k_way, v_way;
	bool latent; /* V is the first dims of K: K is widened, and V is that, turned */
	struct tile tiles[SPLIT_STEPS];
	bool sight[SPLIT_STEPS];
};

/* ---- Where streams lie ---- */

/* Position of stream @s in step @i, from the split's beginning. */
static uint32_t step_pos(uint32_t i, uint32_t s)
{
	return i / GROUP_STEPS * GROUP_TOKENS + i % GROUP_STEPS * SUB_TOKENS + s * STREAM_GAP;
}

/* Whether a subtile's keys lie in one tile of a block, each at its own place: then it is read there, tail and all. */
static bool tiled_in_place(const struct attn_part *part, struct sub *sub)
{
	const struct attn_run *run = part->runs + sub->run;
	const int64_t first = (int64_t)run->token + (sub->pos - run->pos);
	const uint32_t next = sub->run + 1;

	if (!sub->present || first < 0 || first % SUB_TOKENS || part->call->geom.block_tokens < SUB_TOKENS)
		return false;
	if (next < part->n_runs && part->runs[next].pos < sub->pos + SUB_TOKENS)
		return false;
	sub->block = run->block;
	sub->token = (uint32_t)first;
	return true;
}

static void tiled_find(struct tiled *x)
{
	const struct attn_part *part = x->w.part;

	for (uint32_t i = 0; i < SPLIT_STEPS; i++) {
		struct tile *tile = &x->tiles[i];

		tile->any = false;
		for (uint32_t s = 0; s < STREAMS; s++) {
			struct sub *sub = &tile->sub[s];

			sub_find(part, part->split.pos + step_pos(i, s), sub);
			sub->whole = tiled_in_place(part, sub);
			tile->any |= sub->present != 0;
		}
	}
}

static uint64_t step_seen(const struct work *w, const struct tile *tile, uint32_t q)
{
	const struct attn_seq *seq = attn_part_seq(w->part, q);
	const int64_t p = seq->pos0 + (int64_t)attn_part_row(w->part, q);
	uint64_t seen = 0;

	for (uint32_t s = 0; s < STREAMS; s++) {
		const struct sub *sub = &tile->sub[s];

		seen |= (sub->present & attn_seen(w->part->call, seq, p, sub->pos)) << s * SUB_TOKENS;
	}
	return seen;
}

/* What each query sees in each step: w.seen[step * n_q + q]. */
static void tiled_sight(struct tiled *x)
{
	const uint32_t n_q = x->w.part->rows.n_q;

	for (uint32_t i = 0; i < SPLIT_STEPS; i++) {
		uint64_t any = 0;

		for (uint32_t q = 0; q < n_q && x->tiles[i].any; q++) {
			x->w.seen[i * n_q + q] = step_seen(&x->w, &x->tiles[i], q);
			any |= x->w.seen[i * n_q + q];
		}
		x->sight[i] = any != 0;
	}
}

/* Bits by position to the order in which values are taken in. */
static uint64_t by_turns(uint64_t by_position)
{
	uint64_t bits = 0;

	for (uint32_t s = 0; s < STREAMS; s++)
		bits |= spread(by_position >> s * SUB_TOKENS & 0xffff) << s;
	return bits;
}

/* ---- K or V of a step: in place, or a copy ---- */

static const char *tile_addr(const struct geom_tensor *t, const struct sub *sub, uint32_t head)
{
	return sub->block + t->off + sub->token / t->tile * t->token_stride + head * t->head_stride;
}

static void token_copy(const struct geom_tensor *t, char *to, uint32_t to_token, const char *from, uint32_t from_token)
{
	geom_token_move(t, to, TILED_TOKENS, to_token, from, t->tile, from_token);
	if (tiled_scaled(t->type))
		memcpy(to + tiled_scale_off(t->type, t->dim, TILED_TOKENS, t->values) + to_token * sizeof(float),
			from + tiled_scale_off(t->type, t->dim, t->tile, t->values) + from_token * sizeof(float),
			sizeof(float));
}

/* A whole tile of the keys there are, wherever they lie; the rest is zero. */
static void tile_copy(
	const struct work *w, const struct sub *sub, const struct geom_tensor *t, uint32_t head, size_t bytes, char *to)
{
	const struct attn_part *part = w->part;

	memset(to, 0, bytes);
	for (uint32_t i = sub->run; i < part->n_runs && part->runs[i].pos < sub->pos + SUB_TOKENS; i++) {
		const struct attn_run *run = &part->runs[i];
		const int64_t run_end = run->pos + run->n, sub_end = sub->pos + SUB_TOKENS;
		const int64_t end = run_end < sub_end ? run_end : sub_end;

		for (int64_t pos = run->pos > sub->pos ? run->pos : sub->pos; pos < end; pos++) {
			const uint64_t token = run->token + (uint64_t)(pos - run->pos);
			const char *tile =
				run->block + t->off + token / t->tile * t->token_stride + head * t->head_stride;

			token_copy(t, to, (uint32_t)(pos - sub->pos), tile, (uint32_t)(token % t->tile));
		}
	}
}

/* Streams without a key stand on one that has some: what they give is masked. */
static void lanes_open(const struct tiled *x, const struct tile *tile, const struct geom_tensor *t, uint32_t head,
	char *copy, struct lanes *lanes)
{
	const size_t bytes = attn_round_up(tiled_bytes(t->type, t->dim, TILED_TOKENS, t->values), ATTN_ALIGN);
	const char *some = NULL;

	for (uint32_t s = 0; s < STREAMS; s++) {
		const struct sub *sub = &tile->sub[s];

		lanes->base[s] = NULL;
		if (sub->whole)
			lanes->base[s] = tile_addr(t, sub, head);
		else if (sub->present && t->type != KVATTN_I4) { /* of I4 rows are widened one by one */
			tile_copy(&x->w, sub, t, head, bytes, copy + s * bytes);
			lanes->base[s] = copy + s * bytes;
		}
		some = lanes->base[s] ? lanes->base[s] : some;
	}
	for (uint32_t s = 0; s < STREAMS; s++) {
		if (!lanes->base[s])
			lanes->base[s] = some;
		lanes->scale[s] = NULL;
		if (tiled_scaled(t->type))
			lanes->scale[s] =
				(const float *)(const void *)(lanes->base[s] + tiled_scale_off(t->type, t->dim,
										       TILED_TOKENS, t->values));
	}
}

/* ---- What is asked for ahead of time ---- */

/* Where stream @s goes on in step @next_step of head @head; nowhere: @otherwise. */
static const char *stream_next(const struct tiled *x, const struct geom_tensor *t, uint32_t next_step, uint32_t head,
	uint32_t s, const char *otherwise)
{
	if (next_step >= SPLIT_STEPS || !x->tiles[next_step].sub[s].whole)
		return otherwise;
	return tile_addr(t, &x->tiles[next_step].sub[s], head);
}

/* Tiles of @bytes, asked for within so many calls of soon_ask() that @of_group are made for @group rows; the first rows
 * make none.  I4 is asked for while it is widened. */
static struct soon soon_open(const struct tiled *x, const struct geom_tensor *t, size_t bytes, uint32_t next_step,
	uint32_t head, uint32_t group, uint32_t of_group)
{
	const uint32_t groups = x->w.rows / group, calls = (groups > 1 ? groups - 1 : 1) * of_group;
	struct soon soon = {.lines = (uint32_t)(bytes / 64) * STREAMS};

	for (uint32_t s = 0; s < STREAMS && t->type != KVATTN_I4; s++)
		soon.at[s] = stream_next(x, t, next_step, head, s, NULL);
	soon.each = (soon.lines + calls - 1) / calls;
	return soon;
}

/* Into the first-level cache: so few at a time find room in it. */
INLINE void soon_ask(struct soon *soon)
{
	for (uint32_t i = 0; i < soon->each && soon->asked < soon->lines; i++, soon->asked++) {
		const char *at = soon->at[soon->asked % STREAMS];

		if (at)
			__builtin_prefetch(at + (size_t)(soon->asked / STREAMS) * 64);
	}
}

/* ---- Queries: KEY_ROWS rows at a time as [dim][row], what is left over row by row ---- */

/* The first of the rows that row @r lies with, and how many they are. */
static uint32_t query_place(const struct work *w, uint32_t r)
{
	return r < w->rows / KEY_ROWS * KEY_ROWS ? r / KEY_ROWS * KEY_ROWS : r;
}

static uint32_t query_step(const struct work *w, uint32_t r)
{
	return r < w->rows / KEY_ROWS * KEY_ROWS ? KEY_ROWS : 1;
}

static const float *query_row(const struct work *w, uint32_t h, uint32_t r)
{
	const struct attn_part *part = w->part;
	const uint32_t group = part->call->group;
	const size_t head = (size_t)(part->rows.head0 + h) * group + r % group;

	const struct attn_seq *seq = attn_part_seq(part, r / group);

	return seq->s->q + attn_part_row(part, r / group) * seq->q_stride + head * part->call->geom.dim_k;
}

static void queries_turn(const struct work *w)
{
	for (uint32_t h = 0; h < w->part->rows.n_heads; h++)
		for (uint32_t r = 0; r < w->rows; r++) {
			const float *from = query_row(w, h, r);
			const uint32_t first = query_place(w, r), step = query_step(w, r);
			float *to = w->q + ((size_t)h * w->rows + first) * w->k_pad + (r - first);

			for (uint32_t d = 0; d < w->part->call->geom.dim_k; d++)
				to[(size_t)d * step] = from[d];
		}
}

/* ---- Keys ---- */

INLINE vec elems_vec(const int type, const char *at, size_t i)
{
	if (type == KVATTN_I8)
		return vec_load_i8((const int8_t *)(const void *)at + i);
	return row_vec(type, at, i);
}

/* Tokens @i and on of dim @d of a tile's K, @at: where its pair of dims begins, or itself. */
INLINE vec key_vec(const int type, const char *at, uint32_t d, size_t i)
{
	if (type == KVATTN_BF16)
		return vec_load_bf16_of((const uint16_t *)(const void *)at + 2 * i, d % 2);
	return elems_vec(type, at, i);
}

/* Dims @i and on of token @t of V, @at: where its pair of tokens begins, or itself. */
INLINE vec value_vec(const int type, const char *at, uint32_t t, size_t i)
{
	return key_vec(type, at, t, i);
}

/* How far element @i of those that lie in pairs is from where its pair begins. */
INLINE uint32_t pair_less(const int type, uint32_t i)
{
	return type == KVATTN_BF16 ? i % 2 : 0;
}

/* @n dims (all of these constants) at @k and on: scores of @n_rows rows with @n_streams subtiles.  @q: [dim][n_rows].
 * @keep: where the keys go as f32, see wide_at(); NULL: nowhere */
INLINE void scores_dims(const int type, const int n_rows, const uint32_t n_streams, const uint32_t n, const uint32_t d0,
	const size_t step, const float *q, const char *const *k, size_t at, const char *const *soon, size_t soon_at,
	const bool far, float *keep, vec sum[KEY_ROWS][KEY_VECS])
{
	const uint32_t dim_bytes = elem_bytes(type) * SUB_TOKENS, line_dims = dim_bytes >= 64 ? 1 : 64 / dim_bytes;

	UNROLL for (uint32_t i = 0; i < n; i++)
	{
		vec key[KEY_VECS];

		if (soon && i % line_dims == 0) {
			ask(far, soon, n_streams, soon_at + i * dim_bytes);
			ask_first(far, k, n_streams, at + i * step + TUNE_FIRST);
		}
		UNROLL for (uint32_t j = 0; j < n_streams * SUB_VECS; j++) key[j] = key_vec(type,
			k[j / SUB_VECS] + at + i * step - pair_less(type, d0 + i) * step, d0 + i, j % SUB_VECS * LANES);
		if (keep)
			UNROLL for (uint32_t j = 0; j < n_streams * SUB_VECS; j++)
				vec_store(keep + i * ATTN_TILE + j * LANES, key[j]);
		UNROLL for (int r = 0; r < n_rows; r++)
		{
			const vec query = vec_set1(q[i * (uint32_t)n_rows + (uint32_t)r]);

			UNROLL for (uint32_t j = 0; j < n_streams * SUB_VECS; j++) sum[r][j] =
				vec_fma(query, key[j], sum[r][j]);
		}
	}
}

/* @wide: the tile was widened, its streams lie side by side */
INLINE void scores_take(const int type, const bool wide, const int n_rows, const uint32_t n_streams, const float *q,
	uint32_t dim, const char *const *k, const struct fetch *fetch, struct soon *soon_after, uint32_t s0,
	float *keep, float *score)
{
	const size_t dim_bytes = elem_bytes(type) * SUB_TOKENS, step = wide ? ATTN_TILE * sizeof(float) : dim_bytes;
	vec sum[KEY_ROWS][KEY_VECS];
	uint32_t d = 0;

	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (uint32_t j = 0; j < n_streams * SUB_VECS; j++) sum[r][j] =
		vec_zero();
	for (; d + DIM_STEP <= dim; d += DIM_STEP, q += DIM_STEP * (uint32_t)n_rows) {
		const char *const *soon = NULL;

		if (wide && soon_after && d % SOON_STEP == 0)
			soon_ask(soon_after);
		if (fetch)
			soon = (d * dim_bytes < fetch->turn ? fetch->own : fetch->next) + s0;
		scores_dims(type, n_rows, n_streams, DIM_STEP, 0, step, q, k, d * step, soon, d * dim_bytes,
			fetch && fetch->far, keep ? keep + d * ATTN_TILE : NULL, sum);
	}
	for (; d < dim; d++, q += (uint32_t)n_rows)
		scores_dims(type, n_rows, n_streams, 1, d, step, q, k, d * step, NULL, 0, false,
			keep ? keep + d * ATTN_TILE : NULL, sum);
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (uint32_t j = 0; j < n_streams * SUB_VECS; j++)
		vec_store(score + r * ATTN_TILE + j * LANES, sum[r][j]);
}

/* @wide: of all rows but the first KEY_ROWS, which have seen to it that K is there as f32 */
INLINE void scores_rows(const int type, const bool wide, const uint32_t n_streams, const struct tiled *x,
	const float *q, const char *const *k, const struct fetch *fetch, struct soon *soon, uint32_t s0, uint32_t r)
{
	const char *const base[STREAMS] = {k[0], k[n_streams > 1], k[n_streams > 2 ? 2 : 0], k[n_streams > 3 ? 3 : 0]};
	const struct work *w = &x->w;
	const uint32_t dim = x->k.dim;
	float *score = w->weight + s0 * SUB_TOKENS;

	if (!wide && w->rows >= KEY_ROWS) {
		scores_take(type, wide, KEY_ROWS, n_streams, q, dim, base, fetch, soon, s0, NULL, score);
		r = KEY_ROWS;
	}
	for (; r + KEY_ROWS <= w->rows; r += KEY_ROWS)
		scores_take(type, wide, KEY_ROWS, n_streams, q + (size_t)r * w->k_pad, dim, base, NULL, soon, s0, NULL,
			score + (size_t)r * ATTN_TILE);
	for (; r < w->rows; r++)
		scores_take(type, wide, 1, n_streams, q + (size_t)r * w->k_pad, dim, base, wide || r ? NULL : fetch,
			soon, s0, NULL, score + (size_t)r * ATTN_TILE);
}

/* From row @r on. */
INLINE void scores_all(const int type, const bool wide, const struct tiled *x, const float *q, const struct lanes *k,
	const struct fetch *fetch, struct soon *soon, bool one_stream, uint32_t r)
{
	if (one_stream) {
		scores_rows(type, wide, 1, x, q, k->base, fetch, soon, 0, r);
		return;
	}
	for (uint32_t s = 0; s < STREAMS; s += KEY_STREAMS)
		scores_rows(type, wide, KEY_STREAMS, x, q, k->base + s, fetch, soon, s, r);
}

/* Of many rows the first @n_rows: they multiply what they widen, and keep it for the others. */
INLINE void scores_first(const int type, const int n_rows, const struct tiled *x, const float *q, const struct lanes *k)
{
	const uint32_t n = KEY_STREAMS;

	for (uint32_t s = 0; s < STREAMS; s += n) {
		const char *const base[STREAMS] = {
			k->base[s], k->base[s + (n > 1)], k->base[s + (n > 2 ? 2 : 0)], k->base[s + (n > 3 ? 3 : 0)]};

		scores_take(type, false, n_rows, n, q, x->k.dim, base, NULL, NULL, s, x->w.k_wide + s * SUB_TOKENS,
			x->w.weight + s * SUB_TOKENS);
	}
}

/* Each score by its token's scale. */
TARGET static void scores_scale(const struct work *w, const struct lanes *k)
{
	for (uint32_t s = 0; s < STREAMS; s++)
		for (uint32_t r = 0; r < w->rows; r++)
			for (uint32_t j = 0; j < SUB_VECS; j++) {
				float *at = w->weight + (size_t)r * ATTN_TILE + s * SUB_TOKENS + j * LANES;

				vec_store(at, vec_mul(vec_load(at), vec_load(k->scale[s] + j * LANES)));
			}
}

/* ---- Values ---- */

/* One token of one stream, @n_vecs vectors of a chunk. */
#define TURN(t, s) \
	do { \
		const char *row = v[s] + ((t)-pair_less(type, t)) * step; \
		vec value[VALUE_VECS]; \
		UNROLL for (int j = 0; j < n_vecs; j++) value[j] = value_vec(type, row, t, dim0 + j * LANES); \
		if (keep) \
			UNROLL for (int j = 0; j < n_vecs; j++) \
				vec_store(keep + ((t)*STREAMS + (s)) * keep_row + dim0 + j * LANES, value[j]); \
		UNROLL for (int r = 0; r < n_rows; r++) \
		{ \
			const vec by = vec_set1(weight[r * ATTN_TILE + (s)*SUB_TOKENS + (t)]); \
			UNROLL for (int j = 0; j < n_vecs; j++) sum[r][j] = vec_fma(by, value[j], sum[r][j]); \
		} \
	} while (0)

/* @n_rows rows take in LANES * @n_vecs dims of all values of a chunk, or of those in @mask (by turns).
 * @keep: where the chunk goes as f32, in rows of @keep_row; NULL: nowhere */
INLINE void turns_take(const int type, const int n_rows, const int n_vecs, const bool all, uint64_t mask,
	const float *weight, const char *const *v, const size_t step, const char *const *own, const char *const *next,
	size_t turn, const bool far, struct soon *soon_after, float *keep, const size_t keep_row, uint32_t dim0,
	float *acc, size_t acc_stride)
{
	vec sum[VALUE_ROWS][VALUE_VECS];

	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int j = 0; j < n_vecs; j++) sum[r][j] = vec_zero();
	if (all) {
		for (uint32_t t2 = 0; t2 < SUB_TOKENS; t2 += 2) {
			if (soon_after)
				soon_ask(soon_after);
			UNROLL for (uint32_t t = t2; t < t2 + 2; t++)
			{
				const size_t at = t * step + dim0 * elem_bytes(type);
				const char *const *soon = at < turn ? own : next;

				UNROLL for (uint32_t s = 0; s < STREAMS; s++)
				{
					if (own)
						UNROLL for (uint32_t o = 0; o < n_vecs * LANES * elem_bytes(type);
							    o += 64)
						{
							ask(far, soon + s, 1, at + o);
							ask_first(far, v + s, 1, at + o + TUNE_FIRST);
						}
					TURN(t, s);
				}
			}
		}
	} else {
		for (; mask; mask &= mask - 1) {
			const uint32_t i = (uint32_t)__builtin_ctzll(mask);

			TURN(i / STREAMS, i % STREAMS);
		}
	}
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int j = 0; j < n_vecs; j++) vec_store(
		acc + r * acc_stride + j * LANES, vec_add(vec_load(acc + r * acc_stride + j * LANES), sum[r][j]));
}
#undef TURN

/* The chunk of @n dims that begins at byte @off of each stream, its streams @apart bytes one behind the other. */
INLINE void turns_chunk(const int type, const int n_rows, const bool all, uint64_t mask, const float *weight,
	const struct lanes *v, size_t off, const size_t apart, const size_t step, const struct fetch *fetch,
	struct soon *soon, float *keep, uint32_t n, float *acc, size_t acc_stride)
{
	const char *const base[STREAMS] = {
		v->base[0] + off, v->base[1] + off + apart, v->base[2] + off + 2 * apart, v->base[3] + off + 3 * apart};
	const char *own[STREAMS], *next[STREAMS];
	size_t turn = 0;
	uint32_t d = 0;

	if (fetch) {
		turn = fetch->turn > off ? fetch->turn - off : 0;
		UNROLL for (uint32_t s = 0; s < STREAMS; s++)
		{
			own[s] = fetch->own[s] + off;
			next[s] = fetch->next[s] + off;
		}
	}
	for (; d + VALUE_VECS * LANES <= n; d += VALUE_VECS * LANES)
		turns_take(type, n_rows, VALUE_VECS, all, mask, weight, base, step, fetch ? own : NULL, next, turn,
			fetch && fetch->far, soon, keep, n, d, acc + d, acc_stride);
	for (; d < n; d += LANES)
		turns_take(type, n_rows, 1, all, mask, weight, base, step, NULL, NULL, 0, false, soon, keep, n, d,
			acc + d, acc_stride);
}

/* All dims of @n_rows rows, chunk by chunk.  @wide: the streams lie in one tile of 64 tokens, by turns. */
INLINE void turns_dims(const int type, const bool wide, const int n_rows, const bool all, uint64_t mask,
	const float *weight, const struct tiled *x, const struct lanes *v, const struct fetch *fetch, struct soon *soon,
	const bool keep, float *acc, size_t acc_stride)
{
	const uint32_t dim = (uint32_t)attn_round_up(x->v.dim, TILED_PAD), elem = elem_bytes(type);
	const uint32_t tokens = wide ? ATTN_TILE : SUB_TOKENS, turn = wide ? STREAMS : 1;

	for (uint32_t c = 0; c < dim; c += TILED_CHUNK) {
		const size_t off = (size_t)c * tokens * elem, rest = (size_t)(dim - c) * elem;
		float *to = keep ? x->w.v_wide + (size_t)c * ATTN_TILE : NULL;

		if (dim - c >= TILED_CHUNK)
			turns_chunk(type, n_rows, all, mask, weight, v, off, wide ? TILED_CHUNK * elem : 0,
				turn * TILED_CHUNK * elem, fetch, soon, to, TILED_CHUNK, acc + c, acc_stride);
		else
			turns_chunk(type, n_rows, all, mask, weight, v, off, wide ? rest : 0, turn * rest, fetch, soon,
				to, dim - c, acc + c, acc_stride);
	}
}

INLINE void turns_rows(const int type, const bool wide, const bool all, uint32_t n_rows, uint64_t mask,
	const float *weight, const struct tiled *x, const struct lanes *v, const struct fetch *fetch, struct soon *soon,
	float *acc, size_t acc_stride)
{
	if (!wide && n_rows >= VALUE_ROWS) { /* the first rows fetch for the others */
		turns_dims(type, wide, VALUE_ROWS, all, mask, weight, x, v, fetch, soon, false, acc, acc_stride);
		weight += VALUE_ROWS * ATTN_TILE;
		acc += VALUE_ROWS * acc_stride;
		n_rows -= VALUE_ROWS;
		fetch = NULL;
	}
	for (; n_rows >= VALUE_ROWS; n_rows -= VALUE_ROWS) {
		turns_dims(type, wide, VALUE_ROWS, all, mask, weight, x, v, NULL, soon, false, acc, acc_stride);
		weight += VALUE_ROWS * ATTN_TILE;
		acc += VALUE_ROWS * acc_stride;
	}
	for (; n_rows; n_rows--) {
		turns_dims(type, wide, 1, all, mask, weight, x, v, wide ? NULL : fetch, soon, false, acc, acc_stride);
		weight += ATTN_TILE;
		acc += acc_stride;
		fetch = NULL;
	}
}

/* From row @r on. */
INLINE void turns_all(const int type, const bool wide, const struct tiled *x, const struct lanes *v,
	const struct fetch *fetch, struct soon *soon, uint32_t h, uint32_t r)
{
	const struct work *w = &x->w;
	const size_t acc_stride = w->part->call->acc_floats;
	float *acc = w->part->state.acc + (size_t)h * w->rows * acc_stride;
	uint32_t n;

	for (; r < w->rows; r += n) {
		const uint64_t mask = w->mask[r];

		for (n = 1; r + n < w->rows && w->mask[r + n] == mask; n++)
			;
		if (mask == UINT64_MAX)
			turns_rows(type, wide, true, n, mask, w->weight + (size_t)r * ATTN_TILE, x, v, r ? NULL : fetch,
				soon, acc + r * acc_stride, acc_stride);
		else if (mask)
			turns_rows(type, wide, false, n, mask, w->weight + (size_t)r * ATTN_TILE, x, v, NULL, soon,
				acc + r * acc_stride, acc_stride);
	}
}

/* Of many rows the first VALUE_ROWS, which see all of the step: as scores_first(). */
INLINE void turns_first(const int type, const struct tiled *x, const struct lanes *v, uint32_t h)
{
	const size_t acc_stride = x->w.part->call->acc_floats;

	turns_dims(type, false, VALUE_ROWS, true, UINT64_MAX, x->w.weight, x, v, NULL, NULL, true,
		x->w.part->state.acc + (size_t)h * x->w.rows * acc_stride, acc_stride);
}

/* ---- One copy of each pass for each type ---- */

#define TILED_PASSES(name, type) \
	TARGET static void scores_##name(const struct tiled *x, const float *q, const struct lanes *k, \
		const struct fetch *fetch, bool one_stream) \
	{ \
		scores_all(type, false, x, q, k, fetch, NULL, one_stream, 0); \
	} \
	TARGET static void scores_first_##name(const struct tiled *x, const float *q, const struct lanes *k) \
	{ \
		if (x->w.rows >= KEY_ROWS) \
			scores_first(type, KEY_ROWS, x, q, k); \
		else \
			scores_first(type, 1, x, q, k); \
	} \
	TARGET static void turns_##name( \
		const struct tiled *x, const struct lanes *v, const struct fetch *fetch, uint32_t h) \
	{ \
		turns_all(type, false, x, v, fetch, NULL, h, 0); \
	} \
	TARGET static void turns_first_##name(const struct tiled *x, const struct lanes *v, uint32_t h) \
	{ \
		turns_first(type, x, v, h); \
	} \
	/* All of a tile to f32, see wide_at() */ \
	TARGET static void widen_v_##name(const struct tiled *x, const struct lanes *v, float *to) \
	{ \
		const uint32_t dim = (uint32_t)attn_round_up(x->v.dim, TILED_PAD); \
\
		for (uint32_t d = 0; d < dim; d += LANES) { \
			const uint32_t c = d / TILED_CHUNK * TILED_CHUNK, n = tiled_v_row(x->v.dim, c); \
\
			for (uint32_t i = 0; i < ATTN_TILE; i++) \
				vec_store(to + (size_t)c * ATTN_TILE + i * n + (d - c), \
					value_vec(type, \
						v->base[i % STREAMS] + \
							((size_t)c * SUB_TOKENS + \
								(i / STREAMS - pair_less(type, i / STREAMS)) * n) * \
								elem_bytes(type), \
						i / STREAMS, d - c)); \
		} \
	}

TILED_PASSES(t32, KVATTN_F32)
TILED_PASSES(t16, KVATTN_F16)
TILED_PASSES(tb16, KVATTN_BF16)
TILED_PASSES(t8, KVATTN_I8)
TILED_PASSES(tf8, KVATTN_FP8_E4M3)

/* ---- I4: widened where there are no products of bytes ---- */

/* Sixteen f16 as f32. */
INLINE void halves_open(const uint16_t *from, float *to)
{
	for (uint32_t j = 0; j < SUB_TOKENS; j += LANES)
		vec_store(to + j, vec_load_f16(from + j));
}

/* value = least + step * code; the product is exact, so the sum is the only rounding.  Code @i of each word */
INLINE vec i4_vec(const uint8_t *words, uint32_t i, float step, float least)
{
	return vec_fma(vec_load_u4(words, i % 4 * 8 + i / 4 * 4), vec_set1(step), vec_set1(least));
}

/* What the next pass reads of stream @s, in as many parts as this one has sixteens of dims. */
INLINE void part_fetch(const struct fetch *fetch, uint32_t s, uint32_t part, size_t lines)
{
	const char *at = fetch->next[s] + part * lines * 64, *const end = at + lines * 64;

	if (fetch->far)
		for (; at < end; at += 64)
			__builtin_prefetch(at, 0, 2);
	else
		for (; at < end; at += 64)
			__builtin_prefetch(at);
}

INLINE const uint16_t *i4_steps_of(const struct geom_tensor *t, const char *tile)
{
	return (const uint16_t *)(const void *)(tile + tiled_scale_off(t->type, t->dim, TILED_TOKENS, t->values));
}

/* Where a widened step has dim @d of token @token of stream @s: K [dim][64], V as a tile of 64 tokens, by turns. */
static size_t wide_at(const struct geom_tensor *t, uint32_t s, uint32_t token, uint32_t d)
{
	return t->values ? tiled_v_at(KVATTN_F32, ATTN_TILE, t->dim, d, token * STREAMS + s)
			 : (size_t)d * ATTN_TILE + s * SUB_TOKENS + token;
}

/* What does not lie in one tile: row by row; the rest is zero. */
static void rows_widen(
	const struct tiled *x, const struct sub *sub, const struct geom_tensor *t, uint32_t head, uint32_t s, float *to)
{
	const struct attn_part *part = x->w.part;
	float row[KVATTN_DIM_MAX];

	for (uint32_t i = 0; i < SUB_TOKENS; i++)
		for (uint32_t d = 0; d < t->dim; d++)
			to[wide_at(t, s, i, d)] = 0;
	for (uint32_t i = sub->run; i < part->n_runs && part->runs[i].pos < sub->pos + SUB_TOKENS; i++) {
		const struct attn_run *run = &part->runs[i];
		const int64_t run_end = run->pos + run->n, sub_end = sub->pos + SUB_TOKENS;
		const int64_t end = run_end < sub_end ? run_end : sub_end;

		for (int64_t pos = run->pos > sub->pos ? run->pos : sub->pos; pos < end; pos++) {
			geom_row_load(
				&attn_isa_scalar, t, run->block, run->token + (uint64_t)(pos - run->pos), head, row);
			for (uint32_t d = 0; d < t->dim; d++)
				to[wide_at(t, s, (uint32_t)(pos - sub->pos), d)] = row[d];
		}
	}
}

TARGET static void widen_k_i4(const struct tiled *x, const struct tile *tile, uint32_t head, const struct lanes *k,
	const struct fetch *fetch, float *to)
{
	const uint32_t dim = x->k.dim, pad = (uint32_t)tiled_i4_steps(dim, false);
	float step[SUB_TOKENS], least[SUB_TOKENS];

	for (uint32_t d0 = 0; d0 < dim; d0 += SUB_TOKENS)
		for (uint32_t s = 0; s < STREAMS; s++) {
			const uint16_t *steps;
			const uint8_t *codes = (const uint8_t *)k->base[s];

			if (!tile->sub[s].whole)
				continue;
			steps = i4_steps_of(&x->k, k->base[s]);

			halves_open(steps + d0, step);
			halves_open(steps + pad + d0, least);
			part_fetch(fetch, s, d0 / SUB_TOKENS, x->k_fetch);
			for (uint32_t d = d0; d < dim && d < d0 + SUB_TOKENS; d++)
				for (uint32_t j = 0; j < SUB_TOKENS; j += LANES)
					vec_store(to + d * ATTN_TILE + s * SUB_TOKENS + j,
						i4_vec(codes + (d / TILED_CODES_WORD * SUB_TOKENS + j) * 4,
							d % TILED_CODES_WORD, step[d - d0], least[d - d0]));
		}
	for (uint32_t s = 0; s < STREAMS; s++)
		if (!tile->sub[s].whole)
			rows_widen(x, &tile->sub[s], &x->k, head, s, to);
}

TARGET static void widen_v_i4(const struct tiled *x, const struct tile *tile, uint32_t head, const struct lanes *v,
	const struct fetch *fetch, float *to)
{
	const uint32_t dim = (uint32_t)attn_round_up(x->v.dim, TILED_PAD);
	const uint32_t groups = (uint32_t)tiled_i4_steps(x->v.dim, true);
	float step[SUB_TOKENS], least[SUB_TOKENS];

	for (uint32_t c = 0; c < dim; c += TILED_CHUNK) {
		const uint32_t n = tiled_v_row(x->v.dim, c);

		for (uint32_t s = 0; s < STREAMS; s++) {
			const uint16_t *steps;
			const uint8_t *codes;

			if (!tile->sub[s].whole)
				continue;
			steps = i4_steps_of(&x->v, v->base[s]) + c / TILED_CHUNK * TILED_TOKENS;
			codes = (const uint8_t *)v->base[s];

			halves_open(steps, step);
			halves_open(steps + groups, least);
			for (uint32_t d = 0; d < n; d += SUB_TOKENS)
				part_fetch(fetch, s, (c + d) / SUB_TOKENS, x->v_fetch);
			for (uint32_t t = 0; t < SUB_TOKENS; t++)
				for (uint32_t d = c; d < c + n; d += LANES)
					vec_store(to + (size_t)c * ATTN_TILE + (t * STREAMS + s) * n + (d - c),
						i4_vec(codes + (t / TILED_CODES_WORD * dim + d) * 4,
							t % TILED_CODES_WORD, step[t], least[t]));
		}
	}
	for (uint32_t s = 0; s < STREAMS; s++)
		if (!tile->sub[s].whole)
			rows_widen(x, &tile->sub[s], &x->v, head, s, to);
}

TARGET static void scores_wide(
	const struct tiled *x, const float *q, const struct lanes *k, struct soon *soon, bool one_stream, uint32_t r)
{
	scores_all(KVATTN_F32, true, x, q, k, NULL, soon, one_stream, r);
}

TARGET static void turns_wide(const struct tiled *x, const struct lanes *v, struct soon *soon, uint32_t h, uint32_t r)
{
	turns_all(KVATTN_F32, true, x, v, NULL, soon, h, r);
}

#define BY_TYPE(type, call, ...) \
	do { \
		if ((type) == KVATTN_F32) \
			call##_t32(__VA_ARGS__); \
		else if ((type) == KVATTN_F16) \
			call##_t16(__VA_ARGS__); \
		else if ((type) == KVATTN_BF16) \
			call##_tb16(__VA_ARGS__); \
		else if ((type) == KVATTN_FP8_E4M3) \
			call##_tf8(__VA_ARGS__); \
		else \
			call##_t8(__VA_ARGS__); \
	} while (0)

#if defined(TILED_BYTES)
#include "attn_bytes.h"
#include "attn_fours.h"
#else
static void bytes_queries(const struct work *w)
{
	(void)w;
}

static void bytes_scores(
	const struct tiled *x, uint32_t h, const struct lanes *k, const struct fetch *fetch, bool one_stream)
{
	(void)x, (void)h, (void)k, (void)fetch, (void)one_stream;
}

static void bytes_turns(const struct tiled *x, const struct lanes *v, const struct fetch *fetch, uint32_t h)
{
	(void)x, (void)v, (void)fetch, (void)h;
}

static void fours_queries(const struct work *w)
{
	(void)w;
}

static void fours_scores(
	const struct tiled *x, const struct tile *tile, uint32_t h, const struct lanes *k, const struct fetch *fetch)
{
	(void)x, (void)tile, (void)h, (void)k, (void)fetch;
}

static void fours_turns(
	const struct tiled *x, const struct tile *tile, uint32_t h, const struct lanes *v, const struct fetch *fetch)
{
	(void)x, (void)tile, (void)h, (void)v, (void)fetch;
}
#endif

#if defined(TILED_BYTES)
#include "attn_amx.h"
#else
static void amx_queries(const struct tiled *x)
{
	(void)x;
}

static void amx_begin(uint32_t rows)
{
	(void)rows;
}

static void amx_end(void)
{
}

static void amx_scores(
	const struct tiled *x, const struct tile *tile, uint32_t h, const struct lanes *k, const struct fetch *fetch)
{
	(void)x, (void)tile, (void)h, (void)k, (void)fetch;
}

static void amx_turns(
	const struct tiled *x, const struct tile *tile, uint32_t h, const struct lanes *v, const struct fetch *fetch)
{
	(void)x, (void)tile, (void)h, (void)v, (void)fetch;
}
#endif

/* ---- A step of one head ---- */

/* Scores of many rows: K is widened to f32 once for all of them, if it can be by the first of them. */
static void scores_many(const struct tiled *x, const struct tile *tile, uint32_t h, struct lanes *k,
	const struct fetch *fetch, struct soon *soon, bool one_stream)
{
	const float *q = x->w.q + (size_t)h * x->w.rows * x->w.k_pad;
	uint32_t r = x->w.rows >= KEY_ROWS ? KEY_ROWS : 1;

	if (x->k.type == KVATTN_I4) {
		widen_k_i4(x, tile, x->w.part->rows.head0 + h, k, fetch, x->w.k_wide);
		r = 0;
	} else {
		BY_TYPE(x->k.type, scores_first, x, q, k);
	}
	for (uint32_t s = 0; s < STREAMS; s++)
		k->base[s] = (const char *)(x->w.k_wide + s * SUB_TOKENS);
	scores_wide(x, q, k, soon, one_stream, r);
}

/* K that was widened as V, see wide_at(): a subtile's sixteen dims at a time, so that both stay near. */
TARGET static void keys_turn(const struct tiled *x)
{
	const uint32_t dim = (uint32_t)attn_round_up(x->v.dim, TILED_PAD);
	float *k = x->w.k_wide;

	for (uint32_t d = x->k.dim; d < dim; d++) /* only in V's padding */
		memset(k + (size_t)d * ATTN_TILE, 0, ATTN_TILE * sizeof(*k));
	for (uint32_t c = 0; c < dim; c += TILED_PAD) {
		const size_t step = (size_t)STREAMS * tiled_v_row(x->v.dim, c / TILED_CHUNK * TILED_CHUNK);

		for (uint32_t i = 0; i < STREAMS * 4 * SUB_VECS; i++) {
			const uint32_t s = i / (4 * SUB_VECS), d = c + i % 4 * 4, t = i / 4 % SUB_VECS * LANES;
			float *to[LANES]; /* of LANES tokens */
			vec in[4]; /* dims */

			to[0] = x->w.v_wide + tiled_v_at(KVATTN_F32, ATTN_TILE, x->v.dim, d, t * STREAMS + s);
			for (uint32_t n = 1; n < LANES; n++)
				to[n] = to[n - 1] + step;
			UNROLL for (uint32_t n = 0; n < 4; n++) in[n] = vec_load(k + wide_at(&x->k, s, t, d + n));
			squares_turn(in, to, 0);
		}
	}
}

/* Whether the first rows take in all of a step's values, so that they can widen them for the others. */
static bool first_see_all(const struct tiled *x)
{
	uint64_t seen = UINT64_MAX;

	if (x->w.rows < VALUE_ROWS || x->v.type == KVATTN_I4 || x->latent)
		return false;
	for (uint32_t r = 0; r < VALUE_ROWS; r++)
		seen &= x->w.mask[r];
	return seen == UINT64_MAX;
}

/* Values of many rows, likewise. */
static void turns_many(const struct tiled *x, const struct tile *tile, uint32_t h, struct lanes *v,
	const struct fetch *fetch, struct soon *soon)
{
	uint32_t r = 0;

	if (first_see_all(x)) {
		BY_TYPE(x->v.type, turns_first, x, v, h);
		r = VALUE_ROWS;
	} else if (x->latent) {
		keys_turn(x);
	} else if (x->v.type == KVATTN_I4) {
		widen_v_i4(x, tile, x->w.part->rows.head0 + h, v, fetch, x->w.v_wide);
	} else {
		BY_TYPE(x->v.type, widen_v, x, v, x->w.v_wide);
	}
	for (uint32_t s = 0; s < STREAMS; s++)
		v->base[s] = (const char *)x->w.v_wide;
	turns_wide(x, v, soon, h, r);
}

static void fetch_set(struct fetch *fetch, const struct tiled *x, const struct lanes *own, size_t own_bytes)
{
	const size_t ahead = x->ahead < own_bytes ? x->ahead : own_bytes;

	fetch->turn = own_bytes - ahead;
	for (uint32_t s = 0; s < STREAMS; s++) {
		fetch->own[s] = own->base[s] + ahead;
		fetch->next[s] -= fetch->turn;
	}
}

TARGET static void step_take(struct tiled *x, uint32_t i, uint32_t h, uint32_t next_step, uint32_t next_h)
{
	struct work *w = &x->w;
	const struct tile *tile = &x->tiles[i];
	const uint32_t head0 = w->part->rows.head0;
	const bool one_stream = !tile->sub[1].present && !tile->sub[2].present && !tile->sub[3].present;
	struct fetch fetch_k = {.far = x->ahead > TUNE_NEAR}, fetch_v = fetch_k;
	struct lanes k, v;

	lanes_open(x, tile, &x->k, head0 + h, w->k_copy, &k);
	v = k;
	if (!x->latent)
		lanes_open(x, tile, &x->v, head0 + h, w->v_copy, &v);
	for (uint32_t s = 0; s < STREAMS; s++) {
		if (v.scale[s]) /* wanted before the values */
			__builtin_prefetch(v.scale[s]);
		/* of a tile that is not whole, I4 lies in no one place: then what is asked for is there already */
		fetch_v.next[s] =
			stream_next(x, &x->k, next_step, head0 + next_h, s, k.base[s] ? k.base[s] : (const char *)w->q);
		fetch_k.next[s] = x->latent || x->step_ahead ? fetch_v.next[s]
				  : v.base[s]		     ? v.base[s]
							     : (const char *)w->q;
		if (x->step_ahead)
			fetch_v.next[s] = stream_next(
				x, &x->v, next_step, head0 + next_h, s, v.base[s] ? v.base[s] : (const char *)w->q);
	}
	if (x->k.type != KVATTN_I4 && (!w->widen || x->k_way == TILED_PAIRS))
		fetch_set(&fetch_k, x, &k, x->k_bytes);
	if (x->v.type != KVATTN_I4 && (!w->widen || x->v_way == TILED_PAIRS))
		fetch_set(&fetch_v, x, &v, x->v_bytes);
	if (x->k_way == TILED_PAIRS) {
		amx_scores(x, tile, h, &k, &fetch_k);
	} else if (x->k_way == TILED_CODES && x->k.type == KVATTN_I4) {
		fours_scores(x, tile, h, &k, &fetch_k);
	} else if (x->k_way == TILED_CODES) {
		bytes_scores(x, h, &k, w->widen ? NULL : &fetch_k, one_stream);
	} else if (w->widen) {
		struct soon soon = soon_open(x, &x->k, x->k_bytes, next_step, head0 + next_h, KEY_ROWS,
			(x->k.dim + SOON_STEP - 1) / SOON_STEP * (STREAMS / KEY_STREAMS));

		scores_many(x, tile, h, &k, &fetch_k, &soon, one_stream);
	} else {
		BY_TYPE(x->k.type, scores, x, w->q + (size_t)h * w->rows * w->k_pad, &k, &fetch_k, one_stream);
	}
	if (k.scale[0] && x->k_way != TILED_CODES)
		scores_scale(w, &k);
	if (w->part->weighs) {
		rows_mass(w, tile, h, w->seen + (size_t)i * w->part->rows.n_q, true);
		return;
	}
	rows_weigh(w, tile, h, w->seen + (size_t)i * w->part->rows.n_q, true);
	if (v.scale[0] && x->v_way != TILED_CODES) /* each weight by its token's scale; sums of weights are done */
		scores_scale(w, &v);
	if (x->v_way == TILED_PAIRS) {
		amx_turns(x, tile, h, &v, &fetch_v);
		return;
	}
	if (x->v_way == TILED_CODES && x->v.type == KVATTN_I4) {
		fours_turns(x, tile, h, &v, &fetch_v);
		return;
	}
	if (x->v_way == TILED_CODES) {
		bytes_turns(x, &v, w->widen ? NULL : &fetch_v, h);
		return;
	}
	for (uint32_t r = 0; r < w->rows; r++)
		if (w->mask[r] != UINT64_MAX)
			w->mask[r] = by_turns(w->mask[r]);
	if (w->widen) {
		struct soon soon = soon_open(x, &x->v, x->v_bytes, next_step, head0 + next_h, VALUE_ROWS,
			(x->v.dim + TILED_CHUNK - 1) / TILED_CHUNK * (SUB_TOKENS / 2));

		turns_many(x, tile, h, &v, &fetch_v, &soon);
	} else {
		BY_TYPE(x->v.type, turns, x, &v, &fetch_v, h);
	}
}

/* ---- A split ---- */

/* Large blocks: a head's tiles of a group one after the other, so that its sums stay near.  Small ones: head by head,
 * so that a block is read straight on.  A row's chain is the same. */
static void group_take(struct tiled *x, uint32_t first)
{
	const uint32_t n_heads = x->w.part->rows.n_heads, n = n_heads * GROUP_STEPS;
	const bool head_outer = x->w.part->call->geom.block_tokens >= STREAM_GAP;

	for (uint32_t j = 0; j < n; j++) {
		const uint32_t h = head_outer ? j / GROUP_STEPS : j % n_heads, next = j + 1;
		const uint32_t i = first + (head_outer ? j % GROUP_STEPS : j / n_heads);

		if (!x->sight[i])
			continue;
		if (next == n)
			step_take(x, i, h, first + GROUP_STEPS, 0);
		else if (head_outer)
			step_take(x, i, h, first + next % GROUP_STEPS, next / GROUP_STEPS);
		else
			step_take(x, i, h, first + next / n_heads, next % n_heads);
	}
}

/* Lines of @bytes for each sixteen of @dim dims. */
static size_t part_lines(size_t bytes, uint32_t dim)
{
	return (bytes / 64 * SUB_TOKENS + dim - 1) / dim;
}

/* @best: what the processor has */
static void tiled_part(const struct attn_part *part, enum tiled_way best)
{
	const struct kvattn_geom *geom = &part->call->geom;
	struct tiled x = {.k = geom_tensor_k(geom),
		.v = geom_tensor_v(geom),
		.ahead = part->call->ahead_bytes,
		.latent = geom_latent(geom)};

	if (x.latent)
		best = TILED_VECTORS;
	x.step_ahead = x.k.type == KVATTN_I4 && x.v.type == KVATTN_I4 && !x.latent;
	x.k_way = tiled_way(x.k.type, best);
	x.v_way = tiled_way(x.v.type, best);
	work_init(part, best, &x.w);
	if (x.k_way == TILED_PAIRS)
		amx_queries(&x);
	else if (x.k_way == TILED_CODES && x.k.type == KVATTN_I4)
		fours_queries(&x.w);
	else if (x.k_way == TILED_CODES)
		bytes_queries(&x.w);
	else
		queries_turn(&x.w);
	x.k_bytes = attn_round_up(tiled_bytes(x.k.type, x.k.dim, TILED_TOKENS, false), TILED_ALIGN);
	x.v_bytes = x.latent ? 0 : attn_round_up(tiled_bytes(x.v.type, x.v.dim, TILED_TOKENS, true), TILED_ALIGN);
	x.w.widen |= x.latent || (x.k.type == KVATTN_I4 && x.k_way == TILED_VECTORS) ||
		     (x.v.type == KVATTN_I4 && x.v_way == TILED_VECTORS);
	x.w.shorten = x.v_way == TILED_PAIRS;
	x.k_fetch = part_lines(x.latent || x.step_ahead ? x.k_bytes : x.v_bytes, x.k.dim);
	x.v_fetch = part_lines(x.step_ahead ? x.v_bytes : x.k_bytes, x.v.dim);
	tiled_find(&x);
	tiled_sight(&x);
	if (best == TILED_PAIRS)
		amx_begin(x.w.rows);
	for (uint32_t i = 0; i < SPLIT_STEPS; i += GROUP_STEPS)
		group_take(&x, i);
	if (best == TILED_PAIRS)
		amx_end();
	work_total(&x.w);
}

/* The instruction set that has this file's vectors and multiplies tiles in the @best way. */
#define TILED_ISA(id, best) \
	static void part_by_##id(const struct attn_part *part) \
	{ \
		if (part->call->geom.layout == KVATTN_TILED) \
			tiled_part(part, best); \
		else \
			tmpl_part(part); \
	} \
	static size_t scratch_by_##id(const struct attn_call *call, uint32_t rows_all, uint32_t rows) \
	{ \
		return scratch_layout(call, rows_all, rows, best, NULL, NULL); \
	} \
	const struct attn_isa attn_isa_##id = { \
		.name = #id, \
		.joins = true, \
		.scratch_bytes = scratch_by_##id, \
		.part = part_by_##id, \
		.store = tmpl_store, \
		.load = tmpl_load, \
	}
