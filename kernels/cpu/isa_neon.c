/* The inner loops for NEON, which every 64-bit ARM has. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec_neon.h"

#include "kernels/cpu/strip_neon.inc"
#define TD_ISA_TABLE td_isa_neon
#define TD_ISA_NAME "neon"
#include "kernels/cpu/isa_body.inc"
