/* Strings, numbers and literal values of a schema. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/grammar/schema.h"

void td_schema_count(td_schema *s, const cJSON *schema, const char *keyword, uint32_t *least, uint32_t *most)
{
  const cJSON *m = td_json_get(schema, keyword);
  if (!m)
    return;
  double v = cJSON_IsNumber(m) ? m->valuedouble : -1;
  if (!(v >= 0) || v != floor(v)) {
    td_schema_fail(s, TD_ERR_REQUEST, schema, keyword, "must be a whole number from 0 on");
    return;
  }
  if (least && v > 1e6)
    td_schema_fail(s, TD_ERR_UNSUPPORTED, schema, keyword, "is above 1000000, which is not served");
  else if (least && v > *least)
    *least = (uint32_t)v;
  else if (most && v < 1e6 && v < *most)
    *most = (uint32_t)v;
  else if (most && v >= 1e6 && v < 4e9)
    td_schema_fail(s, TD_ERR_UNSUPPORTED, schema, keyword, "is above 1000000, which is not served");
}

/* ---- values ---- */

/* Like json.dumps without ASCII escapes: only what must be escaped is. cJSON's printer agrees, except for DEL
 * and for numbers, which keep their value. */
const td_expr *td_schema_value(td_schema *s, const cJSON *value)
{
  td_expr_list list = {0};
  td_builder *b = s->b;
  const td_expr *space = td_expr_call(b, TD_RULE_SPACE);
  if (cJSON_IsObject(value) || cJSON_IsArray(value)) {
    bool object = cJSON_IsObject(value);
    td_expr_add(b, &list, td_expr_string(b, object ? "{" : "["));
    for (const cJSON *m = value->child; m; m = m->next) {
      td_expr_add(b, &list, m == value->child ? space : td_expr_cat2(b, td_expr_string(b, ","), space));
      if (object)
        td_expr_add(b, &list, td_expr_cat3(b, td_schema_text(s, m->string), td_expr_string(b, ":"), space));
      td_expr_add(b, &list, td_schema_value(s, m));
    }
    td_expr_add(b, &list, space);
    td_expr_add(b, &list, td_expr_string(b, object ? "}" : "]"));
    return td_expr_cat(b, &list);
  }
  if (cJSON_IsString(value))
    return td_schema_text(s, value->valuestring);
  if (b->python && (cJSON_IsBool(value) || cJSON_IsNull(value)))
    return td_expr_string(b, cJSON_IsNull(value) ? "None" : cJSON_IsTrue(value) ? "True" : "False");
  if (cJSON_IsRaw(value))
    return td_expr_string(b, value->valuestring);
  if (cJSON_IsNumber(value) && !isfinite(value->valuedouble))
    return td_schema_fail(s, TD_ERR_REQUEST, value, value->string ? value->string : "enum",
                          "holds a number that no double holds");
  char *text = cJSON_PrintUnformatted(value);
  const td_expr *e = text ? td_expr_string(b, text) : &td_expr_none;
  b->failed |= !text;
  cJSON_free(text);
  return e;
}

/* The text with its quotes. */
const td_expr *td_schema_text(td_schema *s, const char *text)
{
  static const char shorts[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
  size_t n = strlen(text), k = 0;
  char *out = td_arena_alloc_array(&s->b->arena, n + 1, 6);
  if (!out) {
    s->b->failed = true;
    return &td_expr_none;
  }
  out[k++] = '"';
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)text[i];
    const char *at = strchr(shorts, c);
    if (c == 0xC0 && (unsigned char)text[i + 1] == 0x80) /* U+0000, see json.h */
      k += (size_t)sprintf(out + k, "\\u0000"), i++;
    else if (at) {
      out[k++] = '\\';
      out[k++] = letters[at - shorts];
    } else if (c < 0x20)
      k += (size_t)sprintf(out + k, "\\u%04x", c);
    else
      out[k++] = (char)c;
  }
  out[k++] = '"';
  return td_expr_text(s->b, out, k);
}

/* ---- strings ---- */

static const struct {
  const char *name, *pattern;
} formats[] = {
#define DATE                                                                                                 \
  "[0-9]{4}-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|[0-9]{4}-(0[469]|11)-(0[1-9]|[12][0-9]|30)|[0-9]{4}-"  \
  "02-(0[1-9]|1[0-9]|2[0-8])"
#define CLOCK "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?"
#define ZONE "([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL_OF(n)                                                                                          \
  "[A-Za-z0-9]([A-Za-z0-9-]?[A-Za-z0-9]|[A-Za-z0-9-]([A-Za-z0-9][A-Za-z0-9-]{0," n                           \
  "}[A-Za-z0-9]|-[A-Za-z0-9]([A-Za-z0-9-]{0," n "}[A-Za-z0-9])?))?"
/* No "--" as third and fourth characters: such labels have a meaning of their own (xn--). A name has at most
 * 253 characters. */
#define LABEL LABEL_OF("58")
#define SHORT LABEL_OF("26")
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define H16 "[0-9A-Fa-f]{1,4}"
#define PCHAR "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define TAIL "(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"
#define HOST "([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})"
    {"date", "^(" DATE ")$"},
    {"time", "^" CLOCK ZONE "$"},
    {"date-time", "^(" DATE ")[tT]" CLOCK ZONE "$"},
    {"duration",
     "^P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)(T([0-9]+H([0-9]+M([0-9]+S)?)?|"
     "[0-9]+M([0-9]+S)?|[0-9]+S))?|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))$"},
    {"email", "^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,30}(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,30})?@" LABEL
              "(\\." LABEL "){1,2}$"},
    {"hostname", "^(" LABEL "(\\." LABEL "){0,2}|" SHORT "(\\." SHORT "){3,6})$"},
    {"ipv4", "^(" BYTE "\\.){3}" BYTE "$"},
    {"ipv6", "^((" H16 ":){7}" H16 "|(" H16 ":){1,6}:" H16 "|(" H16 ":){1,5}(:" H16 "){1,2}|(" H16
             ":){1,4}(:" H16 "){1,3}|(" H16 ":){1,3}(:" H16 "){1,4}|(" H16 ":){1,2}(:" H16 "){1,5}|" H16
             ":(:" H16 "){1,6}|:((:" H16 "){1,7}|:)|(" H16 ":){1,7}:)$"},
    {"uuid", "^[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$"},
#define PATH "(//" HOST "+(:[0-9]{1,5})?(/" PCHAR "*)*|/?" PCHAR "+(/" PCHAR "*)*)"
#define URI "[A-Za-z][A-Za-z0-9+.-]*:" PATH TAIL
#define REFERENCE                                                                                            \
  URI "|(//" HOST "+(:[0-9]{1,5})?(/" PCHAR "*)*|/(" PCHAR "+(/" PCHAR "*)*)?|(" HOST "|@)+(/" PCHAR         \
      "*)*|)" TAIL
    {"uri", "^" URI "$"},
    {"uri-reference", "^(" REFERENCE ")$"},
    /* these are narrower than they could be */
    {"iri", "^" URI "$"},
    {"iri-reference", "^(" REFERENCE ")$"},
    {"idn-hostname", "^" LABEL "(\\." LABEL "){0,2}$"},
    {"idn-email", "^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,30}@" LABEL "(\\." LABEL "){1,2}$"},
    {"uri-template",
     "^([A-Za-z0-9._~:/?#@!$&()*+,;=-]|%[0-9A-Fa-f]{2}|\\{[A-Za-z0-9_]+(,[A-Za-z0-9_]+)*\\})*$"},
    {"regex", "^\\^?(([A-Za-z0-9 _:/@,;=#%&<>~!-]|\\.|\\\\[dDwWsS./]|\\[[A-Za-z0-9_]+\\]|\\([A-Za-z0-9 "
              "_|:/-]+\\))[*+?]?)*"
              "\\$?$"},
    {"relative-json-pointer", "^(0|[1-9][0-9]*)(#|(/([^/~]|~[01])*)*)$"},
    {"json-pointer", "^(/([^/~]|~[01])*)*$"},
};

const char *td_format_pattern(const char *name)
{
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
    if (strcmp(formats[i].name, name) == 0)
      return formats[i].pattern;
  return NULL;
}

/* What a string between its quotes must fit, and what it must not fit. */
typedef struct text_words {
  td_schema *s;
  uint32_t least, most;  /* length in characters */
  td_regex_lengths fits; /* bounds on the length of texts that fit all patterns */
  const td_expr *wanted[TD_SCHEMA_PATTERNS_MAX + 2], *unwanted[TD_SCHEMA_PATTERNS_MAX];
  uint32_t n_wanted, n_unwanted;
} text_words;

static void add_pattern(text_words *w, const cJSON *schema, const char *keyword, const char *pattern,
                        bool unwanted)
{
  td_schema *s = w->s;
  td_error why, *err = s->b->err;
  char text[256];
  uint32_t *n = unwanted ? &w->n_unwanted : &w->n_wanted;
  const td_expr **list = unwanted ? w->unwanted : w->wanted;
  if (s->status != TD_OK)
    return;
  if (*n == TD_SCHEMA_PATTERNS_MAX) {
    td_schema_fail(s, TD_ERR_UNSUPPORTED, schema, keyword, "comes too often");
    return;
  }
  s->b->err = &why;
  list[*n] = &td_expr_none;
  td_regex_lengths lengths = {0, TD_REPEAT_MANY};
  td_status st = td_regex_compile_json(s->b, pattern, strlen(pattern), unwanted, &list[*n], &lengths);
  if (!unwanted && lengths.least > w->fits.least)
    w->fits.least = lengths.least;
  if (!unwanted && lengths.most < w->fits.most)
    w->fits.most = lengths.most;
  s->b->err = err;
  if (st != TD_OK) {
    snprintf(text, sizeof text, "has %.200s", why.message);
    td_schema_fail(s, st, schema, keyword, text);
  }
  ++*n;
}

static void add_unwanted_texts(text_words *w, const cJSON *schema, const cJSON *list)
{
  td_expr_list alt = {0};
  if (w->n_unwanted == TD_SCHEMA_PATTERNS_MAX) {
    td_schema_fail(w->s, TD_ERR_UNSUPPORTED, schema, "enum", "comes too often");
    return;
  }
  for (const cJSON *m = list->child; m && td_schema_work(w->s, schema, "enum", 1); m = m->next)
    td_expr_add(w->s->b, &alt, td_schema_spellings(w->s->b, m->valuestring));
  w->unwanted[w->n_unwanted++] = td_expr_alt(w->s->b, &alt);
}

static void read_text_words(text_words *w, const cJSON *schema)
{
  td_schema *s = w->s;
  const cJSON *pattern = td_schema_get(s, schema, "pattern"), *format = td_schema_get(s, schema, "format");
  const cJSON *no = td_schema_get(s, schema, KEYWORD_NO_PATTERN),
              *none_of = td_schema_get(s, schema, KEYWORD_NONE_OF);
  td_schema_count(s, schema, "minLength", &w->least, NULL);
  td_schema_count(s, schema, "maxLength", NULL, &w->most);
  if (pattern && !cJSON_IsString(pattern))
    td_schema_fail(s, TD_ERR_REQUEST, schema, "pattern", "must be a string");
  else if (pattern)
    add_pattern(w, schema, "pattern", pattern->valuestring, false);
  if (no)
    add_pattern(w, schema, "pattern", no->valuestring, true);
  if (none_of)
    add_unwanted_texts(w, schema, none_of);
  if (!cJSON_IsString(format))
    return;
  const char *as = td_format_pattern(format->valuestring);
  if (as)
    add_pattern(w, schema, "format", as, false);
}

const td_expr *td_schema_string(td_schema *s, const td_schema_conjunction *conj)
{
  td_builder *b = s->b;
  text_words w = {.s = s, .most = TD_REPEAT_MANY, .fits = {0, TD_REPEAT_MANY}};
  const td_expr *quote = td_expr_string(b, "\"");
  for (uint32_t i = 0; i < conj->n; i++)
    read_text_words(&w, conj->parts[i].schema);
  if (s->status != TD_OK || w.least > w.most)
    return &td_expr_none;
  bool bounded = w.least > 0 || w.most != TD_REPEAT_MANY, large = false;
  if (w.n_wanted == 0 && w.n_unwanted == 0 && !bounded)
    return td_expr_call(b, TD_RULE_STRING);
  if (w.fits.most <= w.most) /* patterns imply these bounds */
    w.most = TD_REPEAT_MANY;
  if (w.fits.least >= w.least)
    w.least = 0;
  if (w.least > 0 || w.most != TD_REPEAT_MANY)
    w.wanted[w.n_wanted++] = td_expr_repeat(b, td_expr_call(b, TD_RULE_CHAR), w.least, w.most);
  if (w.n_unwanted > 0)
    w.wanted[w.n_wanted++] = td_schema_plain_text(b);
  const td_expr *text = w.n_wanted == 1 && w.n_unwanted == 0
                            ? w.wanted[0]
                            : td_expr_intersect(b, w.wanted, w.n_wanted, w.unwanted, w.n_unwanted, &large);
  if (large)
    return td_schema_fail(s, TD_ERR_UNSUPPORTED, conj->parts[0].schema, "pattern",
                          "with others or with a length is too large together");
  return td_expr_cat3(b, quote, text, quote);
}

/* ---- numbers ---- */

/* Numbers of n digits from lo to hi. */
static const td_expr *digits_between(td_builder *b, const char *lo, const char *hi, size_t n)
{
  char least[32], most[32];
  td_expr_list alt = {0};
  if (n == 0)
    return &td_expr_empty;
  if (lo[0] == hi[0])
    return td_expr_cat2(b, td_expr_range(b, (unsigned char)lo[0], (unsigned char)lo[0]),
                        digits_between(b, lo + 1, hi + 1, n - 1));
  memset(least, '0', sizeof least);
  memset(most, '9', sizeof most);
  unsigned first = (unsigned char)lo[0], last = (unsigned char)hi[0];
  const td_expr *any = td_expr_repeat(b, td_expr_range(b, '0', '9'), (uint32_t)n - 1, (uint32_t)n - 1);
  if (memcmp(lo + 1, least, n - 1) != 0) {
    td_expr_add(b, &alt,
                td_expr_cat2(b, td_expr_range(b, first, first), digits_between(b, lo + 1, most, n - 1)));
    first++;
  }
  bool rest = memcmp(hi + 1, most, n - 1) != 0;
  if (first + rest <= last)
    td_expr_add(b, &alt, td_expr_cat2(b, td_expr_range(b, first, last - rest), any));
  if (rest)
    td_expr_add(b, &alt,
                td_expr_cat2(b, td_expr_range(b, last, last), digits_between(b, least, hi + 1, n - 1)));
  return td_expr_alt(b, &alt);
}

#define NO_BOUND 1e18

/* Whole numbers from lo to hi, where 0 <= lo. hi may be NO_BOUND. */
static const td_expr *naturals(td_builder *b, double lo, double hi)
{
  char l[32], h[32];
  td_expr_list alt = {0};
  if (lo > hi)
    return &td_expr_none;
  bool open = hi >= NO_BOUND;
  snprintf(l, sizeof l, "%.0f", lo);
  snprintf(h, sizeof h, "%.0f", hi);
  size_t to = open ? strlen(l) : strlen(h);
  for (size_t n = strlen(l); n <= to; n++) {
    char from[32], until[32];
    memset(from, '0', sizeof from);
    memset(until, '9', sizeof until);
    from[0] = '1';
    td_expr_add(b, &alt,
                digits_between(b, n == strlen(l) ? l : from, !open && n == strlen(h) ? h : until, n));
  }
  if (open)
    td_expr_add(b, &alt,
                td_expr_cat2(b, td_expr_range(b, '1', '9'),
                             td_expr_repeat(b, td_expr_range(b, '0', '9'), (uint32_t)to, TD_REPEAT_MANY)));
  return td_expr_alt(b, &alt);
}

/* Whole numbers from lo to hi, which are whole or NO_BOUND. */
static const td_expr *integers(td_builder *b, double lo, double hi)
{
  const td_expr *positive = hi >= 0 ? naturals(b, lo > 0 ? lo : 0, hi) : &td_expr_none;
  const td_expr *negative = lo < 0 ? naturals(b, hi < 0 ? -hi : 1, -lo) : &td_expr_none;
  return td_expr_alt2(b, positive, td_expr_cat2(b, td_expr_string(b, "-"), negative));
}

/* The fraction, including the point, of numbers whose integer part equals that of a bound; f has the bound's
 * decimals. Accepts greater fractions or, if not up, smaller ones, and the bound itself unless excluded.
 * Trailing digits may be missing. */
static const td_expr *fraction(td_builder *b, const char *f, bool up, bool excluded)
{
  const td_expr *digit = td_expr_range(b, '0', '9'),
                *zeros = td_expr_repeat(b, td_expr_string(b, "0"), 0, TD_REPEAT_MANY);
  const td_expr *any = td_expr_repeat(b, digit, 0, TD_REPEAT_MANY);
  const td_expr *above = td_expr_cat3(b, zeros, td_expr_range(b, '1', '9'), any);
  const td_expr *e = up ? (excluded ? above : any) : excluded ? &td_expr_none : zeros;
  bool none_left = true; /* only zeros follow, so the number may end here and still be the bound */
  for (size_t i = strlen(f); i-- > 0;) {
    unsigned c = (unsigned char)f[i];
    td_expr_list alt = {0};
    td_expr_add(b, &alt, td_expr_cat2(b, td_expr_range(b, c, c), e));
    if (up && c < '9')
      td_expr_add(b, &alt, td_expr_cat2(b, td_expr_range(b, c + 1, '9'), any));
    if (!up && c > '0')
      td_expr_add(b, &alt, td_expr_cat2(b, td_expr_range(b, '0', c - 1), any));
    none_left = none_left && c == '0';
    if (!up && !none_left) /* if it ends here, the missing digits count as 0, which is less */
      td_expr_add(b, &alt, &td_expr_empty);
    e = td_expr_alt(b, &alt);
  }
  /* a digit must follow the point; without a point all digits are 0 */
  const td_expr *some = td_expr_cat2(b, digit, any);
  bool large;
  const td_expr *both[] = {e, some};
  if (e == any || e == zeros) /* the bound is whole */
    some = e == any ? some : td_expr_cat2(b, td_expr_string(b, "0"), zeros);
  else
    some = e == above ? above : td_expr_intersect(b, both, 2, NULL, 0, &large);
  const td_expr *tail = td_expr_cat2(b, td_expr_string(b, "."), some);
  bool bare = up ? !excluded && none_left : !none_left || !excluded;
  return bare ? td_expr_alt2(b, &td_expr_empty, tail) : tail;
}

/* Numbers >= 0 on one side of a bound that is >= 0 and written in decimals. */
static const td_expr *beside(td_builder *b, const char *bound, bool up, bool excluded)
{
  char whole[64];
  size_t n = strcspn(bound, ".");
  snprintf(whole, sizeof whole, "%.*s", (int)n, bound);
  double v = strtod(whole, NULL);
  const td_expr *any =
      td_expr_repeat(b,
                     td_expr_cat2(b, td_expr_string(b, "."),
                                  td_expr_repeat(b, td_expr_range(b, '0', '9'), 1, TD_REPEAT_MANY)),
                     0, 1);
  const td_expr *far = up ? naturals(b, v + 1, NO_BOUND) : v > 0 ? naturals(b, 0, v - 1) : &td_expr_none;
  const td_expr *near =
      td_expr_cat2(b, td_expr_string(b, whole), fraction(b, bound[n] ? bound + n + 1 : "", up, excluded));
  return td_expr_alt2(b, td_expr_cat2(b, far, any), near);
}

static const td_expr *all_numbers(td_builder *b)
{
  return td_expr_cat2(
      b, naturals(b, 0, NO_BOUND),
      td_expr_repeat(b,
                     td_expr_cat2(b, td_expr_string(b, "."),
                                  td_expr_repeat(b, td_expr_range(b, '0', '9'), 1, TD_REPEAT_MANY)),
                     0, 1));
}

/* Writes the magnitude of a bound in decimals. Returns false if they would be another number. */
static bool write_bound(double bound, char *text, size_t size)
{
  snprintf(text, size, "%.15g", fabs(bound));
  if (strtod(text, NULL) != fabs(bound) || strchr(text, 'e'))
    snprintf(text, size, "%.20f", fabs(bound));
  return strtod(text, NULL) == fabs(bound);
}

/* Decimals on one side of a bound with either sign. */
static const td_expr *half_line(td_builder *b, double bound, bool up, bool excluded)
{
  char text[64];
  const td_expr *minus = td_expr_string(b, "-");
  (void)write_bound(bound, text, sizeof text);
  bool positive = bound > 0 || (bound == 0 && up);
  const td_expr *same = beside(b, text, positive ? up : !up, excluded);
  if (!positive)
    same = td_expr_cat2(b, minus, same);
  if (positive == up) /* zero has two signs */
    return bound == 0 && !excluded ? td_expr_alt2(b, same, td_expr_string(b, up ? "-0" : "0")) : same;
  return td_expr_alt2(b, same, up ? all_numbers(b) : td_expr_cat2(b, minus, all_numbers(b)));
}

typedef struct bounds {
  double lo, hi;                                                      /* -NO_BOUND and NO_BOUND: none */
  bool no_lo, no_hi;                                                  /* the bound itself is excluded */
  double multiple;                                                    /* 0: any number */
  uint32_t no_multiples[TD_SCHEMA_NOT_MULTIPLES_MAX], n_no_multiples; /* none of these may divide the value */
} bounds;

#define LARGEST 999999999999999.0 /* doubles represent all whole numbers up to it exactly */

static void narrow(bounds *k, bool low, double v, bool excluded)
{
  double *at = low ? &k->lo : &k->hi;
  bool *no = low ? &k->no_lo : &k->no_hi;
  if (low ? v > *at : v < *at)
    *no = excluded;
  else if (v == *at)
    *no |= excluded;
  else
    return;
  *at = v;
}

/* The least common multiple of two whole numbers up to 1e9. 0 if they are not whole, or too large. */
static double least_common(double x, double y)
{
  if (x != floor(x) || y != floor(y) || x > 1e9 || y > 1e9)
    return 0;
  uint64_t a = (uint64_t)x, b = (uint64_t)y;
  while (b) {
    uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return x / (double)a * y;
}

static void read_multiples(td_schema *s, const cJSON *schema, bounds *k)
{
  const cJSON *multiple = td_json_get(schema, "multipleOf"),
              *no = td_schema_get(s, schema, KEYWORD_NO_MULTIPLE);
  if (no && k->n_no_multiples == TD_SCHEMA_NOT_MULTIPLES_MAX)
    td_schema_fail(s, TD_ERR_UNSUPPORTED, schema, "multipleOf", "is denied too often");
  else if (no)
    k->no_multiples[k->n_no_multiples++] = (uint32_t)no->valuedouble;
  if (!multiple)
    return;
  if (!cJSON_IsNumber(multiple) || !(multiple->valuedouble > 0) || !isfinite(multiple->valuedouble)) {
    td_schema_fail(s, TD_ERR_REQUEST, schema, "multipleOf", "must be a number above 0 that a double holds");
    return;
  }
  double v = multiple->valuedouble;
  if (k->multiple != 0 && k->multiple != v)
    v = least_common(k->multiple, v);
  if (v == 0)
    td_schema_fail(s, TD_ERR_UNSUPPORTED, schema, "multipleOf", "twice is only served for whole numbers");
  k->multiple = v;
}

static void read_bounds(td_schema *s, const cJSON *schema, bounds *k)
{
  static const struct {
    const char *name, *old;
    bool low, excluded;
  } words[] = {{"minimum", "exclusiveMinimum", true, false},
               {"maximum", "exclusiveMaximum", false, false},
               {"exclusiveMinimum", NULL, true, true},
               {"exclusiveMaximum", NULL, false, true}};
  for (size_t i = 0; i < 4; i++) {
    const cJSON *m = td_json_get(schema, words[i].name);
    if (!m || (cJSON_IsBool(m) && !words[i].old))
      continue;
    char text[64];
    double v = cJSON_IsRaw(m) ? strtod(m->valuestring, NULL) : m->valuedouble;
    bool number = cJSON_IsNumber(m) || cJSON_IsRaw(m);
    if (number && isfinite(v) &&
        (words[i].low ? v <= -LARGEST : v >= LARGEST)) /* narrower than it could be */
      narrow(k, words[i].low, words[i].low ? -LARGEST : LARGEST, false);
    else if (!cJSON_IsNumber(m) || !(fabs(v) < 1e15))
      td_schema_fail(s, number ? TD_ERR_UNSUPPORTED : TD_ERR_REQUEST, schema, words[i].name,
                     "must be a number below 1e15");
    else if (!write_bound(m->valuedouble, text, sizeof text))
      td_schema_fail(s, TD_ERR_UNSUPPORTED, schema, words[i].name, "has more than 20 decimals");
    else /* adding 0.0 turns -0 into 0 */
      narrow(k, words[i].low, m->valuedouble + 0.0,
             words[i].excluded || cJSON_IsTrue(td_json_get(schema, words[i].old)));
  }
  read_multiples(s, schema, k);
}

/* An automaton of remainders, for multiples of part / 10^decimals. States: 0 start, 1 after the sign, 2 after
 * a leading zero, 3 + r after digits with remainder r. If a point is allowed, further states stand for the
 * remainder after the point and up to `decimals` digits. */
typedef struct multiples {
  td_builder *b;
  uint32_t part, decimals;
  bool point;
  td_graph_state *states;
} multiples;

static uint32_t whole_state(const multiples *m, uint32_t r) { return 3 + r % m->part; }
static uint32_t decimal_state(const multiples *m, uint32_t n, uint32_t r)
{
  return 3 + m->part * (n + 1) + r % m->part;
}

static void add_state(multiples *m, uint32_t i, const uint32_t *digits, uint32_t n_digits, uint32_t point,
                      uint32_t minus, bool whole)
{
  td_graph_edge *edges = td_arena_alloc_array(&m->b->arena, 12, sizeof *edges);
  uint32_t n = 0;
  if (!edges) {
    m->b->failed = true;
    return;
  }
  for (uint32_t d = 0; d < n_digits; d++) {
    edges[n].to = digits[d];
    td_byte_set_add(&edges[n++].set, '0' + d);
  }
  if (minus) {
    edges[n].to = minus;
    td_byte_set_add(&edges[n++].set, '-');
  }
  if (point && m->point) {
    edges[n].to = point;
    td_byte_set_add(&edges[n++].set, '.');
  }
  m->states[i] = (td_graph_state){edges, n, whole};
}

/* Whether a number that ends with n decimals and this remainder is a multiple. */
static bool divides(const multiples *m, uint32_t n, uint64_t r)
{
  for (; n < m->decimals; n++)
    r = r * 10 % m->part;
  return r % m->part == 0;
}

static void add_states(multiples *m)
{
  uint32_t to[10];
  for (uint32_t d = 0; d < 10; d++)
    to[d] = d ? whole_state(m, d) : 2;
  add_state(m, 0, to, 10, 0, 1, false);
  add_state(m, 1, to, 10, 0, 0, false);
  add_state(m, 2, NULL, 0, decimal_state(m, 0, 0), 0, true);
  for (uint32_t r = 0; r < m->part && !m->b->failed; r++) {
    for (uint32_t d = 0; d < 10; d++)
      to[d] = whole_state(m, r * 10 + d);
    add_state(m, whole_state(m, r), to, 10, decimal_state(m, 0, r), 0, divides(m, 0, r));
    for (uint32_t n = 0; n <= m->decimals && m->point; n++) {
      for (uint32_t d = 0; d < 10; d++)
        to[d] = n < m->decimals ? decimal_state(m, n + 1, r * 10 + d) : decimal_state(m, n, r);
      add_state(m, decimal_state(m, n, r), to, n < m->decimals ? 10 : 1, 0, 0, n > 0 && divides(m, n, r));
    }
  }
}

static const td_expr *multiples_of(td_schema *s, uint32_t part, uint32_t decimals, bool point)
{
  multiples m = {s->b, part, decimals, point && decimals > 0, NULL};
  uint32_t n = 3 + part * (m.point ? decimals + 2 : 1);
  td_expr *e = td_arena_alloc(&s->b->arena, sizeof *e);
  m.states = td_arena_alloc_array(&s->b->arena, n, sizeof *m.states);
  if (!e || !m.states) {
    s->b->failed = true;
    return &td_expr_none;
  }
  add_states(&m);
  *e = (td_expr){.kind = TD_EXPR_GRAPH, .n = n, .u.states = m.states};
  return s->b->failed ? &td_expr_none : e;
}

/* Writes v as part / 10^decimals. Returns false if that is impossible or part is too large. */
static bool split_multiple(double v, uint32_t *part, uint32_t *decimals)
{
  double unit = 1;
  for (*decimals = 0; *decimals <= td_limit_max(TD_LIMIT_SCHEMA_MULTIPLE_DECIMALS); ++*decimals, unit *= 10) {
    double n = nearbyint(v * unit);
    if (n >= 1 && n * (*decimals + 2) <= td_limit_max(TD_LIMIT_SCHEMA_MULTIPLE) && n / unit == v) {
      *part = (uint32_t)n;
      return true;
    }
  }
  return false;
}

static const td_expr *bounded_integers(td_schema *s, const bounds *k)
{
  double lo = k->lo, hi = k->hi;
  if (lo > -NO_BOUND)
    lo = k->no_lo ? floor(lo) + 1 : ceil(lo);
  if (hi < NO_BOUND)
    hi = k->no_hi ? ceil(hi) - 1 : floor(hi);
  return integers(s->b, lo, hi);
}

static const td_expr *bounded_decimals(td_schema *s, const bounds *k)
{
  const td_expr *both[2];
  uint32_t n = 0;
  bool large = false;
  if (k->lo > -NO_BOUND)
    both[n++] = half_line(s->b, k->lo, true, k->no_lo);
  if (k->hi < NO_BOUND)
    both[n++] = half_line(s->b, k->hi, false, k->no_hi);
  return n == 1 ? both[0] : td_expr_intersect(s->b, both, n, NULL, 0, &large);
}

/* Decimals that are not whole numbers, with so few digits that no double rounds them to one. */
static const td_expr *only_fractions(td_schema *s, const td_schema_conjunction *conj, const bounds *k,
                                     bool bounded)
{
  td_builder *b = s->b;
  const td_expr *digit = td_expr_range(b, '0', '9');
  const td_expr *whole = td_expr_alt2(
      b, td_expr_string(b, "0"), td_expr_cat2(b, td_expr_range(b, '1', '9'), td_expr_repeat(b, digit, 0, 8)));
  const td_expr *sign = td_expr_repeat(b, td_expr_string(b, "-"), 0, 1);
  const td_expr *tail = td_expr_cat2(b, td_expr_repeat(b, digit, 0, 5), td_expr_range(b, '1', '9'));
  const td_expr *e = td_expr_cat2(b, td_expr_cat3(b, sign, whole, td_expr_string(b, ".")), tail);
  bool large = false;
  if (k->multiple != 0 && k->multiple == floor(k->multiple))
    return &td_expr_none;
  if (k->multiple != 0)
    return td_schema_fail(s, TD_ERR_UNSUPPORTED, conj->parts[0].schema, "multipleOf",
                          "is not served for numbers that are no integers only");
  const td_expr *both[] = {e, bounded ? bounded_decimals(s, k) : e};
  return bounded ? td_expr_intersect(b, both, 2, NULL, 0, &large) : e;
}

/* Whole numbers that are not multiples of some numbers, with so few digits that doubles hold them exactly. */
static const td_expr *other_multiples(td_schema *s, const td_schema_conjunction *conj, bounds *k)
{
  const td_expr *wanted[2], *unwanted[TD_SCHEMA_NOT_MULTIPLES_MAX];
  uint32_t part, decimals, n = 0;
  bool large = false;
  narrow(k, true, -LARGEST, false);
  narrow(k, false, LARGEST, false);
  wanted[n++] = bounded_integers(s, k);
  if (k->multiple != 0 && split_multiple(k->multiple, &part, &decimals))
    wanted[n++] = multiples_of(s, part, decimals, false);
  else if (k->multiple != 0)
    large = true;
  for (uint32_t i = 0; i < k->n_no_multiples; i++)
    unwanted[i] = multiples_of(s, k->no_multiples[i], 0, false);
  const td_expr *e =
      large ? wanted[0] : td_expr_intersect(s->b, wanted, n, unwanted, k->n_no_multiples, &large);
  return large ? td_schema_fail(s, TD_ERR_UNSUPPORTED, conj->parts[0].schema, "multipleOf",
                                "with others that are denied is too large")
               : e;
}

const td_expr *td_schema_number(td_schema *s, const td_schema_conjunction *conj, unsigned types)
{
  bounds k = {.lo = -NO_BOUND, .hi = NO_BOUND};
  bool large = false;
  for (uint32_t i = 0; i < conj->n; i++)
    read_bounds(s, conj->parts[i].schema, &k);
  if (s->status != TD_OK || k.lo > k.hi)
    return &td_expr_none;
  bool bounded = k.lo > -NO_BOUND || k.hi < NO_BOUND, fractions = types & TYPE_FRACTION;
  if (k.n_no_multiples > 0) /* integers only */
    return other_multiples(s, conj, &k);
  if (!(types & TYPE_INTEGER))
    return only_fractions(s, conj, &k, bounded);
  if (k.multiple == 0 && !bounded)
    return td_expr_call(s->b, fractions ? TD_RULE_NUMBER : TD_RULE_INTEGER);
  if (k.multiple == 0)
    return fractions ? bounded_decimals(s, &k) : bounded_integers(s, &k);
  uint32_t part, decimals;
  if (!split_multiple(k.multiple, &part, &decimals))
    return td_schema_fail(s, TD_ERR_UNSUPPORTED, conj->parts[0].schema, "multipleOf",
                          "is served for numbers up to 2000 of few decimals only");
  const td_expr *both[] = {multiples_of(s, part, decimals, fractions), NULL};
  if (bounded)
    both[1] = fractions && decimals > 0 ? bounded_decimals(s, &k) : bounded_integers(s, &k);
  const td_expr *e = bounded ? td_expr_intersect(s->b, both, 2, NULL, 0, &large) : both[0];
  return large ? td_schema_fail(s, TD_ERR_UNSUPPORTED, conj->parts[0].schema, "multipleOf",
                                "with these bounds is too large")
               : e;
}
