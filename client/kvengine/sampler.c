/* sampler.c - see sampler.h */
#include "sampler.h"

uint32_t sampler_greedy(const float *logits, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t id = 1; id < n; id++)
		if (logits[id] > logits[best])
			best = id;
	return best;
}
