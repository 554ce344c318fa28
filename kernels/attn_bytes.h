/*
 * attn_bytes.h - I8 in TILED by products of bytes, for processors with VNNI and VBMI; included by attn_tiled.h
 *
 * A query's row, and a row's weights of one tile, become whole numbers in steps of 2^-14 of the largest among them (which
 * stays what it is), written as two signed digits of eight bits: far finer than codes of eight bits are.  What of a weight
 * that leaves is a third one, for a row's weights must sum to one.  Each digit's
 * products with the codes are added up in whole numbers, so their order counts for nothing.  VPDPBUSD wants one side
 * unsigned: codes are taken as code + 128, and 128 times the digits' sum is in the sum from the beginning.
 */
#define DIGITS 2
#define DIGITS_TOP 0x1p14f /* of two digits; the next power is beyond 127 * (1 + 256) */
#define DIGITS_LEAST 0x0f000000u /* bits of 2^-97: the inverse of less could be too large for f32 */
#define QUAD 4u /* products of one instruction and lane */
#define QUAD_BYTES (DIGITS * QUAD) /* of four numbers: [digit][4] */
#define BYTES_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")))
#define BYTES_INLINE BYTES_TARGET static inline __attribute__((always_inline))

/* ---- Numbers to digits ---- */

/* Step and its inverse for numbers up to @top, given by its bits; NaN where anything was not finite. */
static float digits_step(uint32_t top, float *inverse)
{
	const float largest = half_float(top > DIGITS_LEAST ? top : DIGITS_LEAST);

	*inverse = DIGITS_TOP / largest;
	return largest < INFINITY ? largest / DIGITS_TOP : NAN;
}

BYTES_INLINE __m512i magnitude_bits(vec x)
{
	return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

/* The largest of each of four vectors of magnitudes' bits. */
BYTES_INLINE void tops_store(uint32_t *p, __m512i a, __m512i b, __m512i c, __m512i d)
{
	const __m512i ab = _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
	const __m512i cd = _mm512_max_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
	const __m512i abcd = _mm512_max_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
	const __m256i half = _mm256_max_epi32(_mm512_castsi512_si256(abcd), _mm512_extracti64x4_epi64(abcd, 1));

	_mm_storeu_si128(
		(__m128i *)(void *)p, _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

/* 32 numbers of at most 15 bits and a sign, a quarter has four of @low and four of @high. */
BYTES_INLINE __m512i numbers_packed(vec low, vec high)
{
	return _mm512_packs_epi32(_mm512_cvtps_epi32(low), _mm512_cvtps_epi32(high));
}

/* Their digits: [quad][digit][4] */
BYTES_INLINE __m512i digits_of(__m512i packed)
{
	/* digit p of a number is its byte p */
	static const uint8_t by_quad[64] = {0, 2, 4, 6, 1, 3, 5, 7, 16, 18, 20, 22, 17, 19, 21, 23, 32, 34, 36, 38, 33,
		35, 37, 39, 48, 50, 52, 54, 49, 51, 53, 55, 8, 10, 12, 14, 9, 11, 13, 15, 24, 26, 28, 30, 25, 27, 29,
		31, 40, 42, 44, 46, 41, 43, 45, 47, 56, 58, 60, 62, 57, 59, 61, 63};
	const __m512i bias = _mm512_set1_epi16(0x80);
	const __m512i digits = _mm512_xor_si512(_mm512_add_epi16(packed, bias), bias);

	return _mm512_permutexvar_epi8(_mm512_loadu_si512(by_quad), digits);
}

/* @sum += the products of four unsigned bytes with four signed ones.  Written out: as a builtin gcc 12 keeps each sum twice
 * and spills half of them. */
BYTES_INLINE __m512i quads_product(__m512i sum, __m512i codes, __m512i digits)
{
	__asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(digits));
	return sum;
}

/* What sums of products with code + 128 begin with, by digit, of a row whose digits @sum has: [quad][digit]. */
BYTES_INLINE void digits_less(int32_t *less, __m512i sum)
{
	const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
	const __m128i quarter = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
	const __m128i both = _mm_add_epi32(quarter, _mm_unpackhi_epi64(quarter, quarter));

	_mm_storel_epi64((__m128i *)(void *)less, _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(both, 7)));
}

/* Two digits' sums as one number in steps. */
BYTES_INLINE vec digits_joined(const __m512i sum[DIGITS])
{
	return vec_fma(_mm512_cvtepi32_ps(sum[1]), vec_set1(256), _mm512_cvtepi32_ps(sum[0]));
}

/* ---- Queries: [quad of dims][row][digit][4] of KEY_ROWS rows at a time, of what is left over row by row ---- */

BYTES_INLINE vec query_dims(const float *from, uint32_t d, uint32_t dim)
{
	return _mm512_maskz_loadu_ps((__mmask16)attn_low_bits((int64_t)dim - d), from + d);
}

BYTES_TARGET static void query_digits(const struct work *w, uint32_t h, uint32_t r)
{
	const uint32_t dim = w->part->call->geom.dim_k, first = query_place(w, r), at = h * w->rows + r;
	const uint32_t step = query_step(w, r) * QUAD_BYTES;
	const float *from = query_row(w, h, r);
	int8_t *to = w->q_digits + ((size_t)h * w->rows + first) * w->k_pad * DIGITS + (r - first) * QUAD_BYTES;
	__m512i top = _mm512_setzero_si512(), sum = _mm512_setzero_si512();
	float inverse;

	for (uint32_t d = 0; d < dim; d += LANES)
		top = _mm512_max_epi32(top, magnitude_bits(query_dims(from, d, dim)));
	w->q_step[at] = digits_step((uint32_t)_mm512_reduce_max_epi32(top), &inverse);
	for (uint32_t d = 0; d < dim; d += 2 * LANES) {
		const __m512i digits = digits_of(numbers_packed(vec_mul(query_dims(from, d, dim), vec_set1(inverse)),
			vec_mul(query_dims(from, d + LANES, dim), vec_set1(inverse))));
		_Alignas(64) int8_t bytes[64];

		sum = quads_product(sum, _mm512_set1_epi8(1), digits);
		_mm512_store_si512(bytes, digits);
		for (uint32_t q = 0; q < 2 * LANES / QUAD && d + q * QUAD < dim; q++)
			memcpy(to + (d / QUAD + q) * step, bytes + q * QUAD_BYTES, QUAD_BYTES);
	}
	digits_less(w->q_less + (size_t)at * DIGITS, sum);
}

static void bytes_queries(const struct work *w)
{
	for (uint32_t h = 0; h < w->part->rows.n_heads; h++)
		for (uint32_t r = 0; r < w->rows; r++)
			query_digits(w, h, r);
}

/* ---- Keys ---- */

BYTES_INLINE __m512i quad_broadcast(const int8_t *digits)
{
	int32_t four;

	memcpy(&four, digits, sizeof(four));
	return _mm512_set1_epi32(four);
}

BYTES_INLINE void bytes_scores_take(const int n_rows, const int n_streams, const struct work *w, uint32_t at,
	uint32_t dim, const struct lanes *k, const struct fetch *fetch, uint32_t s0, float *score)
{
	/* four dims of sixteen tokens to sixteen tokens of four dims */
	static const uint8_t by_token[64] = {0, 16, 32, 48, 1, 17, 33, 49, 2, 18, 34, 50, 3, 19, 35, 51, 4, 20, 36, 52,
		5, 21, 37, 53, 6, 22, 38, 54, 7, 23, 39, 55, 8, 24, 40, 56, 9, 25, 41, 57, 10, 26, 42, 58, 11, 27, 43,
		59, 12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};
	const __m512i turn = _mm512_loadu_si512(by_token), half = _mm512_set1_epi8(-128);
	const int8_t *q = w->q_digits + (size_t)at * w->k_pad * DIGITS;
	__m512i sum[KEY_ROWS][2][DIGITS];

	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int s = 0; s < n_streams; s++)
		UNROLL for (int p = 0; p < DIGITS; p++) sum[r][s][p] =
			_mm512_set1_epi32(w->q_less[(at + (uint32_t)r) * DIGITS + (uint32_t)p]);
	/* a last quad that is not full reads on into the scales, for digits that are zero */
	for (uint32_t d = 0; d < dim; d += QUAD, q += n_rows * DIGITS * (int)QUAD) {
		const size_t off = (size_t)d * SUB_TOKENS;
		__m512i code[2];

		if (fetch)
			ask(fetch->far, (off < fetch->turn ? fetch->own : fetch->next) + s0, (uint32_t)n_streams, off);
		UNROLL for (int s = 0; s < n_streams; s++) code[s] = _mm512_xor_si512(
			_mm512_permutexvar_epi8(turn, _mm512_loadu_si512(k->base[s0 + (uint32_t)s] + off)), half);
		UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int p = 0; p < DIGITS; p++)
		{
			const __m512i by = quad_broadcast(q + (r * DIGITS + p) * (int)QUAD);

			UNROLL for (int s = 0; s < n_streams; s++) sum[r][s][p] =
				quads_product(sum[r][s][p], code[s], by);
		}
	}
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int s = 0; s < n_streams; s++)
		vec_store(score + r * (int)ATTN_TILE + s * (int)SUB_TOKENS,
			vec_mul(vec_mul(digits_joined(sum[r][s]), vec_set1(w->q_step[at + (uint32_t)r])),
				vec_load(k->scale[s0 + (uint32_t)s])));
}

BYTES_INLINE void bytes_scores_rows(const int n_streams, const struct tiled *x, uint32_t h, const struct lanes *k,
	const struct fetch *fetch, uint32_t s0)
{
	const struct work *w = &x->w;
	float *score = w->weight + s0 * SUB_TOKENS;
	uint32_t r = 0;

	for (; r + KEY_ROWS <= w->rows; r += KEY_ROWS, score += KEY_ROWS * ATTN_TILE, fetch = NULL)
		bytes_scores_take(KEY_ROWS, n_streams, w, h * w->rows + r, x->k.dim, k, fetch, s0, score);
	for (; r < w->rows; r++, score += ATTN_TILE, fetch = NULL)
		bytes_scores_take(1, n_streams, w, h * w->rows + r, x->k.dim, k, fetch, s0, score);
}

BYTES_TARGET static void bytes_scores(
	const struct tiled *x, uint32_t h, const struct lanes *k, const struct fetch *fetch, bool one_stream)
{
	if (one_stream) {
		bytes_scores_rows(1, x, h, k, fetch, 0);
		return;
	}
	for (uint32_t s = 0; s < STREAMS; s += 2)
		bytes_scores_rows(2, x, h, k, fetch, s);
}

/* ---- Values ---- */

#define TILE_DIGITS (ATTN_TILE * DIGITS) /* of a row's weights */
#define LEFT DIGITS /* the digit of what those leave, in 256ths */

/* Weights of a tile as whole numbers, by row. */
struct weighed {
	_Alignas(64) int8_t digits[KEY_ROWS * TILE_DIGITS]; /* [quad of tokens][digit][4] each */
	_Alignas(64)
		int8_t left[KEY_ROWS * ATTN_TILE]; /* [quad of a subtile][stream][4] each, as packing twice leaves it */
	int32_t less[KEY_ROWS][LEFT + 1];
	float step[KEY_ROWS];
};

/* A row's numbers of a tile, by the inverse of its step, to digits. */
BYTES_INLINE void weights_open(const vec number[STREAMS], float inverse, uint32_t r, struct weighed *by, vec *left_sum)
{
	__m512i sum = _mm512_setzero_si512(), whole[STREAMS], left[STREAMS];

	UNROLL for (uint32_t s = 0; s < STREAMS; s++)
	{
		const vec steps = vec_mul(number[s], vec_set1(inverse));

		whole[s] = _mm512_cvtps_epi32(steps);
		left[s] = _mm512_cvtps_epi32(vec_mul(vec_sub(steps, _mm512_cvtepi32_ps(whole[s])), vec_set1(256)));
	}
	UNROLL for (uint32_t s = 0; s < STREAMS; s += 2)
	{
		const __m512i digits = digits_of(_mm512_packs_epi32(whole[s], whole[s + 1]));

		sum = quads_product(sum, _mm512_set1_epi8(1), digits);
		_mm512_store_si512(by->digits + r * TILE_DIGITS + s * SUB_TOKENS * DIGITS, digits);
	}
	digits_less(by->less[r], sum);
	left[0] = _mm512_packs_epi16(_mm512_packs_epi32(left[0], left[1]), _mm512_packs_epi32(left[2], left[3]));
	_mm512_store_si512(by->left + r * ATTN_TILE, left[0]);
	*left_sum = _mm512_cvtepi32_ps(quads_product(_mm512_setzero_si512(), _mm512_set1_epi8(1), left[0]));
}

/* Those of each row's mask, by their tokens' scales.  A NaN among them is in the row's sum of weights too. */
BYTES_INLINE void bytes_weigh(
	const int n_rows, const struct work *w, uint32_t r0, const struct lanes *v, struct weighed *by)
{
	vec number[KEY_ROWS][STREAMS], left[KEY_ROWS];
	__m512i top[KEY_ROWS];
	uint32_t tops[KEY_ROWS];
	float lefts[KEY_ROWS];

	UNROLL for (int r = 0; r < KEY_ROWS; r++) top[r] = _mm512_setzero_si512();
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (uint32_t s = 0; s < STREAMS; s++)
	{
		number[r][s] = _mm512_maskz_mul_ps((__mmask16)(w->mask[r0 + (uint32_t)r] >> s * SUB_TOKENS),
			vec_load(w->weight + (r0 + (size_t)r) * ATTN_TILE + s * SUB_TOKENS), vec_load(v->scale[s]));
		top[r] = _mm512_max_epi32(top[r], magnitude_bits(number[r][s]));
	}
	tops_store(tops, top[0], top[1], top[2], top[3]);
	UNROLL for (int r = 0; r < KEY_ROWS; r++) left[r] = vec_zero();
	UNROLL for (int r = 0; r < n_rows; r++)
	{
		float inverse;

		by->step[r] = digits_step(tops[r], &inverse);
		weights_open(number[r], inverse, (uint32_t)r, by, &left[r]);
	}
	vec_store_sums(lefts, left[0], left[1], left[2], left[3]);
	UNROLL for (int r = 0; r < n_rows; r++) by->less[r][LEFT] = -128 * (int32_t)lefts[r];
}

/* Four tokens of 64 dims to quads: vector j of the half has dims 16 l + 8 * half + 4 j .. + 3 in its quarter l. */
BYTES_INLINE void quads_open(const char *row, size_t step, const bool high, __m512i *quads)
{
	const __m512i half = _mm512_set1_epi8(-128);
	const __m512i a = _mm512_loadu_si512(row), b = _mm512_loadu_si512(row + step);
	const __m512i c = _mm512_loadu_si512(row + 2 * step), d = _mm512_loadu_si512(row + 3 * step);
	const __m512i ab = high ? _mm512_unpackhi_epi8(a, b) : _mm512_unpacklo_epi8(a, b);
	const __m512i cd = high ? _mm512_unpackhi_epi8(c, d) : _mm512_unpacklo_epi8(c, d);

	quads[0] = _mm512_xor_si512(_mm512_unpacklo_epi16(ab, cd), half);
	quads[1] = _mm512_xor_si512(_mm512_unpackhi_epi16(ab, cd), half);
}

/* Half of a chunk's dims, see quads_open(), of all values of a tile. */
BYTES_INLINE void bytes_turns_half(const int n_rows, const bool high, const struct weighed *weighed,
	const struct lanes *v, size_t off, size_t step, const struct fetch *fetch, vec done[KEY_ROWS][4])
{
	__m512i sum[KEY_ROWS][2][LEFT + 1];

	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int j = 0; j < 2; j++)
		UNROLL for (int p = 0; p <= LEFT; p++) sum[r][j][p] = _mm512_set1_epi32(weighed->less[r][p]);
	for (uint32_t i = 0; i < ATTN_TILE / QUAD;
		i++) { /* by turns; not unrolled, or the sums would not stay in registers */
		const uint32_t s = i % STREAMS, t = i / STREAMS * QUAD;
		const size_t at = off + t * step;
		const int8_t *by_row = weighed->digits + (s * SUB_TOKENS + t) * DIGITS;
		const int8_t *left = weighed->left + t * STREAMS + s * QUAD;
		__m512i quads[2];

		if (fetch) {
			const char *const *soon = (at + QUAD * step <= fetch->turn ? fetch->own : fetch->next) + s;

			UNROLL for (size_t o = 0; o < QUAD; o++) ask(fetch->far, soon, 1, at + o * step);
		}
		quads_open(v->base[s] + at, step, high, quads);
		UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int p = 0; p <= LEFT; p++)
		{
			const __m512i by = quad_broadcast(
				p < LEFT ? by_row + r * (int)TILE_DIGITS + p * (int)QUAD : left + r * (int)ATTN_TILE);

			UNROLL for (int j = 0; j < 2; j++) sum[r][j][p] = quads_product(sum[r][j][p], quads[j], by);
		}
	}
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int j = 0; j < 2; j++) done[r][2 * high + j] =
		vec_fma(_mm512_cvtepi32_ps(sum[r][j][LEFT]), vec_set1(0x1p-8f), digits_joined(sum[r][j]));
}

/* Quarters of quads back to dims in order, added to what a row has. */
BYTES_INLINE void quads_add(const vec quads[4], float step, uint32_t n, float *acc)
{
	const vec a = _mm512_shuffle_f32x4(quads[0], quads[1], 0x44),
		  b = _mm512_shuffle_f32x4(quads[0], quads[1], 0xee);
	const vec c = _mm512_shuffle_f32x4(quads[2], quads[3], 0x44),
		  d = _mm512_shuffle_f32x4(quads[2], quads[3], 0xee);
	const vec dims[4] = {_mm512_shuffle_f32x4(a, c, 0x88), _mm512_shuffle_f32x4(a, c, 0xdd),
		_mm512_shuffle_f32x4(b, d, 0x88), _mm512_shuffle_f32x4(b, d, 0xdd)};

	UNROLL for (uint32_t i = 0; i < 4; i++) if (i * LANES < n)
		vec_store(acc + i * LANES, vec_fma(dims[i], vec_set1(step), vec_load(acc + i * LANES)));
}

BYTES_INLINE void bytes_turns_rows(const int n_rows, const struct tiled *x, const struct lanes *v,
	const struct fetch *fetch, uint32_t r0, float *acc)
{
	const uint32_t dim = (uint32_t)attn_round_up(x->v.dim, TILED_PAD);
	const size_t acc_stride = x->w.part->call->acc_floats;
	struct weighed weighed;

	bytes_weigh(n_rows, &x->w, r0, v, &weighed);
	/* a token of less than 64 dims is read on into what follows, the scales at last: dims that are not kept */
	for (uint32_t c = 0; c < dim; c += TILED_CHUNK) {
		const uint32_t n = tiled_v_row(x->v.dim, c);
		vec done[KEY_ROWS][4];

		bytes_turns_half(n_rows, false, &weighed, v, (size_t)c * SUB_TOKENS, n, fetch, done);
		bytes_turns_half(n_rows, true, &weighed, v, (size_t)c * SUB_TOKENS, n, NULL, done);
		UNROLL for (int r = 0; r < n_rows; r++)
			quads_add(done[r], weighed.step[r], n, acc + (size_t)r * acc_stride + c);
	}
}

BYTES_TARGET static void bytes_turns(
	const struct tiled *x, const struct lanes *v, const struct fetch *fetch, uint32_t h)
{
	const struct work *w = &x->w;
	const size_t acc_stride = w->part->call->acc_floats;
	float *acc = w->part->state.acc + (size_t)h * w->rows * acc_stride;
	uint32_t r = 0;

	for (; r + KEY_ROWS <= w->rows; r += KEY_ROWS, fetch = NULL)
		bytes_turns_rows(KEY_ROWS, x, v, fetch, r, acc + r * acc_stride);
	for (; r < w->rows; r++, fetch = NULL)
		bytes_turns_rows(1, x, v, fetch, r, acc + r * acc_stride);
}
