/*
 * generate.h - the engine's loop: match, compute the rest of the prompt, then one token at a time
 *
 * Does no input or output; joins a model's forward pass and a KV store through libkvattn.
 */
#ifndef KVENGINE_GENERATE_H
#define KVENGINE_GENERATE_H

#include <stdbool.h>
#include <stdint.h>

#include "attend.h"
#include "error.h"
#include "forward.h"
#include "kv.h"

struct generate_opts {
	uint32_t steps; /* tokens to generate at most; BOS or the end of the context ends it before */
	uint32_t chunk; /* prompt tokens computed together */
	uint32_t pace_ms; /* rest between tokens, for watchers */
	bool forget; /* keep no KV: compute everything again at each step */
	struct attend attend; /* all but full and window need a store that can select and compact */
};

struct generate_result {
	uint32_t *ids; /* prompt, then what was generated; the caller frees it */
	uint64_t n_ids;
	uint64_t prompt_tokens;
	uint64_t reused_ram, reused_spill; /* prompt tokens found in the store */
	uint64_t computed; /* prompt tokens computed: the rest of them */
	uint64_t forward_tokens; /* rows that went through the model, generation and repetition included */
	bool full; /* the end of the context came before that of the steps */
	uint64_t copied_bytes;
	uint64_t restored; /* blocks that came back from the spill store to be attended */
	double attended; /* share of the blocks, sparse only; else 1 */
	double ttft_ms; /* from the first look into the store to the first token */
	double decode_tok_s; /* tokens after the first; 0 with fewer than two, pauses not counted */
};

/**
 * generate_run() - @prompt: 1 .. context - 1 ids
 * Return: 0; -ESTALE: the store lost blocks under way, nothing in @result is to be used; other negative errno with @error.
 */
int generate_run(const struct model *model, struct kv_store *store, const uint32_t *prompt, uint64_t n_prompt,
	const struct generate_opts *opts, struct generate_result *result, struct error *error);

struct generate_score {
	double loss; /* sum of -log p over the ids past the prompt, in nats */
	uint32_t *best; /* the likeliest id in place of each of them; the caller frees it */
	double attended;
};

/**
 * generate_score() - how well the model foresees ids[n_prompt .. n), each computed as generation would
 * Return: as generate_run().
 */
int generate_score(const struct model *model, struct kv_store *store, const uint32_t *ids, uint64_t n,
	uint64_t n_prompt, const struct generate_opts *opts, struct generate_score *score, struct error *error);

#endif
