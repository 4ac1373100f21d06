/* Parsed answers: see parsed_answer.h. */
#include "answers/parsed_answer.h"

#include <stdlib.h>
#include <string.h>

void td_parsed_answer_init(td_parsed_answer *a)
{
  memset(a, 0, sizeof *a);
  td_buf_init(&a->text, 0);
}

void td_parsed_answer_deinit(td_parsed_answer *a)
{
  free(a->parts);
  td_buf_deinit(&a->text);
  a->parts = NULL;
  a->n = a->cap = 0;
}

void td_parsed_answer_clear(td_parsed_answer *a)
{
  a->tokens_before = td_parsed_answer_token_begin(a, a->n);
  a->n = 0;
  td_buf_clear(&a->text);
}

static bool grow(td_parsed_answer *a)
{
  if (a->n < a->cap)
    return true;
  size_t cap = a->cap ? a->cap * 2 : 16;
  td_answer_part *p = realloc(a->parts, cap * sizeof *p);
  a->failed |= !p;
  if (!p)
    return false;
  a->parts = p;
  a->cap = cap;
  return true;
}

void td_parsed_answer_add(td_parsed_answer *a, td_answer_part_kind kind, uint32_t call, const char *text,
                          size_t n)
{
  if ((n == 0 && kind != TD_PART_CALL) || a->failed)
    return;
  td_answer_part *last = a->n > 0 ? &a->parts[a->n - 1] : NULL;
  bool joins = last && last->kind == kind && last->call == call && kind != TD_PART_CALL;
  if (!joins && !grow(a))
    return;
  size_t start = a->text.len_bytes;
  td_buf_append(&a->text, text, n);
  if (a->text.failed) {
    a->failed = true;
    return;
  }
  if (joins)
    a->parts[a->n - 1].n += n;
  else
    a->parts[a->n++] = (td_answer_part){kind, call, start, n, 0};
  a->parts[a->n - 1].token_end = a->n_tokens;
}

void td_parsed_answer_cut(td_parsed_answer *a, size_t n, uint32_t n_calls)
{
  if (n < a->n)
    a->text.len_bytes = a->parts[n].start;
  a->n = n;
  a->n_calls = n_calls;
}
