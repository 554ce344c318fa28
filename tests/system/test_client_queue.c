/*
 * test_client_queue.c - libkvpool's queue: batches to and from buffers of the engine's own
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define PARTS 5u
#define N 100u /* more than the pool holds at once: 64 blocks */

/* Children of this process open clients of their own, with threads: ThreadSanitizer is told to bear it. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "die_after_fork=0";
}

struct batch {
	struct kvp_io ios[N];
	struct iovec parts[N][PARTS];
	char *bytes;
};

static int setup(void **state)
{
	return trial_setup(state, "4M", "64M");
}

static struct kvp_queue *queue_of(struct trial *t, uint32_t n_threads)
{
	struct kvp_queue_opts opts = {.size = sizeof(opts), .n_threads = n_threads};
	struct kvp_queue *queue = NULL;

	if (!t->client)
		trial_attach(t);
	assert_int_equal(kvp_queue_open(t->client, &opts, &queue), 0);
	return queue;
}

static uint64_t length_of(uint64_t k)
{
	return TRIAL_BLOCK - 8 * (k % 100); /* a multiple of 8: see wire_fill() */
}

/* @n blocks in uneven parts; @full: with the content of blocks @first on. */
static struct batch *batch_of(uint64_t first, uint32_t n, bool full)
{
	struct batch *batch = calloc(1, sizeof(*batch));

	assert_non_null(batch);
	batch->bytes = calloc(N, TRIAL_BLOCK);
	assert_non_null(batch->bytes);
	for (uint32_t i = 0; i < n; i++) {
		char *base = batch->bytes + (size_t)i * TRIAL_BLOCK;
		uint64_t at = 0, length = full ? length_of(first + i) : TRIAL_BLOCK;

		if (full)
			wire_fill(base, length, first + i);
		for (unsigned p = 0; p < PARTS; p++) {
			uint64_t part = p == PARTS - 1 ? length - at : 1000 * p + i; /* the first may be empty */

			batch->parts[i][p] = (struct iovec){base + at, part};
			at += part;
		}
		batch->ios[i] = (struct kvp_io){.key = wire_key(first + i), .parts = batch->parts[i], .n_parts = PARTS};
	}
	return batch;
}

static void batch_free(struct batch *batch)
{
	free(batch->bytes);
	free(batch);
}

static uint32_t n_right(const struct batch *batch, uint64_t first, uint32_t n)
{
	uint32_t right = 0;

	for (uint32_t i = 0; i < n; i++)
		right += batch->ios[i].status == KVP_IO_DONE && batch->ios[i].used_bytes == length_of(first + i) &&
			 batch->ios[i].used_tokens == TRIAL_TOKENS &&
			 wire_right(batch->bytes + (size_t)i * TRIAL_BLOCK, length_of(first + i), first + i);
	return right;
}

/* Submit and wait. Return: blocks done. */
static uint32_t run(
	struct kvp_queue *queue, struct kvp_ns *ns, uint32_t op, struct kvp_io *ios, uint32_t n, uint32_t wait_ms)
{
	struct kvp_completion completion = {0};

	assert_int_equal(kvp_submit(queue, ns, op, ios, n, wait_ms ? kvp_deadline_ms(wait_ms) : 0, 77), 0);
	assert_int_equal(kvp_queue_poll(queue, &completion, 1, kvp_deadline_ms(60000)), 1);
	assert_int_equal(completion.tag, 77);
	assert_int_equal(completion.n, n);
	return completion.n_done;
}

static void blocks_come_back_byte_for_byte_from_memory_and_from_the_store(void **state)
{
	struct trial *t = *state;

	for (uint32_t n_threads = 0; n_threads <= 3; n_threads += 3) {
		struct kvp_queue *queue = queue_of(t, n_threads);
		struct batch *put = batch_of(n_threads * N, N, true), *got = batch_of(n_threads * N, N, false);

		assert_int_equal(run(queue, t->ns, KVP_OP_PUT, put->ios, N, 30000), N);
		assert_int_equal(run(queue, t->ns, KVP_OP_EXISTS, got->ios, N, 0), N);
		assert_int_equal(run(queue, t->ns, KVP_OP_GET, got->ios, N, 30000), N);
		assert_int_equal(n_right(got, n_threads * N, N), N);
		kvp_queue_close(queue);
		batch_free(put);
		batch_free(got);
	}
	assert_true(atomic_load(&t->host.stats->counters.spill_read_bytes) > 0);
}

static void one_block_that_fails_does_nothing_to_the_others(void **state)
{
	struct trial *t = *state;
	struct kvp_queue *queue = queue_of(t, 2);
	struct batch *put = batch_of(0, 8, true), *got = batch_of(0, 9, false);

	put->ios[1].used_bytes = TRIAL_BLOCK + 8; /* more than a block holds */
	put->ios[2].used_bytes = length_of(2) + 8; /* more than its parts hold */
	put->ios[3].parent = wire_key(1000); /* nobody knows it */
	assert_int_equal(run(queue, t->ns, KVP_OP_PUT, put->ios, 8, 10000), 5);
	assert_int_equal(put->ios[1].status, KVP_IO_SHORT);
	assert_int_equal(put->ios[2].status, KVP_IO_SHORT);
	assert_int_equal(put->ios[3].status, KVP_IO_REJECTED);
	got->ios[4].n_parts = PARTS - 1; /* too short for it */
	assert_int_equal(run(queue, t->ns, KVP_OP_GET, got->ios, 9, 10000), 4);
	for (unsigned i = 0; i < 9; i++)
		assert_int_equal(got->ios[i].status, i == 4				    ? KVP_IO_SHORT
						     : i == 1 || i == 2 || i == 3 || i == 8 ? KVP_IO_MISS
											    : KVP_IO_DONE);
	assert_int_equal(got->ios[4].used_bytes, length_of(4));
	assert_int_equal(n_right(got, 0, 9), 4);
	kvp_queue_close(queue);
	batch_free(put);
	batch_free(got);
}

static const struct kvp_ns_row *row_of(struct trial *t)
{
	struct kvp_ns_info info = {.size = sizeof(info)};
	const struct kvp_ns_row *row;

	assert_int_equal(kvp_ns_info(t->ns, &info), 0);
	row = host_ns_row(&t->host, info.ns_id);
	assert_non_null(row);
	return row;
}

static void a_put_of_what_is_there_keeps_the_first_bytes(void **state)
{
	struct trial *t = *state;
	struct kvp_queue *queue = queue_of(t, 1);
	struct batch *put = batch_of(0, 4, true), *other = batch_of(0, 4, true), *got = batch_of(0, 4, false);
	const _Atomic uint64_t *stored;
	uint64_t published;

	assert_int_equal(run(queue, t->ns, KVP_OP_PUT, put->ios, 4, 10000), 4);
	stored = &row_of(t)->counters.stored;
	published = atomic_load(stored);
	memset(other->bytes, 7, TRIAL_BLOCK);
	assert_int_equal(run(queue, t->ns, KVP_OP_PUT, other->ios, 4, 10000), 4);
	assert_int_equal(atomic_load(stored), published);
	assert_int_equal(run(queue, t->ns, KVP_OP_GET, got->ios, 4, 10000), 4);
	assert_int_equal(n_right(got, 0, 4), 4);
	kvp_queue_close(queue);
	batch_free(put);
	batch_free(other);
	batch_free(got);
}

static void parents_of_one_batch_go_before_their_children(void **state)
{
	struct trial *t = *state;
	struct kvp_queue *queue = queue_of(t, 4);
	struct batch *put = batch_of(0, 60, true);

	for (unsigned i = 1; i < 60; i++)
		put->ios[i].parent = put->ios[i - 1].key;
	assert_int_equal(run(queue, t->ns, KVP_OP_PUT, put->ios, 60, 10000), 60);
	kvp_queue_close(queue);
	batch_free(put);
}

static bool readable(const struct kvp_queue *queue)
{
	struct pollfd fd = {.fd = kvp_queue_fd(queue), .events = POLLIN};

	return poll(&fd, 1, 0) == 1;
}

static void the_descriptor_is_readable_while_completions_wait(void **state)
{
	struct trial *t = *state;
	struct kvp_queue *queue = queue_of(t, 1);
	struct batch *got = batch_of(0, 2, false);
	struct kvp_completion completions[2];
	struct pollfd fd = {.fd = kvp_queue_fd(queue), .events = POLLIN};

	assert_false(readable(queue));
	assert_int_equal(kvp_queue_poll(queue, completions, 2, 0), 0);
	assert_int_equal(kvp_submit(queue, t->ns, KVP_OP_GET, &got->ios[0], 1, 0, 1), 0);
	assert_int_equal(kvp_submit(queue, t->ns, KVP_OP_GET, &got->ios[1], 1, 0, 2), 0);
	assert_int_equal(poll(&fd, 1, 10000), 1);
	assert_int_equal(kvp_queue_poll(queue, completions, 1, kvp_deadline_ms(10000)), 1);
	assert_int_equal(poll(&fd, 1, 10000), 1); /* the other one, sooner or later */
	assert_int_equal(kvp_queue_poll(queue, completions + 1, 1, kvp_deadline_ms(10000)), 1);
	assert_false(readable(queue));
	assert_int_equal(completions[0].tag + completions[1].tag, 3);
	assert_int_equal(completions[0].n_done + completions[1].n_done, 0);
	assert_int_equal(got->ios[0].status, KVP_IO_MISS);
	kvp_queue_close(queue);
	batch_free(got);
}

static void a_closed_queue_touches_nothing_any_more_and_says_so(void **state)
{
	struct trial *t = *state;
	struct kvp_queue *queue = queue_of(t, 0);
	struct batch *put = batch_of(0, 2, true), *got = batch_of(0, 2, false);

	assert_int_equal(kvp_submit(queue, t->ns, KVP_OP_PUT, put->ios, 2, kvp_deadline_ms(10000), 1), 0);
	assert_int_equal(kvp_submit(queue, t->ns, KVP_OP_GET, got->ios, 2, kvp_deadline_ms(10000), 2), 0);
	kvp_queue_close(queue);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(put->ios[i].status, KVP_IO_REJECTED);
		assert_int_equal(got->ios[i].status, KVP_IO_MISS);
	}
	batch_free(put);
	batch_free(got);
}

static void without_a_daemon_memory_is_read_and_nothing_is_stored_by_the_deadline(void **state)
{
	struct trial *t = *state;
	struct kvp_queue *queue = queue_of(t, 1);
	struct batch *put = batch_of(0, 8, true), *got = batch_of(0, 8, false), *more = batch_of(50, 8, true);

	assert_int_equal(run(queue, t->ns, KVP_OP_PUT, put->ios, 8, 10000), 8);
	assert_int_equal(run(queue, t->ns, KVP_OP_GET, got->ios, 8, 10000), 8); /* maps the slab */
	host_kill(&t->host);
	assert_int_equal(run(queue, t->ns, KVP_OP_GET, got->ios, 8, 300), 8);
	assert_int_equal(n_right(got, 0, 8), 8);
	run(queue, t->ns, KVP_OP_PUT, more->ios, 8, 300); /* what was granted before may still be filled, no more */
	for (unsigned i = 0; i < 8; i++)
		assert_true(more->ios[i].status == KVP_IO_REJECTED || more->ios[i].status == KVP_IO_DONE);
	trial_start(t);
	for (uint64_t until = kvp_deadline_ms(10000);
		kvp_state(t->client, NULL) != KVP_ATTACHED && kvp_deadline_ms(0) < until;)
		wire_sleep_ms(10);
	assert_int_equal(run(queue, t->ns, KVP_OP_PUT, more->ios, 8, 10000), 8);
	kvp_queue_close(queue);
	batch_free(put);
	batch_free(got);
	batch_free(more);
}

static void a_forks_queue_is_dead_and_its_parents_goes_on(void **state)
{
	struct trial *t = *state;
	struct kvp_queue *queue = queue_of(t, 2);
	struct batch *put = batch_of(0, 4, true);
	struct kvp_completion completion;
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		bool dead = kvp_submit(queue, t->ns, KVP_OP_PUT, put->ios, 4, 0, 1) == -KVP_EDETACHED &&
			    kvp_queue_poll(queue, &completion, 1, 0) == -KVP_EDETACHED;

		kvp_queue_close(queue);
		_exit(dead ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(run(queue, t->ns, KVP_OP_PUT, put->ios, 4, 10000), 4);
	kvp_queue_close(queue);
	batch_free(put);
}

static void misuse_is_refused_by_name(void **state)
{
	struct trial *t = *state;
	struct kvp_queue_opts opts = {.size = sizeof(opts), .n_threads = KVP_QUEUE_THREADS_MAX + 1};
	struct kvp_queue *queue = queue_of(t, 0), *other;
	struct batch *got = batch_of(0, 1, false);

	assert_int_equal(kvp_queue_open(t->client, &opts, &other), -KVP_EINVAL);
	assert_int_equal(kvp_submit(queue, t->ns, 9, got->ios, 1, 0, 0), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(t->client), "op"));
	assert_int_equal(kvp_submit(queue, t->ns, KVP_OP_GET, got->ios, KVP_SUBMIT_MAX + 1, 0, 0), -KVP_EINVAL);
	assert_int_equal(kvp_submit(queue, t->ns, KVP_OP_GET, NULL, 1, 0, 0), -KVP_EINVAL);
	got->parts[0][1].iov_base = NULL;
	assert_int_equal(kvp_submit(queue, t->ns, KVP_OP_GET, got->ios, 1, 0, 0), -KVP_EINVAL);
	assert_non_null(strstr(kvp_error(t->client), "ios[0].parts[1]"));
	got->ios[0].key = (struct kvp_key){{0, 0}};
	assert_int_equal(kvp_submit(queue, t->ns, KVP_OP_EXISTS, got->ios, 1, 0, 0), -KVP_EINVAL);
	kvp_queue_close(queue);
	batch_free(got);
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, trial_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(blocks_come_back_byte_for_byte_from_memory_and_from_the_store),
		WITH_DAEMON(one_block_that_fails_does_nothing_to_the_others),
		WITH_DAEMON(a_put_of_what_is_there_keeps_the_first_bytes),
		WITH_DAEMON(parents_of_one_batch_go_before_their_children),
		WITH_DAEMON(the_descriptor_is_readable_while_completions_wait),
		WITH_DAEMON(a_closed_queue_touches_nothing_any_more_and_says_so),
		WITH_DAEMON(without_a_daemon_memory_is_read_and_nothing_is_stored_by_the_deadline),
		WITH_DAEMON(a_forks_queue_is_dead_and_its_parents_goes_on),
		WITH_DAEMON(misuse_is_refused_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
