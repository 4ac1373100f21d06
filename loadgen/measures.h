/* What is measured of a run of requests, by a client (tandem-bench serve) or in a simulation (tandem-plan).
 * Both report the same figures under the same names, and both are drawn into one picture. */
#ifndef TD_LOADGEN_MEASURES_H
#define TD_LOADGEN_MEASURES_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "loadgen/stats.h"

typedef enum td_request_end {
  TD_END_OPEN, /* not yet due, waiting or running */
  TD_END_DONE,
  TD_END_UNFINISHED, /* cut at the end of the run */
  TD_END_NO_CONNECTION,
  TD_END_CUT,
  TD_END_BROKEN, /* the answer is not HTTP, or its events are not JSON */
  TD_END_HTTP_429,
  TD_END_HTTP_503,
  TD_END_HTTP_4XX,
  TD_END_HTTP_5XX,
  TD_END_HTTP_OTHER,
  TD_END_EVENT,   /* an error event in the stream */
  TD_END_NO_DONE, /* the stream ended without [DONE] or usage */
  TD_END_TIMEOUT,
  TD_ENDS,
} td_request_end;
extern const char *const td_request_end_names[TD_ENDS];

typedef struct td_measure_config {
  double window_s; /* open arrivals: throughput counts tokens that come before this; 0: until the last request
                      ends */
  double slo_ttft_ms, slo_tbt_ms;
  double stall_ms[2];
} td_measure_config;

typedef struct td_measures {
  size_t n_sent, n_done, by_end[TD_ENDS];
  size_t n_no_first;              /* sent, but no token ever came */
  uint64_t tokens_in, tokens_out; /* of requests that are done; tokens_out is from usage if that is given */
  double seconds;                 /* the divisor of the throughputs */
  double requests_per_s, out_tokens_per_s, in_and_out_tokens_per_s;
  td_stats_summary ttft, tbt, tpot, e2e; /* ms; TTFT counts from the time when a request was due */
  size_t n_stalled[2];                   /* requests with a TBT above stall_ms */
  size_t n_good;                         /* done, and within the SLO */
} td_measures;

double td_measures_good_share(const td_measures *m);
void td_measures_add(cJSON *o, const td_measures *m, const td_measure_config *config);

#endif
