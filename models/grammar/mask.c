/* Masks of the tokens that a state allows, found by walking the tries as far as the state allows.
 *
 * Inside a JSON string nearly every token is allowed, so a walk would visit nearly all nodes. But the tokens
 * allowed there, and the nodes at which a token leaves the string, are the same in every grammar: both are
 * found once for a vocabulary (td_shared_state). A mask is then a copy of that, plus short walks from the
 * nodes where tokens leave. */
#include <stdlib.h>
#include <string.h>

#include "models/grammar/internal.h"

typedef struct exits {
  uint32_t *nodes, n, cap;
  bool failed;
} exits;

static void add_exit(exits *e, uint32_t node)
{
  if (e->n == e->cap) {
    uint32_t cap = e->cap ? e->cap * 2 : 256, *p = realloc(e->nodes, cap * sizeof *p);
    e->failed |= !p;
    if (!p)
      return;
    e->nodes = p;
    e->cap = cap;
  }
  e->nodes[e->n++] = node;
}

/* Allows the tokens below node that the state there, `state`, takes. Adds the nodes at which the text may end
 * to *out, unless it is NULL. */
static void walk(td_grammar *g, td_letters letters, uint32_t node, uint32_t state, uint32_t *mask, exits *out)
{
  const td_vocabulary *v = g->vocab;
  const td_trie_node *nodes = v->tries[letters].nodes;
  td_machine *m = &g->machine;
  uint32_t end = nodes[node].end, *at = g->walk;
  at[nodes[node].depth] = state;
  for (uint32_t i = node + 1; i < end;) {
    const td_trie_node *t = &nodes[i];
    uint32_t next = td_machine_step(m, at[t->depth - 1], t->byte);
    if (next == TD_STATE_DEAD) {
      i = t->end;
      continue;
    }
    at[t->depth] = next;
    if (t->token >= 0)
      td_vocabulary_allow(v, t->token, mask);
    if (out && m->states[next].whole)
      add_exit(out, i);
    i++;
  }
}

static void add_mask(const td_vocabulary *v, const uint32_t *from, uint32_t *mask)
{
  for (uint32_t i = 0; i < v->n_words; i++)
    mask[i] |= from[i];
}

/* A walk through words that stops at bytes after which any letters may follow. If most words are allowed, the
 * mask starts with all of them, and those that are not allowed are removed. */
typedef struct word_walk {
  td_grammar *g;
  const td_trie *trie;
  td_letters letters;
  uint32_t *mask;
  bool give_back;
  struct {
    uint32_t state, n_met;
    bool is_free;
  } met[64]; /* hashed by the low bits of the state */
} word_walk;

enum { MET_OFTEN = 4 };

/* Whether any letters may follow this state. td_slice_of is called only if `ask` is set or the state is met
 * often, as in a loop that a pattern makes. */
static bool is_free_state(word_walk *w, uint32_t state, bool ask)
{
  uint32_t k = state % (sizeof w->met / sizeof *w->met);
  if (w->met[k].state != state || w->met[k].n_met == 0) {
    w->met[k].state = state;
    w->met[k].n_met = 0;
    w->met[k].is_free = false;
  }
  if (++w->met[k].n_met == MET_OFTEN || (ask && w->met[k].n_met < MET_OFTEN)) {
    w->met[k].n_met = MET_OFTEN;
    w->met[k].is_free = td_slice_of(&w->g->machine, state, w->letters) == TD_WORD_CHARS;
  }
  return w->met[k].is_free;
}

static void mark_below(word_walk *w, const td_trie_node *n, bool allowed)
{
  uint32_t to = td_trie_last(w->trie, n);
  for (uint32_t i = n->first; i < to && allowed != w->give_back; i++) {
    uint32_t id = (uint32_t)w->trie->tokens[i], bit = 1u << id % 32;
    w->mask[id / 32] = allowed ? w->mask[id / 32] | bit : w->mask[id / 32] & ~bit;
  }
}

static void step_words(word_walk *w, uint32_t state)
{
  td_grammar *g = w->g;
  uint32_t *at = g->walk;
  at[0] = state;
  for (uint32_t i = 1; i < w->trie->n_nodes;) {
    const td_trie_node *t = &w->trie->nodes[i];
    bool is_free = td_byte_set_has(&g->free_bytes[t->depth - 1], t->byte);
    uint32_t next = is_free ? TD_STATE_DEAD : td_machine_step(&g->machine, at[t->depth - 1], t->byte);
    if (next != TD_STATE_DEAD && t->end > i + 1 && is_free_state(w, next, false))
      is_free = true;
    if (is_free || next == TD_STATE_DEAD) {
      mark_below(w, t, is_free);
      i = t->end;
      continue;
    }
    if (t->token >= 0 && !w->give_back)
      td_vocabulary_allow(g->vocab, t->token, w->mask);
    if (t->end > i + 1) {
      at[t->depth] = next;
      if (next == at[t->depth - 1])
        g->free_bytes[t->depth] = g->free_bytes[t->depth - 1];
      else
        td_slices_free(&g->machine, next, &g->free_bytes[t->depth]);
    }
    i++;
  }
}

/* Fills the bytes after which any letters may follow from the root's state. Returns true if most words begin
 * with one of them. */
static bool find_free(word_walk *w, uint32_t state, td_byte_set *bytes)
{
  uint32_t n = 0;
  const td_trie *t = w->trie;
  td_slices_free(&w->g->machine, state, bytes);
  for (uint32_t i = 1; i < t->n_nodes; i = t->nodes[i].end) {
    unsigned byte = t->nodes[i].byte;
    uint32_t next =
        td_byte_set_has(bytes, byte) ? TD_STATE_DEAD : td_machine_step(&w->g->machine, state, byte);
    if (next != TD_STATE_DEAD && byte < 0x80 && is_free_state(w, next, true))
      td_byte_set_add(bytes, byte);
    if (td_byte_set_has(bytes, byte))
      n += td_trie_last(t, &t->nodes[i]) - t->nodes[i].first;
  }
  return n > t->n_tokens / 2;
}

static void walk_words(td_grammar *g, td_letters letters, uint32_t state, uint32_t *mask)
{
  const td_vocabulary *v = g->vocab;
  word_walk w = {.g = g, .trie = &v->tries[letters], .letters = letters, .mask = mask};
  w.give_back = find_free(&w, state, &g->free_bytes[0]);
  if (w.give_back)
    w.mask = calloc(v->n_words + 1, sizeof *w.mask);
  if (!w.mask) {
    g->machine.full = g->machine.no_memory = true;
    return;
  }
  for (uint32_t i = 0; i < w.trie->n_tokens && w.give_back; i++)
    w.mask[w.trie->tokens[i] / 32] |= 1u << w.trie->tokens[i] % 32;
  step_words(&w, state);
  if (w.give_back) {
    add_mask(v, w.mask, mask);
    free(w.mask);
  }
}

/* The bytes that a state takes. */
static td_byte_set taken_bytes(const td_machine *m, uint32_t state)
{
  td_byte_set s = {0};
  for (uint32_t i = 0; i < m->states[state].n; i++)
    td_slices_add_taken(m->rules, &m->rules->insts[m->places[m->states[state].first + i].at], &s);
  return s;
}

/* Walks from the root, only along the bytes that the state takes. */
static void walk_root(td_grammar *g, td_letters letters, uint32_t state, const td_byte_set *taken,
                      uint32_t *mask)
{
  const td_trie *t = &g->vocab->tries[letters];
  for (unsigned k = 0; k < 4; k++)
    for (uint64_t bits = taken->bits[k]; bits && !g->machine.full; bits &= bits - 1) {
      unsigned byte = 64 * k + (unsigned)__builtin_ctzll(bits);
      uint32_t child = t->below_root[byte], next;
      if (child == 0 || (next = td_machine_step(&g->machine, state, byte)) == TD_STATE_DEAD)
        continue;
      if (t->nodes[child].token >= 0)
        td_vocabulary_allow(g->vocab, t->nodes[child].token, mask);
      walk(g, letters, child, next, mask, NULL);
    }
}

enum { FEW_BYTES = 48 };

static unsigned count_bytes(const td_byte_set *s)
{
  unsigned n = 0;
  for (unsigned k = 0; k < 4; k++)
    n += (unsigned)__builtin_popcountll(s->bits[k]);
  return n;
}

static void walk_all(td_grammar *g, uint32_t state, uint32_t *mask)
{
  td_byte_set taken = taken_bytes(&g->machine, state);
  walk_root(g, TD_LETTERS_NONE, state, &taken, mask);
  walk_root(g, TD_LETTERS_QUOTE, state, &taken, mask);
  if (count_bytes(&taken) <= FEW_BYTES) { /* too few for a slice to help */
    walk_root(g, TD_LETTERS_ALNUM, state, &taken, mask);
    walk_root(g, TD_LETTERS_PLAIN, state, &taken, mask);
    return;
  }
  int n = td_slice_of(&g->machine, state, TD_LETTERS_PLAIN);
  td_letters letters = TD_LETTERS_PLAIN;
  if (n < 0) {
    walk_words(g, TD_LETTERS_PLAIN, state, mask);
    letters = TD_LETTERS_ALNUM;
    n = td_slice_of(&g->machine, state, TD_LETTERS_ALNUM);
  }
  if (n < 0)
    walk_words(g, TD_LETTERS_ALNUM, state, mask);
  else if (n > 0)
    add_mask(g->vocab, td_vocabulary_slice(g->vocab, letters, (uint32_t)n), mask);
}

/* ---- groups of places whose masks are known ---- */

static void allow_shared_state(td_grammar *g, const td_shared_state *l, uint32_t frames, uint32_t *mask)
{
  const td_vocabulary *v = g->vocab;
  td_machine_spend(&g->machine, l->n_exits);
  uint32_t back = td_machine_return(&g->machine, frames);
  add_mask(v, l->mask, mask);
  if (back == TD_STATE_DEAD || g->machine.states[back].n == 0)
    return;
  for (uint32_t i = 0; i < l->n_exits && !g->machine.full; i++)
    walk(g, TD_LETTERS_QUOTE, l->exits[i], back, mask, NULL);
}

/* Allows tokens that stay inside a string, with up to n_chars characters. */
static void allow_chars(const td_vocabulary *v, uint32_t n_chars, uint32_t *mask)
{
  uint32_t n = n_chars < TD_WORD_CHARS ? n_chars : TD_WORD_CHARS;
  add_mask(v, v->char_slices + (size_t)n * v->n_words, mask);
  for (uint32_t i = 0; i < v->n_long_tokens && v->long_tokens[i].n_chars <= n_chars; i++)
    td_vocabulary_allow(v, v->long_tokens[i].id, mask);
}

/* Allows tokens with a quote, starting at these places. */
static void walk_quotes(td_grammar *g, td_place *places, uint32_t n, uint32_t *mask)
{
  uint32_t state = td_machine_state(&g->machine, places, n, false);
  td_byte_set taken = taken_bytes(&g->machine, state);
  walk_root(g, TD_LETTERS_QUOTE, state, &taken, mask);
}

static void fill_part(td_grammar *g, const td_place_group *p, uint32_t *mask)
{
  const td_vocabulary *v = g->vocab;
  memset(mask, 0, v->n_words * sizeof *mask);
  switch (p->kind) {
  case TD_PLACE_GROUP_SHARED: allow_shared_state(g, p->shared, p->places[0].return_frames, mask); break;
  case TD_PLACE_GROUP_CHARS:
    allow_chars(v, p->n_chars, mask);
    walk_quotes(g, p->places, p->n, mask);
    break;
  case TD_PLACE_GROUP_KEY:
    add_mask(v, v->shared_states[TD_SHARED_STATE_KEY_REST].inside, mask);
    walk_quotes(g, p->places, p->n, mask);
    break;
  case TD_PLACE_GROUP_NONE: break;
  }
}

static const uint32_t *find_mask(td_grammar *g, uint32_t state, const td_place_group *p);

static void make_mask(td_grammar *g, uint32_t state, uint32_t *mask)
{
  td_machine *m = &g->machine;
  td_state s = m->states[state];
  td_place_group part = {.places = malloc((2 * (size_t)s.n + 1) * sizeof *part.places)};
  memset(mask, 0, g->vocab->n_words * sizeof *mask);
  if (!part.places) {
    m->full = m->no_memory = true;
    return;
  }
  td_place *rest = part.places + s.n;
  if (s.n > 0)
    memcpy(rest, m->places + s.first, s.n * sizeof *rest);
  uint32_t n = s.n;
  while (!m->full && td_place_group_take(g, rest, &n, &part)) {
    if (part.n == s.n) {
      fill_part(g, &part, mask);
      break;
    }
    const uint32_t *known = find_mask(g, td_machine_state(m, part.places, part.n, false), &part);
    if (known)
      add_mask(g->vocab, known, mask);
  }
  if (n > 0 && !m->full)
    walk_all(g, n == s.n ? state : td_machine_state(m, rest, n, false), mask);
  free(part.places);
  if (s.whole)
    add_mask(g->vocab, g->vocab->end_mask, mask);
}

/* ---- kept masks ---- */

enum { MASKS_LEAST = 4 };

/* Forgets all masks; states will ask for new ones. */
static void restart_masks(td_grammar *g)
{
  for (uint32_t i = 0; i < g->machine.n_states; i++)
    g->machine.states[i].mask = 0;
  g->n_masks = 1;
}

/* Returns true if there is room for at least one more mask, either by growing or by forgetting all masks. */
static bool grow_masks(td_grammar *g)
{
  size_t size = (size_t)g->vocab->n_words * sizeof *g->masks;
  uint32_t cap = g->cap_masks ? g->cap_masks * 2 : MASKS_LEAST;
  if (cap > g->max_masks)
    cap = g->max_masks;
  bool room = cap > g->cap_masks && td_ledger_use(&g->ledger, (cap - g->cap_masks) * size);
  uint32_t *p = room ? realloc(g->masks, cap * size) : NULL;
  if (p) {
    g->masks = p;
    g->cap_masks = cap;
    return true;
  }
  if (room)
    td_ledger_free(&g->ledger, (cap - g->cap_masks) * size);
  restart_masks(g);
  return g->cap_masks > 0;
}

void td_mask_forget_all(td_grammar *g)
{
  td_ledger_free(&g->ledger, (size_t)g->cap_masks * g->vocab->n_words * sizeof *g->masks);
  free(g->masks);
  g->masks = NULL;
  g->cap_masks = 0;
  restart_masks(g);
}

/* The mask of a whole state or, if p is not NULL, of a group of its places; made and kept if it does not
 * exist yet. */
static const uint32_t *find_mask(td_grammar *g, uint32_t state, const td_place_group *p)
{
  size_t n_words = g->vocab->n_words;
  td_machine *m = &g->machine;
  if (m->full)
    return NULL;
  if (m->states[state].mask != 0)
    return g->masks + m->states[state].mask * n_words;
  uint32_t *mask = malloc((n_words + 1) * sizeof *mask);
  if (!mask) {
    m->full = m->no_memory = true;
    return NULL;
  }
  if (p)
    fill_part(g, p, mask);
  else
    make_mask(g, state, mask);
  if (!m->full && g->n_masks >= g->cap_masks && !grow_masks(g))
    m->full = true;
  uint32_t *kept = m->full ? NULL : g->masks + g->n_masks * n_words;
  if (kept) {
    memcpy(kept, mask, n_words * sizeof *kept);
    m->states[state].mask = g->n_masks++;
  }
  free(mask);
  return kept;
}

const uint32_t *td_mask_of(td_grammar *g, uint32_t state) { return find_mask(g, state, NULL); }

/* ---- learning a vocabulary ---- */

/* Records the tokens that stay inside a string, by their number of characters. */
static bool count_chars(td_vocabulary *v, td_grammar *g, td_letters letters, uint32_t inside)
{
  td_machine *m = &g->machine;
  const td_trie *t = &v->tries[letters];
  uint32_t *at = g->walk, *n = calloc((size_t)v->max_depth + 1, sizeof *n);
  at[0] = inside;
  for (uint32_t i = 1; n && i < t->n_nodes;) {
    const td_trie_node *k = &t->nodes[i];
    at[k->depth] = td_machine_step(m, at[k->depth - 1], k->byte);
    n[k->depth] = n[k->depth - 1] + (at[k->depth - 1] == inside);
    bool dead = at[k->depth] == TD_STATE_DEAD;
    for (uint32_t c = n[k->depth]; k->token >= 0 && !dead && c <= TD_WORD_CHARS; c++)
      td_vocabulary_allow(v, k->token, v->char_slices + (size_t)c * v->n_words);
    if (k->token >= 0 && !dead && n[k->depth] > TD_WORD_CHARS)
      v->long_tokens[v->n_long_tokens++] = (td_long_token){k->token, n[k->depth]};
    i = dead ? k->end : i + 1;
  }
  bool ok = n != NULL;
  free(n);
  return ok;
}

static int compare_long(const void *x, const void *y)
{
  const td_long_token *a = x, *b = y;
  return (a->n_chars > b->n_chars) - (a->n_chars < b->n_chars);
}

static bool learn_chars(td_vocabulary *v, td_grammar *g, uint32_t inside)
{
  bool ok = true;
  v->char_slices = calloc((size_t)(TD_WORD_CHARS + 1) * (v->n_words + 1), sizeof *v->char_slices);
  v->long_tokens = calloc((size_t)v->n_tokens + 1, sizeof *v->long_tokens);
  for (unsigned k = 0; ok && k < TD_LETTERS_QUOTE; k++)
    ok = v->char_slices && v->long_tokens && count_chars(v, g, (td_letters)k, inside);
  if (ok && v->n_long_tokens > 0)
    qsort(v->long_tokens, v->n_long_tokens, sizeof *v->long_tokens, compare_long);
  td_long_token *fit = ok ? realloc(v->long_tokens, (v->n_long_tokens + 1) * sizeof *fit) : NULL;
  v->long_tokens = fit ? fit : v->long_tokens;
  return ok;
}

static td_status keep_local(td_vocabulary *v, td_grammar *g, unsigned which, uint32_t state, td_error *err)
{
  td_shared_state *l = &v->shared_states[which];
  td_state s = g->machine.states[state];
  exits e = {0};
  *l = (td_shared_state){.at = calloc(s.n, sizeof *l->at),
                         .n_at = s.n,
                         .mask = calloc((size_t)v->n_words + 1, sizeof *l->mask),
                         .inside = calloc((size_t)v->n_words + 1, sizeof *l->inside)};
  if (l->at && l->mask && l->inside) {
    for (uint32_t i = 0; i < s.n; i++)
      l->at[i] = g->machine.places[s.first + i].at;
    for (unsigned k = 0; k < TD_LETTERS_QUOTE; k++)
      walk(g, (td_letters)k, 0, state, l->inside, NULL);
    walk(g, TD_LETTERS_QUOTE, 0, state, l->mask, &e);
    add_mask(v, l->inside, l->mask);
  }
  l->exits = e.nodes;
  l->n_exits = e.n;
  bool ok = l->at && l->mask && l->inside && !e.failed && !g->machine.full;
  ok = ok && (which != TD_SHARED_STATE_STRING || learn_chars(v, g, state));
  return ok ? TD_OK : td_fail(err, TD_ERR_NOMEM, "no memory for the vocabulary's masks");
}

/* Learns the start of a rule (after the quote, for a string) and, for strings and the rest of keys, the state
 * after a backslash. */
static td_status learn_rule(td_vocabulary *v, const td_builder *b, uint32_t rule, unsigned which,
                            td_error *err)
{
  td_grammar *g;
  TD_TRY(td_grammar_make(v, b, rule, &g, err));
  uint32_t inside = td_machine_start(&g->machine);
  if (rule == TD_RULE_STRING)
    inside = td_machine_step(&g->machine, inside, '"');
  td_status st = keep_local(v, g, which, inside, err);
  if (st == TD_OK && which != TD_SHARED_STATE_CHAR && which != TD_SHARED_STATE_KEY_ODD)
    st = keep_local(v, g, which + 1, td_machine_step(&g->machine, inside, '\\'), err);
  td_grammar_drop(g);
  return st;
}

td_status td_vocabulary_learn(td_vocabulary *v, td_error *err)
{
  static const struct {
    uint32_t rule;
    unsigned which;
  } all[] = {{TD_RULE_STRING, TD_SHARED_STATE_STRING},
             {TD_RULE_KEY_REST, TD_SHARED_STATE_KEY_REST},
             {TD_RULE_CHAR, TD_SHARED_STATE_CHAR},
             {TD_RULE_KEY_ODD, TD_SHARED_STATE_KEY_ODD}};
  td_builder b;
  td_builder_begin(&b, err);
  td_status st = TD_OK;
  for (size_t i = 0; i < sizeof all / sizeof *all && st == TD_OK; i++)
    st = learn_rule(v, &b, all[i].rule, all[i].which, err);
  td_builder_end(&b);
  return st;
}
