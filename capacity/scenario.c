/* See scenario.h. Defaults are the daemon's on a GPU, so that a run without options predicts a daemon without
 * options. */
#include "capacity/scenario.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config/limits.h"
#include "scheduler/cost_text.h"

enum {
  GPU_RUNNING = 256,
  GPU_STEP_TOKENS = 4096,
  PAGE_TOKENS = 16,
  SEARCH_REQUESTS = 2000,
  STREAMS_MAX = 1 << 20
};
/* After ten seconds people turn to other tasks (Nielsen, Usability Engineering, 5.5). */
static const double SLO_TTFT_MS = 10e3;

static td_status read_policy(const char *name, td_policy *out, td_error *err)
{
  for (int i = 0; name && i < TD_POLICY_COUNT; i++)
    if (strcmp(td_policy_names[i], name) == 0) {
      *out = (td_policy)i;
      return TD_OK;
    }
  if (!name)
    return TD_OK;
  char known[160] = "";
  for (int i = 0; i < TD_POLICY_COUNT; i++)
    snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", td_policy_names[i]);
  return td_fail_param(err, TD_ERR_CONFIG, "policy", "no policy '%s': %s", name, known);
}

/* ---- the device ---- */

static td_status read_calibration(const char *path, td_device *d, td_error *err)
{
  char text[TD_COST_TEXT_BYTES], identity[TD_COST_IDENTITY_BYTES];
  FILE *f = fopen(path, "re");
  if (!f)
    return td_fail(err, TD_ERR_IO, "%s: %m", path);
  size_t n = fread(text, 1, sizeof text, f);
  bool failed = ferror(f);
  fclose(f);
  if (failed)
    return td_fail(err, TD_ERR_IO, "%s: %m", path);
  td_status st = td_cost_parse(text, n, &d->cost, identity, err);
  if (st != TD_OK)
    return td_error_prefix(err, "%s", path);
  snprintf(d->name, sizeof d->name, "%.90s", identity);
  d->is_cpu = strstr(identity, " threads; ") != NULL; /* engine/calibrate.c: a GPU's identity has its driver
                                                       * instead */
  return TD_OK;
}

static td_status make_device(const td_scenario_options *o, td_device *d, td_error *err)
{
  TD_TRY(td_device_h200(o->model ? o->model : "llama3-8b", d, err));
  if (o->memory_gib > 0)
    td_device_set_memory(d, o->memory_gib * 1073741824.0);
  if (o->calibration) {
    if (o->kv_tokens <= 0)
      return td_fail_param(
          err, TD_ERR_CONFIG, "kv-tokens",
          "--calibration tells nothing of memory: give --kv-tokens (tandemd logs it at start)");
    TD_TRY(read_calibration(o->calibration, d, err));
  }
  if (o->kv_tokens > 0) {
    d->n_kv_tokens = (uint64_t)o->kv_tokens;
    d->memory_bytes = 0;
  }
  if (o->tensor_parallel == 2 && d->is_cpu)
    return td_fail_param(err, TD_ERR_CONFIG, "tp", "--tp 2 is two GPUs as one; %s is of a CPU",
                         o->calibration);
  if (o->tensor_parallel == 2)
    *d = td_device_tp2(d);
  else if (o->tensor_parallel != 0 && o->tensor_parallel != 1)
    return td_fail_param(err, TD_ERR_CONFIG, "tp", "--tp is 1 or 2: nothing else has been measured");
  if (d->n_kv_tokens == 0)
    return td_fail_param(
        err, TD_ERR_CONFIG, "memory-gib",
        "%s: %.4g GiB have no room for KV beside %.4g of weights: --memory-gib, --tp or --kv-tokens", d->name,
        d->tensor_parallel * d->memory_bytes / 1073741824.0, d->weight_bytes / 1073741824.0);
  return TD_OK;
}

/* ---- the daemon ---- */

static double given(double v, double otherwise) { return v > 0 ? v : otherwise; }

static td_status read_correction(const char *text, double out[2], td_error *err)
{
  size_t n;
  TD_TRY(td_tool_read_list(text, out, 2, &n, err));
  if (n != 2 || !(out[0] > 0) || !(out[1] > 0))
    return td_fail_param(err, TD_ERR_CONFIG, "correction",
                         "--correction %s: two factors above 0, without and with prompts", text);
  return TD_OK;
}

static td_status make_daemon(const td_scenario_options *o, td_scenario *s, td_error *err)
{
  td_sched_config *c = &s->replay.daemon.sched;
  c->n_slots = (uint32_t)given(o->queue_requests, td_limit_default(TD_LIMIT_QUEUE_REQUESTS));
  c->max_running = (uint32_t)given(o->running, GPU_RUNNING);
  c->step_tokens = (uint32_t)given(o->step_tokens, GPU_STEP_TOKENS);
  c->page_tokens = (uint32_t)given(o->page_tokens, PAGE_TOKENS);
  c->max_context_tokens = (uint32_t)given(o->context, s->device.shape.context_tokens);
  c->tbt_slo_us = (uint64_t)(1e3 * given(o->tbt_slo_ms, 0));
  if (c->tbt_slo_us == 0)
    td_sched_set_default_slo(c, !s->device.is_cpu);
  c->slack_percent =
      (uint32_t)(o->slack_percent < 0 ? (double)td_limit_default(TD_LIMIT_SLACK_PERCENT) : o->slack_percent);
  c->priority_us = 1000 * (uint64_t)td_limit_default(TD_LIMIT_PRIORITY_MS);
  c->coalesces = !o->not_shared;
  c->reads_shared_once = !s->device.is_cpu;
  if (c->max_running > c->n_slots)
    c->max_running = c->n_slots;
  s->replay.daemon.queue_tokens = (uint64_t)given(o->queue_tokens, td_limit_default(TD_LIMIT_QUEUE_TOKENS));
  s->replay.daemon.ahead = !o->not_ahead;
  s->replay.n_replicas = (uint32_t)given(o->replicas, 1);
  s->replay.host_us = o->host_us;
  s->replay.front_us = o->front_us;
  s->replay.speed = 1;
  s->replay.slo = (td_slo){.tbt_p99_ms = given(o->slo_tbt_ms, INFINITY),
                           .ttft_p99_ms = given(o->slo_ttft_ms, SLO_TTFT_MS),
                           .queue_p50_ms = given(o->slo_queue_ms, 2000)};
  if (o->correction) { /* replaces the calibration's learned factors */
    TD_TRY(read_correction(o->correction, s->replay.daemon.correction, err));
    s->device.cost.learned[0] = s->device.cost.learned[1] = 0;
  }
  return read_policy(o->policy, &c->policy, err);
}

td_replay_config td_scenario_replay_on(const td_scenario *s, const td_device *d)
{
  td_replay_config c = s->replay;
  uint64_t n_pages = d->n_kv_tokens / c.daemon.sched.page_tokens;
  c.daemon.cost = &d->cost;
  c.daemon.sched.cost = &d->cost;
  c.daemon.sched.n_pages = n_pages > INT32_MAX ? INT32_MAX : (uint32_t)n_pages;
  return c;
}

/* ---- the load ---- */

/* A preset is either one load that runs at any rate, or a list of cells of closed streams. */
static td_status make_preset(const td_scenario_options *o, td_scenario *s, td_error *err)
{
  double one = 1;
  size_t n;
  TD_TRY(td_preset_cells(o->preset, &one, 1, given(o->requests, SEARCH_REQUESTS), (uint64_t)o->seed,
                         s->closed, &n, err));
  if (s->closed[0].streams > 0)
    s->n_closed = n;
  else
    s->source.load = s->closed[0].load;
  return TD_OK;
}

/* Without --requests each stream sends one request, like in tandem-bench serve. */
static td_status make_streams(const td_scenario_options *o, td_scenario *s, td_load_spec spec, td_error *err)
{
  double streams[TD_CELLS_MAX];
  size_t n;
  TD_TRY(td_tool_read_list(o->streams, streams, TD_CELLS_MAX, &n, err));
  for (size_t i = 0; i < n; i++) {
    if (!(streams[i] >= 1 && streams[i] <= STREAMS_MAX && streams[i] == floor(streams[i])))
      return td_fail_param(err, TD_ERR_CONFIG, "streams", "--streams '%s': whole numbers from 1 to %d",
                           o->streams, STREAMS_MAX);
    td_cell *c = &s->closed[s->n_closed++];
    *c = (td_cell){.streams = (uint32_t)streams[i]};
    snprintf(c->name, sizeof c->name, "%u streams", c->streams);
    spec.max_requests = (size_t)given(o->requests, streams[i]);
    td_load_make(&c->load, &spec);
  }
  return TD_OK;
}

static td_status make_lengths(const td_scenario_options *o, td_scenario *s, td_error *err)
{
  td_load_spec spec = {.seed = (uint64_t)o->seed,
                       .rate = 1,
                       .seconds = INFINITY,
                       .max_requests = (size_t)given(o->requests, SEARCH_REQUESTS)};
  TD_TRY(td_load_read_length(o->in, &spec.in, err));
  TD_TRY(td_load_read_length(o->out, &spec.out, err));
  if (o->streams)
    return make_streams(o, s, spec, err);
  td_load_make(&s->source.load, &spec);
  return TD_OK;
}

/* Closed streams have no rate, so options about a rate are refused. */
static td_status check_closed(const td_scenario_options *o, const td_scenario *s, td_error *err)
{
  if (s->n_closed > 0 && (o->compare || s->n_rates > 0))
    return td_fail_param(err, TD_ERR_CONFIG, o->compare ? "compare" : "rate",
                         "closed streams have no rate: --%s is of open arrivals",
                         o->compare ? "compare" : "rate");
  return TD_OK;
}

static td_status make_source(const td_scenario_options *o, td_scenario *s, td_error *err)
{
  s->source.rate = 1; /* the rate that the load was drawn for: the real one differs by chance, like in
                       * tandem-bench serve */
  if ((o->trace != NULL) + (o->preset != NULL) + (o->streams != NULL) > 1)
    return td_fail_param(err, TD_ERR_CONFIG, "trace",
                         "--trace, --preset and --streams are loads of their own: give one");
  if (o->preset)
    TD_TRY(make_preset(o, s, err));
  else if (!o->trace)
    TD_TRY(make_lengths(o, s, err));
  else
    TD_TRY(td_load_read_trace(&s->source.load, o->trace, 1, (size_t)o->requests, err));
  if (o->trace)
    s->source.rate = td_source_rate(&s->source.load);
  return check_closed(o, s, err);
}

static td_status read_rates(const td_scenario_options *o, td_scenario *s, td_error *err)
{
  if (o->rates)
    TD_TRY(td_tool_read_list(o->rates, s->rates, TD_CELLS_MAX, &s->n_rates, err));
  for (size_t i = 0; i < s->n_rates; i++)
    if (!(s->rates[i] > 0))
      return td_fail_param(err, TD_ERR_CONFIG, "rate", "'%s': a rate is above 0", o->rates);
  return TD_OK;
}

/* Counts are converted to unsigned integers, where a fraction below 1 would become 0, which has another
 * meaning. */
static td_status check_numbers(const td_scenario_options *o, td_error *err)
{
  const struct {
    const char *name;
    double v, max;
    bool count;
  } all[] = {{"step-tokens", o->step_tokens, 1 << 24, true},
             {"running", o->running, 65536, true},
             {"context", o->context, 1 << 24, true},
             {"page-tokens", o->page_tokens, 64, true},
             {"queue-requests", o->queue_requests, 1 << 24, true},
             {"queue-tokens", o->queue_tokens, 1e15, true},
             {"kv-tokens", o->kv_tokens, 1e11, true},
             {"memory-gib", o->memory_gib, 1e6, false},
             {"replicas", o->replicas, TD_REPLAY_REPLICAS_MAX, true},
             {"requests", o->requests, 1e8, true},
             {"seed", o->seed, 9e15, true},
             {"seconds", o->seconds, 1e9, false},
             {"drain", o->drain_s, 1e9, false},
             {"host-us", o->host_us, 1e9, false},
             {"front-us", o->front_us, 1e9, false},
             {"slack-percent", fmax(o->slack_percent, 0), 10000, false},
             {"tbt-slo-ms", o->tbt_slo_ms, 1e9, false},
             {"slo-tbt", o->slo_tbt_ms, 1e9, false},
             {"slo-ttft", o->slo_ttft_ms, 1e9, false},
             {"slo-queue", o->slo_queue_ms, 1e9, false}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (!(all[i].v >= 0 && all[i].v <= all[i].max))
      return td_fail_param(err, TD_ERR_CONFIG, all[i].name, "--%s is %g; it can be 0 (as the daemon) to %g",
                           all[i].name, all[i].v, all[i].max);
    if (all[i].count && all[i].v != floor(all[i].v))
      return td_fail_param(err, TD_ERR_CONFIG, all[i].name, "--%s is %g; it counts whole ones", all[i].name,
                           all[i].v);
  }
  return TD_OK;
}

/* Slowdowns and logs belong to one daemon and one run. */
static td_status make_measured_steps(const td_scenario_options *o, td_scenario *s, td_error *err)
{
  if (!o->pace && !o->step_times && !o->log_steps)
    return TD_OK;
  if (s->n_rates != 1 || !o->no_search || s->replay.n_replicas > 1)
    return td_fail_param(err, TD_ERR_CONFIG, "pace",
                         "--pace, --step-times and --log-steps are of one run of one daemon: give "
                         "--no-search, and not more than one --rate");
  if (o->pace)
    TD_TRY(td_measured_steps_read_slowdowns(o->pace, &s->measured_steps, err));
  if (o->step_times)
    TD_TRY(td_measured_steps_read_times(o->step_times, &s->measured_steps, err));
  if (o->pace || o->step_times)
    s->replay.daemon.measured_steps = &s->measured_steps;
  if (!o->log_steps)
    return TD_OK;
  s->replay.daemon.log = fopen(o->log_steps, "we");
  if (!s->replay.daemon.log)
    return td_fail(err, TD_ERR_IO, "%s: %m", o->log_steps);
  fputs(td_sim_daemon_log_head, s->replay.daemon.log);
  return TD_OK;
}

td_status td_scenario_make(const td_scenario_options *o, td_scenario *s, td_error *err)
{
  *s = (td_scenario){0};
  TD_TRY(check_numbers(o, err));
  TD_TRY(make_device(o, &s->device, err));
  TD_TRY(make_daemon(o, s, err));
  s->replay = td_scenario_replay_on(s, &s->device);
  TD_TRY(read_rates(o, s, err));
  TD_TRY(make_source(o, s, err));
  if (o->no_search && s->n_rates == 0) /* runs a trace at its recorded rate */
    s->rates[s->n_rates++] = s->source.rate;
  return make_measured_steps(o, s, err);
}

void td_scenario_deinit(td_scenario *s)
{
  td_load_deinit(&s->source.load);
  for (size_t i = 0; i < s->n_closed; i++)
    td_load_deinit(&s->closed[i].load);
  td_measured_steps_deinit(&s->measured_steps);
  if (s->replay.daemon.log)
    fclose(s->replay.daemon.log);
}
