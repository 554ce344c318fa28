/*
 * attn_bytes.h - I8 in TILED by products of bytes, for processors with VNNI and VBMI; included by attn_tiled.h
 *
 * A query's row, and a row's weights of one tile, become whole numbers in steps of a power of two below 2^-22 of the
 * largest among them, written as three signed digits of eight bits (as exact as f32, whose sums round as much).  Each
 * digit's products with the codes are added up in whole numbers, so their order counts for nothing.  VPDPBUSD wants one
 * side unsigned: codes are taken as code + 128, and 128 times the digits' sum is in the sum from the beginning.
 */
#define DIGITS 3
#define DIGITS_MANTISSA \
	0x7efe00u /* a little below that of 127 * (1 + 256 + 65536), the largest number of three digits */
#define QUAD 4u /* products of one instruction and lane */
#define BYTES_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")))
#define BYTES_INLINE BYTES_TARGET static inline __attribute__((always_inline))

/* ---- Numbers to digits ---- */

/* Step and its inverse for numbers up to @top, given by its bits; NaN where anything was not finite. */
static float digits_step(uint32_t top, float *inverse)
{
	uint32_t exponent = top >> 23;

	*inverse = 0;
	if (exponent == 255)
		return NAN;
	if (exponent < 30) /* so little that an inverse would be too large for f32 */
		exponent = 30;
	exponent = 276 - exponent - ((top & 0x7fffff) > DIGITS_MANTISSA);
	*inverse = half_float(exponent << 23);
	return half_float((254 - exponent) << 23);
}

BYTES_INLINE __m512i magnitude_bits(vec x)
{
	return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

/* Digit p of lane i in byte 4 * i + p. */
BYTES_INLINE __m512i digits_of(vec x, float inverse)
{
	const __m512i bias = _mm512_set1_epi32(0x808080);

	return _mm512_xor_si512(
		_mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(inverse))), bias), bias);
}

/* @sum += the products of four unsigned bytes with four signed ones.  Written out: as a builtin gcc 12 keeps each sum twice
 * and spills half of them. */
BYTES_INLINE __m512i quads_product(__m512i sum, __m512i codes, __m512i digits)
{
	__asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(digits));
	return sum;
}

/* ---- Queries: [quad of dims][row][digit][4] of KEY_ROWS rows at a time, of what is left over row by row ---- */

BYTES_TARGET static void query_digits(const struct work *w, uint32_t h, uint32_t r)
{
	/* digit p of dims 4 q .. 4 q + 3 into bytes 12 * q + 4 * p and on */
	static const uint8_t by_quad[64] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 16, 20, 24, 28, 17, 21, 25, 29, 18,
		22, 26, 30, 32, 36, 40, 44, 33, 37, 41, 45, 34, 38, 42, 46, 48, 52, 56, 60, 49, 53, 57, 61, 50, 54, 58,
		62, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3};
	const uint32_t dim = w->part->call->geom.dim_k, first = query_place(w, r), at = h * w->rows + r;
	const uint32_t step = query_step(w, r) * DIGITS * QUAD;
	const float *from = query_row(w, h, r);
	int8_t *to = w->q_digits + ((size_t)h * w->rows + first) * w->k_pad * DIGITS + (r - first) * DIGITS * QUAD;
	__m512i top = _mm512_setzero_si512(), sum = _mm512_setzero_si512();
	_Alignas(64) int32_t sums[LANES];
	float inverse;

	for (uint32_t d = 0; d < dim; d += LANES)
		top = _mm512_max_epi32(
			top, magnitude_bits(_mm512_maskz_loadu_ps((__mmask16)attn_low_bits(dim - d), from + d)));
	w->q_step[at] = digits_step((uint32_t)_mm512_reduce_max_epi32(top), &inverse);
	for (uint32_t d = 0; d < dim; d += LANES) {
		const vec x = _mm512_maskz_loadu_ps((__mmask16)attn_low_bits(dim - d), from + d);
		const __m512i digits = _mm512_permutexvar_epi8(_mm512_loadu_si512(by_quad), digits_of(x, inverse));
		_Alignas(64) int8_t bytes[64];

		sum = quads_product(sum, _mm512_set1_epi8(1), digits);
		_mm512_store_si512(bytes, digits);
		for (uint32_t q = 0; q < LANES / QUAD && d + q * QUAD < dim; q++)
			memcpy(to + (d / QUAD + q) * step, bytes + q * DIGITS * QUAD, DIGITS * QUAD);
	}
	_mm512_store_si512(sums, sum);
	for (uint32_t p = 0; p < DIGITS; p++)
		w->q_less[at * DIGITS + p] =
			-128 * (sums[p] + sums[DIGITS + p] + sums[2 * DIGITS + p] + sums[3 * DIGITS + p]);
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

/* Three sums as one number in steps. */
BYTES_INLINE vec digits_joined(__m512i low, __m512i middle, __m512i high)
{
	const vec rest = _mm512_fmadd_ps(_mm512_cvtepi32_ps(middle), _mm512_set1_ps(256), _mm512_cvtepi32_ps(low));

	return _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(65536), rest);
}

BYTES_INLINE void bytes_scores_take(const int n_rows, const int n_streams, const struct work *w, uint32_t at,
	uint32_t dim, const char *const *k, const struct fetch *fetch, uint32_t s0, float *score)
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
		UNROLL for (int s = 0; s < n_streams; s++) code[s] =
			_mm512_xor_si512(_mm512_permutexvar_epi8(turn, _mm512_loadu_si512(k[s] + off)), half);
		UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int p = 0; p < DIGITS; p++)
		{
			const __m512i by = quad_broadcast(q + (r * DIGITS + p) * (int)QUAD);

			UNROLL for (int s = 0; s < n_streams; s++) sum[r][s][p] =
				quads_product(sum[r][s][p], code[s], by);
		}
	}
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int s = 0; s < n_streams; s++)
		vec_store(score + r * (int)ATTN_TILE + s * (int)SUB_TOKENS,
			vec_mul(digits_joined(sum[r][s][0], sum[r][s][1], sum[r][s][2]),
				vec_set1(w->q_step[at + (uint32_t)r])));
}

BYTES_INLINE void bytes_scores_rows(const int n_streams, const struct tiled *x, uint32_t h, const char *const *k,
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
		bytes_scores_rows(1, x, h, k->base, fetch, 0);
		return;
	}
	for (uint32_t s = 0; s < STREAMS; s += 2)
		bytes_scores_rows(2, x, h, k->base + s, fetch, s);
}

/* ---- Values ---- */

/* The step of weights by those scales that a mask shows: no weight alone is above 1. */
BYTES_TARGET static float mask_step(const struct lanes *v, uint64_t mask, float *inverse)
{
	__m512i top = _mm512_setzero_si512();

	UNROLL for (uint32_t s = 0; s < STREAMS; s++) top = _mm512_max_epi32(
		top, magnitude_bits(_mm512_maskz_loadu_ps((__mmask16)(mask >> s * SUB_TOKENS), v->scale[s])));
	return digits_step((uint32_t)_mm512_reduce_max_epi32(top), inverse);
}

/* A row's weights, those of its mask: [digit][64] by position.  A NaN among them is in the row's sum of weights too. */
BYTES_TARGET static void weight_digits(const struct work *w, uint32_t r, float inverse)
{
	static const uint8_t by_digit[64] = {0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 1, 5, 9, 13,
		17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54,
		58, 62, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3};
	int8_t *to = w->w_digits + (size_t)r * DIGITS * ATTN_TILE;
	__m512i sum = _mm512_setzero_si512();

	UNROLL for (uint32_t s = 0; s < STREAMS; s++)
	{
		const vec x = _mm512_maskz_loadu_ps(
			(__mmask16)(w->mask[r] >> s * SUB_TOKENS), w->weight + (size_t)r * ATTN_TILE + s * SUB_TOKENS);
		const __m512i digits = _mm512_permutexvar_epi8(_mm512_loadu_si512(by_digit), digits_of(x, inverse));

		sum = quads_product(sum, _mm512_set1_epi8(1), digits);
		_mm_storeu_si128((__m128i *)(void *)(to + s * SUB_TOKENS), _mm512_castsi512_si128(digits));
		_mm_storeu_si128(
			(__m128i *)(void *)(to + ATTN_TILE + s * SUB_TOKENS), _mm512_extracti32x4_epi32(digits, 1));
		_mm_storeu_si128(
			(__m128i *)(void *)(to + 2 * ATTN_TILE + s * SUB_TOKENS), _mm512_extracti32x4_epi32(digits, 2));
	}
	sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_BADC));
	sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_CDAB));
	_mm512_store_si512(
		w->w_less + (size_t)r * LANES, _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7)));
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
BYTES_INLINE void bytes_turns_half(const int n_rows, const bool high, const struct work *w, uint32_t r0,
	const struct lanes *v, size_t off, size_t step, const struct fetch *fetch, vec done[KEY_ROWS][4])
{
	const int8_t *weights = w->w_digits + (size_t)r0 * DIGITS * ATTN_TILE;
	__m512i sum[KEY_ROWS][2][DIGITS];

	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int j = 0; j < 2; j++)
		UNROLL for (int p = 0; p < DIGITS; p++) sum[r][j][p] =
			_mm512_set1_epi32(w->w_less[(r0 + (size_t)r) * LANES + 4 * (size_t)p]);
	for (uint32_t i = 0; i < ATTN_TILE / QUAD;
		i++) { /* by turns; not unrolled, or the sums would not stay in registers */
		const uint32_t s = i % STREAMS, t = i / STREAMS * QUAD;
		const size_t at = off + t * step;
		const int8_t *by_row = weights + s * SUB_TOKENS + t;
		__m512i quads[2];

		if (fetch) {
			const char *const *soon = (at + QUAD * step <= fetch->turn ? fetch->own : fetch->next) + s;

			UNROLL for (size_t o = 0; o < QUAD; o++) ask(fetch->far, soon, 1, at + o * step);
		}
		quads_open(v->base[s] + at, step, high, quads);
		UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int p = 0; p < DIGITS; p++)
		{
			const __m512i by = quad_broadcast(by_row + (r * DIGITS + p) * (int)ATTN_TILE);

			UNROLL for (int j = 0; j < 2; j++) sum[r][j][p] = quads_product(sum[r][j][p], quads[j], by);
		}
	}
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int j = 0; j < 2; j++) done[r][2 * high + j] =
		vec_mul(digits_joined(sum[r][j][0], sum[r][j][1], sum[r][j][2]), vec_set1(w->w_step[r0 + (uint32_t)r]));
}

/* Quarters of quads back to dims in order, added to what a row has. */
BYTES_INLINE void quads_add(const vec quads[4], uint32_t n, float *acc)
{
	const vec a = _mm512_shuffle_f32x4(quads[0], quads[1], 0x44),
		  b = _mm512_shuffle_f32x4(quads[0], quads[1], 0xee);
	const vec c = _mm512_shuffle_f32x4(quads[2], quads[3], 0x44),
		  d = _mm512_shuffle_f32x4(quads[2], quads[3], 0xee);
	const vec dims[4] = {_mm512_shuffle_f32x4(a, c, 0x88), _mm512_shuffle_f32x4(a, c, 0xdd),
		_mm512_shuffle_f32x4(b, d, 0x88), _mm512_shuffle_f32x4(b, d, 0xdd)};

	UNROLL for (uint32_t i = 0; i < 4; i++) if (i * LANES < n)
		vec_store(acc + i * LANES, vec_add(vec_load(acc + i * LANES), dims[i]));
}

BYTES_INLINE void bytes_turns_rows(const int n_rows, const struct tiled *x, const struct lanes *v,
	const struct fetch *fetch, uint32_t r0, float *acc)
{
	const uint32_t dim = (uint32_t)attn_round_up(x->v.dim, TILED_PAD);
	const size_t acc_stride = x->w.part->call->acc_floats;

	/* a token of less than 64 dims is read on into what follows, the scales at last: dims that are not kept */
	for (uint32_t c = 0; c < dim; c += TILED_CHUNK) {
		const uint32_t n = tiled_v_row(x->v.dim, c);
		vec done[KEY_ROWS][4];

		bytes_turns_half(n_rows, false, &x->w, r0, v, (size_t)c * SUB_TOKENS, n, fetch, done);
		bytes_turns_half(n_rows, true, &x->w, r0, v, (size_t)c * SUB_TOKENS, n, NULL, done);
		UNROLL for (int r = 0; r < n_rows; r++) quads_add(done[r], n, acc + (size_t)r * acc_stride + c);
	}
}

BYTES_TARGET static void bytes_turns(
	const struct tiled *x, const struct lanes *v, const struct fetch *fetch, uint32_t h)
{
	const struct work *w = &x->w;
	const size_t acc_stride = w->part->call->acc_floats;
	float *acc = w->part->state.acc + (size_t)h * w->rows * acc_stride, step = 0, inverse = 0;
	uint64_t mask = 0;
	uint32_t r = 0;

	for (uint32_t i = 0; i < w->rows; i++) {
		if (!i || w->mask[i] != mask)
			step = mask_step(v, w->mask[i], &inverse);
		mask = w->mask[i];
		w->w_step[i] = step;
		weight_digits(w, i, inverse);
	}
	for (; r + KEY_ROWS <= w->rows; r += KEY_ROWS, fetch = NULL)
		bytes_turns_rows(KEY_ROWS, x, v, fetch, r, acc + r * acc_stride);
	for (; r < w->rows; r++, fetch = NULL)
		bytes_turns_rows(1, x, v, fetch, r, acc + r * acc_stride);
}
