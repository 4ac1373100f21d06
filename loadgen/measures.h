/* What a run of requests comes to, be it measured by a client (tandem-bench serve) or simulated
 * (tandem-plan): so both are told in the same words and drawn into the same picture. */
#ifndef TD_LOADGEN_MEASURES_H
#define TD_LOADGEN_MEASURES_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "loadgen/stats.h"

typedef enum td_request_end {
  TD_END_OPEN, /* not come, waiting or under way */
  TD_END_DONE,
  TD_END_UNFINISHED, /* cut when the run ended */
  TD_END_NO_CONNECTION,
  TD_END_CUT,
  TD_END_BROKEN, /* not HTTP, or events that are not JSON */
  TD_END_HTTP_429,
  TD_END_HTTP_503,
  TD_END_HTTP_4XX,
  TD_END_HTTP_5XX,
  TD_END_HTTP_OTHER,
  TD_END_EVENT,   /* an error event in the stream */
  TD_END_NO_DONE, /* the stream ended without [DONE] and without usage */
  TD_END_TIMEOUT,
  TD_ENDS,
} td_request_end;
extern const char *const td_request_end_names[TD_ENDS];

typedef struct td_measure_config {
  double window_s; /* open arrivals: throughput counts what came until then; 0: until the last end */
  double slo_ttft_ms, slo_tbt_ms;
  double stall_ms[2];
} td_measure_config;

typedef struct td_measures {
  size_t n_sent, n_done, by_end[TD_ENDS];
  size_t n_no_first;              /* sent, and no token ever came */
  uint64_t tokens_in, tokens_out; /* of done requests; tokens_out by usage where given */
  double seconds;                 /* what throughput is divided by */
  double requests_per_s, out_tokens_per_s, in_and_out_tokens_per_s;
  td_stats_summary ttft, tbt, tpot, e2e; /* ms; ttft from the due moment */
  size_t n_stalled[2];                   /* requests with a gap longer than stall_ms */
  size_t n_good;                         /* done, within the SLO */
} td_measures;

double td_measures_good_share(const td_measures *m);
void td_measures_add(cJSON *o, const td_measures *m, const td_measure_config *config);

#endif
