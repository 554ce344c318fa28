/* shm.c - see shm.h */
#include "shm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <uuid/uuid.h>

void shm_object_name(char name[KVP_OBJECT_NAME_MAX], const uint8_t uuid[16], const char *rest_format, ...)
{
	char text[UUID_STR_LEN];
	va_list args;
	int n;

	uuid_unparse_lower(uuid, text);
	n = snprintf(name, KVP_OBJECT_NAME_MAX, "/kvp-%s-", text);
	va_start(args, rest_format);
	vsnprintf(name + n, KVP_OBJECT_NAME_MAX - (size_t)n, rest_format, args);
	va_end(args);
}

static mode_t shm_mode(gid_t gid)
{
	return gid == (gid_t)-1 ? 0600 : 0640;
}

/* What shm_open() does, in any directory. */
static int open_in(const char *dir, const char *name, int flags)
{
	char path[512];

	if (snprintf(path, sizeof(path), "%s%s", dir, name) >= (int)sizeof(path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return open(path, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
}

int shm_make(const char *name, uint64_t bytes, gid_t gid)
{
	return shm_make_in(SHM_DIR, name, bytes, gid);
}

int shm_make_in(const char *dir, const char *name, uint64_t bytes, gid_t gid)
{
	int fd = open_in(dir, name, O_RDWR | O_CREAT | O_EXCL);
	int r;

	if (fd < 0)
		return -errno;
	/* fchmod: the umask must not decide who may look */
	if ((gid != (gid_t)-1 && fchown(fd, (uid_t)-1, gid) < 0) || fchmod(fd, shm_mode(gid)) < 0 ||
		ftruncate(fd, (off_t)bytes) < 0) {
		r = -errno;
		close(fd);
		shm_remove_in(dir, name);
		return r;
	}
	return fd;
}

int shm_find(const char *name, uint64_t *bytes, gid_t gid)
{
	return shm_find_in(SHM_DIR, name, bytes, gid);
}

int shm_find_in(const char *dir, const char *name, uint64_t *bytes, gid_t gid)
{
	struct stat st;
	int fd = open_in(dir, name, O_RDWR);

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_nlink != 1 ||
		(st.st_mode & 07777) != shm_mode(gid)) {
		/* the operators' group may have been changed: ours to put right */
		if (S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_nlink == 1 &&
			(gid == (gid_t)-1 || fchown(fd, (uid_t)-1, gid) == 0) && fchmod(fd, shm_mode(gid)) == 0) {
			*bytes = (uint64_t)st.st_size;
			return fd;
		}
		close(fd);
		return -EPERM;
	}
	*bytes = (uint64_t)st.st_size;
	return fd;
}

int shm_reopen_ro(int fd)
{
	char path[64];
	int ro;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ro = open(path, O_RDONLY | O_CLOEXEC);
	return ro < 0 ? -errno : ro;
}

int shm_reserve(int fd, uint64_t off, uint64_t len)
{
	int r;

	do {
		r = posix_fallocate(fd, (off_t)off, (off_t)len);
	} while (r == EINTR);
	return -r;
}

void *shm_map(int fd, uint64_t bytes)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		return NULL;
	madvise(map, bytes, MADV_DONTDUMP);
	return map;
}

void shm_remove(const char *name)
{
	shm_remove_in(SHM_DIR, name);
}

void shm_remove_in(const char *dir, const char *name)
{
	char path[512];

	if (snprintf(path, sizeof(path), "%s%s", dir, name) < (int)sizeof(path))
		unlink(path);
}

unsigned shm_remove_all(const uint8_t uuid[16], bool (*keep)(void *owner, const char *rest), void *owner)
{
	return shm_remove_all_in(SHM_DIR, uuid, keep, owner);
}

unsigned shm_remove_all_in(
	const char *path, const uint8_t uuid[16], bool (*keep)(void *owner, const char *rest), void *owner)
{
	char prefix[KVP_OBJECT_NAME_MAX], header[KVP_OBJECT_NAME_MAX];
	DIR *dir = opendir(path);
	struct dirent *entry;
	unsigned n = 0;

	if (!dir)
		return 0;
	shm_object_name(prefix, uuid, "%s", "");
	shm_object_name(header, uuid, "header");
	while ((entry = readdir(dir))) {
		const char *rest = entry->d_name + strlen(prefix) - 1;

		if (strncmp(entry->d_name, prefix + 1, strlen(prefix) - 1) || !strcmp(entry->d_name, header + 1))
			continue;
		if (keep && keep(owner, rest))
			continue;
		if (unlinkat(dirfd(dir), entry->d_name, 0) == 0)
			n++;
	}
	if (!keep || !keep(owner, "header"))
		n += unlinkat(dirfd(dir), header + 1, 0) == 0;
	closedir(dir);
	return n;
}

uint64_t shm_free_bytes(void)
{
	struct statvfs st;

	if (statvfs(SHM_DIR, &st) < 0)
		return 0;
	return (uint64_t)st.f_bavail * st.f_frsize;
}
