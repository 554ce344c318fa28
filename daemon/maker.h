/*
 * maker.h - threads that give slabs their memory and take it away: allocating, placing, touching, punching take long
 *
 * The loop hands in jobs and gets them back through maker_reap(), which calls done() in its own thread.  A thread sees
 * of a job only what is in it.  First what the job frees is freed, then what it fills is filled, so the budget holds at
 * every moment.  Where no threads are to be had jobs are done when they are handed in.
 */
#ifndef KVPOOL_MAKER_H
#define KVPOOL_MAKER_H

#include <stdint.h>

#include "pages.h"
#include "topology.h"

struct maker;

/* Memory to be freed: unlinked by the caller. */
struct maker_old {
	struct maker_old *next;
	int fd; /* punched empty, then closed */
	char *map; /* unmapped first; NULL: not mapped */
	uint64_t bytes, number;
	int error; /* 0; -errno: it could not be punched */
};

struct maker_job {
	struct maker_job *next;
	struct maker_old *olds;
	int fd; /* -1: nothing to fill */
	uint64_t bytes;
	unsigned node;
	enum kvp_pages pages; /* of what its object is made */
	char *map; /* result */
	int error; /* result: 0; -errno: nothing is mapped */
	int bind_error; /* result: why it is not bound to its node */
	int lock_error; /* result: why it is not locked */
	uint64_t huge; /* result: bytes in pages larger than 4k */
	int64_t placed; /* result: bytes on its node; -errno: the kernel does not tell */
	void (*done)(struct maker_job *job); /* the job and its olds are the owner's again */
	void *owner;
};

/** maker_open() - @n_threads of them at most. @lock: mlock what is filled. Return: 0; -ENOMEM; -errno. */
int maker_open(struct maker **maker, struct topology *topology, unsigned n_threads, bool lock);
/** maker_close() - frees what is to be freed, fills nothing any more (-ECANCELED), and calls done() of every job */
void maker_close(struct maker *maker);

/** maker_fd() - readable when maker_reap() has something to do */
int maker_fd(const struct maker *maker);
void maker_submit(struct maker *maker, struct maker_job *job);
void maker_reap(struct maker *maker);
/** maker_wait() - maker_reap(), but wait for at least one job if any is under way */
void maker_wait(struct maker *maker);

#endif
