/* See replay.h. */
#include "capacity/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loadgen/tool.h"

static const double BEHIND_SHARE = 0.1;
const double td_replay_stall_ms[2] = {200, 500};

typedef struct replay {
  const td_load *load;
  const td_replay_config *config;
  td_sim_daemon *daemons;
  double *ends_us; /* [n_replicas] end of the running step; infinite: idle */
  td_sim_result *results;
  td_tally tally;
  size_t next, n_due; /* the next arrival; number of requests whose due_us is known */
  double cut_us, begin_us, end_us;
  size_t n_warm;                     /* requests that are not counted; begin_us is when the last of them
                                      * ended */
  uint64_t tokens_in_window, n_tbts; /* n_tbts: number of TBTs that the whole load will have */
  bool stopped;
} replay;

static double due_us(const replay *r, size_t i)
{
  return r->load->requests[i].due_s * 1e6 / r->config->speed;
}

static void begin_tally(td_tally *t, const td_slo *slo)
{
  td_tally_deinit(t);
  *t = (td_tally){.tbt_slo_us = slo->tbt_p99_ms * 1e3,
                  .ttft_target_us = slo->ttft_p99_ms * 1e3,
                  .queue_target_us = slo->queue_p50_ms * 1e3};
}

static td_status init(replay *r, td_error *err)
{
  const td_replay_config *c = r->config;
  r->daemons = td_tool_alloc(c->n_replicas, sizeof *r->daemons);
  r->ends_us = td_tool_alloc(c->n_replicas, sizeof *r->ends_us);
  r->results = td_tool_alloc(r->load->n, sizeof *r->results);
  begin_tally(&r->tally, &c->slo);
  for (size_t i = 0; i < r->load->n; i++) {
    r->results[i].due_us = c->n_streams > 0 ? 0 : due_us(r, i);
    r->n_tbts += r->load->requests[i].n_out - 1;
  }
  r->n_due = c->n_streams > 0 ? 0 : r->load->n;
  double last_us = r->load->n > 0 ? r->results[r->load->n - 1].due_us : 0;
  r->cut_us = c->drain_s > 0 ? (c->window_s > 0 ? c->window_s * 1e6 : last_us) + c->drain_s * 1e6 : INFINITY;
  for (uint32_t i = 0; i < c->n_replicas; i++) {
    r->ends_us[i] = INFINITY;
    TD_TRY(td_sim_daemon_init(&r->daemons[i], &c->daemon, r->load, r->results, &r->tally, err));
  }
  return TD_OK;
}

static void deinit(replay *r)
{
  for (uint32_t i = 0; r->daemons && i < r->config->n_replicas; i++)
    td_sim_daemon_deinit(&r->daemons[i]);
  td_tally_deinit(&r->tally);
  free(r->daemons);
  free(r->ends_us);
}

static void begin(replay *r, uint32_t i, double now_us)
{
  bool planned_ahead = r->daemons[i].has_next;
  if (td_sim_daemon_begin_step(&r->daemons[i], now_us))
    r->ends_us[i] = now_us + r->daemons[i].step_us + (planned_ahead ? 0 : r->config->host_us);
  else
    r->ends_us[i] = INFINITY;
}

static void arrive(replay *r, double now_us)
{
  uint32_t to = 0;
  for (uint32_t i = 1; i < r->config->n_replicas; i++)
    if (td_sim_daemon_n_requests(&r->daemons[i]) < td_sim_daemon_n_requests(&r->daemons[to]))
      to = i;
  td_sim_daemon_send(&r->daemons[to], (uint32_t)r->next++, now_us);
}

/* Requests that come at the same moment are planned together. */
static void arrive_all(replay *r)
{
  double now_us = r->results[r->next].due_us;
  while (r->next < r->n_due && r->results[r->next].due_us == now_us)
    arrive(r, now_us);
  for (uint32_t i = 0; i < r->config->n_replicas; i++)
    if (isinf(r->ends_us[i]) && r->daemons[i].n_inbox > 0)
      begin(r, i, now_us + r->config->front_us);
}

/* All warm requests have ended. Drops their figures. */
static void begin_counting(replay *r, double now_us)
{
  r->n_warm = r->tally.n_ended;
  r->begin_us = now_us;
  r->tokens_in_window = 0;
  begin_tally(&r->tally, &r->config->slo);
  for (uint32_t i = 0; i < r->config->n_replicas; i++)
    td_sim_daemon_reset_sums(&r->daemons[i]);
}

/* Closed streams: each stream without a request in progress sends its next one. */
static void send_next(replay *r, double now_us)
{
  while (r->n_due < r->load->n) {
    size_t n_open = r->n_due - r->n_warm - r->tally.n_ended;
    if (r->n_due == r->config->n_warm && r->n_warm < r->n_due) {
      if (n_open > 0)
        return;
      begin_counting(r, now_us);
    }
    if (n_open >= r->config->n_streams)
      return;
    r->results[r->n_due++].due_us = now_us;
  }
}

static void end_step(replay *r, uint32_t i)
{
  double now_us = r->ends_us[i];
  uint64_t before = r->tally.tokens_out;
  td_sim_daemon_end_step(&r->daemons[i], now_us);
  if (r->config->window_s <= 0 || now_us <= r->config->window_s * 1e6)
    r->tokens_in_window += r->tally.tokens_out - before;
  r->end_us = now_us;
  begin(r, i, now_us);
}

/* Whether there are more misses already than the whole load may have. */
static bool is_missed(const replay *r)
{
  const td_tally *t = &r->tally;
  double n = (double)r->load->n;
  return (double)t->n_over > 0.01 * (double)r->n_tbts + 1 || (double)t->n_late_first > 0.01 * n + 1 ||
         (double)t->n_late_start > 0.5 * n + 1 || t->by_result[TD_RESULT_HTTP_429] > 0;
}

static void run(replay *r)
{
  double now_us = 0;
  for (;;) {
    uint32_t first = 0;
    if (r->config->n_streams > 0)
      send_next(r, now_us);
    for (uint32_t i = 1; i < r->config->n_replicas; i++)
      if (r->ends_us[i] < r->ends_us[first])
        first = i;
    double arrival_us = r->next < r->n_due ? r->results[r->next].due_us + r->config->front_us : INFINITY;
    now_us = fmin(arrival_us, r->ends_us[first]);
    if (isinf(now_us))
      return;
    if (now_us > r->cut_us) {
      r->end_us = r->cut_us;
      return;
    }
    if (arrival_us <= r->ends_us[first])
      arrive_all(r);
    else
      end_step(r, first);
    if (r->config->stop_when_missed && is_missed(r)) {
      r->stopped = true;
      return;
    }
  }
}

/* ---- results ---- */

static td_stats_summary in_ms(const td_log_histogram *us)
{
  td_stats_summary s = td_log_histogram_summary(us);
  double *v[] = {&s.mean, &s.min, &s.p50, &s.p90, &s.p99, &s.max};
  for (size_t i = 0; i < sizeof v / sizeof *v; i++)
    *v[i] /= 1e3;
  return s;
}

/* Requests that had not begun when the last one came. Without this count, a load that is over before its
 * queue is long would seem to hold any rate. */
static size_t count_behind(const replay *r)
{
  size_t n = 0;
  double last_us = r->load->n > 0 ? r->results[r->load->n - 1].due_us : 0;
  if (r->config->n_streams > 0)
    return 0;
  for (size_t i = 0; i + 1 < r->load->n; i++)
    n += !r->results[i].has_run || r->results[i].first_run_us > last_us;
  return n;
}

static void judge_requests(const replay *r, td_replay_result *out)
{
  td_log_histogram tpot = {0}, e2e = {0};
  td_measures *m = &out->m;
  const td_slo *slo = &r->config->slo;
  double window_us = r->config->window_s > 0 ? r->config->window_s * 1e6 : INFINITY;
  size_t n_in_window = 0;
  uint64_t in_window = 0;
  for (size_t i = r->n_warm; i < r->load->n; i++) {
    const td_sim_result *l = &r->results[i];
    if (l->result == TD_RESULT_OPEN) {
      m->by_result[TD_RESULT_UNFINISHED]++;
      m->n_no_first_token += !l->has_run;
    }
    if (l->has_run && l->first_us <= window_us)
      in_window += r->load->requests[i].n_in;
    if (l->result != TD_RESULT_DONE)
      continue;
    n_in_window += l->end_us <= window_us;
    m->tokens_in += r->load->requests[i].n_in;
    td_log_histogram_add(&e2e, l->end_us - l->due_us, 1);
    if (l->n_tokens > 1)
      td_log_histogram_add(&tpot, (l->end_us - l->first_us) / (l->n_tokens - 1), 1);
    for (int k = 0; k < 2; k++)
      m->n_stalled[k] += l->longest_tbt_us > td_replay_stall_ms[k] * 1e3;
    m->n_good +=
        l->first_us - l->due_us <= slo->ttft_p99_ms * 1e3 && l->n_over <= 0.01 * (double)(l->n_tokens - 1);
  }
  m->tpot = in_ms(&tpot);
  m->e2e = in_ms(&e2e);
  td_log_histogram_deinit(&tpot);
  td_log_histogram_deinit(&e2e);
  if (m->seconds > 0) {
    m->requests_per_s = (double)n_in_window / m->seconds;
    m->out_tokens_per_s = (double)r->tokens_in_window / m->seconds;
    m->in_and_out_tokens_per_s = (double)(r->tokens_in_window + in_window) / m->seconds;
  }
}

static void judge_daemons(const replay *r, td_replay_result *out)
{
  double busy_us = 0, owned = 0, cached = 0;
  uint64_t rows = 0, queried = 0, hit = 0;
  uint32_t most = 0, n = r->config->n_replicas;
  for (uint32_t i = 0; i < n; i++) {
    const td_sim_daemon_sums *l = &r->daemons[i].sums;
    td_sched_stats s;
    td_sched_get_stats(r->daemons[i].sched, &s);
    busy_us += l->busy_us;
    owned += l->owned_pages_us;
    cached += l->cached_pages_us;
    rows += l->decode_rows;
    queried += s.prefix_query_tokens - l->before.prefix_query_tokens;
    hit += s.prefix_hit_tokens - l->before.prefix_hit_tokens;
    most = l->most_owned_pages > most ? l->most_owned_pages : most;
    out->n_steps += l->n_steps;
    out->n_hybrid_steps += l->n_hybrid_steps;
    out->n_preemptions += s.preemptions - l->before.preemptions;
    out->n_evicted_pages += s.evicted_pages - l->before.evicted_pages;
  }
  double pages = r->config->daemon.sched.n_pages, steps = out->n_steps > 0 ? (double)out->n_steps : 1;
  out->busy_share = r->end_us > r->begin_us ? busy_us / ((r->end_us - r->begin_us) * n) : 0;
  out->mean_decode_rows = (double)rows / steps;
  out->mean_step_ms = busy_us / 1e3 / steps;
  out->kv_mean_share = busy_us > 0 ? owned / busy_us / pages : 0;
  out->kv_cached_share = busy_us > 0 ? cached / busy_us / pages : 0;
  out->kv_most_share = most / pages;
  out->prefix_hit_share = queried > 0 ? (double)hit / (double)queried : 0;
}

static bool is_held(const replay *r, const td_replay_result *o)
{
  const td_slo *slo = &r->config->slo;
  return !r->stopped && o->m.n_done == o->m.n_sent &&
         (double)count_behind(r) <= BEHIND_SHARE * (double)o->m.n_sent && !(o->m.tbt.p99 > slo->tbt_p99_ms) &&
         !(o->m.ttft.p99 > slo->ttft_p99_ms) && !(o->queue_ms.p50 > slo->queue_p50_ms);
}

static void judge(const replay *r, td_replay_result *out)
{
  const td_tally *t = &r->tally;
  double seconds = (r->end_us - r->begin_us) / 1e6;
  *out = (td_replay_result){.m.n_sent = r->load->n - r->n_warm,
                            .m.n_done = t->by_result[TD_RESULT_DONE],
                            .m.ttft = in_ms(&t->ttft_us),
                            .m.tbt = in_ms(&t->tbt_us),
                            .m.seconds = r->config->window_s > 0 ? r->config->window_s : seconds,
                            .m.tokens_out = t->tokens_out,
                            .queue_ms = in_ms(&t->queue_us),
                            .end_s = r->end_us / 1e6,
                            .stopped = r->stopped};
  memcpy(out->m.by_result, t->by_result, sizeof out->m.by_result);
  judge_requests(r, out);
  judge_daemons(r, out);
  out->held = is_held(r, out);
}

td_status td_replay_with_results(const td_load *load, const td_replay_config *config, td_replay_result *out,
                                 td_sim_result **results, td_error *err)
{
  replay r = {.load = load, .config = config};
  if (config->n_replicas < 1 || config->n_replicas > TD_REPLAY_REPLICAS_MAX)
    return td_fail(err, TD_ERR_CONFIG, "%u replicas: 1 to %d", config->n_replicas, TD_REPLAY_REPLICAS_MAX);
  td_status st = init(&r, err);
  if (st == TD_OK) {
    run(&r);
    judge(&r, out);
  }
  deinit(&r);
  if (st == TD_OK && results)
    *results = r.results;
  else
    free(r.results);
  return st;
}

td_status td_replay(const td_load *load, const td_replay_config *config, td_replay_result *out, td_error *err)
{
  return td_replay_with_results(load, config, out, NULL, err);
}
