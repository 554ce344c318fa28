/* replay_trace.c - traces of requests; see replay.h.  Their formats are in kvctl(1). */
#include "replay.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zstd.h>

#define WINDOW_LOG_MAX 27
#define MOONCAKE_BLOCK 512u
#define LINE_MAX_BYTES (64u << 20)
#define REQUEST_BLOCKS_MAX (16u << 20)

/* ---- numbers of blocks, by the trace's ids ---- */

struct id_map {
	uint64_t *id; /* + 1; 0: empty */
	uint32_t *number;
	uint64_t mask, n;
};

static uint64_t mixed(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint64_t map_place(const struct id_map *map, uint64_t id)
{
	uint64_t at = mixed(id) & map->mask;

	while (map->id[at] && map->id[at] != id + 1)
		at = (at + 1) & map->mask;
	return at;
}

static int map_grow(struct id_map *map)
{
	struct id_map other = {.mask = map->mask ? 2 * map->mask + 1 : 0xffff, .n = map->n};

	other.id = calloc(other.mask + 1, sizeof(*other.id));
	other.number = calloc(other.mask + 1, sizeof(*other.number));
	if (!other.id || !other.number) {
		free(other.id);
		free(other.number);
		return -ENOMEM;
	}
	for (uint64_t i = 0; map->id && i <= map->mask; i++)
		if (map->id[i]) {
			uint64_t at = map_place(&other, map->id[i] - 1);

			other.id[at] = map->id[i];
			other.number[at] = map->number[i];
		}
	free(map->id);
	free(map->number);
	*map = other;
	return 0;
}

static int64_t map_number(struct id_map *map, uint64_t id)
{
	uint64_t at;

	if ((!map->id || 2 * map->n > map->mask) && map_grow(map) < 0)
		return -ENOMEM;
	at = map_place(map, id);
	if (!map->id[at]) {
		if (map->n == UINT32_MAX)
			return -E2BIG;
		map->id[at] = id + 1;
		map->number[at] = (uint32_t)map->n++;
	}
	return map->number[at];
}

/* ---- requests ---- */

/* What is wrong with the line, and from which column on; 0: with all of it. */
static __attribute__((format(printf, 3, 4))) int line_wrong(
	struct replay_trace *trace, int64_t column, const char *format, ...)
{
	va_list args;
	size_t n = 0;

	if (column)
		n = (size_t)snprintf(trace->wrong, sizeof(trace->wrong), "column %" PRId64 ": ", column);
	va_start(args, format);
	vsnprintf(trace->wrong + n, sizeof(trace->wrong) - n, format, args);
	va_end(args);
	return -EINVAL;
}

static int trace_add_id(struct replay_trace *trace, uint64_t id)
{
	struct replay_request *request = &trace->requests[trace->n_requests];
	int64_t number;

	/* what is not a whole block is never shared */
	if (((uint64_t)request->n + 1) * trace->block_tokens > request->tokens)
		return 0;
	if (request->n >= REQUEST_BLOCKS_MAX)
		return -E2BIG;
	if (trace->n_ids == trace->ids_room) {
		uint64_t room = trace->ids_room ? 2 * trace->ids_room : 1 << 16;
		uint32_t *ids = realloc(trace->ids, room * sizeof(*ids));

		if (!ids)
			return -ENOMEM;
		trace->ids = ids;
		trace->ids_room = room;
	}
	number = map_number(trace->map, id);
	if (number < 0)
		return (int)number;
	trace->ids[trace->n_ids++] = (uint32_t)number;
	request->n++;
	return 0;
}

static int trace_begin(struct replay_trace *trace, uint64_t time_ms, uint64_t tokens)
{
	if (trace->n_requests == trace->requests_room) {
		uint64_t room = trace->requests_room ? 2 * trace->requests_room : 1 << 12;
		struct replay_request *requests = realloc(trace->requests, room * sizeof(*requests));

		if (!requests)
			return -ENOMEM;
		trace->requests = requests;
		trace->requests_room = room;
	}
	if (trace->n_requests && time_ms < trace->requests[trace->n_requests - 1].time_ms)
		return line_wrong(trace, 0, "its time, %" PRIu64 " ms, is before %" PRIu64 " ms of a request above it",
			time_ms, trace->requests[trace->n_requests - 1].time_ms);
	trace->requests[trace->n_requests] =
		(struct replay_request){.time_ms = time_ms, .tokens = tokens, .first = trace->n_ids};
	return 0;
}

/* A request without a whole block asks for nothing that could be kept: it is left out. */
static void trace_end(struct replay_trace *trace)
{
	if (!trace->requests[trace->n_requests].n)
		return;
	trace->n_tokens += trace->requests[trace->n_requests].tokens;
	trace->n_requests++;
}

static bool number_read(const char **text, uint64_t *n)
{
	char *end;

	while (**text == ' ' || **text == '\t')
		(*text)++;
	if (**text < '0' || **text > '9')
		return false;
	errno = 0;
	*n = strtoull(*text, &end, 10);
	if (errno || *n >= UINT64_MAX / 2)
		return false;
	*text = end;
	return true;
}

/* As number_read(), where one must be. */
static int number_take(struct replay_trace *trace, const char *line, const char **text, const char *field, uint64_t *n)
{
	int length;

	if (number_read(text, n))
		return 0;
	length = (int)strcspn(*text, " \t");
	if (!length)
		return line_wrong(trace, *text - line + 1, "%s is missing", field);
	return line_wrong(trace, *text - line + 1, "%s is no number below 2^63: \"%.*s\"", field,
		length < 32 ? length : 32, *text);
}

static int kvt_comment(struct replay_trace *trace, const char *line)
{
	const char *block = strstr(line, "block=");
	uint64_t n;

	if (!block || trace->n_requests)
		return 0;
	block += strlen("block=");
	if (!number_read(&block, &n) || !n || n > 1 << 20)
		return line_wrong(trace, block - line + 1, "block= must be 1 to 1048576 tokens");
	trace->block_tokens = (uint32_t)n;
	return 0;
}

/* One id, or a-b. */
static int kvt_ids(struct replay_trace *trace, const char *line, const char **at)
{
	const char *begin = *at;
	uint64_t from, to;
	int r = number_take(trace, line, at, "a block's id", &from);

	to = from;
	if (!r && **at == '-') {
		(*at)++;
		r = number_take(trace, line, at, "the end of a range of ids", &to);
	}
	if (!r && (to < from || to - from > REQUEST_BLOCKS_MAX))
		r = line_wrong(trace, begin - line + 1, "a range of ids ends before it begins, or has more than %u",
			REQUEST_BLOCKS_MAX);
	for (; !r && from <= to; from++)
		r = trace_add_id(trace, from);
	return r;
}

/* time_ms input_tokens output_tokens ids...; a-b stands for all from a to b */
static int kvt_line(struct replay_trace *trace, const char *line)
{
	uint64_t time_ms, tokens, output;
	const char *at = line;
	int r;

	if (*line == '#')
		return kvt_comment(trace, line);
	at += strspn(at, " \t");
	if (!*at)
		return 0;
	r = number_take(trace, line, &at, "time_ms", &time_ms);
	if (!r)
		r = number_take(trace, line, &at, "input_tokens", &tokens);
	if (!r)
		r = number_take(trace, line, &at, "output_tokens", &output);
	if (!r)
		r = trace_begin(trace, time_ms, tokens);
	while (!r && *(at += strspn(at, " \t")))
		r = kvt_ids(trace, line, &at);
	if (!r)
		trace_end(trace);
	return r;
}

static int mooncake_number(struct replay_trace *trace, const json_t *line, const char *field, uint64_t *n)
{
	const json_t *value = json_object_get(line, field);

	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return line_wrong(trace, 0, "\"%s\" is %s", field, value ? "no whole number from 0 on" : "missing");
	*n = (uint64_t)json_integer_value(value);
	return 0;
}

/* {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]} */
static int mooncake_line(struct replay_trace *trace, const char *line)
{
	json_error_t error;
	json_t *json = json_loads(line, 0, &error), *id, *ids = json_object_get(json, "hash_ids");
	uint64_t at, tokens;
	size_t i;
	int r;

	if (!json)
		return line_wrong(trace, error.column, "no JSON object: %.120s", error.text);
	r = mooncake_number(trace, json, "timestamp", &at);
	if (!r)
		r = mooncake_number(trace, json, "input_length", &tokens);
	if (!r && !json_is_array(ids))
		r = line_wrong(trace, 0, "\"hash_ids\" is %s", ids ? "no array" : "missing");
	if (!r)
		r = trace_begin(trace, at, tokens);
	if (!r) {
		json_array_foreach(ids, i, id)
		{
			if (!r && (!json_is_integer(id) || json_integer_value(id) < 0))
				r = line_wrong(trace, 0, "\"hash_ids\"[%zu] is no whole number from 0 on", i);
			r = r ? r : trace_add_id(trace, (uint64_t)json_integer_value(id));
		}
	}
	json_decref(json);
	if (!r)
		trace_end(trace);
	return r;
}

static int trace_line(struct replay_trace *trace, const char *line)
{
	return *line == '{' ? mooncake_line(trace, line) : kvt_line(trace, line);
}

/* ---- the file ---- */

/* Text that came, not yet cut into lines. */
struct lines {
	char *text;
	size_t n, room;
	uint64_t line;
};

static int lines_feed(struct lines *lines, struct replay_trace *trace, const char *text, size_t n, bool last)
{
	char *begin, *end;
	int r = 0;

	if (lines->n + n + 1 > lines->room) {
		size_t room = 2 * (lines->n + n + 1);
		char *more = room <= LINE_MAX_BYTES ? realloc(lines->text, room) : NULL;

		if (!more)
			return room <= LINE_MAX_BYTES ? -ENOMEM : -E2BIG;
		lines->text = more;
		lines->room = room;
	}
	memcpy(lines->text + lines->n, text, n);
	lines->n += n;
	lines->text[lines->n] = 0;
	for (begin = lines->text; !r && (end = memchr(begin, '\n', lines->n - (size_t)(begin - lines->text)));
		begin = end + 1) {
		*end = 0;
		if (end > begin && end[-1] == '\r')
			end[-1] = 0;
		lines->line++;
		r = trace_line(trace, begin);
	}
	if (!r && last && *begin) {
		lines->line++;
		r = trace_line(trace, begin);
	}
	lines->n -= (size_t)(begin - lines->text);
	memmove(lines->text, begin, lines->n);
	return r;
}

/* *left: 0: no frame is open */
static int zstd_feed(
	ZSTD_DStream *stream, ZSTD_inBuffer *in, struct lines *lines, struct replay_trace *trace, size_t *left)
{
	static char text[1 << 17];

	for (;;) {
		ZSTD_outBuffer out = {text, sizeof(text), 0};
		int r;

		*left = ZSTD_decompressStream(stream, &out, in);
		if (ZSTD_isError(*left)) {
			snprintf(trace->wrong, sizeof(trace->wrong), "%s: it is damaged, or not compressed by zstd",
				ZSTD_getErrorName(*left));
			return -EIO;
		}
		r = lines_feed(lines, trace, text, out.pos, false);
		if (r)
			return r;
		if (in->pos == in->size && out.pos < out.size)
			return 0;
	}
}

static int trace_read_all(struct replay_trace *trace, FILE *file, struct lines *lines)
{
	static char bytes[1 << 16];
	ZSTD_DStream *stream = NULL;
	bool begun = false;
	size_t n, left = 0;
	int r = 0;

	while (!r && (n = fread(bytes, 1, sizeof(bytes), file)) > 0) {
		ZSTD_inBuffer in = {bytes, n, 0};

		if (!begun && n >= 4 && !memcmp(bytes, "\x28\xb5\x2f\xfd", 4)) {
			stream = ZSTD_createDStream();
			if (!stream)
				return -ENOMEM;
			ZSTD_DCtx_setParameter(stream, ZSTD_d_windowLogMax, WINDOW_LOG_MAX);
		}
		begun = true;
		r = stream ? zstd_feed(stream, &in, lines, trace, &left) : lines_feed(lines, trace, bytes, n, false);
	}
	ZSTD_freeDStream(stream);
	if (!r && ferror(file)) {
		snprintf(trace->wrong, sizeof(trace->wrong), "it cannot be read: %s", strerror(errno));
		return -EIO;
	}
	if (!r && left) {
		snprintf(trace->wrong, sizeof(trace->wrong),
			"it ends in the middle of what zstd compressed: the file was cut off");
		return -EIO;
	}
	return r ? r : lines_feed(lines, trace, "", 0, true);
}

static int trace_keys(struct replay_trace *trace)
{
	trace->n_blocks = (uint32_t)trace->map->n;
	trace->keys = calloc(trace->n_blocks, sizeof(*trace->keys));
	if (!trace->keys)
		return -ENOMEM;
	for (uint32_t i = 0; i < trace->n_blocks; i++)
		trace->keys[i] = (struct kvp_key){{mixed(i), mixed(mixed(i) + i)}};
	return 0;
}

static void trace_explain(char why[256], const char *path, uint64_t line, int r, const char *wrong)
{
	if (r == -EINVAL)
		snprintf(why, 256, "%.90s, line %" PRIu64 ", %.125s", path, line, wrong);
	else if (wrong[0])
		snprintf(why, 256, "%.90s, after line %" PRIu64 ": %.125s", path, line, wrong);
	else
		snprintf(why, 256, "%.90s, line %" PRIu64 ": %.100s", path, line, strerror(-r));
}

/* Return: NULL, with errno: there is no such file, or no file that has lines. */
static FILE *trace_open(const char *path)
{
	FILE *file = fopen(path, "re");
	struct stat st;

	if (file && fstat(fileno(file), &st) == 0 && S_ISDIR(st.st_mode)) {
		fclose(file);
		errno = EISDIR;
		return NULL;
	}
	return file;
}

int replay_trace_read(struct replay_trace *trace, const char *path, char why[256])
{
	struct id_map map = {0};
	struct lines lines = {0};
	FILE *file = trace_open(path);
	int r;

	memset(trace, 0, sizeof(*trace));
	trace->block_tokens = MOONCAKE_BLOCK;
	trace->map = &map;
	if (!file) {
		r = -errno;
		snprintf(why, 256, "%s: %s", path, strerror(errno));
		return r;
	}
	r = trace_read_all(trace, file, &lines);
	fclose(file);
	if (!r && !trace->n_requests) {
		r = -ENODATA;
		snprintf(why, 256, "%s: no request in it asks for a whole block of %u tokens", path,
			trace->block_tokens);
	} else if (!r && trace_keys(trace) < 0) {
		r = -ENOMEM;
		snprintf(why, 256, "%s: out of memory", path);
	} else if (r) {
		trace_explain(why, path, lines.line, r, trace->wrong);
	}
	free(lines.text);
	free(map.id);
	free(map.number);
	trace->map = NULL;
	if (r)
		replay_trace_free(trace);
	return r;
}

void replay_trace_free(struct replay_trace *trace)
{
	free(trace->requests);
	free(trace->ids);
	free(trace->keys);
	memset(trace, 0, sizeof(*trace));
}
