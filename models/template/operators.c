/* Arithmetic, attributes, indices and slices, as in Python and the reference's sandbox. */
#include <math.h>
#include <string.h>

#include "models/template/builtin.h"
#include "models/template/value.h"

bool td_op_index(value v, int64_t *i)
{
  if (v.type != V_INT && v.type != V_BOOL)
    return false;
  *i = as_int(v);
  return true;
}

static const char *op_name(token_type op) { return op == T_POW ? "** or pow()" : td_lexer_type_name(op); }

__attribute__((noreturn)) static void overflow(rendering *r)
{
  td_render_fail(r, "integer does not fit in 64 bits");
}

__attribute__((noreturn)) static void bad_operands(rendering *r, token_type op, value a, value b)
{
  if (a.type == V_UNDEFINED)
    td_value_fail_undefined(r, a);
  if (b.type == V_UNDEFINED)
    td_value_fail_undefined(r, b);
  if (a.type == V_BIGINT || b.type == V_BIGINT)
    overflow(r);
  if (op == T_ADD && a.type == V_STR)
    td_render_fail(r, "can only concatenate str (not \"%s\") to str", td_value_type_name(b));
  if (op == T_ADD && (a.type == V_LIST || a.type == V_TUPLE))
    td_render_fail(r, "can only concatenate %s (not \"%s\") to %s", td_value_type_name(a),
                   td_value_type_name(b), td_value_type_name(a));
  td_render_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", op_name(op), td_value_type_name(a),
                 td_value_type_name(b));
}

static value int_power(rendering *r, int64_t base, int64_t exponent)
{
  int64_t result = 1;
  if (exponent < 0) {
    if (base == 0)
      td_render_fail(r, "0.0 cannot be raised to a negative power");
    return v_float(pow((double)base, (double)exponent));
  }
  if (base == 0 || base == 1)
    return v_int(exponent == 0 ? 1 : base);
  if (base == -1)
    return v_int(exponent % 2 ? -1 : 1);
  for (; exponent > 0; exponent--) /* at most 63 rounds before it overflows */
    if (__builtin_mul_overflow(result, base, &result))
      overflow(r);
  return v_int(result);
}

static value int_math(rendering *r, token_type op, int64_t a, int64_t b)
{
  int64_t v;
  switch (op) {
  case T_ADD:
    if (__builtin_add_overflow(a, b, &v))
      overflow(r);
    return v_int(v);
  case T_SUB:
    if (__builtin_sub_overflow(a, b, &v))
      overflow(r);
    return v_int(v);
  case T_MUL:
    if (__builtin_mul_overflow(a, b, &v))
      overflow(r);
    return v_int(v);
  case T_POW: return int_power(r, a, b);
  default: break;
  }
  if (b == 0)
    td_render_fail(r, op == T_DIV ? "division by zero" : "integer division or modulo by zero");
  if (op == T_DIV)
    return v_float((double)a / (double)b);
  if (b == -1) { /* INT64_MIN / -1 */
    if (op == T_MOD)
      return v_int(0);
    if (__builtin_sub_overflow(0, a, &v))
      overflow(r);
    return v_int(v);
  }
  int64_t q = a / b, rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) { /* rounds towards minus infinity */
    q--;
    rest += b;
  }
  return v_int(op == T_MOD ? rest : q);
}

static value float_math(rendering *r, token_type op, double a, double b)
{
  switch (op) {
  case T_ADD: return v_float(a + b);
  case T_SUB: return v_float(a - b);
  case T_MUL: return v_float(a * b);
  case T_POW:
    if (a == 0 && b < 0)
      td_render_fail(r, "0.0 cannot be raised to a negative power");
    if (a < 0 && b != floor(b) && isfinite(a) && isfinite(b))
      td_render_fail(r, "complex numbers are not served");
    if (isfinite(a) && isfinite(b) && isinf(pow(a, b)))
      td_render_fail(r, "(34, 'Numerical result out of range')");
    return v_float(pow(a, b));
  default: break;
  }
  if (b == 0)
    td_render_fail(r, op == T_MOD   ? "float modulo"
                      : op == T_DIV ? "float division by zero"
                                    : "float floor division by zero");
  if (op == T_DIV)
    return v_float(a / b);
  double rest = fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0))
    rest += b;
  else if (rest == 0)
    rest = copysign(0, b);
  if (op == T_MOD)
    return v_float(rest);
  double q = (a - rest) / b, whole = floor(q);
  if (q - whole > 0.5)
    whole += 1;
  return v_float(q == 0 ? copysign(0, a / b) : whole);
}

static value add_markup(rendering *r, str *a, str *b)
{
  str *s = td_str_concat(r, a->markup ? a : td_text_escape(r, a), b->markup ? b : td_text_escape(r, b));
  s->markup = true;
  return v_str(s);
}

static value add_seqs(rendering *r, value a, value b)
{
  size_t n = a.l->n + b.l->n;
  td_render_pay(r, n);
  value *items = td_render_alloc(r, n, sizeof *items);
  if (a.l->n)
    memcpy(items, a.l->items, a.l->n * sizeof *items);
  if (b.l->n)
    memcpy(items + a.l->n, b.l->items, b.l->n * sizeof *items);
  value v = td_value_list(r, items, n, a.type == V_TUPLE);
  v.l->untrusted = a.l->untrusted || b.l->untrusted;
  return v;
}

/* sequence * integer */
static value repeat(rendering *r, value of, int64_t times)
{
  if (of.type == V_STR)
    return v_str(td_text_repeat(r, of.s, times));
  size_t n = 0;
  if (times > 0 && __builtin_mul_overflow(of.l->n, (size_t)times, &n))
    overflow(r);
  td_render_pay(r, n);
  value *items = td_render_alloc(r, n, sizeof *items);
  for (size_t i = 0; i < n; i++)
    items[i] = of.l->items[i % of.l->n];
  value v = td_value_list(r, items, n, of.type == V_TUPLE);
  v.l->untrusted = of.l->untrusted;
  return v;
}

static bool is_sequence(value v) { return v.type == V_STR || v.type == V_LIST || v.type == V_TUPLE; }

value td_op_math(rendering *r, token_type op, value a, value b)
{
  if (is_number(a) && is_number(b)) {
    bool whole = a.type != V_FLOAT && b.type != V_FLOAT;
    value v = whole ? int_math(r, op, as_int(a), as_int(b)) : float_math(r, op, as_double(a), as_double(b));
    v.untrusted = a.untrusted || b.untrusted;
    return v;
  }
  if (op == T_ADD && a.type == V_STR && b.type == V_STR)
    return a.s->markup || b.s->markup ? add_markup(r, a.s, b.s) : v_str(td_str_concat(r, a.s, b.s));
  if (op == T_ADD && a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE))
    return add_seqs(r, a, b);
  if (op == T_MOD && a.type == V_STR)
    return td_op_format(r, a, b);
  int64_t times;
  if (op == T_MUL && is_sequence(a) && td_op_index(b, &times))
    return repeat(r, a, times);
  if (op == T_MUL && is_sequence(b) && td_op_index(a, &times))
    return repeat(r, b, times);
  bad_operands(r, op, a, b);
}

value td_op_negate(rendering *r, value v, bool positive)
{
  value result;
  if (v.type == V_UNDEFINED)
    td_value_fail_undefined(r, v);
  if (v.type == V_BIGINT)
    overflow(r);
  if (!is_number(v))
    td_render_fail(r, "bad operand type for unary %c: '%s'", positive ? '+' : '-', td_value_type_name(v));
  if (v.type == V_FLOAT)
    result = v_float(positive ? v.f : -v.f);
  else
    result = positive ? v_int(as_int(v)) : int_math(r, T_SUB, 0, as_int(v));
  result.untrusted = v.untrusted;
  return result;
}

bool td_op_compare(rendering *r, uint8_t op, value a, value b)
{
  switch (op) {
  case T_EQ: return td_value_equal(r, a, b);
  case T_NE: return !td_value_equal(r, a, b);
  case T_LT: return td_value_compare(r, a, b, T_LT) < 0;
  case T_LE: return td_value_compare(r, a, b, T_LE) <= 0;
  case T_GT: return td_value_compare(r, a, b, T_GT) > 0;
  case T_GE: return td_value_compare(r, a, b, T_GE) >= 0;
  default: return td_value_contains(r, b, a) == (op == OP_IN);
  }
}

/* ---- attributes ---- */

static value bind_method(rendering *r, value self, const builtin *fn)
{
  struct method *m = td_render_alloc(r, 1, sizeof *m);
  *m = (struct method){self, fn};
  return (value){.type = V_METHOD, .m = m};
}

static bool is_dunder_of_every_object(text name)
{
  return name.n > 4 && name.p[0] == '_' &&
         text_in(name, "__class__ __doc__ __init__ __dir__ __eq__ __hash__ __repr__ __str__ __new__ __ne__ "
                       "__lt__ __format__ __sizeof__ __reduce__ __gt__ __le__ __ge__ __getattribute__ "
                       "__setattr__ __delattr__ __init_subclass__ __subclasshook__ __reduce_ex__");
}

static value unsafe(rendering *r, value of, text name)
{
  return td_value_undefined_of(r, of, v_str(td_str_new(r, name.p, name.n, true)), true);
}

/* Like Python's getattr; V_MISSING if there is no such attribute. */
static value get_attribute(rendering *r, value of, text name, bool may_be_method)
{
  static const uint8_t owners[] = {[V_STR] = OF_STR,          [V_DICT] = OF_DICT,        [V_LIST] = OF_LIST,
                                   [V_TUPLE] = OF_FIXED_LIST, [V_RANGE] = OF_FIXED_LIST, [V_LOOP] = OF_LOOP};
  if (of.type == V_NAMESPACE)
    return td_dict_get_text(r, of.d, name);
  if (is_dunder_of_every_object(name))
    return unsafe(r, of, name);
  value v = of.type == V_LOOP ? td_loop_attribute(r, of.loop, name) : v_missing();
  if (v.type != V_MISSING)
    return v;
  const builtin *fn = may_be_method ? td_builtin_find(owners[of.type], name) : NULL;
  if (fn)
    return fn->fn ? bind_method(r, of, fn) : unsafe(r, of, name);
  if (of.type == V_MACRO && text_is(name, "name"))
    return v_str(td_str_new(r, of.macro->fn->name.p, of.macro->fn->name.n, true));
  return v_missing();
}

value td_op_attribute(rendering *r, value of, text name, value name_value, bool may_be_method)
{
  if (of.type == V_UNDEFINED && !is_dunder_of_every_object(name))
    td_value_fail_undefined(r, of);
  value v = get_attribute(r, of, name, may_be_method);
  if (v.type != V_MISSING)
    return v;
  if (of.type == V_DICT)
    v = td_dict_get_text(r, of.d, name);
  if (v.type != V_MISSING)
    return v;
  if (name_value.type == V_MISSING)
    name_value = v_str(td_str_new(r, name.p, name.n, true));
  return td_value_undefined_of(r, of, name_value, false);
}

/* ---- items ---- */

static value slice_str(rendering *r, str *s, int64_t start, int64_t step, int64_t n)
{
  if (!str_ascii(s))
    pay_bytes(r, s->n);
  if (n == 0)
    return v_str(td_str_slice(r, s, 0, 0));
  if (step == 1) {
    size_t from = td_str_char_offset(s, (size_t)start);
    str *tail = td_str_slice(r, s, from, s->n);
    return v_str(td_str_slice(r, tail, 0, td_str_char_offset(tail, (size_t)n)));
  }
  size_t *offsets = NULL, n_chars = td_str_chars(s);
  if (!str_ascii(s)) {
    size_t k = 0;
    offsets = td_render_alloc(r, n_chars + 1, sizeof *offsets);
    for (size_t i = 0; i < s->n; i++)
      if (((unsigned char)s->p[i] & 0xC0) != 0x80)
        offsets[k++] = i;
    offsets[k] = s->n;
  }
  text_out o;
  td_out_init(&o);
  for (int64_t i = 0, at = start; i < n; i++, at += step) {
    size_t from = offsets ? offsets[at] : (size_t)at, to = offsets ? offsets[at + 1] : from + 1;
    td_out_slice(r, &o, s, from, to);
  }
  str *cut = td_out_finish(r, &o);
  cut->markup = s->markup;
  return v_str(cut);
}

static value item_of(rendering *r, value of, value key)
{
  int64_t i, n;
  if (of.type == V_DICT && (key.type == V_LIST || key.type == V_DICT || key.type == V_VIEW))
    return v_missing();
  if (of.type == V_DICT)
    return td_dict_get(r, of.d, key);
  if ((!is_sequence(of) && of.type != V_RANGE) || !td_op_index(key, &i) || !td_value_length(r, of, &n))
    return v_missing();
  i += i < 0 ? n : 0;
  if (i < 0 || i >= n)
    return v_missing();
  return of.type == V_STR ? slice_str(r, of.s, i, 1, 1) : td_item_at(r, of, i);
}

value td_op_item(rendering *r, value of, value key)
{
  if (of.type == V_UNDEFINED)
    td_value_fail_undefined(r, of);
  value v = item_of(r, of, key);
  if (v.type == V_MISSING && key.type == V_STR)
    v = get_attribute(r, of, (text){key.s->p, key.s->n}, true);
  return v.type == V_MISSING ? td_value_undefined_of(r, of, key, false) : v;
}

/* ---- slices ---- */

/* Clamps start and stop for n items by Python's rules. Returns the number of items in the slice. */
static int64_t clamp_slice(rendering *r, value parts[3], int64_t n, int64_t *start, int64_t *stop,
                           int64_t *step)
{
  int64_t p[3] = {0, 0, 1};
  bool given[3];
  for (int i = 0; i < 3; i++) {
    given[i] = parts[i].type != V_NONE;
    if (given[i] && !td_op_index(parts[i], &p[i])) {
      if (parts[i].type == V_BIGINT)
        overflow(r);
      td_render_fail(r, "slice indices must be integers or None or have an __index__ method");
    }
  }
  if (p[2] == 0)
    td_render_fail(r, "slice step cannot be zero");
  if (p[2] < -INT64_MAX)
    p[2] = -INT64_MAX;
  bool back = p[2] < 0;
  for (int i = 0; i < 2; i++) {
    if (!given[i]) {
      p[i] = (i == 0) == back ? (back ? n - 1 : n) : (back ? -1 : 0);
      continue;
    }
    if (p[i] < 0) {
      p[i] += n;
      if (p[i] < 0)
        p[i] = back ? -1 : 0;
    } else if (p[i] >= n) {
      p[i] = back ? n - 1 : n;
    }
  }
  *start = p[0];
  *stop = p[1];
  *step = p[2];
  if (back)
    return p[1] < p[0] ? (p[0] - p[1] - 1) / -p[2] + 1 : 0;
  return p[0] < p[1] ? (p[1] - p[0] - 1) / p[2] + 1 : 0;
}

value td_op_slice(rendering *r, value of, value start, value stop, value step)
{
  value parts[3] = {start, stop, step};
  int64_t n, from, to, by;
  if (of.type == V_UNDEFINED)
    td_value_fail_undefined(r, of);
  if (of.type == V_DICT)
    td_render_fail(r, "unhashable type: 'slice'");
  if (of.type != V_RANGE && !is_sequence(of))
    td_render_fail(r, "'%s' object is not subscriptable", td_value_type_name(of));
  td_value_length(r, of, &n);
  n = clamp_slice(r, parts, n, &from, &to, &by);
  td_render_pay(r, of.type == V_RANGE ? 1 : (size_t)n / 8 + 1);
  if (of.type == V_STR)
    return slice_str(r, of.s, from, by, n);
  if (of.type == V_RANGE) {
    struct range *g = td_render_alloc(r, 1, sizeof *g);
    const struct range *whole = of.r;
    if (__builtin_mul_overflow(whole->step, by, &g->step) ||
        __builtin_mul_overflow(whole->step, from, &g->start) ||
        __builtin_add_overflow(whole->start, g->start, &g->start) ||
        __builtin_mul_overflow(whole->step, to, &g->stop) ||
        __builtin_add_overflow(whole->start, g->stop, &g->stop))
      overflow(r);
    g->n = n;
    return (value){.type = V_RANGE, .r = g};
  }
  value *items = td_render_alloc(r, (size_t)n, sizeof *items);
  for (int64_t i = 0; i < n; i++)
    items[i] = of.l->items[from + i * by];
  value v = td_value_list(r, items, (size_t)n, of.type == V_TUPLE);
  v.l->untrusted = of.l->untrusted;
  return v;
}
