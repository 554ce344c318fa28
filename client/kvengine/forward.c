/* forward.c - see forward.h */
#include "forward.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *rows_alloc(uint32_t rows, uint32_t n)
{
	const size_t bytes = rows * row_padded(n) * sizeof(float);
	float *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

	if (p)
		memset(p, 0, bytes);
	return p;
}

static void angles_fill(struct forward *f)
{
	const uint32_t half = f->model->head_dim / 2;

	for (uint32_t pos = 0; pos < f->model->context; pos++) {
		for (uint32_t i = 0; i < half; i++) {
			const double turn = pow((double)f->model->rope_base, -2.0 * i / f->model->head_dim);

			f->cosine[(size_t)pos * half + i] = (float)cos(pos * turn);
			f->sine[(size_t)pos * half + i] = (float)sin(pos * turn);
		}
	}
}

int forward_init(struct forward *f, const struct model *model, uint32_t max_rows)
{
	const uint32_t kv_dim = model->n_kv_heads * model->head_dim;
	const size_t angles = (size_t)model->context * (model->head_dim / 2);

	*f = (struct forward){
		.model = model, .max_rows = max_rows, .logits_stride = (uint32_t)row_padded(model->n_vocab)};
	f->cosine = malloc(angles * sizeof(float));
	f->sine = malloc(angles * sizeof(float));
	f->x = rows_alloc(max_rows, model->dim);
	f->h = rows_alloc(max_rows, model->dim);
	f->q = rows_alloc(max_rows, model->dim);
	f->k = rows_alloc(max_rows, kv_dim);
	f->v = rows_alloc(max_rows, kv_dim);
	f->gate = rows_alloc(max_rows, model->hidden);
	f->up = rows_alloc(max_rows, model->hidden);
	f->logits = rows_alloc(max_rows, model->n_vocab);
	if (!f->cosine || !f->sine || !f->x || !f->h || !f->q || !f->k || !f->v || !f->gate || !f->up || !f->logits) {
		forward_deinit(f);
		return -ENOMEM;
	}
	angles_fill(f);
	return 0;
}

void forward_deinit(struct forward *f)
{
	float *all[] = {f->cosine, f->sine, f->x, f->h, f->q, f->k, f->v, f->gate, f->up, f->logits};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		free(all[i]);
	*f = (struct forward){0};
}

static void rows_norm(const struct forward *f, const float *gain, uint32_t n)
{
	const size_t stride = row_padded(f->model->dim);

	for (uint32_t r = 0; r < n; r++)
		row_norm(f->x + r * stride, gain, f->model->norm_eps, f->model->dim, f->h + r * stride);
}

static void rows_add(const struct forward *f, uint32_t n)
{
	const size_t stride = row_padded(f->model->dim);

	for (uint32_t r = 0; r < n; r++)
		row_add(f->x + r * stride, f->h + r * stride, f->model->dim);
}

static void rows_rotate(const struct forward *f, float *rows, uint32_t n_heads, uint32_t n, uint64_t first)
{
	const struct model *m = f->model;
	const size_t stride = row_padded(n_heads * m->head_dim), half = m->head_dim / 2;

	for (uint32_t r = 0; r < n; r++)
		row_rotate(rows + r * stride, f->cosine + (first + r) * half, f->sine + (first + r) * half, n_heads,
			m->head_dim);
}

static int layer_attention(
	struct forward *f, uint32_t l, uint32_t n, uint64_t first, const struct forward_attention *attention)
{
	const struct model *m = f->model;
	const struct model_layer *layer = &m->layers[l];
	const uint32_t kv_dim = m->n_kv_heads * m->head_dim;
	const size_t stride = row_padded(m->dim), kv_stride = row_padded(kv_dim);
	int r;

	rows_norm(f, layer->norm_attn, n);
	matrix_apply(&layer->q, f->h, stride, n, f->q, stride);
	matrix_apply(&layer->k, f->h, stride, n, f->k, kv_stride);
	matrix_apply(&layer->v, f->h, stride, n, f->v, kv_stride);
	rows_rotate(f, f->q, m->n_heads, n, first);
	rows_rotate(f, f->k, m->n_kv_heads, n, first);
	r = attention->store(attention->context, l, first, n, f->k, f->v, kv_stride);
	if (r < 0)
		return r;
	r = attention->attend(attention->context, l, first, n, f->q, f->h, stride);
	if (r < 0)
		return r;
	matrix_apply(&layer->o, f->h, stride, n, f->q, stride);
	for (uint32_t row = 0; row < n; row++)
		row_add(f->x + row * stride, f->q + row * stride, m->dim);
	return 0;
}

static void layer_ffn(struct forward *f, uint32_t l, uint32_t n)
{
	const struct model *m = f->model;
	const struct model_layer *layer = &m->layers[l];
	const size_t stride = row_padded(m->dim), hidden_stride = row_padded(m->hidden);

	rows_norm(f, layer->norm_ffn, n);
	matrix_apply(&layer->gate, f->h, stride, n, f->gate, hidden_stride);
	matrix_apply(&layer->up, f->h, stride, n, f->up, hidden_stride);
	for (uint32_t r = 0; r < n; r++)
		row_swiglu(f->gate + r * hidden_stride, f->up + r * hidden_stride, m->hidden);
	matrix_apply(&layer->down, f->gate, hidden_stride, n, f->h, stride);
	rows_add(f, n);
}

static int input_check(const struct forward *f, const uint32_t *ids, uint32_t n, uint64_t first, uint32_t n_logits)
{
	if (n < 1 || n > f->max_rows || n_logits > n || first > f->model->context || n > f->model->context - first)
		return -EINVAL;
	for (uint32_t r = 0; r < n; r++)
		if (ids[r] >= f->model->n_vocab)
			return -EINVAL;
	return 0;
}

int forward_run(struct forward *f, const uint32_t *ids, uint32_t n, uint64_t first, uint32_t n_logits,
	const struct forward_attention *attention)
{
	const struct model *m = f->model;
	const size_t stride = row_padded(m->dim);
	int r = input_check(f, ids, n, first, n_logits);

	for (uint32_t row = 0; r == 0 && row < n; row++)
		memcpy(f->x + row * stride, m->embedding + (size_t)ids[row] * m->dim, m->dim * sizeof(float));
	for (uint32_t l = 0; r == 0 && l < m->n_layers; l++) {
		r = layer_attention(f, l, n, first, attention);
		if (r == 0)
			layer_ffn(f, l, n);
	}
	if (r < 0 || n_logits == 0)
		return r;
	rows_norm(f, m->norm_final, n);
	matrix_apply(&m->classifier, f->h + (n - n_logits) * stride, stride, n_logits, f->logits, f->logits_stride);
	return 0;
}
