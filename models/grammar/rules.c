/* The program of a grammar: see rules.h. Expressions are written from their end to their beginning, so that
 * each knows the instruction that follows it. */
#include "models/grammar/rules.h"

#include <stdlib.h>
#include <string.h>

#include "common/progress.h"
#include "config/limits.h"

/* ---- writing ---- */

static void no_memory(td_rules *r) { r->failed = r->no_memory = true; }

enum { WRITTEN = 8 };

typedef struct td_writing {
  uint32_t *numbers; /* [n_rules of the builder] the program's number of each rule */
  struct {
    const td_expr *e;
    uint32_t next, at;
  } written[WRITTEN]; /* the last shared expressions that were written */
  uint32_t n_written;
} td_writing;

/* Makes room for one more of n items. Returns false if the rules have failed. */
static bool grow(td_rules *r, void *array, uint32_t n, uint32_t *cap, size_t size)
{
  void **p = array;
  if (n == *cap && !r->failed) {
    uint32_t to = *cap ? *cap * 2 : 32;
    void *q = realloc(*p, to * size);
    if (!q) {
      no_memory(r);
      return false;
    }
    *p = q;
    *cap = to;
  }
  return !r->failed;
}

static uint32_t put(td_rules *r, td_inst inst)
{
  r->failed |= r->n_insts >= r->max_insts;
  if (!grow(r, &r->insts, r->n_insts, &r->cap_insts, sizeof inst))
    return 0;
  r->insts[r->n_insts] = inst;
  return r->n_insts++;
}

static uint32_t put_repeat(td_rules *r, td_rule_repeat repeat)
{
  if (!grow(r, &r->repeats, r->n_repeats, &r->cap_repeats, sizeof repeat))
    return 0;
  r->repeats[r->n_repeats] = repeat;
  return r->n_repeats++;
}

enum { SETS_COMPARED = 64 };

static uint32_t put_set(td_rules *r, const td_byte_set *s)
{
  for (uint32_t i = r->n_sets; i-- > 0 && i + SETS_COMPARED >= r->n_sets;)
    if (memcmp(&r->sets[i], s, sizeof *s) == 0)
      return i;
  if (!grow(r, &r->sets, r->n_sets, &r->cap_sets, sizeof *s))
    return 0;
  r->sets[r->n_sets] = *s;
  return r->n_sets++;
}

static uint32_t write_set(td_rules *r, const td_byte_set *s, uint32_t next)
{
  unsigned lo = 256, hi = 0, n = 0;
  for (unsigned i = 0; i < 4; i++) {
    if (s->bits[i] == 0)
      continue;
    n += (unsigned)__builtin_popcountll(s->bits[i]);
    lo = lo < 256 ? lo : 64 * i + (unsigned)__builtin_ctzll(s->bits[i]);
    hi = 64 * i + 63 - (unsigned)__builtin_clzll(s->bits[i]);
  }
  if (n > 0 && n == hi - lo + 1)
    return put(r, (td_inst){.op = TD_RULE_OP_RANGE, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .x = next});
  return put(r, (td_inst){.op = TD_RULE_OP_SET, .x = next, .y = put_set(r, s)});
}

static uint32_t write(td_rules *r, const td_expr *e, uint32_t next);

static uint32_t write_repeat(td_rules *r, const td_expr *e, uint32_t next)
{
  uint32_t at = next;
  if (td_expr_is_counted(e->u.body)) {
    uint32_t repeat = put_repeat(r, (td_rule_repeat){r->writing->numbers[e->u.body->n], e->min, e->max});
    return put(r, (td_inst){.op = TD_RULE_OP_REPEAT, .x = repeat, .y = next});
  }
  if (e->max == TD_REPEAT_MANY) {
    at = put(r, (td_inst){.op = TD_RULE_OP_SPLIT, .y = next});
    uint32_t body = write(r, e->u.body, at);
    if (!r->failed)
      r->insts[at].x = body;
  }
  for (uint32_t i = e->min; i < e->max && e->max != TD_REPEAT_MANY && !r->failed; i++) {
    uint32_t body = write(r, e->u.body, at);
    at = put(r, (td_inst){.op = TD_RULE_OP_SPLIT, .x = body, .y = next});
  }
  for (uint32_t i = 0; i < e->min && !r->failed; i++)
    at = write(r, e->u.body, at);
  return at;
}

static uint32_t write_edges(td_rules *r, const td_graph_state *s, uint32_t first, uint32_t next)
{
  td_byte_set none = {0};
  uint32_t at = s->whole ? next : put(r, (td_inst){.op = TD_RULE_OP_SET, .x = next, .y = put_set(r, &none)});
  for (uint32_t i = 0; i < s->n_edges && !r->failed; i++) {
    uint32_t edge = write_set(r, &s->edges[i].set, first + s->edges[i].to);
    at = put(r, (td_inst){.op = TD_RULE_OP_SPLIT, .x = edge, .y = at});
  }
  return at;
}

/* Reserves a row of instructions for the states first, so that edges can refer to states that are not written
 * yet. */
static uint32_t write_graph(td_rules *r, const td_expr *e, uint32_t next)
{
  uint32_t first = r->n_insts;
  for (uint32_t i = 0; i < e->n && !r->failed; i++)
    (void)put(r, (td_inst){.op = TD_RULE_OP_SPLIT});
  for (uint32_t i = 0; i < e->n && !r->failed; i++) {
    uint32_t at = write_edges(r, &e->u.states[i], first, next);
    if (!r->failed)
      r->insts[first + i].x = r->insts[first + i].y = at;
  }
  return first;
}

static uint32_t write_new(td_rules *r, const td_expr *e, uint32_t next);

/* Writes e, followed by the instruction `next`. Returns the first instruction of e. */
static uint32_t write(td_rules *r, const td_expr *e, uint32_t next)
{
  td_writing *w = r->writing;
  if (!e->is_shared)
    return write_new(r, e, next);
  for (uint32_t i = 0; i < WRITTEN; i++)
    if (w->written[i].e == e && w->written[i].next == next)
      return w->written[i].at;
  uint32_t at = write_new(r, e, next), k = w->n_written++ % WRITTEN;
  w->written[k].e = e;
  w->written[k].next = next;
  w->written[k].at = at;
  return at;
}

static uint32_t write_new(td_rules *r, const td_expr *e, uint32_t next)
{
  td_byte_set none = {0};
  uint32_t at = next;
  if (r->failed)
    return 0;
  switch (e->kind) {
  case TD_EXPR_EMPTY: return next;
  case TD_EXPR_NONE: return put(r, (td_inst){.op = TD_RULE_OP_SET, .x = next, .y = put_set(r, &none)});
  case TD_EXPR_TEXT:
    for (uint32_t i = e->n; i-- > 0;) {
      uint8_t c = (uint8_t)e->u.text[i];
      at = put(r, (td_inst){.op = TD_RULE_OP_RANGE, .lo = c, .hi = c, .x = at});
    }
    return at;
  case TD_EXPR_SET: return write_set(r, &e->set, next);
  case TD_EXPR_CAT:
    for (uint32_t i = e->n; i-- > 0;)
      at = write(r, e->u.items[i], at);
    return at;
  case TD_EXPR_ALT:
    at = write(r, e->u.items[e->n - 1], next);
    for (uint32_t i = e->n - 1; i-- > 0;) {
      uint32_t item = write(r, e->u.items[i], next);
      at = put(r, (td_inst){.op = TD_RULE_OP_SPLIT, .x = item, .y = at});
    }
    return at;
  case TD_EXPR_REPEAT: return write_repeat(r, e, next);
  case TD_EXPR_CALL:
    return put(r, (td_inst){.op = TD_RULE_OP_CALL, .x = r->writing->numbers[e->n], .y = next});
  case TD_EXPR_GRAPH: return write_graph(r, e, next);
  }
  return 0;
}

/* ---- instructions from which the end can be reached ---- */

/* Counts work, because a hostile grammar may need many rounds over many rules. */
static bool may_work(td_rules *r, uint64_t n)
{
  r->work += n;
  r->failed |= r->work > r->max_work;
  if (n >= 64 || r->work % 64 == 0)
    td_progress_add(1 + n / 64);
  return !r->failed;
}

static bool goes_on(const td_rules *r, const td_inst *i)
{
  static const td_byte_set none;
  switch (i->op) {
  case TD_RULE_OP_RETURN: return true;
  case TD_RULE_OP_RANGE: return r->insts[i->x].live;
  case TD_RULE_OP_SET: return r->insts[i->x].live && memcmp(&r->sets[i->y], &none, sizeof none) != 0;
  case TD_RULE_OP_SPLIT: return r->insts[i->x].live || r->insts[i->y].live;
  case TD_RULE_OP_CALL: return r->insts[r->starts[i->x]].live && r->insts[i->y].live;
  case TD_RULE_OP_REPEAT:
    return (r->repeats[i->x].min == 0 || r->insts[r->starts[r->repeats[i->x].rule]].live) &&
           r->insts[i->y].live;
  }
  return false;
}

/* The instructions at which i may continue, at most two. Returns their number. */
static uint32_t next_of(const td_rules *r, const td_inst *i, uint32_t next[2])
{
  if (i->op == TD_RULE_OP_RETURN)
    return 0;
  next[0] = i->op == TD_RULE_OP_CALL     ? r->starts[i->x]
            : i->op == TD_RULE_OP_REPEAT ? r->starts[r->repeats[i->x].rule]
                                         : i->x;
  if (i->op == TD_RULE_OP_RANGE || i->op == TD_RULE_OP_SET)
    return 1;
  next[1] = i->y;
  return 2;
}

typedef struct back {
  uint32_t *first;       /* [n_insts + 1] index into from: the instructions that continue at each one */
  uint32_t *from, *todo; /* [2 * n_insts], [n_insts] */
} back;

static void find_back(const td_rules *r, back *k)
{
  uint32_t next[2];
  for (uint32_t i = 0; i < r->n_insts; i++)
    for (uint32_t n = next_of(r, &r->insts[i], next); n-- > 0;)
      k->first[next[n]]++;
  for (uint32_t i = 0; i < r->n_insts; i++)
    k->first[i + 1] += k->first[i];
  for (uint32_t i = 0; i < r->n_insts; i++)
    for (uint32_t n = next_of(r, &r->insts[i], next); n-- > 0;)
      k->from[--k->first[next[n]]] = i;
}

/* Marks instructions from which the end of their rule can be reached, working backwards from the ends. */
static void mark_live(td_rules *r)
{
  back k = {calloc((size_t)r->n_insts + 2, sizeof *k.first),
            calloc(2 * (size_t)r->n_insts + 1, sizeof *k.from),
            calloc((size_t)r->n_insts + 1, sizeof *k.todo)};
  uint32_t n = 0;
  if (!k.first || !k.from || !k.todo)
    no_memory(r);
  else
    find_back(r, &k);
  for (uint32_t i = 0; i < r->n_insts && !r->failed; i++)
    if (r->insts[i].op == TD_RULE_OP_RETURN) {
      r->insts[i].live = true;
      k.todo[n++] = i;
    }
  (void)may_work(r, 2 * (uint64_t)r->n_insts);
  while (n > 0 && !r->failed) {
    uint32_t at = k.todo[--n];
    for (uint32_t e = k.first[at]; e < k.first[at + 1]; e++) {
      td_inst *i = &r->insts[k.from[e]];
      if (!i->live && goes_on(r, i)) {
        i->live = true;
        k.todo[n++] = k.from[e];
      }
    }
  }
  free(k.first);
  free(k.from);
  free(k.todo);
}

/* ---- which rules begin with which ---- */

typedef struct reach {
  td_rules *r;
  uint8_t *empty;  /* [n_rules]: the rule may match the empty text */
  uint32_t *stack; /* [n_insts + 1] */
  uint32_t *seen;  /* [n_insts]: number of the last visit */
  uint32_t visit;
} reach;

/* Follows all instructions from start that take no byte. Calls f for each rule that is called on the way.
 * Returns true if the rule's end is reached. */
static bool go_empty(reach *w, uint32_t start, void (*f)(void *arg, uint32_t rule), void *arg)
{
  uint32_t n = 0;
  bool ends = false;
  w->visit++;
  w->stack[n++] = start;
  w->seen[start] = w->visit;
  while (n > 0 && may_work(w->r, 1)) {
    const td_inst *i = &w->r->insts[w->stack[--n]];
    uint32_t next[2], k = 0;
    if (!i->live)
      continue;
    if (i->op == TD_RULE_OP_RETURN)
      ends = true;
    if (i->op == TD_RULE_OP_SPLIT)
      next[k++] = i->x, next[k++] = i->y;
    if (i->op == TD_RULE_OP_CALL) {
      if (f)
        f(arg, i->x);
      if (w->empty[i->x])
        next[k++] = i->y;
    }
    if (i->op == TD_RULE_OP_REPEAT) {
      if (f)
        f(arg, w->r->repeats[i->x].rule);
      if (w->r->repeats[i->x].min == 0)
        next[k++] = i->y;
    }
    while (k > 0)
      if (w->seen[next[--k]] != w->visit) {
        w->seen[next[k]] = w->visit;
        w->stack[n++] = next[k];
      }
  }
  return ends;
}

static void find_empty(reach *w)
{
  for (bool changed = true; changed && may_work(w->r, w->r->n_rules);) {
    changed = false;
    for (uint32_t k = 0; k < w->r->n_rules; k++)
      if (!w->empty[k] && go_empty(w, w->r->starts[k], NULL, NULL))
        w->empty[k] = changed = true;
  }
}

typedef struct edges {
  uint32_t *to;
  uint32_t n, cap;
  bool failed;
} edges;

static void add_edge(void *arg, uint32_t rule)
{
  edges *e = arg;
  if (e->n == e->cap && !e->failed) {
    uint32_t cap = e->cap ? e->cap * 2 : 64;
    uint32_t *p = realloc(e->to, cap * sizeof *p);
    e->failed = !p;
    if (p) {
      e->to = p;
      e->cap = cap;
    }
  }
  if (!e->failed)
    e->to[e->n++] = rule;
}

/* Ranks rules so that each rule comes after those that begin with it. Returns false if a rule begins with
 * itself or there is no memory. */
static bool rank_rules(reach *w)
{
  td_rules *r = w->r;
  edges e = {0};
  uint32_t *from = calloc(r->n_rules + 1, sizeof *from), *into = calloc(r->n_rules, sizeof *into);
  uint32_t *ready = calloc(r->n_rules, sizeof *ready), n_ready = 0, n_ranked = 0;
  for (uint32_t k = 0; from && k < r->n_rules; k++) {
    from[k] = e.n;
    (void)go_empty(w, r->starts[k], add_edge, &e);
    from[k + 1] = e.n;
  }
  bool ok = from && into && ready && !e.failed;
  if (!ok)
    no_memory(r);
  for (uint32_t i = 0; ok && i < e.n; i++)
    into[e.to[i]]++;
  for (uint32_t k = 0; ok && k < r->n_rules; k++)
    if (into[k] == 0)
      ready[n_ready++] = k;
  while (ok && n_ready > 0) {
    uint32_t k = ready[--n_ready];
    r->ranks[k] = n_ranked++;
    for (uint32_t i = from[k]; i < from[k + 1]; i++)
      if (--into[e.to[i]] == 0)
        ready[n_ready++] = e.to[i];
  }
  free(e.to);
  free(from);
  free(into);
  free(ready);
  return ok && n_ranked == r->n_rules;
}

static td_status order_rules(td_rules *r, td_error *err)
{
  reach w = {.r = r,
             .empty = calloc(r->n_rules, 1),
             .stack = calloc(r->n_insts + 1, sizeof(uint32_t)),
             .seen = calloc(r->n_insts, sizeof(uint32_t))};
  bool memory = w.empty && w.stack && w.seen, ok = false;
  if (memory) {
    find_empty(&w);
    ok = rank_rules(&w);
  }
  free(w.empty);
  free(w.stack);
  free(w.seen);
  if (!memory || r->no_memory)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a grammar");
  if (r->failed)
    return td_fail(err, TD_ERR_REQUEST, "the grammar is too large");
  return ok ? TD_OK
            : td_fail(err, TD_ERR_REQUEST, "a rule begins with itself (left recursion, or a $ref loop)");
}

/* ---- classes of bytes ---- */

/* Bytes that form a class of their own, and the other classes, each of two or more bytes. */
typedef struct classes {
  td_byte_set alone, many[128];
  uint32_t n_many;
} classes;

static unsigned count_bits(const td_byte_set *s)
{
  unsigned n = 0;
  for (unsigned k = 0; k < 4; k++)
    n += (unsigned)__builtin_popcountll(s->bits[k]);
  return n;
}

static td_byte_set both_of(const td_byte_set *a, const td_byte_set *b, bool without)
{
  td_byte_set out;
  for (unsigned k = 0; k < 4; k++)
    out.bits[k] = a->bits[k] & (without ? ~b->bits[k] : b->bits[k]);
  return out;
}

static void add_class(classes *c, const td_byte_set *s)
{
  if (count_bits(s) > 1)
    c->many[c->n_many++] = *s;
  else
    for (unsigned k = 0; k < 4; k++)
      c->alone.bits[k] |= s->bits[k];
}

static void split_classes(classes *c, const td_byte_set *s)
{
  for (uint32_t i = c->n_many; i-- > 0;) {
    td_byte_set in = both_of(&c->many[i], s, false), out = both_of(&c->many[i], s, true);
    if (count_bits(&in) == 0 || count_bits(&out) == 0)
      continue;
    c->many[i] = c->many[--c->n_many]; /* the last class was already looked at */
    add_class(c, &in);
    add_class(c, &out);
  }
}

static void number_classes(td_rules *r, const classes *c)
{
  r->n_classes = 0;
  for (unsigned byte = 0; byte < 256; byte++)
    if (td_byte_set_has(&c->alone, byte))
      r->class_of[byte] = (uint8_t)r->n_classes++;
  for (uint32_t i = 0; i < c->n_many; i++, r->n_classes++)
    for (unsigned byte = 0; byte < 256; byte++)
      if (td_byte_set_has(&c->many[i], byte))
        r->class_of[byte] = (uint8_t)r->n_classes;
  for (unsigned byte = 0; byte < 256; byte++)
    r->class_representative[r->class_of[byte]] = (uint8_t)byte;
}

static void make_classes(td_rules *r)
{
  static _Thread_local uint64_t seen[256][4];
  classes c = {.n_many = 0};
  td_byte_set rest = {{~0ull, ~0ull, ~0ull, ~0ull}};
  memset(seen, 0, sizeof seen);
  for (uint32_t i = 0; i < r->n_insts; i++) {
    const td_inst *t = &r->insts[i];
    if (t->op == TD_RULE_OP_RANGE)
      seen[t->lo][t->hi / 64] |= 1ull << t->hi % 64;
  }
  for (unsigned byte = 0; byte < 256; byte++)
    if (seen[byte][byte / 64] >> byte % 64 & 1)
      td_byte_set_add(&c.alone, byte);
  rest = both_of(&rest, &c.alone, true);
  if (count_bits(&rest) > 0)
    add_class(&c, &rest);
  for (unsigned lo = 0; lo < 256; lo++)
    for (unsigned k = 0; k < 4; k++)
      for (uint64_t his = seen[lo][k]; his; his &= his - 1) {
        td_byte_set s = {0};
        for (unsigned b = lo; b <= 64 * k + (unsigned)__builtin_ctzll(his); b++)
          td_byte_set_add(&s, b);
        split_classes(&c, &s);
      }
  for (uint32_t i = 0; i < r->n_sets; i++)
    split_classes(&c, &r->sets[i]);
  number_classes(r, &c);
}

/* ---- the whole program ---- */

typedef struct used {
  const td_builder *b;
  uint8_t *rules; /* [n_rules] */
  uint32_t *todo, n_todo;
} used;

static void use(used *u, const td_expr *e)
{
  if (e->kind == TD_EXPR_CALL && !u->rules[e->n]) {
    u->rules[e->n] = 1;
    u->todo[u->n_todo++] = e->n;
  } else if (e->kind == TD_EXPR_REPEAT) {
    use(u, e->u.body);
  } else if (e->kind == TD_EXPR_CAT || e->kind == TD_EXPR_ALT) {
    for (uint32_t i = 0; i < e->n; i++)
      use(u, e->u.items[i]);
  }
}

/* Marks the rules that root and the shared rules use. */
static uint8_t *find_used(const td_builder *b, uint32_t root, uint32_t n_shared)
{
  used u = {b, calloc(b->n_rules, 1), calloc(b->n_rules, sizeof(uint32_t)), 0};
  if (u.rules && u.todo) {
    u.rules[root] = 1;
    u.todo[u.n_todo++] = root;
    for (uint32_t k = 0; k < n_shared; k++)
      if (!u.rules[k]) {
        u.rules[k] = 1;
        u.todo[u.n_todo++] = k;
      }
    while (u.n_todo > 0)
      use(&u, b->rules[u.todo[--u.n_todo]]);
  } else {
    free(u.rules);
    u.rules = NULL;
  }
  free(u.todo);
  return u.rules;
}

/* Writes the rules in use. Rules that are not used get no number: there may be many, belonging to other
 * expressions. */
static bool write_rules(const td_builder *b, uint32_t root, uint32_t n_shared, td_rules *r)
{
  uint8_t *is_used = find_used(b, root, n_shared);
  uint32_t *numbers = calloc(b->n_rules, sizeof *numbers);
  td_writing writing = {.numbers = numbers};
  for (uint32_t k = 0; is_used && numbers && k < b->n_rules; k++) {
    numbers[k] = r->n_rules;
    r->n_rules += is_used[k];
  }
  r->starts = calloc(r->n_rules + 1, sizeof *r->starts);
  r->ranks = calloc(r->n_rules + 1, sizeof *r->ranks);
  if (!r->starts || !r->ranks || !is_used || !numbers)
    no_memory(r);
  else
    r->root = numbers[root];
  r->writing = &writing;
  for (uint32_t k = 0; k < b->n_rules && !r->failed; k++) {
    if (is_used[k])
      r->starts[numbers[k]] = write(r, b->rules[k], put(r, (td_inst){.op = TD_RULE_OP_RETURN}));
    if (k + 1 == n_shared)
      r->n_shared_insts = r->n_insts;
  }
  r->writing = NULL;
  free(numbers);
  free(is_used);
  return !r->failed;
}

static td_status too_large(const td_builder *b, const td_rules *r, td_error *err)
{
  return b->arena.no_memory || r->no_memory ? td_fail(err, TD_ERR_NOMEM, "no memory for a grammar")
                                            : td_fail(err, TD_ERR_REQUEST, "the grammar is too large");
}

td_status td_rules_make(const td_builder *b, uint32_t root, uint32_t n_shared, td_rules *r, td_error *err)
{
  *r = (td_rules){.max_insts = (uint32_t)td_limit_max(TD_LIMIT_GRAMMAR_INSTRUCTIONS),
                  .max_work = td_builder_work_left(b)};
  if (b->failed || !write_rules(b, root, n_shared, r))
    return too_large(b, r, err);
  mark_live(r);
  if (r->failed)
    return too_large(b, r, err);
  r->none = !r->insts[r->starts[r->root]].live;
  if (r->none)
    return td_fail(err, TD_ERR_REQUEST, "no text fits: what it asks for contradicts itself");
  TD_TRY(order_rules(r, err));
  make_classes(r);
  return TD_OK;
}

void td_rules_deinit(td_rules *r)
{
  free(r->insts);
  free(r->sets);
  free(r->repeats);
  free(r->starts);
  free(r->ranks);
  *r = (td_rules){0};
}
