/* Shared by the files of this folder; not for other rooms. */
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
  pthread_mutex_t lock; /* protects all fields below */
  td_ledger ledger;
  td_machine machine;
  uint64_t epoch;  /* how many times the machine has forgotten its states */
  uint32_t *masks; /* [cap_masks][n_words]; mask number 0 is not used */
  uint32_t n_masks, cap_masks, max_masks;
  uint32_t *walk;          /* [max_depth + 1] the states along the path in a trie */
  td_byte_set *free_bytes; /* [max_depth + 1] for each of them, bytes after which any letters may follow */
};

/* place_group.c: groups of a state's places that occur together, either in every grammar or for the keys of
 * an object. */
typedef enum td_place_group_kind {
  TD_PLACE_GROUP_NONE,
  TD_PLACE_GROUP_SHARED, /* the places of one td_shared_state of the vocabulary */
  TD_PLACE_GROUP_CHARS,  /* up to n_chars characters of a string */
  TD_PLACE_GROUP_KEY,    /* inside a key that is not one of the object's names */
} td_place_group_kind;

typedef struct td_place_group {
  td_place_group_kind kind;
  const td_shared_state *shared;
  uint32_t n_chars;
  td_place *places; /* [n]; the caller allocates it */
  uint32_t n;
} td_place_group;

/* Moves one such group from places, which keep their order, to *out. Returns false if there is none. */
bool td_place_group_take(td_grammar *g, td_place *places, uint32_t *n, td_place_group *out);

/* mask.c: the mask of a state. Borrowed; NULL if memory or work was used up. Needs the lock. */
const uint32_t *td_mask_of(td_grammar *g, uint32_t state);
void td_mask_forget_all(td_grammar *g); /* needs the lock */
/* Fills v's shared states, using the shared rules of JSON as grammars. */
TD_MUST_CHECK td_status td_vocabulary_learn(td_vocabulary *v, td_error *err);

/* grammar.c: makes a grammar from the builder's rules */
TD_MUST_CHECK td_status td_grammar_make(const td_vocabulary *v, const td_builder *b, uint32_t root,
                                        td_grammar **out, td_error *err);

/* json.c: the rules with which every builder begins */
enum {
  TD_RULE_SPACE,
  TD_RULE_CHAR,   /* one character of a string */
  TD_RULE_STRING, /* including its quotes */
  TD_RULE_INTEGER,
  TD_RULE_NUMBER,
  TD_RULE_ARRAY,
  TD_RULE_OBJECT,
  TD_RULE_VALUE,
  TD_RULE_KEY_ODD,  /* a character of a key, in its only spelling, that is not plain ASCII */
  TD_RULE_KEY_REST, /* the rest of a key, and its quote */
  TD_SHARED_RULES,
};
void td_builder_begin(td_builder *b, td_error *err);
void td_builder_end(td_builder *b);

/* The compilers: from a source to an expression. */
TD_MUST_CHECK td_status td_schema_compile(td_builder *b, const cJSON *schema, const td_expr **out);
TD_MUST_CHECK td_status td_regex_compile(td_builder *b, const char *text, size_t n, const td_expr **out);
/* Lengths, in characters, of the texts that a pattern matches. most is TD_REPEAT_MANY if there is no
 * bound. */
typedef struct td_regex_lengths {
  uint32_t least, most;
} td_regex_lengths;

/* Compiles a pattern as in JSON Schema: it may match anywhere in the string. *out matches the JSON form of
 * the string, without quotes. Where dialects of patterns differ, *out accepts what all of them accept. With
 * `wide`, which is for texts that must be kept out, it accepts what any of them accepts. lengths may be
 * NULL. */
TD_MUST_CHECK td_status td_regex_compile_json(td_builder *b, const char *text, size_t n, bool wide,
                                              const td_expr **out, td_regex_lengths *lengths);
TD_MUST_CHECK td_status td_gbnf_compile(td_builder *b, const char *text, size_t n, const td_expr **out);
/* Compiles a structural tag (tags.c). */
TD_MUST_CHECK td_status td_tags_compile(td_builder *b, const cJSON *root, const td_expr **out);
/* Any text that contains none of these texts and no special token (any_text.c). */
const td_expr *td_any_text(td_builder *b, const char *const *without, uint32_t n);
TD_MUST_CHECK td_status td_choice_compile(td_builder *b, const cJSON *choices, const td_expr **out);

#endif
