/* See measures.h. */
#include "loadgen/measures.h"

#include <stdio.h>

const char *const td_request_result_names[TD_RESULTS] = {
    "open",     "done",     "unfinished", "no_connection", "connection_cut", "broken_answer", "http_429",
    "http_503", "http_4xx", "http_5xx",   "http_other",    "error_event",    "no_end",        "timeout"};

double td_measures_goodput_share(const td_measures *m)
{
  return m->n_sent > 0 ? (double)m->n_good / (double)m->n_sent : 0;
}

void td_measures_add_json(cJSON *o, const td_measures *m, const td_measure_config *config)
{
  char key[48];
  td_stats_add_number(o, "sent", (double)m->n_sent);
  td_stats_add_number(o, "done", (double)m->n_done);
  cJSON *errors = cJSON_AddObjectToObject(o, "errors");
  for (int i = TD_RESULT_UNFINISHED; i < TD_RESULTS; i++)
    if (m->by_result[i] > 0)
      td_stats_add_number(errors, td_request_result_names[i], (double)m->by_result[i]);
  td_stats_add_number(o, "without_first_token", (double)m->n_no_first_token);
  td_stats_add_number(o, "prompt_tokens", (double)m->tokens_in);
  td_stats_add_number(o, "output_tokens", (double)m->tokens_out);
  td_stats_add_number(o, "seconds", m->seconds);
  td_stats_add_number(o, "requests_per_s", m->requests_per_s);
  td_stats_add_number(o, "output_tokens_per_s", m->out_tokens_per_s);
  td_stats_add_number(o, "in_and_out_tokens_per_s", m->in_and_out_tokens_per_s);
  td_stats_add_summary(o, "ttft_ms", &m->ttft);
  td_stats_add_summary(o, "tbt_ms", &m->tbt);
  td_stats_add_summary(o, "tpot_ms", &m->tpot);
  td_stats_add_summary(o, "e2e_ms", &m->e2e);
  for (int k = 0; k < 2; k++) {
    snprintf(key, sizeof key, "requests_with_gap_over_%gms", config->stall_ms[k]);
    td_stats_add_number(o, key, (double)m->n_stalled[k]);
  }
  cJSON *good = cJSON_AddObjectToObject(o, "goodput");
  td_stats_add_number(good, "slo_ttft_ms", config->slo_ttft_ms);
  td_stats_add_number(good, "slo_tbt_p99_ms", config->slo_tbt_ms);
  td_stats_add_number(good, "requests", (double)m->n_good);
  td_stats_add_number(good, "requests_per_s", m->seconds > 0 ? (double)m->n_good / m->seconds : 0);
  td_stats_add_number(good, "share", td_measures_goodput_share(m));
}
