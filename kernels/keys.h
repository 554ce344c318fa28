/* keys.h - from a block table to splits and runs of keys */
#ifndef KVATTN_KEYS_H
#define KVATTN_KEYS_H

#include "attn.h"

/** keys_split_count() - how many splits a table has; block_pos is checked. Return: the count; -EINVAL. */
int64_t keys_split_count(const struct attn_call *call, const struct kvattn_table *table);

/** keys_splits() - fill @splits, keys_split_count() of them; only for tables with block_pos */
void keys_splits(const struct attn_call *call, const struct kvattn_table *table, struct attn_split *splits);

/** keys_split_at() - the @i-th split of a sequence */
struct attn_split keys_split_at(const struct attn_seq *seq, uint64_t i);

/** keys_runs() - the pieces of blocks that hold a split's keys; @runs has room for ATTN_SPLIT. Return: how many. */
uint32_t keys_runs(const struct attn_call *call, const struct kvattn_table *table, const struct attn_split *split,
	struct attn_run *runs);

/** keys_last_pos() - position of a table's last key; -1: it is empty */
int64_t keys_last_pos(const struct attn_call *call, const struct kvattn_table *table);

#endif
