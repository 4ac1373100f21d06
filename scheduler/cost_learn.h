/* Learns step times from the steps that are served, to correct a table that was not measured here.
 *
 * A step's time is a sum of parts: the table (interpolated between knots that are a factor of 4 in tokens
 * apart), row costs, decode attention, decode attention beside prompts, and prompt attention. Each part has a
 * factor. A Kalman filter learns the factors' logarithms. Before the first step, the prior says that all
 * factors are off by much together, and by less from each other. So the first steps correct all parts, those
 * not seen yet included, and later steps correct each part by itself. A step that is far off moves the
 * factors little and reduces the covariance little. So one disturbed step does no harm, but many such steps
 * do count.
 *
 * A step costs some hundred operations. Pure, no allocation. The same steps teach the same. */
#ifndef TD_SCHEDULER_COST_LEARN_H
#define TD_SCHEDULER_COST_LEARN_H

#include "scheduler/cost_model.h"

enum { TD_COST_KNOTS = 8, TD_COST_PARTS = TD_COST_KNOTS + 4 };

typedef struct td_cost_learner {
  td_cost_model base;
  double log_factor[TD_COST_PARTS];
  double covariance[TD_COST_PARTS][TD_COST_PARTS]; /* of log_factor */
  double uncertainty;
  uint64_t n_steps;
} td_cost_learner;

/* How far the base may be off: 1 for the table of a device class that is far from this device; less for a
 * table that was learned here before, and for the class's own device (cost_guess.h). With less uncertainty,
 * parts that one load only shows together (tokens, and attention of chunks that all come late in long
 * prompts) are not told apart by chance. */
#define TD_COST_UNCERTAINTY_GUESSED 1.0
#define TD_COST_UNCERTAINTY_LEARNED 0.2

void td_cost_learner_init(td_cost_learner *l, const td_cost_model *base, double uncertainty);
/* Learns from one step and its measured time. */
void td_cost_learner_observe(td_cost_learner *l, const td_step_work *w, double us);
/* The base, corrected by all that was learned. */
td_cost_model td_cost_learner_model(const td_cost_learner *l);

#endif
