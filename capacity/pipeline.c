/* See pipeline.h. */
#include "capacity/pipeline.h"

#include <math.h>
#include <stdlib.h>

#include "bench/random.h"
#include "bench/tool.h"

typedef struct pipe_lane {
  td_lane lane;
  double ready_us; /* infinite: it waits for requests, and there are none */
} pipe_lane;

typedef struct pipeline {
  const td_load *load;
  const td_pipeline_config *config;
  pipe_lane *lanes;  /* [n_pipelines * n_lanes] */
  double *free_us;   /* [n_pipelines * n_stages] when a stage has done all that came so far */
  double *bubble_us; /* [load->n] of each request */
  td_life *lives;
  td_tally tally;
  size_t next; /* request that no lane has */
  double idle_us, stage_us, end_us;
  double *done_s;
  td_random random;
} pipeline;

static td_status init(pipeline *p, td_error *err)
{
  const td_pipeline_config *c = p->config;
  uint32_t n_lanes = c->n_pipelines * c->n_lanes;
  td_random_init(&p->random, 1);
  p->lanes = td_tool_alloc(n_lanes, sizeof *p->lanes);
  p->free_us = td_tool_alloc((size_t)c->n_pipelines * c->n_stages, sizeof *p->free_us);
  p->bubble_us = td_tool_alloc(p->load->n, sizeof *p->bubble_us);
  p->lives = td_tool_alloc(p->load->n, sizeof *p->lives);
  p->tally = (td_tally){.tbt_target_us = INFINITY, .queue_target_us = INFINITY, .ttft_target_us = INFINITY};
  for (uint32_t i = 0; i < n_lanes; i++) {
    td_lane_config lc = {.sched = c->sched, .cost = c->stage};
    lc.sched.micro_batch = i % c->n_lanes;
    TD_TRY(td_lane_init(&p->lanes[i].lane, &lc, p->load, p->lives, &p->tally, err));
  }
  return TD_OK;
}

static void deinit(pipeline *p)
{
  for (uint32_t i = 0; p->lanes && i < p->config->n_pipelines * p->config->n_lanes; i++)
    td_lane_deinit(&p->lanes[i].lane);
  td_tally_deinit(&p->tally);
  free(p->lanes);
  free(p->free_us);
  free(p->bubble_us);
  free(p->lives);
}

static bool prompt_is_under_way(const td_lane *l)
{
  const td_plan *plan = l->plan; /* the last one; a cut prompt is its last row */
  return plan->n_rows > plan->n_decode_rows && !plan->rows[plan->n_rows - 1].wants_logits;
}

/* Requests for the lane's free slots. */
static void feed(pipeline *p, td_lane *l)
{
  uint32_t most = !p->config->one_prompt ? UINT32_MAX : prompt_is_under_way(l) ? 0 : 1;
  while (p->next < p->load->n && l->n_inbox < l->n_free && l->n_inbox < most)
    td_lane_send(l, (uint32_t)p->next++);
}

/* Through all stages. Returns when it leaves the last; adds up what the stages waited for it. */
static double pass(pipeline *p, uint32_t pipe, const td_lane *l, double ready_us, double *waited_us)
{
  const td_pipeline_config *c = p->config;
  double at_us = ready_us, send_us = c->send_us + c->send_us_per_token * l->work.n_tokens;
  *waited_us = 0;
  for (uint32_t s = 0; s < c->n_stages; s++) {
    double *free_us = &p->free_us[(size_t)pipe * c->n_stages + s];
    if (s > 0)
      at_us += send_us;
    double start_us = fmax(at_us, *free_us);
    if (*free_us > 0) /* before the first micro-batch nothing is waited for */
      *waited_us += start_us - *free_us;
    at_us = *free_us = start_us + l->step_us;
  }
  p->idle_us += *waited_us;
  p->stage_us += l->step_us * c->n_stages;
  return at_us;
}

static void charge(pipeline *p, const td_lane *l, double waited_us)
{
  for (uint32_t i = 0; i < l->plan->n_rows; i++)
    p->bubble_us[l->slots[l->plan->rows[i].slot].request] += waited_us / p->config->n_stages;
}

static void note_done(pipeline *p, uint64_t n_before, double now_us)
{
  for (uint64_t i = n_before; p->done_s && i < p->tally.n_done; i++)
    p->done_s[i] = now_us / 1e6;
  if (p->tally.n_done > n_before && now_us > p->end_us)
    p->end_us = now_us;
}

static void pad(td_lane *l, const td_cost_model *stage)
{
  uint64_t longest = 0;
  for (uint32_t i = 0; i < l->plan->n_decode_rows; i++)
    if (l->plan->rows[i].kv_len > longest)
      longest = l->plan->rows[i].kv_len;
  l->work.decode_kv_tokens = longest * l->plan->n_decode_rows;
  l->step_us = td_cost_step_us(stage, &l->work);
}

/* Lanes end their step lazily, when they are the next to begin one: nothing else looks at them meanwhile. */
static void run(pipeline *p)
{
  uint32_t n_lanes = p->config->n_pipelines * p->config->n_lanes;
  for (;;) {
    uint32_t first = 0;
    for (uint32_t i = 1; i < n_lanes; i++)
      if (p->lanes[i].ready_us < p->lanes[first].ready_us)
        first = i;
    pipe_lane *l = &p->lanes[first];
    if (isinf(l->ready_us))
      return;
    if (l->lane.in_step) {
      uint64_t n_before = p->tally.n_done;
      td_lane_end(&l->lane, l->ready_us);
      note_done(p, n_before, l->ready_us);
    }
    feed(p, &l->lane);
    double waited_us;
    if (td_lane_begin(&l->lane, l->ready_us)) {
      if (p->config->padded)
        pad(&l->lane, p->config->stage);
      if (p->config->scatter > 0)
        l->lane.step_us *= fmax(1 + p->config->scatter * td_random_normal(&p->random), 0);
      l->ready_us = pass(p, first / p->config->n_lanes, &l->lane, l->ready_us, &waited_us);
      charge(p, &l->lane, waited_us);
    } else {
      l->ready_us = INFINITY;
    }
  }
}

static void judge(const pipeline *p, td_pipeline_result *out)
{
  td_stats_list bubbles = {0}, latencies = {0};
  *out = (td_pipeline_result){.seconds = p->end_us / 1e6, .n_done = p->tally.n_done};
  for (size_t i = 0; i < p->load->n; i++)
    if (p->lives[i].fate == TD_FATE_DONE) {
      td_stats_add(&bubbles, p->bubble_us[i] / 1e3);
      td_stats_add(&latencies, (p->lives[i].end_us - p->lives[i].first_run_us) / 1e3);
    }
  out->bubble_ms = td_stats_summarise(&bubbles);
  out->latency_ms = td_stats_summarise(&latencies);
  out->bubble_share = p->idle_us + p->stage_us > 0 ? p->idle_us / (p->idle_us + p->stage_us) : 0;
  for (uint32_t i = 0; i < p->config->n_pipelines * p->config->n_lanes; i++)
    out->n_steps += p->lanes[i].lane.n_steps;
  out->mean_stage_ms = out->n_steps > 0 ? p->stage_us / 1e3 / p->config->n_stages / (double)out->n_steps : 0;
  td_stats_deinit(&bubbles);
  td_stats_deinit(&latencies);
}

td_status td_pipeline_run(const td_load *load, const td_pipeline_config *config, td_pipeline_result *out,
                          double *done_s, td_error *err)
{
  pipeline p = {.load = load, .config = config, .done_s = done_s};
  if (config->n_pipelines == 0 || config->n_stages == 0 || config->n_lanes == 0)
    return td_fail(err, TD_ERR_CONFIG, "a pipeline of %u stages and %u lanes, %u times", config->n_stages,
                   config->n_lanes, config->n_pipelines);
  td_status st = init(&p, err);
  if (st == TD_OK) {
    run(&p);
    judge(&p, out);
  }
  deinit(&p);
  return st;
}
