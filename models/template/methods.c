/* Methods of str, list, tuple and dict that templates may call, as Python has them. */
#include <string.h>

#include "models/template/builtin.h"
#include "models/template/unicode.h"

static value same_kind(str *of, str *result)
{
  if (result != of)
    result->markup = of->markup;
  return v_str(result);
}

static value strip(rendering *r, bound *b)
{
  return v_str(td_text_strip(r, b->self.s, td_arg_str(r, b, 0), b->variant != 'r', b->variant != 'l'));
}

static value change_case(rendering *r, bound *b)
{
  return v_str(td_text_case(r, b->self.s, (char)b->variant));
}

static str *required_str(rendering *r, const bound *b, int i)
{
  if (b->arg[i].type != V_STR)
    td_render_fail(r, "%s() argument %d must be str, not %s", b->name, i + 1, td_value_type_name(b->arg[i]));
  return b->arg[i].s;
}

static value replace(rendering *r, bound *b)
{
  str *from = required_str(r, b, 0), *to = required_str(r, b, 1);
  if (b->self.s->markup && !to->markup)
    to = td_text_escape(r, to);
  return same_kind(b->self.s, td_text_replace(r, b->self.s, from, to, td_arg_int(r, b, 2, -1)));
}

/* start and end arguments as byte offsets; false: nothing can match there */
static bool byte_range(rendering *r, const bound *b, int first, size_t *from, size_t *to)
{
  int64_t n = (int64_t)td_str_chars(b->self.s), at[2] = {0, n};
  if (!str_ascii(b->self.s))
    pay_bytes(r, b->self.s->n);
  for (int i = 0; i < 2; i++) {
    value v = b->arg[first + i];
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
  *from = td_str_char_offset(b->self.s, (size_t)at[0]);
  *to = td_str_char_offset(b->self.s, (size_t)at[1]);
  return true;
}

bool td_text_has_affix(rendering *r, const str *s, size_t from, size_t to, const str *affix, bool start)
{
  if (affix->n > to - from)
    return false;
  pay_bytes(r, affix->n);
  return affix->n == 0 || memcmp(start ? s->p + from : s->p + to - affix->n, affix->p, affix->n) == 0;
}

static value starts_or_ends(rendering *r, bound *b)
{
  size_t from, to;
  bool inside = byte_range(r, b, 1, &from, &to);
  if (b->arg[0].type == V_TUPLE) {
    for (size_t i = 0; i < b->arg[0].l->n; i++) {
      value v = b->arg[0].l->items[i];
      if (v.type != V_STR)
        td_render_fail(r, "tuple for %s must only contain str, not %s", b->name, td_value_type_name(v));
      if (inside && td_text_has_affix(r, b->self.s, from, to, v.s, b->variant == 's'))
        return v_bool(true);
    }
    return v_bool(false);
  }
  if (b->arg[0].type != V_STR)
    td_render_fail(r, "%s first arg must be str or a tuple of str, not %s", b->name,
                   td_value_type_name(b->arg[0]));
  return v_bool(inside && td_text_has_affix(r, b->self.s, from, to, b->arg[0].s, b->variant == 's'));
}

/* find, rfind, index, rindex: 'f' 'F' 'i' 'I' */
static value find(rendering *r, bound *b)
{
  str *needle = required_str(r, b, 0);
  size_t from, to, hit = SIZE_MAX;
  bool back = b->variant == 'F' || b->variant == 'I';
  if (byte_range(r, b, 1, &from, &to))
    hit = back ? td_str_rfind(r, b->self.s, needle, from, to) : td_str_find(r, b->self.s, needle, from, to);
  if (hit != SIZE_MAX && str_ascii(b->self.s))
    return v_int((int64_t)hit);
  if (hit != SIZE_MAX) {
    pay_bytes(r, hit);
    return v_int((int64_t)td_unicode_count(b->self.s->p, hit));
  }
  if (b->variant == 'i' || b->variant == 'I')
    td_render_fail(r, "substring not found");
  return v_int(-1);
}

static value count(rendering *r, bound *b)
{
  str *needle = required_str(r, b, 0);
  size_t from, to;
  int64_t n = 0;
  if (!byte_range(r, b, 1, &from, &to))
    return v_int(0);
  pay_bytes(r, to - from);
  if (needle->n == 0)
    return v_int((int64_t)td_unicode_count(b->self.s->p + from, to - from) + 1);
  while (from < to) {
    const char *hit = memmem(b->self.s->p + from, to - from, needle->p, needle->n);
    if (!hit)
      break;
    td_render_pay(r, 1);
    n++;
    from = (size_t)(hit - b->self.s->p) + needle->n;
  }
  return v_int(n);
}

/* ---- split ---- */

typedef struct list_builder {
  value *items;
  size_t n, cap;
} list_builder;

static void push(rendering *r, list_builder *l, str *s)
{
  if (l->n == l->cap) {
    size_t cap = l->cap ? 2 * l->cap : 8;
    value *grown = td_render_alloc(r, cap, sizeof *grown);
    if (l->n)
      memcpy(grown, l->items, l->n * sizeof *grown);
    l->items = grown;
    l->cap = cap;
  }
  l->items[l->n++] = v_str(s);
}

static void split_spaces(rendering *r, str *s, int64_t max, list_builder *out)
{
  size_t at = 0;
  while (at < s->n) {
    size_t len = td_unicode_space_at(s->p + at, s->n - at);
    if (len) {
      at += len;
      continue;
    }
    if (max-- == 0) { /* the rest, without the white space around it */
      push(r, out, td_text_strip(r, td_str_slice(r, s, at, s->n), NULL, false, true));
      return;
    }
    size_t from = at;
    while (at < s->n && !td_unicode_space_at(s->p + at, s->n - at))
      at++;
    push(r, out, td_str_slice(r, s, from, at));
  }
}

static void rsplit_spaces(rendering *r, str *s, int64_t max, list_builder *out)
{
  size_t end = s->n;
  for (;;) {
    for (size_t len; end > 0 && (len = td_unicode_space_before(s->p, end)) > 0;)
      end -= len;
    if (end == 0)
      return;
    if (max-- == 0) {
      push(r, out, td_text_strip(r, td_str_slice(r, s, 0, end), NULL, true, false));
      return;
    }
    size_t from = end;
    while (from > 0 && !td_unicode_space_before(s->p, from))
      from -= td_unicode_length_before(s->p, from);
    push(r, out, td_str_slice(r, s, from, end));
    end = from;
  }
}

static void split_on(rendering *r, str *s, const str *sep, int64_t max, list_builder *out)
{
  size_t at = 0;
  pay_bytes(r, s->n);
  while (max-- != 0) {
    const char *hit = at < s->n ? memmem(s->p + at, s->n - at, sep->p, sep->n) : NULL;
    if (!hit)
      break;
    td_render_pay(r, 1);
    push(r, out, td_str_slice(r, s, at, (size_t)(hit - s->p)));
    at = (size_t)(hit - s->p) + sep->n;
  }
  push(r, out, td_str_slice(r, s, at, s->n));
}

static void rsplit_on(rendering *r, str *s, const str *sep, int64_t max, list_builder *out)
{
  size_t end = s->n;
  while (max-- != 0) {
    size_t hit = td_str_rfind(r, s, sep, 0, end);
    if (hit == SIZE_MAX)
      break;
    td_render_pay(r, 1);
    push(r, out, td_str_slice(r, s, hit + sep->n, end));
    end = hit;
  }
  push(r, out, td_str_slice(r, s, 0, end));
}

static value split(rendering *r, bound *b)
{
  list_builder out = {0};
  int64_t max = td_arg_int(r, b, 1, -1);
  bool back = b->variant == 'r';
  str *sep = NULL;
  if (b->arg[0].type != V_MISSING && b->arg[0].type != V_NONE) {
    if (b->arg[0].type != V_STR)
      td_render_fail(r, "must be str or None, not %s", td_value_type_name(b->arg[0]));
    sep = b->arg[0].s;
    if (sep->n == 0)
      td_render_fail(r, "empty separator");
  } else {
    pay_chars(r, b->self.s->n);
  }
  if (sep && back)
    rsplit_on(r, b->self.s, sep, max, &out);
  else if (sep)
    split_on(r, b->self.s, sep, max, &out);
  else if (back)
    rsplit_spaces(r, b->self.s, max, &out);
  else
    split_spaces(r, b->self.s, max, &out);
  for (size_t i = 0; back && i < out.n / 2; i++) {
    value swap = out.items[i];
    out.items[i] = out.items[out.n - 1 - i];
    out.items[out.n - 1 - i] = swap;
  }
  return td_value_list(r, out.items, out.n, false);
}

static value partition(rendering *r, bound *b)
{
  str *sep = required_str(r, b, 0), *s = b->self.s;
  if (sep->n == 0)
    td_render_fail(r, "empty separator");
  bool back = b->variant == 'r';
  size_t hit = back ? td_str_rfind(r, s, sep, 0, s->n) : td_str_find(r, s, sep, 0, s->n);
  value *items = td_render_alloc(r, 3, sizeof *items);
  bool found = hit != SIZE_MAX;
  size_t cut = found ? hit : back ? 0 : s->n, after = found ? hit + sep->n : cut;
  items[0] = v_str(td_str_slice(r, s, 0, cut));
  items[1] = v_str(td_str_slice(r, s, cut, after));
  items[2] = v_str(td_str_slice(r, s, after, s->n));
  return td_value_list(r, items, 3, true);
}

static value split_lines(rendering *r, bound *b)
{
  return (value){.type = V_LIST, .l = td_text_split_lines(r, b->self.s, td_arg_truth(r, b, 0, false))};
}

static value join(rendering *r, bound *b) { return v_str(td_text_join(r, b->self.s, b->arg[0], false)); }

const builtin td_str_methods[] = {
    {"strip", strip, "/chars", 0, 'b'},
    {"lstrip", strip, "/chars", 0, 'l'},
    {"rstrip", strip, "/chars", 0, 'r'},
    {"split", split, "sep maxsplit", 0, 's'},
    {"rsplit", split, "sep maxsplit", 0, 'r'},
    {"splitlines", split_lines, "keepends", 0, 0},
    {"partition", partition, "/sep", 1, 'p'},
    {"rpartition", partition, "/sep", 1, 'r'},
    {"replace", replace, "/old new count", 2, 0},
    {"startswith", starts_or_ends, "/prefix start end", 1, 's'},
    {"endswith", starts_or_ends, "/suffix start end", 1, 'e'},
    {"find", find, "/sub start end", 1, 'f'},
    {"rfind", find, "/sub start end", 1, 'F'},
    {"index", find, "/sub start end", 1, 'i'},
    {"rindex", find, "/sub start end", 1, 'I'},
    {"count", count, "/sub start end", 1, 0},
    {"join", join, "/iterable", 1, 0},
    {"upper", change_case, "", 0, 'u'},
    {"lower", change_case, "", 0, 'l'},
    {"casefold", change_case, "", 0, 'l'},
    {"capitalize", change_case, "", 0, 'c'},
    {"title", change_case, "", 0, 'T'},
    {"swapcase", change_case, "", 0, 's'},
    {0},
};

/* ---- list, tuple, dict ---- */

static value seq_index(rendering *r, bound *b)
{
  seq *l = b->self.type == V_RANGE ? td_iter_collect(r, b->self) : b->self.l;
  int64_t n = 0;
  for (size_t i = 0; i < l->n; i++) {
    if (!td_value_equal(r, l->items[i], b->arg[0]))
      continue;
    if (b->variant == 'i')
      return v_int((int64_t)i);
    n++;
  }
  if (b->variant == 'i')
    td_render_fail(r, "%s is not in list", td_value_quoted(r, b->arg[0]));
  return v_int(n);
}

static value copy(rendering *r, bound *b)
{
  value v = b->self; /* what is immutable needs no copy */
  return v;
}

const builtin td_list_methods[] = {
    {"index", seq_index, "/value", 1, 'i'},
    {"count", seq_index, "/value", 1, 'n'},
    {"copy", copy, "/", 0, 'c'},
    {0},
};

static value dict_get(rendering *r, bound *b)
{
  value v = td_dict_get(r, b->self.d, b->arg[0]);
  if (v.type != V_MISSING)
    return v;
  return b->arg[1].type == V_MISSING ? v_none() : b->arg[1];
}

static value dict_view(rendering *r, bound *b)
{
  struct view *v = td_render_alloc(r, 1, sizeof *v);
  *v = (struct view){b->self.d, (char)b->variant};
  return (value){.type = V_VIEW, .v = v};
}

const builtin td_dict_methods[] = {
    {"get", dict_get, "/key default", 1, 0},
    {"items", dict_view, "/", 0, 'i'},
    {"keys", dict_view, "/", 0, 'k'},
    {"values", dict_view, "/", 0, 'v'},
    {"copy", copy, "/", 0, 'd'},
    {0},
};
