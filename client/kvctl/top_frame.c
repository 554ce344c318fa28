/* top_frame.c - see top_frame.h */
#include "top_frame.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "curve.h"
#include "ns.h"
#include "quantity.h"
#include "report.h"

#define ROWS_LEAST 5u
#define COLUMNS_LEAST 20u

/* ---- the rectangle ---- */

struct pen {
	struct top_frame *frame;
	unsigned row, column, last; /* rows from last on are not written */
};

static char *frame_row(const struct top_frame *frame, unsigned row)
{
	return frame->text + (size_t)row * (frame->columns + 1);
}

static void pen_look(const struct pen *pen, unsigned from, unsigned to, enum top_look look)
{
	for (unsigned i = from; i < to && i < pen->frame->columns; i++)
		pen->frame->looks[(size_t)pen->row * pen->frame->columns + i] = (unsigned char)look;
}

__attribute__((format(printf, 3, 4))) static void pen_write(
	struct pen *pen, enum top_look look, const char *format, ...)
{
	unsigned left = pen->frame->columns - pen->column;
	char text[512];
	va_list args;
	size_t n;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (pen->row >= pen->last)
		return;
	n = strnlen(text, left);
	memcpy(frame_row(pen->frame, pen->row) + pen->column, text, n);
	pen_look(pen, pen->column, pen->column + (unsigned)n, look);
	pen->column += (unsigned)n;
}

static void pen_down(struct pen *pen)
{
	pen->row++;
	pen->column = 0;
}

/* A line over all its width. */
static void pen_line(struct pen *pen, enum top_look look)
{
	if (pen->row < pen->last)
		pen_look(pen, 0, pen->frame->columns, look);
	pen_down(pen);
}

struct part {
	char mark;
	enum top_look look;
	uint64_t n;
};

static void pen_bar(struct pen *pen, unsigned width, uint64_t whole, const struct part *parts, unsigned n)
{
	unsigned done = 0;

	pen_write(pen, TOP_PLAIN, "[");
	for (unsigned i = 0; i < n && whole; i++) {
		unsigned marks = (unsigned)((double)parts[i].n / (double)whole * width + .5);

		if (!marks && parts[i].n)
			marks = 1;
		for (; marks && done < width; marks--, done++)
			pen_write(pen, parts[i].look, "%c", parts[i].mark);
	}
	for (; done < width; done++)
		pen_write(pen, TOP_PLAIN, ".");
	pen_write(pen, TOP_PLAIN, "]");
}

/* ---- numbers ---- */

static double rate(const struct top_data *data, uint64_t now, uint64_t before)
{
	if (!data->has_before)
		return (double)now;
	return now > before ? (double)(now - before) / data->seconds : 0;
}
#define RATE(data, counter) rate(data, C((data)->now.head.counters.counter), C((data)->before.head.counters.counter))

static const char *per(const struct top_data *data)
{
	return data->has_before ? "/s" : " in all";
}

static uint64_t ns_count(const struct kvp_ns_row *row, size_t counter)
{
	return row ? C(*(const _Atomic uint64_t *)(const void *)((const char *)&row->counters + counter)) : 0;
}

/* Of all namespaces there are: one that has gone takes its counts with it, and no rate of the others. */
static double rate_ns(const struct top_data *data, size_t counter)
{
	double sum = 0;

	for (unsigned i = 0; i < data->now.n_ns; i++) {
		const struct kvp_ns_row *row = &data->now.ns[i];
		const struct kvp_ns_row *before = data->has_before ? snapshot_ns(&data->before, C(row->ns_id)) : NULL;

		sum += rate(data, ns_count(row, counter), ns_count(before, counter));
	}
	return sum;
}
#define RATE_NS(data, counter) rate_ns(data, offsetof(struct kvp_ns_counters, counter))

static double ns_use(const struct top_data *data, const struct kvp_ns_row *row)
{
	const struct kvp_ns_row *before = data->has_before ? snapshot_ns(&data->before, C(row->ns_id)) : NULL;

	return rate(data, C(row->counters.lookups) + C(row->counters.stored),
		before ? C(before->counters.lookups) + C(before->counters.stored) : 0);
}

static const struct kvp_session_row *session_of(const struct snapshot *snapshot, uint64_t id)
{
	for (unsigned i = 0; i < snapshot->n_sessions; i++)
		if (C(snapshot->sessions[i].session_id) == id)
			return &snapshot->sessions[i];
	return NULL;
}

struct use {
	double asked, ram, disk;
};

static struct use session_use(const struct top_data *data, const struct kvp_session_row *row)
{
	const struct kvp_session_row *before = data->has_before ? session_of(&data->before, C(row->session_id)) : NULL;

	return (struct use){.asked = rate(data, C(row->lookups), before ? C(before->lookups) : 0),
		.ram = rate(data, C(row->hits_ram), before ? C(before->hits_ram) : 0),
		.disk = rate(data, C(row->hits_spill), before ? C(before->hits_spill) : 0)};
}

/* ---- the upper part ---- */

static unsigned bar_width(const struct pen *pen)
{
	unsigned columns = pen->frame->columns;

	return columns >= 120 ? 60 : columns >= 70 ? 26 : columns >= 50 ? 16 : 8;
}

static void draw_title(struct pen *pen, const struct top_data *data, const struct top_wish *wish)
{
	char life[160];

	if (!data->found) {
		pen_write(pen, TOP_WRONG, "no pool");
		pen_down(pen);
		return;
	}
	pen_write(pen, TOP_STRONG, "kvpool %s: ", data->pool.name);
	pen_write(pen, pool_up(&data->pool) ? TOP_MEMORY : TOP_WRONG, "%s",
		pool_life_text(&data->pool, life, sizeof(life)));
	pen_write(pen, TOP_PLAIN, "  pid %d", (int)data->pool.header.daemon_pid);
	if (wish->paused)
		pen_write(pen, TOP_WRONG, "  PAUSED");
	pen_down(pen);
}

static void draw_memory(struct pen *pen, const struct top_data *data)
{
	uint64_t held = 0, evictable = 0, transit = 0, pool = C(data->now.head.counters.pool_bytes);
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], c[QUANTITY_ROOM];

	for (unsigned i = 0; i < data->now.n_ns; i++) {
		const struct kvp_ns_row *row = &data->now.ns[i];
		struct ns_balance balance = report_balance(&row->counters);

		held += C(row->counters.held) * report_slot_bytes(row);
		evictable += balance.evictable * report_slot_bytes(row);
		transit += balance.in_transit * report_slot_bytes(row);
	}
	pen_write(pen, TOP_STRONG, "DRAM   ");
	pen_bar(pen, bar_width(pen), pool,
		(const struct part[]){{'#', TOP_HELD, held}, {'+', TOP_COMING, transit}, {'=', TOP_MEMORY, evictable}},
		3);
	pen_write(pen, TOP_PLAIN, " %4s %s of %s", quantity_share_short(a, held + transit + evictable, pool),
		quantity_bytes(b, held + transit + evictable), quantity_bytes(c, pool));
	if (pen->frame->columns >= 120)
		pen_write(pen, TOP_PLAIN, "   # held %s  + in transit %s  = evictable %s", quantity_bytes(a, held),
			quantity_bytes(b, transit), quantity_bytes(c, evictable));
	pen_down(pen);
}

static void draw_nodes(struct pen *pen, const struct top_data *data)
{
	const struct kvp_stats *head = &data->now.head;
	unsigned n = head->n_nodes < KVP_STATS_NODES_MAX ? head->n_nodes : KVP_STATS_NODES_MAX;
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], c[QUANTITY_ROOM];

	for (unsigned i = 0; n >= 2 && i < n && pen->row + 12 < pen->last; i++) {
		const struct kvp_node_row *node = &head->nodes[i];

		pen_write(pen, TOP_PLAIN, "node%-3u", node->id);
		pen_bar(pen, bar_width(pen), node->got, (const struct part[]){{'=', TOP_MEMORY, node->used}}, 1);
		pen_write(pen, TOP_PLAIN, " %4s %s of %s%s", quantity_share_short(a, node->used, node->got),
			quantity_bytes(b, node->used), quantity_bytes(c, node->got), node->has_cpus ? "" : ", no CPUs");
		pen_down(pen);
	}
}

static void draw_spill(struct pen *pen, const struct top_data *data)
{
	static const char *const states[] = {"off", "up", "DOWN", "FULL, not reclaiming"};
	const struct kvp_counters *c = &data->now.head.counters;
	uint64_t capacity = C(c->spill_capacity_bytes), live = C(c->spill_live_bytes), used = C(c->spill_used_bytes);
	uint64_t state = C(c->spill_state);
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], d[QUANTITY_ROOM];

	pen_write(pen, TOP_STRONG, "SPILL  ");
	if (state != 0) {
		pen_bar(pen, bar_width(pen), capacity,
			(const struct part[]){{'=', TOP_DISK, live}, {'-', TOP_PLAIN, used > live ? used - live : 0}},
			2);
		pen_write(pen, TOP_PLAIN, " %4s %s of %s ", quantity_share_short(a, live, capacity),
			quantity_bytes(b, live), quantity_bytes(d, capacity));
	}
	pen_write(pen, state <= 1 ? TOP_PLAIN : TOP_WRONG, "%s", state < 4 ? states[state] : "?");
	pen_down(pen);
	if (!state)
		return;
	pen_write(pen, TOP_PLAIN, "       read %s%s  written %s%s  %" PRIu64 " in flight, %s queued",
		quantity_bytes(a, (uint64_t)RATE(data, spill_read_bytes)), data->has_before ? per(data) : "",
		quantity_bytes(b, (uint64_t)RATE(data, spill_write_bytes)), per(data), (uint64_t)C(c->spill_in_flight),
		quantity_bytes(d, C(c->spill_read_queue)));
	pen_down(pen);
}

static void draw_hits(struct pen *pen, const struct top_data *data)
{
	double asked = RATE_NS(data, lookups), ram = RATE_NS(data, hits_ram), disk = RATE_NS(data, hits_spill);
	char a[QUANTITY_ROOM], b[QUANTITY_ROOM], c[QUANTITY_ROOM];

	pen_write(pen, TOP_STRONG, "HITS   ");
	pen_bar(pen, bar_width(pen), (uint64_t)(asked * 1000),
		(const struct part[]){
			{'#', TOP_MEMORY, (uint64_t)(ram * 1000)}, {'=', TOP_DISK, (uint64_t)(disk * 1000)}},
		2);
	pen_write(pen, TOP_PLAIN, " %4s of %s blocks%s, %s tokens%s",
		quantity_share_short(a, (uint64_t)((ram + disk) * 1000), (uint64_t)(asked * 1000)),
		quantity_short(b, (uint64_t)asked), data->has_before ? per(data) : "",
		quantity_short(c, (uint64_t)(RATE_NS(data, tokens_ram) + RATE_NS(data, tokens_spill))), per(data));
	pen_down(pen);
}

static void draw_misses(struct pen *pen, const struct top_data *data)
{
	const struct {
		const char *why;
		double n;
	} reasons[] = {{"not remembered", RATE_NS(data, miss_never)}, {"evicted", RATE_NS(data, miss_evicted)},
		{"slower than computing", RATE_NS(data, miss_cost)}, {"there but unused", RATE_NS(data, miss_unasked)},
		{"tier down", RATE_NS(data, miss_tier)}, {"sibling", RATE_NS(data, miss_sibling)},
		{"damaged", RATE_NS(data, miss_damaged)}};
	char a[QUANTITY_ROOM];
	bool any = false;

	pen_write(pen, TOP_STRONG, "MISSES ");
	for (unsigned i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
		if (reasons[i].n <= 0)
			continue;
		pen_write(pen, i < 4 ? TOP_PLAIN : TOP_WRONG, "%s%s %s", any ? ", " : "", reasons[i].why,
			quantity_short(a, (uint64_t)(reasons[i].n + .5)));
		any = true;
	}
	pen_write(pen, TOP_PLAIN, "%s%s", any ? per(data) : "", any ? "" : "none");
	pen_down(pen);
}

static void draw_oldest(struct pen *pen, const struct top_data *data)
{
	const struct kvp_session_row *oldest = NULL;
	char age[QUANTITY_ROOM], comm[sizeof(oldest->comm)];

	for (unsigned i = 0; i < data->now.n_sessions; i++)
		if (C(data->now.sessions[i].oldest_pin_ms) > (oldest ? C(oldest->oldest_pin_ms) : 0))
			oldest = &data->now.sessions[i];
	pen_write(pen, TOP_STRONG, "OLDEST ");
	if (oldest)
		pen_write(pen, TOP_PLAIN, "hold %s, by %s, pid %d",
			quantity_age(age, (double)C(oldest->oldest_pin_ms) / 1000),
			text_clean(comm, sizeof(comm), oldest->comm, sizeof(oldest->comm)), oldest->pid);
	else
		pen_write(pen, TOP_PLAIN, "nobody holds a block");
	pen_down(pen);
}

/* What the daemon says is wrong, or the look itself. */
static void draw_trouble(struct pen *pen, const struct top_data *data)
{
	const struct kvp_stats *head = &data->now.head;
	const char *const messages[] = {
		head->spill_message, head->pressure_message, head->numa_message, head->pages_message};
	char text[256];

	if (data->trouble[0]) {
		pen_write(pen, TOP_WRONG, "%s", data->trouble);
		pen_down(pen);
	}
	for (unsigned i = 0; data->found && i < 4; i++) {
		text_clean(text, sizeof(text), messages[i], sizeof(head->spill_message));
		if (!text[0] || (i == 0 && !C(head->counters.spill_state)))
			continue;
		pen_write(pen, TOP_WRONG, "%s", text);
		pen_down(pen);
	}
	if (data->found && data->now.inconsistent) {
		pen_write(
			pen, TOP_WRONG, "the daemon stands, or works, in the middle of a change: sums may not add up");
		pen_down(pen);
	}
}

/* ---- tables ---- */

struct line {
	uint64_t id;
	double key;
	const char *name;
	unsigned i;
};

static int line_compare(const void *a_, const void *b_)
{
	const struct line *a = a_, *b = b_;

	if (a->key != b->key)
		return a->key < b->key ? 1 : -1;
	return strncmp(a->name, b->name, 32);
}

static bool session_joined(const struct kvp_session_row *row, uint64_t ns_id)
{
	for (unsigned i = 0; i < KVP_STATS_SESSION_NS; i++)
		if (C(row->ns_ids[i]) == ns_id)
			return true;
	return false;
}

static struct line session_line(
	const struct top_data *data, const struct top_wish *wish, const struct kvp_session_row *row)
{
	return (struct line){.id = C(row->session_id),
		.name = row->comm,
		.key = wish->sort == TOP_BY_USE	   ? session_use(data, row).asked
		       : wish->sort == TOP_BY_SIZE ? (double)C(row->pins)
		       : wish->sort == TOP_BY_HELD ? (double)C(row->oldest_pin_ms)
						   : 0};
}

static struct line ns_line(const struct top_data *data, const struct top_wish *wish, const struct kvp_ns_row *row)
{
	return (struct line){.id = C(row->ns_id),
		.name = row->name,
		.key = wish->sort == TOP_BY_USE	   ? ns_use(data, row)
		       : wish->sort == TOP_BY_SIZE ? (double)(C(row->counters.published) * row->block_bytes)
		       : wish->sort == TOP_BY_HELD ? (double)(C(row->counters.held) * row->block_bytes)
						   : 0};
}

/* The rows of one table, in order. Return: how many; 0 too when there is no memory. */
static unsigned lines_of(const struct top_data *data, const struct top_wish *wish, bool clients, struct line **lines)
{
	const struct kvp_session_row *inside = wish->inside ? session_of(&data->now, wish->inside) : NULL;
	unsigned n = clients ? data->now.n_sessions : data->now.n_ns, taken = 0;

	*lines = calloc(n + 1, sizeof(**lines));
	for (unsigned i = 0; *lines && i < n; i++) {
		const struct kvp_session_row *session = clients ? &data->now.sessions[i] : NULL;
		struct line *line = &(*lines)[taken];

		*line = session ? session_line(data, wish, session) : ns_line(data, wish, &data->now.ns[i]);
		if (wish->inside && line->id != wish->inside &&
			!(session ? session_joined(session, wish->inside) : inside && session_joined(inside, line->id)))
			continue;
		line->i = i;
		taken++;
	}
	if (*lines)
		qsort(*lines, taken, sizeof(**lines), line_compare);
	return *lines ? taken : 0;
}

/* A row of either table, or its head; on a narrow terminal only the first, and what matters most. */
static void draw_cells(struct pen *pen, enum top_look look, const char *const *cells)
{
	static const int widths[] = {-15, -8, 9, 8, 7, 7, 8, 5, 5};
	static const bool narrow[] = {true, false, false, true, true, false, false, true, false};
	bool all = pen->frame->columns >= 80;

	for (unsigned i = 0; i < 9; i++)
		if (all || narrow[i])
			pen_write(pen, look, "%s%*.*s", i ? " " : "", widths[i], abs(widths[i]), cells[i]);
}

static void draw_ns(struct pen *pen, const struct top_data *data, const struct kvp_ns_row *row)
{
	const struct kvp_ns_row *before = data->has_before ? snapshot_ns(&data->before, C(row->ns_id)) : NULL;
	double asked = rate(data, C(row->counters.lookups), before ? C(before->counters.lookups) : 0);
	double ram = rate(data, C(row->counters.hits_ram), before ? C(before->counters.hits_ram) : 0);
	double disk = rate(data, C(row->counters.hits_spill), before ? C(before->counters.hits_spill) : 0);
	char name[KVP_NAME_MAX], user[32], t[7][QUANTITY_ROOM];

	draw_cells(pen, TOP_PLAIN,
		(const char *const[]){ns_name(row, name), report_user(row->owner_uid, user),
			quantity_bytes(t[0], row->block_bytes), quantity_short(t[1], C(row->counters.published)),
			quantity_short(t[2], C(row->counters.held)), quantity_short(t[3], C(row->counters.cold)),
			quantity_short(t[4], (uint64_t)(asked + .5)),
			quantity_share_short(t[5], (uint64_t)(ram * 1000), (uint64_t)(asked * 1000)),
			quantity_share_short(t[6], (uint64_t)(disk * 1000), (uint64_t)(asked * 1000))});
}

static void draw_session(struct pen *pen, const struct top_data *data, const struct kvp_session_row *row)
{
	char comm[sizeof(row->comm)], user[32], t[7][QUANTITY_ROOM];
	struct use use = session_use(data, row);

	snprintf(t[0], sizeof(t[0]), "%d", row->pid);
	draw_cells(pen, TOP_PLAIN,
		(const char *const[]){text_clean(comm, sizeof(comm), row->comm, sizeof(row->comm)),
			report_user(row->uid, user), t[0], quantity_short(t[1], C(row->pins)),
			quantity_age(t[2], (double)C(row->oldest_pin_ms) / 1000),
			quantity_short(t[3], C(row->grants) + C(row->staged)),
			quantity_short(t[4], (uint64_t)(use.asked + .5)),
			quantity_share_short(t[5], (uint64_t)(use.ram * 1000), (uint64_t)(use.asked * 1000)),
			quantity_share_short(t[6], (uint64_t)(use.disk * 1000), (uint64_t)(use.asked * 1000))});
}

/* @room: rows it may take, its head included. */
static void draw_table(struct pen *pen, const struct top_data *data, struct top_wish *wish, bool clients, unsigned room)
{
	bool chosen_here = clients == wish->clients;
	const char *asked = data->has_before ? "ASKED/s" : "ASKED";
	unsigned n, from = 0, left;
	struct line *lines;

	n = lines_of(data, wish, clients, &lines);
	if (chosen_here && wish->chosen >= n)
		wish->chosen = n ? n - 1 : 0;
	draw_cells(pen, TOP_HEAD,
		clients ? (const char *const[]){"CLIENT", "USER", "PID", "HOLDS", "OLDEST", "GRANTS", asked, "DRAM",
				  "SPILL"}
			: (const char *const[]){
				  "NAMESPACE", "OWNER", "BLOCK", "HOT", "HELD", "COLD", asked, "DRAM", "SPILL"});
	pen_line(pen, TOP_HEAD);
	left = room > 1 ? room - 1 : 0;
	if (chosen_here && left && wish->chosen >= left)
		from = wish->chosen - left + 1;
	for (unsigned i = from; i < n && i < from + left; i++) {
		if (clients)
			draw_session(pen, data, &data->now.sessions[lines[i].i]);
		else
			draw_ns(pen, data, &data->now.ns[lines[i].i]);
		if (chosen_here && i == wish->chosen)
			pen_line(pen, TOP_CHOSEN);
		else
			pen_down(pen);
	}
	free(lines);
	if (!n && left) {
		pen_write(pen, TOP_PLAIN, clients ? "no clients" : "no namespaces");
		pen_down(pen);
	}
}

uint64_t top_frame_chosen(const struct top_data *data, const struct top_wish *wish)
{
	struct line *lines;
	unsigned n = lines_of(data, wish, wish->clients, &lines);
	uint64_t id = wish->chosen < n ? lines[wish->chosen].id : 0;

	free(lines);
	return id;
}

/* ---- the lower part ---- */

static enum top_look curve_look(char mark)
{
	return mark == '#' ? TOP_MEMORY : mark == '=' ? TOP_DISK : mark == '^' ? TOP_STRONG : TOP_PLAIN;
}

static void draw_curve(struct pen *pen, const struct top_data *data)
{
	struct curve_sizes sizes = curve_sizes(&data->now);
	struct curve_plot plot;
	char a[QUANTITY_ROOM];

	if (!data->now.has_curve || !C(data->now.curve.tokens)) {
		pen_write(pen, TOP_PLAIN, "the curve of other sizes is not known yet: no use was counted");
		pen_down(pen);
		return;
	}
	pen_write(pen, TOP_STRONG, "CURVE  ");
	pen_write(pen, TOP_PLAIN, "%.1f %% of tokens found; with %s of DRAM more %.1f %%, of spill %.1f %%",
		100 * curve_share(&data->now.curve, &sizes, sizes.pool, sizes.spill), quantity_bytes(a, sizes.pool),
		100 * curve_share(&data->now.curve, &sizes, 2 * sizes.pool, sizes.spill),
		100 * curve_share(&data->now.curve, &sizes, sizes.pool, sizes.spill + sizes.pool));
	pen_down(pen);
	curve_plot(&plot, &data->now, pen->frame->columns > 20 ? pen->frame->columns - 8 : 12);
	for (unsigned i = 0; i < CURVE_PLOT_HIGH + 2; i++) {
		for (const char *at = plot.rows[i]; *at; at++)
			pen_write(pen, curve_look(*at), "%c", *at);
		pen_down(pen);
	}
}

static void draw_help(struct pen *pen)
{
	static const char *const lines[] = {
		"q         quit                 space, p  stop, go on",
		"s         sort: use, size, holds, name",
		"Tab       choose among namespaces, or clients",
		"up down   choose; Enter: what belongs to it; Esc: all again",
		"c         the curve: what other sizes of the pool would have found",
		"?         this list",
		"",
		"DRAM  # held  + in transit  = may be evicted     HITS  # DRAM  = spill",
		"SPILL = can be found  - the rest of the segments in use",
		"HOLDS: blocks it holds; OLDEST: for so long; ASKED: blocks looked for",
	};

	for (unsigned i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		pen_write(pen, TOP_PLAIN, "%s", lines[i]);
		pen_down(pen);
	}
}

static void draw_foot(struct pen *pen, const struct top_wish *wish)
{
	static const char *const sorts[TOP_SORTS] = {"use", "size", "holds", "name"};

	pen->row = pen->frame->rows - 1;
	pen->column = 0;
	pen->last = pen->frame->rows;
	pen_write(pen, TOP_HEAD, "q quit  ? help  p %s  s sort: %s  Tab %s  %s  c curve",
		wish->paused ? "go on" : "pause", sorts[wish->sort], wish->clients ? "namespaces" : "clients",
		wish->inside ? "Esc all" : "Enter inside");
	pen_line(pen, TOP_HEAD);
}

static void draw_pool(struct pen *pen, const struct top_data *data, struct top_wish *wish)
{
	unsigned room, half;

	draw_memory(pen, data);
	draw_nodes(pen, data);
	draw_spill(pen, data);
	draw_hits(pen, data);
	draw_misses(pen, data);
	draw_oldest(pen, data);
	if (wish->help) {
		draw_help(pen);
		return;
	}
	if (wish->curve || pen->frame->rows >= 40)
		draw_curve(pen, data);
	room = pen->row + 1 < pen->last ? pen->last - pen->row : 0;
	if (room < 8) { /* one of both */
		draw_table(pen, data, wish, wish->clients, room);
		return;
	}
	half = room / 2 > data->now.n_ns + 1 ? (data->now.n_ns ? data->now.n_ns : 1) + 1 : room / 2;
	draw_table(pen, data, wish, false, half);
	draw_table(pen, data, wish, true, pen->last > pen->row ? pen->last - pen->row : 0);
}

int top_frame_make(
	struct top_frame *frame, unsigned rows, unsigned columns, const struct top_data *data, struct top_wish *wish)
{
	struct pen pen = {.frame = frame, .last = rows - 1};

	*frame = (struct top_frame){.rows = rows, .columns = columns};
	frame->text = malloc((size_t)rows * (columns + 1));
	frame->looks = calloc(rows, columns);
	if (!frame->text || !frame->looks) {
		top_frame_free(frame);
		return -ENOMEM;
	}
	memset(frame->text, ' ', (size_t)rows * (columns + 1));
	for (unsigned i = 0; i < rows; i++)
		frame_row(frame, i)[columns] = 0;
	if (rows < ROWS_LEAST || columns < COLUMNS_LEAST) {
		pen.last = rows;
		pen_write(&pen, TOP_WRONG, "too small");
		return 0;
	}
	draw_title(&pen, data, wish);
	draw_trouble(&pen, data);
	if (data->found)
		draw_pool(&pen, data, wish);
	else if (wish->help)
		draw_help(&pen);
	draw_foot(&pen, wish);
	return 0;
}

void top_frame_free(struct top_frame *frame)
{
	free(frame->text);
	free(frame->looks);
	frame->text = NULL;
	frame->looks = NULL;
}
