/*
 * attn_fours.h - I4 in TILED by products of bytes, for processors with VNNI and VBMI; included by attn_tiled.h
 *
 * As I8 (attn_bytes.h), with three differences.  Codes are unsigned as they are.  K has a step for each dim of a tile, so digits are made of query times step, anew for each tile: a
 * query is below 1, and what its digits are steps of follows from the tile's largest step, so neither depends on what rows
 * are worked on together.  V's weights take the steps of each chunk.  Least values are a sum in f32 of their own.
 */
#define LINE_CODES TILED_CODES_WORD /* of each of the sixteen lanes of a line of 64 bytes */

struct quad {
	int8_t digits[QUAD];
};

/* The largest whole numbers of a query, whose two digits are signed, and of a step; what a product's upper half is worth. */
#define FOURS_QUERY 32639.0f
#define FOURS_STEP 32767.0f
#define FOURS_UNIT (32768 / (FOURS_QUERY * FOURS_STEP))

/* Of a row of whole numbers. */
static size_t fours_row_bytes(const struct work *w)
{
	return attn_round_up(w->k_pad, 2 * LANES) * sizeof(int16_t);
}

/* Rows as parts of their largest number, which is w->q_step: [row][k_pad], and as whole numbers */
BYTES_TARGET static void fours_queries(const struct work *w)
{
	const uint32_t dim = w->part->call->geom.dim_k, rows_all = w->part->rows.n_heads * w->rows;
	float *to = w->q;

	for (uint32_t r = 0; r < rows_all; r++, to += w->k_pad) {
		int8_t *whole = w->q_digits + (size_t)r * fours_row_bytes(w);
		__m512i top = _mm512_setzero_si512();
		float largest;

		memcpy(to, query_row(w, r / w->rows, r % w->rows), dim * sizeof(*to));
		memset(to + dim, 0, (w->k_pad - dim) * sizeof(*to));
		for (uint32_t d = 0; d < w->k_pad; d += LANES)
			top = _mm512_max_epi32(top, magnitude_bits(vec_load(to + d)));
		largest = half_float((uint32_t)_mm512_reduce_max_epi32(top));
		w->q_step[r] = largest < INFINITY ? largest : NAN;
		for (uint32_t d = 0; d < w->k_pad; d += LANES)
			vec_store(to + d, vec_div(vec_load(to + d), vec_set1(largest > 0 ? largest : 1)));
		for (uint32_t d = 0; d < w->k_pad; d += 2 * LANES) {
			const vec next = d + LANES < w->k_pad ? vec_load(to + d + LANES) : vec_zero();

			_mm512_storeu_si512(whole + d * sizeof(int16_t),
				numbers_packed(vec_mul(vec_load(to + d), vec_set1(FOURS_QUERY)),
					vec_mul(next, vec_set1(FOURS_QUERY))));
		}
	}
}

/* A line of codes, eight to a lane, by the digits of eight numbers of each row. */
BYTES_INLINE void fours_line(
	const int n_rows, const char *line, const int8_t *digits, size_t stride, __m512i sum[KEY_ROWS][DIGITS])
{
	const __m512i codes = _mm512_loadu_si512(line), four = _mm512_set1_epi8(15);
	const __m512i first = _mm512_and_si512(codes, four);
	const __m512i last = _mm512_and_si512(_mm512_srli_epi16(codes, 4), four);

	UNROLL for (int r = 0; r < n_rows; r++, digits += stride) UNROLL for (int p = 0; p < DIGITS; p++)
	{
		__m512i *to = &sum[r][p];

		/* as quads_product(), the digits from memory */
		__asm__("vpdpbusd %2%{1to16%}, %1, %0"
			: "+v"(*to)
			: "v"(first), "m"(*(const struct quad *)(const void *)(digits + p * (int)QUAD)));
		__asm__("vpdpbusd %2%{1to16%}, %1, %0"
			: "+v"(*to)
			: "v"(last), "m"(*(const struct quad *)(const void *)(digits + QUAD_BYTES + p * (int)QUAD)));
	}
}

BYTES_INLINE void fours_zero(const int n_rows, __m512i sum[KEY_ROWS][DIGITS])
{
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int p = 0; p < DIGITS; p++) sum[r][p] =
		_mm512_setzero_si512();
}

/* Sums of a row's digits as what they are worth. */
BYTES_INLINE vec fours_worth(const __m512i sum[DIGITS], float step, float rest)
{
	return vec_fma(digits_joined(sum), vec_set1(step), vec_set1(rest));
}

/* ---- Keys ---- */

#define FOLD_STRIDE (KVATTN_DIM_MAX * DIGITS) /* bytes from row to row */

/* The largest of sixteen f16, none of them negative; NaN is above all. */
BYTES_INLINE float halves_top(__m256i halves)
{
	const __m128i eight = _mm_max_epu16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
	const __m128i least = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));

	return _mm_cvtss_f32(_mm_cvtph_ps(_mm_xor_si128(least, _mm_set1_epi16(-1))));
}

/* Queries by the steps of a tile of K.  What is not finite shows in @step or @rest. */
BYTES_INLINE void fours_fold(const int n_rows, const struct tiled *x, uint32_t at, const char *tile, int8_t *digits,
	float *step, float *rest)
{
	const struct work *w = &x->w;
	const uint32_t k_pad = w->k_pad;
	const uint16_t *steps = i4_steps_of(&x->k, tile), *least = steps + tiled_i4_steps(x->k.dim, false);
	const size_t row_bytes = fours_row_bytes(w);
	const int8_t *whole = w->q_digits + at * row_bytes;
	const float *q = w->q + (size_t)at * k_pad;
	const __m256i size = _mm256_set1_epi16(0x7fff);
	__m256i top = _mm256_setzero_si256();
	float largest, unit, inverse, sums[KEY_ROWS];
	vec sum[KEY_ROWS];

	UNROLL for (int r = 0; r < KEY_ROWS; r++) sum[r] = vec_zero();
	for (uint32_t d = 0; d < k_pad; d += LANES) {
		const vec low = vec_load_f16(least + d);

		top = _mm256_max_epu16(
			top, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)(steps + d)), size));
		UNROLL for (int r = 0; r < n_rows; r++) sum[r] =
			vec_fma(vec_load(q + (size_t)r * k_pad + d), low, sum[r]);
	}
	largest = halves_top(top);
	unit = largest < INFINITY ? largest * FOURS_UNIT : NAN;
	inverse = largest > 0 ? FOURS_STEP / largest : 0;
	vec_store_sums(sums, sum[0], sum[1], sum[2], sum[3]);
	UNROLL for (int r = 0; r < n_rows; r++)
	{
		step[r] = unit * w->q_step[at + (uint32_t)r];
		rest[r] = sums[r] * w->q_step[at + (uint32_t)r];
	}
	for (uint32_t d = 0; d < k_pad; d += 2 * LANES) {
		const vec next = d + LANES < k_pad ? vec_load_f16(steps + d + LANES) : vec_zero();
		const __m512i by = numbers_packed(
			vec_mul(vec_load_f16(steps + d), vec_set1(inverse)), vec_mul(next, vec_set1(inverse)));

		UNROLL for (int r = 0; r < n_rows; r++) _mm512_storeu_si512(digits + r * (int)FOLD_STRIDE + d * DIGITS,
			digits_of(_mm512_mulhrs_epi16(
				_mm512_loadu_si512(whole + (uint32_t)r * row_bytes + d * sizeof(int16_t)), by)));
	}
}

/* Scores of @n_rows rows, @at: the first one's number of all heads, with the subtile of stream @s. */
BYTES_INLINE void fours_scores_take(const int n_rows, const struct tiled *x, uint32_t at, const char *tile,
	const struct fetch *fetch, uint32_t s, float *score)
{
	_Alignas(64) int8_t digits[KEY_ROWS * FOLD_STRIDE];
	__m512i sum[KEY_ROWS][DIGITS];
	float step[KEY_ROWS], rest[KEY_ROWS];

	fours_fold(n_rows, x, at, tile, digits, step, rest);
	fours_zero(n_rows, sum);
	for (uint32_t d = 0; d < x->k.dim; d += LINE_CODES) {
		if (fetch && d % LANES == 0)
			part_fetch(fetch, s, d / LANES, x->k_fetch);
		fours_line(n_rows, tile + (size_t)d / LINE_CODES * 64, digits + d * DIGITS, FOLD_STRIDE, sum);
	}
	UNROLL for (int r = 0; r < n_rows; r++)
		vec_store(score + r * (int)ATTN_TILE, fours_worth(sum[r], step[r], rest[r]));
}

/* A subtile that lies in no one tile: its rows as f32. */
BYTES_TARGET static void fours_scores_apart(const struct tiled *x, const struct sub *sub, uint32_t h, uint32_t s)
{
	const struct work *w = &x->w;
	const char *const base[STREAMS] = {(const char *)w->k_wide};

	rows_widen(x, sub, &x->k, w->part->rows.head0 + h, 0, w->k_wide);
	for (uint32_t r = 0; r < w->rows; r++) {
		float *score = w->weight + (size_t)r * ATTN_TILE + s * SUB_TOKENS;

		scores_take(KVATTN_F32, true, 1, 1, query_row(w, h, r), x->k.dim, base, NULL, NULL, 0, NULL, score);
	}
}

BYTES_TARGET static void fours_scores(
	const struct tiled *x, const struct tile *tile, uint32_t h, const struct lanes *k, const struct fetch *fetch)
{
	const struct work *w = &x->w;

	for (uint32_t s = 0; s < STREAMS; s++) {
		float *score = w->weight + s * SUB_TOKENS;
		const struct fetch *first = fetch;
		uint32_t r = 0;

		if (!tile->sub[s].whole) {
			if (tile->sub[s].present)
				fours_scores_apart(x, &tile->sub[s], h, s);
			continue;
		}
		for (; r + KEY_ROWS <= w->rows; r += KEY_ROWS, first = NULL)
			fours_scores_take(
				KEY_ROWS, x, h * w->rows + r, k->base[s], first, s, score + (size_t)r * ATTN_TILE);
		for (; r < w->rows; r++, first = NULL)
			fours_scores_take(1, x, h * w->rows + r, k->base[s], first, s, score + (size_t)r * ATTN_TILE);
	}
}

/* ---- Values ---- */

/* Steps and least values of a chunk's tokens. */
struct fours_chunk {
	vec step[STREAMS], least[STREAMS];
};

BYTES_INLINE void fours_chunk_open(
	const struct tiled *x, const struct tile *tile, const struct lanes *v, uint32_t chunk, struct fours_chunk *open)
{
	UNROLL for (uint32_t s = 0; s < STREAMS; s++)
	{
		const uint16_t *steps = i4_steps_of(&x->v, v->base[s]) + chunk * SUB_TOKENS;

		open->step[s] = open->least[s] = vec_zero();
		if (!tile->sub[s].whole)
			continue;
		open->step[s] = vec_load_f16(steps);
		open->least[s] = vec_load_f16(steps + tiled_i4_steps(x->v.dim, true));
	}
}

/* Rows' weights by the steps of a chunk, those of @whole subtiles.  What is not finite shows in @rest, or in the row's sum
 * of weights. */
BYTES_INLINE void fours_weigh(const int n_rows, const struct work *w, uint32_t r0, uint64_t whole,
	const struct fours_chunk *chunk, int8_t *digits, float *step, float *rest)
{
	vec number[KEY_ROWS][STREAMS], sum[KEY_ROWS], top[KEY_ROWS];
	uint32_t tops[KEY_ROWS];

	UNROLL for (int r = 0; r < KEY_ROWS; r++) sum[r] = top[r] = vec_zero();
	UNROLL for (int r = 0; r < n_rows; r++)
	{
		const float *weight = w->weight + (r0 + (size_t)r) * ATTN_TILE;
		const uint64_t mask = w->mask[r0 + (uint32_t)r] & whole;

		UNROLL for (uint32_t s = 0; s < STREAMS; s++)
		{
			const __mmask16 keep = (__mmask16)(mask >> s * SUB_TOKENS);
			const vec by = _mm512_maskz_loadu_ps(keep, weight + s * SUB_TOKENS);

			sum[r] = _mm512_mask3_fmadd_ps(by, chunk->least[s], sum[r], keep);
			number[r][s] = _mm512_maskz_mul_ps(keep, by, chunk->step[s]);
			top[r] = vec_max(number[r][s], top[r]);
		}
	}
	vec_store_sums(rest, sum[0], sum[1], sum[2], sum[3]);
	tops_store(tops, _mm512_castps_si512(top[0]), _mm512_castps_si512(top[1]), _mm512_castps_si512(top[2]),
		_mm512_castps_si512(top[3]));
	UNROLL for (int r = 0; r < n_rows; r++)
	{
		float inverse;
		vec by;

		step[r] = digits_step(tops[r], &inverse);
		by = vec_set1(inverse);
		UNROLL for (uint32_t s = 0; s < STREAMS; s += 2)
			_mm512_storeu_si512(digits + r * (int)TILE_DIGITS + s * SUB_TOKENS * DIGITS,
				digits_of(numbers_packed(vec_mul(number[r][s], by), vec_mul(number[r][s + 1], by))));
	}
}

/* Sixteen dims from @d on of all values of the whole subtiles. */
BYTES_INLINE void fours_turns_dims(const int n_rows, const struct tiled *x, const struct tile *tile,
	const struct lanes *v, const struct fetch *fetch, uint32_t d, const int8_t *digits, const float *step,
	const float *rest, float *acc)
{
	const size_t dim = attn_round_up(x->v.dim, TILED_PAD), acc_stride = x->w.part->call->acc_floats;
	__m512i sum[KEY_ROWS][DIGITS];

	fours_zero(n_rows, sum);
	for (uint32_t s = 0; s < STREAMS; s++) {
		if (!tile->sub[s].whole)
			continue;
		if (fetch)
			part_fetch(fetch, s, d / LANES, x->v_fetch);
		UNROLL for (uint32_t t = 0; t < SUB_TOKENS; t += LINE_CODES)
			fours_line(n_rows, v->base[s] + (t / LINE_CODES * dim + d) * 4,
				digits + (s * SUB_TOKENS + t) * DIGITS, TILE_DIGITS, sum);
	}
	UNROLL for (int r = 0; r < n_rows; r++)
	{
		float *to = acc + (size_t)r * acc_stride + d;

		vec_store(to, vec_add(vec_load(to), fours_worth(sum[r], step[r], rest[r])));
	}
}

/* @n_rows rows take in the values of the whole subtiles. */
BYTES_INLINE void fours_turns_take(const int n_rows, const struct tiled *x, const struct tile *tile,
	const struct lanes *v, const struct fetch *fetch, uint32_t r0, uint64_t whole, float *acc)
{
	const uint32_t dim = (uint32_t)attn_round_up(x->v.dim, TILED_PAD);

	for (uint32_t c = 0; c < dim; c += TILED_CHUNK) {
		const uint32_t end = c + tiled_v_row(x->v.dim, c);
		_Alignas(64) int8_t digits[KEY_ROWS * TILE_DIGITS];
		float step[KEY_ROWS], rest[KEY_ROWS];
		struct fours_chunk chunk;

		fours_chunk_open(x, tile, v, c / TILED_CHUNK, &chunk);
		fours_weigh(n_rows, &x->w, r0, whole, &chunk, digits, step, rest);
		for (uint32_t d = c; d < end; d += LANES)
			fours_turns_dims(n_rows, x, tile, v, fetch, d, digits, step, rest, acc);
	}
}

/* Values of subtiles that lie in no one tile, as f32, to the rows that see them. */
BYTES_TARGET static void fours_turns_apart(
	const struct tiled *x, const struct tile *tile, uint32_t h, uint64_t apart, float *acc)
{
	const struct work *w = &x->w;
	const size_t acc_stride = w->part->call->acc_floats;
	struct lanes v;

	for (uint32_t s = 0; s < STREAMS; s++) {
		v.base[s] = (const char *)w->v_wide;
		if (tile->sub[s].present && !tile->sub[s].whole)
			rows_widen(x, &tile->sub[s], &x->v, w->part->rows.head0 + h, s, w->v_wide);
	}
	for (uint32_t r = 0; r < w->rows; r++)
		if (w->mask[r] & apart)
			turns_dims(KVATTN_F32, true, 1, false, by_turns(w->mask[r] & apart),
				w->weight + (size_t)r * ATTN_TILE, x, &v, NULL, NULL, false, acc + r * acc_stride,
				acc_stride);
}

BYTES_TARGET static void fours_turns(
	const struct tiled *x, const struct tile *tile, uint32_t h, const struct lanes *v, const struct fetch *fetch)
{
	const struct work *w = &x->w;
	const size_t acc_stride = w->part->call->acc_floats;
	float *acc = w->part->state.acc + (size_t)h * w->rows * acc_stride;
	uint64_t whole = 0;
	uint32_t r = 0;

	for (uint32_t s = 0; s < STREAMS; s++)
		whole |= tile->sub[s].whole ? attn_low_bits(SUB_TOKENS) << s * SUB_TOKENS : 0;
	for (; r + KEY_ROWS <= w->rows; r += KEY_ROWS, fetch = NULL)
		fours_turns_take(KEY_ROWS, x, tile, v, fetch, r, whole, acc + r * acc_stride);
	for (; r < w->rows; r++, fetch = NULL)
		fours_turns_take(1, x, tile, v, fetch, r, whole, acc + r * acc_stride);
	if (whole != UINT64_MAX)
		fours_turns_apart(x, tile, h, ~whole, acc);
}
