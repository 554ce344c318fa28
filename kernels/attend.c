/*
 * attend.c - kvattn_attend(): checks its arguments, cuts the batch into units of work and hands them to threads
 *
 * A unit is a block of query rows of one sequence with some of its KV heads, either over all splits of the keys (they
 * are then folded on the way) or, for a long decode on several threads, over one split; who finishes a sequence's last
 * split folds. How the work is cut never shows in the result: see the order of keys in attn.h.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "cpu.h"
#include "crew.h"
#include "dispatch.h"
#include "geom.h"
#include "keys.h"
#include "queue.h"
#include "state.h"
#include "tune.h"

/* Query rows that share one pass over a head's keys, so few that their sums stay in the second-level cache. */
#define ROWS_PER_HEAD 256u
#define ROWS_FEW 64u /* so few where there are threads enough for more units */
/* The same over all heads of a unit. */
#define ROWS_DECODE 256u
#define SPLIT_ROWS_MAX 1024u
#define JOINED_ROWS_MAX 1024u /* of several sequences, all heads */
#define SPLIT_BYTES_MAX (256ull << 20) /* of results by split that wait for their fold */
#define THREADS_MAX 1024u

/* How one sequence is cut. */
struct cut {
	struct attn_seq seq;
	const int16_t *block_nodes; /* NULL: not known */
	uint64_t first_unit;
	uint64_t n_q_blocks;
	uint32_t q_block; /* query rows in a unit */
	uint32_t head_block, n_head_blocks;
	char *parts; /* one state a split; NULL: units go over all splits */
	_Atomic uint64_t splits_left;
	uint64_t first_weighing; /* of the units that add to mass, one a split; 0 of them if it is not wanted */
	float *lse_own; /* where the caller wants mass alone */
	bool shares, follows; /* a split or more with a neighbour; with the one before */
	uint32_t n_members; /* of the group this one leads: it and those that follow */
	uint64_t n_joined; /* first splits that all of them work off as one */
};

struct plan {
	const struct attn_isa *isa;
	struct attn_call call;
	struct cut *cuts;
	uint64_t n_cuts, n_units, n_weighings;
	bool weighs; /* results are there, mass is next */
	uint32_t n_threads;
	uint32_t rows_max; /* in a unit */
	uint32_t rows_per_head_max;
	struct attn_split *splits; /* of all tables with positions */
	char *parts; /* of all sequences cut by split */
	struct kvattn_crew *crew; /* NULL: threads are made for the call */
	const int16_t *const *block_nodes; /* by sequence, then block; NULL: not known, as any of them may be */
	struct queue units;
};

struct worker {
	struct plan *plan;
	pthread_t thread;
	uint32_t node; /* QUEUE_NOWHERE: does not matter */
	struct attn_state total, part;
	struct attn_run *runs;
	void *scratch;
};

/* ---- Arguments ---- */

static bool finite_all(const float *values, uint32_t n, bool minus_infinity_too)
{
	for (uint32_t i = 0; values && i < n; i++)
		if (!isfinite(values[i]) && !(minus_infinity_too && values[i] == -INFINITY))
			return false;
	return true;
}

static int opts_check(const struct kvattn_opts *opts, const struct kvattn_geom *geom)
{
	if (!opts || opts->size != sizeof(*opts) || opts->flags & ~(uint32_t)KVATTN_BF16_VECTORS)
		return -EINVAL;
	if (!opts->n_q_heads || opts->n_q_heads > KVATTN_HEADS_MAX || opts->n_q_heads % geom->n_kv_heads)
		return -EINVAL;
	if (isinf(opts->scale) || !(opts->softcap >= 0) || isinf(opts->softcap))
		return -EINVAL;
	if (!finite_all(opts->sink_logits, opts->n_q_heads, true) ||
		!finite_all(opts->alibi_slopes, opts->n_q_heads, false))
		return -EINVAL;
	return 0;
}

static int table_check(const struct kvattn_table *table, uint32_t block_tokens)
{
	if (!table->n_tokens)
		return 0;
	if (!table->blocks || table->n_tokens > KVATTN_TOKENS_MAX ||
		table->n_blocks < (table->n_tokens + block_tokens - 1) / block_tokens)
		return -EINVAL;
	for (uint64_t b = 0; b * block_tokens < table->n_tokens; b++)
		if (!table->blocks[b])
			return -EINVAL;
	return 0;
}

static bool stride_bad(uint64_t stride, uint64_t dense)
{
	return stride && (stride < dense || stride > KVATTN_TOKENS_MAX);
}

static int seq_check(const struct attn_call *call, const struct kvattn_seq *s)
{
	const uint64_t heads = call->opts.n_q_heads;

	for (size_t i = 0; i < sizeof(s->reserved) / sizeof(s->reserved[0]); i++)
		if (s->reserved[i])
			return -EINVAL;
	if (s->reserved0 || s->causal > 1 || s->n_q > 1u << 30 || s->q_end > KVATTN_TOKENS_MAX)
		return -EINVAL;
	if (s->n_q && (!s->q || !s->out))
		return -EINVAL;
	if (stride_bad(s->mass_stride, s->table.n_tokens))
		return -EINVAL;
	if (stride_bad(s->q_stride, heads * call->geom.dim_k) || stride_bad(s->out_stride, heads * call->geom.dim_v))
		return -EINVAL;
	if (s->scale && !isfinite(*s->scale))
		return -EINVAL;
	return table_check(&s->table, call->geom.block_tokens);
}

static int64_t bounded(uint64_t tokens)
{
	return (int64_t)(tokens < KVATTN_TOKENS_MAX ? tokens : KVATTN_TOKENS_MAX);
}

static int call_init(struct attn_call *call, const struct kvattn_geom *geom, const struct kvattn_opts *opts)
{
	int r = geom_check(geom);

	if (r == 0)
		r = opts_check(opts, geom);
	if (r < 0)
		return r;
	*call = (struct attn_call){
		.geom = *geom,
		.opts = *opts,
		.group = opts->n_q_heads / geom->n_kv_heads,
		.acc_floats = (uint32_t)attn_round_up(geom->dim_v, ATTN_PAD_FLOATS),
		.ahead_bytes = tune_ahead(),
		.window = bounded(opts->window),
		.sink_tokens = bounded(opts->sink_tokens),
	};
	if (isnan(opts->scale))
		call->opts.scale = 1.0f / sqrtf((float)geom->dim_k);
	return 0;
}

static void seq_init(const struct attn_call *call, const struct kvattn_seq *s, struct attn_seq *seq)
{
	const int64_t end = s->q_end ? (int64_t)s->q_end : keys_last_pos(call, &s->table) + 1;

	*seq = (struct attn_seq){
		.s = s,
		.q_stride = s->q_stride ? s->q_stride : (uint64_t)call->opts.n_q_heads * call->geom.dim_k,
		.out_stride = s->out_stride ? s->out_stride : (uint64_t)call->opts.n_q_heads * call->geom.dim_v,
		.pos0 = end - (int64_t)s->n_q,
		.scale = s->scale ? *s->scale : call->opts.scale,
		.lse = s->lse,
		.mass_stride = s->mass_stride ? s->mass_stride : s->table.n_tokens,
	};
}

/* ---- Cutting ---- */

static uint32_t least(uint64_t a, uint64_t b)
{
	return (uint32_t)(a < b ? a : b);
}

/* Blocks of rows and heads so large that keys are read few times, and small enough for the caches. */
static void cut_rows(const struct plan *plan, struct cut *cut)
{
	const uint32_t group = plan->call.group, n_kv_heads = plan->call.geom.n_kv_heads;
	const uint64_t n_q = cut->seq.s->n_q;
	uint32_t rows = ROWS_PER_HEAD;

	while (plan->n_threads > 1 && rows > ROWS_FEW &&
		(n_q * group + rows - 1) / rows * n_kv_heads < 2 * (uint64_t)plan->n_threads)
		rows /= 2;
	cut->q_block = n_q * group <= rows ? (uint32_t)n_q : group < rows ? rows / group : 1;
	cut->n_q_blocks = (n_q + cut->q_block - 1) / cut->q_block;
	cut->head_block = cut->n_q_blocks > 1 ? 1 : least(n_kv_heads, ROWS_DECODE / (cut->q_block * group));
	if (cut->head_block == 0)
		cut->head_block = 1;
}

/* Bytes of one split's result where the sequence is better cut by splits; 0: it is not. */
static uint64_t cut_part_bytes(const struct plan *plan, const struct cut *cut)
{
	const uint64_t rows = cut->seq.s->n_q * plan->call.opts.n_q_heads;

	if ((plan->n_threads < 2 && !cut->shares) || cut->n_q_blocks > 1 || rows > SPLIT_ROWS_MAX ||
		cut->seq.n_splits < 2 * (uint64_t)plan->n_threads)
		return 0;
	return state_bytes(&plan->call, rows);
}

static void cut_heads(const struct plan *plan, struct cut *cut)
{
	const uint32_t n_kv_heads = plan->call.geom.n_kv_heads;

	while (plan->n_threads > 1 && cut->head_block > 1 &&
		cut->n_q_blocks * ((n_kv_heads + cut->head_block - 1) / cut->head_block) < 2 * plan->n_threads)
		cut->head_block = (cut->head_block + 1) / 2;
	cut->n_head_blocks = (n_kv_heads + cut->head_block - 1) / cut->head_block;
}

static void plan_free(struct plan *plan)
{
	for (uint64_t i = 0; i < plan->n_cuts; i++)
		free(plan->cuts[i].lse_own);
	free(plan->cuts);
	free(plan->splits);
	free(plan->parts);
	queue_deinit(&plan->units);
}

/* Splits of the tables that come with positions; the others are counted by arithmetic. */
static int plan_splits(struct plan *plan)
{
	struct attn_split *splits;
	uint64_t total = 0;

	for (uint64_t i = 0; i < plan->n_cuts; i++) {
		const int64_t n = keys_split_count(&plan->call, &plan->cuts[i].seq.s->table);

		if (n < 0)
			return (int)n;
		plan->cuts[i].seq.n_splits = (uint64_t)n;
		total += plan->cuts[i].seq.s->table.block_pos ? (uint64_t)n : 0;
	}
	if (total == 0)
		return 0;
	plan->splits = splits = calloc(total, sizeof(*splits));
	if (!splits)
		return -ENOMEM;
	for (uint64_t i = 0; i < plan->n_cuts; i++) {
		struct attn_seq *seq = &plan->cuts[i].seq;

		if (!seq->s->table.block_pos || !seq->n_splits)
			continue;
		keys_splits(&plan->call, &seq->s->table, splits);
		seq->splits = splits;
		splits += seq->n_splits;
	}
	return 0;
}

/* Room for the results by split, handed out to the sequences that are cut so. */
static int plan_parts(struct plan *plan)
{
	uint64_t total = 0;

	for (uint64_t i = 0; i < plan->n_cuts; i++)
		total += plan->cuts[i].seq.n_splits * cut_part_bytes(plan, &plan->cuts[i]);
	if (total == 0 || total > SPLIT_BYTES_MAX)
		return 0;
	plan->parts = aligned_alloc(ATTN_ALIGN, total);
	if (!plan->parts)
		return -ENOMEM;
	total = 0;
	for (uint64_t i = 0; i < plan->n_cuts; i++) {
		struct cut *cut = &plan->cuts[i];
		const uint64_t bytes = cut_part_bytes(plan, cut);

		if (bytes == 0)
			continue;
		cut->parts = plan->parts + total;
		cut->head_block = plan->call.geom.n_kv_heads;
		atomic_init(&cut->splits_left, cut->seq.n_splits);
		total += cut->seq.n_splits * bytes;
	}
	return 0;
}

/* Whether two tables begin with the same blocks, for a split at least. */
static bool tables_share(const struct plan *plan, const struct kvattn_table *a, const struct kvattn_table *b)
{
	const uint64_t block_tokens = plan->call.geom.block_tokens;

	if (a->block_pos || b->block_pos || a->n_tokens < ATTN_SPLIT || b->n_tokens < ATTN_SPLIT)
		return false;
	for (uint64_t i = 0; i * block_tokens < ATTN_SPLIT; i++)
		if (a->blocks[i] != b->blocks[i])
			return false;
	return true;
}

/* Sequences with a common beginning are worked on split by split, so that a split's bytes come from memory once for all
 * of them and from the caches for the others. */
static void plan_shares(struct plan *plan)
{
	for (uint64_t i = 1; i < plan->n_cuts; i++)
		if (tables_share(plan, &plan->cuts[i - 1].seq.s->table, &plan->cuts[i].seq.s->table))
			plan->cuts[i - 1].shares = plan->cuts[i].shares = plan->cuts[i].follows = true;
}

static void rows_count(struct plan *plan, uint32_t rows_per_head, uint32_t n_heads)
{
	if (rows_per_head * n_heads > plan->rows_max)
		plan->rows_max = rows_per_head * n_heads;
	if (rows_per_head > plan->rows_per_head_max)
		plan->rows_per_head_max = rows_per_head;
}

static void cut_count_rows(struct plan *plan, const struct cut *cut)
{
	rows_count(plan, cut->q_block * plan->call.group, cut->head_block);
}

/* First splits whose blocks are the same in both tables. */
static uint64_t splits_shared(const struct plan *plan, const struct kvattn_table *a, const struct kvattn_table *b)
{
	const uint64_t block_tokens = plan->call.geom.block_tokens;
	const uint64_t n_tokens = a->n_tokens < b->n_tokens ? a->n_tokens : b->n_tokens;
	uint64_t i = 0;

	while (i * block_tokens < n_tokens && a->blocks[i] == b->blocks[i])
		i++;
	return (i * block_tokens < n_tokens ? i * block_tokens : n_tokens) / ATTN_SPLIT;
}

/* Whether @cut's rows may stand in a unit beside those of @n - 1 others. */
static bool cut_joins(const struct plan *plan, const struct cut *lead, const struct cut *cut, uint32_t n)
{
	const struct attn_call *call = &plan->call;

	return plan->isa->joins && call->geom.layout == KVATTN_TILED && cut->seq.s->n_q == lead->seq.s->n_q &&
	       cut->seq.scale == lead->seq.scale && n * cut->seq.s->n_q * call->group <= ROWS_PER_HEAD &&
	       n * cut->seq.s->n_q * call->opts.n_q_heads <= JOINED_ROWS_MAX;
}

/* Units of a sequence cut by splits, and of those that follow it: first the splits they have in common, all rows at
 * once, so that K and V are read and widened once for all; then split by split, member by member.  Followers have no units
 * of their own.  Returns the number of members. */
static uint32_t group_units(struct plan *plan, uint64_t first)
{
	struct cut *lead = &plan->cuts[first];
	uint64_t n_splits = lead->seq.n_splits, n_joined = n_splits;
	uint32_t n = 1;

	for (; first + n < plan->n_cuts && lead[n].follows && lead[n].parts; n++) {
		uint64_t shared;

		if (!cut_joins(plan, lead, &lead[n], n + 1))
			break;
		shared = splits_shared(plan, &lead->seq.s->table, &lead[n].seq.s->table);
		n_joined = shared < n_joined ? shared : n_joined;
		n_splits = lead[n].seq.n_splits > n_splits ? lead[n].seq.n_splits : n_splits;
	}
	lead->n_members = n;
	lead->n_joined = n > 1 ? n_joined : 0;
	lead->first_unit = plan->n_units;
	plan->n_units += lead->n_joined + n * (n_splits - lead->n_joined);
	if (lead->n_joined)
		rows_count(plan, n * lead->q_block * plan->call.group, plan->call.geom.n_kv_heads);
	for (uint32_t i = 0; i < n; i++) {
		if (i)
			lead[i].first_unit = plan->n_units;
		cut_count_rows(plan, &lead[i]);
	}
	return n;
}

static void plan_units(struct plan *plan)
{
	for (uint64_t i = 0; i < plan->n_cuts;) {
		struct cut *cut = &plan->cuts[i];

		if (cut->parts) {
			i += group_units(plan, i);
			continue;
		}
		cut_heads(plan, cut);
		cut->first_unit = plan->n_units;
		plan->n_units += cut->n_q_blocks * cut->n_head_blocks;
		cut_count_rows(plan, cut);
		i++;
	}
}

/* Mass needs each row's log-sum, so it is a second pass: units of a split each, which no other one adds to. */
static int plan_weighings(struct plan *plan)
{
	for (uint64_t i = 0; i < plan->n_cuts; i++) {
		struct cut *cut = &plan->cuts[i];

		cut->first_weighing = plan->n_weighings;
		if (!cut->seq.s->mass)
			continue;
		plan->n_weighings += cut->seq.n_splits;
		if (cut->seq.lse)
			continue;
		cut->lse_own = calloc(cut->seq.s->n_q, plan->call.opts.n_q_heads * sizeof(float));
		if (!cut->lse_own)
			return -ENOMEM;
		cut->seq.lse = cut->lse_own;
	}
	return 0;
}

/* The cut whose unit this is; followers have none of their own and stand behind all of their group's. */
static struct cut *cut_of_unit(const struct plan *plan, uint64_t unit)
{
	uint64_t low = 0, high = plan->n_cuts;

	while (high - low > 1) {
		const uint64_t mid = (low + high) / 2;

		if (plan->cuts[mid].first_unit <= unit)
			low = mid;
		else
			high = mid;
	}
	return &plan->cuts[low];
}

/* ---- Which node's threads a unit is for ---- */

/* The node on which most blocks of a split lie. */
static uint32_t split_node(const struct plan *plan, const struct cut *cut, uint64_t i)
{
	const struct attn_split split = keys_split_at(&cut->seq, i);
	const uint64_t block_tokens = plan->call.geom.block_tokens, end = split.key + split.n_keys;
	uint32_t votes[QUEUE_NODES] = {0}, best = QUEUE_NOWHERE;

	for (uint64_t b = split.key / block_tokens; cut->block_nodes && b * block_tokens < end; b++) {
		const int16_t node = cut->block_nodes[b];

		if (node < 0 || (uint32_t)node >= QUEUE_NODES)
			continue;
		votes[node]++;
		if (best == QUEUE_NOWHERE || votes[node] > votes[best])
			best = (uint32_t)node;
	}
	return best;
}

/* Units over all splits belong to no node: their blocks lie on each of them. */
static uint32_t unit_node(void *arg, uint64_t unit)
{
	const struct plan *plan = arg;
	const struct cut *cut = cut_of_unit(plan, unit);
	uint64_t at, rest;

	if (!cut->parts)
		return QUEUE_NOWHERE;
	at = unit - cut->first_unit;
	if (at < cut->n_joined)
		return split_node(plan, cut, at);
	rest = at - cut->n_joined;
	at = cut->n_joined + rest / cut->n_members;
	cut += rest % cut->n_members;
	return at < cut->seq.n_splits ? split_node(plan, cut, at) : QUEUE_NOWHERE;
}

static int plan_queue(struct plan *plan)
{
	if (!plan->block_nodes || plan->n_threads < 2) {
		queue_init(&plan->units, plan->n_units);
		return 0;
	}
	return queue_sort(&plan->units, plan->n_units, unit_node, plan);
}

static uint32_t threads_wanted(const struct plan *plan)
{
	const uint32_t asked = plan->call.opts.n_threads, most = plan->crew ? crew_size(plan->crew) : THREADS_MAX;
	const uint32_t n = asked == KVATTN_THREADS_AUTO && !plan->crew ? cpu_count() : asked;

	if (n == 0)
		return plan->crew ? most : 1;
	return n < most ? n : most;
}

static int plan_init(struct plan *plan, const struct kvattn_seq *seqs, uint64_t n_seqs)
{
	int r;

	plan->isa = dispatch_isa(plan->call.opts.flags & KVATTN_BF16_VECTORS);
	plan->n_threads = threads_wanted(plan);
	plan->cuts = calloc(n_seqs, sizeof(*plan->cuts));
	if (!plan->cuts)
		return -ENOMEM;
	for (uint64_t i = 0; i < n_seqs; i++) {
		r = seq_check(&plan->call, &seqs[i]);
		if (r < 0)
			return r;
		if (seqs[i].n_q == 0)
			continue;
		seq_init(&plan->call, &seqs[i], &plan->cuts[plan->n_cuts].seq);
		plan->cuts[plan->n_cuts].block_nodes = plan->block_nodes ? plan->block_nodes[i] : NULL;
		cut_rows(plan, &plan->cuts[plan->n_cuts++]);
	}
	r = plan_splits(plan);
	plan_shares(plan);
	if (r == 0)
		r = plan_parts(plan);
	if (r == 0)
		r = plan_weighings(plan);
	if (r < 0)
		return r;
	plan_units(plan);
	return plan_queue(plan);
}

/* ---- Working ---- */

/* Whether any row of @rows can see any position of a split: a cheap test, so a window skips what is behind it. */
static bool split_in_sight(const struct attn_call *call, const struct attn_seq *seq, const struct attn_rows *rows,
	const struct attn_split *split)
{
	const int64_t first = seq->pos0 + (int64_t)rows->q0, last = first + rows->n_q - 1;

	if (seq->s->causal && split->pos > last)
		return false;
	return !call->window || split->pos + ATTN_SPLIT > first - call->window + 1 || split->pos < call->sink_tokens;
}

static void split_work(struct worker *w, const struct attn_seq *seq, const struct attn_rows *rows,
	const struct attn_split *split, const struct attn_state *state)
{
	struct plan *plan = w->plan;
	struct attn_part part = {
		.call = &plan->call,
		.seq = seq,
		.rows = *rows,
		.split = *split,
		.runs = w->runs,
		.state = *state,
		.weighs = plan->weighs,
		.scratch = w->scratch,
	};

	part.n_runs = keys_runs(&plan->call, &seq->s->table, split, w->runs);
	plan->isa->part(&part);
}

static void unit_all_splits(struct worker *w, const struct cut *cut, uint64_t unit)
{
	const struct attn_call *call = &w->plan->call;
	const struct attn_seq *seq = &cut->seq;
	struct attn_rows rows = {
		.q0 = unit / cut->n_head_blocks * cut->q_block,
		.head0 = (uint32_t)(unit % cut->n_head_blocks) * cut->head_block,
	};
	uint64_t n_rows;

	rows.n_q = least(cut->q_block, seq->s->n_q - rows.q0);
	rows.n_heads = least(cut->head_block, call->geom.n_kv_heads - rows.head0);
	n_rows = attn_row_count(call, &rows);
	state_clear(call, n_rows, &w->total);
	for (uint64_t i = 0; i < seq->n_splits; i++) {
		const struct attn_split split = keys_split_at(seq, i);

		if (!split_in_sight(call, seq, &rows, &split))
			continue;
		split_work(w, seq, &rows, &split, &w->part);
		state_fold(call, n_rows, &w->total, &w->part);
	}
	state_finish(call, seq, &rows, &w->total);
}

static void fold_splits(struct worker *w, const struct cut *cut, const struct attn_rows *rows, uint64_t n_rows)
{
	const struct attn_call *call = &w->plan->call;

	state_clear(call, n_rows, &w->total);
	for (uint64_t i = 0; i < cut->seq.n_splits; i++) {
		const struct attn_state part = state_at(call, n_rows, cut->parts + i * state_bytes(call, n_rows));

		state_fold(call, n_rows, &w->total, &part);
	}
	state_finish(call, &cut->seq, rows, &w->total);
}

/* Release what was written here; the last one acquires what the others wrote. */
static void split_done(struct worker *w, struct cut *cut, const struct attn_rows *rows, uint64_t n_rows)
{
	if (atomic_fetch_sub_explicit(&cut->splits_left, 1, memory_order_acq_rel) == 1)
		fold_splits(w, cut, rows, n_rows);
}

static void unit_one_split(struct worker *w, struct cut *cut, uint64_t i)
{
	const struct attn_call *call = &w->plan->call;
	const struct attn_rows rows = {.n_q = cut->q_block, .n_heads = call->geom.n_kv_heads};
	const uint64_t n_rows = attn_row_count(call, &rows);
	const struct attn_split split = keys_split_at(&cut->seq, i);
	struct attn_state part = state_at(call, n_rows, cut->parts + i * state_bytes(call, n_rows));

	if (split_in_sight(call, &cut->seq, &rows, &split))
		split_work(w, &cut->seq, &rows, &split, &part);
	else
		for (uint64_t r = 0; r < n_rows; r++)
			part.m[r] = -INFINITY;
	split_done(w, cut, &rows, n_rows);
}

/* What a joined split gave member @m, to where its own unit would have put it. */
static void joined_take(struct worker *w, struct cut *lead, uint32_t m, uint64_t i)
{
	const struct attn_call *call = &w->plan->call;
	struct cut *cut = &lead[m];
	const struct attn_rows rows = {.n_q = cut->q_block, .n_heads = call->geom.n_kv_heads};
	const uint64_t n_rows = attn_row_count(call, &rows), n = (uint64_t)cut->q_block * call->group;
	struct attn_state part = state_at(call, n_rows, cut->parts + i * state_bytes(call, n_rows));

	for (uint32_t h = 0; h < rows.n_heads; h++) {
		const uint64_t from = (h * (uint64_t)lead->n_members + m) * n;

		memcpy(part.acc + h * n * call->acc_floats, w->part.acc + from * call->acc_floats,
			n * call->acc_floats * sizeof(float));
		memcpy(part.m + h * n, w->part.m + from, n * sizeof(float));
		memcpy(part.l + h * n, w->part.l + from, n * sizeof(float));
	}
	split_done(w, cut, &rows, n_rows);
}

/* Whoever sees nothing of the split: the mask says so. */
static void unit_joined(struct worker *w, struct cut *lead, uint64_t i)
{
	struct plan *plan = w->plan;
	const struct attn_split split = keys_split_at(&lead->seq, i);
	const struct attn_seq *seqs[ROWS_PER_HEAD];
	struct attn_part part = {
		.call = &plan->call,
		.seq = &lead->seq,
		.joined = seqs,
		.each = lead->q_block,
		.rows = {.n_q = lead->n_members * lead->q_block, .n_heads = plan->call.geom.n_kv_heads},
		.split = split,
		.runs = w->runs,
		.state = w->part,
		.scratch = w->scratch,
	};

	for (uint32_t m = 0; m < lead->n_members; m++)
		seqs[m] = &lead[m].seq;
	part.n_runs = keys_runs(&plan->call, &lead->seq.s->table, &split, w->runs);
	plan->isa->part(&part);
	for (uint32_t m = 0; m < lead->n_members; m++)
		joined_take(w, lead, m, i);
}

static void unit_of_group(struct worker *w, struct cut *lead, uint64_t unit)
{
	const uint64_t n_joined = lead->n_joined, rest = unit - n_joined;
	struct cut *cut = &lead[rest % lead->n_members];
	const uint64_t split = n_joined + rest / lead->n_members;

	if (unit < n_joined) {
		unit_joined(w, lead, unit);
		return;
	}
	if (split < cut->seq.n_splits) /* members may be of unequal length */
		unit_one_split(w, cut, split);
}

/* Adds to the mass of one split's keys: all rows in order. */
static void unit_weigh(struct worker *w, const struct cut *cut, uint64_t i)
{
	const struct attn_split split = keys_split_at(&cut->seq, i);
	const uint32_t n_kv_heads = w->plan->call.geom.n_kv_heads;
	struct attn_rows rows;

	for (rows.head0 = 0; rows.head0 < n_kv_heads; rows.head0 += rows.n_heads) {
		rows.n_heads = least(cut->head_block, n_kv_heads - rows.head0);
		for (rows.q0 = 0; rows.q0 < cut->seq.s->n_q; rows.q0 += rows.n_q) {
			rows.n_q = least(cut->q_block, cut->seq.s->n_q - rows.q0);
			if (split_in_sight(&w->plan->call, &cut->seq, &rows, &split))
				split_work(w, &cut->seq, &rows, &split, &w->part);
		}
	}
}

static void weighings_run(struct worker *w)
{
	struct plan *plan = w->plan;
	uint64_t unit, c = 0;

	while (queue_take(&plan->units, w->node, &unit)) {
		while (c + 1 < plan->n_cuts && plan->cuts[c + 1].first_weighing <= unit)
			c++;
		unit_weigh(w, &plan->cuts[c], unit - plan->cuts[c].first_weighing);
	}
}

static void worker_work(struct worker *w)
{
	struct plan *plan = w->plan;
	uint64_t unit;

	if (plan->weighs) {
		weighings_run(w);
		return;
	}
	w->node = plan->units.order ? cpu_node() : QUEUE_NOWHERE;
	while (queue_take(&plan->units, w->node, &unit)) {
		struct cut *cut = cut_of_unit(plan, unit);

		if (cut->parts)
			unit_of_group(w, cut, unit - cut->first_unit);
		else
			unit_all_splits(w, cut, unit - cut->first_unit);
	}
}

static void *worker_run(void *arg)
{
	worker_work(arg);
	return NULL;
}

/* The caller's seat is the first. */
static void worker_seat(void *arg, uint32_t seat)
{
	struct worker *workers = arg;

	worker_work(&workers[seat]);
}

static size_t worker_bytes(const struct plan *plan)
{
	return 2 * state_bytes(&plan->call, plan->rows_max) + ATTN_SPLIT * sizeof(struct attn_run) +
	       attn_round_up(
		       plan->isa->scratch_bytes(&plan->call, plan->rows_max, plan->rows_per_head_max), ATTN_ALIGN);
}

static void worker_init(struct worker *w, struct plan *plan, char *memory)
{
	const size_t state = state_bytes(&plan->call, plan->rows_max);

	*w = (struct worker){.plan = plan, .node = QUEUE_NOWHERE};
	w->total = state_at(&plan->call, plan->rows_max, memory);
	w->part = state_at(&plan->call, plan->rows_max, memory + state);
	w->runs = (struct attn_run *)(void *)(memory + 2 * state);
	w->scratch = memory + 2 * state + ATTN_SPLIT * sizeof(struct attn_run);
}

/* The caller works too; signals stay with the threads the caller made itself. */
static void workers_run(struct worker *workers, uint32_t n)
{
	uint32_t started = 1;
	sigset_t all, before;

	if (workers->plan->crew) {
		crew_run(workers->plan->crew, n, worker_seat, workers);
		return;
	}
	if (n > 1) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		while (started < n &&
			pthread_create(&workers[started].thread, NULL, worker_run, &workers[started]) == 0)
			started++;
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	worker_work(&workers[0]);
	for (uint32_t i = 1; i < started; i++)
		pthread_join(workers[i].thread, NULL);
}

static int plan_run(struct plan *plan)
{
	const uint32_t n = least(plan->n_threads, plan->n_units);
	const size_t head = attn_round_up(n * sizeof(struct worker), ATTN_ALIGN), bytes = worker_bytes(plan);
	char *memory;
	struct worker *workers;

	if (n == 0)
		return 0;
	memory = aligned_alloc(ATTN_ALIGN, head + n * bytes);
	if (!memory)
		return -ENOMEM;
	workers = (struct worker *)(void *)memory;
	for (uint32_t i = 0; i < n; i++)
		worker_init(&workers[i], plan, memory + head + i * bytes);
	workers_run(workers, n);
	if (plan->n_weighings) {
		plan->weighs = true;
		queue_deinit(&plan->units);
		queue_init(&plan->units, plan->n_weighings);
		workers_run(workers, n);
	}
	free(memory);
	return 0;
}

void kvattn_opts_init(struct kvattn_opts *opts, uint32_t n_q_heads)
{
	*opts = (struct kvattn_opts){.size = sizeof(*opts), .n_q_heads = n_q_heads, .scale = NAN};
}

int kvattn_crew_attend(struct kvattn_crew *crew, const struct kvattn_geom *geom, const struct kvattn_seq *seqs,
	uint64_t n_seqs, const struct kvattn_opts *opts, const int16_t *const *block_nodes)
{
	struct plan plan = {.crew = crew, .block_nodes = block_nodes};
	int r = call_init(&plan.call, geom, opts);

	if (r < 0)
		return r;
	if (n_seqs == 0)
		return 0;
	if (!seqs || n_seqs > 1u << 30)
		return -EINVAL;
	r = plan_init(&plan, seqs, n_seqs);
	if (r == 0)
		r = plan_run(&plan);
	plan_free(&plan);
	return r;
}

int kvattn_attend(
	const struct kvattn_geom *geom, const struct kvattn_seq *seqs, uint64_t n_seqs, const struct kvattn_opts *opts)
{
	return kvattn_crew_attend(NULL, geom, seqs, n_seqs, opts, NULL);
}
