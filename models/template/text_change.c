/* Filters and methods that turn text into other text. Every byte of a result keeps the provenance of its
 * source. */
#include <stdio.h>
#include <string.h>

#include "models/template/builtin.h"
#include "models/template/unicode.h"

static str *with_markup(rendering *r, const str *s, bool markup)
{
  str *same = td_str_slice(r, s, 0, s->n);
  same->markup = markup;
  return same;
}

/* ---- strip ---- */

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

/* 'b'oth ends, 'l'eft, 'r'ight */
static value strip(rendering *r, bound *b)
{
  return v_str(td_text_strip(r, b->s, b->arg[0].s, b->variant != 'r', b->variant != 'l'));
}

/* ---- replace ---- */

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

static str *replace_all(rendering *r, str *s, str *from, str *to, int64_t count)
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
    /* paying for the rest of the text at every hit would make a long text cost quadratically many steps */
    const char *next = at < s->n ? memmem(s->p + at, s->n - at, from->p, from->n) : NULL;
    hit = next ? (size_t)(next - s->p) : SIZE_MAX;
  }
  td_out_slice(r, &o, s, at, s->n);
  return td_out_finish(r, &o);
}

/* The method keeps safe text safe, and escapes the text that it inserts. The filter's result is never
 * safe. */
static value replace(rendering *r, bound *b)
{
  bool safe = b->s->markup && b->variant == 'm';
  str *to = b->arg[1].s;
  if (safe && !to->markup)
    to = td_text_escape(r, to);
  str *s = replace_all(r, b->s, b->arg[0].s, to, b->arg[2].i);
  return v_str(s->markup == safe ? s : with_markup(r, s, safe));
}

/* ---- case ---- */

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

static bool opens_word(uint32_t cp) /* for the title filter */
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
      td_out_slice(r, &o, s, i, i + 1); /* a stray byte is kept */
    else
      td_out_bytes(r, &o, mapped, n, str_trusted_at(s, i));
    i += len;
    word_start = how == 't' ? opens_word(cp) : how == 'T' ? !td_unicode_is_alpha(cp) : false;
  }
  str *result = td_out_finish(r, &o);
  result->markup = s->markup;
  return result;
}

static value change_case(rendering *r, bound *b) { return v_str(td_text_case(r, b->s, (char)b->variant)); }

/* ---- padding ---- */

static void fill_with(rendering *r, text_out *o, const str *fill, int64_t n)
{
  td_render_pay(r, n > 0 ? (size_t)n / 8 : 0);
  for (int64_t i = 0; i < n; i++)
    td_out_str(r, o, fill);
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

static str *pad(rendering *r, str *s, int64_t width, str *fill, char align)
{
  int64_t n = (int64_t)td_str_chars(s);
  if (width <= n)
    return s;
  int64_t gap = width - n;
  if (td_str_chars(fill) != 1)
    td_render_fail(r, "The fill character must be exactly one character long");
  int64_t left = align == 'l' ? 0 : align == 'r' ? gap : gap / 2 + (gap & width & 1);
  text_out o;
  td_out_init(&o);
  fill_with(r, &o, fill, left);
  td_out_str(r, &o, s);
  fill_with(r, &o, fill, gap - left);
  return td_out_finish(r, &o);
}

static value justify(rendering *r, bound *b)
{
  str *fill = b->arg[1].s ? b->arg[1].s : td_str_literal(r, " ");
  return v_str(pad(r, b->s, b->arg[0].i, fill, (char)b->variant));
}

static value zero_fill(rendering *r, bound *b)
{
  str *s = b->s, *zero = td_str_literal(r, "0");
  int64_t width = b->arg[0].i;
  bool sign = s->n > 0 && (s->p[0] == '-' || s->p[0] == '+');
  if (!sign)
    return v_str(pad(r, s, width, zero, 'r'));
  str *digits = pad(r, td_str_slice(r, s, 1, s->n), width > 0 ? width - 1 : 0, zero, 'r');
  return v_str(td_str_concat(r, td_str_slice(r, s, 0, 1), digits));
}

static value expand_tabs(rendering *r, bound *b)
{
  str *s = b->s;
  int64_t size = b->arg[0].i, column = 0;
  text_out o;
  td_out_init(&o);
  for (size_t i = 0; i < s->n; i++) {
    if (s->p[i] == '\t') {
      int64_t gap = size > 0 ? size - column % size : 0;
      td_render_pay(r, (size_t)gap);
      for (int64_t k = 0; k < gap; k++)
        td_out_bytes(r, &o, " ", 1, str_trusted_at(s, i));
      column += gap;
      continue;
    }
    td_out_slice(r, &o, s, i, i + 1);
    column = s->p[i] == '\n' || s->p[i] == '\r' ? 0 : column + (((unsigned char)s->p[i] & 0xC0) != 0x80);
  }
  return v_str(td_out_finish(r, &o));
}

/* Indents all lines but the first; empty ones only if asked. */
static value indent(rendering *r, bound *b)
{
  bool first = b->arg[1].b, blank = b->arg[2].b;
  if (b->self.type == V_UNDEFINED)
    td_value_fail_undefined(r, b->self);
  if (b->self.type != V_STR)
    td_render_fail(r, "unsupported operand type(s) for +=: '%s' and 'str'", td_value_type_name(b->self));
  seq *lines = td_text_split_lines(r, td_str_concat(r, b->s, td_str_literal(r, "\n")), false);
  text_out o;
  td_out_init(&o);
  for (size_t i = 0; i < lines->n; i++) {
    str *line = lines->items[i].s;
    if (i)
      td_out_bytes(r, &o, "\n", 1, true);
    if (i ? blank || line->n > 0 : first)
      td_out_str(r, &o, b->arg[0].s);
    td_out_str(r, &o, line);
  }
  return v_str(td_out_finish(r, &o));
}

static value truncate(rendering *r, bound *b)
{
  int64_t length = b->arg[0].i, leeway = b->arg[3].i, n;
  str *end = b->arg[2].s ? b->arg[2].s : td_str_literal(r, "...");
  int64_t end_n = (int64_t)td_str_chars(end);
  if (length < end_n || leeway < 0)
    td_render_fail(r, "expected length >= %lld, got %lld", (long long)end_n, (long long)length);
  if (!td_value_length(r, b->self, &n))
    td_render_fail(r, "object of type '%s' has no len()", td_value_type_name(b->self));
  if (n <= length || n - length <= leeway)
    return b->self;
  if (b->self.type != V_STR)
    td_render_fail(r, "truncate needs a string");
  str *cut = td_str_slice(r, b->s, 0, td_str_char_offset(b->s, (size_t)(length - end_n)));
  if (!b->arg[1].b) {
    size_t space = td_str_rfind(r, cut, td_str_literal(r, " "), 0, cut->n);
    if (space != SIZE_MAX)
      cut = td_str_slice(r, cut, 0, space);
  }
  return v_str(td_str_concat(r, cut, end));
}

/* ---- escapes and other forms ---- */

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

static value escape(rendering *r, bound *b)
{
  return v_str(b->s->markup && b->variant != 'f' ? b->s : td_text_escape(r, b->s));
}

static value string(rendering *r, bound *b) { return v_str(b->s); }

static value safe(rendering *r, bound *b) { return v_str(with_markup(r, b->s, true)); }

static value url_encode(rendering *r, bound *b)
{
  str *s = b->s;
  if (td_iterable(b->self) && b->self.type != V_STR)
    td_render_fail(r, "urlencode of a collection is not served");
  text_out o;
  td_out_init(&o);
  for (size_t i = 0; i < s->n; i++) {
    unsigned char c = (unsigned char)s->p[i];
    char esc[4];
    if (((c | 32) >= 'a' && (c | 32) <= 'z') || (c >= '0' && c <= '9') || (c && strchr("_.-~/", c))) {
      td_out_slice(r, &o, s, i, i + 1);
    } else {
      snprintf(esc, sizeof esc, "%%%02X", c);
      td_out_cstr(r, &o, esc, str_trusted_at(s, i));
    }
  }
  return v_str(td_out_finish(r, &o));
}

static value to_json(rendering *r, bound *b)
{
  return td_value_tojson(r, b->self, b->arg[0].b, b->arg[1].s, b->arg[2], b->arg[3].b);
}

static value format_braces(rendering *r, bound *b) { return td_format_braces(r, b->s, b->raw); }

static value format_percent(rendering *r, bound *b)
{
  if (b->raw->n_pos > 0 && b->raw->n_kw > 0)
    td_render_fail(r, "can't handle positional and keyword arguments at the same time");
  value args = td_value_list(r, b->raw->pos, b->raw->n_pos, true);
  if (b->raw->n_kw > 0) {
    args = (value){.type = V_DICT, .d = td_dict_new(r, b->raw->n_kw, false)};
    td_dict_add_keywords(r, args.d, b->raw);
  }
  return td_op_format(r, v_str(b->s), args);
}

/* The filter joins any values, or the values at an attribute path; the method joins strings. */
static value join(rendering *r, bound *b)
{
  bool filter = b->variant == 'f';
  str *separator = filter ? b->arg[0].s : b->s;
  iter *it = td_iter_of(r, filter ? b->self : b->arg[0]);
  text_out o;
  size_t i = 0;
  td_out_init(&o);
  for (value v; (v = td_iter_next(r, it)).type != V_MISSING; i++) {
    if (filter)
      v = td_attribute_path(r, v, b->arg[1]);
    else if (v.type != V_STR)
      td_render_fail(r, "sequence item %zu: expected str instance, %s found", i, td_value_type_name(v));
    if (i && separator)
      td_out_str(r, &o, separator);
    td_value_print(r, &o, v);
  }
  return v_str(td_out_finish(r, &o));
}

const builtin td_rows_text_change[] = {
    {OF_FILTER, "trim", strip, "$chars:S=", 'b'},
    {OF_STR, "strip", strip, "/chars:S=", 'b'},
    {OF_STR, "lstrip", strip, "/chars:S=", 'l'},
    {OF_STR, "rstrip", strip, "/chars:S=", 'r'},
    {OF_FILTER, "replace", replace, "$old:t new:t count:I=-1", 'f'},
    {OF_STR, "replace", replace, "/old:s new:s count:i=-1", 'm'},
    {OF_FILTER | OF_STR, "upper", change_case, "$", 'u'},
    {OF_FILTER | OF_STR, "lower", change_case, "$", 'l'},
    {OF_FILTER | OF_STR, "capitalize", change_case, "$", 'c'},
    {OF_FILTER, "title", change_case, "$", 't'},
    {OF_STR, "title", change_case, "", 'T'},
    {OF_STR, "casefold", change_case, "", 'l'},
    {OF_STR, "swapcase", change_case, "", 's'},
    {OF_FILTER, "center", justify, "$width:i=80", 'c'},
    {OF_STR, "center", justify, "/width:i fillchar:s=", 'c'},
    {OF_STR, "ljust", justify, "/width:i fillchar:s=", 'l'},
    {OF_STR, "rjust", justify, "/width:i fillchar:s=", 'r'},
    {OF_STR, "zfill", zero_fill, "/width:i", 0},
    {OF_STR, "expandtabs", expand_tabs, "tabsize:i=8", 0},
    {OF_FILTER, "indent", indent, "width:w=4 first:b= blank:b=", 0},
    {OF_FILTER, "truncate", truncate, "length:i=255 killwords:b= end:s= leeway:I=5", 0},
    {OF_FILTER, "string", string, "$", 0},
    {OF_FILTER, "safe", safe, "$", 0},
    {OF_FILTER, "escape", escape, "$", 0},
    {OF_FILTER, "e", escape, "$", 0},
    {OF_FILTER, "forceescape", escape, "$", 'f'},
    {OF_FILTER, "urlencode", url_encode, "$", 0},
    {OF_FILTER, "tojson", to_json, "ensure_ascii:b= indent:W= separators= sort_keys:b=", 0},
    {OF_FILTER, "format", format_percent, "$*", 0},
    {OF_STR, "format", format_braces, "*", 0},
    {OF_FILTER, "join", join, "d:t= attribute=", 'f'},
    {OF_STR, "join", join, "/iterable", 'm'},
    {0},
};
