/* Structural tags: which texts they accept, special tokens that only they may require, and what is refused
 * by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "models/grammar/grammar.h"
#include "../grammar_fixture.h"

/* All bytes except that of special tokens, tokens across the boundaries of marks, and a special one. */
static const char *const longer[] = {"<a", ">1", "1<", "</a>", "x<", "ab", TD_SPECIAL_BYTE "[X]"};
enum { N_LONGER = sizeof longer / sizeof *longer, SPECIAL = 256 + N_LONGER - 1, END, N_TOKENS };

static td_vocabulary *vocab;

static int make_vocab(void **state)
{
  vocab = grammar_fixture_vocabulary(longer, N_LONGER);
  return vocab ? 0 : -1;
}

static int free_vocab(void **state)
{
  td_vocabulary_destroy(vocab);
  return 0;
}

static td_status compile(const char *tag, td_grammar **g, td_error *err)
{
  return grammar_fixture_compile(vocab, TD_GRAMMAR_TAGS, tag, strlen(tag), g, err);
}

/* At each byte of a text that matches: a token is in the mask if and only if the matcher reads it. */
static void check_masks(td_grammar *g, const char *text)
{
  td_matcher *m = td_matcher_create(g);
  bool any;
  for (size_t i = 0;; i++) {
    int32_t id = grammar_fixture_disagrees(m, N_TOKENS, &any);
    if (id >= 0)
      fail_msg("token %d behind %.*s of %s", id, (int)i, text, text);
    if (!text[i])
      break;
    bool special = text[i] == TD_SPECIAL_BYTE[0];
    assert_true(td_matcher_read(m, special ? SPECIAL : (unsigned char)text[i]));
    i += special ? strlen("[X]") : 0;
  }
  td_matcher_destroy(m);
}

#define FORMAT(f) "{\"type\":\"structural_tag\",\"format\":" f "}"
#define TEXT(s) "{\"type\":\"const_string\",\"value\":\"" s "\"}"
#define NUMBER "{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"integer\"}}"
#define TAG "{\"type\":\"tag\",\"begin\":\"<a>\",\"content\":" NUMBER ",\"end\":\"</a>\"}"

typedef struct texts {
  const char *tag, *good[6], *bad[6];
} texts;

static const texts all[] = {
    {FORMAT("{\"type\":\"sequence\",\"elements\":[" TEXT("x") ",{\"type\":\"or\",\"elements\":[" TEXT(
         "y") "," NUMBER "]}]}"),
     {"xy", "x-7"},
     {"x", "y", "xy7"}},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a\"],\"tags\":[" TAG "]}"),
     {"", "free <b> text", "x<a>1</a>y<a>2</a>", "<<a>1</a>", "ends with <"},
     {"<a", "<a>x</a>", "<a>1", "<a>1</b>", "x<ab"}},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a\"],\"tags\":[" TAG "],\"at_least_one\":true,"
            "\"stop_after_first\":true}"),
     {"<a>1</a>", "x<a>1</a>"},
     {"", "x", "<a>1</a>y", "<a>1</a><a>1</a>"}},
    {FORMAT("{\"type\":\"tags_with_separator\",\"tags\":[" TAG
            "],\"separator\":\", \",\"at_least_one\":true}"),
     {"<a>1</a>", "<a>1</a>, <a>2</a>"},
     {"", "<a>1</a>,", "<a>1</a><a>2</a>"}},
    {FORMAT("{\"type\":\"tag\",\"begin\":\"\",\"content\":{\"type\":\"any_text\"},\"end\":\"</a>\"}"),
     {"</a>", "></a>", "a </ a></a>"},
     {"x", "</a>x", "x</a></a>"}},
    {FORMAT("{\"type\":\"any_text\",\"excludes\":[\"aab\",\"ba\"]}"),
     {"", "aaa", "ab", "\xE2\x98\x83"},
     {"aab", "aaaab", "xba", "\xC0"}},
    {FORMAT("{\"type\":\"sequence\",\"elements\":[{\"type\":\"any_text\"},{\"type\":\"token\",\"token\":\"[X]"
            "\"},"
            "{\"type\":\"regex\",\"pattern\":\"[0-9]\"}]}"),
     {"ab" TD_SPECIAL_BYTE "[X]1", TD_SPECIAL_BYTE "[X]1"},
     {"ab[X]1", "ab", TD_SPECIAL_BYTE "[X]"}},
    {FORMAT("{\"type\":\"star\",\"content\":{\"type\":\"grammar\",\"grammar\":\"root ::= \\\"k\\\"\"}}"),
     {"", "kk"},
     {"x"}},
    {FORMAT("{\"type\":\"optional\",\"content\":" NUMBER "}"), {"", "3"}, {"33x"}},
    {FORMAT("{\"type\":\"json_schema\",\"style\":\"python\",\"json_schema\":{\"enum\":[true,null,\"t\"]}}"),
     {"True", "None", "\"t\""},
     {"true", "null"}},
    {FORMAT("{\"type\":\"json_schema\",\"strict\":false,\"json_schema\":{\"uniqueItems\":true}}"),
     {"{}", "{\"a\":1}"},
     {"1"}},
    {"{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"<a>\",\"schema\":{\"type\":\"integer\"},"
     "\"end\":\"</a>\"}],"
     "\"triggers\":[\"<a\"]}",
     {"x", "<a>1</a>x"},
     {"<a>x"}},
};

static void test_texts(void **state)
{
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    td_grammar *g;
    td_error err;
    if (compile(all[i].tag, &g, &err) != TD_OK)
      fail_msg("%s: %s", all[i].tag, err.message);
    for (unsigned k = 0; k < 6 && all[i].good[k]; k++) {
      if (!grammar_fixture_takes(g, all[i].good[k]))
        fail_msg("%s does not take %s", all[i].tag, all[i].good[k]);
      check_masks(g, all[i].good[k]);
    }
    for (unsigned k = 0; k < 6 && all[i].bad[k]; k++)
      if (grammar_fixture_takes(g, all[i].bad[k]))
        fail_msg("%s takes %s", all[i].tag, all[i].bad[k]);
    td_grammar_drop(g);
  }
}

/* No text lets a special token through, whatever it allows. */
static void test_special_tokens_are_no_text(void **state)
{
  static const td_grammar_source sources[] = {
      {.kind = TD_GRAMMAR_REGEX, .text = "(.|\\n)*", .n_text = 7},
      {.kind = TD_GRAMMAR_GBNF, .text = "root ::= [^x]*", .n_text = 14}};
  uint32_t mask[(N_TOKENS + 31) / 32];
  for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
    td_grammar *g;
    td_error err;
    assert_int_equal(td_grammar_compile(vocab, &sources[i], &g, &err), TD_OK);
    td_matcher *m = td_matcher_create(g);
    td_matcher_fill(m, mask);
    assert_false(mask[SPECIAL / 32] >> SPECIAL % 32 & 1);
    assert_true(mask['a' / 32] >> 'a' % 32 & 1);
    td_matcher_destroy(m);
    td_grammar_drop(g);
  }
}

static void test_refused(void **state)
{
  static const struct {
    const char *tag, *says;
  } bad[] = {
      {"{\"type\":\"structural_tag\"}", "'format' must be an object"},
      {FORMAT("{\"type\":\"magic\"}"), "'magic' is not a format"},
      {FORMAT("{\"type\":\"const_string\"}"), "'value'"},
      {FORMAT("{\"type\":\"sequence\",\"elements\":[]}"), "'elements'"},
      {FORMAT("{\"type\":\"json_schema\",\"json_schema\":{\"not\":{\"multipleOf\":0.5}}}"), "'not'"},
      {FORMAT("{\"type\":\"json_schema\",\"json_schema\":{},\"style\":\"xml\"}"), "styles"},
      {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<b\"],\"tags\":[" TAG "]}"), "no trigger begins"},
      {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a\",\"<c\"],\"tags\":[" TAG "]}"),
       "begins no tag"},
      {FORMAT("{\"type\":\"any_text\",\"excludes\":[1]}"), "strings"},
      {FORMAT("{\"type\":\"regex\",\"pattern\":\"(\"}"), "')'"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    td_grammar *g;
    td_error err;
    if (compile(bad[i].tag, &g, &err) == TD_OK)
      fail_msg("%s was taken", bad[i].tag);
    if (!strstr(err.message, bad[i].says))
      fail_msg("%s: %s", bad[i].tag, err.message);
  }
  char deep[4096] = "";
  for (unsigned i = 0; i < 40; i++)
    strcat(deep, "{\"type\":\"star\",\"content\":");
  strcat(deep, NUMBER);
  for (unsigned i = 0; i < 40; i++)
    strcat(deep, "}");
  char tag[4200];
  snprintf(tag, sizeof tag, FORMAT("%s"), deep);
  td_grammar *g;
  td_error err;
  assert_int_not_equal(compile(tag, &g, &err), TD_OK);
  assert_non_null(strstr(err.message, "deeply"));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_texts),
      cmocka_unit_test(test_special_tokens_are_no_text),
      cmocka_unit_test(test_refused),
  };
  return cmocka_run_group_tests(tests, make_vocab, free_vocab);
}
