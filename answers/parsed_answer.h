/* A parsed answer: a list of parts, which are content, reasoning, calls and their arguments. For one thread.
 */
#ifndef TD_ANSWERS_PARSED_ANSWER_H
#define TD_ANSWERS_PARSED_ANSWER_H

#include "common/buf.h"

typedef enum td_answer_part_kind {
  TD_PART_CONTENT,
  TD_PART_REASONING,
  TD_PART_CALL,      /* a call begins; the text is the function's name */
  TD_PART_ARGUMENTS, /* part of the call's arguments, as JSON */
} td_answer_part_kind;

typedef struct td_answer_part {
  td_answer_part_kind kind;
  uint32_t call;      /* number of the call, from 0 */
  size_t start, n;    /* its bytes in td_parsed_answer.text */
  uint32_t token_end; /* how many tokens had been read when text was last added */
} td_answer_part;

typedef struct td_parsed_answer {
  td_answer_part *parts;
  size_t n, cap;
  td_buf text;
  uint32_t n_calls;       /* since the answer began */
  uint32_t n_tokens;      /* tokens read since the answer began; the user of the reader sets it */
  uint32_t tokens_before; /* token_end of the last part that was cleared */
  bool failed;            /* no memory */
} td_parsed_answer;

void td_parsed_answer_init(td_parsed_answer *a);
void td_parsed_answer_deinit(td_parsed_answer *a);
/* Clears the parts, but goes on counting calls. */
void td_parsed_answer_clear(td_parsed_answer *a);
/* Adds a part, or extends the last one if it is of the same kind and call. An empty text adds nothing,
 * except for a call. */
void td_parsed_answer_add(td_parsed_answer *a, td_answer_part_kind kind, uint32_t call, const char *text,
                          size_t n);
/* Removes all but the first n parts, which must not have grown since they were n. */
void td_parsed_answer_cut(td_parsed_answer *a, size_t n, uint32_t n_calls);
static inline const char *td_answer_part_text(const td_parsed_answer *a, const td_answer_part *p)
{
  return p->n > 0 ? a->text.data + p->start : "";
}

/* Index of the first token of part i; the last is before its token_end. */
static inline uint32_t td_parsed_answer_token_begin(const td_parsed_answer *a, size_t i)
{
  return i > 0 ? a->parts[i - 1].token_end : a->tokens_before;
}

#endif
