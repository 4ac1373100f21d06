/* Schemas whose words the input's bytes choose, then random ones when the input ends. They are complete, so
 * that they get past the parser, and hostile: extreme counts and numbers, nested repetitions in patterns,
 * cyclic references, words of the wrong type, negated negations. Properties: a schema compiles, or an error
 * says why not; its memory is freed; a random answer is read token by token as its masks say, until it is
 * complete or the matcher says why it stops. libFuzzer's own limits bound the time and memory of each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "../grammar_fixture.h"
#include "config/limits.h"

static const char *const longer[] = {"\", \"", "\": ", "ab", "word", "\"}", "\xE2\x98"};

enum {
  N_LONGER = sizeof longer / sizeof *longer,
  END = 256 + N_LONGER,
  N_TOKENS = END + 1,
  N_WORDS = (N_TOKENS + 31) / 32,
  TEXT_MAX = 1 << 16,
  VALUES_MAX = 300,
  READ_MAX = 48
};

typedef struct maker {
  fuzz_input in;
  uint64_t random;
  char text[TEXT_MAX];
  size_t n;
  unsigned n_values;
} maker;

static td_vocabulary *vocab;

/* ---- choices ---- */

static unsigned choose(maker *m, unsigned n)
{
  if (m->in.size > 0)
    return fuzz_take(&m->in) % n;
  m->random = m->random * 6364136223846793005u + 1442695040888963407u;
  return (unsigned)(m->random >> 33) % n;
}

static const char *one_of(maker *m, const char *const *list)
{
  unsigned n = 0;
  while (list[n])
    n++;
  return list[choose(m, n)];
}

static void say(maker *m, const char *text)
{
  size_t n = strlen(text);
  if (m->n + n < TEXT_MAX) {
    memcpy(m->text + m->n, text, n);
    m->n += n;
  }
}

/* ---- schemas ---- */

static const char *const names[] = {"\"a\"",       "\"b\"",    "\"ab\"",   "\"\"", "\"a/b\"",
                                    "\"\\u00e9\"", "\"$ref\"", "\"\\\\\"", NULL};
static const char *const scalars[] = {
    "0",     "1",    "-1", "1.5",  "1e300",     "-0.0",      "9223372036854775808",
    "1e-20", "0.1",  "3",  "\"\"", "\"a\"",     "\"ab\"",    "true",
    "false", "null", "[]", "{}",   "[1,\"a\"]", "{\"a\":1}", NULL};
static const char *const counts[] = {"0",      "1",       "2",          "3",  "7",   "64",    "65", "1000",
                                     "999999", "1000001", "4294967296", "-1", "1.5", "\"1\"", NULL};
static const char *const patterns[] = {"\"^a\"",
                                       "\"b$\"",
                                       "\"\"",
                                       "\"^(a|b)*c{2,9}$\"",
                                       "\"(((a{9}){9}){9}){9}\"",
                                       "\"[^a-z]\"",
                                       "\".*.*.*x\"",
                                       "\"(?=a)\"",
                                       "\"^\\\\S+\\\\s$\"",
                                       "\"\\\\u00e9|[\\u4e00-\\u9fff]\"",
                                       "\"(\"",
                                       "\"^(a?){60}a{60}$\"",
                                       "\"^[^\\\\d]{1,300}$\"",
                                       "\"(a|aa)+$\"",
                                       NULL};
static const char *const types[] = {"\"object\"", "\"array\"", "\"string\"",  "\"integer\"",
                                    "\"number\"", "\"null\"",  "\"boolean\"", "[\"string\",\"object\"]",
                                    "[]",         "\"x\"",     NULL};
static const char *const refs[] = {
    "\"#\"", "\"#/$defs/x\"", "\"#/$defs/y\"", "\"#/properties/a\"", "\"#/nowhere\"", "\"http://x\"", "7",
    NULL};
static const char *const formats[] = {"\"date\"",     "\"email\"",   "\"uri\"", "\"ipv6\"", "\"regex\"",
                                      "\"hostname\"", "\"unknown\"", "1",       NULL};

static void make_schema(maker *m, unsigned depth);

static void make_list(maker *m, unsigned depth)
{
  unsigned n = choose(m, 4);
  say(m, "[");
  for (unsigned i = 0; i < n; i++) {
    say(m, i ? "," : "");
    make_schema(m, depth);
  }
  say(m, "]");
}

static void make_members(maker *m, unsigned depth, const char *const *keys)
{
  unsigned n = choose(m, 4), first = choose(m, 4);
  say(m, "{");
  for (unsigned i = 0; i < n; i++) { /* no duplicate name, because the parser refuses it */
    say(m, i ? "," : "");
    say(m, keys[first + i]);
    say(m, ":");
    make_schema(m, depth);
  }
  say(m, "}");
}

static void make_values(maker *m, const char *const *list)
{
  unsigned n = choose(m, 6);
  say(m, "[");
  for (unsigned i = 0; i < n; i++) {
    say(m, i ? "," : "");
    say(m, one_of(m, list));
  }
  say(m, "]");
}

typedef enum form {
  SCHEMA,
  LIST,
  MEMBERS,
  KEYED,
  VALUES,
  NAMES,
  VALUE,
  COUNT,
  PATTERN,
  TYPE,
  REF,
  FORMAT
} form;

static const struct {
  const char *name;
  form form;
} words[] = {{"type", TYPE},
             {"enum", VALUES},
             {"const", VALUE},
             {"properties", MEMBERS},
             {"required", NAMES},
             {"additionalProperties", SCHEMA},
             {"patternProperties", KEYED},
             {"propertyNames", SCHEMA},
             {"minProperties", COUNT},
             {"maxProperties", COUNT},
             {"items", SCHEMA},
             {"prefixItems", LIST},
             {"minItems", COUNT},
             {"maxItems", COUNT},
             {"uniqueItems", VALUE},
             {"contains", SCHEMA},
             {"minContains", COUNT},
             {"maxContains", COUNT},
             {"minLength", COUNT},
             {"maxLength", COUNT},
             {"pattern", PATTERN},
             {"format", FORMAT},
             {"minimum", VALUE},
             {"maximum", VALUE},
             {"exclusiveMinimum", VALUE},
             {"exclusiveMaximum", VALUE},
             {"multipleOf", VALUE},
             {"allOf", LIST},
             {"anyOf", LIST},
             {"oneOf", LIST},
             {"not", SCHEMA},
             {"if", SCHEMA},
             {"then", SCHEMA},
             {"else", SCHEMA},
             {"dependentRequired", NAMES},
             {"dependentSchemas", MEMBERS},
             {"dependencies", MEMBERS},
             {"unevaluatedProperties", SCHEMA},
             {"unevaluatedItems", SCHEMA},
             {"$ref", REF}};
enum { N_WORDS_OF_SCHEMAS = sizeof words / sizeof *words };

static void make_word(maker *m, unsigned depth, unsigned k)
{
  char head[40];
  snprintf(head, sizeof head, "\"%s\":", words[k].name);
  say(m, head);
  switch (choose(m, 24) ? words[k].form : (form)choose(m, FORMAT + 1)) { /* now and then of the wrong form */
  case SCHEMA: make_schema(m, depth); break;
  case LIST: make_list(m, depth); break;
  case MEMBERS: make_members(m, depth, names); break;
  case KEYED: make_members(m, depth, patterns); break;
  case VALUES: make_values(m, scalars); break;
  case NAMES: make_values(m, names); break;
  case VALUE: say(m, one_of(m, scalars)); break;
  case COUNT: say(m, one_of(m, counts)); break;
  case PATTERN: say(m, one_of(m, patterns)); break;
  case TYPE: say(m, one_of(m, types)); break;
  case REF: say(m, one_of(m, refs)); break;
  case FORMAT: say(m, one_of(m, formats)); break;
  }
}

static void make_schema(maker *m, unsigned depth)
{
  if (depth == 0 || ++m->n_values > VALUES_MAX) {
    say(m, choose(m, 2) ? "true" : "{}");
    return;
  }
  unsigned n = 1 + choose(m, 5), at = choose(m, N_WORDS_OF_SCHEMAS);
  say(m, "{");
  for (unsigned i = 0; i < n && at < N_WORDS_OF_SCHEMAS; i++, at += 1 + choose(m, 9)) {
    say(m, i ? "," : "");
    make_word(m, depth - 1, at);
  }
  say(m, "}");
}

static void make_root(maker *m)
{
  say(m, "{\"$defs\":{\"x\":");
  make_schema(m, 2);
  say(m, ",\"y\":");
  make_schema(m, 2);
  say(m, "},\"allOf\":[");
  make_schema(m, 5);
  say(m, "]}");
}

/* ---- answers ---- */

static void read_answer(maker *m, td_grammar *g)
{
  uint32_t mask[N_WORDS];
  td_matcher *t = td_matcher_create(g);
  FUZZ_CHECK(t);
  for (unsigned i = 0; i < READ_MAX; i++) {
    td_matcher_fill(t, mask);
    if (td_matcher_stuck(t))
      break;
    unsigned from = choose(m, N_TOKENS), id = from;
    do { /* the first behind it that may be next */
      if (grammar_fixture_has(mask, (int)id))
        break;
      id = (id + 1) % N_TOKENS;
    } while (id != from);
    FUZZ_CHECK(grammar_fixture_has(mask, (int)id));
    bool forbidden = !grammar_fixture_has(mask, (int)from) && td_matcher_read(t, (int32_t)from);
    FUZZ_CHECK(!forbidden);
    FUZZ_CHECK(td_matcher_read(t, (int32_t)id) || td_matcher_stuck(t));
    if (id == END)
      break;
  }
  td_matcher_destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static maker m;
  td_error err = {0};
  td_grammar *g = NULL;
  if (!vocab)
    vocab = grammar_fixture_vocabulary(longer, N_LONGER);
  FUZZ_CHECK(vocab);
  m = (maker){.in = {data, size}};
  for (size_t i = 0; i < size; i++)
    m.random = (m.random ^ data[i]) * 1099511628211u;
  make_root(&m);
  td_status st = grammar_fixture_compile(vocab, TD_GRAMMAR_JSON_SCHEMA, m.text, m.n, &g, &err);
  FUZZ_CHECK(st == TD_OK || ((st == TD_ERR_REQUEST || st == TD_ERR_UNSUPPORTED) && *err.message));
  if (st == TD_OK)
    read_answer(&m, g);
  FUZZ_CHECK(td_vocabulary_grammar_bytes(vocab) <=
             (size_t)(td_limit_max(TD_LIMIT_GRAMMAR_STATE_BYTES) + td_limit_max(TD_LIMIT_GRAMMAR_MASK_BYTES) +
                      td_limit_max(TD_LIMIT_GRAMMAR_COMPILE_BYTES)));
  td_grammar_drop(g);
  FUZZ_CHECK(td_vocabulary_grammar_bytes(vocab) == 0);
  return 0;
}
