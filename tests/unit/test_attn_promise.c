/*
 * test_attn_promise.c - the bits of a row depend on the row, its position and the keys it sees, on nothing else; and
 * threads
 *
 * kvpool-test: timeout=600
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "test_attn_fixture.h"
#include "thread_count.h"

/* ---- A sequence and its result in one pass ---- */

struct whole {
	uint32_t kv_heads, group, dim_k, dim_v, n, n_q, type;
	uint64_t window, sinks;
	bool tiled; /* else HND or NHD as each check says */
	bool latent; /* TILED: V is the first dims of K */
	float *k, *v, *q, *out, *lse, *slopes;
};

static uint32_t whole_q_heads(const struct whole *w)
{
	return w->kv_heads * w->group;
}

static void whole_opts(const struct whole *w, struct kvattn_opts *opts)
{
	kvattn_opts_init(opts, whole_q_heads(w));
	opts->window = w->window;
	opts->sink_tokens = w->sinks;
	opts->alibi_slopes = w->slopes;
	opts->softcap = w->window ? 30 : 0;
}

static void whole_kv(const struct whole *w, uint32_t block_tokens, enum order order, struct kv *kv)
{
	const struct kvattn_shape shape = {2, w->kv_heads, w->dim_k, w->dim_v, w->type, w->type, block_tokens};

	if (w->latent)
		kv_open_latent(kv, &shape, w->n);
	else
		kv_open(kv, &shape, w->tiled ? ORDER_TILED : order, w->n);
	kv_fill(kv, w->k, w->v);
}

/* Queries are the last n_q positions. */
static void whole_open(struct whole *w, uint64_t seed)
{
	const uint32_t heads = whole_q_heads(w);
	struct kvattn_opts opts;
	struct kvattn_seq seq;
	struct kv kv;

	w->k = floats((size_t)w->n * w->kv_heads * w->dim_k);
	w->v = floats((size_t)w->n * w->kv_heads * w->dim_v);
	w->q = floats((size_t)w->n_q * heads * w->dim_k);
	w->out = floats((size_t)w->n_q * heads * w->dim_v);
	w->lse = floats((size_t)w->n_q * heads);
	noise_fill(&seed, w->k, (size_t)w->n * w->kv_heads * w->dim_k, 1);
	noise_fill(&seed, w->v, (size_t)w->n * w->kv_heads * w->dim_v, 1);
	noise_fill(&seed, w->q, (size_t)w->n_q * heads * w->dim_k, 3);
	if (w->window) {
		w->slopes = floats(heads);
		assert_int_equal(kvattn_alibi_slopes(heads, w->slopes), 0);
	}
	whole_kv(w, 64, ORDER_HND, &kv);
	whole_opts(w, &opts);
	seq = kv_seq(&kv, w->q, w->n_q, w->out);
	seq.lse = w->lse;
	assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
	kv_close(&kv);
}

static void whole_close(struct whole *w)
{
	free(w->k), free(w->v), free(w->q), free(w->out), free(w->lse), free(w->slopes);
}

static struct whole whole_usual(void)
{
	return (struct whole){.kv_heads = 2,
		.group = 3,
		.dim_k = 48,
		.dim_v = 40,
		.n = SLOW ? 1300 : 2300,
		.n_q = SLOW ? 50 : 150,
		.type = KVATTN_F16};
}

/* Rows @first and on, as a call of their own would be told: the keys up to the last of them. */
static struct kvattn_seq whole_chunk(
	const struct whole *w, const struct kv *kv, uint32_t first, uint32_t n_q, float *out, float *lse)
{
	const uint32_t heads = whole_q_heads(w);
	struct kvattn_seq seq =
		kv_seq(kv, w->q + (size_t)first * heads * w->dim_k, n_q, out + (size_t)first * heads * w->dim_v);

	seq.table.n_tokens = w->n - w->n_q + first + n_q;
	seq.lse = lse + (size_t)first * heads;
	return seq;
}

static void whole_same(const struct whole *w, const float *out, const float *lse, const char *what)
{
	const uint32_t heads = whole_q_heads(w);

	if (memcmp(out, w->out, (size_t)w->n_q * heads * w->dim_v * sizeof(float)) ||
		memcmp(lse, w->lse, (size_t)w->n_q * heads * sizeof(float)))
		fail_msg("%s: other bits", what);
}

/* In chunks of @sizes, 0-terminated, the last one over and over. */
static void check_chunks(
	const struct whole *w, const uint32_t *sizes, uint32_t block_tokens, enum order order, uint32_t threads)
{
	const uint32_t heads = whole_q_heads(w);
	float *out = floats((size_t)w->n_q * heads * w->dim_v), *lse = floats((size_t)w->n_q * heads);
	struct kvattn_opts opts;
	struct kv kv;
	char what[128];
	uint32_t i = 0;

	whole_kv(w, block_tokens, order, &kv);
	whole_opts(w, &opts);
	opts.n_threads = threads;
	for (uint32_t first = 0; first < w->n_q; first += sizes[i], i += sizes[i + 1] != 0) {
		const uint32_t n_q = sizes[i] < w->n_q - first ? sizes[i] : w->n_q - first;
		struct kvattn_seq seq = whole_chunk(w, &kv, first, n_q, out, lse);

		assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
		if (sizes[i] != n_q)
			break;
	}
	snprintf(what, sizeof(what), "chunks of %u.., blocks of %u%s, %u threads, type %u", sizes[0], block_tokens,
		order_names[w->tiled ? ORDER_TILED : order], threads, w->type);
	whole_same(w, out, lse, what);
	kv_close(&kv);
	free(out), free(lse);
}

static void chunking_block_size_layout_and_threads_change_no_bit(void **state)
{
	static const uint32_t cuts[][4] = {{150}, {1}, {5, 32, 7}, {16, 16, 5}, {21, 22, 64}};
	static const uint32_t blocks[] = {1, 16, 48, 64, 2300};
	static const uint32_t more_types[] = {KVATTN_I8, KVATTN_I4, KVATTN_FP8_E4M3};

	(void)state;
	for (size_t type = 0; type < 2 * COUNT(attn_types) + COUNT(more_types); type++)
		for (int windowed = type >= 2 * COUNT(attn_types); windowed < 2; windowed++) {
			struct whole w = whole_usual();

			w.tiled = type % 2 || type >= 2 * COUNT(attn_types);
			w.type = type < 2 * COUNT(attn_types) ? attn_types[type / 2]
							      : more_types[type - 2 * COUNT(attn_types)];
			w.window = windowed ? 700 : 0;
			w.sinks = windowed ? 5 : 0;
			whole_open(&w, 11 + type);
			for (size_t i = 0; i < COUNT(cuts); i++)
				check_chunks(&w, cuts[i],
					w.type == KVATTN_I4 ? 64u << i : blocks[(i + type) % COUNT(blocks)], i % 2,
					1 + i % 3);
			check_chunks(&w, cuts[1], 64, ORDER_HND, 4);
			whole_close(&w);
		}
}

static void keys_that_are_values_too_keep_the_promise(void **state)
{
	static const uint32_t types[] = {KVATTN_F16, KVATTN_BF16, KVATTN_I8, KVATTN_I4};
	static const uint32_t cuts[][4] = {{150}, {1}, {5, 32, 7}};
	static const uint32_t blocks[] = {256, 16, 48};

	(void)state;
	for (size_t type = 0; type < COUNT(types); type++) {
		struct whole w = whole_usual();

		w.tiled = w.latent = true;
		w.type = types[type];
		w.window = type % 2 ? 700 : 0;
		whole_open(&w, 50 + type);
		for (size_t i = 0; i < COUNT(cuts); i++)
			check_chunks(&w, cuts[i], blocks[i], ORDER_TILED, 1 + (uint32_t)i);
		whole_close(&w);
	}
}

static void group_sizes_change_no_bit_either(void **state)
{
	static const uint32_t groups[] = {1, 2, 4, 5, 16};
	static const uint32_t cuts[][4] = {{40}, {1}, {3, 13}};

	(void)state;
	for (size_t g = 0; g < 2 * COUNT(groups); g++) {
		struct whole w = {.kv_heads = 1,
			.tiled = g % 2,
			.group = groups[g / 2],
			.dim_k = 64,
			.dim_v = 128,
			.n = 1200,
			.n_q = 40,
			.type = KVATTN_BF16};

		whole_open(&w, 5 + g);
		for (size_t i = 0; i < COUNT(cuts); i++)
			check_chunks(&w, cuts[i], 16, i % 2, 1 + i % 2);
		whole_close(&w);
	}
}

/* B62, N20 */
static void thirty_seven_tokens_in_any_chunks_are_the_same(void **state)
{
	static const uint32_t cuts[][5] = {{37}, {5, 32}, {16, 16, 5}, {1}};
	struct whole w = whole_usual();

	(void)state;
	w.n = w.n_q = 37;
	whole_open(&w, 37);
	for (size_t i = 0; i < COUNT(cuts); i++)
		check_chunks(&w, cuts[i], 16, ORDER_HND, 1);
	whole_close(&w);
}

static void batch_company_changes_no_bit(void **state)
{
	struct whole w = whole_usual();
	const uint32_t heads = whole_q_heads(&w);
	float *out = floats((size_t)w.n_q * heads * w.dim_v), *lse = floats((size_t)w.n_q * heads), *other;
	struct kvattn_seq seqs[7];
	struct kvattn_opts opts;
	struct kv kv;

	(void)state;
	whole_open(&w, 71);
	whole_kv(&w, 32, ORDER_HND, &kv);
	whole_opts(&w, &opts);
	other = floats(7 * (size_t)w.n_q * heads * w.dim_v);
	for (uint32_t threads = 1; threads <= 4; threads++) {
		for (uint32_t i = 0; i < 7; i++) { /* the same keys, other lengths: none, few, all */
			seqs[i] = kv_seq(&kv, w.q, i % 3 ? 1 : 9, other + i * (size_t)w.n_q * heads * w.dim_v);
			seqs[i].table.n_tokens = i * (w.n / 7);
		}
		seqs[threads] = whole_chunk(&w, &kv, 0, w.n_q, out, lse);
		memset(out, 0xff, (size_t)w.n_q * heads * w.dim_v * sizeof(float));
		opts.n_threads = threads;
		assert_int_equal(kvattn_attend(&kv.geom, seqs, 7, &opts), 0);
		whole_same(&w, out, lse, "in a batch");
	}
	kv_close(&kv);
	free(out), free(lse), free(other);
	whole_close(&w);
}

/* The last row alone, over the given blocks in the given places. */
/* Blocks of the beginning are the same, what follows is each sequence's own, and one is not longer than the
   beginning. */
static void check_beginning(uint32_t type, uint32_t n_q, bool latent)
{
	enum { N = 9, HEADS = 2, GROUP = 4, DIM = 48, BLOCK = 16, COMMON = 2100 / BLOCK, LONGEST = 2300 };
	const struct kvattn_shape shape = {1, HEADS, DIM, DIM, type, type, BLOCK};
	const size_t row = (size_t)HEADS * GROUP * DIM;
	float *k = floats((size_t)LONGEST * HEADS * DIM), *q = floats(N * n_q * row), *out = floats(N * n_q * row),
	      *alone = floats(N * n_q * row);
	const void *tables[N][LONGEST / BLOCK + 1];
	struct kvattn_seq seqs[N];
	struct kvattn_opts opts;
	uint64_t seed = 5;
	struct kv kv[N];

	kvattn_opts_init(&opts, HEADS * GROUP);
	for (uint32_t i = 0; i < N; i++) {
		const uint64_t n = i == 4 ? 2050 : i == 7 ? COMMON * BLOCK : LONGEST - 17 * i;

		noise_fill(&seed, k, (size_t)LONGEST * HEADS * DIM, 1);
		noise_fill(&seed, q + i * n_q * row, n_q * row, 1);
		if (latent)
			kv_open_latent(&kv[i], &shape, n);
		else
			kv_open(&kv[i], &shape, ORDER_TILED, n);
		kv_fill(&kv[i], k, k);
		seqs[i] = kv_seq(&kv[i], q + i * n_q * row, n_q, out + i * n_q * row);
		for (uint64_t b = 0; b < kv[i].n_blocks; b++)
			tables[i][b] = b < COMMON && i != 4 ? kv[0].blocks[b]
				       : b < COMMON - 1	    ? kv[0].blocks[b]
							    : kv[i].blocks[b];
		seqs[i].table.blocks = tables[i];
		seqs[i].q_end = i == 2 ? 1500 : 0; /* sees the beginning of the beginning */
	}
	for (uint32_t i = 0; i < N; i++) {
		struct kvattn_seq one = seqs[i];

		one.out = alone + i * n_q * row;
		assert_int_equal(kvattn_attend(&kv[0].geom, &one, 1, &opts), 0);
	}
	for (opts.n_threads = 1; opts.n_threads <= 3; opts.n_threads += 2) {
		memset(out, 0xff, N * n_q * row * sizeof(float));
		assert_int_equal(kvattn_attend(&kv[0].geom, seqs, N, &opts), 0);
		assert_memory_equal(alone, out, N * n_q * row * sizeof(float));
	}
	for (uint32_t i = 0; i < N; i++)
		kv_close(&kv[i]);
	free(k), free(q), free(out), free(alone);
}

static void sequences_with_a_common_beginning_have_the_bits_of_each_alone(void **state)
{
	static const uint32_t types[] = {KVATTN_F32, KVATTN_F16, KVATTN_BF16, KVATTN_I8, KVATTN_I4, KVATTN_FP8_E4M3};

	(void)state;
	for (size_t i = 0; i < COUNT(types); i++)
		for (uint32_t n_q = 1; n_q <= 3; n_q += 2)
			check_beginning(types[i], n_q, false);
	check_beginning(KVATTN_F16, 1, true);
	check_beginning(KVATTN_BF16, 1, true);
}

static void last_row(
	const struct whole *w, const struct kvattn_table *table, const struct kvattn_geom *geom, float *out)
{
	const uint32_t heads = whole_q_heads(w);
	const struct kvattn_seq seq = {
		.table = *table,
		.q = w->q + (size_t)(w->n_q - 1) * heads * w->dim_k,
		.out = out,
		.n_q = 1,
		.q_end = w->n,
		.causal = 1,
	};
	struct kvattn_opts opts;

	whole_opts(w, &opts);
	assert_int_equal(kvattn_attend(geom, &seq, 1, &opts), 0);
}

static void places_in_memory_change_no_bit(void **state)
{
	struct whole w = whole_usual();
	const size_t row = (size_t)whole_q_heads(&w) * w.dim_v;
	float *out = floats(row);
	uint64_t seed = 9;
	struct kv kv;

	(void)state;
	whole_open(&w, 9);
	whole_kv(&w, 16, ORDER_HND, &kv);
	for (uint64_t b = kv.n_blocks - 1; b > 0; b--) { /* the last block may be a short one: any block may hold it */
		const uint64_t at = noise_below(&seed, (uint32_t)b + 1);
		const void *swap = kv.blocks[b];

		kv.blocks[b] = kv.blocks[at];
		kv.blocks[at] = swap;
	}
	kv_fill(&kv, w.k, w.v);
	last_row(&w, &(struct kvattn_table){kv.blocks, NULL, kv.n_blocks, kv.n_tokens}, &kv.geom, out);
	assert_memory_equal(out, w.out + (w.n_q - 1) * row, row * sizeof(float));
	kv_close(&kv);
	free(out);
	whole_close(&w);
}

/* A ring keeps the sinks and what the window still shows; the table names their positions. */
static void check_ring(bool tiled)
{
	struct whole w = whole_usual();
	const size_t row = (size_t)whole_q_heads(&w) * w.dim_v;
	const void *blocks[2300];
	uint64_t pos[2300], n = 0;
	float *out = floats(row);
	struct kv kv;

	w.tiled = tiled;
	w.window = 300;
	w.sinks = 20;
	whole_open(&w, 10);
	for (size_t i = 0; i < COUNT(attn_block_sizes); i++) {
		const uint32_t size = attn_block_sizes[i];

		whole_kv(&w, size, i % 2, &kv);
		n = 0;
		for (uint64_t b = 0; b < kv.n_blocks; b++)
			if (b * size < w.sinks || (b + 1) * size > w.n - w.window) {
				pos[n] = b * size;
				blocks[n++] = kv.blocks[b];
			}
		memset(out, 0xff, row * sizeof(float));
		last_row(&w, &(struct kvattn_table){blocks, pos, n, n * size - (kv.n_blocks * size - w.n)}, &kv.geom,
			out);
		assert_memory_equal(out, w.out + (w.n_q - 1) * row, row * sizeof(float));
		kv_close(&kv);
	}
	free(out);
	whole_close(&w);
}

static void a_table_without_the_hidden_blocks_gives_the_same_bits(void **state)
{
	(void)state;
	check_ring(false);
	check_ring(true);
}

static void blocks_out_of_order_agree_within_rounding(void **state)
{
	struct whole w = whole_usual();
	const size_t row = (size_t)whole_q_heads(&w) * w.dim_v;
	const void *blocks[144];
	uint64_t pos[144], seed = 5;
	float *out = floats(row);
	struct kv kv;

	(void)state;
	w.n = 143 * 16;
	whole_open(&w, 12);
	whole_kv(&w, 16, ORDER_HND, &kv);
	for (uint64_t b = 0; b < 143; b++) {
		const uint64_t at = noise_below(&seed, (uint32_t)b + 1);

		blocks[b] = blocks[at], pos[b] = pos[at];
		blocks[at] = kv.blocks[b], pos[at] = b * 16;
	}
	last_row(&w, &(struct kvattn_table){blocks, pos, 143, w.n}, &kv.geom, out);
	for (size_t i = 0; i < row; i++)
		assert_true(fabs(out[i] - w.out[(w.n_q - 1) * row + i]) <= 2e-6);
	kv_close(&kv);
	free(out);
	whole_close(&w);
}

static void parts_of_the_keys_merge_to_the_whole(void **state)
{
	struct whole w = whole_usual();
	const uint32_t heads = whole_q_heads(&w);
	const size_t row = (size_t)heads * w.dim_v;
	float *out = floats(3 * row), *lse = floats(3 * heads), *merged = floats(row), *merged_lse = floats(heads);
	uint64_t borders[] = {0, 37, 61, 0};
	struct kvattn_part parts[3];
	uint64_t pos[144];
	struct kvattn_opts opts;
	struct kv kv;

	(void)state;
	whole_open(&w, 13);
	whole_kv(&w, 16, ORDER_HND, &kv);
	whole_opts(&w, &opts);
	borders[3] = kv.n_blocks;
	for (uint64_t b = 0; b < kv.n_blocks; b++)
		pos[b] = b * 16;
	for (int i = 0; i < 3; i++) {
		struct kvattn_seq seq = kv_seq(&kv, w.q + (size_t)(w.n_q - 1) * heads * w.dim_k, 1, out + i * row);

		seq.lse = lse + i * heads;
		seq.q_end = w.n;
		seq.table.blocks = kv.blocks + borders[i];
		seq.table.block_pos = pos + borders[i];
		seq.table.n_blocks = borders[i + 1] - borders[i];
		seq.table.n_tokens = i < 2 ? seq.table.n_blocks * 16 : w.n - borders[i] * 16;
		assert_int_equal(kvattn_attend(&kv.geom, &seq, 1, &opts), 0);
		parts[i] = (struct kvattn_part){out + i * row, lse + i * heads};
	}
	assert_int_equal(kvattn_merge(parts, 3, heads, w.dim_v, merged, merged_lse), 0);
	for (size_t i = 0; i < row; i++)
		assert_true(fabs(merged[i] - w.out[(w.n_q - 1) * row + i]) <= 3e-6);
	for (uint32_t h = 0; h < heads; h++)
		assert_true(fabs(merged_lse[h] - w.lse[(size_t)(w.n_q - 1) * heads + h]) <= 3e-6 * 10);
	kv_close(&kv);
	free(out), free(lse), free(merged), free(merged_lse);
	whole_close(&w);
}

/* ---- Threads ---- */

#define CALLERS 256

struct caller {
	pthread_t thread;
	uint64_t seed;
	int result;
	bool same;
};

/* Attends several times over keys of its own; every result is the first one's. */
static void *caller_run(void *arg)
{
	struct caller *c = arg;
	const struct kvattn_shape shape = {1, 1, 16, 16, KVATTN_F16, KVATTN_F16, 16};
	const uint32_t n = 40 + (uint32_t)(c->seed % 60);
	float k[100 * 16], v[100 * 16], q[2 * 16], first[2 * 16], out[2 * 16];
	const void *blocks[7];
	struct kvattn_opts opts;
	struct kvattn_geom geom;
	struct kvattn_seq seq = {.q = q, .n_q = 1, .causal = 1};
	uint64_t seed = c->seed;
	char *memory;

	kvattn_geom_init_hnd(&geom, &shape, 0);
	memory = aligned_alloc(64, 7 * kvattn_block_bytes(&shape));
	if (!memory)
		return NULL;
	for (uint32_t i = 0; i < 7; i++)
		blocks[i] = memory + i * kvattn_block_bytes(&shape);
	noise_fill(&seed, k, 100 * 16, 1);
	noise_fill(&seed, v, 100 * 16, 1);
	noise_fill(&seed, q, 2 * 16, 3);
	for (uint32_t i = 0; i * 16 < n; i++)
		kvattn_put(&geom, memory + i * kvattn_block_bytes(&shape), 0, n - i * 16 < 16 ? n - i * 16 : 16,
			k + (size_t)i * 256, 0, v + (size_t)i * 256, 0);
	kvattn_opts_init(&opts, 2);
	seq.table = (struct kvattn_table){blocks, NULL, 7, n};
	seq.out = first;
	c->result = kvattn_attend(&geom, &seq, 1, &opts);
	c->same = true;
	for (int i = 0; i < 30 && c->result == 0; i++) {
		seq.out = out;
		opts.n_threads = i % 10 ? 1 : 2;
		c->result = kvattn_attend(&geom, &seq, 1, &opts);
		c->same &= memcmp(out, first, sizeof(out)) == 0;
	}
	free(memory);
	return NULL;
}

/* B74: ten calls after another in each, rather than 30 s of them */
static void two_hundred_and_fifty_six_threads_attend_at_once(void **state)
{
	static struct caller callers[CALLERS], alone;

	(void)state;
	for (int i = 0; i < CALLERS; i++) {
		callers[i].seed = (uint64_t)i + 1;
		assert_int_equal(pthread_create(&callers[i].thread, NULL, caller_run, &callers[i]), 0);
	}
	for (int i = 0; i < CALLERS; i++) {
		pthread_join(callers[i].thread, NULL);
		assert_int_equal(callers[i].result, 0);
		assert_true(callers[i].same);
	}
	alone.seed = 1;
	caller_run(&alone);
	assert_true(alone.same && alone.result == 0);
}

static void *forker_run(void *arg)
{
	_Atomic int *failed = arg;
	const pid_t child = fork();
	int status = -1;

	if (child == 0) {
		struct caller c = {.seed = 77};

		alarm(60);
		caller_run(&c);
		_exit(c.result == 0 && c.same ? 0 : 1);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
		atomic_fetch_add(failed, 1);
	return NULL;
}

/* B71 */
static void children_forked_after_a_call_attend_too(void **state)
{
	struct caller before = {.seed = 77}, after = {.seed = 77};
	_Atomic int failed = 0;
	pthread_t threads[4];

	(void)state;
	caller_run(&before);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, forker_run, &failed), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(failed, 0);
	caller_run(&after);
	assert_true(after.same && after.result == 0);
}

static void attend_whole(const struct whole *w, uint32_t threads)
{
	static const uint32_t all[] = {150, 0};

	check_chunks(w, all, 64, false, threads);
}

/* B73 */
static void no_more_threads_than_the_cpu_set_holds(void **state)
{
	struct whole w = whole_usual();
	cpu_set_t before, one;

	(void)state;
	if (SANITIZED) {
		print_message("no count of threads: sanitizers have their own pthread_create()\n");
		skip();
	}
	whole_open(&w, 14);
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &before) && CPU_COUNT(&one) == 0)
			CPU_SET(cpu, &one);
	threads_made = 0;
	attend_whole(&w, KVATTN_THREADS_AUTO);
	assert_true(threads_made < CPU_COUNT(&before));
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	threads_made = 0;
	attend_whole(&w, KVATTN_THREADS_AUTO);
	assert_int_equal(threads_made, 0);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
	attend_whole(&w, 5);
	assert_int_equal(threads_made, 4); /* the caller is one of five */
	whole_close(&w);
}

/* A cgroup with one processor's time, and one below it that has no limit of its own, by whichever version this machine
   has. */
struct quota {
	char above[64], below[80];
};

static bool write_file(const char *dir, const char *name, const char *text)
{
	char path[160];
	FILE *file;
	bool good;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	file = fopen(path, "we");
	if (!file)
		return false;
	good = fputs(text, file) >= 0;
	return fclose(file) == 0 && good;
}

static bool quota_open(struct quota *quota)
{
	static const char *const tops[] = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"};

	for (size_t v2 = 0; v2 < COUNT(tops); v2++) {
		snprintf(quota->above, sizeof(quota->above), "%s/kvattn-test-%d", tops[v2], (int)getpid());
		snprintf(quota->below, sizeof(quota->below), "%s/below", quota->above);
		if (mkdir(quota->above, 0755) < 0)
			continue;
		if (mkdir(quota->below, 0755) == 0 && (v2 ? write_file(quota->above, "cpu.max", "100000 100000")
							  : write_file(quota->above, "cpu.cfs_quota_us", "100000")))
			return true;
		rmdir(quota->below);
		rmdir(quota->above);
	}
	return false;
}

/* Threads that a call, or a crew, makes by itself in a process of its own, which asks once what it may use. @group:
   that it is in, or NULL */
static int threads_made_in(const char *group)
{
	char pid[16], line[16] = "";
	int ends[2], status;
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork();
	if (child == 0) {
		snprintf(pid, sizeof(pid), "%d", (int)getpid());
		if (group && !write_file(group, "cgroup.procs", pid))
			_exit(1);
		dup2(ends[1], 1);
		setenv("ATTN_SAY_THREADS", "1", 1);
		execl("/proc/self/exe", "test_attn_promise", (char *)NULL);
		_exit(1);
	}
	close(ends[1]);
	assert_true(read(ends[0], line, sizeof(line) - 1) > 0);
	close(ends[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	return atoi(line);
}

/* B73; eight engines at once are each such a process */
static void no_more_threads_than_the_quota_of_a_group_above(void **state)
{
	struct quota quota;
	int free_threads, bound_threads;

	(void)state;
	if (SANITIZED) {
		print_message("no count of threads: sanitizers have their own pthread_create()\n");
		skip();
	}
	if (!quota_open(&quota)) {
		print_message("skipped: no cgroup with a quota of processors can be made here\n");
		skip();
	}
	free_threads = threads_made_in(NULL);
	bound_threads = threads_made_in(quota.below);
	assert_int_equal(rmdir(quota.below) | rmdir(quota.above), 0);
	assert_int_equal(bound_threads, 0);
	assert_true(free_threads > 0 || sysconf(_SC_NPROCESSORS_ONLN) == 1);
}

static void a_refused_thread_costs_time_only(void **state)
{
	struct whole w = whole_usual();

	(void)state;
	if (SANITIZED) {
		print_message("no count of threads: sanitizers have their own pthread_create()\n");
		skip();
	}
	whole_open(&w, 15);
	for (int refused_from = 0; refused_from < 3; refused_from++) {
		threads_made = 0;
		threads_refused_from = refused_from;
		attend_whole(&w, 4);
		assert_true(threads_made > refused_from);
	}
	threads_refused_from = -1;
	whole_close(&w);
}

static int threads_say(void)
{
	struct whole w = whole_usual();
	struct kvattn_crew *crew;
	int made;

	whole_open(&w, 16);
	threads_made = 0;
	attend_whole(&w, KVATTN_THREADS_AUTO);
	whole_close(&w);
	made = threads_made;
	if (kvattn_crew_new(KVATTN_THREADS_AUTO, 0, &crew) < 0)
		return 1;
	made = kvattn_crew_size(crew) > (uint32_t)made + 1 ? (int)kvattn_crew_size(crew) - 1 : made;
	kvattn_crew_free(crew);
	return printf("%d\n", made) < 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(chunking_block_size_layout_and_threads_change_no_bit),
		cmocka_unit_test(keys_that_are_values_too_keep_the_promise),
		cmocka_unit_test(group_sizes_change_no_bit_either),
		cmocka_unit_test(thirty_seven_tokens_in_any_chunks_are_the_same),
		cmocka_unit_test(batch_company_changes_no_bit),
		cmocka_unit_test(sequences_with_a_common_beginning_have_the_bits_of_each_alone),
		cmocka_unit_test(places_in_memory_change_no_bit),
		cmocka_unit_test(a_table_without_the_hidden_blocks_gives_the_same_bits),
		cmocka_unit_test(blocks_out_of_order_agree_within_rounding),
		cmocka_unit_test(parts_of_the_keys_merge_to_the_whole),
		cmocka_unit_test(two_hundred_and_fifty_six_threads_attend_at_once),
		cmocka_unit_test(children_forked_after_a_call_attend_too),
		cmocka_unit_test(no_more_threads_than_the_cpu_set_holds),
		cmocka_unit_test(no_more_threads_than_the_quota_of_a_group_above),
		cmocka_unit_test(a_refused_thread_costs_time_only),
	};
	int r;

	(void)argc;
	if (getenv("ATTN_SAY_THREADS"))
		return threads_say();
	r = levels_run(argv);
	return r >= 0 ? r : cmocka_run_group_tests_name(kvattn_isa_name(), tests, NULL, NULL);
}
