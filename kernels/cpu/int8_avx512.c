/* Int8 linears for AVX-512 with VNNI. */
#include "kernels/cpu/int8_lanes16.h"

#define TD_INT8_TABLE td_int8_avx512
#include "kernels/cpu/int8_body.inc"
