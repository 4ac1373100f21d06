/* Filters and methods that examine text: find substrings, split it, and test what it consists of. */
#include <string.h>

#include "models/template/builtin.h"
#include "models/template/unicode.h"

/* ---- find, count, affixes ---- */

/* Converts the start and end arguments to byte offsets. Returns false if nothing can match there. */
static bool byte_range(rendering *r, const bound *b, size_t *from, size_t *to)
{
  int64_t n = (int64_t)td_str_chars(b->s), at[2] = {0, n};
  if (!str_ascii(b->s))
    pay_bytes(r, b->s->n);
  for (int i = 0; i < 2; i++) {
    value v = b->arg[1 + i];
    if (v.type == V_MISSING || v.type == V_NONE)
      continue;
    if (!td_op_index(v, &at[i]))
      td_render_fail(r, "slice indices must be integers or None or have an __index__ method");
    if (at[i] < 0)
      at[i] = at[i] + n < 0 ? 0 : at[i] + n;
    if (i == 1 && at[i] > n)
      at[i] = n;
  }
  if (at[0] > n || at[0] > at[1])
    return false;
  *from = td_str_char_offset(b->s, (size_t)at[0]);
  *to = td_str_char_offset(b->s, (size_t)at[1]);
  return true;
}

static bool has_affix(rendering *r, const str *s, size_t from, size_t to, const str *affix, bool start)
{
  if (affix->n > to - from)
    return false;
  pay_bytes(r, affix->n);
  return affix->n == 0 || memcmp(start ? s->p + from : s->p + to - affix->n, affix->p, affix->n) == 0;
}

/* One affix, or a tuple of them. */
static value starts_or_ends(rendering *r, bound *b)
{
  size_t from, to;
  bool inside = byte_range(r, b, &from, &to), tuple = b->arg[0].type == V_TUPLE;
  const value *affixes = tuple ? b->arg[0].l->items : b->arg;
  for (size_t i = 0, n = tuple ? b->arg[0].l->n : 1; i < n; i++) {
    if (affixes[i].type != V_STR)
      td_render_fail(r, "%s() wants str or a tuple of str, not %s", b->name, td_value_type_name(affixes[i]));
    if (inside && has_affix(r, b->s, from, to, affixes[i].s, b->variant == 's'))
      return v_bool(true);
  }
  return v_bool(false);
}

/* removeprefix, removesuffix */
static value remove_affix(rendering *r, bound *b)
{
  str *s = b->s, *affix = b->arg[0].s;
  bool prefix = b->variant == 'p';
  if (affix->n == 0 || !has_affix(r, s, 0, s->n, affix, prefix))
    return b->self;
  return v_str(prefix ? td_str_slice(r, s, affix->n, s->n) : td_str_slice(r, s, 0, s->n - affix->n));
}

/* find, rfind, index, rindex: 'f' 'F' 'i' 'I' */
static value find(rendering *r, bound *b)
{
  size_t from, to, hit = SIZE_MAX;
  bool back = b->variant == 'F' || b->variant == 'I';
  if (byte_range(r, b, &from, &to))
    hit = (back ? td_str_rfind : td_str_find)(r, b->s, b->arg[0].s, from, to);
  if (hit != SIZE_MAX && str_ascii(b->s))
    return v_int((int64_t)hit);
  if (hit != SIZE_MAX) {
    pay_bytes(r, hit);
    return v_int((int64_t)td_unicode_count(b->s->p, hit));
  }
  if (b->variant == 'i' || b->variant == 'I')
    td_render_fail(r, "substring not found");
  return v_int(-1);
}

static value count(rendering *r, bound *b)
{
  const str *needle = b->arg[0].s;
  size_t from, to;
  int64_t n = 0;
  if (!byte_range(r, b, &from, &to))
    return v_int(0);
  pay_bytes(r, to - from);
  if (needle->n == 0)
    return v_int((int64_t)td_unicode_count(b->s->p + from, to - from) + 1);
  while (from < to) {
    const char *hit = memmem(b->s->p + from, to - from, needle->p, needle->n);
    if (!hit)
      break;
    td_render_pay(r, 1);
    n++;
    from = (size_t)(hit - b->s->p) + needle->n;
  }
  return v_int(n);
}

/* ---- parts ---- */

static void push_slice(rendering *r, seq *out, const str *s, size_t from, size_t to)
{
  td_seq_push(r, out, v_str(td_str_slice(r, s, from, to)));
}

static void split_spaces(rendering *r, str *s, int64_t max, seq *out)
{
  size_t at = 0;
  while (at < s->n) {
    size_t len = td_unicode_space_at(s->p + at, s->n - at);
    if (len) {
      at += len;
      continue;
    }
    if (max-- == 0) { /* the rest, without the white space around it */
      td_seq_push(r, out, v_str(td_text_strip(r, td_str_slice(r, s, at, s->n), NULL, false, true)));
      return;
    }
    size_t from = at;
    while (at < s->n && !td_unicode_space_at(s->p + at, s->n - at))
      at++;
    push_slice(r, out, s, from, at);
  }
}

static void rsplit_spaces(rendering *r, str *s, int64_t max, seq *out)
{
  size_t end = s->n;
  for (;;) {
    for (size_t len; end > 0 && (len = td_unicode_space_before(s->p, end)) > 0;)
      end -= len;
    if (end == 0)
      return;
    if (max-- == 0) {
      td_seq_push(r, out, v_str(td_text_strip(r, td_str_slice(r, s, 0, end), NULL, true, false)));
      return;
    }
    size_t from = end;
    while (from > 0 && !td_unicode_space_before(s->p, from))
      from -= td_unicode_length_before(s->p, from);
    push_slice(r, out, s, from, end);
    end = from;
  }
}

static void split_on(rendering *r, str *s, const str *sep, int64_t max, seq *out)
{
  size_t at = 0;
  pay_bytes(r, s->n);
  while (max-- != 0) {
    const char *hit = at < s->n ? memmem(s->p + at, s->n - at, sep->p, sep->n) : NULL;
    if (!hit)
      break;
    td_render_pay(r, 1);
    push_slice(r, out, s, at, (size_t)(hit - s->p));
    at = (size_t)(hit - s->p) + sep->n;
  }
  push_slice(r, out, s, at, s->n);
}

static void rsplit_on(rendering *r, str *s, const str *sep, int64_t max, seq *out)
{
  size_t end = s->n, hit;
  while (max-- != 0 && (hit = td_str_rfind(r, s, sep, 0, end)) != SIZE_MAX) {
    td_render_pay(r, 1);
    push_slice(r, out, s, hit + sep->n, end);
    end = hit;
  }
  push_slice(r, out, s, 0, end);
}

static value split(rendering *r, bound *b)
{
  seq *out = td_render_alloc(r, 1, sizeof *out);
  const str *sep = b->arg[0].s;
  int64_t max = b->arg[1].i;
  bool back = b->variant == 'r';
  if (sep && sep->n == 0)
    td_render_fail(r, "empty separator");
  if (sep) {
    (back ? rsplit_on : split_on)(r, b->s, sep, max, out);
  } else {
    pay_chars(r, b->s->n);
    (back ? rsplit_spaces : split_spaces)(r, b->s, max, out);
  }
  if (back)
    td_seq_reverse(out);
  return v_list(out);
}

static value partition(rendering *r, bound *b)
{
  str *sep = b->arg[0].s, *s = b->s;
  if (sep->n == 0)
    td_render_fail(r, "empty separator");
  bool back = b->variant == 'r';
  size_t hit = (back ? td_str_rfind : td_str_find)(r, s, sep, 0, s->n);
  bool found = hit != SIZE_MAX;
  size_t cut = found ? hit : back ? 0 : s->n, after = found ? hit + sep->n : cut;
  value out = td_value_list(r, NULL, 0, true);
  push_slice(r, out.l, s, 0, cut);
  push_slice(r, out.l, s, cut, after);
  push_slice(r, out.l, s, after, s->n);
  return out;
}

seq *td_text_split_lines(rendering *r, str *s, bool keep)
{
  seq *lines = td_render_alloc(r, 1, sizeof *lines);
  size_t from = 0;
  pay_chars(r, s->n);
  for (size_t i = 0; i < s->n;) {
    size_t end = td_unicode_line_end_at(s->p + i, s->n - i);
    i += end ? end : 1;
    if (!end && i < s->n)
      continue;
    push_slice(r, lines, s, from, keep ? i : i - end);
    from = i;
  }
  return lines;
}

static value split_lines(rendering *r, bound *b) { return v_list(td_text_split_lines(r, b->s, b->arg[0].b)); }

/* ---- what the text consists of ---- */

/* isupper, islower: all cased characters have this case, and there is at least one. istitle: words begin with
 * upper case. */
static value is_cased(rendering *r, bound *b)
{
  str *s = b->s;
  bool any = false, in_word = false;
  pay_chars(r, s->n);
  for (size_t i = 0; i < s->n;) {
    uint32_t cp;
    i += td_unicode_decode(s->p + i, s->n - i, &cp);
    bool up = td_unicode_is_upper(cp), low = td_unicode_is_lower(cp);
    if (b->variant == 't' ? (up && in_word) || (low && !in_word) : b->variant == 'u' ? low : up)
      return v_bool(false);
    any |= up || low;
    in_word = up || low;
  }
  return v_bool(any);
}

static bool char_is(uint32_t cp, int kind)
{
  switch (kind) {
  case 'd': return td_unicode_is_digit(cp);
  case 'a': return td_unicode_is_alpha(cp);
  case 'n': return td_unicode_is_alpha(cp) || td_unicode_is_digit(cp);
  case 's': return td_unicode_is_space(cp);
  default: return cp < 0x80;
  }
}

static value is_all(rendering *r, bound *b)
{
  str *s = b->s;
  pay_chars(r, s->n);
  for (size_t i = 0; i < s->n;) {
    uint32_t cp;
    i += td_unicode_decode(s->p + i, s->n - i, &cp);
    if (!char_is(cp, b->variant))
      return v_bool(false);
  }
  return v_bool(s->n > 0 || b->variant == '7');
}

static value is_identifier(rendering *r, bound *b)
{
  str *s = b->s;
  size_t i = 0;
  pay_chars(r, s->n);
  if (s->n == 0 || (s->p[0] >= '0' && s->p[0] <= '9'))
    return v_bool(false);
  for (size_t len; i < s->n && (len = td_unicode_word_at(s->p + i, s->n - i)) > 0;)
    i += len;
  return v_bool(i == s->n);
}

static value word_count(rendering *r, bound *b)
{
  str *s = b->s;
  int64_t n = 0;
  bool in_word = false;
  pay_chars(r, s->n);
  for (size_t i = 0; i < s->n;) {
    size_t len = td_unicode_word_at(s->p + i, s->n - i);
    n += len && !in_word;
    in_word = len > 0;
    i += len ? len : 1;
  }
  return v_int(n);
}

const builtin td_rows_text_search[] = {
    {OF_STR, "startswith", starts_or_ends, "/prefix start= end=", 's'},
    {OF_STR, "endswith", starts_or_ends, "/suffix start= end=", 'e'},
    {OF_STR, "removeprefix", remove_affix, "/prefix:s", 'p'},
    {OF_STR, "removesuffix", remove_affix, "/suffix:s", 's'},
    {OF_STR, "find", find, "/sub:s start= end=", 'f'},
    {OF_STR, "rfind", find, "/sub:s start= end=", 'F'},
    {OF_STR, "index", find, "/sub:s start= end=", 'i'},
    {OF_STR, "rindex", find, "/sub:s start= end=", 'I'},
    {OF_STR, "count", count, "/sub:s start= end=", 0},
    {OF_STR, "split", split, "sep:S= maxsplit:i=-1", 's'},
    {OF_STR, "rsplit", split, "sep:S= maxsplit:i=-1", 'r'},
    {OF_STR, "splitlines", split_lines, "keepends:b=", 0},
    {OF_STR, "partition", partition, "/sep:s", 'p'},
    {OF_STR, "rpartition", partition, "/sep:s", 'r'},
    {OF_TEST, "upper", is_cased, "$", 'u'},
    {OF_STR, "isupper", is_cased, "", 'u'},
    {OF_TEST, "lower", is_cased, "$", 'l'},
    {OF_STR, "islower", is_cased, "", 'l'},
    {OF_STR, "istitle", is_cased, "", 't'},
    {OF_STR, "isdigit", is_all, "", 'd'},
    {OF_STR, "isdecimal", is_all, "", 'd'},
    {OF_STR, "isnumeric", is_all, "", 'd'},
    {OF_STR, "isalpha", is_all, "", 'a'},
    {OF_STR, "isalnum", is_all, "", 'n'},
    {OF_STR, "isspace", is_all, "", 's'},
    {OF_STR, "isascii", is_all, "", '7'},
    {OF_STR, "isidentifier", is_identifier, "", 0},
    {OF_FILTER, "wordcount", word_count, "$", 0},
    {0},
};
