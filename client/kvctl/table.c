/* table.c - see table.h */
#define _GNU_SOURCE 1
#include "table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void table_init(struct table *table, const char *const *heads, unsigned n)
{
	memset(table, 0, sizeof(*table));
	table->n_columns = n;
	for (unsigned i = 0; i < n; i++)
		table->heads[i] = heads[i];
}

void table_cell(struct table *table, const char *format, ...)
{
	va_list args;
	char *cell;
	int r;

	if (table->n_cells == table->room) {
		size_t room = table->room ? 2 * table->room : 64;
		char **cells = realloc(table->cells, room * sizeof(*cells));

		if (!cells)
			return;
		table->cells = cells;
		table->room = room;
	}
	va_start(args, format);
	r = vasprintf(&cell, format, args);
	va_end(args);
	if (r >= 0)
		table->cells[table->n_cells++] = cell;
}

static void table_print_cell(const struct table *table, unsigned column, const char *text, int width)
{
	if (table->heads[column][0] == '>')
		printf("%*s", width, text);
	else if (column + 1 == table->n_columns)
		printf("%s", text); /* no blanks at the end of a line */
	else
		printf("%-*s", width, text);
	printf("%s", column + 1 < table->n_columns ? "  " : "\n");
}

void table_print(struct table *table, unsigned indent)
{
	int widths[TABLE_COLUMNS_MAX];

	for (unsigned c = 0; c < table->n_columns; c++)
		widths[c] = (int)strlen(table->heads[c] + 1);
	for (size_t i = 0; i < table->n_cells; i++) {
		int length = (int)strlen(table->cells[i]);
		unsigned c = (unsigned)(i % table->n_columns);

		widths[c] = length > widths[c] ? length : widths[c];
	}
	for (unsigned c = 0; c < table->n_columns; c++) {
		if (c == 0)
			printf("%*s", (int)indent, "");
		table_print_cell(table, c, table->heads[c] + 1, widths[c]);
	}
	for (size_t i = 0; i < table->n_cells; i++) {
		unsigned c = (unsigned)(i % table->n_columns);

		if (c == 0)
			printf("%*s", (int)indent, "");
		table_print_cell(table, c, table->cells[i], widths[c]);
		free(table->cells[i]);
	}
	free(table->cells);
	table->cells = NULL;
	table->n_cells = table->room = 0;
}

void bar_print(unsigned width, const struct bar_part *parts, unsigned n)
{
	unsigned done = 0;

	putchar('[');
	for (unsigned i = 0; i < n; i++) {
		double share = parts[i].share < 0 ? 0 : parts[i].share > 1 ? 1 : parts[i].share;
		unsigned marks = (unsigned)(share * width + 0.5);

		if (!marks && share > 0)
			marks = 1;
		for (; marks && done < width; marks--, done++)
			putchar(parts[i].mark);
	}
	for (; done < width; done++)
		putchar('.');
	putchar(']');
}
