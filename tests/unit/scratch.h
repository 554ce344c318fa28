/*
 * scratch.h - a directory of a test's own on a real disk, gone with the test; faults armed anew
 */
#ifndef KVPOOL_TEST_SCRATCH_H
#define KVPOOL_TEST_SCRATCH_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/fault.h"

static inline int scratch_remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static inline void scratch_remove(const char *dir)
{
	nftw(dir, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* /var/tmp: /tmp may be a tmpfs, which not every kernel lets O_DIRECT into. */
static inline void scratch_make(char dir[64])
{
	const char *base = getenv("TMPDIR");

	snprintf(dir, 64, "%.40s/kvpool-test-XXXXXX", base ? base : "/var/tmp");
	if (!mkdtemp(dir)) {
		perror(dir);
		exit(1);
	}
}

/* Arm faults, counted from 1. Unit tests link a daemon built with KVP_FAULT. */
static inline void fault_arm(const char *rules)
{
	fault_set(rules);
}

static inline void fault_disarm(void)
{
	fault_set("");
}

#endif
