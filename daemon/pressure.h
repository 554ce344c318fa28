/*
 * pressure.h - memory is given back while the host or our control group is short of it, and taken again afterwards
 *
 * Two signs.  How much of the time somebody waits for memory (PSI, "some": of our cgroup where there is such a file,
 * else of the host): by a trigger where the kernel lets us set one, and by a look twice a second at avg10.  And how
 * much of the cgroup's limit is left, the pool counted whether it is charged there or not.  Too much of the one or too
 * little of the other: the budget goes down a step every two seconds, to a quarter of --pool at least; well below both
 * for five seconds: up a step.
 */
#ifndef KVPOOL_PRESSURE_H
#define KVPOOL_PRESSURE_H

#include "daemon.h"

int pressure_start(struct daemon *d);
void pressure_stop(struct daemon *d);

#endif
