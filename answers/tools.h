/* The tools that a request offers, as far as reading and constraining calls needs them. Owns its memory, so
 * the request's JSON may be freed. Read-only once made: any thread. */
#ifndef TD_ANSWERS_TOOLS_H
#define TD_ANSWERS_TOOLS_H

#include "common/arena.h"
#include "common/json.h"

/* Types that a parameter may have by its schema; 0: the schema does not say. */
enum {
  TD_PARAM_STRING = 1,
  TD_PARAM_NUMBER = 2,
  TD_PARAM_BOOLEAN = 4,
  TD_PARAM_NULL = 8,
  TD_PARAM_ARRAY = 16,
  TD_PARAM_OBJECT = 32,
};

typedef struct td_param {
  const char *name;
  unsigned types;
} td_param;

typedef struct td_tool {
  const char *name;
  td_param *params; /* [n_params] */
  uint32_t n_params;
} td_tool;

typedef struct td_tools {
  td_arena arena;
  td_tool *items; /* [n] */
  uint32_t n;
} td_tools;

/* Makes *out from a checked array of {"type": "function", "function": {"name", "parameters"}}. Returns false
 * if there is no memory. The caller must deinitialise *out in either case. */
bool td_tools_make(const cJSON *tools, td_tools *out);
void td_tools_deinit(td_tools *t);
const td_tool *td_tools_find(const td_tools *t, const char *name, size_t n); /* NULL: no such tool */
/* The types of the tool's parameter. tool may be NULL. */
unsigned td_tools_types(const td_tool *tool, const char *param, size_t n);
/* The types that a parameter's schema allows, as far as the schema, or a definition in root that it refers
 * to, says so. Each lookup takes 1 from *budget. Once the budget is spent, nothing more is found. */
enum { TD_TOOLS_LOOKUPS_MAX = 1 << 20 };
unsigned td_tools_types_of_schema(const cJSON *schema, const cJSON *root, uint32_t *budget);

#endif
