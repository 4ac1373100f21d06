/* What happened to each request of a run, and the figures that follow from it. Knows nothing of sockets. */
#ifndef TD_BENCH_RECORD_H
#define TD_BENCH_RECORD_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "bench/sse.h"
#include "bench/stats.h"

typedef enum td_record_outcome {
  TD_OUTCOME_OPEN, /* under way */
  TD_OUTCOME_DONE,
  TD_OUTCOME_UNFINISHED, /* cut when the run ended */
  TD_OUTCOME_NO_CONNECTION,
  TD_OUTCOME_CUT,
  TD_OUTCOME_BROKEN, /* not HTTP, or events that are not JSON */
  TD_OUTCOME_HTTP_429,
  TD_OUTCOME_HTTP_503,
  TD_OUTCOME_HTTP_4XX,
  TD_OUTCOME_HTTP_5XX,
  TD_OUTCOME_HTTP_OTHER,
  TD_OUTCOME_EVENT,  /* an error event in the stream */
  TD_OUTCOME_NO_END, /* the stream ended without [DONE] and without usage */
  TD_OUTCOME_TIMEOUT,
  TD_OUTCOMES,
} td_record_outcome;
extern const char *const td_outcome_names[TD_OUTCOMES];

typedef struct td_piece {
  double at_s; /* after the run's begin */
  uint32_t n_tokens;
} td_piece;

typedef struct td_record {
  uint32_t n_in, n_out; /* asked for */
  double due_s, sent_s, end_s;
  td_piece *pieces;
  size_t n_pieces, cap;
  double maybe_s; /* when a last event came that may carry a token: 0 = none did */
  bool has_usage, has_done, counted, warm;
  uint32_t usage_in, usage_out, usage_cached;
  int http_status;
  td_record_outcome outcome;
  char detail[160]; /* of an error */
} td_record;

/* Takes an event that came at at_s. false: the request has died of it (outcome and detail are set). */
bool td_record_take(td_record *r, const td_event *e, double at_s);
/* The answer is whole: settles whether the last event was a token, and the outcome if it is still open. */
void td_record_end(td_record *r, double at_s);
/* By the server's usage, else by the pieces. */
uint32_t td_record_tokens(const td_record *r);

typedef struct td_measure_config {
  double window_s; /* open arrivals: throughput counts what came until then; 0: until the last end */
  double slo_ttft_ms, slo_tbt_ms;
  double stall_ms[2];
} td_measure_config;

typedef struct td_measures {
  size_t n_sent, n_done, by_outcome[TD_OUTCOMES];
  size_t n_no_first; /* sent, and no token ever came */
  uint64_t tokens_in, tokens_asked, tokens_out,
      tokens_cached;           /* of done requests; tokens_out by usage where given */
  uint64_t n_events, n_merged; /* tokens that came in one event with another */
  size_t n_short;              /* done with fewer tokens than asked for */
  bool all_usage, all_counted;
  double begin_s, end_s, seconds; /* what throughput is divided by */
  double requests_per_s, out_tokens_per_s, in_and_out_tokens_per_s;
  td_stats_summary ttft, tbt, tpot, e2e; /* ms; ttft from the due moment */
  size_t n_stalled[2];                   /* requests with a gap longer than stall_ms */
  size_t n_good;
  double good_per_s, good_share;
  /* while all requests of the run decode: from the last first token to the first end */
  bool in_step;
  double in_step_s, in_step_tokens_per_s;
  td_stats_summary in_step_tbt;
} td_measures;

void td_measure(const td_record *records, size_t n, const td_measure_config *config, td_measures *out);
cJSON *td_measure_json(const td_measures *m, const td_measure_config *config);

#endif
