/* Prints values: str() and repr() as in Python, and json.dumps. One traversal of the value has two
 * notations. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/template/builtin.h"
#include "models/template/unicode.h"

/* Writes the shortest digits that read back as the same double. Returns how many are after the point. If up
 * to 15 digits (DBL_DIG) suffice, they are the first 15, so three tries are enough, except for subnormal
 * numbers. */
static int shortest(double f, char digits[32])
{
  int precision = fabs(f) < DBL_MIN ? 0 : DBL_DIG - 1;
  do
    snprintf(digits, 32, "%.*e", precision, f);
  while (strtod(digits, NULL) != f && ++precision < 17);
  char *e = strchr(digits, 'e'), *end = e;
  while (precision > 0 && end[-1] == '0') {
    end--;
    precision--;
  }
  if (end[-1] == '.')
    end--;
  memmove(end, e, strlen(e) + 1);
  return precision;
}

/* The shortest digits that read back as the same double, in Python's layout. */
size_t td_float_repr(double f, char out[40])
{
  char digits[32];
  if (isnan(f))
    return (size_t)sprintf(out, "nan");
  if (isinf(f))
    return (size_t)sprintf(out, f < 0 ? "-inf" : "inf");
  int precision = shortest(f, digits);
  int exponent = atoi(strchr(digits, 'e') + 1);
  if (exponent >= -4 && exponent < 16) {
    int decimals = precision - exponent;
    size_t n = (size_t)snprintf(out, 40, "%.*f", decimals > 0 ? decimals : 0, f);
    if (decimals <= 0)
      n += (size_t)sprintf(out + n, ".0");
    return n;
  }
  char *e = strchr(digits, 'e');
  return (size_t)snprintf(out, 40, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+',
                          abs(exponent));
}

typedef struct writer {
  rendering *r;
  text_out *o;
  bool json, ascii, sort_keys; /* ascii and sort_keys, and indent, are for JSON only */
  const str *indent;           /* NULL: everything on one line */
  const str *item_separator, *key_separator;
} writer;

static void write_value(writer *w, value v, size_t level, bool trusted);

static void put(writer *w, const char *s, bool trusted) { td_out_cstr(w->r, w->o, s, trusted); }

static void put_separator(writer *w, const str *s, bool trusted)
{
  td_out_bytes(w->r, w->o, s->p, s->n, trusted && !td_str_any_untrusted(w->r, s));
}

/* ---- strings ---- */

static void json_escape(const writer *w, uint32_t cp, char out[16])
{
  static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
  const char *hit = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
  if (hit)
    snprintf(out, 16, "\\%c", to[hit - from]);
  else if (cp < 0x20 || (w->ascii && cp > 0x7e && cp < 0x10000))
    snprintf(out, 16, "\\u%04x", cp);
  else if (w->ascii && cp >= 0x10000)
    snprintf(out, 16, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10), 0xDC00 + ((cp - 0x10000) & 0x3FF));
}

static void repr_escape(uint32_t cp, char quote, char out[16])
{
  if (cp == (unsigned char)quote || cp == '\\')
    snprintf(out, 16, "\\%c", (char)cp);
  else if (cp == '\n' || cp == '\r' || cp == '\t')
    snprintf(out, 16, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
  else if (!td_unicode_is_printable(cp))
    snprintf(out, 16, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
}

/* Python chooses the quote that needs no escape, if there is one. */
static void write_str(writer *w, const str *s, bool trusted)
{
  bool dbl = w->json || (memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n));
  char quote[] = {dbl ? '"' : '\'', '\0'};
  bool markup = s->markup && !w->json;
  size_t done = 0;
  trusted = trusted && !td_str_any_untrusted(w->r, s);
  put(w, markup ? "Markup(" : "", trusted);
  put(w, quote, trusted);
  pay_chars(w->r, s->n);
  for (size_t i = 0, len; i < s->n; i += len) {
    uint32_t cp = (unsigned char)s->p[i];
    char esc[16] = "";
    len = cp < 0x80 ? 1 : td_unicode_decode(s->p + i, s->n - i, &cp);
    if (cp >= ' ' && cp < 0x7f && cp != '"' && cp != '\'' && cp != '\\')
      continue;
    if (w->json)
      json_escape(w, cp, esc);
    else
      repr_escape(cp, quote[0], esc);
    if (!esc[0])
      continue;
    td_out_slice(w->r, w->o, s, done, i);
    put(w, esc, str_trusted_at(s, i));
    done = i + len;
  }
  td_out_slice(w->r, w->o, s, done, s->n);
  put(w, quote, trusted);
  put(w, markup ? ")" : "", trusted);
}

/* ---- containers ---- */

static void new_line(writer *w, size_t level, bool trusted)
{
  if (!w->indent)
    return;
  put(w, "\n", trusted);
  for (size_t i = 0; i < level; i++)
    put_separator(w, w->indent, trusted);
}

static void write_seq(writer *w, const seq *l, bool tuple, size_t level)
{
  bool trusted = !l->untrusted;
  put(w, tuple ? "(" : "[", trusted);
  for (size_t i = 0; i < l->n; i++) {
    if (i)
      put_separator(w, w->item_separator, trusted);
    new_line(w, level + 1, trusted);
    write_value(w, l->items[i], level + 1, trusted);
  }
  if (l->n)
    new_line(w, level, trusted);
  put(w, !tuple ? "]" : l->n == 1 ? ",)" : ")", trusted);
}

static void write_key(writer *w, value key, bool trusted)
{
  if (!w->json) {
    write_value(w, key, 0, trusted);
    return;
  }
  if (key.type == V_STR) {
    write_str(w, key.s, trusted);
    return;
  }
  if (key.type != V_NONE && key.type != V_BIGINT && !is_number(key))
    td_render_fail(w->r, "keys must be str, int, float, bool or None, not %s", td_value_type_name(key));
  put(w, "\"", trusted);
  write_value(w, key, 0, trusted);
  put(w, "\"", trusted);
}

static int compare_entries(rendering *r, const void *a, const void *b)
{
  return td_value_compare(r, ((const dict_entry *)a)->key, ((const dict_entry *)b)->key, T_LT);
}

static void write_entries(writer *w, const dict *d, size_t level)
{
  bool trusted = !d->untrusted;
  const void **order = w->sort_keys ? td_render_alloc(w->r, d->n, sizeof *order) : NULL;
  for (size_t i = 0; order && i < d->n; i++)
    order[i] = &d->entries[i];
  if (order)
    td_render_sort(w->r, order, d->n, compare_entries);
  put(w, "{", trusted);
  for (size_t i = 0; i < d->n; i++) {
    const dict_entry *e = order ? order[i] : &d->entries[i];
    if (i)
      put_separator(w, w->item_separator, trusted);
    new_line(w, level + 1, trusted);
    write_key(w, e->key, trusted);
    put_separator(w, w->key_separator, trusted);
    write_value(w, e->val, level + 1, trusted);
  }
  if (d->n)
    new_line(w, level, trusted);
  put(w, "}", trusted);
}

/* Prints {...} inside itself, because a namespace can contain itself. */
static void write_dict(writer *w, dict *d, size_t level)
{
  if (d->busy) {
    put(w, "{...}", !d->untrusted);
    return;
  }
  d->busy = true;
  write_entries(w, d, level);
  d->busy = false;
}

static void repr_view(writer *w, value v)
{
  bool trusted = !v.v->d->untrusted;
  put(w, td_value_type_name(v), trusted);
  put(w, "(", trusted);
  write_value(w, v_list(td_iter_collect(w->r, v)), 0, trusted);
  put(w, ")", trusted);
}

static void write_nested(writer *w, value v, size_t level)
{
  switch (v.type) {
  case V_LIST:
  case V_TUPLE: write_seq(w, v.l, v.type == V_TUPLE && !w->json, level); return;
  case V_DICT: write_dict(w, v.d, level); return;
  case V_NAMESPACE:
    put(w, "<Namespace ", true);
    write_dict(w, v.d, level);
    put(w, ">", true);
    return;
  default: repr_view(w, v);
  }
}

/* ---- other values ---- */

static void repr_range(writer *w, const struct range *g)
{
  char buf[96];
  if (g->step == 1)
    snprintf(buf, sizeof buf, "range(%lld, %lld)", (long long)g->start, (long long)g->stop);
  else
    snprintf(buf, sizeof buf, "range(%lld, %lld, %lld)", (long long)g->start, (long long)g->stop,
             (long long)g->step);
  put(w, buf, true);
}

static void repr_other(writer *w, value v)
{
  char buf[160];
  switch (v.type) {
  case V_MACRO:
    if (v.macro->fn->anonymous)
      snprintf(buf, sizeof buf, "<Macro anonymous>");
    else
      snprintf(buf, sizeof buf, "<Macro '%.*s'>",
               (int)(v.macro->fn->name.n < 100 ? v.macro->fn->name.n : 100), v.macro->fn->name.p);
    break;
  case V_LOOP: snprintf(buf, sizeof buf, "<LoopContext %lld>", (long long)v.loop->index0 + 1); break;
  case V_BUILTIN: snprintf(buf, sizeof buf, "<function %s>", v.fn->name); break;
  case V_METHOD:
    snprintf(buf, sizeof buf, "<built-in method %s of %s object>", v.m->fn->name,
             td_value_type_name(v.m->self));
    break;
  default: snprintf(buf, sizeof buf, "<%s object>", td_value_type_name(v)); break;
  }
  put(w, buf, true);
}

static void write_scalar(writer *w, value v)
{
  static const char *const words[2][3] = {{"None", "False", "True"}, {"null", "false", "true"}};
  char buf[40];
  const char *word = buf;
  switch (v.type) {
  case V_NONE: word = words[w->json][0]; break;
  case V_BOOL: word = words[w->json][v.b ? 2 : 1]; break;
  case V_INT: snprintf(buf, sizeof buf, "%lld", (long long)v.i); break;
  default:
    td_render_pay(w->r, FLOAT_STEPS);
    td_float_repr(v.f, buf);
    if (w->json && !isfinite(v.f))
      word = isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity";
  }
  put(w, word, !v.untrusted);
}

enum {
  JSON_TYPES = 1 << V_NONE | 1 << V_BOOL | 1 << V_INT | 1 << V_FLOAT | 1 << V_BIGINT | 1 << V_STR |
               1 << V_LIST | 1 << V_TUPLE | 1 << V_DICT
};

/* trusted: whether the surrounding text is trusted. */
static void write_value(writer *w, value v, size_t level, bool trusted)
{
  td_render_pay(w->r, 1);
  if (w->json && !(JSON_TYPES >> v.type & 1))
    td_render_fail(w->r, "Object of type %s is not JSON serializable", td_value_type_name(v));
  switch (v.type) {
  case V_MISSING:
  case V_UNDEFINED: put(w, "Undefined", true); return;
  case V_NONE:
  case V_BOOL:
  case V_INT:
  case V_FLOAT: write_scalar(w, v); return;
  case V_BIGINT: td_out_str(w->r, w->o, v.s); return;
  case V_STR: write_str(w, v.s, trusted); return;
  case V_LIST:
  case V_TUPLE:
  case V_DICT:
  case V_NAMESPACE:
  case V_VIEW:
    td_render_deeper(w->r);
    write_nested(w, v, level);
    shallower(w->r);
    return;
  case V_RANGE: repr_range(w, v.r); return;
  default: repr_other(w, v);
  }
}

static const str comma = {.p = ", ", .n = 2, .trusted = true}, colon = {.p = ": ", .n = 2, .trusted = true};

static void write_repr(rendering *r, text_out *o, value v)
{
  writer w = {.r = r, .o = o, .item_separator = &comma, .key_separator = &colon};
  write_value(&w, v, 0, true);
}

void td_value_print(rendering *r, text_out *o, value v)
{
  if (v.type == V_STR || v.type == V_BIGINT)
    td_out_str(r, o, v.s);
  else if (v.type != V_UNDEFINED)
    write_repr(r, o, v);
}

str *td_value_str(rendering *r, value v)
{
  text_out o;
  if (v.type == V_STR)
    return v.s;
  td_out_init(&o);
  td_value_print(r, &o, v);
  return td_out_finish(r, &o);
}

str *td_value_repr(rendering *r, value v)
{
  text_out o;
  td_out_init(&o);
  write_repr(r, &o, v);
  return td_out_finish(r, &o);
}

value td_value_tojson(rendering *r, value v, bool ascii, const str *indent, value separators, bool sort_keys)
{
  static const str comma_alone = {.p = ",", .n = 1, .trusted = true};
  text_out o;
  writer w = {.r = r, .o = &o, .json = true, .ascii = ascii, .sort_keys = sort_keys, .indent = indent};
  td_out_init(&o);
  w.item_separator = indent ? &comma_alone : &comma;
  w.key_separator = &colon;
  if (separators.type != V_NONE && separators.type != V_MISSING) {
    seq *pair = td_iter_collect(r, separators);
    if (pair->n != 2 || pair->items[0].type != V_STR || pair->items[1].type != V_STR)
      td_render_fail(r, "separators must be a pair of strings");
    w.item_separator = pair->items[0].s;
    w.key_separator = pair->items[1].s;
  }
  write_value(&w, v, 0, true);
  return v_str(td_out_finish(r, &o));
}

const char *td_value_quoted(rendering *r, value v)
{
  str *s = td_value_repr(r, v);
  size_t n = s->n < 200 ? s->n : 200;
  char *copy = td_render_alloc(r, n + 1, 1);
  memcpy(copy, s->p, n);
  return copy;
}
