/* Functions of our own that templates can call: filters, tests, methods and globals are rows of tables, bound
 * and called in one way. */
#ifndef TD_MODELS_TEMPLATE_BUILTIN_H
#define TD_MODELS_TEMPLATE_BUILTIN_H

#include "models/template/value.h"

enum { MAX_PARAMS = 6 };

/* Who has the function; bits, as a filter and a method may be one row. */
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
  value self;            /* what is filtered or tested, or the object of the method */
  str *s;                /* it as text: a string, or the row asks for it */
  value arg[MAX_PARAMS]; /* in the order of the row's parameters, as their kinds say */
  const call_args *raw;
  int variant; /* of the row */
  const char *name;
} bound;

typedef value (*builtin_fn)(rendering *r, bound *b);

/* params is "name:kind=default name:kind=default ...", with `:kind` and `=default` left out where there is
 * none. Kinds: s string, i integer, b truth (V_BOOL; false by default), t anything, turned into text, w text
 * or so many spaces; none: anything as it is. A capital letter also takes none, as if nothing was given. What
 * was not given and has no default is V_MISSING, with a NULL pointer. In front: `$` self is turned into text,
 * `/` no keywords,
 * `*` arguments are left to the function as they come. */
typedef struct builtin {
  uint8_t of;
  const char *name;
  builtin_fn fn; /* NULL: a method that the sandbox does not give */
  const char *params;
  int variant;
} builtin;

/* NULL: unknown. */
const builtin *td_builtin_find(unsigned of, text name);
/* Binds the arguments to the row's parameters (TypeError as Python's), and calls. */
value td_builtin_call(rendering *r, const builtin *fn, value self, const call_args *args);

/* The tables; each ends with a row of no name. */
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
/* Attribute paths of map(attribute=), sort(attribute=) ...: "a.b.0" (sequences.c) */
value td_attribute_path(rendering *r, value of, value path);
value td_attribute_default(rendering *r, value of, value path, value otherwise);
/* What values are sorted, compared and told apart by. */
value td_attribute_key(rendering *r, value of, value path, bool case_sensitive);

#endif
