/* --trace FILE: what the host and the device did in each step, as a Chrome trace (the JSON array of the Trace
 * Event Format, for chrome://tracing and Perfetto). The file is bounded by trace_steps and can be read while
 * it grows. Engine thread. */
#ifndef TD_ENGINE_TRACE_H
#define TD_ENGINE_TRACE_H

#include <stdint.h>

#include "step/plan.h"
#include "common/status.h"

typedef struct td_trace td_trace;
typedef struct td_engine_step_times td_engine_step_times;

/* An existing file keeps its content until the first step, so that a start that fails, or serves nothing,
 * destroys no trace. */
TD_MUST_CHECK td_status td_trace_create(const char *path, uint64_t max_steps, td_trace **out, td_error *err);
void td_trace_destroy(td_trace *t);

/* Adds one step that has ended. published_us: when its tokens were published. busy_us: device time. */
void td_trace_step(td_trace *t, const td_plan *plan, const td_engine_step_times *times, uint64_t published_us,
                   double busy_us);

#endif
