/* From measured steps to a cost model: the smallest relative error that non-negative coefficients and a table
 * can have, by absolute values, so that a step that something disturbed does not bend the
 * rest.
 *
 * Pure; allocates nothing. */
#ifndef TD_SCHEDULER_COST_FIT_H
#define TD_SCHEDULER_COST_FIT_H

#include "common/status.h"
#include "scheduler/cost_model.h"

enum { TD_COST_SAMPLES_MAX = 256 };

typedef struct td_cost_sample {
  td_step_work work;
  double us; /* measured */
} td_cost_sample;

/* The table's points are the samples' token counts; with more than TD_COST_POINTS_MAX of them, those of
 * fewest tokens and the largest. beside: what measured them runs attention of chunks and of decodes beside
 * each other; else hybrid_beside is 0. TD_ERR_CONFIG: no usable sample (each must have tokens and take
 * time), or more than TD_COST_SAMPLES_MAX. */
TD_MUST_CHECK td_status td_cost_fit(const td_cost_sample *samples, uint32_t n_samples, bool beside,
                                    td_cost_model *out, td_error *err);

/* Makes the table a stair from from_tokens on, as far as it has room: what lies between two points takes what
 * the upper one does. So it is where products have an algorithm for each range of rows. */
void td_cost_make_stairs(td_cost_model *m, uint32_t from_tokens);

/* |predicted - measured| / measured of a share of the samples: 0.5 the median, 1 the largest. */
double td_cost_fit_error(const td_cost_model *m, const td_cost_sample *samples, uint32_t n_samples,
                         double share);

#endif
