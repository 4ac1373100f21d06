/* What answers look like, to the byte: whole and streamed, by each route that writes them in a way of its
 * own; log-probabilities in their four forms; KV events in MessagePack. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/progress.h"
#include "server/call.h"
#include "server/request_log.h"
#include "server/said_json.h"

/* Tokens of an engine that is not there: 'a' is 1, a letter of two bytes in halves 20 and 21, a quote 22. */
void __wrap_td_engine_token_bytes(const td_engine *e, int32_t id, td_buf *out);
void __wrap_td_engine_token_bytes(const td_engine *e, int32_t id, td_buf *out)
{
  if (id < 20)
    td_buf_append_char(out, (char)('a' - 1 + id));
  else
    td_buf_append_char(out, id == 20 ? '\xc3' : id == 21 ? '\xa9' : '"');
}

static void is(td_buf *out, const char *want)
{
  assert_false(out->failed);
  assert_string_equal(out->data ? out->data : "", want);
  td_buf_clear(out);
}

/* ---- a call whose choice says what the test lets it ---- */

typedef struct scene {
  td_server *server;
  td_call call;
  td_choice choice;
  td_prompt prompt;
  td_engine_info info;
  td_buf out;
} scene;

static void open_scene(scene *s, const td_api *api, bool stream)
{
  memset(s, 0, sizeof *s);
  s->server = calloc(1, sizeof *s->server);
  assert_non_null(s->server);
  s->call.server = s->server;
  s->call.api = api;
  s->call.info = &s->info;
  s->call.request.stream = stream;
  s->call.request.include_reasoning = true;
  s->call.created_s = 7;
  s->call.prompts = &s->prompt;
  s->call.n_prompts = 1;
  s->call.choices = &s->choice;
  s->call.n_choices = 1;
  strcpy(s->call.id, "resp_0123456789abcdef0123456789abcdef");
  strcpy(s->info.model_name, "m");
  s->choice.call = &s->call;
  s->choice.n_prompt = 10;
  s->choice.n_cached = 4;
  s->choice.n_read = 6;
  s->choice.n_reasoning = 2;
  td_said_init(&s->choice.said);
  td_said_init(&s->choice.told);
  td_buf_init(&s->out, 0);
}

static void close_scene(scene *s)
{
  td_said_deinit(&s->choice.said);
  td_said_deinit(&s->choice.told);
  td_buf_deinit(&s->choice.logprobs);
  td_buf_deinit(&s->choice.out);
  td_buf_deinit(&s->choice.ids);
  td_buf_deinit(&s->prompt.logprobs);
  td_buf_deinit(&s->prompt.json);
  td_buf_deinit(&s->call.echo);
  td_buf_deinit(&s->out);
  free(s->server);
}

static void say(scene *s, td_said_kind kind, uint32_t call, const char *text)
{
  s->choice.said.n_calls += kind == TD_SAID_CALL;
  td_said_add(&s->choice.said, kind, call, text, strlen(text));
}

static const char *id_of(const scene *s, uint32_t n)
{
  static char id[4][TD_CALL_ID_BYTES];
  td_said_json_id(&s->choice, n, id[n]);
  return id[n];
}

/* An answer's delta, as generation.c sends it. */
static void delta(scene *s, bool first, const char *finish)
{
  td_delta d = {.choice = &s->choice, .first = first, .finish = finish};
  s->choice.finish = finish;
  s->call.api->render_delta(&s->call, &d, &s->out);
  td_said_clear(&s->choice.said);
}

static void expect(scene *s, const char *fmt, ...) TD_PRINTF(2, 3);
static void expect(scene *s, const char *fmt, ...)
{
  static char want[16384];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(want, sizeof want, fmt, ap);
  va_end(ap);
  is(&s->out, want);
}

/* ---- ids of calls ---- */

/* Of its choice, its place and the answer, and of nothing else; nine letters and digits for Mistral's
 * templates. */
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
          td_said_json_id(&s.choice, n, id);
          td_said_json_id(&s.choice, n, again);
          assert_string_equal(id, again);
          assert_int_equal(strlen(id), mistral ? 9 : 29);
          if (!mistral)
            assert_memory_equal(id, "call_", 5);
          assert_int_equal(strspn(id + (mistral ? 0 : 5), "0123456789abcdef"), mistral ? 9 : 24);
          for (size_t i = 0; i < n_seen; i++)
            assert_string_not_equal(seen[i], id);
          strcpy(seen[n_seen++], id);
          /* clients keep them: they stay what they are from one version to the next */
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

static void say_all(scene *s)
{
  say(s, TD_SAID_REASONING, 0, "hm\"");
  say(s, TD_SAID_CONTENT, 0, "one");
  say(s, TD_SAID_CALL, 0, "f");
  say(s, TD_SAID_ARGUMENTS, 0, "{\"a\":1}");
  say(s, TD_SAID_CALL, 1, "g");
  say(s, TD_SAID_CONTENT, 0, "two");
}

static void test_chat_message(void **state)
{
  scene s;
  open_scene(&s, &td_api_chat, false);
  td_said_json_message(&s.choice, &s.out);
  expect(&s, ",\"content\":\"\""); /* it said nothing */
  say(&s, TD_SAID_REASONING, 0, "hm");
  td_said_json_message(&s.choice, &s.out);
  expect(&s, ",\"content\":null,\"reasoning_content\":\"hm\",\"reasoning\":\"hm\"");
  s.call.request.include_reasoning = false;
  td_said_json_message(&s.choice, &s.out);
  expect(&s, ",\"content\":null");
  s.call.request.include_reasoning = true;
  td_said_clear(&s.choice.said);
  say_all(&s);
  td_said_json_message(&s.choice, &s.out);
  expect(
      &s,
      ",\"content\":\"onetwo\",\"reasoning_content\":\"hm\\\"\",\"reasoning\":\"hm\\\"\",\"tool_calls\":["
      "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}},"
      "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]",
      id_of(&s, 0), id_of(&s, 1));
  td_said_clear(&s.choice.said);
  say(&s, TD_SAID_CALL, 2, "h"); /* the last thing it said */
  td_said_json_message(&s.choice, &s.out);
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
  say_all(&s);
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
  say(&s, TD_SAID_REASONING, 0, "hm");
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

static void whole(scene *s, const char *finish)
{
  s->choice.finish = finish;
  s->call.api->render_answer(&s->call, &s->out);
}

static void test_messages_whole(void **state)
{
  scene s;
  open_scene(&s, &td_api_messages, false);
  say_all(&s); /* g has no input: it is not told */
  whole(&s, "tool_calls");
  expect(&s,
         MESSAGE
         "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":\"hm\\\"\"},{\"type\":\"text\",\"text\":"
         "\"one\"},{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":\"f\",\"input\":{\"a\":1}},"
         "{\"type\":\"text\",\"text\":\"two\"}],\"stop_reason\":\"tool_use\",\"stop_sequence\":null," USAGE,
         id_of(&s, 0));
  td_said_clear(&s.choice.said);
  whole(&s, "length");
  expect(&s, MESSAGE "],\"stop_reason\":\"max_tokens\",\"stop_sequence\":null," USAGE);
  s.choice.said.n_calls = 0;
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

/* Input that a client's JSON could not read is made so that it can; what is no object is not told. */
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
    say(&s, TD_SAID_CALL, 0, "f");
    say(&s, TD_SAID_ARGUMENTS, 0, cases[i].said);
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
  say(&s, TD_SAID_REASONING, 0, "hm");
  delta(&s, false, NULL);
  expect(&s,
         EVENT("content_block_start",
               ",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}")
             EVENT("content_block_delta",
                   ",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"hm\"}"));
  say(&s, TD_SAID_REASONING, 0, "!");
  say(&s, TD_SAID_CONTENT, 0, "\"one");
  say(&s, TD_SAID_CALL, 0, "f");
  say(&s, TD_SAID_ARGUMENTS, 0, "{\"a\"");
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
  say(&s, TD_SAID_ARGUMENTS, 0, ":1}");
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

/* ---- OpenAI's responses ---- */

#define RESPONSE(status)                                                                                     \
  "{\"id\":\"resp_0123456789abcdef0123456789abcdef\",\"object\":\"response\",\"created_at\":7,"              \
  "\"status\":\"" status "\",\"model\":\"m\",\"error\":null,\"previous_response_id\":null,\"store\":false,"  \
  "\"background\":false,\"truncation\":\"disabled\",\"incomplete_details\":"
#define RESPONSE_USAGE                                                                                       \
  ",\"usage\":{\"input_tokens\":10,\"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":6,"      \
  "\"output_tokens_details\":{\"reasoning_tokens\":2},\"total_tokens\":16}}"
#define ITEM(front, n, status)                                                                               \
  "{\"id\":\"" front "_0123456789abcdef01234567000" n "\",\"status\":\"" status "\","
#define REASONING(n, status, text)                                                                           \
  ITEM("rs", n, status) "\"type\":\"reasoning\",\"summary\":[],\"content\":[" text "]}"
#define THOUGHT(text) "{\"type\":\"reasoning_text\",\"text\":\"" text "\"}"
#define CONTENT(n, status, text)                                                                             \
  ITEM("msg", n, status) "\"type\":\"message\",\"role\":\"assistant\",\"content\":[" text "]}"
#define TEXT(text) "{\"type\":\"output_text\",\"annotations\":[],\"text\":\"" text "\",\"logprobs\":[]}"
#define CALL(n, status, name, arguments)                                                                     \
  ITEM("fc", n, status)                                                                                      \
  "\"type\":\"function_call\",\"call_id\":\"%s\",\"name\":\"" name "\",\"arguments\":\"" arguments "\"}"

static void test_responses_whole(void **state)
{
  scene s;
  open_scene(&s, &td_api_responses, false);
  td_buf_append_str(&s.call.echo, ",\"echo\":1");
  say_all(&s);
  whole(&s, "stop");
  expect(
      &s,
      // clang-format off
      RESPONSE("completed") "null,\"echo\":1,\"output\":[" REASONING("0", "completed", THOUGHT("hm\\\""))
      "," CONTENT("1", "completed", TEXT("one")) "," CALL("2", "completed", "f", "{\\\"a\\\":1}") ","
      CALL("3", "completed", "g", "") "," CONTENT("4", "completed", TEXT("two")) "]" RESPONSE_USAGE
      // clang-format on
      ,
      id_of(&s, 0), id_of(&s, 1));
  td_said_cut(&s.choice.said, 4, 1);
  whole(&s, "length"); /* only the last of it is cut, which is a call here */
  expect(&s,
         // clang-format off
        RESPONSE("incomplete") "{\"reason\":\"max_output_tokens\"},\"echo\":1,\"output\":["
        REASONING("0", "completed", THOUGHT("hm\\\"")) "," CONTENT("1", "completed", TEXT("one")) ","
        CALL("2", "incomplete", "f", "{\\\"a\\\":1}") "]" RESPONSE_USAGE
         // clang-format on
         ,
         id_of(&s, 0));
  close_scene(&s);
}

#define NUMBERED(name, n, rest)                                                                              \
  "event: " name "\ndata: {\"type\":\"" name "\",\"sequence_number\":" n rest "}\n\n"
#define OF_ITEM(front, n) ",\"item_id\":\"" front "_0123456789abcdef01234567000" n "\",\"output_index\":" n
#define PART(text)                                                                                           \
  ",\"content_index\":0,\"part\":{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":"     \
  "\"" text "\"}"
#define THOUGHT_PART(text) ",\"content_index\":0,\"part\":{\"type\":\"reasoning_text\",\"text\":\"" text "\"}"

static void test_responses_stream(void **state)
{
  scene s;
  open_scene(&s, &td_api_responses, true);
  delta(&s, true, NULL);
  expect(&s, NUMBERED("response.created", "0",
                      ",\"response\":" RESPONSE("in_progress") "null,\"output\":[],\"usage\":null}")
                 NUMBERED("response.in_progress", "1",
                          ",\"response\":" RESPONSE("in_progress") "null,\"output\":[],\"usage\":null}"));
  say(&s, TD_SAID_REASONING, 0, "hm");
  delta(&s, false, NULL);
  expect(&s, NUMBERED("response.output_item.added", "2",
                      ",\"output_index\":0,\"item\":" REASONING("0", "in_progress", ""))
                 NUMBERED("response.content_part.added", "3", OF_ITEM("rs", "0") THOUGHT_PART(""))
                     NUMBERED("response.reasoning_text.delta", "4",
                              OF_ITEM("rs", "0") ",\"content_index\":0,\"delta\":\"hm\""));
  say(&s, TD_SAID_REASONING, 0, "!");
  say(&s, TD_SAID_CONTENT, 0, "one");
  say(&s, TD_SAID_CALL, 0, "f");
  delta(&s, false, NULL);
  expect(
      &s,
      NUMBERED("response.reasoning_text.delta", "5",
               OF_ITEM("rs", "0") ",\"content_index\":0,\"delta\":\"!\"")
          NUMBERED("response.reasoning_text.done", "6",
                   OF_ITEM("rs", "0") ",\"content_index\":0,\"text\":\"hm!\"")
              NUMBERED("response.content_part.done", "7", OF_ITEM("rs", "0") THOUGHT_PART("hm!")) NUMBERED(
                  "response.output_item.done", "8",
                  ",\"output_index\":0,\"item\":" REASONING(
                      "0", "completed", THOUGHT("hm!"))) NUMBERED("response.output_item.added", "9",
                                                                  ",\"output_index\":1,\"item\":" CONTENT(
                                                                      "1", "in_progress", ""))
                  NUMBERED("response.content_part.added", "10", OF_ITEM("msg", "1") PART("")) NUMBERED(
                      "response.output_text.delta", "11",
                      OF_ITEM("msg", "1") ",\"content_index\":0,\"logprobs\":[],\"delta\":\"one\"")
                      NUMBERED("response.output_text.done", "12",
                               OF_ITEM("msg", "1") ",\"content_index\":0,\"logprobs\":[],\"text\":\"one\"")
                          NUMBERED("response.content_part.done", "13", OF_ITEM("msg", "1") PART("one"))
                              NUMBERED("response.output_item.done", "14",
                                       ",\"output_index\":1,\"item\":" CONTENT("1", "completed", TEXT("one")))
                                  NUMBERED("response.output_item.added", "15",
                                           ",\"output_index\":2,\"item\":" CALL("2", "in_progress", "f", "")),
      id_of(&s, 0));
  say(&s, TD_SAID_ARGUMENTS, 0, "{}");
  delta(&s, false, NULL);
  expect(&s,
         NUMBERED("response.function_call_arguments.delta", "16", OF_ITEM("fc", "2") ",\"delta\":\"{}\""));
  say(&s, TD_SAID_CONTENT, 0, "two");
  delta(&s, false, NULL);
  expect(&s,
         NUMBERED("response.function_call_arguments.done", "17", OF_ITEM("fc", "2") ",\"arguments\":\"{}\"")
             NUMBERED("response.output_item.done", "18",
                      ",\"output_index\":2,\"item\":" CALL("2", "completed", "f", "{}"))
                 NUMBERED("response.output_item.added", "19",
                          ",\"output_index\":3,\"item\":" CONTENT("3", "in_progress", ""))
                     NUMBERED("response.content_part.added", "20", OF_ITEM("msg", "3") PART("")) NUMBERED(
                         "response.output_text.delta", "21",
                         OF_ITEM("msg", "3") ",\"content_index\":0,\"logprobs\":[],\"delta\":\"two\""),
         id_of(&s, 0));
  delta(&s, false, "length");
  expect(
      &s,
      NUMBERED("response.output_text.done", "22",
               OF_ITEM("msg", "3") ",\"content_index\":0,\"logprobs\":[],\"text\":\"two\"")
          NUMBERED("response.content_part.done", "23", OF_ITEM("msg", "3") PART("two")) NUMBERED(
              "response.output_item.done", "24",
              ",\"output_index\":3,\"item\":" CONTENT("3", "incomplete", TEXT("two")))
              NUMBERED(
                  "response.incomplete", "25",
                  ",\"response\":" RESPONSE(
                      "incomplete") "{\"reason\":\"max_output_tokens\"},\"output\":"
                                    "[" REASONING("0", "completed", THOUGHT("hm!")) "," CONTENT(
                                        "1", "completed",
                                        TEXT("one")) "," CALL("2", "completed", "f",
                                                              "{}") "," CONTENT("3",
                                                                                "incompl"
                                                                                "ete",
                                                                                TEXT(
                                                                                    "tw"
                                                                                    "o")) "]" RESPONSE_USAGE),
      id_of(&s, 0));
  td_api_error e;
  td_api_error_set(&e, 500, "engine_error", NULL, "it \"stopped\"");
  td_api_responses.render_error_event(&s.call, &e, &s.out);
  expect(&s, "event: error\ndata: "
             "{\"type\":\"error\",\"sequence_number\":26,\"code\":\"engine_error\",\"message\":\"it "
             "\\\"stopped\\\"\",\"param\":null}\n\n");
  e.code = NULL;
  td_api_responses.render_error_event(&s.call, &e, &s.out);
  expect(&s, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":26,\"code\":\"\",\"message\":\"it "
             "\\\"stopped\\\"\",\"param\":null}\n\n");
  close_scene(&s);
}

/* ---- log-probabilities ---- */

static const td_top_token top[][2] = {
    {{1, -0.5f}, {2, -1.5f}}, {{20, -0.25f}, {21, -2.f}}, {{3, -0.125f}, {4, -3.f}}};

/* Tokens b, a half of a letter, and c: the second likeliest, not among the likeliest, the likeliest. */
static void keep_three(td_buf *records, uint32_t n_top)
{
  static const int32_t ids[] = {2, 22, 3};
  static const float logprobs[] = {-1.5f, -INFINITY, -0.125f};
  uint32_t offset = 5;
  for (int i = 0; i < 3; i++)
    td_logprobs_keep(NULL, ids[i], &(td_token_logprob){logprobs[i]}, top[i], n_top, &offset, records);
  assert_int_equal(offset, 8);
  td_logprobs_keep(NULL, 20, &(td_token_logprob){-9.f}, top[0], n_top, &offset, records);
  assert_int_equal(offset, 9); /* a character begins with its first byte */
  td_logprobs_keep(NULL, 21, NULL, NULL, n_top, &offset, records);
  assert_int_equal(offset, 9);
  td_logprobs_keep(NULL, 1, NULL, NULL, n_top, NULL, records);
  assert_int_equal(records->len_bytes, 6 * td_logprob_record_bytes(n_top));
}

#define MEMBERS(token, logprob, bytes)                                                                       \
  "{\"token\":\"" token "\",\"logprob\":" logprob ",\"bytes\":[" bytes "]"

static void test_logprobs(void **state)
{
  td_buf records, out;
  td_api_request asked = {.n_top = 2};
  td_buf_init(&records, 0);
  td_buf_init(&out, 0);
  keep_three(&records, 2);
  td_logprob_view v = td_logprobs_view(&records, &asked, 2);
  assert_true(v.begin == 0 && v.end == 6 && v.n_told == 2);
  v.end = 3;
  td_logprobs_render_chat(NULL, &v, &out);
  is(&out,
     // clang-format off
     "{\"content\":[" MEMBERS("b", "-1.5", "98") ",\"top_logprobs\":[" MEMBERS("a", "-0.5", "97") "},"
     MEMBERS("b", "-1.5", "98") "}]}," MEMBERS("\\\"", "-9999", "34") ",\"top_logprobs\":["
     MEMBERS("\xEF\xBF\xBD", "-0.25", "195") "}," MEMBERS("\xEF\xBF\xBD", "-2", "169") "}]},"
     MEMBERS("c", "-0.125", "99") ",\"top_logprobs\":[" MEMBERS("c", "-0.125", "99") "},"
     MEMBERS("d", "-3", "100") "}]}],\"refusal\":null}"
     // clang-format on
  );
  v.begin = 2;
  v.n_told = 1;
  td_logprobs_render_list(NULL, &v, &out);
  is(&out, "[" MEMBERS("c", "-0.125", "99") ",\"top_logprobs\":[" MEMBERS("c", "-0.125", "99") "}]}]");
  v.end = 2;
  td_logprobs_render_list(NULL, &v, &out);
  is(&out, "[]");

  td_progress progress = {0};
  td_progress_here = &progress;
  td_logprob_view views[2] = {v, v};
  views[0].begin = 5, views[0].end = 6, views[0].n_told = 2; /* as a prompt's first: it has none */
  views[1].begin = 0, views[1].end = 3, views[1].n_told = 2;
  td_logprobs_render_completion(NULL, views, 2, &out);
  is(&out,
     "{\"tokens\":[\"a\",\"b\",\"\\\"\",\"c\"],\"token_logprobs\":[null,-1.5,-9999,-0.125],\"top_logprobs\":["
     "null,{\"a\":-0.5,\"b\":-1.5},{\"\xEF\xBF\xBD\":-0.25,\"\\\"\":-9999},{\"c\":-0.125,\"d\":-3}],"
     "\"text_offset\":[0,5,6,7]}");
  views[1].n_told = 0;
  td_logprobs_render_completion(NULL, views + 1, 1, &out);
  is(&out, "{\"tokens\":[\"b\",\"\\\"\",\"c\"],\"token_logprobs\":[-1.5,-9999,-0.125],\"top_logprobs\":["
           "{\"b\":-1.5},{\"\\\"\":-9999},{\"c\":-0.125}],\"text_offset\":[5,6,7]}");
  assert_true(progress.n_units > 0); /* a long one is no worker that hangs */

  asked.prompt_logprobs = 1;
  v.begin = 0, v.end = 3, v.n_told = 1;
  td_logprobs_render_prompt(NULL, &v, &out);
  is(&out,
     "[{\"2\":{\"logprob\":-1.5,\"rank\":2,\"decoded_token\":\"b\"},\"1\":{\"logprob\":-0.5,\"rank\":1,"
     "\"decoded_token\":\"a\"}},{\"22\":{\"logprob\":-9999,\"rank\":null,\"decoded_token\":\"\\\"\"},\"20\":{"
     "\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\"\xEF\xBF\xBD\"}},{\"3\":{\"logprob\":-0.125,\"rank\":"
     "1,"
     "\"decoded_token\":\"c\"}}]");
  v.begin = 4, v.end = 6, v.n_told = 2;
  td_logprobs_render_prompt(NULL, &v, &out);
  is(&out, "[null,null]");
  v.begin = 2, v.end = 3;
  td_logprobs_render_prompt(NULL, &v, &out);
  is(&out, "[{\"3\":{\"logprob\":-0.125,\"rank\":1,\"decoded_token\":\"c\"},\"4\":{\"logprob\":-3,\"rank\":2,"
           "\"decoded_token\":\"d\"}}]");
  td_progress_here = NULL;
  td_buf_deinit(&records);
  td_buf_deinit(&out);
}

/* Of the tokens that said the piece, and those that a stream has told before do not come again. */
static void test_logprobs_of_pieces(void **state)
{
  scene s;
  open_scene(&s, &td_api_responses, false);
  s.call.request.wants_logprobs = true;
  s.call.request.n_top = 2; /* top_logprobs 0: none of them is told */
  keep_three(&s.choice.logprobs, 2);
  s.choice.said.n_tokens = 1;
  say(&s, TD_SAID_REASONING, 0, "b");
  s.choice.said.n_tokens = 3;
  say(&s, TD_SAID_CONTENT, 0, "\"c");
  whole(&s, "stop");
  expect(&s,
         // clang-format off
        RESPONSE("completed") "null,\"output\":[" REASONING("0", "completed", THOUGHT("b")) ","
        CONTENT("1", "completed",
                "{\"type\":\"output_text\",\"annotations\":[],\"text\":\"\\\"c\",\"logprobs\":["
                MEMBERS("\\\"", "-9999", "34") ",\"top_logprobs\":[]},"
                MEMBERS("c", "-0.125", "99") ",\"top_logprobs\":[]}]}")
        "]" RESPONSE_USAGE
         // clang-format on
  );
  s.choice.n_logprobs_gone = 1;
  memmove(s.choice.logprobs.data, s.choice.logprobs.data + td_logprob_record_bytes(2),
          5 * td_logprob_record_bytes(2));
  s.choice.logprobs.len_bytes = td_logprob_record_bytes(2);
  whole(&s, "stop"); /* memory was short: what is there is told, and nothing behind it is read */
  expect(&s, RESPONSE("completed") "null,\"output\":[" REASONING("0", "completed", THOUGHT("b")) "," CONTENT(
                 "1", "completed",
                 "{\"type\":\"output_text\",\"annotations\":[],\"text\":\"\\\"c\",\"logprobs\":[" MEMBERS(
                     "\\\"", "-9999", "34") ",\"top_logprobs\":[]}]}") "]" RESPONSE_USAGE);
  close_scene(&s);
}

/* ---- completions ---- */

#define TEXT_COMPLETION                                                                                      \
  "{\"id\":\"resp_0123456789abcdef0123456789abcdef\",\"object\":\"text_completion\",\"created\":7,"          \
  "\"model\":\"m\",\"choices\":["

/* Two prompts of two choices each: a prompt and what of it was cached count once. */
static void test_usage_of_prompts(void **state)
{
  scene s;
  td_choice choices[4];
  td_prompt prompts[2] = {{0}};
  open_scene(&s, &td_api_completions, false);
  for (uint32_t i = 0; i < 4; i++)
    choices[i] = (td_choice){.call = &s.call,
                             .index = i,
                             .prompt = i / 2,
                             .n_prompt = i / 2 ? 100 : 10,
                             .n_cached = i / 2 ? 20 : 2,
                             .n_read = 1000 * (i + 1),
                             .finish = "stop"};
  s.call.choices = choices;
  s.call.n_choices = 4;
  s.call.prompts = prompts;
  s.call.n_prompts = 2;
  td_render_usage(&s.call, &s.out);
  expect(&s, "{\"prompt_tokens\":110,\"completion_tokens\":10000,\"total_tokens\":10110,"
             "\"prompt_tokens_details\":{\"cached_tokens\":22}}");
  td_render_usage_event(&s.call, &s.out);
  expect(&s, "data: " TEXT_COMPLETION "],\"usage\":{\"prompt_tokens\":110,\"completion_tokens\":10000,"
             "\"total_tokens\":10110,\"prompt_tokens_details\":{\"cached_tokens\":22}}}\n\n");
  close_scene(&s);
}

static void test_completion_with_logprobs(void **state)
{
  static const int32_t ids[] = {2, 22, 3};
  scene s;
  open_scene(&s, &td_api_completions, false);
  s.call.request = (td_api_request){.echo = true,
                                    .wants_logprobs = true,
                                    .n_top = 2,
                                    .has_prompt_logprobs = true,
                                    .return_token_ids = true};
  keep_three(&s.prompt.logprobs, 2);
  s.prompt.logprobs.len_bytes = 2 * td_logprob_record_bytes(2);
  keep_three(&s.choice.logprobs, 2);
  s.choice.logprobs.len_bytes = td_logprob_record_bytes(2);
  s.choice.n_prompt = 2;
  td_buf_append_str(&s.choice.out, "b\"b");
  td_buf_append_str(&s.prompt.json, "[2,22]");
  td_buf_append(&s.choice.ids, ids, sizeof ids);
  whole(&s, "length");
  expect(
      &s, TEXT_COMPLETION
      "{\"index\":0,\"text\":\"b\\\"b\",\"logprobs\":{\"tokens\":[\"b\",\"\\\"\",\"b\"],\"token_logprobs\":["
      "-1.5,-9999,-1.5],\"top_logprobs\":[{\"b\":-1.5},{\"\\\"\":-9999},{\"b\":-1.5}],\"text_offset\":[5,6,5]"
      "},"
      "\"finish_reason\":\"length\",\"prompt_logprobs\":[{\"2\":{\"logprob\":-1.5,\"rank\":2,\"decoded_"
      "token\":"
      "\"b\"}},{\"22\":{\"logprob\":-9999,\"rank\":null,\"decoded_token\":\"\\\"\"}}],\"prompt_token_ids\":["
      "2,22],"
      "\"token_ids\":[2,22,3]}],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":6,\"total_tokens\":8,"
      "\"prompt_tokens_details\":{\"cached_tokens\":4}}}");
  s.call.request.echo = false; /* what stands before the answer is not told */
  s.call.request.has_prompt_logprobs = s.call.request.return_token_ids = false;
  whole(&s, "stop");
  expect(&s, TEXT_COMPLETION
         "{\"index\":0,\"text\":\"b\\\"b\",\"logprobs\":{\"tokens\":[\"b\"],\"token_logprobs\":[-1.5],"
         "\"top_logprobs\":[{\"b\":-1.5}],\"text_offset\":[5]},\"finish_reason\":\"stop\"}],\"usage\":{"
         "\"prompt_tokens\":2,\"completion_tokens\":6,\"total_tokens\":8,\"prompt_tokens_details\":{"
         "\"cached_tokens\":4}}}");
  s.call.request.stream = true; /* a piece with nothing to tell has none; a whole answer has an empty list */
  td_buf_clear(&s.choice.logprobs);
  td_render_logprobs(&s.choice, 1, 1, &s.out);
  expect(&s, ",\"logprobs\":null");
  td_render_logprobs(&s.choice, 0, 1, &s.out);
  expect(&s, ",\"logprobs\":{\"tokens\":[\"b\"],\"token_logprobs\":[-1.5],\"top_logprobs\":[{\"b\":-1.5}],"
             "\"text_offset\":[5]}");
  s.call.request.stream = false;
  td_render_logprobs(&s.choice, 1, 1, &s.out);
  expect(&s, ",\"logprobs\":{\"tokens\":[],\"token_logprobs\":[],\"top_logprobs\":[],\"text_offset\":[]}");
  close_scene(&s);
}

/* ---- embeddings ---- */

#define VECTOR "{\"object\":\"list\",\"data\":[{\"object\":\"embedding\",\"index\":0,\"embedding\":"
#define VECTOR_END "}],\"model\":\"m\",\"usage\":{\"prompt_tokens\":10,\"total_tokens\":10}}"

static void test_embeddings(void **state)
{
  static const float v[] = {3, 4, 12, 0.5f};
  static const char *const base64[] = {"AABAQA==", "AABAQAAAgEA=", "AABAQAAAgEAAAEBB",
                                       "AABAQAAAgEAAAEBBAAAAPw=="};
  scene s;
  open_scene(&s, &td_api_embeddings, false);
  s.info.width = 4;
  td_buf_append(&s.choice.out, v, sizeof v);
  whole(&s, "stop");
  expect(&s, VECTOR "[3,4,12,0.5]" VECTOR_END);
  s.call.request.normalizes = true;
  s.call.request.dimensions = 3;
  whole(&s, "stop");
  expect(&s, VECTOR "[0.230769232,0.307692319,0.923076928]" VECTOR_END);
  s.call.request.dimensions = 2; /* of what is told the length is 1 */
  whole(&s, "stop");
  expect(&s, VECTOR "[0.600000024,0.800000012]" VECTOR_END);
  s.call.request.normalizes = false;
  s.call.request.wants_base64 = true;
  for (int n = 1; n <= 4; n++) {
    s.call.request.dimensions = n;
    whole(&s, "stop");
    expect(&s, VECTOR "\"%s\"" VECTOR_END, base64[n - 1]);
  }
  memset(s.choice.out.data, 0, sizeof v);
  s.call.request = (td_api_request){.normalizes = true};
  whole(&s, "stop");
  expect(&s, VECTOR "[0,0,0,0]" VECTOR_END); /* nothing is divided by 0 */
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

/* What the engine and the readers say, as clients are told. */
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

/* What the log tells of a call: the sums of its tokens, the times of its slowest choice, and how it ended. */
static void test_note_for_the_log(void **state)
{
  td_choice choices[3] = {
      {.n_prompt = 7, .n_cached = 1, .n_generated = 2, .submit_us = 1000, .first_run_us = 3500},
      {.n_prompt = 8, .n_cached = 2, .n_generated = 3, .submit_us = 1000, .first_run_us = 2000},
      {.n_prompt = 9, .n_cached = 4, .n_generated = 5, .first_run_us = 5000}, /* of no known begin */
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
      cmocka_unit_test(test_responses_whole),  cmocka_unit_test(test_responses_stream),
      cmocka_unit_test(test_logprobs),         cmocka_unit_test(test_logprobs_of_pieces),
      cmocka_unit_test(test_usage_of_prompts), cmocka_unit_test(test_completion_with_logprobs),
      cmocka_unit_test(test_embeddings),       cmocka_unit_test(test_reasons),
      cmocka_unit_test(test_errors_of_ours),   cmocka_unit_test(test_note_for_the_log),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
