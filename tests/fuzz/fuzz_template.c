/* Chat templates: compiled, and rendered with small budgets over messages. Input: template text, and after
 * a NUL the client's variables as JSON; without them a fixed chat. Properties: a failure is an error within
 * the budgets, not a crash; two renderings are the same; trusted spans are in order and inside the text; a
 * snowman that the client sent is never marked as trusted, whatever the template did to it. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "models/template/chat_template.h"

static const char trusted_json[] =
    "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"add_generation_prompt\":true}";
static const char input_json[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be \\u2603\\u2603 kind.\"},"
    "{\"role\":\"user\",\"content\":\" Hi \\u2603\\n\"},"
    "{\"role\":\"assistant\",\"content\":\"Hello\"}],"
    "\"tools\":null,\"documents\":null,\"n\":3,\"x\":-1.5,\"big\":12345678901234567890,"
    "\"list\":[3,1,2,\"a\",null,true,{\"k\":\"\\u2603\"}]}";
static cJSON *trusted, *fixed_input;

static cJSON *must_parse(const char *text, size_t n)
{
  const td_json_limits limits = {64, 1000, TD_ERR_REQUEST};
  cJSON *json;
  td_error err;
  FUZZ_CHECK(td_json_parse(text, n, &limits, &json, &err) == TD_OK);
  return json;
}

static void check_spans(const td_rendered *r)
{
  size_t end = 0;
  for (size_t i = 0; i < r->n_trusted; i++) {
    FUZZ_CHECK(r->trusted[i].start < r->trusted[i].end && r->trusted[i].start >= end);
    end = r->trusted[i].end;
  }
  FUZZ_CHECK(end <= r->text.len_bytes);
}

#define SNOWMAN "\xE2\x98\x83"

/* A template that contains no snowman, and cannot make one from a number ("%c") or an escape. */
static bool makes_no_snowman(const uint8_t *s, size_t n)
{
  for (size_t i = 0; i < n; i++)
    if (s[i] >= 0x80 || s[i] == '\\' || s[i] == '&' ||
        (s[i] == '%' && !(i > 0 && s[i - 1] == '{') && !(i + 1 < n && s[i + 1] == '}')))
      return false;
  return true;
}

static void check_snowmen(const td_rendered *r)
{
  size_t start = 0;
  const char *at;
  while (start < r->text.len_bytes &&
         (at = memmem(r->text.data + start, r->text.len_bytes - start, SNOWMAN, 3))) {
    start = (size_t)(at - r->text.data);
    for (size_t i = 0; i < r->n_trusted; i++)
      FUZZ_CHECK(r->trusted[i].end <= start || r->trusted[i].start >= start + 3);
    start += 3;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  const td_json_limits limits = {64, 1000, TD_ERR_REQUEST};
  const uint8_t *nul = size ? memchr(data, '\0', size) : NULL;
  size_t n = nul ? (size_t)(nul - data) : size;
  cJSON *own = NULL;
  td_error err = {0};
  if (!trusted) {
    trusted = must_parse(trusted_json, sizeof trusted_json - 1);
    fixed_input = must_parse(input_json, sizeof input_json - 1);
  }
  td_chat_template *t;
  td_status st = td_chat_template_compile((const char *)data, n, &t, &err);
  FUZZ_CHECK((st == TD_OK) == (t != NULL));
  if (st != TD_OK) {
    FUZZ_CHECK((st == TD_ERR_MODEL || st == TD_ERR_UNSUPPORTED) && *err.message);
    return 0;
  }
  if (nul && td_json_parse((const char *)nul + 1, size - n - 1, &limits, &own, &err) == TD_OK &&
      !cJSON_IsObject(own)) {
    cJSON_Delete(own);
    own = NULL;
  }
  const td_render_input in = {.trusted = trusted,
                              .input = own ? own : fixed_input,
                              .now = 1700000000,
                              .max_ops = 3000,
                              .max_memory_bytes = 1 << 20};
  td_rendered a = {0}, b = {0};
  td_status sa = td_chat_template_render(t, &in, &a, &err), sb = td_chat_template_render(t, &in, &b, &err);
  FUZZ_CHECK(sa == sb && (sa == TD_OK || sa == TD_ERR_REQUEST));
  FUZZ_CHECK(a.text.len_bytes == b.text.len_bytes && a.n_trusted == b.n_trusted);
  FUZZ_CHECK(a.text.len_bytes == 0 || memcmp(a.text.data, b.text.data, a.text.len_bytes) == 0);
  FUZZ_CHECK(sa == TD_OK || a.text.len_bytes == 0);
  if (sa == TD_OK) {
    check_spans(&a);
    if (makes_no_snowman(data, n))
      check_snowmen(&a);
  }
  td_render_input continued = in; /* its mark differs each time, and a template may show parts of it */
  continued.continue_final_message = true;
  td_rendered c = {0};
  if (td_chat_template_render(t, &continued, &c, &err) == TD_OK)
    check_spans(&c);
  td_rendered_deinit(&a);
  td_rendered_deinit(&b);
  td_rendered_deinit(&c);
  td_chat_template_destroy(t);
  cJSON_Delete(own);
  return 0;
}
