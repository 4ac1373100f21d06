/* The section of test_ops about everything except GEMMs and attention: norms, embedding, SwiGLU, dummy
 * weights; against float64. */
#ifndef TD_TESTS_GPU_OPS_POINTWISE_H
#define TD_TESTS_GPU_OPS_POINTWISE_H

#include <stdbool.h>
#include <stdint.h>

void test_rmsnorm(uint32_t n, uint32_t width);
void test_rmsnorm_forms(uint32_t n, uint32_t width, bool centred, bool add, bool in_place);
/* Dummy weights have the same bits everywhere. */
void test_dummy(uint32_t vocab, uint32_t width);
void test_embed(uint32_t n, uint32_t vocab, uint32_t width);
void test_swiglu(uint32_t n, uint32_t width);

#endif
