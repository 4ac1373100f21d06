/* Linears against float64, and the batch rule for them. */
#ifndef TD_TESTS_GPU_OPS_LINEAR_H
#define TD_TESTS_GPU_OPS_LINEAR_H

#include "ops_harness.h"

td_op linear_op(const td_weight *w, td_devptr x, td_devptr out, uint32_t n_in, uint32_t n_out);
/* n rows; the weight has n_parts parts with these numbers of outputs, and is kept for the next row counts. */
void test_linear(uint32_t n, uint32_t n_in, const uint32_t *outs, uint32_t n_parts, bool bias, bool f32);
void forget_products(void); /* those weights: before another backend */
void test_few_rows(bool small);
void test_linear_alone(uint32_t n_in, uint32_t n_out, bool f32, bool add); /* a row's bits, in any batch */

#endif
