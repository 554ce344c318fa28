/* cgroup.c - see cgroup.h */
#include "cgroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_LIMIT (1ull << 62) /* what version 1 says without one is near 2^63, and depends on the size of pages */

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

/* The files of a group that say what of memory it may use and does; version 2, then 1, whose soft limit binds
   nobody. */
struct cgroup_names {
	const char *top, *max, *high, *used, *file, *shmem;
};
static const struct cgroup_names cgroup_names[] = {
	{"/sys/fs/cgroup", "memory.max", "memory.high", "memory.current", "file ", "shmem "},
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", NULL, "memory.usage_in_bytes", "total_cache ",
		"total_shmem "},
};

/* Directory of our own group in the hierarchy that counts memory: that of version 1, "4:memory:/path", where there is
   one. Its path may be the host's, which a container does not see: the uppermost directory is then the container's own. */
static const struct cgroup_names *cgroup_memory(char path[CGROUP_PATH_MAX])
{
	const struct cgroup_names *names = NULL;
	char line[512], where[CGROUP_PATH_MAX];
	FILE *file;

	cgroup_file(where, "/proc/self/cgroup");
	file = fopen(where, "re");
	while (file && !names && fgets(line, sizeof(line), file)) {
		char *group = strstr(line, ":memory:/");

		line[strcspn(line, "\n")] = 0;
		if (!group)
			continue;
		group += strlen(":memory:");
		cgroup_file(where, cgroup_names[1].top);
		if (snprintf(path, CGROUP_PATH_MAX, "%s%s", where, group[1] ? group : "") < CGROUP_PATH_MAX)
			names = &cgroup_names[1];
	}
	if (file)
		fclose(file);
	return names ? names : cgroup_own(path) ? &cgroup_names[0] : NULL;
}

/* One level up. Return: false: it was the uppermost. */
static bool cgroup_up(const struct cgroup_names *names, char path[CGROUP_PATH_MAX])
{
	char top[CGROUP_PATH_MAX];

	cgroup_file(top, names->top);
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

static uint64_t cgroup_max(const struct cgroup_names *names, const char *group)
{
	uint64_t max = cgroup_number(group, names->max, UINT64_MAX);

	return max < NO_LIMIT ? max : UINT64_MAX;
}

uint64_t cgroup_limit(void)
{
	char path[CGROUP_PATH_MAX];
	const struct cgroup_names *names = cgroup_memory(path);
	uint64_t limit = UINT64_MAX;

	if (!names)
		return limit;
	do {
		uint64_t max = cgroup_max(names, path);

		limit = max < limit ? max : limit;
	} while (cgroup_up(names, path));
	return limit;
}

/* Of the pages charged to the group: those of files, shared memory included, and of these shared memory. */
static void cgroup_stat(
	const struct cgroup_names *names, const char *group, uint64_t *file_bytes, uint64_t *shmem_bytes)
{
	char path[CGROUP_PATH_MAX + 32], line[128];
	FILE *file;

	*file_bytes = *shmem_bytes = 0;
	snprintf(path, sizeof(path), "%s/memory.stat", group);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		if (strncmp(line, names->file, strlen(names->file)) == 0)
			*file_bytes = strtoull(line + strlen(names->file), NULL, 10);
		else if (strncmp(line, names->shmem, strlen(names->shmem)) == 0)
			*shmem_bytes = strtoull(line + strlen(names->shmem), NULL, 10);
	}
	if (file)
		fclose(file);
}

void cgroup_use(struct cgroup_use *use, uint64_t pool)
{
	char path[CGROUP_PATH_MAX];
	const struct cgroup_names *names = cgroup_memory(path);
	int64_t least = INT64_MAX;

	use->limit = UINT64_MAX;
	use->used = 0;
	if (!names)
		return;
	do {
		uint64_t max = cgroup_max(names, path), file_bytes, shmem, used;
		uint64_t high = names->high ? cgroup_number(path, names->high, UINT64_MAX) : UINT64_MAX;

		max = high < max ? high : max;
		if (max == UINT64_MAX)
			continue;
		used = cgroup_number(path, names->used, 0);
		cgroup_stat(names, path, &file_bytes, &shmem);
		if (file_bytes > shmem)
			used -= used < file_bytes - shmem ? used : file_bytes - shmem;
		used += pool > shmem ? pool - shmem : 0;
		if ((int64_t)(max - used) >= least)
			continue;
		least = (int64_t)(max - used);
		use->limit = max;
		use->used = used;
		strcpy(use->path, path);
	} while (cgroup_up(names, path));
}
