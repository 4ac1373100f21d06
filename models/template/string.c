/* Strings that know the provenance of each byte: see value.h. Slices share bytes. Text that is appended to
 * the newest string goes into the same buffer, so building text in a loop takes linear, not quadratic,
 * time. */
#include <stdlib.h>
#include <string.h>

#include "models/template/unicode.h"
#include "models/template/value.h"

str *td_str_new(rendering *r, const char *p, size_t n, bool trusted)
{
  str *s = td_render_alloc(r, 1, sizeof *s);
  s->p = p;
  s->n = n;
  s->n_chars = SIZE_MAX;
  s->trusted = trusted;
  return s;
}

str *td_str_copy(rendering *r, const char *p, size_t n, bool trusted)
{
  char *copy = td_render_alloc(r, n + 1, 1);
  if (n)
    memcpy(copy, p, n);
  return td_str_new(r, copy, n, trusted);
}

str *td_str_literal(rendering *r, const char *s) { return td_str_new(r, s, strlen(s), true); }

str *td_str_slice(rendering *r, const str *s, size_t from, size_t to)
{
  if (from >= to)
    from = to = 0;
  str *cut = td_str_new(r, s->p + from, to - from, s->trusted);
  cut->shadow = s->shadow && to > from ? s->shadow + from : NULL;
  cut->markup = s->markup;
  if (s->n_chars == s->n)
    cut->n_chars = cut->n;
  return cut;
}

bool td_str_any_untrusted(rendering *r, const str *s)
{
  if (!s->shadow)
    return !s->trusted && s->n > 0;
  pay_bytes(r, s->n);
  return memchr(s->shadow, 0, s->n) != NULL;
}

size_t td_str_chars(str *s)
{
  if (s->n_chars == SIZE_MAX)
    s->n_chars = td_unicode_count(s->p, s->n);
  return s->n_chars;
}

size_t td_str_char_offset(str *s, size_t i)
{
  if (str_ascii(s))
    return i < s->n ? i : s->n;
  size_t at = 0;
  for (; i > 0 && at < s->n; i--) {
    at++;
    while (at < s->n && ((unsigned char)s->p[at] & 0xC0) == 0x80)
      at++;
  }
  return at;
}

int td_str_compare(const str *a, const str *b)
{
  size_t n = a->n < b->n ? a->n : b->n;
  int c = n ? memcmp(a->p, b->p, n) : 0; /* the order of UTF-8 bytes is the order of code points */
  return c ? (c < 0 ? -1 : 1) : a->n < b->n ? -1 : a->n > b->n;
}

size_t td_str_find(rendering *r, const str *s, const str *needle, size_t from, size_t to)
{
  if (to > s->n)
    to = s->n;
  if (from > to || needle->n > to - from)
    return SIZE_MAX;
  if (needle->n == 0)
    return from;
  pay_bytes(r, to - from + 4 * needle->n); /* memmem looks at each byte of a long needle several times */
  const char *hit = memmem(s->p + from, to - from, needle->p, needle->n);
  return hit ? (size_t)(hit - s->p) : SIZE_MAX;
}

size_t td_str_rfind(rendering *r, const str *s, const str *needle, size_t from, size_t to)
{
  if (to > s->n)
    to = s->n;
  if (from > to || needle->n > to - from)
    return SIZE_MAX;
  size_t at = to - needle->n;
  /* Comparisons from the end are paid for, so hostile text uses up the budget, not the worker's time. */
  for (;; at--) {
    if (memcmp(s->p + at, needle->p, needle->n) == 0)
      return at;
    if (needle->n >= 64 || (at & 15) == 0)
      pay_bytes(r, needle->n);
    if (at == from)
      return SIZE_MAX;
  }
}

/* ---- text under construction ---- */

void td_out_init(text_out *o) { *o = (text_out){.trusted = true}; }

static void out_reserve(rendering *r, text_out *o, size_t more, bool need_shadow)
{
  if (more > SIZE_MAX / 4 - o->n)
    td_render_fail(r, "text is too long");
  size_t wanted = o->n + more;
  bool grow = wanted > o->cap;
  if (grow) {
    size_t cap = o->cap * 2 > wanted ? o->cap * 2 : wanted + 32;
    char *p = td_render_alloc(r, cap, 1);
    if (o->n)
      memcpy(p, o->p, o->n);
    o->p = p;
    o->cap = cap;
    pay_bytes(r, o->n);
  }
  if (need_shadow && !o->shadow) {
    o->shadow = td_render_alloc(r, o->cap, 1);
    if (o->n)
      memset(o->shadow, o->trusted, o->n);
  } else if (o->shadow && grow) {
    uint8_t *shadow = td_render_alloc(r, o->cap, 1);
    memcpy(shadow, o->shadow, o->n);
    o->shadow = shadow;
  }
}

static void root_span(rendering *r, size_t start, size_t end)
{
  td_rendered *out = r->out;
  if (out->n_trusted > 0 && out->trusted[out->n_trusted - 1].end == start) {
    out->trusted[out->n_trusted - 1].end = end;
    return;
  }
  if (out->n_trusted == out->cap_trusted) {
    size_t cap = out->cap_trusted ? out->cap_trusted * 2 : 32;
    td_render_span *grown = realloc(out->trusted, cap * sizeof *grown);
    if (!grown)
      td_render_fail_status(r, TD_ERR_NOMEM, "no memory for the rendered chat");
    out->trusted = grown;
    out->cap_trusted = cap;
  }
  out->trusted[out->n_trusted++] = (td_render_span){start, end};
}

static void root_append(rendering *r, const char *p, size_t n)
{
  td_buf_append(&r->out->text, p, n);
  if (r->out->text.failed) {
    if (r->out->text.len_bytes + n > r->out->text.max_bytes)
      td_render_fail(r, "the rendered chat is longer than %zu bytes", r->out->text.max_bytes);
    td_render_fail_status(r, TD_ERR_NOMEM, "no memory for the rendered chat");
  }
}

void td_out_bytes(rendering *r, text_out *o, const char *p, size_t n, bool trusted)
{
  if (n == 0)
    return;
  pay_bytes(r, n);
  if (o->root) {
    size_t start = r->out->text.len_bytes;
    root_append(r, p, n);
    if (trusted)
      root_span(r, start, start + n);
    return;
  }
  if (o->n == 0 && !o->shadow)
    o->trusted = trusted;
  bool mixed = o->shadow || o->trusted != trusted;
  out_reserve(r, o, n, mixed);
  memcpy(o->p + o->n, p, n);
  if (o->shadow)
    memset(o->shadow + o->n, trusted, n);
  o->n += n;
}

void td_out_cstr(rendering *r, text_out *o, const char *s, bool trusted)
{
  td_out_bytes(r, o, s, strlen(s), trusted);
}

void td_out_slice(rendering *r, text_out *o, const str *s, size_t from, size_t to)
{
  if (!s->shadow) {
    td_out_bytes(r, o, s->p + from, to - from, s->trusted);
    return;
  }
  if (!o->root && to > from) { /* copies the shadow along with the text */
    pay_bytes(r, to - from);
    out_reserve(r, o, to - from, true);
    memcpy(o->p + o->n, s->p + from, to - from);
    memcpy(o->shadow + o->n, s->shadow + from, to - from);
    o->n += to - from;
    return;
  }
  while (from < to) {
    const uint8_t *other = memchr(s->shadow + from, !s->shadow[from], to - from);
    size_t end = other ? (size_t)(other - s->shadow) : to;
    td_out_bytes(r, o, s->p + from, end - from, s->shadow[from]);
    from = end;
  }
}

void td_out_str(rendering *r, text_out *o, const str *s) { td_out_slice(r, o, s, 0, s->n); }

str *td_out_finish(rendering *r, text_out *o)
{
  str *s = td_str_new(r, o->p ? o->p : "", o->n, o->trusted);
  s->shadow = o->n ? o->shadow : NULL;
  if (o->cap > 64) {
    s->room = td_render_alloc(r, 1, sizeof *s->room);
    *s->room = (struct str_room){o->n, o->cap};
  }
  return s;
}

str *td_str_concat(rendering *r, const str *a, const str *b)
{
  if (b->n == 0 || a->n == 0) {
    const str *whole = b->n == 0 ? a : b;
    str *s = td_str_slice(r, whole, 0, whole->n);
    s->room = whole->room;
    s->markup = false;
    return s;
  }
  bool uniform = !a->shadow && !b->shadow && a->trusted == b->trusted;
  bool in_place = a->room && a->room->used == a->n && b->n <= a->room->cap - a->n && (uniform || a->shadow);
  text_out o;
  td_out_init(&o);
  if (in_place) { /* a ends where its buffer's used part ends, so no other string sees the bytes after it */
    o.p = (char *)(uintptr_t)a->p;
    o.shadow = (uint8_t *)(uintptr_t)a->shadow;
    o.n = a->n;
    o.cap = a->room->cap;
    o.trusted = a->trusted;
  } else {
    o.trusted = a->trusted;
    size_t grow = a->room ? a->n : 0; /* the second append in a row, so more are likely */
    if (a->n + b->n > 64)
      out_reserve(r, &o, a->n + b->n + grow, !uniform);
    td_out_str(r, &o, a);
  }
  td_out_str(r, &o, b);
  if (!in_place)
    return td_out_finish(r, &o);
  str *s = td_str_new(r, o.p, o.n, a->trusted);
  s->shadow = o.shadow;
  s->room = a->room;
  a->room->used = o.n;
  return s;
}
