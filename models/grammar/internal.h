/* What the grammar's files share; not for other rooms. */
#ifndef TD_MODELS_GRAMMAR_INTERNAL_H
#define TD_MODELS_GRAMMAR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "config/limits.h"
#include "models/grammar/vocabulary.h"

struct td_grammar {
  atomic_uint holders;
  const td_vocabulary *vocab;
  td_rules rules;
  pthread_mutex_t lock; /* of all below */
  td_ledger ledger;
  td_machine machine;
  uint64_t epoch;  /* counts how often the machine forgot */
  uint32_t *masks; /* [cap_masks][n_words]; number 0 is not used */
  uint32_t n_masks, cap_masks, max_masks;
  uint32_t *walk;          /* [max_depth + 1] states */
  td_byte_set *free_bytes; /* [max_depth + 1] behind which any letters may follow there */
};

/* known.c: places of a state that are together whatever the grammar is, or what an object's keys are. */
typedef enum td_known_kind {
  TD_KNOWN_NONE,
  TD_KNOWN_LOCAL, /* a local of the vocabulary */
  TD_KNOWN_CHARS, /* up to n_chars characters of a string */
  TD_KNOWN_KEY,   /* a key that is no name, inside it */
} td_known_kind;

typedef struct td_known {
  td_known_kind kind;
  const td_local *local;
  uint32_t n_chars;
  td_place *places; /* [n] the caller's room */
  uint32_t n;
} td_known;

/* Takes a part out of places, whose order stays. False: there is none. */
bool td_known_take(td_grammar *g, td_place *places, uint32_t *n, td_known *out);

/* mask.c, locked: the mask of a state, borrowed; NULL: memory or work was used up. */
const uint32_t *td_mask_of(td_grammar *g, uint32_t state);
void td_mask_forget_all(td_grammar *g); /* locked */
/* Fills v's locals, by a grammar of any JSON value. */
TD_MUST_CHECK td_status td_vocabulary_learn(td_vocabulary *v, td_error *err);

/* grammar.c: a grammar of the builder's rules */
TD_MUST_CHECK td_status td_grammar_make(const td_vocabulary *v, const td_builder *b, uint32_t root,
                                        td_grammar **out, td_error *err);

/* json.c: the rules that every builder begins with */
enum {
  TD_RULE_SPACE,
  TD_RULE_CHAR,   /* of a string */
  TD_RULE_STRING, /* with quotes */
  TD_RULE_INTEGER,
  TD_RULE_NUMBER,
  TD_RULE_ARRAY,
  TD_RULE_OBJECT,
  TD_RULE_VALUE,
  TD_RULE_KEY_ODD,  /* a character of a key in its one spelling, of those that are no plain ASCII */
  TD_RULE_KEY_REST, /* any more of them, and the quote */
  TD_SHARED_RULES,
};
void td_builder_begin(td_builder *b, td_error *err);
void td_builder_end(td_builder *b);

/* The compilers: from a source to an expression. */
TD_MUST_CHECK td_status td_schema_compile(td_builder *b, const cJSON *schema, const td_expr **out);
TD_MUST_CHECK td_status td_regex_compile(td_builder *b, const char *text, size_t n, const td_expr **out);
/* Of all texts that a pattern matches, in characters; most: TD_REPEAT_MANY where there is no bound. */
typedef struct td_regex_lengths {
  uint32_t least, most;
} td_regex_lengths;

/* A pattern as JSON schema has it: it may match anywhere in the string, whose JSON form without quotes *out
 * is. Where dialects of patterns differ it takes what all of them take, or, wide, what any does: what is to
 * be kept out. lengths: may be NULL. */
TD_MUST_CHECK td_status td_regex_compile_json(td_builder *b, const char *text, size_t n, bool wide,
                                              const td_expr **out, td_regex_lengths *lengths);
TD_MUST_CHECK td_status td_gbnf_compile(td_builder *b, const char *text, size_t n, const td_expr **out);
/* A structural tag: tags.c. */
TD_MUST_CHECK td_status td_tags_compile(td_builder *b, const cJSON *root, const td_expr **out);
/* Any text that has none of these in it, and no special token: any_text.c. */
const td_expr *td_any_text(td_builder *b, const char *const *without, uint32_t n);
TD_MUST_CHECK td_status td_choice_compile(td_builder *b, const cJSON *choices, const td_expr **out);

#endif
