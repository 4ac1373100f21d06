/* Random numbers of the programs here: xorshift64 (Marsaglia 2003). Each file has its own state, and so its
 * own sequence. */
#ifndef TD_TESTS_GPU_RANDOM_H
#define TD_TESTS_GPU_RANDOM_H

#include <stdint.h>

/* *state is the seed at first: not 0. */
static inline uint64_t random_next(uint64_t *state)
{
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

#endif
