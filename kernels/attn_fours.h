/*
 * attn_fours.h - I4 in TILED by products of bytes, for processors with VNNI and VBMI; included by attn_tiled.h
 *
 * As I8 (attn_bytes.h), with four differences.  Codes are unsigned as they are.  K has a step for each dim of a tile, so
 * digits are made of query times step, anew for each tile, and V's weights take the steps of each chunk.  Least values are
 * a sum in f32 of their own, taken with the middle of the codes, so that what a digit rounds away meets +-8, not 0 .. 15.
 * And numbers have one digit, in 127ths of the largest among them: next to four bits that is fine enough, but where few of a
 * query's numbers stand far above the rest; there they have a second.  All of it follows from a row and the tile alone.
 */
#define LINE_CODES TILED_CODES_WORD /* of each of the sixteen lanes of a line of 64 bytes */
#define FOURS_BLOCK 64u /* numbers whose digits lie together, see fours_place() */
#define FOURS_MIDDLE 8

struct quad {
	int8_t digits[QUAD];
};

/* The largest whole numbers of a query and of a step; what a product's upper half is worth. */
#define FOURS_QUERY 32639.0f
#define FOURS_STEP 32767.0f
#define FOURS_UNIT (32768 / (FOURS_QUERY * FOURS_STEP))

/* Of a row of whole numbers. */
static size_t fours_row_bytes(const struct work *w)
{
	return attn_round_up(w->k_pad, FOURS_BLOCK) * sizeof(int16_t);
}

/* Where packing twice leaves the quad of number @i: a quarter of a block has four numbers of each of its four vectors. */
INLINE size_t fours_place(uint32_t i)
{
	return i / FOURS_BLOCK * FOURS_BLOCK + i % LANES * 4 + i % FOURS_BLOCK / LANES * QUAD;
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
		for (uint32_t d = 0; d < attn_round_up(w->k_pad, FOURS_BLOCK); d += 2 * LANES) {
			const vec low = d < w->k_pad ? vec_load(to + d) : vec_zero();
			const vec high = d + LANES < w->k_pad ? vec_load(to + d + LANES) : vec_zero();

			_mm512_storeu_si512(
				whole + d * sizeof(int16_t), numbers_packed(vec_mul(low, vec_set1(FOURS_QUERY)),
								     vec_mul(high, vec_set1(FOURS_QUERY))));
		}
	}
}

/* Sums of a row are two, for the low and the high halves of bytes: each waits for the one before it. */
#define FOURS_SUMS 2

/* A line of codes, eight to a lane, by the digits of eight numbers of each row: two quads of a block. */
BYTES_INLINE void fours_line(
	const int n_rows, const char *line, const int8_t *digits, size_t stride, __m512i sum[KEY_ROWS][FOURS_SUMS])
{
	const __m512i codes = _mm512_loadu_si512(line), four = _mm512_set1_epi8(15);
	const __m512i first = _mm512_and_si512(codes, four);
	const __m512i last = _mm512_and_si512(_mm512_srli_epi16(codes, 4), four);

	UNROLL for (int r = 0; r < n_rows; r++, digits += stride)
	{
		/* as quads_product(), the digits from memory */
		__asm__("vpdpbusd %2%{1to16%}, %1, %0"
			: "+v"(sum[r][0])
			: "v"(first), "m"(*(const struct quad *)(const void *)digits));
		__asm__("vpdpbusd %2%{1to16%}, %1, %0"
			: "+v"(sum[r][1])
			: "v"(last), "m"(*(const struct quad *)(const void *)(digits + 4 * QUAD)));
	}
}

BYTES_INLINE void fours_zero(const int n_rows, __m512i sum[KEY_ROWS][FOURS_SUMS])
{
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int p = 0; p < FOURS_SUMS; p++) sum[r][p] =
		_mm512_setzero_si512();
}

BYTES_INLINE vec fours_worth(const __m512i sum[FOURS_SUMS], float step, vec rest)
{
	return vec_fma(_mm512_cvtepi32_ps(_mm512_add_epi32(sum[0], sum[1])), vec_set1(step), rest);
}

/* Less the middle of the codes for each of @digits, which are steps of @step. */
BYTES_INLINE vec fours_centred(__m512i digits, float step, vec rest)
{
	const __m512i sum = quads_product(_mm512_setzero_si512(), _mm512_set1_epi8(FOURS_MIDDLE), digits);

	return vec_fma(_mm512_cvtepi32_ps(sum), vec_set1(-step), rest);
}

/* ---- Keys ---- */

#define FOLD_STRIDE KVATTN_DIM_MAX /* from row to row */
_Static_assert(FOLD_STRIDE % FOURS_BLOCK == 0, "a row is whole blocks");
#define FOURS_SMALL 15 /* digits up to this are, and three quarters of them in a row are too many */

/* Some rows' queries by the steps of each stream's tile of K: as whole numbers, then in digits. */
struct fours_fold {
	_Alignas(64) int16_t number[STREAMS][KEY_ROWS * FOLD_STRIDE];
	_Alignas(64) int8_t digits[STREAMS][KEY_ROWS * FOLD_STRIDE];
	_Alignas(64) vec rest[STREAMS][KEY_ROWS];
	_Alignas(64) uint32_t top[STREAMS * KEY_ROWS], by[STREAMS * KEY_ROWS]; /* see fours_ranges() */
	_Alignas(64) float step[STREAMS * KEY_ROWS];
	float rests[STREAMS * KEY_ROWS];
	uint32_t few; /* rows that need second digits, a bit each */
};
_Static_assert(STREAMS *KEY_ROWS == LANES, "a vector has a lane for each row and stream");

/* The largest of each of four vectors of whole numbers, none of them negative. */
BYTES_INLINE void halves_store(uint32_t *p, __m512i a, __m512i b, __m512i c, __m512i d)
{
	const __m512i ab = _mm512_max_epu16(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
	const __m512i cd = _mm512_max_epu16(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
	const __m512i abcd = _mm512_max_epu16(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
	const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(abcd), _mm512_extracti64x4_epi64(abcd, 1));
	const __m128i pairs = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));

	_mm_store_si128((__m128i *)(void *)p,
		_mm_max_epu16(_mm_srli_epi32(pairs, 16), _mm_and_si128(pairs, _mm_set1_epi32(0xffff))));
}

/* What numbers of each tile are in units of, and the inverse of the largest step; of NaN, which is above all, NaN and
 * anything. */
BYTES_INLINE void fours_units(const struct tiled *x, const struct tile *tile, const struct lanes *k,
	float unit[STREAMS], float inverse[STREAMS])
{
	_Alignas(16) uint32_t largest[STREAMS];
	__m512i top[STREAMS];
	__m128i halves;
	__m128 steps;

	UNROLL for (uint32_t s = 0; s < STREAMS; s++)
	{
		__m256i most = _mm256_setzero_si256();

		if (tile->sub[s].whole) {
			const uint16_t *of = i4_steps_of(&x->k, k->base[s]);

			for (size_t d = 0; d < x->w.k_pad; d += LANES)
				most = _mm256_max_epu16(
					most, _mm256_loadu_si256((const __m256i *)(const void *)(of + d)));
		}
		top[s] = _mm512_zextsi256_si512(most);
	}
	halves_store(largest, top[0], top[1], top[2], top[3]);
	halves = _mm_load_si128((const __m128i *)(const void *)largest);
	steps = _mm_cvtph_ps(_mm_packus_epi32(halves, halves));
	_mm_storeu_ps(inverse, _mm_div_ps(_mm_set1_ps(FOURS_STEP), _mm_max_ps(_mm_set1_ps(0x1p-126f), steps)));
	_mm_storeu_ps(unit, _mm_mask_blend_ps(_mm_cmp_ps_mask(steps, _mm_set1_ps(INFINITY), _CMP_LT_OQ),
				    _mm_set1_ps(NAN), _mm_mul_ps(steps, _mm_set1_ps(FOURS_UNIT))));
}

/* Numbers of 32 dims from @d on, the largest of each row's so far, and what the middle of the codes adds to scores. */
BYTES_INLINE void fours_numbers(const int n_rows, const bool even, const struct work *w, uint32_t at, size_t d,
	const uint16_t *steps, const uint16_t *least, float inverse, int16_t *number, vec rest[KEY_ROWS],
	__m512i top[KEY_ROWS])
{
	const size_t row_bytes = fours_row_bytes(w), k_pad = w->k_pad;
	const int8_t *whole = w->q_digits + at * row_bytes + d * sizeof(*number);
	const float *q = w->q + at * k_pad;
	vec step[2];
	__m512i by;

	UNROLL for (size_t j = 0; j < 2; j++)
	{
		const size_t i = d + j * LANES;
		vec middle;

		step[j] = vec_zero();
		if (!even && i >= k_pad)
			continue;
		step[j] = vec_load_f16(steps + i);
		middle = vec_fma(step[j], vec_set1(FOURS_MIDDLE), vec_load_f16(least + i));
		UNROLL for (int r = 0; r < n_rows; r++) rest[r] =
			vec_fma(vec_load(q + (size_t)r * k_pad + i), middle, rest[r]);
	}
	by = numbers_packed(vec_mul(step[0], vec_set1(inverse)), vec_mul(step[1], vec_set1(inverse)));
	UNROLL for (int r = 0; r < n_rows; r++)
	{
		const __m512i row = _mm512_mulhrs_epi16(_mm512_loadu_si512(whole + (size_t)r * row_bytes), by);

		top[r] = _mm512_max_epi16(_mm512_abs_epi16(row), top[r]);
		_mm512_store_si512(number + (size_t)r * FOLD_STRIDE + d, row);
	}
}

/* All of a tile's.  @inverse: of the largest step; @even: dims are whole blocks */
BYTES_INLINE void fours_tile_numbers(const int n_rows, const bool even, const struct tiled *x, uint32_t at,
	const char *tile, float inverse, uint32_t s, struct fours_fold *fold)
{
	const uint16_t *steps = i4_steps_of(&x->k, tile), *least = steps + tiled_i4_steps(x->k.dim, false);
	vec rest[KEY_ROWS];
	__m512i top[KEY_ROWS];

	UNROLL for (int r = 0; r < KEY_ROWS; r++) rest[r] = vec_zero(), top[r] = _mm512_setzero_si512();
	for (size_t d = 0; d < x->w.k_pad; d += FOURS_BLOCK)
		UNROLL for (size_t j = 0; j < FOURS_BLOCK; j += 2 * LANES) fours_numbers(
			n_rows, even, &x->w, at, d + j, steps, least, inverse, fold->number[s], rest, top);
	halves_store(fold->top + s * KEY_ROWS, top[0], top[1], top[2], top[3]);
	UNROLL for (int r = 0; r < KEY_ROWS; r++) fold->rest[s][r] = rest[r];
}

/* What each row's numbers are multiplied by: the product less its lower 15 bits is a digit, a step what that is worth. */
BYTES_INLINE void fours_ranges(const float unit[STREAMS], struct fours_fold *fold)
{
	const __m512i top = _mm512_max_epi32(_mm512_load_si512(fold->top), _mm512_set1_epi32(128));
	const __m512i by = _mm512_cvttps_epi32(vec_div(vec_set1(127 << 15), _mm512_cvtepi32_ps(top)));
	const __m512i stream = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
	const vec units = _mm512_permutexvar_ps(stream, _mm512_castps128_ps512(_mm_loadu_ps(unit)));

	_mm512_store_si512(fold->by, by);
	vec_store(fold->step, vec_div(vec_mul(units, vec_set1(1 << 15)), _mm512_cvtepi32_ps(by)));
}

/* Digits of a tile's rows. */
BYTES_INLINE void fours_digits(const int n_rows, uint32_t k_pad, uint32_t dim, uint32_t s, struct fours_fold *fold)
{
	const __m512i small = _mm512_set1_epi8(FOURS_SMALL), smalls = _mm512_set1_epi8(2 * FOURS_SMALL);
	const uint32_t at = s * KEY_ROWS;
	uint64_t large[KEY_ROWS] = {0};
	__m512i by[KEY_ROWS], sum[KEY_ROWS];
	vec rest[KEY_ROWS];

	UNROLL for (int r = 0; r < KEY_ROWS; r++)
	{
		by[r] = _mm512_set1_epi16((int16_t)fold->by[at + (uint32_t)r]);
		sum[r] = _mm512_setzero_si512();
	}
	for (uint32_t d = 0; d < k_pad; d += FOURS_BLOCK)
		UNROLL for (int r = 0; r < n_rows; r++)
		{
			const int16_t *number = fold->number[s] + (size_t)r * FOLD_STRIDE + d;
			const __m512i digits = _mm512_packs_epi16(_mm512_mulhrs_epi16(_mm512_load_si512(number), by[r]),
				_mm512_mulhrs_epi16(_mm512_load_si512(number + 2 * LANES), by[r]));

			_mm512_store_si512(fold->digits[s] + (size_t)r * FOLD_STRIDE + d, digits);
			sum[r] = quads_product(sum[r], _mm512_set1_epi8(FOURS_MIDDLE), digits);
			large[r] += (uint64_t)__builtin_popcountll(
				_mm512_cmpgt_epu8_mask(_mm512_add_epi8(digits, small), smalls));
		}
	UNROLL for (int r = 0; r < KEY_ROWS; r++)
	{
		if (r < n_rows)
			fold->few |= (uint32_t)(4 * large[r] < dim) << (at + (uint32_t)r);
		rest[r] =
			vec_fma(_mm512_cvtepi32_ps(sum[r]), vec_set1(-fold->step[at + (uint32_t)r]), fold->rest[s][r]);
	}
	vec_store_sums(fold->rests + at, rest[0], rest[1], rest[2], rest[3]);
}

/* Digits of @n_rows rows, @at: the first one's number of all heads, for each stream's tile.  What is not finite shows in
 * steps or rests. */
BYTES_INLINE void fours_fold(const int n_rows, const bool even, const struct tiled *x, const struct tile *tile,
	uint32_t at, const struct lanes *k, struct fours_fold *fold)
{
	float unit[STREAMS], inverse[STREAMS];

	fours_units(x, tile, k, unit, inverse);
	for (uint32_t s = 0; s < STREAMS; s++)
		if (tile->sub[s].whole)
			fours_tile_numbers(n_rows, even, x, at, k->base[s], inverse[s], s, fold);
		else
			_mm_store_si128((__m128i *)(void *)(fold->top + s * KEY_ROWS), _mm_setzero_si128());
	fours_ranges(unit, fold);
	fold->few = 0;
	for (uint32_t s = 0; s < STREAMS; s++)
		if (tile->sub[s].whole)
			fours_digits(n_rows, x->w.k_pad, x->k.dim, s, fold);
}

/* A tile by digits.  @fetch: what is asked for meanwhile for stream @s; NULL: nothing */
BYTES_INLINE void fours_tile(const int n_rows, const bool even, const struct tiled *x, const char *tile,
	const int8_t *digits, const struct fetch *fetch, uint32_t s, __m512i sum[KEY_ROWS][FOURS_SUMS])
{
	const uint32_t dim = x->k.dim;

	fours_zero(n_rows, sum);
	for (uint32_t d = 0; d < dim; d += FOURS_BLOCK, digits += FOURS_BLOCK)
		UNROLL for (uint32_t j = 0; j < FOURS_BLOCK; j += LINE_CODES, tile += 64)
		{
			if (!even && d + j >= dim)
				break;
			if (fetch && j % LANES == 0)
				part_fetch(fetch, s, (d + j) / LANES, x->k_fetch);
			fours_line(n_rows, tile, digits + fours_place(j), FOLD_STRIDE, sum);
		}
}

/* What is left of 32 numbers in 256ths of a digit: of the product the lower 15 bits, with a sign. */
BYTES_INLINE __m512i fours_left(const int16_t *number, __m512i by)
{
	const __m512i row = _mm512_load_si512(number);
	const __m512i left =
		_mm512_sub_epi16(_mm512_mullo_epi16(row, by), _mm512_slli_epi16(_mm512_mulhrs_epi16(row, by), 15));

	return _mm512_srai_epi16(_mm512_add_epi16(left, _mm512_set1_epi16(64)), 7);
}

/* To the scores of stream @s what second digits of the rows that need them add.  @at: see fours_fold() */
BYTES_TARGET __attribute__((noinline)) static void fours_second(
	const struct tiled *x, uint32_t at, const char *tile, uint32_t s, const struct fours_fold *fold, float *score)
{
	_Alignas(64) int8_t digits[FOLD_STRIDE];

	for (uint32_t r = 0; r < KEY_ROWS; r++, score += ATTN_TILE) {
		const uint32_t lane = s * KEY_ROWS + r;
		const float step = fold->step[lane] * x->w.q_step[at + r] * 0x1p-8f;
		const __m512i by = _mm512_set1_epi16((int16_t)fold->by[lane]);
		const int16_t *number = fold->number[s] + (size_t)r * FOLD_STRIDE;
		__m512i sum[KEY_ROWS][FOURS_SUMS], middle = _mm512_setzero_si512();

		if (!(fold->few >> lane & 1))
			continue;
		for (uint32_t d = 0; d < x->w.k_pad; d += FOURS_BLOCK) {
			const __m512i by_block =
				_mm512_packs_epi16(fours_left(number + d, by), fours_left(number + d + 2 * LANES, by));

			_mm512_store_si512(digits + d, by_block);
			middle = quads_product(middle, _mm512_set1_epi8(FOURS_MIDDLE), by_block);
		}
		fours_tile(1, false, x, tile, digits, NULL, s, sum);
		vec_store(score, vec_fma(vec_set1((float)-_mm512_reduce_add_epi32(middle)), vec_set1(step),
					 fours_worth(sum[0], step, vec_load(score))));
	}
}

/* Scores of @n_rows rows, @at: the first one's number of all heads, with the whole subtiles. */
BYTES_INLINE void fours_scores_take(const int n_rows, const bool even, const struct tiled *x, const struct tile *tile,
	uint32_t at, const struct lanes *k, const struct fetch *fetch, float *score)
{
	struct fours_fold fold;

	fours_fold(n_rows, even, x, tile, at, k, &fold);
	for (uint32_t s = 0; s < STREAMS; s++, score += SUB_TOKENS) {
		__m512i sum[KEY_ROWS][FOURS_SUMS];

		if (!tile->sub[s].whole)
			continue;
		fours_tile(n_rows, even, x, k->base[s], fold.digits[s], fetch, s, sum);
		UNROLL for (int r = 0; r < n_rows; r++)
		{
			const float q_step = x->w.q_step[at + (uint32_t)r];
			const uint32_t lane = s * KEY_ROWS + (uint32_t)r;

			vec_store(score + r * (int)ATTN_TILE,
				fours_worth(sum[r], fold.step[lane] * q_step, vec_set1(fold.rests[lane] * q_step)));
		}
		if (__builtin_expect(fold.few >> s * KEY_ROWS & ((1u << KEY_ROWS) - 1), 0))
			fours_second(x, at, k->base[s], s, &fold, score);
	}
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
	const bool even = x->k.dim % FOURS_BLOCK == 0;
	float *score = w->weight;
	uint32_t r = 0;

	for (; r + KEY_ROWS <= w->rows; r += KEY_ROWS, score += KEY_ROWS * ATTN_TILE, fetch = NULL)
		if (even)
			fours_scores_take(KEY_ROWS, true, x, tile, h * w->rows + r, k, fetch, score);
		else
			fours_scores_take(KEY_ROWS, false, x, tile, h * w->rows + r, k, fetch, score);
	for (; r < w->rows; r++, score += ATTN_TILE, fetch = NULL)
		fours_scores_take(1, false, x, tile, h * w->rows + r, k, fetch, score);
	for (uint32_t s = 0; s < STREAMS; s++)
		if (tile->sub[s].present && !tile->sub[s].whole)
			fours_scores_apart(x, &tile->sub[s], h, s);
}

/* ---- Values ---- */

#define FOURS_CHUNKS (KVATTN_DIM_MAX / TILED_CHUNK)
_Static_assert(KVATTN_DIM_MAX % TILED_CHUNK == 0, "chunks are whole");

/* Some rows' weights by the steps of each chunk, in digits. */
struct fours_weights {
	_Alignas(64) int8_t digits[FOURS_CHUNKS][KEY_ROWS * ATTN_TILE];
	float step[FOURS_CHUNKS][KEY_ROWS], rest[FOURS_CHUNKS][KEY_ROWS];
};

/* Rows' weights by the steps of a chunk, those of @whole subtiles; @all: those are all, and seen by all of the rows.  What
 * is not finite shows in rests, or in the row's sum of weights. */
BYTES_INLINE void fours_weigh(const int n_rows, const bool all, const struct tiled *x, const struct lanes *v,
	uint32_t r0, uint64_t whole, uint32_t chunk, struct fours_weights *to)
{
	const struct work *w = &x->w;
	const uint32_t least = tiled_i4_steps(x->v.dim, true);
	vec number[KEY_ROWS][STREAMS], sum[KEY_ROWS];
	__m512i top[KEY_ROWS];
	_Alignas(16) uint32_t tops[KEY_ROWS];
	_Alignas(16) float bys[KEY_ROWS];
	__m128 most;

	UNROLL for (int r = 0; r < KEY_ROWS; r++) sum[r] = vec_zero(), top[r] = _mm512_setzero_si512();
	UNROLL for (uint32_t s = 0; s < STREAMS; s++)
	{
		const uint16_t *steps = i4_steps_of(&x->v, v->base[s]) + chunk * SUB_TOKENS;
		vec step = vec_zero(), middle = vec_zero();

		if (all || whole >> s * SUB_TOKENS & 1) {
			step = vec_load_f16(steps);
			middle = vec_fma(step, vec_set1(FOURS_MIDDLE), vec_load_f16(steps + least));
		}
		UNROLL for (int r = 0; r < n_rows; r++)
		{
			const uint64_t mask = all ? UINT64_MAX : w->mask[r0 + (uint32_t)r] & whole;
			const __mmask16 keep = (__mmask16)(mask >> s * SUB_TOKENS);
			const vec by = vec_load(w->weight + (r0 + (size_t)r) * ATTN_TILE + s * SUB_TOKENS);

			sum[r] = all ? vec_fma(by, middle, sum[r]) : _mm512_mask3_fmadd_ps(by, middle, sum[r], keep);
			number[r][s] = all ? vec_mul(by, step) : _mm512_maskz_mul_ps(keep, by, step);
			top[r] = _mm512_max_epi32(magnitude_bits(number[r][s]), top[r]);
		}
	}
	tops_store(tops, top[0], top[1], top[2], top[3]);
	/* less than this is nothing beside the row's largest weight, which is 1 */
	most = _mm_load_ps((const float *)(const void *)tops);
	_mm_store_ps(bys,
		_mm_maskz_div_ps(_mm_cmp_ps_mask(most, _mm_set1_ps(0x1p-100f), _CMP_GT_OQ), _mm_set1_ps(127), most));
	_mm_storeu_ps(to->step[chunk], _mm_div_ps(most, _mm_set1_ps(127)));
	UNROLL for (int r = 0; r < n_rows; r++)
	{
		const vec by = vec_set1(bys[r]);
		const __m512i digits =
			_mm512_packs_epi16(numbers_packed(vec_mul(number[r][0], by), vec_mul(number[r][1], by)),
				numbers_packed(vec_mul(number[r][2], by), vec_mul(number[r][3], by)));

		_mm512_store_si512(to->digits[chunk] + r * (int)ATTN_TILE, digits);
		sum[r] = fours_centred(digits, to->step[chunk][r], sum[r]);
	}
	vec_store_sums(to->rest[chunk], sum[0], sum[1], sum[2], sum[3]);
}

/* Sixteen dims from @d on of all values of the whole subtiles, @all: those are all. */
BYTES_INLINE void fours_turns_dims(const int n_rows, const bool all, const struct tiled *x, const struct tile *tile,
	const struct lanes *v, const struct fetch *fetch, uint32_t d, const struct fours_weights *weights, float *acc)
{
	const int8_t *digits = weights->digits[d / TILED_CHUNK];
	const float *step = weights->step[d / TILED_CHUNK], *rest = weights->rest[d / TILED_CHUNK];
	const size_t dim = attn_round_up(x->v.dim, TILED_PAD), acc_stride = x->w.part->call->acc_floats;
	__m512i sum[KEY_ROWS][FOURS_SUMS];

	fours_zero(n_rows, sum);
	UNROLL for (uint32_t s = 0; s < STREAMS; s++)
	{
		if (!all && !tile->sub[s].whole)
			continue;
		if (fetch)
			part_fetch(fetch, s, d / LANES, x->v_fetch);
		UNROLL for (uint32_t t = 0; t < SUB_TOKENS; t += LINE_CODES)
			fours_line(n_rows, v->base[s] + (t / LINE_CODES * dim + d) * 4,
				digits + fours_place(s * SUB_TOKENS + t), ATTN_TILE, sum);
	}
	UNROLL for (int r = 0; r < n_rows; r++)
	{
		float *to = acc + (size_t)r * acc_stride + d;

		vec_store(to, vec_add(vec_load(to), fours_worth(sum[r], step[r], vec_set1(rest[r]))));
	}
}

/* @n_rows rows take in the values of the whole subtiles. */
BYTES_INLINE void fours_turns_take(const int n_rows, const struct tiled *x, const struct tile *tile,
	const struct lanes *v, const struct fetch *fetch, uint32_t r0, uint64_t whole, float *acc)
{
	const uint32_t dim = (uint32_t)attn_round_up(x->v.dim, TILED_PAD);
	struct fours_weights weights;
	uint64_t seen = whole;

	for (uint32_t r = r0; r < r0 + (uint32_t)n_rows; r++)
		seen &= x->w.mask[r];
	if (seen == UINT64_MAX) {
		for (uint32_t c = 0; c * TILED_CHUNK < dim; c++)
			fours_weigh(n_rows, true, x, v, r0, whole, c, &weights);
		for (uint32_t d = 0; d < dim; d += LANES)
			fours_turns_dims(n_rows, true, x, tile, v, fetch, d, &weights, acc);
		return;
	}
	for (uint32_t c = 0; c * TILED_CHUNK < dim; c++)
		fours_weigh(n_rows, false, x, v, r0, whole, c, &weights);
	for (uint32_t d = 0; d < dim; d += LANES)
		fours_turns_dims(n_rows, false, x, tile, v, fetch, d, &weights, acc);
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
