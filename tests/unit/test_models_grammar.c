/* Grammars: which texts they accept, byte by byte and token by token; masks compared with the matcher's
 * verdict on every token; refusals that name the keyword; rollback, budgets. Verdicts on schemas are those
 * of JSON Schema 2020-12 (python-jsonschema agrees). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/progress.h"
#include "config/limits.h"
#include "models/grammar/grammar.h"
#include "../grammar_fixture.h"

/* All bytes, and longer tokens that cross every kind of boundary: of strings, numbers, members, characters.
 */
static const char *const longer[] = {"\", \"",
                                     "\"a",
                                     "\": ",
                                     "{\"",
                                     "hello",
                                     "\"}",
                                     "true",
                                     "12",
                                     "\xE2\x98",
                                     "\x83",
                                     "\\u00",
                                     "\\\"",
                                     "\"},{",
                                     "]}",
                                     ", ",
                                     "a\":1",
                                     "null",
                                     "\n  ",
                                     "x\"",
                                     "9.5",
                                     "-1",
                                     "\xF0\x9F",
                                     "yes",
                                     "ab",
                                     "abcd",
                                     "x-ray",
                                     "na",
                                     "\xC3\xA9t\xC3\xA9",
                                     "\xE6\x97\xA5\xE6\x9C\xAC",
                                     " word",
                                     "a word of more than thirty-two characters",
                                     "1234567890123456789012345678901234567890",
                                     "0f",
                                     "a-b",
                                     "e\xC2\xA0g"};
enum { N_LONGER = sizeof longer / sizeof *longer, END = 256 + N_LONGER, N_TOKENS = END + 1 };

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

static td_status compile(td_grammar_kind kind, const char *text, td_grammar **g, td_error *err)
{
  return grammar_fixture_compile(vocab, kind, text, strlen(text), g, err);
}

static td_grammar *must_compile(td_grammar_kind kind, const char *text)
{
  td_grammar *g;
  td_error err;
  if (compile(kind, text, &g, &err) != TD_OK)
    fail_msg("%s: %s", text, err.message);
  return g;
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
    assert_true(td_matcher_read(m, (unsigned char)text[i]));
  }
  td_matcher_destroy(m);
}

typedef struct texts {
  td_grammar_kind kind;
  const char *source;
  const char *good[6], *bad[8];
} texts;

#define S TD_GRAMMAR_JSON_SCHEMA
static const texts all[] = {
    {S,
     "{}",
     {"{\"a\":[1,2.5e3,\"x\\n\\ud83d\\ude00\",{}]}", "null", "-0.5"},
     {"nul", "01", "\"\\ud83d\"", "[1,]"}},
    {S,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},"
     "\"required\":[\"a\"],\"additionalProperties\":false}",
     {"{\"a\":1}", "{\"a\": 12, \"b\": \"hello\"}", "{\n  \"a\": 1\n}"},
     {"{\"b\":\"x\"}", "{\"a\":1.5}", "{\"a\":1,\"c\":2}", "{}", "{\"a\":1,}"}},
    {S,
     "{\"type\":\"string\",\"pattern\":\"^a[0-9]+$\",\"maxLength\":4}",
     {"\"a1\"", "\"a123\""},
     {"\"a1234\"", "\"a\""}},
    {S, "{\"type\":\"string\",\"pattern\":\"b|^c$\"}", {"\"abba\"", "\"c\""}, {"\"cc\"", "\"\""}},
    {S, /* schemas that differ in keywords that are annotations elsewhere */
     "{\"type\":\"array\",\"prefixItems\":[{\"const\":{\"title\":\"x\"}},{\"const\":{\"title\":\"y\"}},"
     "{\"type\":\"object\",\"properties\":{\"default\":{\"const\":1}},\"required\":[\"default\"]},"
     "{\"type\":\"object\",\"properties\":{\"default\":{\"const\":2}},\"required\":[\"default\"]},"
     "{\"type\":\"integer\",\"title\":\"x\"},{\"type\":\"integer\",\"title\":\"y\"}],\"items\":false}",
     {"[{\"title\":\"x\"},{\"title\":\"y\"},{\"default\":1},{\"default\":2},3,4]"},
     {"[{\"title\":\"y\"}]", "[{\"title\":\"x\"},{\"title\":\"x\"}]",
      "[{\"title\":\"x\"},{\"title\":\"y\"},{\"default\":2}]",
      "[{\"title\":\"x\"},{\"title\":\"y\"},{\"default\":1},{\"default\":1}]"}},
    {S,
     "{\"type\":\"string\",\"minLength\":3,\"maxLength\":42}",
     {"\"a word of more than thirty-two characters\"", "\"a\\n\\ud83d\\ude00\"",
      "\"\xE6\x97\xA5\xE6\x9C\xAC.\""},
     {"\"a word of more than thirty-two characters..\"", "\"a\\n\"", "\"\\ud83d\\ude00\""}},
    {S,
     "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":1}}",
     {"[\"a\", \"\\u00e9t\xC3\xA9\"]", "[]"},
     {"[\"\"]", "[\"a\",\"\"]"}},
    {S,
     "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":2},{\"type\":\"string\",\"minLength\":4,\"maxLength\":"
     "1000}]}",
     {"\"\"", "\"ab\"", "\"abcd\"", "\"1234567890123456789012345678901234567890\""},
     {"\"abc\""}},
    {S,
     "{\"properties\":{\"a\":{},\"ab\":{},\"abcd\":{},\"hello\":{},\"na\":{},\"x-ray\":{}},"
     "\"additionalProperties\":{\"type\":\"integer\"},\"type\":\"object\",\"maxProperties\":3}",
     {"{\"a\":\"x\",\"abc\":3,\"hell\":1}", "{\"hello\":{},\"x-ray\":[],\"\xC3\xA9t\xC3\xA9\":1}",
      "{\"n\\n\":1}"},
     {"{\"ab\":1,\"abcd\":1,\"a\":1}", "{\"b\":{},\"abcd\":1}", "{\"abc\":true}"}},
    {S,
     "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"\xE2\x98\x83\xE2\x98\x83\"", "\"\\u00e9x\""},
     {"\"a\"", "\"aaaa\"", "\"\xE2\x98\""}},
    {S,
     "{\"type\":\"integer\",\"minimum\":-5,\"maximum\":123}",
     {"-5", "123", "0", "99"},
     {"-6", "124", "1000", "00"}},
    {S,
     "{\"type\":\"number\",\"minimum\":0.5,\"exclusiveMaximum\":2.25}",
     {"0.5", "0.500", "2.249", "2", "1"},
     {"0.49", "2.25", "2.250", "-1", "3"}},
    {S, "{\"type\":\"number\",\"exclusiveMinimum\":0}", {"0.01", "5"}, {"0", "0.0", "-1"}},
    {S, "{\"type\":\"number\",\"minimum\":-1.5}", {"-1.5", "-1.50", "-0.3", "7"}, {"-1.6", "-2", "-1.51"}},
    {S, "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":1}", {"7", "140"}, {"0", "15", "-7"}},
    {S,
     "{\"enum\":[\"a\",\"ab\",1,null,{\"x\":[1,2]}],\"type\":[\"string\",\"object\"]}",
     {"\"a\"", "\"ab\"", "{\"x\":[1, 2]}"},
     {"1", "null", "\"b\""}},
    {S, "{\"enum\":[\"a\",\"abc\"],\"minLength\":2}", {"\"abc\""}, {"\"a\""}},
    {S,
     "{\"$ref\":\"#/$defs/"
     "t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
     "\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"}}},\"additionalProperties\":false}}}",
     {"{\"v\":1,\"kids\":[{\"v\":2},{\"kids\":[]}]}", "{}"},
     {"{\"v\":\"x\"}", "{\"kids\":[1]}"}},
    {S,
     "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
     {"[1,2]", "[1, 2, 3]"},
     {"[1]", "[1,2,3,4]", "[]"}},
    {S,
     "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"const\":true}],\"items\":false}",
     {"[]", "[1]", "[1,true]"},
     {"[true]", "[1,true,1]"}},
    {S,
     "{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{\"b\":1}", "{\"a\":\"x\",\"aa\":3}", "{\"\":3}"},
     {"{\"\\u0061\":\"x\"}", "{\"b\":\"x\"}", "{\"b\":1,\"a\":\"x\"}"}},
    {S,
     "{\"type\":\"object\",\"properties\":{\"a/"
     "b\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{\"a/b\":null,\"c\":1}"},
     {"{\"a\\/b\":1}"}},
    {S,
     "{\"type\":\"object\",\"patternProperties\":{\"^x-\":{\"type\":\"integer\"}},\"additionalProperties\":{"
     "\"type\":\"string\"}}",
     {"{\"x-a\":1}", "{\"y\":\"q\"}"},
     {"{\"x-a\":\"q\"}", "{\"y\":1}"}},
    {S,
     "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,\"maxProperties\":"
     "2,\"additionalProperties\":false}",
     {"{\"a\":1,\"c\":1}", "{\"b\":1,\"c\":1}"},
     {"{\"a\":1}", "{}", "{\"a\":1,\"b\":1,\"c\":1}"}},
    {S,
     "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},{\"type\":\"object\","
     "\"properties\":{\"a\":{\"minimum\":3}}}]}",
     {"{\"a\":3}"},
     {"{\"a\":2}", "{}", "1"}},
    {S,
     "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"maxLength\":1}",
     {"\"a\"", "77"},
     {"\"ab\"", "null"}},
    {S,
     "{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":[\"k\"],\"type\":\"object\"},{"
     "\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"},\"n\":{\"type\":\"integer\"}},\"required\":"
     "[\"k\"]}]}",
     {"{\"k\":\"a\"}", "{\"k\":\"b\",\"n\":1}"},
     {"{\"k\":\"b\",\"n\":\"x\"}", "{\"k\":\"c\"}"}},
    {S, "{\"type\":\"string\",\"format\":\"date\"}", {"\"2024-01-31\""}, {"\"2024-02-31\"", "\"x\""}},
    {S, "{\"properties\":{\"a\":{}},\"unevaluatedProperties\":false}", {"{\"a\":1}", "{}"}, {"{\"b\":1}"}},
    {TD_GRAMMAR_JSON_OBJECT, "", {"{}", "{\"a\": [true, null]}"}, {"[]", "1", "{\"a\"}"}},
    {TD_GRAMMAR_REGEX,
     "(foo|ba[rz])+[^x]{2,3}\\d?",
     {"foobar12", "baz\xE2\x98\x83\xE2\x98\x83"
                  "3"},
     {"foo", "fooxx"}},
    {TD_GRAMMAR_REGEX, "^(a|b)$", {"a", "b"}, {"ab", ""}},
    {TD_GRAMMAR_REGEX, "(ab){70,200}", {NULL}, {"abab"}},
    {TD_GRAMMAR_CHOICE, "[\"yes\",\"no\",\"yesterday\"]", {"yes", "yesterday"}, {"yest", "n"}},
    {TD_GRAMMAR_GBNF,
     "root ::= expr\nexpr ::= term \"+\" expr | term \"-\" expr | term\nterm ::= [0-9]+ | \"(\" expr \")\" # "
     "c\n",
     {"1+2-(3+4)", "((((((((((((((((((((1))))))))))))))))))))"},
     {"1+", "(1"}},
};

static void test_texts(void **state)
{
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    td_grammar *g = must_compile(all[i].kind, all[i].source);
    for (size_t k = 0; k < 6 && all[i].good[k]; k++) {
      if (!grammar_fixture_takes(g, all[i].good[k]))
        fail_msg("%s does not take %s", all[i].source, all[i].good[k]);
      check_masks(g, all[i].good[k]);
    }
    for (size_t k = 0; k < 8 && all[i].bad[k]; k++)
      if (grammar_fixture_takes(g, all[i].bad[k]))
        fail_msg("%s takes %s", all[i].source, all[i].bad[k]);
    td_grammar_drop(g);
  }
}

/* Counts above the limit of unrolling: each length around block boundaries. */
static void test_counts(void **state)
{
  static const char *const schemas[] = {
      "{\"type\":\"string\",\"minLength\":130,\"maxLength\":4099}",
      "{\"type\":\"array\",\"minItems\":130,\"maxItems\":4099,\"items\":{\"const\":1}}"};
  static const unsigned lengths[] = {0,   1,   63,   64,   65,   129,  130,  131,  191,
                                     192, 193, 4031, 4032, 4097, 4098, 4099, 4100, 4160};
  static char text[10000];
  for (unsigned s = 0; s < 2; s++) {
    td_grammar *g = must_compile(S, schemas[s]);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
      size_t n = 0;
      text[n++] = s ? '[' : '"';
      for (unsigned k = 0; k < lengths[i]; k++) {
        if (s && k)
          text[n++] = ',';
        text[n++] = '1';
      }
      text[n++] = s ? ']' : '"';
      text[n] = '\0';
      assert_int_equal(grammar_fixture_takes(g, text), lengths[i] >= 130 && lengths[i] <= 4099);
    }
    td_grammar_drop(g);
  }
}

static void test_refused(void **state)
{
  static const struct {
    td_grammar_kind kind;
    const char *source;
    td_status status;
    const char *says;
  } cases[] = {
      {S, "{\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true}}}", TD_ERR_UNSUPPORTED,
       "'uniqueItems' at '/properties/a'"},
      {S, "{\"not\":{}}", TD_ERR_REQUEST, "no text fits"},
      {S, "{\"properties\":{\"a\":{\"not\":{\"multipleOf\":0.5}}}}", TD_ERR_UNSUPPORTED,
       "'not' at '/properties/a'"},
      {S, "{\"$ref\":\"http://x/y\"}", TD_ERR_UNSUPPORTED, "'$ref'"},
      {S, "{\"$ref\":\"#/a\"}", TD_ERR_REQUEST, "'$ref'"},
      /* an index in a JSON pointer has digits only, and no leading zero */
      {S, "{\"$defs\":[{},{}],\"$ref\":\"#/$defs/+1\"}", TD_ERR_REQUEST, "points nowhere"},
      {S, "{\"$defs\":[{},{}],\"$ref\":\"#/$defs/ 1\"}", TD_ERR_REQUEST, "points nowhere"},
      {S, "{\"$defs\":[{},{}],\"$ref\":\"#/$defs/01\"}", TD_ERR_REQUEST, "points nowhere"},
      {S, "{\"$defs\":[{},{}],\"$ref\":\"#/$defs/-0\"}", TD_ERR_REQUEST, "points nowhere"},
      {S, "{\"$defs\":[{},{}],\"$ref\":\"#/$defs/2\"}", TD_ERR_REQUEST, "points nowhere"},
      {S, "{\"$defs\":[{},false],\"$ref\":\"#/$defs/1\"}", TD_ERR_REQUEST, "no text fits"},
      {S, "{\"anyOf\":[{\"$ref\":\"#\"}]}", TD_ERR_REQUEST, "loop"},
      {S, "{\"oneOf\":[{\"type\":\"integer\"},{\"multipleOf\":0.3}]}", TD_ERR_UNSUPPORTED, "'oneOf'"},
      {S, "{\"type\":\"x\"}", TD_ERR_REQUEST, "'type'"},
      {S, "{\"type\":\"string\",\"pattern\":\"(?=a)\"}", TD_ERR_UNSUPPORTED, "look-around"},
      {S, "{\"type\":\"string\",\"minLength\":-1}", TD_ERR_REQUEST, "'minLength'"},
      {S, "false", TD_ERR_REQUEST, "no text fits"},
      {S, "{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}", TD_ERR_REQUEST,
       "no text fits"},
      {S, "{\"properties\":{\"a\":{\"format\":1}}}", TD_ERR_REQUEST, "'format' at '/properties/a'"},
      {S, "{\"properties\":{\"a\":{\"$ref\":[]}}}", TD_ERR_REQUEST, "'$ref' at '/properties/a'"},
      {S, "{\"properties\":{\"a\":{\"required\":true}}}", TD_ERR_REQUEST, "'required' at '/properties/a'"},
      {S, "{\"required\":[\"a\",1]}", TD_ERR_REQUEST, "'required' at '/'"},
      {S, "{\"allOf\":[{\"enum\":[1]},{\"enum\":2}]}", TD_ERR_REQUEST, "'enum' at '/allOf/1'"},
      /* a pattern that is too large to be tried never counts as one that a key does not match */
      {S,
       "{\"properties\":{\"a\":{}},\"patternProperties\":{\"^(a|(((b{60}){60}){60}){60})$\":false},"
       "\"additionalProperties\":false}",
       TD_ERR_REQUEST, "too large"},
      {TD_GRAMMAR_REGEX, "a\\b", TD_ERR_UNSUPPORTED, "byte 2"},
      {TD_GRAMMAR_REGEX, "(((a{1000}){1000}){1000}){1000}{1000}x(", TD_ERR_REQUEST, ""},
      {TD_GRAMMAR_GBNF, "root ::= root \"a\" | \"b\"", TD_ERR_REQUEST, "begins with itself"},
      {TD_GRAMMAR_GBNF, "root ::= a", TD_ERR_REQUEST, "'a'"},
      {TD_GRAMMAR_GBNF, "a ::= \"b\"", TD_ERR_REQUEST, "'root'"},
      {TD_GRAMMAR_GBNF, "root ::= \"a\n\n(", TD_ERR_REQUEST, "line"},
      {TD_GRAMMAR_CHOICE, "[]", TD_ERR_REQUEST, "choice"},
      {TD_GRAMMAR_REGEX, "a{2,100001}", TD_ERR_REQUEST, "'{'"},
      {TD_GRAMMAR_REGEX, "a{2,x}", TD_ERR_REQUEST, "'{'"},
      {TD_GRAMMAR_REGEX, "\\012", TD_ERR_UNSUPPORTED, "octal"},
      {TD_GRAMMAR_REGEX, "[\\01]", TD_ERR_UNSUPPORTED, "octal"},
      {TD_GRAMMAR_GBNF, "root ::= \"a\"{}", TD_ERR_REQUEST, "count"},
      {TD_GRAMMAR_GBNF, "root ::= \"a\"{x}", TD_ERR_REQUEST, "count"},
  };
  td_grammar *g;
  td_error err;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    td_status st = compile(cases[i].kind, cases[i].source, &g, &err);
    if (st != cases[i].status || !strstr(err.message, cases[i].says))
      fail_msg("%s: %d %s", cases[i].source, st, err.message);
  }
}

static void test_roll_back(void **state)
{
  td_grammar *g = must_compile(S, "{\"type\":\"object\",\"properties\":{\"name\":{\"enum\":[\"ab\",\"ac\"]}},"
                                  "\"required\":[\"name\"],\"additionalProperties\":false}");
  td_matcher *m = td_matcher_create(g);
  assert_true(td_matcher_read_bytes(m, "{\"", 2));
  assert_true(td_matcher_read_bytes(m, "name\":", 6) && td_matcher_read_bytes(m, "\"ac\"}", 5));
  assert_true(td_matcher_is_whole(m) && td_matcher_read(m, END));
  assert_false(td_matcher_read(m, 'x'));
  td_matcher_roll_back(m, 2);
  assert_true(!td_matcher_is_whole(m) && td_matcher_read_bytes(m, "\"ab\"}", 5) && td_matcher_is_whole(m));
  td_matcher_roll_back(m, 0);
  assert_true(td_matcher_read_bytes(m, "{", 1));
  td_matcher_destroy(m);
  td_grammar_drop(g);
}

/* Schemas made to explode: each ends, as a grammar or an error. */
static void test_hostile(void **state)
{
  static char text[200000];
  td_grammar *g;
  td_error err;
  size_t n = (size_t)sprintf(text, "{\"allOf\":[");
  for (int i = 0; i < 14; i++) /* 3^14 branches */
    n += (size_t)sprintf(text + n,
                         "%s{\"anyOf\":[{\"minLength\":%d},{\"maxLength\":%d},{\"pattern\":\"%c\"}]}",
                         i ? "," : "", i, 90 + i, 'a' + i);
  sprintf(text + n, "]}");
  assert_int_not_equal(compile(S, text, &g, &err), TD_OK);
  n = 0;
  for (int i = 0; i < 60; i++)
    n += (size_t)sprintf(text + n, "{\"items\":");
  n += (size_t)sprintf(text + n, "{}");
  for (int i = 0; i < 60; i++)
    text[n++] = '}';
  text[n] = '\0';
  td_grammar_drop(must_compile(S, text));
  n = (size_t)sprintf(text, "{\"enum\":[\"\"");
  for (int i = 0; i < 8000; i++)
    n += (size_t)sprintf(text + n, ",\"v%d\"", i * 7919);
  sprintf(text + n, "]}");
  g = must_compile(S, text);
  assert_true(grammar_fixture_takes(g, "\"v7919\"") && !grammar_fixture_takes(g, "\"v7918\""));
  td_grammar_drop(g);
  g = must_compile(TD_GRAMMAR_GBNF, "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\"");
  memset(text, 'a', 400);
  memset(text + 400, 'c', 400);
  text[800] = '\0';
  assert_true(grammar_fixture_takes(g, text));
  td_grammar_drop(g);
}

/* `head`, n times `body`, `tail`. */
static const char *repeated(const char *head, const char *body, size_t n, const char *tail)
{
  static char text[2000000];
  size_t at = (size_t)sprintf(text, "%s", head), n_body = strlen(body);
  assert_true(at + n * n_body + strlen(tail) < sizeof text);
  for (size_t i = 0; i < n; i++, at += n_body)
    memcpy(text + at, body, n_body);
  strcpy(text + at, tail);
  return text;
}

/* Patterns and rules made to loop, or to recurse for each of their bytes. */
static void test_hostile_text(void **state)
{
  static char text[200000];
  td_grammar *g;
  td_error err;
  const char *name = repeated("", "n", 129, " ::= \"a\""); /* a name that is too long, in its definition */
  assert_int_equal(compile(TD_GRAMMAR_GBNF, name, &g, &err), TD_ERR_REQUEST);
  size_t n = (size_t)sprintf(text, "root ::= \"a\"\n");
  for (unsigned i = 0; i < 4097; i++) /* the limit's last rule, and one more */
    n += (size_t)sprintf(text + n, "r%u ::= \"a\"\n", i);
  assert_int_equal(compile(TD_GRAMMAR_GBNF, text, &g, &err), TD_ERR_REQUEST);
  assert_non_null(strstr(err.message, "line 4097"));
  static const char *const marks[] = {"*", "+", "?", "{1,2}", "{2}"};
  for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
    td_grammar_drop(must_compile(TD_GRAMMAR_GBNF, repeated("root ::= \"a\"", marks[i], 8, "")));
    assert_int_equal(compile(TD_GRAMMAR_GBNF, repeated("root ::= \"a\"", marks[i], 100000, ""), &g, &err),
                     TD_ERR_REQUEST);
    assert_non_null(strstr(err.message, "repetition"));
    if (*marks[i] == '+') /* a++ is another word of patterns */
      continue;
    assert_int_equal(compile(TD_GRAMMAR_REGEX, repeated("a", marks[i], 100000, ""), &g, &err),
                     TD_ERR_REQUEST);
    assert_non_null(strstr(err.message, "repetition"));
  }
  assert_int_equal(compile(TD_GRAMMAR_REGEX, repeated("", "(", 100000, "a"), &g, &err), TD_ERR_REQUEST);
  assert_int_equal(compile(TD_GRAMMAR_GBNF, repeated("root ::= ", "(", 100000, ""), &g, &err),
                   TD_ERR_REQUEST);
  /* long lists are no levels */
  td_grammar_drop(must_compile(TD_GRAMMAR_REGEX, repeated("a", "|b", 100000, "")));
  td_grammar_drop(must_compile(TD_GRAMMAR_REGEX, repeated("", "a?", 100000, "")));
  td_grammar_drop(must_compile(TD_GRAMMAR_GBNF, repeated("root ::= \"a\"", "| \"b\"", 100000, "")));
  td_grammar_drop(must_compile(TD_GRAMMAR_GBNF, repeated("x ::= \"a\"\nroot ::= ", "x ", 100000, "")));
}

static char long_text[4000000];

/* Appends the format for each number from `from` to below `to`, with commas between. */
static size_t put_each(size_t at, const char *format, unsigned from, unsigned to)
{
  for (unsigned i = from; i < to; i++) {
    assert_true(at + 200 < sizeof long_text);
    at += (size_t)sprintf(long_text + at, i > from ? "," : "");
    at += (size_t)sprintf(long_text + at, format, i, i);
  }
  return at;
}

/* Compiles long_text, and checks that a watchdog was told about the work. */
static td_status compile_long(td_grammar **g, td_error *err)
{
  td_progress p = {0};
  td_progress_here = &p;
  td_status st = compile(S, long_text, g, err);
  td_progress_here = NULL;
  assert_true(atomic_load(&p.at_us) > 0);
  return st;
}

/* Lists that were searched for each of their items: a schema within the limits took minutes, none of which
 * counted as work. */
static void test_hostile_lists(void **state)
{
  td_grammar *g;
  td_error err;
  size_t n = put_each((size_t)sprintf(long_text, "{\"enum\":["), "\"v%u\"", 0, 60000);
  sprintf(long_text + n, "]}");
  assert_int_equal(compile_long(&g, &err), TD_OK);
  assert_true(grammar_fixture_takes(g, "\"v59999\"") && !grammar_fixture_takes(g, "\"v60000\""));
  td_grammar_drop(g);
  /* two lists that must both contain the value; two that have none in common */
  for (unsigned one = 0; one < 2; one++) {
    n = (size_t)sprintf(long_text, one ? "{\"oneOf\":[{\"enum\":[" : "{\"allOf\":[{\"enum\":[");
    n = put_each(n, "\"v%u\"", 0, 40000);
    n += (size_t)sprintf(long_text + n, "]},{\"enum\":[");
    n = put_each(n, "\"v%u\"", one ? 40000 : 39998, 80000);
    sprintf(long_text + n, "]}]}");
    assert_int_equal(compile_long(&g, &err), TD_OK);
    assert_true(grammar_fixture_takes(g, "\"v39999\"") && grammar_fixture_takes(g, "\"v1\"") == one &&
                grammar_fixture_takes(g, "\"v40001\"") == one);
    td_grammar_drop(g);
  }
  /* values of a type against the constraints on it: one machine for all */
  n = put_each((size_t)sprintf(long_text, "{\"pattern\":\"^v[0-9]*7$\",\"enum\":["), "\"v%u\"", 0, 60000);
  sprintf(long_text + n, "]}");
  assert_int_equal(compile_long(&g, &err), TD_OK);
  assert_true(grammar_fixture_takes(g, "\"v59997\"") && !grammar_fixture_takes(g, "\"v59998\""));
  td_grammar_drop(g);
  /* each branch against each other, and all their values: more work than allowed */
  n = (size_t)sprintf(long_text, "{\"oneOf\":[");
  for (unsigned i = 0; i < 600; i++) {
    n = put_each(n + (size_t)sprintf(long_text + n, "%s{\"enum\":[", i ? "," : ""), "\"v%u\"", i * 100,
                 i * 100 + 100);
    n += (size_t)sprintf(long_text + n, "]}");
  }
  sprintf(long_text + n, "]}");
  assert_int_equal(compile_long(&g, &err), TD_ERR_REQUEST);
  assert_non_null(strstr(err.message, "too much in all"));
  /* a name that each branch requires and the other does not forbid */
  n = put_each((size_t)sprintf(long_text, "{\"oneOf\":[{\"type\":\"object\",\"required\":["), "\"a%u\"", 0,
               30000);
  n += (size_t)sprintf(long_text + n, "]},{\"type\":\"object\",\"required\":[");
  n = put_each(n, "\"b%u\"", 0, 30000);
  sprintf(long_text + n, "]}]}");
  assert_int_equal(compile_long(&g, &err), TD_ERR_REQUEST);
}

/* The same for members, elements, references and keys of patterns. */
static void test_hostile_members(void **state)
{
  td_grammar *g;
  td_error err;
  size_t n = put_each((size_t)sprintf(long_text, "{\"type\":\"object\",\"additionalProperties\":false,"
                                                 "\"properties\":{"),
                      "\"p%u\":{\"const\":%u}", 0, 20000);
  sprintf(long_text + n, "}}");
  assert_int_equal(compile_long(&g, &err), TD_OK);
  assert_true(grammar_fixture_takes(g, "{\"p7\":7,\"p19999\":19999}") &&
              !grammar_fixture_takes(g, "{\"p7\":8}"));
  td_grammar_drop(g);
  n = put_each((size_t)sprintf(long_text, "{\"type\":\"array\",\"maxItems\":20000,\"prefixItems\":["),
               "{\"const\":%u}", 0, 20000);
  sprintf(long_text + n, "]}");
  assert_int_equal(compile_long(&g, &err), TD_OK);
  assert_true(grammar_fixture_takes(g, "[0,1,2,3]") && !grammar_fixture_takes(g, "[0,2]"));
  td_grammar_drop(g);
  n = put_each((size_t)sprintf(long_text, "{\"type\":\"object\",\"additionalProperties\":false,\"$defs\":{"),
               "\"d%u\":{\"const\":%u}", 0, 10000);
  n = put_each(n + (size_t)sprintf(long_text + n, "},\"properties\":{"), "\"p%u\":{\"$ref\":\"#/$defs/d%u\"}",
               0, 10000);
  sprintf(long_text + n, "}}");
  assert_int_equal(compile_long(&g, &err), TD_OK);
  assert_true(grammar_fixture_takes(g, "{\"p7\":7,\"p9999\":9999}") &&
              !grammar_fixture_takes(g, "{\"p7\":8}"));
  td_grammar_drop(g);
  n = put_each(
      (size_t)sprintf(long_text,
                      "{\"type\":\"object\",\"additionalProperties\":false,\"patternProperties\":{"
                      "\"^(p[0-9]{1,50}){1,50}7$\":{\"type\":\"integer\"},\"^x\":{}},\"properties\":{"),
      "\"p%u\":{\"type\":\"number\"}", 0, 5000);
  sprintf(long_text + n, "}}");
  assert_int_equal(compile_long(&g, &err), TD_OK);
  assert_true(grammar_fixture_takes(g, "{\"p17\":7,\"p18\":0.5}"));
  assert_false(grammar_fixture_takes(g, "{\"p17\":0.5}"));
  assert_true(grammar_fixture_takes(g, "{\"x\":null}"));
  td_grammar_drop(g);
}

/* ---- the budget of one client's grammar ---- */

/* 30000 rules are called together: each is examined a few times, not once per other rule. */
static void test_many_rules(void **state)
{
  enum { N = 30000 };
  static char text[40 + 3 * N];
  uint32_t mask[(N_TOKENS + 31) / 32];
  size_t n = (size_t)sprintf(text, "{\"type\":\"array\",\"items\":{\"anyOf\":[{}");
  for (int i = 1; i < N; i++)
    n += (size_t)sprintf(text + n, ",{}");
  sprintf(text + n, "]}}");
  td_grammar *g = must_compile(S, text);
  td_matcher *m = td_matcher_create(g);
  uint64_t before = td_matcher_work_left(m);
  assert_true(td_matcher_read(m, '['));
  td_matcher_fill(m, mask);
  assert_null(td_matcher_stuck(m));
  uint64_t work = before + (uint64_t)td_limit_max(TD_LIMIT_GRAMMAR_TOKEN_WORK) - td_matcher_work_left(m);
  assert_true(work > N / 10 && work < 300ull * N);
  td_matcher_destroy(m);
  td_grammar_drop(g);
}

/* Each mask takes less than the budget at the begin of an answer, and more than a token adds: the answer ends
 * with an error. */
static void test_work_of_an_answer(void **state)
{
  enum { N = 30000, TOKENS_MAX = 100 };
  static char text[N * 32];
  uint32_t mask[(N_TOKENS + 31) / 32];
  size_t n = (size_t)sprintf(text, "root ::= \"a\"");
  for (int i = 0; i < N; i++)
    n += (size_t)sprintf(text + n, " | \"%c\" root \"%d\"", 'a' + i % 26, i);
  td_grammar *g = must_compile(TD_GRAMMAR_GBNF, text);
  td_matcher *m = td_matcher_create(g), *other = td_matcher_create(g);
  td_matcher_fill(m, mask);
  assert_null(td_matcher_stuck(m));
  uint32_t read = 0;
  while (read < TOKENS_MAX && !td_matcher_stuck(m)) {
    if (td_matcher_read(m, 'a' + (int)(read * 7 % 26)))
      td_matcher_fill(m, mask);
    read++;
  }
  assert_true(read > 1 && read < TOKENS_MAX);
  assert_int_equal(td_matcher_work_left(m), 0);
  assert_non_null(strstr(td_matcher_stuck(m), "work"));
  for (int32_t id = 0; id < N_TOKENS; id++)
    assert_int_equal(mask[id / 32] >> id % 32 & 1, id == END);
  assert_false(td_matcher_read(m, END)); /* it is no whole answer */
  td_matcher_fill(other, mask);          /* no other matcher's budget was used up */
  assert_null(td_matcher_stuck(other));
  td_matcher_destroy(m);
  td_matcher_destroy(other);
  td_grammar_drop(g);
}

static void test_memory_of_all_grammars(void **state)
{
  enum { MAX = 16 << 20, GRAMMARS = 16 };
  td_vocabulary *mine = NULL, *shared = vocab;
  td_token_bytes tokens[3] = {{"a", 1}, {"b", 1}, {"", 0}};
  td_grammar *live[GRAMMARS], *g;
  td_matcher *m[GRAMMARS];
  td_error err;
  int32_t end = 2;
  uint32_t mask[1], n = 0, random = 1;
  assert_int_equal(td_vocabulary_create(tokens, 3, &end, 1, MAX, &mine, &err), TD_OK);
  assert_int_equal(td_vocabulary_grammar_bytes(mine), 0);
  vocab = mine;
  while (n < GRAMMARS && compile(TD_GRAMMAR_REGEX, "(a|b)*a(a|b){60}", &live[n], &err) == TD_OK)
    m[n] = td_matcher_create(live[n]), n++;
  assert_in_range(n, 2, GRAMMARS - 1);
  assert_int_equal(compile(TD_GRAMMAR_REGEX, "ab", &g, &err), TD_ERR_CAPACITY);
  for (uint32_t i = 0; i < 3000 * n; i++) { /* nearly every token makes a state; the reserve is enough */
    random = random * 1103515245 + 12345;
    td_matcher_fill(m[i % n], mask);
    assert_int_equal(mask[0] & 3, 3);
    assert_true(td_matcher_read(m[i % n], random >> 16 & 1));
    assert_in_range(td_vocabulary_grammar_bytes(mine), 1, MAX);
  }
  while (n-- > 0) {
    td_matcher_destroy(m[n]);
    td_grammar_drop(live[n]);
    assert_int_equal(compile(TD_GRAMMAR_REGEX, "ab", &g, &err), TD_OK);
    td_grammar_drop(g);
  }
  assert_int_equal(td_vocabulary_grammar_bytes(mine), 0);
  td_vocabulary_destroy(mine);
  vocab = shared;
}

static void test_bounds_of_numbers(void **state)
{
  static const texts cases[] = {
      {S, "{\"type\":\"number\",\"maximum\":0}", {"0", "-0", "-0.5", "-7"}, {"1", "0.1", "9"}},
      {S, "{\"type\":\"number\",\"maximum\":-0.0}", {"0", "-0.5"}, {"1", "0.1"}},
      {S, "{\"type\":\"number\",\"minimum\":0}", {"0", "-0", "0.0", "0.5"}, {"-0.1", "-1"}},
      {S, "{\"type\":\"number\",\"minimum\":-0.0}", {"0", "0.5"}, {"-0.1", "-1"}},
      {S, "{\"type\":\"integer\",\"maximum\":-0.0}", {"0", "-1"}, {"1", "9"}},
      {S, "{\"type\":\"integer\",\"minimum\":-0.0,\"maximum\":-0.0}", {"0"}, {"1", "9", "-1"}},
      {S, "{\"type\":\"integer\",\"minimum\":-3,\"maximum\":-0.0}", {"0", "-3"}, {"1", "9", "-4"}},
      {S, "{\"type\":\"number\",\"exclusiveMinimum\":1e-19}", {"1", "0.0000000000000000002"}, {"0", "0.0"}},
  };
  static const char *const refused[] = {
      "{\"type\":\"number\",\"exclusiveMinimum\":1e-25}",
      "{\"type\":\"number\",\"minimum\":-1e-21}",
      "{\"type\":\"number\",\"maximum\":1e999}",
      "{\"const\":1e999}",
      "{\"enum\":[1,-1e999]}",
      "{\"const\":{\"a\":[1e999]}}",
      "{\"type\":\"integer\",\"multipleOf\":1e999}",
  };
  td_grammar *g;
  td_error err;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    g = must_compile(S, cases[i].source);
    for (size_t k = 0; k < 6 && cases[i].good[k]; k++)
      if (!grammar_fixture_takes(g, cases[i].good[k]))
        fail_msg("%s does not take %s", cases[i].source, cases[i].good[k]);
    for (size_t k = 0; k < 8 && cases[i].bad[k]; k++)
      if (grammar_fixture_takes(g, cases[i].bad[k]))
        fail_msg("%s takes %s", cases[i].source, cases[i].bad[k]);
    td_grammar_drop(g);
  }
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    td_status st = compile(S, refused[i], &g, &err);
    if (st != TD_ERR_REQUEST && st != TD_ERR_UNSUPPORTED)
      fail_msg("%s: %d", refused[i], st);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_texts),
      cmocka_unit_test(test_counts),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_roll_back),
      cmocka_unit_test(test_hostile),
      cmocka_unit_test(test_hostile_text),
      cmocka_unit_test(test_hostile_lists),
      cmocka_unit_test(test_hostile_members),
      cmocka_unit_test(test_many_rules),
      cmocka_unit_test(test_bounds_of_numbers),
      cmocka_unit_test(test_work_of_an_answer),
      cmocka_unit_test(test_memory_of_all_grammars),
  };
  return cmocka_run_group_tests(tests, make_vocab, free_vocab);
}
