/* Tests: the names after `is`, which select, reject and similar filters also call. */
#include "models/template/builtin.h"

/* variant: the set of accepted types. */
static value of_type(rendering *r, bound *b) { return v_bool(b->variant >> b->self.type & 1); }

static value is_truth(rendering *r, bound *b)
{
  return v_bool(b->self.type == V_BOOL && b->self.b == b->variant);
}

static value is_escaped(rendering *r, bound *b) { return v_bool(b->self.type == V_STR && b->s->markup); }

/* Divides by the argument or, if there is none, by two. variant: the expected remainder. */
static value remainder_is(rendering *r, bound *b)
{
  value divisor = b->raw->n_pos + b->raw->n_kw > 0 ? b->arg[0] : v_int(2);
  return v_bool(td_value_equal(r, td_op_math(r, T_MOD, b->self, divisor), v_int(b->variant)));
}

/* variant: the operator. */
static value compares(rendering *r, bound *b)
{
  return v_bool(td_op_compare(r, (uint8_t)b->variant, b->self, b->arg[0]));
}

static value same_as(rendering *r, bound *b)
{
  value v = b->self, other = b->arg[0];
  if (v.type != other.type)
    return v_bool(false);
  switch (v.type) {
  case V_NONE: return v_bool(true);
  case V_BOOL: return v_bool(v.b == other.b);
  case V_INT: return v_bool(v.i == other.i);
  case V_FLOAT: return v_bool(false);
  case V_STR: return v_bool(v.s == other.s || (v.s->p == other.s->p && v.s->n == other.s->n));
  default: return v_bool(v.l == other.l);
  }
}

/* variant: the kind of function to look for. */
static value is_known(rendering *r, bound *b)
{
  td_value_hash(r, b->self); /* unhashable types fail, as in the reference's dict */
  return v_bool(b->s && td_builtin_find((unsigned)b->variant, (text){b->s->p, b->s->n}));
}

enum {
  UNDEFINED = 1 << V_UNDEFINED,
  INTEGER = 1 << V_INT | 1 << V_BIGINT,
  NUMBER = INTEGER | 1 << V_FLOAT | 1 << V_BOOL,
  CALLABLE = UNDEFINED | 1 << V_BUILTIN | 1 << V_METHOD | 1 << V_MACRO | 1 << V_LOOP,
};

const builtin td_rows_tests[] = {
    {OF_TEST, "defined", of_type, "", ~UNDEFINED},
    {OF_TEST, "undefined", of_type, "", UNDEFINED},
    {OF_TEST, "none", of_type, "", 1 << V_NONE},
    {OF_TEST, "boolean", of_type, "", 1 << V_BOOL},
    {OF_TEST, "integer", of_type, "", INTEGER},
    {OF_TEST, "float", of_type, "", 1 << V_FLOAT},
    {OF_TEST, "number", of_type, "", NUMBER},
    {OF_TEST, "string", of_type, "", 1 << V_STR},
    {OF_TEST, "mapping", of_type, "", 1 << V_DICT},
    {OF_TEST, "sequence", of_type, "", SEQUENCE_TYPES},
    {OF_TEST, "iterable", of_type, "", ITERABLE_TYPES},
    {OF_TEST, "callable", of_type, "", CALLABLE},
    {OF_TEST, "true", is_truth, "", true},
    {OF_TEST, "false", is_truth, "", false},
    {OF_TEST, "escaped", is_escaped, "", 0},
    {OF_TEST, "odd", remainder_is, "", 1},
    {OF_TEST, "even", remainder_is, "", 0},
    {OF_TEST, "divisibleby", remainder_is, "num", 0},
    {OF_TEST, "sameas", same_as, "other", 0},
    {OF_TEST, "filter", is_known, "", OF_FILTER},
    {OF_TEST, "test", is_known, "", OF_TEST},
    {OF_TEST, "in", compares, "seq", OP_IN},
    {OF_TEST, "eq", compares, "/other", T_EQ},
    {OF_TEST, "equalto", compares, "/other", T_EQ},
    {OF_TEST, "==", compares, "/other", T_EQ},
    {OF_TEST, "ne", compares, "/other", T_NE},
    {OF_TEST, "!=", compares, "/other", T_NE},
    {OF_TEST, "gt", compares, "/other", T_GT},
    {OF_TEST, "greaterthan", compares, "/other", T_GT},
    {OF_TEST, ">", compares, "/other", T_GT},
    {OF_TEST, "ge", compares, "/other", T_GE},
    {OF_TEST, ">=", compares, "/other", T_GE},
    {OF_TEST, "lt", compares, "/other", T_LT},
    {OF_TEST, "lessthan", compares, "/other", T_LT},
    {OF_TEST, "<", compares, "/other", T_LT},
    {OF_TEST, "le", compares, "/other", T_LE},
    {OF_TEST, "<=", compares, "/other", T_LE},
    {0},
};
