/* log.c - see log.h */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static enum log_level log_level = LOG_LEVEL_INFO;
static int log_fd = STDERR_FILENO;
static bool log_priorities;
static _Atomic uint64_t log_n_lost, log_n_told;

/* systemd says what it connected standard error to; a shell that was started so may have put something else there. */
static bool log_is_journal(const struct stat *st)
{
	const char *stream = getenv("JOURNAL_STREAM");
	uintmax_t dev, ino;

	return stream && sscanf(stream, "%ju:%ju", &dev, &ino) == 2 && dev == st->st_dev && ino == st->st_ino;
}

void log_set_level(enum log_level level)
{
	log_level = level;
}

void log_open(void)
{
	struct stat st;
	int fd;

	if (log_fd != STDERR_FILENO)
		close(log_fd);
	log_fd = STDERR_FILENO;
	if (fstat(STDERR_FILENO, &st) < 0)
		return;
	log_priorities = log_is_journal(&st);
	/*
	 * A pipe or a terminal is opened anew: O_NONBLOCK then is ours alone, not that of everybody who shares it.
	 * Where that is refused (it was made by another user), asking for room before each write has to do.
	 */
	if (!S_ISFIFO(st.st_mode) && !isatty(STDERR_FILENO))
		return;
	fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
	if (fd >= 0)
		log_fd = fd;
}

uint64_t log_lost(void)
{
	return atomic_load_explicit(&log_n_lost, memory_order_relaxed);
}

/* One write, so that lines of two threads do not mix; it never waits. */
static bool log_put(const char *line, size_t n)
{
	struct pollfd room = {.fd = log_fd, .events = POLLOUT};

	if (send(log_fd, line, n, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return true;
	return errno == ENOTSOCK && poll(&room, 1, 0) == 1 && write(log_fd, line, n) >= 0;
}

static size_t log_format(char *line, size_t room, enum log_level level, const char *text, const char *rest)
{
	char prefix[8] = "";
	int n;

	if (log_priorities)
		snprintf(prefix, sizeof(prefix), "<%d>", (int)level);
	n = snprintf(line, room, "%skvpoold: %s%s\n", prefix, text, rest);
	if (n < (int)room)
		return (size_t)n;
	line[room - 2] = '\n';
	return room - 1;
}

/* Before a line: how many are lost since that was last told. */
static void log_tell_lost(void)
{
	uint64_t lost = log_lost(), told = atomic_load_explicit(&log_n_told, memory_order_relaxed);
	char line[160], text[100];

	if (lost == told || !atomic_compare_exchange_strong(&log_n_told, &told, lost))
		return;
	snprintf(text, sizeof(text), "%" PRIu64 " lines are lost: standard error did not take them", lost - told);
	if (!log_put(line, log_format(line, sizeof(line), LOG_LEVEL_WARN, text, "")))
		atomic_fetch_sub(&log_n_told, lost - told); /* with the next one then */
}

static void log_write(enum log_level level, const char *text, uint64_t left_out)
{
	char line[1200], rest[64] = "";

	log_tell_lost();
	if (left_out)
		snprintf(rest, sizeof(rest), " (%" PRIu64 " like it left out)", left_out);
	if (!log_put(line, log_format(line, sizeof(line), level, text, rest)))
		atomic_fetch_add_explicit(&log_n_lost, 1, memory_order_relaxed);
}

void log_line(enum log_level level, const char *format, ...)
{
	char text[1024];
	va_list args;

	if (level > log_level)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	log_write(level, text, 0);
}

void log_limited(struct log_limit *limit, enum log_level level, const char *format, ...)
{
	char text[1024];
	struct timespec ts;
	uint64_t now;
	va_list args;

	if (level > log_level)
		return;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	now = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
	if (now < limit->next_ns) {
		limit->left_out++;
		return;
	}
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	log_write(level, text, limit->left_out);
	limit->left_out = 0;
	limit->next_ns = now + 1000000000u;
}
