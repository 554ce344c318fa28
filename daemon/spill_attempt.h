/*
 * spill_attempt.h - opening a store while the daemon serves
 *
 * A path may lead to a disk that is slow, hung or not there: an attempt has a thread of its own, and whoever began it
 * looks now and then whether it has ended.  It knows nothing of the loop.
 */
#ifndef KVPOOL_SPILL_ATTEMPT_H
#define KVPOOL_SPILL_ATTEMPT_H

#include "spill.h"

struct spill_attempt;

/** spill_attempt_new() - begin. @opts are copied, but for the text of dir; lock_fd stays the caller's.  @others: files that are in use already; a store that is
 *  one of them, or a copy of one, is -EEXIST.  Return: NULL: no memory, or no thread. */
struct spill_attempt *spill_attempt_new(
	const struct spill_opts *opts, const struct spill_identity *others, unsigned n_others);

/** spill_attempt_end() - has it ended? Then it is freed. *error: 0 and *spill as after spill_begin(), or -errno; @message: 256 bytes
 *  likewise. */
bool spill_attempt_end(struct spill_attempt *attempt, struct spill **spill, int *error, char *message);

/** spill_attempt_give_up() - wait for it until @deadline_ns, close what it opened; what hangs then is left to the end
 *  of the process */
void spill_attempt_give_up(struct spill_attempt *attempt, uint64_t deadline_ns);

/** spill_same() - are these one file, or two copies of one store? */
bool spill_same(const struct spill_identity *a, const struct spill_identity *b);

#endif
