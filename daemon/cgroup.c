/* cgroup.c - see cgroup.h */
#include "cgroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cgroup_file(char path[CGROUP_PATH_MAX], const char *of_host)
{
	const char *root = getenv("KVPOOL_ROOT");

	snprintf(path, CGROUP_PATH_MAX, "%s%s", root ? root : "", of_host);
}

bool cgroup_own(char path[CGROUP_PATH_MAX])
{
	char line[512], where[CGROUP_PATH_MAX];
	bool found = false;
	FILE *file;

	cgroup_file(where, "/proc/self/cgroup");
	file = fopen(where, "re");
	while (file && !found && fgets(line, sizeof(line), file))
		if (!strncmp(line, "0::/", 4)) {
			line[strcspn(line, "\n")] = 0;
			cgroup_file(where, "/sys/fs/cgroup");
			found = snprintf(path, CGROUP_PATH_MAX, "%s%s", where, line[4] ? line + 3 : "") <
				CGROUP_PATH_MAX;
		}
	if (file)
		fclose(file);
	return found;
}

/* One level up. Return: false: it was the uppermost. */
static bool cgroup_up(char path[CGROUP_PATH_MAX])
{
	char top[CGROUP_PATH_MAX];

	cgroup_file(top, "/sys/fs/cgroup");
	if (strlen(path) <= strlen(top))
		return false;
	*strrchr(path, '/') = 0;
	return true;
}

/* The number in a file of the group; @otherwise: there is no such file, or it says "max". */
static uint64_t cgroup_number(const char *group, const char *name, uint64_t otherwise)
{
	unsigned long long n = otherwise;
	char path[CGROUP_PATH_MAX + 32];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", group, name);
	file = fopen(path, "re");
	if (!file)
		return otherwise;
	if (fscanf(file, "%llu", &n) != 1)
		n = otherwise;
	fclose(file);
	return n;
}

uint64_t cgroup_limit(void)
{
	char path[CGROUP_PATH_MAX];
	uint64_t limit = UINT64_MAX;

	if (!cgroup_own(path))
		return limit;
	do {
		uint64_t max = cgroup_number(path, "memory.max", UINT64_MAX);

		limit = max < limit ? max : limit;
	} while (cgroup_up(path));
	return limit;
}

/* Of the pages charged to the group: those of files, shared memory included, and of these shared memory. */
static void cgroup_stat(const char *group, uint64_t *file_bytes, uint64_t *shmem_bytes)
{
	char path[CGROUP_PATH_MAX + 32], line[128];
	unsigned long long n;
	FILE *file;

	*file_bytes = *shmem_bytes = 0;
	snprintf(path, sizeof(path), "%s/memory.stat", group);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "file %llu", &n) == 1)
			*file_bytes = n;
		else if (sscanf(line, "shmem %llu", &n) == 1)
			*shmem_bytes = n;
	if (file)
		fclose(file);
}

void cgroup_use(struct cgroup_use *use, uint64_t pool)
{
	char path[CGROUP_PATH_MAX];
	int64_t least = INT64_MAX;

	use->limit = UINT64_MAX;
	use->used = 0;
	if (!cgroup_own(path))
		return;
	do {
		uint64_t max = cgroup_number(path, "memory.max", UINT64_MAX), file_bytes, shmem;
		uint64_t high = cgroup_number(path, "memory.high", UINT64_MAX), used;

		max = high < max ? high : max;
		if (max == UINT64_MAX)
			continue;
		used = cgroup_number(path, "memory.current", 0);
		cgroup_stat(path, &file_bytes, &shmem);
		if (file_bytes > shmem)
			used -= used < file_bytes - shmem ? used : file_bytes - shmem;
		used += pool > shmem ? pool - shmem : 0;
		if ((int64_t)(max - used) >= least)
			continue;
		least = (int64_t)(max - used);
		use->limit = max;
		use->used = used;
		strcpy(use->path, path);
	} while (cgroup_up(path));
}
