/*
 * test_client_sparse.c - contexts larger than the pool, used by selection; and what is made of blocks, in namespaces of
 * its own
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvattn.h"
#include "kvpool.h"
#include "wire.h"

#define LAYERS 2u
#define HEADS 2u
#define DIM 64u
#define WIDTH 16u /* a block: 32 KiB of f32 */
#define BLOCKS 240u /* 7.5 MiB, and a pool of 4 with 1 for the summaries */
#define RESIDENT 24u
#define ROW (HEADS * DIM)

/* Children of this process open clients of their own, with threads: ThreadSanitizer is told to bear it. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "die_after_fork=0";
}

static const struct kvp_kernels kernels = KVP_KERNELS_OF_KVATTN;

struct fixture {
	struct host host;
	char spill[128];
	struct kvp_client *client;
	struct kvp_ns *ns, *summaries;
	struct kvattn_geom geom[LAYERS];
	uint32_t tokens[BLOCKS * WIDTH + 5];
};

static struct kvp_ns *given_ns(struct kvp_client *client, const char *name, const struct kvp_desc *desc)
{
	struct kvp_ns_opts opts = {.size = sizeof(opts), .name = name, .owner_uid = KVP_UID_SELF, .desc = desc};
	struct kvp_ns *ns;

	assert_int_equal(kvp_ns_open(client, &opts, &ns), 0);
	return ns;
}

static struct kvp_desc exact_desc(void)
{
	struct kvp_desc desc;

	kvp_desc_init(&desc, KVP_LAYOUT_TILED, WIDTH, LAYERS, HEADS, DIM, KVP_TYPE_F32);
	return desc;
}

static void open_client(struct fixture *f, uint32_t flags)
{
	struct kvp_open_opts opts = {
		.size = sizeof(opts), .socket = f->host.socket, .connect_timeout_ms = 5000, .flags = flags};
	struct kvp_desc desc = exact_desc(), summaries;

	assert_int_equal(kvp_open(&opts, &f->client), 0);
	f->ns = given_ns(f->client, "exact", &desc);
	assert_int_equal(kvp_desc_summaries(&desc, &summaries), 0);
	f->summaries = given_ns(f->client, "exact", &summaries);
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		assert_int_equal(kvp_attn_geom(f->ns, layer, &f->geom[layer]), 0);
}

static void close_client(struct fixture *f)
{
	kvp_ns_close(f->summaries);
	kvp_ns_close(f->ns);
	kvp_close(f->client);
	f->client = NULL;
}

static int setup_alone(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	for (uint32_t i = 0; i < BLOCKS * WIDTH + 5; i++)
		f->tokens[i] = i * 7 % 1000;
	open_client(f, KVP_OPEN_OFFLINE);
	*state = f;
	return 0;
}

static int teardown_alone(void **state)
{
	close_client(*state);
	free(*state);
	return 0;
}

static int setup_with(void **state, const char *hold_limit)
{
	struct fixture *f = calloc(1, sizeof(*f));
	const char *options[] = {"--hold-limit", hold_limit,

		"--pool", "4M", "--slab", "1M", "--free-percent", "0", "--heartbeat", "200", "--spill", f->spill, NULL};
	char dir[96];

	assert_non_null(f);
	for (uint32_t i = 0; i < BLOCKS * WIDTH + 5; i++)
		f->tokens[i] = i * 7 % 1000;
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	snprintf(dir, sizeof(dir), "%s/spill", f->host.dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	snprintf(f->spill, sizeof(f->spill), "%s:256M", dir);
	assert_int_equal(host_start(&f->host, options), 0);
	open_client(f, 0);
	*state = f;
	return 0;
}

static int setup(void **state)
{
	return setup_with(state, "0");
}

static int setup_hold_limit(void **state)
{
	return setup_with(state, "500");
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	bool good = host_alive(&f->host) && host_conserves(&f->host);

	close_client(f);
	host_close(&f->host);
	free(f);
	return good ? 0 : -1;
}

/* ---- rows that tell where they belong ---- */

static float value_of(uint64_t pos, uint32_t layer, uint32_t i)
{
	return (float)((pos * 131 + layer * 17 + i * 7919) % 4096) - 2048;
}

static void rows_fill(float *k, float *v, uint64_t pos, uint32_t layer)
{
	for (uint32_t i = 0; i < ROW; i++) {
		k[i] = value_of(pos, layer, i);
		v[i] = -value_of(pos, layer, i) - 1;
	}
}

static struct kvp_seq *given_seq(struct fixture *f, uint64_t resident)
{
	struct kvp_seq_opts opts = {
		.size = sizeof(opts), .summaries = f->summaries, .kernels = &kernels, .resident_blocks = resident};
	struct kvp_seq *seq;

	assert_int_equal(kvp_seq_open(f->ns, &opts, &seq), 0);
	return seq;
}

static void append(struct fixture *f, struct kvp_seq *seq, uint64_t n)
{
	uint64_t first = kvp_seq_length(seq);
	float k[ROW], v[ROW];

	assert_int_equal(kvp_seq_append(seq, f->tokens + first, n), first + n);
	for (uint64_t pos = first; pos < first + n; pos++)
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			uint32_t index;
			void *block = kvp_seq_block(seq, pos, &index);

			rows_fill(k, v, pos, layer);
			assert_int_equal(kvattn_put(&f->geom[layer], block, index, 1, k, 0, v, 0), 0);
		}
	assert_true(kvp_seq_commit(seq, first + n) >= 0);
}

static void assert_block(struct fixture *f, const void *block, uint64_t b, uint64_t n)
{
	float k[ROW], v[ROW], want_k[ROW], want_v[ROW];

	for (uint64_t i = 0; i < n; i++)
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			assert_int_equal(kvattn_get(&f->geom[layer], block, (uint32_t)i, 1, k, 0, v, 0), 0);
			rows_fill(want_k, want_v, b * WIDTH + i, layer);
			assert_memory_equal(k, want_k, sizeof(k));
			assert_memory_equal(v, want_v, sizeof(v));
		}
}

/* A selection spread over the context, and the tail. */
static void check_selection(struct fixture *f, struct kvp_seq *seq, uint64_t seed)
{
	uint64_t blocks[20], n = 0, last = (kvp_seq_length(seq) - 1) / WIDTH;
	struct kvattn_table table;

	for (uint64_t b = seed % 7; b < last && n < 19; b += 3 + (b * 13 + seed) % 29)
		blocks[n++] = b;
	blocks[n++] = last;
	if (kvp_seq_select(seq, blocks, n, kvp_deadline_ms(20000), &table) < 0)
		fail_msg("%s", kvp_error(f->client));
	assert_int_equal(table.n_blocks, n);
	assert_non_null(table.block_pos);
	for (uint64_t i = 0; i < n; i++) {
		assert_int_equal(table.block_pos[i], blocks[i] * WIDTH);
		assert_block(f, table.blocks[i], blocks[i], i + 1 < n ? WIDTH : kvp_seq_length(seq) - last * WIDTH);
	}
	assert_int_equal(table.n_tokens, (n - 1) * WIDTH + kvp_seq_length(seq) - last * WIDTH);
}

static void check_summaries(struct kvp_seq *seq)
{
	const float *summaries[BLOCKS];
	uint64_t n = kvp_seq_length(seq) / WIDTH;

	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		assert_int_equal(kvp_seq_summaries(seq, layer, summaries), n);
		for (uint64_t b = 0; b < n; b += 11)
			for (uint32_t i = 0; i < ROW; i++) {
				float least = value_of(b * WIDTH, layer, i), most = least;

				for (uint64_t pos = b * WIDTH; pos < (b + 1) * WIDTH; pos++) {
					float x = value_of(pos, layer, i);

					least = x < least ? x : least;
					most = x > most ? x : most;
				}
				assert_true(summaries[b][i / DIM * 2 * DIM + i % DIM] == least);
				assert_true(summaries[b][i / DIM * 2 * DIM + DIM + i % DIM] == most);
			}
	}
}

static struct kvp_seq_stats stats_of(const struct kvp_seq *seq)
{
	struct kvp_seq_stats stats = {.size = sizeof(stats)};

	assert_int_equal(kvp_seq_stats(seq, &stats), 0);
	return stats;
}

/* All in the pool: what found no room at once is brought there by later commits. */
static void assert_published(struct kvp_seq *seq)
{
	for (int i = 0; i < 300 && stats_of(seq).private_blocks; i++) {
		usleep(50000);
		assert_true(kvp_seq_commit(seq, kvp_seq_length(seq)) >= 0);
	}
	for (int i = 0; i < 300 && stats_of(seq).published < kvp_seq_length(seq) / WIDTH; i++) {
		usleep(50000);
		assert_true(kvp_seq_commit(seq, kvp_seq_length(seq)) >= 0);
	}
	assert_int_equal(stats_of(seq).published, kvp_seq_length(seq) / WIDTH);
}

/* ---- sparse ---- */

static void a_context_larger_than_the_pool_is_used_by_selection(void **state)
{
	struct fixture *f = *state;
	struct kvp_seq *seq = given_seq(f, RESIDENT);
	struct kvp_seq_stats stats;
	uint64_t before;

	for (uint32_t b = 0; b < BLOCKS; b++)
		append(f, seq, WIDTH);
	append(f, seq, 5);
	check_summaries(seq);
	for (uint64_t seed = 0; seed < 12; seed++)
		check_selection(f, seq, seed);
	stats = stats_of(seq);
	assert_true(stats.restored > 0); /* they do not fit the pool */
	assert_true(stats.restored <= 12 * 20); /* and no more came back than were selected */
	assert_int_equal(stats.lost, 0);
	before = stats.restored;
	check_selection(f, seq, 11); /* the last one again: at hand */
	assert_int_equal(stats_of(seq).restored, before);
	assert_int_equal(kvp_seq_close(seq), 0);
}

static void another_process_finds_all_and_reads_what_it_selects(void **state)
{
	struct fixture *f = *state;
	struct kvp_seq *seq = given_seq(f, RESIDENT);
	struct kvattn_table table;

	for (uint32_t b = 0; b < BLOCKS; b++)
		append(f, seq, WIDTH);
	assert_published(seq);
	kvp_seq_close(seq);
	close_client(f);
	open_client(f, 0);
	seq = given_seq(f, RESIDENT);
	assert_int_equal(kvp_seq_match(seq, f->tokens, BLOCKS * WIDTH + 5, kvp_deadline_ms(20000)), BLOCKS * WIDTH);
	assert_int_equal(stats_of(seq).restored, 0);
	assert_int_equal(kvp_seq_table(seq, &table), 0);
	assert_int_equal(table.n_blocks, 0); /* none is at hand before it is selected */
	check_summaries(seq);
	check_selection(f, seq, 3);
	append(f, seq, 5);
	check_selection(f, seq, 4);
	assert_int_equal(kvp_seq_close(seq), 0);
}

static void a_sequence_holds_no_more_than_its_resident_blocks(void **state)
{
	struct fixture *f = *state;
	struct kvp_seq *seq = given_seq(f, 4);
	uint64_t blocks[8] = {0, 1, 2, 3, 4, 5, 6, 7};
	struct kvattn_table table;

	for (uint32_t b = 0; b < 12; b++)
		append(f, seq, WIDTH);
	assert_int_equal(kvp_ping(f->client, kvp_deadline_ms(5000)), 0);
	for (int i = 0; i < 200; i++) { /* what the daemon answered is taken over by calls on the sequence */
		assert_true(kvp_seq_commit(seq, 12 * WIDTH) >= 0);
		assert_int_equal(kvp_seq_table(seq, &table), 0);
		if (table.n_blocks == 4)
			break;
		usleep(50000);
	}
	assert_int_equal(table.n_blocks, 4);
	assert_true(kvp_seq_select(seq, blocks, 8, kvp_deadline_ms(5000), &table) >= 0);
	assert_int_equal(table.n_blocks, 8); /* but what is selected is at hand */
	assert_true(kvp_seq_select(seq, blocks, 2, kvp_deadline_ms(5000), &table) >= 0);
	assert_int_equal(kvp_seq_table(seq, &table), 0);
	assert_int_equal(table.n_blocks, 4);
	kvp_seq_close(seq);
}

static void without_a_daemon_selection_works_too(void **state)
{
	struct fixture *f = *state;
	struct kvp_seq *seq = given_seq(f, 4), *fork;

	for (uint32_t b = 0; b < 40; b++)
		append(f, seq, WIDTH);
	append(f, seq, 3);
	check_summaries(seq);
	for (uint64_t seed = 0; seed < 5; seed++)
		check_selection(f, seq, seed);
	assert_int_equal(kvp_seq_truncate(seq, 20 * WIDTH + 1), 0);
	assert_int_equal(kvp_seq_summaries(seq, 0, NULL), 20);
	assert_int_equal(kvp_seq_fork(seq, &fork), -KVP_ENOTSUP);
	kvp_seq_close(seq);
}

static void a_sparse_sequence_refuses_what_makes_no_sense(void **state)
{
	struct fixture *f = *state;
	struct kvp_seq_opts opts = {.size = sizeof(opts), .resident_blocks = 3};
	uint64_t wrong[2][2] = {{1, 1}, {0, 99}};
	struct kvattn_table table;
	struct kvp_seq *seq;

	assert_int_equal(kvp_seq_open(f->ns, &opts, &seq), -KVP_EINVAL);
	opts.summaries = f->summaries;
	assert_int_equal(kvp_seq_open(f->ns, &opts, &seq), -KVP_EINVAL); /* no kernels */
	opts.kernels = &kernels;
	opts.summaries = f->ns;
	assert_int_equal(kvp_seq_open(f->ns, &opts, &seq), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(f->client), "kvp_desc_summaries"));
	seq = given_seq(f, 0);
	append(f, seq, 2 * WIDTH);
	assert_int_equal(kvp_seq_select(seq, wrong[0], 2, 0, &table), -KVP_EINVAL);
	assert_int_equal(kvp_seq_select(seq, wrong[1], 2, 0, &table), -KVP_EINVAL);
	assert_int_equal(kvp_seq_summaries(seq, LAYERS, NULL), -KVP_EINVAL);
	kvp_seq_close(seq);
	assert_int_equal(kvp_seq_open(f->ns, NULL, &seq), 0);
	assert_int_equal(kvp_seq_select(seq, wrong[0], 0, 0, &table), -KVP_EINVAL);
	kvp_seq_close(seq);
}

/* ---- quantise ---- */

static void publish_exact(struct fixture *f, uint32_t n_blocks, struct kvp_key *keys)
{
	struct kvp_seq *seq;
	struct kvp_view *views = calloc(n_blocks, sizeof(*views));

	assert_int_equal(kvp_seq_open(f->ns, NULL, &seq), 0);
	append(f, seq, n_blocks * WIDTH);
	assert_int_equal(kvp_hash_chain(f->ns, NULL, f->tokens, n_blocks * WIDTH, NULL, 0, keys), n_blocks);
	for (int i = 0; i < 100 && kvp_acquire(f->ns, keys, n_blocks, 0, kvp_deadline_ms(100), views) < n_blocks; i++)
		kvp_release(views, n_blocks);
	kvp_release(views, n_blocks);
	free(views);
	kvp_seq_close(seq);
}

static void quantised_blocks_stand_in_a_labelled_namespace_under_a_key_of_their_own(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc desc = exact_desc(), small;
	struct kvp_key keys[9], derived[9];
	struct kvp_view exact, view;
	struct kvp_ns *to;

	publish_exact(f, 9, keys);
	assert_int_equal(kvp_desc_quantised(&desc, KVP_TYPE_I4, KVP_TYPE_I8, &small), 0);
	assert_string_equal(small.engine, "kvpool-quantised/1 from TILED f32/f32");
	to = given_ns(f->client, "exact", &small);
	assert_int_equal(kvp_quantise(f->ns, to, &kernels, NULL, keys, 9, kvp_deadline_ms(10000)), 9);
	assert_int_equal(kvp_acquire(to, keys, 1, 0, 0, &view), 0); /* not under the exact block's key */
	for (unsigned i = 0; i < 9; i++) {
		struct kvattn_geom from, geom;
		float k[WIDTH * ROW], v[WIDTH * ROW], want_k[WIDTH * ROW], want_v[WIDTH * ROW];
		static char block[256 << 10] __attribute__((aligned(64)));

		assert_int_equal(kvp_key_derived(to, &keys[i], &derived[i]), 0);
		assert_int_equal(kvp_acquire(to, &derived[i], 1, 0, kvp_deadline_ms(5000), &view), 1);
		assert_int_equal(kvp_acquire(f->ns, &keys[i], 1, 0, kvp_deadline_ms(5000), &exact), 1);
		assert_block(f, exact.data, i, WIDTH);
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			assert_int_equal(kvp_attn_geom(f->ns, layer, &from), 0);
			assert_int_equal(kvp_attn_geom(to, layer, &geom), 0);
			assert_int_equal(kvattn_convert(&from, exact.data, &geom, block, WIDTH), 0);
			assert_int_equal(kvattn_get(&geom, block, 0, WIDTH, want_k, 0, want_v, 0), 0);
			assert_int_equal(kvattn_get(&geom, view.data, 0, WIDTH, k, 0, v, 0), 0);
			assert_memory_equal(k, want_k, sizeof(k));
			assert_memory_equal(v, want_v, sizeof(v));
		}
		kvp_release(&view, 1);
		kvp_release(&exact, 1);
	}
	assert_int_equal(
		kvp_quantise(f->ns, to, &kernels, NULL, keys, 9, kvp_deadline_ms(10000)), 9); /* there already */
	keys[4] = wire_key(77);
	assert_int_equal(kvp_quantise(f->ns, to, &kernels, NULL, keys, 9, kvp_deadline_ms(100)), 4);
	kvp_ns_close(to);
}

static void quantising_into_another_namespace_is_refused(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc desc = exact_desc();
	struct kvp_key key = {{1, 2}}, out;
	struct kvp_ns *own;

	desc.type_k = desc.type_v = KVP_TYPE_I8; /* an engine's own int8: no label */
	own = given_ns(f->client, "exact", &desc);
	assert_int_equal(kvp_quantise(f->ns, own, &kernels, NULL, &key, 1, 0), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(f->client), "engine"));
	assert_int_equal(kvp_quantise(f->ns, f->ns, &kernels, NULL, &key, 1, 0), -KVP_EINVAL);
	assert_int_equal(kvp_key_derived(own, &key, &out), -KVP_EINVAL);
	kvp_ns_close(own);
}

/* ---- holds that were lost meanwhile ---- */

/* Once, in the middle of the work: the process stops, as one does that is being debugged, or frozen. */
static void stop_once(void)
{
	static bool stopped;

	if (!stopped) {
		stopped = true;
		kill(getpid(), SIGSTOP);
	}
}

static int convert_and_stop(const struct kvattn_geom *from, const void *block, const struct kvattn_geom *to,
	void *to_block, uint32_t n_tokens)
{
	stop_once();
	return kvattn_convert(from, block, to, to_block, n_tokens);
}

static int get_and_stop(const struct kvattn_geom *geom, const void *block, uint32_t first, uint32_t n, float *k,
	size_t k_stride, float *v, size_t v_stride)
{
	stop_once();
	return kvattn_get(geom, block, first, n, k, k_stride, v, v_stride);
}

enum { TOLD_STALE, TOLD_ELSE, TOLD_NOTHING };

static int quantise_and_stop(const struct fixture *f, const struct kvp_key *keys)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = f->host.socket, .connect_timeout_ms = 5000};
	struct kvp_kernels slow = {.size = sizeof(slow), .convert = convert_and_stop};
	struct kvp_desc desc = exact_desc(), small;
	struct kvp_ns_opts from_opts = {.size = sizeof(from_opts), .name = "exact", .owner_uid = KVP_UID_SELF},
			   to_opts = from_opts;
	struct kvp_client *client;
	struct kvp_ns *from, *to;

	from_opts.desc = &desc;
	to_opts.desc = &small;
	kvp_desc_quantised(&desc, KVP_TYPE_I8, KVP_TYPE_I8, &small);
	if (kvp_open(&opts, &client) < 0 || kvp_ns_open(client, &from_opts, &from) < 0 ||
		kvp_ns_open(client, &to_opts, &to) < 0)
		return TOLD_NOTHING;
	return kvp_quantise(from, to, &slow, NULL, keys, 3, kvp_deadline_ms(5000)) == -KVP_ESTALE ? TOLD_STALE
												  : TOLD_ELSE;
}

static int keep_and_stop(const struct fixture *f)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = f->host.socket, .connect_timeout_ms = 5000};
	struct kvp_kernels slow = {.size = sizeof(slow), .get = get_and_stop, .put = kvattn_put};
	const uint64_t tokens[] = {0, 5, 17, 30};
	struct kvp_keep keep = {.size = sizeof(keep), .tokens = tokens, .n = 4, .kernels = &slow};
	struct kvp_desc desc = exact_desc();
	struct kvp_ns_opts ns_opts = {
		.size = sizeof(ns_opts), .name = "exact", .owner_uid = KVP_UID_SELF, .desc = &desc};
	struct kvp_client *client;
	struct kvp_seq *seq, *kept;
	struct kvp_ns *ns;

	if (kvp_open(&opts, &client) < 0 || kvp_ns_open(client, &ns_opts, &ns) < 0 ||
		kvp_seq_open(ns, NULL, &seq) < 0 ||
		kvp_seq_match(seq, f->tokens, 3 * WIDTH + 1, kvp_deadline_ms(5000)) != 3 * WIDTH)
		return TOLD_NOTHING;
	return kvp_compact(seq, &keep, &kept) == -KVP_ESTALE ? TOLD_STALE : TOLD_ELSE;
}

/* While the child stands still its holds run out, and somebody needs all the memory there is. */
static int told_after_a_long_stop(struct fixture *f, bool keep, const struct kvp_key *keys)
{
	struct kvp_match_part part = {.ns = f->ns, .keys = keys};
	struct kvp_block_ref *blocks = calloc(140, sizeof(*blocks));
	uint8_t there = KVP_HIT_RAM;
	pid_t pid = fork();
	int status;
	int64_t n;

	if (pid == 0)
		_exit(keep ? keep_and_stop(f) : quantise_and_stop(f, keys));
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	for (int i = 0; i < 20 && there == KVP_HIT_RAM; i++) {
		n = kvp_reserve(f->ns, 140, 0, kvp_deadline_ms(4000), blocks);
		kvp_match(&part, 1, 1, KVP_MATCH_ALL, &there);
		if (n > 0)
			kvp_abandon(blocks, (uint32_t)n);
	}
	free(blocks);
	kill(pid, SIGCONT);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_not_equal(there, KVP_HIT_RAM);
	return WEXITSTATUS(status);
}

static void what_was_read_under_a_lost_hold_is_never_published(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc desc = exact_desc(), small;
	struct kvp_key keys[3], derived;
	struct kvp_view view;
	struct kvp_ns *to;

	publish_exact(f, 3, keys);
	assert_int_equal(told_after_a_long_stop(f, false, keys), TOLD_STALE);
	kvp_desc_quantised(&desc, KVP_TYPE_I8, KVP_TYPE_I8, &small);
	to = given_ns(f->client, "exact", &small);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(kvp_key_derived(to, &keys[i], &derived), 0);
		assert_int_equal(kvp_acquire(to, &derived, 1, 0, kvp_deadline_ms(1000), &view), 0);
	}
	kvp_ns_close(to);
	assert_int_equal(told_after_a_long_stop(f, true, keys), TOLD_STALE);
}

/* ---- kept tokens ---- */

static void kept_tokens_are_a_sequence_nobody_takes_for_a_prompt(void **state)
{
	struct fixture *f = *state;
	uint64_t tokens[50], n = 0;
	struct kvp_keep keep = {
		.size = sizeof(keep), .label = "test", .n_label = 4, .tokens = tokens, .kernels = &kernels};
	struct kvp_seq *seq, *kept, *prompt;
	struct kvattn_table table;
	uint32_t ids[50];

	assert_int_equal(kvp_seq_open(f->ns, NULL, &seq), 0);
	append(f, seq, 10 * WIDTH + 7);
	for (uint64_t pos = 0; n < 50; pos += 1 + pos % 5)
		tokens[n++] = pos;
	keep.n = n;
	assert_int_equal(kvp_compact(seq, &keep, &kept), 0);
	kvp_seq_close(seq);
	assert_int_equal(kvp_seq_table(kept, &table), 0);
	assert_int_equal(table.n_tokens, n);
	for (uint64_t i = 0; i < n; i++)
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			float k[ROW], v[ROW], want_k[ROW], want_v[ROW];

			assert_int_equal(kvattn_get(&f->geom[layer], table.blocks[i / WIDTH], (uint32_t)(i % WIDTH), 1,
						 k, 0, v, 0),
				0);
			rows_fill(want_k, want_v, tokens[i], layer);
			assert_memory_equal(k, want_k, sizeof(k));
			assert_memory_equal(v, want_v, sizeof(v));
		}
	for (int i = 0; i < 100 && kvp_seq_commit(kept, n) < (int64_t)(n / WIDTH); i++)
		usleep(100000);
	assert_int_equal(kvp_seq_commit(kept, n), n / WIDTH); /* published ... */
	for (uint64_t i = 0; i < n; i++)
		ids[i] = f->tokens[tokens[i]];
	assert_int_equal(kvp_seq_open(f->ns, NULL, &prompt), 0);
	assert_int_equal(
		kvp_seq_match(prompt, ids, n, kvp_deadline_ms(5000)), 0); /* ... but not as a prompt of these */
	kvp_seq_close(prompt);
	kvp_seq_close(kept);
}

static void keeping_refuses_what_is_not_there(void **state)
{
	struct fixture *f = *state;
	uint64_t tokens[2] = {3, 3};
	struct kvp_keep keep = {.size = sizeof(keep), .tokens = tokens, .n = 2, .kernels = &kernels};
	struct kvp_seq *seq, *kept;

	assert_int_equal(kvp_seq_open(f->ns, NULL, &seq), 0);
	append(f, seq, WIDTH);
	assert_int_equal(kvp_compact(seq, &keep, &kept), -KVP_EINVAL); /* not ascending */
	tokens[1] = WIDTH;
	assert_int_equal(kvp_compact(seq, &keep, &kept), -KVP_EINVAL); /* not committed */
	tokens[1] = 4;
	keep.kernels = NULL;
	assert_int_equal(kvp_compact(seq, &keep, &kept), -KVP_EINVAL);
	keep.kernels = &kernels;
	keep.n = 0;
	assert_int_equal(kvp_compact(seq, &keep, &kept), -KVP_EINVAL);
	kvp_seq_close(seq);
}

/* ---- a latent cache: K alone is stored, V is its first dims ---- */

#define LATENT 72u
#define LATENT_V 64u
#define LATENT_Q 4u
#define LATENT_N (3u * WIDTH + 5)

static float latent_of(uint64_t pos, uint32_t d)
{
	return value_of(pos, d % 3, d) / 2048;
}

/* By the definition, over the tokens that are there: [LATENT_Q][LATENT_V]. */
static void latent_truth(const float *q, const uint64_t *tokens, uint64_t n, double *out)
{
	for (uint32_t h = 0; h < LATENT_Q; h++, out += LATENT_V, q += LATENT) {
		double sum = 0;

		memset(out, 0, LATENT_V * sizeof(*out));
		for (uint64_t i = 0; i < n; i++) {
			double z = 0;

			for (uint32_t d = 0; d < LATENT; d++)
				z += (double)q[d] * (double)latent_of(tokens[i], d);
			z = exp(z / sqrt((double)LATENT));
			sum += z;
			for (uint32_t d = 0; d < LATENT_V; d++)
				out[d] += z * (double)latent_of(tokens[i], d);
		}
		for (uint32_t d = 0; d < LATENT_V; d++)
			out[d] /= sum;
	}
}

/* The sequence's own table, attended; relative L2 error against the numbers that were put. */
static void assert_latent(struct kvp_ns *ns, struct kvp_seq *seq, const uint64_t *tokens, uint64_t n, double most)
{
	float q[LATENT_Q * LATENT], out[LATENT_Q * LATENT_V];
	double want[LATENT_Q * LATENT_V], wrong = 0, all = 0;
	struct kvattn_seq row = {.q = q, .out = out, .n_q = 1};
	struct kvattn_geom geom;
	struct kvattn_opts opts;

	assert_int_equal(kvp_attn_geom(ns, 0, &geom), 0);
	assert_int_equal(geom.dim_v, LATENT);
	geom.dim_v = LATENT_V;
	for (uint32_t i = 0; i < LATENT_Q * LATENT; i++)
		q[i] = latent_of(i, i % 7);
	assert_int_equal(kvp_seq_table(seq, &row.table), 0);
	assert_int_equal(row.table.n_tokens, n);
	kvattn_opts_init(&opts, LATENT_Q);
	assert_int_equal(kvattn_attend(&geom, &row, 1, &opts), 0);
	latent_truth(q, tokens, n, want);
	for (uint32_t i = 0; i < LATENT_Q * LATENT_V; i++) {
		wrong += ((double)out[i] - want[i]) * ((double)out[i] - want[i]);
		all += want[i] * want[i];
	}
	if (!(sqrt(wrong / all) < most))
		fail_msg("error %.2e, at most %.2e", sqrt(wrong / all), most);
}

static void latent_put(struct kvp_ns *ns, struct kvp_seq *seq, uint64_t n)
{
	struct kvattn_geom geom;
	float k[LATENT];
	uint32_t index;

	assert_int_equal(kvp_attn_geom(ns, 0, &geom), 0);
	for (uint64_t pos = 0; pos < n; pos++) {
		void *block = kvp_seq_block(seq, pos, &index);

		for (uint32_t d = 0; d < LATENT; d++)
			k[d] = latent_of(pos, d);
		assert_int_equal(kvattn_put(&geom, block, index, 1, k, 0, NULL, 0), 0);
	}
	assert_true(kvp_seq_commit(seq, n) >= 0);
}

static void check_latent(struct fixture *f, uint32_t layout, uint32_t type, double most)
{
	uint64_t all[LATENT_N], some[LATENT_N], n = 0;
	struct kvp_keep keep = {.size = sizeof(keep), .tokens = some, .kernels = &kernels};
	struct kvp_seq *seq, *kept, *found;
	struct kvp_desc desc;
	struct kvp_ns *ns;

	kvp_desc_init(&desc, layout, WIDTH, 1, 1, LATENT, type);
	desc.layers[0].kind = KVP_LAYER_MLA;
	desc.layers[0].dim_v = 0;
	ns = given_ns(f->client, "latent", &desc);
	for (uint64_t i = 0; i < LATENT_N; i++)
		all[i] = i;
	for (uint64_t i = 0; i < LATENT_N; i += 1 + i % 3)
		some[n++] = i;
	keep.n = n;
	assert_int_equal(kvp_seq_open(ns, NULL, &seq), 0);
	assert_int_equal(kvp_seq_append(seq, f->tokens, LATENT_N), LATENT_N);
	latent_put(ns, seq, LATENT_N);
	assert_latent(ns, seq, all, LATENT_N, most);
	assert_int_equal(kvp_compact(seq, &keep, &kept), 0);
	assert_latent(ns, kept, some, n, most);
	assert_published(seq);
	assert_int_equal(kvp_seq_open(ns, NULL, &found), 0);
	assert_int_equal(kvp_seq_match(found, f->tokens, LATENT_N, kvp_deadline_ms(5000)), 3 * WIDTH);
	assert_latent(ns, found, all, 3 * WIDTH, most);
	kvp_seq_close(found);
	kvp_seq_close(kept);
	kvp_seq_close(seq);
	kvp_ns_close(ns);
}

static void a_layer_that_stores_no_v_is_attended_where_it_lies(void **state)
{
	check_latent(*state, KVP_LAYOUT_HND, KVP_TYPE_F16, 5e-4);
	check_latent(*state, KVP_LAYOUT_NHD, KVP_TYPE_BF16, 4e-3);
	check_latent(*state, KVP_LAYOUT_TILED, KVP_TYPE_F16, 5e-4);
	check_latent(*state, KVP_LAYOUT_TILED, KVP_TYPE_I8, 1.5e-2);
}

/* From rows to tiles of a narrower type: K is converted, and V with it. */
static void a_latent_cache_is_quantised_as_any_other(void **state)
{
	struct fixture *f = *state;
	struct kvp_desc desc, small;
	struct kvp_view exact, view;
	struct kvattn_geom geom;
	struct kvp_ns *ns, *to;
	struct kvp_key key, derived;
	float row[LATENT];
	struct kvp_seq *seq;

	kvp_desc_init(&desc, KVP_LAYOUT_HND, WIDTH, 1, 1, LATENT, KVP_TYPE_F16);
	desc.layers[0].dim_v = 0;
	assert_int_equal(kvp_desc_quantised(&desc, KVP_TYPE_I8, KVP_TYPE_I4, &small), 0);
	ns = given_ns(f->client, "latent", &desc);
	to = given_ns(f->client, "latent", &small);
	assert_int_equal(kvp_seq_open(ns, NULL, &seq), 0);
	assert_int_equal(kvp_seq_append(seq, f->tokens, WIDTH), WIDTH);
	latent_put(ns, seq, WIDTH);
	assert_published(seq);
	assert_int_equal(kvp_hash_chain(ns, NULL, f->tokens, WIDTH, NULL, 0, &key), 1);
	assert_int_equal(kvp_acquire(ns, &key, 1, 0, kvp_deadline_ms(5000), &exact), 1);
	assert_int_equal(kvp_quantise(ns, to, &kernels, NULL, &key, 1, kvp_deadline_ms(10000)), 1);
	assert_int_equal(kvp_key_derived(to, &key, &derived), 0);
	assert_int_equal(kvp_acquire(to, &derived, 1, 0, kvp_deadline_ms(5000), &view), 1);
	assert_int_equal(kvp_attn_geom(to, 0, &geom), 0);
	assert_int_equal(geom.type_v, KVATTN_I8); /* K's: it is K's bytes */
	for (uint32_t i = 0; i < WIDTH; i++) {
		assert_int_equal(kvattn_get(&geom, view.data, i, 1, row, 0, NULL, 0), 0);
		for (uint32_t d = 0; d < LATENT; d++)
			assert_true(fabsf(row[d] - latent_of(i, d)) < 1.0f / 127);
	}
	kvp_release(&view, 1);
	kvp_release(&exact, 1);
	kvp_seq_close(seq);
	kvp_ns_close(to);
	kvp_ns_close(ns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define ALONE(name) cmocka_unit_test_setup_teardown(name, setup_alone, teardown_alone)
		TEST(a_context_larger_than_the_pool_is_used_by_selection),
		TEST(another_process_finds_all_and_reads_what_it_selects),
		TEST(a_sequence_holds_no_more_than_its_resident_blocks),
		ALONE(without_a_daemon_selection_works_too),
		ALONE(a_sparse_sequence_refuses_what_makes_no_sense),
		TEST(quantised_blocks_stand_in_a_labelled_namespace_under_a_key_of_their_own),
		ALONE(quantising_into_another_namespace_is_refused),
		cmocka_unit_test_setup_teardown(
			what_was_read_under_a_lost_hold_is_never_published, setup_hold_limit, teardown),
		TEST(kept_tokens_are_a_sequence_nobody_takes_for_a_prompt),
		ALONE(keeping_refuses_what_is_not_there),
		TEST(a_layer_that_stores_no_v_is_attended_where_it_lies),
		TEST(a_latent_cache_is_quantised_as_any_other),
	};

	return cmocka_run_group_tests_name("client sparse", tests, NULL, NULL);
}
