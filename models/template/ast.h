/* Tokens and the syntax tree of a chat template, and the interfaces between lexer, parser and scope pass.
 *
 * The tree is built once, in the template's arena, and never changes afterwards, so any number of threads may
 * evaluate it. All names are resolved to slots before the first rendering (scope.c). Compile errors leave
 * through one longjmp: a compilation owns only memory in the arena. */
#ifndef TD_MODELS_TEMPLATE_AST_H
#define TD_MODELS_TEMPLATE_AST_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/arena.h"
#include "common/status.h"

typedef struct text { /* bytes in the template's arena; not terminated */
  const char *p;
  size_t n;
} text;

static inline bool text_equal(text a, text b)
{
  return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool text_is(text t, const char *s)
{
  size_t i = 0;
  for (; i < t.n; i++)
    if (s[i] == '\0' || s[i] != t.p[i])
      return false;
  return s[i] == '\0';
}

/* Whether t is one of the words in a list like "a b c". */
static inline bool text_in(text t, const char *words)
{
  for (size_t n; *words; words += n + (words[n] == ' '))
    if ((n = strcspn(words, " ")) == t.n && memcmp(words, t.p, n) == 0)
      return true;
  return false;
}

/* Bytes of t to show in a message, as the precision of %.*s. */
static inline int text_shown(text t) { return (int)(t.n < 64 ? t.n : 64); }

/* Parses t if it consists of a short run of digits and nothing else. */
static inline bool text_number(text t, int64_t *out)
{
  *out = 0;
  for (size_t i = 0; i < t.n; i++) {
    if (t.p[i] < '0' || t.p[i] > '9')
      return false;
    *out = *out * 10 + (t.p[i] - '0');
    if (i > 16)
      return false;
  }
  return t.n > 0;
}

typedef enum token_type {
  T_EOF,
  T_DATA,
  T_VAR_BEGIN,
  T_VAR_END,
  T_BLOCK_BEGIN,
  T_BLOCK_END,
  T_NAME,
  T_STRING,
  T_INT,
  T_FLOAT,
  T_ADD,
  T_SUB,
  T_DIV,
  T_FLOORDIV,
  T_MUL,
  T_MOD,
  T_POW,
  T_TILDE,
  T_LBRACKET,
  T_RBRACKET,
  T_LPAREN,
  T_RPAREN,
  T_LBRACE,
  T_RBRACE,
  T_EQ,
  T_NE,
  T_GT,
  T_GE,
  T_LT,
  T_LE,
  T_ASSIGN,
  T_DOT,
  T_COLON,
  T_PIPE,
  T_COMMA,
  T_SEMICOLON,
} token_type;

typedef struct token {
  token_type type;
  unsigned line;
  text s; /* data, names, and strings without their escapes */
  int64_t i;
  double f;
} token;

typedef enum node_kind {
  /* expressions */
  N_CONST, /* none, bool, int, float or string */
  N_NAME,
  N_LIST,
  N_TUPLE,
  N_DICT,   /* items: key, value, key, value ... */
  N_MATH,   /* a, then (ops[i], items[i]) from left to right, all with the same precedence */
  N_CONCAT, /* items joined by ~ */
  N_AND,
  N_OR,
  N_NOT,
  N_NEG,
  N_POS,
  N_COMPARE, /* a, then (ops[i], items[i]) */
  N_COND,    /* a if b else c; c may be NULL */
  N_ATTR,    /* a.text */
  N_ITEM,    /* a[b] */
  N_SLICE,   /* a[items[0]:items[1]:items[2]]; each may be NULL */
  N_CALL,    /* a(args) */
  N_FILTER,  /* a|text(args); a is NULL in filter and set blocks, where the operand is the body */
  N_TEST,    /* a is text(args) */
  N_NSREF,   /* assignment target name.text2 */
  /* statements */
  N_DATA,
  N_PRINT,       /* a */
  N_BODY,        /* items */
  N_IF,          /* items: test, body, test, body ...; a: else body or NULL */
  N_FOR,         /* a target, b iterable, c test or NULL, items[0] body, items[1] else or NULL */
  N_SET,         /* a target, b value */
  N_SETBLOCK,    /* a target, b body, c filter or NULL */
  N_MACRO,       /* fn */
  N_CALLBLOCK,   /* a call, fn */
  N_GENERATION,  /* fn: the body as a function of no arguments */
  N_FILTERBLOCK, /* a filter, b body */
  N_WITH,        /* items: target, value ...; a body */
  N_BREAK,
  N_CONTINUE,
} node_kind;

/* ops[] of N_COMPARE, in addition to the token types of == != < <= > >= */
enum { OP_IN = 100, OP_NOT_IN = 101 };

/* How a variable of a scope gets its first value when the scope is entered. */
typedef enum load_kind { LOAD_MISSING, LOAD_OUTER, LOAD_CONTEXT } load_kind;

typedef struct var_ref { /* `hops` activations outwards, then this slot */
  uint32_t hops, slot;
} var_ref;

typedef struct scope_load {
  load_kind kind;
  uint32_t slot;
  var_ref outer;    /* for LOAD_OUTER */
  uint32_t context; /* for LOAD_CONTEXT: index of the name in the template's list of context names */
} scope_load;

typedef struct scope_entry {
  scope_load *loads;
  uint32_t n_loads;
} scope_entry;

typedef struct node node;

/* A macro, or the body of a call block, which both become a function. The template's root is one too. */
typedef struct function {
  text name;
  text *params;
  uint32_t *param_slots;
  node **defaults; /* the last n_defaults parameters have a default */
  uint32_t n_params, n_defaults;
  node *body;
  scope_entry entry;
  uint32_t n_slots;
  uint32_t id;                                     /* unique in the template */
  uint32_t caller_slot, kwargs_slot, varargs_slot; /* NO_SLOT if the body does not use them */
  bool explicit_caller;
  bool anonymous; /* the body of a call block */
  bool has_inner; /* functions created inside may outlive the activation */
} function;

enum { NO_SLOT = UINT32_MAX };

struct node {
  uint8_t kind;
  uint8_t constant; /* N_CONST: a value type of value.h */
  uint16_t height;  /* of the tree below; bounded, so that evaluation cannot exhaust the stack */
  unsigned line;
  node *a, *b, *c;
  node **items;
  uint8_t *ops;
  uint32_t n_items;
  /* calls, filters, tests: positional arguments in items, then keywords */
  text *kw_names;
  node **kw_values;
  uint32_t n_kw;
  node *dyn_args, *dyn_kwargs;
  text text, text2;
  void *literal; /* for an N_CONST string: its str, shared by all renderings */
  int64_t i;
  double f;
  var_ref ref;               /* N_NAME, N_NSREF */
  scope_entry entry;         /* N_FOR body, N_SETBLOCK, N_FILTERBLOCK, N_WITH */
  scope_entry entry2;        /* N_FOR else */
  scope_entry entry3;        /* N_FOR test */
  node *test_target;         /* N_FOR: a copy of the target, with the slots of the test's scope */
  uint32_t loop_slot;        /* N_FOR */
  const struct builtin *row; /* N_FILTER, N_TEST: NULL if unknown, an error when reached. N_ATTR: not NULL if
                              * some method has the name */
  function *fn;
};

typedef struct compiler {
  td_arena *arena;
  td_error *err;
  jmp_buf fail;
  /* lexer */
  const char *src;
  size_t n, at;
  unsigned line;
  int state; /* a STATE_* of lexer.c */
  bool line_starting;
  char *balance; /* the closing brackets that are expected; at most one byte per source byte */
  size_t n_balance;
  token current, ahead;
  bool has_ahead;
  /* parser */
  token peeked;
  bool has_peeked;
  size_t n_nodes;
  unsigned depth;
  /* scope pass */
  text *context_names;
  uint32_t n_context_names;
  uint32_t n_functions;
} compiler;

/* Ends the compilation with TD_ERR_MODEL and the line. */
__attribute__((noreturn)) void td_template_fail(compiler *c, unsigned line, const char *fmt, ...)
    TD_PRINTF(3, 4);
void *td_template_alloc(compiler *c, size_t count, size_t size);
/* Makes room for one more item in an array of n. Only this function may allocate the array. */
void *td_template_grow(compiler *c, void *items, size_t n, size_t size);

/* lexer.c */
void td_lexer_start(compiler *c, const char *source, size_t n);
token td_lexer_next(compiler *c);
const char *td_lexer_type_name(token_type t);

/* parser.c, parser_expression.c */
node *td_parse_template(compiler *c);
node *td_parse_expression(compiler *c, bool with_condition);
/* What a tuple without parentheses may contain: conditional expressions, nothing, or assignment targets. */
enum { TUPLE_CONDITION = 1, TUPLE_EMPTY = 2, TUPLE_TARGET = 4, TUPLE_NAMESPACE = 8 };
/* Parses one item, or a tuple of them. Stops at a closing token or the name end_name (may be NULL). */
node *td_parse_tuple(compiler *c, int how, const char *end_name);
node *td_parse_filters(compiler *c, node *of, bool started);
node *td_parse_new(compiler *c, node_kind kind, unsigned line);
/* A complete node with one child. */
node *td_parse_over(compiler *c, node_kind kind, unsigned line, node *a);
/* Sets the height of a node whose children are complete. Returns the node. */
node *td_parse_done(compiler *c, node *n);
void td_parse_add(compiler *c, node *n, node *item); /* to n's items */
void td_parse_advance(compiler *c);
const token *td_parse_look(compiler *c);
bool td_parse_is_name(const token *t, const char *name);
bool td_parse_skip_name(compiler *c, const char *name);
bool td_parse_skip(compiler *c, token_type type);
token td_parse_expect(compiler *c, token_type type);
void td_parse_deeper(compiler *c);

/* Child i < td_node_children(n), in the reference's order; may be NULL. A function's children are not
 * included. */
static inline uint32_t td_node_children(const node *n) { return 5 + n->n_items + n->n_kw; }
static inline node *td_node_child(const node *n, uint32_t i)
{
  if (i < 2)
    return i == 0 ? n->a : n->b;
  if ((i -= 2) < n->n_items)
    return n->items[i];
  if ((i -= n->n_items) == 0)
    return n->c;
  if (--i < n->n_kw)
    return n->kw_values[i];
  return i == n->n_kw ? n->dyn_args : n->dyn_kwargs;
}
/* scope.c: gives every name its slot */
function *td_scope_resolve(compiler *c, node *body);

#endif
