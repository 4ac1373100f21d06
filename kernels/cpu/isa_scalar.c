/* The inner loops in portable C: the reference for the vector versions, and the loops for machines without
 * one. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec_scalar.h"

#include "kernels/cpu/strip_scalar.inc"
#define TD_ISA_TABLE td_isa_scalar
#define TD_ISA_NAME "scalar"
#include "kernels/cpu/isa_body.inc"
