/* What happened to each request of a run, and the figures computed from it. Independent of sockets. */
#ifndef TD_BENCH_RECORD_H
#define TD_BENCH_RECORD_H

#include "bench/sse.h"
#include "loadgen/measures.h"

typedef struct td_token_event {
  double at_s; /* seconds since the run began */
  uint32_t n_tokens;
} td_token_event;

typedef struct td_record {
  uint32_t n_in, n_out; /* tokens requested */
  double due_s, sent_s, end_s;
  td_token_event *token_events;
  size_t n_token_events, cap;
  double maybe_s; /* time of the last event that may carry a token (TD_EVENT_MAYBE); 0: none */
  bool has_usage, has_done, counted, warm;
  uint32_t usage_in, usage_out, usage_cached;
  int http_status;
  td_request_result result;
  char detail[160]; /* of an error */
} td_record;

/* Records an event that arrived at at_s. Returns false if the event ends the request with an error (result
 * and detail are set). */
bool td_record_add_event(td_record *r, const td_event *e, double at_s);
/* Call at the end of the answer. Decides whether the last event was a token, and sets the result if it is
 * still open. */
void td_record_end(td_record *r, double at_s);
/* By the server's usage, or if it gave none, by the events. */
uint32_t td_record_tokens(const td_record *r);

typedef struct td_record_measures {
  td_measures all;
  uint64_t tokens_asked, tokens_cached; /* of done requests */
  uint64_t n_events, n_merged;          /* n_merged: tokens that shared an event with another */
  size_t n_short;                       /* done with fewer tokens than requested */
  bool all_usage, all_counted;
  double begin_s, end_s;
  /* while all requests of the run decode: from the last first token to the first end */
  bool in_step;
  double in_step_s, in_step_tokens_per_s;
  td_stats_summary in_step_tbt;
} td_record_measures;

void td_record_measure(const td_record *records, size_t n, const td_measure_config *config,
                       td_record_measures *out);
void td_record_measures_add(cJSON *o, const td_record_measures *m, const td_measure_config *config);

#endif
