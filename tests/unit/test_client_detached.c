/* test_client_detached.c - the library with no daemon: everything works from private memory, nothing is found */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#undef fail /* the library has a function of this name */
#include "client/libkvpool/internal.h"

#define BLOCK_BYTES 10000

struct fixture {
	struct kvp_client *client;
	struct kvp_ns *ns;
};

/* A socket nobody listens on: the keeper tries, in vain. */
static int setup(void **state)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = "/tmp/kvpool-nobody-listens-here"};
	struct fixture *f = calloc(1, sizeof(*f));
	struct kvp_desc desc;
	struct kvp_ns_opts ns_opts = {
		.size = sizeof(ns_opts), .name = "alone", .owner_uid = KVP_UID_SELF, .desc = &desc};

	kvp_desc_init(&desc, KVP_LAYOUT_OPAQUE, 16, 0, 0, 0, 0);
	desc.block_bytes = BLOCK_BYTES;
	assert_int_equal(kvp_open(&opts, &f->client), 0);
	assert_int_equal(kvp_ns_open(f->client, &ns_opts, &f->ns), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	kvp_ns_close(f->ns);
	kvp_close(f->client);
	free(f);
	return 0;
}

static void opening_succeeds_without_a_daemon(void **state)
{
	struct fixture *f = *state;
	struct kvp_ns_info info = {.size = sizeof(info)};
	uint64_t epoch = 1;

	assert_int_equal(kvp_state(f->client, &epoch), KVP_DETACHED);
	assert_int_equal(epoch, 0);
	assert_int_equal(kvp_ns_info(f->ns, &info), 0);
	assert_int_equal(info.ns_id, 0);
	assert_int_equal(info.block_bytes, BLOCK_BYTES);
	assert_int_equal(info.block_stride, 3 * 4096);
	assert_int_equal(kvp_ping(f->client, kvp_deadline_ms(10)), -KVP_EDETACHED);
	assert_non_null(strstr(kvp_error(f->client), "kvpool-nobody-listens-here"));
}

static void opening_waits_no_longer_than_it_was_told(void **state)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = "/tmp/kvpool-nobody", .connect_timeout_ms = 200};
	uint64_t before = kvp_deadline_ms(0);
	struct kvp_client *client;

	(void)state;
	assert_int_equal(kvp_open(&opts, &client), 0);
	assert_true(kvp_deadline_ms(0) - before < 1000000000ull);
	kvp_close(client);
}

static void nothing_is_found(void **state)
{
	struct fixture *f = *state;
	struct kvp_key keys[3] = {{{1, 2}}, {{3, 4}}, {{5, 6}}};
	struct kvp_match_part part = {.ns = f->ns, .keys = keys};
	struct kvp_counts counts = {.size = sizeof(counts)};
	struct kvp_view views[3];
	uint8_t states[3] = {9, 9, 9};

	assert_int_equal(kvp_match(&part, 1, 3, 0, states), 0);
	assert_int_equal(states[0], KVP_MISS);
	assert_int_equal(kvp_acquire(f->ns, keys, 3, 0, kvp_deadline_ms(50), views), 0);
	assert_null(views[2].data);
	assert_int_equal(views[0].hit, KVP_MISS);
	assert_int_equal(views[0].reason, KVP_MISS_DETACHED);
	assert_int_equal(kvp_release(views, 3), 0);
	assert_int_equal(kvp_prefetch(f->ns, keys, 3), -KVP_EDETACHED);
	assert_int_equal(kvp_counts(f->client, &counts), 0);
	assert_int_equal(counts.lookups, 3);
	assert_int_equal(counts.misses, 3);
	assert_int_equal(counts.round_trips, 0);
}

static void private_blocks_are_usable_and_publishing_them_is_no_error(void **state)
{
	struct fixture *f = *state;
	struct kvp_block_ref blocks[100] = {{0}};
	struct kvp_publish_item items[2] = {{.key = {{1, 1}}, .block = &blocks[0], .used_tokens = 16},
		{.key = {{2, 2}}, .block = &blocks[1], .used_tokens = 1}};
	uint8_t results[2] = {0};

	assert_int_equal(kvp_reserve(f->ns, 100, 0, 0, blocks), 0);
	assert_non_null(strstr(kvp_error(f->client), "not attached to a daemon at "));
	assert_int_equal(kvp_reserve(f->ns, 100, KVP_PRIVATE, 0, blocks), 100);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(blocks[i].is_private, 1);
		assert_int_equal((uintptr_t)blocks[i].data % 4096, 0);
		memset(blocks[i].data, (int)i, BLOCK_BYTES);
	}
	for (unsigned i = 0; i < 100; i++)
		for (unsigned at = 0; at < BLOCK_BYTES; at += 999)
			assert_int_equal(((uint8_t *)blocks[i].data)[at], i);
	assert_int_equal(kvp_publish(f->ns, items, 2, results), 0);
	assert_int_equal(results[0], KVP_PUB_REJECTED);
	assert_int_equal(results[1], KVP_PUB_REJECTED);
	assert_non_null(strstr(kvp_error(f->client), "a private block cannot be published"));
	assert_non_null(blocks[0].data);
	kvp_abandon(blocks, 100);
	assert_null(blocks[0].data);
	kvp_abandon(blocks, 100); /* used-up ones are passed over */
	assert_int_equal(kvp_reserve(f->ns, 1, KVP_PRIVATE, 0, blocks), 1);
	items[0].block = &blocks[0];
	assert_int_equal(kvp_publish(f->ns, items, 1, NULL), 0); /* not waited for: the block is used up */
	assert_null(blocks[0].data);
}

static void a_forged_or_released_handle_has_no_effect(void **state)
{
	struct fixture *f = *state;
	struct kvp_block_ref block, copy;
	struct kvp_view view;

	memset(&view, 0x41, sizeof(view));
	assert_int_equal(kvp_lost(&view, 1), 0);
	assert_int_equal(kvp_release(&view, 1), 0);
	assert_null(view.data);
	assert_int_equal(kvp_reserve(f->ns, 1, KVP_PRIVATE, 0, &block), 1);
	copy = block;
	view = (struct kvp_view){.data = block.data, .ns = f->ns, .opaque = {block.opaque[0]}};
	assert_int_equal(kvp_release(&view, 1), 0); /* a block is no view */
	kvp_abandon(&block, 1);
	assert_int_equal(kvp_reserve(f->ns, 1, KVP_PRIVATE, 0, &block), 1);
	kvp_abandon(&copy, 1); /* the same memory again, but that handle is old */
	memset(block.data, 7, BLOCK_BYTES);
	assert_int_equal(kvp_reserve(f->ns, 1, KVP_PRIVATE, 0, &copy), 1);
	assert_ptr_not_equal(copy.data, block.data);
	kvp_abandon(&copy, 1);
	kvp_abandon(&block, 1);
}

static void arguments_out_of_range_are_named(void **state)
{
	struct fixture *f = *state;
	struct kvp_open_opts opts = {.size = 4};
	struct kvp_desc desc;
	struct kvp_ns_opts ns_opts = {.size = sizeof(ns_opts), .name = ".hidden", .desc = &desc};
	struct kvp_client *client;
	struct kvp_block_ref block;
	char path[200];
	struct kvp_ns *ns;

	assert_int_equal(kvp_open(&opts, &client), -KVP_EINVAL);
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = 0;
	opts = (struct kvp_open_opts){.size = sizeof(opts), .socket = path};
	assert_int_equal(kvp_open(&opts, &client), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(NULL), "107"));
	kvp_desc_init(&desc, KVP_LAYOUT_HND, 16, 1, 1, 8, KVP_TYPE_F32);
	assert_int_equal(kvp_ns_open(f->client, &ns_opts, &ns), -KVP_EINVAL);
	ns_opts.name = "ok";
	desc.type_v = 77;
	assert_int_equal(kvp_ns_open(f->client, &ns_opts, &ns), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(f->client), "type_v"));
	desc.type_v = KVP_TYPE_F32;
	ns_opts.flags = KVP_NS_COPIED | KVP_NS_IN_PLACE;
	assert_int_equal(kvp_ns_open(f->client, &ns_opts, &ns), -KVP_EINVAL);
	ns_opts.flags = 0;
	ns_opts.mode = 0777;
	assert_int_equal(kvp_ns_open(f->client, &ns_opts, &ns), -KVP_EINVAL);
	assert_int_equal(kvp_ns_open(NULL, &ns_opts, &ns), -KVP_EINVAL);
	assert_int_equal(kvp_reserve(f->ns, 1, 2, 0, &block), -KVP_EINVAL);
	assert_int_equal(kvp_reserve(f->ns, 1, 0, 0, NULL), -KVP_EINVAL);
	assert_int_equal(kvp_acquire(f->ns, NULL, 1, 0, 0, NULL), -KVP_EINVAL);
	assert_int_equal(kvp_match(NULL, 0, 1, 0, NULL), -KVP_EINVAL);
	assert_int_equal(
		kvp_match(&(struct kvp_match_part){.ns = f->ns, .keys = &(struct kvp_key){{1, 1}}}, 1, 1, 4, NULL),
		-KVP_EINVAL);
}

static void in_the_child_of_a_fork_handles_are_dead(void **state)
{
	struct fixture *f = *state;
	struct kvp_block_ref block;
	struct kvp_seq *seq;
	uint32_t tokens[20] = {0};
	int status;
	pid_t pid;

	assert_int_equal(kvp_reserve(f->ns, 1, KVP_PRIVATE, 0, &block), 1);
	assert_int_equal(kvp_seq_open(f->ns, NULL, &seq), 0);
	assert_int_equal(kvp_seq_append(seq, tokens, 20), 20);
	pid = fork();
	if (pid == 0) {
		struct kvp_open_opts opts = {.size = sizeof(opts), .flags = KVP_OPEN_OFFLINE};
		struct kvp_client *own = NULL;
		struct kvp_key key = {{1, 1}};
		struct kvp_view view = {0};
		bool good = kvp_ping(f->client, kvp_deadline_ms(10)) == -KVP_EDETACHED &&
			    kvp_acquire(f->ns, &key, 1, 0, 0, &view) == -KVP_EDETACHED &&
			    kvp_seq_append(seq, tokens, 1) == -KVP_EDETACHED && !kvp_seq_row(seq, 0, KVP_K, 0, 0) &&
			    kvp_state(f->client, NULL) == KVP_DETACHED;

		kvp_abandon(&block, 1);
		kvp_seq_close(seq);
		kvp_ns_close(f->ns);
		kvp_close(f->client);
		good = good && kvp_open(&opts, &own) == 0; /* one of its own works */
		kvp_close(own);
		_exit(good ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	memset(block.data, 1, BLOCK_BYTES); /* the parent's are as they were */
	assert_int_equal(kvp_seq_append(seq, tokens, 1), 21);
	kvp_abandon(&block, 1);
	kvp_seq_close(seq);
}

static void a_null_pointer_is_called_one_and_no_wrong_size(void **state)
{
	struct fixture *f = *state;
	struct kvp_ns *ns;

	assert_int_equal(kvp_ns_open(f->client, NULL, &ns), -KVP_EINVAL);
	assert_string_equal(kvp_error(f->client), "opts: a null pointer");
	assert_int_equal(kvp_ns_info(f->ns, NULL), -KVP_EINVAL);
	assert_string_equal(kvp_error(f->client), "info: a null pointer");
	assert_int_equal(kvp_counts(f->client, NULL), -KVP_EINVAL);
	assert_string_equal(kvp_error(f->client), "counts: a null pointer");
	assert_int_equal(kvp_queue_open(f->client, NULL, NULL), -KVP_EINVAL);
	assert_string_equal(kvp_error(f->client), "queue: a null pointer");
	assert_int_equal(kvp_ns_open(f->client, &(struct kvp_ns_opts){.size = 3}, &ns), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(f->client), "opts.size: 3, this library knows"));
}

static void an_engine_comes_back_late_by_a_quarter_of_its_daemons_absence_at_most(void **state)
{
	uint64_t away = 0, n = 0, pause;

	(void)state;
	assert_int_equal(keeper_pause_ns(0), 10 * MS);
	assert_int_equal(keeper_pause_ns(UINT64_MAX), 1000 * MS);
	/* the daemon may be back just behind any try */
	for (; away < 3600 * 1000 * MS; away += pause, n++) {
		pause = keeper_pause_ns(away);
		assert_true(pause <= 10 * MS || pause <= away / 4);
		assert_in_range(pause, 10 * MS, 1000 * MS);
	}
	/* a thousand engines without one try a thousand times a second, no more */
	assert_true(n < 3600 + 50);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(opening_succeeds_without_a_daemon),
		TEST(opening_waits_no_longer_than_it_was_told),
		TEST(nothing_is_found),
		TEST(private_blocks_are_usable_and_publishing_them_is_no_error),
		TEST(a_forged_or_released_handle_has_no_effect),
		TEST(arguments_out_of_range_are_named),
		TEST(a_null_pointer_is_called_one_and_no_wrong_size),
		TEST(in_the_child_of_a_fork_handles_are_dead),
		cmocka_unit_test(an_engine_comes_back_late_by_a_quarter_of_its_daemons_absence_at_most),
	};

	return cmocka_run_group_tests_name("client detached", tests, NULL, NULL);
}
