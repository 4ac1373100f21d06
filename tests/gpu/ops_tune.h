/* Tuning of linears: in one go, in pieces, and if it ends early. */
#ifndef TD_TESTS_GPU_OPS_TUNE_H
#define TD_TESTS_GPU_OPS_TUNE_H

#include <stdbool.h>

void test_tune(bool small);
void test_no_tuning(void); /* with batch_invariant one algorithm serves all rows */

#endif
