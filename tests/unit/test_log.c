/* test_log.c - lines for people: never waited for, never lost without a word, priorities for the journal only */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log.h"

/* What stands at 2 while the daemon's lines go there; cmocka's own come afterwards. */
struct error_end {
	int saved, reader;
};

static struct error_end given_stderr(int writer, int reader)
{
	struct error_end end = {.saved = dup(STDERR_FILENO), .reader = reader};

	assert_true(end.saved >= 0);
	assert_int_equal(dup2(writer, STDERR_FILENO), STDERR_FILENO);
	close(writer);
	fcntl(reader, F_SETFL, O_NONBLOCK);
	return end;
}

static struct error_end given_pipe(void)
{
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	return given_stderr(ends[1], ends[0]);
}

static struct error_end given_stream_socket(void)
{
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	return given_stderr(ends[1], ends[0]);
}

static void stderr_back(const struct error_end *end)
{
	dup2(end->saved, STDERR_FILENO);
	close(end->saved);
	close(end->reader);
	log_open();
}

static void drain(const struct error_end *end)
{
	char text[4096];

	while (read(end->reader, text, sizeof(text)) > 0)
		continue;
}

static void said(const struct error_end *end, char text[4096])
{
	ssize_t n = read(end->reader, text, 4095);

	text[n > 0 ? n : 0] = 0;
}

/* Nobody reads: it goes on all the same, and who reads later learns how much is missing. */
static void lost_lines_are_counted_and_told(struct error_end end)
{
	uint64_t before, lost;
	char text[4096], want[100];

	log_open();
	before = log_lost();
	alarm(20); /* a line that is waited for ends this test */
	for (unsigned i = 0; i < 1000000 && log_lost() < before + 3; i++)
		log_info("%0100u", i);
	lost = log_lost() - before;
	drain(&end);
	log_info("now it is read");
	alarm(0);
	said(&end, text);
	stderr_back(&end);
	assert_int_equal(lost, 3);
	snprintf(want, sizeof(want),
		"kvpoold: %" PRIu64 " lines are lost: standard error did not take them\nkvpoold: now it is read\n",
		lost);
	assert_string_equal(text, want);
	assert_int_equal(log_lost() - before, lost);
}

static void lines_that_a_full_pipe_does_not_take_are_lost_and_told(void **state)
{
	(void)state;
	lost_lines_are_counted_and_told(given_pipe());
}

static void lines_that_a_full_stream_does_not_take_are_lost_and_told(void **state)
{
	(void)state;
	lost_lines_are_counted_and_told(given_stream_socket());
}

static void others_at_the_same_pipe_write_as_before(void **state)
{
	struct error_end end = given_pipe();
	int flags;

	(void)state;
	log_open();
	flags = fcntl(STDERR_FILENO, F_GETFL);
	stderr_back(&end);
	assert_false(flags & O_NONBLOCK);
}

static void priorities_are_for_the_journal_only(void **state)
{
	struct error_end end = given_pipe();
	char stream[64], text[3][4096];
	struct stat st;

	(void)state;
	unsetenv("JOURNAL_STREAM");
	log_open();
	log_warn("by hand");
	said(&end, text[0]);
	assert_int_equal(fstat(STDERR_FILENO, &st), 0);
	snprintf(stream, sizeof(stream), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	log_open();
	log_warn("as a service");
	said(&end, text[1]);
	snprintf(stream, sizeof(stream), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino + 1);
	setenv("JOURNAL_STREAM", stream, 1);
	log_open();
	log_warn("by a service, to somewhere else");
	said(&end, text[2]);
	unsetenv("JOURNAL_STREAM");
	stderr_back(&end);
	assert_string_equal(text[0], "kvpoold: by hand\n");
	assert_string_equal(text[1], "<4>kvpoold: as a service\n");
	assert_string_equal(text[2], "kvpoold: by a service, to somewhere else\n");
}

static void a_line_too_long_is_cut_and_still_a_line(void **state)
{
	struct error_end end = given_pipe();
	char text[4096], *big = malloc(3000);

	(void)state;
	assert_non_null(big);
	memset(big, 'x', 2999);
	big[2999] = 0;
	log_open();
	log_info("%s", big);
	said(&end, text);
	stderr_back(&end);
	free(big);
	assert_true(strlen(text) > 1000 && strlen(text) < 1200);
	assert_int_equal(text[strlen(text) - 1], '\n');
	assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_that_a_full_pipe_does_not_take_are_lost_and_told),
		cmocka_unit_test(lines_that_a_full_stream_does_not_take_are_lost_and_told),
		cmocka_unit_test(others_at_the_same_pipe_write_as_before),
		cmocka_unit_test(priorities_are_for_the_journal_only),
		cmocka_unit_test(a_line_too_long_is_cut_and_still_a_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
