/* Tests: what stands behind `is`, and what select, reject and their kin call by name. */
#include <string.h>

#include "models/template/builtin.h"

typedef struct test {
  const char *name;
  bool (*fn)(rendering *r, const struct test *t, value v, value arg);
  uint8_t args;
  int variant;
} test;

static bool of_type(rendering *r, const test *t, value v, value arg)
{
  switch (t->variant) {
  case 'd': return v.type != V_UNDEFINED;
  case 'u': return v.type == V_UNDEFINED;
  case 'n': return v.type == V_NONE;
  case 'b': return v.type == V_BOOL;
  case 'T': return v.type == V_BOOL && v.b;
  case 'F': return v.type == V_BOOL && !v.b;
  case 'i': return v.type == V_INT || v.type == V_BIGINT;
  case 'f': return v.type == V_FLOAT;
  case 'N': return v.type == V_BOOL || v.type == V_INT || v.type == V_BIGINT || v.type == V_FLOAT;
  case 's': return v.type == V_STR;
  case 'm': return v.type == V_DICT;
  case 'q':
    return v.type == V_UNDEFINED || v.type == V_STR || v.type == V_LIST || v.type == V_TUPLE ||
           v.type == V_DICT || v.type == V_RANGE;
  case 'I': return td_iterable(v);
  case 'e': return v.type == V_STR && v.s->markup;
  default:
    return v.type == V_BUILTIN || v.type == V_METHOD || v.type == V_MACRO || v.type == V_LOOP ||
           v.type == V_UNDEFINED;
  }
}

static bool remainder_is(rendering *r, const test *t, value v, value arg)
{
  int64_t want = t->variant == 'o';
  value divisor = t->variant == 'd' ? arg : v_int(2);
  value rest = td_op_math(r, T_MOD, v, divisor);
  return td_value_equal(r, rest, v_int(want));
}

static bool is_case(rendering *r, const test *t, value v, value arg)
{
  call_args none = {0};
  const builtin *row = td_builtin_find(td_str_methods_more, t->variant == 'u' ? "isupper" : "islower", 7);
  return td_builtin_call(r, row, v_str(td_value_str(r, v)), &none).b;
}

static bool compares(rendering *r, const test *t, value v, value arg)
{
  switch (t->variant) {
  case '=': return td_value_equal(r, v, arg);
  case '!': return !td_value_equal(r, v, arg);
  case '>': return td_value_compare(r, v, arg, ">") > 0;
  case 'G': return td_value_compare(r, v, arg, ">=") >= 0;
  case '<': return td_value_compare(r, v, arg, "<") < 0;
  case 'L': return td_value_compare(r, v, arg, "<=") <= 0;
  default: return td_value_contains(r, arg, v);
  }
}

static bool same_as(rendering *r, const test *t, value v, value arg)
{
  if (v.type != arg.type)
    return false;
  switch (v.type) {
  case V_NONE: return true;
  case V_BOOL: return v.b == arg.b;
  case V_INT: return v.i == arg.i;
  case V_FLOAT: return false;
  case V_STR: return v.s == arg.s || (v.s->p == arg.s->p && v.s->n == arg.s->n);
  default: return v.l == arg.l;
  }
}

static bool is_known(rendering *r, const test *t, value v, value arg)
{
  td_value_hash(r, v); /* unhashable types fail, as they do in the reference's dict */
  if (v.type != V_STR)
    return false;
  return (t->variant == 'f' ? td_filter_find(v.s->p, v.s->n) : td_test_find(v.s->p, v.s->n)) != NO_SLOT;
}

static const test tests[] = {
    {"defined", of_type, 0, 'd'},      {"undefined", of_type, 0, 'u'}, {"none", of_type, 0, 'n'},
    {"boolean", of_type, 0, 'b'},      {"true", of_type, 0, 'T'},      {"false", of_type, 0, 'F'},
    {"integer", of_type, 0, 'i'},      {"float", of_type, 0, 'f'},     {"number", of_type, 0, 'N'},
    {"string", of_type, 0, 's'},       {"mapping", of_type, 0, 'm'},   {"sequence", of_type, 0, 'q'},
    {"iterable", of_type, 0, 'I'},     {"escaped", of_type, 0, 'e'},   {"callable", of_type, 0, 'c'},
    {"odd", remainder_is, 0, 'o'},     {"even", remainder_is, 0, 'e'}, {"divisibleby", remainder_is, 1, 'd'},
    {"upper", is_case, 0, 'u'},        {"lower", is_case, 0, 'l'},     {"sameas", same_as, 1, 0},
    {"eq", compares, 1, '='},          {"equalto", compares, 1, '='},  {"==", compares, 1, '='},
    {"ne", compares, 1, '!'},          {"!=", compares, 1, '!'},       {"gt", compares, 1, '>'},
    {"greaterthan", compares, 1, '>'}, {">", compares, 1, '>'},        {"ge", compares, 1, 'G'},
    {">=", compares, 1, 'G'},          {"lt", compares, 1, '<'},       {"lessthan", compares, 1, '<'},
    {"<", compares, 1, '<'},           {"le", compares, 1, 'L'},       {"<=", compares, 1, 'L'},
    {"in", compares, 1, 'i'},          {"filter", is_known, 0, 'f'},   {"test", is_known, 0, 't'},
};

uint32_t td_test_find(const char *p, size_t n)
{
  for (uint32_t i = 0; i < sizeof tests / sizeof *tests; i++)
    if (text_is((text){p, n}, tests[i].name))
      return i;
  return NO_SLOT;
}

bool td_call_test(rendering *r, uint32_t index, value of, call_args *args)
{
  const test *t = &tests[index];
  if (args->n_kw > 0 || args->n_pos != t->args)
    td_render_fail(r, "test %s takes %u argument(s) but %zu were given", t->name, t->args,
                   args->n_pos + args->n_kw);
  return t->fn(r, t, of, t->args ? args->pos[0] : v_none());
}
