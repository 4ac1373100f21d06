/* All of /metrics: every sample, once, in its order, with a value that no other has. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/metrics.h"

typedef struct expected {
  const char *name; /* with the labels after model_name */
  double value;
} expected;

/* The page has exactly these samples, and each family states its type once. */
static void check(char *page, const expected *want, size_t n)
{
  size_t i = 0;
  char family[100] = "", type[20] = "", *rest;
  for (char *line = strtok_r(page, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    if (strncmp(line, "# HELP ", 7) == 0) {
      assert_int_equal(sscanf(line, "# HELP %99s %*s", family), 1);
      assert_true(strlen(line) > strlen(family) + 10);
      continue;
    }
    if (strncmp(line, "# TYPE ", 7) == 0) {
      char typed[100];
      assert_int_equal(sscanf(line, "# TYPE %99s %19s", typed, type), 2);
      assert_string_equal(typed, family);
      bool total = strlen(family) > 6 && strcmp(family + strlen(family) - 6, "_total") == 0;
      /* that is how Prometheus names a counter */
      assert_string_equal(type, i < n && strstr(want[i].name, "_bucket") ? "histogram"
                                : total                                  ? "counter"
                                                                         : "gauge");
      continue;
    }
    assert_int_equal(strncmp(line, family, strlen(family)), 0);
    char name[300], *brace = strchr(line, '{'), *space = strrchr(line, ' ');
    assert_true(brace && space);
    if (strncmp(brace, "{model_name=\"m\"", 15) != 0)
      fail_msg("%s: no model_name", line);
    snprintf(name, sizeof name, "%.*s%.*s", (int)(brace - line), line, (int)(space - brace - 15), brace + 15);
    if (i == n)
      fail_msg("%s is too much", line);
    if (strcmp(name, want[i].name) != 0 || strtod(space + 1, NULL) != want[i].value)
      fail_msg("%s, but %s %.17g is next", line, want[i].name, want[i].value);
    i++;
  }
  if (i < n)
    fail_msg("%s is missing", want[i].name);
}

/* A histogram with 1 in its first bucket, 2 in the second and so on. */
static void fill(td_histogram *h, double sum)
{
  for (uint32_t i = 0; i <= h->n_borders; i++)
    h->counts[i] = i + 1;
  h->sum = sum;
}

static size_t expect_histogram(expected *want, char (*names)[120], const char *name, const double *borders,
                               uint32_t n_borders, double sum)
{
  uint64_t count = 0;
  size_t n = 0;
  for (uint32_t i = 0; i <= n_borders; i++, n++) {
    count += i + 1;
    if (i == n_borders)
      snprintf(names[n], 120, "%s_bucket,le=\"+Inf\"}", name);
    else
      snprintf(names[n], 120, "%s_bucket,le=\"%g%s\"}", name, borders[i],
               borders[i] == floor(borders[i]) ? ".0" : "");
    want[n] = (expected){names[n], (double)count};
  }
  snprintf(names[n], 120, "%s_sum}", name);
  want[n] = (expected){names[n], sum};
  n++;
  snprintf(names[n], 120, "%s_count}", name);
  want[n] = (expected){names[n], (double)count};
  return n + 1;
}

enum { SAMPLES_MAX = 400 };

typedef struct list {
  expected all[SAMPLES_MAX];
  char names[SAMPLES_MAX][120];
  size_t n;
} list;

static void add(list *l, const expected *some, size_t n)
{
  memcpy(l->all + l->n, some, n * sizeof *some);
  l->n += n;
}

static void add_histogram(list *l, const char *name, const td_histogram *h)
{
  l->n += expect_histogram(l->all + l->n, l->names + l->n, name, h->borders, h->n_borders, h->sum);
}

#define ADD(l, ...)                                                                                          \
  do {                                                                                                       \
    static const expected some[] = {__VA_ARGS__};                                                            \
    add(l, some, sizeof some / sizeof *some);                                                                \
  } while (0)

static void test_the_whole_page(void **state)
{
  static list l;
  static td_tenant accounts[TD_KEY_ACCOUNTS + 1];
  static const td_key first = {.name = "one"}, last = {.name = "two"};
  td_metrics m;
  td_metrics_init(&m);
  fill(&m.ttft, 1.5);
  fill(&m.inter_token, 2.5);
  fill(&m.e2e, 3.5);
  fill(&m.queue, 4.5);
  fill(&m.queue_predicted, 5.5);
  m.prompt_tokens = 11, m.generation_tokens = 12, m.connections_refused = 13, m.steps_missed = 14;
  for (uint64_t i = 0; i < 4; i++)
    m.finished[i] = 20 + i;
  for (uint64_t i = 0; i < 6; i++)
    m.responses[i] = 30 + i;
  for (uint64_t i = 0; i < TD_CUT_KINDS; i++)
    m.connections_cut[i] = 40 + i;
  m.timeouts[0] = 50, m.timeouts[1] = 51;
  td_engine_stats s = {.n_waiting = 101,
                       .n_running = 102,
                       .pages_total = 400,
                       .pages_free = 103,
                       .pages_cached = 104,
                       .pages_owned = 100,
                       .steps = 106,
                       .decode_tokens = 107,
                       .prefill_tokens = 108,
                       .captured_steps = 109,
                       .late_rows = 110,
                       .prefix_query_tokens = 111,
                       .prefix_hit_tokens = 112,
                       .preemptions = 113,
                       .evicted_pages = 114,
                       .fair_preemptions = 115,
                       .n_following = 116,
                       .follows = 117,
                       .step_us_sum = 118000000,
                       .plan_us_sum = 119000000,
                       .device_busy_us_sum = 120e6,
                       .device_idle_us_sum = 121e6,
                       .last_step_us = 122000000,
                       .last_step_decodes = 123,
                       .last_step_prefill_tokens = 124,
                       .predicted_us_sum = 125e6,
                       .step_error_sum = 126,
                       .last_step_predicted_us = 127e6,
                       .tbt_slo_us = 128e6,
                       .times_source = TD_TIMES_KEPT,
                       .cost_correction = {129, 130},
                       .ahead_lead_us = 133e6,
                       .queue_delay_us = 131e6,
                       .tuning_left = 132,
                       .not_fused = {{"a", 141}, {"b", 142}},
                       .n_not_fused = 2};
  for (uint64_t i = 0; i <= TD_STEP_ERROR_BORDERS; i++)
    s.step_errors[i] = i + 1;
  td_engine_info info = {.page_tokens = 16, .n_pages = 400};
  td_engine_gpu gpu = {151, 152, 153, NAN, 155, true, false, true, false};
  td_kv_events_count kv = {.stored = 161, .removed = 162, .messages = 163};
  accounts[1] = (td_tenant){.key = &first,
                            .n_waiting = 3,
                            .n_to_generate = 4,
                            .n_choices = 11,
                            .usage = {.requests = 171,
                                      .refused = 172,
                                      .prompt_tokens = 173,
                                      .cached_tokens = 174,
                                      .generation_tokens = 175}};
  accounts[TD_KEY_ACCOUNTS] = (td_tenant){.key = &last, .usage = {.requests = 181}};
  td_metrics_view v = {.info = &info,
                       .stats = &s,
                       .step_error_median = 191,
                       .step_error_p99 = 192,
                       .model_name = "m",
                       .n_conns = 193,
                       .queued_calls = 194,
                       .n_watchers = 195,
                       .answer_memory_bytes = 196,
                       .accounts = accounts,
                       .gpu = &gpu,
                       .kv_events = &kv};
  ADD(&l, {"vllm:num_requests_running}", 102}, {"vllm:num_requests_waiting}", 101},
      {"vllm:kv_cache_usage_perc}", 0.25}, {"vllm:prompt_tokens_total}", 11},
      {"vllm:generation_tokens_total}", 12}, {"vllm:prefix_cache_queries_total}", 111},
      {"vllm:prefix_cache_hits_total}", 112}, {"vllm:num_preemptions_total}", 113},
      {"vllm:request_success_total,finished_reason=\"stop\"}", 20},
      {"vllm:request_success_total,finished_reason=\"length\"}", 21},
      {"vllm:request_success_total,finished_reason=\"abort\"}", 22},
      {"vllm:request_success_total,finished_reason=\"error\"}", 23});
  add_histogram(&l, "vllm:time_to_first_token_seconds", &m.ttft);
  add_histogram(&l, "vllm:inter_token_latency_seconds", &m.inter_token);
  add_histogram(&l, "vllm:e2e_request_latency_seconds", &m.e2e);
  add_histogram(&l, "vllm:request_queue_time_seconds", &m.queue);
  ADD(&l, {"vllm:cache_config_info,block_size=\"16\",num_gpu_blocks=\"400\"}", 1},
      {"tandem:steps_total}", 106}, {"tandem:captured_steps_total}", 109},
      {"tandem:step_seconds_total}", 118}, {"tandem:device_busy_seconds_total}", 120},
      {"tandem:device_idle_seconds_total}", 121}, {"tandem:plan_seconds_total}", 119},
      {"tandem:decode_tokens_total}", 107}, {"tandem:prefill_tokens_total}", 108},
      {"tandem:steps_not_fused,reason=\"a\"}", 141}, {"tandem:steps_not_fused,reason=\"b\"}", 142},
      {"tandem:late_rows_total}", 110}, {"tandem:last_step_seconds}", 122},
      {"tandem:last_step_decodes}", 123}, {"tandem:last_step_prefill_tokens}", 124},
      {"tandem:pages,state=\"free\"}", 103}, {"tandem:pages,state=\"cached\"}", 104},
      {"tandem:pages,state=\"owned\"}", 100}, {"tandem:requests_following}", 116},
      {"tandem:follows_total}", 117}, {"tandem:fair_preemptions_total}", 115},
      {"tandem:deadlines_missed_total,state=\"waiting\"}", 50},
      {"tandem:deadlines_missed_total,state=\"running\"}", 51}, {"tandem:evicted_pages_total}", 114},
      {"tandem:requests_reading}", 194}, {"tandem:connections}", 193}, {"tandem:answers_held_bytes}", 196},
      {"tandem:watchers}", 195}, {"tandem:watch_missed_steps_total}", 14},
      {"tandem:connections_refused_total}", 13}, {"tandem:connections_cut_total,reason=\"stall\"}", 40},
      {"tandem:connections_cut_total,reason=\"head_timeout\"}", 41},
      {"tandem:connections_cut_total,reason=\"body_rate\"}", 42},
      {"tandem:connections_cut_total,reason=\"body_timeout\"}", 43},
      {"tandem:connections_cut_total,reason=\"answers_bytes\"}", 44},
      {"tandem:connections_cut_total,reason=\"out_of_memory\"}", 45},
      {"tandem:http_responses_total,code=\"2xx\"}", 32}, {"tandem:http_responses_total,code=\"3xx\"}", 33},
      {"tandem:http_responses_total,code=\"4xx\"}", 34}, {"tandem:http_responses_total,code=\"5xx\"}", 35},
      {"tandem:tbt_slo_seconds}", 128}, {"tandem:step_predicted_seconds_total}", 125},
      {"tandem:last_step_predicted_seconds}", 127});
  l.n += expect_histogram(l.all + l.n, l.names + l.n, "tandem:step_prediction_error_ratio",
                          td_step_error_borders, TD_STEP_ERROR_BORDERS, 126);
  ADD(&l, {"tandem:step_prediction_error_median}", 191}, {"tandem:step_prediction_error_p99}", 192});
  for (int i = 0; i < TD_TIMES_SOURCES; i++) {
    snprintf(l.names[l.n], 120, "tandem:step_times_source,source=\"%s\"}", td_times_source_names[i]);
    l.all[l.n] = (expected){l.names[l.n], i == TD_TIMES_KEPT};
    l.n++;
  }
  ADD(&l, {"tandem:tuning_left}", 132}, {"tandem:step_prediction_correction,prompts=\"without\"}", 129},
      {"tandem:step_prediction_correction,prompts=\"with\"}", 130}, {"tandem:plan_ahead_lead_seconds}", 133},
      {"tandem:queue_delay_predicted_seconds}", 131});
  add_histogram(&l, "tandem:request_queue_time_predicted_seconds", &m.queue_predicted);
  ADD(&l, {"tandem:gpu_sm_clock_hertz}", 151}, {"tandem:gpu_memory_clock_hertz}", 152},
      {"tandem:gpu_power_watts}", 153}, {"tandem:gpu_temperature_celsius}", 155}, /* no limit is known */
      {"tandem:gpu_slowed,reason=\"power\"}", 0}, {"tandem:gpu_slowed,reason=\"heat\"}", 1},
      {"tandem:gpu_slowed,reason=\"hardware\"}", 0}, {"tandem:kv_events_pages_total,event=\"stored\"}", 161},
      {"tandem:kv_events_pages_total,event=\"removed\"}", 162}, {"tandem:kv_events_messages_total}", 163},
      {"tandem:key_requests_total,key=\"one\"}", 171}, {"tandem:key_requests_total,key=\"two\"}", 181},
      {"tandem:key_refused_total,key=\"one\"}", 172}, {"tandem:key_refused_total,key=\"two\"}", 0},
      {"tandem:key_prompt_tokens_total,key=\"one\"}", 173},
      {"tandem:key_prompt_tokens_total,key=\"two\"}", 0},
      {"tandem:key_cached_tokens_total,key=\"one\"}", 174},
      {"tandem:key_cached_tokens_total,key=\"two\"}", 0},
      {"tandem:key_generation_tokens_total,key=\"one\"}", 175},
      {"tandem:key_generation_tokens_total,key=\"two\"}", 0}, {"tandem:key_requests_waiting,key=\"one\"}", 7},
      {"tandem:key_requests_waiting,key=\"two\"}", 0}, {"tandem:key_requests_running,key=\"one\"}", 8},
      {"tandem:key_requests_running,key=\"two\"}", 0});
  td_buf out;
  td_buf_init(&out, 0);
  td_metrics_render(&m, &v, &out);
  assert_false(out.failed);
  check(out.data, l.all, l.n);
  td_buf_deinit(&out);
}

/* What a key that shares the device sees: requests and times, but no counts of other keys' tokens or pages.
 */
static void test_what_others_use(void **state)
{
  static td_tenant accounts[TD_KEY_ACCOUNTS + 1];
  static const td_key one = {.name = "one"};
  static const char *const lengths[] = {"token",        "page",  "predict",         "cache_usage",
                                        "prefix_cache", "bytes", "kv_events_pages", "kv_events_messages",
                                        "late_rows"};
  static const char *const stay[] = {
      "\ntandem:step_times_source",       "\ntandem:step_prediction_correction",
      "\ntandem:plan_ahead_lead_seconds", "\nvllm:time_to_first_token_seconds_count",
      "\nvllm:num_requests_running",      "\ntandem:key_prompt_tokens_total"};
  td_metrics m;
  td_engine_stats s = {0};
  td_kv_events_count kv_events = {1, 2, 3};
  td_metrics_view v = {.stats = &s, .model_name = "m", .accounts = accounts, .kv_events = &kv_events};
  accounts[1].key = &one;
  td_metrics_init(&m);
  for (v.only_account = 0; v.only_account < 2; v.only_account++) {
    unsigned found = 0;
    td_buf out;
    td_buf_init(&out, 0);
    td_metrics_render(&m, &v, &out);
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
      assert_non_null(strstr(out.data, stay[i]));
    for (char *line = strtok(out.data, "\n"); line; line = strtok(NULL, "\n"))
      for (size_t i = 0; i < sizeof lengths / sizeof *lengths && *line != '#'; i++) {
        char *at = strstr(line, lengths[i]), *end = strchr(line, '{');
        if (at && at < end && !strstr(line, "tandem:key_") && !strstr(line, "first_token") &&
            !strstr(line, "prediction_correction"))
          found |= 1u << i;
      }
    assert_int_equal(found, v.only_account > 0 ? 0 : (1u << sizeof lengths / sizeof *lengths) - 1);
    td_buf_deinit(&out);
  }
}

/* What is left out: families of missing things, and for a key the families of other keys. */
static void test_what_is_not_there(void **state)
{
  static td_tenant accounts[TD_KEY_ACCOUNTS + 1];
  static const td_key one = {.name = "one"}, two = {.name = "two"};
  td_metrics m;
  td_engine_stats s = {0};
  td_engine_gpu gpu = {.sm_hz = NAN, .memory_hz = NAN, .watts = NAN, .limit_watts = 700, .celsius = NAN};
  td_metrics_view v = {
      .stats = &s, .model_name = "a\nb\\\"", .gpu = &gpu, .accounts = accounts, .only_account = 2};
  td_buf out;
  accounts[1].key = &one;
  accounts[2].key = &two;
  td_metrics_init(&m);
  td_buf_init(&out, 0);
  td_metrics_render(&m, &v, &out);
  static const char *const absent[] = {"cache_config_info", "not_fused", "gpu_sm", "gpu_memory",
                                       "gpu_power_watts",   "celsius",   "slowed", "kv_events",
                                       "key=\"one\""};
  for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
    if (strstr(out.data, absent[i]))
      fail_msg("there is a '%s'", absent[i]);
  assert_non_null(strstr(out.data, "tandem:gpu_power_limit_watts{model_name=\"a\\nb\\\\\\\"\"} 700\n"));
  assert_non_null(
      strstr(out.data, "tandem:key_requests_total{model_name=\"a\\nb\\\\\\\"\",key=\"two\"} 0\n"));
  assert_null(strstr(out.data, "vllm:kv_cache_usage_perc"));
  v.accounts = NULL;
  v.only_account = 0;
  td_buf_clear(&out);
  td_metrics_render(&m, &v, &out);
  assert_null(strstr(out.data, "tandem:key_"));
  assert_non_null(strstr(out.data, "vllm:kv_cache_usage_perc{model_name=\"a\\nb\\\\\\\"\"} 0\n"));
  td_buf_deinit(&out);
}

/* A bound belongs to its bucket, for every bound of every histogram. */
static void test_borders(void **state)
{
  td_metrics m;
  td_metrics_init(&m);
  td_histogram *const all[] = {&m.ttft, &m.inter_token, &m.e2e, &m.queue, &m.queue_predicted};
  for (size_t k = 0; k < 5; k++) {
    td_histogram *h = all[k];
    double sum = 0;
    assert_in_range(h->n_borders, 1, TD_HISTOGRAM_BORDERS_MAX);
    for (uint32_t i = 0; i < h->n_borders; i++) {
      assert_true(i == 0 || h->borders[i] > h->borders[i - 1]);
      td_histogram_observe(h, h->borders[i], 2);
      td_histogram_observe(h, h->borders[i] * 1.0001, 1);
      sum += 2 * h->borders[i] + h->borders[i] * 1.0001;
    }
    for (uint32_t i = 0; i <= h->n_borders; i++)
      assert_int_equal(h->counts[i], i == 0 ? 2 : i == h->n_borders ? 1 : 3);
    assert_true(fabs(h->sum - sum) <= 1e-9 * sum);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_whole_page),
      cmocka_unit_test(test_what_others_use),
      cmocka_unit_test(test_what_is_not_there),
      cmocka_unit_test(test_borders),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
