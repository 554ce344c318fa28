/*
 * test_quota.c - what one uid, or one namespace, may have, and that nobody else is the poorer for it
 *
 * Three uids, each by a socket of its own (--listen PATH,uid=N), so that it needs no root.
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
#include <unistd.h>

#include "trial.h"
#include "wire.h"

#define MIB (1ull << 20)
#define BLOCK 65536u
#define IN_A_SLAB 16u
#define N_UIDS 3u
#define ANNA 0u
#define BERT 1u
#define CARL 2u

struct tenant {
	char socket[128];
	struct wire w;
	struct wire_ns ns[2];
};

struct fixture {
	struct host host;
	char conf[128];
	struct tenant tenants[N_UIDS];
};

static void configure(struct fixture *f, const char *lines)
{
	int fd = open(f->conf, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, lines, strlen(lines)), strlen(lines));
	close(fd);
}

static struct fixture *given(const char *limits)
{
	struct fixture *f = calloc(1, sizeof(*f));
	char listen[N_UIDS][160];

	assert_non_null(f);
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	snprintf(f->conf, sizeof(f->conf), "%s/conf", f->host.dir);
	configure(f, limits);
	for (unsigned i = 0; i < N_UIDS; i++) {
		snprintf(f->tenants[i].socket, sizeof(f->tenants[i].socket), "%s/%u", f->host.dir, i);
		snprintf(listen[i], sizeof(listen[i]), "%s,uid=%u,gid=%u", f->tenants[i].socket, 7001 + i, 7001 + i);
	}
	const char *options[] = {"--config", f->conf, "--pool", "16M", "--slab", "1M", "--spill", "off", "--listen",
		listen[0], "--listen", listen[1], "--listen", listen[2], NULL};
	assert_int_equal(host_start(&f->host, options), 0);
	for (unsigned i = 0; i < N_UIDS; i++) {
		struct tenant *t = &f->tenants[i];

		assert_int_equal(wire_open(&t->w, t->socket), 0);
		assert_int_equal(wire_join(&t->w, &t->ns[0], "one", BLOCK), 0);
		assert_int_equal(wire_join(&t->w, &t->ns[1], "two", BLOCK), 0);
	}
	return f;
}

static void over(struct fixture *f)
{
	assert_true(host_alive(&f->host));
	assert_true(host_conserves(&f->host));
	for (unsigned i = 0; i < N_UIDS; i++) {
		wire_leave(&f->tenants[i].ns[0]);
		wire_leave(&f->tenants[i].ns[1]);
		wire_close(&f->tenants[i].w);
	}
	host_kill(&f->host);
	unlink(f->conf);
	host_close(&f->host);
	free(f);
}

static uint64_t bytes_of_ns(struct fixture *f, unsigned uid, unsigned ns)
{
	const struct kvp_ns_row *row = host_ns_row(&f->host, f->tenants[uid].ns[ns].id);

	return atomic_load(&row->counters.slots) / row->slots_per_slab * row->slab_bytes;
}

static uint64_t bytes_of(struct fixture *f, unsigned uid)
{
	return bytes_of_ns(f, uid, 0) + bytes_of_ns(f, uid, 1);
}

/* Keys of one tenant's namespace; content is of the key. */
static uint64_t id_of(unsigned uid, unsigned ns, uint64_t i)
{
	return uid * 100000 + ns * 10000 + i;
}

static void fill(struct fixture *f, unsigned uid, unsigned ns, uint64_t from, uint64_t n)
{
	for (uint64_t i = from; i < from + n; i++) {
		struct kvp_key key = wire_key(id_of(uid, ns, i));

		assert_int_equal(
			wire_put(&f->tenants[uid].ns[ns], &key, NULL, id_of(uid, ns, i), 10000), KVP_PUB_STORED);
	}
}

static unsigned found(struct fixture *f, unsigned uid, unsigned ns, uint64_t from, uint64_t n)
{
	unsigned count = 0;

	for (uint64_t i = from; i < from + n; i++) {
		struct kvp_key key = wire_key(id_of(uid, ns, i));
		struct wire_pinned pinned;

		if (!wire_pin(&f->tenants[uid].ns[ns], &key, &pinned))
			continue;
		assert_true(wire_right(pinned.data, pinned.used_bytes, id_of(uid, ns, i)));
		wire_unpin(&f->tenants[uid].ns[ns], &pinned);
		count++;
	}
	return count;
}

static void hold(struct fixture *f, unsigned uid, unsigned ns, uint64_t n, struct wire_pinned *pinned)
{
	for (uint64_t i = 0; i < n; i++) {
		struct kvp_key key = wire_key(id_of(uid, ns, i));

		assert_int_equal(wire_pin(&f->tenants[uid].ns[ns], &key, &pinned[i]), 1);
	}
}

static void at_its_quota_a_uid_makes_room_among_its_own_blocks(void **state)
{
	struct fixture *f = given("uid-max-memory = 4M\n");

	(void)state;
	for (unsigned uid = 0; uid < N_UIDS; uid++) {
		fill(f, uid, 0, 0, 8 * IN_A_SLAB);
		assert_true(bytes_of(f, uid) <= 4 * MIB);
		assert_true(bytes_of(f, uid) >= 3 * MIB);
	}
	/* with 4 MiB to spare nobody lost any to the others */
	for (unsigned uid = 0; uid < N_UIDS; uid++)
		assert_int_equal(found(f, uid, 0, 6 * IN_A_SLAB, 2 * IN_A_SLAB), 2 * IN_A_SLAB);
	/* another namespace is no way out, and takes its uid's memory, not others' */
	fill(f, ANNA, 1, 0, 8 * IN_A_SLAB);
	assert_true(bytes_of_ns(f, ANNA, 1) >= MIB);
	assert_true(bytes_of(f, ANNA) <= 4 * MIB);
	assert_int_equal(found(f, BERT, 0, 6 * IN_A_SLAB, 2 * IN_A_SLAB), 2 * IN_A_SLAB);
	assert_int_equal(found(f, CARL, 0, 6 * IN_A_SLAB, 2 * IN_A_SLAB), 2 * IN_A_SLAB);
	over(f);
}

static struct kvp_ns *opened(const struct tenant *t, struct kvp_client **client)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = t->socket, .connect_timeout_ms = 10000};
	struct kvp_desc desc;
	struct kvp_ns *ns;

	assert_int_equal(kvp_open(&opts, client), 0);
	trial_desc(&desc);
	assert_int_equal(trial_ns(*client, "held", &desc, &ns), 0);
	return ns;
}

static void a_uid_that_holds_its_whole_quota_is_refused_by_name_and_others_are_served(void **state)
{
	struct fixture *f = given("uid-max-memory = 2M\n");
	struct tenant *anna = &f->tenants[ANNA];
	struct wire_pinned pinned[2 * IN_A_SLAB];
	struct kvp_wire_grant grant;
	struct kvp_block_ref block = {0};
	struct kvp_client *client;
	struct kvp_ns *ns;

	(void)state;
	fill(f, ANNA, 0, 0, 2 * IN_A_SLAB);
	hold(f, ANNA, 0, 2 * IN_A_SLAB, pinned);
	assert_int_equal(wire_reserve(&anna->ns[0], &grant, 1, 300), -KVP_EQUOTA);
	assert_non_null(strstr(anna->w.text, "uid 7001 has 2097152 bytes"));
	assert_non_null(strstr(anna->w.text, "uid-max-memory (2097152)"));
	assert_int_equal(wire_reserve(&anna->ns[1], &grant, 1, 0), -KVP_EQUOTA);
	assert_true(atomic_load(&host_ns_row(&f->host, anna->ns[0].id)->counters.quota_refused) >= 1);
	/* an engine gets none, and is told why */
	ns = opened(anna, &client);
	assert_int_equal(kvp_reserve(ns, 1, 0, kvp_deadline_ms(500), &block), 0);
	assert_non_null(strstr(kvp_error(client), "raise uid-max-memory"));
	kvp_close(client);
	fill(f, BERT, 0, 0, 2 * IN_A_SLAB);
	for (unsigned i = 0; i < 2 * IN_A_SLAB; i++) {
		assert_true(wire_right(pinned[i].data, pinned[i].used_bytes, id_of(ANNA, 0, i)));
		wire_unpin(&anna->ns[0], &pinned[i]);
	}
	fill(f, ANNA, 0, 1000, 4);
	over(f);
}

/* Memory it may not have is not wanted from anybody. */
static void who_is_at_its_quota_costs_no_silent_session_of_others_its_holds(void **state)
{
	struct fixture *f = given("uid-max-memory = 2M\nhold-limit = 700\n");
	struct tenant *anna = &f->tenants[ANNA];
	struct wire_pinned pinned[2 * IN_A_SLAB], berts;
	struct kvp_wire_grant grant;
	struct wire silent;
	struct wire_ns own;

	(void)state;
	fill(f, BERT, 0, 0, 1);
	hold(f, BERT, 0, 1, &berts);
	fill(f, ANNA, 0, 0, 2 * IN_A_SLAB);
	assert_int_equal(wire_open(&silent, anna->socket), 0); /* of her own, that holds all of it and says nothing */
	assert_int_equal(wire_join(&silent, &own, "one", BLOCK), 0);
	for (uint64_t i = 0; i < 2 * IN_A_SLAB; i++) {
		struct kvp_key key = wire_key(id_of(ANNA, 0, i));

		assert_int_equal(wire_pin(&own, &key, &pinned[i]), 1);
	}
	for (unsigned i = 0; i < 400 && !atomic_load(&f->host.stats->counters.sessions_condemned); i++)
		wire_reserve(&anna->ns[0], &grant, 1, 50);
	assert_int_equal(atomic_load(&f->host.stats->counters.sessions_condemned), 1);
	for (unsigned i = 0; i < 20; i++)
		wire_reserve(&anna->ns[0], &grant, 1, 50);
	assert_int_equal(atomic_load(&silent.session->word), 0);
	assert_int_equal(atomic_load(&f->tenants[BERT].w.session->word), 1);
	assert_int_equal(atomic_load(&f->tenants[CARL].w.session->word), 1);
	wire_unpin(&f->tenants[BERT].ns[0], &berts);
	wire_leave(&own);
	wire_close(&silent);
	over(f);
}

static void a_limit_of_less_than_a_slab_is_said(void **state)
{
	struct fixture *f = given("namespace-max = 900k\n");

	(void)state;
	assert_true(host_logged(&f->host, "namespace-max = 921600 is less than a slab", 1000));
	over(f);
}

static void a_namespace_has_its_own_limit(void **state)
{
	struct fixture *f = given("namespace-max = 2M\n");
	struct wire_pinned pinned[2 * IN_A_SLAB];
	struct kvp_wire_grant grant;

	(void)state;
	fill(f, ANNA, 0, 0, 5 * IN_A_SLAB);
	fill(f, ANNA, 1, 0, 2 * IN_A_SLAB);
	assert_int_equal(bytes_of_ns(f, ANNA, 0), 2 * MIB);
	assert_int_equal(bytes_of_ns(f, ANNA, 1), 2 * MIB);
	hold(f, ANNA, 1, 2 * IN_A_SLAB, pinned);
	assert_int_equal(wire_reserve(&f->tenants[ANNA].ns[1], &grant, 1, 300), -KVP_EQUOTA);
	assert_non_null(strstr(f->tenants[ANNA].w.text, "namespace two has 2097152 bytes"));
	assert_non_null(strstr(f->tenants[ANNA].w.text, "namespace-max"));
	over(f);
}

struct wanted {
	struct fixture *f;
	unsigned uid;
	uint64_t most;
};

static bool has_no_more(void *arg)
{
	struct wanted *wanted = arg;

	return bytes_of(wanted->f, wanted->uid) <= wanted->most;
}

static bool limit_is(void *arg)
{
	struct wanted *wanted = arg;

	return atomic_load(&wanted->f->host.stats->counters.uid_max_bytes) == wanted->most;
}

static void reload(struct fixture *f, const char *lines, uint64_t most)
{
	struct wanted wanted = {f, 0, most};

	configure(f, lines);
	assert_int_equal(kill(f->host.pid, SIGHUP), 0);
	assert_true(wire_until(limit_is, &wanted, 20000));
}

static void a_quota_changes_while_it_serves(void **state)
{
	struct fixture *f = given("uid-max-memory = 8M\n");
	struct wanted wanted = {f, ANNA, 3 * MIB};
	struct wire_pinned pinned;

	(void)state;
	assert_int_equal(atomic_load(&f->host.stats->counters.uid_max_bytes), 8 * MIB);
	fill(f, ANNA, 0, 0, 10 * IN_A_SLAB);
	fill(f, BERT, 0, 0, 2 * IN_A_SLAB);
	assert_true(bytes_of(f, ANNA) > 6 * MIB);
	struct kvp_key key = wire_key(id_of(ANNA, 0, 10 * IN_A_SLAB - 1));
	assert_int_equal(wire_pin(&f->tenants[ANNA].ns[0], &key, &pinned), 1);
	reload(f, "uid-max-memory = 3M\n", 3 * MIB);
	assert_true(wire_until(has_no_more, &wanted, 30000));
	/* what was held is where it was, and others have what they had */
	assert_true(wire_right(pinned.data, pinned.used_bytes, id_of(ANNA, 0, 10 * IN_A_SLAB - 1)));
	wire_unpin(&f->tenants[ANNA].ns[0], &pinned);
	assert_int_equal(found(f, BERT, 0, 0, 2 * IN_A_SLAB), 2 * IN_A_SLAB);
	reload(f, "\n", 0);
	fill(f, ANNA, 0, 2000, 8 * IN_A_SLAB);
	assert_true(bytes_of(f, ANNA) > 3 * MIB);
	over(f);
}

static void more_requests_than_a_uid_may_have_waiting_are_refused_at_once(void **state)
{
	struct fixture *f = given("uid-max-memory = 1M\nuid-max-requests = 2\n");
	struct tenant *anna = &f->tenants[ANNA];
	struct wire_pinned pinned[IN_A_SLAB];
	struct kvp_wire_reserve ask = {.ns_id = anna->ns[0].id, .n = 1, .node = UINT32_MAX};
	struct kvp_wire_grant grants[4], bert;

	(void)state;
	fill(f, ANNA, 0, 0, IN_A_SLAB);
	hold(f, ANNA, 0, IN_A_SLAB, pinned);
	ask.deadline_ns = wire_now() + 30000000000ull;
	for (uint64_t id = 901; id <= 903; id++)
		assert_int_equal(wire_send(&anna->w, KVP_MSG_RESERVE, id, &ask, sizeof(ask), NULL, 0), 0);
	assert_int_equal(wire_receive(&anna->w, 903, grants, sizeof(grants), NULL, NULL, WIRE_TIMEOUT_MS), -KVP_EQUOTA);
	assert_non_null(strstr(anna->w.text, "uid-max-requests"));
	assert_int_equal(wire_reserve(&f->tenants[BERT].ns[0], &bert, 1, 5000), 1);
	for (unsigned i = 0; i < IN_A_SLAB; i++)
		wire_unpin(&anna->ns[0], &pinned[i]);
	assert_int_equal(
		wire_receive(&anna->w, 901, grants, sizeof(grants), NULL, NULL, WIRE_TIMEOUT_MS), sizeof(grants[0]));
	over(f);
}

static void a_session_that_holds_a_block_unused_for_too_long_is_put_out_and_no_other(void **state)
{
	struct fixture *f = given("pin-limit = 2000\n");
	struct kvp_client *clients[2];
	struct kvp_ns *ns[2];
	struct kvp_view views[2], again;
	struct kvp_key key = wire_key(1);
	uint64_t end = kvp_deadline_ms(60000);

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		ns[i] = opened(&f->tenants[i], &clients[i]);
		assert_int_equal(trial_put(ns[i], &key, NULL, 1, TRIAL_BLOCK), KVP_PUB_STORED);
		memset(&views[i], 0, sizeof(views[i]));
		assert_int_equal(kvp_acquire(ns[i], &key, 1, 0, kvp_deadline_ms(5000), &views[i]), 1);
	}
	/* one of them uses its block again and again */
	while (!atomic_load(&f->host.stats->counters.sessions_condemned) && kvp_deadline_ms(0) < end) {
		memset(&again, 0, sizeof(again));
		assert_int_equal(kvp_acquire(ns[ANNA], &key, 1, 0, kvp_deadline_ms(5000), &again), 1);
		assert_int_equal(kvp_release(&again, 1), 0);
		wire_sleep_ms(50);
	}
	assert_int_equal(atomic_load(&f->host.stats->counters.sessions_condemned), 1);
	assert_true(host_logged(&f->host, "pin-limit is 2000", 5000));
	/* its hold is void: the block can go; the other's stays */
	assert_int_equal(kvp_delete(ns[ANNA], &key, 1, kvp_deadline_ms(300)), 0);
	while (kvp_delete(ns[BERT], &key, 1, kvp_deadline_ms(1000)) != 1 && kvp_deadline_ms(0) < end)
		wire_sleep_ms(50);
	assert_int_equal(kvp_release(&views[ANNA], 1), 0);
	assert_int_equal(kvp_release(&views[BERT], 1), 1);
	kvp_close(clients[0]);
	kvp_close(clients[1]);
	over(f);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(at_its_quota_a_uid_makes_room_among_its_own_blocks),
		cmocka_unit_test(a_uid_that_holds_its_whole_quota_is_refused_by_name_and_others_are_served),
		cmocka_unit_test(who_is_at_its_quota_costs_no_silent_session_of_others_its_holds),
		cmocka_unit_test(a_limit_of_less_than_a_slab_is_said),
		cmocka_unit_test(a_namespace_has_its_own_limit),
		cmocka_unit_test(a_quota_changes_while_it_serves),
		cmocka_unit_test(more_requests_than_a_uid_may_have_waiting_are_refused_at_once),
		cmocka_unit_test(a_session_that_holds_a_block_unused_for_too_long_is_put_out_and_no_other),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
