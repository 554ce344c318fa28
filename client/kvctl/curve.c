/* curve.c - see curve.h */
#include "curve.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kvpool_shm.h"
#include "quantity.h"
#include "report.h"
#include "table.h"

#define PLOT_LEAST (1.0 / 16) /* of the pool, and as many times it */
#define SIZES 5u /* pool: half, as it is, twice ...; spill: none, as it is, twice ... */

/* Bytes a block takes in memory: on the whole, of those that lie in the stores, or of all. 0: there is none. */
static double block_memory(const struct snapshot *snapshot, bool stored)
{
	double n = 0, bytes = 0;

	for (unsigned i = 0; i < snapshot->n_ns; i++) {
		const struct kvp_ns_row *row = &snapshot->ns[i];
		double blocks = (double)C(row->counters.cold);

		blocks += (double)(stored ? C(row->counters.clean) : C(row->counters.published));
		n += blocks;
		bytes += blocks * (double)((row->block_bytes + KVP_PAGE - 1) / KVP_PAGE * KVP_PAGE);
	}
	return n > 0 ? bytes / n : 0;
}

/* In the stores a block has a header, its data is padded, and it may be compressed.  While none lies there: a page of
 * header, as in a directory, and the block as it is. */
static double store_part(const struct snapshot *snapshot)
{
	const struct kvp_stats *head = &snapshot->head;
	double live = (double)C(head->counters.spill_live_bytes), memory = block_memory(snapshot, true);
	uint64_t records = 0;

	for (uint32_t i = 0; i < head->n_stores && i < KVP_STATS_STORES_MAX; i++)
		records += head->stores[i].live_records;
	if (records && live > 0 && memory > 0)
		return memory / (live / (double)records);
	memory = block_memory(snapshot, false);
	return memory > 0 ? memory / (memory + KVP_PAGE) : 1;
}

struct curve_sizes curve_sizes(const struct snapshot *snapshot)
{
	const struct kvp_counters *c = &snapshot->head.counters;

	return (struct curve_sizes){.pool = C(c->pool_bytes),
		.spill = C(c->spill_state) ? C(c->spill_capacity_bytes) : 0,
		.part = store_part(snapshot)};
}

double curve_share(const struct kvp_curve *curve, const struct curve_sizes *sizes, uint64_t pool, uint64_t spill)
{
	uint64_t tokens = C(curve->tokens);

	/* each part is rounded to whole tokens: of few, their sum may be more */
	return tokens ? fmin(1, kvp_curve_hits(curve, (double)pool + (double)spill * sizes->part) / (double)tokens) : 0;
}

double curve_per_hour(const struct kvp_curve *curve, double share)
{
	uint64_t seconds = C(curve->seconds);

	return share * (double)C(curve->tokens) * 3600 / (double)(seconds ? seconds : 1);
}

static void plot_sizes(char *row, unsigned width, double pool)
{
	char text[QUANTITY_ROOM];
	size_t at = 0;

	memset(row, ' ', CURVE_PLOT_WIDE + 7);
	for (unsigned i = 0; i <= 8; i += 2) {
		double size = pool * PLOT_LEAST * pow(1 / (PLOT_LEAST * PLOT_LEAST), i / 8.0);
		size_t n = strlen(quantity_bytes(text, (uint64_t)size)), to = 7 + (size_t)(i * (width - 1) / 8);

		to = to >= n / 2 ? to - n / 2 : 0;
		if (to + n > width + 7)
			to = width + 7 - n;
		if (to < at)
			continue;
		memcpy(row + to, text, n);
		at = to + n + 1;
	}
	row[at ? at - 1 : 0] = 0;
}

void curve_plot(struct curve_plot *plot, const struct snapshot *snapshot, unsigned width)
{
	struct curve_sizes sizes = curve_sizes(snapshot);
	const struct kvp_curve *curve = &snapshot->curve;
	double most = curve_share(curve, &sizes, (uint64_t)((double)sizes.pool / PLOT_LEAST), sizes.spill);
	double top = most > .5 ? 1 : most > .2 ? .5 : .2;

	width = width > CURVE_PLOT_WIDE ? CURVE_PLOT_WIDE : width;
	plot->width = width;
	for (unsigned row = 0; row < CURVE_PLOT_HIGH; row++) {
		/* a mark means: at least the middle of the row */
		double level = top * (CURVE_PLOT_HIGH - row - .5) / CURVE_PLOT_HIGH;
		char *at = plot->rows[row];

		if (row % 4 == 0)
			at += sprintf(at, "%4.0f %%|", 100 * top * (CURVE_PLOT_HIGH - row) / CURVE_PLOT_HIGH);
		else
			at += sprintf(at, "      |");
		for (unsigned i = 0; i < width; i++) {
			double more = pow(1 / (PLOT_LEAST * PLOT_LEAST), i / (double)(width - 1)) * PLOT_LEAST;
			uint64_t pool = (uint64_t)((double)sizes.pool * more);

			*at++ = curve_share(curve, &sizes, pool, 0) >= level		 ? '#'
				: curve_share(curve, &sizes, pool, sizes.spill) >= level ? '='
											 : ' ';
		}
		while (at[-1] == ' ') /* no blanks at the end of a line */
			at--;
		*at = 0;
	}
	sprintf(plot->rows[CURVE_PLOT_HIGH], "      +");
	memset(plot->rows[CURVE_PLOT_HIGH] + 7, '-', width);
	plot->rows[CURVE_PLOT_HIGH][7 + (width - 1) / 2] = '^';
	plot->rows[CURVE_PLOT_HIGH][7 + width] = 0;
	plot_sizes(plot->rows[CURVE_PLOT_HIGH + 1], width, (double)sizes.pool);
}

/* "half", "now", "x 2" ... of the sizes in the table. */
static uint64_t size_pool(const struct curve_sizes *sizes, unsigned i)
{
	return i ? sizes->pool << (i - 1) : sizes->pool / 2;
}

static uint64_t size_spill(const struct curve_sizes *sizes, unsigned i)
{
	return i ? (sizes->spill ? sizes->spill : sizes->pool) << (i - 1) : 0;
}

static void print_table(const struct kvp_curve *curve, const struct curve_sizes *sizes)
{
	char texts[SIZES + 1][QUANTITY_ROOM + 16], text[QUANTITY_ROOM];
	const char *heads[SIZES + 1] = {">DRAM \\ SPILL"};
	struct table table;

	for (unsigned i = 0; i < SIZES; i++) {
		uint64_t spill = size_spill(sizes, i);

		snprintf(texts[i], sizeof(texts[i]), ">%s%s", spill ? quantity_bytes(text, spill) : "none",
			spill == sizes->spill ? ", now" : "");
		heads[i + 1] = texts[i];
	}
	table_init(&table, heads, SIZES + 1);
	for (unsigned i = 0; i < SIZES; i++) {
		uint64_t pool = size_pool(sizes, i);

		table_cell(&table, "%s%s", i == 1 ? "now, " : "", quantity_bytes(text, pool));
		for (unsigned j = 0; j < SIZES; j++)
			table_cell(&table, "%.1f %%", 100 * curve_share(curve, sizes, pool, size_spill(sizes, j)));
	}
	table_print(&table, 7);
}

static void print_more(const struct kvp_curve *curve, const char *what, double now, double then, uint64_t more)
{
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM];

	printf("       %s more of %s: %.1f %%, now %.1f %%: %s tokens/h saved\n", quantity_bytes(a, more), what,
		100 * then, 100 * now, quantity_count(b, (uint64_t)(curve_per_hour(curve, then - now) + .5)));
}

void curve_print(const struct snapshot *snapshot, uint64_t more)
{
	const struct kvp_curve *curve = &snapshot->curve;
	struct curve_sizes sizes = curve_sizes(snapshot);
	double now = curve_share(curve, &sizes, sizes.pool, sizes.spill);
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], age[QUANTITY_ROOM];
	struct curve_plot plot;

	if (!snapshot->has_curve)
		return;
	if (!C(curve->tokens)) {
		printf("CURVE  what other sizes would give is not known yet: no use was counted\n");
		return;
	}
	more = more ? more : sizes.pool;
	printf("CURVE  %s tokens in %s, found again with (%s keys, each for %.1f)\n",
		quantity_short(a, C(curve->tokens)), quantity_age(age, (double)C(curve->seconds)),
		quantity_count(b, C(curve->watched)), (double)C(curve->one_in) / 1000);
	curve_plot(&plot, snapshot, 66);
	for (unsigned i = 0; i < CURVE_PLOT_HIGH + 2; i++)
		printf(" %s\n", plot.rows[i]);
	printf("       # so much DRAM%s\n", sizes.spill ? "  = and the spill store as it is" : "");
	print_table(curve, &sizes);
	print_more(curve, "DRAM", now, curve_share(curve, &sizes, sizes.pool + more, sizes.spill), more);
	print_more(curve, "spill", now, curve_share(curve, &sizes, sizes.pool, sizes.spill + more), more);
}

json_t *curve_json(const struct snapshot *snapshot, uint64_t more)
{
	const struct kvp_curve *curve = &snapshot->curve;
	struct curve_sizes sizes = curve_sizes(snapshot);
	json_t *json, *list;

	if (!snapshot->has_curve)
		return json_null();
	json = json_object();
	list = json_array();
	more = more ? more : sizes.pool;
	json_object_set_new(json, "tokens", json_u64(C(curve->tokens)));
	json_object_set_new(json, "seconds", json_u64(C(curve->seconds)));
	json_object_set_new(json, "watched_keys", json_u64(C(curve->watched)));
	json_object_set_new(json, "keys_each", json_real((double)C(curve->one_in) / 1000));
	json_object_set_new(json, "share", json_real(curve_share(curve, &sizes, sizes.pool, sizes.spill)));
	json_object_set_new(json, "more_bytes", json_u64(more));
	json_object_set_new(
		json, "share_more_dram", json_real(curve_share(curve, &sizes, sizes.pool + more, sizes.spill)));
	json_object_set_new(
		json, "share_more_spill", json_real(curve_share(curve, &sizes, sizes.pool, sizes.spill + more)));
	for (unsigned i = 0; i < SIZES; i++)
		for (unsigned j = 0; j < SIZES; j++) {
			json_t *cell = json_object();

			json_object_set_new(cell, "pool_bytes", json_u64(size_pool(&sizes, i)));
			json_object_set_new(cell, "spill_bytes", json_u64(size_spill(&sizes, j)));
			json_object_set_new(
				cell, "share_dram", json_real(curve_share(curve, &sizes, size_pool(&sizes, i), 0)));
			json_object_set_new(cell, "share",
				json_real(curve_share(curve, &sizes, size_pool(&sizes, i), size_spill(&sizes, j))));
			json_array_append_new(list, cell);
		}
	json_object_set_new(json, "sizes", list);
	return json;
}
