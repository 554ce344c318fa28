/*
 * attend.h - which keys a row attends to: all, a window, the blocks a query needs, or the tokens that were kept
 *
 * What the engine shows of libkvattn and libkvpool for contexts that are too long to be read whole; see --attn.
 */
#ifndef KVENGINE_ATTEND_H
#define KVENGINE_ATTEND_H

#include <stdbool.h>
#include <stdint.h>

#include <kvattn.h>

#include "error.h"
#include "kv.h"

#define ATTEND_SINKS 4u /* first tokens that stay, whatever goes */
#define ATTEND_OBSERVED 16u /* last rows of the prompt, whose attention tells the heavy hitters (as SnapKV has it) */
#define ATTEND_HEAVY_MIN 32u

enum attend_kind {
	ATTEND_FULL,
	ATTEND_WINDOW, /* @n tokens and the sinks */
	ATTEND_SPARSE, /* once the prompt is there: the @n blocks a KV head whose summaries promise most (Quest) */
	ATTEND_HEAVY, /* after the prompt @n of its tokens are kept: sinks, the latest, and those attended most (H2O) */
};

struct attend {
	enum attend_kind kind;
	uint32_t n;
	uint32_t threads; /* that attend; 0 and 1: the caller's alone; KVATTN_THREADS_AUTO: as many as it may */
	uint32_t piece; /* sparse: blocks of the prompt at hand at most, attended to piece by piece; 0: all at once */
};

/* One sequence's; model and store outlive it. */
struct attend_state {
	struct attend how;
	struct kv_store *store;
	struct error *error;
	struct kvattn_opts attn;
	struct kvattn_crew *crew; /* NULL: one thread */
	struct kvattn_table table;
	uint64_t n_prompt;
	uint64_t n_dropped; /* tokens before the last ones that were not kept */
	bool decoding;
	uint64_t seen, there; /* blocks attended to and blocks there were, by the rows since the prompt, all layers */
	float *mass; /* heavy: by token of the prompt */
	float *head_mass; /* of one layer: [n_kv_heads][n_prompt] */
	const float **summaries;
	uint64_t *picks, *blocks;
	float *part, *sum, *part_lse, *sum_lse; /* piece by piece: [rows][n_heads][dim_v] and [rows][n_heads], dense */
};

/** attend_parse() - "full", "window:W", "sparse:K", "heavy:N". Return: 0; -EINVAL. */
int attend_parse(const char *text, struct attend *how);

/** attend_init() - @max_rows: of a chunk; @max_tokens: of the sequence. Return: 0; -ENOMEM. */
int attend_init(struct attend_state *a, const struct attend *how, struct kv_store *store, uint32_t n_heads,
	uint32_t max_rows, uint64_t n_prompt, uint64_t max_tokens, struct error *error);
void attend_deinit(struct attend_state *a);

/** attend_begin() - rows were appended. Return: 0; negative errno with @error. */
int attend_begin(struct attend_state *a);

/** attend_rows() - attention of rows @first .. @first + @n - 1, whose K and V are stored. Return: 0; negative errno. */
int attend_rows(
	struct attend_state *a, uint32_t layer, uint64_t first, uint32_t n, const float *q, float *out, size_t stride);

/** attend_prompt_ends() - the prompt was computed: from now on rows come one by one. Return: 0; negative errno with
 *  @error. */
int attend_prompt_ends(struct attend_state *a);

#endif
