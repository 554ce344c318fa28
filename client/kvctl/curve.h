/*
 * curve.h - what other sizes of pool and spill store would give, by the curve in the stats object
 */
#ifndef KVCTL_CURVE_H
#define KVCTL_CURVE_H

#include <jansson.h>
#include <stdint.h>

#include "snapshot.h"

#define CURVE_PLOT_HIGH 8u
#define CURVE_PLOT_WIDE 128u

/* The sizes as they are. */
struct curve_sizes {
	uint64_t pool, spill; /* bytes; spill 0: none */
	double part; /* of memory, in which the curve is told, that a byte of the store stands for */
};
struct curve_sizes curve_sizes(const struct snapshot *snapshot);

/** curve_share() - the part of all tokens that @pool bytes of memory, and @spill of disk behind it, would have had; the
 *  blocks being what they are, as @sizes has them */
double curve_share(const struct kvp_curve *curve, const struct curve_sizes *sizes, uint64_t pool, uint64_t spill);
/** curve_per_hour() - tokens an hour that are @share of the traffic */
double curve_per_hour(const struct kvp_curve *curve, double share);

/*
 * The plot: columns of pool sizes, '#' what memory has, '=' what the spill store, as large as it is, has beside; each
 * column is wider than the one before by the same factor, from a sixteenth of the pool to sixteen times, '^' the pool now.
 */
struct curve_plot {
	unsigned width;
	char rows[CURVE_PLOT_HIGH + 2][CURVE_PLOT_WIDE + 8]; /* with scale; the last two are axis and sizes */
};
void curve_plot(struct curve_plot *plot, const struct snapshot *snapshot, unsigned width);

/** curve_print() - part of the page of kvctl stats: plot, table and what @more bytes would buy (0: as much again as there is) */
void curve_print(const struct snapshot *snapshot, uint64_t more);
json_t *curve_json(const struct snapshot *snapshot, uint64_t more);

#endif
