/* JSON input: the guard and the parse. json.h says why cJSON alone is not enough. */
#include "common/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/json_tree.h"
#include "common/utf8.h"

/* ---- guard: one pass, no allocation, an explicit stack instead of recursion ---- */

typedef struct guard {
  const unsigned char *s;
  size_t n, i;
  const td_json_limits *limits;
  td_error *err;
  size_t nodes16;   /* values counted, in sixteenths */
  size_t numbers;   /* numbers inside arrays that counted as 1/16 */
  size_t n_inexact; /* numbers that restore_numbers may have to change */
  bool allows_nul;
  size_t n_nul; /* occurrences of \\u0000 in strings */
  size_t key;   /* where the last key begins */
  const char *ids_key;
  size_t ids_begin, ids_end, n_ids; /* the array that stays text; ids_end 0: none */
} guard;

static td_status bad(const guard *g, const char *what)
{
  return td_fail(g->err, g->limits->error, "invalid JSON at byte %zu: %s", g->i, what);
}

static void skip_space(guard *g)
{
  while (g->i < g->n && (g->s[g->i] == ' ' || g->s[g->i] == '\t' || g->s[g->i] == '\n' || g->s[g->i] == '\r'))
    g->i++;
}

static int hex4(const unsigned char *p)
{
  int v = 0;
  for (int k = 0; k < 4; k++) {
    int c = p[k], d = c >= '0' && c <= '9'                 ? c - '0'
                      : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                           : -1;
    if (d < 0)
      return -1;
    v = v * 16 + d;
  }
  return v;
}

/* Called at the '\\' of an escape; moves g->i behind the escape. */
static td_status guard_escape(guard *g)
{
  if (g->i + 1 >= g->n)
    return bad(g, "unterminated string");
  unsigned char c = g->s[g->i + 1];
  if (c != 'u') {
    if (!strchr("\"\\/bfnrt", c) || c == '\0')
      return bad(g, "unknown escape");
    g->i += 2;
    return TD_OK;
  }
  int u = g->n - g->i >= 6 ? hex4(g->s + g->i + 2) : -1;
  if (u < 0)
    return bad(g, "\\u needs four hex digits");
  if (u == 0 && !g->allows_nul)
    return bad(g, "\\u0000 is not accepted");
  g->n_nul += u == 0;
  if (u >= 0xDC00 && u <= 0xDFFF)
    return bad(g, "lone surrogate");
  if (u >= 0xD800 && u <= 0xDBFF) {
    int lo =
        g->n - g->i >= 12 && g->s[g->i + 6] == '\\' && g->s[g->i + 7] == 'u' ? hex4(g->s + g->i + 8) : -1;
    if (lo < 0xDC00 || lo > 0xDFFF)
      return bad(g, "lone surrogate");
    g->i += 6;
  }
  g->i += 6;
  return TD_OK;
}

static td_status guard_string(guard *g)
{
  g->i++; /* the quote */
  while (g->i < g->n) {
    unsigned char c = g->s[g->i];
    if (c == '"') {
      g->i++;
      return TD_OK;
    }
    if (c == '\\') {
      TD_TRY(guard_escape(g));
      continue;
    }
    if (c < 0x20)
      return bad(g, "control character in a string");
    size_t len = td_utf8_sequence_length(g->s + g->i, g->n - g->i);
    if (len == 0)
      return bad(g, "invalid UTF-8");
    g->i += len;
  }
  return bad(g, "unterminated string");
}

static size_t digits(guard *g)
{
  size_t start = g->i;
  while (g->i < g->n && g->s[g->i] >= '0' && g->s[g->i] <= '9')
    g->i++;
  return g->i - start;
}

static bool has_exponent(const unsigned char *p, size_t n) { return memchr(p, 'e', n) || memchr(p, 'E', n); }

static bool is_float_text(const unsigned char *p, size_t n)
{
  return memchr(p, '.', n) != NULL || has_exponent(p, n);
}

/* Whether the text is an integer that a double may not hold: more than 15 digits. */
static bool integer_is_big(const unsigned char *p, size_t n)
{
  size_t sign = p[0] == '-';
  return n - sign > 15 && !is_float_text(p, n);
}

/* Whether the text may be a float whose double is whole. A short fraction that ends in a digit other than 0
 * is not: with up to 16 digits, a double distinguishes it from its whole neighbours. */
static bool float_may_be_whole(const unsigned char *p, size_t n)
{
  return is_float_text(p, n) && (has_exponent(p, n) || p[n - 1] == '0' || n > 17);
}

/* cJSON 1.7.15 reads only 63 characters of a number of 64, and fails at the last one. */
enum { NUMBER_BYTES_MAX = 63 };

static td_status malformed_number(guard *g, size_t start)
{
  g->i = start;
  return bad(g, "malformed number");
}

static td_status guard_number(guard *g)
{
  size_t start = g->i;
  if (g->s[g->i] == '-')
    g->i++;
  bool zero = g->i < g->n && g->s[g->i] == '0';
  size_t n = digits(g);
  if (n == 0 || (zero && n > 1))
    return malformed_number(g, start);
  if (g->i < g->n && g->s[g->i] == '.') {
    g->i++;
    if (digits(g) == 0)
      return malformed_number(g, start);
  }
  if (g->i < g->n && (g->s[g->i] | 32) == 'e') {
    g->i++;
    if (g->i < g->n && (g->s[g->i] == '+' || g->s[g->i] == '-'))
      g->i++;
    if (digits(g) == 0)
      return malformed_number(g, start);
  }
  if (g->i - start > NUMBER_BYTES_MAX)
    return td_fail(g->err, g->limits->error, "invalid JSON at byte %zu: number longer than %d characters",
                   start, NUMBER_BYTES_MAX);
  g->n_inexact +=
      integer_is_big(g->s + start, g->i - start) || float_may_be_whole(g->s + start, g->i - start);
  return TD_OK;
}

static td_status guard_word(guard *g, const char *word)
{
  size_t n = strlen(word);
  if (g->n - g->i < n || memcmp(g->s + g->i, word, n) != 0)
    return bad(g, "unexpected character");
  g->i += n;
  return TD_OK;
}

/* Numbers inside arrays (token ids) count 1/16 up to a limit. The count bounds memory: a node takes 64 bytes
 * in cJSON and 16 in malloc, so two bytes of a body may become 80 of a tree. */
static td_status count_nodes(guard *g, size_t n, bool numbers_in_array)
{
  size_t left = (size_t)TD_JSON_CHEAP_NUMBERS - g->numbers;
  size_t n_cheap = !numbers_in_array ? 0 : n < left ? n : left;
  g->numbers += n_cheap;
  g->nodes16 += n_cheap + 16 * (n - n_cheap);
  if (g->nodes16 / 16 > g->limits->max_nodes)
    return td_fail(g->err, g->limits->error, "JSON has more than %zu values", g->limits->max_nodes);
  return TD_OK;
}

/* Reads a scalar, or only looks at the opening of a container (then *opened). */
static td_status guard_value(guard *g, bool in_array, bool *opened)
{
  *opened = false;
  if (g->i >= g->n)
    return bad(g, "unexpected end");
  unsigned char c = g->s[g->i];
  bool number = c == '-' || (c >= '0' && c <= '9');
  TD_TRY(count_nodes(g, 1, number && in_array));
  switch (c) {
  case '{':
  case '[': *opened = true; return TD_OK;
  case '"': return guard_string(g);
  case 't': return guard_word(g, "true");
  case 'f': return guard_word(g, "false");
  case 'n': return guard_word(g, "null");
  default: return number ? guard_number(g) : bad(g, "unexpected character");
  }
}

/* Reads "key" and ':'; leaves g->i at the value. */
static td_status guard_key(guard *g)
{
  if (g->i >= g->n || g->s[g->i] != '"')
    return bad(g, "expected a key");
  g->key = g->i;
  size_t n_nul = g->n_nul;
  TD_TRY(guard_string(g));
  if (g->n_nul > n_nul)
    return bad(g, "\\u0000 is not accepted in a key");
  skip_space(g);
  if (g->i >= g->n || g->s[g->i] != ':')
    return bad(g, "expected ':'");
  g->i++;
  skip_space(g);
  return TD_OK;
}

/* Compares the last key with name, byte by byte. A key written with escapes does not match, and its array
 * becomes a tree like any other. */
static bool key_is(const guard *g, const char *name)
{
  size_t n = strlen(name);
  return g->n - g->key > n + 1 && memcmp(g->s + g->key + 1, name, n) == 0 && g->s[g->key + 1 + n] == '"';
}

/* A number of this many digits always fits an int32_t. */
enum { ID_DIGITS_MAX = 9 };

static const unsigned char *behind_space(const unsigned char *p, const unsigned char *end)
{
  while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r'))
    p++;
  return p;
}

/* Whether the '[' at p opens an array of ids and nothing else. Returns the position after the array, and
 * their number in *n; otherwise NULL. */
static const unsigned char *scan_ids(const unsigned char *p, const unsigned char *end, size_t *n)
{
  for (*n = 1;; ++*n) {
    const unsigned char *first = behind_space(p + 1, end); /* after '[' or ',' */
    for (p = first; p < end && *p >= '0' && *p <= '9';)
      p++;
    if (p == first || p - first > ID_DIGITS_MAX || (p - first > 1 && *first == '0'))
      return NULL;
    p = behind_space(p, end);
    if (p == end || (*p != ',' && *p != ']'))
      return NULL;
    if (*p == ']')
      return p + 1;
  }
}

/* At the '[' of an array that may stay text. If it can, counts its values and skips it. */
static td_status guard_ids(guard *g, bool *passed)
{
  const unsigned char *behind = scan_ids(g->s + g->i, g->s + g->n, &g->n_ids);
  *passed = behind != NULL;
  if (!behind)
    return TD_OK;
  TD_TRY(count_nodes(g, g->n_ids, true));
  g->ids_begin = g->i;
  g->ids_end = g->i = (size_t)(behind - g->s);
  return TD_OK;
}

enum { GUARD_DEPTH_MAX = 256 };

static td_status guard_document(guard *g)
{
  bool is_object[GUARD_DEPTH_MAX];
  size_t depth = 0,
         max_depth = g->limits->max_depth < GUARD_DEPTH_MAX ? g->limits->max_depth : GUARD_DEPTH_MAX;
  bool opened;
  skip_space(g);
  TD_TRY(guard_value(g, false, &opened));
  for (;;) {
    if (opened) { /* at '{' or '[' */
      if (depth == max_depth)
        return td_fail(g->err, g->limits->error, "JSON is nested deeper than %zu levels", max_depth);
      bool object = g->s[g->i] == '{', passed = false;
      if (!object && depth == 1 && is_object[0] && g->ids_key && key_is(g, g->ids_key))
        TD_TRY(guard_ids(g, &passed));
      if (passed) {
        opened = false;
        continue;
      }
      is_object[depth++] = object;
      g->i++;
      skip_space(g);
      if (g->i < g->n && g->s[g->i] == (object ? '}' : ']')) {
        g->i++;
        depth--;
      } else {
        if (object)
          TD_TRY(guard_key(g));
        TD_TRY(guard_value(g, !object, &opened));
        continue;
      }
    }
    /* after a value */
    skip_space(g);
    if (depth == 0)
      break;
    bool object = is_object[depth - 1];
    if (g->i >= g->n)
      return bad(g, "unexpected end");
    unsigned char c = g->s[g->i];
    if (c == ',') {
      g->i++;
      skip_space(g);
      if (object)
        TD_TRY(guard_key(g));
      TD_TRY(guard_value(g, !object, &opened));
    } else if (c == (object ? '}' : ']')) {
      g->i++;
      depth--;
      opened = false;
    } else {
      return bad(g, object ? "expected ',' or '}'" : "expected ',' or ']'");
    }
  }
  if (g->i != g->n)
    return bad(g, "something follows the document");
  return TD_OK;
}

td_status td_json_check(const char *text, size_t n, const td_json_limits *limits, td_error *err)
{
  guard g = {.s = (const unsigned char *)text, .n = n, .limits = limits, .err = err};
  return guard_document(&g);
}

/* ---- after the parse ---- */

/* Finds the next number token of the text. cJSON's tree has numbers in the same order. */
static bool next_number(const unsigned char **p, const unsigned char *end, const unsigned char **start)
{
  const unsigned char *s = *p;
  while (s < end && *s != '-' && (*s < '0' || *s > '9')) {
    if (*s == '"')
      for (s++; *s != '"'; s++)
        s += *s == '\\';
    s++;
  }
  if (s >= end)
    return false;
  *start = s;
  while (s < end && strchr("+-.eE0123456789", *s) && *s)
    s++;
  *p = s;
  return true;
}

typedef struct walk_state {
  const unsigned char *at, *end;
  const td_json_limits *limits;
  td_error *err;
} walk_state;

/* Turns integers that a double cannot hold into cJSON_Raw, and marks numbers written as floats. The guard has
 * bounded the recursion depth. */
static td_status restore_numbers(cJSON *item, walk_state *w)
{
  for (; item; item = item->next) {
    if (cJSON_IsNumber(item)) {
      const unsigned char *start;
      TD_BUG_ON(!next_number(&w->at, w->end, &start));
      size_t n = (size_t)(w->at - start);
      if (integer_is_big(start, n) && !(fabs(item->valuedouble) <= TD_JSON_EXACT_MAX)) {
        char *text = cJSON_malloc(n + 1);
        if (!text)
          return td_fail(w->err, TD_ERR_NOMEM, "no memory for JSON");
        memcpy(text, start, n);
        text[n] = '\0';
        item->type = (item->type & ~0xFF) | cJSON_Raw;
        item->valuestring = text;
      } else if (is_float_text(start, n)) {
        item->type |= TD_JSON_WRITTEN_AS_FLOAT;
      }
    } else if (item->child) {
      TD_TRY(restore_numbers(item->child, w));
    }
  }
  return TD_OK;
}

static int compare_keys(const void *a, const void *b)
{
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts the keys first, so the time is never quadratic in the input. Compares decoded keys, so "a" and
 * "\u0061" are the same. */
static td_status refuse_duplicate_keys(const cJSON *item, const td_json_limits *limits, td_error *err)
{
  for (; item; item = item->next) {
    if (!item->child)
      continue;
    TD_TRY(refuse_duplicate_keys(item->child, limits, err));
    if (!cJSON_IsObject(item))
      continue;
    size_t n = 0;
    for (const cJSON *c = item->child; c; c = c->next)
      n++;
    if (n < 2)
      continue;
    const char **keys = malloc(n * sizeof *keys);
    if (!keys)
      return td_fail(err, TD_ERR_NOMEM, "no memory for JSON");
    size_t k = 0;
    for (const cJSON *c = item->child; c; c = c->next)
      keys[k++] = c->string;
    qsort(keys, n, sizeof *keys, compare_keys);
    td_status st = TD_OK;
    for (k = 1; k < n && st == TD_OK; k++)
      if (strcmp(keys[k - 1], keys[k]) == 0)
        st =
            td_fail_param(err, limits->error, keys[k], "key '%.100s' stands twice in a JSON object", keys[k]);
    free(keys);
    TD_TRY(st);
  }
  return TD_OK;
}

/* ---- U+0000: the tree's strings hold it as two bytes that valid text cannot contain ---- */

static const char nul_form[] = "\xC0\x80";

bool td_json_has_nul(const char *string) { return strstr(string, nul_form) != NULL; }

size_t td_json_text(const char *string, char *out)
{
  size_t n = 0;
  for (const char *hit; (hit = strstr(string, nul_form)) != NULL; string = hit + 2) {
    memmove(out + n, string, (size_t)(hit - string));
    n += (size_t)(hit - string);
    out[n++] = '\0';
  }
  size_t rest = strlen(string);
  memmove(out + n, string, rest + 1);
  return n + rest;
}

void td_json_print(const cJSON *item, td_buf *out)
{
  char *text = cJSON_PrintUnformatted(item);
  const char *from = text ? text : "";
  out->failed |= !text;
  for (const char *hit; (hit = strstr(from, nul_form)) != NULL; from = hit + 2) {
    td_buf_append(out, from, (size_t)(hit - from));
    td_buf_append_str(out, "\\u0000");
  }
  td_buf_append_str(out, from);
  cJSON_free(text);
}

/* Appends the document with that form in place of each \u0000. Backslashes occur only in strings, and each
 * begins an escape. */
static void replace_nuls(const char *text, size_t n, td_buf *out)
{
  const char *end = text + n, *from = text, *at = text;
  while ((at = memchr(at, '\\', (size_t)(end - at))) != NULL) {
    if (at[1] != 'u' || memcmp(at + 2, "0000", 4) != 0) {
      at += 2;
      continue;
    }
    td_buf_append(out, from, (size_t)(at - from));
    td_buf_append(out, nul_form, 2);
    from = at += 6;
  }
  td_buf_append(out, from, (size_t)(end - from));
}

static td_status build(const guard *g, const char *text, size_t n, cJSON **out);

static td_status build_with_nuls(const guard *g, const char *text, size_t n, cJSON **out)
{
  guard rest = *g;
  td_buf rewritten;
  td_buf_init(&rewritten, 0);
  replace_nuls(text, n, &rewritten);
  rest.n_nul = 0;
  td_status st = rewritten.failed ? td_fail(g->err, TD_ERR_NOMEM, "no memory for JSON")
                                  : build(&rest, rewritten.data, rewritten.len_bytes, out);
  td_buf_deinit(&rewritten);
  return st;
}

/* Builds the tree of a text that the guard accepted. */
static td_status build(const guard *g, const char *text, size_t n, cJSON **out)
{
  if (g->n_nul > 0)
    return build_with_nuls(g, text, n, out);
  cJSON *root = cJSON_ParseWithLength(text, n);
  if (!root)
    return td_fail(g->err, TD_ERR_NOMEM, "no memory for JSON");
  td_status st = refuse_duplicate_keys(root, g->limits, g->err);
  if (st == TD_OK && g->n_inexact > 0) {
    walk_state w = {(const unsigned char *)text, (const unsigned char *)text + n, g->limits, g->err};
    st = restore_numbers(root, &w);
  }
  if (st != TD_OK) {
    cJSON_Delete(root);
    return st;
  }
  *out = root;
  return TD_OK;
}

/* Gives cJSON the document with a number in place of the ids, and then replaces that number by their text. */
static td_status build_around_ids(const guard *g, const char *text, cJSON **out)
{
  size_t n_ids = g->ids_end - g->ids_begin;
  char *ids = cJSON_malloc(n_ids + 1);
  td_buf rest;
  td_buf_init(&rest, 0);
  td_buf_append(&rest, text, g->ids_begin);
  td_buf_append_char(&rest, '0');
  td_buf_append(&rest, text + g->ids_end, g->n - g->ids_end);
  td_status st = ids && !rest.failed ? build(g, rest.data, rest.len_bytes, out)
                                     : td_fail(g->err, TD_ERR_NOMEM, "no memory for JSON");
  td_buf_deinit(&rest);
  if (st != TD_OK) {
    cJSON_free(ids);
    return st;
  }
  cJSON *item = cJSON_GetObjectItemCaseSensitive(*out, g->ids_key);
  memcpy(ids, text + g->ids_begin, n_ids);
  ids[n_ids] = '\0';
  item->type = (item->type & ~0xFF) | cJSON_Raw;
  item->valuestring = ids;
  item->valueint = (int)g->n_ids;
  return TD_OK;
}

td_status td_json_parse_ids(const char *text, size_t n, const td_json_limits *limits, const char *ids_key,
                            cJSON **out, td_error *err)
{
  guard g = {.s = (const unsigned char *)text,
             .n = n,
             .limits = limits,
             .err = err,
             .allows_nul = true,
             .ids_key = ids_key};
  *out = NULL;
  TD_TRY(guard_document(&g));
  return g.ids_end > 0 ? build_around_ids(&g, text, out) : build(&g, text, n, out);
}

td_status td_json_parse(const char *text, size_t n, const td_json_limits *limits, cJSON **out, td_error *err)
{
  guard g = {.s = (const unsigned char *)text, .n = n, .limits = limits, .err = err};
  *out = NULL;
  TD_TRY(guard_document(&g));
  return build(&g, text, n, out);
}
