/*
 * guarded.h - memory that faults one byte before or after; and while it is asked for, what the kernels allocate is such, too
 *
 * Under sanitizers the latter is theirs.  Behind test_attn_fixture.h, included once by a test program.
 */
#ifndef KVATTN_TEST_GUARDED_H
#define KVATTN_TEST_GUARDED_H

#include <stdatomic.h>
#include <sys/mman.h>

#define PAGE 4096u

struct guarded {
	char *map;
	size_t map_bytes;
	void *at;
};

/* At the end, an address of @align as near to the page behind as it can be. */
static struct guarded guarded_map(size_t bytes, size_t align, bool at_end)
{
	const size_t body = (bytes + PAGE - 1) / PAGE * PAGE;
	struct guarded g = {.map_bytes = body + 2 * PAGE};

	g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (g.map == MAP_FAILED || mprotect(g.map, PAGE, PROT_NONE) || mprotect(g.map + PAGE + body, PAGE, PROT_NONE))
		return (struct guarded){0};
	g.at = at_end ? g.map + PAGE + (body - bytes) / align * align : g.map + PAGE;
	return g;
}

static struct guarded guarded_new(size_t bytes, bool at_end)
{
	struct guarded g = guarded_map(bytes, 1, at_end);

	assert_non_null(g.at);
	return g;
}

static void guarded_free(struct guarded *g)
{
	munmap(g->map, g->map_bytes);
}

/* ---- What the kernels allocate ---- */

enum { SCRATCH_MAX = 16, SCRATCH_CALLOC = 1, SCRATCH_AT_END = 2 };

static _Thread_local int scratch_wanted = -1; /* -1: not now */
static unsigned scratch_seen; /* pieces so far */
static struct guarded scratch[SCRATCH_MAX]; /* used by one thread */
static _Atomic unsigned n_scratch; /* there now */

#if !SANITIZED
void *__libc_memalign(size_t align, size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void __libc_free(void *at);

static void *scratch_new(size_t align, size_t bytes)
{
	unsigned i = 0;

	while (i < SCRATCH_MAX && scratch[i].at)
		i++;
	if (i == SCRATCH_MAX)
		return NULL;
	scratch[i] = guarded_map(bytes, align, scratch_wanted & SCRATCH_AT_END);
	n_scratch++;
	scratch_seen++;
	return scratch[i].at;
}

void *aligned_alloc(size_t align, size_t bytes)
{
	return scratch_wanted < 0 ? __libc_memalign(align, bytes) : scratch_new(align, bytes);
}

void *calloc(size_t n, size_t bytes)
{
	return scratch_wanted >= 0 && (scratch_wanted & SCRATCH_CALLOC) ? scratch_new(sizeof(double), n * bytes)
									: __libc_calloc(n, bytes);
}

void free(void *at)
{
	for (unsigned i = 0; at && n_scratch && scratch_wanted >= 0 && i < SCRATCH_MAX; i++)
		if (scratch[i].at == at) {
			guarded_free(&scratch[i]);
			scratch[i] = (struct guarded){0};
			n_scratch--;
			return;
		}
	__libc_free(at);
}
#endif

/* Until scratch_guard_end(), for this thread.  Threads that are made take memory with calloc(), and keep it: not guarded with them. */
static void scratch_guard(bool at_end, bool with_threads)
{
	scratch_wanted = (at_end ? SCRATCH_AT_END : 0) | (with_threads ? 0 : SCRATCH_CALLOC);
}

/* All of it was freed. */
static void scratch_guard_end(void)
{
	scratch_wanted = -1;
	assert_int_equal(n_scratch, 0);
}

#endif
