/* Growable byte string: see buf.h. */
#include "common/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

void td_buf_init(td_buf *b, size_t max_bytes)
{
  memset(b, 0, sizeof *b);
  b->max_bytes = max_bytes;
}

void td_buf_deinit(td_buf *b)
{
  free(b->data);
  memset(b, 0, sizeof *b);
}

void td_buf_clear(td_buf *b)
{
  b->len_bytes = 0;
  b->failed = b->is_full = false;
  if (b->data)
    b->data[0] = '\0';
}

/* Makes room for n more bytes and the terminator. */
static bool buf_reserve(td_buf *b, size_t n)
{
  size_t limit = b->max_bytes && b->max_bytes < SIZE_MAX / 4 ? b->max_bytes : SIZE_MAX / 4;
  if (b->failed || n > limit - b->len_bytes) {
    b->is_full |= !b->failed;
    b->failed = true;
    return false;
  }
  size_t need = b->len_bytes + n + 1;
  if (need <= b->cap_bytes)
    return true;
  size_t cap = b->cap_bytes ? b->cap_bytes : 64;
  while (cap < need)
    cap *= 2;
  if (cap > limit + 1)
    cap = limit + 1;
  char *data = realloc(b->data, cap);
  if (!data) {
    b->failed = true;
    return false;
  }
  b->data = data;
  b->cap_bytes = cap;
  return true;
}

void td_buf_append(td_buf *b, const void *bytes, size_t n)
{
  if (!buf_reserve(b, n))
    return;
  if (n > 0)
    memcpy(b->data + b->len_bytes, bytes, n);
  b->len_bytes += n;
  b->data[b->len_bytes] = '\0';
}

void td_buf_append_str(td_buf *b, const char *s) { td_buf_append(b, s, strlen(s)); }

void td_buf_append_char(td_buf *b, char c) { td_buf_append(b, &c, 1); }

/* Prints into the free room, which is mostly enough. Otherwise reserves the room needed and prints again. */
void td_buf_printf(td_buf *b, const char *fmt, ...)
{
  va_list ap;
  char nothing[1];
  size_t room = b->failed ? 0 : b->cap_bytes - b->len_bytes;
  va_start(ap, fmt);
  int n = vsnprintf(room > 0 ? b->data + b->len_bytes : nothing, room, fmt, ap);
  va_end(ap);
  if (n >= 0 && (size_t)n < room) {
    b->len_bytes += (size_t)n;
    return;
  }
  if (room > 0)
    b->data[b->len_bytes] = '\0';
  if (n < 0 || !buf_reserve(b, (size_t)n)) {
    b->failed = true;
    return;
  }
  va_start(ap, fmt);
  vsnprintf(b->data + b->len_bytes, (size_t)n + 1, fmt, ap);
  va_end(ap);
  b->len_bytes += (size_t)n;
}

static size_t digits_of(uint32_t v)
{
  return 1u + (v >= 10) + (v >= 100) + (v >= 1000) + (v >= 10000) + (v >= 100000) + (v >= 1000000) +
         (v >= 10000000) + (v >= 100000000) + (v >= 1000000000);
}

/* Returns the position after the number. */
static char *put_int(char *at, int32_t v)
{
  uint32_t left = v < 0 ? 0u - (uint32_t)v : (uint32_t)v;
  if (v < 0)
    *at++ = '-';
  char *end = at + digits_of(left);
  for (char *p = end; p > at; left /= 10)
    *--p = (char)('0' + left % 10);
  return end;
}

enum { UINT_DIGITS = 20 };

/* Writes v so that it ends at `end`; returns where it begins. */
static char *put_uint_before(char *end, uint64_t v)
{
  do
    *--end = (char)('0' + v % 10);
  while ((v /= 10) > 0);
  return end;
}

void td_buf_append_uint(td_buf *b, uint64_t v)
{
  char text[UINT_DIGITS], *end = text + sizeof text, *at = put_uint_before(end, v);
  td_buf_append(b, at, (size_t)(end - at));
}

void td_buf_append_tenths(td_buf *b, double v)
{
  char text[UINT_DIGITS + 2], *end = text + sizeof text;
  uint64_t tenths = v > 0 && v < 1e18 ? (uint64_t)(v * 10 + 0.5) : v > 0 ? (uint64_t)1e19 : 0;
  end[-1] = (char)('0' + tenths % 10);
  end[-2] = '.';
  char *at = put_uint_before(end - 2, tenths / 10);
  td_buf_append(b, at, (size_t)(end - at));
}

void td_buf_append_json_ints(td_buf *b, const int32_t *v, size_t n)
{
  enum { PIECE = 64, INT_BYTES = 12 }; /* of -2147483648 and a comma */
  char piece[PIECE * INT_BYTES];
  td_buf_append_char(b, '[');
  for (size_t i = 0; i < n;) {
    char *at = piece;
    for (size_t end = n - i < PIECE ? n : i + PIECE; i < end; i++) {
      if (i > 0)
        *at++ = ',';
      at = put_int(at, v[i]);
    }
    td_buf_append(b, piece, (size_t)(at - piece));
  }
  td_buf_append_char(b, ']');
}

void td_buf_append_json_string(td_buf *b, const char *s, size_t n)
{
  const unsigned char *p = (const unsigned char *)s;
  td_buf_append_char(b, '"');
  size_t i = 0, run = 0; /* [run, i) needs no escape and is not yet appended */
  while (i < n) {
    size_t len = td_utf8_sequence_length(p + i, n - i);
    unsigned char c = p[i];
    if (len > 1 || (len == 1 && c >= 0x20 && c != '"' && c != '\\' && c != 0x7f)) {
      i += len;
      continue;
    }
    if (i > run)
      td_buf_append(b, p + run, i - run);
    if (len == 0)
      td_buf_append_str(b, "\xEF\xBF\xBD");
    else if (c == '"' || c == '\\')
      td_buf_printf(b, "\\%c", c);
    else if (c == '\n')
      td_buf_append_str(b, "\\n");
    else
      td_buf_printf(b, "\\u%04x", c);
    run = ++i;
  }
  if (i > run)
    td_buf_append(b, p + run, i - run);
  td_buf_append_char(b, '"');
}

void td_buf_consume(td_buf *b, size_t n)
{
  TD_BUG_ON(n > b->len_bytes);
  if (n == 0)
    return;
  memmove(b->data, b->data + n, b->len_bytes - n + 1);
  b->len_bytes -= n;
}

char *td_buf_detach(td_buf *b, size_t *len_bytes)
{
  if (b->failed || !buf_reserve(b, 0))
    return NULL;
  b->data[b->len_bytes] = '\0';
  char *data = b->data;
  if (len_bytes)
    *len_bytes = b->len_bytes;
  td_buf_init(b, b->max_bytes);
  return data;
}
