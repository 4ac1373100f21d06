/* The CPU backend with a GPU's precision: weights are rounded to bf16 when they are imported, and
 * activations after every op, where a device that computes in f32 and stores bf16 rounds them. The
 * difference between its logits and the CPU's own is the cost of bf16 for this model on these tokens: a
 * measure for the error of a real device that does not come from that device. */
#ifndef TD_TESTS_GPU_ROUNDED_H
#define TD_TESTS_GPU_ROUNDED_H

#include "kernels/kernels.h"

/* Replaces the ops of a CPU backend; call once per process, before any import. K after its rotation and the
 * softmax's weights are not rounded, because only the backend has them. */
void rounded_arm(td_backend *cpu);
/* After the backend's destroy. */
void rounded_free(void);

#endif
