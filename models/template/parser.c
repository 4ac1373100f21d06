/* Statements of the template language: recursive descent, one token of lookahead, no backtracking. */
#include <stdio.h>
#include <string.h>

#include "config/limits.h"
#include "models/template/ast.h"

void td_template_fail(compiler *c, unsigned line, const char *fmt, ...)
{
  char message[TD_ERROR_MESSAGE_BYTES];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(message, sizeof message, fmt, ap);
  va_end(ap);
  td_fail(c->err, TD_ERR_MODEL, "chat template, line %u: %s", line, message);
  longjmp(c->fail, 1);
}

void *td_template_alloc(compiler *c, size_t count, size_t size)
{
  void *p = td_arena_alloc_array(c->arena, count, size);
  if (!p) {
    td_fail(c->err, TD_ERR_NOMEM, "no memory for the chat template");
    longjmp(c->fail, 1);
  }
  return p;
}

node *td_parse_new(compiler *c, node_kind kind, unsigned line)
{
  if (++c->n_nodes > td_limit_max(TD_LIMIT_TEMPLATE_NODES))
    td_template_fail(c, line, "more than %zu nodes", (size_t)td_limit_max(TD_LIMIT_TEMPLATE_NODES));
  node *n = td_template_alloc(c, 1, sizeof *n);
  n->kind = (uint8_t)kind;
  n->line = line;
  n->height = 1;
  return n;
}

void td_parse_adopt(compiler *c, node *parent, const node *child)
{
  if (!child || child->height < parent->height)
    return;
  if (child->height >= td_limit_max(TD_LIMIT_TEMPLATE_DEPTH))
    td_template_fail(c, parent->line, "nested too deeply");
  parent->height = (uint16_t)(child->height + 1);
}

void td_parse_advance(compiler *c)
{
  c->current = c->has_peeked ? c->peeked : td_lexer_next(c);
  c->has_peeked = false;
}

const token *td_parse_look(compiler *c)
{
  if (!c->has_peeked) {
    c->peeked = td_lexer_next(c);
    c->has_peeked = true;
  }
  return &c->peeked;
}

bool td_parse_is_name(const token *t, const char *name) { return t->type == T_NAME && text_is(t->s, name); }

bool td_parse_skip_name(compiler *c, const char *name)
{
  if (!td_parse_is_name(&c->current, name))
    return false;
  td_parse_advance(c);
  return true;
}

bool td_parse_skip(compiler *c, token_type type)
{
  if (c->current.type != type)
    return false;
  td_parse_advance(c);
  return true;
}

token td_parse_expect(compiler *c, token_type type)
{
  token t = c->current;
  if (t.type != type) {
    if (t.type == T_EOF)
      td_template_fail(c, t.line, "unexpected end of template, expected '%s'.", td_lexer_type_name(type));
    td_template_fail(c, t.line, "expected token '%s', got '%.*s'", td_lexer_type_name(type),
                     t.type == T_NAME ? (int)t.s.n : 64,
                     t.type == T_NAME ? t.s.p : td_lexer_type_name(t.type));
  }
  td_parse_advance(c);
  return t;
}

void td_parse_deeper(compiler *c)
{
  if (++c->depth > td_limit_max(TD_LIMIT_TEMPLATE_DEPTH))
    td_template_fail(c, c->current.line, "nested too deeply");
}

void td_parse_push(compiler *c, node ***items, uint32_t *n, uint32_t *cap, node *item)
{
  if (*n == *cap) {
    uint32_t wanted = *cap ? *cap * 2 : 4;
    node **grown = td_template_alloc(c, wanted, sizeof *grown);
    if (*n)
      memcpy(grown, *items, *n * sizeof *grown);
    *items = grown;
    *cap = wanted;
  }
  (*items)[(*n)++] = item;
}

static void expect_name(compiler *c, const char *name)
{
  if (!td_parse_skip_name(c, name))
    td_template_fail(c, c->current.line, "expected token '%s'", name);
}

/* ---- assignment targets ---- */

static node *name_target(compiler *c)
{
  token t = td_parse_expect(c, T_NAME);
  node *n = td_parse_new(c, N_NAME, t.line);
  n->text = t.s;
  return n;
}

static bool assignable(const node *n)
{
  if (n->kind == N_NSREF)
    return true;
  if (n->kind == N_NAME)
    return !text_is(n->text, "true") && !text_is(n->text, "false") && !text_is(n->text, "none");
  if (n->kind != N_TUPLE)
    return false;
  for (uint32_t i = 0; i < n->n_items; i++)
    if (!assignable(n->items[i]))
      return false;
  return true;
}

static bool tuple_ends(const compiler *c, const char *end_name)
{
  token_type t = c->current.type;
  return t == T_VAR_END || t == T_BLOCK_END || t == T_RPAREN ||
         (end_name && td_parse_is_name(&c->current, end_name));
}

/* name, ns.name, or a tuple of them */
static node *target(compiler *c, const char *end_name, bool with_namespace)
{
  unsigned line = c->current.line;
  node **items = NULL, *result;
  uint32_t n = 0, cap = 0;
  bool is_tuple = false;
  for (;;) {
    if (n > 0)
      td_parse_expect(c, T_COMMA);
    if (tuple_ends(c, end_name))
      break;
    td_parse_push(c, &items, &n, &cap, td_parse_primary(c, with_namespace));
    if (c->current.type != T_COMMA)
      break;
    is_tuple = true;
  }
  if (n == 0)
    td_template_fail(c, line, "Expected an expression");
  result = items[0];
  if (is_tuple) {
    result = td_parse_new(c, N_TUPLE, line);
    result->items = items;
    result->n_items = n;
    for (uint32_t i = 0; i < n; i++)
      td_parse_adopt(c, result, items[i]);
  }
  if (!assignable(result))
    td_template_fail(c, line, "can't assign to this expression");
  return result;
}

/* ---- bodies ---- */

static node *subparse(compiler *c, const char *const *ends);

static bool at_end_tag(const compiler *c, const char *const *ends)
{
  for (; ends && *ends; ends++)
    if (td_parse_is_name(&c->current, *ends))
      return true;
  return false;
}

/* `%} ... {% end`, leaving the parser at the end tag's name. */
static node *statements(compiler *c, const char *const *ends)
{
  td_parse_skip(c, T_COLON);
  td_parse_expect(c, T_BLOCK_END);
  node *body = subparse(c, ends);
  if (c->current.type == T_EOF)
    td_template_fail(c, c->current.line,
                     "Unexpected end of template. Jinja was looking for the following tags: '%s'.", ends[0]);
  return body;
}

static node *statements_until(compiler *c, const char *end)
{
  const char *ends[] = {end, NULL};
  node *body = statements(c, ends);
  td_parse_advance(c);
  return body;
}

static node *adopt3(compiler *c, node *n)
{
  td_parse_adopt(c, n, n->a);
  td_parse_adopt(c, n, n->b);
  td_parse_adopt(c, n, n->c);
  for (uint32_t i = 0; i < n->n_items; i++)
    td_parse_adopt(c, n, n->items[i]);
  return n;
}

static node *parse_set(compiler *c, unsigned line)
{
  node *to = target(c, NULL, true);
  if (td_parse_skip(c, T_ASSIGN)) {
    node *n = td_parse_new(c, N_SET, line);
    n->a = to;
    n->b = td_parse_tuple(c, true, NULL, false);
    return adopt3(c, n);
  }
  node *n = td_parse_new(c, N_SETBLOCK, line);
  n->a = to;
  n->c = td_parse_filters(c, NULL, false);
  n->b = statements_until(c, "endset");
  return adopt3(c, n);
}

static node *parse_for(compiler *c, unsigned line)
{
  static const char *const ends[] = {"endfor", "else", NULL};
  node *n = td_parse_new(c, N_FOR, line);
  n->a = target(c, "in", false);
  expect_name(c, "in");
  n->b = td_parse_tuple(c, false, "recursive", false);
  if (td_parse_skip_name(c, "if"))
    n->c = td_parse_expression(c, true);
  if (td_parse_is_name(&c->current, "recursive"))
    td_template_fail(c, c->current.line, "recursive loops are not served");
  n->items = td_template_alloc(c, 2, sizeof *n->items);
  n->items[0] = statements(c, ends);
  bool has_else = td_parse_is_name(&c->current, "else");
  td_parse_advance(c);
  n->items[1] = has_else ? statements_until(c, "endfor") : NULL;
  n->n_items = 2;
  return adopt3(c, n);
}

static node *parse_if(compiler *c, unsigned line)
{
  static const char *const ends[] = {"elif", "else", "endif", NULL};
  node *n = td_parse_new(c, N_IF, line);
  uint32_t cap = 0;
  for (;;) {
    td_parse_push(c, &n->items, &n->n_items, &cap, td_parse_tuple(c, false, NULL, false));
    td_parse_push(c, &n->items, &n->n_items, &cap, statements(c, ends));
    if (td_parse_skip_name(c, "elif"))
      continue;
    if (td_parse_skip_name(c, "else"))
      n->a = statements_until(c, "endif");
    else
      td_parse_advance(c);
    return adopt3(c, n);
  }
}

static node *parse_with(compiler *c, unsigned line)
{
  node *n = td_parse_new(c, N_WITH, line);
  uint32_t cap = 0;
  while (c->current.type != T_BLOCK_END) {
    if (n->n_items > 0)
      td_parse_expect(c, T_COMMA);
    td_parse_push(c, &n->items, &n->n_items, &cap, target(c, NULL, false));
    td_parse_expect(c, T_ASSIGN);
    td_parse_push(c, &n->items, &n->n_items, &cap, td_parse_expression(c, true));
  }
  n->a = statements_until(c, "endwith");
  return adopt3(c, n);
}

/* (a, b=default) */
static void signature(compiler *c, function *fn)
{
  node **params = NULL;
  uint32_t cap = 0, cap_defaults = 0;
  td_parse_expect(c, T_LPAREN);
  while (c->current.type != T_RPAREN) {
    if (fn->n_params > 0)
      td_parse_expect(c, T_COMMA);
    node *param = name_target(c);
    if (!assignable(param))
      td_template_fail(c, param->line, "can't assign to this name");
    for (uint32_t i = 0; i < fn->n_params; i++)
      if (text_equal(params[i]->text, param->text))
        td_template_fail(c, param->line, "duplicate argument '%.*s'", (int)param->text.n, param->text.p);
    if (fn->n_params >= 255)
      td_template_fail(c, param->line, "more than 255 arguments");
    if (td_parse_skip(c, T_ASSIGN))
      td_parse_push(c, &fn->defaults, &fn->n_defaults, &cap_defaults, td_parse_expression(c, true));
    else if (fn->n_defaults > 0)
      td_template_fail(c, param->line, "non-default argument follows default argument");
    td_parse_push(c, &params, &fn->n_params, &cap, param);
  }
  td_parse_expect(c, T_RPAREN);
  fn->params = td_template_alloc(c, fn->n_params, sizeof *fn->params);
  fn->param_slots = td_template_alloc(c, fn->n_params, sizeof *fn->param_slots);
  for (uint32_t i = 0; i < fn->n_params; i++)
    fn->params[i] = params[i]->text;
}

static void adopt_function(compiler *c, node *n)
{
  for (uint32_t i = 0; i < n->fn->n_defaults; i++)
    td_parse_adopt(c, n, n->fn->defaults[i]);
  td_parse_adopt(c, n, n->fn->body);
}

static node *parse_macro(compiler *c, unsigned line)
{
  node *n = td_parse_new(c, N_MACRO, line);
  n->a = name_target(c);
  if (!assignable(n->a))
    td_template_fail(c, line, "can't assign to this name");
  n->fn = td_template_alloc(c, 1, sizeof *n->fn);
  n->fn->name = n->a->text;
  signature(c, n->fn);
  n->fn->body = statements_until(c, "endmacro");
  adopt_function(c, n);
  return n;
}

static node *parse_call_block(compiler *c, unsigned line)
{
  node *n = td_parse_new(c, N_CALLBLOCK, line);
  n->fn = td_template_alloc(c, 1, sizeof *n->fn);
  n->fn->name = (text){"None", 4};
  n->fn->anonymous = true;
  if (c->current.type == T_LPAREN)
    signature(c, n->fn);
  n->a = td_parse_expression(c, true);
  if (n->a->kind != N_CALL)
    td_template_fail(c, line, "expected call");
  n->fn->body = statements_until(c, "endcall");
  adopt_function(c, n);
  return adopt3(c, n);
}

static node *parse_generation(compiler *c, unsigned line)
{
  node *n = td_parse_new(c, N_GENERATION, line);
  n->fn = td_template_alloc(c, 1, sizeof *n->fn);
  n->fn->name = (text){"None", 4};
  n->fn->anonymous = true;
  n->fn->body = statements_until(c, "endgeneration");
  adopt_function(c, n);
  return n;
}

static node *parse_filter_block(compiler *c, unsigned line)
{
  node *n = td_parse_new(c, N_FILTERBLOCK, line);
  n->a = td_parse_filters(c, NULL, true);
  n->b = statements_until(c, "endfilter");
  return adopt3(c, n);
}

static node *parse_print(compiler *c, unsigned line)
{
  node *n = td_parse_new(c, N_BODY, line);
  uint32_t cap = 0;
  while (c->current.type != T_BLOCK_END) {
    if (n->n_items > 0)
      td_parse_expect(c, T_COMMA);
    node *print = td_parse_new(c, N_PRINT, line);
    print->a = td_parse_expression(c, true);
    td_parse_push(c, &n->items, &n->n_items, &cap, adopt3(c, print));
  }
  return adopt3(c, n);
}

static node *statement(compiler *c)
{
  static const struct {
    const char *name;
    node *(*parse)(compiler *, unsigned);
  } tags[] = {
      {"for", parse_for},     {"if", parse_if},           {"set", parse_set},
      {"macro", parse_macro}, {"call", parse_call_block}, {"filter", parse_filter_block},
      {"with", parse_with},   {"print", parse_print},     {"generation", parse_generation},
  };
  token t = c->current;
  if (t.type != T_NAME)
    td_template_fail(c, t.line, "tag name expected");
  for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
    if (!text_is(t.s, tags[i].name))
      continue;
    td_parse_advance(c);
    return tags[i].parse(c, t.line);
  }
  if (text_is(t.s, "break") || text_is(t.s, "continue")) {
    td_parse_advance(c);
    return td_parse_new(c, text_is(t.s, "break") ? N_BREAK : N_CONTINUE, t.line);
  }
  static const char *const not_served[] = {"block", "extends", "include", "from", "import", "autoescape"};
  for (size_t i = 0; i < sizeof not_served / sizeof *not_served; i++)
    if (text_is(t.s, not_served[i]))
      td_template_fail(c, t.line, "the tag '%s' is not served", not_served[i]);
  td_template_fail(c, t.line, "Encountered unknown tag '%.*s'.", (int)t.s.n, t.s.p);
}

static node *subparse(compiler *c, const char *const *ends)
{
  td_parse_deeper(c);
  node *body = td_parse_new(c, N_BODY, c->current.line), *n;
  uint32_t cap = 0;
  while (c->current.type != T_EOF) {
    token t = c->current;
    td_parse_advance(c);
    if (t.type == T_DATA) {
      if (t.s.n == 0)
        continue;
      n = td_parse_new(c, N_DATA, t.line);
      n->text = t.s;
    } else if (t.type == T_VAR_BEGIN) {
      n = td_parse_new(c, N_PRINT, t.line);
      n->a = td_parse_tuple(c, true, NULL, false);
      td_parse_adopt(c, n, n->a);
      td_parse_expect(c, T_VAR_END);
    } else {
      if (at_end_tag(c, ends))
        break;
      n = statement(c);
      td_parse_expect(c, T_BLOCK_END);
    }
    td_parse_push(c, &body->items, &body->n_items, &cap, n);
    td_parse_adopt(c, body, n);
  }
  c->depth--;
  return body;
}

node *td_parse_template(compiler *c) { return subparse(c, NULL); }
