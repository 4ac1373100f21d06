/* Random numbers of a seed, the very ones that NumPy's default_rng(seed) draws: PCG64 seeded through
 * SeedSequence, ziggurat exponentials and normals, Lemire's bounded integers. So a workload that a Python
 * script defines by its seed can be replayed here to the last arrival. Sources: O'Neill, PCG (2014);
 * Marsaglia and Tsang, The ziggurat method (2000); Lemire, Fast random integer generation in an interval
 * (2019); the order in which NumPy draws is checked by tests against NumPy itself. */
#ifndef TD_LOADGEN_RANDOM_H
#define TD_LOADGEN_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_random {
  unsigned __int128 state, inc;
  bool has_half; /* of a 64-bit number whose other half went to a 32-bit one */
  uint32_t half;
} td_random;

void td_random_init(td_random *r, uint64_t seed);
uint64_t td_random_next(td_random *r);
double td_random_double(td_random *r);                  /* random(): [0, 1) */
uint32_t td_random_below(td_random *r, uint32_t bound); /* integers(0, bound), bound >= 2 */
double td_random_exponential(td_random *r);             /* mean 1 */
double td_random_normal(td_random *r);                  /* mean 0, deviation 1 */

#endif
