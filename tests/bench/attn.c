/*
 * attn.c - how fast libkvattn decodes and prefills, beside plain reads of the same bytes
 *
 * Usage: kvbench-attn [--huge] [tokens] [repetitions]	defaults: 32768 7
 *
 * 32 query heads, 8 KV heads of 128, but where a row says others; pages of 4 KiB, with --huge of 2 MiB, as the daemon has them where
 * the host gives them (transparent ones: the system must allow "always" or "madvise").  The machine's memory speed drifts, so each decode is bracketed by two plain reads
 * of its pool (four sequential streams a thread, as many threads, no arithmetic) and the ratio to their mean is what counts; medians over
 * repetitions.
 * Rows that compare two kinds of work take turns between them and compare processor times, the best of each, so that other
 * work on the machine shows less.  Prefill stands beside OpenBLAS's sgemm where that is installed.
 * A row: name=value pairs.  Last line: "bench-attn: ok rows=<n>".
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <kvattn.h>

#define Q_HEADS 32u
#define KV_HEADS 8u
#define DIM 128u
#define REPS_MAX 101u
#define PREFILL 512u
#define THREADS_MAX 2u

static bool huge; /* pools in pages of 2 MiB */

struct pool {
	struct kvattn_geom geom;
	uint32_t n_q_heads;
	char *bytes, *map;
	uint64_t block_bytes, total, n_blocks, map_bytes;
	const void **in_order, **shuffled;
};

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The caller's processor time: of work on this thread alone. */
static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* That of all threads, those that have ended too. */
static double cpu_all_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double lesser(double a, double b)
{
	return a < b ? a : b;
}

static uint64_t noise_state = 88172645463325252u;

static uint64_t noise(void)
{
	noise_state ^= noise_state << 13;
	noise_state ^= noise_state >> 7;
	noise_state ^= noise_state << 17;
	return noise_state;
}

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
	qsort(values, n, sizeof(*values), compare);
	return values[n / 2];
}

/* Four streams a quarter apart; the widest loads this processor has, so that the read is not what limits. */
#define READ4(name, attributes) \
	__attribute__(attributes) static uint64_t name(const char *p, uint64_t bytes) \
	{ \
		typedef uint64_t line __attribute__((vector_size(64), aligned(64), may_alias)); \
		const uint64_t quarter = bytes / 4 / 128 * 128; \
		line sum[4] = {{0}}; \
\
		for (uint64_t i = 0; i < quarter; i += 64) \
			for (int s = 0; s < 4; s++) \
				sum[s] += *(const line *)(const void *)(p + s * quarter + i); \
		sum[0] += sum[1] + sum[2] + sum[3]; \
		return sum[0][0] ^ sum[0][1] ^ sum[0][2] ^ sum[0][3] ^ sum[0][4] ^ sum[0][5] ^ sum[0][6] ^ sum[0][7]; \
	}

#if defined(__x86_64__)
READ4(read4_avx512, (noinline, target("avx512f")))
READ4(read4_avx2, (noinline, target("avx2")))
#endif
READ4(read4_plain, (noinline))

struct reader {
	pthread_t thread;
	const char *at;
	uint64_t bytes, sum;
};

static void *reader_run(void *arg)
{
	struct reader *r = arg;

#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f"))
		r->sum = read4_avx512(r->at, r->bytes);
	else if (__builtin_cpu_supports("avx2"))
		r->sum = read4_avx2(r->at, r->bytes);
	else
#endif
		r->sum = read4_plain(r->at, r->bytes);
	return NULL;
}

/* The pool in equal parts, one a thread, the caller among them; threads are made within the time, as the library's are. */
static double read_gbps(const struct pool *pool, uint32_t n_threads)
{
	struct reader readers[THREADS_MAX];
	static volatile uint64_t sink;
	const uint64_t part = pool->total / n_threads / 64 * 64;
	const double start = now_s();

	for (uint32_t i = 0; i < n_threads; i++) {
		readers[i] = (struct reader){.at = pool->bytes + i * part, .bytes = part};
		if (i && pthread_create(&readers[i].thread, NULL, reader_run, &readers[i]))
			exit(2);
	}
	reader_run(&readers[0]);
	for (uint32_t i = 1; i < n_threads; i++)
		pthread_join(readers[i].thread, NULL);
	for (uint32_t i = 0; i < n_threads; i++)
		sink += readers[i].sum;
	(void)sink;
	return (double)pool->total / (now_s() - start) * 1e-9;
}

/* On this thread alone, by its processor time. */
static double read_cpu_s(const struct pool *pool)
{
	struct reader reader = {.at = pool->bytes, .bytes = pool->total};
	static volatile uint64_t sink;
	const double start = cpu_s();

	reader_run(&reader);
	sink += reader.sum;
	(void)sink;
	return cpu_s() - start;
}

static float noise_float(void)
{
	return (float)(noise() >> 40) / (float)(1 << 23) - 1.0f;
}

/* One block of noise, copied over all: what matters is where the bytes come from, not what they are. */
static void pool_fill(struct pool *pool)
{
	const uint32_t n = pool->geom.block_tokens, heads = pool->geom.n_kv_heads;
	const size_t floats = (size_t)n * heads * (pool->geom.dim_k > DIM ? pool->geom.dim_k : DIM);
	float *rows = malloc(floats * sizeof(float));

	if (!rows)
		exit(2);
	for (size_t i = 0; i < floats; i++)
		rows[i] = noise_float();
	kvattn_put(&pool->geom, pool->bytes, 0, n, rows, 0, rows, 0);
	free(rows);
	for (uint64_t b = 1; b < pool->n_blocks; b++)
		memcpy(pool->bytes + b * pool->block_bytes, pool->bytes, pool->block_bytes);
}

enum order { HND, NHD, TILED };
static const char *const order_names[] = {"hnd", "nhd", "tiled"};

/* Said once: pages of 2 MiB are a wish. */
static void huge_say(const struct pool *pool)
{
	static bool said;
	FILE *file = said ? NULL : fopen("/proc/self/smaps_rollup", "re");
	unsigned long long kib = 0;
	char line[128];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "AnonHugePages: %llu kB", &kib) == 1)
			break;
	if (file) {
		printf("pages size=2M mib=%llu of=%llu\n", kib >> 10, (unsigned long long)pool->total >> 20);
		fclose(file);
	}
	said = true;
}

/* Large ones from where a page of theirs may begin, and not there before they are asked for. */
static void pool_map(struct pool *pool)
{
	const size_t large = 2u << 20;

	pool->map_bytes = huge ? (pool->total / large + 2) * large : pool->total;
	pool->map = mmap(NULL, pool->map_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | (huge ? 0 : MAP_POPULATE), -1, 0);
	if (pool->map == MAP_FAILED) {
		fprintf(stderr, "kvbench-attn: no memory for %llu MiB; ask for fewer tokens\n",
			(unsigned long long)(pool->total >> 20));
		exit(2);
	}
	pool->bytes = pool->map;
	if (!huge)
		return;
	pool->bytes += (large - (uintptr_t)pool->map % large) % large;
	madvise(pool->map, pool->map_bytes, MADV_HUGEPAGE);
}

static void pool_open_shape(
	struct pool *pool, const struct kvattn_shape *shape, uint32_t n_q_heads, enum order order, uint64_t tokens)
{
	int (*const init[])(struct kvattn_geom *, const struct kvattn_shape *, uint32_t) = {
		kvattn_geom_init_hnd, kvattn_geom_init_nhd, kvattn_geom_init_tiled};

	if (init[order](&pool->geom, shape, 0) < 0)
		exit(2);
	pool->n_q_heads = n_q_heads;
	pool->block_bytes = (order == TILED ? kvattn_block_bytes_tiled : kvattn_block_bytes)(shape);
	pool->n_blocks = tokens / shape->block_tokens;
	pool->total = pool->block_bytes * pool->n_blocks;
	pool_map(pool);
	pool->in_order = calloc(pool->n_blocks, sizeof(*pool->in_order));
	pool->shuffled = calloc(pool->n_blocks, sizeof(*pool->shuffled));
	if (!pool->in_order || !pool->shuffled)
		exit(2);
	pool_fill(pool);
	if (huge)
		huge_say(pool);
	for (uint64_t b = 0; b < pool->n_blocks; b++) {
		const uint64_t at = noise() % (b + 1);

		pool->in_order[b] = pool->bytes + b * pool->block_bytes;
		pool->shuffled[b] = pool->shuffled[at];
		pool->shuffled[at] = pool->in_order[b];
	}
}

static void pool_open(struct pool *pool, uint32_t type, uint32_t block_tokens, enum order order, uint64_t tokens)
{
	const struct kvattn_shape shape = {1, KV_HEADS, DIM, DIM, type, type, block_tokens};

	pool_open_shape(pool, &shape, Q_HEADS, order, tokens);
}

static void pool_close(struct pool *pool)
{
	munmap(pool->map, pool->map_bytes);
	free(pool->in_order);
	free(pool->shuffled);
}

/* Seconds by @clock; @mass: [KV_HEADS][tokens] or NULL. */
static double attend_by(double (*clock)(void), const struct pool *pool, const void *const *blocks, uint32_t n_q,
	uint32_t n_threads, float *mass)
{
	static float q[PREFILL * Q_HEADS * DIM], out[PREFILL * Q_HEADS * DIM];
	struct kvattn_seq seq = {
		.table = {.blocks = blocks,
			.n_blocks = pool->n_blocks,
			.n_tokens = pool->n_blocks * pool->geom.block_tokens},
		.q = q,
		.out = out,
		.n_q = n_q,
		.causal = 1,
		.mass = mass,
	};
	struct kvattn_opts opts;
	double start;

	for (size_t i = 0; q[i] == 0 && i < sizeof(q) / sizeof(q[0]); i++)
		q[i] = noise_float();
	kvattn_opts_init(&opts, pool->n_q_heads);
	opts.n_threads = n_threads;
	start = clock();
	if (kvattn_attend(&pool->geom, &seq, 1, &opts) < 0)
		exit(2);
	return clock() - start;
}

static double attend_s(const struct pool *pool, const void *const *blocks, uint32_t n_q, uint32_t n_threads)
{
	return attend_by(now_s, pool, blocks, n_q, n_threads, NULL);
}

static void decode_row(
	const struct pool *pool, const char *what, const void *const *blocks, uint32_t n_threads, uint32_t reps)
{
	double speed[REPS_MAX], ratio[REPS_MAX], reads[REPS_MAX];

	for (uint32_t i = 0; i < reps; i++) {
		const double before = read_gbps(pool, n_threads), took = attend_s(pool, blocks, 1, n_threads);

		reads[i] = (before + read_gbps(pool, n_threads)) / 2;
		speed[i] = (double)pool->total / took * 1e-9;
		ratio[i] = speed[i] / reads[i];
	}
	printf("decode %s block=%u threads=%u GBps=%.1f read4=%.1f ratio=%.2f\n", what, pool->geom.block_tokens,
		n_threads, median(speed, reps), median(reads, reps), median(ratio, reps));
	fflush(stdout);
}

static uint32_t decode_rows(const char *type_name, uint32_t type, uint64_t tokens, uint32_t reps)
{
	static const struct {
		enum order order;
		uint32_t block_tokens;
	} kinds[] = {{TILED, 16}, {TILED, 64}, {TILED, 256}, {HND, 16}, {HND, 64}, {NHD, 16}, {NHD, 64}};
	uint32_t rows = 0;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct pool pool;
		char what[64];

		if ((type == KVATTN_I8 || type == KVATTN_I4) && kinds[i].order != TILED)
			continue;
		pool_open(&pool, type, kinds[i].block_tokens, kinds[i].order, tokens);
		for (uint32_t threads = 1; threads <= THREADS_MAX; threads++) {
			snprintf(what, sizeof(what), "type=%s layout=%s order=seq", type_name,
				order_names[kinds[i].order]);
			decode_row(&pool, what, pool.in_order, threads, reps);
			snprintf(what, sizeof(what), "type=%s layout=%s order=rnd", type_name,
				order_names[kinds[i].order]);
			decode_row(&pool, what, pool.shuffled, threads, reps);
			rows += 2;
		}
		pool_close(&pool);
	}
	return rows;
}

/* ---- Other shapes ---- */

/* By processor time, in turns with a plain read of the same pool. */
static void shape_row(const char *type_name, uint32_t type, uint32_t n_q_heads, uint32_t n_kv_heads, uint32_t dim_k,
	uint32_t dim_v, uint64_t tokens, uint32_t reps)
{
	const struct kvattn_shape shape = {1, n_kv_heads, dim_k, dim_v, type, type, 64};
	double best = 1e9, read = 1e9;
	struct pool pool;

	pool_open_shape(&pool, &shape, n_q_heads, TILED, tokens);
	for (uint32_t i = 0; i < reps; i++) {
		best = lesser(best, attend_by(cpu_s, &pool, pool.in_order, 1, 1, NULL));
		read = lesser(read, read_cpu_s(&pool));
	}
	printf("shape type=%s heads=%u:%u dims=%u:%u layout=tiled block=64 threads=1 cpu_ms=%.3f GBps=%.1f read4=%.1f ratio=%.2f\n",
		type_name, n_q_heads, n_kv_heads, dim_k, dim_v, best * 1e3, (double)pool.total / best * 1e-9,
		(double)pool.total / read * 1e-9, read / best);
	fflush(stdout);
	pool_close(&pool);
}

static uint32_t shape_rows(const char *type_name, uint32_t type, uint64_t tokens, uint32_t reps)
{
	static const uint32_t dims[][2] = {
		{64, 64}, {80, 80}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
	const uint32_t n = sizeof(dims) / sizeof(dims[0]);

	shape_row(type_name, type, 16, 16, 64, 64, tokens, reps);
	for (uint32_t i = 0; i < n; i++)
		shape_row(type_name, type, Q_HEADS, KV_HEADS, dims[i][0], dims[i][1], tokens, reps);
	return n + 1;
}

/* By the clock, in turns, the best of each: what a second thread gains, and what it gains where memory is only read. */
static void threads_row(const char *type_name, uint32_t type, uint64_t tokens, uint32_t reps)
{
	double took[THREADS_MAX], read[THREADS_MAX];
	struct pool pool;

	pool_open(&pool, type, 64, TILED, tokens);
	for (uint32_t n = 0; n < THREADS_MAX; n++)
		took[n] = read[n] = 1e9;
	for (uint32_t i = 0; i < reps; i++)
		for (uint32_t n = 0; n < THREADS_MAX; n++) {
			took[n] = lesser(took[n], attend_s(&pool, pool.in_order, 1, n + 1));
			read[n] = lesser(read[n], 1 / read_gbps(&pool, n + 1));
		}
	printf("threads type=%s layout=tiled block=64 one=%.1f two=%.1f ratio=%.2f read=%.2f\n", type_name,
		(double)pool.total / took[0] * 1e-9, (double)pool.total / took[1] * 1e-9, took[0] / took[1],
		read[0] / read[1]);
	fflush(stdout);
	pool_close(&pool);
}

/* ---- OpenBLAS ---- */

#define SGEMM_SIZE 1024

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
	const float *b, int ldb, float beta, float *c, int ldc);

/* NULL: not installed.  Said to be newer than it takes itself for, it uses the kernel this processor deserves. */
static sgemm_fn sgemm_open(void)
{
	void (*set_threads)(int), *library;
	const char *(*core)(void);
	sgemm_fn sgemm;

#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f"))
		setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 1);
	else if (__builtin_cpu_supports("avx2"))
		setenv("OPENBLAS_CORETYPE", "HASWELL", 1);
#endif
	library = dlopen("libopenblas.so.0", RTLD_NOW);
	if (!library) {
		printf("skip what=sgemm reason=\"OpenBLAS is not installed (libopenblas0)\"\n");
		return NULL;
	}
	sgemm = (sgemm_fn)dlsym(library, "cblas_sgemm");
	set_threads = (void (*)(int))dlsym(library, "openblas_set_num_threads");
	core = (const char *(*)(void))dlsym(library, "openblas_get_corename");
	if (!sgemm || !set_threads || !core) {
		printf("skip what=sgemm reason=\"libopenblas.so.0 has not what is asked of it\"\n");
		return NULL;
	}
	set_threads(1);
	printf("sgemm kernel=%s\n", core());
	return sgemm;
}

static double sgemm_gflops(sgemm_fn sgemm)
{
	static float a[SGEMM_SIZE * SGEMM_SIZE], b[SGEMM_SIZE * SGEMM_SIZE], c[SGEMM_SIZE * SGEMM_SIZE];
	double start;

	for (size_t i = 0; a[0] == 0 && i < SGEMM_SIZE * SGEMM_SIZE; i++)
		a[i] = b[i] = noise_float();
	start = cpu_s();
	sgemm(101, 111, 111, SGEMM_SIZE, SGEMM_SIZE, SGEMM_SIZE, 1, a, SGEMM_SIZE, b, SGEMM_SIZE, 0, c, SGEMM_SIZE);
	return 2.0 * SGEMM_SIZE * SGEMM_SIZE * SGEMM_SIZE / (cpu_s() - start) * 1e-9;
}

/* ---- A common beginning ---- */

/* Eight sequences over the same blocks beside one of them: work of all threads together.  Where K and V are multiplied as
 * f32, what sgemm would take for the eight's products, as a share of one's time, is the least there can be. */
static void shared_row(
	const char *type_name, uint32_t type, uint64_t tokens, uint32_t n_threads, uint32_t reps, sgemm_fn sgemm)
{
	enum { N = 8 };
	static float q[N][Q_HEADS * DIM], out[N][Q_HEADS * DIM];
	const double work = 4.0 * N * (double)tokens * Q_HEADS * DIM;
	double one = 1e9, all = 1e9, peak = 0;
	struct kvattn_seq seqs[N];
	struct kvattn_opts opts;
	struct pool pool;

	pool_open(&pool, type, 64, TILED, tokens);
	kvattn_opts_init(&opts, Q_HEADS);
	opts.n_threads = n_threads;
	for (uint32_t i = 0; i < N; i++) {
		for (uint32_t d = 0; d < Q_HEADS * DIM; d++)
			q[i][d] = noise_float();
		seqs[i] = (struct kvattn_seq){.table = {.blocks = pool.in_order,
						      .n_blocks = pool.n_blocks,
						      .n_tokens = pool.n_blocks * pool.geom.block_tokens},
			.q = q[i],
			.out = out[i],
			.n_q = 1,
			.causal = 1};
	}
	for (uint32_t i = 0; i < reps; i++) {
		double start = cpu_all_s();

		if (kvattn_attend(&pool.geom, seqs, 1, &opts) < 0)
			exit(2);
		one = lesser(one, cpu_all_s() - start);
		start = cpu_all_s();
		if (kvattn_attend(&pool.geom, seqs, N, &opts) < 0)
			exit(2);
		all = lesser(all, cpu_all_s() - start);
		peak = -lesser(-peak, sgemm && type != KVATTN_BF16 ? -sgemm_gflops(sgemm) : 0);
	}
	printf("shared type=%s layout=tiled sequences=%u threads=%u one_cpu_ms=%.2f all_cpu_ms=%.2f ratio=%.2f",
		type_name, N, n_threads, one * 1e3, all * 1e3, all / one);
	if (peak > 0)
		printf(" sgemm=%.1f bound=%.2f", peak, work * 1e-9 / peak / one);
	printf("\n");
	fflush(stdout);
	pool_close(&pool);
}

/* ---- What each type and each step costs, as a share of a decode step in f16 ---- */

static const struct {
	const char *name;
	uint32_t type;
} types[] = {{"f16", KVATTN_F16}, {"bf16", KVATTN_BF16}, {"f32", KVATTN_F32}, {"fp8", KVATTN_FP8_E4M3},
	{"i8", KVATTN_I8}, {"i4", KVATTN_I4}};
#define N_TYPES (sizeof(types) / sizeof(types[0]))

static uint32_t type_rows(uint64_t tokens, uint32_t reps)
{
	struct pool pools[N_TYPES];
	double best[N_TYPES], with_mass = 1e9, read = 1e9;
	float *mass = calloc(tokens, KV_HEADS * sizeof(float));

	if (!mass)
		exit(2);
	for (size_t i = 0; i < N_TYPES; i++) {
		pool_open(&pools[i], types[i].type, 64, TILED, tokens);
		best[i] = 1e9;
	}
	for (uint32_t r = 0; r < reps; r++) {
		for (size_t i = 0; i < N_TYPES; i++)
			best[i] = lesser(best[i], attend_by(cpu_s, &pools[i], pools[i].in_order, 1, 1, NULL));
		with_mass = lesser(with_mass, attend_by(cpu_s, &pools[0], pools[0].in_order, 1, 1, mass));
		read = lesser(read, read_cpu_s(&pools[0]));
	}
	printf("read type=f16 threads=1 cpu_ms=%.3f GBps=%.1f\n", read * 1e3, (double)pools[0].total / read * 1e-9);
	for (size_t i = 0; i < N_TYPES; i++) {
		printf("time type=%s layout=tiled block=64 threads=1 cpu_ms=%.3f of_f16=%.2f bytes_of_f16=%.2f\n",
			types[i].name, best[i] * 1e3, best[i] / best[0],
			(double)pools[i].total / (double)pools[0].total);
		pool_close(&pools[i]);
	}
	printf("time type=f16 mass=yes layout=tiled block=64 threads=1 cpu_ms=%.3f of_f16=%.2f\n", with_mass * 1e3,
		with_mass / best[0]);
	fflush(stdout);
	free(mass);
	return N_TYPES + 2;
}

static void step_row(const char *what, double took_s, double bytes, double decode_s)
{
	printf("step what=%s cpu_us=%.1f GBps=%.2f of_decode=%.4f\n", what, took_s * 1e6, bytes / took_s * 1e-9,
		took_s / decode_s);
	fflush(stdout);
}

/* A block of f16 to another type, as when it is published a second time or goes cold. */
static void convert_row(const struct pool *from, const char *name, uint32_t type, uint32_t reps, double decode_s)
{
	double best = 1e9;
	struct pool to;
	char what[32];

	pool_open(&to, type, 64, TILED, 64);
	for (uint32_t r = 0; r < reps; r++) {
		const double start = cpu_s();

		if (kvattn_convert(&from->geom, from->bytes, &to.geom, to.bytes, 64) < 0)
			exit(2);
		best = lesser(best, cpu_s() - start);
	}
	pool_close(&to);
	snprintf(what, sizeof(what), "convert-block-f16-%s", name);
	step_row(what, best, (double)from->block_bytes, decode_s);
}

/* One summary of all blocks: what is timed is how many bytes are read and scored. */
static void select_row(const struct pool *pool, const float *summary, uint32_t reps, double decode_s)
{
	static float q[Q_HEADS * DIM];
	const uint64_t n = pool->n_blocks;
	const float **summaries = calloc(n, sizeof(*summaries));
	uint64_t *blocks = calloc(n * KV_HEADS, sizeof(*blocks));
	struct kvattn_select ask = {.size = sizeof(ask),
		.n_q_heads = Q_HEADS,
		.q = q,
		.summaries = summaries,
		.n_blocks = n,
		.n_select = (n + 7) / 8};
	double best = 1e9;

	if (!summaries || !blocks)
		exit(2);
	for (uint32_t i = 0; i < Q_HEADS * DIM; i++)
		q[i] = noise_float();
	for (uint64_t b = 0; b < n; b++)
		summaries[b] = summary;
	for (uint32_t r = 0; r < reps; r++) {
		const double start = cpu_s();

		if (kvattn_select(&pool->geom, &ask, blocks) < 0)
			exit(2);
		best = lesser(best, cpu_s() - start);
	}
	step_row("select-an-eighth", best, (double)n * (double)kvattn_summary_bytes(&pool->geom), decode_s);
	free(summaries);
	free(blocks);
}

static uint32_t step_rows(uint64_t tokens, uint32_t reps)
{
	double decode = 1e9, put = 1e9, summarise = 1e9;
	struct pool pool;
	float *rows, *summary;

	pool_open(&pool, KVATTN_F16, 64, TILED, tokens);
	rows = calloc((size_t)64 * KV_HEADS * DIM, sizeof(float));
	summary = malloc(kvattn_summary_bytes(&pool.geom));
	if (!rows || !summary)
		exit(2);
	for (uint32_t r = 0; r < reps; r++) {
		double start;

		decode = lesser(decode, attend_by(cpu_s, &pool, pool.in_order, 1, 1, NULL));
		start = cpu_s();
		if (kvattn_summarise(&pool.geom, pool.bytes, 64, summary) < 0)
			exit(2);
		summarise = lesser(summarise, cpu_s() - start);
		start = cpu_s();
		if (kvattn_put(&pool.geom, pool.bytes, 0, 64, rows, 0, rows, 0) < 0)
			exit(2);
		put = lesser(put, cpu_s() - start);
	}
	step_row("put-block-f16", put, (double)pool.block_bytes, decode);
	step_row("summarise-block", summarise, (double)pool.block_bytes / 2, decode);
	convert_row(&pool, "i8", KVATTN_I8, reps, decode);
	convert_row(&pool, "i4", KVATTN_I4, reps, decode);
	select_row(&pool, summary, reps, decode);
	free(rows);
	free(summary);
	pool_close(&pool);
	return 5;
}

/* ---- Prefill ---- */

/* 512 causal queries at the end of 4608 keys: the multiplications that are not masked, two operations each. */
static void prefill_row(const char *type_name, uint32_t type, enum order order, uint32_t reps, sgemm_fn sgemm)
{
	const double keys = 4096.0 * PREFILL + PREFILL * (PREFILL + 1) / 2.0;
	double rate = 0, peak = 0;
	struct pool pool;

	pool_open(&pool, type, 64, order, 4096 + PREFILL);
	for (uint32_t i = 0; i < reps; i++) {
		const double took = attend_by(cpu_s, &pool, pool.in_order, PREFILL, 1, NULL);
		const double now = sgemm ? sgemm_gflops(sgemm) : 0;

		rate = -lesser(-rate, -keys * Q_HEADS * DIM * 4 / took * 1e-9);
		peak = -lesser(-peak, -now);
	}
	printf("prefill type=%s layout=%s queries=%u keys=%u threads=1 GFLOPs=%.1f", type_name, order_names[order],
		PREFILL, 4096 + PREFILL, rate);
	if (sgemm)
		printf(" sgemm=%.1f ratio=%.2f", peak, rate / peak);
	printf("\n");
	fflush(stdout);
	pool_close(&pool);
}

static uint32_t all_rows(uint64_t tokens, uint32_t reps)
{
	uint32_t rows = 0;
	sgemm_fn sgemm;

	for (size_t i = 0; i < N_TYPES; i++)
		rows += decode_rows(types[i].name, types[i].type, tokens, reps);
	for (size_t i = 0; i < N_TYPES; i++, rows++)
		threads_row(types[i].name, types[i].type, tokens, reps);
	rows += shape_rows("f16", KVATTN_F16, tokens, reps);
	rows += shape_rows("f32", KVATTN_F32, tokens, reps);
	rows += type_rows(tokens, reps);
	rows += step_rows(tokens, reps);
	sgemm = sgemm_open();
	for (uint32_t threads = 1; threads <= THREADS_MAX; threads++, rows += 3) {
		shared_row("f32", KVATTN_F32, tokens, threads, reps, sgemm);
		shared_row("f16", KVATTN_F16, tokens, threads, reps, sgemm);
		shared_row("bf16", KVATTN_BF16, tokens, threads, reps, sgemm);
	}
	for (enum order order = HND; order <= TILED; order += TILED, rows += 3) {
		prefill_row("f16", KVATTN_F16, order, reps, sgemm);
		prefill_row("f32", KVATTN_F32, order, reps, sgemm);
		prefill_row("bf16", KVATTN_BF16, order, reps, sgemm);
	}
	return rows;
}

int main(int argc, char **argv)
{
	uint64_t tokens = 32768;
	uint32_t reps = 7;

	huge = argc > 1 && strcmp(argv[1], "--huge") == 0;
	argc -= huge;
	argv += huge;
	if (argc > 1)
		tokens = strtoull(argv[1], NULL, 10);
	if (argc > 2)
		reps = (uint32_t)strtoul(argv[2], NULL, 10);
	if (tokens < 64 || tokens % 64 || tokens > 1u << 24 || reps < 1 || reps > REPS_MAX) {
		fprintf(stderr, "usage: kvbench-attn [--huge] [tokens: a multiple of 64] [repetitions: 1..%u]\n",
			REPS_MAX);
		return 2;
	}
	printf("isa=%s tokens=%llu repetitions=%u\n", kvattn_isa_name(), (unsigned long long)tokens, reps);
	printf("bench-attn: ok rows=%u\n", all_rows(tokens, reps));
	return 0;
}
