/* Filters that return numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/template/builtin.h"

/* Prepares text to be parsed as Python's int() or float() would: strips white space and removes single
 * underscores between digits. Returns NULL if it is not a number. */
static const char *number_text(rendering *r, str *s)
{
  str *t = td_text_strip(r, s, NULL, true, true);
  pay_bytes(r, 8 * t->n); /* the text is copied, then read by several functions */
  char *out = td_render_alloc(r, t->n + 1, 1);
  size_t k = 0;
  for (size_t i = 0; i < t->n; i++) {
    if (t->p[i] == '_') {
      if (i == 0 || i + 1 == t->n || !strchr("0123456789", t->p[i - 1]) || !strchr("0123456789", t->p[i + 1]))
        return NULL;
      continue;
    }
    if (t->p[i] == '\0')
      return NULL;
    out[k++] = t->p[i];
  }
  return k ? out : NULL;
}

static bool parse_float(rendering *r, str *s, double *out)
{
  const char *t = number_text(r, s);
  char *end;
  if (!t || strpbrk(t, "xXpP") || strstr(t, "nan(") || strstr(t, "NAN("))
    return false;
  *out = strtod(t, &end);
  return *end == '\0' && end != t;
}

/* Converts a float to an integer; fails for nan, infinity and values beyond 64 bits. */
static int64_t float_to_int(rendering *r, double f)
{
  if (!(fabs(f) < 9223372036854775808.0))
    td_render_fail(r, "integer does not fit in 64 bits");
  return (int64_t)f;
}

static value to_int(rendering *r, bound *b)
{
  value v = b->self, otherwise = b->arg[0].type == V_MISSING ? v_int(0) : b->arg[0], result = otherwise;
  int64_t base = b->arg[1].i, i;
  double f;
  if (v.type == V_UNDEFINED)
    td_value_fail_undefined(r, v);
  if (v.type == V_BIGINT)
    return v;
  if (td_op_index(v, &i)) {
    result = v_int(i);
  } else if (v.type == V_FLOAT) {
    if (isinf(v.f))
      return otherwise;
    result = isnan(v.f) ? otherwise : v_int(float_to_int(r, v.f));
  } else if (v.type == V_STR) {
    const char *t = number_text(r, v.s);
    char *end = NULL;
    if (t && base != 0 && (base < 2 || base > 36))
      return otherwise;
    if (t && base != 10 && (t[0] == '0' || t[0] == '-' || t[0] == '+'))
      td_render_fail(r, "int of prefixed numbers is not served");
    size_t digits = t ? strlen(t) : 0;
    if (t && digits < 19 && t[0] != '\0') {
      i = strtoll(t, &end, (int)(base ? base : 10));
      if (*end == '\0' && end != t)
        return (value){.type = V_INT, .untrusted = td_str_any_untrusted(r, v.s), .i = i};
    }
    if (!parse_float(r, v.s, &f) || !isfinite(f))
      return otherwise;
    if (t &&
        strspn(t + (t[0] == '-' || t[0] == '+'), "0123456789") + (t[0] == '-' || t[0] == '+') == digits &&
        fabs(f) >= 1e15)
      td_render_fail(r, "integer does not fit in 64 bits");
    result = v_int(float_to_int(r, f));
  }
  result.untrusted |= td_value_is_untrusted(r, v);
  return result;
}

static value to_float(rendering *r, bound *b)
{
  value v = b->self, otherwise = b->arg[0].type == V_MISSING ? v_float(0) : b->arg[0], result = otherwise;
  double f;
  if (v.type == V_UNDEFINED)
    td_value_fail_undefined(r, v);
  if (v.type == V_FLOAT)
    return v;
  if (is_number(v))
    result = v_float(as_double(v));
  else if ((v.type == V_STR || v.type == V_BIGINT) && parse_float(r, v.s, &f))
    result = v_float(f);
  if (result.type == V_FLOAT)
    result.untrusted |= td_value_is_untrusted(r, v);
  return result;
}

static value absolute(rendering *r, bound *b)
{
  value v = b->self;
  if (v.type == V_UNDEFINED)
    td_value_fail_undefined(r, v);
  if (!is_number(v))
    td_render_fail(r, "bad operand type for abs(): '%s'", td_value_type_name(v));
  if (v.type != V_FLOAT)
    return td_op_math(r, T_MUL, v, v_int(as_int(v) < 0 ? -1 : 1));
  v.f = fabs(v.f);
  return v;
}

/* Rounds half to even on the decimal text, as Python's round(f, n) does. */
static double round_to(double f, int64_t digits)
{
  char decimal[400];
  if (!isfinite(f) || digits > 300)
    return f;
  if (digits < -300)
    return copysign(0, f);
  if (digits >= 0) {
    snprintf(decimal, sizeof decimal, "%.*f", (int)digits, f);
    return fabs(f) > 1e22 ? f : strtod(decimal, NULL);
  }
  double unit = pow(10, (double)-digits);
  return rint(f / unit) * unit;
}

static value rounded(rendering *r, bound *b)
{
  value v = b->self, result;
  int64_t digits = b->arg[0].i;
  const str *how = b->arg[1].s;
  bool common = !how || td_str_equals(how, "common");
  if (how && !common && !td_str_equals(how, "ceil") && !td_str_equals(how, "floor"))
    td_render_fail(r, "method must be common, ceil or floor");
  if (v.type == V_UNDEFINED)
    td_value_fail_undefined(r, v);
  if (!is_number(v))
    td_render_fail(r, "type %s doesn't define __round__ method", td_value_type_name(v));
  if (common && v.type != V_FLOAT) {
    if (digits < 0)
      td_render_fail(r, "rounding an integer to tens is not served");
    result = v_int(as_int(v));
  } else if (common) {
    td_render_pay(r, 2 * FLOAT_STEPS);
    result = v_float(round_to(v.f, digits));
  } else {
    double scale = pow(10, (double)digits), scaled = as_double(v) * scale;
    if (!isfinite(scaled))
      td_render_fail(r, "cannot convert float infinity to integer");
    result = v_float((td_str_equals(how, "ceil") ? ceil(scaled) : floor(scaled)) / scale);
  }
  result.untrusted = v.untrusted;
  return result;
}

const builtin td_rows_numbers[] = {
    {OF_FILTER, "int", to_int, "default= base:i=10", 0},
    {OF_FILTER, "float", to_float, "default=", 0},
    {OF_FILTER, "abs", absolute, "", 0},
    {OF_FILTER, "round", rounded, "precision:i=0 method:S=", 0},
    {0},
};
