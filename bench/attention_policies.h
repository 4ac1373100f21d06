/* Policies of decode attention by name: what the planner's predicted time is compared with, run by the kernel
 * that serves. */
#ifndef TD_BENCH_ATTENTION_POLICIES_H
#define TD_BENCH_ATTENTION_POLICIES_H

#include "kernels/attention/plan.h"

#define TD_ATTENTION_AUTO_NAME "auto" /* as the daemon has it: no policy */

/* NULL after the last one. */
extern const td_attention_policy *const td_attention_policies[];

/* Fixed ways to cut a step's prefill, with the daemon's own decisions for all else; NULL after the last one.
 */
extern const td_attention_policy *const td_attention_cuts[];

/* False: no such name. *out NULL: the daemon's own way, TD_ATTENTION_AUTO_NAME. */
bool td_attention_policy_of(const char *name, const td_attention_policy **out);

#endif
