/* Fits a cost model to measured steps. The table and the non-negative coefficients minimise the sum of
 * absolute relative errors, so that a disturbed step does not bend the rest.
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

/* The table's points are the samples' token counts. Of more than TD_COST_POINTS_MAX, the smallest and the
 * largest are used. beside: the measured backend runs attention of chunks and of decodes beside each
 * other; otherwise hybrid_beside is 0. TD_ERR_CONFIG: no samples, more than TD_COST_SAMPLES_MAX, or one
 * without tokens or time. */
TD_MUST_CHECK td_status td_cost_fit(const td_cost_sample *samples, uint32_t n_samples, bool beside,
                                    td_cost_model *out, td_error *err);

/* Makes the table a stair from from_tokens on, as far as it has room: a number of tokens between two
 * points takes as long as the upper point. This fits devices whose GEMMs have one algorithm for each range
 * of rows. */
void td_cost_make_stairs(td_cost_model *m, uint32_t from_tokens);

/* The quantile `share` of |predicted - measured| / measured over the samples: 0.5 the median, 1 the
 * largest. */
double td_cost_fit_error(const td_cost_model *m, const td_cost_sample *samples, uint32_t n_samples,
                         double share);

#endif
