/* What an answer has said so far, as a list of pieces: content, reasoning, calls and their arguments. For
 * one thread. */
#ifndef TD_ANSWERS_SAID_H
#define TD_ANSWERS_SAID_H

#include "common/buf.h"

typedef enum td_said_kind {
  TD_SAID_CONTENT,
  TD_SAID_REASONING,
  TD_SAID_CALL,      /* a call begins; the text is the function's name */
  TD_SAID_ARGUMENTS, /* part of the call's arguments, as JSON */
} td_said_kind;

typedef struct td_said_piece {
  td_said_kind kind;
  uint32_t call;      /* number of the call, from 0 */
  size_t start, n;    /* its bytes in td_said.text */
  uint32_t token_end; /* how many tokens had been read when text was last added */
} td_said_piece;

typedef struct td_said {
  td_said_piece *pieces;
  size_t n, cap;
  td_buf text;
  uint32_t n_calls;       /* since the answer began */
  uint32_t n_tokens;      /* tokens read since the answer began; the user of the reader sets it */
  uint32_t tokens_before; /* token_end of the last piece that was forgotten */
  bool failed;            /* no memory */
} td_said;

void td_said_init(td_said *s);
void td_said_deinit(td_said *s);
/* Forgets the pieces, but goes on counting calls. */
void td_said_clear(td_said *s);
/* Adds a piece, or extends the last one if it is of the same kind and call. An empty text adds nothing,
 * except for a call. */
void td_said_add(td_said *s, td_said_kind kind, uint32_t call, const char *text, size_t n);
/* Removes all but the first n pieces, which must not have grown since they were n. */
void td_said_cut(td_said *s, size_t n, uint32_t n_calls);
static inline const char *td_said_text(const td_said *s, const td_said_piece *p)
{
  return p->n > 0 ? s->text.data + p->start : "";
}

/* Index of the first token of piece i; the last is before its token_end. */
static inline uint32_t td_said_token_begin(const td_said *s, size_t i)
{
  return i > 0 ? s->pieces[i - 1].token_end : s->tokens_before;
}

#endif
