/*
 * attn_amx.h - BF16 in TILED by products of tiles, for processors with AMX; included by attn_tiled.h
 *
 * TDPBF16PS multiplies rows of pairs of bf16 with pairs of columns and adds up in f32.  A query, or a row of weights, is
 * rounded to sixteen significant bits, which are two numbers of bf16 without a rest: it goes in as two rows of parts, K and
 * V as they lie (see tiled.h).  The sum of weights is that of the rounded ones, so that they still make one.  A row of a
 * product is a chain of its own, so the promise of attn.h holds: the one row of a decode step takes the road of a
 * prefill's 512.
 *
 * What is not finite would spoil its neighbours, for a weight of zero is multiplied too: it shows in the product, which
 * is then mended.  Subnormal parts count as zero: less than the rounding of anything above 2^-100.
 */
#define PARTS AMX_PARTS
#define PART_ROWS AMX_PART_ROWS
#define TILE_ROWS (PARTS * PART_ROWS)
#define STEP_DIMS 32u /* of a product of queries and K: sixteen pairs */
#define STEP_BYTES 1024u
#define PAIR_BYTES (2 * sizeof(uint16_t))
#define NOT_FINITE 0x99 /* of VFPCLASSPS */
#define AMX_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,amx-tile,amx-bf16")))
/* The compilers' headers do not say that tiles read memory. */
#define AMX_FENCE __asm__ volatile("" ::: "memory")

/* Tiles 0 .. 3: sums; 4: parts of queries, 5: of K; 6: parts of sixteen weights, 7: of V. */
AMX_TARGET static void amx_begin(uint32_t rows)
{
	const uint8_t n = (uint8_t)(PARTS * (rows < PART_ROWS ? rows : PART_ROWS));
	const struct {
		uint8_t palette, start, reserved[14];
		uint16_t row_bytes[16];
		uint8_t rows[16];
	} shape = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 32, 64}, .rows = {n, n, n, n, n, 16, n, 8}};

	__asm__ volatile("" : : "r"(&shape) : "memory"); /* all of it is read, not only its first word */
	_tile_loadconfig(&shape);
}

AMX_TARGET static void amx_end(void)
{
	_tile_release();
}

/* ---- Numbers to parts ---- */

static uint32_t key_steps(const struct tiled *x)
{
	return (x->k.dim + STEP_DIMS - 1) / STEP_DIMS;
}

static uint32_t row_blocks(uint32_t rows)
{
	return (rows + PART_ROWS - 1) / PART_ROWS;
}

/* The upper half of each of 32 numbers. */
INLINE __m512i upper_halves(vec a, vec b)
{
	static const uint16_t odd[32] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41,
		43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};

	return _mm512_permutex2var_epi16(_mm512_castps_si512(a), _mm512_loadu_si512(odd), _mm512_castps_si512(b));
}

INLINE vec lower_half(vec a)
{
	const __m512i upper = _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)0xffff0000));

	return _mm512_sub_ps(a, _mm512_castsi512_ps(upper));
}

/* 32 numbers of sixteen bits as rows of two parts, @stride elements apart. */
INLINE void parts_store(vec a, vec b, uint16_t *to, size_t stride)
{
	_mm512_storeu_si512(to, upper_halves(a, b));
	_mm512_storeu_si512(to + stride, upper_halves(lower_half(a), lower_half(b)));
}

/* The sums of a row's parts as one. */
INLINE vec parts_joined(const float *sums, size_t stride)
{
	return vec_add(vec_load(sums + stride), vec_load(sums));
}

/* Dims @d and on of @dim, zeros behind the last. */
INLINE vec query_short(const float *from, uint32_t dim, uint32_t d)
{
	return vec_short(_mm512_maskz_loadu_ps((__mmask16)attn_low_bits((int64_t)dim - d), from + d));
}

/* [head][row][part][dims of all steps] */
TARGET static void amx_queries(const struct tiled *x)
{
	const struct work *w = &x->w;
	const uint32_t dim = x->k.dim, pad = key_steps(x) * STEP_DIMS;

	for (uint32_t h = 0; h < w->part->rows.n_heads; h++)
		for (uint32_t r = 0; r < w->rows; r++) {
			const float *from = query_row(w, h, r);
			uint16_t *to =
				w->q_parts + ((size_t)h * row_blocks(w->rows) * TILE_ROWS + (size_t)r * PARTS) * pad;

			for (uint32_t d = 0; d < pad; d += STEP_DIMS)
				parts_store(query_short(from, dim, d), query_short(from, dim, d + LANES), to + d, pad);
		}
}

/* Weights of a tile of rows: [row][part][64].  Rows that see nothing here and those past the last: zero */
TARGET static void amx_weights(const struct work *w, uint32_t block)
{
	for (uint32_t i = 0; i < PART_ROWS; i++) {
		const uint32_t r = block * PART_ROWS + i;
		const float *weight = w->weight + (size_t)r * ATTN_TILE;
		uint16_t *to = w->w_parts + (size_t)i * PARTS * ATTN_TILE;

		if (r >= w->rows || !w->mask[r]) {
			memset(to, 0, PARTS * ATTN_TILE * sizeof(*to));
			continue;
		}
		for (uint32_t j = 0; j < ATTN_TILE; j += 2 * LANES)
			parts_store(vec_load(weight + j), vec_load(weight + j + LANES), to + j, ATTN_TILE);
	}
}

/* ---- Scores ---- */

/* Asks for @n bytes of stream @s ahead of @at. */
INLINE void stream_fetch(const struct fetch *fetch, uint32_t s, size_t at, size_t n)
{
	const char *const *soon = (at < fetch->turn ? fetch->own : fetch->next) + s;

	for (size_t o = 0; o < n; o += 64)
		ask(fetch->far, soon, 1, at + o);
}

/* A step that is not full goes on with zeros. */
static void keys_rest(const struct tiled *x, const struct tile *tile, const struct lanes *k)
{
	const size_t full = x->k.dim / STEP_DIMS * STEP_BYTES;
	const size_t rest = (x->k.dim % STEP_DIMS + 1) / 2 * SUB_TOKENS * PAIR_BYTES;

	for (uint32_t s = 0; s < STREAMS && rest; s++) {
		uint16_t *to = (uint16_t *)(void *)(x->w.k_rest + s * STEP_BYTES);

		memset(to, 0, STEP_BYTES);
		if (!tile->sub[s].present)
			continue;
		memcpy(to, k->base[s] + full, rest);
		for (uint32_t t = 0; t < SUB_TOKENS && x->k.dim % 2; t++) /* an odd last dim's partner has no value */
			to[tiled_k_at(KVATTN_BF16, SUB_TOKENS, x->k.dim % STEP_DIMS, t)] = 0;
	}
}

/* One step of stream @s, the number of its sums' tile. */
#define STREAM_STEP(s) \
	do { \
		if (tile->sub[s].present) { \
			if (fetch) \
				stream_fetch(fetch, s, (size_t)j *STEP_BYTES, STEP_BYTES); \
			_tile_loadd( \
				5, j < full ? k->base[s] + (size_t)j * STEP_BYTES : x->w.k_rest + (s)*STEP_BYTES, 64); \
			_tile_dpbf16ps(s, 4, 5); \
		} \
	} while (0)

/* A tile of rows with all keys of the step: product[row and part][64] */
AMX_TARGET static void scores_product(const struct tiled *x, const struct tile *tile, const struct lanes *k,
	const struct fetch *fetch, const uint16_t *rows)
{
	const uint32_t steps = key_steps(x), full = x->k.dim / STEP_DIMS;
	const size_t stride = (size_t)steps * STEP_DIMS * sizeof(*rows);
	float *to = x->w.product;

	AMX_FENCE;
	_tile_zero(0);
	_tile_zero(1);
	_tile_zero(2);
	_tile_zero(3);
	for (uint32_t j = 0; j < steps; j++) {
		_tile_loadd(4, rows + (size_t)j * STEP_DIMS, stride);
		STREAM_STEP(0);
		STREAM_STEP(1);
		STREAM_STEP(2);
		STREAM_STEP(3);
	}
	_tile_stored(0, to, ATTN_TILE * sizeof(float));
	_tile_stored(1, to + SUB_TOKENS, ATTN_TILE * sizeof(float));
	_tile_stored(2, to + 2 * SUB_TOKENS, ATTN_TILE * sizeof(float));
	_tile_stored(3, to + 3 * SUB_TOKENS, ATTN_TILE * sizeof(float));
	AMX_FENCE;
}
#undef STREAM_STEP

/* Scores that are not finite once more, one by one. */
static void scores_mend(
	const struct tiled *x, const struct lanes *k, uint32_t h, uint32_t r, uint32_t s, uint32_t which)
{
	const float *q = query_row(&x->w, h, r);
	const uint16_t *keys = (const uint16_t *)(const void *)k->base[s];

	for (; which; which &= which - 1) {
		const uint32_t t = (uint32_t)__builtin_ctz(which);
		float score = 0;

		for (uint32_t d = 0; d < x->k.dim; d++)
			score = fmaf(q[d], half_bf16_to(keys[tiled_k_at(KVATTN_BF16, SUB_TOKENS, d, t)]), score);
		x->w.weight[(size_t)r * ATTN_TILE + s * SUB_TOKENS + t] = score;
	}
}

TARGET static void scores_join(
	const struct tiled *x, const struct tile *tile, const struct lanes *k, uint32_t h, uint32_t block)
{
	const struct work *w = &x->w;

	for (uint32_t i = 0; i < PART_ROWS && block * PART_ROWS + i < w->rows; i++) {
		const uint32_t r = block * PART_ROWS + i;

		for (uint32_t s = 0; s < STREAMS; s++) {
			const vec score =
				parts_joined(w->product + (size_t)i * PARTS * ATTN_TILE + s * SUB_TOKENS, ATTN_TILE);
			const uint32_t odd =
				mask_bits(_mm512_fpclass_ps_mask(score, NOT_FINITE)) & tile->sub[s].present;

			vec_store(w->weight + (size_t)r * ATTN_TILE + s * SUB_TOKENS, score);
			if (odd)
				scores_mend(x, k, h, r, s, odd);
		}
	}
}

static void amx_scores(
	const struct tiled *x, const struct tile *tile, uint32_t h, const struct lanes *k, const struct fetch *fetch)
{
	const uint32_t blocks = row_blocks(x->w.rows);

	keys_rest(x, tile, k);
	for (uint32_t block = 0; block < blocks; block++, fetch = NULL) {
		const size_t row = ((size_t)h * blocks + block) * TILE_ROWS;

		scores_product(x, tile, k, fetch, x->w.q_parts + row * key_steps(x) * STEP_DIMS);
		scores_join(x, tile, k, h, block);
	}
}

/* ---- Values ---- */

/* Sixteen dims of a chunk, the number of their sums' tile. */
#define DIMS_STEP(g) \
	do { \
		if ((g)*LANES < n) { \
			if (fetch) \
				stream_fetch(fetch, s, off + (g)*512, 512); \
			_tile_loadd(7, v->base[s] + off + (g)*LANES * PAIR_BYTES, n * PAIR_BYTES); \
			_tile_dpbf16ps(g, 6, 7); \
		} \
	} while (0)
#define DIMS_STORE(g) \
	do { \
		if ((g)*LANES < n) \
			_tile_stored(g, to + c + (g)*LANES, dim * sizeof(float)); \
	} while (0)

/* A tile of weights with all values: product[row and part][dim] */
AMX_TARGET static void turns_product(
	const struct tiled *x, const struct tile *tile, const struct lanes *v, const struct fetch *fetch)
{
	const uint32_t dim = (uint32_t)attn_round_up(x->v.dim, TILED_PAD);
	float *to = x->w.product;

	AMX_FENCE;
	for (uint32_t c = 0; c < dim; c += TILED_CHUNK) {
		const uint32_t n = tiled_v_row(x->v.dim, c);
		const size_t off = (size_t)c * SUB_TOKENS * sizeof(uint16_t);

		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
		for (uint32_t s = 0; s < STREAMS; s++) {
			if (!tile->sub[s].present)
				continue;
			_tile_loadd(6, x->w.w_parts + s * SUB_TOKENS, ATTN_TILE * sizeof(uint16_t));
			DIMS_STEP(0);
			DIMS_STEP(1);
			DIMS_STEP(2);
			DIMS_STEP(3);
		}
		DIMS_STORE(0);
		DIMS_STORE(1);
		DIMS_STORE(2);
		DIMS_STORE(3);
	}
	AMX_FENCE;
}
#undef DIMS_STEP
#undef DIMS_STORE

/* Of the first row, whose weights do not matter: what is not finite times anything is not. */
TARGET static bool product_finite(const float *product, uint32_t n)
{
	uint32_t odd = 0;

	for (uint32_t d = 0; d < n; d += LANES)
		odd |= mask_bits(_mm512_fpclass_ps_mask(
			_mm512_maskz_loadu_ps((__mmask16)attn_low_bits((int64_t)n - d), product + d), NOT_FINITE));
	return !odd;
}

static bool bf16_finite(uint16_t bits)
{
	return (bits & 0x7f80) != 0x7f80;
}

/* The same values, what is not finite as zero. */
static void values_finite(const struct tiled *x, const struct tile *tile, const struct lanes *v, struct lanes *finite)
{
	const size_t n = attn_round_up(x->v.dim, TILED_PAD) * SUB_TOKENS;
	uint16_t *to = (uint16_t *)(void *)x->w.v_finite;

	*finite = *v;
	for (uint32_t s = 0; s < STREAMS; s++, to += n) {
		const uint16_t *from = (const uint16_t *)(const void *)v->base[s];

		for (size_t i = 0; i < n && tile->sub[s].present; i++)
			to[i] = bf16_finite(from[i]) ? from[i] : 0;
		finite->base[s] = (const char *)to;
	}
}

/* What was left out, to the rows that see it. */
static void values_mend(const struct tiled *x, const struct lanes *v, uint32_t h)
{
	const struct work *w = &x->w;
	const size_t acc_stride = w->part->call->acc_floats;
	float *acc = w->part->state.acc + (size_t)h * w->rows * acc_stride;

	for (uint32_t i = 0; i < ATTN_TILE; i++)
		for (uint32_t d = 0; d < x->v.dim; d++) {
			const uint16_t *values = (const uint16_t *)(const void *)v->base[i / SUB_TOKENS];
			const uint16_t value = values[tiled_v_at(KVATTN_BF16, SUB_TOKENS, x->v.dim, d, i % SUB_TOKENS)];

			for (uint32_t r = 0; r < w->rows && !bf16_finite(value); r++)
				if (w->mask[r] >> i & 1)
					acc[r * acc_stride + d] +=
						w->weight[(size_t)r * ATTN_TILE + i] * half_bf16_to(value);
		}
}

TARGET static void turns_join(const struct tiled *x, uint32_t h, uint32_t block)
{
	const struct work *w = &x->w;
	const size_t acc_stride = w->part->call->acc_floats, dim = attn_round_up(x->v.dim, TILED_PAD);
	float *acc = w->part->state.acc + ((size_t)h * w->rows + block * PART_ROWS) * acc_stride;

	for (uint32_t i = 0; i < PART_ROWS && block * PART_ROWS + i < w->rows; i++, acc += acc_stride)
		for (size_t d = 0; d < dim; d += LANES)
			vec_store(acc + d,
				vec_add(vec_load(acc + d), parts_joined(w->product + i * PARTS * dim + d, dim)));
}

static bool block_sees(const struct work *w, uint32_t block)
{
	uint64_t any = 0;

	for (uint32_t r = block * PART_ROWS; r < w->rows && r < (block + 1) * PART_ROWS; r++)
		any |= w->mask[r];
	return any;
}

static void amx_turns(
	const struct tiled *x, const struct tile *tile, uint32_t h, const struct lanes *v, const struct fetch *fetch)
{
	const struct work *w = &x->w;
	const struct lanes *values = v;
	struct lanes finite;

	for (uint32_t block = 0; block < row_blocks(w->rows); block++) {
		if (!block_sees(w, block))
			continue;
		amx_weights(w, block);
		turns_product(x, tile, values, fetch);
		if (fetch && !product_finite(w->product, x->v.dim)) {
			values_finite(x, tile, v, &finite);
			values = &finite;
			turns_product(x, tile, values, NULL);
		}
		fetch = NULL; /* the first tile of rows asks for the others, too */
		turns_join(x, h, block);
	}
	if (values == &finite)
		values_mend(x, v, h);
}
