/* What a daemon's own steps took, put into a simulated run in place of, or on top of, what the cost model
 * says.
 *
 * A pace is how much longer than calibrated steps took at each moment of a run: a machine that others use
 * changes its speed while a load runs, and then a comparison would be one of the machine's moods. Given times
 * go further: the k-th step takes what the daemon's k-th step took. If the same requests come before the same
 * steps, every step of the simulation must then be the daemon's, which shows that nothing but time is
 * simulated. */
#ifndef TD_CAPACITY_PACE_H
#define TD_CAPACITY_PACE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"

typedef struct td_pace_point {
  double at_us, factor;
} td_pace_point;

typedef struct td_pace {
  td_pace_point *points[2]; /* of steps [without, with] prompts, by time */
  size_t n_points[2];
  double *given_us; /* [n_given] */
  size_t n_given;
} td_pace;

/* Lines "SECONDS KIND FACTOR": from the run's begin on, 0 or 1 (with prompts), times what the calibration
 * says. TD_ERR_CONFIG names file, line and field. */
TD_MUST_CHECK td_status td_pace_read(const char *path, td_pace *out, td_error *err);
/* Lines of microseconds: of the first step, the second, ... */
TD_MUST_CHECK td_status td_pace_read_given(const char *path, td_pace *out, td_error *err);
void td_pace_deinit(td_pace *p);
/* Of the point of that kind that is nearest in time; 1 where there is none. */
double td_pace_at(const td_pace *p, double at_us, bool with_prompts);

#endif
