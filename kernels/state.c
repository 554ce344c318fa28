/*
 * state.c - the running result of rows: folding splits together and writing the answer
 *
 * One copy for all instruction sets: it is a thousandth of the work.
 */
#include "state.h"

#include <math.h>
#include <string.h>

size_t state_bytes(const struct attn_call *call, uint64_t n_rows)
{
	return n_rows * call->acc_floats * sizeof(float) + 2 * attn_round_up(n_rows * sizeof(float), ATTN_ALIGN);
}

struct attn_state state_at(const struct attn_call *call, uint64_t n_rows, void *memory)
{
	struct attn_state state = {.acc = memory};

	state.m = state.acc + n_rows * call->acc_floats;
	state.l = state.m + attn_round_up(n_rows, ATTN_ALIGN / sizeof(float));
	return state;
}

void state_clear(const struct attn_call *call, uint64_t n_rows, struct attn_state *state)
{
	memset(state->acc, 0, n_rows * call->acc_floats * sizeof(float));
	for (uint64_t r = 0; r < n_rows; r++) {
		state->m[r] = -INFINITY;
		state->l[r] = 0;
	}
}

static void row_fold(float *acc, float *m, float *l, const float *part_acc, float part_m, float part_l, uint32_t n)
{
	float top, keep, take;

	if (part_m == -INFINITY) /* saw nothing: no trace */
		return;
	if (*m == -INFINITY) {
		memcpy(acc, part_acc, n * sizeof(float));
		*m = part_m;
		*l = part_l;
		return;
	}
	top = *m > part_m ? *m : part_m;
	keep = expf(*m - top);
	take = expf(part_m - top);
	for (uint32_t d = 0; d < n; d++)
		acc[d] = acc[d] * keep + part_acc[d] * take;
	*l = *l * keep + part_l * take;
	*m = top;
}

void state_fold(const struct attn_call *call, uint64_t n_rows, struct attn_state *to, const struct attn_state *part)
{
	for (uint64_t r = 0; r < n_rows; r++)
		row_fold(to->acc + r * call->acc_floats, &to->m[r], &to->l[r], part->acc + r * call->acc_floats,
			part->m[r], part->l[r], call->acc_floats);
}

/* The sink is one more score without a value vector. */
static void row_finish(const float *acc, float m, float l, float sink, uint32_t n, float *out, float *lse)
{
	const float top = m > sink ? m : sink;
	float shrink, sum;

	if (m == -INFINITY) {
		memset(out, 0, n * sizeof(float));
		*lse = sink;
		return;
	}
	shrink = expf(m - top);
	sum = l * shrink + expf(sink - top);
	for (uint32_t d = 0; d < n; d++)
		out[d] = acc[d] * shrink / sum;
	*lse = top + logf(sum);
}

void state_finish(const struct attn_call *call, const struct attn_seq *seq, const struct attn_rows *rows,
	const struct attn_state *state)
{
	const uint32_t n_heads = call->opts.n_q_heads, dim_v = call->geom.dim_v;
	uint64_t r = 0;

	for (uint32_t h = 0; h < rows->n_heads; h++)
		for (uint32_t q = 0; q < rows->n_q; q++)
			for (uint32_t g = 0; g < call->group; g++, r++) {
				const uint32_t q_head = (rows->head0 + h) * call->group + g;
				const uint64_t row_q = rows->q0 + q;
				float lse;

				row_finish(state->acc + r * call->acc_floats, state->m[r], state->l[r],
					call->opts.sink_logits ? call->opts.sink_logits[q_head] : -INFINITY, dim_v,
					seq->s->out + row_q * seq->out_stride + (size_t)q_head * dim_v, &lse);
				if (seq->lse)
					seq->lse[row_q * n_heads + q_head] = lse;
			}
}
