/* Schemas with `not`, `if`, `dependent*` and overlapping branches: verdicts on texts, which are those of
 * JSON Schema 2020-12, and refusals, by name, of what cannot be expressed exactly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/grammar/grammar.h"
#include "../grammar_fixture.h"

static td_vocabulary *vocab;

static int make_vocab(void **state)
{
  vocab = grammar_fixture_vocabulary(NULL, 0);
  return vocab ? 0 : -1;
}

static int free_vocab(void **state)
{
  td_vocabulary_destroy(vocab);
  return 0;
}

static td_status compile(const char *schema, td_grammar **g, td_error *err)
{
  return grammar_fixture_compile(vocab, TD_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), g, err);
}

typedef struct texts {
  const char *schema;
  const char *good[6], *bad[6];
} texts;

#define OBJECT "\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}}"
static const texts all[] = {
    {"{\"not\":{\"type\":\"integer\"}}", {"1.5", "\"a\"", "null", "-0.25"}, {"1", "0", "-7", "2.0"}},
    {"{\"not\":{\"type\":[\"string\",\"number\"]}}", {"null", "{}", "[]"}, {"1", "1.5", "\"\""}},
    {"{\"type\":\"string\",\"not\":{\"enum\":[\"ab\",\"c/d\",\"\",1]}}",
     {"\"a\"", "\"abc\"", "\"c\\/e\""},
     {"\"ab\"", "\"c/d\"", "\"c\\/d\"", "\"\"", "\"\\u0061b\"", "1"}},
    {"{\"not\":{\"const\":2}}", {"1", "3", "2.5", "\"2\""}, {"2", "2.0"}},
    {"{\"enum\":[1,2,3],\"not\":{\"const\":2}}", {"1", "3"}, {"2"}},
    {"{\"not\":{\"const\":true}}", {"false", "null"}, {"true"}},
    {"{\"type\":\"number\",\"not\":{\"multipleOf\":3}}",
     {"1", "-4", "0.25", "10"},
     {"0", "-0", "3", "-12", "3.0", "999"}},
    {"{\"type\":\"integer\",\"multipleOf\":4,\"allOf\":[{\"multipleOf\":6},{\"not\":{\"multipleOf\":9}},"
     "{\"not\":{\"multipleOf\":5}}],\"minimum\":-30}",
     {"12", "24", "-12", "48"},
     {"0", "36", "60", "4", "6", "-36"}},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"multipleOf\":3}]}",
     {"1", "-5", "\"a\"", "null"},
     {"3", "0", "1.5"}},
    {"{\"enum\":[30,31,33],\"not\":{\"multipleOf\":5}}", {"31", "33"}, {"30"}},
    {"{\"not\":{\"enum\":[[],[1,\"a\"],[[2]]]}}",
     {"[1]", "[1,\"b\"]", "[2,\"a\"]", "[[]]", "[[3]]", "{}"},
     {"[]", "[1,\"a\"]", "[1.0,\"a\"]", "[[2]]", "[1,\"\\u0061\"]"}},
    {"{\"not\":{\"enum\":[{},{\"a\":1,\"b\":[]}]}}",
     {"{\"a\":1}", "{\"a\":2,\"b\":[]}", "{\"b\":[1]}", "[]"},
     {"{}", "{\"a\":1,\"b\":[]}", "{\"b\":[],\"a\":1}"}},
    {"{\"type\":\"string\",\"not\":{\"pattern\":\"^a|z$\"}}",
     {"\"bc\"", "\"\""},
     {"\"a\"", "\"bz\"", "\"az\""}},
    {"{\"type\":\"string\",\"not\":{\"pattern\":\"^\\\\s\"}}",
     {"\"a \""},
     {"\" a\"",
      "\"\xC2\xA0"
      "a\"",
      "\"\\ta\""}},
    {"{\"type\":\"string\",\"not\":{\"minLength\":3}}", {"\"ab\""}, {"\"abc\""}},
    {"{\"type\":\"number\",\"not\":{\"minimum\":3,\"maximum\":5}}", {"2.9", "5.1", "7"}, {"3", "4", "5"}},
    {"{" OBJECT ",\"not\":{\"required\":[\"a\",\"b\"]}}",
     {"{\"a\":1}", "{\"b\":1,\"c\":1}", "{}"},
     {"{\"a\":1,\"b\":1}", "{\"a\":1,\"b\":1,\"c\":1}"}},
    {"{" OBJECT ",\"not\":{\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}}",
     {"{\"c\":1}", "{}"},
     {"{\"a\":1}", "{\"b\":1}"}},
    {"{" OBJECT ",\"not\":{\"properties\":{\"a\":{\"type\":\"integer\"}}}}",
     {"{\"a\":\"x\"}"},
     {"{\"a\":1}", "{}", "{\"b\":1}"}},
    {"{\"not\":{\"not\":{\"type\":\"string\"}}}", {"\"a\""}, {"1"}},
    {"{\"type\":\"object\",\"properties\":{\"t\":{\"$ref\":\"#\"}},\"not\":{\"$ref\":\"#/$defs/"
     "x\"},\"$defs\":{\"x\":{\"required\":"
     "[\"u\"]}}}",
     {"{}", "{\"t\":{\"t\":{}}}"},
     {"{\"u\":1}", "{\"t\":{\"u\":1}}"}},
    {"{" OBJECT ",\"if\":{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},\"then\":{\"required\":["
     "\"b\"]},\"else\":{"
     "\"required\":[\"c\"]}}",
     {"{\"a\":1,\"b\":0}", "{\"a\":2,\"c\":0}", "{\"c\":0}"},
     {"{\"a\":1}", "{\"a\":1,\"c\":0}", "{\"a\":2,\"b\":0}", "{}"}},
    {"{\"if\":{\"type\":\"string\"},\"then\":{\"maxLength\":1}}", {"\"a\"", "77", "null"}, {"\"ab\""}},
    {"{" OBJECT ",\"dependentRequired\":{\"a\":[\"b\"]}}",
     {"{\"a\":1,\"b\":1}", "{\"b\":1}", "{\"c\":1}", "{}"},
     {"{\"a\":1}", "{\"a\":1,\"c\":1}"}},
    {"{" OBJECT ",\"dependencies\":{\"a\":[\"b\"],\"b\":{\"properties\":{\"c\":{\"type\":\"null\"}}}}}",
     {"{\"a\":1,\"b\":1,\"c\":null}", "{\"c\":1}", "{}"},
     {"{\"a\":1}", "{\"b\":1,\"c\":1}"}},
    {"{\"dependentSchemas\":{\"a\":false}}", {"{\"b\":1}", "3"}, {"{\"a\":1}"}},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", {"1.5", "-0.5"}, {"1", "2.0"}},
    {"{" OBJECT ",\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
     {"{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"c\":1}"},
     {"{\"a\":1,\"b\":1}", "{\"c\":1}", "{}"}},
    {"{\"oneOf\":[{\"type\":\"string\",\"pattern\":\"^a\"},{\"type\":\"string\",\"pattern\":\"z$\"}]}",
     {"\"ab\"", "\"bz\""},
     {"\"az\"", "\"b\""}},
    {"{\"not\":{\"oneOf\":[{\"minimum\":2},{\"maximum\":4}]},\"type\":\"integer\"}",
     {"2", "3", "4"},
     {"1", "5"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{}}},{\"unevaluatedProperties\":false}]}",
     {"{}", "7"},
     {"{\"a\":1}", "{\"b\":1}"}},
    {"{\"properties\":{\"a\":{}},\"allOf\":[{\"properties\":{\"b\":{}}}],\"anyOf\":[{\"properties\":{\"c\":{"
     "\"const\":1}},"
     "\"required\":[\"c\"]},{}],\"unevaluatedProperties\":{\"type\":\"null\"}}",
     {"{\"a\":1,\"b\":2,\"c\":1,\"d\":null}", "{\"c\":null}"},
     {"{\"d\":1}", "{\"c\":2}"}},
    {"{\"properties\":{\"a\":{}},\"not\":{\"not\":{\"properties\":{\"b\":{}}}},\"unevaluatedProperties\":"
     "false}",
     {"{\"a\":1}"},
     {"{\"b\":1}"}},
    {"{\"dependentSchemas\":{\"a\":{\"properties\":{\"b\":{}}}},\"properties\":{\"a\":{}},"
     "\"unevaluatedProperties\":false}",
     {"{\"a\":1,\"b\":1}", "{}"},
     {"{\"b\":1}"}},
    {"{\"dependentSchemas\":{\"a\":{\"prefixItems\":[{}]}},\"unevaluatedItems\":false}",
     {"[]", "{\"a\":1}"},
     {"[1]"}},
    {"{\"prefixItems\":[{}],\"allOf\":[{\"prefixItems\":[true,{\"type\":\"integer\"}]}],\"unevaluatedItems\":"
     "{\"const\":0}}",
     {"[]", "[\"x\",2,0,0]"},
     {"[1,\"x\"]", "[1,2,3]"}},
    {"{\"type\":\"array\",\"contains\":{\"type\":\"integer\"}}",
     {"[1]", "[null,2,\"a\"]"},
     {"[]", "[null]", "[1.5]"}},
    {"{\"type\":\"array\",\"contains\":{\"const\":1},\"minContains\":2,\"maxContains\":3,\"maxItems\":4}",
     {"[1,1]", "[1,0,1,1]", "[0,1,0,1]"},
     {"[1]", "[1,1,1,1]", "[1,0,0,0]", "[1,1,0,0,0]"}},
    {"{\"type\":\"array\",\"contains\":{\"const\":1},\"minContains\":0,\"maxContains\":0}",
     {"[]", "[0,2]"},
     {"[1]", "[0,1]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":0}],\"minItems\":2,\"contains\":{\"const\":1}}",
     {"[0,1]", "[0,2,1]"},
     {"[0]", "[1,1]", "[0,2]"}},
    {"{\"type\":\"array\",\"not\":{\"items\":{\"type\":\"integer\"}}}",
     {"[null]", "[1,1.5]"},
     {"[]", "[1,2]"}},
    {"{\"type\":\"array\",\"not\":{\"prefixItems\":[{},{\"const\":1}]}}",
     {"[1,2]", "[0,null,1]"},
     {"[]", "[1]", "[0,1]"}},
    {"{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"bc\"]},\"properties\":{\"a\":{},\"d\":{}}}",
     {"{}", "{\"a\":1,\"bc\":2}"},
     {"{\"d\":1}", "{\"b\":1}", "{\"abc\":1}"}},
    {"{\"type\":\"object\",\"propertyNames\":{\"maxLength\":2,\"not\":{\"const\":\"x\"}}}",
     {"{\"ab\":1,\"y\":1}"},
     {"{\"x\":1}", "{\"abc\":1}", "{\"\\u0078\":1}"}},
    {"{\"type\":\"number\",\"multipleOf\":0.25}",
     {"0", "1", "-2.75", "0.5", "0.250"},
     {"0.3", "0.26", "0.251", "00.5"}},
    {"{\"type\":\"integer\",\"multipleOf\":2.5}", {"0", "5", "-10"}, {"2", "7"}},
    {"{\"type\":\"integer\",\"maximum\":9223372036854775807}", {"1", "-99"}, {"1.5"}},
    {"{\"type\":\"string\",\"format\":\"email\",\"minLength\":3,\"maxLength\":254}", /* no length needs
                                                                                        counting */
     {"\"a@b.co\"", "\"x.y@example.org\""},
     {"\"a\"", "\"ab\"", "\"a@\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(ab|c){2,3}$\",\"minLength\":2,\"maxLength\":6}",
     {"\"cc\"", "\"ababab\"", "\"abcab\""},
     {"\"c\"", "\"abababab\"", "\"cccc\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(ab|c){2,3}$\",\"minLength\":3,\"maxLength\":5}",
     {"\"ccc\"", "\"ababc\""},
     {"\"cc\"", "\"ababab\""}},
    {"{\"type\":\"string\",\"pattern\":\"^a{1,3}|b$\",\"maxLength\":3}",
     {"\"axx\"", "\"xxb\""},
     {"\"axxx\"", "\"xxxb\"", "\"xx\""}},
    {"{\"type\":\"string\",\"pattern\":\"^$|^a+$|(^)b\",\"minLength\":1,\"maxLength\":2}",
     {"\"a\"", "\"aa\"", "\"bx\""},
     {"\"\"", "\"aaa\"", "\"bxx\""}},
    {"{\"type\":\"string\",\"allOf\":[{\"pattern\":\"^.{2}$\"},{\"pattern\":\"a\",\"maxLength\":2}],"
     "\"minLength\":2}",
     {"\"ax\"", "\"\xF0\x9F\x98\x80"
                "a\""},
     {"\"a\"", "\"axx\"", "\"xx\""}},
    {"{\"type\":\"string\",\"format\":\"hostname\"}",
     {"\"a-b.c\"", "\"x1\""},
     {"\"xn--a\"", "\"a-\"", "\"a..b\""}},
};

static void test_texts(void **state)
{
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    td_grammar *g;
    td_error err;
    if (compile(all[i].schema, &g, &err) != TD_OK)
      fail_msg("%s: %s", all[i].schema, err.message);
    for (size_t k = 0; k < 6 && all[i].good[k]; k++)
      if (!grammar_fixture_takes(g, all[i].good[k]))
        fail_msg("%s does not take %s", all[i].schema, all[i].good[k]);
    for (size_t k = 0; k < 6 && all[i].bad[k]; k++)
      if (grammar_fixture_takes(g, all[i].bad[k]))
        fail_msg("%s takes %s", all[i].schema, all[i].bad[k]);
    td_grammar_drop(g);
  }
}

/* What cannot be negated; errors in generated parts of a schema name its original position. */
static void test_refused(void **state)
{
  static const struct {
    const char *schema, *says;
  } cases[] = {
      {"{\"properties\":{\"a\":{\"not\":{\"format\":\"date\"}}}}",
       "'not' at '/properties/a' of the schema is not served, because 'format'"},
      {"{\"if\":{\"uniqueItems\":true},\"then\":false}", "'if' at '/'"},
      {"{\"oneOf\":[{\"type\":\"object\"},{\"type\":\"object\",\"additionalProperties\":false}]}",
       "'additionalProperties'"},
      {"{\"not\":{\"const\":[1e300]}}", "'not' at '/'"},
      {"{\"allOf\":[{},{\"not\":{\"pattern\":\"(?=a)\"}}]}", "'pattern' at '/allOf/1'"},
      {"{\"dependentRequired\":{\"a\":{}}}", "'dependentRequired' at '/'"},
      {"{\"not\":{\"$ref\":\"#\"}}", "'$ref'"},
      {"{\"not\":{\"properties\":[{},\"a\",\"b\"]}}", "'properties'"}, /* members without names */
      {"{\"if\":{\"properties\":[0]},\"then\":false}", "'properties'"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    td_grammar *g;
    td_error err;
    if (compile(cases[i].schema, &g, &err) == TD_OK)
      fail_msg("%s was compiled", cases[i].schema);
    if (!strstr(err.message, cases[i].says))
      fail_msg("%s: %s", cases[i].schema, err.message);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_texts),
      cmocka_unit_test(test_refused),
  };
  return cmocka_run_group_tests(tests, make_vocab, free_vocab);
}
