/* Random numbers that are exactly those of NumPy's default_rng(seed): PCG64 seeded by SeedSequence,
 * exponentials and normals by ziggurats, bounded integers by Lemire's method. A workload that a Python
 * script defines by its seed can thus be replayed exactly. Sources: O'Neill, PCG (2014); Marsaglia and
 * Tsang, The ziggurat method (2000); Lemire, Fast random integer generation in an interval (2019). Tests
 * check the order of draws against NumPy itself. */
#ifndef TD_LOADGEN_RANDOM_H
#define TD_LOADGEN_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_random {
  unsigned __int128 state, inc;
  bool has_half; /* `half` is left of a 64-bit number that gave 32 bits */
  uint32_t half;
} td_random;

void td_random_init(td_random *r, uint64_t seed);
uint64_t td_random_next(td_random *r);
double td_random_double(td_random *r);                  /* NumPy's random(): [0, 1) */
uint32_t td_random_below(td_random *r, uint32_t bound); /* NumPy's integers(0, bound); bound >= 2 */
double td_random_exponential(td_random *r);             /* mean 1 */
double td_random_normal(td_random *r);                  /* mean 0, deviation 1 */

#endif
