/* The sampling section of test_ops: the backend's tokens against the CPU's, and what they cost. */
#ifndef TD_TESTS_GPU_OPS_SAMPLE_H
#define TD_TESTS_GPU_OPS_SAMPLE_H

#include <stdbool.h>

/* Thousands of rows, every token equal to the CPU backend's. small: for compute-sanitizer. */
void test_sampled_tokens(const char *backend, bool small, int *n_passed, int *n_failed);
/* Prints microseconds per op; nothing for a backend that records no steps. */
void time_sampling(const char *backend);

#endif
