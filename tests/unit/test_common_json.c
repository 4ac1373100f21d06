/* JSON parsing: verdicts and values compared with Python's json module (tests/vectors/common_json.txt),
 * then our own limits and the typed getters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/json.h"
#include "config/limits.h"

static const td_json_limits body_limits = {64, 65536, TD_ERR_REQUEST};

/* Parses a copy of exactly n bytes, so that a sanitizer detects reads beyond; td_json_check must agree on
 * everything except repeated keys. */
static td_status parse(const char *text, size_t n, const td_json_limits *limits, cJSON **out, td_error *err)
{
  char *copy = malloc(n ? n : 1);
  assert_non_null(copy);
  memcpy(copy, text, n);
  memset(err, 0, sizeof *err);
  td_error check_err;
  td_status check = td_json_check(copy, n, limits, &check_err);
  td_status st = td_json_parse(copy, n, limits, out, err);
  free(copy);
  if (check != TD_OK)
    assert_int_equal(check, st);
  else if (st != TD_OK)
    assert_non_null(strstr(err->message, "stands twice"));
  assert_true((st == TD_OK) == (*out != NULL));
  return st;
}

static cJSON *must_parse(const char *text)
{
  cJSON *root;
  td_error err;
  if (parse(text, strlen(text), &body_limits, &root, &err) != TD_OK)
    fail_msg("%s: %s", text, err.message);
  return root;
}

static void must_refuse(const char *text, const char *message)
{
  cJSON *root;
  td_error err;
  assert_int_equal(parse(text, strlen(text), &body_limits, &root, &err), TD_ERR_REQUEST);
  if (!strstr(err.message, message))
    fail_msg("%s: '%s' does not hold '%s'", text, err.message, message);
}

/* The same elements, whatever holds them. */
static void must_be_same_ids(const cJSON *a, const cJSON *b)
{
  td_json_ids x = td_json_ids_begin(a), y = td_json_ids_begin(b);
  assert_int_equal(x.n, y.n);
  for (size_t i = 0; i < x.n; i++)
    assert_true(td_json_ids_next(&x) == td_json_ids_next(&y));
}

/* Compares parsing with and without an array that stays text: same verdict, same message, same members.
 * Returns true if one stayed text. */
static bool parse_ids(const char *text, const td_json_limits *limits)
{
  cJSON *tree, *with_ids;
  td_error err, ids_err;
  size_t n = strlen(text);
  char *copy = malloc(n ? n : 1);
  assert_non_null(copy);
  memcpy(copy, text, n);
  td_status st = td_json_parse(copy, n, limits, &tree, &err);
  assert_int_equal(td_json_parse_ids(copy, n, limits, "prompt", &with_ids, &ids_err), st);
  free(copy);
  if (st != TD_OK) {
    assert_null(with_ids);
    assert_string_equal(ids_err.message, err.message);
    return false;
  }
  bool any = false;
  const cJSON *a = tree->child, *b = with_ids->child;
  for (; a && b; a = a->next, b = b->next) {
    char *x = cJSON_PrintUnformatted(a), *y = cJSON_PrintUnformatted(b);
    if (td_json_is_ids(b)) {
      must_be_same_ids(a, b);
      any = true;
    } else {
      assert_string_equal(x, y);
    }
    assert_true(a->string == b->string || strcmp(a->string, b->string) == 0);
    cJSON_free(x);
    cJSON_free(y);
  }
  assert_true(!a && !b);
  cJSON_Delete(tree);
  cJSON_Delete(with_ids);
  return any;
}

/* \\u0000 of a body is stored as C0 80 until the text is needed. */
static void test_nul_in_a_body(void **state)
{
  static const char body[] =
      "{\"n\":12345678901234567890,\"a\":\"x\\u0000y\\\\u0000\\u0000\",\"prompt\":[1,"
      "2],\"b\":[\"\\u0000\"],\"c\":\"\\u00000\","
      "\"m\":98765432109876543210,\"d\":\"plain\",\"e\":\"\\n0000\\u0001\\u00000000\"}";
  cJSON *root;
  td_error err;
  char out[32];
  const char *got = NULL;
  assert_int_equal(td_json_parse_ids(body, sizeof body - 1, &body_limits, "prompt", &root, &err), TD_OK);
  assert_string_equal(td_json_get(root, "a")->valuestring, "x\xC0\x80y\\u0000\xC0\x80");
  assert_int_equal(td_json_text(td_json_get(root, "a")->valuestring, out), 10);
  assert_memory_equal(out, "x\0y\\u0000\0", 11);
  assert_int_equal(td_json_text(td_json_get(root, "b")->child->valuestring, out), 1);
  assert_memory_equal(out, "\0", 2);
  char *c = td_json_get(root, "c")->valuestring;
  assert_int_equal(td_json_text(c, c), 2);
  assert_memory_equal(c,
                      "\0"
                      "0",
                      3);
  assert_int_equal(td_json_text(td_json_get(root, "d")->valuestring, out), 5);
  assert_string_equal(out, "plain");
  assert_true(td_json_has_nul(td_json_get(root, "a")->valuestring) && !td_json_has_nul(out));
  assert_string_equal(td_json_get(root, "n")->valuestring, "12345678901234567890");
  assert_string_equal(td_json_get(root, "e")->valuestring, "\n0000\1\xC0\x80"
                                                           "0000"); /* what looks like half of one */
  assert_string_equal(td_json_get(root, "m")->valuestring, "98765432109876543210");
  assert_true(td_json_is_ids(td_json_get(root, "prompt")));
  assert_int_equal(td_json_get_string(root, "a", &got, &err),
                   TD_ERR_REQUEST); /* a getter returns C strings */
  assert_non_null(strstr(err.message, "U+0000"));
  td_buf printed; /* as it was written */
  td_buf_init(&printed, 0);
  td_json_print(td_json_get(root, "a"), &printed);
  td_json_print(td_json_get(root, "b"), &printed);
  td_json_print(td_json_get(root, "d"), &printed);
  assert_false(printed.failed);
  assert_string_equal(printed.data, "\"x\\u0000y\\\\u0000\\u0000\"[\"\\u0000\"]\"plain\"");
  td_buf_deinit(&printed);
  cJSON_Delete(root);
  static const char key[] = "{\"a\\u0000\":1}", file[] = "{\"a\":\"\\u0000\"}",
                    written[] = "{\"a\":\"\xC0\x80\"}";
  assert_int_equal(td_json_parse_ids(key, sizeof key - 1, &body_limits, NULL, &root, &err), TD_ERR_REQUEST);
  assert_non_null(strstr(err.message, "in a key"));
  assert_int_equal(td_json_parse_ids(written, sizeof written - 1, &body_limits, NULL, &root, &err),
                   TD_ERR_REQUEST); /* is no text */
  assert_int_equal(td_json_parse(file, sizeof file - 1, &body_limits, &root, &err), TD_ERR_REQUEST);
}

static void test_ids_stay_text(void **state)
{
  static const char *const ids[] = {
      "{\"prompt\":[0]}",
      "{\"prompt\":[1,22,333,999999999,0]}",
      " { \"n\" : 12345678901234567890 , \"prompt\" : [ 1 ,\t2\r\n, 3 ] , \"x\":[1,-98765432109876543210] } ",
      "{\"a\":{\"prompt\":[1]},\"prompt\":[7,8],\"b\":[9]}",
  };
  static const char *const trees[] = {"{\"prompt\":[]}",
                                      "{\"prompt\":[1,-2]}",
                                      "{\"prompt\":[1.0]}",
                                      "{\"prompt\":[1e2,3]}",
                                      "{\"prompt\":[1,[2]]}",
                                      "{\"prompt\":[[1,2],[3]]}",
                                      "{\"prompt\":[1000000000]}",
                                      "{\"prompt\":[1,12345678901234567890]}",
                                      "{\"prompt\":[1,\"2\"]}",
                                      "{\"prompt\":[null]}",
                                      "{\"prompt\":{\"prompt\":[1]}}",
                                      "{\"a\":{\"prompt\":[1]}}",
                                      "{\"\\u0070rompt\":[1]}",
                                      "{\"prompts\":[1]}",
                                      "{\"promp\":[1]}",
                                      "[[1,2],\"prompt\",[3]]",
                                      "[1]",
                                      "{\"prompt\":1}"};
  static const char *const wrong[] = {"{\"prompt\":[1,]}",
                                      "{\"prompt\":[1, ]}",
                                      "{\"prompt\":[,1]}",
                                      "{\"prompt\":[1 2]}",
                                      "{\"prompt\":[01]}",
                                      "{\"prompt\":[1,00]}",
                                      "{\"prompt\":[1}",
                                      "{\"prompt\":[1",
                                      "{\"prompt\":[1,",
                                      "{\"prompt\":[",
                                      "{\"prompt\":[1],}",
                                      "{\"prompt\":[1]]}",
                                      "{\"prompt\":[1]",
                                      "{\"prompt\":[1],\"prompt\":[2]}",
                                      "{\"prompt\":[1],\"p\\u0072ompt\":[2]}",
                                      "{\"prompt\":[1],\"a\":1,\"a\":2}"};
  for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
    assert_true(parse_ids(ids[i], &body_limits));
  for (size_t i = 0; i < sizeof trees / sizeof *trees; i++)
    assert_false(parse_ids(trees[i], &body_limits));
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    td_error err;
    cJSON *root;
    assert_int_equal(td_json_parse(wrong[i], strlen(wrong[i]), &body_limits, &root, &err), TD_ERR_REQUEST);
    assert_false(parse_ids(wrong[i], &body_limits));
  }
}

/* The limits count an array that stays text in the same way as a tree. */
static void test_ids_are_counted(void **state)
{
  const td_json_limits flat = {1, 65536, TD_ERR_REQUEST}, few = {64, 5, TD_ERR_REQUEST};
  td_buf b;
  assert_false(parse_ids("{\"prompt\":[1]}", &flat));
  td_buf_init(&b, 0);
  unsigned n_text = 0;
  for (unsigned n = 1; n < 100; n++) { /* n/16 values in addition to object, array and string */
    td_buf_clear(&b);
    td_buf_append_str(&b, "{\"prompt\":[");
    for (unsigned i = 0; i < n; i++)
      td_buf_printf(&b, i ? ",%u" : "%u", i);
    td_buf_append_str(&b, "],\"a\":\"b\"}");
    n_text += parse_ids(b.data, &few);
  }
  assert_int_equal(n_text, 47); /* 48 sixteenths make the sixth value */
  td_buf_deinit(&b);
}

/* No getter reads such an array as a number. */
static void test_ids_are_no_number(void **state)
{
  static const char text[] = "{\"prompt\":[5]}";
  cJSON *root;
  td_error err;
  int64_t i;
  uint64_t u;
  double d;
  assert_int_equal(td_json_parse_ids(text, strlen(text), &body_limits, "prompt", &root, &err), TD_OK);
  assert_true(td_json_is_ids(td_json_get(root, "prompt")));
  assert_int_equal(td_json_get_int64(root, "prompt", 0, 9, &i, NULL, &err), TD_ERR_REQUEST);
  assert_int_equal(td_json_get_seed(root, "prompt", &u, NULL, &err), TD_ERR_REQUEST);
  assert_int_equal(td_json_get_double(root, "prompt", 0, 9, &d, NULL, &err), TD_ERR_REQUEST);
  cJSON_Delete(root);
}

/* ---- against Python ---- */

static void canonical_string(td_buf *b, const char *s)
{
  td_buf_append_char(b, 's');
  for (; *s; s++)
    td_buf_printf(b, "%02x", (unsigned char)*s);
}

/* As common_json.py writes it. */
static void canonical(td_buf *b, const cJSON *v)
{
  if (cJSON_IsNull(v)) {
    td_buf_append_char(b, 'z');
  } else if (cJSON_IsBool(v)) {
    td_buf_append_char(b, cJSON_IsTrue(v) ? 't' : 'f');
  } else if (cJSON_IsNumber(v)) {
    td_buf_printf(b, "n%.17g", v->valuedouble);
  } else if (cJSON_IsRaw(v)) {
    td_buf_printf(b, "i%s", v->valuestring);
  } else if (cJSON_IsString(v)) {
    canonical_string(b, v->valuestring);
  } else {
    td_buf_append_char(b, cJSON_IsObject(v) ? '{' : '[');
    for (const cJSON *c = v->child; c; c = c->next) {
      if (cJSON_IsObject(v)) {
        canonical_string(b, c->string);
        td_buf_append_char(b, ':');
      }
      canonical(b, c);
      td_buf_append_char(b, ',');
    }
    td_buf_append_char(b, cJSON_IsObject(v) ? '}' : ']');
  }
}

/* Bytes of s; "-" is none. */
static size_t unhex(const char *s, char *out)
{
  size_t n = 0;
  unsigned v;
  for (; *s != '-' && sscanf(s, "%2x", &v) == 1; s += 2)
    out[n++] = (char)v;
  return n;
}

static void test_vectors(void **state)
{
  static const char *const reasons[][2] = {{"depth", "nested deeper"},
                                           {"duplicate-key", "stands twice"},
                                           {"nul", "\\u0000"},
                                           {"number-length", "longer than 63"},
                                           {"surrogate", "surrogate"}};
  static char line[8192], text[4096];
  unsigned n_ok = 0, n_refused = 0;
  FILE *f = fopen(TD_SOURCE_DIR "/tests/vectors/common_json.txt", "re");
  assert_non_null(f);
  while (fgets(line, sizeof line, f)) {
    if (*line == '#')
      continue;
    line[strcspn(line, "\n")] = '\0';
    char *name = strtok(line, " "), *verdict = strtok(NULL, " "), *hex = strtok(NULL, " "),
         *want = strtok(NULL, " ");
    cJSON *root;
    td_error err;
    size_t n = unhex(hex, text);
    td_status st = parse(text, n, &body_limits, &root, &err);
    if (strcmp(verdict, "ok") == 0) {
      td_buf got;
      td_buf_init(&got, 0);
      if (st != TD_OK)
        fail_msg("%s: refused: %s", name, err.message);
      canonical(&got, root);
      if (strcmp(got.data, want) != 0)
        fail_msg("%s: %s, Python reads %s", name, got.data, want);
      td_buf_deinit(&got);
      n_ok++;
    } else {
      if (st != TD_ERR_REQUEST)
        fail_msg("%s: wanted %s, got status %d %s", name, verdict, st, err.message);
      for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (strcmp(verdict, reasons[i][0]) == 0 && !strstr(err.message, reasons[i][1]))
          fail_msg("%s: wanted %s, got %s", name, verdict, err.message);
      n_refused++;
    }
    cJSON_Delete(root);
  }
  fclose(f);
  assert_true(n_ok > 200 && n_refused > 400);
}

/* ---- our own bounds ---- */

static void test_messages_name_the_place(void **state)
{
  must_refuse("[1, 01]", "at byte 4: malformed number");
  must_refuse("{\"a\":1,}", "at byte 7: expected a key");
  must_refuse("[\"\\ud800\"]", "at byte 2: lone surrogate");
  must_refuse("[1] x", "at byte 4: something follows");
  must_refuse("", "unexpected end");
  must_refuse("{\"k\\u0065y\":1,\"key\":2}", "key 'key' stands twice");
  td_error err;
  cJSON *root;
  assert_int_equal(parse("{\"a\":1,\"a\":2}", 13, &body_limits, &root, &err), TD_ERR_REQUEST);
  assert_string_equal(err.param, "a");
  td_json_limits model = {64, 100, TD_ERR_MODEL};
  assert_int_equal(parse("[", 1, &model, &root, &err), TD_ERR_MODEL);
}

static td_status parse_repeated(const char *head, const char *part, size_t times, const char *tail,
                                const td_json_limits *limits)
{
  td_buf b;
  td_error err;
  cJSON *root;
  td_buf_init(&b, 0);
  td_buf_append_str(&b, head);
  for (size_t i = 0; i < times; i++) {
    if (i > 0)
      td_buf_append_char(&b, ',');
    td_buf_append_str(&b, part);
  }
  td_buf_append_str(&b, tail);
  td_status st = parse(b.data, b.len_bytes, limits, &root, &err);
  if (st != TD_OK)
    assert_non_null(strstr(err.message, "values"));
  cJSON_Delete(root);
  td_buf_deinit(&b);
  return st;
}

static void test_node_limit(void **state)
{
  td_json_limits limits = {64, 100, TD_ERR_REQUEST};
  assert_int_equal(parse_repeated("[", "null", 99, "]", &limits), TD_OK); /* the array itself counts as one */
  assert_int_equal(parse_repeated("[", "null", 100, "]", &limits), TD_ERR_REQUEST);
  assert_int_equal(parse_repeated("[", "0", 99 * 16 + 15, "]", &limits), TD_OK);
  assert_int_equal(parse_repeated("[", "0", 100 * 16, "]", &limits), TD_ERR_REQUEST);
  assert_int_equal(parse_repeated("[", "[0]", 94, "]", &limits), TD_OK);
  assert_int_equal(parse_repeated("[", "[0]", 95, "]", &limits), TD_ERR_REQUEST);
  /* beyond the cheap numbers each counts fully: a file of "0," gets no larger tree than its limit of nodes
   * allows */
  size_t cheap = td_limit_max(TD_LIMIT_JSON_CHEAP_NUMBERS);
  limits.max_nodes = cheap / 16 + 100;
  assert_int_equal(parse_repeated("[", "0", cheap + 99, "]", &limits), TD_OK);
  assert_int_equal(parse_repeated("[", "0", cheap + 100, "]", &limits), TD_ERR_REQUEST);
}

static void test_depth_limit(void **state)
{
  td_json_limits limits = {3, 100, TD_ERR_REQUEST};
  cJSON *root;
  td_error err;
  assert_int_equal(parse("[[[]]]", 6, &limits, &root, &err), TD_OK);
  cJSON_Delete(root);
  assert_int_equal(parse("[[[[]]]]", 8, &limits, &root, &err), TD_ERR_REQUEST);
  limits.max_depth = 100000; /* our stack of bits ends at 256 */
  char deep[600];
  memset(deep, '[', 300);
  memset(deep + 300, ']', 300);
  assert_int_equal(parse(deep, 600, &limits, &root, &err), TD_ERR_REQUEST);
  limits.max_nodes = 300;
  assert_int_equal(parse(deep + 44, 512, &limits, &root, &err), TD_OK);
  cJSON_Delete(root);
}

/* Many keys with a common beginning, then one repeated: keys are sorted, so this is not quadratic. */
static void test_many_keys(void **state)
{
  td_json_limits limits = {64, 400000, TD_ERR_REQUEST};
  td_buf b;
  cJSON *root;
  td_error err;
  td_buf_init(&b, 0);
  for (unsigned i = 0; i < 200000; i++)
    td_buf_printf(&b, "%c\"key-%06u\":%u", i ? ',' : '{', i, i);
  td_buf_append_str(&b, "}");
  assert_int_equal(parse(b.data, b.len_bytes, &limits, &root, &err), TD_OK);
  cJSON_Delete(root);
  b.len_bytes--;
  td_buf_append_str(&b, ",\"key-077777\":0}");
  assert_int_equal(parse(b.data, b.len_bytes, &limits, &root, &err), TD_ERR_REQUEST);
  assert_string_equal(err.param, "key-077777");
  td_buf_deinit(&b);
}

static void test_big_integers_in_their_places(void **state)
{
  cJSON *root = must_parse("{\"9\":[1,\"12345678901234567890\",-12345678901234567890,{\"x\\\"7\":3}],"
                           "\"b\":12345678901234567891,\"c\":0.5,\"d\":9007199254740993}");
  const cJSON *a = td_json_get(root, "9")->child;
  assert_true(cJSON_IsNumber(a));
  assert_true(cJSON_IsString(a->next));
  assert_true(cJSON_IsRaw(a->next->next));
  assert_string_equal(a->next->next->valuestring, "-12345678901234567890");
  assert_string_equal(td_json_get(root, "b")->valuestring, "12345678901234567891");
  assert_true(td_json_get(root, "c")->valuedouble == 0.5);
  assert_string_equal(td_json_get(root, "d")->valuestring, "9007199254740993");
  char *printed = cJSON_PrintUnformatted(root); /* a chat template's tojson relies on this */
  assert_non_null(strstr(printed, "-12345678901234567890"));
  cJSON_free(printed);
  cJSON_Delete(root);
}

static void expect_float(const char *text, bool want)
{
  char array[100];
  snprintf(array, sizeof array, "[\"1.0 \\\"\", %s, true]", text);
  cJSON *root = must_parse(array);
  if (td_json_is_float(root->child->next) != want)
    fail_msg("%s: a float? wanted %d", text, want);
  assert_false(td_json_is_float(root->child) || td_json_is_float(root->child->next->next));
  cJSON_Delete(root);
}

static void test_floats_keep_their_kind(void **state)
{
  static const char *const floats[] = {"1.0", "-1.0",    "0.0",   "-0.0", "1e2", "1E2",
                                       "0.5", "1.5e300", "1e999", "1e-9", "1e0", "4503599627370497.25"};
  static const char *const integers[] = {
      "0", "-0", "1", "100", "9007199254740991", "9007199254740993", "12345678901234567890"};
  for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
    expect_float(floats[i], true);
  for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
    expect_float(integers[i], false);
}

/* ---- getters ---- */

static void expect_int(const char *value, bool ok, int64_t want, int64_t min, int64_t max)
{
  char text[256];
  snprintf(text, sizeof text, "{\"k\":%s}", value);
  cJSON *root = must_parse(text);
  td_error err;
  int64_t v = 42;
  bool present = false;
  td_status st = td_json_get_int64(root, "k", min, max, &v, &present, &err);
  if ((st == TD_OK) != ok || v != want)
    fail_msg("%s: status %d, %lld", value, st, (long long)v);
  if (st != TD_OK) {
    assert_int_equal(st, TD_ERR_REQUEST);
    assert_string_equal(err.param, "k");
  }
  assert_true(present == (strcmp(value, "null") != 0));
  cJSON_Delete(root);
}

static void test_get_int64(void **state)
{
  expect_int("0", true, 0, 0, 10);
  expect_int("-0", true, 0, 0, 10);
  expect_int("10", true, 10, 0, 10);
  expect_int("1.0", true, 1, 0, 10);
  expect_int("1e1", true, 10, 0, 10);
  expect_int("null", true, 42, 0, 10);
  expect_int("11", false, 42, 0, 10);
  expect_int("-1", false, 42, 0, 10);
  expect_int("1.5", false, 42, 0, 10);
  expect_int("1e999", false, 42, INT64_MIN, INT64_MAX);
  expect_int("-1e999", false, 42, INT64_MIN, INT64_MAX);
  expect_int("1e-999", true, 0, 0, 10);
  expect_int("\"1\"", false, 42, 0, 10);
  expect_int("true", false, 42, 0, 10);
  expect_int("[1]", false, 42, 0, 10);
  expect_int("{}", false, 42, 0, 10);
  expect_int("9007199254740993", true, 9007199254740993, INT64_MIN, INT64_MAX);
  expect_int("9007199254740993.0", false, 42, INT64_MIN, INT64_MAX); /* as a double it would be ...992 */
  expect_int("9223372036854775807", true, INT64_MAX, INT64_MIN, INT64_MAX);
  expect_int("-9223372036854775808", true, INT64_MIN, INT64_MIN, INT64_MAX);
  expect_int("9223372036854775808", false, 42, INT64_MIN, INT64_MAX);
  expect_int("-9223372036854775809", false, 42, INT64_MIN, INT64_MAX);
  expect_int("999999999999999999999999999999999999999999", false, 42, INT64_MIN, INT64_MAX);
  expect_int("9223372036854775807", false, 42, 0, 10);
}

static void expect_seed(const char *value, bool ok, uint64_t want)
{
  char text[256];
  snprintf(text, sizeof text, "{\"k\":%s}", value);
  cJSON *root = must_parse(text);
  td_error err;
  uint64_t v = 42;
  td_status st = td_json_get_seed(root, "k", &v, NULL, &err);
  if ((st == TD_OK) != ok || v != want)
    fail_msg("%s: status %d, %llu", value, st, (unsigned long long)v);
  cJSON_Delete(root);
}

static void test_get_seed(void **state)
{
  expect_seed("7", true, 7);
  expect_seed("-1", true, UINT64_MAX);
  expect_seed("9007199254740992", true, 9007199254740992);
  expect_seed("9007199254740993", true, 9007199254740993);
  expect_seed("18446744073709551615", true, UINT64_MAX);
  expect_seed("-9223372036854775808", true, (uint64_t)INT64_MIN);
  expect_seed("18446744073709551616", false, 42);
  expect_seed("-9223372036854775809", false, 42);
  expect_seed("1e300", false, 42);
  expect_seed("0.5", false, 42);
  expect_seed("\"7\"", false, 42);
  expect_seed("null", true, 42);
}

static void test_get_others(void **state)
{
  td_error err;
  bool present, b = false;
  double d = 42;
  const char *s = "unset";
  cJSON *root = must_parse(
      "{\"half\":0.5,\"big\":12345678901234567890,\"inf\":1e999,\"yes\":true,\"text\":\"t\",\"nil\":null,"
      "\"A\":1}");
  assert_int_equal(td_json_get_double(root, "half", 0, 1, &d, &present, &err), TD_OK);
  assert_true(present && d == 0.5);
  assert_int_equal(td_json_get_double(root, "none", 0, 1, &d, &present, &err), TD_OK);
  assert_true(!present && d == 0.5);
  assert_int_equal(td_json_get_double(root, "half", 0.5, 0.5, &d, NULL, &err), TD_OK);
  assert_int_equal(td_json_get_double(root, "big", 0, 1e300, &d, NULL, &err), TD_OK);
  assert_true(d == 12345678901234567890.0);
  assert_int_equal(td_json_get_double(root, "inf", -1e308, 1e308, &d, NULL, &err), TD_ERR_REQUEST);
  assert_int_equal(td_json_get_double(root, "half", 0.6, 1, &d, NULL, &err), TD_ERR_REQUEST);
  assert_int_equal(td_json_get_double(root, "yes", 0, 1, &d, NULL, &err), TD_ERR_REQUEST);
  assert_true(d == 12345678901234567890.0);
  assert_int_equal(td_json_get_bool(root, "yes", &b, &present, &err), TD_OK);
  assert_true(b && present);
  assert_int_equal(td_json_get_bool(root, "half", &b, NULL, &err), TD_ERR_REQUEST);
  assert_int_equal(td_json_get_bool(root, "nil", &b, &present, &err), TD_OK);
  assert_true(b && !present);
  assert_int_equal(td_json_get_string(root, "nil", &s, &err), TD_OK);
  assert_string_equal(s, "unset");
  assert_int_equal(td_json_get_string(root, "yes", &s, &err), TD_ERR_REQUEST);
  assert_string_equal(err.param, "yes");
  assert_int_equal(td_json_get_string(root, "text", &s, &err), TD_OK);
  assert_string_equal(s, "t");
  assert_null(td_json_get(root, "a")); /* case matters */
  assert_null(td_json_get(root->child, "x"));
  assert_null(td_json_get(NULL, "x"));
  cJSON_Delete(root);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_vectors),           cmocka_unit_test(test_messages_name_the_place),
      cmocka_unit_test(test_node_limit),        cmocka_unit_test(test_nul_in_a_body),
      cmocka_unit_test(test_ids_stay_text),     cmocka_unit_test(test_ids_are_counted),
      cmocka_unit_test(test_ids_are_no_number), cmocka_unit_test(test_depth_limit),
      cmocka_unit_test(test_many_keys),         cmocka_unit_test(test_big_integers_in_their_places),
      cmocka_unit_test(test_get_int64),         cmocka_unit_test(test_get_seed),
      cmocka_unit_test(test_get_others),        cmocka_unit_test(test_floats_keep_their_kind),
  };
  return cmocka_run_group_tests_name("config json", tests, NULL, NULL);
}
