/* What this machine's processor can do at most, measured: the ceilings that CPU figures stand under. */
#ifndef TD_BENCH_CEILINGS_H
#define TD_BENCH_CEILINGS_H

#include <stdint.h>

#include "loadgen/shapes.h"

/* The ceiling of a backend: given figures (GB/s, TFLOP/s) where above 0, else known ones ("cuda": an H200's
 * 4,550 GB/s and 790 bf16 TFLOP/s, measured as a plain read and a product of 8192^3), else measured here with
 * n_threads (0: all). */
td_ceiling td_ceilings_of(const char *backend, double given_gb_s, double given_tflop_s, uint32_t n_threads);

#endif
