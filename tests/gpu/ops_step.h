/* The section of test_ops about whole steps: which tokens have logits, what is sampled and what is late, a
 * forward that runs ahead of its sampling, device times, vectors over chunks. */
#ifndef TD_TESTS_GPU_OPS_STEP_H
#define TD_TESTS_GPU_OPS_STEP_H

void test_steps(void);

#endif
