/*
 * patience.h - how long this process's threads were ready to run and others ran: what a busy host makes late is
 * nobody's fault
 *
 * For programs that judge how long a call took.  Threads that begin after patience_begin() do not count.
 */
#ifndef KVPOOL_TEST_PATIENCE_H
#define KVPOOL_TEST_PATIENCE_H

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_THREADS 16

struct patience {
	int fds[PATIENCE_THREADS];
	unsigned n;
};

static inline void patience_begin(struct patience *p)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	char path[300];

	p->n = 0;
	while (dir && (entry = readdir(dir)) && p->n < PATIENCE_THREADS) {
		snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", entry->d_name);
		p->fds[p->n] = entry->d_name[0] == '.' ? -1 : open(path, O_RDONLY | O_CLOEXEC);
		p->n += p->fds[p->n] >= 0;
	}
	if (dir)
		closedir(dir);
}

static inline void patience_end(struct patience *p)
{
	while (p->n)
		close(p->fds[--p->n]);
}

/* In nanoseconds, all threads together. */
static inline uint64_t patience_waited(const struct patience *p)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < p->n; i++) {
		unsigned long long waited = 0;
		char text[80] = "";

		if (pread(p->fds[i], text, sizeof(text) - 1, 0) > 0 && sscanf(text, "%*u %llu", &waited) == 1)
			sum += waited;
	}
	return sum;
}

#endif
