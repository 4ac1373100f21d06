/* Sets of characters, and their spellings in bytes: see expr.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "models/grammar/expr.h"

void td_chars_add(td_builder *b, td_chars *c, uint32_t lo, uint32_t hi)
{
  if (c->n == c->cap) {
    uint32_t cap = c->cap ? c->cap * 2 : 8;
    td_char_range *ranges = b->failed ? NULL : td_arena_alloc_array(&b->arena, cap, sizeof *ranges);
    if (!ranges) {
      b->failed = true;
      return;
    }
    if (c->n > 0)
      memcpy(ranges, c->ranges, c->n * sizeof *ranges);
    c->ranges = ranges;
    c->cap = cap;
  }
  c->ranges[c->n++] = (td_char_range){lo, hi > TD_CHAR_MAX ? TD_CHAR_MAX : hi};
}

static int compare_ranges(const void *x, const void *y)
{
  const td_char_range *a = x, *b = y;
  return (a->lo > b->lo) - (a->lo < b->lo);
}

void td_chars_tidy(td_chars *c)
{
  uint32_t n = 0;
  if (c->n > 0)
    qsort(c->ranges, c->n, sizeof *c->ranges, compare_ranges);
  for (uint32_t i = 0; i < c->n; i++) {
    if (n > 0 && c->ranges[i].lo <= c->ranges[n - 1].hi + 1) {
      if (c->ranges[i].hi > c->ranges[n - 1].hi)
        c->ranges[n - 1].hi = c->ranges[i].hi;
    } else {
      c->ranges[n++] = c->ranges[i];
    }
  }
  c->n = n;
}

void td_chars_invert(td_builder *b, td_chars *c)
{
  td_chars out = {0};
  uint32_t at = 0;
  td_chars_tidy(c);
  for (uint32_t i = 0; i < c->n; i++) {
    if (c->ranges[i].lo > at)
      td_chars_add(b, &out, at, c->ranges[i].lo - 1);
    at = c->ranges[i].hi + 1;
  }
  if (at <= TD_CHAR_MAX)
    td_chars_add(b, &out, at, TD_CHAR_MAX);
  *c = out;
}

static bool has(const td_chars *c, uint32_t cp)
{
  for (uint32_t i = 0; i < c->n; i++)
    if (cp >= c->ranges[i].lo && cp <= c->ranges[i].hi)
      return true;
  return false;
}

/* ---- UTF-8 ---- */

/* The characters from lo to hi, which have n bytes each. */
static const td_expr *between(td_builder *b, const unsigned char *lo, const unsigned char *hi, unsigned n)
{
  if (n == 1)
    return td_expr_range(b, lo[0], hi[0]);
  static const unsigned char least[3] = {0x80, 0x80, 0x80}, most[3] = {0xBF, 0xBF, 0xBF};
  if (lo[0] == hi[0])
    return td_expr_cat2(b, td_expr_range(b, lo[0], lo[0]), between(b, lo + 1, hi + 1, n - 1));
  td_expr_list alt = {0};
  unsigned first = lo[0], last = hi[0];
  if (memcmp(lo + 1, least, n - 1) != 0) {
    td_expr_add(b, &alt, td_expr_cat2(b, td_expr_range(b, first, first), between(b, lo + 1, most, n - 1)));
    first++;
  }
  bool rest = memcmp(hi + 1, most, n - 1) != 0;
  if (first + rest <= last)
    td_expr_add(b, &alt,
                td_expr_cat2(b, td_expr_range(b, first, last - rest), between(b, least, most, n - 1)));
  if (rest)
    td_expr_add(b, &alt, td_expr_cat2(b, td_expr_range(b, last, last), between(b, least, hi + 1, n - 1)));
  return td_expr_alt(b, &alt);
}

const td_expr *td_chars_expr(td_builder *b, const td_chars *c)
{
  static const td_char_range lengths[] = {
      {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, TD_CHAR_MAX}};
  td_byte_set ascii = {0};
  bool any = false;
  td_expr_list alt = {0};
  for (uint32_t i = 0; i < c->n; i++) {
    for (uint32_t cp = c->ranges[i].lo; cp <= c->ranges[i].hi && cp < 0x80; cp++, any = true)
      td_byte_set_add(&ascii, cp);
    for (unsigned k = 0; k < 4; k++) {
      uint32_t lo = c->ranges[i].lo > lengths[k].lo ? c->ranges[i].lo : lengths[k].lo;
      uint32_t hi = c->ranges[i].hi < lengths[k].hi ? c->ranges[i].hi : lengths[k].hi;
      unsigned char l[4], h[4];
      if (lo > hi)
        continue;
      unsigned n = (unsigned)td_utf8_encode(lo, l);
      td_utf8_encode(hi, h);
      td_expr_add(b, &alt, between(b, l, h, n));
    }
  }
  if (any)
    td_expr_add(b, &alt, td_expr_set(b, &ascii));
  return td_expr_alt(b, &alt);
}

/* ---- JSON strings ---- */

/* JSON's escapes with a single character. */
static char short_escape(uint32_t cp)
{
  switch (cp) {
  case '"': return '"';
  case '\\': return '\\';
  case '/': return '/';
  case '\b': return 'b';
  case '\f': return 'f';
  case '\n': return 'n';
  case '\r': return 'r';
  case '\t': return 't';
  default: return 0;
  }
}

/* What may follow a backslash: single characters and, for control characters without such an escape, u001f
 * with the letter in either case. All escapes are one expression, so that a state inside a string is
 * small. */
static const td_expr *escapes(td_builder *b, const td_chars *c)
{
  td_byte_set letters = {0}, last[2] = {{{0}}};
  td_expr_list alt = {0};
  bool any = false, any_last[2] = {false, false};
  for (uint32_t cp = 0; cp <= '\\'; cp++) {
    if (!has(c, cp))
      continue;
    if (short_escape(cp)) {
      td_byte_set_add(&letters, (unsigned char)short_escape(cp));
      any = true;
    } else if (cp < 0x20) {
      td_byte_set_add(&last[cp >> 4], (unsigned char)"0123456789abcdef"[cp & 15]);
      td_byte_set_add(&last[cp >> 4], (unsigned char)"0123456789ABCDEF"[cp & 15]);
      any_last[cp >> 4] = true;
    }
  }
  for (unsigned k = 0; k < 2; k++)
    if (any_last[k])
      td_expr_add(b, &alt, td_expr_cat2(b, td_expr_string(b, k ? "1" : "0"), td_expr_set(b, &last[k])));
  const td_expr *control = td_expr_cat2(b, td_expr_string(b, "u00"), td_expr_alt(b, &alt));
  return td_expr_alt2(b, any ? td_expr_set(b, &letters) : &td_expr_none, control);
}

const td_expr *td_chars_json_expr(td_builder *b, const td_chars *c)
{
  td_chars plain = {0}, must = {0};
  td_expr_list alt = {0};
  td_chars_add(b, &must, 0, 0x1F);
  td_chars_add(b, &must, '"', '"');
  td_chars_add(b, &must, '\\', '\\');
  td_chars_tidy(&must);
  for (uint32_t i = 0; i < c->n; i++) { /* the range, without characters that must be escaped */
    uint32_t at = c->ranges[i].lo;
    for (uint32_t k = 0; k < must.n && at <= c->ranges[i].hi; k++) {
      if (must.ranges[k].hi < at || must.ranges[k].lo > c->ranges[i].hi)
        continue;
      if (must.ranges[k].lo > at)
        td_chars_add(b, &plain, at, must.ranges[k].lo - 1);
      at = must.ranges[k].hi + 1;
    }
    if (at <= c->ranges[i].hi)
      td_chars_add(b, &plain, at, c->ranges[i].hi);
  }
  td_expr_add(b, &alt, td_chars_expr(b, &plain));
  td_expr_add(b, &alt, td_expr_cat2(b, td_expr_string(b, "\\"), escapes(b, c)));
  return td_expr_alt(b, &alt);
}
