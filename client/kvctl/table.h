/*
 * table.h - columns and bars for a terminal of 80 columns
 */
#ifndef KVCTL_TABLE_H
#define KVCTL_TABLE_H

#include <stddef.h>

#define TABLE_COLUMNS_MAX 16

/* Cells are copied; columns are as wide as their widest cell.  Out of memory ends the row early: a table is for
   people. */
struct table {
	unsigned n_columns;
	const char *heads[TABLE_COLUMNS_MAX]; /* "<left" or ">right" */
	char **cells;
	size_t n_cells;
	size_t room;
};

/** table_init() - @heads: n of them, '<' or '>' before the text tells the side; must outlive the table */
void table_init(struct table *table, const char *const *heads, unsigned n);
/** table_cell() - the next cell, left to right, row after row */
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** table_print() - to stdout, each line after @indent spaces; then the table is empty */
void table_print(struct table *table, unsigned indent);

struct bar_part {
	char mark;
	double share; /* of the bar */
};
/** bar_print() - "[####==....]" of @width marks within, to stdout; a share that is not 0 shows at least one mark */
void bar_print(unsigned width, const struct bar_part *parts, unsigned n);

#endif
