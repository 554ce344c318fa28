/* pages.c - see pages.h */
#include "pages.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <mntent.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "daemon.h"
#include "log.h"
#include "shm.h"

#define SHMEM_ENABLED "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

static const char *const names[] = {"4k", "thp", "2M", "1G"};

/* ---- hugetlbfs ---- */

/* May slabs of such pages be made there? */
static bool dir_fits(const char *dir, uint64_t page, char why[256])
{
	struct statfs fs;

	if (strlen(dir) >= KVP_HUGE_DIR_MAX)
		snprintf(why, 256, "%.100s: a path of %u bytes at most", dir, KVP_HUGE_DIR_MAX - 1);
	else if (statfs(dir, &fs) < 0)
		snprintf(why, 256, "%s: %s", dir, strerror(errno));
	else if (fs.f_type != HUGETLBFS_MAGIC || (uint64_t)fs.f_bsize != page)
		snprintf(why, 256, "%s is not in a hugetlbfs of %" PRIu64 "M pages", dir, page >> 20);
	else if (access(dir, W_OK | X_OK) < 0)
		snprintf(why, 256, "%s is not writable for this user: chown it, or name a directory in it", dir);
	else
		return true;
	return false;
}

/* Call look() for each hugetlbfs mount until it is true. */
static bool mounts_look(bool (*look)(void *owner, const char *dir), void *owner)
{
	FILE *file = setmntent("/proc/self/mounts", "re");
	struct mntent *mount;
	bool found = false;

	while (file && !found && (mount = getmntent(file)))
		found = !strcmp(mount->mnt_type, "hugetlbfs") && look(owner, mount->mnt_dir);
	if (file)
		endmntent(file);
	return found;
}

struct search {
	uint64_t page;
	char *dir, *why;
};

static bool search_mount(void *owner, const char *dir)
{
	struct search *search = owner;

	if (!dir_fits(dir, search->page, search->why))
		return false;
	strcpy(search->dir, dir);
	return true;
}

static bool pages_find_dir(struct daemon *d, char why[256])
{
	struct kvp_pool_header *header = d->pool.header;
	struct search search = {.page = kvp_pages_bytes(header->pages), .dir = header->huge_dir, .why = why};
	const char *wish = d->config.hugetlbfs;

	if (header->huge_dir[0] && dir_fits(header->huge_dir, search.page, why)) {
		if (wish[0] && strcmp(wish, header->huge_dir))
			log_warn("hugetlbfs: this pool's slabs lie in %s, and stay there until it is purged",
				header->huge_dir);
		return true;
	}
	memset(header->huge_dir, 0, sizeof(header->huge_dir));
	snprintf(why, 256, "no hugetlbfs of %" PRIu64 "M pages is mounted", search.page >> 20);
	return wish[0] ? search_mount(&search, wish) : mounts_look(search_mount, &search);
}

static uint64_t pages_number(uint64_t page, const char *name)
{
	unsigned long long n = 0;
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/%s", page >> 10, name);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (fscanf(file, "%llu", &n) != 1)
		n = 0;
	fclose(file);
	return n;
}

uint64_t pages_free(enum kvp_pages pages)
{
	uint64_t page = kvp_pages_bytes(pages), have, promised;

	if (!kvp_pages_in_hugetlbfs(pages))
		return 0;
	have = pages_number(page, "free_hugepages") + pages_number(page, "nr_overcommit_hugepages");
	promised = pages_number(page, "resv_hugepages") + pages_number(page, "surplus_hugepages");
	return have > promised ? (have - promised) * page : 0;
}

struct sweep {
	const uint8_t *uuid;
	bool (*keep)(void *owner, const char *rest);
	void *owner;
};

static bool sweep_dir(void *owner, const char *dir)
{
	const struct sweep *sweep = owner;

	shm_remove_all_in(dir, sweep->uuid, sweep->keep, sweep->owner);
	return false;
}

void pages_remove_all(const uint8_t uuid[16], const struct kvp_pool_header *header, const struct config *config,
	bool (*keep)(void *owner, const char *rest), void *owner)
{
	struct sweep sweep = {.uuid = uuid, .keep = keep, .owner = owner};

	if (header && header->huge_dir[0])
		sweep_dir(&sweep, header->huge_dir);
	if (config->hugetlbfs[0])
		sweep_dir(&sweep, config->hugetlbfs);
	mounts_look(sweep_dir, &sweep);
}

/* ---- transparent huge pages ---- */

/* For files of a tmpfs its mount option counts, unless the switch for all shared memory overrules it. */
static bool thp_allowed(char why[256])
{
	char line[128] = "", options[256] = "";
	FILE *file = fopen(SHMEM_ENABLED, "re");
	struct mntent *mount;

	if (!file || !fgets(line, sizeof(line), file))
		snprintf(why, 256, "this kernel has no huge pages for shared memory (" SHMEM_ENABLED " is missing)");
	if (file)
		fclose(file);
	if (!line[0] || strstr(line, "[force]"))
		return line[0];
	if (strstr(line, "[deny]")) {
		snprintf(why, 256, SHMEM_ENABLED " is deny: echo advise >" SHMEM_ENABLED);
		return false;
	}
	file = setmntent("/proc/self/mounts", "re");
	while (file && (mount = getmntent(file)))
		if (!strcmp(mount->mnt_dir, SHM_DIR)) /* the last one is on top */
			snprintf(options, sizeof(options), "%s", mount->mnt_opts);
	if (file)
		endmntent(file);
	if (strstr(options, "huge=") && !strstr(options, "huge=never"))
		return true;
	snprintf(why, 256, SHM_DIR " is mounted without huge=: mount -o remount,huge=advise " SHM_DIR);
	return false;
}

void pages_advise(enum kvp_pages pages, void *addr, uint64_t bytes)
{
	if (pages == KVP_PAGES_THP)
		madvise(addr, bytes, MADV_HUGEPAGE); /* refused: the count afterwards shows it */
}

/* What smaps says of the mapping that begins at @addr.  New mappings lie lowest, so it is found early. */
static uint64_t thp_got(const void *addr)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	unsigned long long from, kib, got = 0;
	char line[512];
	bool here = false;

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%llx-%*x ", &from) == 1 && strchr(line, '-')) {
			if (here)
				break;
			here = from == (uintptr_t)addr;
		} else if (here && sscanf(line, "ShmemPmdMapped: %llu kB", &kib) == 1) {
			got = kib << 10;
		}
	}
	if (file)
		fclose(file);
	return got;
}

uint64_t pages_got(enum kvp_pages pages, const void *addr, uint64_t bytes)
{
	return kvp_pages_in_hugetlbfs(pages) ? bytes : pages == KVP_PAGES_THP ? thp_got(addr) : 0;
}

/* ---- the wish ---- */

enum kvp_pages pages_next(const struct daemon *d)
{
	return d->pages_here ? (enum kvp_pages)d->pool.header->pages : KVP_PAGES_4K;
}

const char *pages_dir(const struct pool *pool, enum kvp_pages pages)
{
	return kvp_pages_in_hugetlbfs(pages) ? pool->header->huge_dir : SHM_DIR;
}

void pages_say_short(struct daemon *d, const char *why)
{
	if (d->pages_short_said)
		return;
	d->pages_short_said = true;
	snprintf(d->pool.stats->pages_message, sizeof(d->pool.stats->pages_message),
		"pages = %s: some slabs are of 4k pages: %s", names[d->pool.header->pages], why);
	log_warn("%s", d->pool.stats->pages_message);
}

int pages_start(struct daemon *d, char message[256])
{
	uint32_t pages = d->pool.header->pages;
	char why[256] = "";

	if (pages != d->config.pages)
		log_warn("pages = %s: this pool was made with %s and stays so until kvctl purge", d->config.pages_text,
			names[pages <= KVP_PAGES_1G ? pages : 0]);
	d->pool.stats->pages = pages;
	d->pool.stats->pages_message[0] = 0;
	d->pages_here = pages == KVP_PAGES_4K || (pages == KVP_PAGES_THP ? thp_allowed(why) : pages_find_dir(d, why));
	if (d->pages_here)
		return 0;
	if (d->config.pages_fallback) {
		pages_say_short(d, why);
		return 0;
	}
	snprintf(message, 256, "pages = %s: %.150s; or set pages-short = fallback to go on with 4k pages", names[pages],
		why);
	return -ENOMEM;
}
