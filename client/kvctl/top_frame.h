/*
 * top_frame.h - what kvctl top shows: two looks at a pool made into a rectangle of characters
 *
 * Knows no terminal: top.c puts the rectangle on one, or prints it.
 */
#ifndef KVCTL_TOP_FRAME_H
#define KVCTL_TOP_FRAME_H

#include <stdbool.h>

#include "pool.h"
#include "snapshot.h"

enum top_look { /* of a character */
	TOP_PLAIN,
	TOP_STRONG,
	TOP_HEAD, /* of a table, and the lines at top and bottom */
	TOP_CHOSEN,
	TOP_HELD,
	TOP_COMING,
	TOP_MEMORY, /* may be evicted; hits in memory */
	TOP_DISK,
	TOP_WRONG,
};

struct top_frame {
	unsigned rows, columns;
	char *text; /* rows of columns + 1, each ends with 0 */
	unsigned char *looks; /* rows of columns */
};

enum top_sort { TOP_BY_USE, TOP_BY_SIZE, TOP_BY_HELD, TOP_BY_NAME, TOP_SORTS };

/* What the person wants to see. */
struct top_wish {
	enum top_sort sort;
	bool clients; /* the choice moves in the clients' table, else in the namespaces' */
	bool curve, help, paused;
	unsigned chosen; /* row of that table */
	uint64_t inside; /* a session's or a namespace's id: only what belongs to it; 0: all */
};

struct top_data {
	bool found; /* pool and now are filled */
	bool has_before, has_middle;
	struct pool pool;
	struct snapshot now, before; /* rates are of what changed between them */
	struct snapshot middle; /* the next before */
	uint64_t now_ns, before_ns, middle_ns;
	double seconds; /* from before to now */
	char trouble[256]; /* why the last look failed; "": it did not */
};

/** top_frame_make() - Return: 0; -ENOMEM. @wish's choice is put inside what there is. */
int top_frame_make(
	struct top_frame *frame, unsigned rows, unsigned columns, const struct top_data *data, struct top_wish *wish);
void top_frame_free(struct top_frame *frame);
/** top_frame_chosen() - the id of the row that is chosen; 0: none */
uint64_t top_frame_chosen(const struct top_data *data, const struct top_wish *wish);

#endif
