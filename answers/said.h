/* What an answer has said so far, in pieces: content, reasoning, calls and their arguments. One thread. */
#ifndef TD_ANSWERS_SAID_H
#define TD_ANSWERS_SAID_H

#include "common/buf.h"

typedef enum td_said_kind {
  TD_SAID_CONTENT,
  TD_SAID_REASONING,
  TD_SAID_CALL,      /* a call begins; its text is the function's name */
  TD_SAID_ARGUMENTS, /* a part of the call's arguments, as JSON */
} td_said_kind;

typedef struct td_said_piece {
  td_said_kind kind;
  uint32_t call;      /* which, from 0 */
  size_t start, n;    /* in the text of all */
  uint32_t token_end; /* tokens that had been read when it was last added to */
} td_said_piece;

typedef struct td_said {
  td_said_piece *pieces;
  size_t n, cap;
  td_buf text;
  uint32_t n_calls;       /* since the answer's begin */
  uint32_t n_tokens;      /* read since then; who reads sets it */
  uint32_t tokens_before; /* the token_end of what was forgotten */
  bool failed;            /* no memory */
} td_said;

void td_said_init(td_said *s);
void td_said_deinit(td_said *s);
/* Forgets the pieces, and goes on counting calls. */
void td_said_clear(td_said *s);
/* A piece that goes on with the last one is joined to it. n 0: nothing, but for a call. */
void td_said_add(td_said *s, td_said_kind kind, uint32_t call, const char *text, size_t n);
/* Takes back all behind the first n pieces. Those before did not grow since. */
void td_said_cut(td_said *s, size_t n, uint32_t n_calls);
static inline const char *td_said_text(const td_said *s, const td_said_piece *p)
{
  return p->n > 0 ? s->text.data + p->start : "";
}

/* The first of the tokens that said piece i, up to its token_end. */
static inline uint32_t td_said_token_begin(const td_said *s, size_t i)
{
  return i > 0 ? s->pieces[i - 1].token_end : s->tokens_before;
}

#endif
