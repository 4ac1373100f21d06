/* The monotonic clock: see clock.h. */
#include "common/clock.h"

#include <time.h>

uint64_t td_clock_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t td_clock_us(void) { return td_clock_ns() / 1000; }
