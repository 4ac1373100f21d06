/* GEMM and SwiGLU in one op, against float64, if the backend has it. */
#ifndef TD_TESTS_GPU_OPS_GLU_H
#define TD_TESTS_GPU_OPS_GLU_H

#include "ops_sample.h"

void test_glus(test_size size);
void test_no_glu(void); /* with batch_invariant all rows of a GEMM use one kernel */

#endif
