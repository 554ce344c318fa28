/*
 * test_attn_crew.c - threads that stay: the same bits, made once, shared by who meets, on the node of the blocks
 *
 * kvpool-test: timeout=300
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "kernels/crew.h"
#include "kernels/queue.h"
#include "test_attn_fixture.h"
#include "thread_count.h"

#if FEATURE(thread_sanitizer) || defined(__SANITIZE_THREAD__)
#define CHILD_MAY_HAVE_THREADS \
	false /* the sanitizer takes a thread with the number of one that the parent had for that one */
#else
#define CHILD_MAY_HAVE_THREADS true
#endif

/* ---- A batch: a long decode, two that begin with the same blocks, a prefill ---- */

#define KV_HEADS 2u
#define Q_HEADS 4u
#define DIM 32u
#define TOKENS 9000u /* nine splits: cut by them for up to four threads */
#define ROWS 70u
#define SEQS 4u
#define BLOCK 64u

struct batch {
	struct kv kv;
	float *q, *mass;
	float out[SEQS][ROWS * Q_HEADS * DIM], lse[SEQS][ROWS * Q_HEADS];
	int16_t nodes[TOKENS / BLOCK + 1];
	const int16_t *block_nodes[SEQS];
};

static struct batch *given_batch(uint64_t seed)
{
	const struct kvattn_shape shape = {1, KV_HEADS, DIM, DIM, KVATTN_F16, KVATTN_F16, BLOCK};
	struct batch *b = must(calloc(1, sizeof(*b)));
	float *k = floats((size_t)TOKENS * KV_HEADS * DIM), *v = floats((size_t)TOKENS * KV_HEADS * DIM);

	b->q = floats((size_t)ROWS * Q_HEADS * DIM);
	b->mass = floats((size_t)KV_HEADS * TOKENS);
	noise_fill(&seed, k, (size_t)TOKENS * KV_HEADS * DIM, 1);
	noise_fill(&seed, v, (size_t)TOKENS * KV_HEADS * DIM, 1);
	noise_fill(&seed, b->q, (size_t)ROWS * Q_HEADS * DIM, 3);
	kv_open(&b->kv, &shape, ORDER_TILED, TOKENS);
	kv_fill(&b->kv, k, v);
	for (uint64_t i = 0; i < b->kv.n_blocks; i++) /* any numbers, those that mean nothing among them */
		b->nodes[i] = (int16_t)((int)noise_below(&seed, 80) - 8);
	b->block_nodes[0] = b->block_nodes[1] = b->nodes;
	b->block_nodes[3] = b->nodes;
	free(k), free(v);
	return b;
}

static void batch_free(struct batch *b)
{
	kv_close(&b->kv);
	free(b->q), free(b->mass), free(b);
}

static int attend(struct batch *b, struct kvattn_crew *crew, uint32_t n_threads, bool nodes)
{
	struct kvattn_seq seqs[SEQS];
	struct kvattn_opts opts;

	memset(b->mass, 0, (size_t)KV_HEADS * TOKENS * sizeof(float));
	for (uint32_t i = 0; i < SEQS; i++) {
		seqs[i] = kv_seq(&b->kv, b->q + (size_t)i * Q_HEADS * DIM, i == 3 ? ROWS - 3 : 1 + i, b->out[i]);
		seqs[i].lse = b->lse[i];
	}
	seqs[0].mass = b->mass;
	seqs[2].table.n_tokens -= 1500;
	kvattn_opts_init(&opts, Q_HEADS);
	opts.n_threads = n_threads;
	return kvattn_crew_attend(crew, &b->kv.geom, seqs, SEQS, &opts, nodes ? b->block_nodes : NULL);
}

static void attend_same(struct batch *b, const struct batch *want, struct kvattn_crew *crew, uint32_t n, bool nodes)
{
	memset(b->out, 0xff, sizeof(b->out));
	memset(b->lse, 0xff, sizeof(b->lse));
	assert_int_equal(attend(b, crew, n, nodes), 0);
	for (uint32_t i = 0; i < SEQS; i++) {
		const size_t rows = (i == 3 ? ROWS - 3 : 1 + i) * Q_HEADS;

		assert_memory_equal(b->out[i], want->out[i], rows * DIM * sizeof(float));
		assert_memory_equal(b->lse[i], want->lse[i], rows * sizeof(float));
	}
	assert_memory_equal(b->mass, want->mass, (size_t)KV_HEADS * TOKENS * sizeof(float));
}

static void a_crew_of_any_size_gives_the_bits_of_one_thread(void **state)
{
	static const uint32_t sizes[] = {0, 1, 2, 3, 4, 9};
	struct batch *b = given_batch(1), *want = given_batch(1);

	(void)state;
	assert_int_equal(attend(want, NULL, 1, false), 0);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		struct kvattn_crew *crew;

		assert_int_equal(kvattn_crew_new(sizes[i], 0, &crew), 0);
		assert_int_equal(kvattn_crew_size(crew), sizes[i] ? sizes[i] : 1);
		attend_same(b, want, crew, 0, false);
		attend_same(b, want, crew, 2, true);
		attend_same(b, want, crew, KVATTN_THREADS_AUTO, true);
		kvattn_crew_free(crew);
	}
	attend_same(b, want, NULL, 3, true); /* threads of the call's own know nodes too */
	batch_free(b), batch_free(want);
}

static void threads_of_a_crew_are_made_once(void **state)
{
	struct batch *b;
	struct kvattn_crew *crew;

	(void)state;
	if (SANITIZED) {
		print_message("no count of threads: sanitizers have their own pthread_create()\n");
		skip();
	}
	b = given_batch(2);
	threads_made = 0;
	assert_int_equal(kvattn_crew_new(3, 0, &crew), 0);
	for (int i = 0; i < 5; i++)
		assert_int_equal(attend(b, crew, 0, false), 0);
	assert_int_equal(threads_made, 2); /* the caller is the third */
	kvattn_crew_free(crew);
	batch_free(b);
}

static void a_thread_refused_makes_a_smaller_crew(void **state)
{
	struct batch *b, *want;
	struct kvattn_crew *crew;

	(void)state;
	if (SANITIZED) {
		print_message("no thread is refused: sanitizers have their own pthread_create()\n");
		skip();
	}
	b = given_batch(3);
	want = given_batch(3);
	assert_int_equal(attend(want, NULL, 1, false), 0);
	for (int from = 0; from < 3; from++) {
		threads_made = 0;
		threads_refused_from = from;
		assert_int_equal(kvattn_crew_new(4, 0, &crew), 0);
		threads_refused_from = -1;
		assert_int_equal(kvattn_crew_size(crew), from + 1);
		attend_same(b, want, crew, 4, false);
		kvattn_crew_free(crew);
	}
	batch_free(b), batch_free(want);
}

static void a_crew_is_no_larger_than_the_cpu_set(void **state)
{
	struct kvattn_crew *crew;
	cpu_set_t before, one;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &before) && CPU_COUNT(&one) == 0)
			CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(kvattn_crew_new(KVATTN_THREADS_AUTO, 0, &crew), 0);
	assert_int_equal(kvattn_crew_size(crew), 1);
	kvattn_crew_free(crew);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
	assert_int_equal(kvattn_crew_new(KVATTN_THREADS_AUTO, KVATTN_CREW_LOOSE, &crew), 0);
	assert_in_range(kvattn_crew_size(crew), 1, (unsigned)CPU_COUNT(&before));
	kvattn_crew_free(crew);
}

static void what_cannot_be_a_crew_is_refused(void **state)
{
	struct kvattn_crew *crew;

	(void)state;
	assert_int_equal(kvattn_crew_new(2, 2, &crew), -EINVAL);
	assert_int_equal(kvattn_crew_new(2, 0, NULL), -EINVAL);
	assert_int_equal(kvattn_crew_size(NULL), 1);
	kvattn_crew_free(NULL);
}

/* ---- Callers that meet ---- */

struct caller {
	pthread_t thread;
	struct kvattn_crew *crew;
	const struct batch *want;
	int times;
};

static void *caller_run(void *arg)
{
	struct caller *c = arg;
	struct batch *b = given_batch(4);

	for (int i = 0; i < c->times; i++)
		attend_same(b, c->want, c->crew, 0, i % 2);
	batch_free(b);
	return NULL;
}

static void callers_that_meet_share_the_crew(void **state)
{
	struct batch *want = given_batch(4);
	struct caller callers[12];
	struct kvattn_crew *crew;

	(void)state;
	assert_int_equal(attend(want, NULL, 1, false), 0);
	assert_int_equal(kvattn_crew_new(3, 0, &crew), 0);
	for (size_t i = 0; i < COUNT(callers); i++) {
		callers[i] = (struct caller){.crew = crew, .want = want, .times = SANITIZED ? 2 : 6};
		assert_int_equal(pthread_create(&callers[i].thread, NULL, caller_run, &callers[i]), 0);
	}
	for (size_t i = 0; i < COUNT(callers); i++)
		assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
	kvattn_crew_free(crew);
	batch_free(want);
}

struct work {
	_Atomic uint32_t seats; /* a bit for each that was taken */
	pthread_barrier_t *meet;
};

static void work_meet(void *arg, uint32_t seat)
{
	struct work *work = arg;

	atomic_fetch_or(&work->seats, 1u << seat);
	pthread_barrier_wait(work->meet); /* comes back only when all are in it at once */
}

static void all_of_a_crew_work_at_once(void **state)
{
	pthread_barrier_t meet;
	struct work work = {.meet = &meet};
	struct kvattn_crew *crew;

	(void)state;
	assert_int_equal(kvattn_crew_new(5, 0, &crew), 0);
	pthread_barrier_init(&meet, NULL, 5);
	for (int i = 0; i < 100; i++) {
		work.seats = 0;
		crew_run(crew, 5, work_meet, &work);
		assert_int_equal(work.seats, 0x1f);
	}
	pthread_barrier_destroy(&meet);
	pthread_barrier_init(&meet, NULL, 2); /* no more than asked for: a third would wait for ever */
	for (int i = 0; i < 100; i++) {
		work.seats = 0;
		crew_run(crew, 2, work_meet, &work);
		assert_int_equal(work.seats, 3);
	}
	pthread_barrier_destroy(&meet);
	kvattn_crew_free(crew);
}

static void a_child_after_fork_works_alone_and_may_have_a_crew_of_its_own(void **state)
{
	struct batch *b = given_batch(4), *want = given_batch(4);
	struct caller busy;
	struct kvattn_crew *crew, *own;

	(void)state;
	assert_int_equal(attend(want, NULL, 1, false), 0);
	assert_int_equal(kvattn_crew_new(3, 0, &crew), 0);
	busy = (struct caller){.crew = crew, .want = want, .times = SANITIZED ? 4 : 20};
	assert_int_equal(pthread_create(&busy.thread, NULL, caller_run, &busy), 0);
	for (int i = 0; i < 8; i++) {
		int status = -1;
		const pid_t child = fork(); /* at any moment of the other thread's calls */

		if (child == 0) {
			alarm(120);
			if (kvattn_crew_size(crew) != 1)
				_exit(2);
			attend_same(b, want, crew, 0, true);
			kvattn_crew_free(crew);
			if (!CHILD_MAY_HAVE_THREADS)
				_exit(0);
			if (kvattn_crew_new(2, 0, &own) < 0)
				_exit(3);
			attend_same(b, want, own, 0, false);
			kvattn_crew_free(own);
			_exit(0);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
	}
	pthread_join(busy.thread, NULL);
	attend_same(b, want, crew, 0, false);
	kvattn_crew_free(crew);
	batch_free(b), batch_free(want);
}

/* ---- Nodes ---- */

static void given_node(const char *dir, unsigned node, const char *cpus)
{
	char path[160];
	FILE *file;

	snprintf(path, sizeof(path), "%s/node%u", dir, node);
	assert_int_equal(mkdir(path, 0755), 0);
	snprintf(path, sizeof(path), "%s/node%u/cpulist", dir, node);
	file = must(fopen(path, "we"));
	fprintf(file, "%s\n", cpus);
	fclose(file);
}

static void nodes_remove(const char *dir)
{
	char path[160];

	for (unsigned node = 0; node < CPU_NODES_MAX; node++) {
		snprintf(path, sizeof(path), "%s/node%u/cpulist", dir, node);
		unlink(path);
		snprintf(path, sizeof(path), "%s/node%u", dir, node);
		rmdir(path);
	}
	rmdir(dir);
}

/* A node without CPUs and numbers that are left out; CPUs of a node apart, as siblings are. */
static void threads_are_shared_out_over_the_nodes_of_the_cpu_set(void **state)
{
	char dir[] = "/tmp/kvattn-nodes-XXXXXX";
	static struct cpu_nodes nodes;
	cpu_set_t allowed;
	int on[6] = {0};

	(void)state;
	assert_non_null(mkdtemp(dir));
	given_node(dir, 0, "0-1,6");
	given_node(dir, 2, "");
	given_node(dir, 5, "2-5,7");
	cpu_nodes_read(dir, &nodes);
	nodes_remove(dir);
	assert_int_equal(nodes.n, 6);
	assert_int_equal(CPU_COUNT(&nodes.cpus[0]), 3);
	assert_int_equal(CPU_COUNT(&nodes.cpus[5]), 5);
	assert_true(CPU_ISSET(7, &nodes.cpus[5]) && CPU_ISSET(6, &nodes.cpus[0]));
	CPU_ZERO(&allowed);
	for (int cpu = 0; cpu < 8; cpu++)
		CPU_SET(cpu, &allowed);
	for (uint32_t i = 0; i < 8; i++)
		on[crew_place(&allowed, &nodes, i, 8)]++;
	assert_int_equal(on[0], 3);
	assert_int_equal(on[5], 5);
	/* half as many: of each node its share */
	assert_int_equal(crew_place(&allowed, &nodes, 0, 2), 0);
	assert_int_equal(crew_place(&allowed, &nodes, 1, 2), 5);
	/* a set of one node's CPUs: nobody elsewhere, however many there are */
	CPU_ZERO(&allowed);
	CPU_SET(3, &allowed);
	CPU_SET(7, &allowed);
	for (uint32_t i = 0; i < 9; i++)
		assert_int_equal(crew_place(&allowed, &nodes, i, 9), 5);
	CPU_ZERO(&allowed);
	CPU_SET(9, &allowed); /* told by no node */
	assert_int_equal(crew_place(&allowed, &nodes, 0, 1), -1);
}

/* ---- Which splits are read first: each of their first blocks' pages says when it is touched ---- */

#define SPLITS 8u
#define SPLIT_TOKENS 1024u

static struct {
	char *memory;
	size_t split_bytes;
	uint32_t n;
	uint32_t order[SPLITS];
} touched;

static void touch(int signo, siginfo_t *info, void *context)
{
	const size_t split = (size_t)((char *)info->si_addr - touched.memory) / touched.split_bytes;

	(void)signo, (void)context;
	if (split >= SPLITS)
		_exit(139); /* a fault of its own */
	if (mprotect(touched.memory + split * touched.split_bytes, touched.split_bytes, PROT_READ) < 0)
		_exit(140);
	touched.order[touched.n++] = (uint32_t)split;
}

static void a_thread_reads_the_splits_of_its_own_node_first(void **state)
{
	const struct kvattn_shape shape = {1, KV_HEADS, DIM, DIM, KVATTN_F16, KVATTN_F16, BLOCK};
	const size_t block_bytes = kvattn_block_bytes_tiled(&shape), per_split = SPLIT_TOKENS / BLOCK;
	const struct sigaction catch = {.sa_sigaction = touch, .sa_flags = SA_SIGINFO};
	float q[Q_HEADS * DIM] = {1}, out[Q_HEADS * DIM];
	const void *blocks[SPLITS * SPLIT_TOKENS / BLOCK];
	int16_t nodes[COUNT(blocks)];
	const int16_t *block_nodes = nodes;
	const uint32_t here = cpu_node();
	const int16_t elsewhere = (int16_t)((here + 1) % QUEUE_NODES);
	struct kvattn_seq seq = {.q = q, .out = out, .n_q = 1, .causal = 1};
	struct sigaction before;
	struct kvattn_opts opts;
	struct kvattn_geom geom;

	(void)state;
	if (SANITIZED || here >= QUEUE_NODES) {
		print_message("skipped: a sanitizer has its own faults, or this processor's node is not told\n");
		skip();
	}
	touched.split_bytes = per_split * block_bytes;
	touched.memory =
		mmap(NULL, SPLITS * touched.split_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_true(touched.memory != MAP_FAILED);
	for (size_t b = 0; b < COUNT(blocks); b++) {
		blocks[b] = touched.memory + b * block_bytes;
		/* odd splits lie here but for some of their blocks, even ones elsewhere or nobody knows where */
		nodes[b] = b / per_split % 2 && b % per_split > 4 ? (int16_t)here : b % 3 ? elsewhere : -1;
	}
	assert_int_equal(kvattn_geom_init_tiled(&geom, &shape, 0), 0);
	kvattn_opts_init(&opts, Q_HEADS);
	opts.n_threads = 2;
	seq.table = (struct kvattn_table){blocks, NULL, COUNT(blocks), SPLITS * SPLIT_TOKENS};
	assert_int_equal(sigaction(SIGSEGV, &catch, &before), 0);
	threads_made = 0;
	threads_refused_from = 0; /* so that the caller does all of it */
	assert_int_equal(kvattn_crew_attend(NULL, &geom, &seq, 1, &opts, &block_nodes), 0);
	threads_refused_from = -1;
	assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
	munmap(touched.memory, SPLITS * touched.split_bytes);
	assert_int_equal(touched.n, SPLITS);
	for (uint32_t i = 0; i < SPLITS; i++)
		assert_int_equal(touched.order[i], i < SPLITS / 2 ? 2 * i + 1 : 2 * (i - SPLITS / 2));
}

static uint32_t third_node(void *arg, uint64_t i)
{
	(void)arg;
	return i % 5 == 0 ? QUEUE_NOWHERE : (uint32_t)(i % 3);
}

static void units_of_a_threads_own_node_come_first_and_each_comes_once(void **state)
{
	enum { N = 100 };
	struct queue queue;
	uint64_t unit, last = 0;
	uint32_t n_own = 0, n_nowhere = 0, n = 0;
	bool seen[N] = {false};

	(void)state;
	for (uint64_t i = 0; i < N; i++) {
		n_own += third_node(NULL, i) == 1;
		n_nowhere += third_node(NULL, i) == QUEUE_NOWHERE;
	}
	assert_int_equal(queue_sort(&queue, N, third_node, NULL), 0);
	while (queue_take(&queue, 1, &unit)) {
		const uint32_t want = n < n_own ? 1 : n < n_own + n_nowhere ? QUEUE_NOWHERE : third_node(NULL, unit);

		assert_true(unit < N && !seen[unit]);
		assert_int_equal(third_node(NULL, unit), want);
		assert_true(n == 0 || n == n_own || n >= n_own + n_nowhere || unit > last); /* in order */
		seen[last = unit] = true;
		n++;
	}
	assert_int_equal(n, N);
	queue_deinit(&queue);
	queue_init(&queue, 3);
	for (uint64_t i = 0; i < 3; i++) {
		assert_true(queue_take(&queue, 63, &unit));
		assert_int_equal(unit, i);
	}
	assert_false(queue_take(&queue, QUEUE_NOWHERE, &unit));
	queue_deinit(&queue);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_crew_of_any_size_gives_the_bits_of_one_thread),
		cmocka_unit_test(threads_of_a_crew_are_made_once),
		cmocka_unit_test(a_thread_refused_makes_a_smaller_crew),
		cmocka_unit_test(a_crew_is_no_larger_than_the_cpu_set),
		cmocka_unit_test(what_cannot_be_a_crew_is_refused),
		cmocka_unit_test(callers_that_meet_share_the_crew),
		cmocka_unit_test(all_of_a_crew_work_at_once),
		cmocka_unit_test(a_child_after_fork_works_alone_and_may_have_a_crew_of_its_own),
		cmocka_unit_test(threads_are_shared_out_over_the_nodes_of_the_cpu_set),
		cmocka_unit_test(a_thread_reads_the_splits_of_its_own_node_first),
		cmocka_unit_test(units_of_a_threads_own_node_come_first_and_each_comes_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
