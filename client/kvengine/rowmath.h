/*
 * rowmath.h - the arithmetic of a forward pass on rows of activations: matrix product, RMS norm, SwiGLU, rotary
 * positions
 *
 * The promise everything rests on: the bits of a row of results depend on that row of inputs and on the weights, never
 * on how many rows are computed together nor on which row it is.  So a token's K, V and logits are the same whether its
 * prompt was computed whole, in chunks, or found in the pool.  Each output is one sum, taken in the order of the input
 * columns; several rows share each load of a weight, which is why a prompt costs less a token than decoding does.
 *
 * Versions: plain C, AVX2 with FMA, AVX-512; picked once at run time, the one libkvattn uses.  AVX2 and AVX-512 give
 * the same bits (the order of sums does not depend on the vector length), plain C does not fuse and gives others: bits
 * are for one machine.
 *
 * Why not OpenBLAS: 0.3.21 gives a row other bits when the number of rows differs, and is slower at these sizes (344 x
 * 128, 64 rows, one core of an AMD EPYC family 26, GFLOPS: 154 here, 102 with its SkylakeX kernels, 31 with the ones it
 * picks for a CPU it does not know; a single row 58 against 35 and 8).
 *
 * No threads, no allocation outside matrix_init().
 */
#ifndef KVENGINE_ROWMATH_H
#define KVENGINE_ROWMATH_H

#include <stddef.h>
#include <stdint.h>

/* Outputs are computed in panels of this many; rows of activations are padded to a multiple of it. */
#define ROW_PANEL 32u

static inline size_t row_padded(size_t n)
{
	return (n + ROW_PANEL - 1) / ROW_PANEL * ROW_PANEL;
}

/* [n_out][n_in] weights, stored as panels of ROW_PANEL outputs: panel, input, output; padded with zeros. */
struct matrix {
	uint32_t n_out;
	uint32_t n_in;
	float *panels;
};

/** matrix_init() - an all-zero matrix. Return: 0; -ENOMEM. */
int matrix_init(struct matrix *matrix, uint32_t n_out, uint32_t n_in);
/** matrix_deinit() - may run twice */
void matrix_deinit(struct matrix *matrix);
/** matrix_set_row() - the n_in weights of output @out */
void matrix_set_row(struct matrix *matrix, uint32_t out, const float *weights);

/**
 * matrix_apply() - y = x W^T for @rows rows
 * @x: rows of n_in, @x_stride floats apart; @y: rows of row_padded(n_out), @y_stride apart, 64-byte aligned; not overlapping
 */
void matrix_apply(
	const struct matrix *matrix, const float *x, size_t x_stride, uint32_t rows, float *y, size_t y_stride);

/** row_norm() - y = x / sqrt(mean(x^2) + eps) * gain, one row of @n; @y may be @x */
void row_norm(const float *x, const float *gain, float eps, uint32_t n, float *y);
/** row_add() - x += y, one row of @n */
void row_add(float *x, const float *y, uint32_t n);
/** row_swiglu() - gate = silu(gate) * up, one row of @n */
void row_swiglu(float *gate, const float *up, uint32_t n);
/** row_rotate() - turn the pairs (2i, 2i + 1) of @n_heads heads by the angles of one position; @dim even */
void row_rotate(float *x, const float *cosine, const float *sine, uint32_t n_heads, uint32_t dim);

enum row_isa {
	ROW_ISA_AUTO,
	ROW_ISA_PLAIN,
	ROW_ISA_AVX2,
	ROW_ISA_AVX512,
};
/** row_isa_force() - for tests and measurements: use this version from now on. Return: 0; -ENOTSUP: not on this CPU. */
int row_isa_force(enum row_isa isa);

#endif
