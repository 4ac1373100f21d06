/* Functions of our own that templates can call: filters, methods and globals are rows of tables. */
#ifndef TD_MODELS_TEMPLATE_BUILTIN_H
#define TD_MODELS_TEMPLATE_BUILTIN_H

#include "models/template/value.h"

enum { MAX_PARAMS = 6 };

typedef struct bound {
  value self;            /* what is filtered, or the object of the method */
  value arg[MAX_PARAMS]; /* in the order of the row's parameter list; V_MISSING: not given */
  const call_args *raw;
  int variant; /* of the row */
  const char *name;
} bound;

typedef value (*builtin_fn)(rendering *r, bound *b);

typedef struct builtin {
  const char *name;
  builtin_fn fn;
  const char *params; /* "a b c"; "*": takes raw arguments as they come; "/a b": no keywords */
  uint8_t required;
  int variant;
} builtin;

/* Binds the arguments to the row's parameters (TypeError as Python's), and calls. */
value td_builtin_call(rendering *r, const builtin *fn, value self, const call_args *args);
const builtin *td_builtin_find(const builtin *rows, const char *p, size_t n);

/* Tables end with a row of no name. */
extern const builtin td_filters_text[], td_filters_sequence[];
extern const builtin td_str_methods[], td_str_methods_more[], td_dict_methods[], td_list_methods[];
extern const builtin td_loop_methods[];
extern const builtin td_globals[];

uint32_t td_filter_find(const char *p, size_t n); /* NO_SLOT: unknown */
uint32_t td_test_find(const char *p, size_t n);

/* Small readers of arguments; the message names the function. */
int64_t td_arg_int(rendering *r, const bound *b, int i, int64_t absent);
bool td_arg_truth(rendering *r, const bound *b, int i, bool absent);
str *td_arg_str(rendering *r, const bound *b, int i); /* must be a string; NULL when absent or none */

/* shared by filters and methods (text_ops.c) */
bool td_text_has_affix(rendering *r, const str *s, size_t from, size_t to, const str *affix, bool start);
str *td_text_strip(rendering *r, str *s, str *chars, bool left, bool right);
str *td_text_replace(rendering *r, str *s, str *from, str *to, int64_t count);
str *td_text_case(rendering *r, str *s,
                  char how); /* 'u'pper 'l'ower 'c'apitalize 't'itle (filter) 'T'itle (method) 's'wap */
str *td_text_center(rendering *r, str *s, int64_t width, str *fill, char align);
seq *td_text_split_lines(rendering *r, str *s, bool keep);
str *td_text_join(rendering *r, str *separator, value over, bool convert);
str *td_text_escape(rendering *r, str *s);
str *td_text_repeat(rendering *r, str *s, int64_t times);
/* attribute paths of map(attribute=), sort(attribute=) ...: "a.b.0" */
value td_attribute_path(rendering *r, value of, value path);
value td_attribute_default(rendering *r, value of, value path, value otherwise);

#endif
