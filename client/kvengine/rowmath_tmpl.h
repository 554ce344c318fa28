/*
 * rowmath_tmpl.h - the matrix product for one instruction set; included by rowmath.c, once for each
 *
 * The includer defines: ROW_NAME(x) the suffix, ROW_TARGET the target attribute, VEC the vector type, LANES,
 * VEC_ZERO(), VEC_SET1(f), VEC_LOAD(p), VEC_STORE(p, v), VEC_FMA(a, b, c) = a * b + c, ROWS_MANY (rows that share a
 * load of weights) and PANELS_ONE (panels side by side for a single row: a single sum waits for its own last addition,
 * so a core is only busy with eight or more of them).
 */
#define VECS (ROW_PANEL / LANES)

/* One tile: @n_rows rows by @n_panels panels, constants at each call so that the sums stay in registers. */
ROW_TARGET static inline __attribute__((always_inline)) void ROW_NAME(tile)(const float *panel, size_t panel_floats,
	const float *x, size_t x_stride, float *y, size_t y_stride, uint32_t n_in, const int n_rows, const int n_panels)
{
	VEC sum[ROWS_MANY][PANELS_ONE][VECS];

	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int p = 0; p < n_panels; p++)
		UNROLL for (int v = 0; v < (int)VECS; v++) sum[r][p][v] = VEC_ZERO();
	for (uint32_t i = 0; i < n_in; i++) {
		UNROLL for (int p = 0; p < n_panels; p++)
		{
			UNROLL for (int v = 0; v < (int)VECS; v++)
			{
				const VEC w = VEC_LOAD(panel + p * panel_floats + i * ROW_PANEL + v * LANES);

				UNROLL for (int r = 0; r < n_rows; r++) sum[r][p][v] =
					VEC_FMA(VEC_SET1(x[r * x_stride + i]), w, sum[r][p][v]);
			}
		}
	}
	UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int p = 0; p < n_panels; p++)
		UNROLL for (int v = 0; v < (int)VECS; v++)
			VEC_STORE(y + r * y_stride + p * ROW_PANEL + v * LANES, sum[r][p][v]);
}

/* A single row: several panels at once. */
ROW_TARGET static void ROW_NAME(apply_row)(const struct matrix *matrix, const float *x, float *y)
{
	const size_t panel_floats = (size_t)matrix->n_in * ROW_PANEL;
	const size_t n_panels = row_padded(matrix->n_out) / ROW_PANEL;
	const float *panel = matrix->panels;
	size_t p = 0;

	for (; p + PANELS_ONE <= n_panels; p += PANELS_ONE, panel += PANELS_ONE * panel_floats)
		ROW_NAME(tile)(panel, panel_floats, x, 0, y + p * ROW_PANEL, 0, matrix->n_in, 1, PANELS_ONE);
	for (; p < n_panels; p++, panel += panel_floats)
		ROW_NAME(tile)(panel, panel_floats, x, 0, y + p * ROW_PANEL, 0, matrix->n_in, 1, 1);
}

/* Many rows: a panel stays in the first-level cache while all rows pass over it. */
ROW_TARGET static void ROW_NAME(apply)(
	const struct matrix *matrix, const float *x, size_t x_stride, uint32_t rows, float *y, size_t y_stride)
{
	const size_t panel_floats = (size_t)matrix->n_in * ROW_PANEL;
	const size_t n_panels = row_padded(matrix->n_out) / ROW_PANEL;
	const uint32_t many = rows - rows % ROWS_MANY;

	for (size_t p = 0; p < n_panels && many > 0; p++) {
		const float *panel = matrix->panels + p * panel_floats;

		for (uint32_t r = 0; r < many; r += ROWS_MANY)
			ROW_NAME(tile)
		(panel, panel_floats, x + r * x_stride, x_stride, y + r * y_stride + p * ROW_PANEL, y_stride,
			matrix->n_in, ROWS_MANY, 1);
	}
	for (uint32_t r = many; r < rows; r++)
		ROW_NAME(apply_row)(matrix, x + r * x_stride, y + r * y_stride);
}

#undef VECS
