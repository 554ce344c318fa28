/* undumped.c - see undumped.h.  Before what is given lies a page that says how long the mapping is. */
#include "undumped.h"

#include <stddef.h>
#include <sys/mman.h>

#define HEAD_BYTES 4096u

void *undumped_new(uint64_t bytes)
{
	uint64_t all = HEAD_BYTES + bytes;
	char *map =
		all < bytes ? MAP_FAILED : mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED)
		return NULL;
	madvise(map, all, MADV_DONTDUMP);
	*(uint64_t *)(void *)map = all;
	return map + HEAD_BYTES;
}

void undumped_free(void *at)
{
	char *map = at ? (char *)at - HEAD_BYTES : NULL;

	if (map)
		munmap(map, *(uint64_t *)(void *)map);
}
