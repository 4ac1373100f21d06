/* Layouts of the weight types of int8 linears, in the file (dtype.c's blocks) and packed, for any registers.
 * Callers pass the type as a constant, so that each loop is compiled for its own type. */
#ifndef TD_KERNELS_CPU_INT8_FORMATS_H
#define TD_KERNELS_CPU_INT8_FORMATS_H

#include "kernels/dtype.h"

#define TD_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define TD_UNROLL _Pragma("unroll")
#elif !defined __OPTIMIZE__ /* GCC warns about loops that it cannot unroll under sanitizers */
#define TD_UNROLL
#else
#define TD_UNROLL _Pragma("GCC unroll 16")
#endif

enum { QUADS = 8 }; /* groups of four columns in a strip */

TD_INLINE bool has_min(td_dtype t) { return t == TD_Q4_1 || t == TD_Q5_1 || t == TD_Q4_K || t == TD_Q5_K; }
TD_INLINE bool has_fifth(td_dtype t) { return t == TD_Q5_0 || t == TD_Q5_1; }

/* Weights of these types are stored unsigned, above their value by 1 << zero_shift. 0: they are not. */
TD_INLINE int zero_shift(td_dtype t) { return t == TD_Q4_0 ? 3 : t == TD_Q5_0 ? 4 : t == TD_Q6_K ? 5 : 0; }

TD_INLINE bool is_block256(td_dtype t) { return t == TD_Q4_K || t == TD_Q5_K || t == TD_Q6_K; }
TD_INLINE uint32_t block_strips(td_dtype t) { return is_block256(t) ? 8 : 1; }

/* Number of units in a block. A block is a scale of two bytes and units of four bytes. In types with a
 * minimum, scale and minimum fill a unit instead. */
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

/* Packed rows lie in groups of `lanes`. First come the units of all blocks, with the same unit of all rows
 * side by side. Then come the blocks' scales, likewise. Both begin at a multiple of 64 bytes. */
enum { PACKED_ALIGN = 64 };
TD_INLINE size_t align_packed(size_t bytes)
{
  return (bytes + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
}
TD_INLINE size_t packed_units_bytes(td_dtype t, uint32_t n_strips, uint32_t lanes)
{
  return align_packed((size_t)n_strips / block_strips(t) * block_units(t) * lanes * 4);
}
TD_INLINE size_t packed_group_bytes(td_dtype t, uint32_t n_strips, uint32_t lanes)
{
  size_t scales = has_min(t) ? 0 : align_packed((size_t)n_strips / block_strips(t) * lanes * 2);
  return packed_units_bytes(t, n_strips, lanes) + scales;
}

#endif
