/* Expressions: see expr.h. */
#include "models/grammar/expr.h"

#include <stdlib.h>
#include <string.h>

#include "common/progress.h"
#include "config/limits.h"
#include "models/grammar/internal.h"

const td_expr td_expr_none = {.kind = TD_EXPR_NONE}, td_expr_empty = {.kind = TD_EXPR_EMPTY};

static void *take(td_builder *b, size_t n)
{
  void *p = b->failed ? NULL : td_arena_alloc(&b->arena, n);
  b->failed |= !p;
  return p;
}

static td_expr *new_expr(td_builder *b, td_expr_kind kind)
{
  td_expr *e = take(b, sizeof *e);
  if (e)
    e->kind = kind;
  return e;
}

void td_expr_add(td_builder *b, td_expr_list *list, const td_expr *e)
{
  if (list->n == list->cap) {
    uint32_t cap = list->cap ? list->cap * 2 : 8;
    const td_expr **items = take(b, cap * sizeof(const td_expr *));
    if (!items)
      return;
    if (list->n > 0)
      memcpy(items, list->items, list->n * sizeof(const td_expr *));
    list->items = items;
    list->cap = cap;
  }
  list->items[list->n++] = e;
}

const td_expr *td_expr_text(td_builder *b, const char *text, size_t n)
{
  td_expr *e = n ? new_expr(b, TD_EXPR_TEXT) : NULL;
  if (!e)
    return n ? &td_expr_none : &td_expr_empty;
  e->u.text = td_arena_strdup(&b->arena, text, n);
  b->failed |= !e->u.text;
  e->n = (uint32_t)n;
  return b->failed ? &td_expr_none : e;
}

const td_expr *td_expr_string(td_builder *b, const char *text) { return td_expr_text(b, text, strlen(text)); }

const td_expr *td_expr_set(td_builder *b, const td_byte_set *set)
{
  td_expr *e = new_expr(b, TD_EXPR_SET);
  if (!e)
    return &td_expr_none;
  e->set = *set;
  return e;
}

const td_expr *td_expr_range(td_builder *b, unsigned lo, unsigned hi)
{
  td_byte_set s = {0};
  for (unsigned c = lo; c <= hi; c++)
    td_byte_set_add(&s, c);
  return td_expr_set(b, &s);
}

static const td_expr *new_list(td_builder *b, td_expr_kind kind, const td_expr_list *list)
{
  td_expr *e = new_expr(b, kind);
  if (!e)
    return &td_expr_none;
  e->n = list->n;
  e->u.items = list->items;
  return e;
}

const td_expr *td_expr_cat(td_builder *b, const td_expr_list *list)
{
  td_expr_list kept = {0};
  for (uint32_t i = 0; i < list->n; i++) {
    if (list->items[i]->kind == TD_EXPR_NONE)
      return &td_expr_none;
    if (list->items[i]->kind != TD_EXPR_EMPTY)
      td_expr_add(b, &kept, list->items[i]);
  }
  return kept.n == 0 ? &td_expr_empty : kept.n == 1 ? kept.items[0] : new_list(b, TD_EXPR_CAT, &kept);
}

const td_expr *td_expr_alt(td_builder *b, const td_expr_list *list)
{
  td_expr_list kept = {0};
  for (uint32_t i = 0; i < list->n; i++)
    if (list->items[i]->kind != TD_EXPR_NONE)
      td_expr_add(b, &kept, list->items[i]);
  return kept.n == 0 ? &td_expr_none : kept.n == 1 ? kept.items[0] : new_list(b, TD_EXPR_ALT, &kept);
}

const td_expr *td_expr_cat2(td_builder *b, const td_expr *x, const td_expr *y)
{
  const td_expr *items[] = {x, y};
  return td_expr_cat(b, &(td_expr_list){items, 2, 2});
}

const td_expr *td_expr_cat3(td_builder *b, const td_expr *x, const td_expr *y, const td_expr *z)
{
  const td_expr *items[] = {x, y, z};
  return td_expr_cat(b, &(td_expr_list){items, 3, 3});
}

const td_expr *td_expr_alt2(td_builder *b, const td_expr *x, const td_expr *y)
{
  const td_expr *items[] = {x, y};
  return td_expr_alt(b, &(td_expr_list){items, 2, 2});
}

const td_expr *td_expr_call(td_builder *b, uint32_t rule)
{
  td_expr *e = new_expr(b, TD_EXPR_CALL);
  if (!e)
    return &td_expr_none;
  e->n = rule;
  return e;
}

const td_expr *td_expr_share(td_builder *b, const td_expr *e)
{
  td_expr *own = new_expr(b, e->kind);
  if (!own)
    return &td_expr_none;
  *own = *e;
  own->is_shared = true;
  return own;
}

uint32_t td_builder_add_rule(td_builder *b)
{
  if (b->n_rules == b->cap_rules) {
    uint32_t cap = b->cap_rules ? b->cap_rules * 2 : 32;
    const td_expr **rules = take(b, cap * sizeof(const td_expr *));
    if (!rules)
      return 0;
    if (b->n_rules > 0)
      memcpy(rules, b->rules, b->n_rules * sizeof(const td_expr *));
    b->rules = rules;
    b->cap_rules = cap;
  }
  b->rules[b->n_rules] = &td_expr_none;
  return b->n_rules++;
}

uint64_t td_builder_work_left(const td_builder *b)
{
  uint64_t max = (uint64_t)td_limit_max(TD_LIMIT_GRAMMAR_WORK);
  return b->work < max ? max - b->work : 0;
}

bool td_builder_work(td_builder *b, uint64_t n)
{
  b->work += n;
  b->failed |= td_builder_work_left(b) == 0;
  td_progress_add((size_t)(n / 16));
  return !b->failed;
}

/* ---- repetition ---- */

static const td_expr *plain_repeat(td_builder *b, const td_expr *body, uint32_t min, uint32_t max)
{
  td_expr *e = new_expr(b, TD_EXPR_REPEAT);
  if (!e)
    return &td_expr_none;
  e->min = min;
  e->max = max;
  e->u.body = body;
  return e;
}

enum { PLAIN_TIMES = 64, BLOCK_TIMES = 64 };

static const td_expr *as_rule(td_builder *b, const td_expr *body)
{
  uint32_t rule = td_builder_add_rule(b);
  if (b->failed)
    return &td_expr_none;
  b->rules[rule] = body;
  return td_expr_call(b, rule);
}

bool td_expr_is_counted(const td_expr *e) { return e->kind == TD_EXPR_CALL && e->n == TD_RULE_CHAR; }

/* A program copies the body for each repetition. For large counts we use rules that call rules of 64
 * repetitions, so the size grows with the logarithm of the count. "At least min" and "at most max - min more"
 * are separate parts, which together allow exactly min to max. */
const td_expr *td_expr_repeat(td_builder *b, const td_expr *body, uint32_t min, uint32_t max)
{
  if (max == 0 || body->kind == TD_EXPR_EMPTY)
    return &td_expr_empty;
  if (body->kind == TD_EXPR_NONE)
    return min == 0 ? &td_expr_empty : &td_expr_none;
  if (min == 1 && max == 1)
    return body;
  uint32_t times = max == TD_REPEAT_MANY ? min : max;
  if (times <= PLAIN_TIMES || td_expr_is_counted(body))
    return plain_repeat(b, body, min, max);
  body = as_rule(b, body);
  const td_expr *first = &td_expr_empty;
  if (min > 0) {
    const td_expr *block = as_rule(b, plain_repeat(b, body, BLOCK_TIMES, BLOCK_TIMES));
    first = td_expr_cat2(b, td_expr_repeat(b, block, min / BLOCK_TIMES, min / BLOCK_TIMES),
                         td_expr_repeat(b, body, min % BLOCK_TIMES, min % BLOCK_TIMES));
  }
  if (max == TD_REPEAT_MANY)
    return td_expr_cat2(b, first, plain_repeat(b, body, 0, max));
  uint32_t rest = max - min;
  if (rest <= PLAIN_TIMES)
    return td_expr_cat2(b, first, td_expr_repeat(b, body, 0, rest));
  /* all: q whole blocks, then up to r more. some: up to q - 1 blocks, then less than a block. */
  uint32_t q = rest / BLOCK_TIMES, r = rest % BLOCK_TIMES;
  const td_expr *block = as_rule(b, plain_repeat(b, body, BLOCK_TIMES, BLOCK_TIMES));
  const td_expr *less = plain_repeat(b, body, 0, BLOCK_TIMES - 1);
  const td_expr *all = td_expr_cat2(b, td_expr_repeat(b, block, q, q), td_expr_repeat(b, body, 0, r));
  const td_expr *some = td_expr_cat2(b, td_expr_repeat(b, block, 0, q - 1), less);
  return td_expr_cat2(b, first, td_expr_alt2(b, some, all));
}

/* ---- many texts ---- */

typedef struct text_ref {
  const unsigned char *at;
  size_t n;
} text_ref;

static int compare_texts(const void *x, const void *y)
{
  const text_ref *a = x, *b = y;
  int c = memcmp(a->at, b->at, a->n < b->n ? a->n : b->n);
  return c ? c : (a->n > b->n) - (a->n < b->n);
}

static size_t common_prefix(const text_ref *a, const text_ref *b, size_t from)
{
  while (from < a->n && from < b->n && a->at[from] == b->at[from])
    from++;
  return from;
}

enum { TEXTS_DEPTH = 200 };

/* t: n sorted texts that agree in their first `from` bytes. */
static const td_expr *share_prefixes(td_builder *b, const text_ref *t, size_t n, size_t from, unsigned depth)
{
  td_expr_list alt = {0};
  size_t i = 0;
  if (t[0].n == from) {
    td_expr_add(b, &alt, &td_expr_empty);
    while (i < n && t[i].n == from)
      i++;
  }
  while (i < n && !b->failed) {
    size_t k = i + 1;
    while (k < n && depth < TEXTS_DEPTH && t[k].at[from] == t[i].at[from])
      k++;
    size_t to = k - i > 1 ? common_prefix(&t[i], &t[k - 1], from) : t[i].n;
    const td_expr *head = td_expr_text(b, (const char *)t[i].at + from, to - from);
    td_expr_add(b, &alt,
                k - i > 1 ? td_expr_cat2(b, head, share_prefixes(b, t + i, k - i, to, depth + 1)) : head);
    i = k;
  }
  return td_expr_alt(b, &alt);
}

const td_expr *td_expr_texts(td_builder *b, const char **texts, size_t *lengths, size_t n)
{
  text_ref *t = n ? take(b, n * sizeof *t) : NULL;
  if (!t)
    return &td_expr_none;
  for (size_t i = 0; i < n; i++)
    t[i] = (text_ref){(const unsigned char *)texts[i], lengths[i]};
  qsort(t, n, sizeof *t, compare_texts);
  return share_prefixes(b, t, n, 0, 0);
}
