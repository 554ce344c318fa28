/*
 * test_learned.c - what stays in a namespace, chosen while the daemon serves: set, kept, told, and as kvctl replay has
 * it
 *
 * kvpool-test: parallel
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trial.h"

static int setup(void **state)
{
	if (trial_setup(state, "8M", "64M") < 0)
		return -1;
	trial_attach(*state);
	return 0;
}

static int setup_without_store(void **state)
{
	if (trial_setup(state, "8M", NULL) < 0)
		return -1;
	trial_attach(*state);
	return 0;
}

static bool is_learned(struct trial *t)
{
	struct kvp_ns_info info = {.size = sizeof(info)};

	assert_int_equal(kvp_ns_info(t->ns, &info), 0);
	return info.flags & KVP_NS_LEARNED;
}

static uint64_t counted(struct trial *t, size_t off)
{
	struct kvp_ns_info info = {.size = sizeof(info)};

	assert_int_equal(kvp_ns_info(t->ns, &info), 0);
	return atomic_load(
		(const _Atomic uint64_t *)(const void *)((const char *)&host_ns_row(&t->host, info.ns_id)->counters +
							 off));
}
#define COUNTED(t, name) counted(t, offsetof(struct kvp_ns_counters, name))

static void a_namespace_that_was_set_to_learn_does_so_over_kills_stops_and_reboots(void **state)
{
	struct trial *t = *state;
	char out[4096];

	assert_false(is_learned(t));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "ns", "set", "m", "policy=learned"), 0);
	assert_non_null(strstr(out, "m: policy=learned\n"));
	assert_true(is_learned(t));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "ns", "set", "m", "policy=learned"), 0);
	assert_non_null(strstr(out, "as before"));
	for (unsigned round = 0; round < 2; round++) {
		struct kvp_key key = wire_key(round);

		assert_int_equal(trial_put(t->ns, &key, NULL, round, TRIAL_BLOCK), KVP_PUB_STORED);
		trial_detach(t);
		if (round)
			assert_int_equal(host_stop(&t->host), 0);
		else
			host_kill(&t->host);
		trial_start(t);
		trial_attach(t);
		assert_true(is_learned(t));
		assert_int_equal(trial_get(t->ns, &key, round, TRIAL_BLOCK), 1);
	}
	trial_reboot(t);
	assert_true(is_learned(t));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "ns", "--json"), 0);
	assert_non_null(strstr(out, "\"policy\": \"learned\""));
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "check"), 0);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "ns", "set", "m", "policy=lru"), 0);
	assert_false(is_learned(t));
}

static void what_is_no_policy_or_no_namespace_is_refused_with_a_reason(void **state)
{
	struct trial *t = *state;
	char out[1024];

	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "ns", "set", "m", "policy=best"), 2);
	assert_non_null(strstr(out, "policy=learned"));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "ns", "set", "m"), 2);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "ns", "set", "nobody", "policy=lru"), 1);
	assert_non_null(strstr(out, "no namespace nobody"));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "ns", "sit"), 2);
	assert_int_equal(kvp_request(t->ns, NULL, 1, KVP_HINT_NONE), -KVP_EINVAL);
	assert_int_equal(kvp_request(t->ns, &(struct kvp_key){{1, 1}}, 1, 4), -KVP_EINVAL);
}

/* A round trip of the same connection: what was sent before has been read. */
static uint64_t requests(struct trial *t)
{
	assert_int_equal(kvp_ping(t->client, kvp_deadline_ms(10000)), 0);
	return COUNTED(t, requests);
}

static void requests_are_told_where_they_are_wanted_and_with_their_beginning_only(void **state)
{
	struct trial *t = *state;
	struct kvp_key keys[3] = {wire_key(1), wire_key(2), wire_key(3)};
	struct kvp_view views[3];

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(trial_put(t->ns, &keys[i], i ? &keys[i - 1] : NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
	assert_int_equal(kvp_acquire(t->ns, keys, 3, 0, 0, views), 3);
	kvp_release(views, 3);
	assert_int_equal(kvp_request(t->ns, keys, 3, KVP_HINT_ENDS), 0);
	assert_int_equal(requests(t), 0);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "ns", "set", "m", "policy=learned"), 0);
	assert_int_equal(kvp_acquire(t->ns, keys, 3, 0, 0, views), 3);
	assert_int_equal(requests(t), 1);
	kvp_release(views, 3);
	assert_int_equal(kvp_acquire(t->ns, keys + 1, 2, 0, 0, views), 2); /* goes on with the first */
	kvp_release(views, 2);
	assert_int_equal(kvp_acquire(t->ns, keys, 3, KVP_ACQUIRE_TOLD, 0, views), 3);
	kvp_release(views, 3);
	assert_int_equal(requests(t), 1);
	assert_int_equal(kvp_acquire(t->ns, keys, 1, 0, 0, views), 1);
	kvp_release(views, 1);
	assert_int_equal(kvp_request(t->ns, keys, 3, KVP_HINT_SOON), 0);
	assert_int_equal(kvp_request(t->ns, keys + 1, 2, KVP_HINT_SOON), 0);
	assert_int_equal(requests(t), 3);
	assert_int_equal(kvp_clear(t->ns, kvp_deadline_ms(10000)), 0);
	assert_int_equal(kvp_acquire(t->ns, keys, 3, 0, 0, views), 0);
	assert_int_equal(requests(t), 4);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "check"), 0);
}

static bool has_saved(void *arg)
{
	return COUNTED((struct trial *)arg, saved_us) == 3 * TRIAL_TOKENS * 500;
}

static void reuse_is_told_in_computing_time_saved(void **state)
{
	struct trial *t = *state;
	struct kvp_key key = wire_key(7);
	struct kvp_desc desc;
	struct kvp_ns_opts opts = {.size = sizeof(opts),
		.name = "costly",
		.owner_uid = KVP_UID_SELF,
		.desc = &desc,
		.cost_ns_per_token = 500000};

	trial_desc(&desc);
	kvp_ns_close(t->ns);
	assert_int_equal(kvp_ns_open(t->client, &opts, &t->ns), 0);
	assert_int_equal(trial_put(t->ns, &key, NULL, 7, TRIAL_BLOCK), KVP_PUB_STORED);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(trial_get(t->ns, &key, 7, TRIAL_BLOCK), 1);
	assert_true(wire_until(has_saved, t, 10000));
}

/* Memory for 64 blocks, a store for some 220, which takes what has a chance. */
static int setup_small_store(void **state)
{
	struct trial *t = malloc(sizeof(*t));

	assert_non_null(t);
	trial_given(t, geteuid(), "4M", "16M");
	trial_option(t, "--policy", "learned");
	trial_option(t, "--spill-admit", "chance");
	trial_option(t, "--spill-admit-percent", "100");
	trial_option(t, "--spill-compress", "none");
	trial_start(t);
	trial_attach(t);
	*state = t;
	return 0;
}

static void put_many(struct trial *t, unsigned from, unsigned to)
{
	for (; from < to; from++) {
		struct kvp_key key = wire_key(from);

		assert_int_equal(trial_put(t->ns, &key, NULL, from, TRIAL_BLOCK), KVP_PUB_STORED);
	}
}

static void what_is_used_again_outlives_its_place_in_the_log(void **state)
{
	struct trial *t = *state;
	struct kvp_key used = wire_key(0), unused = wire_key(1);

	put_many(t, 0, 200); /* some 136 of them are in the store by now, those two among the first */
	assert_int_equal(trial_get(t->ns, &used, 0, TRIAL_BLOCK), 1);
	put_many(t, 200, 420); /* it leaves memory again, then the log goes round */
	assert_int_equal(trial_get(t->ns, &unused, 1, TRIAL_BLOCK), 0);
	trial_detach(t);
	assert_int_equal(host_stop(&t->host), 0);
	trial_memory_gone(t);
	trial_start(t);
	trial_attach(t);
	assert_int_equal(trial_get(t->ns, &used, 0, TRIAL_BLOCK), 1);
}

/* ---- a trace ---- */

#define ROOM 256u /* blocks */
#define BLOCK 4096u
#define CHAINS 60u
#define DEPTH 8u
#define REQUESTS 1200u

struct driven {
	struct host host;
	struct wire w;
	struct wire_ns ns;
	FILE *trace;
	char path[128];
	uint64_t hits;
	bool gave_back; /* the last slot it was given: what was evicted for it was the parent of its block, say */
};

static struct kvp_key key_at(unsigned chain, unsigned k)
{
	return wire_key(k < 2 ? (chain - chain % 4) * DEPTH + k : chain * DEPTH + k);
}

/* As an engine that copies: told, looked for, the rest published block after block, nothing held. */
static void serve(struct driven *d, uint64_t begin, unsigned chain, unsigned n)
{
	struct {
		struct kvp_wire_batch head;
		struct kvp_key keys[DEPTH];
	} told = {.head = {.ns_id = d->ns.id, .n = n}};
	struct wire_pinned pinned;
	unsigned k = 0;

	fprintf(d->trace, "%u %u 1", (unsigned)((wire_now() - begin) / 1000000), 16 * n);
	for (unsigned i = 0; i < n; i++) {
		told.keys[i] = key_at(chain, i);
		fprintf(d->trace, " %u", i < 2 ? (chain - chain % 4) * DEPTH + i : chain * DEPTH + i);
	}
	fprintf(d->trace, "\n");
	assert_int_equal(
		wire_send(&d->w, KVP_MSG_REQUEST, 0, &told, sizeof(told.head) + n * sizeof(told.keys[0]), NULL, 0), 0);
	for (; k < n && wire_pin(&d->ns, &told.keys[k], &pinned) == 1; k++)
		wire_unpin(&d->ns, &pinned);
	d->hits += k;
	for (; k < n; k++) {
		int r = wire_put(&d->ns, &told.keys[k], k ? &told.keys[k - 1] : NULL, k, 2000);

		d->gave_back = r != KVP_PUB_STORED;
		if (r == KVP_PUB_REJECTED)
			break;
		assert_true(r == KVP_PUB_STORED || r == KVP_PUB_EXISTS);
	}
	wire_sleep_ms(18); /* a tick at least: its uses are later than the last one's */
}

static uint64_t replayed(struct driven *d, const char *policy)
{
	const char *build = getenv("BUILD");
	char command[1024];
	json_t *json;
	uint64_t hits;
	FILE *out;

	snprintf(command, sizeof(command), "'%s/kvctl' replay '%s' --pool %u --policy %s --json",
		build ? build : "build", d->path, ROOM, policy);
	out = popen(command, "r");
	assert_non_null(out);
	json = json_loadf(out, 0, NULL);
	assert_int_equal(pclose(out), 0);
	assert_non_null(json);
	hits = (uint64_t)json_integer_value(json_object_get(json_object_get(json, "result"), "pool_hits"));
	json_decref(json);
	return hits;
}

static void a_daemon_driven_with_a_trace_finds_what_replay_says_or_learns_to_find_more(void **state)
{
	const char *policy = *state;
	bool learned = !strcmp(policy, "learned");
	struct driven *d = calloc(1, sizeof(*d));
	uint32_t seed = 3;
	uint64_t begin, said;

	assert_non_null(d);
	assert_int_equal(host_open(&d->host, geteuid()), 0);
	assert_int_equal(host_start(&d->host, (const char *[]){"--pool", "1M", "--slab", "1M", "--free-percent", "0",
						      "--spill", "off", "--policy", policy, NULL}),
		0);
	assert_int_equal(wire_open(&d->w, d->host.socket), 0);
	assert_int_equal(wire_join(&d->w, &d->ns, "m", BLOCK), 0);
	assert_int_equal(!!(d->ns.head->flags & KVP_NS_LEARNED), learned);
	snprintf(d->path, sizeof(d->path), "%s/trace", d->host.dir);
	d->trace = fopen(d->path, "w");
	assert_non_null(d->trace);
	fprintf(d->trace, "# kvt1 block=16\n");
	begin = wire_now();
	for (unsigned r = 0; r < REQUESTS; r++) {
		seed = seed * 1664525u + 1013904223u;
		if (learned) /* in turn, more than there is room for: least recent use finds next to nothing */
			serve(d, begin, r % CHAINS, DEPTH);
		else
			serve(d, begin, seed >> 30 ? (seed >> 8) % 20 : (seed >> 8) % CHAINS,
				3 + (seed >> 20) % (DEPTH - 2));
	}
	fclose(d->trace);
	assert_int_equal(atomic_load(&host_ns_row(&d->host, d->ns.id)->counters.published), ROOM - d->gave_back);
	assert_int_equal(atomic_load(&host_ns_row(&d->host, d->ns.id)->counters.policy), learned ? 2 : 0);
	/* by its own clock, and so when it begins to lead is the daemon's own: test_traced.c compares line for line */
	said = replayed(d, "lru");
	print_message("%s: %lu blocks found, by replay lru %lu\n", policy, (unsigned long)d->hits, (unsigned long)said);
	assert_true(d->hits >= said - said / 50 && (learned || d->hits <= said + said / 50));
	assert_true(host_conserves(&d->host));
	wire_leave(&d->ns);
	wire_close(&d->w);
	unlink(d->path);
	host_close(&d->host);
	free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_namespace_that_was_set_to_learn_does_so_over_kills_stops_and_reboots, setup, trial_teardown),
		cmocka_unit_test_setup_teardown(
			what_is_no_policy_or_no_namespace_is_refused_with_a_reason, setup, trial_teardown),
		cmocka_unit_test_setup_teardown(requests_are_told_where_they_are_wanted_and_with_their_beginning_only,
			setup_without_store, trial_teardown),
		cmocka_unit_test_setup_teardown(
			reuse_is_told_in_computing_time_saved, setup_without_store, trial_teardown),
		cmocka_unit_test_setup_teardown(
			what_is_used_again_outlives_its_place_in_the_log, setup_small_store, trial_teardown),
		cmocka_unit_test_prestate(
			a_daemon_driven_with_a_trace_finds_what_replay_says_or_learns_to_find_more, (char[]){"lru"}),
		cmocka_unit_test_prestate(a_daemon_driven_with_a_trace_finds_what_replay_says_or_learns_to_find_more,
			(char[]){"learned"}),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
