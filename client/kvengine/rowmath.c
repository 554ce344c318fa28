/* rowmath.c - see rowmath.h */
#include "rowmath.h"

#include <errno.h>
#include <kvattn.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* ---- plain C: vectors of four, which every 64-bit machine has; unfused where the compiler's target has no FMA ---- */

typedef float vec4 __attribute__((vector_size(16), may_alias));

#define ROW_NAME(x) x##_plain
#define ROW_TARGET
#define VEC vec4
#define LANES 4u
#define VEC_ZERO() ((vec4){0})
#define VEC_SET1(f) ((vec4){(f), (f), (f), (f)})
#define VEC_LOAD(p) (*(const vec4 *)(p))
#define VEC_STORE(p, v) (*(vec4 *)(p) = (v))
#define VEC_FMA(a, b, c) ((a) * (b) + (c))
#define ROWS_MANY 1
#define PANELS_ONE 1
#include "rowmath_tmpl.h"
#undef ROW_NAME
#undef ROW_TARGET
#undef VEC
#undef LANES
#undef VEC_ZERO
#undef VEC_SET1
#undef VEC_LOAD
#undef VEC_STORE
#undef VEC_FMA
#undef ROWS_MANY
#undef PANELS_ONE

#if defined(__x86_64__)

#define ROW_NAME(x) x##_avx2
#define ROW_TARGET __attribute__((target("avx2,fma")))
#define VEC __m256
#define LANES 8u
#define VEC_ZERO() _mm256_setzero_ps()
#define VEC_SET1(f) _mm256_set1_ps(f)
#define VEC_LOAD(p) _mm256_load_ps(p)
#define VEC_STORE(p, v) _mm256_store_ps(p, v)
#define VEC_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ROWS_MANY 3 /* 12 of 16 registers are sums */
#define PANELS_ONE 2
#include "rowmath_tmpl.h"
#undef ROW_NAME
#undef ROW_TARGET
#undef VEC
#undef LANES
#undef VEC_ZERO
#undef VEC_SET1
#undef VEC_LOAD
#undef VEC_STORE
#undef VEC_FMA
#undef ROWS_MANY
#undef PANELS_ONE

#define ROW_NAME(x) x##_avx512
#define ROW_TARGET __attribute__((target("avx512f")))
#define VEC __m512
#define LANES 16u
#define VEC_ZERO() _mm512_setzero_ps()
#define VEC_SET1(f) _mm512_set1_ps(f)
#define VEC_LOAD(p) _mm512_load_ps(p)
#define VEC_STORE(p, v) _mm512_store_ps(p, v)
#define VEC_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define ROWS_MANY 8 /* 16 of 32 registers are sums */
#define PANELS_ONE 4
#include "rowmath_tmpl.h"

#endif

typedef void (*apply_fn)(
	const struct matrix *matrix, const float *x, size_t x_stride, uint32_t rows, float *y, size_t y_stride);

static bool isa_runs(enum row_isa isa)
{
#if defined(__x86_64__)
	if (isa == ROW_ISA_AVX512)
		return __builtin_cpu_supports("avx512f");
	if (isa == ROW_ISA_AVX2)
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
	return isa == ROW_ISA_PLAIN;
}

static apply_fn isa_apply(enum row_isa isa)
{
	switch (isa) {
#if defined(__x86_64__)
	case ROW_ISA_AVX512:
		return apply_avx512;
	case ROW_ISA_AVX2:
		return apply_avx2;
#endif
	default:
		return apply_plain;
	}
}

static apply_fn apply_chosen;

/* What libkvattn chose, so that one switch (KVATTN_ISA) and one name hold for the whole engine. */
static enum row_isa isa_auto(void)
{
	const char *name = kvattn_isa_name();

	if (strncmp(name, "avx512", 6) == 0 && isa_runs(ROW_ISA_AVX512))
		return ROW_ISA_AVX512;
	if (strcmp(name, "scalar") != 0 && isa_runs(ROW_ISA_AVX2))
		return ROW_ISA_AVX2;
	return ROW_ISA_PLAIN;
}

int row_isa_force(enum row_isa isa)
{
	if (isa == ROW_ISA_AUTO)
		isa = isa_auto();
	if (!isa_runs(isa))
		return -ENOTSUP;
	apply_chosen = isa_apply(isa);
	return 0;
}

int matrix_init(struct matrix *matrix, uint32_t n_out, uint32_t n_in)
{
	const size_t bytes = row_padded(n_out) * n_in * sizeof(float);

	*matrix = (struct matrix){.n_out = n_out, .n_in = n_in, .panels = aligned_alloc(64, bytes)};
	if (!matrix->panels)
		return -ENOMEM;
	memset(matrix->panels, 0, bytes);
	return 0;
}

void matrix_deinit(struct matrix *matrix)
{
	free(matrix->panels);
	*matrix = (struct matrix){0};
}

void matrix_set_row(struct matrix *matrix, uint32_t out, const float *weights)
{
	float *panel = matrix->panels + (size_t)(out / ROW_PANEL) * matrix->n_in * ROW_PANEL + out % ROW_PANEL;

	for (uint32_t i = 0; i < matrix->n_in; i++)
		panel[(size_t)i * ROW_PANEL] = weights[i];
}

void matrix_apply(
	const struct matrix *matrix, const float *x, size_t x_stride, uint32_t rows, float *y, size_t y_stride)
{
	if (!apply_chosen)
		(void)row_isa_force(ROW_ISA_AUTO);
	apply_chosen(matrix, x, x_stride, rows, y, y_stride);
}

void row_norm(const float *x, const float *gain, float eps, uint32_t n, float *y)
{
	float sum[8] = {0}; /* eight chains: a single one would wait for each addition */
	float total, scale;
	uint32_t i;

	for (i = 0; i + 8 <= n; i += 8)
		for (uint32_t lane = 0; lane < 8; lane++)
			sum[lane] += x[i + lane] * x[i + lane];
	for (; i < n; i++)
		sum[i % 8] += x[i] * x[i];
	total = ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
	scale = 1.0f / sqrtf(total / (float)n + eps);
	for (i = 0; i < n; i++)
		y[i] = x[i] * scale * gain[i];
}

void row_add(float *x, const float *y, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		x[i] += y[i];
}

void row_swiglu(float *gate, const float *up, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

void row_rotate(float *x, const float *cosine, const float *sine, uint32_t n_heads, uint32_t dim)
{
	for (uint32_t h = 0; h < n_heads; h++, x += dim) {
		for (uint32_t i = 0; i < dim / 2; i++) {
			const float a = x[2 * i], b = x[2 * i + 1];

			x[2 * i] = a * cosine[i] - b * sine[i];
			x[2 * i + 1] = a * sine[i] + b * cosine[i];
		}
	}
}
