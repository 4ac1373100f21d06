/* Int8 linears for NEON without dot products (ARMv8.0). */
#include "kernels/cpu/int8_lanes_neon.h"

#define TD_INT8_NAME "neon"
#define TD_INT8_TABLE td_int8_neon
#include "kernels/cpu/int8_body.inc"
