/*
 * undumped.h - memory for bytes of blocks, or what they can be told from, on their way: not in a core dump
 *
 * Blocks themselves lie in shared memory, which is left out by shm_map(). Any thread.
 */
#ifndef KVPOOL_UNDUMPED_H
#define KVPOOL_UNDUMPED_H

#include <stdint.h>

/** undumped_new() - @bytes zeroes, aligned to pages, in a mapping of its own: not for small things, nor on a hot path.
 *  Return: NULL: none. */
void *undumped_new(uint64_t bytes);
/** undumped_free() - from undumped_new(), or NULL */
void undumped_free(void *at);

#endif
