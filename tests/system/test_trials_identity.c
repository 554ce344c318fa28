/*
 * test_trials_identity.c - trials: a block that is not the one asked for counts as a hit
 *
 * B02, B03, B05, B06, B78, through libkvpool and over restarts without the memory.
 *
 * kvpool-test: timeout=120
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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define N 4
#define PAGE 4096

static int setup(void **state)
{
	trial_setup(state, "4M", "64M");
	trial_attach(*state);
	return 0;
}

static void plain(struct kvp_desc *desc)
{
	kvp_desc_init(desc, KVP_LAYOUT_HND, 16, 2, 2, 64, KVP_TYPE_F16);
	desc->model[0] = 1;
}

/* Keys of the full blocks of tokens 0.. in this namespace. */
static void keys_of(struct kvp_ns *ns, struct kvp_key *keys, unsigned n)
{
	struct kvp_ns_info info = {.size = sizeof(info)};
	uint32_t tokens[1024];

	for (uint32_t i = 0; i < 1024; i++)
		tokens[i] = i;
	assert_int_equal(kvp_ns_info(ns, &info), 0);
	assert_int_equal(kvp_hash_chain(ns, NULL, tokens, n * info.block_tokens, NULL, 0, keys), n);
}

static void put_chain(struct kvp_ns *ns, const struct kvp_key *keys, unsigned n, uint64_t k, uint64_t bytes)
{
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(trial_put(ns, &keys[i], i ? &keys[i - 1] : NULL, k + i, bytes), KVP_PUB_STORED);
}

static void reads_chain(struct kvp_ns *ns, const struct kvp_key *keys, unsigned n, uint64_t k, uint64_t bytes)
{
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(trial_get(ns, &keys[i], k + i, bytes), 1);
}

/* ---- B02 ---- */

/* The geometries a run of the same model could have instead.  Return: false past the last one. */
static bool other_geometry(unsigned i, struct kvp_desc *desc)
{
	static const struct {
		uint32_t layout, tokens, layers, heads, dim, type;
	} others[] = {
		{KVP_LAYOUT_HND, 16, 2, 2, 64, KVP_TYPE_BF16},
		{KVP_LAYOUT_HND, 16, 2, 2, 64, KVP_TYPE_F32},
		{KVP_LAYOUT_HND, 16, 2, 4, 64, KVP_TYPE_F16},
		{KVP_LAYOUT_HND, 16, 2, 4, 32, KVP_TYPE_F16},
		{KVP_LAYOUT_HND, 32, 2, 2, 64, KVP_TYPE_F16},
		{KVP_LAYOUT_HND, 16, 3, 2, 64, KVP_TYPE_F16},
		{KVP_LAYOUT_NHD, 16, 2, 2, 64, KVP_TYPE_F16},
		{KVP_LAYOUT_TILED, 16, 2, 2, 64, KVP_TYPE_F16},
		{KVP_LAYOUT_HND, 16, 2, 2, 64, KVP_TYPE_FP8},
		{KVP_LAYOUT_TILED, 16, 2, 2, 64, KVP_TYPE_I8},
		{KVP_LAYOUT_TILED, 16, 2, 2, 64, KVP_TYPE_I4},
	};

	if (i == sizeof(others) / sizeof(others[0]))
		return false;
	kvp_desc_init(desc, others[i].layout, others[i].tokens, others[i].layers, others[i].heads, others[i].dim,
		others[i].type);
	desc->model[0] = 1;
	return true;
}

static void nobody_else_finds_any(struct kvp_client *client, const struct kvp_key *theirs)
{
	struct kvp_desc desc;

	for (unsigned i = 0; other_geometry(i, &desc); i++) {
		struct kvp_key keys[N];
		struct kvp_view views[N];
		struct kvp_ns *ns;

		assert_int_equal(trial_ns(client, "geometry", &desc, &ns), 0);
		keys_of(ns, keys, N);
		assert_int_equal(kvp_acquire(ns, keys, N, 0, kvp_deadline_ms(1000), views), 0);
		assert_int_equal(kvp_acquire(ns, theirs, N, 0, kvp_deadline_ms(1000), views), 0);
		assert_int_equal(views[0].hit, KVP_MISS);
		kvp_ns_close(ns);
	}
}

static void another_geometry_finds_nothing_in_memory_nor_on_disk(void **state)
{
	struct trial *t = *state;
	struct kvp_desc desc, unknown;
	struct kvp_key keys[N];
	struct kvp_ns *ns;
	uint64_t bytes;

	plain(&desc);
	assert_int_equal(kvp_desc_check(&desc, NULL, &bytes), 0);
	assert_int_equal(trial_ns(t->client, "geometry", &desc, &ns), 0);
	keys_of(ns, keys, N);
	put_chain(ns, keys, N, 1, bytes);
	nobody_else_finds_any(t->client, keys);
	reads_chain(ns, keys, N, 1, bytes);
	kvp_ns_close(ns);
	trial_reboot(t);
	nobody_else_finds_any(t->client, keys);
	assert_int_equal(trial_ns(t->client, "geometry", &desc, &ns), 0);
	reads_chain(ns, keys, N, 1, bytes);
	kvp_ns_close(ns);
	unknown = desc;
	for (uint32_t type = KVP_TYPE_FP8 + 1; type < 40; type++) { /* named in no header yet */
		unknown.type_k = unknown.type_v = type;
		assert_int_equal(trial_ns(t->client, "geometry", &unknown, &ns), -KVP_EINVAL);
	}
}

/* ---- B03 ---- */

static void weights_changed_under_the_same_name_find_nothing_of_the_old_ones(void **state)
{
	struct trial *t = *state;
	struct kvp_desc old, new;
	struct kvp_key keys[N], new_keys[N];
	struct kvp_ns *old_ns, *new_ns;
	uint64_t bytes;

	plain(&old);
	new = old;
	new.model[0] = 2;
	assert_int_equal(kvp_desc_check(&old, NULL, &bytes), 0);
	assert_int_equal(trial_ns(t->client, "weights", &old, &old_ns), 0);
	keys_of(old_ns, keys, N);
	put_chain(old_ns, keys, N, 1, bytes);
	for (unsigned restarted = 0; restarted < 2; restarted++) {
		assert_int_equal(trial_ns(t->client, "weights", &new, &new_ns), 0);
		keys_of(new_ns, new_keys, N);
		if (!restarted) {
			for (unsigned i = 0; i < N; i++) {
				assert_int_equal(trial_get(new_ns, &new_keys[i], 0, bytes), 0);
				assert_int_equal(trial_get(new_ns, &keys[i], 0, bytes), 0);
			}
			put_chain(new_ns, new_keys, N, 100, bytes);
		}
		reads_chain(old_ns, keys, N, 1, bytes);
		reads_chain(new_ns, new_keys, N, 100, bytes);
		kvp_ns_close(new_ns);
		kvp_ns_close(old_ns);
		if (!restarted) {
			trial_reboot(t);
			assert_int_equal(trial_ns(t->client, "weights", &old, &old_ns), 0);
		}
	}
}

static void memory_of_the_old_weights_goes_to_the_new_ones(void **state)
{
	struct trial *t = *state;
	struct kvp_desc old, new;
	struct kvp_block_ref blocks[56];
	struct kvp_ns *old_ns, *new_ns;

	trial_desc(&old);
	old.model[0] = 1;
	new = old;
	new.model[0] = 2;
	assert_int_equal(trial_ns(t->client, "weights", &old, &old_ns), 0);
	for (uint64_t k = 0; k < 64; k++) { /* all of the pool */
		struct kvp_key key = wire_key(k);

		assert_int_equal(trial_put(old_ns, &key, NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
	kvp_ns_close(old_ns);
	assert_int_equal(trial_ns(t->client, "weights", &new, &new_ns), 0);
	memset(blocks, 0, sizeof(blocks));
	assert_true(kvp_reserve(new_ns, 48, 0, kvp_deadline_ms(10000), blocks) >= 32);
	kvp_abandon(blocks, 48);
	kvp_ns_close(new_ns);
}

/* ---- B05 ---- */

static const char *const names[] = {
	"a/b", "a:b", "a*b", "a?b", "a_b", "a b", "a\\b", "a\tb", "A/B", "a/b/", "../a", "a"};
#define N_NAMES (sizeof(names) / sizeof(names[0]))

static void names_that_differ_in_one_character_only_have_blocks_of_their_own(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[N_NAMES];

	for (unsigned i = 0; i < N_NAMES; i++) {
		assert_int_equal(kvp_hash_bytes(t->ns, names[i], (uint32_t)strlen(names[i]), &keys[i]), 0);
		assert_int_equal(trial_put(t->ns, &keys[i], NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
	}
	trial_reboot(t);
	for (unsigned i = 0; i < N_NAMES; i++) {
		assert_int_equal(kvp_hash_bytes(t->ns, names[i], (uint32_t)strlen(names[i]), &keys[i]), 0);
		assert_int_equal(trial_get(t->ns, &keys[i], i, TRIAL_BLOCK), 1);
	}
}

/* Where the bytes of block @k lie in the store. */
static off_t place_of(int fd, uint64_t k)
{
	static char want[PAGE], page[PAGE];
	off_t found = -1;

	wire_fill(want, PAGE, k);
	for (off_t off = 0; pread(fd, page, PAGE, off) == PAGE; off += PAGE)
		if (!memcmp(page, want, PAGE))
			found = off;
	assert_true(found > 0);
	return found;
}

/* Swap what lies at two places: from @before bytes ahead of the data on. */
static void swap_records(const struct trial *t, uint64_t k, uint64_t l, off_t before)
{
	static char a[TRIAL_BLOCK + PAGE], b[TRIAL_BLOCK + PAGE];
	size_t n = TRIAL_BLOCK + (size_t)before;
	char path[128];
	off_t at_k, at_l;
	int fd;

	snprintf(path, sizeof(path), "%s/kvpool.store", t->spill);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	at_k = place_of(fd, k) - before;
	at_l = place_of(fd, l) - before;
	assert_int_equal(pread(fd, a, n, at_k), n);
	assert_int_equal(pread(fd, b, n, at_l), n);
	assert_int_equal(pwrite(fd, a, n, at_l), n);
	assert_int_equal(pwrite(fd, b, n, at_k), n);
	close(fd);
}

static bool four_are_damaged(void *arg)
{
	const struct trial *t = arg;

	return atomic_load(&t->host.stats->counters.spill_damaged) == 4;
}

static void swapped_records_are_both_misses(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[8];

	for (uint64_t k = 0; k < 8; k++) {
		keys[k] = wire_key(k);
		assert_int_equal(trial_put(t->ns, &keys[k], NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	trial_detach(t);
	assert_int_equal(host_stop(&t->host), 0);
	trial_memory_gone(t);
	swap_records(t, 1, 2, 0); /* the data only */
	swap_records(t, 6, 7, PAGE); /* with their headers, the last ones: a header out of place ends its segment */
	trial_start(t);
	trial_attach(t);
	for (uint64_t k = 0; k < 8; k++) {
		bool swapped = k == 1 || k == 2 || k >= 6;

		assert_int_equal(trial_get(t->ns, &keys[k], k, TRIAL_BLOCK), swapped ? 0 : 1);
	}
	assert_true(wire_until(four_are_damaged, t, 5000));
}

/* ---- B06 ---- */

static void a_block_belongs_to_all_that_came_before_it(void **state)
{
	struct trial *t = *state;
	static const uint32_t pasts[3][3] = {{1, 2, 3}, {4, 5, 3}, {4, 2, 3}}; /* ABC, DEC, DBC */
	struct kvp_key keys[3][3];
	struct kvp_view views[3];

	for (unsigned i = 0; i < 3; i++) {
		uint32_t tokens[3 * TRIAL_TOKENS];

		for (unsigned j = 0; j < 3 * TRIAL_TOKENS; j++)
			tokens[j] = pasts[i][j / TRIAL_TOKENS];
		assert_int_equal(kvp_hash_chain(t->ns, NULL, tokens, 3 * TRIAL_TOKENS, NULL, 0, keys[i]), 3);
	}
	put_chain(t->ns, keys[0], 3, 10, TRIAL_BLOCK);
	put_chain(t->ns, keys[1], 3, 20, TRIAL_BLOCK);
	for (unsigned rebooted = 0; rebooted < 2; rebooted++) {
		reads_chain(t->ns, keys[0], 3, 10, TRIAL_BLOCK);
		reads_chain(t->ns, keys[1], 3, 20, TRIAL_BLOCK);
		assert_int_equal(kvp_acquire(t->ns, keys[2], 3, 0, kvp_deadline_ms(1000), views), 1);
		kvp_release(views, 3);
		if (!rebooted)
			trial_reboot(t);
	}
}

/* ---- B78 ---- */

/* Another process, in another place of the world: does it find all? */
static int all_are_found_elsewhere(const struct trial *t)
{
	struct kvp_client *client;
	struct kvp_desc desc;
	struct kvp_key keys[N];
	struct kvp_ns *ns;
	int n = 0;

	setenv("TZ", "Pacific/Chatham", 1);
	setenv("LC_ALL", "tr_TR.UTF-8", 1);
	setenv("PYTHONHASHSEED", "17", 1);
	trial_desc(&desc);
	if (trial_client(t, &client) < 0 || trial_ns(client, "m", &desc, &ns) < 0)
		return -1;
	keys_of(ns, keys, N);
	for (unsigned i = 0; i < N; i++)
		n += trial_get(ns, &keys[i], i, TRIAL_BLOCK) == 1;
	return n;
}

static void another_process_computes_the_same_keys_after_a_restart_too(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[N];

	keys_of(t->ns, keys, N);
	put_chain(t->ns, keys, N, 0, TRIAL_BLOCK);
	for (unsigned rebooted = 0; rebooted < 2; rebooted++) {
		int status;
		pid_t pid = fork();

		if (pid == 0)
			_exit(all_are_found_elsewhere(t));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), N);
		if (!rebooted)
			trial_reboot(t);
	}
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, trial_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(another_geometry_finds_nothing_in_memory_nor_on_disk),
		WITH_DAEMON(weights_changed_under_the_same_name_find_nothing_of_the_old_ones),
		WITH_DAEMON(memory_of_the_old_weights_goes_to_the_new_ones),
		WITH_DAEMON(names_that_differ_in_one_character_only_have_blocks_of_their_own),
		WITH_DAEMON(swapped_records_are_both_misses),
		WITH_DAEMON(a_block_belongs_to_all_that_came_before_it),
		WITH_DAEMON(another_process_computes_the_same_keys_after_a_restart_too),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
