/* Chat messages: checks them and brings them to the one form that models' templates know. See request.h. */
#include <stdio.h>
#include <string.h>

#include "config/limits.h"
#include "server/request.h"
#include "server/tools.h"

enum { PATH_BYTES = 64 };

static bool bad(td_api_error *e, const char *path, const char *field, const char *text)
{
  return td_fields_invalid(e, path, field, text);
}

static bool is_role(const char *s)
{
  static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
  for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
    if (strcmp(s, roles[i]) == 0)
      return true;
  return false;
}

static bool unserved_part(td_api_error *e, const char *path, const char *type)
{
  td_api_error_set(e, 400, "unsupported_parameter", path,
                   "'%s' is a part of type '%.60s', which is not served; 'text' is", path, type);
  return false;
}

/* Reads a part {"type":"text","text":...}. Returns its text, or NULL on an error. */
static const char *read_part(const cJSON *part, const char *path, td_unknown *unknown, td_api_error *e)
{
  char inside[PATH_BYTES + 1];
  const td_field *f;
  const cJSON *type = td_json_get(part, "type"), *text = td_json_get(part, "text");
  snprintf(inside, sizeof inside, "%s.", path);
  if (cJSON_IsString(type) && strcmp(type->valuestring, "text") != 0)
    return unserved_part(e, path, type->valuestring), NULL;
  for (const cJSON *m = cJSON_IsObject(part) ? part->child : NULL; m; m = m->next)
    if (!td_fields_check(m, TD_IN_PART, inside, unknown, &f, e))
      return NULL;
  if (!cJSON_IsString(type))
    return bad(e, "", path, "must be a text part: an object with a 'type' and a 'text'"), NULL;
  if (!cJSON_IsString(text))
    return bad(e, inside, "text", "is required and must be a string"), NULL;
  return text->valuestring;
}

/* Joins the texts of an array of parts by newlines, as vLLM does. */
static bool join_parts(const cJSON *parts, const char *path, td_unknown *unknown, td_buf *text,
                       td_api_error *e)
{
  size_t k = 0;
  for (const cJSON *p = parts->child; p; p = p->next, k++) {
    char part[PATH_BYTES];
    snprintf(part, sizeof part, "%scontent[%zu]", path, k);
    const char *t = read_part(p, part, unknown, e);
    if (!t)
      return false;
    if (k > 0)
      td_buf_append_char(text, '\n');
    td_buf_append(text, t, strlen(t));
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
  return ok && s->string; /* cJSON inserts the new item even if it had no memory for its name */
}

static bool normalise_content(cJSON *message, bool assistant, const char *path, td_unknown *unknown,
                              td_api_error *e)
{
  const cJSON *content = td_json_get(message, "content");
  if (cJSON_IsString(content))
    return true;
  if (!content) {
    if (!assistant)
      return bad(e, path, "content", "is required");
    return set_string(message, "content", "") || no_memory(e);
  }
  if (!cJSON_IsArray(content))
    return bad(e, path, "content", "must be a string or an array of text parts");
  td_buf text;
  td_buf_init(&text, 0);
  td_buf_append_str(&text, "");
  bool ok = join_parts(content, path, unknown, &text, e);
  if (ok)
    ok = (!text.failed && set_string(message, "content", text.data)) || no_memory(e);
  td_buf_deinit(&text);
  return ok;
}

/* Earlier answers carry reasoning under one of several names; it is text, or an object of the server that
 * wrote it. Most templates read the text under the first name, gpt-oss's under the second. Like
 * transformers, we set both. */
static bool normalise_reasoning(cJSON *message)
{
  static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
  const char *text = NULL;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const cJSON *item = td_json_get(message, names[i]);
    if (item && !cJSON_IsString(item))
      cJSON_DeleteItemFromObjectCaseSensitive(message, names[i]);
    else if (item && !text)
      text = item->valuestring;
  }
  for (size_t i = 0; text && i < 2; i++)
    if (!td_json_get(message, names[i]) && !set_string(message, names[i], text))
      return false;
  return true;
}

/* Removes the members that no template reads. Clients send back whole messages as they got them, with null
 * and empty members, and with notes of their own. */
static bool check_members(cJSON *message, const char *path, td_unknown *unknown, td_api_error *e)
{
  const td_field *f;
  for (cJSON *m = message->child, *next; m; m = next) {
    next = m->next;
    if (!td_fields_check(m, TD_IN_MESSAGE, path, unknown, &f, e))
      return false;
    if (f && f->kind == TD_FIELD_STRING && !cJSON_IsString(m))
      return bad(e, path, f->name, "must be a string");
    if (!f)
      cJSON_Delete(cJSON_DetachItemViaPointer(message, m));
  }
  return normalise_reasoning(message) || no_memory(e);
}

static bool normalise_message(cJSON *message, size_t i, const td_message_rules *rules, size_t *nodes_left,
                              td_unknown *unknown, td_api_error *e)
{
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "messages[%zu]", i);
  if (!cJSON_IsObject(message))
    return bad(e, "", path, "must be an object");
  strcat(path, ".");
  if (!check_members(message, path, unknown, e))
    return false;
  const cJSON *role = td_json_get(message, "role");
  if (!role)
    return bad(e, path, "role", "is required");
  if (!is_role(role->valuestring))
    return bad(e, path, "role", "must be system, developer, user, assistant or tool");
  bool assistant = strcmp(role->valuestring, "assistant") == 0;
  bool renames = strcmp(role->valuestring, "developer") == 0 && !rules->keeps_developer;
  if (renames && !set_string(message, "role", "system"))
    return no_memory(e);
  return td_tool_calls_normalise(message, path, nodes_left, e) &&
         normalise_content(message, assistant, path, unknown, e);
}

bool td_messages_normalise(cJSON *messages, const td_message_rules *rules, td_unknown *unknown,
                           td_api_error *error)
{
  if (!cJSON_IsArray(messages) || !messages->child) {
    td_api_error_set(error, 400, "invalid_value", "messages",
                     "'messages' must be an array of at least one message");
    return false;
  }
  size_t i = 0, nodes_left = rules->json_nodes;
  for (cJSON *m = messages->child; m; m = m->next, i++) {
    if (i == td_limit_max(TD_LIMIT_MESSAGES)) {
      td_api_error_set(error, 400, "invalid_value", "messages", "'messages' may hold %zu messages at most",
                       i);
      return false;
    }
    if (!normalise_message(m, i, rules, &nodes_left, unknown, error))
      return false;
  }
  return true;
}
