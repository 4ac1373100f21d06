/* Calling rows of the tables: binding of arguments to names as Python does it, and readers of arguments. */
#include "models/template/builtin.h"

#include <string.h>

const builtin *td_builtin_find(const builtin *rows, const char *p, size_t n)
{
  for (; rows->name; rows++)
    if (text_is((text){p, n}, rows->name))
      return rows;
  return NULL;
}

/* Index of the name in "a b c", or -1. */
static int param_index(const char *params, text name)
{
  for (int i = 0; *params; i++) {
    size_t n = strcspn(params, " ");
    if (n == name.n && memcmp(params, name.p, n) == 0)
      return i;
    params += n + (params[n] == ' ');
  }
  return -1;
}

static size_t param_count(const char *params)
{
  size_t n = *params != '\0';
  for (; *params; params++)
    n += *params == ' ';
  return n;
}

static void bind_keywords(rendering *r, const builtin *fn, const char *params, const call_args *args,
                          bound *b)
{
  for (size_t i = 0; i < args->n_kw; i++) {
    text name = args->kw_names[i];
    int at = fn->params[0] == '/' ? -1 : param_index(params, name);
    if (fn->params[0] == '/')
      td_render_fail(r, "%s() takes no keyword arguments", fn->name);
    if (at < 0)
      td_render_fail(r, "%s() got an unexpected keyword argument '%.*s'", fn->name,
                     (int)(name.n < 64 ? name.n : 64), name.p);
    if (b->arg[at].type != V_MISSING)
      td_render_fail(r, "%s() got multiple values for argument '%.*s'", fn->name, (int)name.n, name.p);
    b->arg[at] = args->kw[i];
  }
}

value td_builtin_call(rendering *r, const builtin *fn, value self, const call_args *args)
{
  bound b = {.self = self, .raw = args, .variant = fn->variant, .name = fn->name};
  if (fn->params[0] == '*')
    return fn->fn(r, &b);
  const char *params = fn->params + (fn->params[0] == '/');
  size_t n = param_count(params);
  if (args->n_pos > n)
    td_render_fail(r, "%s() takes at most %zu arguments (%zu given)", fn->name, n, args->n_pos);
  for (size_t i = 0; i < args->n_pos; i++)
    b.arg[i] = args->pos[i];
  bind_keywords(r, fn, params, args, &b);
  for (int i = 0; i < fn->required; i++)
    if (b.arg[i].type == V_MISSING)
      td_render_fail(r, "%s() missing required argument %d", fn->name, i + 1);
  return fn->fn(r, &b);
}

int64_t td_arg_int(rendering *r, const bound *b, int i, int64_t absent)
{
  int64_t v;
  if (b->arg[i].type == V_MISSING)
    return absent;
  if (!td_op_index(b->arg[i], &v))
    td_render_fail(r, "'%s' object cannot be interpreted as an integer", td_value_type_name(b->arg[i]));
  return v;
}

bool td_arg_truth(rendering *r, const bound *b, int i, bool absent)
{
  return b->arg[i].type == V_MISSING ? absent : td_value_truth(r, b->arg[i]);
}

str *td_arg_str(rendering *r, const bound *b, int i)
{
  if (b->arg[i].type == V_MISSING || b->arg[i].type == V_NONE)
    return NULL;
  if (b->arg[i].type != V_STR)
    td_render_fail(r, "%s arg must be None or str", b->name);
  return b->arg[i].s;
}
