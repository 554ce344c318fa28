/* log.c - see log.h */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static enum log_level log_level = LOG_LEVEL_INFO;

void log_set_level(enum log_level level)
{
	log_level = level;
}

static void log_write(enum log_level level, const char *text, uint64_t left_out)
{
	char line[1200];
	int n = left_out ? snprintf(line, sizeof(line), "<%d>kvpoold: %s (%llu like it left out)\n", (int)level, text,
				   (unsigned long long)left_out)
			 : snprintf(line, sizeof(line), "<%d>kvpoold: %s\n", (int)level, text);

	if (n > (int)sizeof(line) - 1) {
		n = sizeof(line) - 1;
		line[n - 1] = '\n';
	}
	/* one write: lines of two threads do not mix; a reader that does not take them loses them, not us */
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return;
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
