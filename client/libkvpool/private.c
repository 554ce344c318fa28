/*
 * private.c - blocks in this process's own memory, for want of a pool
 *
 * Of the same shape and alignment as pool blocks; kept for reuse until the namespace is closed, large ones only a few.
 */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define CHUNK_BYTES (4ull << 20) /* many small blocks come in one mapping: mappings are few (65530 a process) */
#define LARGE_KEPT 8u

struct private_chunk {
	struct private_chunk *next;
	char *base;
	uint64_t bytes;
};

static bool private_is_large(const struct kvp_ns *ns)
{
	return ns->block_stride > CHUNK_BYTES / 2; /* a mapping each */
}

static struct private_chunk *chunk_new(struct kvp_ns *ns)
{
	struct private_chunk *chunk = malloc(sizeof(*chunk));

	if (!chunk)
		return NULL;
	chunk->bytes = private_is_large(ns) ? ns->block_stride : CHUNK_BYTES / ns->block_stride * ns->block_stride;
	chunk->base =
		mmap(NULL, chunk->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (chunk->base == MAP_FAILED) {
		free(chunk);
		return NULL;
	}
	madvise(chunk->base, chunk->bytes, MADV_DONTDUMP);
	madvise(chunk->base, chunk->bytes, MADV_DONTFORK);
	chunk->next = ns->chunks;
	ns->chunks = chunk;
	return chunk;
}

/* The free list runs through the first word of each free block. */
static void free_push(struct kvp_ns *ns, void *data)
{
	*(void **)data = ns->private_free;
	ns->private_free = data;
	ns->n_private_free++;
}

static void chunk_drop(struct kvp_ns *ns, const void *base)
{
	for (struct private_chunk **at = &ns->chunks; *at; at = &(*at)->next) {
		struct private_chunk *chunk = *at;

		if (chunk->base != base)
			continue;
		*at = chunk->next;
		munmap(chunk->base, chunk->bytes);
		free(chunk);
		return;
	}
}

/* A block never used before: not touched here, so it costs no memory before its first row is stored. */
static void *fresh_take(struct kvp_ns *ns)
{
	void *data;

	if (!ns->private_fresh_bytes) {
		struct private_chunk *chunk = chunk_new(ns);

		if (!chunk)
			return NULL;
		ns->private_fresh = chunk->base;
		ns->private_fresh_bytes = chunk->bytes;
	}
	data = ns->private_fresh;
	ns->private_fresh += ns->block_stride;
	ns->private_fresh_bytes -= ns->block_stride;
	return data;
}

void *private_take(struct kvp_ns *ns)
{
	void *data;

	pthread_mutex_lock(&ns->private_lock);
	data = ns->private_free;
	if (data) {
		ns->private_free = *(void **)data;
		ns->n_private_free--;
	} else {
		data = fresh_take(ns);
	}
	pthread_mutex_unlock(&ns->private_lock);
	return data;
}

void private_put(struct kvp_ns *ns, void *data)
{
	pthread_mutex_lock(&ns->private_lock);
	if (private_is_large(ns) && ns->n_private_free >= LARGE_KEPT)
		chunk_drop(ns, data);
	else
		free_push(ns, data);
	pthread_mutex_unlock(&ns->private_lock);
}

void private_close(struct kvp_ns *ns, bool in_child)
{
	while (ns->chunks) {
		struct private_chunk *chunk = ns->chunks;

		ns->chunks = chunk->next;
		if (!in_child) /* the child has none of these mappings; something else may lie there */
			munmap(chunk->base, chunk->bytes);
		free(chunk);
	}
	ns->private_free = NULL;
}
