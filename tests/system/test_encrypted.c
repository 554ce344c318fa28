/* test_encrypted.c - spill stores with a key of the operator's: --spill-key-file, and what kvctl says of them */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trial.h"

#define N 200u /* three times the pool */

struct keyed {
	struct trial t;
	char first[128], second[128]; /* files of keys */
	unsigned n_options; /* without keys */
};

static void key_file(struct keyed *k, char path[128], const char *name, char letter)
{
	FILE *f;

	snprintf(path, 128, "%s/%s", k->t.host.dir, name);
	f = fopen(path, "we");
	assert_non_null(f);
	for (unsigned i = 0; i < 32; i++)
		fputc(letter, f);
	fclose(f);
	assert_int_equal(chmod(path, 0400), 0);
}

static void keys_are(struct keyed *k, const char *first, const char *second)
{
	unsigned n = k->n_options;

	for (unsigned i = 0; i < 2; i++) {
		const char *path = i ? second : first;

		if (!path)
			continue;
		k->t.host.argv[n++] = "--spill-key-file";
		k->t.host.argv[n++] = path;
	}
	k->t.host.argv[n] = NULL;
}

static int setup(void **state)
{
	struct keyed *k = calloc(1, sizeof(*k));

	assert_non_null(k);
	trial_given(&k->t, geteuid(), "4M", "64M");
	while (k->t.host.argv[k->n_options])
		k->n_options++;
	key_file(k, k->first, "first.key", 'a');
	key_file(k, k->second, "second.key", 'b');
	keys_are(k, k->first, NULL);
	trial_start(&k->t);
	trial_attach(&k->t);
	*state = k;
	return 0;
}

static int teardown(void **state)
{
	struct keyed *k = *state;
	bool well;

	unlink(k->first);
	unlink(k->second);
	well = trial_end(&k->t);
	free(k);
	return well ? 0 : -1;
}

static void put_all(struct kvp_ns *ns, uint64_t from, uint64_t n)
{
	for (uint64_t i = from; i < from + n; i++) {
		struct kvp_key key = wire_key(i);

		assert_int_equal(trial_put(ns, &key, NULL, i, TRIAL_BLOCK), KVP_PUB_STORED);
	}
}

static unsigned count_back(struct kvp_ns *ns, uint64_t n)
{
	unsigned found = 0;

	for (uint64_t i = 0; i < n; i++) {
		struct kvp_key key = wire_key(i);
		int r = trial_get(ns, &key, i, TRIAL_BLOCK);

		assert_true(r >= 0);
		found += (unsigned)r;
	}
	return found;
}

static void stop(struct keyed *k)
{
	assert_int_equal(TRIAL_KVCTL(&k->t, NULL, 0, "drain"), 0);
	trial_detach(&k->t);
	assert_int_equal(host_stop(&k->t.host), 0);
}

static void encrypted_blocks_come_back_exact_over_kills_and_reboots(void **state)
{
	struct keyed *k = *state;
	char out[8192];

	put_all(k->t.ns, 0, N);
	assert_int_equal(count_back(k->t.ns, N), N);
	assert_int_equal(TRIAL_KVCTL(&k->t, out, sizeof(out), "stats"), 0);
	assert_non_null(strstr(out, ", encrypted"));
	trial_detach(&k->t);
	host_kill(&k->t.host);
	trial_start(&k->t);
	trial_attach(&k->t);
	assert_int_equal(count_back(k->t.ns, N), N);
	trial_reboot(&k->t);
	assert_int_equal(count_back(k->t.ns, N), N);
}

static void kvctl_shows_an_encrypted_store_with_its_key_and_counts_it_without(void **state)
{
	struct keyed *k = *state;
	char out[8192];

	put_all(k->t.ns, 0, N);
	stop(k);
	assert_int_equal(TRIAL_KVCTL(&k->t, out, sizeof(out), "store", "list", k->t.spill), 0);
	assert_non_null(strstr(out, "200 records"));
	assert_non_null(strstr(out, "encrypted, with key "));
	assert_non_null(strstr(out, "without --key-file"));
	assert_null(strstr(out, "without a seal")); /* they have one, though its entries cannot be read */
	assert_int_equal(TRIAL_KVCTL(&k->t, out, sizeof(out), "store", "verify", k->t.spill), 0);
	assert_null(strstr(out, "without a seal"));
	assert_non_null(strstr(out, "200 records"));
	assert_non_null(strstr(out, "0 damaged"));
	assert_int_equal(
		TRIAL_KVCTL(&k->t, out, sizeof(out), "store", "verify", "--key-file", k->first, k->t.spill), 0);
	assert_non_null(strstr(out, "0 damaged"));
	assert_null(strstr(out, "without --key-file"));
	assert_int_equal(TRIAL_KVCTL(&k->t, out, sizeof(out), "store", "list", "--key-file", k->first, k->t.spill), 0);
	assert_non_null(strstr(out, "200 records"));
	assert_non_null(strstr(out, "\nm ")); /* the namespace, by its name */
	assert_int_equal(TRIAL_KVCTL(&k->t, out, sizeof(out), "store", "list", "--key-file", k->second, k->t.spill), 1);
	assert_non_null(strstr(out, "which is in no --key-file given"));
	assert_int_equal(chmod(k->first, 0444), 0);
	assert_int_equal(TRIAL_KVCTL(&k->t, out, sizeof(out), "store", "list", "--key-file", k->first, k->t.spill), 1);
	assert_non_null(strstr(out, "chmod 0400"));
	assert_int_equal(chmod(k->first, 0400), 0);
	trial_start(&k->t);
	trial_attach(&k->t);
}

static void a_start_without_the_key_or_with_another_says_so_and_takes_nothing_away(void **state)
{
	struct keyed *k = *state;

	put_all(k->t.ns, 0, N);
	stop(k);
	keys_are(k, NULL, NULL);
	assert_int_not_equal(host_start(&k->t.host, NULL), 0);
	assert_true(host_logged(&k->t.host, "which spill-key-file is to name: give it, or", 2000));
	keys_are(k, k->second, NULL);
	assert_int_not_equal(host_start(&k->t.host, NULL), 0);
	assert_true(host_logged(&k->t.host, "which is in no spill-key-file given: give it, or", 2000));
	assert_int_equal(chmod(k->first, 0440 | 04), 0);
	keys_are(k, k->first, NULL);
	assert_int_not_equal(host_start(&k->t.host, NULL), 0);
	assert_true(host_logged(&k->t.host, "can be read or written by others", 2000));
	assert_int_equal(chmod(k->first, 0400), 0);
	keys_are(k, k->second, k->first);
	trial_memory_gone(&k->t);
	trial_start(&k->t);
	trial_attach(&k->t);
	assert_int_equal(count_back(k->t.ns, N), N);
	put_all(k->t.ns, N, 100); /* with the second one */
	trial_reboot(&k->t);
	assert_int_equal(count_back(k->t.ns, N + 100), N + 100);
}

static void a_store_in_plain_is_encrypted_only_when_what_is_in_it_was_dropped(void **state)
{
	struct keyed *k = *state;
	char out[4096];

	stop(k);
	assert_int_equal(TRIAL_KVCTL(&k->t, out, sizeof(out), "store", "drop", "--yes", k->t.spill), 0);
	keys_are(k, NULL, NULL);
	trial_start(&k->t);
	trial_attach(&k->t);
	put_all(k->t.ns, 0, N);
	stop(k);
	keys_are(k, k->first, NULL);
	assert_int_not_equal(host_start(&k->t.host, NULL), 0);
	assert_true(host_logged(&k->t.host, "was written without a key: start without spill-key-file, or", 2000));
	assert_int_equal(TRIAL_KVCTL(&k->t, out, sizeof(out), "store", "drop", "--yes", k->t.spill), 0);
	trial_start(&k->t);
	trial_attach(&k->t);
	put_all(k->t.ns, 1000, 100);
	stop(k);
	assert_int_equal(TRIAL_KVCTL(&k->t, out, sizeof(out), "store", "list", k->t.spill), 0);
	assert_non_null(strstr(out, "encrypted, with key "));
	trial_start(&k->t);
	trial_attach(&k->t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			encrypted_blocks_come_back_exact_over_kills_and_reboots, setup, teardown),
		cmocka_unit_test_setup_teardown(
			kvctl_shows_an_encrypted_store_with_its_key_and_counts_it_without, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_start_without_the_key_or_with_another_says_so_and_takes_nothing_away, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_store_in_plain_is_encrypted_only_when_what_is_in_it_was_dropped, setup, teardown),
	};

	return cmocka_run_group_tests_name("encrypted", tests, NULL, NULL);
}
