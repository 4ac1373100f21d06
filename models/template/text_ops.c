/* Work on strings that filters and methods share. Every byte of a result keeps the provenance of its source.
 */
#include <string.h>

#include "models/template/builtin.h"
#include "models/template/unicode.h"

static bool char_in(rendering *r, const str *set, const char *p, size_t len)
{
  pay_chars(r, set->n);
  for (size_t i = 0; i < set->n;) {
    uint32_t cp;
    size_t n = td_unicode_decode(set->p + i, set->n - i, &cp);
    if (n == len && memcmp(set->p + i, p, len) == 0)
      return true;
    i += n;
  }
  return false;
}

str *td_text_strip(rendering *r, str *s, str *chars, bool left, bool right)
{
  size_t from = 0, to = s->n;
  while (left && from < to) {
    uint32_t cp;
    size_t len = td_unicode_decode(s->p + from, to - from, &cp);
    if (chars ? !char_in(r, chars, s->p + from, len) : !td_unicode_is_space(cp))
      break;
    from += len;
  }
  while (right && to > from) {
    size_t len = td_unicode_length_before(s->p + from, to - from);
    if (chars ? !char_in(r, chars, s->p + to - len, len) : !td_unicode_space_at(s->p + to - len, len))
      break;
    to -= len;
  }
  pay_chars(r, s->n - (to - from));
  return td_str_slice(r, s, from, to);
}

/* An empty `from` matches before each character and at the end. */
static str *replace_empty(rendering *r, str *s, str *to, int64_t count)
{
  text_out o;
  td_out_init(&o);
  size_t at = 0;
  for (;;) {
    if (count-- != 0)
      td_out_str(r, &o, to);
    else {
      td_out_slice(r, &o, s, at, s->n);
      break;
    }
    if (at >= s->n)
      break;
    uint32_t cp;
    size_t len = td_unicode_decode(s->p + at, s->n - at, &cp);
    td_out_slice(r, &o, s, at, at + len);
    at += len;
  }
  return td_out_finish(r, &o);
}

str *td_text_replace(rendering *r, str *s, str *from, str *to, int64_t count)
{
  if (from->n == 0)
    return replace_empty(r, s, to, count);
  size_t at = 0, hit = td_str_find(r, s, from, 0, s->n);
  if (hit == SIZE_MAX || count == 0)
    return s;
  text_out o;
  td_out_init(&o);
  while (hit != SIZE_MAX && count-- != 0) {
    td_out_slice(r, &o, s, at, hit);
    td_out_str(r, &o, to);
    at = hit + from->n;
    /* paying for the rest of the text at every hit would bill a long text quadratically */
    const char *next = at < s->n ? memmem(s->p + at, s->n - at, from->p, from->n) : NULL;
    hit = next ? (size_t)(next - s->p) : SIZE_MAX;
  }
  td_out_slice(r, &o, s, at, s->n);
  str *result = td_out_finish(r, &o);
  result->markup = s->markup;
  return result;
}

static size_t map_char(uint32_t cp, char how, bool word_start, char *out)
{
  bool up = how == 'u' || (how == 'c' && word_start) || (how == 's' && td_unicode_is_lower(cp)) ||
            ((how == 't' || how == 'T') && word_start);
  if (how == 's' && !td_unicode_is_lower(cp) && !td_unicode_is_upper(cp))
    up = true;
  if (up)
    return how == 'c' || how == 'T' ? td_unicode_title(cp, out) : td_unicode_upper(cp, out);
  return td_unicode_lower(cp, out);
}

static bool opens_word(uint32_t cp) /* of the title filter */
{
  return td_unicode_is_space(cp) || cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<';
}

str *td_text_case(rendering *r, str *s, char how)
{
  text_out o;
  bool word_start = true;
  td_out_init(&o);
  for (size_t i = 0; i < s->n;) {
    uint32_t cp;
    char mapped[16];
    size_t len = td_unicode_decode(s->p + i, s->n - i, &cp), n = map_char(cp, how, word_start, mapped);
    if ((unsigned char)s->p[i] >= 0x80 && len == 1)
      td_out_slice(r, &o, s, i, i + 1); /* a stray byte stays */
    else
      td_out_bytes(r, &o, mapped, n, str_trusted_at(s, i));
    i += len;
    word_start = how == 't' ? opens_word(cp) : how == 'T' ? !td_unicode_is_alpha(cp) : false;
  }
  str *result = td_out_finish(r, &o);
  result->markup = s->markup;
  return result;
}

static void fill_with(rendering *r, text_out *o, const str *fill, int64_t n)
{
  td_render_pay(r, n > 0 ? (size_t)n / 8 : 0);
  for (int64_t i = 0; i < n; i++)
    td_out_str(r, o, fill);
}

str *td_text_center(rendering *r, str *s, int64_t width, str *fill, char align)
{
  int64_t n = (int64_t)td_str_chars(s);
  if (width <= n)
    return s;
  int64_t pad = width - n;
  if (!fill)
    fill = td_str_literal(r, " ");
  if (td_str_chars(fill) != 1)
    td_render_fail(r, "The fill character must be exactly one character long");
  int64_t left = align == 'l' ? 0 : align == 'r' ? pad : pad / 2 + (pad & width & 1);
  text_out o;
  td_out_init(&o);
  fill_with(r, &o, fill, left);
  td_out_str(r, &o, s);
  fill_with(r, &o, fill, pad - left);
  return td_out_finish(r, &o);
}

seq *td_text_split_lines(rendering *r, str *s, bool keep)
{
  size_t n = 0, cap = 8, from = 0;
  value *items = td_render_alloc(r, cap, sizeof *items);
  pay_chars(r, s->n);
  for (size_t i = 0; i < s->n;) {
    size_t end = td_unicode_line_end_at(s->p + i, s->n - i);
    i += end ? end : 1;
    if (!end && i < s->n)
      continue;
    if (n == cap) {
      value *grown = td_render_alloc(r, cap *= 2, sizeof *grown);
      memcpy(grown, items, n * sizeof *grown);
      items = grown;
    }
    items[n++] = v_str(td_str_slice(r, s, from, keep ? i : i - end));
    from = i;
  }
  return td_value_list(r, items, n, false).l;
}

str *td_text_join(rendering *r, str *separator, value over, bool convert)
{
  iter *it = td_iter_of(r, over);
  text_out o;
  size_t i = 0;
  td_out_init(&o);
  for (value v; (v = td_iter_next(r, it)).type != V_MISSING; i++) {
    if (!convert && v.type != V_STR)
      td_render_fail(r, "sequence item %zu: expected str instance, %s found", i, td_value_type_name(v));
    if (i)
      td_out_str(r, &o, separator);
    td_value_print(r, &o, v);
  }
  return td_out_finish(r, &o);
}

str *td_text_escape(rendering *r, str *s)
{
  text_out o;
  size_t done = 0;
  td_out_init(&o);
  for (size_t i = 0; i < s->n; i++) {
    const char *esc = s->p[i] == '&'    ? "&amp;"
                      : s->p[i] == '<'  ? "&lt;"
                      : s->p[i] == '>'  ? "&gt;"
                      : s->p[i] == '\'' ? "&#39;"
                      : s->p[i] == '"'  ? "&#34;"
                                        : NULL;
    if (!esc)
      continue;
    td_out_slice(r, &o, s, done, i);
    td_out_cstr(r, &o, esc, str_trusted_at(s, i));
    done = i + 1;
  }
  td_out_slice(r, &o, s, done, s->n);
  str *result = td_out_finish(r, &o);
  result->markup = true;
  return result;
}

str *td_text_repeat(rendering *r, str *s, int64_t times)
{
  size_t n;
  text_out o;
  td_out_init(&o);
  if (times > 0 && __builtin_mul_overflow(s->n, (size_t)times, &n))
    td_render_fail(r, "text is too long");
  if (s->n > 0)
    fill_with(r, &o, s, times);
  str *result = td_out_finish(r, &o);
  result->markup = s->markup;
  return result;
}
