/* The highest rate that keeps the SLO, latencies by rate, and the gain of a second device. */
#include "capacity/modes.h"

#include <math.h>
#include <stdio.h>
#include "capacity/report.h"

static const double TOLERANCE = 0.01;
/* Default rates of the curve, as shares of the highest rate that is held. */
static const double shares[] = {0.25, 0.5, 0.7, 0.85, 0.95, 1, 1.1, 1.25};
enum { N_SHARES = sizeof shares / sizeof *shares };

int td_capacity_fail(const td_error *err)
{
  fprintf(stderr, "tandem-plan: %s\n", err->message);
  return err->code == TD_ERR_CONFIG || err->code == TD_ERR_REQUEST ? 64 : 1;
}

static void add_run(cJSON *runs, const char *name, double rate, const td_replay_config *c,
                    const td_replay_result *r)
{
  if (runs)
    cJSON_AddItemToArray(runs, td_result_json(name, rate, c, r));
}

/* A preset is made again at each rate, like tandem-bench serve makes it: some presets draw their prompts
 * by the rate. */
static td_status run_preset(const td_scenario_options *o, const td_scenario *s, double rate,
                            td_replay_result *r, td_error *err)
{
  static td_cell cells[TD_CELLS_MAX];
  size_t n;
  td_replay_config c = s->replay;
  TD_TRY(td_preset_cells(o->preset, &rate, 1, o->seconds, (uint64_t)o->seed, cells, &n, err));
  c.window_s = cells[0].seconds;
  c.drain_s = o->drain_s > 0 ? o->drain_s : cells[0].drain_s;
  td_status st = td_replay(&cells[0].load, &c, r, err);
  td_load_deinit(&cells[0].load);
  return st;
}

static td_status run_rate(const td_scenario_options *o, const td_scenario *s, double rate,
                          td_replay_result *r, td_error *err)
{
  td_replay_config c = s->replay;
  if (o->preset && o->seconds > 0)
    return run_preset(o, s, rate, r, err);
  td_source_set_rate(&s->source, rate, &c);
  c.drain_s = o->drain_s;
  return td_replay(&s->source.load, &c, r, err);
}

/* Prints which part of the SLO no rate can keep, and the least value that can be kept. */
static void print_none(const char *name, const td_slo *slo, const td_replay_result *r)
{
  printf("%-22s no rate is held, however low:", name);
  if (r->m.by_result[TD_RESULT_HTTP_4XX] > 0)
    printf(" %zu of %zu requests are longer than the context or all KV pages (400);",
           r->m.by_result[TD_RESULT_HTTP_4XX], r->m.n_sent);
  if (r->m.tbt.p99 > slo->tbt_p99_ms)
    printf(" the least TBT p99 that can be kept is %.1f ms;", r->m.tbt.p99);
  if (r->m.ttft.p99 > slo->ttft_p99_ms)
    printf(" the least TTFT p99 is %.1f ms;", r->m.ttft.p99);
  if (r->m.by_result[TD_RESULT_HTTP_429] > 0)
    printf(" %zu requests found the queue full;", r->m.by_result[TD_RESULT_HTTP_429]);
  printf(" --rate R shows the rest\n");
}

static void print_highest(const char *name, const td_slo *slo, const td_search_result *r)
{
  if (r->all_at_once)
    printf("%-22s all %zu requests at once are held; a longer load has a highest rate\n", name,
           r->at.m.n_sent);
  else if (r->rate == 0)
    print_none(name, slo, &r->lowest);
  else
    td_result_row(name, r->rate, &r->at);
}

static td_status two_as_one(const td_scenario *s, double *rate, cJSON *runs, td_error *err)
{
  td_search_result r;
  td_device tp = td_device_tp2(&s->device);
  td_replay_config c = td_scenario_replay_on(s, &tp);
  TD_TRY(td_search(&s->source, &c, TOLERANCE, &r, err));
  print_highest("2 GPUs as one (TP2)", &c.slo, &r);
  add_run(runs, "highest, TP2", r.rate, &c, &r.at);
  *rate = r.rate;
  return TD_OK;
}

static td_status second_device(const td_scenario *s, double one, cJSON *runs, td_error *err)
{
  td_search_result r;
  td_replay_config c = s->replay;
  double tp_rate = 0;
  if (!s->device.is_cpu)
    TD_TRY(two_as_one(s, &tp_rate, runs, err));
  c.n_replicas *= 2;
  TD_TRY(td_search(&s->source, &c, TOLERANCE, &r, err));
  print_highest("2 replicas", &c.slo, &r);
  add_run(runs, "highest, 2 replicas", r.rate, &c, &r.at);
  if (one > 0 && tp_rate > 0 && r.rate > 0)
    printf("\nA second GPU brings %.2fx as tensor parallel, %.2fx as a replica.\n", tp_rate / one,
           r.rate / one);
  else if (one > 0 && s->device.is_cpu && r.rate > 0)
    printf("\nA second CPU brings %.2fx as a replica.\n", r.rate / one);
  return TD_OK;
}

void td_capacity_print_slo(const td_scenario *s)
{
  const td_slo *slo = &s->replay.slo;
  printf("SLO:");
  if (isfinite(slo->tbt_p99_ms))
    printf(" TBT p99 <= %g ms,", slo->tbt_p99_ms);
  if (isfinite(slo->ttft_p99_ms))
    printf(" TTFT p99 <= %g ms,", slo->ttft_p99_ms);
  printf(" half of the requests begin within %g ms, none refused\n\n", slo->queue_p50_ms);
}

static td_status highest(const td_scenario_options *o, const td_scenario *s, cJSON *runs, double *rate,
                         td_error *err)
{
  td_search_result r;
  TD_TRY(td_search(&s->source, &s->replay, TOLERANCE, &r, err));
  td_capacity_print_slo(s);
  td_result_head("highest rate held");
  print_highest(s->device.tensor_parallel == 2 ? "2 GPUs as one (TP2)"
                : s->replay.n_replicas > 1     ? "all replicas"
                : s->device.is_cpu             ? "1 CPU"
                                               : "1 GPU",
                &s->replay.slo, &r);
  add_run(runs, "highest", r.rate, &s->replay, &r.at);
  *rate = r.rate;
  if (!o->no_second && s->device.tensor_parallel == 1)
    TD_TRY(second_device(s, r.rate, runs, err));
  printf("\n");
  return TD_OK;
}

static td_status curve(const td_scenario_options *o, const td_scenario *s, double best, cJSON *runs,
                       td_error *err)
{
  size_t n = s->n_rates > 0 ? s->n_rates : best > 0 ? N_SHARES : 0;
  if (n == 0)
    return TD_OK;
  td_result_head("by rate");
  for (size_t i = 0; i < n; i++) {
    double rate = s->n_rates > 0 ? s->rates[i] : shares[i] * best;
    td_replay_result r;
    char name[64];
    TD_TRY(run_rate(o, s, rate, &r, err));
    snprintf(name, sizeof name, "%.3g/s", rate);
    td_result_row(name, rate, &r);
    td_result_notes(&r);
    add_run(runs, name, rate, &s->replay, &r);
  }
  return TD_OK;
}

int td_capacity_run_curve(const td_scenario_options *o, const td_scenario *s, cJSON *runs)
{
  td_error err;
  double best = 0;
  cJSON *points = runs ? cJSON_GetObjectItem(runs, "runs") : NULL,
        *tops = runs ? cJSON_GetObjectItem(runs, "highest") : NULL;
  if (!o->no_search && highest(o, s, tops, &best, &err) != TD_OK)
    return td_capacity_fail(&err);
  if (curve(o, s, best, points, &err) != TD_OK)
    return td_capacity_fail(&err);
  if (s->n_rates > 0 || best > 0)
    printf("\nrows: decoding in a step; busy: of the device's time; KV, most: share of the pages that "
           "requests hold, mean and "
           "highest;\nhit: share of prompt tokens that the prefix tree had\n");
  return 0;
}
