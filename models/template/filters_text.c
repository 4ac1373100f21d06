/* Filters that make text or numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/template/builtin.h"
#include "models/template/format.h"
#include "models/template/unicode.h"

static str *self_str(rendering *r, const bound *b) { return td_value_str(r, b->self); }

static value f_case(rendering *r, bound *b)
{
  return v_str(td_text_case(r, self_str(r, b), (char)b->variant));
}

static value f_trim(rendering *r, bound *b)
{
  return v_str(td_text_strip(r, self_str(r, b), td_arg_str(r, b, 0), true, true));
}

static value f_string(rendering *r, bound *b) { return v_str(self_str(r, b)); }

static value f_safe(rendering *r, bound *b)
{
  str *s = self_str(r, b), *safe = td_str_slice(r, s, 0, s->n);
  safe->markup = true;
  return v_str(safe);
}

static value f_escape(rendering *r, bound *b)
{
  str *s = self_str(r, b);
  return v_str(s->markup && b->variant != 'f' ? s : td_text_escape(r, s));
}

static value f_replace(rendering *r, bound *b)
{
  int64_t count = b->arg[2].type == V_NONE ? -1 : td_arg_int(r, b, 2, -1);
  str *s = td_text_replace(r, self_str(r, b), td_value_str(r, b->arg[0]), td_value_str(r, b->arg[1]), count);
  if (s->markup) {
    s = td_str_slice(r, s, 0, s->n);
    s->markup = false;
  }
  return v_str(s);
}

static value f_join(rendering *r, bound *b)
{
  value over = b->self;
  if (b->arg[1].type != V_MISSING && b->arg[1].type != V_NONE) {
    seq *items = td_iter_collect(r, over);
    for (size_t i = 0; i < items->n; i++)
      items->items[i] = td_attribute_path(r, items->items[i], b->arg[1]);
    over = (value){.type = V_LIST, .l = items};
  }
  str *separator = b->arg[0].type == V_MISSING ? td_str_literal(r, "") : td_value_str(r, b->arg[0]);
  return v_str(td_text_join(r, separator, over, true));
}

static value f_tojson(rendering *r, bound *b)
{
  return td_value_tojson(r, b->self, td_arg_truth(r, b, 0, false), b->arg[1], b->arg[2],
                         td_arg_truth(r, b, 3, false));
}

/* Lines but the first are indented; empty ones only when asked. */
static value f_indent(rendering *r, bound *b)
{
  bool first = td_arg_truth(r, b, 1, false), blank = td_arg_truth(r, b, 2, false);
  if (b->self.type == V_UNDEFINED)
    td_value_fail_undefined(r, b->self);
  if (b->self.type != V_STR)
    td_render_fail(r, "unsupported operand type(s) for +=: '%s' and 'str'", td_value_type_name(b->self));
  str *indent = b->arg[0].type == V_STR ? b->arg[0].s
                                        : td_text_repeat(r, td_str_literal(r, " "), td_arg_int(r, b, 0, 4));
  str *s = td_str_concat(r, b->self.s, td_str_literal(r, "\n"));
  seq *lines = td_text_split_lines(r, s, false);
  text_out o;
  td_out_init(&o);
  for (size_t i = 0; i < lines->n; i++) {
    str *line = lines->items[i].s;
    if (i)
      td_out_bytes(r, &o, "\n", 1, true);
    if (i ? blank || line->n > 0 : first)
      td_out_str(r, &o, indent);
    td_out_str(r, &o, line);
  }
  return v_str(td_out_finish(r, &o));
}

static value f_center(rendering *r, bound *b)
{
  return v_str(td_text_center(r, self_str(r, b), td_arg_int(r, b, 0, 80), NULL, 'c'));
}

static value f_truncate(rendering *r, bound *b)
{
  int64_t length = td_arg_int(r, b, 0, 255), n,
          leeway = b->arg[3].type == V_NONE ? 5 : td_arg_int(r, b, 3, 5);
  str *end = b->arg[2].type == V_MISSING ? td_str_literal(r, "...") : td_arg_str(r, b, 2);
  if (!end)
    td_render_fail(r, "truncate needs a string to end with");
  int64_t end_n = (int64_t)td_str_chars(end);
  if (length < end_n || leeway < 0)
    td_render_fail(r, "expected length >= %lld, got %lld", (long long)end_n, (long long)length);
  if (!td_value_length(r, b->self, &n))
    td_render_fail(r, "object of type '%s' has no len()", td_value_type_name(b->self));
  if (n <= length || n - length <= leeway)
    return b->self;
  if (b->self.type != V_STR)
    td_render_fail(r, "truncate needs a string");
  str *cut = td_str_slice(r, b->self.s, 0, td_str_char_offset(b->self.s, (size_t)(length - end_n)));
  if (!td_arg_truth(r, b, 1, false)) {
    size_t space = td_str_rfind(r, cut, td_str_literal(r, " "), 0, cut->n);
    if (space != SIZE_MAX)
      cut = td_str_slice(r, cut, 0, space);
  }
  return v_str(td_str_concat(r, cut, end));
}

static value f_format(rendering *r, bound *b)
{
  str *s = self_str(r, b);
  if (b->raw->n_pos > 0 && b->raw->n_kw > 0)
    td_render_fail(r, "can't handle positional and keyword arguments at the same time");
  value args = td_value_list(r, b->raw->pos, b->raw->n_pos, true);
  if (b->raw->n_kw > 0) {
    args = (value){.type = V_DICT, .d = td_dict_new(r, b->raw->n_kw, false)};
    for (size_t i = 0; i < b->raw->n_kw; i++)
      td_dict_set(r, args.d, v_str(td_str_new(r, b->raw->kw_names[i].p, b->raw->kw_names[i].n, true)),
                  b->raw->kw[i]);
  }
  return td_op_format(r, v_str(s), args);
}

static value f_wordcount(rendering *r, bound *b)
{
  str *s = self_str(r, b);
  int64_t n = 0;
  bool in_word = false;
  pay_chars(r, s->n);
  for (size_t i = 0; i < s->n;) {
    size_t len = td_unicode_word_at(s->p + i, s->n - i);
    n += len && !in_word;
    in_word = len > 0;
    i += len ? len : 1;
  }
  return v_int(n);
}

static value f_urlencode(rendering *r, bound *b)
{
  str *s = self_str(r, b);
  if (td_iterable(b->self) && b->self.type != V_STR)
    td_render_fail(r, "urlencode of a collection is not served");
  text_out o;
  td_out_init(&o);
  for (size_t i = 0; i < s->n; i++) {
    unsigned char c = (unsigned char)s->p[i];
    char esc[4];
    if (((c | 32) >= 'a' && (c | 32) <= 'z') || (c >= '0' && c <= '9') || (c && strchr("_.-~/", c))) {
      td_out_slice(r, &o, s, i, i + 1);
    } else {
      snprintf(esc, sizeof esc, "%%%02X", c);
      td_out_cstr(r, &o, esc, str_trusted_at(s, i));
    }
  }
  return v_str(td_out_finish(r, &o));
}

/* ---- numbers ---- */

/* The number in the text as int() or float() of Python reads it: white space around, single underscores
 * between digits. NULL: not a number. */
static const char *number_text(rendering *r, str *s)
{
  str *t = td_text_strip(r, s, NULL, true, true);
  pay_bytes(r, 8 * t->n); /* copied, then read by more than one function */
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

/* A float as an integer: 1 yes, 0 no (nan, infinity) */
static int64_t float_to_int(rendering *r, double f)
{
  if (!(fabs(f) < 9223372036854775808.0))
    td_render_fail(r, "integer does not fit in 64 bits");
  return (int64_t)f;
}

static value f_int(rendering *r, bound *b)
{
  value v = b->self, otherwise = b->arg[0].type == V_MISSING ? v_int(0) : b->arg[0], result = otherwise;
  int64_t base = td_arg_int(r, b, 1, 10), i;
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
        return (value){.type = V_INT, .tainted = td_str_any_untrusted(r, v.s), .i = i};
    }
    if (!parse_float(r, v.s, &f) || !isfinite(f))
      return otherwise;
    if (t &&
        strspn(t + (t[0] == '-' || t[0] == '+'), "0123456789") + (t[0] == '-' || t[0] == '+') == digits &&
        fabs(f) >= 1e15)
      td_render_fail(r, "integer does not fit in 64 bits");
    result = v_int(float_to_int(r, f));
  }
  result.tainted |= td_value_is_tainted(r, v);
  return result;
}

static value f_float(rendering *r, bound *b)
{
  value v = b->self, otherwise = b->arg[0].type == V_MISSING ? v_float(0) : b->arg[0], result = otherwise;
  int64_t i;
  double f;
  if (v.type == V_UNDEFINED)
    td_value_fail_undefined(r, v);
  if (v.type == V_FLOAT)
    return v;
  if (td_op_index(v, &i))
    result = v_float((double)i);
  else if ((v.type == V_STR || v.type == V_BIGINT) && parse_float(r, v.s, &f))
    result = v_float(f);
  if (result.type == V_FLOAT)
    result.tainted |= td_value_is_tainted(r, v);
  return result;
}

static value f_abs(rendering *r, bound *b)
{
  value v = b->self;
  if (v.type == V_UNDEFINED)
    td_value_fail_undefined(r, v);
  if (v.type == V_FLOAT)
    v.f = fabs(v.f);
  else if (v.type == V_INT || v.type == V_BOOL)
    v = td_op_math(r, T_MUL, v, v_int(v.type == V_INT && v.i < 0 ? -1 : 1));
  else
    td_render_fail(r, "bad operand type for abs(): '%s'", td_value_type_name(v));
  return v;
}

/* round-half-even on the decimal text, as Python's round(f, n) */
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

static value f_round(rendering *r, bound *b)
{
  value v = b->self;
  int64_t digits = td_arg_int(r, b, 0, 0);
  str *how = td_arg_str(r, b, 1);
  bool common = !how || td_str_equals(how, "common");
  if (how && !common && !td_str_equals(how, "ceil") && !td_str_equals(how, "floor"))
    td_render_fail(r, "method must be common, ceil or floor");
  if (v.type == V_UNDEFINED)
    td_value_fail_undefined(r, v);
  if (v.type != V_FLOAT && v.type != V_INT && v.type != V_BOOL)
    td_render_fail(r, "type %s doesn't define __round__ method", td_value_type_name(v));
  double f = v.type == V_FLOAT ? v.f : v.type == V_INT ? (double)v.i : v.b;
  value result;
  if (common && v.type != V_FLOAT) {
    if (digits < 0)
      td_render_fail(r, "rounding an integer to tens is not served");
    result = v_int(v.type == V_INT ? v.i : v.b);
  } else if (common) {
    td_render_pay(r, 2 * FLOAT_STEPS);
    result = v_float(round_to(f, digits));
  } else {
    double scale = pow(10, (double)digits);
    if (!isfinite(f * scale))
      td_render_fail(r, "cannot convert float infinity to integer");
    result = v_float((td_str_equals(how, "ceil") ? ceil(f * scale) : floor(f * scale)) / scale);
  }
  result.tainted = v.tainted;
  return result;
}

const builtin td_filters_text[] = {
    {"upper", f_case, "", 0, 'u'},
    {"lower", f_case, "", 0, 'l'},
    {"capitalize", f_case, "", 0, 'c'},
    {"title", f_case, "", 0, 't'},
    {"trim", f_trim, "chars", 0, 0},
    {"string", f_string, "", 0, 0},
    {"safe", f_safe, "", 0, 0},
    {"escape", f_escape, "", 0, 0},
    {"e", f_escape, "", 0, 0},
    {"forceescape", f_escape, "", 0, 'f'},
    {"replace", f_replace, "old new count", 2, 0},
    {"join", f_join, "d attribute", 0, 0},
    {"tojson", f_tojson, "ensure_ascii indent separators sort_keys", 0, 0},
    {"indent", f_indent, "width first blank", 0, 0},
    {"center", f_center, "width", 0, 0},
    {"truncate", f_truncate, "length killwords end leeway", 0, 0},
    {"format", f_format, "*", 0, 0},
    {"wordcount", f_wordcount, "", 0, 0},
    {"urlencode", f_urlencode, "", 0, 0},
    {"int", f_int, "default base", 0, 0},
    {"float", f_float, "default", 0, 0},
    {"abs", f_abs, "", 0, 0},
    {"round", f_round, "precision method", 0, 0},
    {0},
};
