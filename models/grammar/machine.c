/* The states that an answer can be in: see machine.h. */
#include "models/grammar/machine.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "config/limits.h"

/* ---- memory ---- */

static bool take_bytes(td_machine *m, size_t n)
{
  if (m->bytes + n > m->max_bytes || (m->ledger && !td_ledger_use(m->ledger, n))) {
    m->full = true;
    return false;
  }
  m->bytes += n;
  return true;
}

static void give_bytes(td_machine *m, size_t n)
{
  m->bytes -= n;
  if (m->ledger)
    td_ledger_free(m->ledger, n);
}

/* NULL if there is no memory. */
static void *take_zeroed(td_machine *m, size_t n, size_t size)
{
  void *p = take_bytes(m, n * size) ? calloc(n, size) : NULL;
  if (!p && !m->full) {
    give_bytes(m, n * size);
    m->no_memory = true;
  }
  m->full |= !p;
  return p;
}

static bool grow(td_machine *m, void *array, uint32_t *cap, uint32_t need, size_t size)
{
  void **p = array;
  if (need <= *cap)
    return true;
  uint32_t to = *cap ? *cap : 64;
  while (to < need)
    to *= 2;
  size_t more = (size_t)(to - *cap) * size;
  if (!take_bytes(m, more))
    return false;
  void *q = realloc(*p, to * size);
  if (!q) {
    give_bytes(m, more);
    m->full = m->no_memory = true;
    return false;
  }
  *p = q;
  *cap = to;
  return true;
}

/* Shrinks the array to at most `to` items. */
static void shrink(td_machine *m, void *array, uint32_t *cap, uint32_t to, size_t size)
{
  void **p = array, *q = *cap > to ? realloc(*p, to * size) : NULL;
  if (!q)
    return;
  *p = q;
  give_bytes(m, (size_t)(*cap - to) * size);
  *cap = to;
}

/* ---- hash tables of numbers ---- */

enum { SLOTS_LEAST = 128 };

static bool table_grow(td_machine *m, td_table *t, const void *items, size_t size, size_t hash_at)
{
  if (t->n * 2 < t->n_slots)
    return true;
  uint32_t n_slots = t->n_slots ? t->n_slots * 2 : SLOTS_LEAST;
  uint32_t *slots = take_zeroed(m, n_slots, sizeof *slots);
  if (!slots)
    return false;
  for (uint32_t i = 0; i < t->n_slots; i++)
    if (t->slots[i]) {
      uint64_t h;
      memcpy(&h, (const char *)items + t->slots[i] * size + hash_at, sizeof h);
      uint32_t k = (uint32_t)h & (n_slots - 1);
      while (slots[k])
        k = (k + 1) & (n_slots - 1);
      slots[k] = t->slots[i];
    }
  give_bytes(m, t->n_slots * sizeof *slots);
  free(t->slots);
  t->slots = slots;
  t->n_slots = n_slots;
  return true;
}

static uint64_t hash_pairs(const void *pairs, uint32_t n, bool flag)
{
  const char *p = pairs;
  uint64_t h = 0x9E3779B97F4A7C15u + flag;
  for (uint32_t i = 0; i < n; i++) {
    uint64_t v;
    memcpy(&v, p + i * sizeof v, sizeof v);
    h = td_hash_mix(h ^ v, 0xD6E8FEB86659FD93u);
  }
  return h ^ h >> 32;
}

/* ---- sorting pairs by both halves ---- */

static int compare_pairs(const void *x, const void *y)
{
  const uint32_t *a = x, *b = y;
  if (a[0] != b[0])
    return a[0] < b[0] ? -1 : 1;
  return (a[1] > b[1]) - (a[1] < b[1]);
}

static void sort_pairs(void *pairs, uint32_t n)
{
  uint32_t(*p)[2] = pairs;
  if (n > 24) {
    qsort(pairs, n, sizeof *p, compare_pairs);
    return;
  }
  for (uint32_t i = 1; i < n; i++) {
    uint32_t a = p[i][0], b = p[i][1], k = i;
    for (; k > 0 && (p[k - 1][0] > a || (p[k - 1][0] == a && p[k - 1][1] > b)); k--) {
      p[k][0] = p[k - 1][0];
      p[k][1] = p[k - 1][1];
    }
    p[k][0] = a;
    p[k][1] = b;
  }
}

/* ---- frame sets ---- */

/* items must be sorted and distinct. */
static uint32_t keep_frames(td_machine *m, const td_frame *items, uint32_t n)
{
  uint64_t h = hash_pairs(items, n, false);
  if (!table_grow(m, &m->frames_table, m->frame_sets, sizeof *m->frame_sets, offsetof(td_frame_set, hash)))
    return TD_FRAMES_NONE;
  td_table *t = &m->frames_table;
  uint32_t k = (uint32_t)h & (t->n_slots - 1);
  for (; t->slots[k]; k = (k + 1) & (t->n_slots - 1)) {
    const td_frame_set *s = &m->frame_sets[t->slots[k]];
    if (s->hash == h && s->n == n && memcmp(m->frame_items + s->first, items, n * sizeof *items) == 0)
      return t->slots[k];
  }
  uint32_t first = m->n_frame_items;
  if (!grow(m, &m->frame_items, &m->cap_frame_items, first + n, sizeof *items) ||
      !grow(m, &m->frame_sets, &m->cap_frame_sets, m->n_frame_sets + 1, sizeof *m->frame_sets))
    return TD_FRAMES_NONE;
  memcpy(m->frame_items + first, items, n * sizeof *items);
  m->n_frame_items += n;
  m->frame_sets[m->n_frame_sets] = (td_frame_set){.first = first, .n = n, .hash = h};
  t->slots[k] = m->n_frame_sets;
  t->n++;
  return m->n_frame_sets++;
}

enum { UNION_DEPTH = 24 };

static uint32_t frames_of(td_machine *m, td_frame *items, uint32_t n, unsigned depth);

static uint32_t join_frames(td_machine *m, uint32_t a, uint32_t b, unsigned depth)
{
  if (a == b || m->full)
    return a;
  uint32_t na = m->frame_sets[a].n, nb = m->frame_sets[b].n;
  td_machine_spend(m, na + nb);
  td_frame *items = m->full ? NULL : malloc((na + nb) * sizeof *items);
  if (!items) {
    m->no_memory |= !m->full;
    m->full = true;
    return a;
  }
  memcpy(items, m->frame_items + m->frame_sets[a].first, na * sizeof *items);
  memcpy(items + na, m->frame_items + m->frame_sets[b].first, nb * sizeof *items);
  uint32_t both = frames_of(m, items, na + nb, depth);
  free(items);
  return both;
}

/* Frames that return to the same place become one, with the union of their frame sets. Otherwise an ambiguous
 * grammar would make more and more of them. */
static uint32_t frames_of(td_machine *m, td_frame *items, uint32_t n, unsigned depth)
{
  uint32_t k = 0;
  sort_pairs(items, n);
  for (uint32_t i = 0; i < n; i++) {
    bool same = k > 0 && items[k - 1].ret == items[i].ret;
    if (same && items[k - 1].frames == items[i].frames)
      continue;
    if (same && depth < UNION_DEPTH)
      items[k - 1].frames = join_frames(m, items[k - 1].frames, items[i].frames, depth + 1);
    else
      items[k++] = items[i];
  }
  return m->full ? TD_FRAMES_NONE : keep_frames(m, items, k);
}

/* ---- states ---- */

static uint32_t keep_state(td_machine *m, const td_place *places, uint32_t n, bool whole)
{
  if (n == 0 && !whole)
    return TD_STATE_DEAD;
  uint64_t h = hash_pairs(places, n, whole);
  if (!table_grow(m, &m->state_table, m->states, sizeof *m->states, offsetof(td_state, hash)))
    return TD_STATE_DEAD;
  td_table *t = &m->state_table;
  uint32_t k = (uint32_t)h & (t->n_slots - 1);
  for (; t->slots[k]; k = (k + 1) & (t->n_slots - 1)) {
    const td_state *s = &m->states[t->slots[k]];
    if (s->hash == h && s->n == n && s->whole == whole &&
        (n == 0 || memcmp(m->places + s->first, places, n * sizeof *places) == 0))
      return t->slots[k];
  }
  uint32_t first = m->n_places, id = m->n_states, n_classes = m->rules->n_classes;
  if (!grow(m, &m->places, &m->cap_places, first + n, sizeof *places) ||
      !grow(m, &m->states, &m->cap_states, id + 1, sizeof *m->states) ||
      !grow(m, &m->rows, &m->cap_rows, (id + 1) * n_classes, sizeof *m->rows))
    return TD_STATE_DEAD;
  if (n > 0)
    memcpy(m->places + first, places, n * sizeof *places);
  m->n_places += n;
  m->states[id] = (td_state){.first = first, .n = n, .hash = h, .whole = whole};
  memset(m->rows + (size_t)id * n_classes, 0xFF, n_classes * sizeof *m->rows);
  t->slots[k] = id;
  t->n++;
  return m->n_states++;
}

uint32_t td_machine_state(td_machine *m, td_place *places, uint32_t n, bool whole)
{
  uint32_t k = 0;
  sort_pairs(places, n);
  for (uint32_t i = 0; i < n; i++) {
    if (k > 0 && places[k - 1].at == places[i].at)
      places[k - 1].return_frames = join_frames(m, places[k - 1].return_frames, places[i].return_frames, 0);
    else
      places[k++] = places[i];
  }
  return m->full ? TD_STATE_DEAD : keep_state(m, places, k, whole);
}

/* ---- closure: from places to places that take a byte ---- */

typedef struct pending {
  td_frame frame;
  uint32_t next; /* next call of the same rule */
} pending;

typedef struct td_closure {
  td_place *todo, *out;
  td_frame *frames;
  pending *calls;
  uint32_t *first_call; /* [n_rules]: index into calls, + 1; 0: none */
  uint32_t *called;     /* [n_called] rules with calls, as a heap */
  uint64_t *seen;       /* open addressing; (instruction + 1) << 32 | frame set */
  uint32_t *used;       /* [n_used] its used slots */
  uint32_t n_todo, n_out, n_calls, n_called, n_used;
  uint32_t cap_todo, cap_out, cap_frames, cap_calls, cap_seen, cap_used;
  bool whole;
} closure;

static bool see(td_machine *m, uint32_t at, uint32_t frames)
{
  closure *c = m->closure;
  if (c->n_used * 2 >= c->cap_seen) {
    uint32_t cap = c->cap_seen ? c->cap_seen * 2 : 256;
    uint64_t *old = c->seen, *seen = take_zeroed(m, cap, sizeof *seen);
    if (!seen || !grow(m, &c->used, &c->cap_used, cap, sizeof *c->used)) {
      if (seen)
        give_bytes(m, cap * sizeof *seen);
      free(seen);
      m->full = true;
      return false;
    }
    for (uint32_t i = 0; i < c->n_used; i++) {
      uint64_t v = old[c->used[i]];
      uint32_t k = (uint32_t)td_hash_u64(0, v) & (cap - 1);
      while (seen[k])
        k = (k + 1) & (cap - 1);
      seen[k] = v;
      c->used[i] = k;
    }
    free(old);
    give_bytes(m, c->cap_seen * sizeof *seen);
    c->seen = seen;
    c->cap_seen = cap;
  }
  uint64_t v = ((uint64_t)at + 1) << 32 | frames;
  uint32_t k = (uint32_t)td_hash_u64(0, v) & (c->cap_seen - 1);
  for (; c->seen[k]; k = (k + 1) & (c->cap_seen - 1))
    if (c->seen[k] == v)
      return false;
  c->seen[k] = v;
  c->used[c->n_used++] = k;
  return true;
}

static void todo(td_machine *m, uint32_t at, uint32_t frames)
{
  closure *c = m->closure;
  if (!m->rules->insts[at].live || m->full)
    return;
  uint8_t op = m->rules->insts[at].op;
  if (op == TD_RULE_OP_RANGE || op == TD_RULE_OP_SET) {
    if (grow(m, &c->out, &c->cap_out, c->n_out + 1, sizeof *c->out))
      c->out[c->n_out++] = (td_place){at, frames};
    return;
  }
  if (!see(m, at, frames))
    return;
  if (grow(m, &c->todo, &c->cap_todo, c->n_todo + 1, sizeof *c->todo))
    c->todo[c->n_todo++] = (td_place){at, frames};
}

/* Called rules are a heap by rank. First is a rule with which no other called rule begins. */
static bool is_before(const td_machine *m, uint32_t a, uint32_t b)
{
  const uint32_t *called = m->closure->called;
  return m->rules->ranks[called[a]] < m->rules->ranks[called[b]];
}

static void swap_called(td_machine *m, uint32_t a, uint32_t b)
{
  uint32_t *called = m->closure->called, rule = called[a];
  called[a] = called[b];
  called[b] = rule;
  td_machine_spend(m, 1);
}

static void push_called(td_machine *m, uint32_t rule)
{
  closure *c = m->closure;
  uint32_t at = c->n_called++;
  c->called[at] = rule;
  for (; at > 0 && is_before(m, at, (at - 1) / 2); at = (at - 1) / 2)
    swap_called(m, at, (at - 1) / 2);
}

static uint32_t pop_called(td_machine *m)
{
  closure *c = m->closure;
  uint32_t rule = c->called[0], at = 0, k;
  c->called[0] = c->called[--c->n_called];
  while ((k = 2 * at + 1) < c->n_called) {
    k += k + 1 < c->n_called && is_before(m, k + 1, k);
    if (!is_before(m, k, at))
      break;
    swap_called(m, at, k);
    at = k;
  }
  return rule;
}

static void call(td_machine *m, uint32_t rule, td_frame frame)
{
  closure *c = m->closure;
  if (!grow(m, &c->calls, &c->cap_calls, c->n_calls + 1, sizeof *c->calls))
    return;
  if (c->first_call[rule] == 0)
    push_called(m, rule);
  c->calls[c->n_calls] = (pending){frame, c->first_call[rule]};
  c->first_call[rule] = ++c->n_calls;
}

/* A call at the end of a rule returns directly to the rule's callers, so lists that are written as recursion
 * need no stack. */
static void call_from(td_machine *m, const td_inst *i, uint32_t frames)
{
  if (m->rules->insts[i->y].op != TD_RULE_OP_RETURN) {
    call(m, i->x, (td_frame){i->y, frames});
    return;
  }
  td_frame_set s = m->frame_sets[frames];
  td_machine_spend(m, s.n);
  for (uint32_t k = 0; k < s.n && !m->full; k++)
    call(m, i->x, m->frame_items[s.first + k]);
}

static void go_back(td_machine *m, uint32_t frames)
{
  td_frame_set s = m->frame_sets[frames];
  td_machine_spend(m, s.n);
  for (uint32_t k = 0; k < s.n; k++) {
    td_frame f = m->frame_items[s.first + k];
    if (f.ret == TD_RET_END)
      m->closure->whole = true;
    else
      todo(m, f.ret, f.frames);
  }
}

/* The rule was repeated n times: repeat it again, or continue after the repetition. */
static void count_one(td_machine *m, uint32_t at, uint32_t n, uint32_t frames)
{
  const td_inst *i = &m->rules->insts[at];
  td_rule_repeat t = m->rules->repeats[i->x];
  if (n >= t.min)
    todo(m, i->y, frames);
  if (n >= t.max)
    return;
  uint32_t next = t.max == TD_REPEAT_MANY && n >= t.min ? n : n + 1;
  uint32_t counted = keep_frames(m, &(td_frame){TD_RET_COUNT + next, frames}, 1);
  if (!m->full)
    call(m, t.rule, (td_frame){at, counted});
}

static void count_all(td_machine *m, td_place p)
{
  td_frame_set s = m->frame_sets[p.return_frames];
  if (s.n == 0 || !td_ret_is_count(m->frame_items[s.first].ret)) {
    count_one(m, p.at, 0, p.return_frames);
    return;
  }
  td_machine_spend(m, s.n);
  for (uint32_t k = 0; k < s.n && !m->full; k++) {
    td_frame f = m->frame_items[s.first + k];
    count_one(m, p.at, f.ret - TD_RET_COUNT, f.frames);
  }
}

static void expand(td_machine *m)
{
  closure *c = m->closure;
  while (c->n_todo > 0 && !m->full) {
    td_place p = c->todo[--c->n_todo];
    const td_inst *i = &m->rules->insts[p.at];
    td_machine_spend(m, 1);
    switch (i->op) {
    case TD_RULE_OP_SPLIT:
      todo(m, i->x, p.return_frames);
      todo(m, i->y, p.return_frames);
      break;
    case TD_RULE_OP_CALL: call_from(m, i, p.return_frames); break;
    case TD_RULE_OP_REPEAT: count_all(m, p); break;
    default: go_back(m, p.return_frames); break;
    }
  }
}

/* Enters the first called rule, once, with all its callers. No other called rule begins with it, so it has no
 * more callers. */
static void enter_one(td_machine *m)
{
  closure *c = m->closure;
  uint32_t rule = pop_called(m), first = c->first_call[rule], n = 0;
  c->first_call[rule] = 0;
  for (uint32_t i = first; i != 0; i = c->calls[i - 1].next)
    n++;
  td_machine_spend(m, n);
  if (!grow(m, &c->frames, &c->cap_frames, n, sizeof *c->frames))
    return;
  n = 0;
  for (uint32_t i = first; i != 0; i = c->calls[i - 1].next)
    c->frames[n++] = c->calls[i - 1].frame;
  uint32_t frames = frames_of(m, c->frames, n, 0);
  if (!m->full)
    todo(m, m->rules->starts[rule], frames);
}

static uint32_t close_state(td_machine *m)
{
  closure *c = m->closure;
  expand(m);
  while (c->n_called > 0 && !m->full) {
    enter_one(m);
    expand(m);
  }
  for (uint32_t i = 0; i < c->n_used; i++)
    c->seen[c->used[i]] = 0;
  for (uint32_t i = 0; i < c->n_called; i++)
    c->first_call[c->called[i]] = 0;
  uint32_t state = m->full ? TD_STATE_DEAD : td_machine_state(m, c->out, c->n_out, c->whole);
  c->n_todo = c->n_out = c->n_calls = c->n_called = c->n_used = 0;
  c->whole = false;
  return state;
}

/* ---- steps ---- */

uint32_t td_machine_start(td_machine *m)
{
  call(m, m->rules->root, (td_frame){TD_RET_END, TD_FRAMES_NONE});
  return close_state(m);
}

uint32_t td_machine_return(td_machine *m, uint32_t frames)
{
  go_back(m, frames);
  return close_state(m);
}

static bool is_taken_alike(const td_machine *m, const td_state *s, unsigned a, unsigned b)
{
  for (uint32_t i = 0; i < s->n; i++) {
    const td_inst *t = &m->rules->insts[m->places[s->first + i].at];
    if (td_inst_takes(m->rules, t, a) != td_inst_takes(m->rules, t, b))
      return false;
  }
  return true;
}

enum { ALIKE_PLACES = 32 };

/* Bytes that the same places take lead to the same state. Mostly these are letters of a string. */
static void know_alike(td_machine *m, uint32_t state, unsigned byte, uint32_t next)
{
  const td_rules *r = m->rules;
  td_state s = m->states[state];
  uint32_t *row = m->rows + (size_t)state * r->n_classes;
  if (s.n > ALIKE_PLACES)
    return;
  td_machine_spend(m, r->n_classes / 4);
  for (uint32_t c = 0; c < r->n_classes; c++)
    if (row[c] == TD_UNKNOWN && is_taken_alike(m, &s, byte, r->class_representative[c]))
      row[c] = next;
}

uint32_t td_machine_make_step(td_machine *m, uint32_t state, unsigned byte)
{
  td_state s = m->states[state];
  td_machine_spend(m, s.n);
  bool many = false; /* other bytes are probably taken by the same places */
  if (m->full)
    return TD_STATE_DEAD;
  for (uint32_t i = 0; i < s.n; i++) {
    td_place p = m->places[s.first + i];
    const td_inst *t = &m->rules->insts[p.at];
    if (!td_inst_takes(m->rules, t, byte))
      continue;
    many |= t->op == TD_RULE_OP_SET || t->hi - t->lo > 8;
    todo(m, t->x, p.return_frames);
  }
  uint32_t next = close_state(m);
  if (m->full)
    return next;
  m->rows[(size_t)state * m->rules->n_classes + m->rules->class_of[byte]] = next;
  if (many)
    know_alike(m, state, byte, next);
  return next;
}

/* ---- lifetime ---- */

void td_machine_begin(td_machine *m)
{
  m->work = 0;
  m->full = m->no_memory = false;
}

/* State 0 is dead. Frame set 0 is empty; frame set 1 ends the text. */
static void make_first(td_machine *m)
{
  td_frame end = {TD_RET_END, TD_FRAMES_NONE};
  m->n_places = m->n_frame_items = 0;
  m->n_states = m->n_frame_sets = 1;
  m->states[0] = (td_state){0};
  m->frame_sets[0] = (td_frame_set){0};
  memset(m->rows, 0, m->rules->n_classes * sizeof *m->rows);
  TD_BUG_ON(keep_frames(m, &end, 1) != TD_FRAMES_BOTTOM && !m->full);
}

static void empty_table(td_machine *m, td_table *t)
{
  uint32_t *fewer = t->n_slots > SLOTS_LEAST ? malloc(SLOTS_LEAST * sizeof *fewer) : NULL;
  if (fewer) {
    give_bytes(m, (t->n_slots - SLOTS_LEAST) * sizeof *fewer);
    free(t->slots);
    t->slots = fewer;
    t->n_slots = SLOTS_LEAST;
  }
  if (t->n_slots > 0)
    memset(t->slots, 0, t->n_slots * sizeof *t->slots);
  t->n = 0;
}

enum { STATES_LEAST = 16, ITEMS_LEAST = 64 };

static void forget_closure(td_machine *m)
{
  closure *c = m->closure;
  shrink(m, &c->todo, &c->cap_todo, ITEMS_LEAST, sizeof *c->todo);
  shrink(m, &c->out, &c->cap_out, ITEMS_LEAST, sizeof *c->out);
  shrink(m, &c->frames, &c->cap_frames, ITEMS_LEAST, sizeof *c->frames);
  shrink(m, &c->calls, &c->cap_calls, ITEMS_LEAST, sizeof *c->calls);
  shrink(m, &c->used, &c->cap_used, ITEMS_LEAST, sizeof *c->used);
  give_bytes(m, c->cap_seen * sizeof *c->seen);
  free(c->seen);
  c->seen = NULL;
  c->cap_seen = 0;
}

void td_machine_forget(td_machine *m)
{
  shrink(m, &m->places, &m->cap_places, ITEMS_LEAST, sizeof *m->places);
  shrink(m, &m->states, &m->cap_states, STATES_LEAST, sizeof *m->states);
  shrink(m, &m->frame_items, &m->cap_frame_items, ITEMS_LEAST, sizeof *m->frame_items);
  shrink(m, &m->frame_sets, &m->cap_frame_sets, STATES_LEAST, sizeof *m->frame_sets);
  shrink(m, &m->rows, &m->cap_rows, STATES_LEAST * m->rules->n_classes, sizeof *m->rows);
  empty_table(m, &m->state_table);
  empty_table(m, &m->frames_table);
  forget_closure(m);
  td_machine_begin(m);
  make_first(m);
}

bool td_machine_init(td_machine *m, const td_rules *rules)
{
  *m = (td_machine){.rules = rules,
                    .max_bytes = (size_t)td_limit_max(TD_LIMIT_GRAMMAR_STATE_BYTES),
                    .max_work = (uint64_t)td_limit_max(TD_LIMIT_GRAMMAR_WORK)};
  m->closure = calloc(1, sizeof *m->closure);
  if (!m->closure)
    return false;
  m->closure->first_call = calloc(rules->n_rules, sizeof(uint32_t));
  m->closure->called = calloc(rules->n_rules, sizeof(uint32_t));
  if (!m->closure->first_call || !m->closure->called ||
      !grow(m, &m->states, &m->cap_states, STATES_LEAST, sizeof *m->states) ||
      !grow(m, &m->frame_sets, &m->cap_frame_sets, STATES_LEAST, sizeof *m->frame_sets) ||
      !grow(m, &m->rows, &m->cap_rows, STATES_LEAST * rules->n_classes, sizeof *m->rows))
    return false;
  make_first(m);
  return !m->full;
}

void td_machine_deinit(td_machine *m)
{
  closure *c = m->closure;
  if (c) {
    free(c->todo);
    free(c->out);
    free(c->frames);
    free(c->calls);
    free(c->first_call);
    free(c->called);
    free(c->seen);
    free(c->used);
    free(c);
  }
  free(m->places);
  free(m->states);
  free(m->frame_items);
  free(m->frame_sets);
  free(m->rows);
  free(m->state_table.slots);
  free(m->frames_table.slots);
  *m = (td_machine){0};
}
