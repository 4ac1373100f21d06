/* Unicode normalisation form C, in linear time, with utf8proc's tables.
 *
 * utf8proc_map would do it in one call, but it orders combining marks by exchanging neighbours: a request
 * with one megabyte of marks would occupy a worker for ten minutes. Here text is cut at inert characters,
 * which never change the text before them. Only stretches with other characters are rewritten, and their
 * marks are ordered by counting. The reference normalises by Unicode 9, so characters of later versions stay
 * as they are. Source: Unicode Standard Annex 15; canonical ordering and composition are sections 3.11 D108,
 * D117 of the standard. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/utf8.h"

/* Starters that NFC leaves alone and that compose with nothing before them (NFC_Quick_Check=Yes, ccc=0): the
 * common blocks, not all. Such a character may still compose with what follows it. */
static bool is_inert(uint32_t cp)
{
  return cp < 0x300 || (cp >= 0x400 && cp <= 0x482) || (cp >= 0x5D0 && cp <= 0x5EA) ||
         (cp >= 0x620 && cp <= 0x64A) || (cp >= 0xE01 && cp <= 0xE30) || (cp >= 0x2010 && cp <= 0x205F) ||
         (cp >= 0x3001 && cp <= 0x3029) || (cp >= 0x3041 && cp <= 0x3096) || (cp >= 0x30A1 && cp <= 0x30FA) ||
         (cp >= 0x3400 && cp <= 0x4DBF) || (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0xAC00 && cp <= 0xD7A3) ||
         (cp >= 0xFF01 && cp <= 0xFF60) || (cp >= 0x1F300 && cp <= 0x1FAFF);
}

static size_t char_bytes(const unsigned char *p, const unsigned char *end)
{
  size_t len = td_utf8_sequence_length(p, (size_t)(end - p));
  return len ? len : 1;
}

static bool starts_inert(const unsigned char *p, const unsigned char *end)
{
  size_t len = *p < 0x80 ? 1 : td_utf8_sequence_length(p, (size_t)(end - p));
  return len != 0 && is_inert(td_utf8_decode(p, len));
}

/* Returns the end of the inert characters at p; *last is the start of the last of them (p if there are
 * none). */
static const unsigned char *skip_inert(const unsigned char *p, const unsigned char *end,
                                       const unsigned char **last)
{
  *last = p;
  for (; p < end && starts_inert(p, end); p += char_bytes(p, end))
    *last = p;
  return p;
}

bool td_nfc_quick(const unsigned char *text, size_t n)
{
  const unsigned char *last;
  return skip_inert(text, text + n, &last) == text + n;
}

typedef struct code_points {
  utf8proc_int32_t *cp; /* owned */
  size_t n, cap;
} code_points;

static td_status push_decomposed(code_points *c, uint32_t cp, td_error *err)
{
  if (c->cap - c->n < 8) { /* the longest canonical decomposition has 4 */
    size_t cap = c->cap ? 2 * c->cap : 64;
    utf8proc_int32_t *grown = realloc(c->cp, cap * sizeof *grown);
    if (!grown)
      return td_fail(err, TD_ERR_NOMEM, "no memory to normalise text");
    c->cp = grown;
    c->cap = cap;
  }
  int boundclass = 0;
  utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, c->cp + c->n, 8,
                                               UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundclass);
  if (n < 1 || n > 8 || cp == 0x11938) { /* the only composite that is newer than the reference */
    c->cp[c->n] = (utf8proc_int32_t)cp;
    n = 1;
  }
  c->n += (size_t)n;
  return TD_OK;
}

enum { M = TD_CLASS_MARK };

/* Marks from Unicode 10 to 16.0, which the reference does not treat as marks. */
static const td_code_range newer[] = {
    {0x7FD, 0x7FD, M},     {0x897, 0x89F, M},     {0x8CA, 0x8D3, M},     {0x9FE, 0x9FE, M},
    {0xC3C, 0xC3C, M},     {0xD3B, 0xD3C, M},     {0xEBA, 0xEBA, M},     {0x1715, 0x1715, M},
    {0x1ABF, 0x1ACE, M},   {0x1DF6, 0x1DFA, M},   {0xA82C, 0xA82C, M},   {0x10D24, 0x10D27, M},
    {0x10D69, 0x10D6D, M}, {0x10EAB, 0x10EAC, M}, {0x10EFC, 0x10EFF, M}, {0x10F46, 0x10F50, M},
    {0x10F82, 0x10F85, M}, {0x11070, 0x11070, M}, {0x1133B, 0x1133B, M}, {0x113CE, 0x113D0, M},
    {0x113E1, 0x113E2, M}, {0x1145E, 0x1145E, M}, {0x11839, 0x1183A, M}, {0x1193D, 0x1193E, M},
    {0x11943, 0x11943, M}, {0x119E0, 0x119E0, M}, {0x11A34, 0x11A34, M}, {0x11A47, 0x11A47, M},
    {0x11A99, 0x11A99, M}, {0x11D42, 0x11D42, M}, {0x11D44, 0x11D45, M}, {0x11D97, 0x11D97, M},
    {0x11F41, 0x11F42, M}, {0x1612F, 0x1612F, M}, {0x16FF0, 0x16FF1, M}, {0x1E08F, 0x1E08F, M},
    {0x1E130, 0x1E136, M}, {0x1E2AE, 0x1E2AE, M}, {0x1E2EC, 0x1E2EF, M}, {0x1E4EC, 0x1E4EF, M},
    {0x1E5EE, 0x1E5EF, M},
};

/* Characters that neither move nor join the characters before them, in spite of utf8proc's tables: the newer
 * marks; U+11930, which is part of U+11938 only since Unicode 13; and U+11A7, one before the first final
 * consonant, which utf8proc drops after a syllable. */
static bool is_apart(utf8proc_int32_t cp)
{
  return cp == 0x11A7 || cp == 0x11930 || TD_CODE_RANGE_OF(newer, (uint32_t)cp);
}

static unsigned combining_class(utf8proc_int32_t cp)
{
  return cp < 0x300 || is_apart(cp) ? 0 : (unsigned)utf8proc_get_property(cp)->combining_class & 0xFF;
}

/* Sorts one run of marks stably by combining class: insertion for short runs, counting for long ones. */
static td_status order_run(utf8proc_int32_t *cp, size_t n, td_error *err)
{
  if (n <= 16) {
    for (size_t i = 1; i < n; i++) {
      utf8proc_int32_t x = cp[i];
      unsigned class = combining_class(x);
      size_t k = i;
      for (; k > 0 && combining_class(cp[k - 1]) > class; k--)
        cp[k] = cp[k - 1];
      cp[k] = x;
    }
    return TD_OK;
  }
  utf8proc_int32_t *copy = malloc(n * sizeof *copy);
  if (!copy)
    return td_fail(err, TD_ERR_NOMEM, "no memory to normalise text");
  size_t at[257] = {0};
  memcpy(copy, cp, n * sizeof *copy);
  for (size_t i = 0; i < n; i++)
    at[combining_class(copy[i]) + 1]++;
  for (size_t k = 1; k < 257; k++)
    at[k] += at[k - 1];
  for (size_t i = 0; i < n; i++)
    cp[at[combining_class(copy[i])]++] = copy[i];
  free(copy);
  return TD_OK;
}

static void compose(utf8proc_int32_t *cp, size_t n_cp, td_buf *out)
{
  utf8proc_ssize_t n =
      utf8proc_normalize_utf32(cp, (utf8proc_ssize_t)n_cp, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  for (utf8proc_ssize_t i = 0; i < n; i++) {
    unsigned char utf8[4];
    td_buf_append(out, utf8, td_utf8_encode((uint32_t)cp[i], utf8));
  }
}

/* Appends the NFC of [p, end) to out; c is scratch space. */
static td_status rewrite(code_points *c, const unsigned char *p, const unsigned char *end, td_buf *out,
                         td_error *err)
{
  c->n = 0;
  while (p < end) {
    size_t len = td_utf8_sequence_length(p, (size_t)(end - p));
    if (len == 0) /* cannot happen for valid text */
      return td_fail(err, TD_ERR_REQUEST, "text is not valid UTF-8");
    TD_TRY(push_decomposed(c, td_utf8_decode(p, len), err));
    p += len;
  }
  for (size_t i = 0; i < c->n;) {
    size_t k = i;
    while (k < c->n && combining_class(c->cp[k]) != 0)
      k++;
    if (k - i > 1)
      TD_TRY(order_run(c->cp + i, k - i, err));
    i = k + 1;
  }
  for (size_t i = 0, k; i < c->n; i = k) {
    for (k = i + 1; k < c->n && !is_apart(c->cp[k]);)
      k++;
    compose(c->cp + i, k - i, out);
  }
  return TD_OK;
}

/* An iterator over span borders in text order: 2k is the start of span k, 2k + 1 its end. */
typedef struct borders {
  td_span *spans;
  size_t n, at;
} borders;

static size_t *border(const borders *b)
{
  return b->at % 2 ? &b->spans[b->at / 2].end : &b->spans[b->at / 2].start;
}

/* Moves the borders up to and including `upto` by the distance from text_at to out_at. */
static void move_borders(borders *b, size_t upto, size_t text_at, size_t out_at)
{
  for (; b->at < 2 * b->n && *border(b) <= upto; b->at++)
    *border(b) = *border(b) - text_at + out_at;
}

/* Moves the borders before text offset `end`, which are strictly inside a rewritten stretch, inwards. */
static void shrink_borders(borders *b, size_t end, size_t out_start, size_t out_end)
{
  for (; b->at < 2 * b->n && *border(b) < end; b->at++)
    *border(b) = b->at % 2 ? out_start : out_end;
}

td_status td_nfc_append(const unsigned char *text, size_t n, td_buf *out, td_span *spans, size_t n_spans,
                        td_error *err)
{
  const unsigned char *end = text + n, *p = text;
  const size_t base = out->len_bytes;
  borders b = {spans, spans ? n_spans : 0, 0};
  code_points c = {0};
  td_status status = TD_OK;
  while (p < end && status == TD_OK) {
    const unsigned char *last, *plain_end = skip_inert(p, end, &last);
    if (plain_end < end)
      plain_end = last; /* the last inert character may compose with what follows */
    move_borders(&b, (size_t)(plain_end - text), (size_t)(p - text), out->len_bytes - base);
    td_buf_append(out, p, (size_t)(plain_end - p));
    p = plain_end;
    if (p == end)
      break;
    const unsigned char *q = p + char_bytes(p, end);
    while (q < end && !starts_inert(q, end))
      q += char_bytes(q, end);
    const size_t out_start = out->len_bytes - base;
    status = rewrite(&c, p, q, out, err);
    shrink_borders(&b, (size_t)(q - text), out_start, out->len_bytes - base);
    p = q;
  }
  move_borders(&b, n, n, out->len_bytes - base);
  for (size_t i = 0; i < b.n; i++)
    if (spans[i].end < spans[i].start)
      spans[i].end = spans[i].start;
  free(c.cp);
  if (status == TD_OK && out->failed)
    return td_fail(err, TD_ERR_NOMEM, "no memory to normalise text");
  return status;
}
