/* test_trials_store.c - kvctl store: list, verify, scrub and drop, with the daemon running and stopped */
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

#define N 60u
#define OUT 8192

static int setup(void **state)
{
	trial_setup(state, "8M", "64M");
	trial_attach(*state);
	return 0;
}

static void put_many(struct kvp_ns *ns, uint64_t first, unsigned n)
{
	for (uint64_t k = first; k < first + n; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(trial_put(ns, &key, NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
}

static unsigned come_back(struct kvp_ns *ns, uint64_t first, unsigned n)
{
	unsigned got = 0;

	for (uint64_t k = first; k < first + n; k++) {
		struct kvp_key key = wire_key(k);
		int r = trial_get(ns, &key, k, TRIAL_BLOCK);

		assert_true(r >= 0);
		got += (unsigned)r;
	}
	return got;
}

/* @n blocks that are only in the store. */
static void given_cold_blocks(struct trial *t, unsigned n)
{
	put_many(t->ns, 0, n);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict"), 0);
}

static void stop(struct trial *t)
{
	trial_detach(t);
	assert_int_equal(host_stop(&t->host), 0);
}

/* One bit of the first record. */
static void damage_a_record(const struct trial *t)
{
	char path[160];
	uint8_t page[SPILL_PAGE];
	int fd;
	off_t off = SPILL_SUPER_AREA + SPILL_PAGE;

	snprintf(path, sizeof(path), "%s/" SPILL_STORE_NAME, t->spill);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, page, sizeof(page), off), (ssize_t)sizeof(page));
	assert_int_equal(pread(fd, page, 1, off + SPILL_PAGE + 1000), 1);
	page[0] ^= 4;
	assert_int_equal(pwrite(fd, page, 1, off + SPILL_PAGE + 1000), 1);
	fsync(fd);
	close(fd);
}

/* A new daemon, whose memory begins empty. */
static void start_anew(struct trial *t)
{
	trial_memory_gone(t);
	trial_start(t);
	trial_attach(t);
}

/* Of @N blocks that are only in the store one is damaged, which nobody has noticed. */
static void given_a_damaged_record(struct trial *t)
{
	given_cold_blocks(t, N);
	stop(t);
	damage_a_record(t);
	start_anew(t);
}

static void list_tells_the_same_running_and_stopped(void **state)
{
	struct trial *t = *state;
	char out[OUT];

	given_cold_blocks(t, N);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "list"), 0);
	assert_non_null(strstr(out, "in use by a daemon"));
	assert_non_null(strstr(out, "60 records, 3.8 MiB"));
	assert_non_null(strstr(out, "m "));
	stop(t);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "list"), 0);
	assert_non_null(strstr(out, "not in use"));
	assert_non_null(strstr(out, "60 records, 3.8 MiB"));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "list", "--json"), 0);
	assert_non_null(strstr(out, "\"records\": 60"));
	trial_start(t);
	trial_attach(t);
}

static void verify_reads_every_record_and_names_no_damage_where_there_is_none(void **state)
{
	struct trial *t = *state;
	char out[OUT];

	given_cold_blocks(t, N);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "verify"), 0);
	assert_non_null(strstr(out, "60 records"));
	assert_non_null(strstr(out, "0 damaged"));
}

static void verify_counts_the_damaged_record_and_fails(void **state)
{
	struct trial *t = *state;
	char out[OUT];

	given_cold_blocks(t, N);
	stop(t);
	damage_a_record(t);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "verify", t->spill), 1);
	assert_non_null(strstr(out, "60 records"));
	assert_non_null(strstr(out, "1 damaged"));
	trial_start(t);
	trial_attach(t);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "verify"), 1); /* it does not go by waiting */
	assert_int_equal(come_back(t->ns, 0, N), N - 1);
}

static void list_and_verify_name_a_segment_that_cannot_be_read_and_how_many_records_it_had(void **state)
{
	static const char lost[] = "segments that were used and cannot be read: 1 of ";
	static const char records[] = "records that seals of segments speak of and that are lost: 60\n";
	static uint8_t noise[1 << 20];
	struct trial *t = *state;
	char out[OUT], path[160];
	int fd;

	given_cold_blocks(t, N);
	stop(t);
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (uint8_t)(i * 7 + i / 251);
	snprintf(path, sizeof(path), "%s/" SPILL_STORE_NAME, t->spill);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, noise, sizeof(noise), SPILL_SUPER_AREA), (ssize_t)sizeof(noise));
	close(fd);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "verify", t->spill), 1);
	assert_non_null(strstr(out, lost));
	assert_non_null(strstr(out, records));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "list", t->spill), 0);
	assert_non_null(strstr(out, lost));
	assert_non_null(strstr(out, records));
	start_anew(t);
	assert_true(host_logged(&t->host, "segments were used and cannot be read any more, and 60 records", 0));
	assert_int_equal(come_back(t->ns, 0, N), 0);
}

static void a_store_whose_daemon_was_killed_has_no_lost_segment(void **state)
{
	struct trial *t = *state;
	char out[OUT];

	given_cold_blocks(t, N);
	trial_detach(t);
	host_kill(&t->host);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "verify", t->spill), 0);
	assert_non_null(strstr(out, "60 records"));
	assert_null(strstr(out, "cannot be read"));
	assert_null(strstr(out, "lost"));
	assert_non_null(strstr(out, "segments without a seal (the daemon was killed, or it is damaged)"));
	trial_start(t);
	trial_attach(t);
	assert_false(host_logged(&t->host, "cannot be read any more", 0));
	assert_true(host_logged(&t->host, "1 of them not sealed, as a kill leaves them: read record by record", 0));
}

static bool store_was_filled(void *arg)
{
	const struct trial *t = arg;

	return atomic_load(&t->host.stats->counters.spill_writes) > 1200; /* it holds a thousand */
}

static void verify_takes_no_record_that_is_being_written_for_a_damaged_one(void **state)
{
	struct trial *t = *state;
	char out[OUT];
	int status;
	pid_t pid;

	trial_detach(t);
	pid = fork();
	if (pid == 0) { /* round and round the store, each segment used again and again */
		struct kvp_client *client;
		struct kvp_desc desc;
		struct kvp_ns *ns;

		trial_desc(&desc);
		if (trial_client(t, &client) < 0 || trial_ns(client, "m", &desc, &ns) < 0)
			_exit(1);
		for (uint64_t k = 0;; k++) {
			struct kvp_key key = wire_key(k);

			trial_put(ns, &key, NULL, k, TRIAL_BLOCK);
		}
	}
	assert_true(wire_until(store_was_filled, t, 60000));
	for (unsigned i = 0; i < 5; i++) {
		assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "verify"), 0);
		assert_non_null(strstr(out, "0 damaged"));
	}
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	trial_attach(t);
}

static const struct kvp_ns_row *row_of_m(const struct trial *t)
{
	const struct kvp_ns_row *rows = (const void *)((const char *)t->host.stats + t->host.stats->ns_off);

	while (strcmp(rows->name, "m"))
		rows++;
	return rows;
}

static bool scrub_is_over(void *arg)
{
	const struct trial *t = arg;

	return atomic_load(&t->host.stats->counters.spill_scrub_passes) > 0;
}

static void a_scrub_makes_damage_a_miss_before_it_is_asked_for(void **state)
{
	struct trial *t = *state;

	given_a_damaged_record(t);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "store", "scrub", "--rate", "1G"), 0);
	assert_true(wire_until(scrub_is_over, t, 20000));
	assert_int_equal(atomic_load(&t->host.stats->counters.spill_scrub_damaged), 1);
	assert_int_equal(atomic_load(&t->host.stats->counters.spill_damaged), 1);
	assert_int_equal(come_back(t->ns, 0, N), N - 1);
	assert_int_equal(atomic_load(&t->host.stats->counters.spill_damaged), 1);
	assert_int_equal(atomic_load(&row_of_m(t)->counters.miss_damaged), 1);
}

static uint64_t misses_of(const struct kvp_ns_counters *c)
{
	return atomic_load(&c->miss_never) + atomic_load(&c->miss_evicted) + atomic_load(&c->miss_sibling) +
	       atomic_load(&c->miss_damaged) + atomic_load(&c->miss_tier) + atomic_load(&c->miss_cost) +
	       atomic_load(&c->miss_unasked);
}

/* What a miss is counted for is known only when the record was read. */
static void a_record_found_damaged_when_it_is_read_is_a_miss_counted_once_by_its_reason(void **state)
{
	struct trial *t = *state;
	const struct kvp_ns_counters *c;
	struct kvp_key keys[N];
	struct kvp_view views[N];

	given_a_damaged_record(t);
	c = &row_of_m(t)->counters;
	assert_int_equal(misses_of(c), 0);
	assert_int_equal(come_back(t->ns, 0, N), N - 1);
	assert_int_equal(atomic_load(&c->miss_damaged), 1);
	assert_int_equal(misses_of(c), 1);
	for (unsigned i = 0; i < 200 && atomic_load(&c->lookups) < N; i++) /* hits are told now and then */
		wire_sleep_ms(50);
	assert_int_equal(atomic_load(&c->lookups), N);
	assert_int_equal(atomic_load(&c->hits_ram) + atomic_load(&c->hits_spill), N - 1);

	/* the same of runs that are asked for in pieces */
	stop(t);
	start_anew(t);
	c = &row_of_m(t)->counters;
	for (unsigned k = 0; k < N; k++)
		keys[k] = wire_key(k);
	for (unsigned at = 0, n = 1; n; at += n) {
		n = (unsigned)kvp_acquire(t->ns, keys + at, N - at, KVP_ACQUIRE_SOME, kvp_deadline_ms(20000), views);
		kvp_release(views, n);
	}
	assert_int_equal(atomic_load(&c->miss_damaged), 1);
	assert_int_equal(misses_of(c), 1);
}

static void drop_wants_a_yes(void **state)
{
	struct trial *t = *state;

	given_cold_blocks(t, 10);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "store", "drop"), 2);
	assert_int_equal(come_back(t->ns, 0, 10), 10);
}

static void a_running_daemon_forgets_one_namespace_for_good(void **state)
{
	struct trial *t = *state;
	struct kvp_desc desc;
	struct kvp_ns *other;
	char out[OUT];

	trial_desc(&desc);
	assert_int_equal(trial_ns(t->client, "other", &desc, &other), 0);
	put_many(other, 0, N);
	given_cold_blocks(t, N);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "drop", "--ns", "other", "--yes"), 0);
	assert_non_null(strstr(out, "60 blocks"));
	assert_int_equal(come_back(other, 0, N), 0);
	assert_int_equal(come_back(t->ns, 0, N), N);
	put_many(other, 0, 5); /* the same keys, anew */
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	kvp_ns_close(other);
	trial_detach(t);
	host_kill(&t->host);
	start_anew(t);
	assert_int_equal(trial_ns(t->client, "other", &desc, &other), 0);
	assert_int_equal(come_back(other, 0, N), 5);
	assert_int_equal(come_back(t->ns, 0, N), N);
	kvp_ns_close(other);
}

static void what_operators_do_is_in_the_log_with_who_did_it_and_what_came_of_it(void **state)
{
	struct trial *t = *state;
	char who[64], line[200];
	static const struct {
		const char *act, *end;
	} said[] = {{"drain of the pool to its store", "drain: 60 blocks done, 0 left"},
		{"evict of all blocks of all namespaces", "evict: 60 blocks done, 0 left"},
		{"scrub of the store", NULL}, {"store drop of all namespaces", "store drop: 60 blocks done, 0 left"}};

	given_cold_blocks(t, N);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "store", "scrub", "--rate", "1G"), 0);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "store", "drop", "--yes"), 0);
	snprintf(who, sizeof(who), "asked for by uid %u, pid ", (unsigned)geteuid());
	assert_true(host_logged(&t->host, who, 0));
	for (unsigned i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
		snprintf(line, sizeof(line), ": %s", said[i].act);
		assert_true(host_logged(&t->host, line, 0));
		assert_true(!said[i].end || host_logged(&t->host, said[i].end, 0));
	}
}

static void a_drop_tells_what_went_with_a_block_above_it(void **state)
{
	struct trial *t = *state;
	char out[OUT];

	for (uint64_t k = 0; k < N; k++) { /* one chain */
		struct kvp_key key = wire_key(k), parent = wire_key(k - 1);

		assert_int_equal(trial_put(t->ns, &key, k ? &parent : NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "evict"), 0);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "drop", "--yes"), 0);
	assert_non_null(strstr(out, "60 blocks"));
	assert_int_equal(come_back(t->ns, 0, N), 0);
}

static void blocks_in_memory_stay_when_the_store_is_dropped(void **state)
{
	struct trial *t = *state;

	put_many(t->ns, 0, 10);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "store", "drop", "--yes"), 0);
	assert_int_equal(come_back(t->ns, 0, 10), 10);
	assert_int_equal(atomic_load(&row_of_m(t)->counters.clean), 0);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0); /* and may be written again */
	assert_int_equal(atomic_load(&row_of_m(t)->counters.clean), 10);
}

static void a_stopped_store_is_dropped_and_a_served_one_is_not(void **state)
{
	struct trial *t = *state;
	char out[OUT];

	given_cold_blocks(t, N);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "store", "drop", "--yes", t->spill), 1);
	assert_int_equal(come_back(t->ns, 0, N), N);
	stop(t);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "store", "drop", "--yes", t->spill), 0);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "list", t->spill), 0);
	assert_non_null(strstr(out, "0 records"));
	start_anew(t);
	assert_int_equal(come_back(t->ns, 0, N), 0);
	given_cold_blocks(t, 5);
	assert_int_equal(come_back(t->ns, 0, 5), 5);
}

static void what_is_no_store_is_refused(void **state)
{
	struct trial *t = *state;
	char out[OUT], file[200];

	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "list", "/dev/null"), 1);
	assert_non_null(strstr(out, "/dev/null is neither a directory, a file nor a block device"));
	snprintf(file, sizeof(file), "%s/" SPILL_STORE_NAME, t->spill);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "list", t->spill, file), 2); /* counted twice */
	assert_non_null(strstr(out, "are one store: name it once"));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "verify", "--rate", "1M"), 2);
	assert_non_null(strstr(out, "--rate is for scrub, not for verify"));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "list", "--ns", "m"), 2);
	assert_non_null(strstr(out, "--ns is for drop, not for list"));
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "store", "list", t->host.log), 1);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "store", "polish"), 2);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "store"), 2);
}

/* As a user whose environment names a pool that is not there. */
static int store_by_path(const char *what, const char *path, char out[OUT])
{
	const char *build = getenv("BUILD");
	char command[512];
	FILE *pipe;
	size_t n;

	snprintf(command, sizeof(command), "KVPOOL_SOCKET=/nowhere/sock %s/kvctl store %s %s 2>&1",
		build ? build : "build", what, path);
	pipe = popen(command, "r");
	assert_non_null(pipe);
	n = fread(out, 1, OUT - 1, pipe);
	out[n] = 0;
	return WEXITSTATUS(pclose(pipe));
}

static void a_path_needs_no_pool(void **state)
{
	struct trial *t = *state;
	char out[OUT];

	given_cold_blocks(t, 5);
	stop(t);
	assert_int_equal(store_by_path("list", t->spill, out), 0);
	assert_non_null(strstr(out, "5 records"));
	assert_int_equal(store_by_path("verify", t->spill, out), 0);
	assert_int_equal(store_by_path("list", "/nowhere", out), 1);
	assert_null(strstr(out, "NAMESPACE"));
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, trial_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(list_tells_the_same_running_and_stopped),
		TEST(verify_reads_every_record_and_names_no_damage_where_there_is_none),
		TEST(verify_counts_the_damaged_record_and_fails),
		TEST(list_and_verify_name_a_segment_that_cannot_be_read_and_how_many_records_it_had),
		TEST(a_store_whose_daemon_was_killed_has_no_lost_segment),
		TEST(verify_takes_no_record_that_is_being_written_for_a_damaged_one),
		TEST(a_scrub_makes_damage_a_miss_before_it_is_asked_for),
		TEST(a_path_needs_no_pool),
		TEST(a_record_found_damaged_when_it_is_read_is_a_miss_counted_once_by_its_reason),
		TEST(drop_wants_a_yes),
		TEST(a_running_daemon_forgets_one_namespace_for_good),
		TEST(what_operators_do_is_in_the_log_with_who_did_it_and_what_came_of_it),
		TEST(a_drop_tells_what_went_with_a_block_above_it),
		TEST(blocks_in_memory_stay_when_the_store_is_dropped),
		TEST(a_stopped_store_is_dropped_and_a_served_one_is_not),
		TEST(what_is_no_store_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
