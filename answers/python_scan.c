/* Python literals to JSON: see python_scan.h. */
#include "answers/python_scan.h"

#include <string.h>

#include "answers/json_scan.h"
#include "common/utf8.h"
#include "common/status.h"
#include "config/limits.h"

enum { VALUE, FIRST, FIRST_KEY, COLON, AFTER, STRING, ESCAPE, DIGITS, WORD };

void td_python_scan_begin(td_python_scan *s) { memset(s, 0, sizeof *s); }

static bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
static bool is_blank(unsigned char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
static bool is_word(unsigned char c)
{
  return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_' || c == '.' || c == '+' ||
         c == '-';
}

static void end_value(td_python_scan *s)
{
  s->state = AFTER;
  s->done = s->depth == 0;
}

/* ---- words: numbers and names ---- */

/* Writes [sign] digits [. digits] [e [sign] digits], with _ between digits, as JSON. */
static bool write_number(const char *w, td_buf *out)
{
  bool negative = *w == '-';
  w += *w == '-' || *w == '+';
  size_t n = strspn(w, "0123456789_"), digits = 0;
  bool zero = *w == '0';
  char text[TD_PYTHON_WORD + 8];
  size_t k = 0;
  for (size_t i = 0; i < n; i++) {
    if (w[i] == '_' && (i == 0 || i + 1 == n || w[i - 1] == '_'))
      return false;
    if (w[i] != '_')
      text[k++] = w[i], digits++;
  }
  if (zero && digits > 1)
    return false;
  const char *p = w + n;
  if (digits == 0)
    text[k++] = '0';
  if (*p == '.') {
    size_t m = strspn(++p, "0123456789");
    if (m + digits == 0)
      return false;
    text[k++] = '.';
    memcpy(text + k, p, m);
    k += m;
    if (m == 0)
      text[k++] = '0';
    p += m;
  } else if (digits == 0) {
    return false;
  }
  if (*p == 'e' || *p == 'E') {
    text[k++] = *p++;
    if (*p == '+' || *p == '-')
      text[k++] = *p++;
    size_t m = strspn(p, "0123456789");
    if (m == 0)
      return false;
    memcpy(text + k, p, m);
    k += m;
    p += m;
  }
  if (*p)
    return false;
  if (negative)
    td_buf_append_char(out, '-');
  td_buf_append(out, text, k);
  return true;
}

static bool end_word(td_python_scan *s, td_buf *out)
{
  static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                         {"true", "true"}, {"false", "false"}, {"null", "null"}};
  s->word[s->n_word] = '\0';
  end_value(s);
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strcmp(s->word, words[i][0]) == 0) {
      td_buf_append_str(out, words[i][1]);
      return true;
    }
  return write_number(s->word, out);
}

/* ---- strings ---- */

static void write_char(td_python_scan *s, uint32_t code, td_buf *out)
{
  unsigned char utf8[4];
  if (s->high) { /* is this the second half of the pair? */
    uint32_t high = s->high;
    s->high = 0;
    if (code >= 0xDC00 && code <= 0xDFFF) {
      write_char(s, 0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00), out);
      return;
    }
    td_buf_append_str(out, "\xEF\xBF\xBD");
  }
  if (code >= 0xD800 && code <= 0xDBFF) {
    s->high = code;
    return;
  }
  if ((code >= 0xDC00 && code <= 0xDFFF) || code > 0x10FFFF)
    code = 0xFFFD;
  if (code < 0x80)
    td_json_scan_char((unsigned char)code, out);
  else
    td_buf_append(out, utf8, td_utf8_encode(code, utf8));
}

static void flush_half(td_python_scan *s, td_buf *out)
{
  if (s->high)
    td_buf_append_str(out, "\xEF\xBF\xBD");
  s->high = 0;
}

static bool in_string(td_python_scan *s, unsigned char c, td_buf *out)
{
  if (c == '\\') {
    s->state = ESCAPE;
    return true;
  }
  flush_half(s, out);
  if (c == s->quote) {
    td_buf_append_char(out, '"');
    if (s->in_key)
      s->state = COLON;
    else
      end_value(s);
    return true;
  }
  if (c == 0xFF) /* begins the mark of a special token */
    return false;
  td_json_scan_char(c, out);
  return true;
}

static int digit_of(unsigned char c)
{
  return is_digit(c) ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

static bool in_escape(td_python_scan *s, unsigned char c, td_buf *out)
{
  static const char letters[] = "abfnrtv\\'\"", values[] = "\a\b\f\n\r\t\v\\'\"";
  const char *l = c ? strchr(letters, c) : NULL;
  s->state = STRING;
  if (c == 0xFF || (c >= '0' && c <= '7')) /* octal is not supported */
    return false;
  if (l) {
    write_char(s, (unsigned char)values[l - letters], out);
  } else if (c == 'x' || c == 'u' || c == 'U') {
    s->state = DIGITS;
    s->escape_digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    s->n_escape = 0;
    s->code = 0;
  } else if (c != '\n') { /* a newline is dropped; an unknown escape stays as it is */
    write_char(s, '\\', out);
    flush_half(s, out);
    td_json_scan_char(c, out);
  }
  return true;
}

static bool in_digits(td_python_scan *s, unsigned char c, td_buf *out)
{
  int d = digit_of(c);
  if (d < 0 || s->code > 0xFFFFFFF)
    return false;
  s->code = s->code * 16 + (uint32_t)d;
  if (++s->n_escape < s->escape_digits)
    return true;
  s->state = STRING;
  write_char(s, s->code, out);
  return true;
}

/* ---- values ---- */

static bool in_dict(const td_python_scan *s) { return s->dicts >> (s->depth - 1) & 1; }

static void write_comma(td_python_scan *s, td_buf *out)
{
  if (s->comma)
    td_buf_append_str(out, ", ");
  s->comma = false;
}

static bool open(td_python_scan *s, bool dict, td_buf *out)
{
  TD_BUG_ON(td_limit_max(TD_LIMIT_CALL_DEPTH) > 64); /* a bit for each level */
  if (s->depth == td_limit_max(TD_LIMIT_CALL_DEPTH))
    return false;
  s->dicts = (s->dicts & ~(1ull << s->depth)) | (uint64_t)dict << s->depth;
  s->depth++;
  s->state = dict ? FIRST_KEY : FIRST;
  td_buf_append_char(out, dict ? '{' : '[');
  return true;
}

static bool close_level(td_python_scan *s, td_buf *out)
{
  td_buf_append_char(out, in_dict(s) ? '}' : ']');
  s->comma = false;
  s->depth--;
  end_value(s);
  return true;
}

static bool begin_string(td_python_scan *s, unsigned char c, bool key, td_buf *out)
{
  if (c != '"' && c != '\'')
    return false;
  write_comma(s, out);
  s->quote = c;
  s->in_key = key;
  s->state = STRING;
  td_buf_append_char(out, '"');
  return true;
}

static bool begin_value(td_python_scan *s, unsigned char c, td_buf *out)
{
  if (c == '"' || c == '\'')
    return begin_string(s, c, false, out);
  if (c != '{' && c != '[' && !is_word(c))
    return false;
  write_comma(s, out);
  if (c == '{' || c == '[')
    return open(s, c == '{', out);
  s->word[0] = (char)c;
  s->n_word = 1;
  s->state = WORD;
  return true;
}

static bool after_value(td_python_scan *s, unsigned char c, td_buf *out)
{
  bool dict = in_dict(s);
  if (c != ',')
    return c == (dict ? '}' : ']') && close_level(s, out);
  s->comma = true;
  s->state = dict ? FIRST_KEY : FIRST; /* the end may follow a comma */
  return true;
}

static bool take(td_python_scan *s, unsigned char c, td_buf *out)
{
  switch (s->state) {
  case STRING: return in_string(s, c, out);
  case ESCAPE: return in_escape(s, c, out);
  case DIGITS: return in_digits(s, c, out);
  default: break;
  }
  if (is_blank(c))
    return true;
  switch (s->state) {
  case FIRST: return c == ']' ? close_level(s, out) : begin_value(s, c, out);
  case VALUE: return begin_value(s, c, out);
  case FIRST_KEY: return c == '}' ? close_level(s, out) : begin_string(s, c, true, out);
  case COLON:
    s->state = VALUE;
    td_buf_append_str(out, ": ");
    return c == ':';
  default: return after_value(s, c, out);
  }
}

size_t td_python_scan_push(td_python_scan *s, const char *in, size_t n, td_buf *out)
{
  size_t i = 0;
  while (i < n && !s->done && !s->bad) {
    unsigned char c = (unsigned char)in[i];
    if (s->state == WORD && is_word(c) && s->n_word < TD_PYTHON_WORD - 1) {
      s->word[s->n_word++] = (char)c;
      i++;
    } else if (s->state == WORD) {
      s->bad = is_word(c) || !end_word(s, out);
    } else if (take(s, c, out)) {
      i++;
    } else {
      s->bad = true;
    }
  }
  return i;
}
