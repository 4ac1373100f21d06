/* Detects a step that does not end. Code that waits for steps registers here what it tests and which step
 * it is. If the time limit passes, the process prints that and ends with exit code 124, because a hung
 * device reports nothing itself. */
#ifndef TD_TESTS_GPU_OPS_WATCH_H
#define TD_TESTS_GPU_OPS_WATCH_H

#include "kernels/kernels.h"

enum { WATCH_STEP_S = 120 }; /* under racecheck a step takes several seconds */

/* From now on, SIGTERM reports where the process is, and so does a step that takes more than this many
 * seconds. */
void watch_steps(uint32_t seconds);

/* For the backend that is opened. */
void watch_policy(const char *name);

/* The current test. seed: state of the random numbers. */
void watch_case(uint64_t seed, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* td_backend_wait for a step of this plan; the backend's capture of a step of n_rows. */
td_status watch_wait(td_backend *be, const td_plan *plan, td_outcome *out, td_error *err);
td_status watch_capture(td_backend *be, td_compiled *compiled, uint32_t least_rows, uint32_t n_rows,
                        td_capture *out, td_error *err);

#endif
