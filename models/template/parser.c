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

void *td_template_grow(compiler *c, void *items, size_t n, size_t size)
{
  if (n > 0 && (n < 4 || (n & (n - 1)) != 0)) /* the array's capacity is a power of two, and not full */
    return items;
  void *grown = td_template_alloc(c, n ? 2 * n : 4, size);
  return n ? memcpy(grown, items, n * size) : grown;
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

static void adopt(compiler *c, node *parent, const node *child)
{
  if (!child || child->height < parent->height)
    return;
  if (child->height >= td_limit_max(TD_LIMIT_TEMPLATE_DEPTH))
    td_template_fail(c, parent->line, "nested too deeply");
  parent->height = (uint16_t)(child->height + 1);
}

node *td_parse_done(compiler *c, node *n)
{
  for (uint32_t i = 0; i < td_node_children(n); i++)
    adopt(c, n, td_node_child(n, i));
  for (uint32_t i = 0; n->fn && i < n->fn->n_defaults; i++)
    adopt(c, n, n->fn->defaults[i]);
  if (n->fn)
    adopt(c, n, n->fn->body);
  return n;
}

node *td_parse_over(compiler *c, node_kind kind, unsigned line, node *a)
{
  node *n = td_parse_new(c, kind, line);
  n->a = a;
  return td_parse_done(c, n);
}

void td_parse_add(compiler *c, node *n, node *item)
{
  n->items = td_template_grow(c, n->items, n->n_items, sizeof *n->items);
  n->items[n->n_items++] = item;
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

/* ---- assignment targets ---- */

static bool assignable(const node *n)
{
  if (n->kind == N_NSREF)
    return true;
  if (n->kind == N_NAME)
    return !text_in(n->text, "true false none");
  if (n->kind != N_TUPLE)
    return false;
  for (uint32_t i = 0; i < n->n_items; i++)
    if (!assignable(n->items[i]))
      return false;
  return true;
}

static node *name_target(compiler *c)
{
  token t = td_parse_expect(c, T_NAME);
  node *n = td_parse_new(c, N_NAME, t.line);
  n->text = t.s;
  if (!assignable(n))
    td_template_fail(c, t.line, "can't assign to this name");
  return n;
}

/* Parses name, ns.name, or a tuple of them. */
static node *target(compiler *c, const char *end_name, int how)
{
  unsigned line = c->current.line;
  node *n = td_parse_tuple(c, TUPLE_TARGET | how, end_name);
  if (!assignable(n))
    td_template_fail(c, line, "can't assign to this expression");
  return n;
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

/* Parses `%} ... {% end` and leaves the parser at the end tag's name. */
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

static node *parse_set(compiler *c, unsigned line)
{
  node *to = target(c, NULL, TUPLE_NAMESPACE);
  bool block = !td_parse_skip(c, T_ASSIGN);
  node *n = td_parse_new(c, block ? N_SETBLOCK : N_SET, line);
  n->a = to;
  n->c = block ? td_parse_filters(c, NULL, false) : NULL;
  n->b = block ? statements_until(c, "endset") : td_parse_tuple(c, TUPLE_CONDITION, NULL);
  return n;
}

static node *parse_for(compiler *c, unsigned line)
{
  static const char *const ends[] = {"endfor", "else", NULL};
  node *n = td_parse_new(c, N_FOR, line);
  n->a = target(c, "in", 0);
  if (!td_parse_skip_name(c, "in"))
    td_template_fail(c, c->current.line, "expected token 'in'");
  n->b = td_parse_tuple(c, 0, "recursive");
  if (td_parse_skip_name(c, "if"))
    n->c = td_parse_expression(c, true);
  if (td_parse_is_name(&c->current, "recursive"))
    td_template_fail(c, c->current.line, "recursive loops are not served");
  td_parse_add(c, n, statements(c, ends));
  bool has_else = td_parse_is_name(&c->current, "else");
  td_parse_advance(c);
  td_parse_add(c, n, has_else ? statements_until(c, "endfor") : NULL);
  return n;
}

static node *parse_if(compiler *c, unsigned line)
{
  static const char *const ends[] = {"elif", "else", "endif", NULL};
  node *n = td_parse_new(c, N_IF, line);
  do {
    td_parse_add(c, n, td_parse_tuple(c, 0, NULL));
    td_parse_add(c, n, statements(c, ends));
  } while (td_parse_skip_name(c, "elif"));
  if (td_parse_skip_name(c, "else"))
    n->a = statements_until(c, "endif");
  else
    td_parse_advance(c);
  return n;
}

static node *parse_with(compiler *c, unsigned line)
{
  node *n = td_parse_new(c, N_WITH, line);
  while (c->current.type != T_BLOCK_END) {
    if (n->n_items > 0)
      td_parse_expect(c, T_COMMA);
    td_parse_add(c, n, target(c, NULL, 0));
    td_parse_expect(c, T_ASSIGN);
    td_parse_add(c, n, td_parse_expression(c, true));
  }
  n->a = statements_until(c, "endwith");
  return n;
}

/* Parses (a, b=default). */
static void signature(compiler *c, function *fn)
{
  td_parse_expect(c, T_LPAREN);
  while (c->current.type != T_RPAREN) {
    if (fn->n_params > 0)
      td_parse_expect(c, T_COMMA);
    node *param = name_target(c);
    for (uint32_t i = 0; i < fn->n_params; i++)
      if (text_equal(fn->params[i], param->text))
        td_template_fail(c, param->line, "duplicate argument '%.*s'", (int)param->text.n, param->text.p);
    if (fn->n_params >= 255)
      td_template_fail(c, param->line, "more than 255 arguments");
    if (td_parse_skip(c, T_ASSIGN)) {
      fn->defaults = td_template_grow(c, fn->defaults, fn->n_defaults, sizeof *fn->defaults);
      fn->defaults[fn->n_defaults++] = td_parse_expression(c, true);
    } else if (fn->n_defaults > 0) {
      td_template_fail(c, param->line, "non-default argument follows default argument");
    }
    fn->params = td_template_grow(c, fn->params, fn->n_params, sizeof *fn->params);
    fn->params[fn->n_params++] = param->text;
  }
  td_parse_expect(c, T_RPAREN);
  fn->param_slots = td_template_alloc(c, fn->n_params, sizeof *fn->param_slots);
}

/* A node with a function: a macro or, if name is NULL, the body of a block. */
static node *new_function(compiler *c, node_kind kind, unsigned line, node *name)
{
  node *n = td_parse_new(c, kind, line);
  n->a = name;
  n->fn = td_template_alloc(c, 1, sizeof *n->fn);
  n->fn->name = name ? name->text : (text){"None", 4};
  n->fn->anonymous = !name;
  return n;
}

static node *parse_macro(compiler *c, unsigned line)
{
  node *n = new_function(c, N_MACRO, line, name_target(c));
  signature(c, n->fn);
  n->fn->body = statements_until(c, "endmacro");
  return n;
}

static node *parse_call_block(compiler *c, unsigned line)
{
  node *n = new_function(c, N_CALLBLOCK, line, NULL);
  if (c->current.type == T_LPAREN)
    signature(c, n->fn);
  n->a = td_parse_expression(c, true);
  if (n->a->kind != N_CALL)
    td_template_fail(c, line, "expected call");
  n->fn->body = statements_until(c, "endcall");
  return n;
}

static node *parse_generation(compiler *c, unsigned line)
{
  node *n = new_function(c, N_GENERATION, line, NULL);
  n->fn->body = statements_until(c, "endgeneration");
  return n;
}

static node *parse_filter_block(compiler *c, unsigned line)
{
  node *n = td_parse_new(c, N_FILTERBLOCK, line);
  n->a = td_parse_filters(c, NULL, true);
  n->b = statements_until(c, "endfilter");
  return n;
}

static node *parse_print(compiler *c, unsigned line)
{
  node *n = td_parse_new(c, N_BODY, line);
  while (c->current.type != T_BLOCK_END) {
    if (n->n_items > 0)
      td_parse_expect(c, T_COMMA);
    td_parse_add(c, n, td_parse_over(c, N_PRINT, line, td_parse_expression(c, true)));
  }
  return n;
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
    return td_parse_done(c, tags[i].parse(c, t.line));
  }
  if (text_is(t.s, "break") || text_is(t.s, "continue")) {
    td_parse_advance(c);
    return td_parse_new(c, text_is(t.s, "break") ? N_BREAK : N_CONTINUE, t.line);
  }
  if (text_in(t.s, "block extends include from import autoescape"))
    td_template_fail(c, t.line, "the tag '%.*s' is not served", text_shown(t.s), t.s.p);
  td_template_fail(c, t.line, "Encountered unknown tag '%.*s'.", (int)t.s.n, t.s.p);
}

static node *subparse(compiler *c, const char *const *ends)
{
  td_parse_deeper(c);
  node *body = td_parse_new(c, N_BODY, c->current.line), *n;
  while (c->current.type != T_EOF) {
    token t = c->current;
    td_parse_advance(c);
    if (t.type == T_DATA) {
      if (t.s.n == 0)
        continue;
      n = td_parse_new(c, N_DATA, t.line);
      n->text = t.s;
    } else if (t.type == T_VAR_BEGIN) {
      n = td_parse_over(c, N_PRINT, t.line, td_parse_tuple(c, TUPLE_CONDITION, NULL));
      td_parse_expect(c, T_VAR_END);
    } else {
      if (at_end_tag(c, ends))
        break;
      n = statement(c);
      td_parse_expect(c, T_BLOCK_END);
    }
    td_parse_add(c, body, n);
  }
  c->depth--;
  return td_parse_done(c, body);
}

node *td_parse_template(compiler *c) { return subparse(c, NULL); }
