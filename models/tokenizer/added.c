/* Finds added tokens from left to right, the longest one at each place.
 *
 * Patterns are in byte order. The candidates at a place are a range of them, which each further byte narrows.
 * If the first byte begins no pattern, a place costs one table look-up. single_word, lstrip and rstrip follow
 * the reference: a match that single_word rejects still uses up its text, and a match swallows the white
 * space around it, unless the match before has swallowed that already. A token of white space with lstrip is
 * no match if the match before has swallowed all of it. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

void td_added_deinit(td_added_set *s)
{
  for (uint32_t i = 0; i < s->n; i++)
    free(s->items[i].pattern);
  free(s->items);
  memset(s, 0, sizeof *s);
}

td_status td_added_add(td_added_set *s, const char *pattern, size_t n_bytes, int32_t id, bool special,
                       uint8_t flags, td_error *err)
{
  if (s->n == s->cap) {
    uint32_t cap = s->cap ? 2 * s->cap : 64;
    td_added *items = realloc(s->items, cap * sizeof *items);
    if (!items)
      return td_fail(err, TD_ERR_NOMEM, "no memory for added tokens");
    s->items = items;
    s->cap = cap;
  }
  char *copy = malloc(n_bytes + 1);
  if (!copy)
    return td_fail(err, TD_ERR_NOMEM, "no memory for added tokens");
  memcpy(copy, pattern, n_bytes);
  copy[n_bytes] = '\0';
  s->items[s->n++] = (td_added){copy, (uint32_t)n_bytes, id, flags, special};
  return TD_OK;
}

static int by_pattern(const void *va, const void *vb)
{
  const td_added *a = va, *b = vb;
  int c = memcmp(a->pattern, b->pattern, a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes);
  if (c)
    return c;
  if (a->n_bytes != b->n_bytes)
    return a->n_bytes < b->n_bytes ? -1 : 1;
  return (a->id > b->id) - (a->id < b->id);
}

void td_added_seal(td_added_set *s)
{
  if (s->n > 1)
    qsort(s->items, s->n, sizeof *s->items, by_pattern);
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->n; i++) {
    if (n && s->items[n - 1].n_bytes == s->items[i].n_bytes &&
        memcmp(s->items[n - 1].pattern, s->items[i].pattern, s->items[i].n_bytes) == 0) {
      free(s->items[--n].pattern);
    }
    s->items[n++] = s->items[i];
  }
  s->n = n;
  uint32_t at = 0;
  for (unsigned b = 0; b < 256; b++) {
    s->first[b] = at;
    while (at < n && (unsigned char)s->items[at].pattern[0] == b)
      at++;
  }
  s->first[256] = at;
}

/* ---- matching at one place ---- */

static unsigned char byte_at(const td_added_set *s, uint32_t i, uint32_t k)
{
  return (unsigned char)s->items[i].pattern[k];
}

/* In [lo, hi), whose patterns share k bytes and are longer than that: the first whose byte k is >= c. */
static uint32_t lower_bound(const td_added_set *s, uint32_t lo, uint32_t hi, uint32_t k, unsigned c)
{
  while (lo < hi) {
    uint32_t mid = lo + (hi - lo) / 2;
    if (byte_at(s, mid, k) < c)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

size_t td_span_after(const td_span *spans, size_t n, size_t pos)
{
  size_t lo = 0, hi = n;
  while (lo < hi) {
    size_t mid = lo + (hi - lo) / 2;
    if (spans[mid].end <= pos)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

/* Bytes from text offset p to the end of the trusted span that contains p; 0 if none does. */
static size_t trusted_bytes(const td_added_search *s, size_t p)
{
  p += s->base;
  size_t i = td_span_after(s->spans, s->n_spans, p);
  return i < s->n_spans && s->spans[i].start <= p ? s->spans[i].end - p : 0;
}

/* The longest pattern that may match at offset p. Some pattern must begin with the byte there. */
static const td_added *longest_at(const td_added_search *s, size_t p)
{
  const td_added_set *set = s->set;
  unsigned c = s->text[p];
  uint32_t lo = set->first[c], hi = set->first[c + 1];
  const size_t left = s->n - p, trusted = trusted_bytes(s, p);
  const td_added *best = NULL;
  for (uint32_t k = 1;; k++) {
    if (set->items[lo].n_bytes == k) { /* patterns differ, so only one ends here */
      if (!set->items[lo].special || k <= trusted)
        best = &set->items[lo];
      lo++;
    }
    if (lo == hi || k == left)
      return best;
    c = s->text[p + k];
    lo = lower_bound(set, lo, hi, k, c);
    hi = lower_bound(set, lo, hi, k, c + 1);
    if (lo == hi)
      return best;
  }
}

/* ---- the text around a match ---- */

/* The character that ends at offset e, or UINT32_MAX if there is none at or after `from`, or its bytes are
 * invalid. */
static uint32_t char_before(const unsigned char *text, size_t from, size_t e, size_t *len)
{
  for (size_t k = 1; k <= 4 && k <= e - from; k++)
    if ((text[e - k] & 0xC0) != 0x80) {
      *len = k;
      return td_utf8_sequence_length(text + e - k, k) == k ? td_utf8_decode(text + e - k, k) : UINT32_MAX;
    }
  *len = 1;
  return UINT32_MAX;
}

static uint32_t char_after(const unsigned char *text, size_t p, size_t n, size_t *len)
{
  *len = td_utf8_sequence_length(text + p, n - p);
  return *len ? td_utf8_decode(text + p, *len) : UINT32_MAX;
}

static bool is_whole_word(const td_added_search *s, size_t start, size_t end)
{
  size_t len;
  uint32_t cp;
  if ((cp = char_before(s->text, 0, start, &len)) != UINT32_MAX && td_unicode_is_word(cp))
    return false;
  return (cp = char_after(s->text, end, s->n, &len)) == UINT32_MAX || !td_unicode_is_word(cp);
}

static void strip(td_added_search *s, uint8_t flags, td_added_match *m)
{
  size_t len;
  uint32_t cp;
  if ((flags & TD_ADDED_LSTRIP) && m->start < s->last_end)
    m->start = s->last_end;
  if (flags & TD_ADDED_LSTRIP)
    while ((cp = char_before(s->text, s->last_end, m->start, &len)) != UINT32_MAX &&
           (td_unicode_class(cp) & TD_CLASS_SPACE))
      m->start -= len;
  if (!(flags & TD_ADDED_RSTRIP))
    return;
  if (m->end < s->space_end) /* this token is white space that the match before has swallowed */
    m->end = s->space_end;
  while ((cp = char_after(s->text, m->end, s->n, &len)) != UINT32_MAX &&
         (td_unicode_class(cp) & TD_CLASS_SPACE))
    m->end += len;
  s->space_end = m->end;
}

bool td_added_next(td_added_search *s, td_added_match *m)
{
  if (s->set->n == 0)
    return false;
  const uint32_t *first = s->set->first;
  while (s->at < s->n) {
    while (first[s->text[s->at]] == first[s->text[s->at] + 1])
      if (++s->at == s->n)
        return false;
    const td_added *a = longest_at(s, s->at);
    if (!a) {
      s->at++;
      continue;
    }
    *m = (td_added_match){s->at, s->at + a->n_bytes, a->id};
    s->at = m->end;
    if ((a->flags & TD_ADDED_SINGLE_WORD) && !is_whole_word(s, m->start, m->end))
      continue;
    strip(s, a->flags, m);
    if (m->start >= m->end)
      continue;
    s->last_end = m->end;
    return true;
  }
  return false;
}
