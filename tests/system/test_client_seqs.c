/*
 * test_client_seqs.c - sequences through a real kvpoold: shared prefixes, restarts, copied namespaces, spill
 *
 * kvpool-test: timeout=240
 */
#include "tests/unit/seq_model.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "wire.h"

static const char *const small_pool[] = {
	"--pool", "4M", "--slab", "256K", "--free-percent", "0", "--spill", "off", "--heartbeat", "200", NULL};

static int setup(void **state)
{
	struct host *host = calloc(1, sizeof(*host));

	assert_non_null(host);
	assert_int_equal(host_open(host, geteuid()), 0);
	*state = host;
	return 0;
}

static int setup_small(void **state)
{
	setup(state);
	return host_start(*state, small_pool);
}

static int teardown(void **state)
{
	struct host *host = *state;
	bool good = !host->pid || (host_alive(host) && host_conserves(host));

	host_close(host);
	free(host);
	return good ? 0 : -1;
}

static struct model given_sequence(const struct world *w)
{
	struct model m = {0};

	assert_int_equal(kvp_seq_open(w->ns, NULL, &m.seq), 0);
	return m;
}

/* Tokens that no other test has. */
static void tokens_of(uint32_t *tokens, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = seed * 1000 + i % 100;
}

static struct kvp_seq_stats stats_of(const struct model *m)
{
	struct kvp_seq_stats stats = {.size = sizeof(stats)};

	assert_int_equal(kvp_seq_stats(m->seq, &stats), 0);
	return stats;
}

struct wanted {
	struct model *m;
	uint64_t published;
};

static bool published(void *arg)
{
	struct wanted *want = arg;

	kvp_seq_commit(want->m->seq, want->m->committed);
	return stats_of(want->m).published >= want->published;
}

static void wait_published(struct model *m, uint64_t n)
{
	struct wanted want = {m, n};

	if (!wire_until(published, &want, 5000))
		fail_msg("published %u of %u", (unsigned)stats_of(m).published, (unsigned)n);
}

static uint64_t match(struct model *m, const uint32_t *tokens, uint64_t n)
{
	int64_t got = kvp_seq_match(m->seq, tokens, n, kvp_deadline_ms(2000));

	assert_true(got >= 0);
	memcpy(m->tokens, tokens, (size_t)got * sizeof(*tokens));
	m->n = m->committed = (uint64_t)got;
	return (uint64_t)got;
}

static void the_second_engine_takes_over_what_the_first_computed(void **state)
{
	struct host *host = *state;
	struct world a = given_world(host->socket, 16, KVP_LAYOUT_HND, 0);
	struct world b = given_world(host->socket, 16, KVP_LAYOUT_HND, 0);
	struct model first = given_sequence(&a), second = given_sequence(&b), third = given_sequence(&b);
	uint32_t tokens[100];

	tokens_of(tokens, 100, 1);
	model_append_these(&first, tokens, 100);
	model_commit(&first, 100);
	wait_published(&first, 6);
	check_table(&a, &first);
	assert_int_equal(match(&second, tokens, 100), 96);
	check_table(&b, &second);
	assert_int_equal(stats_of(&second).reused_ram, 96);
	assert_int_equal(stats_of(&second).copied_bytes, 0);
	assert_int_equal(stats_of(&second).private_blocks, 0);
	assert_int_equal(match(&third, tokens, 96), 80); /* at least the last token is left to compute */
	kvp_seq_close(first.seq);
	check_table(&b, &second);
	assert_int_equal(kvp_seq_close(second.seq), 0);
	assert_int_equal(kvp_seq_close(third.seq), 0);
	done_with(&a);
	done_with(&b);
}

static void two_engines_that_compute_the_same_end_with_one_copy(void **state)
{
	struct host *host = *state;
	struct world a = given_world(host->socket, 16, KVP_LAYOUT_HND, 0);
	struct world b = given_world(host->socket, 16, KVP_LAYOUT_HND, 0);
	struct model first = given_sequence(&a), second = given_sequence(&b);
	struct kvattn_table ta, tb;
	uint32_t tokens[64];

	tokens_of(tokens, 64, 2);
	model_append_these(&first, tokens, 64);
	model_append_these(&second, tokens, 64);
	model_commit(&first, 64);
	wait_published(&first, 4);
	model_commit(&second, 64);
	check_table(&b, &second); /* while the answer may be under way */
	wait_published(&second, 4);
	check_table(&b, &second);
	assert_int_equal(kvp_seq_table(first.seq, &ta), 0);
	assert_int_equal(kvp_seq_table(second.seq, &tb), 0);
	/* the second one's own grants went back */
	for (unsigned i = 0; i < 200 && atomic_load(&host->stats->counters.sessions); i++) {
		struct kvp_ns_info info = {.size = sizeof(info)};

		kvp_ns_info(b.ns, &info);
		if (atomic_load(&host_ns_row(host, info.ns_id)->counters.granted) == 0)
			break;
		wire_sleep_ms(20);
	}
	check_table(&a, &first);
	check_table(&b, &second);
	assert_int_equal(kvp_seq_close(first.seq), 0);
	assert_int_equal(kvp_seq_close(second.seq), 0);
	done_with(&a);
	done_with(&b);
}

static bool attached(void *arg)
{
	return kvp_ping(arg, kvp_deadline_ms(100)) == 0;
}

static void an_engine_does_not_notice_that_the_daemon_is_killed(void **state)
{
	struct host *host = *state;
	struct world a = given_world(host->socket, 4, KVP_LAYOUT_HND, 0);
	struct world b = given_world(host->socket, 4, KVP_LAYOUT_HND, 0);
	struct model m = given_sequence(&a), other = given_sequence(&b);
	uint32_t tokens[TOKENS_MAX];

	tokens_of(tokens, TOKENS_MAX, 3);
	for (unsigned i = 0; i < 500; i++) {
		model_append_these(&m, tokens + i, 1);
		model_commit(&m, m.n);
		check_table(&a, &m);
		if (i % 100 == 50)
			host_kill(host);
		if (i % 100 == 70) /* in between even the stock runs out */
			assert_int_equal(host_start(host, NULL), 0);
		if (i % 100 > 50 && i % 100 <= 70)
			wire_sleep_ms(2);
	}
	wait_published(&m, 125);
	check_table(&a, &m);
	assert_true(wire_until(attached, b.client, 5000));
	assert_int_equal(match(&other, tokens, 501), 500);
	check_table(&b, &other);
	assert_int_equal(kvp_seq_close(m.seq), 0);
	assert_int_equal(kvp_seq_close(other.seq), 0);
	done_with(&a);
	done_with(&b);
}

static void a_sequence_begun_without_a_daemon_is_published_when_one_comes(void **state)
{
	struct host *host = *state;
	struct world a = given_world(host->socket, 16, KVP_LAYOUT_HND, 0);
	struct model m = given_sequence(&a), other;
	struct world b;
	uint32_t tokens[200];

	assert_int_equal(kvp_state(a.client, NULL), KVP_DETACHED);
	tokens_of(tokens, 200, 4);
	model_append_these(&m, tokens, 100);
	model_commit(&m, 100);
	assert_int_equal(stats_of(&m).private_blocks, 7);
	assert_int_equal(host_start(host, small_pool), 0);
	b = given_world(host->socket, 16, KVP_LAYOUT_HND, 0);
	other = given_sequence(&b);
	wait_published(&m, 6); /* under the namespace's own secret: the other one finds it */
	check_table(&a, &m);
	model_append_these(&m, tokens + 100, 60);
	model_commit(&m, 160);
	wait_published(&m, 10);
	assert_int_equal(match(&other, tokens, 200), 160);
	check_table(&b, &other);
	kvp_seq_close(m.seq);
	kvp_seq_close(other.seq);
	done_with(&a);
	done_with(&b);
}

static void salts_keep_sequences_apart(void **state)
{
	struct host *host = *state;
	struct world w = given_world(host->socket, 16, KVP_LAYOUT_HND, 0);
	struct kvp_seq_opts opts[4] = {{.size = sizeof(opts[0])},
		{.size = sizeof(opts[0]), .n_salt = 2, .salt = "ab", .n_extra = 1, .extra = "c"},
		{.size = sizeof(opts[0]), .n_salt = 1, .salt = "a", .n_extra = 2, .extra = "bc"},
		{.size = sizeof(opts[0]), .n_extra = 3, .extra = "abc"}};
	uint32_t tokens[65];

	tokens_of(tokens, 65, 5);
	for (unsigned i = 0; i < 4; i++) {
		struct model m = {0}, other = {0};

		for (unsigned k = 0; k < 4; k++) {
			struct model probe = {0};

			assert_int_equal(kvp_seq_open(w.ns, &opts[k], &probe.seq), 0);
			assert_int_equal(match(&probe, tokens, 65), k < i ? 64 : 0);
			kvp_seq_close(probe.seq);
		}
		assert_int_equal(kvp_seq_open(w.ns, &opts[i], &m.seq), 0);
		model_append_these(&m, tokens, 65);
		model_commit(&m, 65);
		wait_published(&m, 4);
		assert_int_equal(kvp_seq_open(w.ns, &opts[i], &other.seq), 0);
		assert_int_equal(match(&other, tokens, 65), 64);
		kvp_seq_close(m.seq);
		kvp_seq_close(other.seq);
	}
	done_with(&w);
}

static void the_keys_of_a_sequence_are_those_of_its_tokens(void **state)
{
	struct host *host = *state;
	struct world w = given_world(host->socket, 16, KVP_LAYOUT_HND, 0);
	struct model m = given_sequence(&w);
	struct kvp_key keys[4];
	struct kvp_match_part part = {.ns = w.ns, .keys = keys};
	uint32_t tokens[64];

	tokens_of(tokens, 64, 6);
	model_append_these(&m, tokens, 64);
	model_commit(&m, 64);
	wait_published(&m, 4);
	assert_int_equal(kvp_hash_chain(w.ns, NULL, tokens, 64, NULL, 0, keys), 4);
	assert_int_equal(kvp_match(&part, 1, 4, 0, NULL), 4);
	kvp_seq_close(m.seq);
	done_with(&w);
}

static void tokens_not_committed_are_nobodys(void **state)
{
	struct host *host = *state;
	struct world w = given_world(host->socket, 4, KVP_LAYOUT_HND, 0);
	struct model m = given_sequence(&w), probe = given_sequence(&w);
	uint32_t tokens[65];

	tokens_of(tokens, 65, 7);
	model_append_these(&m, tokens, 65);
	model_commit(&m, 30);
	wait_published(&m, 7);
	assert_int_equal(match(&probe, tokens, 65), 28);
	/* the speculation was wrong: the same positions get other tokens */
	model_truncate(&m, 32);
	m.tokens[32] = 99;
	model_append_these(&m, (const uint32_t[]){1, 2, 3, 4}, 4);
	model_commit(&m, 36);
	wait_published(&m, 9);
	check_table(&w, &m);
	kvp_seq_close(m.seq);
	kvp_seq_close(probe.seq);
	done_with(&w);
}

static void a_read_only_member_reuses_and_publishes_nothing(void **state)
{
	struct host *host = *state;
	struct world a = given_world(host->socket, 16, KVP_LAYOUT_HND, 0);
	struct world b = given_world(host->socket, 16, KVP_LAYOUT_HND, KVP_NS_READONLY);
	struct model m = given_sequence(&a), reader = given_sequence(&b), probe = given_sequence(&a);
	struct kvp_block_ref block;
	uint32_t tokens[100];

	tokens_of(tokens, 100, 8);
	model_append_these(&m, tokens, 50);
	model_commit(&m, 50);
	wait_published(&m, 3);
	assert_int_equal(match(&reader, tokens, 100), 48);
	model_append_these(&reader, tokens + 48, 52);
	model_commit(&reader, 100);
	check_table(&b, &reader);
	wire_sleep_ms(50);
	assert_int_equal(match(&probe, tokens, 100), 48);
	assert_int_equal(kvp_reserve(b.ns, 1, 0, 0, &block), -KVP_EACCES);
	kvp_seq_close(m.seq);
	kvp_seq_close(reader.seq);
	kvp_seq_close(probe.seq);
	done_with(&a);
	done_with(&b);
}

/* ---- anything, in any order ---- */

static void random_run(struct host *host, uint64_t seed, uint32_t width, uint32_t layout, uint32_t flags, bool kills)
{
	struct world worlds[2] = {
		given_world(host->socket, width, layout, flags), given_world(host->socket, width, layout, flags)};
	struct model *models = calloc(2 * SEQS, sizeof(*models));

	random_state = seed;
	for (unsigned i = 0; i < 2 * SEQS; i++)
		model_open(&worlds[i / SEQS], &models[i]);
	for (unsigned step = 0; step < 1500; step++) {
		unsigned side = random_below(2);

		random_step(&worlds[side], models + side * SEQS, random_below(SEQS));
		if (random_below(20) == 0) /* what the other engine is at */
			model_match(&worlds[side], &models[side * SEQS + random_below(SEQS)],
				&models[(1 - side) * SEQS + random_below(SEQS)]);
		for (unsigned i = 0; i < 2 * SEQS; i += 1 + random_below(4))
			check_table(&worlds[i / SEQS], &models[i]);
		if (kills && random_below(150) == 0) {
			host_kill(host);
			wire_sleep_ms(random_below(3) * 10);
			assert_int_equal(host_start(host, NULL), 0);
		}
	}
	assert_true(*worlds[0].matched + *worlds[1].matched > 300);
	for (unsigned i = 0; i < 2 * SEQS; i++) {
		check_table(&worlds[i / SEQS], &models[i]);
		assert_int_equal(kvp_seq_close(models[i].seq), 0);
	}
	free(models);
	done_with(&worlds[0]);
	done_with(&worlds[1]);
}

static void any_series_of_calls_of_two_engines_keeps_every_row(void **state)
{
	for (uint64_t seed = 1; seed <= 3; seed++)
		random_run(*state, seed, seed == 3 ? 16 : 4, seed % 2 ? KVP_LAYOUT_TILED : KVP_LAYOUT_HND, 0, false);
}

static void the_same_while_the_daemon_is_killed_again_and_again(void **state)
{
	for (uint64_t seed = 1; seed <= 3; seed++)
		random_run(*state, 10 + seed, 4, KVP_LAYOUT_NHD, 0, true);
}

static void the_same_in_a_copied_namespace(void **state)
{
	random_run(*state, 21, 4, KVP_LAYOUT_HND, KVP_NS_COPIED, false);
	random_run(*state, 22, 4, KVP_LAYOUT_TILED, KVP_NS_COPIED, true);
}

/* ---- blocks of a copied namespace that were written for a daemon that is gone ---- */

/* Moved to the staging area of the new one, which does not answer yet. */
static struct model given_blocks_that_moved(struct host *host, const struct world *w, uint32_t seed)
{
	struct model m = given_sequence(w);
	struct kvp_block_ref other;
	uint32_t tokens[16];

	tokens_of(tokens, 16, seed);
	model_append_these(&m, tokens, 16);
	host_kill(host);
	assert_int_equal(host_start(host, NULL), 0);
	assert_true(wire_until(attached, w->client, 5000));
	assert_int_equal(kvp_reserve(w->ns, 1, 0, kvp_deadline_ms(5000), &other), 1); /* now there is an area */
	assert_int_equal(kill(host->pid, SIGSTOP), 0);
	model_commit(&m, 16);
	kvp_abandon(&other, 1);
	wire_sleep_ms(1000); /* for the keeper to unmap what nobody looks at */
	return m;
}

static void what_moves_to_a_new_daemon_is_read_where_it_was_written(void **state)
{
	struct host *host = *state;
	struct world w = given_world(host->socket, 4, KVP_LAYOUT_HND, KVP_NS_COPIED);
	struct model m = given_blocks_that_moved(host, &w, 9);

	check_table(&w, &m);
	assert_int_equal(kill(host->pid, SIGCONT), 0);
	wait_published(&m, 4);
	check_table(&w, &m);
	kvp_seq_close(m.seq);
	done_with(&w);
}

static void what_is_written_after_a_refusal_is_what_is_published(void **state)
{
	struct host *host = *state;
	struct world w = given_world(host->socket, 4, KVP_LAYOUT_HND, KVP_NS_COPIED);
	struct world full = given_world(host->socket, 16, KVP_LAYOUT_HND, 0);
	struct kvp_block_ref *all = calloc(4096, sizeof(*all));
	struct model m, probe = given_sequence(&w);
	uint32_t tokens[16];
	int64_t n;

	n = kvp_reserve(full.ns, 4096, 0, kvp_deadline_ms(5000), all);
	assert_true(n > 100);
	m = given_blocks_that_moved(host, &w, 10);
	assert_int_equal(kill(host->pid, SIGCONT), 0);
	wire_sleep_ms(1500);
	model_commit(&m, 16);
	assert_int_equal(stats_of(&m).published, 0);
	kvp_abandon(all, (uint32_t)n);
	check_table(&w, &m);
	model_truncate(&m, 2);
	tokens_of(tokens, 16, 11);
	model_append_these(&m, tokens + 2, 14);
	check_table(&w, &m);
	model_commit(&m, 16);
	wait_published(&m, 4);
	memcpy(tokens, m.tokens, sizeof(tokens));
	assert_int_equal(match(&probe, tokens, 16), 12);
	check_table(&w, &probe);
	kvp_seq_close(m.seq);
	kvp_seq_close(probe.seq);
	free(all);
	done_with(&w);
	done_with(&full);
}

static void a_sequence_goes_on_being_published_while_the_daemon_is_killed(void **state)
{
	struct host *host = *state;
	struct world w = given_world(host->socket, 4, KVP_LAYOUT_HND, KVP_NS_COPIED);
	struct model m = given_sequence(&w);
	uint32_t tokens[TOKENS_MAX];

	tokens_of(tokens, TOKENS_MAX, 12);
	for (unsigned i = 0; i < 500; i++) {
		model_append_these(&m, tokens + i, 1);
		if (i % 100 == 50) {
			host_kill(host);
			model_commit(&m, m.n); /* what is sent now has nowhere to move to when it is sent again */
			assert_int_equal(host_start(host, NULL), 0);
		} else if (i % 8 == 0) {
			model_commit(&m, m.n);
		}
	}
	model_commit(&m, 500);
	wait_published(&m, 125);
	check_table(&w, &m);
	kvp_seq_close(m.seq);
	done_with(&w);
}

static void a_block_written_for_a_daemon_that_is_gone_is_published_to_the_next(void **state)
{
	struct host *host = *state;
	struct world w = given_world(host->socket, 4, KVP_LAYOUT_HND, KVP_NS_COPIED);
	struct kvp_block_ref block;
	struct kvp_publish_item item = {.block = &block, .key = {{13, 13}}, .used_tokens = 4};
	uint8_t result;

	assert_int_equal(kvp_reserve(w.ns, 1, 0, kvp_deadline_ms(5000), &block), 1);
	memset(block.data, 1, 64);
	host_kill(host);
	assert_int_equal(host_start(host, NULL), 0);
	assert_true(wire_until(attached, w.client, 5000));
	assert_int_equal(kvp_publish(w.ns, &item, 1, &result), 1);
	assert_int_equal(result, KVP_PUB_STORED);
	done_with(&w);
}

struct sending {
	struct kvp_ns *ns;
	struct kvp_publish_item item;
	uint8_t result;
};

static void *sends(void *arg)
{
	struct sending *sending = arg;

	kvp_publish(sending->ns, &sending->item, 1, &sending->result);
	return NULL;
}

static void a_block_on_its_way_when_the_daemon_is_killed_is_published_to_the_next(void **state)
{
	struct host *host = *state;
	struct world w = given_world(host->socket, 4, KVP_LAYOUT_HND, KVP_NS_COPIED);
	struct kvp_block_ref block;
	struct sending sending = {.ns = w.ns, .item = {.block = &block, .key = {{15, 15}}, .used_tokens = 4}};
	pthread_t thread;

	assert_int_equal(kvp_reserve(w.ns, 1, 0, kvp_deadline_ms(5000), &block), 1);
	memset(block.data, 1, 64);
	assert_int_equal(kill(host->pid, SIGSTOP), 0);
	assert_int_equal(pthread_create(&thread, NULL, sends, &sending), 0);
	wire_sleep_ms(200);
	host_kill(host);
	assert_int_equal(host_start(host, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(sending.result, KVP_PUB_STORED);
	done_with(&w);
}

static void a_chain_is_published_by_calls_that_do_not_wait(void **state)
{
	enum { N = 64 };
	struct host *host = *state;
	struct world w = given_world(host->socket, 4, KVP_LAYOUT_HND, KVP_NS_COPIED);
	struct kvp_block_ref blocks[N];
	struct kvp_key keys[N];
	struct kvp_match_part part = {.ns = w.ns, .keys = keys};

	for (uint32_t round = 0; round < 20; round++) {
		assert_int_equal(kvp_reserve(w.ns, N, 0, kvp_deadline_ms(5000), blocks), N);
		for (uint32_t i = 0; i < N; i++) {
			struct kvp_publish_item item = {.block = &blocks[i], .used_tokens = 4};

			keys[i] = (struct kvp_key){{14 + round, 1 + i}};
			item.key = keys[i];
			if (i)
				item.parent = keys[i - 1];
			memset(blocks[i].data, 1, 64);
			assert_int_equal(kvp_publish(w.ns, &item, 1, NULL), 1);
		}
		for (unsigned ms = 0; ms < 5000 && kvp_match(&part, 1, N, 0, NULL) < N; ms += 10)
			wire_sleep_ms(10);
		assert_int_equal(kvp_match(&part, 1, N, 0, NULL), N);
	}
	done_with(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_small, teardown)
		TEST(the_second_engine_takes_over_what_the_first_computed),
		TEST(two_engines_that_compute_the_same_end_with_one_copy),
		TEST(an_engine_does_not_notice_that_the_daemon_is_killed),
		cmocka_unit_test_setup_teardown(
			a_sequence_begun_without_a_daemon_is_published_when_one_comes, setup, teardown),
		TEST(salts_keep_sequences_apart),
		TEST(the_keys_of_a_sequence_are_those_of_its_tokens),
		TEST(tokens_not_committed_are_nobodys),
		TEST(a_read_only_member_reuses_and_publishes_nothing),
		TEST(any_series_of_calls_of_two_engines_keeps_every_row),
		TEST(the_same_while_the_daemon_is_killed_again_and_again),
		TEST(the_same_in_a_copied_namespace),
		TEST(what_moves_to_a_new_daemon_is_read_where_it_was_written),
		TEST(what_is_written_after_a_refusal_is_what_is_published),
		TEST(a_sequence_goes_on_being_published_while_the_daemon_is_killed),
		TEST(a_block_written_for_a_daemon_that_is_gone_is_published_to_the_next),
		TEST(a_block_on_its_way_when_the_daemon_is_killed_is_published_to_the_next),
		TEST(a_chain_is_published_by_calls_that_do_not_wait),
	};

	if (getenv("KVPOOL_TEST_ONLY"))
		cmocka_set_test_filter(getenv("KVPOOL_TEST_ONLY"));
	return cmocka_run_group_tests_name("client sequences and pool", tests, NULL, NULL);
}
