/* See report.h. */
#include "capacity/report.h"

#include <stdio.h>

#include "loadgen/report.h"

static const char *first_head;
static bool has_head;

void td_result_head(const char *first_column)
{
  first_head = first_column;
  has_head = false;
}

void td_result_row(const char *name, double rate, const td_replay_result *r)
{
  const td_measures *m = &r->m;
  const td_report_field fields[] = {
      {NULL, first_head, -22, 0, 0, name},
      {NULL, "req/s", 7, 3, rate, NULL},
      {NULL, "out tok/s", 9, 1, m->out_tokens_per_s, NULL},
      {NULL, "TTFT p50", 10, TD_REPORT_MS, m->ttft.p50, NULL},
      {NULL, "p99 ms", 8, TD_REPORT_MS, m->ttft.p99, NULL},
      {NULL, "TBT p50", 10, TD_REPORT_MS, m->tbt.p50, NULL},
      {NULL, "p99", 8, TD_REPORT_MS, m->tbt.p99, NULL},
      {NULL, "max ms", 8, TD_REPORT_MS, m->tbt.max, NULL},
      {NULL, "rows", 8, 1, r->mean_decode_rows, NULL},
      {NULL, "busy", 5, TD_REPORT_PERCENT, r->busy_share, NULL},
      {NULL, "KV", 7, TD_REPORT_PERCENT, r->kv_mean_share, NULL},
      {NULL, "most", 5, TD_REPORT_PERCENT, r->kv_most_share, NULL},
      {NULL, "hit", 5, TD_REPORT_PERCENT, r->prefix_hit_share, NULL},
      {NULL, "preempt", 9, 0, (double)r->n_preemptions, NULL},
      {NULL, "SLO", 8, 0, 0, r->held ? "held" : "missed"},
  };
  td_report_print(&has_head, fields, sizeof fields / sizeof *fields);
}

void td_result_notes(const td_replay_result *r)
{
  const td_measures *m = &r->m;
  if (m->by_result[TD_RESULT_HTTP_429] > 0)
    printf("  %zu of %zu requests found the queue full (429)\n", m->by_result[TD_RESULT_HTTP_429], m->n_sent);
  if (m->by_result[TD_RESULT_HTTP_4XX] > 0)
    printf("  %zu of %zu requests are longer than the context or all KV pages (400)\n",
           m->by_result[TD_RESULT_HTTP_4XX], m->n_sent);
  if (m->by_result[TD_RESULT_UNFINISHED] > 0)
    printf("  %zu of %zu requests were not done when the run was cut; %zu of them had no token yet and do "
           "not count in TTFT\n",
           m->by_result[TD_RESULT_UNFINISHED], m->n_sent, m->n_no_first_token);
}

/* Adds the figures that only the simulator knows. */
static void add_inside(cJSON *o, const td_replay_result *r)
{
  cJSON *v = cJSON_AddObjectToObject(o, "inside");
  const struct {
    const char *key;
    double value;
  } numbers[] = {{"busy_share", r->busy_share},
                 {"steps", (double)r->n_steps},
                 {"hybrid_steps", (double)r->n_hybrid_steps},
                 {"mean_step_ms", r->mean_step_ms},
                 {"mean_decode_rows", r->mean_decode_rows},
                 {"kv_owned_share_mean", r->kv_mean_share},
                 {"kv_owned_share_max", r->kv_most_share},
                 {"kv_cached_share_mean", r->kv_cached_share},
                 {"prefix_hit_share", r->prefix_hit_share},
                 {"preemptions", (double)r->n_preemptions},
                 {"evicted_pages", (double)r->n_evicted_pages},
                 {"seconds_simulated", r->end_s}};
  td_stats_add_summary(v, "queue_ms", &r->queue_ms);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    td_stats_add_number(v, numbers[i].key, numbers[i].value);
  cJSON_AddBoolToObject(v, "slo_held", r->held);
}

cJSON *td_result_json(const char *name, double rate, const td_replay_config *c, const td_replay_result *r)
{
  cJSON *o = cJSON_CreateObject();
  const td_measure_config measured = {.slo_ttft_ms = c->slo.ttft_p99_ms,
                                      .slo_tbt_ms = c->slo.tbt_p99_ms,
                                      .stall_ms = {td_replay_stall_ms[0], td_replay_stall_ms[1]}};
  cJSON_AddStringToObject(o, "name", name);
  td_stats_add_number(o, "rate", rate);
  td_stats_add_number(o, "streams", c->n_streams);
  td_measures_add_json(o, &r->m, &measured);
  add_inside(o, r);
  return o;
}
