/*
 * trial.h - a daemon with a spill store, and engines that know it only through libkvpool and kvctl
 *
 * For the test_trials_* programs, which repeat real faults of comparable software.  What they may rely on is what an
 * operator and an engine can see; wire.h lends them the daemon and the content check.  Calls assert, so a forked child
 * uses only those that say so.
 */
#ifndef KVPOOL_TEST_TRIAL_H
#define KVPOOL_TEST_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvpool.h"
#include "wire.h"

#define TRIAL_TOKENS 16u
#define TRIAL_BLOCK 65536u /* bytes, of an opaque block */

struct trial {
	struct host host;
	char spill[80], spill_option[128]; /* directory, and directory:size */
	struct kvp_client *client;
	struct kvp_ns *ns; /* opaque blocks, name "m" */
};

/** trial_given() - directories and name of a daemon with a pool of @pool and a store of @spill ("64M"), NULL: none */
void trial_given(struct trial *t, uid_t uid, const char *pool, const char *spill);
/** trial_option() - it is given one more option, which stays where it is */
void trial_option(struct trial *t, const char *name, const char *value);
/** trial_start() - start it (again); trial_attach() - t->client and t->ns */
void trial_start(struct trial *t);
void trial_attach(struct trial *t);
void trial_detach(struct trial *t);
/** trial_end() - no daemon, no memory, no directory. Return: was the daemon well, and does kvctl find nothing wrong? */
bool trial_end(struct trial *t);
/** trial_setup() - for cmocka: one of this process's user, started, in *@state; trial_teardown() - trial_end() of it */
int trial_setup(void **state, const char *pool, const char *spill);
int trial_teardown(void **state);

/** trial_memory_gone() - remove all shared memory of the stopped daemon, as a reboot does */
void trial_memory_gone(const struct trial *t);
/** trial_reboot() - drain, stop in order, lose all memory, start, attach */
void trial_reboot(struct trial *t);

/** trial_kvctl() - run kvctl on this daemon. @out: what it printed, or NULL. Return: exit status; -signal. */
int trial_kvctl(const struct trial *t, char *out, size_t room, const char *const *words);
#define TRIAL_KVCTL(t, out, room, ...) trial_kvctl(t, out, room, (const char *const[]){__VA_ARGS__, NULL})

/* These do not assert. */
int trial_client(const struct trial *t, struct kvp_client **client);
int trial_ns(struct kvp_client *client, const char *name, const struct kvp_desc *desc, struct kvp_ns **ns);
/** trial_namespace() - a daemon of its own with @options, a client by hand that is in a namespace of it, blocks of @bytes */
void trial_namespace(struct host *host, const char *const *options, struct wire *w, struct wire_ns *ns,
	const char *name, uint64_t bytes);
void trial_desc(struct kvp_desc *desc); /* opaque blocks of TRIAL_BLOCK bytes */
/** trial_put() - publish @bytes of the pattern of @k under @key. Return: enum kvp_publish_result; -1: no block. */
int trial_put(struct kvp_ns *ns, const struct kvp_key *key, const struct kvp_key *parent, uint64_t k, uint64_t bytes);
/** trial_get() - Return: 1, exactly the bytes of @k; 0: a miss; -1: other bytes. */
int trial_get(struct kvp_ns *ns, const struct kvp_key *key, uint64_t k, uint64_t bytes);

#endif
