/* What an answer may be where it must hold to the form of calls: a structural tag, as models/grammar compiles
 * it, in the dialect of the model. Stateless: any thread. */
#ifndef TD_ANSWERS_PLAN_H
#define TD_ANSWERS_PLAN_H

#include "answers/dialect.h"
#include "common/json.h"

typedef struct td_plan_rules {
  const td_dialect *dialect;
  td_prompt_end prompt;
  const cJSON *tools;   /* checked array; NULL: no calls */
  const bool *allowed;  /* of each tool: it may be called; NULL: all may */
  bool required;        /* there is at least one call */
  bool one;             /* there is one call at most */
  const cJSON *content; /* a format that content without calls is of; NULL: any text */
} td_plan_rules;

/* The owned tree holds references into tools and content. NULL: no memory. */
cJSON *td_plan_make(const td_plan_rules *rules);

#endif
