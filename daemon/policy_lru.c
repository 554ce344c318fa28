/*
 * policy_lru.c - tail-first LRU: a binary heap of what may go, oldest stamp first, and of one stamp (hundreds of blocks
 * may be published in one tick) who was put in order first.  See kvpool_policy.h.
 */
#include "kvpool_policy.h"

#include <stdlib.h>

static bool lru_before(const struct lru_leaf *a, const struct lru_leaf *b)
{
	return a->stamp != b->stamp ? (int32_t)(a->stamp - b->stamp) < 0 : (int32_t)(a->order - b->order) < 0;
}

static void lru_put(struct lru *lru, uint32_t i, struct lru_leaf *leaf)
{
	lru->at[i] = leaf;
	leaf->index = i;
}

static void lru_up(struct lru *lru, uint32_t i, struct lru_leaf *leaf)
{
	for (; i > 1 && lru_before(leaf, lru->at[i / 2]); i /= 2)
		lru_put(lru, i, lru->at[i / 2]);
	lru_put(lru, i, leaf);
}

static void lru_down(struct lru *lru, uint32_t i, struct lru_leaf *leaf)
{
	for (uint32_t child; (child = 2 * i) <= lru->n; i = child) {
		if (child < lru->n && lru_before(lru->at[child + 1], lru->at[child]))
			child++;
		if (!lru_before(lru->at[child], leaf))
			break;
		lru_put(lru, i, lru->at[child]);
	}
	lru_put(lru, i, leaf);
}

bool lru_add(struct lru *lru, struct lru_leaf *leaf)
{
	if (leaf->index)
		return true;
	if (lru->n + 1 >= lru->room) {
		uint32_t room = lru->room ? 2 * lru->room : 64;
		struct lru_leaf **at = realloc(lru->at, room * sizeof(*at));

		if (!at)
			return false;
		lru->at = at;
		lru->room = room;
	}
	leaf->order = lru->next_order++;
	lru_up(lru, ++lru->n, leaf);
	return true;
}

void lru_remove(struct lru *lru, struct lru_leaf *leaf)
{
	uint32_t i = leaf->index;
	struct lru_leaf *last;

	if (!i)
		return;
	leaf->index = 0;
	last = lru->at[lru->n--];
	if (last == leaf)
		return;
	lru_up(lru, i, last);
	lru_down(lru, last->index, last);
}

void lru_touch(struct lru *lru, struct lru_leaf *leaf)
{
	if (!leaf->index)
		return;
	leaf->order = lru->next_order++;
	lru_up(lru, leaf->index, leaf);
	lru_down(lru, leaf->index, leaf);
}

void lru_free(struct lru *lru)
{
	free(lru->at);
	*lru = (struct lru){0};
}
