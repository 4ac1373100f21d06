/* Makes the structural tag that describes what an answer may be if its calls or content must conform to a
 * format. It is in the model's dialect, and models/grammar compiles it. Stateless: any thread. */
#ifndef TD_ANSWERS_STRUCTURAL_TAG_H
#define TD_ANSWERS_STRUCTURAL_TAG_H

#include "answers/dialect.h"
#include "common/json.h"

typedef struct td_structural_tag_rules {
  const td_dialect *dialect;
  td_prompt_end prompt;
  const cJSON *tools;   /* array, checked before; NULL: no calls */
  const bool *allowed;  /* [tools] which may be called; NULL: all */
  bool required;        /* at least one call */
  bool at_most_one;     /* at most one call */
  const cJSON *content; /* the format of an answer without calls; NULL: any text */
} td_structural_tag_rules;

/* Returns a tree that the caller owns. It refers to tools and content, which must outlive it. NULL: no
 * memory. */
cJSON *td_structural_tag_make(const td_structural_tag_rules *rules);

#endif
