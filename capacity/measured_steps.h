/* Measured step times of a daemon, for a simulated run. They scale or replace the cost model's times.
 *
 * A slowdown is the ratio of measured to calibrated step time over the time of a run. A shared machine
 * changes its speed while a load runs, and a comparison without slowdowns would compare the machine's speeds.
 * Given times go further: the k-th step takes as long as the daemon's k-th step. If the same requests come
 * before the same steps, every simulated step must then equal the daemon's. That shows that only time is
 * simulated. */
#ifndef TD_CAPACITY_MEASURED_STEPS_H
#define TD_CAPACITY_MEASURED_STEPS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"

typedef struct td_slowdown {
  double at_us, factor;
} td_slowdown;

typedef struct td_measured_steps {
  td_slowdown *slowdowns[2]; /* of steps [without, with] prompts, in order of time */
  size_t n_slowdowns[2];
  double *times_us; /* [n_times] time of step k */
  size_t n_times;
} td_measured_steps;

/* Reads lines "SECONDS KIND FACTOR": seconds from the start of the run; 0 without or 1 with prompts; the
 * factor on the calibrated time. TD_ERR_CONFIG names file, line and field. */
TD_MUST_CHECK td_status td_measured_steps_read_slowdowns(const char *path, td_measured_steps *out,
                                                         td_error *err);
/* Reads lines of microseconds: the time of the first step, of the second, ... */
TD_MUST_CHECK td_status td_measured_steps_read_times(const char *path, td_measured_steps *out, td_error *err);
void td_measured_steps_deinit(td_measured_steps *p);
/* The factor of the point of that kind that is nearest in time; 1 if there is none. */
double td_measured_steps_slowdown_at(const td_measured_steps *p, double at_us, bool with_prompts);

#endif
