/* Grammars and matchers: see grammar.h. */
#include "models/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "config/limits.h"
#include "models/grammar/internal.h"

/* ---- grammars ---- */

static void destroy(td_grammar *g)
{
  td_machine_deinit(&g->machine);
  td_ledger_close(&g->ledger);
  td_rules_deinit(&g->rules);
  pthread_mutex_destroy(&g->lock);
  free(g->masks);
  free(g->walk);
  free(g->free_bytes);
  free(g);
}

static size_t rules_bytes(const td_rules *r)
{
  return r->cap_insts * sizeof *r->insts + r->cap_sets * sizeof *r->sets +
         r->cap_repeats * sizeof *r->repeats + r->n_rules * (sizeof *r->starts + sizeof *r->ranks);
}

/* Takes the grammar's reserve. From now on the memory of its states and masks is counted. */
static td_status open_ledger(td_grammar *g, td_error *err)
{
  size_t fixed =
      rules_bytes(&g->rules) + (g->vocab->max_depth + 1) * (sizeof *g->walk + sizeof *g->free_bytes);
  size_t reserve = fixed + (size_t)td_limit_max(TD_LIMIT_GRAMMAR_RESERVE_BYTES);
  if (!td_ledger_open(&g->ledger, g->vocab->memory, reserve) ||
      !td_ledger_use(&g->ledger, fixed + g->machine.bytes))
    return td_fail(err, TD_ERR_CAPACITY, "the grammars of other requests have taken the memory of grammars");
  g->machine.ledger = &g->ledger;
  return TD_OK;
}

td_status td_grammar_make(const td_vocabulary *v, const td_builder *b, uint32_t root, td_grammar **out,
                          td_error *err)
{
  td_grammar *g = calloc(1, sizeof *g);
  if (!g)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a grammar");
  pthread_mutex_init(&g->lock, NULL);
  g->vocab = v;
  g->n_masks = 1;
  g->max_masks = 8 + (uint32_t)(td_limit_max(TD_LIMIT_GRAMMAR_MASK_BYTES) / (4 * (v->n_words + 1)));
  atomic_store(&g->holders, 1);
  g->walk = calloc((size_t)v->max_depth + 1, sizeof *g->walk);
  g->free_bytes = calloc((size_t)v->max_depth + 1, sizeof *g->free_bytes);
  td_status st = td_rules_make(b, root, TD_SHARED_RULES, &g->rules, err);
  if (st == TD_OK)
    td_slices_mark(&g->rules);
  if (st == TD_OK && (!g->walk || !g->free_bytes || !td_machine_init(&g->machine, &g->rules)))
    st = td_fail(err, TD_ERR_NOMEM, "no memory for a grammar");
  if (st == TD_OK)
    st = open_ledger(g, err);
  if (st != TD_OK) {
    destroy(g);
    return st;
  }
  *out = g;
  return TD_OK;
}

static td_status compile(td_builder *b, const td_grammar_source *s, const td_expr **out)
{
  switch (s->kind) {
  case TD_GRAMMAR_NONE: break;
  case TD_GRAMMAR_JSON_OBJECT: *out = td_expr_call(b, TD_RULE_OBJECT); return TD_OK;
  case TD_GRAMMAR_JSON_SCHEMA: return td_schema_compile(b, s->json, out);
  case TD_GRAMMAR_REGEX: return td_regex_compile(b, s->text, s->n_text, out);
  case TD_GRAMMAR_CHOICE: return td_choice_compile(b, s->json, out);
  case TD_GRAMMAR_TAGS: return td_tags_compile(b, s->json, out);
  case TD_GRAMMAR_GBNF: return td_gbnf_compile(b, s->text, s->n_text, out);
  }
  return TD_ERR_UNSUPPORTED;
}

td_status td_grammar_compile(const td_vocabulary *v, const td_grammar_source *source, td_grammar **out,
                             td_error *err)
{
  td_builder b;
  const td_expr *whole = &td_expr_none;
  td_error own;
  err = err ? err : &own;
  td_builder_begin(&b, err);
  td_status st = b.failed ? TD_OK : compile(&b, source, &whole);
  if (st == TD_OK) {
    uint32_t root = td_builder_add_rule(&b);
    if (!b.failed)
      b.rules[root] = whole;
    st = td_grammar_make(v, &b, root, out, err);
  }
  if (st != TD_OK && b.arena.no_memory) /* the real reason, whatever error it led to */
    st = td_fail(err, TD_ERR_NOMEM, "no memory for a grammar");
  td_builder_end(&b);
  return st;
}

td_grammar *td_grammar_hold(td_grammar *g)
{
  atomic_fetch_add(&g->holders, 1);
  return g;
}

void td_grammar_drop(td_grammar *g)
{
  if (g && atomic_fetch_sub(&g->holders, 1) == 1)
    destroy(g);
}

/* ---- matchers ---- */

typedef struct step {
  uint32_t state; /* valid in the matcher's epoch */
  uint32_t n_text;
  bool ended;
} step;

struct td_matcher {
  td_grammar *g;
  td_buf text; /* everything that was read; states are recomputed from it after the grammar forgot them */
  step *steps; /* [n_steps]: before the first token, and after each token */
  uint32_t n_steps, cap_steps;
  uint64_t epoch;
  uint64_t work_left; /* each token adds some */
  const char *stuck;  /* the reason; NULL: it is not stuck */
  bool no_memory;     /* stuck because the process has no memory */
};

static bool read_text(td_machine *m, uint32_t *state, const char *bytes, size_t n)
{
  uint32_t s = *state;
  for (size_t i = 0; i < n && s != TD_STATE_DEAD; i++)
    s = td_machine_step(m, s, (unsigned char)bytes[i]);
  *state = s;
  return s != TD_STATE_DEAD && !m->full;
}

/* Recomputes the states of all steps if the grammar has forgotten them. Needs the lock. */
static bool find_states(td_matcher *t)
{
  td_grammar *g = t->g;
  if (t->n_steps > 0 && t->epoch == g->epoch)
    return true;
  uint32_t state = td_machine_start(&g->machine), from = 0;
  for (uint32_t i = 0; i < t->n_steps; i++) {
    if (!read_text(&g->machine, &state, t->text.data ? t->text.data + from : "", t->steps[i].n_text - from))
      return false;
    from = t->steps[i].n_text;
    t->steps[i].state = state;
  }
  t->epoch = g->epoch;
  return !g->machine.full;
}

/* Begins a piece of work; a second attempt first forgets all states and masks. Needs the lock. */
static bool begin(td_matcher *t, unsigned attempt)
{
  td_grammar *g = t->g;
  if (attempt > 0) {
    td_machine_forget(&g->machine);
    td_mask_forget_all(g);
    g->epoch++;
  }
  td_machine_begin(&g->machine);
  g->machine.max_work = t->work_left;
  return find_states(t);
}

/* Pays for the work that was begun. Returns true if it failed for lack of memory, so that forgetting may
 * help. A second attempt does not refund work, because its results stay for others. Needs the lock. */
static bool settle(td_matcher *t)
{
  td_machine *m = &t->g->machine;
  bool out_of_work = td_machine_is_out_of_work(m);
  t->work_left = out_of_work ? 0 : t->work_left - m->work;
  t->no_memory = m->no_memory;
  if (out_of_work)
    t->stuck = "the grammar takes too much work: it is too ambiguous or too large";
  return m->full && !out_of_work;
}

/* The work of all masks of an answer is bounded, not that of each mask: one mask may take more if others take
 * little. */
static void add_work(td_matcher *t)
{
  uint64_t most = (uint64_t)td_limit_max(TD_LIMIT_GRAMMAR_WORK);
  t->work_left += (uint64_t)td_limit_max(TD_LIMIT_GRAMMAR_TOKEN_WORK);
  if (t->work_left > most)
    t->work_left = most;
}

static const char no_memory[] = "the grammar takes more memory than there is for its states";

static bool push(td_matcher *t, step s)
{
  if (t->n_steps == t->cap_steps) {
    uint32_t cap = t->cap_steps ? t->cap_steps * 2 : 64;
    step *p = realloc(t->steps, cap * sizeof *p);
    if (!p)
      return false;
    t->steps = p;
    t->cap_steps = cap;
  }
  t->steps[t->n_steps++] = s;
  return true;
}

td_matcher *td_matcher_create(td_grammar *g)
{
  td_matcher *t = calloc(1, sizeof *t);
  if (!t)
    return NULL;
  t->g = td_grammar_hold(g);
  t->epoch = UINT64_MAX;
  t->work_left = (uint64_t)td_limit_max(TD_LIMIT_GRAMMAR_WORK);
  td_buf_init(&t->text, 0);
  if (!push(t, (step){0})) {
    td_matcher_destroy(t);
    return NULL;
  }
  return t;
}

void td_matcher_destroy(td_matcher *t)
{
  if (!t)
    return;
  td_grammar_drop(t->g);
  td_buf_deinit(&t->text);
  free(t->steps);
  free(t);
}

bool td_matcher_read_bytes(td_matcher *t, const char *bytes, size_t n)
{
  td_machine *m = &t->g->machine;
  uint32_t state = TD_STATE_DEAD;
  bool ok = false, again = true;
  if (t->stuck || t->steps[t->n_steps - 1].ended)
    return false;
  pthread_mutex_lock(&t->g->lock);
  for (unsigned i = 0; i < 2 && again; i++) {
    if (begin(t, i)) {
      state = t->steps[t->n_steps - 1].state;
      ok = read_text(m, &state, bytes, n);
    }
    again = settle(t);
  }
  pthread_mutex_unlock(&t->g->lock);
  if (again)
    t->stuck = no_memory;
  size_t before = t->text.len_bytes;
  if (!ok)
    return false;
  td_buf_append(&t->text, bytes, n);
  if (t->text.failed || !push(t, (step){.state = state, .n_text = (uint32_t)t->text.len_bytes})) {
    t->text.len_bytes = before;
    t->stuck = no_memory;
    t->no_memory = true;
    return false;
  }
  add_work(t);
  return true;
}

bool td_matcher_read(td_matcher *t, int32_t id)
{
  const td_vocabulary *v = t->g->vocab;
  step last = t->steps[t->n_steps - 1];
  if (id < 0 || (uint32_t)id >= v->n_tokens)
    return false;
  if (td_vocabulary_ends(v, id)) {
    last.ended = true;
    return td_matcher_is_whole(t) && push(t, last);
  }
  uint32_t from = v->offsets[id], to = v->offsets[id + 1];
  return to > from && td_matcher_read_bytes(t, v->bytes + from, to - from);
}

uint32_t td_matcher_n_tokens(const td_matcher *t) { return t->n_steps - 1; }

void td_matcher_roll_back(td_matcher *t, uint32_t n_tokens)
{
  if (n_tokens + 1 >= t->n_steps)
    return;
  t->n_steps = n_tokens + 1;
  t->text.len_bytes = t->steps[n_tokens].n_text;
  t->stuck = NULL;
}

const char *td_matcher_stuck(const td_matcher *t) { return t->stuck; }
bool td_matcher_lacks_memory(const td_matcher *t) { return t->stuck && t->no_memory; }
uint64_t td_matcher_work_left(const td_matcher *t) { return t->work_left; }

bool td_matcher_is_whole(const td_matcher *ct)
{
  td_matcher *t = (td_matcher *)ct; /* the answer does not change; states may be recomputed */
  bool whole = false, again = !t->stuck;
  pthread_mutex_lock(&t->g->lock);
  for (unsigned i = 0; i < 2 && again; i++) {
    whole = begin(t, i) && t->g->machine.states[t->steps[t->n_steps - 1].state].whole;
    again = settle(t);
  }
  pthread_mutex_unlock(&t->g->lock);
  return whole;
}

static bool has_bit(const uint32_t *mask, uint32_t n_words)
{
  uint32_t any = 0;
  for (uint32_t i = 0; i < n_words; i++)
    any |= mask[i];
  return any != 0;
}

void td_matcher_fill(td_matcher *t, uint32_t *mask)
{
  td_grammar *g = t->g;
  uint32_t n_words = g->vocab->n_words;
  const uint32_t *made = NULL;
  bool ended = t->steps[t->n_steps - 1].ended, again = !t->stuck && !ended;
  pthread_mutex_lock(&g->lock);
  for (unsigned i = 0; i < 2 && again; i++) {
    made = begin(t, i) ? td_mask_of(g, t->steps[t->n_steps - 1].state) : NULL;
    again = settle(t);
  }
  if (made)
    memcpy(mask, made, n_words * sizeof *mask);
  pthread_mutex_unlock(&g->lock);
  if (again)
    t->stuck = no_memory;
  else if (made && !has_bit(mask, n_words))
    t->stuck = "no token of the model goes on in the grammar";
  if (!made || t->stuck)
    memcpy(mask, g->vocab->end_mask, n_words * sizeof *mask);
}
