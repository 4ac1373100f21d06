/* The tools that a request offers, as far as reading and constraining calls needs them. It owns its memory:
 * the request's JSON may go before. Read-only once made: any thread. */
#ifndef TD_ANSWERS_TOOLS_H
#define TD_ANSWERS_TOOLS_H

#include "common/arena.h"
#include "common/json.h"

/* Types that a parameter may have by its schema; 0: it says none. */
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

/* Of an array of checked tools, {"type": "function", "function": {"name", "parameters"}} each. False: no
 * memory. Must be deinitialised in any case. */
bool td_tools_make(const cJSON *tools, td_tools *out);
void td_tools_deinit(td_tools *t);
const td_tool *td_tools_find(const td_tools *t, const char *name, size_t n); /* NULL: there is none */
/* Of a tool that may be NULL. */
unsigned td_tools_types(const td_tool *tool, const char *param, size_t n);
/* Types that a parameter's schema lets through, as far as it or what it names in root's definitions says.
 * Each look takes from *budget; where it is used up, nothing more is known. */
enum { TD_TOOLS_LOOKS = 1 << 20 };
unsigned td_tools_types_of_schema(const cJSON *schema, const cJSON *root, uint32_t *budget);

#endif
