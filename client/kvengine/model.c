/* model.c - see model.h */
#include "model.h"

#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

/* Bounds wide enough for any published model of this architecture and small enough that no product below overflows. */
#define DIM_MAX (1 << 16)
#define HIDDEN_MAX (1 << 18)
#define VOCAB_MAX (1 << 20)
#define CONTEXT_MAX (1 << 20)

struct shape {
	int32_t dim, hidden, layers, heads, kv_heads, head_dim, vocab, context;
	bool tied;
};

/* The arrays of a file, read one after the other: the caller has checked that all of them are there. */
struct reader {
	const uint8_t *at;
	bool half;
	bool finite; /* no infinity or NaN was met so far */
};

static int32_t i32_at(const uint8_t *bytes)
{
	int32_t value;

	memcpy(&value, bytes, sizeof(value));
	return value;
}

static float f32_at(const uint8_t *bytes)
{
	float value;

	memcpy(&value, bytes, sizeof(value));
	return value;
}

static float f16_at(const uint8_t *bytes)
{
	const uint32_t half = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
	const uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
	float value;

	if (exponent == 31)
		value = fraction ? NAN : INFINITY;
	else if (exponent == 0)
		value = ldexpf((float)fraction, -24);
	else
		value = ldexpf((float)(fraction | 1024), (int)exponent - 25);
	return half & 0x8000 ? -value : value;
}

static void reader_floats(struct reader *reader, size_t n, float *out)
{
	for (size_t i = 0; i < n; i++) {
		out[i] = reader->half ? f16_at(reader->at) : f32_at(reader->at);
		reader->at += reader->half ? 2 : 4;
		reader->finite = reader->finite && isfinite(out[i]);
	}
}

static bool in_range(int32_t value, int32_t max)
{
	return value >= 1 && value <= max;
}

static int shape_check(const struct shape *s, const char *path, struct error *error)
{
	const char *what = !in_range(s->dim, DIM_MAX)		    ? "dim"
			   : !in_range(s->hidden, HIDDEN_MAX)	    ? "hidden size"
			   : !in_range(s->layers, MODEL_LAYERS_MAX) ? "number of layers"
			   : !in_range(s->heads, s->dim)	    ? "number of heads"
			   : !in_range(s->kv_heads, s->heads)	    ? "number of KV heads"
			   : !in_range(s->vocab, VOCAB_MAX)	    ? "vocabulary size"
			   : !in_range(s->context, CONTEXT_MAX)	    ? "context length"
								    : NULL;

	if (!what && s->heads % s->kv_heads)
		what = "number of KV heads (heads must be a multiple of it)";
	if (!what && (!in_range(s->head_dim, s->dim) || s->head_dim % 2 || s->head_dim * s->heads != s->dim))
		what = "head size (heads x head size must be dim, head size even)";
	if (what)
		return error_set(error, -EINVAL,
			"%s: its %s is out of range; not a checkpoint of kvpool (%s) or llama2.c, or damaged", path,
			what, MODEL_MAGIC);
	return 0;
}

/* Weights in the file; the bounds of shape_check() keep it far below 2^64. */
static uint64_t shape_floats(const struct shape *s)
{
	const uint64_t dim = (uint64_t)s->dim, kv_dim = (uint64_t)s->kv_heads * (uint64_t)s->head_dim;
	const uint64_t layer = 2 * dim + 2 * dim * dim + 2 * dim * kv_dim + 3 * dim * (uint64_t)s->hidden;
	const uint64_t vocab = (uint64_t)s->vocab * dim;

	return vocab + (uint64_t)s->layers * layer + dim + (s->tied ? 0 : vocab);
}

static int length_check(const struct file *file, uint64_t want, const char *path, struct error *error)
{
	if (file->size == want)
		return 0;
	return error_set(error, -EINVAL, "%s: has %zu bytes where its header needs %llu: %s; copy it again", path,
		file->size, (unsigned long long)want,
		file->size < want ? "cut short" : "something follows the weights");
}

static int header_own(
	struct model *model, const struct file *file, struct shape *s, const char *path, struct error *error)
{
	const uint8_t *p = file->bytes + strlen(MODEL_MAGIC);
	int r;

	if (file->size < MODEL_HEADER_BYTES)
		return error_set(error, -EINVAL, "%s: cut short within its header; copy it again", path);
	if (i32_at(p) != 1 || i32_at(p + 36) != 1)
		return error_set(error, -EINVAL,
			"%s: version %d, number type %d; this program reads version 1, type 1 (f16)", path, i32_at(p),
			i32_at(p + 36));
	*s = (struct shape){i32_at(p + 4), i32_at(p + 8), i32_at(p + 12), i32_at(p + 16), i32_at(p + 20),
		i32_at(p + 24), i32_at(p + 28), i32_at(p + 32), true};
	model->rope_base = f32_at(p + 40);
	model->norm_eps = f32_at(p + 44);
	r = shape_check(s, path, error);
	if (r < 0)
		return r;
	if (!(model->rope_base > 1 && model->rope_base < 1e12f && model->norm_eps >= 0 && model->norm_eps < 1))
		return error_set(error, -EINVAL,
			"%s: its rope base or norm epsilon is out of range; damaged, copy it again", path);
	return length_check(file, MODEL_HEADER_BYTES + 2 * shape_floats(s), path, error);
}

static int header_llama2c(
	struct model *model, const struct file *file, struct shape *s, const char *path, struct error *error)
{
	const uint8_t *p = file->bytes;
	int32_t vocab;
	int r;

	if (file->size < 28)
		return error_set(
			error, -EINVAL, "%s: %zu bytes are too few for a checkpoint; copy it again", path, file->size);
	vocab = i32_at(p + 20);
	*s = (struct shape){i32_at(p), i32_at(p + 4), i32_at(p + 8), i32_at(p + 12), i32_at(p + 16), 0,
		vocab == INT32_MIN ? 0 : abs(vocab), i32_at(p + 24), vocab > 0};
	s->head_dim = s->heads > 0 ? s->dim / s->heads : 0;
	model->rope_base = 10000;
	model->norm_eps = 1e-5f;
	r = shape_check(s, path, error);
	if (r < 0)
		return r;
	return length_check(
		file, 28 + 4 * (shape_floats(s) + (uint64_t)s->context * (uint64_t)s->head_dim), path, error);
}

static float *read_vector(struct reader *reader, size_t n)
{
	float *vector = malloc(n * sizeof(float));

	if (vector)
		reader_floats(reader, n, vector);
	return vector;
}

static int read_matrix(struct reader *reader, struct matrix *matrix, uint32_t n_out, uint32_t n_in)
{
	float *row = malloc(n_in * sizeof(float));
	int r = row ? matrix_init(matrix, n_out, n_in) : -ENOMEM;

	for (uint32_t out = 0; r == 0 && out < n_out; out++) {
		reader_floats(reader, n_in, row);
		matrix_set_row(matrix, out, row);
	}
	free(row);
	return r;
}

/* One matrix of every layer: the files keep each kind together. */
static int read_matrices(struct reader *reader, struct model *model, size_t offset, uint32_t n_out, uint32_t n_in)
{
	int r = 0;

	for (uint32_t l = 0; r == 0 && l < model->n_layers; l++)
		r = read_matrix(reader, (struct matrix *)((char *)&model->layers[l] + offset), n_out, n_in);
	return r;
}

static int read_norms(struct reader *reader, struct model *model, size_t offset)
{
	for (uint32_t l = 0; l < model->n_layers; l++) {
		float *norm = read_vector(reader, model->dim);

		memcpy((char *)&model->layers[l] + offset, &norm, sizeof(norm));
		if (!norm)
			return -ENOMEM;
	}
	return 0;
}

#define LAYER(field) offsetof(struct model_layer, field)

static int read_layers(struct reader *reader, struct model *model)
{
	const uint32_t dim = model->dim, kv_dim = model->n_kv_heads * model->head_dim, hidden = model->hidden;
	int r;

	(void)((r = read_norms(reader, model, LAYER(norm_attn))) ||
		(r = read_matrices(reader, model, LAYER(q), dim, dim)) ||
		(r = read_matrices(reader, model, LAYER(k), kv_dim, dim)) ||
		(r = read_matrices(reader, model, LAYER(v), kv_dim, dim)) ||
		(r = read_matrices(reader, model, LAYER(o), dim, dim)) ||
		(r = read_norms(reader, model, LAYER(norm_ffn))) ||
		(r = read_matrices(reader, model, LAYER(gate), hidden, dim)) ||
		(r = read_matrices(reader, model, LAYER(down), dim, hidden)) ||
		(r = read_matrices(reader, model, LAYER(up), hidden, dim)));
	return r;
}

static int classifier_tied(struct model *model)
{
	int r = matrix_init(&model->classifier, model->n_vocab, model->dim);

	for (uint32_t id = 0; r == 0 && id < model->n_vocab; id++)
		matrix_set_row(&model->classifier, id, model->embedding + (size_t)id * model->dim);
	return r;
}

static int read_weights(struct model *model, struct reader *reader, bool tied)
{
	int r;

	model->layers = calloc(model->n_layers, sizeof(*model->layers));
	model->embedding = model->layers ? read_vector(reader, (size_t)model->n_vocab * model->dim) : NULL;
	if (!model->embedding)
		return -ENOMEM;
	r = read_layers(reader, model);
	if (r < 0)
		return r;
	model->norm_final = read_vector(reader, model->dim);
	if (!model->norm_final)
		return -ENOMEM;
	if (tied)
		return classifier_tied(model);
	reader->at += (size_t)model->context * model->head_dim * sizeof(float); /* llama2.c's two RoPE tables */
	return read_matrix(reader, &model->classifier, model->n_vocab, model->dim);
}

static void model_shape(struct model *model, const struct shape *s)
{
	model->dim = (uint32_t)s->dim;
	model->hidden = (uint32_t)s->hidden;
	model->n_layers = (uint32_t)s->layers;
	model->n_heads = (uint32_t)s->heads;
	model->n_kv_heads = (uint32_t)s->kv_heads;
	model->head_dim = (uint32_t)s->head_dim;
	model->n_vocab = (uint32_t)s->vocab;
	model->context = (uint32_t)s->context;
}

static int model_read(struct model *model, const struct file *file, const char *path, struct error *error)
{
	const size_t magic = strlen(MODEL_MAGIC);
	const bool own = file->size >= magic && memcmp(file->bytes, MODEL_MAGIC, magic) == 0;
	struct reader reader = {file->bytes + (own ? MODEL_HEADER_BYTES : 28), own, true};
	struct shape shape;
	int r;

	r = own ? header_own(model, file, &shape, path, error) : header_llama2c(model, file, &shape, path, error);
	if (r < 0)
		return r;
	model_shape(model, &shape);
	r = read_weights(model, &reader, shape.tied);
	if (r < 0)
		return error_set(error, r, "%s: not enough memory for its weights", path);
	if (!reader.finite)
		return error_set(error, -EINVAL, "%s: a weight is not a finite number; damaged, copy it again", path);
	crypto_generichash(model->fingerprint, sizeof(model->fingerprint), file->bytes, file->size, NULL, 0);
	return 0;
}

int model_open(struct model *model, const char *path, struct error *error)
{
	struct file file;
	int r;

	*model = (struct model){0};
	if (sodium_init() < 0)
		return error_set(error, -EIO, "libsodium cannot start: no source of random numbers");
	r = file_map(&file, path, error);
	if (r < 0)
		return r;
	r = model_read(model, &file, path, error);
	file_unmap(&file);
	if (r < 0)
		model_close(model);
	return r;
}

void model_close(struct model *model)
{
	for (uint32_t l = 0; model->layers && l < model->n_layers; l++) {
		struct model_layer *layer = &model->layers[l];
		struct matrix *all[] = {
			&layer->q, &layer->k, &layer->v, &layer->o, &layer->gate, &layer->down, &layer->up};

		free(layer->norm_attn);
		free(layer->norm_ffn);
		for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
			matrix_deinit(all[i]);
	}
	free(model->layers);
	free(model->embedding);
	free(model->norm_final);
	matrix_deinit(&model->classifier);
	*model = (struct model){0};
}
