/* state.h - the running result of rows: folding splits together and writing the answer */
#ifndef KVATTN_STATE_H
#define KVATTN_STATE_H

#include "attn.h"

/** state_bytes() - of the memory a state of @n_rows rows needs; a multiple of ATTN_ALIGN */
size_t state_bytes(const struct attn_call *call, uint64_t n_rows);

/** state_at() - a state of @n_rows rows in @memory, ATTN_ALIGN */
struct attn_state state_at(const struct attn_call *call, uint64_t n_rows, void *memory);

/** state_clear() - no key seen yet */
void state_clear(const struct attn_call *call, uint64_t n_rows, struct attn_state *state);

/** state_fold() - @to takes in @part, which holds later keys; the order of folds is part of the result's bits */
void state_fold(const struct attn_call *call, uint64_t n_rows, struct attn_state *to, const struct attn_state *part);

/** state_finish() - the rows' out and lse, sink included */
void state_finish(const struct attn_call *call, const struct attn_seq *seq, const struct attn_rows *rows,
	const struct attn_state *state);

#endif
