/* Named policies of decode attention, to compare with the planner's predicted times. They run on the kernels
 * that serve. */
#ifndef TD_BENCH_ATTENTION_POLICIES_H
#define TD_BENCH_ATTENTION_POLICIES_H

#include "kernels/attention/plan.h"

#define TD_ATTENTION_AUTO_NAME "auto" /* the daemon's own decisions: no policy */

/* Ends with NULL. */
extern const td_attention_policy *const td_attention_policies[];

/* Fixed cuts of a step's prefill; all other decisions are the daemon's. Ends with NULL. */
extern const td_attention_policy *const td_attention_cuts[];

/* False: no such name. *out NULL: TD_ATTENTION_AUTO_NAME, the daemon's own decisions. */
bool td_attention_policy_of(const char *name, const td_attention_policy **out);

#endif
