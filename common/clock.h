/* The monotonic clock. Every duration in the daemon and its tools is a difference of two readings of it. Any
 * thread. */
#ifndef TD_COMMON_CLOCK_H
#define TD_COMMON_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC: counts from an unspecified start, the same for all threads and processes of a machine. */
uint64_t td_clock_us(void);
uint64_t td_clock_ns(void);

#endif
