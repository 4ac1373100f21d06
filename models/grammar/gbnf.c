/* GBNF in llama.cpp's form: `name ::= ...` with texts, classes, groups, repetitions, and references to rules.
 * The start rule is `root`. A rule ends where the next rule's name and `::=` begin. */
#include <stdio.h>
#include <string.h>

#include "common/hash.h"
#include "common/progress.h"
#include "common/utf8.h"
#include "models/grammar/internal.h"

enum { RULE_SLOTS = 2 * TD_GBNF_RULES_MAX };

typedef struct named {
  const char *name;
  size_t n;
  uint32_t rule;
  bool defined;
} named;

typedef struct parser {
  td_builder *b;
  const char *text;
  size_t n, at;
  named *rules;    /* [TD_GBNF_RULES_MAX] in the arena */
  uint32_t *slots; /* [RULE_SLOTS] in the arena: a rule's number + 1 at the hash of its name */
  uint64_t seed;
  uint32_t n_rules;
  unsigned depth;
  td_status status;
} parser;

static const td_expr *refuse(parser *p, const char *what)
{
  unsigned line = 1;
  for (size_t i = 0; i < p->at && i < p->n; i++)
    line += p->text[i] == '\n';
  if (p->status == TD_OK)
    p->status = td_fail(p->b->err, TD_ERR_REQUEST, "the grammar's line %u: %s", line, what);
  return &td_expr_none;
}

static bool more(const parser *p) { return p->at < p->n && p->status == TD_OK; }
static bool next_is(const parser *p, char c) { return more(p) && p->text[p->at] == c; }
static bool take(parser *p, char c)
{
  bool is = next_is(p, c);
  p->at += is;
  return is;
}

static void skip(parser *p)
{
  while (more(p)) {
    if (strchr(" \t\r\n", p->text[p->at]))
      p->at++;
    else if (p->text[p->at] == '#')
      while (more(p) && p->text[p->at] != '\n')
        p->at++;
    else
      break;
  }
}

static bool is_name_char(char c)
{
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static size_t name_length(const parser *p)
{
  size_t n = 0;
  while (p->at + n < p->n && is_name_char(p->text[p->at + n]))
    n++;
  return n;
}

/* Whether a name and `::=` follow. */
static bool at_definition(const parser *p)
{
  size_t at = p->at + name_length(p);
  if (at == p->at)
    return false;
  while (at < p->n && (p->text[at] == ' ' || p->text[at] == '\t'))
    at++;
  return at + 3 <= p->n && memcmp(p->text + at, "::=", 3) == 0;
}

static named *find_rule(parser *p, const char *name, size_t n)
{
  uint32_t k = (uint32_t)td_hash_bytes(p->seed, name, n) & (RULE_SLOTS - 1);
  for (; p->slots[k]; k = (k + 1) & (RULE_SLOTS - 1)) {
    named *r = &p->rules[p->slots[k] - 1];
    if (r->n == n && memcmp(r->name, name, n) == 0)
      return r;
  }
  if (p->n_rules == TD_GBNF_RULES_MAX || n > td_limit_max(TD_LIMIT_GBNF_NAME_BYTES)) {
    (void)refuse(p, "too many rules, or a name too long");
    return NULL;
  }
  p->rules[p->n_rules] = (named){name, n, td_builder_add_rule(p->b), false};
  p->slots[k] = ++p->n_rules;
  return &p->rules[p->n_rules - 1];
}

/* ---- characters ---- */

static bool take_digits(parser *p, unsigned n, uint32_t *cp)
{
  *cp = 0;
  for (unsigned i = 0; i < n; i++) {
    const char *digits = "0123456789abcdef";
    const char *d = more(p) ? strchr(digits, p->text[p->at] | 0x20) : NULL;
    if (!d || !*d)
      return false;
    *cp = *cp * 16 + (uint32_t)(d - digits);
    p->at++;
  }
  return *cp <= TD_CHAR_MAX;
}

static bool take_escape(parser *p, uint32_t *cp)
{
  static const char letters[] = "nrt\"\\[]-^./'", values[] = "\n\r\t\"\\[]-^./'";
  char c = more(p) ? p->text[p->at++] : '\0';
  const char *l = c ? strchr(letters, c) : NULL;
  if (l)
    *cp = (unsigned char)values[l - letters];
  else if (!(c == 'x'   ? take_digits(p, 2, cp)
             : c == 'u' ? take_digits(p, 4, cp)
                        : c == 'U' && take_digits(p, 8, cp)))
    return refuse(p, "an escape that is not known") == NULL;
  return true;
}

static bool take_char(parser *p, uint32_t *cp)
{
  if (take(p, '\\'))
    return take_escape(p, cp);
  size_t len = td_utf8_sequence_length((const unsigned char *)p->text + p->at, p->n - p->at);
  if (len == 0)
    return refuse(p, "text that is not UTF-8, or ends too early") == NULL;
  *cp = td_utf8_decode((const unsigned char *)p->text + p->at, len);
  p->at += len;
  return true;
}

static const td_expr *parse_text(parser *p)
{
  td_expr_list list = {0};
  while (more(p) && !next_is(p, '"')) {
    unsigned char utf8[4];
    uint32_t cp;
    if (!take_char(p, &cp))
      return &td_expr_none;
    td_expr_add(p->b, &list, td_expr_text(p->b, (const char *)utf8, td_utf8_encode(cp, utf8)));
  }
  return take(p, '"') ? td_expr_cat(p->b, &list) : refuse(p, "a text without its end");
}

static const td_expr *parse_class(parser *p)
{
  td_chars set = {0};
  bool inverted = take(p, '^');
  while (more(p) && !next_is(p, ']')) {
    uint32_t lo, hi;
    if (!take_char(p, &lo))
      return &td_expr_none;
    hi = lo;
    if (next_is(p, '-') && p->at + 1 < p->n && p->text[p->at + 1] != ']') {
      p->at++;
      if (!take_char(p, &hi))
        return &td_expr_none;
    }
    if (hi < lo)
      return refuse(p, "a range that is none");
    td_chars_add(p->b, &set, lo, hi);
  }
  if (!take(p, ']'))
    return refuse(p, "a class without its ']'");
  td_chars_tidy(&set);
  if (inverted)
    td_chars_invert(p->b, &set);
  return td_chars_expr(p->b, &set);
}

/* ---- rules ---- */

static const td_expr *parse_alt(parser *p);

static const td_expr *parse_group(parser *p)
{
  if (++p->depth > td_limit_max(TD_LIMIT_GRAMMAR_TEXT_DEPTH))
    return refuse(p, "groups nested too deeply");
  const td_expr *e = parse_alt(p);
  p->depth--;
  return take(p, ')') ? e : refuse(p, "a group without its ')'");
}

static const td_expr *parse_item(parser *p)
{
  if (take(p, '"'))
    return parse_text(p);
  if (take(p, '['))
    return parse_class(p);
  if (take(p, '('))
    return parse_group(p);
  if (take(p, '.')) {
    td_chars all = {0};
    td_chars_add(p->b, &all, 0, TD_CHAR_MAX);
    return td_chars_expr(p->b, &all);
  }
  size_t n = name_length(p);
  if (n == 0)
    return refuse(p, "a text, a class, a group or a rule's name is expected");
  const named *r = find_rule(p, p->text + p->at, n);
  p->at += n;
  return r ? td_expr_call(p->b, r->rule) : &td_expr_none;
}

/* Returns false if there is no digit. */
static bool take_number(parser *p, uint32_t *out)
{
  size_t from = p->at;
  for (*out = 0; more(p) && p->text[p->at] >= '0' && p->text[p->at] <= '9' &&
                 *out <= td_limit_max(TD_LIMIT_GRAMMAR_TIMES);
       p->at++)
    *out = *out * 10 + (uint32_t)(p->text[p->at] - '0');
  return p->at > from;
}

/* Parses {n}, {n,}, {,m} or {n,m}. */
static const td_expr *parse_times(parser *p, const td_expr *e)
{
  uint32_t min, max;
  skip(p);
  bool ok = take_number(p, &min) || next_is(p, ',');
  max = min;
  skip(p);
  if (take(p, ',')) {
    skip(p);
    if (next_is(p, '}'))
      max = TD_REPEAT_MANY;
    else
      ok = take_number(p, &max) && ok;
    skip(p);
  }
  ok = ok && take(p, '}') && min <= td_limit_max(TD_LIMIT_GRAMMAR_TIMES) &&
       (max == TD_REPEAT_MANY || max <= td_limit_max(TD_LIMIT_GRAMMAR_TIMES)) && min <= max;
  return ok ? td_expr_repeat(p->b, e, min, max) : refuse(p, "a count that is none, or one above 100000");
}

/* Bounds repetitions of a repetition, because each is a level of the expression and code that reads it
 * recurses. */
static const td_expr *parse_repeated(parser *p)
{
  const td_expr *e = parse_item(p);
  td_progress_add(1);
  for (unsigned n = 0; more(p); n++) {
    size_t from = p->at;
    if (take(p, '*'))
      e = td_expr_repeat(p->b, e, 0, TD_REPEAT_MANY);
    else if (take(p, '+'))
      e = td_expr_repeat(p->b, e, 1, TD_REPEAT_MANY);
    else if (take(p, '?'))
      e = td_expr_repeat(p->b, e, 0, 1);
    else if (take(p, '{'))
      e = parse_times(p, e);
    if (p->at == from)
      break;
    if (n == td_limit_max(TD_LIMIT_GRAMMAR_QUANTIFIERS))
      return refuse(p, "more than 8 repetitions of a repetition");
  }
  return e;
}

static const td_expr *parse_cat(parser *p)
{
  td_expr_list list = {0};
  for (skip(p); more(p) && !next_is(p, '|') && !next_is(p, ')') && !at_definition(p); skip(p))
    td_expr_add(p->b, &list, parse_repeated(p));
  return td_expr_cat(p->b, &list);
}

static const td_expr *parse_alt(parser *p)
{
  td_expr_list list = {0};
  do
    td_expr_add(p->b, &list, parse_cat(p));
  while (take(p, '|'));
  return td_expr_alt(p->b, &list);
}

static void parse_rule(parser *p)
{
  if (!at_definition(p)) {
    (void)refuse(p, "a rule is expected: a name and '::='");
    return;
  }
  size_t n = name_length(p);
  named *r = find_rule(p, p->text + p->at, n);
  if (!r)
    return;
  p->at += n;
  while (!take(p, '='))
    p->at++;
  if (r->defined) {
    (void)refuse(p, "a rule that is there already");
    return;
  }
  r->defined = true;
  uint32_t rule = r->rule;
  const td_expr *body = parse_alt(p);
  if (!p->b->failed)
    p->b->rules[rule] = body;
}

td_status td_gbnf_compile(td_builder *b, const char *text, size_t n, const td_expr **out)
{
  parser p = {.b = b, .text = text, .n = n, .status = TD_OK, .seed = td_random_u64()};
  p.slots = td_arena_alloc_array(&b->arena, RULE_SLOTS, sizeof *p.slots);
  p.rules = td_arena_alloc_array(&b->arena, TD_GBNF_RULES_MAX, sizeof *p.rules);
  if (!p.rules || !p.slots)
    return td_fail(b->err, TD_ERR_NOMEM, "no memory for a grammar");
  for (skip(&p); more(&p); skip(&p))
    parse_rule(&p);
  for (uint32_t i = 0; i < p.n_rules && p.status == TD_OK; i++)
    if (!p.rules[i].defined)
      return td_fail(b->err, TD_ERR_REQUEST, "the grammar has no rule '%.*s'", (int)p.rules[i].n,
                     p.rules[i].name);
  if (p.status != TD_OK)
    return p.status;
  const named *root = find_rule(&p, "root", 4);
  if (!root || !root->defined)
    return td_fail(b->err, TD_ERR_REQUEST, "the grammar has no rule 'root'");
  *out = td_expr_call(b, root->rule);
  return TD_OK;
}

td_status td_choice_compile(td_builder *b, const cJSON *choices, const td_expr **out)
{
  size_t n = 0;
  for (const cJSON *m = choices->child; m; m = m->next, n++)
    if (!cJSON_IsString(m) || !*m->valuestring || td_json_has_nul(m->valuestring))
      return td_fail(b->err, TD_ERR_REQUEST, "choices must be strings, not empty");
  if (n == 0)
    return td_fail(b->err, TD_ERR_REQUEST, "there must be a choice");
  const char **texts = td_arena_alloc_array(&b->arena, n, sizeof *texts);
  size_t *lengths = td_arena_alloc_array(&b->arena, n, sizeof *lengths);
  if (!texts || !lengths)
    return td_fail(b->err, TD_ERR_NOMEM, "no memory for a grammar");
  n = 0;
  for (const cJSON *m = choices->child; m; m = m->next) {
    texts[n] = m->valuestring;
    lengths[n++] = strlen(m->valuestring);
  }
  *out = td_expr_texts(b, texts, lengths, n);
  return TD_OK;
}
