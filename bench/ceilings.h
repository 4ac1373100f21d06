/* Ceilings of backends: the most bytes and operations per second that a figure can reach. */
#ifndef TD_BENCH_CEILINGS_H
#define TD_BENCH_CEILINGS_H

#include <stdint.h>

#include "loadgen/shapes.h"

/* The ceiling of a backend. Values above 0 (GB/s, TFLOP/s) are taken as given. Otherwise, for "cuda", those
 * of an H200: 4,550 GB/s and 790 bf16 TFLOP/s, measured as a plain read and a GEMM of 8192^3. Otherwise
 * measured here, with n_threads (0: all cores). */
td_ceiling td_ceilings_of(const char *backend, double given_gb_s, double given_tflop_s, uint32_t n_threads);

#endif
