/* Expressions: the compilers of schemas, patterns and GBNF write them, and programs are made from them.
 *
 * They are in the builder's arena. A builder that runs out of memory or budget sets `failed` and returns
 * td_expr_none from then on, so callers need not check each call. */
#ifndef TD_MODELS_GRAMMAR_EXPR_H
#define TD_MODELS_GRAMMAR_EXPR_H

#include "common/arena.h"
#include "common/status.h"
#include "models/grammar/grammar.h"

typedef struct td_byte_set {
  uint64_t bits[4];
} td_byte_set;

static inline void td_byte_set_add(td_byte_set *s, unsigned b) { s->bits[b / 64] |= 1ull << b % 64; }
static inline bool td_byte_set_has(const td_byte_set *s, unsigned b) { return s->bits[b / 64] >> b % 64 & 1; }

typedef enum td_expr_kind {
  TD_EXPR_EMPTY, /* the empty text */
  TD_EXPR_NONE,  /* no text at all */
  TD_EXPR_TEXT,
  TD_EXPR_SET, /* one byte */
  TD_EXPR_CAT,
  TD_EXPR_ALT,
  TD_EXPR_REPEAT,
  TD_EXPR_CALL,
  TD_EXPR_GRAPH, /* an automaton */
} td_expr_kind;

#define TD_REPEAT_MANY UINT32_MAX

typedef struct td_graph_edge {
  td_byte_set set;
  uint32_t to;
} td_graph_edge;

typedef struct td_graph_state {
  td_graph_edge *edges;
  uint32_t n_edges;
  bool whole;
} td_graph_state;

typedef struct td_expr td_expr;
struct td_expr {
  td_expr_kind kind;
  bool is_shared;    /* used at several places with the same continuation: td_expr_share */
  uint32_t n;        /* TEXT: bytes; CAT, ALT: items; CALL: the rule; GRAPH: states, starting with 0 */
  uint32_t min, max; /* for REPEAT; max TD_REPEAT_MANY: no bound */
  td_byte_set set;
  union {
    const char *text;
    const td_expr **items;
    const td_expr *body;
    const td_graph_state *states;
  } u;
};

typedef struct td_builder {
  td_arena arena;
  const td_expr **rules; /* in the arena */
  uint32_t n_rules, cap_rules;
  uint64_t work; /* work of all machines and programs made so far; td_builder_work */
  bool failed;   /* out of memory or budget */
  bool python;   /* true, false and null are spelt as in Python */
  td_error *err;
} td_builder;

extern const td_expr td_expr_none, td_expr_empty;

/* A growing list of expressions. */
typedef struct td_expr_list {
  const td_expr **items;
  uint32_t n, cap;
} td_expr_list;
void td_expr_add(td_builder *b, td_expr_list *list, const td_expr *e);

const td_expr *td_expr_text(td_builder *b, const char *text, size_t n); /* copied */
const td_expr *td_expr_string(td_builder *b, const char *text);
const td_expr *td_expr_range(td_builder *b, unsigned lo, unsigned hi);
const td_expr *td_expr_set(td_builder *b, const td_byte_set *set);
const td_expr *td_expr_cat(td_builder *b, const td_expr_list *list);
const td_expr *td_expr_alt(td_builder *b, const td_expr_list *list);
const td_expr *td_expr_cat2(td_builder *b, const td_expr *x, const td_expr *y);
const td_expr *td_expr_cat3(td_builder *b, const td_expr *x, const td_expr *y, const td_expr *z);
const td_expr *td_expr_alt2(td_builder *b, const td_expr *x, const td_expr *y);
const td_expr *td_expr_repeat(td_builder *b, const td_expr *body, uint32_t min, uint32_t max);
const td_expr *td_expr_call(td_builder *b, uint32_t rule);
/* Whether the machine counts repetitions of e, instead of having them written out. True for calls of
 * TD_RULE_CHAR, the characters of a string. */
bool td_expr_is_counted(const td_expr *e);
/* Returns a copy of e that a program writes only once for each continuation. */
const td_expr *td_expr_share(td_builder *b, const td_expr *e);
/* One of the texts. Common prefixes are shared. The texts are sorted into a copy. */
const td_expr *td_expr_texts(td_builder *b, const char **texts, size_t *lengths, size_t n);

uint32_t td_builder_add_rule(td_builder *b); /* has no body yet */

/* One budget (TD_LIMIT_GRAMMAR_WORK) for all machines of a compile. False: it is used up, and b has
 * failed. */
bool td_builder_work(td_builder *b, uint64_t n);
uint64_t td_builder_work_left(const td_builder *b);

/* An automaton of the texts that fit all of wanted [n_wanted] and none of unwanted. Their rules must not be
 * recursive. If it has too many states, returns td_expr_none and sets *too_large. (intersect.c) */
const td_expr *td_expr_intersect(td_builder *b, const td_expr *const *wanted, uint32_t n_wanted,
                                 const td_expr *const *unwanted, uint32_t n_unwanted, bool *too_large);
/* Tries many texts against one expression. td_tester_create returns NULL if memory or work is used up, and
 * then b has failed. */
typedef struct td_tester td_tester;
td_tester *td_tester_create(td_builder *b, const td_expr *e);
void td_tester_destroy(td_tester *t); /* NULL: does nothing */
bool td_tester_fits(td_tester *t, const char *bytes, size_t n);

/* ---- sets of characters ---- */

typedef struct td_char_range {
  uint32_t lo, hi;
} td_char_range;

typedef struct td_chars {
  td_char_range *ranges; /* in the arena; sorted and disjoint after td_chars_tidy */
  uint32_t n, cap;
} td_chars;

enum { TD_CHAR_MAX = 0x10FFFF };

void td_chars_add(td_builder *b, td_chars *c, uint32_t lo, uint32_t hi);
void td_chars_tidy(td_chars *c);
void td_chars_invert(td_builder *b, td_chars *c);
/* One of these characters in UTF-8. Surrogates are left out. */
const td_expr *td_chars_expr(td_builder *b, const td_chars *c);
/* One of these characters inside a JSON string, escaped if and only if JSON requires it. */
const td_expr *td_chars_json_expr(td_builder *b, const td_chars *c);

#endif
