/* test_engine_tokenizer.c - the reference engine's tokenizer: llama2.c's format, ids and text back */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../client/kvengine/tokenizer.h"

#define STORIES "../shared/models/tok512.bin"
#define OWN "tests/data/model/kjv.tok"

/* A tokenizer file built in memory, written where the test can open it. */
struct draft {
	uint8_t bytes[1 << 16];
	size_t size;
	char path[64];
};

static void draft_put(struct draft *d, const void *bytes, size_t n)
{
	memcpy(d->bytes + d->size, bytes, n);
	d->size += n;
}

static void draft_token(struct draft *d, const char *text, int32_t length, float score)
{
	draft_put(d, &score, sizeof(score));
	draft_put(d, &length, sizeof(length));
	draft_put(d, text, strlen(text));
}

/* Header, control tokens and bytes; pieces are the test's. */
static struct draft *given_draft(void)
{
	struct draft *d = calloc(1, sizeof(*d));
	const int32_t longest = 7;

	draft_put(d, &longest, sizeof(longest));
	draft_token(d, "<unk>", 5, 0);
	draft_token(d, "\n<s>\n", 5, 0);
	draft_token(d, "\n</s>\n", 6, 0);
	for (int i = 0; i < 256; i++) {
		char text[8];

		snprintf(text, sizeof(text), "<0x%02X>", (unsigned int)i);
		draft_token(d, text, 6, 0);
	}
	return d;
}

static int draft_open(struct draft *d, uint32_t n_vocab, struct tokenizer *t, struct error *error)
{
	int fd, r;

	strcpy(d->path, "/tmp/kvengine-tokenizer-XXXXXX");
	fd = mkstemp(d->path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, d->bytes, d->size), d->size);
	close(fd);
	r = tokenizer_open(t, d->path, n_vocab, error);
	unlink(d->path);
	return r;
}

static void assert_ids(const struct tokenizer *t, const char *text, const uint32_t *want, size_t n)
{
	struct error error = {0};
	uint32_t *ids;

	assert_int_equal(tokenizer_encode(t, text, strlen(text), 4096, &ids, &error), n);
	assert_memory_equal(ids, want, n * sizeof(*want));
	free(ids);
}

static void assert_round_trip(const struct tokenizer *t, const char *text, size_t length)
{
	struct error error = {0};
	uint32_t *ids;
	char *back;
	int64_t n = tokenizer_encode(t, text, length, 65536, &ids, &error);

	assert_true(n >= 1);
	assert_int_equal(tokenizer_decode(t, ids, (size_t)n, &back), length);
	assert_memory_equal(back, text, length);
	free(ids);
	free(back);
}

static void open_or_skip(struct tokenizer *t, const char *path)
{
	struct error error = {0};
	int r = tokenizer_open(t, path, 512, &error);

	if (r == -ENOENT) {
		print_message("skipped: %s\n", error.text);
		skip();
	}
	if (r < 0)
		fail_msg("%s", error.text);
}

static void the_published_tokenizer_gives_the_published_ids(void **state)
{
	static const uint32_t tom[] = {
		1, 385, 328, 432, 274, 287, 269, 301, 425, 411, 263, 377, 267, 265, 282, 295, 433, 426};
	static const uint32_t cat[] = {1, 291, 280, 294, 262, 294, 353, 265, 284, 294, 426};
	static const uint32_t bos[] = {1};
	struct tokenizer t;

	(void)state;
	open_or_skip(&t, STORIES);
	assert_ids(&t, "One day, Tom and Sue went to the park.", tom, 18);
	assert_ids(&t, "The cat sat on the mat.", cat, 11);
	assert_ids(&t, "", bos, 1);
	tokenizer_close(&t);
}

static void every_text_comes_back_as_it_was(void **state)
{
	static const char *const paths[] = {OWN, STORIES};
	static const char odd[] =
		"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \x80\xff\xc3 <0x41> \n<s>\n  two  spaces\t.";
	char noise[3000];
	struct tokenizer t;

	(void)state;
	srand(7);
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (char)rand();
	for (int i = 0; i < 2; i++) {
		if (access(paths[i], R_OK) != 0) {
			print_message("without %s: not there\n", paths[i]);
			continue;
		}
		open_or_skip(&t, paths[i]);
		assert_round_trip(&t, "And God said, Let there be light: and there was light.\n", 55);
		assert_round_trip(&t, odd, sizeof(odd) - 1);
		assert_round_trip(&t, noise, sizeof(noise));
		tokenizer_close(&t);
	}
}

static void no_text_can_spell_a_control_token_or_a_byte_token(void **state)
{
	struct draft *d = given_draft();
	struct error error = {0};
	struct tokenizer t;
	uint32_t *ids;
	int64_t n;

	(void)state;
	/* Pieces through which "\n<s>\n" and "<0x41>" could be merged if ids below 259 were found by text. */
	draft_token(d, "\n", 1, 0);
	draft_token(d, "<", 1, 0);
	draft_token(d, "s", 1, 0);
	draft_token(d, ">", 1, 0);
	draft_token(d, "\n<", 2, -1);
	draft_token(d, "s>", 2, -2);
	draft_token(d, "\n<s>", 4, -3);
	assert_int_equal(draft_open(d, 266, &t, &error), 0);
	n = tokenizer_encode(&t, "\n<s>\n<0x41>", 11, 100, &ids, &error);
	assert_true(n > 1);
	for (int64_t i = 1; i < n; i++)
		assert_true(ids[i] != TOKEN_BOS && ids[i] != TOKEN_EOS && ids[i] != TOKEN_BYTE + 0x41);
	free(ids);
	tokenizer_close(&t);
	free(d);
}

static void the_highest_score_merges_first_and_the_leftmost_of_equals(void **state)
{
	struct draft *d = given_draft();
	static const uint32_t overlap[] = {1, 259, 262, 260}; /* " ", "aa", "a": not "a", "aa" */
	static const uint32_t score[] = {1, 259, 260, 263}; /* " ", "a", "bc": "bc" scores higher than "ab" */
	struct error error = {0};
	struct tokenizer t;

	(void)state;
	draft_token(d, " ", 1, 0); /* 259 */
	draft_token(d, "a", 1, 0); /* 260 */
	draft_token(d, "b", 1, 0); /* 261 */
	draft_token(d, "aa", 2, -1); /* 262 */
	draft_token(d, "bc", 2, -1); /* 263 */
	draft_token(d, "ab", 2, -2); /* 264 */
	draft_token(d, "c", 1, 0); /* 265 */
	assert_int_equal(draft_open(d, 266, &t, &error), 0);
	assert_ids(&t, "aaa", overlap, 4);
	assert_ids(&t, "abc", score, 4);
	tokenizer_close(&t);
	free(d);
}

static void of_pieces_with_the_same_text_the_lowest_id_is_used(void **state)
{
	struct draft *d = given_draft();
	static const uint32_t want[] = {1, 259, 260};
	struct error error = {0};
	struct tokenizer t;

	(void)state;
	draft_token(d, " ", 1, 0);
	for (int i = 0; i < 5; i++)
		draft_token(d, "x", 1, 0);
	assert_int_equal(draft_open(d, 265, &t, &error), 0);
	assert_ids(&t, "x", want, 3);
	tokenizer_close(&t);
	free(d);
}

static void a_prompt_that_cannot_fit_is_refused_before_the_work(void **state)
{
	struct draft *d = given_draft();
	struct error error = {0};
	char text[200] = {0};
	struct tokenizer t;
	uint32_t *ids;

	(void)state;
	draft_token(d, " ", 1, 0);
	assert_int_equal(draft_open(d, 260, &t, &error), 0);
	assert_int_equal(tokenizer_encode(&t, text, sizeof(text), 20, &ids, &error), -E2BIG);
	assert_non_null(strstr(error.text, "shorten it"));
	assert_null(ids);
	tokenizer_close(&t);
	free(d);
}

static void a_damaged_or_foreign_file_is_refused_and_says_why(void **state)
{
	struct draft *d = given_draft();
	struct error error = {0};
	size_t size;
	struct tokenizer t;

	(void)state;
	draft_token(d, " ", 1, 0);
	size = d->size;
	assert_int_equal(draft_open(d, 261, &t, &error), -EINVAL);
	assert_non_null(strstr(error.text, "ends at token 260"));
	assert_int_equal(draft_open(d, 259, &t, &error), -EINVAL);
	assert_non_null(strstr(error.text, "larger vocabulary"));
	assert_int_equal(draft_open(d, 100, &t, &error), -EINVAL);
	for (d->size = 1; d->size < size; d->size++)
		assert_int_equal(draft_open(d, 260, &t, &error), -EINVAL);
	for (int i = 0; i < 3; i++) {
		static const int32_t lengths[] = {-1, 2, INT32_MAX};

		d->size = size - 5;
		draft_put(d, &lengths[i], sizeof(int32_t));
		draft_put(d, " ", 1);
		assert_int_equal(draft_open(d, 260, &t, &error), -EINVAL);
		assert_non_null(strstr(error.text, "token 259 claims"));
	}
	free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_published_tokenizer_gives_the_published_ids),
		cmocka_unit_test(every_text_comes_back_as_it_was),
		cmocka_unit_test(no_text_can_spell_a_control_token_or_a_byte_token),
		cmocka_unit_test(the_highest_score_merges_first_and_the_leftmost_of_equals),
		cmocka_unit_test(of_pieces_with_the_same_text_the_lowest_id_is_used),
		cmocka_unit_test(a_prompt_that_cannot_fit_is_refused_before_the_work),
		cmocka_unit_test(a_damaged_or_foreign_file_is_refused_and_says_why),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
