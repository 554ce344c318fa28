/*
 * tokenizer.h - text to token ids and back, for tokenizers in llama2.c's format
 *
 * File: int32 longest token, then for each id: float32 score, int32 length, bytes.  Ids: 0 unknown, 1 BOS, 2 EOS,
 * 3..258 the raw bytes, from 259 on pieces of text.  Foreign bytes: checked as they are read.
 */
#ifndef KVENGINE_TOKENIZER_H
#define KVENGINE_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"

#define TOKEN_UNKNOWN 0u
#define TOKEN_BOS 1u
#define TOKEN_EOS 2u
#define TOKEN_BYTE 3u /* byte 0 */
#define TOKEN_PIECE 259u /* the first piece */

struct token_text {
	const char *bytes;
	uint32_t length;
	float score;
};

struct tokenizer {
	struct token_text *texts; /* by id */
	uint32_t *sorted; /* ids of pieces, by text, of equal ones the lowest first */
	uint32_t n_vocab;
	uint32_t longest;
	uint8_t fingerprint[32]; /* BLAKE2b of the whole file */
	char *bytes;
};

/** tokenizer_open() - @n_vocab: the model's. Return: 0; -EINVAL damaged, or of another vocabulary; -ENOMEM; -errno of
 *  the file. */
int tokenizer_open(struct tokenizer *tokenizer, const char *path, uint32_t n_vocab, struct error *error);
/** tokenizer_close() - may run twice */
void tokenizer_close(struct tokenizer *tokenizer);

/**
 * tokenizer_encode() - BOS, then the tokens of a space and @text (of an empty text: BOS alone)
 * Characters are merged pair by pair, highest score first, leftmost of equals; what no piece holds stays bytes.
 * @ids: allocated, the caller frees it
 * Return: ids; -E2BIG longer than @max_ids could be; -ENOMEM.
 */
int64_t tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length, uint32_t max_ids,
	uint32_t **ids, struct error *error);

/** tokenizer_decode() - the text of ids; BOS gives nothing and takes one space after it. *text: the caller frees it.
 *  Return: bytes (a zero byte follows them); -ENOMEM. */
int64_t tokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *ids, size_t n, char **text);

#endif
