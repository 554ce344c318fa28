/* test_client_seq.c - sequences without a daemon, against a model in plain arrays */
#include "seq_model.h"

static void any_series_of_calls_keeps_every_row(void **state)
{
	static const uint32_t widths[] = {1, 3, 16, 64, 1024};
	static const uint32_t layouts[] = {KVP_LAYOUT_HND, KVP_LAYOUT_NHD, KVP_LAYOUT_TILED};

	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct world w = given_world(NULL, widths[seed % 5], layouts[seed % 3], 0);
		struct model *models = calloc(SEQS, sizeof(*models));

		random_state = seed;
		for (unsigned i = 0; i < SEQS; i++)
			model_open(&w, &models[i]);
		for (unsigned step = 0; step < 400; step++) {
			unsigned which = random_below(SEQS);

			random_step(&w, models, which);
			for (unsigned i = 0; i < SEQS; i++)
				check_table(&w, &models[i]);
		}
		for (unsigned i = 0; i < SEQS; i++)
			assert_int_equal(kvp_seq_close(models[i].seq), 0);
		free(models);
		done_with(&w);
	}
}

static void a_new_sequence_is_empty(void **state)
{
	struct world w = given_world(NULL, 16, KVP_LAYOUT_HND, 0);
	struct kvattn_table table;
	struct kvp_seq *seq;

	(void)state;
	assert_int_equal(kvp_seq_open(w.ns, NULL, &seq), 0);
	assert_int_equal(kvp_seq_length(seq), 0);
	assert_int_equal(kvp_seq_table(seq, &table), 0);
	assert_int_equal(table.n_blocks, 0);
	assert_int_equal(table.n_tokens, 0);
	assert_int_equal(kvp_seq_append(seq, &(uint32_t){1}, 1), 1);
	assert_int_equal(kvp_seq_table(seq, &table), 0);
	assert_int_equal(kvp_seq_nodes(seq)[0], -1); /* private memory: on no node that we know */
	assert_int_equal(kvp_seq_truncate(seq, 0), 0);
	assert_null(kvp_seq_row(seq, 0, KVP_K, 0, 0));
	assert_int_equal(kvp_seq_commit(seq, 0), 0);
	assert_int_equal(kvp_seq_truncate(seq, 0), 0);
	kvp_seq_close(seq);
	done_with(&w);
}

static void matching_comes_first_and_finds_nothing_alone(void **state)
{
	struct world w = given_world(NULL, 16, KVP_LAYOUT_HND, 0);
	uint32_t tokens[50] = {0};
	struct kvp_seq *seq;

	(void)state;
	assert_int_equal(kvp_seq_open(w.ns, NULL, &seq), 0);
	assert_int_equal(kvp_seq_match(seq, tokens, 50, 0), 0);
	assert_int_equal(kvp_seq_append(seq, tokens, 50), 50);
	assert_int_equal(kvp_seq_match(seq, tokens, 50, 0), -KVP_EINVAL);
	kvp_seq_close(seq);
	done_with(&w);
}

static void the_fork_copies_only_the_tail(void **state)
{
	struct world w = given_world(NULL, 16, KVP_LAYOUT_HND, 0);
	struct kvp_seq_stats stats = {.size = sizeof(stats)};
	struct model a = {0}, b = {0};

	(void)state;
	random_state = 1;
	assert_int_equal(kvp_seq_open(w.ns, NULL, &a.seq), 0);
	model_append(&w, &a, 37);
	model_commit(&a, 37);
	model_fork(&a, &b);
	assert_int_equal(kvp_seq_stats(b.seq, &stats), 0);
	assert_int_equal(stats.copied_bytes, 5 * LAYERS * 2 * HEADS * DIM * 4); /* 37 = 2 blocks and 5 tokens */
	assert_int_equal(stats.tokens, 37);
	assert_int_equal(stats.private_blocks, 3);
	model_append(&w, &a, 20);
	model_append(&w, &b, 11);
	check_table(&w, &a);
	check_table(&w, &b);
	kvp_seq_close(a.seq);
	check_table(&w, &b);
	kvp_seq_close(b.seq);
	done_with(&w);
}

static void a_window_lets_no_block_go_that_is_still_seen(void **state)
{
	struct world w = given_world(NULL, 4, KVP_LAYOUT_HND, 0);
	struct kvp_seq_opts opts = {.size = sizeof(opts), .window = 6, .sinks = 2};
	struct model m = {.window = 6, .sinks = 2};
	struct kvattn_table table;

	(void)state;
	random_state = 1;
	assert_int_equal(kvp_seq_open(w.ns, &opts, &m.seq), 0);
	for (unsigned i = 0; i < 100; i++) {
		model_append(&w, &m, 1);
		model_commit(&m, m.n);
		check_table(&w, &m);
		assert_int_equal(kvp_seq_table(m.seq, &table), 0);
		assert_true(table.n_blocks <= 1 + 3); /* the sink's block, and 6 tokens touch at most 3 blocks of 4 */
	}
	assert_int_equal(table.block_pos[0], 0);
	assert_int_equal(kvp_seq_truncate(m.seq, 50), -KVP_EINVAL);
	kvp_seq_close(m.seq);
	done_with(&w);
}

static void a_sequence_refuses_what_makes_no_sense(void **state)
{
	struct world w = given_world(NULL, 16, KVP_LAYOUT_HND, 0);
	struct kvp_seq_opts opts = {.size = sizeof(opts), .n_salt = 65, .salt = "x"};
	uint32_t tokens[4] = {0}, index;
	struct kvp_seq *seq;

	(void)state;
	assert_int_equal(kvp_seq_open(w.ns, &opts, &seq), -KVP_EINVAL);
	opts = (struct kvp_seq_opts){.size = sizeof(opts), .sinks = 3};
	assert_int_equal(kvp_seq_open(w.ns, &opts, &seq), -KVP_EINVAL);
	opts = (struct kvp_seq_opts){.size = 3};
	assert_int_equal(kvp_seq_open(w.ns, &opts, &seq), -KVP_EINVAL);
	assert_int_equal(kvp_seq_open(NULL, NULL, &seq), -KVP_EINVAL);
	assert_int_equal(kvp_seq_open(w.ns, NULL, &seq), 0);
	assert_int_equal(kvp_seq_append(seq, NULL, 1), -KVP_EINVAL);
	assert_int_equal(kvp_seq_append(seq, tokens, 4), 4);
	assert_int_equal(kvp_seq_commit(seq, 5), -KVP_EINVAL);
	assert_int_equal(kvp_seq_truncate(seq, 5), -KVP_EINVAL);
#define NONE(call, text) \
	do { \
		kvp_seq_append(seq, NULL, 1); /* another text before */ \
		assert_null(call); \
		assert_string_equal(kvp_error(NULL), text); \
	} while (0)
	NONE(kvp_seq_row(seq, LAYERS, KVP_K, 0, 0), "layer: 2 of 2");
	NONE(kvp_seq_row(seq, 0, KVP_K, HEADS, 0), "head: 2 of 2");
	NONE(kvp_seq_row(seq, 0, KVP_K, 0, 4), "pos: 4, and the sequence has 4 tokens; kvp_seq_append() makes room");
	NONE(kvp_seq_row(NULL, 0, KVP_K, 0, 0), "seq: a null pointer");
	NONE(kvp_seq_block(seq, 4, &index), "pos: 4, and the sequence has 4 tokens; kvp_seq_append() makes room");
	assert_non_null(kvp_seq_block(seq, 3, &index));
	assert_int_equal(index, 3);
	assert_int_equal(kvp_seq_commit(seq, 2), 0);
	NONE(kvp_seq_row(seq, 0, KVP_K, 0, 1),
		"pos: 1, and the first 2 tokens are committed: they are not written any more");
#undef NONE
	kvp_seq_close(seq);
	done_with(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_series_of_calls_keeps_every_row),
		cmocka_unit_test(a_new_sequence_is_empty),
		cmocka_unit_test(matching_comes_first_and_finds_nothing_alone),
		cmocka_unit_test(the_fork_copies_only_the_tail),
		cmocka_unit_test(a_window_lets_no_block_go_that_is_still_seen),
		cmocka_unit_test(a_sequence_refuses_what_makes_no_sense),
	};

	return cmocka_run_group_tests_name("client sequences", tests, NULL, NULL);
}
