/* Random calls in each format, split at random bytes: nothing is lost and nothing is invented. Text that
 * looks like a call but is not one is returned whole. TANDEM_SPLITS: number of texts per format (default
 * 4,000). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "answers/reader.h"
#include "common/json.h"

static uint64_t seed = 0x9E3779B97F4A7C15u;
static uint32_t rnd(uint32_t n)
{
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return (uint32_t)(seed >> 33) % n;
}

/* ---- dialects ---- */

static bool specials;
static int32_t find_token(const void *arg, const char *text, bool *special)
{
  *special = specials;
  return specials && (*text == '[' || strstr(text, "python") || strstr(text, "think")) ? 7 : -1;
}

static void make_dialect(const char *format, td_dialect *d)
{
  td_dialect_signs s = {.calls = format, .reasoning = "think", .find = find_token};
  s.template = "[ARGS] <|python_tag|> <|python_start|> [CALL_ID]"; /* all optional marks */
  if (strcmp(format, "mistral") == 0 && rnd(2))
    s.template = "[TOOL_CALLS]";
  s.n_template = strlen(s.template);
  td_dialect_find(&s, d);
}

/* ---- answers, and their texts ---- */

enum { CALLS_MAX = 4, NAMES = 4, PARAMS = 4 };
static const char *const names[NAMES] = {"f", "get_weather", "files-write", "ns.look_up"};
/* params of every tool: string, any number, boolean or null, array or object or string */
static const char *const params[PARAMS] = {"city", "n", "flag", "data"};
static const char tools_json[] =
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"number\"},"
    "\"flag\":{\"type\":[\"boolean\",\"null\"]},\"data\":{\"anyOf\":[{\"type\":\"array\"},{\"type\":"
    "\"object\"}]}}}";

static td_tools tools;

typedef struct expected {
  char content[8192], reasoning[1024];
  size_t n_content;
  const char *names[CALLS_MAX];
  cJSON *args[CALLS_MAX];
  char *exact[CALLS_MAX]; /* the exact text of arguments; NULL: any text with the same meaning */
  uint32_t n_calls;
} expected;

static const char *const bits[] = {"a",
                                   "Oslo",
                                   " ",
                                   "\n",
                                   "<",
                                   "</",
                                   "{",
                                   "}",
                                   "[",
                                   "]",
                                   "\"",
                                   "'",
                                   "\\",
                                   ";",
                                   ",",
                                   "=",
                                   "\t",
                                   "<tool_call>",
                                   "</tool_call>",
                                   "[TOOL_CALLS]",
                                   "[ARGS]",
                                   "<function=",
                                   "</function>",
                                   "<parameter=",
                                   "</parameter",
                                   "</think>",
                                   "<|python_tag|>",
                                   "é",
                                   "\xF0\x9F\x98\x80",
                                   "\\n",
                                   "{\"name\": \"f\"",
                                   "[f(",
                                   "null",
                                   "True",
                                   "-1.5e3",
                                   "</parameter>x",
                                   "\x7F"};
enum { BITS = sizeof bits / sizeof *bits };

static void random_text(char *out, size_t max, unsigned n_bits)
{
  *out = '\0';
  for (unsigned i = rnd(n_bits + 1); i > 0; i--) {
    const char *b = bits[rnd(BITS)];
    if (strlen(out) + strlen(b) < max)
      strcat(out, b);
  }
}

static cJSON *random_value(unsigned depth);
static cJSON *random_container(unsigned depth)
{
  char key[64];
  bool object = rnd(2);
  cJSON *c = object ? cJSON_CreateObject() : cJSON_CreateArray();
  for (unsigned i = rnd(4); i > 0; i--) {
    random_text(key, sizeof key, 3);
    if (!object)
      cJSON_AddItemToArray(c, random_value(depth + 1));
    else if (!cJSON_GetObjectItemCaseSensitive(c, key))
      cJSON_AddItemToObject(c, key, random_value(depth + 1));
  }
  return c;
}

static cJSON *random_number(void)
{
  static const double some[] = {0, -1, 12345, 1.5, -0.25, 1e21, 3};
  return cJSON_CreateNumber(some[rnd(7)]);
}

static cJSON *random_string(void)
{
  char text[256];
  random_text(text, sizeof text, 8);
  return cJSON_CreateString(text);
}

static cJSON *random_flag(void) { return rnd(3) ? cJSON_CreateBool(rnd(2)) : cJSON_CreateNull(); }

static cJSON *random_value(unsigned depth)
{
  switch (rnd(depth < 3 ? 5 : 3)) {
  case 0: return random_string();
  case 1: return random_number();
  case 2: return random_flag();
  default: return random_container(depth);
  }
}

static cJSON *random_args(void)
{
  cJSON *(*const make[PARAMS])(void) = {random_string, random_number, random_flag, NULL};
  cJSON *args = cJSON_CreateObject();
  for (unsigned i = 0; i < PARAMS; i++)
    if (rnd(3))
      cJSON_AddItemToObject(args, params[i], make[i] ? make[i]() : random_container(0));
  return args;
}

static void put(td_buf *b, const char *s) { td_buf_append_str(b, s); }
static void put_blanks(td_buf *b)
{
  static const char *const blanks[] = {"", "", " ", "\n", "\n\n", " \n\t"};
  put(b, blanks[rnd(6)]);
}

/* A mark as the text has it. */
static void put_mark(td_buf *b, const td_dialect *d, td_mark_name m)
{
  td_buf_append(b, d->marks[m].text, d->marks[m].n);
}

static void put_json(td_buf *b, const cJSON *v, expected *e)
{
  char *text = rnd(2) ? cJSON_Print(v) : cJSON_PrintUnformatted(v);
  put(b, text);
  if (e && !e->exact[e->n_calls])
    e->exact[e->n_calls] = text;
  else
    cJSON_free(text);
}

static void put_python_string(td_buf *b, const char *s)
{
  char q = rnd(2) ? '"' : '\'';
  td_buf_append_char(b, q);
  for (; *s; s++) {
    if (*s == q || *s == '\\')
      td_buf_append_char(b, '\\');
    if (*s == '\n' && rnd(2))
      put(b, "\\n");
    else if (*s == 'a' && rnd(2))
      put(b, rnd(2) ? "\\x61" : "\\u0061");
    else
      td_buf_append_char(b, *s);
  }
  td_buf_append_char(b, q);
}

static void put_python(td_buf *b, const cJSON *v)
{
  const cJSON *m;
  unsigned i = 0;
  if (cJSON_IsString(v)) {
    put_python_string(b, v->valuestring);
  } else if (cJSON_IsBool(v) || cJSON_IsNull(v)) {
    put(b, cJSON_IsNull(v) ? "None" : cJSON_IsTrue(v) ? "True" : "False");
  } else if (cJSON_IsNumber(v)) {
    put_json(b, v, NULL);
  } else {
    put(b, cJSON_IsArray(v) ? "[" : "{");
    cJSON_ArrayForEach(m, v)
    {
      put(b, i++ ? ", " : rnd(2) ? " " : "");
      if (m->string) {
        put_python_string(b, m->string);
        put(b, rnd(2) ? ": " : ":");
      }
      put_python(b, m);
    }
    put(b, i && rnd(4) == 0 ? "," : "");
    put(b, cJSON_IsArray(v) ? "]" : "}");
  }
}

static void put_object(td_buf *b, const char *name, const cJSON *args, const char *key, expected *e)
{
  bool swapped = rnd(4) == 0;
  put(b, "{");
  put_blanks(b);
  if (rnd(4) == 0)
    put(b, "\"type\": \"function\", ");
  for (unsigned i = 0; i < 2; i++) {
    if ((i == 0) == swapped) {
      td_buf_printf(b, "\"%s\": ", key);
      put_json(b, args, e);
    } else {
      td_buf_printf(b, "\"name\": \"%s\"", name);
    }
    put(b, i ? "" : ", ");
  }
  if (rnd(4) == 0)
    put(b, ", \"id\": \"x}]\", \"n\": [1, {\"a\": -0.5}, 12 ]");
  put_blanks(b);
  put(b, "}");
}

static void put_xml(td_buf *b, const char *name, const cJSON *args)
{
  const cJSON *p;
  td_buf_printf(b, "<function=%s>", name);
  put_blanks(b);
  cJSON_ArrayForEach(p, args)
  {
    td_buf_printf(b, "<parameter=%s>\n", p->string);
    if (cJSON_IsString(p))
      put(b, p->valuestring);
    else if (cJSON_IsBool(p) && rnd(2))
      put(b, cJSON_IsTrue(p) ? "True" : "False");
    else
      put_json(b, p, NULL);
    put(b, "\n</parameter>");
    put_blanks(b);
  }
  put(b, "</function>");
}

static void add_call(expected *e, const char *name, cJSON *args)
{
  e->names[e->n_calls] = name;
  e->args[e->n_calls++] = args;
}

/* One call with its surrounding text. i: of n. */
static void put_call(td_buf *b, const td_dialect *d, unsigned i, unsigned n, expected *e)
{
  const char *name = names[rnd(NAMES)];
  cJSON *args = random_args();
  switch (d->calls) {
  case TD_CALLS_HERMES:
    put_mark(b, d, TD_MARK_CALL);
    put_blanks(b);
    put_object(b, name, args, "arguments", e);
    put_blanks(b);
    if (i + 1 < n || rnd(3))
      put_mark(b, d, TD_MARK_CALL_END);
    break;
  case TD_CALLS_LLAMA:
    if (i == 0 && rnd(2))
      put_mark(b, d, TD_MARK_CALL);
    put(b, i ? ";" : "");
    put_blanks(b);
    put_object(b, name, args, "parameters", e);
    break;
  case TD_CALLS_MISTRAL:
    if (i == 0 || !d->lists_calls)
      put_mark(b, d, TD_MARK_CALL);
    if (d->lists_calls) {
      put(b, i ? ", " : "[");
      put_object(b, name, args, "arguments", e);
      put(b, i + 1 == n ? "]" : "");
      break;
    }
    put(b, name);
    if (rnd(3) == 0) {
      put_mark(b, d, TD_MARK_CALL_ID);
      put(b, "abcDEF123");
    }
    put_mark(b, d, TD_MARK_ARGS);
    put_json(b, args, e);
    break;
  case TD_CALLS_PYTHONIC: {
    const cJSON *p;
    bool first = true;
    put(b, i ? ", " : "[");
    td_buf_printf(b, "%s(", name);
    cJSON_ArrayForEach(p, args)
    {
      td_buf_printf(b, "%s%s=", first ? "" : ", ", p->string);
      put_python(b, p);
      first = false;
    }
    put(b, ")");
    put(b, i + 1 == n ? "]" : "");
    break;
  }
  default:
    put_mark(b, d, TD_MARK_CALL);
    put_blanks(b);
    put_xml(b, name, args);
    put_blanks(b);
    put_mark(b, d, TD_MARK_CALL_END);
  }
  add_call(e, name, args);
}

/* Prose without a whole mark; begins and ends with a letter. */
static void put_prose(td_buf *b, expected *e)
{
  char text[256];
  static const char *const whole[] = {"<tool_call>", "[TOOL_CALLS]", "<function=", "<|python_tag|>"};
  random_text(text, sizeof text, 6);
  for (size_t i = 0; i < 4; i++)
    while (strstr(text, whole[i]))
      memset(strstr(text, whole[i]), '.', 2);
  int n = snprintf(e->content + e->n_content, sizeof e->content - e->n_content, "x%sy", text);
  put(b, e->content + e->n_content);
  e->n_content += (size_t)n;
}

static void put_thoughts(td_buf *b, const td_dialect *d, expected *e)
{
  char text[256];
  random_text(text, sizeof text, 6);
  while (strstr(text, "</think>"))
    memset(strstr(text, "</think>"), '.', 2);
  snprintf(e->reasoning, sizeof e->reasoning, "r%ss", text);
  put_blanks(b);
  put_mark(b, d, TD_MARK_THINK);
  put_blanks(b);
  put(b, e->reasoning);
  put_blanks(b);
  put_mark(b, d, TD_MARK_THINK_END);
}

static void free_expected(expected *e)
{
  for (uint32_t i = 0; i < e->n_calls; i++) {
    cJSON_Delete(e->args[i]);
    cJSON_free(e->exact[i]);
  }
}

/* ---- reading ---- */

typedef struct got {
  td_buf content, reasoning, args[64];
  char names[64][TD_MARK_BYTES * 8];
  uint32_t n_calls;
} got;

static void drain(td_parsed_answer *parsed, got *g)
{
  for (size_t i = 0; i < parsed->n; i++) {
    const td_answer_part *p = &parsed->parts[i];
    const char *text = td_answer_part_text(parsed, p);
    if (p->kind == TD_PART_CALL) {
      assert_int_equal(p->call, g->n_calls);
      assert_true(g->n_calls < 64);
      snprintf(g->names[g->n_calls++], sizeof g->names[0], "%.*s", (int)p->n, text);
    } else if (p->kind == TD_PART_ARGUMENTS) {
      assert_int_equal(p->call + 1, g->n_calls); /* calls in order */
      td_buf_append(&g->args[p->call], text, p->n);
    } else {
      td_buf_append(p->kind == TD_PART_CONTENT ? &g->content : &g->reasoning, text, p->n);
    }
  }
}

static void free_got(got *g)
{
  td_buf_deinit(&g->content);
  td_buf_deinit(&g->reasoning);
  for (uint32_t i = 0; i < 64; i++)
    td_buf_deinit(&g->args[i]);
}

/* cuts 0: in one part. */
static void read_answer(const td_dialect *d, const char *text, size_t n, uint32_t longest, bool whole, got *g)
{
  td_reader_rules rules = {.dialect = d, .tools = &tools, .reasons = true, .whole = whole};
  td_reader *r = td_reader_create(&rules);
  td_parsed_answer parsed;
  memset(g, 0, sizeof *g);
  td_parsed_answer_init(&parsed);
  for (size_t at = 0; at < n;) {
    size_t k = longest ? 1 + rnd(longest) : n;
    k = k < n - at ? k : n - at;
    td_reader_push(r, text + at, k, &parsed);
    at += k;
    if (whole)
      continue;
    drain(&parsed, g);
    td_parsed_answer_clear(&parsed);
  }
  td_reader_finish(r, false, &parsed);
  drain(&parsed, g);
  assert_false(parsed.failed);
  td_parsed_answer_deinit(&parsed);
  td_reader_destroy(r);
}

static const char *text_of(const td_buf *b) { return b->data ? b->data : ""; }

static void compare(const expected *e, const got *g, const char *text)
{
  const td_json_limits limits = {64, 100000, TD_ERR_REQUEST};
  bool same = e->n_calls == g->n_calls && strcmp(e->content, text_of(&g->content)) == 0 &&
              strcmp(e->reasoning, text_of(&g->reasoning)) == 0;
  for (uint32_t i = 0; i < e->n_calls && same; i++) {
    cJSON *args = NULL;
    td_error err = {0};
    td_status st = td_json_parse(text_of(&g->args[i]), g->args[i].len_bytes, &limits, &args, &err);
    same = strcmp(e->names[i], g->names[i]) == 0 && st == TD_OK && cJSON_Compare(args, e->args[i], true) &&
           (!e->exact[i] || strcmp(e->exact[i], text_of(&g->args[i])) == 0);
    if (!same)
      print_message("call %u: %s %s\n%s\n", i, g->names[i], text_of(&g->args[i]), err.message);
    cJSON_Delete(args);
  }
  if (!same)
    print_message("text: %s\ncontent: %s\nwanted:  %s\nreasoning: %s\nwanted: %s\ncalls %u of %u\n", text,
                  text_of(&g->content), e->content, text_of(&g->reasoning), e->reasoning, g->n_calls,
                  e->n_calls);
  assert_true(same);
}

/* ---- tests ---- */

static unsigned n_texts(void)
{
  const char *s = getenv("TANDEM_SPLITS");
  return s ? (unsigned)atoi(s) : 4000;
}

static bool starts_only(const td_dialect *d)
{
  return d->calls == TD_CALLS_LLAMA || d->calls == TD_CALLS_PYTHONIC;
}

static void one_text(const char *format)
{
  td_dialect d;
  td_buf b;
  expected e = {0};
  got g;
  specials = rnd(2);
  make_dialect(format, &d);
  td_buf_init(&b, 0);
  unsigned n = rnd(CALLS_MAX) + (starts_only(&d) ? 1 : 0);
  if (rnd(3) == 0)
    put_thoughts(&b, &d, &e);
  put_blanks(&b);
  if (!starts_only(&d) && rnd(2)) {
    put_prose(&b, &e);
    put_blanks(&b);
  }
  if (!n && !e.n_content)
    put_prose(&b, &e);
  for (unsigned i = 0; i < n; i++) {
    put_call(&b, &d, i, n, &e);
    if (d.calls != TD_CALLS_MISTRAL || !d.lists_calls)
      put_blanks(&b);
  }
  if (n > 0 && rnd(8) == 0) { /* blanks between are the text's then */
    char between[8] = "";
    while (b.len_bytes > 0 && strchr(" \t\n", b.data[b.len_bytes - 1]))
      b.len_bytes--;
    strcat(e.content, between);
    put_prose(&b, &e);
  }
  if (!n) /* blanks at the end stay */
    while (b.len_bytes > 0 && strchr(" \t\n", b.data[b.len_bytes - 1]))
      b.data[--b.len_bytes] = '\0';
  if (!n && !*e.reasoning) /* and at the begin */
  {
    size_t k = strspn(b.data, " \t\n");
    memmove(b.data, b.data + k, b.len_bytes - k + 1);
    b.len_bytes -= k;
  }
  bool strips = n > 0 && e.n_content && e.content[0] == 'x' && !*e.reasoning && strspn(b.data, " \t\n") &&
                !starts_only(&d);
  if (strips && strchr(" \t\n", b.data[0])) { /* blanks before prose, not before a call */
    size_t k = strspn(b.data, " \t\n");
    if (b.data[k] == 'x') {
      memmove(b.data, b.data + k, b.len_bytes - k + 1);
      b.len_bytes -= k;
    }
  }
  for (unsigned i = 0; i < 2; i++) {
    read_answer(&d, b.data, b.len_bytes, i ? 1 + rnd(12) : 0, rnd(2), &g);
    compare(&e, &g, b.data);
    free_got(&g);
  }
  free_expected(&e);
  td_buf_deinit(&b);
}

static void test_calls(void **state)
{
  for (unsigned i = n_texts(); i > 0; i--)
    one_text(*state);
}

/* The text without special tokens, which are never content. */
static void without_marks(const td_dialect *d, const char *text, size_t n, td_buf *out)
{
  for (size_t i = 0; i < n; i++) {
    size_t skip = 0;
    for (unsigned m = 0; m < TD_MARKS; m++)
      if (d->marks[m].id >= 0 && d->marks[m].n <= n - i &&
          memcmp(text + i, d->marks[m].text, d->marks[m].n) == 0)
        skip = d->marks[m].n;
    if (skip)
      i += skip - 1;
    else if (text[i] != TD_MARK_BYTE[0])
      td_buf_append_char(out, text[i]);
  }
}

/* A call with a byte changed, removed or doubled, or the end cut off. The result does not depend on how it is
 * split; without calls, all of it is content; arguments of calls are JSON. */
static void one_broken(const char *format)
{
  const td_json_limits limits = {64, 100000, TD_ERR_REQUEST};
  td_dialect d;
  td_buf b, plain;
  expected e = {0};
  got once, cut, stream;
  specials = rnd(2);
  make_dialect(format, &d);
  d.thinks = false;
  td_buf_init(&b, 0);
  td_buf_init(&plain, 0);
  unsigned n = 1 + rnd(2);
  for (unsigned i = 0; i < n; i++)
    put_call(&b, &d, i, n, &e);
  for (unsigned i = 1 + rnd(2); i > 0 && b.len_bytes > 2; i--) {
    size_t at = rnd((uint32_t)b.len_bytes);
    const char *bit = bits[rnd(BITS)];
    if (b.data[at] & 0x80) /* characters stay whole */
      continue;
    switch (rnd(4)) {
    case 0: b.data[at] = *bit & 0x7F; break;
    case 1:
      memmove(b.data + at, b.data + at + 1, b.len_bytes - at);
      b.len_bytes--;
      break;
    case 2: b.len_bytes = at; break;
    default: td_buf_append_str(&b, bit);
    }
  }
  read_answer(&d, b.data, b.len_bytes, 0, true, &once);
  read_answer(&d, b.data, b.len_bytes, 1 + rnd(12), true, &cut);
  read_answer(&d, b.data, b.len_bytes, 1 + rnd(12), false, &stream);
  assert_int_equal(once.n_calls, cut.n_calls);
  assert_string_equal(text_of(&once.content), text_of(&cut.content));
  for (uint32_t i = 0; i < once.n_calls; i++) {
    assert_string_equal(once.names[i], cut.names[i]);
    assert_string_equal(text_of(&once.args[i]), text_of(&cut.args[i]));
    td_error err = {0};
    if (td_json_check(text_of(&once.args[i]), once.args[i].len_bytes, &limits, &err) != TD_OK)
      fail_msg("%s: %s\nof %.*s", err.message, text_of(&once.args[i]), (int)b.len_bytes, b.data);
  }
  assert_true(stream.n_calls >= once.n_calls); /* what was sent in a stream cannot be taken back */
  without_marks(&d, b.data, b.len_bytes, &plain);
  if (once.n_calls == 0 && strcmp(text_of(&plain), text_of(&once.content)) != 0) {
    print_message("text: %.*s\n", (int)b.len_bytes, b.data);
    assert_string_equal(text_of(&plain), text_of(&once.content));
  }
  free_got(&once);
  free_got(&cut);
  free_got(&stream);
  free_expected(&e);
  td_buf_deinit(&b);
  td_buf_deinit(&plain);
}

static void test_broken_calls(void **state)
{
  for (unsigned i = n_texts(); i > 0; i--)
    one_broken(*state);
}

static int make_tools(void **state)
{
  cJSON *all = cJSON_CreateArray();
  for (unsigned i = 0; i < NAMES; i++) {
    cJSON *tool = cJSON_CreateObject(), *f = cJSON_AddObjectToObject(tool, "function");
    cJSON_AddStringToObject(f, "name", names[i]);
    cJSON_AddItemToObject(f, "parameters", cJSON_Parse(tools_json));
    cJSON_AddItemToArray(all, tool);
  }
  bool ok = td_tools_make(all, &tools);
  cJSON_Delete(all);
  return ok ? 0 : -1;
}

static int free_tools(void **state)
{
  td_tools_deinit(&tools);
  return 0;
}

#define OF(f, format)                                                                                        \
  {                                                                                                          \
    .name = #f " " format, .test_func = f, .initial_state = format                                           \
  }

int main(void)
{
  const struct CMUnitTest tests[] = {
      OF(test_calls, "hermes"),         OF(test_calls, "llama"),
      OF(test_calls, "pythonic"),       OF(test_calls, "mistral"),
      OF(test_calls, "qwen3-coder"),    OF(test_broken_calls, "hermes"),
      OF(test_broken_calls, "llama"),   OF(test_broken_calls, "pythonic"),
      OF(test_broken_calls, "mistral"), OF(test_broken_calls, "qwen3-coder"),
  };
  return cmocka_run_group_tests(tests, make_tools, free_tools);
}
