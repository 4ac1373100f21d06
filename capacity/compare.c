/* Compares policies on one load: the highest rate that each holds within the SLO, then the TBT of each at
 * one rate. A static chunk is policy sarathi with that many step_tokens. vLLM's scheduler is the same with
 * 2048 or 8192. */
#include "capacity/modes.h"

#include <math.h>
#include <stdio.h>

#include "capacity/report.h"

static const double TOLERANCE = 0.01;
static const uint32_t static_chunks[] = {256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192};
static const uint32_t vllm_budgets[] = {2048, 8192};
enum {
  N_STATIC = sizeof static_chunks / sizeof *static_chunks,
  N_VLLM = sizeof vllm_budgets / sizeof *vllm_budgets
};
/* TBT is compared at this share of the highest rate of `tandem`. All policies that hold a rate have the
 * same throughput there. */
static const double COMPARED_SHARE = 0.9;

typedef struct row {
  char name[48];
  td_replay_config config;
  double rate;
  td_replay_result result;
} row;

static row make_row(const td_scenario *s, const char *name, td_policy policy, uint32_t step_tokens,
                    double slo_ms)
{
  row r = {.config = s->replay};
  snprintf(r.name, sizeof r.name, "%s", name);
  r.config.daemon.sched.policy = policy;
  r.config.daemon.sched.step_tokens = step_tokens;
  r.config.daemon.sched.tbt_slo_us = (uint64_t)(slo_ms * 1e3);
  return r;
}

/* The daemon's default, or with --tbt-slo-ms. */
static row default_row(const td_scenario *s)
{
  const td_sched_config *c = &s->replay.daemon.sched;
  return make_row(s, "tandem, default", TD_POLICY_TANDEM, c->step_tokens, (double)c->tbt_slo_us * 1e-3);
}

static row static_row(const td_scenario *s, uint32_t chunk)
{
  char name[48];
  snprintf(name, sizeof name, "static %u", chunk);
  row r = make_row(s, name, TD_POLICY_SARATHI, chunk, 0);
  if (r.config.daemon.sched.max_running > chunk)
    r.config.daemon.sched.max_running = chunk;
  return r;
}

/* Whole prompts: the step must take the longest request and all decodes. */
static row orca_row(const td_scenario *s)
{
  uint32_t longest = 0;
  for (size_t i = 0; i < s->source.load.n; i++) {
    uint32_t n = s->source.load.requests[i].n_in + s->source.load.requests[i].n_out;
    longest = n > longest ? n : longest;
  }
  row r = make_row(s, "orca", TD_POLICY_ORCA, longest + s->replay.daemon.sched.max_running, 0);
  r.config.daemon.sched.max_context_tokens = longest;
  return r;
}

static td_status find_highest(const td_scenario *s, row *r, cJSON *to, td_error *err)
{
  td_search_result found;
  TD_TRY(td_search(&s->source, &r->config, TOLERANCE, &found, err));
  r->rate = found.rate;
  r->result = found.at;
  if (found.rate > 0)
    td_result_row(r->name, found.rate, &found.at);
  else
    printf("%-22s %s\n", r->name,
           found.all_at_once ? "all at once are held: a longer load has a highest rate" : "no rate is held");
  if (to)
    cJSON_AddItemToArray(to, td_result_json(r->name, found.rate, &r->config, &found.at));
  return TD_OK;
}

static td_status run_at(const td_scenario *s, row *r, double rate, cJSON *to, td_error *err)
{
  r->config.slo.tbt_p99_ms = INFINITY;
  td_source_set_rate(&s->source, rate, &r->config);
  r->rate = rate;
  TD_TRY(td_replay(&s->source.load, &r->config, &r->result, err));
  td_result_row(r->name, rate, &r->result);
  td_result_notes(&r->result);
  if (to)
    cJSON_AddItemToArray(to, td_result_json(r->name, rate, &r->config, &r->result));
  return TD_OK;
}

/* The smallest SLO at which `tandem` still holds the rate: how short the TBT can be for this throughput. */
static td_status smallest_slo(const td_scenario *s, double rate, double high_ms, double *out_ms,
                              td_error *err)
{
  double low_ms = 0;
  while (high_ms - low_ms > 0.02 * high_ms) {
    double middle_ms = (low_ms + high_ms) / 2;
    row r = make_row(s, "", TD_POLICY_TANDEM, s->replay.daemon.sched.step_tokens, middle_ms);
    td_replay_result result = {0};
    r.config.slo.tbt_p99_ms = INFINITY;
    td_source_set_rate(&s->source, rate, &r.config);
    r.config.stop_when_missed = true;
    TD_TRY(td_replay(&s->source.load, &r.config, &result, err));
    if (result.held)
      high_ms = middle_ms;
    else
      low_ms = middle_ms;
  }
  *out_ms = high_ms;
  return TD_OK;
}

static td_status compare_rates(const td_scenario *s, double slo_ms, row *best_static, row *with_slo,
                               row *with_default_slo, cJSON *to, td_error *err)
{
  char name[48];
  uint32_t step_tokens = s->replay.daemon.sched.step_tokens;
  printf("Highest rate with TBT p99 <= %g ms, half of the requests begun within %g ms:\n\n", slo_ms,
         s->replay.slo.queue_p50_ms);
  td_result_head("policy");
  snprintf(name, sizeof name, "tandem, SLO %g ms", slo_ms);
  *with_slo = make_row(s, name, TD_POLICY_TANDEM, step_tokens, slo_ms);
  TD_TRY(find_highest(s, with_slo, to, err));
  *with_default_slo = default_row(s);
  TD_TRY(find_highest(s, with_default_slo, to, err));
  best_static->rate = 0;
  for (int i = 0; i < N_STATIC; i++) {
    row r = static_row(s, static_chunks[i]);
    TD_TRY(find_highest(s, &r, to, err));
    if (r.rate > best_static->rate)
      *best_static = r;
  }
  row others[] = {make_row(s, "prefill-first", TD_POLICY_PREFILL_FIRST, 8192, 0),
                  make_row(s, "decode-first", TD_POLICY_DECODE_FIRST, 8192, 0), orca_row(s)};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    TD_TRY(find_highest(s, &others[i], to, err));
  if (best_static->rate > 0)
    printf("\ntandem holds %.2fx the rate of the best static chunk (%s) with the SLO as told, %.2fx by "
           "default.\n",
           with_slo->rate / best_static->rate, best_static->name, with_default_slo->rate / best_static->rate);
  return TD_OK;
}

static td_status compare_tbts(const td_scenario *s, double rate, double slo_ms, cJSON *to, td_error *err)
{
  enum { SMALLEST, THIRD, DEFAULT, N_OURS };
  uint32_t step_tokens = s->replay.daemon.sched.step_tokens;
  double our_slo_ms;
  row rows[N_OURS + N_VLLM];
  char name[48];
  printf("\nTBT at one rate, %.3f requests/s:\n\n", rate);
  td_result_head("policy");
  for (int i = N_OURS; i < N_OURS + N_VLLM; i++) {
    rows[i] = static_row(s, vllm_budgets[i - N_OURS]);
    TD_TRY(run_at(s, &rows[i], rate, to, err));
  }
  TD_TRY(smallest_slo(s, rate, slo_ms, &our_slo_ms, err));
  snprintf(name, sizeof name, "tandem, %.1f ms", our_slo_ms);
  rows[SMALLEST] = make_row(s, name, TD_POLICY_TANDEM, step_tokens, our_slo_ms);
  our_slo_ms = rows[N_OURS].result.m.tbt.p99 / 3;
  snprintf(name, sizeof name, "tandem, %.1f ms", our_slo_ms);
  rows[THIRD] = make_row(s, name, TD_POLICY_TANDEM, step_tokens, our_slo_ms);
  rows[DEFAULT] = default_row(s);
  for (int i = 0; i < N_OURS; i++)
    TD_TRY(run_at(s, &rows[i], rate, to, err));
  printf("\n(The first SLO is the smallest that holds the rate, the second a third of the TBT p99 of %s.)\n",
         rows[N_OURS].name);
  for (int k = 0; k < N_OURS; k++)
    for (int i = N_OURS; i < N_OURS + N_VLLM; i++)
      printf("%s: TBT p99 %.1fx lower than %s, throughput %.2fx.\n", rows[k].name,
             rows[i].result.m.tbt.p99 / rows[k].result.m.tbt.p99, rows[i].name,
             rows[k].result.m.out_tokens_per_s / rows[i].result.m.out_tokens_per_s);
  return TD_OK;
}

int td_capacity_run_comparison(const td_scenario_options *o, const td_scenario *s, cJSON *json)
{
  td_error err;
  row best, with_slo, with_default_slo;
  double slo_ms = s->replay.slo.tbt_p99_ms;
  cJSON *tops = json ? cJSON_GetObjectItem(json, "highest") : NULL,
        *runs = json ? cJSON_GetObjectItem(json, "runs") : NULL;
  if (isinf(slo_ms)) {
    td_fail_param(&err, TD_ERR_CONFIG, "slo-tbt", "--compare needs --slo-tbt: without it no gap is too long");
    return td_capacity_fail(&err);
  }
  if (compare_rates(s, slo_ms, &best, &with_slo, &with_default_slo, tops, &err) != TD_OK)
    return td_capacity_fail(&err);
  double rate = s->n_rates > 0 ? s->rates[0] : COMPARED_SHARE * with_slo.rate;
  if (rate > 0 && compare_tbts(s, rate, slo_ms, runs, &err) != TD_OK)
    return td_capacity_fail(&err);
  return 0;
}
