/*
 * test_bench_daemon.c - kvctl bench on a daemon that serves already, as small as it is; no times are judged
 *
 * kvpool-test: timeout=300
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trial.h"

#define OUTPUT 65536

static int setup(void **state)
{
	return trial_setup(state, "64M", "256M");
}

/* The rows of one kind, whose names are as given; exit 1 is a target missed. */
static void rows_are(const struct trial *t, const char *kind, const char *const *names, unsigned n_names)
{
	static char out[OUTPUT];
	int code = TRIAL_KVCTL(t, out, sizeof(out), "bench", kind, "--json", "--pairs", "1", "--depth", "8");
	char *rows = strstr(out, "[\n") ? strstr(out, "[\n") : strchr(out, '[');
	json_t *json = rows ? json_loads(rows, JSON_DISABLE_EOF_CHECK, NULL) : NULL;

	if (code < 0 || code > 1 || !json)
		fail_msg("exit %d: %s", code, out);
	for (unsigned i = 0; i < n_names; i++) {
		bool found = false;

		for (size_t k = 0; k < json_array_size(json) && !found; k++) {
			const json_t *row = json_array_get(json, k);

			found = !strncmp(json_string_value(json_object_get(row, "name")), names[i], strlen(names[i])) &&
				json_number_value(json_object_get(row, "value")) >= 0;
		}
		if (!found)
			fail_msg("no row \"%s\" in %s", names[i], out);
	}
	json_decref(json);
}

static void a_prefix_is_shared_in_a_pool_smaller_than_a_gigabyte(void **state)
{
	static const char *const names[] = {
		"get and read a block of 2 MiB, second pass", "get and read a block of 2 MiB, first pass"};

	rows_are(*state, "share", names, 2);
}

static void without_a_store_there_is_nothing_to_spill_to(void **state)
{
	struct trial t;
	char out[4096];

	(void)state;
	trial_given(&t, geteuid(), "16M", NULL);
	trial_start(&t);
	assert_int_equal(TRIAL_KVCTL(&t, out, sizeof(out), "bench", "spill"), 1);
	assert_non_null(strstr(out, "this daemon has no spill store: start it with --spill DIR:SIZE, or use --self"));
	assert_true(trial_end(&t));
}

#define test(name) cmocka_unit_test_setup_teardown(name, setup, trial_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_prefix_is_shared_in_a_pool_smaller_than_a_gigabyte),
		cmocka_unit_test(without_a_store_there_is_nothing_to_spill_to),
	};

	return cmocka_run_group_tests_name("kvctl bench beside others", tests, NULL, NULL);
}
