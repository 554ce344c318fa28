/* quantity.c - see quantity.h */
#include "quantity.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <wctype.h>

static const char *quantity_scaled(char *text, uint64_t n, double step, const char *const *units)
{
	double value = (double)n;
	unsigned i = 0;

	/* what would be printed as 1024.0 goes up one unit */
	while (units[i + 1] && value >= step - 0.05) {
		value /= step;
		i++;
	}
	if (i == 0 || value >= 99.95 || fabs(value - round(value)) < 0.05)
		snprintf(text, QUANTITY_ROOM, "%.0f %s", value, units[i]);
	else
		snprintf(text, QUANTITY_ROOM, "%.1f %s", value, units[i]);
	return text;
}

const char *quantity_bytes(char text[QUANTITY_ROOM], uint64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", NULL};

	return quantity_scaled(text, bytes, 1024, units);
}

static const char *const count_units[] = {"", "k", "M", "G", "T", "P", "E", NULL};

const char *quantity_short(char text[QUANTITY_ROOM], uint64_t n)
{
	return n < 100000 ? quantity_count(text, n) : quantity_scaled(text, n, 1000, count_units);
}

const char *quantity_count(char text[QUANTITY_ROOM], uint64_t n)
{
	if (n >= 10000000)
		return quantity_scaled(text, n, 1000, count_units);
	if (n >= 1000000)
		snprintf(text, QUANTITY_ROOM, "%" PRIu64 ",%03" PRIu64 ",%03" PRIu64, n / 1000000, n / 1000 % 1000,
			n % 1000);
	else if (n >= 1000)
		snprintf(text, QUANTITY_ROOM, "%" PRIu64 ",%03" PRIu64, n / 1000, n % 1000);
	else
		snprintf(text, QUANTITY_ROOM, "%" PRIu64, n);
	return text;
}

const char *quantity_share(char text[QUANTITY_ROOM], uint64_t part, uint64_t whole)
{
	if (!whole)
		snprintf(text, QUANTITY_ROOM, "-");
	else
		snprintf(text, QUANTITY_ROOM, "%.1f %%", 100.0 * (double)part / (double)whole);
	return text;
}

const char *quantity_share_short(char text[QUANTITY_ROOM], uint64_t part, uint64_t whole)
{
	if (!whole)
		snprintf(text, QUANTITY_ROOM, "-");
	else
		snprintf(text, QUANTITY_ROOM, "%.0f %%", 100.0 * (double)part / (double)whole);
	return text;
}

static int quantity_parse(const char *text, const char *units, uint64_t step, const char **rest, uint64_t *out)
{
	unsigned long long n;
	uint64_t factor = 1;
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno)
		return -EINVAL;
	if (*end) {
		/* a model of 8B weights */
		char letter = *end == 'B' && step == 1000 ? 'g' : (char)tolower((unsigned char)*end);
		const char *unit = strchr(units, letter);

		if (!unit)
			return -EINVAL;
		for (const char *u = units; u <= unit; u++)
			factor *= step;
		end++;
	}
	if (n > UINT64_MAX / factor)
		return -EINVAL;
	*rest = end;
	*out = n * factor;
	return 0;
}

const char *quantity_age(char text[QUANTITY_ROOM], double age_s)
{
	if (age_s < 0)
		snprintf(text, QUANTITY_ROOM, "?");
	else if (age_s < 120)
		snprintf(text, QUANTITY_ROOM, "%.0f s", age_s);
	else if (age_s < 7200)
		snprintf(text, QUANTITY_ROOM, "%.0f min", age_s / 60);
	else
		snprintf(text, QUANTITY_ROOM, "%.0f h", age_s / 3600);
	return text;
}

int quantity_parse_bytes(const char *text, uint64_t *bytes)
{
	const char *rest;
	uint64_t n;

	if (quantity_parse(text, "kmgt", 1024, &rest, &n) < 0)
		return -EINVAL;
	if (rest[0] && ((rest == text + strspn(text, "0123456789")) || (strcmp(rest, "B") && strcmp(rest, "iB"))))
		return -EINVAL;
	*bytes = n;
	return 0;
}

int quantity_parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *n)
{
	const char *rest;
	uint64_t value;

	if (quantity_parse(text, "kmgt", 1000, &rest, &value) < 0 || rest[0])
		return -EINVAL;
	if (value < min || value > max)
		return -ERANGE;
	*n = value;
	return 0;
}

int quantity_parse_seconds(const char *text, uint64_t *ns)
{
	double seconds;
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	seconds = strtod(text, &end);
	if (*end || !(seconds >= 0 && seconds <= 86400))
		return -EINVAL;
	*ns = (uint64_t)(seconds * 1e9);
	return 0;
}

const char *text_clean(char *to, size_t room, const char *from, size_t from_room)
{
	size_t n = 0;

	for (size_t i = 0; i < from_room && from[i] && n + 1 < room; i++)
		to[n++] = (from[i] >= 0x20 && from[i] < 0x7f) ? from[i] : '?';
	to[n] = 0;
	return to;
}

/* Controls and unassigned ones are what iswprint() leaves out; beside those, what turns the direction of writing or
   takes no room. */
static bool char_is_hidden(wchar_t c)
{
	return (c >= 0x200b && c <= 0x200f) || (c >= 0x202a && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) ||
	       c == 0x61c || c == 0xfeff || (c >= 0xfff0 && c <= 0xfffb);
}

/* Bytes of the character of UTF-8 that begins at @s, whatever the terminal's locale is; 0: none that is printed as it
   is. */
static size_t char_printable(const char *s, size_t n)
{
	static locale_t utf8;
	locale_t before;
	size_t len;
	wchar_t c = 0;

	if (!utf8)
		utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", NULL);
	before = uselocale(utf8);
	len = mbrtowc(&c, s, n, &(mbstate_t){0});
	if (len > n || !iswprint((wint_t)c) || char_is_hidden(c))
		len = 0;
	uselocale(before);
	return len;
}

const char *text_path(char *to, size_t room, const char *from, size_t from_room)
{
	size_t n = 0, length = strnlen(from, from_room);

	for (size_t i = 0, len; i < length; i += len ? len : 1) {
		len = char_printable(from + i, length - i);
		if (n + (len ? len : 1) >= room)
			break;
		if (len)
			memcpy(to + n, from + i, len);
		else
			to[n] = '?';
		n += len ? len : 1;
	}
	to[n] = 0;
	return to;
}
