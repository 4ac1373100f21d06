/* Our renderings compared with those of jinja2 for the same templates, conversations and random programs
 * (tests/golden_template/golden.json, written by make_golden.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "models/template/chat_template.h"

static char *read_file(const char *name, size_t *n)
{
  char path[1024];
  snprintf(path, sizeof path, "%s/tests/golden_template/%s", TD_SOURCE_DIR, name);
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  fseek(f, 0, SEEK_END);
  *n = (size_t)ftell(f);
  rewind(f);
  char *text = malloc(*n + 1);
  assert_int_equal(fread(text, 1, *n, f), *n);
  text[*n] = '\0';
  fclose(f);
  return text;
}

static cJSON *golden;

static cJSON *read_json(const char *name)
{
  size_t n;
  td_error err;
  cJSON *json;
  td_json_limits limits = {.max_depth = 100, .max_nodes = 1 << 20, .error = TD_ERR_MODEL};
  char *text = read_file(name, &n);
  if (td_json_parse(text, n, &limits, &json, &err) != TD_OK)
    fail_msg("%s", err.message);
  free(text);
  return json;
}

static int load(void **state)
{
  setenv("TZ", "UTC", 1);
  golden = read_json("golden.json");
  return 0;
}

static int unload(void **state)
{
  cJSON_Delete(golden);
  return 0;
}

/* expect: a string, or null for a refusal (in compiling or in rendering) */
static bool renders_as(const char *name, const char *source, const td_render_input *in, const cJSON *expect)
{
  td_chat_template *t;
  td_error err;
  td_rendered out = {0};
  td_status st = td_chat_template_compile(source, strlen(source), &t, &err);
  if (st == TD_OK)
    st = td_chat_template_render(t, in, &out, &err);
  const char *got = st == TD_OK ? (out.text.data ? out.text.data : "") : NULL;
  bool same = cJSON_IsString(expect) ? got && strcmp(got, expect->valuestring) == 0 : got == NULL;
  if (!same)
    print_error("%s: expected %s\n  got %s\n", name,
                cJSON_IsString(expect) ? expect->valuestring : "a refusal", got ? got : err.message);
  td_rendered_deinit(&out);
  td_chat_template_destroy(t);
  return same;
}

static bool matches(const char *name, const char *source, const cJSON *trusted, const cJSON *input,
                    const cJSON *expect)
{
  td_render_input in = {
      .trusted = trusted, .input = input, .max_ops = 4000000, .max_memory_bytes = 134217728};
  in.now = (time_t)td_json_get(golden, "now")->valuedouble;
  return renders_as(name, source, &in, expect);
}

static void templates_render_like_the_reference(void **state)
{
  const cJSON *template, *chats = td_json_get(golden, "conversations");
  int n = 0, bad = 0;
  cJSON_ArrayForEach(template, td_json_get(golden, "templates"))
  {
    char name[300];
    size_t bytes;
    snprintf(name, sizeof name, "templates/%s", td_json_get(template, "name")->valuestring);
    char *source = read_file(name, &bytes);
    const cJSON *chat = chats->child, *expect = td_json_get(template, "expect")->child;
    for (; chat; chat = chat->next, expect = expect->next, n++) {
      assert_non_null(expect);
      snprintf(name, sizeof name, "%s x %s", td_json_get(template, "name")->valuestring,
               td_json_get(chat, "name")->valuestring);
      bad += !matches(name, source, td_json_get(chat, "trusted"), td_json_get(chat, "input"), expect);
    }
    free(source);
  }
  assert_true(n >= 300);
  assert_int_equal(bad, 0);
}

static void programs_render_like_the_reference(void **state)
{
  const cJSON *program;
  cJSON *trusted = cJSON_Parse("{\"bos_token\": \"<s>\"}");
  int n = 0, bad = 0;
  cJSON_ArrayForEach(program, td_json_get(golden, "programs"))
  {
    const char *source = program->child->valuestring;
    bad += !matches(source, source, trusted, td_json_get(golden, "program_input"), program->child->next);
    n++;
  }
  cJSON_Delete(trusted);
  assert_true(n >= 200);
  assert_int_equal(bad, 0);
}

/* A client's number keeps the type that its text has in Python: 1.0 is a float, and prints as one. */
static void numbers_print_like_the_reference(void **state)
{
  const td_json_limits limits = {.max_depth = 10, .max_nodes = 10, .error = TD_ERR_REQUEST};
  const char *source = td_json_get(golden, "number_source")->valuestring;
  const cJSON *one;
  int n = 0, bad = 0;
  cJSON_ArrayForEach(one, td_json_get(golden, "numbers"))
  {
    char text[200];
    td_error err;
    cJSON *input;
    int len = snprintf(text, sizeof text, "{\"x\": %s}", one->child->valuestring);
    assert_int_equal(td_json_parse(text, (size_t)len, &limits, &input, &err), TD_OK);
    bad += !matches(text, source, NULL, input, one->child->next);
    cJSON_Delete(input);
    n++;
  }
  assert_true(n >= 200);
  assert_int_equal(bad, 0);
}

/* Where a continued answer continues: as transformers cuts the same rendering. */
static void continued_messages_end_where_the_reference_ends_them(void **state)
{
  cJSON *all = read_json("continue.json");
  const cJSON *one;
  int n = 0, bad = 0;
  cJSON_ArrayForEach(one, td_json_get(all, "cases"))
  {
    char name[300];
    size_t bytes;
    const cJSON *source = td_json_get(one, "source");
    snprintf(name, sizeof name, "templates/%s", td_json_get(one, "name")->valuestring);
    char *text = cJSON_IsString(source) ? strdup(source->valuestring) : read_file(name, &bytes);
    td_render_input in = {.trusted = td_json_get(all, "trusted"),
                          .input = td_json_get(one, "input"),
                          .continue_final_message = true,
                          .now = (time_t)td_json_get(all, "now")->valuedouble,
                          .max_ops = 4000000,
                          .max_memory_bytes = 134217728};
    char *messages = cJSON_PrintUnformatted(td_json_get(one, "input"));
    snprintf(name, sizeof name, "%s, %.200s", td_json_get(one, "name")->valuestring, messages);
    bad += !renders_as(name, text, &in, td_json_get(one, "expect"));
    n++;
    free(messages);
    free(text);
  }
  cJSON_Delete(all);
  assert_true(n >= 300);
  assert_int_equal(bad, 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(templates_render_like_the_reference),
      cmocka_unit_test(programs_render_like_the_reference),
      cmocka_unit_test(numbers_print_like_the_reference),
      cmocka_unit_test(continued_messages_end_where_the_reference_ends_them),
  };
  return cmocka_run_group_tests(tests, load, unload);
}
