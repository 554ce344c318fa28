/*
 * log.h - lines for people, on stderr; in the journal with the priorities it understands
 *
 * Any thread, and none ever waits: what a pipe or a terminal does not take at once is lost and counted, and the next
 * line that is taken says so.  A message that comes in a stream goes through log_limited(): at most one line a second
 * for each limit, with the number of those left out.
 */
#ifndef KVPOOL_LOG_H
#define KVPOOL_LOG_H

#include <stdint.h>

enum log_level {
	LOG_LEVEL_ERR = 3,
	LOG_LEVEL_WARN = 4,
	LOG_LEVEL_INFO = 6,
	LOG_LEVEL_DEBUG = 7,
};

struct log_limit {
	uint64_t next_ns;
	uint64_t left_out;
};

/** log_open() - look at what stderr is; before the first line. Not called: plain lines, and a full pipe is waited
 *  for. */
void log_open(void);
/** log_lost() - lines not taken since the start */
uint64_t log_lost(void);
void log_set_level(enum log_level level);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_limited(struct log_limit *limit, enum log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#define log_err(...) log_line(LOG_LEVEL_ERR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
