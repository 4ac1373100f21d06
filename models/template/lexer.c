/* Splits template text into tokens, as jinja2's lexer does with trim_blocks and lstrip_blocks. Whitespace
 * control is decided here, where the text between tags is cut. One pass, one token at a time. */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "models/template/ast.h"
#include "models/template/unicode.h"

enum { STATE_ROOT, STATE_TAG_BLOCK, STATE_TAG_VAR, STATE_OPEN_BLOCK, STATE_OPEN_VAR };

void td_lexer_start(compiler *c, const char *source, size_t n)
{
  char *copy = td_template_alloc(c, n + 1, 1);
  size_t k = 0;
  for (size_t i = 0; i < n;) {
    size_t len = td_utf8_sequence_length((const unsigned char *)source + i, n - i);
    if (len == 0)
      td_template_fail(c, 1, "byte %zu is not UTF-8", i);
    if (source[i] == '\r') { /* \r\n and \r count as \n */
      copy[k++] = '\n';
      i += i + 1 < n && source[i + 1] == '\n' ? 2 : 1;
      continue;
    }
    memcpy(copy + k, source + i, len);
    k += len;
    i += len;
  }
  if (k > 0 && copy[k - 1] == '\n')
    k--;
  c->src = copy;
  c->n = k;
  c->at = 0;
  c->line = 1;
  c->state = STATE_ROOT;
  c->line_starting = true;
  c->balance = td_template_alloc(c, k + 1, 1);
  c->n_balance = 0;
  c->current = td_lexer_next(c);
}

static bool looking_at(const compiler *c, size_t at, const char *s)
{
  size_t n = strlen(s);
  return c->n - at >= n && memcmp(c->src + at, s, n) == 0;
}

static void count_lines(compiler *c, size_t from, size_t to)
{
  for (size_t i = from; i < to; i++)
    c->line += c->src[i] == '\n';
}

static void move_to(compiler *c, size_t to)
{
  count_lines(c, c->at, to);
  c->at = to;
}

static size_t skip_spaces(const compiler *c, size_t at)
{
  while (at < c->n) {
    size_t len = td_unicode_space_at(c->src + at, c->n - at);
    if (len == 0)
      break;
    at += len;
  }
  return at;
}

/* The end of text[from, to) without trailing white space. */
static size_t strip_end(const compiler *c, size_t from, size_t to)
{
  while (to > from) {
    size_t len = td_unicode_space_before(c->src + from, to - from);
    if (len == 0)
      break;
    to -= len;
  }
  return to;
}

/* End of the text before a tag that opens at `tag` with this sign. */
static size_t cut_text(const compiler *c, size_t from, size_t tag, char sign, bool variable)
{
  if (sign == '-')
    return strip_end(c, from, tag);
  if (sign == '+' || variable)
    return tag;
  size_t line = tag;
  while (line > from && c->src[line - 1] != '\n')
    line--;
  bool at_line_start = line > from || c->line_starting;
  if (at_line_start && line < tag && skip_spaces(c, line) >= tag)
    return line;
  return tag;
}

/* If a closing tag (`%}`, `}}` or `#}`, two bytes in `close`) is at `at`: the position after it; otherwise
 * 0. */
static size_t match_close(const compiler *c, size_t at, const char *close, bool is_variable)
{
  if (at < c->n && c->src[at] == '-' && looking_at(c, at + 1, close))
    return skip_spaces(c, at + 3);
  if (at < c->n && c->src[at] == '+' && !is_variable && looking_at(c, at + 1, close))
    return at + 3;
  if (!looking_at(c, at, close))
    return 0;
  at += 2;
  if (!is_variable && at < c->n && c->src[at] == '\n')
    at++;
  return at;
}

static char sign_at(const compiler *c, size_t at)
{
  return at < c->n && (c->src[at] == '-' || c->src[at] == '+') ? c->src[at] : 0;
}

/* `at` is at "{%". If the tag has this name: the position after sign, name and white space; otherwise 0. */
static size_t match_name(const compiler *c, size_t at, const char *name)
{
  at = skip_spaces(c, at + 2 + (sign_at(c, at + 2) != 0));
  return looking_at(c, at, name) ? skip_spaces(c, at + strlen(name)) : 0;
}

/* `at` is at "{%". The position after a complete `raw` tag, or 0 if it is another tag. */
static size_t match_raw_begin(const compiler *c, size_t at)
{
  at = match_name(c, at, "raw");
  if (at && looking_at(c, at, "-%}"))
    return skip_spaces(c, at + 3);
  return at && looking_at(c, at, "%}") ? at + 2 : 0;
}

/* `at` is at "{%". The position after an `endraw` tag, or 0. */
static size_t match_raw_end(const compiler *c, size_t at)
{
  at = match_name(c, at, "endraw");
  return at ? match_close(c, at, "%}", false) : 0;
}

static token make(token_type type, unsigned line) { return (token){.type = type, .line = line}; }

static void after_match(compiler *c, size_t end)
{
  move_to(c, end);
  c->line_starting = end > 0 && c->src[end - 1] == '\n';
}

/* Reads the body of a raw block as data; c->at is after the opening tag. */
static token read_raw(compiler *c)
{
  size_t from = c->at;
  for (size_t i = from; i + 1 < c->n; i++) {
    if (!looking_at(c, i, "{%"))
      continue;
    size_t end = match_raw_end(c, i);
    if (end == 0)
      continue;
    token t = make(T_DATA, c->line);
    t.s = (text){c->src + from, cut_text(c, from, i, sign_at(c, i + 2), false) - from};
    after_match(c, end);
    return t;
  }
  td_template_fail(c, c->line, "Missing end of raw directive");
}

static void skip_comment(compiler *c)
{
  size_t i = c->at + 2;
  if (sign_at(c, i))
    i++;
  for (; i < c->n; i++) {
    size_t end = match_close(c, i, "#}", false);
    if (end) {
      after_match(c, end);
      return;
    }
  }
  td_template_fail(c, c->line, "Missing end of comment tag");
}

/* Returns the text before the next tag. The next call returns the tag's opening. */
static token next_root(compiler *c)
{
  for (;;) {
    size_t from = c->at, i = from;
    while (i < c->n && !(c->src[i] == '{' && i + 1 < c->n && strchr("%{#", c->src[i + 1]) && c->src[i + 1]))
      i++;
    token t = make(T_DATA, c->line);
    if (i >= c->n) {
      if (from == c->n)
        return make(T_EOF, c->line);
      t.s = (text){c->src + from, c->n - from};
      after_match(c, c->n);
      return t;
    }
    char kind = c->src[i + 1], sign = sign_at(c, i + 2);
    size_t cut = cut_text(c, from, i, sign, kind == '{');
    size_t raw = kind == '%' ? match_raw_begin(c, i) : 0;
    t.s = (text){c->src + from, cut - from};
    move_to(c, i);
    if (kind == '#') {
      skip_comment(c);
    } else if (raw) {
      after_match(c, raw);
      if (t.s.n > 0) { /* there are two data tokens: return one now, the other in the next call */
        c->ahead = read_raw(c);
        c->has_ahead = true;
        return t;
      }
      return read_raw(c);
    } else {
      c->state = kind == '%' ? STATE_OPEN_BLOCK : STATE_OPEN_VAR;
    }
    if (t.s.n > 0)
      return t;
    if (c->state != STATE_ROOT)
      return td_lexer_next(c);
  }
}

static token open_tag(compiler *c)
{
  bool block = c->state == STATE_OPEN_BLOCK;
  token t = make(block ? T_BLOCK_BEGIN : T_VAR_BEGIN, c->line);
  after_match(c, c->at + 2 + (sign_at(c, c->at + 2) != 0));
  c->state = block ? STATE_TAG_BLOCK : STATE_TAG_VAR;
  c->n_balance = 0;
  return t;
}

/* Digits, possibly separated by single underscores. Returns the end of the run, or `at` if there is none. */
static size_t digit_run(const compiler *c, size_t at)
{
  if (at >= c->n || c->src[at] < '0' || c->src[at] > '9')
    return at;
  for (;;) {
    while (at < c->n && c->src[at] >= '0' && c->src[at] <= '9')
      at++;
    if (at + 1 < c->n && c->src[at] == '_' && c->src[at + 1] >= '0' && c->src[at + 1] <= '9')
      at++;
    else
      return at;
  }
}

/* The end of a float that starts at `at`, or 0. */
static size_t match_float(const compiler *c, size_t at)
{
  if (at > 0 && c->src[at - 1] == '.')
    return 0;
  size_t i = digit_run(c, at), fraction = i;
  if (i == at)
    return 0;
  if (i < c->n && c->src[i] == '.' && digit_run(c, i + 1) > i + 1)
    fraction = digit_run(c, i + 1);
  size_t e = fraction;
  if (e < c->n && (c->src[e] | 32) == 'e') {
    e++;
    if (e < c->n && (c->src[e] == '+' || c->src[e] == '-'))
      e++;
    if (digit_run(c, e) > e)
      return digit_run(c, e);
  }
  return fraction > i ? fraction : 0;
}

/* 16: not a digit */
static int digit_value(char ch)
{
  if (ch >= '0' && ch <= '9')
    return ch - '0';
  return (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10 : 16;
}

static size_t match_integer(const compiler *c, size_t at, int *base)
{
  *base = 10;
  if (c->src[at] == '0' && at + 1 < c->n) {
    char x = (char)(c->src[at + 1] | 32);
    int b = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 0;
    size_t i = at + 2, start = i;
    while (b && i < c->n) {
      size_t d = c->src[i] == '_' ? i + 1 : i;
      if (d >= c->n || digit_value(c->src[d]) >= b)
        break;
      i = d + 1;
    }
    if (b && i > start) {
      *base = b;
      return i;
    }
  }
  if (c->src[at] != '0')
    return digit_run(c, at);
  size_t i = at + 1; /* only zeros: 007 is two tokens */
  while (i < c->n && (c->src[i] == '0' || (c->src[i] == '_' && i + 1 < c->n && c->src[i + 1] == '0')))
    i++;
  return i;
}

static token number(compiler *c)
{
  token t = make(T_INT, c->line);
  char digits[512];
  int base = 10;
  size_t end = match_float(c, c->at), k = 0;
  if (end)
    t.type = T_FLOAT;
  else
    end = match_integer(c, c->at, &base);
  for (size_t i = c->at + (base == 10 ? 0 : 2); i < end; i++) {
    if (c->src[i] == '_')
      continue;
    if (k + 1 == sizeof digits)
      td_template_fail(c, c->line, "number is too long");
    digits[k++] = c->src[i];
  }
  digits[k] = '\0';
  if (t.type == T_FLOAT) {
    t.f = strtod(digits, NULL);
  } else {
    for (size_t i = 0; i < k; i++)
      if (__builtin_mul_overflow(t.i, base, &t.i) ||
          __builtin_add_overflow(t.i, digit_value(digits[i]), &t.i))
        td_template_fail(c, c->line, "integer does not fit in 64 bits");
  }
  after_match(c, end);
  return t;
}

static unsigned hex_value(compiler *c, const char *p, const char *end, int digits)
{
  unsigned v = 0;
  for (int i = 0; i < digits; i++) {
    if (p + i >= end || digit_value(p[i]) > 15)
      td_template_fail(c, c->line, "truncated escape in a string");
    v = v * 16 + (unsigned)digit_value(p[i]);
  }
  return v;
}

static size_t put_code_point(compiler *c, unsigned cp, char *out)
{
  if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
    td_template_fail(c, c->line, "escape in a string is no character");
  return td_utf8_encode(cp, (unsigned char *)out);
}

/* Reads one escape at p (after the backslash) and writes its character. Returns the number of bytes read. */
static size_t unescape(compiler *c, const char *p, const char *end, char *out, size_t *k)
{
  static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
  const char *hit = *p ? strchr(from, *p) : NULL;
  if (hit) {
    out[(*k)++] = to[hit - from];
    return 1;
  }
  if (*p == '\n')
    return 1;
  if (*p == 'x' || *p == 'u' || *p == 'U') {
    int digits = *p == 'x' ? 2 : *p == 'u' ? 4 : 8;
    *k += put_code_point(c, hex_value(c, p + 1, end, digits), out + *k);
    return (size_t)digits + 1;
  }
  if (*p == 'N')
    td_template_fail(c, c->line, "named characters in strings are not served");
  if (*p >= '0' && *p <= '7') {
    unsigned v = 0;
    size_t i = 0;
    for (; i < 3 && p + i < end && p[i] >= '0' && p[i] <= '7'; i++)
      v = v * 8 + (unsigned)(p[i] - '0');
    *k += put_code_point(c, v, out + *k);
    return i;
  }
  out[(*k)++] = '\\';
  if ((unsigned char)*p < 0x80)
    return 0;
  /* The reference first turns non-ASCII into escapes, so here the backslash escapes the escape's
   * backslash. */
  size_t len = td_utf8_sequence_length((const unsigned char *)p, (size_t)(end - p));
  unsigned cp = td_utf8_decode((const unsigned char *)p, len);
  static const char hex[] = "0123456789abcdef";
  int digits = cp < 0x100 ? 2 : cp < 0x10000 ? 4 : 8;
  out[(*k)++] = digits == 2 ? 'x' : digits == 4 ? 'u' : 'U';
  for (int i = digits - 1; i >= 0; i--)
    out[(*k)++] = hex[cp >> (4 * i) & 15];
  return len;
}

static token string_literal(compiler *c)
{
  char quote = c->src[c->at];
  size_t end = c->at + 1;
  while (end < c->n && c->src[end] != quote)
    end += c->src[end] == '\\' ? 2 : 1;
  if (end >= c->n)
    td_template_fail(c, c->line, "unexpected char '%c' at %zu", quote, c->at);
  token t = make(T_STRING, c->line);
  const char *p = c->src + c->at + 1, *stop = c->src + end;
  /* the largest growth of an escape is from 3 bytes (backslash and a 2-byte character) to 4, and from 5 to
   * 10 */
  char *out = td_template_alloc(c, 2 * (size_t)(stop - p) + 16, 1);
  size_t k = 0;
  while (p < stop) {
    if (*p != '\\') {
      out[k++] = *p++;
      continue;
    }
    p++;
    p += unescape(c, p, stop, out, &k);
  }
  t.s = (text){out, k};
  after_match(c, end + 1);
  return t;
}

static token name(compiler *c)
{
  size_t end = c->at;
  while (end < c->n) {
    size_t len = td_unicode_word_at(c->src + end, c->n - end);
    if (len == 0)
      break;
    end += len;
  }
  token t = make(T_NAME, c->line);
  t.s = (text){c->src + c->at, end - c->at};
  after_match(c, end);
  return t;
}

/* In the order of token_type, starting with T_ADD. */
static const char *const operators[] = {"+", "-",  "/",  "//", "*",  "%", "**", "~", "[", "]", "(", ")", "{",
                                        "}", "==", "!=", ">",  ">=", "<", "<=", "=", ".", ":", "|", ",", ";"};
_Static_assert(sizeof operators / sizeof *operators == T_SEMICOLON - T_ADD + 1, "one for each type");

const char *td_lexer_type_name(token_type t)
{
  static const char *const others[] = {"end of template",
                                       "template data / text",
                                       "begin of print statement",
                                       "end of print statement",
                                       "begin of statement block",
                                       "end of statement block",
                                       "name",
                                       "string",
                                       "integer",
                                       "float"};
  return t < T_ADD ? others[t] : operators[t - T_ADD];
}

static void balance(compiler *c, char op)
{
  if (op == '{' || op == '(' || op == '[') {
    c->balance[c->n_balance++] = op == '{' ? '}' : op == '(' ? ')' : ']';
  } else if (op == '}' || op == ')' || op == ']') {
    if (c->n_balance == 0)
      td_template_fail(c, c->line, "unexpected '%c'", op);
    char expected = c->balance[--c->n_balance];
    if (expected != op)
      td_template_fail(c, c->line, "unexpected '%c', expected '%c'", op, expected);
  }
}

/* Reads the longest operator at this position. */
static token operator_token(compiler *c)
{
  token t = make(T_EOF, c->line);
  size_t best = 0;
  for (token_type type = T_ADD; type <= T_SEMICOLON; type++) {
    size_t n = strlen(operators[type - T_ADD]);
    if (n > best && looking_at(c, c->at, operators[type - T_ADD])) {
      t.type = type;
      best = n;
    }
  }
  if (best == 0)
    td_template_fail(c, c->line, "unexpected char at byte %zu", c->at);
  if (best == 1)
    balance(c, c->src[c->at]);
  after_match(c, c->at + best);
  return t;
}

static token next_in_tag(compiler *c)
{
  bool variable = c->state == STATE_TAG_VAR;
  for (;;) {
    if (c->at >= c->n)
      return make(T_EOF, c->line);
    size_t end = c->n_balance == 0 ? match_close(c, c->at, variable ? "}}" : "%}", variable) : 0;
    if (end) {
      token t = make(variable ? T_VAR_END : T_BLOCK_END, c->line);
      after_match(c, end);
      c->state = STATE_ROOT;
      return t;
    }
    size_t after = skip_spaces(c, c->at);
    if (after == c->at)
      break;
    after_match(c, after);
  }
  char ch = c->src[c->at];
  if (ch >= '0' && ch <= '9')
    return number(c);
  if (ch == '\'' || ch == '"')
    return string_literal(c);
  if (td_unicode_word_at(c->src + c->at, c->n - c->at))
    return name(c);
  return operator_token(c);
}

token td_lexer_next(compiler *c)
{
  if (c->has_ahead) {
    c->has_ahead = false;
    return c->ahead;
  }
  switch (c->state) {
  case STATE_ROOT: return next_root(c);
  case STATE_OPEN_BLOCK:
  case STATE_OPEN_VAR: return open_tag(c);
  default: return next_in_tag(c);
  }
}
