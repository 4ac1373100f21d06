/* Translation of bodies to a chat's: see translate.h. */
#include <stdio.h>
#include <string.h>

#include "server/translate.h"

void td_translation_invalid(td_translation *t, const char *path, const char *name, const char *text)
{
  if (!t->failed)
    (void)td_fields_invalid(&t->call->error, path, name, text);
  t->failed = true;
}

void td_translation_unsupported(td_translation *t, const char *path, const char *name, const char *text)
{
  if (!t->failed)
    (void)td_fields_unsupported(&t->call->error, path, name, text);
  t->failed = true;
}

void td_translation_no_memory(td_translation *t)
{
  if (!t->failed)
    td_api_error_set(&t->call->error, 503, "out_of_memory", NULL, "no memory for the request");
  t->failed = true;
}

void td_translation_put(td_translation *t, cJSON *object, const char *name, cJSON *item)
{
  bool ok = object && item &&
            (name ? cJSON_AddItemToObject(object, name, item) : cJSON_AddItemToArray(object, item));
  if (ok)
    return;
  cJSON_Delete(item);
  td_translation_no_memory(t);
}

void td_translation_put_text(td_translation *t, cJSON *object, const char *name, const char *text)
{
  td_translation_put(t, object, name, cJSON_CreateString(text));
}

void td_translation_ignore(td_translation *t, const char *path, const char *name)
{
  if (t->call->strict_fields)
    td_translation_unsupported(t, path, name, "is not served");
  else
    td_unknown_add(&t->call->request.unknown, path, name);
}

void td_translation_copy(td_translation *t, const cJSON *body, const char *from, const char *to)
{
  const cJSON *m = td_json_get(body, from);
  if (m && !cJSON_IsNull(m))
    td_translation_put(t, t->chat, to, cJSON_Duplicate(m, true));
}

void td_translation_copy_same(td_translation *t, const cJSON *body)
{
  static const char *const same[] = {
      "model",
      "stream",
      "temperature",
      "top_p",
      "top_k",
      "min_p",
      "presence_penalty",
      "frequency_penalty",
      "repetition_penalty",
      "logit_bias",
      "seed",
      "min_tokens",
      "stop_token_ids",
      "bad_words",
      "ignore_eos",
      "include_stop_str_in_output",
      "skip_special_tokens",
      "structured_outputs",
      "guided_json",
      "guided_regex",
      "guided_choice",
      "guided_grammar",
      "priority",
      "cache_salt",
      "timeout_ms",
      "ttft_timeout_ms",
      "chat_template_kwargs",
  };
  for (size_t i = 0; i < sizeof same / sizeof *same && !t->failed; i++)
    td_translation_copy(t, body, same[i], same[i]);
}

void td_translation_name(unsigned route, td_api_error *e)
{
  static const struct {
    unsigned route;
    const char *chat, *own;
  } names[] = {{TD_ROUTE_RESPONSES, "max_tokens", "max_output_tokens"},
               {TD_ROUTE_RESPONSES, "reasoning_effort", "reasoning.effort"},
               {TD_ROUTE_MESSAGES, "reasoning_effort", "output_config.effort"},
               {TD_ROUTE_RESPONSES, "response_format.json_schema", "text.format"},
               {TD_ROUTE_RESPONSES, "response_format", "text.format"},
               {TD_ROUTE_MESSAGES, "stop", "stop_sequences"},
               {TD_ROUTE_MESSAGES, "response_format.json_schema", "output_config.format"},
               {TD_ROUTE_MESSAGES, "response_format", "output_config.format"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    size_t n = strlen(names[i].chat);
    char quoted[64];
    td_api_error old = *e;
    if (names[i].route != route || strncmp(e->param, names[i].chat, n) != 0 ||
        (e->param[n] != '\0' && e->param[n] != '.'))
      continue;
    snprintf(e->param, sizeof e->param, "%s%.*s", names[i].own, (int)(sizeof old.param / 2), old.param + n);
    snprintf(quoted, sizeof quoted, "'%s", names[i].chat);
    const char *at = strstr(old.message, quoted);
    if (at)
      snprintf(e->message, sizeof e->message, "%.*s'%s%.*s", (int)(at - old.message), old.message,
               names[i].own, (int)(sizeof old.message / 2), at + n + 1);
    return;
  }
}

void td_translation_begin(td_translation *t, td_call *call, const cJSON *body)
{
  const td_field *f;
  *t = (td_translation){.call = call, .chat = cJSON_CreateObject()};
  call->request.unknown.strict = call->strict_fields;
  if (!cJSON_IsObject(body)) {
    td_api_error_set(&call->error, 400, "invalid_value", NULL, "the body must be a JSON object");
    t->failed = true;
  }
  for (const cJSON *m = t->failed ? NULL : body->child; m && !t->failed; m = m->next)
    t->failed = !td_fields_check(m, call->api->route, "", &call->request.unknown, &f, &call->error);
  if (!t->failed) {
    t->messages = cJSON_CreateArray();
    td_translation_put(t, t->chat, "messages", t->messages);
  }
}

cJSON *td_translation_end(td_translation *t)
{
  if (!t->failed)
    return t->chat;
  cJSON_Delete(t->chat);
  return NULL;
}

cJSON *td_translation_message(td_translation *t, const char *role)
{
  cJSON *m = t->failed ? NULL : cJSON_CreateObject();
  if (!t->failed)
    td_translation_put(t, t->messages, NULL, m);
  if (!t->failed)
    td_translation_put_text(t, m, "role", role);
  return t->failed ? NULL : m;
}

void td_translation_add_text(td_translation *t, cJSON *message, const char *text)
{
  cJSON *parts = cJSON_GetObjectItemCaseSensitive(message, "content"), *part = cJSON_CreateObject();
  if (!parts && !t->failed) {
    parts = cJSON_CreateArray();
    td_translation_put(t, message, "content", parts);
  }
  if (t->failed) {
    cJSON_Delete(part);
    return;
  }
  td_translation_put(t, parts, NULL, part);
  if (!t->failed)
    td_translation_put_text(t, part, "type", "text");
  if (!t->failed)
    td_translation_put_text(t, part, "text", text);
}

void td_translation_add_call(td_translation *t, cJSON *message, const char *id, const char *name,
                             const char *arguments)
{
  cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
  if (!calls && !t->failed) {
    calls = cJSON_CreateArray();
    td_translation_put(t, message, "tool_calls", calls);
  }
  cJSON *call = t->failed ? NULL : cJSON_CreateObject();
  if (!t->failed)
    td_translation_put(t, calls, NULL, call);
  cJSON *function = t->failed ? NULL : cJSON_CreateObject();
  if (!t->failed)
    td_translation_put(t, call, "function", function);
  if (!t->failed)
    td_translation_put_text(t, call, "id", id);
  if (!t->failed)
    td_translation_put_text(t, call, "type", "function");
  if (!t->failed)
    td_translation_put_text(t, function, "name", name);
  if (!t->failed)
    td_translation_put_text(t, function, "arguments", arguments);
}

static void put_copy(td_translation *t, cJSON *object, const char *name, const cJSON *item)
{
  if (!t->failed && item && !cJSON_IsNull(item))
    td_translation_put(t, object, name, cJSON_Duplicate(item, true));
}

void td_translation_add_tool(td_translation *t, const cJSON *name, const cJSON *description,
                             const cJSON *parameters, const cJSON *strict)
{
  cJSON *tools = cJSON_GetObjectItemCaseSensitive(t->chat, "tools");
  if (!tools && !t->failed) {
    tools = cJSON_CreateArray();
    td_translation_put(t, t->chat, "tools", tools);
  }
  cJSON *tool = t->failed ? NULL : cJSON_CreateObject();
  if (!t->failed)
    td_translation_put(t, tools, NULL, tool);
  if (!t->failed)
    td_translation_put_text(t, tool, "type", "function");
  cJSON *function = t->failed ? NULL : cJSON_CreateObject();
  if (!t->failed)
    td_translation_put(t, tool, "function", function);
  put_copy(t, function, "name", name);
  put_copy(t, function, "description", description);
  put_copy(t, function, "parameters", parameters);
  put_copy(t, function, "strict", strict);
}
