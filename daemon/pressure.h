/*
 * pressure.h - memory is given back while the host is short of it, and taken again afterwards
 *
 * Looks twice a second at how much of the time somebody waits for memory (PSI, "some avg10": of our cgroup where there is
 * such a file, else of the host).  Above the limit the budget goes down a step every two seconds, to a quarter of --pool
 * at least; below half of the limit for five seconds it goes up a step.  Off with --pressure 0.
 */
#ifndef KVPOOL_PRESSURE_H
#define KVPOOL_PRESSURE_H

#include "daemon.h"

int pressure_start(struct daemon *d);
void pressure_stop(struct daemon *d);

#endif
