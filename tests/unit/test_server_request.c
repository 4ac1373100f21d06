/* The request schema: the borders of every field, made from the limits table; neutral values; names in errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/limits.h"
#include "server/request.h"

static const td_sampling defaults = {.temperature = 0.5f, .top_p = 0.75f, .min_p = 0.25f, .top_k = 7};
enum { VOCAB = 1000 };

static bool read_json(const char *json, unsigned route, td_request *r, td_api_error *e)
{
  td_json_limits limits = {64, 65536, TD_ERR_REQUEST};
  td_error err;
  cJSON *root;
  if (td_json_parse(json, strlen(json), &limits, &root, &err) != TD_OK)
    fail_msg("not JSON: %s: %s", json, err.message);
  bool ok = td_request_read(root, route, &defaults, VOCAB, r, e);
  if (ok && r->messages)
    ok = td_messages_normalise((cJSON *)r->messages, e);
  cJSON_Delete(root);
  return ok;
}

/* A body with one more member; returns 200 or the error's status, and checks that an error names the field. */
static int try_member(unsigned route, const char *name, const char *value, td_request *r)
{
  char *json = malloc(strlen(name) + strlen(value) + 200);
  td_api_error e = {0};
  const char *base = route == TD_ROUTE_CHAT ? "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" : "\"prompt\":\"x\"";
  sprintf(json, "{%s,\"%s\":%s}", base, name, value);
  bool ok = read_json(json, route, r, &e);
  if (!ok) {
    assert_true(e.status >= 400 && e.status < 500);
    if (strncmp(e.param, name, strlen(name)) != 0 || !strstr(e.message, name))
      fail_msg("%s: error names '%s': %s", json, e.param, e.message);
  }
  free(json);
  return ok ? 200 : e.status;
}

static int status_of(unsigned route, const char *name, const char *value)
{
  td_request r;
  int status = try_member(route, name, value, &r);
  td_request_deinit(&r);
  return status;
}

static void expect(int status, unsigned route, const char *name, const char *value)
{
  int got = status_of(route, name, value);
  if (got != status)
    fail_msg("\"%s\": %s: wanted %d, got %d", name, value, status, got);
}

static void expect_number(int status, const char *name, double v, bool integer)
{
  char text[64];
  snprintf(text, sizeof text, integer ? "%.0f" : "%.17g", v);
  expect(status, TD_ROUTE_CHAT, name, text);
  expect(status, TD_ROUTE_COMPLETIONS, name, text);
}

/* min-1, min, max, max+1, negative, fraction, null, huge, string and other types */
static void test_borders(void **state)
{
  static const struct {
    td_limit_id id;
    bool integer, open_low;
  } fields[] = {
      {TD_LIMIT_MAX_TOKENS, true, false}, {TD_LIMIT_TEMPERATURE, false, false}, {TD_LIMIT_TOP_P, false, true},
      {TD_LIMIT_TOP_K, true, false},      {TD_LIMIT_MIN_P, false, false},       {TD_LIMIT_N, true, false},
  };
  static const char *const wrong[] = {"\"1\"", "\"\"", "[]", "{}", "true", "[1]", "1e400", "-1e400", "99999999999999999999",
                                      "-99999999999999999999", "18446744073709551615", "9223372036854775808"};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    const td_limit *l = &td_limits[fields[i].id];
    double step = fields[i].integer ? 1 : 1e-9;
    expect_number(400, l->name, l->min - step, fields[i].integer);
    expect_number(fields[i].open_low ? 400 : 200, l->name, l->min, fields[i].integer);
    expect_number(200, l->name, l->max, fields[i].integer);
    expect_number(400, l->name, l->max + step, fields[i].integer);
    expect_number(400, l->name, -2, true);
    expect_number(400, l->name, 9007199254740993.0, true);
    expect(fields[i].integer ? 400 : 200, TD_ROUTE_CHAT, l->name, "0.5");
    expect(200, TD_ROUTE_CHAT, l->name, "null");
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++)
      expect(400, TD_ROUTE_CHAT, l->name, wrong[k]);
  }
}

static void test_stop_borders(void **state)
{
  static const td_limit_id ids[] = {TD_LIMIT_STOP_STRINGS, TD_LIMIT_STOP_TOKEN_IDS};
  char text[2048];
  for (int f = 0; f < 2; f++)
    for (int over = 0; over < 2; over++) {
      size_t n = td_limit_max(ids[f]) + (size_t)over, at = (size_t)sprintf(text, "[");
      for (size_t i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, f ? "%s7" : "%s\"s\"", i ? "," : "");
      sprintf(text + at, "]");
      expect(over ? 400 : 200, TD_ROUTE_CHAT, td_limits[ids[f]].name, text);
    }
  for (int over = 0; over < 2; over++) {
    size_t n = td_limit_max(TD_LIMIT_STOP_STRING_BYTES) + (size_t)over;
    text[0] = '"';
    memset(text + 1, 'a', n);
    strcpy(text + 1 + n, "\"");
    expect(over ? 400 : 200, TD_ROUTE_CHAT, "stop", text);
  }
  static const char *const bad_stops[] = {"1", "true", "{}", "\"\"", "[\"\"]", "[1]", "[null]", "[[\"a\"]]"};
  for (size_t i = 0; i < sizeof bad_stops / sizeof bad_stops[0]; i++)
    expect(400, TD_ROUTE_CHAT, "stop", bad_stops[i]);
  expect(200, TD_ROUTE_CHAT, "stop", "null");
  expect(200, TD_ROUTE_CHAT, "stop", "[]");
  static const char *const bad_ids[] = {"1", "\"1\"", "[\"1\"]", "[-1]", "[1000]", "[0.5]", "[null]", "[1e300]",
                                        "[99999999999999999999]", "{}"};
  for (size_t i = 0; i < sizeof bad_ids / sizeof bad_ids[0]; i++)
    expect(400, TD_ROUTE_CHAT, "stop_token_ids", bad_ids[i]);
  expect(200, TD_ROUTE_CHAT, "stop_token_ids", "[0,999]");
}

static void test_urgency(void **state)
{
  td_request r;
  assert_int_equal(try_member(TD_ROUTE_CHAT, "priority", "-1000000", &r), 200);
  assert_int_equal(r.priority, -1000000);
  assert_int_equal(r.timeout_ms, 0);
  assert_int_equal(r.ttft_timeout_ms, 0);
  assert_int_equal(try_member(TD_ROUTE_COMPLETIONS, "timeout_ms", "1500", &r), 200);
  assert_int_equal(r.timeout_ms, 1500);
  assert_int_equal(try_member(TD_ROUTE_COMPLETIONS, "ttft_timeout_ms", "86400000", &r), 200);
  assert_int_equal(r.ttft_timeout_ms, 86400000);
  assert_int_equal(r.priority, 0);
  for (size_t i = 0; i < 2; i++) {
    const char *name = i ? "timeout_ms" : "ttft_timeout_ms";
    expect(400, TD_ROUTE_CHAT, name, "0");
    expect(400, TD_ROUTE_CHAT, name, "86400001");
    expect(400, TD_ROUTE_CHAT, name, "-5");
    expect(400, TD_ROUTE_CHAT, name, "2.5");
    expect(400, TD_ROUTE_CHAT, name, "\"5\"");
  }
  expect(400, TD_ROUTE_CHAT, "priority", "1000001");
  assert_int_equal(try_member(TD_ROUTE_CHAT, "cache_salt", "\"s\"", &r), 200);
  assert_int_equal(try_member(TD_ROUTE_CHAT, "cache_salt", "null", &r), 200);
  assert_null(r.cache_salt);
  expect(400, TD_ROUTE_CHAT, "cache_salt", "\"\"");
  expect(400, TD_ROUTE_CHAT, "cache_salt", "5");
  char salt[300] = "\"";
  memset(salt + 1, 'a', 257);
  strcpy(salt + 258, "\"");
  expect(400, TD_ROUTE_CHAT, "cache_salt", salt);
  strcpy(salt + 257, "\"");
  expect(200, TD_ROUTE_CHAT, "cache_salt", salt);
  expect(400, TD_ROUTE_TOKENIZE, "priority", "1"); /* nothing runs there */
}

static void test_seed(void **state)
{
  static const struct {
    const char *text;
    uint64_t seed;
  } good[] = {{"0", 0},
              {"-1", UINT64_MAX},
              {"9007199254740993", 9007199254740993u},
              {"18446744073709551615", UINT64_MAX},
              {"18446744073709551614", UINT64_MAX - 1},
              {"-9223372036854775808", (uint64_t)1 << 63}};
  td_request r;
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    assert_int_equal(try_member(TD_ROUTE_CHAT, "seed", good[i].text, &r), 200);
    assert_true(r.has_seed);
    assert_true(td_request_sampling(&r).seed == good[i].seed);
    td_request_deinit(&r);
  }
  static const char *const wrong[] = {"18446744073709551616", "-9223372036854775809", "0.5", "\"1\"", "1e30", "[]"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    expect(400, TD_ROUTE_CHAT, "seed", wrong[i]);
  assert_int_equal(try_member(TD_ROUTE_CHAT, "seed", "null", &r), 200);
  assert_false(r.has_seed);
  td_request_deinit(&r);
}

static void test_booleans(void **state)
{
  static const char *const names[] = {"stream",          "ignore_eos",           "return_token_ids",
                                      "skip_special_tokens", "add_generation_prompt", "continue_final_message"};
  static const char *const wrong[] = {"0", "1", "\"true\"", "[]", "{}"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    expect(200, TD_ROUTE_CHAT, names[i], "true");
    expect(200, TD_ROUTE_CHAT, names[i], "false");
    expect(200, TD_ROUTE_CHAT, names[i], "null");
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++)
      expect(400, TD_ROUTE_CHAT, names[i], wrong[k]);
  }
}

/* Fields that are not served: what default clients send passes, what would have an effect is refused by name. */
static void test_neutral(void **state)
{
  static const struct {
    const char *name, *off, *on;
  } cases[] = {
      {"logprobs", "false", "true"},
      {"top_logprobs", "0", "5"},
      {"presence_penalty", "0", "0.5"},
      {"presence_penalty", "0.0", "\"0\""},
      {"frequency_penalty", "0", "-1"},
      {"repetition_penalty", "1.0", "1.1"},
      {"logit_bias", "{}", "{\"5\":1}"},
      {"response_format", "{\"type\":\"text\"}", "{\"type\":\"json_object\"}"},
      {"response_format", "null", "{\"type\":\"text\",\"x\":1}"},
      {"response_format", "null", "{}"},
      {"response_format", "null", "\"text\""},
      {"tools", "[]", "[{\"type\":\"function\"}]"},
      {"tool_choice", "\"auto\"", "\"required\""},
      {"tool_choice", "\"none\"", "{\"type\":\"function\"}"},
      {"parallel_tool_calls", "true", "1"},
      {"service_tier", "\"auto\"", "\"flex\""},
      {"modalities", "[\"text\"]", "[\"text\",\"audio\"]"},
      {"min_tokens", "0", "1"},
      {"include_stop_str_in_output", "false", "true"},
      {"echo", "false", "true"},
      {"chat_template", "null", "\"{{ messages }}\""},
      {"add_special_tokens", "false", "true"},
      {"reasoning_effort", "null", "\"low\""},
      {"user", "\"me\"", NULL},
      {"metadata", "{\"a\":\"b\"}", NULL},
      {"store", "true", NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    expect(200, TD_ROUTE_CHAT, cases[i].name, cases[i].off);
    expect(200, TD_ROUTE_CHAT, cases[i].name, "null");
    if (cases[i].on)
      expect(400, TD_ROUTE_CHAT, cases[i].name, cases[i].on);
  }
  expect(200, TD_ROUTE_COMPLETIONS, "suffix", "\"\"");
  expect(400, TD_ROUTE_COMPLETIONS, "suffix", "\"x\"");
  expect(400, TD_ROUTE_COMPLETIONS, "logprobs", "1");
  expect(400, TD_ROUTE_COMPLETIONS, "logprobs", "0"); /* asks for the chosen token's */
  expect(200, TD_ROUTE_COMPLETIONS, "best_of", "1");
  expect(400, TD_ROUTE_COMPLETIONS, "best_of", "2");
}

static void test_unknown(void **state)
{
  td_request r;
  td_api_error e;
  assert_false(read_json("{\"prompt\":\"x\",\"nonsense\":1}", TD_ROUTE_COMPLETIONS, &r, &e));
  assert_string_equal(e.code, "unsupported_parameter");
  assert_string_equal(e.param, "nonsense");
  expect(400, TD_ROUTE_CHAT, "Temperature", "1"); /* names have a case */
  expect(400, TD_ROUTE_CHAT, "prompt", "\"x\"");
  expect(400, TD_ROUTE_COMPLETIONS, "messages", "[]");
  static const char *const roots[] = {"[]", "1", "\"x\"", "null", "{}", "{\"prompt\":null}"};
  for (size_t i = 0; i < sizeof roots / sizeof roots[0]; i++)
    assert_false(read_json(roots[i], TD_ROUTE_COMPLETIONS, &r, &e));
}

static void test_together(void **state)
{
  td_request r;
  td_api_error e;
  assert_true(read_json("{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
                        TD_ROUTE_COMPLETIONS, &r, &e));
  assert_true(r.include_usage);
  expect(400, TD_ROUTE_COMPLETIONS, "stream_options", "{\"include_usage\":true}"); /* without stream */
  assert_false(read_json("{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"x\":true}}", TD_ROUTE_COMPLETIONS,
                         &r, &e));
  assert_string_equal(e.param, "stream_options.x");
  expect(400, TD_ROUTE_CHAT, "chat_template_kwargs", "{\"messages\":[]}");
  expect(400, TD_ROUTE_CHAT, "chat_template_kwargs", "[]");
  expect(200, TD_ROUTE_CHAT, "chat_template_kwargs", "{\"enable_thinking\":false}");
  assert_true(read_json("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"continue_final_message\":true}",
                        TD_ROUTE_CHAT, &r, &e));
  assert_false(r.add_generation_prompt);
  assert_false(read_json("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"continue_final_message\":true,"
                         "\"add_generation_prompt\":true}",
                         TD_ROUTE_CHAT, &r, &e));
  assert_string_equal(e.param, "continue_final_message");
}

/* What is absent is the model's; what is given is exact. */
static void test_sampling(void **state)
{
  td_request r;
  td_api_error e;
  assert_true(read_json("{\"prompt\":\"x\"}", TD_ROUTE_COMPLETIONS, &r, &e));
  td_sampling s = td_request_sampling(&r);
  assert_true(s.temperature == 0.5f && s.top_p == 0.75f && s.min_p == 0.25f && s.top_k == 7);
  assert_true(read_json("{\"prompt\":\"x\",\"temperature\":0,\"top_p\":1e-300,\"top_k\":-1,\"min_p\":1}",
                        TD_ROUTE_COMPLETIONS, &r, &e));
  s = td_request_sampling(&r);
  assert_true(s.temperature == 0 && s.top_p > 0 && s.min_p == 1 && s.top_k == 0);
  assert_true(read_json("{\"prompt\":\"x\",\"temperature\":1e-300}", TD_ROUTE_COMPLETIONS, &r, &e));
  assert_true(td_request_sampling(&r).temperature >= 1e-5f);
}

/* ---- messages ---- */

static void expect_messages(const char *json, int status, const char *param, const char *normal)
{
  td_api_error e = {0};
  cJSON *m = cJSON_Parse(json);
  assert_non_null(m);
  bool ok = td_messages_normalise(m, &e);
  if (ok != (status == 200) || (!ok && (e.status != status || strcmp(e.param, param) != 0)))
    fail_msg("%s: ok %d, %d '%s' %s", json, ok, e.status, e.param, e.message);
  if (ok) {
    char *text = cJSON_PrintUnformatted(m);
    assert_string_equal(text, normal);
    cJSON_free(text);
  }
  cJSON_Delete(m);
}

static void test_messages(void **state)
{
#define U "{\"role\":\"user\",\"content\":\"x\"}"
  expect_messages("[" U "]", 200, "", "[" U "]");
  expect_messages("[{\"role\":\"developer\",\"content\":\"d\"}," U "]", 200, "",
                  "[{\"role\":\"system\",\"content\":\"d\"}," U "]");
  expect_messages("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]",
                  200, "", "[{\"role\":\"user\",\"content\":\"a\\nb\"}]");
  expect_messages("[{\"role\":\"user\",\"content\":[]}]", 200, "", "[{\"role\":\"user\",\"content\":\"\"}]");
  expect_messages("[{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"annotations\":[],\"tool_calls\":null}]", 200,
                  "", "[{\"role\":\"assistant\",\"content\":\"\"}]");
  expect_messages("[{\"role\":\"assistant\"}]", 200, "", "[{\"role\":\"assistant\",\"content\":\"\"}]");
  expect_messages("[{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"c\"}]", 200, "",
                  "[{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"c\"}]");
  expect_messages("[{\"role\":\"user\",\"content\":\"x\",\"name\":\"n\"}]", 200, "",
                  "[{\"role\":\"user\",\"content\":\"x\",\"name\":\"n\"}]");
  expect_messages("[]", 400, "messages", NULL);
  expect_messages("{}", 400, "messages", NULL);
  expect_messages("[1]", 400, "messages[0]", NULL);
  expect_messages("[" U ",{}]", 400, "messages[1].role", NULL);
  expect_messages("[{\"role\":\"user\"}]", 400, "messages[0].content", NULL);
  expect_messages("[{\"role\":\"user\",\"content\":null}]", 400, "messages[0].content", NULL);
  expect_messages("[{\"role\":\"user\",\"content\":1}]", 400, "messages[0].content", NULL);
  expect_messages("[{\"role\":\"robot\",\"content\":\"x\"}]", 400, "messages[0].role", NULL);
  expect_messages("[{\"role\":1,\"content\":\"x\"}]", 400, "messages[0].role", NULL);
  expect_messages("[{\"role\":null,\"content\":\"x\"}]", 400, "messages[0].role", NULL);
  expect_messages("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", 400, "messages[0].content", NULL);
  expect_messages("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", 400, "messages[0].content", NULL);
  expect_messages("[{\"role\":\"user\",\"content\":[\"x\"]}]", 400, "messages[0].content", NULL);
  expect_messages("[{\"role\":\"user\",\"content\":\"x\",\"foo\":1}]", 400, "messages[0].foo", NULL);
  expect_messages("[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", 400, "messages[0].tool_calls", NULL);
  size_t max = td_limit_max(TD_LIMIT_MESSAGES);
  for (size_t over = 0; over < 2; over++) {
    cJSON *m = cJSON_CreateArray(), *u = cJSON_Parse(U);
    td_api_error e;
    for (size_t i = 0; i < max + over; i++)
      cJSON_AddItemToArray(m, cJSON_Duplicate(u, true));
    assert_int_equal(td_messages_normalise(m, &e), !over);
    cJSON_Delete(m);
    cJSON_Delete(u);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_borders),  cmocka_unit_test(test_stop_borders), cmocka_unit_test(test_seed), cmocka_unit_test(test_urgency),
      cmocka_unit_test(test_booleans), cmocka_unit_test(test_neutral),      cmocka_unit_test(test_unknown),
      cmocka_unit_test(test_together), cmocka_unit_test(test_sampling),     cmocka_unit_test(test_messages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
