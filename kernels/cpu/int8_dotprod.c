/* Int8 linears for NEON with dot products (ARMv8.2 and later). */
#include "kernels/cpu/int8_lanes_neon.h"

#define TD_INT8_NAME "dotprod"
#define TD_INT8_TABLE td_int8_dotprod
#include "kernels/cpu/int8_body.inc"
