/* Finds and calls rows of the tables. Arguments are bound to names and converted to kinds as in Python. */
#include "models/template/builtin.h"

#include <stdlib.h>
#include <string.h>

const builtin *td_builtin_find(unsigned of, text name)
{
  static const struct { /* methods are looked up at run time, so their tables are short */
    unsigned of;
    const builtin *rows;
  } tables[] = {
      {OF_LIST | OF_FIXED_LIST | OF_DICT, td_rows_containers},
      {OF_LOOP, td_rows_loop},
      {OF_GLOBAL, td_rows_globals},
      {OF_STR | OF_FILTER, td_rows_text_change},
      {OF_STR | OF_FILTER | OF_TEST, td_rows_text_search},
      {OF_FILTER, td_rows_sequences},
      {OF_FILTER, td_rows_lazy},
      {OF_FILTER, td_rows_numbers},
      {OF_TEST, td_rows_tests},
  };
  for (size_t i = 0; of && i < sizeof tables / sizeof *tables; i++)
    for (const builtin *row = tables[i].of & of ? tables[i].rows : NULL; row && row->name; row++)
      if (row->of & of && text_is(name, row->name))
        return row;
  return NULL;
}

typedef struct param {
  text name;
  char kind; /* lower case; 0: any value */
  bool takes_none, optional;
  int64_t otherwise;
} param;

/* Parses the row's parameter list; returns the number of parameters. */
static size_t read_params(const char *s, param *out)
{
  size_t n = 0;
  for (; *s; s += *s == ' ') {
    param *p = &out[n++];
    *p = (param){.name = {s, strcspn(s, ":= ")}};
    s += p->name.n;
    if (*s == ':') {
      p->kind = (char)(s[1] | 0x20);
      p->takes_none = s[1] != p->kind;
      s += 2;
    }
    if (*s == '=') {
      p->optional = true;
      p->otherwise = strtoll(s + 1, (char **)(uintptr_t)&s, 10);
    }
  }
  return n;
}

__attribute__((noreturn)) static void wrong_kind(rendering *r, const bound *b, int i, const char *kind)
{
  td_render_fail(r, "%s() argument %d must be %s, not %s", b->name, i + 1, kind,
                 td_value_type_name(b->arg[i]));
}

/* Converts argument i to the parameter's kind. */
static value convert(rendering *r, const bound *b, int i, const param *p)
{
  value v = b->arg[i];
  if (v.type == V_NONE && p->takes_none)
    v = v_missing();
  bool given = v.type != V_MISSING;
  int64_t number = p->otherwise;
  if (!given && !p->optional)
    td_render_fail(r, "%s() missing required argument %d", b->name, i + 1);
  switch (p->kind) {
  case 'b': return v_bool(given && td_value_truth(r, v));
  case 't': return given ? v_str(td_value_str(r, v)) : v;
  case 's':
    if (given && v.type != V_STR)
      wrong_kind(r, b, i, "str");
    return v;
  case 'i':
  case 'w':
    if (p->kind == 'w' && (v.type == V_STR || (!given && number == 0)))
      return v;
    if (given && !td_op_index(v, &number))
      wrong_kind(r, b, i, "int");
    return p->kind == 'i' ? v_int(number) : v_str(td_text_repeat(r, td_str_literal(r, " "), number));
  default: return v;
  }
}

static void bind_keywords(rendering *r, bound *b, const param *params, size_t n, bool keywords)
{
  for (size_t i = 0; i < b->raw->n_kw; i++) {
    text name = b->raw->kw_names[i];
    size_t at = 0;
    if (!keywords)
      td_render_fail(r, "%s() takes no keyword arguments", b->name);
    while (at < n && !text_equal(params[at].name, name))
      at++;
    if (at == n)
      td_render_fail(r, "%s() got an unexpected keyword argument '%.*s'", b->name, text_shown(name), name.p);
    if (b->arg[at].type != V_MISSING)
      td_render_fail(r, "%s() got multiple values for argument '%.*s'", b->name, text_shown(name), name.p);
    b->arg[at] = b->raw->kw[i];
  }
}

value td_builtin_call(rendering *r, const builtin *fn, value self, const call_args *args)
{
  bound b = {.self = self, .raw = args, .variant = fn->variant, .name = fn->name};
  const char *list = fn->params;
  b.s = *list == '$' ? td_value_str(r, self) : self.type == V_STR ? self.s : NULL;
  list += *list == '$';
  if (*list == '*')
    return fn->fn(r, &b);
  bool keywords = *list != '/';
  param params[MAX_PARAMS];
  size_t n = read_params(list + !keywords, params);
  if (args->n_pos > n)
    td_render_fail(r, "%s() takes at most %zu arguments (%zu given)", fn->name, n, args->n_pos);
  for (size_t i = 0; i < args->n_pos; i++)
    b.arg[i] = args->pos[i];
  bind_keywords(r, &b, params, n, keywords);
  for (size_t i = 0; i < n; i++)
    b.arg[i] = convert(r, &b, (int)i, &params[i]);
  return fn->fn(r, &b);
}

value td_call_row(rendering *r, const builtin *row, value of, const call_args *args)
{
  td_render_deeper(r);
  value v = td_builtin_call(r, row, of, args);
  shallower(r);
  return v;
}
