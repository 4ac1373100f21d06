/* See report.h. */
#include "capacity/report.h"

#include <math.h>
#include <stdio.h>

static const char *ms(char out[16], double v)
{
  if (isnan(v))
    snprintf(out, 16, "-");
  else
    snprintf(out, 16, v < 99.95 ? "%.1f" : "%.0f", v);
  return out;
}

void td_report_head(const char *first_column)
{
  printf("%-22s %7s %9s | %17s | %22s | %5s %5s | %5s %5s %5s | %7s %8s\n", first_column, "req/s",
         "out tok/s", "TTFT p50/p99 ms", "TBT p50/p99/max ms", "rows", "busy", "KV", "most", "hit", "preempt",
         "SLO");
}

void td_report_row(const char *name, double rate, const td_replay_result *r)
{
  char a[16], b[16], c[16], ttft[40], tbt[60];
  snprintf(ttft, sizeof ttft, "%s / %s", ms(a, r->ttft_ms.p50), ms(b, r->ttft_ms.p99));
  snprintf(tbt, sizeof tbt, "%s / %s / %s", ms(a, r->tbt_ms.p50), ms(b, r->tbt_ms.p99), ms(c, r->tbt_ms.max));
  printf("%-22s %7.3f %9.1f | %17s | %22s | %5.1f %4.0f%% | %4.0f%% %4.0f%% %4.0f%% | %7llu %8s\n", name,
         rate, r->tokens_out_per_s, ttft, tbt, r->mean_decode_rows, r->busy_share * 100,
         r->kv_mean_share * 100, r->kv_most_share * 100, r->prefix_hit_share * 100,
         (unsigned long long)r->n_preemptions, r->held ? "held" : "missed");
}

void td_report_notes(const td_replay_result *r)
{
  if (r->n_queue_full > 0)
    printf("  %zu of %zu requests found the queue full (429)\n", r->n_queue_full, r->n_requests);
  if (r->n_too_large > 0)
    printf("  %zu of %zu requests are longer than the context or all KV pages (400)\n", r->n_too_large,
           r->n_requests);
  if (r->n_unfinished > 0)
    printf("  %zu of %zu requests were not done when the run was cut; %zu of them had no token yet and do "
           "not count in "
           "TTFT\n",
           r->n_unfinished, r->n_requests, r->n_no_first);
}

/* ---- JSON ---- */

static void add_inside(cJSON *o, const td_replay_result *r)
{
  cJSON *v = cJSON_AddObjectToObject(o, "inside");
  td_stats_add_summary(v, "queue_ms", &r->queue_ms);
  td_stats_add_number(v, "busy_share", r->busy_share);
  td_stats_add_number(v, "steps", (double)r->n_steps);
  td_stats_add_number(v, "hybrid_steps", (double)r->n_hybrid_steps);
  td_stats_add_number(v, "mean_step_ms", r->mean_step_ms);
  td_stats_add_number(v, "mean_decode_rows", r->mean_decode_rows);
  td_stats_add_number(v, "kv_owned_share_mean", r->kv_mean_share);
  td_stats_add_number(v, "kv_owned_share_max", r->kv_most_share);
  td_stats_add_number(v, "kv_cached_share_mean", r->kv_cached_share);
  td_stats_add_number(v, "prefix_hit_share", r->prefix_hit_share);
  td_stats_add_number(v, "preemptions", (double)r->n_preemptions);
  td_stats_add_number(v, "evicted_pages", (double)r->n_evicted_pages);
  td_stats_add_number(v, "seconds_simulated", r->end_s);
  cJSON_AddBoolToObject(v, "slo_held", r->held);
}

cJSON *td_report_json(const char *name, double rate, const td_replay_config *c, const td_replay_result *r)
{
  cJSON *o = cJSON_CreateObject(), *errors, *good;
  cJSON_AddStringToObject(o, "name", name);
  td_stats_add_number(o, "rate", rate);
  td_stats_add_number(o, "streams", 0);
  td_stats_add_number(o, "sent", (double)r->n_requests);
  td_stats_add_number(o, "done", (double)r->n_done);
  errors = cJSON_AddObjectToObject(o, "errors");
  td_stats_add_number(errors, "http_429", (double)r->n_queue_full);
  td_stats_add_number(errors, "http_4xx", (double)r->n_too_large);
  td_stats_add_number(errors, "unfinished", (double)r->n_unfinished);
  td_stats_add_number(o, "without_first_token", (double)r->n_no_first);
  td_stats_add_number(o, "prompt_tokens", (double)r->tokens_in);
  td_stats_add_number(o, "output_tokens", (double)r->tokens_out);
  td_stats_add_number(o, "seconds", r->seconds);
  td_stats_add_number(o, "requests_per_s", r->requests_per_s);
  td_stats_add_number(o, "output_tokens_per_s", r->tokens_out_per_s);
  td_stats_add_number(o, "in_and_out_tokens_per_s", r->tokens_in_and_out_per_s);
  td_stats_add_summary(o, "ttft_ms", &r->ttft_ms);
  td_stats_add_summary(o, "tbt_ms", &r->tbt_ms);
  td_stats_add_summary(o, "tpot_ms", &r->tpot_ms);
  td_stats_add_summary(o, "e2e_ms", &r->e2e_ms);
  td_stats_add_number(o, "requests_with_gap_over_200ms", (double)r->n_stalled[0]);
  td_stats_add_number(o, "requests_with_gap_over_500ms", (double)r->n_stalled[1]);
  good = cJSON_AddObjectToObject(o, "goodput");
  td_stats_add_number(good, "slo_ttft_ms", c->slo.ttft_p99_ms);
  td_stats_add_number(good, "slo_tbt_p99_ms", c->slo.tbt_p99_ms);
  td_stats_add_number(good, "requests", (double)r->n_good);
  td_stats_add_number(good, "share", r->n_requests > 0 ? (double)r->n_good / (double)r->n_requests : 0);
  add_inside(o, r);
  return o;
}
