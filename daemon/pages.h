/*
 * pages.h - what slabs are made of: the operator's wish, whether this host can fulfil it, and where such slabs lie
 *
 * 4k and THP: objects in /dev/shm; 2M and 1G: files in a directory of a hugetlbfs mount, named by --hugetlbfs or the
 * first one of that page size this user may write to.  The wish belongs to the pool like the size of its slabs: both
 * stay until it is purged.  A slab for which there are no such pages is refused, or made of 4k pages, as --pages-short
 * says.
 */
#ifndef KVPOOL_PAGES_H
#define KVPOOL_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "kvpool_shm.h"

struct daemon;
struct pool;

/** pages_start() - find out what this host has. Return: 0; -ENOMEM with @message: it has not got what is wished. */
int pages_start(struct daemon *d, char message[256]);
/** pages_next() - what the next slab is to be made of */
enum kvp_pages pages_next(const struct daemon *d);
/** pages_dir() - the directory of a slab made of these */
const char *pages_dir(const struct pool *pool, enum kvp_pages pages);
/** pages_free() - bytes of free 2M or 1G pages on this host, 0 for the others */
uint64_t pages_free(enum kvp_pages pages);
/** pages_say_short() - some slab did not get what was wished: once in the log, and in the stats */
void pages_say_short(struct daemon *d, const char *why);
/** pages_advise() - before @addr is touched. pages_got() - afterwards: bytes of it in pages larger than 4k, by the
 *  kernel's word */
void pages_advise(enum kvp_pages pages, void *addr, uint64_t bytes);
uint64_t pages_got(enum kvp_pages pages, const void *addr, uint64_t bytes);
/** pages_remove_all() - shm_remove_all() in every directory where slabs of this pool may lie */
void pages_remove_all(const uint8_t uuid[16], const struct kvp_pool_header *header, const struct config *config,
	bool (*keep)(void *owner, const char *rest), void *owner);

#endif
