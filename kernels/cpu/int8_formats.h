/* What int8 products know of a weight type whatever registers multiply it: layouts of dtype.c's blocks, in
 * the file and packed. Types are constants where these are called, so that each loop is compiled for its own.
 */
#ifndef TD_KERNELS_CPU_INT8_FORMATS_H
#define TD_KERNELS_CPU_INT8_FORMATS_H

#include "kernels/dtype.h"

#define TD_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define TD_UNROLL _Pragma("unroll")
#elif !defined __OPTIMIZE__ /* GCC warns of what it cannot unroll under sanitizers */
#define TD_UNROLL
#else
#define TD_UNROLL _Pragma("GCC unroll 16")
#endif

enum { QUADS = 8 }; /* runs of four columns in a strip */

TD_INLINE bool has_min(td_dtype t) { return t == TD_Q4_1 || t == TD_Q5_1 || t == TD_Q4_K || t == TD_Q5_K; }
TD_INLINE bool has_fifth(td_dtype t) { return t == TD_Q5_0 || t == TD_Q5_1; }

/* Unsigned weights are above their value by 1 << this; 0: they are not. */
TD_INLINE int zero_shift(td_dtype t) { return t == TD_Q4_0 ? 3 : t == TD_Q5_0 ? 4 : t == TD_Q6_K ? 5 : 0; }

TD_INLINE bool is_block256(td_dtype t) { return t == TD_Q4_K || t == TD_Q5_K || t == TD_Q6_K; }
TD_INLINE uint32_t block_strips(td_dtype t) { return is_block256(t) ? 8 : 1; }

/* A block is a scale of two bytes (types with a minimum have none: their two lie in a unit), and units of
 * four bytes. */
TD_INLINE uint32_t block_units(td_dtype t)
{
  switch (t) {
  case TD_Q4_0: return 4;
  case TD_Q4_1:
  case TD_Q5_0: return 5;
  case TD_Q5_1: return 6;
  case TD_Q8_0: return 8;
  case TD_Q4_K: return 36;
  case TD_Q5_K: return 44;
  case TD_Q6_K: return 52;
  default: return 0;
  }
}

/* Packed rows lie in groups of `lanes`: first the units of all blocks, each unit of all rows side by side,
 * then the blocks' scales, likewise; both begin at a multiple of 64 bytes. */
enum { PACKED_ALIGN = 64 };
TD_INLINE size_t packed_round(size_t bytes)
{
  return (bytes + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
}
TD_INLINE size_t packed_units_bytes(td_dtype t, uint32_t n_strips, uint32_t lanes)
{
  return packed_round((size_t)n_strips / block_strips(t) * block_units(t) * lanes * 4);
}
TD_INLINE size_t packed_group_bytes(td_dtype t, uint32_t n_strips, uint32_t lanes)
{
  size_t scales = has_min(t) ? 0 : packed_round((size_t)n_strips / block_strips(t) * lanes * 2);
  return packed_units_bytes(t, n_strips, lanes) + scales;
}

#endif
