/* The request schema: the bounds of every field, made from the limits table; neutral values; names in
 * errors. */
#include "server_request_fixture.h"

static const td_request_rules strict = {{.temperature = 1, .top_p = 1}, 1000, true};

/* Reads a body with one more member. Returns 200 or the error's status, and checks that an error names the
 * field. */
static int try_member(unsigned route, const char *name, const char *value, td_api_request *r)
{
  char *json = malloc(strlen(name) + strlen(value) + 200);
  td_api_error e = {0};
  const char *base =
      route == TD_ROUTE_CHAT ? "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" : "\"prompt\":\"x\"";
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
  td_api_request r;
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
  static const char *const wrong[] = {"\"1\"",
                                      "\"\"",
                                      "[]",
                                      "{}",
                                      "true",
                                      "[1]",
                                      "1e400",
                                      "-1e400",
                                      "99999999999999999999",
                                      "-99999999999999999999",
                                      "18446744073709551615",
                                      "9223372036854775808"};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    const td_limit *l = &td_limits[fields[i].id];
    double step = fields[i].integer ? 1 : 1e-9;
    expect_number(400, l->name, l->min - step, fields[i].integer);
    if (l->min < 0) /* top_k, max_tokens: -1 is "none" */
      expect_number(fields[i].id == TD_LIMIT_MAX_TOKENS ? 400 : 200, l->name, 0, true);
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
  static const char *const bad_ids[] = {
      "1", "\"1\"", "[\"1\"]", "[-1]", "[1000]", "[0.5]", "[null]", "[1e300]", "[99999999999999999999]",
      "{}"};
  for (size_t i = 0; i < sizeof bad_ids / sizeof bad_ids[0]; i++)
    expect(400, TD_ROUTE_CHAT, "stop_token_ids", bad_ids[i]);
  expect(200, TD_ROUTE_CHAT, "stop_token_ids", "[0,999]");
}

static void test_urgency(void **state)
{
  td_api_request r;
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
  td_api_request r;
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    assert_int_equal(try_member(TD_ROUTE_CHAT, "seed", good[i].text, &r), 200);
    assert_true(r.has_seed);
    assert_true(td_request_sampling(&r).seed == good[i].seed);
    td_request_deinit(&r);
  }
  static const char *const wrong[] = {
      "18446744073709551616", "-9223372036854775809", "0.5", "\"1\"", "1e30", "[]"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    expect(400, TD_ROUTE_CHAT, "seed", wrong[i]);
  assert_int_equal(try_member(TD_ROUTE_CHAT, "seed", "null", &r), 200);
  assert_false(r.has_seed);
  td_request_deinit(&r);
}

static void test_booleans(void **state)
{
  static const char *const names[] = {"stream",
                                      "ignore_eos",
                                      "return_token_ids",
                                      "skip_special_tokens",
                                      "add_generation_prompt",
                                      "continue_final_message"};
  static const char *const wrong[] = {"0", "1", "\"true\"", "[]", "{}"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    expect(200, TD_ROUTE_CHAT, names[i], "true");
    expect(200, TD_ROUTE_CHAT, names[i], "false");
    expect(200, TD_ROUTE_CHAT, names[i], "null");
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++)
      expect(400, TD_ROUTE_CHAT, names[i], wrong[k]);
  }
}

/* Fields that are not served: values that clients send by default pass; values with an effect are refused by
 * name. */
static void test_neutral(void **state)
{
  static const struct {
    const char *name, *off, *on;
  } cases[] = {
      {"response_format", "{\"type\":\"json_object\"}", "{\"type\":\"json_schema\"}"},
      {"response_format", "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}",
       "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":1}}"},
      {"guided_json", "{}", "\"yes\""},
      {"guided_json", "\"{}\"", "[{\"a\":1}]"},
      {"guided_regex", "\"a+\"", "[\"a\"]"},
      {"guided_regex", "\"\"", "7"},
      {"guided_choice", "[\"a\"]", "\"yes\""},
      {"guided_choice", "[]", "[\"\"]"},
      {"guided_grammar", "\"root ::= [a]\"", "{}"},
      {"structured_outputs", "{\"choice\":[\"a\"]}", "{\"choice\":[\"a\"],\"regex\":\"b\"}"},
      {"structured_outputs", "{\"regex\":null,\"json_object\":true}", "{\"structural_tag\":\"x\"}"},
      {"structured_outputs", "{}", "\"yes\""},
      {"response_format", "{\"type\":\"text\",\"x\":1}", "{\"type\":\"text\",\"json_schema\":{}}"},
      {"response_format", "{\"type\":\"text\",\"json_schema\":null}", "{\"Type\":\"text\"}"},
      {"response_format", "null", "[]"},
      {"response_format", "null", "{}"},
      {"response_format", "null", "\"text\""},
      {"tools", "[]", "[{\"type\":\"function\"}]"},
      {"tool_choice", "\"auto\"", "\"required\""},
      {"tool_choice", "\"none\"", "{\"type\":\"function\"}"},
      {"parallel_tool_calls", "true", "1"},
      {"tools", "null", "{}"},
      {"service_tier", "\"flex\"", NULL},
      {"modalities", "[\"text\"]", "[\"text\",\"audio\"]"},
      {"echo", "false", "true"},
      {"chat_template", "null", "\"{{ messages }}\""},
      {"add_special_tokens", "false", "true"},
      {"reasoning_effort", "\"low\"", "\"LOW\""},
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
  td_api_request r;
  td_api_error e;
  assert_false(read_json("{\"prompt\":\"x\",\"tools\":[1]}", TD_ROUTE_COMPLETIONS, &r, &e));
  assert_string_equal(e.message, "'tools' is not served");
  expect(400, TD_ROUTE_COMPLETIONS, "reasoning_effort", "\"low\"");
  expect(200, TD_ROUTE_COMPLETIONS, "suffix", "\"\"");
  expect(400, TD_ROUTE_COMPLETIONS, "suffix", "\"x\"");
  expect(200, TD_ROUTE_COMPLETIONS, "best_of", "1");
  expect(400, TD_ROUTE_COMPLETIONS, "best_of", "2");
}

/* Penalties, biases, min_tokens and log-probabilities: ranges as in OpenAI's API and vLLM. */
static void test_sampling_fields(void **state)
{
  static const struct {
    const char *name, *good[4], *bad[8];
  } cases[] = {
      {"presence_penalty", {"0", "-2", "2.0", "0.5"}, {"2.1", "-2.001", "\"0\"", "true", "[]"}},
      {"frequency_penalty", {"0", "-2", "2", "1e-3"}, {"3", "-1e9", "\"1\"", "{}"}},
      {"repetition_penalty", {"1", "0.01", "1.3", "1000"}, {"0", "-1", "1001", "\"1\"", "false"}},
      {"logit_bias",
       {"{}", "{\"0\":-100}", "{\"5\":100,\"6\":0.5}", "null"},
       {"[]", "{\"5\":101}", "{\"5\":-100.5}", "{\"5\":\"1\"}", "{\"x\":1}", "{\"05\":1}", "{\"-1\":1}",
        "{\"99999999\":1}"}},
      {"min_tokens", {"0", "1", "16777216", "null"}, {"-1", "1.5", "\"1\"", "16777217"}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    for (unsigned chat = 0; chat < 2; chat++) {
      unsigned route = chat ? TD_ROUTE_CHAT : TD_ROUTE_COMPLETIONS;
      for (int k = 0; k < 4; k++)
        expect(200, route, cases[i].name, cases[i].good[k]);
      for (int k = 0; k < 8 && cases[i].bad[k]; k++)
        expect(400, route, cases[i].name, cases[i].bad[k]);
    }
  expect(200, TD_ROUTE_CHAT, "logprobs", "true");
  expect(200, TD_ROUTE_CHAT, "logprobs", "false");
  expect(400, TD_ROUTE_CHAT, "logprobs", "1");
  expect(200, TD_ROUTE_CHAT, "top_logprobs", "0");
  expect(400, TD_ROUTE_CHAT, "top_logprobs", "5"); /* without logprobs */
  expect(200, TD_ROUTE_COMPLETIONS, "logprobs", "0");
  expect(200, TD_ROUTE_COMPLETIONS, "logprobs", "20");
  expect(200, TD_ROUTE_COMPLETIONS, "logprobs", "false");
  expect(400, TD_ROUTE_COMPLETIONS, "logprobs", "21");
  expect(400, TD_ROUTE_COMPLETIONS, "logprobs", "-1");
  expect(400, TD_ROUTE_COMPLETIONS, "logprobs", "1.5");
  expect(400, TD_ROUTE_COMPLETIONS, "logprobs", "true");
  expect(400, TD_ROUTE_COMPLETIONS, "top_logprobs", "2");
}

static void test_sampling_as_read(void **state)
{
  td_api_request r;
  td_api_error e;
  assert_true(read_json("{\"prompt\":\"x\"}", TD_ROUTE_COMPLETIONS, &r, &e));
  td_sampling s = td_request_sampling(&r);
  assert_true(td_sampling_is_plain(&s) && !s.wants_logprobs);
  td_request_deinit(&r);
  assert_true(
      read_json("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"presence_penalty\":0.5,\"frequency_"
                "penalty\":-1,\"repetition_penalty\":1.25,"
                "\"logit_bias\":{\"7\":-100,\"3\":2.5},\"min_tokens\":4,\"max_tokens\":4,\"logprobs\":true,"
                "\"top_logprobs\":3}",
                TD_ROUTE_CHAT, &r, &e));
  s = td_request_sampling(&r);
  assert_true(s.presence_penalty == 0.5f && s.frequency_penalty == -1 && s.repetition_penalty == 1.25f);
  assert_true(s.n_bias == 2 && s.bias[0].id == 7 && s.bias[0].bias == -100 && s.bias[1].id == 3 &&
              s.bias[1].bias == 2.5f);
  assert_true(s.min_tokens == 4 && s.wants_logprobs && s.n_top == 3);
  td_request_deinit(&r);
  assert_false(
      read_json("{\"prompt\":\"x\",\"min_tokens\":5,\"max_tokens\":4}", TD_ROUTE_COMPLETIONS, &r, &e));
  assert_string_equal(e.param, "min_tokens");
  td_request_deinit(&r);
  td_buf many; /* one more than allowed */
  td_buf_init(&many, 0);
  td_buf_append_str(&many, "{\"prompt\":\"x\",\"logit_bias\":{");
  for (int i = 0; i <= TD_LOGIT_BIAS_MAX; i++)
    td_buf_printf(&many, "%s\"%d\":1", i ? "," : "", i);
  td_buf_append_str(&many, "}}");
  assert_false(read_json(many.data, TD_ROUTE_COMPLETIONS, &r, &e));
  assert_string_equal(e.param, "logit_bias");
  td_request_deinit(&r);
  td_buf_deinit(&many);
}

/* Unknown names are ignored, listed, and put into a header as plain ASCII; null counts as absent. */
static void test_unknown(void **state)
{
  static const struct {
    const char *body, *names;
  } cases[] = {
      {"\"frobnicate\":1", "frobnicate"},
      {"\"frobnicate\":null,\"Temperature\":null,\"\":null", ""},
      {"\"aa\":1,\"bb\":[],\"cc\":{\"x\":1}", "aa, bb, cc"},
      {"\"x\\r\\nset-cookie: a=b\":1", "x??set-cookie??a?b"},
      {"\"a,b\":1,\"\\u00e9\\u0007\\u007f\":1", "a?b, ????"},
      {"\"stream\":true,\"stream_options\":{\"foo\":1,\"include_obfuscation\":false}", "stream_options.foo"},
      {"\"response_format\":{\"type\":\"text\",\"foo\":1}", "response_format.foo"},
      {"\"store\":true,\"metadata\":{\"a\":1},\"user\":5", ""},
  };
  td_api_request r;
  td_api_error e;
  char json[4096];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    sprintf(json, "{\"prompt\":\"x\",%s}", cases[i].body);
    if (!read_json(json, TD_ROUTE_COMPLETIONS, &r, &e))
      fail_msg("%s: %s", json, e.message);
    assert_string_equal(r.unknown.names, cases[i].names);
    td_request_deinit(&r);
    if (read_by(&strict, json, TD_ROUTE_COMPLETIONS, &r, &e) != !*cases[i].names)
      fail_msg("strict: %s", json);
    td_request_deinit(&r);
  }
  assert_false(read_by(&strict, "{\"prompt\":\"x\",\"frobnicate\":1}", TD_ROUTE_COMPLETIONS, &r, &e));
  assert_string_equal(e.code, "unsupported_parameter");
  assert_string_equal(e.param, "frobnicate");
  assert_true(read_json("{\"messages\":[{\"role\":\"user\",\"foo\":1,\"content\":[{\"type\":\"text\","
                        "\"text\":\"x\",\"bar\":2}]},"
                        "{\"role\":\"user\",\"foo\":1,\"content\":\"x\"}]}",
                        TD_ROUTE_CHAT, &r, &e));
  assert_string_equal(r.unknown.names, "messages[].foo, messages[].content[].bar");
  static const char *const roots[] = {"[]", "1", "\"x\"", "null", "{}", "{\"prompt\":null}"};
  for (size_t i = 0; i < sizeof roots / sizeof roots[0]; i++)
    assert_false(read_json(roots[i], TD_ROUTE_COMPLETIONS, &r, &e));
  expect(400, TD_ROUTE_CHAT, "prompt", "\"x\"");
  expect(400, TD_ROUTE_COMPLETIONS, "messages", "[]");
}

static void test_unknown_is_bounded(void **state)
{
  td_unknown u = {0};
  td_unknown_log log = {0};
  td_buf header;
  char name[200], forged[4];
  for (uint32_t i = 0; i < 1000; i++) {
    sprintf(name, "name%u", i);
    td_unknown_add(&u, "", name);
  }
  assert_true(strlen(u.names) < sizeof u.names);
  assert_string_equal(u.names + strlen(u.names) - 5, ", ...");
  uint32_t told = td_unknown_log_new(&log, &u);
  assert_true(told > 20);
  assert_int_equal(td_unknown_log_new(&log, &u), 0); /* once */
  for (uint32_t i = 0; i < 1000; i++) {
    u = (td_unknown){0};
    memset(name, 'a' + (int)(i % 26), 150);
    sprintf(name + 150, "%u", i);
    sprintf(forged, "%u", i);
    td_unknown_add(&u, "", name);
    assert_int_equal(strlen(u.names), TD_UNKNOWN_NAME_BYTES - 1);
    td_unknown_add(&u, "", forged);
    told += td_unknown_log_new(&log, &u);
  }
  assert_int_equal(told, TD_UNKNOWN_LOGGED);
  td_buf_init(&header, 0);
  for (int c = 1; c < 256; c++) { /* every byte a name may have */
    u = (td_unknown){0};
    td_unknown_add(&u, "", (char[]){'x', (char)c, 'y', 0});
    td_unknown_render(&u, &header);
    assert_int_equal(header.len_bytes, strlen("x-tandem-ignored: x?y\r\n"));
    assert_memory_equal(header.data, "x-tandem-ignored: x", 19);
    assert_non_null(
        strchr("?_-.ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", header.data[19]));
    td_buf_clear(&header);
  }
  td_buf_deinit(&header);
}

/* A field misspelt would be an answer other than asked for. */
static void test_near_misses(void **state)
{
  static const struct {
    unsigned route;
    const char *name, *meant;
  } cases[] = {
      {TD_ROUTE_CHAT, "Temperature", "temperature"},
      {TD_ROUTE_CHAT, "temprature", "temperature"},
      {TD_ROUTE_CHAT, "tempreature", "temperature"},
      {TD_ROUTE_CHAT, "temperatures", "temperature"},
      {TD_ROUTE_CHAT, "tenperature", "temperature"},
      {TD_ROUTE_CHAT, " temperature ", "temperature"},
      {TD_ROUTE_CHAT, "max-tokens", "max_tokens"},
      {TD_ROUTE_CHAT, "maxTokens", "max_tokens"},
      {TD_ROUTE_CHAT, "max_token", "max_tokens"},
      {TD_ROUTE_CHAT, "maxCompletionTokens", "max_completion_tokens"},
      {TD_ROUTE_COMPLETIONS, "Top_P", "top_p"},
      {TD_ROUTE_COMPLETIONS, "N", "n"},
      {TD_ROUTE_COMPLETIONS, "stops", "stop"},
      {TD_ROUTE_COMPLETIONS, "sede", "seed"},
      {TD_ROUTE_COMPLETIONS, "Presence-Penalty", "presence_penalty"},
      {TD_ROUTE_COMPLETIONS, "presence_penalti", "presence_penalty"},
      {TD_ROUTE_COMPLETIONS, "bad_wordz", "bad_words"},
      {TD_ROUTE_COMPLETIONS, "Typical-P", "typical_p"}, /* suggested, although not served */
      {TD_ROUTE_TOKENIZE, "Add_Special_Tokens", "add_special_tokens"},
  };
  td_api_request r;
  td_api_error e;
  char json[300], meant[100];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    sprintf(json, "{\"%s\":1,\"prompt\":\"x\",\"messages\":[]}", cases[i].name);
    sprintf(meant, "'%s' meant", cases[i].meant);
    if (read_json(json, cases[i].route, &r, &e) || strcmp(e.param, cases[i].name) != 0 ||
        !strstr(e.message, meant))
      fail_msg("%s: '%s': %s", json, e.param, e.message);
  }
  static const char *const far[] = {"nn", "stp",       "temp", "tempuratur", "seeded",
                                    "m",  "typical_q", "id",   "mode",       "models"};
  for (size_t i = 0; i < sizeof far / sizeof far[0]; i++)
    expect(200, TD_ROUTE_COMPLETIONS, far[i], "1");
  static const char *const empty[] = {"{\"prompt\":\"x\",\"\":1}", "{\"prompt\":\"x\",\" \":1}"};
  for (size_t i = 0; i < 2; i++) {
    assert_false(read_json(empty[i], TD_ROUTE_COMPLETIONS, &r, &e));
    assert_true(e.status == 400 && *e.param);
  }
  assert_false(read_json("{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_usages\":true}}",
                         TD_ROUTE_COMPLETIONS, &r, &e));
  assert_string_equal(e.param, "stream_options.include_usages");
}

/* Every field that affects answers in one of these programs, with a value that has an effect. The tests above
 * have the served ones. */
static void test_steering_fields(void **state)
{
  static const char *const names =
      /* OpenAI: resources/chat/completions, completions (openai-python's types) */
      "audio frequency_penalty function_call functions logit_bias logprobs modalities moderation "
      "presence_penalty reasoning_effort "
      "tool_choice tools top_logprobs web_search_options suffix "
      /* vLLM: chat_completion/protocol.py, completion/protocol.py, sampling_params.py; and those of before
         0.12 */
      "thinking_token_budget use_beam_search repetition_penalty watermarking length_penalty "
      "min_tokens "
      "truncate_prompt_tokens logprob_token_ids allowed_token_ids documents "
      "chat_template "
      "kv_transfer_params ec_transfer_params vllm_xargs repetition_detection prompt_embeds "
      "return_tokens_as_token_ids "
      "return_prompt_text logits_processors "
      "guided_json_object "
      "guided_decoding_backend guided_whitespace_pattern early_stopping include_reasoning "
      /* llama.cpp: tools/server/server-task.cpp, README */
      "n_predict n_indent n_cmpl t_max_predict_ms response_fields top_n_sigma xtc_probability typical_p "
      "dynatemp_range repeat_penalty "
      "dry_multiplier mirostat grammar grammar_lazy grammar_triggers preserved_tokens json_schema lora "
      "samplers n_probs min_keep "
      "reasoning_format thinking_forced_open reasoning_budget_tokens input_prefix input_suffix input_extra "
      "return_tokens "
      "adaptive_target tfs_z multimodal_data "
      /* SGLang: srt/entrypoints/openai/protocol.py, sampling_params.py */
      "regex ebnf stop_regex no_stop_trim lora_path session_params custom_params custom_logit_processor "
      "return_hidden_states "
      "return_routed_experts separate_reasoning input_ids task bootstrap_host bootstrap_room max_new_tokens "
      "min_new_tokens "
      "sampling_seed sampling_params structural_tag "
      /* Anthropic: messages */
      "system stop_sequences thinking mcp_servers max_tokens_to_sample output_config output_format container "
      "context_management "
      /* transformers, TGI, Ollama, DashScope, DeepSeek, Mistral, OpenRouter, Azure */
      "num_beams do_sample no_repeat_ngram_size penalty_alpha top_a guidance_scale negative_prompt watermark "
      "parameters options format "
      "think num_predict enable_thinking thinking_budget enable_search random_seed safe_prompt reasoning "
      "transforms plugins data_sources "
      "extra_body ";
  char name[64];
  int n = 0, used;
  for (const char *at = names; sscanf(at, "%63s %n", name, &used) == 1; at += used, n++) {
    expect(400, TD_ROUTE_CHAT, name,
           strcmp(name, "separate_reasoning") == 0 || strstr(name, "include_reasoning") ? "7" : "\"yes\"");
    expect(400, TD_ROUTE_COMPLETIONS, name, "[{\"a\":1}]");
    expect(200, TD_ROUTE_CHAT, name, "null");
    expect(200, TD_ROUTE_COMPLETIONS, name, "null");
  }
  assert_true(n > 105);
  static const char *const off[][2] = {{"lora_path", "[]"},          {"mirostat", "0"},
                                       {"dry_multiplier", "0.0"},    {"typical_p", "1"},
                                       {"logits_processors", "[]"},  {"grammar", "\"\""},
                                       {"n_predict", "-1"},          {"vllm_xargs", "{}"},
                                       {"use_beam_search", "false"}, {"reasoning_format", "\"auto\""}};
  for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
    expect(200, TD_ROUTE_CHAT, off[i][0], off[i][1]);
  /* and fields that affect none of their answers */
  static const char *const neutral[] = {"user",
                                        "metadata",
                                        "store",
                                        "safety_identifier",
                                        "prompt_cache_key",
                                        "prompt_cache_retention",
                                        "service_tier",
                                        "verbosity",
                                        "cache_control",
                                        "cache_prompt",
                                        "id_slot",
                                        "rid",
                                        "request_id",
                                        "timings_per_token",
                                        "mirostat_tau",
                                        "dry_base",
                                        "keep_alive",
                                        "prediction"};
  td_api_request r;
  for (size_t i = 0; i < sizeof neutral / sizeof neutral[0]; i++)
    for (unsigned route = TD_ROUTE_COMPLETIONS; route <= TD_ROUTE_CHAT; route++) {
      assert_int_equal(try_member(route, neutral[i], "{\"x\":[1]}", &r), 200);
      assert_string_equal(r.unknown.names, "");
    }
}

static void test_tokenize_takes_a_whole_request(void **state)
{
  td_api_request r;
  td_api_error e;
  assert_true(read_json(
      "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"temperature\":9,\"stop\":5,\"tools\":[]}",
      TD_ROUTE_TOKENIZE, &r, &e));
  assert_string_equal(r.unknown.names, "temperature, stop");
  assert_false(read_json("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"documents\":[{}]}",
                         TD_ROUTE_TOKENIZE, &r, &e));
  assert_string_equal(e.param, "documents");
}

static void test_max_tokens(void **state)
{
  td_api_request r;
  assert_int_equal(try_member(TD_ROUTE_CHAT, "max_tokens", "-1", &r), 200);
  assert_int_equal(r.max_tokens, -1);
  assert_int_equal(try_member(TD_ROUTE_CHAT, "max_completion_tokens", "-1", &r), 200);
  assert_int_equal(r.max_completion_tokens, -1);
  assert_int_equal(try_member(TD_ROUTE_CHAT, "max_tokens", "null", &r), 200);
  assert_false(r.has_max_tokens);
  expect(400, TD_ROUTE_CHAT, "max_tokens", "0");
  expect(400, TD_ROUTE_CHAT, "max_completion_tokens", "0");
  expect(400, TD_ROUTE_COMPLETIONS, "max_tokens", "-2");
}

static void test_together(void **state)
{
  td_api_request r;
  td_api_error e;
  assert_true(read_json("{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
                        TD_ROUTE_COMPLETIONS, &r, &e));
  assert_true(r.include_usage);
  expect(400, TD_ROUTE_COMPLETIONS, "stream_options", "{\"include_usage\":true}"); /* without stream */
  assert_false(r.continuous_usage_stats);
  assert_true(read_json("{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                        "\"continuous_usage_stats\":true}}",
                        TD_ROUTE_COMPLETIONS, &r, &e));
  assert_true(r.include_usage && r.continuous_usage_stats);
  assert_false(read_json("{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":1}}",
                         TD_ROUTE_COMPLETIONS, &r, &e));
  assert_string_equal(e.param, "stream_options.include_usage");
  assert_false(
      read_json("{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_obfuscation\":true}}",
                TD_ROUTE_COMPLETIONS, &r, &e));
  assert_string_equal(e.message, "'stream_options.include_obfuscation' is not served");
  expect(400, TD_ROUTE_CHAT, "chat_template_kwargs", "{\"messages\":[]}");
  expect(400, TD_ROUTE_CHAT, "chat_template_kwargs", "[]");
  expect(200, TD_ROUTE_CHAT, "chat_template_kwargs", "{\"enable_thinking\":false}");
  assert_true(
      read_json("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"continue_final_message\":true}",
                TD_ROUTE_CHAT, &r, &e));
  assert_false(r.add_generation_prompt);
  assert_false(
      read_json("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"continue_final_message\":true,"
                "\"add_generation_prompt\":true}",
                TD_ROUTE_CHAT, &r, &e));
  assert_string_equal(e.param, "continue_final_message");
}

/* Absent values are the model's; given values are used exactly. */
static void test_sampling(void **state)
{
  td_api_request r;
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

/* The repetition penalty of the model's files, if a request does not set one. */
static void test_default_penalty(void **state)
{
  const td_request_rules by = {{.temperature = 1, .top_p = 1, .repetition_penalty = 1.25f}, 1000, false};
  td_api_request r;
  td_api_error e = {0};
  assert_true(read_by(&by, "{\"prompt\":\"x\"}", TD_ROUTE_COMPLETIONS, &r, &e));
  assert_float_equal(td_request_sampling(&r).repetition_penalty, 1.25, 0);
  td_request_deinit(&r);
  assert_true(read_by(&by, "{\"prompt\":\"x\",\"repetition_penalty\":1}", TD_ROUTE_COMPLETIONS, &r, &e));
  assert_float_equal(td_request_sampling(&r).repetition_penalty, 1, 0);
  td_request_deinit(&r);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_borders),
      cmocka_unit_test(test_stop_borders),
      cmocka_unit_test(test_seed),
      cmocka_unit_test(test_urgency),
      cmocka_unit_test(test_booleans),
      cmocka_unit_test(test_neutral),
      cmocka_unit_test(test_sampling_fields),
      cmocka_unit_test(test_sampling_as_read),
      cmocka_unit_test(test_unknown),
      cmocka_unit_test(test_unknown_is_bounded),
      cmocka_unit_test(test_near_misses),
      cmocka_unit_test(test_steering_fields),
      cmocka_unit_test(test_tokenize_takes_a_whole_request),
      cmocka_unit_test(test_max_tokens),
      cmocka_unit_test(test_together),
      cmocka_unit_test(test_sampling),
      cmocka_unit_test(test_default_penalty),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
