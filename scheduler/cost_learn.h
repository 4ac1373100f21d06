/* Learning what steps take from the steps that are served: what corrects a table that nobody measured here.
 *
 * A step's time is a sum of parts: the table (between knots a factor of 4 in tokens apart), what each row
 * costs, decode attention, the same beside prompts, prompt attention. Each part has a factor; what is learned
 * are the factors' logarithms, by a Kalman filter. Before the first step, all factors are believed to be off
 * by much together and by less from each other. So the first steps correct everything, what was not seen with
 * it, and later ones each part by itself. A step that is far off moves little and convinces nobody, so one
 * that something disturbed does no harm; many of them do convince.
 *
 * A step costs some hundred operations. Pure, no allocation; the same steps teach the same. */
#ifndef TD_SCHEDULER_COST_LEARN_H
#define TD_SCHEDULER_COST_LEARN_H

#include "scheduler/cost_model.h"

enum { TD_COST_KNOTS = 8, TD_COST_PARTS = TD_COST_KNOTS + 4 };

typedef struct td_cost_learner {
  td_cost_model base;
  double log_factor[TD_COST_PARTS];
  double doubt[TD_COST_PARTS][TD_COST_PARTS]; /* covariance of log_factor */
  double unsure;
  uint64_t n_steps;
} td_cost_learner;

/* How far the base may be off: 1 for the table of a device class that is far from this device, less for one
 * that was learned here before, and for the class's own device (cost_guess.h). What one load shows together,
 * tokens and attention of chunks that all stand behind long prompts, is then not told apart by chance. */
#define TD_COST_UNSURE_GUESSED 1.0
#define TD_COST_UNSURE_LEARNED 0.2

void td_cost_learner_init(td_cost_learner *l, const td_cost_model *base, double unsure);
/* A step and what it took. */
void td_cost_learner_observe(td_cost_learner *l, const td_step_work *w, double us);
/* The base with all that was learned. */
td_cost_model td_cost_learner_model(const td_cost_learner *l);

#endif
