/* spill_attempt.c - see spill_attempt.h */
#include "spill_attempt.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "loop.h"

struct spill_attempt {
	pthread_t thread;
	struct spill_opts opts;
	cpu_set_t cpus;
	struct spill_identity others[SPILL_STORES_MAX];
	unsigned n_others;
	struct spill *spill;
	int error;
	char message[256];
	atomic_bool ended; /* the thread's last word: all above is its until then */
};

bool spill_same(const struct spill_identity *a, const struct spill_identity *b)
{
	return (a->inode && a->inode == b->inode && a->dev == b->dev) ||
	       (a->is_store && b->is_store && memcmp(a->uuid, b->uuid, sizeof(a->uuid)) == 0);
}

static int attempt_check(struct spill_attempt *attempt)
{
	struct spill_identity id;

	spill_peek(&attempt->opts, &id);
	for (unsigned i = 0; i < attempt->n_others; i++)
		if (spill_same(&id, &attempt->others[i])) {
			snprintf(attempt->message, sizeof(attempt->message),
				"what is in %.150s now is another store's file, or a copy of it: remove that",
				attempt->opts.dir);
			return -EEXIST;
		}
	return 0;
}

static void *attempt_run(void *owner)
{
	struct spill_attempt *attempt = owner;

	attempt->error = attempt_check(attempt);
	if (!attempt->error)
		attempt->error = spill_begin(&attempt->spill, &attempt->opts, attempt->message);
	if (!attempt->error && attempt->opts.opened)
		attempt->opts.opened(attempt->opts.owner, attempt->opts.number);
	if (attempt->error && attempt->opts.lock_fd >= 0)
		close(attempt->opts.lock_fd);
	atomic_store(&attempt->ended, true);
	return NULL;
}

struct spill_attempt *spill_attempt_new(
	const struct spill_opts *opts, const struct spill_identity *others, unsigned n_others)
{
	struct spill_attempt *attempt = calloc(1, sizeof(*attempt));

	if (!attempt)
		return NULL;
	attempt->opts = *opts;
	if (opts->cpus) {
		attempt->cpus = *opts->cpus;
		attempt->opts.cpus = &attempt->cpus;
	}
	memcpy(attempt->others, others, n_others * sizeof(*others));
	attempt->n_others = n_others;
	if (opts->lock_fd >= 0)
		attempt->opts.lock_fd = fcntl(opts->lock_fd, F_DUPFD_CLOEXEC, 0);
	if (pthread_create(&attempt->thread, NULL, attempt_run, attempt) == 0)
		return attempt;
	if (attempt->opts.lock_fd >= 0)
		close(attempt->opts.lock_fd);
	free(attempt);
	return NULL;
}

bool spill_attempt_end(struct spill_attempt *attempt, struct spill **spill, int *error, char *message)
{
	if (!atomic_load(&attempt->ended))
		return false;
	pthread_join(attempt->thread, NULL);
	*spill = attempt->spill;
	*error = attempt->error;
	memcpy(message, attempt->message, sizeof(attempt->message));
	free(attempt);
	return true;
}

void spill_attempt_give_up(struct spill_attempt *attempt, uint64_t deadline_ns)
{
	struct spill *spill = NULL;
	char message[256];
	int error;

	while (!spill_attempt_end(attempt, &spill, &error, message)) {
		if (loop_now() >= deadline_ns)
			return;
		nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	}
	if (spill)
		spill_close_by(spill, deadline_ns);
}
