/* Renders chat templates for the tests: one JSON object per line in, one per line out.
 *   in:  {"template": text, "trusted": {...}, "input": {...}, "now": seconds}
 *   out: {"ok": bool, "stage": "compile" | "render", "text": text, "error": text,
 *         "spans": [[start, end], ...]}
 * Spans are byte ranges of trusted text. If the template is the same as on the line before, it is not
 * compiled again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/template/chat_template.h"

static void put_string(const char *key, const char *p, size_t n)
{
  td_buf b;
  td_buf_init(&b, 0);
  td_buf_append_json_string(&b, p ? p : "", n);
  printf("\"%s\": ", key);
  fwrite(b.data, 1, b.len_bytes, stdout);
  td_buf_deinit(&b);
}

static void answer(bool ok, const char *stage, const td_rendered *out, const td_error *err)
{
  printf("{\"ok\": %s, \"stage\": \"%s\", ", ok ? "true" : "false", stage);
  put_string("text", out ? out->text.data : "", out ? out->text.len_bytes : 0);
  printf(", ");
  put_string("error", ok ? "" : err->message, ok ? 0 : strlen(err->message));
  printf(", \"spans\": [");
  for (size_t i = 0; out && i < out->n_trusted; i++)
    printf("%s[%zu, %zu]", i ? ", " : "", out->trusted[i].start, out->trusted[i].end);
  printf("]}\n");
  fflush(stdout);
}

int main(void)
{
  td_json_limits limits = {.max_depth = 200, .max_nodes = 1 << 24, .error = TD_ERR_REQUEST};
  char *line = NULL, *source = NULL;
  size_t cap = 0;
  ssize_t n;
  td_chat_template *t = NULL;
  td_error err = {0};
  while ((n = getline(&line, &cap, stdin)) > 0) {
    cJSON *in = NULL;
    while (n > 0 && line[n - 1] == '\n')
      n--;
    if (td_json_parse(line, (size_t)n, &limits, &in, &err) != TD_OK) {
      answer(false, "input", NULL, &err);
      continue;
    }
    const cJSON *text = td_json_get(in, "template"), *now = td_json_get(in, "now");
    const char *wanted = cJSON_IsString(text) ? text->valuestring : "";
    if (!source || strcmp(source, wanted) != 0) {
      td_chat_template_destroy(t);
      free(source);
      source = strdup(wanted);
      if (td_chat_template_compile(source, strlen(source), &t, &err) != TD_OK)
        t = NULL;
    }
    if (!t) {
      answer(false, "compile", NULL, &err);
    } else {
      td_render_input ri = {.trusted = td_json_get(in, "trusted"),
                            .input = td_json_get(in, "input"),
                            .now = cJSON_IsNumber(now) ? (time_t)now->valuedouble : 0,
                            .max_ops = 4000000,
                            .max_memory_bytes = 134217728};
      td_rendered out;
      td_error render_err = {0};
      td_status st = td_chat_template_render(t, &ri, &out, &render_err);
      answer(st == TD_OK, "render", &out, &render_err);
      td_rendered_deinit(&out);
    }
    cJSON_Delete(in);
  }
  td_chat_template_destroy(t);
  free(source);
  free(line);
  return 0;
}
