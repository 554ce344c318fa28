/*
 * sampler.h - the next token from its logits: greedy, so that two runs can be compared
 */
#ifndef KVENGINE_SAMPLER_H
#define KVENGINE_SAMPLER_H

#include <stdint.h>

/** sampler_greedy() - the id of the largest of @n logits, the lowest id of equals; n >= 1 */
uint32_t sampler_greedy(const float *logits, uint32_t n);

#endif
