/* Checked size arithmetic: for every size that comes from a file or a request.
 * Each returns true and stores the result, or returns false on overflow. */
#ifndef TD_COMMON_CHECKED_H
#define TD_COMMON_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool td_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
  return !__builtin_mul_overflow(a, b, out);
}

static inline bool td_mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }

/* True if [offset, offset + length) lies inside [0, total). */
static inline bool td_range_inside(uint64_t offset, uint64_t length, uint64_t total)
{
  return offset <= total && length <= total - offset;
}

static inline uint64_t td_div_ceil_u64(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

#endif
