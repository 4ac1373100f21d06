/* What int8 products know of a weight type whatever registers unpack it: layouts of dtype.c's blocks. Types
 * are constants where these are called, so that each loop is compiled for its own. */
#ifndef TD_KERNELS_CPU_INT8_FORMATS_H
#define TD_KERNELS_CPU_INT8_FORMATS_H

#include "kernels/dtype.h"

#define TD_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define TD_UNROLL _Pragma("unroll")
#else
#define TD_UNROLL _Pragma("GCC unroll 16")
#endif

enum { QUADS = 8 }; /* runs of four columns in a strip */

TD_INLINE bool has_min(td_dtype t) { return t == TD_Q4_1 || t == TD_Q5_1 || t == TD_Q4_K || t == TD_Q5_K; }

/* Unsigned weights are above their value by 1 << this; 0: they are not. */
TD_INLINE int zero_shift(td_dtype t) { return t == TD_Q4_0 ? 3 : t == TD_Q5_0 ? 4 : t == TD_Q6_K ? 5 : 0; }

TD_INLINE bool is_block256(td_dtype t) { return t == TD_Q4_K || t == TD_Q5_K || t == TD_Q6_K; }
TD_INLINE uint32_t block_strips(td_dtype t) { return is_block256(t) ? 8 : 1; }

TD_INLINE uint32_t block32_bytes(td_dtype t)
{
  return t == TD_Q4_0 ? 18 : t == TD_Q4_1 ? 20 : t == TD_Q5_0 ? 22 : t == TD_Q5_1 ? 24 : 34;
}
TD_INLINE uint32_t block256_bytes(td_dtype t) { return t == TD_Q4_K ? 144 : t == TD_Q5_K ? 176 : 210; }

#endif
