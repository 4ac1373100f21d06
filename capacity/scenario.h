/* A scenario: the device, the daemon's configuration, the load and the SLO. It is made from the options, and
 * all modes share it. */
#ifndef TD_CAPACITY_SCENARIO_H
#define TD_CAPACITY_SCENARIO_H

#include "loadgen/cell.h"
#include "loadgen/tool.h"
#include "capacity/device.h"
#include "capacity/search.h"

/* Options of the command line; 0 and NULL: not given. */
typedef struct td_scenario_options {
  const char *calibration, *model, *policy;
  const char *correction, *rates, *streams, *in, *out, *trace, *preset, *json, *label;
  double tbt_slo_ms, step_tokens, running, context, page_tokens, queue_requests, queue_tokens;
  double slack_percent; /* < 0: the daemon's default */
  double kv_tokens, memory_gib, replicas, tensor_parallel, host_us;
  double requests, seconds, drain_s, seed;
  const char *pace, *step_times, *log_steps;
  double front_us;
  double slo_tbt_ms, slo_ttft_ms, slo_queue_ms;
  bool not_shared, not_ahead, no_search, no_second, compare;
} td_scenario_options;

typedef struct td_scenario {
  td_device device;
  td_replay_config replay;          /* replay.daemon.cost is device.cost */
  td_measured_steps measured_steps; /* replay.daemon.measured_steps, if there is one */
  td_source source;                 /* the load of searches, and of curves without a preset */
  double rates[TD_CELLS_MAX];       /* rates given by the options */
  size_t n_rates;
  td_cell closed[TD_CELLS_MAX]; /* loads of closed streams, instead of source; n_closed of them */
  size_t n_closed;
} td_scenario;

TD_MUST_CHECK td_status td_scenario_make(const td_scenario_options *o, td_scenario *out, td_error *err);
void td_scenario_deinit(td_scenario *s);
/* The scenario's replay on device `d`, with its step times and its KV. */
td_replay_config td_scenario_replay_on(const td_scenario *s, const td_device *d);

#endif
