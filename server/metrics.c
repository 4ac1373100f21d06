/* Metrics: see metrics.h. Names and bucket borders are those of vLLM's "v1" loggers, so that dashboards and
 * autoscalers made for vLLM work. Metrics that vLLM does not have begin with "tandem:". */
#include "server/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const double ttft_borders[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                                      1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
static const double inter_token_borders[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                             0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
static const double request_borders[] = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                         5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                         60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};

#define BORDERS(a) .borders = (a), .n_borders = sizeof(a) / sizeof(a)[0]

void td_metrics_init(td_metrics *m)
{
  memset(m, 0, sizeof *m);
  m->ttft = (td_histogram){BORDERS(ttft_borders)};
  m->inter_token = (td_histogram){BORDERS(inter_token_borders)};
  m->e2e = (td_histogram){BORDERS(request_borders)};
  m->queue = (td_histogram){BORDERS(request_borders)};
  m->queue_predicted = (td_histogram){BORDERS(request_borders)};
}

void td_histogram_observe(td_histogram *h, double value, uint64_t times)
{
  uint32_t i = 0;
  while (i < h->n_borders && value > h->borders[i])
    i++;
  h->counts[i] += times;
  h->sum += value * (double)times;
}

/* ---- text format ---- */

typedef struct page {
  td_buf *out;
  td_buf label;        /* model_name="..." */
  bool is_own, leaves; /* is_own: rendered for a key that is no operator's; leaves: skip this metric */
} page;

/* Who may see a metric if there are several keys. From tokens, pages and predictions a client could work out
 * how long the prompts and answers of other keys are. */
typedef enum audience { EVERY_KEY, OPERATORS } audience;

/* Label values escape backslash, quote and newline only (the text format's rule). */
static void append_label_value(td_buf *out, const char *s)
{
  for (; *s; s++)
    if (*s == '\n')
      td_buf_append_str(out, "\\n");
    else if (*s == '"' || *s == '\\')
      td_buf_printf(out, "\\%c", *s);
    else
      td_buf_append_char(out, *s);
}

static void head(page *p, audience seen_by, const char *name, const char *type, const char *help)
{
  p->leaves = p->is_own && seen_by == OPERATORS;
  if (!p->leaves)
    td_buf_printf(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void sample(page *p, const char *name, const char *more_labels, double v)
{
  if (!p->leaves)
    td_buf_printf(p->out, "%s{%s%s} %.17g\n", name, p->label.data, more_labels, v);
}

static void gauge(page *p, audience seen_by, const char *name, const char *help, double v)
{
  head(p, seen_by, name, "gauge", help);
  sample(p, name, "", v);
}

static void counter(page *p, audience seen_by, const char *name, const char *help, double v)
{
  head(p, seen_by, name, "counter", help);
  sample(p, name, "", v);
}

static void histogram(page *p, audience seen_by, const char *name, const char *help, const td_histogram *h)
{
  uint64_t sum = 0;
  head(p, seen_by, name, "histogram", help);
  if (p->leaves)
    return;
  for (uint32_t i = 0; i < h->n_borders; i++) {
    sum += h->counts[i];
    td_buf_printf(p->out, "%s_bucket{%s,le=\"%g%s\"} %" PRIu64 "\n", name, p->label.data, h->borders[i],
                  h->borders[i] == (double)(int)h->borders[i] ? ".0" : "", sum);
  }
  sum += h->counts[h->n_borders];
  td_buf_printf(p->out, "%s_bucket{%s,le=\"+Inf\"} %" PRIu64 "\n", name, p->label.data, sum);
  td_buf_printf(p->out, "%s_sum{%s} %.17g\n%s_count{%s} %" PRIu64 "\n", name, p->label.data, h->sum, name,
                p->label.data, sum);
}

static void vllm_metrics(page *p, const td_metrics *m, const td_metrics_view *v)
{
  static const char *const reasons[] = {",finished_reason=\"stop\"", ",finished_reason=\"length\"",
                                        ",finished_reason=\"abort\"", ",finished_reason=\"error\""};
  const td_engine_stats *s = v->stats;
  char label[64];
  gauge(p, EVERY_KEY, "vllm:num_requests_running", "Requests that run", s->n_running);
  gauge(p, EVERY_KEY, "vllm:num_requests_waiting", "Requests that wait to run", s->n_waiting);
  gauge(p, OPERATORS, "vllm:kv_cache_usage_perc", "Share of KV pages that requests hold; 1 is all",
        s->pages_total ? (double)s->pages_owned / s->pages_total : 0);
  counter(p, OPERATORS, "vllm:prompt_tokens_total", "Prompt tokens of requests that got a first token",
          (double)m->prompt_tokens);
  counter(p, OPERATORS, "vllm:generation_tokens_total", "Tokens generated", (double)m->generation_tokens);
  counter(p, OPERATORS, "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache",
          (double)s->prefix_query_tokens);
  counter(p, OPERATORS, "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache",
          (double)s->prefix_hit_tokens);
  counter(p, EVERY_KEY, "vllm:num_preemptions_total", "Running requests sent back to wait",
          (double)s->preemptions);
  head(p, EVERY_KEY, "vllm:request_success_total", "counter", "Requests ended, by reason");
  for (int i = 0; i < TD_FINISHED_KINDS; i++)
    sample(p, "vllm:request_success_total", reasons[i], (double)m->finished[i]);
  histogram(p, EVERY_KEY, "vllm:time_to_first_token_seconds", "Time from arrival to first token", &m->ttft);
  histogram(p, OPERATORS, "vllm:inter_token_latency_seconds", "Time between two tokens of a request",
            &m->inter_token);
  histogram(p, EVERY_KEY, "vllm:e2e_request_latency_seconds", "Time from arrival to last token", &m->e2e);
  histogram(p, EVERY_KEY, "vllm:request_queue_time_seconds", "Time from submission to first step", &m->queue);
  if (v->info) {
    snprintf(label, sizeof label, ",block_size=\"%u\",num_gpu_blocks=\"%u\"", v->info->page_tokens,
             v->info->n_pages);
    head(p, EVERY_KEY, "vllm:cache_config_info", "gauge",
         "KV cache: tokens per page (block_size), pages (num_gpu_blocks)");
    sample(p, "vllm:cache_config_info", label, 1);
  }
}

/* What was predicted: step times before the steps ran, and queue times when requests arrived. Compare with
 * the measured tandem:step_seconds_total and vllm:request_queue_time_seconds. */
static void prediction_metrics(page *p, const td_metrics *m, const td_metrics_view *v)
{
  const td_engine_stats *s = v->stats;
  char label[32];
  td_histogram errors = {
      .borders = td_step_error_borders, .n_borders = TD_STEP_ERROR_BORDERS, .sum = s->step_error_sum};
  memcpy(errors.counts, s->step_errors, sizeof s->step_errors);
  gauge(p, EVERY_KEY, "tandem:tbt_slo_seconds",
        "Longest time that a step with prompts may take; 0: no target", s->tbt_slo_us / 1e6);
  counter(p, OPERATORS, "tandem:step_predicted_seconds_total", "Predicted time of steps",
          s->predicted_us_sum / 1e6);
  gauge(p, OPERATORS, "tandem:last_step_predicted_seconds", "Predicted time of the last step",
        s->last_step_predicted_us / 1e6);
  histogram(p, OPERATORS, "tandem:step_prediction_error_ratio", "|predicted - measured| / measured of steps",
            &errors);
  gauge(p, OPERATORS, "tandem:step_prediction_error_median", "Median of this error over the last 1024 steps",
        v->step_error_median);
  gauge(p, OPERATORS, "tandem:step_prediction_error_p99",
        "99th percentile of this error over the last 1024 steps", v->step_error_p99);
  head(p, EVERY_KEY, "tandem:step_times_source", "gauge",
       "Where the step times come from; 1 for that source");
  for (int i = 0; i < TD_TIMES_SOURCES; i++) {
    snprintf(label, sizeof label, ",source=\"%s\"", td_times_source_names[i]);
    sample(p, "tandem:step_times_source", label, s->times_source == (td_times_source)i);
  }
  gauge(p, EVERY_KEY, "tandem:tuning_left", "Steps not captured yet and algorithms not measured yet (GPU)",
        s->tuning_left);
  head(p, EVERY_KEY, "tandem:step_prediction_correction", "gauge", "Learned factor on the step times");
  sample(p, "tandem:step_prediction_correction", ",prompts=\"without\"", s->cost_correction[0]);
  sample(p, "tandem:step_prediction_correction", ",prompts=\"with\"", s->cost_correction[1]);
  gauge(p, EVERY_KEY, "tandem:plan_ahead_lead_seconds",
        "How long before the end of a step the next one is planned (learned); 0: not before its end",
        s->ahead_lead_us / 1e6);
  gauge(p, OPERATORS, "tandem:queue_delay_predicted_seconds",
        "Predicted time until a request that arrives now starts", s->queue_delay_us / 1e6);
  histogram(p, OPERATORS, "tandem:request_queue_time_predicted_seconds",
            "Time from submission to first step, as predicted at submission", &m->queue_predicted);
}

static void fused_metrics(page *p, const td_engine_stats *s)
{
  char label[160];
  if (s->n_not_fused == 0)
    return;
  head(p, EVERY_KEY, "tandem:steps_not_fused", "gauge",
       "Captured decode steps whose ops run one by one, by reason");
  for (uint32_t i = 0; i < s->n_not_fused; i++) {
    snprintf(label, sizeof label, ",reason=\"%s\"", s->not_fused[i].reason);
    sample(p, "tandem:steps_not_fused", label, s->not_fused[i].n_steps);
  }
}

static void tandem_metrics(page *p, const td_metrics *m, const td_metrics_view *v)
{
  static const char *const classes[] = {
      NULL, NULL, ",code=\"2xx\"", ",code=\"3xx\"", ",code=\"4xx\"", ",code=\"5xx\""};
  static const char *const cuts[TD_CUT_KINDS] = {
      [TD_CUT_STALL] = ",reason=\"stall\"",
      [TD_CUT_HEAD_TIMEOUT] = ",reason=\"head_timeout\"",
      [TD_CUT_BODY_RATE] = ",reason=\"body_rate\"",
      [TD_CUT_BODY_TIMEOUT] = ",reason=\"body_timeout\"",
      [TD_CUT_ANSWER_MEMORY] = ",reason=\"answers_bytes\"",
      [TD_CUT_MEMORY] = ",reason=\"out_of_memory\"",
  };
  const td_engine_stats *s = v->stats;
  counter(p, EVERY_KEY, "tandem:steps_total", "Engine steps", (double)s->steps);
  counter(p, EVERY_KEY, "tandem:captured_steps_total", "Steps that launched a captured step (GPU)",
          (double)s->captured_steps);
  counter(p, EVERY_KEY, "tandem:step_seconds_total", "Time in steps", (double)s->step_us_sum / 1e6);
  counter(p, EVERY_KEY, "tandem:device_busy_seconds_total", "Time in which the device ran steps (GPU)",
          s->device_busy_us_sum / 1e6);
  counter(p, EVERY_KEY, "tandem:device_idle_seconds_total", "Time between steps while there was work (GPU)",
          s->device_idle_us_sum / 1e6);
  counter(p, EVERY_KEY, "tandem:plan_seconds_total", "Time planning steps", (double)s->plan_us_sum / 1e6);
  counter(p, OPERATORS, "tandem:decode_tokens_total", "Tokens that decode rows computed",
          (double)s->decode_tokens);
  counter(p, OPERATORS, "tandem:prefill_tokens_total", "Tokens that prefill chunks computed",
          (double)s->prefill_tokens);
  fused_metrics(p, v->stats);
  counter(p, OPERATORS, "tandem:late_rows_total", "Rows that waited for the mask of their next token",
          (double)s->late_rows);
  gauge(p, EVERY_KEY, "tandem:last_step_seconds", "Time of the last step", s->last_step_us / 1e6);
  gauge(p, EVERY_KEY, "tandem:last_step_decodes", "Decode rows of the last step", s->last_step_decodes);
  gauge(p, OPERATORS, "tandem:last_step_prefill_tokens", "Prefill tokens of the last step",
        s->last_step_prefill_tokens);
  head(p, OPERATORS, "tandem:pages", "gauge", "KV pages by state");
  sample(p, "tandem:pages", ",state=\"free\"", s->pages_free);
  sample(p, "tandem:pages", ",state=\"cached\"", s->pages_cached);
  sample(p, "tandem:pages", ",state=\"owned\"", s->pages_owned);
  gauge(p, EVERY_KEY, "tandem:requests_following", "Requests that wait for pages which another computes",
        s->n_following);
  counter(p, EVERY_KEY, "tandem:follows_total",
          "Times that a request waited for pages which another computed", (double)s->follows);
  counter(p, EVERY_KEY, "tandem:fair_preemptions_total",
          "Preemptions in favour of a key that held less, part of vllm:num_preemptions_total",
          (double)s->fair_preemptions);
  head(p, EVERY_KEY, "tandem:deadlines_missed_total", "counter", "Requests ended because of their timeouts");
  sample(p, "tandem:deadlines_missed_total", ",state=\"waiting\"", (double)m->timeouts[0]);
  sample(p, "tandem:deadlines_missed_total", ",state=\"running\"", (double)m->timeouts[1]);
  counter(p, OPERATORS, "tandem:evicted_pages_total", "Pages evicted from the prefix tree",
          (double)s->evicted_pages);
  gauge(p, EVERY_KEY, "tandem:requests_reading", "Requests being parsed and tokenised", v->queued_calls);
  gauge(p, EVERY_KEY, "tandem:connections", "Open connections", v->n_conns);
  gauge(p, OPERATORS, "tandem:answers_held_bytes", "Memory of answers that their clients have not read",
        (double)v->answer_memory_bytes);
  gauge(p, EVERY_KEY, "tandem:watchers", "Clients that watch the steps", v->n_watchers);
  counter(p, EVERY_KEY, "tandem:watch_missed_steps_total", "Steps not sent to a watcher that was too slow",
          (double)m->steps_missed);
  counter(p, EVERY_KEY, "tandem:connections_refused_total",
          "Connections refused because there were too many, in all or of one address",
          (double)m->connections_refused);
  head(p, EVERY_KEY, "tandem:connections_cut_total", "counter",
       "Connections closed because the client was too slow, or memory was short");
  for (int i = 0; i < TD_CUT_KINDS; i++)
    sample(p, "tandem:connections_cut_total", cuts[i], (double)m->connections_cut[i]);
  head(p, EVERY_KEY, "tandem:http_responses_total", "counter", "Answers by status class");
  for (int i = 2; i < TD_STATUS_CLASSES; i++)
    sample(p, "tandem:http_responses_total", classes[i], (double)m->responses[i]);
}

static void gpu_gauge(page *p, audience seen_by, const char *name, const char *help, double value)
{
  if (!isnan(value))
    gauge(p, seen_by, name, help, value);
}

static void gpu_metrics(page *p, const td_engine_gpu *g)
{
  if (!g)
    return;
  gpu_gauge(p, EVERY_KEY, "tandem:gpu_sm_clock_hertz", "Clock of the GPU's multiprocessors", g->sm_hz);
  gpu_gauge(p, EVERY_KEY, "tandem:gpu_memory_clock_hertz", "Clock of the GPU's memory", g->memory_hz);
  gpu_gauge(p, EVERY_KEY, "tandem:gpu_power_watts", "Power that the GPU takes", g->watts);
  gpu_gauge(p, EVERY_KEY, "tandem:gpu_power_limit_watts", "Power that the GPU may take", g->limit_watts);
  gpu_gauge(p, EVERY_KEY, "tandem:gpu_temperature_celsius", "Temperature of the GPU", g->celsius);
  if (!g->knows_slowed)
    return;
  head(p, EVERY_KEY, "tandem:gpu_slowed", "gauge", "Whether the GPU's clocks are held down, by reason");
  sample(p, "tandem:gpu_slowed", ",reason=\"power\"", g->slowed_by_power);
  sample(p, "tandem:gpu_slowed", ",reason=\"heat\"", g->slowed_by_heat);
  sample(p, "tandem:gpu_slowed", ",reason=\"hardware\"", g->slowed_by_hardware);
}

static void kv_event_metrics(page *p, const td_kv_events_count *k)
{
  if (!k)
    return;
  head(p, OPERATORS, "tandem:kv_events_pages_total", "counter",
       "Pages that subscribers were told of, by what became of them");
  sample(p, "tandem:kv_events_pages_total", ",event=\"stored\"", (double)k->stored);
  sample(p, "tandem:kv_events_pages_total", ",event=\"removed\"", (double)k->removed);
  counter(p, OPERATORS, "tandem:kv_events_messages_total", "Messages to subscribers of KV events",
          (double)k->messages);
}

static double key_value(const td_tenant *t, int metric)
{
  switch (metric) {
  case 0: return (double)t->usage.requests;
  case 1: return (double)t->usage.refused;
  case 2: return (double)t->usage.prompt_tokens;
  case 3: return (double)t->usage.cached_tokens;
  case 4: return (double)t->usage.generation_tokens;
  case 5: return t->n_waiting + t->n_to_generate;
  default: return t->n_choices - t->n_waiting;
  }
}

/* Metrics by key. Names of keys need no escaping (auth.h). */
static void key_metrics(page *p, const td_metrics_view *v)
{
  static const struct {
    const char *name, *type, *help;
  } metrics[] = {
      {"tandem:key_requests_total", "counter", "Requests of a key that its limits let in"},
      {"tandem:key_refused_total", "counter", "Requests of a key that its own limits refused"},
      {"tandem:key_prompt_tokens_total", "counter", "Prompt tokens of a key, cached ones too"},
      {"tandem:key_cached_tokens_total", "counter", "Prompt tokens of a key found in the prefix cache"},
      {"tandem:key_generation_tokens_total", "counter", "Tokens generated for a key"},
      {"tandem:key_requests_waiting", "gauge", "Requests of a key without a first token"},
      {"tandem:key_requests_running", "gauge", "Requests of a key that have one"},
  };
  char label[TD_KEY_NAME_BYTES + 16];
  for (int i = 0; v->accounts && i < (int)(sizeof metrics / sizeof *metrics); i++) {
    head(p, EVERY_KEY, metrics[i].name, metrics[i].type, metrics[i].help);
    for (uint32_t a = 1; a <= TD_KEY_ACCOUNTS; a++) {
      const td_key *key = v->accounts[a].key;
      if (!key || (v->only_account > 0 && v->only_account != a))
        continue;
      snprintf(label, sizeof label, ",key=\"%s\"", key->name);
      sample(p, metrics[i].name, label, key_value(&v->accounts[a], i));
    }
  }
}

void td_metrics_render(const td_metrics *m, const td_metrics_view *v, td_buf *out)
{
  page p = {.out = out, .is_own = v->only_account > 0};
  td_buf_init(&p.label, 0);
  td_buf_append_str(&p.label, "model_name=\"");
  append_label_value(&p.label, v->model_name);
  td_buf_append_char(&p.label, '"');
  if (p.label.failed) {
    out->failed = true;
  } else {
    vllm_metrics(&p, m, v);
    tandem_metrics(&p, m, v);
    prediction_metrics(&p, m, v);
    gpu_metrics(&p, v->gpu);
    kv_event_metrics(&p, v->kv_events);
    key_metrics(&p, v);
  }
  td_buf_deinit(&p.label);
}
