/*
 * test_client_layers.c - blocks whose layers are used while the rest of them is still being read
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvpool_spill.h"
#include "trial.h"

#define LAYERS 8u
#define LAYER 262144u /* bytes: K and V of 8 heads, 64 tokens, 128 of f16 */
#define BYTES (LAYERS * LAYER)
#define N 12u /* blocks, 24 MiB; the pool has 4 of them */

static int given(void **state, uint32_t flags)
{
	struct trial *t = malloc(sizeof(*t));
	struct kvp_desc desc;
	struct kvp_ns_opts opts = {
		.size = sizeof(opts), .name = "l", .owner_uid = KVP_UID_SELF, .desc = &desc, .flags = flags};

	assert_non_null(t);
	trial_given(t, geteuid(), "8M", "96M");
	for (unsigned i = 0; t->host.argv[i]; i++)
		if (!strcmp(t->host.argv[i], "1M"))
			t->host.argv[i] = "4M"; /* of the slab */
	trial_start(t);
	assert_int_equal(trial_client(t, &t->client), 0);
	kvp_desc_init(&desc, KVP_LAYOUT_HND, 64, LAYERS, 8, 128, KVP_TYPE_F16);
	assert_int_equal(kvp_ns_open(t->client, &opts, &t->ns), 0);
	*state = t;
	for (uint64_t k = 0; k < N; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(trial_put(t->ns, &key, NULL, k, BYTES), KVP_PUB_STORED);
	}
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	return 0;
}

static int setup_layers(void **state)
{
	return given(state, KVP_NS_LAYERS);
}

static int setup_whole(void **state)
{
	return given(state, 0);
}

static bool layer_right(const struct kvp_view *view, uint32_t layer, uint64_t k)
{
	static char wanted[BYTES];
	static uint64_t of = UINT64_MAX;

	if (of != k)
		wire_fill(wanted, BYTES, k);
	of = k;
	return !memcmp((const char *)view->data + layer * LAYER, wanted + layer * LAYER, LAYER);
}

static void layers_of_spilled_blocks_are_exact_as_they_come(void **state)
{
	struct trial *t = *state;
	unsigned n_partly = 0;

	for (unsigned round = 0; round < 4; round++)
		for (uint64_t k = 0; k < N; k++) {
			struct kvp_key key = wire_key(k);
			struct kvp_view view;

			assert_int_equal(
				kvp_acquire(t->ns, &key, 1, KVP_ACQUIRE_LAYERS, kvp_deadline_ms(10000), &view), 1);
			assert_true(view.layers_ready >= 1 && view.layers_ready <= LAYERS);
			n_partly += view.layers_ready < LAYERS;
			for (uint32_t layer = 0; layer < LAYERS; layer++) {
				assert_int_equal(kvp_view_wait_layer(&view, layer, kvp_deadline_ms(10000)), 0);
				assert_true(view.layers_ready > layer);
				assert_true(layer_right(&view, layer, k));
			}
			assert_int_equal(kvp_view_wait_layer(&view, LAYERS, 0), -KVP_EINVAL);
			assert_int_equal(kvp_lost(&view, 1), 0);
			assert_int_equal(kvp_release(&view, 1), 0);
		}
	printf("%u of %u blocks were given before all of them was there\n", n_partly, 4 * N);
}

static void a_run_of_blocks_is_given_as_it_comes(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[3];
	struct kvp_view views[3];

	for (uint64_t first = 0; first + 3 <= N; first += 3) {
		for (unsigned i = 0; i < 3; i++)
			keys[i] = wire_key(first + i);
		assert_int_equal(kvp_acquire(t->ns, keys, 3, KVP_ACQUIRE_LAYERS, kvp_deadline_ms(10000), views), 3);
		for (uint32_t layer = 0; layer < LAYERS; layer++)
			for (unsigned i = 0; i < 3; i++) {
				assert_int_equal(kvp_view_wait_layer(&views[i], layer, kvp_deadline_ms(10000)), 0);
				assert_true(layer_right(&views[i], layer, first + i));
			}
		assert_int_equal(kvp_release(views, 3), 0);
	}
}

static void without_being_asked_for_no_block_is_given_in_part(void **state)
{
	struct trial *t = *state;

	for (uint64_t k = 0; k < N; k++) {
		struct kvp_key key = wire_key(k);
		struct kvp_view view;

		assert_int_equal(kvp_acquire(t->ns, &key, 1, 0, kvp_deadline_ms(10000), &view), 1);
		assert_int_equal(view.layers_ready, LAYERS);
		for (uint32_t layer = 0; layer < LAYERS; layer++)
			assert_true(layer_right(&view, layer, k));
		assert_int_equal(kvp_release(&view, 1), 0);
	}
}

static void a_namespace_not_made_for_it_gives_whole_blocks(void **state)
{
	struct trial *t = *state;

	for (uint64_t k = 0; k < N; k++) {
		struct kvp_key key = wire_key(k);
		struct kvp_view view;

		assert_int_equal(kvp_acquire(t->ns, &key, 1, KVP_ACQUIRE_LAYERS, kvp_deadline_ms(10000), &view), 1);
		assert_int_equal(view.layers_ready, LAYERS);
		assert_true(layer_right(&view, LAYERS - 1, k));
		assert_int_equal(kvp_view_wait_layer(&view, LAYERS - 1, 0), 0);
		assert_int_equal(kvp_release(&view, 1), 0);
	}
}

/* One bit of the last layer of block @k, wherever it lies. */
static void damage_last_layer(const struct trial *t, uint64_t k)
{
	_Alignas(8) uint8_t page[SPILL_PAGE];
	const struct spill_disk_record *record = (const void *)page;
	struct kvp_key key = wire_key(k);
	char path[160];
	unsigned n = 0;
	int fd;

	snprintf(path, sizeof(path), "%s/" SPILL_STORE_NAME, t->spill);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	for (off_t at = SPILL_SUPER_AREA; pread(fd, page, sizeof(page), at) == (ssize_t)sizeof(page);
		at += SPILL_PAGE) {
		off_t off = at + SPILL_PAGE + BYTES - 100;
		uint8_t byte;

		if (le64toh(record->magic) != SPILL_RECORD_MAGIC || le64toh(record->key[0]) != key.w[0])
			continue;
		assert_int_equal(pread(fd, &byte, 1, off), 1);
		byte ^= 2;
		assert_int_equal(pwrite(fd, &byte, 1, off), 1);
		n++;
	}
	assert_true(n > 0);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

static void of_a_damaged_block_the_right_layers_are_all_that_is_ever_given_then_it_is_a_miss(void **state)
{
	struct trial *t = *state;
	unsigned n_partly = 0;

	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict"), 0);
	for (uint64_t k = 0; k < N; k++)
		damage_last_layer(t, k);
	for (uint64_t k = 0; k < N; k++) {
		struct kvp_key key = wire_key(k);
		struct kvp_view view;

		if (kvp_acquire(t->ns, &key, 1, KVP_ACQUIRE_LAYERS, kvp_deadline_ms(10000), &view) == 1) {
			n_partly++;
			assert_true(view.layers_ready < LAYERS);
			for (uint32_t layer = 0; layer < view.layers_ready; layer++)
				assert_true(layer_right(&view, layer, k));
			assert_int_equal(kvp_view_wait_layer(&view, LAYERS - 1, kvp_deadline_ms(10000)), -KVP_ESTALE);
			assert_true(view.layers_ready < LAYERS);
			for (uint32_t layer = 0; layer < view.layers_ready; layer++)
				assert_true(layer_right(&view, layer, k));
			assert_int_equal(kvp_release(&view, 1), 1);
		}
		assert_int_equal(kvp_acquire(t->ns, &key, 1, KVP_ACQUIRE_LAYERS, kvp_deadline_ms(10000), &view), 0);
		assert_int_equal(view.hit, KVP_MISS);
	}
	printf("%u of %u blocks were given in part\n", n_partly, N);
}

static void a_daemon_that_stands_still_makes_a_wait_end_by_its_deadline(void **state)
{
	struct trial *t = *state;

	for (uint64_t k = 0; k < N; k++) {
		struct kvp_key key = wire_key(k);
		struct kvp_view view;
		int r;

		assert_int_equal(kvp_acquire(t->ns, &key, 1, KVP_ACQUIRE_LAYERS, kvp_deadline_ms(10000), &view), 1);
		assert_int_equal(kill(t->host.pid, SIGSTOP), 0);
		r = kvp_view_wait_layer(&view, LAYERS - 1, kvp_deadline_ms(30));
		assert_true(r == 0 || r == -KVP_ETIMEDOUT);
		for (uint32_t layer = 0; layer < view.layers_ready; layer++)
			assert_true(layer_right(&view, layer, k));
		assert_int_equal(kill(t->host.pid, SIGCONT), 0);
		assert_int_equal(kvp_view_wait_layer(&view, LAYERS - 1, kvp_deadline_ms(10000)), 0);
		assert_true(layer_right(&view, LAYERS - 1, k));
		assert_int_equal(kvp_release(&view, 1), 0);
	}
}

static bool attached(void *arg)
{
	return kvp_state(arg, NULL) == KVP_ATTACHED && kvp_ping(arg, kvp_deadline_ms(100)) == 0;
}

static void a_daemon_killed_in_the_middle_leaves_what_was_there_and_the_rest_is_read_again(void **state)
{
	struct trial *t = *state;
	unsigned n_void = 0;

	for (uint64_t k = 0; k < 6; k++) {
		struct kvp_key key = wire_key(k);
		struct kvp_view view, again;
		int64_t got = 0;
		int r;

		assert_int_equal(kvp_acquire(t->ns, &key, 1, KVP_ACQUIRE_LAYERS, kvp_deadline_ms(10000), &view), 1);
		host_kill(&t->host);
		for (uint32_t layer = 0; layer < view.layers_ready; layer++)
			assert_true(layer_right(&view, layer, k));
		r = kvp_view_wait_layer(&view, LAYERS - 1, kvp_deadline_ms(50));
		assert_true(r == 0 || r == -KVP_ETIMEDOUT);
		trial_start(t);
		assert_true(wire_until(
			attached, t->client, 20000)); /* else the next block is a miss: nothing is read back */
		r = kvp_view_wait_layer(&view, LAYERS - 1, kvp_deadline_ms(2000));
		assert_true(r == 0 || r == -KVP_ESTALE); /* all was there when it died, or it never comes */
		n_void += r != 0;
		for (uint32_t layer = 0; layer < view.layers_ready; layer++)
			assert_true(layer_right(&view, layer, k)); /* held: nobody got the slot */
		for (unsigned i = 0; i < 200 && got == 0; i++) {
			got = kvp_acquire(t->ns, &key, 1, KVP_ACQUIRE_LAYERS, kvp_deadline_ms(10000), &again);
			if (!got)
				usleep(20000);
		}
		assert_int_equal(got, 1);
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			assert_int_equal(kvp_view_wait_layer(&again, layer, kvp_deadline_ms(10000)), 0);
			assert_true(layer_right(&again, layer, k));
		}
		assert_int_equal(kvp_release(&view, 1), r != 0);
		assert_int_equal(kvp_release(&again, 1), 0);
	}
	printf("%u of 6 were void afterwards\n", n_void);
}

#define OF(how, test) \
	{ \
#test, test, how, trial_teardown, NULL \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OF(setup_layers, layers_of_spilled_blocks_are_exact_as_they_come),
		OF(setup_layers, a_run_of_blocks_is_given_as_it_comes),
		OF(setup_layers, without_being_asked_for_no_block_is_given_in_part),
		OF(setup_whole, a_namespace_not_made_for_it_gives_whole_blocks),
		OF(setup_layers, of_a_damaged_block_the_right_layers_are_all_that_is_ever_given_then_it_is_a_miss),
		OF(setup_layers, a_daemon_that_stands_still_makes_a_wait_end_by_its_deadline),
		OF(setup_layers, a_daemon_killed_in_the_middle_leaves_what_was_there_and_the_rest_is_read_again),
	};

	return cmocka_run_group_tests_name("client_layers", tests, NULL, NULL);
}
