/* Gives every name of a template its slot, before anything runs.
 *
 * Scopes are those of the reference, which decides them when it compiles. A loop body, macro, call block, set
 * block, filter block and `with` open a scope; `if` does not. A name that a scope stores belongs to that
 * scope from its start. There it gets its initial value: the outer variable's; or the context's, if the name
 * is first read, or first stored inside an `if`; or otherwise none. So a first pass (survey) looks at all
 * statements of a scope, and only then are their contents resolved. Names are interned, and each name keeps a
 * stack of its bindings, so a look-up is O(1) however many scopes there are. */
#include <string.h>

#include "models/template/ast.h"
#include "models/template/builtin.h"
#include "models/template/unicode.h"

typedef struct scope scope;
typedef struct binding binding;

typedef struct symbol {
  text name;
  binding *top;
  uint32_t context; /* index + 1 among the context names; 0: not among them yet */
} symbol;

struct binding {
  symbol *sym;
  scope *in;
  binding *outer;         /* of the same name, in the next outer scope */
  binding *next_in_scope; /* another name in the same scope */
  uint32_t slot;
  load_kind load;
  bool is_param;
};

typedef struct fn_state {
  function *fn;
  uint32_t depth;
  unsigned loops; /* number of loops around the current statement, inside this function */
} fn_state;

struct scope {
  fn_state *fn;
  binding *bindings;
};

typedef struct resolver {
  compiler *c;
  symbol **table;
  size_t cap, n;
  scope *at;
  fn_state *fn;
  unsigned for_depth; /* number of loops around it in the source, across functions */
  bool soft;          /* inside `if` in this scope, where unknown filters are errors only when reached */
} resolver;

/* ---- names ---- */

static size_t hash_text(text t)
{
  uint64_t h = 1469598103934665603u;
  for (size_t i = 0; i < t.n; i++)
    h = (h ^ (unsigned char)t.p[i]) * 1099511628211u;
  return (size_t)(h ^ h >> 32);
}

static symbol **find_slot(symbol **table, size_t cap, text name)
{
  size_t i = hash_text(name) & (cap - 1);
  while (table[i] && !text_equal(table[i]->name, name))
    i = (i + 1) & (cap - 1);
  return &table[i];
}

static symbol *intern(resolver *r, text name)
{
  if (2 * (r->n + 1) > r->cap) {
    size_t cap = r->cap ? 2 * r->cap : 64;
    symbol **grown = td_template_alloc(r->c, cap, sizeof *grown);
    for (size_t i = 0; i < r->cap; i++)
      if (r->table[i])
        *find_slot(grown, cap, r->table[i]->name) = r->table[i];
    r->table = grown;
    r->cap = cap;
  }
  symbol **place = find_slot(r->table, r->cap, name);
  if (!*place) {
    *place = td_template_alloc(r->c, 1, sizeof **place);
    (*place)->name = name;
    r->n++;
  }
  return *place;
}

static uint32_t context_index(resolver *r, symbol *s)
{
  compiler *c = r->c;
  if (s->context == 0) {
    c->context_names = td_template_grow(c, c->context_names, c->n_context_names, sizeof(text));
    c->context_names[c->n_context_names++] = s->name;
    s->context = c->n_context_names;
  }
  return s->context - 1;
}

/* ---- bindings ---- */

static binding *bind(resolver *r, symbol *s, load_kind load)
{
  binding *b = td_template_alloc(r->c, 1, sizeof *b);
  b->sym = s;
  b->in = r->at;
  b->outer = s->top;
  b->slot = r->at->fn->fn->n_slots++;
  b->load = load;
  b->next_in_scope = r->at->bindings;
  r->at->bindings = b;
  s->top = b;
  return b;
}

static void load(resolver *r, text name)
{
  symbol *s = intern(r, name);
  if (!s->top)
    bind(r, s, LOAD_CONTEXT);
}

static void store(resolver *r, text name, bool conditional)
{
  symbol *s = intern(r, name);
  if (s->top && s->top->in == r->at)
    return;
  bind(r, s, s->top ? LOAD_OUTER : conditional ? LOAD_CONTEXT : LOAD_MISSING);
}

static uint32_t declare_param(resolver *r, text name)
{
  symbol *s = intern(r, name);
  if (!s->top || s->top->in != r->at)
    bind(r, s, LOAD_MISSING);
  s->top->is_param = true;
  return s->top->slot;
}

static var_ref reference(const resolver *r, const binding *b)
{
  return (var_ref){r->fn->depth - b->in->fn->depth, b->slot};
}

static void enter_scope(resolver *r, scope *s)
{
  *s = (scope){.fn = r->fn};
  r->at = s;
}

/* Closes the scope. Returns the loads that must run whenever it is entered. */
static scope_entry leave_scope(resolver *r, scope *outer)
{
  scope_entry e = {0};
  uint32_t n = 0;
  for (binding *b = r->at->bindings; b; b = b->next_in_scope)
    n += !b->is_param;
  e.loads = td_template_alloc(r->c, n, sizeof *e.loads);
  for (binding *b = r->at->bindings; b; b = b->next_in_scope) {
    b->sym->top = b->outer;
    if (b->is_param)
      continue;
    scope_load *l = &e.loads[e.n_loads++];
    l->kind = b->load;
    l->slot = b->slot;
    if (b->load == LOAD_OUTER)
      l->outer = reference(r, b->outer);
    else if (b->load == LOAD_CONTEXT)
      l->context = context_index(r, b->sym);
  }
  r->at = outer;
  return e;
}

/* ---- survey: the loads and stores of a scope's own statements, in their order ---- */

static void survey(resolver *r, const node *n, bool conditional);

static void survey_list(resolver *r, node *const *items, uint32_t n, bool conditional)
{
  for (uint32_t i = 0; i < n; i++)
    survey(r, items[i], conditional);
}

static void survey_target(resolver *r, const node *n, bool as_param, bool conditional)
{
  if (n->kind == N_TUPLE) {
    for (uint32_t i = 0; i < n->n_items; i++)
      survey_target(r, n->items[i], as_param, conditional);
  } else if (n->kind == N_NSREF) {
    load(r, n->text);
  } else if (as_param) {
    declare_param(r, n->text);
  } else {
    store(r, n->text, conditional);
  }
}

static void survey(resolver *r, const node *n, bool conditional)
{
  if (!n)
    return;
  switch (n->kind) {
  case N_NAME: load(r, n->text); return;
  case N_IF:
    survey(r, n->items[0], conditional);
    survey_list(r, n->items + 1, n->n_items - 1, true);
    survey(r, n->a, true);
    return;
  case N_FOR: survey(r, n->b, conditional); return;
  case N_SET:
    survey(r, n->b, conditional);
    survey_target(r, n->a, false, conditional);
    return;
  case N_SETBLOCK: survey_target(r, n->a, false, conditional); return;
  case N_MACRO: store(r, n->fn->name, conditional); return;
  case N_CALLBLOCK:
  case N_FILTERBLOCK: survey(r, n->a, conditional); return;
  case N_GENERATION: return;
  case N_WITH:
    for (uint32_t i = 1; i < n->n_items; i += 2)
      survey(r, n->items[i], conditional);
    return;
  default:
    for (uint32_t i = 0; i < td_node_children(n); i++)
      survey(r, td_node_child(n, i), conditional);
  }
}

/* ---- resolve ---- */

static void resolve(resolver *r, node *n);

static void resolve_list(resolver *r, node **items, uint32_t n)
{
  for (uint32_t i = 0; i < n; i++)
    resolve(r, items[i]);
}

static void resolve_name(resolver *r, node *n)
{
  load(r, n->text);
  n->ref = reference(r, intern(r, n->text)->top);
}

static void resolve_target(resolver *r, node *n, bool stores)
{
  if (n->kind == N_TUPLE) {
    for (uint32_t i = 0; i < n->n_items; i++)
      resolve_target(r, n->items[i], stores);
    return;
  }
  if (stores && n->kind == N_NAME && r->for_depth > 0 && text_is(n->text, "loop"))
    td_template_fail(r->c, n->line, "Can't assign to special loop variable in for-loop target");
  resolve_name(r, n);
}

static node *clone_target(resolver *r, const node *n)
{
  node *copy = td_parse_new(r->c, N_NAME, n->line);
  *copy = *n;
  if (n->kind == N_TUPLE) {
    copy->items = td_template_alloc(r->c, n->n_items, sizeof *copy->items);
    for (uint32_t i = 0; i < n->n_items; i++)
      copy->items[i] = clone_target(r, n->items[i]);
  }
  return copy;
}

static void resolve_for(resolver *r, node *n)
{
  scope *outer = r->at, inner;
  bool soft = r->soft;
  resolve(r, n->b);
  r->soft = false;
  r->for_depth++;
  if (n->c) {
    enter_scope(r, &inner);
    n->test_target = clone_target(r, n->a);
    survey_target(r, n->test_target, true, false);
    survey(r, n->c, false);
    resolve_target(r, n->test_target, true);
    resolve(r, n->c);
    n->entry3 = leave_scope(r, outer);
  }
  enter_scope(r, &inner);
  n->loop_slot = declare_param(r, (text){"loop", 4});
  survey_target(r, n->a, true, false);
  survey(r, n->items[0], false);
  resolve_target(r, n->a, true);
  r->fn->loops++;
  resolve(r, n->items[0]);
  r->fn->loops--;
  n->entry = leave_scope(r, outer);
  if (n->items[1]) {
    enter_scope(r, &inner);
    survey(r, n->items[1], false);
    resolve(r, n->items[1]);
    n->entry2 = leave_scope(r, outer);
  }
  r->for_depth--;
  r->soft = soft;
}

/* Whether the tree loads `name` before it stores it: 1 yes, 0 it does not use it, -1 it stores it first. */
static int uses_name(const node *n, const char *name);

static int target_stores(const node *n, const char *name)
{
  if (n->kind == N_NAME)
    return text_is(n->text, name) ? -1 : 0;
  for (uint32_t i = 0; i < n->n_items; i++)
    if (target_stores(n->items[i], name))
      return -1;
  return 0;
}

static int uses_in_function(const function *fn, const char *name)
{
  int u = 0;
  for (uint32_t i = 0; i < fn->n_params; i++)
    if (text_is(fn->params[i], name))
      return -1;
  for (uint32_t i = 0; i < fn->n_defaults && u == 0; i++)
    u = uses_name(fn->defaults[i], name);
  return u ? u : uses_name(fn->body, name);
}

static int uses_name(const node *n, const char *name)
{
  int u = 0;
  if (!n)
    return 0;
  if (n->kind == N_NAME)
    return text_is(n->text, name);
  if (n->kind == N_WITH) {
    for (uint32_t i = 0; i < n->n_items; i += 2)
      if (target_stores(n->items[i], name))
        return -1;
    for (uint32_t i = 1; i < n->n_items && u == 0; i += 2)
      u = uses_name(n->items[i], name);
    return u ? u : uses_name(n->a, name);
  }
  if (n->kind == N_FOR || n->kind == N_SET || n->kind == N_SETBLOCK)
    u = target_stores(n->a, name);
  else if (n->kind != N_MACRO)
    u = uses_name(n->a, name);
  if (u == 0 && n->fn)
    u = uses_in_function(n->fn, name);
  for (uint32_t i = 1; i < td_node_children(n) && u == 0; i++)
    u = uses_name(td_node_child(n, i), name);
  return u;
}

static uint32_t special_param(resolver *r, const function *fn, const char *name)
{
  for (uint32_t i = 0; i < fn->n_params; i++)
    if (text_is(fn->params[i], name))
      return NO_SLOT;
  return uses_name(fn->body, name) == 1 ? declare_param(r, (text){name, strlen(name)}) : NO_SLOT;
}

/* An explicit parameter `caller` must have a default. */
static void check_explicit_caller(resolver *r, function *fn, unsigned line)
{
  for (uint32_t i = 0; i < fn->n_params; i++) {
    if (!text_is(fn->params[i], "caller"))
      continue;
    fn->explicit_caller = true;
    if (i < fn->n_params - fn->n_defaults && uses_name(fn->body, "caller") == 1)
      td_template_fail(r->c, line, "the special \"caller\" argument must be omitted or be given a default");
  }
}

static void resolve_function(resolver *r, function *fn, unsigned line)
{
  scope *outer = r->at, inner;
  fn_state *outer_fn = r->fn, state = {.fn = fn, .depth = outer_fn ? outer_fn->depth + 1 : 0};
  bool soft = r->soft;
  if (outer_fn)
    outer_fn->fn->has_inner = true;
  r->soft = false;
  r->fn = &state;
  fn->id = r->c->n_functions++;
  enter_scope(r, &inner);
  for (uint32_t i = 0; i < fn->n_params; i++)
    fn->param_slots[i] = declare_param(r, fn->params[i]);
  fn->caller_slot = fn->kwargs_slot = fn->varargs_slot = NO_SLOT;
  if (outer_fn) {
    check_explicit_caller(r, fn, line);
    fn->caller_slot = special_param(r, fn, "caller");
    fn->kwargs_slot = special_param(r, fn, "kwargs");
    fn->varargs_slot = special_param(r, fn, "varargs");
  }
  survey_list(r, fn->defaults, fn->n_defaults, false);
  survey(r, fn->body, false);
  resolve_list(r, fn->defaults, fn->n_defaults);
  resolve(r, fn->body);
  fn->entry = leave_scope(r, outer);
  r->fn = outer_fn;
  r->soft = soft;
}

/* Resolves a body that has a scope of its own but is no function. */
static void resolve_inner(resolver *r, node *params_of, node *body, node *filter, scope_entry *entry)
{
  scope *outer = r->at, inner;
  bool soft = r->soft;
  r->soft = false;
  enter_scope(r, &inner);
  if (params_of)
    for (uint32_t i = 0; i < params_of->n_items; i += 2)
      survey_target(r, params_of->items[i], true, false);
  survey(r, body, false);
  if (params_of)
    for (uint32_t i = 0; i < params_of->n_items; i += 2)
      resolve_target(r, params_of->items[i], false);
  resolve(r, filter);
  resolve(r, body);
  *entry = leave_scope(r, outer);
  r->soft = soft;
}

static void resolve_filter_or_test(resolver *r, node *n)
{
  bool filter = n->kind == N_FILTER;
  n->row = td_builtin_find(filter ? OF_FILTER : OF_TEST, n->text);
  if (!n->row && !r->soft)
    td_template_fail(r->c, n->line, "No %s named '%.*s'.", filter ? "filter" : "test", (int)n->text.n,
                     n->text.p);
}

/* The str is complete and never written again, because renderings in all threads share it. */
static void resolve_const(resolver *r, node *n)
{
  if (n->constant != V_STR)
    return;
  str *s = td_template_alloc(r->c, 1, sizeof *s);
  *s = (str){
      .p = n->text.p, .n = n->text.n, .n_chars = td_unicode_count(n->text.p, n->text.n), .trusted = true};
  n->literal = s;
}

static void resolve_children(resolver *r, node *n, bool soft)
{
  bool outer = r->soft;
  r->soft |= soft;
  for (uint32_t i = 0; i < td_node_children(n); i++)
    resolve(r, td_node_child(n, i));
  r->soft = outer;
}

static void resolve(resolver *r, node *n)
{
  if (!n)
    return;
  switch (n->kind) {
  case N_NAME: resolve_name(r, n); return;
  case N_CONST: resolve_const(r, n); return;
  case N_IF:
  case N_COND: resolve_children(r, n, true); return;
  case N_FOR: resolve_for(r, n); return;
  case N_SET:
    resolve(r, n->b);
    resolve_target(r, n->a, true);
    return;
  case N_SETBLOCK:
    resolve_target(r, n->a, true);
    resolve_inner(r, NULL, n->b, n->c, &n->entry);
    return;
  case N_FILTERBLOCK: resolve_inner(r, NULL, n->b, n->a, &n->entry); return;
  case N_WITH:
    for (uint32_t i = 1; i < n->n_items; i += 2)
      resolve(r, n->items[i]);
    resolve_inner(r, n, n->a, NULL, &n->entry);
    return;
  case N_MACRO:
    resolve_name(r, n->a);
    resolve_function(r, n->fn, n->line);
    return;
  case N_CALLBLOCK:
    resolve(r, n->a);
    resolve_function(r, n->fn, n->line);
    return;
  case N_GENERATION: resolve_function(r, n->fn, n->line); return;
  case N_BREAK:
  case N_CONTINUE:
    if (r->fn->loops == 0)
      td_template_fail(r->c, n->line, "'%s' outside loop", n->kind == N_BREAK ? "break" : "continue");
    return;
  case N_ATTR:
    n->row = td_builtin_find(METHOD_OF_ANY, n->text);
    resolve(r, n->a);
    return;
  case N_FILTER:
  case N_TEST:
    resolve_filter_or_test(r, n); /* then its children */
  /* fall through */
  default: resolve_children(r, n, false);
  }
}

function *td_scope_resolve(compiler *c, node *body)
{
  resolver r = {.c = c};
  function *root = td_template_alloc(c, 1, sizeof *root);
  root->name = (text){"root", 4};
  root->body = body;
  resolve_function(&r, root, 1);
  return root;
}
