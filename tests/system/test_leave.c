/*
 * test_leave.c - a client that has closed a namespace is in it no more, and whoever is in it notices nothing
 *
 * kvpool-test: timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define MANY 200u /* namespaces; one uid may have 64 */

static int leave_id(struct wire *w, uint64_t ns_id)
{
	struct kvp_wire_batch batch = {.ns_id = ns_id};

	return wire_call(w, KVP_MSG_LEAVE, &batch, sizeof(batch), NULL, 0);
}

static int leave(const struct wire_ns *ns)
{
	return leave_id(ns->w, ns->id);
}

/* As the protocol wants it: unmapped first. */
static int unmap_and_leave(struct wire_ns *ns)
{
	struct wire *w = ns->w;
	uint64_t id = ns->id;

	wire_leave(ns);
	return leave_id(w, id);
}

static int usage(const struct wire_ns *ns)
{
	uint64_t ask[2] = {ns->id};
	struct kvp_wire_usage usage;

	return wire_call(ns->w, KVP_MSG_USAGE, ask, sizeof(ask), &usage, sizeof(usage));
}

static int setup(void **state)
{
	return trial_setup(state, "16M", NULL);
}

static int setup_attached(void **state)
{
	setup(state);
	trial_attach(*state);
	return 0;
}

static uint64_t n_left(const struct trial *t)
{
	return atomic_load(&t->host.stats->counters.namespaces_left);
}

/* One that is joined, not one that waits to be. */
static struct kvp_ns *opened(struct kvp_client *client, unsigned i, struct kvp_ns_info *info)
{
	struct kvp_desc desc;
	struct kvp_ns *ns;
	char name[16];

	trial_desc(&desc);
	snprintf(name, sizeof(name), "n%u", i);
	assert_int_equal(trial_ns(client, name, &desc, &ns), 0);
	*info = (struct kvp_ns_info){.size = sizeof(*info)};
	assert_int_equal(kvp_ns_info(ns, info), 0);
	return ns;
}

static void a_process_goes_through_any_number_of_namespaces(void **state)
{
	struct trial *t = *state;
	struct kvp_ns_info info;

	for (unsigned i = 0; i < MANY; i++) {
		struct kvp_key key = wire_key(i);
		struct kvp_ns *ns = opened(t->client, i, &info);

		assert_int_not_equal(info.ns_id, 0);
		assert_int_equal(trial_put(ns, &key, NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
		for (unsigned look = 0; look <= i % 3; look++)
			assert_int_equal(trial_get(ns, &key, i, TRIAL_BLOCK), 1);
		kvp_ns_close(ns);
		/* what it found there is of that namespace, also where others had its place in the tables before */
		assert_int_equal(atomic_load(&host_ns_row(&t->host, info.ns_id)->counters.hits_ram), i % 3 + 1);
		assert_int_equal(atomic_load(&host_ns_row(&t->host, info.ns_id)->counters.granted), 0);
	}
	assert_int_equal(n_left(t), MANY);
	assert_true(wire_n_mapped("-ns-") <= 2);
	assert_true(wire_n_mapped("-slab-") <= 4);
	assert_int_equal(host_alive(&t->host), true);
}

static void what_was_closed_can_be_opened_again_with_what_lies_there(void **state)
{
	struct trial *t = *state;
	struct kvp_key key = wire_key(7);
	struct kvp_ns_info info;

	for (unsigned i = 0; i < 5; i++) {
		struct kvp_ns *ns = opened(t->client, 1, &info), *same = opened(t->client, 1, &info);

		if (!i)
			assert_int_equal(trial_put(ns, &key, NULL, 7, TRIAL_BLOCK), KVP_PUB_STORED);
		kvp_ns_close(ns); /* the other one has it open */
		assert_int_equal(n_left(t), i);
		assert_int_equal(trial_get(same, &key, 7, TRIAL_BLOCK), 1);
		kvp_ns_close(same);
		assert_int_equal(n_left(t), i + 1);
	}
}

static void a_base_is_left_with_the_last_namespace_above_it(void **state)
{
	struct trial *t = *state;
	struct kvp_desc desc;
	struct kvp_ns_opts opts = {.size = sizeof(opts), .name = "above", .desc = &desc, .owner_uid = KVP_UID_SELF};
	struct kvp_key key = wire_key(3);
	struct kvp_ns_info info;
	struct kvp_ns *base = opened(t->client, 1, &info), *above;

	trial_desc(&desc);
	opts.base = base;
	assert_int_equal(trial_put(base, &key, NULL, 3, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(kvp_ns_open(t->client, &opts, &above), 0);
	kvp_ns_close(base);
	assert_int_equal(n_left(t), 0);
	assert_int_equal(trial_get(above, &key, 3, TRIAL_BLOCK), 1);
	kvp_ns_close(above);
	assert_int_equal(n_left(t), 2);
}

static bool one_left(void *arg)
{
	return n_left(arg) == 1;
}

static void a_view_that_outlives_its_namespace_stays_right_and_keeps_the_client_in(void **state)
{
	struct trial *t = *state;
	struct kvp_key key = wire_key(4);
	struct kvp_ns_info info;
	struct kvp_ns *ns = opened(t->client, 1, &info);
	struct kvp_view view;

	assert_int_equal(trial_put(ns, &key, NULL, 4, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(kvp_acquire(ns, &key, 1, 0, kvp_deadline_ms(10000), &view), 1);
	kvp_ns_close(ns);
	assert_int_equal(n_left(t), 0);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict"), 0);
	assert_true(wire_right(view.data, TRIAL_BLOCK, 4));
	assert_int_equal(kvp_release(&view, 1), 0);
	assert_true(wire_until(one_left, t, 20000));
}

/* The library's own words may be lost with a daemon at any moment: in the end it is in nothing. */
static bool in_nothing_but_its_own(void *arg)
{
	struct trial *t = arg;
	const struct kvp_stats *stats = t->host.stats;
	const struct kvp_session_row *row = (const void *)((const char *)stats + stats->session_off);
	unsigned n = 0;

	while (!atomic_load(&row->session_id))
		row = (const void *)((const char *)row + stats->session_row_bytes);
	for (unsigned i = 0; i < KVP_STATS_SESSION_NS; i++)
		n += atomic_load(&row->ns_ids[i]) != 0;
	return n == 1;
}

static void attached(const struct trial *t)
{
	for (unsigned ms = 0; ms < 60000 && kvp_ping(t->client, kvp_deadline_ms(100)) < 0; ms++)
		usleep(1000);
	assert_int_equal(kvp_ping(t->client, kvp_deadline_ms(10000)), 0);
}

static void a_daemon_that_is_killed_in_between_is_told_in_the_end(void **state)
{
	struct trial *t = *state;
	struct kvp_ns_info info;

	for (unsigned i = 0; i < 24; i++) {
		struct kvp_key key = wire_key(i);
		struct kvp_ns *ns = opened(t->client, i, &info);

		assert_int_equal(trial_put(ns, &key, NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
		host_kill(&t->host);
		if (i % 2)
			trial_start(t);
		if (i % 4 == 3)
			attached(t);
		kvp_ns_close(ns);
		if (!t->host.pid)
			trial_start(t);
		attached(t);
	}
	assert_true(wire_until(in_nothing_but_its_own, t, 30000));
}

static void dies_in_one_of_two(const struct trial *t)
{
	struct kvp_key key = wire_key(1);
	struct wire_ns ns, other;
	struct wire w;

	if (wire_open(&w, t->host.socket) == 0 && wire_join(&w, &ns, "w", 4096) == 0 &&
		wire_join(&w, &other, "other", 4096) == 0 && wire_put(&ns, &key, NULL, 1, 5000) == KVP_PUB_STORED &&
		wire_put(&other, &key, NULL, 1, 5000) == KVP_PUB_STORED && unmap_and_leave(&ns) == 0)
		raise(SIGKILL);
	_exit(1);
}

static void a_client_that_is_killed_after_leaving_leaves_nothing(void **state)
{
	struct trial *t = *state;
	pid_t pid = fork();
	int status;

	if (!pid)
		dies_in_one_of_two(t);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	for (unsigned i = 0; i < 200 && atomic_load(&t->host.stats->counters.sessions); i++)
		wire_sleep_ms(50);
	assert_int_equal(atomic_load(&t->host.stats->counters.sessions), 0);
	assert_int_equal(n_left(t), 1);
}

static void leaving_with_a_pin_is_refused_and_changes_nothing(void **state)
{
	struct trial *t = *state;
	struct kvp_key key = wire_key(1);
	struct wire_pinned mine, theirs;
	struct wire_ns ns, other;
	struct wire w, neighbour;

	assert_int_equal(wire_open(&w, t->host.socket), 0);
	assert_int_equal(wire_open(&neighbour, t->host.socket), 0);
	assert_int_equal(wire_join(&w, &ns, "w", 4096), 0);
	assert_int_equal(wire_join(&neighbour, &other, "w", 4096), 0);
	assert_int_equal(wire_put(&ns, &key, NULL, 1, 5000), KVP_PUB_STORED);
	assert_int_equal(wire_pin(&ns, &key, &mine), 1);
	assert_int_equal(wire_pin(&other, &key, &theirs), 1);
	assert_int_equal(leave(&ns), -EBUSY);
	assert_int_equal(usage(&ns), sizeof(struct kvp_wire_usage));
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict"), 0);
	assert_true(wire_right(mine.data, 4096, 1));
	wire_unpin(&ns, &mine);
	assert_int_equal(leave(&ns), 0);
	assert_int_equal(leave(&ns), -KVP_ENOENT);
	assert_int_equal(usage(&ns), -KVP_ENOENT);
	assert_int_equal(wire_map(&ns, (uint32_t)(mine.slot / ns.head->slots_per_slab), false), -KVP_ENOENT);
	/* the neighbour holds what it held */
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict"), 0);
	assert_int_equal(atomic_load(&other.blocks[theirs.slot].word), theirs.word);
	assert_true(wire_right(theirs.data, 4096, 1));
	wire_leave(&ns);
	assert_int_equal(wire_join(&w, &ns, "w", 4096), 0);
	assert_int_equal(wire_pin(&ns, &key, &mine), 1);
	wire_unpin(&other, &theirs);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict"), 0);
	assert_true(wire_right(mine.data, 4096, 1)); /* its pins count again */
	wire_unpin(&ns, &mine);
	wire_leave(&ns);
	wire_leave(&other);
	wire_close(&w);
	wire_close(&neighbour);
}

static void what_was_reserved_and_half_written_goes_back(void **state)
{
	struct trial *t = *state;
	struct kvp_wire_grant grants[3];
	struct kvp_wire_result result;
	struct kvp_wire_item item = {.used_bytes = 4096, .used_tokens = 16, .key = wire_key(1)};
	struct wire_ns ns;
	struct wire w;

	assert_int_equal(wire_open(&w, t->host.socket), 0);
	assert_int_equal(wire_join(&w, &ns, "w", 4096), 0);
	assert_int_equal(wire_reserve(&ns, grants, 3, 5000), 3);
	wire_fill(wire_data(&ns, grants[0].slot), 2000, 1);
	assert_int_equal(leave(&ns), 0);
	assert_int_equal(atomic_load(&host_ns_row(&t->host, ns.id)->counters.granted), 0);
	wire_leave(&ns);
	assert_int_equal(wire_join(&w, &ns, "w", 4096), 0);
	item.slot = grants[0].slot;
	item.generation = grants[0].generation;
	assert_true(wire_publish(&ns, &item, 1, &result) >= 0);
	assert_int_not_equal(result.result, KVP_PUB_STORED);
	assert_true(host_conserves(&t->host));
	wire_leave(&ns);
	wire_close(&w);
}

static void who_waits_for_an_answer_is_still_in(void **state)
{
	struct trial *t = *state;
	static struct kvp_wire_grant grants[KVP_WIRE_BATCH_MAX];
	struct kvp_wire_reserve reserve = {.n = 1, .node = UINT32_MAX};
	struct wire_ns ns;
	struct wire w;

	assert_int_equal(wire_open(&w, t->host.socket), 0);
	assert_int_equal(wire_join(&w, &ns, "w", 1 << 20), 0);
	while (wire_reserve(&ns, grants, 16, 500) > 0)
		;
	reserve.ns_id = ns.id;
	reserve.deadline_ns = wire_now() + 60000000000ull;
	assert_int_equal(wire_send(&w, KVP_MSG_RESERVE, 1u << 20, &reserve, sizeof(reserve), NULL, 0), 0);
	assert_int_equal(leave(&ns), -EBUSY);
	assert_int_equal(wire_abandon(&ns, grants, 0), 0);
	wire_leave(&ns);
	wire_close(&w);
}

static void a_staging_area_goes_with_its_writer(void **state)
{
	struct trial *t = *state;
	struct kvp_wire_join join = {.name = "c", .owner_uid = KVP_UID_SELF, .flags = KVP_NS_COPIED};
	struct wire_ns ns;
	struct wire w;

	wire_desc(&join.desc, 4096, 1);
	assert_int_equal(wire_open(&w, t->host.socket), 0);
	assert_int_equal(wire_join_as(&w, &ns, &join), 0);
	assert_true(wire_stage(&ns, 4) >= 0);
	assert_int_not_equal(atomic_load(&t->host.stats->counters.slab_bytes_staging), 0);
	assert_int_equal(unmap_and_leave(&ns), 0);
	assert_int_equal(atomic_load(&t->host.stats->counters.slab_bytes_staging), 0);
	wire_close(&w);
}

static void after_a_start_what_was_left_is_nobodys(void **state)
{
	const char *const two[] = {"--pool", "4M", "--slab", "256k", "--max-namespaces", "2", NULL};
	struct kvp_key key = wire_key(1);
	struct wire_ns left, kept, more;
	struct wire w, newcomer;
	struct host host;
	uint64_t id;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	assert_int_equal(host_start(&host, two), 0);
	assert_int_equal(wire_open(&w, host.socket), 0);
	assert_int_equal(wire_join(&w, &left, "left", 4096), 0);
	assert_int_equal(wire_join(&w, &kept, "kept", 4096), 0);
	assert_int_equal(wire_put(&left, &key, NULL, 1, 5000), KVP_PUB_STORED);
	assert_int_equal(wire_put(&kept, &key, NULL, 1, 5000), KVP_PUB_STORED);
	id = left.id;
	assert_int_equal(unmap_and_leave(&left), 0);
	host_kill(&host);
	assert_int_equal(host_start(&host, NULL), 0);
	assert_int_equal(wire_open(&newcomer, host.socket), 0);
	assert_int_equal(wire_join(&newcomer, &more, "more", 4096), 0);
	assert_null(host_ns_row(&host, id));
	assert_non_null(host_ns_row(&host, kept.id));
	wire_leave(&more);
	wire_leave(&kept);
	wire_close(&newcomer);
	wire_close(&w);
	host_close(&host);
}

#define ATTACHED(name) cmocka_unit_test_setup_teardown(name, setup_attached, trial_teardown)
#define ALONE(name) cmocka_unit_test_setup_teardown(name, setup, trial_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ATTACHED(a_process_goes_through_any_number_of_namespaces),
		ATTACHED(what_was_closed_can_be_opened_again_with_what_lies_there),
		ATTACHED(a_base_is_left_with_the_last_namespace_above_it),
		ATTACHED(a_view_that_outlives_its_namespace_stays_right_and_keeps_the_client_in),
		ATTACHED(a_daemon_that_is_killed_in_between_is_told_in_the_end),
		ALONE(a_client_that_is_killed_after_leaving_leaves_nothing),
		ALONE(leaving_with_a_pin_is_refused_and_changes_nothing),
		ALONE(what_was_reserved_and_half_written_goes_back),
		ALONE(who_waits_for_an_answer_is_still_in),
		ALONE(a_staging_area_goes_with_its_writer),
		cmocka_unit_test(after_a_start_what_was_left_is_nobodys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
