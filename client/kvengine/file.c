/* file.c - see file.h */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int file_map(struct file *file, const char *path, struct error *error)
{
	struct stat st;
	void *map;
	int fd, r;

	*file = (struct file){0};
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		r = -errno;
		return error_set(error, r, "%s: cannot be opened: %s", path, strerror(-r));
	}
	r = fstat(fd, &st) ? -errno : 0;
	if (r < 0)
		error_set(error, r, "%s: cannot be examined: %s", path, strerror(-r));
	else if (!S_ISREG(st.st_mode))
		r = error_set(error, -EINVAL, "%s: not a regular file", path);
	else if (st.st_size == 0)
		r = error_set(error, -EINVAL, "%s: the file is empty; copy it again", path);
	if (r == 0) {
		map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (map == MAP_FAILED) {
			r = error_set(error, -errno, "%s: cannot be mapped: %s", path, strerror(errno));
		} else {
			file->bytes = map;
			file->size = (size_t)st.st_size;
		}
	}
	close(fd);
	return r;
}

void file_unmap(struct file *file)
{
	if (file->bytes)
		munmap((void *)(uintptr_t)file->bytes, file->size);
	*file = (struct file){0};
}
