/* The texts that several expressions have in common and that others do not match. Their machines run in
 * parallel. */
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "models/grammar/internal.h"

typedef struct tuple {
  uint32_t at[TD_GRAMMAR_SIDES_MAX];
} tuple;

typedef struct product {
  td_builder *b;
  td_rules rules[TD_GRAMMAR_SIDES_MAX];
  td_machine machines[TD_GRAMMAR_SIDES_MAX];
  uint32_t n, n_wanted;
  tuple *states;
  td_graph_state *out; /* copied to the arena at the end */
  uint32_t n_states, cap_states;
  uint32_t *slots, n_slots;
  td_byte_set classes[256];          /* bytes that no machine distinguishes */
  uint8_t class_representative[256]; /* one byte of each class */
  uint32_t n_classes;
  bool failed;
} product;

typedef enum made { MADE, MADE_NONE, MADE_FAILED } made;

/* Makes a rule of the expression, so that a machine can run it. MADE_NONE: no text fits it. */
static made make_machine(td_builder *b, const td_expr *e, td_rules *rules, td_machine *m)
{
  td_error ignored;
  if (e->kind == TD_EXPR_NONE && !b->failed)
    return MADE_NONE;
  uint32_t root = td_builder_add_rule(b);
  if (b->failed)
    return MADE_FAILED;
  b->rules[root] = e;
  bool ok = td_rules_make(b, root, 0, rules, &ignored) == TD_OK;
  b->n_rules--;
  bool none = rules->none && !rules->failed;
  b->arena.no_memory |= rules->no_memory;
  if (td_builder_work(b, rules->work + rules->n_insts) && ok && td_machine_init(m, rules))
    return MADE;
  b->arena.no_memory |= m->no_memory;
  td_machine_deinit(m);
  td_rules_deinit(rules);
  return none && !b->failed ? MADE_NONE : MADE_FAILED;
}

/* Counts the machine's work since the last call, and `more`. */
static void count_work(td_builder *b, td_machine *m, uint64_t more)
{
  (void)td_builder_work(b, m->work + more);
  m->work = 0;
  m->max_work = td_builder_work_left(b);
}

/* The slot of t, or a free one for it. */
static uint32_t slot_of(const product *p, const tuple *t)
{
  uint32_t k = (uint32_t)td_hash_bytes(0, t->at, p->n * sizeof *t->at) & (p->n_slots - 1);
  while (p->slots[k] && memcmp(p->states[p->slots[k] - 1].at, t->at, p->n * sizeof *t->at) != 0)
    k = (k + 1) & (p->n_slots - 1);
  return k;
}

static bool grow_slots(product *p)
{
  uint32_t n = p->n_slots ? p->n_slots * 4 : 256, *slots = calloc(n, sizeof *slots);
  if (!slots) {
    p->failed = p->b->arena.no_memory = true;
    return false;
  }
  free(p->slots);
  p->slots = slots;
  p->n_slots = n;
  for (uint32_t i = 0; i < p->n_states; i++)
    slots[slot_of(p, &p->states[i])] = i + 1;
  return true;
}

static uint32_t find_or_add(product *p, const tuple *t)
{
  if (p->n_states * 2 >= p->n_slots && !grow_slots(p))
    return 0;
  uint32_t k = slot_of(p, t);
  if (p->slots[k])
    return p->slots[k] - 1;
  if (p->n_states == td_limit_max(TD_LIMIT_GRAMMAR_PRODUCT_STATES)) {
    p->failed = true;
    return 0;
  }
  if (p->n_states == p->cap_states) {
    p->cap_states = p->cap_states ? p->cap_states * 2 : 64;
    tuple *q = realloc(p->states, p->cap_states * sizeof *q);
    if (!q) {
      p->failed = p->b->arena.no_memory = true;
      return 0;
    }
    p->states = q;
  }
  p->states[p->n_states] = *t;
  p->slots[k] = ++p->n_states;
  return p->n_states - 1;
}

static bool step_all(product *p, const tuple *from, unsigned byte, tuple *to)
{
  for (uint32_t i = 0; i < p->n; i++) {
    bool dead = from->at[i] == TD_STATE_DEAD;
    to->at[i] = dead ? TD_STATE_DEAD : td_machine_step(&p->machines[i], from->at[i], byte);
    p->failed |= p->machines[i].full;
    p->b->arena.no_memory |= p->machines[i].no_memory;
    if (i < p->n_wanted && to->at[i] == TD_STATE_DEAD)
      return false;
  }
  return !p->failed;
}

static bool is_whole(const product *p, const tuple *t)
{
  for (uint32_t i = 0; i < p->n; i++)
    if (p->machines[i].states[t->at[i]].whole != (i < p->n_wanted))
      return false;
  return true;
}

static void add_set(td_byte_set *to, const td_byte_set *from)
{
  for (unsigned i = 0; i < 4; i++)
    to->bits[i] |= from->bits[i];
}

static void add_edge(product *p, td_graph_state *s, uint32_t to, const td_byte_set *set)
{
  for (uint32_t i = 0; i < s->n_edges; i++)
    if (s->edges[i].to == to) {
      add_set(&s->edges[i].set, set);
      return;
    }
  if ((s->n_edges & (s->n_edges - 1)) == 0) { /* full at 0, 1, 2, 4 ... */
    uint32_t cap = s->n_edges ? s->n_edges * 2 : 1;
    td_graph_edge *e = td_arena_alloc_array(&p->b->arena, cap, sizeof *e);
    if (!e) {
      p->failed = true;
      return;
    }
    if (s->n_edges > 0)
      memcpy(e, s->edges, s->n_edges * sizeof *e);
    s->edges = e;
  }
  s->edges[s->n_edges++] = (td_graph_edge){.to = to, .set = *set};
}

static bool is_alike(const product *p, unsigned a, unsigned b)
{
  for (uint32_t i = 0; i < p->n; i++)
    if (p->rules[i].class_of[a] != p->rules[i].class_of[b])
      return false;
  return true;
}

static void make_classes(product *p)
{
  for (unsigned byte = 0; byte < 256; byte++) {
    uint32_t k = 0;
    while (k < p->n_classes && !is_alike(p, p->class_representative[k], byte))
      k++;
    if (k == p->n_classes)
      p->class_representative[p->n_classes++] = (uint8_t)byte;
    td_byte_set_add(&p->classes[k], byte);
  }
}

/* Work for each machine and state, for steps that the machine already knows. */
static uint64_t explored(const product *p) { return 1 + p->n_classes / 8; }

static void explore(product *p)
{
  tuple start, next;
  make_classes(p);
  for (uint32_t i = 0; i < p->n; i++)
    start.at[i] = td_machine_start(&p->machines[i]);
  (void)find_or_add(p, &start);
  for (uint32_t k = 0; k < p->n_states && !p->failed; k++) {
    tuple from = p->states[k];
    for (uint32_t i = 0; i < p->n; i++)
      count_work(p->b, &p->machines[i], explored(p));
    p->failed |= p->b->failed;
    td_graph_state s = {.whole = is_whole(p, &from)};
    for (uint32_t c = 0; c < p->n_classes && !p->failed; c++)
      if (step_all(p, &from, p->class_representative[c], &next))
        add_edge(p, &s, find_or_add(p, &next), &p->classes[c]);
    if (k % 64 == 0) {
      td_graph_state *q = realloc(p->out, (k + 64) * sizeof *q);
      if (!q)
        p->failed = p->b->arena.no_memory = true;
      p->out = q ? q : p->out;
    }
    if (!p->failed)
      p->out[k] = s;
  }
}

static const td_expr *as_expr(product *p)
{
  td_expr *e = td_arena_alloc(&p->b->arena, sizeof *e);
  td_graph_state *s = td_arena_alloc_array(&p->b->arena, p->n_states, sizeof *s);
  if (!e || !s) {
    p->b->failed = true;
    return &td_expr_none;
  }
  memcpy(s, p->out, p->n_states * sizeof *s);
  e->kind = TD_EXPR_GRAPH;
  e->n = p->n_states;
  e->u.states = s;
  return e;
}

static void clean(product *p)
{
  for (uint32_t i = 0; i < p->n; i++) {
    td_machine_deinit(&p->machines[i]);
    td_rules_deinit(&p->rules[i]);
  }
  free(p->states);
  free(p->out);
  free(p->slots);
  free(p);
}

/* MADE_NONE: no text fits a wanted expression. An unwanted one that no text fits is ignored. */
static made make_machines(product *p, const td_expr *const *wanted, uint32_t n_wanted,
                          const td_expr *const *unwanted, uint32_t n_unwanted)
{
  p->n_wanted = n_wanted;
  for (uint32_t i = 0; i < n_wanted + n_unwanted; i++) {
    const td_expr *e = i < n_wanted ? wanted[i] : unwanted[i - n_wanted];
    made m = make_machine(p->b, e, &p->rules[p->n], &p->machines[p->n]);
    if (m == MADE)
      p->n++;
    else if (m == MADE_FAILED || i < n_wanted)
      return m;
  }
  return MADE;
}

enum { PRODUCT = 1024 }; /* work to set up its tables */

const td_expr *td_expr_intersect(td_builder *b, const td_expr *const *wanted, uint32_t n_wanted,
                                 const td_expr *const *unwanted, uint32_t n_unwanted, bool *too_large)
{
  const td_expr *e = &td_expr_none;
  *too_large = false;
  for (uint32_t i = 0; i < n_wanted; i++)
    if (wanted[i]->kind == TD_EXPR_NONE)
      return e;
  product *p = n_wanted + n_unwanted <= TD_GRAMMAR_SIDES_MAX ? calloc(1, sizeof *p) : NULL;
  if (!p || !td_builder_work(b, PRODUCT)) {
    b->arena.no_memory |= !p && n_wanted + n_unwanted <= TD_GRAMMAR_SIDES_MAX;
    free(p);
    *too_large = true;
    return e;
  }
  p->b = b;
  made m = make_machines(p, wanted, n_wanted, unwanted, n_unwanted);
  if (m == MADE) {
    explore(p);
    if (!p->failed)
      e = as_expr(p);
  }
  *too_large = m == MADE_FAILED || p->failed;
  clean(p);
  return e;
}

/* ---- trying texts ---- */

struct td_tester {
  td_builder *b;
  td_rules rules;
  td_machine machine;
  bool none;
};

td_tester *td_tester_create(td_builder *b, const td_expr *e)
{
  td_tester *t = calloc(1, sizeof *t);
  made m = t ? make_machine(b, e, &t->rules, &t->machine) : MADE_FAILED;
  if (m == MADE_FAILED) {
    b->failed = true;
    b->arena.no_memory |= !t;
    free(t);
    return NULL;
  }
  t->b = b;
  t->none = m == MADE_NONE;
  return t;
}

void td_tester_destroy(td_tester *t)
{
  if (!t)
    return;
  td_machine_deinit(&t->machine);
  td_rules_deinit(&t->rules);
  free(t);
}

static bool try_text(td_tester *t, const char *bytes, size_t n)
{
  td_machine *m = &t->machine;
  count_work(t->b, m, 16);
  uint32_t state = td_machine_start(m);
  for (size_t i = 0; i < n && state != TD_STATE_DEAD && !t->b->failed; i++) {
    state = td_machine_step(m, state, (unsigned char)bytes[i]);
    count_work(t->b, m, 1);
  }
  return m->states[state].whole;
}

/* If the machine runs out of memory, it forgets its states, and then has room for one text. */
bool td_tester_fits(td_tester *t, const char *bytes, size_t n)
{
  if (t->none || t->b->failed)
    return false;
  bool fits = try_text(t, bytes, n);
  if (t->machine.full) {
    td_machine_forget(&t->machine);
    fits = try_text(t, bytes, n);
  }
  t->b->failed |= t->machine.full;
  t->b->arena.no_memory |= t->machine.no_memory;
  return fits && !t->b->failed;
}
