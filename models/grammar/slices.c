/* Slices: masks of tokens that are words, for states that take words whatever their letters are.
 *
 * A string whose length is bounded, or that a pattern constrains, is in another state after each character.
 * Each of these states allows nearly all tokens, and walks through the tries would be most of the work. If a
 * state takes every word of up to n characters and no longer one, the words' mask is known, and only the
 * other tries are walked. */
#include <stdlib.h>
#include <string.h>

#include "models/grammar/internal.h"

/* The UTF-8 encodings of letters: arcs of an automaton from state 0 to 0. They are ordered so that an arc
 * comes after all arcs that end where it begins. Characters that some dialect of patterns may treat specially
 * (blanks, control characters) and rare characters are left out. */
typedef struct arc {
  uint8_t from, to, lo, hi;
} arc;

enum { AT_LETTER, AT_LAST, AT_E0, AT_E1, AT_E3, AT_E4, AT_ED, N_AT };

static const arc alnum[] = {
    {AT_LETTER, AT_LETTER, '0', '9'}, {AT_LETTER, AT_LETTER, 'A', 'Z'}, {AT_LETTER, AT_LETTER, 'a', 'z'}};
static const arc plain[] = {{AT_LETTER, AT_LETTER, 0x20, 0x21}, {AT_LETTER, AT_LETTER, 0x23, 0x5B},
                            {AT_LETTER, AT_LETTER, 0x5D, 0x7E}, {AT_LETTER, AT_LAST, 0xC3, 0xDF},
                            {AT_LETTER, AT_E0, 0xE0, 0xE0},     {AT_LETTER, AT_E1, 0xE1, 0xE1},
                            {AT_LETTER, AT_E3, 0xE3, 0xE3},     {AT_LETTER, AT_E4, 0xE4, 0xEC},
                            {AT_LETTER, AT_ED, 0xED, 0xED},     {AT_E0, AT_LAST, 0xA0, 0xBF},
                            {AT_E1, AT_LAST, 0x80, 0x99},       {AT_E1, AT_LAST, 0x9B, 0xBF},
                            {AT_E3, AT_LAST, 0x81, 0xBF},       {AT_E4, AT_LAST, 0x80, 0xBF},
                            {AT_ED, AT_LAST, 0x80, 0x9F},       {AT_LAST, AT_LETTER, 0x80, 0xBF}};

typedef struct alphabet {
  const arc *arcs;
  uint32_t n;
} alphabet;

static alphabet alphabet_of(td_letters letters)
{
  return letters == TD_LETTERS_ALNUM ? (alphabet){alnum, sizeof alnum / sizeof *alnum}
                                     : (alphabet){plain, sizeof plain / sizeof *plain};
}

static bool is_word(alphabet a, const char *bytes, uint32_t n, uint32_t *n_chars)
{
  uint8_t at = AT_LETTER;
  *n_chars = 0;
  for (uint32_t i = 0; i < n; i++) {
    uint8_t byte = (uint8_t)bytes[i];
    uint32_t k = 0;
    while (k < a.n && !(a.arcs[k].from == at && byte >= a.arcs[k].lo && byte <= a.arcs[k].hi))
      k++;
    if (k == a.n)
      return false;
    at = a.arcs[k].to;
    *n_chars += at == AT_LETTER;
  }
  return at == AT_LETTER && *n_chars <= TD_WORD_CHARS;
}

td_letters td_word_letters(const char *bytes, uint32_t n, uint32_t *n_chars)
{
  unsigned k = 0;
  if (memchr(bytes, '"', n))
    return TD_LETTERS_QUOTE;
  while (k < TD_LETTERS_NONE && !is_word(alphabet_of((td_letters)k), bytes, n, n_chars))
    k++;
  return (td_letters)k;
}

/* ---- which words a state takes ---- */

/* A set of states. */
enum { STATES_MAX = 8, SLOTS = 16 };

typedef struct set {
  uint32_t states[STATES_MAX], n;
  uint16_t slots[SLOTS]; /* index into states, + 1 */
} set;

static uint16_t *find(set *s, uint32_t state)
{
  uint32_t k = state * 0x9E3779B1u >> 28;
  while (s->slots[k] && s->states[s->slots[k] - 1] != state)
    k = (k + 1) % SLOTS;
  return &s->slots[k];
}

/* Returns false if there are too many. */
static bool add(set *s, uint32_t state)
{
  uint16_t *slot = find(s, state);
  if (*slot)
    return true;
  if (s->n == STATES_MAX)
    return false;
  s->states[s->n++] = state;
  *slot = (uint16_t)s->n;
  return true;
}

static void empty(set *s)
{
  s->n = 0;
  memset(s->slots, 0, sizeof s->slots);
}

/* Tries all letters in parallel, one character after another. */
typedef struct taker {
  td_machine *m;
  alphabet letters;
  uint8_t bytes[16][256]; /* [n] for each arc, one byte of each byte class of the grammar */
  uint32_t n_bytes[16];
  set at[N_AT], next;
  uint32_t n_steps;
} taker;

enum { STEPS_MAX = 20000 };

static void choose_bytes(taker *t)
{
  for (uint32_t k = 0; k < t->letters.n; k++) {
    const arc *a = &t->letters.arcs[k];
    uint64_t seen[4] = {0};
    t->n_bytes[k] = 0;
    for (unsigned byte = a->lo; byte <= a->hi; byte++) {
      unsigned class = t->m->rules->class_of[byte];
      if (!(seen[class / 64] >> class % 64 & 1))
        t->bytes[k][t->n_bytes[k]++] = (uint8_t)byte;
      seen[class / 64] |= 1ull << class % 64;
    }
  }
}

typedef enum taken { TAKES_ALL, TAKES_NONE, TAKES_SOME } taken;

/* Steps a state by the bytes of arc k. Adds the next states to *to, and sets *dead if a byte is not taken.
 * Returns false if the answer is already TAKES_SOME, or the work is too much. */
static bool take_arc(taker *t, uint32_t k, uint32_t state, set *to, bool *dead)
{
  for (uint32_t i = 0; i < t->n_bytes[k]; i++) {
    uint32_t next = td_machine_step(t->m, state, t->bytes[k][i]);
    if (next == TD_STATE_DEAD)
      *dead = true;
    else if (!add(to, next))
      return false;
    if (*dead && t->next.n > 0)
      return false;
  }
  t->n_steps += t->n_bytes[k];
  return !t->m->full && t->n_steps < STEPS_MAX;
}

/* Which letters the states of at[AT_LETTER] take. t->next is set to the states after a letter. */
static taken take_letter(taker *t)
{
  bool dead = false;
  for (unsigned k = AT_LETTER + 1; k < N_AT; k++)
    if (t->at[k].n > 0)
      empty(&t->at[k]);
  empty(&t->next);
  for (uint32_t k = 0; k < t->letters.n; k++) {
    const arc *a = &t->letters.arcs[k];
    set *to = a->to == AT_LETTER ? &t->next : &t->at[a->to], *from = &t->at[a->from];
    for (uint32_t s = 0; s < from->n; s++)
      if (!take_arc(t, k, from->states[s], to, &dead))
        return TAKES_SOME;
  }
  return !dead ? TAKES_ALL : t->next.n == 0 ? TAKES_NONE : TAKES_SOME;
}

/* Whether all states reached were there before, so that any number of letters is taken. */
static bool is_round(taker *t)
{
  uint32_t i = 0;
  while (i < t->next.n && *find(&t->at[AT_LETTER], t->next.states[i]))
    i++;
  return i == t->next.n;
}

int td_slice_of(td_machine *m, uint32_t state, td_letters letters)
{
  taker *t = calloc(1, sizeof *t);
  int n = 0;
  if (!t)
    return -1;
  t->m = m;
  t->letters = alphabet_of(letters);
  choose_bytes(t);
  (void)add(&t->at[AT_LETTER], state);
  while (n >= 0 && n < TD_WORD_CHARS) {
    taken what = take_letter(t);
    if (what != TAKES_ALL) {
      n = what == TAKES_NONE ? n : -1;
      break;
    }
    n = is_round(t) ? TD_WORD_CHARS : n + 1;
    t->at[AT_LETTER] = t->next;
  }
  free(t);
  return n;
}

/* ---- bytes after which any letters may follow ---- */

/* The start of the loop over a string's characters, or over a key's. */
static bool is_free_head(const td_rules *r, uint32_t at)
{
  return at == r->starts[TD_RULE_KEY_REST] || at == r->insts[r->starts[TD_RULE_STRING]].x;
}

static bool leads_free(const td_rules *r, uint32_t at, unsigned depth)
{
  const td_inst *i = &r->insts[at];
  if (is_free_head(r, at))
    return true;
  if (i->op == TD_RULE_OP_CALL)
    return i->live && i->x == TD_RULE_KEY_REST;
  return i->op == TD_RULE_OP_SPLIT && depth > 0 &&
         (leads_free(r, i->x, depth - 1) || leads_free(r, i->y, depth - 1));
}

/* Printable ASCII, except the quote and the backslash. */
static const td_byte_set plain_bytes = {{0xFFFFFFFB00000000u, 0x7FFFFFFFEFFFFFFFu, 0, 0}};

bool td_slices_is_all(const td_byte_set *s)
{
  return (plain_bytes.bits[0] & ~s->bits[0]) == 0 && (plain_bytes.bits[1] & ~s->bits[1]) == 0;
}

void td_slices_add_taken(const td_rules *r, const td_inst *t, td_byte_set *out)
{
  if (t->op == TD_RULE_OP_SET)
    for (unsigned k = 0; k < 4; k++)
      out->bits[k] |= r->sets[t->y].bits[k];
  for (unsigned c = t->lo; t->op == TD_RULE_OP_RANGE && c <= t->hi; c++)
    td_byte_set_add(out, c);
}

enum { BRANCHES_MAX = 128 };

/* Whether this is a branch of keys that are not names (schema_object.c), in which any letters may follow
 * after each letter. */
static bool is_free_branch(const td_rules *r, uint32_t at)
{
  td_byte_set s = {0};
  bool odd = false, more = true;
  for (unsigned n = 0; n < BRANCHES_MAX && more; n++) {
    const td_inst *i = &r->insts[at], *t = i;
    more = i->op == TD_RULE_OP_SPLIT;
    if (more)
      t = &r->insts[i->x];
    if (t->op == TD_RULE_OP_CALL && t->live && t->x == TD_RULE_KEY_ODD)
      odd |= leads_free(r, t->y, 0);
    else if (t->free)
      td_slices_add_taken(r, t, &s);
    at = i->y;
  }
  return odd && td_slices_is_all(&s);
}

bool td_slices_is_free(const td_rules *r, uint32_t at)
{
  return leads_free(r, at, 2) || (r->insts[at].op == TD_RULE_OP_SPLIT && is_free_branch(r, at));
}

/* The instruction at which another continues was written before it, except in loops. */
void td_slices_mark(td_rules *r)
{
  uint32_t last = UINT32_MAX;
  bool is_free = false;
  for (uint32_t i = 0; i < r->n_insts; i++) {
    td_inst *t = &r->insts[i];
    if (t->op != TD_RULE_OP_RANGE && t->op != TD_RULE_OP_SET)
      continue;
    if (t->x != last)
      is_free = td_slices_is_free(r, t->x);
    last = t->x;
    t->free = t->live && is_free;
  }
}

void td_slices_free(const td_machine *m, uint32_t state, td_byte_set *out)
{
  td_state s = m->states[state];
  *out = (td_byte_set){0};
  for (uint32_t i = 0; i < s.n; i++) {
    const td_inst *t = &m->rules->insts[m->places[s.first + i].at];
    if (t->free)
      td_slices_add_taken(m->rules, t, out);
  }
}
