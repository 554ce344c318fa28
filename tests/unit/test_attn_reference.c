/*
 * test_attn_reference.c - random shapes against float64, every buffer against a guard page
 *
 * kvpool-test: timeout=600
 * ATTN_SEED=n runs one trial.
 *
 * The reference reads back what the type made of the numbers, so only f32's own rounding is left.  Values are up to 2:
 * 2e-6 of that for the sums.  A score z is itself rounded to z * 2^-24, once or twice on its way, and its weight is off
 * by as much.
 */
#include "test_attn_fixture.h"

#include "guarded.h"

#define TOLERANCE 2e-6
#define SCORE_ROUNDING 0x1p-23

/* ---- The trial ---- */

struct trial {
	uint64_t seed;
	uint32_t kv_heads, group, dim_k, dim_v, block_tokens, n, n_q;
	uint32_t type_k, type_v;
	uint64_t q_end, window, sinks;
	float softcap, sharpness;
	bool causal, alibi, sink_logits, at_end, mass, tree;
	float scale; /* of the sequence; 0: 1 / sqrt(dim_k) */
	bool latent; /* V is the first dims of K */
	enum order order;
	uint32_t threads;
};

struct data {
	struct kvattn_geom geom;
	struct guarded *blocks;
	uint64_t n_blocks;
	struct guarded table, q, out, lse, mass, slopes, sinks, scale, tree;
	double *want_mass, reach; /* over all rows */
	float *k, *v; /* as stored, widened */
};

/* Now and then a type that not every order has. */
static uint32_t type_other(uint64_t *s, enum order order, uint32_t type)
{
	static const uint32_t tiled[] = {KVATTN_FP8_E4M3, KVATTN_I8, KVATTN_I4};

	if (noise_below(s, 2))
		return type;
	return order == ORDER_TILED ? tiled[noise_below(s, 3)] : noise_below(s, 3) ? type : KVATTN_FP8_E4M3;
}

static struct trial trial_random(uint64_t seed)
{
	static const uint32_t blocks[] = {1, 3, 5, 16, 32, 64, 100, 4096}, dims[] = {64, 80, 96, 128, 192, 256, 576};
	uint64_t s = seed * 977 + 13;
	struct trial t = {.seed = seed};

	t.kv_heads = 1 + noise_below(&s, 4);
	t.group = 1 + noise_below(&s, noise_below(&s, 4) ? 6 : 16);
	t.dim_k = noise_below(&s, 3) ? 1 + noise_below(&s, 100) : dims[noise_below(&s, COUNT(dims))];
	t.dim_v = noise_below(&s, 3) ? 1 + noise_below(&s, 100) : dims[noise_below(&s, COUNT(dims))];
	t.block_tokens = blocks[noise_below(&s, COUNT(blocks))];
	t.n = noise_below(&s, noise_below(&s, 5) ? 300 : 2500);
	t.n_q = 1 + noise_below(&s, noise_below(&s, 3) ? 3 : 40);
	t.type_k = attn_types[noise_below(&s, 3)];
	t.type_v = noise_below(&s, 3) ? t.type_k : attn_types[noise_below(&s, 3)];
	t.q_end = noise_below(&s, 4) ? 0 : 1 + noise_below(&s, t.n + 10);
	t.window = noise_below(&s, 2) ? 0 : 1 + noise_below(&s, t.n + 2);
	t.sinks = noise_below(&s, 2) ? 0 : noise_below(&s, 20);
	t.softcap = noise_below(&s, 3) ? 0 : 0.5f + (float)noise_below(&s, 50);
	t.sharpness = noise_below(&s, 2) ? 1 : 6;
	t.causal = noise_below(&s, 5);
	t.alibi = !noise_below(&s, 3);
	t.sink_logits = !noise_below(&s, 3);
	t.at_end = noise_below(&s, 2);
	t.order = noise_below(&s, N_ORDERS);
	t.type_k = type_other(&s, t.order, t.type_k);
	t.type_v = type_other(&s, t.order, t.type_v);
	t.threads = 1 + noise_below(&s, 3);
	t.mass = noise_below(&s, 2);
	t.tree = !t.q_end && t.n >= t.n_q && noise_below(&s, 3) == 0;
	t.scale = noise_below(&s, 3) ? 0 : noise_float(&s) / sqrtf((float)t.dim_k);
	return t;
}

/* [token][K heads, V heads]: every byte of a token lies before the next token's, so a short last block can end at a
 * guard page. */
static void geom_by_token(const struct trial *t, struct kvattn_geom *geom, uint64_t *token_bytes)
{
	const uint64_t k_head = t->dim_k * (uint64_t)kvattn_type_bytes(t->type_k);
	const uint64_t v_head = t->dim_v * (uint64_t)kvattn_type_bytes(t->type_v);

	/* V's part begins at a multiple of four, whatever K's length; so does the next token */
	geom->k_off = 0;
	geom->v_off = (k_head * t->kv_heads + 3) / 4 * 4;
	*token_bytes = (geom->v_off + v_head * t->kv_heads + 3) / 4 * 4;
	geom->k_token_stride = geom->v_token_stride = *token_bytes;
	geom->k_head_stride = k_head;
	geom->v_head_stride = v_head;
}

static void data_geom(const struct trial *t, struct data *data, uint64_t *full_bytes, uint64_t *last_bytes)
{
	const struct kvattn_shape shape = {1, t->kv_heads, t->dim_k, t->dim_v, t->type_k, t->type_v, t->block_tokens};
	uint64_t token;

	if (t->latent) {
		*full_bytes = *last_bytes = latent_geom(t->order, &shape, &data->geom);
		return;
	}
	*full_bytes = *last_bytes = order_geom(t->order == ORDER_TILED ? ORDER_TILED : ORDER_HND, &shape, &data->geom);
	if (t->order != ORDER_NHD)
		return;
	geom_by_token(t, &data->geom, &token);
	*full_bytes = token * t->block_tokens;
	*last_bytes = token * (t->n - (data->n_blocks - 1) * t->block_tokens);
}

/* What a call may be given beside keys and queries.  A row of a tree sees itself and what one earlier row sees. */
static void data_options(const struct trial *t, struct data *data, uint64_t *s)
{
	const uint32_t q_heads = t->kv_heads * t->group, words = (t->n_q + 63) / 64;
	uint64_t *tree;

	data->slopes = guarded_new(q_heads * sizeof(float), t->at_end);
	data->sinks = guarded_new(q_heads * sizeof(float), t->at_end);
	data->scale = guarded_new(sizeof(float), t->at_end);
	data->tree = guarded_new((size_t)t->n_q * words * sizeof(*tree), t->at_end);
	assert_int_equal(kvattn_alibi_slopes(q_heads, data->slopes.at), 0);
	noise_fill(s, data->sinks.at, q_heads, 3);
	*(float *)data->scale.at = t->scale;
	tree = data->tree.at;
	for (uint32_t r = 0; r < t->n_q; r++) {
		if (r)
			memcpy(tree + (size_t)r * words, tree + (size_t)noise_below(s, r) * words,
				words * sizeof(*tree));
		tree[(size_t)r * words + r / 64] |= 1ull << r % 64;
	}
}

static void data_open(const struct trial *t, struct data *data)
{
	const size_t k_token = (size_t)t->kv_heads * t->dim_k, v_token = (size_t)t->kv_heads * t->dim_v;
	const uint32_t q_heads = t->kv_heads * t->group;
	uint64_t s = t->seed, full, last;

	*data = (struct data){.n_blocks = (t->n + t->block_tokens - 1) / t->block_tokens};
	data_geom(t, data, &full, &last);
	data->blocks = must(calloc(data->n_blocks + 1, sizeof(*data->blocks)));
	data->table = guarded_new(data->n_blocks * sizeof(const void *), t->at_end);
	data->k = floats(t->n * k_token);
	data->v = floats(t->n * v_token);
	noise_fill(&s, data->k, t->n * k_token, 2);
	noise_fill(&s, data->v, t->n * v_token, 2);
	for (uint64_t b = 0; b < data->n_blocks; b++) {
		const uint32_t first = (uint32_t)b * t->block_tokens;
		const uint32_t n = t->n - first < t->block_tokens ? t->n - first : t->block_tokens;

		data->blocks[b] = guarded_new(b + 1 == data->n_blocks ? last : full, t->at_end);
		((const void **)data->table.at)[b] = data->blocks[b].at;
		assert_int_equal(kvattn_put(&data->geom, data->blocks[b].at, 0, n, data->k + first * k_token, 0,
					 t->latent ? NULL : data->v + first * v_token, 0),
			0);
		assert_int_equal(kvattn_get(&data->geom, data->blocks[b].at, 0, n, data->k + first * k_token, 0,
					 data->v + first * v_token, 0),
			0);
		mprotect(data->blocks[b].map + PAGE, data->blocks[b].map_bytes - 2 * PAGE, PROT_READ);
	}
	data->q = guarded_new((size_t)t->n_q * q_heads * t->dim_k * sizeof(float), t->at_end);
	data->out = guarded_new((size_t)t->n_q * q_heads * t->dim_v * sizeof(float), t->at_end);
	data->lse = guarded_new((size_t)t->n_q * q_heads * sizeof(float), t->at_end);
	data->mass = guarded_new((size_t)t->n * t->kv_heads * sizeof(float), t->at_end);
	data->want_mass = must(calloc((size_t)t->n * t->kv_heads + 1, sizeof(double)));
	for (size_t i = 0; i < (size_t)t->n * t->kv_heads; i++) /* a call adds to what is there */
		data->want_mass[i] = ((float *)data->mass.at)[i] = (float)(i % 3);
	noise_fill(&s, data->q.at, (size_t)t->n_q * q_heads * t->dim_k, t->sharpness);
	data_options(t, data, &s);
}

static void data_close(struct data *data)
{
	for (uint64_t b = 0; b < data->n_blocks; b++)
		guarded_free(&data->blocks[b]);
	guarded_free(&data->q);
	guarded_free(&data->out);
	guarded_free(&data->lse);
	guarded_free(&data->mass);
	guarded_free(&data->slopes);
	guarded_free(&data->sinks);
	guarded_free(&data->scale);
	guarded_free(&data->tree);
	guarded_free(&data->table);
	free(data->want_mass);
	free(data->blocks), free(data->k), free(data->v);
}

/* ---- The truth ---- */

static bool visible(const struct trial *t, const struct data *data, int64_t p, int64_t j)
{
	const int64_t row = p - ((int64_t)t->n - t->n_q), guess = j - ((int64_t)t->n - t->n_q);
	const uint64_t *tree =
		t->tree && guess >= 0 ? (const uint64_t *)data->tree.at + row * ((t->n_q + 63) / 64) : NULL;

	return (!tree || (tree[guess / 64] >> guess % 64 & 1)) && (!t->causal || j <= p) &&
	       (!t->window || j > p - (int64_t)t->window || j < (int64_t)t->sinks);
}

static NO_TSAN double truth_score(
	const struct trial *t, const struct data *data, const float *q, uint32_t h, int64_t p, uint32_t j)
{
	const float *k = data->k + ((size_t)j * t->kv_heads + h / t->group) * t->dim_k;
	double z = 0;

	for (uint32_t d = 0; d < t->dim_k; d++)
		z += (double)q[d] * (double)k[d];
	z *= t->scale != 0 ? (double)t->scale : 1 / sqrt(t->dim_k);
	if (t->softcap > 0)
		z = t->softcap * tanh(z / t->softcap);
	return t->alibi ? z - (double)((const float *)data->slopes.at)[h] * (double)(p - j) : z;
}

/* The row's out; returns its lse.  @mass: of the KV head, grows by what the row weighs each key, or NULL; @reach: the
 * largest magnitude of a score. */
static NO_TSAN double truth_row(const struct trial *t, const struct data *data, const float *q, uint32_t h, int64_t p,
	double *out, double *mass, double *reach)
{
	double *z = must(calloc(t->n + 1, sizeof(double)));
	const float *sinks = data->sinks.at;
	double top = t->sink_logits ? sinks[h] : -INFINITY, sum;

	for (uint32_t j = 0; j < t->n; j++) {
		z[j] = visible(t, data, p, j) ? truth_score(t, data, q, h, p, j) : -INFINITY;
		top = z[j] > top ? z[j] : top;
		*reach = z[j] != -INFINITY && fabs(z[j]) > *reach ? fabs(z[j]) : *reach;
	}
	sum = t->sink_logits ? exp(sinks[h] - top) : 0;
	for (uint32_t d = 0; d < t->dim_v; d++)
		out[d] = 0;
	for (uint32_t j = 0; j < t->n; j++) {
		const double weight = z[j] == -INFINITY ? 0 : exp(z[j] - top);

		sum += weight;
		for (uint32_t d = 0; d < t->dim_v && weight > 0; d++)
			out[d] += weight * data->v[((size_t)j * t->kv_heads + h / t->group) * t->dim_v + d];
	}
	for (uint32_t j = 0; mass && j < t->n; j++)
		mass[j] += z[j] == -INFINITY ? 0 : exp(z[j] - top) / sum;
	free(z);
	for (uint32_t d = 0; d < t->dim_v; d++)
		out[d] = sum > 0 ? out[d] / sum : 0;
	return sum > 0 ? top + log(sum) : -INFINITY;
}

static void trial_describe(const struct trial *t, char *text, size_t size)
{
	snprintf(text, size,
		"seed %llu:%s%s %u KV heads x %u, dims %u %u, types %u %u, blocks of %u, %u keys, %u rows ending at %llu, window %llu "
		"sinks %llu cap %g scale %g%s%s%s%s, %u threads",
		(unsigned long long)t->seed, order_names[t->order], t->latent ? " latent" : "", t->kv_heads, t->group,
		t->dim_k, t->dim_v, t->type_k, t->type_v, t->block_tokens, t->n, t->n_q, (unsigned long long)t->q_end,
		(unsigned long long)t->window, (unsigned long long)t->sinks, t->softcap, t->scale,
		t->causal ? " causal" : "", t->tree ? " tree" : "", t->alibi ? " alibi" : "",
		t->sink_logits ? " sink" : "", t->threads);
}

/* Of scores.  Queries of sixteen bits move one by up to 2^-16 of it, and of what cancels in it.  Those of I4 by products of
 * bytes are whole numbers up to 127: half of one for each dim, by up to 8 steps of K's codes. */
static double trial_tolerance(const struct trial *t, double reach)
{
	if (t->latent) /* widened to f32, whatever the processor has */
		return TOLERANCE + SCORE_ROUNDING * reach;
	if (t->type_k == KVATTN_I4 && rows_in_digits(t->type_k, t->type_v))
		return 0x1p-8 * (1 + reach);
	if (rows_in_digits(t->type_k, t->type_v))
		return 1e-4 + 0x1p-14 * reach;
	if (rows_rounded(t->type_k, t->type_v, t->order == ORDER_TILED))
		return 2e-5 + 0x1p-15 * reach;
	return TOLERANCE + SCORE_ROUNDING * reach;
}

/* Of values beside it: weights by I4's steps are up to half of a 127th of the largest of 64 off, each by 8 codes. */
static double values_tolerance(const struct trial *t)
{
	return !t->latent && t->type_v == KVATTN_I4 && rows_in_digits(t->type_k, t->type_v) ? 0x1p-6 : 0;
}

static void trial_check_row(const struct trial *t, struct data *data, uint32_t r, uint32_t h)
{
	const uint32_t q_heads = t->kv_heads * t->group, row = r * q_heads + h;
	const int64_t p = (int64_t)(t->q_end ? t->q_end : t->n) - t->n_q + r;
	const float *q = (const float *)data->q.at + (size_t)row * t->dim_k;
	const float *out = (const float *)data->out.at + (size_t)row * t->dim_v,
		    *lse = (const float *)data->lse.at + row;
	double want[KVATTN_DIM_MAX], reach = 0;
	const double want_lse =
		truth_row(t, data, q, h, p, want, data->want_mass + (size_t)(h / t->group) * t->n, &reach);
	const double tolerance = trial_tolerance(t, reach);
	char text[256];

	data->reach = reach > data->reach ? reach : data->reach;
	trial_describe(t, text, sizeof(text));
	for (uint32_t d = 0; d < t->dim_v; d++)
		if (!(fabs(out[d] - want[d]) <= 2 * (tolerance + values_tolerance(t))))
			fail_msg("%s: row %u head %u dim %u: got %.9g, right is %.9g", text, r, h, d, out[d], want[d]);
	if (*lse != want_lse && !(fabs(*lse - want_lse) <= tolerance * (1 + fabs(want_lse))))
		fail_msg("%s: row %u head %u: lse %.9g, right is %.9g", text, r, h, *lse, want_lse);
}

/* Each row's share of a key is off by its score's rounding, and each addition rounds once; a share below e^-87 is none. */
static void trial_check_mass(const struct trial *t, const struct data *data)
{
	const double share = 2 * trial_tolerance(t, data->reach), rows = (double)t->n_q * t->group;
	const float *got = data->mass.at;
	char text[256];

	trial_describe(t, text, sizeof(text));
	for (size_t i = 0; i < (size_t)t->n * t->kv_heads; i++) {
		const double want = t->mass ? data->want_mass[i] : (double)(i % 3);

		if (!(fabs(got[i] - want) <= (t->mass ? (share + rows * 0x1p-24) * want + rows * 1e-37 : 0)))
			fail_msg("%s: mass of key %zu of head %zu: got %.9g, right is %.9g", text, i % t->n, i / t->n,
				got[i], want);
	}
}

static void trial_run(const struct trial *t)
{
	const uint32_t q_heads = t->kv_heads * t->group;
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	struct data data;
	int result;

	data_open(t, &data);
	kvattn_opts_init(&opts, q_heads);
	opts.window = t->window;
	opts.sink_tokens = t->sinks;
	opts.softcap = t->softcap;
	opts.alibi_slopes = t->alibi ? data.slopes.at : NULL;
	opts.sink_logits = t->sink_logits ? data.sinks.at : NULL;
	opts.n_threads = t->threads;
	seq = (struct kvattn_seq){
		.table = {.blocks = data.table.at, .n_blocks = data.n_blocks, .n_tokens = t->n},
		.q = data.q.at,
		.out = data.out.at,
		.lse = data.lse.at,
		.n_q = t->n_q,
		.q_end = t->q_end,
		.causal = t->causal,
		.mass = t->mass ? data.mass.at : NULL,
		.tree = t->tree ? data.tree.at : NULL,
		.scale = t->scale != 0 ? data.scale.at : NULL,
	};
	scratch_guard(t->at_end, t->threads > 1);
	result = kvattn_attend(&data.geom, &seq, 1, &opts);
	scratch_guard_end();
	assert_int_equal(result, 0);
	for (uint32_t r = 0; r < t->n_q; r++)
		for (uint32_t h = 0; h < q_heads; h++)
			trial_check_row(t, &data, r, h);
	trial_check_mass(t, &data);
	data_close(&data);
}

static void random_shapes_agree_with_float64(void **state)
{
	const char *only = getenv("ATTN_SEED");
	const uint64_t first = only ? strtoull(only, NULL, 10) : 1, n = only ? 1 : SLOW ? 30 : 200;

	(void)state;
	if (SLOW)
		print_message("%u of 200 random shapes, the common ones shorter: it is slow here\n", (unsigned)n);
	for (uint64_t seed = first; seed < first + n; seed++) {
		const struct trial t = trial_random(seed);

		trial_run(&t);
	}
	assert_true(SANITIZED || scratch_seen >= n); /* what the kernels allocate was guarded, too */
}

/* As in the caches of MLA models: every type, block size and order that has it. */
static void values_that_are_the_first_dims_of_keys_agree_with_float64(void **state)
{
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16, KVATTN_BF16, KVATTN_FP8_E4M3, KVATTN_I8, KVATTN_I4};
	static const uint32_t blocks[] = {1, 5, 16, 32, 64, 256};
	const uint32_t n = COUNT(types) * COUNT(blocks);

	(void)state;
	for (uint32_t i = 0; i < (SLOW ? n : 3 * n); i++) {
		struct trial t = trial_random(7000 + i);
		uint64_t s = i;

		t.latent = true;
		t.sharpness = 1; /* what a sum over many dims rounds is in no bound of its score */
		t.order = i < 2 * n ? ORDER_TILED : i % 2 ? ORDER_HND : ORDER_NHD;
		t.type_k = t.type_v = types[i % (i < 2 * n ? COUNT(types) : 4)];
		t.block_tokens = blocks[i / COUNT(types) % COUNT(blocks)];
		t.dim_v = 1 + noise_below(&s, t.dim_k);
		trial_run(&t);
	}
	for (size_t i = 0; i < COUNT(types); i++) {
		struct trial t = {.seed = 7,
			.kv_heads = 1,
			.group = 16,
			.dim_k = 576,
			.dim_v = 512,
			.block_tokens = 64,
			.n = SLOW ? 300 : 1100,
			.n_q = 1,
			.type_k = types[i],
			.type_v = types[i],
			.causal = true,
			.sharpness = 1,
			.at_end = true,
			.latent = true,
			.order = ORDER_TILED,
			.threads = 1};

		trial_run(&t);
		t.n_q = 3;
		trial_run(&t);
	}
}

enum numbers {
	GAUSSIAN,
	OUTLIERS, /* one channel of K in 32 is 16 times as large and off centre, as in real K; its queries are small */
	SINK, /* one key has as much weight as all others */
	CHANNEL, /* one channel of K is a hundred times as large and off centre, its queries are as the others' */
};

enum { ERROR_N = 2048, ERROR_HEADS = 2, ERROR_DIM = 128, ERROR_ROWS = 8 };

static void error_numbers(enum numbers numbers, float *k, float *v, float *q)
{
	const size_t n = (size_t)ERROR_N * ERROR_HEADS * ERROR_DIM;
	uint64_t seed = 99;

	noise_gauss(&seed, k, n);
	noise_gauss(&seed, v, n);
	noise_gauss(&seed, q, ERROR_ROWS * ERROR_DIM);
	for (size_t i = 0; numbers == OUTLIERS && i < n; i++)
		if (i % 32 == 7)
			k[i] = 16 * k[i] + 20;
	for (size_t i = 0; numbers == OUTLIERS && i < ERROR_ROWS * ERROR_DIM; i++)
		if (i % 32 == 7)
			q[i] /= 16;
	for (size_t i = 5; numbers == CHANNEL && i < n; i += ERROR_DIM)
		k[i] = 100 * k[i] + 300;
	for (size_t i = 0; numbers == SINK && i < n; i += ERROR_DIM) /* exp(8) is about all others' weights */
		k[i] = i / ERROR_DIM / ERROR_HEADS == 5 ? 8 : 0;
	for (size_t i = 0; numbers == SINK && i < ERROR_ROWS * ERROR_DIM; i += ERROR_DIM)
		q[i] = sqrtf(ERROR_DIM);
}

/* How far a decode step is from float64 with the numbers a block was given, or with what it holds of them (@stored):
 * relative L2 over all heads. */
static double error_of(uint32_t type, enum order order, enum numbers numbers, bool stored)
{
	const struct kvattn_shape shape = {1, ERROR_HEADS, ERROR_DIM, ERROR_DIM, type, type, 64};
	const struct trial t = {.kv_heads = ERROR_HEADS,
		.group = ERROR_ROWS / ERROR_HEADS,
		.dim_k = ERROR_DIM,
		.dim_v = ERROR_DIM,
		.n = ERROR_N,
		.causal = true};
	const size_t n = (size_t)ERROR_N * ERROR_HEADS * ERROR_DIM;
	float *k = floats(n), *v = floats(n), *q = floats(ERROR_ROWS * ERROR_DIM),
	      *out = floats(ERROR_ROWS * ERROR_DIM);
	const struct data data = {.k = k, .v = v};
	double wrong = 0, all = 0;
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	struct kv kv;

	error_numbers(numbers, k, v, q);
	kv_open(&kv, &shape, order, ERROR_N);
	kv_fill(&kv, k, v);
	if (stored)
		kv_read(&kv, k, v);
	kvattn_opts_init(&opts, ERROR_ROWS);
	seq = kv_seq(&kv, q, 1, out);
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	for (uint32_t h = 0; h < ERROR_ROWS; h++) {
		double want[ERROR_DIM], reach = 0;

		truth_row(&t, &data, q + h * ERROR_DIM, h, ERROR_N - 1, want, NULL, &reach);
		for (uint32_t d = 0; d < ERROR_DIM; d++) {
			wrong += (out[h * ERROR_DIM + d] - want[d]) * (out[h * ERROR_DIM + d] - want[d]);
			all += want[d] * want[d];
		}
	}
	kv_close(&kv);
	free(k), free(v), free(q), free(out);
	return sqrt(wrong / all);
}

static void each_type_is_as_exact_as_said(void **state)
{
	static const struct {
		const char *name;
		uint32_t type;
		double gauss, outliers;
	} types[] = {
		{"f32", KVATTN_F32, 3e-6, 3e-6},
		{"f16", KVATTN_F16, 5e-4, 1e-3},
		{"bf16", KVATTN_BF16, 2.6e-3, 8e-3},
		{"fp8", KVATTN_FP8_E4M3, 4.5e-2, 1.2e-1},
		{"i8", KVATTN_I8, 9.4e-3, 0.1},
		{"i4", KVATTN_I4, 0.12, 0.15},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(types); i++) {
		const double gauss = error_of(types[i].type, ORDER_TILED, GAUSSIAN, false);
		const double outliers = error_of(types[i].type, ORDER_TILED, OUTLIERS, false);

		print_message("%s: relative error %.2e, with outlier channels %.2e\n", types[i].name, gauss, outliers);
		if (!(gauss <= types[i].gauss) || !(outliers <= types[i].outliers))
			fail_msg("%s: error %g (at most %g), with outlier channels %g (at most %g)", types[i].name,
				gauss, types[i].gauss, outliers, types[i].outliers);
	}
}

/* Digits of eight bits beside that channel's would leave the others few of them: .18 instead of .10. */
static void one_channel_far_above_the_rest_leaves_int4_as_exact(void **state)
{
	const double error = error_of(KVATTN_I4, ORDER_TILED, CHANNEL, false);

	(void)state;
	print_message("i4: relative error %.3f with one channel far above the rest\n", error);
	if (!(error <= 0.12))
		fail_msg("error %g with one channel far above the rest", error);
}

/* Whatever a type rounded away when it was stored: arithmetic adds next to nothing. */
static void what_was_stored_is_attended_as_exactly_as_said(void **state)
{
	static const char *const names[] = {"Gaussian", "outlier channels", "a sink"};
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16, KVATTN_BF16, KVATTN_FP8_E4M3, KVATTN_I8, KVATTN_I4};

	(void)state;
	for (size_t i = 0; i < COUNT(types); i++)
		for (enum numbers numbers = GAUSSIAN; numbers <= SINK; numbers++) {
			const double error = error_of(types[i], ORDER_TILED, numbers, true);
			const double digits = types[i] == KVATTN_I8 ? 3e-4 : 2e-2;
			const double most = rows_in_digits(types[i], types[i])	     ? digits
					    : rows_rounded(types[i], types[i], true) ? 2e-5
										     : 3e-6;

			print_message("type %u, %s: relative error %.2e\n", types[i], names[numbers], error);
			if (!(error <= most))
				fail_msg("type %u, %s: error %g, at most %g", types[i], names[numbers], error, most);
		}
}

/* The shapes models use, each type, at a length with a tail. */
static void common_shapes_agree_with_float64(void **state)
{
	static const struct {
		uint32_t kv_heads, group, dim_k, dim_v;
	} shapes[] = {{2, 4, 128, 128}, {8, 1, 64, 64}, {1, 16, 80, 80}, {2, 7, 96, 96}, {1, 8, 192, 128},
		{1, 2, 256, 256}, {1, 4, 576, 512}};

	(void)state;
	for (size_t i = 0; i < COUNT(shapes); i++)
		for (size_t type = 0; type < COUNT(attn_types); type++) {
			struct trial t = {
				.seed = 1000 + i,
				.kv_heads = shapes[i].kv_heads,
				.group = shapes[i].group,
				.dim_k = shapes[i].dim_k,
				.dim_v = shapes[i].dim_v,
				.type_k = attn_types[type],
				.type_v = attn_types[type],
				.block_tokens = 64,
				.n = SLOW ? 300 : 1100,
				.causal = true,
				.sharpness = 1,
				.at_end = true,
				.order = (enum order)(type + i) % N_ORDERS,
				.threads = 1,
			};

			t.n_q = 1;
			trial_run(&t);
			t.n_q = 20;
			trial_run(&t);
		}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_shapes_agree_with_float64),
		cmocka_unit_test(common_shapes_agree_with_float64),
		cmocka_unit_test(values_that_are_the_first_dims_of_keys_agree_with_float64),
		cmocka_unit_test(each_type_is_as_exact_as_said),
		cmocka_unit_test(one_channel_far_above_the_rest_leaves_int4_as_exact),
		cmocka_unit_test(what_was_stored_is_attended_as_exactly_as_said),
	};
	const int r = levels_run(argv);

	(void)argc;
	return r >= 0 ? r : cmocka_run_group_tests_name(kvattn_isa_name(), tests, NULL, NULL);
}
