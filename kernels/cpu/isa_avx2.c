/* The inner loops for AVX2, FMA and F16C. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/strip_avx2.inc"
#define TD_ISA_TABLE td_isa_avx2
#define TD_ISA_NAME "avx2"
#include "kernels/cpu/isa_body.inc"
