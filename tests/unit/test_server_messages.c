/* Messages and tools of a request: what is accepted, and how it is converted to one form. */
#include "server_request_fixture.h"

static void expect_messages(const char *json, int status, const char *param, const char *normal)
{
  td_api_error e = {0};
  td_unknown u = {0};
  cJSON *m = cJSON_Parse(json);
  assert_non_null(m);
  bool ok = td_messages_normalise(m, &(td_message_rules){false, 100}, &u, &e);
  if (ok != (status == 200) || (!ok && (e.status != status || strcmp(e.param, param) != 0)))
    fail_msg("%s: ok %d, %d '%s' %s", json, ok, e.status, e.param, e.message);
  if (ok) {
    char *text = cJSON_PrintUnformatted(m);
    assert_string_equal(text, normal);
    cJSON_free(text);
  }
  cJSON_Delete(m);
}

/* A limit for the values in all texts of a request together. */
static void test_tool_arguments_are_bounded(void **state)
{
  const char *call = "{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[1,2,3,4]}\"}}";
  td_buf text;
  for (size_t n = 1; n <= 4; n++) { /* 6 values each, of 13 */
    td_api_error e = {0};
    td_unknown u = {0};
    td_buf_init(&text, 0);
    td_buf_append_str(&text, "[{\"role\":\"assistant\",\"tool_calls\":[");
    for (size_t i = 0; i < n; i++)
      td_buf_printf(&text, "%s%s", i ? "," : "", call);
    td_buf_append_str(&text, "]}]");
    cJSON *m = cJSON_Parse(text.data);
    assert_int_equal(td_messages_normalise(m, &(td_message_rules){false, 13}, &u, &e), n <= 2);
    assert_true(n <= 2 || strcmp(e.param, "messages[0].tool_calls[2].function.arguments") == 0);
    cJSON_Delete(m);
    td_buf_deinit(&text);
  }
}

static void test_tools(void **state)
{
  td_api_request r;
  td_api_error e = {0};
  const char *tools[] = {"7", "[1]", "[{\"type\":\"function\"}]", "[{\"function\":{\"name\":\"f\"}}]", "[]"};
  for (size_t i = 0; i < 5; i++) {
    cJSON *t = cJSON_Parse(tools[i]);
    assert_int_equal(td_tools_check(t, &e), i >= 3);
    assert_true(i >= 3 || e.status == 400);
    cJSON_Delete(t);
  }
  assert_true(read_json("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{}],"
                        "\"tool_choice\":\"required\"}",
                        TD_ROUTE_TOKENIZE, &r, &e));
  assert_true(cJSON_IsArray(r.tools));
  td_request_deinit(&r);
  cJSON *m = cJSON_Parse("[{\"role\":\"developer\",\"content\":\"d\"}]");
  td_unknown u = {0};
  assert_true(td_messages_normalise(m, &(td_message_rules){true, 100}, &u, &e));
  assert_string_equal(td_json_get(m->child, "role")->valuestring, "developer");
  cJSON_Delete(m);
}

static void test_messages(void **state)
{
#define U "{\"role\":\"user\",\"content\":\"x\"}"
  expect_messages("[" U "]", 200, "", "[" U "]");
  expect_messages("[{\"role\":\"developer\",\"content\":\"d\"}," U "]", 200, "",
                  "[{\"role\":\"system\",\"content\":\"d\"}," U "]");
  expect_messages("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
                  "\"text\":\"b\"}]}]",
                  200, "", "[{\"role\":\"user\",\"content\":\"a\\nb\"}]");
  expect_messages("[{\"role\":\"user\",\"content\":[]}]", 200, "", "[{\"role\":\"user\",\"content\":\"\"}]");
  expect_messages(
      "[{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"annotations\":[],\"tool_calls\":null}]",
      200, "", "[{\"role\":\"assistant\",\"content\":\"\"}]");
  expect_messages("[{\"role\":\"assistant\"}]", 200, "", "[{\"role\":\"assistant\",\"content\":\"\"}]");
  expect_messages("[{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"c\"}]", 200, "",
                  "[{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"c\"}]");
  expect_messages("[{\"role\":\"user\",\"content\":\"x\",\"name\":\"n\"}]", 200, "",
                  "[{\"role\":\"user\",\"content\":\"x\",\"name\":\"n\"}]");
#define CALL(args) "{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":" args "}}"
#define CALLS(c) "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":" c "}]"
  /* text that states an object becomes it, and keeps its numbers' form; other text stays */
  expect_messages(CALLS("[" CALL("\"{\\\"a\\\": [1, true]}\"") "]"), 200, "",
                  CALLS("[" CALL("{\"a\":[1,true]}") "]"));
  expect_messages(CALLS("[" CALL("\"\"") "," CALL("{\"b\":2}") "]"), 200, "",
                  CALLS("[" CALL("{}") "," CALL("{\"b\":2}") "]"));
  expect_messages(CALLS("[" CALL("\"{cut\"") "," CALL("\"[1]\"") "]"), 200, "",
                  CALLS("[" CALL("\"{cut\"") "," CALL("\"[1]\"") "]"));
  expect_messages(CALLS("[" CALL("\"{\\\"a\\\":1,\\\"a\\\":2}\"") "]"), 200, "", /* models write that too */
                  CALLS("[" CALL("\"{\\\"a\\\":1,\\\"a\\\":2}\"") "]"));
  expect_messages(CALLS("[]"), 200, "", "[{\"role\":\"assistant\",\"content\":\"\"}]");
  expect_messages(CALLS("7"), 400, "messages[0].tool_calls", NULL);
  expect_messages(CALLS("[1]"), 400, "messages[0].tool_calls[0].function.name", NULL);
  expect_messages(CALLS("[" CALL("{}") ",{\"function\":{\"name\":null}}]"), 400,
                  "messages[0].tool_calls[1].function.name", NULL);
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
#define PARTS(p) "[" U ",{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}," p "]}]"
  expect_messages(PARTS("{\"type\":\"image_url\"}"), 400, "messages[1].content[1]", NULL);
  expect_messages(PARTS("{\"type\":\"text\"}"), 400, "messages[1].content[1].text", NULL);
  expect_messages(PARTS("{\"text\":\"b\"}"), 400, "messages[1].content[1]", NULL);
  expect_messages(PARTS("{\"type\":\"text\",\"txet\":\"b\"}"), 400, "messages[1].content[1].txet", NULL);
  expect_messages(PARTS("{\"type\":\"text\",\"text\":\"b\",\"image_url\":{}}"), 400,
                  "messages[1].content[1].image_url", NULL);
  expect_messages(PARTS("\"x\""), 400, "messages[1].content[1]", NULL);
  expect_messages(PARTS("null"), 400, "messages[1].content[1]", NULL);
  expect_messages(
      PARTS(
          "{\"type\":\"text\",\"text\":\"b\",\"cache_control\":{\"type\":\"ephemeral\"},\"id\":1,\"foo\":2}"),
      200, "", "[" U ",{\"role\":\"user\",\"content\":\"a\\nb\"}]");
  expect_messages("[{\"role\":\"user\",\"content\":\"x\",\"foo\":1,\"id\":\"i\",\"timestamp\":5,\"metadata\":"
                  "{\"a\":1},\"tool_calls\":[]}]",
                  200, "", "[" U "]");
  expect_messages(
      "[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"r\"}]", 200, "",
      "[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"r\",\"thinking\":\"r\"}]");
  expect_messages(
      "[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning\":\"r\"}]", 200, "",
      "[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning\":\"r\",\"reasoning_content\":\"r\","
      "\"thinking\":\"r\"}]");
  expect_messages(
      "[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning\":{\"a\":1},\"reasoning_content\":[1]}]", 200,
      "", "[{\"role\":\"assistant\",\"content\":\"x\"}]");
  expect_messages("[{\"role\":\"user\",\"Content\":\"x\"}]", 400, "messages[0].Content", NULL);
  expect_messages("[{\"role\":\"user\",\"content\":\"x\",\"\":1}]", 400, "messages[0].\"\"", NULL);
  expect_messages("[{\"role\":\"user\",\"content\":\"x\",\"audio\":{\"id\":1}}]", 400, "messages[0].audio",
                  NULL);
  expect_messages("[{\"role\":\"user\",\"content\":\"x\",\"name\":5}]", 400, "messages[0].name", NULL);
  expect_messages("[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", 400,
                  "messages[0].tool_calls[0].function.name", NULL);
  size_t max = td_limit_max(TD_LIMIT_MESSAGES);
  for (size_t over = 0; over < 2; over++) {
    cJSON *m = cJSON_CreateArray(), *u = cJSON_Parse(U);
    td_api_error e;
    td_unknown unknown = {0};
    for (size_t i = 0; i < max + over; i++)
      cJSON_AddItemToArray(m, cJSON_Duplicate(u, true));
    assert_int_equal(td_messages_normalise(m, &(td_message_rules){false, 100}, &unknown, &e), !over);
    cJSON_Delete(m);
    cJSON_Delete(u);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tool_arguments_are_bounded),
      cmocka_unit_test(test_tools),
      cmocka_unit_test(test_messages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
