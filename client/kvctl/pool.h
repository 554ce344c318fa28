/*
 * pool.h - find a pool by the shared memory it left, with no help from its daemon
 *
 * Objects are files of /dev/shm; they are read with pread, never mapped: one that is cut short meanwhile gives a short
 * read and no SIGBUS, and holes stay holes.  A name anybody could have made counts only if its owner is one who may own
 * the pool: root, the caller, the owner of the socket or of the directory it stands in, of the pool's file with --name.
 */
#ifndef KVCTL_POOL_H
#define KVCTL_POOL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "kvpool_shm.h"

#define POOL_SHM_DIR "/dev/shm"
#define POOL_UUID_TEXT 37
#define POOL_PATH_MAX 128
#define POOL_SILENT_NS 2000000000ull /* a heartbeat older than this: hung or dead */

enum pool_life {
	POOL_SERVING = 1,
	POOL_STARTING,
	POOL_STOPPED, /* left in order, memory kept */
	POOL_SILENT, /* hung, stopped by a signal, or dead */
};

struct pool {
	struct kvp_pool_header header; /* a copy, checked */
	char uuid[POOL_UUID_TEXT];
	char name[KVP_NAME_MAX]; /* of the header, cleaned for printing */
	char socket[KVP_SOCKET_MAX]; /* as the header has it: shown by text_path() */
	uid_t uid; /* of the header object */
	gid_t gid;
	/* by pool_look() */
	enum pool_life life;
	bool same_boot;
	double heartbeat_age_s; /* < 0: cannot be told */
	char pid_state; /* 0: gone; else as /proc/PID/stat has it: R S D T Z */
};

/**
 * pool_find() - the pool of a socket or of a name; of several the one whose heartbeat is newest
 * @socket: NULL: KVPOOL_SOCKET, else the default, unless @name is given
 * @name:   NULL: any
 * Return: 0; KVCTL_NO_POOL (said on stderr: what was looked for, what is there instead, and why it does not count).
 */
int pool_find(struct pool *pool, const char *socket, const char *name);

/** pool_look() - read the header again and judge the daemon's life. Return: 0; KVCTL_NO_POOL: it has gone. */
int pool_look(struct pool *pool);
bool pool_up(const struct pool *pool);
/** pool_life_text() - "serving", "not answering: heartbeat 12.1 s old, pid 4711 gone" ... Return: @text. */
const char *pool_life_text(const struct pool *pool, char *text, size_t room);
const char *pool_life_name(enum pool_life life);

/** pool_path() - /dev/shm/kvp-<uuid>-<rest> */
void pool_path(const struct pool *pool, char path[POOL_PATH_MAX], const char *rest_format, ...)
	__attribute__((format(printf, 3, 4)));

/**
 * pool_object_open() - an object read-only, by the rules: regular file, one link, owner the header's, no link followed
 * Return: a descriptor, @st filled; -EPERM: foreign; -errno.
 */
int pool_object_open(const struct pool *pool, const char *path, struct stat *st);

/** pool_read() - pread all of [off, off + bytes). Return: 0; -ENODATA: the file ends before; -errno. */
int pool_read(int fd, void *to, uint64_t bytes, uint64_t off);

/** pool_socket_path() - what @socket, KVPOOL_SOCKET or the default names, made absolute. Return: 0; KVCTL_USAGE
 *  (said). */
int pool_socket_path(const char *socket, char path[KVP_SOCKET_MAX]);

/** pool_uuid_of_name() - "kvp-<uuid>-<rest>" -> uuid, and where the rest begins; NULL: no such name */
const char *pool_uuid_of_name(const char *file_name, char uuid[POOL_UUID_TEXT]);
bool pool_uuid_parse(const char *text, uint8_t uuid[16]);

uint64_t now_ns(void); /* CLOCK_MONOTONIC */

#endif
