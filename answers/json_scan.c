/* Scanning JSON: see json_scan.h. */
#include "answers/json_scan.h"

#include <string.h>

#include "common/status.h"
#include "config/limits.h"

/* What is expected next, or which part of a string or number is being read. */
enum {
  VALUE,
  FIRST, /* at the start of an array: a value or the array's end */
  KEY,
  FIRST_KEY,
  COLON,
  AFTER, /* after a value: a comma, or the end of the array or object */
  STRING,
  ESCAPE,
  HEX,
  LETTERS,
  MINUS,
  ZERO,
  DIGITS,
  POINT,
  FRACTION,
  EXPONENT,
  EXPONENT_SIGN,
  EXPONENT_DIGITS,
};

void td_json_scan_begin(td_json_scan *s) { memset(s, 0, sizeof *s); }

void td_json_scan_char(unsigned char c, td_buf *out)
{
  static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
  const char *p = c ? strchr(plain, c) : NULL;
  if (p) {
    const char escape[2] = {'\\', letters[p - plain]};
    td_buf_append(out, escape, 2);
  } else if (c < 0x20) {
    td_buf_printf(out, "\\u%04x", c);
  } else {
    td_buf_append_char(out, (char)c);
  }
}

static bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
static bool is_hex(unsigned char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }
static bool in_object(const td_json_scan *s) { return s->objects >> (s->depth - 1) & 1; }

static bool end_value(td_json_scan *s)
{
  s->state = AFTER;
  s->done = s->depth == 0;
  return true;
}

static bool open(td_json_scan *s, bool object)
{
  TD_BUG_ON(td_limit_max(TD_LIMIT_CALL_DEPTH) > 64); /* a bit for each level */
  if (s->depth == td_limit_max(TD_LIMIT_CALL_DEPTH))
    return false;
  s->objects = (s->objects & ~(1ull << s->depth)) | (uint64_t)object << s->depth;
  s->depth++;
  s->state = object ? FIRST_KEY : FIRST;
  return true;
}

static bool close_level(td_json_scan *s)
{
  s->depth--;
  return end_value(s);
}

static bool begin_value(td_json_scan *s, unsigned char c)
{
  static const char *const words[] = {"true", "false", "null"};
  if (c == '{' || c == '[')
    return open(s, c == '{');
  for (size_t i = 0; i < 3; i++)
    if (c == words[i][0]) {
      s->letters = words[i] + 1;
      s->state = LETTERS;
      return true;
    }
  s->in_key = false;
  s->state = c == '"' ? STRING : c == '-' ? MINUS : c == '0' ? ZERO : DIGITS;
  return c == '"' || c == '-' || is_digit(c);
}

static bool begin_key(td_json_scan *s, unsigned char c)
{
  s->in_key = true;
  s->state = STRING;
  return c == '"';
}

static bool after_value(td_json_scan *s, unsigned char c)
{
  if (c == ',') {
    s->state = in_object(s) ? KEY : VALUE;
    return true;
  }
  return c == (in_object(s) ? '}' : ']') && close_level(s);
}

static bool in_string(td_json_scan *s, unsigned char c)
{
  if (c == '"' && s->in_key)
    s->state = COLON;
  else if (c == '"')
    end_value(s);
  else if (c == '\\')
    s->state = ESCAPE;
  return c != 0xFF; /* begins the mark of a special token */
}

static bool in_escape(td_json_scan *s, unsigned char c)
{
  s->n_hex = 0;
  s->state = c == 'u' ? HEX : STRING;
  return c && strchr("\"\\/bfnrtu", c);
}

/* Whether a number may go on with c. If not, the number ends before c, or is invalid. */
static bool in_number(td_json_scan *s, unsigned char c)
{
  bool digit = is_digit(c);
  switch (s->state) {
  case MINUS: s->state = c == '0' ? ZERO : DIGITS; return digit;
  case ZERO:
  case DIGITS:
    if (digit)
      return s->state == DIGITS;
    s->state = c == '.' ? POINT : EXPONENT;
    return c == '.' || (c | 0x20) == 'e';
  case POINT: s->state = FRACTION; return digit;
  case FRACTION:
    if (digit)
      return true;
    s->state = EXPONENT;
    return (c | 0x20) == 'e';
  case EXPONENT: s->state = digit ? EXPONENT_DIGITS : EXPONENT_SIGN; return digit || c == '+' || c == '-';
  default: s->state = EXPONENT_DIGITS; return digit;
  }
}

static bool may_end(unsigned state)
{
  return state == ZERO || state == DIGITS || state == FRACTION || state == EXPONENT_DIGITS;
}

static bool is_blank(unsigned char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static bool take(td_json_scan *s, unsigned char c)
{
  switch (s->state) {
  case STRING: return in_string(s, c);
  case ESCAPE: return in_escape(s, c);
  case HEX: s->state = ++s->n_hex == 4 ? STRING : HEX; return is_hex(c);
  case LETTERS:
    if (c != *s->letters++)
      return false;
    return *s->letters || end_value(s);
  default: break;
  }
  if (is_blank(c))
    return true;
  switch (s->state) {
  case FIRST: return c == ']' ? close_level(s) : begin_value(s, c);
  case VALUE: return begin_value(s, c);
  case FIRST_KEY: return c == '}' ? close_level(s) : begin_key(s, c);
  case KEY: return begin_key(s, c);
  case COLON: s->state = VALUE; return c == ':';
  default: return after_value(s, c);
  }
}

size_t td_json_scan_push(td_json_scan *s, const char *in, size_t n, td_buf *out)
{
  size_t i = 0;
  for (; i < n && !s->done && !s->bad; i++) {
    unsigned char c = (unsigned char)in[i];
    if (s->state >= MINUS) {
      uint8_t before = s->state;
      if (!in_number(s, c)) {
        s->bad = !may_end(before);
        end_value(s);
        i--;
        continue;
      }
    } else {
      bool raw = s->state == STRING && c < 0x20;
      if (!take(s, c)) {
        s->bad = true;
        break;
      }
      if (raw && out) {
        td_json_scan_char(c, out);
        continue;
      }
    }
    if (out)
      td_buf_append_char(out, (char)c);
  }
  return i;
}
