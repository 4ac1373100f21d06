/* The cuts section of test_ops: attention of chunks beside decodes, with every cut of the step's prefill. */
#ifndef TD_TESTS_GPU_OPS_CUTS_H
#define TD_TESTS_GPU_OPS_CUTS_H

#include "kernels/attention/plan.h"
#include "ops_batch.h"

enum { CUTS_BATCHES = 4 };

/* The backend is open, with that policy or none. tiny: for racecheck. kept: the batches' references, which
 * take nearly all of the time and are the same for each cut; NULL at first, the caller frees them. */
void test_cuts(const heads *h, const td_attention_policy *cut, bool tiny, double *kept[CUTS_BATCHES]);

#endif
