/*
 * test_quota_spill.c - what one uid, or one namespace, may have of the spill store, and that nobody else is the poorer
 * for it
 *
 * Two uids, each by a socket of its own (--listen PATH,uid=N), so that it needs no root.
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

#define MIB (1ull << 20)
#define SEGMENT (2 * MIB) /* an eighth of 16M */
#define RECORD (TRIAL_BLOCK + 4096u)
#define ROUNDS 60u /* of a flood, each of as many blocks as fit into a slab */
#define PIECE 10u
#define ANNA 0u
#define BERT 1u

struct tenant {
	struct kvp_client *client;
	struct kvp_ns *ns[2];
	struct kvp_ns_info info[2];
};

struct fixture {
	struct trial t;
	char conf[128], listen[2][160], socket[2][128];
	struct tenant tenants[2];
};

static void configure(struct fixture *f, const char *lines)
{
	int fd = open(f->conf, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, lines, strlen(lines)), strlen(lines));
	close(fd);
}

static void attach(struct fixture *f)
{
	struct kvp_desc desc;

	trial_desc(&desc);
	for (unsigned i = 0; i < 2; i++) {
		struct kvp_open_opts opts = {.size = sizeof(opts), .socket = f->socket[i], .connect_timeout_ms = 5000};

		assert_int_equal(kvp_open(&opts, &f->tenants[i].client), 0);
		assert_int_equal(trial_ns(f->tenants[i].client, "one", &desc, &f->tenants[i].ns[0]), 0);
		assert_int_equal(trial_ns(f->tenants[i].client, "two", &desc, &f->tenants[i].ns[1]), 0);
		for (unsigned k = 0; k < 2; k++) {
			f->tenants[i].info[k].size = sizeof(f->tenants[i].info[k]);
			assert_int_equal(kvp_ns_info(f->tenants[i].ns[k], &f->tenants[i].info[k]), 0);
		}
	}
}

static void detach(struct fixture *f)
{
	for (unsigned i = 0; i < 2; i++) {
		kvp_ns_close(f->tenants[i].ns[0]);
		kvp_ns_close(f->tenants[i].ns[1]);
		kvp_close(f->tenants[i].client);
	}
}

/* Memory for 32 blocks, a store for some 200. */
static struct fixture *given(const char *limits)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	trial_given(&f->t, geteuid(), "4M", "16M");
	snprintf(f->conf, sizeof(f->conf), "%s/conf", f->t.host.dir);
	configure(f, limits);
	for (unsigned i = 0; i < 2; i++) {
		snprintf(f->socket[i], sizeof(f->socket[i]), "%s/%u", f->t.host.dir, i);
		snprintf(f->listen[i], sizeof(f->listen[i]), "%s,uid=%u,gid=%u", f->socket[i], 7001 + i, 7001 + i);
		trial_option(&f->t, "--listen", f->listen[i]);
	}
	trial_option(&f->t, "--config", f->conf);
	trial_option(&f->t, "--spill-compress", "none");
	trial_start(&f->t);
	attach(f);
	return f;
}

static void over(struct fixture *f)
{
	detach(f);
	unlink(f->conf);
	assert_true(trial_end(&f->t));
	free(f);
}

static uint64_t id_of(unsigned uid, unsigned ns, uint64_t i)
{
	return uid * 1000000 + ns * 100000 + i;
}

/* Published and written, as far as it may be. Return: of a drain. */
static int put(struct fixture *f, unsigned uid, unsigned ns, uint64_t from, uint64_t n)
{
	for (uint64_t i = from; i < from + n; i++) {
		struct kvp_key key = wire_key(id_of(uid, ns, i));

		assert_int_equal(
			trial_put(f->tenants[uid].ns[ns], &key, NULL, id_of(uid, ns, i), TRIAL_BLOCK), KVP_PUB_STORED);
	}
	return TRIAL_KVCTL(&f->t, NULL, 0, "drain");
}

static unsigned found(struct fixture *f, unsigned uid, unsigned ns, uint64_t from, uint64_t n)
{
	unsigned count = 0;

	for (uint64_t i = from; i < from + n; i++) {
		struct kvp_key key = wire_key(id_of(uid, ns, i));
		int r = trial_get(f->tenants[uid].ns[ns], &key, id_of(uid, ns, i), TRIAL_BLOCK);

		assert_true(r >= 0);
		count += (unsigned)r;
	}
	return count;
}

static const struct kvp_ns_counters *counters(struct fixture *f, unsigned uid, unsigned ns)
{
	return &host_ns_row(&f->t.host, f->tenants[uid].info[ns].ns_id)->counters;
}

#define NS_COUNTER(f, uid, ns, name) atomic_load(&counters(f, uid, ns)->name)

static void what_is_beyond_a_quota_is_not_written_counted_and_told(void **state)
{
	struct fixture *f = given("namespace-max-spill = 1M\n"); /* 15 records */
	char out[8192];

	(void)state;
	assert_int_not_equal(put(f, ANNA, 0, 0, 20), 0);
	assert_int_equal(NS_COUNTER(f, ANNA, 0, spill_log_bytes), 15 * RECORD);
	assert_int_equal(NS_COUNTER(f, ANNA, 0, spill_over_quota), 5);
	assert_int_equal(NS_COUNTER(f, ANNA, 0, cold) + NS_COUNTER(f, ANNA, 0, clean), 15);
	assert_int_not_equal(put(f, ANNA, 1, 0, 5), 0); /* the five of before are asked for once more */
	assert_int_equal(NS_COUNTER(f, ANNA, 1, spill_over_quota), 0);
	assert_int_equal(TRIAL_KVCTL(&f->t, out, sizeof(out), "stats"), 0);
	assert_non_null(strstr(out, "a namespace may have 1 MiB of the spill store"));
	assert_int_equal(TRIAL_KVCTL(&f->t, out, sizeof(out), "drain"), 1);
	assert_non_null(strstr(out, "Disk quota exceeded"));
	over(f);
}

/* Published and written, all of it: at its quota the uid gives up a segment of its own a tick, so asking again
   helps. */
static void flood(struct fixture *f, unsigned uid, unsigned ns, uint64_t from, uint64_t n)
{
	uint64_t until = wire_now() + 30000000000ull;

	for (int r = put(f, uid, ns, from, n); r; r = TRIAL_KVCTL(&f->t, NULL, 0, "drain"))
		if (wire_now() > until)
			fail_msg("no room was made for blocks from %u on within 30 s", (unsigned)from);
}

static void a_flood_by_one_uid_pushes_out_nothing_of_another_but_its_own_oldest(void **state)
{
	struct fixture *f = given("uid-max-spill = 6M\n");

	(void)state;
	assert_int_equal(put(f, BERT, 0, 0, 40), 0); /* more than a segment, the second one has a neighbour's too */
	for (uint64_t i = 0; i < ROUNDS; i++) {
		flood(f, ANNA, i % 2, i * PIECE, PIECE);
		assert_true(
			NS_COUNTER(f, ANNA, 0, spill_log_bytes) + NS_COUNTER(f, ANNA, 1, spill_log_bytes) <= 6 * MIB);
	}
	assert_true(NS_COUNTER(f, ANNA, 0, spill_over_quota) + NS_COUNTER(f, ANNA, 1, spill_over_quota) > 0);
	/* each block once at least: its own made way for more, again and again */
	assert_true(atomic_load(&f->t.host.stats->counters.spill_writes) >= 40 + ROUNDS * PIECE);
	assert_int_equal(found(f, BERT, 0, 0, 40), 40);
	for (uint64_t i = ROUNDS - 2; i < ROUNDS; i++)
		assert_int_equal(
			found(f, ANNA, i % 2, i * PIECE, PIECE), PIECE); /* the newest, not the first for ever */
	for (uint64_t i = ROUNDS / 5; i < ROUNDS / 2; i++) /* the very first lie beside his, and stay */
		assert_int_equal(found(f, ANNA, i % 2, i * PIECE, PIECE), 0);
	over(f);
}

/* Else whoever writes and deletes for ever would turn the log, and push out what others have. */
static void deleted_blocks_count_until_their_room_is_used_anew(void **state)
{
	struct fixture *f = given("uid-max-spill = 1M\n");

	(void)state;
	assert_int_equal(put(f, BERT, 0, 0, 10), 0);
	for (uint64_t i = 0; i < 10; i++) {
		put(f, ANNA, 0, i * 10, 10);
		for (uint64_t k = i * 10; k < i * 10 + 10; k++) {
			struct kvp_key key = wire_key(id_of(ANNA, 0, k));

			assert_int_equal(kvp_delete(f->tenants[ANNA].ns[0], &key, 1, kvp_deadline_ms(10000)), 1);
		}
		assert_true(NS_COUNTER(f, ANNA, 0, spill_log_bytes) <= MIB);
	}
	assert_int_equal(NS_COUNTER(f, ANNA, 0, spill_log_bytes), 15 * RECORD);
	assert_int_equal(found(f, BERT, 0, 0, 10), 10);
	over(f);
}

static void what_a_start_finds_counts_as_it_did_and_a_reload_changes_the_limit(void **state)
{
	struct fixture *f = given("uid-max-spill = 1M\n");
	uint64_t before;

	(void)state;
	put(f, ANNA, 0, 0, 20);
	put(f, BERT, 0, 0, 5);
	before = NS_COUNTER(f, ANNA, 0, spill_log_bytes);
	assert_int_equal(before, 15 * RECORD);
	detach(f);
	assert_int_equal(host_stop(&f->t.host), 0);
	trial_memory_gone(&f->t);
	trial_start(&f->t);
	attach(f);
	assert_int_equal(NS_COUNTER(f, ANNA, 0, spill_log_bytes), before);
	assert_int_equal(NS_COUNTER(f, BERT, 0, spill_log_bytes), 5 * RECORD);
	put(f, ANNA, 1, 0, 5);
	assert_int_equal(NS_COUNTER(f, ANNA, 1, spill_log_bytes), 0);
	configure(f, "uid-max-spill = 2M\n");
	kill(f->t.host.pid, SIGHUP);
	assert_true(host_logged(&f->t.host, "reloaded", 5000));
	assert_int_equal(put(f, ANNA, 1, 10, 5), 0);
	assert_int_equal(NS_COUNTER(f, ANNA, 1, spill_log_bytes), 10 * RECORD);
	over(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_beyond_a_quota_is_not_written_counted_and_told),
		cmocka_unit_test(a_flood_by_one_uid_pushes_out_nothing_of_another_but_its_own_oldest),
		cmocka_unit_test(deleted_blocks_count_until_their_room_is_used_anew),
		cmocka_unit_test(what_a_start_finds_counts_as_it_did_and_a_reload_changes_the_limit),
	};

	return cmocka_run_group_tests_name("quota_spill", tests, NULL, NULL);
}
