/*
 * replay.h - inside of kvctl replay: a trace of requests, and what a pool would have kept of it
 *
 * replay_trace.c reads traces, replay_tiers.c plays one through a policy, replay_best.c through the optimum, replay.c
 * is the command.
 */
#ifndef KVCTL_REPLAY_H
#define KVCTL_REPLAY_H

#include <stdint.h>
#include <stdio.h>

#include "kvpool_policy.h"

struct replay_request {
	uint64_t time_ms;
	uint64_t tokens;
	uint64_t first; /* of its ids */
	uint32_t n; /* whole blocks */
};

/* Blocks are numbered from 0 by first appearance. */
struct replay_trace {
	uint32_t block_tokens;
	uint64_t n_requests, n_ids, n_tokens;
	uint32_t n_blocks; /* distinct */
	struct replay_request *requests;
	uint32_t *ids;
	struct kvp_key *keys; /* by number */
	uint64_t requests_room, ids_room; /* while it is read */
	struct id_map *map;
	char wrong[160]; /* with it, where it could not be read */
};

/** replay_trace_read() - a kvt1 trace, plain or compressed with zstd, or Mooncake's JSON lines. Return: 0; -errno with
 *  @why. */
int replay_trace_read(struct replay_trace *trace, const char *path, char why[256]);
void replay_trace_free(struct replay_trace *trace);

enum replay_policy {
	REPLAY_LRU,
	REPLAY_LEARNED, /* guarded, as the daemon has it */
	REPLAY_UNGUARDED,
};

enum replay_store {
	REPLAY_CHOSEN, /* the policy says what leaves it */
	REPLAY_LOG, /* what was written first does, as in the daemon's */
};

struct replay_options {
	enum replay_policy policy;
	enum replay_store store;
	uint64_t pool, spill; /* blocks */
	double hints_wrong; /* share of hints that are wrong; below 0: no hints */
	enum admission_kind admission;
	double budget; /* ADMIT_CHANCE: share of what is offered */
	uint64_t seed; /* which hints are wrong */
	uint32_t *found; /* filled: blocks found in memory, by request; NULL: not wanted */
	uint8_t *hints; /* filled: what was said of each request; likewise */
};

struct replay_result {
	uint64_t pool_hits, spill_hits; /* blocks */
	uint64_t evicted, refused, written, again,
		lost; /* from memory; not taken in; to the store, some again; from it */
	double decision_ns; /* median over requests, a block */
	uint64_t policy_bytes;
	uint64_t switches;
};

/** replay_run() - Return: 0; -ENOMEM. */
int replay_run(const struct replay_trace *trace, const struct replay_options *options, struct replay_result *result);
/** replay_best() - blocks found by the optimum with room for @blocks. Return: -ENOMEM. */
int64_t replay_best(const struct replay_trace *trace, uint64_t blocks);

#endif
