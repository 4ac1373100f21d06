/* The inner loops for AVX-512. Eight lanes stay the unit (README.md), but the tile kernel holds two weight
 * rows in one register, and the compiler has 32 registers. */
#define TD_WIDE_PAIR
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/strip_avx2.inc"
#define TD_ISA_TABLE td_isa_avx512
#define TD_ISA_NAME "avx512"
#include "kernels/cpu/isa_body.inc"
