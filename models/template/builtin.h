/* Built-in functions that templates can call. Filters, tests, methods and globals are rows of tables, and all
 * are bound and called in the same way. */
#ifndef TD_MODELS_TEMPLATE_BUILTIN_H
#define TD_MODELS_TEMPLATE_BUILTIN_H

#include "models/template/value.h"

enum { MAX_PARAMS = 6 };

/* The kinds of function that a row is for. They are bits, because a filter and a method may share a row. */
enum {
  OF_FILTER = 1,
  OF_TEST = 2,
  OF_GLOBAL = 4,
  OF_STR = 8,
  OF_LIST = 16,
  OF_FIXED_LIST = 32, /* tuples and ranges */
  OF_DICT = 64,
  OF_LOOP = 128,
  METHOD_OF_ANY = OF_STR | OF_LIST | OF_FIXED_LIST | OF_DICT | OF_LOOP,
};

typedef struct bound {
  value self;            /* the filtered or tested value, or the method's object */
  str *s;                /* self as text, if it is a string or the row asks for text; otherwise NULL */
  value arg[MAX_PARAMS]; /* in the order of the row's parameters, converted to their kinds */
  const call_args *raw;
  int variant; /* the row's */
  const char *name;
} bound;

typedef value (*builtin_fn)(rendering *r, bound *b);

/* params is "name:kind=default name:kind=default ...", where `:kind` and `=default` may be absent.
 *
 * Kinds: s string; i integer; b truth (V_BOOL, false by default); t any value, converted to text; w text, or
 * a number of spaces. Without a kind, any value is passed on unchanged. A capital letter also accepts none,
 * which counts as not given. An argument that was not given and has no default is V_MISSING, with a NULL
 * pointer.
 *
 * Prefixes: `$` self is converted to text, `/` no keywords, `*` the function reads the raw arguments
 * itself. */
typedef struct builtin {
  uint8_t of;
  const char *name;
  builtin_fn fn; /* NULL: a method that the sandbox forbids */
  const char *params;
  int variant;
} builtin;

/* NULL if unknown. */
const builtin *td_builtin_find(unsigned of, text name);
/* Binds the arguments to the row's parameters (with Python's TypeErrors), and calls the function. */
value td_builtin_call(rendering *r, const builtin *fn, value self, const call_args *args);

/* The tables. Each ends with a row that has no name. */
extern const builtin td_rows_text_change[], td_rows_text_search[], td_rows_numbers[], td_rows_sequences[],
    td_rows_containers[];
extern const builtin td_rows_lazy[], td_rows_tests[], td_rows_globals[], td_rows_loop[];

/* text_change.c, text_search.c */
str *td_text_strip(rendering *r, str *s, str *chars, bool left, bool right);
/* 'u'pper 'l'ower 'c'apitalize 't'itle (filter) 'T'itle (method) 's'wap */
str *td_text_case(rendering *r, str *s, char how);
str *td_text_escape(rendering *r, str *s);
str *td_text_repeat(rendering *r, str *s, int64_t times);
seq *td_text_split_lines(rendering *r, str *s, bool keep);
/* Follow an attribute path as in map(attribute=) or sort(attribute=): "a.b.0" (sequences.c). */
value td_attribute_path(rendering *r, value of, value path);
value td_attribute_default(rendering *r, value of, value path, value otherwise);
/* The key by which values are sorted, compared and made unique. */
value td_attribute_key(rendering *r, value of, value path, bool case_sensitive);

#endif
