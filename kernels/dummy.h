/* Dummy weights (load_format = dummy): values distributed like a model's, computed from a seed alone.
 *
 * Element i of a matrix is a pure function of (seed, i). It uses only integers, one exact conversion and one
 * multiplication, so every backend makes the same bits, in any order. The sum of four 16-bit parts of a hash
 * gives a bell curve with a standard deviation of 0.02. */
#ifndef TD_KERNELS_DUMMY_H
#define TD_KERNELS_DUMMY_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define TD_DUMMY_FN static __host__ __device__ inline
#else
#define TD_DUMMY_FN static inline
#endif

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014). */
TD_DUMMY_FN uint64_t td_dummy_hash(uint64_t seed, uint64_t i)
{
  uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

TD_DUMMY_FN uint16_t td_dummy_bf16(uint64_t seed, uint64_t i)
{
  const float per_unit = 5.2858e-7f; /* 0.02 / sqrt(4 * (65536^2 - 1) / 12) */
  uint64_t h = td_dummy_hash(seed, i);
  int32_t sum =
      (int32_t)(h & 0xffff) + (int32_t)(h >> 16 & 0xffff) + (int32_t)(h >> 32 & 0xffff) + (int32_t)(h >> 48);
  float v = (float)(sum - 2 * 65535) * per_unit;
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* nearest, ties to even; v is finite */
}

#endif
