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

/* Adds an operand to a chain node. */
static void chain_push(compiler *c, node *chain, uint32_t *cap, uint8_t op, node *operand)
{
  if (chain->n_items == *cap || !chain->ops) {
    uint32_t room = *cap ? *cap * 2 : 4;
    uint8_t *ops = td_template_alloc(c, room, 1);
    if (chain->n_items)
      memcpy(ops, chain->ops, chain->n_items);
    chain->ops = ops;
  }
  td_parse_push(c, &chain->items, &chain->n_items, cap, operand);
  chain->ops[chain->n_items - 1] = op;
  td_parse_adopt(c, chain, operand);
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

/* level 1: + -, 2: ~, 3: * / // %, 4: **, 5: unary. ** is left-associative, as in the reference. */
static node *parse_math(compiler *c, int level)
{
  if (level == 5)
    return parse_unary(c, true);
  unsigned line = c->current.line;
  node *left = parse_math(c, level + 1), *chain = NULL;
  uint32_t cap = 0;
  while (math_level(c->current.type) == level) {
    uint8_t op = (uint8_t)c->current.type;
    td_parse_advance(c);
    if (!chain) {
      chain = td_parse_new(c, level == 2 ? N_CONCAT : N_MATH, line);
      if (level == 2) {
        chain_push(c, chain, &cap, T_TILDE, left);
      } else {
        chain->a = left;
        td_parse_adopt(c, chain, left);
      }
    }
    chain_push(c, chain, &cap, op, parse_math(c, level + 1));
  }
  return chain ? chain : left;
}

static node *parse_compare(compiler *c)
{
  unsigned line = c->current.line;
  node *left = parse_math(c, 1), *chain = NULL;
  uint32_t cap = 0;
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
      return chain ? chain : left;
    if (op == OP_NOT_IN)
      td_parse_advance(c);
    td_parse_advance(c);
    if (!chain) {
      chain = td_parse_new(c, N_COMPARE, line);
      chain->a = left;
      td_parse_adopt(c, chain, left);
    }
    chain_push(c, chain, &cap, op, parse_math(c, 1));
  }
}

static node *parse_not(compiler *c)
{
  unsigned line = c->current.line;
  if (!td_parse_skip_name(c, "not"))
    return parse_compare(c);
  td_parse_deeper(c);
  node *n = td_parse_new(c, N_NOT, line);
  n->a = parse_not(c);
  td_parse_adopt(c, n, n->a);
  c->depth--;
  return n;
}

static node *parse_logic(compiler *c, bool is_or)
{
  unsigned line = c->current.line;
  node *left = is_or ? parse_logic(c, false) : parse_not(c), *chain = NULL;
  uint32_t cap = 0;
  while (td_parse_skip_name(c, is_or ? "or" : "and")) {
    if (!chain) {
      chain = td_parse_new(c, is_or ? N_OR : N_AND, line);
      chain_push(c, chain, &cap, 0, left);
    }
    chain_push(c, chain, &cap, 0, is_or ? parse_logic(c, false) : parse_not(c));
  }
  return chain ? chain : left;
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
    td_parse_adopt(c, cond, cond->a);
    td_parse_adopt(c, cond, cond->b);
    td_parse_adopt(c, cond, cond->c);
    n = cond;
    line = c->current.line;
  }
  c->depth--;
  return n;
}

node *td_parse_tuple(compiler *c, bool with_condition, const char *end_name, bool parenthesised)
{
  unsigned line = c->current.line;
  node **items = NULL;
  uint32_t n = 0, cap = 0;
  bool is_tuple = false;
  for (;;) {
    if (n > 0)
      td_parse_expect(c, T_COMMA);
    token_type t = c->current.type;
    if (t == T_VAR_END || t == T_BLOCK_END || t == T_RPAREN ||
        (end_name && td_parse_is_name(&c->current, end_name)))
      break;
    td_parse_push(c, &items, &n, &cap, td_parse_expression(c, with_condition));
    if (c->current.type != T_COMMA)
      break;
    is_tuple = true;
  }
  if (!is_tuple && n > 0)
    return items[0];
  if (!is_tuple && !parenthesised)
    td_template_fail(c, c->current.line, "Expected an expression, got '%s'",
                     td_lexer_type_name(c->current.type));
  node *tuple = td_parse_new(c, N_TUPLE, line);
  tuple->items = items;
  tuple->n_items = n;
  for (uint32_t i = 0; i < n; i++)
    td_parse_adopt(c, tuple, items[i]);
  return tuple;
}

static node *parse_list(compiler *c)
{
  node *n = td_parse_new(c, N_LIST, td_parse_expect(c, T_LBRACKET).line);
  uint32_t cap = 0;
  while (c->current.type != T_RBRACKET) {
    if (n->n_items > 0)
      td_parse_expect(c, T_COMMA);
    if (c->current.type == T_RBRACKET)
      break;
    node *item = td_parse_expression(c, true);
    td_parse_push(c, &n->items, &n->n_items, &cap, item);
    td_parse_adopt(c, n, item);
  }
  td_parse_expect(c, T_RBRACKET);
  return n;
}

static node *parse_dict(compiler *c)
{
  node *n = td_parse_new(c, N_DICT, td_parse_expect(c, T_LBRACE).line);
  uint32_t cap = 0;
  while (c->current.type != T_RBRACE) {
    if (n->n_items > 0)
      td_parse_expect(c, T_COMMA);
    if (c->current.type == T_RBRACE)
      break;
    node *key = td_parse_expression(c, true);
    td_parse_expect(c, T_COLON);
    node *item = td_parse_expression(c, true);
    td_parse_push(c, &n->items, &n->n_items, &cap, key);
    td_parse_push(c, &n->items, &n->n_items, &cap, item);
    td_parse_adopt(c, n, key);
    td_parse_adopt(c, n, item);
  }
  td_parse_expect(c, T_RBRACE);
  return n;
}

/* "a" "b" is one string */
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
  bool yes = text_is(t.s, "true") || text_is(t.s, "True");
  if (yes || text_is(t.s, "false") || text_is(t.s, "False")) {
    node *n = constant(c, V_BOOL, t.line);
    n->i = yes;
    return n;
  }
  if (text_is(t.s, "none") || text_is(t.s, "None"))
    return constant(c, V_NONE, t.line);
  bool ns = with_namespace && td_parse_skip(c, T_DOT);
  node *n = td_parse_new(c, ns ? N_NSREF : N_NAME, t.line);
  n->text = t.s;
  if (ns)
    n->text2 = td_parse_expect(c, T_NAME).s;
  return n;
}

node *td_parse_primary(compiler *c, bool with_namespace)
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
    n = td_parse_tuple(c, true, NULL, true);
    td_parse_expect(c, T_RPAREN);
    return n;
  case T_LBRACKET: return parse_list(c);
  case T_LBRACE: return parse_dict(c);
  case T_EOF: td_template_fail(c, t.line, "unexpected end of template");
  default: td_template_fail(c, t.line, "unexpected '%s'", td_lexer_type_name(t.type));
  }
}

/* ---- calls, subscripts, filters, tests ---- */

static void keyword(compiler *c, node *n, uint32_t *cap)
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
  if (n->n_kw == *cap) {
    text *names = td_template_alloc(c, *cap ? *cap * 2 : 4, sizeof *names);
    if (n->n_kw)
      memcpy(names, n->kw_names, n->n_kw * sizeof *names);
    n->kw_names = names;
  }
  td_parse_push(c, &n->kw_values, &n->n_kw, cap, v);
  n->kw_names[n->n_kw - 1] = name;
  td_parse_adopt(c, n, v);
}

/* (a, b, *c, k=d, **e) into n */
static void parse_args(compiler *c, node *n)
{
  unsigned line = td_parse_expect(c, T_LPAREN).line;
  uint32_t cap = 0, cap_kw = 0;
  bool comma = false, ok = true;
  while (c->current.type != T_RPAREN) {
    if (comma) {
      td_parse_expect(c, T_COMMA);
      if (c->current.type == T_RPAREN)
        break;
    }
    if (td_parse_skip(c, T_MUL)) {
      ok = !n->dyn_args && !n->dyn_kwargs;
      n->dyn_args = td_parse_expression(c, true);
      td_parse_adopt(c, n, n->dyn_args);
    } else if (td_parse_skip(c, T_POW)) {
      ok = !n->dyn_kwargs;
      n->dyn_kwargs = td_parse_expression(c, true);
      td_parse_adopt(c, n, n->dyn_kwargs);
    } else if (c->current.type == T_NAME && td_parse_look(c)->type == T_ASSIGN) {
      ok = !n->dyn_kwargs;
      keyword(c, n, &cap_kw);
    } else {
      ok = !n->dyn_args && !n->dyn_kwargs && n->n_kw == 0;
      node *arg = td_parse_expression(c, true);
      td_parse_push(c, &n->items, &n->n_items, &cap, arg);
      td_parse_adopt(c, n, arg);
    }
    if (!ok)
      td_template_fail(c, line, "invalid syntax for function call expression");
    comma = true;
  }
  td_parse_expect(c, T_RPAREN);
}

static node *parse_call(compiler *c, node *of)
{
  node *n = td_parse_new(c, N_CALL, c->current.line);
  n->a = of;
  td_parse_adopt(c, n, of);
  parse_args(c, n);
  return n;
}

/* One index of [a, b:c]: *slice is set when it is a slice. */
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
  n->items = td_template_alloc(c, 3, sizeof *n->items);
  n->n_items = 3;
  for (int i = 0; i < 3; i++) {
    n->items[i] = parts[i];
    td_parse_adopt(c, n, parts[i]);
  }
  return n;
}

static node *parse_subscript(compiler *c, node *of)
{
  token t = c->current;
  td_parse_advance(c);
  node *n = td_parse_new(c, N_ITEM, t.line);
  n->a = of;
  td_parse_adopt(c, n, of);
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
  if (c->current.type == T_RBRACKET)
    td_template_fail(c, t.line, "expected subscript expression");
  node *index = parse_subscribed(c);
  if (c->current.type == T_COMMA) {
    node *tuple = td_parse_new(c, N_TUPLE, t.line);
    uint32_t cap = 0;
    td_parse_push(c, &tuple->items, &tuple->n_items, &cap, index);
    while (c->current.type != T_RBRACKET) {
      td_parse_expect(c, T_COMMA);
      td_parse_push(c, &tuple->items, &tuple->n_items, &cap, parse_subscribed(c));
    }
    for (uint32_t i = 0; i < tuple->n_items; i++) {
      if (tuple->items[i]->kind == N_SLICE)
        td_template_fail(c, t.line, "slices in a tuple index are not served");
      td_parse_adopt(c, tuple, tuple->items[i]);
    }
    index = tuple;
  }
  td_parse_expect(c, T_RBRACKET);
  td_parse_adopt(c, n, index);
  if (index->kind == N_SLICE) {
    n->kind = N_SLICE;
    n->items = index->items;
    n->n_items = 3;
  } else {
    n->b = index;
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
    node *n = td_parse_new(c, N_FILTER, c->current.line);
    n->text = dotted_name(c);
    n->a = of;
    td_parse_adopt(c, n, of);
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
  case T_NAME: return !text_is(t->s, "else") && !text_is(t->s, "or") && !text_is(t->s, "and");
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
  node *n = td_parse_new(c, N_TEST, line);
  n->a = of;
  td_parse_adopt(c, n, of);
  n->text = dotted_name(c);
  if (c->current.type == T_LPAREN) {
    parse_args(c, n);
  } else if (test_argument_follows(&c->current)) {
    if (td_parse_is_name(&c->current, "is"))
      td_template_fail(c, line, "You cannot chain multiple tests with is");
    uint32_t cap = 0;
    td_parse_deeper(c);
    node *arg = parse_postfix(c, td_parse_primary(c, false));
    c->depth--;
    td_parse_push(c, &n->items, &n->n_items, &cap, arg);
    td_parse_adopt(c, n, arg);
  }
  if (!negated)
    return n;
  node *not = td_parse_new(c, N_NOT, line);
  not ->a = n;
  td_parse_adopt(c, not, n);
  return not ;
}

static node *parse_unary(compiler *c, bool with_filter)
{
  node *n;
  unsigned line = c->current.line;
  token_type t = c->current.type;
  if (t == T_SUB || t == T_ADD) {
    td_parse_deeper(c);
    td_parse_advance(c);
    n = td_parse_new(c, t == T_SUB ? N_NEG : N_POS, line);
    n->a = parse_unary(c, false);
    td_parse_adopt(c, n, n->a);
    c->depth--;
  } else {
    n = td_parse_primary(c, false);
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
