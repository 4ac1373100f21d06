/* Pieces of an answer: see said.h. */
#include "answers/said.h"

#include <stdlib.h>
#include <string.h>

void td_said_init(td_said *s)
{
  memset(s, 0, sizeof *s);
  td_buf_init(&s->text, 0);
}

void td_said_deinit(td_said *s)
{
  free(s->pieces);
  td_buf_deinit(&s->text);
  s->pieces = NULL;
  s->n = s->cap = 0;
}

void td_said_clear(td_said *s)
{
  s->tokens_before = td_said_token_begin(s, s->n);
  s->n = 0;
  td_buf_clear(&s->text);
}

static bool grow(td_said *s)
{
  if (s->n < s->cap)
    return true;
  size_t cap = s->cap ? s->cap * 2 : 16;
  td_said_piece *p = realloc(s->pieces, cap * sizeof *p);
  s->failed |= !p;
  if (!p)
    return false;
  s->pieces = p;
  s->cap = cap;
  return true;
}

void td_said_add(td_said *s, td_said_kind kind, uint32_t call, const char *text, size_t n)
{
  if ((n == 0 && kind != TD_SAID_CALL) || s->failed)
    return;
  td_said_piece *last = s->n > 0 ? &s->pieces[s->n - 1] : NULL;
  bool joins = last && last->kind == kind && last->call == call && kind != TD_SAID_CALL;
  if (!joins && !grow(s))
    return;
  size_t start = s->text.len_bytes;
  td_buf_append(&s->text, text, n);
  if (s->text.failed) {
    s->failed = true;
    return;
  }
  if (joins)
    s->pieces[s->n - 1].n += n;
  else
    s->pieces[s->n++] = (td_said_piece){kind, call, start, n, 0};
  s->pieces[s->n - 1].token_end = s->n_tokens;
}

void td_said_cut(td_said *s, size_t n, uint32_t n_calls)
{
  if (n < s->n)
    s->text.len_bytes = s->pieces[n].start;
  s->n = n;
  s->n_calls = n_calls;
}
