/*
 * attn_tmpl.h - attention over one split for one instruction set with vectors; included once by each attn_<isa>.c
 *
 * The includer defines TARGET (the target attribute of every function), LANES, vec, KEY_ROWS and VALUE_ROWS /
 * VALUE_VECS (how many sums fit the registers), and the vec_*() functions used below.
 *
 * A tile of 64 positions is four subtiles of 16, read as four streams: index i = 4 * t + s is token t of subtile s.
 * That order holds for scores, masks and sums alike, so each step of the key pass takes one token of each stream and
 * its four scores lie side by side.  (One stream leaves half of the memory's speed unused; see README.md.)  For one KV
 * head and tile:
 *
 *	keys:    score[row][i], dot products of VALUE_ROWS rows at once with four keys
 *	softmax: mask, new maximum, weights into the same place
 *	values:  acc[row] += sum of weight[row][i] * value[i], in the order of i; hidden keys are stepped over
 *
 * Every result is one chain of operations of its own row: it does not matter which rows are worked on together.
 * Keys and values are read where they lie.  A subtile that is cut by a block's border or by the end is copied first,
 * and so is everything where a vector's length is no multiple of LANES (padded with zeros there), or many rows use it
 * (widened to f32 once).
 */
#include <math.h>
#include <string.h>

#include "attn.h"
#include "geom.h"
#include "tune.h"

#define STREAMS 4u
#define SUB_TOKENS 16u
#define INLINE TARGET static inline __attribute__((always_inline))
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL /* each unrolled access would be checked: minutes to compile */
#elif defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define WIDEN_ROWS 12u /* from this many rows on a tile is widened to f32 once instead of with each use */
#define TURN_ROWS 48u /* of rows: from so many on its keys are turned, too */
#define TURN_VECS (KEY_VECS / 2) /* vectors of turned keys at a time, of two lanes */
#define TURN_APART 16u /* see turned_floats() */
#define AMX_PARTS 2u /* see attn_amx.h */
#define AMX_PART_ROWS 8u /* rows in a tile, each with its parts */

/* Where subtile @s of tile @t begins in its split. */
#define SUB_POS(t, s) ((t)*ATTN_TILE + (s)*SUB_TOKENS)

/* Sixteen positions of the tile. */
struct sub {
	int64_t pos;
	uint32_t present; /* a bit for each position that has a key */
	bool whole; /* all of them, side by side in one block */
	const char *block; /* if whole */
	uint32_t token;
	uint32_t run; /* the first run that may reach into it */
};

struct tile {
	struct sub sub[STREAMS];
	bool any;
};

/* K or V of one head in one tile, as the passes read it. */
struct stream {
	const char *base[STREAMS]; /* token 0 of each subtile */
	size_t stride[STREAMS]; /* bytes from token to token */
};

/* What a pass asks for ahead of time: its own rows this many tokens on, and past its last ones the first of the next
 * pass. */
struct ahead {
	uint32_t tokens;
	uint32_t row_bytes; /* of the pass's own rows */
	const struct stream *next;
	uint32_t next_tokens;
	uint32_t next_bytes;
	uint32_t apart; /* tokens from what is asked for of one stream to that of the next; 0: the same of all */
	bool far; /* see ask() */
};

struct work {
	const struct attn_part *part;
	uint32_t k_pad, v_pad; /* dims rounded up to LANES */
	uint32_t rows; /* of one head */
	bool widen;
	bool shorten; /* weights to sixteen bits, see attn_amx.h */
	float *q; /* [heads][rows][k_pad] */
	float *sum; /* [heads][rows][LANES] */
	float *weight; /* [rows][ATTN_TILE]: scores, then weights */
	uint64_t *mask; /* [rows]: the keys that count, by index */
	uint64_t *seen; /* [n_q]: the keys in sight; TILED: [steps of a split][n_q] */
	char *k_copy, *v_copy; /* a tile of one head each */
	float *k_wide, *v_wide; /* TILED: the same as f32; rows: K turned, see keys_turned() */
	int8_t *q_digits; /* attn_bytes.h: queries as whole numbers */
	float *q_step; /* of what steps they are, by row */
	int32_t *q_less; /* [row][digit]: what their sums begin with */
	uint16_t *q_parts, *w_parts; /* attn_amx.h: queries and weights as parts of bf16 */
	char *k_rest, *v_finite; /* a step's last dims of K, V without what is not finite */
	float *product; /* of a tile of rows */
};

/* How K or V of a tile are multiplied. */
enum tiled_way {
	TILED_VECTORS, /* as f32 */
	TILED_CODES, /* I8 and I4: bytes with bytes, see attn_bytes.h */
	TILED_PAIRS, /* BF16: pairs with pairs, see attn_amx.h */
};

/* ---- Memory ---- */

/* Whether there is room for a tile as f32: many rows, codes of less than a byte, or V that is turned out of K. */
static bool tiled_wide(const struct attn_call *call, uint32_t rows)
{
	return call->geom.layout == KVATTN_TILED && (rows >= WIDEN_ROWS || call->geom.type_k == KVATTN_I4 ||
							    call->geom.type_v == KVATTN_I4 || geom_latent(&call->geom));
}

/* @best: the best way this processor has */
static enum tiled_way tiled_way(uint32_t type, enum tiled_way best)
{
	const enum tiled_way own = type == KVATTN_I8 || type == KVATTN_I4 ? TILED_CODES
				   : type == KVATTN_BF16		  ? TILED_PAIRS
									  : TILED_VECTORS;

	return own <= best ? own : TILED_VECTORS;
}

static size_t scratch_layout(const struct attn_call *call, uint32_t rows_all, uint32_t rows, enum tiled_way best,
	struct work *w, char *memory)
{
	const bool tiled = call->geom.layout == KVATTN_TILED;
	const size_t k_pad = attn_round_up(call->geom.dim_k, ATTN_PAD_FLOATS);
	const size_t v_pad = attn_round_up(call->geom.dim_v, ATTN_PAD_FLOATS);
	const size_t scales = ATTN_TILE * sizeof(float) + 4 * ATTN_ALIGN; /* of a tile, and each subtile padded */
	size_t at = 0;

#define TAKE(field, type, count) \
	do { \
		if (w) \
			w->field = (type *)(void *)(memory + at); \
		at += attn_round_up((count) * sizeof(type), ATTN_ALIGN); \
	} while (0)
	TAKE(q, float, rows_all *k_pad);
	TAKE(sum, float, (size_t)rows_all *LANES);
	TAKE(weight, float, (size_t)rows *ATTN_TILE);
	TAKE(mask, uint64_t, rows);
	TAKE(seen, uint64_t, (size_t)rows * (tiled ? ATTN_SPLIT / ATTN_TILE : 1));
	TAKE(k_copy, char, ATTN_TILE *k_pad * sizeof(float) + scales);
	TAKE(v_copy, char, ATTN_TILE *v_pad * sizeof(float) + scales);
	TAKE(k_wide, float, tiled_wide(call, rows) || rows >= TURN_ROWS ? ATTN_TILE * k_pad + LANES * TURN_APART : 0);
	TAKE(v_wide, float, tiled_wide(call, rows) ? ATTN_TILE *v_pad : 0);
	if (tiled && call->geom.type_k == KVATTN_I8) {
		TAKE(q_digits, int8_t, rows_all * k_pad * 2);
		TAKE(q_step, float, rows_all);
		TAKE(q_less, int32_t, (size_t)rows_all * 2);
	}
	if (tiled && call->geom.type_k == KVATTN_I4) {
		TAKE(q_digits, int8_t, rows_all * attn_round_up(k_pad, 64) * 2);
		TAKE(q_step, float, rows_all);
	}
	if (tiled && tiled_way(call->geom.type_k, best) == TILED_PAIRS) {
		/* each head's rows to whole tiles */
		TAKE(q_parts, uint16_t,
			(rows_all + AMX_PART_ROWS * (size_t)call->geom.n_kv_heads) * AMX_PARTS *
				attn_round_up(k_pad, 32));
		TAKE(k_rest, char, STREAMS * 1024);
	}
	if (tiled && tiled_way(call->geom.type_v, best) == TILED_PAIRS) {
		TAKE(w_parts, uint16_t, AMX_PART_ROWS * AMX_PARTS * ATTN_TILE);
		TAKE(v_finite, char, ATTN_TILE *v_pad * sizeof(uint16_t));
	}
	if (tiled && best == TILED_PAIRS)
		TAKE(product, float, AMX_PART_ROWS *AMX_PARTS *(v_pad > ATTN_TILE ? v_pad : ATTN_TILE));
#undef TAKE
	return at;
}

static void work_init(const struct attn_part *part, enum tiled_way best, struct work *w)
{
	const struct attn_call *call = part->call;
	const uint32_t rows = part->rows.n_q * call->group, rows_all = rows * part->rows.n_heads;

	*w = (struct work){
		.part = part,
		.k_pad = (uint32_t)attn_round_up(call->geom.dim_k, LANES),
		.v_pad = (uint32_t)attn_round_up(call->geom.dim_v, LANES),
		.rows = rows,
		.widen = rows >= WIDEN_ROWS,
	};
	scratch_layout(call, rows_all, rows, best, w, part->scratch);
	memset(part->state.acc, 0, (size_t)rows_all * call->acc_floats * sizeof(float));
	memset(w->sum, 0, (size_t)rows_all * LANES * sizeof(float));
	for (uint32_t r = 0; r < rows_all; r++)
		part->state.m[r] = -INFINITY;
}

static void work_load_queries(const struct work *w)
{
	const struct attn_part *part = w->part;
	const uint32_t dim_k = part->call->geom.dim_k, group = part->call->group;
	float *to = w->q;

	for (uint32_t h = 0; h < part->rows.n_heads; h++)
		for (uint32_t q = 0; q < part->rows.n_q; q++)
			for (uint32_t g = 0; g < group; g++, to += w->k_pad) {
				const size_t head = (size_t)(part->rows.head0 + h) * group + g;

				memcpy(to, part->seq->s->q + (part->rows.q0 + q) * part->seq->q_stride + head * dim_k,
					dim_k * sizeof(float));
				memset(to + dim_k, 0, (w->k_pad - dim_k) * sizeof(float));
			}
}

/* ---- Where the keys of a tile lie ---- */

/* The first run that ends past @pos. */
static uint32_t run_at(const struct attn_part *part, int64_t pos)
{
	uint32_t low = 0, high = part->n_runs;

	while (low < high) {
		const uint32_t mid = (low + high) / 2;

		if (part->runs[mid].pos + part->runs[mid].n > pos)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

static void sub_find(const struct attn_part *part, int64_t pos, struct sub *sub)
{
	const struct attn_run *run;

	*sub = (struct sub){.pos = pos, .run = run_at(part, pos)};
	run = part->runs + sub->run;
	if (sub->run < part->n_runs && run->pos <= pos && run->pos + run->n >= pos + SUB_TOKENS) {
		sub->present = (1u << SUB_TOKENS) - 1;
		sub->whole = true;
		sub->block = run->block;
		sub->token = run->token + (uint32_t)(pos - run->pos);
		return;
	}
	for (uint32_t i = sub->run; i < part->n_runs && part->runs[i].pos < pos + SUB_TOKENS; i++) {
		const int64_t first = part->runs[i].pos - pos, end = first + part->runs[i].n;

		sub->present |= (uint32_t)(attn_low_bits(end) & ~attn_low_bits(first)) & ((1u << SUB_TOKENS) - 1);
	}
}

static void tile_find(const struct attn_part *part, uint32_t t, struct tile *tile)
{
	tile->any = false;
	for (uint32_t s = 0; s < STREAMS; s++) {
		sub_find(part, part->split.pos + SUB_POS(t, s), &tile->sub[s]);
		tile->any |= tile->sub[s].present != 0;
	}
}

/* Bit t of @bits to bit 4 * t. */
static uint64_t spread(uint64_t bits)
{
	bits = (bits | bits << 24) & 0x000000ff000000ff;
	bits = (bits | bits << 12) & 0x000f000f000f000f;
	bits = (bits | bits << 6) & 0x0303030303030303;
	return (bits | bits << 3) & 0x1111111111111111;
}

static uint64_t tile_seen(const struct work *w, const struct tile *tile, uint32_t q)
{
	const int64_t p = w->part->seq->pos0 + (int64_t)(w->part->rows.q0 + q);
	uint64_t seen = 0;

	for (uint32_t s = 0; s < STREAMS; s++) {
		const struct sub *sub = &tile->sub[s];

		seen |= spread(sub->present & attn_seen(w->part->call, w->part->seq, p, sub->pos)) << s;
	}
	return seen;
}

/* What each query sees of the tile; whether any sees anything.  What first and last see whole, all see whole. */
static bool tile_sight(const struct work *w, const struct tile *tile)
{
	const uint32_t n_q = w->part->rows.n_q;
	bool whole;
	uint64_t any;

	w->seen[0] = tile_seen(w, tile, 0);
	w->seen[n_q - 1] = tile_seen(w, tile, n_q - 1);
	any = w->seen[0] | w->seen[n_q - 1];
	whole = w->seen[0] == UINT64_MAX && w->seen[n_q - 1] == UINT64_MAX && !w->part->seq->s->tree;
	for (uint32_t q = 1; q + 1 < n_q; q++) {
		w->seen[q] = whole ? UINT64_MAX : tile_seen(w, tile, q);
		any |= w->seen[q];
	}
	return any != 0;
}

/* ---- K or V of one head: in place, or a copy ---- */

struct tensor {
	uint64_t off, token_stride, head_stride;
	uint32_t dim, pad, type, elem;
};

static struct tensor tensor_k(const struct work *w)
{
	const struct kvattn_geom *g = &w->part->call->geom;

	return (struct tensor){g->k_off, g->k_token_stride, g->k_head_stride, g->dim_k, w->k_pad, g->type_k,
		kvattn_type_bytes(g->type_k)};
}

static struct tensor tensor_v(const struct work *w)
{
	const struct kvattn_geom *g = &w->part->call->geom;

	return (struct tensor){g->v_off, g->v_token_stride, g->v_head_stride, g->dim_v, w->v_pad, g->type_v,
		kvattn_type_bytes(g->type_v)};
}

TARGET static void row_copy(const struct tensor *x, const char *from, bool widen, char *to)
{
	if (widen)
		tmpl_load(x->type, (float *)(void *)to, from, x->dim);
	else
		memcpy(to, from, (size_t)x->dim * x->elem);
}

/* Rows without a key are zero: their scores are computed, then masked. */
TARGET static void sub_copy(
	const struct work *w, const struct sub *sub, const struct tensor *x, uint32_t head, bool widen, char *to)
{
	const struct attn_part *part = w->part;
	const size_t stride = (size_t)x->pad * (widen ? sizeof(float) : x->elem);

	if (sub->present != (1u << SUB_TOKENS) - 1 || x->pad != x->dim)
		memset(to, 0, SUB_TOKENS * stride);
	for (uint32_t i = sub->run; i < part->n_runs && part->runs[i].pos < sub->pos + SUB_TOKENS; i++) {
		const struct attn_run *run = &part->runs[i];
		const int64_t end =
			run->pos + run->n < sub->pos + SUB_TOKENS ? run->pos + run->n : sub->pos + SUB_TOKENS;

		for (int64_t pos = run->pos > sub->pos ? run->pos : sub->pos; pos < end; pos++) {
			const uint64_t token = run->token + (uint64_t)(pos - run->pos);

			row_copy(x, run->block + x->off + token * x->token_stride + head * x->head_stride, widen,
				to + (size_t)(pos - sub->pos) * stride);
		}
	}
}

TARGET static void stream_open(const struct work *w, const struct tile *tile, const struct tensor *x, uint32_t head,
	bool widen, char *copy, struct stream *stream)
{
	const size_t stride = (size_t)x->pad * (widen ? sizeof(float) : x->elem);

	for (uint32_t s = 0; s < STREAMS; s++) {
		const struct sub *sub = &tile->sub[s];

		if (sub->whole && x->pad == x->dim && !widen) {
			stream->base[s] = sub->block + x->off + sub->token * x->token_stride + head * x->head_stride;
			stream->stride[s] = x->token_stride;
			continue;
		}
		stream->base[s] = copy + s * SUB_TOKENS * stride;
		stream->stride[s] = stride;
		sub_copy(w, sub, x, head, widen, copy + s * SUB_TOKENS * stride);
	}
}

/* Only to prefetch from: where the next head's or tile's keys lie, as far as they are read in place. */
static void stream_peek(const struct work *w, const struct tile *tile, const struct tensor *x, uint32_t head,
	const struct stream *otherwise, struct stream *stream)
{
	*stream = *otherwise;
	if (!tile->any || w->widen)
		return;
	for (uint32_t s = 0; s < STREAMS; s++) {
		const struct sub *sub = &tile->sub[s];

		if (!sub->whole)
			continue;
		stream->base[s] = sub->block + x->off + sub->token * x->token_stride + head * x->head_stride;
		stream->stride[s] = x->token_stride;
	}
}

/* The next tile's K and V, asked for little by little where many rows work on this one. */
struct rows_soon {
	const struct tile *tile;
	const struct tensor *k, *v;
	uint32_t head;
};

/* The @i-th of @n parts, into the first-level cache: so few at a time find room in it. */
static void rows_ask(const struct rows_soon *soon, uint32_t i, uint32_t n)
{
	for (uint32_t j = 2 * ATTN_TILE * i / n; j < 2 * ATTN_TILE * (i + 1) / n && soon->tile->any; j++) {
		const struct tensor *x = j < ATTN_TILE ? soon->k : soon->v;
		const struct sub *sub = &soon->tile->sub[j / SUB_TOKENS % STREAMS];
		const char *row;

		if (!sub->whole)
			continue;
		row = sub->block + x->off + (sub->token + j % SUB_TOKENS) * x->token_stride +
		      soon->head * x->head_stride;
		for (uint32_t at = 0; at < x->dim * x->elem; at += 64)
			__builtin_prefetch(row + at);
	}
}

/* ---- Keys ---- */

INLINE vec row_vec(const int type, const char *row, size_t i)
{
	if (type == KVATTN_F32)
		return vec_load((const float *)(const void *)row + i);
	if (type == KVATTN_F16)
		return vec_load_f16((const uint16_t *)(const void *)row + i);
	if (type == KVATTN_FP8_E4M3)
		return vec_load_e4m3((const uint8_t *)row + i);
	return vec_load_bf16((const uint16_t *)(const void *)row + i);
}

INLINE uint32_t elem_bytes(const int type)
{
	return type == KVATTN_F32 ? 4 : type == KVATTN_I8 || type == KVATTN_FP8_E4M3 ? 1 : 2;
}

/* A line of each of @n streams.  @far: into the second-level cache, see TUNE_NEAR. */
INLINE void ask(const bool far, const char *const *from, const uint32_t n, size_t at)
{
	if (far)
		UNROLL for (uint32_t s = 0; s < n; s++) __builtin_prefetch(from[s] + at, 0, 2);
	else
		UNROLL for (uint32_t s = 0; s < n; s++) __builtin_prefetch(from[s] + at);
}

/* What was asked for @far ahead is there by now and wanted soon. */
INLINE void ask_first(const bool far, const char *const *from, const uint32_t n, size_t at)
{
	if (far)
		ask(false, from, n, at);
}

/* What is asked for of stream @s of the next pass where token @t's turn is. */
INLINE const char *next_row(const struct ahead *ahead, uint32_t s, uint32_t t)
{
	return ahead->next->base[s] + (t + s * ahead->apart) % SUB_TOKENS * ahead->next->stride[s];
}

/* @bytes of a row of each stream. */
INLINE void ask_rows(const bool far, const char *const row[STREAMS], uint32_t bytes)
{
	for (uint32_t at = 0; at < bytes; at += 64)
		ask(far, row, STREAMS, at);
}

/* Scores of @n_rows rows (a constant) with all 64 keys. */
INLINE void keys_take(const int type, const int n_rows, const float *q, const uint32_t dim, const struct stream *k,
	const struct ahead *ahead, float *score)
{
	const uint32_t elem = elem_bytes(type);

	for (uint32_t t = 0; t < SUB_TOKENS; t++) {
		const char *row[STREAMS], *soon[STREAMS];
		vec sum[KEY_ROWS][STREAMS];

		UNROLL for (uint32_t s = 0; s < STREAMS; s++)
		{
			row[s] = k->base[s] + t * k->stride[s];
			soon[s] = t + ahead->tokens < SUB_TOKENS ? row[s] + ahead->tokens * k->stride[s]
								 : next_row(ahead, s, t + ahead->tokens - SUB_TOKENS);
		}
		UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (uint32_t s = 0; s < STREAMS; s++) sum[r][s] =
			vec_zero();
		for (uint32_t d = 0; d < dim; d += LANES) {
			vec key[STREAMS];

			if (d * elem % 64 == 0)
				ask(ahead->far, soon, STREAMS, d * elem);
			UNROLL for (uint32_t s = 0; s < STREAMS; s++) key[s] = row_vec(type, row[s], d);
			UNROLL for (int r = 0; r < n_rows; r++)
			{
				const vec query = vec_load(q + r * dim + d);

				UNROLL for (uint32_t s = 0; s < STREAMS; s++) sum[r][s] =
					vec_fma(query, key[s], sum[r][s]);
			}
		}
		UNROLL for (int r = 0; r < n_rows; r++)
			vec_store_sums(score + r * ATTN_TILE + t * STREAMS, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
	}
}

INLINE void keys_all(
	const int type, const struct work *w, const float *q, const struct stream *k, const struct ahead *ahead)
{
	uint32_t r = 0;

	for (; r + KEY_ROWS <= w->rows; r += KEY_ROWS)
		keys_take(type, KEY_ROWS, q + r * w->k_pad, w->k_pad, k, ahead, w->weight + r * ATTN_TILE);
	if (KEY_ROWS > 2 && r + 2 <= w->rows) {
		keys_take(type, 2, q + r * w->k_pad, w->k_pad, k, ahead, w->weight + r * ATTN_TILE);
		r += 2;
	}
	for (; r < w->rows; r++)
		keys_take(type, 1, q + r * w->k_pad, w->k_pad, k, ahead, w->weight + r * ATTN_TILE);
}

/* ---- Keys for many rows: turned, so that no sum needs adds across lanes ---- */

typedef float square __attribute__((vector_size(16), may_alias, aligned(4))); /* a row of four by four */

/* The same of each four lanes; past LANES: of the second vector. */
#define QUARTER(k, a, b, c, d) 4 * (k) + (a), 4 * (k) + (b), 4 * (k) + (c), 4 * (k) + (d)
#define BY_QUARTER(...) QUARTER(0, __VA_ARGS__)
#if LANES > 4
#undef BY_QUARTER
#define BY_QUARTER(...) QUARTER(0, __VA_ARGS__), QUARTER(1, __VA_ARGS__)
#endif
#if LANES > 8
#undef BY_QUARTER
#define BY_QUARTER(...) \
	QUARTER(0, __VA_ARGS__), QUARTER(1, __VA_ARGS__), QUARTER(2, __VA_ARGS__), QUARTER(3, __VA_ARGS__)
#endif

/* Four rows of squares to their columns: lane l of them goes to to[l] + @at. */
INLINE void squares_turn(const vec in[4], float *const to[LANES], size_t at)
{
	vec low[2], high[2];

	UNROLL for (uint32_t i = 0; i < 2; i++)
	{
		low[i] =
			__builtin_shufflevector(in[2 * i], in[2 * i + 1], BY_QUARTER(0, (int)LANES, 1, (int)LANES + 1));
		high[i] = __builtin_shufflevector(
			in[2 * i], in[2 * i + 1], BY_QUARTER(2, (int)LANES + 2, 3, (int)LANES + 3));
	}
	UNROLL for (uint32_t i = 0; i < 4; i++)
	{
		const vec *half = i < 2 ? low : high;
		const vec a = __builtin_shufflevector(half[0], half[1], BY_QUARTER(0, 1, (int)LANES, (int)LANES + 1));
		const vec b =
			__builtin_shufflevector(half[0], half[1], BY_QUARTER(2, 3, (int)LANES + 2, (int)LANES + 3));
		const vec out = i % 2 ? b : a;

#define SQUARE_STORE(k) \
	if (4 * (k) < LANES) \
	*(square *)(void *)(to[4 * (k) % LANES + i] + at) = \
		__builtin_shufflevector(out, out, QUARTER(4 * (k) < LANES ? (k) : 0, 0, 1, 2, 3))
		SQUARE_STORE(0);
		SQUARE_STORE(1);
		SQUARE_STORE(2);
		SQUARE_STORE(3);
#undef SQUARE_STORE
	}
}

/* From lane to lane of turned keys: a line more than they take, or those of all lanes, which are written by turns, would
 * want the same few places of a first-level cache. */
static size_t turned_floats(uint32_t k_pad)
{
	return (size_t)k_pad / LANES * ATTN_TILE + TURN_APART;
}

/* A tile's keys, as f32, to w->k_wide: [lane, in the order of sums][dims of it][64] */
INLINE void keys_turn_rows(const int type, const struct work *w, const struct stream *k)
{
	const size_t of_lane = turned_floats(w->k_pad);
	float *lane_at[LANES];

	for (uint32_t i = 0; i < LANES; i++)
		lane_at[sum_lanes[i]] = w->k_wide + i * of_lane;
	for (uint32_t d = 0; d < w->k_pad; d += LANES)
		for (uint32_t t = 0; t < SUB_TOKENS; t++) {
			vec in[STREAMS]; /* token t of each */

			UNROLL for (uint32_t s = 0; s < STREAMS; s++) in[s] =
				row_vec(type, k->base[s] + t * k->stride[s], d);
			squares_turn(in, lane_at, d / LANES * ATTN_TILE + t * STREAMS);
		}
}

/* Two lanes of the dot products, each a chain of its own, then their sum: @n_rows rows (a constant) with TURN_VECS vectors
 * of keys. */
INLINE void lanes_take(const int n_rows, const float *q, const uint8_t lanes[2], uint32_t k_pad, const float *k,
	vec sum[KEY_ROWS][TURN_VECS])
{
	const float *const query[2] = {q + lanes[0], q + lanes[1]};
	const size_t apart = turned_floats(k_pad);
	vec lane[2][KEY_ROWS][TURN_VECS];

	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (uint32_t j = 0; j < TURN_VECS; j++) lane[0][r][j] =
		lane[1][r][j] = vec_zero();
	for (uint32_t d = 0; d < k_pad; d += LANES, k += ATTN_TILE)
		UNROLL for (uint32_t l = 0; l < 2; l++)
		{
			vec key[TURN_VECS];

			UNROLL for (uint32_t j = 0; j < TURN_VECS; j++) key[j] = vec_load(k + l * apart + j * LANES);
			UNROLL for (int r = 0; r < n_rows; r++)
			{
				const vec by = vec_set1(query[l][(size_t)r * k_pad + d]);

				UNROLL for (uint32_t j = 0; j < TURN_VECS; j++) lane[l][r][j] =
					vec_fma(by, key[j], lane[l][r][j]);
			}
		}
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (uint32_t j = 0; j < TURN_VECS; j++) sum[r][j] =
		vec_add(lane[0][r][j], lane[1][r][j]);
}

/* Scores of @n_rows rows (a constant) with TURN_VECS vectors of keys.  Lanes are added up in the order of
 * vec_store_sums(): the same bits.  All written out: branches on what waits for its other half, missed, cost a seventh of
 * the products. */
INLINE void keys_take_turned(const int n_rows, const struct work *w, const float *q, const float *k, float *score)
{
	vec half[4][KEY_ROWS][TURN_VECS]; /* of 2, 4 and 8 lanes, until the other half is there */

	UNROLL for (uint32_t pair = 0; pair < LANES / 2; pair++, k += 2 * turned_floats(w->k_pad))
	{
		vec sum[KEY_ROWS][TURN_VECS];
		uint32_t level = 0;

		lanes_take(n_rows, q, sum_lanes + 2 * pair, w->k_pad, k, sum);
		UNROLL for (; pair >> level & 1; level++) UNROLL for (int r = 0; r < n_rows; r++)
			UNROLL for (uint32_t j = 0; j < TURN_VECS; j++) sum[r][j] =
				vec_add(half[level][r][j], sum[r][j]);
		UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (uint32_t j = 0; j < TURN_VECS; j++)
			half[level][r][j] = sum[r][j];
	}
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (uint32_t j = 0; j < TURN_VECS; j++)
		vec_store(score + r * (int)ATTN_TILE + j * LANES, half[__builtin_ctz(LANES / 2)][r][j]);
}

TARGET static void keys_turned(const struct work *w, const float *q, const struct rows_soon *soon)
{
	uint32_t r = 0;

	for (; r + KEY_ROWS <= w->rows; r += KEY_ROWS) {
		rows_ask(soon, r / KEY_ROWS, w->rows / KEY_ROWS);
		for (uint32_t i = 0; i < ATTN_TILE; i += TURN_VECS * LANES)
			keys_take_turned(KEY_ROWS, w, q + (size_t)r * w->k_pad, w->k_wide + i,
				w->weight + (size_t)r * ATTN_TILE + i);
	}
	for (; r < w->rows; r++)
		for (uint32_t i = 0; i < ATTN_TILE; i += TURN_VECS * LANES)
			keys_take_turned(
				1, w, q + (size_t)r * w->k_pad, w->k_wide + i, w->weight + (size_t)r * ATTN_TILE + i);
}

/* ---- Softmax ---- */

/* exp(x) for x <= 88, within 2 ulp; below -87 zero: such a weight is nothing beside the largest one, which is 1.
 * Constants of the Cephes library (S. Moshier): ln 2 in two parts, then a polynomial on half of it to either side. */
INLINE vec exp_vec(vec x)
{
	const vec least = vec_set1(-87.0f), bounded = vec_max(least, x); /* the second operand if NaN: stays NaN */
	const vec n = vec_round(vec_mul(bounded, vec_set1(1.44269504088896341f)));
	vec r = vec_fma(n, vec_set1(-0.693359375f), bounded), y;

	r = vec_fma(n, vec_set1(2.12194440e-4f), r);
	y = vec_fma(vec_set1(1.9875691500e-4f), r, vec_set1(1.3981999507e-3f));
	y = vec_fma(y, r, vec_set1(8.3334519073e-3f));
	y = vec_fma(y, r, vec_set1(4.1665795894e-2f));
	y = vec_fma(y, r, vec_set1(1.6666665459e-1f));
	y = vec_fma(y, r, vec_set1(5.0000001201e-1f));
	y = vec_add(vec_fma(y, vec_mul(r, r), r), vec_set1(1.0f));
	return vec_zero_below(vec_scale2(y, n), x, least);
}

/* tanh(x): an odd polynomial near zero (Cephes), where 1 - 2 / (e^2x + 1) would cancel; that elsewhere. */
INLINE vec tanh_vec(vec x)
{
	const vec a = vec_abs(x), b = vec_min(vec_set1(20.0f), a), xx = vec_mul(x, x);
	const vec far =
		vec_sub(vec_set1(1.0f), vec_div(vec_set1(2.0f), vec_add(exp_vec(vec_add(b, b)), vec_set1(1.0f))));
	vec near = vec_fma(vec_set1(-5.70498872745e-3f), xx, vec_set1(2.06390887954e-2f));

	near = vec_fma(near, xx, vec_set1(-5.37397155531e-2f));
	near = vec_fma(near, xx, vec_set1(1.33314422036e-1f));
	near = vec_fma(near, xx, vec_set1(-3.33332819422e-1f));
	near = vec_fma(vec_mul(near, xx), x, x);
	return vec_choose_below(a, vec_set1(0.625f), near, vec_copysign(far, x));
}

/* What a row's scores go through before the mask. */
struct bend {
	float scale, softcap, slope;
	const float *distance; /* [ATTN_TILE] from position 0 of the tile's first subtile, negative; NULL: no bias */
	float to_tile; /* p - that position */
};

INLINE vec bend_vec(const struct bend *bend, vec dot, uint32_t i)
{
	vec z = vec_mul(dot, vec_set1(bend->scale));

	if (bend->softcap > 0)
		z = vec_mul(vec_set1(bend->softcap), tanh_vec(vec_div(z, vec_set1(bend->softcap))));
	if (bend->distance)
		z = vec_fma(vec_set1(-bend->slope), vec_sub(vec_set1(bend->to_tile), vec_load(bend->distance + i)), z);
	return z;
}

INLINE void row_shrink(float *acc, uint32_t n, float *sum, float from, float to)
{
	const vec shrink = exp_vec(vec_set1(from - to));

	for (uint32_t d = 0; d < n; d += LANES)
		vec_store(acc + d, vec_mul(vec_load(acc + d), shrink));
	vec_store(sum, vec_mul(vec_load(sum), shrink));
}

/* Scores to weights, in place, of sixteen bits if @shorten; returns the keys that count: those of @seen whose score is not minus infinity. */
INLINE uint64_t row_weigh(const struct bend *bend, float *z, uint64_t seen, bool shorten, float *m, float *sum,
	float *acc, uint32_t acc_floats)
{
	const vec hidden = vec_set1(-INFINITY);
	vec x[ATTN_TILE / LANES], top = hidden, total;
	uint64_t counts = 0;
	float best;

	UNROLL for (uint32_t i = 0; i < ATTN_TILE / LANES; i++)
	{
		x[i] = bend_vec(bend, vec_load(z + i * LANES), i * LANES);
		x[i] = vec_keep(x[i], seen >> (i * LANES), hidden);
		counts |= vec_differ(x[i], hidden) << (i * LANES);
		top = vec_max(x[i], top); /* in this order: where x is NaN what was there stays */
	}
	if (!counts)
		return 0;
	best = vec_top(top);
	if (best == -INFINITY) /* no number among what counts: that is no row without keys */
		best = NAN;
	if (!(best <= *m)) {
		if (*m != -INFINITY)
			row_shrink(acc, acc_floats, sum, *m, best);
		*m = best;
	}
	total = vec_load(sum);
	UNROLL for (uint32_t i = 0; i < ATTN_TILE / LANES; i++)
	{
		vec weight = exp_vec(vec_sub(x[i], vec_set1(*m)));

		if (shorten)
			weight = vec_short(weight);
		total = vec_add(total, weight);
		vec_store(z + i * LANES, weight);
	}
	vec_store(sum, total);
	return counts;
}

/* Where score @i of a tile comes from.  @by_position: scores lie by stream, then token, else by token, then stream. */
static uint32_t score_stream(uint32_t i, bool by_position)
{
	return by_position ? i / SUB_TOKENS : i % STREAMS;
}

static uint32_t score_token(uint32_t i, bool by_position)
{
	return by_position ? i % SUB_TOKENS : i / STREAMS;
}

/* What holds for all rows; @distance: room for a tile's. */
TARGET static struct bend bend_open(const struct work *w, const struct tile *tile, bool by_position, float *distance)
{
	const struct attn_call *call = w->part->call;
	struct bend bend = {.scale = w->part->seq->scale, .softcap = call->opts.softcap};

	if (!call->opts.alibi_slopes)
		return bend;
	for (uint32_t i = 0; i < ATTN_TILE; i++)
		distance[i] = (float)(tile->sub[score_stream(i, by_position)].pos - tile->sub[0].pos +
				      score_token(i, by_position));
	bend.distance = distance;
	return bend;
}

TARGET static void bend_row(const struct work *w, const struct tile *tile, uint32_t h, uint32_t r, struct bend *bend)
{
	const struct attn_part *part = w->part;
	const uint32_t group = part->call->group, query = r / group;

	if (!bend->distance)
		return;
	bend->slope = part->call->opts.alibi_slopes[(part->rows.head0 + h) * group + r % group];
	bend->to_tile =
		(float)(attn_part_seq(part, query)->pos0 + (int64_t)attn_part_row(part, query) - tile->sub[0].pos);
}

/* @seen: by query */
TARGET static void rows_weigh(
	const struct work *w, const struct tile *tile, uint32_t h, const uint64_t *seen, bool by_position)
{
	const struct attn_part *part = w->part;
	const struct attn_call *call = part->call;
	float distance[ATTN_TILE];
	struct bend bend = bend_open(w, tile, by_position, distance);

	for (uint32_t r = 0; r < w->rows; r++) {
		const uint32_t at = h * w->rows + r;

		bend_row(w, tile, h, r, &bend);
		w->mask[r] = row_weigh(&bend, w->weight + (size_t)r * ATTN_TILE, seen[r / call->group], w->shorten,
			&part->state.m[at], w->sum + (size_t)at * LANES,
			part->state.acc + (size_t)at * call->acc_floats, call->acc_floats);
	}
}

/* ---- Mass ---- */

/* The mass of subtile @s's keys, in the order of their scores, taken out or put back. */
static void sub_mass_move(const struct attn_part *part, const struct sub *sub, uint32_t s, bool by_position,
	float *mass, float *held, bool back)
{
	const struct attn_run *run = part->runs + sub->run;
	const uint32_t first = by_position ? s * SUB_TOKENS : s, step = by_position ? 1 : STREAMS;

	for (uint32_t t = 0; t < SUB_TOKENS; t++) {
		const int64_t pos = sub->pos + t;
		float *key;

		if (!back)
			held[first + t * step] = 0;
		if (!(sub->present >> t & 1))
			continue;
		while (run->pos + run->n <= pos)
			run++;
		key = mass + run->key + (uint64_t)(pos - run->pos);
		if (back)
			*key = held[first + t * step];
		else
			held[first + t * step] = *key;
	}
}

static void mass_move(
	const struct attn_part *part, const struct tile *tile, bool by_position, float *mass, float *held, bool back)
{
	for (uint32_t s = 0; s < STREAMS; s++) {
		const struct sub *sub = &tile->sub[s];
		const struct attn_run *run = part->runs + sub->run;
		float *keys;

		if (!by_position || sub->present != (1u << SUB_TOKENS) - 1 ||
			run->pos + run->n < sub->pos + SUB_TOKENS) {
			sub_mass_move(part, sub, s, by_position, mass, held, back);
			continue;
		}
		keys = mass + run->key + (uint64_t)(sub->pos - run->pos);
		if (back)
			memcpy(keys, held + s * SUB_TOKENS, SUB_TOKENS * sizeof(float));
		else
			memcpy(held + s * SUB_TOKENS, keys, SUB_TOKENS * sizeof(float));
	}
}

/* Row after row adds what it weighs the keys with: the order of sums is the rows', however they are cut. */
TARGET static void rows_mass(
	const struct work *w, const struct tile *tile, uint32_t h, const uint64_t *seen, bool by_position)
{
	const struct attn_part *part = w->part;
	const uint32_t group = part->call->group, head = part->rows.head0 + h;
	float *mass = part->seq->s->mass + head * part->seq->mass_stride, distance[ATTN_TILE], held[ATTN_TILE];
	struct bend bend = bend_open(w, tile, by_position, distance);

	mass_move(part, tile, by_position, mass, held, false);
	for (uint32_t r = 0; r < w->rows; r++) {
		const float lse = attn_row_lse(part, r / group, head * group + r % group);

		bend_row(w, tile, h, r, &bend);
		for (uint32_t i = 0; i < ATTN_TILE && lse != -INFINITY; i += LANES) {
			const vec z = bend_vec(&bend, vec_load(w->weight + (size_t)r * ATTN_TILE + i), i);
			const vec weight = exp_vec(vec_sub(z, vec_set1(lse)));

			vec_store(held + i,
				vec_add(vec_load(held + i), vec_keep(weight, seen[r / group] >> i, vec_zero())));
		}
	}
	mass_move(part, tile, by_position, mass, held, true);
}

/* ---- Values ---- */

/* The tile's own values in the pass over the first dims, the next keys in the pass over the last ones. */
INLINE void values_prefetch(const struct stream *v, const struct ahead *ahead, uint32_t t, bool first, bool last)
{
	const uint32_t own = t + ahead->tokens, next = t + ahead->next_tokens - SUB_TOKENS;
	const char *row[STREAMS];

	if (first && own < SUB_TOKENS) {
		UNROLL for (uint32_t s = 0; s < STREAMS; s++) row[s] = v->base[s] + own * v->stride[s];
		ask_rows(ahead->far, row, ahead->row_bytes);
	}
	if (last && next < SUB_TOKENS) {
		UNROLL for (uint32_t s = 0; s < STREAMS; s++) row[s] = next_row(ahead, s, next);
		ask_rows(ahead->far, row, ahead->next_bytes);
	}
}

/* @n_rows rows take in LANES * @n_vecs dims (both constants) of all values, or of those in @mask. */
INLINE void values_take(const int type, const int n_rows, const int n_vecs, const bool all, uint64_t mask,
	const float *weight, const struct stream *v, const struct ahead *ahead, uint32_t dim0, uint32_t dim, float *acc,
	size_t acc_stride)
{
	vec sum[VALUE_ROWS][VALUE_VECS];

	/* A sum of its own for the tile: a long sum that takes in values one by one would round each to its own coarse
	 * grid. */
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int j = 0; j < n_vecs; j++) sum[r][j] = vec_zero();
#define VALUE_STEP(t, s) \
	do { \
		const char *row = v->base[s] + (t)*v->stride[s]; \
		vec value[VALUE_VECS]; \
		UNROLL for (int j = 0; j < n_vecs; j++) value[j] = row_vec(type, row, dim0 + j * LANES); \
		UNROLL for (int r = 0; r < n_rows; r++) \
		{ \
			const vec by = vec_set1(weight[r * ATTN_TILE + (t)*STREAMS + (s)]); \
			UNROLL for (int j = 0; j < n_vecs; j++) sum[r][j] = vec_fma(by, value[j], sum[r][j]); \
		} \
	} while (0)
	if (all) {
		for (uint32_t t = 0; t < SUB_TOKENS; t++) {
			if (ahead)
				values_prefetch(v, ahead, t, dim0 == 0, dim0 + (size_t)n_vecs * LANES >= dim);
			UNROLL for (uint32_t s = 0; s < STREAMS; s++) VALUE_STEP(t, s);
		}
	} else {
		for (; mask; mask &= mask - 1) {
			const uint32_t i = (uint32_t)__builtin_ctzll(mask);

			VALUE_STEP(i / STREAMS, i % STREAMS);
		}
	}
#undef VALUE_STEP
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int j = 0; j < n_vecs; j++) vec_store(
		acc + r * acc_stride + j * LANES, vec_add(vec_load(acc + r * acc_stride + j * LANES), sum[r][j]));
}

/* All dims of @n_rows rows that count the same keys. */
INLINE void values_dims(const int type, const int n_rows, const bool all, uint64_t mask, const float *weight,
	const struct stream *v, const struct ahead *ahead, uint32_t dim, float *acc, size_t acc_stride)
{
	uint32_t d = 0;

	for (; d + VALUE_VECS * LANES <= dim; d += VALUE_VECS * LANES)
		values_take(type, n_rows, VALUE_VECS, all, mask, weight, v, ahead, d, dim, acc + d, acc_stride);
	for (; d < dim; d += LANES)
		values_take(type, n_rows, 1, all, mask, weight, v, ahead, d, dim, acc + d, acc_stride);
}

INLINE void values_rows(const int type, const bool all, uint32_t n_rows, uint64_t mask, const float *weight,
	const struct stream *v, const struct ahead *ahead, uint32_t dim, float *acc, size_t acc_stride)
{
	for (; n_rows >= VALUE_ROWS; n_rows -= VALUE_ROWS) {
		values_dims(type, VALUE_ROWS, all, mask, weight, v, ahead, dim, acc, acc_stride);
		weight += VALUE_ROWS * ATTN_TILE;
		acc += VALUE_ROWS * acc_stride;
	}
	if (n_rows >= 2) {
		values_dims(type, 2, all, mask, weight, v, ahead, dim, acc, acc_stride);
		weight += 2 * ATTN_TILE;
		acc += 2 * acc_stride;
	}
	if (n_rows % 2)
		values_dims(type, 1, all, mask, weight, v, ahead, dim, acc, acc_stride);
}

INLINE void values_all(
	const int type, const struct work *w, const struct stream *v, const struct ahead *ahead, uint32_t h)
{
	const size_t acc_stride = w->part->call->acc_floats;
	float *acc = w->part->state.acc + (size_t)h * w->rows * acc_stride;
	uint32_t r = 0, n;

	for (; r < w->rows; r += n) {
		const uint64_t mask = w->mask[r];

		for (n = 1; r + n < w->rows && w->mask[r + n] == mask; n++)
			;
		if (mask == UINT64_MAX)
			values_rows(type, true, n, mask, w->weight + (size_t)r * ATTN_TILE, v, ahead, w->v_pad,
				acc + r * acc_stride, acc_stride);
		else if (mask)
			values_rows(type, false, n, mask, w->weight + (size_t)r * ATTN_TILE, v, ahead, w->v_pad,
				acc + r * acc_stride, acc_stride);
	}
}

/* ---- One copy of each pass for each type ---- */

#define PASSES(name, type) \
	TARGET static void keys_##name( \
		const struct work *w, const float *q, const struct stream *k, const struct ahead *ahead) \
	{ \
		keys_all(type, w, q, k, ahead); \
	} \
	TARGET static void keys_turn_##name(const struct work *w, const struct stream *k) \
	{ \
		keys_turn_rows(type, w, k); \
	} \
	TARGET static void values_##name( \
		const struct work *w, const struct stream *v, const struct ahead *ahead, uint32_t h) \
	{ \
		values_all(type, w, v, ahead, h); \
	}

PASSES(f32, KVATTN_F32)
PASSES(f16, KVATTN_F16)
PASSES(bf16, KVATTN_BF16)
PASSES(f8, KVATTN_FP8_E4M3)

static void keys_of(
	uint32_t type, const struct work *w, const float *q, const struct stream *k, const struct ahead *ahead)
{
	if (w->widen || type == KVATTN_F32)
		keys_f32(w, q, k, ahead);
	else if (type == KVATTN_F16)
		keys_f16(w, q, k, ahead);
	else if (type == KVATTN_FP8_E4M3)
		keys_f8(w, q, k, ahead);
	else
		keys_bf16(w, q, k, ahead);
}

static void keys_turn_of(uint32_t type, const struct work *w, const struct stream *k)
{
	if (type == KVATTN_F32)
		keys_turn_f32(w, k);
	else if (type == KVATTN_F16)
		keys_turn_f16(w, k);
	else if (type == KVATTN_FP8_E4M3)
		keys_turn_f8(w, k);
	else
		keys_turn_bf16(w, k);
}

static void values_of(
	uint32_t type, const struct work *w, const struct stream *v, const struct ahead *ahead, uint32_t h)
{
	if (w->widen || type == KVATTN_F32)
		values_f32(w, v, ahead, h);
	else if (type == KVATTN_F16)
		values_f16(w, v, ahead, h);
	else if (type == KVATTN_FP8_E4M3)
		values_f8(w, v, ahead, h);
	else
		values_bf16(w, v, ahead, h);
}

/* ---- A split ---- */

static uint32_t ahead_tokens(const struct work *w, uint32_t row_bytes)
{
	const uint32_t n = w->part->call->ahead_bytes / row_bytes;

	return n < 1 ? 1 : n < SUB_TOKENS ? n : SUB_TOKENS;
}

/* Where a whole pass is asked for ahead, and a head's rows lie one behind the other, so that four streams are at the same
 * place of four pages: each asks for another quarter. */
static uint32_t rows_apart(const struct work *w, const struct tensor *x, uint32_t tokens)
{
	const bool whole = w->part->call->ahead_bytes > TUNE_NEAR && tokens == SUB_TOKENS;

	return whole && x->token_stride == (size_t)x->dim * x->elem ? SUB_TOKENS / STREAMS : 0;
}

static void tile_take(const struct work *w, const struct tile *tile, const struct tile *next)
{
	const struct tensor tk = tensor_k(w), tv = tensor_v(w);
	const uint32_t n_heads = w->part->rows.n_heads, head0 = w->part->rows.head0;
	const uint32_t k_bytes = tk.dim * tk.elem, v_bytes = tv.dim * tv.elem;
	const uint32_t k_tokens = ahead_tokens(w, k_bytes), v_tokens = ahead_tokens(w, v_bytes);
	const bool far = w->part->call->ahead_bytes > TUNE_NEAR, turned = w->rows >= TURN_ROWS;

	for (uint32_t h = 0; h < n_heads; h++) {
		const bool last = h + 1 == n_heads;
		struct stream k, v, soon;
		const struct ahead ahead_k = {
			k_tokens, k_bytes, &v, v_tokens, v_bytes, rows_apart(w, &tv, v_tokens), far};
		const struct ahead ahead_v = {
			v_tokens, v_bytes, &soon, k_tokens, k_bytes, rows_apart(w, &tk, k_tokens), far};
		const struct rows_soon rows_soon = {last ? next : tile, &tk, &tv, last ? head0 : head0 + h + 1};
		const float *q = w->q + (size_t)h * w->rows * w->k_pad;

		stream_open(w, tile, &tk, head0 + h, w->widen && !turned, w->k_copy, &k);
		stream_open(w, tile, &tv, head0 + h, w->widen, w->v_copy, &v);
		stream_peek(w, rows_soon.tile, &tk, rows_soon.head, &k, &soon);
		if (turned) {
			keys_turn_of(tk.type, w, &k);
			keys_turned(w, q, &rows_soon);
		} else {
			keys_of(tk.type, w, q, &k, &ahead_k);
		}
		if (w->part->weighs) {
			rows_mass(w, tile, h, w->seen, false);
			continue;
		}
		rows_weigh(w, tile, h, w->seen, false);
		values_of(tv.type, w, &v, w->widen ? NULL : &ahead_v, h);
	}
}

/* The lanes of each row's sum, added up. */
TARGET static void work_total(const struct work *w)
{
	const uint32_t rows_all = w->rows * w->part->rows.n_heads;

	for (uint32_t r = 0; r < rows_all; r++)
		w->part->state.l[r] = vec_total(vec_load(w->sum + (size_t)r * LANES));
}

static void tmpl_part(const struct attn_part *part)
{
	struct tile tiles[2];
	struct work w;

	work_init(part, TILED_VECTORS, &w);
	work_load_queries(&w);
	tile_find(part, 0, &tiles[0]);
	for (uint32_t t = 0; t < ATTN_SPLIT / ATTN_TILE; t++) {
		struct tile *tile = &tiles[t % 2], *next = &tiles[(t + 1) % 2];

		*next = (struct tile){0};
		if (t + 1 < ATTN_SPLIT / ATTN_TILE)
			tile_find(part, t + 1, next);
		if (tile->any && tile_sight(&w, tile))
			tile_take(&w, tile, next);
	}
	work_total(&w);
}
