/*
 * crash.h - last words: what a daemon that crashes leaves for the operator, in the pool's header page (struct
 * kvp_crash)
 *
 * Installed once, before there are threads; read by kvctl stats --post-mortem, and by the next start, which logs it.
 * The process then ends by the signal as ever, with its core.
 */
#ifndef KVPOOL_CRASH_H
#define KVPOOL_CRASH_H

#include <signal.h>

#include "kvpool_shm.h"

/** crash_init() - catch the signals of a crash. Return: 0; -errno. */
int crash_init(void);
/** crash_attach() - where to leave the words from now on: the header's page. NULL: nowhere. */
void crash_attach(struct kvp_pool_header *header);
/** crash_on_signal() - leave them, and die of @sig */
void crash_on_signal(int sig, siginfo_t *info, void *context);
/** crash_tell_last() - log how the daemon before, which did not stop in order, ended. @pid: of that one. */
void crash_tell_last(const struct kvp_pool_header *header, int32_t pid);

#endif
