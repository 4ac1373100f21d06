/* Int8 linears for AVX2. */
#include "kernels/cpu/int8_lanes8.h"

#define TD_INT8_TABLE td_int8_avx2
#include "kernels/cpu/int8_body.inc"
