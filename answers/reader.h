/* Reads the text of an answer as it comes, and splits it into content, reasoning and calls of tools. The
 * result does not depend on how the text is cut into parts.
 *
 * The reader holds back only text that may be a mark, and the beginning of a call until it is certainly one:
 * until its name is complete and its arguments begin. Text that turns out not to be a call becomes content
 * unchanged. Blanks next to marks belong to the format. Time is linear in the text. For one thread. */
#ifndef TD_ANSWERS_READER_H
#define TD_ANSWERS_READER_H

#include "answers/dialect.h"
#include "answers/parsed_answer.h"
#include "answers/tools.h"

typedef struct td_reader td_reader;

typedef struct td_reader_rules {
  const td_dialect *dialect;
  const td_tools *tools; /* NULL: do not look for calls */
  td_prompt_end prompt;
  bool reasons; /* look for reasoning */
  bool whole;   /* the caller uses the parts only after the end: a call that breaks off becomes content */
  bool shows_special; /* special tokens that are not marks here are shown as text */
} td_reader_rules;

td_reader *td_reader_create(const td_reader_rules *rules); /* NULL: no memory */
void td_reader_destroy(td_reader *r);                      /* r may be NULL */
void td_reader_push(td_reader *r, const char *text, size_t n, td_parsed_answer *parsed);
/* Ends the text. is_cut: the answer was cut off, so its last call may be incomplete. */
void td_reader_finish(td_reader *r, bool is_cut, td_parsed_answer *parsed);
/* Whether the next text is reasoning, as far as is known. */
bool td_reader_is_thinking(const td_reader *r);

#endif
