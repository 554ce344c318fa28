/*
 * cmocka.h - as much of cmocka as the tests of attention need, for make check-arm: Debian has no cross-built one
 *
 * A failed assertion ends the program: what it says is enough to go on with.
 */
#ifndef KVPOOL_TEST_ARM_CMOCKA_H
#define KVPOOL_TEST_ARM_CMOCKA_H

#include <fnmatch.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
	const char *name;
	void (*run)(void **state);
};
#define cmocka_unit_test(f) \
	{ \
#f, f \
	}

static const char *arm_only;
static jmp_buf arm_skipped;

#define arm_must(is, ...) \
	do { \
		if (!(is)) { \
			fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
			fprintf(stderr, __VA_ARGS__); \
			fputc('\n', stderr); \
			exit(1); \
		} \
	} while (0)
#define fail_msg(...) arm_must(0, __VA_ARGS__)
#define assert_true(is) arm_must(is, "%s", #is)
#define assert_false(is) arm_must(!(is), "not: %s", #is)
#define assert_int_equal(a, b) arm_must((uintmax_t)(a) == (uintmax_t)(b), "%s is %jd, not %s", #a, (intmax_t)(a), #b)
#define assert_in_range(a, low, high) \
	arm_must((uintmax_t)(a) >= (uintmax_t)(low) && (uintmax_t)(a) <= (uintmax_t)(high), "%s is %jd", #a, \
		(intmax_t)(a))
#define assert_non_null(p) arm_must((p) != NULL, "%s is NULL", #p)
#define assert_ptr_not_equal(a, b) arm_must((a) != (b), "%s is %s", #a, #b)
#define assert_string_equal(a, b) arm_must(strcmp(a, b) == 0, "%s is not %s", #a, #b)
#define assert_memory_equal(a, b, n) arm_must(memcmp(a, b, n) == 0, "%s differs from %s", #a, #b)
#define print_message(...) printf(__VA_ARGS__)
#define skip() longjmp(arm_skipped, 1)

static inline void cmocka_set_test_filter(const char *pattern)
{
	arm_only = pattern;
}

static inline int arm_run(const struct CMUnitTest *tests, size_t n)
{
	static void *state;
	static size_t i, n_passed;

	for (i = n_passed = 0; i < n; i++) {
		if (arm_only && fnmatch(arm_only, tests[i].name, 0))
			continue;
		if (setjmp(arm_skipped)) {
			printf("%s: skipped\n", tests[i].name);
			continue;
		}
		tests[i].run(&state);
		n_passed++;
	}
	printf("%zu passed\n", n_passed);
	return n_passed == 0;
}
#define cmocka_run_group_tests_name(name, tests, setup, teardown) arm_run(tests, sizeof(tests) / sizeof((tests)[0]))
#define cmocka_run_group_tests(tests, setup, teardown) cmocka_run_group_tests_name("", tests, setup, teardown)

#endif
