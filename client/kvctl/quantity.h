/*
 * quantity.h - numbers as people write and read them: sizes, counts, shares, and text that others wrote
 */
#ifndef KVCTL_QUANTITY_H
#define KVCTL_QUANTITY_H

#include <stddef.h>
#include <stdint.h>

#define QUANTITY_ROOM 32

/** quantity_bytes() - "512 B", "64 MiB", "5.2 GiB". Return: @text. */
const char *quantity_bytes(char text[QUANTITY_ROOM], uint64_t bytes);
/** quantity_count() - exact with commas below ten million, then "12.3 M", "4.5 G". Return: @text. */
const char *quantity_count(char text[QUANTITY_ROOM], uint64_t n);
/** quantity_short() - at most six columns: exact with commas below 100,000, then "123 k", "4.5 G". Return: @text. */
const char *quantity_short(char text[QUANTITY_ROOM], uint64_t n);
/** quantity_share_short() - "91 %". Return: @text. */
const char *quantity_share_short(char text[QUANTITY_ROOM], uint64_t part, uint64_t whole);
/** quantity_share() - "91.2 %", or "-" of nothing. Return: @text. */
const char *quantity_share(char text[QUANTITY_ROOM], uint64_t part, uint64_t whole);
/** quantity_age() - "12 s", "5 min", "3 h", "?" if negative. Return: @text. */
const char *quantity_age(char text[QUANTITY_ROOM], double age_s);
/** quantity_parse_bytes() - "64M", "2G", "4096", powers of 1024 as for kvpoold. Return: 0; -EINVAL. */
int quantity_parse_bytes(const char *text, uint64_t *bytes);
/** quantity_parse_count() - decimal, also "8k", "70G" as powers of 1000. Return: 0; -EINVAL; -ERANGE outside of
 *  min..max. */
int quantity_parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *n);
/** quantity_parse_seconds() - "2", "0.5" -> nanoseconds, up to a day. Return: 0; -EINVAL. */
int quantity_parse_seconds(const char *text, uint64_t *ns);
/** text_clean() - copy foreign bytes as printable ASCII, others as '?': no terminal or JSON reader is led astray.
 *  Return: @to. */
const char *text_clean(char *to, size_t room, const char *from, size_t from_room);
/** text_path() - likewise a path, of which printable UTF-8 stays as it is */
const char *text_path(char *to, size_t room, const char *from, size_t from_room);

#endif
