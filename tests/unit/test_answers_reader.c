/* Dialects and how answers are read by them, case by case: marks inside strings, how much text is held
 * back, incomplete calls, reasoning, special tokens. test_answers_splits has random texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "answers/structural_tag.h"
#include "answers/reader.h"
#include "common/json.h"

static td_tools tools;

static int make_tools(void **state)
{
  cJSON *t =
      cJSON_Parse("[{\"function\":{\"name\":\"f\",\"parameters\":{\"$defs\":{\"N\":{\"type\":\"integer\"}},"
                  "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"$ref\":\"#/$defs/N\"},"
                  "\"c\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}}}}}]");
  bool ok = td_tools_make(t, &tools);
  cJSON_Delete(t);
  return ok ? 0 : -1;
}

static int free_tools(void **state)
{
  td_tools_deinit(&tools);
  return 0;
}

/* ---- dialects ---- */

/* Tokens of the vocabulary, special ones with a star before them. */
static int32_t find_token(const void *arg, const char *text, bool *special)
{
  const char *const *tokens = arg;
  for (int32_t i = 0; tokens && tokens[i]; i++) {
    *special = *tokens[i] == '*';
    if (strcmp(tokens[i] + *special, text) == 0)
      return i;
  }
  *special = false;
  return -1;
}

static td_dialect dialect(const char *template, const char *const *tokens, const char *calls,
                          const char *reasoning)
{
  td_dialect d;
  td_dialect_signs s = {.template = template,
                        .n_template = strlen(template),
                        .calls = calls,
                        .reasoning = reasoning,
                        .find = find_token,
                        .arg = tokens};
  td_dialect_find(&s, &d);
  return d;
}

static void test_templates_tell_the_format(void **state)
{
  static const struct {
    const char *template;
    td_call_format format;
  } cases[] = {
      {"{{ messages }}", TD_CALLS_NONE},
      {"{% if tools %}{{ tools }}", TD_CALLS_HERMES},
      {"tools <tool_call>", TD_CALLS_HERMES},
      {"tools <tool_call>\n<function=a>", TD_CALLS_XML},
      {"[AVAILABLE_TOOLS] [TOOL_CALLS]", TD_CALLS_MISTRAL},
      {"tools <|python_tag|>", TD_CALLS_LLAMA},
      {"{\"name\": function name, \"parameters\": dictionary of", TD_CALLS_LLAMA},
      {"[func_name1(params_name1=params_value1)] tools", TD_CALLS_PYTHONIC},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_int_equal(dialect(cases[i].template, NULL, "auto", "auto").calls, cases[i].format);
  assert_true(dialect("{{ tools }}", NULL, "auto", "auto").is_guess);
  assert_int_equal(dialect("<tool_call>", NULL, "llama", "auto").calls, TD_CALLS_LLAMA);
  assert_int_equal(dialect("<tool_call>", NULL, "none", "auto").calls, TD_CALLS_NONE);
  assert_string_equal(td_dialect_calls_name(TD_CALLS_XML), "qwen3-coder");
}

static void test_reasoning_and_the_ends_of_prompts(void **state)
{
  static const char *const tokens[] = {"<think>", "</think>", NULL}, *const special[] = {"*[THINK]",
                                                                                         "*[/THINK]", NULL};
  assert_false(dialect("x", NULL, "auto", "auto").thinks);
  assert_true(dialect("x", NULL, "auto", "think").thinks);
  assert_true(dialect("split('</think>')", NULL, "auto", "auto").thinks);
  assert_false(dialect("</think>", tokens, "auto", "none").thinks);
  td_dialect d = dialect("x", tokens, "auto", "auto"), m = dialect("x", special, "auto", "auto");
  assert_true(d.thinks && m.thinks && m.marks[TD_MARK_THINK].id == 0 && d.marks[TD_MARK_THINK].id == -1);
  assert_string_equal(m.marks[TD_MARK_THINK].text, TD_MARK_BYTE "[THINK]");
  assert_int_equal(td_dialect_prompt_end(&d, "a<think>\n", 9), TD_PROMPT_THINKS);
  assert_int_equal(td_dialect_prompt_end(&m, "a[THINK]", 8), TD_PROMPT_THINKS);
  assert_int_equal(td_dialect_prompt_end(&d, "<think>\n\n</think>\n\n", 19), TD_PROMPT_HAS_THOUGHT);
  assert_int_equal(td_dialect_prompt_end(&d, "a<think>b", 9), TD_PROMPT_PLAIN);
  assert_int_equal(td_dialect_prompt_end(&d, "", 0), TD_PROMPT_PLAIN);
}

/* ---- answers ---- */

/* The reader's output as text, with C: R: and f(arguments) before each part. */
static void describe(const td_parsed_answer *s, char *out, size_t n)
{
  *out = '\0';
  for (size_t i = 0; i < s->n; i++) {
    const td_answer_part *p = &s->parts[i];
    static const char *const heads[] = {"C:", "R:", "!", "="};
    snprintf(out + strlen(out), n - strlen(out), "%s%.*s|", heads[p->kind], (int)p->n,
             td_answer_part_text(s, p));
  }
}

static void expect(const td_reader_rules *rules, const char *text, bool cut, const char *wanted)
{
  char got[1024];
  for (size_t piece = 1; piece < 40; piece += 13) {
    td_parsed_answer parsed;
    td_reader *r = td_reader_create(rules);
    td_parsed_answer_init(&parsed);
    for (size_t at = 0, n = strlen(text); at < n; at += piece)
      td_reader_push(r, text + at, piece < n - at ? piece : n - at, &parsed);
    td_reader_finish(r, cut, &parsed);
    describe(&parsed, got, sizeof got);
    td_parsed_answer_deinit(&parsed);
    td_reader_destroy(r);
    assert_string_equal(got, wanted);
  }
}

static td_reader_rules rules_of(const td_dialect *d, bool whole)
{
  return (td_reader_rules){.dialect = d, .tools = &tools, .reasons = true, .whole = whole};
}

static void test_hermes(void **state)
{
  td_dialect d = dialect("<tool_call>", NULL, "auto", "auto");
  td_reader_rules r = rules_of(&d, true), streams = rules_of(&d, false);
  expect(&r, "Hi <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}\n</tool_call>",
         false, "C:Hi|!f|={\"a\": \"</tool_call>\"}|");
  expect(
      &r,
      "<tool_call>{\"name\":\"g\"}</tool_call>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n",
      false, "!g|={}|!f|={}|");
  expect(&r, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"x\ny\t\"}}", false,
         "!f|={\"a\":\"x\\ny\\t\"}|");
  expect(&r, "say <tool_call> or <tool_cal", false, "C:say <tool_call> or <tool_cal|");
  expect(&r, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":tru}} z", false,
         "C:<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":tru}} z|");
  expect(&r, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1", false,
         "C:<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1|");
  expect(&r, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1", true, "!f|={\"a\":1|");
  expect(&streams, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":tru}} z", false,
         "!f|={\"a\":tru|C:}} z|");
  expect(&r, "a\n\nb ", false, "C:a\n\nb |");
  td_reader_rules none = r;
  none.tools = NULL;
  expect(&none, "<tool_call>{\"name\":\"f\"}</tool_call>", false,
         "C:<tool_call>{\"name\":\"f\"}</tool_call>|");
}

static void test_llama(void **state)
{
  static const char *const tokens[] = {"*<|python_tag|>", NULL};
  td_dialect d = dialect("<|python_tag|>", tokens, "auto", "auto");
  td_reader_rules r = rules_of(&d, true);
  expect(&r, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"f\", \"parameters\": {}}", false,
         "!f|={\"a\": 1}|!f|={}|");
  expect(&r, TD_MARK_BYTE "<|python_tag|>{\"name\": \"other\", \"parameters\": {}}", false, "!other|={}|");
  expect(&r, "{\"name\": \"other\", \"parameters\": {}}", false,
         "C:{\"name\": \"other\", \"parameters\": {}}|");
  expect(&r, "{\"city\": \"Oslo\"}", false, "C:{\"city\": \"Oslo\"}|");
  expect(&r, "So {\"name\": \"f\", \"parameters\": {}}", false,
         "C:So {\"name\": \"f\", \"parameters\": {}}|");
  expect(&r, TD_MARK_BYTE "<|python_tag|>brave_search.call(query=\"x\")", false,
         "C:brave_search.call(query=\"x\")|");
}

static void test_pythonic(void **state)
{
  td_dialect d = dialect("[func_name1(", NULL, "auto", "auto");
  td_reader_rules r = rules_of(&d, true);
  expect(&r, "[f(a='it\\'s \"', b=-1_000, c=[True, None, {'k': .5}]), f()]", false,
         "!f|={\"a\": \"it's \\\"\", \"b\": -1000, \"c\": [true, null, {\"k\": 0.5}]}|!f|={}|");
  expect(&r, "[f(a=\"\\ud83d\\ude00\\x41\\d\")]", false,
         "!f|={\"a\": \"\xF0\x9F\x98\x80"
         "A\\\\d\"}|");
  expect(&r, "[1, 2]", false, "C:[1, 2]|");
  expect(&r, "[g(a=1)]", false, "C:[g(a=1)]|");
  expect(&r, "[f(a={1: 2})]", false, "C:[f(a={1: 2})]|");
  expect(&r, "[f(1)]", false, "C:[f(1)]|");
  td_reader_rules streams = rules_of(&d, false);
  expect(&streams, "[f(a='x" TD_MARK_BYTE "y')]", false, "!f|={\"a\": \"x|C:y')]|");
}

static void test_mistral(void **state)
{
  static const char *const tokens[] = {"*[TOOL_CALLS]", "*[ARGS]", "*[CALL_ID]", NULL};
  td_dialect d = dialect("[TOOL_CALLS]", tokens, "auto", "auto"),
             old = dialect("[TOOL_CALLS]", NULL, "auto", "auto");
  td_reader_rules r = rules_of(&d, true), o = rules_of(&old, true);
  assert_true(!d.lists_calls && old.lists_calls);
  expect(&r,
         TD_MARK_BYTE "[TOOL_CALLS]f" TD_MARK_BYTE "[ARGS]{\"a\": 1}" TD_MARK_BYTE
                      "[TOOL_CALLS]g" TD_MARK_BYTE "[CALL_ID]abc123xyz" TD_MARK_BYTE "[ARGS]{}",
         false, "!f|={\"a\": 1}|!g|={}|");
  expect(&r, "the text [TOOL_CALLS]f{\"a\": 1}", false, "C:the text [TOOL_CALLS]f{\"a\": 1}|");
  expect(&r, "a" TD_MARK_BYTE "[ARGS]b", false, "C:ab|");
  expect(&o,
         "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"x\"}, {\"name\": \"g\", "
         "\"arguments\": {}}]",
         false, "!f|={\"a\": 1}|!g|={}|");
}

static void test_xml(void **state)
{
  td_dialect d = dialect("<function=", NULL, "auto", "auto");
  td_reader_rules r = rules_of(&d, true);
  expect(&r,
         "<tool_call>\n<function=f>\n<parameter=a>\n12 </parameter>\" "
         "\n</parameter>\n<parameter=b>\n7\n</parameter>\n"
         "<parameter=c>\nNone\n</parameter>\n</function>\n</tool_call>",
         false, "!f|={\"a\": \"12 </parameter>\\\" \", \"b\": 7, \"c\": null}|");
  expect(&r, "<function=f>\n<parameter=b>\nseven\n</parameter>\n</function>", false,
         "!f|={\"b\": \"seven\"}|");
  expect(&r, "<tool_call>\n<function=f>\n</function>\n</tool_call> Done", false, "!f|={}|C: Done|");
  expect(&r, "<function=f>\n<parameter=a>\nx", false, "C:<function=f>\n<parameter=a>\nx|");
}

static void test_reasoning(void **state)
{
  td_dialect d = dialect("<tool_call></think>", NULL, "auto", "auto");
  td_reader_rules r = rules_of(&d, true);
  expect(&r, "<think>\nWhy <tool_call>?\n</think>\n\nSo.", false, "R:Why <tool_call>?|C:So.|");
  expect(&r, "No <think>x</think>", false, "C:No <think>x</think>|");
  expect(&r, "<think>half", true, "R:half|");
  expect(&r, "<think></think>\n<tool_call>{\"name\":\"f\"}</tool_call>", false, "!f|={}|");
  r.prompt = TD_PROMPT_THINKS;
  expect(&r, "\nBecause </thin k.\n</think>\nSo.", false, "R:Because </thin k.|C:So.|");
  r.prompt = TD_PROMPT_HAS_THOUGHT;
  expect(&r, "<think>x", false, "C:<think>x|");
}

/* A token's text is the text after it: held back until then, or in the middle of a character. */
static void test_which_tokens_said_what(void **state)
{
  static const char *const tokens[] = {
      "<thi", "nk>", "Hm", "</think>", "So", " <", "tool", "_call>{\"name\":\"f\"}", "</tool_call>"};
  td_dialect d = dialect("<tool_call></think>", NULL, "auto", "auto");
  for (int whole = 0; whole < 2; whole++) {
    td_reader_rules rules = rules_of(&d, whole);
    td_reader *r = td_reader_create(&rules);
    td_parsed_answer parsed;
    td_parsed_answer_init(&parsed);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
      parsed.n_tokens = (uint32_t)i + 1;
      td_reader_push(r, tokens[i], strlen(tokens[i]), &parsed);
    }
    td_reader_finish(r, false, &parsed);
    assert_int_equal(parsed.n, 4);
    assert_int_equal(parsed.parts[0].token_end, 3);
    assert_int_equal(td_parsed_answer_token_begin(&parsed, 1), 3);
    assert_int_equal(parsed.parts[1].token_end, 5);
    assert_int_equal(parsed.parts[3].token_end, 8); /* a call's last mark yields no text */
    td_parsed_answer_clear(&parsed);
    assert_int_equal(td_parsed_answer_token_begin(&parsed, 0), 8);
    td_parsed_answer_deinit(&parsed);
    td_reader_destroy(r);
  }
}

/* Text is passed on immediately, except what may be a mark; a call as soon as its arguments begin. */
static void test_how_much_is_held_back(void **state)
{
  static const struct {
    const char *push, *said;
  } steps[] = {{"abc <", "C:abc|"},
               {"b> <tool", "C:abc <b>|"},
               {"_call>\n{\"name\": \"f\"", "C:abc <b>|"},
               {", \"arguments\": {", "C:abc <b>|!f|={|"},
               {"\"a\": \"x", "C:abc <b>|!f|={\"a\": \"x|"}};
  td_dialect d = dialect("<tool_call>", NULL, "auto", "auto");
  td_reader_rules rules = rules_of(&d, false);
  td_reader *r = td_reader_create(&rules);
  td_parsed_answer parsed;
  char got[256];
  td_parsed_answer_init(&parsed);
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    td_reader_push(r, steps[i].push, strlen(steps[i].push), &parsed);
    describe(&parsed, got, sizeof got);
    assert_string_equal(got, steps[i].said);
  }
  td_parsed_answer_deinit(&parsed);
  td_reader_destroy(r);
}

/* The largest number of blanks that is ever held back, and one more or less, before a mark and after a call.
 * The result must not depend on how the text is split. */
static void test_as_many_blanks_as_are_held(void **state)
{
  enum { HELD = 64 };
  td_dialect d = dialect("<tool_call></think>", NULL, "auto", "auto");
  static const char call[] = "<tool_call>{\"name\":\"f\"}</tool_call>";
  for (size_t n = HELD - 1; n <= HELD + 1; n++)
    for (size_t form = 0; form < 3; form++) {
      char text[512], got[2][1024];
      const char *front = form == 0 ? "ab" : form == 1 ? call : "<think>ab";
      int k = snprintf(text, sizeof text, "%s%*s%s", front, (int)n, "",
                       form == 0   ? call
                       : form == 1 ? "x"
                                   : "</think>x");
      for (size_t cut = 0; cut < 2; cut++) {
        td_reader_rules rules = rules_of(&d, true);
        td_reader *r = td_reader_create(&rules);
        td_parsed_answer parsed;
        size_t at = cut ? strlen(front) + HELD : (size_t)k;
        td_parsed_answer_init(&parsed);
        td_reader_push(r, text, at < (size_t)k ? at : (size_t)k, &parsed);
        td_reader_push(r, text + at, (size_t)k - at, &parsed);
        td_reader_finish(r, false, &parsed);
        describe(&parsed, got[cut], sizeof got[cut]);
        td_parsed_answer_deinit(&parsed);
        td_reader_destroy(r);
      }
      assert_string_equal(got[1], got[0]);
    }
}

/* ---- plans ---- */

/* Each list may be as long as a body. Searching one for each element of the other would take hours. */
static void test_plans_of_long_lists(void **state)
{
  enum { PROPERTIES = 1000, REQUIRED = 1 << 20 };
  static const char *const formats[] = {"pythonic", "qwen3-coder"};
  td_buf text;
  td_buf_init(&text, 0);
  td_buf_append_str(&text, "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"p\":{}");
  for (unsigned i = 0; i < PROPERTIES; i++)
    td_buf_printf(&text, ",\"p%u\":{}", i);
  td_buf_append_str(&text, "},\"required\":[\"last\"");
  for (unsigned i = 0; i < REQUIRED; i++)
    td_buf_append_str(&text, ",\"none\"");
  td_buf_append_str(&text, "]}}}]");
  assert_false(text.failed);
  cJSON *json = cJSON_Parse(text.data), *f = cJSON_GetObjectItem(cJSON_GetArrayItem(json, 0), "function"),
        *parameters = cJSON_GetObjectItem(f, "parameters"), *plan;
  assert_non_null(parameters);
  for (size_t i = 0; i < 2; i++) {
    td_dialect d = dialect("x", NULL, formats[i], "none");
    td_structural_tag_rules rules = {.dialect = &d, .tools = json, .required = true};
    assert_non_null(plan = td_structural_tag_make(&rules));
    cJSON_Delete(plan);
  }
  cJSON *few = cJSON_Parse("[\"p7\",1,\"p3\"]");
  assert_true(cJSON_ReplaceItemInObject(parameters, "required", few));
  td_dialect d = dialect("x", NULL, "pythonic", "none");
  td_structural_tag_rules rules = {.dialect = &d, .tools = json, .required = true};
  assert_non_null(plan = td_structural_tag_make(&rules));
  char *printed = cJSON_PrintUnformatted(plan);
  const char *p3 = strstr(printed, "\"p3="), *p7 = strstr(printed, "\", p7="), *p = strstr(printed, "\", p=");
  assert_true(p3 && p7 && p && p3 < p7 && p7 < p); /* required ones first, then the others */
  assert_null(strstr(p7 + 1, "p3="));
  cJSON_free(printed);
  cJSON_Delete(plan);
  cJSON_Delete(json);
  td_buf_deinit(&text);
}

/* However long and however cut: work in proportion to the text. */
static void test_long_texts(void **state)
{
  enum { N = 300000 };
  static const char *const parts[] = {" ", "<tool_call>", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":[",
                                      "<", "\n</para",    "{"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    for (td_call_format f = TD_CALLS_HERMES; f < TD_CALLS_FORMATS; f++) {
      td_dialect d = dialect("x", NULL, td_dialect_calls_name(f), "think");
      td_reader_rules rules = rules_of(&d, true);
      td_reader *r = td_reader_create(&rules);
      td_parsed_answer parsed;
      size_t n = 0, all = 0;
      td_parsed_answer_init(&parsed);
      for (; all < N; all += strlen(parts[i]))
        for (size_t k = 0; k < strlen(parts[i]); k += 3)
          td_reader_push(r, parts[i] + k, strnlen(parts[i] + k, 3), &parsed);
      td_reader_finish(r, false, &parsed);
      for (size_t k = 0; k < parsed.n; k++)
        n += parsed.parts[k].kind == TD_PART_CONTENT ? parsed.parts[k].n : 0;
      assert_int_equal(n, all);
      td_parsed_answer_deinit(&parsed);
      td_reader_destroy(r);
    }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_templates_tell_the_format),
      cmocka_unit_test(test_reasoning_and_the_ends_of_prompts),
      cmocka_unit_test(test_hermes),
      cmocka_unit_test(test_llama),
      cmocka_unit_test(test_pythonic),
      cmocka_unit_test(test_mistral),
      cmocka_unit_test(test_xml),
      cmocka_unit_test(test_reasoning),
      cmocka_unit_test(test_which_tokens_said_what),
      cmocka_unit_test(test_how_much_is_held_back),
      cmocka_unit_test(test_as_many_blanks_as_are_held),
      cmocka_unit_test(test_plans_of_long_lists),
      cmocka_unit_test(test_long_texts),
  };
  return cmocka_run_group_tests(tests, make_tools, free_tools);
}
