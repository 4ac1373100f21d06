/* Tools of a request: see tools.h. */
#include "answers/tools.h"

#include <string.h>

#include "config/limits.h"

enum { BRANCH_DEPTH = 4 };

static unsigned type_of_name(const char *name)
{
  static const struct {
    const char *name;
    unsigned type;
  } types[] = {{"string", TD_PARAM_STRING},   {"integer", TD_PARAM_NUMBER}, {"number", TD_PARAM_NUMBER},
               {"boolean", TD_PARAM_BOOLEAN}, {"null", TD_PARAM_NULL},      {"array", TD_PARAM_ARRAY},
               {"object", TD_PARAM_OBJECT}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (strcmp(name, types[i].name) == 0)
      return types[i].type;
  return 0;
}

static unsigned type_of_value(const cJSON *v)
{
  return cJSON_IsString(v)   ? TD_PARAM_STRING
         : cJSON_IsBool(v)   ? TD_PARAM_BOOLEAN
         : cJSON_IsNull(v)   ? TD_PARAM_NULL
         : cJSON_IsArray(v)  ? TD_PARAM_ARRAY
         : cJSON_IsObject(v) ? TD_PARAM_OBJECT
                             : TD_PARAM_NUMBER;
}

/* The member of an object, if the budget is enough to reach it. */
static const cJSON *look_up(const cJSON *object, const char *name, uint32_t *budget)
{
  for (const cJSON *m = cJSON_IsObject(object) ? object->child : NULL; m && *budget > 0;
       m = m->next, --*budget)
    if (strcmp(m->string, name) == 0)
      return m;
  return NULL;
}

/* The definition that {"$ref": "#/$defs/NAME"} refers to. */
static const cJSON *referred(const cJSON *schema, const cJSON *root, uint32_t *budget)
{
  static const char *const fronts[] = {"#/$defs/", "#/definitions/"}, *const members[] = {"$defs",
                                                                                          "definitions"};
  const cJSON *ref = look_up(schema, "$ref", budget);
  for (size_t i = 0; i < 2 && cJSON_IsString(ref); i++)
    if (strncmp(ref->valuestring, fronts[i], strlen(fronts[i])) == 0)
      return look_up(look_up(root, members[i], budget), ref->valuestring + strlen(fronts[i]), budget);
  return NULL;
}

static unsigned types_at(const cJSON *schema, const cJSON *root, unsigned depth, uint32_t *budget)
{
  static const char *const branches[] = {"anyOf", "oneOf"};
  unsigned found = 0;
  const cJSON *other = depth < BRANCH_DEPTH ? referred(schema, root, budget) : NULL, *one;
  if (other)
    return types_at(other, root, depth + 1, budget);
  const cJSON *type = look_up(schema, "type", budget), *value = look_up(schema, "const", budget);
  if (cJSON_IsString(type))
    return type_of_name(type->valuestring);
  for (one = cJSON_IsArray(type) ? type->child : NULL; one && *budget > 0; one = one->next, --*budget)
    found |= cJSON_IsString(one) ? type_of_name(one->valuestring) : 0;
  if (found || value)
    return found ? found : type_of_value(value);
  const cJSON *values = look_up(schema, "enum", budget);
  for (one = cJSON_IsArray(values) ? values->child : NULL; one && *budget > 0; one = one->next, --*budget)
    found |= type_of_value(one);
  for (size_t i = 0; i < 2 && depth < BRANCH_DEPTH; i++) {
    const cJSON *list = look_up(schema, branches[i], budget);
    for (one = cJSON_IsArray(list) ? list->child : NULL; one && *budget > 0; one = one->next, --*budget)
      found |= types_at(one, root, depth + 1, budget);
  }
  return found;
}

unsigned td_tools_types_of_schema(const cJSON *schema, const cJSON *root, uint32_t *budget)
{
  return cJSON_IsObject(schema) ? types_at(schema, root, 0, budget) : 0;
}

static char *copy(td_tools *t, const char *s) { return td_arena_strdup(&t->arena, s, strlen(s)); }

static bool make_tool(td_tools *t, const cJSON *function, td_tool *out, uint32_t *budget)
{
  const cJSON *properties = td_json_get(td_json_get(function, "parameters"), "properties"), *p;
  if (!cJSON_IsObject(properties))
    properties = NULL;
  out->name = copy(t, td_json_get(function, "name")->valuestring);
  out->params =
      td_arena_alloc_array(&t->arena, (size_t)cJSON_GetArraySize(properties) + 1, sizeof *out->params);
  if (!out->name || !out->params)
    return false;
  cJSON_ArrayForEach(p, properties)
  {
    td_param *param = &out->params[out->n_params++];
    *param = (td_param){copy(t, p->string),
                        td_tools_types_of_schema(p, td_json_get(function, "parameters"), budget)};
    if (!param->name)
      return false;
  }
  return true;
}

bool td_tools_make(const cJSON *tools, td_tools *t)
{
  const cJSON *tool;
  uint32_t budget = TD_TOOLS_LOOKUPS_MAX;
  memset(t, 0, sizeof *t);
  td_arena_init(&t->arena, td_limit_max(TD_LIMIT_TOOLS_BYTES));
  t->items = td_arena_alloc_array(&t->arena, (size_t)cJSON_GetArraySize(tools) + 1, sizeof *t->items);
  if (!t->items)
    return false;
  cJSON_ArrayForEach(
      tool, tools) if (!make_tool(t, td_json_get(tool, "function"), &t->items[t->n++], &budget)) return false;
  return true;
}

void td_tools_deinit(td_tools *t)
{
  td_arena_deinit(&t->arena);
  t->items = NULL;
  t->n = 0;
}

static bool is(const char *name, const char *text, size_t n)
{
  return strlen(name) == n && memcmp(name, text, n) == 0;
}

const td_tool *td_tools_find(const td_tools *t, const char *name, size_t n)
{
  for (uint32_t i = 0; i < t->n; i++)
    if (is(t->items[i].name, name, n))
      return &t->items[i];
  return NULL;
}

unsigned td_tools_types(const td_tool *tool, const char *param, size_t n)
{
  for (uint32_t i = 0; tool && i < tool->n_params; i++)
    if (is(tool->params[i].name, param, n))
      return tool->params[i].types;
  return 0;
}
