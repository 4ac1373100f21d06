/* Runs one cell against a server and records what happens to each request. */
#ifndef TD_BENCH_SERVE_RUN_H
#define TD_BENCH_SERVE_RUN_H

#include "loadgen/cell.h"
#include "bench/record.h"
#include "bench/serve/http.h"

typedef struct td_run_config {
  const char *model;
  td_load_tokens tokens;
  bool ignore_eos, return_token_ids, no_usage;
  double temperature, timeout_s;
  const char *extra; /* more members of the body, as JSON without braces; or NULL */
} td_run_config;

typedef struct td_run_result {
  td_record *records; /* [n], in the order sent; owned */
  size_t n;
  uint32_t most_open;    /* most requests under way together */
  double wall_s, cpu_s;  /* of this program during the run */
  td_stats_list late_ms; /* open arrivals: how much later than due each request was sent */
  td_http_counts http;
} td_run_result;

void td_run_cell(uv_loop_t *loop, td_http_client *http, const td_run_config *config, const td_cell *cell,
                 td_run_result *out);
void td_run_result_deinit(td_run_result *r);

#endif
