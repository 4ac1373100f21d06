/* A deterministic automaton that matches an expression on ASCII, with one look-up per byte.
 *
 * regex.c writes its expression as a list of ops. A state is the list of ops at which a match may be, in the
 * order in which backtracking would try them. The next state depends only on the next character, so all
 * states are built at load. An op that looks at what follows is decided with that character. A list ends at
 * the first op that is a match, because backtracking would never try the ops after it. Characters beyond
 * ASCII are not in the table: regex.c then does the match by backtracking. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

enum { STATES_MAX = 256, END = 128 };

typedef struct list {
  uint16_t ops[TD_REGEX_OPS_MAX];
  uint32_t n;
} list;

typedef struct builder {
  const td_regex_op *ops;
  uint32_t n_ops;
  list *states; /* [STATES_MAX]; state 0 is empty: nothing can match any more */
  uint32_t n_states;
  bool seen[TD_REGEX_OPS_MAX];
} builder;

static bool has(const td_regex_op *op, uint32_t c) { return c < END && (op->ascii[c / 64] >> c % 64 & 1); }

/* Follows op i before character c (or the end of the text), and adds ops that consume c to *next. Returns
 * true if a match ends here. */
static bool follow(builder *b, uint32_t i, uint32_t c, list *next)
{
  for (;; i++) {
    const td_regex_op *op = &b->ops[i];
    if (b->seen[i])
      return false;
    b->seen[i] = true;
    switch (op->kind) {
    case TD_REGEX_OP_TAKE:
      if (has(op, c))
        next->ops[next->n++] = (uint16_t)(i + 1);
      return false;
    case TD_REGEX_OP_MATCH: return true;
    case TD_REGEX_OP_NEXT_IN:
      if (!has(op, c))
        return false;
      break;
    case TD_REGEX_OP_NEXT_NOT_IN:
      if (has(op, c))
        return false;
      break;
    case TD_REGEX_OP_LINE_END:
      if (c != END && c != '\n')
        return false;
      break;
    case TD_REGEX_OP_BOTH:
      if (follow(b, i + 1, c, next))
        return true;
      i = op->to - 1u;
      break;
    case TD_REGEX_OP_JUMP: i = op->to - 1u; break;
    }
  }
}

/* The number of a state, which is added if it is new. UINT32_MAX: there are too many. */
static uint32_t number_of(builder *b, const list *state)
{
  for (uint32_t i = 0; i < b->n_states; i++)
    if (b->states[i].n == state->n &&
        memcmp(b->states[i].ops, state->ops, state->n * sizeof *state->ops) == 0)
      return i;
  if (b->n_states == STATES_MAX)
    return UINT32_MAX;
  b->states[b->n_states] = *state;
  return b->n_states++;
}

/* Computes the next state for character c. */
static bool step_over(builder *b, uint32_t state, uint32_t c, uint32_t *out, uint32_t n_kinds)
{
  list next = {.n = 0};
  bool match = false;
  memset(b->seen, 0, sizeof b->seen);
  const list from = b->states[state];
  for (uint32_t i = 0; i < from.n && !match; i++)
    match = follow(b, from.ops[i], c, &next);
  const uint32_t number = number_of(b, &next);
  *out = number * n_kinds << 1 | match;
  return number != UINT32_MAX;
}

static bool same_kind(const builder *b, uint32_t c, uint32_t d)
{
  for (uint32_t i = 0; i < b->n_ops; i++)
    if (has(&b->ops[i], c) != has(&b->ops[i], d) ||
        (b->ops[i].kind == TD_REGEX_OP_LINE_END && (c == '\n') != (d == '\n')))
      return false;
  return true;
}

/* Characters that no op distinguishes share a column. The last column is the end of the text. */
static void find_kinds(const builder *b, td_regex_table *t, uint8_t of_kind[END + 1])
{
  for (uint32_t c = 0; c < END; c++) {
    uint32_t k = 0;
    while (k < t->n_kinds && !same_kind(b, c, of_kind[k]))
      k++;
    if (k == t->n_kinds)
      of_kind[t->n_kinds++] = (uint8_t)c;
    t->kind[c] = (uint8_t)k;
  }
  of_kind[t->n_kinds++] = END;
}

static bool fill(builder *b, td_regex_table *t)
{
  uint8_t of_kind[END + 1];
  find_kinds(b, t, of_kind);
  t->next = calloc((size_t)STATES_MAX * t->n_kinds, sizeof *t->next);
  if (!t->next)
    return false;
  b->n_states = 1;
  (void)number_of(b, &(list){.ops = {0}, .n = 1});
  for (uint32_t i = 0; i < b->n_states; i++)
    for (uint32_t k = 0; k < t->n_kinds; k++)
      if (!step_over(b, i, of_kind[k], &t->next[i * t->n_kinds + k], t->n_kinds))
        return false;
  return true;
}

bool td_regex_table_init(td_regex_table *t, const td_regex_op *ops, uint32_t n_ops)
{
  builder b = {.ops = ops, .n_ops = n_ops, .states = calloc(STATES_MAX, sizeof *b.states)};
  memset(t, 0, sizeof *t);
  const bool ok = b.states && fill(&b, t);
  free(b.states);
  if (!ok)
    td_regex_table_deinit(t);
  return ok;
}

void td_regex_table_deinit(td_regex_table *t)
{
  free(t->next);
  memset(t, 0, sizeof *t);
}

bool td_regex_table_match(const td_regex_table *t, const unsigned char *p, const unsigned char *end,
                          size_t *steps_left, const unsigned char **match_end)
{
  const unsigned char *q = p;
  uint32_t entry = t->n_kinds << 1; /* state 1 */
  *match_end = NULL;
  do {
    if (q < end && *q >= 0x80)
      break;
    entry = t->next[(entry >> 1) + (q < end ? t->kind[*q] : t->n_kinds - 1)];
    if (entry & 1)
      *match_end = q;
    q++;
  } while (entry >> 1);
  const size_t n = (size_t)(q - p);
  *steps_left -= *steps_left > n ? n : *steps_left;
  return entry >> 1 == 0;
}
