/* Reads an answer as it comes: splits its text into content, reasoning, and calls of tools. However the text
 * is cut, the same is said.
 *
 * Held back is only what may be a mark, and the beginning of a call until it is sure to be one: its name, and
 * that arguments begin. What turns out to be no call is content again, whole. Blanks next to marks belong to
 * the form. Time is linear in the text; one thread. */
#ifndef TD_ANSWERS_READER_H
#define TD_ANSWERS_READER_H

#include "answers/dialect.h"
#include "answers/said.h"
#include "answers/tools.h"

typedef struct td_reader td_reader;

typedef struct td_reader_rules {
  const td_dialect *dialect;
  const td_tools *tools; /* NULL: calls are not looked for */
  td_prompt_end prompt;
  bool reasons;       /* reasoning is looked for */
  bool whole;         /* pieces are looked at when all is read: a call that breaks becomes content */
  bool shows_special; /* special tokens that are no marks here are text */
} td_reader_rules;

td_reader *td_reader_create(const td_reader_rules *rules); /* NULL: no memory */
void td_reader_destroy(td_reader *r);                      /* NULL: does nothing */
void td_reader_push(td_reader *r, const char *text, size_t n, td_said *said);
/* The text ends. is_cut: not by itself, so a call may be half. */
void td_reader_finish(td_reader *r, bool is_cut, td_said *said);
/* What comes next is reasoning, as far as is known. */
bool td_reader_is_thinking(const td_reader *r);

#endif
