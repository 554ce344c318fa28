/*
 * seq.h - inside of sequences, shared by seq.c (tokens and blocks) and seq_publish.c (what becomes of full blocks)
 */
#ifndef KVPOOL_SEQ_H
#define KVPOOL_SEQ_H

#include "internal.h"

/*
 * A block of one or more sequences; what is shared is committed, so its bytes stand still.  The state moves
 *
 *	OPEN -> SENT -> STORED		by compare-and-swap of the sequence that publishes it, then by the keeper
 *		     -> ELSEWHERE	the key was there: the other block is pinned, our own still read; -> STORED by seq_sync()
 *		     -> OPEN		the other one was gone already, or it had nowhere to move to: publish again
 *		     -> REFUSED		stays private, and what comes after it in the chain too
 *	STORED -> AWAY -> STORED	seq_sparse.c: let go of, pinned again when it is selected
 */
enum cell_state {
	CELL_OPEN,
	CELL_SENT,
	CELL_STORED,
	CELL_ELSEWHERE,
	CELL_REFUSED,
	CELL_AWAY,
};
struct cell {
	_Atomic uint32_t refs; /* sequences and batches */
	_Atomic uint32_t state; /* enum cell_state; stored with release after the fields below */
	uint32_t tries;
	bool is_private;
	char *data; /* base of the memory it was made with, NULL: found */
	struct room room; /* whose that memory is, HOLD_NONE: nobody's (any more); the keeper's while SENT */
	struct room left; /* whose @data is if @room is where it moved to, for a new daemon; else HOLD_NONE */
	struct spot spot; /* map NULL: none; else pinned */
	uint64_t used; /* seq->tick of the last selection */
};

/* Of one block: published and held, or the block it was to be published from. */
struct seq_summary {
	struct kvp_view view;
	struct kvp_block_ref block;
};

/* What outlives a sequence for the batches it has in flight. */
struct tally {
	_Atomic uint32_t refs;
	_Atomic uint32_t in_flight;
	_Atomic uint64_t published;
};

struct kvp_seq {
	struct kvp_ns *ns;
	struct tally *tally;
	uint32_t window, sinks;
	uint32_t hint;
	uint32_t n_extra, n_first_extra;
	uint8_t *extra, *first_extra; /* first: of the first block, with the salt */

	uint32_t *tokens;
	uint64_t n_tokens, tokens_room;
	struct cell **cells; /* NULL: let go by the window */
	uint64_t n_cells, cells_room;
	struct kvp_key *keys;
	uint64_t n_keys, keys_room;
	uint8_t secret[32]; /* the keys were made under */

	uint64_t committed; /* tokens */
	uint64_t n_settled; /* blocks before are stored, or let go */
	uint64_t n_let_go; /* blocks looked at by the window */
	struct ns_map *map; /* published to so far */
	bool broken; /* a block of the chain is not in the pool and never will be */
	uint64_t heal_after_ns;

	struct kvp_ns *summaries; /* NULL: blocks are held, and have no summaries */
	struct kvp_kernels kernels;
	uint64_t resident; /* published blocks held at most; 0: all */
	struct seq_summary *summary;
	uint64_t n_summaries, summaries_room;
	uint64_t n_healed; /* summaries before are in the pool */
	uint64_t heal_summaries_after_ns;
	uint64_t tick, restored;

	const void **table_blocks;
	uint64_t *table_pos;
	int16_t *table_nodes;
	uint64_t table_room;

	uint64_t reused_ram, reused_spill;
	uint64_t copied_bytes;
	uint32_t lost;
};

static inline enum cell_state cell_state(const struct cell *cell)
{
	return (enum cell_state)atomic_load_explicit(&cell->state, memory_order_acquire);
}
/* Where its bytes are read: our own memory as long as we have it, for a table in use may point there. */
static inline char *cell_data(const struct cell *cell)
{
	return cell_state(cell) == CELL_STORED && cell->spot.map ? (char *)(uintptr_t)cell->spot.data : cell->data;
}

struct cell *cell_new(const struct room *room);
/** cell_drop() - Return: 1: it was the last reference, and the hold had been lost; else 0 */
uint32_t cell_drop(struct cell *cell);
/** cell_away() - of a block that is in the pool and not held. NULL: out of memory. */
struct cell *cell_away(void);
/** cell_take_view() - the hold moves from the view to the cell, which is STORED then */
void cell_take_view(struct cell *cell, struct kvp_view *view);
void tally_drop(struct tally *tally);
struct kvp_seq *seq_new(struct kvp_ns *ns);
int seq_bad(const struct kvp_seq *seq);
int array_grow(void **array, uint64_t *room, uint64_t want, size_t item);
/** seq_table_of() - a table of these blocks, which are at hand. Return: 0; -KVP_ENOMEM. */
int seq_table_of(struct kvp_seq *seq, const uint64_t *blocks, uint64_t n, struct kvattn_table *table);

/** seq_rooms() - writable blocks, from the pool if there are some without much waiting, else private. Return: 0;
 *  -KVP_ENOMEM. */
int seq_rooms(struct kvp_seq *seq, uint64_t n, struct room *rooms);
/** seq_keys() - have the keys of the first @n blocks. Return: 0; -KVP_ENOMEM. */
int seq_keys(struct kvp_seq *seq, uint64_t n);
/** seq_sync() - take over what the keeper learned: tables made before are void */
void seq_sync(struct kvp_seq *seq);
/** seq_publish() - send what is committed and full */
void seq_publish(struct kvp_seq *seq);

/** seq_summarise() - of what is committed and full; before it is published. Return: 0; -KVP_E... */
int seq_summarise(struct kvp_seq *seq);
/** seq_private_summaries() - those that are not in the pool */
uint64_t seq_private_summaries(const struct kvp_seq *seq);
void seq_drop_summaries(struct kvp_seq *seq, uint64_t from);
/** seq_cool() - let go of what is held beyond resident_blocks */
void seq_cool(struct kvp_seq *seq);
/** seq_match_sparse() - as kvp_seq_match(), no block read. The keys are there. */
int64_t seq_match_sparse(struct kvp_seq *seq, uint64_t n_blocks, uint64_t deadline_ns);

#endif
