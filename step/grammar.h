/* The constraint on an answer, as the request states it. This is plain data, and all pointers are
 * borrowed. models/grammar compiles it. */
#ifndef TD_STEP_GRAMMAR_H
#define TD_STEP_GRAMMAR_H

#include "common/json.h"

typedef enum td_grammar_kind {
  TD_GRAMMAR_NONE,
  TD_GRAMMAR_JSON_OBJECT, /* any JSON object */
  TD_GRAMMAR_JSON_SCHEMA, /* json: the schema */
  TD_GRAMMAR_REGEX,       /* text: a pattern that the whole answer matches */
  TD_GRAMMAR_CHOICE,      /* json: an array of strings */
  TD_GRAMMAR_TAGS,        /* json: a structural tag */
  TD_GRAMMAR_GBNF,        /* text: rules in llama.cpp's syntax, one of them named `root` */
} td_grammar_kind;

typedef struct td_grammar_source {
  td_grammar_kind kind;
  const cJSON *json;
  const char *text;
  size_t n_text;
} td_grammar_source;

#endif
