/* merge.c - joining results over parts of the keys, and ALiBi's slopes; arithmetic only, any thread */
#include <errno.h>
#include <math.h>
#include <string.h>

#include <kvattn.h>

/* Weights in double: they are few, and the sum of many parts then costs no accuracy. */
static void row_merge(
	const struct kvattn_part *parts, uint64_t n_parts, uint64_t row, uint32_t dim_v, float *out, float *lse)
{
	double sum[KVATTN_DIM_MAX] = {0};
	double top = -INFINITY, total = 0;

	for (uint64_t i = 0; i < n_parts; i++)
		if (!(parts[i].lse[row] <= top)) /* NaN goes on to the result */
			top = parts[i].lse[row];
	for (uint64_t i = 0; i < n_parts; i++) {
		const float *from = parts[i].out + row * dim_v;
		double weight;

		if (parts[i].lse[row] == -INFINITY)
			continue;
		weight = exp(parts[i].lse[row] - top);
		total += weight;
		for (uint32_t d = 0; d < dim_v; d++)
			sum[d] += weight * (double)from[d];
	}
	for (uint32_t d = 0; d < dim_v; d++)
		out[d] = total == 0 ? 0.0f : (float)(sum[d] / total);
	if (lse)
		*lse = total == 0 ? -INFINITY : (float)(top + log(total));
}

int kvattn_merge(
	const struct kvattn_part *parts, uint64_t n_parts, uint64_t n_rows, uint32_t dim_v, float *out, float *lse)
{
	if (!dim_v || dim_v > KVATTN_DIM_MAX || (n_rows && !out) || (n_parts && !parts) ||
		n_rows > SIZE_MAX / KVATTN_DIM_MAX / sizeof(float))
		return -EINVAL;
	for (uint64_t i = 0; n_rows && i < n_parts; i++)
		if (!parts[i].out || !parts[i].lse)
			return -EINVAL;
	for (uint64_t row = 0; row < n_rows; row++)
		row_merge(parts, n_parts, row, dim_v, out + row * dim_v, lse ? lse + row : NULL);
	return 0;
}

int kvattn_alibi_slopes(uint32_t n_heads, float *slopes)
{
	uint32_t n = 1;

	if (!n_heads || n_heads > KVATTN_HEADS_MAX || !slopes)
		return -EINVAL;
	while (n * 2 <= n_heads)
		n *= 2;
	for (uint32_t h = 0; h < n; h++)
		slopes[h] = (float)exp2(-8.0 * (h + 1) / n);
	for (uint32_t h = n; h < n_heads; h++) /* every other slope of 2 n heads */
		slopes[h] = (float)exp2(-8.0 * (2 * (h - n) + 1) / (2 * n));
	return 0;
}
