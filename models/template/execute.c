/* Executes statements. Output goes to r->to: the rendered text, or a buffer of a macro, set block, filter
 * block or call block. */
#include <string.h>

#include "config/limits.h"
#include "models/template/eval.h"
#include "models/template/value.h"

typedef enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;

static flow execute(rendering *r, const node *n);

static void enter(rendering *r, const scope_entry *e)
{
  for (uint32_t i = 0; i < e->n_loads; i++) {
    const scope_load *l = &e->loads[i];
    value *slot = &r->env->slots[l->slot];
    if (l->kind == LOAD_MISSING) {
      *slot = v_missing();
    } else if (l->kind == LOAD_CONTEXT) {
      *slot = td_context_value(r, l->context);
    } else {
      activation *env = r->env;
      for (uint32_t k = 0; k < l->outer.hops; k++)
        env = env->outer;
      *slot = env->slots[l->outer.slot];
    }
  }
}

static activation *activate(rendering *r, const function *fn, activation *outer)
{
  activation *env = r->spare[fn->id];
  if (env) {
    r->spare[fn->id] = env->next_spare;
    memset(env->slots, 0, fn->n_slots * sizeof *env->slots);
  } else {
    env = td_render_alloc(r, 1, sizeof *env);
    env->slots = td_render_alloc(r, fn->n_slots, sizeof *env->slots);
  }
  env->outer = outer;
  return env;
}

/* ---- functions ---- */

static bool take_keyword(const call_args *args, bool *used, text name, value *v)
{
  for (size_t i = 0; i < args->n_kw; i++) {
    if (used[i] || !text_equal(args->kw_names[i], name))
      continue;
    used[i] = true;
    *v = args->kw[i];
    return true;
  }
  return false;
}

static void bind_caller(rendering *r, const function *fn, const call_args *args, bool *used, bool found)
{
  value v;
  if (fn->caller_slot == NO_SLOT || found)
    return;
  if (!take_keyword(args, used, (text){"caller", 6}, &v) || v.type == V_NONE)
    v = td_value_undefined_hint(r, "No caller defined");
  r->env->slots[fn->caller_slot] = v;
}

static void bind_rest(rendering *r, const function *fn, const call_args *args, const bool *used)
{
  if (fn->kwargs_slot != NO_SLOT) {
    value kwargs = {.type = V_DICT, .d = td_dict_new(r, args->n_kw, false)};
    for (size_t i = 0; i < args->n_kw; i++)
      if (!used[i])
        td_dict_set_text(r, kwargs.d, args->kw_names[i], args->kw[i]);
    r->env->slots[fn->kwargs_slot] = kwargs;
  }
  for (size_t i = 0; fn->kwargs_slot == NO_SLOT && i < args->n_kw; i++)
    if (!used[i])
      td_render_fail(r, "macro '%.*s' takes no keyword argument '%.*s'", text_shown(fn->name), fn->name.p,
                     text_shown(args->kw_names[i]), args->kw_names[i].p);
  size_t taken = args->n_pos < fn->n_params ? args->n_pos : fn->n_params;
  if (fn->varargs_slot != NO_SLOT)
    r->env->slots[fn->varargs_slot] = td_value_list(r, args->pos + taken, args->n_pos - taken, true);
  else if (args->n_pos > fn->n_params)
    td_render_fail(r, "macro '%.*s' takes not more than %u argument(s)", text_shown(fn->name), fn->name.p,
                   fn->n_params);
}

/* Binds in the reference's order: arguments, the special parameters, the loads of the body's scope, then
 * defaults. */
static void bind_params(rendering *r, const function *fn, const call_args *args)
{
  bool *used = td_render_alloc(r, args->n_kw, sizeof *used), found_caller = fn->explicit_caller;
  value *slots = r->env->slots;
  for (uint32_t i = 0; i < fn->n_params; i++) {
    value v = v_missing();
    if (i < args->n_pos)
      v = args->pos[i];
    else
      take_keyword(args, used, fn->params[i], &v);
    slots[fn->param_slots[i]] = v;
  }
  bind_caller(r, fn, args, used, found_caller);
  bind_rest(r, fn, args, used);
  enter(r, &fn->entry);
  for (uint32_t i = 0; i < fn->n_params; i++) {
    value *slot = &slots[fn->param_slots[i]];
    if (slot->type != V_MISSING)
      continue;
    uint32_t first = fn->n_params - fn->n_defaults;
    text name = fn->params[i];
    *slot = i < first
                ? td_value_undefined_hint(r, "parameter '%.*s' was not provided", text_shown(name), name.p)
                : td_eval(r, fn->defaults[i - first]);
  }
}

value td_call_macro(rendering *r, const struct macro *m, const call_args *args)
{
  const function *fn = m->fn;
  activation *outer_env = r->env;
  text_out *outer_to = r->to, to;
  if (++r->macro_depth > td_limit_max(TD_LIMIT_TEMPLATE_DEPTH))
    td_render_fail(r, "maximum recursion depth exceeded");
  td_out_init(&to);
  r->env = activate(r, fn, m->env);
  bind_params(r, fn, args);
  r->to = &to;
  execute(r, fn->body);
  if (!fn->has_inner) { /* no function can refer to it any more */
    r->env->next_spare = r->spare[fn->id];
    r->spare[fn->id] = r->env;
  }
  r->to = outer_to;
  r->env = outer_env;
  r->macro_depth--;
  return v_str(td_out_finish(r, &to));
}

static value make_macro(rendering *r, const function *fn)
{
  struct macro *m = td_render_alloc(r, 1, sizeof *m);
  *m = (struct macro){fn, r->env};
  return (value){.type = V_MACRO, .macro = m};
}

void td_execute_root(rendering *r, const function *root)
{
  r->env = activate(r, root, NULL);
  enter(r, &root->entry);
  execute(r, root->body);
}

/* ---- for ---- */

typedef struct filtered {
  const node *n;
  activation *env;
} filtered;

/* The next item that passes the loop's test, which has a scope of its own. */
static value next_passing(rendering *r, iter *it)
{
  const filtered *f = it->state;
  activation *env = r->env;
  value v;
  while ((v = td_iter_next(r, it->source)).type != V_MISSING) {
    r->env = f->env;
    enter(r, &f->n->entry3);
    td_assign(r, f->n->test_target, v);
    bool pass = td_value_truth(r, td_eval(r, f->n->c));
    r->env = env;
    if (pass)
      break;
  }
  return v;
}

static value loop_over(rendering *r, const node *n)
{
  value over = td_eval(r, n->b);
  iter *it = td_iter_of(r, over);
  if (n->c) {
    filtered *f = td_render_alloc(r, 1, sizeof *f);
    *f = (filtered){n, r->env};
    iter *passing = td_iter_new(r, next_passing, "generator");
    passing->source = it;
    passing->state = f;
    it = passing;
    over = (value){.type = V_ITER, .it = passing};
  }
  return td_loop_new(r, over, it);
}

static flow execute_for(rendering *r, const node *n)
{
  value loop = loop_over(r, n);
  bool any = false;
  while (td_loop_advance(r, loop.loop)) {
    td_render_pay(r, 1 + n->entry.n_loads / 8);
    r->env->slots[n->loop_slot] = loop;
    td_assign(r, n->a, loop.loop->current);
    enter(r, &n->entry);
    flow f = execute(r, n->items[0]);
    if (f == FLOW_BREAK)
      break;
    any |= f == FLOW_ON; /* as in the reference, `else` is skipped once an iteration reached its end */
  }
  if (!any && n->items[1]) {
    enter(r, &n->entry2);
    return execute(r, n->items[1]);
  }
  return FLOW_ON;
}

/* ---- blocks that collect output ---- */

static flow collect(rendering *r, const scope_entry *entry, const node *body, str **out)
{
  text_out *outer = r->to, to;
  td_out_init(&to);
  enter(r, entry);
  r->to = &to;
  flow f = execute(r, body);
  r->to = outer;
  *out = f == FLOW_ON ? td_out_finish(r, &to) : NULL;
  return f;
}

static flow execute_set_block(rendering *r, const node *n)
{
  str *s;
  flow f = collect(r, &n->entry, n->b, &s);
  if (f != FLOW_ON)
    return f;
  td_assign(r, n->a, n->c ? td_eval_filter_chain(r, n->c, v_str(s)) : v_str(s));
  return FLOW_ON;
}

static flow execute_filter_block(rendering *r, const node *n)
{
  str *s;
  flow f = collect(r, &n->entry, n->b, &s);
  if (f == FLOW_ON)
    td_value_print(r, r->to, td_eval_filter_chain(r, n->a, v_str(s)));
  return f;
}

static flow execute_with(rendering *r, const node *n)
{
  value *values = td_render_alloc(r, n->n_items / 2, sizeof *values);
  for (uint32_t i = 0; i < n->n_items; i += 2)
    values[i / 2] = td_eval(r, n->items[i + 1]);
  enter(r, &n->entry);
  for (uint32_t i = 0; i < n->n_items; i += 2)
    td_assign(r, n->items[i], values[i / 2]);
  return execute(r, n->a);
}

static flow execute_if(rendering *r, const node *n)
{
  for (uint32_t i = 0; i < n->n_items; i += 2)
    if (td_value_truth(r, td_eval(r, n->items[i])))
      return execute(r, n->items[i + 1]);
  return n->a ? execute(r, n->a) : FLOW_ON;
}

static flow execute_body(rendering *r, const node *n)
{
  for (uint32_t i = 0; i < n->n_items; i++) {
    flow f = execute(r, n->items[i]);
    if (f != FLOW_ON)
      return f;
  }
  return FLOW_ON;
}

static void execute_generation(rendering *r, const node *n)
{
  call_args none = {0};
  value body = make_macro(r, n->fn);
  td_value_print(r, r->to, td_eval_call(r, body, &none));
}

static flow execute_node(rendering *r, const node *n)
{
  switch (n->kind) {
  case N_DATA: td_out_bytes(r, r->to, n->text.p, n->text.n, true); return FLOW_ON;
  case N_PRINT: td_value_print(r, r->to, td_eval(r, n->a)); return FLOW_ON;
  case N_BODY: return execute_body(r, n);
  case N_IF: return execute_if(r, n);
  case N_FOR: return execute_for(r, n);
  case N_SET: td_assign(r, n->a, td_eval(r, n->b)); return FLOW_ON;
  case N_SETBLOCK: return execute_set_block(r, n);
  case N_MACRO: td_assign(r, n->a, make_macro(r, n->fn)); return FLOW_ON;
  case N_CALLBLOCK:
    td_value_print(r, r->to, td_eval_call_with(r, n->a, make_macro(r, n->fn)));
    return FLOW_ON;
  case N_GENERATION: execute_generation(r, n); return FLOW_ON;
  case N_FILTERBLOCK: return execute_filter_block(r, n);
  case N_WITH: return execute_with(r, n);
  case N_BREAK: return FLOW_BREAK;
  default: return FLOW_CONTINUE;
  }
}

static flow execute(rendering *r, const node *n)
{
  td_render_pay(r, 1);
  td_render_deeper(r);
  flow f = execute_node(r, n);
  shallower(r);
  return f;
}
