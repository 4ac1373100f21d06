/* The inner loops in portable C: the reference of the vector versions, and what runs where there is none. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec_scalar.h"

#include "kernels/cpu/strip_scalar.inc"
#define TD_ISA_TABLE td_isa_scalar
#define TD_ISA_NAME "scalar"
#include "kernels/cpu/isa_body.inc"
