/*
 * reuse.h - what the daemon learns of the use of blocks, told to the curve, and the curve in the stats object
 *
 * Hits in memory send no message: they are found by their stamps when the pin tables are swept, published blocks when
 * they are.  How many tokens were used at all is what clients count.
 */
#ifndef KVPOOL_REUSE_H
#define KVPOOL_REUSE_H

#include "namespace.h"

/** reuse_start() - once all entries are known; goes on from what the stats object has. Return: 0; -ENOMEM. */
int reuse_start(struct daemon *d);
void reuse_stop(struct daemon *d);
/** reuse_stored() - just published: somebody had to compute it */
void reuse_stored(struct entry *e);
/** reuse_seen() - a pin table says that it was used at @stamp, which may be known already */
void reuse_seen(struct entry *e, uint32_t stamp);
/** reuse_tick() - several times a second */
void reuse_tick(struct daemon *d);

#endif
