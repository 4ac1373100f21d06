/* Memory runs out while a request's fields are read: whichever allocation fails, it is a 503 that says so,
 * and nothing leaks. Each body is also read once with memory, to show that it is valid. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "allocations_fixture.h"
#include "server/translate.h"

enum { ALLOCATIONS_MAX = 1000, VOCAB = 1000 };

static const td_request_rules rules = {{.temperature = 1, .top_p = 1}, VOCAB, false};
static const td_json_limits limits = {64, 65536, TD_ERR_REQUEST};

/* As a worker reads it (call.c), from the parsed body on. */
static bool read_body(const td_api *api, const cJSON *body, td_call *call)
{
  cJSON *chat = api->translate ? api->translate(call, body) : cJSON_Duplicate(body, true);
  if (!chat && !api->translate)
    td_api_error_set(&call->error, 503, "out_of_memory", NULL, "the test's own copy");
  bool ok = chat != NULL;
  if (ok) {
    ok = td_request_read(chat, api->is_chat ? TD_ROUTE_CHAT : api->route, &rules, &call->request,
                         &call->error);
    if (ok && call->request.messages)
      ok = td_messages_normalise((cJSON *)call->request.messages, &(td_message_rules){false, 1000},
                                 &call->request.unknown, &call->error);
    td_request_deinit(&call->request);
  }
  cJSON_Delete(chat);
  td_buf_deinit(&call->echo);
  return ok;
}

static void try_each(const td_api *api, const char *json)
{
  static td_call call;
  td_error err;
  cJSON *body;
  fails_at = -1;
  if (td_json_parse(json, strlen(json), &limits, &body, &err) != TD_OK)
    fail_msg("not JSON: %s: %s", json, err.message);
  bool ok = false;
  long k = 0;
  for (; !ok; k++) {
    assert_true(k < ALLOCATIONS_MAX);
    memset(&call, 0, sizeof call);
    call.api = api;
    n_calls = n_alive = 0;
    fails_at = k;
    ok = read_body(api, body, &call);
    fails_at = -1;
    if (ok ? n_calls > k : call.error.status != 503 || strcmp(call.error.code, "out_of_memory") != 0)
      fail_msg("%s: allocation %ld of %ld fails, and it is %d %s: %s", json, k, n_calls, call.error.status,
               call.error.code ? call.error.code : "", call.error.message);
    if (n_alive != 0)
      fail_msg("%s: allocation %ld of %ld fails, and %ld are left", json, k, n_calls, n_alive);
  }
  assert_true(k > 5);
  cJSON_Delete(body);
}

#define TOOL(name)                                                                                           \
  "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"parameters\":{\"type\":\"object\"}}}"

/* No references to items, because cJSON loses one if it finds no memory for its name. */
static void each_allocation_may_fail(void **state)
{
  static const struct {
    const td_api *api;
    const char *json;
  } bodies[] = {
      {&td_api_completions,
       "{\"prompt\":\"x\",\"stop\":[\"a\",\"bc\"],\"logit_bias\":{\"5\":1},\"stop_token_ids\":[1]}"},
      {&td_api_completions, "{\"prompt\":\"x\",\"guided_json\":\"{\\\"type\\\":\\\"object\\\"}\"}"},
      {&td_api_chat, "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                     "{\"type\":\"text\","
                     "\"text\":\"b\"}]},{\"role\":\"assistant\",\"thinking\":\"hm\",\"tool_calls\":[{\"id\":"
                     "\"i\",\"type\":\"function\","
                     "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[1,\\\"b\\\"]}\"}}]},{\"role\":"
                     "\"tool\",\"tool_call_id\":\"i\","
                     "\"content\":\"r\"},{\"role\":\"assistant\",\"content\":null,\"reasoning\":[1]}],"
                     "\"reasoning_effort\":\"low\","
                     "\"tools\":[" TOOL("f") "," TOOL("g") "],\"tool_choice\":{\"type\":\"function\","
                                                           "\"function\":{\"name\":\"g\"}}}"},
      {&td_api_messages,
       "{\"max_tokens\":5,\"system\":[{\"type\":\"text\",\"text\":\"s\"}],\"thinking\":{\"type\":\"enabled\"}"
       ","
       "\"stop_sequences\":[\"a\"],\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":"
       "\"assistant\",\"content\":["
       "{\"type\":\"thinking\",\"thinking\":\"hm\"},{\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"f\","
       "\"input\":{\"a\":1}}]},"
       "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"i\",\"content\":[{"
       "\"type\":\"text\","
       "\"text\":\"r\"}]}]}],\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":"
       "\"object\"}}],"
       "\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\",\"disable_parallel_tool_use\":true}}"},
      {&td_api_messages,
       "{\"max_tokens\":5,\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}],\"output_config\":{"
       "\"effort\":\"low\",\"format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"object\"}}}}"},
      {&td_api_responses, "{\"instructions\":\"s\",\"temperature\":1,\"input\":[{\"role\":\"user\","
                          "\"content\":\"x\"},{\"type\":\"reasoning\","
                          "\"content\":[{\"text\":\"hm\"}]},{\"type\":\"function_call\",\"call_id\":\"i\","
                          "\"name\":\"f\",\"arguments\":\"{}\"},"
                          "{\"type\":\"function_call_output\",\"call_id\":\"i\",\"output\":\"r\"}],\"tools\":"
                          "[{\"type\":\"function\",\"name\":\"f\","
                          "\"parameters\":{\"type\":\"object\"}}],\"tool_choice\":{\"type\":\"allowed_"
                          "tools\",\"mode\":\"auto\",\"tools\":[{"
                          "\"type\":\"function\",\"name\":\"f\"}]},\"metadata\":{\"a\":\"b\"},\"include\":["
                          "\"message.output_text.logprobs\"],"
                          "\"top_logprobs\":2}"},
      {&td_api_responses,
       "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{\"type\":"
       "\"object\"}}},\"reasoning\":{\"effort\":\"low\"},\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],"
       "\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}}"},
  };
  for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
    try_each(bodies[i].api, bodies[i].json);
}

int main(void)
{
  cJSON_Hooks hooks = {__wrap_malloc, __wrap_free};
  cJSON_InitHooks(&hooks);
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_may_fail)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
