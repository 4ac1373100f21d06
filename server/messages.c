/* Chat messages: checked, and brought to the one form that models' templates know. See request.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/limits.h"
#include "server/request.h"

static bool bad(td_api_error *e, size_t i, const char *code, const char *field, const char *text)
{
  char param[64];
  snprintf(param, sizeof param, "messages[%zu]%s%.40s", i, *field ? "." : "", field);
  td_api_error_set(e, 400, code, param, "'%s' %s", param, text);
  return false;
}

static bool is_role(const char *s)
{
  static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
  for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
    if (strcmp(s, roles[i]) == 0)
      return true;
  return false;
}

/* Text of an array of {"type":"text","text":...}, joined by newlines as vLLM does. */
static bool join_parts(const cJSON *parts, size_t i, td_buf *text, td_api_error *e)
{
  for (const cJSON *p = parts->child; p; p = p->next) {
    const cJSON *type = td_json_get(p, "type"), *t = td_json_get(p, "text");
    if (!cJSON_IsString(type))
      return bad(e, i, "invalid_value", "content", "must be a string or an array of text parts");
    if (strcmp(type->valuestring, "text") != 0)
      return bad(e, i, "unsupported_parameter", "content", "may only hold parts of type 'text'");
    if (!cJSON_IsString(t))
      return bad(e, i, "invalid_value", "content", "has a text part without a 'text' string");
    for (const cJSON *m = p->child; m; m = m->next)
      if (m != type && m != t && !cJSON_IsNull(m))
        return bad(e, i, "unsupported_parameter", "content", "has a part with an unknown field");
    if (p != parts->child)
      td_buf_append_char(text, '\n');
    td_buf_append(text, t->valuestring, strlen(t->valuestring));
  }
  return true;
}

static bool no_memory(td_api_error *e)
{
  td_api_error_set(e, 503, "out_of_memory", NULL, "no memory for messages");
  return false;
}

static bool set_string(cJSON *message, const char *key, const char *value)
{
  cJSON *s = cJSON_CreateString(value);
  if (!s)
    return false;
  bool ok = cJSON_GetObjectItemCaseSensitive(message, key)
                ? cJSON_ReplaceItemInObjectCaseSensitive(message, key, s)
                : cJSON_AddItemToObject(message, key, s);
  if (!ok)
    cJSON_Delete(s);
  return ok;
}

static bool normalise_content(cJSON *message, bool assistant, size_t i, td_api_error *e)
{
  const cJSON *content = td_json_get(message, "content");
  if (cJSON_IsString(content))
    return true;
  if (!content || cJSON_IsNull(content)) {
    if (!assistant)
      return bad(e, i, "invalid_value", "content", "is required");
    return set_string(message, "content", "") || no_memory(e);
  }
  if (!cJSON_IsArray(content))
    return bad(e, i, "invalid_value", "content", "must be a string or an array of text parts");
  td_buf text;
  td_buf_init(&text, 0);
  td_buf_append_str(&text, "");
  bool ok = join_parts(content, i, &text, e);
  if (ok)
    ok = (!text.failed && set_string(message, "content", text.data)) || no_memory(e);
  td_buf_deinit(&text);
  return ok;
}

/* Members beside role and content: strings that templates may read, or nothing at all. Clients send back whole
 * messages they were given, with null and empty members; those go. */
static bool check_members(cJSON *message, size_t i, td_api_error *e)
{
  static const char *const strings[] = {"role", "name", "tool_call_id"};
  static const char *const empties[] = {"tool_calls", "function_call",     "refusal",  "audio",
                                        "annotations", "reasoning_content", "reasoning"};
  for (cJSON *m = message->child, *next; m; m = next) {
    next = m->next;
    bool known = strcmp(m->string, "content") == 0, string = false, empty = false;
    for (size_t k = 0; k < sizeof strings / sizeof strings[0]; k++)
      string |= strcmp(m->string, strings[k]) == 0;
    for (size_t k = 0; k < sizeof empties / sizeof empties[0]; k++)
      empty |= strcmp(m->string, empties[k]) == 0;
    if (!known && !string && !empty)
      return bad(e, i, "unsupported_parameter", m->string, "is not a field of a message");
    if (known)
      continue;
    bool nothing = cJSON_IsNull(m) || (cJSON_IsArray(m) && !m->child);
    if (string && !cJSON_IsNull(m) && !cJSON_IsString(m))
      return bad(e, i, "invalid_value", m->string, "must be a string");
    if (empty && !nothing)
      return bad(e, i, "unsupported_parameter", m->string, "is not supported");
    if (nothing)
      cJSON_Delete(cJSON_DetachItemViaPointer(message, m));
  }
  return true;
}

static bool normalise_message(cJSON *message, size_t i, td_api_error *e)
{
  if (!cJSON_IsObject(message))
    return bad(e, i, "invalid_value", "", "must be an object");
  if (!check_members(message, i, e))
    return false;
  const cJSON *role = td_json_get(message, "role");
  if (!role)
    return bad(e, i, "invalid_value", "role", "is required");
  if (!is_role(role->valuestring))
    return bad(e, i, "invalid_value", "role", "must be system, developer, user, assistant or tool");
  bool assistant = strcmp(role->valuestring, "assistant") == 0;
  if (strcmp(role->valuestring, "developer") == 0 && !set_string(message, "role", "system"))
    return no_memory(e);
  return normalise_content(message, assistant, i, e);
}

bool td_messages_normalise(cJSON *messages, td_api_error *error)
{
  if (!cJSON_IsArray(messages) || !messages->child) {
    td_api_error_set(error, 400, "invalid_value", "messages", "'messages' must be an array of at least one message");
    return false;
  }
  size_t i = 0;
  for (cJSON *m = messages->child; m; m = m->next, i++) {
    if (i == td_limit_max(TD_LIMIT_MESSAGES)) {
      td_api_error_set(error, 400, "invalid_value", "messages", "'messages' may hold %zu messages at most", i);
      return false;
    }
    if (!normalise_message(m, i, error))
      return false;
  }
  return true;
}
