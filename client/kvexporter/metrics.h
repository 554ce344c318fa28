/*
 * metrics.h - a pool's counters in Prometheus' text format
 */
#ifndef KVEXPORTER_METRICS_H
#define KVEXPORTER_METRICS_H

#include <stddef.h>

/**
 * metrics_make() - look at the pool now and write all of it
 * @socket, @name: as kvctl's options; NULL: not said
 * @text: to be freed, @bytes of it
 * Where no pool can be read it is kvpool_up 0 alone, and why is complained about.  Return: 0; -ENOMEM.
 */
int metrics_make(const char *socket, const char *name, char **text, size_t *bytes);

#endif
