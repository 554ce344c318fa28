/* test_kvctl_quantity.c - how kvctl shows what others chose: nothing of it steers a terminal, letters of any script
   stay */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <locale.h>
#include <string.h>

#include "../../client/kvctl/quantity.h"

static void shows(const char *from, const char *as)
{
	char text[64];

	assert_string_equal(text_path(text, sizeof(text), from, strlen(from)), as);
}

static void a_path_keeps_letters_of_any_script_in_any_locale(void **state)
{
	static const char *const locales[] = {"C", "C.UTF-8"};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		assert_non_null(setlocale(LC_ALL, locales[i]));
		shows("/srv/kv pool's", "/srv/kv pool's");
		shows("/ein Ort f\xc3\xbcr/\xe6\x97\xa5\xe6\x9c\xac", "/ein Ort f\xc3\xbcr/\xe6\x97\xa5\xe6\x9c\xac");
		shows("u\xcc\x88", "u\xcc\x88"); /* as a Mac writes it: the dots are a character of their own */
		shows("\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80");
		assert_string_equal(setlocale(LC_ALL, NULL), locales[i]);
	}
	setlocale(LC_ALL, "C");
}

static void a_path_loses_what_steers_a_terminal_or_is_no_character(void **state)
{
	(void)state;
	shows("a\x1b[2Jb\n\x7f", "a?[2Jb??");
	shows("a\xc2\x9b"
	      "b",
		"a??b"); /* a control of eight bits */
	shows("a\xe2\x80\xae"
	      "b",
		"a???b"); /* from right to left */
	shows("\xd8\x9c\xef\xbb\xbf\xe2\x80\x8b", "????????");
	shows("\xc0\xaf\xe0\x80\xaf", "?????"); /* a slash in more bytes than it takes */
	shows("\xed\xa0\x80\xf4\x90\x80\x80\xff", "????????"); /* a surrogate; beyond the last one */
	shows("a\xe6\x97", "a??"); /* cut off */
}

static void a_path_that_is_too_long_ends_between_two_characters(void **state)
{
	char text[6];

	(void)state;
	assert_string_equal(text_path(text, sizeof(text), "abc\xe6\x97\xa5", 6), "abc");
	assert_string_equal(text_path(text, sizeof(text), "ab\xe6\x97\xa5", 5), "ab\xe6\x97\xa5");
	assert_string_equal(text_path(text, sizeof(text), "ab\xe6\x97\xa5", 4), "ab??");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_path_keeps_letters_of_any_script_in_any_locale),
		cmocka_unit_test(a_path_loses_what_steers_a_terminal_or_is_no_character),
		cmocka_unit_test(a_path_that_is_too_long_ends_between_two_characters),
	};

	return cmocka_run_group_tests_name("kvctl quantity", tests, NULL, NULL);
}
