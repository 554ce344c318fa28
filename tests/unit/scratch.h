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

/* Arm faults; the serial number makes an equal text count from 1 again.  Unit tests link a daemon built with KVP_FAULT. */
static inline void fault_arm(const char *rules)
{
	static unsigned serial;
	char text[256];

	snprintf(text, sizeof(text), "%s,serial=%u", rules, ++serial);
	setenv("KVPOOL_FAULT", text, 1);
}

static inline void fault_disarm(void)
{
	unsetenv("KVPOOL_FAULT");
}

#endif
