/* crew.h - threads that stay: who waits for work, who does it, on which node */
#ifndef KVATTN_CREW_H
#define KVATTN_CREW_H

#include <kvattn.h>

#include "cpu.h"

/** crew_size() - threads that can work at once, the caller among them: 1 with NULL, and in a child of the crew's process */
uint32_t crew_size(const struct kvattn_crew *crew);

/**
 * crew_run() - @work(@arg, seat) once by the caller, as seat 0, and at the same time by threads of the crew that are free,
 * as seats 1 .. @n_seats - 1; returns when nobody is in it any more
 *
 * Any seat but the first may stay empty: whoever is there does what there is to do.
 */
void crew_run(struct kvattn_crew *crew, uint32_t n_seats, void (*work)(void *arg, uint32_t seat), void *arg);

/** crew_place() - the node on which seat @i of @n works: they are shared out over the CPUs of @allowed.  Return: its index
 *  in @nodes; -1: on no one. */
int crew_place(const cpu_set_t *allowed, const struct cpu_nodes *nodes, uint32_t i, uint32_t n);

#endif
