/*
 * shm.h - the daemon's shared-memory objects: make, find again, reserve, remove
 *
 * Names and rules in kvpool_shm.h.  An object found by name is taken only if it is a regular file of our own uid,
 * linked once, of the mode it should have and as long as it says.
 */
#ifndef KVPOOL_SHM_FILE_H
#define KVPOOL_SHM_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvpool_shm.h"

#define SHM_DIR "/dev/shm"

/** shm_object_name() - "/kvp-<uuid>-<rest>" */
void shm_object_name(char name[KVP_OBJECT_NAME_MAX], const uint8_t uuid[16], const char *rest_format, ...)
	__attribute__((format(printf, 3, 4)));

/** shm_make() - a new object of @bytes, a hole as yet. @gid: group to read it with mode 0640, or (gid_t)-1: mode 0600.
 *  Return: a rw descriptor; -EEXIST; -errno. */
int shm_make(const char *name, uint64_t bytes, gid_t gid);

/** shm_find() - an existing object, by the rules above. @bytes: its length. Return: a rw descriptor; -EPERM: foreign;
 *  -errno. */
int shm_find(const char *name, uint64_t *bytes, gid_t gid);

/** shm_make_in(), shm_find_in(), shm_remove_in(), shm_remove_all_in() - the same in another directory: of a hugetlbfs
 *  mount */
int shm_make_in(const char *dir, const char *name, uint64_t bytes, gid_t gid);
int shm_find_in(const char *dir, const char *name, uint64_t *bytes, gid_t gid);
void shm_remove_in(const char *dir, const char *name);
unsigned shm_remove_all_in(
	const char *dir, const uint8_t uuid[16], bool (*keep)(void *owner, const char *rest), void *owner);

/** shm_reopen_ro() - another open file of the same object, read-only. Return: a descriptor; -errno. */
int shm_reopen_ro(int fd);

/** shm_reserve() - allocate [off, off + len): what is mapped there later never faults for want of room. Return: 0;
 *  -ENOSPC; -errno. */
int shm_reserve(int fd, uint64_t off, uint64_t len);

/** shm_map() - MAP_SHARED, read and write, not in core dumps. Return: the address, or NULL with errno. */
void *shm_map(int fd, uint64_t bytes);

void shm_remove(const char *name);

/** shm_remove_all() - remove every object of a pool for which keep() is false, header last. Return: objects removed. */
unsigned shm_remove_all(const uint8_t uuid[16], bool (*keep)(void *owner, const char *rest), void *owner);

/** shm_free_bytes() - room left in /dev/shm */
uint64_t shm_free_bytes(void);

#endif
