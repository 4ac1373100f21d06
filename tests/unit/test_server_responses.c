/* Answers of responses, completions and embeddings, byte for byte; log-probabilities in their four forms. */
#include "server_scene_fixture.h"

#include <math.h>

#include "common/progress.h"

/* Tokens of a fake engine: 'a' is 1, the halves of a two-byte letter are 20 and 21, a quote is 22. */
void __wrap_td_engine_token_bytes(const td_engine *e, int32_t id, td_buf *out);
void __wrap_td_engine_token_bytes(const td_engine *e, int32_t id, td_buf *out)
{
  if (id < 20)
    td_buf_append_char(out, (char)('a' - 1 + id));
  else
    td_buf_append_char(out, id == 20 ? '\xc3' : id == 21 ? '\xa9' : '"');
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
  add_parts(&s);
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
  td_parsed_answer_cut(&s.choice.parsed, 4, 1);
  whole(&s, "length"); /* only the last part is cut off, which is a call here */
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
  add_part(&s, TD_PART_REASONING, 0, "hm");
  delta(&s, false, NULL);
  expect(&s, NUMBERED("response.output_item.added", "2",
                      ",\"output_index\":0,\"item\":" REASONING("0", "in_progress", ""))
                 NUMBERED("response.content_part.added", "3", OF_ITEM("rs", "0") THOUGHT_PART(""))
                     NUMBERED("response.reasoning_text.delta", "4",
                              OF_ITEM("rs", "0") ",\"content_index\":0,\"delta\":\"hm\""));
  add_part(&s, TD_PART_REASONING, 0, "!");
  add_part(&s, TD_PART_CONTENT, 0, "one");
  add_part(&s, TD_PART_CALL, 0, "f");
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
  add_part(&s, TD_PART_ARGUMENTS, 0, "{}");
  delta(&s, false, NULL);
  expect(&s,
         NUMBERED("response.function_call_arguments.delta", "16", OF_ITEM("fc", "2") ",\"delta\":\"{}\""));
  add_part(&s, TD_PART_CONTENT, 0, "two");
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

/* Tokens b, half of a letter, and c: the second likeliest, one not among the likeliest, the likeliest. */
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
  assert_true(v.begin == 0 && v.end == 6 && v.n_written == 2);
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
  v.n_written = 1;
  td_logprobs_render_list(NULL, &v, &out);
  is(&out, "[" MEMBERS("c", "-0.125", "99") ",\"top_logprobs\":[" MEMBERS("c", "-0.125", "99") "}]}]");
  v.end = 2;
  td_logprobs_render_list(NULL, &v, &out);
  is(&out, "[]");

  td_progress progress = {0};
  td_progress_here = &progress;
  td_logprob_view views[2] = {v, v};
  views[0].begin = 5, views[0].end = 6,
  views[0].n_written = 2; /* like a prompt's first token, which has no log-probability */
  views[1].begin = 0, views[1].end = 3, views[1].n_written = 2;
  td_logprobs_render_completion(NULL, views, 2, &out);
  is(&out,
     "{\"tokens\":[\"a\",\"b\",\"\\\"\",\"c\"],\"token_logprobs\":[null,-1.5,-9999,-0.125],\"top_logprobs\":["
     "null,{\"a\":-0.5,\"b\":-1.5},{\"\xEF\xBF\xBD\":-0.25,\"\\\"\":-9999},{\"c\":-0.125,\"d\":-3}],"
     "\"text_offset\":[0,5,6,7]}");
  views[1].n_written = 0;
  td_logprobs_render_completion(NULL, views + 1, 1, &out);
  is(&out, "{\"tokens\":[\"b\",\"\\\"\",\"c\"],\"token_logprobs\":[-1.5,-9999,-0.125],\"top_logprobs\":["
           "{\"b\":-1.5},{\"\\\"\":-9999},{\"c\":-0.125}],\"text_offset\":[5,6,7]}");
  assert_true(progress.n_units > 0); /* rendering a long answer counts as progress, not as a hanging worker */

  asked.prompt_logprobs = 1;
  v.begin = 0, v.end = 3, v.n_written = 1;
  td_logprobs_render_prompt(NULL, &v, &out);
  is(&out,
     "[{\"2\":{\"logprob\":-1.5,\"rank\":2,\"decoded_token\":\"b\"},\"1\":{\"logprob\":-0.5,\"rank\":1,"
     "\"decoded_token\":\"a\"}},{\"22\":{\"logprob\":-9999,\"rank\":null,\"decoded_token\":\"\\\"\"},\"20\":{"
     "\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\"\xEF\xBF\xBD\"}},{\"3\":{\"logprob\":-0.125,\"rank\":"
     "1,"
     "\"decoded_token\":\"c\"}}]");
  v.begin = 4, v.end = 6, v.n_written = 2;
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

/* Log-probabilities of the tokens of this text; those that a stream has already sent are not repeated. */
static void test_logprobs_of_pieces(void **state)
{
  scene s;
  open_scene(&s, &td_api_responses, false);
  s.call.request.wants_logprobs = true;
  s.call.request.n_top = 2; /* top_logprobs 0: none is returned */
  keep_three(&s.choice.logprobs, 2);
  s.choice.parsed.n_tokens = 1;
  add_part(&s, TD_PART_REASONING, 0, "b");
  s.choice.parsed.n_tokens = 3;
  add_part(&s, TD_PART_CONTENT, 0, "\"c");
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
  whole(&s, "stop"); /* memory ran out: what exists is returned, and nothing after it is read */
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

/* Two prompts of two choices each: each prompt, and its cached tokens, count once. */
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
  s.call.request.echo = false; /* the text before the answer is not returned */
  s.call.request.has_prompt_logprobs = s.call.request.return_token_ids = false;
  whole(&s, "stop");
  expect(&s, TEXT_COMPLETION
         "{\"index\":0,\"text\":\"b\\\"b\",\"logprobs\":{\"tokens\":[\"b\"],\"token_logprobs\":[-1.5],"
         "\"top_logprobs\":[{\"b\":-1.5}],\"text_offset\":[5]},\"finish_reason\":\"stop\"}],\"usage\":{"
         "\"prompt_tokens\":2,\"completion_tokens\":6,\"total_tokens\":8,\"prompt_tokens_details\":{"
         "\"cached_tokens\":4}}}");
  s.call.request.stream =
      true; /* an event without log-probabilities has no list; a whole answer has an empty one */
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
  s.call.request.dimensions = 2; /* the length of the returned vector is 1 */
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
  expect(&s, VECTOR "[0,0,0,0]" VECTOR_END); /* no division by 0 */
  close_scene(&s);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_responses_whole),  cmocka_unit_test(test_responses_stream),
      cmocka_unit_test(test_logprobs),         cmocka_unit_test(test_logprobs_of_pieces),
      cmocka_unit_test(test_usage_of_prompts), cmocka_unit_test(test_completion_with_logprobs),
      cmocka_unit_test(test_embeddings),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
