/*
 * test_client_slabs.c - slabs come and go while an engine runs: what of them is left in it, and in the daemon
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define SLABS 4u /* the pool has */
#define SLAB_BLOCKS 16u

static int setup(void **state)
{
	if (trial_setup(state, "4M", NULL) < 0)
		return -1;
	trial_attach(*state);
	return 0;
}

/* As many blocks as the pool has room for, so that all slabs are mapped. */
static void fill(const struct trial *t, uint64_t *k)
{
	for (unsigned n = 0; n < 2 * SLABS * SLAB_BLOCKS; n++, ++*k) {
		struct kvp_key key = wire_key(*k);

		trial_put(t->ns, &key, NULL, *k, TRIAL_BLOCK); /* while a slab is on its way there may be no room */
	}
}

static uint64_t slabs_made(const struct trial *t)
{
	return atomic_load(&t->host.stats->next_number);
}

/* Slabs go and others come, until there were @n new ones. */
static void change(const struct trial *t, unsigned n, uint64_t *k)
{
	uint64_t made = slabs_made(t);

	for (unsigned rounds = 0; rounds < n && slabs_made(t) < made + n; rounds++) {
		fill(t, k);
		assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "resize", "2M"), 0);
		assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "resize", "4M"), 0);
	}
	assert_true(slabs_made(t) >= made + n);
	fill(t, k);
}

/* Its keeper unmaps them, the daemon looks ten times a second. Return: in the end there are no more than @most. */
static bool settles(const struct trial *t, unsigned most_mapped, unsigned most_descriptors)
{
	for (unsigned ms = 0; ms < 20000; ms += 10, usleep(10000))
		if (wire_n_mapped("slab-") <= most_mapped && host_n_fds(&t->host) <= most_descriptors)
			return true;
	fprintf(stderr, "%u mapped, %u descriptors\n", wire_n_mapped("slab-"), host_n_fds(&t->host));
	return false;
}

static void slabs_that_come_and_go_leave_no_mapping_and_no_descriptor(void **state)
{
	struct trial *t = *state;
	unsigned descriptors = host_n_fds(&t->host);
	struct kvp_key key;
	uint64_t k = 0;

	change(t, 32, &k);
	assert_true(settles(t, 2 * SLABS, descriptors + SLABS));
	assert_true(host_conserves(&t->host));
	key = wire_key(k); /* and all is as ever */
	assert_int_equal(trial_put(t->ns, &key, NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(trial_get(t->ns, &key, k, TRIAL_BLOCK), 1);
}

/* cudaHostRegister() and RDMA know an address, and nobody tells them that it is no more. */
static void regions_that_somebody_asked_for_stay_readable(void **state)
{
	struct trial *t = *state;
	const void *base;
	uint64_t k = 0;
	size_t len;
	unsigned n = 0;

	fill(t, &k);
	kvp_region(t->client, 0, &base, &len);
	change(t, 16, &k);
	usleep(1500000); /* looked at, and left */
	for (uint32_t i = 0; kvp_region(t->client, i, &base, &len) == 1; i++, n++)
		for (size_t at = 0; at < len; at += 4096)
			(void)*((const volatile char *)base + at);
	assert_true(n > 2 * SLABS);
}

/* In another process: a writer that punches what it may write, in whichever slab that lies. */
static void break_slabs(const struct trial *t)
{
	struct kvp_client *client;
	struct kvp_block_ref blocks[SLABS * SLAB_BLOCKS];
	struct kvp_desc desc;
	struct kvp_ns *ns;
	unsigned n = 0;

	trial_desc(&desc);
	if (trial_client(t, &client) < 0 || trial_ns(client, "m", &desc, &ns) < 0)
		_exit(1);
	/* all that there are first: the daemon looks ten times a second, and puts out who has broken one */
	while (n < SLABS * SLAB_BLOCKS - 1 && kvp_reserve(ns, 1, 0, kvp_deadline_ms(n ? 500 : 10000), &blocks[n]) == 1)
		n++;
	for (unsigned i = 0; i < n; i++)
		if (madvise(blocks[i].data, TRIAL_BLOCK, MADV_REMOVE))
			_exit(3);
	_exit(n > (SLABS - 1) * SLAB_BLOCKS ? 0 : 2); /* so in each */
}

static void what_is_held_in_a_slab_that_was_taken_away_can_be_read_until_it_is_let_go(void **state)
{
	struct trial *t = *state;
	struct kvp_key key = wire_key(1);
	struct kvp_view view;
	pid_t breaker;
	int status;
	unsigned mapped;

	assert_int_equal(trial_put(t->ns, &key, NULL, 1, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(kvp_acquire(t->ns, &key, 1, 0, kvp_deadline_ms(10000), &view), 1);
	mapped = wire_n_mapped("slab-");
	breaker = fork();
	if (!breaker)
		break_slabs(t);
	assert_int_equal(waitpid(breaker, &status, 0), breaker);
	assert_int_equal(status, 0);
	for (unsigned ms = 0; ms < 20000 && !kvp_lost(&view, 1); ms += 10)
		usleep(10000);
	assert_int_equal(kvp_lost(&view, 1), 1);
	for (uint64_t k = 2; k < 2 + SLABS * SLAB_BLOCKS; k++) { /* another one is mapped at its place */
		struct kvp_key other = wire_key(k);

		trial_put(t->ns, &other, NULL, k, TRIAL_BLOCK);
	}
	usleep(1500000); /* the keeper has looked, more than once */
	for (unsigned at = 0; at < TRIAL_BLOCK; at += 64)
		(void)*((const volatile char *)view.data + at);
	assert_int_equal(kvp_release(&view, 1), 1);
	assert_true(mapped > 0);
	assert_true(settles(t, 2 * SLABS, UINT32_MAX));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			slabs_that_come_and_go_leave_no_mapping_and_no_descriptor, setup, trial_teardown),
		cmocka_unit_test_setup_teardown(regions_that_somebody_asked_for_stay_readable, setup, trial_teardown),
		cmocka_unit_test_setup_teardown(
			what_is_held_in_a_slab_that_was_taken_away_can_be_read_until_it_is_let_go, setup,
			trial_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
