/*
 * postmortem.h - what a daemon that is gone, or the one before, left in shared memory of its end
 */
#ifndef KVCTL_POSTMORTEM_H
#define KVCTL_POSTMORTEM_H

#include <jansson.h>

#include "pool.h"
#include "snapshot.h"

/** postmortem_print() - how the daemon ended, what it had in hand, and where to look further */
void postmortem_print(const struct pool *pool, const struct snapshot *snapshot);
json_t *postmortem_json(const struct pool *pool, const struct snapshot *snapshot);

#endif
