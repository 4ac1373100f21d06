/* Answers byte for byte: whole and streamed, of chats and Anthropic's messages; errors, and the log lines. */
#include "server_scene_fixture.h"

#include <inttypes.h>

#include "common/hash.h"
#include "server/request_log.h"

/* ---- ids of calls ---- */

/* A call's id depends on the choice, the call's index and the answer only; nine letters and digits for
 * Mistral's templates. */
static void test_call_ids(void **state)
{
  scene s;
  char id[TD_CALL_ID_BYTES], again[TD_CALL_ID_BYTES], seen[40][TD_CALL_ID_BYTES];
  size_t n_seen = 0;
  open_scene(&s, &td_api_chat, false);
  for (int mistral = 0; mistral < 2; mistral++) {
    s.server->dialect.calls = mistral ? TD_CALLS_MISTRAL : TD_CALLS_HERMES;
    for (int answer = 0; answer < 2; answer++)
      for (s.choice.index = 0; s.choice.index < 3; s.choice.index++)
        for (uint32_t n = 0; n < 3; n++) {
          s.call.id[6] = (char)('a' + answer);
          td_parts_json_call_id(&s.choice, n, id);
          td_parts_json_call_id(&s.choice, n, again);
          assert_string_equal(id, again);
          assert_int_equal(strlen(id), mistral ? 9 : 29);
          if (!mistral)
            assert_memory_equal(id, "call_", 5);
          assert_int_equal(strspn(id + (mistral ? 0 : 5), "0123456789abcdef"), mistral ? 9 : 24);
          for (size_t i = 0; i < n_seen; i++)
            assert_string_not_equal(seen[i], id);
          strcpy(seen[n_seen++], id);
          /* clients store these ids, so they must not change between versions */
          uint64_t h =
              td_hash_bytes((uint64_t)s.choice.index * 4294967296u + n, s.call.id, strlen(s.call.id));
          if (mistral)
            snprintf(again, sizeof again, "%09" PRIx64, h % (UINT64_C(1) << 36));
          else
            snprintf(again, sizeof again, "call_%016" PRIx64 "%08x", h,
                     (unsigned)(td_hash_mix(h, 0x9E3779B97F4A7C15u) / 4294967296u));
          assert_string_equal(id, again);
        }
  }
  close_scene(&s);
}

/* ---- chat ---- */

static void test_chat_message(void **state)
{
  scene s;
  open_scene(&s, &td_api_chat, false);
  td_parts_json_message(&s.choice, &s.out);
  expect(&s, ",\"content\":\"\""); /* no text */
  add_part(&s, TD_PART_REASONING, 0, "hm");
  td_parts_json_message(&s.choice, &s.out);
  expect(&s, ",\"content\":null,\"reasoning_content\":\"hm\",\"reasoning\":\"hm\"");
  s.call.request.include_reasoning = false;
  td_parts_json_message(&s.choice, &s.out);
  expect(&s, ",\"content\":null");
  s.call.request.include_reasoning = true;
  td_parsed_answer_clear(&s.choice.parsed);
  add_parts(&s);
  td_parts_json_message(&s.choice, &s.out);
  expect(
      &s,
      ",\"content\":\"onetwo\",\"reasoning_content\":\"hm\\\"\",\"reasoning\":\"hm\\\"\",\"tool_calls\":["
      "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}},"
      "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]",
      id_of(&s, 0), id_of(&s, 1));
  td_parsed_answer_clear(&s.choice.parsed);
  add_part(&s, TD_PART_CALL, 2, "h"); /* its last text */
  td_parts_json_message(&s.choice, &s.out);
  expect(
      &s,
      ",\"content\":null,\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"h\","
      "\"arguments\":\"\"}}]",
      id_of(&s, 2));
  close_scene(&s);
}

#define CHUNK                                                                                                \
  "data: {\"id\":\"resp_0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\","            \
  "\"created\":7,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{"

static void test_chat_stream(void **state)
{
  scene s;
  open_scene(&s, &td_api_chat, true);
  delta(&s, true, NULL);
  expect(&s,
         CHUNK "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
  add_parts(&s);
  delta(&s, false, NULL);
  expect(&s,
         CHUNK
         "\"reasoning_content\":\"hm\\\"\",\"reasoning\":\"hm\\\"\"},\"logprobs\":null,"
         "\"finish_reason\":null}]}\n\n" CHUNK
         "\"content\":\"one\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHUNK
         "\"tool_calls\":[{\"index\":0,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"f\","
         "\"arguments\":\"\"}}]},\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHUNK
         "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\\\":1}\"}}]},"
         "\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHUNK
         "\"tool_calls\":[{\"index\":1,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"g\","
         "\"arguments\":\"\"}}]},\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHUNK
         "\"content\":\"two\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
         id_of(&s, 0), id_of(&s, 1));
  s.call.request.include_reasoning = false;
  add_part(&s, TD_PART_REASONING, 0, "hm");
  delta(&s, false, "tool_calls");
  expect(&s, CHUNK "},\"logprobs\":null,\"finish_reason\":\"tool_calls\"}]}\n\n");
  s.call.request.include_usage = s.call.request.continuous_usage_stats = true;
  delta(&s, true, NULL);
  expect(&s, CHUNK
         "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":"
         "{\"prompt_tokens\":10,\"completion_tokens\":0,\"total_tokens\":10,"
         "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n");
  delta(&s, false, "stop");
  expect(&s, CHUNK "},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":"
                   "{\"prompt_tokens\":10,\"completion_tokens\":6,\"total_tokens\":16,"
                   "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n");
  close_scene(&s);
}

/* ---- Anthropic's messages ---- */

#define MESSAGE                                                                                              \
  "{\"id\":\"resp_0123456789abcdef0123456789abcdef\",\"type\":\"message\",\"role\":\"assistant\","           \
  "\"model\":\"m\",\"content\":["
#define USAGE                                                                                                \
  "\"usage\":{\"input_tokens\":6,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":4,"           \
  "\"output_tokens\":6}}"

static void test_messages_whole(void **state)
{
  scene s;
  open_scene(&s, &td_api_messages, false);
  add_parts(&s); /* g has no input, so it is left out */
  whole(&s, "tool_calls");
  expect(&s,
         MESSAGE
         "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":\"hm\\\"\"},{\"type\":\"text\",\"text\":"
         "\"one\"},{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":\"f\",\"input\":{\"a\":1}},"
         "{\"type\":\"text\",\"text\":\"two\"}],\"stop_reason\":\"tool_use\",\"stop_sequence\":null," USAGE,
         id_of(&s, 0));
  td_parsed_answer_clear(&s.choice.parsed);
  whole(&s, "length");
  expect(&s, MESSAGE "],\"stop_reason\":\"max_tokens\",\"stop_sequence\":null," USAGE);
  s.choice.parsed.n_calls = 0;
  whole(&s, "stop");
  expect(&s, MESSAGE "],\"stop_reason\":\"end_turn\",\"stop_sequence\":null," USAGE);
  td_stop_set stops = {0};
  td_buf text;
  td_buf_init(&text, 0);
  assert_true(td_stop_set_add(&stops, "x", 1) && td_stop_set_add(&stops, "END\"", 4));
  td_stop_filter_init(&s.choice.filter, &stops);
  assert_true(td_stop_filter_push(&s.choice.filter, "aEND\"b", 6, &text));
  whole(&s, "stop");
  expect(&s, MESSAGE "],\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"END\\\"\"," USAGE);
  whole(&s, "length");
  expect(&s, MESSAGE "],\"stop_reason\":\"max_tokens\",\"stop_sequence\":null," USAGE);
  td_buf_deinit(&text);
  td_stop_filter_deinit(&s.choice.filter);
  td_stop_set_deinit(&stops);
  close_scene(&s);
}

/* Input that a client's JSON parser could not read is repaired; a call whose input is not an object is left
 * out. */
static void test_messages_input(void **state)
{
  static const struct {
    const char *said, *told; /* NULL: nothing */
  } cases[] = {{"{}", "{}"},
               {"{\"a\":\"\\\\ud800\"}", "{\"a\":\"\\\\ud800\"}"}, /* a backslash, and text */
               {"{\"a\":\"\\ud83d\\ude00\"}", "{\"a\":\"\\ud83d\\ude00\"}"},
               {"{\"a\":\"\\uD83D\\uDE00\"}", "{\"a\":\"\\uD83D\\uDE00\"}"},
               {"{\"a\":\"\\ud800\"}", "{\"a\":\"\\ufffd\"}"},
               {"{\"a\":\"\\udbff\\ud800\"}", "{\"a\":\"\\ufffd\\ufffd\"}"},
               {"{\"a\":\"\\udbff\\udfff\"}", "{\"a\":\"\\udbff\\udfff\"}"},
               {"{\"a\":\"\\udc00\\udc00\"}", "{\"a\":\"\\ufffd\\ufffd\"}"},
               {"{\"a\":\"\\ud800\\ud7ff\"}", "{\"a\":\"\\ufffd\\ud7ff\"}"},
               {"{\"a\":\"\\ud800\\ue000\"}", "{\"a\":\"\\ufffd\\ue000\"}"},
               {"{\"a\":\"\\ud7ff\\ue000\\u00e9\\n\"}", "{\"a\":\"\\ud7ff\\ue000\\u00e9\\n\"}"},
               {"{\"a\":\"\\udfff\"}", "{\"a\":\"\\ufffd\"}"},
               {"{\"a\":", NULL},
               {"{\"a\":1}}", NULL},
               {"", NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    scene s;
    open_scene(&s, &td_api_messages, false);
    add_part(&s, TD_PART_CALL, 0, "f");
    add_part(&s, TD_PART_ARGUMENTS, 0, cases[i].said);
    whole(&s, "length");
    if (cases[i].told)
      expect(&s,
             MESSAGE "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":\"f\",\"input\":%s}],\"stop_reason\":"
                     "\"max_tokens\",\"stop_sequence\":null," USAGE,
             id_of(&s, 0), cases[i].told);
    else
      expect(&s, MESSAGE "],\"stop_reason\":\"max_tokens\",\"stop_sequence\":null," USAGE);
    close_scene(&s);
  }
}

#define USAGE_IN                                                                                             \
  "\"usage\":{\"input_tokens\":6,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":4,"           \
  "\"output_tokens\":6}"
#define EVENT(name, rest) "event: " name "\ndata: {\"type\":\"" name "\"" rest "}\n\n"

static void test_messages_stream(void **state)
{
  scene s;
  open_scene(&s, &td_api_messages, true);
  delta(&s, true, NULL);
  expect(&s, EVENT("message_start",
                   ",\"message\":" MESSAGE "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":"
                   "{\"input_tokens\":6,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":4,"
                   "\"output_tokens\":1}}"));
  add_part(&s, TD_PART_REASONING, 0, "hm");
  delta(&s, false, NULL);
  expect(&s,
         EVENT("content_block_start",
               ",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}")
             EVENT("content_block_delta",
                   ",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"hm\"}"));
  add_part(&s, TD_PART_REASONING, 0, "!");
  add_part(&s, TD_PART_CONTENT, 0, "\"one");
  add_part(&s, TD_PART_CALL, 0, "f");
  add_part(&s, TD_PART_ARGUMENTS, 0, "{\"a\"");
  delta(&s, false, NULL);
  expect(
      &s,
      EVENT("content_block_delta", ",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"!\"}")
          EVENT("content_block_stop", ",\"index\":0")
              EVENT("content_block_start", ",\"index\":1,\"content_block\":{\"type\":\"text\",\"text\":\"\"}")
                  EVENT("content_block_delta",
                        ",\"index\":1,\"delta\":{\"type\":\"text_delta\",\"text\":\"\\\"one\"}")
                      EVENT("content_block_stop", ",\"index\":1") EVENT(
                          "content_block_start",
                          ",\"index\":2,\"content_block\":{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":"
                          "\"f\",\"input\":{}}")
                          EVENT("content_block_delta",
                                ",\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":"
                                "\"{\\\"a\\\"\"}"),
      id_of(&s, 0));
  add_part(&s, TD_PART_ARGUMENTS, 0, ":1}");
  delta(&s, false, "tool_calls");
  expect(&s, EVENT("content_block_delta",
                   ",\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\":1}\"}")
                 EVENT("content_block_stop", ",\"index\":2")
                     EVENT("message_delta",
                           ",\"delta\":{\"stop_reason\":\"tool_use\",\"stop_sequence\":null}," USAGE_IN));
  td_api_messages.render_end(&s.call, &s.out);
  expect(&s, EVENT("message_stop", ""));
  delta(&s, false, "length"); /* no block is open */
  expect(&s, EVENT("message_delta",
                   ",\"delta\":{\"stop_reason\":\"max_tokens\",\"stop_sequence\":null}," USAGE_IN));
  td_api_error e;
  td_api_error_set(&e, 503, "shutting_down", NULL, "no \"more\"");
  td_api_messages.render_error_event(&s.call, &e, &s.out);
  expect(&s,
         "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"no "
         "\\\"more\\\"\"}}\n\n");
  close_scene(&s);
}

/* ---- errors ---- */

/* A status of which HTTP's registry has another word would be "Unknown" here. */
static void test_reasons(void **state)
{
  static const struct {
    int status;
    const char *reason, *type;
    int retry_after_s;
  } all[] = {{200, "OK", "invalid_request_error", 0},
             {204, "No Content", "invalid_request_error", 0},
             {304, "Not Modified", "invalid_request_error", 0},
             {400, "Bad Request", "invalid_request_error", 0},
             {401, "Unauthorized", "authentication_error", 0},
             {403, "Forbidden", "permission_error", 0},
             {404, "Not Found", "not_found_error", 0},
             {405, "Method Not Allowed", "invalid_request_error", 0},
             {408, "Request Timeout", "timeout_error", 0},
             {413, "Content Too Large", "invalid_request_error", 0},
             {414, "URI Too Long", "invalid_request_error", 0},
             {415, "Unsupported Media Type", "invalid_request_error", 0},
             {417, "Expectation Failed", "invalid_request_error", 0},
             {429, "Too Many Requests", "rate_limit_error", 1},
             {431, "Request Header Fields Too Large", "invalid_request_error", 0},
             {499, "Unknown", "invalid_request_error", 0},
             {500, "Internal Server Error", "server_error", 0},
             {503, "Service Unavailable", "server_error", 2},
             {504, "Gateway Timeout", "timeout_error", 0}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    td_api_error e;
    td_buf out;
    td_buf_init(&out, 0);
    td_api_error_set(&e, all[i].status, "c", "p", "m %d", 1);
    assert_string_equal(td_http_reason(all[i].status), all[i].reason);
    assert_int_equal(e.status, all[i].status);
    assert_int_equal(e.retry_after_s, all[i].retry_after_s);
    td_api_error_render(&e, &out);
    char want[200];
    snprintf(want, sizeof want,
             "{\"error\":{\"message\":\"m 1\",\"type\":\"%s\",\"param\":\"p\",\"code\":\"c\"}}", all[i].type);
    is(&out, want);
    td_buf_deinit(&out);
  }
}

/* The finish reasons of the engine and the readers, in the clients' words. */
static void test_errors_of_ours(void **state)
{
  static const struct {
    td_status st;
    int status;
    const char *code, *param;
  } all[] = {
      {TD_ERR_REQUEST, 400, "invalid_value", "f"}, {TD_ERR_UNSUPPORTED, 400, "unsupported_parameter", "f"},
      {TD_ERR_CAPACITY, 429, "queue_full", ""},    {TD_ERR_NOMEM, 503, "out_of_memory", ""},
      {TD_ERR_DEVICE, 500, "internal_error", ""},  {TD_ERR_IO, 500, "internal_error", ""}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    td_error err;
    td_api_error e;
    td_fail_param(&err, all[i].st, "f", "why");
    td_api_error_from(&e, &err);
    assert_int_equal(e.status, all[i].status);
    assert_string_equal(e.code, all[i].code);
    assert_string_equal(e.param, all[i].param);
    assert_string_equal(e.message, "why");
  }
}

/* The log line of a call: the sums of its tokens, the times of its slowest choice, and how it ended. */
static void test_note_for_the_log(void **state)
{
  td_choice choices[3] = {
      {.n_prompt = 7, .n_cached = 1, .n_generated = 2, .submit_us = 1000, .first_run_us = 3500},
      {.n_prompt = 8, .n_cached = 2, .n_generated = 3, .submit_us = 1000, .first_run_us = 2000},
      {.n_prompt = 9, .n_cached = 4, .n_generated = 5, .first_run_us = 5000}, /* without a known begin */
  };
  choices[0].first_token_us = 4000;
  choices[0].last_token_us = 9000;
  choices[1].first_token_us = 6000;
  choices[1].last_token_us = 7000;
  td_call call = {.choices = choices, .n_choices = 3};
  td_request_note n = {0}, none = {0};
  td_request_log_note(&n, &call, NULL);
  assert_true(n.has_tokens);
  assert_true(n.prompt_tokens == 24 && n.cached_tokens == 7 && n.output_tokens == 10);
  assert_true(n.queue_ms == 2.5 && n.prefill_ms == 4 && n.decode_ms == 5);
  assert_string_equal(n.finish, "stop");
  choices[1].finish = "length";
  choices[2].finish = "stop";
  td_request_log_note(&n, &call, NULL);
  assert_string_equal(n.finish, "length");
  td_request_log_note(&n, &call, "abort");
  assert_string_equal(n.finish, "abort");
  td_request_log_note(&none, &(td_call){0}, "error");
  assert_false(none.has_tokens);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_call_ids),         cmocka_unit_test(test_chat_message),
      cmocka_unit_test(test_chat_stream),      cmocka_unit_test(test_messages_whole),
      cmocka_unit_test(test_messages_input),   cmocka_unit_test(test_messages_stream),
      cmocka_unit_test(test_reasons),          cmocka_unit_test(test_errors_of_ours),
      cmocka_unit_test(test_note_for_the_log),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
