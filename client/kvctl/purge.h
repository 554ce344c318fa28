/*
 * purge.h - removing a pool from memory
 */
#ifndef KVCTL_PURGE_H
#define KVCTL_PURGE_H

#include <stdbool.h>

/** purge_without_daemon() - under the pool's lock; @quiet: do not tell what was freed. Return: exit code (said). */
int purge_without_daemon(const char *socket, const char *name, bool quiet);

#endif
