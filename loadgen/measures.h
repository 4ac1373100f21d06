/* What is measured of a run of requests, by a client (tandem-bench serve) or in a simulation (tandem-plan).
 * Both report the same figures under the same names, and both are drawn into one picture. */
#ifndef TD_LOADGEN_MEASURES_H
#define TD_LOADGEN_MEASURES_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "loadgen/stats.h"

typedef enum td_request_result {
  TD_RESULT_OPEN, /* not yet due, waiting or running */
  TD_RESULT_DONE,
  TD_RESULT_UNFINISHED, /* cut at the end of the run */
  TD_RESULT_NO_CONNECTION,
  TD_RESULT_CONNECTION_CUT,
  TD_RESULT_BROKEN_ANSWER, /* the answer is not HTTP, or its events are not JSON */
  TD_RESULT_HTTP_429,
  TD_RESULT_HTTP_503,
  TD_RESULT_HTTP_4XX,
  TD_RESULT_HTTP_5XX,
  TD_RESULT_HTTP_OTHER,
  TD_RESULT_ERROR_EVENT, /* an error event in the stream */
  TD_RESULT_NO_DONE,     /* the stream ended without [DONE] or usage */
  TD_RESULT_TIMEOUT,
  TD_RESULTS,
} td_request_result;
extern const char *const td_request_result_names[TD_RESULTS];

typedef struct td_measure_config {
  double window_s; /* open arrivals: throughput counts tokens that come before this; 0: until the last request
                      ends */
  double slo_ttft_ms, slo_tbt_ms;
  double stall_ms[2];
} td_measure_config;

typedef struct td_measures {
  size_t n_sent, n_done, by_result[TD_RESULTS];
  size_t n_no_first_token;        /* sent, but no token ever came */
  uint64_t tokens_in, tokens_out; /* of requests that are done; tokens_out is from usage if that is given */
  double seconds;                 /* the divisor of the throughputs */
  double requests_per_s, out_tokens_per_s, in_and_out_tokens_per_s;
  td_stats_summary ttft, tbt, tpot, e2e; /* ms; TTFT counts from the time when a request was due */
  size_t n_stalled[2];                   /* requests with a TBT above stall_ms */
  size_t n_good;                         /* done, and within the SLO */
} td_measures;

double td_measures_goodput_share(const td_measures *m);
void td_measures_add_json(cJSON *o, const td_measures *m, const td_measure_config *config);

#endif
