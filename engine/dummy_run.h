/* Dummy runs: before the first request, runs steps of dummy plans to measure their times. Rows have as much
 * context as wanted, in pages of the real KV store, whose prefix tree is still empty. A step's time does not
 * depend on the values in it. */
#ifndef TD_ENGINE_DUMMY_RUN_H
#define TD_ENGINE_DUMMY_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "step/dummy_plan.h"

/* What runs a step: a model's compiled programs and their backend. All borrowed. */
typedef struct td_stepper {
  td_backend *backend;
  const td_program *program; /* of `forward` */
  td_compiled *forward, *sampling;
  uint32_t vocab;
} td_stepper;

typedef struct td_dummy_run {
  td_stepper stepper;
  td_dummy_plan dummy;
} td_dummy_run;

/* max_kv_tokens: of one row. Uses the store's first n_pages pages. */
TD_MUST_CHECK td_status td_dummy_run_init(td_dummy_run *t, td_stepper stepper, uint32_t page_tokens,
                                          uint32_t n_pages, uint32_t max_kv_tokens, td_error *err);
void td_dummy_run_deinit(td_dummy_run *t);
/* Writes every cache line of those pages once, because memory that was never written reads faster. */
TD_MUST_CHECK td_status td_dummy_run_touch_pages(td_dummy_run *t, td_error *err);

void td_dummy_run_begin(td_dummy_run *t);
/* Adds rows; decodes (q_len 1) first. False: no row, token or page is left. */
bool td_dummy_run_add(td_dummy_run *t, uint32_t n_rows, uint32_t q_len, uint32_t kv_len);
/* Runs the plan as the daemon would. If two steps may be under way and all rows are decodes, runs three steps
 * back to back, and *us is the time from the first one's end to the second one's. Otherwise runs one step,
 * and *us is its time. */
TD_MUST_CHECK td_status td_dummy_run_measure(td_dummy_run *t, double *us, td_error *err);

#endif
