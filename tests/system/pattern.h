/*
 * pattern.h - content that names its block: a word of it is a hash of the block's number and the word's place
 *
 * For programs that write blocks and later demand exactly theirs: nothing but block n passes for block n.
 */
#ifndef KVPOOL_TEST_PATTERN_H
#define KVPOOL_TEST_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

static inline uint64_t pattern_word(uint64_t block, uint64_t i)
{
	uint64_t x = (block + 1) * 0x9e3779b97f4a7c15ull + i * 0xd1342543de82ef95ull; /* splitmix64's finish */

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	return x ^ x >> 27;
}

static inline void pattern_fill(uint64_t *data, uint64_t words, uint64_t block)
{
	for (uint64_t i = 0; i < words; i++)
		data[i] = pattern_word(block, i);
}

static inline bool pattern_right(const uint64_t *data, uint64_t words, uint64_t block)
{
	for (uint64_t i = 0; i < words; i++)
		if (data[i] != pattern_word(block, i))
			return false;
	return true;
}

#endif
