/* tokenizer.c - see tokenizer.h */
#include "tokenizer.h"

#include <errno.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

#define LONGEST_MAX 1024 /* bytes of a piece; real ones have up to about 100 */

/* One symbol of a text being encoded, in a doubly linked list that merges shorten. */
struct symbol {
	uint32_t id;
	uint32_t start, length; /* its bytes in the text */
	int64_t next, prev;
	uint32_t merged; /* piece that this and the next one make, or TOKEN_UNKNOWN */
};

struct encoder {
	const struct tokenizer *tokenizer;
	const char *text;
	struct symbol *symbols;
	size_t n;
};

static int text_compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
	const int r = memcmp(a, b, a_length < b_length ? a_length : b_length);

	return r ? r : (a_length > b_length) - (a_length < b_length);
}

static int sort_compare(const void *a, const void *b, void *context)
{
	const struct tokenizer *tokenizer = context;
	const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	const struct token_text *x = &tokenizer->texts[i], *y = &tokenizer->texts[j];
	const int r = text_compare(x->bytes, x->length, y->bytes, y->length);

	return r ? r : (i > j) - (i < j);
}

/* The lowest id of the piece with this text, or TOKEN_UNKNOWN.  Control tokens and raw bytes are never found by
   text. */
static uint32_t piece_find(const struct tokenizer *tokenizer, const char *text, size_t length)
{
	uint32_t low = 0, high = tokenizer->n_vocab - TOKEN_PIECE;

	if (length > tokenizer->longest)
		return TOKEN_UNKNOWN;
	while (low < high) {
		const uint32_t middle = low + (high - low) / 2;
		const struct token_text *t = &tokenizer->texts[tokenizer->sorted[middle]];

		if (text_compare(t->bytes, t->length, text, length) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < tokenizer->n_vocab - TOKEN_PIECE) {
		const uint32_t id = tokenizer->sorted[low];

		if (tokenizer->texts[id].length == length && memcmp(tokenizer->texts[id].bytes, text, length) == 0)
			return id;
	}
	return TOKEN_UNKNOWN;
}

static int texts_read(struct tokenizer *t, const struct file *file, const char *path, struct error *error)
{
	size_t at = sizeof(int32_t);

	for (uint32_t id = 0; id < t->n_vocab; id++) {
		int32_t length;

		if (file->size - at < 8)
			return error_set(error, -EINVAL,
				"%s: ends at token %u of the model's %u; it belongs to another model or is cut short",
				path, id, t->n_vocab);
		memcpy(&t->texts[id].score, t->bytes + at, sizeof(float));
		memcpy(&length, t->bytes + at + 4, sizeof(length));
		at += 8;
		if (length < 0 || length > LONGEST_MAX || (size_t)length > file->size - at)
			return error_set(error, -EINVAL,
				"%s: token %u claims %d bytes; not a llama2.c tokenizer, or damaged", path, id, length);
		t->texts[id].bytes = t->bytes + at;
		t->texts[id].length = (uint32_t)length;
		if (t->texts[id].length > t->longest)
			t->longest = t->texts[id].length;
		at += (size_t)length;
	}
	if (at != file->size)
		return error_set(error, -EINVAL,
			"%s: goes on after token %u; it belongs to a model with a larger vocabulary", path, t->n_vocab);
	return 0;
}

static int tokenizer_read(struct tokenizer *t, const struct file *file, const char *path, struct error *error)
{
	int r;

	if (t->n_vocab < TOKEN_PIECE)
		return error_set(error, -EINVAL,
			"%s: the model has %u tokens, fewer than the %u of a llama2.c tokenizer", path, t->n_vocab,
			TOKEN_PIECE);
	if (file->size < sizeof(int32_t))
		return error_set(error, -EINVAL, "%s: cut short; copy it again", path);
	t->texts = calloc(t->n_vocab, sizeof(*t->texts));
	t->sorted = calloc(t->n_vocab, sizeof(*t->sorted));
	t->bytes = malloc(file->size);
	if (!t->texts || !t->sorted || !t->bytes)
		return error_set(error, -ENOMEM, "%s: not enough memory to read it", path);
	memcpy(t->bytes, file->bytes, file->size);
	crypto_generichash(t->fingerprint, sizeof(t->fingerprint), file->bytes, file->size, NULL, 0);
	r = texts_read(t, file, path, error);
	if (r < 0)
		return r;
	for (uint32_t id = TOKEN_PIECE; id < t->n_vocab; id++)
		t->sorted[id - TOKEN_PIECE] = id;
	qsort_r(t->sorted, t->n_vocab - TOKEN_PIECE, sizeof(*t->sorted), sort_compare, t);
	return 0;
}

int tokenizer_open(struct tokenizer *tokenizer, const char *path, uint32_t n_vocab, struct error *error)
{
	struct file file;
	int r;

	*tokenizer = (struct tokenizer){.n_vocab = n_vocab};
	r = file_map(&file, path, error);
	if (r < 0)
		return r;
	r = tokenizer_read(tokenizer, &file, path, error);
	file_unmap(&file);
	if (r < 0)
		tokenizer_close(tokenizer);
	return r;
}

void tokenizer_close(struct tokenizer *tokenizer)
{
	free(tokenizer->texts);
	free(tokenizer->sorted);
	free(tokenizer->bytes);
	*tokenizer = (struct tokenizer){0};
}

/* Bytes of the character at @at: its continuation bytes, at most three, whether or not they are valid UTF-8. */
static uint32_t character_length(const char *text, size_t length, size_t at)
{
	uint32_t n = 1;

	while (n < 4 && at + n < length && ((uint8_t)text[at + n] & 0xc0) == 0x80)
		n++;
	return n;
}

static void symbol_add(struct encoder *e, uint32_t id, size_t start, uint32_t length)
{
	const int64_t at = (int64_t)e->n;

	e->symbols[e->n++] = (struct symbol){id, (uint32_t)start, length, at + 1, at - 1, TOKEN_UNKNOWN};
}

static void symbols_split(struct encoder *e, size_t length)
{
	for (size_t at = 0; at < length;) {
		const uint32_t n = character_length(e->text, length, at);
		const uint32_t id = piece_find(e->tokenizer, e->text + at, n);

		if (id != TOKEN_UNKNOWN)
			symbol_add(e, id, at, n);
		for (uint32_t i = 0; id == TOKEN_UNKNOWN && i < n; i++)
			symbol_add(e, TOKEN_BYTE + (uint8_t)e->text[at + i], at + i, 1);
		at += n;
	}
	if (e->n > 0)
		e->symbols[e->n - 1].next = -1;
}

/* What this symbol and the next one make.  A raw byte makes nothing: its text is "<0xNN>", which no piece contains. */
static void symbol_look(struct encoder *e, int64_t at)
{
	struct symbol *s = &e->symbols[at];
	const struct symbol *next = s->next < 0 ? NULL : &e->symbols[s->next];

	s->merged = TOKEN_UNKNOWN;
	if (next && s->id >= TOKEN_PIECE && next->id >= TOKEN_PIECE)
		s->merged = piece_find(e->tokenizer, e->text + s->start, s->length + next->length);
}

static void symbol_merge(struct encoder *e, int64_t at)
{
	struct symbol *s = &e->symbols[at];
	const struct symbol *gone = &e->symbols[s->next];

	s->id = s->merged;
	s->length += gone->length;
	s->next = gone->next;
	if (s->next >= 0)
		e->symbols[s->next].prev = at;
	symbol_look(e, at);
	if (s->prev >= 0)
		symbol_look(e, s->prev);
}

/* The leftmost of the best pairs, or -1. */
static int64_t symbols_best(const struct encoder *e)
{
	const struct token_text *texts = e->tokenizer->texts;
	int64_t best = -1;
	float score = 0;

	for (int64_t at = e->n > 0 ? 0 : -1; at >= 0; at = e->symbols[at].next) {
		const uint32_t id = e->symbols[at].merged;

		if (id != TOKEN_UNKNOWN && (best < 0 || texts[id].score > score)) {
			best = at;
			score = texts[id].score;
		}
	}
	return best;
}

static int64_t symbols_encode(struct encoder *e, size_t length, uint32_t *ids)
{
	int64_t best, n = 0;

	symbols_split(e, length);
	for (size_t at = 0; at < e->n; at++)
		symbol_look(e, (int64_t)at);
	while ((best = symbols_best(e)) >= 0)
		symbol_merge(e, best);
	ids[n++] = TOKEN_BOS;
	for (int64_t at = e->n > 0 ? 0 : -1; at >= 0; at = e->symbols[at].next)
		ids[n++] = e->symbols[at].id;
	return n;
}

int64_t tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length, uint32_t max_ids,
	uint32_t **ids, struct error *error)
{
	struct encoder e = {.tokenizer = tokenizer};
	char *spaced;
	int64_t n = -ENOMEM;

	*ids = NULL;
	/* The search for the best pair is quadratic: refuse early what cannot fit. */
	if (length > (size_t)max_ids * tokenizer->longest)
		return error_set(error, -E2BIG,
			"the prompt's %zu bytes make more than the %u tokens there is room for; shorten it", length,
			max_ids);
	spaced = malloc(length + 1);
	e.symbols = calloc(length + 1, sizeof(*e.symbols));
	*ids = calloc(length + 2, sizeof(**ids));
	if (spaced && e.symbols && *ids) {
		spaced[0] = ' ';
		memcpy(spaced + 1, text, length);
		e.text = spaced;
		n = symbols_encode(&e, length > 0 ? length + 1 : 0, *ids);
	} else {
		error_set(error, -ENOMEM, "not enough memory to encode %zu bytes of prompt", length);
	}
	free(spaced);
	free(e.symbols);
	if (n < 0) {
		free(*ids);
		*ids = NULL;
	}
	return n;
}

int64_t tokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *ids, size_t n, char **text)
{
	size_t length = 0;

	*text = malloc(n * (size_t)(tokenizer->longest > 0 ? tokenizer->longest : 1) + 1);
	if (!*text)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		const uint32_t id = ids[i];

		if (id >= TOKEN_BYTE && id < TOKEN_PIECE) {
			(*text)[length++] = (char)(id - TOKEN_BYTE);
		} else if (id != TOKEN_BOS && id < tokenizer->n_vocab) {
			const struct token_text *t = &tokenizer->texts[id];
			const bool drop = i > 0 && ids[i - 1] == TOKEN_BOS && t->length > 0 && t->bytes[0] == ' ';

			memcpy(*text + length, t->bytes + drop, t->length - drop);
			length += t->length - drop;
		}
	}
	(*text)[length] = 0;
	return (int64_t)length;
}
