/* Which tools an answer may call: see tool_choice.h. */
#include "server/tool_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/limits.h"

enum { PATH_BYTES = 64 };

static bool bad(td_api_error *e, const char *path, const char *name, const char *text)
{
  return td_fields_invalid(e, path, name, text);
}

static bool is_word(const cJSON *v, const char *word)
{
  return cJSON_IsString(v) && strcmp(v->valuestring, word) == 0;
}

static const cJSON *name_of(const cJSON *tool) { return td_json_get(td_json_get(tool, "function"), "name"); }

/* ---- tools ---- */

/* No format of calls escapes names, so a name may only have characters that no format uses as marks. */
static bool is_name(const char *s)
{
  size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
  return n > 0 && n <= td_limit_max(TD_LIMIT_TOOL_NAME_BYTES) && s[n] == '\0';
}

static bool check_function(const cJSON *f, const char *path, td_api_error *e)
{
  const cJSON *name = td_json_get(f, "name"), *parameters = td_json_get(f, "parameters"),
              *strict = td_json_get(f, "strict"), *properties = td_json_get(parameters, "properties");
  if (!is_name(name->valuestring))
    return bad(e, path, "name", "must be 1 to 128 letters, digits, '_', '-' and '.'");
  if (parameters && !cJSON_IsNull(parameters) && !cJSON_IsObject(parameters))
    return bad(e, path, "parameters", "must be a JSON schema: an object");
  if (strict && !cJSON_IsNull(strict) && !cJSON_IsBool(strict))
    return bad(e, path, "strict", "must be true or false");
  if (cJSON_IsObject(properties) &&
      (uint64_t)cJSON_GetArraySize(properties) > td_limit_max(TD_LIMIT_TOOL_PROPERTIES))
    return bad(e, path, "parameters", "has more properties than are served");
  return true;
}

static bool check_tool(const cJSON *tool, size_t i, td_api_error *e)
{
  char path[PATH_BYTES];
  const cJSON *type = td_json_get(tool, "type");
  snprintf(path, sizeof path, "tools[%zu].", i);
  if (type && !cJSON_IsString(type))
    return bad(e, path, "type", "must be a string");
  if (type && strcmp(type->valuestring, "function") != 0)
    return td_fields_unsupported(e, path, "type", "is served as 'function'");
  snprintf(path, sizeof path, "tools[%zu].function.", i);
  return check_function(td_json_get(tool, "function"), path, e);
}

static int by_name(const void *a, const void *b)
{
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool no_memory(td_api_error *e)
{
  td_api_error_set(e, 503, "out_of_memory", NULL, "no memory for tools");
  return false;
}

/* Checks that no two tools have the same name. */
static bool check_apart(const cJSON *tools, size_t n, td_api_error *e)
{
  const char **names = malloc((n + 1) * sizeof *names);
  const cJSON *tool;
  size_t i = 0;
  bool apart = true;
  if (!names)
    return no_memory(e);
  cJSON_ArrayForEach(tool, tools) names[i++] = name_of(tool)->valuestring;
  qsort(names, n, sizeof *names, by_name);
  for (i = 1; i < n; i++)
    apart &= strcmp(names[i - 1], names[i]) != 0;
  free(names);
  return apart || bad(e, "", "tools", "must have names that differ");
}

static bool check_tools(const cJSON *tools, size_t *n, td_api_error *e)
{
  const cJSON *tool;
  *n = 0;
  if (!td_tools_check(tools, e))
    return false;
  cJSON_ArrayForEach(tool, tools)
  {
    if (*n == td_limit_max(TD_LIMIT_TOOLS)) {
      td_api_error_set(e, 400, "invalid_value", "tools", "'tools' may hold %zu tools at most", *n);
      return false;
    }
    if (!check_tool(tool, (*n)++, e))
      return false;
  }
  return check_apart(tools, *n, e);
}

/* ---- choice ---- */

static bool allow(td_api_request *r, const cJSON *name, td_api_error *e)
{
  const cJSON *tool;
  size_t i = 0;
  if (!cJSON_IsString(name))
    return bad(e, "tool_choice.", "function.name", "is required and must be a string");
  cJSON_ArrayForEach(tool, r->tools)
  {
    if (strcmp(name_of(tool)->valuestring, name->valuestring) == 0) {
      r->choice.allowed[i] = true;
      return true;
    }
    i++;
  }
  td_api_error_set(e, 400, "invalid_value", "tool_choice",
                   "'tool_choice' names '%.128s', which is not in 'tools'", name->valuestring);
  return false;
}

static bool read_mode(td_api_request *r, const cJSON *mode, td_api_error *e)
{
  static const char *const words[] = {"none", "auto", "required"};
  for (size_t i = 0; i < 3; i++)
    if (is_word(mode, words[i])) {
      r->choice.mode = (td_tool_mode)i;
      return true;
    }
  return bad(e, "", "tool_choice", "must be none, auto, required, or an object that names a function");
}

/* Reads {"type": "allowed_tools", "allowed_tools": {"mode": M, "tools": [..]}}. */
static bool read_allowed(td_api_request *r, td_api_error *e)
{
  const cJSON *a = td_json_get(r->tool_choice, "allowed_tools"), *list = td_json_get(a, "tools"), *one;
  if (!cJSON_IsArray(list) || !list->child)
    return bad(e, "tool_choice.", "allowed_tools.tools",
               "is required and must be an array that is not empty");
  cJSON_ArrayForEach(one, list) if (!allow(r, name_of(one), e)) return false;
  return read_mode(r, td_json_get(a, "mode"), e);
}

static bool read_object(td_api_request *r, size_t n, td_api_error *e)
{
  const cJSON *type = td_json_get(r->tool_choice, "type");
  r->choice.allowed = calloc(n + 1, sizeof *r->choice.allowed);
  if (!r->choice.allowed)
    return no_memory(e);
  if (is_word(type, "allowed_tools"))
    return read_allowed(r, e);
  if (type && !is_word(type, "function"))
    return td_fields_unsupported(e, "tool_choice.", "type", "is served as 'function' and 'allowed_tools'");
  r->choice.mode = TD_TOOLS_REQUIRED;
  r->parallel_tool_calls = false; /* exactly one call of it, as OpenAI does */
  return allow(r, name_of(r->tool_choice), e);
}

static bool read_choice(td_api_request *r, size_t n, td_api_error *e)
{
  const cJSON *c = r->tool_choice;
  r->choice.mode = n > 0 ? TD_TOOLS_AUTO : TD_TOOLS_NONE;
  if (!c)
    return true;
  if (n == 0 && !is_word(c, "none") && !is_word(c, "auto"))
    return bad(e, "", "tool_choice", "is only allowed with 'tools'");
  if (n == 0)
    return true;
  return cJSON_IsObject(c) ? read_object(r, n, e) : read_mode(r, c, e);
}

static bool any_strict(const cJSON *tools)
{
  const cJSON *tool;
  cJSON_ArrayForEach(
      tool, tools) if (cJSON_IsTrue(td_json_get(td_json_get(tool, "function"), "strict"))) return true;
  return false;
}

bool td_tool_choice_is_constrained(const td_api_request *r)
{
  return r->choice.mode == TD_TOOLS_REQUIRED ||
         (r->choice.mode == TD_TOOLS_AUTO &&
          (r->choice.allowed || !r->parallel_tool_calls || any_strict(r->tools)));
}

const cJSON *td_tool_choice_shown(const td_api_request *r)
{
  return is_word(r->tool_choice, "none") ? NULL : r->tools;
}

bool td_tool_choice_read(td_api_request *r, unsigned route, td_api_error *e)
{
  size_t n = 0;
  if (route != TD_ROUTE_CHAT)
    return true;
  if ((r->tools && !check_tools(r->tools, &n, e)) || !read_choice(r, n, e))
    return false;
  if (!td_tool_choice_is_constrained(r)) /* if they are, the answer ends where the call does */
    return true;
  if (r->min_tokens > 0)
    return bad(e, "", "min_tokens", "cannot go together with a 'tool_choice' or tools that are held to");
  return !r->ignore_eos ||
         bad(e, "", "ignore_eos", "cannot go together with a 'tool_choice' or tools that are held to");
}

void td_tool_choice_deinit(td_tool_choice *c)
{
  free(c->allowed);
  c->allowed = NULL;
}
