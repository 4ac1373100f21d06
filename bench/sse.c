/* See sse.h. */
#include "bench/sse.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

void td_sse_init(td_sse *s) { td_buf_init(&s->line, TD_SSE_LINE_MAX); }
void td_sse_deinit(td_sse *s) { td_buf_deinit(&s->line); }

static void take_line(const char *line, size_t n, void (*on_data)(void *, const char *, size_t), void *arg)
{
  if (n > 0 && line[n - 1] == '\r')
    n--;
  if (n < 5 || memcmp(line, "data:", 5) != 0)
    return;
  size_t skip = n > 5 && line[5] == ' ' ? 6 : 5;
  on_data(arg, line + skip, n - skip);
}

bool td_sse_feed(td_sse *s, const char *bytes, size_t n, void (*on_data)(void *, const char *, size_t),
                 void *arg)
{
  while (n > 0) {
    const char *end = memchr(bytes, '\n', n);
    size_t part = end ? (size_t)(end - bytes) : n;
    if (!end || s->line.len_bytes > 0) {
      td_buf_append(&s->line, bytes, part);
      if (s->line.failed)
        return false;
    }
    if (!end)
      return true;
    if (s->line.len_bytes > 0) {
      take_line(s->line.data, s->line.len_bytes, on_data, arg);
      td_buf_clear(&s->line);
    } else {
      take_line(bytes, part, on_data, arg);
    }
    bytes += part + 1;
    n -= part + 1;
  }
  return true;
}

/* ---- events ---- */

static const cJSON *get(const cJSON *o, const char *key) { return cJSON_GetObjectItemCaseSensitive(o, key); }

static uint32_t number(const cJSON *o, const char *key)
{
  const cJSON *v = get(o, key);
  return cJSON_IsNumber(v) && v->valuedouble > 0 && v->valuedouble < 4e9 ? (uint32_t)v->valuedouble : 0;
}

static void read_usage(const cJSON *usage, td_event *out)
{
  if (!cJSON_IsObject(usage))
    return;
  out->has_usage = true;
  out->usage_in = number(usage, "prompt_tokens");
  out->usage_out = number(usage, "completion_tokens");
  out->usage_cached = number(get(usage, "prompt_tokens_details"), "cached_tokens");
}

static void read_choice(const cJSON *choice, td_event *out)
{
  const cJSON *text = get(choice, "text"), *ids = get(choice, "token_ids"),
              *why = get(choice, "finish_reason");
  int n_ids = cJSON_IsArray(ids) ? cJSON_GetArraySize(ids) : 0;
  bool has_text = cJSON_IsString(text) && text->valuestring[0];
  out->kind = TD_EVENT_TOKENS;
  out->n_tokens = n_ids > 0 ? (uint32_t)n_ids : 1;
  out->counted = n_ids > 0;
  if (!has_text && n_ids == 0 && cJSON_IsString(why))
    out->kind = TD_EVENT_MAYBE;
}

static void read_error(const cJSON *error, td_event *out)
{
  const cJSON *message = get(error, "message");
  out->kind = TD_EVENT_ERROR;
  snprintf(out->error, sizeof out->error, "%s",
           cJSON_IsString(message) ? message->valuestring
           : cJSON_IsString(error) ? error->valuestring
                                   : "no message");
}

/* Parses an event without its prompt's token ids. Servers that are asked for token ids send them with the
 * first token, and parsing them would delay this program's other streams. (The name cannot occur inside a
 * string, because its quotes would be escaped.) */
static cJSON *parse_without_prompt(const char *json, size_t n)
{
  static const char name[] = "\"prompt_token_ids\":[";
  const char *at = memmem(json, n, name, sizeof name - 1), *end = json + n;
  const char *behind = at ? memchr(at, ']', (size_t)(end - at)) : NULL;
  td_buf rest;
  if (!behind)
    return cJSON_ParseWithLength(json, n);
  td_buf_init(&rest, 0);
  td_buf_append(&rest, json, (size_t)(at + sizeof name - 1 - json));
  td_buf_append(&rest, behind, (size_t)(end - behind));
  cJSON *o = rest.failed ? NULL : cJSON_ParseWithLength(rest.data, rest.len_bytes);
  td_buf_deinit(&rest);
  return o;
}

void td_event_read(const char *json, size_t n, td_event *out)
{
  *out = (td_event){.kind = TD_EVENT_NOTHING};
  if (n == 6 && memcmp(json, "[DONE]", 6) == 0) {
    out->kind = TD_EVENT_DONE;
    return;
  }
  cJSON *o = parse_without_prompt(json, n);
  if (!cJSON_IsObject(o)) {
    out->kind = TD_EVENT_BAD;
  } else {
    const cJSON *error = get(o, "error"), *choices = get(o, "choices");
    read_usage(get(o, "usage"), out);
    if (error && !cJSON_IsNull(error))
      read_error(error, out);
    else if (cJSON_GetArraySize(choices) > 0)
      read_choice(cJSON_GetArrayItem(choices, 0), out);
  }
  cJSON_Delete(o);
}
