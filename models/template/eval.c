/* Evaluates expressions. The tree's height (checked when it is built) and the depth counter bound
 * recursion. */

#include "models/template/builtin.h"
#include "models/template/eval.h"
#include "models/template/value.h"

static value *slot_of(rendering *r, var_ref ref)
{
  activation *env = r->env;
  for (uint32_t i = 0; i < ref.hops; i++)
    env = env->outer;
  return &env->slots[ref.slot];
}

static value eval_name(rendering *r, const node *n)
{
  value v = *slot_of(r, n->ref);
  return v.type == V_MISSING ? td_value_undefined_name(r, n->text) : v;
}

static value eval_const(rendering *r, const node *n)
{
  switch (n->constant) {
  case V_BOOL: return v_bool(n->i != 0);
  case V_INT: return v_int(n->i);
  case V_FLOAT: return v_float(n->f);
  case V_STR: return v_str(n->literal);
  default: return v_none();
  }
}

static value eval_list(rendering *r, const node *n)
{
  value *items = td_render_alloc(r, n->n_items, sizeof *items);
  for (uint32_t i = 0; i < n->n_items; i++)
    items[i] = td_eval(r, n->items[i]);
  return td_value_list(r, items, n->n_items, n->kind == N_TUPLE);
}

static value eval_dict(rendering *r, const node *n)
{
  value d = {.type = V_DICT, .d = td_dict_new(r, n->n_items / 2, false)};
  for (uint32_t i = 0; i < n->n_items; i += 2) {
    value key = td_eval(r, n->items[i]);
    td_dict_set(r, d.d, key, td_eval(r, n->items[i + 1]));
  }
  return d;
}

static value eval_math(rendering *r, const node *n)
{
  value v = td_eval(r, n->a);
  for (uint32_t i = 0; i < n->n_items; i++) {
    value right = td_eval(r, n->items[i]);
    v = td_op_math(r, n->ops[i], v, right);
  }
  return v;
}

static value eval_concat(rendering *r, const node *n)
{
  str *s = NULL;
  for (uint32_t i = 0; i < n->n_items; i++) {
    str *part = td_value_str(r, td_eval(r, n->items[i]));
    s = s ? td_str_concat(r, s, part) : part;
  }
  if (s->markup) {
    s = td_str_slice(r, s, 0, s->n);
    s->markup = false;
  }
  return v_str(s);
}

static value eval_compare(rendering *r, const node *n)
{
  value left = td_eval(r, n->a);
  for (uint32_t i = 0; i < n->n_items; i++) {
    value right = td_eval(r, n->items[i]);
    if (!td_op_compare(r, n->ops[i], left, right))
      return v_bool(false);
    left = right;
  }
  return v_bool(true);
}

static value eval_logic(rendering *r, const node *n)
{
  value v = v_none();
  for (uint32_t i = 0; i < n->n_items; i++) {
    v = td_eval(r, n->items[i]);
    if (td_value_truth(r, v) == (n->kind == N_OR))
      break;
  }
  return v;
}

static value eval_slice(rendering *r, const node *n)
{
  value of = td_eval(r, n->a), part[3];
  for (int i = 0; i < 3; i++)
    part[i] = n->items[i] ? td_eval(r, n->items[i]) : v_none();
  return td_op_slice(r, of, part[0], part[1], part[2]);
}

static value eval_item(rendering *r, const node *n)
{
  value of = td_eval(r, n->a);
  return td_op_item(r, of, td_eval(r, n->b));
}

/* ---- calls ---- */

static void add_keyword(rendering *r, call_args *args, text name, value v)
{
  for (size_t i = 0; i < args->n_kw; i++)
    if (text_equal(args->kw_names[i], name))
      td_render_fail(r, "got multiple values for keyword argument '%.*s'", text_shown(name), name.p);
  args->kw_names[args->n_kw] = name;
  args->kw[args->n_kw++] = v;
}

/* Evaluates the arguments of n; keywords have room for `more` additional ones. */
static call_args *eval_args(rendering *r, const node *n, size_t more)
{
  call_args *args = td_render_alloc(r, 1, sizeof *args);
  seq pos = {.items = td_render_alloc(r, n->n_items, sizeof *pos.items), .cap = n->n_items};
  for (uint32_t i = 0; i < n->n_items; i++)
    td_seq_push(r, &pos, td_eval(r, n->items[i]));
  value *kw = td_render_alloc(r, n->n_kw, sizeof *kw);
  for (uint32_t i = 0; i < n->n_kw; i++)
    kw[i] = td_eval(r, n->kw_values[i]);
  seq *dyn = n->dyn_args ? td_iter_collect(r, td_eval(r, n->dyn_args)) : NULL;
  for (size_t i = 0; dyn && i < dyn->n; i++)
    td_seq_push(r, &pos, dyn->items[i]);
  args->pos = pos.items;
  args->n_pos = pos.n;
  value extra = n->dyn_kwargs ? td_eval(r, n->dyn_kwargs) : v_none();
  size_t n_extra = extra.type == V_DICT ? extra.d->n : 0;
  if (n->dyn_kwargs && extra.type != V_DICT)
    td_render_fail(r, "argument after ** must be a mapping, not %s", td_value_type_name(extra));
  if (n_extra > 255)
    td_render_fail(r, "more than 255 keyword arguments");
  args->kw_names = td_render_alloc(r, n->n_kw + n_extra + more, sizeof *args->kw_names);
  args->kw = td_render_alloc(r, n->n_kw + n_extra + more, sizeof *args->kw);
  for (uint32_t i = 0; i < n->n_kw; i++)
    add_keyword(r, args, n->kw_names[i], kw[i]);
  for (size_t i = 0; i < n_extra; i++) {
    if (extra.d->entries[i].key.type != V_STR)
      td_render_fail(r, "keywords must be strings");
    const str *key = extra.d->entries[i].key.s;
    add_keyword(r, args, (text){key->p, key->n}, extra.d->entries[i].val);
  }
  return args;
}

value td_eval_call(rendering *r, value callee, call_args *args)
{
  value v;
  td_render_deeper(r);
  switch (callee.type) {
  case V_MACRO: v = td_call_macro(r, callee.macro, args); break;
  case V_BUILTIN: v = td_builtin_call(r, callee.fn, v_none(), args); break;
  case V_METHOD: v = td_builtin_call(r, callee.m->fn, callee.m->self, args); break;
  case V_UNDEFINED: td_value_fail_undefined(r, callee);
  case V_LOOP: td_render_fail(r, "The loop must have the 'recursive' marker to be called recursively.");
  default: td_render_fail(r, "'%s' object is not callable", td_value_type_name(callee));
  }
  shallower(r);
  return v;
}

static value eval_call(rendering *r, const node *n)
{
  value callee = td_eval(r, n->a);
  return td_eval_call(r, callee, eval_args(r, n, 0));
}

/* Evaluates the call of a call block, with the additional keyword `caller`. */
value td_eval_call_with(rendering *r, const node *n, value caller)
{
  value callee = td_eval(r, n->a);
  call_args *args = eval_args(r, n, 1);
  add_keyword(r, args, (text){"caller", 6}, caller);
  return td_eval_call(r, callee, args);
}

/* Applies the filter or test n to a value. */
static value call_row(rendering *r, const node *n, value of)
{
  if (!n->row)
    td_render_fail(r, "No %s named '%.*s' found.", n->kind == N_FILTER ? "filter" : "test",
                   text_shown(n->text), n->text.p);
  return td_call_row(r, n->row, of, eval_args(r, n, 0));
}

/* A chain of filters, the innermost of which has no operand and is applied to `body`. */
value td_eval_filter_chain(rendering *r, const node *n, value body)
{
  td_render_deeper(r);
  value of = n->a ? td_eval_filter_chain(r, n->a, body) : body;
  value v = call_row(r, n, of);
  shallower(r);
  return v;
}

static value eval_cond(rendering *r, const node *n)
{
  if (td_value_truth(r, td_eval(r, n->b)))
    return td_eval(r, n->a);
  if (n->c)
    return td_eval(r, n->c);
  return td_value_undefined_hint(
      r, "the inline if-expression on line %u evaluated to false and no else section was defined.", n->line);
}

static value eval_node(rendering *r, const node *n)
{
  switch (n->kind) {
  case N_CONST: return eval_const(r, n);
  case N_NAME: return eval_name(r, n);
  case N_LIST:
  case N_TUPLE: return eval_list(r, n);
  case N_DICT: return eval_dict(r, n);
  case N_MATH: return eval_math(r, n);
  case N_CONCAT: return eval_concat(r, n);
  case N_AND:
  case N_OR: return eval_logic(r, n);
  case N_NOT: return v_bool(!td_value_truth(r, td_eval(r, n->a)));
  case N_NEG:
  case N_POS: return td_op_negate(r, td_eval(r, n->a), n->kind == N_POS);
  case N_COMPARE: return eval_compare(r, n);
  case N_COND: return eval_cond(r, n);
  case N_ATTR: return td_op_attribute(r, td_eval(r, n->a), n->text, v_missing(), n->row != NULL);
  case N_ITEM: return eval_item(r, n);
  case N_SLICE: return eval_slice(r, n);
  case N_CALL: return eval_call(r, n);
  case N_FILTER:
  case N_TEST: return call_row(r, n, td_eval(r, n->a));
  default: td_render_fail(r, "not an expression");
  }
}

value td_eval(rendering *r, const node *n)
{
  td_render_pay(r, 1);
  td_render_deeper(r);
  value v = eval_node(r, n);
  shallower(r);
  return v;
}

/* ---- assignment ---- */

static void assign_tuple(rendering *r, const node *target, value v)
{
  if (!td_iterable(v))
    td_render_fail(r, "cannot unpack non-iterable %s object", td_value_type_name(v));
  iter *it = td_iter_of(r, v);
  value *items = td_render_alloc(r, target->n_items, sizeof *items);
  uint32_t n = 0;
  while (n < target->n_items && (items[n] = td_iter_next(r, it)).type != V_MISSING)
    n++;
  if (n < target->n_items)
    td_render_fail(r, "not enough values to unpack (expected %u, got %u)", target->n_items, n);
  if (td_iter_next(r, it).type != V_MISSING)
    td_render_fail(r, "too many values to unpack (expected %u)", target->n_items);
  for (uint32_t i = 0; i < n; i++)
    td_assign(r, target->items[i], items[i]);
}

void td_assign(rendering *r, const node *target, value v)
{
  if (target->kind == N_NAME) {
    *slot_of(r, target->ref) = v;
  } else if (target->kind == N_TUPLE) {
    td_render_deeper(r);
    assign_tuple(r, target, v);
    shallower(r);
  } else {
    value ns = *slot_of(r, target->ref);
    if (ns.type != V_NAMESPACE)
      td_render_fail(r, "cannot assign attribute on non-namespace object");
    if (target->text2.p[0] == '_')
      td_render_fail(
          r, "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '%.*s'",
          text_shown(target->text2), target->text2.p);
    td_dict_set_text(r, ns.d, target->text2, v);
  }
}
