/* Values of a rendering, modelled on Python's: what a template can store, print and compare.
 *
 * Everything is in the rendering's arena, and immutable except for namespaces, iterators and loops. Every
 * string knows which of its bytes are trusted. It has one flag for all of them or, once both kinds were
 * joined, a shadow with one byte per byte, which every operation cuts and joins along with the text. Numbers
 * and containers have one flag, so that everything printed from a client's value, including punctuation,
 * counts as the client's. Errors leave a rendering through one longjmp (td_render_fail): only the arena has
 * to be released. */
#ifndef TD_MODELS_TEMPLATE_VALUE_H
#define TD_MODELS_TEMPLATE_VALUE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/json.h"
#include "common/progress.h"
#include "models/template/ast.h"
#include "models/template/chat_template.h"

typedef enum value_type {
  V_MISSING, /* no value at all; templates never see it */
  V_UNDEFINED,
  V_NONE,
  V_BOOL,
  V_INT,
  V_FLOAT,
  V_BIGINT, /* an integer beyond 64 bits: can only be printed and compared for equality */
  V_STR,
  V_LIST,
  V_TUPLE,
  V_DICT,
  V_NAMESPACE,
  V_RANGE,
  V_VIEW, /* dict.keys(), .values(), .items() */
  V_ITER, /* generators and iterators */
  V_BUILTIN,
  V_METHOD,
  V_MACRO,
  V_LOOP,
} value_type;

typedef struct call_args call_args;
typedef struct str str;
typedef struct seq seq;
typedef struct dict dict;
typedef struct iter iter;

typedef struct value {
  uint8_t type;
  bool untrusted; /* came from the client; for numbers, bools and none */
  union {
    bool b;
    int64_t i;
    double f;
    str *s; /* V_STR, V_BIGINT */
    seq *l;
    dict *d; /* V_DICT, V_NAMESPACE */
    struct undefined *u;
    struct range *r;
    struct view *v;
    iter *it;
    const struct builtin *fn;
    struct method *m;
    struct macro *macro;
    struct loop *loop;
  };
} value;

struct str {
  const char *p;
  size_t n;
  const uint8_t *shadow; /* one byte per byte, 1 if trusted; NULL if `trusted` holds for all bytes */
  size_t n_chars;        /* SIZE_MAX if not counted yet */
  struct str_room *room; /* the growing buffer in which it ends, or NULL; text may be appended there */
  bool trusted;
  bool markup; /* |safe: text added to it is HTML-escaped, as in the reference */
};

struct str_room {
  size_t used, cap;
};

struct seq {
  value *items;
  size_t n, cap; /* cap: only for a list that td_seq_push made */
  bool untrusted;
};

typedef struct dict_entry {
  value key, val;
  uint64_t hash;
} dict_entry;

struct dict {
  dict_entry *entries;
  size_t n, cap;
  uint32_t *index; /* open addressing, entry index + 1; NULL while small */
  size_t index_cap;
  bool untrusted;
  bool busy; /* is being printed; needed because a namespace can contain itself */
};

struct undefined {
  const char *hint; /* the error message, if not NULL; otherwise the message is made from: */
  value of;         /* the object, or V_MISSING if `name` is a plain name */
  value name;
  bool security;
};

struct range {
  int64_t start, stop, step, n;
};

/* Intermediate results may wrap, but the item itself fits. */
static inline int64_t range_at(const struct range *g, int64_t i)
{
  return (int64_t)((uint64_t)g->start + (uint64_t)g->step * (uint64_t)i);
}

struct view {
  dict *d;
  char kind; /* 'k', 'v' or 'i' */
};

struct method {
  value self;
  const struct builtin *fn;
};

typedef struct activation activation;
struct activation {
  activation *outer;
  activation *next_spare; /* outer remains valid, because an escaped loop may still use it */
  value *slots;
};

struct macro {
  const function *fn;
  activation *env;
};

struct loop {
  iter *it;
  value over;
  int64_t index0, length;
  value after, current, before, changed;
};

typedef struct text_out { /* text under construction, in the arena */
  char *p;
  uint8_t *shadow;
  size_t n, cap;
  bool trusted; /* while shadow is NULL */
  bool root;    /* writes directly to the rendered text */
} text_out;

enum { TD_MARK_BYTES = 40 };

typedef struct rendering {
  const struct td_chat_template *t;
  const td_render_input *in;
  td_rendered *out;
  td_error *err;
  td_arena arena;
  jmp_buf fail;
  size_t ops_left;
  uint64_t seed;        /* for hashes */
  const str *continued; /* the final message's text, if that message is continued; its end is marked by: */
  char mark[TD_MARK_BYTES + 2];
  unsigned depth, macro_depth;
  value *context; /* one per context name of the template; V_MISSING until looked up, then cached */
  bool *context_known;
  activation **spare; /* one per function: a list of activations that can be reused */
  activation *env;
  text_out *to;
} rendering;

/* ---- errors, memory, budget (rendering.c) ---- */
__attribute__((noreturn)) void td_render_fail_status(rendering *r, td_status code, const char *fmt, ...)
    TD_PRINTF(3, 4);
#define td_render_fail(r, ...) td_render_fail_status(r, TD_ERR_REQUEST, __VA_ARGS__)
__attribute__((noreturn)) void td_render_fail_spent(rendering *r);
void *td_render_alloc(rendering *r, size_t count, size_t size);
/* Pays for n steps of work; fails when the budget is spent. A step is about 50 ns at most. Bytes that are
 * copied or compared cost 1/64 each, bytes that are decoded 1/16. */
static inline void td_render_pay(rendering *r, size_t n)
{
  if (n >= r->ops_left)
    td_render_fail_spent(r);
  r->ops_left -= n;
  td_progress_add(n);
}
static inline void pay_bytes(rendering *r, size_t n) { td_render_pay(r, n / 64 + 1); }
static inline void pay_chars(rendering *r, size_t n) { td_render_pay(r, n / 16 + 1); }
/* Stable. order may fail, if the types have no order. */
typedef int (*td_render_order)(rendering *r, const void *a, const void *b);
void td_render_sort(rendering *r, const void **items, size_t n, td_render_order order);
void td_render_deeper(rendering *r);
static inline void shallower(rendering *r) { r->depth--; }

/* ---- constructors ---- */
static inline value v_missing(void) { return (value){.type = V_MISSING}; }
static inline value v_none(void) { return (value){.type = V_NONE}; }
static inline value v_bool(bool b) { return (value){.type = V_BOOL, .b = b}; }
static inline value v_int(int64_t i) { return (value){.type = V_INT, .i = i}; }
static inline value v_float(double f) { return (value){.type = V_FLOAT, .f = f}; }
static inline value v_str(str *s) { return (value){.type = V_STR, .s = s}; }
static inline value v_list(seq *l) { return (value){.type = V_LIST, .l = l}; }
value td_value_undefined_name(rendering *r, text name);
value td_value_undefined_hint(rendering *r, const char *fmt, ...) TD_PRINTF(2, 3);
value td_value_undefined_of(rendering *r, value of, value name, bool security);
__attribute__((noreturn)) void td_value_fail_undefined(rendering *r, value u);
value td_value_list(rendering *r, value *items, size_t n, bool tuple);
value td_value_pair(rendering *r, value a, value b); /* a tuple */
void td_seq_push(rendering *r, seq *l, value v);     /* only while the list is not shared */
void td_seq_reverse(seq *l);
value td_value_from_json(rendering *r, const cJSON *item, bool trusted);

/* ---- strings (string.c) ---- */
str *td_str_new(rendering *r, const char *p, size_t n, bool trusted); /* borrows p */
str *td_str_copy(rendering *r, const char *p, size_t n, bool trusted);
str *td_str_literal(rendering *r, const char *s);
str *td_str_slice(rendering *r, const str *s, size_t from, size_t to); /* bytes; shares */
str *td_str_concat(rendering *r, const str *a, const str *b);
size_t td_str_chars(str *s);
size_t td_str_char_offset(str *s, size_t i); /* byte offset of character i (i <= number of characters) */
static inline bool str_ascii(str *s) { return td_str_chars(s) == s->n; }
int td_str_compare(const str *a, const str *b);
static inline bool td_str_equals(const str *a, const char *s) { return text_is((text){a->p, a->n}, s); }
/* Byte offset of needle in s[from, to), or SIZE_MAX. Linear time. */
size_t td_str_find(rendering *r, const str *s, const str *needle, size_t from, size_t to);
size_t td_str_rfind(rendering *r, const str *s, const str *needle, size_t from, size_t to);
static inline bool str_trusted_at(const str *s, size_t i) { return s->shadow ? s->shadow[i] : s->trusted; }
bool td_str_any_untrusted(rendering *r, const str *s);

void td_out_init(text_out *o);
void td_out_bytes(rendering *r, text_out *o, const char *p, size_t n, bool trusted);
void td_out_cstr(rendering *r, text_out *o, const char *s, bool trusted);
void td_out_str(rendering *r, text_out *o, const str *s);
void td_out_slice(rendering *r, text_out *o, const str *s, size_t from, size_t to);
str *td_out_finish(rendering *r, text_out *o);

/* ---- values (value.c) ---- */
const char *td_value_type_name(value v);
bool td_value_truth(rendering *r, value v);
bool td_value_equal(rendering *r, value a, value b);
/* Returns -1, 0 or 1; fails if the types have no order. op is the operator being evaluated: for nan, the
 * result makes it false. */
int td_value_compare(rendering *r, value a, value b, token_type op);
uint64_t td_value_hash(rendering *r, value v);
bool td_value_length(rendering *r, value v, int64_t *n); /* false: it has no length */
bool td_value_contains(rendering *r, value container, value item);
bool td_value_is_untrusted(rendering *r, value v);
dict *td_dict_new(rendering *r, size_t cap, bool untrusted);
void td_dict_set(rendering *r, dict *d, value key, value val);
value td_dict_get(rendering *r, const dict *d, value key); /* V_MISSING if absent */
value td_dict_get_text(rendering *r, const dict *d, text key);
void td_dict_set_text(rendering *r, dict *d, text key, value val);
void td_dict_add_keywords(rendering *r, dict *d, const call_args *args);
value td_dict_view(rendering *r, dict *d, char kind);

static inline bool is_number(value v) { return v.type == V_BOOL || v.type == V_INT || v.type == V_FLOAT; }
static inline int64_t as_int(value v) { return v.type == V_INT ? v.i : v.b; }
static inline double as_double(value v) { return v.type == V_FLOAT ? v.f : (double)as_int(v); }

/* ---- iteration (iterate.c) ---- */
typedef value (*iter_next)(rendering *r, iter *it); /* V_MISSING at the end */
struct iter {
  iter_next next;
  const char *type_name; /* as Python names it: generator, list_iterator ... */
  value over;            /* the value that is iterated */
  iter *source;
  int64_t i, n;
  void *state;
};
enum {
  SEQUENCE_TYPES = 1 << V_UNDEFINED | 1 << V_STR | 1 << V_LIST | 1 << V_TUPLE | 1 << V_DICT | 1 << V_RANGE,
  ITERABLE_TYPES = SEQUENCE_TYPES | 1 << V_VIEW | 1 << V_ITER | 1 << V_LOOP,
};
static inline bool td_iterable(value v) { return ITERABLE_TYPES >> v.type & 1; }
value td_item_at(rendering *r, value of, int64_t i); /* for values with length and order, except strings */
iter *td_iter_of(rendering *r, value v);             /* fails if not iterable */
value td_iter_next(rendering *r, iter *it);
iter *td_iter_new(rendering *r, iter_next next, const char *type_name);
seq *td_iter_collect(rendering *r, value v);
iter *td_iter_reversed(rendering *r, value v); /* NULL: cannot be iterated backwards */

/* ---- text of values (print.c) ---- */
str *td_value_str(rendering *r, value v);
str *td_value_repr(rendering *r, value v);
void td_value_print(rendering *r, text_out *o, value v); /* prints str(v) */
enum { FLOAT_STEPS = 16 };                               /* the price of printing a float */
size_t td_float_repr(double f, char out[40]);
const char *td_value_quoted(rendering *r, value v); /* repr as a C string, for messages */
value td_value_tojson(rendering *r, value v, bool ascii, const str *indent, value separators, bool sort_keys);

/* ---- operators (operators.c) ---- */
bool td_op_compare(rendering *r, uint8_t op, value a, value b); /* op: as in ops[] of N_COMPARE */
value td_op_math(rendering *r, token_type op, value a, value b);
value td_op_negate(rendering *r, value v, bool positive);
/* may_be_method is false if no method has this name. */
value td_op_attribute(rendering *r, value of, text name, value name_value, bool may_be_method);
value td_op_item(rendering *r, value of, value key);
value td_op_slice(rendering *r, value of, value start, value stop, value step);
bool td_op_index(value v, int64_t *i); /* true for int or bool */

/* ---- Python's two formatting methods (format.c) ---- */
value td_op_format(rendering *r, value format, value args); /* format % args */
value td_format_braces(rendering *r, str *format, const call_args *args);

/* ---- statements (execute.c) ---- */
void td_execute_root(rendering *r, const function *root);
value td_call_macro(rendering *r, const struct macro *m, const call_args *args);
value td_eval(rendering *r, const node *n); /* eval.c */
void td_assign(rendering *r, const node *target, value v);
value td_loop_attribute(rendering *r, struct loop *loop, text name); /* V_MISSING: no such attribute */
value td_loop_new(rendering *r, value over, iter *it);
bool td_loop_advance(rendering *r, struct loop *loop); /* false at the end */
value td_context_value(rendering *r, uint32_t index);  /* rendering.c; V_MISSING: unknown name */

/* ---- where the final message ends (continuation.c) ---- */
void td_continuation_mark(rendering *r, value messages);
void td_continuation_cut(rendering *r);

/* ---- calls ---- */
struct call_args {
  value *pos;
  size_t n_pos;
  text *kw_names;
  value *kw;
  size_t n_kw;
};
value td_eval_call(rendering *r, value callee, call_args *args); /* eval.c */
/* Calls a filter or test, given its row (builtin.c). */
value td_call_row(rendering *r, const struct builtin *row, value of, const call_args *args);

#endif
