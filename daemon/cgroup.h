/*
 * cgroup.h - what this daemon's control group says of memory: its limits, what of them is used, its pressure (version 2
 * only)
 *
 * Only files are read.  KVPOOL_ROOT in the environment is put before /proc and /sys: for tests.
 */
#ifndef KVPOOL_CGROUP_H
#define KVPOOL_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#define CGROUP_PATH_MAX 600

/** cgroup_file() - path of a file of the host, "/proc/..." or "/sys/..." */
void cgroup_file(char path[CGROUP_PATH_MAX], const char *of_host);
/** cgroup_own() - directory of our own group of version 2. Return: false: there is none. */
bool cgroup_own(char path[CGROUP_PATH_MAX]);
/** cgroup_limit() - the smallest memory.max, or of version 1 memory.limit_in_bytes, of our group and those above it; UINT64_MAX:
 *  none */
uint64_t cgroup_limit(void);

/* The group, ours or one above, that has the least left of its limit. */
struct cgroup_use {
	uint64_t limit; /* memory.max or memory.high; UINT64_MAX: none has one */
	uint64_t used;
	char path[CGROUP_PATH_MAX];
};
/** cgroup_use() - @pool: bytes of shared memory that are the pool's, whoever touched them first: those of an earlier daemon are
 *  charged to a group that is gone.  Page cache does not count, the kernel takes it back first. */
void cgroup_use(struct cgroup_use *use, uint64_t pool);

#endif
