/* Regular expressions in the syntax of ECMAScript and Python, without back-references and look-around.
 *
 * A pattern is first parsed to a tree that still has its anchors. The tree then becomes an expression of
 * whole texts: if a pattern may match anywhere, any text may come before and after it, unless an anchor
 * forbids that. */
#include <stdio.h>
#include <string.h>

#include "common/progress.h"
#include "common/utf8.h"
#include "models/grammar/internal.h"

typedef enum node_kind { NODE_EXPR, NODE_START, NODE_END, NODE_CAT, NODE_ALT, NODE_REPEAT } node_kind;

typedef struct node node;
struct node {
  node_kind kind;
  bool anchored; /* contains an anchor */
  const td_expr *expr;
  node *child, *next; /* child: first item, or the body; next: next item */
  uint32_t min, max;
};

typedef struct parser {
  td_builder *b;
  const char *text;
  size_t n, at;
  bool json;
  bool wide; /* where dialects differ, accept what any of them accepts, instead of what all accept */
  unsigned depth;
  td_status status;
} parser;

static node *refuse(parser *p, td_status code, const char *what)
{
  if (p->status == TD_OK)
    p->status = td_fail(p->b->err, code, "%s at byte %zu of the pattern", what, p->at);
  return NULL;
}

static node *new_node(parser *p, node_kind kind)
{
  node *n = p->b->failed ? NULL : td_arena_alloc(&p->b->arena, sizeof *n);
  if (!n) {
    p->b->failed = true;
    return refuse(p, TD_ERR_REQUEST, "it is too large");
  }
  n->kind = kind;
  return n;
}

static bool more(const parser *p) { return p->at < p->n; }
static bool next_is(const parser *p, char c) { return more(p) && p->text[p->at] == c; }
static bool take(parser *p, char c)
{
  bool is = next_is(p, c);
  p->at += is;
  return is;
}

/* ---- characters ---- */

static bool take_char(parser *p, uint32_t *cp)
{
  const unsigned char *at = (const unsigned char *)p->text + p->at;
  size_t len = td_utf8_sequence_length(at, p->n - p->at);
  if (len == 0)
    return refuse(p, TD_ERR_REQUEST, "text that is not UTF-8") != NULL;
  *cp = td_utf8_decode(at, len);
  p->at += len;
  return true;
}

static bool take_hex(parser *p, unsigned n, uint32_t *cp)
{
  *cp = 0;
  for (unsigned i = 0; i < n; i++) {
    const char *digits = "0123456789abcdef";
    const char *d = more(p) ? strchr(digits, p->text[p->at] | 0x20) : NULL;
    if (!d || !*d)
      return refuse(p, TD_ERR_REQUEST, "an escape without its digits") != NULL;
    *cp = *cp * 16 + (uint32_t)(d - digits);
    p->at++;
  }
  return true;
}

static bool take_code_point(parser *p, uint32_t *cp)
{
  if (!take(p, '{'))
    return take_hex(p, 4, cp);
  unsigned n = 0;
  while (p->at + n < p->n && p->text[p->at + n] != '}' && n < 7)
    n++;
  if (n == 0 || n > 6 || !take_hex(p, n, cp) || !take(p, '}'))
    return refuse(p, TD_ERR_REQUEST, "a malformed \\u{}") != NULL;
  return *cp <= TD_CHAR_MAX || refuse(p, TD_ERR_REQUEST, "no such character") != NULL;
}

/* Adds \d or a similar class: the characters on which all dialects agree or, if wide, those of any
 * dialect. */
static bool add_class(parser *p, char c, bool wide, td_chars *set)
{
  td_builder *b = p->b;
  td_chars own = {0};
  switch (c) {
  case 'd':
  case 'D': td_chars_add(b, &own, '0', '9'); break;
  case 'w':
  case 'W':
    td_chars_add(b, &own, '0', '9');
    td_chars_add(b, &own, 'A', 'Z');
    td_chars_add(b, &own, '_', '_');
    td_chars_add(b, &own, 'a', 'z');
    break;
  case 's':
  case 'S':
    td_chars_add(b, &own, '\t', '\r');
    td_chars_add(b, &own, ' ', ' ');
    break;
  default: return false;
  }
  if ((c == 'S' && !wide) || (c == 's' && wide)) { /* some dialects have more blanks */
    static const td_char_range blanks[] = {
        {0x1C, 0x1F},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    for (size_t i = 0; i < sizeof blanks / sizeof *blanks; i++)
      td_chars_add(b, &own, blanks[i].lo, blanks[i].hi);
  }
  if (c < 'a')
    td_chars_invert(b, &own);
  for (uint32_t i = 0; i < own.n; i++)
    td_chars_add(b, set, own.ranges[i].lo, own.ranges[i].hi);
  return true;
}

/* After a backslash: sets *cp to one character, or adds a class to *set and sets *cp to UINT32_MAX. */
static bool take_escape(parser *p, bool wide, td_chars *set, uint32_t *cp)
{
  static const char letters[] = "nrtfv0", values[] = "\n\r\t\f\v\0";
  if (!more(p))
    return refuse(p, TD_ERR_REQUEST, "a lone backslash") != NULL;
  char c = p->text[p->at];
  const char *l = c ? strchr(letters, c) : NULL;
  if (add_class(p, c, wide, set)) {
    p->at++;
    *cp = UINT32_MAX;
    return true;
  }
  if (c == '0' && p->at + 1 < p->n && p->text[p->at + 1] >= '0' && p->text[p->at + 1] <= '9')
    return refuse(p, TD_ERR_UNSUPPORTED, "an octal escape, which is not served,") != NULL;
  if (l) {
    p->at++;
    *cp = (unsigned char)values[l - letters];
    return true;
  }
  if (c == 'x' || c == 'u') {
    p->at++;
    return c == 'x' ? take_hex(p, 2, cp) : take_code_point(p, cp);
  }
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
    return refuse(p, TD_ERR_UNSUPPORTED, "an escape that is not served") != NULL;
  return take_char(p, cp);
}

static bool take_class_item(parser *p, bool wide, td_chars *set, uint32_t *cp)
{
  return take(p, '\\') ? take(p, 'b') ? (*cp = '\b', true) : take_escape(p, wide, set, cp) : take_char(p, cp);
}

static bool take_class(parser *p, td_chars *set)
{
  bool inverted = take(p, '^'), wide = p->wide != inverted;
  while (more(p) && !next_is(p, ']')) {
    uint32_t lo, hi;
    if (next_is(p, '[') && p->at + 1 < p->n && strchr(":.=", p->text[p->at + 1]))
      return refuse(p, TD_ERR_UNSUPPORTED, "a named class") != NULL;
    if (!take_class_item(p, wide, set, &lo))
      return false;
    if (lo == UINT32_MAX)
      continue;
    hi = lo;
    if (next_is(p, '-') && p->at + 1 < p->n && p->text[p->at + 1] != ']') {
      p->at++;
      if (!take_class_item(p, wide, set, &hi))
        return false;
      if (hi == UINT32_MAX || hi < lo)
        return refuse(p, TD_ERR_REQUEST, "a range that is none") != NULL;
    }
    td_chars_add(p->b, set, lo, hi);
  }
  if (!take(p, ']'))
    return refuse(p, TD_ERR_REQUEST, "a class without its ']'") != NULL;
  td_chars_tidy(set);
  if (inverted)
    td_chars_invert(p->b, set);
  return true;
}

static node *chars_node(parser *p, td_chars *set)
{
  node *n = new_node(p, NODE_EXPR);
  td_chars_tidy(set);
  if (n)
    n->expr = p->json ? td_chars_json_expr(p->b, set) : td_chars_expr(p->b, set);
  return n;
}

/* ---- the tree ---- */

static node *parse_alt(parser *p);

static bool skip_group_head(parser *p)
{
  if (!take(p, '?'))
    return true;
  if (take(p, ':'))
    return true;
  (void)take(p, 'P');
  if (!take(p, '<') || next_is(p, '=') || next_is(p, '!'))
    return refuse(p, TD_ERR_UNSUPPORTED, "a look-around or flag, which is not served,") != NULL;
  while (more(p) && !next_is(p, '>'))
    p->at++;
  return take(p, '>') || refuse(p, TD_ERR_REQUEST, "a group's name without its end") != NULL;
}

static node *parse_group(parser *p)
{
  if (++p->depth > td_limit_max(TD_LIMIT_GRAMMAR_TEXT_DEPTH))
    return refuse(p, TD_ERR_REQUEST, "groups nested too deeply");
  if (!skip_group_head(p))
    return NULL;
  node *n = parse_alt(p);
  p->depth--;
  if (n && !take(p, ')'))
    return refuse(p, TD_ERR_REQUEST, "a group without its ')'");
  return n;
}

static node *parse_atom(parser *p)
{
  td_chars set = {0};
  uint32_t cp;
  node *n;
  if (take(p, '('))
    return parse_group(p);
  if (next_is(p, '^') || next_is(p, '$')) {
    n = new_node(p, take(p, '^') ? NODE_START : NODE_END);
    if (n && n->kind == NODE_END)
      p->at++;
    if (n)
      n->anchored = true;
    return n;
  }
  if (take(p, '[')) {
    return take_class(p, &set) ? chars_node(p, &set) : NULL;
  }
  if (take(p, '.')) {
    td_chars_add(p->b, &set, '\n', '\n');
    td_chars_add(p->b, &set, '\r', '\r');
    td_chars_add(p->b, &set, 0x2028, 0x2029);
    td_chars_invert(p->b, &set);
    return chars_node(p, &set);
  }
  if (take(p, '\\')) {
    if (!take_escape(p, p->wide, &set, &cp))
      return NULL;
  } else if (strchr("*+?", p->text[p->at])) {
    return refuse(p, TD_ERR_REQUEST, "a repetition of nothing");
  } else if (!take_char(p, &cp)) {
    return NULL;
  }
  if (cp != UINT32_MAX)
    td_chars_add(p->b, &set, cp, cp);
  return chars_node(p, &set);
}

static bool take_number(parser *p, uint32_t *out)
{
  size_t from = p->at;
  uint32_t v = 0;
  while (more(p) && p->text[p->at] >= '0' && p->text[p->at] <= '9' &&
         v <= td_limit_max(TD_LIMIT_GRAMMAR_TIMES))
    v = v * 10 + (uint32_t)(p->text[p->at++] - '0');
  *out = v;
  return p->at > from && v <= td_limit_max(TD_LIMIT_GRAMMAR_TIMES);
}

/* Parses {n}, {n,} or {n,m}. Returns false for anything else. */
static bool take_times(parser *p, uint32_t *min, uint32_t *max)
{
  size_t from = p->at;
  if (take(p, '{') && take_number(p, min)) {
    *max = *min;
    bool ok = true;
    if (take(p, ',')) {
      if (next_is(p, '}'))
        *max = TD_REPEAT_MANY;
      else
        ok = take_number(p, max);
    }
    if (ok && take(p, '}'))
      return true;
  }
  p->at = from;
  return false;
}

/* Bounds repetitions of a repetition, because each is a level of the tree and code that reads it recurses. */
static node *parse_repeated(parser *p)
{
  node *n = parse_atom(p);
  td_progress_add(1);
  for (unsigned k = 0; n && more(p); k++) {
    uint32_t min, max;
    if (take(p, '*'))
      min = 0, max = TD_REPEAT_MANY;
    else if (take(p, '+'))
      min = 1, max = TD_REPEAT_MANY;
    else if (take(p, '?'))
      min = 0, max = 1;
    else if (next_is(p, '{')) {
      if (!take_times(p, &min, &max))
        return refuse(p, TD_ERR_REQUEST, "a '{' that is no count (or one above 100000)");
    } else
      break;
    if (k == td_limit_max(TD_LIMIT_GRAMMAR_QUANTIFIERS))
      return refuse(p, TD_ERR_REQUEST, "more than 8 repetitions of a repetition");
    if (max < min)
      return refuse(p, TD_ERR_REQUEST, "a count that ends before it begins");
    (void)take(p, '?'); /* lazy: matches the same texts */
    if (next_is(p, '+'))
      return refuse(p, TD_ERR_UNSUPPORTED, "a possessive repetition, which is not served,");
    node *r = new_node(p, NODE_REPEAT);
    if (!r)
      return NULL;
    r->child = n;
    r->anchored = n->anchored;
    r->min = min;
    r->max = max;
    n = r;
  }
  return n;
}

static node *parse_cat(parser *p)
{
  node *cat = new_node(p, NODE_CAT), **last = cat ? &cat->child : NULL;
  while (cat && more(p) && !next_is(p, '|') && !next_is(p, ')')) {
    node *n = parse_repeated(p);
    if (!n)
      return NULL;
    cat->anchored |= n->anchored;
    *last = n;
    last = &n->next;
  }
  return cat;
}

static node *parse_alt(parser *p)
{
  node *alt = new_node(p, NODE_ALT), **last = alt ? &alt->child : NULL;
  do {
    node *n = alt ? parse_cat(p) : NULL;
    if (!n)
      return NULL;
    alt->anchored |= n->anchored;
    *last = n;
    last = &n->next;
  } while (take(p, '|'));
  return alt;
}

/* ---- from the tree to whole texts ---- */

/* What is at one end of a node: more of the pattern, the end of the text, or any text. */
typedef enum edge { INSIDE, WHOLE, ANYWHERE } edge;

static const td_expr *anything(parser *p)
{
  td_chars all = {0};
  td_chars_add(p->b, &all, 0, TD_CHAR_MAX);
  const td_expr *one = p->json ? td_expr_call(p->b, TD_RULE_CHAR) : td_chars_expr(p->b, &all);
  return td_expr_repeat(p->b, one, 0, TD_REPEAT_MANY);
}

static const td_expr *at_edge(parser *p, edge e) { return e == ANYWHERE ? anything(p) : &td_expr_empty; }

static const td_expr *make(parser *p, const node *n, edge left, edge right);

static const td_expr *make_cat(parser *p, const node *n, edge left, edge right)
{
  td_expr_list list = {0};
  if (!n->child)
    return left == ANYWHERE || right == ANYWHERE ? anything(p) : &td_expr_empty;
  for (const node *i = n->child; i; i = i->next)
    td_expr_add(p->b, &list, make(p, i, i == n->child ? left : INSIDE, i->next ? INSIDE : right));
  return td_expr_cat(p->b, &list);
}

static const td_expr *make(parser *p, const node *n, edge left, edge right)
{
  td_expr_list list = {0};
  switch (n->kind) {
  case NODE_EXPR: return td_expr_cat3(p->b, at_edge(p, left), n->expr, at_edge(p, right));
  case NODE_START:
  case NODE_END:
    if ((n->kind == NODE_START ? left : right) == INSIDE) {
      refuse(p, TD_ERR_UNSUPPORTED, "an anchor that is not at an end, which is not served,");
      return &td_expr_none;
    }
    return at_edge(p, n->kind == NODE_START ? right : left);
  case NODE_CAT: return make_cat(p, n, left, right);
  case NODE_ALT:
    for (const node *i = n->child; i; i = i->next)
      td_expr_add(p->b, &list, make(p, i, left, right));
    return td_expr_alt(p->b, &list);
  case NODE_REPEAT:
    if (n->anchored) {
      refuse(p, TD_ERR_UNSUPPORTED, "an anchor that is repeated, which is not served,");
      return &td_expr_none;
    }
    return td_expr_cat3(p->b, at_edge(p, left),
                        td_expr_repeat(p->b, make(p, n->child, INSIDE, INSIDE), n->min, n->max),
                        at_edge(p, right));
  }
  return &td_expr_none;
}

static uint32_t add_lengths(uint32_t a, uint32_t b)
{
  return a >= TD_REPEAT_MANY - b ? TD_REPEAT_MANY : a + b;
}

static uint32_t times(uint32_t length, uint32_t n)
{
  uint64_t all = (uint64_t)length * n;
  return length == 0 || n == 0 ? 0 : all < TD_REPEAT_MANY ? (uint32_t)all : TD_REPEAT_MANY;
}

/* The lengths of the texts that `make` makes of the node. */
static td_regex_lengths lengths_of(const node *n, edge left, edge right)
{
  static const td_regex_lengths any = {0, TD_REPEAT_MANY};
  td_regex_lengths all = {0, 0}, one;
  bool open = left == ANYWHERE || right == ANYWHERE;
  switch (n->kind) {
  case NODE_EXPR: return (td_regex_lengths){1, open ? TD_REPEAT_MANY : 1};
  case NODE_START: return right == ANYWHERE ? any : all;
  case NODE_END: return left == ANYWHERE ? any : all;
  case NODE_CAT:
    for (const node *i = n->child; i; i = i->next) {
      one = lengths_of(i, i == n->child ? left : INSIDE, i->next ? INSIDE : right);
      all = (td_regex_lengths){add_lengths(all.least, one.least), add_lengths(all.most, one.most)};
    }
    return n->child || !open ? all : any;
  case NODE_ALT:
    all = lengths_of(n->child, left, right);
    for (const node *i = n->child->next; i; i = i->next) {
      one = lengths_of(i, left, right);
      all.least = one.least < all.least ? one.least : all.least;
      all.most = one.most > all.most ? one.most : all.most;
    }
    return all;
  case NODE_REPEAT:
    one = lengths_of(n->child, INSIDE, INSIDE);
    return (td_regex_lengths){times(one.least, n->min), open ? TD_REPEAT_MANY : times(one.most, n->max)};
  }
  return any;
}

static td_status compile(td_builder *b, const char *text, size_t n, bool json, bool wide, edge e,
                         const td_expr **out, td_regex_lengths *lengths)
{
  parser p = {.b = b, .text = text, .n = n, .json = json, .wide = wide, .status = TD_OK};
  node *tree = parse_alt(&p);
  if (tree && more(&p))
    refuse(&p, TD_ERR_REQUEST, "a ')' without its group");
  if (p.status == TD_OK && tree)
    *out = make(&p, tree, e, e);
  if (p.status == TD_OK && tree && lengths)
    *lengths = lengths_of(tree, e, e);
  return p.status;
}

td_status td_regex_compile(td_builder *b, const char *text, size_t n, const td_expr **out)
{
  return compile(b, text, n, false, false, WHOLE, out, NULL);
}

td_status td_regex_compile_json(td_builder *b, const char *text, size_t n, bool wide, const td_expr **out,
                                td_regex_lengths *lengths)
{
  return compile(b, text, n, true, wide, ANYWHERE, out, lengths);
}
