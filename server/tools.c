/* See tools.h. */
#include "server/tools.h"

#include <stdio.h>
#include <string.h>

#include "config/limits.h"
#include "server/fields.h"
#include "server/request.h"

enum { PATH_BYTES = 96 };

static bool has_function_name(const cJSON *entry)
{
  return cJSON_IsString(td_json_get(td_json_get(entry, "function"), "name"));
}

/* The recursion is bounded, because the parser bounds the depth. */
static size_t count_nodes(const cJSON *item)
{
  size_t n = 1;
  for (const cJSON *c = item->child; c; c = c->next)
    n += count_nodes(c);
  return n;
}

static bool no_memory(td_api_error *e)
{
  td_api_error_set(e, 503, "out_of_memory", NULL, "no memory for messages");
  return false;
}

/* Replaces text that is a JSON object by that object. Empty text becomes an empty object. */
static bool parse_arguments(cJSON *function, const char *path, size_t *nodes_left, td_api_error *e)
{
  const cJSON *text = td_json_get(function, "arguments");
  const td_json_limits limits = {td_limit_max(TD_LIMIT_JSON_DEPTH), *nodes_left, TD_ERR_REQUEST},
                       any = {limits.max_depth, SIZE_MAX, TD_ERR_REQUEST};
  cJSON *object = NULL;
  if (!cJSON_IsString(text))
    return true;
  const char *json = *text->valuestring ? text->valuestring : "{}";
  td_status st = td_json_parse_ids(json, strlen(json), &limits, NULL, &object, NULL);
  if (st == TD_ERR_NOMEM)
    return no_memory(e);
  if (st != TD_OK && td_json_check(json, strlen(json), &any, NULL) == TD_OK &&
      td_json_check(json, strlen(json), &limits, NULL) != TD_OK)
    return td_fields_invalid(e, path, "arguments", "holds too many values, with those before it");
  if (st != TD_OK || !cJSON_IsObject(object)) {
    cJSON_Delete(object);
    return true;
  }
  size_t n = count_nodes(object);
  *nodes_left -= n < *nodes_left ? n : *nodes_left;
  bool replaced = cJSON_ReplaceItemInObjectCaseSensitive(function, "arguments", object);
  if (replaced && object->string) /* cJSON inserts an item even if it had no memory for its name */
    return true;
  if (!replaced)
    cJSON_Delete(object);
  return no_memory(e);
}

bool td_tool_calls_normalise(cJSON *message, const char *path, size_t *nodes_left, td_api_error *e)
{
  cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls"), *call;
  char at[PATH_BYTES];
  size_t i = 0;
  if (calls && (cJSON_IsNull(calls) || (cJSON_IsArray(calls) && !calls->child))) {
    cJSON_Delete(cJSON_DetachItemViaPointer(message, calls));
    return true;
  }
  if (calls && !cJSON_IsArray(calls))
    return td_fields_invalid(e, path, "tool_calls", "must be an array of calls");
  cJSON_ArrayForEach(call, calls)
  {
    snprintf(at, sizeof at, "%stool_calls[%zu].", path, i++);
    if (!has_function_name(call))
      return td_fields_invalid(e, at, "function.name", "is required and must be a string");
    snprintf(at, sizeof at, "%stool_calls[%zu].function.", path, i - 1);
    if (!parse_arguments(cJSON_GetObjectItemCaseSensitive(call, "function"), at, nodes_left, e))
      return false;
  }
  return true;
}

bool td_tools_check(const cJSON *tools, td_api_error *e)
{
  const cJSON *tool;
  char at[PATH_BYTES];
  size_t i = 0;
  if (!cJSON_IsArray(tools))
    return td_fields_invalid(e, "", "tools", "must be an array of tools");
  cJSON_ArrayForEach(tool, tools)
  {
    snprintf(at, sizeof at, "tools[%zu].", i++);
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(tool, "type");
    if (type && !cJSON_IsNull(type) && (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0))
      return td_fields_unsupported(e, at, "type", "is served as 'function'");
    if (!has_function_name(tool))
      return td_fields_invalid(e, at, "function.name", "is required and must be a string");
  }
  return true;
}
