/* Expressions: precedence climbing, so that one level of nesting costs few stack frames. Chains of one
 * precedence (a + b + c ...) become one node, not a deep tree. */
#include <string.h>

#include "models/template/ast.h"
#include "models/template/value.h"

static node *constant(compiler *c, value_type type, unsigned line)
{
  node *n = td_parse_new(c, N_CONST, line);
  n->constant = (uint8_t)type;
  return n;
}

static node *parse_unary(compiler *c, bool with_filter);
static node *parse_primary(compiler *c, bool with_namespace);

/* Adds an operator and its operand to a chain node. */
static void chain_add(compiler *c, node *chain, uint8_t op, node *operand)
{
  chain->ops = td_template_grow(c, chain->ops, chain->n_items, 1);
  chain->ops[chain->n_items] = op;
  td_parse_add(c, chain, operand);
}

static int math_level(token_type t)
{
  switch (t) {
  case T_ADD:
  case T_SUB: return 1;
  case T_TILDE: return 2;
  case T_MUL:
  case T_DIV:
  case T_FLOORDIV:
  case T_MOD: return 3;
  case T_POW: return 4;
  default: return 0;
  }
}

/* Level 1: + -, 2: ~, 3: * / // %, 4: **, 5: unary. ** is left-associative, as in the reference. */
static node *parse_math(compiler *c, int level)
{
  if (level == 5)
    return parse_unary(c, true);
  unsigned line = c->current.line;
  node *left = parse_math(c, level + 1), *chain = NULL;
  while (math_level(c->current.type) == level) {
    uint8_t op = (uint8_t)c->current.type;
    td_parse_advance(c);
    if (!chain) {
      chain = td_parse_new(c, level == 2 ? N_CONCAT : N_MATH, line);
      if (level == 2)
        chain_add(c, chain, T_TILDE, left);
      else
        chain->a = left;
    }
    chain_add(c, chain, op, parse_math(c, level + 1));
  }
  return chain ? td_parse_done(c, chain) : left;
}

static node *parse_compare(compiler *c)
{
  unsigned line = c->current.line;
  node *left = parse_math(c, 1), *chain = NULL;
  for (;;) {
    uint8_t op;
    token_type t = c->current.type;
    if (t >= T_EQ && t <= T_LE)
      op = (uint8_t)t;
    else if (td_parse_is_name(&c->current, "in"))
      op = OP_IN;
    else if (td_parse_is_name(&c->current, "not") && td_parse_is_name(td_parse_look(c), "in"))
      op = OP_NOT_IN;
    else
      return chain ? td_parse_done(c, chain) : left;
    if (op == OP_NOT_IN)
      td_parse_advance(c);
    td_parse_advance(c);
    if (!chain) {
      chain = td_parse_new(c, N_COMPARE, line);
      chain->a = left;
    }
    chain_add(c, chain, op, parse_math(c, 1));
  }
}

static node *parse_not(compiler *c)
{
  unsigned line = c->current.line;
  if (!td_parse_skip_name(c, "not"))
    return parse_compare(c);
  td_parse_deeper(c);
  node *n = td_parse_over(c, N_NOT, line, parse_not(c));
  c->depth--;
  return n;
}

static node *parse_logic(compiler *c, bool is_or)
{
  unsigned line = c->current.line;
  node *left = is_or ? parse_logic(c, false) : parse_not(c), *chain = NULL;
  while (td_parse_skip_name(c, is_or ? "or" : "and")) {
    if (!chain) {
      chain = td_parse_new(c, is_or ? N_OR : N_AND, line);
      td_parse_add(c, chain, left);
    }
    td_parse_add(c, chain, is_or ? parse_logic(c, false) : parse_not(c));
  }
  return chain ? td_parse_done(c, chain) : left;
}

node *td_parse_expression(compiler *c, bool with_condition)
{
  unsigned line = c->current.line;
  td_parse_deeper(c);
  node *n = parse_logic(c, true);
  while (with_condition && td_parse_skip_name(c, "if")) {
    node *cond = td_parse_new(c, N_COND, line);
    cond->a = n;
    cond->b = parse_logic(c, true);
    if (td_parse_skip_name(c, "else"))
      cond->c = td_parse_expression(c, true);
    n = td_parse_done(c, cond);
    line = c->current.line;
  }
  c->depth--;
  return n;
}

static bool tuple_ends(const compiler *c, const char *end_name)
{
  token_type t = c->current.type;
  return t == T_VAR_END || t == T_BLOCK_END || t == T_RPAREN ||
         (end_name && td_parse_is_name(&c->current, end_name));
}

node *td_parse_tuple(compiler *c, int how, const char *end_name)
{
  unsigned line = c->current.line;
  node **items = NULL;
  uint32_t n = 0;
  bool is_tuple = false;
  while (!tuple_ends(c, end_name)) {
    items = td_template_grow(c, items, n, sizeof *items);
    items[n++] = how & TUPLE_TARGET ? parse_primary(c, how & TUPLE_NAMESPACE)
                                    : td_parse_expression(c, how & TUPLE_CONDITION);
    if (!td_parse_skip(c, T_COMMA))
      break;
    is_tuple = true;
  }
  if (!is_tuple && n > 0)
    return items[0];
  if (!is_tuple && !(how & TUPLE_EMPTY))
    td_template_fail(c, c->current.line, "Expected an expression, got '%s'",
                     td_lexer_type_name(c->current.type));
  node *tuple = td_parse_new(c, N_TUPLE, line);
  tuple->items = items;
  tuple->n_items = n;
  return td_parse_done(c, tuple);
}

/* Parses [a, b] or {a: b, c: d}. */
static node *parse_display(compiler *c, node_kind kind, token_type close)
{
  node *n = td_parse_new(c, kind, c->current.line);
  td_parse_advance(c);
  while (c->current.type != close) {
    td_parse_add(c, n, td_parse_expression(c, true));
    if (kind == N_DICT) {
      td_parse_expect(c, T_COLON);
      td_parse_add(c, n, td_parse_expression(c, true));
    }
    if (c->current.type != close)
      td_parse_expect(c, T_COMMA);
  }
  td_parse_advance(c);
  return td_parse_done(c, n);
}

/* Parses adjacent strings: "a" "b" is one string. */
static node *parse_strings(compiler *c)
{
  node *n = constant(c, V_STR, c->current.line);
  n->text = c->current.s;
  td_parse_advance(c);
  size_t cap = 0;
  while (c->current.type == T_STRING) {
    text more = c->current.s;
    if (n->text.n + more.n > cap) {
      cap = 2 * (n->text.n + more.n);
      char *grown = td_template_alloc(c, cap, 1);
      memcpy(grown, n->text.p, n->text.n);
      n->text.p = grown;
    }
    if (more.n)
      memcpy((char *)(uintptr_t)n->text.p + n->text.n, more.p, more.n);
    n->text.n += more.n;
    td_parse_advance(c);
  }
  return n;
}

static node *parse_name(compiler *c, bool with_namespace)
{
  token t = c->current;
  td_parse_advance(c);
  if (text_in(t.s, "true True false False")) {
    node *n = constant(c, V_BOOL, t.line);
    n->i = text_in(t.s, "true True");
    return n;
  }
  if (text_in(t.s, "none None"))
    return constant(c, V_NONE, t.line);
  bool ns = with_namespace && td_parse_skip(c, T_DOT);
  node *n = td_parse_new(c, ns ? N_NSREF : N_NAME, t.line);
  n->text = t.s;
  if (ns)
    n->text2 = td_parse_expect(c, T_NAME).s;
  return n;
}

static node *parse_primary(compiler *c, bool with_namespace)
{
  token t = c->current;
  node *n;
  switch (t.type) {
  case T_NAME: return parse_name(c, with_namespace);
  case T_STRING: return parse_strings(c);
  case T_INT:
  case T_FLOAT:
    td_parse_advance(c);
    n = constant(c, t.type == T_INT ? V_INT : V_FLOAT, t.line);
    n->i = t.i;
    n->f = t.f;
    return n;
  case T_LPAREN:
    td_parse_advance(c);
    n = td_parse_tuple(c, TUPLE_CONDITION | TUPLE_EMPTY, NULL);
    td_parse_expect(c, T_RPAREN);
    return n;
  case T_LBRACKET: return parse_display(c, N_LIST, T_RBRACKET);
  case T_LBRACE: return parse_display(c, N_DICT, T_RBRACE);
  case T_EOF: td_template_fail(c, t.line, "unexpected end of template");
  default: td_template_fail(c, t.line, "unexpected '%s'", td_lexer_type_name(t.type));
  }
}

/* ---- calls, subscripts, filters, tests ---- */

static void keyword(compiler *c, node *n)
{
  text name = c->current.s;
  for (uint32_t i = 0; i < n->n_kw; i++)
    if (text_equal(n->kw_names[i], name))
      td_template_fail(c, c->current.line, "keyword argument repeated: %.*s", (int)name.n, name.p);
  if (n->n_kw >= 255)
    td_template_fail(c, c->current.line, "more than 255 keyword arguments");
  td_parse_advance(c);
  td_parse_advance(c);
  node *v = td_parse_expression(c, true);
  n->kw_names = td_template_grow(c, n->kw_names, n->n_kw, sizeof *n->kw_names);
  n->kw_values = td_template_grow(c, n->kw_values, n->n_kw, sizeof *n->kw_values);
  n->kw_names[n->n_kw] = name;
  n->kw_values[n->n_kw++] = v;
}

/* Parses (a, b, *c, k=d, **e) into n. Returns n, complete. */
static node *parse_args(compiler *c, node *n)
{
  unsigned line = td_parse_expect(c, T_LPAREN).line;
  bool ok = true;
  while (c->current.type != T_RPAREN) {
    if (td_parse_skip(c, T_MUL)) {
      ok = !n->dyn_args && !n->dyn_kwargs;
      n->dyn_args = td_parse_expression(c, true);
    } else if (td_parse_skip(c, T_POW)) {
      ok = !n->dyn_kwargs;
      n->dyn_kwargs = td_parse_expression(c, true);
    } else if (c->current.type == T_NAME && td_parse_look(c)->type == T_ASSIGN) {
      ok = !n->dyn_kwargs;
      keyword(c, n);
    } else {
      ok = !n->dyn_args && !n->dyn_kwargs && n->n_kw == 0;
      td_parse_add(c, n, td_parse_expression(c, true));
    }
    if (!ok)
      td_template_fail(c, line, "invalid syntax for function call expression");
    if (c->current.type != T_RPAREN)
      td_parse_expect(c, T_COMMA);
  }
  td_parse_advance(c);
  return td_parse_done(c, n);
}

static node *parse_call(compiler *c, node *of)
{
  return parse_args(c, td_parse_over(c, N_CALL, c->current.line, of));
}

/* Parses one index of [a, b:c]; the result is an N_SLICE if it is a slice. */
static node *parse_subscribed(compiler *c)
{
  unsigned line = c->current.line;
  node *parts[3] = {NULL, NULL, NULL};
  if (c->current.type != T_COLON) {
    parts[0] = td_parse_expression(c, true);
    if (c->current.type != T_COLON)
      return parts[0];
  }
  td_parse_advance(c);
  if (c->current.type != T_COLON && c->current.type != T_RBRACKET && c->current.type != T_COMMA)
    parts[1] = td_parse_expression(c, true);
  if (td_parse_skip(c, T_COLON) && c->current.type != T_RBRACKET && c->current.type != T_COMMA)
    parts[2] = td_parse_expression(c, true);
  node *n = td_parse_new(c, N_SLICE, line);
  for (int i = 0; i < 3; i++)
    td_parse_add(c, n, parts[i]);
  return td_parse_done(c, n);
}

/* Parses [a] or [a, b]. A slice is only allowed alone. */
static node *parse_index(compiler *c, unsigned line)
{
  if (c->current.type == T_RBRACKET)
    td_template_fail(c, line, "expected subscript expression");
  node *index = parse_subscribed(c);
  if (c->current.type != T_COMMA)
    return index;
  node *tuple = td_parse_new(c, N_TUPLE, line);
  td_parse_add(c, tuple, index);
  while (c->current.type != T_RBRACKET) {
    td_parse_expect(c, T_COMMA);
    td_parse_add(c, tuple, parse_subscribed(c));
  }
  for (uint32_t i = 0; i < tuple->n_items; i++)
    if (tuple->items[i]->kind == N_SLICE)
      td_template_fail(c, line, "slices in a tuple index are not served");
  return td_parse_done(c, tuple);
}

static node *parse_subscript(compiler *c, node *of)
{
  token t = c->current;
  td_parse_advance(c);
  node *n = td_parse_over(c, N_ITEM, t.line, of);
  if (t.type == T_DOT) {
    token attr = c->current;
    td_parse_advance(c);
    if (attr.type == T_NAME) {
      n->kind = N_ATTR;
      n->text = attr.s;
    } else if (attr.type == T_INT) {
      n->b = constant(c, V_INT, attr.line);
      n->b->i = attr.i;
    } else {
      td_template_fail(c, attr.line, "expected name or number");
    }
    return n;
  }
  node *index = parse_index(c, t.line);
  td_parse_expect(c, T_RBRACKET);
  n->b = index;
  td_parse_done(c, n);
  if (index->kind == N_SLICE) {
    n->kind = N_SLICE;
    n->items = index->items;
    n->n_items = index->n_items;
    n->b = NULL;
  }
  return n;
}

static text dotted_name(compiler *c)
{
  text name = td_parse_expect(c, T_NAME).s;
  if (c->current.type == T_DOT)
    td_template_fail(c, c->current.line, "filters and tests with dots in their name are not served");
  return name;
}

node *td_parse_filters(compiler *c, node *of, bool started)
{
  while (started || c->current.type == T_PIPE) {
    if (!started)
      td_parse_advance(c);
    started = false;
    node *n = td_parse_over(c, N_FILTER, c->current.line, of);
    n->text = dotted_name(c);
    if (c->current.type == T_LPAREN)
      parse_args(c, n);
    of = n;
  }
  return of;
}

static node *parse_postfix(compiler *c, node *n)
{
  for (;;) {
    if (c->current.type == T_DOT || c->current.type == T_LBRACKET)
      n = parse_subscript(c, n);
    else if (c->current.type == T_LPAREN)
      n = parse_call(c, n);
    else
      return n;
  }
}

static bool test_argument_follows(const token *t)
{
  switch (t->type) {
  case T_NAME: return !text_in(t->s, "else or and");
  case T_STRING:
  case T_INT:
  case T_FLOAT:
  case T_LBRACKET:
  case T_LBRACE: return true;
  default: return false;
  }
}

static node *parse_test(compiler *c, node *of)
{
  unsigned line = c->current.line;
  td_parse_advance(c);
  bool negated = td_parse_skip_name(c, "not");
  node *n = td_parse_over(c, N_TEST, line, of);
  n->text = dotted_name(c);
  if (c->current.type == T_LPAREN) {
    parse_args(c, n);
  } else if (test_argument_follows(&c->current)) {
    if (td_parse_is_name(&c->current, "is"))
      td_template_fail(c, line, "You cannot chain multiple tests with is");
    td_parse_deeper(c);
    td_parse_add(c, n, parse_postfix(c, parse_primary(c, false)));
    c->depth--;
    td_parse_done(c, n);
  }
  return negated ? td_parse_over(c, N_NOT, line, n) : n;
}

static node *parse_unary(compiler *c, bool with_filter)
{
  node *n;
  unsigned line = c->current.line;
  token_type t = c->current.type;
  if (t == T_SUB || t == T_ADD) {
    td_parse_deeper(c);
    td_parse_advance(c);
    n = td_parse_over(c, t == T_SUB ? N_NEG : N_POS, line, parse_unary(c, false));
    c->depth--;
  } else {
    n = parse_primary(c, false);
  }
  n = parse_postfix(c, n);
  while (with_filter) {
    if (c->current.type == T_PIPE)
      n = td_parse_filters(c, n, false);
    else if (td_parse_is_name(&c->current, "is"))
      n = parse_test(c, n);
    else if (c->current.type == T_LPAREN)
      n = parse_call(c, n);
    else
      break;
  }
  return n;
}
