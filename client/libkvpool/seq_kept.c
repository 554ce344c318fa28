/*
 * seq_kept.c - some tokens of a sequence as a sequence of its own: what is left when the others are dropped for good
 *
 * Its blocks are not those of any prompt, and their keys say so: every one depends on a label and on an identity of
 * what was kept of what.
 */
#include "seq.h"

#include <stdlib.h>
#include <string.h>

#include "kvattn.h"

#define LABEL "kvpool-kept/1"
#define LABEL_MAX 64u
#define STEP TILED_TOKENS /* rows at a time: types with groups across tokens are put by whole tiles */

static int kept_bad(const struct kvp_seq *seq, const struct kvp_keep *keep)
{
	const struct cell *cell;
	uint64_t pos;

	if (!keep || keep->size != sizeof(*keep) || !keep->n || !keep->tokens)
		return fail(-KVP_EINVAL, "keep: a null pointer, another size, or nothing is kept");
	if (keep->n_label > LABEL_MAX || (keep->n_label && !keep->label))
		return fail(-KVP_EINVAL, "keep.n_label: 0 to %u", LABEL_MAX);
	if (!keep->kernels || keep->kernels->size != sizeof(*keep->kernels) || !keep->kernels->get ||
		!keep->kernels->put)
		return fail(-KVP_EINVAL, "keep.kernels: get or put is missing; see KVP_KERNELS_OF_KVATTN");
	if (seq->committed > UINT32_MAX || keep->n > UINT32_MAX / sizeof(*keep->tokens))
		return fail(-KVP_ENOTSUP, "keep: of at most 2^32 tokens");
	for (uint64_t i = 0; i < keep->n; i++) {
		pos = keep->tokens[i];
		if (pos >= seq->committed || (i && pos <= keep->tokens[i - 1]))
			return fail(-KVP_EINVAL, "keep.tokens[%llu]: %llu of %llu committed ones, ascending",
				(unsigned long long)i, (unsigned long long)pos, (unsigned long long)seq->committed);
		cell = seq->cells[pos / seq->ns->join.desc.block_tokens];
		if (!cell || cell_state(cell) == CELL_AWAY)
			return fail(-KVP_EINVAL, "keep.tokens[%llu]: the block of token %llu is not at hand",
				(unsigned long long)i, (unsigned long long)pos);
	}
	return 0;
}

/* Label, identity of what is kept of what, and the caller's label: every block's key depends on it. */
static int kept_extra(struct kvp_seq *kept, const struct kvp_seq *seq, const struct kvp_keep *keep)
{
	const uint8_t *secret = ns_secret(seq->ns);
	struct kvp_key of, identity;
	uint32_t n = sizeof(LABEL) + sizeof(identity) + keep->n_label;
	uint8_t *at;

	kept->extra = malloc(n);
	kept->first_extra = malloc(n);
	at = kept->extra;
	if (!at || !kept->first_extra)
		return fail(-KVP_ENOMEM, "out of memory");
	key_block(secret, NULL, seq->tokens, (uint32_t)seq->committed, seq->first_extra, seq->n_first_extra, &of);
	key_block(secret, &of, NULL, 0, keep->tokens, (uint32_t)(keep->n * sizeof(*keep->tokens)), &identity);
	memcpy(at, LABEL, sizeof(LABEL));
	memcpy(at + sizeof(LABEL), &identity, sizeof(identity));
	if (keep->n_label)
		memcpy(at + sizeof(LABEL) + sizeof(identity), keep->label, keep->n_label);
	memcpy(kept->first_extra, kept->extra, n);
	kept->n_extra = kept->n_first_extra = n;
	return 0;
}

static int kept_append(struct kvp_seq *kept, const struct kvp_seq *seq, const struct kvp_keep *keep)
{
	uint32_t *tokens = malloc(keep->n * sizeof(*tokens));
	int64_t r = tokens ? 0 : fail(-KVP_ENOMEM, "out of memory");

	for (uint64_t i = 0; r == 0 && i < keep->n; i++)
		tokens[i] = seq->tokens[keep->tokens[i]];
	if (r == 0)
		r = kvp_seq_append(kept, tokens, keep->n);
	free(tokens);
	return r < 0 ? (int)r : 0;
}

/* Rows @first .. @first + @n - 1 of the kept sequence, which lie in one tile of it. @rows: room for STEP of K, then of
   V. */
static int rows_keep(const struct kvp_seq *kept, const struct kvp_seq *seq, const struct kvp_keep *keep,
	const struct kvattn_geom *geom, uint64_t first, uint32_t n, float *rows)
{
	const uint64_t width = seq->ns->join.desc.block_tokens;
	const size_t k_row = (size_t)geom->n_kv_heads * geom->dim_k, v_row = (size_t)geom->n_kv_heads * geom->dim_v;
	float *v = geom->v_off == geom->k_off ? NULL : rows + STEP * k_row; /* NULL: it is in K */
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < n; i++) {
		const uint64_t pos = keep->tokens[first + i];

		r = keep->kernels->get(geom, cell_data(seq->cells[pos / width]), (uint32_t)(pos % width), 1,
			rows + i * k_row, 0, v ? v + i * v_row : NULL, 0);
	}
	if (r == 0)
		r = keep->kernels->put(
			geom, kept->cells[first / width]->data, (uint32_t)(first % width), n, rows, 0, v, 0);
	return r < 0 ? fail(-KVP_ENOTSUP, "the kernels do not move its rows: %s", strerror(-r)) : 0;
}

static int layer_keep(
	const struct kvp_seq *kept, const struct kvp_seq *seq, const struct kvp_keep *keep, uint32_t layer)
{
	const uint64_t width = seq->ns->join.desc.block_tokens, tile = tiled_tokens((uint32_t)width);
	struct kvattn_geom geom;
	float *rows = NULL;
	int r = kvp_attn_geom(seq->ns, layer, &geom);

	if (r == 0)
		rows = malloc(STEP * (size_t)geom.n_kv_heads * (geom.dim_k + geom.dim_v) * sizeof(*rows));
	if (r == 0 && !rows)
		r = fail(-KVP_ENOMEM, "out of memory");
	for (uint64_t first = 0; r == 0 && first < keep->n;) {
		const uint64_t in = first % width, left = keep->n - first;
		uint64_t n = tile - in % tile;

		n = n < width - in ? n : width - in;
		n = n < left ? n : left;
		r = rows_keep(kept, seq, keep, &geom, first, (uint32_t)n, rows);
		first += n;
	}
	free(rows);
	return r;
}

int kvp_compact(struct kvp_seq *seq, const struct kvp_keep *keep, struct kvp_seq **out)
{
	struct kvp_seq_stats stats = {.size = sizeof(stats)};
	struct kvp_seq *kept;
	int r = seq_bad(seq);

	if (r == 0)
		r = kept_bad(seq, keep);
	if (r == 0 && !out)
		r = fail(-KVP_EINVAL, "kept: a null pointer");
	if (r < 0)
		return r;
	*out = NULL;
	kept = seq_new(seq->ns);
	if (!kept)
		return fail(-KVP_ENOMEM, "out of memory");
	r = kept_extra(kept, seq, keep);
	if (r == 0)
		r = kept_append(kept, seq, keep);
	for (uint32_t layer = 0; r == 0 && layer < seq->ns->join.desc.n_layers; layer++)
		r = layer_keep(kept, seq, keep, layer);
	if (r == 0 && kvp_seq_stats(seq, &stats) == 0 &&
		stats.lost) /* what was read may have been something else by then */
		r = fail(-KVP_ESTALE, "blocks of the sequence were taken away: this process was stopped too long");
	if (r == 0 && kvp_seq_commit(kept, keep->n) < 0)
		r = -KVP_ENOMEM;
	if (r < 0) {
		kvp_seq_close(kept);
		return r;
	}
	*out = kept;
	return 0;
}
