/*
 * engine_fixture.h - the small model, its tokenizer and the ids of the test's own `prompt`
 *
 * For tests of kvengine's parts; included after MODEL, TOKENS and prompt are there.
 */
#ifndef KVPOOL_TEST_ENGINE_FIXTURE_H
#define KVPOOL_TEST_ENGINE_FIXTURE_H

struct engine {
	struct model model;
	struct tokenizer tokenizer;
	uint32_t *ids;
	uint64_t n;
};

static int engine_open(void **state)
{
	struct engine *e = calloc(1, sizeof(*e));
	struct error error = {0};

	if (model_open(&e->model, MODEL, &error) < 0 ||
		tokenizer_open(&e->tokenizer, TOKENS, e->model.n_vocab, &error) < 0) {
		print_error("%s\n", error.text);
		return -1;
	}
	e->n = (uint64_t)tokenizer_encode(&e->tokenizer, prompt, strlen(prompt), e->model.context, &e->ids, &error);
	*state = e;
	return 0;
}

static int engine_close(void **state)
{
	struct engine *e = *state;

	free(e->ids);
	tokenizer_close(&e->tokenizer);
	model_close(&e->model);
	free(e);
	return 0;
}

#endif
