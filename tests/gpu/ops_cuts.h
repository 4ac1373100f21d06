/* The cuts section of test_ops: attention of chunks beside decodes, however the step's prefill is cut. */
#ifndef TD_TESTS_GPU_OPS_CUTS_H
#define TD_TESTS_GPU_OPS_CUTS_H

#include "kernels/attention/plan.h"
#include "ops_batch.h"

/* The backend is open, with that policy, or with none. tiny: for racecheck. */
void test_cuts(const heads *h, const td_attention_policy *cut, bool tiny);

#endif
